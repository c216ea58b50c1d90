"""Lift-off and landing, and constraints that move: a vibrating table, the descending valley of Adly and Thieu."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq, nnls

from ..mechanics.problem import Problem
from .balls import gravity_force
from .base import Case, Entry, Motion, Orders

_SCHEMES = ("paoli-schatzman", "paoli-schatzman-explicit")
_INELASTIC = (*_SCHEMES, "maury")


# A ball on a floor under a periodic force, or on a table that vibrates: the same motion seen from the table.


def shaking_force(t, q, v, args):
    return jnp.full_like(q, args["amplitude"] * jnp.sin(args["frequency"] * t) - args["weight"])


def floor(t, q, args):
    return q


def vibrating_table(t, q, args):
    return q - args["amplitude"] * jnp.sin(args["frequency"] * t)


def gravity_energy(t, q, v, args):
    return 0.5 * v @ v + args["gravity"] * q[0]


def hops(r0: float, w0: float, lift: float, weight: float, e: float, t1: float) -> tuple[Motion, np.ndarray]:
    """Exact motion of r'' = lift sin t - weight, r >= 0, with its impact times up to t1.

    Flights are closed forms and landings their roots (brentq); a ball at rest leaves the floor when lift sin t
    overtakes weight again, at arcsin(weight / lift) modulo 2 pi. Hops shorter than 1/64 are not resolved.
    """

    def height(t, start, r, w):
        s = t - start
        return r + w * s + lift * (s * np.cos(start) - (np.sin(t) - np.sin(start))) - 0.5 * weight * s**2

    def speed(t, start, w):
        return w + lift * (np.cos(start) - np.cos(t)) - weight * (t - start)

    flights, contacts, impacts = [], [], []
    t, r, w = 0.0, r0, w0
    while t <= t1:
        if r == 0.0 and w == 0.0 and lift * np.sin(t) < weight:
            takeoff = np.arcsin(weight / lift)
            contacts.append((t, takeoff + 2.0 * np.pi * np.ceil((t - takeoff) / (2.0 * np.pi))))
            t = contacts[-1][1]
        flights.append((t, r, w))
        grid = t + np.arange(0.0, max(t1 - t, 0.0) + 0.25, 1.0 / 64.0)
        landed = np.flatnonzero(height(grid[1:], t, r, w) <= 0.0)
        if not landed.size:
            break
        t = brentq(height, grid[landed[0]], grid[landed[0] + 1], args=flights[-1], xtol=1e-15)
        r, w = 0.0, e * abs(speed(t, flights[-1][0], w))
        impacts.append(t)
    start, position, velocity = np.array(flights).T

    def exact(t):
        k = np.maximum(np.searchsorted(start, t, side="right") - 1, 0)
        q, v = height(t, start[k], position[k], velocity[k]), speed(t, start[k], velocity[k])
        resting = np.any([(t >= land) & (t < leave) for land, leave in contacts], axis=0)
        return np.where(resting, 0.0, q)[:, None], np.where(resting, 0.0, v)[:, None]

    return exact, np.array([s for s in impacts if s <= t1])


def _lift_off(e: float, t1: float, orders: dict[str, Orders], note: str) -> Case:
    args = {"amplitude": 1.0, "frequency": 1.0, "weight": 0.5}
    exact, impacts = hops(0.0, 0.0, args["amplitude"], args["weight"], e, t1)
    _, v1 = exact(np.array([t1]))
    impulse = v1[0] - args["amplitude"] * (1.0 - np.cos(t1)) + args["weight"] * t1
    return Case(np.zeros(1), np.zeros(1), t1, e, args, exact, impulse, impacts, orders, note)


def _table(t1: float = 20.0) -> Case:
    """Case of the vibrating table: relative to it, q - 2 sin t is a lift-off motion with force 2 (sin t - 1/2)."""
    args = {"gravity": 1.0, "amplitude": 2.0, "frequency": 1.0}
    q0, v0, amplitude = 1.5, 0.0, args["amplitude"]
    relative, impacts = hops(q0, v0 - amplitude, amplitude, args["gravity"], 0.0, t1)

    def exact(t):
        r, w = relative(t)
        return r + amplitude * np.sin(t)[:, None], w + amplitude * np.cos(t)[:, None]

    _, v1 = exact(np.array([t1]))
    orders = {label: Orders(1.0, 1.0) for label in _SCHEMES} | {"maury": Orders(1.0, 1.0, 1.0)}
    note = "the first impact is touch-and-go: the table then slows down faster than the ball falls"
    impulse = v1[0] - v0 + args["gravity"] * t1
    return Case(np.array([q0]), np.array([v0]), t1, 0.0, args, exact, impulse, impacts, orders, note)


# The descending valley: two C^{1,1} constraints, obtuse corner at x = 2.


def no_force(t, q, v, args):
    return jnp.zeros_like(q)


def ramp(s):
    """C^{1,1} ramp: phi(s) = 0 for s <= 0, s^2/4 up to 1, s/2 - 1/4 beyond;
    automatic differentiation gives its derivative exactly."""
    c = jnp.clip(s, 0.0, 1.0)
    return c * (0.5 * s - 0.25 * c)


def valley(t, q, args):
    level = q[1] + args["speed"] * t
    return jnp.stack([level + ramp(q[0]), level + ramp(args["width"] - q[0])])


def valley_energy(t, q, v, args):
    """Kinetic energy in the frame of the valley: conserved in flight, never increased by an impact."""
    return 0.5 * (v[0] ** 2 + (v[1] + args["speed"]) ** 2)


def inelastic(w: np.ndarray, normals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Velocity after an inelastic impact (Moreau, e = 0): w projected on {u : normals u >= 0}; and the impulses."""
    impulses, _ = nnls(normals.T, -w)
    return w + normals.T @ impulses, impulses


