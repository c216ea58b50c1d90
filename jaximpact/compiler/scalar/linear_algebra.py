"""Rules for decompositions of small matrices and triangular solves, unrolled to scalar operations.

In all signatures ``m`` is the interpreter (`ScalarInterpreter`); calls of it apply elementwise primitives. A pack is a
vector of entries of an array that one instruction computes side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...jaxtools.jaxpr_types import Equation, Params
from ...jaxtools.semidefinite import nil
from .reductions import sum_entries
from .values import Scalar, Value, object_array, scalar_array

if TYPE_CHECKING:
    from .interpreter import ScalarInterpreter


def batch_rule(rule: Callable) -> Callable:
    """Returns a rule for matrices with leading batch axes, which applies a rule for one matrix to each of them."""

    def batched_rule(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
        lead = eqn.invars[0].aval.shape[:-2]
        if not lead:
            return rule(m, eqn, inputs)
        found = [rule(m, eqn, [x[where] for x in inputs]) for where in np.ndindex(lead)]
        stacks = [np.stack(x) for x in zip(*found, strict=True)]
        return [x.reshape(lead + x.shape[1:]) for x in stacks]

    return batched_rule


def _subtract_products(
    m: ScalarInterpreter, x: Scalar, products: Sequence[tuple[Scalar, Scalar]], dtype: np.dtype
) -> Scalar:
    """Returns x minus the sum of y z over the pairs (y, z) in ``products``."""
    return m("sub", x, sum_entries(m, [m("mul", y, z) for y, z in products], dtype))


def _cholesky(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    (a,) = inputs
    n, dtype = len(a), eqn.outvars[0].aval.dtype
    if 2 * n > m.emitter.pack > 1:
        return [_cholesky_side_by_side(m, a, dtype)]
    failed: Scalar = np.bool_(False)
    low = object_array(a.shape, [dtype.type(0)] * a.size)
    for i in range(n):
        for j in range(i + 1):
            rest = _subtract_products(m, a[i, j], [(low[i, k], low[j, k]) for k in range(j)], dtype)
            low[i, j] = m("sqrt", rest) if i == j else m("div", rest, low[j, j])
            failed = m("or", failed, m("le", rest, dtype.type(0))) if i == j else failed
    # as jax does: all entries are NaN if a pivot is not positive
    return [m.elementwise("select_n", scalar_array(failed), low, scalar_array(dtype.type(np.nan)))]


def _aligned(m: ScalarInterpreter, i: int) -> int:
    """Returns the index of the first entry of the pack that contains entry i of a row."""
    return i - i % m.emitter.pack


def _cholesky_side_by_side(m: ScalarInterpreter, a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the Cholesky factor, computed by packs along the rows of its transpose."""
    n: int = len(a)
    failed: Scalar = np.bool_(False)
    rows = [a[:, k].copy() for k in range(n)]
    for k, row in enumerate(rows):
        failed, first = m("or", failed, m("le", row[k], dtype.type(0))), _aligned(m, k)
        row[first:] = m.elementwise("div", row[first:], scalar_array(m("sqrt", row[k])))
        for j in range(k + 1, n):
            start = _aligned(m, j)
            product = m.elementwise("mul", scalar_array(row[j]), row[start:])
            rows[j][start:] = m.elementwise("sub", rows[j][start:], product)
    which, nan = scalar_array(failed), scalar_array(dtype.type(np.nan))
    low = object_array(a.shape, [m("select_n", failed, dtype.type(0), dtype.type(np.nan))] * a.size)
    for k, row in enumerate(rows):
        low[k:, k] = m.elementwise("select_n", which, row[_aligned(m, k) :], nan)[k - _aligned(m, k) :]
    return low


