"""`EventDriven` with friction in the plane: stops, breaks, reversals, frictional impacts and jams,
to its tolerance in states and Jacobians.

Exact motions are closed forms, or located by code that shares nothing with the library,
to 1e-11 in states and 1e-10 in Jacobians.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow_but
from support.experiments.friction import ALL, DISK, MOTIONS, VARIED, call_of, exact_of, jacobian
from support.sliding_bodies import BELT, CORNER, ROD
from support.static_friction import BLOCK, NUMBERS, located, slopes_of
from support.static_friction import MOTIONS as STATIC

G = 9.81
TIGHT = ji.EventDriven(1e-11, 1e-11)
IN_PLANE = [name for name in ALL if "space" not in name]


@pytest.mark.parametrize("name", slow_but(("bounces, slips, sticks",), IN_PLANE))
def test_states_and_jacobians_have_the_digits_of_the_tolerance(name):
    system = ALL[name]
    expected = exact_of(system)
    state, slopes, status = jacobian(system, TIGHT, h=np.array([system.t1 / 20]))
    assert status[0] & ~int(ji.Status.FRICTION_JAMMED) == 0  # the remark on Painleve's rod
    # some tens of tolerances of substeps, as the motions amplify them
    np.testing.assert_allclose(state[0], expected.state, rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        slopes[0], expected.jacobian, rtol=0, atol=1e-9 * (1 + np.max(np.abs(expected.jacobian)))
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIC)
def test_several_events_in_a_row(name):
    """Static friction above that of slip: where a contact breaks away, its force jumps."""
    changes, (x, v), t1, events = STATIC[name]
    args = NUMBERS | changes
    expected, found = located(args, x, v, t1)
    assert found == events
    varied = [key for key in args if args[key]]
    call = {"t1": t1, "steps": 20, "args": args, "wrt": "args", "scheme": TIGHT}
    own = ji.sensitivities(BLOCK, [x, 0.0], [v, 0.0], **call)
    assert own.status == 0
    np.testing.assert_allclose([own.value["q"][0], own.value["v"][0]], expected, rtol=0, atol=1e-9)
    slopes = slopes_of(args, x, v, t1, varied, 1e-5)
    rows = [[own.jacobian[k]["args"][key][0] for key in varied] for k in "qv"]
    # those of differences
    np.testing.assert_allclose(rows, slopes, rtol=0, atol=1e-7 * (1 + np.max(np.abs(slopes))))


@pytest.mark.slow
def test_reverse_mode_second_derivatives_lanes_and_executions():
    """Through an impact that slips and one that sticks, against the closed form; single precision has its digits."""
    p, exact, t1 = MOTIONS["bounces, slips, sticks"]
    keys, x = VARIED[exact], jnp.stack([p[key] for key in VARIED[exact]])
    at = lambda x: p | dict(zip(keys, x, strict=True))

    def state(x, **options):
        p = at(x)
        args = {name: p[name] for name in ("gx", "gy", "mu", "R", "I")}
        call = {"t1": t1, "steps": 5, "args": args, "e": p["e"], "save": "final"}
        found = ji.solve(DISK, p["q0"], p["v0"], **call | {"scheme": TIGHT} | options)
        return jnp.concatenate([found.q[-1], found.v[-1]])

    few = ji.EventDriven(1e-11, 1e-11, trials=32)
    right = jax.jacfwd(lambda x: exact(at(x), t1))
    np.testing.assert_allclose(jax.jacrev(lambda x: state(x, scheme=few))(x), right(x), rtol=0, atol=1e-9)
    second, expected = jax.jacfwd(jax.jacfwd(state))(x), jax.jacfwd(right)(x)
    np.testing.assert_allclose(second, expected, rtol=0, atol=1e-8 * np.max(np.abs(expected)))
    native, xla = (state(x, execution=way) for way in ("native", "xla"))
    np.testing.assert_allclose(native, xla, rtol=0, atol=1e-13)
    lanes = jax.vmap(state)(jnp.stack([x, x.at[0].set(jnp.nan), 1.01 * x]))
    np.testing.assert_allclose(lanes[0], native, rtol=0, atol=1e-13)
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (p["q0"], p["v0"], p["e"], at(x)))
    args = {name: single[3][name] for name in ("gx", "gy", "mu", "R", "I")}
    low = ji.solve(DISK, *single[:2], t1=t1, steps=5, args=args, e=single[2], scheme=ji.EventDriven(1e-5, 1e-5))
    assert low.q.dtype == jnp.float32
    np.testing.assert_allclose(low.q[-1], native[:3], rtol=0, atol=1e-4)  # ten tolerances


@pytest.mark.slow
def test_slip_that_only_just_stops_is_told():
    """The last velocity falls by -d where the block sticks for a while, and not otherwise."""
    args = {"d": np.array([-1e-2, -1e-10, 1e-10, 2e-2])}
    call = {"args": args, "args_axes": 0, "t1": 1.0, "scheme": ji.EventDriven(), "wrt": "args"}
    found = ji.sensitivities(BELT, [0.0, 0.0], [2.0, 0.0], **call)
    np.testing.assert_allclose(found.value["v"][:, 0], 2 - 0.3 * G - np.minimum(args["d"], 0), rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.jacobian["v"]["args"]["d"][[0, 3], 0], [-1, 0], rtol=0, atol=1e-7)
    assert found.trusted.tolist() == [True, False, False, True]


@pytest.mark.slow
def test_corners_and_rods_that_may_jam():
    turn = np.linspace(0, 3, 16)
    args = {"turn": turn, "g": G + 0 * turn, "R": 0 * turn, "far": 0 * turn}
    call = {"args_axes": 0, "scheme": ji.EventDriven()}
    rest = ji.ensemble(CORNER, np.zeros(3), np.zeros(3), t1=0.3, args=args, e=np.zeros((16, 2)), **call)
    assert not np.any(rest.failed) and np.max(np.abs(rest.q)) < 1e-15
    args, far = dict.fromkeys(("turn", "g"), np.zeros(3)) | {"R": np.full(3, 0.2)}, np.array([-1e-3, 0, 1e-3])
    start = [1.2, 1.2, 0.0], [-1.0, -1.0, 4.0]
    found = ji.ensemble(CORNER, *start, t1=2.0, args=args | {"far": far}, e=np.full((3, 2), 0.5), **call)
    assert found.status.tolist() == [0, ji.Status.IMPULSES_COUPLED, 0]
    # it lifts off; where it slides so that more push presses its end down, beyond the bound, it could also jam
    q0, spin = [0.0, np.sin(1.0), 1.0], 4.0
    v0 = np.array([[way * 6.0, spin * np.cos(1.0), spin] for way in (-1, 1, -1)])
    lanes = {"args": {"mu": np.array([1.8, 1.8, 1.2])}, "e": np.zeros((3, 1))}
    found = ji.ensemble(ROD, q0, v0, t1=0.05, **lanes, **call)
    assert not np.any(found.impulse) and found.status.tolist() == [ji.Status.FRICTION_JAMMED, 0, 0]


@pytest.mark.slow
def test_a_block_that_slides_over_an_edge_and_one_under_a_force_that_jumps():
    """What a kink of the ground lets go, flies on; where the force jumps is located beside friction."""
    gravity = lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G])
    rubs = {"slip": lambda t, q, v, args: v[:1], "friction": 0.3}
    table = ji.Problem(gravity, lambda t, q, args: (q[1] + 20 * jnp.maximum(q[0] - 1, 0))[None], **rubs)
    found = ji.solve(table, [0.0, 0.0], [3.0, 0.0], t1=0.6, scheme=ji.EventDriven(), save="final")
    speed = np.sqrt(9 - 2 * 0.3 * G)
    flight = 0.6 - (3 - speed) / (0.3 * G)
    np.testing.assert_allclose(found.q[-1], [1 + speed * flight, -G * flight**2 / 2], rtol=0, atol=1e-6)
    floor = ji.Problem(gravity, lambda t, q, args: q[1:], **rubs)
    pushed = floor.replace(
        force=lambda t, q, v, args: gravity(t, q, v, args) + jnp.stack([jnp.where(q[0] > 0.5, -2.0, 0.0), 0.0])
    )
    call = {"t1": 0.5, "scheme": ji.EventDriven(), "wrt": "v0"}
    told = ji.sensitivities(pushed, [0.0, 0.0], [3.0, 0.0], **call)
    at_step = np.sqrt(9 - 2 * 0.3 * G * 0.5)
    rest = 0.5 - (3 - at_step) / (0.3 * G)
    np.testing.assert_allclose(told.value["v"][0], at_step - (0.3 * G + 2) * rest, rtol=0, atol=1e-7)
    later = 3 / at_step
    slope = later + (0.3 * G + 2) * (1 - later) / (0.3 * G)
    assert told.trusted
    np.testing.assert_allclose(told.jacobian["v"]["v0"][0, 0], slope, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_rows_tell_modes_impulses_and_work():
    """A sticking block takes no work, whatever its table does; friction of a slipping one takes mu N times its way."""
    system = ALL["sticks to a shaken table, and slides"]
    start, options = call_of(system)
    found = ji.solve(*start, **options, steps=400, scheme=TIGHT)
    slips = found.slips(start[0], args=options["args"])
    assert list(slips.kind) == ["break", "stop"] * 5
    load = options["args"]["mu"] * options["args"]["g"]
    way = np.abs(slips.velocity[:, 0, 0])
    np.testing.assert_allclose(-slips.work[-1, 0], load * np.trapezoid(way, slips.times), rtol=1e-3)  # of trapezia
    np.testing.assert_allclose(found.impulse[-1, 0], options["args"]["g"] * system.t1, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [TIGHT, ji.EventCorrected(), ji.MoreauJean()], ids=lambda s: type(s).__name__)
def test_two_blocks_that_stop_or_turn_round_together(scheme):
    """Each at its own time with other data: had the second block the time of the first, its derivatives had been those
    of the first, off by .74 of its own, trusted."""
    blocks = ji.Problem(
        lambda t, q, v, args: jnp.stack([args["pull"], 0 * t - G, args["pull"], 0 * t - G]),
        lambda t, q, args: q[1::2],
        slip=lambda t, q, v, args: v[::2],
        friction=0.3,
    )
    start = np.zeros((2, 4)), np.array([[2.0, 0.0, 2.0, 0.0], [3.0, 0.0, 3.0, 0.0]])
    call = {"args": {"pull": np.array([0.0, -5.0])}, "args_axes": 0, "t1": 1.0, "steps": 400, "scheme": scheme}
    found = ji.sensitivities(blocks, *start, **call, wrt="v0")
    own = np.array([0.0, (5 - 0.3 * G) / (5 + 0.3 * G)])
    # steps of MoreauJean are of first order
    digits = 5e-3 if scheme == ji.MoreauJean() else 1e-9
    slopes = found.jacobian["v"]["v0"][:, ::2, ::2]
    assert found.trusted[0]
    for lane in np.flatnonzero(found.trusted):
        np.testing.assert_allclose(slopes[lane], own[lane] * np.eye(2), rtol=0, atol=digits)


def test_a_block_that_is_lifted_off_within_its_cone():
    """Force and room in the cone vanish together: straight up, or along a line inside the cone; for mu above 1 too.

    With y'' = k t - G = k s, s = t - G/k: y = k s^3/6, and x = share y.
    """
    force = lambda t, q, v, args: (args["lift"] * t - G) * jnp.stack([args["share"], jnp.ones_like(t)])
    block = ji.Problem(force, lambda t, q, args: q[1:], slip=lambda t, q, v, args: v[:1], friction=0.3)
    share, mu = np.array([0.0, 0.0, 1e-9, 0.1, 2.0]), np.array([0.3, 3.0, 0.3, 0.3, 3.0])
    found = ji.sensitivities(
        block, np.zeros((5, 2)), [0.0, 0.0], t1=2.0, steps=4, e=0.0, args={"lift": 8.0, "share": share},
        friction=mu[:, None], args_axes={"lift": None, "share": 0}, wrt="args", scheme=TIGHT, progress=False,
    )  # fmt: skip
    begun = G / 8.0
    s = 2.0 - begun
    height, by_lift = 8.0 * s**3 / 6, s**2 * (2.0 + 2 * begun) / 6
    assert found.trusted.all()
    np.testing.assert_allclose(found.value["q"], height * np.stack([share, share**0], axis=1), rtol=0, atol=1e-11)
    expected = by_lift * np.stack([share, share**0], axis=1)
    np.testing.assert_allclose(found.jacobian["q"]["args"]["lift"].reshape(5, 2), expected, rtol=0, atol=1e-10)
