"""Restitution for simulators that have a linear spring and damper in its place."""

import math


def damping_ratio(e):
    """Of a spring and damper that lets go where its force vanishes: Schwager & Poeschel, Granular Matter 9 (2007), eq.
    (21)."""

    def loss(z):
        root = math.sqrt(1 - z * z)
        return z / root * (math.pi - math.atan2(2 * z * root, 1 - 2 * z * z)) + math.log(e)

    low, high = 0.0, 1.0 - 1e-12
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if loss(middle) < 0 else (low, middle)
    return 0.5 * (low + high)


def differentiable_damping_ratio(e):
    """The same for a traced e: a few steps of Newton on -log e."""
    import jax
    import jax.numpy as jnp

    def loss(z):
        root = jnp.sqrt(1 - z**2)
        return z / root * (jnp.pi - jnp.arctan2(2 * z * root, 1 - 2 * z**2))

    z = -jnp.log(e) / jnp.pi
    for _ in range(8):
        z = z - (loss(z) + jnp.log(e)) / jax.grad(loss)(z)
    return z
