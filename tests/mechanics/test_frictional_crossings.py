"""Surfaces at which a force jumps, located by `EventCorrected` where contacts rub.

A block on a floor, q = (x, gap). Where its forces are constant between events the motion is exact up to round-off,
whatever h.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow

SCHEME, G = ji.EventCorrected(), 10.0


def block(pull, weight=lambda t, q, v, args: G, **options):
    """Under a pull (t, q, v, args) along the floor and a weight, with mu = 0.3 unless args say."""
    return ji.Problem(
        lambda t, q, v, args: jnp.stack([pull(t, q, v, args), -weight(t, q, v, args) + 0 * t]),
        lambda t, q, args: q[1:], slip=lambda t, q, v, args: v[:1], **({"friction": 0.3} | options),
    )  # fmt: skip


def of_block(problem, v0, t1, steps, args, wrt, e=0.0):
    return ji.sensitivities(
        problem, [0.0, 0.0], [v0, 0.0], t1=t1, steps=steps, args=args, e=e, wrt=wrt, mode="forward", scheme=SCHEME
    )


@pytest.mark.slow
@pytest.mark.parametrize("steps", [37, 12])
def test_a_drag_beyond_a_speed_and_a_brake_at_a_place(steps):
    """Slows down by 3 + drag until v = limit, then by 3, from a place on by 3 + brake, and rests."""

    def exact(v0, limit, drag, place, brake):
        begin = (v0**2 - limit**2) / (2 * (3.0 + drag))
        return place + (limit**2 - 6.0 * (place - begin)) / (2 * (3.0 + brake))

    args, v0 = {"brake": 2.0, "drag": 1.0, "limit": 1.8, "place": 0.4}, 2.0

    def pull(t, q, v, args):
        return -jnp.where(q[0] > args["place"], args["brake"], 0.0) - jnp.where(v[0] > args["limit"], args["drag"], 0.0)

    found = of_block(block(pull), v0, 1.5, steps, args, ("v0", "args"))
    by_v0, *by_args = jax.grad(exact, range(5))(v0, 1.8, 1.0, 0.4, 2.0)
    slopes = found.jacobian["q"]
    assert found.value["q"][0] == pytest.approx(float(exact(v0, 1.8, 1.0, 0.4, 2.0)), abs=1e-12)
    own = [slopes["v0"][0, 0], *(slopes["args"][name][0] for name in ("limit", "drag", "place", "brake"))]
    np.testing.assert_allclose(own, [by_v0, *by_args], rtol=0, atol=1e-12)
    assert found.trusted


@pytest.mark.parametrize(
    ("pull", "static", "moves"),
    [slow(5.0, None, 2.0), slow(2.9, None, 0.0), slow(3.9, 0.4, 0.0), slow(4.1, 0.4, 1.1)],
)
def test_a_pull_that_sets_in_breaks_a_block_away_or_does_not(pull, static, moves):
    """At t = 1/2, against 3 of slip, and up to 10 ``static`` at rest; ``moves`` is the acceleration behind it."""
    problem = block(lambda t, q, v, args: jnp.where(t > args["begin"], args["pull"], 1.0), static_friction=static)
    found = of_block(problem, 0.0, 1.5, 7, {"begin": 0.5, "pull": pull}, "args")
    assert found.value["q"][0] == pytest.approx(moves / 2, abs=1e-12)
    assert found.jacobian["q"]["args"]["begin"][0] == pytest.approx(-moves, abs=1e-12)
    assert found.jacobian["v"]["args"]["pull"][0] == pytest.approx(1.0 if moves else 0.0, abs=1e-12)
    assert found.trusted


@pytest.mark.slow
def test_a_pull_that_is_just_as_large_as_friction_is_told():
    problem = block(lambda t, q, v, args: jnp.where(t > args["begin"], args["pull"], 1.0))
    found = of_block(problem, 0.0, 1.5, 7, {"begin": 0.5, "pull": 3.0}, "args")
    assert Status(int(found.status)) == Status.DERIVATIVE_EVENTS


@pytest.mark.slow
def test_a_lift_that_sets_in_takes_a_block_off():
    """It slides with v0 - 3 t, and flies from t = begin on."""
    lift = lambda t, q, v, args: jnp.where(t > args, -2.0, G)
    found = of_block(block(lambda t, q, v, args: 0 * t, lift), 2.0, 1.0, 9, 0.4, "args")
    np.testing.assert_allclose(found.value["q"], [2 * 0.4 - 1.5 * 0.4**2 + 0.8 * 0.6, 0.6**2], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.jacobian["q"]["args"], [-3 * 0.6, -2 * 0.6], rtol=0, atol=1e-12)
    assert found.trusted


EXACT = {  # place of rest behind a reset at a place, or at a speed
    "place": lambda v0, place: place + (v0**2 - 6.0 * place) / 4 / 6,
    "speed": lambda v0, speed: (v0**2 - speed**2) / 6 + speed**2 / 4 / 6,
}


@pytest.mark.slow
@pytest.mark.parametrize("at", EXACT)
def test_a_reset_of_a_block_that_slides(at):
    """At a place, or at a speed, it loses half of its velocity."""
    exact = EXACT[at]
    problem = block(
        lambda t, q, v, args: 0 * t, switches=lambda t, q, v, args: (q if at == "place" else v)[:1] - args,
        reset=lambda t, q, v, k, args: v * jnp.array([0.5, 1.0]),
    )  # fmt: skip
    found = of_block(problem, 2.0, 1.0, 9, 0.4, ("v0", "args"))
    own = [found.value["q"][0], found.jacobian["q"]["v0"][0, 0], found.jacobian["q"]["args"][0]]
    np.testing.assert_allclose(own, [exact(2.0, 0.4), *jax.grad(exact, (0, 1))(2.0, 0.4)], rtol=0, atol=1e-12)
    assert found.trusted


def governed(limit, brake, v0, t1=1.2):
    """Place and speed of a block that 1.5 + 4 t accelerates up to the limit, and from brake = 1.5 + 4 t on again."""
    reached = (jnp.sqrt(2.25 + 8 * (limit - v0)) - 1.5) / 4
    freed = (brake - 1.5) / 4
    way = v0 * reached + 0.75 * reached**2 + 2 * reached**3 / 3 + limit * (t1 - reached)
    return jnp.stack([way + 2 * (t1 - freed) ** 3 / 3, limit + 2 * (t1 - freed) ** 2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "steps"), [slow(SCHEME, 50), (ji.EventDriven(1e-11, 1e-11, order=5), 3)], ids=["corrected", "driven"]
)
def test_a_governor_holds_a_speed(scheme, steps):
    """A pull and friction accelerate until v = limit; a brake beyond that holds the block there, until the pull is
    stronger."""
    pull = lambda t, q, v, a: 2.5 + 4.0 * t - a["brake"] * jnp.where(v[0] > a["limit"], 1.0, 0.0)
    found = ji.sensitivities(
        block(pull, friction=0.1), [0.0, 0.0], [0.1, 0.0], args={"limit": 0.3, "brake": 5.0}, steps=steps, t1=1.2,
        scheme=scheme, wrt=("v0", "args"), mode="forward",
    )  # fmt: skip
    assert found.trusted
    right = (0.3, 5.0, 0.1)
    # forces are linear in time, and paths of order 2 exact
    np.testing.assert_allclose([found.value[x][0] for x in "qv"], governed(*right), rtol=0, atol=1e-10)
    slopes = [
        [*(found.jacobian[x]["args"][n][0] for n in ("limit", "brake")), found.jacobian[x]["v0"][0, 0]] for x in "qv"
    ]
    exact = np.stack(jax.jit(jax.jacfwd(governed, (0, 1, 2)))(*right), axis=1)
    np.testing.assert_allclose(slopes, exact, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.02, 0.5])
def test_static_friction_breaks_while_another_block_is_held_by_a_sign(strength):
    """A pull p t on one block grows beside .3 c, by which a brake c sign(v) holds another; exact, where the force of
    one side was off by a percent."""
    first, second, t1 = 3.0, 2.0, 4.03

    def exact(args):
        held = 0.3 * args["c"]
        begin, rest = (first - held) / args["p"], held - second
        fly = t1 - begin
        return args["p"] * (t1**3 / 6 - begin**2 * t1 / 2 + begin**3 / 3) + rest * fly**2 / 2

    def force(t, q, v, args):
        brake = args["c"] * jnp.sign(v[2])
        return jnp.stack([args["p"] * t + brake, -G + 0 * t, 0.3 * args["c"] - brake])

    rubs = {"slip": lambda t, q, v, args: v[:1], "friction": second / G, "static_friction": first / G}
    problem, args = ji.Problem(force, lambda t, q, args: q[1:2], **rubs), {"p": 1.0, "c": strength}
    call = {"t1": t1, "steps": 50, "args": args, "wrt": "args", "scheme": SCHEME}
    found = ji.sensitivities(problem, np.zeros(3), np.zeros(3), **call)
    assert found.trusted and found.value["q"][0] == pytest.approx(float(exact(args)), abs=1e-13)
    right = jax.jacfwd(exact)(args)
    for name, slope in right.items():
        assert found.jacobian["q"]["args"][name][0] == pytest.approx(float(slope), abs=1e-12)


@pytest.mark.slow
def test_a_brake_with_a_sign_on_a_block_that_rubs_is_right_or_told():
    """Friction and brake end at the same time, on one surface: at rest either of them holds the block,
    against a pull only both."""
    pull = lambda t, q, v, a: 2.0 * jnp.sin(3 * t) - a * jnp.sign(v[0])
    signed = ji.Problem(lambda t, q, v, a: (pull(t, q, v, a) - jnp.sign(v[0]))[None])
    right = ji.solve(signed, [0.0], [1.2], t1=1.6, args=1.6, steps=3, scheme=ji.EventDriven(1e-11, 1e-11))
    found = ji.solve(block(pull, friction=0.1), [0.0, 0.0], [1.2, 0.0], t1=1.6, args=1.6, steps=200, scheme=SCHEME)
    assert int(found.status) & Status.EVENTS_UNRESOLVED
    assert abs(found.q[-1, 0] - right.q[-1, 0]) < 1e-4  # h^2 = 6.4e-5


def along(t, q, v, a):
    smooth = a["push"] * jnp.sin(5 * t) + a["bias"] - a["k"] * q[0] - a["d"] * v[0]
    smooth -= jnp.where(v[0] > a["limit"], a["drag"], 0.0)
    return smooth + jnp.where(q[0] > a["place"], a["jump"], 0.0) + jnp.where(t > a["time"], a["more"], 0.0)


def pressing(t, q, v, a):
    return G + a["swing"] * jnp.sin(3 * t) + jnp.where(q[0] > a["edge"], a["load"], 0.0)


@pytest.mark.slow
def test_random_blocks_are_those_with_friction_as_a_force():
    """By `EventDriven`, which slides on v = 0 where friction is a force with a sign; in state and Jacobian of second
    order, and all that are trusted right."""
    lanes, draw = 128, np.random.default_rng(0).uniform
    ranges = {
        "push": (0, 8), "bias": (-3, 3), "k": (0, 9), "d": (0, 0.5), "place": (-0.3, 0.3), "jump": (-5, 5),
        "time": (0, 1.6),
        "more": (-5, 5), "limit": (0.1, 1), "drag": (-5, 5), "swing": (-3, 3), "edge": (-0.3, 0.3), "load": (-4, 4),
        "mu": (0.05, 0.5),
    }  # fmt: skip
    args = {name: draw(*ends, lanes) for name, ends in ranges.items()}
    q0, v0 = draw(-0.5, 0.5, (lanes, 1)), draw(-2, 2, (lanes, 1))
    rubbing = block(along, pressing, friction=lambda args: args["mu"])
    signed = ji.Problem(lambda t, q, v, a: along(t, q, v, a)[None] - a["mu"] * pressing(t, q, v, a) * jnp.sign(v))
    call = {"t1": 1.6, "args": args, "args_axes": 0, "wrt": ("q0", "v0", "args"), "mode": "forward", "progress": False}

    def of(problem, x, y, steps, scheme):
        found = ji.sensitivities(problem, x, y, steps=steps, scheme=scheme, **call)
        trees = [found.value, *(found.jacobian[output] for output in ("q", "v"))]
        # of the block along the floor
        parts = [np.asarray(x)[:, 0].reshape(lanes, -1)[:, :1] for tree in trees for x in jax.tree.leaves(tree)]
        return np.concatenate(parts, axis=1), np.asarray(found.trusted)

    right, known = of(signed, q0, v0, 4, ji.EventDriven(1e-11, 1e-11))
    size, errors = 1 + np.max(np.abs(right), axis=1), []
    for steps in (400, 1600):
        found, trusted = of(rubbing, np.hstack([q0, 0 * q0]), np.hstack([v0, 0 * v0]), steps, SCHEME)
        errors.append(np.max(np.abs(found - right), axis=1) / size)
    both = known & trusted
    assert np.mean(trusted) > 0.9 and np.sum(both) > 0.8 * lanes
    # of the second order h^2 = 1e-6, times what a motion that is nearly stopped makes of it
    assert np.max(errors[1][both]) < 5e-3
    assert np.log(np.median(errors[0][both]) / np.median(errors[1][both])) / np.log(4) > 1.8
