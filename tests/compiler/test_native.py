"""Ensembles as native code: the same motions as through XLA, whatever the lanes, and nothing compiled twice."""

import math
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.compiler import disk_cache as cache
from jaximpact.compiler import xla_cache as lasting
from jaximpact.compiler.llvm import call as native_run
from jaximpact.compiler.llvm import elementwise as arithmetic
from jaximpact.compiler.llvm import jit as native_compile
from jaximpact.compiler.llvm import over_lanes
from jaximpact.compiler.llvm.call import BoundCall, as_columns, compile_lanes
from jaximpact.compiler.llvm.lane_frames import FUNCTION_NAME
from jaximpact.compiler.llvm.program_key import program_key
from jaximpact.compiler.scalar import Unsupported
from jaximpact.compiler.stream import stream

LANES = 37  # the last vector is filled up
FIELDS = ("t", "q", "v", "z", "impulse", "energy", "penetration", "residual", "status", "failed_at")
WAYS = ("native", "xla")


def ball(gravity=9.81):
    """Above a floor and below a ceiling; its clock may run out."""
    gravity = jnp.asarray(gravity)
    force = lambda t, q, v, args: jnp.stack([-gravity + 0.0 * jnp.log(args - t)])
    return ji.Problem(force, lambda t, q, args: jnp.append(q, 1.6 - q))


BALL = ball()


def balls(which=slice(None), problem=BALL, h=0.01, t1=1.0, factor=1.0, **options):
    """Lanes of different numbers of steps, restitution and clocks."""
    number = np.arange(LANES)[which]
    at = number / (LANES - 1)
    given = {"h": np.where(number % 3, h / 2, h), "e": factor * at, "args": np.where(number == 3, 0.4, 10.0)}
    return ji.ensemble(
        problem, 0.5 + at[:, None], 3 * factor * (1 - at[:, None]), t1=t1, args_axes=0, **given, **options
    )


def compare(native, xla, tolerance, share=1.0):
    """That so many lanes agree: where roundings move an impact to another step, positions differ by far more."""
    close = np.ones(len(native.status), bool)
    for name in FIELDS:
        x, y = getattr(native, name), getattr(xla, name)
        if x is not None or y is not None:
            assert x.dtype == y.dtype and x.shape == y.shape, name
            same = np.isclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)
            close &= same.reshape(len(close), -1).all(axis=1)
    assert close.mean() >= share, np.flatnonzero(~close)


def same_bits(found, expected, lanes=slice(None)):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y[lanes])


@pytest.fixture(scope="module")
def bouncing():
    return balls(execution="native")


def test_a_lane_that_becomes_nan_is_flagged_and_no_other(bouncing):
    """As through XLA; a lane that becomes NaN is flagged, and no other notices."""
    assert np.flatnonzero(bouncing.failed).tolist() == [3] and np.isnan(bouncing.q[3]).any()
    assert np.sum(np.any(bouncing.impulse[:, -1] > 0, axis=-1)) > LANES // 2
    # 200 steps of a few units each
    compare(bouncing, balls(execution="xla"), 1e-12)


def test_without_constraints():
    """A spring, alone and with derivatives in both modes: q = cos(w t) to the scheme's order 2."""
    spring = ji.Problem(lambda t, q, v, args: -(args**2) * q)

    def end(w):
        return ji.solve(spring, [1.0], [0.0], t1=1.0, steps=200, args=w, save="final", execution="native").q[-1, 0]

    for found, exact in (
        (end(2.0), np.cos(2.0)),
        (jax.jacfwd(end)(2.0), -np.sin(2.0)),
        (jax.grad(lambda w: end(jnp.mean(w)))(jnp.full(40, 2.0)).sum(), -np.sin(2.0)),
    ):
        assert found == pytest.approx(exact, abs=1e-4)  # (w h)^2 w t / 24 and its derivative


def test_lanes_do_not_depend_on_each_other(bouncing):
    same_bits(balls(execution="native", chunk=5), bouncing)
    with jax.default_matmul_precision("highest"):  # a setting of this thread alone, which then computes by itself
        same_bits(balls(execution="native"), bouncing)
    backwards = np.arange(LANES)[::-1]
    same_bits(balls(backwards, execution="native"), bouncing, backwards)
    few = np.arange(20, 23)
    same_bits(balls(few, execution="native"), bouncing, few)


def test_lanes_shared_out_under_jit():
    """More lanes than one thread is given: those of an ensemble, bit for bit."""
    start = np.linspace(0.5, 1.5, 301)[:, None]
    fixed = {"t1": 1.0, "args": 10.0, "e": 0.5, "save": "final"}
    one = lambda q: ji.solve(BALL, q, [0.0], steps=100, **fixed).q
    found = jax.jit(jax.vmap(one))(start)
    same_bits(found, ji.ensemble(BALL, start, [0.0], h=0.01, execution="native", **fixed).q)


def test_numbers_do_not_compile_anew(bouncing):
    before = native_compile.compilations
    balls(execution="native", h=0.02)
    balls(execution="native", t1=0.7)
    balls(execution="native", factor=0.5)
    # neither do those that the functions close over as arrays
    balls(problem=ball(3.7), execution="native")
    assert native_compile.compilations == before
    # nor does a single motion, whatever its number of steps
    single_backend = lambda steps, t1, e: ji.solve(BALL, [0.5], [1.0], t1=t1, steps=steps, e=e, args=10.0, save="final")
    single_backend(50, 0.5, 0.5)
    before = native_compile.compilations
    single_backend(70, 0.8, 0.3)
    assert native_compile.compilations == before


