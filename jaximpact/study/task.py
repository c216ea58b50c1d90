"""The work on one block of lanes: a task of plain data in, numpy arrays out, in this process or in another."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..ensemble import ensemble
from ..integrate import Lane, Save, Solution, make_plan, motion
from ..names import suggestion
from ..problem import Problem
from ..schemes.base import Inputs
from ..status import Status
from ..validate import (
    Report,
    _reports,
    canonical,
    cast_numbers,
    check_restitution,
    check_times,
    count_steps,
    judge,
    split_restitution,
    without_remarks,
)
from .description import decode, load_problem, settings_of
from .design import ROOTS, Design, Key
from .fingerprint import fingerprint
from .provenance import TRACED, changes, provenance

REASONS = 100  # refused lanes of a block whose reasons are kept
SECOND, PURE = "s", "1"


@dataclass(frozen=True)
class System:
    """What all lanes of a study share, ready to compute: see `Study` for the entries of ``base``."""

    problem: Problem
    scheme: Any
    projection: Any
    save: Save
    base: dict[str, Any]

    @classmethod
    def of(cls, text: Mapping[str, Any]) -> System:
        """From its plain description, importing the problem by its name."""
        name, folder = text["problem"], text["folder"]
        problem = load_problem(name, folder)
        return cls(problem, *(decode(text[key], name, folder) for key in ("scheme", "projection", "save", "base")))

    def columns(self, lanes: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], Any]:
        """Arguments of `ensemble` for lanes of a design, and which leaves of args vary; q0 always has a lane axis."""
        count = len(next(iter(lanes.values())))
        values = dict(self.base)
        dtype = self.base["q0"].dtype if self.base["q0"] is not None else jnp.result_type(float)
        lanes = {key: column.astype(dtype) for key, column in lanes.items()}
        values["args"] = jax.tree.map(lambda x: x, values["args"])
        varies = jax.tree.map(lambda _: False, values["args"])
        for text, column in lanes.items():
            key = Key.of(text)
            if key.root != "args":
                values[key.root] = _replaced(values[key.root], key, column, values[key.root] is not self.base[key.root])
                continue
            inner, marks = values["args"], varies
            for part in key.path[:-1]:
                inner, marks = inner[_step(inner, part)], marks[_step(marks, part)]
            last = _step(inner, key.path[-1])
            inner[last] = _replaced(inner[last], key, column, marks[last])
            marks[last] = True
        if np.ndim(values["q0"]) == 1:
            values["q0"] = np.broadcast_to(values["q0"], (count, *np.shape(values["q0"])))
        return values, varies

    def lane(self, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Arguments of `solve` for one lane, from its value of each quantity."""
        columns, varies = self.columns({key: np.asarray(value)[None] for key, value in values.items()})
        swept = {Key.of(key).root for key in values} | {"q0"}
        chosen = {name: columns[name][0] if name in swept else columns[name] for name in ROOTS}
        return chosen | {"args": jax.tree.map(lambda some, x: x[0] if some else x, varies, columns["args"])}

    def check(self, design: Design) -> None:
        """Every quantity of a design is one of this system, and of its shape; restitution and times are possible."""
        for key in design.keys:
            self._check_shape(key, design.values[key.text].shape[1:])
            if key.root == "e":
                values = design.values[key.text]
                try:
                    check_restitution(values)
                except ValueError as error:
                    raise ValueError(f"design: {key.text}: {error}") from None
                for extreme in np.unique(values, axis=0)[[0, -1]]:
                    self.scheme.validate(self.problem, extreme, values.shape[1] if values.ndim == 2 else 0)

    def _check_shape(self, key: Key, shape: tuple[int, ...]) -> None:
        value: Any = self.base["args"] if key.root == "args" else self.base[key.root]
        for i, part in enumerate(key.path):
            where = ".".join(("args", *key.path[:i]))
            keys = list(value) if isinstance(value, dict) else []
            if isinstance(value, list):
                keys = list(map(str, range(len(value))))
            if not isinstance(value, dict | list) or part not in keys:
                hint = suggestion(part, keys) if keys else f"{where} has no parts"
                raise ValueError(
                    f"design: {key.text!r}: {where} has no {part!r}; {hint} Give args a value for every parameter, also for "
                    "those that the design replaces"
                )
            value = value[_step(value, part)]
        if value is None:
            if key.component is not None:
                raise ValueError(f"design: {key.text!r} is a component: give {key.root} itself too, as an array")
            return
        if isinstance(value, dict | list | tuple):
            raise ValueError(f"design: {key.text!r} has parts: name one of them")
        if key.component is not None:
            try:
                value = np.asarray(value)[key.component]
            except IndexError:
                raise ValueError(
                    f"design: {key.text!r}: {key.text.partition('[')[0]} has shape {np.shape(value)}"
                ) from None
        if shape != np.shape(value) and not (key.root == "e" and len(shape) <= 1):
            raise ValueError(
                f"design: {key.text!r} must hold values of shape {np.shape(value)}, one a lane, got shape {shape}"
                + ("; a component is written q0[0]" if not shape else "")
            )


