"""Value and Jacobian of a function in one pass, and tangents of pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

T = TypeVar("T")

SMALL = 8  # inputs up to which tangents are pushed through all at once


def value_and_jacobian(function: Callable[[Array], Array], x: Array, rows: int) -> tuple[Array, Array]:
    """Returns the value (m,) and the Jacobian (m, d) of a function with m = ``rows`` outputs at x (d,)."""
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


def generic_change(tree: T) -> T:
    """Returns tangents of a pytree in an arbitrary direction, which has no zero and no equal entries.

    It serves to test dependence: if the derivative of a function of the pytree in this direction is zero, then, except
    by coincidence, so are its derivatives by all real numbers of the pytree.
    """
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [_tangent(x, jnp.cos, 1.3 + k) for k, x in enumerate(leaves)])


def no_change(tree: T) -> T:
    """Returns tangents of a pytree that are all zero."""
    return jax.tree.map(lambda x: _tangent(x, jnp.zeros_like, 0.0), tree)


def _tangent(x: ArrayLike, entries: Callable[[Array], Array], start: float) -> Array | np.ndarray:
    """Returns a tangent of a leaf x, whose entries are the function ``entries`` of the numbers start, start + 1, ...

    For a leaf that is not floating, returns zeros of type float0, as jax requires.
    """
    if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        return np.zeros(jnp.shape(x), jax.dtypes.float0)
    x = jnp.asarray(x)
    return entries(start + jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
