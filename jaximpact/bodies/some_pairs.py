"""Some of the contacts of a neighbour list as dense constraints, for derivatives with friction: a matrix of the
contacts that act, not of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..mechanics.gaps import SomeGaps
from ..mechanics.some_contacts import SomeSlips

if TYPE_CHECKING:
    from .statement import NearBodies


class ContactsOfList:
    """Contacts ``rows`` (k,) of the ``number`` contacts of a list ``near`` (`NearBodies`): slots of the list, then
    bodies with obstacles."""

    def __init__(self, near: NearBodies, rows: Array, number: int) -> None:
        self.near, self.rows, slots = near, rows, near.list.i.shape[0]
        obstacles = max(1, (number - slots) // near.bodies.number)
        beyond = jnp.maximum(rows - slots, 0)
        self.pair, self.obstacle = rows < slots, beyond % obstacles
        present, i, j = near._slots()
        slot, body = jnp.minimum(rows, slots - 1), beyond // obstacles
        self.present = ~self.pair | present[slot]
        # in place of an obstacle any other body
        self.i = jnp.where(self.pair, i[slot], body)
        self.j = jnp.where(self.pair, j[slot], (body + 1) % near.bodies.number)

    def spread(self, at_i: Array, at_j: Array) -> Array:
        """Rows (k, ..., d) from their parts (k, ..., D) for body i and body j of each contact."""
        each, n = jnp.arange(len(self.rows)), self.near.bodies.number
        parts = (jnp.moveaxis(x, 0, -1) for x in (at_i, at_j))
        whole = jnp.zeros((n, *at_i.shape[1:], len(each)), at_i.dtype)
        for body, part in zip((self.i, self.j), parts, strict=True):
            whole = whole.at[body, ..., each].add(jnp.moveaxis(part, -1, 0))
        whole = jnp.moveaxis(whole, (0, -1), (-2, 0))
        return whole.reshape(*whole.shape[:-2], -1)


class SomePairs(SomeGaps):
    """Gaps (k,) of some contacts ``of`` a neighbour list; an empty slot has the gap 1."""

    def __init__(self, of: ContactsOfList) -> None:
        super().__init__(of.near, of.rows)
        self.of = of

    def __call__(self, t: ArrayLike, q: Array, args: object) -> Array:
        return self._local(t, q, args, False)[0]

    def jacobian(self, t: ArrayLike, q: Array, args: object, rows: Array | None = None) -> tuple[Array, Array]:
        """Returns the gaps (k,) and their Jacobian (k, d)."""
        gaps, (gi, gj) = self._local(t, q, args, True)
        return gaps, self.of.spread(gi, gj)

    def _local(self, t: ArrayLike, q: Array, args: object, slopes: bool) -> tuple:
        """Returns the gaps (k,) and, if ``slopes``, their gradients (k, D) by the coordinates of body i and of body j;
        else None for these."""
        bodies, t = self.of.near.bodies, jnp.asarray(t, q.dtype)
        of = self.of
        own, each = bodies._own(t, args), q.reshape(bodies.number, -1)

        def gap(a: Array, b: Array, own_a: object, own_b: object, pair: Array, present: Array, number: Array) -> Array:
            found = bodies.pair_gap(a, b, own_a, own_b).astype(q.dtype)
            if bodies.obstacles is not None:
                found = jnp.where(pair, found, bodies.obstacles(t, a, own_a)[number].astype(q.dtype))
            return jnp.where(present, found, 1)

        known = each[of.i], each[of.j], *bodies._given(own, of.i, of.j), of.pair, of.present, of.obstacle
        if not slopes:
            return jax.vmap(gap)(*known), None
        return jax.vmap(jax.value_and_grad(gap, argnums=(0, 1)))(*known)


class SlipOfPairs(SomeSlips):
    """Slip velocities (k, n) of some contacts ``of`` a neighbour list; zero in an empty slot."""

    def __init__(self, of: ContactsOfList) -> None:
        self.of = of

    def __call__(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        slip, known, each = self._local(t, q, v, args)
        return jax.vmap(slip)(*each, *known)

    def tangents(self, t: ArrayLike, q: Array, args: object) -> Array:
        """Returns the gradients (k, n, d) of the slip velocities by v."""
        slip, known, each = self._local(t, q, jnp.zeros_like(q), args)
        return self.of.spread(*jax.vmap(jax.jacfwd(slip, argnums=(0, 1)))(*each, *known))

    def _local(self, t: ArrayLike, q: Array, v: Array, args: object) -> tuple:
        """Returns the slip of one contact as a function of both bodies' velocities and of what is known of it, that for
        all, and the velocities."""
        bodies, t = self.of.near.bodies, jnp.asarray(t, q.dtype)
        of = self.of
        own = bodies._own(t, args)
        places, speeds = (x.reshape(bodies.number, -1) for x in (q, v))

        def slip(va: Array, vb: Array, a: Array, b: Array, own_a: object, own_b: object, *kind: Array) -> Array:
            pair, present, number = kind
            found = bodies.pair_slip(a, b, va, vb, own_a, own_b).astype(q.dtype)
            if bodies.obstacle_slip is not None:
                found = jnp.where(pair, found, bodies.wall_slip(t, a, va, own_a)[number].astype(q.dtype))
            return jnp.where(present, found, 0)

        known = places[of.i], places[of.j], *bodies._given(own, of.i, of.j), of.pair, of.present, of.obstacle
        return slip, known, (speeds[of.i], speeds[of.j])
