"""Status of derivatives across jumps of the force, the mass, or the velocity of a gap in contact,
and across edges that release a contact.

Where a force jumps at a border that the motion crosses, the time of crossing depends on the data, and with it the
motion after that: the derivative of a step that ignores the border neglects this dependence, an error that no step size
cures. Candidates for such borders, the switches, are found in the jaxpr (`switches`), so that a problem without any
costs nothing; whether a function jumps there is decided by its values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.jacobians import generic_change
from ...jaxtools.jaxpr_tools import depends_on
from ...switches.switches import (
    Switches,
    depends_on_data,
    depends_on_path,
    depends_on_place,
    differ,
    force_switches,
    gap_switches,
)
from ..events.jump_search import TouchingRates, jumps_between, search, size_of_terms, size_of_values, steep_at
from ..linearisation import Metric, acceleration, linearise
from ..motion import Motion
from ..problem import Problem
from ..scheme import Scheme, Traits, time_of
from ..stability import STABLE, metric_norm
from ..status import Status, as_status
from ..trials.borders import ROUNDING, levels_and_terms, settle_sides
from ..trials.pieces import Pieces
from .jump_saltation import Passage, StepEnds, add_passage, known_surfaces, may_miss_jump, no_passage, passage
from .tracked import FREE, IMPACT, REBOUND

BEHIND = 1e-6  # of the first step: how far behind a border on which a motion begins its path is looked at
# 2 h times the damping rate: beyond it a force that depends on the velocity is a jump to this step; unstable from 4 on
TURNED = 3.5


def across_jumps(
    problem: Problem,
    scheme: Scheme,
    motion: Motion,
    step: StepEnds,
    impulses: tuple[Array, Array],
    reported: Array,
    again: bool,
) -> tuple[Any, Array] | None:
    """Gives the state at the end of a step the derivative of a jump of the force within the step.

    The path is taken to be straight. In a step with an impact its velocity is that before the impact: the derivative of
    the impact accounts for the change of the force by the velocity's jump.

    Args:
        step: the states at the start and the end of the step.
        impulses: impulses (m,) of the contacts from t0 to either end.
        reported: whether the scheme reported that the equations of its step have no solution on either side of a jump,
            ().
        again: whether a derivative is differentiated once more; the derivative of a jump is not added then,
            only reported as missing.

    Returns:
        the state at the end, and DERIVATIVE_JUMP if the derivative of a jump is not known;
        None (decided at trace time) where nothing can jump.
    """
    before, after = step
    # t0 stands for any time: where nothing can jump no operation is traced
    somewhere = (motion.t0, before.q, before.v, motion.args)
    of_force = force_switches(problem, *somewhere, depends_on_path if motion.by_times else depends_on_data)
    of_gaps = gap_switches(problem, motion.t0, before.q, motion.args)
    if of_force is None and of_gaps is None:
        return None
    of_motion, of_step = motion, step
    before, after, motion, impulses = lax.stop_gradient((before, after, motion, impulses))
    args, impulse = motion.args, impulses[1] - impulses[0]
    struck, touching = _contact(before, after, impulse)
    start = (time_of(motion, before), before.q, before.v)
    end = (jnp.minimum(time_of(motion, after), motion.t1), after.q, jnp.where(struck, before.v, after.v))
    found, new = jnp.zeros((), bool), of_step[1]
    if of_force is not None:
        passed = end
        if hasattr(after, "closed") and depends_on(problem.generalised_force, somewhere, (2,)):
            passed = _led_to(problem, of_force, motion, start, end, jnp.where(struck, 0, impulse), struck)
        start = _off_border(problem, motion, before.n, start, passed, somewhere)
        pieces = None if again else known_surfaces(problem, before, *somewhere)
        if pieces is None:
            found = found | jumps_between(of_force, start, passed, (args,), size_of_values)
        else:
            now = before, after
            jumps, known = _jump_or_passage(pieces, of_force, scheme, motion, now, (start, passed), reported)
            found = found | jumps | may_miss_jump(pieces, motion, now, struck, of_motion.by_times)
            new = add_passage(pieces, of_motion, of_step, lax.stop_gradient(known))
            reported = jnp.zeros((), bool)
    if of_gaps is not None:
        rates = TouchingRates(problem, of_gaps, touching)
        found = found | jumps_between(rates, start, end, (args,), size_of_terms(problem, args))
    return new, as_status(found | reported, Status.DERIVATIVE_JUMP)


def _jump_or_passage(
    pieces: Pieces,
    force: Switches,
    scheme: Scheme,
    motion: Motion,
    step: StepEnds,
    ends: tuple[tuple, tuple],
    reported: Array,
) -> tuple[Array, Passage]:
    """Tests whether the force jumps, or has an infinite slope, within a step so that the derivative is not known, ();
    also returns the `Passage`.

    The passage has ``passed`` if the force jumps and the derivative is known. ``ends``: start and end (t, q, v) of the
    straight path of the step. ``reported`` (): whether the scheme reported that its equations have no solution on
    either side of a jump; the jump may then lie in the next step, and the path is searched to twice its length.
    """
    args = motion.args
    start, end = ends
    nothing = no_passage(pieces, *start, args)
    some = differ(force.sides(*start, args), force.sides(*end, args))

    def searched() -> tuple[Array, Passage]:
        later = tuple(jnp.where(reported, y + (y - x), y) for x, y in zip(start, end, strict=True))
        found, jumps = search(force, start, later, (args,), size_of_values)
        known = passage(pieces, force, scheme, motion, step, found)
        passed = known.passed & jumps
        steep = steep_at(force, found, (args,), size_of_values)
        return ((jumps | reported) & ~passed) | steep, known._replace(passed=passed & some)

    return lax.cond(some | reported, searched, lambda: (jnp.zeros((), bool), nothing))


def steep_status(traits: Traits, problem: Problem, motion: Motion, state: Any) -> Array | None:
    """Returns DERIVATIVE_JUMP for a force so steep in the velocity that it reverses the velocity within a step,
    as smoothed friction may.

    Under such a force a scheme that is explicit in the velocity alternates, or stays where two forces cancel. At rest
    it stays, too, and its derivative alternates and grows: there every force that is too steep for a step counts
    (`unstable` knows the direction of the velocity alone). By an implicit scheme it alternates and shrinks, which takes
    many steps where the force is steep. None (decided at trace time) if the force does not depend on position and
    velocity, or by an implicit scheme not on the velocity.
    """
    q, v, args = state.q, state.v, motion.args
    depends = lambda on: depends_on(problem.generalised_force, (motion.t0, q, v, args), (on,))
    of_velocity = traits.damping and depends(2)
    explicit = traits.explicit > 0
    if not of_velocity and not (explicit and depends(1)):
        return None
    t = motion.time(state.n)
    metric = Metric.at(problem, q, args, t)
    norm = lambda answer: metric_norm(answer, metric.solve(answer))

    def shrinks_slowly() -> Array:
        # a step multiplies by (1 - (1 - theta) z)/(1 + theta z): 1e-5 is left of a change that should vanish after 3 z
        # steps of theta = 1/2
        w = generic_change(v)
        change = jax.jvp(lambda v: problem.generalised_force(t, q, v, args), (v,), (w,))[1]
        z = norm(motion.h * change) / metric_norm(w, metric.times(w))
        kept = ((1 + traits.explicit) * z - 2) / (2 + (1 - traits.explicit) * z)
        return (kept > 0) & (kept ** jnp.asarray(motion.steps, kept.dtype) > 1e-5)

    def at_rest() -> Array:
        # a solution that alternates, as in `unstable`, near this state
        w = generic_change(v)
        along = -motion.h * w, -2 * w if traits.damping else jnp.zeros_like(v)
        _, change = jax.jvp(lambda q, v: problem.generalised_force(t, q, v, args), (q, v), along)
        return norm(motion.h * change) > (STABLE / traits.explicit) * metric_norm(w, metric.times(w))

    rests = jnp.any(jnp.abs(v) <= 64 * jnp.finfo(v.dtype).eps * jnp.max(jnp.abs(v)))
    steep = lax.cond(rests, at_rest if explicit else shrinks_slowly, lambda: jnp.zeros((), bool))
    if of_velocity and explicit:
        # a little beyond rest, where saturating forces have reversed: also for velocities below h that a force of 1
        # gives in a step
        beyond = problem.generalised_force(t, q, -0.1 * v, args) - problem.generalised_force(t, q, v, args)
        steep |= norm((2 / 1.1 * motion.h) * beyond) > TURNED * metric_norm(v, metric.times(v))
    return as_status(steep, Status.DERIVATIVE_JUMP)


def _contact(before: Any, after: Any, impulse: Array) -> tuple[Array, Array]:
    """Finds whether a step has an impact, (), and which contacts (m,) touch in it.

    ``before``, ``after``: the scheme's states at both ends of the step; ``impulse`` (m,): of the contacts in the step.
    """
    touching = impulse > 0
    if hasattr(after, "closed"):  # of a scheme that locates impacts
        return after.latest > before.latest, touching | before.closed | after.closed
    if not hasattr(after, "last"):
        return jnp.zeros((), bool), touching
    struck = jnp.any((after.last == IMPACT) | (after.last == REBOUND))
    return struck, touching | (before.last != FREE) | (after.last != FREE)


def _off_border(
    problem: Problem, motion: Motion, n: Array, start: tuple, end: tuple, operands: tuple[Array, Array, Array, object]
) -> tuple:
    """Returns the ``start`` (t, q, v) of a step's path, of the first step a little further on if the motion
    begins on a border and stays on it.

    It stays on it for all data by which derivatives are taken if these do not move the border's level there: there is
    no jump on the way. ``n`` (): number of the step; ``operands``: (t, q, v, args).
    """
    pieces = motion.by and Pieces.of(problem, *operands)
    if not pieces or all(moved := pieces.moved_at_start(motion.by, *operands)):
        return start

    def looked() -> tuple:
        here = start[0], start[1], start[2], motion.args
        level, terms = levels_and_terms(pieces, pieces.switches.definite(*here), *here)
        on = jnp.abs(level) <= ROUNDING * jnp.finfo(level.dtype).eps * terms
        stays = jnp.any(on) & ~jnp.any(on & moved)
        return tuple(jnp.where(stays, x + BEHIND * (y - x), x) for x, y in zip(start, end, strict=True))

    return lax.cond(n == 0, looked, lambda: start)


def _led_to(
    problem: Problem, force: Switches, motion: Motion, start: tuple, end: tuple, impulse: Array, struck: Array
) -> tuple:
    """Returns the ``end`` (t, q, v) of a step, with another velocity where the scheme may have
    hidden the crossing of a border.

    A scheme that averages the force at both ends of its path may stop before a surface at which the force reverses,
    such as a force sign(v): the two forces cancel, and no state lies beyond the surface. So if no side changes in the
    step, the velocity is replaced by the one that the force at the start, constant over the step, and the contacts'
    ``impulse`` (m,) lead to. In a step with an impact (``struck``, ()) the end is kept.
    """
    args, (t, q, v) = motion.args, start
    metric = Metric.at(problem, q, args, t)
    free, jump = motion.h * acceleration(problem, metric, t, q, v, args), jnp.zeros_like(v)
    if problem.constraints is not None:
        jump = linearise(problem, metric, t, q, args).jump(impulse)
    # at rest force and impulse cancel, up to round-off
    noise = 1e3 * jnp.finfo(v.dtype).eps * (jnp.abs(free) + jnp.abs(jump))
    stays = struck | differ(force.sides(*start, args), force.sides(*end, args))
    velocity = v + jnp.where(jnp.abs(free + jump) > noise, free + jump, 0)
    return (*end[:2], jnp.where(stays, end[2], velocity))


def on_border_at_start(problem: Problem, motion: Motion) -> Array:
    """Returns the status bits of derivatives of a motion that begins on a border,
    for schemes that locate no crossings."""
    (t, q, v, args), none = motion.start, jnp.zeros((), jnp.int32)
    if problem.rubs or problem.listed:
        return none
    pieces = Pieces.of(problem, t, q, v, args, depends_on_place, kinks=False)
    if pieces is None:
        return none
    where, left, span = pieces.start(t, q, v, args), jnp.zeros(pieces.count, bool), jnp.abs(t) + motion.h
    found = settle_sides(pieces, where, t, q, v, jnp.zeros(0, bool), left, jnp.zeros_like(t), span, args, by=motion.by)
    return found.status | found.at_start
