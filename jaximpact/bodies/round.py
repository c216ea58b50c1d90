"""Disks in the plane and spheres in space that may not overlap, with walls or in a periodic box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..mechanics.problem import Problem
from .statement import Bodies


def disks(radii: ArrayLike, **options: Any) -> Problem:
    """Disks in the plane, q = (x0, y0, x1, y1, ...), that may not overlap (Bernicot and Lefebvre-Lepot 2010, section 4).

    Args:
        radii: (N,) [m].
        growth: rates of the radii, one or (N,) [m/s]: a radius is radii + growth t.
        walls: for each direction the positions of the lower and the upper wall, each a number, a function of time, or None
            for no wall: ``[(0, 2), (0, None)]`` is a box without a lid [m].
        periodic: for each direction the period of space, or None: ``(2.0, None)`` [m].
        masses: one or (N,), 1 by default [kg].
        gravity: acceleration downwards, along the last direction, or a vector of one for each direction [m/s^2].
        force: ``force(t, q, v, args) -> (d,)`` in addition to the weights [N].
        restitution: as in `Problem`.
        options: options of `Bodies`: skin, lists, pairs, members, search.

    Returns:
        A `Problem`; its energy is that of motion and height.

    Raises:
        ValueError, TypeError: an argument has a wrong shape or value.
    """
    return _round(2, radii, **options)


def spheres(radii: ArrayLike, **options: Any) -> Problem:
    """Spheres in space, q = (x0, y0, z0, x1, ...), that may not overlap; arguments as those of `disks`."""
    return _round(3, radii, **options)


def _round(
    space: int,
    radii: ArrayLike,
    *,
    growth: ArrayLike | None = None,
    walls: Sequence | None = None,
    periodic: Sequence | None = None,
    masses: ArrayLike = 1.0,
    gravity: ArrayLike = 0.0,
    force: Callable[[Any, Array, Array, Any], Array] | None = None,
    restitution: Any = 0.0,
    **options: Any,
) -> Problem:
    given = _numbers("radii", radii, None)
    number = len(given)
    rates = np.zeros(number) if growth is None else _numbers("growth", growth, number)
    weights = np.repeat(_numbers("masses", masses, number), space)
    if np.any(given <= 0) or np.any(weights <= 0):
        raise ValueError("radii and masses must be positive")
    pull = np.asarray(gravity, float)
    if pull.shape not in ((), (space,)):
        raise ValueError(f"gravity must be one number or a vector of {space}, got shape {pull.shape}")
    pull = np.append(np.zeros(space - 1), -pull) if pull.ndim == 0 else pull
    acceleration = np.tile(pull, number)

    def size(t: Any, args: Any) -> Array:
        dtype = jnp.result_type(t, float)
        constant = jnp.asarray(given, dtype)
        return constant if growth is None else constant + jnp.asarray(t, dtype) * jnp.asarray(rates, dtype)

    def apart(a: Array, b: Array, r: Array, s: Array) -> Array:
        # a sum over an axis of two or three numbers is a slow one of XLA
        return jnp.sqrt(sum((a[x] - b[x]) ** 2 for x in range(space))) - (r + s)

    def total(t: Any, q: Array, v: Array, args: Any) -> Array:
        weight = jnp.asarray(weights * acceleration, q.dtype)
        return weight if force is None else weight + force(t, q, v, args)

    def energy(t: Any, q: Array, v: Array, args: Any) -> Array:
        mass = jnp.asarray(weights, q.dtype)
        return 0.5 * mass @ v**2 - (mass * acceleration.astype(q.dtype)) @ q

    reach: Any = 2 * float(np.max(given))
    if growth is not None:
        reach = lambda t, args: 2 * jnp.max(size(t, args))
    bodies = Bodies(
        number,
        apart,
        reach,
        obstacles=_sides(walls, space),
        each=size,
        box=None if periodic is None else tuple(periodic),
        **options,
    )
    mass = None if np.all(weights == 1) else weights
    return Problem(total, bodies, mass=mass, restitution=restitution, energy=energy)


def _numbers(name: str, value: ArrayLike, number: int | None) -> np.ndarray:
    """An argument as (N,) numbers."""
    try:
        found = np.asarray(value, float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers, got {value!r}") from error
    if number is None and (found.ndim != 1 or found.size == 0):
        raise ValueError(f"{name} must have shape (N,), one for each body, got shape {found.shape}")
    if number is not None and found.shape not in ((), (number,)):
        raise ValueError(f"{name} must be one number or have shape ({number},), got {found.shape}")
    if not np.all(np.isfinite(found)):
        raise ValueError(f"{name} must be finite")
    return found if number is None else np.broadcast_to(found, number)


def _sides(walls: Sequence | None, space: int) -> Callable[..., Array] | None:
    """Gaps (k,) of a body to the walls."""
    if walls is None:
        return None
    sequence = lambda x: isinstance(x, list | tuple | np.ndarray)
    fits = sequence(walls) and all(pair is None or (sequence(pair) and len(pair) == 2) for pair in walls)
    if not fits or len(walls) != space:
        raise ValueError(f"walls must be {space} pairs (lower, upper), one for each direction; got {walls!r}")
    known = lambda side: side if side is None or callable(side) else float(_numbers("walls", side, 1)[0])
    ends = [(None, None) if pair is None else tuple(map(known, pair)) for pair in walls]
    at = lambda side, t: side(t) if callable(side) else side

    def gaps(t: Any, x: Array, r: Array) -> Array:
        found = []
        for a, (low, high) in enumerate(ends):
            found += [x[a] - r - at(low, t)] if low is not None else []
            found += [at(high, t) - r - x[a]] if high is not None else []
        return jnp.stack([jnp.asarray(gap, x.dtype) for gap in found])

    return gaps if any(side is not None for pair in ends for side in pair) else None
