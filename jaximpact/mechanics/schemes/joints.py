"""The end of a step, put onto the joints."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..joints import Joints
from ..linearisation import Metric, span
from ..problem import Problem
from ..status import Status, as_status
from .base import JointInfo, State, add_compensated

SHAKEN = 4  # iterations, each of which leaves h times what was left
LEFT = 1e-3  # of what a step moves, by which joints may be missed at its end
STEEP = 3  # parts of a step between two looks, within which a singular position may lie


class Landed(NamedTuple):
    """A position (d,) on the joints, its remainder as in `State`, the ``joints`` beside it, what is left of them, max |c| (), and status bits."""

    q: Array
    low: Array | None
    joints: Joints
    residual: Array
    status: Array

    def velocity(self, v: Array) -> Array:
        """The nearest velocity (d,) that keeps the joints."""
        return v - self.joints.restore(self.joints.velocity(v))


def put_on_joints(
    problem: Problem,
    t: Array,
    q: Array,
    low: Array | None,
    shift: Array,
    before: Joints | None,
    args: Any,
    steep: float = STEEP,
) -> Landed:
    """The nearest position on the joints to q (d,) in the metric, behind a ``shift`` (d,) from a place where they were as ``before``.

    ``steep``: as of `singular_status`.
    """
    joints: Any = Metric.at(problem, q, args, t).joints
    q, low = add_compensated(q, -joints.restore(joints.value), low)
    # once more, by the same gradients: what is left of a distance x off is of the order of x^3
    q, low = add_compensated(q, -joints.restore(problem.joint_values(t, q, args)), low)
    left = jnp.abs(lax.stop_gradient(problem.joint_values(t, q, args)))
    status = as_status(~jnp.all(left <= tolerated(joints, q, shift)), Status.JOINTS_NOT_MET)
    if before is not None:
        status |= singular_status(before, joints, steep)
    return Landed(q, low, joints, jnp.max(left), status)


def tolerated(joints: Joints, q: Array, shift: Array) -> Array:
    """What may be left of joints (j,) behind a ``shift`` (d,) to q (d,): a small part of it, and round-off."""
    rounding = 1e3 * jnp.finfo(q.dtype).eps * (jnp.abs(q) + 1)
    return lax.stop_gradient(joints.terms(LEFT * jnp.abs(shift) + rounding))


def singular_status(before: Joints, after: Joints, steep: float) -> Array:
    """Status bit of a position between two, half a step apart or a step, or within ``steep`` such parts, in which the joints are singular."""
    one, other = lax.stop_gradient((before.margins(), after.margins()))
    return as_status(jnp.any(steep * jnp.abs(one - other) > jnp.minimum(one, other)), Status.JOINTS_SINGULAR)


def land(
    problem: Problem, t: Array, new: State, shift: Array, before: Joints, impulse: Array, acts: Array, args: Any
) -> tuple[State, JointInfo, Array]:
    """A scheme's new state put onto the joints, what is told of them, with their ``impulse`` (j,) in the step, and status bits.

    Where a contact ``acts`` (), the velocity too: an impact has turned it, so that on the mean it kept the joints of another place, O(h) away.
    """
    found = put_on_joints(problem, t, new.q, new.low, shift, before, args)
    more = jnp.where(acts, -found.joints.forces(found.joints.velocity(new.v)), 0)
    new = new._replace(q=found.q, low=found.low, v=new.v + found.joints.response @ more)
    return new, JointInfo(impulse + found.joints.least(more), found.residual), found.status


def shake(problem: Problem, metric: Metric, t: Array, q: Array, h: Array, u: Array, args: Any) -> tuple[Array, Array]:
    """The velocity (d,) with which a step h from q ends on the joints at t, by impulses (j,) along their gradients at its start; and these.

    Ryckaert, Ciccotti and Berendsen, J. Comput. Phys. 23 (1977).
    """
    joints: Any = metric.joints
    total = jnp.zeros_like(joints.value)
    for _ in range(SHAKEN):
        more = -joints.forces(problem.joint_values(t, q + h * u, args)) / h
        u, total = u + joints.response @ more, total + more
    return u, joints.least(total)


def land_chord(
    problem: Problem, t: Array, new: State, h: Array, before: Joints, impulse: Array, args: Any
) -> tuple[State, JointInfo, Array]:
    """As `land`, of a scheme whose velocities are those of the chords."""
    found = put_on_joints(problem, t, new.q, new.low, h * new.v, before, args)
    new = new._replace(q=found.q, low=found.low, v=new.v + (found.q - new.q) / h)
    return new, JointInfo(impulse, found.residual), found.status


def start_on_joints(metric: Metric, q: Array, v: Array, h: Array) -> tuple[Array, JointInfo | None, Array]:
    """The velocity (d,) at the start that keeps the joints, what is told of them, and status bits."""
    joints, none = metric.joints, jnp.zeros((), jnp.int32)
    if joints is None:
        return v, None, none
    wrong, broken = start_errors(joints, q, v, h)
    impulse = -joints.forces(joints.velocity(v))
    status = as_status(jnp.any(wrong), Status.JOINTS_NOT_MET)
    status |= as_status(jnp.any(broken), Status.START_VELOCITY_PROJECTED)
    if joints.loose is not None:
        status |= as_status(jnp.any(~joints.independent()), Status.IMPULSES_NOT_UNIQUE)
    residual = jnp.max(jnp.abs(lax.stop_gradient(joints.value)))
    return v + joints.response @ impulse, JointInfo(joints.least(impulse), residual), status


def start_errors(joints: Joints, q: Array, v: Array, h: Array | None) -> tuple[Array, Array]:
    """Masks (j,) of the joints that do not hold at a start, and of those whose velocity is not zero, but for round-off."""
    q, v, joints = lax.stop_gradient((q, v, joints))
    eps = 1e3 * jnp.finfo(q.dtype).eps
    # what an earlier run has left, or was typed in, may be off by the round-off of a way of many steps
    speed = joints.terms(v) + jnp.abs(joints.rate)
    time = 0.0 if h is None else span(lax.stop_gradient(h), q.dtype)
    length = joints.terms(jnp.abs(q) + 1) + time * speed
    fast = speed if h is None else speed + length / (32 * lax.stop_gradient(h))
    return ~(jnp.abs(joints.value) <= eps * length), ~(jnp.abs(joints.velocity(v)) <= eps * fast)
