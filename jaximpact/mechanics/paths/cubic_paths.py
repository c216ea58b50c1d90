"""Cubic paths between events, and where gaps, as parabolas in time, close or nearly close on them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ...jaxtools.linalg import nonzero
from ..friction import tangents, turn_components, turn_onto
from ..linearisation import span
from ..problem import Problem

# Steps within which a singular position of the joints may lie. Near one, a margin (`Joints.margins`) changes by a fraction p in a step, which gives a
# relative error of p^3: 2.3e-3 and 1.9e-3 at p = .14 and .12 for two six-bar linkages that nearly stretch out, whose errors are .09 and .004.
STEEP = 10
TURNS = 1e-6  # fraction of a gap's rate at the start of a path that rounding may leave at a minimum at the end, which the next path would not find either


class Path(NamedTuple):
    """Cubic path from position q and velocity v (d,) at t over a time r (), with acceleration (d,) varying linearly from a to a + ``change``."""

    t: Array
    r: Array
    q: Array
    v: Array
    a: Array
    change: Array
    args: Any

    def along(self, s: Array) -> tuple[Array, Array]:
        """Returns the displacement and velocity (d,) at time s of the path."""
        ratio = s / nonzero(self.r)
        shift = s * (self.v + s * (0.5 * self.a + (ratio / 6) * self.change))
        return shift, self.v + s * (self.a + (0.5 * ratio) * self.change)

    def gaps(self, problem: Problem, s: Array) -> tuple[Array, Array]:
        """Returns the gaps and gap velocities (m,) at time s of the path."""
        gaps = lambda s: problem.gaps(self.t + s, self.q + self.along(s)[0], self.args)
        return jax.jvp(gaps, (s,), (jnp.ones_like(s),))

    def slip(self, problem: Problem, s: Array, frame: Array | None) -> Array:
        """Returns the slip velocities (m, k) at time s of the path; ``frame`` as of `Slip.at`."""
        shift, v = self.along(s)
        t, q = self.t + s, self.q + shift
        slip = problem.slip_velocity(t, q, v, self.args)
        return slip if frame is None else turn_components(turn_onto(frame, tangents(problem, t, q, self.args)), slip)


def first_zero(c: Array, b: Array, a: Array, never: Array) -> Array:
    """Returns the first s >= 0 at which c + b s + a s^2 falls through zero, a negative c counting as zero; ``never`` where it does not fall."""
    c = jnp.maximum(c, 0)
    inward = b < 0
    root = jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0))
    falls = ~inward & (a < 0)
    first = jnp.where(inward, 2 * c / jnp.where(inward, root - b, 1), (b + root) / jnp.where(falls, -2 * a, 1))
    return jnp.where(inward | falls, first, never)


def double_crossing(taylor: tuple[Array, Array, Array], r: Array, closed: Array, allowed: Array) -> Array:
    """Returns the mask of gaps (m,) c + b s + a s^2 that close and open again within a path over a time r, so that they are open at its end.

    ``taylor``: c, b, a (m,). The mask is false for ``closed`` contacts (m,), and where the minimum is not below zero by more than the round-off
    ``allowed`` (m,).
    """
    c, b, a = taylor
    c = jnp.maximum(c, 0)
    return ~closed & (b < 0) & (a > 0) & (b + 2 * a * r > 0) & (c * a - 0.25 * b * b < -allowed * a)


def near_grazing(taylor: tuple[Array, Array, Array], r: Array, h: Array, closed: Array, allowed: Array) -> Array:
    """Returns the mask of gaps (m,) c + b s + a s^2 whose minimum within a path over a time r is too near zero for h to decide whether they close.

    The minimum is that near if the gap closes at a speed below 2 h times its acceleration 2 a, or misses zero by as little. Gaps that open from the
    start, up to the round-off of gap velocities that follows from the round-off ``allowed`` (m,) of gaps, do not count; nor do ``closed`` contacts
    (m,).
    """
    c, b, a = taylor
    return (
        ~closed
        & (b < -16 * allowed / span(h, c.dtype))
        & (a > 0)
        & (b + 2 * a * r >= TURNS * b)
        & (jnp.abs(c * a - 0.25 * b * b) <= (2 * h * a) ** 2)
    )
