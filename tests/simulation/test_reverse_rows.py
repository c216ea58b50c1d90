"""Reverse mode of kept rows, by many inputs: native code walks back through the steps and gives what XLA gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

STEPS, H = 40, 0.02
# before the first step's end, two in one step, at a step's end up to rounding, the last step
TIMES = np.array([0.0, 0.0137, 0.0251, 0.0349, 15 * H, 0.5123, 0.7911])
WEIGHTS = {
    "layer": 0.3 * np.random.default_rng(0).normal(size=(3, 12)),
    "out": 0.3 * np.random.default_rng(1).normal(size=12),
}
kept = lambda t, q, v, args: {"at": q * args["out"][0] + t, "speed": jnp.sum(v**2)}
SAVES = {
    "all": "all",
    "every": 7,
    "times": TIMES,
    "function": ji.Save(every=3, function=kept),
    "function at times": ji.Save(times=TIMES[[0, 2, 4]], function=kept),
    "final": "final",
}


def push(t, q, v, args):
    """Force made of 48 numbers, on the first coordinate."""
    return args["out"] @ jnp.tanh(jnp.stack([q[0], v[0], jnp.cos(3 * t)]) @ args["layer"])


def ball():
    """Falls on a floor, and touches a wall after some steps."""
    force = lambda t, q, v, args: jnp.stack([push(t, q, v, args), -9.81 + 0 * t])
    energy = lambda t, q, v, args: 0.5 * v @ v + args["out"][1] * q[1]
    gaps = lambda t, q, args: jnp.stack([q[1], 0.6 - q[0]])
    return ji.Problem(force, gaps, energy=energy), [0.1, 0.12], [1.5, -0.3]


def pendulum():
    """Two links that hit stops, a mass matrix of the angles."""
    coupled = lambda q: 0.5 * jnp.cos(q[0] - q[1])
    mass = lambda q, args: jnp.stack([jnp.stack([4.0 / 3, coupled(q)]), jnp.stack([coupled(q), 1.0 / 3])])

    def force(t, q, v, args):
        turn = 0.5 * jnp.sin(q[0] - q[1])
        first = -turn * v[1] ** 2 - 14.7 * jnp.sin(q[0]) + push(t, q, v, args)
        return jnp.stack([first, turn * v[0] ** 2 - 4.9 * jnp.sin(q[1])])

    stops = lambda t, q, args: jnp.stack([q[0] + 0.3, q[1] - q[0] + 0.5])
    return ji.Problem(force, stops, mass), [0.4, 0.5], [-1.0, -1.5]


SYSTEMS = {"ball": ball(), "pendulum": pendulum()}


def loss(weights, e, q0, system, save, way, scheme=None, told=False, t1=STEPS * H, steps=STEPS):
    """Weighted sum of everything saved in the rows, each number with its own weight."""
    problem, _, v0 = SYSTEMS[system]
    s = ji.solve(problem, q0, v0, t1=t1, steps=steps, e=e, args=weights, save=save, scheme=scheme, execution=way)
    rows = (s.q, s.v, s.z, s.impulse, s.t, s.energy, s.values)
    total = sum(jnp.sum(x * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)) for x in jax.tree.leaves(rows))
    return total + 10 * s.penetration + s.residual if told else total


def numbers(system, dtype=None):
    """Weights, restitution and start."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype or float), (WEIGHTS, 0.7, np.array(SYSTEMS[system][1])))


def gradient(**given):
    return jax.jit(jax.grad(lambda *some: loss(*some, **given), (0, 1, 2)))


def close(found, expected, tolerance):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.max(np.abs(y)))


slow = pytest.mark.slow
CASES = [
    pytest.param("ball", "times", ji.PaoliSchatzman(), False, marks=slow),
    *(pytest.param("ball", save, ji.EventCorrected(), False, marks=slow) for save in SAVES),
    *(pytest.param(system, save, ji.MoreauJean(), True, marks=slow) for system in SYSTEMS for save in SAVES),
    pytest.param("pendulum", "times", ji.PaoliSchatzman(), False, marks=slow),
    pytest.param("pendulum", "all", ji.EventCorrected(), True, marks=slow),
]


