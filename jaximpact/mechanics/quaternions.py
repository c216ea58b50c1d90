"""Quaternions among the coordinates, of which force, mass and gaps see p/|p| only: their lengths say nothing, and p
and -p are one orientation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def lengths(places: tuple[int, ...], q: Array) -> Array:
    """Returns the lengths (k,) of the quaternions that begin with the coordinates ``places`` of q (d,)."""
    return jnp.stack([jnp.linalg.norm(q[i : i + 4]) for i in places]) if places else q[:0]


def of_length_one(places: tuple[int, ...], q: Array, v: Array) -> tuple[Array, Array]:
    """Returns the state (q, v), both (d,), that moves as this one and whose quaternions have the length 1, at rest."""

    def scaled(q: Array) -> Array:
        for i in places:
            q = q.at[i : i + 4].divide(jnp.linalg.norm(q[i : i + 4]))
        return q

    return jax.jvp(scaled, (q,), (v,))


def signs(places: tuple[int, ...], q: Array, to: Array) -> Array:
    """Returns factors 1 or -1 (d,) by which the quaternions of ``to`` (d,), and their rates,
    are on the side of those of q (d,)."""
    found = jnp.ones_like(q)
    for i in places:
        found = found.at[i : i + 4].set(jnp.where(q[i : i + 4] @ to[i : i + 4] < 0, -1, 1))
    return found


def oriented(places: tuple[int, ...], q: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns q and v (..., c) in which the ten entries of p p'/|p|^2, and their rates, stand for each quaternion p,
    at the end: a distance between them does not see |p|, and p and -p are one."""
    others = np.setdiff1d(np.arange(q.shape[-1]), np.add.outer(places, np.arange(4)).ravel().astype(int))
    positions, velocities = [q[..., others]], [v[..., others]]
    rows, columns = np.triu_indices(4)
    for i in places:
        size = np.linalg.norm(q[..., i : i + 4], axis=-1, keepdims=True)
        p, rate = q[..., i : i + 4] / size, v[..., i : i + 4] / size
        rate = rate - np.sum(p * rate, axis=-1, keepdims=True) * p
        positions.append(p[..., rows] * p[..., columns])
        velocities.append(rate[..., rows] * p[..., columns] + p[..., rows] * rate[..., columns])
    return np.concatenate(positions, axis=-1), np.concatenate(velocities, axis=-1)
