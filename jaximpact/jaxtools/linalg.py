"""Dense linear algebra, unrolled to straight-line arithmetic for small matrices.

A LAPACK call in a time loop costs microseconds per motion on a CPU and cannot be fused with the operations around it.
Up to `MAX_UNROLLED` unknowns these functions are scalar arithmetic, elementwise over a batch;
larger sizes go to jax.numpy.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import cho_solve, solve_triangular

from .array_types import B_n, F_dn, F_n, F_nd, F_nn
from .outlined import outlined
from .semidefinite import MAX_UNROLLED as MAX_SWEPT

MAX_UNROLLED = 6  # unknowns
FEW, SEVERAL = 4, 48  # rows of a large matrix that are solved by themselves, a handful without pivots
MANY = 32  # rows from which on that is worth while
MOST = 2 * SEVERAL  # rows up to which a symmetric matrix is factorised whole

MAX_ITERATIONS = 100  # of `solve_near_identity`


def nonzero(x: Array) -> Array:
    """Returns x, with 1 in place of zeros."""
    return jnp.where(x == 0, 1, x)


@jax.jit
def factorise(a: F_nn) -> F_nn:
    """Returns the triangular factor (n, n) of a symmetric matrix, for `factored_solve`;
    it has NaN if the matrix is not positive definite.

    Up to `MAX_UNROLLED` unknowns this is L of a = L D L', with 1/D in place of its unit diagonal, so that solves need
    no division. For larger sizes it is the Cholesky factor.
    """
    n = a.shape[0]
    if n > MAX_UNROLLED:
        return jnp.linalg.cholesky(a)
    rows: list[list] = []
    for i in range(n):
        scaled: list = []  # L D
        for j in range(i):
            scaled.append(a[i, j] - sum(scaled[k] * rows[j][k] for k in range(j)))
        row = [x * rows[j][j] for j, x in enumerate(scaled)]
        pivot = a[i, i] - sum(x * y for x, y in zip(scaled, row, strict=True))
        rows.append([*row, 1 / jnp.where(pivot > 0, pivot, jnp.nan)])
    zero = jnp.zeros((), a.dtype)
    return jnp.stack([jnp.stack(row + [zero] * (n - len(row))) for row in rows])


def pivots_of(factor: F_nn) -> F_n:
    """Returns the pivots (n,) of a matrix, given its ``factor = factorise(a)``:
    small ones mean that rows depend on those before."""
    diagonal = jnp.diagonal(factor)
    return diagonal**2 if factor.shape[0] > MAX_UNROLLED else 1 / diagonal


def factored_solve(factor: F_nn, b: Array) -> Array:
    """Solves a x = b for b (n,) or (n, k), with ``factor = factorise(a)``."""
    return cho_solve((factor, True), b) if factor.shape[0] > MAX_UNROLLED else substitute(factor, b)


@jax.jit
def substitute(factor: F_nn, b: Array) -> Array:
    """Solves a x = b for b (n,) or (n, k), where a = L D L'; ``factor`` is L with 1/D in place of its unit diagonal."""
    n = factor.shape[0]
    y: list = []
    for i in range(n):
        y.append(b[i] - sum(factor[i, k] * y[k] for k in range(i)))
    x: list = [None] * n
    for i in reversed(range(n)):
        x[i] = y[i] * factor[i, i] - sum(factor[k, i] * x[k] for k in range(i + 1, n))
    return jnp.stack(x)


def triangular_factor(a: F_nn) -> F_nn:
    """Returns the Cholesky factor of a symmetric (n, n) matrix, read from its lower triangle; the result has arbitrary
    numbers above the diagonal."""
    return lax.linalg.cholesky_p.bind(a)


def diagonal(a: F_nn) -> F_n:
    """Returns the diagonal (n,) of an (n, n) matrix, by a strided slice, which reads only these entries."""
    n = a.shape[0]
    return lax.slice(a.reshape(-1), (0,), (n * n,), (n + 1,)) if n else jnp.zeros(0, a.dtype)


