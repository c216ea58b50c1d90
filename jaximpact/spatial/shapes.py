"""Shapes of bodies: what of them is lowest over a plane, and the lines by which they are drawn. All in the axes of the
start, about the centre."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combinations

import jax.numpy as jnp
import numpy as np

from .vectors import Tensor, alike, basis_across, product

Vector = tuple[float, float, float]
CIRCLE = np.linspace(0, 2 * np.pi, 49)


@dataclass(frozen=True)
class Shape:
    """A convex shape, which is a set of points widened by a ``radius``.

    Attributes:
        radius: by which the points are widened [m].
    """

    radius: float = 0.0

    def supports(self, up: Tensor) -> Tensor:
        """Returns the points (k, 3), before they are widened, one of which is lowest over a plane
        whose normal is ``up`` (3,)."""
        raise NotImplementedError

    @property
    def labels(self) -> list[str]:
        """Suffixes of the names of the points of `supports`; one "" of a single point."""
        return [""]

    def outline(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns lines to be drawn: their points (n, 3), and the normals (n, s, 3) of the faces that meet there."""
        raise NotImplementedError

    def upright(self, up: np.ndarray) -> bool:
        """Whether the lowest point is not unique where the normal of a plane is ``up`` (3,),
        although the shape bends there."""
        return False


@dataclass(frozen=True)
class Points(Shape):
    """Points of a body, all of one radius."""

    points: tuple[Vector, ...] = ((0.0, 0.0, 0.0),)

    def supports(self, up: Tensor) -> Tensor:
        return np.array(self.points)

    @property
    def labels(self) -> list[str]:
        return [""] if len(self.points) == 1 else [f" {i + 1}" for i in range(len(self.points))]


@dataclass(frozen=True)
class Sphere(Points):
    """A sphere."""

    def outline(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return great_circles(np.eye(3), np.full(3, self.radius))


@dataclass(frozen=True)
class Capsule(Shape):
    """A cylinder with round ends at ``half`` and -``half``."""

    half: Vector = (0.0, 0.0, 1.0)

    def supports(self, up: Tensor) -> Tensor:
        return np.array([self.half, self.half]) * [[1], [-1]]

    @property
    def labels(self) -> list[str]:
        return [" end", " start"]

    def outline(self) -> list[tuple[np.ndarray, np.ndarray]]:
        half = np.array(self.half)
        axis = half / np.linalg.norm(half)
        first, second = basis_across(axis)
        lines = []
        for side in (1, -1):
            around = np.cos(CIRCLE)[:, None] * first + np.sin(CIRCLE)[:, None] * second
            lines.append((side * half + self.radius * around, around[:, None]))
        arc = np.linspace(0, np.pi, 25)[:, None]
        for across in (first, second):
            cap = np.cos(arc) * across + np.sin(arc) * axis
            normals = np.concatenate([cap, -cap, cap[:1]])
            points = self.radius * normals + np.repeat([half, -half, half], [25, 25, 1], axis=0)
            lines.append((points, normals[:, None]))
        return lines


@dataclass(frozen=True)
class Cylinder(Shape):
    """A cylinder whose ends, at ``half`` and -``half``, have a sharp rim."""

    half: Vector = (0.0, 0.0, 1.0)
    rim: float = 1.0

    def supports(self, up: Tensor) -> Tensor:
        half, up = alike(np.array(self.half), up)
        axis = half / np.linalg.norm(self.half)
        along = axis @ up
        down = along * axis - up
        # flat on an end, to 1e-10, all points of its rim are lowest: none is taken
        foot = self.rim / jnp.sqrt(down @ down + 1e-20) * down
        return jnp.stack([half + foot, foot - half])

    @property
    def labels(self) -> list[str]:
        return [" end", " start"]

    def upright(self, up: np.ndarray) -> bool:
        return bool(np.linalg.norm(np.cross(self.half, up)) <= 1e-6 * np.linalg.norm(self.half))

    def outline(self) -> list[tuple[np.ndarray, np.ndarray]]:
        half = np.array(self.half)
        axis = half / np.linalg.norm(half)
        first, second = basis_across(axis)
        around = np.cos(CIRCLE)[:, None] * first + np.sin(CIRCLE)[:, None] * second
        lines = [
            (side * half + self.rim * around, np.stack([around, np.broadcast_to(side * axis, around.shape)], axis=1))
            for side in (1, -1)
        ]
        for side in np.concatenate([around[:-1:12], around[6:-1:12]]):
            lines.append((np.stack([half, -half]) + self.rim * side, np.broadcast_to(side, (2, 1, 3))))
        spoke = np.array([half, half + self.rim * first])
        return [*lines, (spoke, np.broadcast_to(axis, (2, 1, 3)))]


@dataclass(frozen=True)
class Box(Shape):
    """A box with ``half`` its sides, along ``axes``, the columns of a rotation."""

    half: Vector = (1.0, 1.0, 1.0)
    axes: tuple[Vector, ...] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))

    def supports(self, up: Tensor) -> Tensor:
        return SIGNS * self.half @ np.array(self.axes).T

    @property
    def labels(self) -> list[str]:
        return [" " + "".join("+" if s > 0 else "-" for s in signs) for signs in SIGNS]

    def outline(self) -> list[tuple[np.ndarray, np.ndarray]]:
        axes, lines = np.array(self.axes).T, []
        for along in range(3):
            i, j = (k for k in range(3) if k != along)
            for a, b in combinations((-1, 1), repeat=2):
                middle = a * self.half[i] * axes[i] + b * self.half[j] * axes[j]
                ends = middle + np.array([[-1], [1]]) * self.half[along] * axes[along]
                lines.append((ends, np.broadcast_to([a * axes[i], b * axes[j]], (2, 2, 3))))
        return lines


@dataclass(frozen=True)
class Ellipsoid(Shape):
    """An ellipsoid with half axes ``half`` along ``axes``, the columns of a rotation."""

    half: Vector = (1.0, 1.0, 1.0)
    axes: tuple[Vector, ...] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))

    def supports(self, up: Tensor) -> Tensor:
        axes, half, up = alike(np.array(self.axes), np.array(self.half), up)
        along = half * product(axes.T, up)
        return (product(axes, half * along) / -jnp.sqrt(along @ along))[None]

    def outline(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return great_circles(np.array(self.axes), np.array(self.half))


SIGNS = np.array(list(combinations((-1.0, 1.0), repeat=3)))


def great_circles(axes: np.ndarray, half: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns three ellipses of an ellipsoid as lines of `Shape.outline`,
    for half axes (3,) along the columns of ``axes``."""
    lines = []
    for i, j in ((0, 1), (1, 2), (2, 0)):
        unit = np.zeros((len(CIRCLE), 3))
        unit[:, i], unit[:, j] = np.cos(CIRCLE), np.sin(CIRCLE)
        normals = unit / half @ axes.T
        lines.append((unit * half @ axes.T, normals[:, None]))
    return lines
