"""`solve`: one motion."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..bodies.growth import enlarge, grow
from ..jaxtools.argument_checks import check_choice, check_kind, check_memory, is_traced
from ..jaxtools.progress import progress_bar
from ..jaxtools.threads import call_interruptibly, wait_interruptibly
from ..jaxtools.trace_context import is_concrete
from ..mechanics.motion import By, Motion
from ..mechanics.status import Status, as_status
from ..mechanics.user_functions import differentiable
from ..results import Solution
from .backends import execution_of, listed_lane, one_lane, single_backend
from .call import Call, for_one
from .chunked_runs import FEWER_ROWS
from .closure_conversion import methods_are_closed, without_closures
from .primitive import bind
from .program import Program, in_order
from .trajectory import run_until_list_full, structure, trajectory

SENSITIVITIES = ("corrected", "discrete", "none", None)


def solve(call: Call, sensitivity: str | None = None) -> Solution:
    """Integrates one motion: see `jaximpact.solve`."""
    program, motion = for_one(call)
    problem, number = program.problem, int(motion.steps)
    times = program.times if program.rows and not program.every else None
    check_choice("sensitivity", sensitivity, SENSITIVITIES)
    execution = execution_of(call.execution, problem)
    concrete, progress = is_concrete(), call.progress
    check_kind("progress", progress, bool | np.bool_, "True or False")
    if progress and not concrete:
        raise ValueError(
            "progress=True shows a bar of a motion whose numbers are known: leave it out under jit, vmap, grad and the "
            "like"
        )
    # the rows while they are made, the rows that are returned, and the numbers of the steps
    rows = 2.0 * (program.rows + 1) * program.row_size(motion, problem.count(motion.t0, motion.q0, motion.args))
    check_memory(rows + 4.0 * number, f"save: a motion of {number} steps with {program.rows + 1} rows", FEWER_ROWS)
    untold = "none" if concrete or program.end.by_step else None
    program = program.replace(sensitivity=sensitivity or untold, reports_progress=bool(progress))
    if concrete and problem.listed:
        run = with_room(program)
    elif concrete:
        run = single_backend(trajectory, program, execution)
    elif methods_are_closed(program) and not problem.listed:
        program, motion = without_closures(program, motion)
        program = program.replace(length=number)
        run = partial(bind, trajectory, structure(program, motion), program, execution=execution)
    else:
        by = By.of(jax.tree.map(is_traced, motion))
        # of bodies in lists with friction a derivative takes matrices of all contacts that act, which a motion without
        # one should not cost
        taken = "none" if problem.listed and problem.rubs else "corrected"
        known = program.replace(sensitivity=program.sensitivity or taken, length=number, by=by)
        run = partial(one_lane, known, task=trajectory)
    with differentiable(), progress_bar(number) if progress else nullcontext():
        found = call_interruptibly(lambda: run(motion), number)
        found = found if times is None else with_times_checked(found, times, motion)
        return wait_interruptibly(found) if progress else found


def with_times_checked(found: Solution, times: Array | np.ndarray, motion: Motion) -> Solution:
    """Adds INPUT_INVALID where saved ``times`` (k,) that are traced, and cannot raise,
    do not increase from t0 to t1."""
    if not is_traced(times, motion.t0, motion.t1):
        return found
    wrong = ~in_order(times, motion)
    failed_at = jnp.where(wrong, lax.stop_gradient(motion.t0), found.failed_at)
    return replace(found, status=found.status | as_status(wrong, Status.INPUT_INVALID), failed_at=failed_at)


def with_room(program: Program) -> Callable[[Motion], Solution]:
    """Returns a function that runs a motion with neighbour lists; if a list overflows, it continues from the last valid
    step with larger lists."""

    def call(motion: Motion) -> Solution:
        known = program
        found, carry, full = listed_lane(known, motion, None, task=run_until_list_full)
        while full:
            if carry[2].status & int(Status.NEIGHBOURS_LOST):  # at its start
                problem, carry = enlarge(known.problem, motion.q0), None
            else:
                problem, carry = grow(known.problem, motion, carry)
            known = known.replace(problem=problem)
            found, carry, full = listed_lane(known, motion, carry, task=run_until_list_full)
        return found

    return call
