"""Steps that lead straight through an obstacle: a gap that is open at both ends of a step and closed between them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .linearisation import Metric, is_flat, jacobian
from .problem import Problem
from .switches import gap_switches

STEEP = 0.125  # of what its normal could change a gap over the step: along a surface, or past an edge, a step changes it by less
APART = 0.5  # cosine between the normals at the ends of a step, below which they point apart: 60 degrees
# the same at an impact: from 18 degrees on, half a radius of a disk, the directions of rebounds are off by half a radian (PaoliSchatzman)
TURNED = 0.95
PLACES = 4  # looked at along a step
ROUNDING = 1e3  # units of rounding of the gaps

Way = tuple[Array, Array, Array, Array, Any]  # time, length, start (d,) and displacement (d,) of a step, and args


def looks_for_tunnelling(problem: Problem, t: Array, q: Array, args: Any) -> bool:
    """Whether a straight step could close and open a gap: not where all gaps are affine. Not asked of listed bodies, which have a bound
    on how far they move in a step."""
    return (
        problem.constraints is not None
        and not (problem.is_local or problem.listed)
        and not is_flat(problem, t, q, args)
    )


def may_tunnel(problem: Problem, way: Way) -> Array:
    """Whether the tangent of a gap at the start of a step closes within it, (): true of every obstacle that is convex along the step."""
    t, h, q, shift, args = way
    gap, change = jax.jvp(lambda t, q: problem.gaps(t, q, args), (t, q), (h, shift))
    return jnp.any(gap + change < 0)


def loses_the_gap(problem: Problem, way: Way, acting: Array) -> Array:
    """Whether a gap is not to be followed along the straight ``way`` of a step, (), on which contacts ``acting`` (m,) had impulses.

    It leads through an obstacle: a gap falls steeply at its start, rises steeply at its end, the normals there point apart, and the gap
    is closed between them. Looked for by turns where the tangents meet, the place of a corner, and where the rate vanishes if it is
    linear, the place of a square's minimum. Of several gaps it is the one whose tangents meet lowest. Or it turns the normal of a contact
    that acts, whose impulse then has one of many directions.
    """
    t, h, q, shift, args = way
    x, step = jnp.concatenate([t[None], q]), jnp.concatenate([h[None], shift])
    gaps = lambda x: problem.gaps(x[0], x[1:], args)
    metric = Metric.at(problem, q, args, t)
    inner = lambda a, b: jnp.sum(a * metric.solve(b.T).T, axis=1)

    def end(x: Array) -> tuple[Array, Array, Array]:
        """Gaps (m,), their rates, and the normals (m, d), of length 1 in the metric M^-1."""
        gap, rate = jax.jvp(gaps, (x,), (step,))
        gradient = jacobian(problem, x[0], x[1:], args)[1]
        length = inner(gradient, gradient)
        return gap, rate, gradient / jnp.sqrt(jnp.where(length > 0, length, 1))[:, None]

    (before, falling, first), (after, rising, second) = end(x), end(x + step)
    most = jnp.maximum(jnp.abs(first) @ jnp.abs(shift), jnp.abs(second) @ jnp.abs(shift))
    steep = (first @ shift < -STEEP * most) & (second @ shift > STEEP * most)
    cosine = inner(first, second)
    turns = steep & (cosine < APART) & (falling < 0) & (rising > 0)
    lowest = before + falling * (rising - after + before) / jnp.where(turns, rising - falling, 1)
    which = jnp.arange(len(lowest)) == jnp.argmin(jnp.where(turns, lowest, jnp.inf))
    one = lambda values: jnp.sum(jnp.where(which, values, 0))

    def look(k: Array, now: tuple) -> tuple:
        (s, f, r), (s_end, f_end, r_end), least = now
        meet = (r_end * s_end - r * s - f_end + f) / (r_end - r)
        vanish = s - r * (s_end - s) / (r_end - r)
        place = jnp.clip(jnp.where(k % 2 == 0, meet, vanish), s, s_end)
        gap, rate = map(one, jax.jvp(gaps, (x + place * step,), (step,)))
        low, high = ((place, gap, rate), (s_end, f_end, r_end)), ((s, f, r), (place, gap, rate))
        return *jax.tree.map(partial(jnp.where, rate < 0), low, high), jnp.where(gap < least, gap, least)

    zero = jnp.zeros_like(h)
    ends = (zero, one(before), one(falling)), (zero + 1, one(after), one(rising))
    least = lax.fori_loop(0, PLACES, look, (*ends, one(after)))[2]
    rounding = ROUNDING * jnp.finfo(q.dtype).eps * one(jnp.abs(before) + jnp.abs(after) + jnp.abs(rising - falling))
    through = jnp.any(turns) & (least < -rounding)
    # past a kink a normal turns at once, which is no curvature, and a body that slides over an edge cuts it short by a part of its step
    if gap_switches(problem, t, q, args) is not None:
        return through & ~jnp.any(acting & which)
    return through | jnp.any(acting & (cosine < TURNED))