def _step(container: Any, part: str) -> Any:
    return int(part) if isinstance(container, list) else part


def _replaced(old: Any, key: Key, column: np.ndarray, varies: bool) -> np.ndarray:
    """The value of a quantity with a lane axis; of which a component may be replaced."""
    if key.component is None:
        return column
    # a component that was replaced before has brought the lane axis
    array = np.array(old if varies else np.broadcast_to(old, (len(column), *np.shape(old))), column.dtype)
    where: Any = (slice(None), *key.component)
    array[where] = column
    return array


# what is stored


class Variable(NamedTuple):
    """An array of the store: its dimensions behind those of the design, their sizes, dtype, attributes."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: dict[str, Any]

    @property
    def fill(self) -> Any:
        """What stands where nothing has been computed."""
        return np.nan if self.dtype.kind == "f" else 0


class Schema(NamedTuple):
    """The variables of a study, and the common times of its rows (None where lanes differ)."""

    variables: tuple[Variable, ...]
    times: np.ndarray | None


# name: (dimensions, units, meaning)
MEANING: dict[str, tuple[tuple[str, ...], str, str]] = {
    "t": (("time",), SECOND, "time of the row"),
    "q": (("time", "coordinate"), "", "position U, interpolated affinely between steps"),
    "v": (("time", "coordinate"), "", "velocity over the step that ends at or after the row's time"),
    "z": (("time", "coordinate"), "", "admissible position Z of that step"),
    "impulse": (("time", "constraint"), "", "impulse of each constraint accumulated since the start"),
    "energy": (("time",), "J", "energy at (q, v)"),
    "penetration": ((), "", "largest violation of a gap by U over all steps, in units of the gap"),
    "residual": ((), "", "largest KKT residual of a projection, a gap velocity"),
    "iterations": ((), PURE, "projection iterations of all steps"),
    "status": ((), PURE, "Status bits OR-ed over the steps"),
    "failed_at": ((), SECOND, "time of the first failure, NaN where none"),
}


def named(solution: Solution, function: bool, common_times: bool) -> dict[str, Any]:
    """The arrays of a `Solution` by name; rows of q, v, z and impulse dropped where they hold the final state only."""
    found: dict[str, Any] = {name: getattr(solution, name) for name in MEANING if getattr(solution, name) is not None}
    if common_times:
        del found["t"]
    if function:
        final = {name for name in ("q", "v", "z", "impulse", "energy") if name in found}
        axis = np.ndim(solution.penetration)
        found |= {
            name: found[name].reshape((*found[name].shape[:axis], *found[name].shape[axis + 1 :])) for name in final
        }
    for path, leaf in jax.tree_util.tree_leaves_with_path(solution.values):
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        found["_".join(("values", *parts))] = leaf
    return {name: x for name, x in found.items() if 0 not in x.shape}


def schema(system: System, design: Design) -> Schema:
    """Shapes and dtypes of all variables, from one lane and without computing it; checks the arguments as `solve` does."""
    one = system.lane({key: column[0] for key, column in design.values.items()})
    save, roots = system.save, {key.root for key in design.keys}
    one["h"] = np.max(design.values.get("h", one["h"]))  # the one that limits how close saved times may be
    data = canonical(
        system.problem, one["q0"], one["v0"], one["t0"], one["t1"], one["h"], None, one["e"], one["args"], system.scheme
    )
    eps = float(jnp.finfo(data.q0.dtype).eps)
    number = int(count_steps(float(data.t0), float(data.t1), float(data.h), eps))
    if save.every is not None and roots & {"h", "t0", "t1"}:
        raise ValueError("save: lanes of different h, t0 or t1 have different steps: give times, or 'final'")
    plan, times = make_plan(save, data, number)
    if save.times is not None and roots & {"t0", "t1"}:
        begins, ends = (np.atleast_1d(design.values.get(name, one[name])) for name in ("t0", "t1"))
        if not (begins.max() <= np.min(save.times) and np.max(save.times) < ends.min()):
            raise ValueError(
                f"save: with t0 or t1 in the design, times must lie in [{begins.max():g}, {ends.min():g}), before t1 of every lane"
            )
    count = jnp.asarray(number, jnp.int32)
    inputs = Inputs(jnp.asarray(data.t0), jnp.asarray(data.h), jnp.asarray(data.e), data.args)
    lane = Lane(jnp.asarray(data.q0), jnp.asarray(data.v0), jnp.asarray(data.t1), count, count, times, inputs)
    common = None
    if "t1" not in roots and (save.every is None or not roots & {"t0", "h"}):
        rows = times if save.every is None else inputs.time(jnp.arange(plan.rows) * save.every)
        common = np.append(np.asarray(rows), np.asarray(data.t1))
    function = save.function is not None

    def rows_of(lane):
        found = motion(data.problem, system.scheme, system.projection, lane, plan)
        return named(found, function, common is not None)

    variables = []
    for name, leaf in jax.eval_shape(rows_of, lane).items():
        dims, units, meaning = MEANING.get(name, (("time",), "", "what the save function returned"))
        if function and name in ("q", "v", "z", "impulse", "energy"):
            dims, meaning = dims[1:], f"{meaning}; at t1"
        dims += tuple(f"{name}_{i}" for i in range(len(leaf.shape) - len(dims)))
        about: dict[str, Any] = {"long_name": meaning} | ({"units": units} if units else {})
        if name == "status":
            about |= {"flag_masks": [int(bit) for bit in Status if bit]}
            about |= {"flag_meanings": " ".join(str(bit.name) for bit in Status if bit)}
        variables.append(Variable(name, dims, leaf.shape, np.dtype(leaf.dtype), about))
    return Schema(tuple(variables), common)


# starts that no scheme may begin from


def reports(system: System, lanes: Mapping[str, np.ndarray]) -> Report:
    """Facts about the start of each lane."""
    columns, varies = system.columns(lanes)
    q0 = np.asarray(columns["q0"])
    dtype = np.result_type(q0.dtype, np.asarray(columns["v0"]).dtype)
    dtype = jax.dtypes.canonicalize_dtype(dtype if dtype.kind == "f" else np.float64)
    problem, _ = split_restitution(system.problem, 0.0, dtype)
    leaves, structure = jax.tree.flatten(cast_numbers("args", columns["args"], dtype))
    marks = [0 if some else None for some in jax.tree.leaves(varies)]
    v0, t0 = np.asarray(columns["v0"]).astype(dtype), np.asarray(columns["t0"]).astype(dtype)
    axes = (0, 0 if v0.ndim == 2 else None, 0 if t0.ndim else None, tuple(marks))
    found = _reports(problem, q0.astype(dtype), v0, t0, tuple(leaves), axes, structure, len(q0))
    return jax.tree.map(np.asarray, found)


def refused(report: Report) -> np.ndarray:
    """Lanes whose start is not admissible or not finite, or has no positive definite mass."""
    bad = ~(report.positive & report.symmetric & report.finite)
    return bad | np.any(report.touch.violated | ~np.isfinite(report.gap), axis=1)


def why_refused(report: Report, bad: np.ndarray) -> dict[str, str]:
    """What is wrong with the starts of the first lanes that are refused, by their number in the block."""
    found = {}
    for lane in np.flatnonzero(bad)[:REASONS].tolist():
        try:
            judge(jax.tree.map(lambda x, i=lane: x[i : i + 1], report), lanes=False)
        except ValueError as error:
            found[str(lane)] = str(error)
    return found


# the task


@dataclass(frozen=True)
class Task:
    """One block, without the store: a description of the system and the values of each quantity on its lanes.

    ``batch``: lanes computed at once, which is fixed for a study, so that its numbers do not depend on the machine's
    cores. ``physics``: what the functions compute where the study is run, and its provenance. ``attempt``: how often it was
    lost before.
    """

    number: int
    system: dict[str, Any]
    lanes: dict[str, np.ndarray]
    batch: int
    common_times: bool
    settings: dict[str, Any]
    physics: tuple[dict[str, str], dict[str, str]]
    attempt: int = 0


@dataclass(frozen=True)
class Result:
    """Arrays of a block, lanes first; None where no lane could start. ``refused`` marks lanes that could not.

    ``reasons``: why, for the first of them; ``origin``: the `provenance` of the process that computed.
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
    """An error of the computation itself, as text: no repetition helps."""

    number: int
    message: str
    details: str


