"""Contacts that last on turning gaps, and joints written as two gaps, against motions in minimal coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaximpact as ji
from support import methods
from support.breadth import slow, slow_but

G = 9.81
SCHEMES = [methods.SCHEMES[name].scheme for name in methods.EVERY]
every = pytest.mark.parametrize("scheme", slow_but([ji.MoreauJean()], SCHEMES), ids=repr)
START, T1, STEPS = np.array([1.0, -0.3]), 0.3, 307


def integrated(acceleration, x, t1, stop=None, e=0.0):
    """(angle, rate) at t1 of one equation of second order; where ``stop`` (angle) falls to zero the
    rate is turned round, times e."""
    t = 0.0
    event = lambda t, x: stop(x[0])
    event.terminal, event.direction = True, -1
    while True:
        events = None if stop is None else event
        found = solve_ivp(lambda t, x: [x[1], acceleration(x[0])], (t, t1), x, rtol=1e-12, atol=1e-13, events=events)
        x, t = found.y[:, -1], found.t[-1]
        if found.status == 0:
            return x
        # a hair inside, so that the same impact is not found again
        x = np.array([x[0] + 1e-12, -e * x[1]])


# a ladder of half length 1 that slides down a wall

LADDER = ji.Problem(
    lambda t, q, v, args: jnp.array([0.0, -G, 0.0], q.dtype),
    lambda t, q, args: jnp.stack([q[1] - jnp.sin(q[2]), q[0] - jnp.cos(q[2])]),
    mass=np.array([1.0, 1.0, 1 / 3]),
)


def ladder(angle, rate):
    q0 = jnp.stack([jnp.cos(angle), jnp.sin(angle), angle])
    return q0, rate * jnp.stack([-jnp.sin(angle), jnp.cos(angle), jnp.ones_like(angle)])


@every
def test_two_contacts_that_last_on_turning_gaps_push_all_the_time(scheme):
    """The wall's force is x'' = (cos a)'' with a'' = -3/4 g cos a; so for forces of steps."""
    h = T1 / STEPS
    found = ji.solve(LADDER, *ladder(*START), t1=T1, steps=STEPS, scheme=scheme, save="all")
    force = np.diff(found.impulse[:, 1]) / h
    angle, rate = np.asarray(found.q[:-1, 2]), np.asarray(found.v[:-1, 2])
    right = 0.75 * G * np.cos(angle) * np.sin(angle) - np.cos(angle) * rate**2
    # of first order: 3 h times the force's rate of change, up to 20; the first step of PaoliSchatzman is a start
    np.testing.assert_allclose(force[2:], right[2:], atol=60 * h)
    assert found.status == 0


@every
@pytest.mark.slow
def test_two_contacts_that_last_on_turning_gaps_have_the_jacobian_of_the_angle(scheme):
    def end(x):
        found = ji.solve(LADDER, *ladder(*x), t1=T1, steps=STEPS, scheme=scheme, save="final")
        return jnp.stack([found.q[-1, 2], found.v[-1, 2]])

    exact = lambda x: integrated(lambda a: -0.75 * G * np.cos(a), x, T1)
    differences = [(exact(START + 1e-5 * x) - exact(START - 1e-5 * x)) / 2e-5 for x in np.eye(2)]
    # of first order: h times the rates of change, up to 5
    np.testing.assert_allclose(jax.jacfwd(end)(jnp.array(START)), np.stack(differences, 1), atol=5 * T1 / STEPS)


# pendulums of length 1: a distance kept by two gaps, and a wall at x = -.3

WALL = 0.3


def pendulum(distance):
    gaps = lambda t, q, args: jnp.stack([*distance(jnp.hypot(q[0], q[1])), q[0] + WALL])
    return ji.Problem(lambda t, q, v, args: jnp.array([0.0, -G], q.dtype), gaps)


def hanging(angle):
    return [np.sin(angle), -np.cos(angle)]


@every
@pytest.mark.parametrize("e", [0.5, slow(0.0)])
@pytest.mark.parametrize("distance", [lambda r: (1 - r, r - 1), slow(lambda r: (1 - r**2, r - 1))])
def test_a_joint_of_two_gaps_is_one_in_minimal_coordinates(scheme, e, distance):
    """Held on both sides also where an impact on the wall asks for the side that has not been pulled at."""
    if e > 0 and isinstance(scheme, ji.Maury):
        return
    x = integrated(lambda a: -G * np.sin(a), [1.2, 0.0], 0.8, lambda a: np.sin(a) + WALL, e)
    errors = []
    for h in (1e-2, 1e-3):
        found = ji.solve(pendulum(distance), hanging(1.2), [0.0, 0.0], t1=0.8, h=h, e=e, scheme=scheme, save="final")
        assert not found.failed
        errors.append(np.max(np.abs(found.q[-1] - np.array(hanging(x[0])))))
    # of first order: MoreauJean drifts by 5 h
    assert errors[0] < 0.06 and errors[1] < 0.15 * errors[0] + 1e-9, errors


@pytest.mark.slow
def test_the_derivative_of_a_joint_is_that_in_minimal_coordinates():
    def end(angle):
        rod, q0 = pendulum(lambda r: (1 - r, r - 1)), jnp.stack([jnp.sin(angle), -jnp.cos(angle)])
        return ji.solve(rod, q0, jnp.zeros(2), t1=0.3, h=1e-3, scheme=ji.MoreauJean(), save="final").q[-1]

    ends = [hanging(integrated(lambda a: -G * np.sin(a), [1.2 + step, 0.0], 0.3)[0]) for step in (1e-5, -1e-5)]
    # of first order: 5 h
    np.testing.assert_allclose(jax.jacfwd(end)(1.2), np.subtract(*ends) / 2e-5, atol=5e-3)


