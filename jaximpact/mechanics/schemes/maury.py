"""Velocity-level scheme of Maury for inelastic impacts, with time-dependent constraints.

    u+ = Proj_M( {u : f(t+, q) + h G(t+, q) u >= 0},  u + h M^-1 g^n ),      q+ = q + h u+

with the velocity u, gaps f, their gradients G, the force g^n of the step and the projection Proj_M in the kinetic metric.
Joints hold at the end of every step, c(t+, q+) = 0, by impulses along their gradients at its start.

References:
    B. Maury, A time-stepping scheme for inelastic collisions, Numer. Math. 102 (2006).
    F. Bernicot, A. Lefebvre-Lepot, Existence results for nonsmooth second-order differential inclusions, convergence
    result for a numerical scheme and application to the modelling of inelastic collisions, Confluentes Math. 2 (2010),
    (1.11)-(1.13).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ...switches.switches import Kinks
from ..contact.laws import ContactLaw
from ..joint_projection import land_chord, shake
from ..linearisation import Contacts, Metric, acceleration, linearise
from ..motion import Motion
from ..problem import Problem
from ..scheme import Info, Scheme, State, Traits, gradient_status, mean_acceleration
from ..status import Status, as_status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Maury(Scheme):
    """Velocity-level scheme for e = 0; every position is admissible where the constraints are convex in q.

    Attributes:
        half_kick: start from v0 - (h/2) M^-1 g and take the force at t_n: velocities are then those of the middle of the
            steps (leapfrog), and persistent contact is second order. The papers start from v0.
        nodes: Gauss-Legendre nodes of the mean force over a step (without ``half_kick``).
    """

    half_kick: bool = field(default=False, metadata={"static": True})
    nodes: int = field(default=3, metadata={"static": True})

    @property
    def traits(self) -> Traits:
        # measured: inelastic impacts are best differentiated at the start of their step
        lag = 0.5 if self.half_kick else 0.0
        return Traits(steps=2, phase=lambda e: 0.0, lag=lag, restitution="none", lists=True, joints=True)

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[State, Info]:
        q0, v0, t0, _, h, _, e, args = motion[:8]
        if self.half_kick:
            back = 0.5 * h * acceleration(problem, Metric.at(problem, q0, args, t0), t0, q0, v0, args)
            motion = motion._replace(v0=v0 - back)
        # a traced restitution cannot be refused by `check`
        status = as_status(jnp.any(e != 0), Status.INPUT_OUT_OF_RANGE)
        info = Info.none(q0, motion.v0, problem.count(t0, q0, args))
        return State.start(motion), info._replace(status=status)

    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: State) -> tuple[State, Info]:
        h, args = motion.h, motion.args
        n, q, u = state[:3]
        t, t_new = motion.time(n), motion.time(n + 1)
        metric, plain = Metric.at(problem, q, args), problem if problem.joints is None else problem.replace(joints=None)
        if self.half_kick:
            free = u + h * acceleration(plain, metric, t, q, u, args)
        else:
            free = u + h * mean_acceleration(problem, metric, t, h, q, u, args, self.nodes)
        held: Any = 0
        if problem.joints is not None:
            metric = Metric.at(problem, q, args, t_new)
            free, held = shake(problem, metric, t_new, q, h, free, args)
        here = linearise(problem, metric, t_new, q, args)
        contacts = ahead_of_kinks(problem, metric, t_new, q, h * free, here, args)
        found = law.velocity(contacts, contacts.gap / h + contacts.velocity(free))
        u = free + found.jump
        joints, bits = None, None
        if metric.joints is not None:
            u, more = shake(problem, metric, t_new, q, h, u, args)
            held = held + more + metric.joints.reaction(contacts.jacobian.T @ found.impulse)
            new, joints, bits = land_chord(problem, t_new, state.moved(h * u, u), h, metric.joints, held, args)
            u = new.v
        else:
            new = state.moved(h * u, u)
        info = Info.of(found, metric, new.q, u, jnp.zeros_like(h))._replace(joints=joints)
        status = gradient_status(law, problem, metric, here, t_new, q, h * free, found.acts, args)
        status = status if bits is None else status | bits
        return new, info._replace(status=info.status | status)


def ahead_of_kinks(
    problem: Problem, metric: Metric, t: Array, q: Array, shift: Array, contacts: Contacts, args: Any
) -> Contacts:
    """Returns the ``contacts`` at (t, q), but gaps with a concave kink ahead are linearised on the side beyond it.

    Ahead means within the displacement ``shift`` (d,). A gap min(f1, f2) is then linearised as the one of the two that closes; with the other the
    body would penetrate by a fraction of h times its speed, and be thrown out at that speed in the next step.
    """
    kinks = Kinks.at(problem, t, q + shift, args)
    if kinks is None:
        return contacts
    gaps = lambda t, q: kinks.gaps.frozen(kinks.begins, t, q, args)
    rows, gap = jax.jacfwd(lambda x: (gaps(t, x),) * 2, has_aux=True)(q)
    concave = gap > contacts.gap + 1e3 * jnp.finfo(q.dtype).eps * contacts.velocity_terms(q)
    drift = contacts.drift
    if drift is not None:
        rate = jax.jvp(lambda s: gaps(s, q), (t,), (jnp.ones_like(t),))[1]
        drift = jnp.where(concave, rate, drift)
    rows = jnp.where(concave[:, None], rows, contacts.jacobian)
    return Contacts(jnp.where(concave, gap, contacts.gap), rows, metric.solve(rows.T), drift)
