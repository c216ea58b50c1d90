"""The kinetic metric, and the linearisation of the constraints of a problem.

`Metric` applies M and M^-1 at one configuration. G and M^-1 G' of the constraints are used as operators: a sparse or
matrix-free version of `contacts.Contacts` has only to offer the same methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from ..jaxtools import linalg
from ..jaxtools.array_types import B0, F0, B_m, F_d, F_dd, F_dj, F_jd, F_jj, F_m
from ..jaxtools.empty import nothing
from ..jaxtools.linalg import solve_by_inverse
from ..jaxtools.outlined import outlined
from .contacts import AskewContacts, Contacts
from .joints import Joints, joint_turning
from .mass import mass_of
from .motion import At
from .problem import Problem

STEPS = 1024  # steps h over which speeds are converted to length scales (`span`)


class Restoring(NamedTuple):
    """Factors for correcting joint velocities under an iteration matrix W: ``rows``, J (j, d) with dependent rows set
    to zero; ``response`` W^-1 J' (d, j); ``gram`` J W^-1 J' (j, j) and its ``inverse``."""

    rows: F_jd
    response: F_dj
    gram: F_jj
    inverse: F_jj

    def of(self, rates: Array) -> Array:
        """Returns the velocity change (d,) or (d, k) that changes joint velocities by ``rates`` (j,) or (j, k)."""
        return self.response @ solve_by_inverse(self.gram, self.inverse, rates)


class Metric(NamedTuple):
    """Kinetic metric <x, y> = x' M y at one configuration.

    `solve` gives the response of the system with its ``joints``.
    """

    mass: Any
    joints: Joints

    @property
    def matrix(self) -> Any:
        """M as it is stated: None (identity), a scalar, a (d,) diagonal, a (d, d) matrix, or blocks (N, D, D)."""
        return self.mass.matrix

    @property
    def kind(self) -> type[Contacts]:
        """The class of contacts whose responses are those of this metric."""
        return Contacts

    def times(self, x: F_d) -> F_d:
        """Returns M x for x of shape (d,)."""
        return self.mass.times(x)

    def solve(self, x: Array) -> Array:
        """Returns M^-1 x for x of shape (d,) or (d, k); with joints, P x with the P of `mechanics.joints`,
        which keeps them."""
        return self.joints.project(self.mass.solve(x))

    def solve_without_joints(self, x: Array) -> Array:
        """Returns M^-1 x for x of shape (d,) or (d, k), whether there are joints or not."""
        return self.mass.solve(x)

    def positive(self) -> B0:
        """Tests whether M is positive definite, ()."""
        return self.mass.positive()

    def symmetric(self) -> B0:
        """Tests whether M is symmetric up to round-off, ()."""
        return self.mass.symmetric()

    def restore(self, rates: Array) -> Array:
        """Returns the velocity change (d,) that changes joint velocities by ``rates`` (j,)."""
        return self.joints.restore(rates)

    def keep(self, later: F_d, v: F_d, share: float) -> F_d:
        """Returns the velocity ``later`` (d,), corrected such that share * later + (1 - share) * v keeps the joints; v
        (d,) is the velocity before."""
        if not self.joints.size:
            return later
        return later - self.restore(self.joints.velocity(share * later + (1 - share) * v) / share)

    @classmethod
    def at(cls, problem: Problem, q: F_d, args: object, t: ArrayLike | None = None) -> Metric:
        """Makes the metric of a problem's mass matrix at q; given a time t, with the problem's joints at (t, q),
        which `solve` then keeps."""
        metric = cls._of_mass(problem, q, args)
        return metric if t is None else metric.with_joints(problem, t, q, args)

    def with_joints(self, problem: Problem, t: ArrayLike, q: F_d, args: object) -> Metric:
        """Returns a copy that keeps the problem's joints, as linearised at (t, q)."""
        return self._replace(joints=Joints.at(problem, self, t, q, args))

    def to_joints(self, problem: Problem, at: At, h: F0) -> At:
        """Corrects the velocity v of a place so that q + h v satisfies the joints at t + h, by one Newton step."""
        # otherwise energy drifts as without the mean over the chord: a double pendulum's by 1.5e-6 a second at h =
        # 1e-3, rather than by 3e-10
        if not self.joints.size:
            return at
        return at._replace(v=at.v - self.restore(problem.joint_values(at.t + h, at.q + h * at.v, at.args)) / h)

    def over_chord(self, problem: Problem, at: At, h: F0) -> Metric:
        """Returns a copy with the joints averaged over the chord from a place with its velocity for a time h."""
        if not self.joints.size:
            return self
        kinetic = self._replace(joints=Joints.none(len(at.v), at.v.dtype))
        return self._replace(joints=Joints.over_chord(problem, kinetic, at, h))

    @classmethod
    def _of_mass(cls, problem: Problem, q: F_d, args: object) -> Metric:
        return cls(mass_of(problem.mass_at(q, args), q.dtype).factorised(), Joints.none(q.shape[0], q.dtype))

    @classmethod
    def from_iteration_matrix(cls, matrix: F_dd, joints: Joints) -> Metric:
        """Makes the metric whose `solve` applies the inverse of an iteration matrix W = M - h theta dg/dv - ...,
        keeping the joints.

        W (d, d) need not be symmetric.
        """
        if not joints.size:
            return IterationMetric(Iteration(matrix, linalg.inverse(matrix)), joints)
        return IterationMetric(Iteration(matrix, *_restoring(matrix, joints)), joints)


