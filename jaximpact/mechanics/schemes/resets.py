"""Resets: jumps of the state where a motion crosses a surface that its problem states.

The state before one has the derivative of its time, so that the one behind it has it by the reset's own derivative.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ..problem import Problem
from ..status import Status, as_status
from .borders import meet_border
from .pieces import Pieces
from .trials import Base, Hold, frozen, gap_rates


def cross_border(
    pieces: Pieces, hold: Hold, switched: Array, t: Array, base: Base, flown: Base, substep: Array, args: Any
) -> tuple[Base, Array, Array]:
    """Behind a trial that began at time t from a base: on the border of what has ``switched`` (k,), behind its reset if it has one; whether it has,
    (), and status."""
    at, met = meet_border(pieces, hold, switched, t + (flown.elapsed - base.elapsed), flown, substep, args)
    if pieces.problem.reset is None:
        return at, jnp.zeros((), bool), met
    at, has, status = _reset(pieces, switched, t + (at.elapsed - base.elapsed), at, args)
    return at, has, met | status


def _reset(pieces: Pieces, switched: Array, t: Array, flown: Base, args: Any) -> tuple[Base, Array, Array]:
    """The base behind the reset of what has ``switched`` (k,), whether there was one, (), and status.

    Surfaces that are crossed at once reset one after the other, as they are numbered; then no derivative is known. A contact that the
    reset has opened is no longer closed.
    """
    where, problem, none = flown.where, pieces.problem, jnp.zeros((), jnp.int32)
    level, rate = frozen(pieces.rates(where.sides, t, flown.q, flown.v, flown.a, args))
    together = (level <= where.allowed) & (rate < 0)
    crossed = ((switched | together) & ~pieces.slid(where))[pieces.stated]
    # none but at a border that was sought: a motion that begins on one has not crossed it
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
    """q, v (d,) behind the resets of the surfaces that are ``crossed`` (k,), one after the other; which of the closed contacts (m,) still are, whose gaps and
    gap velocities are zero up to ``still`` (m,) each; and status."""
    for k in range(len(crossed)):
        found = problem.state_behind(k, t, q, v, args)
        q, v = (jnp.where(crossed[k], x, y) for x, y in zip(found, (q, v), strict=True))
    gap, speed = gap_rates(problem, *frozen((t, q, v, args)))
    stays = (gap <= still[0]) & (jnp.abs(speed) <= still[1])
    status = as_status(jnp.sum(crossed) > 1, Status.DERIVATIVE_SIMULTANEOUS)
    return q, v, closed & stays, status | as_status(jnp.any(gap < -still[0]), Status.PENETRATION_DEEP)