def _triangular_solve_side_by_side(
    m: ScalarInterpreter, a: np.ndarray, b: np.ndarray, lower: bool, unit: bool
) -> np.ndarray:
    """Returns the solution x (n, k) of a x = b for triangular a, computed by packs along the k right sides, or along
    the equations if k is small.

    ``unit``: whether the diagonal of a is 1.
    """
    (n, k), x = b.shape, b.copy()
    order = range(n) if lower else reversed(range(n))
    divided = lambda i, y: y if unit else m.elementwise("div", y, scalar_array(a[i, i]))
    if 2 * k > m.emitter.pack:
        for i in order:
            for j in range(i) if lower else range(i + 1, n):
                x[i] = m.elementwise("sub", x[i], m.elementwise("mul", scalar_array(a[i, j]), x[j]))
            x[i] = divided(i, x[i])
        return x
    found = np.empty(b.shape, object)
    for i in order:
        found[i] = divided(i, x[i])
        rest = slice(_aligned(m, i + 1), n) if lower else slice(0, min(n, _aligned(m, i + m.emitter.pack - 1)))
        for c in range(k if (i + 1 < n if lower else i) else 0):
            product = m.elementwise("mul", a[rest, i], scalar_array(found[i, c]))
            x[rest, c] = m.elementwise("sub", x[rest, c], product)
    return found


