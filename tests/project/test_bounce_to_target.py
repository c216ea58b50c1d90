"""The control problem through an impact: its optimum against a search that knows no theory, and what gradients find."""

from __future__ import annotations

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import least_squares

import jaximpact as ji

pytest.importorskip("optax")
from bounce_to_target import (
    Task,
    exact_cost,
    exact_path,
    gram,
    main,
    off,
    optimum,
    projections,
    push,
    sampled,
    simulated_end,
)

TASK, MODES = Task(), 6
END = np.array([TASK.duration])


@pytest.fixture(autouse=True)
def _implicit_promotion():
    """optax's L-BFGS mixes whole numbers of 32 and 64 bits."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.slow
def test_cosines_are_orthonormal_and_represent_the_kernels():
    t, weights = np.polynomial.legendre.leggauss(60)
    values = sampled(TASK, MODES, TASK.duration * (1 + t) / 2).T
    np.testing.assert_allclose(values * weights * TASK.duration / 2 @ values.T, np.eye(MODES), atol=1e-13)
    # Parseval: the norms of many coefficients tend to those of a and w; w jumps, so that the rest falls as 1/modes
    np.testing.assert_allclose(gram(TASK, 400, 0.3), gram(TASK, None, 0.3), rtol=2e-3)
    a, w = projections(TASK, MODES, 0.0)  # an impact at once: w = T - t, nothing before
    np.testing.assert_allclose(a, 0, atol=1e-15)
    np.testing.assert_allclose(w[0], TASK.duration**1.5 / 2)


def test_exact_path_obeys_the_impact_law():
    c = np.random.default_rng(0).normal(size=(MODES, 2))
    _, impacts = exact_path(TASK, c, END)
    assert impacts
    d = 1e-6
    for s in impacts:
        around = exact_path(TASK, c, np.array([s - 2 * d, s - d, s, s + d, s + 2 * d]))[0][:, 1]
        assert abs(around[2]) < 1e-12
        before, after = (around[1] - around[0]) / d, (around[4] - around[3]) / d
        assert after == pytest.approx(-TASK.restitution * before, rel=1e-3)  # differences over d: acceleration times d
    # between impacts the exact path is the integral of the force: compare with jaximpact without a floor
    free = ji.solve(
        ji.Problem(push),
        TASK.start,
        TASK.velocity,
        t1=0.9 * impacts[0],
        steps=2000,
        args={"force": c, "gravity": TASK.gravity, "duration": TASK.duration},
    )
    # second order: h^2 is 3e-8
    np.testing.assert_allclose(free.q[-1], exact_path(TASK, c, np.array([0.9 * impacts[0]]))[0][0], atol=1e-6)


def test_optimum_is_that_of_a_direct_search():
    best = optimum(TASK, MODES)
    c = best.coefficients(MODES)
    path, impacts = exact_path(TASK, c, END)
    np.testing.assert_allclose(impacts, [best.impact], atol=1e-9)
    np.testing.assert_allclose(path[0] - TASK.target, best.miss, atol=1e-9)
    assert exact_cost(TASK, c) == pytest.approx(best.cost, rel=1e-12)

    def residuals(x):
        path, _ = exact_path(TASK, x.reshape(MODES, 2), END)
        return np.append(x, np.sqrt(TASK.weight) * (path[0] - TASK.target))

    found = least_squares(residuals, np.zeros(2 * MODES), "3-point", xtol=1e-12, ftol=1e-14, gtol=1e-11)
    # cost: quadratic at the optimum, so round-off; place: derivatives by differences
    assert found.cost == pytest.approx(best.cost, rel=1e-10)
    np.testing.assert_allclose(found.x.reshape(MODES, 2), c, atol=1e-5)


@pytest.mark.slow
def test_more_cosines_approach_the_optimum_among_all_forces():
    free = optimum(TASK, None)
    costs = np.array([optimum(TASK, modes).cost for modes in (8, 32, 128)])
    # the force jumps at the impact: the rest of its cosine series falls as 1/modes, a factor 4 each
    ratio = np.diff(costs - free.cost) / (costs - free.cost)[:-1]
    np.testing.assert_allclose(ratio, -3 / 4, atol=0.1)
    # the costate of v is multiplied by -1/e at the impact: so is what the target alone asks for
    d = 1e-9
    before, after = free.force(np.array([free.impact - d, free.impact + d]))[:, 1]
    assert after == pytest.approx(-before / TASK.restitution, rel=1e-6)


@pytest.mark.slow
def test_gradient_of_the_end_point_is_that_of_the_exact_path():
    c = optimum(TASK, MODES).coefficients(MODES)
    exact = np.zeros((2, MODES, 2))
    for place in np.ndindex(MODES, 2):
        step = np.zeros((MODES, 2))
        step[place] = 1e-5
        exact[(slice(None), *place)] = (exact_path(TASK, c + step, END)[0] - exact_path(TASK, c - step, END)[0])[
            0
        ] / 2e-5
    found = jax.jacrev(lambda c: simulated_end(TASK, c, ji.PaoliSchatzman(), 2003, "corrected"))(jnp.asarray(c))
    np.testing.assert_allclose(found, exact, atol=10 / 2003)  # first order in h, of derivatives of order 1


@pytest.mark.slow
def test_corrected_gradients_find_the_optimum_and_plain_ones_miss_it(tmp_path):
    steps = 2000
    main(["--out", str(tmp_path), "--steps", str(steps)])
    with open(tmp_path / "table.csv", newline="") as file:
        table = {(row["scheme"], row["sensitivity"]): row for row in csv.DictReader(file)}
    for scheme in ("PaoliSchatzman", "MoreauJean"):
        corrected, discrete = (
            {name: float(table[scheme, kind][name]) for name in ("force_error", "cost_excess")}
            for kind in ("corrected", "discrete")
        )
        # first order in h: the force is off by some h/T, the cost, flat at its optimum, by less than 1e-3
        assert corrected["force_error"] < 20 / steps
        assert 0 <= corrected["cost_excess"] < 1e-3
        # plain derivatives lack gravity at the impact, or the time of impact: no step cures that
        assert discrete["force_error"] > 0.05
        assert discrete["cost_excess"] > 1e-3
    arrays = np.load(tmp_path / "results.npz")
    task, best = Task(), arrays["optimum"]
    found = arrays["PaoliSchatzman_corrected"]
    assert exact_cost(task, found[0]) > 10 * exact_cost(task, best)  # it started far away, without a force
    assert off(found[-1], best) == pytest.approx(float(table["PaoliSchatzman", "corrected"]["force_error"]))
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
