"""Joints that kink and slip velocities that jump, where the scheme does not locate them: right to first order by steps,
else told."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

G = 9.81
Status = ji.Status
weight = lambda t, q, v, args: jnp.array([0.0, -G])
# a body on a lift that rises and stops: it goes on, and falls back
lift = ji.Problem(
    weight, lambda t, q, args: q[1:] - q[:1], restitution=0.0, joints=lambda t, q, args: q[:1] - jnp.minimum(t, args)
)
# a block at rest on a belt that is switched on
belt = ji.Problem(
    weight, lambda t, q, args: q[1:], restitution=0.0, slip=lambda t, q, v, args: v[:1] - jnp.where(t > args, 2.0, 0.0),
    friction=0.3
)  # fmt: skip
CASES = {
    "lift": (lift, [0.0, 0.0], [1.0, 1.0], 0.6, 0.5, 0.6 - G * 0.1**2 / 2),
    "belt": (belt, [0.0, 0.0], [0.0, 0.0], 0.9, 0.31, 0.3 * G * 0.59**2 / 2),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_located_is_told(name):
    """Steps are right to first order, and do not trust the derivative by the time of the kink."""
    problem, q0, v0, t1, a, right = CASES[name]
    given = {"q0": q0, "v0": v0, "t1": t1, "args": a, "scheme": ji.MoreauJean(), "steps": 1000}
    found = ji.sensitivities(problem, **given, wrt="args")
    place = found.value["q"][1 if name == "lift" else 0]
    assert not found.trusted
    plain = ji.solve(problem, **given)
    assert abs(place - right) < 2e-3  # h times a few velocities
    assert Status(int(found.status)) & Status.DERIVATIVE_JUMP and not Status(int(plain.status)) & Status.INPUT_INVALID


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_before_the_lift_stops_and_the_belt_starts_nothing_is_told(name):
    problem, q0, v0, *_ = CASES[name]
    found = ji.sensitivities(problem, q0, v0, t1=0.2, args=0.25, wrt="args", scheme=ji.EventDriven(order=5))
    assert found.trusted and found.status == 0


def test_of_a_drive_without_a_kink_nothing_is_told():
    smooth = lift.replace(joints=lambda t, q, args: q[:1] - args * jnp.sin(t))
    found = ji.sensitivities(
        smooth, [0.0, 0.0], [0.5, 0.5], t1=0.4, args=0.5, wrt="args", scheme=ji.EventDriven(order=5)
    )
    np.testing.assert_allclose(found.jacobian["q"]["args"], np.sin(0.4), atol=1e-8)
    assert found.trusted


def test_more_kinks_than_are_located_are_told():
    """A drive by a table of many rows, written as a sum of ramps: with more than eight levels
    `EventDriven` locates none of them."""
    ramps = lambda t, a: a * jnp.sum(jnp.maximum(t - jnp.linspace(0.05, 0.5, 10), 0))
    driven = lift.replace(joints=lambda t, q, args: q[:1] - ramps(t, args))
    found = ji.solve(driven, [0.0, 0.0], [0.0, 0.0], t1=0.6, args=0.1, scheme=ji.EventDriven(order=5))
    assert Status(int(found.status)) & Status.INPUT_INVALID


def test_a_pivot_that_starts_is_no_matter_of_contacts():
    """Steps lose no digits at its kink, and doubt the derivative alone."""
    rod = lambda t, q, args: jnp.stack([q[0] - jnp.maximum(t - args, 0.0), q[1], jnp.sum((q[2:] - q[:2]) ** 2) - 1])
    hung = ji.Problem(lambda t, q, v, args: jnp.array([0.0, 0.0, 0.0, -G]), joints=rod)
    q0 = np.array([0.0, 0.0, np.sin(0.3), -np.cos(0.3)])
    given = {"t1": 0.9, "args": 0.31, "wrt": "args", "steps": 200}
    found = ji.sensitivities(hung, q0, np.zeros(4), scheme=ji.MoreauJean(), **given)
    assert not Status(int(found.status)) & Status.INPUT_INVALID and not found.trusted
