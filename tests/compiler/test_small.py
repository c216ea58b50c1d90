"""Functions executed on separate numbers, as native code, give their values and derivatives, to round-off."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaximpact.compiler.limits import MAX_SCALARS
from jaximpact.compiler.llvm import call, over_lanes
from jaximpact.compiler.llvm.emitter import emit
from jaximpact.compiler.scalar import Unsupported
from jaximpact.compiler.scalar.interpreter import program_inputs
from jaximpact.jaxtools.interval_bounds import Unbounded, bound_change, is_expensive
from jaximpact.jaxtools.outlined import outlined
from jaximpact.jaxtools.tables import table
from support.breadth import slow, slow_but


def matrix(a, b):
    return jnp.array([[2 + jnp.cos(a[0] - a[1]), 0.3, 0.1], [0.3, 1 + a[1] ** 2, a[2]], [0.1, a[2], 3.0]])


def algebra(a, b):
    m = matrix(a, b)
    low = jnp.linalg.cholesky(m @ m.T)
    return jnp.linalg.solve(m, b), jnp.linalg.det(m), jax.scipy.linalg.solve_triangular(low, b, lower=True)


def inverse(a, b):
    return jnp.linalg.inv(matrix(a, b))


def factor(a, b):
    m = matrix(a, b)
    return jnp.linalg.cholesky(m @ m.T)


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


TABLE = np.array([[0.0, 1.0, 2.0], [0.5, 0.0, 0.0], [1.0, 3.0, 0.0]])


def tables(a, b):
    """Scans over constants, written out for many lanes."""
    body = lambda x, row: (x + jnp.sin(row @ x) * b, (x[0], row * x[1]))
    rows = table(TABLE, a.dtype)
    return lax.scan(body, a, rows), lax.scan(body, a, rows[:2], reverse=True), rows @ a


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


CASES = [algebra, inverse, factor, loops, tables, custom, derivatives]
A, B = jnp.array([0.3, -0.7, 1.1]), jnp.array([1.0, 2.0, -0.4])


def close(found, expected, tolerance=1e-13):
    """Sums are added up in another order: a few rounding units of numbers of order one to ten."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def real(function):
    return lambda *x: [y for y in jax.tree.leaves(function(*x)) if jnp.issubdtype(y.dtype, jnp.floating)]


LANES = jnp.stack([A, -A, 2 * A[::-1]])


def native(function):
    return over_lanes(jax.jit(function), (0, None))(LANES, B)


# with derivatives of their own; single operations and their derivatives are those of `test_native_table`
WITH_RULES = (algebra, factor, custom, derivatives)


@pytest.mark.parametrize(
    "function",
    [pytest.param(f, marks=[pytest.mark.slow] * (f not in WITH_RULES)) for f in CASES],
    ids=lambda f: f.__name__,
)
def test_values_and_derivatives(function):
    batch = lambda f: jax.jit(jax.vmap(f, (0, None)))(LANES, B)
    # one by one: all at once would be more than a motion is
    for one in (function, jax.jacfwd(real(function), (0, 1)), jax.jacrev(real(function), (0, 1))):
        close(native(one), batch(one), 1e-12)


@pytest.mark.parametrize(
    "function", [lambda a, b: jnp.linalg.solve(matrix(a, b), b), factor, lambda a, b: custom(a, b)[2:]]
)
def test_second_derivatives_of_custom_rules_are_those_of_jax(function):
    """Of what has derivatives of its own."""
    twice = jax.jacfwd(jax.jacrev(real(function)))
    close(native(twice), jax.jit(jax.vmap(twice, (0, None)))(LANES, B), 1e-12)


def places(a, b):
    """Indices that differ between lanes, inside and outside; windows, and batches of them;
    places in tables of two lengths."""
    i = jnp.argsort(a)
    m = jnp.outer(a, b)
    j = jnp.where(a > 0.5, 7, i)
    window = lax.dynamic_slice(m, (i[0], 1), (2, 2))
    pairs = jnp.stack([i, j], 1)
    return (a[i], a[j], m[i, j], m[:, i[0]], m.at[i[1]].set(b), m.at[j, i].add(2.0), window, m.at[pairs[:, 0]].max(0.3),
            a.at[j].get(mode="fill", fill_value=9.0), lax.dynamic_update_slice(m, window, (i[2], i[0])),
            jax.vmap(lambda row, k: row[k])(m, i), jnp.take_along_axis(m, i[:, None], 1),
            jnp.searchsorted(jnp.sort(a), b), jnp.searchsorted(jnp.sort(jnp.tile(a, 4)), b))  # fmt: skip


