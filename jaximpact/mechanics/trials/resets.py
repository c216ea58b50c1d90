"""Resets: jumps of the state where a motion crosses a surface that its problem states.

The state before a reset carries the derivative of the crossing time, so that the state after
it follows by the chain rule.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..linearisation import Metric, acceleration
from ..problem import Problem
from ..status import Status, as_status
from .borders import meet_border
from .pieces import Pieces
from .trial import Base, Hold, frozen, gap_rates

LOW = 64  # roundings of a surface's function: flights between two resets that go no further are not followed


def cross_border(
    pieces: Pieces,
    hold: Hold,
    switched: Array,
    t: Array,
    base: Base,
    trial_end: Base,
    substep: Array,
    atol: Array,
    args: object,
) -> tuple[Base, Array, Array]:
    """Puts the end ``trial_end`` of a trial on the border of the level that has ``switched`` (k,), and applies the
    reset there if the problem states one.

    The trial began at time t from ``base``; ``atol`` (): error of levels. Returns the base after both, whether there
    was a reset (), and status bits.
    """
    end, crossed = t + (trial_end.elapsed - base.elapsed), switched & ~pieces.slid(trial_end.where)
    at, met = meet_border(pieces, hold, switched, t, (base, trial_end), substep, args)
    met |= pieces.vanishing(trial_end.where, crossed, end, trial_end.q, trial_end.v, trial_end.a, args)
    at, has, status = reset_at(pieces, switched, t + (at.elapsed - base.elapsed), at, atol, args)
    return at, has, met | status


def reset_at(
    pieces: Pieces, switched: Array, t: Array, trial_end: Base, atol: Array, args: object
) -> tuple[Base, Array, Array]:
    """Applies the reset of the surfaces that have ``switched`` (k,): returns the base after it,
    whether there was one (), and status bits.

    Surfaces that are crossed at the same time reset the state one after the other, in the order of their numbers; the
    derivative is then not defined. A contact that the reset has opened is no longer closed.
    """
    where, problem, none = trial_end.where, pieces.problem, jnp.zeros((), jnp.int32)
    if problem.reset is None:
        return trial_end, jnp.zeros((), bool), none
    level, rate = frozen(pieces.rates(where.sides, t, trial_end.q, trial_end.v, trial_end.a, args))
    together = (level <= where.roundoff) & (rate < 0)
    crossed = ((switched | together) & ~pieces.slid(where))[pieces.stated]
    # only where the search has found a crossing: a motion that begins on a border has not crossed it
    crossed = crossed & jnp.any(switched)

    def behind() -> tuple[Base, Array]:
        still = trial_end.roundoff, trial_end.still
        least = atol + LOW * where.roundoff[pieces.stated], jnp.zeros_like(atol)
        q, v, closed, status = state_behind(
            problem, crossed, t, trial_end.q, trial_end.v, trial_end.closed, still, least, args
        )
        low = None if trial_end.low is None else jnp.zeros_like(trial_end.low)
        return trial_end._replace(q=q, v=v, low=low, closed=closed), status

    base, status = lax.cond(jnp.any(crossed), behind, lambda: (trial_end, none))
    return base, jnp.any(crossed), status


def state_behind(
    problem: Problem,
    crossed: Array,
    t: Array,
    q: Array,
    v: Array,
    closed: Array,
    still: tuple[Array, Array],
    least: tuple[Array, Array],
    args: object,
) -> tuple[Array, Array, Array, Array]:
    """Applies the resets of the surfaces that are ``crossed`` (k,), one after the other.

    Returns q, v (d,) after them; the ``closed`` contacts (m,) whose gaps and gap velocities are still zero, up to the
    two tolerances ``still`` (m,); and status bits. ``least``: height and time of the lowest flight between two
    resets that the scheme follows.
    """
    before = q, v
    for k in range(len(crossed)):
        found = problem.state_behind(k, t, q, v, args)
        q, v = (jnp.where(crossed[k], x, y) for x, y in zip(found, (q, v), strict=True))
    gap, speed = gap_rates(problem, *frozen((t, q, v, args)))
    stays = (gap <= still[0]) & (jnp.abs(speed) <= still[1])
    status = as_status(jnp.sum(crossed) > 1, Status.DERIVATIVE_EVENTS)
    status |= as_status(_accumulate(problem, crossed, t, before, (q, v), least, args), Status.TRIALS_EXHAUSTED)
    return q, v, closed & stays, status | as_status(jnp.any(gap < -still[0]), Status.GAP_UNRESOLVED)


def _accumulate(
    problem: Problem, crossed: Array, t: Array, before: tuple, after: tuple, least: tuple[Array, Array], args: object
) -> Array:
    """Tests whether a motion comes back to a ``crossed`` surface at once after a reset,
    so that resets follow each other without end, ().

    A reset says nothing of what happens then: a wall does, which is a gap. ``before``, ``after``: q and v (d,) at the
    reset; ``least``: as above.
    """
    t, before, after, (height, time), args = lax.stop_gradient((t, before, after, least, args))

    def rates(q: Array, v: Array) -> tuple[Array, Array]:
        """First and second rates (k,) of the surfaces' functions along the motion."""
        a = acceleration(problem, Metric.at(problem, q, args, t), t, q, v, args)
        along = lambda s: problem.switch_values(t + s, q + s * (v + 0.5 * s * a), v + s * a, args)
        zero, one = jnp.zeros_like(t), jnp.ones_like(t)
        return jax.jvp(lambda s: jax.jvp(along, (s,), (one,))[1], (zero,), (one,))

    came = -jnp.sign(rates(*before)[0])
    leaves, turns = (came * x for x in rates(*after))
    fall = jnp.maximum(-turns, 0)
    back = (leaves >= 0) & ((leaves**2 < 2 * fall * height) | (2 * leaves < fall * time))
    return jnp.any(crossed & back)
