"""Forces of contacts that rub in known modes, and the room that they leave in the cones of friction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

from ..coefficients import lengths
from ..contact.friction.cones import SLIP, STICK
from ..events.rubbing_contacts import Place
from .modes import Modes
from .trial import frozen

if TYPE_CHECKING:
    from .pieces import Held

WEAK = 1e-6  # of the accelerations of slip without contact forces: small forces, by which no room is divided
SHIFTS = 16  # by which forces that are not unique are off, in shifts of `cones`


def rubbing_now(place: Place, where: Modes, closed: Array) -> tuple[Array, Array]:
    """Returns the masks (m,) of the ``closed`` contacts (m,) that slip, and of those that stick, which have levels."""
    mu = frozen(place.cones.friction)
    mode = where.of(closed).mode
    return (mode == SLIP) & (mu > 0), mode == STICK


def unsure_forces(place: Place, where: Modes) -> Array:
    """Returns the error () of forces in these modes that are not unique, as an acceleration: a shift keeps them near
    others (`cones`)."""
    largest = jnp.max(jnp.abs(place.cones.scales()[:, None] * where.force))
    return frozen(jnp.where(where.several, SHIFTS * jnp.finfo(largest.dtype).eps ** 0.5 * largest, 0))


def cone_room(place: Place, force: Array) -> Array:
    """Returns the room (m,) that forces (m, 1 + k) leave in the cone of static friction, mu N - |T|,
    as an acceleration."""
    return frozen(place.cones.scales()) * (place.cones.at_rest * force[:, 0] - lengths(force[:, 1:]))


def cone_rooms(place: Place, force: Array, near: Array) -> tuple[Array, Array]:
    """Returns the rooms (m,) that forces (m, 1 + k) leave to both sides of the cone of static friction,
    mu N - T and mu N + T, as accelerations.

    In space there is one room, (mu N)^2 - |T|^2, smooth where T is zero too,
    divided by mu N + |T| of the forces ``near`` (m, 1 + k).
    """
    scale, limit = frozen(place.cones.scales()), place.cones.at_rest * force[:, 0]
    if force.shape[1] == 2:
        return scale * (limit - force[:, 1]), scale * (limit + force[:, 1])
    least = WEAK * lengths(place.cones.offset) / scale
    size = frozen(jnp.maximum(place.cones.at_rest * near[:, 0] + lengths(near[:, 1:]), least))
    room = scale * (limit**2 - jnp.sum(force[:, 1:] ** 2, axis=1)) / jnp.where(size > 0, size, 1)
    return room, jnp.ones_like(room)


def held_in_modes(place: Place, where: Modes, closed: Array, slack: Array) -> Held:
    """As `trial.hold`, at a `Place`, with ``closed`` contacts (m,) in their modes; forces are (m, 1 + k)."""
    force, view = where.forces(place, closed), place.view
    a = view.free + place.cones.response @ force.ravel()
    push = place.cones.scales() * force[:, 0] + place.rounding() + slack + unsure_forces(place, where)
    of_joints = view.joint_force + view.joints.reaction(place.cones.rows.T @ force.ravel())
    return a, force, frozen(jnp.where(closed, push, 0)), of_joints
