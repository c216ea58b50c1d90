"""Lyapunov exponents against an event-driven reference in numpy, determinants in closed form,
and motions without any chaos."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import lyapunov
from jaximpact.catalogue import oscillators
from support.experiments.gallery import exact_exponents

SHAW_HOLMES = catalogue.get("shaw-holmes").problem
CHAOTIC = {"damping": 0.02, "amplitude": 1.0, "frequency": 2.8, "shift": 0.0, "wall": 0.0}
E = 0.6
PERIODIC = 0.05, 2.2, -0.1, 0.8  # damping, frequency, wall, restitution of an attracting orbit of the catalogue
INTEGRABLE = {"damping": 0.0, "amplitude": 0.0, "frequency": 2 * np.pi, "shift": 0.0, "wall": 0.0}  # e = 1, interval 1
LANES, INTERVALS = 15, 400
FEW = 40  # intervals where determinants and bounds are asked for, and no mean


def exponents_of(lanes, intervals):
    """Chaotic motions from spread starts, one on an attracting orbit, and one that is integrable, in one batch."""
    z, w, wall, e = PERIODIC
    _, shift, speed = oscillators.periodic_orbit(*PERIODIC)
    random = np.random.default_rng(1)
    q0 = np.array([*random.uniform(0.1, 1, lanes), wall, 1.0])[:, None]
    v0 = np.array([*random.uniform(-1, 1, lanes), speed, 0.0])[:, None]
    orbit = CHAOTIC | {"damping": z, "frequency": w, "shift": shift, "wall": wall}
    args = {name: np.array([*[x] * lanes, orbit[name], INTEGRABLE[name]]) for name, x in CHAOTIC.items()}
    return lyapunov(
        SHAW_HOLMES, q0, v0, interval=lambda a: 2 * np.pi / a["frequency"], steps=60, intervals=intervals, skip=50,
        t0=np.array([*[0.0] * lanes, 0.5, 0.0]), args=args, args_axes=0, e=np.array([*[E] * lanes, e, 1.0]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return exponents_of(1, FEW)


@pytest.mark.slow
def test_chaos_agrees_with_the_reference():
    found = exponents_of(LANES, INTERVALS)
    reference, noise = exact_exponents(CHAOTIC, E, 0.5, 0.1, periods=4000)
    lanes = found.exponents[:LANES]
    mean, error = lanes.mean(axis=0), lanes.std(axis=0, ddof=1) / np.sqrt(LANES)
    # statistics alone: three standard errors of the difference, and a step's h^2 = 1e-3 of the exponent
    assert np.all(np.abs(mean - reference) < 3 * np.hypot(error, noise) + 1e-3 * np.abs(reference))
    assert mean[0] > 10 * error[0] and noise[0] < 0.05 * reference[0]
    # the error estimated within a lane is the scatter between lanes: 10 blocks and 15 lanes know it to a third
    assert np.isclose(np.sqrt(np.mean(found.error[:LANES, 0] ** 2)), lanes[:, 0].std(ddof=1), rtol=0.7)
    assert not found.failed.any()


@pytest.mark.slow
def test_an_attracting_orbit_has_the_determinant_of_damping_and_impacts(found):
    z, w, _, e = PERIODIC
    exponents = found.exponents[1]
    period = 2 * np.pi / w
    # one impact a period: ln(e^2 exp(-2 z T)) / T; the scheme's damping to O(h^2), h = 0.05
    assert np.isclose(exponents.sum(), -2 * z + 2 * np.log(e) / period, rtol=1e-3)
    # complex multipliers: the two are equal but for a remainder over the periods averaged
    assert np.allclose(exponents, exponents.sum() / 2, atol=5 / (FEW * period))
    assert found.largest[1] < 0


def check_integrable(exponents, step, intervals):
    # bounded tangents over a time of so many intervals of 1, and the scheme's growth h^3 / 8 a step, at most
    assert np.all(np.abs(exponents) < 2.0 / intervals + step**3)


def test_an_integrable_motion_has_none(found):
    """q'' = -q against a wall at its equilibrium, e = 1: all motions have one period, tangents stay bounded."""
    check_integrable(found.exponents[-1], 1 / 60, FEW)
    assert found.blocks.shape == (3, 10, 2) and found.t[-1] == pytest.approx(FEW + 50)


@pytest.mark.slow
def test_one_motion_alone():
    case = catalogue.get("free-oscillator").case("e=1")
    problem = catalogue.get("free-oscillator").problem
    one = lyapunov(problem, case.q0, case.v0, interval=1.0, steps=40, intervals=INTERVALS, args=case.args, e=1.0)
    assert one.exponents.shape == (2,) and one.blocks.shape == (10, 2)
    check_integrable(one.exponents, 0.025, INTERVALS)
    assert one.t == pytest.approx(400.0)


def resting(t, q, v, args):
    return jnp.full_like(q, -1.0)


def floor(t, q, args):
    return q


@pytest.mark.slow
def test_a_contact_that_stays_loses_every_direction():
    one = lyapunov(ji.Problem(resting, floor), [0.5], [0.0], interval=0.5, steps=50, intervals=20, e=0.0)
    assert np.all(np.isneginf(one.exponents)) and not one.failed
