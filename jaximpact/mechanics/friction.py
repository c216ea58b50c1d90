"""Slip at the contacts of a problem with Coulomb friction, linearised.

The slip velocity of contact a is affine in v, s_a = T_a(t, q) v + T_a0(t, q), and its friction pushes along T_a': by virtual power one
function of the user gives both. A frictional contact then has 1 + k rows, its gap's gradient and k tangents.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .problem import Problem


class FrictionInfo(NamedTuple):
    """Friction at the contacts in one step.

    Tangential ``impulse`` (m, k); the ``mode`` (m,) of each contact, `contact.cones.OPEN`, `STICK` or `SLIP`; and the ``direction`` of slip (m, k),
    a unit vector, zero where a contact does not slip. Of a step with static friction of its own, else None: ``breaks`` (m,) are the contacts that broke away from rest, before
    the loads of others changed by that; and the ``heading`` of slip, its `Slip.heading`.
    """

    impulse: Array
    mode: Array
    direction: Array
    breaks: Array | None = None
    heading: Array | None = None

    @classmethod
    def none(cls, m: int, k: int, dtype: Any) -> FrictionInfo:
        """Of open contacts."""
        zero = jnp.zeros((m, k), dtype)
        return cls(zero, jnp.zeros(m, jnp.int32), zero)


class Slip(NamedTuple):
    """Tangential rows of all contacts at one configuration.

    ``jacobian`` T (m, k, d), ``response`` M^-1 T' (d, m, k), ``drift`` T_0 (m, k), ``friction`` mu (m,), and the slip ``velocity`` (m, k) without
    contact impulses that a contact law starts from. Where static friction is another one: its coefficients ``static`` (m,), and what the contacts did in
    the step ``before``.
    """

    jacobian: Array
    response: Array
    drift: Array
    friction: Array
    velocity: Array
    static: Array | None = None
    before: FrictionInfo | None = None

    @classmethod
    def at(cls, problem: Problem, metric: Any, t: ArrayLike, q: Array, args: Any) -> Slip:
        """At (t, q), with the responses of a metric."""
        if problem.is_local:
            bodies: Any = problem.constraints
            m = problem.count(t, q, args)
            friction = problem.friction_coefficients(m, q.dtype, args)
            found = bodies.rubbed(metric, t, q, friction, args)
            return found._replace(static=problem.static_coefficients(m, q.dtype, args))
        slip = lambda v: problem.slip_velocity(t, q, v, args)
        none = jnp.zeros_like(q)
        drift = slip(none)
        jacobian = jax.jacfwd(slip)(none)
        friction = problem.friction_coefficients(len(drift), q.dtype, args)
        static = problem.static_coefficients(len(drift), q.dtype, args)
        return cls(jacobian, responses(metric, jacobian), drift, friction, drift, static)

    def of(self, v: Array) -> Array:
        """Slip velocities (m, k) at v."""
        return self.jacobian @ v + self.drift

    def terms(self, v: Array) -> Array:
        """|T| |v|, (m, k)."""
        return jnp.abs(self.jacobian) @ jnp.abs(v)

    def heading(self, direction: Array) -> Array:
        """T' u of directions of slip u (m, k), (m, d): what they are along other tangents in the next step."""
        return jnp.einsum("mkd,mk->md", self.jacobian, direction)

    def along(self, heading: Array) -> Array:
        """A heading (m, d) along the tangents, (m, k), of some length."""
        return jnp.einsum("mkd,md->mk", self.jacobian, heading)

    def jump(self, impulse: Array) -> Array:
        """Velocity jump M^-1 T' r of tangential impulses r (m, k), (d,)."""
        return jnp.tensordot(self.response, impulse, 2)

    def under(self, metric: Any) -> Slip:
        """With the responses of another metric."""
        return self._replace(response=responses(metric, self.jacobian))

    def still(self) -> FrictionInfo:
        """No friction at all."""
        return still(self)

    def rows(self, jacobian: Array) -> Array:
        """Rows (m (1 + k), d) of all contacts, each with its gap's gradient (m, d) first."""
        m, k, d = self.jacobian.shape
        return jnp.concatenate([jacobian[:, None], self.jacobian], axis=1).reshape(m * (1 + k), d)

    def responses(self, response: Array) -> Array:
        """Velocities (d, m (1 + k)) that unit impulses along `rows` give, from those of normal ones (d, m)."""
        d, m, k = self.response.shape
        return jnp.concatenate([response[:, :, None], self.response], axis=2).reshape(d, m * (1 + k))


def still(slip: Any) -> FrictionInfo:
    """What contacts with tangential rows ``slip`` do in a step without impulses."""
    (m, k), dtype = slip.drift.shape, slip.drift.dtype
    none = FrictionInfo.none(m, k, dtype)
    if slip.static is None:
        return none
    return none._replace(breaks=jnp.zeros(m, bool), heading=slip.heading(none.direction))


def responses(metric: Any, jacobian: Array) -> Array:
    """M^-1 T' (d, m, k)."""
    m, k, d = jacobian.shape
    return metric.solve(jacobian.reshape(m * k, d).T).reshape(d, m, k)


def impulses_of(found: Any) -> Array:
    """Impulses (m,) of a step, or those along all rows (m, 1 + k) where contacts rub."""
    if found.friction is None:
        return found.impulse
    return jnp.concatenate([found.impulse[:, None], found.friction.impulse], axis=1)
