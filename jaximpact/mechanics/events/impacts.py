"""Impacts at an event: which contacts take part in one impact law, which stay closed after it, and their impulses."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...jaxtools.jaxpr_tools import depends_on
from ...jaxtools.linalg import nonzero
from ...switches.switches import Kinks
from ..contact.laws import ContactLaw
from ..contacts import Contacts
from ..linearisation import Metric, acceleration, gap_derivatives, noise
from ..motion import Motion
from ..problem import Problem
from ..scheme import mass_status, restitution_status
from ..status import Status, as_status
from .event_state import Event, impulses_to_change
from .short_flights import ShortFlights

# fraction of the accelerations by which an impact must change those of other contacts for their order to matter
COUPLED = 1e-6
SAME = 1e-9  # of the terms of changes of times: differences below it are rounding


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

    Returns the contacts (m,) of the impact; those near zero (m,) that neither approach nor leave;
    and whether contacts are to be treated together, ().
    """
    reached, still = near & ~closed & jnp.any(candidates), noise(contacts, v, speed)
    group = candidates | (reached & (speed < -still))
    together = (jnp.sum(group) > 1) & jnp.any(oblique & group[:, None] & (group | closed)[None, :])
    return jnp.where(together, group, candidates), reached & (jnp.abs(speed) <= still), together


def tied(problem: Problem, motion: Motion, event: Event, closed: Array, impact: Array) -> Array:
    """Finds the contacts (m,) of an ``impact`` (m,) that close at the same instant whatever the data, if all do.

    So do two corners of a block that tilts on its edge: while contacts stay ``closed`` (m,) the one gap cannot change
    without the other, and a change in a direction in which nothing cancels by chance moves both times alike. Arguments
    by which derivatives are taken may change one gap alone.
    """
    m, by, nothing = len(closed), motion.by, jnp.zeros_like(closed)
    t, q, *_ = event
    if m < 3 or by is None or by.changes(problem.gaps, t, q, motion.args):
        return nothing

    def look() -> Array:
        contacts, speed = lax.stop_gradient((event.contacts, event.speed))
        some = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.0, m), speed.dtype) / nonzero(contacts.diagonal())
        change = contacts.jump(jnp.where(closed | impact, some, 0))
        change += contacts.jump(impulses_to_change(contacts, -contacts.velocity(change), closed, True))
        found = contacts.velocity(change) / jnp.where(impact, speed, 1)
        of_first, terms = found[jnp.argmax(impact)], contacts.velocity_terms(change) / jnp.where(impact, -speed, 1)
        return impact & (jnp.max(jnp.where(impact, jnp.abs(found - of_first) - SAME * terms, 0)) <= 0)

    return lax.cond(jnp.sum(impact) > 1, look, lambda: nothing)


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
    problem: Problem, event: Event, closed: Array, candidates: Array, e: Array, spread: Array, args: object
) -> Array:
    """Tests whether the order of impacts at nearly the same time matters to first order, ().

    The contacts are the first of the ``candidates`` (m,) and another one whose gap closes within a time ``spread`` ().
    The order matters if the impact of one of them changes the gap acceleration of the other: by forces that depend on
    the velocity (magnetic, Coriolis) or by curved gaps. Otherwise the saltation matrices
    of orthogonal contacts commute.
    """
    t, q, v, _, contacts, speed = lax.stop_gradient(event)
    e, spread, args = lax.stop_gradient((e, spread, args))

    def accelerations(t: Array, q: Array, v: Array, args: object) -> tuple[Array, Array]:
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
    """Finds the contacts (m,) that were already ``touching`` (m,) and through which the impact of ``elastic`` contacts
    (m,) sends a percussion.

    Had such a contact been slightly open, it would have had an impact of its own, and the motion would differ. Contacts
    that are ``sides`` (m,) of a bilateral constraint do not count, as they cannot open. ``oblique`` (m, m): pairs whose
    gradients are not orthogonal; ``percussion`` (m,): impulses of the impact.
    """
    takes = touching & ~sides & (percussion > 0) & (jnp.broadcast_to(e, elastic.shape) > 0)
    return takes & jnp.any(oblique & (elastic & takes)[:, None], axis=0)


