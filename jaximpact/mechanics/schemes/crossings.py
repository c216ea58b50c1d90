"""Crossings of surfaces at which a force jumps, located on the paths of `EventCorrected` as impacts are.

The force is taken on one side of its switches (`pieces`). When the motion meets a border is predicted by a parabola, up to which the path is made, so that no force
is asked for beyond its own side; on the path the time is found, and differentiated by the implicit function theorem. Behind it the force is that of the other side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from ..switches import depends_on_place
from .borders import ROUNDING, jumps_at_impact, jumps_beyond, levels_and_terms, several, sides_behind
from .events import nonzero
from .mode_ends import located, zero_near
from .paths import Path, double_crossing, first_zero, near_grazing
from .pieces import Pieces, Where
from .resets import state_behind
from .trials import frozen

AT_ONCE = 1e-9  # of a step: what an impact and a crossing are apart that are met together
SHORT = 1e-6  # of the time to a border: by what the path to it is too short to lead beyond it
AT_END = 1.5  # steps from t1, within which a crossing may lie on the other side of it


def located_pieces(problem: Problem, t: Array, q: Array, v: Array, args: Any) -> Pieces | None:
    """Pieces of a problem's force and mass at states of these shapes, between jumps on surfaces of time and place; None where there are none, which is known while
    tracing. Surfaces of the velocity, on which motions slide, are not among them, nor are mere kinks."""
    rubs = problem.slip is not None
    found = None if rubs or problem.listed else Pieces.of(problem, t, q, v, args, depends_on_place, kinks=False)
    if problem.reset is not None and (found is None or found.stated.stop == found.stated.start):
        raise ValueError(
            f"reset: EventCorrected locates {'no surfaces where contacts rub' if rubs else 'surfaces of t and q alone, and switches depend on v'}; use EventDriven()"
        )
    return found


def start_on_pieces(pieces: Pieces, motion: Motion, q: Array, v: Array) -> tuple[Where, Array]:
    """Where among the pieces a motion begins, and status bits of derivatives if that is on a border."""
    t, q, v, args = now = frozen((motion.t0, q, v, motion.args))
    where, near, status = _turned(pieces, pieces.start(*now), motion, t, q, v, jnp.zeros(pieces.count, bool))
    jumps = jumps_beyond(pieces, where.sides, near & pieces.open, (t, q, v), args)
    return where, status | as_status(jumps, Status.DERIVATIVE_JUMP)


def on_border_at_start(problem: Problem, motion: Motion) -> Array:
    """Status bits of derivatives of a motion that begins on a border, of schemes that locate none."""
    pieces = located_pieces(problem, motion.t0, motion.q0, motion.v0, motion.args)
    return jnp.zeros((), jnp.int32) if pieces is None else start_on_pieces(pieces, motion, motion.q0, motion.v0)[1]


class Ahead(NamedTuple):
    """Borders (k,) on a parabola that begins at a state, without derivatives.

    Attributes:
        parabola: the path.
        taylor: coefficients (k,) of levels c + b s + a s^2 on it.
        meets: those that it crosses.
        grazes: those that it nearly touches, or nearly crosses.
    """

    parabola: Path
    taylor: tuple[Array, Array, Array]
    meets: Array
    grazes: Array

    @classmethod
    def of(cls, pieces: Pieces, where: Where, parabola: Path, h: Array) -> Ahead:
        parabola, h, allowed = frozen((parabola, h, where.allowed))
        r = parabola.r
        c, b = _levels_along(pieces, where, parabola, jnp.zeros_like(r))
        end, _ = _levels_along(pieces, where, parabola, r)
        taylor = c, b, (end - c - b * r) / nonzero(r * r)
        open_, moves = jnp.zeros_like(c, bool), jnp.abs(b) + jnp.abs(end - c) > 0
        meets = ((end < -allowed) & moves) | double_crossing(taylor, r, open_, allowed)
        grazes = near_grazing(taylor, r, h, open_, allowed) | ((c < -allowed) & ~meets)
        return cls(parabola, taylor, meets, grazes)

    def needs_step(self, motion: Motion) -> Array:
        """Whether a step has anything to do with them, ()."""
        left = motion.t1 - (self.parabola.t + self.parabola.r)
        return jnp.any(self.meets | self.doubtful(self.parabola.r, left, motion.h, self.meets))

    def doubtful(self, s: Array, left: Array, h: Array, crossed: Array) -> Array:
        """Borders (k,) at which a derivative may be another one: those that are grazed, ``crossed`` slowly at time s, and about to be crossed at the end of the motion,
        a time ``left`` () behind s."""
        c, b, a = self.taylor
        level, rate = c + s * (b + s * a), b + 2 * s * a
        slow = crossed & (jnp.abs(rate) <= 4 * h * jnp.abs(a))
        soon = (left <= AT_END * h) & (crossed | (level + AT_END * h * rate < 0))
        return self.grazes | slow | soon


def _levels_along(pieces: Pieces, where: Where, path: Path, s: Array) -> tuple[Array, Array]:
    """Levels (k,) and their rates at time s of a path."""

    def levels(s: Array) -> Array:
        shift, v = path.along(s)
        return pieces.levels(where.sides, path.t + s, path.q + shift, v, path.args)

    return jax.jvp(levels, (s,), (jnp.ones_like(s),))


class Border(NamedTuple):
    """The border that is met first from a state on, if ``some`` () is, that of the level ``which`` (k,): by a ``guess`` () at its ``time`` (), which has two
    derivatives once the path is known; then, too, the level that is ``crossed`` (k,), none if it is not, and those that are met at an impact (``at_impact``)."""

    pieces: Pieces
    where: Where
    ahead: Ahead
    which: Array
    some: Array
    guess: Array
    time: Array
    crossed: Array
    at_impact: Array

    @classmethod
    def of(cls, pieces: Pieces, where: Where, parabola: Path, h: Array, iterations: int) -> Border:
        ahead = Ahead.of(pieces, where, parabola, h)
        r = ahead.parabola.r
        first = jnp.where(ahead.meets, first_zero(*ahead.taylor, r), jnp.inf)
        which = ahead.meets & (jnp.arange(len(first)) == jnp.argmin(first))
        found = cls(pieces, where, ahead, which, jnp.any(which), r, r, *[jnp.zeros_like(which)] * 2)
        time = zero_near(found.at, ahead.parabola, jnp.clip(jnp.min(first), 0, r), r, iterations)
        return found._replace(guess=frozen(jnp.where(found.some, time, r)))

    def at(self, path: Path, s: Array) -> tuple[Array, Array]:
        """The level and its rate at time s of a path, ()."""
        value, rate = _levels_along(self.pieces, self.where, path, s)
        return jnp.sum(jnp.where(self.which, value, 0)), jnp.sum(jnp.where(self.which, rate, 0))

    def on(self, path: Path, rest: Array, iterations: int) -> Border:
        """The same, with the time at which a path meets it; a time ``rest`` is left of the step."""
        most = jnp.minimum(frozen(rest), 2 * self.guess)
        return self._replace(time=located(self.at, path, self.guess, most, self.some, iterations))

    def ended_at(self, problem: Problem, motion: Motion, path: Path, s: Array, first: Array, impact: Array) -> Border:
        """The same, of a path that ends at time s: with whether it is crossed there, if it is the ``first`` event, and what is met with an ``impact`` (m,)."""
        path, s = frozen((path, s))
        if len(impact):
            self = self._replace(at_impact=self._met_with(problem, motion, path, s, impact))
        level, rate = self.at(path, s)
        spare = jnp.sum(jnp.where(self.which, frozen(self.where.allowed), 0)) + AT_ONCE * path.r * jnp.abs(rate)
        return self._replace(crossed=self.which & first & (level <= spare) & (rate < 0))

    def _met_with(self, problem: Problem, motion: Motion, path: Path, s: Array, impact: Array) -> Array:
        """The levels (k,) whose borders are met with an ``impact`` (m,) at time s of a path."""
        shift, v = path.along(s)
        now, near = (path.t + s, path.q + shift, v, path.args), frozen((self.where.allowed, AT_ONCE * motion.h))
        speed = path.gaps(problem, s)[1]
        return jumps_at_impact(
            problem, self.pieces, self.where.sides, near, now, jnp.zeros_like(v), impact, speed, frozen(motion.e)
        )

    def behind(
        self,
        motion: Motion,
        t: Array,
        state: tuple[Array, Array, Array],
        crossed: Array,
        still: tuple[Array, Array],
    ) -> Behind:
        """What follows where the borders of levels are ``crossed`` (k,), from a ``state`` q, v, closed whose time has the derivative of that; for resets, gaps and gap
        velocities are zero up to ``still`` (m,) each."""
        pieces, where, none = self.pieces, self.where, jnp.zeros((), jnp.int32)

        def behind() -> Behind:
            (q, v, closed), bits = state, none
            if pieces.problem.reset is not None:
                level, rate = frozen(pieces.rates(where.sides, t, q, v, jnp.zeros_like(v), motion.args))
                resets = (crossed | ((level <= where.allowed) & (rate < 0)))[pieces.stated]
                q, v, closed, bits = state_behind(pieces.problem, resets, t, q, v, closed, still, motion.args)
            after, _, status = _turned(pieces, where, motion, t, q, v, crossed)
            return Behind(q, v, closed, after, bits | status)

        return lax.cond(jnp.any(crossed), behind, lambda: Behind(*state, where, none))

    def status(self, motion: Motion, t: Array, s: Array, q: Array, v: Array, beyond: Array) -> Array:
        """Status bits of derivatives at the end of a path, at time t, a time s behind its start: where the force jumps at a border that matters there, or is ``beyond`` (k,)
        one without having crossed it."""
        t, s, q, v, args, left = frozen((t, s, q, v, motion.args, motion.t1 - t))
        doubtful = beyond | self.at_impact | self.ahead.doubtful(s, left, motion.h, self.crossed)
        jumps = jumps_beyond(self.pieces, self.where.sides, doubtful & self.pieces.open, (t, q, v), args)
        return as_status(jumps, Status.DERIVATIVE_JUMP)


class Behind(NamedTuple):
    """What follows behind a border: the state, its closed contacts (m,), where it is, and status bits."""

    q: Array
    v: Array
    closed: Array
    where: Where
    status: Array


def _turned(
    pieces: Pieces, where: Where, motion: Motion, t: Array, q: Array, v: Array, crossed: Array
) -> tuple[Where, Array, Array]:
    """Where a motion goes on from a state, on the other side of borders that are ``crossed`` (k,) or met at once; those that it is on (k,); and status bits."""
    t, q, v, args = now = frozen((t, q, v, motion.args))
    level, terms = levels_and_terms(pieces, where.sides, *now)
    rate, span = pieces.rates(where.sides, t, q, v, jnp.zeros_like(v), args)[1], jnp.abs(t) + motion.h
    allowed = ROUNDING * jnp.finfo(q.dtype).eps * (terms + span * jnp.abs(rate))
    # joints, or a reset, may have moved the state
    allowed = frozen(jnp.where(crossed, jnp.maximum(allowed, level), allowed))
    near = jnp.abs(level) <= allowed
    turns = near & (crossed | (rate < 0))
    on = Where(where.sides, pieces.switches.measured(where.sides, *now)[1], allowed, where.slides)
    # what lies beyond a border, out of reach of rounding, has the sides that it has
    sides = sides_behind(pieces, on, turns, jnp.zeros_like(near), near & ~turns, rate, jnp.zeros_like(v), span, now)
    main = turns & (jnp.arange(len(turns)) == jnp.argmax(turns))
    at_once = jnp.any(turns) & several(pieces, where.sides, turns, main, now, rate)
    found = on._replace(sides=sides, across=pieces.switches.measured(sides, *now)[1])
    return found, near, as_status(at_once, Status.DERIVATIVE_SIMULTANEOUS)
