"""A record of the first impacts of a motion, filled while it runs."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class ImpactRecord(NamedTuple):
    """The first k impacts, carried in the state: times ``t`` (k,) and numbers of the ``contact`` (k,), NaN and -1 for impacts that have not
    happened yet; positions ``q``, velocities ``before`` and ``after`` the impact (k, d), ``impulse`` of the contact (k,); and the
    ``number`` () of all impacts so far, which may exceed k."""

    t: Array
    contact: Array
    q: Array
    before: Array
    after: Array
    impulse: Array
    number: Array

    @classmethod
    def empty(cls, k: int, q: Array) -> ImpactRecord:
        """Makes a record with room for k impacts, none of which has happened."""
        none, state = jnp.full(k, jnp.nan, q.dtype), jnp.full((k, len(q)), jnp.nan, q.dtype)
        return cls(none, jnp.full(k, -1, jnp.int32), state, state, state, none, jnp.zeros((), jnp.int32))

    def with_impacts(
        self, struck: Array, t: Array, q: Array, before: Array, after: Array, impulse: Array
    ) -> ImpactRecord:
        """Adds one impact at time t for each contact of the mask ``struck`` (m,), in ascending order; ``impulse`` (m,) are their impulses, the
        position is q and the velocities are ``before`` and ``after`` (d,)."""
        numbers = struck.astype(jnp.int32)
        place = self.number + jnp.cumsum(numbers, dtype=jnp.int32) - numbers
        here = struck[None, :] & (place[None, :] == jnp.arange(len(self.t), dtype=jnp.int32)[:, None])
        new = jnp.any(here, axis=1)
        of_contact = lambda x: jnp.sum(jnp.where(here, x, 0), axis=1, dtype=x.dtype)
        put = lambda old, x: jnp.where(new[:, None], x, old)
        return ImpactRecord(
            jnp.where(new, t, self.t),
            jnp.where(new, of_contact(jnp.arange(len(struck), dtype=jnp.int32)), self.contact),
            put(self.q, q),
            put(self.before, before),
            put(self.after, after),
            jnp.where(new, of_contact(impulse), self.impulse),
            self.number + jnp.sum(numbers, dtype=jnp.int32),
        )
