"""Crossings of borders at which a force jumps (is discontinuous), located on the paths of `EventCorrected` as impacts are.

The force is evaluated on one side of its switches (`pieces`). The time at which the motion reaches a border is predicted by a parabola, and
the path is made up to there, so that the force is not evaluated beyond its side; on the path the time is found, and differentiated by the
implicit function theorem. After the crossing the force is that of the other side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.linalg import nonzero
from ...switches.switches import depends_on_place
from ..linearisation import span
from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from ..trials.borders import (
    ROUNDING,
    cross_apart,
    jumps_beyond,
    levels_and_terms,
    settle_sides,
    sides_behind,
    status_of_slopes,
)
from ..trials.impacts_on_borders import Meeting, jumps_at_impact, status_behind
from ..trials.pieces import Pieces, Where
from ..trials.resets import state_behind
from ..trials.trial import frozen
from .cubic_paths import Path, double_crossing, first_zero, near_grazing
from .mode_ends import find_falling_zero, zero_near

AT_ONCE = 1e-9  # fraction of a step within which an impact and a crossing are simultaneous
SHORT = 1e-6  # fraction of the time to a border by which the path to it is shortened, so as not to lead beyond it
AT_END = 1.5  # steps from t1 within which a crossing may be before or after t1


def located_pieces(problem: Problem, t: Array, q: Array, v: Array, args: Any) -> Pieces | None:
    """Finds the pieces of a problem's force and mass between the borders that `EventCorrected` locates, those at which one of them is discontinuous.

    Returns None (decided at trace time, for states of these shapes) if there are no such borders. Borders at which both are continuous, kinks, are
    not located. Raises ValueError if the problem has a reset, but no surface that it states is located.
    """
    found = Pieces.of(problem, t, q, v, args, kinks=False) or _pieces_of_places(problem, t, q, v, args)
    if problem.reset is not None and (found is None or found.stated.stop == found.stated.start):
        raise ValueError("reset: EventCorrected locates no surfaces of such switches; use EventDriven()")
    return found


def _pieces_of_places(problem: Problem, t: Array, q: Array, v: Array, args: Any) -> Pieces | None:
    """Finds the pieces as `located_pieces`, between the borders only whose levels depend on time and position, and not on the velocity."""
    return Pieces.of(problem, t, q, v, args, depends_on_place, kinks=False)


def start_on_pieces(pieces: Pieces, motion: Motion, q: Array, v: Array, closed: Array) -> tuple[Where, Array, Array]:
    """Decides on which sides of the force a motion begins at (q, v) with ``closed`` contacts (m,).

    Returns the sides; the velocity (d,), corrected if the motion slides on a border; and status bits of derivatives, set if it begins on a border.
    """
    t, q0, v0, args = now = frozen((motion.t0, q, v, motion.args))
    if len(pieces.steep):
        span, none = jnp.abs(t) + motion.h, jnp.zeros(pieces.count, bool)
        found = settle_sides(
            pieces,
            pieces.start(*now),
            motion.t0,
            q,
            v,
            closed,
            none,
            jnp.zeros_like(t),
            span,
            motion.args,
            by=motion.by,
        )
        return found.where, found.v, found.status | found.at_start
    where, near, status = _turn_to_sides(pieces, pieces.start(*now), motion, t, q0, v0, jnp.zeros(pieces.count, bool))
    jumps = jumps_beyond(pieces, where.sides, near & pieces.moved_at_start(motion.by, *now), (t, q0, v0), args)
    return where, v, status | as_status(jumps, Status.DERIVATIVE_JUMP)


def on_border_at_start(problem: Problem, motion: Motion) -> Array:
    """Returns the status bits of derivatives of a motion that begins on a border, for schemes that locate no crossings."""
    q, v, none = motion.q0, motion.v0, jnp.zeros((), jnp.int32)
    if problem.slip is not None or problem.listed:
        return none
    pieces = _pieces_of_places(problem, motion.t0, q, v, motion.args)
    return none if pieces is None else start_on_pieces(pieces, motion, q, v, jnp.zeros(0, bool))[2]


def problem_of_piece(problem: Problem, motion: Motion, state: Any) -> Problem:
    """Returns the problem with its force on the sides that a state holds (``where``); unchanged for states that hold none."""
    where = getattr(state, "where", None)
    if where is None:
        return problem
    pieces = located_pieces(problem, motion.t0, state.q, state.v, motion.args)
    return problem if pieces is None else pieces.on(where.sides)


def sliding_problem(
    problem: Problem, pieces: Pieces | None, where: Where | None, t: Array, q: Array, v: Array, closed: Array, args: Any
) -> tuple[Problem, Array | None]:
    """Returns the problem with the force at a state with ``closed`` contacts (m,): where the motion slides, the convex combination of both sides.

    Also returns the weights (n,) of the forces on the other sides of these borders; None (decided at trace time) where the motion can slide on none.
    """
    if where is None or pieces is None or len(pieces.steep) == 0:
        return problem, None
    part = pieces.parts(where, t, q, v, closed, args)
    return pieces.mixed(where, part), part


def border_ahead(
    pieces: Pieces | None, where: Where | None, parabola: Path, h: Array, iterations: int
) -> Border | NoBorder:
    """Returns the border that a motion on a ``parabola`` reaches first in a step h, with a time by so many Newton ``iterations``."""
    return NoBorder() if where is None else Border.of(cast(Pieces, pieces), where, parabola, h, iterations)


class Ahead(NamedTuple):
    """Levels (k,) on a parabola that begins at a state, without derivatives: which borders lie ahead.

    Attributes:
        parabola: the path.
        taylor: coefficients c, b, a (k,) of the levels c + b s + a s^2 on it.
        meets: mask (k,) of borders that it crosses.
        grazes: mask (k,) of borders that it nearly touches, or nearly crosses.
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
        if len(pieces.steep):
            # borders on which the motion slides do not count
            stays = pieces.slid(where)
            c, b, end = (jnp.where(stays, x, y) for x, y in ((1, c), (0, b), (1, end)))
        taylor = c, b, (end - c - b * r) / nonzero(r * r)
        open_, moves = jnp.zeros_like(c, bool), jnp.abs(b) + jnp.abs(end - c) > 0
        meets = ((end < -allowed) & moves) | double_crossing(taylor, r, open_, allowed)
        grazes = near_grazing(taylor, r, h, open_, allowed) | ((c < -allowed) & ~meets)
        return cls(parabola, taylor, meets, grazes)

    def needs_step(self, motion: Motion) -> Array:
        """Tests whether the step crosses one of the borders, or may, so that it cannot be a free step, ()."""
        left = motion.t1 - (self.parabola.t + self.parabola.r)
        return jnp.any(self.meets | self.doubtful(self.parabola.r, left, motion.h, self.meets))

    def doubtful(self, s: Array, left: Array, h: Array, crossed: Array) -> Array:
        """Finds the borders (k,) that make a derivative doubtful on the path up to time s, for steps h.

        They are the borders that the path grazes, those of the ``crossed`` (k,) that it crosses slowly at time s, and those that it crosses so near
        the end of the motion, a time ``left`` () after s, that errors decide whether the crossing is before or after the end.
        """
        c, b, a = self.taylor
        level, rate = c + s * (b + s * a), b + 2 * s * a
        slow = crossed & (jnp.abs(rate) <= 4 * h * jnp.abs(a))
        soon = (left <= AT_END * h) & (crossed | (level + AT_END * h * rate < 0))
        return self.grazes | slow | soon


