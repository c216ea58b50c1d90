"""Steps of a block of lanes before the next ones: what is the same in all lanes is computed once a step, and the bits
are those of vector after vector."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaximpact as ji
from jaximpact.compiler.llvm import call as native_run
from jaximpact.compiler.llvm import over_lanes
from jaximpact.compiler.llvm.emitter import emit
from jaximpact.compiler.scalar.interpreter import program_inputs


def shaken(steps, omega, wall, q, v):
    """What a step with contact has: values that it alone changes, two exchanged ones, counts, a mask, and a table in
    time; a look now and then."""
    table = jnp.linspace(0.0, 1.0, 700) ** 2

    def body(carry):
        n, q, v, last, (one, other), count, ever = carry
        t = 0.01 * n.astype(q.dtype)
        force = jnp.sin(omega * t) - q + jnp.interp(t, jnp.linspace(0.0, 4.0, 700), table)
        # a loop within a step that all lanes leave together, and one that they do not
        v_new = lax.fori_loop(0, 3, lambda i, u: v + 0.005 * (force - 0.1 * u) + 0.0025 * force * jnp.cos(t), v)
        v_new = lax.while_loop(lambda u: jnp.abs(u) > 2.5, lambda u: 0.9 * u, v_new)
        q_new = q + 0.01 * v_new

        def struck():
            return wall, -0.8 * v_new, v_new, count + 1, ever | (v_new < -1)

        found = lax.cond(q_new < wall, struck, lambda: (q_new, v_new, last, count, ever))
        q_new, v_new, last, count, ever = found
        look = n % 7 == 0
        last, count = lax.cond(look, lambda: (last + jnp.cos(omega * t) * q, count + 100), lambda: (last, count))
        return n + 1, q_new, v_new, last, (other + 0 * q, one), count, ever

    start = jnp.zeros((), jnp.int32), q, v, jnp.zeros_like(q), (q, v), jnp.zeros((), jnp.int32), q > 1
    end = lax.while_loop(lambda carry: carry[0] < steps, body, start)
    # a second loop, after the first: it starts from what that one carried, and from what came before it
    again = lax.fori_loop(0, 3, lambda i, x: (x[1] * omega, x[0] + end[1]), (end[2], v))
    return end[1:], again


SHAKEN = jax.jit(shaken)
AXES = (None, None, 0, 0, 0)


def lanes_of(count):
    random = np.random.default_rng(count)
    return random.uniform(-0.5, 0.0, count), random.uniform(0.0, 1.0, count), random.uniform(-2.0, 1.0, count)


@pytest.mark.parametrize("count", [1, 37, 1300])
def test_bits_are_those_of_vector_after_vector(monkeypatch, count):
    """One lane, a block that is not full, and several; no step at all."""
    for steps in (150, 0):
        given = np.int32(steps), 2.6, *lanes_of(count)
        found = over_lanes(SHAKEN, AXES)(*given)
        with monkeypatch.context() as patched:
            patched.setattr(native_run, "MAX_OPS_IN_BLOCKS", 0)
            native_run._by_jaxpr.clear()
            native_run._by_call.clear()
            one_by_one = over_lanes(SHAKEN, AXES)(*given)
        native_run._by_jaxpr.clear()
        native_run._by_call.clear()
        assert steps == 0 or np.any(found[0][4] > 2200) or count == 1, "22 looks, and some are to be struck"
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(one_by_one), strict=True):
            np.testing.assert_array_equal(x, y)
        # products and sums are fused or not: 150 steps grow a rounding error of 1e-16 by less than 1e4
        expected = jax.vmap(shaken, in_axes=AXES)(*given)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def text_of(function, *members, blocks=True, width=8):
    closed = jax.jit(function).trace(*members).jaxpr
    variables, _ = program_inputs(closed)
    varies = [v.aval.dtype == np.float64 and i > 1 for i, v in enumerate(variables)]
    return emit(closed, variables, varies, width, True, blocks=blocks).ir


def test_what_is_the_same_in_all_lanes_is_computed_once_a_step():
    """The sine of the force, a table's entry and the cosine of the look are scalars between the sections; in these
    there is no scalar arithmetic."""
    text = text_of(shaken, np.int32(1), 2.6, -0.5, 0.0, 0.0)
    # the sections of a step: before, within and after the loop in it
    step = text.split("section1:")[1].split("left3:")[0]
    assert "double @llvm.fma.f64" in text and "section3:" in step
    within = [x.split("left")[0] for x in step.split("section")]
    assert not [line for x in within for line in x.splitlines() if " double @" in line or "= fmul double" in line]
    assert "section" not in text_of(shaken, np.int32(1), 2.6, -0.5, 0.0, 0.0, blocks=False)
    # without a blow a step stores position and velocity and the two that are exchanged; what else a blow changes is
    # stored in the branch
    blocks = re.split(r"\n(?=\w+:)", step.split("section3:")[1])
    assert sum(x.count("store <8 x") for x in blocks if not x.startswith("inside")) == 4
    assert sum(x.count("store <8 x") for x in blocks if x.startswith("inside")) == 5


def test_what_a_step_knows_is_not_known_behind_the_loop():
    """A force that all lanes share, of what the loop has carried: the last step knew that of the state before."""
    force = jax.jit(lambda x: jnp.sin(3 * x) - x)

    def function(steps, x, q, v):
        def body(carry):
            n, x, q, v = carry
            v_new = 0.99 * v + 0.01 * (force(x) - q)
            return n + 1, x + 0.1 * force(x), q + 0.01 * v_new, v_new

        _, x, q, v = lax.while_loop(lambda carry: carry[0] < steps, body, (jnp.zeros((), jnp.int32), x, q, v))
        return q + force(x), v

    assert "section1" in text_of(function, np.int32(1), 0.4, 0.0, 0.0)
    q, v = np.linspace(0.0, 1.0, 700), np.linspace(-1.0, 1.0, 700)
    for steps in (0, 5):
        found = over_lanes(jax.jit(function), AXES[:4])(np.int32(steps), 0.4, q, v)
        expected = jax.vmap(function, in_axes=AXES[:4])(np.int32(steps), 0.4, q, v)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-14)


def test_arrays_in_memory_stay_within_vectors():
    """An array of 600 entries is loops over memory, which the vectors of a block would share:
    such a program is not cut."""

    def function(steps, omega, x, v):
        wave = x * jnp.sin(jnp.arange(600.0))
        body = lambda i, y: y + 0.1 * jnp.sum(wave * y) + jnp.sin(omega * i.astype(float))
        return lax.fori_loop(0, steps, body, v)

    assert "section" not in text_of(function, np.int32(1), 2.6, 0.0, 0.0)
    x, v = np.linspace(0.0, 1e-3, 700), np.linspace(0.0, 1.0, 700)
    found = over_lanes(jax.jit(function), (None, None, 0, 0))(np.int32(5), 2.6, x, v)
    expected = jax.vmap(function, in_axes=(None, None, 0, 0))(np.int32(5), 2.6, x, v)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_nan_in_one_lane_stays_there(dtype):
    """1000 lanes of an oscillator beside a wall, in two blocks: one ends in NaN,
    the others have the bits that they have without it."""
    force = lambda t, q, v, args: jnp.cos(dtype(2.6) * t) - q - dtype(0.1) * v + 0 * jnp.log(args - t)
    problem = ji.Problem(force, lambda t, q, args: q + dtype(0.3))
    q0 = np.linspace(-0.2, 1.5, 1000, dtype=dtype)[:, None]
    args = np.full(1000, 10, dtype)
    call = lambda args: ji.ensemble(problem, q0, 0 * q0, t1=3.0, steps=300, e=0.8, args=args, args_axes=0)
    right = call(args)
    args[700] = 2
    found = call(args)
    others = np.arange(1000) != 700
    assert np.isnan(found.q[700, -1, 0]) and found.failed[700] and not np.any(found.failed[others])
    assert found.q.dtype == dtype and np.any(right.impulse > 0)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(x[others], y[others])
