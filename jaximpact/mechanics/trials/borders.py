"""Borders between the pieces of a force (`pieces`): how trials find them, and on which side a motion goes on, or on
which border it slides."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools import linalg
from ...jaxtools.jacobians import generic_change
from ...switches.kinds import Sides
from ..events.jump_search import SLIGHT
from ..motion import By
from ..status import Status, as_status
from .pieces import Pieces, Where
from .searches import CLOSE, SETTLED, STEPPING, SWITCH, TOGETHER, Search, Verdict, safeguarded_newton
from .short_moves import TrialEnds, move_to_zero
from .trial import Base, Hold, LevelValues, Trial, cubic, first_root, frozen, held, least_gaps

if TYPE_CHECKING:
    from .pieces import Held

NOTHING = 1e-3  # of the tolerance: levels that count as zero
ROUNDING = 64  # roundings of the terms of a level, up to which it counts as zero
SAME = 1e-9  # relative difference between gradients of levels that describe the same border
EDGE = 1e-6  # of the jump of a level's rate: rates too small to decide whether a motion slides
FURTHER = 8  # times the error of levels: distance beyond a border at which sides are evaluated
SOON = 1e-6  # fraction of the motion's time within which it must have left a border by itself
NEARBY = 1024  # roundings of time: how far from a border slopes are compared, with those sixteen times as far
# relative difference of these slopes where they are not finite on the border: .75 of a root, .24 of |q|^.9, .1 of q
# log |q|
UNEQUAL = 0.05
LEAVES = 3  # borders that are tested for leaving one after the other; then all together


def seek_border(
    search: Search, verdict: Verdict, trial: Trial, level_values: LevelValues, slid: Array, s: Array, shortest: Array
) -> tuple[Verdict, Array]:
    """Changes the verdict on a trial of length s that may have crossed a border;
    also returns the level (k,) on whose border the trial ends.

    If a trial that would be accepted has crossed a border, a search for the time of crossing begins. ``search``: the
    plan of this trial; ``level_values``: its `LevelValues` of the levels; ``slid`` (k,): levels on whose borders the
    motion slides, for which the search goes on to full accuracy, as no Newton correction follows; ``shortest`` ():
    the shortest trial that time resolves.
    """
    (value, rate), roundoff = level_values.after, level_values.roundoff
    struck = jnp.any(verdict.impact)
    # time from the end of the trial to the impact that ends it, which the last correction will add
    gap, gap_rate = trial.after
    late = -jnp.sum(jnp.where(verdict.impact, gap / jnp.where(verdict.impact, gap_rate, 1), 0))
    spare = jnp.where(struck, TOGETHER * search.substep, 0)
    negative = value + late * rate < -roundoff - spare * jnp.abs(rate)
    seeking = search.sought == SWITCH
    ends = verdict.accepted & ~seeking
    begins = ends & jnp.any(negative)
    x, dips = least_gaps(level_values.before, level_values.after, s, roundoff)
    part = jnp.minimum(jnp.min(jnp.where(dips, x, 1)), jnp.min(level_values.negative))
    split = ends & ~begins & (part < 1) & (s * part > shortest)

    which = search.borders | negative
    closes = which & (rate < 0)
    correction = jnp.where(closes, -value / jnp.where(closes, rate, -1), jnp.inf)
    # one of them even where all rise, as a level does whose zero the trial began a little behind
    finite = jnp.minimum(correction, jnp.finfo(value.dtype).max)
    nearest = jnp.arange(len(value)) == jnp.argmin(jnp.where(which, finite, jnp.inf))
    close = jnp.where(jnp.any(nearest & slid), SETTLED, CLOSE)
    # a level that is below zero, but rises, has crossed its border earlier, however near that of another level is:
    # bisect
    step = jnp.where(jnp.any(which & ~closes & ~slid & (value < -roundoff)), -jnp.inf, jnp.min(correction))
    small, improved = safeguarded_newton(search, s, step, jnp.any(which & (value < 0)), shortest, close)
    small |= jnp.all(~which | (~slid & (jnp.abs(value) <= roundoff)))
    met = seeking & small
    pick = lambda new, turn, other: jnp.where(begins, new, jnp.where(seeking, turn, other))
    following = verdict.search
    root = jnp.min(jnp.where(negative, first_root(cubic(level_values.before, level_values.after, s), value), 1))
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
    pieces: Pieces, hold: Hold, switched: Array, t: Array, ends: TrialEnds, substep: Array, args: object
) -> tuple[Base, Array]:
    """Moves the end of a trial, which began at t and has these ``ends``, onto the border of the level that has
    ``switched`` (k,), by `short_moves.move_to_zero`; also returns status bits.

    The new state has the derivative of the time at which the motion reaches the border, or leaves one on which it slid.
    In the second case the force is continuous, and the time matters to second derivatives only.
    """
    trial_end = ends[1]
    slid = switched & pieces.slid(trial_end.where)
    crossed = switched & ~slid

    def value(t: Array, q: Array, v: Array, args: object) -> Array:
        level = jnp.sum(jnp.where(crossed, pieces.levels(trial_end.where.sides, t, q, v, args), 0))
        if len(pieces.steep) == 0:
            return level
        margin = lambda: jnp.sum(
            jnp.where(slid, pieces.margins(trial_end.where, t, q, v, trial_end.closed, trial_end.slack, args), 0)
        )
        return level + lax.cond(jnp.any(slid), margin, lambda: jnp.zeros_like(level))

    none = jnp.zeros((), jnp.int32)
    return lax.cond(
        jnp.any(switched), lambda: move_to_zero(hold, value, t, ends, substep, args), lambda: (trial_end, none)
    )


def border_status(
    pieces: Pieces,
    where: Where,
    level_values: LevelValues,
    touches: Array,
    off: Array,
    end: tuple[Array, Array, Array],
    closed: Array,
    args: object,
) -> Array:
    """Returns the status of derivatives at the ``end`` (t, q, v) of a trial, with ``closed`` contacts (m,).

    DERIVATIVE_JUMP if the motion touches, or nearly touches, a border without crossing it, or is within a time ``off``
    () of crossing one, and the force jumps there. ``where``: the sides on which the trial was made; ``level_values``:
    record of the levels in it; ``touches`` (k,): those that touch zero at its end.
    """
    value, rate = level_values.after
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


def _jumps(pieces: Pieces, of: list[Sides], t: Array, q: Array, v: Array, closed: Array, args: object) -> Array:
    """Tests whether accelerations, or velocities that joints and slips prescribe, differ on two lists of sides,
    given as ``of``, ().

    ``closed`` contacts (m,) are kept closed.
    """
    t, q, v, args = frozen((t, q, v, args))
    thrown = _unequal(*(pieces.prescribed_velocities(sides, t, q, v, args) for sides in of))
    return thrown | _unequal(*pieces.accelerations(of, t, q, v, closed, args))


def _unequal(a: Array, b: Array) -> Array:
    """Tests whether two accelerations differ, ()."""
    return jnp.any(_differ(*frozen((a, b))))


def _differ(a: Array, b: Array) -> Array:
    """Returns the mask of numbers that differ by more than a small fraction."""
    return jnp.abs(a - b) > SLIGHT * (jnp.abs(a) + jnp.abs(b))


def _resets(pieces: Pieces, near: Array) -> Array:
    """Tests whether one of the borders ``near`` (k,) is a surface that the problem states and at
    which it resets the state, ()."""
    return jnp.any(near[pieces.stated]) & (pieces.problem.reset is not None)


def jumps_beyond(pieces: Pieces, sides: Sides, near: Array, here: tuple[Array, Array, Array], args: object) -> Array:
    """Tests whether the force or the mass jumps across one of the borders whose levels are ``near`` zero (k,) at the
    state ``here`` (t, q, v), ().

    On a surface that the problem states the force is assumed to jump.
    """

    def jumps(one: Array) -> Array:
        def level(here: tuple[Array, Array, Array]) -> Array:
            return jnp.sum(jnp.where(one, pieces.levels(sides, *here, args), 0))

        value, slope = jax.value_and_grad(level)(here)
        square = sum(jnp.sum(x * x) for x in slope)
        there = tuple(x - value / jnp.where(square > 0, square, 1) * dx for x, dx in zip(here, slope, strict=True))
        across = pieces.at_sides(pieces.start(*here, args), sides, *here, args)
        beyond = pieces.beyond(across, one, *there, args)
        frozen = lambda x: pieces.switches.frozen(x[0], *x[1], args)
        of = [(x, y) for y in (there, here) for x in (sides, beyond)]
        values = lax.map(frozen, jax.tree.map(lambda *x: jnp.stack(x), *of))
        # the difference of two continuations: across a kink it is zero on the surface
        found = [
            jnp.any(jnp.abs(y - x) > 0.5 * jnp.abs(b - a) + SLIGHT * (jnp.abs(x) + jnp.abs(y))) for x, y, a, b in values
        ]
        return jnp.any(jnp.stack(found))

    def of_all() -> Array:
        stated, no = jnp.any(near[pieces.stated]), jnp.zeros((), bool)
        each = lambda one: lax.cond(jnp.any(one & near), jumps, lambda _: no, one)
        return stated if pieces.only_stated else stated | jnp.any(lax.map(each, jnp.eye(pieces.count, dtype=bool)))

    return lax.cond(jnp.any(near), of_all, lambda: jnp.zeros((), bool))


class SettledSides(NamedTuple):
    """Result of `settle_sides`: the sides on which a motion goes on, ``where``, its velocity v (d,), status bits for
    the borders it has crossed, and ``at_start`` those that apply if the motion begins at this state."""

    where: Where
    v: Array
    status: Array
    at_start: Array


class _Choice(NamedTuple):
    """Decision about the n levels that depend on the velocity.

    Several levels may describe one border; the first of them stands for it. ``rows`` (n, n): in the row of a first
    level, the mask of the levels of its border, else false. Masks (n,): ``slides``, first levels on whose border the
    motion slides; ``pushed``, all levels on whose border the force beyond pushes the motion back; ``crossed``, all
    levels whose border is crossed. ``edge`` (): whether the motion is on the edge between sliding on a border and
    crossing it, as the force on one side is parallel to the border.
    """

    rows: Array
    slides: Array
    pushed: Array
    crossed: Array
    edge: Array


def settle_sides(
    pieces: Pieces,
    where: Where,
    t: Array,
    q: Array,
    v: Array,
    closed: Array,
    loosed: Array,
    atol: Array,
    span: Array,
    args: object,
    off: Array | None = None,
    by: By | None = None,
) -> SettledSides:
    """Decides on which sides a motion goes on from a state, and on which borders it slides.

    If it crosses a border there, or begins to slide on it, the velocity gets the derivative
    of the time at which it does.

    Args:
        where: the sides on which the motion was before, which tell from which side it comes to a border.
        closed: contacts (m,) that are closed.
        loosed: levels (k,) whose borders the motion has just left after sliding on them;
            it does not begin to slide there again.
        atol: error () of levels, as by the tolerance of `EventDriven`.
        span: time scale () of the motion, for rounding of time.
        off: errors (k,) of the levels beyond rounding, if known.
        by: what derivatives are taken by, if known, for ``at_start``.
    """
    now = frozen((t, q, v, args))
    slack, none, slid = jnp.zeros_like(t), jnp.zeros((len(pieces.steep),) * 2, bool), pieces.slid(where)
    eps = ROUNDING * jnp.finfo(q.dtype).eps
    level, terms = levels_and_terms(pieces, where.sides, *now)
    spare = NOTHING * atol + eps * terms
    spare = spare if off is None else jnp.maximum(spare, off)
    known = pieces.sides_of(jnp.abs(level) <= jnp.maximum(spare, where.roundoff))
    sides = pieces.switches.chosen(known, where.sides, *now)
    before = pieces.held_on(sides, t, q, v, closed, slack, args)[0]
    moving = pieces.rates(sides, t, q, v, before, args)
    level, rate = frozen(moving)
    roundoff = spare + eps * span * jnp.abs(rate)
    where = pieces.at_sides(where, sides, *now)._replace(roundoff=roundoff, slides=none)
    near = level <= roundoff

    at = t, q, v, closed, loosed, atol, span, args
    decided = lambda: _settle_near_border(pieces, where, slid, moving, before, *at, by)
    plain = lambda: SettledSides(where, v, pieces.status_of_sides(where.sides), jnp.zeros((), jnp.int32))
    close = near.at[pieces.steep].set(level[pieces.steep] <= jnp.maximum(roundoff[pieces.steep], atol))
    return lax.cond(jnp.any(close), decided, plain)


def rounding_of_levels(
    pieces: Pieces, sides: Sides, t: Array, q: Array, v: Array, a: Array, atol: Array, span: Array, args: object
) -> Array:
    """Returns how far below zero the levels (k,) of given sides may be; a (d,): acceleration,
    the others as of `settle_sides`."""
    t, q, v, a, args = frozen((t, q, v, a, args))
    _, terms = levels_and_terms(pieces, sides, t, q, v, args)
    _, rate = pieces.rates(sides, t, q, v, a, args)
    return NOTHING * atol + ROUNDING * jnp.finfo(q.dtype).eps * (terms + span * jnp.abs(rate))


def levels_and_terms(pieces: Pieces, sides: list, t: Array, q: Array, v: Array, args: object) -> tuple[Array, Array]:
    """Returns levels (k,) and estimates (k,) of the magnitudes of their terms, from which round-off follows.

    The estimates are derivatives in the direction (t, 0.618 q, 1.618 v),
    in which terms that cancel at (t, q, v) do not.
    """
    levels = lambda t, q, v: pieces.levels(sides, t, q, v, args)
    level, terms = jax.jvp(levels, (t, q, v), (t, 0.618 * q, 1.618 * v))
    return level, jnp.abs(terms)


def _settle_near_border(
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
    args: object,
    by: By | None,
) -> SettledSides:
    """As `settle_sides`, at a state near a border.

    ``slid`` (k,): levels on whose borders the motion slid before; ``moving``: levels and their rates (k,) with the
    acceleration ``before`` (d,) on the sides where the motion was.
    """
    now = frozen((t, q, v, args))
    (level, rate), a = frozen(moving), frozen(before)
    near = level <= where.roundoff
    # a rate whose square is zero crosses nothing: the time of crossing would have no derivative
    crossed, steep = near & (rate < -(jnp.finfo(q.dtype).tiny ** 0.5)), len(pieces.steep) > 0
    slides, hard, edge = jnp.zeros_like(level, bool), jnp.zeros_like(level, bool), jnp.zeros((), bool)
    if steep:
        ahead = _sides_after_crossing(pieces, where, crossed, near, rate, a, span, now)
        choice = _choice(pieces, ahead, level, near, closed, loosed, atol, now)
        where = where._replace(slides=choice.rows & choice.slides[:, None])
        slides, hard, edge = pieces.slid(where), pieces.all_levels(choice.pushed), choice.edge
        steep_levels = pieces.all_levels(jnp.ones(len(pieces.steep), bool))
        crossed = jnp.where(steep_levels, pieces.all_levels(choice.crossed), crossed)
    old, new = where.sides, sides_behind(pieces, where, crossed, hard, slides | (near & ~crossed), rate, a, span, now)
    # where nothing moves and the motion stays on a border without sliding, the sides are those of the function itself
    idle = (level == 0) & (rate == 0) & ~(slides | hard | crossed)
    edge |= _side_matters(pieces, where, idle & pieces.open, t, q, v, closed, args)
    of_idle = zip(pieces.sides_of(idle), pieces.switches.sides(*now), new, strict=True)
    new = [jnp.where(i, x, y) for i, x, y in of_idle]

    # borders crossed at one instant: its time has the derivative of the first one's; where sliding ends, that is the
    # border that ends it
    some, own = jnp.any(crossed), jnp.where(jnp.any(crossed & ~slid), crossed & ~slid, crossed)
    main = own & (jnp.arange(len(level)) == jnp.argmax(own))
    delay = -jnp.sum(jnp.where(main, moving[0] / jnp.where(main, moving[1], 1), 0))
    # with other data, a motion that begins here may begin on the other side
    may = near & ~slides & pieces.moved_at_start(by, *now)
    back = jnp.max(jnp.where(may, FURTHER * where.roundoff / jnp.where(rate == 0, 1, jnp.abs(rate)), 0))
    back = jnp.minimum(back, SOON * span)
    behind = pieces.switches.definite(t - back, q - back * frozen(v), frozen(v) - back * a, now[3])
    after, other = pieces.accelerations([new, behind], t, q, v, closed, args)
    jumps = _unequal(after, other) | _jumps(pieces, [new, behind], t, q, v, jnp.zeros_like(closed), args)
    at_start = as_status((back > 0) & (jumps | _resets(pieces, may)), Status.DERIVATIVE_JUMP)
    v = v + jnp.where(some, delay * (before - after), 0)
    at_once = some & _unequal(before, after) & cross_apart(pieces, old, own, main, now, rate)
    status = as_status(at_once, Status.DERIVATIVE_EVENTS) | as_status(edge, Status.DERIVATIVE_JUMP)
    status |= pieces.status_of_sides(new)
    where = pieces.at_sides(where, new, *now)
    if steep:
        where = pieces.across_slides(where, *now)
        v = pieces.put_back(where, t, q, v, closed, args)
    return SettledSides(where, v, status, at_start)


def _side_matters(
    pieces: Pieces, where: Where, idle: Array, t: Array, q: Array, v: Array, closed: Array, args: object
) -> Array:
    """Tests whether the motion depends on the side on which the force is taken, for borders on which nothing moves, ().

    ``idle`` (k,): the levels of these borders, which are zero and stay zero. The side matters if accelerations differ,
    or if ``closed`` contacts (m,) are pressed on one side only.
    """
    t, q, v, args = frozen((t, q, v, args))

    def looked() -> Array:
        on = lambda sides: pieces.held_on(sides, t, q, v, closed, jnp.zeros_like(t), args)
        both = [where.sides, pieces.beyond(where, idle, t, q, v, args)]
        a, _, push, _ = lax.map(on, jax.tree.map(lambda *x: jnp.stack(x), *both))
        lets_go = _differ(*push) & (jnp.min(push, axis=0) <= EDGE * jnp.max(push, axis=0))
        return _unequal(*a) | jnp.any(closed & lets_go)

    return lax.cond(jnp.any(idle), looked, lambda: jnp.zeros((), bool))


def _sides_after_crossing(
    pieces: Pieces, where: Where, crossed: Array, near: Array, rate: Array, a: Array, span: Array, now: tuple
) -> Where:
    """Returns ``where`` with the sides after crossing only those of the ``crossed`` borders (k,) whose levels
    do not depend on the velocity.

    This comes before the decision whether the motion slides on the others. The arguments are those of `sides_behind`;
    ``near`` (k,): levels that are zero up to their errors.
    """
    flat = crossed & ~pieces.all_levels(jnp.ones(len(pieces.steep), bool))
    sides = sides_behind(pieces, where, flat, jnp.zeros_like(flat), near & ~flat, rate, a, span, now)
    return pieces.at_sides(where, sides, *now)


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
    """Returns the sides after borders are ``crossed`` (k,): those at a point a little further on the motion,
    away from the borders.

    For borders that the motion would not leave by itself, as the force pushes it back (``hard``, (k,)) or as it is too
    slow, they are the sides across; for borders of levels ``kept`` (k,) sides do not change. ``rate`` (k,): rates of
    the levels; ``a`` (d,): acceleration; ``span`` (): time scale of the motion; ``now`` = (t, q, v, args).
    """
    t, q, v, args = now
    times = FURTHER * where.roundoff / jnp.where(crossed, jnp.abs(rate), 1)
    turned = crossed & (hard | (times > SOON * span))
    s = jnp.max(jnp.where(crossed & ~turned, times, 0))
    given = pieces.beyond(where, turned, *now)
    return pieces.switches.chosen(pieces.sides_of(turned | kept), given, t + s, q + s * v, v + s * a, args)


def _choice(
    pieces: Pieces,
    where: Where,
    level: Array,
    near: Array,
    closed: Array,
    loosed: Array,
    atol: Array,
    now: Held,
) -> _Choice:
    """Decides on which borders the motion slides, because the forces of both sides push towards them,
    and which it crosses.

    ``near`` (k,): levels that are zero up to their errors; the other arguments as of `settle_sides`,
    ``now`` = (t, q, v, args).
    """
    t, q, v, args = now
    of_steep = lambda x: x[pieces.steep]
    level, near, loosed = of_steep(level), of_steep(near), of_steep(loosed)
    candidate = level <= jnp.maximum(of_steep(where.roundoff), atol)
    # a border may be written twice
    gradient = jax.jacfwd(lambda v: of_steep(pieces.levels(where.sides, t, q, v, args)))(v)
    products = gradient @ gradient.T
    norms = jnp.sqrt(jnp.diagonal(products))
    lengths = norms[:, None] * norms[None, :]
    same = (products >= (1 - SAME) * lengths) & ((lengths > 0) | jnp.eye(len(level), dtype=bool))
    same &= candidate[:, None] & candidate[None, :]
    first = candidate & (jnp.argmax(same, axis=1) == jnp.arange(len(level)))
    rows = same & first[:, None]
    there = pieces.across_slides(where._replace(slides=rows), *now)
    _, rates = frozen(pieces.each(there, t, q, v, closed, jnp.zeros_like(t), args))
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
    # then it slides for some data nearby, and leaves for others
    least = jnp.minimum(jnp.abs(own), jnp.abs(own + turns))
    edge = jnp.any(first & near & ~loosed & (jnp.abs(turns) > 0) & (least <= EDGE * jnp.abs(turns)))
    return _Choice(rows, slides, of_all(pushed), of_all(crossed), edge)


def cross_apart(pieces: Pieces, sides: list, crossed: Array, main: Array, now: tuple, rate: Array) -> Array:
    """Tests whether levels that are ``crossed`` (k,) at the same time would be crossed at
    different times with other data, ().

    ``main`` (k,): the one with whose time the others are compared; ``rate`` (k,): rates of the levels;
    ``now`` = (t, q, v, args).
    """
    if pieces.count < 2:
        return jnp.zeros((), bool)
    t, q, v, args = now
    _, change = jax.jvp(lambda q, v: pieces.levels(sides, t, q, v, args), (q, v), generic_change((q, v)))
    delays = jnp.where(crossed, change / jnp.where(crossed, rate, 1), 0)
    first = jnp.sum(jnp.where(main, delays, 0))
    return jnp.any(crossed & (jnp.abs(delays - first) > SLIGHT * (jnp.abs(delays) + jnp.abs(first))))


def status_of_slopes(
    pieces: Pieces, of: list[Sides], t: Array, q: Array, v: Array, closed: Array, span: Array, args: object
) -> Array:
    """Returns DERIVATIVE_JUMP if a force has no finite slope at the border where a motion is,
    as sqrt(max(q, 0)) at q = 0.

    Its slope along the motion then is far from constant within rounding of the border. ``of``: the sides before and
    behind the border; ``closed`` (m,) and ``span`` () as of `settle_sides`.
    """
    t, q, v, args = frozen((t, q, v, args))
    near, open_ = NEARBY * jnp.finfo(q.dtype).eps * span, jnp.zeros_like(closed)

    def slopes(x: tuple[Sides, Array]) -> Array:
        sides, s = x
        none = jnp.zeros_like(t)
        force = lambda s, a: held(pieces.on(sides), t + s, q + s * v, v + s * a, open_, none, args)[0]
        a = force(none, jnp.zeros_like(v))
        return jnp.stack(jax.jvp(lambda s: force(s, a), (s,), (jnp.ones_like(s),)))

    both = jax.tree.map(lambda *x: jnp.stack(x), of[0], of[0], of[1], of[1])
    found = lax.map(slopes, (both, near * jnp.array([-16, -1, 1, 16], q.dtype)))
    close, far, a = found[1:3, 1], found[::3, 1], found[:, 0]
    steep = jnp.abs(close) * span > jnp.max(jnp.abs(a)) + jnp.max(jnp.abs(v)) / span
    singular = ~jnp.isfinite(close) | (steep & (jnp.abs(close - far) > UNEQUAL * jnp.abs(close)))
    return as_status(jnp.any(singular), Status.DERIVATIVE_JUMP)
