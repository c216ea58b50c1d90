"""Linear systems in the rows of a mask: the solution and its derivatives, by as few rows as there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaximpact.compiler import vectorised
from jaximpact.jaxtools import linalg
from jaximpact.jaxtools.semidefinite import invert_semidefinite
from support.breadth import slow

N, D = 100, 80


# compiled once for all masks
@jax.jit
def forward(at, change, active):
    return jax.jvp(lambda *x: linalg.solve_among(*x, active), at, change)


@jax.jit
def backward(at, weight, active):
    return jax.grad(lambda *x: weight @ linalg.solve_among(*x, active), (0, 1, 2))(*at)


@jax.jit
def masked(at, active):
    return linalg.solve_masked(at[0] @ at[1], at[2], active)


# of the active rows: a handful, several, and more than are solved by themselves
@pytest.mark.parametrize("count", [slow(0), slow(3), slow(20), slow(70)])
def test_active_rows_of_many(count):
    rng = np.random.default_rng(count)
    rows, columns, b = rng.normal(size=(N, D)), rng.normal(size=(D, N)), rng.normal(size=N)
    columns = 0.1 * columns / np.sqrt(D) + rows.T  # not quite symmetric
    active = np.isin(np.arange(N), rng.permutation(N)[:count])

    @jax.jit
    def dense(rows, columns, b):
        part = (rows @ columns)[np.ix_(active, active)]
        return jnp.zeros(N).at[np.flatnonzero(active)].set(jnp.linalg.solve(part, b[active]))

    at = tuple(jnp.asarray(x) for x in (rows, columns, b))
    change = tuple(jnp.asarray(rng.normal(size=x.shape)) for x in at)
    weight = jnp.asarray(rng.normal(size=N))
    # 64 roundings of the diagonal times a condition of a few thousand
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-8 * (1 + np.max(np.abs(y))))
    by_change = jax.jit(lambda at, change: jax.jvp(dense, at, change))(at, change)
    for found, expected in zip(forward(at, change, active), by_change, strict=True):
        close(found, expected)
    by_dense = jax.jit(jax.grad(lambda *x: weight @ dense(*x), (0, 1, 2)))(*at)
    for found, expected in zip(backward(at, weight, active), by_dense, strict=True):
        close(found, expected)
    close(masked(at, active), dense(*at))


def test_float32_is_as_near_as_rounding_allows():
    """Matrices of condition ten, whose raised diagonals would change solutions by 1e-5."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    rows = (turn * np.geomspace(1, 10**-0.5, 20)).astype(np.float32)
    b, every = rng.normal(size=20).astype(np.float32), np.ones(20, bool)
    matrix = rows @ rows.T
    exact = np.linalg.solve(matrix.astype(float), b)

    @jax.jit
    def both(rows, matrix, b):
        return linalg.solve_masked(matrix, b, every), linalg.semidefinite_solver(rows, rows.T, matrix, every)(b)

    for found in map(np.asarray, both(rows, matrix, b)):
        assert found.dtype == np.float32
        assert np.max(np.abs(found - exact)) < 2e-6 * np.max(np.abs(exact))


# by the inverse, and by Cholesky factors; with a row too many, which depends on others, by LU factors
@pytest.mark.parametrize(("n", "extra"), [(8, 0), (20, 1), slow(8, 1), slow(20, 0)])
def test_symmetric_matrix_of_active_rows(n, extra):
    rng = np.random.default_rng(n)
    rows = rng.normal(size=(n, n - 3))
    active = np.isin(np.arange(n), rng.permutation(n)[: n - 3 + extra])
    at = jnp.asarray(rows), jnp.asarray(rng.normal(size=n - 3))
    change = jnp.asarray(0 * rows if extra else rng.normal(size=rows.shape)), jnp.asarray(rng.normal(size=n - 3))

    def pushed(rows, v):
        """Returns the part of v (d,) along the active rows."""
        solver = linalg.semidefinite_solver(rows, rows.T, rows @ rows.T, jnp.asarray(active))
        return rows.T @ solver(rows @ v)

    def projected(rows, v):
        return rows[active].T @ jnp.linalg.solve(rows[active] @ rows[active].T, rows[active] @ v)

    forward = jax.jit(lambda at, change: jax.jvp(pushed, at, change))
    backward = jax.jit(lambda at, w: jax.grad(lambda *x: w @ pushed(*x), (0, 1))(*at))
    # where active rows span all of space, v itself
    by = projected if not extra else lambda rows, v: v
    value, slope = jax.jvp(by, at, change)
    # 64 roundings of the diagonal times a condition of a few thousand
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-8 * (1 + np.max(np.abs(y))))
    for found, right in zip(forward(at, change), (value, slope), strict=True):
        close(found, right)
    weight = jnp.asarray(rng.normal(size=n - 3))
    pull = backward(at, weight)
    close(sum(jnp.sum(x * y) for x, y in zip(pull, change, strict=True)), weight @ slope)


def test_rows_of_round_off_count_as_dependent():
    """Beside the largest row: few rows by XLA and in native code, more by a loop."""
    sizes, inverse = np.array([1.0, 1e-31, 1e-20, 4.0]), np.array([1.0, 0.0, 1e20, 0.25])
    invert = lambda a: invert_semidefinite(a, 1e-8)
    for found in (invert(np.diag(sizes)), [x[0] for x in vectorised(invert)(np.diag(sizes)[None])]):
        np.testing.assert_array_equal(found[0], np.diag(inverse))
        np.testing.assert_array_equal(found[1], sizes * (inverse > 0))
    many, _ = invert(np.diag(np.tile(sizes, 4)))
    np.testing.assert_array_equal(many, np.diag(np.tile(inverse, 4)))
