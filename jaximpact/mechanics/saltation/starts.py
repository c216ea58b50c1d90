"""Contacts that are closed where a motion starts: which of them are loaded,
and the derivatives with respect to initial data there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ...jaxtools.array_types import F0, I0, B_m, F_d
from ...jaxtools.batched_branch import run_where_needed
from ...jaxtools.derivative_rules import graft
from ...jaxtools.jacobians import SMALL
from ..contact.laws import ContactLaw
from ..contacts import Contacts
from ..events.event_state import View
from ..linearisation import Metric, acceleration, closure, linearise, noise
from ..motion import Motion
from ..problem import Problem
from ..scheme import FACING
from ..status import Status, as_status
from ..trials.trial import gap_rates


def pressed_at_start(problem: Problem, law: ContactLaw, motion: Motion, branches: bool = False) -> tuple[B_m, I0]:
    """Finds the contacts (m,) that are closed at the start and pressed together by the forces; and the status of
    derivatives by initial data.

    A contact that touches without force and without separating stays in contact, whereas a motion from a neighbouring
    start is in free flight: there is no derivative. A contact that is pressed pulls a neighbouring motion back onto its
    surface, after bounces that die out at once, unless it is elastic. ``branches``: whether a lane looks for them only
    if a contact is closed, as of `Corrected`.
    """
    t, q, v, args = lax.stop_gradient(motion.start)
    view = View.at(problem, t, q, v, args)
    contacts, speed = view.contacts, view.gap_velocity
    at = closure(contacts, -speed, q, v, lax.stop_gradient(motion.h), view.free)
    closed = at.closed & ~at.outward

    def look() -> tuple[B_m, I0]:
        free, balance = contacts.velocity(view.free) + view.gap_acceleration, contacts.balance()
        pushing, _ = law.acting(contacts, free, closed)
        push, small = balance(free, pushing), noise(contacts, view.free, view.gap_acceleration)
        loaded = pushing & (push * contacts.diagonal() > small)
        stays = pushing | (closed & (free + contacts.velocity(contacts.jump(push)) <= small))
        sides = jnp.any(closed[:, None] & closed[None, :] & (contacts.angles() < FACING), axis=1)
        e = problem.restitution_at(motion.e, speed, args)
        doubtful = ~sides & ((stays & ~loaded) | (loaded & (jnp.broadcast_to(e, closed.shape) >= 1)))
        return loaded, as_status(jnp.any(doubtful), Status.DERIVATIVE_EVENTS)

    # matrices of all pairs of contacts: of 184, .4 ms in the code of a start, which is not optimised
    none = lambda: (jnp.zeros_like(closed), jnp.zeros((), jnp.int32))
    return run_where_needed(branches and closed.size > SMALL, jnp.any(closed), look, none)


def put_on_surfaces(problem: Problem, motion: Motion, pressed: B_m) -> Motion:
    """Returns the motion with the derivative of one whose start is projected onto the surfaces of
    the ``pressed`` contacts (m,).

    A body that starts at a small gap df falls back to the surface in a time of the order of df^(1/2), with bounces or
    without. It moves by dq then, of order df; forces that depend on the velocity change the velocity by da/dv dq, with
    the acceleration a; and the impulses that stop it come later than the forces of a contact that is closed from the
    start, so that, where the surface turns, their direction differs. These changes of the velocity are of order df too.
    """
    if pressed.size == 0:
        return motion
    in_flight = lambda: (motion.q0, motion.v0)
    q, v = lax.cond(jnp.any(pressed), lambda: _back_on_surfaces(problem, motion, pressed), in_flight)
    return motion._replace(q0=graft(motion.q0, q), v0=graft(motion.v0, v))


def _back_on_surfaces(problem: Problem, motion: Motion, pressed: B_m) -> tuple[F_d, F_d]:
    """Returns the position and velocity (d,) at the start whose derivatives `put_on_surfaces` takes."""
    t, q, v, args = motion.start
    fixed_t, fixed_q, fixed_v, fixed_args = lax.stop_gradient((t, q, v, args))
    unchanged = lambda x: x - lax.stop_gradient(x)  # zero, with the derivative of x

    def at(t: F0, q: F_d) -> tuple[Metric, Contacts]:
        metric = Metric.at(problem, q, fixed_args, t)
        return metric, linearise(problem, metric, t, q, fixed_args)

    # these factors multiply terms whose value is zero, so that their own derivatives do not count
    metric, contacts = at(fixed_t, fixed_q)
    balance = contacts.balance()
    impulse = balance(unchanged(problem.gaps(t, q, args)), pressed)
    along = (jnp.ones_like(fixed_t), fixed_v)
    way, turn = jax.jvp(lambda t, q: at(t, q)[1].jump(impulse), (fixed_t, fixed_q), along)
    of_v = lambda v: acceleration(problem, metric, fixed_t, fixed_q, v, fixed_args)
    q, v = q + way, v + jax.jvp(of_v, (fixed_v,), (way,))[1] - turn
    return q, v + contacts.jump(balance(unchanged(gap_rates(problem, t, q, v, args)[1]), pressed))
