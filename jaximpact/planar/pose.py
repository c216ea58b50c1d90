"""Points and directions of bodies at a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from .quantities import GROUND, Point


class Pose:
    """Where bodies are: points and directions that are fixed in them, at coordinates q (d,).

    Args:
        centres: by name of a body, its number and its centre of mass at the start.
        q: the coordinates.
    """

    def __init__(self, centres: Mapping[str, tuple[int, Point]], q: Array) -> None:
        self.centres, self.q = centres, q
        # once for all parts: a linkage's functions are traced dozens of times
        self.angles = q[2::3]
        self.cosines, self.sines = jnp.cos(self.angles), jnp.sin(self.angles)

    def angle(self, body: str) -> Any:
        """Angle () by which a body has turned since the start [rad]."""
        return 0.0 if body == GROUND else self.angles[self.centres[body][0]]

    def point(self, body: str, p: Point) -> Array:
        """Position (2,) of the point of a body that was at p at the start."""
        if body == GROUND:
            return jnp.asarray(p, self.q.dtype)
        i, centre = self.centres[body]
        return self.q[3 * i : 3 * i + 2] + self.direction(body, (p[0] - centre[0], p[1] - centre[1]))

    def direction(self, body: str, u: Point) -> Array:
        """The vector (2,), fixed in a body, that was u at the start."""
        if body == GROUND:
            return jnp.asarray(u, self.q.dtype)
        i = self.centres[body][0]
        along, across = jnp.asarray(u, self.q.dtype), jnp.asarray((-u[1], u[0]), self.q.dtype)
        return self.cosines[i] * along + self.sines[i] * across

    def velocity(self, body: str, place: Array, v: Array) -> Array:
        """Velocity (2,) of the point of a body that is now at ``place`` (2,), at coordinate velocities v (d,)."""
        if body == GROUND:
            return jnp.zeros(2, self.q.dtype)
        i = self.centres[body][0]
        arm = place - self.q[3 * i : 3 * i + 2]
        return v[3 * i : 3 * i + 2] + v[3 * i + 2] * jnp.stack([-arm[1], arm[0]])