def on_diagonal(x: F_n, others: F_nn) -> F_nn:
    """Returns the (n, n) matrix ``others`` with its diagonal replaced by x (n,)."""
    rows, columns = (lax.broadcasted_iota(jnp.int32, others.shape, axis) for axis in (0, 1))
    return lax.select(lax.eq(rows, columns), lax.broadcast_in_dim(x, others.shape, (0,)), others)


def first_substitution(factor: F_nn, b: F_n) -> F_n:
    """Returns H b for b (n,), where H' H = a^-1, by the first of the two substitutions that solve a x = b;
    ``factor = factorise(a)``."""
    n = factor.shape[0]
    if n > MAX_UNROLLED:
        return solve_triangular(factor, b, lower=True)
    y: list = []
    for i in range(n):
        y.append(b[i] - sum(factor[i, k] * y[k] for k in range(i)))
    return jnp.stack([x * jnp.sqrt(factor[i, i]) for i, x in enumerate(y)])


@jax.custom_jvp
def spd_solve(a: F_nn, factor: F_nn, b: Array) -> Array:
    """Solves a x = b for a symmetric positive definite (n, n) matrix and b (n,) or (n, k), with
    ``factor = factorise(a)``.

    The derivative is dx = a^-1 (db - da x), not that of the factorisation; ``factor`` is a constant in it.
    """
    return factored_solve(factor, b)


@spd_solve.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    a, factor, b = primals
    da, _, db = tangents
    x = spd_solve(a, factor, b)
    change = db - da @ x
    if a.shape[0] > MAX_UNROLLED:
        return x, spd_solve(a, factor, change)
    # a^-1 as a matrix: reverse mode transposes a product, where it would transpose the substitutions entry by entry
    return x, spd_solve(a, factor, jnp.eye(a.shape[0], dtype=a.dtype)) @ change


@jax.custom_jvp
def solve_by_inverse(a: F_nn, inverse: F_nn, b: Array) -> Array:
    """Solves a x = b for b (n,) or (n, k), with a given ``inverse`` S (n, n) of a,
    or of its independent rows (`invert_semidefinite`).

    Entries of x in dependent rows are 0. The derivative is dx = S (db - da x), with S as a constant: it takes products
    with vectors only, while the derivative of S itself would take products of matrices.
    """
    return inverse @ b


@solve_by_inverse.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    a, inverse, b = primals
    da, _, db = tangents
    x = solve_by_inverse(a, inverse, b)
    return x, solve_by_inverse(a, inverse, db - da @ x)


def eliminate(a: list[list], b: list) -> tuple[list, Array | bool]:
    """Solves a x = b by Gaussian elimination without pivoting, for nested lists of scalars.

    Returns x, and whether every pivot is positive and above the round-off of its diagonal entry, which is true for a
    positive definite matrix and false if rows are linearly dependent. In the latter case x is meaningless, as rejected
    pivots are replaced by 1.
    """
    n = len(b)
    a, b = [list(row) for row in a], list(b)
    regular = True
    diagonal = [a[i][i] for i in range(n)]
    for k in range(n):
        eps = 64 * jnp.finfo(a[k][k].dtype).eps
        good = a[k][k] > eps * diagonal[k]
        regular = good if k == 0 else regular & good
        pivot = jnp.where(good, a[k][k], 1)
        a[k][k] = pivot
        for i in range(k + 1, n):
            ratio = a[i][k] / pivot
            for j in range(k + 1, n):
                a[i][j] = a[i][j] - ratio * a[k][j]
            b[i] = b[i] - ratio * b[k]
    x: list = [None] * n
    for i in reversed(range(n)):
        x[i] = (b[i] - sum(a[i][j] * x[j] for j in range(i + 1, n))) / a[i][i]
    return x, regular


