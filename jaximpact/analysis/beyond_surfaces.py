"""Starts beyond a surface, where no motion begins but where the iterates of filters and optimisers lie."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ..mechanics.linearisation import Metric
from ..mechanics.problem import Problem

LIFT = 1e-4  # share of a motion's time after which it strikes if its start lay beyond a surface


def lift(problem: Problem, t0: Array, t1: Array, q: Array, v: Array, args: object) -> Array:
    """How far q (d,) must move, in the kinetic metric, so that a motion from (q, v) at t0 has all gaps open or strikes
    after a share `LIFT` of its time.

    A start on a surface does not rebound, one just before it does. Zero where gaps are open. The motion from q is that
    from q + lift, extrapolated linearly: f(q + lift) - f'(q + lift) lift.
    """
    metric = Metric.at(problem, q, args)

    def closer(q: Array) -> Array:
        gaps, rates = jax.jvp(lambda t, q: problem.gaps(t, q, args), (t0, q), (jnp.ones_like(t0), v))
        jacobian = jax.jacfwd(lambda q: problem.gaps(t0, q, args))(q)
        lack = jnp.maximum(LIFT * (t1 - t0) * jnp.maximum(-rates, 0) - gaps, 0)
        rows = jnp.where((lack > 0)[:, None], jacobian, 0)
        back = metric.solve_without_joints(rows.T)
        return q + back @ jnp.linalg.pinv(rows @ back, hermitian=True) @ lack

    return jax.lax.stop_gradient(closer(closer(q)) - q)
