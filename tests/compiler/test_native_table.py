"""Native code computes what XLA does, of numbers of every kind, or says that it cannot: every function of a table,
and its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaximpact.compiler.llvm import over_lanes
from jaximpact.compiler.scalar import Unsupported
from support import native_table as table

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")  # of 64 bits, in single precision
FAMILIES = table.families()
TOLERANCES = {
    np.float64: 1e-12,
    np.float32: 2e-5,
}  # of sums of a few terms of other order, and of functions to some ulp
OF_TERMS = ("reductions", "algebra", "scatters", "control")  # of order one, which may cancel
TENTH = 10


@pytest.fixture(autouse=True)
def promotion():
    """Expressions are as users write them."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def leaves(values, kinds):
    return [x for x in jax.tree.leaves(values) if x.dtype.kind in kinds]


def derivative(function, backwards):
    """Derivative of a function by all its real operands, along one direction, or in reverse mode."""

    def ones(values):
        return [jnp.asarray(np.cos(np.arange(x.size)), x.dtype).reshape(x.shape) for x in values]

    def derived(*operands):
        where = [n for n, x in enumerate(operands) if x.dtype.kind == "f"]
        real = [operands[n] for n in where]

        def of_real(*values):
            given = dict(zip(where, values, strict=True))
            return leaves(function(*(given.get(n, x) for n, x in enumerate(operands))), "f")

        if not backwards:
            return jax.jvp(of_real, real, ones(real))[1]
        found, back = jax.vjp(of_real, *real)
        return back(ones(found))

    return derived


def flushed(x):
    """x with denormal numbers and signs of zero removed, as XLA treats them."""
    x = np.asarray(x)
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, 0, x) if x.dtype.kind == "f" else x


def compare(expressions, change, operands, tolerance, least=0.0):
    """Compares native code with XLA on one program of all expressions."""
    functions = [change(table.function(x)) for x in expressions]
    every = lambda *operands: [function(*operands) for function in functions]
    found, expected = over_lanes(jax.jit(every), (0,) * len(operands))(*operands), jax.jit(jax.vmap(every))(*operands)
    wrong = []
    for expression, these, those in zip(expressions, found, expected, strict=True):
        for x, y in zip(jax.tree.leaves(these), jax.tree.leaves(those), strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype, expression
            x, y = flushed(x), flushed(y)
            if change is not same:
                x = np.where(np.isfinite(y), x, y)
            if not np.allclose(x, y, rtol=tolerance, atol=least, equal_nan=True):
                wrong.append(expression)
    assert wrong == []


def same(function):
    return function


def ordinary(x):
    """Derivatives of what is no finite number, or nearly none, are told apart by no one: XLA reorders their products,
    native code knows which of their factors are zero."""
    if x.dtype.kind != "f":
        return x
    size = np.abs(x)
    return np.where(np.isfinite(x) & ((x == 0) | (size > 1e-3)) & (size < 1e3), x, 0.7).astype(x.dtype)


def supported(family):
    return [x for x in FAMILIES[family] if not x.startswith("!")]


def unsupported():
    return [x[1:].strip() for lines in FAMILIES.values() for x in lines if x.startswith("!")]


def test_a_tenth_of_the_table():
    """Some of every family, in one program."""
    compare([x for name in FAMILIES for x in supported(name)[::TENTH]], same, table.operands(np.float64), 1e-12)


@pytest.mark.parametrize("expression", unsupported()[::TENTH])
def test_what_has_no_rule_is_refused(expression):
    refused(expression)


def refused(expression):
    operands = table.operands(np.float64)
    with pytest.raises(Unsupported):
        over_lanes(jax.jit(table.function(expression)), (0,) * len(operands))(*operands)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "single"])
@pytest.mark.parametrize("family", FAMILIES)
def test_values(family, dtype):
    with jax.enable_x64(dtype == np.float64):
        tolerance = TOLERANCES[dtype]
        compare(supported(family), same, table.operands(dtype), tolerance, tolerance * (family in OF_TERMS))


def has_derivative(expression, backwards, operands):
    """Whether jax has a derivative of the expression, made of functions that native code has."""
    if "gammaln" in expression or ("OWN_VJP" in expression and not backwards):
        return False
    try:
        jax.eval_shape(derivative(table.function(expression), backwards), *(x[0] for x in operands))
    except (NotImplementedError, TypeError, ValueError):
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("integers", "comparison")])
def test_derivatives_are_those_of_xla(family, backwards):
    operands = [ordinary(x) for x in table.operands(np.float64)]
    expressions = [x for x in supported(family) if has_derivative(x, backwards, operands)]
    compare(expressions, lambda f: derivative(f, backwards), operands, 1e-11, 1e-12)


@pytest.mark.slow
def test_all_that_has_no_rule_is_refused():
    for expression in unsupported():
        refused(expression)
