"""State at an event: gaps, velocities and accelerations there, and the forces or impulses with
which closed contacts answer."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ...jaxtools import linalg
from ...jaxtools.outlined import outlined
from ..contact.laws import ContactLaw
from ..contacts import Contacts
from ..joints import Joints
from ..linearisation import Metric, gap_derivatives, joint_acceleration, linearise, noise
from ..problem import Problem


class View(NamedTuple):
    """Quantities at one state.

    Linearised ``contacts``; the acceleration ``free`` (d,) without contact forces; gap velocities (m,), and the
    accelerations of the gaps (m,) for constant velocity; linearised ``joints``,
    and their forces (j,) without contact forces.
    """

    contacts: Contacts
    free: Array
    gap_velocity: Array
    gap_acceleration: Array
    joints: Joints
    joint_force: Array

    @classmethod
    def at(cls, problem: Problem, t: Array, q: Array, v: Array, args: object) -> View:
        metric = Metric.at(problem, q, args, t)
        free, force = joint_acceleration(problem, metric, t, q, v, args)
        contacts = linearise(problem, metric, t, q, args)
        return cls(contacts, free, *gap_derivatives(problem, t, q, v, args), metric.joints, force)

    def joint_forces(self, push: Array) -> Array:
        """Returns the forces (j,) of the joints under contact forces ``push`` (m,)."""
        return self.joint_force + self.joints.reaction_to(self.contacts, push)


class Event(NamedTuple):
    """A state at which contacts close or open: time (), position and velocity (d,), metric, contacts, and gap
    velocities ``speed`` (m,)."""

    t: Array
    q: Array
    v: Array
    metric: Metric
    contacts: Contacts
    speed: Array

    @classmethod
    def at(cls, problem: Problem, t: Array, q: Array, v: Array, args: object) -> Event:
        metric = Metric.at(problem, q, args, t)
        contacts = linearise(problem, metric, t, q, args)
        return cls(t, q, v, metric, contacts, contacts.gap_velocity(v))

    def joint_impulse(self, impulse: Array) -> Array:
        """Returns the impulses (j,) with which the joints react to impulses (m,) of the contacts."""
        return self.metric.joints.reaction_to(self.contacts, impulse)


@partial(outlined, static=(3,))
def impulses_to_change(contacts: Contacts, target: Array, held: Array, smooth: bool = False) -> Array:
    """Returns the impulses (m,) of the ``held`` contacts (m,) that change their gap velocities by ``target`` (m,),
    of least norm if dependent.

    ``smooth``: whether those of dependent contacts, as the corners of a box, are to have no more rounding than others,
    as forces along a path need.
    """
    if held.shape[0] == 0:
        return target
    matrix = contacts.delassus()
    diagonal = jnp.diagonal(matrix)
    held = held & (diagonal > 0)
    target = jnp.where(held, target, 0)
    matrix = jnp.where(held[:, None] & held[None, :], matrix, 0) + jnp.diag(jnp.where(held, 0, 1).astype(target.dtype))
    # regular also where contacts depend on each other; refinements make up for it
    eps, scale = float(jnp.finfo(target.dtype).eps), jnp.where(held, diagonal, 0)
    factor = linalg.factorise(matrix + jnp.diag(16 * eps * scale))

    def solve(factor: Array, times: int) -> Array:
        impulse = linalg.factored_solve(factor, target)
        for _ in range(times):
            impulse = impulse + linalg.factored_solve(factor, target - matrix @ impulse)
        return impulse

    if held.shape[0] == 1 or not smooth:
        return solve(factor, 1)
    # so small a shift turns rounding into impulses that cancel each other
    dependent = jnp.any(held & ~(linalg.pivots_of(lax.stop_gradient(factor)) > 1e3 * eps * scale))
    several = lambda: solve(linalg.factorise(matrix + jnp.diag(eps**0.375 * scale)), 4)
    return lax.cond(dependent, several, lambda: solve(factor, 1))


def reaction(law: ContactLaw, contacts: Contacts, offset: Array, candidates: Array) -> tuple[Array, Array, Array]:
    """Solves 0 <= L _|_ G M^-1 G' L + offset >= 0 for the contacts ``candidates`` (m,); returns L, which of them push,
    and status bits.

    The law only selects the contacts that push; the impulses are differentiated with that selection frozen.
    """
    if candidates.shape[0] == 0:
        return offset, candidates, jnp.zeros((), jnp.int32)
    pushing, status = law.acting(contacts, offset, candidates)
    return impulses_to_change(contacts, -offset, pushing), pushing, status


def persisting(
    law: ContactLaw, contacts: Contacts, free: Array, gap_acceleration: Array, closed: Array, slack: ArrayLike = 0.0
) -> tuple[Array, Array, Array, Array]:
    """Solves the contact problem of accelerations for the forces of the ``closed`` contacts (m,).

    ``free`` (d,), ``gap_acceleration`` (m,): accelerations without contact forces, and of gaps at constant velocity, as
    in `View`. Returns the forces (m,), the contacts (m,) that push, the closed ones (m,) that stay closed, and status.
    A contact that opens with at most the acceleration ``slack`` counts as staying.
    """
    normal = contacts.velocity(free) + gap_acceleration
    push, pushing, status = reaction(law, contacts, normal, closed)
    opening = normal + contacts.delassus() @ push > noise(contacts, free, gap_acceleration) + slack
    return push, pushing, closed & (pushing | ~opening), status
