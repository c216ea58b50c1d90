"""Branches of periodic orbits and their events, against the closed forms of the Shaw-Holmes family and
of systems without impacts."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import jaximpact as ji
from jaximpact.analysis import continue_orbit
from jaximpact.catalogue import oscillators
from support.shaw_holmes import (
    SHAW_HOLMES,
    WALL,
    E,
    W,
    Z,
    amplitude,
    arguments,
    by_modulus_and_phase,
    closed_form,
    doubling_frequency,
    free_flow,
    period,
)

STEPS = 100


def follow(numbers, **more):
    """A branch from the member of the family with these numbers (z, w, wall, e), in mid-flight."""
    exact, shift, _ = closed_form(*numbers)
    t0 = 0.5 * 2 * np.pi / numbers[1]
    (q,), (v,) = exact(np.array([t0]))
    given = {"args": arguments(*numbers[:3], shift), "e": numbers[3], "t0": t0, "period": period, "steps": STEPS}
    return continue_orbit(SHAW_HOLMES, q, v, **(given | more))


def only(branch, kind):
    (event,) = [event for event in branch.events if event.kind == kind]
    return event


@pytest.mark.slow
def test_a_located_parameter_is_as_accurate_as_the_scheme():
    errors = []
    for steps in (STEPS, 4 * STEPS):
        branch = follow((Z, W, WALL, E), parameter="frequency", bounds=(2.0, 2.7), step=0.1, steps=steps)
        errors.append(abs(only(branch, "period doubling").parameter - doubling_frequency()))
    # second order at h = 0.026 and a quarter of it; where in its step the impact falls makes up to a quarter of an
    # order
    assert np.isclose(np.log2(errors[0] / errors[1]) / 2, 2, atol=0.25)


@pytest.mark.slow
def test_period_doubling_over_the_frequency():
    branch = follow((Z, W, WALL, E), parameter="frequency", bounds=(2.0, 2.7), step=0.1)
    assert branch.ended == "bounds" and branch.parameter[-1] == pytest.approx(2.7, abs=1e-9)
    event = only(branch, "period doubling")
    assert len(branch.events) == 1
    assert np.min(np.abs(event.multipliers + 1)) < 1e-6  # located to the tolerance of the roots
    # h^2 = 7e-4, of second order: see above
    assert np.isclose(event.parameter, doubling_frequency(), rtol=0, atol=5e-4)
    # every point is the orbit of that frequency, to a multiple of h^2: stable below, unstable above
    assert np.array_equal(branch.stable, branch.parameter < event.parameter)
    for i in range(0, len(branch.parameter), 3):
        w = branch.parameter[i]
        _, _, speed = oscillators.periodic_orbit(Z, w, WALL, E)
        assert np.isclose(branch.impact_speed[i], speed / E, rtol=1e-2)
        mu = by_modulus_and_phase(np.linalg.eigvals(closed_form(Z, w, WALL, E)[2]))
        np.testing.assert_allclose(by_modulus_and_phase(branch.multipliers[i]), mu, rtol=2e-2, atol=2e-2)
        assert branch.period[i] == pytest.approx(2 * np.pi / w)
    assert np.all(branch.impacts == 1)


@pytest.mark.slow
def test_the_impact_velocity_vanishes_where_the_wall_only_just_touches():
    """At wall = -amplitude the orbit with one impact and the one without meet."""
    branch = follow((Z, W, WALL, E), parameter="wall", bounds=(-1.0, 0.0), direction=-1)
    assert branch.ended == "grazing"
    event = only(branch, "grazing")
    assert event.detail == "impact speed"
    # the scheme's own amplitude, to second order: h^2 = 8e-4 times w^2 / 12
    assert np.isclose(event.parameter, -amplitude(W), rtol=1e-3)
    # the diverging multiplier of a grazing orbit, after a period doubling
    assert only(branch, "period doubling").parameter > event.parameter
    assert branch.impact_speed[-1] < 1e-3 and np.abs(branch.multipliers[-1, 0]) > 100


@pytest.mark.slow
def test_a_free_orbit_touches_the_wall():
    wall, w = -0.5, 3.0
    lag = np.arctan2(2 * Z * w, 1 - w**2)
    branch = continue_orbit(
        SHAW_HOLMES, [amplitude(w)], [0.0], args=arguments(Z, w, wall, 0.0), e=E, t0=lag / w, period=period,
        steps=STEPS, parameter="frequency", bounds=(1.2, 3.2), direction=-1, step=0.1,
    )  # fmt: skip
    event = only(branch, "grazing")
    assert branch.ended == "grazing" and event.detail == "clearance"
    exact = brentq(lambda w: amplitude(w) + wall, 1.2, 3.0, xtol=1e-14)
    # second order, h = 0.04
    assert np.isclose(event.parameter, exact, rtol=1e-3)
    assert np.all(branch.impacts == 0) and np.all(np.isinf(branch.impact_speed)) and branch.stable.all()
    # multipliers exp((-z +- i wd) T), clearance wall + amplitude
    w = branch.parameter[-1]
    mu = by_modulus_and_phase(np.linalg.eigvals(free_flow(Z, 2 * np.pi / w)))
    np.testing.assert_allclose(by_modulus_and_phase(branch.multipliers[-1]), mu, atol=5e-3)


@pytest.mark.slow
def test_a_second_contact():
    """In slow forcing the orbit comes back to the wall once more within the period:
    the minimum of the closed form vanishes."""

    def least(w):
        exact, _, _ = oscillators.periodic_orbit(Z, w, WALL, E)
        t = np.linspace(0.05, 0.95, 20001) * 2 * np.pi / w
        q, v = exact(t)
        dip = (v[:-1, 0] < 0) & (v[1:, 0] >= 0)
        return np.min(q[:-1][dip]) - WALL

    exact = brentq(least, 0.8, 1.1, xtol=1e-10)
    branch = follow((Z, 1.2, WALL, E), parameter="frequency", bounds=(0.6, 1.3), direction=-1, steps=200)
    event = only(branch, "grazing")
    assert branch.ended == "grazing" and event.detail == "clearance"
    # second order, h = 0.03, and a minimum found by a parabola
    assert np.isclose(event.parameter, exact, rtol=1e-3)


@pytest.mark.slow
def test_a_fold_over_the_wall():
    """The transient x solves a x^2 - 2 wall x + wall^2 - amplitude^2 = 0:
    two orbits meet at wall^2 = a/(a - 1) amplitude^2."""
    flow = free_flow(Z, 2 * np.pi / W)
    y_x = (1 - flow[0, 0]) / flow[0, 1]
    v_x = ((1 - flow[1, 1]) * y_x - flow[1, 0]) * E / (1 + E)
    a = 1 + ((v_x - y_x) / W) ** 2
    fold = amplitude(W) * np.sqrt(a / (a - 1))
    branch = follow((Z, W, WALL, E), parameter="wall", bounds=(-0.5, 2.0))
    event = only(branch, "fold")
    # second order, h = 0.03
    assert np.isclose(event.parameter, fold, rtol=2e-3)
    assert np.min(np.abs(event.multipliers - 1)) < 1e-5
    # the branch turns: its walls are below the fold on both sides, and it goes on
    assert np.max(branch.parameter) <= event.parameter + 1e-6
    assert np.argmax(branch.parameter) < len(branch.parameter) - 3


@pytest.mark.slow
def test_a_branch_of_period_two_folds_back_at_the_period_doubling():
    """There its two halves become the same: seen on the twice iterated map, the parameter turns."""
    once = follow((Z, W, WALL, E), parameter="frequency", bounds=(2.0, 2.5), step=0.1)
    doubling = only(once, "period doubling")
    _, shift, _ = closed_form(Z, W, WALL, E)
    given = {
        "args": arguments(Z, 2.5, WALL, shift),
        "e": E,
        "t0": 0.5 * 2 * np.pi / W,
        "period": period,
        "steps": STEPS,
    }
    # the attractor there, from just beside the unstable orbit of period one
    length = 200 * 2 * np.pi / 2.5
    motion = ji.solve(
        SHAW_HOLMES, once.q[-1] + 0.01, once.v[-1], t0=given["t0"], t1=given["t0"] + length, steps=200 * STEPS,
        args=given["args"], e=E, scheme=ji.EventCorrected(), save="final",
    )  # fmt: skip
    twice = continue_orbit(
        SHAW_HOLMES, motion.q[-1], motion.v[-1], parameter="frequency", bounds=(2.0, 2.6), direction=-1, cycles=2,
        **given
    )  # fmt: skip
    assert np.allclose(twice.impacts, 2) and twice.period[0] == pytest.approx(2 * 2 * np.pi / 2.5)
    # the same discrete map; but two branches cross there, and a tangent between them is found to the root of the
    # tolerance
    assert only(twice, "fold").parameter == pytest.approx(doubling.parameter, abs=1e-4)


def test_a_branch_from_a_bound():
    """Outwards it has the one point where it starts, which was there twice; inwards it goes to the other bound. The
    orbit meets no wall, whatever e."""
    spring = ji.Problem(lambda t, q, v, args: -q - v, lambda t, q, args: q + 1.0)
    given = {"parameter": "e", "bounds": (0.5, 1.0), "e": 1.0, "period": 1.0, "steps": 10, "step": 0.5}
    given |= {"scheme": ji.MoreauJean()}
    out, into = (continue_orbit(spring, [0.0], [0.0], direction=direction, **given) for direction in (1, -1))
    assert out.parameter.tolist() == [1.0] and out.ended == into.ended == "bounds" and out.stable.all()
    assert into.parameter[0] == 1.0 and into.parameter[-1] == 0.5 and np.all(np.diff(into.parameter) < 0)


@pytest.mark.slow
def test_restitution_down_to_zero():
    branch = follow((Z, W, WALL, E), parameter="e", bounds=(0.0, 1.0), direction=-1)
    assert branch.ended == "bounds" and branch.parameter[-1] == pytest.approx(0.0, abs=1e-12)
    assert branch.stable.all() and not branch.events
    i = len(branch.parameter) // 2
    _, _, speed = oscillators.periodic_orbit(Z, W, WALL, branch.parameter[i])
    assert np.isclose(branch.impact_speed[i], speed / branch.parameter[i], rtol=1e-3)


@pytest.mark.slow
def test_orbits_of_a_conservative_system_are_a_family():
    """A bouncing ball that loses nothing: the parameter stays 0 along the branch, and there is no event on it; periods
    to the tolerance of orbits."""
    ball = ji.Problem(lambda t, q, v, args: -1.0 - args["drag"] * v, lambda t, q, args: q, restitution=1.0)
    family = continue_orbit(
        ball, [1.0], [0.0], parameter="drag", bounds=(-0.1, 0.1), args={"drag": 0.0}, period=8**0.5,
        surface=lambda t, q, v, args: v[0], step=0.1, points=6,
    )  # fmt: skip
    np.testing.assert_allclose(family.period, 2 * np.sqrt(2 * family.q[:, 0]), rtol=1e-10)
    assert np.all(np.diff(family.q[:, 0]) > 0) and not family.events and np.max(np.abs(family.parameter)) < 1e-10


def softened(t, q, v, args):
    return args["a"] * q - q**3 - v


def pushed(t, q, v, args):
    return -q - 2.0 * args["z"] * v + jnp.cos(2.0 * t)


@pytest.mark.slow
def test_bifurcations_of_smooth_systems():
    """A pitchfork at a = 0 is a branch point; negative damping brings the pair exp((-z +- i wd) T) out at z = 0."""
    branch = continue_orbit(
        ji.Problem(softened), [0.0], [0.0], parameter="a", bounds=(-0.5, 0.5), args={"a": -0.3}, period=1.0, steps=20
    )
    assert [event.kind for event in branch.events] == ["branch point"]
    assert branch.events[0].parameter == pytest.approx(0.0, abs=1e-6)  # q = 0 is exact in every scheme
    assert branch.ended == "bounds"
    z = 0.1
    lag = np.arctan2(4 * z, -3.0)
    size = 1 / np.hypot(-3.0, 4 * z)
    branch = continue_orbit(
        ji.Problem(pushed), [size * np.cos(lag)], [2 * size * np.sin(lag)], parameter="z", bounds=(-0.1, 0.2),
        direction=-1, args={"z": z}, period=np.pi, steps=STEPS,
    )  # fmt: skip
    assert [event.kind for event in branch.events] == ["Neimark-Sacker"]
    # the discrete flow's damping: h^2 = 1e-3 times 1/12
    assert branch.events[0].parameter == pytest.approx(0.0, abs=3e-4)
    assert branch.stable[0] and not branch.stable[-1]
