"""Optimal control across impacts against motions by hand: one constant force, a free final time, flights without
impacts, and parabolas."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaximpact as ji
from jaximpact import analysis

E = 0.75
PUCK = ji.Problem(lambda t, q, v, args: args, lambda t, q, args: q, restitution=E)
# from rest at 1 a force of -8 brings the puck to the wall at 1/2 s with a speed of 4, and to 3/2 - 1 at 1 s
FORCE, PLACE = -8.0, 0.5


def effort(solution, u):
    return u


def away(solution, u):
    return solution.q[-1] - PLACE


def at_rest(solution, u):
    return jnp.concatenate([solution.q[-1] - 2.0, solution.v[-1]])


@pytest.fixture(scope="module")
def thrown():
    """From four starts to the place of the puck at 1 s."""
    starts = np.array([-7.0, -8.5, -9.0, -7.5])[:, None, None]
    return analysis.shoot(PUCK, [1.0], [0.0], starts, t1=1.0, target=away)


@pytest.mark.slow
def test_a_target_behind_a_bounce_is_met_by_the_force_by_hand(thrown):
    # its slope by the force is of order 1, and the motions have nine digits
    np.testing.assert_allclose(thrown.controls.ravel(), FORCE, atol=1e-4)
    assert thrown.converged.all() and not thrown.status.any() and np.all(thrown.violation < 1e-4)
    np.testing.assert_allclose(thrown.q[:, -1, 0], PLACE, atol=1e-4)
    np.testing.assert_array_equal(thrown.t, np.tile([0.0, 1.0], (4, 1)))


def test_a_free_final_time_is_found():
    found = analysis.shoot(PUCK, [1.0], [0.0], [[FORCE]], t1=0.93, times=(0.9, 1.2), bounds=(FORCE, FORCE), target=away)
    assert found.converged and found.controls.shape == (1, 1)
    np.testing.assert_allclose(found.t[-1], 1.0, atol=1e-4)  # tolerance of the target over the speed there, 1
    assert found.controls[0, 0] == FORCE


def test_a_flight_without_impacts_is_the_solution_of_least_norm():
    n, t1 = 4, 2.0
    found = analysis.shoot(PUCK, [1.0], [0.5], np.zeros((n, 1)), t1=t1, path=effort, target=at_rest)
    h = t1 / n
    after = t1 - h * (np.arange(n) + 1)
    rows = np.array([h * (after + h / 2), np.full(n, h)])  # final position and velocity by the constant forces
    exact = np.linalg.pinv(rows) @ np.array([2.0 - 1.0 - 0.5 * t1, -0.5])
    # a quadratic problem, solved in one step: the tolerance of the motions
    np.testing.assert_allclose(found.controls[:, 0], exact, atol=1e-7)
    np.testing.assert_allclose(found.cost, h * np.sum(exact**2), rtol=1e-7)
    assert found.converged and found.iterations <= 3


def bounced(u, h, q=4.0, v=0.0, g=9.8):
    """State of a ball after intervals with constant forces, by parabolas."""
    for a in u - g:
        left = h
        while left > 0:
            root = v**2 - 2 * a * q
            times = [(-v + s * np.sqrt(root)) / a for s in (-1, 1)] if root > 0 else []
            hits = [s for s in times if 1e-12 < s < left and v + a * s < 0]
            step = min(hits, default=left)
            q, v, left = q + v * step + a * step**2 / 2, v + a * step, left - step
            if hits:
                q, v = 0.0, -E * v
    return q, v


def test_an_optimum_with_a_bounce_is_that_of_parabolas_and_starts_do_not_mix():
    ball = ji.Problem(lambda t, q, v, args: args - 9.8, lambda t, q, args: q, restitution=E)
    n = 4
    starts = np.array([np.zeros(n), np.full(n, 18.0), np.full(n, 1e200)])[:, :, None]
    weights = {"path": lambda s, u: 0.5 * u, "end": lambda s, u: jnp.sqrt(20.0) * at_end(s)}
    found = analysis.shoot(ball, [4.0], [0.0], starts, t1=1.0, iterations=60, **weights)

    def cost(u):
        q, v = bounced(u, 1 / n)
        return 20 * ((q - 3) ** 2 + v**2) + np.sum(0.25 * u**2) / n

    for lane in range(2):  # with a bounce, and without
        u = found.controls[lane, :, 0]
        best = minimize(cost, u, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000})
        # second order in the optimality, 1e-5
        np.testing.assert_allclose(found.cost[lane], cost(u), rtol=1e-7)
        np.testing.assert_allclose(found.cost[lane], best.fun, rtol=1e-7)
    assert found.converged[:2].all() and found.cost[0] > 1.5 * found.cost[1] and found.best == 1
    assert not found.converged[2] and found.status[2]


def at_end(solution):
    return jnp.concatenate([solution.q[-1] - 3.0, solution.v[-1]])


def test_bounds_hold():
    found = analysis.shoot(PUCK, [1.0], [0.0], [[-7.0]], t1=1.0, bounds=(-7.5, -6.5), end=away)
    # q(1) = e sqrt(2a)(1 - s) - a (1 - s)^2/2 falls with a up to the target, which lies beyond the bound
    assert found.controls[0, 0] in (-7.5, -6.5) and found.converged and found.cost > 0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"controls": [1.0]}, r"controls must be \(N, k\)"),
        ({"q0": [[1.0]] * 3, "controls": np.ones((2, 1, 1))}, "2, 3.*starts"),
        ({"q0": [1.0, 2.0]}, r"q0 and v0 must be \(d,\)"),
        ({"controls": [[np.inf]]}, "must be finite"),
        ({"bounds": (1.0, -1.0)}, "must not exceed the upper one"),
        ({"bounds": (np.zeros(3), 1.0)}, "of the shape of the controls"),
        ({"times": (2.0, 3.0)}, "least final time"),
        ({"t1": -1.0}, "least final time"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"args": 1.0}, "control=lambda u"),
        ({"problem": ji.Problem(lambda t, q, v, args: -q, joints=lambda t, q, args: q)}, "no joints"),
    ],
)
def test_refusals(change, message):
    given = {"problem": PUCK, "q0": [1.0], "v0": [0.0], "controls": [[-8.0]], "t1": 1.0, "target": away} | change
    with pytest.raises(ValueError, match=message):
        analysis.shoot(**given)


def test_a_target_out_of_reach_is_reported():
    found = analysis.shoot(PUCK, [1.0], [0.0], [[1.0]], t1=1.0, bounds=(0.5, 2.0), target=away, iterations=5)
    assert not found.converged
    with pytest.raises(RuntimeError, match="none of 1 starts converged"):
        found.raise_if_failed()
