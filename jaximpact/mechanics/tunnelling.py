"""Steps that lead straight through an obstacle: a gap that is open at both ends of a step and closed between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..jaxtools.derivative_rules import without_derivative
from .linearisation import Metric, is_flat, jacobian
from .problem import Problem
from .switches import gap_switches

STEEP = 0.125  # of what its normal could change a gap over the step: along a surface, or past an edge, a step changes it by less
APART = 0.5  # cosine between the normals at the ends of a step, below which they point apart: 60 degrees
# the same at an impact: from 18 degrees on, half a radius of a disk, the directions of rebounds are off by half a radian (PaoliSchatzman)
TURNED = 0.95
PLACES = 4  # looked at along a step
MANY = 32  # contacts from which only those are looked at that may matter,
SET = 8  # so many at once
ROUNDING = 1e3  # units of rounding of the gaps


class Way(NamedTuple):
    """The way of a step: its time and length (), start and displacement (d,), and args. It is straight, or a parabola to whose
    displacement at a share s of the step ``bend`` (d,) adds s (1 - s) times itself."""

    t: Array
    h: Array
    q: Array
    shift: Array
    args: Any
    bend: Array | None = None

    def at(self, s: Array) -> tuple[Array, Array]:
        """Time and position (1 + d,) after a share s () of the step, and their rates by s."""
        start, step = jnp.concatenate([self.t[None], self.q]), jnp.concatenate([self.h[None], self.shift])
        if self.bend is None:
            return start + s * step, step
        bend = jnp.concatenate([jnp.zeros_like(self.t)[None], self.bend])
        return start + s * (step + (1 - s) * bend), step + (1 - 2 * s) * bend


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
    t, h, q, shift, args, bend = way
    after = lambda h, shift: sum(jax.jvp(lambda t, q: problem.gaps(t, q, args), (t, q), (h, shift)))
    closes = after(h, shift) < 0
    if bend is not None:
        # a parabola stays within the triangle of its ends and the point where their tangents meet
        closes |= after(0.5 * h, 0.5 * (shift + bend)) < 0
    return jnp.any(closes)


def loses_the_gap(problem: Problem, way: Way, acting: Array) -> Array:
    """Whether a gap is not to be followed along the ``way`` of a step, (), on which contacts ``acting`` (m,) had impulses.

    It leads through an obstacle: a gap falls steeply at its start, rises steeply at its end, the normals there point apart, and the gap
    is closed between them. Looked for by turns where the tangents meet, the place of a corner, and where the rate vanishes if it is
    linear, the place of a square's minimum. Of several gaps it is the one whose tangents meet lowest. Or it turns the normal of a contact
    that acts, whose impulse then has one of many directions.
    """
    return without_derivative(lambda operands: _loses_the_gap(problem, *operands), (way, acting))


def _loses_the_gap(problem: Problem, way: Way, acting: Array) -> Array:
    t, q, args = way.t, way.q, way.args
    gaps = lambda x: problem.gaps(x[0], x[1:], args)

    def end(s: Array) -> tuple[Array, Array]:
        """Gaps (m,) and their rates."""
        x, step = way.at(s)
        return jax.jvp(gaps, (x,), (step,))

    zero = jnp.zeros_like(t)
    (before, falling), (after, rising) = end(zero), end(zero + 1)
    corner, kinks = (falling < 0) & (rising > 0), gap_switches(problem, t, q, args) is not None
    sharp, turned = _turns(problem, way, corner if kinks else corner | acting)
    turns = corner & sharp
    through, which = lax.cond(
        jnp.any(turns),
        lambda: _closes_between(gaps, way, (before, falling), (after, rising), turns),
        lambda: (jnp.zeros((), bool), turns),
    )
    # past a kink a normal turns at once, which is no curvature, and a body that slides over an edge cuts it short by a part of its step
    if kinks:
        return through & ~jnp.any(acting & which)
    return through | jnp.any(acting & turned)


def _closes_between(gaps: Callable, way: Way, start: tuple, end: tuple, turns: Array) -> tuple[Array, Array]:
    """Whether the gap that ``turns`` (m,) on the way and whose tangents meet lowest is closed there, (), and which it is, (m,).

    ``start``, ``end``: gaps (m,) and their rates there.
    """
    (before, falling), (after, rising), zero = start, end, jnp.zeros_like(way.t)
    lowest = before + falling * (rising - after + before) / jnp.where(turns, rising - falling, 1)
    which = jnp.arange(len(lowest)) == jnp.argmin(jnp.where(turns, lowest, jnp.inf))
    one = lambda values: jnp.sum(jnp.where(which, values, 0))

    def look(k: Array, now: tuple) -> tuple:
        (s, f, r), (s_end, f_end, r_end), least = now
        meet = (r_end * s_end - r * s - f_end + f) / (r_end - r)
        vanish = s - r * (s_end - s) / (r_end - r)
        place = jnp.clip(jnp.where(k % 2 == 0, meet, vanish), s, s_end)
        x, step = way.at(place)
        gap, rate = map(one, jax.jvp(gaps, (x,), (step,)))
        low, high = ((place, gap, rate), (s_end, f_end, r_end)), ((s, f, r), (place, gap, rate))
        return *jax.tree.map(partial(jnp.where, rate < 0), low, high), jnp.where(gap < least, gap, least)

    ends = (zero, one(before), one(falling)), (zero + 1, one(after), one(rising))
    least = lax.fori_loop(0, PLACES, look, (*ends, one(after)))[2]
    rounding = ROUNDING * jnp.finfo(zero.dtype).eps * one(jnp.abs(before) + jnp.abs(after) + jnp.abs(rising - falling))
    return least < -rounding, which


def _turns(problem: Problem, way: Way, among: Array) -> tuple[Array, Array]:
    """Masks (m,) of the contacts ``among`` (m,) whose normals point apart at the ends of a way that leads against the first and along the
    second; and of those whose normals turn further than one impulse stands for. Of many contacts one set after the other."""
    metric = Metric.at(problem, way.q, way.args, way.t)
    inner = lambda a, b: jnp.sum(a * metric.solve(b.T).T, axis=1)

    def normals(s: float, rows: Array | None) -> tuple[Array, Array]:
        """Normals (k, d) of length 1 in the metric M^-1, and the rate (d,) of the position."""
        x, step = way.at(jnp.full_like(way.t, s))
        gradient = jacobian(problem, x[0], x[1:], way.args, rows)[1]
        length = inner(gradient, gradient)
        return gradient / jnp.sqrt(jnp.where(length > 0, length, 1))[:, None], step[1:]

    def compare(rows: Array | None) -> tuple[Array, Array]:
        (first, inward), (second, outward) = normals(0.0, rows), normals(1.0, rows)
        most = jnp.maximum(jnp.abs(first) @ jnp.abs(inward), jnp.abs(second) @ jnp.abs(outward))
        steep = (first @ inward < -STEEP * most) & (second @ outward > STEEP * most)
        cosine = inner(first, second)
        return steep & (cosine < APART), cosine < TURNED

    if len(among) <= MANY:
        return compare(None)

    def body(now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, *found = now
        rows = lax.top_k(left.astype(jnp.float32), SET)[1]
        put = lambda x, new: x.at[rows].set(jnp.where(left[rows], new, x[rows]), unique_indices=True)
        return left.at[rows].set(False, unique_indices=True), *map(put, found, compare(rows))

    none = jnp.zeros_like(among)
    _, sharp, turned = lax.while_loop(lambda now: jnp.any(now[0]), body, (among, none, none))
    return sharp, turned
