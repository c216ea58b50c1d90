"""The one derivative that all contact solvers share: that of the solution, whatever iteration found it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from .. import linalg
from ..derivatives import implicit_root
from .law import Reaction


def reaction(residual: Callable, solve: Callable, d: int, m: int, dtype: Any) -> Reaction:
    """A root (jump, impulse) of ``residual``, found by ``solve()`` with (residual, iterations, status) beside it.

    Forward and reverse mode follow from the implicit function theorem at the solution with the active set frozen.
    Dependent active gradients are regularised by round-off: the jump's derivative is then still right, the split between
    impulses is the one of least weighted norm.
    """

    def found(_: Any, guess: Any) -> tuple:
        root, aux = solve()
        # carried as real numbers
        return root, tuple(x.astype(dtype) for x in aux)

    guess = (jnp.zeros(d, dtype), jnp.zeros(m, dtype))
    (jump, impulse), aux = implicit_root(residual, guess, found, _tangent)
    error, iterations, status = lax.stop_gradient(aux)
    return Reaction(jump, impulse, impulse > 0, error, iterations.astype(jnp.int32), status.astype(jnp.int32))


def _tangent(linear: Callable, y: tuple[Array, Array]) -> tuple[Array, Array]:
    """x = (jump, impulse) with ``linear(x) = y``, by block elimination, with everything that multiplies y kept free of it
    (it is transposed in reverse mode)."""
    flat, unravel = ravel_pytree(y)
    d = y[0].size
    matrix = jax.jacfwd(lambda x: ravel_pytree(linear(unravel(x)))[0])(jnp.zeros_like(flat))
    primal = linalg.inverse(matrix[:d, :d])
    coupling = primal @ matrix[:d, d:]
    schur = matrix[d:, d:] - matrix[d:, :d] @ coupling
    dual = linalg.inverse(schur + jnp.diag(64 * jnp.finfo(flat.dtype).eps * jnp.diag(schur)))
    upper = primal @ flat[:d]
    lower = dual @ (flat[d:] - matrix[d:, :d] @ upper)
    return unravel(jnp.concatenate([upper - coupling @ lower, lower]))
