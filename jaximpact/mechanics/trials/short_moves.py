"""The short move from the end of a trial, where a search has almost met an event, onto the event: it carries the
derivatives of the event's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..problem import Problem
from ..status import Status, as_status
from .searches import CLOSE
from .trial import Base, Hold, frozen

# part of the way on which the first move goes: on a border a branch of the force that is not taken may have a pole
NEARLY = 1 - 1e-5
# part of a substep below which rounding would make a jerk
SHORT = 0.01
STEEPEST = 8  # accelerations at its ends by which that of a smooth motion changes in a trial

TrialEnds = tuple[Base, Base]  # where a trial begins, and where it ends


class Parabola(NamedTuple):
    """A motion near its state at a time ``t`` (), with an acceleration (d,)."""

    t: Array
    q: Array
    v: Array
    a: Array

    def after(self, s: Array) -> tuple[Array, Array, Array]:
        """Returns t, q and v a time s later."""
        return self.t + s, self.q + s * (self.v + 0.5 * s * self.a), self.v + s * self.a


def at_impact(
    problem: Problem, hold: Hold, t: Array, ends: TrialEnds, impact: Array, substep: Array, args: object
) -> tuple[Array, Array, Array]:
    """Returns the delay () at which the gap of the contact of an ``impact`` (m,) is zero after the end of a trial that
    began at t and has these ``ends``, and q, v (d,) at that time. The delay is zero where a contact is only just met.
    """
    gap = lambda t, q, v: jnp.sum(jnp.where(impact, problem.gaps(t, q, args), 0))
    return _move(hold, gap, lambda rate: rate < 0, t, ends, substep, args)[0]


def move_to_zero(
    hold: Hold, value: Callable[..., Array], t: Array, ends: TrialEnds, substep: Array, args: object
) -> tuple[Base, Array]:
    """Moves the end of a trial, which began at t and has these ``ends``, along the motion to where a function
    ``value(t, q, v, args)`` is zero; also returns status bits: where the function jumps, the end is not moved, and they
    are DERIVATIVE_JUMP."""
    along = lambda t, q, v: value(t, q, v, args)
    (delay, q, v), smooth = _move(hold, along, lambda rate: rate != 0, t, ends, substep, args)
    end = ends[1]
    return end._replace(elapsed=end.elapsed + delay, q=q, v=v), as_status(~smooth, Status.DERIVATIVE_JUMP)


def _move(
    hold: Hold,
    value: Callable[..., Array],
    crosses: Callable[[Array], Array],
    t: Array,
    ends: TrialEnds,
    substep: Array,
    args: object,
) -> tuple[tuple[Array, Array, Array], Array]:
    """Returns the delay () at which ``value(t, q, v)`` is zero after the end of a trial, with q, v (d,) then, and if it
    is known: a small fraction of ``substep`` (), which searches or roundings leave, with a rate at which the value
    ``crosses`` zero. Else it is zero.

    A first move, of a constant time, is almost to the event; a second one, of almost no time, carries the derivatives:
    those of a parabola are those of the motion only where it begins. The acceleration in the middle of that move
    changes by half of what the jerk changes it, which makes the second derivatives right.
    """
    base, end = ends
    length = end.elapsed - base.elapsed
    near = max(2 * CLOSE, float(jnp.finfo(t.dtype).eps) ** 0.5) * substep

    def correction(motion: Parabola, s: Array) -> tuple[Array, Array]:
        found, rate = jax.jvp(lambda s: value(*motion.after(s)), (s,), (jnp.ones_like(s),))
        known = frozen(crosses(rate) & (jnp.abs(found) <= near * jnp.abs(rate)))
        return jnp.where(known, -found / jnp.where(known, rate, 1), 0), known

    jerk = frozen(_last_jerk(base, end, length, substep))
    motion = Parabola(t + length, end.q, end.v, end.a)
    away, known = correction(motion, jnp.zeros_like(t))
    away = frozen(NEARLY * away)
    t, q, v = motion.after(away)
    motion = Parabola(t, q, v + 0.5 * away**2 * jerk, end.a + away * jerk)
    s = correction(motion, jnp.zeros_like(t))[0]
    middle = hold(*motion.after(0.5 * s), end.closed, end.slack, args)[0]
    motion = motion._replace(a=middle)
    s = s + correction(motion, s)[0]
    _, q, v = motion.after(s)
    return (away + s, q, v), known


def _last_jerk(base: Base, end: Base, length: Array, substep: Array) -> Array:
    """Returns the jerk (d,) at the end of a trial, of the cubic polynomial of velocity; zero in a trial too short for
    one, or where a reset at its end has changed the velocity. It is not exact, and makes up for the end's distance from
    the event."""
    s = jnp.maximum(length, SHORT * substep)
    change = 6 * (base.v - end.v) / s + 2 * base.a + 4 * end.a  # of acceleration in the trial
    smooth = jnp.max(jnp.abs(change)) <= STEEPEST * (jnp.max(jnp.abs(base.a)) + jnp.max(jnp.abs(end.a)))
    return jnp.where((length >= s) & smooth, change / s, 0)
