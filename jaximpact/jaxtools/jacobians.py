"""Value and Jacobian of a function in one pass."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

SMALL = 8  # inputs up to which tangents are pushed through all at once


def value_and_jacobian(function: Callable[[Array], Array], x: Array, rows: int) -> tuple[Array, Array]:
    """Value (m,) and Jacobian (m, d) of a function with m = ``rows`` outputs at x (d,)."""
    d = x.shape[0]
    if rows < d or d <= SMALL:
        both = lambda x: (function(x),) * 2
        try:
            matrix, value = (jax.jacrev if 2 * rows < d else jax.jacfwd)(both, has_aux=True)(x)
        except ValueError:
            # a while_loop has a derivative in forward mode only
            matrix, value = jax.jacfwd(both, has_aux=True)(x)
        return value, matrix
    # one tangent after the other: a batch of them gathers and sorts by index, many times slower
    value, tangent = jax.linearize(function, x)
    return value, lax.map(tangent, jnp.eye(d, dtype=x.dtype)).T
