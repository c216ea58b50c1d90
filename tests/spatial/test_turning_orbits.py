"""Orbits, multipliers, exponents, sections and basins of bodies in space, against closed forms:
of quaternions p they know p/|p| only."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue, spatial
from jaximpact.analysis import basins, continue_curve, lyapunov, period_of, periodic_orbit, stroboscopic

MOMENTS, SPIN = np.array([1.5, 2.0, 3.0]), 2.0
TURN = 2 * np.pi / SPIN


def spinning(axis, length):
    """State of the catalogue's free top that turns about a principal axis, and the multiplier of tilts, one of a pair,
    after a turn.

    Small rates across J_axis: a'' = -a (J - J_a) (J - J_b) / (J_a J_b) SPIN^2.
    """
    p, v = np.zeros(4), np.zeros(4)
    p[0], v[1 + axis] = length, length * SPIN / 2
    own, (a, b) = MOMENTS[axis], np.delete(MOMENTS, axis)
    return p, v, np.exp(1j * SPIN * TURN * np.sqrt(complex((own - a) * (own - b) / (a * b))))


@pytest.mark.parametrize("axis", [1, 2], ids=["unstable", "stable"])
def test_a_top_that_turns_once_has_closed_its_orbit(axis):
    """p(T) = -p(0): after a turn the quaternion has changed its sign. Of 8 numbers 6 are multipliers: a turn of the
    whole motion changes nothing, three times, another speed only the angle, and two are of the tilt."""
    p, v, tilt = spinning(axis, 1.3)
    orbit = periodic_orbit(catalogue.get("free-top").problem, p, v, period=TURN, args={"moments": MOMENTS})
    assert orbit.converged and orbit.status == 0
    # |p| is made 1
    np.testing.assert_allclose([*orbit.q, *orbit.v], np.concatenate([p, v]) / 1.3, atol=1e-12)
    expected = [1, 1, 1, 1, tilt, 1 / tilt]
    found = orbit.multipliers
    assert found.shape == (6,)
    # those at 1 are a double root, which rounding splits by its square root
    for x in expected:
        assert np.abs(found - x).min() < 1e-6
    np.testing.assert_allclose(np.prod(found), 1, atol=1e-9)


def test_an_autonomous_orbit_of_a_top_leaves_out_the_direction_along_itself_too():
    p, v, tilt = spinning(1, 1.0)
    facing = lambda t, q, v, args: 2 * (q[1] * q[3] + q[0] * q[2]) / (q @ q)  # x of the body's third axis
    orbit = periodic_orbit(
        catalogue.get("free-top").problem, p, v, period=1.1 * TURN, surface=facing, args={"moments": MOMENTS}
    )
    assert orbit.converged and orbit.status == 0 and orbit.multipliers.shape == (5,)
    # Newton's step of least norm keeps the period, and finds the speed, or a speed between
    speed = 2 * np.linalg.norm(orbit.v)
    np.testing.assert_allclose(orbit.period * speed, 2 * np.pi, rtol=1e-9)
    # the tilt grows by an angle, not by a time
    np.testing.assert_allclose(orbit.multipliers[[0, -1]].real, sorted([tilt.real, 1 / tilt.real])[::-1], rtol=1e-8)


def test_a_top_that_turns_once_has_the_period_of_one_turn():
    p, v, _ = spinning(2, 1.3)
    found = stroboscopic(catalogue.get("free-top").problem, p, v, period=TURN, cycles=4, args={"moments": MOMENTS})
    # a trap, as the quaternion changes its sign; ten substeps a turn or more, each with an error of 1e-10
    np.testing.assert_allclose(found.q[0, 1:], -found.q[0, :-1], atol=1e-7)
    assert not found.failed.any() and period_of(found).tolist() == [1]


DAMPING = 3.0


def hanging():
    """A body with three equal moments, 1 m below a ball joint, damped in proportion to its mass,
    and the roots of its small turns."""
    system = spatial.System({"bob": spatial.ball((0, 0, -1), 0.5, mass=2.0)}, [spatial.Ball("bob", at=(0, 0, 0))])
    problem = system.problem()
    force = lambda t, q, v, args: problem.force(t, q, v, args) - DAMPING * problem.mass(q, args) @ v
    moment = 2.0 * (1 + 0.4 * 0.25)
    swing = np.roots([1, DAMPING, 2.0 * 9.81 / moment])
    return system, problem.replace(force=force), np.array([0, -DAMPING, *swing, *swing])


def test_the_orbit_of_a_body_that_hangs_at_rest_has_the_multipliers_of_its_modes():
    system, problem, roots = hanging()
    assert problem.quaternions == (0,)
    # from a state beside it, not of unit length
    start = 1.2 * system.retract(system.q0, bob=(0.1, -0.2, 0.3))
    orbit = periodic_orbit(problem, start, 0 * start, period=0.7)
    assert orbit.converged and orbit.multipliers.shape == (6,)
    expected = np.exp(0.7 * roots)
    order = lambda x: x[np.lexsort([x.imag.round(6), -np.abs(x).round(6)])]
    np.testing.assert_allclose(order(orbit.multipliers), order(expected), atol=1e-9)


def test_exponents_leave_the_lengths_of_quaternions_out():
    system, problem, roots = hanging()
    # 25 s, in which rounding of 1e-16 along a quaternion would outgrow what shrinks by 1.5 e-folds a second
    found = lyapunov(problem, system.q0, 0 * system.q0, interval=0.5, intervals=40, skip=60, blocks=2)
    assert found.exponents.shape == (6,)
    # those of a pair of complex roots: the frame turns with them, by parts of a turn at both ends
    np.testing.assert_allclose(np.sort(found.exponents), np.sort(roots.real), atol=1 / (40 * 0.5))
    np.testing.assert_allclose(np.sum(found.exponents), np.sum(roots.real), rtol=1e-9)


def test_starts_at_p_and_at_minus_p_lead_to_one_attractor():
    """A damped body on a ball joint which a spring holds: it hangs and faces the spring, as one attractor."""
    spring = spatial.Spring("bob", ends=[(0.5, 0, -1), (3, 0, -1)], stiffness=4.0, length=1.0)
    system = spatial.System(
        {"bob": spatial.ball((0, 0, -1), 0.5, mass=2.0)}, [spatial.Ball("bob", at=(0, 0, 0)), spring]
    )
    problem = system.problem()
    damped = lambda t, q, v, args: problem.force(t, q, v, args) - DAMPING * problem.mass(q, args) @ v
    values = np.array([-1.0, -0.4, 0.3, 1.0])
    found = basins(
        problem.replace(force=damped), x=values, y=values, coordinates=(("q", 0), ("q", 1)), q0=(0, 0, 0.3, 0.2),
        v0=np.zeros(4), period=1.0, cycles=4, skip=30, steps=50, tolerance=1e-6,
    )  # fmt: skip
    (rests,) = found.attractors
    assert rests.period == 1 and rests.lanes == 16 and np.all(found.labels == 0)


def test_quaternions_of_a_problem_are_checked():
    problem = catalogue.get("free-top").problem
    assert spatial.System({"a": spatial.ball((0, 0, 1), 0.1, 1.0),
        "b": spatial.ball((0, 0, 2), 0.1, 1.0)}).problem().quaternions == (3, 10)  # fmt: skip
    for given, message in (((1.5,), "numbers of coordinates"), ((0, 2), "overlap")):
        with pytest.raises((TypeError, ValueError), match=message):
            problem.replace(quaternions=given)
    with pytest.raises(ValueError, match="four coordinates from number 1 on are not among 4"):
        ji.solve(problem.replace(quaternions=(1,)), np.ones(4), np.zeros(4), t1=0.1, args={"moments": MOMENTS})
    with pytest.raises(ValueError, match="joints and quaternions do not allow"):
        continue_curve(
            problem, jnp.ones(4), jnp.zeros(4), kind="fold", period=1.0, parameters=("a", "b"), bounds=((0, 1), (0, 1)),
            args={"a": 0.5, "b": 0.5},
        )  # fmt: skip
