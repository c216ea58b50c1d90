"""Steps of `EventCorrected` with Coulomb friction: the times at which slip stops or reverses, or contacts break away, are located as impacts are.

Between events every contact is open, sticks or slips (one way in the plane; in space see `slip_in_space`), and the path is a cubic, as without
friction. It ends at an event: a gap closes, the force of a contact, linear in time, becomes negative or leaves the cone of static friction, or a
slip vanishes. The time of the event is differentiated by the implicit function theorem, and the modes after it follow from Coulomb's law for
accelerations, or, at an impact, for velocities.

Where sliding beyond Painleve's bound has no acceleration, velocities jump without a collision, so that the contact sticks (Lecornu 1905; Moreau
1988).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.linalg import nonzero
from ...switches.switches import Kinks
from ..contact.friction.cones import OPEN, SLIP, STICK, length
from ..contact.laws import ContactLaw
from ..events.event_state import Event
from ..events.frictional_impacts import Rubbing, collide_rubbing, others_at_once
from ..events.impacts import behind, lasting_at_end
from ..events.rubbing_contacts import Place
from ..friction import FrictionInfo, Slip, tangents, turn_components, turn_onto
from ..joint_projection import put_on_joints
from ..linearisation import noise, span
from ..motion import Motion
from ..problem import Problem
from ..scheme import JointInfo, Step, add_compensated, gradient_status
from ..status import Status, as_status
from ..trials.borders import EDGE
from ..trials.pieces import Pieces
from .crossings import Border, NoBorder, border_ahead, located_pieces, sliding_problem
from .cubic_paths import STEEP, near_grazing
from .mode_ends import at_once, ends, leads, only_just, spare
from .pieces_in_modes import pieces_in_modes
from .rubbing_paths import Progress, Segment, follow


def arrive(
    problem: Problem,
    law: ContactLaw,
    motion: Motion,
    t: Array,
    progress: Progress,
    candidates: Array,
    allowed: Array,
    left: Array,
    stopped: Array,
    first: Array,
    kinks: Kinks | None,
    idle: Array,
) -> Progress:
    """Treats the end of a path: puts lasting contacts back onto their surfaces, removes the slip of sticking ones, and applies the impact law.

    Args:
        candidates: contacts (m,) to which the impact law is applied: those that close, and closed ones that have jammed.
        allowed: round-off (m,) of gaps.
        left: number of events that may still be located in the step.
        stopped: contacts (m,) whose slip has just vanished, and the ``first`` of them (m,), whose time the path has.
        kinks: gaps that may kink, with their sides at the start of the path.
        idle: closed contacts (m,) without force that may have opened.
    """
    h, args, last = motion.h, motion.args, left == 0
    q, v, closed, did = progress.q, progress.v, progress.closed, progress.did
    jammed = closed & candidates
    event = Event.at(problem, t, q, v, args)
    contacts, speed = event.contacts, event.speed
    slip = Slip.at(problem, event.metric, t, q, v, args, progress.frame)
    near = contacts.gap <= allowed + 1e-6 * h * jnp.abs(speed)
    closed, struck = lasting_at_end(kinks, idle & (contacts.gap > allowed), event, closed, args)
    candidates, near = candidates | struck, near | struck
    candidates = candidates & (near | last)
    pulled = closed | candidates
    status = progress.status
    if len(closed) > 1:
        frozen = lax.stop_gradient((contacts, speed, problem.restitution_at(motion.e, speed, args)))
        pulled, past = lax.cond(last, lambda: behind(law, h, *frozen, closed), lambda: (pulled, jnp.array(False)))
        candidates = candidates | (pulled & ~closed)
        status |= as_status(past, Status.GAP_UNRESOLVED)
    still = closed & (did.mode == STICK) & ~jnp.any(progress.breaks != 0, axis=1)
    none = jnp.zeros_like(stopped)
    apart, linked = lax.cond(
        jnp.sum(stopped) > 1, lambda: others_at_once(contacts, slip, stopped, first), lambda: (none, none)
    )
    status |= as_status(jnp.any(linked), Status.DERIVATIVE_EVENTS)
    still |= apart
    before = Rubbing(closed, still, stopped, did.direction, jammed)
    found = collide_rubbing(problem, law, motion, event, slip, before, candidates, near, pulled, progress.met, left, h)
    joints = progress.joints
    joints = joints._replace(impulse=joints.impulse + found.joint_impulse)
    strikes = jnp.any(found.impact)
    return progress._replace(
        q=found.q, v=found.v, closed=found.closed, impulse=progress.impulse + found.impulse,
        residual=jnp.maximum(progress.residual, found.error), met=progress.met | found.impact, status=status | found.status,
        breaks=jnp.where(strikes, 0, progress.breaks), rests=found.rests | (~strikes & jnp.any(progress.breaks != 0, axis=1)), joints=joints, apart=apart,
    )  # fmt: skip


def advance(
    step: Step,
    progress: Progress,
    left: Array,
) -> Progress:
    """Follows the path to the next event, or to the end of the step, and treats it; ``left`` events may still be located."""
    scheme, _, law, motion, start, whole, _ = step
    h, args, last = motion.h, motion.args, left == 0
    t, r = start + progress.elapsed, whole - progress.elapsed
    begun = progress
    problem, ahead, sliding, bits = _on_piece(step, progress, t)
    segment, closed, failure, jammed = follow(problem, t, r, h, progress, args, ahead, sliding)
    jams = jnp.any(jammed) & ~last
    segment = segment.up_to(h, r, last, scheme.newton)
    path, here, there, did = segment[:4]
    r = path.r
    allowed, taylor = here.view.roundoff(path.q, path.v, path.a, h), here.view.taylor(path.a)
    penetrating = ~closed & (lax.stop_gradient(path).gaps(problem, lax.stop_gradient(r))[0] < -allowed)
    impact, which, impact_time = scheme.find_impact(
        problem, path, taylor, closed, penetrating, allowed, span(h, path.q.dtype)
    )
    broke = jnp.any(progress.breaks != 0, axis=1)
    mode_ends = ends(problem, segment, h, scheme.newton, broke, lambda *state: sliding(*state)[0])
    first = mode_ends.first
    passes = (first <= r) & ~last & ~jams & ~(impact & (impact_time <= first))
    impact = impact & ~last & ~jams & ~passes
    s = jnp.where(impact, impact_time, jnp.where(passes, first, jnp.where(jams, 0, r)))
    together = segment.border.together(s, impact | passes, h)
    crosses, leaves, s = segment.border.comes_before(s, impact | passes, ~last & ~jams, h)
    impact, passes = (x & ~(crosses | leaves) for x in (impact, passes))
    border = segment.border.ended_at(problem, motion, path, s, crosses, which & impact)
    shift, v = path.along(s)
    arrived, low = add_compensated(path.q, shift, progress.low)
    landed = put_on_joints(problem, t + s, arrived, low, shift, here.view.joints, args, STEEP)
    arrived, low, v, failure = landed.q, landed.low, landed.velocity(v), failure | landed.status
    force, force_end = (_joint_forces(p, x) for p, x in ((here, segment.force), (there, segment.force_end)))
    held = s * (force + (0.5 * (s / nonzero(r))) * (force_end - force))
    joints = progress.joints
    joints = JointInfo(joints.impulse + held, jnp.maximum(joints.residual, landed.residual))
    border, v = border.slid_to(motion, t + s, arrived, v, closed, leaves)

    now = jnp.stack([mode_ends.release, mode_ends.escape, mode_ends.stop]) <= first + at_once(h)
    released, escaped, stopped = passes & now
    missed = last & (mode_ends.stops | (mode_ends.slides & (problem.static_friction is not None)))
    status = progress.status | failure | bits | as_status(jnp.any(missed), Status.EVENTS_UNRESOLVED)
    status |= as_status(jnp.any(jammed) & last, Status.CONTACTS_NOT_SOLVED)
    # those that go on to slip have a jump of their force at a time of their own
    twice = jnp.any(begun.apart & (did.mode == SLIP))
    if problem.static_friction is not None:
        ways = there.view.contacts, there.cones.slip(), escaped, leads(mode_ends.escape)
        twice |= lax.cond(
            jnp.sum(escaped) > 1, lambda: jnp.any(jnp.stack(others_at_once(*ways))), lambda: jnp.zeros((), bool)
        )
    status |= as_status(twice, Status.DERIVATIVE_EVENTS)
    # a contact that pushed before has jammed within a path: the time is not located
    status |= as_status(jnp.any(jammed & (progress.force[:, 0] != 0)), Status.DERIVATIVE_EVENTS)
    event = impact | passes | jams | crosses | leaves
    progress = progress._replace(
        elapsed=jnp.where(event, progress.elapsed + s, whole), q=arrived, low=low, v=v, closed=closed,
        breaks=jnp.where(escaped[:, None], mode_ends.way, 0),
        force=jnp.where(jams, 0, lax.stop_gradient(segment.force + (s / nonzero(r)) * (segment.force_end - segment.force))),
        impulse=progress.impulse + segment.impulse(s),
        events=progress.events + event.astype(jnp.int32), status=status, did=did, joints=joints,
    )  # fmt: skip
    candidates = jnp.where(last, penetrating, (which & impact) | (jammed & jams))
    moved = lax.stop_gradient(arrived - path.q)
    # a contact without a force may open on the way, where its surface curves away or a force changes
    opening = lax.stop_gradient(there.cones.velocity(segment.force_end)[:, 0])
    idle = (
        closed
        & (did.mode == OPEN)
        & (opening > noise(there.view.contacts, there.view.free, there.view.gap_acceleration))
    )
    kinks = Kinks.at(problem, t, path.q, args)
    progress = arrive(
        problem, law, motion, t + s, progress, candidates, allowed, left, stopped, leads(mode_ends.stop), kinks, idle
    )
    # a contact leaves its surface with no error of the path: one that approached it would seem to graze
    progress = progress._replace(closed=progress.closed & ~released, rests=progress.rests & ~released)
    met = progress.met
    status = gradient_status(law, problem, here.metric, here.view.contacts, t, path.q, moved, met, args)
    status |= as_status(jnp.any(near_grazing(taylor, r, h, closed | met, allowed)) & ~jams, Status.DERIVATIVE_EVENTS)
    status |= as_status(jnp.any(only_just(segment, mode_ends, h, broke)) & ~jams, Status.DERIVATIVE_EVENTS)
    progress = progress._replace(status=progress.status | status)
    if isinstance(border, NoBorder):
        return progress
    doubtful = together | _on_edge(segment, begun)
    progress = progress._replace(status=progress.status | as_status(doubtful, Status.DERIVATIVE_EVENTS))
    turned = impact | passes | jams | jnp.any(progress.closed != begun.closed)
    return _behind(motion, border, t + s, s, last, turned, allowed, progress)


def _on_piece(step: Step, progress: Progress, t: Array) -> tuple[Problem, Callable, Callable, Array]:
    """Returns the problem with its force on the sides of ``progress`` at time t, and the functions ``ahead`` and ``sliding`` of `follow`.

    Also returns status bits.
    """
    pieces, where, motion, bits = step.pieces, progress.where, step.motion, jnp.zeros((), jnp.int32)
    problem = step.problem
    if where is not None:
        if len(pieces.steep):
            pieces, bits = pieces_in_modes(pieces, progress, t, motion.h, motion.args)
        problem = pieces.on(where.sides)
    sliding = lambda t, q, v: sliding_problem(problem, pieces, where, t, q, v, progress.closed, motion.args)
    ahead = lambda parabola: border_ahead(pieces, where, parabola, motion.h, step.scheme.newton)
    return problem, ahead, sliding, bits


def _on_edge(segment: Segment, progress: Progress) -> Array:
    """Tests whether at the start of a path a contact at rest only just sticks, or only just begins to slip, ().

    A small change of a force would then change its mode.
    """
    here, did, force = lax.stop_gradient((segment.here, segment.did, segment.force))
    sticks = (did.mode == STICK) & (
        spare(here, force, jnp.sign(force[:, 1:])) <= EDGE * here.cones.at_rest * force[:, 0]
    )
    begins = (did.mode == SLIP) & progress.rests & ~jnp.any(progress.breaks != 0, axis=1)
    slow = length(here.cones.velocity(force)[:, 1:])[:, 0] <= EDGE * length(here.cones.offset[:, 1:])[:, 0]
    return jnp.any((sticks & (here.cones.friction > 0)) | (begins & slow))


def _behind(
    motion: Motion, border: Border, t: Array, s: Array, last: Array, turned: Array, allowed: Array, progress: Progress
) -> Progress:
    """Decides on which sides of the force the motion goes on from the end of a path, as `Border.passed`.

    The modes of contacts there follow from Coulomb's law for accelerations in the next path; after a reset, from the velocity.
    """
    if border.slide is not None:

        def modes(t: Array, q: Array, v: Array, closed: Array) -> tuple[Pieces, Array]:
            at = progress._replace(q=q, v=v, closed=closed)
            return pieces_in_modes(border.pieces, at, t, motion.h, motion.args)

        border = border._replace(turned=modes)
    progress, crossed = border.passed(motion, t, s, last, turned, allowed, progress)
    if border.pieces.problem.reset is None:
        return progress
    reset = jnp.any(crossed[border.pieces.stated])
    return progress._replace(rests=progress.rests & ~reset, breaks=jnp.where(reset, 0, progress.breaks))


def _joint_forces(place: Place, force: Array) -> Array:
    """Returns the forces (j,) of the joints under contact forces (m, 1 + k)."""
    return place.view.joint_force + place.view.joints.reaction(place.cones.rows.T @ force.ravel())


def _frame(problem: Problem, motion: Motion, state: Any) -> tuple[Array | None, Array, Array]:
    """Returns the frame (m, 2, d) of a step, as in `Progress`, and in it the ``breaks`` (m, k) and ``force`` (m, 1 + k) of the state at its start.

    In the plane the frame is None.
    """
    if state.frame is None:
        return None, state.breaks, state.force
    frame = tangents(problem, motion.time(state.n), state.q, motion.args)
    turn = turn_onto(frame, state.frame)
    force = jnp.concatenate([state.force[:, :1], turn_components(turn, state.force[:, 1:])], axis=1)
    return frame, turn_components(turn, state.breaks), force


def rubbing_step(scheme: Any, problem: Problem, law: ContactLaw, motion: Motion, state: Any, r: Array) -> Progress:
    """Makes a step of `EventCorrected` with friction over a time r, from event to event."""
    m = state.closed.shape[0]
    zero, none, q = jnp.zeros((), state.q.dtype), jnp.zeros((), jnp.int32), state.q
    begin = FrictionInfo.none(m, state.breaks.shape[1], q.dtype)
    frame, breaks, force = _frame(problem, motion, state)
    progress = Progress(
        zero, q, state.low, state.v, state.closed, state.rests, breaks, force, jnp.zeros_like(state.force), zero, none,
        jnp.zeros(m, bool), none, begin, JointInfo.none(problem, q, motion.args), frame=frame, apart=jnp.zeros(m, bool),
    )  # fmt: skip
    pieces = located_pieces(problem, motion.time(state.n), q, state.v, motion.args)
    if pieces is not None:
        progress = progress._replace(where=state.where)
    step = Step(scheme, problem, law, motion, motion.time(state.n), r, pieces)

    def move(carry: tuple[Progress, Array], _: None) -> tuple[tuple[Progress, Array], None]:
        progress, left = carry
        # jitted, since jax differentiates and batches branches twice, but calls inside them once
        moved = jax.jit(lambda p: advance(step, p, left))
        return (lax.cond(progress.elapsed < r, lambda p: moved(p), lambda p: p, progress), left - 1), None

    count = scheme.impacts if m or pieces is not None else 0
    return lax.scan(move, (progress, none + count), None, length=count + 1)[0][0]
