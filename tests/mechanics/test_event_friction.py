"""`EventCorrected` with friction: stops, reversals, breaks and frictional impacts are located,
to second order in states and Jacobians.

Where forces make the path piecewise a polynomial of degree three, it is exact up to round-off.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support import static_friction
from support.breadth import slow, slow_but
from support.experiments.friction import DISK, MOTIONS, PULLED, VARIED
from support.sliding_bodies import BELT, CORNER, FEET, IN_SPACE, ROD, stopped
from support.static_friction import BLOCK, NUMBERS, located
from support.static_friction import MOTIONS as STATIC

SCHEME, G = ji.EventCorrected(), 9.81
STEPS = 37
DRIVEN = ji.EventDriven(1e-11, 1e-11)
SCHEMES = [SCHEME, slow(DRIVEN)]
IDS = ["corrected", "driven"]


def state(p, n, t1, **options):
    """State (6,) at t1 of a motion with parameters p."""
    args = {name: p[name] for name in ("gx", "gy", "mu", "R", "I", "static") if name in p}
    problem = PULLED if "static" in p else DISK
    call = {"t1": t1, "steps": n, "args": args, "e": p["e"], "scheme": SCHEME, "save": "final"}
    found = ji.solve(problem, p["q0"], p["v0"], **call | options)
    return jnp.concatenate([found.q[-1], found.v[-1]])


@pytest.mark.parametrize("name", slow_but(("bounces, slips, sticks",), MOTIONS))
def test_parabolas_and_cubics_are_exact(name):
    """State and Jacobian to the rounding of 37 steps, times what the derivatives amplify."""
    p, exact, t1 = MOTIONS[name]
    by = [key for key in VARIED[exact] if name != "is pulled until it breaks away" or key != "gy"]
    pick = lambda f: jax.jacfwd(lambda x: (f(p | dict(zip(by, x, strict=True))),) * 2, has_aux=True)
    x = jnp.stack([p[key] for key in by])
    (slopes, found), (expected_slopes, expected) = (
        jax.jit(pick(f))(x) for f in (lambda p: state(p, STEPS, t1), lambda p: exact(p, t1))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(slopes, expected_slopes, rtol=0, atol=1e-12 * (1 + np.max(np.abs(expected_slopes))))


@pytest.mark.slow
def test_lanes_executions_and_rows():
    """An ensemble has the bits of single motions, XLA its values to rounding;
    rows between steps are of the same motion."""
    p, exact, t1 = MOTIONS["bounces, slips, sticks"]
    mu = np.array([0.0, 0.05, 0.1, 0.4, 2.0])
    args = {key: p[key] for key in ("gx", "gy", "R", "I")} | {"mu": mu}
    axes = dict.fromkeys(args) | {"mu": 0}
    call = {"t1": t1, "steps": STEPS, "args": args, "args_axes": axes, "e": 0.7, "scheme": SCHEME}
    native, xla = (ji.ensemble(DISK, p["q0"], p["v0"], execution=x, **call) for x in ("native", "xla"))
    expected = np.stack([exact(p | {"mu": x}, t1) for x in mu])
    assert np.all(native.status == 0)
    for found in (native, xla):
        np.testing.assert_allclose(np.concatenate([found.q, found.v], 2)[:, -1], expected, rtol=0, atol=1e-12)
    single = jax.tree.map(lambda x: np.asarray(x, np.float32), (p["q0"], p["v0"], args))
    low = ji.ensemble(DISK, *single[:2], **call | {"args": single[2]})
    assert low.q.dtype == np.float32 and np.allclose(low.q, native.q, atol=2e-5)
    times = np.array([0.1, 0.4, 0.41, 0.9, 1.0])  # between steps, and around impacts at .404 and .969
    one = {"args": args | {"mu": 0.1}, "args_axes": None}
    rows = ji.solve(DISK, p["q0"], p["v0"], save=times, **{k: x for k, x in (call | one).items() if k != "args_axes"})
    for t, q, v, along in zip(times, rows.q, rows.v, rows.friction_impulse, strict=False):
        impacts = int(t > 0.404) + int(t > 0.969)
        right = np.asarray(_bounced(p, exact, t, impacts))
        np.testing.assert_allclose(np.concatenate([q, v]), right, rtol=0, atol=1e-12)
        np.testing.assert_allclose(along[0, 0], right[3] - p["v0"][0], rtol=0, atol=1e-12)  # of mass 1


@pytest.mark.slow
def test_a_motion_goes_on_from_any_of_its_rows():
    """A block held by static friction, from rows at rest: it stays where it is, and breaks away at its time."""
    args = NUMBERS | {"F": 0.4 * G, "B": 0.1 * G, "w": 1.0}
    call = {"args": args, "scheme": SCHEME}
    motion = ji.solve(BLOCK, [0.0, 0.0], [0.0, 0.0], t1=1.0, steps=10, **call)
    times = np.array([0.15, 0.33, 0.66, 0.97])
    expected = [located(args, 0.0, 0.0, t)[0] for t in times]
    found = motion.at(times, BLOCK, args=args)
    # h^2 times what changes in a second
    np.testing.assert_allclose(found.q[:, 0], np.array(expected)[:, 0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(found.v[:, 0], np.array(expected)[:, 1], rtol=0, atol=1e-3)
    assert not np.any(found.v[:2, 0])  # .4 g + .1 g sin t reaches .45 g at pi/6


def _bounced(p, exact, t, impacts):
    """State of the bouncing disk after so many impacts."""
    if impacts:
        return exact(p, t, impacts)
    (x, y, phi), (u, w, s) = p["q0"], p["v0"]
    return jnp.stack([x + u * t, y + w * t - p["gy"] * t**2 / 2, phi + s * t, u, w - p["gy"] * t, s])


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIC)
def test_several_events_in_a_row_are_of_second_order(name):
    apart = []
    for n in (101, 909):
        some, found = zip(*(static_friction.errors(name, SCHEME, steps) for steps in range(n, n + 8, 2)), strict=True)
        assert all(one.trusted for one in found)
        apart.append(np.mean(some, axis=0))
    # of a table at rest in between values are exact, and differences to 1e-8
    size = 1 + np.max(np.abs(static_friction.exact(name)[-1]))
    assert np.all(apart[1] < apart[0] / 9**1.8 + np.array([1e-12, 1e-7 * size])), apart


@pytest.mark.slow
def test_feet_of_a_sled_turn_round_and_stay_together():
    """Up an incline: v = -(F - mu g)(T - v0/(F + mu g)), exact; shares of feet that stick are one choice among many."""
    call = {"t1": 1.0, "steps": STEPS, "scheme": SCHEME}
    pull = np.array([0.2, 0.6]) * G
    found = ji.ensemble(FEET, [0.0] * 3, [3.0, 0.0, 0.0], args={"F": -pull}, args_axes=0, **call)
    back = np.where(pull > 0.3 * G, -(pull - 0.3 * G) * (1 - 3 / (pull + 0.3 * G)), 0)
    np.testing.assert_allclose(found.v[:, -1, 0], back, rtol=0, atol=1e-12)
    assert found.status.tolist() == [ji.Status.IMPULSES_NOT_UNIQUE, 0]


@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
def test_a_corner(scheme):
    """Rests, however the force of the wall without load is rounded; impacts at once, which load each other by friction,
    are told."""
    turn = np.linspace(0, 3, 64)
    args, call = {"turn": turn, "g": G + 0 * turn, "R": 0 * turn, "far": 0 * turn}, {"args_axes": 0, "scheme": scheme}
    rest = ji.ensemble(CORNER, np.zeros(3), np.zeros(3), t1=0.3, steps=10, args=args, e=np.zeros((64, 2)), **call)
    assert not np.any(rest.failed) and np.max(np.abs(rest.q)) < 1e-15
    args, far = dict.fromkeys(("turn", "g"), np.zeros(3)) | {"R": np.full(3, 0.2)}, np.array([-1e-3, 0, 1e-3])
    start = [1.2, 1.2, 0.0], [-1.0, -1.0, 4.0]
    found = ji.ensemble(CORNER, *start, t1=2.0, steps=101, args=args | {"far": far}, e=np.full((3, 2), 0.5), **call)
    assert found.status.tolist() == [0, ji.Status.IMPULSES_COUPLED, 0]


def walls(angles, radius, xp=np):
    """Normals and tangents (2, 3) of a disk on two walls at ``angles`` (2,) to the horizontal,
    left of the lowest point and right of it."""
    (a, b), none = angles, 0 * angles
    c, s = (xp.stack([f(a), f(b)]) for f in (xp.cos, xp.sin))
    way = np.array([1.0, -1.0])
    return xp.stack([way * s, c, none], axis=1), xp.stack([c, -way * s, radius + none], axis=1)


VALLEY = ji.Problem(
    lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G, 0 * t]),
    lambda t, q, args: walls(args["angles"], 0.2, jnp)[0] @ q + args["far"],
    np.array([1.0, 1.0, 0.02]),  # a disk of radius .2
    slip=lambda t, q, v, args: walls(args["angles"], 0.2, jnp)[1] @ v,
    friction=lambda args: args["mu"],
)


def spin_at_rest(args, v0, t1):
    """Angular velocity at t1 of a disk that spins the same way all along and lies still by then: momentum gives the sum
    of impulses at each wall."""
    normal, tangent = walls(args["angles"], 0.2)
    near = args["far"] == 0
    of_one = (normal - np.sign(v0[2]) * args["mu"][:, None] * tangent)[near]  # of a unit of normal impulse
    known = [0, 1] if near.all() else [1]  # on a floor the disk moves on
    total = np.linalg.solve(of_one[:, known].T, (np.array([0, G * t1]) - v0[:2])[known])
    return v0[2] - np.sign(v0[2]) * 0.2 / 0.02 * args["mu"][near] @ total


@pytest.mark.parametrize(
    ("scheme", "steps", "count"),
    [(SCHEME, 150, 8), slow(SCHEME, 1500, 200), *(slow(ji.EventDriven(x, x), 5, 200) for x in (1e-6, 1e-10))],
)
def test_a_spin_is_exact_where_bounces_die_out(scheme, steps, count):
    """Between two rough walls, and in every fourth motion on a floor, whatever flights are left out: without their
    friction spins were off by 1e-2 to 1e-5."""
    rng, t1 = np.random.default_rng(57), 2.0
    args = {"angles": rng.uniform(0.4, 0.8, (count, 2)), "mu": rng.uniform(0.07, 0.3, (count, 2))}
    args["far"] = np.zeros((count, 2))
    args["angles"][::4, 0], args["far"][::4, 1] = 0, 100
    q0 = rng.uniform([-0.02, 0.1, 0], [0.02, 0.2, 0], (count, 3))
    v0 = rng.uniform([-0.3, 0, 150], [0.3, 0, 200], (count, 3))
    v0[::2] *= -1
    call = {"t1": t1, "steps": steps, "scheme": scheme, "save": "final", "args": args, "args_axes": 0}
    found = ji.ensemble(VALLEY, q0, v0, e=np.repeat(rng.uniform(0.2, 0.6, (count, 1)), 2, axis=1), **call)
    right = [spin_at_rest({name: x[i] for name, x in args.items()}, v0[i], t1) for i in range(count)]
    floor = np.arange(count) % 4 == 0
    lies = floor | (np.max(np.abs(found.v[:, -1, :2]), axis=1) < 1e-9)  # a few still bounce
    clean = lies & (found.status == 0)  # a few meet both walls within one step
    assert np.mean(clean) > 0.8 and np.all(clean[floor])
    np.testing.assert_allclose(found.v[clean, -1, 2], np.array(right)[clean], rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "near", "within", "sure"),
    [(SCHEME, 1e-5, 1e-12, [0, 1, 2, 3]), (ji.EventDriven(), 1e-10, 1e-8, [0, 3])],
    ids=IDS,
)
def test_slip_that_only_just_stops_is_told(scheme, near, within, sure):
    """The last velocity falls by -d where the block sticks for a while, and not otherwise."""
    args = {"d": np.array([-1e-2, -near, near, 2e-2])}
    call = {"args": args, "args_axes": 0, "t1": 1.0, "steps": STEPS, "scheme": scheme, "wrt": "args"}
    found = ji.sensitivities(BELT, [0.0, 0.0], [2.0, 0.0], **call)
    np.testing.assert_allclose(found.value["v"][:, 0], 2 - 0.3 * G - np.minimum(args["d"], 0), rtol=0, atol=within)
    slopes = found.jacobian["v"]["args"]["d"][:, 0]
    np.testing.assert_allclose(slopes[sure], np.array([-1, -1, 0, 0])[sure], rtol=0, atol=10 * within)
    assert found.trusted.tolist() == [True, False, False, True]


PULL, THROWN = np.array([0.8, 0.5, 0.05]), (np.zeros(3), np.array([1.0, 0.4, 0.0]))
TURNS = {"args": {"g": PULL, "mu": np.ones(3)}, "args_axes": 0, "t1": 3.2, "scheme": SCHEME}


def test_slip_in_space_turns_and_stops():
    """States of second order."""
    exact = np.stack([jax.jit(stopped)(jnp.array([g, 1.0, 1.0, 0.4])) for g in PULL])
    found = [ji.ensemble(IN_SPACE, *THROWN, h=3.2 / steps, save="final", **TURNS) for steps in (80, 240)]
    errors = np.array([np.max(np.abs(x.q[:, -1, :2] - exact), axis=1) for x in found])
    assert not any(np.any(x.status) or np.max(np.abs(x.v)) > 1e-14 for x in found)
    assert np.all(errors[:, 0] < [1e-3, 1e-4]) and errors[1, 0] < 0.13 * errors[0, 0]  # a ninth
    assert np.max(errors[1, 1:]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "steps", "slopes", "places"),
    # turned tangents change the interpolation of a step of EventCorrected, by h^2, and nothing of EventDriven but
    # rounding
    [(SCHEME, 240, 1e-3, 1e-4), (DRIVEN, 5, 1e-9, 1e-11)],
    ids=IDS,
)
def test_tangents_that_turn_and_jump_change_nothing(scheme, steps, slopes, places):
    """Tangents that turn with the position, and are mirrored beyond a line, have the same motion as constant ones."""

    def slip(t, q, v, args):
        y, (c, s) = q[1], (jnp.cos(30 * q[0]), jnp.sin(30 * q[0]))
        return jnp.stack([c * v[0] + s * v[1], jnp.where(y > 0.1, -1, 1) * (c * v[1] - s * v[0])])[None]

    call = {"args": {"g": 0.8, "mu": 1.0}, "t1": 3.2, "steps": steps, "scheme": scheme, "wrt": ("args", "v0")}
    plain, turned = (ji.sensitivities(x, *THROWN, **call) for x in (IN_SPACE, IN_SPACE.replace(slip=slip)))
    assert turned.status == 0
    for a, b in zip(jax.tree.leaves(plain.jacobian), jax.tree.leaves(turned.jacobian), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=slopes)
    np.testing.assert_allclose(plain.value["q"], turned.value["q"], rtol=0, atol=places)


@pytest.mark.slow
def test_jacobians_of_slip_in_space_that_turns_and_stops():
    """Of order 1 + p, p = g / (mu - g), by which slip turns before it stops, two at most."""
    exact = [
        np.stack([jax.jit(f)(jnp.array([g, 1.0, 1.0, 0.4])) for g in PULL]) for f in (stopped, jax.jacfwd(stopped))
    ]
    apart = []
    for steps in (80, 240):
        found = ji.sensitivities(IN_SPACE, *THROWN, steps=steps, wrt=("args", "v0"), **TURNS)
        by = found.jacobian["q"]
        own = np.concatenate([by["args"]["g"][:, :2, None], by["args"]["mu"][:, :2, None], by["v0"][:, :2, :2]], axis=2)
        off = np.abs(found.value["q"][:, :2] - exact[0]), np.abs(own - exact[1])
        apart.append([np.max(x.reshape(3, -1), axis=1) for x in off])
        assert not np.any(found.status) and np.max(np.abs(found.value["v"])) < 1e-14
    for errors, size in zip(np.array(apart).transpose(1, 0, 2), (1e-3, 1e-2), strict=True):
        assert np.all(errors[:, 0] < [size, size / 10]) and errors[1, 0] < 0.13 * errors[0, 0]  # a ninth
        assert np.max(errors[1, 1:]) < size / 10


@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
def test_a_rod_that_may_lift_off_or_jam_says_so(scheme):
    """It turns faster than gravity holds it, and lifts off. Where it slides so that more push presses its end down,
    beyond the bound, it could also jam."""
    q0, spin = [0.0, np.sin(1.0), 1.0], 4.0
    # its end slides at -2.6, 9.4, -2.6 m/s
    v0 = np.array([[way * 6.0, spin * np.cos(1.0), spin] for way in (-1, 1, -1)])
    lanes = {"args": {"mu": np.array([1.8, 1.8, 1.2])}, "args_axes": 0, "e": np.zeros((3, 1))}  # the bound is 1.375
    found = ji.ensemble(ROD, q0, v0, t1=0.05, steps=20, scheme=scheme, **lanes)
    assert not np.any(found.impulse) and found.status.tolist() == [ji.Status.FRICTION_JAMMED, 0, 0]


@pytest.mark.slow
def test_a_rod_that_lands_and_jams():
    """It slips in the impact, if there is time for it, and sticks behind it: the derivative, trusted,
    is that of differences."""
    q0, v0 = np.array([0.0, np.sin(1.0) + 0.05, 1.0]), np.array([-3.0, 0.0, 0.5])
    call = {"t1": 0.3, "steps": 60, "scheme": SCHEME, "args": {"mu": 1.8}, "e": 0.0}
    found = ji.sensitivities(ROD, q0, v0, wrt="v0", **call)
    assert found.status == ji.Status.FRICTION_JAMMED and found.trusted
    change = 1e-6 * np.eye(3)
    up, down = (ji.ensemble(ROD, q0, v0 + s * change, save="final", **call).v[:, -1] for s in (1, -1))
    np.testing.assert_allclose(found.jacobian["v"]["v0"], (up - down).T / 2e-6, rtol=0, atol=1e-6)  # of differences


@pytest.mark.slow
def test_reverse_mode_of_lanes_is_exact():
    """Lanes follow a path of no length behind the last event of a step,
    whose derivative by that length was not a number."""
    p, exact, _ = MOTIONS["bounces, slips, sticks"]
    args = {name: float(p[name]) for name in ("gx", "gy", "mu", "R", "I")}
    q0, v0 = jnp.array([0.0, 0.3, 0.0]), jnp.array([1.0, -1.0, 6.0])
    call = {"t1": 0.15, "steps": 3, "args": args, "e": 0.7, "scheme": SCHEME, "wrt": "v0"}
    found = ji.sensitivities(DISK, q0, v0, mode="reverse", **call)
    right = jax.jit(jax.jacfwd(lambda v0: exact(p | {"q0": q0, "v0": v0}, 0.15, 1)[3:]))(v0)
    np.testing.assert_allclose(found.jacobian["v"]["v0"], right, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("scheme", "within"), [(SCHEME, 5e-3), slow(ji.EventDriven(), 1e-6)], ids=IDS)  # v h
def test_a_block_that_slides_over_an_edge_flies_on(scheme, within):
    """The ground falls away from x = 1 on: nothing pulls the block; its speed there is known, and where it flies to,
    to O(h) by steps."""
    table = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G]),
        lambda t, q, args: (q[1] + 20 * jnp.maximum(q[0] - 1, 0))[None],
        slip=lambda t, q, v, args: v[:1],
        friction=0.3,
    )
    found = ji.solve(table, [0.0, 0.0], [3.0, 0.0], t1=0.6, steps=600, scheme=scheme)
    speed = np.sqrt(9 - 2 * 0.3 * G)
    flight = 0.6 - (3 - speed) / (0.3 * G)
    np.testing.assert_allclose(found.q[-1], [1 + speed * flight, -G * flight**2 / 2], rtol=0, atol=within)
    assert int(found.status) == 0 and np.all(np.diff(found.impulse[:, 0]) >= 0)


@pytest.mark.slow
def test_a_block_that_rocks_comes_to_rest():
    """On both its corners, behind impacts without number; it has not slid."""

    def corners(q):
        c, s = jnp.cos(q[2]), jnp.sin(q[2])
        middle, arm = q[:2] + 0.8 * jnp.stack([s, -c]), 0.2 * jnp.stack([c, s])
        return jnp.stack([middle - arm, middle + arm], axis=1)

    block = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G, 0 * t]),
        lambda t, q, args: corners(q)[1],
        np.array([1.0, 1.0, 0.68 / 3]),
        slip=lambda t, q, v, args: jax.jvp(lambda q: corners(q)[0], (q,), (v,))[1],
        friction=0.7,
    )
    start = np.array([0.0, 0.0, 0.05])
    start[:2] = -np.array([x[0] for x in corners(start)])
    for steps in (200, 1000):
        found = ji.solve(block, start, np.zeros(3), t1=12.0, steps=steps, scheme=SCHEME, save="final")
        np.testing.assert_allclose(found.q[-1], [0.2, 0.8, 0.0], rtol=0, atol=2e-5)
        assert np.max(np.abs(found.v[-1])) < 1e-15 and not bool(found.failed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scheme", "steps", "within"),
    [
        *((x, SCHEME, STEPS, 1e-9) for x in ("bounces, slips, sticks", "slides to rest", "up an incline and down")),
        ("bounces, slips, sticks", ji.EventDriven(1e-11, 1e-11, trials=32), 5, 1e-8),
    ],
)
def test_reverse_mode_and_second_derivatives(name, scheme, steps, within):
    """Through an impact that slips and one that sticks, a stop and a reversal, against the closed form."""
    p, exact, t1 = MOTIONS[name]
    keys = VARIED[exact]
    at = lambda x: p | dict(zip(keys, x, strict=True))
    x = jnp.stack([p[key] for key in keys])
    f, right = (lambda x: state(at(x), steps, t1, scheme=scheme)), lambda x: exact(at(x), t1)
    np.testing.assert_allclose(jax.jacrev(f)(x), jax.jacfwd(right)(x), rtol=0, atol=1e-9)
    second = jax.jacfwd(jax.jacfwd(f))(x)
    expected = jax.jacfwd(jax.jacfwd(right))(x)
    np.testing.assert_allclose(second, expected, rtol=0, atol=within * np.max(np.abs(expected)))


@pytest.mark.slow
def test_what_breaks_away_a_little_early_goes_on():
    """A pull rate t + bend t^2 bends upwards: forces linear in a step exceed it, the block breaks away a little early,
    and friction still pushes it back. It had stopped again for the rest of the step: a derivative of first order,
    off by N h, trusted.
    """
    rate, bend, mu, weight, t1, steps = 10.0, 20.0, 0.2, 10.0, 0.6, 61
    pulled = ji.Problem(
        lambda t, q, v, args: jnp.stack([args["rate"] * t + bend * t**2, -weight + 0 * t]), lambda t, q, args: q[1:],
        slip=lambda t, q, v, args: v[:1], friction=lambda args: args["mu"],
    )  # fmt: skip
    call = {"t1": t1, "steps": steps, "args": {"rate": rate, "mu": mu}, "wrt": "args", "mode": "forward"}
    found = ji.sensitivities(pulled, [0.0, 0.0], [0.0, 0.0], scheme=SCHEME, **call)
    free = (np.sqrt(rate**2 + 4 * bend * mu * weight) - rate) / (2 * bend)
    # by the error of linear forces early, of a rate rate + 2 bend t
    early = (t1 / steps) ** 2 * 2 * bend / 8 / (rate + 2 * bend * free)
    slopes = found.jacobian["v"]["args"]
    assert slopes["mu"][0] == pytest.approx(-weight * (t1 - free), abs=2 * weight * early)
    assert slopes["rate"][0] == pytest.approx((t1**2 - free**2) / 2, abs=2 * free * early)
    assert found.trusted
