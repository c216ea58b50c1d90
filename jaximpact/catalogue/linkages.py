"""Systems with joints: a pendulum on a rod beside a wall, and a four-bar linkage with a stop."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import ellipj, ellipk, ellipkinc

from ..mechanics.problem import Problem
from .base import Case, Entry


def _by_phase(t, times, phase: Callable[[int, np.ndarray], tuple]) -> tuple[np.ndarray, np.ndarray]:
    """A coordinate and its rate, each (k,), at times t (k,); ``phase(n, t)`` gives both after n impacts,
    which are at ``times``."""
    t = np.asarray(t, float)
    n = np.searchsorted(times, t, side="right")
    x, rate = np.empty_like(t), np.empty_like(t)
    for i in np.unique(n):
        x[n == i], rate[n == i] = phase(int(i), t[n == i])
    return x, rate


# J01: pendulum beside a wall


def _weight(t, q, v, args):
    return jnp.stack([0 * q[0], -args["gravity"] + 0 * q[1]])


def _rod(t, q, args):
    return (q @ q - args["length"] ** 2)[None] / 2


def _beside(t, q, args):
    return q[:1] + args["distance"]


def _swing_energy(t, q, v, args):
    return 0.5 * v @ v + args["gravity"] * q[1]


def _pendulum(e: float, t1: float, note: str) -> Case:
    """Case released at rest at 1.2 rad: between impacts sin(angle/2) = k sn(w t + u), w^2 = g/L, with parameter k^2."""
    angle, rate, time, gravity, length, distance = 1.2, 0.0, 0.0, 9.81, 1.0, 0.3
    w, wall = np.sqrt(gravity / length), -np.arcsin(distance / length)
    swings, times, impulse = [], [], 0.0
    while True:
        k = np.hypot(np.sin(angle / 2), rate / (2 * w))
        quarter = ellipk(k**2)
        from_bottom = lambda x, k=k: ellipkinc(np.arcsin(np.clip(np.sin(x / 2) / k, -1, 1)), k**2)
        u = from_bottom(angle) if rate > 0 else 2 * quarter - from_bottom(angle)
        swings.append((time, k, u))
        time = time + (2 * quarter - from_bottom(wall) - u) % (4 * quarter) / w
        if time > t1:
            break
        speed = 2 * w * np.sqrt(k**2 - np.sin(wall / 2) ** 2)
        impulse += (1 + e) * length * speed / np.cos(wall)
        angle, rate = wall, e * speed
        times.append(time)
    impacts = np.array(times)

    def swing(n, t):
        begin, k, u = swings[n]
        sn, cn, *_ = ellipj(w * (t - begin) + u, k**2)
        return 2 * np.arcsin(k * sn), 2 * w * k * cn

    def exact(t):
        angle, rate = _by_phase(t, impacts, swing)
        s, c = np.sin(angle), np.cos(angle)
        return length * np.stack([s, -c], axis=1), length * rate[:, None] * np.stack([c, s], axis=1)

    q0, v0 = (x[0] for x in exact(np.zeros(1)))
    args = {"gravity": gravity, "length": length, "distance": distance}
    return Case(q0, v0, t1, e, args, exact, np.array([impulse]), impacts, note=note)


PENDULUM = Entry(
    id="J01",
    name="pendulum-by-a-joint",
    title="Pendulum on a rod, beside a wall",
    statement="A point of mass 1 on a rigid rod about the origin, the joint (x^2 + y^2 - length^2)/2 = 0, and a wall "
    "at x = -distance. "
    "args: gravity, length, distance.",
    problem=Problem(_weight, _beside, joints=_rod, energy=_swing_energy, coordinates=("x", "y")),
    cases={
        "e=1/2": _pendulum(0.5, 4.0, "the wall is struck once a swing, ever slower"),
        "e=1": _pendulum(1.0, 4.0, "energy is conserved"),
    },
    hypotheses="One flat wall, not along the rod: regular in the metric of the joint.",
    source="Pendulum in Jacobi's elliptic functions.",
)


# J02: four-bar linkage

_RODS, _BASE = np.array([1.0, 2.0, 1.5]), 2.0
_SIGNS = np.array([1.0, 1.0, -1.0])


def _torques(t, q, v, args):
    return -args["gravity"] * args["arms"] * jnp.cos(q)


def _inertias(q, args):
    return args["inertias"]


def _loop(t, q, args):
    signed = _SIGNS * args["rods"]
    return jnp.stack([jnp.sum(signed * jnp.cos(q)) - args["base"], jnp.sum(signed * jnp.sin(q))])


def _stop(t, q, args):
    return args["stop"] - q[:1]


def _linkage_energy(t, q, v, args):
    return 0.5 * jnp.sum(args["inertias"] * v**2) + args["gravity"] * jnp.sum(args["arms"] * jnp.sin(q))


def _assembled(crank: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles (..., 3) of crank, coupler and rocker from the angle (...,) of the crank,
    and their first and second derivatives by it."""
    x, y = _RODS[0] * np.cos(crank) - _BASE, _RODS[0] * np.sin(crank)
    square = x * x + y * y
    rocker = np.arctan2(y, x) - np.arccos((_RODS[2] ** 2 + square - _RODS[1] ** 2) / (2 * _RODS[2] * np.sqrt(square)))
    coupler = np.arctan2(_RODS[2] * np.sin(rocker) - y, _RODS[2] * np.cos(rocker) - x)
    q = np.stack([crank, coupler, rocker], axis=-1)
    s, c = _SIGNS * _RODS * np.sin(q), _SIGNS * _RODS * np.cos(q)
    sines = s[..., 1] * c[..., 2] - s[..., 2] * c[..., 1]

    def solve(first, right_s, right_c):
        """Derivatives x (..., 3) of the three angles by that of the crank,
        which solve the differentiated equations of the loop.

        ``first`` (...,): derivative x_0; the equations are sum(s x) = right_s and sum(c x) = right_c, with s and c
        (..., 3) the signed lengths of the rods times sine and cosine of their angles.
        """
        b, d = right_s - s[..., 0] * first, right_c - c[..., 0] * first
        found = (b * c[..., 2] - d * s[..., 2]) / sines, (d * s[..., 1] - b * c[..., 1]) / sines
        return np.stack([first, *found], axis=-1)

    one = solve(np.ones_like(crank), 0.0, 0.0)
    return q, one, solve(np.zeros_like(crank), -np.sum(c * one**2, axis=-1), np.sum(s * one**2, axis=-1))


