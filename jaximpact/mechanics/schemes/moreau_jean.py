"""The Moreau-Jean scheme: theta-method for the smooth part, Newton's law at velocity level for
contacts that are predicted to close.

    M (v+ - v) = h [theta g(t+, q+, v+) + (1 - theta) g(t, q, v)] + G' L + J' l,     q+ = q + h (theta v+ + (1 - theta) v)
    f(t, q) + gamma h (G v + f_t) <= 0:   0 <= L _|_ G (v+ + e v) + (1 + e) f_t >= 0;   otherwise L = 0

with gaps f, their gradients G, impulses L of the contacts and gamma the option ``activation``. The impulses l of the
joints c(t, q) = 0, with gradients J, are such that the mean velocity keeps the joints, J (s v+ + (1 - s) v) + c_t = 0,
s = max(theta, 1/2): a smaller s would be unstable, and s = 1 damps. Then q+ is projected onto c(t+, q+) = 0. J is the
mean over the chord from q to q+ of the previous Newton iteration; in the first one for theta = 1/2 it is J at q + h v /
2, and for theta = 0 always J at q. Without the mean over the chord, energy would drift by O(h^3) over a fixed time.

References:
    J. J. Moreau, Unilateral contact and dry friction in finite freedom dynamics, CISM 302 (1988).
    M. Jean, The non-smooth contact dynamics method, Comput. Methods Appl. Mech. Engrg. 177 (1999).
    V. Acary, B. Brogliato, Numerical Methods for Nonsmooth Dynamical Systems, Springer (2008).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ...jaxtools.array_types import B0, F0, I0, B_m, F_d, F_m, I_s
from ...jaxtools.derivative_rules import graft
from ...jaxtools.jaxpr_tools import depends_on
from ...switches.switches import gap_switches
from ..contact.laws import ContactLaw, Reaction
from ..contacts import Contacts
from ..friction import impulses_of
from ..impact_law import ImpactLaw
from ..joint_projection import project_state
from ..joints import joint_turning
from ..linearisation import Metric, closure, linearise
from ..motion import At, Motion
from ..problem import Problem
from ..scheme import FACING, Info, Scheme, State, Traits, gradient_status, restitution_status
from ..some_contacts import look_at_those_that_matter
from ..stability import Jump, metric_norm, state_switches
from ..status import Status, as_status
from .rubbing import impulse_status, modes_at_start, momentum_of, no_friction, rubbing, scale_status, status_of_rest

ROOM = 0.05  # fraction of the largest clearance between two facing contacts by which a body may be past both
BESIDE = (
    48,
    192,
)  # contacts looked at for such a room, if no more are near: of 50 disks with 1325 gaps all took four fifths of a step
NONE = 1e-6  # of the way that forces move a gap in a step: a gap up to which a contact is closed
CURVED = 0.1  # fraction of the radius of curvature by which a body may sink into a curved surface


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MoreauJean(Scheme[State]):
    """Velocity-level event-capturing scheme with one restitution coefficient for each contact; order 1.

    Attributes:
        theta: implicitness of the smooth part in [0, 1]; 1/2 is the midpoint rule, 0 explicit.
        activation: gamma, the fraction of a step over which the gap is predicted to decide whether a contact is active.
        newton: Newton iterations for the implicit smooth part; one is exact where the force is linear, and none is
            needed, or made, where it depends on neither q nor v and there are no joints. Of listed bodies
            (`jaximpact.bodies`) they are fixed-point iterations.
    """

    theta: float = field(default=0.5, metadata={"static": True})
    activation: float = 0.5
    newton: int = field(default=2, metadata={"static": True})

    def check(self, problem: Problem, e: ArrayLike, m: int) -> None:
        if not 0 <= self.theta <= 1:
            raise ValueError(f"MoreauJean(theta={self.theta!r}): theta must lie in [0, 1]")
        super().check(problem, e, m)

    @property
    def traits(self) -> Traits:
        # measured: early for inelastic contacts, in the middle for elastic ones; stable from theta = 1/2 on
        newton = self.theta > 0 and self.newton > 1
        tangent = Converged(self.theta, self.activation, self.newton) if newton else None
        phase = lambda e: jnp.mean(e / (1 + e))
        return Traits(
            phase=phase,
            delay=delay,
            explicit=1 - 2 * self.theta,
            lists=True,
            joints=True,
            friction=5,
            approach=True,
            impact_laws=True,
            tangent=tangent,
        )

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[State, Info]:
        t0, q0, v0, args = motion.start
        m = problem.count(t0, q0, args)
        steady = needs_no_memory(problem, t0, q0, args)
        still = Info.none(q0, v0, m, no_friction(problem, motion))
        if steady and m < 2:
            return State.start(motion), still
        metric = Metric.at(problem, q0, args, t0)
        contacts = linearise(problem, metric, t0, q0, args)
        joined = jnp.any(contacts.joined(q0)[0], axis=1) if contacts.dense and m > 1 else None
        if steady:
            return State.start(motion, joined), still
        closed = closure(contacts, contacts.gap_velocity(v0), q0, v0).closed
        state = State.start(motion, closed, None if joined is None else jnp.any(joined))
        return state._replace(friction=modes_at_start(problem, metric, motion, closed)), still

    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: State) -> tuple[State, Info]:
        h, args = motion.h, motion.args
        n, q, v = state[:3]
        t, t_new = motion.time(n), motion.time(n + 1)
        theta = self.theta
        metric = Metric.at(problem, q + (theta * h) * v, args, t + theta * h)
        contacts = linearise(problem, metric, t, q, args)
        # at the new position: a contact that sticks to a moving body then moves with it, to second order
        contacts = rubbing(problem, metric, contacts, At(t_new, q + h * v, v, args), state)
        before = contacts.gap_velocity(v)
        e = problem.restitution_at(motion.e, before, args)
        motion = motion._replace(e=e)
        active = contacts.gap + self.activation * h * before <= 0
        if state.lasting is not None:
            active |= state.lasting
        old_force = problem.generalised_force(t, q, v, args)

        def momentum_defect(w: F_d) -> F_d:
            force = problem.generalised_force(t_new, q + h * (theta * w + (1 - theta) * v), w, args)
            return metric.times(w - v) - h * (theta * force + (1 - theta) * old_force)

        known_impulse = self.known_impulse(problem, motion, state, old_force)
        w, iterations = self.iteration_start(problem, v) if known_impulse is None else (v, 1)
        free = last = earlier = w
        spent: Any = 0
        for _ in range(iterations):
            # J at q + h v / 2 is near enough to the mean over a chord for a first iteration; J at q + theta h v with
            # another theta is not
            if theta > 0 and (w is not v or theta != 0.5):
                metric = self.over_chord(problem, metric, At(t, q, theta * w + (1 - theta) * v, args), h)
            if known_impulse is not None:
                operator, free = metric, v + metric.solve(known_impulse)
            else:
                operator, w = self.linearise_defect(problem, metric, momentum_defect, w)
                free = w - operator.solve(momentum_defect(w))
                contacts = contacts.under(operator)
            free = operator.keep(free, v, max(theta, 0.5))
            closing = contacts.gap_velocity(free)
            # the round-off of a gap must not open a contact for a step: less than forces move it in the step is none
            active |= contacts.gap + self.activation * h * before <= NONE * h * jnp.abs(closing - before)
            found = self.impact(problem.impact_law, law, contacts, (v, before), (free, closing), e, active)
            earlier, last, w = last, w, free + found.jump
            if not contacts.dense:
                # with a constant force the next iteration has the same contact problem
                law = law.beginning(lax.stop_gradient(impulses_of(found)))
                spent += found.iterations
        if not contacts.dense:
            found = found._replace(iterations=spent)
        chord = theta * w + (1 - theta) * v
        new = state.moved(h * chord, w, self.lasting(problem, law, contacts, t, state, found.acts, args))
        new = new.remembering(found.friction)
        info = Info.of(found, metric, new.q, chord, e)
        if contacts.slip.k and law.solves:
            status = impulse_status(contacts, found, before, v, free, w, e)
            status |= status_of_rest(problem, t_new, new.q, w, free, found, args)
            status |= scale_status(problem, metric, contacts, t, state, found, args)
            info = info._replace(status=info.status | status)
        status = gradient_status(law, problem, metric, contacts, At(t, q, v, args), h * free, found.acts)
        if callable(problem.restitution):
            status |= restitution_status(e, active & (before < 0))
        if law.solves and contacts.dense and found.acts.shape[0]:
            deep = self.past_facing(contacts, motion, state, before, found.acts, free - v)
            # penetration at a kink of a gap is no drift along a curved surface
            if state.lasting is not None and gap_switches(problem, t, q, args) is None:
                bend = partial(self.bend, problem, metric, contacts, At(t, q, v, args))
                # joints may have turned the velocity
                speeds = (v, w) if metric.joints.size else (v,)
                deep |= self.sunk(metric, contacts, motion, state.lasting & found.acts, speeds, free - v, bend)
            status |= as_status(deep, Status.GAP_UNRESOLVED)
        if theta > 0 and iterations > 1:

            def remaining() -> F_d:
                return operator.solve(momentum_defect(w) - momentum_of(contacts, found))

            iterates = earlier, last, w
            status |= self.convergence_status(problem, metric, motion, state, iterates, free, remaining)
        held = lambda: -metric.joints.reaction(momentum_defect(w) - momentum_of(contacts, found))
        new, joints, bits = project_state(
            problem, t_new, new, h * chord, metric.joints, held, jnp.any(found.acts), args
        )
        return new, info._replace(z=new.q, joints=joints, status=info.status | status | bits)

    @staticmethod
    def impact(
        impact_law: ImpactLaw, law: ContactLaw, contacts: Contacts, start: tuple, end: tuple, e: Array, active: B_m
    ) -> Reaction:
        """Returns the reaction of the ``active`` contacts (m,) in a step.

        ``start``, ``end``: the velocity (d,) and the gap velocities (m,) before the step,
        and those after it without impulses.
        """
        (v, before), (free, closing) = start, end
        back = impact_law.velocity(e, before)
        if not impact_law.two_stages:
            return law.velocity(contacts.sliding(free), closing + back, active)
        # of percussions alone: the impulses of forces are no compression
        first = law.velocity(contacts.sliding(v), before, active)
        later = free + first.jump
        push = impact_law.impulse(e, first.impulse)
        second = law.velocity(contacts.sliding(later), contacts.gap_velocity(later) + back, active, push)
        return first.then(second)

    def known_impulse(self, problem: Problem, motion: Motion, state: State, old_force: F_d) -> F_d | None:
        """Returns the impulse (d,) of forces in a step if it does not depend on the new state, else None; ``old_force``
        (d,) is that at the start.

        The momentum equation then needs neither iterations nor slopes of the force: of a ball with friction they were
        three quarters of a step.
        """
        n, q, v = state[:3]
        if self.theta == 0:
            return motion.h * old_force
        if problem.jointed or not has_known_force(problem, motion.time(n), q, v, motion.args):
            return None
        later = problem.generalised_force(motion.time(n + 1), q, v, motion.args)
        # a sum of two products: of v + h g, one product may be fused or not, depending on what is a constant of the
        # loop
        return (motion.h * self.theta) * later + (motion.h * (1 - self.theta)) * old_force

    def iteration_start(self, problem: Problem, v: F_d) -> tuple[F_d, int]:
        """Returns the velocity (d,) from which Newton's method starts, and the number of its iterations."""
        return v, self.newton

    @staticmethod
    def over_chord(problem: Problem, metric: Metric, at: At, h: F0) -> Metric:
        """Returns the metric with the mean of the joints' gradients over the chord from a place with its velocity, its
        end moved onto the joints."""
        return metric.over_chord(problem, metric.to_joints(problem, at, h), h)

    def convergence_status(
        self,
        problem: Problem,
        metric: Metric,
        motion: Motion,
        state: State,
        iterates: tuple,
        free: F_d,
        remaining: Callable,
    ) -> I0:
        """Returns 0 if Newton's iteration has converged, else the bit that says why not; ``iterates``:
        its last three velocities (d,).

        ``free`` (d,) is the velocity of the last iteration before impulses are added; ``remaining``: function that
        returns the change of velocity (d,) by which the momentum equation would be iterated further.
        """
        motion, state, (earlier, last, w), free = lax.stop_gradient((motion, state, iterates, free))
        h, theta, v = motion.h, self.theta, state.v
        # converged as Newton's method is, quadratically: the last iteration is far smaller than the step's change
        change, whole, eps = (
            jnp.max(jnp.abs(w - last)),
            jnp.max(jnp.abs(w - v) + jnp.abs(free - v)),
            jnp.finfo(v.dtype).eps,
        )
        # of a body at rest forces cancel up to the round-off of positions: a stiff spring answers to it by up to q/h,
        # whatever its stiffness
        rounding = 1e3 * eps * jnp.max(jnp.abs(w)) + 16 * eps * jnp.max(jnp.abs(state.q)) / h
        failed = change > 0.1 * whole + rounding
        # past a kink the last change is large though the equation holds
        left = lambda: jnp.max(jnp.abs(lax.stop_gradient(remaining()))) > 0.01 * whole + rounding
        failed = lax.cond(failed, left, lambda: jnp.zeros((), bool))
        t, point = motion.time(state.n + 1), lambda w: (state.q + h * (theta * w + (1 - theta) * v), w)

        def jumps() -> B0:
            # where the force jumps there may be no solution: iterates on either side then differ by up to the jump
            jump = Jump.along(problem, metric, motion, t, point, earlier, last)
            norm = lambda x: metric_norm(x, metric.times(x))
            # of several coordinates each may jump at a place of its own
            kick = h * theta * len(v) ** 0.5 * metric_norm(jump.size, metric.solve(jump.size))
            return jump.resolved & (norm(w - last) <= 2 * kick + 0.1 * norm(jnp.abs(w - v) + jnp.abs(free - v)))

        if state_switches(problem, t, *point(w), motion.args) is None:
            return as_status(failed, Status.STEP_UNSTABLE)
        # right to first order, but the derivative is that of neither side
        jumped = lax.cond(failed, jumps, lambda: jnp.zeros((), bool))
        failed = as_status(failed & ~jumped, Status.STEP_UNSTABLE)
        return failed | as_status(jumped, Status.DERIVATIVE_JUMP)

    @staticmethod
    def lasting(
        problem: Problem, law: ContactLaw, contacts: Contacts, t: F0, state: State, acts: B_m, args: object
    ) -> B_m | None:
        """Returns the contacts (m,) that the next step treats as active whatever their gaps; None where gaps decide.

        They are, first, the contacts that acted in this step, ``acts`` (m,): a gradient that turns, or rounding, may
        have opened their gaps, and with friction a contact left out would slip for a step as if there were no friction.
        Second, both sides of a bilateral constraint that is stated as two gaps; where `needs_no_memory` holds, these
        sides alone, as found at the start.
        """
        before = state.lasting
        if before is None or needs_no_memory(problem, t, state.q, args):
            return before
        if not law.solves:
            return jnp.zeros_like(before)
        if state.joints is None:
            return acts

        def with_sides() -> B_m:
            joined, drifted = contacts.joined(state.q)
            both = before[:, None] & before[None, :]
            return acts | jnp.any((joined & (acts | before)[None, :]) | (drifted & both), axis=1)

        return lax.cond(state.joints, with_sides, lambda: acts)

    @staticmethod
    def past_facing(contacts: Contacts, motion: Motion, state: State, rate: F_m, acts: B_m, kick: F_d) -> B0:
        """Tests whether a body is past an opposing contact at the start of a step, so that the motion is wrong, ().

        ``rate`` (m,): gap velocities there; ``acts`` (m,): contacts with an impulse; ``kick`` (d,): change of velocity
        by forces in the step, which gives the round-off of velocities of a body at rest.
        """
        if len(rate) < 2:
            return jnp.zeros((), bool)
        h, eps = motion.h, jnp.finfo(rate.dtype).eps
        norm, e = contacts.norms(), jnp.broadcast_to(motion.e, rate.shape)
        depth, speed = -contacts.gap / norm, -rate / norm
        strikes = acts & (e * speed > 0)

        def past(rows: I_s | None) -> B0:
            # motion into a wedge: since the start a body may have come from where the clearance was its path times the
            # sine of the angle
            some = contacts.take(rows)
            hits, own, part = (x if rows is None else x[rows] for x in (strikes, speed, e))
            cosine = some.angles()
            sine = jnp.sqrt(jnp.maximum((1 - cosine) * (1 + cosine), 0))
            past, farthest = -some.rooms(), (motion.time(state.n) - motion.t0) * own[:, None] * sine
            facing = hits[:, None] & (cosine < FACING) & ~some.joined(state.q)[1]
            at_rest = 1e2 * eps * some.velocity_terms(jnp.abs(kick)) / some.norms()
            explained = (past <= (h * part * own)[:, None]) & (past > 0) & (own > at_rest)[:, None]
            return jnp.any(facing & explained & (past > ROOM * farthest))

        def look() -> B0:
            # only contacts nearer to their surfaces than one that strikes is past its own
            deepest = jnp.max(jnp.where(strikes, depth, -jnp.inf))
            return look_at_those_that_matter(strikes | (depth > -deepest), contacts.gap, BESIDE, past)

        return lax.cond(jnp.any(strikes) & jnp.any(depth > 0), look, lambda: jnp.zeros((), bool))

    @staticmethod
    def sunk(
        metric: Metric,
        contacts: Contacts,
        motion: Motion,
        presses: B_m,
        speeds: tuple[F_d, ...],
        kick: F_d,
        bend: Callable[[], Array],
    ) -> B0:
        """Tests whether a body is deep in a curved surface along which it moves, so that the motion is wrong, ().

        ``presses`` (m,): lasting contacts with an impulse; ``speeds``: velocities (d,) in the step, of which the
        fastest counts; ``kick`` as of `past_facing`; ``bend``: function that returns `bend`.
        """
        energy = lambda v: v @ metric.times(v)
        norm, eps, square = contacts.norms(), jnp.finfo(kick.dtype).eps, reduce(jnp.maximum, map(energy, speeds))
        depth = -contacts.gap / norm
        sunk = presses & (motion.e <= 0) & (motion.h * depth > 0) & (motion.h**2 * square > eps * depth**2)
        # forces and impulses that cancel leave a velocity of round-off
        sunk &= square > (1e2 * eps) ** 2 * energy(kick)
        # the radius of the surface is v^2 over its bend, for any v
        sinks = lambda: jnp.any(sunk & (depth * jnp.abs(bend()) > CURVED * square * norm))
        return lax.cond(jnp.any(sunk), sinks, lambda: jnp.zeros((), bool))

    @staticmethod
    def bend(problem: Problem, metric: Metric, contacts: Contacts, at: At) -> F_m:
        """Returns the accelerations (m,) with which gaps open as their gradients, and the joints,
        turn along the motion with constant velocity ``at`` a place."""
        t, q, v, args = at

        def rates(t: F0, q: F_d) -> F_m:
            return jax.jvp(lambda q: problem.gaps(t, q, args), (q,), (v,))[1]

        turning = jax.jvp(rates, (t, q), (jnp.ones_like(t), v))[1]
        if not metric.joints.size:
            return turning
        return turning - contacts.velocity(metric.restore(joint_turning(problem, *at)))

    def linearise_defect(self, problem: Problem, metric: Metric, defect: Callable, w: F_d) -> tuple[Metric, F_d]:
        """Returns the `Metric` that solves with the Jacobian of ``defect`` at w, and w (d,),
        from which the Newton iteration goes on.

        ``defect``: function from a velocity (d,) to the residual (d,) of the momentum equation. For listed bodies the
        metric is the kinetic one.
        """
        # for listed bodies only the mass matrix: exact where the force is constant
        if problem.gaps.local:
            return metric, w
        return Metric.from_iteration_matrix(jax.jacfwd(defect)(w), metric.joints), w


