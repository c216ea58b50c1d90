"""Derivatives through bounces that die out, which `EventDriven` leaves out once they are too short to be followed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

G, MU, E, HEIGHT, ALONG, T1 = 9.81, 0.2, 0.4, 0.1, 3.0, 0.9


def thrown():
    """A point that bounces on a rough floor; args: (gravity, friction)."""
    return ji.Problem(
        force=lambda t, q, v, args: jnp.stack([0.0 * args[0], -args[0]]),
        constraints=lambda t, q, args: q[1:],
        slip=lambda t, q, v, args: v[:1],
        friction=lambda args: args[1],
        mass=1.0,
        restitution=E,
    )


def after_bounces(v0, args):
    """Where and how fast the point slides at T1, in closed form: every bounce of speed u takes mu (1 + e) u."""
    (along, up), (g, mu) = v0, args
    u = jnp.sqrt(up**2 + 2 * g * HEIGHT)
    t, x = (up + u) / g, along * (up + u) / g
    for _ in range(60):
        along, u = along - mu * (1 + E) * u, E * u
        t, x = t + 2 * u / g, x + along * 2 * u / g
    left = T1 - t
    return jnp.stack([x + along * left - mu * g * left**2 / 2, along - mu * g * left])


def test_a_ball_that_comes_to_rest_has_a_derivative_that_is_trusted():
    v0, args = jnp.array([ALONG, 0.3]), jnp.array([G, MU])
    found = ji.sensitivities(
        thrown(), jnp.array([0.0, HEIGHT]), v0, t1=T1, args=args, wrt=("v0", "args"), steps=1, scheme=ji.EventDriven()
    )
    assert found.trusted
    right = dict(zip(("v0", "args"), jax.jacfwd(after_bounces, (0, 1))(v0, args), strict=True))
    for name, exact in right.items():
        rows = np.stack([found.jacobian["q"][name][0], found.jacobian["v"][name][0]])
        np.testing.assert_allclose(rows, exact, rtol=0, atol=1e-8)  # ten tolerances


@pytest.mark.parametrize(
    ("q0", "v0", "scheme"),
    [
        # the first bounce is left out already, and nothing has made the change of its speed small
        ([0.0, 4e-7], [ALONG, 0.0], ji.EventDriven(rtol=1e-6, atol=1e-6)),
        # all bounces together end the slip, but for what the last of them do
        (
            [0.0, HEIGHT],
            [MU * (1 + E) / (1 - E) * np.sqrt(2 * G * HEIGHT) - 2e-4, 0.0],
            ji.EventDriven(rtol=1e-6, atol=1e-6),
        ),
        # steps have a length of their own
        ([0.0, HEIGHT], [ALONG, 0.0], ji.EventCorrected()),
    ],
    ids=["soft landing", "slip that ends", "fixed steps"],
)
def test_bounces_that_decide_a_derivative_are_reported(q0, v0, scheme):
    steps = 1 if scheme.by_tolerance else 900
    found = ji.sensitivities(
        thrown(), jnp.array(q0), jnp.array(v0), t1=T1, args=jnp.array([G, MU]), wrt=("v0",), steps=steps, scheme=scheme
    )
    assert not found.trusted and ji.Status(int(found.status)) & ji.Status.DERIVATIVE_EVENTS


def block(feet, bump=0.0):
    """A block (x, y, angle) that tips over on its left feet; args add to the height of the last foot."""
    x = jnp.array([-0.2, -0.2, 0.2, 0.2][:: 1 if feet == 4 else 2])
    points = lambda q: q[1] - 0.1 + x * q[2]
    return ji.Problem(
        force=lambda t, q, v, args: jnp.array([0.0, -G, 0.0]) + 0 * args,
        constraints=lambda t, q, args: points(q) + bump * args * jnp.eye(feet)[-1],
        slip=lambda t, q, v, args: v[0] + 0.1 * v[2] + 0 * x,
        friction=0.3,
        mass=jnp.array([1.0, 1.0, 0.02]),
        restitution=0.0,
    )


@pytest.mark.parametrize("wrt", ["v0", "args"])
def test_feet_that_land_as_one(wrt):
    """A block with two feet beside each other on either side falls as one with one foot: both land at one instant
    whatever the data, unless these are what moves one of them."""
    start = jnp.array([0.0, 0.1 + 0.2 * 0.1, 0.1]), jnp.array([2.0, 0.0, 0.0])
    two, four = (
        ji.sensitivities(
            block(feet, bump=float(wrt == "args")), *start, t1=0.5, args=jnp.array(0.0), wrt=(wrt,), steps=1,
            scheme=ji.EventDriven(),
        )
        for feet in (2, 4)
    )  # fmt: skip
    if wrt == "args":
        assert two.trusted and not four.trusted
        return
    assert two.trusted and four.trusted
    for part in "qv":
        np.testing.assert_allclose(four.jacobian[part][wrt], two.jacobian[part][wrt], rtol=0, atol=1e-8)