def _four_bar(e: float, t1: float, note: str) -> Case:
    """Case whose crank starts at 0.5 rad and 1 rad/s.

    The angle of the crank obeys I a + I' w^2/2 + V' = 0, with reduced inertia I and potential V as functions of it, its
    rate w and its acceleration a; integrated by DOP853 to 1e-13.
    """
    gravity, arms, inertias, stop = 9.81, np.array([0.5, 1.3, 0.7]), np.array([1.0, 2.0, 1.5]), 0.9

    def rates(t, x):
        q, one, two = _assembled(x[0])
        half = np.sum(inertias * one * two)  # I' / 2
        pull = gravity * np.sum(arms * np.cos(q) * one)
        return x[1], -(half * x[1] ** 2 + pull) / np.sum(inertias * one**2)

    def hit(t, x):
        return stop - x[0]

    vars(hit).update(terminal=True, direction=-1)
    time, x, flights, times, impulse = 0.0, np.array([0.5, 1.0]), [], [], 0.0
    while True:
        found = solve_ivp(rates, (time, t1), x, "DOP853", events=hit, rtol=1e-13, atol=1e-14, dense_output=True)
        flights.append(found.sol)
        if not found.t_events[0].size:
            break
        time, speed = found.t_events[0][0], found.y_events[0][0][1]
        impulse += (1 + e) * speed * np.sum(inertias * _assembled(np.array(stop))[1] ** 2)
        x = np.array([stop, -e * speed])
        times.append(time)
    impacts = np.array(times)

    def exact(t):
        crank, rate = _by_phase(t, impacts, lambda n, t: flights[n](t))
        q, one, _ = _assembled(crank)
        return q, one * rate[:, None]

    q0, v0 = (x[0] for x in exact(np.zeros(1)))
    args = {"gravity": gravity, "rods": _RODS, "base": _BASE, "arms": arms, "inertias": inertias, "stop": stop}
    return Case(q0, v0, t1, e, args, exact, np.array([impulse]), impacts, note=note)


FOUR_BAR = Entry(
    id="J02",
    name="four-bar",
    title="Four-bar linkage with a stop",
    statement="Crank, coupler and rocker by their angles, closed to a loop by two joints, r1 e^(i a) + r2 e^(i b) = "
    "base + r3 e^(i c); "
    "the crank's angle has a stop. args: gravity, rods (3,), base, arms (mass times distance of the centre of each "
    "rod, 3), inertias (3,), stop.",
    problem=Problem(
        _torques,
        _stop,
        _inertias,
        joints=_loop,
        energy=_linkage_energy,
        coordinates=("crank", "coupler", "rocker"),
        units="rad",
    ),
    cases={
        "e=1/2": _four_bar(0.5, 4.0, "the stop is struck once a swing, ever slower"),
        "e=1": _four_bar(1.0, 4.0, "energy is conserved"),
    },
    hypotheses="One flat stop; the loop does not pass a singular position.",
    source="In the crank's angle, by a method of order 8 to 1e-13.",
)


ENTRIES: tuple[Entry, ...] = (PENDULUM, FOUR_BAR)
