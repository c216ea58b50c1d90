"""Joints as equations, against the same systems in minimal coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

G, WALL = 9.81, 0.3
FINE = ji.EventDriven(rtol=1e-13, atol=1e-13)
SCHEMES = [ji.MoreauJean(), ji.EventCorrected(), ji.EventDriven()]


def slow_but(kept, values):
    return [pytest.param(x, marks=() if x == kept else pytest.mark.slow) for x in values]


# a pendulum beside a wall at x = -.3: by a rod of length args["L"] in the plane, and by its angle


def gravity(t, q, v, args):
    return jnp.array([0.0, -G], q.dtype)


def rod(t, q, args):
    return jnp.stack([(q @ q - args["L"] ** 2) / 2])


def beside(t, q, args):
    return jnp.stack([q[0] + WALL])


FREE = ji.Problem(gravity, joints=rod)
PENDULUM = ji.Problem(gravity, beside, joints=rod)
ANGLE = ji.Problem(lambda t, q, v, args: -G / args["L"] * jnp.sin(q), lambda t, q, args: args["L"] * jnp.sin(q) + WALL)


def in_plane(angle, rate, length):
    s, c = jnp.sin(angle), jnp.cos(angle)
    return length * jnp.stack([s, -c]), length * rate * jnp.stack([c, s])


def swing(x, problem=PENDULUM, t1=0.8, **options):
    """State at t1 by angle, rate, length and restitution."""
    found = ji.solve(problem, *in_plane(*x[:3]), t1=t1, args={"L": x[2]}, e=x[3], save="final", **options)
    return jnp.concatenate([found.q[-1], found.v[-1]])


def swing_by_angle(x, t1=0.8):
    found = ji.solve(ANGLE, x[:1], x[1:2], t1=t1, steps=8, args={"L": x[2]}, e=x[3], scheme=FINE, save="final")
    return jnp.concatenate(in_plane(found.q[-1, 0], found.v[-1, 0], x[2]))


BEGIN = np.array([1.2, 0.0, 1.0, 0.5])  # strikes the wall once in .8


def errors(scheme, steps, x=BEGIN, **options):
    """Of the state and of its Jacobian, for each number of steps."""
    of_time = {name: options[name] for name in ("t1",) if name in options}
    right, slope = swing_by_angle(x, **of_time), jax.jacfwd(lambda x: swing_by_angle(x, **of_time))(jnp.array(x))
    found = []
    for n in steps:
        run = lambda x, n=n: swing(x, scheme=scheme, steps=n, **options)
        found.append([np.max(np.abs(run(x) - right)), np.max(np.abs(jax.jacfwd(run)(jnp.array(x)) - slope))])
    return np.array(found).T


@pytest.mark.parametrize("scheme", slow_but(SCHEMES[0], SCHEMES[:2]), ids=repr)
def test_a_free_pendulum_is_of_second_order_with_its_jacobian(scheme):
    (coarse, fine), (of_coarse, of_fine) = errors(scheme, (200, 800), problem=FREE, t1=0.5)
    # 2.0 within what the next order leaves of a step of 1/400
    assert 1.9 < np.log2(coarse / fine) / 2 < 2.1 and 1.9 < np.log2(of_coarse / of_fine) / 2 < 2.1


@pytest.mark.parametrize("execution", slow_but("native", ["native", "xla"]))
def test_an_event_driven_pendulum_strikes_a_wall_as_its_angle_does(execution):
    found = errors(ji.EventDriven(rtol=1e-11, atol=1e-11), (8,), execution=execution)
    # of some tens of substeps, each right to 1e-11; a Jacobian is ten times that
    assert found[0, 0] < 1e-9 and found[1, 0] < 1e-8


@pytest.mark.parametrize("execution", slow_but("native", ["native", "xla"]))
@pytest.mark.parametrize("scheme", slow_but(SCHEMES[0], SCHEMES[:2]), ids=repr)
def test_a_pendulum_by_a_joint_strikes_a_wall_as_its_angle_does(scheme, execution):
    (coarse, fine), (of_coarse, of_fine) = errors(scheme, (400, 6400), execution=execution)
    if isinstance(scheme, ji.MoreauJean):
        # of first order: 5.7 h in the angle's own coordinate, and 20 h in its Jacobian
        assert fine < 7 * 0.8 / 6400 and of_fine < 20 * 0.8 / 6400
        assert np.log2(of_coarse / of_fine) / 4 > 0.9
    else:
        assert np.log2(coarse / fine) / 4 > 1.9 and np.log2(of_coarse / of_fine) / 4 > 1.9


@pytest.mark.parametrize("scheme", slow_but(SCHEMES[0], SCHEMES), ids=repr)
def test_joints_hold_to_round_off_and_their_impulses_account_for_all_momentum(scheme):
    q0, v0 = in_plane(1.2, 0.0, 1.0)
    found = ji.solve(PENDULUM, q0, v0, t1=8.0, steps=8000, args={"L": 1.0}, e=0.5, scheme=scheme)
    assert found.status == 0 and found.joint_residual < 1e-14
    np.testing.assert_array_less(np.abs(np.sum(np.asarray(found.q) ** 2, axis=1) - 1), 1e-14)
    assert found.joint_impulse.shape == (8001, 1) and found.impulse[-1, 0] > 0
    # M dv = g dt + J' dl + G' dL, J = q' within a step: of second order
    joint = np.diff(found.joint_impulse, axis=0) * (found.q[1:] + found.q[:-1]) / 2
    wall = np.diff(found.impulse, axis=0) * np.array([1.0, 0.0])
    change = np.diff(found.v, axis=0) - 1e-3 * np.array([0.0, -G]) - joint - wall
    # but within the step of an impact, where the joint's part of it is at another place, h times its size
    assert np.quantile(np.abs(change), 0.99) < 1e-6 and np.max(np.abs(change)) < 0.02


def test_without_joints_a_solution_has_none_of_theirs():
    problem = ji.Problem(gravity, beside)
    found = ji.solve(problem, [0.0, 0.0], [0.0, 0.0], t1=0.1, steps=10)
    assert found.joint_impulse is None and found.joint_residual is None and "joints" not in repr(problem)