def _levels_along(pieces: Pieces, where: Where, path: Path, s: Array) -> tuple[Array, Array]:
    """Returns levels and their rates (k,) at time s of a path."""

    def levels(s: Array) -> Array:
        shift, v = path.along(s)
        return pieces.levels(where.sides, path.t + s, path.q + shift, v, path.args)

    return jax.jvp(levels, (s,), (jnp.ones_like(s),))


class Border(NamedTuple):
    """The border that a motion reaches first from a state, found in stages.

    From the parabola ahead (`of`): ``some`` (), whether it reaches any; ``which`` (k,), the level of that border; ``guess`` (), the predicted time.
    On the path (`on`): the ``time`` (), with two derivatives. At the end of the path (`ended_at`): ``crossed`` (k,), the level if the path ends by
    crossing it; ``at_impact`` (k,), levels whose borders are reached together with an impact. ``slide``: the `Slide`, where the motion slides on
    borders, else None. ``turned``: where contacts rub, the function from (t, q, v, closed) behind the border to the `pieces_in_modes` there.
    """

    pieces: Pieces
    where: Where
    ahead: Ahead
    which: Array
    some: Array
    guess: Array
    time: Array
    crossed: Array
    at_impact: Array
    slide: Slide | None = None
    turned: Callable | None = None

    @classmethod
    def of(cls, pieces: Pieces, where: Where, parabola: Path, h: Array, iterations: int) -> Border:
        ahead = Ahead.of(pieces, where, parabola, h)
        r = ahead.parabola.r
        first = jnp.where(ahead.meets, first_zero(*ahead.taylor, r), jnp.inf)
        which = ahead.meets & (jnp.arange(len(first)) == jnp.argmin(first))
        none = jnp.zeros_like(which)
        found = cls(pieces, where, ahead, which, jnp.any(which), r, r, none, none)
        time = zero_near(found.at, ahead.parabola, jnp.clip(jnp.min(first), 0, r), r, iterations)
        return found._replace(guess=frozen(jnp.where(found.some, time, r)))

    def at(self, path: Path, s: Array) -> tuple[Array, Array]:
        """Returns the level of this border and its rate at time s of a path, ()."""
        value, rate = _levels_along(self.pieces, self.where, path, s)
        return jnp.sum(jnp.where(self.which, value, 0)), jnp.sum(jnp.where(self.which, rate, 0))

    def on(self, path: Path, rest: Array, iterations: int) -> Border:
        """Returns a copy with the time at which a path reaches the border; ``rest`` () is the time left of the step.

        A path that, unlike the parabola, does not reach it in that time is followed to its end: a time without the derivative of a crossing.
        """
        most = jnp.minimum(rest, 2 * self.guess)
        time = find_falling_zero(self.at, path, self.guess, frozen(most), self.some, iterations)
        found = frozen(time)
        ends = jnp.where(found >= most, most, found)
        return self._replace(time=jnp.where(self._reached(frozen(path), found), time, ends))

    def _reached(self, path: Path, s: Array) -> Array:
        """Tests whether a path is on the border at time s, (), up to rounding."""
        level, rate = self.at(path, s)
        spare = jnp.sum(jnp.where(self.which, frozen(self.where.allowed), 0)) + AT_ONCE * path.r * jnp.abs(rate)
        return (level <= spare) & (rate < 0)

    def reach(self, r: Array) -> Array:
        """Returns the time () over which to compute a path: to just before the border, beyond which the force differs, or r if there is none."""
        return jnp.where(self.some, (1 - SHORT) * self.guess, r)

    def cut(
        self, path: Path, force: tuple[Array, Array], parts: tuple, rest: Array, h: Array, last: Array, iterations: int
    ) -> tuple[Border, Path, Array]:
        """Ends a path that was computed to just before the border: a little beyond it, as there may be a wall at the same place.

        If there is no border, or if no more events are located (``last``, ()), the path takes the whole ``rest`` () of a step h. ``force``, ``parts``:
        at the start and at the end of the path, contact forces, and the weights of `sliding_problem`. Returns a copy with the time at which the path
        reaches the border, and with its `Slide`; the path; and the forces at its new end.
        """
        found = self.on(path, rest, iterations)
        behind, on = jnp.minimum(found.time + AT_ONCE * h, rest), self.some & ~last
        longer = lax.stop_gradient(jnp.where(on, behind / nonzero(path.r), 1))
        r = jnp.where(on, lax.stop_gradient(behind), rest)
        later = lambda start, end: start + longer * (end - start)
        if None not in parts:
            found = found._replace(slide=Slide.of(self.pieces, self.where, parts[0], later(*parts), r))
        return found, path._replace(r=r, change=longer * path.change), later(*force)

    def comes_before(self, s: Array, others: Array, may: Array, h: Array) -> tuple[Array, Array, Array]:
        """Tests whether the path of a step h reaches the border, or whether its sliding ends, before the first of other events, at time s.

        ``others`` (): whether there are any; ``may`` (): whether an event may be located. Returns both answers, (), and the time of the first event.
        """
        crosses = self.some & may & ((self.time < s - AT_ONCE * h) | ~others)
        s, leaves = jnp.where(crosses, self.time, s), jnp.zeros((), bool)
        if self.slide is not None:
            end = self.slide.time
            leaves = may & jnp.where(others | crosses, end < s - AT_ONCE * h, end <= s)
            s = jnp.where(leaves, end, s)
        return crosses & ~leaves, leaves, s

    def together(self, s: Array, others: Array, h: Array) -> Array:
        """Tests whether others' events, of which there are some (``others``, ()), have the time s of this border, and its force jumps, ()."""
        at_once = others & self.some & (jnp.abs(self.time - s) <= AT_ONCE * h)
        return at_once & jnp.any(self.which & self.pieces.open)

    def ended_at(self, problem: Problem, motion: Motion, path: Path, s: Array, first: Array, impact: Array) -> Border:
        """Returns a copy for a path that ends at time s, with the levels whose borders are crossed there, or reached together with an impact.

        The level of this border is crossed if that is the ``first`` event on the path, (); ``impact`` (m,): the contact of an impact at time s, if
        any.
        """
        path, s = frozen((path, s))
        if len(impact):
            self = self._replace(at_impact=self._met_with(problem, motion, path, s, impact))
        return self._replace(crossed=self.which & first & self._reached(path, s))

    def slid_to(self, motion: Motion, t: Array, q: Array, v: Array, closed: Array, ends: Array) -> tuple[Border, Array]:
        """Returns a copy for the state (t, q, v) at the end of a path, and its velocity (d,), corrected onto the borders on which the motion slides.

        ``closed`` (m,): closed contacts on the path; ``ends`` (): whether the path ends because sliding does.
        """
        slide, pieces, where = self.slide, self.pieces, self.where
        if slide is None:
            return self, v
        back = lambda: pieces.put_back(where, t, q, v, closed, motion.args)
        v = lax.cond(jnp.any(where.slides), back, lambda: v)
        off = jnp.abs(pieces.levels(where.sides, *frozen((t, q, v, motion.args))))
        return self._replace(slide=slide._replace(ended=slide.ended & ends, off=off)), v

    def _met_with(self, problem: Problem, motion: Motion, path: Path, s: Array, impact: Array) -> Array:
        """Finds the levels (k,) whose borders are reached together with an ``impact`` (m,) at time s of a path."""
        shift, v = path.along(s)
        now, near = (path.t + s, path.q + shift, v, path.args), frozen((self.where.allowed, AT_ONCE * motion.h))
        speed, a = path.gaps(problem, s)[1], path.a + (s / nonzero(path.r)) * path.change
        meeting = Meeting(now, a, impact, speed, frozen(motion.e))
        return jumps_at_impact(problem, self.pieces, self.where.sides, near, meeting)

    def behind(
        self,
        motion: Motion,
        t: Array,
        state: tuple[Array, Array, Array],
        crossed: Array,
        turned: Array,
        still: tuple[Array, Array],
    ) -> StateBehindBorder:
        """Finds how the motion goes on from a ``state`` (q, v, closed) at time t: the state after resets there, and the sides of the force.

        ``crossed`` (k,): levels whose borders are crossed there; ``turned`` (): whether contacts have changed the velocity there, or have opened,
        which matters where motions slide on borders. t has the derivative of the crossing time. After resets, contacts stay closed whose gaps and
        gap velocities are zero up to the two tolerances ``still``, (m,) each.
        """
        pieces, where, none = self.pieces, self.where, jnp.zeros((), jnp.int32)
        some = jnp.any(crossed)
        if self.slide is not None:
            some = some | turned | jnp.any(self.slide.ended)

        def behind() -> StateBehindBorder:
            (q, v, closed), a = state, self.ahead.parabola.a
            bits = pieces.vanishing(where, crossed & ~pieces.slid(where), t, q, v, a, motion.args)
            if pieces.problem.reset is not None:
                level, rate = frozen(pieces.rates(where.sides, t, q, v, a, motion.args))
                resets = (crossed | ((level <= where.allowed) & (rate < 0)))[pieces.stated]
                least = jnp.zeros_like(t), 0.5 * motion.h
                q, v, closed, more = state_behind(pieces.problem, resets, t, q, v, closed, still, least, motion.args)
                bits |= more
            if self.slide is not None:
                off = jnp.where(crossed | pieces.slid(where), self.slide.off, 0)
                longest = frozen(jnp.abs(t) + motion.h)
                at = t, q, v, closed, self.slide.ended, jnp.zeros_like(t), longest, motion.args
                after, told = (pieces, none) if self.turned is None else self.turned(t, q, v, closed)
                found = settle_sides(after, where, *at, off)
                return StateBehindBorder(q, found.v, closed, found.where, bits | told | found.status)
            after, _, status = _turn_to_sides(pieces, where, motion, t, q, v, crossed)
            return StateBehindBorder(q, v, closed, after, bits | status)

        return lax.cond(some, behind, lambda: StateBehindBorder(*state, where, none))

    def passed(
        self, motion: Motion, t: Array, s: Array, last: Array, turned: Array, allowed: Array, progress: Any
    ) -> tuple[Any, Array]:
        """Decides on which sides of the force the motion goes on from the end of a path, at time t, a time s after its start.

        The sides change if the path has crossed the border, or if an impact or a release at its end (``turned``, ()) has moved the velocity across a
        border, or changed the forces with which it slides on one. If this is the ``last`` path of the step, (), on which no events are located, then
        all borders that it meets count as crossed. ``allowed`` (m,): round-off of gaps; ``progress``: the state at the end of the path. Returns the
        progress with the new state, sides and status, and the mask (k,) of the levels whose borders count as crossed.
        """
        q, v, beyond = progress.q, progress.v, self.ahead.meets & last
        crossed = self.crossed | beyond
        still = allowed, 16 * allowed / span(motion.h, q.dtype)
        after = self.behind(motion, t, (q, v, progress.closed), crossed, turned, still)
        status = progress.status | after.status | self.status(motion, t, s, q, v, beyond)
        some, of = jnp.any(crossed), [self.where.sides, after.where.sides]
        status |= status_behind(self.pieces, after, some, t, motion.h, motion.args)
        at = t, q, v, progress.closed, jnp.abs(t) + motion.h, motion.args
        slopes = lambda: status_of_slopes(self.pieces, of, *at)
        status |= lax.cond(some, slopes, lambda: jnp.zeros_like(status))
        progress = progress._replace(q=after.q, v=after.v, closed=after.closed, where=after.where, status=status)
        if progress.low is not None:
            progress = progress._replace(low=jnp.where(jnp.any(after.q != q), 0, progress.low))
        return progress, crossed

    def status(self, motion: Motion, t: Array, s: Array, q: Array, v: Array, beyond: Array) -> Array:
        """Returns the status bits at the end (t, q, v) of a path, a time s after its start.

        EVENTS_UNRESOLVED where the path has crossed a border without locating it (``beyond``, (k,)). DERIVATIVE_JUMP where the force jumps at a border that is doubtful there (`Ahead.doubtful`) or reached together with an impact, or that the
        path has crossed without locating it (``beyond``, (k,)).
        """
        t, s, q, v, args, left = frozen((t, s, q, v, motion.args, motion.t1 - t))
        doubtful = beyond | self.at_impact | self.ahead.doubtful(s, left, motion.h, self.crossed)
        jumps = jumps_beyond(self.pieces, self.where.sides, doubtful & self.pieces.open, (t, q, v), args)
        unresolved = as_status(jnp.any(beyond), Status.EVENTS_UNRESOLVED)
        return unresolved | as_status(jumps, Status.DERIVATIVE_JUMP)


