"""Periodic orbits and Floquet multipliers, against closed forms derived here by hand.

For q'' = F(t, q, v), q >= wall, an impact at speed v- < 0 maps deviations by the saltation matrix
S = [[-e, 0], [(a+ + e a-)/v-, -e]], a-+ the accelerations before and after; the free flow of the damped oscillator is a
matrix Phi. One impact a period: monodromy S Phi(T), of determinant e^2 exp(-2 z T).
"""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import bifurcation, periodic_orbit
from support.shaw_holmes import SHAW_HOLMES, arguments, by_modulus_and_phase, closed_form


@pytest.mark.parametrize("numbers", [(0.0, 2.5, 0.0, 0.5), (0.05, 2.2, -0.1, 0.8)], ids=["undamped", "damped"])
def test_shaw_holmes(numbers):
    z, w, wall, e = numbers
    exact, shift, monodromy = closed_form(*numbers)
    period = 2 * np.pi / w
    t0 = 0.45 * period
    (q,), (v,) = exact(np.array([t0]))
    common = {"period": period, "t0": t0, "args": arguments(z, w, wall, shift), "e": e}
    found = periodic_orbit(SHAW_HOLMES, q + 0.02, v - 0.01, steps=100, extrapolate=True, **common)
    assert found.converged and found.stable and found.status == 0
    # second order, extrapolated once: what is left is O(h^3), h = 0.006
    np.testing.assert_allclose([found.q, found.v], [q, v], rtol=0, atol=1e-6)
    mu = np.linalg.eigvals(monodromy)
    np.testing.assert_allclose(by_modulus_and_phase(found.multipliers), by_modulus_and_phase(mu), rtol=0, atol=1e-6)
    # half and half: no other order is near
    assert np.isclose(found.order["state"], 2, atol=0.1) and np.isclose(found.order["monodromy"], 2, atol=0.1)
    # the determinant is that of the impact law and of the damping alone
    assert np.isclose(np.prod(found.multipliers).real, e**2 * np.exp(-2 * z * period), atol=1e-6)
    if z == 0:
        assert np.allclose(np.abs(found.multipliers), e, atol=1e-6)
    plain = periodic_orbit(SHAW_HOLMES, q, v, steps=400, **common)
    error = max(abs(plain.q[0] - q[0]), abs(plain.v[0] - v[0]))
    # what extrapolation changed is the error of the finest run, but for the next order
    assert np.isclose(found.error, error, rtol=0.1)


@pytest.mark.slow
def test_resonant_oscillator():
    """The force vanishes at the wall, so S = -e I, and half a turn of the oscillator is Phi = -I: monodromy e I."""
    entry = catalogue.get("resonant-oscillator")
    case = entry.case("e=1/2")
    t0, e = 0.3, 0.5
    s = t0 + 1.0
    rebound = e / (1 - e)
    envelope = rebound + 0.5 - 0.5 * np.cos(s)
    exact = np.sin(s) * envelope, np.cos(s) * envelope + 0.5 * np.sin(s) ** 2
    found = periodic_orbit(
        entry.problem, [1.0], [0.5], period=np.pi, steps=200, t0=t0, args=case.args, e=e, extrapolate=True
    )
    assert found.stable
    # O(h^3) after extrapolation, h = 0.004
    np.testing.assert_allclose([found.q[0], found.v[0]], exact, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.monodromy, e * np.eye(2), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.multipliers, [e, e], rtol=0, atol=1e-6)
    assert np.isclose(found.order["state"], 2, atol=0.1)


def test_a_batch_finds_unstable_orbits_and_flags_the_lane_that_fails():
    """Across the period doubling over the frequency; the last lane has no orbit among floating-point numbers."""
    w = np.array([2.2, 2.4, 2.6, 2.8, 2.2])
    exact = [closed_form(0.05, one, -0.1, 0.8) for one in w]
    t0 = 0.4 * 2 * np.pi / w
    start = [motion(np.array([t])) for (motion, _, _), t in zip(exact, t0, strict=True)]
    q0, v0 = (np.array([one[k][0] for one in start]) for k in (0, 1))
    args = arguments(0.05, w, -0.1, np.array([shift for _, shift, _ in exact]))
    args["amplitude"] = np.array([1.0, 1.0, 1.0, 1.0, 1e308])
    axes = {"damping": None, "amplitude": 0, "frequency": 0, "shift": 0, "wall": None}
    found = periodic_orbit(
        SHAW_HOLMES, q0, v0, period=lambda a: 2 * np.pi / a["frequency"], t0=t0, steps=400, args=args, args_axes=axes,
        e=0.8
    )  # fmt: skip
    assert found.converged.tolist() == [True, True, True, True, False]
    assert found.stable.tolist() == [True, True, False, False, False]
    # second order at h = 0.007: q'''' h^2 T / 12 and what the multiplier makes of it
    np.testing.assert_allclose(found.q[:4], q0[:4], rtol=0, atol=1e-4)
    for i in range(4):
        mu = by_modulus_and_phase(np.linalg.eigvals(exact[i][2]))
        np.testing.assert_allclose(by_modulus_and_phase(found.multipliers[i]), mu, rtol=1e-3, atol=1e-3)
    assert np.isnan(found.multipliers[4]).all()
    with pytest.raises(RuntimeError, match="1 of 5 periodic orbits not found"):
        found.raise_if_failed()


