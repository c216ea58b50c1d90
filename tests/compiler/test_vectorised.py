"""The compiler's public call: what `jax.vmap` computes, in values and derivatives, and refusals in words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching

from jaximpact.compiler import Unsupported, vectorised

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(7, 3))
SHARED = {"rate": jnp.array(0.3), "matrix": RANDOM.normal(size=(3, 3))}


def walk(x, shared):
    """Twenty steps, some of which turn round, with rows; and a loop that takes another number of turns in each lane."""

    def step(state, _):
        y, number = state
        y = y + 0.1 * (jnp.sin(y) * shared["rate"] - shared["matrix"] @ y)
        return (lax.cond(y[0] > 0.5, lambda y: y.at[0].multiply(0.7), lambda y: y, y), number + 1), y.sum()

    (y, number), sums = lax.scan(step, (x, 0), None, length=20)
    doubled = lax.while_loop(lambda z: z.sum() < 100, lambda z: 2 * z, jnp.abs(lax.stop_gradient(y)) + 1)
    return {"end": y, "number": number, "sums": sums[::5], "doubled": doubled}


def size(function):
    """A number that all real results of `walk` by a function of all lanes go into."""

    def total(x, shared):
        found = function(x, shared)
        return (found["end"] ** 2).sum() + jnp.tanh(found["sums"]).prod(-1).sum()

    return total


NATIVE, XLA = vectorised(walk, (0, None)), jax.vmap(walk, (0, None))


def agree(found, expected, digits=1e-12):
    """The same operations in another order of roundings, of numbers near 1."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=digits, atol=digits)


def test_values_are_those_of_vmap():
    expected = XLA(X, SHARED)
    agree(NATIVE(X, SHARED), expected)
    agree(jax.jit(lambda *given: NATIVE(*given))(X, SHARED), expected)
    agree(vectorised(walk, (1, None))(X.T, SHARED), expected)
    agree(jax.vmap(NATIVE, (0, None))(np.stack([X, -X]), SHARED), jax.vmap(XLA, (0, None))(np.stack([X, -X]), SHARED))
    with jax.disable_jit():
        agree(NATIVE(X[:2], SHARED), XLA(X[:2], SHARED))


def test_single_precision_stays_single():
    given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (X, SHARED))
    agree(NATIVE(*given), XLA(*given), 1e-5)


def test_many_lanes_go_to_all_cores():
    x = RANDOM.normal(size=(1001, 3))
    agree(NATIVE(x, SHARED), XLA(x, SHARED))


def test_no_lanes_are_no_error():
    agree(NATIVE(X[:0], SHARED), XLA(X[:0], SHARED))
    agree(jax.grad(size(NATIVE), 1)(X[:0], SHARED), jax.grad(size(XLA), 1)(X[:0], SHARED))


def test_gradients_by_lanes_and_by_what_they_share():
    expected = jax.grad(size(XLA), (0, 1))(X, SHARED)
    agree(jax.grad(size(NATIVE), (0, 1))(X, SHARED), expected)
    agree(jax.jit(jax.grad(jax.checkpoint(size(NATIVE)), (0, 1)))(X, SHARED), expected)


def test_forward_derivatives():
    changes = jax.tree.map(jnp.ones_like, (X, SHARED))
    push = lambda function: jax.jvp(size(function), (X, SHARED), changes)
    agree(push(NATIVE), push(XLA))
    agree(jax.jacfwd(size(NATIVE), 1)(X, SHARED), jax.grad(size(XLA), 1)(X, SHARED))


def test_second_derivatives():
    """Forward over reverse mode, reverse over forward and reverse over reverse."""

    def one(x, rate):
        return lax.scan(lambda x, _: (x + rate * jnp.sin(x) * x[::-1], None), x, None, length=3)[0]

    few, total = X[:2], lambda of: lambda x: (of(x, 0.3) ** 2).sum()
    native, expected = total(vectorised(one, (0, None))), jax.hessian(total(jax.vmap(one, (0, None))))(few)
    agree(jax.hessian(native)(few), expected)
    along = lambda x: jax.jvp(native, (x,), (few,))[1]
    agree(jax.grad(along)(few), jnp.einsum("abcd,cd->ab", expected, few))
    agree(jax.grad(lambda x: (jax.grad(native)(x) * few).sum())(few), jnp.einsum("abcd,cd->ab", expected, few))


