"""The position-level schemes of Paoli-Schatzman, Paoli and Adly-Thieu, in the summed form.

    W - U = ((1 - e) h V_ + h^2 F) / (1 + e)
    V     = V_ + h F + M(U)^-1 G(Z)' L,    0 <= L _|_ f(tau, Z) >= 0,    Z = W + h/(1 + e) M^-1 G' L
    U+    = U + h V

with positions U, velocities V and V_ = (U - U_)/h of this step and the one before, the force F = M^-1 g, gaps f, their
gradients G, impulses L and the admissible position Z, onto which W is projected. Joints, with e = 0: c(t+, U+) = 0, by
impulses along their gradients at U.

References:
    L. Paoli, M. Schatzman, arXiv math/9910013 (1999): one constraint, geodesic projection, centred force (1.13)-(1.17).
    L. Paoli, Time-stepping approximation of rigid-body dynamics with perfect unilateral constraints II, Arch. Ration.
    Mech. Anal. 198 (2010): several constraints, kinetic metric, (4)-(7).
    S. Adly, N. N. Thieu, Fixed Point Theory Algorithms Sci. Eng. 2022:3: moving C^{1,1} constraints, e = 0, mean force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from ...jaxtools import linalg
from ...jaxtools.argument_checks import is_traced
from ...jaxtools.array_types import B0, F0, I0, B_m, F_d
from ...jaxtools.derivative_rules import implicit_root
from ..contact.laws import ContactLaw, Open, Reaction, Target
from ..joint_projection import land_chord, shake
from ..linearisation import Metric, linearise, noise
from ..motion import At, Motion
from ..noise import Pushed
from ..problem import Problem
from ..scheme import Info, Scheme, State, Traits, mean_acceleration
from ..stability import Jump, metric_norm, state_switches
from ..status import Status, as_status

static = {"static": True}
CHOICES = {
    "force": ("explicit", "centred", "mean"),
    "start": ("taylor", "euler", "full"),
    "normal": ("implicit", "explicit"),
    "metric": ("kinetic", "geodesic"),
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PaoliSchatzman(Scheme[State]):
    """Position-level scheme with restitution e in [0, 1], one coefficient for all contacts; order 1.

    The constraint is taken at tau_n = t_n + h (1 - e)/(1 + e): t_{n+1} for e = 0, exact reflection in the frame of a
    uniformly moving wall for e > 0.

    Attributes:
        force: discretisation of the force: "explicit", F(t_n, U^n, V^{n-1}) (Paoli 2010); "centred", with the velocity
            (U^{n+1} - U^{n-1})/2h (Paoli-Schatzman 1999), implicit, for velocity-dependent forces; "mean", the mean
            over the step by quadrature (Adly-Thieu 2022).
        start: U^1 = Proj(q0 + h v0 + h z): "taylor", z = (h/2) M^-1 g; "euler", z = 0; "full", z = h F^0 (the step's
            own force, Adly-Thieu); or a function z(h, q0, v0, args) -> (d,) that tends to 0 with h.
        normal: "implicit", gradients at Z (the papers); "explicit", gradients at U^n with the same exact constraint,
            second order in persistent contact with a curved wall.
        metric: "kinetic", frozen M(U^n) (Paoli 2010), or "geodesic" (Paoli-Schatzman 1999; exactly one constraint).
        nodes: Gauss-Legendre nodes of the mean force.
        fixed_point_tolerance, fixed_point_count: largest change of velocity at which the centred iteration stops
            (relative to the speed), and its largest number of iterations.
    """

    force: str = field(default="explicit", metadata=static)
    start: str | Callable = field(default="taylor", metadata=static)
    normal: str = field(default="implicit", metadata=static)
    metric: str = field(default="kinetic", metadata=static)
    nodes: int = field(default=3, metadata=static)
    fixed_point_tolerance: float = 1e-13
    fixed_point_count: int = field(default=30, metadata=static)

    def check(self, problem: Problem, e: ArrayLike, m: int) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (name == "start" and callable(value)):
                raise ValueError(f"PaoliSchatzman({name}={value!r}): choose one of {', '.join(map(repr, allowed))}")
        super().check(problem, e, m)
        if problem.jointed and not is_traced(e) and np.any(np.asarray(e) != 0):
            raise ValueError(
                f"restitution is {np.max(np.asarray(e)):g}, but PaoliSchatzman keeps joints in inelastic impacts only: "
                "set it to 0, or use "
                "MoreauJean, EventCorrected or EventDriven"
            )
        if problem.jointed and self.metric == "geodesic":
            raise ValueError("PaoliSchatzman(metric='geodesic') takes no joints: use metric='kinetic'")
        if problem.listed and self.force == "centred":
            raise ValueError(
                "PaoliSchatzman(force='centred') takes no list of near pairs (its derivative needs a (d, d) matrix): "
                "use force='explicit' or "
                "'mean', or Bodies(lists=False) of few bodies"
            )
        if problem.listed and self.normal == "explicit":
            raise ValueError(
                "PaoliSchatzman(normal='explicit') takes no list of near pairs (its contact problem is not symmetric): "
                "use "
                "normal='implicit', or Bodies(lists=False) of few bodies"
            )
        if self.metric == "geodesic" and m != 1:
            raise ValueError(f"PaoliSchatzman(metric='geodesic') needs exactly one constraint, the problem has {m}")
        if self.metric == "geodesic" and self.normal == "explicit":
            raise ValueError("PaoliSchatzman(metric='geodesic') takes normals at Z: use normal='implicit'")

    @property
    def traits(self) -> Traits:
        lists = self.metric != "geodesic"
        # without forces every impact takes two steps, whatever e is
        delay = lambda e: (0.0, 2.0)
        damping = self.force != "centred"
        return Traits(steps=2, delay=delay, lag=0.5, restitution="one", damping=damping, lists=lists, joints=True)

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[State, Info]:
        m = problem.count(motion.t0, motion.q0, motion.args)
        # a traced restitution cannot be refused by `check`
        info = Info.none(motion.q0, motion.v0, m)
        if problem.joint_count(motion.t0, motion.q0, motion.args):
            info = info._replace(status=as_status(jnp.any(motion.e != 0), Status.INPUT_INVALID))
        elif m:
            lost = jnp.any((motion.e > 0) & self._strikes_at_once(problem, motion))
            info = info._replace(status=as_status(lost, Status.START_VELOCITY_PROJECTED))
        return State.start(motion), info

    def _strikes_at_once(self, problem: Problem, motion: Motion) -> B_m:
        """Finds the contacts (m,) that v0 closes within the first step, which has no restitution; forces alone cost an
        error of first order only."""
        at, h = lax.stop_gradient((motion.start, motion.h))
        t, q, v, args = at
        metric = Metric.at(problem, q, args)
        contacts = linearise(problem, metric, t, q, args)
        speed = contacts.gap_velocity(v)
        kick = self._start(problem, metric, at, h)
        new = problem.gaps(t + h, q + h * (v + kick), args)
        inward = speed < -noise(contacts, v, speed)
        return inward & (new < 0) & (new - contacts.gap > 2 * h * speed)

    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: State) -> tuple[State, Info]:
        """Makes one step; the first one has e = 0 and the force of the option ``start``."""
        return self._make_step(problem, law, motion, state, state.n == 0)

    def free_step(self, problem: Problem, motion: Motion, state: State) -> tuple[State, Info]:
        """Makes a step without impulses; invalid (``info.acts``) for the first step, whose other force is left out to
        make all steps faster."""
        new, info = self._make_step(problem, Open(), motion, state, None)
        return new, info._replace(acts=info.acts | (state.n == 0))

    def _make_step(
        self, problem: Problem, law: ContactLaw, motion: Motion, state: State, first: B0 | None
    ) -> tuple[State, Info]:
        """Makes a step; ``first`` (): whether it is the first one, None if it cannot be."""
        h, e, args = motion.h, motion.e, motion.args
        n, q, v = state[:3]
        t = motion.time(n)
        # the first one without joints, for forces without their reaction
        metric, t_new = Metric.at(problem, q, args), motion.time(n + 1)
        operator = metric.with_joints(problem, t_new, q, args)
        at = At(t, q, v, args)
        start = None if first is None else self._start(problem, metric, at, h)

        def choose(x: Any, y: Any) -> Array:
            return y if first is None else jnp.where(first, x, y)

        keep, part = choose(1, 1 - e), choose(1, 1 / (1 + e))
        scale = h * part
        time = t + scale * keep

        def advance(kick: F_d) -> tuple[F_d, Target, Reaction, Callable]:
            free, held = shake(problem, operator, t_new, q, h, v + kick, args)
            # with joints keep is 1, and scale is h
            increment = free if operator.joints.size else keep * v + kick
            target = self._target(time, q, scale * increment, scale)
            found = law.position(problem, operator, target, args)
            u, more = shake(problem, operator, t_new, q, h, free + found.jump, args)

            def whole() -> Array:
                place = q if self.normal == "explicit" else target.point(found.jump)
                gradients = problem.gaps.jacobian(t_new, place, args)[1]
                return held + more + operator.joints.reaction(gradients.T @ found.impulse)

            return u, target, found, whole

        def kick(force: F_d) -> F_d:
            return choose(start, h * force)

        status = jnp.zeros((), jnp.int32)
        if self.force == "centred":
            centred, status = self._centred_velocity(problem, metric, motion, state, lambda f: advance(kick(f))[0])
            force = metric.solve(problem.generalised_force(t, q, centred, args))
        else:
            force = self._force(problem, metric, at, h)
        v_new, target, found, held = advance(kick(force))
        info = Info.of(found, metric, target.point(found.jump), v_new, e)
        new, joints, bits = land_chord(problem, t_new, state.moved(h * v_new, v_new), h, operator.joints, held, args)
        z = new.q if operator.joints.size else info.z
        return new, info._replace(z=z, chord=new.v, status=info.status | status | bits, joints=joints)

    def _start(self, problem: Problem, metric: Metric, at: At, h: F0) -> F_d:
        """Returns the velocity increment (d,) of the first step, by the option ``start``."""
        if isinstance(problem.force, Pushed):
            # the whole impulse of noise: of what is left out here positions would be wrong by the root of h
            start = self._start(problem.replace(force=problem.force.force), metric, at, h)
            return start + h * metric.solve(problem.force.push)
        if callable(self.start):
            return jnp.asarray(self.start(h, *at[1:]), h.dtype)
        if self.start == "euler":
            return jnp.zeros_like(at.v)
        if self.start == "taylor":
            return 0.5 * h * metric.solve(problem.generalised_force(*at))
        return h * self._force(problem, metric, at, h)

    def _force(self, problem: Problem, metric: Metric, at: At, h: F0) -> F_d:
        if self.force == "mean":
            return mean_acceleration(problem, metric, at, h, self.nodes)
        return metric.solve(problem.generalised_force(*at))

    def _target(self, time: F0, base: F_d, increment: F_d, scale: F0) -> Target:
        return Target(time, base, increment, scale, "geodesic" if self.metric == "geodesic" else self.normal)

    def _centred_velocity(
        self, problem: Problem, metric: Metric, motion: Motion, state: State, advance: Callable
    ) -> tuple[F_d, I0]:
        """Solves for the centred velocity (V^n + V^{n-1})/2 (d,), a fixed point with contraction rate O(h);
        also returns its status.

        ``advance``: function from the acceleration F (d,) to the new velocity (d,).
        """
        t, q, v, args = motion.time(state.n), state.q, state.v, motion.args

        def update(centred: F_d) -> F_d:
            return 0.5 * (v + advance(metric.solve(problem.generalised_force(t, q, centred, args))))

        def solve(_: object, guess: F_d) -> tuple[F_d, F0]:
            def body(carry: tuple) -> tuple:
                k, x, _ = carry
                new = update(x)
                return k + 1, new, jnp.max(jnp.abs(new - x))

            def continues(carry: tuple) -> B0:
                k, x, change = carry
                return (k < self.fixed_point_count) & (change > tolerance(x))

            def tolerance(x: F_d) -> F0:
                eps = jnp.finfo(x.dtype).eps
                return jnp.maximum(self.fixed_point_tolerance, 16 * eps) * jnp.max(jnp.abs(x) + jnp.abs(v))

            _, x, change = lax.while_loop(continues, body, body((jnp.zeros((), jnp.int32), guess, None)))
            return x, (~(change <= tolerance(x))).astype(x.dtype)

        def tangent_solve(linear: Callable, y: F_d) -> F_d:
            return linalg.solve(jax.jacfwd(linear)(jnp.zeros_like(y)), y)

        root, failed = implicit_root(lambda x: x - update(x), v, solve, tangent_solve)
        failed = lax.stop_gradient(failed) > 0

        def jumps() -> B0:
            # where the force jumps there may be no fixed point: iterates then differ by up to the jump
            here, there = lax.stop_gradient((root, update(root)))
            jump = Jump.along(
                problem, *lax.stop_gradient((metric, motion, t)), lambda v: (lax.stop_gradient(q), v), here, there
            )
            change = metric_norm(there - here, metric.times(there - here))
            return jump.resolved & (change <= motion.h * metric_norm(jump.size, metric.solve(jump.size)))

        if state_switches(problem, t, q, v, args) is None:
            return root, as_status(failed, Status.STEP_UNSTABLE)
        # right to first order, but the derivative is that of neither side
        jumped = lax.cond(failed, jumps, lambda: jnp.zeros((), bool))
        status = as_status(failed & ~jumped, Status.STEP_UNSTABLE)
        return root, status | as_status(jumped, Status.DERIVATIVE_JUMP)