def stacks(a, b):
    """Decompositions of stacks of matrices, eigenvalues, and what is made of those."""
    m = jax.vmap(lambda x: matrix(a * x, b))(b)
    square = m @ m.transpose(0, 2, 1)
    values, vectors = jnp.linalg.eigh(matrix(a, b))
    return (jnp.linalg.solve(m, jnp.ones((3, 3, 1))), jnp.linalg.cholesky(square), values,
        (vectors * values[None]) @ vectors.T,
            jnp.abs(jnp.linalg.eigh(jnp.diag(a))[1]))  # fmt: skip


def large(a, b):
    """Arrays that lie in memory, moved, multiplied, summed up, in loops and branches."""
    n = MAX_SCALARS + 8
    table = jnp.linspace(0.0, 1.0, n) * a[0] + jnp.arange(n) / n
    m = jnp.reshape(table[:512], (32, 16)) + b[0]
    x = jnp.tanh(m @ (m[:16, :].T @ jnp.ones(16) + a[1]))
    row = lax.dynamic_update_slice(table, b, (jnp.int32(3),))
    loop = lax.fori_loop(0, 4, lambda i, t: jnp.where(t > 0.5, t * 0.9, t.at[:].add(0.1))[::-1], table)
    branch = lax.cond(a[2] > 0, lambda t: t[::2] * 2, lambda t: t[: len(t) // 2] - 1, table)
    last, rows = lax.scan(lambda c, r: (c + r.sum(), r * c), a[0], m)
    parts = jnp.concatenate([table, x, jnp.pad(table, 3)])
    batch = jnp.einsum("ijk,ikl->ijl", jnp.reshape(parts[:512], (4, 8, 16)), jnp.reshape(parts[8:520], (4, 16, 8)))
    place = jnp.argsort(a)[0]
    put = lax.dynamic_update_slice(table, b, (500 * place,))
    looked = (
        table[place * 100],
        jnp.interp(b, jnp.linspace(-1, 1, 40) * a[0] ** 2, table[:40]),
        put[::100],
        table.at[place].add(1.0)[:3],
    )
    return (table.sum(), looked, lax.dynamic_slice(put, (500 * place,), (4,)), x, row[:6], loop, branch, last, rows,
        parts[-9:], batch, m.max(1), m.T @ m, jnp.squeeze(m[:, :1]),
            lax.while_loop(lambda c: c[0] > 0.3, lambda c: (c[0] / 2, c[1] * 2), (jnp.abs(a[1]), table))[1], m.min(),
            lax.dynamic_slice(table, (jnp.int32(500),), (5,)), jnp.any(m > 2, 1))  # fmt: skip


@pytest.mark.parametrize(
    "function", [places, stacks, pytest.param(large, marks=pytest.mark.slow)], ids=lambda f: f.__name__
)
def test_values(function):
    close(native(function), jax.jit(jax.vmap(function, (0, None)))(LANES, B), 1e-12)


def test_what_has_no_rule_is_named(monkeypatch):
    for function, name in (
        (lambda a, b: jax.scipy.special.digamma(a), "digamma"),
        (lambda a, b: jnp.linalg.svd(jnp.outer(a, b))[1], "svd"),
    ):
        with pytest.raises(Unsupported, match=name):
            native(function)
    monkeypatch.setattr(call, "MAX_OPS_LLVM", 10_000)
    many = lambda a, b: [lax.sort(jnp.arange(20.0) * a[0] + i) for i in range(40)]
    with pytest.raises(Unsupported, match="operations, more than"):
        native(many)


def test_what_is_known_costs_nothing():
    """Constants fold, structural zeros vanish: of a diagonal matrix times a vector the diagonal is left."""
    closed = jax.make_jaxpr(lambda x: jnp.diag(jnp.arange(3.0)) @ x + jnp.zeros(3))(A)
    variables, _ = program_inputs(closed)
    text = emit(closed, variables, [True] * len(variables), 8, True).ir
    assert text.count("fmul") == 1 and text.count("fadd") == 0
    scan = lambda x: lax.scan(lambda x, row: (row @ x * x, None), x, table(np.eye(3)[:2], x.dtype))[0]
    closed = jax.make_jaxpr(scan)(A)
    of = lambda lanes: emit(closed, closed.jaxpr.invars, [lanes > 1], lanes, True).ir
    # of a single lane, compiled for one motion, it stays a loop
    assert of(8).count("fmul") == 6 and of(8).count("phi") < of(1).count("phi")


SHARES = np.linspace(0.1, 0.9, 36).reshape(6, 6)


@outlined
def turned(m, x, given, which):
    """Some hundred operations, an array that is closed over, and what is given back as it was; a constant, a truth."""
    m = m @ (SHARES @ m) / 9 + jnp.diag(x)
    return jnp.sin(m), given, jnp.zeros(2), which & (m[0, 0] > 0)


def called_often(a, b):
    """In a branch and in a loop, of constants and of numbers of lanes."""
    first = turned(jnp.eye(6), jnp.concatenate([a, b]), b, a[0] > 0)
    more = lax.cond(first[3], lambda m: turned(m, first[0][0], a, first[3])[0], lambda m: m + 1, first[0])
    last = lax.fori_loop(0, 2, lambda i, m: turned(m, m[1], b, True)[0], more)
    return last, first[1], first[2], turned(last, more[2], a, first[3])


def test_outlined_functions_are_functions_of_the_code():
    """One for each pattern of constants, with values and derivatives as where they are written at each place."""
    batch = lambda f: jax.jit(jax.vmap(f, (0, None)))(LANES, B)
    for one in (called_often, lambda a, b: jax.jvp(real(called_often), (a, b), (b, a))[1]):
        close(native(one), batch(one), 1e-12)
    closed = jax.make_jaxpr(called_often)(A, B)
    variables, _ = program_inputs(closed)
    text = emit(closed, variables, [True] * len(variables), 8, True).ir
    assert text.count("define internal void @shared") == 3 and text.count("call void @shared") == 4


@outlined
def repeated(m, k):
    """A loop of as many turns as its lane asks for, and a branch that some lanes take."""
    m = lax.while_loop(lambda c: c[0] != 0, lambda c: (c[0] - 1, jnp.tanh(c[1] @ SHARES / 3)), (k, m))[1]
    return lax.cond(m[0, 0] > 0.5, lambda m: m @ m.T / 36, lambda m: 0.5 * m + 0.1, m)


@outlined
def swept(m, k):
    """Another loop, which reverse mode can take, and another branch."""
    m = lax.fori_loop(0, 3, lambda i, m: jnp.sin(m @ SHARES / 3), m)
    return lax.cond(k > 1, lambda m: m[::-1] @ m / 36, lambda m: 0.3 * m, m)


@outlined
def swept_twice(m, k):
    return swept(swept(m, k) + m, 3 - k) @ m / 9


@outlined
def repeated_and_swept(m, k):
    return repeated(swept(m, k), k) - repeated(m, 2 * k)


def nested(one, a, b):
    """Called where all lanes come, and in a branch and a loop to which some do."""
    m = jnp.outer(jnp.concatenate([a, b]), jnp.concatenate([b, a])) / 4
    k = jnp.argmax(a)
    first = one(m, k)
    turns = jnp.where(a[0] > 0, k + 1, -1)  # for ever, where no lane comes
    more = lax.cond(a[0] > 0, lambda m: one(m - 0.1, turns), lambda m: m / 2, first)
    last = lax.fori_loop(0, k, lambda i, m: m + one(m / 3, i), more)
    return last, one(last, k + 1)


@pytest.mark.parametrize("lanes", slow_but(["vectors"], ["alone", "vectors", "pairs of registers"]))
@pytest.mark.parametrize("one", [slow(repeated_and_swept), swept_twice])
def test_outlined_functions_hold_loops_and_branches(one, lanes, monkeypatch):
    """Also functions that call others, of other content: where some lanes only come, or none, and with derivatives."""
    monkeypatch.setattr(call, "OPS_WITH_WIDE_VECTORS", range(10**9 if lanes.startswith("pairs") else 0))
    starts, axis = (LANES[:1], None) if lanes == "alone" else (LANES, 0)
    value = lambda a, b: nested(one, a, b)
    forward = lambda a, b: jax.jvp(value, (a, b), (b, a))[1]
    twice = lambda a: (one(jnp.outer(x, x), 1) for x in (jnp.tile(a, 2), jnp.tile(a[::-1], 2)))
    reverse = lambda a, b: jax.grad(lambda a: sum(map(jnp.sum, twice(a))))(a)
    for function in (value, forward, reverse)[: 2 if one is repeated_and_swept else 3]:
        found = over_lanes(jax.jit(function), (axis, None))(starts if axis == 0 else starts[0], B)
        close(found, jax.tree.map(lambda *x: jnp.stack(x), *(jax.jit(function)(a, B) for a in starts)), 1e-12)
    closed = jax.make_jaxpr(value)(A, B)
    text = emit(closed, closed.jaxpr.invars, [axis == 0] * 2, 8 if axis == 0 else 1, True).ir
    defined = re.findall(r"define internal void (@shared\.\w+)", text)
    assert len(defined) == len(set(defined)) >= 2 and set(defined) == set(re.findall(r"call void (@shared\.\w+)", text))


# bounds of how far a function moves within a box

MATRIX = np.random.default_rng(5).normal(size=(3, 3))


def linkage(x):
    joints = jnp.cumsum(jnp.array([0.7, 1.1, 0.4]) * jnp.sin(x))
    return jnp.concatenate([0.9 - joints, joints[1:] / 3 + 2])


def products(x):
    return (MATRIX @ x) * jnp.cos(x) - x[0] * x[1] * x[2] + jnp.tanh(x) ** 3


def distances(x):
    return jnp.stack(
        [jnp.sqrt(jnp.sum((x - MATRIX[0]) ** 2)) - 0.2, jnp.maximum(x[0], x[2]) - jnp.abs(x[1]), jnp.square(x[2])]
    )


def chosen(x):
    return jnp.where(jnp.array([True, False, True]), jnp.arctan(x), -x[::-1]) + x[jnp.array([2, 0, 1])]


@pytest.mark.parametrize("function", [linkage, products, distances, chosen])
def test_no_point_of_the_box_is_further(function):
    rng = np.random.default_rng(0)
    closest = 0.0
    bounds = jax.jit(lambda x, b: bound_change(function, x, b))
    values = jax.jit(jax.vmap(function))
    for scale in (1e-6, 1e-2, 1.0):
        x, b = rng.normal(size=3), scale * rng.uniform(0.1, 1, 3)
        found, change = map(np.asarray, bounds(x, b))
        corners = b * np.vstack([rng.choice([-1.0, 1.0], (64, 3)), rng.uniform(-1, 1, (64, 3))])
        moved = np.abs(np.asarray(values(x + corners)) - found)
        np.testing.assert_allclose(found, function(x), rtol=1e-13, atol=1e-15)  # compiled otherwise
        # the rounding of values of the size of one
        assert np.all(moved <= change + 1e-14)
        closest = max(closest, float(np.max(moved / change)))
    # no bound is useless: at some corner of a small box an entry of it is nearly met
    assert closest > 0.5


def test_what_does_not_move_has_no_bound_and_what_has_no_rule_is_named():
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(bound_change(lambda x: jnp.exp(jnp.ones(2)), x, x)[1], 0)
    with pytest.raises(Unbounded, match="exp"):
        bound_change(jnp.exp, x, x)
    with pytest.raises(Unbounded, match="div"):
        bound_change(lambda x: 1 / x, x, x)
    assert is_expensive(linkage, x) and not is_expensive(lambda x: 2 - x, x)
