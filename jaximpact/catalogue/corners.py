"""Corners: several constraints, orthogonal (Paoli II, H6) or at an angle that a parameter sets."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from ..mechanics.problem import Problem
from .balls import bounces
from .base import Case, Entry, Motion, Orders
from .billiards import flights

SIMULTANEOUS = 1e-12  # impacts of two balls this close in time are one

_BOTH = ("paoli-schatzman", "paoli-schatzman-explicit")


def bouncing_balls(y0, w0, g, e: float, t1: float) -> tuple[np.ndarray, Motion, np.ndarray]:
    """Independent balls above y = 0, from heights y0 with velocities w0.

    Returns (impact times, motion, total impulses w(t1) - w(0) + g t1).
    """
    balls = [bounces(*ball, 0.0, e, t1) for ball in zip(y0, w0, g, strict=True)]

    def motion(t):
        y, w = zip(*(ball(t) for ball, _ in balls), strict=True)
        return np.hstack(y), np.hstack(w)

    impulse = motion(np.array([t1]))[1][0] - w0 + g * t1
    hits = np.sort(np.concatenate([hits for _, hits in balls]))
    return hits[np.diff(hits, prepend=-1.0) > SIMULTANEOUS], motion, impulse


def transform(motion: Motion, matrix: np.ndarray) -> Motion:
    """The motion q = A y, from a motion y and a matrix A."""

    def image(t):
        y, w = motion(t)
        return y @ matrix.T, w @ matrix.T

    return image


# B11: right-angle groove

_NORMALS = np.array([[0.6, 0.8], [-0.8, 0.6]])


def _groove_force(t, q, v, args):
    return jnp.zeros_like(q).at[1].set(-args["gravity"])


def _groove(t, q, args):
    return jnp.stack([0.6 * q[0] + 0.8 * q[1], -0.8 * q[0] + 0.6 * q[1]])


def _groove_energy(t, q, v, args):
    return 0.5 * v @ v + args["gravity"] * q[1]


def _in_groove(y0, w0, e: float, t1: float, orders: dict[str, Orders], note: str = "") -> Case:
    """Case whose initial distances to the two walls are y0, with rates w0."""
    y0, w0, g = np.array(y0), np.array(w0), np.array([0.8, 0.6])
    impacts, motion, impulse = bouncing_balls(y0, w0, g, e, t1)
    exact = transform(motion, _NORMALS.T)
    return Case(_NORMALS.T @ y0, _NORMALS.T @ w0, t1, e, {"gravity": 1.0}, exact, impulse, impacts, orders, note)


_FIRST = dict.fromkeys(_BOTH, Orders(impulse=1.0))
_AT_REST = dict.fromkeys(_BOTH, Orders(position=None, impulse=1.0, exact=True)) | {"maury": Orders()}

GROOVE = Entry(
    id="B11",
    name="groove",
    title="Right-angle groove",
    statement="A point mass under gravity between the walls 3x + 4y >= 0 and -4x + 3y >= 0. The distances to "
    "the two walls are independent bouncing balls. args: gravity.",
    problem=Problem(_groove_force, _groove, energy=_groove_energy),
    cases={
        "e=1/2": _in_groove((1.0, 0.7), (0.3, -0.1), 0.5, 8.0, _FIRST),
        "corner": _in_groove((0.676, 0.507), (0.0, 0.0), 0.5, 6.0, _FIRST, "dropped into the corner, hit at t = 1.3"),
        "e=1": _in_groove((1.0, 0.7), (0.3, -0.1), 1.0, 8.0, _FIRST),
        "e=0": _in_groove((1.0, 0.7), (0.3, -0.1), 0.0, 8.0, _AT_REST),
    },
    hypotheses="Two orthogonal constraints (Paoli II, H6); e = 0: also Bernicot-Lefebvre-Lepot.",
    source="Decoupled bouncing balls.",
)


# B12: balls seen through a skew map


def _skew_mass(q, args):
    return args["inverse"].T @ args["inverse"]


def _skew_force(t, q, v, args):
    return -args["inverse"].T @ args["gravity"]


def _skew_balls(t, q, args):
    return args["inverse"] @ q


def _skew_energy(t, q, v, args):
    w = args["inverse"] @ v
    return 0.5 * w @ w + args["gravity"] @ (args["inverse"] @ q)


def _skew(d: int) -> Case:
    i, t1, e = np.arange(d), 4.0, 0.5
    skew = np.eye(d) + 0.4 * np.eye(d, k=1) - 0.2 * np.eye(d, k=-1)
    g = 1.0 + i / d
    y0, w0 = 1.0 + ((7 * i) % 10) / 20.0, ((3 * i) % 5 - 2) / 10.0
    impacts, motion, impulse = bouncing_balls(y0, w0, g, e, t1)
    args = {"inverse": np.linalg.inv(skew), "gravity": g}
    # no order for the impulse: some balls are near their accumulation of impacts at t1
    orders = dict.fromkeys(_BOTH, Orders())
    return Case(skew @ y0, skew @ w0, t1, e, args, transform(motion, skew), impulse, impacts, orders)


SKEW_BALLS = Entry(
    id="B12",
    name="skew-balls",
    title="Decoupled balls through a skew map",
    statement="q = A y, A = I + 0.4 superdiagonal - 0.2 subdiagonal, where the y_i are independent balls with gravity "
    "1 + i/d; mass A^-T A^-1. args: inverse (A^-1), gravity (d,).",
    problem=Problem(_skew_force, _skew_balls, _skew_mass, energy=_skew_energy),
    cases={"d=2": _skew(2), "d=40": _skew(40)},
    hypotheses="Paoli II, H6 holds in the kinetic metric although the gradients are not Euclidean-orthogonal.",
    source="Decoupled bouncing balls.",
)


# B23: falling block


def _block_mass(q, args):
    one = jnp.ones_like(q[0])
    return jnp.diag(jnp.stack([one, (1.0 + args["height"] ** 2) / 12.0 * one]))


def _block_force(t, q, v, args):
    return jnp.zeros_like(q).at[0].set(-args["gravity"])


def _block_corners(t, q, args):
    y, angle = q
    middle = y - 0.5 * args["height"] * jnp.cos(angle)
    return jnp.stack([middle + 0.5 * jnp.sin(angle), middle - 0.5 * jnp.sin(angle)])


def _block_energy(t, q, v, args):
    return 0.5 * v @ (_block_mass(q, args) @ v) + args["gravity"] * q[0]


def block_flights(q0, v0, height: float, e: float, t1: float) -> tuple[np.ndarray, Motion, np.ndarray]:
    """Block under unit gravity that falls on its corners; returns (impact times, motion, total impulse of each corner).

    Between impacts it moves on a parabola and turns uniformly; the times of impacts are roots of the gaps.

    A flight is scanned for the first sign change of a gap; bounces shorter than the scan would be missed.
    """
    inertia, gravity = np.array([1.0, (1.0 + height**2) / 12.0]), np.array([-1.0, 0.0])
    signs = np.array([1.0, -1.0])

    def gap(s, q, v, sign):
        angle = q[1] + s * v[1]
        return q[0] + s * (v[0] - 0.5 * s) - 0.5 * height * np.cos(angle) + 0.5 * sign * np.sin(angle)

    q, v = np.asarray(q0, float), np.asarray(v0, float)
    times, points, velocities, impulse = [0.0], [q], [v], np.zeros(2)
    while True:
        s = np.linspace(0.0, t1 - times[-1], 4001)[1:]
        hits = []
        for a, sign in enumerate(signs):
            value = gap(s, q, v, sign)
            below = np.flatnonzero((value[:-1] > 0.0) & (value[1:] <= 0.0))
            if below.size:
                k = below[0]
                hits.append((brentq(gap, s[k], s[k + 1], args=(q, v, sign), xtol=1e-15, rtol=1e-15), a))
        if not hits:
            break
        s, a = min(hits)
        q, v = q + s * (v + 0.5 * s * gravity), v + s * gravity
        normal = np.array([1.0, 0.5 * height * np.sin(q[1]) + 0.5 * signs[a] * np.cos(q[1])])
        multiplier = -(1.0 + e) * (normal @ v) / (normal @ (normal / inertia))
        v = v + multiplier * normal / inertia
        impulse[a] += multiplier
        times.append(times[-1] + s)
        points.append(q)
        velocities.append(v)
    return np.array(times[1:]), flights(times, points, velocities, gravity), impulse


def _block(height: float, t1: float, note: str) -> Case:
    q0, v0, e = np.array([1.6, 0.1]), np.array([0.0, 0.2]), 0.5
    impacts, exact, impulse = block_flights(q0, v0, height, e, t1)
    orders = dict.fromkeys(_BOTH, Orders(impulse=1.0))
    return Case(q0, v0, t1, e, {"height": height, "gravity": 1.0}, exact, impulse, impacts, orders, note)


FALLING_BLOCK = Entry(
    id="B23",
    name="falling-block",
    title="Falling block",
    statement="A block of width 1 and height H falls on the floor; q = (height of the centre, angle), the constraints "
    "are the heights of the two lower corners. args: height, gravity.",
    problem=Problem(_block_force, _block_corners, _block_mass, energy=_block_energy),
    cases={
        "rod": _block(0.0, 2.2, "H^2 = 0: acute when flat"),
        "orthogonal": _block(np.sqrt(2.0), 2.6, "H^2 = 2: H6 holds when flat"),
        "tall": _block(np.sqrt(6.0), 2.6, "H^2 = 6: obtuse when flat"),
    },
    hypotheses="Two constraints, both active only when flat (not in these motions), where H6 holds if H^2 = 2.",
    source="Rocking block; free flights in closed form, impact times by root finding.",
)


ENTRIES: tuple[Entry, ...] = (GROOVE, SKEW_BALLS, FALLING_BLOCK)
