"""Derivatives across impacts with friction that fall into one step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0.02, 0.6])
def test_impacts_of_bodies_apart_in_one_step_are_each_at_its_own_time(ahead):
    """Blocks with drag fall on one floor, the second a fraction of a step later:
    the Jacobian is that of each by itself."""
    h = 1e-3

    def blocks(n):
        def force(t, q, v, args):
            v = v.reshape(n, 2)
            return (jnp.array([[0.0, -9.81]]) - 0.4 * v - 0.1 * v * jnp.sum(v**2, axis=1, keepdims=True)).ravel()

        gaps = lambda t, q, args: q[1::2] - 0.1 * jnp.sin(3 * t)
        return ji.Problem(force, gaps, restitution=0.5, friction=0.3, slip=lambda t, q, v, args: v[::2] - 0.2 * t)

    def jacobian(n, q0, v0):
        found = ji.sensitivities(blocks(n), q0, v0, t1=0.25, h=h, wrt=("q0", "v0"))
        assert found.status == 0
        rows = [[found.jacobian[x][y] for y in ("q0", "v0")] for x in ("q", "v")]
        return np.array(rows).transpose(0, 2, 1, 3).reshape(2, n, 2, 2, n, 2)

    q0, v0 = np.array([0.0, 0.2, 1.0, 0.2 + ahead * h * 2.0]), np.array([0.5, 0.0, 1.2, 0.0])
    both = jacobian(2, q0, v0)
    for k, part in enumerate((slice(0, 2), slice(2, 4))):
        alone = jacobian(1, q0[part], v0[part])
        assert np.max(np.abs(alone)) > 3
        # the scheme's first order: accelerations before the impacts are those at the start of the step, which drag
        # changes by 16 h until its middle
        assert np.allclose(both[:, k, :, :, k], alone[:, 0, :, :, 0], rtol=0, atol=3 * h)
        assert np.all(np.abs(both[:, k, :, :, 1 - k]) < 3 * h)


def slides_beside_a_ball(top, friction, restitution):
    """A body in the plane above a surface ``top`` (q), and beside it a ball that bounces on a smooth floor, which has
    no part in the body's motion."""

    def force(t, q, v, args):
        return jnp.asarray([0, -9.81, -9.81], q.dtype)

    def slip(t, q, v, args):
        along = (q[1] * v[0] - q[0] * v[1]) / jnp.hypot(q[0], q[1]) if top is dome else v[0]
        return jnp.stack([along, v[0]])

    gaps = lambda t, q, args: jnp.stack([top(q), q[2]])
    return ji.Problem(force, gaps, restitution=np.array([0, restitution]), friction=np.array([friction, 0]), slip=slip)


def floor(q):
    return q[1]


def dome(q):
    return jnp.hypot(q[0], q[1]) - 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [(np.float32, None), (np.float64, 1e-5)], ids=["float32", "tolerance"])
def test_a_slow_slip_beside_a_fast_impact_is_no_rest(dtype, tolerance):
    """Modes were told by 1e4 times the solver's tolerance, a third of the largest speed in single precision: the
    derivative by v0 was 0 in place of 1."""
    q0, v0 = np.array([0, 0, 0.3], dtype), np.array([0.25, 0, 0], dtype)
    problem, projection = slides_beside_a_ball(floor, 0.02, 0.6), ji.ActiveSet(tolerance=tolerance)
    found = ji.sensitivities(problem, q0, v0, t1=0.6, steps=120, wrt=("v0", "friction"), projection=projection)
    assert found.status == 0
    by = found.jacobian["v"]
    # upwards it would fly for a while, and lose mu of that speed less
    np.testing.assert_allclose(by["v0"][0], [1, 0.02, 0], rtol=0, atol=1e-4)
    assert abs(by["friction"][0, 0] + 9.81 * 0.6) < 0.1  # the rest of a step of .05 is that of the start


@pytest.mark.slow
def test_an_impact_opens_no_contact_that_it_does_not_load():
    """On a curved surface the gap velocity of a contact that lasts is O(h), no zero: it counted as opened by the impact
    of a ball that it knows nothing of."""
    problem, h = slides_beside_a_ball(dome, 0.3, 0.5), 1.8e-3
    q0, v0 = np.array([0, 1, 0.05]), np.array([1.2, 0, 0])
    found = ji.sensitivities(problem, q0, v0, t1=100 * h, h=h, wrt=("q0", "v0"), save=1)
    for by in ("q0", "v0"):
        assert np.max(np.abs(found.jacobian["q"][by][:, 2, 2])) > 0.05
        # in one row of v it was 9; the acceleration changes by 3e-3 within a step
        assert np.max(np.abs(found.jacobian["v"][by][:, :2, 2])) < 5e-3
        assert np.max(np.abs(found.jacobian["q"][by][:, :2, 2])) < 5e-4


def test_impulses_of_joints_have_their_derivative_across_an_impact_that_rubs():
    """Two points at the ends of a rod, of which the lower one strikes a rough floor and slides on."""
    lower = np.array([0.0, 0.1])
    q0, v0 = np.concatenate([lower + np.array([np.cos(1.0), np.sin(1.0)]), lower]), np.array([3.0, -1.0, 3.0, -1.0])
    rod = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -9.81, 0.0, -9.81]),
        lambda t, q, args: q[3:],
        joints=lambda t, q, args: jnp.array([jnp.sum((q[2:] - q[:2]) ** 2) - 1]),
        slip=lambda t, q, v, args: v[2:3],
        friction=0.1,
    )

    def held(faster, scheme, steps):
        speed = v0 + faster * jnp.array([0.0, 1.0, 0.0, 1.0])
        return ji.solve(rod, q0, speed, t1=0.12, steps=steps, scheme=scheme).joint_impulse[-1, 0]

    located = ji.EventDriven(rtol=1e-10, atol=1e-10, order=5)
    expected = (held(0.01, located, 12) - held(-0.01, located, 12)) / 0.02
    _, found = jax.jvp(lambda x: held(x, ji.MoreauJean(), 240), (0.0,), (1.0,))
    # of first order in h = 5e-4 s, at rates of some 1/s; differences have 1e-5
    assert abs(found - expected) < 1e-3


def test_impulses_have_their_derivative_where_slip_reverses():
    """A block that a force stops and drives back, harder than friction holds it."""
    rub, push, T = 0.3 * 9.81, 5.0, 0.4
    block = ji.Problem(
        lambda t, q, v, args: jnp.array([-push, -9.81]),
        lambda t, q, args: q[1:],
        slip=lambda t, q, v, args: v[:1],
        friction=0.3,
    )
    along = lambda v: ji.solve(block, np.zeros(2), jnp.array([v, 0.0]), t1=T, h=1e-3, scheme=ji.MoreauJean())
    impulse, change = jax.jvp(lambda v: along(v).friction_impulse[-1, 0, 0], (1.0,), (1.0,))
    # it slips until t = v/(push + rub) and back from then on; of first order in h
    assert abs(impulse - (rub * T - 2 * rub / (push + rub))) < 2 * rub * 1e-3
    assert abs(change + 2 * rub / (push + rub)) < 1e-3