class Iteration(NamedTuple):
    """An iteration ``matrix`` W (d, d) in place of a mass, with its ``inverse``, and, if there are joints,
    their `Restoring` under it."""

    matrix: F_dd
    inverse: F_dd
    restoring: Restoring | None = None


class IterationMetric(Metric):
    """The metric of an `Iteration`."""

    @property
    def kind(self) -> type[Contacts]:
        return AskewContacts

    def solve(self, x: Array) -> Array:
        if not self.joints.size:
            return self.mass.inverse @ x
        free = solve_by_inverse(self.mass.matrix, self.mass.inverse, x)
        return free - self.restore(self.mass.restoring.rows @ free)

    def restore(self, rates: Array) -> Array:
        return self.mass.restoring.of(rates)


@outlined
def _restoring(matrix: F_dd, joints: Joints) -> tuple[F_dd, Restoring]:
    """Returns the inverse of an iteration matrix W (d, d), and the factors for correcting joint velocities under it."""
    kept, inverse = joints.independent(), linalg.inverse_without_pivoting(lax.stop_gradient(matrix))
    rows = jnp.where(kept[:, None], joints.jacobian, 0)
    response = solve_by_inverse(matrix, inverse, rows.T)
    # a dependent row is decoupled, with a multiplier of zero
    gram = rows @ response + jnp.diag(jnp.where(kept, 0, 1).astype(matrix.dtype))
    return inverse, Restoring(rows, response, gram, linalg.inverse_without_pivoting(lax.stop_gradient(gram)))


def linearise(problem: Problem, metric: Metric, t: ArrayLike, q: F_d, args: object) -> Contacts:
    """Linearises the constraints at (t, q), with the responses of a ``metric``; without tangential rows."""
    return problem.gaps.linearised(metric, t, q, args)


def noise(contacts: Contacts, x: F_d, gap_velocity: F_m) -> F_m:
    """Returns the round-off (m,) of gap velocities computed from a velocity x (d,),
    or of gap accelerations computed from an acceleration x.

    ``gap_velocity`` (m,): the gap velocities, or their part that does not depend on x; for accelerations likewise.
    """
    return 1e3 * jnp.finfo(x.dtype).eps * (contacts.velocity_terms(x) + jnp.abs(gap_velocity))


def gap_derivatives(problem: Problem, t: F0, q: F_d, v: F_d, args: object) -> tuple[F_m, F_m]:
    """Returns gap velocities and gap accelerations (m,) of the motion with constant velocity v (d,)."""
    zero, one = jnp.zeros_like(t), jnp.ones_like(t)

    def velocity(s: F0) -> F_m:
        return jax.jvp(lambda s: problem.gaps(t + s, q + s * v, args), (s,), (one,))[1]

    return jax.jvp(velocity, (zero,), (one,))


