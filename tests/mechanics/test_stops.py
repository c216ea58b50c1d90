"""`until=`: a motion ends where a function of its state changes sign, at a time that has the derivative of the motion.

Motions of these tests are polynomials or sines between impacts: errors are of rounding,
or of the tolerance 1e-9 of the scheme where it says so.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow

EXACT = {"rtol": 1e-11, "atol": 1e-11}  # rounding of some dozens of operations, of numbers up to 10
SCHEME = ji.EventDriven()
BALL = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -args["g"]), lambda t, q, args: q)
HEIGHT = lambda t, q, v, args: q[0] - args["height"]
APEX = ji.Until(lambda t, q, v, args: v[0], direction=-1)


def thrown(q0, v0, until, e=0.8, g=9.81, height=0.5, **options):
    options = {"t1": 3.0, "scheme": SCHEME, "save": "final"} | options
    args = {"g": g, "height": height}
    return ji.solve(BALL, jnp.reshape(q0, 1), jnp.reshape(v0, 1), e=e, args=args, until=until, **options)


def ends(found):
    """Time, place and velocity of the end, (3,)."""
    return jnp.stack([found.t[-1], found.q[-1, 0], found.v[-1, 0]])


def end_and_itself(found):
    """The end to be differentiated, and beside it what one program gives of values."""
    return ends(found), (ends(found), found.stopped, found.status)


@pytest.mark.parametrize("closed", [slow(False), True])
def test_free_fall_to_a_height_has_the_exact_end_and_derivative(closed):
    """A height that the function closes over is one of the numbers of the motion, as one in args is."""
    fall = lambda q0, g, height: jnp.sqrt(2 * (q0 - height) / g)
    exact = lambda q0, g, height: jnp.stack([fall(q0, g, height), height, -g * fall(q0, g, height)])
    at = tuple(map(jnp.asarray, (1.3, 9.81, 0.5)))

    def run(q0, g, height):
        until = (lambda t, q, v, args: q[0] - height) if closed else HEIGHT
        return end_and_itself(thrown(q0, 0.0, until, g=g, height=height))

    jacobian, (end, stopped, status) = jax.jit(jax.jacfwd(run, (0, 1, 2), has_aux=True))(*at)
    assert stopped and status == Status.OK
    np.testing.assert_allclose(end, jax.jit(exact)(*at), **EXACT)
    np.testing.assert_allclose(jacobian, jax.jit(jax.jacfwd(exact, (0, 1, 2)))(*at), **EXACT)


@pytest.mark.slow
def test_apex_behind_a_bounce_has_the_exact_end_and_derivative():
    """Thrown down: at the impact the velocity changes its sign the other way."""

    def exact(q0, v0, e, g):
        speed = jnp.sqrt(v0**2 + 2 * g * q0)
        return jnp.stack([(speed + v0 + e * speed) / g, (e * speed) ** 2 / (2 * g), 0.0 * q0])

    at = tuple(map(jnp.asarray, (1.3, -1.0, 0.8, 9.81)))
    run = lambda q0, v0, e, g: end_and_itself(thrown(q0, v0, APEX, e=e, g=g))
    every = (0, 1, 2, 3)
    jacobian, (end, stopped, status) = jax.jacfwd(run, every, has_aux=True)(*at)
    assert stopped and status == Status.OK
    np.testing.assert_allclose(end, exact(*at), **EXACT)
    np.testing.assert_allclose(jacobian, jax.jit(jax.jacfwd(exact, every))(*at), **EXACT)
    # in either direction the motion ends at the impact, with the velocity behind it
    struck = thrown(1.3, -1.0, APEX.function)
    speed = float(np.sqrt(1 + 2 * 9.81 * 1.3))
    np.testing.assert_allclose(ends(struck), [(speed - 1) / 9.81, 0, 0.8 * speed], **EXACT)


@pytest.mark.slow
def test_second_derivatives_are_those_of_the_motion():
    """Of a spring with friction in place of gravity, whose acceleration changes: the end is a zero of its velocity; by
    differences of first derivatives."""
    problem = ji.Problem(lambda t, q, v, args: -q - args * v**3, lambda t, q, args: q + 0.5)
    run = lambda x: ends(
        ji.solve(
            problem,
            x[:1],
            [0.0],
            t1=9.0,
            e=0.7,
            args=x[1],
            scheme=SCHEME,
            until=ji.Until(lambda t, q, v, a: v[0], -1),
            save="final",
        )
    )
    x, step = jnp.array([1.0, 0.3]), 1e-5
    second = jax.jacfwd(jax.jacfwd(run))(x)
    for i in range(2):
        change = step * jnp.eye(2)[i]
        difference = (jax.jacfwd(run)(x + change) - jax.jacfwd(run)(x - change)) / (2 * step)
        np.testing.assert_allclose(second[..., i], difference, rtol=1e-4, atol=1e-4)  # 1e-9 / 1e-5


@pytest.mark.slow
def test_the_first_impact_is_met_before_it():
    """The function is the gap itself: the end has the velocity that the ball arrives with;
    and the derivative is trusted."""
    run = lambda q0: thrown(q0, 0.0, lambda t, q, v, args: q[0])
    found, change = jax.jvp(lambda q0: ends(run(q0)), (1.3,), (1.0,))
    fall = np.sqrt(2 * 1.3 / 9.81)
    np.testing.assert_allclose(found, [fall, 0, -9.81 * fall], **EXACT)
    np.testing.assert_allclose(change, [1 / (9.81 * fall), 0, -1 / fall], **EXACT)
    assert thrown(1.3, 0.0, lambda t, q, v, args: q[0], sensitivity="corrected").status == Status.OK
    # what lies behind the wall is never met, however near
    assert not thrown(1.3, 0.0, HEIGHT, height=-1e-6, t1=1.0).stopped


@pytest.mark.slow
@pytest.mark.parametrize("excess", [1.0, 1e-3, 1e-7])
def test_a_surface_that_is_crossed_twice_within_a_step_is_seen(excess):
    """A ball thrown up through a height and back, in one substep of a step of 3 s; upwards, and downwards."""
    speed = float(np.sqrt(2 * 9.81 * (0.5 + excess)))
    beyond = float(np.sqrt(2 * 9.81 * excess))
    for direction, sign in ((0, 1), (1, 1), (-1, -1)):
        found = thrown(0.0, speed, ji.Until(HEIGHT, direction), steps=1)
        # the root of a parabola that is nearly double: rounding of the height by its slope
        accuracy = 1e-14 / beyond / 9.81 + 1e-14
        assert found.t[-1] == pytest.approx((speed - sign * beyond) / 9.81, abs=100 * accuracy)
    # where it starts on the surface it is left, and met when it comes back
    found = thrown(0.5, 2.0, HEIGHT, steps=1)
    assert found.t[-1] == pytest.approx(4.0 / 9.81, abs=1e-13)


def test_an_impact_jumps_back_through_a_surface_that_was_crossed_the_other_way():
    """Faster than 1 downwards, which does not count, and upwards behind the impact, all in one trial."""
    found = thrown(1.3, 0.0, ji.Until(lambda t, q, v, args: v[0] + 1, direction=1), steps=1)
    fall = np.sqrt(2.6 / 9.81)
    np.testing.assert_allclose(ends(found), [fall, 0, 0.8 * 9.81 * fall], **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("direction", [0, 1])
def test_no_surface_is_missed_in_random_motions(direction):
    """A driven point above a shaking table, and surfaces of all of t, q and v: none is crossed before the end, on 4000
    rows, and the end is on it, to ten tolerances by the slope, or at an impact that jumps through it."""
    rng, lanes = np.random.default_rng(0), 500
    force = lambda t, q, v, args: jnp.array([-4 * q[0] + 3 * jnp.cos(1.7 * t) + 0.5 * (q[1] - q[0]), -9.81])
    problem = ji.Problem(force, lambda t, q, args: jnp.stack([q[0] + 0.4, q[1] - 0.1 * jnp.sin(3 * t)]))
    q0 = np.stack([rng.uniform(-0.3, 0.8, lanes), rng.uniform(0.3, 1, lanes)], 1)
    v0 = rng.normal(size=(lanes, 2))
    args = {"c": rng.uniform(-0.6, 1.2, lanes), "k": rng.uniform(-1, 1, (lanes, 5)) * [1, 1, 0.3, 0.1, 1]}

    def surface(t, q, v, args):
        return args["k"] @ jnp.stack([*q, *v, jnp.sin(5 * t)]) - args["c"]

    options = {"t1": 4.0, "e": 0.7, "args": args, "args_axes": {"c": 0, "k": 0}, "scheme": SCHEME}
    save, until = ji.Events(impacts=60), ji.Until(surface, direction)
    found = ji.ensemble(problem, q0, v0, save=save, until=until, **options)
    rows = ji.Save(every=1, function=surface)
    dense = ji.ensemble(problem, q0, v0, save=rows, steps=4000, **options)
    sign, t, end = np.sign(dense.values), dense.t, found.t[:, -1]
    crossed = (sign[:, 1:] * sign[:, :-1] < 0) & ((sign[:, 1:] > 0) | (direction == 0))
    assert not np.any(crossed & (t[:, 1:] < end[:, None] - 1e-7)) and not np.any(found.failed)
    assert 0.7 < np.mean(found.stopped) < 0.9
    value = jax.vmap(surface)(found.t[:, -1], found.q[:, -1], found.v[:, -1], args)
    impact = np.any(np.abs(found.events.t - end[:, None]) < 1e-12, axis=1)
    assert np.all((np.abs(value) < 1e-8) | impact | ~found.stopped)


@pytest.mark.slow
def test_a_surface_that_moves_fast_is_met_for_the_first_time():
    """A flight is exact whatever the substep, and the function 50 times as fast:
    it belongs to the error of a substep."""
    found = thrown(1.3, 0.0, lambda t, q, v, args: jnp.cos(50 * t) - 0.1 * q[0], t1=2.0, steps=1)
    root = np.pi / 100
    for _ in range(20):
        root = np.arccos(0.1 * (1.3 - 9.81 * root**2 / 2)) / 50
    assert found.t[-1] == pytest.approx(root, abs=1e-10)


@pytest.mark.slow
def test_rows_behind_the_stop_repeat_it():
    rows = np.array([0.1, 0.2, 0.9, 1.0])
    found = thrown(1.3, 0.0, HEIGHT, save=rows)
    stop = np.sqrt(1.6 / 9.81)
    np.testing.assert_allclose(found.t, np.minimum(np.append(rows, 3.0), stop), **EXACT)
    np.testing.assert_allclose(found.q[:2, 0], 1.3 - 9.81 * rows[:2] ** 2 / 2, **EXACT)
    np.testing.assert_allclose(found.q[2:], 0.5, **EXACT)
    assert found.penetration == 0
    # between rows, and what a function makes of them
    every = thrown(1.3, 0.0, HEIGHT, save="all", t1=2.0)
    assert np.all(np.diff(every.t) >= 0) and float(every.t[-1]) == pytest.approx(stop, abs=1e-13)
    np.testing.assert_allclose(every.at([0.123]).q, [[1.3 - 9.81 * 0.123**2 / 2]], **EXACT)
    kept = thrown(1.3, 0.0, HEIGHT, save=ji.Save(every=1, function=lambda t, q, v, args: t), steps=6)
    np.testing.assert_allclose(kept.values, kept.t, **EXACT)
    np.testing.assert_allclose(kept.t, np.minimum(np.arange(7) * 0.5, stop), **EXACT)


def test_each_motion_of_an_ensemble_ends_at_its_own_time():
    heights = np.array([1.3, 0.6, 0.3])  # of which the last bounces, and never is as high as the surface
    options = {"t1": 2.0, "e": 0.8, "args": {"g": 9.81, "height": 0.5}, "scheme": SCHEME}
    save = ji.Events(impacts=1, times=[0.1, 0.3])
    found = ji.ensemble(BALL, heights[:, None], [0.0], save=save, until=HEIGHT, **options)
    np.testing.assert_array_equal(found.stopped, [True, True, False])
    fall = lambda height: np.sqrt(2 * (height - 0.5) / 9.81)
    np.testing.assert_allclose(found.t[:, -1], [fall(1.3), fall(0.6), 2.0], **EXACT)
    np.testing.assert_allclose(found.t[1], [0.1, fall(0.6), fall(0.6)], **EXACT)
    np.testing.assert_array_equal(found.events.count > 0, [False, False, True])


@pytest.mark.slow
def test_a_motion_in_lasting_contact_ends():
    """A point slides, slowed by a force, on a floor that rises: until it has gone a way."""
    force = lambda t, q, v, args: jnp.array([-args, -1.0])
    problem = ji.Problem(force, lambda t, q, args: q[1:] - 0.1 * t)
    way = lambda t, q, v, args: q[0] - 1.0
    run = lambda drag: ji.solve(
        problem, [0.0, 0.4], [1.0, 0.0], t1=4.0, args=drag, scheme=SCHEME, until=way, save="final"
    )
    found = run(0.25)
    stop = lambda drag: (1 - jnp.sqrt(1 - 2 * drag)) / drag
    assert found.stopped and found.status == Status.OK
    np.testing.assert_allclose(found.t[-1], stop(0.25), **EXACT)
    np.testing.assert_allclose(found.q[-1], [1, 0.1 * stop(0.25)], **EXACT)
    assert found.penetration < 1e-12  # of a floor that goes on moving, and the point does not
    np.testing.assert_allclose(jax.jacfwd(lambda drag: run(drag).t[-1])(0.25), jax.grad(stop)(0.25), **EXACT)


def test_a_function_that_jumps_has_no_trusted_derivative():
    jumps = lambda t, q, v, args: jnp.where(q[0] > args["height"], 1.0, -1.0)
    found = thrown(1.3, 0.0, jumps, sensitivity="corrected")
    assert found.status == Status.DERIVATIVE_JUMP and found.t[-1] == pytest.approx(np.sqrt(1.6 / 9.81), abs=1e-12)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"scheme": ji.MoreauJean(), "steps": 9},
            ValueError,
            "until.*MoreauJean does not locate .* scheme=EventDriven",
        ),
        ({"until": 0.5}, TypeError, "until must be a function"),
        ({"until": ji.Until(HEIGHT, 2)}, ValueError, "direction"),
        ({"until": lambda t, q, v, args: q}, ValueError, "one real number"),
        ({"until": lambda t, q, v, args: q[0] - args["nothing"]}, ValueError, r"until\(t, q, v, args\)"),
    ],
)
def test_what_cannot_be_is_said(options, error, words):
    for call, height in ((ji.solve, [1.3]), (ji.ensemble, [[1.3]])):
        given = {"t1": 1.0, "args": {"g": 1.0, "height": 0.5}, "scheme": SCHEME, "until": HEIGHT} | options
        with pytest.raises(error, match=words):
            call(BALL, height, [0.0], **given)


@pytest.mark.slow
def test_sensitivities_of_an_end_are_those_of_the_motion_there():
    """Of the apex behind a bounce, whose place and time are known; a motion that does not come to it ends at t1."""
    heights, e, g = np.array([1.0, 1.3, 40.0]), 0.8, 9.81
    found = ji.sensitivities(
        BALL, heights[:, None], [0.0], t1=3.0, e=e, args={"g": g}, wrt=("q0", "e"), scheme=SCHEME, until=APEX
    )
    fall = np.sqrt(2 * heights / g)
    np.testing.assert_allclose(found.value["t"], [*((1 + e) * fall[:2]), 3.0], **EXACT)
    np.testing.assert_allclose(found.value["q"][:2, 0], e**2 * heights[:2], **EXACT)
    np.testing.assert_allclose(found.jacobian["t"]["q0"][:, 0], [*((1 + e) / (g * fall[:2])), 0], **EXACT)
    np.testing.assert_allclose(found.jacobian["t"]["e"], [*fall[:2], 0], **EXACT)
    np.testing.assert_allclose(found.jacobian["q"]["e"][:2, 0], 2 * e * heights[:2], **EXACT)
    with pytest.raises(ValueError, match=r"until=.*MoreauJean does not locate"):
        ji.sensitivities(BALL, [1.0], [0.0], t1=1.0, h=0.1, args={"g": g}, scheme=ji.MoreauJean(), until=APEX)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
def test_ready_made_surfaces_of_a_bouncing_ball(k):
    """Just before the k-th impact, at the k-th apex, and at the k-th return to a height from below."""
    q0, e, g, height = 1.3, 0.8, 9.81, 0.1
    fall, args = np.sqrt(2 * q0 / g), {"g": g, "height": height}
    flights = 2 * fall * e ** np.arange(1, k)
    speed = g * fall * e ** (k - 1)
    up = fall * e**k
    beyond = (g * up - np.sqrt((g * up) ** 2 - 2 * g * height)) / g  # of the way up to the height
    run = lambda q0, until: ends(
        ji.solve(
            BALL, jnp.reshape(q0, 1), jnp.zeros(1), t1=9.0, e=e, args=args, scheme=SCHEME, save="final", until=until
        )
    )
    for until, exact in (
        (ji.Until.apex(0, k), [fall + flights.sum() + up, q0 * e ** (2 * k), 0]),
        (ji.Until.section(HEIGHT, 1, k), [fall + flights.sum() + beyond, height, g * (up - beyond)]),
    ):
        np.testing.assert_allclose(run(q0, until), exact, **EXACT)
    # times of impacts go as the root of the height
    by_height, found = jax.jit(jax.jacfwd(lambda q0: (run(q0, ji.Until.impact(0, k)),) * 2, has_aux=True))(q0)
    np.testing.assert_allclose(found, [fall + flights.sum(), 0, -speed], **EXACT)
    np.testing.assert_allclose(by_height[0], found[0] / (2 * q0), **EXACT)


@pytest.mark.slow
def test_ready_made_surfaces_know_names_and_contacts_apart():
    """Between two walls and above a floor: the second impact of each, of lanes of their own;
    and a name that there is none of."""
    box = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -9.81]), lambda t, q, args: jnp.array([q[0], 1.0 - q[0], q[1]]),
        restitution=1.0, coordinates=("x", "y"), contacts=("left", "right", "floor"),
    )  # fmt: skip
    run = lambda until: ji.ensemble(
        box, [[0.3, 0.5], [0.3, 0.5]], [[1.0, 0.0], [-1.0, 0.0]], t1=9.0, scheme=SCHEME, until=until
    ).t[:, -1]
    np.testing.assert_allclose(run(ji.Until.impact("right", 2)), [2.7, 3.3], **EXACT)
    np.testing.assert_allclose(run(ji.Until.impact("left", 2)), [3.7, 2.3], **EXACT)
    np.testing.assert_allclose(run(ji.Until.impact("floor", 2)), 3 * np.sqrt(1 / 9.81), **EXACT)
    np.testing.assert_allclose(run(ji.Until.apex("y", 2)), 4 * np.sqrt(1 / 9.81), **EXACT)
    for until, words in (
        (ji.Until.impact("ceiling"), "no contact 'ceiling'; the names are left, right, floor"),
        (ji.Until.apex(2), "no coordinate 2"),
        (ji.Until.impact(0, 0), r"Until\(number=...\)"),
    ):
        with pytest.raises(ValueError, match=words):
            run(until)