@pytest.mark.parametrize("system, save, scheme, told", CASES)
def test_gradients_of_rows_are_those_of_xla(system, save, scheme, told):
    """With what is reported of the whole motion, or without."""
    given = {"system": system, "save": SAVES[save], "scheme": scheme, "told": told}
    found, expected = (gradient(way=way, **given)(*numbers(system)) for way in ("native", "xla"))
    # roundings of 40 steps, amplified across impacts
    close(found, expected, 1e-10)


@pytest.mark.parametrize(
    "system, save, scheme, told",
    [
        pytest.param("ball", "all", ji.MoreauJean(), True, marks=slow),
        pytest.param("ball", "function", ji.PaoliSchatzman(), False, marks=slow),
        ("ball", "times", None, False),
        pytest.param("pendulum", "times", ji.PaoliSchatzman(), False, marks=slow),
    ],
)
def test_gradients_of_rows_are_those_of_forward_mode(system, save, scheme, told):
    """Along directions drawn at random, the size of the numbers."""
    given = {"system": system, "save": SAVES[save], "scheme": scheme, "told": told, "way": "native"}
    at = numbers(system)
    push = jax.jit(lambda to: jax.jvp(lambda *some: loss(*some, **given), at, to)[1])
    found = gradient(**given)(*at)
    assert np.all([np.any(np.abs(x) > 1e-3) for x in jax.tree.leaves(found)])
    random = np.random.default_rng(0)
    for _ in range(3):
        to = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape)), at)
        expected = float(push(to))
        np.testing.assert_allclose(
            sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), found, to))), expected, rtol=1e-10
        )


def test_lanes_of_several_threads():
    """Lanes have the gradients of each alone, as many as threads share."""
    given = {"system": "ball", "way": "native"}
    weights, e, q0 = numbers("ball")
    starts = np.asarray(q0)[None] + 0.001 * np.arange(32.0)[:, None]
    single = gradient(save=TIMES, **given)
    lanes = jax.vmap(single, (None, None, 0))(weights, e, jnp.asarray(starts))
    for k in (0, 17, 31):
        close(jax.tree.map(lambda x, k=k: x[k], lanes), single(weights, e, jnp.asarray(starts[k])), 1e-12)


@slow
def test_rows_in_single_precision():
    single = gradient(save=TIMES, system="ball", way="native")
    low = single(*numbers("ball", np.float32))
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(low))
    # roundings of float32 over 40 steps, amplified across impacts
    close(low, single(*numbers("ball")), 1e-3)


@slow
def test_shared_numbers_have_the_sum_and_single_precision_its_times():
    given = {"system": "ball", "way": "native", "save": TIMES}
    weights, e, q0 = numbers("ball")
    starts = jnp.stack([q0, q0 + 0.01, q0 - 0.01])
    lanes = jax.vmap(gradient(**given), (None, None, 0))(weights, e, jnp.asarray(starts))
    summed = jax.grad(lambda w: sum(loss(w, e, x, **given) for x in starts))
    close(summed(weights), jax.tree.map(lambda x: x.sum(axis=0), lanes[0]), 1e-12)
    problem, _, v0 = SYSTEMS["ball"]
    rows = ji.solve(
        problem, np.float32(q0), v0, t1=STEPS * H, steps=STEPS, args=WEIGHTS, save=TIMES, execution="native"
    )
    np.testing.assert_array_equal(rows.t, np.float32([*TIMES, STEPS * H]))


@pytest.mark.slow
def test_rows_at_times_that_lanes_do_not_share():
    """Times that belong to other steps in other lanes go through XLA."""
    weights, e, q0 = numbers("ball")
    end = lambda t1: jax.grad(lambda w: loss(w, e, q0, "ball", TIMES[:2], "native", t1=t1))(weights)
    with pytest.raises(ValueError, match="times that belong to other steps in other lanes"):
        jax.vmap(end)(jnp.array([0.8, 0.9]))