# Pieces of the floor, in the frame of the valley: constraint, and level -(c0 + c1 x + c2 x^2).
_FLAT, _LEFT_HUMP, _LEFT_SLOPE = (0, 0.0, 0.0, 0.0), (0, 0.0, 0.0, 0.25), (0, -0.25, 0.5, 0.0)
_RIGHT_SLOPE = (1, 1.75, -0.5, 0.0)


def _valley(q0, v0, t1: float, hits, orders: dict[str, Orders], note: str) -> Case:
    """Case in the valley, whose floor is made of lines and parabolas.

    In the frame of the valley motions slide on straight slopes and leave humps tangentially.
    Each entry of ``hits`` lists the pieces of the floor that an impact hits; its time is the first root of the gap to
    the first of these pieces.
    """
    drift = np.array([0.0, 1.0])
    q, w = np.array(q0), np.array(v0) + drift
    points, rates, moments, impulse = [q], [w], [0.0], np.zeros(2)
    for pieces in hits:
        _, c0, c1, c2 = pieces[0]
        a, b, c = c2 * w[0] ** 2, (c1 + 2.0 * c2 * q[0]) * w[0] + w[1], q[1] + c0 + c1 * q[0] + c2 * q[0] ** 2
        duration = 2.0 * c / (-b + np.sqrt(b**2 - 4.0 * a * c))
        q = q + duration * w
        w, percussions = inelastic(w, np.array([(c1 + 2.0 * c2 * q[0], 1.0) for _, _, c1, c2 in pieces]))
        impulse[[piece[0] for piece in pieces]] += percussions
        points.append(q)
        rates.append(w)
        moments.append(moments[-1] + duration)
    nodes, velocities, times = np.array(points), np.array(rates), np.array(moments)

    def exact(t):
        k = np.searchsorted(times, t, side="right") - 1
        return nodes[k] + (t - times[k])[:, None] * velocities[k] - t[:, None] * drift, velocities[k] - drift

    args = {"speed": 1.0, "width": 4.0}
    return Case(np.array(q0), np.array(v0), t1, 0.0, args, exact, impulse, times[1:], orders, note)


