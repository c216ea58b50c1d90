"""Bases of trials: the state from which the motion continues after an event,
with the derivative of the event's time."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ..contact.laws import ContactLaw
from ..contacts import Contacts
from ..events.event_state import View, persisting
from ..linearisation import lengths, noise
from ..problem import Problem
from .trial import Base, Tolerance, frozen, held, hold

TERMS = 1e-3  # of a substep: the step h for which `linearisation.span` is about a substep
# times the estimated error of a motion: distance of a gap from zero within which an impact may be earlier or later
SURE = 3
# of the tolerance: gaps up to which a contact counts as closed, and displacements or velocities that a push gives in a
# substep
NOTHING = 1e-3


def base_at(
    problem: Problem,
    law: ContactLaw,
    t: Array,
    elapsed: Array,
    q: Array,
    v: Array,
    closed: Array,
    loosed: Array,
    substep: Array,
    atol: Array,
    args: object,
) -> tuple[Base, Array]:
    """Makes the base of the next trials at a state, and its status bits ().

    Contacts that were ``closed`` (m,), and those that touch at zero gap velocity and have not just been released
    (``loosed``, (m,)), are closed in the base if accelerations do not open them. ``elapsed`` (): time since the step
    began; ``substep`` () and tolerance ``atol`` () set what counts as zero.
    """
    if closed.shape[0] == 0:
        a, force, push, joint_force = held(problem, t, q, v, closed, elapsed, args)
        slack = frozen(elapsed)
        base = Base(
            elapsed,
            q,
            v,
            a,
            closed,
            force,
            push,
            force,
            force,
            slack,
            joint_force=joint_force,
            force_error=jnp.zeros_like(slack),
        )
        return base, jnp.zeros((), jnp.int32)
    view = View.at(problem, t, q, v, args)
    contacts = view.contacts
    roundoff, slack = zero_of_gaps(view, q, v, atol, substep)
    still = frozen(noise(contacts, v, view.gap_velocity))
    touching = frozen((contacts.gap <= roundoff) & (jnp.abs(view.gap_velocity) <= still)) & ~loosed
    _, _, stays, status = persisting(law, contacts, view.free, view.gap_acceleration, closed | touching, slack)
    # all that stay are held, even those without a force: trials detect when the force becomes negative
    a, force, push, joint_force = hold(view, stays, slack)
    rounding = jnp.finfo(q.dtype).eps * frozen(jnp.max(jnp.abs(a - view.free)))
    base = Base(
        elapsed, q, v, a, stays, force, push, roundoff, still, slack, joint_force=joint_force, force_error=rounding
    )
    return base, status


def zero_of_gaps(view: View, q: Array, v: Array, atol: Array, substep: Array) -> tuple[Array, Array]:
    """Returns the gaps (m,) and the acceleration () that count as zero: within a ``substep`` they are rounding, or a
    small part of the tolerance ``atol`` (), which is zero of motions by steps."""
    contacts = view.contacts
    bent = jnp.abs(contacts.velocity(view.free)) + jnp.abs(view.gap_acceleration)
    rounding = frozen(64 * jnp.finfo(q.dtype).eps * lengths(contacts, q, v, bent, TERMS * substep))
    gap = frozen(jnp.maximum(rounding, -2 * contacts.gap)) + NOTHING * atol
    by_steps = NOTHING**2 * jnp.max(rounding) / jnp.where(substep > 0, substep, 1) ** 2
    return gap, jnp.where(atol > 0, NOTHING * atol / jnp.maximum(substep, substep**2), by_steps)


def times_off(tolerance: Tolerance, most: Array, error: Array, q: Array, contacts: Contacts, speed: Array) -> Array:
    """Bounds the errors (m,) of the times at which contacts meet at gap velocities ``speed`` (m,),
    by the error of the motion.

    ``error`` (): estimated error of the motion at q (d,), in units of the tolerance; ``most`` ():
    the largest of these times.
    """
    off = SURE * error * contacts.velocity_terms(tolerance.absolute + tolerance.relative * jnp.abs(q))
    fast = jnp.abs(speed) * most > off
    return frozen(jnp.where(fast, off / jnp.where(fast, jnp.abs(speed), 1), most))
