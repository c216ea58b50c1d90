"""Saltation of impacts with Coulomb friction that fall into one step of a scheme,
and which contacts load each other."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..contact.friction.cone_solver import frictional_impulses
from ..contact.friction.cones import OPEN, SLIP, STICK, ConeProblem, length
from ..contact.friction.pushed_contacts import impact_impulses
from ..contact.friction.static_friction import cones_in_act
from ..events.acceleration_problem import SHARP, AccelerationProblem
from ..friction import FrictionInfo, Slip
from ..joints import Joints
from ..linearisation import Metric, acceleration, joint_acceleration, linearise
from ..motion import At, Motion
from ..problem import Problem
from .impact_saltation import Instant

# cosine between rows of two contacts, in the metric M^-1, above which impulses of one change velocities of the other
LOADED = 1e-6


class Crossed(NamedTuple):
    """State after the impacts of a step, with the derivative of their time: q, v and the acceleration a (d,).

    Also the impulses (m, 1 + k), and those of the joints (j,); the modes after the impacts (``friction``); ``doubtful``
    (): whether a small change would lead to another mode; ``coupled`` (): whether impacts load each other,
    whose order would matter.
    """

    q: Array
    v: Array
    a: Array
    impulse: Array
    joint_impulse: Array
    friction: FrictionInfo
    doubtful: Array
    coupled: Array


def loaded_together(cones: ConeProblem, candidates: Array) -> Array:
    """Returns the mask (m, m) of the pairs of contacts ``candidates`` (m,) that load each other,
    by themselves or through others of them.

    Each of them is paired with itself, too.
    """
    m, size = cones.offset.shape
    if m < 2:
        return candidates[:, None]
    scale = jnp.sqrt(cones.scales())
    sizes = jnp.max(jnp.abs(lax.stop_gradient(cones).delassus()).reshape(m, size, m, size), axis=(1, 3))
    linked = (sizes > LOADED * lax.stop_gradient(scale[:, None] * scale[None, :])) | jnp.eye(m, dtype=bool)
    linked = (linked & candidates[:, None] & candidates[None, :]).astype(scale.dtype)
    # chains of twice the length each time
    for _ in range(max(m - 1, 1).bit_length()):
        linked = jnp.minimum(linked @ linked, 1)
    return linked > 0


class Delays(NamedTuple):
    """Times of impacts in a step, zero in value, with their derivatives.

    ``first`` (): that of the earliest impact; ``later`` (m,): by how much that of each contact's impact, or of the one
    that loads it, is behind. ``doubtful`` (): whether impacts load each other, whose order would matter.
    """

    first: Array
    later: Array
    doubtful: Array

    @classmethod
    def of(cls, cones: ConeProblem, gap: Array, closing: Array, impact: Array, held: Array) -> Delays:
        """Makes the delays of contacts with an ``impact`` (m,) and of contacts ``held`` (m,) closed.

        ``cones``: the contact problem at one instant; ``gap`` (m,): gaps there, with derivatives; ``closing`` (m,): the
        speeds at which they close.
        """
        each = jnp.where(impact, (gap - lax.stop_gradient(gap)) / closing, 0)
        arrival = jnp.where(impact, lax.stop_gradient(gap) / closing, jnp.inf)
        first = jnp.sum(jnp.where(jnp.arange(len(gap)) == jnp.argmin(arrival), each, 0))
        if len(gap) < 2:
            return cls(first, jnp.zeros_like(each), jnp.zeros((), bool))
        together = loaded_together(cones, impact | held)
        some = jnp.any(together & impact[None, :], axis=1)
        own = each[jnp.argmin(jnp.where(together, arrival[None, :], jnp.inf), axis=1)]
        doubtful = jnp.any(jnp.sum(together & impact[None, :], axis=1) > 1)
        return cls(first, jnp.where(some, own - first, 0), doubtful)

    def shift(self, cones: ConeProblem, rates: ConeProblem) -> ConeProblem:
        """Moves the rows and velocities of each contact of a problem, at the time ``first``, to those at its own time;
        ``rates``: their derivatives."""
        each = jnp.repeat(self.later, cones.offset.shape[1])
        rows, response = cones.rows + each[:, None] * rates.rows, cones.response + each[None, :] * rates.response
        return cones._replace(rows=rows, response=response, offset=cones.offset + self.later[:, None] * rates.offset)


def cross(
    problem: Problem,
    motion: Motion,
    at: At,
    here: Instant,
    masks: tuple[Array, Array],
    slip_direction: Array,
    ahead: tuple[Array, Array, ConeProblem],
) -> Crossed:
    """Carries a state across the impacts at one instant, with the derivatives of their times.

    ``here``: the contacts at that instant; ``masks`` (m,): those that have an impact, and closed ones that are held and
    react to it. Before, these slip in the directions ``slip_direction`` (m, k), or stick where that is zero. ``ahead``:
    acceleration (d,) and forces (m, 1 + k) before the impacts, and a contact problem nearby. Of impacts that load each
    other the earliest gives the time, and the derivative is doubtful.
    """
    (impact, held), (a_before, force, rows) = masks, ahead
    h, given, (t, q, v, args) = motion.h, jnp.broadcast_to(motion.e, impact.shape), at
    gap, closing = problem.gaps(t, q, args), jnp.where(impact, -here.gap_velocity, 1)
    delays = Delays.of(rows, gap, closing, impact, held)
    delay, later = delays.first, delays.later

    # Coulomb's and Newton's law
    def law(
        problem: Problem, given: Array, t: Array, q: Array, v: Array, args: object
    ) -> tuple[ConeProblem, Array, Joints]:
        metric = Metric.at(problem, q, args, t)
        contacts = linearise(problem, metric, t, q, args)._replace(slip=Slip.at(problem, metric, t, q, v, args))
        offset = contacts.gap_velocity(v)
        e = problem.restitution_at(given, offset, args)
        return ConeProblem.of(contacts.sliding(v), offset), e, metric.joints

    v_at = v + delay * a_before
    q_at = q + delay * lax.stop_gradient(v)
    cones, e, joints = law(problem, given, t + delay, q_at, v_at, args)
    if len(impact) > 1:
        fixed, place = lax.stop_gradient((problem, given, args)), lax.stop_gradient((t, q, v))
        flow = lambda t, q, v: law(fixed[0], fixed[1], t, q, v, fixed[2])[0]
        rates = jax.jvp(flow, place, (jnp.ones_like(t), place[2], lax.stop_gradient(a_before)))[1]
        cones = delays.shift(cones, lax.stop_gradient(rates))
    e = jnp.where(problem.impact_law.rebounding(impact, held), e, 0)
    unit = lax.stop_gradient(jnp.max(jnp.abs(cones.offset).at[:, 0].multiply(1 + e), initial=0.0))
    speed = SHARP * unit + here.noise
    matrix, guess = cones.delassus(), jnp.zeros_like(cones.offset)

    def percussion(cones: ConeProblem) -> tuple[Array, ConeProblem, Array]:
        solve = partial(frictional_impulses, tolerance=1e-12 * unit)
        return impact_impulses(problem.impact_law, e, cones, solve, matrix, guess, impact | held)

    if cones.static is not None:
        mode = jnp.where(held, jnp.where(jnp.any(slip_direction != 0, axis=1), SLIP, STICK), OPEN)

        def found_modes(cones: ConeProblem, _: object) -> tuple[Array, Array, None]:
            x, cones, _error = percussion(cones)
            return *cones.modes(x, speed), None

        cones, *_ = cones_in_act(cones, FrictionInfo(slip_direction, mode, slip_direction), found_modes)
    before = cones
    x, cones, _ = percussion(cones)
    v_after = v_at + cones.response @ x.ravel()
    # the motion after the impacts, in which an inelastic contact may stay closed
    behind = AccelerationProblem.at(problem, t, q, v_after, args)
    # one that the impacts do not load stays closed, too
    # (the gap velocity of one that lasts on a curved surface is no zero, but O(h) of either sign)
    change = lax.stop_gradient((matrix @ x.ravel()).reshape(x.shape)[:, 0])
    opens = (lax.stop_gradient(before.velocity(x)[:, 0]) > speed) & (change > speed)
    stays = jnp.where(impact, (lax.stop_gradient(x[:, 0]) > 0) & (e <= 0), held & ~opens)
    a_after, force_after, modes = behind.solve(stays, behind.slipping(speed))
    impulse = x + (delay + later)[:, None] * (force - force_after)
    joint_impulse = joints.reaction(cones.rows.T @ impulse.ravel())
    if joints.size:
        free_forces = lambda v: joint_acceleration(problem, behind.metric, t, q, v, args)[1]
        joint_impulse += delay * lax.stop_gradient(free_forces(v) - free_forces(v_after))
    back_q, back_v = q_at - delay * lax.stop_gradient(v_after), v_after - delay * a_after
    if len(impact) > 1:
        response = lax.stop_gradient(cones.response)
        turned = response @ (later[:, None] * lax.stop_gradient(x)).ravel()
        back_q, back_v = back_q - turned, back_v + response @ (later[:, None] * (force - force_after)).ravel()
        # forces that depend on the velocity change with it, at the same times: the integral along the jump, by Gauss's
        # rule of two points
        free = lambda v: acceleration(fixed[0], lax.stop_gradient(behind.metric), *place[:2], v, fixed[2])
        for share in (0.5 - 12**-0.5, 0.5 + 12**-0.5):
            at_share = lax.stop_gradient((1 - share) * v_at + share * v_after)
            back_v -= 0.5 * jax.jvp(free, (at_share,), (turned,))[1]
    # near the edge of the cone the derivative of the other mode is as likely to be right
    w, x = lax.stop_gradient((cones.velocity(x), x))
    scale, slack = cones.scales(), 2 * h * length(behind.cones.offset[:, 1:])[:, 0] + speed
    size = length(w[:, 1:])[:, 0]
    margin = scale * (cones.friction * x[:, 0] - length(x[:, 1:])[:, 0])
    struck = (impact | held) & (x[:, 0] > 0)
    near = struck & (cones.friction > 0) & jnp.where(size > speed, size <= slack, margin <= slack)
    doubtful = lax.stop_gradient(jnp.any(near & impact))
    return Crossed(back_q, back_v, a_after, impulse, joint_impulse, modes, doubtful, delays.doubtful)
