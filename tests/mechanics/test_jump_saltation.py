"""Derivatives across a jump of the force by schemes that keep their steps: right where they are trusted,
told where they cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow

SCHEMES = [ji.MoreauJean(), *(slow(scheme) for scheme in (ji.PaoliSchatzman(), ji.Maury(half_kick=True)))]
STEP = ji.Problem(lambda t, q, v, args: -jnp.where(q > 0, 1.0, 0.0))
# a spring and a push that lasts while the motion is on one side of a place that moves
PUSHED = ji.Problem(
    lambda t, q, v, args: -q - args["drag"] * v - jnp.where(q > args["place"] + 0.1 * t, args["push"], 0.0)
)
DATA = {"drag": 0.2, "place": 0.3, "push": 0.7}
BALL = ji.Problem(lambda t, q, v, args: -9.81 - jnp.where(q > args, 4.0, 0.0), lambda t, q, args: q, restitution=0.7)
WRT = ("q0", "v0", "args")


def flat(found):
    """Derivatives of the last position and velocity, (lanes, all)."""
    parts = [np.asarray(x) for output in ("q", "v") for x in jax.tree.leaves(found.jacobian[output])]
    return np.concatenate([x.reshape(len(x), -1) for x in parts], axis=1)


def slope(scheme, problem, q0, v0, steps, **options):
    """Order of convergence of the derivatives of several motions to those of `EventDriven`, on average over them;
    all must be trusted."""
    options = {"wrt": WRT, "mode": "forward", "progress": False} | options
    right = ji.sensitivities(problem, q0, v0, steps=2, scheme=ji.EventDriven(), **options)
    assert np.all(right.trusted)
    errors = []
    for n in steps:
        found = ji.sensitivities(problem, q0, v0, steps=n, scheme=scheme, **options)
        assert np.all(found.trusted), found.describe_status()
        errors.append(np.mean(np.abs(flat(found) - flat(right))))
    return -np.polyfit(np.log(steps), np.log(errors), 1)[0]


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_a_surface_that_is_passed(scheme):
    """q = (t1 - t) v0 - (t1 - t)^2 / 2 from t = -q0 / v0 = 1 on, which is the end of a step; exact, as the force is
    constant on both sides."""
    found = ji.sensitivities(STEP, [-1.0], [1.0], t1=1.5, h=0.01, wrt="q0", scheme=scheme)
    assert found.trusted
    np.testing.assert_allclose([found.jacobian[x]["q0"].item() for x in ("q", "v")], [0.5, -1.0], atol=1e-9)


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_order_of_derivatives(scheme):
    """First, but for chance: where within its step a jump lies."""
    q0, v0 = np.linspace(-1, -0.7, 8)[:, None], np.linspace(1.5, 1.2, 8)[:, None]
    assert slope(scheme, PUSHED, q0, v0, (200, 400, 800, 1600), t1=1.6, args=DATA) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [ji.MoreauJean(), ji.PaoliSchatzman()], ids=repr)
def test_order_of_derivatives_with_impacts(scheme):
    """A ball that passes the surface, bounces, and passes it twice."""
    q0 = np.linspace(1.0, 1.05, 8)[:, None]
    assert slope(scheme, BALL, q0, 0 * q0, (1600, 3200, 6400), t1=0.9, args=0.3) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_order_in_reverse_mode(scheme):
    """By 40 numbers, one of which moves the surface while the mean of all pushes; step by step from last to first."""
    force = lambda t, q, v, w: -q - jnp.where(q > w[0], jnp.mean(w), 0.0)

    def exact(w, q0):
        """A harmonic motion about 0, then, from w[0] on, one about minus the mean."""
        place, push = w[0], jnp.mean(w)
        radius = jnp.hypot(q0, 1.4)
        rest = 1.6 - (jnp.arcsin(place / radius) - jnp.arctan2(q0, 1.4))
        return (place + push) * jnp.cos(rest) + jnp.sqrt(radius**2 - place**2) * jnp.sin(rest) - push

    def place(w, q0, n):
        found = ji.solve(ji.Problem(force), q0[None], [1.4], t1=1.6, steps=n, args=w, scheme=scheme, save="final")
        return found.q[-1, 0]

    weights, starts, steps = jnp.linspace(0.2, 1.2, 40), jnp.linspace(-1, -0.7, 4), (200, 400, 800)
    error = lambda q0, n: np.abs(jax.grad(place)(weights, q0, n) - jax.grad(exact)(weights, q0))
    errors = [np.mean([error(q0, n) for q0 in starts]) for n in steps]
    assert -np.polyfit(np.log(steps), np.log(errors), 1)[0] > 0.85


def told(problem, q0, v0, t1, steps=150, scheme=None, **options):
    found = ji.solve(
        problem, q0, v0, t1=t1, steps=steps, scheme=scheme or ji.MoreauJean(), sensitivity="corrected", **options
    )
    return Status(int(found.status))


def test_what_is_not_known_is_told():
    """Beside each motion one that differs a little, and has a derivative that is right."""
    jump = Status.DERIVATIVE_JUMP
    # the surface is met at 1, which is near the end, or behind it by as little
    assert told(STEP, [-1.0], [1.0], 1.03) == told(STEP, [-1.0], [1.0], 0.97) == jump
    assert told(STEP, [-1.0], [1.0], 1.5) == told(STEP, [-1.0], [1.0], 0.5) == 0
    # at the start
    assert told(STEP, [0.0], [1.0], 1.0) == jump
    # a parabola whose top is at .005 or at -.005: passed twice or just missed
    thrown = ji.Problem(lambda t, q, v, args: -1.0 - jnp.where(q > 0, 0.5, 0.0))
    assert told(thrown, [-0.495], [1.0], 2.0) == told(thrown, [-0.505], [1.0], 2.0) == jump
    assert told(thrown, [-0.3], [1.0], 2.0) == told(thrown, [-0.7], [1.0], 2.0) == 0


def test_with_impacts_what_is_not_known_is_told():
    # the surface is passed in the air, or as the ball bounces
    drop = lambda args: told(BALL, [1.0], [0.0], 0.55, steps=800, args=args)
    assert drop(0.3) == 0 and drop(0.003) == Status.DERIVATIVE_JUMP


@pytest.mark.slow
def test_kinks_and_what_depends_on_the_velocity_at_impacts():
    spring = ji.Problem(lambda t, q, v, args: -9.81 - jnp.maximum(q - 0.01, 0.0), lambda t, q, args: q, restitution=0.7)
    # kinks are no jumps
    assert told(spring, [1.0], [0.0], 0.7, steps=800) == 0
    # what depends on the velocity jumps with an impact as well
    drag = ji.Problem(
        lambda t, q, v, args: -9.81 - jnp.where(v > -2.0, 1.0, 0.0), lambda t, q, args: q + args, restitution=0.7
    )
    assert told(drag, [1.0], [0.0], 0.3, args=9.0) == Status.DERIVATIVE_JUMP
    assert told(ji.Problem(drag.force), [1.0], [0.0], 0.3) == 0


def test_friction_that_holds_is_told():
    block = ji.Problem(lambda t, q, v, args: -0.3 * 9.81 * jnp.sign(v))
    assert told(block, [0.0], [1.0], 1.0) == Status.DERIVATIVE_JUMP


@pytest.mark.slow
def test_second_derivatives_are_told():
    """A saltation is not that of a second derivative: the first has one, the second is not trusted."""

    def place(x):
        found = ji.solve(STEP, x, [1.0], t1=1.5, steps=150)
        return found.q[-1, 0], found.status

    x = jnp.array([-1.0])
    assert int(jax.jacfwd(place, has_aux=True)(x)[1]) == 0
    twice = jax.jacfwd(jax.jacfwd(place, has_aux=True), has_aux=True)
    assert int(twice(x)[1]) & Status.DERIVATIVE_JUMP
