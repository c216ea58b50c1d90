"""Disks in the plane and spheres in space that may not overlap, with walls or in a periodic box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..mechanics.problem import Problem
from ..mechanics.problem_parts import Force, FrictionLike, RestitutionLike
from .statement import Bodies


def disks(radii: ArrayLike, **options: Any) -> Problem:
    """Disks in the plane, q = (x0, y0, x1, y1, ...), that may not overlap (Bernicot and
    Lefebvre-Lepot 2010, section 4).

    With inertias they turn, q = (x0, y0, angle0, x1, ...), and friction has a torque.

    Args:
        radii: (N,) [m].
        growth: rates of the radii, one or (N,) [m/s]: a radius is radii + growth t.
        walls: for each direction the positions of the lower and the upper wall, each a number, a function of time, or
            None for no wall: ``[(0, 2), (0, None)]`` is a box without a lid [m].
        periodic: for each direction the period of space, or None: ``(2.0, None)`` [m].
        masses: one or (N,), 1 by default [kg].
        gravity: acceleration downwards, along the last direction, or a vector of one for each direction [m/s^2].
        force: ``force(t, q, v, args) -> (d,)`` in addition to the weights [N].
        restitution: as in `Problem`.
        friction: Coulomb's coefficient at all contacts, as in `Problem`; None for none.
        static_friction: coefficient up to which contacts at rest stick, if it differs from ``friction``;
            as in `Problem`.
        inertias: moments of inertia about the centres, one or (N,) [kg m^2], or "solid" for those of solid bodies, m
            r^2 / 2 of a disk. None for bodies that do not turn: friction then acts on their translation only.
        options: options of `Bodies`: skin, lists, pairs, members, search.

    Returns:
        A `Problem`; its energy is kinetic energy plus that of weight.

    Raises:
        ValueError, TypeError: an argument has a wrong shape or value.
    """
    return _round(2, radii, **options)


def spheres(radii: ArrayLike, **options: Any) -> Problem:
    """Spheres in space, q = (x0, y0, z0, x1, ...), that may not overlap; arguments as those of `disks`.

    With inertias they turn: a sphere then has six coordinates, its centre and three whose rates are its angular
    velocity [rad/s]. These three do not describe its orientation, which depends on the order of turns about several
    axes; no gap depends on them. "solid" is 2 m r^2 / 5.
    """
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
    force: Force | None = None,
    restitution: RestitutionLike = 0.0,
    friction: FrictionLike = None,
    static_friction: FrictionLike = None,
    inertias: ArrayLike | str | None = None,
    **options: Any,
) -> Problem:
    given = _numbers("radii", radii, None)
    number = len(given)
    rates = np.zeros(number) if growth is None else _numbers("growth", growth, number)
    mass = _numbers("masses", masses, number)
    if np.any(given <= 0) or np.any(mass <= 0):
        raise ValueError("radii and masses must be positive")
    turns = 0 if inertias is None else 2 * space - 3  # coordinates of rotation
    weights = np.repeat(mass[:, None], space, axis=1)
    if inertias is not None:
        inertia = _inertias(inertias, mass, given, space, growth is not None)
        weights = np.concatenate([weights, np.repeat(inertia[:, None], turns, axis=1)], axis=1)
    weights = weights.ravel()
    pull = np.asarray(gravity, float)
    if pull.shape not in ((), (space,)):
        raise ValueError(f"gravity must be one number or a vector of {space}, got shape {pull.shape}")
    pull = np.append(np.zeros(space - 1), -pull) if pull.ndim == 0 else pull
    acceleration = np.tile(np.append(pull, np.zeros(turns)), number)

    def size(t: ArrayLike, args: object) -> Array:
        dtype = jnp.result_type(t, float)
        constant = jnp.asarray(given, dtype)
        return constant if growth is None else constant + jnp.asarray(t, dtype) * jnp.asarray(rates, dtype)

    def apart(a: Array, b: Array, r: Array, s: Array) -> Array:
        # a sum over an axis of two or three numbers is a slow one of XLA
        return jnp.sqrt(sum((a[x] - b[x]) ** 2 for x in range(space))) - (r + s)

    def total(t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        weight = jnp.asarray(weights * acceleration, q.dtype)
        return weight if force is None else weight + force(t, q, v, args)

    def energy(t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        mass = jnp.asarray(weights, q.dtype)
        return 0.5 * mass @ v**2 - (mass * acceleration.astype(q.dtype)) @ q

    reach: float | Callable = 2 * float(np.max(given))
    if growth is not None:
        reach = lambda t, args: 2 * jnp.max(size(t, args))
    bodies = Bodies(
        number,
        apart,
        reach,
        obstacles=_sides(walls, space),
        each=size,
        space=space if turns else None,
        box=None if periodic is None else tuple(periodic),
        **({} if friction is None else _rubbing(space, turns > 0, walls)),
        **options,
    )
    given_mass = None if np.all(weights == 1) else weights
    rubs: dict = {"friction": friction, "static_friction": static_friction}
    return Problem(total, bodies, mass=given_mass, restitution=restitution, energy=energy, **rubs)


def _inertias(given: ArrayLike | str, mass: np.ndarray, radii: np.ndarray, space: int, grows: bool) -> np.ndarray:
    """Moments of inertia (N,): those ``given``, one or (N,), or for "solid" those of solid disks or spheres."""
    if isinstance(given, str):
        if given != "solid":
            raise ValueError(f"inertias must be numbers, 'solid' or None, got {given!r}")
        if grows:
            raise ValueError("inertias='solid' are those of constant radii: of bodies that grow give numbers")
        return (0.5 if space == 2 else 0.4) * mass * radii**2
    found = _numbers("inertias", given, len(mass))
    if np.any(found <= 0):
        raise ValueError("inertias must be positive; of bodies that do not turn give None")
    return found


def _rubbing(space: int, turns: bool, walls: Sequence | None) -> dict:
    """Slip velocities of round bodies, ``slip`` and ``obstacle_slip`` of `Bodies`."""

    def speed(n: Array, v: Array, turning: Array) -> Array:
        """Tangential velocity (k,) of one surface against the other at a contact, k = 1 in the plane and 2 in space.

        ``n`` (space,): unit vector from a body's centre towards the contact; ``v`` (space,): velocity of its centre,
        relative to that of the other body; ``turning``, (1,) or (3,): the sum of radius times angular velocity of both
        bodies [velocity]; not used if bodies do not turn.
        """
        if space == 2:
            across = -n[1] * v[0] + n[0] * v[1]
            return jnp.stack([across + turning[0] if turns else across])
        if turns:
            v = v + jnp.stack(
                [
                    turning[1] * n[2] - turning[2] * n[1],
                    turning[2] * n[0] - turning[0] * n[2],
                    turning[0] * n[1] - turning[1] * n[0],
                ]
            )
        return jnp.stack([sum(t[x] * v[x] for x in range(3)) for t in _tangents(n)])

    def slip(a: Array, b: Array, va: Array, vb: Array, r: Array, s: Array) -> Array:
        towards = b[:space] - a[:space]
        n = towards / jnp.sqrt(sum(towards[x] ** 2 for x in range(space)))
        return speed(n, va[:space] - vb[:space], r * va[space:] + s * vb[space:])

    def obstacle_slip(t: ArrayLike, x: Array, v: Array, r: Array) -> Array:
        return jnp.stack([speed(jnp.asarray(n, x.dtype), v[:space], r * v[space:]) for n in _outwards(walls, space)])

    return {"slip": slip, "obstacle_slip": obstacle_slip if _outwards(walls, space) else None}


def _tangents(n: Array) -> tuple[Array, Array]:
    """Two unit vectors (3,) across a unit vector n (3,) and each other, which jump where n[2] changes its sign.

    T. Duff et al., Building an orthonormal basis, revisited, J. Comput. Graph. Tech. 6 (2017).
    """
    sign = jnp.where(n[2] < 0, -1.0, 1.0).astype(n.dtype)
    a = -1 / (sign + n[2])
    b = a * n[0] * n[1]
    return jnp.stack([1 + sign * a * n[0] ** 2, sign * b, -sign * n[0]]), jnp.stack([b, sign + a * n[1] ** 2, -n[1]])


def _outwards(walls: Sequence | None, space: int) -> list[np.ndarray]:
    """Unit vectors (space,) from a body to each of the walls, in the order of their gaps."""
    each = np.eye(space)
    pairs = [(None, None) if pair is None else tuple(pair) for pair in walls or ()]
    sides = (
        [(-each[a], low) for a, (low, _) in enumerate(pairs)],
        [(each[a], high) for a, (_, high) in enumerate(pairs)],
    )
    return [n for both in zip(*sides, strict=True) for n, side in both if side is not None]


def _numbers(name: str, value: ArrayLike, number: int | None) -> np.ndarray:
    """The ``value`` of the argument ``name`` as (N,) numbers, one for each body; a single number is repeated.

    ``number``: N, or None where the argument itself determines it.
    """
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
    """Function that returns the gaps (o,) of a body to the walls, for ``obstacles`` of `Bodies`; None without walls."""
    if walls is None:
        return None
    sequence = lambda x: isinstance(x, list | tuple | np.ndarray)
    fits = sequence(walls) and all(pair is None or (sequence(pair) and len(pair) == 2) for pair in walls)
    if not fits or len(walls) != space:
        raise ValueError(f"walls must be {space} pairs (lower, upper), one for each direction; got {walls!r}")
    known = lambda side: side if side is None or callable(side) else float(_numbers("walls", side, 1)[0])
    ends = [(None, None) if pair is None else tuple(map(known, pair)) for pair in walls]
    at = lambda side, t: side(t) if callable(side) else side

    def gaps(t: ArrayLike, x: Array, r: Array) -> Array:
        found = []
        for a, (low, high) in enumerate(ends):
            found += [x[a] - r - at(low, t)] if low is not None else []
            found += [at(high, t) - r - x[a]] if high is not None else []
        return jnp.stack([jnp.asarray(gap, x.dtype) for gap in found])

    return gaps if any(side is not None for pair in ends for side in pair) else None
