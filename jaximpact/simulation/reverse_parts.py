"""Start, steps and rows of a motion as functions of flat arrays, with their transposed derivatives: what reverse mode
in native code compiles."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.tree_util import PyTreeDef

from ..compiler.stream import stream
from ..jaxtools.dead_code import without_dead_code
from ..jaxtools.jaxpr_tools import moving_outputs
from ..jaxtools.transposition import transpose
from ..mechanics.motion import Motion
from ..results.solution import Solution
from .account import Account
from .lane_loop import LaneLoop
from .motion_loop import MotionLoop
from .rows import Row, RowRequest

if TYPE_CHECKING:
    from .motion_loop import Carry


def is_real(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


@dataclass(frozen=True)
class Parts:
    """Start, step and row of the motion as functions of the leaves of (program, motion) and of the carry,
    with their transposed derivatives.

    Attributes:
        structure: pytree structure of (program, motion), for any number of steps and rows.
        moved: mask of the input leaves with respect to which derivatives are taken.
        used: mask of the leaves of the solution that have cotangents.
        of_rows: mask of those used leaves that have an axis of rows.
        of_account: whether some used leaves belong to the `Account`; its cotangent is then pulled
            back through the steps as well.
        live: mask of the floats of the carry that are differentiated (`with_live`); None: all of them.
    """

    structure: PyTreeDef
    moved: tuple[bool, ...]
    used: tuple[bool, ...]
    of_rows: tuple[bool, ...]
    of_account: bool
    live: tuple[bool, ...] | None = None

    @classmethod
    def of(cls, structure: PyTreeDef, moved: tuple[bool, ...], used: tuple[bool, ...], solution: Solution) -> Parts:
        """Makes the parts; ``solution`` is the pytree structure of the outputs."""
        found, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(solution, used))
        names = [path[0].name for path, u in found if u]
        kept = jax.tree.unflatten(structure, range(structure.num_leaves))[0].function
        of_rows = (
            ("t", "values")
            if kept is not None
            else ("t", *Row._fields[:4], "energy", "joint_impulse", "friction_impulse")
        )
        of_account = any(name in Account._fields for name in names)
        return cls(structure, moved, used, tuple(name in of_rows for name in names), of_account)

    def loop(self, leaves: Sequence) -> tuple[LaneLoop, Motion]:
        """Returns the loop of one lane and the motion, from the leaves of (program, motion)."""
        program, motion = jax.tree.unflatten(self.structure, leaves)
        return LaneLoop(MotionLoop(program.without_rows, motion)), motion

    def start(self, leaves: Sequence) -> tuple:
        loop, motion = self.loop(leaves)
        return loop.motion_loop.begin(motion)

    def step(self, leaves: Sequence, carry: Carry) -> Carry:
        return self.loop(leaves)[0].advance(carry)

    def row(self, leaves: Sequence, turn: RowRequest, carry: Carry) -> list:
        """The leaves in the mask `used` of a solution that consists of one row: the row that ``turn`` requests, from
        the carry after its step."""
        loop, _ = self.loop(leaves)
        found = jax.tree.leaves(loop.solution_from(carry, loop.row_at(carry, carry[0].n, turn)))
        return [x for x, u in zip(found, self.used, strict=True) if u]

    def states(self, step: ClosedJaxpr, kept: tuple[bool, ...], leaves: Sequence) -> tuple:
        """Forward pass: the carry after the last step; the leaves of the solution, none of one with rows; and a stream
        of the leaves ``kept`` of the carries before each step and of what is remembered of the step.

        ``step``: jaxpr from input leaves and carry to the next carry and the values that are remembered.
        """
        loop, _ = self.loop(leaves)

        def forward(carry: Carry, _: object) -> tuple[Carry, list]:
            every, structure = jax.tree.flatten(carry)
            found = jaxpr_as_fun(step)(*leaves, *every)
            return jax.tree.unflatten(structure, found[: len(every)]), [*compress(every, kept), *found[len(every) :]]

        last, rows = stream(forward, begin(leaves, parts=self), (), by_row=True)
        return last, [] if loop.program.rows else jax.tree.leaves(loop.at_end(last)), rows

    def told_of(self, carry: Carry) -> tuple:
        """The carry without its `Account`, unless that is ``of_account``."""
        return carry if self.of_account else carry[:2]

    def reals(self, carry: Carry) -> list:
        """Leaves of the carry that are differentiated."""
        found = [x for x in jax.tree.leaves(self.told_of(carry)) if is_real(x)]
        return found if self.live is None else list(compress(found, self.live))

    def with_live(self, carry: Carry, start: ClosedJaxpr, step: ClosedJaxpr, row: ClosedJaxpr) -> Parts:
        """Returns the parts with ``live``: floats of the ``carry`` that depend on inputs and on which used leaves
        depend, counting derivatives only.

        Impulses that nobody asks for are not among them. ``start``: the jaxpr from input leaves to a carry; ``step``:
        from input leaves and carry to the floats of the next carry; ``row``: from input leaves,
        requests and a carry to used leaves.
        """
        every = jax.tree.leaves(carry)
        floats = [i for i, x in enumerate(jax.tree.leaves(self.told_of(carry))) if is_real(x)]  # the first ones of all

        def after(part: ClosedJaxpr, flags: Sequence[bool], moved: Sequence[bool]) -> list[bool]:
            """Mask of the outputs of a part that move with the floats in the mask ``flags`` and the input
            leaves in the mask ``moved``."""
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
        """Returns ``total`` plus the cotangents of the input leaves that follow from the cotangent
        ``change`` of the first carry."""
        begun = lambda leaves: self.reals(begin(leaves, parts=replace(self, live=None)))
        some, _ = self._transpose_part(lambda leaves, _: begun(leaves), leaves, None, change)
        return _sum(total, some)

    def of_step(
        self, step: ClosedJaxpr, leaves: Sequence, carry: Carry, known: Sequence, change: Sequence, total: Sequence
    ) -> tuple[list, list]:
        """Pulls the cotangent ``change`` of the carry after a step back through the step,
        of which the values ``known`` are remembered.

        Returns the cotangent of the ``carry`` before the step, and ``total`` plus the step's part of the
        cotangents of the input leaves.
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
        last: Carry,
        change: Sequence,
        total: Sequence,
    ) -> tuple[Sequence, Sequence]:
        """Applies `of_step` from the last step to the first, to a stream of what is stored of them.

        That are the leaves of the carries in the mask ``kept``, and the values that are remembered of a step in the
        mask ``noted``. Other leaves, which steps do not read, are taken from the carry ``last``. Returns the cotangent
        of the first carry, and the new ``total``.
        """
        every, structure = jax.tree.flatten(last)
        types = step.in_avals[len(leaves) + len(every) :]
        unread = [jnp.zeros(a.shape, a.dtype) for a in types]

        def back(now: tuple, row: tuple[list, list]) -> tuple:
            of_carry, of_step = map(iter, row)
            carry = [next(of_carry) if k else x for x, k in zip(every, kept, strict=True)]
            known = [next(of_step) if k else x for x, k in zip(unread, noted, strict=True)]
            return step_back(leaves, jax.tree.unflatten(structure, carry), known, *now, parts=self, step=step), ()

        of_type = lambda some: [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in some]
        each = of_type(compress(every, kept)), of_type(compress(types, noted))
        return stream(back, (change, total), each, by_row=True, backwards=True)[0]

    def of_row(
        self, leaves: Sequence, turn: RowRequest, given: Sequence, carry: Carry, change: Sequence, total: Sequence
    ) -> tuple[list, list]:
        """Pulls the cotangents ``given`` of one row back, through the computation of the row from
        the ``carry`` after its step.

        Returns the sums of ``change`` and the cotangent of that carry,
        and of ``total`` and the cotangents of the input leaves.
        """
        row = lambda leaves, carry: one_row(leaves, turn, carry, parts=replace(self, live=None))
        some, more = self._transpose_part(row, leaves, carry, given)
        return _sum(change, more), _sum(total, some)

    def _transpose_part(self, function: Callable, leaves: Sequence, carry: Carry | None, change: Sequence) -> tuple:
        def of(some: Sequence, reals: Sequence) -> list:
            numbers = iter(some)
            full = [next(numbers) if m else x for x, m in zip(leaves, self.moved, strict=True)]
            return function(full, carry if carry is None else self._with_reals(carry, reals))

        some = [x for x, m in zip(leaves, self.moved, strict=True) if m]
        at = (some, [] if carry is None else self.reals(carry))
        # values and derivative in one program: nobody needs the values by themselves, and jax takes long to separate
        # the two
        pushed = lambda some, reals: jax.jvp(of, at, (some, reals))[1]
        return transpose(pushed, *at)(list(change))

    def _with_reals(self, carry: Carry, reals: Sequence) -> Carry:
        numbers, live = iter(reals), itertools.repeat(True) if self.live is None else iter(self.live)
        moved = jax.tree.map(lambda x: next(numbers) if is_real(x) and next(live) else x, self.told_of(carry))
        return moved if self.of_account else (*moved, carry[2])


