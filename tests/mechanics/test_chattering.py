"""Periodic motions with infinitely many impacts that end in lasting contact, on a table whose height is A sin t,
under gravity 1.

The ball leaves the table where that falls faster than the ball would, A sin t = 1: at t = asin(1/A), with the table's
height and velocity, whatever came before. So every motion that comes to rest on the table repeats, two of its
multipliers are zero, and what comes behind the release is a parabola.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import jaximpact as ji
from jaximpact.analysis import continue_orbit, impact_section, period_of, periodic_orbit, two_parameter_map
from support.breadth import slow

PERIOD = 2 * np.pi
A = 1.3


def table(t, q, args):
    return q[:1] - args["A"] * jnp.sin(t)


BALL = ji.Problem(lambda t, q, v, args: -jnp.ones(1), table)


def flight(a, t):
    """Position and velocity behind the release."""
    release = np.arcsin(1 / a)
    s = t - release
    speed = a * np.cos(release)
    return 1.0 + s * (speed - 0.5 * s), speed - s


def cycles_between_rests(a, e, most=40):
    """Periods from one release to the next, and the impacts from it that are faster than 1e-7, event by event;
    0 if there is none."""
    t, q, v = np.arcsin(1 / a), 1.0, a * np.cos(np.arcsin(1 / a))
    start, struck = t, []
    while t < start + most * PERIOD:
        gap = lambda s, t=t, q=q, v=v: q + s * (v - 0.5 * s) - a * np.sin(t + s)
        s = np.geomspace(1e-9 if struck else 0.05, 40.0, 20000)
        below = np.flatnonzero(gap(s) < 0)
        s = brentq(gap, s[below[0] - 1], s[below[0]], xtol=1e-15) if below.size and below[0] else 0.0
        t, q, v = t + s, a * np.sin(t + s), v - s
        closing = a * np.cos(t) - v
        if closing < 1e-7:
            # at rest, where the table does not yet fall too fast
            assert a * np.sin(t) < 1
            return round((t - start) / PERIOD + 0.5), struck
        struck.append((t, closing))
        v = a * np.cos(t) + e * closing
    return 0, struck


def test_release_and_rest_of_a_periodic_motion():
    """The time of the release is of second order; the share of contact is what lies between rest and release."""
    errors = []
    for steps in (100, 400):
        found = impact_section(
            BALL, [A + 0.5], [0.0], period=PERIOD, steps=steps, cycles=4, skip=6, phase=0.25, args={"A": A}, e=0.3
        )
        assert period_of(found.section).tolist() == [1] and np.isinf(found.per_period[0])
        held = found.impacts.lasting
        assert len(held) == len(found.impacts.accumulations) == 4
        errors.append(np.max(np.abs((held.end - np.arcsin(1 / A)) % PERIOD)))
        errors[-1] = min(errors[-1], PERIOD - errors[-1])
        assert 0.4 < found.in_contact[0, 0] < 0.5
    assert np.log2(errors[0] / errors[1]) / 2 > 1.8
    # the force of the contact is linear to second order: h = 0.016
    assert errors[1] < 2 * (PERIOD / 400) ** 2
    # in flight at phase 1/4: the parabola behind the release, whose time the scheme knows to second order
    exact = flight(A, 0.25 * PERIOD)
    np.testing.assert_allclose(
        [found.section.q[0, -1, 0], found.section.v[0, -1, 0]], exact, rtol=0, atol=(PERIOD / 400) ** 2
    )


@pytest.mark.parametrize("e", [0.0, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("t0", [2.0, 5.5])
def test_multipliers_are_zero(e, t0):
    """At a section in flight and at one in contact; the state is the parabola's, or the table's."""
    exact = flight(A, t0) if t0 < 3 else (A * np.sin(t0), A * np.cos(t0))
    start = exact[0] + (0.02 if t0 < 3 else 0.0)
    found = periodic_orbit(BALL, [start], [exact[1]], period=PERIOD, steps=200, t0=t0, args={"A": A}, e=e)
    assert found.converged and found.stable and found.status == 0
    np.testing.assert_array_equal(found.multipliers, 0)
    np.testing.assert_allclose([found.q[0], found.v[0]], exact, rtol=0, atol=(PERIOD / 200) ** 2)


@pytest.mark.slow
def test_what_the_contact_does_not_hold_keeps_its_multipliers():
    """A damped oscillator driven by the ball: two multipliers zero, two exp((-c +- i w) T)."""

    def force(t, q, v, args):
        return jnp.stack([-jnp.ones(()), 0.5 * q[0] - 0.7 * q[1] - 0.2 * v[1]])

    problem = ji.Problem(force, table)
    options = {"period": PERIOD, "steps": 200, "t0": 2.0, "args": {"A": A}, "e": 0.3}
    exact = flight(A, 2.0)
    found = periodic_orbit(problem, [exact[0], 0.0], [exact[1], 0.0], **options)
    assert found.converged
    w = np.sqrt(0.7 - 0.01)
    # the scheme's own damping and frequency, of second order: h = 0.03
    np.testing.assert_allclose(
        found.multipliers[:2], np.exp((-0.1 - np.array([1j, -1j]) * w) * PERIOD), rtol=0, atol=1e-3
    )
    np.testing.assert_allclose(found.multipliers[2:], 0, atol=1e-12)
    assert int(found.status) & int(ji.Status.DERIVATIVE_EVENTS)


@pytest.mark.slow
def test_a_branch_of_them():
    """How many impacts are seen before rest changes along it, and is no event."""
    exact = flight(A, 2.0)
    branch = continue_orbit(
        BALL,
        [exact[0]],
        [exact[1]],
        parameter="A",
        bounds=(1.1, 1.6),
        period=PERIOD,
        steps=100,
        t0=2.0,
        args={"A": A},
        e=0.3,
        step=0.1,
    )
    assert branch.ended == "bounds" and not branch.events
    assert (branch.accumulations == 1).all() and (branch.impacts == 0).all() and branch.stable.all()
    assert (np.diff(branch.lasting) <= 0).all() and branch.lasting[0] > 0.4
    for a, q, v in zip(branch.parameter, branch.q, branch.v, strict=True):
        np.testing.assert_allclose([q[0], v[0]], flight(a, 2.0), rtol=0, atol=(PERIOD / 100) ** 2)


@pytest.mark.slow
def test_a_branch_ends_where_sticking_does():
    """Event by event the ball comes to rest before the table releases it up to A = 1.9469 (bisected with
    `cycles_between_rests`)."""
    exact = flight(1.9, 2.0)
    branch = continue_orbit(
        BALL, [exact[0]], [exact[1]], parameter="A", bounds=(1.1, 3.0), period=PERIOD, steps=400, t0=2.0,
        args={"A": 1.9}, e=0.3, step=0.1
    )  # fmt: skip
    (event,) = branch.events
    assert branch.ended == event.kind == "end of sticking" and event.detail == "lasting contact"
    assert (branch.accumulations == 1).all() and branch.lasting[-1] < branch.lasting[0] / 4
    # contacts of a few steps are the shortest seen, and the last bounces are shorter than a step: h = 0.016
    assert event.parameter == branch.parameter[-1] == pytest.approx(1.9469, abs=PERIOD / 400)


def test_inelastic_landings_are_no_accumulations():
    found = impact_section(
        BALL, [A + 0.5], [0.0], period=PERIOD, steps=100, cycles=4, skip=4, phase=0.25, args={"A": A}, e=0.0
    )
    assert (
        found.per_period.tolist() == [1.0] and len(found.impacts.accumulations) == 0 and len(found.impacts.lasting) == 4
    )


@pytest.mark.slow
def test_rests_every_third_period_and_every_sixth():
    """Against motions event by event, and how many impacts are counted: infinitely many wherever there is a rest."""
    cases = [(2.9, 0.3), (3.1, 0.3), (1.55, 0.6), (1.2, 0.5)]
    a, e = np.array(cases).T
    known = [cycles_between_rests(*case) for case in cases]
    found = impact_section(
        BALL, [4.0], [0.0], period=PERIOD, steps=1000, cycles=24, skip=60, phase=0.3, args={"A": a}, args_axes=0, e=e
    )
    assert period_of(found.section).tolist() == [cycles for cycles, _ in known]
    assert np.isinf(found.per_period).all()


def test_a_map_says_where_impacts_accumulate(tmp_path):
    found = two_parameter_map(
        BALL, [3.0], [0.0], parameters=("A", "e"), values=([1.2, 2.5], [0.0, 0.3]), period=PERIOD, steps=100, cycles=8,
        skip=40, phase=0.25, args={"A": A},
    )  # fmt: skip
    assert found.period[:, 0].tolist() == [1, 1]
    assert (
        found.impacts[0].tolist() == [1.0, 1.0]
        and np.isposinf(found.impacts[1, 0])
        and np.isfinite(found.impacts[1, 1])
    )
    assert found.plot(tmp_path / "map.png").stat().st_size > 5000


def test_flights_below_the_tolerance_are_followed_if_another_impact_falls_into_them():
    """A ball bounces lower than atol on a floor, and meets an oblique wall within that flight; it kept nothing of the
    flight's velocity: 50 tolerances.

    Parabolas, so that rounding is left; the error that is stated stays below one tolerance.
    """
    e, slant, fast, falls, atol = 0.1, 0.5, 1.0, 0.1, 1e-4
    up = e * falls  # on behind the floor, for a time of 2 up, up to the height up^2/2 < atol
    meets = 0.5 * up
    here = np.array([fast * meets, up * meets - meets**2 / 2])
    ball = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -1.0]),
        lambda t, q, args: jnp.stack([q[1], (here[0] - q[0]) + slant * (q[1] - here[1])]),
        restitution=e,
    )
    before, after = 0.2, 0.4 - meets
    start = np.array([-fast * before, falls * before - before**2 / 2])
    v, normal = np.array([fast, up - meets]), np.array([-1.0, slant]) / np.hypot(1.0, slant)
    v = v - (1 + e) * (v @ normal) * normal
    found = ji.solve(
        ball, start, [fast, before - falls], t1=0.6, steps=3, scheme=ji.EventDriven(atol, atol), save="final"
    )
    exact = here + after * v - np.array([0.0, after**2 / 2])
    np.testing.assert_allclose(found.q[-1], exact, rtol=0, atol=1e-12)
    assert found.status == 0 and found.error < 1


def test_flights_end_before_another_impact():
    """A ball that rolls to a wall bounces half as high each time, in flights that end before:
    they were followed for ever."""
    ball = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -1.0]), lambda t, q, args: jnp.stack([q[1], 0.1 - q[0]]))
    scheme = ji.EventDriven(1e-3, 1e-3, trials=30)
    found = ji.solve(ball, [0.0, 5e-5], [1.0, 0.0], t1=0.3, steps=1, e=0.5, scheme=scheme, save="final")
    np.testing.assert_allclose(found.q[-1], [0.1 - 0.5 * 0.2, 0.0], rtol=0, atol=1e-12)
    assert found.status == 0


@pytest.mark.parametrize(
    ("scheme", "steps", "speed"),
    [(ji.EventDriven(), 10, 2e-4), (ji.EventCorrected(), 101, 2e-4), slow(ji.EventCorrected(), 101, 2.8e-3)],
)
def test_a_corner_that_lets_go_of_a_wall_is_left_however_small_the_last_flight(scheme, steps, speed):
    """Down the second wall to the floor, inelastic, back to the wall over a flight below the tolerance, and up along
    it: as a force leads off the floor, that goes on.

    Resting on both walls in place of that flight left the velocity 2 % of that at the floor behind, with a clean
    status: 1.4e-6 of 1e-9. With steps, the floor did not hold after the first impact, as the forces would open it if
    the wall held too; it was struck again, and the last impact was moved to the end of the step: 4e-4. Paths are
    parabolas, so that rounding is left.
    """
    lean, fall = 0.16, 0.5
    force = np.array([-1.0, -0.1])
    corner = ji.Problem(
        lambda t, q, v, args: jnp.asarray(force),
        lambda t, q, args: jnp.stack([q[1], q[0] + lean * q[1]]),
        restitution=0.0,
    )
    up = np.array([-lean, 1.0]) / np.hypot(lean, 1.0)
    pull = force @ up
    start, onto = speed * fall + pull * fall**2 / 2, -(speed + pull * fall)
    off = -speed * up[0]  # along the floor, back behind twice that time with the opposite velocity
    left, rest = 1.0 - fall - 2 * off, -off * up[0]
    found = ji.solve(corner, start * up, onto * up, t1=1.0, steps=steps, scheme=scheme, save="final")
    np.testing.assert_allclose(found.q[-1], (rest * left + pull * left**2 / 2) * up, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.v[-1], (rest + pull * left) * up, rtol=0, atol=1e-12)
    assert found.status == 0
