"""A function executed element by element gives its values, its derivatives and its batches, to round-off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaximpact.scalarise import SMALL, cosine, scalarise, sine


def matrix(a, b):
    return jnp.array([[2 + jnp.cos(a[0] - a[1]), 0.3, 0.1], [0.3, 1 + a[1] ** 2, a[2]], [0.1, a[2], 3.0]])


def indices(a, b):
    x = jnp.concatenate([a, b[:2], jnp.ones(2)]).reshape(7)
    return (
        x[::2],
        x[-1],
        x[1:4][::-1],
        jnp.stack([a, b], 1).T,
        x[jnp.array([0, 5, 2])],
        jnp.pad(a, 1),
        jnp.roll(a, 1),
        jnp.stack(list(a * b)),
    )


def updates(a, b):
    return a.at[0].set(b[1]).at[1:].add(b[1:]).at[jnp.array([0, 0])].add(1.0), jnp.zeros((3, 3)).at[1].set(a)


def reductions(a, b):
    m = jnp.outer(a, b)
    return (
        m.sum(0),
        m.max(1),
        m.min(),
        jnp.prod(a),
        jnp.argmin(m, 1),
        jnp.argmax(b),
        jnp.cumsum(a),
        m.mean(),
        jnp.ptp(a),
        jnp.sort(a),
    )


def products(a, b):
    m = matrix(a, b)
    return (
        m @ m.T,
        a @ m,
        jnp.einsum("ij,kj->ki", m, jnp.outer(a, b)),
        jnp.linalg.norm(b),
        jnp.cross(a, b),
        jnp.vdot(a, b),
    )


def algebra(a, b):
    m = matrix(a, b)
    low = jnp.linalg.cholesky(m @ m.T)
    return (
        jnp.linalg.solve(m, b),
        jnp.linalg.inv(m),
        jnp.linalg.det(m),
        low,
        jax.scipy.linalg.solve_triangular(low, b, lower=True),
    )


def branches(a, b):
    return (
        jnp.where(a > b, a, b),
        lax.cond(a[0] > 0, lambda x: 2 * x, lambda x: x - 1, a),
        jnp.clip(a, -0.1, 0.1),
        lax.select_n(jnp.int32(1), a, b),
        jnp.sign(a) * jnp.abs(b) ** 1.5,
        lax.switch(jnp.argmax(a), [lambda: a, lambda: b, lambda: a + b]),
    )


def loops(a, b):
    def body(carry, i):
        return carry + jnp.sin(carry) * i, carry[0]

    last, rows = lax.scan(body, a, jnp.arange(4.0))
    count = lax.fori_loop(0, 3, lambda i, x: x * b + i, a)
    return (
        last,
        rows,
        count,
        lax.scan(body, a, jnp.arange(3.0), reverse=True)[0],
        jax.checkpoint(lambda x: jnp.sin(x) @ b)(a),
    )


@jax.custom_jvp
def own(x, y):
    return jnp.sum(x * y)


@own.defjvp
def _(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    return own(x, y), 3 * jnp.sum(dx * y) + jnp.sum(x * dy)  # recognisably not the derivative


def custom(a, b):
    linear = lambda x: matrix(a, b) @ x
    root = lax.custom_root(
        lambda x: linear(x) - b,
        b,
        lambda f, x: jnp.linalg.solve(matrix(a, b), b),
        lambda g, y: jnp.linalg.solve(jax.jacfwd(g)(y), y),
    )
    return own(a, b), own(a, jnp.ones(3)), root, lax.stop_gradient(a) * b


def derivatives(a, b):
    energy = lambda x: 0.5 * b @ matrix(x, b) @ b
    return jax.grad(energy)(a), jax.hessian(energy)(a), jax.jvp(energy, (a,), (b,))[1], jax.jacrev(lambda x: x * b)(a)


def functions_of_one(a, b):
    return (
        jnp.tan(a),
        jnp.arctan2(a, b),
        jnp.exp(a),
        jnp.log1p(jnp.abs(b)),
        jnp.tanh(a),
        jnp.sqrt(1 + b * b),
        jnp.floor(a),
        a**3,
    )


CASES = [indices, updates, reductions, products, algebra, branches, loops, custom, derivatives, functions_of_one]
A, B = jnp.array([0.3, -0.7, 1.1]), jnp.array([1.0, 2.0, -0.4])


def close(found, expected, tolerance=1e-13):
    """Sums are added up in another order: a few rounding units of numbers of order one to ten."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def real(function):
    return lambda *x: [y for y in jax.tree.leaves(function(*x)) if jnp.issubdtype(y.dtype, jnp.floating)]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_values_batches_and_derivatives(function):
    names: list = []
    other = scalarise(function, names.append)
    close(other(A, B), function(A, B))
    assert names == []
    lanes = jnp.stack([A, -A, 2 * A[::-1]])
    both = lambda f: jax.jit(jax.vmap(f, (0, None)))(lanes, B)
    close(both(other), both(function))
    transforms = [lambda f: jax.jacfwd(f, (0, 1)), lambda f: jax.jacrev(f, (0, 1))]
    if function in (algebra, custom):  # second derivatives of what has derivatives of its own
        transforms.append(lambda f: jax.jacfwd(jax.jacrev(f)))
    for transform in transforms:
        close(both(transform(real(other))), both(transform(real(function))), 1e-12)


def test_large_arrays_and_unknown_primitives():
    def function(a, b):
        big = jnp.linspace(0, 1, SMALL + 1) * a[0]
        row = lax.dynamic_update_slice(big, b, (jnp.int32(a[1] < 0),))
        return big.sum(), row[:3], jnp.linalg.eigvalsh(matrix(a, b))

    names: list = []
    close(scalarise(function, names.append)(A, B), function(A, B), 1e-12)
    assert set(names) == {"eigh"}


def test_what_is_known_costs_nothing():
    """Constants fold, structural zeros vanish: of a diagonal matrix times a vector the diagonal is left."""
    jaxpr = jax.make_jaxpr(scalarise(lambda x: jnp.diag(jnp.array([1.0, 2.0, 0.0])) @ x + jnp.zeros(3)))(A)
    assert [eqn.primitive.name for eqn in jaxpr.eqns].count("mul") == 1
    assert [eqn.primitive.name for eqn in jaxpr.eqns].count("add") == 0


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6, 1e9])
def test_sine_and_cosine(size):
    """Within two rounding units of one half, whatever the angle."""
    x = np.random.default_rng(0).uniform(-size, size, 20000)
    np.testing.assert_allclose(sine(jnp.asarray(x)), np.sin(x), rtol=0, atol=2.3e-16)
    np.testing.assert_allclose(cosine(jnp.asarray(x)), np.cos(x), rtol=0, atol=2.3e-16)
    edges = jnp.array([0.0, jnp.inf, jnp.nan])
    np.testing.assert_array_equal(sine(edges), [0.0, np.nan, np.nan])
    assert float(jax.grad(sine)(0.3)) == pytest.approx(np.cos(0.3), rel=1e-15)
    assert float(jax.grad(cosine)(0.3)) == pytest.approx(-np.sin(0.3), rel=1e-15)
