"""The task of computing one chunk of lanes, in any process: its input is plain data, its result numpy arrays."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..bodies.growth import trim_room
from ..jaxtools.warnings import without_remarks
from ..mechanics.motion import OF_FRICTION, Motion
from ..results.provenance import TRACED, changes, provenance, settings_of
from ..simulation.arguments import start_reports
from ..simulation.call import Arguments
from ..simulation.canonical_arrays import cast_numbers, count_steps, split_friction, split_restitution
from ..simulation.ensemble import ensemble
from ..simulation.lane_arguments import is_shared
from ..simulation.lanes import Lanes
from ..simulation.start_report import StartReport, raise_or_warn, refused_lanes
from .fingerprint import fingerprint
from .schema import named_arrays
from .spec import Spec
from .system import StudySystem

REASONS = 100  # number of refused lanes of a chunk whose reasons are kept


# starts that are refused


def report_starts(system: StudySystem, lanes: Mapping[str, np.ndarray]) -> StartReport:
    """Returns the start reports of all lanes: facts that decide whether each may start."""
    columns, varies = system.columns(lanes)
    q0 = np.asarray(columns["q0"])
    dtype = np.result_type(q0.dtype, np.asarray(columns["v0"]).dtype)
    dtype = jax.dtypes.canonicalize_dtype(dtype if dtype.kind == "f" else np.float64)
    problem, _ = split_restitution(system.problem, 0.0, dtype)
    own: Arguments = {}
    for name in OF_FRICTION:
        problem, mu = split_friction(problem, columns[name], dtype, name)
        of_lane = columns[name] is not None and not is_shared(mu)
        if mu is not None:
            own[name] = (mu[0] if np.ndim(mu) == 2 and not of_lane else mu), of_lane - 1
    v0, t0 = np.asarray(columns["v0"]).astype(dtype), np.asarray(columns["t0"]).astype(dtype)
    args, marks = cast_numbers("args", columns["args"], dtype), jax.tree.map(lambda some: some - 1, varies)
    unused: Any = dict.fromkeys(("t1", "h", "steps", "e"))
    starts = Motion(q0.astype(dtype), v0, t0, args=args, **unused, **{name: x for name, (x, _) in own.items()})
    marked = {name: axis for name, (_, axis) in own.items()}
    axes = Motion(0, v0.ndim - 2, t0.ndim - 1, args=marks, **unused, **marked)
    found = start_reports(problem, Lanes.of(starts, axes, len(q0)))
    return jax.tree.map(np.asarray, found)


def why_refused(report: StartReport, bad: np.ndarray) -> dict[str, str]:
    """Why lanes of a chunk cannot start, as texts by lane number, for the first few lanes in the mask ``bad`` (B,)."""
    found = {}
    for lane in np.flatnonzero(bad)[:REASONS].tolist():
        try:
            raise_or_warn(jax.tree.map(lambda x, i=lane: x[i : i + 1], report), lanes=False)
        except ValueError as error:
            found[str(lane)] = str(error)
    return found


# the task


@dataclass(frozen=True)
class Task:
    """One chunk as a study of its own, independent of the store: the input of `compute`.

    ``batch``: number of lanes computed at once, fixed for a study so that its numbers do not depend on the machine's
    cores. ``physics``: fingerprint and provenance of the process that runs the study. ``attempt``: how often a worker
    was lost with this chunk.
    """

    number: int
    spec: Spec
    batch: int
    common_times: bool
    settings: Arguments
    physics: tuple[dict[str, str], dict[str, str]]
    attempt: int = 0


@dataclass(frozen=True)
class BlockResult:
    """Results of a chunk: arrays, lanes first, or None if no lane could start;
    ``refused`` marks the lanes that could not.

    ``reasons``: reasons for the first refused lanes; ``origin``: `provenance` of the process that computed the chunk.
    """

    number: int
    arrays: dict[str, np.ndarray] | None
    refused: np.ndarray
    steps: int
    seconds: float
    reasons: dict[str, str]
    origin: dict[str, str]


@dataclass(frozen=True)
class Failure:
    """An error of the computation itself, as text, returned by `compute`; repeating the task would not help."""

    number: int
    message: str
    details: str


def compute(task: Task) -> BlockResult | Failure:
    """Computes a chunk. Errors are returned as a `Failure`; an exception means that the worker was lost."""
    try:
        # remarks on single lanes are in their status
        with settings_of(task.settings), without_remarks():
            return _compute(task)
    except Exception as error:
        return Failure(task.number, f"{type(error).__name__}: {error}", traceback.format_exc())


_checked: list[tuple] = []  # keys that this process has checked successfully


def check_physics(system: StudySystem, task: Task) -> None:
    """Raises unless the functions have the same fingerprint here as where the study is run:
    a worker may have other or older files."""
    computes, elsewhere = task.physics
    key = (system.problem, system.save.function, task.physics, task.settings)
    if changes(elsewhere, provenance(), TRACED) or key in _checked:
        return
    found = fingerprint(system, task.spec.design.values)
    for name, program in computes.items():
        if found.get(name) != program:
            raise ValueError(
                f"{name} computes something else in this worker than where the study is run: its modules are of "
                "another time or "
                "place, restart it with the same ones"
            )
    _checked[:] = [*_checked[-7:], key]


def _compute(task: Task) -> BlockResult:
    begin = time.perf_counter()
    system = StudySystem.of(task.spec)
    check_physics(system, task)
    lanes = task.spec.design.values
    report = report_starts(system, lanes)
    bad = refused_lanes(report)
    count, reasons = len(bad), why_refused(report, bad)
    if np.all(bad):
        return BlockResult(task.number, None, bad, 0, time.perf_counter() - begin, reasons, provenance())
    # a lane that cannot start is computed as a copy of one that can: all chunks keep their shape
    source = np.where(bad, np.argmin(bad), np.arange(count))
    columns, varies = system.columns({key: column[source] for key, column in lanes.items()})
    axes = jax.tree.map(lambda some: 0 if some else None, varies)
    solution = ensemble(system.call(columns, args_axes=axes, chunk=task.batch))
    solution = trim_room(jax.tree.map(np.array, solution), system.problem)  # which can be written to
    arrays = named_arrays(solution, system.save.function is not None, task.common_times)
    for array in arrays.values():
        array[bad] = np.nan if array.dtype.kind == "f" else 0
    eps = float(np.finfo(solution.q.dtype).eps)
    t0, t1, h = (np.asarray(columns[name], np.float64) for name in ("t0", "t1", "h"))
    steps = np.broadcast_to(count_steps(t0, t1, h, eps), (count,))[~bad].sum()
    return BlockResult(task.number, arrays, bad, int(steps), time.perf_counter() - begin, reasons, provenance())
