"""Events that `EventDriven` keeps beside impacts: slips that stop or turn round, contacts that break away or open.

Impacts have the times of the trials that they end, and so have ends of slip and stick. The motion needs no derivative
of the time of a release, at which its force does not jump, and none of contacts that do the same at one instant by
chance: here each contact gets a time of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..contact.friction.cones import SLIP, STICK
from ..events.impact_record import BREAK, IMPACT, KINDS, RELEASE, REVERSAL, STOP, ImpactRecord
from ..status import Status
from .short_moves import move_to_zero
from .trial import Base, Hold, frozen


def normal_impulses(impulse: Array) -> Array:
    """Returns the normal impulses (m,) of impulses (m,) or, of contacts that rub, (m, 1 + k)."""
    return impulse if impulse.ndim == 1 else impulse[:, 0]


class Turn(NamedTuple):
    """What has happened at the end of a trial: the mask ``impact`` (m,), with the ``impulse``, (m,) or of contacts that
    rub (m, 1 + k); time ``t`` (), position ``q``, velocities ``before`` and ``after`` (d,); and masks (m,) of contacts
    whose force or slip has reached zero by itself, which have ``loosed``, ``stopped`` or broken away (``breaks``)."""

    impact: Array
    impulse: Array
    t: Array
    q: Array
    before: Array
    after: Array
    loosed: Array
    stopped: Array
    breaks: Array

    @property
    def rubs(self) -> bool:
        return self.impulse.ndim > 1

    @property
    def normal(self) -> Array:
        """The normal impulses (m,)."""
        return normal_impulses(self.impulse)


def keep_events(
    record: ImpactRecord, kinds: tuple[str, ...], turn: Turn, regime: Any, hold: Hold, began: Array,
    ends: tuple[Base, Base, Base], substep: Array, args: object,
) -> tuple[ImpactRecord, Array]:  # fmt: skip
    """Adds the events of some ``kinds`` at the end of a trial to a record, in the order of the kinds and contacts;
    also returns status bits.

    ``regime``: what the step asks of its contacts; ``began``: time at which the trial began; ``ends``: its base, its
    end, and the base from which the motion goes on.
    """
    none = jnp.zeros((), jnp.int32)
    if kinds == (IMPACT,):
        return record.with_impacts(turn.impact, turn.t, turn.q, turn.before, turn.after, turn.normal), none
    found = _changes(turn, *ends[::2])
    m = len(turn.impact)
    # without a tangential force the room for it vanishes with the normal force, and nearly so before
    # what has reached zero by itself: the level of a contact's mode, or its force
    released = found[RELEASE] & (turn.loosed | turn.breaks) if RELEASE in kinds else jnp.zeros_like(turn.loosed)
    reached = [released]
    if turn.rubs:
        slows = [found[kind] for kind in (STOP, REVERSAL) if kind in kinds]
        stopped = turn.stopped & ~released & (jnp.any(jnp.stack(slows), axis=0) if slows else False)
        breaks = turn.breaks & ~released & (found[BREAK] if BREAK in kinds else False)
        force = frozen(ends[1].force)
        ahead = (force[:, 1] > 0) | (force.shape[1] > 2)  # the side of the cone, which in space has one
        reached = [released, stopped, breaks & ahead, breaks & ~ahead]
    alone = jnp.any(jnp.stack(reached), axis=0)
    base, trial_end, _ = ends
    end = began + (trial_end.elapsed - base.elapsed)

    def values(*at: Array) -> Array:
        force = hold(*at[:3], trial_end.closed, trial_end.slack, args)[1]
        if not turn.rubs:
            return force
        return jnp.concatenate([force[:, 0], regime.levels(trial_end.where, *at[:3], trial_end.closed, args)])

    def own(which: Array) -> tuple[Array, Array, Array, Array]:
        value = lambda *at: jnp.sum(jnp.where(which, values(*at), 0))
        moved, status = move_to_zero(hold, value, began, (base, trial_end), substep, args)
        return moved.elapsed - trial_end.elapsed, moved.q, moved.v, jnp.where(jnp.any(which), status, 0)

    def each() -> tuple[Array, Array, Array, Array]:
        return lax.map(own, jnp.concatenate([jnp.diag(mask) for mask in reached], axis=1))

    whole = lambda x: jnp.broadcast_to(x, (m, *x.shape))
    as_it_is = lambda: (jnp.zeros(m, end.dtype), whole(trial_end.q), whole(trial_end.v), jnp.zeros(m, jnp.int32))
    late, q, v, status = lax.cond(jnp.any(alone), each, as_it_is)
    pick = lambda one, other: jnp.where(alone.reshape(m, *(1,) * (one.ndim - 1)), one, other)
    struck = jnp.any(turn.impact)
    of_contact = (
        pick(end + late, turn.t),
        pick(q, turn.q),
        pick(v, turn.before),
        pick(jnp.where(struck, turn.after, v), turn.after),
    )
    at_impact = (whole(turn.t), whole(turn.q), whole(turn.before), whole(turn.after))
    asked = [kind for kind in KINDS if kind in kinds]
    for kind in asked:
        t, q, before, after = at_impact if kind == IMPACT else of_contact
        impulse = turn.normal if kind == IMPACT else jnp.zeros_like(turn.normal)
        record = record.with_impacts(found[kind], t, q, before, after, impulse, whole(jnp.int32(KINDS.index(kind))))
    return record, jnp.max(status, initial=0) & int(Status.DERIVATIVE_JUMP)


def _changes(turn: Turn, base: Base, after: Base) -> dict[str, Array]:
    """Returns the masks (m,) of contacts with an event of each kind, between the bases before and after it."""
    found = {IMPACT: turn.impact, RELEASE: base.closed & ~after.closed}
    if not turn.rubs:
        return found
    (old, new), lasts = frozen((base.where, after.where)), base.closed & after.closed
    slips, sticks = lasts & (old.mode == SLIP), lasts & (old.mode == STICK)
    turns = jnp.sum(old.way * new.way, axis=1) < 0
    return found | {
        STOP: slips & (new.mode == STICK),
        REVERSAL: slips & (new.mode == SLIP) & turns,
        BREAK: sticks & (new.mode == SLIP),
    }
