"""Loop over the steps of one lane, which executes only the branches that it needs:
for native code on CPUs and for GPU kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..compiler.stream import stream
from ..jaxtools.loops import while_loop
from ..mechanics.motion import Motion
from ..results import Solution
from .limits import STABILITY_STEPS
from .motion_loop import MotionLoop
from .program import Program
from .rows import RowRequest, step_at_or_after

if TYPE_CHECKING:
    from .motion_loop import Carry


class LaneLoop:
    """Loop over the steps of one lane; its carry is (state of the scheme, `Row` and `Account` after the last step), and
    saved rows are streamed out."""

    def __init__(self, motion_loop: MotionLoop) -> None:
        self.motion_loop, self.program, self.motion = motion_loop, motion_loop.program, motion_loop.moving

    def run(self, carry: Carry) -> Solution:
        """Makes all steps from the carry before the first; returns the solution with the saved rows."""
        if self.program.rows:
            each = (jax.ShapeDtypeStruct((), x) for x in (jnp.int32, carry[1].q.dtype, bool))
            return self.solution_from(*stream(self.next_row, carry, RowRequest._make(each)))
        return self.at_end(self.step_to(self.motion.steps, carry))

    def at_end(self, carry: Carry) -> Solution:
        """Solution whose only row is the last, from the carry after the last step."""
        rows = self.row_at(carry, self.motion.steps, None)
        return self.solution_from(carry, jax.tree.map(lambda x: x[None], rows))

    def solution_from(self, carry: Carry, rows: tuple) -> Solution:
        """The solution from the last carry and the rows."""
        program, (state, row, account) = self.program, carry
        account = self.motion_loop.close_account(state, row, account)
        if program.function is None:
            return self.motion_loop.solution(state, row, rows, None, account)
        (t, values), final = rows, self.motion_loop.row_at_end(row)
        energy = self.motion_loop.energy(self.motion.t1, final)
        one = jax.tree.map(lambda x: x[None], (*final[:4], energy, final.joint_impulse, final.friction_impulse))
        return self.motion_loop.solution(state, row, (t, *one), values, account)

    def next_row(self, carry: Carry, turn: RowRequest) -> tuple[Carry, tuple]:
        """Makes steps up to the row that ``turn`` requests; returns the carry after them and the content of the row."""
        motion = self.motion
        of_time = not self.program.every
        number = step_at_or_after(turn.time, motion.t0, motion.h) if of_time else turn.number
        target = jnp.where(turn.last, motion.steps, number)
        carry = self.step_to(target, carry)
        return carry, self.row_at(carry, target, turn)

    def step_to(self, target: Array, carry: Carry) -> Carry:
        """Makes steps up to step ``target`` (), or to the end of the motion."""
        return while_loop(_is_before, _step_of, (self.program, self.motion, target), carry)

    def row_at(self, carry: Carry, target: Array, turn: RowRequest | None) -> tuple:
        """Content of the row that ``turn`` requests (None: the last one), from the carry after step ``target``.

        The content is (time, state, impulses, energy), or (time, value of the save function).
        """
        program, motion, row = self.program, self.motion, carry[1]
        if program.every or program.rows == 0:
            row = row._replace(before=None)
        t, clock = motion.t1, self.motion_loop.ended.time(target)
        if turn is not None:
            t = jnp.where(turn.last, t, motion.time(target) if program.every else turn.time)
            clock = jnp.where(turn.last, clock, motion.time(target))
        row = self.motion_loop.in_time(t, row, clock - t)
        if program.function is not None:
            return row.time(t), self.motion_loop.value(t, row)
        return (row.time(t), *row[:4], self.motion_loop.energy(t, row), row.joint_impulse, row.friction_impulse)

    def advance(self, carry: Carry) -> Carry:
        """Makes one step; returns the carry after it. Traced once for all executions and derivatives."""
        return _step_once(self.program, self.motion, carry)


def _is_before(constants: tuple, carry: Carry) -> Array:
    """Whether the loop goes on, (): the step number is below the last of the ``constants`` (program, motion, step), and
    the motion has not ended."""
    program, _, step = constants
    return (carry[0].n < step) & program.end.goes_on(carry[1])


def _step_of(constants: tuple, carry: Carry) -> Carry:
    return _step_once(*constants[:2], carry)


@jax.jit
def _step_once(program: Program, motion: Motion, carry: Carry) -> Carry:
    loop, k = MotionLoop(program, motion), carry[0].n + 1
    state, row, account = loop.make_step(carry, k)
    look = state.n.astype(jnp.uint32) % STABILITY_STEPS == 0
    return state, row, lax.cond(look, loop.check_stability, lambda _, account: account, state, account)