def test_auto_is_native_where_it_can_be(bouncing):
    same_bits(balls(), bouncing)


@pytest.mark.parametrize(
    "save",
    [[0.0, 0.25, 0.3001, 0.7], pytest.param(20, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)],
    ids=["times", "every", "all"],
)
def test_saved_rows_are_those_of_xla_and_their_number_compiles_nothing(save, bouncing):
    """The same rows as through XLA; another number of them compiles nothing anew."""
    given = {
        "problem": BALL,
        "q0": np.linspace(0.5, 1.5, LANES)[:, None],
        "v0": [1.0],
        "h": 0.01,
        "args": 10.0,
        "e": 0.5,
    }
    native, xla = (ji.ensemble(**given, t1=1.003, save=save, execution=way) for way in WAYS)
    assert native.q.shape[1] > 4 and np.all(np.any(native.impulse[:, -1] > 0, axis=-1))
    compare(native, xla, 1e-12)
    before = native_compile.compilations
    ji.ensemble(**given, t1=1.2, save=save if isinstance(save, int) else [0.1, 0.2], execution="native")
    assert native_compile.compilations == before


def test_what_it_cannot_take_goes_through_xla():
    strange = ji.Problem(lambda t, q, v, args: -9.81 + 0 * jax.scipy.special.digamma(1 + q**2), lambda t, q, args: q)
    given = {"t1": 0.5, "h": 0.01, "e": 0.5}
    q0, v0 = np.full((3, 1), 0.2), np.zeros((3, 1))
    with pytest.raises(
        ValueError, match=r"execution='native' cannot take this problem \(digamma\): give execution='xla'"
    ):
        ji.ensemble(strange, q0, v0, execution="native", **given)
    same_bits(ji.ensemble(strange, q0, v0, **given), ji.ensemble(strange, q0, v0, execution="xla", **given))


# functions of one lane


def test_a_gap_that_is_bounded_is_met_no_later():
    """A wall behind a sine, met by the native step that looks at bounds and by XLA, which looks at gaps, in the same step."""
    problem = ji.Problem(lambda t, q, v, args: -q, lambda t, q, args: jnp.sin(q) + args, restitution=0.5)
    runs = [
        ji.ensemble(problem, np.linspace(0.1, 1, 9)[:, None], [-1.0], t1=3.0, h=0.01, args=0.3, execution=way)
        for way in ("native", "xla")
    ]
    assert np.all(runs[0].impulse[:, -1] > 0) and not np.any(runs[0].status)
    # 300 steps of a few roundings each
    np.testing.assert_allclose(runs[0].q, runs[1].q, rtol=0, atol=1e-12)
    np.testing.assert_allclose(runs[0].impulse, runs[1].impulse, rtol=0, atol=1e-11)


def lanewise(function, *lanes):
    return over_lanes(jax.jit(function), (0,) * len(lanes))(*lanes)


def units(found, expected):
    """Largest distance of the results from the expected values, in units in the last place."""
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    there = np.isfinite(expected)
    np.testing.assert_array_equal(found[np.isinf(expected)], expected[np.isinf(expected)])
    return np.max(np.abs(found[there] - expected[there]) / np.spacing(np.abs(expected[there])))


def test_sine_and_cosine_of_any_number():
    """Within one unit of the C library, close to multiples of pi/2 and up to the largest number."""
    random = np.random.default_rng(0)
    x = np.concatenate([
        random.uniform(-1, 1, 20_000) * 2.0 ** random.uniform(-60, 40, 20_000), np.arange(-5000, 5000) * np.pi / 2,
        np.round(random.uniform(1, 2.0**29, 20_000)) * np.pi / 2, 2.0 ** random.uniform(-1070, 1023, 5000),
        # the double that is closest to a multiple of pi/2 (Muller et al., Handbook of Floating-Point Arithmetic, 2010, table 11.1)
        [6381956970095103.0 * 2.0**797, 1e22, 2.0**30, 5e-324, -0.0, np.finfo(float).max, np.inf, np.nan],
    ])  # fmt: skip
    for dtype in (np.float64, np.float32):
        with np.errstate(over="ignore"):
            lanes = x.astype(dtype)
        with np.errstate(invalid="ignore"):
            exact = np.array([np.sin(y) if np.isinf(y) else math.sin(y) for y in lanes.astype(float)]), np.array(
                [np.cos(y) if np.isinf(y) else math.cos(y) for y in lanes.astype(float)])  # fmt: skip
        for found, expected in zip(lanewise(lambda x: (jnp.sin(x), jnp.cos(x)), lanes), exact, strict=True):
            assert found.dtype == dtype and units(found, expected.astype(dtype)) <= 1
    assert np.signbit(lanewise(jnp.sin, np.array([-0.0, 0.0]))).tolist() == [True, False]


