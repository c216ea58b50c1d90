"""Quaternions among the coordinates, of which force, mass and gaps see p/|p| only: their lengths say nothing, and p
and -p are one orientation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
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
