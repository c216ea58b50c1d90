"""What `EventDriven` locates beside gaps: joints that kink, slips that jump, forces that jump beside friction, and
contacts that break away together. Where the scheme does not locate them: right to first order by steps, else told.

Exact motions are closed forms, which jax differentiates by their numbers;
the tolerance of 1e-9 is some hundred of those of the scheme.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow_but

G, MU = 9.81, 0.3
Status = ji.Status
TIGHT = ji.EventDriven(1e-11, 1e-11, order=5)
FLOOR = lambda t, q, args: q[1:]
weight = lambda t, q, v, args: jnp.array([0.0, -G])
slides = {"slip": lambda t, q, v, args: v[:1], "friction": MU}


def on_floor(force=weight, **options):
    return ji.Problem(force, FLOOR, restitution=0.0, **slides | options)


def on_lift(height, restitution=0.0):
    joints = lambda t, q, args: q[:1] - height(t, args)
    return ji.Problem(weight, lambda t, q, args: q[1:] - q[:1], restitution=restitution, joints=joints)


def two_feet(**friction):
    """A block on two rough feet, whose forces are not unique, under a pull that grows."""
    pull = lambda t, q, v, args: jnp.array([5 * args * t, -1.0, -1.0])
    return ji.Problem(pull, FLOOR, restitution=0.0, slip=lambda t, q, v, args: jnp.stack([v[0], v[0]]), **friction)


def broken(limit, t1, a):
    """Place of that block: it breaks away at the pull ``limit``, and slips under a friction of .8."""
    start = limit / (5 * a)
    return 5 * a * (t1**3 - start**3) / 6 - 0.4 * (t1 - start) ** 2 - 2.5 * a * start**2 * (t1 - start)


def onto_a_belt(t1, c):
    """Place of a body that comes from a floor at speed 1 and has not yet the speed 2 of the belt behind c."""
    speed = jnp.sqrt(1 - 2 * MU * G * c)
    left = t1 - (1 - speed) / (MU * G)
    return c + speed * left + MU * G * left**2 / 2


def past_a_step(t1, a):
    """Place of a body under a pull of 6 a up to .3, and 2 a behind, from rest."""
    pull, less = 6 * a - MU * G, 2 * a - MU * G
    reached = jnp.sqrt(0.6 / pull)
    left = t1 - reached
    return 0.3 + pull * reached * left + less * left**2 / 2


STILL = [0.0, 0.0]
# problem, v0, t1, the number that is varied, and the exact place by t1 and that number; all start from zero
CASES = {
    "lift that stops": (
        on_lift(jnp.minimum), [1.0, 1.0], 0.6, 0.5, lambda t1, a: jnp.stack([a, t1 - G * (t1 - a) ** 2 / 2])
    ),
    "lift that starts, e = 1/2": (
        on_lift(lambda t, a: jnp.maximum(t - a, 0), 0.5), STILL, 0.15, 0.1,
        lambda t1, a: jnp.stack([t1 - a, 1.5 * (t1 - a) - G * (t1 - a) ** 2 / 2]),
    ),
    "belt that is switched on": (
        on_floor(slip=lambda t, q, v, a: v[:1] - jnp.where(t > a, 2.0, 0.0)), STILL, 0.9, 0.31,
        lambda t1, a: jnp.stack([MU * G * (t1 - a) ** 2 / 2, 0 * a]),
    ),
    "onto a belt": (
        on_floor(slip=lambda t, q, v, c: v[:1] - jnp.where(q[:1] > c, 2.0, 0.0)), [1.0, 0.0], 0.4, 0.1,
        lambda t1, c: jnp.stack([onto_a_belt(t1, c), 0 * c]),
    ),
    "on a truck that brakes": (
        on_floor(lambda t, q, v, a: jnp.array([jnp.where(t > a, -4.0, 1.0), -G])), STILL, 1.0, 0.5,
        lambda t1, a: jnp.stack([-(4 - MU * G) * (t1 - a) ** 2 / 2, 0 * a]),
    ),
    "pull that steps down": (
        on_floor(lambda t, q, v, a: jnp.array([jnp.where(q[0] > 0.3, 2.0, 6.0) * a, -G])), STILL, 1.0, 1.0,
        lambda t1, a: jnp.stack([past_a_step(t1, a), 0 * a]),
    ),
    "rough lift that stops": (
        ji.Problem(
            lambda t, q, v, a: jnp.array([0.0, -G, 0.0]), lambda t, q, a: q[1:2] - q[2:], restitution=0.0,
            joints=lambda t, q, a: q[2:] - jnp.minimum(t, a), **slides,
        ),
        [0.5, 1.0, 1.0], 0.6, 0.5,
        lambda t1, a: jnp.stack([0.5**2 / (2 * MU * G) + 0 * a, t1 - G * (t1 - a) ** 2 / 2, a]),
    ),
    "two feet": (
        two_feet(friction=[0.3, 0.5]), [0.0] * 3, 1.0, 1.0,
        lambda t1, a: jnp.stack([broken(0.8, t1, a), 0 * a, 0 * a]),
    ),
    "two feet, static friction": (
        two_feet(friction=[0.3, 0.5], static_friction=[0.4, 0.6]), [0.0] * 3, 1.0, 1.0,
        lambda t1, a: jnp.stack([broken(1.0, t1, a), 0 * a, 0 * a]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(("onto a belt", "two feet, static friction"), CASES))
def test_states_and_derivatives_are_exact(name):
    """Each was glued, off by half of its derivative, or no motion at all, where only gaps and cones were watched."""
    problem, v0, t1, number, exact = CASES[name]
    found = ji.sensitivities(problem, np.zeros(len(v0)), v0, t1=t1, args=number, wrt="args", scheme=TIGHT)
    remarks = Status.IMPULSES_NOT_UNIQUE if "feet" in name else 0
    assert found.trusted and int(found.status) & ~int(remarks) == 0
    np.testing.assert_allclose(found.value["q"], exact(t1, number), rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.jacobian["q"]["args"], jax.jacfwd(exact, 1)(t1, number), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["lift that stops", "belt that is switched on"])
def test_what_is_not_located_is_told(name):
    """Steps are right to first order, and do not trust the derivative by the time of the kink."""
    problem, v0, t1, a, exact = CASES[name]
    given = {"q0": STILL, "v0": v0, "t1": t1, "args": a, "scheme": ji.MoreauJean(), "steps": 1000}
    found = ji.sensitivities(problem, **given, wrt="args")
    # h times a few velocities
    np.testing.assert_allclose(found.value["q"], exact(t1, a), rtol=0, atol=2e-3)
    assert not found.trusted and Status(int(found.status)) & Status.DERIVATIVE_JUMP
    assert not Status(int(ji.solve(problem, **given).status)) & Status.INPUT_INVALID


@pytest.mark.slow
def test_kinks_at_the_ends_of_a_motion_are_told():
    """A belt begins, or a lift stops, where or when the motion begins or ends: the derivative differs to both sides.
    Before that nothing is told."""
    belt, lift, rough = (CASES[name][0] for name in ("onto a belt", "lift that stops", "belt that is switched on"))
    for place, trusted in ((0.1, False), (0.1 + 1e-6, True)):
        start = {"t1": 0.2, "args": 0.1, "wrt": "q0", "scheme": TIGHT}
        assert ji.sensitivities(belt, [place, 0.0], [1.0, 0.0], **start).trusted == trusted
    call = {"args": 0.5, "wrt": "args", "scheme": TIGHT}
    for problem, speed in ((lift, [1.0, 1.0]), (rough, STILL)):
        for t1, trusted in ((0.5, False), (0.499, True), (0.2, True)):
            found = ji.sensitivities(problem, STILL, speed, t1=t1, **call)
            assert found.trusted == trusted and (t1 > 0.2 or found.status == 0)
    assert not ji.sensitivities(rough, STILL, STILL, t0=0.5, t1=0.7, **call).trusted


def test_of_a_drive_without_a_kink_nothing_is_told():
    smooth = on_lift(lambda t, a: a * jnp.sin(t))
    found = ji.sensitivities(smooth, STILL, [0.5, 0.5], t1=0.4, args=0.5, wrt="args", scheme=ji.EventDriven(order=5))
    np.testing.assert_allclose(found.jacobian["q"]["args"], np.sin(0.4), atol=1e-8)
    assert found.trusted


def test_more_kinks_than_are_located_are_told():
    """A drive by a table of many rows, written as a sum of ramps: with more than eight levels
    `EventDriven` locates none of them."""
    driven = on_lift(lambda t, a: a * jnp.sum(jnp.maximum(t - jnp.linspace(0.05, 0.5, 10), 0)))
    found = ji.solve(driven, STILL, STILL, t1=0.6, args=0.1, scheme=ji.EventDriven(order=5))
    assert Status(int(found.status)) & Status.INPUT_INVALID


def test_a_pivot_that_starts_is_no_matter_of_contacts():
    """Steps lose no digits at its kink, and doubt the derivative alone."""
    rod = lambda t, q, args: jnp.stack([q[0] - jnp.maximum(t - args, 0.0), q[1], jnp.sum((q[2:] - q[:2]) ** 2) - 1])
    hung = ji.Problem(lambda t, q, v, args: jnp.array([0.0, 0.0, 0.0, -G]), joints=rod)
    start = np.array([0.0, 0.0, np.sin(0.3), -np.cos(0.3)]), np.zeros(4)
    given = {"t1": 0.9, "args": 0.31, "wrt": "args", "steps": 200, "scheme": ji.MoreauJean()}
    found = ji.sensitivities(hung, *start, **given)
    assert not Status(int(found.status)) & Status.INPUT_INVALID and not found.trusted


@pytest.mark.slow
@pytest.mark.parametrize("at_rest", [False, True])
def test_a_contact_without_force_does_not_rub(at_rest):
    """Nothing presses: its slip turns round, or begins, as if it were not there;
    whether other data would press it is not known."""
    problem, speed = on_floor(lambda t, q, v, a: jnp.array([-a, 0.0])), 0.0 if at_rest else 1.0
    found = ji.sensitivities(problem, [0.0, 0.0], [speed, 0.0], t1=2.0, args=1.0, wrt="args", scheme=TIGHT)
    np.testing.assert_allclose(found.value["q"], [2 * speed - 2, 0], atol=1e-9)
    np.testing.assert_allclose(found.jacobian["q"]["args"], [-2, 0], atol=1e-9)
    assert Status(int(found.status)) == Status.DERIVATIVE_EVENTS


@pytest.mark.slow
def test_a_reset_beside_friction():
    """A block that rubs is thrown back at half its speed by a buffer, stated as a reset, slides on and stops."""
    turned = lambda t, q, v, k, c: v * jnp.array([-0.5, 1.0])
    problem = on_floor(switches=lambda t, q, v, c: q[:1] - c, reset=turned)
    found = ji.sensitivities(problem, [0.0, 0.0], [1.0, 0.0], t1=0.5, args=0.1, wrt=("args", "v0"), scheme=TIGHT)
    stop = lambda v, c: c - (v**2 - 2 * MU * G * c) / 8 / (MU * G)
    assert found.trusted
    np.testing.assert_allclose(found.value["q"], [stop(1.0, 0.1), 0], atol=1e-9)
    np.testing.assert_allclose(found.jacobian["q"]["args"], [jax.grad(stop, 1)(1.0, 0.1), 0], atol=1e-9)
    np.testing.assert_allclose(found.jacobian["q"]["v0"][0, 0], jax.grad(stop, 0)(1.0, 0.1), atol=1e-9)


@pytest.mark.slow
def test_a_spring_beside_a_wall_that_nothing_presses():
    spring = lambda t, q, v, k: jnp.array([0.0, -k * q[1]])
    rubs = {"slip": lambda t, q, v, k: v[1:], "friction": MU, "restitution": 0.0}
    problem = ji.Problem(spring, lambda t, q, k: q[:1], **rubs)
    found = ji.solve(problem, [0.0, 1.0], STILL, t1=10.0, args=1.0, scheme=TIGHT, save="final")
    np.testing.assert_allclose(found.q[-1], [0, np.cos(10)], atol=1e-9)


@pytest.mark.slow
def test_a_lift_by_a_table_throws_as_a_gap_that_moves():
    """The table's slopes change 40 times a second; where the lift slows down by more than g the body flies, and lands.
    A gap by the same table has no joint."""
    times = np.linspace(0, 0.4, 17)
    height = lambda t: jnp.interp(t, times, 0.1 * (1 - np.cos(5 * np.pi * times)) * times)
    moves = ji.Problem(lambda t, q, v, args: jnp.array([-G]), lambda t, q, args: q - height(t), restitution=0.3)
    lift, speed = on_lift(lambda t, args: height(t), 0.3), [float(jax.grad(height)(0.001))]
    body = ji.solve(moves, [0.0], speed, t1=0.37, scheme=TIGHT, save="final")
    both = ji.solve(lift, STILL, 2 * speed, t1=0.37, scheme=TIGHT, save="final")
    np.testing.assert_allclose(both.q[-1, 1], body.q[-1, 0], atol=1e-8)


@pytest.mark.slow
def test_a_drive_of_a_linkage_that_stops():
    """A pendulum on a slider that a drive stops swings on as one whose pivot has got an impulse:
    as long as the drive goes, nothing swings."""
    L, speed, a, t1 = 1.0, 2.0, 0.15, 0.5
    mass = lambda q, args: jnp.array([[2.0, L * jnp.cos(q[1])], [L * jnp.cos(q[1]), L**2]])
    force = lambda t, q, v, args: jnp.array([L * jnp.sin(q[1]) * v[1] ** 2, -G * L * jnp.sin(q[1])])
    driven = ji.Problem(force, mass=mass, joints=lambda t, q, a: q[:1] - jnp.minimum(speed * t, speed * a))
    found = ji.sensitivities(driven, [0.0, 0.0], [speed, 0.0], t1=t1, args=a, wrt="args", scheme=TIGHT)
    free = ji.Problem(lambda t, q, v, args: -G / L * jnp.sin(q))
    swing = ji.sensitivities(free, [0.0], [speed / L], t1=t1 - a, wrt="t1", scheme=TIGHT)
    assert found.trusted
    np.testing.assert_allclose(found.value["q"][1], swing.value["q"][0], atol=1e-9)
    np.testing.assert_allclose(found.jacobian["q"]["args"][1], -swing.jacobian["q"]["t1"][0], atol=1e-8)
