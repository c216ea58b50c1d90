"""Symmetric semidefinite matrices whose rows may depend on earlier ones: those are left out, and a solve gives them 0.

As in `linalg`, small matrices are straight-line arithmetic; here up to more unknowns, since a library's factorisation has no test of rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from .linalg import factorise_unrolled, solve_jvp, substitute

MAX_UNROLLED = 12  # unknowns; twelve rows take a fifth of the instructions of a loop over rows (native code of a four-bar linkage, 8 rows)


def factorise_semidefinite(a: Array, cut: float) -> Array:
    """L (n, n) of a = L D L' with 1/D in place of its unit diagonal; 0 there for rows that depend on earlier ones.

    Those are the rows whose pivot is at most the part ``cut`` of their diagonal entry.
    """
    if a.shape[0] > MAX_UNROLLED:
        return _factorise_by_loop(a, cut)
    return factorise_unrolled(a, lambda pivot, i: _reciprocal(pivot, cut * a[i, i]))


def _reciprocal(pivot: Array, least: Array) -> Array:
    kept = pivot > least
    return jnp.where(kept, 1 / jnp.where(kept, pivot, 1), 0)


def _factorise_by_loop(a: Array, cut: float) -> Array:
    n = a.shape[0]
    places = jnp.arange(n)

    def take(k: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, factor = now
        column = rest[:, k]
        inverse = _reciprocal(column[k], cut * a[k, k])
        below = jnp.where(places > k, column * inverse, 0)
        rest = rest - below[:, None] * column[None, :]
        return rest, factor.at[:, k].set(jnp.where(places == k, inverse, below))

    return lax.fori_loop(0, n, take, (a, jnp.zeros_like(a)))[1]


def kept_rows(factor: Array) -> Array:
    """Mask (n,) of the rows that ``factor = factorise_semidefinite(a, cut)`` has kept."""
    return jnp.diagonal(factor) > 0


def pivots(factor: Array) -> Array:
    """Pivots (n,) of a factor; 1 for rows that are left out."""
    diagonal = jnp.diagonal(factor)
    return 1 / jnp.where(diagonal > 0, diagonal, 1)


@jax.custom_jvp
def semidefinite_solve(a: Array, factor: Array, b: Array) -> Array:
    """The x with a x = b in the rows that are kept and x = 0 in the others, for b (n,) or (n, k), with ``factor = factorise_semidefinite(a, cut)``.

    The derivative is S (db - da x), S the inverse of the rows that are kept; ``factor`` is a constant in it.
    """
    n = factor.shape[0]
    if n <= MAX_UNROLLED:
        return substitute(factor, b)
    unit, inverse = jnp.tril(factor, -1) + jnp.eye(n, dtype=factor.dtype), jnp.diagonal(factor)
    kept = jnp.where(inverse > 0, 1, 0).astype(b.dtype)
    rows = lambda x: x.reshape(n, *[1] * (b.ndim - 1))
    y = solve_triangular(unit, rows(kept) * b, lower=True, unit_diagonal=True)
    return solve_triangular(unit, rows(inverse) * y, lower=True, trans=1, unit_diagonal=True)


@semidefinite_solve.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return solve_jvp(semidefinite_solve, MAX_UNROLLED, primals, tangents)
