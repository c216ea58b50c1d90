"""Steps of a given length in which nothing happens: one trial, without contacts and without searches for events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from ..events.jump_search import path_jumped
from ..scheme import Step
from .regimes import in_regime
from .trial import Base, Trial, attempt, frozen, grazes, held, least_gaps

if TYPE_CHECKING:
    from ..schemes.event_driven import DrivenState


def flight(step: Step, state: DrivenState) -> tuple[Trial, Array]:
    """Makes one trial over a whole step from a `DrivenState`; also tests whether a contact is closed or an
    event may lie in the step, ()."""
    scheme, _, _, motion, t, s, _ = step
    q, v, closed, args = state.q, state.v, state.closed, motion.args
    regime = in_regime(step, q, v).regime
    pieces, piece = regime.pieces, regime.piece(state.where)
    problem, tolerance, none = pieces.on(piece.sides), scheme.tolerance(q.dtype), jnp.zeros(len(closed), q.dtype)

    def hold(
        t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object
    ) -> tuple[Array, Array, Array, Array]:
        a, _, _, of_joints = held(problem, t, q, v, closed[:0], slack, args)
        return a, none, none, of_joints

    zero = jnp.zeros((), q.dtype)
    a, _, _, of_joints = hold(t, q, v, closed, zero, args)
    base = Base(zero, q, v, a, closed, none, none, none, none, zero, of_joints, state.low, piece, zero)
    watched = (lambda t, q, v, a: pieces.rates(piece.sides, t, q, v, a, args)) if pieces.count else None
    found = attempt(problem, scheme.order, t, base, s, tolerance, args, hold, borders=watched)
    known, s, h = jax.tree.map(frozen, (found, s, motion.h))
    met = jnp.any(closed) | jnp.any(known.after[0] < 0) | jnp.any(least_gaps(known.before, known.after, s, none)[1])
    if pieces.count:
        level_values = known.borders
        value, rate = level_values.after
        near = (
            (value <= h * jnp.abs(rate))
            | (level_values.before[0] <= 0)
            | least_gaps(level_values.before, level_values.after, s, 0 * value)[1]
        )
        near |= level_values.touches(s, tolerance.absolute, scheme.unresolved(h))
        met |= jnp.any(near | pieces.slid(piece)) | (state.n == 0)
    if scheme.jumps:
        met |= grazes(base, known, s, tolerance, h)
        start, end = frozen((t, q, v)), (t + s, known.q, known.v)
        jumps = path_jumped(problem, closed, start, end, args)
        met |= False if jumps is None else jumps
    return found, met
