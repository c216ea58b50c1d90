"""Reverse mode of a motion in native code: stored states, and steps differentiated one by one from last to first.

Each part of the motion (start, steps, one row) is a function whose transposed derivative is compiled once; that of the steps between two rows is a
loop of machine code. The cost of a step then does not depend on the number of inputs. Of each state only the numbers are stored that a
transposed step or row reads. The cotangent of a saved row is added when the loop reaches its step.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..compiler.llvm.call import BoundCall, CompiledFunction, as_columns, as_lanes, compile_lanes
from ..compiler.llvm.xla_ffi import lane_pool, register_target
from ..compiler.scalar import Unsupported
from ..compiler.stream import stream
from ..jaxtools.jaxpr_tools import inline_calls, used_inputs
from ..jaxtools.operating_system import core_count
from ..jaxtools.trace_context import without_collection
from ..jaxtools.transposition import transpose
from .account import Account
from .backends import without_rows
from .lane_loop import LaneLoop
from .limits import MAX_REVERSE_INPUTS, MAX_SPARE_BYTES, MAX_STATE_BYTES, MIN_REVERSE_LANES_FOR_THREADS
from .motion_loop import MotionLoop
from .rows import Row, RowRequest, step_at_or_after


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
    """

    structure: Any
    moved: tuple[bool, ...]
    used: tuple[bool, ...]
    of_rows: tuple[bool, ...]
    told: bool

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

    def states(self, kept: tuple[bool, ...], leaves: Sequence) -> tuple:
        """Forward pass: the carry after the last step, and a stream of the leaves ``kept`` of the carries before each step."""
        loop, motion = self.loop(leaves)
        step = lambda carry, _: (self.step(leaves, carry), list(compress(jax.tree.leaves(carry), kept)))
        return stream(step, loop.motion_loop.begin(motion), (), by_row=True)

    def reals(self, carry: Any) -> list:
        """Leaves of the carry that are differentiated."""
        return [x for x in jax.tree.leaves(carry if self.told else carry[:2]) if is_real(x)]

    # transposed derivatives

    def of_start(self, leaves: Sequence, change: Sequence, total: Sequence) -> list:
        """Returns ``total`` plus the cotangents of the input leaves that follow from the cotangent ``change`` of the first carry."""
        some, _ = self._transpose_part(lambda leaves, _: self.reals(self.start(leaves)), leaves, None, change)
        return _sum(total, some)

    def of_step(
        self, step: ClosedJaxpr, leaves: Sequence, carry: Any, change: Sequence, total: Sequence
    ) -> tuple[list, list]:
        """Pulls the cotangent ``change`` of the carry after a step back through the step.

        Returns the cotangent of the ``carry`` before the step, and ``total`` plus the step's part of the cotangents of the input leaves.
        """
        structure = jax.tree.structure(carry)
        made = lambda leaves, carry: jaxpr_as_fun(step)(*leaves, *jax.tree.leaves(carry))
        after = lambda *operands: self.reals(jax.tree.unflatten(structure, made(*operands)))
        some, before = self._transpose_part(after, leaves, carry, change, whole=True)
        return before, _sum(total, some)

    def of_steps(
        self, step: ClosedJaxpr, kept: tuple[bool, ...], leaves: Sequence, last: Any, change: Sequence, total: Sequence
    ) -> tuple[list, list]:
        """Applies `of_step` from the last step to the first, to a stream of the stored leaves of the carries, those in the mask ``kept``.

        Other leaves, which steps do not read, are taken from the carry ``last``. Returns the cotangent of the first carry, and the new ``total``.
        """
        every, structure = jax.tree.flatten(last)

        def back(now: tuple, row: list) -> tuple:
            known = iter(row)
            carry = jax.tree.unflatten(structure, [next(known) if k else x for x, k in zip(every, kept, strict=True)])
            return _of_step(leaves, carry, *now, parts=self, step=step), ()

        each = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in compress(every, kept)]
        return stream(back, (change, total), each, by_row=True, backwards=True)[0]

    def of_row(
        self, leaves: Sequence, turn: RowRequest, given: Sequence, carry: Any, change: Sequence, total: Sequence
    ) -> tuple[list, list]:
        """Pulls the cotangents ``given`` of one row back, through the computation of the row from the ``carry`` after its step.

        Returns the sums of ``change`` and the cotangent of that carry, and of ``total`` and the cotangents of the input leaves.
        """
        some, more = self._transpose_part(lambda leaves, carry: self.row(leaves, turn, carry), leaves, carry, given)
        return _sum(change, more), _sum(total, some)

    def _transpose_part(
        self, function: Callable, leaves: Sequence, carry: Any, change: Sequence, whole: bool = False
    ) -> tuple:
        def of(some: Sequence, reals: Sequence) -> list:
            numbers = iter(some)
            full = [next(numbers) if m else x for x, m in zip(leaves, self.moved, strict=True)]
            return function(full, carry if carry is None else self._with_reals(carry, reals))

        some = [x for x, m in zip(leaves, self.moved, strict=True) if m]
        at = (some, [] if carry is None else self.reals(carry))
        if not whole:
            return jax.vjp(of, *at)[1](list(change))
        # values and derivative in one program: nobody needs the values by themselves, and jax takes long to separate the two
        pushed = lambda some, reals: jax.jvp(of, at, (some, reals))[1]
        return transpose(pushed, *at)(list(change))

    def _with_reals(self, carry: Any, reals: Sequence) -> Any:
        numbers = iter(reals)
        moved = jax.tree.map(lambda x: next(numbers) if is_real(x) else x, carry if self.told else carry[:2])
        return moved if self.told else (*moved, carry[2])


