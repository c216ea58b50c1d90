"""One step of `EventDriven`: a loop over trials, and the treatment of events at the end of accepted ones.

The loop carries a `TrialCarry`; its constant inputs are a `Step`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...switches.switches import Kinks
from ..contact.friction.cones import SLIP
from ..events.event_state import Event
from ..events.frictionless_impacts import WithoutFriction
from ..events.impacts import collide, lasting_at_end
from ..events.jump_search import path_jumped
from ..events.short_flights import ShortFlights
from ..scheme import JointInfo, Step, gradient_status
from ..status import FAILURES, Status, as_status
from .bases import at_impact, base_at, times_off
from .borders import SettledSides, border_status, seek_border, settle_sides, status_of_slopes
from .impacts_on_borders import Meeting, status_at_impact, status_behind
from .jolts import Jolt, force_in_pieces, in_pieces, jolt_at_end, status_of_crossing
from .kept_events import Turn, keep_events
from .pieces import Pieces, Where
from .resets import cross_border
from .rubbing import Change, RubbingContacts, ends_of_modes
from .searches import TOGETHER, Search, Verdict, decide_on_trial, event_met
from .stops import check_surface, move_to_zero, surface_to_watch
from .tableau import TABLEAUS
from .totals import StepTotals, add_joint_impulse, add_late_impulse
from .trial import Base, Hold, Trial, attempt, frozen, grazes, held

SHORT = 16  # roundings of time, below which no substep is taken
ROUNDED = 4  # roundings of a position that a trial adds to the error
APPROACH = 1e-3  # fraction of a trial's displacement over which the linearisation of a gap is checked


class TrialCarry(NamedTuple):
    """Carry of the loop over trials: the ``base`` they begin from, the ``search`` that says which is next, and the
    totals ``told`` so far."""

    base: Base
    search: Search
    told: StepTotals


def first_carry(step: Step, state: Any) -> TrialCarry:
    """Makes the first carry of the loop over trials from a `DrivenState`."""
    n, q, v, closed, latest, substep, low, record, stop, where, until, spread = state
    m, zero, none = closed.shape[0], jnp.zeros((), q.dtype), jnp.zeros((), jnp.int32)
    substep = frozen(jnp.minimum(substep, step.length) if step.scheme.by_tolerance else step.length)
    step = in_pieces(step, q, v)
    # zeros that depend on v, as in later iterations: the derivative of an iteration is traced once
    moves = jnp.where(jnp.zeros((), bool), v[0], zero)
    if step.problem.slip is None:
        base, failure, _ = _settle(step, step.start, moves, q, v, closed, jnp.zeros_like(closed), substep, where)
    else:
        base, failure = _settle_rubbing(
            step, step.start, moves, q, v, closed, substep, where, Change.none(m, step.pieces.pieces.count), n == 0
        )
        if step.pieces.pieces.count and step.scheme.jumps:
            doubt = step.pieces.status_of_start(
                where, step.motion.h, step.start, q, v, step.motion.by, step.motion.args
            )
            failure |= jnp.where(n == 0, doubt, 0)
    search = Search(substep, substep, none, jnp.zeros(m, bool), zero, zero, zero, zero, n < 0, none)
    if step.pieces is not None:
        search = search._replace(borders=jnp.zeros(step.pieces.count, bool))
        if step.problem.slip is None:
            # a first trial of length zero finds the sides on which the motion begins
            search = search._replace(s=jnp.where(n == 0, 0, substep))
    joints = JointInfo.none(step.problem, q, step.motion.args)
    impulse, no = jnp.broadcast_to(moves, base.force.shape), jnp.zeros(m, bool)
    told = StepTotals(impulse, no, zero, latest, none, failure, record, stop, joints, zero, until, spread, none - 1)
    return TrialCarry(base._replace(low=low), search, told)


def goes_on(step: Step, carry: TrialCarry) -> Array:
    """Tests whether the loop over trials goes on, ()."""
    base, search, told = carry
    sound = jnp.all(jnp.isfinite(base.q)) & jnp.all(jnp.isfinite(base.v))
    sound = sound if told.stop is None else sound & ~told.stop.stopped
    return (base.elapsed < step.length) & (told.trials < step.scheme.trials) & sound & (search.substep > 0)


def turn(step: Step, carry: TrialCarry) -> TrialCarry:
    """Makes one iteration of the loop: a trial, the decision on it, and, if it is accepted, the events at its end."""
    base, search, told = carry
    step = in_pieces(step, base.q, base.v, base.a)
    scheme, problem, _, motion, start, whole, pieces = step
    args, t = motion.args, start + base.elapsed
    rest = whole - base.elapsed
    covers = search.s >= frozen(rest) * (1 - 1e-10)
    s = jnp.where(covers, rest, search.s)
    lasts: Any = jnp.inf
    if isinstance(pieces, RubbingContacts):
        jams, most = jnp.any(base.where.jammed), pieces.longest(base.where)
        covers, s = covers & ~jams & (s <= most), jnp.where(jams, 0, jnp.minimum(s, most))
        base, lasts = pieces.steer(base, t, s, args, TABLEAUS[scheme.order].stable)
    tolerance = scheme.tolerance(base.q.dtype)
    hold = partial(held, problem) if pieces is None else pieces.hold(base.where)
    of_force, piece = force_in_pieces(step, base.where)
    bound = of_force.bound(piece.sides)
    borders = None if pieces is None else pieces.watch(*frozen((base.where, base.closed, base.slack, args)))
    since = t - motion.t0 if scheme.changes and scheme.by_tolerance else None
    found = attempt(
        bound, scheme.order, t, base, s, tolerance, args, hold, surface_to_watch(scheme.until, told.stop, args),
        borders, since, lasts
    )  # fmt: skip
    if isinstance(pieces, RubbingContacts) and scheme.by_tolerance:
        found = found._replace(error=jnp.maximum(found.error, pieces.unsure(base, tolerance)))
    shortest = SHORT * jnp.finfo(s.dtype).eps * frozen(jnp.abs(t) + whole)
    known = jax.tree.map(frozen, found)
    verdict = decide_on_trial(base, search, known, frozen(s), shortest, frozen(whole), TABLEAUS[scheme.order])
    stops: Any = False
    switched = None
    if pieces is not None:
        verdict, switched = seek_border(
            search, verdict, known, known.borders, pieces.slid(base.where), frozen(s), shortest
        )
    if scheme.until is not None and told.stop is not None:
        sought, stops = check_surface(scheme.until, told.stop, search, verdict, known, frozen(s), shortest)
        verdict = sought if pieces is None else jax.tree.map(partial(jnp.where, s > 0), sought, verdict)
        stops = stops if pieces is None else stops & (s > 0)
    told = told._replace(trials=told.trials + 1, near=event_met(search, verdict, switched, told.near))

    def accept() -> TrialCarry:
        flown = base.behind(found, s)
        status = told.status | _doubts(step, base, found, frozen(s), covers)
        status |= found.joint_status
        joints = add_joint_impulse(told.joints, found.joint_impulse, found.joint_residual)
        began, has_reset, impulse = base, jnp.zeros((), bool), told.impulse + found.impulse
        if pieces is not None and switched is not None:
            cross = pieces.end if isinstance(pieces, RubbingContacts) else partial(cross_border, pieces)
            flown, has_reset, bits = cross(hold, switched, t, base, flown, search.substep, tolerance.absolute, args)
            late = flown.elapsed - base.elapsed - s
            joints, impulse = add_late_impulse(joints, late, flown), impulse + late * flown.force
            began, status = base._replace(closed=flown.closed), status | bits
        if scheme.until is not None:
            end = partial(move_to_zero, hold, scheme.until.value, t + s, flown, search.substep, args)
            stopped, bits = lax.cond(stops, end, lambda: (flown, jnp.zeros((), jnp.int32)))
            late = stopped.elapsed - flown.elapsed
            joints, impulse = add_late_impulse(joints, late, flown), impulse + late * flown.force
            flown, status = stopped, status | bits
        error = told.error + known.error + ROUNDED * jnp.finfo(s.dtype).eps / tolerance.relative
        more = told._replace(joints=joints, impulse=impulse, status=status, error=error)
        after, more = _onward(step, hold, t, began, flown, verdict, switched, more)
        if scheme.until is not None and told.stop is not None:
            at = (start + after.elapsed, after.q, after.v)
            # contacts that close at the same time have an impulse too
            met_now = _normal(more.impulse) > _normal(impulse)
            struck = frozen(verdict.impact | (~base.closed & met_now & jnp.any(verdict.impact)))
            stop = told.stop.after(scheme.until, *at, args, known.sight, stops, struck, has_reset)
            more = more._replace(
                stop=stop if pieces is None else jax.tree.map(partial(jnp.where, s > 0), stop, told.stop)
            )
        ended = covers & ~jnp.any(verdict.impact)
        after = after._replace(elapsed=jnp.where(ended, whole, after.elapsed))
        left = frozen(whole - after.elapsed)
        following = verdict.search._replace(
            s=jnp.minimum(verdict.search.substep, left), sought=search.sought * 0, turns=search.turns * 0
        )
        if pieces is not None:
            following = following._replace(borders=jnp.zeros_like(following.borders))
        return TrialCarry(after, following, more)

    return lax.cond(verdict.accepted, accept, lambda: TrialCarry(base, verdict.search, told))


def _doubts(step: Step, base: Base, found: Trial, s: Array, covers: Array) -> Array:
    """Returns the status bits of derivatives across an accepted trial ``found`` of length s from a base.

    They are set for jumps within the trial that were not located, and for contacts and borders of the force that it
    grazes. ``covers`` (): whether the trial goes to the end of the step.
    """
    none = jnp.zeros((), jnp.int32)
    scheme, _, _, motion, start, whole, pieces = step
    if not scheme.jumps:
        return none
    args = frozen(motion.args)
    t = start + base.elapsed
    off = scheme.resolution(motion)
    # a contact that an edge releases may be open just before it
    path = frozen(((t, base.q, base.v), (t + s + off, found.q + off * found.v, found.v)))
    of_force, piece = force_in_pieces(step, frozen(base.where))
    jumps = path_jumped(of_force.on(piece.sides), base.closed, *path, args)
    status = none if jumps is None else as_status(jumps, Status.DERIVATIVE_JUMP)
    near = grazes(frozen(base), frozen(found), s, scheme.tolerance(s.dtype), 0 if scheme.by_tolerance else motion.h)
    status = status | as_status(near, Status.DERIVATIVE_EVENTS)
    if pieces is None:
        return status
    ending = covers & (start + whole > motion.t1 - 0.5 * off)
    unknown = scheme.unresolved(motion.h)
    if isinstance(pieces, RubbingContacts):
        unknown = pieces.unresolved(s, unknown)
    touches = frozen(found.borders).touches(s, scheme.tolerance(s.dtype).absolute, unknown)
    if isinstance(pieces, RubbingContacts):
        known = frozen((base.where, found.borders))
        return status | pieces.status_of_trial(*known, touches, jnp.where(ending, off, 0))
    return status | border_status(
        pieces,
        frozen(base.where),
        frozen(found.borders),
        touches,
        jnp.where(ending, off, 0),
        path[1],
        base.closed,
        args,
    )


def _onward(
    step: Step,
    hold: Hold,
    began: Array,
    base: Base,
    flown: Base,
    verdict: Verdict,
    switched: Array | None,
    told: StepTotals,
) -> tuple[Base, StepTotals]:
    """Treats the events at the end of an accepted trial: returns the base from which the motion goes on,
    and the totals.

    The trial began at time ``began`` from ``base`` and led to ``flown``. ``verdict``: the decision on it; ``switched``
    (k,): the level on whose border it ends, None for a force without pieces; ``told``: the totals before these events.
    """
    pieces, motion = step.pieces, step.motion
    m, event = base.closed.shape[0], jnp.any(verdict.impact | verdict.loosed)
    if m == 0 and pieces is None:
        return flown, told
    # the trial of length zero with which a motion under a force in pieces begins
    begins = (frozen(flown.elapsed) <= 0) & (began <= motion.t0) & isinstance(pieces, Pieces)
    turned = event if switched is None else event | jnp.any(switched) | begins
    if m:
        arrive = lambda: _arrive(step, hold, began, base, flown, verdict, switched, begins, told)
        if isinstance(pieces, RubbingContacts) and switched is not None:
            arrive = lambda: _arrive_rubbing(step, hold, began, base, flown, verdict, switched, told)
        return lax.cond(turned | jnp.any(base.closed), arrive, lambda: (flown, told))

    def settle() -> tuple[Base, StepTotals]:
        t = began + (flown.elapsed - base.elapsed)
        jolt, _ = jolt_at_end(step, t, flown.q, flown.v, flown, switched)
        at = (t, flown.elapsed, flown.q, jolt.v, base.closed, base.closed)
        after, status, at_start = _settle(step, *at, verdict.search.substep, flown.where, switched, begins)
        status = status | jolt.status | jnp.where(begins, at_start, 0)
        joints = add_joint_impulse(told.joints, jolt.joint_impulse)
        return after._replace(low=flown.low), told._replace(status=told.status | status, joints=joints)

    return lax.cond(turned, settle, lambda: (flown, told))


def _arrive(
    step: Step,
    hold: Hold,
    began: Array,
    base: Base,
    flown: Base,
    verdict: Verdict,
    switched: Array | None,
    begins: Array,
    told: StepTotals,
) -> tuple[Base, StepTotals]:
    """Treats contacts at the end of a trial, as part of `_onward`, whose arguments and results it has.

    Puts closed contacts back onto their surfaces, applies the impact law if the trial ends at an impact, and releases
    contacts that open. ``begins`` (): whether this is the trial of length zero with which a motion
    under a force in pieces begins.
    """
    scheme, _, law, motion, *_, pieces = step
    args, substep = motion.args, verdict.search.substep
    event, delay, closed, candidates, near, flights, spread, jolt, _ = _arrival(
        step, hold, began, base, flown, verdict, switched, told
    )
    problem = jolt.problem
    t, q, v, metric, contacts, speed = event
    found = collide(problem, law, motion, flights, event, WithoutFriction(closed), candidates, near, spread)
    moved = APPROACH * frozen(flown.q - base.q)
    status = found.status | gradient_status(law, problem, metric, contacts, t, q, moved, candidates, args)
    if pieces is not None and scheme.jumps:
        where = base.where._replace(allowed=flown.where.allowed)
        meeting = Meeting((t, q, v, args), base.a, candidates & ~jolt.struck, speed, motion.e)
        status |= status_at_impact(problem, pieces, where, scheme.resolution(motion), meeting)
    at = (t, flown.elapsed + delay, found.q, found.v, found.closed & ~verdict.loosed, verdict.loosed)
    changed = begins | jnp.any(verdict.impact) | jnp.any(verdict.loosed | (found.closed != base.closed))
    after, failure, at_start = _settle(step, *at, substep, flown.where, switched, changed)
    failure = failure | jolt.status | jnp.where(begins, at_start, 0)
    if switched is not None and pieces is not None and scheme.jumps:
        failure |= status_behind(pieces, after, jnp.any(switched), t, scheme.resolution(motion), args)
    record = told.record
    if record is not None:
        met = Turn(found.impact, found.impulse, t, found.q, v, found.v, verdict.loosed)
        ends = base._replace(closed=base.closed & ~begins), flown, after
        record, bits = keep_events(record, scheme.kinds, met, pieces, hold, began, ends, substep, args)
        failure |= bits
    more = told.with_collision(found, jolt.joint_impulse, flown, delay, t, spread, status | failure)
    return after._replace(low=flown.low), more._replace(record=record)


class _Arrival(NamedTuple):
    """The end of a trial: the state there as an ``event``, the ``delay`` () of an impact behind the trial, masks (m,)
    of contacts that are still ``closed``, that have an impact (``candidates``), and whose gaps are ``near`` zero; the
    ``flights`` that are too short to follow; the errors ``spread`` (m,) of the times between this impact and those of
    other contacts, None where no derivative is asked for; the ``jolt`` of a border that is crossed, and the pieces of
    the force with the one on which the trial was and the levels that are ``crossed``."""

    event: Event
    delay: Array
    closed: Array
    candidates: Array
    near: Array
    flights: ShortFlights
    spread: Array | None
    jolt: Jolt
    crossed: tuple[Pieces, Where, Array]


def _arrival(
    step: Step,
    hold: Hold,
    began: Array,
    base: Base,
    flown: Base,
    verdict: Verdict,
    switched: Array | None,
    told: StepTotals,
) -> _Arrival:
    """Finds what contacts meet at the end of a trial; arguments as of `_onward`."""
    scheme, problem, _, motion, *_ = step
    args, impact = motion.args, verdict.impact
    t = began + (flown.elapsed - base.elapsed)
    some = jnp.any(impact)
    delay, q, v = at_impact(problem, hold, t, flown, impact, verdict.search.substep, args)
    t, q, v = t + delay, jnp.where(some, q, flown.q), jnp.where(some, v, flown.v)
    jolt, crossed = jolt_at_end(step, t, q, v, flown, switched)
    event = Event.at(jolt.problem, t, q, jolt.v, args)
    contacts, speed = event.contacts, event.speed
    near = frozen(contacts.gap <= flown.allowed + TOGETHER * verdict.search.substep * jnp.abs(speed))
    kinks = Kinks.at(problem, began, base.q, args)
    closed, struck = lasting_at_end(kinks, event, base.closed, args)
    closed, struck = closed & ~jolt.struck & ~jolt.parted, struck | jolt.struck
    candidates, near = impact | struck, near | struck
    e = problem.restitution_at(motion.e, speed, args)
    low, unknown = scheme.tolerance(q.dtype).absolute, scheme.unresolved(motion.h)
    before = frozen((motion.t1 - motion.t0, e, contacts.gap, speed))
    flights = ShortFlights(low, unknown, *before, near | closed | candidates)
    spread = None
    if scheme.jumps:
        most = scheme.resolution(motion)
        spread = jnp.broadcast_to(most, speed.shape)
        if scheme.by_tolerance:
            spread = times_off(scheme.tolerance(q.dtype), most, told.until + told.error, *frozen((q, contacts, speed)))
        spread = jnp.minimum(spread + jnp.max(jnp.where(candidates, spread, 0)), most)
    return _Arrival(event, delay, closed, candidates, near, flights, spread, jolt, crossed)


def _arrive_rubbing(
    step: Step, hold: Hold, began: Array, base: Base, flown: Base, verdict: Verdict, switched: Array, told: StepTotals
) -> tuple[Base, StepTotals]:
    """As `_arrive`, for contacts that rub; ``switched`` (3m,): the level at whose zero the
    trial ends (`RubbingContacts`)."""
    scheme, _, law, motion, *_ = step
    args, none, substep = motion.args, jnp.zeros((), jnp.int32), verdict.search.substep
    event, delay, closed, candidates, near, flights, spread, jolt, (pieces, piece, crossed) = _arrival(
        step, hold, began, base, flown, verdict, switched, told
    )
    problem = jolt.problem
    t, q, v, metric, contacts, _ = event
    candidates = candidates | (closed & base.where.jammed)
    ends = ends_of_modes(step.pieces, problem, event, flown, switched, substep, args)
    stopped, apart, breaks, status = ends
    before = step.pieces.before(problem, event, base.where, ends, jolt.shoved, closed, args)
    found = collide(problem, law, motion, flights, event, before, candidates, near, spread)
    moved = APPROACH * frozen(flown.q - base.q)
    status |= found.status | gradient_status(law, problem, metric, contacts, t, q, moved, candidates, args)
    # behind a border all contacts are looked at anew, as behind an impact
    of_force = switched[3 * len(closed) :]
    struck = jnp.any(found.impact) | jnp.any(of_force)
    change = Change(verdict.loosed, stopped, breaks, found.rests, struck, of_force & pieces.slid(piece))
    elapsed, still_closed = flown.elapsed + delay, found.closed & ~verdict.loosed
    where = flown.where._replace(force=frozen(flown.force))
    if pieces.count:
        now = frozen((t, q, v, args))
        where = where._replace(piece=pieces.at_sides(piece, pieces.beyond(piece, crossed, *now), *now))
        status |= jolt.status | status_of_crossing(
            pieces, piece, crossed, verdict.impact, stopped | breaks, flown.a, now
        )
    after, failure = _settle_rubbing(step, t, elapsed, found.q, found.v, still_closed, substep, where, change, none > 0)
    # the force of those that go on to slip jumps at a time of their own
    status |= as_status(jnp.any(apart & (after.where.mode == SLIP)), Status.DERIVATIVE_EVENTS)
    record = told.record
    if record is not None:
        met = Turn(found.impact, found.impulse[:, 0], t, found.q, v, found.v, verdict.loosed, stopped, breaks)
        record, bits = keep_events(
            record, scheme.kinds, met, step.pieces, hold, began, (base, flown, after), substep, args
        )
        failure |= bits
    more = told.with_collision(found, jolt.joint_impulse, flown, delay, t, spread, status | failure)
    return after._replace(low=flown.low), more._replace(record=record)


def _settle_rubbing(
    step: Step, t: Array, elapsed: Array, q: Array, v: Array, closed: Array, substep: Array, where: Any, change: Change,
    begins: Array
) -> tuple[Base, Array]:  # fmt: skip
    """Makes the base at a state with contacts that rub, by `base_in_modes`; also returns its status."""
    atol = step.scheme.tolerance(q.dtype).absolute
    span = frozen(jnp.abs(t) + step.motion.h)
    base, status = step.pieces.base(
        t, elapsed, q, v, closed, where, change, begins, substep, atol, span, step.motion.args
    )
    return base, status if step.scheme.jumps else status & ~int(Status.DERIVATIVE_EVENTS)


def _normal(impulse: Array) -> Array:
    """Returns the normal impulses (m,) of impulses (m,) or, with friction, (m, 2)."""
    return impulse if impulse.ndim == 1 else impulse[:, 0]


def _settle(
    step: Step,
    t: Array,
    elapsed: Array,
    q: Array,
    v: Array,
    closed: Array,
    loosed: Array,
    substep: Array,
    where: Any,
    switched: Array | None = None,
    changed: Array | bool = False,
) -> tuple[Base, Array, Array]:
    """Makes the base at a state, as `base_at`, whose arguments are explained there; for a force in pieces on the sides
    where the motion goes on.

    The sides are the previous ones, ``where``, unless borders were ``switched`` (k,) or an event has ``changed`` ()
    velocities or contacts: then they are decided anew. Returns the base, its status, and the status of derivatives that
    applies if the motion begins at this state.
    """
    scheme, problem, law, motion, *_, pieces = step
    atol, args, none = scheme.tolerance(q.dtype).absolute, motion.args, jnp.zeros((), jnp.int32)
    if pieces is None:
        return *base_at(problem, law, t, elapsed, q, v, closed, loosed, substep, atol, args), none
    found = SettledSides(where, v, none, none)
    if switched is not None:
        span = frozen(jnp.abs(t) + motion.h)
        look = lambda: settle_sides(
            pieces, where, t, q, v, closed, switched & pieces.slid(where), atol, span, args, by=motion.by
        )
        old, found = where, lax.cond(jnp.any(switched) | changed, look, lambda: found)
        if scheme.jumps:
            slopes = lambda: status_of_slopes(pieces, [old.sides, found.where.sides], t, q, v, closed, span, args)
            found = found._replace(status=found.status | lax.cond(jnp.any(switched), slopes, lambda: none))
    where, v = found.where, found.v
    hold = pieces.hold(where)
    if closed.shape[0] == 0:
        a, force, push, of_joints = hold(t, q, v, closed, elapsed, args)
        at = (elapsed, q, v, a, closed, force, push, force, force, frozen(elapsed))
        base, status = Base(*at, joint_force=of_joints, where=where, held=jnp.zeros_like(t)), none
    else:
        local = pieces.local(where, t, q, v, closed, args)
        base, status = base_at(local, law, t, elapsed, q, v, closed, loosed, substep, atol, args)
        base = base._replace(where=where)
    if len(closed) and len(pieces.steep):
        again = lambda: hold(t, q, v, base.closed, base.slack, args)
        as_it_is = lambda: (base.a, base.force, base.push, base.joint_force)
        a, force, push, of_joints = lax.cond(jnp.any(where.slides), again, as_it_is)
        base = base._replace(a=a, force=force, push=push, joint_force=of_joints)
    status |= found.status if scheme.jumps else found.status & int(FAILURES)
    return base, status, found.at_start if scheme.jumps else none
