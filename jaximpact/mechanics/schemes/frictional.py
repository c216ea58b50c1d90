"""Derivatives that are right across impacts with friction, and where a contact's slip turns round.

As `corrected`, with Coulomb's law in each part: the percussion of an impact obeys it, the motions before and behind have the reactions of
contacts that stick or slip, and a step is differentiated with what its contacts do held fixed. One more passage changes the derivative
by O(1): slip that passes through zero without sticking,

    dv+ = dv- + (a- - a+) dt*,     dt* = -(T dv- + ...)/(T a- + ...),

as the force jumps there. Where a contact comes to rest the frozen step projects onto T dv = 0, which is that passage's saltation, and where
it begins to slip the force is continuous (R. I. Leine, H. Nijmeijer, Dynamics and Bifurcations of Non-Smooth Mechanical Systems (2004)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.derivative_rules import graft_tree
from ..contact.cone_solver import frictional_impulses
from ..contact.cones import OPEN, SLIP, STICK, ConeProblem, direction, length
from ..contact.laws import ContactLaw, Held
from ..friction import FrictionInfo, Slip
from ..linearisation import Metric, acceleration, gap_derivatives, linearise
from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from .base import Info
from .corrected import LASTING, Contact, Corrected, nearby_restitution
from .saltation import Instant, observe

SHARP = 1e-9  # relative accuracy of accelerations, by which a contact that sticks is told from one that begins to slip


class Balance(NamedTuple):
    """Accelerations at one instant, without derivatives.

    ``metric`` there; ``free`` without contacts (d,); ``cones``, whose offset are the accelerations of gaps and slips without contacts; ``velocity`` of gaps and slips
    (m, 1 + k).
    """

    metric: Metric
    free: Array
    cones: ConeProblem
    velocity: Array

    @classmethod
    def at(cls, problem: Problem, t: Array, q: Array, v: Array, args: Any) -> Balance:
        """At (t, q, v)."""
        t, q, v, args = lax.stop_gradient((t, q, v, args))
        metric = Metric.at(problem, q, args, t)
        slip = Slip.at(problem, metric, t, q, args)
        contacts = linearise(problem, metric, t, q, args)._replace(slip=slip)
        a = acceleration(problem, metric, t, q, v, args)
        closing, turning = gap_derivatives(problem, t, q, v, args)
        along = lambda t, q: problem.slip_velocity(t, q, v, args)
        _, swerve = jax.jvp(along, (t, q), (jnp.ones_like(t), v))
        contacts = contacts._replace(slip=slip._replace(velocity=slip.jacobian @ a + swerve))
        cones = ConeProblem.of(contacts, contacts.velocity(a) + turning)
        velocity = jnp.concatenate([closing[:, None], slip.of(v)], axis=1)
        return lax.stop_gradient(cls(metric, a, cones, velocity))

    def solve(self, closed: Array, towards: Array) -> tuple[Array, Array, FrictionInfo]:
        """Acceleration (d,), forces (m, 1 + k), and what the ``closed`` contacts (m,) do.

        Those with a direction ``towards`` (m, k) slip that way; others find by Coulomb's law whether they stick or begin to slip.
        """
        cones = self.cones
        m, size = cones.offset.shape
        slipping = jnp.any(towards != 0, axis=1)
        friction = lax.stop_gradient(cones.friction)
        pull = -friction[:, None] * towards  # tangential forces of contacts that slip, by their normal ones
        matrix = cones.delassus().reshape(m, size, m, size)
        with_pull = matrix[..., 0] + jnp.einsum("ipjk,jk->ipj", matrix[..., 1:], pull)
        matrix = jnp.where(slipping[None, None, :, None], jnp.zeros_like(matrix).at[..., 0].set(with_pull), matrix)
        kept = (jnp.arange(size) == 0)[None, :] | ~slipping[:, None]
        matrix = jnp.where(kept[:, :, None, None], matrix, 0).reshape(m * size, m * size)
        offset, mu = jnp.where(kept, cones.offset, 0), jnp.where(slipping, 0, friction)
        unit = jnp.max(jnp.abs(offset), initial=0.0)
        x, *_ = frictional_impulses(matrix, offset, mu, jnp.zeros_like(offset), closed, SHARP * unit)
        x = lax.stop_gradient(jnp.where(slipping[:, None], jnp.concatenate([x[:, :1], pull * x[:, :1]], axis=1), x))
        moves = lax.stop_gradient(cones.velocity(x)[:, 1:])
        begins = ~slipping & (length(moves)[:, 0] > 1e3 * SHARP * unit)
        towards = jnp.where(begins[:, None], direction(moves), towards)
        mode = jnp.where(closed & (x[:, 0] > 0), jnp.where(slipping | begins, SLIP, STICK), OPEN)
        towards = jnp.where((mode == SLIP)[:, None], towards, 0)
        return self.free + cones.response @ x.ravel(), x, FrictionInfo(x[:, 1:], mode.astype(jnp.int32), towards)

    def slipping(self, noise: Array) -> Array:
        """Directions of slip (m, k) of contacts that slip faster than ``noise`` (m,), zero of others."""
        slip = self.velocity[:, 1:]
        return jnp.where(length(slip) > noise[:, None], direction(slip), 0)


class Crossed(NamedTuple):
    """State behind the impacts of a step, with the derivative of their time: q, v (d,), the acceleration a, impulses (m, 1 + k), modes behind."""

    q: Array
    v: Array
    a: Array
    impulse: Array
    friction: FrictionInfo
    doubtful: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FrictionCorrected(Corrected):
    """`Corrected` of problems with friction."""

    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: Any) -> tuple[Any, Info]:
        """Step of the scheme; its derivative is that of its impacts and reversals, followed by the step with all modes held."""
        before, past = state.state, state.friction
        new, info = self.scheme.step(problem, law, *lax.stop_gradient((motion, before)))
        h, args = motion.h, motion.args
        q, v, t = before.q, before.v, motion.time(before.n)
        e = nearby_restitution(problem, motion, t, q, v)
        middle = lax.stop_gradient(self.traits.phase(e) * h)
        lasted, did = state.last == LASTING, cast(FrictionInfo, info.friction)
        begin = Balance.at(problem, t, q, v, args)
        a, force, _ = begin.solve(lasted, past.direction)
        t_mid, q_mid, v_mid = t + middle, q + middle * v, v + middle * a
        here = observe(problem, h, t_mid, q_mid, v_mid, args)
        pushed = here.contacts.diagonal() * lax.stop_gradient(info.impulse)
        active = pushed > lax.stop_gradient(law.resolution(pushed))
        impact = active & (here.gap_velocity < -here.threshold)
        slow = jnp.abs(here.gap_velocity) <= here.threshold
        reacting = active & ~impact
        closed = (active | (lasted & slow & (here.gap_acceleration < 0))) & ~impact
        held = closed & lasted
        crossed = jnp.any(impact)

        past = past._replace(direction=jnp.where(held[:, None], past.direction, 0))
        salted = cross(problem, motion, (t_mid, q_mid, v_mid), here, impact, held, past.direction, (a, force))
        back_q, back_v = salted.q - middle * salted.v, salted.v - middle * salted.a
        turned, modes, unclear = reverse(problem, motion, before, begin, closed & ~crossed, past, did, force)
        back = before._replace(q=jnp.where(crossed, back_q, q), v=jnp.where(crossed, back_v, v + turned))

        keep = closed & ~crossed
        frozen = jax.tree.map(lambda x, y: jnp.where(crossed, x, y), salted.friction, modes)
        tangential = jnp.where(keep[:, None], did.impulse, 0)
        known = lax.stop_gradient((jnp.where(keep, info.impulse, 0), frozen._replace(impulse=tangential)))
        stays = jnp.where(crossed, salted.friction.mode != OPEN, closed)
        hold = Held(stays, known[0], lax.stop_gradient(info.z), known[1])
        surrogate, surrogate_info = self.tangent.step(problem, hold, motion._replace(e=jnp.zeros_like(e)), back)
        rubbed: Any = surrogate_info.friction
        percussion = jnp.where(crossed, salted.impulse, 0)
        rubbed = did._replace(impulse=rubbed.impulse + percussion[:, 1:])
        surrogate_info = surrogate_info._replace(impulse=surrogate_info.impulse + percussion[:, 0], friction=rubbed)
        new, info = graft_tree((new, info), (surrogate, surrogate_info))

        doubtful = jnp.where(crossed, salted.doubtful, unclear)
        info = info._replace(status=info.status | as_status(doubtful, Status.DERIVATIVE_FRICTION))
        rebound = jnp.zeros_like(impact)
        masks = Contact(active, impact, rebound, reacting, closed)
        turns = v_mid, salted.v
        found, info = self.tracked(problem, motion._replace(e=e), state, new, info, here, masks, begin.metric, turns)
        stuck = impact & (jnp.broadcast_to(e, impact.shape) > 0)
        forgotten = did._replace(
            mode=jnp.where(stuck, OPEN, did.mode), direction=jnp.where(stuck[:, None], 0, did.direction)
        )
        return found._replace(friction=lax.stop_gradient(forgotten)), info

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[Any, Info]:
        """Initial state, and whether its closed contacts slip."""
        state, info = super().init(problem, law, motion)
        begin = Balance.at(problem, motion.t0, motion.q0, motion.v0, motion.args)
        here = observe(problem, motion.h, motion.t0, motion.q0, motion.v0, motion.args)
        towards = begin.slipping(here.noise)
        closed = state.last == LASTING
        mode = jnp.where(closed, jnp.where(jnp.any(towards != 0, axis=1), SLIP, STICK), OPEN).astype(jnp.int32)
        none = jnp.zeros_like(towards)
        return state._replace(friction=FrictionInfo(none, mode, jnp.where(closed[:, None], towards, 0))), info

    def free_step(self, problem: Problem, motion: Motion, state: Any) -> tuple[Any, Info]:
        """Free step with the scheme's own derivative; contacts are open behind it."""
        found, info = super().free_step(problem, motion, state)
        return found._replace(friction=jax.tree.map(jnp.zeros_like, state.friction)), info


