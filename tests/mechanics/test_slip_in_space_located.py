"""`EventDriven` with friction in space: slip that turns, stops, begins and strikes,
to the digits of its tolerance in states and Jacobians.

References are closed forms, or fine solutions of the equations of a block by code that shares nothing with the library.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaximpact as ji
from support.experiments.friction import MOTIONS
from support.honesty import T1, batch
from support.random_friction import IN_SPACE as ROUGH_WALL
from support.random_friction import draw_in_space
from support.sliding_bodies import IN_SPACE, stopped

G = 9.81
TIGHT = ji.EventDriven(1e-11, 1e-11)


def table(t, args):
    """Velocity of a table that moves on a circle, at rest for w = 0."""
    return args["r"] * args["w"] * jnp.stack([-jnp.sin(args["w"] * t), jnp.cos(args["w"] * t)])


def along_tangents(q, slip):
    """Slip (1, 2) along tangents that turn about the normal as the block moves: nothing depends on their choice."""
    cos, sin = jnp.cos(q[0] - 2 * q[1]), jnp.sin(q[0] - 2 * q[1])
    return jnp.stack([cos * slip[0] + sin * slip[1], cos * slip[1] - sin * slip[0]])[None]


BLOCK = ji.Problem(
    lambda t, q, v, args: jnp.stack([args["pull"] * t, -args["down"], -G + 0 * t]),
    lambda t, q, args: q[2:],
    slip=lambda t, q, v, args: along_tangents(q, v[:2] - table(t, args)),
    friction=lambda args: args["mu"],
)
NUMBERS = {"pull": 0.0, "down": 0.0, "r": 0.0, "w": 0.0, "mu": 0.3}


def straight(a, v, t):
    """Stops on a straight line."""
    speed = jnp.sqrt(v @ v)
    return jnp.concatenate([speed * v / (2 * a["mu"] * G), jnp.zeros(2)])


def carried(a, v, t):
    """Goes with the table."""
    w = a["w"]
    return jnp.concatenate([a["r"] * jnp.stack([jnp.cos(w * t) - 1, jnp.sin(w * t)]), table(t, a)])


def pulled(a, v, t):
    """Breaks away from rest under a force that grows with time."""
    since = t - a["mu"] * G / a["pull"]
    return jnp.stack([a["pull"] * since**3 / 6, 0.0, a["pull"] * since**2 / 2, 0.0])


def followed(a, v, t, steps=4000):
    """Slips all the way: by Runge's and Kutta's method."""

    def rate(t, x):
        s = x[2:] - table(t, a)
        force = jnp.stack([a["pull"] * t, -a["down"]]) - a["mu"] * G * s / jnp.sqrt(s @ s)
        return jnp.concatenate([x[2:], force])

    def step(x, t):
        k1 = rate(t, x)
        k2 = rate(t + h / 2, x + h / 2 * k1)
        k3 = rate(t + h / 2, x + h / 2 * k2)
        k4 = rate(t + h, x + h * k3)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    h = t / steps
    return jax.lax.scan(step, jnp.concatenate([jnp.zeros(2), v]), h * jnp.arange(steps, dtype=float))[0]


STEADY = 0.3 * G / 4 * np.array([np.sin(1.94751905876), -np.cos(1.94751905876)])
MOVES = [
    (straight, {}, [3.0, 1.7]),
    (followed, {"down": 5.0}, [2.0, 1.0]),  # turns on an incline
    (carried, {"r": 0.5, "w": 2.0}, [0.0, 1.0]),
    (followed, {"r": 0.5, "w": 4.0}, STEADY),  # slips on the table steadily, and from rest
    (followed, {"r": 0.5, "w": 4.0}, [0.0, 0.0]),
    (pulled, {"pull": 8.0}, [0.0, 0.0]),
]


def test_blocks():
    """States and Jacobians by args and start."""
    t1, lanes = 1.5, [(NUMBERS | changes, v) for _, changes, v in MOVES]
    args = {key: np.array([numbers[key] for numbers, _ in lanes]) for key in NUMBERS}
    v0 = np.array([[*v, 0.0] for _, v in lanes])
    call = {"t1": t1, "steps": 10, "args_axes": 0, "scheme": TIGHT, "wrt": ("args", "v0")}
    found = ji.sensitivities(BLOCK, np.zeros(3), v0, args=args, **call)
    assert found.trusted.all()
    own = np.concatenate([found.value[c][:, :2] for c in "qv"], axis=1)
    by = [np.concatenate([found.jacobian[c]["args"][key][:, :2] for c in "qv"], axis=1) for key in NUMBERS]
    start = np.concatenate([found.jacobian[c]["v0"][:, :2, :2] for c in "qv"], axis=1)
    slopes = lambda exact, a, v: jax.jacfwd(lambda a, v: (exact(a, v, t1),) * 2, (0, 1), has_aux=True)(a, v)
    both = jax.jit(slopes, static_argnums=0)
    for i, (exact, changes, v) in enumerate(MOVES):
        numbers, v = NUMBERS | changes, jnp.asarray(v, float)
        (of_args, of_start), right = both(exact, numbers, v)
        np.testing.assert_allclose(own[i], right, rtol=0, atol=1e-10)
        # what a block at rest would do with other data is not that of one that moves with its table
        keys = [k for k, key in enumerate(NUMBERS) if numbers[key]]
        expected = np.stack([of_args[list(NUMBERS)[k]] for k in keys], axis=1)
        np.testing.assert_allclose(np.stack([by[k][i] for k in keys], axis=1), expected, rtol=0, atol=1e-9)
        if exact in (straight, followed):
            np.testing.assert_allclose(start[i], of_start, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_slip_that_turns_until_it_stops():
    """The direction tends to that of the pull like a power of the speed, .05, 1 and 4 of them."""
    pull = np.array([0.05, 0.5, 0.8])
    right, by = jax.jit(stopped), jax.jit(jax.jacfwd(stopped))
    start = np.zeros(3), np.array([1.0, 0.4, 0.0])
    call = {"args": {"g": pull, "mu": np.ones(3)}, "args_axes": 0, "t1": 3.2, "steps": 10, "wrt": ("args", "v0")}
    found = ji.sensitivities(IN_SPACE, *start, scheme=TIGHT, **call)
    assert found.trusted.all() and np.max(np.abs(found.value["v"])) < 1e-14
    slopes = found.jacobian["q"]
    for i, g in enumerate(pull):
        x = jnp.array([g, 1.0, *start[1][:2]])
        own = [slopes["args"]["g"][i, :2], slopes["args"]["mu"][i, :2], *slopes["v0"][i, :2, :2].T]
        np.testing.assert_allclose(found.value["q"][i, :2], right(x), rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.stack(own, axis=1), by(x), rtol=0, atol=1e-10)


SPHERE = ji.Problem(
    lambda t, q, v, args: jnp.stack([0 * t, 0 * t, -args["g"], 0 * t, 0 * t]),
    lambda t, q, args: q[2:3] - args["R"],
    lambda q, args: jnp.stack([jnp.ones_like(args["I"])] * 3 + [args["I"]] * 2),
    slip=lambda t, q, v, args: (v[:2] + args["R"] * v[3:])[None],
    friction=lambda args: args["mu"],
)


def rolling(p, v, t):
    """State (8,) of a sphere that slips until it rolls, in directions across its normal:
    coordinates are places and turns along the slip."""
    slip = v[:2] + p["R"] * v[2:]
    speed = jnp.sqrt(slip @ slip)
    push = -p["mu"] * p["g"] * slip / speed
    a = jnp.concatenate([push, push * p["R"] / p["I"]])
    end = speed / (p["mu"] * p["g"] * (1 + p["R"] ** 2 / p["I"]))
    v1 = v + a * end
    return jnp.concatenate([v * end + a * end**2 / 2 + v1 * (t - end), v1])


@pytest.mark.slow
@pytest.mark.parametrize("single", [False, True])
def test_a_sphere_with_spin_slips_until_it_rolls(single):
    """In single precision to a hundred of its tolerances."""
    p, v = {"g": G, "mu": 0.2, "R": 0.3, "I": 0.036}, np.array([1.0, 0.5, -7.0, 3.0])
    kind = np.float32 if single else float
    q0, v0, args = np.array([0, 0, p["R"], 0, 0], kind), np.insert(v, 2, 0.0).astype(kind), jax.tree.map(kind, p)
    scheme, digits = (ji.EventDriven(1e-5, 1e-5), 1e-3) if single else (TIGHT, 1e-10)
    found = ji.sensitivities(SPHERE, q0, v0, t1=2.0, steps=10, args=args, wrt=("args", "q0", "v0"), scheme=scheme)
    assert found.trusted
    flat = np.array([0, 1, 3, 4])
    expected = rolling(p, v, 2.0)
    by_args, by_start = jax.jacfwd(lambda p, v: rolling(p, v, 2.0), argnums=(0, 1))(p, jnp.asarray(v))
    both = lambda get: np.concatenate([get(c)[flat] for c in "qv"])
    np.testing.assert_allclose(both(lambda c: found.value[c]), expected, rtol=0, atol=digits)
    for key in p:
        size = 1 + np.max(np.abs(by_args[key]))
        # the sphere stays on the floor as it grows: its centre rises
        slope = lambda c, key=key: found.jacobian[c]["args"][key] + (key == "R") * found.jacobian[c]["q0"][:, 2]
        np.testing.assert_allclose(both(slope), by_args[key], rtol=0, atol=digits * size)
    own = both(lambda c: found.jacobian[c]["v0"])[:, flat]
    np.testing.assert_allclose(own, by_start, rtol=0, atol=digits * (1 + np.max(np.abs(by_start))))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "steps"), [(TIGHT, 20), (ji.EventCorrected(), 37)], ids=["driven", "corrected"])
def test_a_sphere_bounces_with_spin(scheme, steps):
    """As the disk does in the plane of its slip: an impact that slips, one that sticks, and rolling."""
    p, exact, t1 = MOTIONS["bounces, slips, sticks"]
    ahead = jnp.array([jnp.cos(0.7), jnp.sin(0.7)])
    lift = lambda x: jnp.concatenate([x[0] * ahead, x[1:2], x[2] * ahead])
    args = {"g": p["gy"], "mu": p["mu"], "R": p["R"], "I": p["I"]}

    def end(mu):
        call = {"t1": t1, "steps": steps, "args": args | {"mu": mu}, "e": p["e"], "scheme": scheme, "save": "final"}
        found = ji.solve(SPHERE, lift(jnp.asarray(p["q0"])), lift(jnp.asarray(p["v0"])), **call)
        return jnp.concatenate([found.q[-1], found.v[-1]])

    def right(mu):
        x = exact(p | {"mu": mu}, t1)
        return jnp.concatenate([lift(x[:3]), lift(x[3:])])

    mu = jnp.asarray(p["mu"])
    (value, slope), (expected, rate) = (jax.jvp(f, (mu,), (jnp.ones(()),)) for f in (end, right))
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(slope, rate, rtol=0, atol=1e-10)


def swing(t, x, y, m):
    """Velocity of a table that moves to and fro, with the functions of a module m."""
    return m.stack([x * m.cos(4 * t), y * (m.sin(2.8 * t + 0.4) - m.sin(0.4))])


SHAKEN = BLOCK.replace(
    force=lambda t, q, v, args: jnp.stack([0 * t, 0 * t, 0 * t - G]),
    slip=lambda t, q, v, args: (v[:2] - swing(t, args["x"], args["y"], jnp))[None],
)


def broken(x, y, t1):
    """State (4,) of a block on the shaken table that breaks away once,
    by scipy's implicit method from where it does."""
    speed = lambda t: swing(t, x, y, np)
    change = lambda t: np.array([-4 * x * np.sin(4 * t), 2.8 * y * np.cos(2.8 * t + 0.4)])
    low, high = 0.05, 0.3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.hypot(*change(middle)) < 0.3 * G else (low, middle)
    place = [x / 4 * np.sin(4 * low), -y / 2.8 * (np.cos(2.8 * low + 0.4) - np.cos(0.4)) - y * np.sin(0.4) * low]

    def rate(t, state):
        slip = state[2:] - speed(t)
        return np.concatenate([state[2:], -0.3 * G * slip / np.hypot(*slip)])

    begun = speed(low) - 1e-12 * change(low) / np.hypot(*change(low))
    options = {"method": "Radau", "rtol": 1e-11, "atol": 1e-13, "max_step": 0.02}
    with np.errstate(all="ignore"):
        return solve_ivp(rate, (low, t1), np.concatenate([place, begun]), **options).y[:, -1]


