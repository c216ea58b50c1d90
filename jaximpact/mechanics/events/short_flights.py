"""Flights behind an impact that are too short to be followed: their contacts come to rest instead.

Whatever is left out, gaps and their rates are zero at its end, and momentum gives the impulses. With forces that do not
change meanwhile the path is then exact, so that of a flight with speed u the error of values is of order u^2, and that
of derivatives of order u times the change of u, which by the last of many bounces is as small as u itself.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

FEW = 10  # flights as long as the last one within which there was an impact before, if they belong to bounces
MANY = 1000  # times the flights that are left out, within which other contacts that land bounce in turn with them
SOFT = 100  # times the slowest resolved velocity: slower approaches are those of late bounces, or of a soft landing
SHARE = 0.01  # least share of its speed that a contact loses in an impact for its flights to end soon


class ShortFlights(NamedTuple):
    """What decides which flights are too short.

    ``low`` (): gap that counts as zero; ``unresolved`` (): gap of a flight that steps do not resolve, for each gap
    acceleration; ``span`` (): duration of the motion, and ``since`` (): time from the latest impact, infinite before
    any; ``e``: restitution, () or (m,); ``gap``, ``speed`` (m,): gaps and their rates before the impact; ``touching``
    (m,): contacts that are closed or have an impact.
    """

    low: Array
    unresolved: Array
    span: Array
    since: Array
    e: Array
    gap: Array
    speed: Array
    touching: Array
    rested: Array

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

    def doubtful(
        self, impact: Array, ended: Array, one: Array, press: Array, after: Array, slips: Slips, oblique: Array
    ) -> Array:
        """Tests whether the derivative is doubtful as flights of the ``ended`` contacts (m,) behind an ``impact`` (m,)
        are left out, ().

        It is where steps have a length of their own; where contacts landed softly, so that no bounces have made the
        speed that is left out and its derivative small alike; where a slip ends that they have not made either; and
        where contacts bounce in turn, as the order of their impacts may depend on the data more and more. ``one`` ():
        whether all that have the impact close as one contact; ``press`` (m,): gap accelerations as for `slowest`;
        ``after`` (m,): gap velocities behind the impact; ``oblique`` (m, m): pairs of contacts in which an impulse at
        one moves the other.
        """
        speed, late = self.approach(impact, press)
        push = jnp.where(press > 0, press, 1)
        flight = jnp.max(jnp.where(ended & (press > 0), 2 * speed / push, 0), initial=0.0)
        lost = jnp.min(jnp.where(ended, jnp.maximum(1 - self.e, SHARE), 1), initial=1.0)
        rebounds = jnp.any(ended & (SOFT * self.e * speed > self.slowest(press)))
        bounced = late & (self.since <= FEW * flight)
        ends = slips.ended | (slips.after <= FEW / lost * jnp.abs(slips.after - slips.before))
        ends &= slips.acts & ~self.rested & (slips.before > FEW * flight * slips.pull)
        lasts = (jnp.abs(after) + jnp.sqrt(after**2 + 2 * press * jnp.maximum(self.gap, 0))) / push
        low = ~slips.acts & (press > 0) & (lasts <= MANY * flight / lost) & jnp.any(oblique & ended[None, :], axis=1)
        in_turn = jnp.any(low | (ended & ~impact)) | (~one & (jnp.sum(ended) > 1))
        return (self.unresolved > 0) | (rebounds & ~bounced) | jnp.any(ends) | in_turn

    def approach(self, impact: Array, press: Array) -> tuple[Array, Array]:
        """Returns the speed () of an ``impact`` (m,), and whether it is that of late bounces, ()."""
        speed = jnp.max(jnp.where(impact, -self.speed, 0), initial=0.0)
        return speed, speed <= SOFT * jnp.max(jnp.where(impact, self.slowest(press), 0), initial=0.0)

    def at_rest(self, impact: Array, press: Array, slips: Slips) -> Array:
        """Returns `rested` behind an ``impact`` (m,); ``press`` (m,): gap accelerations as for `slowest`."""
        late = self.approach(impact, press)[1]
        part = impact | (slips.acts & jnp.any(impact))
        return jnp.where(part, slips.ended | (self.rested & late), self.rested)


class Slips(NamedTuple):
    """Slip speeds of contacts ``before`` an impact and ``after`` it, zero for those that do not slip then; those that
    it ``ended``, those that are closed then (``acts``), and how much forces without friction change slips in a
    unit of time, ``pull``: (m,) each; (0,) without friction."""

    before: Array
    after: Array
    ended: Array
    acts: Array
    pull: Array
