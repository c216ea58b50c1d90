"""Distances between round bodies and boxes, where they touch, and directions across the normal there."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from .shapes import Box, Capsule, Shape, Sphere
from .vectors import Tensor, alike, basis_across, plus, product, scaled

ROUND = Sphere, Capsule
Place = tuple[Shape, Tensor, Tensor]  # a shape, the rotation of its body (3, 3), and its centre (3,)


def nearest(a: Place, b: Place) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the distance () of two bodies, the normal (3,) from b to a,
    and the place (3,) in the middle between their nearest points."""
    if isinstance(b[0], Box):
        return _ball_and_box(a, b)
    if isinstance(a[0], Box):
        distance, normal, place = _ball_and_box(b, a)
        return distance, -normal, place
    first, last = _points_nearest(_segment(a), _segment(b))
    return _between(first, a[0].radius, last, b[0].radius)


def _between(first: Tensor, radius: float, last: Tensor, other: float) -> tuple[Tensor, Tensor, Tensor]:
    first, last = alike(first, last)
    # of two centres that coincide any direction is as good: apart by less than rounding they have one
    apart = first - last + jnp.asarray((0, 0, float(jnp.finfo(first.dtype).tiny) ** (1 / 3)), first.dtype)
    length = jnp.sqrt(apart @ apart)
    normal, distance = apart / length, length - (radius + other)
    return distance, normal, last + (other + distance / 2) * normal


def _segment(place: Place) -> tuple[Tensor, Tensor]:
    """Returns the middle (3,) and half the axis (3,) of a capsule; of a ball its centre and zero."""
    shape, turn, centre = place
    half = product(turn, np.array(shape.half)) if isinstance(shape, Capsule) else np.zeros(3)
    return centre, half


def _points_nearest(a: tuple, b: tuple) -> tuple[Tensor, Tensor]:
    """Returns the nearest points (3,) of two segments; of parallel ones that are beside each other,
    in the middle of where they are."""
    (middle, half), (other, side) = a, b
    still = [isinstance(x, np.ndarray) and not x.any() for x in (half, side)]
    if all(still):
        return middle, other
    if any(still):
        if still[0]:
            return middle, _on_segment(middle, other, side)
        return _on_segment(other, middle, half), other
    between = plus(middle, scaled(-1, other))
    u, w, r = alike(half, side, between)
    uu, uw, ww, ur, wr = u @ u, u @ w, w @ w, u @ r, w @ r
    sine = uu * ww - uw * uw
    skew = sine > 1e-10 * uu * ww
    best = (uw * wr - ww * ur) / jnp.where(skew, sine, 1)
    # of parallel segments: the middle of the part of a that is beside b
    ends = jnp.clip(jnp.stack([-uw - ur, uw - ur]) / uu, -1, 1)
    along = jnp.where(skew, best, (ends[0] + ends[1]) / 2)
    along = jnp.clip(along, -1, 1)
    across = jnp.clip((uw * along + wr) / ww, -1, 1)
    along = jnp.clip((uw * across - ur) / uu, -1, 1)
    return middle + along * u, other + across * w


def _on_segment(p: Tensor, middle: Tensor, half: Tensor) -> Tensor:
    p, middle, half = alike(p, middle, half)
    return middle + jnp.clip((p - middle) @ half / (half @ half), -1, 1) * half


def _ball_and_box(ball: Place, box: Place) -> tuple[Tensor, Tensor, Tensor]:
    """Of a ball whose centre is in the box it is the signed distance, to the nearest face."""
    (sphere, _, centre), (shape, turn, middle) = ball, box
    assert isinstance(shape, Box)
    axes = product(turn, np.array(shape.axes))
    inside = product(axes.T, plus(centre, scaled(-1, middle)))
    inside, half = alike(inside, np.array(shape.half))
    apart = inside - jnp.clip(inside, -half, half)
    square = apart @ apart
    outside = square > 0
    length = jnp.sqrt(jnp.where(outside, square, 1))
    depths = jnp.abs(inside) - half
    face = jnp.arange(3) == jnp.argmax(depths)
    normal: Tensor = jnp.where(outside, apart / length, jnp.where(face, jnp.where(inside < 0, -1, 1), 0))
    distance = jnp.where(outside, length, jnp.max(depths)) - sphere.radius
    normal = product(axes, normal)
    return distance, normal, plus(centre, -(sphere.radius + distance / 2) * normal)


def tangents(normal: Tensor, usual: np.ndarray) -> Array:
    """Returns two unit vectors (2, 3) across a unit normal (3,) and each other.

    They are those across the ``usual`` normal, turned with it; beyond 120 degrees from it, those across its opposite.
    No pair is continuous for all normals, and Coulomb's law does not depend on the pair.
    """
    across, usual = alike(basis_across(usual), usual, normal)[:2]
    cosine = normal @ usual
    # the sign of cosine + 1/2 as a steep function: a switch would make the forces of all steps ones in pieces
    eps = float(jnp.finfo(normal.dtype).eps)
    beyond = cosine + 0.5 + eps / 64  # never zero
    side = beyond / jnp.sqrt(beyond * beyond + (1e-10 * eps) ** 2)
    return across - ((across @ normal) / (1 + side * cosine))[:, None] * (normal + side * usual)[None]
