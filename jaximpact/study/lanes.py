"""Conversion of a study's results to one `Solution`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..jaxtools.shapes import PyTree
from ..mechanics.scheme import Timing
from ..mechanics.status import Status
from ..results import Origin, Solution
from ..results.tables import STATE
from ..simulation.call import Arguments
from .design import Design
from .record import Record
from .schema import DONE, REFUSED
from .system import StudySystem

OF_ROWS = ("q", "v", "z", "impulse", "energy", "joint_impulse", "friction_impulse")
FIELDS = (
    *OF_ROWS,
    "penetration",
    "joint_residual",
    "error",
    "residual",
    "iterations",
    "status",
    "failed_at",
    "stopped",
)


def as_solution(dataset: Any, record: Record, system: StudySystem) -> Solution:
    """The stored results as a `Solution`, lanes in the order of the design;
    the status marks lanes that could not start."""
    design, count = record.spec.design, record.spec.design.size
    rank, names = len(design.shape), record.variables
    flat = {name: np.asarray(dataset[name].values) for name in (*names, DONE.name)}
    flat = {name: x.reshape(count, *x.shape[rank:]) for name, x in flat.items()}
    refused = flat.pop(DONE.name) == REFUSED
    if record.common_times:
        flat["t"] = np.broadcast_to(dataset["time"].values, (count, dataset.sizes["time"]))
    function = system.save.function
    if function is not None:
        # one row, the final state
        flat |= {name: flat[name][:, None] for name in STATE if name in flat}
    rows = flat["q"].shape[1]
    flat.setdefault("impulse", np.zeros((count, rows, 0), flat["q"].dtype))
    flat["status"] = flat["status"] | np.where(refused, int(Status.INPUT_INVALID), 0).astype(flat["status"].dtype)
    values = (
        None if function is None else _values(system, design, {k: x for k, x in flat.items() if k.startswith("values")})
    )
    numbers: Arguments = {name: flat.get(name) for name in ("t", *FIELDS)}
    origin = Origin(
        every_step=system.save.every == 1 and function is None,
        naming=system.problem.naming,
        made=tuple(sorted(record.versions.items())),
    )
    return Solution(**numbers, values=values, timing=Timing.of(system.scheme), origin=origin)


def _values(system: StudySystem, design: Design, stored: dict[str, np.ndarray]) -> PyTree:
    """Stored values of the save function in its original pytree structure."""
    one = system.lane({key: column[0] for key, column in design.values.items()})
    state = (np.zeros(()), np.asarray(one["q0"]), np.asarray(one["v0"]))
    assert system.save.function is not None
    structure = jax.tree.structure(jax.eval_shape(system.save.function, *state, one["args"]))
    return jax.tree.unflatten(structure, list(stored.values()))
