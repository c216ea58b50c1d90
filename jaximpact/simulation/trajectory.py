"""Computations of one motion (start, loop over steps, rows): pure functions of one lane's arrays,
which the caller batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import PyTreeDef

from ..jaxtools.shapes import PyTree, as_array_tree, shape_of_result
from ..mechanics.events.impact_record import IMPACT, ImpactRecord
from ..mechanics.motion import Motion
from ..mechanics.scheme import Timing
from ..mechanics.status import Status
from ..results import LocatedImpacts, Solution
from .account import Account
from .batched_loop import BatchedLoop
from .call import Arguments
from .lane_loop import LaneLoop
from .motion_loop import MotionLoop
from .program import Program

if TYPE_CHECKING:
    from .motion_loop import Carry


def trajectory(program: Program, motion: Motion, length: Array | None = None) -> Solution:
    """Computes a motion; ``length``: number of steps to execute, by default the motion's own; steps beyond the motion's
    own number do nothing."""
    loop = MotionLoop(program, motion)
    carry = loop.begin(motion)
    return LaneLoop(loop).run(carry) if program.per_lane_branches else BatchedLoop(loop).run(carry, length)


def run_until_list_full(program: Program, motion: Motion, carry: Carry | None = None) -> tuple[Solution, tuple, Array]:
    """Runs a motion with neighbour lists until one overflows, from the start,
    or from the ``carry`` that an earlier call returned.

    Returns:
        The solution, complete if no list overflowed; the carry after the last valid step; whether a list overflowed,
        ().
    """
    loop = MotionLoop(program, motion)
    batched = BatchedLoop(loop)
    carry, full = batched.up_to(batched.start_carry(loop.begin(motion)) if carry is None else carry, motion.steps)
    return batched.finish(carry), carry, full


def resume_until_step(
    program: Program, motion: Motion, carry_and_last: tuple
) -> tuple[Arguments, Account, tuple, Array]:
    """Runs a motion with neighbour lists up to a given step, or until a list overflows; the program saves no rows.

    ``carry_and_last``: the carry to go on from, None for the start, at which no step is made;
    and the number of the last step.

    Returns:
        The row at the last step made, by the field names of `Solution`; the account; the carry; whether a list
        overflowed in the next step, ().
    """
    carry, last = carry_and_last
    loop = MotionLoop(program, motion)
    batched = BatchedLoop(loop)
    # at the start no step is made, so that the loop is compiled once
    carry, full = batched.up_to(carry, last) if carry is not None else (batched.start_carry(loop.begin(motion)), False)
    state, row, account, _ = carry
    ended = state.n >= motion.steps
    # the last row is the state at t1
    found = jax.tree.map(
        lambda x, y: jnp.where(ended, x, y), loop.row_at_end(row)._replace(before=None), row._replace(before=None)
    )
    t = row.time(jnp.where(ended, motion.t1, motion.time(state.n)))
    columns = {"t": t, "q": found.q, "v": found.v, "z": found.z, "impulse": found.impulse, "pairs": found.pairs}
    columns |= {"energy": loop.energy(t, found)}
    # what joints and friction do, where there are any
    columns |= {name: x for name in ("joint_impulse", "friction_impulse") if (x := getattr(found, name)).shape[-1]}
    closed = loop.close_account(state, row, account)
    full = full | (carry[2].status & int(Status.NEIGHBOURS_LOST) != 0)
    return {name: x for name, x in columns.items() if x is not None}, closed, carry, full


def structure(program: Program, motion: Motion) -> PyTreeDef:
    """Pytree structure of the result of `trajectory`, without tracing it."""
    values: PyTree = None
    energy: Any = None if program.problem.energy is None else 0
    if program.function is not None:
        values = shape_of_result(as_array_tree, program.function, *motion.start)
    numbers: Arguments = dict.fromkeys(
        ("t", "q", "v", "z", "impulse", "joint_impulse", "friction_impulse", *Account._fields), 0
    )
    if not program.problem.jointed:
        numbers |= {"joint_impulse": None, "joint_residual": None}
    if not program.problem.rubs:
        numbers |= {"friction_impulse": None}
    if not program.scheme.traits.tells_error:
        numbers |= {"error": None}
    if not program.scheme.traits.kinks:
        numbers |= {"failed_by": None}
    one_kind = program.kinds == (IMPACT,)
    of_record: Any = [0] * (len(ImpactRecord._fields) - one_kind)
    events = LocatedImpacts(*of_record) if program.impacts else None
    stopped: Any = None if program.until is None else 0
    timing = Timing.of(program.scheme)
    return jax.tree.structure(
        Solution(**numbers, energy=energy, values=values, timing=timing, events=events, stopped=stopped)
    )
