"""Orbits with friction: Den Hartog's motions whose slip turns round, stick-slip on a belt, their multipliers, exponents
and basins, by closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import brentq, minimize_scalar

import jaximpact as ji
from jaximpact import analysis, catalogue

pytestmark = pytest.mark.slow  # derivatives through friction take seconds to compile

G, FORCE, RUB = 9.81, 1.0, 0.3  # the last two in units of the spring's length
SCHEME = ji.EventCorrected()
SHAKEN = ji.Problem(
    lambda t, q, v, args: jnp.stack([FORCE * jnp.cos(args["frequency"] * t) - q[0], -G + 0 * q[1]]),
    lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1],
    friction=RUB / G,
)
PERIOD = lambda args: 2 * np.pi / args["frequency"]
BELT = catalogue.get("belt-oscillator")
ARGS = BELT.case().args


def den_hartog(r):
    """Amplitude of a motion that does not rest, and the ratio of its accelerations behind and before a turn (J. P. Den
    Hartog, Trans. ASME 53 (1931))."""
    response = 1 / (1 - r**2)
    damping = np.sin(np.pi / r) / (r * (1 + np.cos(np.pi / r)))
    x = np.sqrt((FORCE * response) ** 2 - (RUB * damping) ** 2)
    pull = x / response - x  # with the spring, at a turn to the right
    return x, (pull + RUB) / (pull - RUB)


def stick_slip(belt):
    """Period, and place and speed where it passes the middle of its swing."""
    w = np.sqrt(ARGS["stiffness"])
    centre, breaks = (ARGS[mu] * G / w**2 for mu in ("friction", "static_friction"))
    reach = breaks - centre
    lag = np.arctan(reach * w / belt)
    return 2 * (np.pi - lag) / w + 2 * reach / belt, centre, -np.hypot(belt, reach * w)


def test_a_branch_of_motions_that_turn_round():
    """A turn takes the variation of v by the ratio of accelerations, two of them the determinant: the multipliers are a
    complex pair of that modulus."""
    first, _ = den_hartog(1.5)
    start = ji.solve(
        SHAKEN, [first, 0.0], [0.0, 0.0], t1=15 * PERIOD({"frequency": 1.5}), steps=15 * 200, args={"frequency": 1.5},
        scheme=SCHEME, save="final",
    )  # fmt: skip
    branch = analysis.continue_orbit(
        SHAKEN, start.q[-1], start.v[-1], parameter="frequency", bounds=(1.45, 1.9), period=PERIOD, steps=200,
        args={"frequency": 1.5}, scheme=SCHEME, step=0.1,
    )  # fmt: skip
    assert branch.ended == "bounds" and len(branch.parameter) > 3 and np.all(branch.stable)
    _, ratios = den_hartog(branch.parameter)
    # of second order: 200 steps leave some (2 pi/200)^2
    np.testing.assert_allclose(np.abs(branch.multipliers[:, :2]), np.stack([ratios, ratios], 1), rtol=2e-3)
    # state at t0 on the ellipse of energy is not known in closed form, the largest elongation is
    last = {"frequency": float(branch.parameter[-1])}
    turn = ji.solve(SHAKEN, branch.q[-1], branch.v[-1], t1=PERIOD(last), steps=1000, args=last, scheme=SCHEME)
    assert np.max(np.abs(turn.q[:, 0])) == pytest.approx(den_hartog(last["frequency"])[0], abs=2e-4)
    assert list(turn.slips(SHAKEN, args=last).kind) == ["reversal", "reversal"]


def test_rests_begin_where_friction_would_hold_a_turn():
    """With more friction the contact rests at both turns: from where it balances spring and force at a turn, mu g = r^2
    x(mu) for the amplitude x."""
    r = 1.5
    start = ji.solve(
        SHAKEN, [den_hartog(r)[0], 0.0], [0.0, 0.0], t1=15 * PERIOD({"frequency": r}), steps=15 * 200,
        args={"frequency": r}, scheme=SCHEME, save="final",
    )  # fmt: skip
    branch = analysis.continue_orbit(
        SHAKEN, start.q[-1], start.v[-1], parameter="friction", bounds=(RUB / G, 0.8 / G), period=PERIOD, steps=200,
        args={"frequency": r}, scheme=SCHEME, step=0.1,
    )  # fmt: skip
    damping = np.sin(np.pi / r) / (r * (1 + np.cos(np.pi / r)))
    balance = r**2 * FORCE / (r**2 - 1) / np.sqrt(1 + r**4 * damping**2) / G
    assert branch.ended == "bounds"
    assert [(event.kind, event.detail) for event in branch.events] == [("end of sticking", "reversal")] * 2
    # of second order in the step of 2 pi / 200: 8e-5 off, 2e-5 with 400 steps
    np.testing.assert_allclose([event.parameter for event in branch.events], balance, rtol=2e-4)


def test_stick_slip_ends_where_the_swing_only_just_reaches_the_belt():
    """With a damper the body leaves the belt at mu_s, swings, and is as fast as the belt again for slow belts alone."""
    damping, w2, limits = 0.3, ARGS["stiffness"], [ARGS[mu] * G for mu in ("friction", "static_friction")]
    damped = BELT.problem.replace(
        force=lambda t, q, v, args: jnp.stack([-args["stiffness"] * q[0] - damping * v[0], -args["gravity"] + 0 * q[1]])
    )
    flow = np.array([[0.0, 1.0], [-w2, -damping]])
    centre = limits[0] / w2

    def fastest(belt):
        """By how much a swing from break-away is faster than the belt at most."""
        leaves = np.array([(limits[1] - damping * belt) / w2 - centre, belt])
        speed = lambda t: (expm(flow * t) @ leaves)[1]
        turn = np.pi / np.sqrt(w2 - damping**2 / 4)
        return -minimize_scalar(lambda t: -speed(t), bounds=(turn, 2.2 * turn), method="bounded").fun - belt

    last, belt = brentq(fastest, 0.3, 1.0), 0.4
    branch = analysis.continue_orbit(
        damped, [centre, 0.0], [-0.57, 0.0], args=ARGS | {"belt": belt}, parameter="belt", bounds=(0.3, 0.8),
        period=2.2, surface=lambda t, q, v, args: centre - q[0], steps=400, scheme=SCHEME,
    )  # fmt: skip
    assert branch.ended == "end of sticking" and branch.events[-1].detail == "slip"
    assert branch.events[-1].parameter == pytest.approx(last, rel=3e-4)  # 400 steps leave some (2 pi/400)^2


@pytest.mark.slow
def test_a_branch_of_stick_slip():
    """While it sticks all is forgotten but the time, which a surface leaves out: every multiplier is zero,
    and the period known."""
    period, centre, speed = stick_slip(ARGS["belt"])
    branch = analysis.continue_orbit(
        BELT.problem, [centre, 0.0], [speed, 0.0], args=ARGS, parameter="belt", bounds=(0.2, 1.5), period=period,
        surface=lambda t, q, v, args: centre - q[0], steps=400, scheme=SCHEME,
    )  # fmt: skip
    assert branch.ended == "bounds"
    np.testing.assert_allclose(branch.period, stick_slip(branch.parameter)[0], rtol=2e-5)
    assert np.max(np.abs(branch.multipliers)) < 1e-4


def test_lyapunov_exponents_with_friction():
    """The sum over the motion that turns round is twice log(ratio) / period; of stick-slip one is zero, along time,
    and the others forget."""
    interval = 2 * np.pi / 1.5
    turning = analysis.lyapunov(
        SHAKEN, [-0.66, 0.0], [0.408, 0.0], interval=interval, steps=200, intervals=20, skip=10, args={"frequency": 1.5}
    )
    both = turning.exponents[np.isfinite(turning.exponents)]
    assert both.sum() == pytest.approx(2 * np.log(den_hartog(1.5)[1]) / interval, rel=2e-3)
    period, centre, speed = stick_slip(ARGS["belt"])
    sticking = analysis.lyapunov(
        BELT.problem, [centre, 0.0], [speed, 0.0], interval=period, steps=400, intervals=10, args=ARGS
    )
    assert abs(sticking.exponents[0]) < 1e-4 and np.all(sticking.exponents[1:] * period < -10)


def test_basins_of_rest_and_of_stick_slip():
    """With a damper the place where spring and friction balance attracts, too: all from where the swing never reaches
    the speed of the belt."""
    damping, centre = 0.3, stick_slip(1.0)[1]
    damped = BELT.problem.replace(
        force=lambda t, q, v, args: jnp.stack([-args["stiffness"] * q[0] - damping * v[0], -args["gravity"] + 0 * q[1]])
    )
    x, y = np.linspace(-0.2, 0.6, 17), np.linspace(-0.9, 0.45, 10)
    found = analysis.basins(
        damped, x=x, y=y, period=2.2, steps=200, cycles=4, skip=60, args=ARGS, scheme=SCHEME, q0=[0.0, 0.0],
        v0=[0.0, 0.0], surface=lambda t, q, v, args: centre - q[0], direction=1,
    )  # fmt: skip
    flow = expm(np.array([[0.0, 1.0], [-ARGS["stiffness"], -damping]]) * 0.005)
    start = np.stack(np.meshgrid(x - centre, y))
    now, fastest = start, start[1]
    for _ in range(500):  # a turn and more
        now = np.einsum("ij,j...->i...", flow, now)
        fastest = np.maximum(fastest, now[1])
    sure = np.abs(fastest - ARGS["belt"]) > 1e-3
    rests = np.abs([a.v[0, 0] for a in found.attractors]).argmin()
    assert len(found.attractors) == 2 and sure.mean() > 0.9
    np.testing.assert_array_equal(found.labels[sure] == rests, fastest[sure] < ARGS["belt"])


def test_stick_slip_by_a_tolerance():
    """Without ``steps`` analyses go by `EventDriven`: nine digits."""
    period, centre, speed = stick_slip(ARGS["belt"])
    branch = analysis.continue_orbit(
        BELT.problem, [centre, 0.0], [speed, 0.0], args=ARGS, parameter="belt", bounds=(0.2, 1.5), period=period,
        surface=lambda t, q, v, args: centre - q[0],
    )  # fmt: skip
    assert branch.ended == "bounds"
    np.testing.assert_allclose(branch.period, stick_slip(branch.parameter)[0], rtol=1e-9)
    assert np.max(np.abs(branch.multipliers)) < 1e-9


@pytest.mark.slow
def test_motions_that_turn_round_by_a_tolerance():
    args = {"frequency": 1.5}
    start = ji.solve(
        SHAKEN,
        [den_hartog(1.5)[0], 0.0],
        [0.0, 0.0],
        t1=25 * PERIOD(args),
        args=args,
        scheme=ji.EventDriven(),
        save="final",
    )
    branch = analysis.continue_orbit(
        SHAKEN, start.q[-1], start.v[-1], parameter="frequency", bounds=(1.45, 1.9), period=PERIOD, args=args, step=0.1
    )
    _, ratios = den_hartog(branch.parameter)
    np.testing.assert_allclose(np.abs(branch.multipliers[:, :2]), np.stack([ratios, ratios], 1), rtol=1e-9)
