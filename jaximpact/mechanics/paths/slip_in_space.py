"""Forces of contacts that slip in space, implicit in the direction of slip, which turns the faster the slower the slip is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools import linalg
from ..contact.friction.cones import ConeProblem, direction, frozen

TURNS = 5  # Newton iterations


def turning_forces(cones: ConeProblem, start: Array, modes: Array, turning: Array, towards: Array) -> Array:
    """Solves w = A x + b for the forces x (m, 3) of contacts in known ``modes`` (m,), with A and b of ``cones``.

    Contacts that are ``turning`` (m, 1) bool slip in the direction of their own tangential w, others that slip in the fixed directions ``towards``
    (m, 2). For a turning contact Newton's method has three unknowns: the normal force, the angle from ``towards`` to the direction of slip, and the
    speed of slip; it starts from the forces ``start`` (m, 3) and the directions ``towards``, and is regular however slow the
    slip. The result has two derivatives.
    """
    scale, mu = lax.stop_gradient(cones.scales())[:, None], cones.friction[:, None]
    fixed = lax.stop_gradient(towards)
    across = jnp.stack([-fixed[:, 1], fixed[:, 0]], axis=1)
    # the angle as a velocity, so that all unknowns are
    unit = lax.stop_gradient(jnp.where(start[:, :1] > 0, scale * start[:, :1], 1))

    def parts(z: Array) -> tuple[Array, Array]:
        """Returns the forces times ``scale`` (m, 3) and, of turning contacts, the slip velocities (m, 2) for the unknowns z (m, 3).

        Of a turning contact z is (normal force times ``scale``, angle from ``towards`` times ``unit``, speed of slip); of others it is the three
        forces times ``scale``.
        """
        way = direction(fixed + (z[:, 1:2] / unit) * across)
        slides = jnp.concatenate([z[:, :1], -mu * z[:, :1] * way], axis=1)
        return jnp.where(turning, slides, z), way * z[:, 2:]

    def equations(cones: ConeProblem, z: Array, towards: Array) -> Array:
        y, slip = parts(z)
        w = cones.velocity(y / scale)
        turns = jnp.concatenate([w[:, :1], w[:, 1:] - slip], axis=1)
        return jnp.where(turning, turns, frozen(w, y, cones.friction, modes, towards))

    def inverse(z: Array) -> Array:
        constant = lax.stop_gradient(cones)
        matrix = jax.jacfwd(lambda x: equations(constant, x.reshape(z.shape), fixed).ravel())(z.ravel())
        return linalg.inverse(matrix + 64 * jnp.finfo(z.dtype).eps * jnp.eye(z.size, dtype=z.dtype))

    def improve(_: int, z: Array) -> Array:
        left = equations(lax.stop_gradient(cones), z, fixed)
        return z - (inverse(z) @ left.ravel()).reshape(z.shape)

    y = scale * lax.stop_gradient(start)
    speed = jnp.sum(fixed * lax.stop_gradient(cones).velocity(y / scale)[:, 1:], axis=1, keepdims=True)
    z = jnp.where(turning, jnp.concatenate([y[:, :1], jnp.zeros_like(y[:, :1]), speed], axis=1), y)
    z = lax.stop_gradient(lax.fori_loop(0, TURNS, improve, z))
    found = lax.stop_gradient(inverse(z))
    for _ in range(2):
        z = z - (found @ equations(cones, z, towards).ravel()).reshape(z.shape)
    return parts(z)[0] / scale
