"""Predictions of Kalman filters against closed forms: flight without impacts, the saltation matrix of one, times of
bounces, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status, analysis

G, E, T = 9.81, 0.8, 0.1
BALL = ji.Problem(lambda t, q, v, args: -args["g"] * jnp.ones_like(q), lambda t, q, args: q)
OWN = {"args": {"g": G}, "unknown": ("problem.restitution", "g"), "save": ji.Events(impacts=1)}
SPREAD = np.array([[4e-4, 1e-4, 0, 0], [1e-4, 9e-4, 2e-4, 0], [0, 2e-4, 1e-3, 0], [0, 0, 0, 1e-3]])
FLIGHT, BOUNCE, BELOW = [1.0, -0.5, E, G], [0.05, -1.0, E, G], [-0.01, -1.0, E, G]


def first_bounce(solution):
    return solution.events.t


def bounced(x):
    """State after T and time of the bounce of a ball that bounces once, by its parabolas."""
    q, v, e, g = x
    speed = jnp.sqrt(v**2 + 2 * g * q)
    s = (v + speed) / g
    return jnp.stack([e * speed * (T - s) - g * (T - s) ** 2 / 2, e * speed - g * (T - s), e, g, s])


@pytest.fixture(scope="module")
def both():
    """A ball that bounces and one below the floor, linear."""
    return analysis.predict(BALL, [BOUNCE, BELOW], [SPREAD, SPREAD], T, output=first_bounce, **OWN)


@pytest.mark.parametrize("method", ["linear", "sigma"])
def test_flight_is_exact_with_both_methods(method):
    found = analysis.predict(BALL, FLIGHT[:2], SPREAD[:2, :2], T, args={"g": G}, e=E, method=method)
    f = np.array([[1, T], [0, 1]])
    spread = SPREAD[:2, :2]
    # affine in (q, v), which both methods carry exactly: round-off alone
    np.testing.assert_allclose(found.mean, [1 - 0.5 * T - G * T**2 / 2, -0.5 - G * T], rtol=1e-13)
    np.testing.assert_allclose(found.jacobian, f, atol=1e-13)
    np.testing.assert_allclose(found.covariance, f @ spread @ f.T, atol=1e-16)
    np.testing.assert_allclose(found.cross, spread @ f.T, atol=1e-16)
    assert found.status == 0


def test_the_jacobian_across_an_impact_is_the_saltation(both):
    exact = jax.jacfwd(bounced)(jnp.array(BOUNCE))
    jacobian, spread = both.jacobian[0], both.covariance[0]
    # tolerance of EventDriven, 1e-9, times an impact's amplification
    np.testing.assert_allclose(both.mean[0], bounced(jnp.array(BOUNCE)), atol=1e-8)
    np.testing.assert_allclose(jacobian, exact, atol=1e-7)
    np.testing.assert_allclose(spread, exact @ SPREAD @ exact.T, atol=1e-9)
    np.testing.assert_allclose(both.cross[0], SPREAD @ exact.T, atol=1e-9)
    assert both.status[0] == 0


def test_a_ball_measured_below_the_floor_has_bounced(both):
    on = jnp.array(BELOW).at[0].set(0.0)
    slope = jax.jacfwd(bounced)(on)
    # to the share 1e-4 of the step after which it strikes
    np.testing.assert_allclose(both.mean[1], bounced(on) + slope[:, 0] * BELOW[0], atol=1e-4)
    np.testing.assert_allclose(both.jacobian[1], slope, rtol=1e-3, atol=1e-3)
    assert both.status[1] == 0


def test_points_on_both_sides_of_an_impact_widen_the_covariance():
    x, spread = np.array([0.1, -1.0]), np.diag([0.02, 0.1]) ** 2
    at = 0.0753  # of the impact: some points have bounced then and others have not
    linear, sigma = (
        analysis.predict(BALL, x, spread, at, args={"g": G}, e=E, method=method) for method in ("linear", "sigma")
    )
    # the speeds before and after differ by (1 + e)|v| = 3.1, half of which is the deviation of one in two
    assert linear.covariance[1, 1] < 0.3 and 1.0 < sigma.covariance[1, 1] < 1.6**2
    # regression and cross-covariance are those of one linear law
    np.testing.assert_allclose(sigma.cross, spread @ sigma.jacobian.T, atol=1e-12)


def test_lanes_are_those_of_single_calls_also_when_traced(both):
    step = jax.jit(lambda x, c: analysis.predict(BALL, x, c, T, output=first_bounce, **OWN))
    one = step(jnp.array(BOUNCE), jnp.array(SPREAD))
    for found, expected in zip(one, both, strict=True):
        np.testing.assert_allclose(found, expected[0], atol=1e-12)  # rounding
    broken = np.array([BOUNCE, [np.nan, *BOUNCE[1:]], BOUNCE])
    spreads = np.array([SPREAD, SPREAD, -SPREAD])
    lanes = jax.jit(lambda x, c: analysis.predict(BALL, x, c, T, output=first_bounce, **OWN))(broken, spreads)
    np.testing.assert_allclose(lanes.mean[0], both.mean[0], atol=1e-12)
    assert lanes.status[0] == 0 and lanes.status[1] & Status.NON_FINITE and lanes.status[2] & Status.INPUT_INVALID


def test_float32_stays():
    found = analysis.predict(
        BALL, np.float32(BOUNCE), np.float32(SPREAD), T, output=first_bounce, method="sigma", **OWN
    )
    assert {x.dtype for x in found[:4]} == {np.dtype(np.float32)}
    # the impact is 43 ms off the end, which all points stay on one side of; their mean is that of the bounce to second
    # order of 3 sigma
    np.testing.assert_allclose(found.mean, bounced(jnp.array(BOUNCE)), atol=0.05)


def test_a_bounce_that_does_not_come_is_reported():
    found = analysis.predict(BALL, FLIGHT, SPREAD, T, output=first_bounce, **OWN)
    assert found.status & Status.NON_FINITE
    with pytest.raises(RuntimeError, match="1 of 1 predictions failed"):
        found.raise_if_failed()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mean": BOUNCE[:3]}, "covariance must have shape"),
        ({"mean": [np.nan, *BOUNCE[1:]]}, "mean holds NaN"),
        ({"covariance": SPREAD + np.inf}, "covariance holds NaN"),
        ({"covariance": SPREAD + np.triu(np.ones((4, 4)))}, "not symmetric"),
        ({"covariance": SPREAD - np.eye(4)}, "not positive semidefinite"),
        ({"mean": BOUNCE[:3], "covariance": SPREAD[:3, :3]}, r"must have 2 d \+ 2"),
        ({"t": 0.0}, "t must be later"),
        ({"t": [1.0, 2.0]}, "t must be a number"),
        ({"method": "unscented"}, "choose one of 'linear', 'sigma'"),
        ({"unknown": ("args.mass", "e")}, "'args.mass' is none of e, args.g"),
        ({"output": lambda solution: solution.t[-1]}, r"output\(solution\) must be an array"),
        ({"problem": ji.Problem(lambda t, q, v, args: -q, joints=lambda t, q, args: q)}, "no joints"),
    ],
)
def test_refusals(change, message):
    given = {"problem": BALL, "mean": BOUNCE, "covariance": SPREAD, "t": T, **OWN} | change
    with pytest.raises(ValueError, match=message):
        analysis.predict(**given)
