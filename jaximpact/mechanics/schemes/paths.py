"""Cubic paths between events, and where gaps that are parabolas nearly close on them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..linearisation import span
from ..problem import Problem
from .events import nonzero

# Steps within which a singular position of the joints may lie. What is left of a row there changes by a part p of itself in a step, which leaves an
# error of p^3 of what moves: 2.3e-3 and 1.9e-3 at p = .14 and .12 of two six-bar linkages that nearly stretch out, which are off by .09 and .004.
STEEP = 10
TURNS = 1e-6  # of the rate of a gap at the start of a path: what rounding leaves of it at a minimum at the very end, which the next path does not have either


class Path(NamedTuple):
    """Cubic path from (q, v) at t over a time r, with acceleration varying linearly from a to a + change."""

    t: Array
    r: Array
    q: Array
    v: Array
    a: Array
    change: Array
    args: Any

    def along(self, s: Array) -> tuple[Array, Array]:
        """Displacement and velocity (d,) at time s of the path."""
        ratio = s / nonzero(self.r)
        shift = s * (self.v + s * (0.5 * self.a + (ratio / 6) * self.change))
        return shift, self.v + s * (self.a + (0.5 * ratio) * self.change)

    def gaps(self, problem: Problem, s: Array) -> tuple[Array, Array]:
        """Gaps and gap velocities (m,) at time s of the path."""
        gaps = lambda s: problem.gaps(self.t + s, self.q + self.along(s)[0], self.args)
        return jax.jvp(gaps, (s,), (jnp.ones_like(s),))

    def slip(self, problem: Problem, s: Array) -> Array:
        """Slips (m, k) at time s of the path."""
        shift, v = self.along(s)
        return problem.slip_velocity(self.t + s, self.q + shift, v, self.args)


def first_zero(c: Array, b: Array, a: Array, never: Array) -> Array:
    """When c + b s + a s^2 falls through zero, with c cut off below at zero; ``never`` where it does not fall."""
    c = jnp.maximum(c, 0)
    inward = b < 0
    root = jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0))
    falls = ~inward & (a < 0)
    first = jnp.where(inward, 2 * c / jnp.where(inward, root - b, 1), (b + root) / jnp.where(falls, -2 * a, 1))
    return jnp.where(inward | falls, first, never)


def double_crossing(taylor: tuple[Array, Array, Array], r: Array, closed: Array, allowed: Array) -> Array:
    """Gaps (m,) c + b s + a s^2 that close and open again within a path of length r, which its end does not show."""
    c, b, a = taylor
    c = jnp.maximum(c, 0)
    return ~closed & (b < 0) & (a > 0) & (b + 2 * a * r > 0) & (c * a - 0.25 * b * b < -allowed * a)


def near_grazing(taylor: tuple[Array, Array, Array], r: Array, h: Array, closed: Array, allowed: Array) -> Array:
    """Gaps (m,) c + b s + a s^2 whose minimum within a path of length r is too near zero for h to decide whether they close.

    If they close, their speed is below 2 h 2 a. A gap that opens, up to the round-off of gap velocities, has no minimum.
    """
    c, b, a = taylor
    return (
        ~closed
        & (b < -16 * allowed / span(h, c.dtype))
        & (a > 0)
        & (b + 2 * a * r >= TURNS * b)
        & (jnp.abs(c * a - 0.25 * b * b) <= (2 * h * a) ** 2)
    )
