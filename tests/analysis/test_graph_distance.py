"""The distance of velocities with jumps as curves in the (t, v)-plane, and its order in h."""

import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis, catalogue
from support.breadth import slow


def bounce(at):
    """Velocity of a puck that bounces at a time, exact: two rows at the jump."""
    return np.array([0, at, at, 2.0]), np.array([[-1.0, 0], [-1, 0], [0.5, 2], [0.5, 2]])


def random_rows(rng, n, d):
    return np.sort(rng.random(n)), rng.standard_normal((n, d))


def sampled(t, v, count=400):
    """Points along a curve, close together."""
    points = np.concatenate([t[:, None], v], axis=1)
    share = np.linspace(0, 1, count)[None, :, None]
    return (points[:-1, None] + share * np.diff(points, axis=0)[:, None]).reshape(-1, points.shape[1])


@pytest.mark.parametrize("late", [1e-12, 0.01, 0.3])
def test_a_late_jump_is_off_by_its_delay(late):
    assert analysis.graph_distance(bounce(1.0), bounce(1.0 + late)) == pytest.approx(late, rel=1e-3)


def test_it_is_a_distance():
    """Zero for itself, symmetric, and no longer than a way round; two rows of a time in
    any split are the same curve."""
    rng = np.random.default_rng(0)
    a, b, c = (random_rows(rng, n, 2) for n in (7, 12, 30))
    far = lambda x, y: analysis.graph_distance(x, y, scale=1.0)
    assert far(a, a) == 0
    assert far(a, b) == pytest.approx(far(b, a), rel=1e-4)
    assert far(a, c) <= (far(a, b) + far(b, c)) * (1 + 1e-4)
    t, v = a
    halves = np.insert(t, 3, 0.5 * (t[2] + t[3])), np.insert(v, 3, 0.5 * (v[2] + v[3]), axis=0)
    assert far(a, halves) < 1e-14


@pytest.mark.parametrize("d", [1, 3])
def test_it_is_that_of_all_pairs_of_points(d):
    rng = np.random.default_rng(d)
    one, other = random_rows(rng, 6, d), random_rows(rng, 9, d)
    apart = np.linalg.norm(sampled(*one)[:, None] - sampled(*other), axis=-1)
    expected = max(apart.min(axis=0).max(), apart.min(axis=1).max())
    # points of a segment are 1/400 of its length from another
    assert analysis.graph_distance(one, other, scale=1.0) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("scheme", "case", "order"), [
    slow(ji.PaoliSchatzman(), "e=0", 1), (ji.MoreauJean(), "e=1/2", 1), slow(ji.EventCorrected(), "e=1/2", 1)
])  # fmt: skip
def test_the_ball_converges_in_it_at_first_order(scheme, case, order, tmp_path):
    """Delays of impacts are O(h), as is what is left of an accumulation.
    The reference by substeps agrees with the exact motion."""
    ball, case = catalogue.get("bouncing-ball"), catalogue.get("bouncing-ball").case(case)
    run = lambda **more: ji.convergence(
        ball.problem, case.q0, case.v0, t1=case.t1, args=case.args, e=case.restitution, scheme=scheme,
        steps=[211, 503, 1201, 3001], graph=True, **more,
    )  # fmt: skip
    found = run(exact=case.exact, phases=4)
    assert found.orders()["graph"] == pytest.approx(order, abs=0.15), found.table()
    assert found.graph[-1] < 0.1 < np.ptp(case.exact(np.linspace(0, 1.42, 1000))[1])
    assert "graph [s]" in found.table() and "graph" in found.to_pandas()
    np.testing.assert_array_equal(ji.load(found.save(tmp_path / "orders.npz")).graph, found.graph)


@pytest.mark.slow
def test_located_impacts_are_of_second_order_in_it():
    """Between accumulations: the velocities are wrong by O(1) for a time of O(h^2)."""
    entry = catalogue.get("resonant-oscillator")
    case = entry.case("e=1/2")
    found = ji.convergence(
        entry.problem, case.q0, case.v0, t1=case.t1, args=case.args, e=case.restitution, scheme=ji.EventCorrected(),
        steps=[211, 503, 1201], graph=True,
    )  # fmt: skip
    assert found.orders()["graph"] == pytest.approx(2, abs=0.2), found.table()
    plain = ji.solve(entry.problem, case.q0, case.v0, t1=case.t1, steps=1201, args=case.args, e=case.restitution)
    located = ji.solve(
        entry.problem, case.q0, case.v0, t1=case.t1, steps=503, args=case.args, e=case.restitution,
        scheme=ji.EventCorrected(),
    )  # fmt: skip
    t = np.linspace(0, case.t1, 20_001)
    exact = analysis.graph_distance(plain, (t, case.exact(t)[1]))
    # the error of the located motion, and the spacing of t, are h/100 of the plain one's
    assert analysis.graph_distance(plain, located) == pytest.approx(exact, rel=0.05)


def test_bad_motions_are_named():
    good = bounce(1.0)
    ball, case = catalogue.get("bouncing-ball").problem, catalogue.get("bouncing-ball").case("e=0")
    run = lambda **more: ji.solve(ball, case.q0, case.v0, t1=0.5, steps=11, args=case.args, e=0.0, **more)
    lanes = ji.ensemble(ball, np.ones((3, 1)), np.zeros((3, 1)), t1=0.5, h=0.1, args=case.args, e=0.0, save=1)
    for words, other, options in (
        ("other must have t of shape", (good[0], good[1][:, 0]), {}),
        ("other has times or velocities that are not finite", (good[0], good[1] * np.nan), {}),
        ("t must not decrease", (good[0][::-1], good[1]), {}),
        ("same number of velocities, got 2 and 1", (good[0], good[1][:, :1]), {}),
        ("scale must be a positive number", good, {"scale": [1.0, 0.0]}),
        ("Solution or a pair", 3, {}),
        ("other must be one motion", lanes, {}),
        ("every step", run(save="final"), {}),
    ):
        with pytest.raises(ValueError, match=words):
            analysis.graph_distance(good, other, **options)
