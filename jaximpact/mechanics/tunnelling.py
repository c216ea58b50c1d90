"""Steps that lead straight through an obstacle: a gap that is open at both ends of a step and closed between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..jaxtools.derivative_rules import without_derivative
from ..switches.switches import gap_switches
from .linearisation import Metric
from .problem import Problem

# fraction of the largest change of a gap over such a displacement: along a surface, or past an edge, a step changes it
# by less
STEEP = 0.125
APART = 0.5  # cosine between the normals at the ends of a step, below which they point apart: 60 degrees
# the same at an impact: from 18 degrees on, half a radius of a disk, the directions of rebounds are off by half a
# radian (PaoliSchatzman)
TURNED = 0.95
PLACES = 4  # points tested along a step
MANY = 32  # number of contacts above which normals are computed only for those that may matter,
SET = 8  # this many at a time
ROUNDING = 1e3  # units of rounding of the gaps


class StepPath(NamedTuple):
    """Path of a step: time t and duration h (), start q and displacement ``shift`` (d,), and args.

    It is straight, or, with ``bend`` (d,), the parabola q + s shift + s (1 - s) bend for the fraction s in [0,
    1] of the step.
    """

    t: Array
    h: Array
    q: Array
    shift: Array
    args: object
    bend: Array | None = None

    def at(self, s: Array) -> tuple[Array, Array]:
        """Returns time and position (1 + d,) at the fraction s () of the step, and their derivatives by s."""
        start, step = jnp.concatenate([self.t[None], self.q]), jnp.concatenate([self.h[None], self.shift])
        if self.bend is None:
            return start + s * step, step
        bend = jnp.concatenate([jnp.zeros_like(self.t)[None], self.bend])
        return start + s * (step + (1 - s) * bend), step + (1 - 2 * s) * bend


def looks_for_tunnelling(problem: Problem, t: Array, q: Array, args: object) -> bool:
    """Tests whether steps are to be checked for tunnelling: whether a gap could close and
    open again on a straight path.

    False where all gaps are affine, and for listed bodies, whose displacement in a step is limited.
    """
    return problem.gaps.curves(t, q, args)


def may_tunnel(problem: Problem, path: StepPath) -> Array:
    """Tests whether a gap, linearised at the start of a step, closes within it, (): a necessary condition for
    tunnelling through a convex obstacle."""
    t, h, q, shift, args, bend = path
    after = lambda h, shift: sum(jax.jvp(lambda t, q: problem.gaps(t, q, args), (t, q), (h, shift)))
    closes = after(h, shift) < 0
    if bend is not None:
        # a parabola stays within the triangle of its ends and the point where their tangents meet
        closes |= after(0.5 * h, 0.5 * (shift + bend)) < 0
    return jnp.any(closes)


def loses_the_gap(problem: Problem, path: StepPath, acting: Array) -> Array:
    """Tests whether a gap is not resolved along the ``path`` of a step, (),
    in which contacts ``acting`` (m,) had impulses.

    This has two causes. Either the step leads through an obstacle: a gap falls steeply at its start, rises steeply at
    its end, the normals there point apart, and the gap is negative between. The gap is evaluated alternately at the
    minimum of a gap with a corner, where its tangents at both ends intersect, and at that of a parabola, where a linear
    gap velocity vanishes; of several gaps only the one whose tangents intersect lowest. Or the normal of a contact that
    acts turns so far within the step that the direction of its impulse is arbitrary.
    """
    return without_derivative(lambda operands: _loses_the_gap(problem, *operands), (path, acting))


def _loses_the_gap(problem: Problem, path: StepPath, acting: Array) -> Array:
    t, q, args = path.t, path.q, path.args
    gaps = lambda x: problem.gaps(x[0], x[1:], args)

    def end(s: Array) -> tuple[Array, Array]:
        """Returns the gaps and their derivatives by s (m,) at the fraction s of the step."""
        x, step = path.at(s)
        return jax.jvp(gaps, (x,), (step,))

    zero = jnp.zeros_like(t)
    (before, falling), (after, rising) = end(zero), end(zero + 1)
    corner, kinks = (falling < 0) & (rising > 0), gap_switches(problem, t, q, args) is not None
    sharp, turned = _compare_normals(problem, path, corner if kinks else corner | acting)
    turns = corner & sharp
    through, which = lax.cond(
        jnp.any(turns),
        lambda: _closes_between(gaps, path, (before, falling), (after, rising), turns),
        lambda: (jnp.zeros((), bool), turns),
    )
    # at a kink a normal turns abruptly, which is no curvature, and a body that slides over an edge cuts the corner by
    # part of its step
    if kinks:
        return through & ~jnp.any(acting & which)
    return through | jnp.any(acting & turned)


def _closes_between(gaps: Callable, path: StepPath, start: tuple, end: tuple, turns: Array) -> tuple[Array, Array]:
    """Tests whether a gap is negative between the two ends of a step, ();
    also returns the mask (m,) of the one gap that was tested.

    Gaps ``turns`` (m,) fall at the start and rise at the end; of these the one is tested whose tangents at both ends
    intersect lowest. ``gaps``: function of time and position (1 + d,); ``start``, ``end``: gaps (m,) and their
    derivatives by s at the ends.
    """
    (before, falling), (after, rising), zero = start, end, jnp.zeros_like(path.t)
    lowest = before + falling * (rising - after + before) / jnp.where(turns, rising - falling, 1)
    which = jnp.arange(len(lowest)) == jnp.argmin(jnp.where(turns, lowest, jnp.inf))
    one = lambda values: jnp.sum(jnp.where(which, values, 0))

    def look(k: Array, now: tuple) -> tuple:
        (s, f, r), (s_end, f_end, r_end), least = now
        meet = (r_end * s_end - r * s - f_end + f) / (r_end - r)
        vanish = s - r * (s_end - s) / (r_end - r)
        place = jnp.clip(jnp.where(k % 2 == 0, meet, vanish), s, s_end)
        x, step = path.at(place)
        gap, rate = map(one, jax.jvp(gaps, (x,), (step,)))
        low, high = ((place, gap, rate), (s_end, f_end, r_end)), ((s, f, r), (place, gap, rate))
        return *jax.tree.map(partial(jnp.where, rate < 0), low, high), jnp.where(gap < least, gap, least)

    ends = (zero, one(before), one(falling)), (zero + 1, one(after), one(rising))
    least = lax.fori_loop(0, PLACES, look, (*ends, one(after)))[2]
    rounding = ROUNDING * jnp.finfo(zero.dtype).eps * one(jnp.abs(before) + jnp.abs(after) + jnp.abs(rising - falling))
    return least < -rounding, which


def _compare_normals(problem: Problem, path: StepPath, candidates: Array) -> tuple[Array, Array]:
    """Compares the normals of the contacts ``candidates`` (m,) at the two ends of the path; returns two masks (m,).

    The first marks contacts whose normals at both ends point apart, while the path begins against the normal at its
    start and ends along the normal at its end, as through an obstacle. The second marks contacts whose normals turn so
    far that one direction of impulse cannot stand for both. Many contacts are treated set by set.
    """
    metric = Metric.at(problem, path.q, path.args, path.t)
    inner = lambda a, b: jnp.sum(a * metric.solve(b.T).T, axis=1)

    def normals(s: float, rows: Array | None) -> tuple[Array, Array]:
        """Returns normals (k, d) of length 1 in the metric M^-1 at the fraction s,
        and the derivative (d,) of the position by s."""
        x, step = path.at(jnp.full_like(path.t, s))
        gradient = problem.gaps.jacobian(x[0], x[1:], path.args, rows)[1]
        length = inner(gradient, gradient)
        return gradient / jnp.sqrt(jnp.where(length > 0, length, 1))[:, None], step[1:]

    def compare(rows: Array | None) -> tuple[Array, Array]:
        (first, inward), (second, outward) = normals(0.0, rows), normals(1.0, rows)
        most = jnp.maximum(jnp.abs(first) @ jnp.abs(inward), jnp.abs(second) @ jnp.abs(outward))
        steep = (first @ inward < -STEEP * most) & (second @ outward > STEEP * most)
        cosine = inner(first, second)
        return steep & (cosine < APART), cosine < TURNED

    if len(candidates) <= MANY:
        return compare(None)

    def body(now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, *found = now
        rows = lax.top_k(left.astype(jnp.float32), SET)[1]
        put = lambda x, new: x.at[rows].set(jnp.where(left[rows], new, x[rows]), unique_indices=True)
        return left.at[rows].set(False, unique_indices=True), *map(put, found, compare(rows))

    none = jnp.zeros_like(candidates)
    _, sharp, turned = lax.while_loop(lambda now: jnp.any(now[0]), body, (candidates, none, none))
    return sharp, turned
