"""Forces that jump or kink, with `EventDriven`: values and derivatives across their switches are those of the motion,
by exact pieces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow, slow_but

SCHEME = ji.EventDriven()
FACTOR = 30  # of the tolerance: errors of substeps add up
G = 9.81

STEP = ji.Problem(lambda t, q, v, args: -jnp.where(q > 0, 1.0, 0.0))
POLE = ji.Problem(lambda t, q, v, args: -jax.nn.sigmoid(1e3 / q))  # the same to the last digit
CLOCK = ji.Problem(lambda t, q, v, args: jnp.where(t < args, jnp.ones_like(q), -jnp.ones_like(q)))
BLOCK = ji.Problem(lambda t, q, v, args: -args * G * jnp.sign(v))
HALVES = ji.Problem(lambda t, q, v, args: -jnp.where(q > 0, 4.0, 1.0) * q)
BELT = ji.Problem(lambda t, q, v, args: -q - args["hold"] * jnp.sign(v - args["belt"]))


def derivatives(problem, q0, v0, wrt, **options):
    """Final position and velocity, their derivatives, and the status."""
    options = {"scheme": SCHEME, "steps": 3, "wrt": wrt} | options
    found = ji.sensitivities(problem, q0, v0, **options)
    of = lambda tree: {name: jax.tree.map(np.squeeze, tree[name]) for name in wrt}
    return found.value, of(found.jacobian["q"]), of(found.jacobian["v"]), Status(int(found.status))


# crossings


@pytest.mark.parametrize("problem, steps", [slow(STEP, 1), (STEP, 3), slow(POLE, 3)])
def test_a_force_that_jumps_where_the_motion_passes(problem, steps):
    """On t > 1/v0 the motion is (t1 - 1/v0) v0 - (t1 - 1/v0)^2 / 2; in three steps it passes at a row. Before: dq/dq0 =
    1, dv/dq0 = 0, not trusted."""
    value, dq, dv, status = derivatives(problem, [-1.0], [1.0], ("q0", "v0"), t1=1.5, steps=steps)
    np.testing.assert_allclose([value["q"][0], value["v"][0]], [0.375, 0.5], atol=1e-14)
    np.testing.assert_allclose([dq["q0"], dq["v0"], dv["q0"], dv["v0"]], [0.5, 1.0, -1.0, 0.0], atol=1e-12)
    assert status == 0


@pytest.mark.slow
def test_a_border_passed_just_before_another_is_crossed():
    """Below a place a spring is stronger, and v changes its sign, with a sign in the force, just below it: off by .03
    where only that was found."""
    force = lambda t, q, v, place: 1.0 - 0.5 * jnp.sign(v) + jnp.where(q < place, 2.0, 0.0) - q
    least = 1.5 - np.sqrt(1.25)  # from q = 1 with v = -1
    place, start = least + np.logspace(-7, -2, 40), np.ones((40, 1))
    call = {"t1": 2.5, "steps": 1, "args": place, "args_axes": 0, "save": "final", "progress": False}
    found = ji.ensemble(ji.Problem(force), start, -start, scheme=ji.EventDriven(), **call)
    q, v = (np.asarray(x)[:, -1, 0] for x in (found.q, found.v))
    turns = 3.5 - np.sqrt(1.25 - (1.5 - place) ** 2 + (3.5 - place) ** 2)  # where v = 0
    energy = (2.5 - turns) ** 2 - (2.5 - place) ** 2 + (0.5 - place) ** 2  # v^2 + (q - 1/2)^2 behind the place
    np.testing.assert_allclose(v**2 + (q - 0.5) ** 2, energy, rtol=0, atol=1e-8)
    assert not found.status.any()


def test_a_force_that_jumps_at_a_time_in_args():
    """v = 2 ts - t0 - t1 + v0, q its integral."""
    wrt = ("q0", "v0", "args", "t0", "t1")
    value, dq, dv, status = derivatives(CLOCK, [0.0], [1.0], wrt, t1=1.0, args=0.4)
    np.testing.assert_allclose([value["q"][0], value["v"][0]], [1.14, 0.8], atol=1e-14)
    np.testing.assert_allclose([dq[name] for name in wrt], [1, 1, 1.2, -2, 0.8], atol=1e-12)
    np.testing.assert_allclose([dv[name] for name in wrt], [0, 1, 2, -1, -1], atol=1e-12)
    assert status == 0


def passed(x):
    """Exact place of `STEP` at t = 1.5 from (q0, v0)."""
    rest = 1.5 + x[0] / x[1]
    return rest * x[1] - 0.5 * rest**2


@pytest.mark.slow
def test_second_derivatives_across_a_jump():
    place = lambda x: ji.solve(STEP, x[:1], x[1:], t1=1.5, steps=1, scheme=SCHEME, save="final").q[-1, 0]
    x = jnp.array([-0.9, 1.1])
    of_speed = lambda f: jax.jacfwd(jax.jacfwd(lambda v0: f(jnp.stack([x[0], v0]))))(x[1])
    np.testing.assert_allclose(of_speed(place), of_speed(passed), atol=1e-10)


@pytest.mark.parametrize("rtol", slow_but([1e-9], (1e-6, 1e-9, 1e-12)))
def test_order_is_kept_across_kinks(rtol):
    """A spring that is four times as stiff on one side: of period 3 pi / 2;
    here an eighth of the stiff spring's period behind the start."""
    options = {"scheme": ji.EventDriven(rtol, rtol), "save": "final", "sensitivity": "corrected"}
    found, half = ji.solve(HALVES, [0.0], [1.0], t1=7.625 * np.pi, steps=4, **options), np.sqrt(0.5)
    np.testing.assert_allclose([found.q[-1, 0], found.v[-1, 0]], [half / 2, half], rtol=0, atol=FACTOR * rtol)
    assert found.status == 0 and found.iterations < 200


