"""The mechanical systems that are timed, stated once: every baseline computes these motions by the same scheme.

    work = works.WORKS["double-pendulum"]
    q0, v0 = work.initial(10_000)                 # admissible, no gap touched
    ji.ensemble(work.problem, q0, v0, t1=work.t1, h=work.h, e=work.restitution, args=work.args)

Functions are written as a user would write them, with nothing done for speed. Masses are in kg, lengths in m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaximpact import Problem


@dataclass(frozen=True)
class Work:
    """One system: the problem with its restitution, parameters ``args``, step ``h`` [s] and number of steps.

    ``initial(lanes)`` gives q0 and v0, (lanes, d) each: seeded, in float64, every gap open.
    """

    name: str
    problem: Problem
    restitution: float
    h: float
    steps: int
    initial: Callable[[int], tuple[np.ndarray, np.ndarray]]
    args: dict[str, Any]

    @property
    def t1(self) -> float:
        """End of the motion [s]."""
        return self.steps * self.h


# bouncing ball: d = m = 1 ---------------------------------------------------------------------------------------------


def gravity(t, q, v, args):
    return -args["g"] * jnp.ones_like(q)


def floor(t, q, args):
    return q


def ball_start(lanes: int):
    random = np.random.default_rng(1)
    return random.uniform(0.5, 1.5, (lanes, 1)), random.uniform(-0.2, 0.2, (lanes, 1))


BALL = Work("ball", Problem(gravity, floor), 0.8, 1e-3, 1000, ball_start, {"g": 9.81})


# oscillator that is shaken beside a wall: d = m = 1; of its force one term is the same in all lanes ------------------


def shaking(t, q, v, args):
    return jnp.cos(args["frequency"] * t) - q - 2 * args["damping"] * v


def beyond_wall(t, q, args):
    return q - args["wall"]


def oscillator_start(lanes: int):
    random = np.random.default_rng(7)
    return random.uniform(-0.29, 1.5, (lanes, 1)), random.uniform(-1.5, 1.5, (lanes, 1))


OSCILLATOR = Work(
    "forced-oscillator",
    Problem(shaking, beyond_wall),
    0.8,
    1e-2,
    1000,
    oscillator_start,
    {"frequency": 2.6, "damping": 0.05, "wall": -0.3},
)


# double pendulum beside a wall, which its joint and its tip hit: d = m =
# 2 ---------------------------------------------


def double_mass(q, args):
    coupling = args["m2"] * args["l1"] * args["l2"] * jnp.cos(q[0] - q[1])
    first, second = (args["m1"] + args["m2"]) * args["l1"] ** 2, args["m2"] * args["l2"] ** 2
    return jnp.array([[first, coupling], [coupling, second]])


def double_force(t, q, v, args):
    coriolis = args["m2"] * args["l1"] * args["l2"] * jnp.sin(q[0] - q[1])
    first = -coriolis * v[1] ** 2 - (args["m1"] + args["m2"]) * args["g"] * args["l1"] * jnp.sin(q[0])
    second = coriolis * v[0] ** 2 - args["m2"] * args["g"] * args["l2"] * jnp.sin(q[1])
    return jnp.array([first, second])


def double_gaps(t, q, args):
    joint = args["l1"] * jnp.sin(q[0])
    tip = joint + args["l2"] * jnp.sin(q[1])
    return jnp.array([args["wall"] - joint, args["wall"] - tip])


def double_start(lanes: int):
    random = np.random.default_rng(2)
    return random.uniform(-0.6, -0.2, (lanes, 2)), random.uniform(2.0, 4.0, (lanes, 2))


DOUBLE = Work(
    "double-pendulum",
    Problem(double_force, double_gaps, double_mass),
    0.5,
    1e-3,
    1000,
    double_start,
    {"m1": 1.0, "m2": 1.0, "l1": 1.0, "l2": 0.8, "g": 9.81, "wall": 0.3},
)


# pendulum of n equal links, a stop on every joint: d = m = n, absolute angles -----------------------------------------


def outboard(q):
    """Number of masses that both joints i and j carry, (n, n)."""
    i = np.arange(q.size)
    return (q.size - np.maximum(i[:, None], i[None, :])).astype(q.dtype)


def links_mass(q, args):
    return outboard(q) * jnp.cos(q[:, None] - q[None, :])


def links_force(t, q, v, args):
    coriolis = outboard(q) * jnp.sin(q[:, None] - q[None, :])
    carried = np.arange(q.size, 0, -1).astype(q.dtype)
    return -coriolis @ v**2 - args["g"] * carried * jnp.sin(q)


def links_gaps(t, q, args):
    relative = q - jnp.concatenate([jnp.zeros_like(q[:1]), q[:-1]])
    return args["stop"] - relative


def links(n: int) -> Work:
    """Unit masses and lengths; joint i bends by less than the stop, in one direction only."""

    def start(lanes: int):
        random = np.random.default_rng(3)
        return random.uniform(-0.2, 0.2, (lanes, n)), random.uniform(2.0, 5.0, (lanes, n))

    problem = Problem(links_force, links_gaps, links_mass)
    return Work(f"links-{n}", problem, 0.5, 1e-3, 1000, start, {"g": 9.81, "stop": 0.5})


# elastic bar of n nodes thrown at a wall: d = n, m = 1 ----------------------------------------------------------------


def bar_mass(q, args):
    lumped = jnp.ones_like(q).at[0].set(0.5).at[-1].set(0.5)
    return args["density"] * args["length"] / (q.size - 1) * lumped


def bar_force(t, q, v, args):
    tension = args["modulus"] * (q.size - 1) / args["length"] * (q[1:] - q[:-1])
    end = jnp.zeros_like(q[:1])
    return jnp.concatenate([tension, end]) - jnp.concatenate([end, tension])


def bar_gaps(t, q, args):
    return q[:1]


def bar(n: int) -> Work:
    """Inelastic impact of the first node. The waves, 2.5 m/s, return to it after 0.8 s: nearly all lanes rebound."""

    def start(lanes: int):
        random = np.random.default_rng(4)
        height, speed = random.uniform(0.05, 0.15, (lanes, 1)), random.uniform(1.0, 1.5, (lanes, 1))
        return np.repeat(height, n, axis=1), np.repeat(-speed, n, axis=1)

    problem = Problem(bar_force, bar_gaps, bar_mass)
    args = {"density": 1.0, "modulus": 6.25, "length": 1.0}
    return Work(f"bar-{n}", problem, 0.0, 1e-3, 1000, start, args)


# n equal disks of unit mass in a box: d = 2n, m = n (n - 1)/2 + 4n ----------------------------------------------------


def disks_force(t, q, v, args):
    weight = -args["g"] * jnp.ones_like(q[::2])
    return jnp.stack([jnp.zeros_like(weight), weight], axis=1).ravel()


def disks_gaps(t, q, args):
    return pair_gaps(np.triu_indices(q.size // 2, 1), q, args)


def pair_gaps(pairs, q, args):
    centre = q.reshape(-1, 2)
    i, j = pairs
    distance = jnp.sqrt(jnp.sum((centre[i] - centre[j]) ** 2, axis=1))
    low = q - args["radius"]
    high = args["side"] - args["radius"] - q
    return jnp.concatenate([distance - 2 * args["radius"], low, high])


def gas(n: int) -> Work:
    """Elastic disks that fly freely in a unit square, from a jittered lattice."""
    per_row = math.isqrt(n)
    pitch = 1.0 / per_row

    def start(lanes: int):
        random = np.random.default_rng(5)
        row, column = np.divmod(np.arange(n), per_row)
        centre = (np.stack([column, row], axis=1) + 0.5) * pitch
        jitter = random.uniform(-0.2 * pitch, 0.2 * pitch, (lanes, n, 2))
        return (centre + jitter).reshape(lanes, -1), random.normal(size=(lanes, 2 * n))

    args = {"g": 0.0, "radius": 0.24 * pitch, "side": 1.0}
    return Work(f"gas-{n}", Problem(disks_force, disks_gaps), 1.0, 1e-3, 1000, start, args)


def pile(n: int) -> Work:
    """Inelastic disks that settle, within the first third of the motion, from rows just above each other's valleys."""
    per_row = math.isqrt(n)
    pitch = 1.0 / (per_row + 0.5)
    radius = pitch / 2.24  # rows so loose do not crystallise, which would make contact impulses indeterminate
    rise = 1.01 * math.sqrt((2 * radius) ** 2 - (0.5 * pitch) ** 2)

    def start(lanes: int):
        random = np.random.default_rng(6)
        row, column = np.divmod(np.arange(n), per_row)
        centre = np.stack([(column + 0.5 + 0.5 * (row % 2)) * pitch, 1.01 * radius + rise * row], axis=1)
        jitter = random.uniform(-0.003 * radius, 0.003 * radius, (lanes, n, 2))
        return (centre + jitter).reshape(lanes, -1), np.zeros((lanes, 2 * n))

    args = {"g": 9.81, "radius": radius, "side": 1.0}
    return Work(f"pile-{n}", Problem(disks_force, disks_gaps), 0.0, 1e-3, 1000, start, args)


def near_pairs(q0, reach: float) -> np.ndarray:
    """Pairs of disks (k, 2) whose centres in q0 (2 n,) are within a distance of ``reach`` [m]."""
    centre = q0.reshape(-1, 2)
    i, j = np.triu_indices(len(centre), 1)
    close = np.hypot(*(centre[i] - centre[j]).T) <= reach
    return np.stack([i[close], j[close]], axis=1)


def with_pairs(work: Work, pairs: np.ndarray) -> Work:
    """The work with the constraints of these pairs of disks (k, 2), and of the box, only."""
    i, j = pairs.T
    return replace(work, problem=Problem(disks_force, lambda t, q, args: pair_gaps((i, j), q, args)))


# one long motion of each of the small systems -------------------------------------------------------------------------

LONG = (replace(BALL, name="ball-long", steps=1_000_000), replace(DOUBLE, name="double-long", steps=200_000))

WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        BALL,
        OSCILLATOR,
        DOUBLE,
        *LONG,
        links(2),
        links(4),
        links(6),
        bar(64),
        bar(256),
        gas(16),
        gas(64),
        pile(16),
        pile(50),
        pile(64),
    )
}
