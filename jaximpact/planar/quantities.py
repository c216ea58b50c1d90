"""Numbers, points and directions as users state them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import real, real_number, short
from ..mechanics.problem_parts import Args

GROUND = "ground"  # what is no body
Point = tuple[float, float]
Number = float | Callable[[Args], Any]  # a number, or a function of args
Restitution = float | Callable[[Array, Args], Any]  # a number, or a function of the speed of approach and of args


def value_at(x: Any, args: object) -> Any:
    """A number x of a part or body: itself or, if it is a function of args, its value at ``args``."""
    return x(args) if callable(x) else x


def times(factor: float, x: Number) -> Number:
    return (lambda args: factor * x(args)) if callable(x) else factor * real_number("mass", x)


def positive(name: str, x: float) -> float:
    found = real_number(name, x)
    if found <= 0:
        raise ValueError(f"{name} must be positive, got {x!r}")
    return found


def point_of(name: str, p: ArrayLike) -> Point:
    found = real(name, p)
    if found.shape != (2,) or not np.all(np.isfinite(found)):
        raise ValueError(f"{name} must be a point or direction (x, y), got {short(p)}")
    return float(found[0]), float(found[1])


def unit_vector(name: str, p: Point) -> Point:
    length = float(np.hypot(*p))
    if length == 0:
        raise ValueError(f"{name} must be a direction, got {p!r}")
    return p[0] / length, p[1] / length


def distance_of(ends: tuple[Point, Point]) -> float:
    return float(np.hypot(*np.subtract(*ends)))
