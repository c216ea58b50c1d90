"""What happens at the end of a trial, as contacts with and without friction are told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..events.event_state import Event
from ..events.short_flights import ShortFlights

if TYPE_CHECKING:
    from .jolts import Jolt


class Ends(NamedTuple):
    """Modes that end at an event: masks (m,) of contacts whose slip has ``stopped``; those of them that others have not
    taken along, which are brought to rest by themselves, ``apart``; those that break away, ``breaks``; and status bits
    where that leaves no derivative."""

    stopped: Array
    apart: Array
    breaks: Array
    status: Array

    @classmethod
    def none(cls, m: int) -> Ends:
        no = jnp.zeros(m, bool)
        return cls(no, no, no, jnp.zeros((), jnp.int32))


class Arrival(NamedTuple):
    """The end of a trial: the state there as an ``event``, the ``delay`` () of an impact behind the trial, masks (m,)
    of contacts whose ``impact`` ends the trial, that are still ``closed``, that have an impact (``candidates``), and
    whose gaps are ``near`` zero; the ``flights`` that are too short to follow; the errors ``spread`` (m,) of the times
    between this impact and those of other contacts, None where no derivative is asked for; the ``jolt`` (`jolts.Jolt`)
    of a border that is crossed, and the levels (k,) of the force that are ``crossed``."""

    event: Event
    delay: Array
    impact: Array
    closed: Array
    candidates: Array
    near: Array
    flights: ShortFlights
    spread: Array | None
    jolt: Jolt
    crossed: Array


class Change(NamedTuple):
    """What has happened at the end of a trial, before contacts are looked at again.

    Masks (m,) of contacts: those that have opened, ``loosed``; whose slip has ``stopped``; that break away, ``breaks``;
    that do not slip after an impact, ``rests``, and do not where flights behind it were left out, ``settled``; that
    were closed and are not, or the reverse, ``moved``. The levels (k,) of the force on whose borders the trial ends,
    ``switched``; whether that, or an impact, changes what all contacts may do, ``struck`` (); and whether the motion
    ``begins`` ().
    """

    loosed: Array
    stopped: Array
    breaks: Array
    rests: Array
    settled: Array
    moved: Array
    switched: Array
    struck: Array
    begins: Array

    @classmethod
    def none(cls, m: int, k: int, begins: Array) -> Change:
        no = jnp.zeros(m, bool)
        return cls(no, no, no, no, no, no, jnp.zeros(k, bool), jnp.zeros((), bool), begins)

    @property
    def some(self) -> Array:
        """Whether anything has happened, ()."""
        return jnp.any(self.loosed | self.stopped | self.breaks | self.moved) | self.struck | self.begins
