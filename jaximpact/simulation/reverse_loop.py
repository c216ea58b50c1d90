"""Reverse mode of a motion in native code: stored states, and steps differentiated one by one from last to first.

Each part of the motion (start, steps, one row) is a function whose transposed derivative is compiled once; that of the
steps between two rows is a loop of machine code. The cost of a step then does not depend on the number of inputs. Of
each state only the numbers are stored that a transposed step or row reads. The cotangent of a saved row is added when
the loop reaches its step.

A motion without saved rows whose value is asked for too is computed once: the forward pass gives the value, and its
states stay in memory until the walk back finds them there, by the operands that they belong to.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import compress, pairwise
from threading import Lock
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from ..compiler.llvm.call import CompiledFunction, as_columns, as_lanes, compile_lanes
from ..compiler.llvm.xla_ffi import lane_pool, register_target
from ..compiler.scalar import Unsupported
from ..jaxtools import remembered
from ..jaxtools.dead_code import without_dead_code
from ..jaxtools.jaxpr_tools import inline_calls, used_inputs
from ..jaxtools.operating_system import core_count
from ..jaxtools.shapes import shapes_and_dtypes
from ..jaxtools.trace_context import without_collection
from .limits import MAX_REVERSE_INPUTS, MAX_SPARE_BYTES, MAX_SPARE_WALKS, MAX_STATE_BYTES, MIN_REVERSE_LANES_FOR_THREADS
from .reverse_parts import (
    Parts,
    begin,
    one_row,
    row_back,
    start_back,
    step_back,
    step_reals,
    steps_back,
    wanted_states,
    whole_step,
)
from .rows import RowRequest, step_at_or_after
from .state_walk import Walk, bytes_of

if TYPE_CHECKING:
    from ..compiler.llvm.call import Jitted


class Backwards:
    """Compiled backward pass of ``lanes`` motions (None: one): maps input leaves and output cotangents to
    cotangents of the moved input leaves.

    ``opened``: function from the input leaves to program and motion. ``members``: shapes of the operands in one lane,
    input leaves before cotangents; ``axes``: their lane axes.

    Raises:
        Unsupported, ImportError: as `compile_lanes`; saved times belong to different steps in different lanes, the
            states would not fit into `MAX_STATE_BYTES`, or derivatives are by more than `MAX_REVERSE_INPUTS` numbers.
    """

    def __init__(self, parts: Parts, opened: Callable, members: Sequence, axes: Sequence, lanes: int | None):
        self.lanes, self.opened, self.count = lanes, opened, len(parts.moved)
        self.carried = [a is not None for a in axes]
        # where lanes differ in their cotangents alone, states of all of them are computed from a position that is
        # repeated
        self.by_lane = list(self.carried)
        if lanes is not None and not any(self.carried[: self.count]):
            self.by_lane[opened(range(self.count))[1].q0] = True
        program, differ = opened(members)[0], opened(self.carried)[1]
        if program.rows and not program.every and (differ.t0 or differ.h):
            raise Unsupported("reverse mode of times that belong to other steps in other lanes")
        leaves, given = list(members[: self.count]), members[self.count :]
        # how many times there are is no part of the code
        self.times = opened(range(self.count))[0].times
        leaves[self.times] = jax.ShapeDtypeStruct((0,), program.times.dtype)
        some = [x for x, m in zip(leaves, parts.moved, strict=True) if m]
        self.carry = jax.eval_shape(lambda leaves: begin(leaves, parts=parts), leaves)
        size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(self.carry))
        if size * program.length * (lanes or 1) > MAX_STATE_BYTES:
            raise Unsupported("reverse mode of so many states")
        if sum(math.prod(x.shape) for x in some) > MAX_REVERSE_INPUTS:
            raise Unsupported("reverse mode of so many numbers")
        self.steps, self.program_rows, self.given = program.length, program.rows, given
        self.outputs = len(parts.used)
        self.spare, self.lock = list[Walk](), Lock()
        self.ways_there = dict[
            tuple[bool, ...], CompiledFunction
        ]()  # by the mask of the solution's leaves that they compute
        self.at_end = RowRequest.of(program.replace(rows=0, times=np.zeros(0, program.times.dtype)))
        with without_collection():
            self._prepare(parts, leaves, given, some)

    def _prepare(self, parts: Parts, leaves: list, given: Sequence, some: list) -> None:
        """Compiles the functions of `Parts`; finds which leaves of the carry they read and thus have to be stored."""
        many, dtype = self.lanes is not None, self.carry[1].q.dtype
        self.of_rows = parts.of_rows
        of_one = [jax.ShapeDtypeStruct(x.shape[r:], x.dtype) for x, r in zip(given, self.of_rows, strict=True)]
        turn = RowRequest(None, jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct((), bool))
        traced = step_reals.trace(leaves, self.carry, parts=parts).jaxpr
        begun, row = begin.trace(leaves, parts=parts).jaxpr, one_row.trace(leaves, turn, self.carry, parts=parts).jaxpr
        whole, parts = parts, parts.with_live(self.carry, begun, traced, row)
        reals = parts.reals(self.carry)

        def part(one: Jitted, *operands: object, first: Sequence[bool] = (), **static: Hashable) -> CompiledFunction:
            rest = len(jax.tree.leaves(operands)) - len(first)
            flags = [*self.by_lane[: self.count], *first, *[many] * rest]
            return compile_lanes(one, (leaves, *operands), flags, **static)

        self.found = [*reals, *some]
        # without what a step computes for its status and account, a third of it, before it is differentiated
        step = inline_calls(without_dead_code(remembered.with_marked_inputs(traced), parts.live))
        types = remembered.marked_types(traced)
        self.of_start = part(start_back, reals, some, parts=parts)
        first = [False, False, *self.carried[self.count :]]
        self.of_row = part(row_back, turn, of_one, self.carry, reals, some, first=first, parts=parts)
        by_step = step_back.trace(leaves, self.carry, types, reals, some, parts=parts, step=step).jaxpr
        noted = used_inputs(by_step)[len(leaves) + len(jax.tree.leaves(self.carry)) :][: len(types)]
        self.remembered = list(compress(types, noted))
        self.kept = self.leaves_read(by_step, len(leaves))
        by_row = row_back.trace(leaves, turn, of_one, self.carry, reals, some, parts=parts).jaxpr
        of_row = self.leaves_read(by_row, len(leaves) + len(jax.tree.leaves((turn, of_one))))
        self.read = tuple(map(operator.or_, self.kept, of_row))
        if self.program_rows:
            self.kept = self.read
        forward = remembered.with_marked_outputs(whole_step.trace(leaves, self.carry, parts=whole).jaxpr)
        forward = without_dead_code(forward, [*[True] * (len(forward.out_avals) - len(types)), *noted])
        self.make_way_there = partial(part, wanted_states, step=forward, kept=self.kept, parts=whole)
        read = self.kept, tuple(noted)
        self.of_steps = part(steps_back, self.carry, reals, some, step=step, read=read, parts=parts)

    def way_there(self, wanted: tuple[bool, ...] | None) -> CompiledFunction:
        """Returns the program of the forward pass, which keeps what the backward pass reads; each is compiled once.

        ``wanted``: mask of the leaves of the solution that it computes as well; where the program keeps rows, it
        computes none. None: a program that exists already will do, else one that computes none.
        """
        if wanted is None:
            if self.ways_there:
                return next(iter(self.ways_there.values()))
            wanted = (False,) * self.outputs
        if wanted not in self.ways_there:
            values = () if self.program_rows else wanted
            rows = (True,) * (sum(self.kept) + len(self.remembered))
            with without_collection():
                self.ways_there[wanted] = self.make_way_there(wanted=(*self.read, *values, *rows))
        return self.ways_there[wanted]

    def leaves_read(self, jaxpr: ClosedJaxpr, first: int) -> tuple[bool, ...]:
        """Mask of the leaves of the carry that a jaxpr reads; they are its inputs from number ``first`` on."""
        return tuple(used_inputs(jaxpr)[first : first + len(jax.tree.leaves(self.carry))])

    def __call__(self, operands: list[np.ndarray], found: list[np.ndarray]) -> None:
        """Computes the cotangents of the moved input leaves for all lanes and writes them into ``found``; many lanes
        are shared out to all cores."""
        self._share(self.of_lanes, operands, found)

    def values(self, wanted: tuple[bool, ...], operands: list[np.ndarray], found: list[np.ndarray]) -> None:
        """Computes the ``wanted`` leaves of the solution from the input leaves, and keeps the states for the walk back;
        arguments as in `__call__`."""
        self._share(partial(self.values_of_lanes, wanted), operands, found)

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
        if not program.every:
            numbers = step_at_or_after(every.time, motion.t0, motion.h, np)
        return np.where(every.last, self.steps, np.clip(numbers, 0, self.steps)).tolist(), every

    def values_of_lanes(self, wanted: tuple[bool, ...], operands: list[np.ndarray], lanes: int) -> list[np.ndarray]:
        """Returns the ``wanted`` leaves of the solution for ``lanes`` motions, from their input leaves (``operands``),
        and keeps their states."""
        there = self.way_there(wanted)
        fixed, whole = self._in_columns(operands, lanes)
        walk = self._spare_walk(whole, there)
        if walk is None:
            shapes = zip(self.given, self.carried[self.count :], strict=True)
            given = [np.zeros((lanes, *x.shape) if c else x.shape, x.dtype) for x, c in shapes]
            walk = Walk(self, there, fixed, self._of_row(given, 1, whole), whole)
        walk.walk_forward(fixed)
        results = compress(there.results[len(walk.last) :], wanted)
        found = _copies(list(compress(walk.values, wanted)), list(results), lanes)
        walk.in_wait = True
        self._keep(walk)
        return found

    def of_lanes(self, operands: list[np.ndarray], lanes: int) -> list[np.ndarray]:
        """Returns the cotangents of the moved input leaves for ``lanes`` motions, from their input leaves and output
        cotangents (``operands``)."""
        numbers, turn = self.rows(list(operands[: self.count]))
        fixed, whole = self._in_columns(operands, lanes)
        of_row = [turn.time, turn.last, *self._of_row(operands[self.count :], len(numbers), whole)[2:]]
        key = bytes_of(fixed)
        walk = self._spare_walk(whole, None, key)
        if walk is None:
            walk = Walk(self, self.way_there(None), fixed, of_row, whole)
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
        whole = max(
            x.padded_count(lanes) for x in (*self.ways_there.values(), self.of_steps, self.of_row, self.of_start)
        )
        for i, (v, c) in enumerate(zip(self.by_lane[: self.count], self.carried, strict=False)):
            if v:
                leaves[i] = as_columns(leaves[i] if c else np.broadcast_to(leaves[i], (lanes, *leaves[i].shape)), whole)
        return leaves, whole

    def _of_row(self, given: Sequence[np.ndarray], rows: int, whole: int) -> list:
        """Returns the operands of `Parts.of_row` that differ between rows: times and marks of the last one, as of a
        single row, and cotangents."""
        flags = zip(given, self.carried[self.count :], self.of_rows, strict=True)
        return [self.at_end.time, self.at_end.last, *(self.cotangents_of(x, c, r, rows, whole) for x, c, r in flags)]

    def _spare_walk(self, whole: int, there: CompiledFunction | None, key: bytes | None = None) -> Walk | None:
        """Takes a walk out of the spare ones: that with the states of this key,
        else one whose states are not needed any more, else None.

        ``there``: its forward pass; None: any.
        """
        with self.lock:
            some = [x for x in self.spare if x.whole == whole and there in (None, x.there)]
            mine = [x for x in some if x.key == key is not None]
            # the oldest if they are many: its walk back, should it come, computes the states again
            last = some if len(some) >= MAX_SPARE_WALKS else []
            for found in (*(x for x in mine if x.in_wait), *mine, *(x for x in some if not x.in_wait), *last):
                self.spare.remove(found)
                return found
            return None

    def _keep(self, walk: Walk) -> None:
        """Puts a walk among the spare ones, and drops the oldest if there are too many."""
        with self.lock:
            if walk.size <= MAX_SPARE_BYTES:
                self.spare.append(walk)
            while sum(x.size for x in self.spare) > core_count() * MAX_SPARE_BYTES:
                del self.spare[0]

    def cotangents_of(self, x: np.ndarray, carried: bool, of_row: bool, rows: int, whole: int) -> np.ndarray:
        """Cotangents x of an output as an array of ``rows`` rows, for ``whole`` lanes;
        those of an output without rows belong to the last row.

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


_passes: dict[Hashable, Backwards | Unsupported] = {}


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
    values: tuple[bool, ...] | None = None,
) -> str:
    """Name of the FFI target of the backward pass: from leaves and output cotangents to cotangents of the input leaves.

    With a mask ``values`` that of these leaves of the solution, which keeps the states for it; `Unsupported` if they
    would not stay in memory. Other arguments as in `Backwards` and `xla_ffi.target`.
    """
    found, key = _backwards(parts, opened, members, axes, lanes)
    if values is not None and not found.keeps_states():
        raise Unsupported("values with states of rows, or so many")
    lead = [() if a is None else (lanes,) for a in axes]
    shapes = [((*n, *x.shape), np.dtype(x.dtype)) for n, x in zip(lead, members, strict=True)]
    outputs = [(x.shape, np.dtype(x.dtype)) for x in results]
    found.way_there(values)  # compiled now, so that what native code cannot do is known
    if values is not None:
        return register_target((key, values), lambda: partial(found.values, values), shapes[: found.count], outputs)
    return register_target(key, lambda: found, shapes, outputs)