def test_sine_of_a_shared_angle_where_some_lanes_need_it():
    """In a branch that not all lanes take, of a number that they share."""

    @jax.jit
    def one(x, angle):
        return jax.lax.cond(x > 0, lambda: x * jnp.sin(angle) + sum(jnp.cos(angle + k) for k in range(9)), lambda: x)

    x, angle = np.linspace(-1, 1, 21), 2.0**31
    inside = x * np.sin(angle) + sum(np.cos(angle + k) for k in range(9))
    np.testing.assert_allclose(over_lanes(one, (0, None))(x, angle), np.where(x > 0, inside, x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("name", "most"), [("exp", 1), ("expm1", 1.25), ("log", 1), ("log1p", 1), ("tanh", 2.5)])
def test_exponentials_of_any_number(name, most):
    """Within so many units of the value in extended precision, from numbers below the normal ones to infinity."""
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("no extended precision here")
    random = np.random.default_rng(0)
    x = np.concatenate([
        random.uniform(-750, 712, 40_000), random.uniform(-1, 1, 40_000) * 2.0 ** random.uniform(-60, 9, 40_000),
        random.choice([1.0, -1], 20_000) * 2.0 ** random.uniform(-1074, 1023, 20_000),
        [0.0, -0.0, np.inf, -np.inf, np.nan, 709.782712893384, 709.79, -745.13, -745.2, 1, -1, 5e-324, 1e300],
    ])  # fmt: skip
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.longdouble))
        expected, single = exact.astype(float), getattr(np, name)(x.astype(np.float32).astype(np.longdouble))
        single = single.astype(np.float32)
    found = lanewise(getattr(jnp, name), x)
    units(found, expected)
    there = np.isfinite(expected)
    assert np.max(np.abs(found[there] - exact[there]) / np.spacing(np.abs(expected[there]))) <= most
    with np.errstate(over="ignore"):
        assert units(lanewise(getattr(jnp, name), x.astype(np.float32)), single) <= 1
    assert name in ("exp", "log") or np.signbit(lanewise(getattr(jnp, name), np.array([-0.0]))).all()


REAL = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 2.5, 1.5, np.inf, -np.inf, np.nan, 1e-6, 1e30, -1e30, 3e9, -3e9, 0.3])
EXACT = ["add", "sub", "mul", "div", "max", "min", "rem", "eq", "ne", "lt", "le", "gt", "ge", "nextafter"]
CLOSE = ["exp", "exp2", "expm1", "log", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "cbrt", "erf", "logistic", "rsqrt"]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_arithmetic_of_reals(dtype):
    def exact(x, y):
        even, away = lax.RoundingMethod.TO_NEAREST_EVEN, lax.RoundingMethod.AWAY_FROM_ZERO
        kinds = (np.int32, np.int64, np.uint32, np.int8, bool, np.float64, np.float32)
        return (
            [getattr(lax, name)(x, y) for name in EXACT],
            [getattr(lax, name)(x) for name in ("neg", "abs", "sign", "floor", "ceil", "sqrt", "is_finite")],
            [lax.round(x, even), lax.round(x, away), lax.clamp(x, y, dtype(2)), jnp.sort(jnp.stack([x, y, x * 2]))],
            [lax.convert_element_type(x, kind) for kind in kinds],
        )

    def close(x, y):
        return [getattr(lax, name)(x) for name in CLOSE] + [x**y, lax.atan2(x, y), x**3, x**-2]

    x, y = np.repeat(REAL, len(REAL)).astype(dtype), np.tile(REAL, len(REAL)).astype(dtype)
    of_xla = lambda function: jax.tree.leaves(jax.jit(jax.vmap(function))(x, y))
    for found, expected in zip(jax.tree.leaves(lanewise(exact, x, y)), of_xla(exact), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(lanewise(close, x, y), of_xla(close), strict=True):
        expected = np.asarray(expected)
        # each of the two is good to a few units
        assert found.dtype == expected.dtype and units(found, expected) <= 8


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.int8])
def test_arithmetic_of_whole_numbers(dtype):
    """By zero, beyond the range, and shifts by more bits than there are."""
    binary = ["add", "sub", "mul", "div", "rem", "max", "min", "lt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor",
              "shift_left", "shift_right_logical", "shift_right_arithmetic"]  # fmt: skip

    def function(x, y):
        kinds = (np.int32, np.int64, np.uint32, np.int8, bool, np.float64, np.float32)
        single_backend = [lax.sign(x), ~x, lax.population_count(x), lax.clz(x)]
        return (
            [getattr(lax, name)(x, y) for name in binary]
            + single_backend
            + [lax.convert_element_type(x, kind) for kind in kinds]
        )

    info = np.iinfo(dtype)
    numbers = np.array(
        [0, 1, 2, 7, 31, 33, 64, info.max, info.min, info.min + 1, info.max - 1, *([-1, -3] * (info.min < 0))], dtype
    )
    x, y = np.repeat(numbers, len(numbers)), np.tile(numbers, len(numbers))
    for found, expected in zip(lanewise(function, x, y), jax.jit(jax.vmap(function))(x, y), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)