def _triangular_solve(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    a, b = inputs
    p, dtype = eqn.params, eqn.outvars[0].aval.dtype
    lower = p["lower"] != p["transpose_a"]
    a = a.T if p["transpose_a"] else a
    if not p["left_side"]:
        a, b, lower = a.T, b.T, not lower
    n, x = len(a), b.copy()
    if 2 * n > m.emitter.pack > 1:
        x = _triangular_solve_side_by_side(m, a, b, lower, p["unit_diagonal"])
        return [x if p["left_side"] else x.T]
    for i in range(n) if lower else reversed(range(n)):
        others = range(i) if lower else range(i + 1, n)
        for j in range(b.shape[1]):
            rest = _subtract_products(m, b[i, j], [(a[i, k], x[k, j]) for k in others], dtype)
            x[i, j] = rest if p["unit_diagonal"] else m("div", rest, a[i, i])
    return [x if p["left_side"] else x.T]


def _lu(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    """Rule for LU with partial pivoting; rows are exchanged by selections,
    since the row of the pivot is not known at compile time."""
    a, dtype = inputs[0].copy(), eqn.outvars[0].aval.dtype
    n = len(a)
    permutation, pivots = [np.int32(i) for i in range(n)], list[Scalar]()
    where: Scalar
    order = object_array((n,), permutation)
    for k in range(min(a.shape)):
        best, where = m("abs", a[k, k]), np.int32(k)
        for i in range(k + 1, n):
            size = m("abs", a[i, k])
            larger = m("gt", size, best)
            best, where = m("select_n", larger, best, size), m("select_n", larger, where, np.int32(i))
        pivots.append(where)
        for i in range(k + 1, n):
            swap = scalar_array(m("eq", where, np.int32(i)))
            for x in (a, order[:, None]):
                top, bottom = x[k].copy(), x[i].copy()
                x[k], x[i] = m.elementwise("select_n", swap, top, bottom), m.elementwise("select_n", swap, bottom, top)
        # in a column of zeros the divisor is 1, and the multipliers are 0
        pivot = m("select_n", m("eq", a[k, k], dtype.type(0)), a[k, k], dtype.type(1)) if k + 1 < n else dtype.type(1)
        for i in range(k + 1, n):
            a[i, k] = m("div", a[i, k], pivot)
            a[i, k + 1 :] = m.elementwise(
                "sub", a[i, k + 1 :], m.elementwise("mul", scalar_array(a[i, k]), a[k, k + 1 :])
            )
    return [a, object_array((len(pivots),), pivots), order]


def _semidefinite_inverse(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    """Rule for the primitive of `jaxtools.semidefinite`, inverse and pivots,
    computed on half of the symmetric matrix."""
    (a,), dtype, cut = inputs, eqn.outvars[0].aval.dtype, eqn.params["cut"]
    n, zero, one = len(a), dtype.type(0), dtype.type(1)
    low, pivots = a.copy(), object_array((n,), [zero] * n)
    least = m("mul", dtype.type(nil(dtype)), reduce(partial(m, "max"), (a[k, k] for k in range(n))))
    for k in range(n):
        pivot = low[k, k]
        kept = m("gt", pivot, m("max", m("mul", dtype.type(cut), a[k, k]), least))
        pivots[k] = m("select_n", kept, zero, pivot)
        factor = m("select_n", kept, zero, m("div", one, m("select_n", kept, one, pivot)))
        column = [low[max(i, k), min(i, k)] for i in range(n)]
        scaled = [m("mul", factor, x) for x in column]
        for i in range(n):
            for j in range(i + 1):
                rest = m("sub", low[i, j], m("mul", scaled[i], column[j]))
                low[i, j] = m("neg", factor) if i == j == k else scaled[j] if i == k else scaled[i] if j == k else rest
    inverse = object_array((n, n), (m("neg", low[max(i, j), min(i, j)]) for i, j in np.ndindex(n, n)))
    return [inverse, pivots]


def rule_from_jax(function: Callable[[Params], Callable]) -> Callable:
    """Returns a rule that traces the jax function ``function(params)`` on the operands' avals,
    and interprets its jaxpr."""

    def rule(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
        flat = lambda *x: jax.tree.leaves(function(eqn.params)(*x))
        return m.run(jax.make_jaxpr(flat)(*(v.aval for v in eqn.invars)), inputs)

    return rule


SWEEPS = 12  # of Jacobi's method, which converges quadratically: 6 to 8 sufficed


def _eigh(p: Params) -> Callable:
    """Returns a jax function of a symmetric matrix that computes (eigenvectors, eigenvalues) by
    Jacobi's method with cyclic sweeps.

    Reference: Golub and Van Loan, Matrix Computations (2013), 8.5. ``p``: parameters of the primitive eigh.
    """

    def rotate(a: Array, v: Array, i: int, j: int) -> tuple[Array, Array]:
        """Makes a[i, j] zero by a Jacobi rotation; returns the rotated matrix a and eigenvectors v."""
        off, difference = a[i, j], a[j, j] - a[i, i]
        nonzero = jnp.abs(off) > 0
        theta = difference / (2 * jnp.where(nonzero, off, 1))
        t = jnp.where(theta >= 0, 1.0, -1.0) / (jnp.abs(theta) + jnp.sqrt(1 + theta * theta))
        t = jnp.where(nonzero, t, 0)
        c = 1 / jnp.sqrt(1 + t * t)
        s = t * c
        columns = lambda x: x.at[:, i].set(c * x[:, i] - s * x[:, j]).at[:, j].set(s * x[:, i] + c * x[:, j])
        return columns(columns(a).T).T, columns(v)

    def decompose(a: Array) -> tuple[Array, Array]:
        n = len(a)
        lower = jnp.tril(a) if p["lower"] else jnp.triu(a).T
        a = lower + jnp.tril(lower, -1).T

        def sweep(_: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            for i in range(n):
                for j in range(i + 1, n):
                    now = rotate(*now, i, j)
            return now

        a, v = lax.fori_loop(0, SWEEPS, sweep, (a, jnp.eye(n, dtype=a.dtype)))
        values = jnp.diagonal(a)
        order = jnp.argsort(values)
        return v[:, order], values[order]

    return decompose


def _permutation(p: Params) -> Callable:
    """Returns a jax function of the pivots (..., k) of an LU decomposition that makes the
    permutation (..., n) of its rows."""

    def exchange(pivots: Array) -> Array:
        swap = lambda i, now: now.at[i].set(now[pivots[i]]).at[pivots[i]].set(now[i])
        return lax.fori_loop(0, len(pivots), swap, jnp.arange(p["permutation_size"], dtype=pivots.dtype))

    return jnp.vectorize(exchange, signature="(k)->(n)")


RULES: dict[str, Callable] = {
    "cholesky": batch_rule(_cholesky),
    "triangular_solve": batch_rule(_triangular_solve),
    "lu": batch_rule(_lu),
    "lu_pivots_to_permutation": rule_from_jax(_permutation),
    "eigh": batch_rule(rule_from_jax(_eigh)),
    "semidefinite_inverse": batch_rule(_semidefinite_inverse),
    "sparse_semidefinite_inverse": batch_rule(_semidefinite_inverse),
}
