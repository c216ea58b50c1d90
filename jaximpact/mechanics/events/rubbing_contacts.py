"""Contacts with friction at one instant: the problem of their accelerations, what they do, and their forces."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..contact.friction.cones import OPEN, SLIP, STICK, ConeProblem, direction, length
from ..friction import FrictionInfo, Slip, turn_components
from ..linearisation import Metric, gap_derivatives, joint_acceleration, linearise, noise
from ..problem import Problem
from .acceleration_problem import AccelerationProblem
from .event_state import View


class Place(NamedTuple):
    """Contacts (m,) at one instant.

    The `View`; ``cones``, the contact problem of accelerations, whose offset are the accelerations of gaps and slips
    without contact forces; slip velocities, ``slip`` (m, k), and their round-off ``noise`` (m,); and the metric.
    """

    view: View
    cones: ConeProblem
    slip: Array
    noise: Array
    metric: Metric

    @classmethod
    def at(cls, problem: Problem, t: Array, q: Array, v: Array, args: object, frame: Array | None) -> Place:
        """Evaluates the contacts at a state; ``frame`` (m, 2, d): tangents in space onto which theirs are turned
        (`Slip.onto`), or None."""
        metric = Metric.at(problem, q, args, t)
        free, joint_force = joint_acceleration(problem, metric, t, q, v, args)
        contacts = linearise(problem, metric, t, q, args)
        slip = Slip.of_acceleration(problem, metric, (t, q, v), free, args, frame)
        rates = gap_derivatives(problem, t, q, v, args)
        cones = ConeProblem.of(contacts._replace(slip=slip), contacts.velocity(free) + rates[1])
        view = View(contacts, free, *rates, metric.joints, joint_force)
        return cls(view, cones, slip.of(v), slip_noise(slip, v), metric)

    def turned(self, turn: Array) -> Place:
        """Returns the place with components along tangents turned by ``turn`` (m, 2, 2), as by `turn_onto`."""
        contacts = self.view.contacts._replace(slip=self.cones.slip().turned(turn))
        cones = ConeProblem.of(contacts, self.cones.offset[:, 0])
        return self._replace(cones=cones, slip=turn_components(turn, self.slip))

    def moving(self, h: Array) -> Array:
        """Finds the contacts (m,) whose slip exceeds the rounding of velocities and of their changes in a step h;
        without derivatives."""
        return lax.stop_gradient(length(self.slip)[:, 0] > self.slip_rounding(h))

    def slip_rounding(self, s: Array) -> Array:
        """Returns the round-off (m,) of slips and of their changes in a time s,
        over which forces that cancel, those of contacts too, leave an acceleration."""
        changes = self.cones.slip()
        left = slip_noise(changes._replace(drift=changes.velocity), self.view.free)
        return self.noise + s * jnp.maximum(left, self.rounding())

    def decide(self, closed: Array, slip_direction: Array, near: Array) -> tuple[Array, FrictionInfo]:
        """Returns the forces (m, 1 + k) and the modes of the ``closed`` contacts (m,), without derivatives.

        Contacts with a direction ``slip_direction`` (m, k) slip that way; for the others Coulomb's law decides. A
        contact whose force is zero up to rounding is OPEN: it neither sticks nor slips. If several forces satisfy the
        law, those nearest to ``near`` (m, 1 + k) are taken.
        """
        place = lax.stop_gradient(self)
        accelerations = AccelerationProblem(place.metric, place.view.free, place.cones, place.velocity())
        _, force, modes = accelerations.solve(closed, *lax.stop_gradient((slip_direction, near)))
        acts = place.cones.scales() * force[:, 0] > place.rounding()
        mode, way = jnp.where(acts, modes.mode, OPEN), jnp.where(acts[:, None], modes.direction, 0)
        return jnp.where(acts[:, None], force, 0), modes._replace(mode=mode, direction=way)

    def decide_at_start(self, closed: Array, h: Array) -> tuple[Array, Array, FrictionInfo]:
        """Returns which contacts (m,) slip where a motion with steps h begins, and what `decide` says of the ``closed``
        ones (m,), of no known forces."""
        moves = self.moving(h)
        slip_direction = jnp.where(moves[:, None], heading(self.slip), 0)
        return moves, *self.decide(closed, slip_direction, jnp.zeros_like(self.cones.offset))

    def velocity(self) -> Array:
        """Returns the velocities (m, 1 + k) of gaps and slips."""
        return jnp.concatenate([self.view.gap_velocity[:, None], self.slip], axis=1)

    def rounding(self) -> Array:
        """Returns the round-off (m,) of accelerations of gaps and slips."""
        view = self.view
        return noise(view.contacts, view.free, jnp.abs(view.gap_acceleration) + length(self.cones.offset[:, 1:])[:, 0])


def slip_noise(slip: Slip, v: Array) -> Array:
    """Returns the round-off (m,) of slips at v (d,)."""
    terms = jnp.abs(slip.jacobian) @ jnp.abs(v) + jnp.abs(slip.drift)
    return lax.stop_gradient(1e3 * jnp.finfo(v.dtype).eps * jnp.max(terms, axis=1))


def heading(slip: Array) -> Array:
    """Returns the directions (m, k) of slip velocities (m, k); in the plane these are signs, without derivatives."""
    return lax.stop_gradient(jnp.sign(slip)) if slip.shape[1] == 1 else direction(slip)


def braking(rows: ConeProblem, velocity: Array, kept: Array, still: Array) -> Array:
    """Returns the impulses (m, 1 + k) after which the gap velocities of contacts ``kept`` (m,) are zero, and the slips
    of those also ``still`` (m,).

    ``velocity`` (m, 1 + k): velocities of gaps and slips without these impulses.
    """
    cones = rows._replace(offset=velocity, friction=jnp.zeros_like(rows.friction))
    mode = jnp.where(kept, jnp.where(still, STICK, SLIP), OPEN)
    return cones.in_modes(jnp.zeros_like(velocity), mode, jnp.ones_like(velocity[:, 1:]), times=3)


def held_velocity(problem: Problem, t: Array, h: Array, q: Array, v: Array, closed: Array, args: object) -> Array:
    """Corrects the velocity v (d,) at the start of a motion so that contacts that stick have no slip.

    The value changes by rounding only, but derivatives change. ``closed`` (m,): mask of closed contacts.
    """
    here = Place.at(problem, t, q, v, args, None)
    _, _, modes = here.decide_at_start(closed, h)
    sticks = here.cones._replace(offset=here.velocity())
    mode = jnp.where(modes.mode == STICK, STICK, OPEN)
    return v + here.cones.response @ sticks.in_modes(jnp.zeros_like(sticks.offset), mode, modes.direction).ravel()