def test_lanes_leave_loops_and_take_branches_of_their_own():
    """Lanes leave a loop when they are done; a branch is taken by those that ask for it, the nearest if there is none."""

    def function(k, x):
        inner = lambda x: lax.while_loop(lambda y: y > 1, lambda y: y / 2, x)
        branches = [lambda x: x, lambda x: lax.fori_loop(0, 5, lambda i, y: y + i, x), inner, lambda x: -x]
        chosen = lax.switch(k, branches, x)
        turns = lax.while_loop(
            lambda c: c[0] < k * k, lambda c: (c[0] + 1, lax.cond(c[1] > 3, inner, lambda y: y + 1, c[1])), (0, x)
        )
        return chosen, turns

    k, x = np.arange(-3, 8, dtype=np.int32), np.linspace(0.25, 40, 11)
    for found, expected in zip(
        jax.tree.leaves(lanewise(function, k, x)), jax.tree.leaves(jax.vmap(function)(k, x)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_branches_asked_for_by_what_conditions_are_made_of():
    """Conjunctions, their opposites and bits of a status; of numbers that are none, infinite, shared by all lanes or not."""
    numbers = np.array([0.0, -1.5, np.nan, np.inf, -np.inf, 1e308, 2.5, -0.0, 7.0])
    x, y = (z.ravel() for z in np.meshgrid(numbers, numbers))
    bits = np.arange(len(x), dtype=np.int32) % 4

    def one(x, y, bits, shared, mask):
        finite = jnp.isfinite(x) & jnp.isfinite(y) & jnp.isfinite(shared)
        status = jnp.where(finite, 0, 4) | jnp.where(x < y, 32, 0)
        asked = [
            finite & (x >= y) & (shared > 1),
            ~((x < y) | (shared < 1)),
            (status & ~jnp.where(shared > 1, 0, 8)) != 0,
            (status & ~jnp.where(shared > 1, 32, 0)) != 0,
            (status & mask) == 0,
            ~(x == y) | ~(x > shared) | (bits > 1),
            (bits != 0) & ~(x != x) & ~(y <= x),
            # of a status that no lane has of its own
            (jnp.where(shared > 1, 4, 0) & ~jnp.where(x < y, 8, 0)) != 0,
        ]
        return [lax.cond(c, lambda: jnp.sin(x) + jnp.exp(-jnp.abs(y)) + 3, lambda: jnp.zeros_like(x)) for c in asked]

    for shared, mask in ((2.0, 4), (0.5, 36), (np.nan, 0)):
        given = (x, y, bits, np.float64(shared), np.int32(mask))
        axes = (0, 0, 0, None, None)
        found = over_lanes(jax.jit(one), axes)(*given)
        expected = jax.jit(jax.vmap(one, in_axes=axes))(*given)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a == 0, b == 0)
            np.testing.assert_allclose(a, b, rtol=1e-15, atol=0)


def test_reverse_mode_of_rows_is_compiled_once():
    """Another e, length, or time of a row compiles nothing."""
    problem = ji.Problem(lambda t, q, v, args: -9.81 + 0.1 * jnp.tanh(args @ q)[:1], lambda t, q, args: q)

    def slope(weights, e, save, **given):
        given |= {"e": e, "save": save, "args": weights, "execution": "native"}
        return jax.grad(lambda w: jnp.sum(ji.solve(problem, [0.2], [0.0], **given | {"args": w}).q))(weights)

    weights = jnp.ones((40, 1))
    slope(weights, 0.5, [0.11, 0.29], t1=0.3, steps=30)
    before = native_compile.compilations
    found = slope(weights, 0.6, [0.1, 0.105], t1=0.7, steps=300)
    assert np.any(found) and np.all(np.isfinite(found))
    assert native_compile.compilations == before


def test_derivatives_of_a_stream():
    """Those of a scan; what does not change has no tangent, and what is the same in all directions stays one."""
    turns = np.array([0.5, 0.25, 2.0])

    def body(scale, carry, turn):
        n, x, y = carry
        matrix = scale * jnp.stack([jnp.cos(x), jnp.sin(x)])
        x_new = matrix @ x + turn * y
        return (n + 1, x_new, y * 0.5), (n, x_new * y, jnp.sum(y))

    def looped(x, scale, loop):
        (n, last, _), rows = loop(lambda carry, turn: body(scale, carry, turn), (jnp.int32(0), x, jnp.float64(3.0)))
        return {"last": last, "rows": rows[1], "number": n.astype(float), "numbers": rows[0], "same": rows[2]}

    native = lambda x, scale: looped(x, scale, lambda f, c: stream(f, c, jax.ShapeDtypeStruct((), float)))
    scanned = lambda x, scale: looped(x, scale, lambda f, c: lax.scan(f, c, turns))

    def both(function):
        real = lambda x, scale: {k: v for k, v in function(x, scale).items() if k != "numbers"}
        pushed = lambda x, scale: jax.jvp(lambda s: function(x, s)["rows"], (scale,), (1.0,))[1]
        return lambda x, scale: (function(x, scale), jax.jacfwd(real, (0, 1))(x, scale), pushed(x, scale))

    x, scale = np.random.default_rng(0).normal(size=(2, 5, 2))
    scale = scale[:, 0]
    found = over_lanes(jax.jit(both(native)), (0, 0), [turns])(x, scale)
    expected = jax.jit(jax.vmap(both(scanned)))(x, scale)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)  # sums of a few units


