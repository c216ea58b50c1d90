"""A spring against a wall, and its motion through one impact in closed form."""

import jax.numpy as jnp
import numpy as np

import jaximpact as ji

SPRING = ji.Problem(
    lambda t, q, v, args: -(args["w"] ** 2) * q,
    lambda t, q, args: q - args["wall"],
    energy=lambda t, q, v, args: 0.5 * (v @ v + args["w"] ** 2 * q @ q),
)
ONCE = {"args": {"w": 2.0, "wall": 0.3}, "e": 0.8}  # from rest at 1: one impact, at MEETS
MEETS = np.arccos(0.3) / 2
TIMES = np.array([0.123, 0.3, MEETS - 1e-3, MEETS + 1e-3, 0.777, 1.0123])


def struck(x, t1):
    """State (2,) at t1, behind one impact, of x = (q, v, e, w, wall)."""
    q, v, e, w, wall = x
    # amplitude, phase and speed at the wall for the general start, then once more from the wall
    amplitude, phase = jnp.sqrt(q**2 + (v / w) ** 2), jnp.arctan2(v / w, q)
    left = t1 - (jnp.arccos(wall / amplitude) + phase) / w
    speed = e * w * jnp.sqrt(amplitude**2 - wall**2)
    c, s = jnp.cos(w * left), jnp.sin(w * left)
    return jnp.stack([wall * c + speed / w * s, speed * c - wall * w * s])


def once(t):
    """Position and velocity of `ONCE`."""
    left, before, speed = t - MEETS, t < MEETS, 0.8 * 2 * np.sqrt(1 - 0.3**2)
    q = np.where(before, np.cos(2 * t), 0.3 * np.cos(2 * left) + speed / 2 * np.sin(2 * left))
    return q, np.where(before, -2 * np.sin(2 * t), speed * np.cos(2 * left) - 0.6 * np.sin(2 * left))
