"""The shared, ready-to-run part of a study, and the arguments of its lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ..analysis.checks import of_one_lane
from ..jaxtools.argument_checks import named_leaves, with_leaves
from ..mechanics.method_names import suggestion
from ..mechanics.motion import OF_CONTACTS
from ..mechanics.problem import Problem
from ..mechanics.trials.stops import Until
from ..results.save import Save
from ..simulation.call import Arguments, Call
from ..simulation.canonical_arrays import check_coefficients, check_restitution, check_times
from .design import ROOTS, Design, Key
from .importing import load_problem
from .plain import decode
from .spec import OPTIONAL, Spec

if TYPE_CHECKING:
    from ..mechanics.scheme import Scheme


@dataclass(frozen=True)
class StudySystem:
    """Everything that the lanes of a study share, ready to compute; ``base``: arguments by name (q0, v0, t1, args, ...)
    that the design does not replace, as in `Study`."""

    problem: Problem
    scheme: Scheme
    projection: Any
    save: Save
    base: Arguments
    until: Until | None = None

    @classmethod
    def of(cls, spec: Spec) -> StudySystem:
        """Makes a `StudySystem` from plain data, importing the problem by its name."""
        problem = load_problem(spec.problem, spec.folder)
        parts = (spec.scheme, spec.projection, spec.save, {"$dict": spec.base}, spec.until)
        methods = [decode(part, spec.problem, spec.folder) for part in parts]
        methods[3] = dict.fromkeys(OPTIONAL) | methods[3]
        return cls(problem, *methods)

    def columns(self, lanes: Mapping[str, np.ndarray]) -> tuple[Arguments, object]:
        """Arguments of `ensemble` by name for B lanes, given by the values (B, ...) of each quantity;
        q0 always has a lane axis.

        Also returns a pytree like args that says which of its leaves vary between lanes.
        """
        count = len(next(iter(lanes.values())))
        values = dict(self.base)
        dtype = self.base["q0"].dtype if self.base["q0"] is not None else jnp.result_type(float)
        lanes = {key: column.astype(dtype) for key, column in lanes.items()}
        # kept in float64 whatever jax computes in
        values |= {name: values[name].astype(dtype) for name in OF_CONTACTS if isinstance(values[name], np.ndarray)}
        args, varied = named_leaves(values["args"]), set[tuple[str, ...] | str]()
        for text, column in lanes.items():
            key = Key.of(text)
            place: dict = args if key.root == "args" else values
            name = key.path or key.root
            place[name] = _replace_component(place[name], key, column, name in varied)
            varied.add(name)
        if np.ndim(values["q0"]) == 1:
            values["q0"] = np.broadcast_to(values["q0"], (count, *np.shape(values["q0"])))
        for name in OF_CONTACTS:
            if np.ndim(values[name]) == 1:
                # a single axis would not say whether it is one number for each lane or for each contact
                values[name] = values[name][:, None] if name in varied else values[name][None]
        varies = with_leaves(values["args"], (None if x is None else name in varied for name, x in args.items()))
        return values | {"args": with_leaves(values["args"], args.values())}, varies

    def lane(self, values: Mapping[str, np.ndarray]) -> dict:
        """Arguments of `solve` for one lane, from its values of each quantity."""
        columns, varies = self.columns({key: np.asarray(value)[None] for key, value in values.items()})
        swept = {Key.of(key).root for key in values} | {"q0"}
        chosen = {name: columns[name][0] if name in swept else columns[name] for name in ROOTS}
        chosen |= {name: of_one_lane(columns[name]) for name in OF_CONTACTS}
        chosen["key"] = columns["key"] if np.ndim(columns["key"]) < 2 else columns["key"][0]
        return chosen | {"args": jax.tree.map(lambda some, x: x[0] if some else x, varies, columns["args"])}

    def call(self, values: Mapping[str, Any], **more: Any) -> Call:
        """The call of motions with these arguments by name, of `columns` or `lane`; ``more``: further ones."""
        of_all = {"scheme": self.scheme, "projection": self.projection, "save": self.save, "until": self.until}
        return Call(self.problem, **values, **of_all | more)

    def check(self, design: Design) -> None:
        """Raises ValueError for quantities of the design that are unknown or have another shape,
        or wrong e or friction."""
        for key in design.keys:
            self._check_shape(key, design.values[key.text].shape[1:])
            values = design.values[key.text]
            if key.root in OF_CONTACTS:
                try:
                    if key.root == "e":
                        check_restitution(values)
                    else:
                        check_coefficients(values, key.root)
                except ValueError as error:
                    raise ValueError(f"design: {key.text}: {error}") from None
            if key.root == "e":
                for extreme in np.unique(values, axis=0)[[0, -1]]:
                    self.scheme.check(self.problem, extreme, values.shape[1] if values.ndim == 2 else 0)

    def check_times(self, lanes: Mapping[str, np.ndarray]) -> None:
        """Raises unless t0 < t1 and 0 < h <= t1 - t0 on every lane."""
        columns, _ = self.columns(lanes)
        check_times(*(np.asarray(columns[name], np.float64) for name in ("t0", "t1", "h")))

    def _check_shape(self, key: Key, shape: tuple[int, ...]) -> None:
        args = named_leaves(self.base["args"])
        if key.root == "args" and key.path not in args:
            parts = [".".join(("args", *name)) for name in args if name[: len(key.path)] == key.path]
            if parts:
                of = ".".join(("args", *key.path))
                raise ValueError(f"design: {key.text!r}: {of} has parts: name one of them, {', '.join(parts[:4])}")
            text, known = ".".join(key.path), [".".join(name) for name in args if name]
            raise ValueError(
                f"design: {key.text!r}: args has no {text!r}; "
                f"{suggestion(text, known) if known else 'it has no parts.'} Give args "
                "a value for every parameter, also for those that the design replaces"
            )
        value = args[key.path] if key.root == "args" else self.base[key.root]
        if value is None:
            if key.component is not None:
                raise ValueError(f"design: {key.text!r} is a component: give {key.root} itself too, as an array")
            return
        if key.component is not None:
            try:
                value = np.asarray(value)[key.component]
            except IndexError:
                raise ValueError(
                    f"design: {key.text!r}: {key.text.partition('[')[0]} has shape {np.shape(value)}"
                ) from None
        if shape != np.shape(value) and not (key.root in OF_CONTACTS and len(shape) <= 1):
            raise ValueError(
                f"design: {key.text!r} must hold values of shape {np.shape(value)}, one a lane, got shape {shape}"
                + ("; a component is written q0[0]" if not shape else "")
            )


def _replace_component(old: ArrayLike, key: Key, column: np.ndarray, varies: bool) -> np.ndarray:
    """The values (B, ...) of a quantity on B lanes: ``old`` with ``column`` (B, ...) in place of all or one component.

    ``key`` names the component; ``varies``: whether ``old`` has a lane axis already.
    """
    if key.component is None:
        return column
    # a component that was replaced before has brought the lane axis
    array = np.array(old if varies else np.broadcast_to(old, (len(column), *np.shape(old))), column.dtype)
    where: tuple = (slice(None), *key.component)
    array[where] = column
    return array
