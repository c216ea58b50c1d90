"""Contacts at an event: which meet one impact law, which last, their impulses and forces."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools import linalg
from ..contact.laws import ContactLaw
from ..linearisation import Contacts, Metric, acceleration, gap_derivatives
from ..motion import Motion
from ..problem import Problem
from .base import FACING

MANY = 8  # impacts left out of a step, at one pair of contacts, from which on it is not resolved
LOSES = 0.7  # restitution up to which a few impacts take the energy


def met_together(
    contacts: Contacts, v: Array, speed: Array, closed: Array, candidates: Array, near: Array, left: Array
) -> tuple[Array, Array, Array, Array]:
    """Contacts (m,) that meet one impact law together with the candidates, and closed ones beside them that do not approach.

    Contacts met at the same instant meet one law, unless treating them one after the other gives the same result. Also returns whether
    there are several, and which pairs (m, m) have gradients that are not orthogonal.
    """
    reached = near & ~closed & jnp.any(candidates)
    group = candidates | (reached & (speed < -noise(contacts, v, speed)))
    oblique = contacts.oblique()
    coupled = (jnp.sum(group) > 1) & jnp.any(oblique & group[:, None] & (group | closed)[None, :])
    together = coupled | (jnp.sum(group, dtype=left.dtype) > left)
    return jnp.where(together, group, candidates), reached & ~group, together, oblique


def shared(
    contacts: Contacts, oblique: Array, elastic: Array, touching: Array, closed: Array, percussion: Array, e: Array
) -> Array:
    """Whether an ``elastic`` impact (m,) sends a percussion through a contact that was already touching, ().

    Had that contact been slightly open, it would have had an impact of its own, and the motion would be another. Two closed contacts
    that face each other are the sides of a joint, which cannot open.
    """
    if len(elastic) < 2:
        return jnp.zeros((), bool)
    sides = closed[:, None] & closed[None, :] & (contacts.angles() < FACING)
    takes = touching & ~jnp.any(sides, axis=1) & (percussion > 0) & (jnp.broadcast_to(e, elastic.shape) > 0)
    return jnp.any(oblique & (elastic & takes)[:, None] & takes[None, :])


def lasting(
    problem: Problem,
    law: ContactLaw,
    motion: Motion,
    t: Array,
    q: Array,
    v: Array,
    metric: Metric,
    contacts: Contacts,
    speed: Array,
    involved: Array,
) -> tuple[Array, Array, Array, Array]:
    """Contacts (m,) that last after an inelastic impact, or an elastic one too slow for h to resolve.

    Returns that and the gap velocity (m,) below which h resolves none; free acceleration (d,) and gap acceleration (m,) then.
    """
    motion = lax.stop_gradient(motion)
    h, e, args = motion.h, motion.e, motion.args
    v = v + contacts.jump(reaction(law, contacts, speed, involved)[0])
    free = acceleration(problem, metric, t, q, v, args)
    gap_acceleration = gap_derivatives(problem, t, q, v, args)[1]
    slow = 2 * h * (jnp.abs(contacts.velocity(free)) + jnp.abs(gap_acceleration))
    lasts = persisting(law, contacts, free, gap_acceleration, involved)[2]
    return (e * jnp.abs(speed) <= slow) & lasts, slow, free, gap_acceleration


def returning(
    law: ContactLaw,
    contacts: Contacts,
    free: Array,
    gap_acceleration: Array,
    h: Array,
    after: Array,
    opened: Array,
    involved: Array,
) -> Array:
    """Contacts (m,) that an impact opens so slowly, at gap velocities ``after``, that they close again before h resolves the flight.

    A body rocks between two contacts like this, with less at each impact, and comes to rest on both.
    """
    if len(opened) < 2:
        return jnp.zeros_like(opened)

    def falling() -> Array:
        push = persisting(law, contacts, free, gap_acceleration, involved & ~opened)[0]
        normal = contacts.velocity(free) + gap_acceleration + contacts.delassus() @ push
        return opened & (normal < -noise(contacts, free, gap_acceleration)) & (after <= 2 * h * jnp.abs(normal))

    return lax.cond(
        jnp.any(opened & (after <= 2 * h * jnp.max(jnp.abs(gap_acceleration) + contacts.velocity_terms(free)))),
        falling,
        lambda: jnp.zeros_like(opened),
    )


def behind(law: ContactLaw, h: Array, contacts: Contacts, speed: Array, e: Array, closed: Array) -> tuple[Array, Array]:
    """Contacts (m,) put back onto their surfaces together after the last located event of a step, and whether several impacts are left out.

    A body between two opposing contacts would have gone to and fro. If their gradients are exactly opposite, it is late by part of a step, and
    with dissipative impacts soon rests there; otherwise every omitted impact turns the motion, by an unknown amount. For a body that touches
    both, in a corner, IMPULSES_COUPLED is set.
    """
    together = closed | law.acting(contacts, contacts.gap / h, ~closed)[0]
    eps = jnp.finfo(speed.dtype).eps
    depth = -contacts.gap / jnp.sqrt(jnp.maximum(contacts.diagonal(), jnp.finfo(speed.dtype).tiny))
    room, cosine = -(depth[:, None] + depth[None, :]), contacts.angles()
    free = together & ~closed & (speed < 0) & (depth > 0) & (jnp.broadcast_to(e, speed.shape) > LOSES)
    turns = (cosine < 0) & (cosine > -1 + 1e3 * eps) & free[:, None] & ~closed[None, :]
    many = (MANY * room < depth[:, None]) & (room > 1e4 * eps * depth[:, None])
    return together, jnp.any(turns & many)


def noise(contacts: Contacts, x: Array, gap_velocity: Array) -> Array:
    """Round-off (m,) of gap velocities (or accelerations), made of a velocity (or acceleration) x."""
    return 1e3 * jnp.finfo(x.dtype).eps * (contacts.velocity_terms(x) + jnp.abs(gap_velocity))


def impulses_of(contacts: Contacts, target: Array, held: Array) -> Array:
    """Impulses (m,) of the held contacts that change their gap velocities by ``target``, of least norm if dependent."""
    if held.shape[0] == 0:
        return target
    matrix = contacts.delassus()
    diagonal = jnp.diagonal(matrix)
    held = held & (diagonal > 0)
    target = jnp.where(held, target, 0)
    matrix = jnp.where(held[:, None] & held[None, :], matrix, 0) + jnp.diag(jnp.where(held, 0, 1).astype(target.dtype))
    # regular also where contacts depend on each other; one refinement makes up for it
    shift = jnp.where(held, 16 * jnp.finfo(target.dtype).eps * diagonal, 0)
    factor = linalg.factorise(matrix + jnp.diag(shift))
    impulse = linalg.factored_solve(factor, target)
    return impulse + linalg.factored_solve(factor, target - matrix @ impulse)


def reaction(law: ContactLaw, contacts: Contacts, offset: Array, among: Array) -> tuple[Array, Array, Array]:
    """Impulses 0 <= L _|_ G M^-1 G' L + offset >= 0 of the contacts ``among`` (m,), which of them push, and status bits.

    The law only selects the contacts that push; the impulses are differentiated with that selection frozen.
    """
    if among.shape[0] == 0:
        return offset, among, jnp.zeros((), jnp.int32)
    pushing, status = law.acting(contacts, offset, among)
    return impulses_of(contacts, -offset, pushing), pushing, status


def persisting(
    law: ContactLaw, contacts: Contacts, free: Array, gap_acceleration: Array, closed: Array
) -> tuple[Array, Array, Array, Array]:
    """Contact forces of the closed contacts, from the contact problem of accelerations.

    Returns the forces (m,), which contacts push, which of the closed ones stay closed, and status.
    """
    normal = contacts.velocity(free) + gap_acceleration
    push, pushing, status = reaction(law, contacts, normal, closed)
    opening = normal + contacts.delassus() @ push > noise(contacts, free, gap_acceleration)
    return push, pushing, closed & (pushing | ~opening), status
