"""An event-driven scheme of high order: substeps by a tolerance, which end where contacts meet or leave.

A step is a loop of trials, each one Runge-Kutta step from where the last accepted one ended. A trial is accepted; or made shorter,
because its error is too large, or because there is an event in it, whose time is then sought: of an impact by Newton's method on gap and
gap rate, of a release by regula falsi on the push of the contact that lets go. Each turn of a search is again a trial from the same
base: events are found to the order of the method, the method is written once, and lanes of a vector do not wait for each
other's searches.

A force or mass that jumps or kinks is taken piece by piece (`pieces`), and the borders of pieces are events too (`borders`).

The lengths of trials are constants for differentiation; where an impact is found, one last correction by Newton, zero in value but for
what the search has left, carries the derivative of its time: first and second derivatives are those of the motion.

References:
    E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, Springer (1993), II.4 and II.6.
    M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958).
"""

from __future__ import annotations

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
from ..linearisation import Metric, acceleration, closure, linearise
from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from ..switches import Kinks
from .base import Info, JointInfo, Scheme, Traits, before, gradient_status, mass_status, zero_remainder
from .bases import TERMS, at_impact, base_at, joined, late
from .borders import Settled, border_status, seek_border, settled, status_at_impact, status_behind
from .events import Event, collide, lasting_at_end
from .pieces import Pieces, Where
from .record import ImpactRecord
from .resets import cross_border
from .searches import TOGETHER, Search, Verdict, judged
from .stops import Stop, Until, met, seek, watched
from .tableau import TABLEAUS
from .trials import Base, Hold, Tolerance, Trial, attempt, frozen, grazes, held

SCANNED = 100  # trials up to which the loop over them is of fixed length, which reverse mode asks for
NO_REVERSE = (
    f"reverse mode through EventDriven asks for a fixed number of trials in a step: give EventDriven(trials=...) of at most {SCANNED}, with "
    "as many steps as make do with that (16 to 64 trials each, else the status says TRIALS_EXHAUSTED); or forward mode, jax.jvp or jax.jacfwd"
)
WITHOUT_END = 1 << 20  # events that may still be located
SPREAD = 1e3  # of the tolerance: by what part of a motion's time its impacts may be off
SHORT = 16  # roundings of time, below which no substep is taken
APPROACH = 1e-3  # of a trial's displacement: over which a gradient describes a gap


class DrivenState(NamedTuple):
    """As `EventState`, with the time of the ``latest`` impact and the ``substep`` that the next trial begins with; and, where they are asked for, the
    ``record`` of the first impacts, the ``stop`` of the motion, and ``where`` among the pieces of the force it is (`pieces`)."""

    n: Array
    q: Array
    v: Array
    closed: Array
    latest: Array
    substep: Array
    low: Array | None = None
    record: ImpactRecord | None = None
    stop: Stop | None = None
    where: Where | None = None


