"""Borders between the pieces of a force (`pieces`): how they are sought within trials, and on which side, or on which of them, a motion goes on."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools import linalg
from ...jaxtools.jacobians import generic_change
from ..jump_search import SLIGHT
from ..problem import Problem
from ..status import Status, as_status
from ..switch_kinds import Sides
from .events import nonzero
from .force_free import opens_by_change
from .pieces import Pieces, Where
from .searches import CLOSE, SETTLED, STEPPING, SWITCH, TOGETHER, Search, Verdict, bracketed
from .stops import met
from .trials import Base, Hold, Sight, Trial, cubic, first_root, frozen, held, least_gaps

NOTHING = 1e-3  # of the tolerance: levels that are as good as zero
ROUNDING = 64  # roundings of what a level is made of
SAME = 1e-9  # of gradients of levels: what those of one function differ by
EDGE = 1e-6  # of the jump of a level's rate: rates that do not tell whether a motion slides
FURTHER = 8  # times what levels may be off
SOON = 1e-6  # of the motion's time: until when a motion is clear of a border
LEAVES = 3  # borders that a motion leaves one after the other when it is looked at; then all at once


def seek_border(
    search: Search, verdict: Verdict, trial: Trial, sight: Sight, slid: Array, s: Array, shortest: Array
) -> tuple[Verdict, Array]:
    """The verdict on a trial of length s, which may lead to a border, and the level (k,) whose border it ends on.

    A trial that would be accepted is searched for borders first. The end of sliding, on ``slid`` (k,), is not corrected any more when it is found.
    """
    (value, rate), allowed = sight.after, sight.allowed
    struck = jnp.any(verdict.impact)
    # how much later than its end the impact is that ends it
    gap, gap_rate = trial.after
    late = -jnp.sum(jnp.where(verdict.impact, gap / jnp.where(verdict.impact, gap_rate, 1), 0))
    spare = jnp.where(struck, TOGETHER * search.substep, 0)
    negative = value + late * rate < -allowed - spare * jnp.abs(rate)
    seeking = search.sought == SWITCH
    ends = verdict.accepted & ~seeking
    begins = ends & jnp.any(negative)
    x, dips = least_gaps(sight.before, sight.after, s, allowed)
    part = jnp.minimum(jnp.min(jnp.where(dips, x, 1)), jnp.min(sight.negative))
    split = ends & ~begins & (part < 1) & (s * part > shortest)

    which = search.borders | negative
    closes = which & (rate < 0)
    correction = jnp.where(closes, -value / jnp.where(closes, rate, -1), jnp.inf)
    nearest = jnp.arange(len(value)) == jnp.argmin(jnp.where(which, correction, jnp.inf))
    close = jnp.where(jnp.any(nearest & slid), SETTLED, CLOSE)
    small, improved = bracketed(search, s, jnp.min(correction), jnp.any(which & (value < 0)), shortest, close)
    small |= jnp.all(~which | (~slid & (jnp.abs(value) <= allowed)))
    met = seeking & small
    pick = lambda new, turn, other: jnp.where(begins, new, jnp.where(seeking, turn, other))
    following = verdict.search
    root = jnp.min(jnp.where(negative, first_root(cubic(sight.before, sight.after, s), value), 1))
    following = following._replace(
        s=jnp.where(split, s * part, pick(s * root, improved.s, following.s)),
        sought=jnp.where(split, STEPPING, pick(SWITCH, SWITCH, following.sought)).astype(jnp.int32),
        low=pick(jnp.zeros_like(s), improved.low, following.low),
        high=pick(s + jnp.maximum(late, 0), improved.high, following.high),
        turns=jnp.where(split, 0, pick(0, search.turns + 1, following.turns)).astype(jnp.int32),
        borders=jnp.where(begins, negative, which),
    )
    accepted = jnp.where(seeking, met, ends & ~begins & ~split)
    verdict = verdict._replace(accepted=accepted, impact=verdict.impact & accepted, search=following)
    return verdict, which & nearest & met


def meet_border(
    pieces: Pieces, hold: Hold, switched: Array, t: Array, flown: Base, substep: Array, args: Any
) -> tuple[Base, Array]:
    """The base on the border of the level that has ``switched`` (k,), with the derivative of its time, as in `stops.met`; and status.

    Where a motion leaves a border on which it slid, the force is continuous, and second derivatives alone ask when.
    """
    slid = switched & pieces.slid(flown.where)
    crossed = switched & ~slid

    def value(t: Array, q: Array, v: Array, args: Any) -> Array:
        level = jnp.sum(jnp.where(crossed, pieces.levels(flown.where.sides, t, q, v, args), 0))
        if len(pieces.steep) == 0:
            return level
        margin = lambda: jnp.sum(
            jnp.where(slid, pieces.margins(flown.where, t, q, v, flown.closed, flown.slack, args), 0)
        )
        return level + lax.cond(jnp.any(slid), margin, lambda: jnp.zeros_like(level))

    none = jnp.zeros((), jnp.int32)
    return lax.cond(jnp.any(switched), lambda: met(hold, value, t, flown, substep, args), lambda: (flown, none))


def border_status(
    pieces: Pieces,
    where: Where,
    sight: Sight,
    s: Array,
    atol: Array,
    off: Array,
    end: tuple[Array, Array, Array],
    closed: Array,
    args: Any,
) -> Array:
    """Status of derivatives at the ``end`` of a trial of length s: of borders across which the force jumps, if the motion touches one without
    crossing it, or as good as so, or is as near to one as a time ``off``."""
    (_, began), (value, rate) = sight.before, sight.after
    moves = s * jnp.maximum(jnp.abs(rate), jnp.abs(began)) > atol
    touches = (
        moves & (jnp.abs(value) <= jnp.maximum(atol, where.allowed)) & (rate**2 * s <= 2 * atol * jnp.abs(rate - began))
    )
    near = (touches | (jnp.abs(value) < off * jnp.abs(rate))) & pieces.open & ~pieces.slid(where)

    def jumps() -> Array:
        t, q, v = end
        # across a border that is touched, and where the motion was or will be
        further = jnp.where(jnp.any(near & (rate < 0)), 2, -2) * off
        there = pieces.switches.definite(t + further, q + further * v, v, args)
        touched = pieces.sides_of(touches & near)
        across = pieces.beyond(where, touches & near, t, q, v, args)
        of = [where.sides, [jnp.where(x, y, z) for x, y, z in zip(touched, across, there, strict=True)]]
        # contacts may be held on one side, and not on the other
        jumps = _jumps(pieces, of, t, q, v, closed, args) | _jumps(pieces, of, t, q, v, jnp.zeros_like(closed), args)
        return jumps | _resets(pieces, near)

    return as_status(lax.cond(jnp.any(near), jumps, lambda: jnp.zeros((), bool)), Status.DERIVATIVE_JUMP)


def _jumps(pieces: Pieces, of: list[Sides], t: Array, q: Array, v: Array, closed: Array, args: Any) -> Array:
    """Whether the accelerations on two sides are not the same, with ``closed`` contacts (m,) held, ()."""
    t, q, v, args = frozen((t, q, v, args))
    return _unequal(*pieces.accelerations(of, t, q, v, closed, args))


def _unequal(a: Array, b: Array) -> Array:
    """Whether accelerations are not the same, ()."""
    return jnp.any(_differ(*frozen((a, b))))


def _differ(a: Array, b: Array) -> Array:
    """Which numbers are not the same."""
    return jnp.abs(a - b) > SLIGHT * (jnp.abs(a) + jnp.abs(b))


def _resets(pieces: Pieces, near: Array) -> Array:
    """Whether one of these borders (k,) is a surface at which the state is reset, ()."""
    return jnp.any(near[pieces.stated]) & (pieces.problem.reset is not None)


def jumps_beyond(pieces: Pieces, sides: Sides, near: Array, here: tuple[Array, Array, Array], args: Any) -> Array:
    """Whether the force or the mass jumps on one of the surfaces whose levels are ``near`` zero (k,) at a place on given sides, ().

    On a surface that is stated it does, for all that is known.
    """

    def jumps(one: Array) -> Array:
        def level(here: tuple[Array, Array, Array]) -> Array:
            return jnp.sum(jnp.where(one, pieces.levels(sides, *here, args), 0))

        value, slope = jax.value_and_grad(level)(here)
        square = sum(jnp.sum(x * x) for x in slope)
        there = tuple(x - value / jnp.where(square > 0, square, 1) * dx for x, dx in zip(here, slope, strict=True))
        across = pieces.switches.measured(sides, *here, args)[1]
        where = pieces.start(*here, args)._replace(sides=sides, across=across)
        beyond = pieces.beyond(where, one, *there, args)
        frozen = lambda x: pieces.switches.frozen(x[0], *x[1], args)
        of = [(x, y) for y in (there, here) for x in (sides, beyond)]
        values = lax.map(frozen, jax.tree.map(lambda *x: jnp.stack(x), *of))
        # the difference of two continuations: across a kink it is zero on the surface
        found = [
            jnp.any(jnp.abs(y - x) > 0.5 * jnp.abs(b - a) + SLIGHT * (jnp.abs(x) + jnp.abs(y))) for x, y, a, b in values
        ]
        return jnp.any(jnp.stack(found))

    def of_all() -> Array:
        each = lambda one: lax.cond(jnp.any(one & near), jumps, lambda _: jnp.zeros((), bool), one)
        return jnp.any(near[pieces.stated]) | jnp.any(lax.map(each, jnp.eye(pieces.count, dtype=bool)))

    return lax.cond(jnp.any(near), of_all, lambda: jnp.zeros((), bool))


class Settled(NamedTuple):
    """Where a motion goes on (`Where`), with which velocity v (d,); status bits of what was crossed, and of what a motion that begins here has
    at its start."""

    where: Where
    v: Array
    status: Array
    at_start: Array


class _Choice(NamedTuple):
    """Among levels (n,) that depend on the velocity: ``rows`` (n, n) of those whose borders are one, the first of each that ``slides`` (n,);
    those that are ``pushed`` back by the force beyond (n,), and those that are ``crossed`` (n,); and whether one of them is on the ``edge`` of sliding, as a force leads
    along its border, ()."""

    rows: Array
    slides: Array
    pushed: Array
    crossed: Array
    edge: Array


def settled(
    pieces: Pieces,
    where: Where,
    t: Array,
    q: Array,
    v: Array,
    closed: Array,
    loosed: Array,
    atol: Array,
    span: Array,
    args: Any,
    off: Array | None = None,
) -> Settled:
    """On which sides a motion goes on from a state, and with which velocity: where it crosses a border there, or begins to slide on it, the
    velocity has the derivative of the time of that.

    On a border it comes from the sides ``where`` it was. Borders that it has just left, ``loosed`` (k,), it does not slide on. Levels
    may be ``off`` by some (k,), more than rounding.
    """
    now = frozen((t, q, v, args))
    slack, none, slid = jnp.zeros_like(t), jnp.zeros((len(pieces.steep),) * 2, bool), pieces.slid(where)
    eps = ROUNDING * jnp.finfo(q.dtype).eps
    level, terms = levels_and_terms(pieces, where.sides, *now)
    spare = NOTHING * atol + eps * terms
    spare = spare if off is None else jnp.maximum(spare, off)
    sides = pieces.switches.chosen(
        pieces.sides_of(jnp.abs(level) <= jnp.maximum(spare, where.allowed)), where.sides, *now
    )
    before = held(pieces.on(sides), t, q, v, closed, slack, args)[0]
    moving = pieces.rates(sides, t, q, v, before, args)
    level, rate = frozen(moving)
    allowed = spare + eps * span * jnp.abs(rate)
    where = Where(sides, pieces.switches.measured(sides, *now)[1], allowed, none)
    near = level <= allowed

    def decided() -> Settled:
        return _decided(pieces, where, slid, moving, before, t, q, v, closed, loosed, atol, span, args)

    def plain() -> Settled:
        zero = jnp.zeros((), jnp.int32)
        return Settled(where, v, zero, zero)

    close = near.at[pieces.steep].set(level[pieces.steep] <= jnp.maximum(allowed[pieces.steep], atol))
    return lax.cond(jnp.any(close), decided, plain)


def levels_and_terms(pieces: Pieces, sides: list, t: Array, q: Array, v: Array, args: Any) -> tuple[Array, Array]:
    """Levels (k,) and sizes of what they are made of: what they change with all of it, by parts that do not cancel each other."""
    levels = lambda t, q, v: pieces.levels(sides, t, q, v, args)
    level, terms = jax.jvp(levels, (t, q, v), (t, 0.618 * q, 1.618 * v))
    return level, jnp.abs(terms)


def _decided(
    pieces: Pieces,
    where: Where,
    slid: Array,
    moving: tuple[Array, Array],
    before: Array,
    t: Array,
    q: Array,
    v: Array,
    closed: Array,
    loosed: Array,
    atol: Array,
    span: Array,
    args: Any,
) -> Settled:
    """As `settled`, where a border is near, of a motion that ``slid`` (k,) on some; levels and rates are ``moving`` with the acceleration ``before`` (d,)."""
    now = frozen((t, q, v, args))
    (level, rate), a = frozen(moving), frozen(before)
    near = level <= where.allowed
    crossed, steep = near & (rate < 0), len(pieces.steep) > 0
    slides, hard, edge = jnp.zeros_like(level, bool), jnp.zeros_like(level, bool), jnp.zeros((), bool)
    if steep:
        ahead = _ahead(pieces, where, crossed, near, rate, a, span, now)
        choice = _choice(pieces, ahead, level, near, closed, loosed, atol, now)
        where = where._replace(slides=choice.rows & choice.slides[:, None])
        slides, hard, edge = pieces.slid(where), pieces.all_levels(choice.pushed), choice.edge
        crossed = jnp.where(
            pieces.all_levels(jnp.ones(len(pieces.steep), bool)), pieces.all_levels(choice.crossed), crossed
        )
    old, new = where.sides, sides_behind(pieces, where, crossed, hard, slides | (near & ~crossed), rate, a, span, now)
    # what stays on a border without sliding, as long as nothing moves, has the sides that the function itself has there
    idle = (level == 0) & (rate == 0) & ~(slides | hard | crossed)
    edge |= _matters(pieces, where, idle & pieces.open, t, q, v, closed, args)
    of_idle = zip(pieces.sides_of(idle), pieces.switches.sides(*now), new, strict=True)
    new = [jnp.where(i, x, y) for i, x, y in of_idle]

    # the crossing of borders at one instant, whose time has the derivative of that of the first; what ends sliding is crossed, not that on which the motion slid
    some, own = jnp.any(crossed), jnp.where(jnp.any(crossed & ~slid), crossed & ~slid, crossed)
    main = own & (jnp.arange(len(level)) == jnp.argmax(own))
    delay = -jnp.sum(jnp.where(main, moving[0] / jnp.where(main, moving[1], 1), 0))
    # a motion that begins here may come from the other side with other data
    back = jnp.max(
        jnp.where(near & ~slides & pieces.open, FURTHER * where.allowed / jnp.where(rate == 0, 1, jnp.abs(rate)), 0)
    )
    back = jnp.minimum(back, SOON * span)
    behind = pieces.switches.definite(t - back, q - back * frozen(v), frozen(v) - back * a, now[3])
    after, other = pieces.accelerations([new, behind], t, q, v, closed, args)
    jumps = _unequal(after, other) | _jumps(pieces, [new, behind], t, q, v, jnp.zeros_like(closed), args)
    at_start = as_status((back > 0) & (jumps | _resets(pieces, near & ~slides & pieces.open)), Status.DERIVATIVE_JUMP)
    v = v + jnp.where(some, delay * (before - after), 0)
    at_once = some & _unequal(before, after) & several(pieces, old, own, main, now, rate)
    status = as_status(at_once, Status.DERIVATIVE_SIMULTANEOUS) | as_status(edge, Status.DERIVATIVE_JUMP)
    where = where._replace(sides=new, across=pieces.switches.measured(new, *now)[1])
    if steep:
        v = pieces.put_back(where, t, q, v, closed, args)
    return Settled(where, v, status, at_start)


def _matters(
    pieces: Pieces, where: Where, idle: Array, t: Array, q: Array, v: Array, closed: Array, args: Any
) -> Array:
    """Whether the other side of borders on which a motion is ``idle`` (k,) would move it otherwise, or press ``closed`` contacts (m,) where this one does not, ()."""
    t, q, v, args = frozen((t, q, v, args))

    def looked() -> Array:
        on = lambda sides: held(pieces.on(sides), t, q, v, closed, jnp.zeros_like(t), args)
        both = [where.sides, pieces.moved(where, idle)]
        a, _, push, _ = lax.map(on, jax.tree.map(lambda *x: jnp.stack(x), *both))
        lets_go = _differ(*push) & (jnp.min(push, axis=0) <= EDGE * jnp.max(push, axis=0))
        return _unequal(*a) | jnp.any(closed & lets_go)

    return lax.cond(jnp.any(idle), looked, lambda: jnp.zeros((), bool))


def _ahead(
    pieces: Pieces, where: Where, crossed: Array, near: Array, rate: Array, a: Array, span: Array, now: tuple
) -> Where:
    """The sides behind those borders that are ``crossed`` (k,) at any velocity: by their forces a motion slides on others, or does not."""
    flat = crossed & ~pieces.all_levels(jnp.ones(len(pieces.steep), bool))
    sides = sides_behind(pieces, where, flat, jnp.zeros_like(flat), near & ~flat, rate, a, span, now)
    return where._replace(sides=sides, across=pieces.switches.measured(sides, *now)[1])


def sides_behind(
    pieces: Pieces,
    where: Where,
    crossed: Array,
    hard: Array,
    kept: Array,
    rate: Array,
    a: Array,
    span: Array,
    now: tuple,
) -> Sides:
    """The sides that follow where borders are ``crossed`` (k,): those a little further on, where the motion is clear of the borders.

    What it does not leave by itself, as it pushes back, is ``hard``, or too slow: those sides are turned one by one; others are ``kept``.
    """
    t, q, v, args = now
    times = FURTHER * where.allowed / jnp.where(crossed, jnp.abs(rate), 1)
    turned = crossed & (hard | (times > SOON * span))
    s = jnp.max(jnp.where(crossed & ~turned, times, 0))
    given = pieces.moved(where, turned)
    return pieces.switches.chosen(pieces.sides_of(turned | kept), given, t + s, q + s * v, v + s * a, args)


def _choice(
    pieces: Pieces,
    where: Where,
    level: Array,
    near: Array,
    closed: Array,
    loosed: Array,
    atol: Array,
    now: tuple[Array, Array, Array, Any],
) -> _Choice:
    """Which borders the velocity stays on, because the forces of both sides push there, and which it crosses."""
    t, q, v, args = now
    of_steep = lambda x: x[pieces.steep]
    level, near, loosed = of_steep(level), of_steep(near), of_steep(loosed)
    candidate = level <= jnp.maximum(of_steep(where.allowed), atol)
    # what is written twice is one border
    gradient = jax.jacfwd(lambda v: of_steep(pieces.levels(where.sides, t, q, v, args)))(v)
    products = gradient @ gradient.T
    norms = jnp.sqrt(jnp.diagonal(products))
    lengths = norms[:, None] * norms[None, :]
    same = (products >= (1 - SAME) * lengths) & ((lengths > 0) | jnp.eye(len(level), dtype=bool))
    same &= candidate[:, None] & candidate[None, :]
    first = candidate & (jnp.argmax(same, axis=1) == jnp.arange(len(level)))
    rows = same & first[:, None]
    _, rates = frozen(pieces.each(where._replace(slides=rows), t, q, v, closed, jnp.zeros_like(t), args))
    own, matrix = rates[0], (rates[1:] - rates[:1]).T
    turns = jnp.diagonal(matrix)
    pushed = first & (turns > SLIGHT * (jnp.abs(own) + jnp.abs(own + turns)))
    slides = pushed & ~loosed
    for left in reversed(range(min(len(level), LEAVES))):
        part = linalg.solve_masked(matrix, -own, slides)
        beyond = jnp.where(slides, jnp.maximum(-part, part - 1), -jnp.inf)
        slides = slides & ~((beyond > 0) & ((beyond >= jnp.max(beyond)) | (left == 0)))
    part = linalg.solve_masked(matrix, -own, slides)
    rate = own + matrix @ part
    crossed = first & ~slides & jnp.where(pushed, -rate > 0.5 * turns, near & (rate < 0))
    of_all = lambda first: jnp.any(rows & first[:, None], axis=0)
    # then it slides with some data, and with others leaves
    least = jnp.minimum(jnp.abs(own), jnp.abs(own + turns))
    edge = jnp.any(first & near & ~loosed & (jnp.abs(turns) > 0) & (least <= EDGE * jnp.abs(turns)))
    return _Choice(rows, slides, of_all(pushed), of_all(crossed), edge)


def several(pieces: Pieces, sides: list, crossed: Array, main: Array, now: tuple, rate: Array) -> Array:
    """Whether borders of different functions are crossed at once, ()."""
    if pieces.count < 2:
        return jnp.zeros((), bool)
    t, q, v, args = now
    _, change = jax.jvp(lambda q, v: pieces.levels(sides, t, q, v, args), (q, v), generic_change((q, v)))
    delays = jnp.where(crossed, change / jnp.where(crossed, rate, 1), 0)
    first = jnp.sum(jnp.where(main, delays, 0))
    return jnp.any(crossed & (jnp.abs(delays - first) > SLIGHT * (jnp.abs(delays) + jnp.abs(first))))


class Meeting(NamedTuple):
    """An ``impact`` (m,) with gap velocities ``speed`` (m,) and restitution e, ``now`` at t, q, v and args, before which the acceleration was a (d,)."""

    now: tuple
    a: Array
    impact: Array
    speed: Array
    e: Array


def jumps_at_impact(problem: Problem, pieces: Pieces, sides: Sides, near: tuple, meeting: Meeting) -> Array:
    """Levels (k,) whose borders are met with an impact, up to a level (k,) and a time () that they are ``near``.

    Which of the two is first decides what the motion does, to first order. Where wall and border are one surface it does not, unless the
    restitution is zero and the motion rests there, on which side the function of the force alone says.
    """
    (allowed, within), (now, a, impact, speed, e) = near, meeting
    t, q, v, args = now
    level, rate = pieces.rates(sides, t, q, v, a, args)
    both = lambda q, v: (pieces.levels(sides, t, q, v, args), problem.gaps(t, q, args))
    by_level, by_gap = jax.jvp(both, (q, v), generic_change((q, v)))[1]
    met = (jnp.abs(level) <= allowed + within * jnp.abs(rate)) & (rate != 0) & jnp.any(impact)
    delay, of_impact = by_level / jnp.where(met, rate, 1), jnp.sum(jnp.where(impact, by_gap / nonzero(speed), 0))
    rests = jnp.any(impact & (e <= 0))
    return met & (rests | (jnp.abs(delay - of_impact) > SLIGHT * (jnp.abs(delay) + jnp.abs(of_impact))))


def status_at_impact(problem: Problem, pieces: Pieces, where: Where, off: Array, meeting: Meeting) -> Array:
    """Status of derivatives at an impact as in `jumps_at_impact`, of a motion that was ``where`` until then, and whose impacts may be ``off`` by a time ()."""
    where, off, meeting = frozen((where, off, meeting))

    def look() -> Array:
        met = jumps_at_impact(problem, pieces, where.sides, (where.allowed, off), meeting)
        here, args = meeting.now[:3], meeting.now[3]
        return as_status(jumps_beyond(pieces, where.sides, met & pieces.open, here, args), Status.DERIVATIVE_JUMP)

    return lax.cond(jnp.any(meeting.impact), look, lambda: jnp.zeros((), jnp.int32))


def status_behind(pieces: Pieces, after: Any, crossed: Array, t: Array, within: Array, args: Any) -> Array:
    """Status of derivatives of a motion ``after`` (its q, v, closed and where) that has ``crossed`` a border, (): whether the force there may let go of contacts that it
    could as well press, as told ``within`` a time ()."""
    held_on, piece = after.closed & crossed, pieces.on(after.where.sides)
    free = opens_by_change(piece, t, after.q, after.v, after.v, held_on, after.closed, args, within)
    return as_status(free, Status.DERIVATIVE_GRAZING)
