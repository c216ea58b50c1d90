"""Inverse of a symmetric positive semidefinite matrix in its independent rows; rows that depend linearly on earlier
ones are left out, as zeros.

The inverse is one primitive, so that a program with many of them is short to trace and to differentiate: with
substitutions written out, a step of a four-bar linkage with its derivative (8 rows) had twice the equations.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.typing import DTypeLike

from .array_types import B_n, F_n, F_nn

# unknowns; twelve rows take a fifth of the instructions of a loop over rows (native code of a four-bar linkage, 8 rows)
MAX_UNROLLED = 12


def invert_semidefinite(a: F_nn, cut: float, sparse: bool = False) -> tuple[F_nn, F_n]:
    """Inverts a symmetric positive semidefinite matrix (n, n) in the rows that do not depend on earlier ones.

    Returns the inverse (n, n) and the pivots (n,), which are 0 in dependent rows. A row counts as dependent if its
    pivot is at most ``cut`` times its diagonal entry, or `nil` times the largest one. The results have no derivatives;
    `linalg.solve_by_inverse` has them. ``sparse`` says that most entries of the matrices from which this one is made
    are zero: native code is better off with arrays as scalars then.
    """
    if a.shape[0] <= MAX_UNROLLED:
        inverse, pivots = (sparse_inverse_p if sparse else inverse_p).bind(a, cut=cut)
        return inverse, pivots
    limits, places = _limits(a, cut), jnp.arange(a.shape[0])
    take = lambda k, now: _sweep(now[0], now[1], places == k, now[0][:, k], limits)
    swept, pivots = lax.fori_loop(0, a.shape[0], take, (a, jnp.zeros_like(limits)))
    return -swept, pivots


def nil(dtype: DTypeLike) -> float:
    """Returns the fraction of the largest diagonal entry up to which an entry is a square of round-off."""
    return (16 * float(jnp.finfo(dtype).eps)) ** 2


def _limits(a: F_nn, cut: float) -> F_n:
    """Returns the pivots (n,) up to which a row counts as dependent."""
    diagonal = jnp.diagonal(a)
    return jnp.maximum(cut * diagonal, nil(a.dtype) * jnp.max(diagonal))


def _sweep(a: F_nn, pivots: F_n, here: B_n, column: F_n, limits: F_n) -> tuple[F_nn, F_n]:
    """Makes one step of Gauss-Jordan elimination on a symmetric matrix (Dempster's sweep operator); returns the new
    matrix and the new pivots.

    ``here`` (n,): mask of the row that is swept; ``column`` (n,): the same column of the matrix; ``limits`` (n,):
    pivots up to which a row counts as dependent. Reference: Goodnight, The American Statistician 33 (1979).
    """
    pick = lambda x: jnp.sum(jnp.where(here, x, 0))
    pivot = pick(column)
    kept = pivot > pick(limits)
    factor = jnp.where(kept, 1 / jnp.where(kept, pivot, 1), 0)
    column = jnp.where(here, -1, column)
    rest = jnp.where(here[:, None] | here[None, :], 0, a)
    return rest - (factor * column)[:, None] * column[None, :], jnp.where(here & kept, pivot, pivots)


def _inverse(a: Array, *, cut: float) -> list[Array]:
    n = a.shape[-1]
    if a.ndim > 2:
        return list(jax.vmap(lambda x: _inverse(x, cut=cut))(a))
    limits, places = _limits(a, cut), jnp.arange(n)
    pivots = jnp.zeros_like(limits)
    for k in range(n):
        a, pivots = _sweep(a, pivots, places == k, a[:, k], limits)
    return [-a, pivots]


def _primitive(name: str) -> Primitive:
    """Makes the primitive (n, n) -> inverse (n, n) of the rows that are kept, with 0 in the others, and pivots (n,), 0
    for the others; for leading axes too."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(jax.jit(_inverse, static_argnames="cut"))
    primitive.def_abstract_eval(lambda a, *, cut: [a, a.update(shape=a.shape[:-1])])

    def batched(operands: tuple, axes: tuple, **params: float) -> tuple[list[Array], list[int]]:
        return primitive.bind(jnp.moveaxis(operands[0], axes[0], 0), **params), [0, 0]

    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(_inverse, multiple_results=True))
    return primitive


inverse_p, sparse_inverse_p = _primitive("semidefinite_inverse"), _primitive("sparse_semidefinite_inverse")
