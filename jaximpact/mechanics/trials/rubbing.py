"""Contacts that rub in the trials of `EventDriven`: what they do is held over a trial,
and ends where a level falls to zero.

A contact that slips does so one way, until its slip vanishes; a contact that sticks does, until its force leaves the
cone of static friction. Both are levels, found as the borders of a force in pieces are (`borders`). Behind each event
Coulomb's law for accelerations says what contacts do, or, at an impact, that for velocities.

How slip in space turns and stops: `ways`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.outlined import outlined
from ..coefficients import lengths
from ..contact.friction.cones import OPEN, SLIP, STICK, could_jam, dependent, jams
from ..events.event_state import Event
from ..events.frictional_impacts import WithFriction, others_at_once
from ..events.rubbing_contacts import Place, heading, held_velocity
from ..friction import FrictionInfo, Slip, tangents
from ..linearisation import noise
from ..motion import By
from ..problem import Problem
from ..scheme import Step
from ..status import Status, as_status
from .bases import NOTHING, rounding_of_gaps
from .borders import rounding_of_levels, settle_sides
from .changes import Arrival, Change, Ends
from .jolts import status_of_crossing
from .modes import Modes, at_limit
from .one_piece import OnePiece
from .pieces import Pace, Pieces, Where
from .resets import reset_at
from .sliding import InModes, status_of_modes
from .steering import Node, steered, unsure
from .stops import move_to_zero
from .trial import Base, Hold, LevelValues, Tolerance, frozen
from .ways import WEAK, signed, times_of

BEGINS = 64  # roundings of time: how far ahead of a start the sides are taken on which a motion begins
SHARE = 0.8  # of the time in which a slip in space would stop
INSIDE = 0.5  # of the tangential forces of contacts that break away: guess of others that lie inside the cones
EDGE = 1e-6  # of a force or an acceleration: too small to decide whether a contact sticks


class RubbingContacts:
    """The contacts of a problem with friction; its functions are those of `Pieces` for a force in pieces,
    with `Modes` in place of sides.

    The first 3m levels are the slips, along their directions, of contacts that slip, and then the rooms that forces
    leave to both sides of the cone of static friction, of contacts that stick; 1 where a contact does neither. (Their
    product would have a double zero where a contact without tangential force opens.) The others are those of the
    ``pieces`` of the force. ``by``: what derivatives are taken by, if known.
    """

    probes = False  # whether a motion begins with a trial of length zero

    def __init__(self, pieces: Pieces, m: int, by: By | None) -> None:
        self.pieces, self.m, self.count, self.by = pieces, m, 3 * m + pieces.count, by
        # each once in native code
        self.held, self.levels = outlined(self._held_at), outlined(self._levels_at)
        self.base = outlined(self._base)

    @classmethod
    def of(
        cls, problem: Problem, t: Array, q: Array, v: Array, args: Any, by: By | None, pace: Pace | None = None
    ) -> RubbingContacts:
        pieces = Pieces.of(problem, t, q, v, args, prescribed=True, pace=pace) or OnePiece(problem)
        return cls(pieces, problem.count(t, q, args), by)

    def piece(self, where: Modes) -> Where:
        """Returns the piece of the force on which the motion is."""
        return where.piece

    def on(self, where: Modes) -> Problem:
        """Returns the problem on the sides where the motion is."""
        return self.pieces.on(where.piece.sides)

    def bound(self, where: Modes) -> Problem:
        """As `Pieces.bound`."""
        return self.pieces.bound(where.piece.sides)

    def in_modes(self, where: Modes) -> InModes:
        """Returns the pieces with accelerations in these modes."""
        return InModes(self.pieces, where, held_in_modes)

    def start(self, h: Array, t: Array, q: Array, v: Array, closed: Array, args: Any) -> tuple[Modes, Array]:
        """Returns the modes, of open contacts, and the sides with which a motion with steps h begins: on a border,
        those to which it goes; and the velocity (d,) with which it does, as ``closed`` contacts (m,) hold it."""
        further = BEGINS * jnp.finfo(q.dtype).eps * (jnp.abs(t) + h)
        piece = self.pieces.start(t + further, q + further * v, v, args)
        piece = self.pieces.at_sides(piece, piece.sides, *frozen((t, q, v, args)))
        where = Modes.none(tangents(self.pieces.on(piece.sides), t, q, args), piece)
        return where, held_velocity(self.bound(where), t, h, q, v, closed, args)

    def first(
        self, step: Step, begins: Array, q: Array, v: Array, closed: Array, substep: Array, where: Modes
    ) -> tuple[Base, Array]:
        """Makes the first base of a step, and its status; ``begins`` (): whether the motion does."""
        change = Change.none(self.m, self.pieces.count, begins)
        elapsed = jnp.where(jnp.zeros((), bool), v[0], 0)
        base, status = self.settle(step, step.start, elapsed, q, v, closed, where, change, substep)
        if self.pieces.count and step.scheme.jumps:
            doubt = self.status_of_start(where, step.motion.h, step.start, q, v, step.motion.by, step.motion.args)
            status |= jnp.where(begins, doubt, 0)
        return base, status

    def status_of_start(self, where: Modes, h: Array, t: Array, q: Array, v: Array, by: By | None, args: Any) -> Array:
        """Returns DERIVATIVE_JUMP if with other data a motion would begin on the other side of a border."""
        span = jnp.abs(t) + h
        least = rounding_of_levels(self.pieces, where.piece.sides, t, q, v, 0 * v, 0 * t, span, args)
        level = self.pieces.levels(where.piece.sides, *frozen((t, q, v, args)))
        near = (jnp.abs(level) <= least) & self.pieces.moved_at_start(by, *frozen((t, q, v, args)))
        return as_status(jnp.any(near), Status.DERIVATIVE_JUMP)

    def _base(
        self, t: Array, elapsed: Array, q: Array, v: Array, closed: Array, where: Modes, change: Change,
        substep: Array, atol: Array, span: Array, args: Any,
    ) -> tuple[Base, Array]:  # fmt: skip
        """As `base_in_modes`, and decides on which sides of borders of the velocity the motion goes on."""
        given = change, substep, atol, span, args
        if len(self.pieces.steep) == 0:
            place = Place.at(self.on(where), t, q, v, args, None)
            return base_in_modes(self, place, t, elapsed, q, v, closed, where, *given)
        place = self.in_modes(where).place(where.piece, t, q, v, closed, args)
        base, status = base_in_modes(self, place, t, elapsed, q, v, closed, where, *given)

        def anew() -> tuple[Base, Array]:
            within = self.in_modes(base.where)
            left = change.switched & self.pieces.slid(where.piece)
            sides = settle_sides(within, where.piece, t, q, v, base.closed, left, atol, span, args, by=self.by)
            place = within.place(sides.where, t, q, sides.v, base.closed, args)
            modes = where._replace(piece=sides.where)
            found, more = base_in_modes(self, place, t, elapsed, q, sides.v, closed, modes, *given)
            more |= sides.status | jnp.where(change.begins, sides.at_start, 0)
            return found, more | status_of_modes(base.where, found.where, base.closed)

        base, status = lax.cond(change.some, anew, lambda: (base, status))
        again = lambda: self.held(base.where, t, q, base.v, base.closed, base.slack, args)
        as_it_is = lambda: (base.a, base.force, base.push, base.joint_force)
        a, force, push, of_joints = lax.cond(jnp.any(base.where.piece.slides), again, as_it_is)
        return base._replace(a=a, force=force, push=push, joint_force=of_joints), status

    def _held_at(
        self, where: Modes, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: Any
    ) -> tuple[Array, Array, Array, Any]:
        if len(self.pieces.steep):
            return self.in_modes(where).blend(where.piece, t, q, v, closed, slack, args)[0]
        place = where.place(self.on(where), t, q, v, args)
        return held_in_modes(place, where.facing(t, place), closed, slack)

    def steer(self, base: Base, t: Array, s: Array, covers: Array, args: Any, stable: float) -> tuple:
        """Returns a base from which a trial of length s, at time t, is steered where its slips turn too fast for it
        (`steering`); its length, zero where contacts have jammed; whether it still ``covers`` () the rest of the step;
        and the time () for which changes across such slips last, infinite if it is steered. ``stable``: how many such
        times a trial may take without."""
        where, closed, jams = base.where, base.closed, jnp.any(base.where.jammed)
        # derivatives across a slip on a straight line are singular at its stop
        longest = jnp.min(SHARE * where.times[:1], initial=jnp.inf)
        covers, s = covers & ~jams & (s <= longest), jnp.where(jams, 0, jnp.minimum(s, longest))
        if where.tangents is None:
            return base, s, covers, jnp.inf

        def node(t: Array, q: Array, v: Array, way: Array) -> Node:
            place = where.place(self.on(where), t, q, v, args)
            force = _forces(place, where._replace(way=way), closed)
            a, slip = place.view.free + place.cones.response @ force.ravel(), place.cones.slip()
            return Node(a, slip.jacobian, place.slip, place.cones.velocity(force)[:, 1:])

        slips = (where.of(closed).mode == SLIP) & ~where.limit & jnp.any(where.way != 0, axis=1)
        stiff = stable * where.times[1] < s
        angles = lax.cond(stiff, lambda: steered(node, where.way, slips, t, base, s), lambda: 0 * where.angles)
        where = where._replace(angles=angles, clock=jnp.stack([t, jnp.where(stiff, s, 0)]))
        return base._replace(where=where), s, covers, jnp.where(stiff, jnp.inf, where.times[1])

    def unsure(self, base: Base, tolerance: Tolerance) -> Array | float:
        """Returns the error () in velocities of a trial that is steered, in units of the tolerance."""
        where = frozen(base.where)
        if where.tangents is None:
            return 0.0
        off = where.clock[1] * where.times[2] * jnp.max(unsure(where.angles), initial=0.0)
        return off / (tolerance.absolute + tolerance.relative * jnp.max(jnp.abs(frozen(base.v))))

    def hold(self, where: Modes) -> Hold:
        """Returns the function that gives accelerations in these modes, with the arguments and results of `trial.held`;
        forces are (m, 1 + k)."""
        return partial(self.held, where)

    def _levels_at(self, where: Modes, t: Array, q: Array, v: Array, closed: Array, args: Any) -> Array:
        """Returns the levels (3m + k,) at a state."""
        place = where.place(self.on(where), t, q, v, args)
        where = where.facing(t, place)
        slips, sticks = _rubs(place, where, closed)
        slip = signed(place.slip, where.way) - jnp.sum(where.floor, axis=1)
        slip = jnp.where(slips & ~where.limit, slip, 1)

        def room() -> Array:
            # less than normal forces, whose zeros come first where a contact opens with no tangential force
            least = 1 + frozen(place.cones.at_rest)
            steep, zero = len(self.pieces.steep) > 0, jnp.zeros_like(t)
            force = self.held(where, t, q, v, closed, zero, args)[1] if steep else _forces(place, where, closed)
            of_forces = _rooms(place, force, where.force)
            return jnp.concatenate([jnp.where(sticks, side / least, 1) for side in of_forces])

        rooms = lax.cond(jnp.any(sticks), room, lambda: jnp.ones(2 * len(slip), slip.dtype))
        levels = self.pieces.levels(where.piece.sides, t, q, v, args)
        if len(self.pieces.steep):
            within, slid = self.in_modes(where), self.pieces.slid(where.piece)
            margins = lambda: within.margins(where.piece, t, q, v, closed, jnp.zeros_like(t), args)
            levels = jnp.where(slid, lax.cond(jnp.any(slid), margins, lambda: levels), levels)
        return jnp.concatenate([slip, rooms, levels])

    def watch(self, where: Modes, closed: Array, slack: Array, args: Any) -> Callable:
        """Returns the function of (t, q, v, a) by which trials watch the levels:
        it gives them and their rates (3m + k,)."""

        def watched(t: Array, q: Array, v: Array, a: Array) -> tuple[Array, Array]:
            along = lambda s: self.levels(where, t + s, q + s * v, v + s * a, closed, args)
            level, rate = jax.jvp(along, (jnp.zeros_like(t),), (jnp.ones_like(t),))
            return level, jnp.where(jnp.isfinite(rate), rate, 0)

        return watched

    def slid(self, where: Modes) -> Array:
        """Returns the mask (3m + k,) of levels whose times are searched to full accuracy: of sticking contacts,
        whose force does not jump."""
        sticks = where.mode == STICK
        return jnp.concatenate([jnp.zeros_like(sticks), sticks, sticks, self.pieces.slid(where.piece)])

    def end(
        self, hold: Hold, switched: Array, t: Array, base: Base, trial_end: Base, substep: Array, atol: Array, args: Any
    ) -> tuple[Base, Array, Array]:
        """As `resets.cross_border`, for the level that has ``switched`` (3m + k,): a border is crossed,
        or the mode of a contact ends."""
        piece, end = trial_end.where.piece, t + (trial_end.elapsed - base.elapsed)

        def value(t: Array, q: Array, v: Array, args: Any) -> Array:
            return jnp.sum(jnp.where(switched, self.levels(trial_end.where, t, q, v, trial_end.closed, args), 0))

        moved = lambda: move_to_zero(hold, value, end, trial_end, substep, args)
        at, met = lax.cond(jnp.any(switched), moved, lambda: (trial_end, jnp.zeros((), jnp.int32)))
        if self.pieces.count == 0:
            return at, jnp.zeros((), bool), met
        of_switches = switched[3 * self.m :]
        met |= self.pieces.vanishing(
            piece, of_switches & ~self.pieces.slid(piece), end, trial_end.q, trial_end.v, trial_end.a, args
        )
        later = t + (at.elapsed - base.elapsed)
        at, has, status = reset_at(self.pieces, of_switches, later, at._replace(where=piece), atol, args)
        return at._replace(where=trial_end.where), has, met | status

    def of_force(self, levels: Array) -> Array:
        """Returns those of all levels (3m + k,) that are of the force."""
        return levels[3 * self.m :]

    def ends(self, problem: Problem, event: Event, trial_end: Base, switched: Array, substep: Array, args: Any) -> Ends:
        """As `ends_of_modes`."""
        return ends_of_modes(self, problem, event, trial_end, switched, substep, args)

    def before(
        self, problem: Problem, event: Event, where: Modes, ends: Ends, shoved: Array, closed: Array, args: Any
    ) -> WithFriction:
        """Returns what the ``closed`` contacts (m,) did until an event: they were in the modes ``where``, of which some
        have come to their ``ends``, or their slip has jumped (``shoved``, (m,))."""
        slip = Slip.at(problem, event.metric, event.t, event.q, event.v, args, where.tangents)
        still = ((closed & (where.mode == STICK) & ~ends.breaks) | ends.apart) & ~shoved
        return WithFriction(closed, still, ends.stopped & ~shoved, where.way, where.jammed, slip)

    def behind(self, trial_end: Base, crossed: Array, now: tuple) -> Modes:
        """Returns the modes at the end ``trial_end`` of a trial, where the levels ``crossed`` (k,) of the force are, on
        the sides beyond; ``now`` = (t, q, v, args)."""
        where = trial_end.where._replace(force=frozen(trial_end.force))
        if self.pieces.count == 0:
            return where
        sides = self.pieces.beyond(where.piece, crossed, *now)
        return where._replace(piece=self.pieces.at_sides(where.piece, sides, *now))

    def settle(
        self, step: Step, t: Array, elapsed: Array, q: Array, v: Array, closed: Array, where: Modes, change: Change,
        substep: Array,
    ) -> tuple[Base, Array]:  # fmt: skip
        """Makes the base at a state, from what the contacts did until then (``where``); also returns status bits."""
        scheme, motion = step.scheme, step.motion
        span = frozen(jnp.abs(t) + motion.h)
        given = change, substep, scheme.tolerance(q.dtype).absolute, span, motion.args
        base, status = self.base(t, elapsed, q, v, closed, where, *given)
        return base, status if scheme.jumps else status & ~int(Status.DERIVATIVE_EVENTS)

    def status_of_arrival(
        self, step: Step, arrival: Arrival, ends: Ends, change: Change, base: Base, trial_end: Base, after: Base
    ) -> Array:
        """Returns the status of derivatives where slips stop and borders are crossed at one instant, or at that of an
        impact."""
        # the force of those that go on to slip jumps at a time of their own
        status = as_status(jnp.any(ends.apart & (after.where.mode == SLIP)), Status.DERIVATIVE_EVENTS)
        if self.pieces.count == 0:
            return status
        now, over = frozen((*arrival.event[:3], step.motion.args)), ends.stopped | ends.breaks
        return status | status_of_crossing(
            self.pieces, trial_end.where.piece, arrival.crossed, arrival.impact, over, trial_end.a, now
        )

    def report(self, m: int, where: Any) -> FrictionInfo:
        """Returns the report on the friction of a step without any."""
        return FrictionInfo.none(m, where.way.shape[1], where.way.dtype)

    def impulses(self, impulse: Array, base: Base) -> tuple[Array, FrictionInfo]:
        """Returns the normal impulses (m,) of a step, and its report on friction."""
        return impulse[:, 0], base.where.of(base.closed)._replace(impulse=impulse[:, 1:])

    def unresolved(self, s: Array, off: Array) -> Array:
        """Returns the changes (3m + k,) of levels whose second rate is 1 that are not resolved in a trial of length s;
        ``off`` (): those of borders.

        A level of a contact that returns to zero within s is s^2 / 8 below it at most.
        """
        return jnp.where(jnp.arange(self.count) < 3 * self.m, jnp.minimum(off, s * s / 8), off)

    def status_of_trial(
        self, where: Modes, level_values: LevelValues, touches: Array, off: Array, end: tuple, closed: Array, args: Any
    ) -> Array:
        """Returns DERIVATIVE_EVENTS if in a trial a contact only just goes on to slip or to stick, or ends within a
        time ``off`` () of a change.

        ``level_values``: record of the levels; ``touches`` (3m + k,): those that touch zero at the end.
        """
        value, rate = level_values.after
        near, m = jnp.abs(value) < off * jnp.abs(rate), 3 * self.m
        # in the plane a contact whose force only just stays within the cone goes on as it does, unless breaking away
        # makes the force jump
        matters = ~self.slid(where) | (self.pieces.problem.static_friction is not None)
        ends = (touches | (near & (rate < 0))) & matters
        # whether the force jumps there is not looked at
        crosses = (touches | near)[m:] & self.pieces.open
        status = as_status(jnp.any(ends[:m]), Status.DERIVATIVE_EVENTS)
        return status | as_status(jnp.any(crosses), Status.DERIVATIVE_JUMP)


def _rubs(place: Place, where: Modes, closed: Array) -> tuple[Array, Array]:
    """Returns the masks (m,) of the ``closed`` contacts (m,) that slip, and of those that stick, which have levels."""
    mu = frozen(place.cones.friction)
    mode = where.of(closed).mode
    return (mode == SLIP) & (mu > 0), mode == STICK


def _forces(place: Place, where: Modes, closed: Array) -> Array:
    """Returns the forces (m, 1 + k) of contacts in known modes, with two derivatives."""
    cones, modes = at_limit(place, where.limit).cones, where.of(closed).mode
    return cones.in_modes(frozen(where.force), modes, where.way, times=3, several=where.several)


def _room(place: Place, force: Array) -> Array:
    """Returns the room (m,) that forces (m, 1 + k) leave in the cone of static friction, mu N - |T|,
    as an acceleration."""
    return frozen(place.cones.scales()) * (place.cones.at_rest * force[:, 0] - lengths(force[:, 1:]))


def _rooms(place: Place, force: Array, near: Array) -> tuple[Array, Array]:
    """Returns the rooms (m,) that forces (m, 1 + k) leave to both sides of the cone of static friction,
    mu N - T and mu N + T, as accelerations.

    In space there is one room, (mu N)^2 - |T|^2, smooth where T is zero too,
    divided by mu N + |T| of the forces ``near`` (m, 1 + k).
    """
    scale, limit = frozen(place.cones.scales()), place.cones.at_rest * force[:, 0]
    if force.shape[1] == 2:
        return scale * (limit - force[:, 1]), scale * (limit + force[:, 1])
    least = WEAK * lengths(place.cones.offset) / scale
    size = frozen(jnp.maximum(place.cones.at_rest * near[:, 0] + lengths(near[:, 1:]), least))
    room = scale * (limit**2 - jnp.sum(force[:, 1:] ** 2, axis=1)) / jnp.where(size > 0, size, 1)
    return room, jnp.ones_like(room)


def held_in_modes(place: Place, where: Modes, closed: Array, slack: Array) -> tuple[Array, Array, Array, Any]:
    """As `trial.hold`, at a `Place`, with ``closed`` contacts (m,) in their modes; forces are (m, 1 + k)."""
    force, view = _forces(place, where, closed), place.view
    a = view.free + place.cones.response @ force.ravel()
    push = place.cones.scales() * force[:, 0] + place.rounding() + slack
    of_joints = view.joint_force + view.joints.reaction(place.cones.rows.T @ force.ravel())
    return a, force, frozen(jnp.where(closed, push, 0)), of_joints


def ends_of_modes(
    contacts: RubbingContacts,
    problem: Problem,
    event: Event,
    trial_end: Base,
    switched: Array,
    substep: Array,
    args: Any,
) -> Ends:
    """Finds the modes that end at an ``event``, at the end ``trial_end`` of a trial,
    where a level has ``switched`` (3m,).

    Other levels that are zero at the same time, and fall, end too: of two contacts of one body that break away, the
    first is at its limit without slip until the second is. Two contacts that stop, or break away, at one instant are
    harmless if no impulse passes from one to the other. If they are linked, or if one breaks away where the force
    jumps, the status gets DERIVATIVE_EVENTS.
    """
    where, m, none = frozen(trial_end.where), len(trial_end.closed), jnp.zeros((), jnp.int32)

    def look() -> Array:
        watch = contacts.watch(*frozen((where, trial_end.closed, trial_end.slack, args)))
        level, rate = watch(*frozen((event.t, trial_end.q, event.v, trial_end.a)))
        return switched | ((level <= where.roundoff) & (rate * substep < -where.roundoff))

    ended = lax.cond(jnp.any(switched[: 3 * m]), look, lambda: jnp.zeros_like(switched))
    stopped, breaks = ended[:m], ended[m : 2 * m] | ended[2 * m : 3 * m]

    def look_at_several() -> tuple[Array, Array]:
        slip = Slip.at(problem, event.metric, event.t, event.q, event.v, args)
        apart, linked = others_at_once(event.contacts, slip, stopped, switched[:m])
        apart, reported = apart | (stopped & (slip.k > 1)), jnp.any(linked)
        if problem.static_friction is not None:
            first = switched[m : 2 * m] | switched[2 * m : 3 * m]
            reported |= jnp.any(jnp.stack(others_at_once(event.contacts, slip, breaks, first)))
        return apart, as_status(reported, Status.DERIVATIVE_EVENTS)

    several = (jnp.sum(stopped) > 1) | (jnp.sum(breaks) > 1)
    # where slip in space stops, a little of it is left
    left = stopped & (problem.slip_velocity(event.t, event.q, event.v, args).shape[1] > 1)
    apart, status = lax.cond(several, look_at_several, lambda: (left, none))
    return Ends(stopped, apart, breaks, status)


class _Decision(NamedTuple):
    """Contacts (m,) that are ``closed``, what they do (``where``), and status bits."""

    closed: Array
    where: Modes
    status: Array


def base_in_modes(
    contacts: RubbingContacts, place: Place, t: Array, elapsed: Array, q: Array, v: Array, closed: Array, where: Modes,
    change: Change, substep: Array, atol: Array, span: Array, args: Any,
) -> tuple[Base, Array]:  # fmt: skip
    """As `bases.base_at`, for contacts that rub, which were in the modes ``where``; after a ``change`` Coulomb's law
    says what they do."""
    pieces, piece = contacts.pieces, where.piece
    where = where.turned(place)
    view = place.view
    roundoff = rounding_of_gaps(view.contacts, q, v, view, substep) + NOTHING * atol
    slack = NOTHING * atol / jnp.maximum(substep, substep**2)
    still = frozen(noise(view.contacts, v, view.gap_velocity))
    touching = frozen((view.contacts.gap <= roundoff) & (jnp.abs(view.gap_velocity) <= still)) & ~change.loosed
    candidates = (closed & ~change.loosed) | touching
    changed = change.some | jnp.any(candidates & ~closed)
    anew = lambda: _decide(place, candidates, where, change, closed, substep, slack)
    as_before = lambda: _Decision(closed, where, jnp.zeros((), jnp.int32))
    closed, where, status = frozen(lax.cond(changed, anew, as_before))
    where = where.onwards(place, closed, changed, atol, span)
    a, force, push, of_joints = held_in_modes(place, where, closed, slack)
    of_force = place.rounding() + slack
    parts = [place.slip_rounding(substep) + NOTHING * atol, of_force, of_force]
    if pieces.count:
        parts.append(rounding_of_levels(pieces, piece.sides, t, q, v, a, atol, span, args))
        where = where._replace(piece=piece._replace(roundoff=frozen(parts[-1])))
    rounding = jnp.concatenate(parts)
    where = where._replace(force=frozen(force), roundoff=frozen(rounding))
    if where.tangents is not None:
        slips = (where.of(closed).mode == SLIP) & ~where.limit
        where = where._replace(times=times_of(place, force, slips, where.way, where.floor))
    status |= as_status(where.several, Status.IMPULSES_NOT_UNIQUE)
    base = Base(
        elapsed, q, v, a, closed, force, push, frozen(roundoff), still, slack, joint_force=of_joints, where=where,
        held=frozen(jnp.max(jnp.abs(a - view.free))),
    )  # fmt: skip
    return base, status


def _decide(
    place: Place, candidates: Array, where: Modes, change: Change, closed: Array, substep: Array, slack: Array
) -> _Decision:
    """Decides what the contacts ``candidates`` (m,) do from a place on, by Coulomb's law for accelerations; ``closed``
    (m,): those that were closed."""
    place = frozen(place)
    moves = place.moving(substep)
    anew = change.struck | change.begins | ~closed
    slips = jnp.where(anew, moves & ~change.rests, (where.mode == SLIP) & ~change.stopped)
    way = jnp.where(anew[:, None] | (where.way == 0), heading(place.slip), where.way)
    slip_direction = jnp.where(slips[:, None], way, 0)
    where, breaks = _further_inside(place, candidates, where, change.breaks, change.begins, slip_direction)
    slip_direction = jnp.where(breaks[:, None], -heading(where.force[:, 1:]), slip_direction)
    tolerated = place.rounding() + slack
    m, static = len(candidates), place.cones.static is not None

    def law(carry: tuple) -> tuple:
        slip_direction, limit, *_ = carry
        force, current = at_limit(place, limit).decide(candidates, slip_direction, where.force)
        acts, rubs = candidates & (current.mode != OPEN), place.cones.friction > 0
        # a contact without force is held, and does what it would with one
        mode = jnp.where(acts, current.mode, jnp.where(jnp.any(slip_direction != 0, axis=1), SLIP, STICK))
        mode = jnp.where(rubs, mode, SLIP).astype(jnp.int32)
        way = jnp.where(
            (mode == SLIP)[:, None], jnp.where(current.direction != 0, current.direction, slip_direction), 0
        )
        way = jnp.where(rubs[:, None], way, 0)
        several = lambda mode: dependent(place.cones.delassus(), mode, place.cones.friction)
        mode_in_act = jnp.where(acts, mode, OPEN)
        none = jnp.zeros_like(candidates)
        found = where._replace(mode=mode, way=way, force=force, several=several(mode_in_act), jammed=none, limit=limit)
        # forces in these modes are those of the solver to rounding
        held = _forces(place, found, acts)
        accelerations = place.cones.velocity(held)
        stays = acts | (candidates & (accelerations[:, 0] <= 1e3 * tolerated))
        found = found._replace(mode=jnp.where(stays, mode, OPEN))
        # contacts without force would hold by their tangential forces alone
        idle = stays & ~acts & (mode == STICK)
        hold_all = lambda: _forces(place, found._replace(several=several(found.mode)), stays)
        held = lax.cond(jnp.any(idle), hold_all, lambda: held)
        out = (acts | idle) & (mode == STICK) & (_room(place, held) < -tolerated)
        again = jnp.where(out[:, None], -heading(held[:, 1:]), slip_direction)
        if static:
            # with friction of slip, those begin to slip that no others hold
            begins = place.cones.velocity(_forces(place, found._replace(limit=none), stays))[:, 1:]
            begins = jnp.any(limit) & ~jnp.any(out) & (jnp.sum(slip_direction * begins, axis=1) > tolerated)
            limit = (limit & ~begins) | out
        return (
            again,
            limit,
            jnp.any(again != slip_direction) | jnp.any(limit != found.limit),
            stays,
            found,
            accelerations,
        )

    limit = (breaks | where.limit) & ~moves if static else jnp.zeros_like(candidates)
    first = (slip_direction, limit, jnp.ones((), bool), candidates, where, jnp.zeros_like(where.force))
    # no more than once for each contact, or twice: each time one more begins to slip
    *_, stays, found, accelerations = lax.fori_loop(
        0, (1 + static) * m + 1, lambda _, carry: lax.cond(carry[2], law, lambda x: x, carry), first
    )
    edge = _on_edge(place, stays, found, slip_direction, accelerations)
    # with other data a contact without force may have one, and rub
    edge |= jnp.any(stays & (place.cones.friction > 0) & (place.cones.scales() * found.force[:, 0] <= tolerated))
    # beyond Painleve's bound no acceleration may satisfy the law: then velocities jump
    held = _forces(place, found, stays)
    wrong = stays & ((accelerations[:, 0] < -1e3 * tolerated) | (place.cones.scales() * held[:, 0] < -tolerated))
    matrix, mu = place.cones.delassus(), place.cones.friction
    beyond = jams(matrix, mu)
    lifts = candidates & (found.mode == OPEN) & could_jam(matrix, mu, slip_direction)
    jammed = wrong & beyond
    status = as_status(edge & ~jnp.any(jammed), Status.DERIVATIVE_EVENTS)
    status |= as_status(jnp.any((stays & beyond) | lifts), Status.FRICTION_JAMMED)
    status |= as_status(jnp.any(wrong) & ~jnp.any(jammed), Status.CONTACTS_NOT_SOLVED)
    return _Decision(stays, found._replace(jammed=jammed), status)


def _further_inside(
    place: Place, candidates: Array, where: Modes, breaks: Array, begins: Array, slip_direction: Array
) -> tuple[Modes, Array]:
    """Looks for other forces in space where those that are followed reach the edge of a cone, as a contact ``breaks``
    away (m,), or where a motion ``begins`` () with such: if forces are not unique, others may lie inside all cones.

    Returns the modes with the forces to go on from, and the contacts that do break away.
    """
    if where.way.shape[1] == 1:
        return where, breaks

    def look() -> tuple[Array, Array]:
        cones = at_limit(place, where.limit)
        room = lambda force: (_room(place, force), EDGE * place.cones.scales() * place.cones.at_rest * force[:, 0])
        first, found = cones.decide(candidates, slip_direction, where.force)
        first = jnp.where(begins, first, where.force)
        left, least = room(first)
        on_edge = breaks | (begins & (found.mode != OPEN) & (place.cones.friction > 0) & (left <= least))
        inside = first.at[:, 1:].multiply(jnp.where(on_edge, INSIDE, 1)[:, None])
        force, _ = cones.decide(candidates, slip_direction, inside)
        left, least = room(force)
        stays = jnp.any(on_edge & (left <= least))
        return jnp.where(stays, where.force, force), breaks & stays

    force, breaks = lax.cond((where.several & jnp.any(breaks)) | begins, look, lambda: (where.force, breaks))
    return where._replace(force=force), breaks


def _on_edge(place: Place, closed: Array, found: Modes, slip_direction: Array, accelerations: Array) -> Array:
    """Tests whether a contact at rest only just sticks, or only just begins to slip, (): a small change of a force
    would change its mode."""
    room = _room(place, found.force)
    most = place.cones.scales() * place.cones.at_rest * found.force[:, 0]
    rests = closed & (place.cones.friction > 0) & ~jnp.any(slip_direction != 0, axis=1)
    sticks = rests & (found.mode == STICK) & (room <= EDGE * most)
    begins = rests & (found.mode == SLIP) & (lengths(accelerations[:, 1:]) <= EDGE * lengths(place.cones.offset[:, 1:]))
    return jnp.any(sticks | begins)
