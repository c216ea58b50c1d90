"""Rigid bodies in space that roll or are tossed: a disk in steady motion, a rattleback, a cube. Coordinates are the
centre of mass and a quaternion p.

As in `space`, orientations are those of p/|p|, and masses are 1: moments of inertia are per mass [m^2].
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion
from .friction import GRAVITY, _friction
from .space import _QUATERNION, _rates, _turning_force, _turning_mass

UP = np.array([0.0, 0.0, 1.0])
RADIUS = 0.04


def _mass(q, args):
    none = jnp.zeros((3, 4), q.dtype)
    return jnp.block([[jnp.eye(3, dtype=q.dtype), none], [none.T, _turning_mass(q[3:], args)]])


def _force(t, q, v, args):
    weight = jnp.stack([0 * q[0], 0 * q[0], 0 * q[0] - args["gravity"]])
    return jnp.concatenate([weight, _turning_force(t, q[3:], v[3:], args)])


def _energy(t, q, v, args):
    return 0.5 * v @ _mass(q, args) @ v + args["gravity"] * q[2]


def _turn(p, xp=jnp):
    """The rotation (3, 3) of p/|p|."""
    w, x, y, z = p
    a = (2 / (p @ p)) * p
    rows = [
        [1 - y * a[2] - z * a[3], x * a[2] - w * a[3], x * a[3] + w * a[2]],
        [x * a[2] + w * a[3], 1 - x * a[1] - z * a[3], y * a[3] - w * a[1]],
        [x * a[3] - w * a[2], y * a[3] + w * a[1], 1 - x * a[1] - y * a[2]],
    ]
    return xp.stack([xp.stack(row) for row in rows])


def _slip_at(arm, q, v):
    """Velocity (2,) along the floor of the point of the body at ``arm`` (3,) from its centre, in its axes."""
    return v[:2] + (_turn(q[3:]) @ jnp.cross(_rates(q[3:]) @ v[3:], arm))[:2]


def _times(a, b):
    """Product (..., 4) of quaternions."""
    w = a[..., :1] * b[..., :1] - np.sum(a[..., 1:] * b[..., 1:], axis=-1, keepdims=True)
    rest = a[..., :1] * b[..., 1:] + b[..., :1] * a[..., 1:] + np.cross(a[..., 1:], b[..., 1:])
    return np.concatenate([w, rest], axis=-1)


def _about(axis, angle):
    """Quaternions (k, 4) of turns by angles (k,) about an axis (3,)."""
    half = np.asarray(angle)[..., None] / 2
    return np.concatenate([np.cos(half), np.sin(half) * np.asarray(axis)], axis=-1)


def _problem(gap, slip, contacts, **options) -> Problem:
    coordinates = ("x", "y", "z", *_QUATERNION)
    units = dict.fromkeys(("x", "y", "z", *contacts), "m")
    rubs = {"slip": slip, "friction": _friction}
    return Problem(
        _force, gap, _mass, energy=_energy, coordinates=coordinates, quaternions=(3,), contacts=contacts, units=units,
        **rubs, **options
    )  # fmt: skip


# R03: a disk


def _lowest_of_rim(q, args):
    """The lowest point (3,) of the rim, in the axes of the disk."""
    down = -_turn(q[3:])[2].at[2].set(0.0)
    return args["radius"] / jnp.linalg.norm(down) * down


def _disk_gap(t, q, args):
    return q[2:3] + (_turn(q[3:])[2] @ _lowest_of_rim(q, args))[None]


def _disk_slip(t, q, v, args):
    return _slip_at(_lowest_of_rim(q, args), q, v)[None]


def rolling_disk(tilt: float, rate: float, radius: float) -> Motion:
    """Motion of a thin disk that rolls on its rim while all turns about the vertical with ``rate``.

    rate sin(tilt) (3/2 r w - r/4 rate cos(tilt)) + g cos(tilt) = 0, w the angular velocity about its axis.
    """
    sin, cos = np.sin(tilt), np.cos(tilt)
    about = (rate * cos / 4 - GRAVITY * cos / (radius * rate * sin)) * 2 / 3
    spin, circle = about - rate * cos, -radius * about / rate

    def exact(t):
        t = np.asarray(t, float)
        p = _times(_times(_about(UP, rate * t), _about((0, 1, 0), tilt)), _about(UP, spin * t))
        axis = np.array([0.0, *UP])
        p_rate = (rate * _times(axis, p) + spin * _times(p, axis)) / 2
        c, s = np.cos(rate * t), np.sin(rate * t)
        place = np.stack([circle * c, circle * s, 0 * c + radius * sin], axis=-1)
        speed = circle * rate * np.stack([-s, c, 0 * c], axis=-1)
        return np.concatenate([place, p], axis=-1), np.concatenate([speed, p_rate], axis=-1)

    return exact


def resting_rate(tilt: float, radius: float) -> float:
    """The rate with which a disk rolls whose centre rests."""
    return np.sqrt(4 * GRAVITY / (radius * np.sin(tilt)))


def _disk(tilt: float, rate: float, mu: float, t1: float, note: str) -> Case:
    args = {"moments": RADIUS**2 * np.array([0.25, 0.25, 0.5]), "radius": RADIUS, "gravity": GRAVITY, "friction": mu}
    exact = rolling_disk(tilt, rate, RADIUS)
    q0, v0 = (x[0] for x in exact(np.zeros(1)))
    return Case(q0, v0, t1, 0.0, args, exact, np.array([GRAVITY * t1]), np.zeros(0), note=note)


# R04: a rattleback


def _lowest_of_ellipsoid(up, args, xp=jnp):
    """The lowest point (3,) from the centre of mass, in the principal axes, where ``up`` (3,) is the vertical."""
    c, s, (x, y, z) = xp.cos(args["turn"]), xp.sin(args["turn"]), up
    n = xp.stack([c * x + s * y, c * y - s * x, z])
    x, y, z = -(args["half"] ** 2) * n / xp.linalg.norm(args["half"] * n)
    return xp.stack([c * x - s * y, s * x + c * y, z + args["centre"]])


def _stone_gap(t, q, args):
    up = _turn(q[3:])[2]
    return q[2:3] + (up @ _lowest_of_ellipsoid(up, args))[None]


def _stone_slip(t, q, v, args):
    return _slip_at(_lowest_of_ellipsoid(_turn(q[3:])[2], args), q, v)[None]


def rolling_stone(args, start, t1: float) -> Motion:
    """Motion (q, v) of a stone that rolls without slip from ``start``, p (4,) and the angular velocity w (3,) in its
    axes; no closed form: integrated to 1e-13.

    With the arm a to the contact the centre has v = -w x a, the floor's force is v' + g up, and J w' + w x J w = a x
    (v' + g up) is linear in w'.
    """
    start = np.concatenate([np.zeros(2), *start])

    def state(x):
        """q, v and, in the axes of the stone, the rate of w, where it is at x, y with p and w."""
        p, w, moments = x[2:6], x[6:], args["moments"]
        turn = _turn(p)
        arm, arm_rate = jax.jvp(lambda up: _lowest_of_ellipsoid(up, args), (turn[2],), (jnp.cross(turn[2], w),))
        speed = jnp.cross(arm, w)
        known = args["gravity"] * turn[2] - jnp.cross(w, arm_rate - speed)
        matrix = jnp.diag(moments + arm @ arm) - jnp.outer(arm, arm)
        turning = jnp.linalg.solve(matrix, jnp.cross(arm, known) - jnp.cross(w, moments * w))
        height, p_rate = -turn[2:] @ arm, _rates(p).T @ w / 4
        return jnp.concatenate([x[:2], height, p]), jnp.concatenate([turn @ speed, p_rate]), turning

    def slope(x):
        _, v, turning = state(x)
        return jnp.concatenate([v[:2], v[3:], turning])

    rows = jax.jit(jax.vmap(state))

    @lru_cache
    def path():
        compiled = jax.jit(slope)
        slopes = lambda t, x: np.asarray(compiled(x))
        return solve_ivp(slopes, (0.0, t1), start, "DOP853", rtol=1e-12, atol=1e-14, dense_output=True).sol

    def exact(t):
        with jax.enable_x64(True):
            q, v, _ = rows(path()(np.asarray(t, float)).T)
        return np.array(q), np.array(v)

    return exact


def _stone(spin: float, tilt: float, t1: float, impulse: float, note: str) -> Case:
    """Case of the stone of Kane and Levinson, tilted by the angle about both axes of its shape, with the angular
    velocity ``spin`` about its third axis, and the total ``impulse`` of the floor,
    g t1 and what the velocity upwards has changed."""
    inertia = 1e-4 * np.array([[2.0, -0.2], [-0.2, 16.0]])
    turn = np.arctan2(2 * inertia[0, 1], inertia[0, 0] - inertia[1, 1]) / 2
    turn = turn - np.pi / 2 if turn > np.pi / 4 else turn + np.pi / 2 if turn < -np.pi / 4 else turn
    c, s = np.cos(turn), np.sin(turn)
    first, second = (np.array(x) @ inertia @ np.array(x) for x in ((c, s), (-s, c)))
    # of the shape's axes in the principal axes
    args = {
        "moments": np.array([first, second, 17e-4]),
        "turn": -turn,
        "half": np.array([0.2, 0.03, 0.02]),
        "centre": 0.01,
    }
    args |= {"gravity": GRAVITY, "friction": 1.0}
    p = _times(_times(_about((1, 0, 0), tilt), _about((0, 1, 0), tilt)), _about(UP, turn))
    w, turn = np.array([0.0, 0.0, spin]), _turn(p, np)
    # by numpy, since the catalogue may be imported while jax traces
    arm = _lowest_of_ellipsoid(turn[2], args, np)
    q0 = np.concatenate([[0.0, 0.0, -turn[2] @ arm], p])
    v0 = np.concatenate([turn @ np.cross(arm, w), _rates(p, np).T @ w / 4])
    exact = rolling_stone(args, (p, w), t1)
    return Case(q0, v0, t1, 0.0, args, exact, np.array([impulse]), np.zeros(0), note=note)


# R05: a tossed cube


def _corners(args, xp=jnp):
    return args["side"] / 2 * xp.asarray(list(product((1.0, -1.0), repeat=3)))


def _cube_gaps(t, q, args):
    return q[2] + _corners(args) @ _turn(q[3:])[2]


def _cube_slip(t, q, v, args):
    spin = _rates(q[3:]) @ v[3:]
    return v[None, :2] + jnp.cross(spin[None], _corners(args)) @ _turn(q[3:])[:2].T


def tossed_cube(args, e: float, start, t1: float) -> tuple[Motion, list[float], np.ndarray]:
    """Motion of a cube whose corners hit the floor one at a time, its impact times, and the impulses (8,); ``start``:
    its place, p, velocity and spin w.

    All moments of a cube are equal, so that w is constant in flight. A corner that hits a rough floor sticks:
    friction has to suffice.
    """
    corners, moment, g = _corners(args, np), args["side"] ** 2 / 6, args["gravity"]

    def flown(state, s):
        place, p, speed, spin = state
        size = np.linalg.norm(spin)
        fall = np.multiply.outer(np.square(s), [0, 0, -g / 2])
        return (
            place + np.multiply.outer(s, speed) + fall,
            _times(_about(spin / size, size * np.asarray(s)), p),
            speed,
            spin,
        )

    def heights(state, s):
        place, p, *_ = flown(state, np.atleast_1d(s))
        return place[:, 2:] + np.array([corners @ _turn(a, np)[2] for a in p])

    state, now, begins, states, impulse = start, 0.0, [0.0], [start], np.zeros(8)
    while now < t1:
        grid = np.linspace(1e-6, t1 - now + 1e-6, 400)
        low = np.nonzero(heights(state, grid).min(axis=1) < 0)[0]
        if not len(low):
            break
        i = int(np.argmin(heights(state, grid[low[0]])[0]))
        s = brentq(lambda s: heights(state, s)[0, i], grid[low[0] - 1], grid[low[0]], xtol=1e-15, rtol=1e-15)  # noqa: B023
        place, p, speed, spin = flown(state, s)
        speed = speed - np.array([0, 0, g * s])
        arm = _turn(p, np) @ corners[i]
        matrix = np.eye(3) + ((arm @ arm) * np.eye(3) - np.outer(arm, arm)) / moment
        before = speed + np.cross(spin, arm)
        push = np.array([0, 0, -(1 + e) * before[2] / matrix[2, 2]])
        if args["friction"] > 0:
            push = np.linalg.solve(matrix, np.array([0, 0, -e * before[2]]) - before)
            assert np.hypot(*push[:2]) <= args["friction"] * push[2]
        state, now = (place, p, speed + push, spin + np.cross(arm, push) / moment), now + s
        impulse[i] += push[2]
        begins.append(now)
        states.append(state)

    def exact(t):
        t = np.asarray(t, float)
        q, v = np.empty((len(t), 7)), np.empty((len(t), 7))
        for k, n in enumerate(np.searchsorted(begins, t, side="right") - 1):
            s = t[k] - begins[n]
            place, p, speed, spin = flown(states[n], s)
            q[k] = np.concatenate([place, p])
            v[k] = np.concatenate([speed - np.array([0, 0, g * s]), _times(np.array([0.0, *spin]), p) / 2])
        return q, v

    return exact, begins[1:], impulse


def _cube(mu: float, e: float, spin, t1: float, note: str) -> Case:
    side = 0.1
    args = {"moments": side**2 / 6 * np.ones(3), "side": side, "gravity": GRAVITY, "friction": mu}
    start = np.array([0, 0, 0.5]), _about((0.6, 0.8, 0), 0.5), np.array([1.0, -0.5, 0.0]), np.array(spin)
    exact, times, impulse = tossed_cube(args, e, start, t1)
    q0, v0 = (x[0] for x in exact(np.zeros(1)))
    return Case(q0, v0, t1, e, args, exact, impulse, np.array(times), note=note)


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="R03",
        name="rolling-disk",
        title="Euler's disk in steady motion",
        statement="A thin disk that rolls on its rim without slip: its axis goes round the vertical at a constant rate "
        "and tilt. args: its principal moments (3,), "
        "radius, gravity, friction.",
        problem=_problem(_disk_gap, _disk_slip, ("rim",)),
        cases={
            "centre-rests": _disk(0.6, resting_rate(0.6, RADIUS), 0.3, 0.25, "Euler's disk: its centre is at rest"),
            "circle": _disk(1.2, 9.0, 0.6, 0.5, "its centre goes round in a circle"),
        },
        hypotheses="Friction, one contact that lasts.",
        source="Textbooks of mechanics; Moffatt, Nature 404 (2000) 833, for what ends it.",
    ),
    Entry(
        id="R04",
        name="rattleback",
        title="Rattleback",
        statement="An ellipsoid whose inertia is turned by ``turn`` against its shape, with semiaxes ``half`` (3,), "
        "and whose centre of mass lies the length ``centre`` below "
        "that of the shape, rolls without slip. args: moments (3,), turn, half, centre, gravity, friction.",
        problem=_problem(_stone_gap, _stone_slip, ("floor",)),
        cases={
            "keeps-on": _stone(5.0, np.deg2rad(0.5), 0.5, 4.90709616543, "its spin goes on"),
            "reverses": _stone(-5.0, np.deg2rad(0.5), 3.5, 34.219600977, "its spin turns round"),
        },
        hypotheses="Friction, one contact that lasts.",
        source="Kane and Levinson, International Journal of Non-Linear Mechanics 17 (1982) 175: their stone.",
    ),
    Entry(
        id="R05",
        name="tossed-cube",
        title="Tossed cube",
        statement="A uniform cube that falls onto its corners, one at a time. args: its principal moments (3,), side, "
        "gravity, friction.",
        problem=_problem(_cube_gaps, _cube_slip, tuple(f"corner {i + 1}" for i in range(8))),
        cases={
            "smooth": _cube(0.0, 0.6, (3.0, -2.0, 5.0), 0.6, "without friction"),
            "rough": _cube(1.0, 0.6, (3.0, -2.0, 5.0), 0.6, "corners stick while they hit the floor"),
        },
        hypotheses="Friction, impacts of one contact at a time.",
        source="",
    ),
)
