"""What a scheme is: `init` and `step`, pure functions of one trajectory's small arrays, and its citation."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..contact import Metric
from ..problem import Problem
from ..projection.base import Projected, Projection, as_status
from ..status import Status


class Inputs(NamedTuple):
    """Numbers of one trajectory: start time t0 [s], step h [s], restitution e, parameters args."""

    t0: Array
    h: Array
    e: Array
    args: Any

    def time(self, n) -> Array:
        """t0 + n h: no sum of steps, no drift."""
        return self.t0 + jnp.asarray(n).astype(self.h.dtype) * self.h


class State(NamedTuple):
    """What the next step needs: step number n (t = t0 + n h), position q (d,), velocity v (d,) over the last step."""

    n: Array
    q: Array
    v: Array


class Info(NamedTuple):
    """What the reader needs of one step.

    ``z`` admissible position (d,), ``chord`` (q_new - q_old)/h (d,), ``impulse`` (m,) of the step, KKT ``residual``
    [velocity], projection ``iterations``, ``status`` bits.
    """

    z: Array
    chord: Array
    impulse: Array
    residual: Array
    iterations: Array
    status: Array


class Scheme(Protocol):
    """A time-stepping scheme. ``init`` may already make the first step: ``starts_at`` is the n it ends with.

    Initial velocities reach ``init`` admissible: see `integrate.start`. What sensitivities need to know: whether an
    impact takes two active steps (``rebounds``), by how many steps the velocity lags behind the end of its step, and
    whether the derivative of a step is already right across impacts (``exact_derivative``). ``projects``: a step is straight-line
    arithmetic but for `project_position` and `project_velocity`. With `Untouched` in place of a projection ``step`` makes
    no impulse, and its status says PENDING where it should.
    """

    starts_at: ClassVar[int]
    rebounds: ClassVar[bool]
    exact_derivative: ClassVar[bool]
    projects: ClassVar[bool]

    @property
    def velocity_lag(self) -> float: ...

    def validate(self, problem: Problem, e, m: int) -> None:
        """Raise ValueError, on the host, where the scheme does not cover the problem."""
        ...

    def impact_phase(self, e) -> Array:
        """Where, within the step in which a contact becomes active, its impact is differentiated: in [0, 1]."""
        ...

    def init(
        self, problem: Problem, projection: Projection, inputs: Inputs, q0: Array, v0: Array
    ) -> tuple[State, Info]:
        """State at n = starts_at from initial data."""
        ...

    def step(self, problem: Problem, projection: Projection, inputs: Inputs, state: State) -> tuple[State, Info]:
        """State at n + 1."""
        ...


def finite(state: State) -> Array:
    """Whether position and velocity are finite numbers, ()."""
    return jnp.all(jnp.isfinite(state.q)) & jnp.all(jnp.isfinite(state.v))


def info_of(projected: Projected, metric: Metric, z: Array, chord: Array, impulse: Array | None = None) -> Info:
    """Info of one step from its projection; adds the status of the mass matrix."""
    status = projected.status | as_status(~metric.positive(), Status.MASS_NOT_POSITIVE)
    impulse = projected.impulse if impulse is None else impulse
    return Info(z, chord, impulse, projected.residual, projected.iterations, status)


def no_step(q: Array, v: Array, m: int) -> Info:
    """Info of an `init` that makes no step."""
    zero = jnp.zeros((), jnp.int32)
    return Info(q, v, jnp.zeros(m, q.dtype), jnp.zeros((), q.dtype), zero, zero)


def mean_acceleration(
    problem: Problem, metric: Metric, t: Array, h: Array, q: Array, v: Array, args, count: int
) -> Array:
    """(1/h) times the integral over [t, t + h] of M^-1 g(s, q, v) ds, by quadrature in time."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    force = jnp.zeros_like(q)
    for c, w in zip(nodes, weights, strict=True):
        force = force + float(0.5 * w) * problem.generalised_force(t + float(0.5 * (1 + c)) * h, q, v, args)
    return metric.solve(force)
