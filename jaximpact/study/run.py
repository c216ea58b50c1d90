"""One long motion, written row by row into a store; it can be interrupted at any time and continued."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import jax
import numpy as np
from jax.typing import ArrayLike
from tqdm import tqdm

from ..analysis.options import MotionOptions, with_options
from ..bodies.growth import enlarge, grow, trim_room
from ..jaxtools.argument_checks import check_counts
from ..mechanics.motion import OF_FRICTION
from ..mechanics.problem import Problem
from ..mechanics.scheme import Timing
from ..mechanics.status import Status
from ..mechanics.trials.stops import UntilLike
from ..results import Solution
from ..results.provenance import now, provenance
from ..results.safe_reading import JsonObject
from ..results.save import Save, SaveLike
from ..results.tables import MEANING
from ..simulation.arguments import check_start
from ..simulation.backends import listed_lane
from ..simulation.call import Arguments, Call, canonical, program_of
from ..simulation.trajectory import resume_until_step
from .design import Blocks
from .fingerprint import calls_of, hash_of, sources
from .schema import DONE, Schema, Variable
from .zarr_store import ZarrStore

if TYPE_CHECKING:
    from ..simulation.motion_loop import Carry

BLOCK_BYTES = 16 * 2**20  # bytes of rows in one automatic block
STATE = ("q", "v", "z", "impulse", "energy", "joint_impulse", "friction_impulse", "pairs")
ACCOUNT = ("penetration", "residual", "iterations", "status", "failed_at", "joint_residual", "error", "stopped")


class Rows(NamedTuple):
    """Takes the place of a `Design` in the store of one motion, whose only dimension is time."""

    values: dict[str, np.ndarray]
    names: dict[str, str]
    dims: tuple[str, ...] = ("time",)
    kind: str = "points"


class Run:
    """One motion whose rows are written to disk as they are computed, in a Zarr group that
    ``xarray.open_zarr`` can read meanwhile.

    A process that is killed loses at most one block of rows: the same call continues after the last block written, and
    on processors of one kind the result is the same to the last bit.

    Args:
        path: a directory, e.g. "heap.zarr". A run that exists in it is continued; it must be the same.
        problem, q0, v0, t1, h, t0, scheme, projection, args, e: as in `jaximpact.solve`.
        save: every k-th step, or "all".
        until: as in `jaximpact.solve`. Rows after that end repeat the final state; no steps are computed for them.
        block: number of rows written together; by default as many as fill 16 MB.

    Raises:
        ValueError, TypeError: an argument is wrong, or the run on disk is another one; the message says what differs.

    Example:
        >>> run = jaximpact.study.Run("heap.zarr", problem, q0, v0, t1=60.0, h=1e-3, save=20)
        >>> solution = run.run(progress=True)
    """

    @with_options(MotionOptions)
    def __init__(
        self,
        path: str | Path,
        problem: Problem,
        q0: ArrayLike,
        v0: ArrayLike,
        *,
        t1: ArrayLike,
        h: ArrayLike,
        t0: ArrayLike = 0.0,
        save: SaveLike = 1,
        until: UntilLike = None,
        block: int | None = None,
        **options: Unpack[MotionOptions],
    ) -> None:
        kept = Save.of(save)
        if kept.every is None or kept.function is not None:
            raise ValueError("save: a run keeps every k-th step, a whole number k, or 'all'")
        call = Call(problem, q0, v0, t1, h, t0=t0, until=until, **options)
        known, lanes = canonical(call)
        self._motion = lanes.motion
        self._stated, self._naming = check_start(known.problem, lanes)[0], problem.naming
        program = program_of(known, lanes, self._stated)
        self._program, self._every = program.replace(sensitivity="none"), kept.every
        self.store = ZarrStore(path)
        self._variables = self._description()
        size = sum(np.prod(x.shape, dtype=float) * x.dtype.itemsize for x in self._variables)
        if block is not None:
            check_counts(block=block)
        rows = -(-int(self._motion.steps) // kept.every) + 1
        self.blocks = Blocks.of((rows,), int(max(1, BLOCK_BYTES // size)) if block is None else int(block))
        if self.store.exists:
            self._check()

    def run(self, progress: bool = False, unlock: bool = False, rows: slice = slice(None)) -> Solution:
        """Computes the remaining rows, and returns the motion.

        Args:
            progress: show a progress bar, of steps.
            unlock: take over the lock of a process on another host, known to have ended.
            rows: slice of rows to return, ``slice(-1, None)`` for the last one only; by default all,
                which must fit into memory.

        Raises:
            RuntimeError: another process computes this run, or blocks are missing; OSError: one cannot be written.
        """
        with self.store.lock(unlock):
            if self.store.exists:
                self._check()
            else:
                self.store.create(self._record(), self._schema())
            self._compute(progress)
        return self.solution(rows)

    def solution(self, rows: slice = slice(None)) -> Solution:
        """The motion on disk, or some of its ``rows``, as numpy arrays.

        Raises:
            RuntimeError: the motion is not complete. ValueError: there are no such rows.
        """
        if len(self.store.finished()) < len(self.blocks):
            raise RuntimeError(
                f"{self.store.name} is not complete, call run(): xarray.open_zarr reads the rows that there are"
            )
        names = [x.name for x in self._variables]
        (count,) = self.blocks.whole
        wanted = range(count)[rows] if isinstance(rows, slice) else range(0)
        if not wanted or wanted.step < 0:
            raise ValueError(f"rows={rows!r}: give a slice of the {count} rows, in their order, as slice(-1, None)")
        chosen, parts = np.asarray(wanted), []
        for block in self.blocks.numbers():
            (where,) = self.blocks.where(block)
            here = chosen[(chosen >= where.start) & (chosen < where.stop)] - where.start
            if here.size:
                part = self.store.read(block, names)
                parts.append({name: part[name][here] for name in names})
        arrays: dict = {name: np.concatenate([part[name] for part in parts]) for name in names}
        kept = self.store.kept()
        account: dict = {
            name: kept[name]
            for name in ACCOUNT
            if name in kept  # of joints and of an end where there are any
        }
        missing: dict = dict.fromkeys({"energy", "pairs"} - set(arrays))
        found = Solution(**arrays, **missing, **account, values=None, timing=Timing.of(self._program.scheme))
        return found._with_labels(self._naming, self._every == 1 and rows == slice(None))

    # the store

    def _description(self) -> tuple[Variable, ...]:
        row = jax.eval_shape(lambda motion: resume_until_step(self._program, motion, (None, 0))[0], self._motion)
        return tuple(
            Variable(
                name, MEANING[name][0][1:], row[name].shape, np.dtype(row[name].dtype), {"long_name": MEANING[name][2]}
            )
            for name in ("t", *STATE)
            if name in row
        )

    def _schema(self) -> Schema:
        motion = self._motion
        numbers = {"q0": np.asarray(motion.q0), "v0": np.asarray(motion.v0), "steps": np.asarray(motion.steps)}
        rows: Any = Rows(numbers, {})
        words = {
            "title": "jaximpact motion",
            "scheme": repr(self._program.scheme),
            "projection": repr(self._program.solver),
        }
        return Schema(rows, self.blocks, (*self._variables, DONE), None, words)

    def _record(self) -> JsonObject:
        """Record that identifies the run: hashes of its numbers and of its functions' jaxprs,
        and the methods in words."""
        motion, problem = self._motion, self._stated
        operands = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), (motion.t0, motion.q0, motion.v0, motion.args)
        )
        t, q, _, args = operands
        gaps: Any = getattr(problem.constraints, "sample", problem.constraints)
        calls = calls_of(problem, *operands) | {"constraints": (gaps, (t, q, args))}
        found = {name: hash_of(call, given) for name, (call, given) in calls.items() if callable(call)}
        for name in ("q0", "v0", "t0", "t1", "h", "e", "args"):
            found[name] = _hash(getattr(motion, name))
        if (until := self._program.until) is not None:
            function = until.function
            surface = repr(function) if is_dataclass(function) else hash_of(function, operands)
            found["until"] = f"{surface} {until.direction} {until.number}"
        found |= {name: _hash(x) for name in (*OF_FRICTION, "key") if (x := getattr(motion, name)) is not None}
        words = {"scheme": repr(self._program.scheme), "projection": repr(self._program.solver)}
        shape = {"every": self._every, "block": self.blocks.shape[0]}
        return {
            "run": found | words | shape | {"bodies": _hash(sources(problem).get("constraints"))},
            "versions": provenance() | {"created": now()},
        }

    def _check(self) -> None:
        """Raises ValueError if the store holds another run."""
        stored, mine = self.store.record()[0].get("run"), self._record()["run"]
        if not isinstance(stored, dict):
            raise ValueError(f"{self.store.name} holds a study of many motions, no run: choose another path")
        different = [name for name in mine if stored.get(name) != mine[name]]
        if different:
            raise ValueError(
                f"{self.store.name} holds another run: choose another path, or remove it. It differs in "
                f"{', '.join(different)}"
            )

    # computing

    def _compute(self, progress: bool) -> None:
        carry, begin = self._resume_point()
        missing = set(range(begin)) - self.store.finished()
        if missing:
            raise RuntimeError(
                f"{self.store.name}: block {min(missing)} is missing: restore it from a copy, or remove the run"
            )
        first = self.blocks.shape[0] * begin
        steps, account = int(self._motion.steps), Arguments()
        with tqdm(
            total=steps, initial=min(first * self._every, steps), unit="step", disable=not progress, desc="1 motion"
        ) as bar:
            for block in range(begin, len(self.blocks)):
                clock, rows = time.perf_counter(), []
                (where,) = self.blocks.where(block)
                for row in range(where.start, where.stop):
                    last = min(row * self._every, steps)
                    if row == where.start or not account.get("stopped", False):  # rows behind an end repeat it
                        found, account, carry = self._row(carry, last)
                    rows.append(found)
                    bar.update(last - bar.n)
                arrays = {x.name: np.stack([row[x.name] for row in rows]) for x in self._variables}
                arrays[DONE.name] = np.ones(len(rows), DONE.dtype)
                self.store.write(block, arrays, {"seconds": round(time.perf_counter() - clock, 3), "finished": now()})
                self.store.keep(dict(self._carry_arrays(carry, block + 1)) | account)

    def _row(self, carry: Carry | None, last: int) -> tuple[dict, dict, tuple]:
        """Continues the motion from the loop's ``carry`` to step ``last``.

        Neighbour lists that overflow are enlarged, and the steps repeated. Returns the row at that step and the totals
        so far, by field names of `Solution`, and the new carry.
        """
        while True:
            step = np.asarray(last, np.int32)
            found, account, new, full = listed_lane(self._program, self._motion, (carry, step), task=resume_until_step)
            if not full:
                row = jax.tree.map(np.asarray, found)
                names = [x for x in ("q", "impulse", "pairs", "friction_impulse") if x in row]
                like = trim_room(replace(_EMPTY, **{name: row[name] for name in names}), self._stated)
                row |= {name: getattr(like, name) for name in names}
                columns = {name: np.asarray(x) for name, x in account._asdict().items() if x is not None}
                if new[1].stop is not None:
                    columns["stopped"] = np.isfinite(new[1].stop)
                return row, columns, new
            problem = self._program.problem
            if new[2].status & int(Status.NEIGHBOURS_LOST):  # at its start
                problem, carry = enlarge(problem, self._motion.q0), None
            else:
                problem, carry = grow(problem, self._motion, new)
            self._program = self._program.replace(problem=problem)

    def _carry_arrays(self, carry: Carry | None, block: int) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (name, array) pairs from which `_resume_point` restores a carry.

        They are ``block``, the number of the next block, the capacities of the neighbour lists,
        and the leaves of the carry.
        """
        yield "block", np.asarray(block)
        bodies = self._program.problem.constraints
        for name in ("pairs", "members"):
            yield f"room_{name}", np.asarray(getattr(bodies, name, None) or 0)
        for i, x in enumerate(jax.tree.leaves(carry)):
            yield f"carry_{i}", np.asarray(x)

    def _resume_point(self) -> tuple[tuple | None, int]:
        """The loop's carry and the number of the next block, where an earlier process stopped;
        (None, 0) if there is none."""
        kept = self.store.kept()
        if not kept:
            return None, 0
        room: dict = {name: int(kept[f"room_{name}"]) or None for name in ("pairs", "members")}
        problem = self._stated
        if problem.listed:
            bodies = problem.bodies
            problem = problem.replace(constraints=replace(bodies, **room))
        self._program = self._program.replace(problem=problem)
        shape = jax.eval_shape(lambda motion: resume_until_step(self._program, motion, (None, 0))[2], self._motion)
        leaves = [kept[f"carry_{i}"] for i in range(len(jax.tree.leaves(shape)))]
        for x, like in zip(leaves, jax.tree.leaves(shape), strict=True):
            if x.shape != like.shape or x.dtype != like.dtype:
                raise ValueError(
                    f"{self.store.name}: the state to continue from is damaged, or was stored by another version: "
                    "restore it from a copy"
                )
        return jax.tree.unflatten(jax.tree.structure(shape), leaves), int(kept["block"])


_EMPTY = Solution(*cast(list[Any], [None] * 12))


def _hash(value: object) -> str:
    """Hash of the structure and the numbers of a pytree."""
    digest = hashlib.sha256(str(jax.tree.structure(value)).encode())
    for x in jax.tree.leaves(value):
        array = np.asarray(x)
        digest.update(f"{array.shape} {array.dtype};".encode())
        digest.update(
            json.dumps(array.tolist()).encode() if array.dtype.kind in "OU" else np.ascontiguousarray(array).tobytes()
        )
    return digest.hexdigest()[:16]