@jax.custom_jvp
def solve_masked(a: F_nn, b: F_n, active: B_n) -> F_n:
    """Solves a x = b for b (n,) in the rows and columns of a positive semidefinite matrix a (n, n) that
    the mask ``active`` (n,) marks.

    In the other rows b is ignored and x is 0. In an active row that depends linearly on earlier ones,
    x is 0 up to round-off.
    """
    n = b.shape[0]
    a = jnp.where(active[:, None] & active[None, :], a, jnp.eye(n, dtype=a.dtype))
    b = jnp.where(active, b, 0)
    if n == 0:
        return b
    if n > MAX_UNROLLED:
        raised = a + jnp.diag(64 * jnp.finfo(a.dtype).eps * jnp.diagonal(a))
        return _refined(lambda b: _solve_rows(raised, b, active), lambda x: a @ x, b)
    return _solve_unrolled(a, b)


def _refined(solve: Callable[[F_n], F_n], product: Callable[[F_n], F_n], b: F_n) -> F_n:
    """Returns ``solve(b)`` for a matrix whose diagonal is raised by round-off; in float32 refined once by the
    ``product`` of the matrix as it is.

    The raised diagonal changes solutions always in the same sense, in float32 by a hundred times what rounding does:
    1e-5 of twelve contacts where the condition is ten.
    """
    x = solve(b)
    return x if float(jnp.finfo(b.dtype).eps) < 1e-10 else x + solve(b - product(x))


@jax.jit
def _solve_unrolled(a: F_nn, b: F_n) -> F_n:
    """Solves a x = b for b (n,) and a few unknowns, by `eliminate`."""
    n = b.shape[0]
    x, _ = eliminate([[a[i, j] for j in range(n)] for i in range(n)], [b[i] for i in range(n)])
    return jnp.stack(x)


@solve_masked.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    a, b, active = primals
    da, db, _ = tangents
    x = solve_masked(a, b, active)
    return x, solve_masked(a, db - da @ x, active)


def _solve_rows(a: F_nn, b: F_n, active: B_n) -> F_n:
    """Solves a x = b (n,) in the rows and columns of the mask ``active`` (n,),
    for a matrix a that is the identity in the others.

    In the other rows b is ignored and x is 0.
    """

    def part(rows: F_nd) -> Array:
        return a.at[rows[:, None], rows[None, :]].get(mode="fill", fill_value=0)

    return _in_active(part, lambda: jnp.where(active, solve(a, b), 0), b, active)


def _in_active(part: Callable[[Array], Array], whole: Callable[[], Array], b: F_n, active: B_n) -> F_n:
    """Solves a x = b (n,) in the rows and columns of the mask ``active`` (n,); x is 0 in the others. If few are active,
    only these are computed.

    ``part(rows)`` returns the square matrix of the rows and columns of a with the numbers ``rows``; for the number n,
    which pads them, it returns zeros. ``whole()`` returns x computed from all rows, and is called if many are active.
    """
    n = b.shape[0]

    def few(size: int) -> Array:
        marks, places = lax.top_k(lax.convert_element_type(active, jnp.float32), size)
        rows = jnp.where(marks > 0, places, n)
        matrix, given = jnp.where(jnp.diag(rows == n), 1, part(rows)), b.at[rows].get(mode="fill", fill_value=0)
        x = solve_masked(matrix, given, rows < n) if size <= MAX_UNROLLED else solve(matrix, given)
        return jnp.zeros_like(b).at[rows].add(x, mode="drop")

    # most contacts of many do not act: 184 of 16 disks take 1 ms by all rows
    def among(*sizes: int) -> Array:
        if not sizes:
            return whole()
        size, *larger = sizes
        return lax.cond(jnp.sum(active) <= size, lambda: few(size), lambda: among(*larger))

    return among(*(size for size in (FEW, SEVERAL) if n > max(MANY, 2 * size)))


@outlined
def _solve_among_many(rows: F_nd, columns: F_dn, b: F_n, active: B_n) -> F_n:
    b, small = jnp.where(active, b, 0), 64 * jnp.finfo(b.dtype).eps

    def part(chosen: Array) -> Array:
        left = rows.at[chosen].get(mode="fill", fill_value=0)
        product = left @ columns.T.at[chosen].get(mode="fill", fill_value=0).T
        return product + jnp.diag(small * jnp.diagonal(product))

    def solved(b: Array) -> Array:
        return _in_active(part, lambda: solve_masked(rows @ columns, b, active), b, active)

    return _refined(solved, lambda x: jnp.where(active, rows @ (columns @ x), 0), b)


