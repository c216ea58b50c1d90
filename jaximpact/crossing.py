"""Whether a step is too long to see an obstacle: a gap that is open at both of its ends and closed between them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .bodies.listing import worked_where
from .contact import is_flat, jacobian
from .problem import Problem
from .variation import Unbounded, bounded

STEEP = (
    0.125  # of what its gradient could change a gap over the step: what a step much shorter than the obstacle never has
)
SMALL = 2.0**-10  # of a step, within which a gap changes as its gradient says
PLACES = 6  # looked at along a step
MARGIN = 1.001  # of what a step moves, for the rounding of a bound


class Chord:
    """The straight way of a step from (t, q) over a time r to ``end`` (d,), seen by the gaps of a problem; constants."""

    def __init__(self, problem: Problem, t: Array, r: Array, q: Array, end: Array, args: Any) -> None:
        x = jnp.concatenate([jnp.stack([t, t + r]), q, end])
        x, args = lax.stop_gradient((x, args))
        d = len(q)
        self.start, self.end = (jnp.concatenate([x[i : i + 1], x[2 + i * d : 2 + (i + 1) * d]]) for i in (0, 1))
        self.shift = self.end - self.start
        self.problem, self.args = problem, args

    def gaps(self, x: Array) -> Array:
        """Gaps (m,) at a time and position x (1 + d,)."""
        return self.problem.gaps(x[0], x[1:], self.args)

    def bends(self) -> Array:
        """Whether a rate might change along the step by as much as `passes` asks for, (): of most steps a bound says that it does not.

        Raises:
            Unbounded: no rule says so.
        """
        rates = lambda x: jax.jvp(self.gaps, (x,), (self.shift,))[1]
        size = jnp.abs(self.shift)
        change, scale = (bounded(function, self.start, size)[1] for function in (rates, self.gaps))
        return jnp.any(change >= STEEP / MARGIN * scale)

    def scale(self, x: Array) -> Array:
        """How fast the gaps (m,) would change at one of the ends if all of their gradients' parts added up."""
        return bounded(self.gaps, x, SMALL * jnp.abs(self.shift))[1] / SMALL

    def steep(self, x: Array) -> tuple[Array, Array, Array]:
        """Gaps (m,) at one of the ends, their rates along the step, and whether these are large for what their gradients could make."""
        gap, rate = jax.jvp(self.gaps, (x,), (self.shift,))
        try:
            scale = self.scale(x)
        except Unbounded:
            scale = jnp.abs(jacobian(self.problem, x[0], x[1:], self.args)[1]) @ jnp.abs(self.shift[1:])
        return gap, rate, jnp.abs(rate) > STEEP * scale

    def passes(self) -> Array:
        """Whether a gap that closes at the start and opens at the end is closed between them, ().

        Looked for between two places at which the gap falls and rises: by turns where its tangents there meet, the place of a corner, and
        where its rate would vanish if it were linear, that of a square. Of several gaps it is that whose tangents meet lowest.
        """
        before, falling, steep = self.steep(self.start)
        after, rising, steep_too = self.steep(self.end)
        turns = (falling < 0) & (rising > 0) & steep & steep_too
        change = jnp.where(turns, rising - falling, 1)
        lowest = jnp.where(turns, before + falling * (rising - after + before) / change, jnp.inf)
        which = jnp.arange(len(lowest)) == jnp.argmin(lowest)
        one = lambda x: jnp.sum(jnp.where(which, x, 0))
        zero = jnp.zeros_like(self.shift[0])
        rounding = 1e3 * jnp.finfo(before.dtype).eps * one(jnp.abs(before) + jnp.abs(after) + change)

        def look(k: Array, now: tuple) -> tuple:
            (s, f, r), (s_end, f_end, r_end), least = now
            meet = (r_end * s_end - r * s - f_end + f) / (r_end - r)
            vanish = s - r * (s_end - s) / (r_end - r)
            x = jnp.clip(jnp.where(k % 2 == 0, meet, vanish), s, s_end)
            gap, rate = map(one, jax.jvp(self.gaps, (self.start + x * self.shift,), (self.shift,)))
            low, high = ((x, gap, rate), (s_end, f_end, r_end)), ((s, f, r), (x, gap, rate))
            return *jax.tree.map(lambda x, y: jnp.where(rate < 0, x, y), low, high), jnp.where(gap < least, gap, least)

        ends = (zero, one(before), one(falling)), (zero + 1, one(after), one(rising))
        least = lax.fori_loop(0, PLACES, look, (*ends, one(after)))[2]
        return jnp.any(turns) & (least < -rounding)


def is_looked_for(problem: Problem, t: Array, q: Array, args: Any) -> bool:
    """Whether a gap might close and open again on a straight way: not where all are affine. Of listed bodies it is not looked for."""
    return problem.constraints is not None and not problem.is_local and not is_flat(problem, t, q, args)


def may_pass(problem: Problem, way: tuple) -> Array:
    """Whether a step on a ``way`` (t, r, q, end, args) may go through an obstacle, (), at the cost of a bound where there is one."""
    chord = Chord(problem, *way)
    try:
        return chord.bends()
    except Unbounded:
        return chord.passes()


def passes(problem: Problem, way: tuple, straight: bool) -> Array:
    """Whether a step on a ``way`` goes through an obstacle, (); looked at closely where it may, and with ``straight`` always."""
    close = lambda way: Chord(problem, *way).passes()
    possible = may_pass(problem, way)
    if straight:
        return possible & close(way)
    return worked_where(lambda _, none, way: close(way), possible, jnp.zeros((), bool), lax.stop_gradient(way))