def test_two_cycles_square_the_multipliers_and_a_section_at_the_impact_is_flagged():
    z, w, wall, e = 0.05, 2.2, -0.1, 0.8
    exact, shift, _ = closed_form(z, w, wall, e)
    period = 2 * np.pi / w
    t0 = 0.45 * period
    (q,), (v,) = exact(np.array([t0]))
    common = {"period": period, "args": arguments(z, w, wall, shift), "e": e, "steps": 100}
    once, twice = (periodic_orbit(SHAW_HOLMES, q, v, t0=t0, cycles=cycles, **common) for cycles in (1, 2))
    assert np.isclose(twice.period, 2 * once.period)
    # the same discrete map, twice
    np.testing.assert_allclose(twice.monodromy, once.monodromy @ once.monodromy, rtol=1e-8, atol=1e-8)
    (q,), (v,) = exact(np.array([0.5 * period / 100]))
    near = periodic_orbit(SHAW_HOLMES, q, v, t0=0.5 * period / 100, **common)
    assert int(near.status) & int(ji.Status.DERIVATIVE_AT_END)


def both_forced(t, q, v, args):
    return -q - 2.0 * args["damping"] * v + jnp.cos(args["frequency"] * (t + args["shift"]))


def both_above(t, q, args):
    return q - args["wall"]


@pytest.mark.slow
def test_two_uncoupled_oscillators_have_the_multipliers_of_both():
    w, e = 2.3, 0.7
    numbers = [(0.05, w, -0.1, e), (0.1, w, 0.05, e)]
    exact = [closed_form(*one) for one in numbers]
    period = 2 * np.pi / w
    t0 = 0.4 * period
    state = [motion(np.array([t0])) for motion, _, _ in exact]
    q0, v0 = (np.array([one[k][0, 0] for one in state]) for k in (0, 1))
    args = {"damping": [0.05, 0.1], "frequency": w, "shift": [shift for _, shift, _ in exact], "wall": [-0.1, 0.05]}
    args = {name: np.asarray(x) for name, x in args.items()}
    problem = ji.Problem(both_forced, both_above)
    found = periodic_orbit(problem, q0, v0, period=period, t0=t0, steps=200, args=args, e=e, extrapolate=True)
    mu = np.concatenate([np.linalg.eigvals(monodromy) for _, _, monodromy in exact])
    # O(h^3) after extrapolation, h = 0.003
    np.testing.assert_allclose(by_modulus_and_phase(found.multipliers), by_modulus_and_phase(mu), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_float32_beside_float64():
    """A start that takes several iterations stays in the precision it was given."""
    exact, shift, _ = closed_form(0.05, 2.2, -0.1, 0.8)
    t0 = 0.45 * 2 * np.pi / 2.2
    (q,), (v,) = exact(np.array([t0]))
    start = (q + 0.1).astype(np.float32), v.astype(np.float32)
    args = arguments(0.05, 2.2, -0.1, shift)
    found = periodic_orbit(SHAW_HOLMES, *start, period=2 * np.pi / 2.2, t0=t0, steps=100, args=args, e=0.8)
    assert found.converged and found.iterations >= 1 and found.q.dtype == np.float32
    # second order at h = 0.0286, with a constant measured as 1.3
    np.testing.assert_allclose(found.q, q, rtol=0, atol=2 * 0.0286**2)


def test_an_orbit_of_a_forced_system_without_gaps():
    """q'' = -q - .2 q' + cos 2t: q(0) is the real part of 1 / (-3 + .4 i)."""
    found = periodic_orbit(ji.Problem(lambda t, q, v, args: -q - 0.2 * v + jnp.cos(2 * t)), [0.0], [0.0], period=np.pi)
    np.testing.assert_allclose(found.q, [(1 / (-3 + 0.4j)).real], atol=1e-10)  # tolerance of orbits


def test_a_period_that_is_not_that_of_the_forcing_is_refused():
    args = {"w": 2.2}
    hammer = ji.Problem(
        lambda t, q, v, args: jnp.cos(args["w"] * t) - q - 0.1 * v, lambda t, q, args: q + 0.1, restitution=0.8
    )
    with pytest.raises(ValueError, match="period: the force"):
        periodic_orbit(hammer, [1.0], [0.5], period=2.5, args=args)
    table = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q - jnp.sin(t), restitution=0.5)
    with pytest.raises(ValueError, match=r"period: the gap .*\(lane 1\)"):
        periodic_orbit(table, [3.0], [0.0], period=np.array([2 * np.pi, 5.0]))
    # right for the first value of the parameter only
    swept = {"parameter": "w", "period": 2 * np.pi / 2.2, "args": args}
    with pytest.raises(ValueError, match="period: the force"):
        bifurcation(hammer, [1.0], [0.5], values=[2.2, 2.3], cycles=2, sweep="up", **swept)
