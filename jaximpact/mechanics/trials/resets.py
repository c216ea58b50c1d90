"""Resets: jumps of the state where a motion crosses a surface that its problem states.

The state before a reset carries the derivative of the crossing time, so that the state after it follows by the chain rule.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ..problem import Problem
from ..status import Status, as_status
from .borders import meet_border
from .pieces import Pieces
from .trial import Base, Hold, frozen, gap_rates


def cross_border(
    pieces: Pieces, hold: Hold, switched: Array, t: Array, base: Base, flown: Base, substep: Array, args: Any
) -> tuple[Base, Array, Array]:
    """Puts the end ``flown`` of a trial on the border of the level that has ``switched`` (k,), and applies the reset there if the problem states one.

    The trial began at time t from ``base``. Returns the base after both, whether there was a reset (), and status bits.
    """
    at, met = meet_border(pieces, hold, switched, t + (flown.elapsed - base.elapsed), flown, substep, args)
    if pieces.problem.reset is None:
        return at, jnp.zeros((), bool), met
    at, has, status = _reset(pieces, switched, t + (at.elapsed - base.elapsed), at, args)
    return at, has, met | status


def _reset(pieces: Pieces, switched: Array, t: Array, flown: Base, args: Any) -> tuple[Base, Array, Array]:
    """Applies the reset of the surfaces that have ``switched`` (k,): returns the base after it, whether there was one (), and status bits.

    Surfaces that are crossed at the same time reset the state one after the other, in the order of their numbers; the derivative is then
    not defined. A contact that the reset has opened is no longer closed.
    """
    where, problem, none = flown.where, pieces.problem, jnp.zeros((), jnp.int32)
    level, rate = frozen(pieces.rates(where.sides, t, flown.q, flown.v, flown.a, args))
    together = (level <= where.allowed) & (rate < 0)
    crossed = ((switched | together) & ~pieces.slid(where))[pieces.stated]
    # only where the search has found a crossing: a motion that begins on a border has not crossed it
    crossed = crossed & jnp.any(switched)

    def behind() -> tuple[Base, Array]:
        still = flown.allowed, flown.still
        q, v, closed, status = state_behind(problem, crossed, t, flown.q, flown.v, flown.closed, still, args)
        low = None if flown.low is None else jnp.zeros_like(flown.low)
        return flown._replace(q=q, v=v, low=low, closed=closed), status

    base, status = lax.cond(jnp.any(crossed), behind, lambda: (flown, none))
    return base, jnp.any(crossed), status


def state_behind(
    problem: Problem,
    crossed: Array,
    t: Array,
    q: Array,
    v: Array,
    closed: Array,
    still: tuple[Array, Array],
    args: Any,
) -> tuple[Array, Array, Array, Array]:
    """Applies the resets of the surfaces that are ``crossed`` (k,), one after the other.

    Returns q, v (d,) after them; the ``closed`` contacts (m,) whose gaps and gap velocities are still zero, up to the two tolerances ``still``
    (m,); and status bits.
    """
    for k in range(len(crossed)):
        found = problem.state_behind(k, t, q, v, args)
        q, v = (jnp.where(crossed[k], x, y) for x, y in zip(found, (q, v), strict=True))
    gap, speed = gap_rates(problem, *frozen((t, q, v, args)))
    stays = (gap <= still[0]) & (jnp.abs(speed) <= still[1])
    status = as_status(jnp.sum(crossed) > 1, Status.DERIVATIVE_EVENTS)
    return q, v, closed & stays, status | as_status(jnp.any(gap < -still[0]), Status.GAP_UNRESOLVED)
