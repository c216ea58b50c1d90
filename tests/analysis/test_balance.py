"""Energy and momentum balances: residuals vanish at the schemes' orders, losses are the exact ones, mistakes show."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import balance


def residuals(problem, q0, v0, t1, counts, scheme, args=None, e=None):
    """Balances for several numbers of steps, and the observed orders of their energy and momentum residuals."""
    options = {"t1": t1, "scheme": scheme, "args": args, "e": e, "sensitivity": "none"}
    found = [balance(problem, ji.solve(problem, q0, v0, steps=n, **options), args=args, e=e) for n in counts]
    errors = np.log([[getattr(one, name) for one in found] for name in ("energy_error", "momentum_error")])
    return found, [np.polyfit(-np.log(counts), error, 1)[0] for error in errors]


def test_forced_and_damped_oscillator():
    """Velocity-dependent force, one impact a period: second order with located impacts."""
    entry = catalogue.get("shaw-holmes")
    case = entry.case("damped")
    found, orders = residuals(
        entry.problem, case.q0, case.v0, 10.0, [211, 844], ji.EventCorrected(), args=case.args, e=case.restitution
    )
    # where in their steps the impacts fall scatters the slope
    assert min(orders) > 1.6
    assert found[-1].energy_error < 1e-3 and found[-1].momentum_error < 1e-3
    # three impacts, each of (1 - e^2) u^2 / 2
    u = case.v0[0] / case.restitution
    assert np.isclose(found[-1].loss[-1], 3 * (1 - case.restitution**2) * u**2 / 2, rtol=1e-3)
    assert np.all(found[-1].driven == 0)


@pytest.mark.slow
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


PENDULUM = ji.Problem.from_lagrangian(swing, shaking_wall)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "order"),
    [(ji.EventCorrected(), 2), (ji.MoreauJean(), 1), (ji.PaoliSchatzman(), 1)],
    ids=["event-corrected", "moreau-jean", "paoli-schatzman"],
)
def test_a_mechanism_and_a_moving_wall(scheme, order):
    found, orders = residuals(PENDULUM, [-0.5, -0.2], [0.0, 0.0], 1.5, [331, 2647], scheme, e=0.6)
    # the slope over a factor of eight scatters by where impacts fall in their steps
    assert min(orders) > order - 0.4
    assert found[-1].driven[-1] != 0 and found[-1].loss[-1] > 0


def growing(q, args):
    return (1 + q**2)[None]


def weight(q, args):
    return 9.81 * q[0]


def shaking_floor(t, q, args):
    return q - 0.05 * jnp.sin(3 * jnp.asarray(t, q.dtype))


def test_mass_that_depends_on_the_position_and_a_moving_floor():
    problem = ji.Problem.from_potential(weight, shaking_floor, growing)
    found, orders = residuals(problem, [0.5], [0.0], 1.5, [97, 776], ji.EventCorrected(), e=0.7)
    # second order, as above
    assert min(orders) > 1.6
    # without forces of their own, work is that of weight and of M's rate: energies add up with the potential
    one = found[-1]
    assert one.driven[-1] != 0 and one.loss[-1] > 0
    assert one.energy_error < 1e-3 * one.kinetic.max()


@pytest.fixture(scope="module")
def dropped():
    """A ball with e = 1/2, one bounce."""
    ball = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -9.81), lambda t, q, args: q, restitution=0.5)
    return ball, ji.solve(ball, [1.0], [0.0], t1=0.8, steps=200, scheme=ji.EventCorrected())


def test_the_wrong_restitution_shows(dropped):
    """With e = 1 assumed nothing is lost, and the residual is the exact loss (1 - e^2) u^2 / 2."""
    assert balance(*dropped).energy_error < 1e-9  # constant acceleration: the scheme is exact
    assert np.isclose(balance(*dropped, e=1.0).energy_error, 0.75 * 9.81, rtol=1e-9)


def test_bad_arguments_are_refused_by_name(dropped):
    ball, motion = dropped
    rows = {name: getattr(motion, name)[-1:] for name in ("t", "q", "v", "z", "impulse")}
    with pytest.raises(ValueError, match="final row only"):
        balance(ball, replace(motion, **rows))
    with pytest.raises(ValueError, match="pick a lane"):
        balance(ball, jax.tree.map(lambda x: x[None], motion))
    with pytest.raises(ValueError, match="not finite"):
        balance(ball, replace(motion, q=motion.q * jnp.nan))
    with pytest.raises(ValueError, match="e must be one number"):
        balance(ball, motion, e=[0.5, 0.5])


@pytest.mark.parametrize("scheme", [ji.MoreauJean(), pytest.param(ji.EventCorrected(), marks=pytest.mark.slow)])
def test_a_belt_takes_a_block_along(scheme):
    """From rest to the belt's speed w = 1: m w^2 / 2 for the block, as much for heat, and the belt has given both."""
    belt = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -9.81]),
        lambda t, q, args: q[1:],
        slip=lambda t, q, v, args: v[:1] - 1.0,
        friction=0.3,
    )
    found = ji.solve(belt, [0.0, 0.0], [0.0, 0.0], t1=0.5, h=1e-3, scheme=scheme)
    kept = balance(belt, found)
    # the step in which slip ends, at most, has its friction at another time
    near = 1e-3 * 0.3 * 9.81
    assert found.status == 0 and np.allclose([kept.friction[-1], kept.driven[-1]], [0.5, 1.0], rtol=0, atol=near)
    assert kept.energy_error < near and kept.momentum_error < 1e-12
    assert "friction" in kept.to_pandas() and "lost to friction" in str(kept.plot()[0].get_legend_handles_labels())
