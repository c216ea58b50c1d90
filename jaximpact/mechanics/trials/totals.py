"""What is reported of a step, summed over its trials."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..events.impact_record import ImpactRecord
from ..events.impacts import Collision
from ..scheme import JointInfo
from .stops import Stop
from .trial import Base


class StepTotals(NamedTuple):
    """What is to be reported of a step, summed over its trials so far.

    Impulses (m,) and contacts with an impact, ``met`` (m,); ``residual`` () of the impact law; time of the ``latest``
    impact; the number of ``trials``; status bits; the ``record`` of the first impacts and the ``stop`` as in
    `DrivenState`; the report on the ``joints``; and the sum of the ``error`` () of accepted trials and of flights that
    are left out, in units of the tolerance, whose derivative is that of these flights. Where derivatives are asked for,
    the error ``until`` () the step began, and the error ``spread`` () of the time of the latest impact; else None. The
    number ``near`` () of the last event that trials met or sought (`status.event_name`).
    """

    impulse: Array
    met: Array
    residual: Array
    latest: Array
    trials: Array
    status: Array
    record: ImpactRecord | None
    stop: Stop | None
    joints: JointInfo
    error: Any = None
    until: Any = None
    spread: Array | None = None
    near: Any = None

    def with_collision(
        self,
        found: Collision,
        left_out: Array,
        jolt: Array,
        trial_end: Base,
        delay: Array,
        t: Array,
        spread: Array | None,
        status: Array,
    ) -> StepTotals:
        """Returns the totals with those of a collision: impulses, residual, error and status bits.

        ``left_out`` (): error by flights that are left out, in units of the tolerance; ``trial_end``: the end of the
        trial before it; ``delay`` (): how much later the collision is, at time t; ``jolt`` (j,): the impulse of the
        joints before it; ``spread`` (m,): errors of the times of impacts.
        """
        hit, joints = jnp.any(found.impact), add_late_impulse(self.joints, delay, trial_end)
        return self._replace(
            impulse=self.impulse + delay * trial_end.force + found.impulse,
            met=self.met | found.impact,
            residual=jnp.maximum(self.residual, lax.stop_gradient(found.error)),
            latest=jnp.where(hit, lax.stop_gradient(t), self.latest),
            status=self.status | status,
            joints=add_joint_impulse(add_joint_impulse(joints, jolt), found.joint_impulse),
            error=self.error + left_out,
            spread=latest_spread(self.spread, spread, found.impact),
        )


def add_joint_impulse(report: JointInfo, impulse: Array, residual: Array | None = None) -> JointInfo:
    """Adds the ``impulse`` (j,) of the joints in a trial, and the ``residual`` |c| (j,) after it,
    to their ``report``."""
    left = report.residual if residual is None else jnp.maximum(report.residual, residual)
    return JointInfo(report.impulse + impulse, left)


def add_late_impulse(report: JointInfo, delay: Array, trial_end: Base) -> JointInfo:
    """Adds the joints' impulse between the end ``trial_end`` of a trial and an event a ``delay`` ()
    later to their ``report``.

    The delay is zero in value up to the search's tolerance, and has the derivative of the event's time.
    """
    return add_joint_impulse(report, delay * trial_end.joint_force)


def latest_spread(last: Array | None, spread: Array | None, impact: Array) -> Array | None:
    """Returns the error () of the time of the latest impact, with ``spread`` (m,) of those of an ``impact`` (m,);
    ``last`` () before it."""
    if spread is None or last is None:
        return None
    return jnp.where(jnp.any(impact), jnp.max(jnp.where(impact, spread, 0)), last)