def test_a_motion_that_touches_a_border_has_no_trusted_derivative():
    """A throw up to the border at its top: on one side of the data it passes, on the other it does not."""
    force = lambda t, q, v, args: -1.0 - jnp.where(q > args, 1.0, 0.0)
    run = lambda at: derivatives(ji.Problem(force), [0.0], [1.0], ("args",), t1=1.8, args=at, steps=1)[3]
    assert run(0.5) == run(0.5 - 1e-12) == run(0.5 + 1e-12) == Status.DERIVATIVE_JUMP
    assert run(0.4) == run(0.6) == 0


def test_a_border_at_the_start_or_the_end_has_no_trusted_derivative():
    """At the border the state has one derivative on each side."""
    options = {"t1": 1.0, "scheme": SCHEME, "steps": 3, "sensitivity": "corrected"}
    told = lambda problem, start: Status(int(ji.solve(problem, [start], [1.0], **options).status))
    assert told(STEP, 0.0) == told(STEP, -1.0) == Status.DERIVATIVE_JUMP
    assert told(HALVES, 0.0) == 0  # a kink is no jump


@pytest.mark.slow
def test_a_border_and_an_impact_within_one_step():
    """A ball falls out of a wind into still air, and bounces: heights and speeds by its energy."""
    force = lambda t, q, v, args: -G + jnp.where(q > 0.5, args, jnp.zeros_like(q))
    ball = ji.Problem(force, lambda t, q, args: q, restitution=0.5)

    def exact(wind):
        at, t = jnp.sqrt(G - wind), jnp.sqrt(1 / (G - wind))
        down = jnp.sqrt(at**2 + G)
        return 0.5 * down - G * (0.7 - t - (down - at) / G)

    value, _, dv, status = derivatives(ball, [1.0], [0.0], ("args",), t1=0.7, args=3.0, steps=1)
    right, slope = jax.jit(jax.value_and_grad(exact))(3.0)
    assert status == 0 and value["v"][0] == pytest.approx(float(right), abs=1e-9)
    np.testing.assert_allclose(dv["args"], slope, rtol=0, atol=1e-8)


# friction


BY_NORM = ji.Problem(lambda t, q, v, args: -args * G * v / jnp.linalg.norm(v))


@pytest.mark.slow
@pytest.mark.parametrize("block", [BLOCK, BY_NORM], ids=["by a sign", "by a norm"])
def test_friction_stops_a_block(block):
    """At v0 / (mu g), at the place v0^2 / (2 mu g), for good. Before: dq/dv0 = 1,
    and with the norm of the velocity TRIALS_EXHAUSTED."""
    mu, wrt = 0.3, ("q0", "v0", "args")
    value, dq, dv, status = derivatives(block, [0.0], [1.0], wrt, t1=1.0, args=mu, steps=4)
    np.testing.assert_allclose([value["q"][0], value["v"][0]], [1 / (2 * mu * G), 0.0], atol=1e-14)
    np.testing.assert_allclose([dq[name] for name in wrt], [1, 1 / (mu * G), -1 / (2 * mu**2 * G)], atol=1e-12)
    np.testing.assert_allclose([dv[name] for name in wrt], 0, atol=1e-12)
    assert status == 0


def belt(x, t1):
    """Exact place: a mass slips back on a belt that pulls it at 1, sticks while the spring holds less,
    and swings about 1 from then on."""
    v0, speed = x
    slip = jnp.pi - jnp.arccos(speed / v0)  # 1 - v0 sin(t) with the speed -v0 cos(t)
    stick = (v0 * jnp.sin(slip)) / speed
    return 1 + speed * jnp.sin(t1 - slip - stick)


@pytest.mark.slow
def test_a_pull_that_sets_in_ends_sticking():
    """At rest from t = .5 on; from t = s on with q'' = 1 - 2. No trial was found behind s: what the block sticks by was
    asked of the force before it."""
    pull = ji.Problem(lambda t, q, v, s: jnp.where(t > s, -2.0, 0.0) - jnp.sign(v))
    value, dq, dv, status = derivatives(pull, [0.0], [0.5], ("args",), t1=2.0, steps=2, args=1.1)
    assert status == 0
    np.testing.assert_allclose([value["q"][0], value["v"][0]], [0.125 - 0.405, -0.9], atol=1e-12)
    np.testing.assert_allclose([dq["args"], dv["args"]], [0.9, 1.0], atol=1e-10)