def cross(
    problem: Problem,
    motion: Motion,
    at: tuple,
    here: Instant,
    impact: Array,
    held: Array,
    towards: Array,
    ahead: tuple[Array, Array],
) -> Crossed:
    """The state behind the impacts (m,) at one instant ``at`` (t, q, v), with the derivative of the earliest one's time.

    Contacts ``held`` (m,) react, and slip ``towards`` (m, k) or stick; ``ahead`` are acceleration (d,) and forces (m, 1 + k) before.
    """
    h, given, args = motion.h, jnp.broadcast_to(motion.e, impact.shape), motion.args
    t, q, v = at
    gap = problem.gaps(t, q, args)
    closing = jnp.where(impact, -here.gap_velocity, 1)
    first = jnp.argmin(jnp.where(impact, lax.stop_gradient(gap) / closing, jnp.inf))
    this = impact & (jnp.arange(len(impact)) == first)
    delay = jnp.sum(jnp.where(this, (gap - lax.stop_gradient(gap)) / closing, 0))
    a_before, force = ahead
    t_at, q_at, v_at = t + delay, q + delay * lax.stop_gradient(v), v + delay * a_before
    # Coulomb's and Newton's law there
    metric = Metric.at(problem, q_at, args, t_at)
    contacts = linearise(problem, metric, t_at, q_at, args)._replace(slip=Slip.at(problem, metric, t_at, q_at, args))
    offset = contacts.gap_velocity(v_at)
    e = problem.restitution_at(given, offset, args)
    cones = ConeProblem.of(contacts.sliding(v_at), jnp.where(impact, (1 + e) * offset, offset))
    unit = lax.stop_gradient(jnp.max(jnp.abs(cones.offset), initial=0.0))
    x, *_ = frictional_impulses(
        cones.delassus(), cones.offset, cones.friction, jnp.zeros_like(cones.offset), impact | held, 1e-12 * unit
    )
    v_after = v_at + cones.response @ x.ravel()
    # the motion behind, in which an inelastic contact may stay
    behind = Balance.at(problem, t, q, v_after, args)
    speed = SHARP * unit + here.noise
    stays = (lax.stop_gradient(x[:, 0]) > 0) & (~impact | (e <= 0))
    a_after, force_after, modes = behind.solve(stays, behind.slipping(speed))
    impulse = x + delay * (force - force_after)
    # near the edge of the cone the other side's derivative is as likely as this one's
    w, x = lax.stop_gradient((cones.velocity(x), x))
    scale, slack = cones.scales(), 2 * h * length(behind.cones.offset[:, 1:])[:, 0] + speed
    size = length(w[:, 1:])[:, 0]
    room = scale * (cones.friction * x[:, 0] - length(x[:, 1:])[:, 0])
    struck = (impact | held) & (x[:, 0] > 0)
    near = struck & ((size > speed) & (size <= slack) | (size <= speed) & (room <= slack) & (cones.friction > 0))
    doubtful = lax.stop_gradient(jnp.any(near & impact))
    back_q, back_v = q_at - delay * lax.stop_gradient(v_after), v_after - delay * a_after
    return Crossed(back_q, back_v, a_after, impulse, modes, doubtful)


