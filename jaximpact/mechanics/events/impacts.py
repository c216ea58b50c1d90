"""Impacts at an event: which contacts take part in one impact law, which stay closed after it, and their impulses."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.jaxpr_tools import depends_on
from ...jaxtools.linalg import nonzero
from ...switches.switches import Kinks
from ..contact.laws import ContactLaw
from ..contact.solver import complementarity
from ..contacts import Contacts
from ..linearisation import Metric, acceleration, gap_derivatives, noise
from ..motion import Motion
from ..problem import Problem
from ..scheme import FACING, mass_status, restitution_status
from ..status import Status, as_status
from .event_state import Event, impulses_to_change, persisting, reaction
from .force_free import opens_by_change
from .short_flights import ShortFlights

# fraction of the accelerations by which an impact must change those of other contacts for their order to matter
COUPLED = 1e-6


def met_together(
    contacts: Contacts,
    oblique: Array,
    v: Array,
    speed: Array,
    closed: Array,
    candidates: Array,
    near: Array,
) -> tuple[Array, Array, Array]:
    """Selects the contacts (m,) that take part in the next impact: the ``candidates``,
    and others that close at the same instant.

    The others are open contacts that approach and whose gaps are ``near`` (m,) zero. They take part unless one impact
    after the other gives the same result: if their gradients are orthogonal to each other (no pair is ``oblique``, (m,
    m)). ``speed`` (m,): gap velocities at v (d,).

    Returns the contacts (m,) of the impact; those near zero (m,) that do not approach;
    and whether contacts are to be treated together, ().
    """
    reached = near & ~closed & jnp.any(candidates)
    group = candidates | (reached & (speed < -noise(contacts, v, speed)))
    together = (jnp.sum(group) > 1) & jnp.any(oblique & group[:, None] & (group | closed)[None, :])
    return jnp.where(together, group, candidates), reached & ~group, together


def meets_within(spread: Array, contacts: Contacts, v: Array, speed: Array) -> Array:
    """Finds the contacts (m,) that approach faster than round-off, and so fast that their gaps
    close within a time ``spread`` ().

    ``speed`` (m,): gap velocities at v (d,), negative for contacts that approach.
    """
    return (speed < -noise(contacts, v, speed)) & (contacts.gap <= -spread * speed)


def may_be_first(oblique: Array, event: Event, closed: Array, impact: Array, spread: Array) -> Array:
    """Tests whether one of the contacts whose approach an ``impact`` (m,) changes may have been the first instead, as
    it closes within ``spread``, ().

    ``oblique`` (m, m): pairs in which an impulse at one changes a velocity of the other.
    """
    soon = ~closed & ~impact & meets_within(spread, event.contacts, event.v, event.speed)
    return jnp.any(oblique & impact[:, None] & soon[None, :])


def order_matters(
    problem: Problem, event: Event, closed: Array, candidates: Array, e: Array, spread: Array, args: Any
) -> Array:
    """Tests whether the order of impacts at nearly the same time matters to first order, ().

    The contacts are the first of the ``candidates`` (m,) and another one whose gap closes within a time ``spread`` ().
    The order matters if the impact of one of them changes the gap acceleration of the other: by forces that depend on
    the velocity (magnetic, Coriolis) or by curved gaps. Otherwise the saltation matrices
    of orthogonal contacts commute.
    """
    t, q, v, _, contacts, speed = lax.stop_gradient(event)
    e, spread, args = lax.stop_gradient((e, spread, args))

    def accelerations(t: Array, q: Array, v: Array, args: Any) -> tuple[Array, Array]:
        """Returns the accelerations of the coordinates (d,) and of the gaps (m,) without contact forces."""
        a = acceleration(problem, Metric.at(problem, q, args, t), t, q, v, args)
        return a, contacts.velocity(a) + gap_derivatives(problem, t, q, v, args)[1]

    m = len(candidates)
    if m < 2 or not contacts.dense or not depends_on(accelerations, (t, q, v, args), (2,)):
        return jnp.zeros((), bool)
    approaching = meets_within(spread, contacts, v, speed)
    first = candidates & (jnp.arange(m) == jnp.argmax(candidates))
    others = (candidates | (approaching & ~closed)) & ~first

    def couples() -> Array:
        percussion = -(1 + e) * speed / nonzero(contacts.diagonal())
        changes = jax.vmap(lambda which: contacts.jump(jnp.where(which, percussion, 0)))(jnp.stack([first, others]))
        # before, after the first, after the others, and after all
        ways = v[None] + jnp.asarray([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], v.dtype) @ changes
        a, normal = lax.map(lambda v: accelerations(t, q, v, args), ways)
        across = jnp.where(others, jnp.maximum(jnp.abs(normal[1] - normal[0]), jnp.abs(normal[3] - normal[2])), 0)
        across += jnp.where(first, jnp.maximum(jnp.abs(normal[2] - normal[0]), jnp.abs(normal[3] - normal[1])), 0)
        size = jnp.where(first | others, jnp.sum(jnp.abs(normal), axis=0) + contacts.velocity_terms(a[0]), 0)
        # for the coordinates too, their changes together must be the sum of those of each
        mixed = jnp.abs(a[0] - a[1] - a[2] + a[3])
        return (jnp.max(across) > COUPLED * jnp.max(size)) | jnp.any(mixed > COUPLED * jnp.sum(jnp.abs(a)))

    return lax.cond(jnp.any(first) & jnp.any(others), couples, lambda: jnp.zeros((), bool))


def shared(oblique: Array, elastic: Array, touching: Array, sides: Array, percussion: Array, e: Array) -> Array:
    """Tests whether the impact of ``elastic`` contacts (m,) sends a percussion through another contact that was
    already ``touching`` (m,), ().

    Had that contact been slightly open, it would have had an impact of its own, and the motion would differ. Contacts
    that are ``sides`` (m,) of a bilateral constraint do not count, as they cannot open. ``oblique`` (m, m): pairs whose
    gradients are not orthogonal; ``percussion`` (m,): impulses of the impact.
    """
    takes = touching & ~sides & (percussion > 0) & (jnp.broadcast_to(e, elastic.shape) > 0)
    return jnp.any(oblique & (elastic & takes)[:, None] & takes[None, :])


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

    Returns that mask; the gap velocity (m,) below which an impact is not resolved; and, at the velocity after an
    inelastic impact, the acceleration without contact forces (d,) and the gap acceleration at constant velocity (m,).
    """
    motion = lax.stop_gradient(motion)
    (t, q, v, metric, contacts, speed), e, args = event, motion.e, motion.args
    v = v + contacts.jump(reaction(law, contacts, speed, involved)[0])
    free = acceleration(problem, metric, t, q, v, args)
    gap_acceleration = gap_derivatives(problem, t, q, v, args)[1]
    push, _, lasts, _ = persisting(law, contacts, free, gap_acceleration, involved)
    # what presses a contact: all that accelerates its gap but its own force; terms that cancel do not
    by_others = jnp.abs(contacts.delassus()) @ push - contacts.diagonal() * push
    slow = flights.slowest(jnp.abs(contacts.velocity(free) + gap_acceleration) + by_others)
    return (e * jnp.abs(speed) <= slow) & lasts, slow, free, gap_acceleration