def put_back(contacts: Contacts, q: Array, speed: Array, pulled: Array, others: Array) -> tuple[Array, Array]:
    """Puts the ``pulled`` contacts (m,) back onto their surfaces: returns q (d,), and by how much later than the event
    the ``others`` (m,) close, (m,).

    The others close at the instant of the event for the present data alone: that time is zero in value, and has their
    derivative. ``speed`` (m,): gap velocities.
    """
    delay = jnp.where(others, (contacts.gap - lax.stop_gradient(contacts.gap)) / jnp.where(others, -speed, 1), 0)
    gap = jnp.where(others, lax.stop_gradient(contacts.gap), contacts.gap)
    return q + contacts.jump(impulses_to_change(contacts, -gap, pulled)), delay


class Blow(NamedTuple):
    """What an impact law does at an event: the velocity ``v`` (d,) behind it, and the impulses, (m,) or of contacts
    that rub (m, 1 + k); their normal components (m,) in the impact itself, ``percussion``.

    Masks (m,) of contacts: ``lands``, those of the impact that stay closed; ``back``, those that would open but close
    again at once, and are kept closed; ``opened``, those that open; ``rests``, those that do not slip behind it. The
    gap velocities (m,) at which flights begin that are too short to be followed, ``rebound``, zero for contacts without
    one; the gap accelerations ``press`` (m,) by which they are; the residual ``error`` () of the law; and status ().
    """

    v: Array
    impulse: Array
    percussion: Array
    lands: Array
    back: Array
    opened: Array
    rests: Array
    rebound: Array
    press: Array
    error: Array
    status: Array


R = TypeVar("R")  # the contact problem at an event


class Before(Protocol[R]):
    """What contacts did until an event, and the laws that they follow there: `WithoutFriction` or `WithFriction`.

    ``closed`` (m,): contacts that were closed; ``jammed`` (m,): those whose impulses are no impacts, as velocities jump
    by friction alone. Impulses of this object are (m,), or of contacts that rub (m, 1 + k).
    """

    @property
    def closed(self) -> Array: ...
    @property
    def jammed(self) -> Array: ...
    def rows(self, event: Event) -> R:
        """Returns the contact problem at an event, which knows pairs that are `oblique`."""

    def jump(self, rows: R, impulse: Array, times: Array | float = 1.0) -> Array:
        """Returns the change of velocity (d,) by impulses, each multiplied by a number of ``times`` (m,)."""

    def errors_of_path(self, event: Event, rows: R) -> Array:
        """Returns the impulses that stop what should not move: gaps of closed contacts, slips of those that stick."""

    def blow(
        self, problem: Problem, law: ContactLaw, motion: Motion, flights: ShortFlights, event: Event, rows: R,
        impact: Array, beside: Array,
    ) -> Blow:  # fmt: skip
        """Applies the laws to the contacts of an ``impact`` (m,), to the closed ones, and to those ``beside`` them,
        which touch without approaching (m,)."""

    def slips(self, v: Array) -> Array:
        """Returns the slip speeds (m,) at velocity v (d,), zero without friction."""

    def ambiguous(self, rows: R, closed: Array, rests: Array) -> Array:
        """Tests whether contacts that are ``closed`` (m,) behind the event can share their load in many ways, while
        some that do not rest (``rests``, (m,)) slip: friction then depends on what flights do to each of them, ()."""

    def sides(self, contacts: Contacts) -> Array:
        """Returns the mask (m,) of closed contacts that are the sides of a bilateral constraint."""

    def joint_impulse(self, event: Event, rows: R, impulse: Array) -> Array:
        """Returns the impulses (j,) with which joints react to those of the contacts."""

    def doubts(
        self, problem: Problem, event: Event, v: Array, impact: Array, closed: Array, e: Array, spread: Array | None,
        args: object,
    ) -> Array:  # fmt: skip
        """Returns status bits (): what remains in doubt behind an ``impact`` (m,) with velocity v (d,) after it, and
        contacts that are ``closed`` (m,) then."""