@jax.custom_jvp
def solve_among(rows: F_nd, columns: F_dn, b: F_n, active: B_n) -> F_n:
    """Solves as `solve_masked` for the matrix ``rows @ columns``, (n, d) times (d, n); if few rows are ``active``,
    computes only their entries."""
    if b.shape[0] <= MANY:
        return solve_masked(rows @ columns, b, active)
    return _solve_among_many(rows, columns, b, active)


@solve_among.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    rows, columns, b, active = primals
    d_rows, d_columns, db, _ = tangents
    x = solve_among(rows, columns, b, active)
    return x, solve_among(rows, columns, db - d_rows @ (columns @ x) - rows @ (d_columns @ x), active)


def semidefinite_solver(rows: F_nd, columns: F_dn, matrix: F_nn, active: B_n) -> Callable[[F_n], F_n]:
    """Returns the function of b (n,) that solves as `solve_among`, for a symmetric
    ``matrix`` (n, n) = ``rows @ columns``.

    The matrix is factorised once, for all b and for derivatives, and without pivots:
    of 48 contacts of a pile a solution took 20 us.
    """
    matrix = lax.stop_gradient(matrix)
    factor = lax.stop_gradient(_semidefinite_factor(matrix, active))
    return lambda b: _solve_semidefinite(rows, columns, matrix, factor, b, active)


def _in_rows(a: F_nn, active: B_n) -> F_nn:
    """Returns the matrix a (n, n) in the rows and columns of the mask ``active`` (n,),
    and the identity in the others."""
    return jnp.where(active[:, None] & active[None, :], a, jnp.eye(len(a), dtype=a.dtype))


def _regularised(a: F_nn) -> F_nn:
    """Returns the matrix a (n, n) with its diagonal raised by round-off."""
    return on_diagonal((1 + 64 * jnp.finfo(a.dtype).eps) * diagonal(a), a)


@outlined
def _semidefinite_factor(a: F_nn, active: B_n) -> F_nn:
    """Returns the factor of a (n, n) that `_solve_semidefinite` needs,
    in the rows and columns of the mask ``active`` (n,).

    Of few rows it is L of a = L D L', with 1/D in place of its unit diagonal, and zeros in columns of rows that depend
    on earlier ones. Of many it is the Cholesky factor, which is NaN where round-off in dependent rows prevents it.
    """
    a, n = _in_rows(a, active), len(a)
    if n > MAX_SWEPT:
        return triangular_factor(_regularised(a))
    places, limits, columns = jnp.arange(n), 64 * jnp.finfo(a.dtype).eps * diagonal(a), []
    for k in range(n):
        kept = a[k, k] > limits[k]
        inverse = jnp.where(kept, 1 / jnp.where(kept, a[k, k], 1), 0)
        below = jnp.where(places > k, a[:, k], 0)
        column = inverse * below
        a = a - column[:, None] * below[None, :]
        columns.append(jnp.where(places == k, inverse, column))
    return jnp.stack(columns, axis=1)


@outlined
def _apply_semidefinite(a: F_nn, factor: F_nn, b: F_n, active: B_n) -> F_n:
    """Computes what `_solve_semidefinite` does."""
    b, n = jnp.where(active, b, 0), len(b)
    if n > MAX_SWEPT:
        a = _in_rows(a, active)
        by_pivots = lambda b: solve(_regularised(a), b)
        by_factor = lambda b: cho_solve((factor, True), b)
        return _refined(lambda b: lax.cond(factor[-1, -1] > 0, by_factor, by_pivots, b), lambda x: a @ x, b)
    places = jnp.arange(n)
    for k in range(n - 1):
        b = b - jnp.where(places > k, factor[:, k], 0) * b[k]
    b = diagonal(factor) * b
    for k in reversed(range(1, n)):
        b = b - jnp.where(places < k, factor[k], 0) * b[k]
    return b