def has_known_force(problem: Problem, t: F0, q: F_d, v: F_d, args: object) -> bool:
    """Tests whether the generalised force is known ahead of the motion: whether its jaxpr uses neither q nor v."""
    return not depends_on(problem.generalised_force, (t, q, v, args), (1, 2))


def needs_no_memory(problem: Problem, t: F0, q: F_d, args: object) -> bool:
    """Tests whether gaps are enough to tell which contacts are active: no gradient depends on t or q, and there are
    neither joints nor friction."""
    return problem.gaps.is_steady(t, q, args) and not (problem.jointed or problem.rubs)


def delay(e: ArrayLike) -> tuple[F0, F0]:
    """Returns by how many steps the scheme may be (ahead, behind) after an impact, see `Traits.delay`.

    In the step of an impact the body goes too far by up to (1 + e) h times its velocity before the impact, on average
    by half of that. It comes back at e times that velocity, and is behind the exact motion by the time that this takes.
    """
    least = jnp.maximum(jnp.min(e), 0.1)
    return 0.2 * (1 - least) / least, 0.2 + 0.5 * (1 + least) / least


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Converged(MoreauJean):
    """`MoreauJean` step differentiated through the equations that Newton's method solves,
    rather than through its iterations.

    Only the last iteration is differentiated; the velocity from which it starts and the force's part of its matrix are
    constants. This avoids second derivatives of the force. The derivative that is left out has the size of h times the
    change of velocity in the last iteration, a product that is O(h^3).

    With joints the last iteration is the only one: it starts from ``found`` (d,), the new velocity, which the scheme
    has computed before and which `beside` sets. That halves the compiled program.
    """

    found: F_d | None = None

    def beside(self, velocity: F_d) -> Converged:
        return replace(self, found=velocity)

    def iteration_start(self, problem: Problem, v: F_d) -> tuple[F_d, int]:
        if self.found is None or not problem.jointed:
            return super().iteration_start(problem, v)
        # the derivative of the chord's end is that with the old velocity, up to O(h), and keeps the joints
        return graft(lax.stop_gradient(self.found), v), 1

    @staticmethod
    def over_chord(problem: Problem, metric: Metric, at: At, h: F0) -> Metric:
        return metric.over_chord(problem, lax.stop_gradient(metric).to_joints(problem, at, h), h)

    def linearise_defect(self, problem: Problem, metric: Metric, defect: Callable, w: F_d) -> tuple[Metric, F_d]:
        if problem.gaps.local:
            return metric, w
        w = lax.stop_gradient(w)
        matrix = lax.stop_gradient(jax.jacfwd(defect)(w))
        mass = matrix if metric.matrix is None else jax.vmap(metric.times)(jnp.eye(w.size, dtype=w.dtype)).T
        return Metric.from_iteration_matrix(graft(matrix, mass), metric.joints), w
