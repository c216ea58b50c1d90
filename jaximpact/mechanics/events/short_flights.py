"""Flights behind an impact that are too short to be followed: their contacts come to rest instead.

Whatever is left out, gaps and their rates are zero at its end, and momentum gives the impulses. With forces that do not
change meanwhile the path is then exact, so that values are off by the height of these flights, and derivatives by that
of this height: `Solution.error` has the height, and its derivative tells the error of other derivatives. Bounces of one
contact make that as small as the height itself. Of contacts that bounce in turn, and of impacts that are soft without
any bounce before, it may be of any size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

SHARE = 0.01  # least share of its speed that a contact loses in an impact for its flights to end soon
NEARLY = 10  # times the change of a slip by all flights left out: a slower one is taken to end among them


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

    @property
    def lost(self) -> Array:
        """Share of its speed that a contact loses in an impact, () or (m,)."""
        return jnp.maximum(1 - self.e, SHARE)

    def slowest(self, press: Array) -> Array:
        """Returns the gap velocities (m,) behind an impact up to which contacts rest that accelerations ``press`` (m,)
        hold closed: the gap would stay below ``low``, or all further flights take too little time to be resolved.

        The second is asked of all of them: contacts with e = 1, whose flights never end, would lose energy by resting.
        The velocities are lower where another contact is about to close with a resolved impact, before the flights that
        would be left out come to an end: the velocity that is left out changes that impact by as much. (If they were
        zero there, accumulations were followed down to rounding: at 1e-3 sixty times the trials.)
        """
        least = jnp.sqrt(2 * self.low * press) + jnp.sqrt(2 * self.unresolved) * self.lost * press
        flights = 2 * least / jnp.where(press > 0, press * self.lost, 1)
        resolved = ~self.touching & (self.speed < 0) & (self.e * -self.speed > least)
        arrives = jnp.min(jnp.where(resolved, self.gap / jnp.where(resolved, -self.speed, 1), jnp.inf), initial=jnp.inf)
        left_out = self.low + self.unresolved * press / self.span
        return jnp.where(arrives < flights, jnp.minimum(least, left_out), least)

    def time(self, press: Array) -> Array:
        """Returns half the time () of a flight that is just resolved, under a gap acceleration ``press`` ()."""
        some = press > 0
        return jnp.sqrt(jnp.where(some, self.low / (2 * jnp.where(some, press, 1)), 0)) + jnp.sqrt(self.unresolved / 2)

    def left_out(self, rebound: Array, press: Array, before: Array, after: Array) -> Array:
        """Returns how much the flights that are left out may change positions, (): their heights, and the way of slips
        that end meanwhile.

        ``rebound`` (m,): gap velocities at which these flights begin, zero for other contacts; ``press`` (m,): gap
        accelerations as for `slowest`; slip speeds ``before`` the impact and ``after`` the flights, (m,).
        """
        some, change = (rebound > 0) & (press > 0), lax.stop_gradient(jnp.abs(after - before))
        flight = jnp.where(some, rebound / jnp.where(some, lax.stop_gradient(press), 1), 0)
        height = jnp.sum(0.5 * rebound * flight)
        time = jnp.max(2 * flight / self.lost, initial=0.0)
        ends = after <= NEARLY / jnp.min(self.lost) * change
        return height + time * jnp.max(jnp.where(ends, before, 0), initial=0.0)