@jax.custom_jvp
def _solve_semidefinite(rows: F_nd, columns: F_dn, a: F_nn, factor: F_nn, b: F_n, active: B_n) -> F_n:
    """Solves a x = b (n,) in the rows and columns of the mask ``active`` (n,), where a = ``rows @ columns``;
    x is 0 in the others.

    ``factor``: that of `_semidefinite_factor`. It and a are constants in the derivative.
    """
    return _apply_semidefinite(a, factor, b, active)


@_solve_semidefinite.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    rows, columns, a, factor, b, active = primals
    d_rows, d_columns, _, _, db, _ = tangents
    x = _solve_semidefinite(rows, columns, a, factor, b, active)
    change = db - d_rows @ (columns @ x) - rows @ (d_columns @ x)
    return x, _solve_semidefinite(rows, columns, a, factor, change, active)


def solve(a: F_nn, b: Array) -> Array:
    """Solves a x = b for a general (n, n) matrix and b (n,) or (n, k)."""
    return jnp.linalg.solve(a, b)


def inverse(a: F_nn) -> F_nn:
    """Inverse of a general (n, n) matrix."""
    return solve(a, jnp.eye(a.shape[0], dtype=a.dtype))


def inverse_without_pivoting(a: F_nn) -> F_nn:
    """Returns the inverse of an (n, n) matrix whose symmetric part is positive definite,
    by elimination without pivoting.

    It takes a fourth of the instructions of `inverse`. Rounding errors grow with the square of the ratio of the
    skew-symmetric to the symmetric part (Golub, Van Loan, Matrix Computations (2013), 4.2).
    The result is not finite if a pivot is zero.
    """
    n = a.shape[0]
    if n > MAX_SWEPT:
        return inverse(a)
    for k in range(n):
        here = np.arange(n) == k
        column, row = jnp.where(here, -1, a[:, k]), jnp.where(here, 1, a[k])
        rest = jnp.where(here[:, None] | here[None, :], 0, a)
        a = rest - ((1 / a[k, k]) * column)[:, None] * row[None, :]
    return a


def solve_matrix_free(product: Callable[[F_n], F_n], b: F_n) -> F_n:
    """Solves A x = b by conjugate gradients, given ``product(x) = A x`` of a symmetric positive semidefinite
    A (n, n) with b in its range.

    The derivative comes from implicit differentiation of the linear system.
    """
    tolerance = jnp.finfo(b.dtype).eps

    def solve(product: Callable, b: Array) -> Array:
        def body(carry: tuple) -> tuple:
            k, x, r, p, square = carry
            ap = product(p)
            curvature = p @ ap
            step = square / jnp.where(curvature > 0, curvature, jnp.inf)
            x, r = x + step * p, r - step * ap
            new = r @ r
            return k + 1, x, r, r + (new / square) * p, new

        def continues(carry: tuple) -> Array:
            # n iterations suffice in exact arithmetic; the others are for round-off
            return (carry[0] < 4 * b.shape[0]) & (carry[-1] > tolerance**2 * (b @ b))

        zero = jnp.zeros((), jnp.int32)
        return lax.while_loop(continues, body, (zero, jnp.zeros_like(b), b, b, b @ b))[1]

    return lax.custom_linear_solve(product, b, solve, symmetric=True)


def solve_near_identity(product: Callable[[F_n], F_n], b: F_n) -> F_n:
    """Solves P x = b by x <- x + b - P x, given ``product(x) = P x``, for P (n, n) near the identity; makes no
    iteration if P is the identity.

    The derivative comes from implicit differentiation of the linear system.
    """

    def solve(product: Callable, b: Array) -> Array:
        def body(carry: tuple) -> tuple:
            k, x, r = carry
            x = x + r
            return k + 1, x, b - product(x)

        def continues(carry: tuple) -> Array:
            k, _, r = carry
            return (k < MAX_ITERATIONS) & (jnp.max(jnp.abs(r)) > 4 * jnp.finfo(b.dtype).eps * jnp.max(jnp.abs(b)))

        return lax.while_loop(continues, body, (jnp.zeros((), jnp.int32), b, b - product(b)))[1]

    return lax.custom_linear_solve(product, b, solve, transpose_solve=solve)