class Told(NamedTuple):
    """What is reported of the trials of a step: impulses (m,), contacts that have ``met`` (m,), the law's error, time of the ``latest``
    impact, the number of ``trials``, the status, the ``record`` of the first impacts and the ``stop``; and what is told of ``joints``."""

    impulse: Array
    met: Array
    residual: Array
    latest: Array
    trials: Array
    status: Array
    record: ImpactRecord | None
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
        rtol, atol: error of a substep in each position, velocity, gap and impulse x: atol + rtol |x|, of the numbers as they are stated.
        order: 8 (Dormand and Prince, with estimates of order 5 and 3), or 5 (with one of order 4), for loose tolerances.
        trials: at most so many in a step h, beyond which the status says TRIALS_EXHAUSTED. Up to 100 of them, reverse mode is had too.
        jumps: whether substeps look for jumps that are not located, of which the status of derivatives tells; runs for values alone never do.
        changes: whether the tolerance is that of derivatives, too (`probes`), relative to rtol; of runs for values alone it never is.
    """

    rtol: float = 1e-9
    atol: float = 1e-9
    order: int = field(default=8, metadata={"static": True})
    trials: int = field(default=20_000, metadata={"static": True})
    jumps: bool = field(default=True, metadata={"static": True})
    changes: bool = field(default=True, metadata={"static": True})
    impacts: ClassVar[int] = 0  # that are written down
    until: ClassVar[Until | None] = None  # where the motion ends

    @property
    def traits(self) -> Traits:
        reverse, tells = self.trials <= SCANNED, self.jumps
        return Traits(
            locates=True, order=None, explicit=0.0, damping=False, reverse=reverse, tells_jumps=tells, joints=True,
            resets=True, approach=True,
        )  # fmt: skip

    def for_values(self) -> EventDriven:
        return replace(self, jumps=False, changes=False)

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
        pieces = Pieces.of(problem, t0, q0, v0, args)
        if pieces is not None:
            state = state._replace(where=pieces.start(t0, q0, v0, args))
        if self.impacts:
            state = state._replace(record=ImpactRecord.empty(self.impacts, q0))
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
        n, q, v, closed, latest, substep, low, record, stop, where = state
        m, start = closed.shape[0], motion.time(n)
        zero, none, of_none = jnp.zeros((), q.dtype), jnp.zeros((), jnp.int32), jnp.zeros(m, q.dtype)
        substep = frozen(jnp.minimum(substep, whole))
        pieces = Pieces.of(problem, start, q, v, motion.args)
        base, failure, _ = self._settled(
            problem, law, motion, pieces, start, zero, q, v, closed, jnp.zeros_like(closed), substep, where
        )
        base = base._replace(low=low)
        search = Search(substep, substep, none, jnp.zeros(m, bool), zero, zero, zero, zero, n < 0, none)
        if pieces is not None:
            # the first trial, of no length, looks on which sides the motion begins
            search = search._replace(s=jnp.where(n == 0, 0, substep), borders=jnp.zeros(pieces.count, bool))
        joints = JointInfo.none(problem, q, motion.args)
        told = Told(of_none, jnp.zeros(m, bool), zero, latest, none, failure, record, stop, joints)

        def continues(p: Course) -> Array:
            sound = jnp.all(jnp.isfinite(p.base.q)) & jnp.all(jnp.isfinite(p.base.v))
            sound = sound if p.told.stop is None else sound & ~p.told.stop.stopped
            return (p.base.elapsed < whole) & (p.told.trials < self.trials) & sound & (p.search.substep > 0)

        turn = lambda p: self._turn(problem, law, motion, pieces, start, whole, p)
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
            n + 1, base.q, base.v, base.closed, told.latest, ending, base.low, told.record, told.stop, base.where
        ), info

    def _tolerance(self, dtype: Any) -> Tolerance:
        """No smaller than what rounding leaves of it."""
        rounding = 32 * float(jnp.finfo(dtype).eps)
        relative, absolute = (frozen(jnp.asarray(x, dtype)) for x in (self.rtol, self.atol))
        return Tolerance(jnp.maximum(relative, rounding), jnp.maximum(absolute, rounding))

    def _turn(
        self,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        pieces: Pieces | None,
        start: Array,
        whole: Array,
        p: Course,
    ) -> Course:
        """One trial, and what follows from it."""
        base, search, told = p
        args, t = motion.args, start + base.elapsed
        rest = whole - base.elapsed
        covers = search.s >= frozen(rest) * (1 - 1e-10)
        s = jnp.where(covers, rest, search.s)
        tolerance = self._tolerance(base.q.dtype)
        hold = partial(held, problem) if pieces is None else pieces.hold(base.where)
        borders = None if pieces is None else pieces.watch(*frozen((base.where, base.closed, base.slack, args)))
        found = attempt(
            problem, self.order, t, base, s, tolerance, args, hold, watched(self.until, told.stop, args), borders, self.changes
        )  # fmt: skip
        shortest = SHORT * jnp.finfo(s.dtype).eps * frozen(jnp.abs(t) + whole)
        known = jax.tree.map(frozen, found)
        verdict = judged(base, search, known, frozen(s), shortest, TABLEAUS[self.order].halvings)
        stops: Any = False
        switched = None
        if pieces is not None:
            verdict, switched = seek_border(
                search, verdict, known, known.borders, pieces.slid(base.where), frozen(s), shortest
            )
        if self.until is not None and told.stop is not None:
            sought, stops = seek(self.until, told.stop, search, verdict, known, frozen(s), shortest)
            verdict = sought if pieces is None else jax.tree.map(partial(jnp.where, s > 0), sought, verdict)
            stops = stops if pieces is None else stops & (s > 0)
        told = told._replace(trials=told.trials + 1)

        def accept() -> Course:
            flown = base.behind(found, s)
            status = told.status | self._doubts(problem, motion, pieces, (start, whole), base, found, frozen(s), covers)
            status = status if found.joint_status is None else status | found.joint_status
            joints = joined(told.joints, found.joint_impulse, found.joint_residual)
            began, has_reset = base, jnp.zeros((), bool)
            if pieces is not None and switched is not None:
                flown, has_reset, bits = cross_border(pieces, hold, switched, t, base, flown, search.substep, args)
                joints = late(joints, flown.elapsed - base.elapsed - s, flown)
                began, status = base._replace(closed=flown.closed), status | bits
            if self.until is not None:
                end = partial(met, hold, self.until.value, t + s, flown, search.substep, args)
                stopped, bits = lax.cond(stops, end, lambda: (flown, jnp.zeros((), jnp.int32)))
                joints = late(joints, stopped.elapsed - flown.elapsed, flown)
                flown, status = stopped, status | bits
            more = told._replace(joints=joints, impulse=told.impulse + found.impulse, status=status)
            after, more = self._onward(problem, law, motion, pieces, hold, t, began, flown, verdict, switched, more)
            if self.until is not None and told.stop is not None:
                at = (start + after.elapsed, after.q, after.v)
                # others that meet at the same instant have an impulse too
                met_now = more.impulse > told.impulse + found.impulse
                struck = frozen(verdict.impact | (~base.closed & met_now & jnp.any(verdict.impact)))
                stop = told.stop.after(self.until, *at, args, known.sight, stops, struck, has_reset)
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
            return Course(after, following, more)

        return lax.cond(verdict.accepted, accept, lambda: Course(base, verdict.search, told))

    def _doubts(
        self,
        problem: Problem,
        motion: Motion,
        pieces: Pieces | None,
        step: tuple[Array, Array],
        base: Base,
        found: Trial,
        s: Array,
        covers: Array,
    ) -> Array:
        """Status of derivatives across what jumped in a trial of length s: all but the borders of pieces that it ends on, and those it grazes; and of
        contacts that it grazes."""
        none = jnp.zeros((), jnp.int32)
        if not self.jumps:
            return none
        (start, whole), args = step, frozen(motion.args)
        t = start + base.elapsed
        path = frozen(((t, base.q, base.v), (t + s, found.q, found.v)))
        piece = problem if pieces is None else pieces.on(base.where.sides)
        jumps = path_jumped(piece, base.closed, *path, args)
        status = none if jumps is None else as_status(jumps, Status.DERIVATIVE_JUMP)
        near = grazes(frozen(base), frozen(found), s, self._tolerance(s.dtype))
        status = status | as_status(near, Status.DERIVATIVE_GRAZING)
        if pieces is None:
            return status
        off = self.resolution(motion)
        ending = covers & (start + whole >= motion.t1 - off)
        atol = self._tolerance(s.dtype).absolute
        return status | border_status(
            pieces,
            frozen(base.where),
            frozen(found.borders),
            s,
            atol,
            jnp.where(ending, off, 0),
            path[1],
            base.closed,
            args,
        )

    def _onward(
        self,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        pieces: Pieces | None,
        hold: Hold,
        began: Array,
        base: Base,
        flown: Base,
        verdict: Verdict,
        switched: Array | None,
        told: Told,
    ) -> tuple[Base, Told]:
        """What an accepted trial leads to, with its events."""
        m, event = base.closed.shape[0], jnp.any(verdict.impact | verdict.loosed)
        if m == 0 and pieces is None:
            return flown, told
        # the trial of no length with which a motion in pieces begins
        begins = (frozen(flown.elapsed) <= 0) & (began <= motion.t0) & (pieces is not None)
        turned = event if switched is None else event | jnp.any(switched) | begins
        if m:
            arrive = lambda: self._arrive(
                problem, law, motion, pieces, hold, began, base, flown, verdict, switched, begins, told
            )
            return lax.cond(turned | jnp.any(base.closed), arrive, lambda: (flown, told))

        def settle() -> tuple[Base, Told]:
            t = began + (flown.elapsed - base.elapsed)
            at = (t, flown.elapsed, flown.q, flown.v, base.closed, base.closed)
            after, status, at_start = self._settled(
                problem, law, motion, pieces, *at, verdict.search.substep, flown.where, switched, begins
            )
            status = status | jnp.where(begins, at_start, 0)
            return after._replace(low=flown.low), told._replace(status=told.status | status)

        return lax.cond(turned, settle, lambda: (flown, told))

    def _arrive(
        self,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        pieces: Pieces | None,
        hold: Hold,
        began: Array,
        base: Base,
        flown: Base,
        verdict: Verdict,
        switched: Array | None,
        begins: Array,
        told: Told,
    ) -> tuple[Base, Told]:
        """At an event, or where a trial that ``began`` at a base ends with closed contacts: they go back onto their surfaces."""
        args, impact = motion.args, verdict.impact
        t = began + (flown.elapsed - base.elapsed)
        some = jnp.any(impact)
        delay, q, v = at_impact(problem, hold, t, flown, impact, args)
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
            problem, law, motion, slowest, event, closed, candidates, near, closed | candidates, jnp.zeros_like(closed), left,
            self.resolution(motion) if self.jumps else None,
        )  # fmt: skip
        moved = APPROACH * frozen(flown.q - base.q)
        status = found.status | gradient_status(law, problem, metric, contacts, t, q, moved, candidates, args)
        if pieces is not None and self.jumps:
            where = base.where._replace(allowed=flown.where.allowed)
            now, off = (t, q, v, args), self.resolution(motion)
            status |= status_at_impact(problem, pieces, where, off, now, base.a, candidates, speed, motion.e)
        at = (t, flown.elapsed + delay, found.q, found.v, found.closed & ~verdict.loosed, verdict.loosed)
        changed = begins | some | jnp.any(verdict.loosed | (found.closed != base.closed))
        after, failure, at_start = self._settled(
            problem, law, motion, pieces, *at, substep, flown.where, switched, changed
        )
        failure = failure | jnp.where(begins, at_start, 0)
        if switched is not None and pieces is not None and self.jumps:
            failure |= status_behind(pieces, after, jnp.any(switched), t, self.resolution(motion), args)
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
            joined(late(told.joints, delay, flown), event.joint_impulse(found.impulse)),
        )

    def _settled(
        self,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        pieces: Pieces | None,
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
        """The base at a state, as `base_at`; on the sides of the force ``where`` it was, unless borders were ``switched`` (k,) or something
        else has ``changed``; and status of derivatives if the motion begins here."""
        atol, args, none = self._tolerance(q.dtype).absolute, motion.args, jnp.zeros((), jnp.int32)
        if pieces is None:
            return *base_at(problem, law, t, elapsed, q, v, closed, loosed, substep, atol, args), none
        found = Settled(where, v, none, none)
        if switched is not None:
            span = frozen(jnp.abs(t) + motion.h)
            look = lambda: settled(pieces, where, t, q, v, closed, switched & pieces.slid(where), atol, span, args)
            found = lax.cond(jnp.any(switched) | changed, look, lambda: found)
        where, v = found.where, found.v
        hold = pieces.hold(where)
        if closed.shape[0] == 0:
            a, force, push, of_joints = hold(t, q, v, closed, elapsed, args)
            at = (elapsed, q, v, a, closed, force, push, force, force, frozen(elapsed))
            base, status = Base(*at, joint_force=of_joints, where=where), none
        else:
            local = pieces.local(where, t, q, v, closed, args)
            base, status = base_at(local, law, t, elapsed, q, v, closed, loosed, substep, atol, args)
            base = base._replace(where=where)
        if len(closed) and len(pieces.steep):
            again = lambda: hold(t, q, v, base.closed, base.slack, args)
            as_it_is = lambda: (base.a, base.force, base.push, base.joint_force)
            a, force, push, of_joints = lax.cond(jnp.any(where.slides), again, as_it_is)
            base = base._replace(a=a, force=force, push=push, joint_force=of_joints)
        status = status | found.status if self.jumps else status
        return base, status, found.at_start if self.jumps else none


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Observing(EventDriven):
    """The same, with a record of the first impacts, or a surface at which the motion ends."""

    impacts: int = field(default=0, metadata={"static": True})  # type: ignore[misc]
    until: Until | None = field(default=None, metadata={"static": True})  # type: ignore[misc]
