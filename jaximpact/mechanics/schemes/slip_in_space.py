"""Forces of contacts that slip in space, where the direction of slip turns: implicit in it, as the slower the slip the faster it turns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools import linalg
from ..contact.cones import ConeProblem, direction, frozen

TURNS = 5  # Newton iterations


def turning_forces(cones: ConeProblem, start: Array, modes: Array, turning: Array, towards: Array) -> Array:
    """Forces (m, 3) of contacts in known modes, w = A x + b: those that are ``turning`` (m, 1) slip as their velocity w does, others ``towards`` (m, 2).

    Newton's method for the normal force, the angle and the speed of slip, from forces and directions near them: regular however slow the slip. With two
    derivatives.
    """
    scale, mu = lax.stop_gradient(cones.scales())[:, None], cones.friction[:, None]
    fixed = lax.stop_gradient(towards)
    across = jnp.stack([-fixed[:, 1], fixed[:, 0]], axis=1)
    # the angle as a velocity, so that all unknowns are
    unit = lax.stop_gradient(jnp.where(start[:, :1] > 0, scale * start[:, :1], 1))

    def parts(z: Array) -> tuple[Array, Array]:
        """Impulses (m, 3), times their scales, and slips (m, 2) of the turning ones."""
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
