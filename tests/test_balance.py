"""Energy and momentum balances: residuals vanish at the schemes' orders, losses are the exact ones, mistakes show."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import balance
from jaximpact.analysis.convergence import slope


def residuals(problem, q0, v0, t1, steps, scheme, **more):
    runs = [ji.solve(problem, q0, v0, t1=t1, steps=n, scheme=scheme, **more) for n in steps]
    found = [balance(problem, one, **more) for one in runs]
    h = t1 / np.array(steps)
    return found, [slope(h, np.array([getattr(one, name) for one in found])) for name in ("energy_error", "momentum_error")]  # fmt: skip


def test_forced_and_damped_oscillator():
    """Velocity-dependent force, one impact a period: second order with located impacts."""
    entry = catalogue.get("shaw-holmes")
    case = entry.case("damped")
    steps = [211, 422, 844]
    t1 = 10.0
    found, orders = residuals(
        entry.problem, case.q0, case.v0, t1, steps, ji.EventCorrected(), args=case.args, e=case.restitution
    )
    # where in their steps the impacts fall scatters the slope
    assert min(orders) > 1.6
    assert found[-1].energy_error < 1e-3 and found[-1].momentum_error < 1e-3
    # three impacts, each of (1 - e^2) u^2 / 2
    u = case.v0[0] / case.restitution
    assert np.isclose(found[-1].loss[-1], 3 * (1 - case.restitution**2) * u**2 / 2, rtol=1e-3)
    assert np.all(found[-1].driven == 0)


def test_zeno_ball_loses_all_its_energy():
    """Infinitely many bounces, then rest: what is lost is what there was, m g y, and lasting contact loses nothing."""
    entry = catalogue.get("bouncing-ball")
    case = entry.case()
    found, (energy, _) = residuals(
        entry.problem, case.q0, case.v0, case.t1, [199, 797], ji.EventCorrected(), args=case.args, e=case.restitution
    )
    assert energy > 1.5
    (start,) = found[-1].kinetic[:1]
    assert np.isclose(found[-1].loss[-1], start + found[-1].work[-1], rtol=1e-3)


def swing(t, q, v, args):
    """Kinetic minus potential energy of a double pendulum of unit masses and lengths."""
    kinetic = 0.5 * (2 * v[0] ** 2 + 2 * jnp.cos(q[0] - q[1]) * v[0] * v[1] + v[1] ** 2)
    return kinetic + 9.81 * (2 * jnp.cos(q[0]) + jnp.cos(q[1]))


def shaking_wall(t, q, args):
    return jnp.stack([0.3 + 0.02 * jnp.sin(3 * jnp.asarray(t, q.dtype)) - jnp.sin(q[0]) - jnp.sin(q[1])])


@pytest.mark.parametrize(
    ("scheme", "order"),
    [(ji.EventCorrected(), 2), (ji.MoreauJean(), 1), pytest.param(ji.PaoliSchatzman(), 1, marks=pytest.mark.slow)],
    ids=["event-corrected", "moreau-jean", "paoli-schatzman"],
)
def test_a_mechanism_with_mass_matrix_and_a_moving_wall(scheme, order):
    problem = ji.Problem.from_lagrangian(swing, shaking_wall)
    found, orders = residuals(problem, [-0.5, -0.2], [0.0, 0.0], 1.5, [331, 2647], scheme, e=0.6)
    # the slope over a factor of eight scatters by where impacts fall in their steps
    assert min(orders) > order - 0.4
    assert found[-1].driven[-1] != 0 and found[-1].loss[-1] > 0


def test_the_wrong_restitution_shows():
    """With e = 1 assumed nothing is lost, and the residual is the exact loss (1 - e^2) u^2 / 2."""
    ball = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -9.81), lambda t, q, args: q)
    motion = ji.solve(ball, [1.0], [0.0], t1=0.8, steps=200, e=0.5, scheme=ji.EventCorrected())
    assert balance(ball, motion, e=0.5).energy_error < 1e-9  # constant acceleration: the scheme is exact
    assert np.isclose(balance(ball, motion, e=1.0).energy_error, 0.75 * 9.81, rtol=1e-9)


def test_bad_input(tmp_path):
    ball = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -9.81), lambda t, q, args: q)
    motion = ji.solve(ball, [1.0], [0.0], t1=0.8, steps=200, e=0.5)
    with pytest.raises(ValueError, match="final row only"):
        balance(ball, ji.solve(ball, [1.0], [0.0], t1=0.8, steps=200, e=0.5, save="final"), e=0.5)
    with pytest.raises(ValueError, match="pick a lane"):
        balance(ball, ji.ensemble(ball, [[1.0]], [0.0], t1=0.8, h=0.1, e=0.5), e=0.5)
    with pytest.raises(ValueError, match="e must be one number"):
        balance(ball, motion, e=[0.5, 0.5])
    assert balance(ball, motion, e=0.5).plot(tmp_path / "balance.png", title="ball").stat().st_size > 5000
