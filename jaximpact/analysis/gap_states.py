"""Gaps, their rates, and their accelerations without contact forces, at states of motions."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from jax import Array

from ..mechanics.linearisation import Metric, acceleration, gap_derivatives, linearise
from ..mechanics.problem import Problem
from ..simulation.call import Call
from ..simulation.canonical_arrays import full_axes
from .listed_pairs import over_rows


def free_motion(problem: Problem, t: Array, q: Array, v: Array, args: object) -> tuple[Array, Array, Array]:
    """Gaps (m,), their rates, and their accelerations without contact forces at a state."""
    metric = Metric.at(problem, q, args, t)
    contacts = linearise(problem, metric, t, q, args)
    gap_velocity, turning = gap_derivatives(problem, t, q, v, args)
    return contacts.gap, gap_velocity, contacts.velocity(acceleration(problem, metric, t, q, v, args)) + turning


def gaps_at(call: Call, at: tuple[np.ndarray, ...], lane: np.ndarray, contact: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns the gap, its rate and its acceleration without contact forces, (n,) each,
    of one contact at each of n states.

    Entry i is for contact ``contact[i]`` at the state t[i], q[i], v[i] of ``at``,
    with the args of lane ``lane[i]`` of the ``call``.
    """
    n = len(lane)
    if n == 0:
        return (np.zeros(0),) * 3
    # few sizes, few compilations
    size = 1 << (n - 1).bit_length()
    *states, lane, contact = (np.concatenate([x, np.repeat(x[:1], size - n, axis=0)]) for x in (*at, lane, contact))
    axes = full_axes(call.args, call.args_axes)
    args = jax.tree.map(lambda x, axis: x if axis < 0 else np.asarray(x)[lane], call.args, axes)
    found = _gaps_and_accelerations(call.problem, *states, contact, args, tuple(jax.tree.leaves(axes)))
    return tuple(np.asarray(x)[:n] for x in found)


@partial(jax.jit, static_argnames=("axes",))
def _gaps_and_accelerations(
    problem: Problem, t: Array, q: Array, v: Array, which: Array, args: object, axes: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    leaves, structure = jax.tree.flatten(args)

    def one(t: Array, q: Array, v: Array, which: Array, *own: object) -> tuple[Array, Array, Array]:
        mine = iter(own)
        of_lane = [next(mine) if axis == 0 else x for x, axis in zip(leaves, axes, strict=True)]
        gap, gap_velocity, free = free_motion(problem, t, q, v, jax.tree.unflatten(structure, of_lane))
        return gap[which], gap_velocity[which], free[which]

    carried = [x for x, axis in zip(leaves, axes, strict=True) if axis == 0]
    return over_rows(problem, one)(t, q, v, which, *carried)