# Broken lines are exact at the nodes, and their velocity is wrong during one step an impact: O(h), but with one impact
# only the factor is where in its step it falls, and no order can be observed.
_EXACT, _EXACT_ONCE = Orders(None, 1.0, exact=True), Orders(None, None, exact=True)
_FIRST = Orders(1.0, 1.0, 1.0)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="B06",
        name="lift-off",
        title="Contact, lift-off, landing",
        statement="q'' = sin t - 1/2, q >= 0, from rest: pressed on the floor until pi/6, lifted off, landing at "
        "5.18. At e = 0 the motion is 2 pi-periodic.",
        problem=Problem(shaking_force, floor),
        cases={
            "e=0": _lift_off(
                0.0,
                15.0,
                {label: Orders(2.0, 1.0, 2.0) for label in _SCHEMES}
                | {"maury": Orders(1.0, 1.0), "maury-half-kick": Orders(2.0, 1.0, None)},
                "sticks when it lands, until pi/6 + 2 k pi",
            ),
            "e=1/2": _lift_off(0.5, 12.0, {label: Orders(1.0, 1.0, 1.0) for label in _SCHEMES}, "bounces"),
        },
        hypotheses="one smooth constraint: Paoli-Schatzman, Paoli (H1-H6); at e = 0 also Bernicot-Lefebvre-Lepot "
        "and Adly-Thieu",
        source="constructed for this project",
    ),
    Entry(
        id="B08",
        name="vibrating-table",
        title="Inelastic ball on a vibrating table",
        statement="q'' = -1, q >= 2 sin t, e = 0; q - 2 sin t obeys the lift-off problem with twice its force.",
        problem=Problem(gravity_force, vibrating_table, energy=gravity_energy),
        cases={"e=0": _table()},
        hypotheses="moving constraint, e = 0: Bernicot-Lefebvre-Lepot, Adly-Thieu",
        source="A. Mehta and J. M. Luck, Phys. Rev. Lett. 65 (1990) 393-396",
    ),
    Entry(
        id="B10",
        name="adly-thieu",
        title="The descending valley of Adly and Thieu",
        statement="no force; y + t + phi(x) >= 0 and y + t + phi(4 - x) >= 0 with phi(s) = 0, s^2/4, s/2 - 1/4 on "
        "s <= 0, [0, 1], s >= 1; e = 0.",
        problem=Problem(no_force, valley, energy=valley_energy),
        cases={
            "a": _valley(
                (1.5, 1.0),
                (0.0, -3.0),
                5.0,
                [(_LEFT_SLOPE,), (_RIGHT_SLOPE, _LEFT_SLOPE)],
                dict.fromkeys(_INELASTIC, _EXACT),
                "slope at 3/4, corner at 11/8, up the other slope, tangential take-off at 83/24",
            ),
            "b": _valley(
                (2.0, 1.0),
                (0.0, -3.0),
                3.0,
                [(_LEFT_SLOPE, _RIGHT_SLOPE)],
                dict.fromkeys(_INELASTIC, _EXACT_ONCE),
                "hits the corner at 7/8 and stays",
            ),
            "c": _valley(
                (0.5, 0.5),
                (0.2, -2.0),
                8.0,
                [(_LEFT_HUMP,), (_RIGHT_SLOPE,)],
                dict.fromkeys(_INELASTIC, _FIRST),
                "lands on a hump, flies off tangentially, lands on the other slope",
            ),
            "d": _valley(
                (-2.0, 0.5),
                (1.0, -2.0),
                7.0,
                [(_FLAT,)],
                dict.fromkeys(_SCHEMES, _EXACT_ONCE) | {"maury": _FIRST},
                "slides on the flat part, flies over the valley, grazes at x = 4, where a linearised constraint pushes",
            ),
        },
        hypotheses="C^{1,1} moving constraints: Adly-Thieu A1-A4 as printed; the angle condition with the right sign "
        "(<grad f_1, grad f_2> <= 0) fails at the corner",
        source="S. Adly and N. N. Thieu, Fixed Point Theory Algorithms Sci. Eng. 2022:3, section 5",
    ),
)
