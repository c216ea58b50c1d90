"""Work on few lanes is the same as work on all of them and a selection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import lanes

LANES = 3 * lanes.FEW + 5


def heron(value, operands):
    """Square roots by iteration: a loop of its own, of a length that differs between lanes."""
    x, (count,) = value
    target, start = operands

    def better(carry):
        k, y = carry
        return k + 1, 0.5 * (y + target / y)

    k, root = jax.lax.while_loop(
        lambda c: jnp.max(jnp.abs(c[1] ** 2 - target)) > 1e-9 * jnp.max(target), better, (0, start)
    )
    return root + 0 * x, (count + k,)


def selected(pending, value, operands):
    return jax.tree.map(lambda new, old: jnp.where(pending, new, old), heron(value, operands), value)


def batch(lanes_, seed=0):
    random = np.random.default_rng(seed)
    value = random.normal(size=(lanes_, 2)), (np.arange(lanes_),)
    return value, (random.uniform(1, 100, (lanes_, 2)), np.ones(2))


AXES = (0, 0, (0, None))


@pytest.mark.parametrize("count", [0, 1, lanes.FEW, lanes.FEW + 1, LANES])
def test_few(count):
    value, operands = batch(LANES)
    pending = np.zeros(LANES, bool)
    pending[np.random.default_rng(1).permutation(LANES)[:count]] = True
    run = jax.jit(jax.vmap(lambda p, v, o: lanes.few(heron, p, v, o), in_axes=AXES))
    found = run(pending, value, operands)
    expected = jax.vmap(selected, in_axes=AXES)(pending, value, operands)
    # the same arithmetic; compiled for another width it may contract differently
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_few_alone_and_in_two_batches():
    value, operands = batch(6)
    pending = np.arange(6) % 2 == 0
    expected = jax.vmap(selected, in_axes=AXES)(pending, value, operands)
    few = lambda p, v, o: lanes.few(heron, p, v, o)
    lane = lambda i: few(pending[i], jax.tree.map(lambda x: x[i], value), (operands[0][i], operands[1]))
    alone = [lane(i) for i in range(6)]
    fold = lambda x: x.reshape(2, 3, *x.shape[1:])
    twice = jax.vmap(jax.vmap(few, in_axes=AXES), in_axes=AXES)(
        fold(pending), jax.tree.map(fold, value), (fold(operands[0]), operands[1])
    )
    for i, a in enumerate(jax.tree.leaves(expected)):
        np.testing.assert_allclose(np.stack([jax.tree.leaves(x)[i] for x in alone]), a, rtol=1e-14)
        np.testing.assert_allclose(np.reshape(jax.tree.leaves(twice)[i], a.shape), a, rtol=1e-14)


def test_work_of_one_lane_is_done_for_no_other():
    """The number of rounds of a batch tells: 100 pending lanes of 1000 take two."""
    rounds = []

    def work(value, operands):
        jax.debug.callback(lambda _: rounds.append(1), value)
        return value + 1

    pending = np.arange(1000) % 10 == 0
    found = jax.vmap(lambda p, x: lanes.few(work, p, x, ()))(pending, np.zeros(1000))
    jax.block_until_ready(found)
    np.testing.assert_array_equal(found, pending)
    assert len(rounds) == -(-pending.sum() // lanes.FEW) * lanes.FEW


def calm(x):
    a, count = x
    return (jnp.sin(a) * a[0], count + 1), a[0] > 0.5


def whole(x):
    a, count = x
    return jnp.stack([jnp.exp(a[0]) * a[1], a[0] ** 3]), count + 2


def chosen(x):
    value, pending = calm(x)
    return jax.tree.map(lambda new, old: jnp.where(pending, new, old), whole(x), value)


ORDERS = {
    "forward": jax.jacfwd,
    "reverse": jax.jacrev,
    "forward over reverse": lambda f: jax.jacfwd(jax.jacrev(f)),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f)),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f)),
}


@pytest.mark.parametrize(
    "order", [*list(ORDERS)[:2], *(pytest.param(x, marks=pytest.mark.slow) for x in list(ORDERS)[2:])]
)
def test_derivatives_of_few(order):
    """Those of the selection: of one lane, of a batch, of a sum over a batch, and of what all lanes share."""
    a, count = np.random.default_rng(0).uniform(0, 1, (LANES, 2)), np.arange(LANES)
    transform = ORDERS[order]

    def derivatives(of):
        function = lambda a, count: of((a, count))
        lane = transform(lambda a, count: function(a, count)[0])

        def total(a, scale):
            return jnp.sum(jax.vmap(lambda a, count: function(a * scale, count))(a, count[: len(a)])[0] ** 2)

        shared = transform(lambda scale: total(a, scale))(1.1)
        return lane(a[0], 0), jax.jit(jax.vmap(lane))(a, count), transform(lambda a: total(a, 1.1))(a[:5]), shared

    # the same arithmetic, in another order
    for found, expected in zip(derivatives(lanes.few_differentiated(calm, whole)), derivatives(chosen), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("way", ["xla", "native"])
def test_lanes_that_rest_bounce_fly_and_fail(way):
    """Lanes of every kind in one batch: each is as it is alone, and no inner status bit is reported."""

    def force(t, q, v, args):
        # one lane leaves the domain of its force
        return -9.81 + 1e-300 * jnp.log(args - t)

    def walls(t, q, args):
        return jnp.stack([q[0] + 0.1 * q[0] ** 2, 50 - q[0]])

    problem = ji.Problem(lambda t, q, v, args: force(t, q, v, args) * jnp.ones_like(q), walls)
    n = 80
    q0 = np.where(np.arange(n) % 4 == 0, 0.0, np.linspace(0.1, 30, n))[:, None]
    limit = np.where(np.arange(n) == 7, 0.5, 9.0)
    given = {"t1": 1.0, "h": 0.01, "e": 0.5}
    found = ji.ensemble(problem, q0, np.zeros((n, 1)), args=limit, args_axes=0, execution=way, **given)
    assert set(np.flatnonzero(found.failed)) == {7} and found.failed_at[7] == pytest.approx(0.5, abs=0.02)
    assert np.all(found.status < 2 * max(ji.Status))
    for i in (0, 4, 5, 6, 7, 40, 79):
        alone = ji.solve(problem, q0[i], np.zeros(1), args=limit[i], sensitivity="none", save="final", **given)
        for name in ("q", "v", "z", "impulse", "penetration", "residual", "iterations", "status", "failed_at"):
            # equal but for roundings: 100 steps of velocities up to 10
            np.testing.assert_allclose(
                getattr(found, name)[i], getattr(alone, name), rtol=1e-11, atol=1e-11, err_msg=name
            )
