"""Borders of the velocity beside contacts that rub: the force on both sides of a border,
and along one on which the motion slides.

With the modes of contacts given, their forces are linear in the force, so that a motion slides on a border under a
convex combination of the forces of both sides, as without friction. Coulomb's law then decides on the modes under that
combination; where these are others, that is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from ...jaxtools.outlined import outlined
from ...switches.kinds import Sides
from ..contact.friction.cones import SLIP
from ..events.rubbing_contacts import Place
from ..status import Status, as_status
from .modes import Modes
from .pieces import Held, Pieces, Where
from .trial import frozen


class InModes(Pieces):
    """The pieces ``of`` a force with accelerations for contacts in known ``modes``;
    ``held`` gives these at a `Place`."""

    def __init__(self, of: Pieces, modes: Modes, held: Callable[..., Held]) -> None:
        vars(self).update(vars(of))
        self._modes, self._held = modes, held

    def held_on(self, sides: Sides, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object) -> Held:
        def found(sides: Sides, modes: Modes, *at: Any) -> Held:
            place = modes.place(self.on(sides), at[0], at[1], at[2], at[5])
            return self._held(place, modes.facing(at[0], place), at[3], at[4])

        return self.outlined.setdefault("in_modes", outlined(found))(sides, self._modes, t, q, v, closed, slack, args)

    def place(self, where: Where, t: Array, q: Array, v: Array, closed: Array, args: object) -> Place:
        """Returns the place at a state, under the mixed force of both sides where the motion slides on a border."""
        return Place.at(self.local(where, t, q, v, closed, args), t, q, v, args, None)


def status_of_modes(before: Modes, after: Modes, closed: Array) -> Array:
    """Returns EVENTS_UNRESOLVED if contacts are in other modes under the force with which a motion slides on borders
    than those by which its sides were chosen."""
    old, new = before.of(closed), after.of(closed)
    turns = (old.mode == SLIP) & (jnp.sum(old.direction * new.direction, axis=1) < 0.5)
    return as_status(
        frozen(jnp.any(after.piece.slides) & jnp.any((old.mode != new.mode) | turns)), Status.EVENTS_UNRESOLVED
    )
