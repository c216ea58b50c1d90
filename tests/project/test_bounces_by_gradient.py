"""The fit of measured bounces by gradients: its model against the exact law of flight, and what it recovers."""

from __future__ import annotations

import csv
from pathlib import Path

import jax
import numpy as np
import pytest
from bounces_by_gradient import main
from gradient_fit.fit import factors
from gradient_fit.model import GRAVITY, flight_law, jacobians, simulate
from gradient_fit.trend import ratios_of

pytest.importorskip("optax")
ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "bounce_times.csv"

TRUTH = {"light": (0.93, 0.15), "heavy": (0.85, 0.01)}  # e, c [1/m]
JITTER, SCATTER = 0.5e-3, 2e-3
STEPS = 512


@pytest.fixture(autouse=True)
def _implicit_promotion():
    """optax's L-BFGS mixes whole numbers of 32 and 64 bits."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_law_of_flight_has_its_limits():
    flights = 2 * np.sqrt(2 * 0.5 / GRAVITY) * 0.8 ** np.arange(1, 8)
    np.testing.assert_allclose(np.diff(flight_law(0.8, 0.0, 0.5, 8)), flights, rtol=1e-5)  # in vacuo; c is 1e-6
    by_c = np.array([flight_law(0.8, c, 0.5, 8) for c in (-0.02, 0.0, 0.02)])
    curvature = by_c[0] - 2 * by_c[1] + by_c[2]  # smooth through c = 0: of second order in c v^2/g = 0.02
    assert np.abs(curvature).max() < 0.1 * np.abs(by_c[2] - by_c[0]).max()


def test_white_residuals_are_independent():
    model, index = np.array([[0.0, 0.5, 0.9, 1.2, 1.4]]), np.array([[0, 1, 3, -1]])
    white = factors(index, model, np.array([[JITTER, SCATTER]]))[0]
    assert not white[3].any() and not white[:, 3].any()
    # errors of the times 0, 0.5, 1.2: trigger, and impacts at 0, 0.5, 0.9 before them
    lever = np.array([[0, 0, 0], [0.5, 0, 0], [1.2, 0.7, 0.3]])
    covariance = JITTER**2 * np.eye(3) + SCATTER**2 * lever @ lever.T
    np.testing.assert_allclose(white[:3, :3] @ covariance @ white[:3, :3].T, np.eye(3), atol=1e-12)


def test_ratios_need_three_contacts_in_a_row():
    times = np.array([0.0, 0.5, 0.9, 1.2, 1.6, 2.0])
    index = np.array([0, 1, 2, 4, -1, 5])  # contact 3 missed, the fifth recorded one no contact
    model = np.array([0.0, 0.5, 0.9, 1.22, 1.476, 1.681])
    np.testing.assert_allclose(ratios_of(times, index, model), [[GRAVITY * 0.25, 0.8, 0.8]])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Folder of results for drops of known truth, with jitter, scatter of e, a missed and an extra contact."""
    folder, rng = tmp_path_factory.mktemp("bounces"), np.random.default_rng(3)
    lines = ["ball,drop_height_cm,drop,bounce,time_s"]
    for ball, (e, c) in TRUTH.items():
        for drop in range(6):
            nominal = (0.2, 0.4)[drop % 2]
            height = nominal * (1 + 0.03 * rng.standard_normal())
            times = flight_law(e * (1 + SCATTER * rng.standard_normal(9)), c, height, 10)
            times += JITTER * rng.standard_normal(10)
            if drop == 0:
                times = np.append(np.delete(times, 5), times[-1] + 0.4)
            for bounce, time in enumerate(times - times[0]):
                lines.append(f"{ball},{100 * nominal:g},{drop},{bounce},{time:.6f}")
    data = folder / "bounces.csv"
    data.write_text("\n".join(lines))
    with jax.numpy_dtype_promotion("standard"):
        main(["--data", str(data), "--out", str(folder), "--steps", str(STEPS), "--jitter-ms", "0.5"])
    return folder


