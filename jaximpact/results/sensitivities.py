"""Jacobians of motions, as `jaximpact.sensitivities` returns them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import jax
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.shapes import PyTree
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.motion import OF_CONTACTS
from ..mechanics.status import DOUBTS, FAILURES, Status, describe
from .covariance import Covariance, joint
from .ranking import Ranking
from .result import Arrays, Drawable

COORDINATES = {
    "q": "q",
    "v": "v",
    "q0": "q",
    "v0": "v",
}  # whose last axis is that of the coordinates, and their quantity
UNITS = dict.fromkeys(OF_CONTACTS, "1") | {"h": "s", "t0": "s", "t1": "s"}


@dataclass(frozen=True, repr=False)
class Sensitivities(Drawable):
    """Result of `jaximpact.sensitivities`: outputs of motions and their Jacobians, numpy arrays;
    a batch adds a leading axis B.

    A batch computed on a GPU stays there, as jax arrays.

    ``found[3]``, ``found[2:5]`` and ``found[mask]`` are lanes of a batch.

    Attributes:
        value: the outputs, a dict or other pytree.
        jacobian: for each output a dict: name in ``wrt`` -> derivative of shape (*output, *input); for "args" a pytree
            like args, None where a leaf is not a real number.
        status: `Status` bits of each motion; a bit DERIVATIVE_... says that its Jacobian is not to be trusted.
        mode: "forward" or "reverse".
        inputs: values of the inputs in ``wrt``: name -> value.
        naming: names and units of the problem.
        again: for a single motion, a function that recomputes it: inputs with a leading sample axis -> `Sensitivities`
            of the samples that could start, and status bits of all.
    """

    value: PyTree
    jacobian: PyTree
    status: np.ndarray
    mode: str
    inputs: PyTree
    naming: Labels = UNNAMED
    again: Callable[[PyTree], tuple[Sensitivities | None, np.ndarray]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def trusted(self) -> np.ndarray:
        """Whether each motion succeeded, its Jacobian is finite and no status bit casts doubt on it."""
        return (self.status & int(FAILURES | DOUBTS)) == 0

    def describe_status(self) -> str:
        """The status bits set in any motion, in words."""
        return describe(int(np.bitwise_or.reduce(np.ravel(self.status))))

    def __getitem__(self, which: ArrayLike | slice) -> Sensitivities:
        """Selects lanes of a batch by number, slice or mask; TypeError if there is no lane axis."""
        if np.ndim(self.status) == 0:
            raise TypeError("these sensitivities are those of one motion, and have no lane axis")
        which = np.asarray(which) if isinstance(which, list) else which
        arrays = (self.value, self.jacobian, self.status, self.inputs)
        value, jacobian, status, inputs = jax.tree.map(lambda x: x[which], arrays)
        return replace(self, value=value, jacobian=jacobian, status=status, inputs=inputs, again=None)

    # sensitivity to each input

    def ranking(self, by: str = "relative", units: Mapping[str, str] | None = None) -> Ranking:
        """Ranks the inputs of each output: derivatives with units, and relative ones, d ln|y| / d ln|p|.

        Args:
            by: the quantity to rank by: "relative", percent of the output for one percent of the input; or "absolute",
                the derivative, comparable if all inputs have one unit.
            units: units of outputs and inputs by name, such as {"args.g": "m/s^2"}; units of coordinates, e and times
                are known from the problem.

        Returns:
            `Ranking`, outputs in their order; inputs without a relative sensitivity (where the output or the input is
            zero) come last.

        Raises:
            ValueError: the sensitivities are those of a batch, where every motion has its own ranking; or ``by`` or a
                name in ``units`` is unknown.
        """
        self._single("ranking")
        outputs, y, inputs, x, jacobian = self._flat()
        known = {name: unit_of(name, self.naming) for name in (*outputs, *inputs)} | dict(units or {})
        strange = sorted(set(known) - {*outputs, *inputs})
        if strange:
            raise ValueError(f"units: {strange[0]!r} is none of {', '.join((*outputs, *inputs))}")
        return Ranking.of((outputs, y[0]), (inputs, x[0]), jacobian[0], by, known, int(self.status))

    def covariance(self, inputs: Mapping | ArrayLike) -> Covariance:
        """Covariance of the outputs that follows from a spread of the inputs, by the delta method: C_y = J C_x J'.

        Args:
            inputs: standard deviations by name, ``{"q0": 0.01, "e": 0.02, "args": {"g": 0.05}}``, each of the shape of
                the input or one number for all its components; components by their own names, ``{"q0[0]": 0.01,
                "args.g": 0.05}``. In place of a standard deviation of n components a covariance matrix (n, n). Or, for
                all inputs together, a covariance matrix (N, N) in the order of the inputs in ``to_pandas()``. Inputs
                that are not named do not vary.

        Returns:
            `Covariance`, whose ``check()`` says where linearising fails.

        Raises:
            ValueError, TypeError: the sensitivities are those of a batch; a name is no input; a number is negative or
                not finite; a matrix is not symmetric or not positive semidefinite.
        """
        self._single("covariance")
        outputs, y, names, x, jacobian = self._flat()
        spread = joint(inputs, names, self._groups())
        covariance = jacobian[0] @ spread @ jacobian[0].T
        numbers = (y[0], covariance, x[0], spread, jacobian[0])
        again = None if self.again is None else self._resample
        units = tuple(unit_of(name, self.naming) for name in outputs)
        return Covariance(outputs, names, *numbers, self.status, units, again)

    def _resample(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Recomputes the motion for samples of the inputs (S, N): outputs (S, n), NaN where a motion cannot start,
        and statuses (S,)."""
        leaves, structure = jax.tree.flatten(self.inputs)
        ends = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
        parts = zip(np.split(x, ends, axis=1), leaves, strict=True)
        inputs = jax.tree.unflatten(structure, [part.reshape(-1, *np.shape(leaf)) for part, leaf in parts])
        assert self.again is not None
        found, status = self.again(inputs)
        y = np.full((len(x), self._flat()[1].shape[1]), np.nan)
        if found is not None:
            started = status == 0
            y[started], status[started] = found._flat()[1], np.asarray(found.status)
        return y, status

    def _single(self, what: str) -> None:
        if self._is_traced():
            raise TypeError(f"{what} needs known numbers, and cannot be called inside a jax transformation")
        if np.ndim(self.status):
            raise ValueError(
                f"{what} is that of one motion, and these are {len(self.status)}: take one, found[0].{what}"
            )

    # as numbers in rows

    def _flat(self) -> tuple[tuple[str, ...], np.ndarray, tuple[str, ...], np.ndarray, np.ndarray]:
        """Names and values of outputs (B, n) and inputs (B, N), and Jacobians (B, n, N); B = 1 for one motion."""
        outputs, y = components(self.value, np.ndim(self.status), self.naming)
        inputs, x = components(self.inputs, np.ndim(self.status), self.naming)
        wholes = jax.tree.leaves(jax.tree.map(lambda _, of: _Whole(of), self.value, self.jacobian))
        rows, batch = [], np.ndim(self.status)
        for value, whole in zip(jax.tree.leaves(self.value), wholes, strict=True):
            count = int(np.prod(np.shape(value)[batch:]))
            parts = [np.asarray(d).reshape(len(y), count, -1) for d in jax.tree.leaves(whole.jacobian)]
            rows.append(np.concatenate(parts, axis=2))
        return outputs, y, inputs, x, np.concatenate(rows, axis=1)

    def _groups(self) -> dict[str, list[int]]:
        """Indices of the flat inputs (N,) that belong to each common name: "q0", "args",
        or "args.g" where g is an array."""
        found: dict[str, list[int]] = {}
        start = 0
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.inputs):
            places = list(range(start, start + np.size(leaf)))
            start += np.size(leaf)
            for depth in range(1, len(path) + 1):
                found.setdefault(_path(path[:depth]), []).extend(places)
        return found

    def _facts(self) -> list[tuple[str, str]]:
        found = [fact for fact in super()._facts() if fact[0] not in ("status", "again")]
        if self._is_traced():
            return found
        bits = Status(int(np.bitwise_or.reduce(np.ravel(self.status))))
        return [*found, ("status", str(bits)), ("trusted", f"{int(np.sum(self.trusted))} of {np.size(self.status)}")]

    def _arrays(self) -> Arrays:
        outputs, y, inputs, x, jacobian = self._flat()
        lanes = ("lane",) * np.ndim(self.status)
        fields = {"value": ((*lanes, "output"), y), "at": ((*lanes, "input"), x)}
        fields |= {"derivative": ((*lanes, "output", "input"), jacobian)}
        fields = fields if lanes else {name: (dims, z[0]) for name, (dims, z) in fields.items()}
        names = {"output": (("output",), outputs), "input": (("input",), inputs)}
        return names | fields | {"status": (lanes, self.status), "trusted": (lanes, self.trusted)}

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each pair of components of an output and an input: lane, output, value, input, derivative,
        trusted."""
        outputs, y, inputs, x, jacobian = self._flat()
        shape = jacobian.shape
        lane, output, of = (index.ravel() for index in np.indices(shape))
        table = {
            "lane": lane,
            "output": np.array(outputs)[output],
            "value": np.broadcast_to(y[:, :, None], shape).ravel(),
            "input": np.array(inputs)[of],
            "at": np.broadcast_to(x[:, None, :], shape).ravel(),
            "derivative": jacobian.ravel(),
            "trusted": np.atleast_1d(self.trusted)[lane],
        }
        if np.ndim(self.status) == 0:
            del table["lane"]
        return table


def unit_of(name: str, naming: Labels) -> str:
    """Unit of an output or an input; "" if unknown."""
    root, _, index = name.partition("[")
    if root in UNITS:
        return UNITS[root]
    if root not in COORDINATES:
        return ""
    last, names = index.rstrip("]").split(",")[-1], naming.coordinates
    place = names.index(last) if names and last in names else None
    return naming.unit(COORDINATES[root], place)


def components(tree: object, batch: int, naming: Labels) -> tuple[tuple[str, ...], np.ndarray]:
    """Names (n,) and values (B, n) of all numbers in a pytree; its leaves have a leading axis B if ``batch`` is 1."""
    names, parts = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        names += [_name(path, k, naming) for k in np.ndindex(array.shape[batch:])]
        parts.append(array.reshape(array.shape[0] if batch else 1, -1))
    return tuple(names), np.concatenate(parts, axis=1)


def _name(path: tuple, index: tuple[int, ...], naming: Labels) -> str:
    """Name of one number in a pytree: q[0], args.k[1], q[x] where coordinates have names,
    or y if the pytree is that number."""
    name, names = _path(path) or "y", naming.coordinates
    if names and name in COORDINATES and index and index[-1] < len(names):
        return f"{name}[{','.join([*map(str, index[:-1]), names[index[-1]]])}]"
    return name + (f"[{','.join(map(str, index))}]" if index else "")


def _path(path: tuple) -> str:
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)


class _Whole:
    """Wrapper that makes jax treat the Jacobian of one output, a dict by input, as a leaf."""

    def __init__(self, jacobian: object) -> None:
        self.jacobian = jacobian