class NoBorder(NamedTuple):
    """What `Border` is for a force that does not jump: no path meets it."""

    def reach(self, r: Array) -> Array:
        return r

    def cut(self, path: Path, force: tuple[Array, Array], *_: Any) -> tuple[NoBorder, Path, Array]:
        return self, path, force[1]

    def comes_before(self, s: Array, *_: Any) -> tuple[Array, Array, Array]:
        return jnp.zeros((), bool), jnp.zeros((), bool), s

    def together(self, *_: Any) -> Array:
        return jnp.zeros((), bool)

    def ended_at(self, *_: Any) -> NoBorder:
        return self

    def slid_to(
        self, motion: Motion, t: Array, q: Array, v: Array, closed: Array, ends: Array
    ) -> tuple[NoBorder, Array]:
        return self, v

    def passed(
        self, motion: Motion, t: Array, s: Array, last: Array, turned: Array, allowed: Array, progress: Any
    ) -> tuple[Any, Array]:
        return progress, jnp.zeros(0, bool)


class Slide(NamedTuple):
    """Sliding on borders that depend on the velocity, along a path: the ``time`` () at which it ends, infinity if it does not; the levels ``ended``
    (k,) whose borders the motion then leaves; and the errors ``off`` (k,) of the levels at the end of the path, which should be zero."""

    time: Array
    ended: Array
    off: Array

    @classmethod
    def of(cls, pieces: Pieces, where: Where, part: Array, part_end: Array, r: Array) -> Slide:
        """Finds the end of sliding on a path over a time r ().

        ``part`` and ``part_end`` (n,): weights of the forces on the other sides of the borders, at the start and the end of the path; they vary
        linearly between, and sliding ends where one of them leaves [0, 1].
        """
        spare = ROUNDING * jnp.finfo(part.dtype).eps
        below, above = frozen((part_end < -spare, part_end > 1 + spare))
        ends = jnp.any(where.slides, axis=1) & (below | above)
        change = jnp.where(ends, part_end - part, 1)
        share = jnp.where(below, -part, 1 - part) / nonzero(change)
        times = jnp.where(ends, r * jnp.clip(share, 0, 1), jnp.inf)
        time = jnp.min(times)
        rows = frozen(times <= time + jnp.where(jnp.isfinite(time), AT_ONCE * r, -1))
        ended = pieces.all_levels(jnp.any(where.slides & rows[:, None], axis=0))
        return cls(time, ended, jnp.zeros_like(where.allowed))