def closes_again(
    law: ContactLaw,
    contacts: Contacts,
    free: Array,
    gap_acceleration: Array,
    flights: ShortFlights,
    after: Array,
    opened: Array,
    involved: Array,
) -> Array:
    """Finds the contacts (m,) that an impact opens so slowly that they close again before their flight is resolved.

    ``after`` (m,): gap velocities after the impact; ``opened`` (m,): contacts that it opens, of those ``involved``
    (m,); ``free`` (d,), ``gap_acceleration`` (m,): accelerations after the impact, as in `View`; ``flights``: as in
    `collide`.

    A body that rocks between two contacts opens them like this, more slowly at each impact, and comes to rest on both,
    if the forces hold it there. If they do not, it leaves one of them, with a part of the velocity that it would lose
    by coming to rest, and the flight is followed.
    """
    if len(opened) < 2:
        return jnp.zeros_like(opened)

    def falling() -> Array:
        push = persisting(law, contacts, free, gap_acceleration, involved & ~opened)[0]
        normal = contacts.velocity(free) + gap_acceleration + contacts.delassus() @ push
        found = (
            opened & (normal < -noise(contacts, free, gap_acceleration)) & (after <= flights.slowest(jnp.abs(normal)))
        )
        rest = found | (involved & ~opened)
        return found & jnp.all(persisting(law, contacts, free, gap_acceleration, rest)[2] == rest)

    return lax.cond(
        jnp.any(
            opened & (after <= flights.slowest(jnp.max(jnp.abs(gap_acceleration) + contacts.velocity_terms(free))))
        ),
        falling,
        lambda: jnp.zeros_like(opened),
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


class ImpactImpulses(NamedTuple):
    """Result of the impact law at an event.

    Masks (m,) of contacts: ``lands``, those of the impact that stay closed; ``back``, those that would open but close
    again at once, and are kept closed; ``opened``, those that open. Numbers (m,): the gap velocity up to which an
    impact is too ``slow`` to be resolved, the ``percussion``, the further impulse ``rest`` that stops the contacts of
    ``back``, and the residual ``error`` of the law. And ``status`` ().
    """

    lands: Array
    back: Array
    opened: Array
    slow: Array
    percussion: Array
    rest: Array
    error: Array
    status: Array

    @classmethod
    def of(
        cls,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        flights: ShortFlights,
        event: Event,
        closed: Array,
        impact: Array,
        beside: Array,
    ) -> ImpactImpulses:
        """Applies the impact law to the contacts of an ``impact`` (m,), to the ``closed`` ones (m,),
        and to those ``beside`` them.

        ``beside`` (m,): contacts that touch without approaching; ``flights``: as in `collide`.
        """
        v, contacts, speed = event.v, event.contacts, event.speed
        involved = (closed | impact | beside) & jnp.any(impact)
        before = lax.stop_gradient(event)
        stays, slow, free, gap_acceleration = lasting(problem, law, motion, flights, before, involved)
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
        back = closes_again(law, *flight, flights, lax.stop_gradient(after), opened, involved)
        opened = opened & ~back
        stopped = impact & ~lands & (jnp.abs(after) <= rounding)
        lands = lands | pressed_together(law, *flight, stopped, involved & ~opened)
        kept = back | (involved & (closed | lands) & ~opened)
        rest = lax.cond(
            jnp.any(back), lambda: impulses_to_change(contacts, -after, kept), lambda: jnp.zeros_like(after)
        )
        defect = lax.stop_gradient(jnp.where(involved, after + velocity, 0))
        error = complementarity(defect, lax.stop_gradient(beyond), contacts.diagonal())
        return cls(lands, back, opened, slow, percussion, rest, error, status)


def put_back(contacts: Contacts, q: Array, speed: Array, pulled: Array, others: Array) -> tuple[Array, Array]:
    """Puts the ``pulled`` contacts (m,) back onto their surfaces: returns q (d,), and by how much later than the event
    the ``others`` (m,) close, (m,).

    The others close at the instant of the event for the present data alone: that time is zero in value, and has their
    derivative. ``speed`` (m,): gap velocities.
    """
    delay = jnp.where(others, (contacts.gap - lax.stop_gradient(contacts.gap)) / jnp.where(others, -speed, 1), 0)
    gap = jnp.where(others, lax.stop_gradient(contacts.gap), contacts.gap)
    return q + contacts.jump(impulses_to_change(contacts, -gap, pulled)), delay


class Collision(NamedTuple):
    """Result of `collide`: q and v (d,) after the event, the contacts (m,) that are ``closed`` then, those (m,) that
    had an ``impact`` in it, and those that rub but do not slip after it, ``rests`` (m,).

    Also the ``impulse`` of the event, (m,) or of contacts that rub (m, 1 + k), and that of the joints,
    ``joint_impulse`` (j,); the residual ``error`` () of the impact law, status (), and whether flights too short to be
    followed are left out, ``dies`` ().
    """

    q: Array
    v: Array
    closed: Array
    impact: Array
    rests: Array
    impulse: Array
    joint_impulse: Array
    error: Array
    status: Array
    dies: Array


def collide(
    problem: Problem,
    law: ContactLaw,
    motion: Motion,
    flights: ShortFlights,
    event: Event,
    closed: Array,
    candidates: Array,
    near: Array,
    spread: Array | None,
) -> Collision:
    """Puts closed contacts back onto their surfaces, and applies the impact law to the ``candidates`` (m,).

    Args:
        flights: what decides which flights behind the impact are too short to be followed.
        event: the state at which contacts close or open.
        closed: mask (m,) of contacts that were closed before.
        candidates: mask (m,) of contacts that have an impact.
        near: mask (m,) of contacts with zero gap; those that close at the same instant take part in the impact.
        spread: error () of the times of impacts; None where no derivative is asked for.
    """
    _, q, v, metric, contacts, speed = event
    oblique = contacts.oblique()
    impact, beside, together = met_together(contacts, oblique, v, speed, closed, candidates, near)
    q, delay = put_back(contacts, q, speed, closed | candidates | impact, impact & ~candidates)
    tangent = impulses_to_change(contacts, -speed, closed)
    v = v + contacts.jump(tangent)
    speed = speed + contacts.delassus() @ tangent
    e = problem.restitution_at(motion.e, speed, motion.args)
    motion = motion._replace(e=e)
    in_order = jnp.zeros((), bool)
    if spread is not None:
        in_order = order_matters(problem, event._replace(speed=speed), closed, candidates, e, spread, motion.args)
        in_order |= may_be_first(oblique, event._replace(v=v, speed=speed), closed, impact, spread)
    blow = ImpactImpulses.of(
        problem, law, motion, flights, event._replace(q=q, v=v, speed=speed), closed, impact, beside
    )
    v = v + contacts.jump(blow.percussion) + contacts.jump(blow.rest)
    # the other contacts close at times of their own: the same in value, with other derivatives
    q = q - contacts.jump(blow.percussion * delay)
    # conditions that make derivatives doubtful, or the step one of first order
    zeno = impact & blow.lands & (e > 0)
    dies = jnp.any(zeno | blow.back)
    grazing = impact & ~zeno & (speed >= -blow.slow)
    pairs = oblique & impact[:, None] & impact[None, :]
    sides = jnp.any(closed[:, None] & closed[None, :] & (contacts.angles() < FACING), axis=1)
    through = shared(oblique, impact & ~blow.lands, closed | impact | beside, sides, blow.percussion, e)
    status = blow.status | collision_status(
        problem, metric, e, impact, zeno=dies, grazing=jnp.any(grazing), through=through,
        at_once=jnp.any(pairs) | in_order | (together & (jnp.sum(impact) > 1)),
    )  # fmt: skip
    closed = (closed | blow.lands | blow.back) & ~blow.opened
    if spread is not None:
        free = opens_by_change(problem, event.t, q, event.v, v, impact & (e <= 0), closed, motion.args, spread)
        status |= as_status(free, Status.DERIVATIVE_EVENTS)
    impulse, rests = tangent + blow.percussion + blow.rest, jnp.zeros_like(closed)
    error = jnp.max(blow.error, initial=0.0)
    return Collision(q, v, closed, impact, rests, impulse, event.joint_impulse(impulse), error, status, dies)


def collision_status(
    problem: Problem,
    metric: Metric,
    e: Array,
    impact: Array,
    *,
    zeno: Array,
    grazing: Array,
    through: Array,
    at_once: Array,
) -> Array:
    """Returns the status of an ``impact`` (m,) with restitution e.

    The conditions, () each, come from `collide`: impacts accumulate (``zeno``), or are too slow to be
    certain (``grazing``); one sends a percussion ``through`` another contact; their order matters (``at_once``).
    """
    status = (
        mass_status(metric)
        | as_status(zeno, Status.DERIVATIVE_EVENTS)
        | as_status(grazing, Status.DERIVATIVE_EVENTS)
        | as_status(through, Status.IMPULSES_COUPLED)
        | as_status(at_once | through, Status.DERIVATIVE_EVENTS)
    )
    return status | restitution_status(e, impact) if callable(problem.restitution) else status


def lasting_at_end(kinks: Kinks | None, event: Event, closed: Array, args: Any) -> tuple[Array, Array]:
    """Finds which of the ``closed`` contacts (m,) are still closed at the end of a trial,
    and which (m,) are struck by their surface at a kink.

    ``kinks``: gaps that may kink, with their sides at its start, None if none can; ``event``: its end.
    """
    t, q, v, _, contacts, speed = lax.stop_gradient(event)
    if kinks is None:
        return closed, jnp.zeros_like(closed)
    before = kinks.rate(t, q, v, lax.stop_gradient(args))
    kinked = closed & (jnp.abs(speed - before) > noise(contacts, v, jnp.abs(speed) + jnp.abs(before)))
    # a surface that turned away releases the body, one that turned towards it strikes it
    return closed & ~kinked, kinked & (speed < 0)