class Collision(NamedTuple):
    """Result of `collide`: q and v (d,) after the event, the contacts (m,) that are ``closed`` then, those (m,) that
    had an ``impact`` in it, and those that rub but do not slip after it, ``rests`` (m,).

    Also the ``impulse`` of the event, (m,) or of contacts that rub (m, 1 + k), and that of the joints,
    ``joint_impulse`` (j,); the residual ``error`` () of the impact law, status (), and `ShortFlights.left_out`, ().
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
    left_out: Array


def collide(
    problem: Problem, law: ContactLaw, motion: Motion, flights: ShortFlights, event: Event, before: Before,
    candidates: Array, near: Array, loaded: Array, spread: Array | None,
) -> Collision:  # fmt: skip
    """Puts closed contacts back onto their surfaces, and applies the impact law to the ``candidates`` (m,).

    Args:
        flights: what decides which flights behind the impact are too short to be followed.
        event: the state at which contacts close or open.
        before: what the contacts did until then.
        candidates: mask (m,) of contacts that have an impact.
        near: mask (m,) of contacts with zero gap; those that close at the same instant take part in the impact.
        loaded: mask (m,) of closed contacts that forces press, so that no small change of the motion opens them.
        spread: error () of the times of impacts; None where no derivative is asked for.
    """
    contacts, speed, args, closed = event.contacts, event.speed, motion.args, before.closed
    rows = before.rows(event)
    oblique = rows.oblique()
    impact, beside, together = met_together(contacts, oblique, event.v, speed, closed, candidates, near)
    q, delay = put_back(contacts, event.q, speed, closed | candidates | impact, impact & ~candidates)
    left_over = before.errors_of_path(event, rows)
    v = event.v + before.jump(rows, left_over)
    event = event._replace(q=q, v=v, speed=contacts.gap_velocity(v))
    e = problem.restitution_at(motion.e, event.speed, args)
    in_order, apart = jnp.zeros((), bool), impact  # contacts whose impact at one instant is a coincidence
    if spread is not None:
        apart = impact & ~tied(problem, motion, event, closed, impact)
        in_order = order_matters(problem, event, closed, candidates & apart, e, spread, args)
        in_order |= may_be_first(oblique, event, closed, impact, spread)
    blow = before.blow(problem, law, motion._replace(e=e), flights, event, rows, impact, beside)
    # the other contacts close at times of their own: the same in value, with other derivatives
    q = q - before.jump(rows, blow.impulse, delay)
    # conditions that make derivatives doubtful, or the step one of first order
    zeno = impact & ~before.jammed & blow.lands & (e > 0)
    dies = jnp.any(zeno | blow.back)
    grazing = impact & ~before.jammed & ~zeno & (event.speed >= -flights.slowest(blow.press))
    pairs = oblique & apart[:, None] & apart[None, :]
    after = (closed | blow.lands | blow.back) & ~blow.opened
    slips = jnp.where(after, before.slips(event.v), 0), jnp.where(after & ~blow.rests, before.slips(blow.v), 0)
    left_out = jnp.where(dies, flights.left_out(blow.rebound, blow.press, *slips), 0)
    involved, rebound = closed | impact | beside, impact & ~blow.lands
    through = shared(oblique, rebound, involved, before.sides(contacts), blow.percussion, e)
    firm = jnp.where(impact, ~apart, loaded)
    status = blow.status | collision_status(
        problem, event.metric, e, impact, grazing=jnp.any(grazing), through=jnp.any(through),
        at_once=jnp.any(pairs) | in_order | (together & (jnp.sum(apart) > 1)) | jnp.any(through & ~firm),
    )  # fmt: skip
    status |= before.doubts(problem, event._replace(q=q), blow.v, impact, after, e, spread, args)
    if spread is not None:
        status |= as_status(dies & before.ambiguous(rows, after, blow.rests), Status.DERIVATIVE_EVENTS)
    impulse = left_over + blow.impulse
    joints = before.joint_impulse(event, rows, impulse)
    return Collision(q, blow.v, after, impact, blow.rests, impulse, joints, blow.error, status, left_out)


def collision_status(
    problem: Problem,
    metric: Metric,
    e: Array,
    impact: Array,
    *,
    grazing: Array,
    through: Array,
    at_once: Array,
) -> Array:
    """Returns the status of an ``impact`` (m,) with restitution e.

    The conditions, () each, come from `collide`: impacts are too slow to be certain (``grazing``); one sends a
    percussion ``through`` another contact; their order matters (``at_once``).
    """
    status = (
        mass_status(metric)
        | as_status(grazing, Status.DERIVATIVE_EVENTS)
        | as_status(through, Status.IMPULSES_COUPLED)
        | as_status(at_once, Status.DERIVATIVE_EVENTS)
    )
    return status | restitution_status(e, impact) if callable(problem.restitution) else status


def lasting_at_end(kinks: Kinks | None, event: Event, closed: Array, args: object) -> tuple[Array, Array]:
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
