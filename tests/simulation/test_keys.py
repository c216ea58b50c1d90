"""Keys of random numbers in calls: the numbers of a motion are the same alone, in a batch, in chunks, in parts,
and by any execution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow

H = 0.02


def shaken(t, q, v, args):
    return (1 + 0.1 * q[:, None]) * jnp.array([[0.3, -0.2, 0.5]], q.dtype)


PROBLEM = ji.Problem(lambda t, q, v, args: -q - 0.1 * v, lambda t, q, args: q, restitution=0.8, noise=shaken)
GIVEN = {"t1": 2.0, "h": H, "scheme": ji.MoreauJean()}
START = np.linspace(0.2, 1.0, 9)[:, None]


@pytest.fixture(scope="module")
def batch():
    return ji.ensemble(PROBLEM, START, np.zeros(1), key=4, execution="native", **GIVEN)


def test_lane_has_its_numbers_alone_and_in_chunks(batch):
    """Lane i has the key `jax.random.fold_in(key, i)`: to the last bit in other chunks, and alone."""
    chunks = ji.ensemble(PROBLEM, START, np.zeros(1), key=4, chunk=2, execution="native", **GIVEN)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(4), i))(jnp.arange(9))
    own = ji.ensemble(PROBLEM, START, np.zeros(1), key=keys, execution="native", **GIVEN)
    one = ji.ensemble(PROBLEM, START[5:6], np.zeros(1), key=keys[5:6], execution="native", **GIVEN)
    for found, lanes in ((chunks, batch), (own, batch), (one, batch[5:6])):
        np.testing.assert_array_equal(found.q, lanes.q)
        np.testing.assert_array_equal(found.v, lanes.v)
    assert len(np.unique(batch.v)) == 9 and (batch.impulse > 0).any()


def test_xla_native_code_and_solve_have_the_same_numbers(batch):
    """Equal bits, and motions that differ by the rounding of 100 steps."""
    found = ji.ensemble(PROBLEM, START, np.zeros(1), key=4, execution="xla", **GIVEN)
    np.testing.assert_allclose(found.v, batch.v, atol=1e-12)
    alone = ji.solve(PROBLEM, START[5], [0.0], key=jax.random.fold_in(jax.random.key(4), 5), save="final", **GIVEN)
    np.testing.assert_allclose(alone.v, batch.v[5], atol=1e-12)


def test_keys_alone_make_a_batch():
    """Many keys and one start, by `ensemble` and by `jax.vmap` of `solve`."""
    keys = jax.random.split(jax.random.key(0), 3)
    found = ji.ensemble(PROBLEM, [1.0], [0.0], key=keys, **GIVEN)
    mapped = jax.vmap(lambda key: ji.solve(PROBLEM, [1.0], [0.0], key=key, sensitivity="none", **GIVEN).q[-1])(keys)
    np.testing.assert_allclose(found.q[:, -1], mapped, atol=1e-12)
    np.testing.assert_array_equal(found.q, ji.ensemble(PROBLEM, [1.0], [0.0], key=jax.random.key_data(keys), **GIVEN).q)


def test_motion_in_parts_is_the_whole_motion():
    """Steps count from t = 0: who goes on at t0 with the same key has the numbers of the whole motion,
    and not those of its begin again."""
    given = {"h": H, "scheme": ji.MoreauJean(), "key": 3, "save": "final"}
    whole = ji.solve(PROBLEM, [1.0], [0.0], t1=2.0, **given)
    half = ji.solve(PROBLEM, [1.0], [0.0], t1=1.0, **given)
    rest = ji.solve(PROBLEM, half.q[-1], half.v[-1], t0=1.0, t1=2.0, **given)
    np.testing.assert_allclose(rest.v, whole.v, atol=1e-13)


def test_single_precision_has_the_same_bits():
    """Numbers in float32 are those of float64 but for 24 bits: of 20 steps of a free body their sum,
    to a few units in the last place."""
    free = ji.Problem(lambda t, q, v, args: 0 * q, noise=lambda t, q, v, args: jnp.eye(2, dtype=q.dtype))
    ends = []
    for dtype in (np.float32, np.float64):
        zero = np.zeros(2, dtype)
        ends.append(ji.solve(free, zero, zero, t1=1.0, steps=20, key=1, scheme=ji.MoreauJean(), save="final").v[-1])
        assert ends[-1].dtype == dtype
    np.testing.assert_allclose(*ends, rtol=1e-5)


@pytest.mark.parametrize("way", ["native", slow("xla")])
def test_noise_that_is_no_number_fails_in_its_lane_alone(way, batch):
    given = GIVEN | {"key": 4, "args_axes": 0, "execution": way}
    problem = PROBLEM.replace(noise=lambda t, q, v, args: shaken(t, q, v, args) * (1 + 0 * jnp.log(args - t)))
    found = ji.ensemble(problem, START, np.zeros(1), args=np.where(np.arange(9) == 3, 0.5, 9.0), **given)
    assert list(np.flatnonzero(found.failed)) == [3]
    others = np.arange(9) != 3
    np.testing.assert_allclose(found.v[others], batch.v[others], atol=1e-12)


def test_sensitivities_of_one_motion_are_those_of_solve():
    """Of one motion its key is the key, not that of lane 0."""
    given = GIVEN | {"key": 3}
    found = ji.sensitivities(PROBLEM, [1.0], [0.0], wrt="q0", sensitivity="discrete", **given).value["q"]
    np.testing.assert_allclose(found, ji.solve(PROBLEM, [1.0], [0.0], save="final", **given).q[-1], rtol=1e-12)


def test_noise_that_closes_over_traced_numbers_has_their_derivative():
    """v = s sqrt(h) times a sum of numbers: linear in s."""

    def end(s):
        free = ji.Problem(lambda t, q, v, args: 0 * q, noise=lambda t, q, v, args: s * jnp.ones((1, 1)))
        return ji.solve(free, jnp.zeros(1), jnp.zeros(1), t1=1.0, steps=4, key=1, save="final").v[-1, 0]

    value, slope = map(float, jax.value_and_grad(end)(2.0))
    assert slope == pytest.approx(value / 2, rel=1e-14) and abs(value) > 0.1