@pytest.mark.slow
def test_a_block_breaks_away_from_a_shaken_table():
    """Its slip begins with the square of time: explicit substeps took 1300 trials for this, 70 tolerances off, and
    derivatives that were noise."""
    call = {"t1": 0.6, "steps": 2, "args": {"x": 1.2, "y": 0.5, "mu": 0.3}, "scheme": ji.EventDriven()}
    start = np.zeros(3), [1.2, 0.0, 0.0]
    found = ji.sensitivities(SHAKEN, *start, wrt="args", **call)
    assert found.trusted and ji.solve(SHAKEN, *start, **call).iterations < 200
    own = np.concatenate([found.value[c][:2] for c in "qv"])
    np.testing.assert_allclose(own, broken(1.2, 0.5, 0.6), rtol=0, atol=1e-9)
    slope = (broken(1.2, 0.5 + 1e-4, 0.6) - broken(1.2, 0.5 - 1e-4, 0.6)) / 2e-4
    own = np.concatenate([found.jacobian[c]["args"]["y"][:2] for c in "qv"])
    np.testing.assert_allclose(own, slope, rtol=0, atol=1e-6)  # that of the differences


@pytest.mark.slow
def test_slip_that_goes_on_through_zero_is_told():
    """A block thrown straight up a steep slope turns round: what changes across its line do, a power of them,
    has no derivative to trust."""
    call = {"t1": 1.0, "steps": 5, "args": NUMBERS | {"down": 6.0}, "wrt": "v0", "scheme": TIGHT}
    found = ji.sensitivities(BLOCK, np.zeros(3), [0.0, 3.0, 0.0], **call)
    assert found.status == ji.Status.DERIVATIVE_EVENTS
    up, down = 6 + 0.3 * G, 6 - 0.3 * G
    since = 1 - 3 / up
    np.testing.assert_allclose(found.value["q"], [0, 4.5 / up - down * since**2 / 2, 0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(found.jacobian["v"]["v0"][1, 1], down / up, rtol=0, atol=1e-10)


def test_a_place_where_friction_jams_that_steps_pass_is_told():
    """The slip turns until its force is infinite, at t = .597; by this h a step leads past: the contact lifts off."""
    data = batch([draw_in_space(142, 3, 1)])
    found = ji.ensemble(
        ROUGH_WALL, **data | {"e": data["e"][:, None]}, h=T1 / 800, scheme=ji.EventCorrected(), save="final"
    )
    assert np.linalg.norm(found.v[0, -1]) > 5  # a contact that jams stops
    assert ji.Status(int(found.status[0])) == ji.Status.FRICTION_JAMMED
