"""Contacts that an inelastic impact leaves closed without a force: a small change may press them, or open them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.jacobians import generic_change, no_change
from ..linearisation import Metric, acceleration, gap_derivatives, linearise, noise
from ..problem import Problem


def opens_by_change(
    problem: Problem,
    t: Array,
    q: Array,
    before: Array,
    v: Array,
    stopped: Array,
    closed: Array,
    args: object,
    within: Array,
) -> Array:
    """Tests whether one of the ``stopped`` contacts (m,) has no force, and a small change would press or open it, ().

    The change is one of the state, of args or of numbers of the problem. Changes in opposite directions then have
    different derivatives. (Between carts that nothing pushes together no change presses or opens a contact, and the
    derivative exists.) Other ``closed`` contacts (m,) are kept closed. An impact, whose time has an error of ``within``
    (), has stopped the contacts and changed the velocity from ``before`` (d,) to v.
    """
    if stopped.size == 0:
        return jnp.zeros((), bool)
    numbers = problem, args
    t, q, before, v, numbers, within = lax.stop_gradient((t, q, before, v, numbers, within))

    def look() -> Array:
        problem, args = numbers
        metric = Metric.at(problem, q, args, t)
        contacts = linearise(problem, metric, t, q, args)
        balance, keep = contacts.balance(), stopped | closed

        def gaps(q: Array, numbers: tuple) -> Array:
            return numbers[0].gaps(t, q, numbers[1])

        def speeds(q: Array, v: Array, numbers: tuple) -> Array:
            return gap_derivatives(numbers[0], t, q, v, numbers[1])[0]

        def pulls(t: Array, q: Array, v: Array, numbers: tuple) -> tuple[Array, Array]:
            """Returns the accelerations of the coordinates (d,) and of the gaps (m,) without contact forces."""
            problem, args = numbers
            a = acceleration(problem, Metric.at(problem, q, args, t), t, q, v, args)
            return a, contacts.velocity(a) + gap_derivatives(problem, t, q, v, args)[1]

        def in_contact(change: Array, of_gaps: Array) -> Array:
            """Corrects a change (d,) of position or velocity, which changes gaps or gap velocities by ``of_gaps`` (m,),
            to keep contacts closed."""
            return change + contacts.jump(balance(of_gaps, keep))

        def loads(pull: Array) -> Array:
            return contacts.diagonal() * balance(pull, keep)

        # one generic direction is enough: only directions of a set of measure zero change no force where others do
        others = generic_change(numbers)
        aside, turned = (metric.solve(x) for x in generic_change((q, v)))
        aside = in_contact(aside, jax.jvp(gaps, (q, numbers), (aside, others))[1])
        turned = in_contact(turned, jax.jvp(speeds, (q, v, numbers), (aside, turned, others))[1])
        here = t, q, v, numbers
        (a, pull), (da, change) = jax.jvp(pulls, here, (jnp.zeros_like(t), aside, turned, others))
        push = loads(pull)
        small = jnp.max(jnp.where(keep, noise(contacts, a, pull), 0))
        along = jnp.ones_like(t), before, acceleration(problem, metric, t, q, before, args), no_change(numbers)
        small = small + within * jnp.abs(loads(jax.jvp(pulls, here, along)[1][1]))
        moved = jnp.max(jnp.where(keep, noise(contacts, da, change), 0))
        return jnp.any(stopped & (jnp.abs(push) <= small) & (jnp.abs(loads(change)) > moved))

    return lax.cond(jnp.any(stopped), look, lambda: jnp.zeros((), bool))
