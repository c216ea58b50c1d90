"""Impacts of a step of contacts that rub, and where slip reverses or begins: which there are,
and what they do to the derivative of the step.

As `smooth_impacts`, with Coulomb's law in each part: the percussion of an impact satisfies it, the motions before and
after have the reactions of contacts that stick or slip, and a step is differentiated with the modes of its contacts
held fixed. One more event changes the derivative by O(1): slip T v that passes through zero
without sticking at the time t*,

    dv+ = dv- + (a- - a+) dt*,     dt* = -(T dv- + ...)/(T a- + ...),

as the force jumps there. Where a contact comes to rest, the step with fixed modes projects onto T dv = 0, which is the
saltation of that event; where it begins to slip, the force is continuous (R. I. Leine, H. Nijmeijer, Dynamics and
Bifurcations of Non-Smooth Mechanical Systems (2004)).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.argument_checks import check_memory
from ..contact.friction.cones import OPEN, SLIP, STICK, ConeProblem, blocks, direction, length
from ..contact.laws import ContactLaw, Held
from ..events.acceleration_problem import AccelerationProblem
from ..friction import STRAIGHT, FrictionInfo
from ..motion import Motion
from ..problem import Problem
from ..scheme import Info, Traits
from ..some_contacts import rows_that_matter, with_contacts
from ..status import Status, as_status
from .frictional_saltation import cross, loaded_together
from .impact_saltation import Contact, observe, start_and_phase
from .tracked import LASTING, NEARLY, Edge, Salted, Tracked

if TYPE_CHECKING:
    from ..scheme import State

MATRICES = 32  # of two rows for each contact, that a step with derivatives of listed bodies holds at once


def rough_impacts(
    problem: Problem, law: ContactLaw, motion: Motion, state: Tracked, info: Info, traits: Traits, v_new: Array
) -> Salted:
    """As `smooth_impacts`, for contacts that rub, and across their changes of mode; ``v_new`` (d,):
    velocity after the step."""
    before, previous = state.state, state.friction
    h, (start, e, middle) = motion.h, start_and_phase(problem, motion, before, traits)
    lasted, current = state.last == LASTING, cast(FrictionInfo, info.friction)
    begin = AccelerationProblem.at(problem, *start)
    if previous.direction.shape[1] > 1:
        # tangents may have jumped since
        now = direction(begin.velocity[:, 1:])
        previous = previous._replace(direction=jnp.where((previous.mode == SLIP)[:, None], now, 0))
    a, force, _ = begin.solve(lasted, previous.direction)
    at = start.after(middle, a)
    here = observe(problem, h, at)
    # what presses a contact may be the friction of another: without it impacts of a body that a wall sweeps never end
    load = begin.load(force)
    here = here._replace(
        gap_acceleration=here.gap_acceleration + load, threshold=here.threshold + 2 * h * jnp.abs(load)
    )
    pushed = here.contacts.diagonal() * lax.stop_gradient(info.impulse)
    active = pushed > lax.stop_gradient(law.resolution(pushed))
    impact = active & (here.gap_velocity < -here.threshold)
    slow = jnp.abs(here.gap_velocity) <= here.threshold
    reacting = active & ~impact
    closed = (active | (lasted & slow & (here.gap_acceleration < 0))) & ~impact
    held = closed & lasted
    crossed = jnp.any(impact)

    previous = previous._replace(direction=jnp.where(held[:, None], previous.direction, 0))
    salted = cross(problem, motion, at, here, (impact, held), previous.direction, (a, force, begin.cones))
    back_q, back_v = salted.q - middle * salted.v, salted.v - middle * salted.a
    passage = reverse(problem, motion, before, begin, closed & ~crossed, (previous, current), force)
    if problem.static_friction is not None:
        passage = break_away(problem, motion, before, begin, closed & ~crossed, previous, passage)
    shifted, modes, _, unclear = passage
    turned = begin.cones.response @ shifted.ravel()
    back = before._replace(q=jnp.where(crossed, back_q, start.q), v=jnp.where(crossed, back_v, start.v + turned))

    keep = closed & ~crossed
    frozen = current._replace(
        impulse=jnp.where(keep[:, None], current.impulse, 0),
        mode=jnp.where(crossed, salted.friction.mode, modes.mode),
        direction=jnp.where(crossed, salted.friction.direction, modes.direction),
    )
    known = lax.stop_gradient((jnp.where(keep, info.impulse, 0), frozen))
    stays = jnp.where(crossed, salted.friction.mode != OPEN, closed)
    hold = Held(stays, known[0], lax.stop_gradient(info.z), known[1])
    percussion = jnp.where(crossed, salted.impulse, shifted)
    of_joints = begin.metric.joints.reaction(begin.cones.rows.T @ shifted.ravel())
    doubtful = jnp.where(crossed, salted.doubtful | salted.coupled, unclear)
    masks = Contact(active, impact, jnp.zeros_like(impact), reacting, closed, closed)
    stuck = impact & (jnp.broadcast_to(e, impact.shape) > 0)
    # slip that turned round, or followed an impact, goes on, though a step may stick on the way
    kept = (
        current if problem.static_friction is None else current._replace(mode=frozen.mode, direction=frozen.direction)
    )
    forgotten = kept._replace(
        mode=jnp.where(stuck, OPEN, kept.mode), direction=jnp.where(stuck[:, None], 0, kept.direction)
    )
    edge = state.edge
    if edge.margin.size:
        margin = margins(problem, motion, before, v_new, info.impulse, kept, begin.cones)
        edge, near = edge.next(margin, state.friction, kept)
        doubtful |= jnp.any(near)
    return Salted(
        at, salted.v, here._replace(contacts=here.contacts.rubbing(begin.cones.slip())),
        begin.metric, e, masks, back, hold, percussion, jnp.where(crossed, salted.joint_impulse, of_joints),
        lax.stop_gradient(forgotten), edge, as_status(doubtful, Status.DERIVATIVE_EVENTS),
    )  # fmt: skip


def modes_at_start(problem: Problem, motion: Motion, state: Tracked, info: Info) -> tuple[Tracked, Info]:
    """Adds the modes of closed contacts that rub to the ``state`` at the start of a motion."""
    if state.state.friction is not None:
        return state._replace(friction=state.state.friction, edge=Edge.unknown(state.gap)), info
    closed, some = state.last == LASTING, problem
    rows: slice | Array = slice(None)
    if problem.gaps.local:
        rows, status = rows_of_list(problem, closed, state.gap)
        some, info = with_contacts(problem, rows, len(closed)), info._replace(status=info.status | status)
    begin, here = AccelerationProblem.at(some, *motion.start), observe(some, motion.h, motion.start)
    slipping = begin.slipping(here.noise)
    slip_direction = jnp.zeros((len(closed), slipping.shape[1]), slipping.dtype).at[rows].set(slipping)
    rough = jnp.zeros(len(closed), bool).at[rows].set(begin.cones.at_rest > 0)
    sticks = rough & ~jnp.any(slip_direction != 0, axis=1)
    mode = jnp.where(closed, jnp.where(sticks, STICK, SLIP), OPEN).astype(jnp.int32)
    none = jnp.zeros_like(slip_direction)
    return state._replace(friction=FrictionInfo(none, mode, jnp.where(closed[:, None], slip_direction, 0))), info


def rows_of_list(problem: Any, matters: Array, gap: Array) -> tuple[Array, Array]:
    """Returns the numbers (k,) of the contacts of a neighbour list for which there are equations: those that
    ``matters`` (m,) marks, and near ones.

    ``gap`` (m,): gaps. Also returns the status: DERIVATIVE_EVENTS if more contacts matter than there is room for.
    """
    size = problem.constraints.most(len(gap))
    check_memory(
        MATRICES * 8.0 * (2 * size) ** 2,
        f"sensitivity='corrected' with friction: matrices of the {size} contacts of listed bodies for which there is "
        "room",
        "give sensitivity='none', or fewer bodies",
    )
    rows, fit = rows_that_matter(matters, gap, size)
    return rows, as_status(~fit, Status.DERIVATIVE_EVENTS)


def margins(
    problem: Problem, motion: Motion, before: State, w: Array, impulse: Array, current: FrictionInfo, cones: ConeProblem
) -> Array:
    """Returns how far contacts (m,) are from a change of mode after a step, as a velocity, without derivatives:
    see `Edge`.

    ``before``: state before the step; w (d,): velocity after it; ``impulse`` (m,): normal impulses in it; ``current``:
    modes and friction in it; ``cones``: the contact problem, for coefficients and scales.
    """
    problem, motion, before, w = lax.stop_gradient((problem, motion, before, w))
    t = motion.time(before.n + 1)
    speed = length(problem.slip_velocity(t, before.q + motion.h * before.v, w, motion.args))[:, 0]
    room = cast(Array, cones.static) * impulse - length(current.impulse)[:, 0]
    return lax.stop_gradient(jnp.where(current.mode == SLIP, speed, cones.scales() * room))


class ModeChanges(NamedTuple):
    """Result of `reverse` and `break_away`: changes of mode in a step, by contacts (m,) that come to rest from slip,
    reverse, or break away.

    ``impulse`` (m, 1 + k): change of the impulses, zero in value, that carries the derivatives of the times of these
    changes; ``modes``: those to be held fixed when the step is differentiated; ``slip_direction`` (m, k): directions in
    which contacts that come to rest or reverse would slip next, zero for others; ``doubtful`` ():
    whether the derivative of the step is doubtful.
    """

    impulse: Array
    modes: FrictionInfo
    slip_direction: Array
    doubtful: Array


def reverse(
    problem: Problem,
    motion: Motion,
    before: State,
    begin: AccelerationProblem,
    closed: Array,
    modes: tuple[FrictionInfo, FrictionInfo],
    force: Array,
) -> ModeChanges:
    """Finds the contacts whose slip comes to rest or reverses in a step.

    In space slip mostly turns round by way of other directions; it reverses where it does so within a step and comes
    back on the line that it came on. If it turns by more than a right angle otherwise, the derivative is doubtful.

    Args:
        before: state at the start of the step.
        begin: contact problem of accelerations there.
        closed: contacts (m,) that are closed.
        modes: those of the contacts in the step before, and in this step.
        force: forces (m, 1 + k) at the start, while all contacts slip as in the step before.
    """
    previous, current = modes
    m, k = previous.direction.shape
    was, cones = previous.direction, begin.cones
    turned = jnp.sum(was * current.direction, axis=1) < 0
    changed = closed & (previous.mode == SLIP) & ((current.mode != SLIP) | turned) & (current.mode != OPEN)
    _, behind, found = begin.solve(closed, jnp.where(changed[:, None], 0, was))
    turns = changed & (found.mode == SLIP) & (jnp.sum(was * found.direction, axis=1) < (0 if k == 1 else STRAIGHT))
    if m > 1:
        # where another contact comes to rest, the step with fixed modes accounts for the change of its force
        _, behind, _ = begin.solve(closed, jnp.where(turns[:, None], found.direction, was))
    slip = jnp.sum(was * problem.slip_velocity(motion.time(before.n), before.q, before.v, motion.args), axis=1)
    rate = jnp.sum(was * cones.velocity(force)[:, 1:], axis=1)  # of the slip
    rate = jnp.where(rate != 0, rate, 1)
    delay = jnp.where(turns, -(slip - lax.stop_gradient(slip)) / rate, 0)
    change = shared_by_others(cones, delay, turns, closed)[:, None] * (force - behind)
    held = current._replace(
        mode=jnp.where(turns, SLIP, current.mode),
        direction=jnp.where(turns[:, None], found.direction, current.direction),
    )
    next_way = jnp.where((found.mode == SLIP)[:, None], found.direction, -direction(found.impulse))
    doubtful = jnp.any(turns) & apart(cones, changed, closed, lax.stop_gradient(slip) / rate, 1e-3 * motion.h)
    if k > 1:
        doubtful |= jnp.any(changed & (current.mode == SLIP) & ~turns)
    return ModeChanges(change, held, jnp.where(changed[:, None], next_way, 0), doubtful)


def break_away(
    problem: Problem,
    motion: Motion,
    before: State,
    begin: AccelerationProblem,
    closed: Array,
    previous: FrictionInfo,
    met: ModeChanges,
) -> ModeChanges:
    """Adds contacts at rest that break away in the step to ``met``, the result of `reverse` for the step;
    the other arguments are as there.

    The force then jumps, from static friction to that of slip. A contact breaks away when its slip, still under static
    friction, would begin to accelerate; all contacts on which a body rests do so at the same time. A contact that comes
    to rest near that limit may stay at rest or not, and the derivative is doubtful.
    """
    h, args, current = motion.h, motion.args, met.modes
    at = motion.time(before.n), before.q, before.v
    breaks = closed & cast(Array, current.breaks) & (previous.mode == STICK) & (current.mode == SLIP)
    at_limit = breaks | jnp.any(met.slip_direction != 0, axis=1)
    mode = jnp.where(closed, jnp.where(at_limit, SLIP, previous.mode), OPEN)
    known, none = begin.cones, jnp.zeros_like(begin.cones.offset)
    own = current.direction
    if own.shape[1] > 1:
        # in space it need not slip against the force that held it
        held = known.in_modes(none, jnp.where(closed, previous.mode, OPEN), direction(begin.velocity[:, 1:]))
        own = -direction(held[:, 1:])
    own = jnp.where(breaks[:, None], own, met.slip_direction)
    across = edge_covectors(known, own)

    def resting(now: AccelerationProblem, start: Array) -> tuple[Array, Array]:
        static = cast(Array, now.cones.static)
        cones = now.cones._replace(friction=jnp.where(at_limit, static, now.cones.friction))
        slip_direction = jnp.where(at_limit[:, None], own, direction(now.velocity[:, 1:]))
        x = cones.in_modes(start, mode, slip_direction)
        return x, jnp.sum(cones.velocity(x)[:, 1:] * across, axis=1)

    force, _ = lax.stop_gradient(resting(begin, none))
    urge = lambda t, q, v: resting(AccelerationProblem.of(problem, t, q, v, args), force)[1]
    rates = jnp.ones_like(h), at[2], begin.free + known.response @ force.ravel()
    now, rate = lax.stop_gradient(jax.jvp(urge, lax.stop_gradient(at), lax.stop_gradient(rates)))
    # a contact that slips from the start has not broken away
    breaks &= (before.n > 0) | (now <= 0)
    found, sound = urge(*at), breaks & (rate > 0)
    delay = jnp.where(sound, (lax.stop_gradient(found) - found) / jnp.where(sound, rate, 1), 0)
    _, sliding, _ = begin.solve(closed, jnp.where((current.mode == SLIP)[:, None], current.direction, 0))
    change = shared_by_others(known, delay, breaks, closed)[:, None] * (force - sliding)
    near = jnp.abs(now) <= NEARLY * 2 * h * jnp.abs(rate)
    doubtful = jnp.any(jnp.where(breaks, ~(sound & near), at_limit & near))
    doubtful |= apart(known, breaks, closed, now / jnp.where(sound, rate, 1), 1e-3 * h)
    return met._replace(impulse=met.impulse + change, doubtful=met.doubtful | doubtful)


def shared_by_others(cones: ConeProblem, delay: Array, own: Array, closed: Array) -> Array:
    """Returns the delays (m,) with which the forces of ``closed`` contacts (m,) change in a step;
    ``own`` (m,) marks those that change mode.

    These have the given ``delay`` (m,). The others get the mean of these delays of the contacts that they are loaded
    with, since their loads change when the mode of such a contact does.
    """
    together = (loaded_together(cones, closed) & own[None, :]).astype(delay.dtype)
    mean = together @ jnp.where(own, delay, 0) / jnp.maximum(jnp.sum(together, axis=1), 1)
    return jnp.where(own, delay, mean)


def edge_covectors(cones: ConeProblem, slip_direction: Array) -> Array:
    """Returns the normals (m, k) of the surfaces on which contacts break away,
    in the space of their slip accelerations.

    For a contact that begins to slip in the direction u, its row of ``slip_direction`` (m, k), the normal is S^-1 (u -
    mu W_tn/W_nn), with W a contact's block of the Delassus matrix, S the Schur complement of its normal entry W_nn, and
    mu the static coefficient: in the plane a positive number times u.
    """
    if slip_direction.shape[1] == 1:
        return slip_direction
    own = blocks(cones.delassus(), len(slip_direction))
    normal = jnp.where(own[:, 0, 0] > 0, own[:, 0, 0], 1)
    across = own[:, 1:, 0] / normal[:, None]
    schur = own[:, 1:, 1:] - own[:, 1:, :1] * across[:, None, :]
    fixed = jnp.linalg.det(schur) <= 0
    schur = jnp.where(fixed[:, None, None], jnp.eye(slip_direction.shape[1], dtype=slip_direction.dtype), schur)
    return jnp.linalg.solve(schur, (slip_direction - cast(Array, cones.static)[:, None] * across)[:, :, None])[:, :, 0]


def apart(cones: ConeProblem, changed: Array, closed: Array, late: Array, little: Array) -> Array:
    """Tests whether two ``closed`` contacts (m,) that load each other, be it through others,
    change mode in one step at different times, ().

    In space any two such contacts count, whatever the times. ``changed`` (m,): contacts that change mode; ``late``
    (m,): the times at which they do; ``little`` (): difference up to which times are equal.
    """
    m, size = cones.offset.shape
    if m < 2:
        return jnp.zeros((), bool)
    both = changed[:, None] & changed[None, :] & loaded_together(cones, closed)
    # in space the surface is known of one contact by itself
    late = late if size == 2 else jnp.arange(m, dtype=late.dtype) * (1 + little)
    return jnp.any(both & (jnp.abs(late[:, None] - late[None, :]) > little))
