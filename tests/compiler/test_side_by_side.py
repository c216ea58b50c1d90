"""Programs of a single lane compute entries of arrays side by side: the same as jax, whatever the sizes,
in registers and in memory."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.linalg import cho_solve

import jaximpact as ji
from jaximpact.compiler import limits
from jaximpact.compiler.llvm import call, emitter, functions, over_lanes
from jaximpact.compiler.llvm import jit as native_compile
from jaximpact.jaxtools.linalg import triangular_factor
from jaximpact.jaxtools.outlined import cold, outlined
from support.breadth import slow

TRIANGLES = [
    {"left_side": left, "lower": low, "transpose_a": turned} for left in (0, 1) for low in (0, 1) for turned in (0, 1)
]


def products(n, a, b, c, spd, low, i):
    """Matrices (n, n) and (n, 7), vectors (n,)."""
    yield from (a @ b, b @ a, a @ c, a.T @ c, c.T @ a, c @ c.T, c.T @ c, a @ c.T.T, jnp.outer(b, b) / b[0] - a)
    # without sums, of rows too short for a pack
    few = jnp.concatenate([c] * 9)[:, :3]
    yield lax.dot_general(few, few + 1, (((), ()), ((0,), (0,))))


def sums(n, a, b, c, spd, low, i):
    yield from (
        a.sum(0),
        a.sum(1),
        a.sum(),
        a.max(0),
        a.max(1),
        a.min(),
        jnp.prod(a[:3], 0),
        jnp.linalg.norm(c, axis=1),
    )
    yield from (jnp.all(a > -1), jnp.any(a > 3, axis=0), jnp.sum(a > 0), jnp.any(b[:, None] < a.T, axis=1))
    holes = jnp.where(a > 1.5, jnp.nan, jnp.round(2 * a))  # and many equal entries
    yield from (f(x, axis) for f in (jnp.argmin, jnp.argmax) for x in (a, holes) for axis in (0, 1))
    yield from (jnp.argmax(holes), jnp.argmin(jnp.round(a)))
    many = jnp.concatenate([c] * 9)  # of which each row is short
    yield from (many.sum(1), many.max(1), many[:, :2].sum(1), many.reshape(9, n, 7).sum(2), jnp.any(many > 2, axis=1))
    yield jnp.where(many > 1, 3, -many.astype(int)).sum(1)


def maps(n, a, b, c, spd, low, i):
    yield from (jnp.sin(a) * b[:, None] + jnp.where(a > 0, a, b[None]), a / b[None], jnp.exp(a).T - a, a[1:] - a[:-1])
    yield from (jnp.concatenate([a, a[:, ::-1]]), jnp.maximum(a, 0) * 2, jnp.abs(a) < 1, (a * 3).astype(int))
    yield from (jnp.stack([b[0] * b[1], b[2], b[0] + b.sum()]), jnp.tile(b, 2) ** 3, jnp.sqrt(jnp.abs(c)) + c[0, 0])


def factors(n, a, b, c, spd, low, i):
    yield from (
        lax.linalg.cholesky(spd),
        jnp.tril(triangular_factor(spd)),
        lax.linalg.cholesky(a - 9 * jnp.eye(n, dtype=a.dtype)),
    )
    yield from (cho_solve((triangular_factor(spd), True), b), cho_solve((low, True), c))
    # with exchanges of rows, and a column of zeros
    yield from (
        *lax.linalg.lu(a),
        *lax.linalg.lu(a.at[:, 2:3].set(0)),
        jnp.linalg.solve(a + n * jnp.eye(n, dtype=a.dtype), c),
    )
    # what stands in the other triangle plays no part
    for kind in TRIANGLES:
        one = b[:, None] if kind["left_side"] else b[None]
        triangle = (
            low + jnp.triu(jnp.full_like(a, jnp.nan), 1)
            if kind["lower"]
            else low.T + jnp.tril(jnp.full_like(a, jnp.nan), -1)
        )
        yield lax.linalg.triangular_solve(triangle, one, **{k: bool(v) for k, v in kind.items()})


def places(n, a, b, c, spd, low, i):
    yield from (a[i], a[:, i], b[i], b[i[:, None] + i[None]], a.at[i].set(0), a.at[i, i].add(2.0), b.at[i].max(1.0))
    # at places that are known
    known, both = np.arange(5 * n)[::-1] * 3 % n, jnp.concatenate([a, a])
    yield from (a[known], a[:, known], both[known + n][:, :2], b[known], (both[:, 0] > 0)[known], both[-known, 1:].T)
    for m in (9, 12, 16):  # distances of so many points: from memory, and from three and four packs
        points, (first, second) = jnp.concatenate([c] * 5).ravel()[: 2 * m].reshape(m, 2), np.triu_indices(m, 1)
        yield from (((points[first] - points[second]) ** 2).sum(1), (points[first] * points[second]).sum(1))
    keys = jnp.tile(jnp.round(b).at[0].set(jnp.nan), 3)  # many of them equal
    yield from lax.sort((keys, jnp.arange(3 * n)), num_keys=1)
    yield from (lax.dynamic_slice(a, (i[0], i[1]), (3, 3)), *lax.top_k(jnp.tile(b, 9).astype(jnp.float32), 5))


def joins(n, a, b, c, spd, low, i):
    yield from (jnp.stack([a, a.T + 1, 2 * a], axis) for axis in (0, 1, 2))
    yield from (jnp.stack([b, b[::-1]]), jnp.stack([b, b[::-1]], axis=1), *jnp.unstack(a * 2), *jnp.unstack(c, axis=1))
    yield from (jnp.tile(b, 9), jnp.tile(c, (2, 3)), jnp.tile(c > 0, (4, 1)), jnp.tile(b, (3, 2)))
    for sums in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin):
        yield from (sums(x, axis, backwards) for x, axis in ((a / 2, 0), (c, 1), (b, 0)) for backwards in (False, True))
    yield jnp.cumsum(a > 0, axis=1)


def loops(n, a, b, c, spd, low, i):
    yield from lax.fori_loop(0, 5, lambda k, x: (x[1] * 0.9 + k, x[0] @ a / n), (b, b * 2))
    yield from lax.while_loop(
        lambda x: x[1].sum() < 1e6, lambda x: (x[0] + 1, x[1] * 1.5, x[1] > 3), (0, jnp.abs(b) + 1, b > 0)
    )
    yield from lax.cond(b[0] > 0, lambda b: (jnp.sin(b), b[0]), lambda b: (b * 2, b[1]), b)
    yield from lax.scan(lambda x, y: (x + y, x * y), a[0], a)


@outlined
def often(x, y, k):
    """Called from several places."""
    turned = lax.fori_loop(0, 4, lambda j, x: jnp.sin(x) + (x @ y)[:, None] / len(y), x)
    return lax.cond(k > 0, lambda: turned.T, lambda: 2 * x), y * turned[0, 0], k + 1


def calls(n, a, b, c, spd, low, i):
    x, y, k = often(a, b, i[0])
    yield from (x, y, k, *often(x, y, i[2]), *often(spd / n, b[::-1], -i[0]))
    yield from lax.cond(b[1] > 0, lambda: often(x, b, k), lambda: often(low, y, k))


KINDS = (products, sums, maps, factors, places, joins, loops, calls)
SIZES = (13, 27)  # in registers, and in memory: neither fills its last pack
MORE = (1, 2, 3, 5, 6, 8, 9, 12, 16, 21, 24, 30, 48, 53)


@pytest.fixture(autouse=True)
def _small_arrays_too(monkeypatch):
    monkeypatch.setattr(call, "MIN_SHARE_SIDE_BY_SIDE", -1)


def compare(kind, n, dtype):
    """Holds native code to jax."""
    rng = np.random.default_rng(n)
    a, b, c = rng.normal(size=(n, n)), rng.normal(size=n), rng.normal(size=(n, 7))
    spd = a @ a.T + n * np.eye(n)
    i = np.array([2, 0, 1]) % n
    if n < 3 and kind is places:
        pytest.skip("no three places")
    given = [x.astype(dtype) for x in (a, b, c, spd, np.linalg.cholesky(spd))]
    every = jax.jit(lambda *x: list(kind(n, *x)))
    found, expected = over_lanes(every, (None,) * 6)(*given, i), every(*given, i)
    # sums of up to 53 terms of order 1, of which solves multiply errors by a condition of less than 100
    few = 1e4 * np.finfo(dtype).eps
    for x, y in zip(found, expected, strict=True):
        y = np.asarray(y, float)
        np.testing.assert_allclose(x[0].astype(float), y, rtol=few, atol=few * max(1, np.nanmax(np.abs(y), initial=0)))


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("n", "kind"),
    # in registers those of which the others are made
    [
        (n, kind) if n == 27 or (n == 13 and kind in (factors, sums)) else slow(n, kind)
        for n, kind in itertools.product((*SIZES, *MORE), KINDS)
    ],
)
def test_a_single_lane_gives_what_jax_gives(kind, n, dtype):
    compare(kind, n, dtype)


@pytest.mark.parametrize(
    "kind", [factors, *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[:3] + KINDS[4:])]
)
@pytest.mark.parametrize("n", [27, pytest.param(21, marks=pytest.mark.slow)])
def test_registers_of_half_the_size_give_the_same(kind, n, monkeypatch):
    host = native_compile.host()
    if host.vector_bytes == 32:
        pytest.skip("its registers are short")
    short = host.features.replace("+avx512", "-avx512").replace("+evex512", "-evex512")
    machines = {level: host.new_machine(cpu="haswell", features=short, opt=level) for level in host.machines}
    for name, x in {"vector_bytes": 32, "cpu": "haswell", "features": short, "machines": machines}.items():
        monkeypatch.setattr(host, name, x)
    compare(kind, n, np.float64)


@pytest.mark.parametrize("kind", [calls, pytest.param(loops, marks=pytest.mark.slow)])
@pytest.mark.parametrize("n", [20, 28])  # no other test has these programs
def test_branches_as_functions_give_the_same(kind, n, monkeypatch):
    monkeypatch.setattr(functions, "MIN_BRANCH_OPS", 3)
    texts, compile_text = [], native_compile.Host.compile
    monkeypatch.setattr(
        native_compile.Host, "compile", lambda self, text, *more: texts.append(text) or compile_text(self, text, *more)
    )
    compare(kind, n, np.float64)
    assert any("call void @apart." in text for text in texts)
    # a function of arrays stands there once
    assert kind is loops or sum(text.count("define internal void @shared.") for text in texts) == 1


def test_a_long_program_of_many_lanes_runs_lane_by_lane(monkeypatch):
    """By the program of a single one: as native code calls it, and as a program of XLA does;
    also where lanes share operands and rows."""
    monkeypatch.setattr(call, "MAX_OPS_OF_MANY_LANES", 0)
    made, compile_one = [], call._compile
    monkeypatch.setattr(call, "_compile", lambda closed, *given: made.append(given) or compile_one(closed, *given))
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(5, 14, 14)), rng.normal(size=14)
    every = jax.jit(lambda a, b: (jnp.tanh(a @ a.T) @ b, a[3], jnp.max(a, axis=0) * b))
    for x, y in zip(over_lanes(every, (0, None))(a, b), jax.vmap(every, (0, None))(a, b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13)
    chain = np.eye(6) - 0.4 * (np.eye(6, k=1) + np.eye(6, k=-1))
    problem = ji.Problem(lambda t, q, v, args: -args * (chain @ q), lambda t, q, args: 1 - q[:2])
    end = lambda q, way: ji.solve(problem, q, jnp.ones(6), t1=2.0, steps=50, args=2.0, e=0.5, execution=way).q[::10]
    starts = jnp.asarray(rng.uniform(-0.5, 0.5, (3, 6)))
    of = lambda way: jax.jit(jax.vmap(lambda q: end(q, way)))(starts)
    # an impact late in 50 steps: roundings of XLA's sums, multiplied by a few Lipschitz constants
    np.testing.assert_allclose(of("native"), of("xla"), rtol=1e-11, atol=1e-12)
    assert len(made) == 2 and all(lanes == 1 for _, lanes in made)


def test_what_runs_once_gives_the_same(monkeypatch):
    """Short code, with arrays in memory: of constants, factors that are read transposed,
    and arrays that are not stored."""
    monkeypatch.setattr(emitter, "MIN_COLD_OPS", 0)
    texts, compile_text = [], native_compile.Host.compile
    monkeypatch.setattr(
        native_compile.Host, "compile", lambda self, text, *more: texts.append(text) or compile_text(self, text, *more)
    )

    def kind(n, a, b, c, spd, low, i):
        factor, half, known = triangular_factor(spd), a.T * 2, jnp.asarray(np.arange(n * 7.0).reshape(n, 7))
        solved = cold(lambda x, y, z, k: (cho_solve((x, True), y), half @ z + k.astype(z.dtype), y.T[k], x[0, 0]))
        yield from solved(factor, c, known.astype(c.dtype), i[0])
        yield from factors(n, a, b, c, spd, low, i)

    compare(kind, 26, np.float64)
    assert any("optnone" in text for text in texts)


def test_nothing_is_traded_for_what_lies_beside_it():
    """An infinite or NaN entry stays in its place, in maps, and in sums of rows."""
    x = np.ones((5, 11))
    x[1, 3], x[2, 10], x[4, 0] = np.inf, np.nan, -np.inf
    every = jax.jit(
        lambda x: (
            jnp.sin(x),
            1 / (x - 1),
            x * 0.5 + x,
            jnp.sum(x, 1),
            jnp.max(x, 1),
            jnp.min(x, 0),
            x @ x.T,
            jnp.isfinite(x),
        )
    )
    for found, expected in zip(over_lanes(every, (None,))(x), every(x), strict=True):
        np.testing.assert_allclose(found[0], expected, rtol=1e-14)


def test_programs_of_small_arrays_stay_scalar(monkeypatch):
    """Shuffles would cost them more than they gain."""
    monkeypatch.setattr(call, "MIN_SHARE_SIDE_BY_SIDE", limits.MIN_SHARE_SIDE_BY_SIDE)
    key, packs = call.program_key, []
    monkeypatch.setattr(call, "program_key", lambda *given: packs.append(given[-1]) or key(*given))
    for n in (4, 5):  # a matrix of 25 entries is a large part of a program
        given = np.random.default_rng(n).normal(size=(n, n))
        np.testing.assert_allclose(over_lanes(jax.jit(jnp.sin), (None,))(given)[0], np.sin(given), rtol=1e-14)
    assert packs[0] == 1 < packs[1]
