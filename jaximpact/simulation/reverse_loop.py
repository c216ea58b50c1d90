"""Reverse mode of a motion in native code: stored states, and steps differentiated one by one from last to first.

Each part of the motion (start, steps, one row) is a function whose transposed derivative is compiled once; that of the steps between two rows is a loop
of machine code. The cost of a step then does not depend on the number of inputs. Of each state only the numbers are stored that a transposed step or
row reads. The cotangent of a saved row is added when the loop reaches its step.

A motion without saved rows whose value is asked for too is computed once: the forward pass gives the value, and its states stay in memory until the
walk back finds them there, by the operands that they belong to.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..compiler.llvm.call import CompiledFunction, as_columns, as_lanes, compile_lanes
from ..compiler.llvm.xla_ffi import lane_pool, register_target
from ..compiler.scalar import Unsupported
from ..compiler.stream import stream
from ..jaxtools import remembered
from ..jaxtools.jaxpr_tools import inline_calls, moving_outputs, used_inputs, without_dead_code
from ..jaxtools.operating_system import core_count
from ..jaxtools.shapes import shapes_and_dtypes
from ..jaxtools.trace_context import without_collection
from ..jaxtools.transposition import transpose
from .account import Account
from .backends import without_rows
from .lane_loop import LaneLoop
from .limits import MAX_REVERSE_INPUTS, MAX_SPARE_BYTES, MAX_SPARE_WALKS, MAX_STATE_BYTES, MIN_REVERSE_LANES_FOR_THREADS
from .motion_loop import MotionLoop
from .rows import Row, RowRequest, step_at_or_after
from .state_walk import Walk, bytes_of


def is_real(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


@dataclass(frozen=True)
class Parts:
    """Start, step and row of the motion as functions of the leaves of (program, motion) and of the carry, with their transposed derivatives.

    Attributes:
        structure: pytree structure of (program, motion), for any number of steps and rows.
        moved: mask of the input leaves with respect to which derivatives are taken.
        used: mask of the leaves of the solution that have cotangents.
        of_rows: mask of those used leaves that have an axis of rows.
        told: whether some used leaves belong to the `Account`; its cotangent is then pulled back through the steps as well.
        live: mask of the floats of the carry that are differentiated (`with_live`); None: all of them.
    """

    structure: Any
    moved: tuple[bool, ...]
    used: tuple[bool, ...]
    of_rows: tuple[bool, ...]
    told: bool
    live: tuple[bool, ...] | None = None

    @classmethod
    def of(cls, structure: Any, moved: tuple[bool, ...], used: tuple[bool, ...], solution: Any) -> Parts:
        """Makes the parts; ``solution`` is the pytree structure of the outputs."""
        found, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(solution, used))
        names = [path[0].name for path, u in found if u]
        kept = jax.tree.unflatten(structure, range(structure.num_leaves))[0].function
        of_rows = (
            ("t", "values")
            if kept is not None
            else ("t", *Row._fields[:4], "energy", "joint_impulse", "friction_impulse")
        )
        told = any(name in Account._fields for name in names)
        return cls(structure, moved, used, tuple(name in of_rows for name in names), told)

    def loop(self, leaves: Sequence) -> tuple[LaneLoop, Any]:
        """Returns the loop of one lane and the motion, from the leaves of (program, motion)."""
        program, motion = jax.tree.unflatten(self.structure, leaves)
        return LaneLoop(MotionLoop(without_rows(program), motion)), motion

    def start(self, leaves: Sequence) -> tuple:
        loop, motion = self.loop(leaves)
        return loop.motion_loop.begin(motion)

    def step(self, leaves: Sequence, carry: Any) -> Any:
        return self.loop(leaves)[0].advance(carry)

    def row(self, leaves: Sequence, turn: RowRequest, carry: Any) -> list:
        """The leaves in the mask `used` of a solution that consists of one row: the row that ``turn`` requests, from the carry after its step."""
        loop, _ = self.loop(leaves)
        found = jax.tree.leaves(loop.solution_from(carry, loop.row_at(carry, carry[0].n, turn)))
        return [x for x, u in zip(found, self.used, strict=True) if u]

    def states(self, step: ClosedJaxpr, kept: tuple[bool, ...], leaves: Sequence) -> tuple:
        """Forward pass: the carry after the last step; the leaves of the solution, none of one with rows; and a stream of the leaves ``kept`` of the
        carries before each step and of what is remembered of the step.

        ``step``: jaxpr from input leaves and carry to the next carry and the values that are remembered.
        """
        loop, _ = self.loop(leaves)

        def forward(carry: Any, _: Any) -> tuple[Any, list]:
            every, structure = jax.tree.flatten(carry)
            found = jaxpr_as_fun(step)(*leaves, *every)
            return jax.tree.unflatten(structure, found[: len(every)]), [*compress(every, kept), *found[len(every) :]]

        last, rows = stream(forward, _start(leaves, parts=self), (), by_row=True)
        return last, [] if loop.program.rows else jax.tree.leaves(loop.at_end(last)), rows

    def told_of(self, carry: Any) -> tuple:
        """The carry without its `Account`, unless that is ``told``."""
        return carry if self.told else carry[:2]

    def reals(self, carry: Any) -> list:
        """Leaves of the carry that are differentiated."""
        found = [x for x in jax.tree.leaves(self.told_of(carry)) if is_real(x)]
        return found if self.live is None else list(compress(found, self.live))

    def with_live(self, carry: Any, start: ClosedJaxpr, step: ClosedJaxpr, row: ClosedJaxpr) -> Parts:
        """Returns the parts with ``live``: floats of the ``carry`` that depend on inputs and on which used leaves depend, counting derivatives only.

        Impulses that nobody asks for are not among them. ``start``: the jaxpr from input leaves to a carry; ``step``: from input leaves and carry to the
        floats of the next carry; ``row``: from input leaves, requests and a carry to used leaves.
        """
        every = jax.tree.leaves(carry)
        floats = [i for i, x in enumerate(jax.tree.leaves(self.told_of(carry))) if is_real(x)]  # the first ones of all

        def after(part: ClosedJaxpr, flags: Sequence[bool], moved: Sequence[bool]) -> list[bool]:
            """Mask of the outputs of a part that move with the floats in the mask ``flags`` and the input leaves in the mask ``moved``."""
            of_carry = [False] * len(every)
            for i, flag in zip(floats, flags, strict=True):
                of_carry[i] = flag
            between = [False] * (len(part.in_avals) - len(moved) - len(of_carry))
            return moving_outputs(part, [*moved, *between, *of_carry])

        begun, still = moving_outputs(start, self.moved), [False] * len(self.moved)
        moves = [begun[i] for i in floats]
        while (new := list(map(operator.or_, moves, after(step, moves, self.moved)))) != moves:
            moves = new
        each = [[i == k for i in range(len(floats))] for k in range(len(floats))]
        onwards = [after(step, one, still) if m else [] for one, m in zip(each, moves, strict=True)]
        live = [m and any(after(row, one, still)) for one, m in zip(each, moves, strict=True)]
        while (new := [x or any(map(operator.and_, y, live)) for x, y in zip(live, onwards, strict=True)]) != live:
            live = new
        return replace(self, live=tuple(live))

    # transposed derivatives

    def of_start(self, leaves: Sequence, change: Sequence, total: Sequence) -> list:
        """Returns ``total`` plus the cotangents of the input leaves that follow from the cotangent ``change`` of the first carry."""
        begun = lambda leaves: self.reals(_start(leaves, parts=replace(self, live=None)))
        some, _ = self._transpose_part(lambda leaves, _: begun(leaves), leaves, None, change)
        return _sum(total, some)

    def of_step(
        self, step: ClosedJaxpr, leaves: Sequence, carry: Any, known: Sequence, change: Sequence, total: Sequence
    ) -> tuple[list, list]:
        """Pulls the cotangent ``change`` of the carry after a step back through the step, of which the values ``known`` are remembered.

        Returns the cotangent of the ``carry`` before the step, and ``total`` plus the step's part of the cotangents of the input leaves.
        """
        after = lambda leaves, carry: jaxpr_as_fun(step)(*leaves, *jax.tree.leaves(carry), *known)
        some, before = self._transpose_part(after, leaves, carry, change)
        return before, _sum(total, some)

    def of_steps(
        self,
        step: ClosedJaxpr,
        kept: tuple[bool, ...],
        noted: tuple[bool, ...],
        leaves: Sequence,
        last: Any,
        change: Sequence,
        total: Sequence,
    ) -> tuple[list, list]:
        """Applies `of_step` from the last step to the first, to a stream of what is stored of them.

        That are the leaves of the carries in the mask ``kept``, and the values that are remembered of a step in the mask ``noted``. Other leaves, which
        steps do not read, are taken from the carry ``last``. Returns the cotangent of the first carry, and the new ``total``.
        """
        every, structure = jax.tree.flatten(last)
        types = step.in_avals[len(leaves) + len(every) :]
        unread = [jnp.zeros(a.shape, a.dtype) for a in types]

        def back(now: tuple, row: tuple[list, list]) -> tuple:
            of_carry, of_step = map(iter, row)
            carry = [next(of_carry) if k else x for x, k in zip(every, kept, strict=True)]
            known = [next(of_step) if k else x for x, k in zip(unread, noted, strict=True)]
            return _of_step(leaves, jax.tree.unflatten(structure, carry), known, *now, parts=self, step=step), ()

        of_type = lambda some: [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in some]
        each = of_type(compress(every, kept)), of_type(compress(types, noted))
        return stream(back, (change, total), each, by_row=True, backwards=True)[0]

    def of_row(
        self, leaves: Sequence, turn: RowRequest, given: Sequence, carry: Any, change: Sequence, total: Sequence
    ) -> tuple[list, list]:
        """Pulls the cotangents ``given`` of one row back, through the computation of the row from the ``carry`` after its step.

        Returns the sums of ``change`` and the cotangent of that carry, and of ``total`` and the cotangents of the input leaves.
        """
        row = lambda leaves, carry: _row(leaves, turn, carry, parts=replace(self, live=None))
        some, more = self._transpose_part(row, leaves, carry, given)
        return _sum(change, more), _sum(total, some)

    def _transpose_part(self, function: Callable, leaves: Sequence, carry: Any, change: Sequence) -> tuple:
        def of(some: Sequence, reals: Sequence) -> list:
            numbers = iter(some)
            full = [next(numbers) if m else x for x, m in zip(leaves, self.moved, strict=True)]
            return function(full, carry if carry is None else self._with_reals(carry, reals))

        some = [x for x, m in zip(leaves, self.moved, strict=True) if m]
        at = (some, [] if carry is None else self.reals(carry))
        # values and derivative in one program: nobody needs the values by themselves, and jax takes long to separate the two
        pushed = lambda some, reals: jax.jvp(of, at, (some, reals))[1]
        return transpose(pushed, *at)(list(change))

    def _with_reals(self, carry: Any, reals: Sequence) -> Any:
        numbers, live = iter(reals), itertools.repeat(True) if self.live is None else iter(self.live)
        moved = jax.tree.map(lambda x: next(numbers) if is_real(x) and next(live) else x, self.told_of(carry))
        return moved if self.told else (*moved, carry[2])


def _sum(x: Sequence, y: Sequence) -> list:
    return [a + b for a, b in zip(x, y, strict=True)]


_step = jax.jit(lambda leaves, carry, parts: parts.reals(parts.step(leaves, carry)), static_argnames="parts")
_start = jax.jit(lambda leaves, parts: parts.start(leaves), static_argnames="parts")
_row = jax.jit(lambda leaves, turn, carry, parts: parts.row(leaves, turn, carry), static_argnames="parts")
_whole_step = jax.jit(lambda leaves, carry, parts: parts.step(leaves, carry), static_argnames="parts")
_states = jax.jit(
    lambda leaves, parts, step, kept: parts.states(step, kept, leaves), static_argnames=("parts", "step", "kept")
)
_of_start = jax.jit(lambda *operands, parts: parts.of_start(*operands), static_argnames="parts")
_of_step = jax.jit(lambda *operands, parts, step: parts.of_step(step, *operands), static_argnames=("parts", "step"))
_of_steps = jax.jit(
    lambda *operands, parts, step, read: parts.of_steps(step, *read, *operands),
    static_argnames=("parts", "step", "read"),
)
_of_row = jax.jit(lambda *operands, parts: parts.of_row(*operands), static_argnames="parts")


class Backwards:
    """Compiled backward pass of ``lanes`` motions (None: one): maps input leaves and output cotangents to cotangents of the moved input leaves.

    ``opened``: function from the input leaves to program and motion. ``members``: shapes of the operands in one lane, input leaves before cotangents;
    ``axes``: their lane axes.

    Raises:
        Unsupported, ImportError: as `compile_lanes`; saved times belong to different steps in different lanes, the states would not fit into
            `MAX_STATE_BYTES`, or derivatives are by more than `MAX_REVERSE_INPUTS` numbers.
    """

    def __init__(self, parts: Parts, opened: Callable, members: Sequence, axes: Sequence, lanes: int | None):
        self.lanes, self.opened, self.count = lanes, opened, len(parts.moved)
        self.carried = [a is not None for a in axes]
        # where lanes differ in their cotangents alone, states of all of them are computed from a position that is repeated
        self.by_lane = list(self.carried)
        if lanes is not None and not any(self.carried[: self.count]):
            self.by_lane[opened(range(self.count))[1].q0] = True
        program, differ = opened(members)[0], opened(self.carried)[1]
        if program.rows and program.every is None and (differ.t0 or differ.h):
            raise Unsupported("reverse mode of times that belong to other steps in other lanes")
        leaves, given = list(members[: self.count]), members[self.count :]
        # how many times there are is no part of the code
        self.times = opened(range(self.count))[0].times
        leaves[self.times] = jax.ShapeDtypeStruct((0,), program.times.dtype)
        some = [x for x, m in zip(leaves, parts.moved, strict=True) if m]
        self.carry = jax.eval_shape(lambda leaves: _start(leaves, parts=parts), leaves)
        size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(self.carry))
        if size * program.length * (lanes or 1) > MAX_STATE_BYTES:
            raise Unsupported("reverse mode of so many states")
        if sum(math.prod(x.shape) for x in some) > MAX_REVERSE_INPUTS:
            raise Unsupported("reverse mode of so many numbers")
        self.steps, self.program_rows, self.given = program.length, program.rows, given
        self.spare, self.lock = list[Walk](), Lock()
        self.at_end = RowRequest.of(program.replace(rows=0, times=np.zeros(0, program.times.dtype)))
        with without_collection():
            self._prepare(parts, leaves, given, some)

    def _prepare(self, parts: Parts, leaves: list, given: Sequence, some: list) -> None:
        """Compiles the functions of `Parts`; finds which leaves of the carry they read and thus have to be stored."""
        many, dtype = self.lanes is not None, self.carry[1].q.dtype
        self.of_rows = parts.of_rows
        of_one = [jax.ShapeDtypeStruct(x.shape[r:], x.dtype) for x, r in zip(given, self.of_rows, strict=True)]
        turn = RowRequest(None, jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct((), bool))
        traced = _step.trace(leaves, self.carry, parts=parts).jaxpr
        begun, row = _start.trace(leaves, parts=parts).jaxpr, _row.trace(leaves, turn, self.carry, parts=parts).jaxpr
        whole, parts = parts, parts.with_live(self.carry, begun, traced, row)
        reals = parts.reals(self.carry)

        def part(one: Callable, *operands: Any, first: Sequence[bool] = (), **static: Any) -> CompiledFunction:
            rest = len(jax.tree.leaves(operands)) - len(first)
            flags = [*self.by_lane[: self.count], *first, *[many] * rest]
            return compile_lanes(one, (leaves, *operands), flags, **static)

        self.found = [*reals, *some]
        # without what a step computes for its status and account, a third of it, before it is differentiated
        step = inline_calls(without_dead_code(remembered.with_marked_inputs(traced), parts.live))
        types = remembered.marked_types(traced)
        self.of_start = part(_of_start, reals, some, parts=parts)
        first = [False, False, *self.carried[self.count :]]
        self.of_row = part(_of_row, turn, of_one, self.carry, reals, some, first=first, parts=parts)
        by_step = _of_step.trace(leaves, self.carry, types, reals, some, parts=parts, step=step).jaxpr
        noted = used_inputs(by_step)[len(leaves) + len(jax.tree.leaves(self.carry)) :][: len(types)]
        self.remembered = list(compress(types, noted))
        self.kept = self.leaves_read(by_step, len(leaves))
        if self.program_rows:
            by_row = _of_row.trace(leaves, turn, of_one, self.carry, reals, some, parts=parts).jaxpr
            of_row = self.leaves_read(by_row, len(leaves) + len(jax.tree.leaves((turn, of_one))))
            self.kept = tuple(map(operator.or_, self.kept, of_row))
        forward = remembered.with_marked_outputs(_whole_step.trace(leaves, self.carry, parts=whole).jaxpr)
        forward = without_dead_code(forward, [*[True] * (len(forward.out_avals) - len(types)), *noted])
        self.states = part(_states, step=forward, kept=self.kept, parts=whole)
        read = self.kept, tuple(noted)
        self.of_steps = part(_of_steps, self.carry, reals, some, step=step, read=read, parts=parts)

    def leaves_read(self, jaxpr: ClosedJaxpr, first: int) -> tuple[bool, ...]:
        """Mask of the leaves of the carry that a jaxpr reads; they are its inputs from number ``first`` on."""
        return tuple(used_inputs(jaxpr)[first : first + len(jax.tree.leaves(self.carry))])

    def __call__(self, operands: list[np.ndarray], found: list[np.ndarray]) -> None:
        """Computes the cotangents of the moved input leaves for all lanes and writes them into ``found``; many lanes are shared out to all cores."""
        self._share(self.of_lanes, operands, found)

    def values(self, operands: list[np.ndarray], found: list[np.ndarray]) -> None:
        """Computes the leaves of the solution from the input leaves, and keeps the states for the walk back; arguments as in `__call__`."""
        self._share(self.values_of_lanes, operands, found)

    def keeps_states(self) -> bool:
        """Tests whether `values` can be had: there are no rows, and the states fit into the memory that stays."""
        every = jax.tree.leaves(self.carry)
        stored = (*compress(every, self.kept), *self.remembered)
        size = sum(math.prod(x.shape) * x.dtype.itemsize for x in stored)
        return self.program_rows == 0 and size * (self.steps + 1) * (self.lanes or 1) <= MAX_SPARE_BYTES

    def _share(self, of_lanes: Callable, operands: list[np.ndarray], found: list[np.ndarray]) -> None:
        every = self.lanes or 1
        slices = [slice(0, every)]
        if every >= MIN_REVERSE_LANES_FOR_THREADS:
            ends = np.linspace(0, every, core_count() + 1).astype(int)
            slices = [slice(a, b) for a, b in pairwise(ends)]

        def share(some: slice) -> None:
            mine = [x[some] if c else x for x, c in zip(operands, self.carried, strict=False)]
            for x, y in zip(found, of_lanes(mine, some.stop - some.start), strict=True):
                if self.lanes is not None:
                    x[some] = y
                else:
                    x[...] = y[0]

        if len(slices) == 1:
            share(slices[0])
        else:
            list(lane_pool().map(share, slices))

    def rows(self, leaves: Sequence) -> tuple[list[int], RowRequest]:
        """Returns the numbers of the steps of all rows, in order of time, and the requests for all rows."""
        if not self.program_rows:
            return [self.steps], self.at_end
        program, motion = self.opened(leaves)
        every = RowRequest.of(program)
        numbers = every.number
        if program.every is None:
            numbers = step_at_or_after(every.time, motion.t0, motion.h, np)
        return np.where(every.last, self.steps, np.clip(numbers, 0, self.steps)).tolist(), every

    def values_of_lanes(self, operands: list[np.ndarray], lanes: int) -> list[np.ndarray]:
        """Returns the leaves of the solution for ``lanes`` motions, from their input leaves (``operands``), and keeps their states."""
        fixed, whole = self._in_columns(operands, lanes)
        walk = self._spare_walk(whole)
        if walk is None:
            shapes = zip(self.given, self.carried[self.count :], strict=True)
            given = [np.zeros((lanes, *x.shape) if c else x.shape, x.dtype) for x, c in shapes]
            walk = Walk(self, fixed, self._of_row(given, 1, whole), whole)
        walk.walk_forward(fixed)
        found = _copies(walk.values, self.states.results[len(walk.last) :], lanes)
        walk.in_wait = True
        self._keep(walk)
        return found

    def of_lanes(self, operands: list[np.ndarray], lanes: int) -> list[np.ndarray]:
        """Returns the cotangents of the moved input leaves for ``lanes`` motions, from their input leaves and output cotangents (``operands``)."""
        numbers, turn = self.rows(list(operands[: self.count]))
        fixed, whole = self._in_columns(operands, lanes)
        of_row = [turn.time, turn.last, *self._of_row(operands[self.count :], len(numbers), whole)[2:]]
        key = bytes_of(fixed)
        walk = self._spare_walk(whole, key)
        if walk is None:
            walk = Walk(self, fixed, of_row, whole)
        if walk.key != key:
            walk.walk_forward(fixed)
        found = _copies(walk.walk_back(of_row, numbers), self.of_start.results, lanes)
        walk.in_wait = False
        self._keep(walk)
        return found

    def _in_columns(self, operands: list[np.ndarray], lanes: int) -> tuple[list[np.ndarray], int]:
        """Returns the input leaves in the layout of programs, and the number of lanes with padding."""
        leaves = list(operands[: self.count])
        leaves[self.times] = leaves[self.times][:0]
        whole = max(x.padded_count(lanes) for x in (self.states, self.of_steps, self.of_row, self.of_start))
        for i, (v, c) in enumerate(zip(self.by_lane[: self.count], self.carried, strict=False)):
            if v:
                leaves[i] = as_columns(leaves[i] if c else np.broadcast_to(leaves[i], (lanes, *leaves[i].shape)), whole)
        return leaves, whole

    def _of_row(self, given: Sequence[np.ndarray], rows: int, whole: int) -> list:
        """Returns the operands of `Parts.of_row` that differ between rows: times and marks of the last one, as of a single row, and cotangents."""
        flags = zip(given, self.carried[self.count :], self.of_rows, strict=True)
        return [self.at_end.time, self.at_end.last, *(self.cotangents_of(x, c, r, rows, whole) for x, c, r in flags)]

    def _spare_walk(self, whole: int, key: bytes | None = None) -> Walk | None:
        """Takes a walk out of the spare ones: that with the states of this key, else one whose states are not needed any more, else None."""
        with self.lock:
            some = [x for x in self.spare if x.whole == whole]
            found = next((x for x in some if x.key == key is not None), None)
            found = next((x for x in some if not x.in_wait), None) if found is None else found
            if found is None and len(some) >= MAX_SPARE_WALKS:
                found = some[0]  # the oldest: its walk back, should it come, computes the states again
            if found is not None:
                self.spare.remove(found)
            return found

    def _keep(self, walk: Walk) -> None:
        """Puts a walk among the spare ones, and drops the oldest if there are too many."""
        with self.lock:
            if walk.size <= MAX_SPARE_BYTES:
                self.spare.append(walk)
            while sum(x.size for x in self.spare) > core_count() * MAX_SPARE_BYTES:
                del self.spare[0]

    def cotangents_of(self, x: np.ndarray, carried: bool, of_row: bool, rows: int, whole: int) -> np.ndarray:
        """Cotangents x of an output as an array of ``rows`` rows, for ``whole`` lanes; those of an output without rows belong to the last row.

        ``carried``: whether x has a lane axis; ``of_row``: whether it has an axis of rows.
        """
        axis = int(carried)
        if not of_row:
            last, x = x, np.zeros((*x.shape[:axis], rows, *x.shape[axis:]), x.dtype)
            np.moveaxis(x, axis, 0)[-1] = last
        return as_columns(x, whole, 1) if carried else np.ascontiguousarray(x)


def _copies(found: Sequence[np.ndarray], results: Sequence, lanes: int) -> list[np.ndarray]:
    """Returns copies of results (size, whole) of a program as arrays (lanes, ...)."""
    return [as_lanes(x[:, None], lanes, a.shape, False).copy() for x, (a, _) in zip(found, results, strict=False)]


_passes: dict[Any, Backwards | Unsupported] = {}


def _backwards(parts: Parts, opened: Callable, members: Sequence, axes: Sequence, lanes: int | None) -> tuple:
    """Returns the backward pass of these arguments, made once, and its key; raises Unsupported if there is none."""
    program = opened(members)[0]
    key = (parts, program.length, program.rows, program.every, tuple(axes), lanes, shapes_and_dtypes(members))
    if key not in _passes:
        try:
            _passes[key] = Backwards(parts, opened, members, axes, lanes)
        except Unsupported as error:
            _passes[key] = error
    found = _passes[key]
    if isinstance(found, Unsupported):
        raise found
    return found, key


def target(
    parts: Parts,
    opened: Callable,
    members: Sequence,
    axes: Sequence,
    lanes: int | None,
    results: Sequence,
    forward: bool = False,
) -> str:
    """Name of the FFI target of the backward pass: from leaves and output cotangents to cotangents of the input leaves.

    With ``forward`` that of the values, which keeps the states for it; `Unsupported` if they would not stay in memory. Arguments as in `Backwards` and
    `xla_ffi.target`.
    """
    found, key = _backwards(parts, opened, members, axes, lanes)
    if forward and not found.keeps_states():
        raise Unsupported("values with states of rows, or so many")
    lead = [() if a is None else (lanes,) for a in axes]
    shapes = [((*n, *x.shape), np.dtype(x.dtype)) for n, x in zip(lead, members, strict=True)]
    outputs = [(x.shape, np.dtype(x.dtype)) for x in results]
    if forward:
        return register_target((key, "values"), lambda: found.values, shapes[: found.count], outputs)
    return register_target(key, lambda: found, shapes, outputs)
