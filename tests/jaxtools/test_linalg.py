"""Linear systems in the rows of a mask: the solution and its derivatives, by as few rows as there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaximpact.jaxtools import linalg


@pytest.mark.parametrize(
    "count", [0, 3, 20, 70]
)  # of the active rows: a handful, several, and more than are solved by themselves
def test_active_rows_of_many(count):
    rng = np.random.default_rng(count)
    n, d = 100, 80
    rows, columns, b = rng.normal(size=(n, d)), rng.normal(size=(d, n)), rng.normal(size=n)
    columns = 0.1 * columns / np.sqrt(d) + rows.T  # not quite symmetric
    active = np.isin(np.arange(n), rng.permutation(n)[:count])
    solve = lambda rows, columns, b: linalg.solve_among(rows, columns, b, active)

    def dense(rows, columns, b):
        part = (rows @ columns)[np.ix_(active, active)]
        return jnp.zeros(n).at[np.flatnonzero(active)].set(jnp.linalg.solve(part, b[active]))

    at, change = (
        jax.tree.map(jnp.asarray, (rows, columns, b)),
        (rng.normal(size=rows.shape), rng.normal(size=columns.shape), rng.normal(size=n)),
    )
    # 64 roundings of the diagonal times a condition of a few thousand
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-8 * (1 + np.max(np.abs(y))))
    for found, expected in zip(jax.jvp(solve, at, change), jax.jvp(dense, at, change), strict=True):
        close(found, expected)
    weight = rng.normal(size=n)
    of = lambda f: jax.grad(lambda *x: jnp.sum(weight * f(*x)), (0, 1, 2))(*at)
    for found, expected in zip(of(solve), of(dense), strict=True):
        close(found, expected)
    close(linalg.solve_masked(rows @ columns, b, active), dense(*at))
