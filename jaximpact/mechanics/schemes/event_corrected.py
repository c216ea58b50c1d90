"""An event-locating scheme of second order whose plain derivative is that of the motion, across impacts too.

A step follows, from event to event, the cubic path whose acceleration varies linearly between its two ends,

    q(s) = q + s v + s^2 (a/2 + s (a_r - a)/(6 r)),     a_r = acceleration at (t + r, q + r v + r^2 a/2, v + r a),

r being the rest of the step and a the acceleration with the reaction of lasting contacts. The path ends at an impact, where
a gap f(t + s, q(s)) vanishes; that time is differentiated by the implicit function theorem, and with it the effect of
an impact on derivatives (the saltation matrix) follows from automatic differentiation. It also ends at a release, where the
linearly varying force of a lasting contact vanishes, and where a surface is crossed at which the force jumps (`crossings`).

Reference: M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958), for
the derivative at an impact. The scheme is this project's own: no convergence theorem covers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.derivative_rules import graft
from ...jaxtools.linalg import nonzero
from ...switches.switches import Kinks
from ..contact.laws import ContactLaw
from ..events.event_state import Event, View, impulses_to_change, persisting
from ..events.impacts import behind, collide, lasting_at_end
from ..events.rubbing_contacts import held_velocity
from ..friction import FrictionInfo, tangents
from ..joint_projection import put_on_joints
from ..linearisation import Metric, acceleration, closure, linearise, noise, span
from ..motion import Motion
from ..paths.crossings import (
    Ahead,
    Border,
    NoBorder,
    border_ahead,
    located_pieces,
    sliding_problem,
    start_on_pieces,
)
from ..paths.cubic_paths import STEEP, Path, double_crossing, first_zero, near_grazing
from ..paths.event_friction import rubbing_step
from ..paths.pieces_in_modes import pieces_in_modes
from ..problem import Problem
from ..scheme import (
    Info,
    JointInfo,
    Scheme,
    Step,
    Traits,
    add_compensated,
    gradient_status,
    mass_status,
    time_before_start,
    zero_remainder,
)
from ..status import Status, as_status
from ..trials.pieces import Where


class EventState(NamedTuple):
    """State of `EventCorrected` between steps: step number n (t = t0 + n h), position q and velocity v (d,) at t, mask ``closed`` (m,) of
    lasting contacts, and the time of the ``latest`` impact, which is known up to a step; three steps before t0 where there was none.

    ``low`` as in `State`; ``where`` and, with friction, ``rests``, ``breaks``, ``force`` and ``frame`` as in `rubbing_paths.Progress`; None without
    need."""

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
    where: Where | None = None  # the sides on which a force that jumps is taken (`crossings`); None where none jumps
    frame: Array | None = None  # tangents (m, 2, d) along which ``breaks`` and ``force`` are given in space


class _Progress(NamedTuple):
    """Carry of the loop over the paths of a step: time ``elapsed`` since the start of the step, the state at that time, and totals to report.

    ``met`` (m,): contacts that had an impact in the step; ``events``: number of events so far; the other fields as of `EventState` and `Info`.
    """

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
    joints: JointInfo
    where: Where | None = None


class _Flight(NamedTuple):
    """A path, with what is known of its start (``here``) and its end (``there``).

    Contact forces at the start, ``push`` (m,), and at the end, ``push_end`` (m,); masks (m,) of contacts that push at the start (``pushing``) and
    that are ``closed`` on the path; and the ``border`` of the force that it may cross.
    """

    here: View
    there: View
    path: Path
    push: Array
    push_end: Array
    pushing: Array
    closed: Array
    border: Border | NoBorder

    def releases(self, never: Array) -> tuple[Array, Array]:
        """Finds the contacts (m,) that would pull at the end of the path, and the times (m,) at which their forces, linear in time, vanish.

        The time of other contacts is ``never``, ().
        """
        there, push, push_end = self.there, self.push, self.push_end
        loose = self.pushing & (
            there.contacts.diagonal() * push_end < -noise(there.contacts, there.free, there.gap_acceleration)
        )
        return loose, jnp.where(loose, self.path.r * push / jnp.where(loose, push - push_end, 1), never)

    def joint_impulse(self, s: Array) -> Any:
        """Returns the impulses (j,) of the joints from the start of the path to time s."""
        force, force_end = self.here.joint_forces(self.push), self.there.joint_forces(self.push_end)
        return s * (force + (0.5 * (s / nonzero(self.path.r))) * (force_end - force))

    def opens(self) -> Array:
        """Finds the closed contacts (m,) without a force that may open on the path, since their surface curves away or forces on the body change."""
        there = self.there
        normal = there.contacts.velocity(there.free + there.contacts.jump(self.push_end)) + there.gap_acceleration
        idle = self.closed & ~self.pushing
        return idle & (normal > noise(there.contacts, there.free, there.gap_acceleration))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EventCorrected(Scheme):
    """Second order in position, velocity and their derivatives where impacts are isolated and transversal.

    A contact becomes a lasting one when it would separate slower than 2 h (|G a| + |f'' - G a|) under an acceleration that
    closes it, f'' being the acceleration of its gap f and G a the part of it that comes from the acceleration a of the coordinates:
    through an accumulation of impacts position is second order, velocity and derivatives are first order.
    Where a gap kinks under a lasting contact (a wall whose velocity jumps, an edge of the ground) the body flies on if the surface
    turns away, and has an impact if it turns towards it, at the end of the step: first order there.
    Contacts that close at the same time, up to round-off, are treated by one impact law together; where their gradients are
    orthogonal, one after the other gives the same velocity, and keeps the derivative.
    Crossing a surface on which the force or the mass jumps, found or stated, is an event too, and resets are made there; where the forces on both
    sides push towards a surface that depends on v, the motion slides on it, where contacts rub too; if these stick or slip otherwise on one of the
    sides, EVENTS_UNRESOLVED is set.

    Attributes:
        impacts: number of events (impacts, releases and crossings of surfaces at which the force jumps) located in one step. Contacts that still
            penetrate at its end are put back onto their surface and reflected there: nothing is lost, but that step is first order,
            and the status says EVENTS_UNRESOLVED.
        newton: Newton iterations for the time of an impact, from the root of the gap's Taylor polynomial.
    """

    impacts: int = field(default=2, metadata={"static": True})
    newton: int = field(default=4, metadata={"static": True})

    @property
    def traits(self) -> Traits:
        return Traits(locates=True, order=2, joints=True, approach=True, impact_laws=True, friction=2, resets=True)

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[Any, Info]:
        q0, v0, t0, args = motion.q0, motion.v0, motion.t0, motion.args
        metric = Metric.at(problem, q0, args, t0)
        contacts = linearise(problem, metric, t0, q0, args)
        # closed and not opening; the first step releases those that the acceleration opens
        a = acceleration(problem, metric, t0, q0, v0, args)
        at = closure(contacts, -contacts.gap_velocity(v0), q0, v0, motion.h, a)
        zero = jnp.zeros((), jnp.int32)
        state = EventState(zero, q0, v0, at.closed & ~at.outward, time_before_start(motion), zero_remainder(q0))
        m, k = problem.slip_velocity(t0, q0, v0, args).shape
        info = Info.none(q0, v0, m, FrictionInfo.none(m, k, q0.dtype))
        if k:
            still, force = jnp.zeros((m, k), q0.dtype), jnp.zeros((m, 1 + k), q0.dtype)
            state = state._replace(rests=jnp.zeros_like(at.closed), breaks=still, force=force)
        if k > 1:
            state = state._replace(frame=tangents(problem, t0, q0, args))
        pieces = located_pieces(problem, t0, q0, v0, args)
        if pieces is not None:
            status = info.status
            if k and len(pieces.steep):
                begins = state._replace(where=pieces.start(t0, q0, v0, args))
                pieces, bits = pieces_in_modes(pieces, begins, t0, motion.h, args)
                status = status | bits
            where, v0, bits = start_on_pieces(pieces, motion, q0, v0, state.closed)
            problem, state, info = (
                pieces.on(where.sides),
                state._replace(where=where),
                info._replace(status=status | bits),
            )
        if k:
            v0 = held_velocity(problem, t0, motion.h, q0, v0, state.closed, args)
        return state._replace(v=v0), info

    def step(
        self, problem: Problem, law: ContactLaw, motion: Motion, state: Any, length: Array | None = None
    ) -> tuple[Any, Info]:
        """Makes one step, to n + 1 or, if given, over a time ``length`` in (0, h]."""
        r = motion.h if length is None else length
        if problem.slip is not None:
            return self._rubbing_step(problem, law, motion, state, r)
        n, q, v, closed, latest, low, *_ = state
        m = closed.shape[0]
        zero = jnp.zeros((), q.dtype)
        none = jnp.zeros((), jnp.int32)
        begun = jnp.zeros(m, q.dtype), zero, none, jnp.zeros(m, bool), none
        progress = _Progress(zero, q, low, v, closed, *begun, JointInfo.none(problem, q, motion.args), state.where)
        pieces = located_pieces(problem, motion.time(n), q, v, motion.args)
        step = Step(self, problem, law, motion, motion.time(n), r, pieces)

        def advance(carry: tuple[_Progress, Array], _: None) -> tuple[tuple[_Progress, Array], None]:
            progress, left = carry
            moved = lambda p: self._segment(step, p, left)
            # jax differentiates and batches a jitted function once
            return (lax.cond(progress.elapsed < r, jax.jit(moved), lambda p: p, progress), left - 1), None

        # the events left are counted down, not read from an array, which a single native kernel could not hold
        count = self.impacts if m or pieces is not None else 0
        found = lax.scan(advance, (progress, none + count), None, length=count + 1)[0][0]
        _, q_new, low, v, closed, impulse, residual, events, met, status, joints, where = found
        latest = jnp.where(jnp.any(met), lax.stop_gradient(motion.time(n) + r), latest)
        told = residual, events, status, joints, FrictionInfo.none(m, 0, q.dtype)
        info = Info(q_new, (q_new - q) / r, impulse, jnp.any(impulse > 0), *told)
        return EventState(n + 1, q_new, v, closed, latest, low, where=where), info

    def free_step(self, problem: Problem, motion: Motion, state: Any, length: Array | None = None) -> tuple[Any, Info]:
        """Makes a step without contact; invalid, with ``info.acts`` set, if a contact is closed or an event may lie in the step."""
        h, args = motion.h, motion.args
        r = h if length is None else length
        n, q, v, closed, latest, low, *_ = state
        t = motion.time(n)
        crosses = jnp.zeros((), bool)
        pieces = located_pieces(problem, t, q, v, args)
        if pieces is not None:
            problem = pieces.on(state.where.sides)
        here = View.at(problem, t, q, v, args)
        a = here.free
        if pieces is not None:
            crosses = Ahead.of(pieces, state.where, Path(t, r, q, v, a, jnp.zeros_like(a), args), h).needs_step(motion)
            crosses |= jnp.any(state.where.slides)
        there = View.at(problem, t + r, q + r * (v + (0.5 * r) * a), v + r * a, args)
        shift, v_new = Path(t, r, q, v, a, there.free - a, args).along(r)
        q_new, low = add_compensated(q, shift, low)
        landed = put_on_joints(problem, t + r, q_new, low, shift, here.joints, args, STEEP)
        q_new, low, v_new = landed.q, landed.low, landed.velocity(v_new)
        joints = JointInfo(0.5 * r * (here.joint_force + there.joint_force), landed.residual)
        allowed, taylor = here.roundoff(q, v, a, h), here.taylor(a)
        event = closed | (problem.gaps(t + r, q_new, args) < -allowed) | double_crossing(taylor, r, closed, allowed)
        event |= near_grazing(taylor, r, h, closed, allowed)
        info = Info.none(q_new, (q_new - q) / r, closed.shape[0])
        acts = jnp.any(event) if pieces is None else jnp.any(event) | crosses
        status = mass_status(Metric.at(problem, q_new, args)) | landed.status
        info = info._replace(acts=acts, status=status, joints=joints)
        if problem.slip is not None:
            info = info._replace(friction=FrictionInfo.none(closed.shape[0], state.breaks.shape[1], q.dtype))
        return EventState(n + 1, q_new, v_new, closed, latest, low, *state[6:]), info

    def _rubbing_step(
        self, problem: Problem, law: ContactLaw, motion: Motion, state: Any, r: Array
    ) -> tuple[Any, Info]:
        """Does what `step` does for a problem with friction, over a time r ()."""
        found = rubbing_step(self, problem, law, motion, state, r)
        latest = jnp.where(jnp.any(found.met), lax.stop_gradient(motion.time(state.n) + r), state.latest)
        impulse, chord = found.impulse[:, 0], (found.q - state.q) / r
        rubbed = found.did._replace(impulse=found.impulse[:, 1:])
        told = found.residual, found.events, found.status, found.joints, rubbed
        info = Info(found.q, chord, impulse, jnp.any(impulse > 0), *told)
        behind = found.closed, latest, found.low, found.rests, found.breaks, found.force, found.where, found.frame
        return EventState(state.n + 1, found.q, found.v, *behind), info

    def _flight(self, step: Step, progress: _Progress, last: Array) -> tuple[_Flight, Array]:
        """Makes the path from a state over the rest of a step, or to the border of a piece of the force; also returns status bits ().

        ``last`` (): whether no more events are located, so that the path goes to the end of the step.
        """
        _, problem, law, motion, start, length, pieces = step
        t, r = start + progress.elapsed, length - progress.elapsed
        args, (q, v) = motion.args, (progress.q, progress.v)
        sliding = partial(sliding_problem, problem, pieces, progress.where)
        of_here, part = sliding(t, q, v, progress.closed, args)
        here = View.at(of_here, t, q, v, args)
        push, pushing, stays, failure = persisting(
            law, here.contacts, here.free, here.gap_acceleration, progress.closed
        )
        a = here.free + here.contacts.jump(push)
        parabola = Path(t, r, q, v, a, jnp.zeros_like(a), args)
        border = border_ahead(pieces, progress.where, parabola, motion.h, self.newton)
        reach = border.reach(r)
        end = t + reach, q + reach * (v + (0.5 * reach) * a), v + reach * a
        of_there, part_end = sliding(*end, pushing, args)
        there = View.at(of_there, *end, args)
        push_end = impulses_to_change(
            there.contacts, -(there.contacts.velocity(there.free) + there.gap_acceleration), pushing
        )
        path = Path(t, reach, q, v, a, there.free + there.contacts.jump(push_end) - a, args)
        border, path, push_end = border.cut(path, (push, push_end), (part, part_end), r, motion.h, last, self.newton)
        return _Flight(here, there, path, push, push_end, pushing, progress.closed & stays, border), failure

    def _segment(self, step: Step, progress: _Progress, left: Array) -> _Progress:
        """Follows the path to the next event, or to the end of the step, and treats it; ``left`` events may still be located."""
        _, problem, law, motion, start, length, pieces = step
        h, args = motion.h, motion.args
        elapsed, q, low, v, closed, impulse, residual, events, met, status, joints, where = progress
        t, last = start + elapsed, left == 0
        kinks = Kinks.at(problem, t, q, args)
        everywhere = step
        if where is not None:
            problem = pieces.on(where.sides)
            step = step._replace(problem=problem)
            # an impact may jump across surfaces that depend on the velocity
            everywhere = everywhere if len(pieces.steep) else step
        flight, failure = self._flight(step, progress, last)
        here, _, path, push, push_end, _, closed, border = flight
        r = path.r

        # the first event on it: an impact, the release where a force, linear in time, becomes negative, or the crossing of a border
        allowed, taylor = here.roundoff(q, v, path.a, h), here.taylor(path.a)
        penetrating = ~closed & (lax.stop_gradient(path).gaps(problem, lax.stop_gradient(r))[0] < -allowed)
        impact, which, impact_time = self.find_impact(
            problem, path, taylor, closed, penetrating, allowed, span(h, q.dtype)
        )
        loose, release = flight.releases(2 * h)
        release_time = jnp.min(release, initial=jnp.inf)
        releases = jnp.any(loose) & ~last & ~(impact & (impact_time <= release_time))
        impact = impact & ~last & ~releases
        s, located = jnp.where(impact, impact_time, jnp.where(releases, release_time, r)), impact | releases
        crosses, leaves, s = border.comes_before(s, located, ~last, h)
        stays, located = ~(crosses | leaves), located | crosses | leaves
        impact, releases = impact & stays, releases & stays
        border = border.ended_at(problem, motion, path, s, crosses, which & impact)
        shift, v = path.along(s)
        arrived, low = add_compensated(q, shift, low)
        impulse = impulse + s * (push + (0.5 * (s / nonzero(r))) * (push_end - push))
        landed = put_on_joints(problem, t + s, arrived, low, shift, here.joints, args, STEEP)
        arrived, low, v, failure = landed.q, landed.low, landed.velocity(v), failure | landed.status
        joints = JointInfo(joints.impulse + flight.joint_impulse(s), jnp.maximum(joints.residual, landed.residual))

        border, v = border.slid_to(motion, t + s, arrived, v, closed, leaves)
        events = events + located.astype(jnp.int32)
        elapsed = jnp.where(located, elapsed + s, length)
        told = events, met, status | failure, joints, where
        progress = _Progress(elapsed, arrived, low, v, closed, impulse, residual, *told)
        candidates = jnp.where(last, penetrating, which & impact)
        progress, met = self._arrive(everywhere, t + s, progress, candidates, allowed, left, kinks, flight.opens())
        metric, moved = Metric.at(problem, q, args, t), lax.stop_gradient(arrived - q)
        status = progress.status | gradient_status(law, problem, metric, here.contacts, t, q, moved, met, args)
        status |= as_status(jnp.any(near_grazing(taylor, r, h, closed | met, allowed)), Status.DERIVATIVE_EVENTS)
        released = releases & (release <= release_time + 1e-9 * h)
        progress = progress._replace(closed=progress.closed & ~released, status=status)
        turned = jnp.any(met) | jnp.any(progress.closed != flight.closed)
        return border.passed(motion, t + s, s, last, turned, allowed, progress)[0]

    def _arrive(
        self,
        step: Step,
        t: Array,
        progress: _Progress,
        candidates: Array,
        allowed: Array,
        left: Array,
        kinks: Kinks | None,
        idle: Array,
    ) -> tuple[_Progress, Array]:
        """Treats the end of a path, at time t: puts lasting contacts back onto their surface, and applies the impact law to the ``candidates`` (m,).

        A lasting contact whose gap had a kink on the path is released or struck. ``allowed`` (m,): round-off of gaps; ``left``: number of events that
        may still be located in the step; ``kinks``: gaps that may kink, and their sides at the start of the path; ``idle`` (m,): closed contacts
        without a force that may have opened. Returns the new progress and the contacts (m,) that had an impact.
        """
        _, problem, law, motion, *_ = step
        h, args = motion.h, motion.args
        elapsed, q, low, v, closed, impulse, residual, events, met, status, joints, where = progress
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
            # after the last event, putting one contact back may push others through their surfaces: all go back together, and have an impact
            frozen = lax.stop_gradient((contacts, speed, problem.restitution_at(motion.e, speed, args)))
            pulled, past = lax.cond(last, lambda: behind(law, h, *frozen, closed), lambda: (pulled, jnp.array(False)))
            candidates = candidates | (pulled & ~closed)
            status |= as_status(past, Status.GAP_UNRESOLVED)
        slowest = lambda normal: 2 * h * normal
        found = collide(problem, law, motion, slowest, event, closed, candidates, near, pulled, met, left, h)
        residual = jnp.maximum(residual, found.error)
        impulse, met, status = impulse + found.impulse, met | found.impact, status | found.status
        joints = joints._replace(impulse=joints.impulse + found.joint_impulse)
        told = events, met, status, joints, where
        progress = _Progress(elapsed, found.q, low, found.v, found.closed, impulse, residual, *told)
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
        """Finds the first impact on the path: whether there is one, (), the contact (m,), and the time ().

        ``taylor``: the gaps' Taylor coefficients at its start; ``penetrating`` (m,): contacts with negative gaps at its end. ``allowed`` (m,) is
        the round-off of gaps, and divided by ``time`` () about that of gap velocities. The time of the impact is found with all derivatives
        stopped; two more Newton steps give it the first three derivatives of the implicit function.
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
        s = jnp.clip(jnp.min(jnp.where(candidates, first_zero(c, b, a, r), r)), 0, r)

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
