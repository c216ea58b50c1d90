"""An event-locating scheme of second order whose plain derivative is that of the motion, across impacts too.

A step follows, from event to event, the cubic path whose acceleration varies linearly between its two ends,

    q(s) = q + s v + s^2 (a/2 + s (a_r - a)/(6 r)),     a_r = acceleration at (t + r, q + r v + r^2 a/2, v + r a),

r being what is left of the step and a the acceleration with the lasting contacts' reaction. An impact ends it where
a gap f(t + s, q(s)) vanishes; that time is differentiated by the implicit function theorem, and with it everything that
an impact does to a derivative (the saltation matrix) follows from automatic differentiation. A release ends it where the
linearly varying force of a lasting contact vanishes.

Reference: M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958), for
the derivative at an impact. The scheme is this project's own: no convergence theorem covers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.derivative_rules import graft
from ..contact.laws import ContactLaw
from ..friction import FrictionInfo
from ..linearisation import Metric, acceleration, closure, linearise, span
from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from ..switches import Kinks
from .base import Info, JointInfo, Scheme, Traits, add_compensated, before, gradient_status, mass_status, zero_remainder
from .event_friction import held_velocity, rubbing_step
from .events import Event, View, behind, collide, impulses_of, lasting_at_end, noise, nonzero, persisting
from .joints import put_on_joints
from .paths import STEEP, Path, double_crossing, near_grazing


class EventState(NamedTuple):
    """Step number n (t = t0 + n h), position q (d,), velocity v (d,) at t, lasting contacts closed (m,) bool, and the
    time of the latest impact, to a step; three steps before t0 where there was none."""

    n: Array
    q: Array
    v: Array
    closed: Array
    latest: Array
    low: Array | None = None  # as in `State`
    # with friction, contacts (m,) whose slip is zero, directions (m, k) in which they have just broken away, else 0, and their forces (m, 1 + k)
    rests: Array | None = None
    breaks: Array | None = None
    force: Array | None = None


class _Progress(NamedTuple):
    """Progress within a step: time since its start, state, and totals to report; ``met`` (m,): contacts with an impact."""

    elapsed: Array
    q: Array
    low: Array | None
    v: Array
    closed: Array
    impulse: Array
    residual: Array
    events: Array
    met: Array
    status: Array
    joints: JointInfo | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EventCorrected(Scheme):
    """Second order in position, velocity and their derivatives where impacts are isolated and transversal.

    A contact becomes a lasting one when it would leave slower than 2 h (|G a| + |f'' - G a|) under an acceleration that
    closes it: through an accumulation of impacts position is second order, velocity and derivatives are first order.
    Where a gap kinks under a lasting contact (a wall whose velocity jumps, an edge of the ground) the body flies on if the surface
    turns away, and has an impact if it turns towards it, at the end of the step: of first order there.
    Contacts that are met at once, up to round-off, meet one impact law together; where their gradients are orthogonal
    one after the other is the same, and keeps the derivative.

    Attributes:
        impacts: events (impacts and releases) located in one step. What still penetrates at its end is put back onto
            its surface and reflected there: nothing is lost, but that step is first order, and the status says
            EVENTS_UNRESOLVED.
        newton: Newton iterations for the time of an impact, from the root of the gap's Taylor polynomial.
    """

    impacts: int = field(default=2, metadata={"static": True})
    newton: int = field(default=4, metadata={"static": True})

    @property
    def traits(self) -> Traits:
        return Traits(locates=True, order=2, joints=True, approach=True, friction=True)

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[Any, Info]:
        q0, v0, t0, args = motion.q0, motion.v0, motion.t0, motion.args
        metric = Metric.at(problem, q0, args, t0)
        contacts = linearise(problem, metric, t0, q0, args)
        # closed and not opening; the first step releases those that the acceleration opens
        a = acceleration(problem, metric, t0, q0, v0, args)
        at = closure(contacts, -contacts.gap_velocity(v0), q0, v0, motion.h, a)
        zero = jnp.zeros((), jnp.int32)
        state = EventState(zero, q0, v0, at.closed & ~at.outward, before(motion), zero_remainder(q0))
        if problem.slip is None:
            return state, Info.none(q0, v0, len(at.closed))
        rubs = FrictionInfo.none(len(at.closed), problem.slip_velocity(t0, q0, v0, args).shape[1], q0.dtype)
        v0 = held_velocity(problem, t0, motion.h, q0, v0, state.closed, args)
        force = jnp.concatenate([contacts.gap[:, None], rubs.impulse], axis=1)
        state = state._replace(v=v0, rests=jnp.zeros_like(at.closed), breaks=rubs.impulse, force=jnp.zeros_like(force))
        return state, Info.none(q0, v0, len(at.closed), rubs)

    def step(
        self, problem: Problem, law: ContactLaw, motion: Motion, state: Any, length: Array | None = None
    ) -> tuple[Any, Info]:
        """State at n + 1, or a time ``length`` after step n began, in (0, h]."""
        r = motion.h if length is None else length
        if problem.slip is not None:
            return self._rubbing_step(problem, law, motion, state, r)
        n, q, v, closed, latest, low, *_ = state
        m = closed.shape[0]
        zero = jnp.zeros((), q.dtype)
        none = jnp.zeros((), jnp.int32)
        progress = _Progress(zero, q, low, v, closed, jnp.zeros(m, q.dtype), zero, none, jnp.zeros(m, bool), none)
        progress = progress._replace(joints=JointInfo.none(problem, q, motion.args))

        def advance(carry: tuple[_Progress, Array], _: None) -> tuple[tuple[_Progress, Array], None]:
            progress, left = carry
            moved = lambda p: self._segment(problem, law, motion, motion.time(n), r, p, left)
            return (lax.cond(progress.elapsed < r, moved, lambda p: p, progress), left - 1), None

        # the impacts left are counted, not read from a sequence, which one kernel has no place for
        count = self.impacts if m else 0
        found = lax.scan(advance, (progress, none + count), None, length=count + 1)[0][0]
        _, q_new, low, v, closed, impulse, residual, events, met, status, joints = found
        latest = jnp.where(jnp.any(met), lax.stop_gradient(motion.time(n) + r), latest)
        info = Info(q_new, (q_new - q) / r, impulse, jnp.any(impulse > 0), residual, events, status, joints)
        return EventState(n + 1, q_new, v, closed, latest, low), info

    def free_step(self, problem: Problem, motion: Motion, state: Any, length: Array | None = None) -> tuple[Any, Info]:
        """Step without contact; invalid, as ``info.acts`` says, if a contact is closed or an event may lie in the step."""
        h, args = motion.h, motion.args
        r = h if length is None else length
        n, q, v, closed, latest, low, *_ = state
        t = motion.time(n)
        here = View.at(problem, t, q, v, args)
        a = here.free
        there = View.at(problem, t + r, q + r * (v + (0.5 * r) * a), v + r * a, args)
        shift, v_new = Path(t, r, q, v, a, there.free - a, args).along(r)
        q_new, low = add_compensated(q, shift, low)
        joints, bits = None, jnp.zeros((), jnp.int32)
        if here.joint_force is not None:
            landed = put_on_joints(problem, t + r, q_new, low, shift, here.joints, args, STEEP)
            q_new, low, v_new, bits = landed.q, landed.low, landed.velocity(v_new), landed.status
            joints = JointInfo(0.5 * r * (here.joint_force + there.joint_force), landed.residual)
        allowed, taylor = here.roundoff(q, v, a, h), here.taylor(a)
        event = closed | (problem.gaps(t + r, q_new, args) < -allowed) | double_crossing(taylor, r, closed, allowed)
        event |= near_grazing(taylor, r, h, closed, allowed)
        info = Info.none(q_new, (q_new - q) / r, closed.shape[0])
        info = info._replace(acts=jnp.any(event), status=mass_status(Metric.at(problem, q_new, args)), joints=joints)
        info = info if joints is None else info._replace(status=info.status | bits)
        if problem.slip is not None:
            info = info._replace(friction=FrictionInfo.none(closed.shape[0], state.breaks.shape[1], q.dtype))
        return EventState(n + 1, q_new, v_new, closed, latest, low, *state[6:]), info

    def _rubbing_step(
        self, problem: Problem, law: ContactLaw, motion: Motion, state: Any, r: Array
    ) -> tuple[Any, Info]:
        """`step` with friction, over a time r."""
        found = rubbing_step(self, problem, law, motion, state, r)
        latest = jnp.where(jnp.any(found.met), lax.stop_gradient(motion.time(state.n) + r), state.latest)
        impulse, chord = found.impulse[:, 0], (found.q - state.q) / r
        rubbed = found.did._replace(impulse=found.impulse[:, 1:])
        told = found.residual, found.events, found.status, found.joints, rubbed
        info = Info(found.q, chord, impulse, jnp.any(impulse > 0), *told)
        return EventState(
            state.n + 1, found.q, found.v, found.closed, latest, found.low, found.rests, found.breaks, found.force
        ), info

    def _segment(
        self,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        start: Array,
        length: Array,
        progress: _Progress,
        left: Array,
    ) -> _Progress:
        """Follows the path to the next event, of which ``left`` may still be located, or to the end of the step, and treats it."""
        h, args = motion.h, motion.args
        elapsed, q, low, v, closed, impulse, residual, events, met, status, joints = progress
        t, r, last = start + elapsed, length - elapsed, left == 0
        kinks = Kinks.at(problem, t, q, args)

        # the path: accelerations at its two ends with the reaction of the contacts that push at its start
        here = View.at(problem, t, q, v, args)
        push, pushing, stays, failure = persisting(law, here.contacts, here.free, here.gap_acceleration, closed)
        closed = closed & stays
        a = here.free + here.contacts.jump(push)
        there = View.at(problem, t + r, q + r * (v + (0.5 * r) * a), v + r * a, args)
        push_end = impulses_of(there.contacts, -(there.contacts.velocity(there.free) + there.gap_acceleration), pushing)
        path = Path(t, r, q, v, a, there.free + there.contacts.jump(push_end) - a, args)

        # the first event on it: an impact, or the release where a force, linear in time, becomes negative
        allowed, taylor = here.roundoff(q, v, a, h), here.taylor(a)
        penetrating = ~closed & (lax.stop_gradient(path).gaps(problem, lax.stop_gradient(r))[0] < -allowed)
        impact, which, impact_time = self.find_impact(
            problem, path, taylor, closed, penetrating, allowed, span(h, q.dtype)
        )
        loose = pushing & (
            there.contacts.diagonal() * push_end < -noise(there.contacts, there.free, there.gap_acceleration)
        )
        release = jnp.where(loose, r * push / jnp.where(loose, push - push_end, 1), 2 * h)
        release_time = jnp.min(release, initial=jnp.inf)
        releases = jnp.any(loose) & ~last & ~(impact & (impact_time <= release_time))
        impact = impact & ~last & ~releases
        s = jnp.where(impact, impact_time, jnp.where(releases, release_time, r))
        shift, v = path.along(s)
        arrived, low = add_compensated(q, shift, low)
        impulse = impulse + s * (push + (0.5 * (s / nonzero(r))) * (push_end - push))
        if joints is not None:
            landed = put_on_joints(problem, t + s, arrived, low, shift, here.joints, args, STEEP)
            arrived, low, v, failure = landed.q, landed.low, landed.velocity(v), failure | landed.status
            force, force_end = here.joint_forces(push), there.joint_forces(push_end)
            held = s * (force + (0.5 * (s / nonzero(r))) * (force_end - force))
            joints = JointInfo(joints.impulse + held, jnp.maximum(joints.residual, landed.residual))

        events = events + (impact | releases).astype(jnp.int32)
        elapsed = jnp.where(impact | releases, elapsed + s, length)
        progress = _Progress(elapsed, arrived, low, v, closed, impulse, residual, events, met, status | failure, joints)
        candidates = jnp.where(last, penetrating, which & impact)
        # a contact without a force may open on the way, where its surface curves away or a force changes
        normal = there.contacts.velocity(there.free + there.contacts.jump(push_end)) + there.gap_acceleration
        idle = closed & ~pushing & (normal > noise(there.contacts, there.free, there.gap_acceleration))
        progress, met = self._arrive(problem, law, motion, t + s, progress, candidates, allowed, left, kinks, idle)
        metric, moved = Metric.at(problem, q, args, t), lax.stop_gradient(arrived - q)
        status = progress.status | gradient_status(law, problem, metric, here.contacts, t, q, moved, met, args)
        status |= as_status(jnp.any(near_grazing(taylor, r, h, closed | met, allowed)), Status.DERIVATIVE_GRAZING)
        released = releases & (release <= release_time + 1e-9 * h)
        return progress._replace(closed=progress.closed & ~released, status=status)

    def _arrive(
        self,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        t: Array,
        progress: _Progress,
        candidates: Array,
        allowed: Array,
        left: Array,
        kinks: Kinks | None,
        idle: Array,
    ) -> tuple[_Progress, Array]:
        """Treats the end of a path: puts lasting contacts back onto their surface, and applies the impact law to the candidates.

        A lasting contact whose gap had a kink on the path is released or struck. Returns the new progress and the contacts (m,) that had an impact.
        """
        h, args = motion.h, motion.args
        elapsed, q, low, v, closed, impulse, residual, events, met, status, joints = progress
        last = left == 0
        event = Event.at(problem, t, q, v, args)
        contacts, speed = event.contacts, event.speed
        near = contacts.gap <= allowed + 1e-6 * h * jnp.abs(speed)
        open_now = idle & (contacts.gap > allowed)
        closed, struck = lasting_at_end(kinks, open_now, event, closed, args)
        candidates, near = candidates | struck, near | struck
        candidates = candidates & (near | last)
        pulled = closed | candidates
        if len(closed) > 1:
            # what goes back past the last event may push others through their surfaces: all go back together, and have an impact
            frozen = lax.stop_gradient((contacts, speed, problem.restitution_at(motion.e, speed, args)))
            pulled, past = lax.cond(last, lambda: behind(law, h, *frozen, closed), lambda: (pulled, jnp.array(False)))
            candidates = candidates | (pulled & ~closed)
            status |= as_status(past, Status.PENETRATION_DEEP)
        slowest = lambda normal: 2 * h * normal
        found = collide(problem, law, motion, slowest, event, closed, candidates, near, pulled, met, left, h)
        residual = jnp.maximum(residual, jnp.max(found.error, initial=0.0))
        impulse, met, status = impulse + found.impulse, met | found.impact, status | found.status
        if joints is not None:
            joints = joints._replace(impulse=joints.impulse + event.joint_impulse(found.impulse))
        progress = _Progress(
            elapsed, found.q, low, found.v, found.closed, impulse, residual, events, met, status, joints
        )
        return progress, found.impact

    def find_impact(
        self,
        problem: Problem,
        path: Path,
        taylor: tuple[Array, Array, Array],
        closed: Array,
        penetrating: Array,
        allowed: Array,
        time: Array,
    ) -> tuple[Array, Array, Array]:
        """Finds the first impact on the path: whether there is one, the contacts (m,) that meet, and the time.

        ``allowed`` (m,) is the round-off of gaps, over ``time`` () that of their velocities. The time of the impact is found with all
        derivatives stopped; two more Newton steps give it the first three derivatives of the implicit function.
        """
        if closed.shape[0] == 0:
            return jnp.array(False), closed, path.r
        frozen = lax.stop_gradient(path)
        r = frozen.r
        (c, b, a), allowed = lax.stop_gradient((taylor, allowed))
        candidates = penetrating | double_crossing((c, b, a), r, closed, allowed)
        c = jnp.maximum(c, 0)
        exists = jnp.any(candidates)
        inward = b < 0
        root = jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0))
        falls = ~inward & (a < 0)
        first = jnp.where(inward, 2 * c / jnp.where(inward, root - b, 1), (b + root) / jnp.where(falls, -2 * a, 1))
        first = jnp.where(inward | falls, first, r)
        s = jnp.clip(jnp.min(jnp.where(candidates, first, r)), 0, r)

        def newton(s: Array, gap: Array, slope: Array) -> Array:
            return jnp.where(candidates & (slope < 0), s - gap / jnp.where(slope < 0, slope, -1), jnp.inf)

        def improve(_: Any, bracket: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            s, low, high = bracket
            gap, slope = frozen.gaps(problem, s)
            beyond = jnp.any(candidates & ((gap < 0) | (inward & (slope >= 0))))
            low, high = jnp.where(beyond, low, s), jnp.where(beyond, s, high)
            s = jnp.min(newton(s, gap, slope))
            # a converged step may leave the bracket by rounding: that is no reason to bisect
            inside = (s >= low - 1e-6 * r) & (s <= high + 1e-6 * r)
            return jnp.where(inside, jnp.clip(s, low, high), 0.5 * (low + high)), low, high

        s, _, _ = lax.stop_gradient(lax.fori_loop(0, self.newton, improve, (s, jnp.zeros_like(r), r)))
        gap, slope = frozen.gaps(problem, s)
        contact = jnp.arange(b.shape[0]) == jnp.argmin(newton(s, gap, slope))
        of_contact = lambda x: jnp.sum(jnp.where(contact, x, 0))
        # the time of a grazing contact has no derivative
        speed = -of_contact(slope)
        transversal = exists & (speed > of_contact(16 * allowed / time))
        value = jnp.clip(s + jnp.where(transversal, of_contact(gap) / jnp.where(transversal, speed, 1), 0), 0, r)

        def implicit(s: Array) -> Array:
            gap, slope = map(of_contact, path.gaps(problem, s))
            return jnp.where(transversal, s - (gap - lax.stop_gradient(gap)) / jnp.where(transversal, slope, 1), value)

        return exists, contact, graft(value, implicit(implicit(value)))
