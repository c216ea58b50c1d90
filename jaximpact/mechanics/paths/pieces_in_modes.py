"""Pieces of a force where contacts rub: accelerations on both sides of a border with the same contacts open, sticking or slipping.

With modes given, contact forces are linear in the force, so that a motion slides on a border under a convex combination of the forces of both sides,
as without friction. Coulomb's law decides on the modes: under that combination where the motion slides, else on the side on which the motion is; where it
decides otherwise on the other side, that is told.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.outlined import outlined
from ...switches.kinds import Sides
from ..contact.friction.cones import SLIP
from ..events.rubbing_contacts import Place, heading
from ..friction import FrictionInfo
from ..problem import Problem
from ..status import Status, as_status
from ..trials.pieces import Held, Pieces, Where
from ..trials.trial import frozen

ROUNDS = 2  # in which modes and the mixture of forces settle

Modes = tuple[
    FrictionInfo, Array, Array, Array | None
]  # modes, and the other arguments of `Place.forces`, with the frame of `Place`


def pieces_in_modes(pieces: Pieces, state: Any, t: Array, h: Array, args: Any) -> tuple[Pieces, Array]:
    """Returns the pieces with accelerations in the modes of contacts at a state, and status bits.

    ``state``: `rubbing_paths.Progress` at time t, or the state of `EventCorrected`, in a step h. The modes are those on its sides, or under the mixed
    force of both sides where the motion slides on a border. EVENTS_UNRESOLVED is set if Coulomb's law gives others across a border on which the state is
    without sliding there, or if the modes and the mixture do not settle.
    """
    where, now = frozen((state.where, (t, state.q, state.v, args)))
    contacts = frozen((state.closed, state.rests, state.breaks, state.force, state.frame))
    on = (pieces.levels(where.sides, *now) <= where.allowed) & ~pieces.slid(where)
    decide = pieces.outlined.setdefault("modes", outlined(lambda sides, *x: _modes_under(pieces.on(sides), *x)))
    both = jax.tree.map(lambda *x: jnp.stack(x), where.sides, pieces.beyond(where, on, *now))
    found = lax.map(lambda sides: decide(sides, contacts, now, h), both)
    differ = _modes_differ(*(jax.tree.map(lambda x, i=i: x[i], found[0]) for i in range(2)))
    first = jax.tree.map(lambda x: x[0], found)

    def settled() -> tuple[tuple, Array]:
        turn = lambda modes, _: _modes_under_mixture(pieces, where, modes, contacts, now, h)
        modes, changes = lax.scan(turn, first, None, length=ROUNDS)
        return modes, changes[-1]

    modes, changes = lax.cond(jnp.any(where.slides), settled, lambda: (first, jnp.zeros((), bool)))
    return _InModes(pieces, (*modes, state.frame)), as_status(differ | changes, Status.EVENTS_UNRESOLVED)


def _modes_under_mixture(
    pieces: Pieces, where: Where, modes: tuple, contacts: tuple, now: tuple, h: Array
) -> tuple[tuple, Array]:
    """Returns the modes of contacts under the mixed force with which a motion slides on borders in given ``modes``, and whether they differ from these."""
    within, (t, q, v, args) = _InModes(pieces, (*modes, contacts[-1])), now
    mixed = within.mixed(where, within.parts(where, t, q, v, contacts[0], args))
    found = _modes_under(mixed, contacts, now, h)
    return found, _modes_differ(found[0], modes[0])


def _modes_differ(did: FrictionInfo, other: FrictionInfo) -> Array:
    """Tests whether any contact has another mode, or slips another way, ()."""
    turns = (did.mode == SLIP) & (jnp.sum(did.direction * other.direction, axis=1) < 0.5)
    return jnp.any((did.mode != other.mode) | turns)


def _modes_under(problem: Problem, contacts: tuple, now: tuple, h: Array) -> tuple[FrictionInfo, Array, Array]:
    """Returns the modes of contacts by Coulomb's law, their forces (m, 1 + k) and directions (m, k), as of `Place.forces`."""
    closed, rests, breaks, force, frame = contacts
    t, q, v, args = now
    here = Place.at(problem, t, q, v, args, frame)
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