@pytest.mark.parametrize("lanes", [None, 5])
def test_a_stream_by_row_is_read_backwards(lanes):
    """Rows of several types lie as a loop back reads them, of one lane in packs of entries: the body of a scan, and of one in reverse."""
    states = np.random.default_rng(0).normal(size=(lanes or 1, 19))

    def there(carry):
        x, n = carry
        return (jnp.sin(x + n.astype(float)), n + 1), (x, n, x[:3] > 0, jnp.stack([x[:2], jnp.ones(2)]))

    def back(total, row):
        x, n, positive, pair = row
        return jnp.cos(total) * x + n.astype(float) + jnp.sum(jnp.where(positive, x[:3], 0)) + jnp.sum(pair)

    def rows_of(x):
        return stream(lambda carry, _: there(carry), (x, jnp.int32(0)), (), by_row=True)[1]

    def total_of(total, like):
        each = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like]
        return stream(lambda total, row: (back(total, row), ()), total, each, by_row=True, backwards=True)[0]

    def scanned(x):
        _, rows = lax.scan(lambda carry, _: there(carry), (x, jnp.int32(0)), length=6)
        return rows, lax.scan(lambda total, row: (back(total, row), ()), x, rows, reverse=True)[0]

    one, many = jax.ShapeDtypeStruct((19,), float), lanes is not None
    expected, total = jax.vmap(scanned)(states)
    shapes = [jax.ShapeDtypeStruct(x.shape[2:], x.dtype) for x in expected]
    forth = compile_lanes(jax.jit(rows_of), (one,), [many])
    whole = forth.padded_count(len(states))
    start = as_columns(states, whole) if many else states[0]
    rows = [np.empty((6, x.size, whole), x.dtype) for x in shapes]
    BoundCall(forth, [(start, None)], rows, whole, 1)(0, rows=6)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13)  # sums and sines of a few units
    for x, y in zip(rows, expected, strict=True):
        close(x[..., : len(states)], np.moveaxis(y.reshape(*y.shape[:2], -1), 0, -1))

    # operands that nothing reads say what the rows of each lane are
    returned = compile_lanes(jax.jit(total_of), (one, tuple(shapes)), [many] * 5)
    unread = [np.empty((x.size, whole) if many else x.shape, x.dtype) for x in shapes]
    found = np.empty((19, whole))
    operands = [(start, None), *((x, None) for x in unread)]
    BoundCall(returned, operands, [found], whole, 1, [(x, 0) for x in rows])(0, rows=6)
    close(found[:, : len(states)].T, total)


def of_matrices(a, b, x):
    """Of one lane: what decompositions, solves and a choice of the largest give, and what is looked up by it."""
    solved = {
        f"{left} {lower} {turned} {unit}": lax.linalg.triangular_solve(
            a / 40 if unit else a,
            b.T if left else b,
            left_side=left,
            lower=lower,
            transpose_a=turned,
            unit_diagonal=unit,
        )
        for left, lower, turned, unit in np.ndindex(2, 2, 2, 2)
    }
    largest, where = lax.top_k(x, 4)
    return lax.linalg.cholesky(a), solved, largest, where, jnp.argmax(x), jnp.cumsum(b, 1), b[:, where], jnp.sort(b[0])


