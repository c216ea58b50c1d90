"""Static friction above that of slip: contacts that break away, stay, or turn round,
against motions whose events are located.

`MoreauJean` is of first order, in states and Jacobians: `test_friction` has a closed form. Here are several events in a
row, groups of contacts and space.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaximpact as ji
from support.breadth import slow
from support.sliding_bodies import FEET, IN_SPACE
from support.static_friction import BLOCK, MOTIONS, NUMBERS, errors, exact

SCHEME, G = ji.MoreauJean(), 9.81
DOUBT = ji.Status.DERIVATIVE_EVENTS


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [SCHEME, ji.Maury()], ids=repr)
@pytest.mark.parametrize("name", MOTIONS)
def test_states_and_jacobians_converge_over_four_step_sizes(name, scheme):
    """Means over six neighbouring step numbers, a factor of 27 from the first to the last: order .85 at least,
    of which .1 is their scatter."""
    apart = []
    for n in (301, 903, 2709, 8127):
        some, found = zip(*(errors(name, scheme, steps) for steps in range(n, n + 12, 2)), strict=True)
        assert all(one.status & ~int(DOUBT) == 0 and (n < 8000 or one.trusted) for one in found)
        apart.append(np.mean(some, axis=0))
    assert np.all(np.log(apart[0] / apart[-1]) / np.log(27) > 0.85), apart
    assert np.all(apart[-1] < 5e-3 * np.array([1, 1 + np.max(np.abs(exact(name)[-1]))]))


FORCE = np.array([0.4, 0.449, 0.451, 0.6]) * G
START = ([0.0, 0.0], [0.0, 0.0])
RUBS = {"slip": lambda t, q, v, args: v[:1], "friction": 0.3}
CALL = {"t1": 0.5, "steps": 101, "args": NUMBERS | {"F": FORCE}, "scheme": SCHEME}
CALL["args_axes"] = dict.fromkeys(NUMBERS) | {"F": 0}


def test_a_block_at_rest_is_held_up_to_static_friction():
    """Beyond it slips from the start, x = (F - mu g) t^2 / 2 to O(h): each step's velocity is exact."""
    found = ji.ensemble(BLOCK, *START, **CALL)
    moved = np.where(FORCE > 0.45 * G, FORCE - 0.3 * G, 0)
    np.testing.assert_allclose(found.v[:, -1, 0], moved * 0.5, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.q[:, -1, 0], moved * 0.5**2 / 2, rtol=0, atol=2e-5)
    assert np.all(found.status == 0)


@pytest.mark.slow
def test_derivatives_where_static_friction_acts_and_where_it_does_not():
    found = ji.sensitivities(BLOCK, *START, wrt="args", **CALL)
    slips = FORCE > 0.45 * G
    np.testing.assert_allclose(found.jacobian["v"]["args"]["F"][:, 0], 0.5 * slips, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.jacobian["v"]["args"]["mu"][:, 0], -0.5 * G * slips, rtol=0, atol=1e-12)
    assert not np.any(found.jacobian["v"]["args"]["static"]) and np.all(found.trusted)


@pytest.mark.parametrize("scheme", [SCHEME, slow(ji.Maury())], ids=repr)
def test_what_comes_to_rest_stays_up_to_static_friction_wherever_it_stops_in_a_step(scheme):
    """Of a block that slides up an incline: it stays or turns round at every one of 16 neighbouring step numbers."""
    pull = np.array([-0.31, -0.44, -0.46, -0.6]) * G
    args = CALL | {"t1": 1.0, "args": NUMBERS | {"F": pull}}
    stop = 3 / (0.3 * G - pull)
    back = np.where(pull < -0.45 * G, (pull + 0.3 * G) * (1 - stop), 0)
    for steps in range(211, 243, 2):
        found = ji.ensemble(BLOCK, START[0], [3.0, 0.0], **args | {"steps": steps, "scheme": scheme})
        np.testing.assert_allclose(found.v[:, -1, 0], back, rtol=0, atol=0.05)  # g h


@pytest.mark.slow
def test_a_motion_that_only_just_breaks_away_is_told():
    """A table shaken at A w^2 from .9 to 1.1 of static g; the nearest are a step's change of force away,
    the others not."""

    def status(near):
        args = NUMBERS | {"A": 0.45 * G / 7.0**2 * near}
        call = {"t1": 0.5, "steps": 101, "args": args, "scheme": SCHEME, "sensitivity": "corrected"}
        return int(ji.solve(BLOCK, [0.0, 0.0], [args["A"] * 7.0, 0.0], **call).status)

    assert [status(near) for near in (0.9, 0.99999, 1.00001, 1.1)] == [0, DOUBT, DOUBT, 0]


