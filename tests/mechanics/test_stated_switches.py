"""Surfaces that a problem states as switches, and the state that is reset on them,
by motions in pieces that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy.special import beta

import jaximpact as ji
from jaximpact import Status
from jaximpact.study.fingerprint import sources
from support.breadth import slow

SCHEME = ji.EventDriven()
G = 9.81


@jax.vmap
def hidden(x):
    """1 where x > 0, else 0: in a loop into which the search for switches does not look."""
    turn = lambda c: (c[0] + 1, jnp.where(x > 0, 1.0, 0.0).astype(x.dtype))
    return lax.while_loop(lambda c: c[0] < 1, turn, (jnp.zeros((), jnp.int32), jnp.zeros_like(x)))[1]


PLACE = lambda t, q, v, args: q
JUMP = ji.Problem(lambda t, q, v, args: -hidden(q), switches=PLACE)
LOCATED = [SCHEME, slow(ji.EventCorrected())]
either = pytest.mark.parametrize("switches", [None, PLACE], ids=["found", "stated"])


def derivatives(problem, q0, v0, wrt, **options):
    """Final position and velocity, their derivatives, and the status."""
    found = ji.sensitivities(problem, q0, v0, **({"scheme": SCHEME, "steps": 3, "wrt": wrt} | options))
    of = lambda tree: {name: jax.tree.map(np.squeeze, tree[name]) for name in wrt}
    return found.value, of(found.jacobian["q"]), of(found.jacobian["v"]), Status(int(found.status))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "steps"), [(SCHEME, 3), (ji.EventCorrected(), 15)], ids=repr)
def test_a_hidden_jump_is_crossed_where_it_is_stated(scheme, steps):
    """On t > 1.003/v0 the motion is r v0 - r^2 / 2 with the rest r = t1 - 1.003/v0; unstated, dq/dq0 = 1. Exact, as the
    force is constant on both sides."""
    value, dq, dv, status = derivatives(JUMP, [-1.003], [1.0], ("q0", "v0"), t1=1.5, steps=steps, scheme=scheme)
    rest = 1.5 - 1.003
    np.testing.assert_allclose([value["q"][0], value["v"][0]], [rest - rest**2 / 2, 1 - rest], atol=1e-14)
    slopes = [1 - rest, rest + 1.003 * (1 - rest), -1.0, 1 - 1.003]
    np.testing.assert_allclose([dq["q0"], dq["v0"], dv["q0"], dv["v0"]], slopes, atol=1e-12)
    assert status == 0


@pytest.mark.parametrize("scheme", [ji.PaoliSchatzman(), slow(ji.MoreauJean())])
def test_schemes_that_keep_their_steps_trust_no_wrong_derivative_across_one(scheme):
    """dq/dq0 = 1 - (t1 - t) with t = 1.003, where that is known as well as it has to be,
    for which h = .1 is too large."""
    of = lambda h: ji.sensitivities(JUMP, [-1.003], [1.0], t1=1.5, h=h, wrt="q0", scheme=scheme)
    assert int(of(0.1).status) & Status.DERIVATIVE_JUMP
    fine = of(0.01)
    assert fine.trusted and abs(fine.jacobian["q"]["q0"].item() - 0.503) < 0.01  # of h


# hysteresis: a relay, whose mode 1 or -1 is a coordinate at rest that resets set


def relay(x, scheme=SCHEME):
    """Place at t1 of q'' = -a mode from q = 0, mode = -1 with the speed v0:
    the mode is 1 from q = d upwards, -1 from q = -d downwards."""
    v0, a, d, t1 = x

    def force(t, q, v, args):
        return jnp.stack([-a * q[1], jnp.zeros_like(q[1])])

    def reset(t, q, v, k, args):
        mode = jnp.where(v[0] > 0, 1.0, q[1]) if k == 0 else jnp.where(v[0] < 0, -1.0, q[1])
        return q.at[1].set(mode), v

    ends = lambda t, q, v, args: jnp.stack([q[0] - d, q[0] + d])
    problem = ji.Problem(force, switches=ends, reset=reset)
    start = [0.0, -1.0], jnp.stack([v0, 0 * v0])
    found = ji.solve(problem, *start, t1=t1, steps=20, scheme=scheme, save="final")
    return found.q[-1, 0], (found.q[-1, 0], found.status)


def relay_exact(x):
    """Parabolas from one end of the dead band to the other, of which the second is under way at t1."""
    v0, a, d, t1 = x
    speed = jnp.sqrt(v0**2 + 2 * a * d)
    further = jnp.sqrt(speed**2 + 4 * a * d)
    rest = t1 - (speed - v0) / a - (speed + further) / a
    return -(d + further * rest - a * rest**2 / 2)


RELAY = jnp.array([0.5, 1.0, 0.1, 3.0])


@pytest.mark.parametrize(
    "scheme", [ji.EventDriven(order=5), slow(ji.EventCorrected())], ids=lambda scheme: type(scheme).__name__
)
def test_a_relay_with_a_dead_band(scheme):
    """Both ends are passed both ways; numbers that the functions close over are differentiated too. The force is
    constant on each side, for which both schemes are exact."""
    slopes, (place, status) = jax.jit(jax.jacfwd(lambda x: relay(x, scheme), has_aux=True))(RELAY)
    value, right = jax.jit(jax.value_and_grad(relay_exact))(RELAY)
    assert place == pytest.approx(float(value), abs=1e-12) and status == 0
    np.testing.assert_allclose(slopes, right, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [SCHEME, ji.EventCorrected()], ids=repr)
def test_second_derivatives_across_resets(scheme):
    found = jax.jacfwd(jax.jacfwd(lambda x: relay(x, scheme)[0]))(RELAY)
    np.testing.assert_allclose(found, jax.hessian(relay_exact)(RELAY), atol=1e-11)


@pytest.mark.slow
def test_a_hidden_friction_stops_a_block():
    """At v0 / (mu g), at the place v0^2 / (2 mu g), for good."""
    mu = 0.3
    block = ji.Problem(lambda t, q, v, args: -args * G * (2 * hidden(v) - 1), switches=lambda t, q, v, args: v)
    value, dq, dv, status = derivatives(block, [0.0], [1.0], ("v0", "args"), t1=1.0, args=mu)
    np.testing.assert_allclose([value["q"][0], value["v"][0]], [1 / (2 * mu * G), 0.0], atol=1e-14)
    np.testing.assert_allclose([dq["v0"], dq["args"]], [1 / (mu * G), -1 / (2 * mu**2 * G)], atol=1e-12)
    np.testing.assert_allclose([dv["v0"], dv["args"]], 0, atol=1e-12)
    assert status == 0


@pytest.mark.slow
def test_what_is_stated_and_found_is_one_surface():
    """Friction that the search sees beside a jump that it does not; both are stated, in one array."""
    mu, drag = 0.3, 1.0
    force = lambda t, q, v, args: -args * G * jnp.sign(v) - drag * hidden(q - 0.1)
    block = ji.Problem(force, switches=lambda t, q, v, args: jnp.concatenate([q - 0.1, v]))
    value, dq, _, status = derivatives(block, [0.0], [1.0], ("v0", "args"), t1=1.0, args=mu)
    place = lambda x: 0.1 + (x[0] ** 2 - 0.2 * x[1] * G) / (2 * (x[1] * G + drag))
    x = jnp.array([1.0, mu])
    assert value["q"][0] == pytest.approx(float(place(x)), abs=1e-12) and status == 0
    np.testing.assert_allclose([dq["v0"], dq["args"]], jax.grad(place)(x), atol=1e-11)


@pytest.mark.slow
def test_the_continuation_beyond_a_surface_keeps_the_order_and_second_derivatives():
    """Of a force that is not linear: the same as where the search sees the jump, to the tolerance."""
    of = lambda step: lambda t, q, v, args: -step(q) - 0.3 * q * q * (1 - step(q))
    seen = lambda x: jnp.where(x > 0, jnp.ones_like(x), jnp.zeros_like(x))
    stated, found = ji.Problem(of(hidden), switches=PLACE), ji.Problem(of(seen))
    call = {"t1": 1.5, "steps": 2, "scheme": SCHEME, "save": "final"}
    place = lambda problem: lambda x: ji.solve(problem, x[:1], x[1:], **call).q[-1, 0]
    x = jnp.array([-0.9, 1.1])
    np.testing.assert_allclose(jax.jacfwd(place(stated))(x), jax.jacfwd(place(found))(x), atol=1e-9)
    second = [jax.jacfwd(jax.jacfwd(place(problem)))(x) for problem in (stated, found)]
    np.testing.assert_allclose(*second, atol=1e-8)


@pytest.mark.slow
def test_beside_too_many_others_the_stated_ones_are_located():
    kinks = lambda q: sum(0.1 * jnp.maximum(q - 0.1 * i - 0.03, 0.0) for i in range(10))
    stated = ji.Problem(lambda t, q, v, args: -hidden(q) - kinks(q), switches=PLACE)
    _, dq, dv, status = derivatives(stated, [-1.0], [1.0], ("q0", "v0"), t1=1.5)
    # up to 0 nothing acts: a shift of the start is one in time. Kinks that are not located cost derivatives a part of a
    # substep: 2e-5 here, while the jump that is stated is of order 1
    _, of_start, of_speed, _ = derivatives(stated, [0.0], [1.0], ("v0", "t1"), t1=0.5)
    np.testing.assert_allclose([dq["q0"], dv["q0"]], [of_start["t1"], of_speed["t1"]], atol=2e-4)
    np.testing.assert_allclose(dq["v0"], of_start["v0"] + of_start["t1"], atol=2e-4)
    assert status == 0


@pytest.mark.slow
def test_a_jump_on_joints_is_that_of_the_angle():
    """A pendulum as a bob on a rod, with a wind on one side."""
    wind = lambda x, a: jnp.where(x > 0, -a, jnp.zeros_like(a))
    rod = ji.Problem(
        lambda t, q, v, a: jnp.stack([wind(q[0], a), -G + 0 * q[0]]), joints=lambda t, q, a: (q @ q - 1)[None]
    )
    angle = ji.Problem(lambda t, q, v, a: -G * jnp.sin(q) + jnp.cos(q) * wind(q, a))
    start, options = -0.8, {"t1": 2.0, "args": 1.0}
    of_rod = derivatives(rod, [np.sin(start), -np.cos(start)], [0.0, 0.0], ("args",), **options)
    of_angle = derivatives(angle, [start], [0.0], ("args",), **options)
    q = of_angle[0]["q"][0]
    assert of_rod[3] == of_angle[3] == 0
    np.testing.assert_allclose(of_rod[0]["q"], [np.sin(q), -np.cos(q)], atol=1e-7)
    np.testing.assert_allclose(of_rod[1]["args"][0], np.cos(q) * of_angle[1]["args"], atol=1e-7)


# resets


@pytest.mark.slow
def test_a_ball_that_is_turned_by_a_reset():
    """As by a constraint with restitution; backwards in a bounded number of trials."""
    fall, scheme = lambda t, q, v, args: -G + 0 * q, ji.EventDriven(trials=40)
    ball = ji.Problem(fall, switches=PLACE, reset=lambda t, q, v, k, args: -args * v)
    place = lambda x: ji.solve(ball, x[:1], x[1:2], t1=1.0, steps=2, args=x[2], scheme=scheme, save="final").q[-1, 0]

    def exact(x):
        down = jnp.sqrt(x[1] ** 2 + 2 * G * x[0])
        rest = 1.0 - (x[1] + down) / G
        return x[2] * down * rest - G * rest**2 / 2

    x = jnp.array([1.0, 0.1, 0.8])
    assert float(place(x)) == pytest.approx(float(exact(x)), abs=1e-12)
    np.testing.assert_allclose(jax.grad(place)(x), jax.grad(exact)(x), atol=1e-11)


@pytest.mark.slow
def test_a_reset_that_lifts_a_body_off_its_floor():
    """A block slides on a floor, is thrown up at x = args, and lands without a bounce; lanes at their own places."""
    block = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * q[0], -G + 0 * q[0]]),
        lambda t, q, args: q[1:],
        switches=lambda t, q, v, args: q[:1] - args,
        reset=lambda t, q, v, k, args: v.at[1].set(2.0),
    )
    at = np.array([0.5, 0.8, 3.0])
    call = {"t1": 1.0, "steps": 2, "args": at, "args_axes": 0, "wrt": "args"}
    found = ji.sensitivities(block, np.zeros((3, 2)), np.tile([1.0, 0.0], (3, 1)), **call)
    rest = np.maximum(1 - at, 0)
    flies = (rest > 0) & (rest < 4 / G)
    assert np.all(found.trusted)
    np.testing.assert_allclose(found.value["q"][:, 1], np.where(flies, 2 * rest - G * rest**2 / 2, 0), atol=1e-9)
    np.testing.assert_allclose(found.jacobian["q"]["args"][:, 1], np.where(flies, G * rest - 2, 0), atol=1e-8)


@pytest.mark.slow
def test_a_reset_at_the_end_or_at_a_touch_has_no_trusted_derivative():
    throw = lambda t, q, v, args: -1.0 + 0 * q
    turned = ji.Problem(throw, switches=lambda t, q, v, args: q - args, reset=lambda t, q, v, k, args: -v)
    run = lambda at, t1, by="v0": derivatives(turned, [0.0], [1.0], (by,), t1=t1, args=at, steps=1)[3]
    assert run(0.5, 1.8) == run(0.375, 0.5) == run(0.0, 1.0, "q0") == Status.DERIVATIVE_JUMP
    # another velocity leads away from the surface too
    assert run(0.4, 1.5) == run(0.6, 1.8) == run(0.0, 1.0) == 0


@pytest.mark.slow
def test_a_reset_through_the_end_of_a_motion_stops_it_and_is_where_it_is_between_rows():
    """Of a problem without constraints: run again from the row before."""
    moved = ji.Problem(lambda t, q, v, args: 0 * q, switches=PLACE, reset=lambda t, q, v, k, args: (q + 3, v))
    run = lambda **options: ji.solve(moved, [-1.0], [1.0], t1=4.0, steps=3, **options)
    found = run(until=lambda t, q, v, args: q[0] - 2)
    assert found.stopped and found.t[-1] == pytest.approx(1.0, abs=1e-12) and found.q[-1, 0] == pytest.approx(3.0)
    found = run().at([0.5, 0.999, 1.001, 2.0], moved)
    np.testing.assert_allclose(found.q[:, 0], [-0.5, -0.001, 3.001, 4.0], atol=1e-12)


FALL = lambda t, q, v, args: -G + 0 * q
BACK = lambda t, q, v, k, args: -v


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"switches": 3}, "switches must be a function"),
        ({"switches": PLACE, "reset": 3}, "reset must be a function"),
        ({"reset": BACK}, "reset happens where a surface is crossed"),
        ({"switches": lambda t, q, v, args: q[0]}, r"must return shape \(k,\), got \(\)"),
        ({"switches": lambda t, q, v, args: q > 0}, "must return real numbers"),
        ({"switches": lambda t, q, v, args: jnp.ones(1)}, "must depend on t, q or v"),
        ({"switches": lambda t, q, v, args: 0 * q}, r"args\)\[0\] is zero at the start and beside it"),
        ({"switches": lambda t, q, v, args: jnp.log(-q)}, r"args\)\[0\] is not finite"),
        ({"switches": PLACE, "reset": lambda t, q, v, k, args: v[0]}, r"v or \(q, v\), .*\(1,\), got \(\) at k = 0"),
        ({"switches": PLACE, "reset": BACK, "joints": lambda t, q, args: q - 1}, "reset: not with joints"),
        ({"switches": PLACE, "reset": BACK}, r"MoreauJean makes no resets: use EventDriven\(\) or EventCorrected\(\)"),
    ],
)
def test_wrong_statements_are_errors_in_words(fields, words):
    scheme = {"scheme": ji.MoreauJean(), "h": 0.01} if "Moreau" in words else {"scheme": SCHEME}
    with pytest.raises((TypeError, ValueError), match=words):
        ji.solve(ji.Problem(FALL, **fields), [1.0], [0.0], t1=0.1, **scheme)


@pytest.mark.slow
def test_a_reset_on_a_surface_of_place_and_velocity():
    """By `EventCorrected`, of second order.

    With q = r cos p, v = -3 r sin p the surface is tan p = 1/0.6; from there tan p falls to a of that, r^2 to its
    square's share, and so on.
    """
    reset, oblique = lambda t, q, v, k, args: args * v, lambda t, q, v, args: q + 0.2 * v
    problem = ji.Problem(lambda t, q, v, args: -9 * q, switches=oblique, reset=reset)

    def exact(q0, a):
        at = jnp.arctan(1 / 0.6)
        behind = jnp.arctan(a * jnp.tan(at))
        resets = 1 + jnp.floor((3.0 - at) / (at - behind))
        radius = q0 * (jnp.cos(at) ** 2 + (a * jnp.sin(at)) ** 2) ** (resets / 2)
        angle = behind + 3.0 - at - (resets - 1) * (at - behind)
        return jnp.stack([radius * jnp.cos(angle), -3 * radius * jnp.sin(angle)])

    options = {"t1": 1.0, "args": 0.6, "wrt": ("q0", "args"), "steps": 1000, "scheme": ji.EventCorrected()}
    found = ji.sensitivities(problem, [1.0], [0.0], **options)
    right, slopes = jax.jit(exact)(1.0, 0.6), jax.jit(jax.jacfwd(exact, (0, 1)))(1.0, 0.6)
    assert found.trusted
    own = [[found.value[x].item(), *(found.jacobian[x][by].item() for by in ("q0", "args"))] for x in "qv"]
    # h^2 times the squares of a frequency of 3
    np.testing.assert_allclose(own, np.column_stack([right, *slopes]), rtol=0, atol=1e-4)


def test_switches_and_resets_are_part_of_a_problem():
    problem = ji.Problem(FALL, switches=PLACE, reset=BACK)
    assert "switches=" in repr(problem) and "reset=" in repr(problem) and "switches" not in repr(ji.Problem(FALL))
    other = problem.replace(reset=lambda t, q, v, k, args: -0.5 * v)
    assert other.switches is PLACE and jax.tree.structure(other) != jax.tree.structure(problem)
    assert sources(other)["reset"] != sources(problem)["reset"] and "reset" not in sources(ji.Problem(FALL))


def test_a_force_without_a_slope_at_zero_has_values():
    """q'' = -sqrt(max(q, 0)) and q'' = -sqrt(|q|), a root of what is chosen and a choice of roots,
    conserve energy from below and from above."""

    def force(t, q, v, args):
        return -jnp.stack([jnp.sqrt(jnp.maximum(q[0], 0)), jnp.where(q[1] > 0, jnp.sqrt(q[1]), jnp.sqrt(-q[1]))])

    q0, v0 = np.array([[-0.61, 0.4], [0.3, -0.45]]), np.array([[1.03, -0.9], [-1.0, 1.1]])
    found = ji.ensemble(ji.Problem(force), q0, v0, t1=1.5, steps=1, progress=False, scheme=ji.EventDriven())
    root = lambda q: np.stack([np.maximum(q[:, 0], 0) ** 1.5, np.sign(q[:, 1]) * np.abs(q[:, 1]) ** 1.5], 1)
    energy = lambda q, v: v**2 / 2 + 2 / 3 * root(q)
    np.testing.assert_allclose(energy(found.q[:, -1], found.v[:, -1]), energy(q0, v0), rtol=0, atol=1e-8)


@pytest.mark.slow
@either
def test_a_force_whose_slope_is_not_smooth_has_the_exact_derivative(switches):
    """q'' = -max(q, 0)^(3/2), as in the contact of Hertz, in contact and behind it: first q and v depend on t + q0/v0
    only. They were NaN: the second derivative is infinite at 0, and the force not finite beyond its surface.

    A body comes back with -v0 after a time T(v0) in contact, in proportion to v0^(-1/5): q = -q0 - v0 (t - T).
    """
    hertz = ji.Problem(lambda t, q, v, args: -(jnp.maximum(q, 0) ** 1.5), switches=switches)
    q0, v0 = -0.61, 1.03
    run = lambda t1: derivatives(hertz, [q0], [v0], ("q0", "v0"), t1=t1, steps=1)
    value, dq, dv, status = run(1.5)
    assert status == Status.OK
    q, v = (value[x].item() for x in "qv")
    np.testing.assert_allclose(
        [dq["q0"], dv["q0"]], [v / v0, -(q**1.5) / v0], rtol=0, atol=1e-7
    )  # a hundred tolerances
    value, dq, _, status = run(8.0)
    contact = 2 / v0 * (1.25 * v0**2) ** 0.4 * beta(0.4, 0.5) / 2.5
    assert status == Status.OK
    assert value["q"].item() == pytest.approx(-q0 - v0 * (8.0 - contact), abs=1e-7)
    np.testing.assert_allclose([dq["q0"], dq["v0"]], [-1, -(8.0 - 0.8 * contact)], rtol=1e-7, atol=0)


@pytest.mark.slow
@either
@pytest.mark.parametrize(("scheme", "steps"), [(ji.EventDriven(), 1), (ji.EventCorrected(), 97), (ji.MoreauJean(), 97)])
def test_a_force_without_a_slope_at_its_surface_has_no_trusted_derivative(scheme, steps, switches):
    """dq/dv0 was off by 7e6 and by 0.4, with a clean status; with steps, by some units,
    or .02 to .3 if the surface was not stated."""
    root = ji.Problem(lambda t, q, v, args: -jnp.sqrt(jnp.abs(q)), switches=switches)
    q0, v0 = np.array([[-0.61], [0.3]]), np.array([[1.03], [-1.0]])
    of = lambda problem: ji.sensitivities(problem, q0, v0, t1=1.5, steps=steps, wrt="v0", progress=False, scheme=scheme)
    assert of(root).status.tolist() == [Status.DERIVATIVE_JUMP] * 2
    if not isinstance(scheme, ji.MoreauJean):
        # off by 1e7 at a tolerance of 1e-12 as its surface is located
        weak = ji.Problem(lambda t, q, v, args: -jnp.sign(q) * jnp.abs(q) ** 0.9, switches=switches)
        assert of(weak).status.tolist() == [Status.DERIVATIVE_JUMP] * 2


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [SCHEME, ji.EventCorrected()], ids=repr)
def test_a_stated_surface_beside_more_jumps_than_are_located(scheme):
    """Only what is stated is located then: dv/dv0 is the ratio of the accelerations behind and before it,
    with friction too."""
    jump = lambda t, q, v, args: (
        -1.0 - jnp.where(v[0] > 0.5, 1.0, 0.0) + sum(jnp.where(q[0] > 20 + k, 1.0, 0.0) for k in range(9))
    )
    stated = {"switches": lambda t, q, v, args: v[:1] - 0.5}
    call = {"t1": 0.4, "h": 0.01, "wrt": "v0", "scheme": scheme}
    found = ji.sensitivities(ji.Problem(lambda *x: jump(*x)[None], **stated), [0.0], [1.0], **call)
    assert found.trusted and found.jacobian["v"]["v0"].item() == pytest.approx(1 / 2, abs=1e-9)
    if isinstance(scheme, ji.EventCorrected):
        force = lambda t, q, v, args: jnp.stack([jump(t, q, v, args), -10 + 0 * q[1]])
        rubs = {"slip": lambda t, q, v, args: v[:1], "friction": 0.02}
        block = ji.Problem(force, lambda t, q, args: q[1:], **stated, **rubs)
        found = ji.sensitivities(block, [0.0, 0.0], [1.0, 0.0], **call)
        assert found.trusted and found.jacobian["v"]["v0"][0, 0] == pytest.approx(1.2 / 2.2, abs=1e-12)


@pytest.mark.parametrize("scheme", LOCATED, ids=lambda x: type(x).__name__)
def test_resets_that_accumulate_fail_where_they_do(scheme):
    """A ball by a reset, as users of other libraries write it, fell through the floor when its bounces had died out,
    with a clean status."""
    e, steps = 0.5, {} if scheme.traits.order is None else {"steps": 400}
    weight = lambda t, q, v, args: jnp.array([-9.81])
    ball = ji.Problem(weight, switches=lambda t, q, v, args: q, reset=lambda t, q, v, k, args: (q, -args * v))
    gap = ji.Problem(weight, lambda t, q, args: q, restitution=e)
    fall = (2 / 9.81) ** 0.5
    end = fall * (1 + 2 * e / (1 - e))  # of the last bounce
    for t1, fails in ((1.2, False), (1.6, True)):
        found = ji.solve(ball, [1.0], [0.0], t1=t1, args=e, scheme=scheme, **steps)
        assert bool(ji.Status(int(found.status)) & ji.Status.TRIALS_EXHAUSTED) == fails == bool(found.failed)
        if fails:
            # of flights that are seen, the last is as short as a step of h = .004
            assert end - 0.02 < found.failed_at < end + 0.02
        else:
            exact = ji.solve(gap, [1.0], [0.0], t1=t1, scheme=ji.EventDriven(1e-11, 1e-11))
            np.testing.assert_allclose(found.q[-1], exact.q[-1], atol=1e-3)  # EventCorrected, of second order


@pytest.mark.parametrize("scheme", LOCATED, ids=lambda x: type(x).__name__)
def test_a_switch_without_slope_where_it_is_crossed_fails(scheme):
    """Of q^3 the time of the crossing is known to the third root of an error; of q it is known."""
    steps = {} if scheme.traits.order is None else {"steps": 400}
    for power, fails in ((1, False), (3, True)):
        falls = ji.Problem(lambda t, q, v, args, n=power: -jnp.where(q**n > 0, 1.0, 3.0))
        found = ji.solve(falls, [1.0], [0.0], t1=2.0, scheme=scheme, **steps)
        assert bool(found.failed) == fails == bool(ji.Status(int(found.status)) & ji.Status.CONTACTS_NOT_SOLVED)
