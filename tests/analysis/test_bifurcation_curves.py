"""Curves of bifurcations over two parameters, against the closed forms of the impact oscillator and
of a pendulum of Duffing's."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import jaximpact as ji
from jaximpact import analysis
from support.shaw_holmes import SHAW_HOLMES, WALL, E, Z, amplitude, arguments, closed_form, doubling_frequency, period

# Newton's residual, 4e-11 of unknowns of size 1, and the scheme's 1e-12: some ten times that is left of the parameters
DIGITS = 1e-9


@pytest.mark.slow
def test_the_grazing_curve_is_that_of_the_free_vibration():
    """Without impacts q = A(w) cos(w t - lag), which touches the wall at -A(w)."""
    lag = np.arctan2(2 * Z * 1.3, 1 - 1.3**2)
    q, v = amplitude(1.3) * np.cos(lag), amplitude(1.3) * 1.3 * np.sin(lag)
    # the guess does not touch: by a hundredth
    args = arguments(Z, 1.3, -amplitude(1.3) - 0.01, 0.0)
    curve = analysis.continue_curve(
        SHAW_HOLMES, [q], [v], kind="grazing", parameters=("wall", "frequency"), bounds=((-2.5, -0.3), (1.1, 1.9)),
        period=period, args=args, e=E, points=8,
    )  # fmt: skip
    assert len(curve.x) == 8 and np.all(np.diff(curve.y) > 0)
    np.testing.assert_allclose(curve.x, -amplitude(curve.y), rtol=0, atol=DIGITS)
    # the section is the touch: at the wall, at rest
    np.testing.assert_allclose([curve.q[:, 0], curve.v[:, 0]], [curve.x, 0 * curve.x], rtol=0, atol=DIGITS)


@pytest.mark.slow
def test_the_curve_of_period_doublings_is_that_of_the_closed_form():
    start = doubling_frequency()
    exact, shift, _ = closed_form(Z, start, WALL, E)
    t0 = 0.5 * 2 * np.pi / start
    (q,), (v,) = exact(np.array([t0]))
    curve = analysis.continue_curve(
        SHAW_HOLMES, q, v, kind="period doubling", parameters=("frequency", "wall"), bounds=((2.0, 3.0), (-0.3, 0.2)),
        period=period, args=arguments(Z, start + 1e-3, WALL, shift), e=E, t0=t0, points=5,
    )  # fmt: skip

    def at_minus_one(w, wall):
        monodromy = closed_form(Z, w, wall, E)[2]
        return 1 + np.trace(monodromy) + np.linalg.det(monodromy)

    exact = [
        brentq(at_minus_one, x - 0.05, x + 0.05, args=(y,), xtol=1e-14) for x, y in zip(curve.x, curve.y, strict=True)
    ]
    np.testing.assert_allclose(curve.x, exact, rtol=0, atol=DIGITS)
    np.testing.assert_allclose(curve.multipliers[:, 0], -1, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_the_curve_of_folds_meets_a_cusp_where_it_is():
    """q'' = a + b q - q^3 - q', with no forcing but a period of one: equilibria fold where a^2 = 4 b^3 / 27;
    the cusp at (0, 0) is passed."""
    problem = ji.Problem(
        lambda t, q, v, args: args["a"] + args["b"] * q - q**3 - v + 0 * jnp.sin(t), lambda t, q, args: q + 9.0
    )
    curve = analysis.continue_curve(
        problem, [-0.5], [0.0], kind="fold", parameters=("a", "b"), bounds=((-1.0, 1.0), (-0.5, 1.0)), period=1.0,
        args={"a": 0.3, "b": 0.8}, direction=-1, points=40,
    )  # fmt: skip
    assert np.min(curve.x) < 0 < np.max(curve.x)
    np.testing.assert_allclose(curve.x**2, 4 * curve.y**3 / 27, rtol=0, atol=DIGITS)
    np.testing.assert_allclose(curve.q[:, 0] ** 2, curve.y / 3, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_a_start_far_from_a_bifurcation_is_said():
    problem = ji.Problem(lambda t, q, v, args: -args["k"] * q - args["c"] * v, lambda t, q, args: q + 9.0)
    with pytest.raises(RuntimeError, match="no fold was found near the start"):
        analysis.continue_curve(
            problem, [0.0], [0.0], kind="fold", parameters=("k", "c"), bounds=((0.5, 2.0), (0.1, 0.3)), period=1.0,
            args={"k": 1.0, "c": 0.2},
        )  # fmt: skip


def test_a_period_that_is_not_the_forcings_is_refused():
    """Of another length; and right for the first frequency of the bounds alone. Before any motion is computed."""
    given = {"kind": "fold", "parameters": ("frequency", "e"), "bounds": ((2.0, 2.4), (0.5, 0.9))}
    run = lambda period: analysis.continue_curve(
        SHAW_HOLMES, [0.5], [0.0], period=period, args=arguments(Z, 2.2, WALL, 0.0), e=E, **given
    )
    with pytest.raises(ValueError, match="period: the force"):
        run(2.5)
    with pytest.raises(ValueError, match=r"period: the force .*\(lane 1\)"):
        run(2 * np.pi / 2.2)
