"""Velocity-level scheme of Maury for inelastic impacts, with time-dependent constraints.

    u+ = Proj_M( {u : f(t+, q) + h G(t+, q) u >= 0},  u + h M^-1 g^n ),      q+ = q + h u+

with the velocity u, gaps f, their gradients G, the force g^n of the step and the projection Proj_M in the kinetic
metric. Joints hold at the end of every step, c(t+, q+) = 0, by impulses along their gradients at its start.

With Coulomb friction the impulses obey its law in that problem, and where a contact begins to act u+ moves the position
only: the velocity is that of the problem without this contact's gap, 0 <= L _|_ G u+ + f_t >= 0, with the whole
percussion in it. Spread over two steps, with Coulomb's law in each, a percussion would not obey the law: of a rod that
falls on its end the slip behind depended on where in a step it falls.

References:
    B. Maury, A time-stepping scheme for inelastic collisions, Numer. Math. 102 (2006).
    F. Bernicot, A. Lefebvre-Lepot, Existence results for nonsmooth second-order differential inclusions, convergence
    result for a numerical scheme and application to the modelling of inelastic collisions, Confluentes Math. 2 (2010),
    (1.11)-(1.13).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.array_types import F0, F_d, F_m
from ...switches.switches import Kinks
from ..contact.laws import ContactLaw, Reaction
from ..contacts import Contacts
from ..friction import impulses_of
from ..joint_projection import land_chord, shake
from ..linearisation import Metric, acceleration, closure, linearise
from ..motion import At, Motion
from ..problem import Problem
from ..scheme import Info, Scheme, State, Traits, gradient_status, mean_acceleration
from ..status import Status, as_status
from .rubbing import impulse_status, modes_at_start, momentum_of, no_friction, rubbing, scale_status, status_of_rest


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Maury(Scheme[State]):
    """Velocity-level scheme for e = 0, also with friction; every position is admissible where
    the constraints are convex in q.

    Attributes:
        half_kick: start from v0 - (h/2) M^-1 g and take the force at t_n: velocities are then those of the middle of
            the steps (leapfrog), and persistent contact is second order. The papers start from v0.
        nodes: Gauss-Legendre nodes of the mean force over a step (without ``half_kick``).
    """

    half_kick: bool = field(default=False, metadata={"static": True})
    nodes: int = field(default=3, metadata={"static": True})

    @property
    def traits(self) -> Traits:
        # measured: inelastic impacts are best differentiated at the start of their step
        lag = 0.5 if self.half_kick else 0.0
        return Traits(steps=2, phase=lambda e: 0.0, lag=lag, restitution="none", lists=True, joints=True, friction=5)

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[State, Info]:
        q0, v0, t0, _, h, _, e, args = motion[:8]
        if self.half_kick:
            back = 0.5 * h * acceleration(problem, Metric.at(problem, q0, args, t0), t0, q0, v0, args)
            motion = motion._replace(v0=v0 - back)
        # a traced restitution cannot be refused by `check`
        status = as_status(jnp.any(e != 0), Status.INPUT_INVALID)
        state, m = State.start(motion), problem.count(t0, q0, args)
        if problem.rubs:
            metric = Metric.at(problem, q0, args, t0)
            contacts = linearise(problem, metric, t0, q0, args)
            closed = closure(contacts, contacts.gap_velocity(v0), q0, v0).closed
            state = state._replace(lasting=closed, friction=modes_at_start(problem, metric, motion, closed))
        return state, Info.none(q0, motion.v0, m, no_friction(problem, motion))._replace(status=status)

    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: State) -> tuple[State, Info]:
        h, args = motion.h, motion.args
        n, q, u = state[:3]
        t, t_new = motion.time(n), motion.time(n + 1)
        metric = Metric.at(problem, q, args)
        if self.half_kick:
            free = u + h * metric.solve(problem.generalised_force(t, q, u, args))
        else:
            free = u + h * mean_acceleration(problem, metric, At(t, q, u, args), h, self.nodes)
        metric = metric.with_joints(problem, t_new, q, args)
        free, held = shake(problem, metric, t_new, q, h, free, args)
        here = linearise(problem, metric, t_new, q, args)
        contacts = ahead_of_kinks(problem, metric, t_new, q, h * free, here, args)
        contacts = rubbing(problem, metric, contacts, At(t_new, q + h * u, u, args), state)
        velocities = contacts.gap / h + contacts.velocity(free)
        chord = found = law.velocity(contacts.sliding(free), velocities)
        if contacts.slip.k:
            found = self.whole_impacts(law, contacts, free, state, chord, velocities)
        u, more = shake(problem, metric, t_new, q, h, free + chord.jump, args)
        whole = lambda: held + more + metric.joints.reaction(momentum_of(contacts, found))
        new, joints, status = land_chord(problem, t_new, state.moved(h * u, u), h, metric.joints, whole, args)
        u = new.v
        info = Info.of(found, metric, new.q, u, jnp.zeros_like(h))._replace(joints=joints)
        status |= gradient_status(law, problem, metric, here, At(t_new, q, u, args), h * free, found.acts)
        if contacts.slip.k:
            new = new.remembering(found.friction)._replace(v=u + (found.jump - chord.jump), lasting=chord.acts)
            if law.solves:
                rates, none = contacts.gap_velocity(state.v), jnp.zeros_like(h)
                status |= impulse_status(contacts, found, rates, state.v, free, new.v, none)
                status |= status_of_rest(problem, t_new, new.q, new.v, free, found, args)
                status |= scale_status(problem, metric, here, t_new, state, found, args)
        return new, info._replace(status=info.status | status)

    @staticmethod
    def whole_impacts(
        law: ContactLaw, contacts: Contacts, free: F_d, state: State, chord: Reaction, velocities: F_m
    ) -> Reaction:
        """Returns the reaction, with friction, in which contacts that begin an impact in this step (``chord`` acts,
        ``state`` did not) stop whole: their gap velocity becomes zero, where ``chord`` closes only what is left of the
        gap.

        ``velocities`` (m,): gap velocities without impulses at the velocity ``free`` (d,), gaps over h included.
        """
        begins = chord.acts & ~cast(Array, state.lasting)
        offset = jnp.where(begins, contacts.gap_velocity(free), velocities)
        again = law if contacts.dense else law.beginning(lax.stop_gradient(impulses_of(chord)))

        def whole() -> Reaction:
            found = again.velocity(contacts.sliding(free), offset, chord.acts)
            return found._replace(
                residual=jnp.maximum(found.residual, chord.residual),
                iterations=found.iterations + chord.iterations,
                status=found.status | chord.status,
            )

        return lax.cond(jnp.any(begins), whole, lambda: chord)


def ahead_of_kinks(
    problem: Problem, metric: Metric, t: F0, q: F_d, shift: F_d, contacts: Contacts, args: object
) -> Contacts:
    """Returns the ``contacts`` at (t, q), but gaps with a concave kink ahead are linearised on the side beyond it.

    Ahead means within the displacement ``shift`` (d,). A gap min(f1, f2) is then linearised as the one of the two that
    closes; with the other the body would penetrate by a fraction of h times its speed,
    and be thrown out at that speed in the next step. Of two sides that meet at an angle each is the lesser on its own;
    where a slope ends smoothly, one is the lesser before and behind.
    """
    end = q + shift
    kinks = Kinks.at(problem, t, end, args)
    if kinks is None:
        return contacts
    gaps = lambda t, q: kinks.gaps.frozen(kinks.begins, t, q, args)
    rows, gap = jax.jacfwd(lambda x: (gaps(t, x),) * 2, has_aux=True)(q)
    kept = kinks.gaps.frozen(kinks.gaps.sides(*lax.stop_gradient((t, q, args))), t, end, args)
    rounding = 1e3 * jnp.finfo(q.dtype).eps * contacts.velocity_terms(q)
    concave = (gap > contacts.gap + rounding) & (gaps(t, end) < kept)
    rate = jax.jvp(lambda s: gaps(s, q), (t,), (jnp.ones_like(t),))[1]
    drift = jnp.where(concave, rate, contacts.drift)
    rows = jnp.where(concave[:, None], rows, contacts.jacobian)
    return Contacts.of(jnp.where(concave, gap, contacts.gap), rows, metric.solve(rows.T), drift)