@pytest.mark.slow
def test_another_dry_friction_beside_it_is_told_where_both_hold_together():
    """A block held up to 1.5 by the floor and .7 by a force -.7 sign(v) breaks away at 2.2; steps take that force as
    zero at rest, and break away at 1.7."""

    def status(belt):
        force = lambda t, q, v, args: jnp.stack([3 * jnp.sin(2 * t) - 0.7 * jnp.sign(v[0] - belt), -10 + 0 * t])
        floor = ji.Problem(force, lambda t, q, args: q[1:], **RUBS | {"friction": 0.1, "static_friction": 0.15})
        found = ji.solve(floor, *START, t1=2.5, steps=100, scheme=SCHEME)
        return int(found.status) & ji.Status.EVENTS_UNRESOLVED

    assert status(0.0) and not status(0.3)


def test_equal_coefficients_are_one():
    """Through stops, breaks and reversals of the shaken table, to the rounding of solutions
    that are solved for twice."""
    call = {"t1": 2.0, "steps": 1001, "scheme": SCHEME, "args": NUMBERS | {"A": 0.1, "mu": 0.3, "static": 0.3}}
    problems = BLOCK, BLOCK.replace(static_friction=None)
    found, expected = (ji.solve(problem, [0.0, 0.0], [0.5, 0.0], save=1, **call) for problem in problems)
    np.testing.assert_allclose(found.q, expected.q, rtol=0, atol=1e-12)


def test_a_body_that_bounces_comes_to_rest_and_stays():
    """On an incline between the two coefficients, with restitution: by impacts without number,
    at each of which it slips."""
    args = NUMBERS | {"F": 0.4 * G}
    found = ji.solve(BLOCK, [0.0, 0.01], [-1.5, 0.0], t1=2.0, steps=2001, args=args, e=0.5, scheme=SCHEME)
    assert abs(found.v[-1, 0]) < 1e-12 and abs(found.q[-1, 0] - found.q[-400, 0]) < 1e-12


PULL, LATE = 8.0, 0.5 * G / 8.0  # F t = (.4 + .6) g / 2


@pytest.mark.slow
def test_feet_of_one_body_break_away_together():
    """v = F (T^2 - t^2)/2 - mu g (T - t), t where F t = static g, whose derivatives by F, mu and static friction of
    each foot are known, to O(h)."""
    of_feet = {"friction": np.array([[0.3, 0.3]]), "static_friction": np.array([[0.4, 0.6]])}
    sled = FEET.replace(
        force=lambda t, q, v, args: jnp.stack([args["F"] * t, -G, 0.0]), static_friction=jnp.array([0.4, 0.6])
    )
    call = {"t1": 1.0, "steps": 1001, "scheme": SCHEME, "args": {"F": PULL}, "wrt": ("args", *of_feet)}
    found = ji.sensitivities(sled, [0.0] * 3, [0.0] * 3, **call, **of_feet)
    jump = -(0.5 - 0.3) * G  # of the acceleration, by the time of the break
    speed = PULL * (1 - LATE**2) / 2 - 0.3 * G * (1 - LATE)
    assert found.value["v"][0] == pytest.approx(speed, abs=2e-3)  # jump h
    slopes = found.jacobian["v"]
    assert slopes["args"]["F"][0] == pytest.approx((1 - LATE**2) / 2 - jump * LATE / PULL, rel=5e-3)
    np.testing.assert_allclose(slopes["friction"][0], -G * (1 - LATE) / 2, rtol=5e-3)
    np.testing.assert_allclose(slopes["static_friction"][0], jump * G / PULL / 2, rtol=5e-3)


