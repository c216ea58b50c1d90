"""`solve`: one motion."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from ..bodies.growth import enlarge, grow
from ..jaxtools.argument_checks import check_choice, check_kind, check_memory, is_traced
from ..jaxtools.progress import progress_bar
from ..jaxtools.threads import call_interruptibly, refuse_fork, wait_interruptibly
from ..jaxtools.trace_context import is_concrete
from ..jaxtools.warnings import remark
from ..mechanics.contact import ContactSolver
from ..mechanics.motion import By, Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.status import Status, as_status
from ..mechanics.user_functions import differentiable
from ..results import Solution
from ..results.save import Save
from .arguments import canonical, check_start, check_until, choose_grid, choose_methods
from .backends import execution_of, listed_lane, one_lane, single_backend
from .canonical_arrays import count_steps
from .chunked_runs import FEWER_ROWS
from .closure_conversion import methods_are_closed, without_closures
from .primitive import bind
from .program import Program, in_order
from .trajectory import run_until_list_full, structure, trajectory

SENSITIVITIES = ("corrected", "discrete", "none", None)


def solve(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: ArrayLike,
    h: ArrayLike | None = None,
    steps: int | None = None,
    t0: ArrayLike = 0.0,
    scheme: Scheme | None = None,
    projection: ContactSolver | None = None,
    args: Any = None,
    e: ArrayLike | None = None,
    friction: ArrayLike | None = None,
    static_friction: ArrayLike | None = None,
    save: Any = "all",
    until: Any = None,
    sensitivity: str | None = None,
    progress: bool = False,
    execution: str = "auto",
) -> Solution:
    """Integrates one motion from (q0, v0) at t0 to t1.

    Steps of size h are made until the last lands at or beyond t1; the last row of the solution is the state at t1,
    interpolated between the two steps around it where t1 - t0 is no multiple of h. One trace serves all numbers of the
    same shapes and the same count of steps.

    Differentiable, in forward and reverse mode, and vmappable with respect to q0, v0, args, e, friction, static_friction, numbers that the problem's
    functions close over and, if ``steps`` is given in place of h, t0 and t1. Traced numbers are not checked. By default derivatives converge, as
    h -> 0, to those of the motion, also across impacts; the status says where they are not to be trusted (`Status`, DERIVATIVE_...).

    Args:
        problem: the mechanical system.
        q0: initial position (d,), admissible: every gap >= 0. Its dtype (float64 or float32) is that of the run.
        v0: initial velocity (d,); where it points out of the admissible set it is projected, with a warning.
        t1: final time > t0 [s].
        h: step [s], 0 < h <= t1 - t0; or ``steps``, their number, and h = (t1 - t0)/steps. `EventDriven` needs neither: its
            steps are then as many as the rows that ``save`` asks for, 200 for "all".
        scheme: `PaoliSchatzman()`, `Maury()`, `MoreauJean()`, `EventCorrected()` or `EventDriven()`. By default `PaoliSchatzman()`;
            `MoreauJean()` with joints, friction or a restitution that is a function; `EventDriven()` with ``reset``; for listed bodies without
            friction `Maury()`.
        projection: `ActiveSet()` (default, except for listed bodies), `ProjectedGradient()` or `ADMM()`.
        args: parameters handed to the problem's functions, any pytree of numbers and arrays.
        e: restitution in [0, 1], in place of the problem's own.
        friction: coefficients of friction >= 0, a number or (m,), in place of the problem's own; only for a problem that states ``slip``.
        static_friction: coefficients >= friction up to which contacts at rest stick, a number or (m,), in place of the problem's own.
        save: "all" steps, "final", every k-th step (k), an array of times, or `Save`.
        until: with `EventDriven`, a function (t, q, v, args) -> () or `Until`: the motion ends where it changes its sign, located to the accuracy of
            the scheme. ``solution.t[-1]`` and the last state have the derivative of the motion; ``solution.stopped`` says whether the function ended
            the motion before t1.
            With schemes of fixed steps `Until.at_rest` or, for listed bodies, `Until.jammed`: the motion ends at a step, without derivatives.
        sensitivity: which derivative the solution has. "corrected": that of the motion, to O(h), which is the discrete map's on smooth pieces and in
            lasting contact, with the saltation at impacts; "discrete": that of the discrete map, exactly (wrong across impacts for every h);
            "none": differentiation raises. The values are the same in all three. By default "corrected" under a transformation of jax, else
            "none", which costs nothing and sets no status bits on derivatives. Second derivatives must have forward mode inside: `EventCorrected`
            and `EventDriven` give those of the motion, "discrete" those of the discrete map; otherwise they raise.
        progress: show a progress bar; not under a transformation of jax.
        execution: "xla", compiled by XLA anew for every number of steps; "native", as native code of a CPU, compiled once for
            the problem and the methods, also within programs that jax transforms; "auto", native where the problem allows
            it, but XLA for one motion of many contacts. Values are equal up to rounding; ``iterations`` of "native" are counted only in steps in
            which a contact may act.

    Returns:
        A `Solution`. Nothing raises inside the computation: see its ``status`` and ``raise_if_failed()``.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, type or value; the message names it and says what to do.

    Reference: the schemes' own files; the limit as h -> 0 is the measure differential inclusion of Paoli (2010), (P1)-(P4).
    """
    refuse_fork()
    scheme, projection = choose_methods(scheme, projection, problem)
    save = Save.of(save)
    steps = choose_grid(scheme, save, h, steps, t0, t1)
    problem, motion = canonical(problem, q0, v0, t0, t1, h, steps, e, args, scheme, friction, static_friction)
    problem, outward = check_start(problem, motion)
    if outward:
        remark(outward, stacklevel=2)
    number = int(steps) if steps is not None else _count(motion)
    motion = motion._replace(steps=np.asarray(number, np.int32))
    program = Program.of(problem, scheme, projection, save, motion, check_until(until, problem, motion))
    times = program.times if program.rows and program.every is None else None
    check_choice("sensitivity", sensitivity, SENSITIVITIES)
    execution = execution_of(execution, problem)
    concrete = is_concrete()
    check_kind("progress", progress, bool | np.bool_, "True or False")
    if progress and not concrete:
        raise ValueError(
            "progress=True shows a bar of a motion whose numbers are known: leave it out under jit, vmap, grad and the like"
        )
    # the rows while they are made, the rows that are returned, and the numbers of the steps
    rows = 2.0 * (program.rows + 1) * program.row_size(motion, problem.count(motion.t0, motion.q0, motion.args))
    check_memory(rows + 4.0 * number, f"save: a motion of {number} steps with {program.rows + 1} rows", FEWER_ROWS)
    untold = "none" if concrete or program.by_step is not None else None
    program = program.replace(sensitivity=sensitivity or untold, reports_progress=bool(progress))
    if concrete and problem.listed:
        call = with_room(program)
    elif concrete:
        call = single_backend(trajectory, program, execution)
    elif methods_are_closed(program) and not problem.listed:
        program, motion = without_closures(program, motion)
        program = program.replace(length=number)
        call = partial(bind, trajectory, structure(program, motion), program, execution=execution)
    else:
        by = By.of(jax.tree.map(is_traced, motion))
        # of bodies in lists with friction a derivative takes matrices of all contacts that act, which a motion without one should not cost
        taken = "none" if problem.listed and problem.slip is not None else "corrected"
        known = program.replace(sensitivity=program.sensitivity or taken, length=number, by=by)
        call = partial(one_lane, known, task=trajectory)
    with differentiable(), progress_bar(number) if progress else nullcontext():
        found = call_interruptibly(lambda: call(motion), number)
        found = found if times is None else with_times_checked(found, times, motion)
        return wait_interruptibly(found) if progress else found


def with_times_checked(found: Solution, times: Any, motion: Motion) -> Solution:
    """Adds INPUT_INVALID where saved ``times`` (k,) that are traced, and cannot raise, do not increase from t0 to t1."""
    if not is_traced(times, motion.t0, motion.t1):
        return found
    wrong = ~in_order(times, motion)
    failed_at = jnp.where(wrong, lax.stop_gradient(motion.t0), found.failed_at)
    return replace(found, status=found.status | as_status(wrong, Status.INPUT_INVALID), failed_at=failed_at)


def with_room(program: Program) -> Callable[[Motion], Solution]:
    """Returns a function that runs a motion with neighbour lists; if a list overflows, it continues from the last valid step with larger lists."""

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


def _count(motion: Motion) -> int:
    if is_traced(motion.h, motion.t0, motion.t1):
        raise ValueError(
            "h, t0 and t1 must be concrete for solve to know the number of steps: under jit, vmap or grad over them, give "
            "steps=N in place of h (for a sweep over h use ensemble)"
        )
    eps = float(jnp.finfo(motion.q0.dtype).eps)
    return int(count_steps(float(motion.t0), float(motion.t1), float(motion.h), eps))