class Closure(NamedTuple):
    """Result of `closure`, up to round-off: masks (m,) of constraints that are ``closed``, those that are ``violated``,
    and those that are closed with a negative gap velocity (``outward``)."""

    closed: B_m
    violated: B_m
    outward: B_m


def lengths(contacts: Contacts, q: F_d, v: F_d, acceleration: F_m, h: F0) -> F_m:
    """Returns a length scale for each gap (m,), in its unit: the magnitude of its terms,
    plus the distance moved in a thousand steps h.

    No absolute constant enters, so that results do not depend on the units of length, time and mass. The distance
    follows from the velocity v (d,) and the gap ``acceleration`` (m,). Divided by `span` the scales are speeds.
    """
    time = span(h, q.dtype)
    speed = contacts.velocity_terms(v) + time * jnp.abs(acceleration) + jnp.abs(contacts.drift)
    place = contacts.velocity_terms(q)
    found = place + time * speed
    return jnp.where(jnp.isfinite(found), found, place)


def span(h: Any, dtype: DTypeLike) -> Any:
    """Returns a time scale () of about a thousand steps h, which converts speeds to lengths: long against a step,
    short against most motions."""
    # shorter in float32, whose round-off over the longer time would hide impacts
    return (STEPS if dtype == jnp.float64 else STEPS // 8) * h


def closure(
    contacts: Contacts, gap_velocity: F_m, q: F_d, v: F_d, h: F0 | None = None, a: F_d | None = None
) -> Closure:
    """Classifies constraints as closed, violated, or closed with a velocity that violates them,
    up to the round-off of gaps and gap velocities.

    ``gap_velocity`` (m,): the gap velocities at v. With a step h and the acceleration ``a`` (d,), gaps within the
    round-off of `lengths` count as closed, and the velocity may have the round-off of a difference of positions over h,
    as from the last step of another run.
    """
    # a thousand roundings; in float32 only a few, or else gaps of micrometres would count as closed
    eps = max(float(jnp.finfo(q.dtype).eps), contacts.resolution)
    few, many = (1e3 if q.dtype == jnp.float64 else 4) * eps, 1e3 * eps
    if h is None:
        length, speed = contacts.velocity_terms(q), many * contacts.velocity_terms(v)
    else:
        bent = jnp.zeros_like(gap_velocity) if a is None else contacts.velocity_terms(a)
        length = lengths(contacts, q, v, bent, h)
        speed = many * length / span(h, q.dtype) + many * length / (32 * h)
    closed, length = contacts.gap <= few * length, many * length
    # the start may be the end of a run whose solver had a coarse tolerance
    overlap = contacts.slack * length
    # bodies at the same position have no gradient, but overlap
    overlap = jnp.where(overlap >= 0, overlap, 0)
    return Closure(closed, contacts.gap < -overlap, closed & (gap_velocity < -speed))


def acceleration(problem: Problem, metric: Metric, t: ArrayLike, q: F_d, v: F_d, args: object) -> F_d:
    """Returns the acceleration (d,) without contact forces: M^-1 g(t, q, v), or with joints the one that keeps them."""
    return joint_acceleration(problem, metric, t, q, v, args)[0]


def joint_acceleration(
    problem: Problem, metric: Metric, t: ArrayLike, q: Array, v: Array, args: object
) -> tuple[Array, Array]:
    """Returns the acceleration (d,) without contact forces, and the joints' forces (j,)."""
    force = problem.generalised_force(t, q, v, args)
    free = metric.solve(force)
    joints = metric.joints
    if not problem.joint_count(t, q, args):
        return free, nothing(q.dtype, 0)
    if not joints.size:
        raise ValueError("the metric of an acceleration with joints is Metric.at(problem, q, args, t)")
    turning = joint_turning(problem, t, q, v, args)
    answer = -joints.forces(joints.response.T @ force + turning)
    return free - metric.restore(turning), joints.least(answer)
