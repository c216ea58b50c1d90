"""An event-driven scheme of high order: substeps by a tolerance, which end where contacts meet or leave.

A step is a loop of trials, each one Runge-Kutta step from where the last accepted one ended. A trial is accepted; or made shorter,
because its error is too large, or because there is an event in it, whose time is then sought: of an impact by Newton's method on gap and
gap rate, of a release by regula falsi on the push of the contact that lets go. Each turn of a search is again a trial from the same
base: events are found to the order of the method, the method is written once, and lanes of a vector do not wait for each
other's searches.

The lengths of trials are constants for differentiation; where an impact is found, one last correction by Newton, zero in value but for
what the search has left, carries the derivative of its time: first and second derivatives are those of the motion.

References:
    E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, Springer (1993), II.4 and II.6.
    M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.argument_checks import is_traced
from ...jaxtools.derivative_rules import forward_only
from ..contact.laws import ContactLaw
from ..jump_search import path_jumped
from ..linearisation import Contacts, Metric, acceleration, closure, lengths, linearise
from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from ..switches import Kinks
from .base import Info, JointInfo, Scheme, Traits, before, gradient_status, mass_status, zero_remainder
from .events import Event, View, collide, lasting_at_end, noise, persisting
from .record import Record
from .searches import TOGETHER, Search, Verdict, judged
from .stops import Stop, Until, met, seek
from .tableau import TABLEAUS
from .trials import Base, Tolerance, attempt, frozen, held, hold

SCANNED = 100  # trials up to which the loop over them is of fixed length, which reverse mode asks for
NO_REVERSE = (
    f"reverse mode through EventDriven asks for a fixed number of trials in a step: give EventDriven(trials=...) of at most {SCANNED}, with "
    "as many steps as make do with that (16 to 64 trials each, else the status says TRIALS_EXHAUSTED); or forward mode, jax.jvp or jax.jacfwd"
)
WITHOUT_END = 1 << 20  # events that may still be located
TERMS = 1e-3  # of a substep: the step whose span it is
SPREAD = 1e3  # of the tolerance: by what part of a motion's time its impacts may be off
NOTHING = 1e-3  # of the tolerance: gaps, and what pushes move or speed up in a substep, that are as good as zero
SHORT = 16  # roundings of time, below which no substep is taken
APPROACH = 1e-3  # of a trial's displacement: over which a gradient describes a gap


class DrivenState(NamedTuple):
    """As `EventState`, with the time of the ``latest`` impact and the ``substep`` that the next trial begins with; and, where they are asked for, the
    ``record`` of the first impacts and the ``stop`` of the motion."""

    n: Array
    q: Array
    v: Array
    closed: Array
    latest: Array
    substep: Array
    low: Array | None = None
    record: Record | None = None
    stop: Stop | None = None


class Told(NamedTuple):
    """What is reported of the trials of a step: impulses (m,), contacts that have ``met`` (m,), the law's error, time of the ``latest``
    impact, the number of ``trials``, the status, the ``record`` of the first impacts and the ``stop``; and what is told of ``joints``."""

    impulse: Array
    met: Array
    residual: Array
    latest: Array
    trials: Array
    status: Array
    record: Record | None
    stop: Stop | None
    joints: JointInfo | None = None


class Course(NamedTuple):
    """What the loop of trials carries."""

    base: Base
    search: Search
    told: Told


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EventDriven(Scheme):
    """Substeps of order 8 that a tolerance chooses, and events located to the same order; h is only the grid of the rows.

    Isolated impacts, lasting contacts and releases, and their derivatives, are as accurate as the motion between them. An impact
    after which a contact would be nearer than ``atol`` until the next one lasts.

    Attributes:
        rtol, atol: error of a substep in positions, velocities, gaps and impulses x: atol + rtol |x|, of the numbers as they are stated.
        order: 8 (Dormand and Prince, with estimates of order 5 and 3), or 5 (with one of order 4), for loose tolerances.
        trials: at most so many in a step h, beyond which the status says TRIALS_EXHAUSTED. Up to 100 of them, reverse mode is had too.
        jumps: whether substeps look for jumps of the force, of which the status of derivatives tells; runs for values alone never do.
    """

    rtol: float = 1e-9
    atol: float = 1e-9
    order: int = field(default=8, metadata={"static": True})
    trials: int = field(default=20_000, metadata={"static": True})
    jumps: bool = field(default=True, metadata={"static": True})
    impacts: ClassVar[int] = 0  # that are written down
    until: ClassVar[Until | None] = None  # where the motion ends

    @property
    def traits(self) -> Traits:
        reverse = self.trials <= SCANNED
        return Traits(
            locates=True, order=None, explicit=0.0, damping=False, reverse=reverse, tells_jumps=self.jumps, joints=True
        )

    def for_values(self) -> EventDriven:
        return replace(self, jumps=False)

    def observing(self, impacts: int, until: Until | None) -> EventDriven:
        options = {option.name: getattr(self, option.name) for option in fields(EventDriven)}
        return _Observing(**options, impacts=impacts, until=until)

    def resolution(self, motion: Motion) -> Array:
        return frozen(SPREAD * self._tolerance(motion.h.dtype).relative * (motion.t1 - motion.t0))

    def check(self, problem: Problem, e: Any, m: int) -> None:
        super().check(problem, e, m)
        if self.order not in TABLEAUS:
            raise ValueError(f"EventDriven(order=...) must be 5 or 8, got {self.order}")
        if not is_traced(self.rtol, self.atol) and not (self.rtol > 0 and self.atol > 0):
            raise ValueError(
                f"EventDriven needs rtol and atol above 0, got {self.rtol:g} and {self.atol:g}: 1e-12 is near what float64 can hold"
            )

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[Any, Info]:
        q0, v0, t0, args = motion.q0, motion.v0, motion.t0, motion.args
        metric = Metric.at(problem, q0, args, t0)
        contacts = linearise(problem, metric, t0, q0, args)
        a = acceleration(problem, metric, t0, q0, v0, args)
        at = closure(contacts, -contacts.gap_velocity(v0), q0, v0, TERMS * motion.h, a)
        zero = jnp.zeros((), jnp.int32)
        substep = frozen(motion.h + 0 * q0[0])
        state = DrivenState(zero, q0, v0, at.closed & ~at.outward, before(motion), substep, zero_remainder(q0))
        if self.impacts:
            state = state._replace(record=Record.empty(self.impacts, q0))
        if self.until is not None:
            force = held(problem, t0, q0, v0, state.closed, jnp.zeros_like(t0), args)[0]
            state = state._replace(stop=Stop.start(self.until, t0, q0, v0, force, motion.h, args))
        return state, Info.none(q0, v0, len(at.closed))

    def free_step(self, problem: Problem, motion: Motion, state: Any, length: Array | None = None) -> tuple[Any, Info]:
        """None of its own: whether a contact acts is known when the trials have been made."""
        info = Info.none(state.q, state.v, state.closed.shape[0])
        joints = JointInfo.none(problem, state.q, motion.args)
        return state._replace(n=state.n + 1), info._replace(acts=jnp.array(True), joints=joints)

    def step(
        self, problem: Problem, law: ContactLaw, motion: Motion, state: Any, length: Array | None = None
    ) -> tuple[Any, Info]:
        """State at n + 1, or a time ``length`` after step n began, in (0, h]."""
        whole = motion.h if length is None else length
        n, q, v, closed, latest, substep, low, record, stop = state
        m, start = closed.shape[0], motion.time(n)
        zero, none, of_none = jnp.zeros((), q.dtype), jnp.zeros((), jnp.int32), jnp.zeros(m, q.dtype)
        substep = frozen(jnp.minimum(substep, whole))
        base, failure = _settled(
            problem,
            law,
            start,
            zero,
            q,
            v,
            closed,
            jnp.zeros_like(closed),
            substep,
            self._tolerance(q.dtype).absolute,
            motion.args,
        )
        base = base._replace(low=low)
        search = Search(substep, substep, none, jnp.zeros(m, bool), zero, zero, zero, zero, n < 0, none)
        joints = JointInfo.none(problem, q, motion.args)
        told = Told(of_none, jnp.zeros(m, bool), zero, latest, none, failure, record, stop, joints)

        def continues(p: Course) -> Array:
            sound = jnp.all(jnp.isfinite(p.base.q)) & jnp.all(jnp.isfinite(p.base.v))
            sound = sound if p.told.stop is None else sound & ~p.told.stop.stopped
            return (p.base.elapsed < whole) & (p.told.trials < self.trials) & sound & (p.search.substep > 0)

        turn = lambda p: self._turn(problem, law, motion, start, whole, p)
        begin = Course(base, search, told)
        if self.trials > SCANNED:
            base, search, told = forward_only(lax.while_loop(continues, turn, begin), NO_REVERSE)
        else:
            part = lambda p, _: (lax.cond(continues(p), turn, lambda p: p, p), None)
            base, search, told = lax.scan(part, begin, None, length=self.trials)[0]
        status = told.status | mass_status(Metric.at(problem, base.q, motion.args))
        short = (base.elapsed < whole) & ((told.trials >= self.trials) | (substep <= 0))
        short = short if told.stop is None else short & ~told.stop.stopped
        status |= as_status(short, Status.TRIALS_EXHAUSTED)
        ending = jnp.where(short, 0, search.substep)  # nothing is tried again behind a failure
        info = Info(
            base.q,
            (base.q - q) / whole,
            told.impulse,
            jnp.any(told.impulse > 0),
            told.residual,
            told.trials,
            status,
            told.joints,
        )
        return DrivenState(
            n + 1, base.q, base.v, base.closed, told.latest, ending, base.low, told.record, told.stop
        ), info

    def _tolerance(self, dtype: Any) -> Tolerance:
        """No smaller than what rounding leaves of it."""
        rounding = 32 * float(jnp.finfo(dtype).eps)
        relative, absolute = (frozen(jnp.asarray(x, dtype)) for x in (self.rtol, self.atol))
        return Tolerance(jnp.maximum(relative, rounding), jnp.maximum(absolute, rounding))

    def _turn(self, problem: Problem, law: ContactLaw, motion: Motion, start: Array, whole: Array, p: Course) -> Course:
        """One trial, and what follows from it."""
        base, search, told = p
        args, t = motion.args, start + base.elapsed
        rest = whole - base.elapsed
        covers = search.s >= frozen(rest) * (1 - 1e-10)
        s = jnp.where(covers, rest, search.s)
        tolerance = self._tolerance(base.q.dtype)
        found = attempt(problem, self.order, t, base, s, tolerance, args, self._watch(told.stop, args))
        shortest = SHORT * jnp.finfo(s.dtype).eps * frozen(jnp.abs(t) + whole)
        known = jax.tree.map(frozen, found)
        verdict = judged(base, search, known, frozen(s), shortest, TABLEAUS[self.order].halvings)
        stops: Any = False
        if self.until is not None and told.stop is not None:
            verdict, stops = seek(self.until, told.stop, search, verdict, known, frozen(s), shortest)
        told = told._replace(trials=told.trials + 1)

        def accept() -> Course:
            event = jnp.any(verdict.impact | verdict.loosed)
            flown = base._replace(
                elapsed=base.elapsed + s,
                q=found.q,
                v=found.v,
                a=found.a,
                force=found.force,
                push=found.push,
                low=found.low,
                joint_force=found.joint_force,
            )
            path = (t, base.q, base.v), (t + s, found.q, found.v)
            jumps = path_jumped(problem, base.closed, *frozen(path), frozen(args)) if self.jumps else None
            status = told.status if jumps is None else told.status | as_status(jumps, Status.DERIVATIVE_JUMP)
            status = status if found.joint_status is None else status | found.joint_status
            joints = _joined(told.joints, found.joint_impulse, found.joint_residual)
            if self.until is not None:
                end = partial(met, problem, self.until, t + s, flown, search.substep, args)
                stopped, bits = lax.cond(stops, end, lambda: (flown, jnp.zeros((), jnp.int32)))
                joints = _late(joints, stopped.elapsed - flown.elapsed, flown)
                flown, status = stopped, status | bits
            after, more = (
                flown,
                told._replace(joints=joints)._replace(impulse=told.impulse + found.impulse, status=status),
            )
            if base.closed.shape[0]:
                arrive = lambda: self._arrive(problem, law, motion, t, base, flown, verdict, more)
                after, more = lax.cond(event | jnp.any(base.closed), arrive, lambda: (flown, more))
            if self.until is not None and told.stop is not None:
                at = (start + after.elapsed, after.q, after.v)
                # others that meet at the same instant have an impulse too
                met_now = more.impulse > told.impulse + found.impulse
                struck = frozen(verdict.impact | (~base.closed & met_now & jnp.any(verdict.impact)))
                more = more._replace(stop=told.stop.after(self.until, *at, args, known.sight, stops, struck))
            ended = covers & ~jnp.any(verdict.impact)
            after = after._replace(elapsed=jnp.where(ended, whole, after.elapsed))
            left = frozen(whole - after.elapsed)
            following = verdict.search._replace(
                s=jnp.minimum(verdict.search.substep, left), sought=search.sought * 0, turns=search.turns * 0
            )
            return Course(after, following, more)

        return lax.cond(verdict.accepted, accept, lambda: Course(base, verdict.search, told))

    def _watch(self, stop: Stop | None, args: Any) -> Callable | None:
        """What trials see of the surface that ends the motion, positive before it is met."""
        until = self.until
        if stop is None or until is None:
            return None

        def watch(t: Array, q: Array, v: Array, a: Array) -> tuple[Array, Array]:
            value, rate = until.rates(t, q, v, a, frozen(args))
            return stop.side * value, stop.side * rate

        return watch

    def _arrive(
        self,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        began: Array,
        base: Base,
        flown: Base,
        verdict: Verdict,
        told: Told,
    ) -> tuple[Base, Told]:
        """At an event, or where a trial that ``began`` at a base ends with closed contacts: they go back onto their surfaces."""
        args, impact = motion.args, verdict.impact
        t = began + (flown.elapsed - base.elapsed)
        some = jnp.any(impact)
        delay, q, v = _corrected(problem, t, flown, impact, args)
        t, q, v = t + delay, jnp.where(some, q, flown.q), jnp.where(some, v, flown.v)
        event = Event.at(problem, t, q, v, args)
        metric, contacts, speed = event.metric, event.contacts, event.speed
        substep = verdict.search.substep
        near = frozen(contacts.gap <= flown.allowed + TOGETHER * substep * jnp.abs(speed))
        kinks = Kinks.at(problem, began, base.q, args)
        idle = jnp.zeros_like(base.closed)
        closed, struck = lasting_at_end(kinks, idle, event, base.closed, args)
        candidates, near = impact | struck, near | struck
        left = jnp.full((), WITHOUT_END, jnp.int32)
        atol = self._tolerance(q.dtype).absolute
        slowest = lambda normal: jnp.sqrt(2 * atol * normal)
        found = collide(
            problem, law, motion, slowest, event, closed, candidates, near, closed | candidates, jnp.zeros_like(closed), left
        )  # fmt: skip
        moved = APPROACH * frozen(flown.q - base.q)
        status = found.status | gradient_status(law, problem, metric, contacts, t, q, moved, candidates, args)
        after, failure = _settled(
            problem,
            law,
            t,
            flown.elapsed + delay,
            found.q,
            found.v,
            found.closed & ~verdict.loosed,
            verdict.loosed,
            substep,
            atol,
            args,
        )
        record = told.record
        if record is not None:
            record = record.with_impacts(found.impact, t, found.q, v, found.v, found.impulse)
        return after._replace(low=flown.low), Told(
            told.impulse + found.impulse,
            told.met | found.impact,
            jnp.maximum(told.residual, jnp.max(found.error, initial=0.0)),
            jnp.where(jnp.any(found.impact), frozen(t), told.latest),
            told.trials,
            told.status | status | failure,
            record,
            told.stop,
            _joined(_late(told.joints, delay, flown), event.joint_impulse(found.impulse)),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Observing(EventDriven):
    """The same, with a record of the first impacts, or a surface at which the motion ends."""

    impacts: int = field(default=0, metadata={"static": True})  # type: ignore[misc]
    until: Until | None = field(default=None, metadata={"static": True})  # type: ignore[misc]


def _joined(told: JointInfo | None, impulse: Array | None, residual: Array | None = None) -> JointInfo | None:
    """What is told of joints, with one more impulse (j,) and what is left of them, ()."""
    if told is None or impulse is None:
        return told
    left = told.residual if residual is None else jnp.maximum(told.residual, residual)
    return JointInfo(told.impulse + impulse, left)


def _late(told: JointInfo | None, delay: Array, flown: Base) -> JointInfo | None:
    """What is told of joints, with what they do in the ``delay`` () of an event behind a trial: nothing in value."""
    return told if told is None else _joined(told, delay * flown.joint_force)


def _corrected(problem: Problem, t: Array, flown: Base, impact: Array, args: Any) -> tuple[Array, Array, Array]:
    """How much later than t the gap of the contact of an ``impact`` (m,) is zero, (), with its derivative, and q and v then, by a flow
    of second order: next to nothing in value."""
    q, v, a, some = flown.q, flown.v, flown.a, jnp.any(impact)
    of_contact = lambda x: jnp.sum(jnp.where(impact, x, 0))
    place = lambda s: q + s * (v + 0.5 * s * a)

    def newton(s: Array) -> Array:
        path = lambda s: problem.gaps(t + s, place(s), args)
        gap, rate = map(of_contact, jax.jvp(path, (s,), (jnp.ones_like(s),)))
        return s - jnp.where(some & (rate < 0), gap / jnp.where(rate < 0, rate, -1), 0)

    delay = newton(newton(jnp.zeros_like(t)))
    half = 0.5 * delay
    middle = held(problem, t + half, q + half * v, v + half * a, flown.closed, flown.slack, args)[0]
    return delay, place(delay), v + delay * middle


def _settled(
    problem: Problem,
    law: ContactLaw,
    t: Array,
    elapsed: Array,
    q: Array,
    v: Array,
    closed: Array,
    loosed: Array,
    substep: Array,
    atol: Array,
    args: Any,
) -> tuple[Base, Array]:
    """The base at a state: of the contacts (m,) that are closed, or touch without moving, those that stay, less what is ``loosed``; and status."""
    if closed.shape[0] == 0:
        a, force, push, joint_force = held(problem, t, q, v, closed, elapsed, args)
        slack = frozen(elapsed)
        base = Base(elapsed, q, v, a, closed, force, push, force, force, slack, joint_force=joint_force)
        return base, jnp.zeros((), jnp.int32)
    view = View.at(problem, t, q, v, args)
    contacts = view.contacts
    allowed, slack = (
        _rounding(contacts, q, v, view, substep) + NOTHING * atol,
        NOTHING * atol / jnp.maximum(substep, substep**2),
    )
    still = frozen(noise(contacts, v, view.gap_velocity))
    touching = frozen((contacts.gap <= allowed) & (jnp.abs(view.gap_velocity) <= still)) & ~loosed
    _, _, stays, status = persisting(law, contacts, view.free, view.gap_acceleration, closed | touching, slack)
    # all that stay are held, those without a force too: one that becomes negative later is seen as such
    a, force, push, joint_force = hold(view, stays, slack)
    return Base(elapsed, q, v, a, stays, force, push, allowed, still, slack, joint_force=joint_force), status


def _rounding(contacts: Contacts, q: Array, v: Array, view: View, substep: Array) -> Array:
    """Round-off (m,) of gaps within a substep."""
    bent = jnp.abs(contacts.velocity(view.free)) + jnp.abs(view.gap_acceleration)
    found = 64 * jnp.finfo(q.dtype).eps * lengths(contacts, q, v, bent, TERMS * substep)
    return frozen(jnp.maximum(found, -2 * contacts.gap))
