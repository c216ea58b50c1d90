"""What contacts that rub do between two events of `EventDriven`."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..contact.friction.cones import OPEN, SLIP, length
from ..events.rubbing_contacts import Place, heading
from ..friction import FrictionInfo, turn_components, turn_onto
from ..problem import Problem
from .pieces import Where
from .steering import NODES, angles_at, rotated, way_of_acceleration
from .trial import frozen
from .ways import headed, least_slip


class Modes(NamedTuple):
    """What contacts do between two events: the ``mode`` (m,) of each and the direction (m, k) in which it slips,
    ``way``; forces (m, 1 + k) near those that act, ``force``; how far below zero the levels (3m + n,) may be by
    round-off, ``roundoff``; whether forces are not unique, ``several`` (); contacts (m,) that have ``jammed``, for
    which velocities jump at once; of those that slip, the ones (m,) that have no slip yet, as others hold them while
    they are at the ``limit`` of their cones; and the ``piece`` of the force on which the motion is. In space, the
    tangents (m, 2, d) of the components, ``frame``, and the slip (m, 1) at which a contact stops, ``floor``, negative
    where one begins to slip; ``times`` (4,) by `ways.times_of`; and of a trial that is steered (`steering`) the
    ``angles`` (n, m), beginning and length, ``clock`` (2,). In the plane these are empty."""

    mode: Array
    way: Array
    force: Array
    roundoff: Array
    several: Array
    jammed: Array
    limit: Array
    piece: Where
    frame: Array
    floor: Array
    times: Array
    angles: Array
    clock: Array

    @classmethod
    def none(cls, tangents: Array, piece: Where) -> Modes:
        """Modes of open contacts with ``tangents`` (m, k, d)."""
        (m, k, _), dtype = tangents.shape, tangents.dtype
        zero, levels = jnp.zeros((m, 1 + k), dtype), jnp.zeros(3 * m + len(piece.roundoff), dtype)
        no, space = jnp.zeros(m, bool), k > 1
        none = jnp.zeros(m, jnp.int32), zero[:, 1:], zero, levels, jnp.zeros((), bool), no, no
        frame, floor, times = frozen(tangents)[:, : k * space], zero[:, :space], jnp.full(4 * space, jnp.inf, dtype)
        return cls(*none, piece, frame, floor, times, jnp.zeros((NODES * space, m), dtype), jnp.zeros(2 * space, dtype))

    def place(self, problem: Problem, t: Array, q: Array, v: Array, args: object) -> Place:
        """Returns the `Place` at a state, with tangents turned onto those of these modes."""
        return Place.at(problem, t, q, v, args, self.tangents)

    @property
    def tangents(self) -> Array | None:
        """The tangents (m, 2, d) of the components, None in the plane."""
        return self.frame if self.frame.shape[1] else None

    @property
    def of_forces(self) -> Array:
        """Which levels (3m + n,) are forces, 1, and which are not, 0."""
        m = len(self.mode)
        return jnp.zeros_like(self.roundoff).at[m : 3 * m].set(1)

    def facing(self, t: Array, place: Place) -> Modes:
        """Returns the modes with the ways of slips at a `Place` of a trial, at time t."""
        if self.tangents is None:
            return self
        way, known = self.ways_at(t)
        return self._replace(way=jnp.where(known, way, self.headed(place, way)))

    def ways_at(self, t: Array) -> tuple[Array, Array]:
        """Returns the ways (m, 2) at time t of a trial, and whether it is steered, (); of others those at its start."""
        began, span = self.clock
        known = span > 0
        turned = rotated(self.way, angles_at(self.angles, (t - began) / jnp.where(known, span, 1)))
        return jnp.where(known, turned, self.way), known

    def headed(self, place: Place, way: Array) -> Array:
        """Returns the ways (m, 2) at a `Place` of contacts that slip, by `ways.headed`; others keep theirs."""
        return jnp.where(((self.mode == SLIP) & ~self.limit)[:, None], headed(place, way), way)

    def turned(self, t: Array, place: Place) -> tuple[Modes, Place]:
        """Returns the modes with the tangents and the ways of slips at a `Place` where a trial ends, at time t; and the
        place with these tangents, from which the next begins."""
        if self.tangents is None:
            return self, place
        tangents = place.cones.slip().jacobian
        here = frozen(tangents)
        # the same tangents, but those of a problem turn about the normal as the state changes
        to_here, before = turn_onto(here, tangents), turn_onto(self.frame, tangents)
        onwards = to_here @ jnp.swapaxes(before, 1, 2)
        place = place.turned(to_here)
        way, known = self.ways_at(t)
        along = turn_components(onwards, way)
        way = jnp.where(known, along, self.headed(place, along))
        force = self.force.at[:, 1:].set(turn_components(frozen(onwards), self.force[:, 1:]))
        angles, clock = 0 * self.angles, 0 * self.clock
        return self._replace(frame=here, way=way, force=force, angles=angles, clock=clock), place

    def onwards(self, place: Place, closed: Array, stuck: Array, changed: Array, atol: Array, span: Array) -> Modes:
        """Returns the modes with the ways and slips from which a trial begins at a `Place`; contacts that have not
        ``changed`` () go on. The slips of contacts that have ``stuck`` (m,) till now are errors of the integration."""
        if self.way.shape[1] == 1:
            return self
        least, size = least_slip(place, self.force, atol, span)[:, None], length(place.slip)
        slides = (size > 2 * least) | ((self.floor > 0) & (size > 0.5 * least) & ~changed)
        slips = (self.of(closed).mode == SLIP)[:, None]
        begins = slips & (size <= jnp.where(stuck[:, None], least, place.noise[:, None])) & ~self.limit[:, None]
        # slips that have only begun go on as their trials are steered
        known = (size > least) | (self.floor > 0)
        before = self._replace(way=jnp.where(slips & ~begins & known, heading(place.slip), self.way))
        go_on = lambda *_: (before.way, jnp.zeros_like(closed))
        way, held = lax.cond(jnp.any(begins), before.beginning, go_on, place, closed, begins[:, 0])
        # at the limit of a larger friction at rest Coulomb's law says what they do
        limit = self.limit | held if place.cones.static is None else self.limit
        return self._replace(way=way, limit=limit, floor=frozen(jnp.where(slides, least, -least)))

    def beginning(self, place: Place, closed: Array, begins: Array) -> tuple[Array, Array]:
        """Returns the ways (m, 2) of contacts that begin to slip, ``begins`` (m,): along the acceleration of their
        slip under friction against it, near the ways of these modes; and those (m,) that others hold."""
        pull = lambda way: place.cones.velocity(self._replace(way=way).forces(place, closed))[:, 1:]
        brakes = frozen(place.cones.scales() * place.cones.friction * self.force[:, 0])
        return way_of_acceleration(pull, self.way, begins, brakes)

    def forces(self, place: Place, closed: Array) -> Array:
        """Returns the forces (m, 1 + k) of the ``closed`` contacts (m,) in these modes, with two derivatives."""
        cones = at_limit(place, self.limit).cones
        return cones.in_modes(frozen(self.force), self.of(closed).mode, self.way, times=3, several=self.several)

    def of_step(self, impulse: Array, closed: Array) -> tuple[Array, FrictionInfo]:
        """Returns the normal impulses (m,) of a step with impulses (m, 1 + k), and its report on friction."""
        return impulse[:, 0], self.of(closed)._replace(impulse=impulse[:, 1:])

    def without_impulses(self, m: int) -> FrictionInfo:
        """Returns the report on friction of a step without impulses."""
        return FrictionInfo.none(m, self.way.shape[1], self.way.dtype)

    def of(self, closed: Array) -> FrictionInfo:
        """Returns the modes as a contact problem takes them; contacts that are not ``closed``
        (m,) or have jammed are open."""
        return FrictionInfo(self.force[:, 1:], jnp.where(closed & ~self.jammed, self.mode, OPEN), self.way)


def at_limit(place: Place, limit: Array) -> Place:
    """Returns a place where contacts at the ``limit`` (m,) of static friction have its coefficient."""
    cones = place.cones
    if cones.static is None:
        return place
    return place._replace(cones=cones._replace(friction=jnp.where(limit, cones.static, cones.friction)))
