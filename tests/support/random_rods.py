"""Random pendulums whose rod is two opposed gaps, r - 1 and 1 - r, between walls;
the exact ones have an angle alone."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import jaximpact as ji

from . import random_systems
from .random_systems import System, real

FLOATING = ("offset",)
WALLS = 2


def force(t, q, v, args):
    """Gravity and damping."""
    args = real(args)
    return jnp.array([0.0, -1.0]) * args["weight"] - args["damping"] * v


def gaps(t, q, args):
    r = jnp.sqrt(q @ q)
    return jnp.stack([1 - r, r - 1, args["offset"][0] - q[0], args["offset"][1] + q[0]])


PROBLEM = ji.Problem(force, gaps)


def draw(seed: int) -> System:
    """Random system for a seed, in the angle: one wall at least, on the right."""
    rng = np.random.default_rng([seed, 99])
    law = rng.random()
    e = 0.0 if law < 0.4 else 1.0 if law < 0.5 else rng.uniform(0.1, 0.95)
    angle = rng.uniform(-0.6, 0.6)
    room = rng.uniform(0.05, 0.5, WALLS)
    offset = np.where([True, rng.random() < 0.5], room + np.array([1, -1]) * np.sin(angle), 50.0)
    unit = 2.0**-40
    numbers = {"weight": rng.uniform(1, 10), "damping": rng.choice([0.0, 1.0]) * rng.uniform(0, 1)}
    args = {name: np.asarray(np.rint(x / unit) * unit) for name, x in numbers.items()} | {"offset": offset}
    return System(seed, np.array([angle]), rng.normal(0, 1.5, 1), e, args)


class Motion(random_systems.Motion):
    """Exact motion of the angle; ends and scales are those of the point on the circle."""

    def __init__(self, system: System, t1: float):
        one, none = np.ones(1), np.zeros((WALLS, 1))
        args = {
            "spread": np.zeros((1, 1)), "bend": 0.0, "lean": 0 * one, "stiff": -np.atleast_2d(system.args["weight"]),
            "damp": -np.atleast_2d(system.args["damping"]), "drag": 0 * one, "drive": 0 * one, "push": 0 * one,
            "offset": system.args["offset"], "normal": none, "swell": np.array([-1.0, 1.0]), "wave": none + 1,
            "rate": np.zeros(WALLS),
        }  # fmt: skip
        super().__init__(System(system.seed, system.q0, system.v0, system.e, args), t1)
        q, v = cartesian(self.x[:1], self.x[1:])
        self.x = np.concatenate([q, v])
        self.scale[1] += self.scale[0] ** 2
        self.last = self.impacts[-1].t if self.impacts else -1.0
        self.impacts = len(self.impacts)


def cartesian(angle, rate):
    """Position and velocity (..., 2) on the circle, from angle and rate (..., 1)."""
    along = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
    return np.concatenate([np.sin(angle), -np.cos(angle)], axis=-1), rate * along


def direction(system: System, rng) -> dict:
    return {
        "q0": rng.uniform(-1, 1, 1), "v0": rng.uniform(-1, 1, 1), "offset": rng.uniform(-1, 1, WALLS),
        "e": rng.uniform(-1, 1) * (0 < system.e < 1),
    }  # fmt: skip


def cartesian_direction(system: System, along: dict) -> dict:
    """Direction of change of the data that keeps the start on the circle, to first order."""
    (s,), (c,), (w,) = np.sin(system.q0), np.cos(system.q0), system.v0
    turn, speed = along["q0"][0], along["v0"][0]
    tangent, normal = np.array([c, s]), np.array([s, -c])
    return along | {"q0": turn * tangent, "v0": speed * tangent - turn * w * normal}