@pytest.mark.slow
def test_in_space_a_block_breaks_away_across_the_force_that_held_it():
    """With a mass matrix that is not diagonal; against differences of integrated equations,
    errors a ninth for nine times the steps."""
    mass = np.array([[1.0, 0.3, 0.2], [0.3, 2.0, 0.1], [0.2, 0.1, 1.5]])
    known = {"r": 6.0, "a": 0.5, "b": 1.0, "c": 3.0, "g": G, "mu": 0.3, "static": 0.5}
    t1 = 1.2

    def force(t, args, m=np):
        return m.stack([args["r"] * t + args["a"], args["b"] + args["c"] * t**2, 0 * t - args["g"]])

    def slide(u, t, args):
        """Acceleration (2,) of a block that slips along u."""
        matrix = np.concatenate([mass[:, :2], np.append(args["mu"] * u, -1)[:, None]], axis=1)
        return np.linalg.solve(matrix, force(t, args))[:2]

    def exact(args):
        square = lambda t, y: np.hypot(*force(t, args)[:2]) - args["static"] * args["g"]
        begin = solve_ivp(lambda t, y: [0], (0, t1), [0], events=square, rtol=1e-12, max_step=0.01).t_events[0][0]
        u = np.array([1.0, 0.0])
        for _ in range(200):
            u = slide(u, begin, args)
            u /= np.hypot(*u)
        little = 1e-7
        y = np.concatenate([slide(u, begin, args) * little**2 / 2, slide(u, begin, args) * little])
        rates = lambda t, y: [*y[2:], *slide(y[2:] / np.hypot(*y[2:]), t, args)]
        return solve_ivp(rates, (begin + little, t1), y, method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1]

    problem = IN_SPACE.replace(
        force=lambda t, q, v, args: force(t, args, jnp), mass=mass, static_friction=lambda args: args["static"]
    )
    step = 1e-5
    sides = [[exact(known | {key: known[key] + s}) for key in known] for s in (step, -step)]
    expected = (np.array(sides[0]) - np.array(sides[1])).T / (2 * step)
    apart = []
    for n in (303, 2727):
        call = {"t1": t1, "steps": n, "args": known, "scheme": SCHEME}
        found = ji.sensitivities(problem, [0.0] * 3, [0.0] * 3, wrt="args", **call)
        parts = [np.stack([found.jacobian[x]["args"][key] for key in known], axis=1)[:2] for x in "qv"]
        apart.append(np.max(np.abs(np.concatenate(parts) - expected)))
    assert found.trusted and apart[1] < 2e-3 and apart[1] < 0.2 * apart[0]


def rough(**changes):
    return ji.Problem(lambda t, q, v, args: -v, lambda t, q, args: q[1:2], **RUBS | changes)


RANGE, ORDER = "static_friction must be finite and >= 0", "static_friction of constraint 0 .* not below friction"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"slip": None, "friction": None, "static_friction": 0.3}, "static_friction needs the tangential velocity"),
        ({"friction": None, "static_friction": 0.3},
         "friction=0.3, that of contacts which slip besides static_friction"),
        ({"static_friction": "rough"}, "static_friction must be a number"),
        ({"static_friction": -0.1}, RANGE),
        ({"static_friction": np.nan}, RANGE),
        ({"static_friction": [0.4, 0.5]}, r"static_friction must be one number or one per contact, shape \(1,\)"),
        ({"static_friction": 0.2}, ORDER),
        ({"static_friction": lambda args: 0.2}, ORDER),
        ({"friction": lambda args: 0.5, "static_friction": 0.4}, ORDER),
        ({"static_friction": 0.4, "scheme": ji.PaoliSchatzman()}, "takes no friction"),
    ],
)  # fmt: skip
def test_what_is_no_static_friction_is_refused_by_name(change, words):
    change = {"scheme": SCHEME} | change
    scheme, error = change.pop("scheme"), TypeError if change["static_friction"] == "rough" else ValueError
    with pytest.raises(error, match=words):
        ji.solve(rough(**change), [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], t1=1.0, h=0.1, scheme=scheme)


def test_traced_coefficients_out_of_order_set_a_bit():
    known = {"t1": 0.1, "h": 0.05, "scheme": SCHEME, "sensitivity": "none"}
    status = jax.jit(lambda x: ji.solve(rough(static_friction=x), np.ones(3), np.ones(3), **known).status)
    for wrong in (0.2, jnp.nan):
        assert int(status(wrong)) & ji.Status.INPUT_INVALID
    assert int(status(0.4)) == 0


def test_constructors_take_it():
    for make, of in (
        (ji.Problem.from_lagrangian, lambda t, q, v, args: v @ v / 2 - G * q[1]),
        (ji.Problem.from_potential, lambda q, args: G * q[1]),
        (ji.Problem.from_momentum_force, lambda t, q, p, args: -p),
    ):
        made = make(of, lambda t, q, args: q[1:], static_friction=0.4, **RUBS)
        assert made.static_friction == 0.4 and "static_friction=0.4" in repr(made)
        leaves, kind = jax.tree.flatten(made.replace(static_friction=0.5))
        assert 0.5 in leaves and jax.tree.unflatten(kind, leaves).static_friction == 0.5
        assert made.replace(static_friction=None).static_friction is None
