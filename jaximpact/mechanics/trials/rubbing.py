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
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.outlined import outlined
from ..contact.friction.cones import SLIP, STICK
from ..events.event_state import Event
from ..events.frictional_impacts import WithFriction, others_at_once
from ..events.rubbing_contacts import Place, held_velocity
from ..friction import Slip, tangents
from ..motion import By
from ..problem import Problem
from ..scheme import Step
from ..status import Status, as_status
from .borders import rounding_of_levels, settle_sides
from .changes import Arrival, Change, Ends
from .decisions import base_in_modes
from .jolts import status_of_crossing
from .mode_forces import cone_rooms, held_in_modes, rubbing_now
from .modes import Modes
from .one_piece import OnePiece
from .pieces import Pace, Pieces, Where
from .resets import reset_at
from .short_moves import move_to_zero
from .sliding import InModes, status_of_modes
from .steering import Node, steered, unsure
from .trial import Base, Hold, LevelValues, Tolerance, frozen
from .ways import signed

if TYPE_CHECKING:
    from .pieces import Held

BEGINS = 64  # roundings of time: how far ahead of a start the sides are taken on which a motion begins
SHARE = 0.8  # of the time in which a slip in space would stop


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
        cls, problem: Problem, t: Array, q: Array, v: Array, args: object, by: By | None, pace: Pace | None = None
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

    def start(self, h: Array, t: Array, q: Array, v: Array, closed: Array, args: object) -> tuple[Modes, Array]:
        """Returns the modes, of open contacts, and the sides with which a motion with steps h begins: on a border,
        those to which it goes; and the velocity (d,) with which it does, as ``closed`` contacts (m,) hold it."""
        further = BEGINS * jnp.finfo(q.dtype).eps * (jnp.abs(t) + h)
        piece = self.pieces.start(t + further, q + further * v, v, args)
        piece = self.pieces.at_sides(piece, piece.sides, *frozen((t, q, v, args)))
        where = Modes.none(tangents(self.pieces.on(piece.sides), t, q, args), piece)
        return where, held_velocity(self.bound(where), t, h, q, v, closed, args)

    def first(
        self, step: Step, begins: Array, elapsed: Array, q: Array, v: Array, closed: Array, substep: Array, where: Modes
    ) -> tuple[Base, Array]:
        """Makes the first base of a step, and its status; ``begins`` (): whether the motion does; ``elapsed``: zero."""
        change = Change.none(self.m, self.pieces.count, begins)
        base, status = self.settle(step, step.start, elapsed, q, v, closed, where, change, substep)
        if self.pieces.count and step.scheme.jumps:
            doubt = self.status_of_start(where, step.motion.h, step.start, q, v, step.motion.by, step.motion.args)
            status |= jnp.where(begins, doubt, 0)
        return base, status

    def status_of_start(
        self, where: Modes, h: Array, t: Array, q: Array, v: Array, by: By | None, args: object
    ) -> Array:
        """Returns DERIVATIVE_JUMP if with other data a motion would begin on the other side of a border."""
        span = jnp.abs(t) + h
        least = rounding_of_levels(self.pieces, where.piece.sides, t, q, v, 0 * v, 0 * t, span, args)
        level = self.pieces.levels(where.piece.sides, *frozen((t, q, v, args)))
        near = (jnp.abs(level) <= least) & self.pieces.moved_at_start(by, *frozen((t, q, v, args)))
        return as_status(jnp.any(near), Status.DERIVATIVE_JUMP)

    def _base(
        self, t: Array, elapsed: Array, q: Array, v: Array, closed: Array, where: Modes, change: Change,
        substep: Array, atol: Array, span: Array, args: object,
    ) -> tuple[Base, Array]:  # fmt: skip
        """As `base_in_modes`, and decides on which sides of borders of the velocity the motion goes on."""
        given = change, substep, atol, span, args
        if len(self.pieces.steep) == 0:
            place = Place.at(self.on(where), t, q, v, args, None)
            return base_in_modes(self.pieces, place, t, elapsed, q, v, closed, where, *given)
        place = self.in_modes(where).place(where.piece, t, q, v, closed, args)
        base, status = base_in_modes(self.pieces, place, t, elapsed, q, v, closed, where, *given)

        def anew() -> tuple[Base, Array]:
            within = self.in_modes(base.where)
            left = change.switched & self.pieces.slid(where.piece)
            sides = settle_sides(within, where.piece, t, q, v, base.closed, left, atol, span, args, by=self.by)
            place = within.place(sides.where, t, q, sides.v, base.closed, args)
            modes = where._replace(piece=sides.where)
            found, more = base_in_modes(self.pieces, place, t, elapsed, q, sides.v, closed, modes, *given)
            more |= sides.status | jnp.where(change.begins, sides.at_start, 0)
            return found, more | status_of_modes(base.where, found.where, base.closed)

        base, status = lax.cond(change.some, anew, lambda: (base, status))
        return base.held_by(self.hold(base.where), t, jnp.any(base.where.piece.slides), args), status

    def _held_at(self, where: Modes, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object) -> Held:
        if len(self.pieces.steep):
            return self.in_modes(where).blend(where.piece, t, q, v, closed, slack, args)[0]
        place = where.place(self.on(where), t, q, v, args)
        return held_in_modes(place, where.facing(t, place), closed, slack)

    def steer(self, base: Base, t: Array, s: Array, covers: Array, args: object, stable: float) -> tuple:
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
            force = where._replace(way=way).forces(place, closed)
            a, slip = place.view.free + place.cones.response @ force.ravel(), place.cones.slip()
            return Node(a, slip.jacobian, place.slip, place.cones.velocity(force)[:, 1:])

        slips = (where.of(closed).mode == SLIP) & ~where.limit & jnp.any(where.way != 0, axis=1)
        stiff = stable * where.times[1] < s
        angles = lax.cond(stiff, lambda: steered(node, where.way, slips, t, base, s), lambda: 0 * where.angles)
        where = where._replace(angles=angles, clock=jnp.stack([t, jnp.where(stiff, s, 0)]))
        # of directions that are known the force is
        error = jnp.maximum(base.force_error, jnp.where(stiff, 0, where.times[3]))
        base = base._replace(where=where, force_error=error)
        return base, s, covers, jnp.where(stiff, jnp.inf, where.times[1])

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

    def _levels_at(self, where: Modes, t: Array, q: Array, v: Array, closed: Array, args: object) -> Array:
        """Returns the levels (3m + k,) at a state."""
        place = where.place(self.on(where), t, q, v, args)
        where = where.facing(t, place)
        slips, sticks = rubbing_now(place, where, closed)
        slip = signed(place, where.way) - jnp.sum(where.floor, axis=1)
        slip = jnp.where(slips & ~where.limit, slip, 1)

        def room() -> Array:
            # less than normal forces, whose zeros come first where a contact opens with no tangential force
            least = 1 + frozen(place.cones.at_rest)
            steep, zero = len(self.pieces.steep) > 0, jnp.zeros_like(t)
            force = self.held(where, t, q, v, closed, zero, args)[1] if steep else where.forces(place, closed)
            of_forces = cone_rooms(place, force, where.force)
            return jnp.concatenate([jnp.where(sticks, side / least, 1) for side in of_forces])

        rooms = lax.cond(jnp.any(sticks), room, lambda: jnp.ones(2 * len(slip), slip.dtype))
        levels = self.pieces.levels(where.piece.sides, t, q, v, args)
        if len(self.pieces.steep):
            within, slid = self.in_modes(where), self.pieces.slid(where.piece)
            margins = lambda: within.margins(where.piece, t, q, v, closed, jnp.zeros_like(t), args)
            levels = jnp.where(slid, lax.cond(jnp.any(slid), margins, lambda: levels), levels)
        return jnp.concatenate([slip, rooms, levels])

    def watch(self, where: Modes, closed: Array, slack: Array, args: object) -> Callable:
        """Returns the function of (t, q, v, a) by which trials watch the levels:
        it gives them and their rates (3m + k,)."""

        def watched(t: Array, q: Array, v: Array, a: Array) -> tuple[Array, Array]:
            along = lambda s: self.levels(where, t + s, q + s * v, v + s * a, closed, args)
            level, rate = jax.jvp(along, (jnp.zeros_like(t),), (jnp.ones_like(t),))
            return level, jnp.where(jnp.isfinite(rate), rate, 0)

        return watched

    def slid(self, where: Modes) -> Array:
        """Returns the mask (3m + k,) of levels whose times are searched to full accuracy: of sticking contacts,
        whose force does not jump. Forces that are not unique are known less accurately, and leave a cone early."""
        return self.goes_on(where) & ~(where.several & (jnp.arange(self.count) < 3 * self.m))

    def goes_on(self, where: Modes) -> Array:
        """Returns the mask (3m + k,) of levels at whose zeros accelerations do not jump."""
        sticks = where.mode == STICK
        return jnp.concatenate([jnp.zeros_like(sticks), sticks, sticks, self.pieces.slid(where.piece)])

    def end(
        self,
        hold: Hold,
        switched: Array,
        t: Array,
        base: Base,
        trial_end: Base,
        substep: Array,
        atol: Array,
        args: object,
    ) -> tuple[Base, Array, Array]:
        """As `resets.cross_border`, for the level that has ``switched`` (3m + k,): a border is crossed,
        or the mode of a contact ends."""
        piece, end = trial_end.where.piece, t + (trial_end.elapsed - base.elapsed)

        def value(t: Array, q: Array, v: Array, args: object) -> Array:
            return jnp.sum(jnp.where(switched, self.levels(trial_end.where, t, q, v, trial_end.closed, args), 0))

        moved = lambda: move_to_zero(hold, value, t, (base, trial_end), substep, args)
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

    def ends(
        self, problem: Problem, event: Event, trial_end: Base, switched: Array, substep: Array, args: object
    ) -> Ends:
        """As `ends_of_modes`."""
        return ends_of_modes(self, problem, event, trial_end, switched, substep, args)

    def before(
        self, problem: Problem, event: Event, where: Modes, ends: Ends, shoved: Array, closed: Array, args: object
    ) -> WithFriction:
        """Returns what the ``closed`` contacts (m,) did until an event: they were in the modes ``where``, of which some
        have come to their ``ends``, or their slip has jumped (``shoved``, (m,))."""
        slip = Slip.at(problem, event.metric, event.t, event.q, event.v, args).onto(where.tangents)
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
        slips = after.where.mode == SLIP
        status = as_status(jnp.any(ends.apart & slips), Status.DERIVATIVE_EVENTS)
        # bounces may hold a contact that lasting contact lets go, where impulses along the normal change slips
        status |= as_status(jnp.any(change.settled & slips), Status.EVENTS_UNRESOLVED)
        if self.pieces.count == 0:
            return status
        now, over = frozen((*arrival.event[:3], step.motion.args)), ends.stopped | ends.breaks
        return status | status_of_crossing(
            self.pieces, trial_end.where.piece, arrival.crossed, arrival.impact, over, trial_end.a, now
        )

    def unresolved(self, s: Array, off: Array) -> Array:
        """Returns the changes (3m + k,) of levels whose second rate is 1 that are not resolved in a trial of length s;
        ``off`` (): those of borders.

        A level of a contact that returns to zero within s is s^2 / 8 below it at most.
        """
        return jnp.where(jnp.arange(self.count) < 3 * self.m, jnp.minimum(off, s * s / 8), off)

    def status_of_trial(
        self,
        where: Modes,
        level_values: LevelValues,
        touches: Array,
        off: Array,
        end: tuple,
        closed: Array,
        args: object,
    ) -> Array:
        """Returns DERIVATIVE_EVENTS if in a trial a contact only just goes on to slip or to stick, or ends within a
        time ``off`` () of a change.

        ``level_values``: record of the levels; ``touches`` (3m + k,): those that touch zero at the end.
        """
        value, rate = level_values.after
        near, m = jnp.abs(value) < off * jnp.abs(rate), 3 * self.m
        # in the plane a contact whose force only just stays within the cone goes on as it does, unless breaking away
        # makes the force jump
        matters = ~self.goes_on(where) | (self.pieces.problem.static_friction is not None)
        ends = (touches | (near & (rate < 0))) & matters
        # whether the force jumps there is not looked at
        crosses = (touches | near)[m:] & self.pieces.open
        status = as_status(jnp.any(ends[:m]), Status.DERIVATIVE_EVENTS)
        return status | as_status(jnp.any(crosses), Status.DERIVATIVE_JUMP)


def ends_of_modes(
    contacts: RubbingContacts,
    problem: Problem,
    event: Event,
    trial_end: Base,
    switched: Array,
    substep: Array,
    args: object,
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
        # of slips in space, those too that would not go on to slide (`Modes.onwards`)
        least = where.roundoff.at[:m].max(jnp.sum(where.floor, axis=1))
        return switched | ((level <= least) & (rate * substep < -where.roundoff))

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
