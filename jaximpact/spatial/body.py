"""Rigid bodies in space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import real, real_number, short
from ..planar.quantities import Number, positive, value_at
from .shapes import Box, Capsule, Cylinder, Ellipsoid, Shape, Sphere, Vector
from .vectors import Tensor, around, outer


@dataclass(frozen=True)
class Scaled:
    """A tensor of inertia (3, 3) for each kilogram of a ``mass`` that is a function of args."""

    mass: Callable
    unit: tuple[Vector, ...]

    def __call__(self, args: object) -> Tensor:
        return self.mass(args) * np.array(self.unit)


@dataclass(frozen=True)
class Body:
    """A rigid body.

    Attributes:
        mass: its mass [kg].
        inertia: about its centre of mass, in the axes of the start: (3, 3), or three moments about the axes x, y and z
            [kg m^2]; or a function of args.
        centre: its centre of mass at the start [m].
        shape: what of it touches others and is drawn; None for a body of no shape, whose contacts state points.
    """

    mass: Number
    inertia: Any
    centre: Vector
    shape: Shape | None = None
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.mass) and real_number("mass", self.mass) <= 0:
            raise ValueError(f"mass must be positive, got {self.mass!r}")
        object.__setattr__(self, "centre", vector_of("centre", self.centre))
        if not callable(self.inertia):
            object.__setattr__(self, "inertia", _tensor(self.inertia))

    def inertia_at(self, args: object) -> Tensor:
        """Returns the tensor of inertia (3, 3); a numpy array where it is stated as numbers."""
        if not callable(self.inertia):
            return np.array(self.inertia)
        found = value_at(self.inertia, args)
        return found if np.ndim(found) == 2 else found * np.eye(3)


@dataclass(frozen=True)
class Frame(Body):
    """A part of another body, without a mass of its own: a place of it that has a name,
    or a shape that touches others."""

    mass: Number = 0.0
    inertia: Any = 0.0
    centre: Vector = (0.0, 0.0, 0.0)
    weighs = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", vector_of("centre", self.centre))


def _tensor(stated: ArrayLike) -> tuple[Vector, ...]:
    # computed on the host, in whatever precision motions are
    found = real("inertia", stated.tolist() if isinstance(stated, np.ndarray) else stated).astype(float)
    tensor = np.diag(found) if found.shape == (3,) else found
    if tensor.shape != (3, 3) or not np.allclose(tensor, tensor.T, rtol=0, atol=1e-12 * np.abs(tensor).max()):
        raise ValueError(f"inertia must be three moments (Jx, Jy, Jz) or a symmetric (3, 3), got {short(stated)}")
    a, b, c = np.linalg.eigvalsh(tensor)
    if not a > 0:
        raise ValueError(f"inertia must be positive about every axis, got the principal moments {a:g}, {b:g}, {c:g}")
    if c > (a + b) * (1 + 1e-9):
        raise ValueError(
            f"inertia: no body has the principal moments {a:g}, {b:g}, {c:g}: the largest is at most the sum of the "
            "others"
        )
    return tuple(map(tuple, tensor.tolist()))


def vector_of(name: str, p: ArrayLike) -> Vector:
    found = real(name, p)
    if found.shape != (3,) or not np.all(np.isfinite(found)):
        raise ValueError(f"{name} must be a point or direction (x, y, z), got {short(p)}")
    return tuple(found.astype(float).tolist())


def unit_vector(name: str, p: ArrayLike) -> Vector:
    found = np.array(vector_of(name, p))
    length = np.linalg.norm(found)
    if length == 0:
        raise ValueError(f"{name} must be a direction, got {p!r}")
    return tuple((found / length).tolist())


def ball(centre: Vector, radius: float, mass: Number) -> Body:
    """Makes a uniform ball."""
    radius = positive("radius", radius)
    return _uniform(centre, mass, 0.4 * radius**2 * np.eye(3), Sphere(radius))


def box(centre: Vector, sides: Vector, mass: Number, turn: Vector = (0.0, 0.0, 0.0)) -> Body:
    """Makes a uniform box.

    Args:
        centre: its centre at the start [m].
        sides: lengths of its sides [m].
        mass: its mass [kg].
        turn: rotation vector by which it stands turned at the start, from sides along the axes [rad].
    """
    half, axes = _positive_three("sides", sides) / 2, _rotation(turn)
    square = half**2 / 3
    unit = axes @ np.diag(square.sum() - square) @ axes.T
    return _uniform(centre, mass, unit, Box(half=tuple(half.tolist()), axes=tuple(map(tuple, axes.tolist()))))


def ellipsoid(centre: Vector, half: Vector, mass: Number, turn: Vector = (0.0, 0.0, 0.0)) -> Body:
    """Makes a uniform ellipsoid with half axes ``half`` [m]; the other arguments are those of `box`."""
    semi, axes = _positive_three("half", half), _rotation(turn)
    square = semi**2 / 5
    unit = axes @ np.diag(square.sum() - square) @ axes.T
    return _uniform(centre, mass, unit, Ellipsoid(half=tuple(semi.tolist()), axes=tuple(map(tuple, axes.tolist()))))


def cylinder(start: Vector, end: Vector, radius: float, mass: Number) -> Body:
    """Makes a uniform cylinder between the centres of its two ends; flat ones are disks."""
    centre, half, radius = _middle(start, end, "cylinder"), _half(start, end), positive("radius", radius)
    length = 2 * np.linalg.norm(half)
    axis = 2 * half / length
    across, along = radius**2 / 4 + length**2 / 12, radius**2 / 2
    shape = Cylinder(half=tuple(half.tolist()), rim=radius)
    return _uniform(centre, mass, across * np.eye(3) + (along - across) * outer(axis, axis), shape)


def capsule(start: Vector, end: Vector, radius: float, mass: Number) -> Body:
    """Makes a uniform capsule: a cylinder between two points with half balls at its ends."""
    centre, half, radius = _middle(start, end, "capsule"), _half(start, end), positive("radius", radius)
    length = 2 * np.linalg.norm(half)
    axis = 2 * half / length
    volumes = np.array([length, 4 * radius / 3]) / (length + 4 * radius / 3)  # of the cylinder and of both half balls
    along = volumes @ [radius**2 / 2, 0.4 * radius**2]
    # of a half ball the centre of mass is 3/8 of its radius beyond the end
    across = volumes @ [radius**2 / 4 + length**2 / 12, 0.4 * radius**2 + length**2 / 4 + 3 * length * radius / 8]
    shape = Capsule(radius, tuple(half.tolist()))
    return _uniform(centre, mass, across * np.eye(3) + (along - across) * outer(axis, axis), shape)


def _uniform(centre: Vector, mass: Number, unit: np.ndarray, shape: Shape) -> Body:
    unit = np.where(np.abs(unit) < 1e-15 * np.abs(unit).max(), 0, unit)
    table = tuple(map(tuple, unit.tolist()))
    inertia = Scaled(mass, table) if callable(mass) else real_number("mass", mass) * unit
    if not callable(mass) and mass <= 0:
        raise ValueError(f"mass must be positive, got {mass!r}")
    return Body(mass, inertia, centre, shape)


def _positive_three(name: str, sizes: ArrayLike) -> np.ndarray:
    found = np.array(vector_of(name, sizes))
    if np.any(found <= 0):
        raise ValueError(f"{name} must be three positive lengths, got {short(sizes)}")
    return found


def _rotation(turn: Vector) -> np.ndarray:
    vector = np.array(vector_of("turn", turn), float)
    x, y, z = vector
    angle = np.linalg.norm(vector)
    matrix = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    # sin(a)/a and (1 - cos(a))/a^2, also where a is zero
    found = np.eye(3) + np.sinc(angle / np.pi) * matrix + np.sinc(angle / (2 * np.pi)) ** 2 / 2 * matrix @ matrix
    return np.where(np.abs(found) < 1e-15, 0, found)


def _middle(start: Vector, end: Vector, what: str) -> Vector:
    a, b = vector_of("start", start), vector_of("end", end)
    if a == b:
        raise ValueError(f"start and end of a {what} are one point, {start!r}")
    return tuple((np.add(a, b) / 2).tolist())


def _half(start: Vector, end: Vector) -> np.ndarray:
    return np.subtract(end, start).astype(float) / 2


def composite(bodies: list[Body], origin: ArrayLike, args: object) -> tuple[Any, Any, Any]:
    """Returns the mass, the centre of mass (3,) from ``origin`` (3,), and the inertia about it (3, 3), of bodies that
    are rigidly connected at the start."""
    if len(bodies) == 1:
        return value_at(bodies[0].mass, args), np.subtract(bodies[0].centre, origin), bodies[0].inertia_at(args)
    masses = [value_at(body.mass, args) for body in bodies]
    places = [np.subtract(body.centre, origin) for body in bodies]
    mass: Any = sum(masses)
    centre: Any = sum(m * x for m, x in zip(masses, places, strict=True)) / mass
    parts = zip(bodies, masses, places, strict=True)
    return mass, centre, sum(body.inertia_at(args) + m * around(x - centre) for body, m, x in parts)
