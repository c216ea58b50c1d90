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
        ([0.0, 4e-6], [ALONG, 0.0], ji.EventDriven(rtol=1e-6, atol=1e-6)),
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
        thrown(), jnp.array(q0), jnp.array(v0), t1=T1, args=jnp.array([G, MU]), wrt=("q0", "v0"), steps=steps,
        scheme=scheme,
    )  # fmt: skip
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


def on_belt(e):
    """A block (x, y, angle) with two feet on a belt so fast that it slides all the time; args: gravity."""
    x = jnp.array([-0.2, 0.2])
    return ji.Problem(
        force=lambda t, q, v, args: jnp.stack([0.0 * args, -args, 0.0 * args]),
        constraints=lambda t, q, args: q[1] - 0.1 * jnp.cos(q[2]) + x * jnp.sin(q[2]),
        slip=lambda t, q, v, args: v[0] + (0.1 * jnp.cos(q[2]) - x * jnp.sin(q[2])) * v[2] - 3.0,
        friction=0.3,
        mass=jnp.array([1.0, 1.0, 0.02]),
        restitution=e,
    )


def by_all(problem, x, tolerance, t1=0.6):
    """State and its Jacobian, trusted or not; x = (start, velocity, gravity)."""
    scheme = ji.EventDriven(rtol=tolerance, atol=tolerance)
    found = ji.sensitivities(problem, x[:3], x[3:6], t1=t1, args=x[6], wrt=("q0", "v0", "args"), steps=1, scheme=scheme)
    names = ("q0", "v0", "args")
    rows = [np.column_stack([found.jacobian[part][name] for name in names]) for part in "qv"]
    return np.concatenate([found.value["q"], found.value["v"]]), np.concatenate(rows), found.trusted


ROCKING = np.array([0.0, 0.15, 0.1, 0.2, -0.3, 0.5, G])


def test_feet_that_bounce_in_turn_have_a_derivative_that_is_trusted():
    problem = on_belt(0.3)
    _, found, trusted = by_all(problem, ROCKING, 1e-9)
    step = 1e-5
    moved = [by_all(problem, ROCKING + sign * step * np.eye(7)[i], 1e-12)[0] for i in range(7) for sign in (1, -1)]
    slopes = np.stack([(moved[2 * i] - moved[2 * i + 1]) / (2 * step) for i in range(7)], axis=1)
    assert trusted
    # differences: rounding over the step, and its square times a third derivative
    np.testing.assert_allclose(found, slopes, rtol=1e-6, atol=1e-6)


def test_the_doubt_about_feet_that_bounce_in_turn_is_measured():
    """Of an elastic block the order of impacts depends on the data so much that nothing is left of the derivative."""
    (_, coarse, trusted), (_, fine, _) = (by_all(on_belt(0.8), ROCKING, x, t1=1.2) for x in (1e-9, 1e-12))
    assert np.max(np.abs(coarse - fine)) > 1e-3 * np.max(np.abs(fine)) and not trusted


@pytest.mark.parametrize("mu", [0.2, 0.3])
def test_a_foot_that_bounces_hold_and_lasting_contact_lets_slip_is_told(mu):
    """Impulses along the normal push a point with a coupled mass aside: under restitution .2 forces of lasting contact
    need friction .286 to hold it, those of bounces .105. Between the two the flights that are left out matter."""
    mass = jnp.array([[1.0, 0.5], [0.5, 1.0]])
    problem = ji.Problem(
        force=lambda t, q, v, args: mass @ jnp.array([0.25 * G, -G]),
        constraints=lambda t, q, args: q[1:],
        slip=lambda t, q, v, args: v[:1],
        friction=mu,
        mass=mass,
        restitution=0.2,
    )
    v0 = jnp.array([0.25 * np.sqrt(2 * G * 0.1), 0.0])  # so that the first impact is one of those that follow
    found = ji.solve(problem, jnp.array([0.0, 0.1]), v0, t1=0.4, steps=1, scheme=ji.EventDriven())
    assert bool(ji.Status(int(found.status)) & ji.Status.EVENTS_UNRESOLVED) == (mu < 0.286)
    assert (abs(float(found.v[-1, 0])) > 0.01) == (mu < 0.286)
