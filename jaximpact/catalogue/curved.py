"""Curved walls, curved coordinates and forces that depend on the velocity; one degree of freedom along the wall."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.special import ellipeinc, ellipj, ellipk, ellipkinc, elliprd, elliprf

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion, Orders
from .billiards import flights

_BOTH = ("paoli-schatzman", "paoli-schatzman-explicit")
_FIRST = Orders(impulse=1.0)


def _down(t, q, v, args):
    return jnp.zeros_like(q).at[1].set(-args["gravity"])


def _energy(t, q, v, args):
    return 0.5 * v @ v + args["gravity"] * q[1]


# B13: polar coordinates


def _polar_lagrangian(t, q, v, args):
    return 0.5 * (v[0] ** 2 + (q[0] * v[1]) ** 2)


def _strip(t, q, args):
    x = q[0] * jnp.cos(q[1])
    return jnp.stack([args["width"] - x, args["width"] + x])


def to_polar(motion: Motion) -> Motion:
    """A plane motion in polar coordinates (r, theta), theta in (-pi, pi]."""

    def polar(t):
        q, v = motion(t)
        (x, y), (vx, vy) = q.T, v.T
        r = np.hypot(x, y)
        return np.stack([r, np.arctan2(y, x)], 1), np.stack([(x * vx + y * vy) / r, (x * vy - y * vx) / r**2], 1)

    return polar


def _polar(e: float, note: str = "") -> Case:
    t1 = 6.0
    times, x, vx, impulse = [0.0, 0.8], [0.2, 1.0], [1.0, -e], np.array([1.0 + e, 0.0])
    while e > 0.0 and (time := times[-1] + 2.0 / abs(vx[-1])) <= t1:
        impulse[len(times) % 2 ^ 1] += (1.0 + e) * abs(vx[-1])
        times.append(time)
        x.append(-x[-1])
        vx.append(-e * vx[-1])
    starts = np.array(times)
    q = np.stack([x, 0.5 + 0.3 * starts], 1)
    exact = to_polar(flights(starts, q, np.stack([vx, np.full(starts.size, 0.3)], 1)))
    q0, v0 = (y[0] for y in exact(np.zeros(1)))
    orders = dict.fromkeys((*_BOTH, "maury") if e == 0.0 else _BOTH, _FIRST)
    return Case(q0, v0, t1, e, {"width": 1.0}, exact, impulse, starts[1:], orders, note)


POLAR = Entry(
    id="B13",
    name="polar-particle",
    title="Free particle in a strip, in polar coordinates",
    statement="A free point between the walls |x| <= width, in q = (r, theta): mass diag(1, r^2), and Coriolis and "
    "centrifugal forces from the Lagrangian. args: width.",
    problem=Problem.from_lagrangian(_polar_lagrangian, _strip),
    cases={"e=0.9": _polar(0.9), "e=0": _polar(0.0, "slides along x = 1 with zero multiplier after the impact")},
    hypotheses="Mass depending on q, force depending on v (Paoli-Schatzman, Paoli II); e = 0: also Maury's scheme.",
    source="Straight lines in Cartesian coordinates, dy/dt = 0.3 throughout.",
)


# B14: charged particle skipping on a wall


def _magnetic(t, q, v, args):
    return args["field"] * jnp.stack([v[1], -v[0]])


def _floor(t, q, args):
    return q[1:]


def _kinetic(t, q, v, args):
    return 0.5 * v @ v


def skipping(q0, v0, e: float, t1: float) -> tuple[np.ndarray, Motion]:
    """Motion of a charge in a magnetic field above the wall y = 0: (impact times, motion).

    It continues beyond the accumulation of impacts. Flights are circular arcs of unit frequency, on which vx - y = c is
    conserved. An arc that leaves the wall with velocity (c, w), c > 0, lasts 2 atan(w/c) and comes back with (c, -w).
    """
    c, speed = v0[0] - q0[1], np.hypot(*v0)
    time, w = np.arctan2(v0[1], v0[0]) + np.arccos(c / speed), np.sqrt(speed**2 - c**2)
    x = q0[0] + v0[1] + w  # x + vy is conserved in flight
    starts = [(0.0, *q0, *v0)]
    while time <= t1 and w > 1e-17 * speed:
        w *= e
        starts.append((time, x, 0.0, c, w))
        time, x = time + 2.0 * np.arctan2(w, c), x + 2.0 * w
    times, *state = np.array(starts).T
    x_rest, t_rest = x, time if time <= t1 else np.inf

    def motion(t):
        t = np.asarray(t, float)
        k = np.searchsorted(times, t, side="right") - 1
        x, y, vx, vy = (component[k] for component in state)
        cos, sin = np.cos(t - times[k]), np.sin(t - times[k])
        q = np.stack([x + vx * sin + vy * (1.0 - cos), y + vy * sin - vx * (1.0 - cos)], 1)
        v = np.stack([vx * cos + vy * sin, vy * cos - vx * sin], 1)
        slides = t >= t_rest
        q[slides] = np.stack([x_rest + c * (t[slides] - t_rest), np.zeros(slides.sum())], 1)
        v[slides] = c, 0.0
        return q, v

    return times[1:], motion


def _skips(e: float, note: str) -> Case:
    q0, v0, t1 = np.array([0.0, 0.5]), np.array([1.0, 0.3]), 8.0
    impacts, exact = skipping(q0, v0, e, t1)
    q, v = (y[0] for y in exact(np.array([t1])))
    impulse = np.array([v[1] - v0[1] + q[0] - q0[0]])  # d(vy) = -vx dt + dLambda
    return Case(q0, v0, t1, e, {"field": 1.0}, exact, impulse, impacts, dict.fromkeys(_BOTH, _FIRST), note)


MAGNETIC = Entry(
    id="B14",
    name="magnetic-skipping",
    title="Magnetic skipping orbit",
    statement="A charged point above a wall in a magnetic field: force field * (vy, -vx), y >= 0. args: field.",
    problem=Problem(_magnetic, _floor, energy=_kinetic),
    cases={
        "e=0.6": _skips(0.6, "impacts accumulate, then the point slides with multiplier vx"),
        "e=1": _skips(1.0, "over long times the backward force drifts in energy like exp(hT/2), the centred does not"),
    },
    hypotheses="Force depending on v (Paoli-Schatzman, Paoli II). vx - y is conserved through impacts.",
    source="Skipping orbits of a charge at a wall.",
)


# B15: sliding off a cylinder


def _outside(t, q, args):
    return jnp.sqrt(jnp.sum(q * q, keepdims=True)) - args["radius"]


def cylinder_slide(v0: float) -> tuple[float, float, Motion]:
    """Slide from the top of the unit cylinder at speed v0 under unit gravity: (time of detachment, impulse, motion).

    The angle from the top is theta = 2 am(v0 t/2 | -4/v0^2), written with the parameter 4/(4 + v0^2) in (0, 1); the
    contact force 3 cos(theta) - 2 - v0^2 vanishes at the detachment.
    """
    frequency, parameter = np.sqrt(1.0 + v0 * v0 / 4.0), 4.0 / (4.0 + v0 * v0)
    s = np.sin(0.5 * np.arccos((2.0 + v0 * v0) / 3.0))
    # Carlson's forms of F(phi|-m) and E(phi|-m) - F(phi|-m) at sin(phi) = s, m = 4/v0^2
    carlson = (1.0 - s * s, 1.0 + 4.0 * s * s / v0**2, 1.0)
    t_off = 2.0 / v0 * s * elliprf(*carlson)
    impulse = (1.0 - v0 * v0) * t_off - 4.0 / v0 * s**3 * elliprd(*carlson)

    def on_wall(t):
        sn, cn, dn, _ = ellipj(frequency * t, parameter)
        sine, cosine, rate = 0.5 * v0 / frequency * sn / dn, cn / dn, v0 / dn  # of theta/2; d(theta)/dt
        x, y = 2.0 * sine * cosine, 1.0 - 2.0 * sine * sine
        return np.stack([x, y], 1), np.stack([rate * y, -rate * x], 1)

    (start,), (speed,) = on_wall(np.array([t_off]))
    flight = flights([0.0], [start], [speed], [0.0, -1.0])

    def motion(t):
        t = np.asarray(t, float)
        slides = (t < t_off)[:, None]
        (q, v), (q_free, v_free) = on_wall(np.minimum(t, t_off)), flight(t - t_off)
        return np.where(slides, q, q_free), np.where(slides, v, v_free)

    return t_off, impulse, motion


def _slide(e: float) -> Case:
    _, impulse, exact = cylinder_slide(0.3)
    orders = {"paoli-schatzman": _FIRST, "paoli-schatzman-explicit": Orders(2.0, 1.0, 2.0)}
    if e == 0.0:
        orders["maury"] = Orders(2.0, 1.0, 1.0)
    args = {"gravity": 1.0, "radius": 1.0}
    note = "detaches at cos(theta) = (2 + v0^2)/3; the motion has no impact and is the same for every e"
    return Case(
        np.array([0.0, 1.0]), np.array([0.3, 0.0]), 3.0, e, args, exact, np.array([impulse]), np.empty(0), orders, note
    )


CYLINDER = Entry(
    id="B15",
    name="cylinder",
    title="Sliding off a cylinder",
    statement="A point mass slides from the top of a cylinder, leaves it, and falls. args: gravity, radius.",
    problem=Problem(_down, _outside, energy=_energy),
    cases={"e=0": _slide(0.0), "e=1/2": _slide(0.5)},
    hypotheses="One convex constraint in persistent contact, then released: all four papers.",
    source="Textbook problem; elliptic functions, DLMF 22 and 19.25.",
)


# B16: drop into a bowl


def _inside(t, q, args):
    return args["radius"] - jnp.sqrt(jnp.sum(q * q, keepdims=True))


def bowl_swing(x0: float, y0: float, t1: float) -> tuple[float, float, Motion]:
    """Drop from rest at (x0, y0), x0 > 0, in the unit bowl, e = 0: (impact time, impulse over [0, t1], motion).

    After the impact it slides: its angle a from the lowest point satisfies sin(a/2) = k sn(u, k^2), da/dt = 2 k cn(u,
    k^2), where k = sin(amplitude / 2), u = t - t_hit + c with a constant c, and the contact force
    is 3 cos(a) - 2 cos(amplitude).
    """
    a0 = np.arcsin(x0)
    t_hit = np.sqrt(2.0 * (y0 + np.cos(a0)))
    k = np.hypot(np.sin(0.5 * a0), 0.5 * t_hit * np.sin(a0))
    m = k * k
    c = 2.0 * ellipk(m) - ellipkinc(np.arcsin(np.sin(0.5 * a0) / k), m)  # on the way down: cn < 0
    flight = flights([0.0], [[x0, y0]], [[0.0, 0.0]], [0.0, -1.0])

    def swing(t):
        sn, cn, dn, _ = ellipj(t - t_hit + c, m)
        x, y, rate = 2.0 * k * sn * dn, 2.0 * m * sn * sn - 1.0, 2.0 * k * cn
        return np.stack([x, y], 1), np.stack([-rate * y, rate * x], 1)

    def motion(t):
        t = np.asarray(t, float)
        falls = (t < t_hit)[:, None]
        (q, v), (q_wall, v_wall) = flight(t), swing(t)
        return np.where(falls, q, q_wall), np.where(falls, v, v_wall)

    # integral of cos(a) = 2 dn^2 - 1 through Jacobi's epsilon function E(am u)
    u = np.array([c, t1 - t_hit + c])
    cosine = 2.0 * np.diff(ellipeinc(ellipj(u, m)[3], m))[0] - (t1 - t_hit)
    impulse = t_hit * np.cos(a0) + 3.0 * cosine - 2.0 * (1.0 - 2.0 * m) * (t1 - t_hit)
    return t_hit, impulse, motion


def _bowl() -> Case:
    t_hit, impulse, exact = bowl_swing(0.5, 0.2, 10.0)
    orders = {
        "paoli-schatzman": _FIRST,
        "paoli-schatzman-explicit": Orders(position=2.0, impulse=1.0),
        "maury": Orders(),
        "maury-half-kick": Orders(position=2.0, impulse=1.0),
    }
    args = {"gravity": 1.0, "radius": 1.0}
    q0, v0 = np.array([0.5, 0.2]), np.zeros(2)
    return Case(q0, v0, 10.0, 0.0, args, exact, np.array([impulse]), np.array([t_hit]), orders)


BOWL = Entry(
    id="B16",
    name="bowl",
    title="Drop into a circular bowl",
    statement="A point mass falls in a circular bowl, loses its normal velocity and swings as a pendulum. "
    "args: gravity, radius.",
    problem=Problem(_down, _inside, energy=_energy),
    cases={"e=0": _bowl()},
    hypotheses="One concave constraint: Paoli-Schatzman, Paoli II, Adly-Thieu; outside Bernicot-Lefebvre-Lepot.",
    source="Textbook pendulum, DLMF 22.19.",
)


ENTRIES: tuple[Entry, ...] = (POLAR, MAGNETIC, CYLINDER, BOWL)
