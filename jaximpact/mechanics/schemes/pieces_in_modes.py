"""Pieces of a force where contacts rub: accelerations on both sides of a border with the same contacts open, sticking or slipping.

With modes given, contact forces are linear in the force, so that a motion slides on a border under a convex combination of the forces of both sides,
as without friction. Coulomb's law decides on the modes, on the side on which the motion is; where it decides otherwise on the other side, that is told.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.outlined import outlined
from ..contact.cones import SLIP
from ..friction import FrictionInfo
from ..status import Status, as_status
from ..switch_kinds import Sides
from .pieces import Held, Pieces
from .rubbing_paths import Place, heading
from .trials import frozen

Modes = tuple[
    FrictionInfo, Array, Array, Array | None
]  # modes, and the other arguments of `Place.forces`, with the frame of `Place`


def pieces_in_modes(pieces: Pieces, state: Any, t: Array, h: Array, args: Any) -> tuple[Pieces, Array]:
    """Returns the pieces with accelerations in the modes of contacts at a state, and status bits.

    ``state``: `rubbing_paths.Progress` at time t, or the state of `EventCorrected`, in a step h. The modes are those on its sides. If Coulomb's law
    gives others across a border on which it is, EVENTS_UNRESOLVED is set.
    """
    where, now = frozen((state.where, (t, state.q, state.v, args)))
    contacts = frozen((state.closed, state.rests, state.breaks, state.force, state.frame))
    on = (pieces.levels(where.sides, *now) <= where.allowed) | pieces.slid(where)
    decide = pieces.outlined.setdefault("modes", outlined(lambda *x: _modes_on(pieces, *x)))
    both = jax.tree.map(lambda *x: jnp.stack(x), where.sides, pieces.moved(where, on))
    found = lax.map(lambda sides: decide(sides, contacts, now, h), both)
    mode, way = found[0].mode, found[0].direction
    turns = (mode[0] == SLIP) & (jnp.sum(way[0] * way[1], axis=1) < 0.5)
    differ = jnp.any((mode[0] != mode[1]) | turns)
    did, near, towards = jax.tree.map(lambda x: x[0], found)
    return _InModes(pieces, (did, near, towards, state.frame)), as_status(differ, Status.EVENTS_UNRESOLVED)


def _modes_on(pieces: Pieces, sides: Sides, contacts: tuple, now: tuple, h: Array) -> tuple[FrictionInfo, Array, Array]:
    """Returns the modes of contacts by Coulomb's law on given sides, their forces (m, 1 + k) and directions (m, k), as of `Place.forces`."""
    closed, rests, breaks, force, frame = contacts
    t, q, v, args = now
    here = Place.at(pieces.on(sides), t, q, v, args, frame)
    towards = jnp.where((here.moving(h) & ~rests)[:, None], heading(here.slip), breaks)
    near, did = here.decide(closed, towards, force)
    return did, near, did.direction if towards.shape[1] == 1 else towards


class _InModes(Pieces):
    """The pieces ``of`` a force with accelerations for contacts in known modes."""

    def __init__(self, of: Pieces, modes: Modes) -> None:
        vars(self).update(vars(of))
        self._modes = modes

    def held_on(self, sides: Sides, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: Any) -> Held:
        found = self.outlined.setdefault("accelerations", outlined(lambda *x: _accelerations(self, *x)))
        return found(sides, self._modes, t, q, v, args)


def _accelerations(pieces: Pieces, sides: Sides, modes: Modes, t: Array, q: Array, v: Array, args: Any) -> Held:
    did, near, towards, frame = modes
    place = Place.at(pieces.on(sides), t, q, v, args, frame)
    force = place.forces(did, near, towards)
    acceleration = place.view.free + place.cones.response @ force.ravel()
    return acceleration, force[:, 0], frozen(force[:, 0]), place.view.joint_force
