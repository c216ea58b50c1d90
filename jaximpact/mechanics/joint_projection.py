"""Projection of the end of a step onto the joints c(t, q) = 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..jaxtools.array_types import B0, F0, I0, B_j, F_d, F_j
from ..jaxtools.empty import nothing
from .joints import Joints, scales
from .linearisation import Metric, span
from .problem import Problem
from .scheme import JointInfo, State, add_compensated
from .status import Status, as_status

SHAKEN = 4  # iterations, each of which reduces the error by a factor of order h
LEFT = 1e-3  # fraction of the displacement of a step by which joints may be violated at its end
STEEP = 3  # distances between the two positions of `singular_status`, within which a singular position may lie
PROJECTIONS = (
    4  # before the last one of `nearest_on_joints`: each cubes a relative error, and one of a half ends below round-off
)


class ProjectedPosition(NamedTuple):
    """Result of `put_on_joints`: a position ``q`` (d,) on the joints and its rounding remainder ``low`` as in `State`;
    the displacement (d,) that led there, ``moved``, before its rounding; the ``joints`` as linearised where the
    projection began; the ``residual`` |c| (j,) after it; and status bits."""

    q: F_d
    low: F_d | None
    moved: F_d
    joints: Joints
    residual: F_j
    status: I0

    def velocity(self, v: F_d) -> F_d:
        """Returns the velocity (d,) nearest to v, in the kinetic metric, that keeps the joints."""
        return v - self.joints.restore(self.joints.velocity(v)) if self.joints.size else v


def put_on_joints(
    problem: Problem, t: F0, q: F_d, low: F_d | None, shift: F_d, before: Joints | None, args: object
) -> ProjectedPosition:
    """Projects q (d,) onto the joints at time t in the kinetic metric; ``low`` is its rounding remainder.

    ``shift`` (d,): the displacement that led to q, which sets the tolerance; ``before``: the joints at an earlier
    position, None for none. The status includes `singular_status`.
    """
    if not problem.joint_count(t, q, args):
        joints = Joints.none(len(q), q.dtype)
        return ProjectedPosition(q, low, jnp.zeros_like(q), joints, nothing(q.dtype, 0), jnp.zeros((), jnp.int32))
    joints = Metric.at(problem, q, args, t).joints
    first = -joints.restore(joints.value)
    q, low = add_compensated(q, first, low)
    # once more with the same gradients: the error of a distance x is then of the order of x^3
    second = -joints.restore(problem.joint_values(t, q, args))
    q, low = add_compensated(q, second, low)
    left = jnp.abs(lax.stop_gradient(problem.joint_values(t, q, args)))
    status = as_status(~jnp.all(left <= joint_tolerance(joints, q, shift)), Status.JOINTS_NOT_MET)
    if before is not None:
        status |= singular_status(before, joints)
    return ProjectedPosition(q, low, first + second, joints, left, status)


def nearest_on_joints(problem: Problem, t: F0, q: F_d, v: F_d, args: object) -> tuple[F_d, F_d]:
    """Returns the position and velocity (d,) nearest to q and v, in the kinetic metric, that satisfy the joints;
    q and v without joints."""
    if not problem.joint_count(t, q, args):
        return q, v
    onto = lambda q: put_on_joints(problem, t, q, None, jnp.zeros_like(q), None, args)
    # a step of Newton's method on an orbit, or another parameter of the joints, leads farther away than a step of a
    # motion
    found = onto(lax.fori_loop(0, PROJECTIONS, lambda _, q: onto(q).q, q))
    return found.q, found.velocity(v)


def joint_tolerance(joints: Joints, q: F_d, shift: F_d) -> F_j:
    """Returns the tolerance (j,) for |c| after a ``shift`` (d,) to q (d,): the change of c over a small fraction of the
    shift, plus round-off."""
    rounding = 1e3 * jnp.finfo(q.dtype).eps * scales(joints.jacobian, jnp.abs(q) + 1)
    return lax.stop_gradient(LEFT * joints.terms(shift) + rounding)


def singular_status(before: Joints, after: Joints) -> I0:
    """Returns JOINTS_NOT_MET if the joints may become singular near the positions of ``before`` and ``after``,
    at most a step apart.

    They may if the `Joints.margins`, extrapolated linearly, become zero within `STEEP` times the distance of the two.
    """
    one, other = lax.stop_gradient((before.margins(), after.margins()))
    return as_status(jnp.any(STEEP * jnp.abs(one - other) > jnp.minimum(one, other)), Status.JOINTS_NOT_MET)


def project_state(
    problem: Problem,
    t: F0,
    new: State,
    shift: F_d,
    before: Joints,
    impulse: Callable[[], Array],
    acts: B0,
    args: object,
) -> tuple[State, JointInfo, I0]:
    """Projects a scheme's ``new`` state onto the joints at time t; returns it, the report on the joints,
    and status bits.

    ``shift`` (d,): displacement in the step; ``before``: joints at an earlier position; ``impulse``: function that
    returns the impulses (j,) of the joints in the step so far, called only if there are joints.
    Where a contact ``acts`` (), the velocity is projected too: after an impact it keeps the joints
    only at a position O(h) away.
    """
    if not before.size:
        return new, JointInfo.without_joints(shift.dtype), jnp.zeros((), jnp.int32)
    found = put_on_joints(problem, t, new.q, new.low, shift, before, args)
    more = jnp.where(acts, -found.joints.forces(found.joints.velocity(new.v)), 0)
    new = new._replace(q=found.q, low=found.low, v=new.v + found.joints.response @ more)
    return new, JointInfo(impulse() + found.joints.least(more), found.residual), found.status


def shake(problem: Problem, metric: Metric, t: F0, q: F_d, h: F0, u: F_d, args: object) -> tuple[Array, Array]:
    """Corrects the velocity u (d,) so that a step h from q ends on the joints at t (SHAKE);
    returns it and the joints' impulses (j,).

    The impulses act along the gradients at the start of the step. Ryckaert, Ciccotti and Berendsen, J. Comput. Phys.
    23 (1977).
    """
    joints = metric.joints
    if not joints.size:
        return u, nothing(u.dtype, 0)
    total = jnp.zeros_like(joints.value)
    for _ in range(SHAKEN):
        more = -joints.forces(problem.joint_values(t, q + h * u, args)) / h
        u, total = u + joints.response @ more, total + more
    return u, joints.least(total)


def land_chord(
    problem: Problem, t: F0, new: State, h: F0, before: Joints, impulse: Callable[[], Array], args: object
) -> tuple[State, JointInfo, I0]:
    """As `project_state`, for a scheme whose velocities are those of the chords, (q_new - q_old)/h: the velocity
    follows the projected position.

    To take the velocity from positions that are rounded would add their rounding over h to it in every step.
    """
    if not before.size:
        return new, JointInfo.without_joints(new.v.dtype), jnp.zeros((), jnp.int32)
    found = put_on_joints(problem, t, new.q, new.low, h * new.v, before, args)
    new = new._replace(q=found.q, low=found.low, v=new.v + found.moved / h)
    return new, JointInfo(impulse(), found.residual), found.status


def start_on_joints(metric: Metric, q: F_d, v: F_d, h: F0) -> tuple[F_d, JointInfo, I0]:
    """Projects the velocity v (d,) at a start onto the joints; returns it, the report on the joints,
    and status bits."""
    joints = metric.joints
    if not joints.size:
        return v, JointInfo.without_joints(v.dtype), jnp.zeros((), jnp.int32)
    wrong, broken = start_errors(joints, q, v, h)
    impulse = -joints.forces(joints.velocity(v))
    status = as_status(jnp.any(wrong), Status.JOINTS_NOT_MET)
    status |= as_status(jnp.any(broken), Status.START_VELOCITY_PROJECTED)
    if joints.loose is not None:
        status |= as_status(jnp.any(~joints.independent()), Status.IMPULSES_NOT_UNIQUE)
    residual = jnp.abs(lax.stop_gradient(joints.value))
    return v + joints.response @ impulse, JointInfo(joints.least(impulse), residual), status


def start_errors(joints: Joints, q: F_d, v: F_d, h: F0 | None) -> tuple[B_j, B_j]:
    """Returns the masks (j,) of joints that are violated at a start, and of joints whose velocity J v + c_t
    is not zero, up to round-off.

    With a step h, positions and velocities may have the round-off of the end of an earlier run.
    """
    q, v, joints = lax.stop_gradient((q, v, joints))
    eps = 1e3 * jnp.finfo(q.dtype).eps
    # the end of an earlier run, or typed numbers, may have the round-off of many steps
    speed = scales(joints.jacobian, v) + jnp.abs(joints.rate)
    time = 0.0 if h is None else span(lax.stop_gradient(h), q.dtype)
    length = scales(joints.jacobian, jnp.abs(q) + 1) + time * speed
    fast = speed if h is None else speed + length / (32 * lax.stop_gradient(h))
    return ~(jnp.abs(joints.value) <= eps * length), ~(jnp.abs(joints.velocity(v)) <= eps * fast)
