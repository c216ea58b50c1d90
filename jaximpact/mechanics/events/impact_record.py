"""A record of the first impacts of a motion, or of its first events of several kinds, filled while it runs."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

IMPACT, STOP, REVERSAL, BREAK, RELEASE = KINDS = ("impact", "stop", "reversal", "break", "release")
OF_FRICTION = (STOP, REVERSAL, BREAK)


class ImpactRecord(NamedTuple):
    """The first k impacts, carried in the state: times ``t`` (k,) and numbers of the ``contact`` (k,), NaN and -1 for
    impacts that have not happened yet; positions ``q``, velocities ``before`` and ``after`` the impact (k, d),
    ``impulse`` of the contact (k,); and the ``number`` () of all impacts so far, which may exceed k. Of events of
    several kinds also the ``kind`` (k,), its place in `KINDS`, else None."""

    t: Array
    contact: Array
    q: Array
    before: Array
    after: Array
    impulse: Array
    number: Array
    kind: Array | None = None

    @classmethod
    def empty(cls, k: int, q: Array, kinds: tuple[str, ...]) -> ImpactRecord:
        """Makes a record with room for k events of some ``kinds``, none of which has happened."""
        none, state = jnp.full(k, jnp.nan, q.dtype), jnp.full((k, len(q)), jnp.nan, q.dtype)
        unknown = jnp.full(k, -1, jnp.int32)
        kind = None if kinds == (IMPACT,) else unknown
        return cls(none, unknown, state, state, state, none, jnp.zeros((), jnp.int32), kind)

    def with_impacts(
        self, struck: Array, t: Array, q: Array, before: Array, after: Array, impulse: Array, kind: Array | None = None
    ) -> ImpactRecord:
        """Adds one impact at time t for each contact of the mask ``struck`` (m,), in ascending order; ``impulse`` (m,)
        are their impulses, the position is q and the velocities are ``before`` and ``after`` (d,).

        With a ``kind`` (m,), these are events of such kinds, whose times may be (m,),
        and their positions and velocities (m, d).
        """
        numbers = struck.astype(jnp.int32)
        place = self.number + jnp.cumsum(numbers, dtype=jnp.int32) - numbers
        here = struck[None, :] & (place[None, :] == jnp.arange(len(self.t), dtype=jnp.int32)[:, None])
        new = jnp.any(here, axis=1)

        def of_contact(x: Array) -> Array:
            which = here.reshape(here.shape + (1,) * (x.ndim - 1))
            return jnp.sum(jnp.where(which, x, 0), axis=1, dtype=x.dtype)

        put = lambda old, x: jnp.where(new[:, None], x if x.ndim == 1 else of_contact(x), old)
        return ImpactRecord(
            jnp.where(new, t if t.ndim == 0 else of_contact(t), self.t),
            jnp.where(new, of_contact(jnp.arange(len(struck), dtype=jnp.int32)), self.contact),
            put(self.q, q),
            put(self.before, before),
            put(self.after, after),
            jnp.where(new, of_contact(impulse), self.impulse),
            self.number + jnp.sum(numbers, dtype=jnp.int32),
            None if kind is None or self.kind is None else jnp.where(new, of_contact(kind), self.kind),
        )
