"""What steps with friction share: tangential rows, modes at the start of a motion, and status bits of impulses."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.array_types import B0, F0, I0, B_m, F_d, F_m
from ..contact.friction.cones import STICK, ConeProblem, length
from ..contact.friction.static_friction import modes_at
from ..contact.laws import Reaction
from ..contacts import Contacts
from ..events.jump_search import jumps_at_rest
from ..friction import FrictionInfo, Slip, distance_status
from ..linearisation import Metric, acceleration
from ..motion import At, Motion
from ..problem import Problem
from ..scheme import State
from ..status import Status, as_status


def no_friction(problem: Problem, motion: Motion) -> FrictionInfo:
    """Returns the info of a step in which all contacts are open."""
    m, k = problem.slip_velocity(*motion.start).shape
    return FrictionInfo.none(m, k, motion.q0.dtype)


def modes_at_start(problem: Problem, metric: Metric, motion: Motion, closed: B_m) -> FrictionInfo | None:
    """Returns the modes of the ``closed`` contacts (m,) at the start of a motion, as `State.friction`;
    None without static friction."""
    if problem.static_friction is None:
        return None
    t0, q0, v0, args = motion.start
    # as after the last step of a motion that is continued, whose contacts stuck at a position O(h^2) away
    a, slip = acceleration(problem, metric, *motion.start), Slip.at(problem, metric, *motion.start)
    moved = problem.slip_velocity(t0, q0 + motion.h**2 * a, v0, args) - slip.of(v0)
    rounding = 1e3 * jnp.finfo(q0.dtype).eps * motion.h * jnp.max(slip.terms(a), axis=1)
    return modes_at(slip, v0, closed, length(moved)[:, 0] + rounding)


def scale_status(
    problem: Problem, metric: Metric, contacts: Contacts, t: F0, state: State, found: Reaction, args: object
) -> I0:
    """Returns `distance_status` of the contacts that last in a step from ``state`` at t; nothing where gradients never
    change, which the start looks at."""
    if not problem.gaps.curves(t, state.q, args):
        return jnp.zeros((), jnp.int32)
    lasts = found.acts if state.lasting is None else found.acts & state.lasting
    return distance_status(problem, metric, contacts.jacobian, lasts, t, state.q, args)


def scale_at_start(
    problem: Problem, metric: Metric, contacts: Contacts, closed: B_m, t: F0, q: F_d, args: object
) -> I0:
    """Returns `distance_status` of the ``closed`` contacts (m,) at a start, or of all where gradients never change,
    ()."""
    if not problem.rubs or not contacts.dense:
        return jnp.zeros((), jnp.int32)
    known = closed if problem.gaps.curves(t, q, args) else jnp.ones_like(closed)
    return distance_status(problem, metric, contacts.jacobian, known, t, q, args)


def rubbing(problem: Problem, metric: Metric, contacts: Contacts, at: At, state: State) -> Contacts:
    """Returns the ``contacts`` with their tangential rows and coefficients ``at`` a place; ``state``: the state before
    the step."""
    if not problem.rubs:
        return contacts
    slip = Slip.at(problem, metric, *at)._replace(before=state.friction)
    return contacts.rubbing(slip)


def momentum_of(contacts: Contacts, found: Reaction) -> F_d:
    """Returns the generalised impulse (d,) of the contacts in a step, G' L and with friction T' r."""
    normal = contacts.push(found.impulse)
    return normal + contacts.slip.push(found.friction.impulse) if contacts.slip.k else normal


def status_of_rest(problem: Problem, t: F0, q: F_d, w: F_d, free: F_d, found: Reaction, args: object) -> I0:
    """Returns EVENTS_UNRESOLVED if the force jumps where static friction holds a contact, so that both hold together.

    (t, q, w): the state after the step; ``free`` (d,): the velocity there without impulses; ``found``:
    the reaction of the contacts.
    """
    jumps = None
    if problem.static_friction is not None:
        jumps = jumps_at_rest(problem, t, q, w, free, found.friction.mode == STICK, args)
    return jnp.zeros((), jnp.int32) if jumps is None else as_status(jumps, Status.EVENTS_UNRESOLVED)


def impulse_status(contacts: Contacts, found: Reaction, before: F_m, v: F_d, free: F_d, w: F_d, e: Array) -> I0:
    """Returns the status of a step's impulses with friction: `energy_status`, and with several contacts
    `percussion_status`; arguments as there."""
    status = energy_status(contacts, found, before, v, free, w, e)
    if contacts.dense and found.acts.shape[0] > 1:
        status |= percussion_status(contacts, found, before, free - v, e)
    return status


def energy_status(contacts: Contacts, found: Reaction, before: F_m, v: F_d, free: F_d, w: F_d, e: Array) -> I0:
    """Returns ENERGY_GAINED if the impulses L of a step with restitution do positive work,
    the sum of L (u+ + u-)/2 over contacts.

    ``found``: the reaction of the contacts, with the impulses L; u- and u+ are the velocities of gaps and slips at the
    velocities ``free`` and ``w`` (d,), without and with the impulses. Since the time of the impact within the step is
    unknown, positive work is tolerated up to that of L on the velocities that forces give in the step: ``v`` (d,) is
    the velocity at the start, ``before`` (m,) the gap velocities there. ``e``: restitution, () or (m,).
    """
    slip = contacts.slip
    normal, along = found.impulse, found.friction.impulse
    closing = contacts.gap_velocity(free)
    work = jnp.sum(normal * (contacts.gap_velocity(w) + closing)) + jnp.sum(along * (slip.of(w) + slip.of(free)))
    forced = jnp.sum(jnp.abs(normal * (closing - before))) + jnp.sum(jnp.abs(along * (slip.of(free) - slip.of(v))))
    noise = jnp.finfo(v.dtype).eps ** 0.5 * jnp.sum(contacts.diagonal() * normal**2)
    return as_status((work > forced + noise) & jnp.any(e > 0), Status.ENERGY_GAINED)


def percussion_status(contacts: Contacts, found: Reaction, before: F_m, kick: F_d, e: Array) -> I0:
    """Returns IMPULSES_COUPLED if percussions of one step at contacts with friction load each other: in sequence they
    would give other velocities.

    With restitution it is enough that an impact sends a percussion through another contact. Without restitution that is
    just the response of a lasting contact; then two impacts must fall into the step, of which the first may open a
    contact that the second would load.

    ``found``: the reaction of the contacts, with the impulses; ``before`` (m,): gap velocities at the start; ``e``:
    restitution, () or (m,). Impulses up to twice those of the step's forces, which change velocities by ``kick`` (d,),
    count as reactions of lasting contacts.
    """
    contacts, found, before, kick, e = lax.stop_gradient((contacts, found, before, kick, e))
    forced = 2 * contacts.velocity_terms(kick)
    struck = found.acts & (contacts.diagonal() * found.impulse > forced)
    strikes = struck & (before < -forced)

    def coupled() -> B0:
        others = struck[None, :] & (jnp.broadcast_to(e > 0, strikes.shape)[:, None] | strikes[None, :])
        return jnp.any(ConeProblem.of(contacts, before).oblique() & strikes[:, None] & others)

    some = jnp.any(strikes) & (jnp.sum(struck) > 1)
    return as_status(lax.cond(some, coupled, lambda: jnp.zeros((), bool)), Status.IMPULSES_COUPLED)