def test_a_mass_on_a_belt_slips_and_sticks():
    options = {"t1": 6.0, "args": {"hold": 1.0, "belt": 0.5}, "steps": 3}
    value, dq, _, status = derivatives(BELT, [1.0], [-0.8], ("v0", "args"), **options)
    x = jnp.array([0.8, 0.5])
    slopes = jax.jit(jax.grad(belt))(x, 6.0)
    assert status == 0 and value["q"][0] == pytest.approx(float(belt(x, 6.0)), abs=1e-9)
    np.testing.assert_allclose([-dq["v0"], dq["args"]["belt"]], slopes, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_blocks_that_stop_one_after_the_other():
    """Each coordinate has its own border; a mass matrix couples them: M v = M v0 - f t until the first stops,
    which then holds with less."""
    mass = jnp.array([[2.0, 0.5], [0.5, 1.0]])
    force = lambda t, q, v, args: -jnp.sign(v) * jnp.array([1.0, 2.0])
    found = ji.solve(ji.Problem(force, mass=mass), [0.0, 0.0], [1.0, 1.0], t1=3.0, steps=30, scheme=SCHEME)
    a = np.linalg.solve(mass, [-1.0, -2.0])
    first = -1 / a[1]
    v = 1 + a[0] * first
    last = first + 2 * v  # of the mass 2 with the force 1
    place = [first + a[0] * first**2 / 2 + v**2, first + a[1] * first**2 / 2]
    assert found.status == 0 and found.iterations < 120 and 0 < first < last < 3
    np.testing.assert_allclose(found.q[-1], place, atol=1e-9)
    np.testing.assert_allclose(found.v[-1], 0, atol=1e-12)


@pytest.mark.slow
def test_friction_on_a_slope_in_contact():
    """A block that is pushed up a slope of a floor, with a friction that does not hold it there:
    it turns and slides down."""
    slope, mu = 0.6, 0.2
    normal, along = np.array([-np.sin(slope), np.cos(slope)]), np.array([np.cos(slope), np.sin(slope)])
    weight = G * np.cos(slope)
    force = lambda t, q, v, args: jnp.array([0.0, -G]) - mu * weight * jnp.sign(v @ along) * along
    block = ji.Problem(force, lambda t, q, args: (q @ normal)[None])
    found = ji.solve(block, [0.0, 0.0], 2 * along, t1=1.0, steps=2, scheme=SCHEME, sensitivity="corrected")
    up, down = G * np.sin(slope) + mu * weight, G * np.sin(slope) - mu * weight
    top = 2 / up
    assert found.status == 0
    np.testing.assert_allclose(found.q[-1], along * (top - down * (1 - top) ** 2 / 2), atol=1e-9)


LOCATED = pytest.mark.parametrize(
    ("scheme", "steps"), [slow(ji.EventDriven(), None), slow(ji.EventCorrected(), 100)], ids=["driven", "corrected"]
)


@LOCATED
def test_a_motion_slides_where_a_quotient_jumps_whatever_the_force_is_on_the_border_alone(scheme, steps):
    """v' = .3 - v // .5 is .3 below v = .5 and -.7 above. Before: TRIALS_EXHAUSTED,
    and with `EventCorrected` q was off by .01."""
    drive = ji.Problem(lambda t, q, v, args: jnp.where(v == 0.5, 9.0, 0.3 - v // 0.5))
    found = ji.sensitivities(drive, [0.0], [[0.2], [0.8]], t1=2.0, wrt="v0", scheme=scheme, steps=steps)
    assert found.trusted.all()
    v0, a = np.array([0.2, 0.8]), np.array([0.3, -0.7])
    since = (0.5 - v0) / a
    right = {"q": 0.5 * (0.5 + v0) * since + 0.5 * (2 - since), "v": 0.5}
    for name, slope in (("q", (0.5 - v0) / a), ("v", 0.0)):
        np.testing.assert_allclose(found.value[name].ravel(), right[name], rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.jacobian[name]["v0"].ravel(), slope, rtol=0, atol=1e-9)


@LOCATED
def test_a_remainder_jumps_by_itself_whatever_is_asked_of_it_on_its_border(scheme, steps):
    """`jnp.mod` asks whether the remainder is zero, as it is on the border alone; v' = -1 - mod(v, 1/2) falls from -1
    to -3/2 at each multiple of 1/2."""
    drag, t1 = ji.Problem(lambda t, q, v, args: -1 - jnp.mod(v, 0.5)), 0.35
    found = ji.sensitivities(drag, [0.0], [[0.6], [0.2], [-0.2]], t1=t1, wrt="v0", scheme=scheme, steps=steps)
    assert found.trusted.all()
    right = 1.5 * np.exp(-t1)
    np.testing.assert_allclose(found.jacobian["v"]["v0"].ravel(), right, rtol=0, atol=(t1 / 100) ** 2)  # h^2, v at 1
