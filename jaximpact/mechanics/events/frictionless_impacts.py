"""Impacts of contacts without friction: which of them stay closed, and the impulses of the law of impact."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..contact.laws import ContactLaw
from ..contact.solver import complementarity
from ..contacts import Contacts
from ..linearisation import acceleration, gap_derivatives, noise
from ..motion import Motion
from ..problem import Problem
from ..scheme import FACING
from ..status import Status, as_status
from .event_state import Event, impulses_to_change, persisting, reaction
from .force_free import opens_by_change
from .impacts import Blow
from .short_flights import ShortFlights


def lasting(
    problem: Problem,
    law: ContactLaw,
    motion: Motion,
    flights: ShortFlights,
    event: Event,
    involved: Array,
) -> tuple[Array, Array, Array, Array]:
    """Finds which of the ``involved`` contacts (m,) stay closed after an inelastic impact,
    or an elastic one too slow to be resolved.

    Returns that mask; the accelerations (m,) that press gaps closed; and, at the velocity after an inelastic impact,
    the acceleration without contact forces (d,) and the gap acceleration at constant velocity (m,).
    """
    motion = lax.stop_gradient(motion)
    (t, q, v, metric, contacts, speed), e, args = event, motion.e, motion.args
    v = v + contacts.jump(reaction(law, contacts, speed, involved)[0])
    free = acceleration(problem, metric, t, q, v, args)
    gap_acceleration = gap_derivatives(problem, t, q, v, args)[1]
    push, _, lasts, _ = persisting(law, contacts, free, gap_acceleration, involved)
    # what presses a contact: all that accelerates its gap but its own force; terms that cancel do not
    by_others = jnp.abs(contacts.delassus()) @ push - contacts.diagonal() * push
    press = jnp.abs(contacts.velocity(free) + gap_acceleration) + by_others
    return (e * jnp.abs(speed) <= flights.slowest(press)) & lasts, press, free, gap_acceleration


def closes_again(
    law: ContactLaw,
    contacts: Contacts,
    free: Array,
    gap_acceleration: Array,
    flights: ShortFlights,
    after: Array,
    opened: Array,
    involved: Array,
) -> tuple[Array, Array]:
    """Finds the contacts (m,) that an impact opens so slowly that they close again before their flight is resolved,
    and the gap accelerations (m,) that close them.

    ``after`` (m,): gap velocities after the impact; ``opened`` (m,): contacts that it opens, of those ``involved``
    (m,); ``free`` (d,), ``gap_acceleration`` (m,): accelerations after the impact, as in `View`; ``flights``: as in
    `collide`.

    A body that rocks between two contacts opens them like this, more slowly at each impact, and comes to rest on both,
    if the forces hold it there. If they do not, it leaves one of them, with a part of the velocity that it would lose
    by coming to rest, and the flight is followed.
    """
    none = (jnp.zeros_like(opened), jnp.zeros_like(after))
    if len(opened) < 2:
        return none

    def falling() -> tuple[Array, Array]:
        push = persisting(law, contacts, free, gap_acceleration, involved & ~opened)[0]
        normal = contacts.velocity(free) + gap_acceleration + contacts.delassus() @ push
        found = (
            opened & (normal < -noise(contacts, free, gap_acceleration)) & (after <= flights.slowest(jnp.abs(normal)))
        )
        rest = found | (involved & ~opened)
        return found & jnp.all(persisting(law, contacts, free, gap_acceleration, rest)[2] == rest), jnp.abs(normal)

    return lax.cond(
        jnp.any(
            opened & (after <= flights.slowest(jnp.max(jnp.abs(gap_acceleration) + contacts.velocity_terms(free))))
        ),
        falling,
        lambda: none,
    )


def pressed_together(
    law: ContactLaw, contacts: Contacts, free: Array, gap_acceleration: Array, stopped: Array, still: Array
) -> Array:
    """Finds the contacts (m,) that an impact has ``stopped`` (m,) and that the forces hold closed together with the
    others that are ``still`` (m,).

    Where the impact opens a contact, the forces may hold those that it leaves, though they would not hold all. ``free``
    (d,), ``gap_acceleration`` (m,): accelerations after the impact, as in `View`.
    """
    if len(stopped) < 2:
        return jnp.zeros_like(stopped)
    stays = lambda: stopped & persisting(law, contacts, free, gap_acceleration, still)[2]
    return lax.cond(jnp.any(stopped), stays, lambda: jnp.zeros_like(stopped))


class WithoutFriction(NamedTuple):
    """Contacts without friction that were ``closed`` (m,) until an event, as `impacts.Before`."""

    closed: Array

    @property
    def jammed(self) -> Array:
        return jnp.zeros_like(self.closed)

    def rows(self, event: Event) -> Contacts:
        return event.contacts

    def jump(self, rows: Contacts, impulse: Array, times: Array | float = 1.0) -> Array:
        return rows.jump(impulse * times)

    def errors_of_path(self, event: Event, rows: Contacts) -> Array:
        return impulses_to_change(rows, -event.speed, self.closed)

    def slips(self, v: Array) -> Array:
        return jnp.zeros(self.closed.shape, v.dtype)

    def ambiguous(self, rows: Contacts, closed: Array, rests: Array) -> Array:
        return jnp.zeros((), bool)

    def sides(self, contacts: Contacts) -> Array:
        pairs = self.closed[:, None] & self.closed[None, :]
        return jnp.any(pairs & (contacts.angles() < FACING), axis=1)

    def joint_impulse(self, event: Event, rows: Contacts, impulse: Array) -> Array:
        return event.joint_impulse(impulse)

    def doubts(
        self, problem: Problem, event: Event, v: Array, impact: Array, closed: Array, e: Array, spread: Array | None,
        args: object,
    ) -> Array:  # fmt: skip
        """Returns DERIVATIVE_EVENTS if an inelastic impact leaves contacts closed without force."""
        if spread is None:
            return jnp.zeros((), jnp.int32)
        free = opens_by_change(problem, event.t, event.q, event.v, v, impact & (e <= 0), closed, args, spread)
        return as_status(free, Status.DERIVATIVE_EVENTS)

    def blow(
        self, problem: Problem, law: ContactLaw, motion: Motion, flights: ShortFlights, event: Event, rows: Contacts,
        impact: Array, beside: Array,
    ) -> Blow:  # fmt: skip
        v, contacts, speed, closed = event.v, event.contacts, event.speed, self.closed
        involved = (closed | impact | beside) & jnp.any(impact)
        before = lax.stop_gradient(event)
        stays, press, free, gap_acceleration = lasting(problem, law, motion, flights, before, involved)
        lands = (impact | beside) & stays
        # if a contact beside the impact opened and counted as inelastic, the others would give it energy
        impact_law = problem.impact_law
        e = jnp.where(impact_law.rebounding((impact | beside) & ~lands, involved & ~lands), motion.e, 0)
        least = impact_law.least(e, lambda: reaction(law, contacts, speed, involved)[0])
        velocity = impact_law.velocity(e, speed)
        matrix = contacts.delassus()
        beyond, _, status = reaction(law, contacts, speed + velocity + (matrix @ least if least.size else 0), involved)
        percussion = beyond + least if least.size else beyond
        after = speed + matrix @ percussion
        # where the impact stops a body, the velocity before it sets the round-off
        rounding = noise(contacts, jnp.abs(v) + contacts.jump_terms(percussion), speed)
        opened = involved & (after > rounding)
        flight = lax.stop_gradient((contacts, free, gap_acceleration))
        back, closing = closes_again(law, *flight, flights, lax.stop_gradient(after), opened, involved)
        opened = opened & ~back
        stopped = impact & ~lands & (jnp.abs(after) <= rounding)
        lands = lands | pressed_together(law, *flight, stopped, involved & ~opened)
        kept = back | (involved & (closed | lands) & ~opened)
        # the further impulse that stops the contacts kept closed
        rest = lax.cond(
            jnp.any(back), lambda: impulses_to_change(contacts, -after, kept), lambda: jnp.zeros_like(after)
        )
        defect = lax.stop_gradient(jnp.where(involved, after + velocity, 0))
        error = complementarity(defect, lax.stop_gradient(beyond), contacts.diagonal())
        v = v + contacts.jump(percussion) + contacts.jump(rest)
        error = jnp.max(error, initial=0.0)
        press = jnp.where(back, closing, press)
        rebound = jnp.where(back, after, jnp.where(impact & lands & ~stopped, motion.e * jnp.abs(speed), 0))
        none = jnp.zeros_like(closed)
        return Blow(v, percussion + rest, percussion, lands, back, opened, none, rebound, press, error, status)
