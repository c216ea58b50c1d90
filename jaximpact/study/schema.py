"""Arrays that a study stores: their names, dimensions (after those of the design) and meanings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..mechanics.labels import QUANTITIES, Labels
from ..mechanics.motion import OF_CONTACTS
from ..mechanics.status import bit_numbers
from ..results import Solution
from ..results.safe_reading import JsonObject
from ..results.tables import MEANING, PURE, SECOND, STATE
from ..simulation.call import canonical, program_of
from ..simulation.trajectory import trajectory
from .design import Blocks, Design
from .system import StudySystem

PENDING, COMPUTED, REFUSED = 0, 1, 2


class Variable(NamedTuple):
    """Description of a stored array of results: its dimensions after those of the design, their sizes,
    dtype and attributes."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: JsonObject

    @property
    def fill(self) -> float | int | bool:
        """Fill value for entries that have not been computed."""
        return np.nan if self.dtype.kind == "f" else 0


DONE = Variable(
    "done",
    (),
    (),
    np.dtype(np.int8),
    {
        "long_name": "whether the lane has been computed",
        "flag_values": [PENDING, COMPUTED, REFUSED],
        "flag_meanings": "pending computed start_not_admissible",
    },
)


class Coordinate(NamedTuple):
    """A stored array whose values are known before anything is computed: values of a quantity,
    or the times of the rows."""

    name: str
    dims: tuple[str, ...]
    values: np.ndarray
    attributes: JsonObject


class Schema(NamedTuple):
    """Everything that a store needs to create its arrays.

    Attributes:
        design: the lanes, whose dimensions come first in each variable.
        blocks: partition of the lanes into chunks.
        variables: arrays of results, and ``done``, which says of each lane whether it has been computed.
        times: common times of the rows, None if lanes differ.
        attributes: description of the study.
    """

    design: Design
    blocks: Blocks
    variables: tuple[Variable, ...]
    times: np.ndarray | None
    attributes: dict[str, str]

    def coordinates(self) -> Iterator[Coordinate]:
        """The values of each quantity, and the times of the rows."""
        for i, (key, name) in enumerate(self.design.names.items()):
            column, root = self.design.values[key], key.partition("[")[0]
            known = dict.fromkeys(("q0", "v0"), ("coordinate",)) | dict.fromkeys(OF_CONTACTS, ("constraint",))
            inner = known.get(root, tuple(f"{name}_{k}" for k in range(column.ndim - 1)))
            units = {"units": UNITS[root]} if root in UNITS else {}
            own = self.design.dims[i if self.design.kind == "grid" else 0]
            yield Coordinate(name, (own, *inner[: column.ndim - 1]), column, {"quantity": key} | units)
        if self.times is not None:
            yield Coordinate("time", ("time",), self.times, {"long_name": "time", "units": SECOND})


UNITS = dict.fromkeys(OF_CONTACTS, PURE) | {"h": SECOND, "t0": SECOND, "t1": SECOND}


def named_arrays(solution: Solution, function: bool, common_times: bool) -> dict:
    """Arrays of a `Solution` by name, values of a save function included; empty ones are left out.

    ``function``: whether there is a save function; q, v, z and impulse then hold the final state only, and lose their
    axis of rows. ``common_times``: whether all lanes have rows at the same times; t is then left out.
    """
    found: dict = {name: getattr(solution, name) for name in MEANING if getattr(solution, name) is not None}
    if common_times:
        del found["t"]
    if function:
        final = [name for name in STATE if name in found]
        axis = np.ndim(solution.penetration)
        found |= {
            name: found[name].reshape((*found[name].shape[:axis], *found[name].shape[axis + 1 :])) for name in final
        }
    for path, leaf in jax.tree_util.tree_leaves_with_path(solution.values):
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        found["_".join(("values", *parts))] = leaf
    return {name: x for name, x in found.items() if 0 not in x.shape}


def results(system: StudySystem, design: Design) -> tuple[tuple[Variable, ...], np.ndarray | None]:
    """All variables and the common times of their rows, from the abstract evaluation of one lane;
    checks arguments as `solve` does."""
    one = system.lane({key: column[0] for key, column in design.values.items()})
    save, roots = system.save, {key.root for key in design.keys}
    one["h"] = np.max(design.values.get("h", one["h"]))  # the largest limits how close saved times may be
    call, lanes = canonical(system.call(one))
    motion = lanes.motion
    if save.every is not None and roots & {"h", "t0", "t1"}:
        raise ValueError("save: lanes of different h, t0 or t1 have different steps: give times, or 'final'")
    program = program_of(call, lanes, call.problem)
    if save.times is not None and roots & {"t0", "t1"}:
        begins, ends = (np.atleast_1d(design.values.get(name, one[name])) for name in ("t0", "t1"))
        if not (begins.max() <= np.min(save.times) and np.max(save.times) < ends.min()):
            raise ValueError(
                f"save: with t0 or t1 in the design, times must lie in [{begins.max():g}, {ends.min():g}), before t1 "
                "of every lane"
            )
    common = None
    if program.until is None and "t1" not in roots and (save.every is None or not roots & {"t0", "h"}):
        rows = program.times if save.every is None else motion.time(jnp.arange(program.rows) * save.every)
        common = np.append(np.asarray(rows), np.asarray(motion.t1))
    function = save.function is not None

    rows_of = lambda motion: named_arrays(trajectory(program, motion), function, common is not None)
    found = jax.eval_shape(rows_of, motion)
    return tuple(_variable(name, leaf, function, system.problem.naming) for name, leaf in found.items()), common


def _variable(name: str, leaf: jax.ShapeDtypeStruct, function: bool, labels: Labels) -> Variable:
    """`Variable` for the array ``name`` of one lane, with the shape and dtype of ``leaf``.

    ``function``: whether there is a save function; ``labels``: names and units that the problem gives.
    """
    dims, units, meaning = MEANING.get(name, (("time",), "", "what the save function returned"))
    if function and name in STATE:
        dims, meaning = dims[1:], f"{meaning}; at t1"
    dims += tuple(f"{name}_{i}" for i in range(len(leaf.shape) - len(dims)))
    units = (
        labels.unit("gap" if name == "penetration" else name) if name in QUANTITIES or name == "penetration" else units
    )
    units = labels.energy_unit() if name == "energy" else units
    about: JsonObject = {"long_name": meaning} | ({"units": units} if units else {})
    names = labels.names(name) if name in QUANTITIES else None
    if names:
        about["names"] = list(names)
    if name == "status":
        about |= {"flag_masks": [*bit_numbers().values()], "flag_meanings": " ".join(bit_numbers())}
    return Variable(name, dims, leaf.shape, np.dtype(leaf.dtype), about)


def check_names(design: Design, variables: tuple[Variable, ...]) -> None:
    """Raises if a coordinate has the name of another one, of a variable or of a variable's dimension."""
    taken = {"time", "coordinate", "constraint", "lane", DONE.name} | set(MEANING) | {x.name for x in variables}
    taken |= {name for x in variables for name in x.dims}
    for key, name in design.names.items():
        if name in taken or list(design.names.values()).count(name) > 1:
            raise ValueError(
                f"design: {key!r} would be called {name!r} in the store, which is the name of something else: rename "
                "the parameter"
            )
