"""One step of `EventDriven`: a loop over trials, and the treatment of events at the end of accepted ones.

The loop carries a `TrialCarry`; its constant inputs are a `Step`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...switches.switches import Kinks
from ..events.event_state import Event
from ..events.impacts import collide, lasting_at_end
from ..events.jump_search import path_jumped
from ..events.short_flights import ShortFlights
from ..motion import At
from ..scheme import JointInfo, Step, gradient_status
from ..status import Status, as_status
from .bases import times_off
from .borders import seek_border
from .changes import Arrival, Change
from .jolts import jolt_at_end
from .kept_events import Turn, keep_events, normal_impulses
from .regimes import in_regime
from .searches import TOGETHER, Search, Verdict, decide_on_trial, event_met
from .short_moves import at_impact, move_to_zero
from .stops import check_surface, surface_to_watch
from .tableau import TABLEAUS
from .totals import StepTotals, add_joint_impulse, add_late_impulse
from .trial import ROUNDING, Base, Hold, Trial, attempt, frozen, grazes

if TYPE_CHECKING:
    from ..schemes.event_driven import DrivenState

SHORT = 16  # roundings of time, below which no substep is taken
ROUNDED = 4  # roundings of a position that a trial adds to the error
LOADED = 1e-6  # share of the largest contact force from which a contact counts as pressed
APPROACH = 1e-3  # fraction of a trial's displacement over which the linearisation of a gap is checked


class TrialCarry(NamedTuple):
    """Carry of the loop over trials: the ``base`` they begin from, the ``search`` that says which is next, and the
    ``totals`` so far."""

    base: Base
    search: Search
    totals: StepTotals


def first_carry(step: Step, state: DrivenState) -> TrialCarry:
    """Makes the first carry of the loop over trials from a `DrivenState`."""
    n, q, v, closed, latest, substep, low, record, stop, where, until, spread = state
    m, zero, none = closed.shape[0], jnp.zeros((), q.dtype), jnp.zeros((), jnp.int32)
    substep = frozen(jnp.minimum(substep, step.length) if step.scheme.by_tolerance else step.length)
    step = in_regime(step, q, v)
    # zeros that depend on v, as in later iterations: the derivative of an iteration is traced once
    moves = jnp.where(jnp.zeros((), bool), v[0], zero)
    base, failure = step.regime.first(step, n == 0, moves, q, v, closed, substep, where)
    borders = jnp.zeros(step.regime.count, bool)
    search = Search(substep, substep, none, jnp.zeros(m, bool), zero, zero, zero, zero, n < 0, none, borders)
    if step.regime.probes:
        # a first trial of length zero finds the sides on which the motion begins
        search = search._replace(s=jnp.where(n == 0, 0, substep))
    joints = JointInfo.none(step.problem, q, step.motion.args)
    impulse, no = jnp.broadcast_to(moves, base.force.shape), jnp.zeros(m, bool)
    totals = StepTotals(impulse, no, zero, latest, none, failure, record, stop, joints, zero, until, spread, none - 1)
    return TrialCarry(base._replace(low=low), search, totals)


def goes_on(step: Step, carry: TrialCarry) -> Array:
    """Tests whether the loop over trials goes on, ()."""
    base, search, totals = carry
    sound = jnp.all(jnp.isfinite(base.q)) & jnp.all(jnp.isfinite(base.v))
    sound = sound if totals.stop is None else sound & ~totals.stop.stopped
    return (base.elapsed < step.length) & (totals.trials < step.scheme.trials) & sound & (search.substep > 0)


def turn(step: Step, carry: TrialCarry) -> TrialCarry:
    """Makes one iteration of the loop: a trial, the decision on it, and, if it is accepted, the events at its end."""
    base, search, totals = carry
    step = in_regime(step, base.q, base.v, base.a)
    scheme, _, _, motion, start, whole, regime = step
    args, t = motion.args, start + base.elapsed
    rest = whole - base.elapsed
    covers = search.s >= frozen(rest) * (1 - 1e-10)
    s = jnp.where(covers, rest, search.s)
    base, s, covers, lasts = regime.steer(base, t, s, covers, args, TABLEAUS[scheme.order].stable)
    tolerance, hold = scheme.tolerance(base.q.dtype), regime.hold(base.where)
    bound = regime.pieces.bound(regime.piece(base.where).sides)
    borders = regime.watch(*frozen((base.where, base.closed, base.slack, args))) if regime.count else None
    since = t - motion.t0 if scheme.changes and scheme.by_tolerance else None
    found = attempt(
        bound, scheme.order, t, base, s, tolerance, args, hold, surface_to_watch(scheme.until, totals.stop, args),
        borders, since, lasts
    )  # fmt: skip
    if scheme.by_tolerance:
        found = found._replace(error=jnp.maximum(found.error, regime.unsure(base, tolerance)))
    shortest = SHORT * jnp.finfo(s.dtype).eps * frozen(jnp.abs(t) + whole)
    known = jax.tree.map(frozen, found)
    verdict = decide_on_trial(base, search, known, frozen(s), shortest, frozen(whole), TABLEAUS[scheme.order])
    stops: Any = False
    switched = search.borders
    if regime.count:
        slid = regime.slid(base.where)
        verdict, switched = seek_border(search, verdict, known, known.borders, slid, frozen(s), shortest)
    if scheme.until is not None and totals.stop is not None:
        sought, stops = check_surface(scheme.until, totals.stop, search, verdict, known, frozen(s), shortest)
        verdict, stops = jax.tree.map(partial(jnp.where, s > 0), sought, verdict), stops & (s > 0)
    totals = totals._replace(trials=totals.trials + 1, near=event_met(search, verdict, switched, totals.near))

    def accept() -> TrialCarry:
        trial_end = base.behind(found, s)
        status = totals.status | _doubts(step, base, found, frozen(s), covers)
        status |= found.joint_status
        joints = add_joint_impulse(totals.joints, found.joint_impulse, found.joint_residual)
        began, has_reset, impulse = base, jnp.zeros((), bool), totals.impulse + found.impulse
        if regime.count:
            trial_end, has_reset, bits = regime.end(
                hold, switched, t, base, trial_end, search.substep, tolerance.absolute, args
            )
            late = trial_end.elapsed - base.elapsed - s
            joints, impulse = add_late_impulse(joints, late, trial_end), impulse + late * trial_end.force
            began, status = base._replace(closed=trial_end.closed), status | bits
        if scheme.until is not None:
            end = partial(move_to_zero, hold, scheme.until.value, t, (base, trial_end), search.substep, args)
            stopped, bits = lax.cond(stops, end, lambda: (trial_end, jnp.zeros((), jnp.int32)))
            late = stopped.elapsed - trial_end.elapsed
            joints, impulse = add_late_impulse(joints, late, trial_end), impulse + late * trial_end.force
            trial_end, status = stopped, status | bits
        error = totals.error + known.error + ROUNDED * jnp.finfo(s.dtype).eps / tolerance.relative
        more = totals._replace(joints=joints, impulse=impulse, status=status, error=error)
        after, more = _onward(step, hold, t, began, trial_end, verdict, switched, more)
        if scheme.until is not None and totals.stop is not None:
            at = (start + after.elapsed, after.q, after.v)
            # contacts that close at the same time have an impulse too
            met_now = normal_impulses(more.impulse) > normal_impulses(impulse)
            struck = frozen(verdict.impact | (~base.closed & met_now & jnp.any(verdict.impact)))
            stop = totals.stop.after(scheme.until, *at, args, known.level_values, stops, struck, has_reset)
            more = more._replace(stop=jax.tree.map(partial(jnp.where, s > 0), stop, totals.stop))
        ended = covers & ~jnp.any(verdict.impact)
        after = after._replace(elapsed=jnp.where(ended, whole, after.elapsed))
        left = frozen(whole - after.elapsed)
        following = verdict.search._replace(
            s=jnp.minimum(verdict.search.substep, left), sought=search.sought * 0, turns=search.turns * 0,
            borders=jnp.zeros_like(search.borders),
        )  # fmt: skip
        return TrialCarry(after, following, more)

    return lax.cond(verdict.accepted, accept, lambda: TrialCarry(base, verdict.search, totals))


def _doubts(step: Step, base: Base, found: Trial, s: Array, covers: Array) -> Array:
    """Returns the status bits of derivatives across an accepted trial ``found`` of length s from a base.

    They are set for jumps within the trial that were not located, and for contacts and borders of the force that it
    grazes. ``covers`` (): whether the trial goes to the end of the step.
    """
    scheme, _, _, motion, start, whole, regime = step
    if not scheme.jumps:
        return jnp.zeros((), jnp.int32)
    args = frozen(motion.args)
    t = start + base.elapsed
    off = scheme.resolution(motion)
    # a contact that an edge releases may be open just before it
    path = frozen(((t, base.q, base.v), (t + s + off, found.q + off * found.v, found.v)))
    sides = frozen(regime.piece(base.where)).sides
    jumps = path_jumped(regime.pieces.on(sides), base.closed, *path, args)
    status = jnp.zeros((), jnp.int32) if jumps is None else as_status(jumps, Status.DERIVATIVE_JUMP)
    near = grazes(frozen(base), frozen(found), s, scheme.tolerance(s.dtype), 0 if scheme.by_tolerance else motion.h)
    status = status | as_status(near, Status.DERIVATIVE_EVENTS)
    if regime.count == 0:
        return status
    where, level_values = frozen((base.where, found.borders))
    ending = covers & (start + whole > motion.t1 - 0.5 * off)
    unknown = regime.unresolved(s, scheme.unresolved(motion.h))
    touches = level_values.touches(s, scheme.tolerance(s.dtype).absolute, unknown)
    return status | regime.status_of_trial(
        where, level_values, touches, jnp.where(ending, off, 0), path[1], base.closed, args
    )


def _onward(
    step: Step,
    hold: Hold,
    began: Array,
    base: Base,
    trial_end: Base,
    verdict: Verdict,
    switched: Array,
    totals: StepTotals,
) -> tuple[Base, StepTotals]:
    """Treats the events at the end of an accepted trial: returns the base from which the motion goes on,
    and the totals.

    The trial began at time ``began`` from ``base`` and led to ``trial_end``. ``verdict``: the decision on it;
    ``switched`` (k,): the level on whose border it ends; ``totals``: the totals before these events.
    """
    regime, m = step.regime, base.closed.shape[0]
    if m == 0 and regime.count == 0:
        return trial_end, totals
    turned = jnp.any(verdict.impact | verdict.loosed) | jnp.any(switched)
    begins = jnp.zeros((), bool)
    if regime.probes:
        # the trial of length zero with which a motion under a force in pieces begins
        begins = (frozen(trial_end.elapsed) <= 0) & (began <= step.motion.t0)
        turned = turned | begins
    if m:
        arrive = lambda: _arrive(step, hold, began, base, trial_end, verdict, switched, begins, totals)
        return lax.cond(turned | jnp.any(base.closed), arrive, lambda: (trial_end, totals))

    def settle() -> tuple[Base, StepTotals]:
        t, substep = began + (trial_end.elapsed - base.elapsed), verdict.search.substep
        jolt, _ = jolt_at_end(step, t, trial_end.q, trial_end.v, trial_end, switched)
        change = Change.none(0, 0, begins)._replace(switched=switched)
        at = (t, trial_end.elapsed, trial_end.q, jolt.v, base.closed, trial_end.where)
        after, status = regime.settle(step, *at, change, substep)
        joints = add_joint_impulse(totals.joints, jolt.joint_impulse)
        return after._replace(low=trial_end.low), totals._replace(
            status=totals.status | status | jolt.status, joints=joints
        )

    return lax.cond(turned, settle, lambda: (trial_end, totals))


def _arrive(
    step: Step, hold: Hold, began: Array, base: Base, trial_end: Base, verdict: Verdict, switched: Array, begins: Array,
    totals: StepTotals,
) -> tuple[Base, StepTotals]:  # fmt: skip
    """Treats contacts at the end of a trial, as part of `_onward`, whose arguments and results it has.

    Puts closed contacts back onto their surfaces, applies the impact law if the trial ends at an impact, and releases
    contacts that open. ``begins`` (): whether this is the trial of length zero with which a motion
    under a force in pieces begins.
    """
    scheme, _, law, motion, *_, regime = step
    args, substep, loosed = motion.args, verdict.search.substep, verdict.loosed
    arrival = _arrival(step, hold, began, base, trial_end, verdict, regime.of_force(switched), totals)
    event, jolt, spread = arrival.event, arrival.jolt, arrival.spread
    problem = jolt.problem
    t, q, v, metric, contacts, _ = event
    ends = regime.ends(problem, event, trial_end, switched, substep, args)
    before = regime.before(problem, event, base.where, ends, jolt.shoved, arrival.closed, args)
    candidates = arrival.candidates | (arrival.closed & before.jammed)
    load = frozen(normal_impulses(trial_end.force))
    loaded = arrival.closed & (load > LOADED * jnp.max(jnp.abs(load), initial=0.0))
    found = collide(problem, law, motion, arrival.flights, event, before, candidates, arrival.near, loaded, spread)
    status = ends.status | jolt.status | found.status
    if not (scheme.by_tolerance and motion.by is not None and motion.by.measured):
        status |= as_status(found.left_out > 0, Status.DERIVATIVE_EVENTS)
    moved, time = frozen((trial_end.q - base.q, trial_end.elapsed - base.elapsed))
    # of a body at rest, which moves by rounding or by the error of its forces, changes of gaps are rounding too
    square, of_forces = lambda x: x @ metric.times(x), jnp.full_like(q, ROUNDING * base.force_error * time**2)
    resolved = frozen(square(moved) >= square(1e3 * jnp.finfo(q.dtype).eps * q) + square(of_forces))
    at = At(t, q, v, args)
    status |= gradient_status(law, problem, metric, contacts, at, APPROACH * moved, candidates & resolved)
    # behind a border all contacts are looked at anew, as behind an impact
    of_force = regime.of_force(switched)
    struck = jnp.any(found.impact) | jnp.any(of_force)
    moved_contacts = found.closed != base.closed
    change = Change(
        loosed,
        ends.stopped,
        ends.breaks,
        found.rests,
        found.rests & (found.left_out > 0),
        moved_contacts,
        of_force,
        struck,
        begins,
    )
    where = regime.behind(trial_end, arrival.crossed, frozen((t, q, v, args)))
    place = (t, trial_end.elapsed + arrival.delay, found.q, found.v, found.closed & ~loosed, where)
    after, failure = regime.settle(step, *place, change, substep)
    status |= failure | regime.status_of_arrival(step, arrival, ends, change, base, trial_end, after)
    record = totals.record
    if record is not None:
        met = Turn(found.impact, found.impulse, t, found.q, v, found.v, loosed, ends.stopped, ends.breaks)
        of_events = base._replace(closed=base.closed & ~begins), trial_end, after
        record, bits = keep_events(record, scheme.kinds, met, regime, hold, began, of_events, substep, args)
        status |= bits
    absolute = scheme.tolerance(q.dtype).absolute
    left_out = found.left_out / jnp.where(absolute > 0, absolute, 1)
    more = totals.with_collision(found, left_out, jolt.joint_impulse, trial_end, arrival.delay, t, spread, status)
    return after._replace(low=trial_end.low), more._replace(record=record)


def _arrival(
    step: Step,
    hold: Hold,
    began: Array,
    base: Base,
    trial_end: Base,
    verdict: Verdict,
    of_force: Array,
    totals: StepTotals,
) -> Arrival:
    """Finds what contacts meet at the end of a trial; ``of_force`` (k,): the levels of the force on whose borders it
    ends; other arguments as of `_onward`."""
    scheme, problem, _, motion, *_ = step
    args, impact, substep = motion.args, verdict.impact, verdict.search.substep
    t = began + (trial_end.elapsed - base.elapsed)
    some = jnp.any(impact)
    delay, q, v = at_impact(problem, hold, began, (base, trial_end), impact, substep, args)
    t, q, v = t + delay, jnp.where(some, q, trial_end.q), jnp.where(some, v, trial_end.v)
    jolt, crossed = jolt_at_end(step, t, q, v, trial_end, of_force)
    event = Event.at(jolt.problem, t, q, jolt.v, args)
    contacts, speed = event.contacts, event.speed
    near = frozen(contacts.gap <= trial_end.roundoff + TOGETHER * substep * jnp.abs(speed))
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
            spread = times_off(
                scheme.tolerance(q.dtype), most, totals.until + frozen(totals.error), *frozen((q, contacts, speed))
            )
        spread = jnp.minimum(spread + jnp.max(jnp.where(candidates, spread, 0)), most)
    return Arrival(event, delay, impact, closed, candidates, near, flights, spread, jolt, crossed)