def _sum(x: Sequence, y: Sequence) -> list:
    return [a + b for a, b in zip(x, y, strict=True)]


_step = jax.jit(lambda leaves, carry, parts: parts.step(leaves, carry), static_argnames="parts")
_start = jax.jit(lambda leaves, parts: parts.start(leaves), static_argnames="parts")
_states = jax.jit(lambda leaves, parts, kept: parts.states(kept, leaves), static_argnames=("parts", "kept"))
_of_start = jax.jit(lambda *operands, parts: parts.of_start(*operands), static_argnames="parts")
_of_step = jax.jit(lambda *operands, parts, step: parts.of_step(step, *operands), static_argnames=("parts", "step"))
_of_steps = jax.jit(
    lambda *operands, parts, step, kept: parts.of_steps(step, kept, *operands),
    static_argnames=("parts", "step", "kept"),
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
        self.steps, self.program_rows, self.spare = program.length, program.rows, list[Walk]()
        self.at_end = RowRequest.of(program.replace(rows=0, times=np.zeros(0, program.times.dtype)))
        with without_collection():
            self._prepare(parts, leaves, given, some)

    def _prepare(self, parts: Parts, leaves: list, given: Sequence, some: list) -> None:
        """Compiles the functions of `Parts`; finds which leaves of the carry they read and thus have to be stored."""
        many, reals = self.lanes is not None, parts.reals(self.carry)

        def part(one: Callable, *operands: Any, first: Sequence[bool] = (), **static: Any) -> CompiledFunction:
            rest = len(jax.tree.leaves(operands)) - len(first)
            flags = [*self.carried[: self.count], *first, *[many] * rest]
            return compile_lanes(one, (leaves, *operands), flags, parts=parts, **static)

        self.found = [*reals, *some]
        step = inline_calls(_step.trace(leaves, self.carry, parts=parts).jaxpr)
        self.of_start = part(_of_start, reals, some)
        self.of_rows, dtype = parts.of_rows, self.carry[1].q.dtype
        of_one = [jax.ShapeDtypeStruct(x.shape[r:], x.dtype) for x, r in zip(given, self.of_rows, strict=True)]
        turn = RowRequest(None, jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct((), bool))
        first = [False, False, *self.carried[self.count :]]
        self.of_row = part(_of_row, turn, of_one, self.carry, reals, some, first=first)
        by_step = _of_step.trace(leaves, self.carry, reals, some, parts=parts, step=step).jaxpr
        self.kept = self.leaves_read(by_step, len(leaves))
        if self.program_rows:
            by_row = _of_row.trace(leaves, turn, of_one, self.carry, reals, some, parts=parts).jaxpr
            of_row = self.leaves_read(by_row, len(leaves) + len(jax.tree.leaves((turn, of_one))))
            self.kept = tuple(map(operator.or_, self.kept, of_row))
        self.states = part(_states, kept=self.kept)
        self.of_steps = part(_of_steps, self.carry, reals, some, step=step, kept=self.kept)

    def leaves_read(self, jaxpr: ClosedJaxpr, first: int) -> tuple[bool, ...]:
        """Mask of the leaves of the carry that a jaxpr reads; they are its inputs from number ``first`` on."""
        return tuple(used_inputs(jaxpr)[first : first + len(jax.tree.leaves(self.carry))])

    def __call__(self, operands: list[np.ndarray], found: list[np.ndarray]) -> None:
        """Computes the cotangents of the moved input leaves for all lanes and writes them into ``found``; many lanes are shared out to all cores."""
        every = self.lanes or 1
        slices = [slice(0, every)]
        if every >= MIN_REVERSE_LANES_FOR_THREADS:
            ends = np.linspace(0, every, core_count() + 1).astype(int)
            slices = [slice(a, b) for a, b in pairwise(ends)]

        def share(some: slice) -> None:
            mine = [x[some] if c else x for x, c in zip(operands, self.carried, strict=True)]
            for x, y in zip(found, self.of_lanes(mine, some.stop - some.start), strict=True):
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

    def of_lanes(self, operands: list[np.ndarray], lanes: int) -> list[np.ndarray]:
        """Cotangents of the moved input leaves for ``lanes`` motions, from their input leaves and output cotangents (``operands``)."""
        leaves, given = list(operands[: self.count]), operands[self.count :]
        numbers, turn = self.rows(leaves)
        leaves[self.times] = leaves[self.times][:0]
        whole = max(x.padded_count(lanes) for x in (self.states, self.of_steps, self.of_row, self.of_start))
        fixed = [as_columns(x, whole) if c else x for x, c in zip(leaves, self.carried, strict=False)]
        flags = zip(given, self.carried[self.count :], self.of_rows, strict=True)
        cotangents_of = [self.cotangents_of(x, c, r, len(numbers), whole) for x, c, r in flags]
        of_row = [turn.time, turn.last, *cotangents_of]
        walk = self.spare.pop() if self.spare else None
        if walk is None or not walk.takes(fixed, of_row, whole):
            walk = Walk(self, fixed, of_row, whole)
        found = walk.run(fixed, of_row, numbers)
        results = [
            as_lanes(x[:, None], lanes, a.shape, False).copy()
            for x, (a, _) in zip(found, self.of_start.results, strict=True)
        ]
        if walk.size <= MAX_SPARE_BYTES:
            self.spare.append(walk)
        return results

    def cotangents_of(self, x: np.ndarray, carried: bool, of_row: bool, rows: int, whole: int) -> np.ndarray:
        """Cotangents x of an output as an array of ``rows`` rows, for ``whole`` lanes; those of an output without rows belong to the last row.

        ``carried``: whether x has a lane axis; ``of_row``: whether it has an axis of rows.
        """
        axis = int(carried)
        if not of_row:
            last, x = x, np.zeros((*x.shape[:axis], rows, *x.shape[axis:]), x.dtype)
            np.moveaxis(x, axis, 0)[-1] = last
        return as_columns(x, whole, 1) if carried else np.ascontiguousarray(x)


class Walk:
    """Memory of a forward and a backward pass through the steps for ``whole`` lanes, padding included, with the compiled calls bound to it."""

    def __init__(self, of: Backwards, fixed: Sequence[np.ndarray], of_row: Sequence[np.ndarray], whole: int):
        self.steps, self.kept_leaves = of.steps, of.kept
        self.fixed, self.of_row = ([np.array(x, order="C") for x in some] for some in (fixed, of_row))
        self.whole = whole
        every = jax.tree.leaves(of.carry)
        self.last = [np.empty((math.prod(x.shape), whole), x.dtype) for x in every]
        # carries before each step and after the last one
        shapes = [(self.steps + 1, *x.shape) for x in self.last]
        self.kept = [np.empty(n, x.dtype) for x, n in compress(zip(every, shapes, strict=True), of.kept)]
        self.size = sum(x.nbytes for x in self.kept)
        # cotangents of carry and inputs in two buffers: a call reads one and writes the other
        self.found = [[np.zeros((math.prod(x.shape), whole), x.dtype) for x in of.found] for _ in range(2)]
        self.results = [np.empty((math.prod(a.shape), whole), a.dtype) for a, _ in of.of_start.results]
        known, rows = [(x, None) for x in self.fixed], iter(self.kept)
        carry = [(next(rows), 0) if k else (x, None) for x, k in zip(self.last, of.kept, strict=True)]
        # a call is given the numbers of a carry and of a row
        turn, each = [(x, 1) for x in self.of_row], [(x, 0) for x in self.kept]
        self.states = BoundCall(of.states, known, [*self.last, *self.kept], whole, 2)
        self.row = self._in_turn(of.of_row, [*known, *turn, *carry])
        self.back = self._in_turn(of.of_steps, [*known, *((x, None) for x in self.last)], each)
        self.start = [
            BoundCall(of.of_start, [*known, *((x, None) for x in y)], self.results, whole, 2) for y in self.found
        ]

    def _in_turn(self, part: CompiledFunction, operands: Sequence, given: Sequence = ()) -> list[BoundCall]:
        """Returns two bound calls of ``part``: one reads the first buffer of cotangents and writes the second, the other does the reverse."""
        ways = (self.found, self.found[::-1])
        operands_of = lambda here: [*operands, *((x, None) for x in here)]
        return [BoundCall(part, operands_of(here), there, self.whole, 2, given) for here, there in ways]

    def takes(self, fixed: Sequence[np.ndarray], of_row: Sequence[np.ndarray], whole: int) -> bool:
        """Whether this memory has the right sizes for these operands and ``whole`` lanes, so that it can be used again."""
        pairs = zip([*self.fixed, *self.of_row], [*fixed, *of_row], strict=True)
        return self.whole == whole and all(x.shape == y.shape for x, y in pairs)

    def run(
        self, fixed: Sequence[np.ndarray], of_row: Sequence[np.ndarray], numbers: Sequence[int]
    ) -> list[np.ndarray]:
        """Cotangents of the inputs, arrays (size, whole), that the next run overwrites.

        ``fixed``: operands of the whole motion; ``of_row``: arrays with an entry for each row; ``numbers``: number of the step of each row.
        """
        for place, x in zip(
            [*self.fixed, *self.of_row, *self.found[0]], [*fixed, *of_row, *[0] * len(self.found[0])], strict=True
        ):
            place[...] = x
        self.states.watched(self.steps)
        self.states(0, 0, rows=self.steps)
        for x, row in zip(compress(self.last, self.kept_leaves), self.kept, strict=True):
            row[-1] = x
        side, left, k = 0, len(numbers), self.steps
        while True:
            while left and numbers[left - 1] == k:
                left -= 1
                self.row[side](k, left)
                side = 1 - side
            if k == 0:
                break
            before = numbers[left - 1] if left else 0
            self.back[side](before, 0, rows=k - before)
            side, k = 1 - side, before
        self.start[side](0, 0)
        return self.results


def target(
    parts: Parts, opened: Callable, members: Sequence, axes: Sequence, lanes: int | None, results: Sequence
) -> str:
    """Name of the FFI target of the backward pass: from leaves and output cotangents to cotangents of the input leaves.

    Arguments as in `Backwards` and `xla_ffi.target`.
    """
    lead = [() if a is None else (lanes,) for a in axes]
    shapes = [((*n, *x.shape), np.dtype(x.dtype)) for n, x in zip(lead, members, strict=True)]
    outputs = [(x.shape, np.dtype(x.dtype)) for x in results]
    program = opened(members)[0]
    key = (parts, program.length, program.rows, program.every, tuple(axes), lanes, str(shapes))
    return register_target(key, lambda: Backwards(parts, opened, members, axes, lanes), shapes, outputs)