@every
def test_a_rail_of_two_gaps_holds_against_a_wall(scheme):
    """Flat gaps, whose round-off says nothing of which side is closed;
    the force along the rail has constant acceleration."""
    along, across = np.array([np.cos(0.5), np.sin(0.5)]), np.array([-np.sin(0.5), np.cos(0.5)])
    e = 0.0 if isinstance(scheme, ji.Maury) else 0.5
    rail = ji.Problem(
        lambda t, q, v, args: jnp.asarray(3 * across - 5 * along),
        lambda t, q, args: jnp.stack([across @ q, -(across @ q), q[0] + WALL]),
        restitution=e,
    )
    place, speed, left = 0.1, 0.7, 0.95
    stop = -WALL / along[0]
    hit = (speed + np.sqrt(speed**2 + 10 * (place - stop))) / 5
    left -= hit
    rebound = -e * (speed - 5 * hit)
    # in flight again, or at rest on the wall
    end = stop + (rebound * left - 2.5 * left**2 if e > 0 else 0)
    found = ji.solve(rail, place * along, speed * along, t1=0.95, h=1e-3, scheme=scheme, save="final")
    # h |v|, in the step of the impact and for PaoliSchatzman in two
    np.testing.assert_allclose(found.q[-1], end * along, atol=5e-3)
    assert not found.failed


# bodies that go past what there is


def galperin(ratio, scheme, **options):
    """A ball of mass 1 between a wall and one of mass ``ratio`` that comes at it: found, and the exact place at t = 4,
    from impact to impact."""
    x, v, t, t1 = np.array([1.0, 2.0]), np.array([0.0, -1.0]), 0.0, 4.0
    while True:
        wall = -x[0] / v[0] if v[0] < 0 else np.inf
        pair = (x[1] - x[0]) / (v[0] - v[1]) if v[0] > v[1] else np.inf
        if t + min(wall, pair) >= t1:
            break
        t, x = t + min(wall, pair), x + min(wall, pair) * v
        v = np.array([-v[0], v[1]]) if wall < pair else 2 * (v[0] + ratio * v[1]) / (1 + ratio) - v
    gaps = lambda t, q, args: jnp.stack([q[0], q[1] - q[0]])
    balls = ji.Problem(lambda t, q, v, args: jnp.zeros(2), gaps, mass=np.array([1.0, ratio]), restitution=1.0)
    options |= {"t1": t1, "steps": 1009, "scheme": scheme, "save": "final"}
    found = ji.solve(balls, [1.0, 2.0], [0.0, -1.0], **options)
    return found, x + (t1 - t) * v


def test_hundreds_of_impacts_that_turn_a_motion():
    """`EventCorrected` locates all 313: the light ball is at .6605; without them it would be at .997."""
    found, x = galperin(1e4, ji.EventCorrected())
    # straight paths: rounding, by a factor of each of 313 impacts
    assert abs(found.raise_if_failed().q[-1, 0] - x[0]) < 1e-9 and abs(x[0] - 0.6605) < 1e-4


@pytest.mark.parametrize("execution", ["native", slow("xla")])
def test_a_body_that_is_pushed_past_what_faces_it_fails(execution):
    """Velocities off by 500, or places by 1, the room having been 1."""
    for ratio in (1e4, 1e6):
        found, x = galperin(ratio, ji.MoreauJean(), execution=execution)
        assert found.failed and ji.Status.GAP_UNRESOLVED & int(found.status)
        assert np.max(np.abs(found.q[-1] - x)) > 1


def test_a_heavy_body_that_comes_to_rest_on_a_light_one_does_not_fail():
    """It sinks past the room that there is, by h times its speed, once."""
    stack = ji.Problem(
        lambda t, q, v, args: -G * jnp.array([1.0, 100.0]),
        lambda t, q, args: jnp.stack([q[0], q[1] - q[0] - 1]),
        mass=np.array([1.0, 100.0]),
    )
    for e in (0.0, 0.5):
        found = ji.solve(stack, [0.0, 1.2], [0.0, 0.0], t1=2.0, h=2e-3, e=e, scheme=ji.MoreauJean(), save="final")
        assert not found.failed
        np.testing.assert_allclose(found.q[-1], [0, 1], atol=2e-3 * np.sqrt(2 * G * 0.2))


def test_a_marble_that_drifts_out_of_its_circle_fails():
    """By h v^2 / 2 r of its radius in a unit of time; exact speed and radius are those of the start."""
    circle = ji.Problem(lambda t, q, v, args: jnp.zeros(2), lambda t, q, args: jnp.stack([1 - q @ q]))
    run = lambda t1: ji.solve(circle, [1.0, 0.0], [0.0, 2.0], t1=t1, h=0.01, scheme=ji.MoreauJean(), save="final")
    near, far = run(1.0), run(20.0)
    assert near.status == 0 and np.hypot(*near.q[-1]) < 1.04
    assert ji.Status.GAP_UNRESOLVED & int(far.status) and np.hypot(*far.q[-1]) > 1.4
