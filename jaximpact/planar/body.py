"""Rigid bodies in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..jaxtools.argument_checks import real, real_number, short
from .quantities import Number, Point, point_of, positive, times


@dataclass(frozen=True)
class Body:
    """A rigid body.

    Attributes:
        mass: its mass [kg].
        inertia: moment of inertia about its centre of mass [kg m^2].
        centre: its centre of mass at the start [m].
        outline: points (k, 2) of its outline at the start, to be drawn; two for a bar.
    """

    mass: Number
    inertia: Number
    centre: Point
    outline: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mass", "inertia"):
            value = getattr(self, name)
            if not callable(value) and real_number(name, value) <= 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        object.__setattr__(self, "centre", point_of("centre", self.centre))
        object.__setattr__(self, "outline", tuple(point_of("outline", x) for x in self.outline))


def bar(start: Point, end: Point, mass: Number) -> Body:
    """A thin uniform bar between two points."""
    (x, y), (a, b) = point_of("start", start), point_of("end", end)
    square = (x - a) ** 2 + (y - b) ** 2
    if square == 0:
        raise ValueError(f"start and end of a bar are one point, {start!r}")
    return Body(mass, times(square / 12, mass), ((x + a) / 2, (y + b) / 2), ((x, y), (a, b)))


def disk(centre: Point, radius: float, mass: Number) -> Body:
    """A uniform disk; its outline has a spoke, which shows how it turns."""
    (x, y), radius = point_of("centre", centre), positive("radius", radius)
    angle = np.linspace(0, 2 * np.pi, 49)
    rim = tuple((float(x + radius * np.cos(a)), float(y + radius * np.sin(a))) for a in angle)
    return Body(mass, times(radius**2 / 2, mass), (x, y), (*rim, (x, y)))


def block(centre: Point, width: float, height: float, mass: Number) -> Body:
    """A uniform rectangle with sides along the axes at the start."""
    (x, y), a, b = point_of("centre", centre), positive("width", width) / 2, positive("height", height) / 2
    return plate([(x - a, y - b), (x + a, y - b), (x + a, y + b), (x - a, y + b)], mass)


def plate(corners: Sequence[Point], mass: Number) -> Body:
    """A uniform polygon with the given corners, in order."""
    points = real("corners", corners).astype(float)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3:
        raise ValueError(f"corners must be three points (x, y) or more, got {short(corners)}")
    after = np.roll(points, -1, axis=0)
    cross = points[:, 0] * after[:, 1] - after[:, 0] * points[:, 1]
    area = cross.sum() / 2
    if not abs(area) > 1e-12 * np.ptp(points, axis=0).max() ** 2:
        raise ValueError("corners lie on a line, or the polygon crosses itself: it has no area")
    centre = ((points + after) * cross[:, None]).sum(axis=0) / (6 * area)
    a, b = points - centre, after - centre
    weights = a[:, 0] * b[:, 1] - b[:, 0] * a[:, 1]
    squares = (a * a + a * b + b * b).sum(axis=1)
    inertia = float((weights * squares).sum() / (12 * area))
    outline = tuple(map(tuple, [*points.tolist(), points[0].tolist()]))
    return Body(mass, times(inertia, mass), tuple(centre.tolist()), outline)