def test_a_function_may_close_over_numbers_that_jax_traces():
    def total(rate, x):
        return vectorised(lambda x: lax.cond(x[0] > 0, lambda x: jnp.sin(rate * x), lambda x: rate * x, x))(x).sum()

    exact = jnp.where(X[:, :1] > 0, X * np.cos(2 * X), X).sum()
    agree(jax.jit(jax.grad(total))(2.0, X), exact)
    agree(jax.vmap(jax.grad(total), (0, None))(jnp.array([2.0, 2.0]), X), jnp.stack([exact, exact]))


def test_a_linear_function_has_its_transpose():
    function = vectorised(lambda x, y: y * (2 * x + x[::-1]))
    found = jax.linear_transpose(lambda x: function(x, X), X)(jnp.ones_like(X))[0]
    agree(found, 2 * jnp.asarray(X) + X[:, ::-1])


def test_numbers_that_are_no_floats_have_no_derivatives():
    function = vectorised(lambda x, n: {"scaled": x * n.astype(x.dtype), "next": n + 1})
    numbers = np.arange(7)
    agree(jax.grad(lambda x: function(x, numbers)["scaled"].sum())(X[:, 0]), jnp.arange(7.0))


def test_devices_share_lanes():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("lane",))
    part = jax.sharding.PartitionSpec("lane")
    shared = jax.shard_map(lambda x: NATIVE(x, SHARED)["end"], mesh=mesh, in_specs=part, out_specs=part)
    agree(jax.jit(shared)(X), XLA(X, SHARED)["end"])


@pytest.mark.parametrize(
    ("function", "given", "reason"),
    [
        (jnp.fft.rfft, X, "fft"),
        (lambda x: x, jnp.asarray(X, jnp.bfloat16), "bfloat16"),
        (lambda x: jax.debug.print("{}", x) or x, X, "debug.print"),
        (jax.random.normal, jax.random.split(jax.random.key(0), 7), "random key"),
        (lambda x: jax.pure_callback(np.sin, x, x), X, "pure_callback"),
    ],
)
def test_a_refusal_names_the_reason_and_the_cure(function, given, reason):
    with pytest.raises(Unsupported, match=f"{reason}.*call jax.vmap"):
        vectorised(function)(given)


@pytest.mark.parametrize("n", [3, 40])  # scalars, and arrays in memory
@pytest.mark.parametrize(
    "types", [("f4", "f8", None), ("f4", "f4", "f8"), ("i8", "f8", None), ("i1", "i1", "i4"), ("?", "f8", None)]
)
def test_products_of_mixed_types(types, n):
    *types, result = types
    a, b = (
        RANDOM.integers(-9, 9, size=(5, n, n)).astype(x) / np.array(8).astype(x if x != "?" else "i1") for x in types
    )
    a, b = a.astype(types[0]), b.astype(types[1])
    product = lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=result)
    # eighths, whose sums have no rounding
    agree(vectorised(product)(a, b), jax.vmap(product)(a, b), 0)


def foreign(name, compute):
    """A primitive as equinox makes them: it computes what jax's operations do, and reduces over a batch axis too."""
    primitive = Primitive(name)
    primitive.def_impl(compute)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(jax.eval_shape(compute, x).shape, bool))
    batching.primitive_batchers[primitive] = lambda given, axes: (primitive.bind(*given), None)
    return primitive.bind


@pytest.mark.parametrize("n", [3, 1000])  # scalars, and arrays in memory
def test_primitives_of_other_libraries_compute_what_their_implementation_does(n):
    of_any, same = foreign("unvmap_any", jnp.any), foreign("nonbatchable", lambda x: x)
    x = np.zeros((7, n), bool)
    x[[0, 3], n - 1] = True
    # a lane knows nothing of the others: by jax.vmap there is one answer for all lanes
    np.testing.assert_array_equal(vectorised(lambda x: of_any(same(x)))(x), x.any(1))


@pytest.mark.parametrize("n", [4, 30])
def test_rows_of_a_factorisation_in_their_order(n):
    order = lambda a: lax.linalg.lu_pivots_to_permutation(lax.linalg.lu(a)[1], n)
    a = RANDOM.normal(size=(5, n, n))
    np.testing.assert_array_equal(vectorised(order)(a), jax.vmap(order)(a))