def compute(task: Task) -> Result | Failure:
    """Compute a block. Errors come back as a `Failure`: what is raised instead is the loss of a worker."""
    try:
        # remarks on single lanes are in their status
        with settings_of(task.settings), without_remarks():
            return _computed(task)
    except Exception as error:
        return Failure(task.number, f"{type(error).__name__}: {error}", traceback.format_exc())


_checked: list[tuple[Any, ...]] = []  # what this process has found to be as it should


def check_physics(system: System, task: Task) -> None:
    """The functions compute here what they do where the study is run: a worker may have other files, or older ones."""
    computes, elsewhere = task.physics
    key = (system.problem, system.save.function, task.physics, task.settings)
    if changes(elsewhere, provenance(), TRACED) or key in _checked:
        return
    found = fingerprint(system, task.lanes)
    for name, program in computes.items():
        if found.get(name) != program:
            raise ValueError(
                f"{name} computes something else in this worker than where the study is run: its modules are of another time or "
                "place, restart it with the same ones"
            )
    _checked[:] = [*_checked[-7:], key]


def _computed(task: Task) -> Result:
    begin = time.perf_counter()
    system = System.of(task.system)
    check_physics(system, task)
    report = reports(system, task.lanes)
    bad = refused(report)
    count, reasons = len(bad), why_refused(report, bad)
    if np.all(bad):
        return Result(task.number, None, bad, 0, time.perf_counter() - begin, reasons, provenance())
    # a lane that cannot start is computed as a copy of one that can: all blocks keep their shape
    source = np.where(bad, np.argmin(bad), np.arange(count))
    columns, varies = system.columns({key: column[source] for key, column in task.lanes.items()})
    solution = ensemble(
        system.problem,
        columns.pop("q0"),
        columns.pop("v0"),
        **columns,
        args_axes=jax.tree.map(lambda some: 0 if some else None, varies),
        scheme=system.scheme,
        projection=system.projection,
        save=system.save,
        chunk=task.batch,
        progress=False,
    )
    arrays = named(solution, system.save.function is not None, task.common_times)
    for array in arrays.values():
        array[bad] = np.nan if array.dtype.kind == "f" else 0
    eps = float(np.finfo(solution.q.dtype).eps)
    t0, t1, h = (np.asarray(columns[name], np.float64) for name in ("t0", "t1", "h"))
    steps = np.broadcast_to(count_steps(t0, t1, h, eps), (count,))[~bad].sum()
    return Result(task.number, arrays, bad, int(steps), time.perf_counter() - begin, reasons, provenance())


def check_all_times(system: System, lanes: Mapping[str, np.ndarray]) -> None:
    """t0 < t1 and 0 < h <= t1 - t0 on every lane."""
    columns, _ = system.columns(lanes)
    check_times(*(np.asarray(columns[name], np.float64) for name in ("t0", "t1", "h")))
