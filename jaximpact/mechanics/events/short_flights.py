"""Flights behind an impact that are too short to be followed: their contacts come to rest instead."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

SHARE = 0.01  # least share of its speed that a contact loses in an impact for its flights to end soon


class ShortFlights(NamedTuple):
    """What decides which flights are too short.

    ``low`` (): gap that counts as zero; ``unresolved`` (): gap of a flight that steps do not resolve, for each gap
    acceleration; ``span`` (): duration of the motion; ``e``: restitution, () or (m,); ``gap``, ``speed`` (m,): gaps and
    their rates before the impact; ``touching`` (m,): contacts that are closed or have an impact.
    """

    low: Array
    unresolved: Array
    span: Array
    e: Array
    gap: Array
    speed: Array
    touching: Array

    def slowest(self, press: Array) -> Array:
        """Returns the gap velocities (m,) behind an impact up to which contacts rest that accelerations ``press`` (m,)
        hold closed: the gap would stay below ``low``, or all further flights take too little time to be resolved.

        The second is asked of all of them: contacts with e = 1, whose flights never end, would lose energy by resting.
        The velocities are lower where another contact is about to close with a resolved impact, before the flights that
        would be left out come to an end: the velocity that is left out changes that impact by as much. (If they were
        zero there, accumulations were followed down to rounding: at 1e-3 sixty times the trials.)
        """
        lost = jnp.maximum(1 - self.e, SHARE)
        least = jnp.sqrt(2 * self.low * press) + jnp.sqrt(2 * self.unresolved) * lost * press
        flights = 2 * least / jnp.where(press > 0, press * lost, 1)
        resolved = ~self.touching & (self.speed < 0) & (self.e * -self.speed > least)
        arrives = jnp.min(jnp.where(resolved, self.gap / jnp.where(resolved, -self.speed, 1), jnp.inf), initial=jnp.inf)
        left_out = self.low + self.unresolved * press / self.span
        return jnp.where(arrives < flights, jnp.minimum(least, left_out), least)

    def time(self, press: Array) -> Array:
        """Returns half the time () of a flight that is just resolved, under a gap acceleration ``press`` ()."""
        some = press > 0
        return jnp.sqrt(jnp.where(some, self.low / (2 * jnp.where(some, press, 1)), 0)) + jnp.sqrt(self.unresolved / 2)