def reverse(
    problem: Problem,
    motion: Motion,
    before: Any,
    begin: Balance,
    closed: Array,
    past: FrictionInfo,
    did: FrictionInfo,
    force: Array,
) -> tuple[Array, FrictionInfo, Array]:
    """Change of the velocity (d,) by the times at which planar contacts' slips turn round in the step, zero in value; the modes to hold; whether in doubt, ().

    ``force`` (m, 1 + k) while all slip as before.
    """
    none, m = jnp.zeros_like(before.v), len(closed)
    if past.direction.shape[1] > 1:
        return none, did, jnp.zeros((), bool)
    was, cones = past.direction, begin.cones
    changed = closed & (past.mode == SLIP) & ((did.mode != SLIP) | (was * did.direction < 0)[:, 0]) & (did.mode != OPEN)
    _, behind, found = begin.solve(closed, jnp.where(changed[:, None], 0, was))
    turns = changed & (found.mode == SLIP) & (found.direction * was < 0)[:, 0]
    if m > 1:
        # where another comes to rest, holding it there has the change of its force
        _, behind, _ = begin.solve(closed, jnp.where(turns[:, None], -was, was))
    slip = problem.slip_velocity(motion.time(before.n), before.q, before.v, motion.args)[:, 0]
    rate = cones.velocity(force)[:, 1]  # of the slip
    delay = -(slip - lax.stop_gradient(slip)) / jnp.where(rate != 0, rate, 1)
    late = jnp.where(turns, delay, 0)
    # others whose loads change by it do at the same time
    late = jnp.where(turns, late, jnp.sum(late) / jnp.maximum(jnp.sum(turns, dtype=late.dtype), 1))
    modes = did._replace(
        mode=jnp.where(turns, SLIP, did.mode), direction=jnp.where(turns[:, None], -was, did.direction)
    )
    apart = _apart(cones, changed, lax.stop_gradient(slip) / jnp.where(rate != 0, rate, 1), 1e-3 * motion.h)
    return cones.response @ (late[:, None] * (force - behind)).ravel(), modes, jnp.any(turns) & apart


def _apart(cones: ConeProblem, changed: Array, late: Array, little: Array) -> Array:
    """Whether contacts that ``changed`` (m,) in one step, at times ``late`` (m,), load each other but did not at one time, ()."""
    m, size = cones.offset.shape
    if m < 2:
        return jnp.zeros((), bool)
    scale = jnp.sqrt(cones.scales())
    couples = jnp.max(jnp.abs(cones.delassus()).reshape(m, size, m, size), axis=(1, 3))
    couples = (couples > 1e-6 * scale[:, None] * scale[None, :]) & ~jnp.eye(m, dtype=bool)
    both = changed[:, None] & changed[None, :] & couples
    return jnp.any(both & (jnp.abs(late[:, None] - late[None, :]) > little))