class StateBehindBorder(NamedTuple):
    """State after a border: q, v (d,), closed contacts (m,), the sides on which the motion goes on, ``where``, and status bits."""

    q: Array
    v: Array
    closed: Array
    where: Where
    status: Array


def _turn_to_sides(
    pieces: Pieces, where: Where, motion: Motion, t: Array, q: Array, v: Array, crossed: Array
) -> tuple[Where, Array, Array]:
    """Finds the sides on which a motion goes on from a state: beyond borders that are ``crossed`` (k,), or that it reaches at the same time.

    Also returns the mask (k,) of borders that it is on, and status bits.
    """
    t, q, v, args = now = frozen((t, q, v, motion.args))
    level, terms = levels_and_terms(pieces, where.sides, *now)
    rate, span = pieces.rates(where.sides, t, q, v, jnp.zeros_like(v), args)[1], jnp.abs(t) + motion.h
    allowed = ROUNDING * jnp.finfo(q.dtype).eps * (terms + span * jnp.abs(rate))
    # joints, or a reset, may have moved the state
    allowed = frozen(jnp.where(crossed, jnp.maximum(allowed, level), allowed))
    near = jnp.abs(level) <= allowed
    turns = near & (crossed | (rate < 0))
    on = pieces.at_sides(where, where.sides, *now)._replace(allowed=allowed)
    # the sides at a point beyond the border, where rounding does not matter
    sides = sides_behind(pieces, on, turns, jnp.zeros_like(near), near & ~turns, rate, jnp.zeros_like(v), span, now)
    main = turns & (jnp.arange(len(turns)) == jnp.argmax(turns))
    at_once = jnp.any(turns) & cross_apart(pieces, where.sides, turns, main, now, rate)
    found = pieces.at_sides(on, sides, *now)
    return found, near, as_status(at_once, Status.DERIVATIVE_EVENTS) | pieces.status_of_sides(sides)
