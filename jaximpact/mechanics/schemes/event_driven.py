"""An event-driven scheme of high order: substeps chosen by a tolerance, which end where contacts close or open.

A step is a loop over trials, each one Runge-Kutta step from the end of the last accepted one (their base). A trial is
accepted, or repeated with another length because its error is too large or because there is an event in it, whose time
is then searched: of an impact by Newton's method on gap and gap velocity, of a release by regula falsi on the push of
the contact that opens. Each iteration of a search is again a trial from the same base: events are found to the order of
the method, the method is traced once, and lanes of a vector do not wait for each other's searches.

A force or mass that jumps or kinks is evaluated on one side of its switches at a time (`pieces`), and the borders are
events too (`borders`). So are, with Coulomb friction, slips that vanish and contacts that break away (`rubbing`).

The lengths of trials are constants for differentiation; where an impact is found, a last Newton correction, which is
zero in value up to the tolerance of the search, carries the derivative of its time:
first and second derivatives are those of the motion.

References:
    E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, Springer (1993), II.4 and II.6.
    M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from ...jaxtools.argument_checks import is_traced
from ...jaxtools.array_types import F0, I0, B_m, F_d, F_m
from ...jaxtools.derivative_rules import forward_only
from ..contact.laws import ContactLaw, Open
from ..contacts import Contacts
from ..events.impact_record import IMPACT, ImpactRecord
from ..linearisation import Metric, acceleration, closure, linearise
from ..motion import Motion
from ..problem import Problem
from ..scheme import Info, JointInfo, Scheme, Step, Traits, mass_status, time_before_start, zero_remainder
from ..status import Status, as_status
from ..trials.bases import TERMS, times_off
from ..trials.driven_step import first_carry, goes_on, turn
from ..trials.flights import flight
from ..trials.regimes import in_regime, regime_of
from ..trials.stops import Stop, Until
from ..trials.tableau import TABLEAUS
from ..trials.trial import Tolerance, frozen, held

SCANNED = 100  # trials up to which the loop over them has a fixed length, which reverse mode needs
NO_REVERSE = (
    "reverse mode through EventDriven asks for a fixed number of trials in a step: give EventDriven(trials=...) of at "
    f"most {SCANNED}, with "
    "as many steps as make do with that (16 to 64 trials each, else the status says TRIALS_EXHAUSTED); or forward "
    "mode, jax.jvp or jax.jacfwd"
)
SPREAD = (
    1e3  # times the relative tolerance: largest error of the times of impacts, as a fraction of the motion's duration
)


class DrivenState(NamedTuple):
    """State of `EventDriven` between steps: step number n (t = t0 + n h), position q and velocity v (d,) at t, mask
    ``closed`` (m,) of lasting contacts, the exact time of the ``latest`` impact, three steps before t0 where there was
    none, and the ``substep`` () that the next trial tries; the ``record`` of the first impacts and the ``stop`` of the
    motion if they are asked for; ``where``, the sides of a force with jumps (`pieces`) or what contacts that rub do;
    the estimated ``error`` () of the motion so far, in units of the tolerance, and the error ``spread`` () of the time
    of the latest impact. The record, the stop and both errors are None where they are not needed."""

    n: I0
    q: F_d
    v: F_d
    closed: B_m
    latest: F0
    substep: F0
    low: F_d | None = None
    record: ImpactRecord | None = None
    stop: Stop | None = None
    where: Any = None
    error: F0 | None = None
    spread: F0 | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EventDriven(Scheme[DrivenState]):
    """Event-driven scheme with substeps of order 8 chosen by a tolerance, and events located to the same order;
    h only spaces the rows.

    Isolated impacts, lasting contacts and releases, and their derivatives, are as accurate as the motion between them.
    A contact stays closed after an impact if its gap would remain below ``atol`` until the next one, and no other
    contact closes meanwhile. Coulomb friction is known for few contacts; stops,
    breaks and reversals have the same accuracy.

    Attributes:
        rtol, atol: tolerance of a substep's error in each position, velocity, gap and impulse x: atol + rtol |x|, in
            the problem's units; order 2 does not ask for them.
        order: 8 (Dormand and Prince, with estimates of order 5 and 3), or 5 (with one of order 4), for loose
            tolerances; or 2, without a tolerance: each substep is a step h, or ends at an event.
        trials: largest number of trials in a step h, beyond which the status says TRIALS_EXHAUSTED. With at most 100,
            reverse mode walks back through them; else it goes forward, once for each number.
        jumps: whether substeps check for jumps that are not located, which DERIVATIVE_JUMP reports;
            never in runs without derivatives.
        changes: whether the relative tolerance holds for derivatives too (`probes`); never in runs without derivatives.
    """

    rtol: float = 1e-9
    atol: float = 1e-9
    order: int = field(default=8, metadata={"static": True})
    trials: int = field(default=20_000, metadata={"static": True})
    jumps: bool = field(default=True, metadata={"static": True})
    changes: bool = field(default=True, metadata={"static": True})
    impacts: ClassVar[int] = 0  # number that are recorded
    kinds: ClassVar[tuple[str, ...]] = (IMPACT,)  # of events that are recorded as impacts are
    until: ClassVar[Until | None] = None  # where the motion ends

    @property
    def traits(self) -> Traits:
        reverse, tells, by_tolerance = self.trials <= SCANNED, self.jumps, self.by_tolerance
        return Traits(
            locates=True, order=None if by_tolerance else 2, explicit=0.0 if by_tolerance else 1.0,
            damping=not by_tolerance,
            reverse=reverse, tells_jumps=tells, tells_error=by_tolerance, joints=True, resets=True, approach=True,
            impact_laws=True, friction=2, kinks=True,
        )  # fmt: skip

    @property
    def by_tolerance(self) -> bool:
        """Whether substeps are chosen by the tolerance, not by the step h."""
        return self.order not in TABLEAUS or TABLEAUS[self.order].estimates

    def unresolved(self, h: F0) -> F0:
        """Returns the change () of a gap or level whose second rate is 1 that steps h do not resolve."""
        return jnp.zeros_like(h) if self.by_tolerance else frozen(2 * h * h)

    def for_values(self) -> EventDriven:
        return replace(self, jumps=False, changes=False)

    def observing(self, impacts: int, until: Until | None, kinds: tuple[str, ...]) -> EventDriven:
        options = {option.name: getattr(self, option.name) for option in fields(self) if option.init}
        return _observing(type(self))(**options | {"impacts": impacts, "until": until, "kinds": kinds})

    def resolution(self, motion: Motion) -> F0:
        if not self.by_tolerance:
            return super().resolution(motion)
        return frozen(SPREAD * self.tolerance(motion.h.dtype).relative * (motion.t1 - motion.t0))

    def on_piece(self, problem: Problem, motion: Motion, state: DrivenState) -> Problem:
        step = Step(self, problem, Open(), motion, motion.t0, motion.h)
        regime = in_regime(step, state.q, state.v).regime
        return regime.pieces.on(regime.piece(state.where).sides)

    def time_errors(self, motion: Motion, state: DrivenState, contacts: Contacts, speed: F_m) -> F_m:
        most = self.resolution(motion)
        if state.error is None or not self.by_tolerance:
            return jnp.broadcast_to(most, speed.shape)
        return times_off(self.tolerance(speed.dtype), most, state.error, state.q, contacts, speed)

    def check(self, problem: Problem, e: ArrayLike, m: int) -> None:
        super().check(problem, e, m)
        if self.order not in TABLEAUS:
            raise ValueError(f"EventDriven(order=...) must be 8, 5 or 2, got {self.order}")
        if not is_traced(self.rtol, self.atol) and not (self.rtol > 0 and self.atol > 0):
            raise ValueError(
                f"EventDriven needs rtol and atol above 0, got {self.rtol:g} and {self.atol:g}: 1e-12 is near what "
                "float64 can hold"
            )
        if problem.noise is not None and problem.slip is not None:
            # the force jumps between steps, where contacts that stick would have to break at once
            raise ValueError(f"noise: {type(self).__name__} takes none with friction: use MoreauJean()")

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[DrivenState, Info]:
        q0, v0, t0, args = motion.q0, motion.v0, motion.t0, motion.args
        metric = Metric.at(problem, q0, args, t0)
        contacts = linearise(problem, metric, t0, q0, args)
        a = acceleration(problem, metric, t0, q0, v0, args)
        at = closure(contacts, -contacts.gap_velocity(v0), q0, v0, TERMS * motion.h, a)
        zero = jnp.zeros((), jnp.int32)
        substep = frozen(motion.h + 0 * q0[0])
        state = DrivenState(
            zero,
            q0,
            v0,
            at.closed & ~at.outward,
            time_before_start(motion),
            substep,
            zero_remainder(q0),
        )
        m, info = len(at.closed), Info.none(q0, v0, len(at.closed))
        info = info._replace(
            error=jnp.zeros_like(t0) if self.by_tolerance else None, ended=jnp.full_like(t0, jnp.nan), near=zero
        )
        regime = regime_of(problem, t0, q0, v0, args, motion.by)
        where, v0 = regime.start(motion.h, t0, q0, v0, state.closed, args)
        state, info = state._replace(v=v0, where=where), info._replace(friction=where.without_impulses(m))
        if self.jumps:
            state = state._replace(error=jnp.zeros_like(t0), spread=jnp.zeros_like(t0))
        if self.impacts:
            state = state._replace(record=ImpactRecord.empty(self.impacts, q0, self.kinds))
        if self.until is not None:
            force = held(problem, t0, q0, v0, state.closed, jnp.zeros_like(t0), args)[0]
            state = state._replace(stop=Stop.start(self.until, t0, q0, v0, force, motion.h, args))
        return state, info

    def free_step(
        self, problem: Problem, motion: Motion, state: DrivenState, length: F0 | None = None
    ) -> tuple[DrivenState, Info]:
        """Makes one trial over a step h; invalid, with ``info.acts`` set, if an event may lie in it, or substeps are
        chosen by a tolerance."""
        info = Info.none(state.q, state.v, len(state.closed))._replace(acts=jnp.array(True))
        joints, near = JointInfo.none(problem, state.q, motion.args), jnp.zeros((), jnp.int32)
        info = info._replace(
            joints=joints,
            error=jnp.zeros_like(motion.t0) if self.by_tolerance else None,
            ended=jnp.full_like(motion.t0, jnp.nan),
            near=near,
        )
        info = info._replace(friction=state.where.without_impulses(len(state.closed)))
        if self.by_tolerance or self.until is not None:
            return state._replace(n=state.n + 1), info
        whole = motion.h if length is None else length
        found, met = flight(Step(self, problem, Open(), motion, motion.time(state.n), whole), state)
        status = mass_status(Metric.at(problem, found.q, motion.args)) | found.joint_status
        joints = joints._replace(impulse=found.joint_impulse, residual=found.joint_residual)
        info = info._replace(z=found.q, chord=(found.q - state.q) / whole, acts=met, status=status, joints=joints)
        return state._replace(n=state.n + 1, q=found.q, v=found.v, low=found.low), info

    def step(
        self, problem: Problem, law: ContactLaw, motion: Motion, state: DrivenState, length: F0 | None = None
    ) -> tuple[DrivenState, Info]:
        """Makes one step, to n + 1 or, if given, over a time ``length`` in (0, h]."""
        whole = motion.h if length is None else length
        n, q = state.n, state.q
        step = Step(self, problem, law, motion, motion.time(n), whole)
        if problem.slip is not None:  # the same contacts in all trials
            step = in_regime(step, q, state.v)
        carry = first_carry(step, state)
        if self.trials > SCANNED:
            carry = forward_only(lax.while_loop(partial(goes_on, step), partial(turn, step), carry), NO_REVERSE)
        else:
            part = lambda p, _: (lax.cond(goes_on(step, p), partial(turn, step), lambda p: p, p), None)
            carry = lax.scan(part, carry, None, length=self.trials)[0]
        base, search, totals = carry
        status = totals.status | mass_status(Metric.at(problem, base.q, motion.args))
        short = (base.elapsed < whole) & ((totals.trials >= self.trials) | (state.substep <= 0))
        short = short if totals.stop is None else short & ~totals.stop.stopped
        status |= as_status(short, Status.TRIALS_EXHAUSTED)
        ending = jnp.where(short, 0, search.substep)  # after a failure no more trials are made
        impulse, rubbed = base.where.of_step(totals.impulse, base.closed)
        info = Info(
            base.q,
            (base.q - q) / whole,
            impulse,
            jnp.any(impulse > 0),
            totals.residual,
            totals.trials,
            status,
            totals.joints,
            rubbed,
            error=totals.error if self.by_tolerance else None,
            ended=jnp.where(short, frozen(step.start + base.elapsed), jnp.nan),
            near=totals.near,
        )
        error = None if state.error is None else state.error + frozen(totals.error)
        return DrivenState(
            n + 1,
            base.q,
            base.v,
            base.closed,
            totals.latest,
            ending,
            base.low,
            totals.record,
            totals.stop,
            base.where,
            error,
            totals.spread,
        ), info

    def tolerance(self, dtype: DTypeLike) -> Tolerance:
        """Returns the error tolerance in a precision ``dtype``, raised to its round-off."""
        rounding = 32 * float(jnp.finfo(dtype).eps)
        relative, absolute = (frozen(jnp.asarray(x, dtype)) for x in (self.rtol, self.atol))
        none = jnp.zeros_like(absolute)
        return Tolerance(
            jnp.maximum(relative, rounding), jnp.maximum(absolute, rounding) if self.by_tolerance else none
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EventCorrected(EventDriven):
    """`EventDriven` of order 2, by steps h.

    Positions, velocities and their derivatives are of second order in h where impacts are isolated and transversal.
    A contact becomes a lasting one when all its further flights together would take less than 4 h: through an
    accumulation of impacts position is of second order, velocity and derivatives are of first order.
    """

    order: int = field(default=2, metadata={"static": True})


@cache
def _observing(scheme: type[EventDriven]) -> type[EventDriven]:
    """Returns the class of schemes that do what a ``scheme`` does, `EventDriven` or a class made of it, and have what
    is observed as fields."""
    static = lambda default: field(default=default, metadata={"static": True})
    observed = [("impacts", int, static(0)), ("until", object, static(None)), ("kinds", tuple, static((IMPACT,)))]
    return jax.tree_util.register_dataclass(make_dataclass(scheme.__name__, observed, bases=(scheme,), frozen=True))
