"""Status of derivatives across jumps of the force, the mass, or the velocity of a gap in contact.

Where a force jumps on a surface that the motion crosses, the time of crossing depends on the data, and with it everything behind: the
derivative of a step that ignores the surface leaves that out, an error that no step size cures. Candidate surfaces are found in the
jaxpr (`switches`), so that a problem without any pays nothing; whether a function jumps there is decided from its values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..jaxtools.jaxpr_tools import depends_on
from .jump_saltation import Passage, known_surfaces, missed, no_passage, passage, salted
from .jump_search import TouchingRates, jumped, search, size_of_terms, size_of_values
from .linearisation import Metric, acceleration, linearise
from .motion import Motion
from .problem import Problem
from .schemes.base import Scheme, Traits, time_of
from .schemes.crossings import located_pieces
from .schemes.pieces import Pieces
from .schemes.tracked import FREE, IMPACT, REBOUND
from .status import Status, as_status
from .switch_kinds import Sides
from .switches import (
    Switches,
    depends_on_data,
    depends_on_path,
    differ,
    force_switches,
    gap_switches,
)

TURNED = 3.5  # 2 h times the damping rate: beyond it a force that asks for the velocity is a jump to this step; unstable from 4 on


def across_jumps(
    problem: Problem,
    scheme: Scheme,
    motion: Motion,
    step: tuple[Any, Any],
    impulses: tuple[Array, Array],
    told: Array,
    clock: bool,
    again: bool,
) -> tuple[Any, Array] | None:
    """State at the end of a ``step`` between two states, with the derivative of a jump of the force within it, and DERIVATIVE_JUMP if something jumped
    there whose derivative is not known; None where nothing can jump.

    ``impulses`` are the accumulated ones (m,) at both ends; ``told``: whether the scheme itself, that it found no velocity on either side of a jump. Jumps at times that no number of the motion moves count where its ``clock`` is
    differentiated alone; ``again``: a derivative is differentiated, for which no saltation is known. The way is taken to be straight; at an impact
    the velocity, which then jumps past what is between, is the one before: that the force is another one afterwards is known to the derivative of an impact.
    """
    before, after = step
    # t0 stands for any time: where nothing can jump no operation is made
    somewhere = (motion.t0, before.q, before.v, motion.args)
    if scheme.traits.locates and getattr(before, "where", None) is not None:
        return _beside_located(problem, scheme, motion, step, impulses, told, clock)
    of_force = force_switches(problem, *somewhere, depends_on_path if clock else depends_on_data)
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
        pieces = None if again else known_surfaces(problem, before, *somewhere)
        if pieces is None:
            found = found | jumped(of_force, start, passed, (args,), size_of_values)
        else:
            now = before, after
            jumps, known = _jump_or_passage(pieces, of_force, scheme, motion, now, (start, passed), told)
            found = found | jumps | missed(pieces, motion, now, struck, clock)
            new = salted(pieces, of_motion, of_step, lax.stop_gradient(known))
            told = jnp.zeros((), bool)
    if of_gaps is not None:
        found = found | jumped(TouchingRates(of_gaps, touching), start, end, (args,), size_of_terms(problem, args))
    return new, as_status(found | told, Status.DERIVATIVE_JUMP)


def _beside_located(
    problem: Problem,
    scheme: Scheme,
    motion: Motion,
    step: tuple[Any, Any],
    impulses: tuple[Array, Array],
    told: Array,
    clock: bool,
) -> tuple[Any, Array] | None:
    """As `across_jumps`, of a step whose states know on which pieces of the force they are: of what jumps within those pieces."""
    before, after = step
    pieces = located_pieces(problem, motion.t0, before.q, before.v, motion.args)
    assert pieces is not None
    plain = before._replace(where=None), after._replace(where=None)

    def bits(sides: Sides) -> Array | None:
        found = across_jumps(pieces.on(sides), scheme, motion, plain, impulses, told, clock, again=True)
        return None if found is None else found[1]

    if jax.eval_shape(bits, before.where.sides) is None:
        return None
    found = lax.map(bits, jax.tree.map(lambda *x: jnp.stack(x), before.where.sides, after.where.sides))
    return after, found[0] | found[1]


def _jump_or_passage(
    pieces: Pieces,
    force: Switches,
    scheme: Scheme,
    motion: Motion,
    step: tuple[Any, Any],
    way: tuple[tuple, tuple],
    told: Array,
) -> tuple[Array, Passage]:
    """Whether the force jumps on the ``way`` of a step between two states with a derivative that is not known, or the passage with one that is.

    Where a scheme has ``told`` that it found no velocity on either side of a jump, that is passed in this step or in the next one.
    """
    args = motion.args
    start, end = way
    nothing = no_passage(pieces, *start, args)
    some = differ(force.sides(*start, args), force.sides(*end, args))

    def searched() -> tuple[Array, Passage]:
        later = tuple(jnp.where(told, y + (y - x), y) for x, y in zip(start, end, strict=True))
        found, jumps = search(force, start, later, (args,), size_of_values)
        known = passage(pieces, force, scheme, motion, step, found)
        passed = known.passed & jumps
        return (jumps | told) & ~passed, known._replace(passed=passed & some)

    return lax.cond(some | told, searched, lambda: (jnp.zeros((), bool), nothing))


def steep_status(traits: Traits, problem: Problem, motion: Motion, state: Any) -> Array | None:
    """Status bit of a force that reverses with the velocity within one step, such as smoothed friction; None if that is impossible.

    A scheme that is explicit in the velocity then alternates, or stays where two forces cancel.
    """
    q, v, args = state.q, state.v, motion.args
    of_velocity = depends_on(problem.generalised_force, (motion.t0, q, v, args), (2,))
    if traits.explicit <= 0 or not traits.damping or not of_velocity:
        return None
    t = motion.time(state.n)
    metric = Metric.at(problem, q, args, t)
    # a little beyond rest, where forces that saturate have done so: what a force of 1 makes in a step, v < h, is seen
    beyond = problem.generalised_force(t, q, -0.1 * v, args) - problem.generalised_force(t, q, v, args)
    answer = (2 / 1.1 * motion.h) * beyond
    return as_status(answer @ metric.solve(answer) > TURNED**2 * (v @ metric.times(v)), Status.DERIVATIVE_JUMP)


def _contact(before: Any, after: Any, impulse: Array) -> tuple[Array, Array]:
    """Whether a step has an impact, (), and which contacts (m,) touch in it, from the states of the scheme."""
    touching = impulse > 0
    if hasattr(after, "closed"):  # of a scheme that locates impacts
        return after.latest > before.latest, touching | before.closed | after.closed
    if not hasattr(after, "last"):
        return jnp.zeros((), bool), touching
    struck = jnp.any((after.last == IMPACT) | (after.last == REBOUND))
    return struck, touching | (before.last != FREE) | (after.last != FREE)


def _led_to(
    problem: Problem, force: Switches, motion: Motion, start: tuple, end: tuple, impulse: Array, struck: Array
) -> tuple:
    """End of a step, or, where the step passes no switch, the state with the velocity to which the force at its start leads.

    A scheme that asks the force at both ends of its path may stay before a surface at which that turns round, as friction does: the two
    forces cancel, and no state is beyond.
    """
    args, (t, q, v) = motion.args, start
    metric = Metric.at(problem, q, args, t)
    free, jump = motion.h * acceleration(problem, metric, t, q, v, args), jnp.zeros_like(v)
    if problem.constraints is not None:
        jump = linearise(problem, metric, t, q, args).jump(impulse)
    # at rest they cancel, up to round-off
    noise = 1e3 * jnp.finfo(v.dtype).eps * (jnp.abs(free) + jnp.abs(jump))
    stays = struck | differ(force.sides(*start, args), force.sides(*end, args))
    velocity = v + jnp.where(jnp.abs(free + jump) > noise, free + jump, 0)
    return (*end[:2], jnp.where(stays, end[2], velocity))
