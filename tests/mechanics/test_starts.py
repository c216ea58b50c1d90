"""Derivatives of motions that start on a wall, of those that only just reach one,
and of those that stop at one with no force on it."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow

DRIVEN = ji.EventDriven(1e-11, 1e-11)
SCHEMES = [
    (DRIVEN, 1, 1e-8),
    slow(ji.MoreauJean(), 400, 2e-2),
    slow(ji.EventCorrected(), 400, 1e-4),
    *(slow(s, 400, 2e-2) for s in (ji.PaoliSchatzman(), ji.Maury())),
]
# a puck inside a circle of radius 2, without a force
PUCK = ji.Problem(lambda t, q, v, args: 0 * v, lambda t, q, args: 4.0 - jnp.sum(q**2, keepdims=True))


@pytest.mark.parametrize(("scheme", "steps", "tolerance"), SCHEMES, ids=lambda x: type(x).__name__)
def test_a_start_on_a_wall(scheme, steps, tolerance):
    """Along the wall: angular momentum x v_y - y v_x is kept, on the way to the wall as well,
    so that x counts although the wall takes it.

    At rest: on one side of the start it stays where it is, on the other it would, too, but off the wall. To the order
    of each scheme, h = 1/200.
    """
    t1, e = 2.0, 0.0 if isinstance(scheme, ji.Maury) else 0.5
    starts = np.array([[2.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 0.0]])
    found = ji.sensitivities(PUCK, *starts, t1=t1, steps=steps, e=e, scheme=scheme)
    assert found.trusted.tolist() == [True, False] and int(found.status[1]) & Status.DERIVATIVE_EVENTS
    # the angle is L t / 4
    angle = t1 / 2
    by_angle, by_start = 2 * np.array([-np.sin(angle), np.cos(angle)]), np.array([t1 / 4, 0.5, 0.0, t1 / 2])
    jacobian = np.concatenate([found.jacobian["q"][x][0].reshape(2, 2) for x in ("q0", "v0")], axis=1)
    np.testing.assert_allclose(jacobian, np.outer(by_angle, by_start), rtol=0, atol=tolerance)


def test_a_start_on_a_wall_that_falls_away_faster_than_the_body():
    """The contact opens at once; `MoreauJean` holds it for a step, which is right to first order,
    but its derivative is not."""
    falling = ji.Problem(lambda t, q, v, args: 0 * v - 1.0, lambda t, q, args: q + args * t**2, restitution=0.0)
    options = {"t1": 0.5, "steps": 20, "scheme": ji.MoreauJean(), "sensitivity": "corrected"}
    found = [int(ji.solve(falling, [0.0], [0.0], args=a, **options).status) for a in (2.0, 0.2)]
    assert found == [Status.DERIVATIVE_EVENTS, 0]


def test_a_motion_that_touches_a_wall_exactly_has_no_derivative():
    """1 - sin t, which is 0 for an instant at pi/2; a thousandth above it there is one."""
    spring = ji.Problem(lambda t, q, v, args: 1.0 + args - q, lambda t, q, args: q)
    options = {"t1": 1.8, "steps": 1, "scheme": DRIVEN, "sensitivity": "corrected"}
    found = [int(ji.solve(spring, [1.0], [-1.0], args=a, **options).status) for a in (0.0, 1e-3)]
    assert found[0] & Status.DERIVATIVE_EVENTS and found[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "steps"), [(DRIVEN, 1), slow(ji.MoreauJean(), 400)], ids=lambda x: type(x).__name__)
def test_carts_that_meet_without_restitution(scheme, steps):
    """They go on together. A force that may push one has a derivative on each side where it is zero; masses change
    nothing, and another force presses them."""
    push = lambda t, q, v, args: jnp.stack([args["push"] + 0 * t, 0 * t]) * args["pushed"]
    carts = ji.Problem(push, lambda t, q, args: q[1:] - q[:1], lambda q, args: args["mass"], restitution=0.0)
    args = {"push": np.array([0.0, 0.0, 0.2]), "pushed": np.array([0.0, 1.0, 1.0]), "mass": np.array([1.0, 2.0])}
    found = ji.sensitivities(
        carts,
        [0.0, 1.0],
        [2.0, 0.5],
        args=args,
        args_axes={"push": 0, "pushed": 0, "mass": None},
        t1=1.5,
        steps=steps,
        scheme=scheme,
    )
    assert found.trusted.tolist() == [True, False, True]
    assert int(found.status[1]) & Status.DERIVATIVE_EVENTS
    # the velocity of both is the mean by mass
    np.testing.assert_allclose(found.jacobian["v"]["v0"][0], [[1 / 3, 2 / 3]] * 2, atol=1e-12)