def _sum(x: Sequence, y: Sequence) -> list:
    return [a + b for a, b in zip(x, y, strict=True)]


step_reals = jax.jit(lambda leaves, carry, parts: parts.reals(parts.step(leaves, carry)), static_argnames="parts")
begin = jax.jit(lambda leaves, parts: parts.start(leaves), static_argnames="parts")
one_row = jax.jit(lambda leaves, turn, carry, parts: parts.row(leaves, turn, carry), static_argnames="parts")
whole_step = jax.jit(lambda leaves, carry, parts: parts.step(leaves, carry), static_argnames="parts")
stored_states = jax.jit(
    lambda leaves, parts, step, kept: parts.states(step, kept, leaves), static_argnames=("parts", "step", "kept")
)


@partial(jax.jit, static_argnames=("parts", "step", "kept", "wanted"))
def wanted_states(leaves: Sequence, parts: Parts, step: ClosedJaxpr, kept: tuple, wanted: tuple[bool, ...]) -> list:
    """The flat results of `stored_states`, those that are not ``wanted`` as zeros; nothing is computed, or carried from
    step to step, for these."""
    closed = stored_states.trace(leaves, parts=parts, step=step, kept=kept).jaxpr
    found = iter(jaxpr_as_fun(without_dead_code(closed, wanted))(*leaves))
    return [next(found) if w else jnp.zeros(a.shape, a.dtype) for w, a in zip(wanted, closed.out_avals, strict=True)]


start_back = jax.jit(lambda *operands, parts: parts.of_start(*operands), static_argnames="parts")
step_back = jax.jit(lambda *operands, parts, step: parts.of_step(step, *operands), static_argnames=("parts", "step"))
steps_back = jax.jit(
    lambda *operands, parts, step, read: parts.of_steps(step, *read, *operands),
    static_argnames=("parts", "step", "read"),
)
row_back = jax.jit(lambda *operands, parts: parts.of_row(*operands), static_argnames="parts")
