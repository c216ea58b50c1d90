"""Impacts at which a motion also reaches borders between the pieces of a force (`borders`),
where their order may change the motion."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.jacobians import generic_change
from ...jaxtools.linalg import nonzero
from ...switches.kinds import Sides
from ..events.force_free import opens_by_change
from ..events.jump_search import SLIGHT
from ..problem import Problem
from ..status import Status, as_status
from .borders import jumps_beyond
from .pieces import Pieces, Where
from .trial import frozen

if TYPE_CHECKING:
    from .trial import Base


class Coincidence(NamedTuple):
    """An impact at which borders may be crossed too.

    ``now`` = (t, q, v, args) and the acceleration a (d,), both before the impact; its contacts ``impact`` (m,); the gap
    velocities of all contacts, ``speed`` (m,); and the restitution e, () or (m,).
    """

    now: tuple
    a: Array
    impact: Array
    speed: Array
    e: Array


def jumps_at_impact(problem: Problem, pieces: Pieces, sides: Sides, near: tuple, coincidence: Coincidence) -> Array:
    """Finds the levels (k,) whose borders are reached together with an impact,
    so that the order of both changes the motion to first order.

    ``near`` = (errors (k,) of the levels, error () of times), up to which both happen together. The order does not
    matter where wall and border are the same surface, unless the restitution is zero: the motion then rests on the
    border, on a side that depends on how the force is written.
    """
    (roundoff, within), (now, a, impact, speed, e) = near, coincidence
    t, q, v, args = now
    level, rate = pieces.rates(sides, t, q, v, a, args)
    both = lambda q, v: (pieces.levels(sides, t, q, v, args), problem.gaps(t, q, args))
    by_level, by_gap = jax.jvp(both, (q, v), generic_change((q, v)))[1]
    met = (jnp.abs(level) <= roundoff + within * jnp.abs(rate)) & (rate != 0) & jnp.any(impact)
    delay, of_impact = by_level / jnp.where(met, rate, 1), jnp.sum(jnp.where(impact, by_gap / nonzero(speed), 0))
    rests = jnp.any(impact & (e <= 0))
    return met & (rests | (jnp.abs(delay - of_impact) > SLIGHT * (jnp.abs(delay) + jnp.abs(of_impact))))


def status_at_impact(problem: Problem, pieces: Pieces, where: Where, off: Array, coincidence: Coincidence) -> Array:
    """Returns the status of derivatives for borders reached together with an impact, as `jumps_at_impact`.

    ``where``: the sides until then; ``off`` (): the error of the times of impacts.
    """
    where, off, coincidence = frozen((where, off, coincidence))

    def look() -> Array:
        met = jumps_at_impact(problem, pieces, where.sides, (where.roundoff, off), coincidence)
        here, args = coincidence.now[:3], coincidence.now[3]
        return as_status(jumps_beyond(pieces, where.sides, met & pieces.open, here, args), Status.DERIVATIVE_JUMP)

    return lax.cond(jnp.any(coincidence.impact), look, lambda: jnp.zeros((), jnp.int32))


def status_behind(pieces: Pieces, after: Base, crossed: Array, t: Array, within: Array, args: object) -> Array:
    """Returns DERIVATIVE_EVENTS if a motion has closed contacts without force after crossing a border, which a change
    of data may press or open.

    ``after``: state after the crossing, with q, v, closed and where; ``crossed`` (): whether there was one;
    ``within`` (): error of its time.
    """
    held_on, piece = after.closed & crossed, pieces.on(after.where.sides)
    free = opens_by_change(piece, t, after.q, after.v, after.v, held_on, after.closed, args, within)
    return as_status(free, Status.DERIVATIVE_EVENTS)
