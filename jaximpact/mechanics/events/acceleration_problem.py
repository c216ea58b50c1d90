"""Contact problem of accelerations: which contacts hold, stick or begin to slip at one instant,
and with which forces."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.outlined import outlined
from ..contact.friction.cone_solver import frictional_impulses
from ..contact.friction.cones import OPEN, SLIP, STICK, ConeProblem, direction, length
from ..friction import FrictionInfo, Slip
from ..linearisation import Metric, acceleration, gap_derivatives, linearise
from ..problem import Problem

SHARP = 1e-9  # relative accuracy of accelerations that separates sticking from beginning to slip


class AccelerationProblem(NamedTuple):
    """Contact problem of accelerations at one instant.

    The ``metric``; the acceleration ``free`` (d,) without contact forces; ``cones``, the problem, its offset being the
    accelerations of gaps and slips without contact forces; the ``velocity`` (m, 1 + k) of gaps and slips.
    """

    metric: Metric
    free: Array
    cones: ConeProblem
    velocity: Array

    @classmethod
    def at(
        cls, problem: Problem, t: Array, q: Array, v: Array, args: object, frame: Array | None = None
    ) -> AccelerationProblem:
        """As `of`, without derivatives."""
        return lax.stop_gradient(cls.of(problem, *lax.stop_gradient((t, q, v, args, frame))))

    @classmethod
    def of(
        cls, problem: Problem, t: Array, q: Array, v: Array, args: object, frame: Array | None = None
    ) -> AccelerationProblem:
        """Makes the problem at (t, q, v); ``frame`` as of `Slip.onto`."""
        metric = Metric.at(problem, q, args, t)
        a = acceleration(problem, metric, t, q, v, args)
        slip = Slip.of_acceleration(problem, metric, (t, q, v), a, args, frame)
        contacts = linearise(problem, metric, t, q, args)._replace(slip=slip)
        closing, turning = gap_derivatives(problem, t, q, v, args)
        cones = ConeProblem.of(contacts, contacts.velocity(a) + turning)
        velocity = jnp.concatenate([closing[:, None], slip.of(v)], axis=1)
        return cls(metric, a, cones, velocity)

    def solve(
        self, closed: Array, slip_direction: Array, near: Array | None = None
    ) -> tuple[Array, Array, FrictionInfo]:
        """Returns the acceleration (d,), the forces (m, 1 + k) and the modes of the ``closed`` contacts (m,).

        Contacts with a direction ``slip_direction`` (m, k) slip that way; for the others Coulomb's law decides whether
        they stick or begin to slip. If several solutions satisfy the law, the one with forces nearest to
        ``near`` (m, 1 + k) is taken.
        """
        near = jnp.zeros_like(self.cones.offset) if near is None else near
        # forces are found without derivatives, whatever has them: reverse mode cannot go through the loop
        force, modes = lax.stop_gradient(self)._forces(closed, *lax.stop_gradient((slip_direction, near)))
        return self.free + self.cones.response @ force.ravel(), force, modes

    def _forces(self, closed: Array, slip_direction: Array, near: Array) -> tuple[Array, FrictionInfo]:
        static = self.cones.static
        if static is None:
            return _solved(self.cones, closed, slip_direction, self.cones.friction, near)

        def body(carry: tuple) -> tuple:
            slip_direction, *_ = carry
            found = _solved(self.cones, closed, slip_direction, static, near)
            slipping = jnp.any(slip_direction != 0, axis=1, keepdims=True)
            begun = jnp.where(slipping, slip_direction, found[1].direction)
            return begun, jnp.any(begun != slip_direction), found

        # a contact that begins to slip does so with the coefficient of slip, and loads others
        none = FrictionInfo.none(len(slip_direction), slip_direction.shape[1], slip_direction.dtype)
        start = jnp.zeros_like(self.cones.offset), none
        return lax.while_loop(lambda carry: carry[1], body, (slip_direction, jnp.ones((), bool), start))[-1]

    def load(self, force: Array) -> Array:
        """Returns the gap accelerations (m,) that the forces (m, 1 + k) of the other contacts give to each contact."""
        m, size = force.shape
        normal = self.cones.delassus().reshape(m, size, m, size)[:, 0]
        others = jnp.where(jnp.eye(m, dtype=bool)[:, :, None], 0, normal)
        return lax.stop_gradient(jnp.einsum("ijp,jp->i", others, force))

    def slipping(self, noise: Array) -> Array:
        """Returns the directions of slip (m, k) of contacts that slip faster than ``noise`` (m,), zero for others."""
        slip = self.velocity[:, 1:]
        return jnp.where(length(slip) > noise[:, None], direction(slip), 0)


@outlined
def _solved(
    cones: ConeProblem, closed: Array, slip_direction: Array, at_rest: Array, near: Array
) -> tuple[Array, FrictionInfo]:
    """Returns forces and modes as `AccelerationProblem.solve`, with the coefficients ``at_rest`` (m,) for contacts
    that do not slip yet."""
    m, size = cones.offset.shape
    slipping = jnp.any(slip_direction != 0, axis=1)
    # tangential forces of contacts that slip, by their normal ones
    pull = -cones.friction[:, None] * slip_direction
    matrix = cones.delassus().reshape(m, size, m, size)
    with_pull = matrix[..., 0] + jnp.einsum("ipjk,jk->ipj", matrix[..., 1:], pull)
    matrix = jnp.where(slipping[None, None, :, None], jnp.zeros_like(matrix).at[..., 0].set(with_pull), matrix)
    kept = (jnp.arange(size) == 0)[None, :] | ~slipping[:, None]
    matrix = jnp.where(kept[:, :, None, None], matrix, 0).reshape(m * size, m * size)
    offset, mu = jnp.where(kept, cones.offset, 0), jnp.where(slipping, 0, at_rest)
    unit = jnp.max(jnp.abs(offset), initial=0.0)
    guess = jnp.where(kept & closed[:, None], near, 0)
    x, *_ = frictional_impulses(matrix, offset, mu, guess, closed, SHARP * unit, derivative=False)
    x = jnp.where(slipping[:, None], jnp.concatenate([x[:, :1], pull * x[:, :1]], axis=1), x)
    moves = cones.velocity(x)[:, 1:]
    sharp = max(1e3 * SHARP, 256 * float(jnp.finfo(moves.dtype).eps))
    begins = ~slipping & (length(moves)[:, 0] > sharp * unit)
    slip_direction = jnp.where(begins[:, None], direction(moves), slip_direction)
    sticks = ~slipping & ~begins & (at_rest > 0)
    mode = jnp.where(closed & (x[:, 0] > 0), jnp.where(sticks, STICK, SLIP), OPEN)
    slip_direction = jnp.where((mode == SLIP)[:, None], slip_direction, 0)
    return x, FrictionInfo(x[:, 1:], mode.astype(jnp.int32), slip_direction)
