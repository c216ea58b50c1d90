"""Jacobians of motions, as `jaximpact.sensitivities` returns them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..labels import UNNAMED, Labels
from ..status import DOUBTS, FAILURES, Status, describe
from .result import Result

COORDINATES = ("q", "v", "q0", "v0")  # whose last axis is that of the coordinates


@dataclass(frozen=True, repr=False)
class Sensitivities(Result):
    """Outputs of motions and their Jacobians, numpy arrays; a batch adds a leading axis B to each.

    Attributes:
        value: the outputs, a dict or other pytree.
        jacobian: for each output a dict: name in ``wrt`` -> derivative of shape (*output, *input); for "args" a pytree
            like args, None where a leaf is not a real number.
        status: `Status` bits of each motion; those named DERIVATIVE_... say where not to trust the Jacobian.
        mode: "forward" or "reverse".
        naming: names and units of the problem.
    """

    value: Any
    jacobian: Any
    status: np.ndarray
    mode: str
    naming: Labels = UNNAMED

    @property
    def trusted(self) -> np.ndarray:
        """Whether the motion succeeded, its Jacobian is finite, and nothing is known against it."""
        return (self.status & int(FAILURES | DOUBTS)) == 0

    def describe_status(self) -> str:
        """The status bits set in any motion, in words."""
        return describe(int(np.bitwise_or.reduce(np.ravel(self.status))))

    def _facts(self) -> list[tuple[str, str]]:
        found = [fact for fact in super()._facts() if fact[0] != "status"]
        if self._traced():
            return found
        bits = Status(int(np.bitwise_or.reduce(np.ravel(self.status))))
        return [*found, ("status", str(bits)), ("trusted", f"{int(np.sum(self.trusted))} of {np.size(self.status)}")]

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each pair of an output's and an input's component: lane, output, value, input, derivative, trusted."""
        rows = list(self._rows())
        names = ("lane", "output", "value", "input", "derivative", "trusted")
        table = {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}
        if np.ndim(self.status) == 0:
            del table["lane"]
        return table

    def _rows(self) -> Iterator[tuple]:
        single = np.ndim(self.status) == 0
        trusted = np.atleast_1d(self.trusted)
        outputs = jax.tree_util.tree_leaves_with_path(self.value)
        jacobians = jax.tree.leaves(jax.tree.map(lambda _, of: _Whole(of), self.value, self.jacobian))
        for (path, value), jacobian in zip(outputs, (one.jacobian for one in jacobians), strict=True):
            inputs = jax.tree_util.tree_leaves_with_path(jacobian)
            value = np.asarray(value)[None] if single else np.asarray(value)
            for lane, of_lane in enumerate(value):
                for k in np.ndindex(of_lane.shape):
                    for way, derivative in inputs:
                        d = np.asarray(derivative) if single else np.asarray(derivative)[lane]
                        for j in np.ndindex(d.shape[of_lane.ndim :]):
                            name, of = self._name(path, k), self._name(way, j)
                            yield lane, name, of_lane[k], of, d[k + j], trusted[lane]

    def _name(self, path: tuple, index: tuple[int, ...]) -> str:
        """Where a number stands in a pytree: q[0], args.k[1], or q[x] where coordinates have names."""
        name = ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
        names = self.naming.coordinates
        if names and name in COORDINATES and index and index[-1] < len(names):
            return f"{name}[{','.join([*map(str, index[:-1]), names[index[-1]]])}]"
        return name + (f"[{','.join(map(str, index))}]" if index else "")


class _Whole:
    """What jax takes for a leaf: the Jacobian of one output, a dict by input."""

    def __init__(self, jacobian: Any) -> None:
        self.jacobian = jacobian