@pytest.mark.parametrize("small", ["numbers", "memory"])
def test_matrices_are_those_of_jax_as_numbers_or_in_memory(monkeypatch, small):
    """Whether their entries are numbers or lie in memory; cond(a) < 10, so that n = 24 roundings are 1e-14."""
    monkeypatch.setattr(native_run, "LONG_PROGRAM_OPS", 10**9 if small == "numbers" else 0)
    random, n = np.random.default_rng(0), 24 if small == "memory" else 6
    a = random.uniform(-1, 1, (3, n, n))
    a = a + a.swapaxes(1, 2) + 4 * n * np.eye(n)
    b, x = random.uniform(-1, 1, (3, 3, n)), random.integers(-3, 4, (3, n)).astype(np.float32)  # equal ones: the first
    x[1, 4], x[2] = np.nan, -np.inf
    found, expected = lanewise(of_matrices, a, b, x), jax.jit(jax.vmap(of_matrices))(a, b, x)
    for y, z in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert y.dtype == z.dtype
        np.testing.assert_allclose(y, z, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_large_programs_are_loops_over_memory():
    """Disks that fall into a box with one corner: the same motion as through XLA, up to roundings."""
    i, j = np.triu_indices(4, 1)

    def gaps(t, q, args):
        centres = q.reshape(4, 2)
        return jnp.concatenate([jnp.hypot(*(centres[i] - centres[j]).T) - 0.2, (centres - 0.1).ravel()])

    problem = ji.Problem(lambda t, q, v, args: jnp.tile(jnp.array([-1.0, -9.81]), 4), gaps)
    q0 = np.array([[0.2, 0.15, 0.41, 0.2, 0.2, 0.37, 0.43, 0.44]])
    q0 = q0 + np.linspace(-0.01, 0.01, 3)[:, None]
    given = {"t1": 0.3, "h": 0.01, "scheme": ji.Maury(), "save": "final"}
    found, expected = (ji.ensemble(problem, q0, 0 * q0, execution=way, **given) for way in WAYS)
    assert native_run.LONG_PROGRAM_OPS < 70_000 < native_run.MAX_OPS_LLVM  # operations that it has
    compare(found, expected, 1e-10)  # the solver's tolerance is 1e-12; contacts close and stay so


# what is kept on disk


@pytest.fixture(params=["native", "xla"])
def kept(request, tmp_path, monkeypatch):
    """The cache folder, and a call of one program as in a new process, which tells whether it compiled."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(folder))
    counter = native_compile if request.param == "native" else lasting

    def call():
        native_compile._programs.clear()
        before = counter.compilations
        x, line = np.arange(3.0), lambda x: x * 3 + 1
        found = lanewise(line, x) if counter is native_compile else lasting.PersistentJit(line)(x)
        np.testing.assert_array_equal(found, [1, 4, 7])
        return counter.compilations > before

    return folder, call


def test_the_next_process_need_not_compile(kept):
    folder, call = kept
    assert [call(), call(), call()] == [True, False, False]
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o077 == 0 and file.stat().st_mode & 0o077 == 0


def test_only_what_is_whole_and_ones_own_is_loaded(kept, tmp_path):
    folder, call = kept
    call()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    damaged = [b"", whole[:20], whole[:-1], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], b"x" + whole[1:]]
    for content in damaged:
        file.write_bytes(content)
        assert call() and not call()  # compiled, and kept again
    file.chmod(0o666)
    assert call()
    file.unlink()
    (tmp_path / "elsewhere").write_bytes(whole)
    file.symlink_to(tmp_path / "elsewhere")
    assert call() and not file.is_symlink() and not call()
    # under another name it is another program's
    assert cache.load(file.name) is not None
    file.rename(folder / "other")
    assert cache.load("other") is None


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path, monkeypatch, caplog):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for path in (shared, tmp_path / "file"):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv(cache.CACHE_VARIABLE, str(path))
        cache.store("key", b"code")
        assert cache.load("key") is None and str(path) in caplog.text
    assert list(shared.iterdir()) == []
    monkeypatch.setenv(cache.CACHE_VARIABLE, "off")
    assert cache.folder() is None


def test_the_folder_is_bounded_and_shared(kept):
    """What was used last stays; who reads while others write gets all of it or nothing."""
    folder, _ = kept
    code = bytes(1000)
    for i in range(3):
        cache.store(f"{i}", code)
        if i:
            os.truncate(folder / f"{i}", cache.MAX_CACHE_BYTES // 2)  # of holes: it takes no room on the disk
        os.utime(folder / f"{i}", (i, i))
    assert cache.load("0") == code
    cache.store("3", code)
    assert sorted(x.name for x in folder.iterdir()) == ["0", "2", "3"]
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(cache.store, "same", code) for _ in range(40)]
        assert {cache.load("same") for _ in range(100)} <= {None, code}
        assert [x.result() for x in writing] == [None] * 40
    assert cache.load("same") == code


def test_a_program_is_named_by_what_it_computes(tmp_path, monkeypatch):
    """Traced anew it is the same; another operation, parameter, whole number or kind of operand makes another; real numbers do not."""
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    x, y = np.arange(3.0), np.arange(3, dtype=np.float32)

    def made(a=2.0, k=1, turns=3, function=jnp.sin, order=(0, 1)):
        weights, index = jnp.full(2, a), jnp.array(order)

        def body(_, z):
            return function(z) * weights[0] + jnp.stack([z, 2 * z])[index][0] ** k

        return lambda x: jax.lax.fori_loop(0, turns, body, x)

    def compiles(function, x):
        native_compile._programs.clear()
        before = native_compile.compilations
        found = lanewise(function, x)
        np.testing.assert_allclose(found, jax.vmap(function)(x), rtol=1e-5)
        return native_compile.compilations - before

    others = [made(k=2), made(turns=4), made(function=jnp.cos), made(order=(1, 0))]
    assert compiles(made(), x) == 1 and compiles(made(), x) == 0 and compiles(made(a=3.0), x) == 0
    assert [compiles(f, x) for f in others] == [1, 1, 1, 1] and compiles(made(), y) == 1
    assert [compiles(f, x) for f in others] == [0, 0, 0, 0] and compiles(made(), y) == 0


def test_jaxprs_that_share_variables_are_told_apart():
    """jax makes jaxprs of others with the same variables; the second of two had one number for all of its operands."""
    calls = jax.make_jaxpr(lambda a, b: (jax.jit(jnp.subtract)(a, b), jax.jit(jnp.add)(a, b)))(1.0, 2.0)
    first, second = calls.jaxpr.eqns
    inner = first.params["jaxpr"]
    (eqn,) = inner.jaxpr.eqns

    def key(operands):
        """Of a program that subtracts, then subtracts again with these operands of the same variables."""
        again = inner.replace(jaxpr=inner.jaxpr.replace(eqns=[eqn.replace(invars=operands)]))
        other = second.replace(params=second.params | {"jaxpr": again})
        return program_key(calls.replace(jaxpr=calls.jaxpr.replace(eqns=[first, other])), calls.jaxpr.invars)

    assert key(eqn.invars) == key(list(eqn.invars)) is not None
    assert key(eqn.invars) != key(eqn.invars[::-1])


def test_a_function_with_a_pullback_of_its_own_has_a_name(tmp_path, monkeypatch):
    """It is not compiled again, made anew; another one is."""
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    x = np.arange(3.0)

    def made(a):
        own = jax.custom_vjp(lambda z: jnp.sin(z) + a)
        own.defvjp(lambda z: (own(z), None), lambda _, g: (g,))
        return own

    def compiles(function):
        native_compile._programs.clear()
        before = native_compile.compilations
        np.testing.assert_allclose(lanewise(function, x), jax.vmap(function)(x), rtol=1e-15)
        return native_compile.compilations - before

    assert [compiles(made(a)) for a in (1.0, 1.0, 2.0)] == [1, 0, 1]


def test_a_missing_symbol_is_told_before_it_is_called(monkeypatch):
    """Calling it would end the process."""
    text = f"declare double @no_such_function(double)\ndefine double @{FUNCTION_NAME}(double %x) {{\n%y = call double @no_such_function(double %x)\nret double %y\n}}\n"
    with pytest.raises(Unsupported, match="no_such_function"):
        native_compile.compile_module(text)
    found = native_compile.undefined_symbols(native_compile.host().compile(text))
    assert found == ["no_such_function"]
    # one that LLVM's own passes write is in every process
    fill = f"declare ptr @memset(ptr, i32, i64)\ndefine void @{FUNCTION_NAME}(ptr %p, i64 %n) {{\n%q = call ptr @memset(ptr %p, i32 0, i64 %n)\nret void\n}}\n"
    assert native_compile.undefined_symbols(native_compile.host().compile(fill)) == ["memset"]
    native_compile.compile_module(fill)
    # the way that a rule takes it
    monkeypatch.setitem(
        arithmetic.RULES, "sin", lambda w, params, values: arithmetic.call_library(w, "no_such_sine", *values)
    )
    with pytest.raises(Unsupported, match="no_such_sine"):
        lanewise(lambda x: jnp.sin(x) + 0.123, np.arange(3.0))


def test_bits_do_not_depend_on_registers(monkeypatch):
    """Of motions with impacts, and of loops over memory, for registers of 16, 32 and 64 bytes."""
    host, found = native_compile.host(), []
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(30, 20)))
    layers = lambda x: jnp.tanh(weights.T @ jnp.sin(weights @ jnp.full(20, x)))
    for size in (16, 32, 64):
        monkeypatch.setattr(host, "vector_bytes", size)
        native_run._by_jaxpr.clear()
        native_run._by_call.clear()
        found.append([balls(execution="native", save="final").q, lanewise(layers, np.linspace(-3, 3, LANES))])
    for these in found[1:]:
        for x, y in zip(these, found[0], strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("place", [pytest.param(lambda q: 0, marks=pytest.mark.slow), jnp.argmax])
def test_a_function_at_places_is_applied(place):
    """`x.at[i].apply(f)` at known and unknown places; in large arrays it is refused."""
    gap = lambda t, q, args: q + 10
    problem = ji.Problem(lambda t, q, v, args: (-q).at[place(q)].apply(jnp.sin), gap)
    ends = [ji.solve(problem, [0.7, 0.3], [0.0, 0.0], t1=1.0, h=0.01, execution=way).q[-1] for way in WAYS]
    np.testing.assert_allclose(*ends, rtol=1e-13)
    np.testing.assert_allclose(ends[0][0], 0.39886, atol=1e-4)  # of the equation, to O(h^2)
    with pytest.raises(Unsupported, match="scatter"):
        lanewise(lambda x: (jnp.arange(600.0) * x).at[3].apply(jnp.sin), np.arange(3.0))


def test_no_entry_is_a_number_where_a_matrix_is_not_positive():
    """As LAPACK has it, of small matrices and large ones."""
    for n in (3, 30):
        a = np.stack([np.eye(n)] * 3)
        a[1, 1, 1], a[2, n - 1, n - 1] = -1.0, 0.0
        found = lanewise(lax.linalg.cholesky, a)
        np.testing.assert_array_equal(found, jax.vmap(lax.linalg.cholesky)(a))
        assert np.isnan(found[1:, 0, 0]).all()


def test_a_program_of_xla_lasts_only_where_it_means_the_same(tmp_path, monkeypatch):
    """Numbers that it closes over are part of it; calls of this process's functions, another's settings and cache are not for it."""
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    x = np.arange(3.0)

    def compiles(function, *operands):
        before = lasting.compilations
        found = lasting.PersistentJit(function)(*operands)
        return lasting.compilations - before, len(list(tmp_path.iterdir())), found

    times = lambda a: lambda x: x @ jnp.asarray(a)
    one = np.full((3, 300), 1.0)
    other = one.copy()
    other[1, 150] = 2.0
    assert compiles(times(one), x)[:2] == (1, 1)
    count, files, found = compiles(times(other), x)
    assert (count, files, found[150]) == (1, 2, 4.0)
    assert compiles(times(one), x)[:2] == (0, 2)
    # a factorisation is a call of LAPACK, which every process has
    assert compiles(jnp.linalg.cholesky, np.eye(3))[:2] == (1, 3)
    count, files, found = compiles(jnp.linalg.cholesky, 4 * np.eye(3))
    assert (count, files) == (0, 3) and np.array_equal(found, 2 * np.eye(3))
    # a function of Python is one of this process
    shape = jax.ShapeDtypeStruct((3,), float)
    called = lambda x: jax.pure_callback(lambda x: np.asarray(x) + 1, shape, x)
    for _ in range(2):
        count, files, found = compiles(called, x)
        assert (count, files) == (1, 3) and np.array_equal(found, x + 1)
    # what is whole but no program
    for file in tmp_path.iterdir():
        cache.store(file.name, b"no program")
    assert compiles(times(one), x)[:2] == (1, 3)
    # not inside a transformation, where jax looks for NaN, or keeps programs itself
    assert compiles(jax.grad(lambda x: jnp.sum(lasting.PersistentJit(times(one))(x))), x)[:2] == (1, 4)
    assert lasting.is_cacheable()
    for name, value in {"jax_debug_nans": True, "jax_compilation_cache_dir": str(tmp_path)}.items():
        before = getattr(jax.config, name)
        jax.config.update(name, value)
        assert not lasting.is_cacheable()
        jax.config.update(name, before)
    twice = lasting.PersistentJit(lambda x: 2 * x)
    with jax.enable_x64(False):
        assert twice(np.float32(1)).dtype == twice(1.0).dtype == np.float32
    assert twice(1.0).dtype == np.float64


SECOND = """
import jax, jax.numpy as jnp, numpy as np
names = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: names.append(name))
import jaximpact as ji
from jaximpact.bodies import disks
jax.config.update("jax_enable_x64", True)
at = np.stack([np.arange(4) * 0.3, np.zeros(4)], axis=1).ravel()
many = disks(np.full(4, 0.1), force=lambda t, q, v, args: -20.0 * q, lists=True)
found = ji.solve(many, at, 0 * at, t1=0.2, h=0.01, save="final")
ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q)
other = ji.ensemble(ball, [[1.0], [2.0]], [0.0], t1=2.0, h=0.1, execution="xla")
print(names.count("/jax/core/compile/backend_compile_duration"), np.asarray(found.q).tobytes().hex(), other.q.tobytes().hex())
"""


@pytest.mark.slow
def test_two_processes_at_once_and_one_behind_them(tmp_path):
    """Listed bodies, whose programs call native code by names of their own, and a ball."""
    environment = os.environ | {cache.CACHE_VARIABLE: str(tmp_path), "PYTHONPATH": str(Path(ji.__file__).parents[1])}
    start = lambda: subprocess.Popen([sys.executable, "-c", SECOND], env=environment, stdout=subprocess.PIPE, text=True)
    both = [start(), start()]
    first, second = (process.communicate()[0].split() for process in both)
    count, *values = start().communicate()[0].split()
    assert count == "0" and int(first[0]) + int(second[0]) > 2
    assert values == first[1:] == second[1:]


# breadth


SCHEMES = [ji.PaoliSchatzman(), ji.Maury(), ji.MoreauJean(), ji.EventCorrected()]
PROJECTIONS = [ji.ActiveSet(), ji.ProjectedGradient()]  # ADMM has eigenvalues, and goes through XLA


def around(problem, case, scheme, projection=None, dtype=np.float64, h=None):
    """Motions near a case of the catalogue, natively and through XLA."""
    random = np.random.default_rng(0)
    q0, v0 = (np.tile(x, (LANES, 1)) for x in (case.q0, case.v0))
    v0 = v0 + 0.01 * random.normal(size=v0.shape)
    t1, h = case.t1, case.t1 / 300
    e = 0.0 if isinstance(scheme, ji.Maury) else case.restitution
    given = {"t1": t1, "h": h, "e": e, "args": case.args, "scheme": scheme, "projection": projection}
    q0, v0 = q0.astype(dtype), v0.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # starts that point outward
        return (ji.ensemble(problem, q0, v0, execution=way, **given) for way in WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bowl", "polar-particle", "groove", "growing-spheres", "adly-thieu"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: type(s).__name__)
def test_native_motions_of_the_catalogue_are_those_of_xla(name, scheme):
    entry = catalogue.get(name)
    native, xla = around(entry.problem, next(iter(entry.cases.values())), scheme)
    # projections stop at 1e-12, which 200 steps carry on
    compare(native, xla, 1e-9, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("projection", PROJECTIONS, ids=lambda p: type(p).__name__)
def test_native_projections_are_those_of_xla(projection):
    native, xla = around(
        catalogue.get("bowl").problem, catalogue.get("bowl").case("e=0"), ji.PaoliSchatzman(), projection
    )
    compare(native, xla, 1e-9, 0.9)


@pytest.mark.slow
def test_native_single_precision_is_that_of_xla():
    entry = catalogue.get("polar-particle")
    with jax.enable_x64(False):
        native, xla = around(entry.problem, entry.case("e=0.9"), ji.PaoliSchatzman(), dtype=np.float32)
    assert native.q.dtype == np.float32
    # 200 steps of units of 1e-7, through impacts
    compare(native, xla, 1e-3, 0.9)


def test_library_functions_are_the_same_in_vectors_and_in_their_registers():
    """A step computes the force of all lanes and, in a branch, that of one register of them: functions of the C library, called lane by lane,
    are then those of two widths (with registers of 64 bytes they had one name: lanes off by O(1), clean)."""

    def force(t, q, v, args):
        x = 0.3 * jnp.tanh(q)
        return (
            jnp.arctan2(-q, jnp.ones_like(q))
            - jnp.tan(x)
            - jnp.arcsin(x)
            - jnp.log1p(x)
            + 0.1 * jnp.cbrt(1 + x) * jnp.exp(-x)
        )

    q0 = jnp.linspace(0.3, 1.2, 5)[:, None]
    run = lambda way: ji.ensemble(ji.Problem(force), q0, 0 * q0, t1=1.0, steps=2, scheme=ji.MoreauJean(), execution=way)
    native, xla = run("native"), run("xla")
    # rounding of two steps
    np.testing.assert_allclose(native.q[:, -1], xla.q[:, -1], rtol=1e-13)
    np.testing.assert_array_equal(native.status, 0)


def test_padding_makes_no_turns_of_a_loop():
    """Lanes beyond the last select no branch, so that a loop whose branches bring it on would turn until its bound: ten seconds."""
    free = ji.Problem(lambda t, q, v, args: -q)
    run = lambda: ji.ensemble(free, np.ones((3, 1)), [0.0], t1=0.1, scheme=ji.EventDriven(trials=10**7))
    run()
    begin = time.perf_counter()
    assert run().status.tolist() == [0, 0, 0]
    assert time.perf_counter() - begin < 2.0