@pytest.mark.slow
def test_simulated_contacts_and_their_derivatives_are_those_of_the_exact_law(fitted):
    drops = 12  # and as many contacts as in the fit: compiled there
    with np.load(fitted / "results.npz") as arrays:
        count = arrays["model"].shape[1]
    e, c, height, horizon = np.full(drops, 0.9), np.full(drops, 0.15), np.full(drops, 0.5), np.full(drops, 4.0)
    e[1], c[1], height[2], horizon[3] = 0.95, 0.0, 0.3, 1.0
    found = np.asarray(simulate(e, c, height, horizon, count=count, steps=STEPS))
    slopes = np.asarray(jacobians(e, c, height, horizon, count=count, steps=STEPS))
    for d in range(3):
        at = np.array([e[d], c[d], height[d]])
        # second order in h = 8 ms: c v h^2 of a few 1e-5 s
        np.testing.assert_allclose(found[d, :8], flight_law(*at, 8), atol=3e-4)
        for i in range(3):
            step = 1e-3 * np.eye(3)[i]
            exact = (flight_law(*(at + step), 8) - flight_law(*(at - step), 8)) / 2e-3
            np.testing.assert_allclose(slopes[d, :8, i], exact, atol=5e-3 * np.abs(exact).max())
    # a drop simulated for 1 s, which ends in its second flight: contacts not reached are at the end
    first = np.arccosh(np.exp(c[3] * height[3])) / np.sqrt(c[3] * GRAVITY)  # from rest to the floor
    assert found[3, 1] == pytest.approx(flight_law(0.9, 0.15, 0.5, 2)[1], abs=3e-4)
    np.testing.assert_allclose(found[3, 2:], 1 - first, atol=3e-4)


@pytest.mark.slow
def test_recovers_restitution_and_drag_from_far_away(fitted):
    found = {row["ball"]: {k: float(v) for k, v in row.items() if k != "ball"} for row in rows(fitted / "balls.csv")}
    with np.load(fitted / "results.npz") as arrays:
        start = arrays["history"][0]
    np.testing.assert_allclose(start, [[0.5, 0.0]] * 2)
    for ball, (e, c) in TRUTH.items():
        row = found[ball]
        # 4 standard errors: one fit in some 1000 by chance, as the scatter between 6 drops has 5 degrees of freedom
        assert abs(row["e"] - e) < 4 * max(row["e_error"], row["e_error_independent"]), row
        assert abs(row["c_per_m"] - c) < 4 * max(row["c_error"], row["c_error_independent"]), row
        # scatter/sqrt(54 impacts) is 3e-4; unknown drag and heights cost a factor of some units
        assert max(row["e_error"], row["e_error_independent"]) < 2e-3
        assert row["rejected"] == 1
        # likeliest noise from 60 contacts, less 14 numbers fitted: within a factor 2
        assert JITTER / 2 < row["jitter_ms"] / 1e3 < 2 * JITTER
        assert SCATTER / 2 < row["scatter"] < 2 * SCATTER


@pytest.mark.slow
def test_drag_explains_that_ratios_depend_on_speed(fitted):
    light = next(row for row in rows(fitted / "balls.csv") if row["ball"] == "light")
    slope = {key: float(value) for key, value in light.items() if "drag" in key}
    assert slope["slope_high_with_drag"] < 0  # measured: the ratio falls with speed
    assert slope["left_high_without_drag"] < 0  # a constant e in vacuo leaves it so
    assert slope["left_low_with_drag"] < 0 < slope["left_high_with_drag"]


@pytest.mark.slow
def test_results_are_complete(fitted):
    assert len(rows(fitted / "drops.csv")) == 12
    with np.load(fitted / "results.npz") as arrays:
        assert arrays["e"].shape == (2,) and arrays["covariance"].shape == (2, 2, 2)
        assert arrays["residual"].shape[0] == 12
    assert (fitted / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_fit_ends_with_a_message(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--data", str(tmp_path / "absent.csv"), "--out", str(tmp_path)])
    assert end.value.code == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the measured bounce times are not part of the project")
def test_measured_balls(tmp_path):
    main(["--data", str(REAL), "--out", str(tmp_path)])
    found = {row["ball"]: row for row in rows(tmp_path / "balls.csv")}
    # drag coefficients of spheres at Reynolds numbers of 10^3 to 10^4 lie between 0.4 and 0.6
    assert 0.4 < float(found["pingpong"]["drag_coefficient"]) < 0.6
    assert float(found["pingpong"]["left_low_with_drag"]) < 0 < float(found["pingpong"]["left_high_with_drag"])
    assert float(found["pingpong"]["left_high_without_drag"]) < -0.01
    for ball in ("golf", "tennis"):  # heavier balls: too little drag to be seen, yet in agreement with a sphere
        c, error = (float(found[ball][name]) for name in ("c_per_m", "c_error"))
        assert abs(c - float(found[ball]["c_sphere_per_m"])) < 3 * error
    assert sum(int(row["rejected"]) for row in found.values()) < 60
