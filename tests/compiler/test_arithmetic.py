"""Functions of one number in native code: sines, exponentials and arithmetic at numbers of every kind and size."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaximpact as ji
from jaximpact.compiler.llvm import over_lanes
from support.native_table import lanewise


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
        # the double that is closest to a multiple of pi/2 (Muller et al., Handbook of Floating-Point Arithmetic, 2010,
        # table 11.1)
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


CLOSE = ["exp", "exp2", "expm1", "log", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "cbrt",
    "erf", "logistic", "rsqrt"]  # fmt: skip


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


def test_library_functions_are_the_same_in_vectors_and_in_their_registers():
    """A step computes the force of all lanes and, in a branch, that of one register of them: functions of the C
    library, called lane by lane, are then those of two widths (with registers of 64 bytes they had one name:
    lanes off by O(1), clean)."""

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
