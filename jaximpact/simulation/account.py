"""Account of a motion: status, residual, penetration and iterations accumulated over its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.array_types import F0, I0
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Info, finite, time_of
from ..mechanics.status import FAILURES, Status, as_status

if TYPE_CHECKING:
    from ..mechanics.scheme import State


class Account(NamedTuple):
    """Running totals over the steps of a motion, of shape () but for ``joint_residual`` (j,), until it is `closed`;
    part of the loop's carry.

    `Solution` has fields of the same names.
    """

    penetration: F0
    residual: F0
    iterations: I0
    status: I0
    failed_at: F0
    joint_residual: Any
    error: F0 | None = None
    failed_by: Any = None

    @classmethod
    def start(
        cls, status: I0, t0: F0, joint_residual: Array, error: F0 | None = None, near: I0 | None = None
    ) -> Account:
        """The account at t0, from the status bits of the start and the residuals |c| (j,) of the joints; ``error`` ()
        is zero, None for schemes that do not estimate it; ``near`` () as in `Info`."""
        zero, none = jnp.zeros_like(t0), jnp.zeros((), jnp.int32)
        failed_by = jax.tree.map(lambda _: none - 1, near)
        never = jnp.full_like(zero, jnp.nan)
        return cls(zero, zero, none, none, never, joint_residual, error, failed_by).with_status(status, t0)

    def with_status(self, bits: I0, t: F0) -> Account:
        """Adds status bits that occur at time t; the first failure sets ``failed_at``."""
        failing = ((bits & int(FAILURES)) != 0) & ((self.status & int(FAILURES)) == 0)
        return self._replace(status=self.status | bits, failed_at=jnp.where(failing, t, self.failed_at))

    def with_joints(self, info: Info) -> Account:
        """The account whose largest joint residuals include those in the `Info` of a step."""
        if not self.joint_residual.size:
            return self
        return self._replace(joint_residual=jnp.maximum(self.joint_residual, info.joints.residual))

    def closed(self) -> Account:
        """The account as a `Solution` has it: the largest joint residual, (), None without joints."""
        return self._replace(joint_residual=jnp.max(self.joint_residual) if self.joint_residual.size else None)

    def with_step(self, problem: Problem, motion: Motion, k: ArrayLike, state: State, info: Info) -> Account:
        """Adds a ``state`` and the `Info` of step ``k``; with XLA the step ends at that state,
        in native code it starts from it."""
        t = time_of(motion, state)
        gaps = problem.near(getattr(state, "neighbours", None)).gaps(t, state.q, motion.args)
        lost = as_status(~finite(state), Status.NON_FINITE)
        found = self.with_joints(info)._replace(
            penetration=jnp.maximum(self.penetration, jnp.max(-gaps, initial=0.0)),
            residual=jnp.maximum(self.residual, info.residual),
            iterations=self.iterations + info.iterations,
            error=self.error if info.error is None else self.error + info.error,
        )
        failed_at = motion.time(k)
        if info.near is not None:
            within = jnp.isfinite(info.ended)
            found = found._replace(failed_by=jnp.where(within, info.near, self.failed_by))
            failed_at = jnp.where(within, info.ended, failed_at)
        return found.with_status(info.status | lost, jnp.where(lost > 0, t, failed_at))
