"""Jolts: what joints and contacts do at once where a motion crosses a switch of the velocities that
joints or contacts prescribe.

A joint that kinks, as that of a lift which stops, sets what it holds in motion by an impulse. Then contacts are asked:
those that it presses together have an impact, with restitution, those that it pulls apart open, and where a slip
velocity jumps, as on a belt that is switched on, a contact that stuck begins to slip.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ..joints import Joints
from ..linearisation import Metric, linearise, noise
from ..problem import Problem
from ..scheme import Step
from ..status import Status, as_status
from .borders import cross_apart
from .pieces import Pieces, Where
from .trial import Base, frozen

ROUNDING = 1e3  # roundings of the terms of a number, up to which it counts as zero


class Jolt(NamedTuple):
    """What happens at once: the ``problem`` with what it prescribes on the new sides; the velocity v (d,) behind it;
    the impulses of the joints (j,); closed contacts (m,) that are ``struck``, that open (``parted``), or whose slip has
    jumped (``shoved``); and status bits."""

    problem: Problem
    v: Array
    joint_impulse: Array
    struck: Array
    parted: Array
    shoved: Array
    status: Array

    @classmethod
    def none(cls, problem: Problem, v: Array, m: int, j: int) -> Jolt:
        """Makes that of a problem in which nothing is prescribed by pieces."""
        no = jnp.zeros(m, bool)
        return cls(problem, v, jnp.zeros(j, v.dtype), no, no, no, jnp.zeros((), jnp.int32))


def crossed_at(
    pieces: Pieces, where: Where, switched: Array, t: Array, q: Array, v: Array, a: Array, args: object
) -> Array:
    """Returns the levels (k,) of time and place whose borders are crossed at a state: those that have ``switched``
    (k,), and others that are zero."""
    level, rate = frozen(pieces.rates(where.sides, t, q, v, a, args))
    # a reset may have turned the motion back
    crossed = (switched | (level <= where.roundoff)) & (rate < 0)
    return crossed & jnp.any(switched) & ~pieces.all_levels(jnp.ones(len(pieces.steep), bool))


def jolt_at(
    pieces: Pieces,
    where: Where,
    crossed: Array,
    t: Array,
    q: Array,
    v: Array,
    closed: Array,
    j: int,
    atol: Array,
    args: object,
) -> Jolt:
    """Finds what happens where a motion with velocity v (d,) crosses the borders of levels (k,); ``closed`` (m,):
    contacts; j: number of joints; ``atol`` (): their error."""
    m = len(closed)
    if not pieces.prescribes:
        return Jolt.none(pieces.problem, v, m, j)
    some, sides = jnp.any(crossed), pieces.beyond(where, crossed, *frozen((t, q, v, args)))
    old, new = pieces.bound(where.sides), pieces.bound(sides)
    impulse, status = jnp.zeros(j, v.dtype), jnp.zeros((), jnp.int32)
    metric, start = Metric.at(new, q, args, t), v
    if "joints" in pieces.prescribes:
        after = metric.joints
        before = Joints.at(old, metric, t, q, args)
        change = jnp.where(some, before.velocity(v) - after.velocity(v), 0)
        impulse = after.least(after.forces(change))
        v = v + after.restore(change)
        moved = jnp.abs(after.value - before.value) > atol + ROUNDING * jnp.finfo(q.dtype).eps * after.terms(q)
        status = as_status(some & jnp.any(frozen(moved)), Status.JOINTS_NOT_MET)
    if m == 0:
        return Jolt(new, v, impulse, closed, closed, closed, status)
    contacts = linearise(new, metric, t, q, args)
    change = contacts.velocity(v - start)
    counts = frozen(jnp.abs(change) > noise(contacts, jnp.abs(v) + jnp.abs(start), change)) & closed & some
    shoved = jnp.zeros(m, bool)
    if new.slip is not None:
        slips = [of.slip_velocity(t, q, u, args) for of, u in ((old, start), (new, v))]
        least = ROUNDING * jnp.finfo(q.dtype).eps * (jnp.abs(slips[0]) + jnp.abs(slips[1]))
        shoved = frozen(jnp.any(jnp.abs(slips[1] - slips[0]) > least, axis=1)) & closed & some
    return Jolt(new, v, impulse, counts & (change < 0), counts & (change > 0), shoved, status)


def jolt_at_end(step: Step, t: Array, q: Array, v: Array, trial_end: Base, switched: Array) -> tuple[Jolt, Array]:
    """Finds what happens at once at a state (t, q, v) at the end ``trial_end`` of a trial that ends on the borders of
    the force that have ``switched`` (k,); also returns the levels (k,) of time and place whose borders are crossed."""
    pieces, piece = step.regime.pieces, step.regime.piece(trial_end.where)
    m, j = len(trial_end.closed), len(trial_end.joint_force)
    if pieces.count == 0:
        return Jolt.none(step.problem, v, m, j), switched
    crossed = crossed_at(pieces, piece, switched, t, q, v, trial_end.a, step.motion.args)
    atol = step.scheme.tolerance(q.dtype).absolute
    return jolt_at(pieces, piece, crossed, t, q, v, trial_end.closed, j, atol, step.motion.args), crossed


def status_of_crossing(
    pieces: Pieces, piece: Where, crossed: Array, impact: Array, ends: Array, a: Array, now: tuple
) -> Array:
    """Returns DERIVATIVE_EVENTS if borders are ``crossed`` (k,) at the instant of an ``impact`` (m,), or where slip or
    stick ends (``ends``, (m,)), or if several are crossed that would not be so with other data;
    ``now`` = (t, q, v, args)."""
    main = crossed & (jnp.arange(len(crossed)) == jnp.argmax(crossed))
    t, q, v, args = now
    _, rate = pieces.rates(piece.sides, t, q, v, frozen(a), args)
    apart = cross_apart(pieces, piece.sides, crossed, main, now, rate)
    return as_status(jnp.any(crossed) & (jnp.any(impact | ends) | apart), Status.DERIVATIVE_EVENTS)
