"""Analyses without steps: by `EventDriven`, as accurate as its tolerance,
against closed forms of the impact oscillator."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis
from support.shaw_holmes import SHAW_HOLMES, amplitude, arguments, by_modulus_and_phase, closed_form, doubling_frequency

NUMBERS = Z, W, WALL, E = 0.05, 2.2, -0.1, 0.8
EXACT, SHIFT, MONODROMY = closed_form(*NUMBERS)
PERIOD = 2 * np.pi / W
START = 0.5 * PERIOD  # in mid-flight; section times count from here, so that the impact lies in the middle of a period
(Q,), (V,) = EXACT(np.array([START]))
ARGS = arguments(Z, W, WALL, SHIFT + START)
FORCED = {"period": PERIOD, "args": ARGS, "e": E}
SPEED = float(EXACT(np.array([PERIOD * (1 + 1e-15)]))[1][0, 0])  # behind the impact


def top(t, q, v, args):
    return v[0]


def test_an_orbit_and_its_multipliers_have_eleven_digits():
    found = analysis.periodic_orbit(SHAW_HOLMES, Q + 0.01, V, **FORCED)
    assert found.converged and found.status == 0
    # tolerance 1e-12 of a substep
    np.testing.assert_allclose([found.q, found.v], [Q, V], rtol=0, atol=1e-11)
    mu = by_modulus_and_phase(np.linalg.eigvals(MONODROMY))
    np.testing.assert_allclose(by_modulus_and_phase(found.multipliers), mu, rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match="or give steps and a scheme that goes by them"):
        analysis.periodic_orbit(SHAW_HOLMES, Q, V, extrapolate=True, **FORCED)


@pytest.mark.slow
def test_exponents_add_up_to_the_trace_of_the_flow():
    found = analysis.lyapunov(SHAW_HOLMES, Q, V, interval=PERIOD, intervals=20, blocks=2, args=ARGS, e=E)
    assert found.status == 0
    # one impact a period: log(e^2)/T - 2 z; the tolerance is 1e-10, of Jacobians some ten times that
    np.testing.assert_allclose(found.exponents.sum(), 2 * np.log(E) / PERIOD - 2 * Z, rtol=0, atol=1e-9)


# tolerance 1e-10 of a substep, a dozen of these in a period, damped from period to period
@pytest.mark.slow
def test_strobes_and_passages_lie_on_the_orbit():
    strobes = analysis.stroboscopic(SHAW_HOLMES, Q, V, cycles=3, **FORCED)
    np.testing.assert_allclose(strobes.q, np.full((1, 3, 1), Q[0]), rtol=0, atol=1e-9)
    passages = analysis.poincare_section(SHAW_HOLMES, Q, V, surface=top, direction=-1, cycles=3, **FORCED)
    exact = EXACT(passages.t[0] + START)
    np.testing.assert_allclose([passages.q[0], passages.v[0]], exact, rtol=0, atol=1e-9)
    np.testing.assert_allclose(passages.v, 0, rtol=0, atol=1e-14)  # on the surface to rounding


def test_impacts_lie_on_the_orbit():
    found = analysis.impact_section(SHAW_HOLMES, Q, V, cycles=3, **FORCED)
    np.testing.assert_allclose(found.impacts.t, (np.arange(3) + 0.5) * PERIOD, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.impacts.before, -SPEED / E, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.impacts.after, SPEED, rtol=0, atol=1e-9)
    assert found.per_period == 1


@pytest.mark.slow
def test_a_lasting_contact_is_released_where_its_force_vanishes():
    """A ball on a shaken table is let go where the table's acceleration is that of gravity."""
    ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q - 1.3 * jnp.sin(t), restitution=0.3)
    found = analysis.impact_section(ball, [1.8], [0.0], period=2 * np.pi, cycles=2, skip=8, phase=0.25)
    exact = np.arcsin(1 / 1.3) + 2 * np.pi * np.array([9, 10])
    # rounding of times of 60 s
    np.testing.assert_allclose(found.impacts.lasting.end, exact, rtol=0, atol=1e-12)
    assert found.per_period == np.inf


@pytest.mark.slow
def test_a_branch_locates_a_period_doubling_to_ten_digits():
    period = lambda args: 2 * jnp.pi / args["frequency"]
    branch = analysis.continue_orbit(
        SHAW_HOLMES, Q, V, parameter="frequency", bounds=(2.0, 2.7), step=0.1, **(FORCED | {"period": period})
    )
    (event,) = branch.events
    assert event.kind == "period doubling" and branch.impacts.tolist() == [1] * len(branch.parameter)
    assert abs(event.parameter - doubling_frequency()) < 1e-10


@pytest.mark.slow
def test_a_diagram_and_basins_need_no_steps():
    diagram = analysis.bifurcation(SHAW_HOLMES, Q, V, parameter="frequency", values=[W], cycles=2, **FORCED)
    np.testing.assert_allclose(diagram.q, np.full((1, 1, 2, 1), Q[0]), rtol=0, atol=1e-9)
    found = analysis.basins(SHAW_HOLMES, x=[Q[0]], y=[V[0]], cycles=2, skip=1, **FORCED)
    # tolerance 1e-7: what tells attractors apart is 1e-5
    np.testing.assert_allclose(found.attractors[0].q, [Q], rtol=0, atol=1e-6)


def test_a_map_over_two_parameters_needs_no_steps():
    """The orbit of one impact in each period, for which its own numbers are among those of the map; and no impact where
    the wall is out of reach."""
    values = [W], [WALL, -9.0]
    found = analysis.two_parameter_map(
        SHAW_HOLMES, Q, V, parameters=("frequency", "wall"), values=values, cycles=4, **FORCED
    )
    assert found.period[0, 0] == 1 and found.impacts.tolist() == [[1.0], [0.0]] and not found.status.any()


def test_a_scheme_that_goes_by_steps_asks_for_them():
    for call, options in (
        (analysis.stroboscopic, {"cycles": 2, "scheme": ji.MoreauJean()}),
        (analysis.periodic_orbit, {"scheme": ji.EventCorrected()}),
    ):
        with pytest.raises(ValueError, match="goes by steps: give steps"):
            call(SHAW_HOLMES, Q, V, **FORCED, **options)


@pytest.mark.slow
def test_a_branch_ends_at_the_grazing_of_the_free_vibration():
    period = lambda args: 2 * jnp.pi / args["frequency"]
    branch = analysis.continue_orbit(
        SHAW_HOLMES, Q, V, parameter="wall", bounds=(-0.9, 0.1), direction=-1, **(FORCED | {"period": period})
    )
    event = branch.events[-1]
    assert (branch.ended, event.kind, event.detail) == ("grazing", "grazing", "impact speed")
    # extrapolated linearly from points within 1e-5 of it
    assert abs(event.parameter + amplitude(W)) < 1e-8
