"""Billiards: no force, elastic walls, straight flights in closed form."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion, Orders


def flights(times, q, v, acceleration=None) -> Motion:
    """Piecewise flight: from ``times[k]`` on, position ``q[k]``, velocity ``v[k]``, constant ``acceleration[k]``.

    ``times`` starts at 0 and does not decrease; ``q``, ``v`` and ``acceleration`` have shape (n, d).
    """
    times, q, v = (np.asarray(x, float) for x in (times, q, v))
    a = np.zeros_like(v) if acceleration is None else np.broadcast_to(np.asarray(acceleration, float), v.shape)

    def motion(t):
        t = np.asarray(t, float)
        k = np.maximum(np.searchsorted(times, t, side="right") - 1, 0)
        s = (t - times[k])[:, None]
        return q[k] + s * (v[k] + 0.5 * s * a[k]), v[k] + s * a[k]

    return motion


def _free(t, q, v, args):
    return jnp.zeros_like(q)


def _kinetic(t, q, v, args):
    return 0.5 * v @ v


# B17: disk and ellipse


def _ellipse(t, q, args):
    return 1.0 - jnp.sum((q / args["axes"]) ** 2, keepdims=True)


def ellipse_chords(q0, v0, axes, t1: float) -> tuple[np.ndarray, Motion, np.ndarray]:
    """Chords of an elliptic billiard: (impact times, motion, total multiplier of 1 - x^2/a^2 - y^2/b^2).

    In x/axes the table is the unit disk, so the far end of a chord is the non-zero root of a quadratic.
    """
    q, v, axes = (np.asarray(x, float) for x in (q0, v0, axes))
    times, points, velocities, impulse = [0.0], [q], [v], 0.0
    while True:
        x, w = q / axes, v / axes
        # w.w s^2 + 2 x.w s - (1 - x.x) = 0; on the wall 1 - x.x is round-off, and the root is -2 x.w / w.w
        inside = 1.0 - x @ x if len(times) == 1 else 0.0
        time = times[-1] + (np.sqrt((x @ w) ** 2 + (w @ w) * inside) - x @ w) / (w @ w)
        if time > t1:
            break
        q = q + (time - times[-1]) * v
        q = q / np.linalg.norm(q / axes)
        gradient = -2.0 * q / axes**2
        multiplier = -2.0 * (gradient @ v) / (gradient @ gradient)
        v = v + multiplier * gradient
        impulse += multiplier
        times.append(time)
        points.append(q)
        velocities.append(v)
    return np.array(times[1:]), flights(times, points, velocities), np.array([impulse])


def _table(axes, note: str) -> Case:
    q0, v0, t1 = np.array([0.3, 0.1]), np.array([0.6, 0.8]), 20.0
    impacts, exact, impulse = ellipse_chords(q0, v0, axes, t1)
    orders = {"paoli-schatzman": Orders()}
    return Case(q0, v0, t1, 1.0, {"axes": np.asarray(axes, float)}, exact, impulse, impacts, orders, note)


BILLIARD = Entry(
    id="B17",
    name="billiard",
    title="Disk and ellipse billiards",
    statement="A free point inside x^2/a^2 + y^2/b^2 <= 1, reflected elastically. args: axes (a, b).",
    problem=Problem(_free, _ellipse, energy=_kinetic),
    cases={
        "disk": _table((1.0, 1.0), "x vy - y vx is conserved"),
        "ellipse": _table((2.0, 1.0), "the product of the angular momenta about the two foci is conserved"),
    },
    hypotheses="One smooth constraint, concave f, e = 1 (Paoli-Schatzman, Paoli II). The energy wanders by O(h).",
    source="Birkhoff's billiards; chords by the quadratic formula.",
)


# B18: hypercube


def _cube(t, q, args):
    return jnp.concatenate([q, args["side"] - q])


def cube_wave(q0, v0) -> Motion:
    """Motion in the cube [0, 1]^d with elastic walls, for v0 > 0.

    Each coordinate is a triangle wave: q0 + v0 t modulo 2, folded back at 1.
    """

    def motion(t):
        s = (q0 + np.asarray(t, float)[:, None] * v0) % 2.0
        return np.where(s < 1.0, s, 2.0 - s), np.where(s < 1.0, v0, -v0)

    return motion


def _hypercube(d: int, orders: Orders) -> Case:
    i = np.arange(d)
    q0 = 0.1 + 0.8 * ((0.6180339887498949 * i) % 1.0)
    v0 = 0.3 + 0.7 * ((0.41421356237309515 * i) % 1.0)
    t1 = 10.0
    hits = np.floor(q0 + v0 * t1).astype(int)  # coordinate i has met the integers 1..hits[i]
    impacts = np.concatenate([(np.arange(1, n + 1) - x) / w for n, x, w in zip(hits, q0, v0, strict=True)])
    impulse = 2.0 * np.concatenate([v0 * (hits // 2), v0 * ((hits + 1) // 2)])
    note = "every hit is delayed by exactly 2h by the position-level scheme"
    exact = cube_wave(q0, v0)
    both = dict.fromkeys(("paoli-schatzman", "paoli-schatzman-explicit"), orders)
    return Case(q0, v0, t1, 1.0, {"side": 1.0}, exact, impulse, np.unique(impacts), both, note)


HYPERCUBE = Entry(
    id="B18",
    name="hypercube",
    title="Hypercube billiard",
    statement="A free point in [0, side]^d, elastic walls; constraints (q, side - q). args: side.",
    problem=Problem(_free, _cube, energy=_kinetic),
    cases={
        "d=3": _hypercube(3, Orders()),
        # the L1 error of the velocity goes like sqrt(h) until h is below the time between hits of any two coordinates
        "d=100": _hypercube(100, Orders(velocity=None)),
    },
    hypotheses="Orthogonal constraints (Paoli II, H6), flat walls, no wall force: discrete energy exact, e = 1.",
    source="Unfolding of a rectangular billiard.",
)


ENTRIES: tuple[Entry, ...] = (BILLIARD, HYPERCUBE)
