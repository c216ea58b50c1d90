"""Contacts without friction under a force in pieces, as one step of `EventDriven` asks for them; `rubbing` has those
with friction, with the same methods."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from ..events.event_state import Event
from ..events.frictionless_impacts import WithoutFriction
from ..motion import By
from ..problem import Problem
from ..scheme import Step
from ..status import FAILURES
from .bases import base_at
from .borders import SettledSides, border_status, settle_sides, status_of_slopes
from .changes import Arrival, Change, Ends
from .impacts_on_borders import Coincidence, status_at_impact, status_behind
from .one_piece import OnePiece
from .pieces import Pace, Pieces, Where
from .resets import cross_border
from .trial import Base, Hold, LevelValues, Tolerance, frozen


class SmoothContacts:
    """The contacts of a problem without friction, and the ``pieces`` of its force, whose sides are what bases know as
    ``where``; its levels, ``count``, are those of the pieces.

    ``probes``: whether a motion begins with a trial of length zero, which finds the sides on which it does.
    """

    def __init__(self, pieces: Pieces) -> None:
        self.pieces, self.count, self.probes = pieces, pieces.count, pieces.count > 0

    @classmethod
    def of(
        cls, problem: Problem, t: Array, q: Array, v: Array, args: object, by: By | None, pace: Pace | None = None
    ) -> SmoothContacts:
        return cls(Pieces.of(problem, t, q, v, args, prescribed=True, pace=pace) or OnePiece(problem))

    def piece(self, where: Where) -> Where:
        """Returns the piece of the force on which the motion is."""
        return where

    def start(self, h: Array, t: Array, q: Array, v: Array, closed: Array, args: object) -> tuple[Where, Array]:
        """Returns the sides on which a motion begins, and its velocity."""
        return self.pieces.start(t, q, v, args), v

    def first(
        self, step: Step, begins: Array, elapsed: Array, q: Array, v: Array, closed: Array, substep: Array, where: Where
    ) -> tuple[Base, Array]:
        """Makes the first base of a step, and its status; ``elapsed`` (): zero."""
        none = jnp.zeros_like(closed)
        return self._base(step, step.start, elapsed, q, v, closed, none, substep, where)

    def hold(self, where: Where) -> Hold:
        """Returns the function that gives accelerations on these sides, with the arguments and results of
        `trial.held`."""
        return self.pieces.hold(where)

    def watch(self, where: Where, closed: Array, slack: Array, args: object) -> Callable:
        """Returns the function of (t, q, v, a) by which trials watch the levels: it gives them and their rates (k,)."""
        return self.pieces.watch(where, closed, slack, args)

    def slid(self, where: Where) -> Array:
        """Returns the mask (k,) of levels whose times are searched to full accuracy."""
        return self.pieces.slid(where)

    def of_force(self, levels: Array) -> Array:
        """Returns those of all levels (k,) that are of the force."""
        return levels

    def steer(self, base: Base, t: Array, s: Array, covers: Array, args: object, stable: float) -> tuple:
        """Returns the base from which a trial of length s is made, that length, whether it ``covers`` the rest of the
        step, and for how long changes across it last: as they are."""
        return base, s, covers, jnp.inf

    def unsure(self, base: Base, tolerance: Tolerance) -> Array | float:
        """Returns the error () of a trial in units of the tolerance, besides that of its stages."""
        return 0.0

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
        """As `resets.cross_border`."""
        return cross_border(self.pieces, hold, switched, t, base, trial_end, substep, atol, args)

    def unresolved(self, s: Array, off: Array) -> Array:
        """Returns the changes of levels whose second rate is 1 that are not resolved in a trial of length s; ``off``
        (): those of borders."""
        return off

    def status_of_trial(
        self,
        where: Where,
        level_values: LevelValues,
        touches: Array,
        off: Array,
        end: tuple,
        closed: Array,
        args: object,
    ) -> Array:
        """As `borders.border_status`."""
        return border_status(self.pieces, where, level_values, touches, off, end, closed, args)

    def ends(
        self, problem: Problem, event: Event, trial_end: Base, switched: Array, substep: Array, args: object
    ) -> Ends:
        """Returns the modes that end at an event: none."""
        return Ends.none(len(trial_end.closed))

    def before(
        self, problem: Problem, event: Event, where: Where, ends: Ends, shoved: Array, closed: Array, args: object
    ) -> WithoutFriction:
        """Returns what the ``closed`` contacts (m,) did until an event."""
        return WithoutFriction(closed)

    def behind(self, trial_end: Base, crossed: Array, now: tuple) -> Where:
        """Returns the sides from which `settle` is to decide, where the levels ``crossed`` (k,) are at the end of a
        trial."""
        return trial_end.where

    def settle(
        self, step: Step, t: Array, elapsed: Array, q: Array, v: Array, closed: Array, where: Where, change: Change,
        substep: Array,
    ) -> tuple[Base, Array]:  # fmt: skip
        """Makes the base at a state behind a trial on the sides ``where``, on the sides where the motion goes on.

        The sides are the previous ones unless a ``change`` has crossed borders, or changed velocities or contacts: then
        they are decided anew. Also returns status bits.
        """
        motion, scheme, none = step.motion, step.scheme, jnp.zeros((), jnp.int32)
        if not self.count:
            return self._base(step, t, elapsed, q, v, closed, change.loosed, substep, where)
        atol, args, span = scheme.tolerance(q.dtype).absolute, motion.args, frozen(jnp.abs(t) + motion.h)
        left, crossed = change.switched & self.slid(where), jnp.any(change.switched)
        look = lambda: settle_sides(self.pieces, where, t, q, v, closed, left, atol, span, args, by=motion.by)
        found = lax.cond(crossed | change.some, look, lambda: SettledSides(where, v, none, none))
        status = found.status & int(FAILURES)
        if scheme.jumps:
            sides = [where.sides, found.where.sides]
            slopes = lambda: status_of_slopes(self.pieces, sides, t, q, v, closed, span, args)
            status = found.status | jnp.where(change.begins, found.at_start, 0)
            status |= lax.cond(crossed, slopes, lambda: none)
        base, failure = self._base(step, t, elapsed, q, found.v, closed, change.loosed, substep, found.where)
        return base, failure | status

    def _base(
        self, step: Step, t: Array, elapsed: Array, q: Array, v: Array, closed: Array, loosed: Array, substep: Array,
        where: Where,
    ) -> tuple[Base, Array]:  # fmt: skip
        """Makes the base at a state, as `base_at`, whose arguments are explained there, on the sides ``where``."""
        args, atol, hold = step.motion.args, step.scheme.tolerance(q.dtype).absolute, self.hold(where)
        if len(closed) == 0:
            a, force, push, of_joints = hold(t, q, v, closed, elapsed, args)
            at = (elapsed, q, v, a, closed, force, push, force, force, frozen(elapsed))
            base = Base(*at, joint_force=of_joints, where=where, force_error=jnp.zeros_like(t))
            return base, jnp.zeros((), jnp.int32)
        local = self.pieces.local(where, t, q, v, closed, args)
        base, status = base_at(local, step.law, t, elapsed, q, v, closed, loosed, substep, atol, args)
        base = base._replace(where=where)
        if len(self.pieces.steep):
            base = base.held_by(hold, t, jnp.any(where.slides), args)
        return base, status

    def status_of_arrival(
        self, step: Step, arrival: Arrival, ends: Ends, change: Change, base: Base, trial_end: Base, after: Base
    ) -> Array:
        """Returns the status of derivatives where a motion meets borders and has impacts at one instant."""
        scheme, motion = step.scheme, step.motion
        if not (self.count and scheme.jumps):
            return jnp.zeros((), jnp.int32)
        (t, q, v, *_, speed), jolt, args = arrival.event, arrival.jolt, motion.args
        within = scheme.resolution(motion)
        where = base.where._replace(roundoff=trial_end.where.roundoff)
        coincidence = Coincidence((t, q, v, args), base.a, arrival.candidates & ~jolt.struck, speed, motion.e)
        status = status_at_impact(jolt.problem, self.pieces, where, within, coincidence)
        return status | status_behind(self.pieces, after, jnp.any(change.switched), t, within, args)
