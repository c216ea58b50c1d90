"""Points and directions of bodies at a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from .quantities import GROUND, Point


@dataclass(frozen=True)
class Pose:
    """Where bodies are: points and directions that are fixed in them, at coordinates q (d,).

    Attributes:
        centres: number of each body and its centre of mass at the start, by name.
        q: the coordinates.
    """

    centres: Mapping[str, tuple[int, Point]]
    q: Array

    def angle(self, body: str) -> Any:
        """By how much a body has turned, ()."""
        return 0.0 if body == GROUND else self.q[3 * self.centres[body][0] + 2]

    def point(self, body: str, p: Point) -> Any:
        """Where a point of a body is, (2,), that was at p at the start."""
        if body == GROUND:
            return jnp.asarray(p, self.q.dtype)
        i, centre = self.centres[body]
        return self.q[3 * i : 3 * i + 2] + self.direction(body, (p[0] - centre[0], p[1] - centre[1]))

    def direction(self, body: str, u: Point) -> Array:
        """A vector (2,) fixed in a body, that was u at the start."""
        if body == GROUND:
            return jnp.asarray(u, self.q.dtype)
        c, s = jnp.cos(self.angle(body)), jnp.sin(self.angle(body))
        return jnp.stack([c * u[0] - s * u[1], s * u[0] + c * u[1]])
