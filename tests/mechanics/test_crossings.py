"""Surfaces at which a force jumps, located by `EventCorrected`: by exact motions, and by those of `EventDriven`.

Where the force is constant on both sides and walls are straight the scheme is exact up to round-off, whatever h.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow

SCHEME = ji.EventCorrected()
STEP = ji.Problem(lambda t, q, v, args: -jnp.where(q > 0, 1.0, 0.0))
# a ball with another weight above a place, and one on a spring that is pushed there
BALL = ji.Problem(lambda t, q, v, args: -10.0 - jnp.where(q > args, 4.0, 0.0), lambda t, q, args: q, restitution=0.5)
PUSHED = ji.Problem(
    lambda t, q, v, args: -9 * q - args["drag"] * v - jnp.where(q > args["place"] + 0.1 * t, args["push"], 0.0),
    lambda t, q, args: q + 0.2,
)
DATA = {"drag": 0.2, "place": 0.3, "push": 1.7}
# the same on a surface of place and velocity; and a block that rubs on a floor and is shaken: it sticks, and breaks
# away
FAST = ji.Problem(
    lambda t, q, v, args: -9 * q - args["drag"] * v - jnp.where(v > args["place"] + 0.5 * q, args["push"], 0.0),
    lambda t, q, args: q + 0.2,
)
SHAKEN = ji.Problem(
    lambda t, q, v, args: jnp.stack([args["push"] * jnp.sin(5 * t) - args["drag"] * jnp.sign(v[0]), -1.0 + 0 * v[1]]),
    lambda t, q, args: q[1:],
)
# and one that rubs and is pulled ever harder
RUBBING = ji.Problem(lambda t, q, v, args: args["pull"] * t - args["drag"] * jnp.sign(v))
WRT = ("q0", "v0", "e", "args")


def flat(found):
    """Last position and velocity and their derivatives, (lanes, all)."""
    trees = [found.value, *(found.jacobian[output] for output in ("q", "v"))]
    parts = [np.asarray(x) for tree in trees for x in jax.tree.leaves(tree)]
    return np.concatenate([x.reshape(len(x), -1) for x in parts], axis=1)


def of_ball(q0, place, e, t1):
    """(q, v) at t1 of BALL that falls from above the place, bounces, and passes it again on its way up,
    before its apex."""
    down = 2 * 14.0 * (q0 - place)
    t_place = jnp.sqrt(down) / 14.0
    speed = jnp.sqrt(down + 2 * 10.0 * place)
    t_impact = t_place + (speed - jnp.sqrt(down)) / 10.0
    up = e * speed
    at_place = jnp.sqrt(up**2 - 2 * 10.0 * place)
    t_again = t_impact + (up - at_place) / 10.0
    s, r = t1 - t_again, t1 - t_impact
    before = jnp.stack([up * r - 5.0 * r**2, up - 10.0 * r])
    return jnp.where(t1 > t_again, jnp.stack([place + at_place * s - 7.0 * s**2, at_place - 14.0 * s]), before)


@pytest.mark.parametrize("steps", [slow(1000), 12])
def test_crossings_and_an_impact_between_them(steps):
    """Place, wall and place again; of 12 steps one has place and wall, the next one the place."""
    x = (1.0, 0.1, 0.5, 0.6)
    found = ji.sensitivities(BALL, [x[0]], [0.0], t1=x[3], steps=steps, e=x[2], args=x[1], wrt=WRT, scheme=SCHEME)
    assert found.trusted
    right, slopes = jax.jit(of_ball)(*x), jax.jit(jax.jacfwd(of_ball, argnums=(0, 1, 2)))(*x)
    for i, output in enumerate(("q", "v")):
        assert found.value[output].item() == pytest.approx(float(right[i]), abs=1e-12)
        of = [found.jacobian[output][name].item() for name in ("q0", "args", "e")]
        np.testing.assert_allclose(of, [slope[i] for slope in slopes], atol=1e-11)


STARTS = np.linspace(0.6, 0.65, 8)[:, None]
PASSED = {
    "place": (PUSHED, STARTS, 0 * STARTS, DATA),
    "velocity": (FAST, STARTS, 0 * STARTS, DATA),
    "rubbing": (SHAKEN, STARTS * [1, 0], STARTS * [1, 0], {"drag": 2.9, "push": 6.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSED)
def test_order_of_state_and_jacobian(name):
    """Two, through oblique surfaces and a wall, and in and out of sliding on a surface; on average over motions and
    numbers of steps, as chance is where in its step an event lies."""
    problem, q0, v0, args = PASSED[name]
    options = {"t1": 1.6, "e": 0.7, "args": args, "wrt": WRT, "mode": "forward", "progress": False}
    right = ji.sensitivities(problem, q0, v0, steps=2, scheme=ji.EventDriven(), **options)
    assert np.all(right.trusted)
    steps, errors = (160, 320, 640), []
    for n in steps:
        phases = []
        for k in range(1, 9, 2):
            found = ji.sensitivities(problem, q0, v0, steps=n + k, scheme=SCHEME, **options)
            assert np.all(found.trusted), found.describe_status()
            phases.append(np.mean(np.abs(flat(found) - flat(right)), axis=0))
        errors.append(np.mean(phases, axis=0))
    moves = np.array(errors[0]) > 1e-9  # what is not zero, or exact
    orders = -np.polyfit(np.log(steps), np.log(np.array(errors)[:, moves]), 1)[0]
    # two is reached from below: 1.71 and 1.80 were measured in turn for the slowest entry
    assert np.any(moves) and np.all(orders > 1.7), orders


def rubbed(v0, args):
    """(q, v) at t = 1 of q'' = pull t - drag sign(v) from q = 0, which slows down, rests,
    and is pulled off where pull t = drag."""
    drag, pull = args["drag"], args["pull"]
    speed = lambda t: v0 - drag * t + pull * t**2 / 2
    stop = 2 * v0 / (drag + jnp.sqrt(drag**2 - 2 * pull * v0))
    held = v0 * stop - drag * stop**2 / 2 + pull * stop**3 / 6
    # where nothing pulls it rests for good
    off = jnp.where(pull > 0, drag / jnp.where(pull > 0, pull, 1.0), 1.0)
    moved = pull * (1 - off**3) / 6 - pull * off**2 * (1 - off) / 2 - drag * (1 - off) ** 2 / 2
    return jnp.stack([held + moved, speed(1.0) - speed(off)])


@pytest.mark.slow
@pytest.mark.parametrize("pull", [0.0, 4.0])
def test_a_body_that_rubs_until_it_rests(pull):
    """Of a force that is constant until it rests exact, and of second order where it is pulled off again."""
    args, v0 = {"drag": 3.0, "pull": pull}, 1.0
    right, slopes = jax.jit(rubbed)(v0, args), jax.jit(jax.jacfwd(rubbed, (0, 1)))(v0, args)
    errors = []
    for steps in (37, 111):
        found = ji.sensitivities(
            RUBBING, [0.0], [v0], t1=1.0, steps=steps, args=args, wrt=("v0", "args"), scheme=SCHEME
        )
        assert found.trusted
        apart = []
        for i, output in enumerate(("q", "v")):
            own = (found.jacobian[output]["v0"], found.jacobian[output]["args"])
            apart += [x.item() - y[i] for x, y in zip(*map(jax.tree.leaves, (own, slopes)), strict=True)]
            apart.append(found.value[output].item() - right[i])
        errors.append(np.max(np.abs(apart)))
    # a ninth, and less by chance: where in its step an event lies
    assert errors[0] < 1e-12 or (errors[0] < 1e-2 and errors[1] < 0.2 * errors[0]), errors


@pytest.mark.parametrize(("scheme", "steps"), [slow(ji.EventDriven(), 1), (SCHEME, 300)], ids=["driven", "corrected"])
def test_by_restitution_where_a_contact_lets_go_soon_behind_the_landing(scheme, steps):
    """Lands at t = 1 and is pushed off at 1.01: bounces of a small e > 0 are over by then,
    and change nothing behind it."""
    problem = ji.Problem(lambda t, q, v, args: jnp.where(t > args, 1.0, -0.01) + 0 * q, lambda t, q, args: q)
    options = {"t1": 1.5, "steps": steps, "args": 1.01, "scheme": scheme}
    found = ji.sensitivities(problem, [0.995], [-0.99], e=0.0, wrt=("e", "args"), **options)
    assert found.trusted and found.jacobian["q"]["e"].item() == found.jacobian["v"]["e"].item() == 0
    # the time t1 - 1.01 of the flight, and its velocity
    assert found.jacobian["q"]["args"].item() == pytest.approx(-0.49, abs=1e-9)
    assert found.jacobian["v"]["args"].item() == pytest.approx(-1.0, abs=1e-9)


@pytest.mark.slow
def test_second_derivatives():
    """Of a motion through a place, a wall and the place again, by the exact one."""

    def place(x):
        found = ji.solve(BALL, x[:1], [0.0], t1=0.6, steps=50, e=x[2], args=x[1], scheme=SCHEME, save="final")
        return found.q[-1, 0]

    x = jnp.array([1.0, 0.1, 0.5])
    right = jax.hessian(lambda x: of_ball(*x, 0.6)[0])(x)
    np.testing.assert_allclose(jax.jacfwd(jax.jacfwd(place))(x), right, atol=1e-9)


def told(problem, q0, v0, t1, steps=150, scheme=SCHEME, **options):
    """Status of a motion with its remarks on derivatives, which are traced for it alone:
    half of what a Jacobian takes."""
    found = ji.solve(problem, q0, v0, t1=t1, steps=steps, scheme=scheme, sensitivity="corrected", **options)
    return Status(int(found.status))


def test_what_is_not_located_is_told():
    """Beside each motion one that differs a little, and has a derivative that is right."""
    jump = Status.DERIVATIVE_JUMP
    # the surface is met at 1: near the end, just behind it or before
    assert told(STEP, [-1.0], [1.0], 1.01, 100) == told(STEP, [-1.0], [1.0], 0.995, 100) == jump
    assert told(STEP, [-1.0], [1.0], 1.02, 100) == told(STEP, [-1.0], [1.0], 0.98, 100) == 0
    # at the start, on the way to either side
    assert told(STEP, [0.0], [1.0], 1.0) == told(STEP, [0.0], [-1.0], 1.0) == jump
    # a parabola whose top is at 1e-4 or at -1e-4: passed twice or just missed
    thrown = ji.Problem(lambda t, q, v, args: -1.0 - jnp.where(q > 0, 0.5, 0.0))
    assert told(thrown, [-0.4999], [1.0], 2.0) == told(thrown, [-0.5001], [1.0], 2.0) == jump
    assert told(thrown, [-0.49], [1.0], 2.0) == told(thrown, [-0.51], [1.0], 2.0) == 0
    # three surfaces in a step
    stairs = ji.Problem(lambda t, q, v, args: -sum(jnp.where(q > x, 1.0, 0.0) for x in (1.0, 1.5, 2.0)))
    assert told(stairs, [0.1], [30.0], 0.5, steps=4) == told(stairs, [0.1], [30.0], 0.5, steps=40) == 0


BOTH = [
    pytest.param(ji.EventDriven(), 1, id="driven", marks=pytest.mark.slow),
    pytest.param(SCHEME, 150, id="corrected"),
]


@pytest.mark.parametrize(("scheme", "steps"), BOTH)
def test_a_border_along_which_a_force_leads_is_told(scheme, steps):
    """A body comes to rest, and beyond rest nothing moves it: with a little more it would go on,
    with a little less it stays."""
    problem = ji.Problem(lambda t, q, v, args: jnp.where(v > 0, args, 1.0))
    found = [told(problem, [0.0], [-0.5], 1.2, steps, scheme, args=beyond) for beyond in (-0.1, 0.0, 0.1)]
    assert found == [Status.OK, Status.DERIVATIVE_JUMP, Status.OK]


@pytest.mark.parametrize(("scheme", "steps"), BOTH)
def test_a_contact_that_a_jump_leaves_without_a_load_is_told(scheme, steps):
    """A body rests on a floor until its weight is taken off it."""
    problem = ji.Problem(lambda t, q, v, args: jnp.where(t > 1.03, args, -1.0) + 0 * q, lambda t, q, args: q)
    found = [told(problem, [0.0], [0.0], 1.5, steps, scheme, args=push) for push in (-0.1, 0.0, 0.1)]
    assert found == [Status.OK, Status.DERIVATIVE_EVENTS, Status.OK]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "steps"), BOTH)
def test_impacts_at_once_between_which_the_force_jumps_are_told(scheme, steps):
    """In a corner: whether the wall that turns the force round is met before the other one decides
    with which speed that is met."""
    force = lambda t, q, v, args: jnp.stack([-jnp.where(v[1] > 0, args, 0.0), 0 * v[1]])
    problem = ji.Problem(force, lambda t, q, args: q, restitution=0.5)
    found = [told(problem, [1.0, 1.0], [-1.0, -1.0], 1.5, steps, scheme, args=push) for push in (0.0, 0.5)]
    assert found[1] & Status.DERIVATIVE_EVENTS and not found[0] & Status.DERIVATIVE_EVENTS


@pytest.mark.slow
def test_a_jump_on_the_wall_is_passed_by_no_impact():
    """The force jumps where the wall is: the motion stays on one side."""
    at_wall = ji.Problem(
        lambda t, q, v, args: -10.0 - jnp.where(q > 0, 4.0, 0.0), lambda t, q, args: q, restitution=0.5
    )
    found = ji.sensitivities(at_wall, [1.0], [0.0], t1=0.6, h=0.01, wrt="q0", scheme=SCHEME)
    speed = jnp.sqrt(28.0)
    # v = e w - g (t1 - w / g), w = sqrt(2 g q0)
    assert found.trusted and found.jacobian["v"]["q0"].item() == pytest.approx(1.5 * 14 / float(speed), abs=1e-11)


@pytest.mark.parametrize("at", [0.0, slow(0.015)])
def test_a_surface_that_is_met_at_an_impact_is_told(at):
    """Which is first decides on which side the velocity turns; beside it, by more than a step of .01, the derivative is
    that of either."""
    assert told(met_with_the_wall(at), [0.5, 1.0], [0.0, -1.0], 1.5) == (Status.OK if at else Status.DERIVATIVE_JUMP)


def met_with_the_wall(at):
    """A force -1 towards the wall above y = at, and none below, which the motion meets with the
    wall at t = 1 where at = 0."""
    force = lambda t, q, v, args: jnp.stack([-jnp.where(q[1] - at > 0, 1.0, 0.0), 0 * q[0]])
    return ji.Problem(force, lambda t, q, args: q[:1], restitution=0.5)


@pytest.mark.slow
def test_by_a_tolerance_it_is_told_too_and_either_side_has_its_derivative():
    options = {"t1": 1.5, "steps": 1, "scheme": ji.EventDriven(), "wrt": "q0"}
    problem, start = met_with_the_wall(0.0), ([0.5, 1.0], [0.0, -1.0])
    assert ji.sensitivities(problem, *start, **options).status == int(Status.DERIVATIVE_JUMP)
    # the wall first, at t = sqrt(2 x0): v = e t - (y0 - t) behind it; the border first, at t = y0: v = e y0
    for side, expected in ((1.0, [1.5, -1.0]), (-1.0, [0.0, 0.5])):
        found = ji.sensitivities(problem, *start, direction={"q0": [0.0, side]}, **options)
        assert found.trusted
        # two differences of numbers to the tolerance
        np.testing.assert_allclose(found.jacobian["v"]["q0"][0], expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("side", [1, slow(-1)])
def test_a_force_that_is_no_number_beyond_its_side(side):
    """The root of -q is not asked for where q > 0, forwards and backwards;
    the motion of either side by `EventDriven`."""
    of = lambda q: jnp.where(q > 0, 1.0, jnp.sqrt(-q + 0.01))
    problem = ji.Problem(lambda t, q, v, args: of(q))
    start = jnp.array([-0.5 * side, 1.2 * side])

    def end(x, scheme):
        found = ji.solve(problem, x[:1], x[1:], t1=1.0, steps=400, scheme=scheme, save="final")
        return found.q[-1, 0]

    found = jax.grad(end)(start, SCHEME)
    right = jax.jacfwd(end)(start, ji.EventDriven())
    np.testing.assert_allclose(found, right, atol=1e-3)  # of h^2
