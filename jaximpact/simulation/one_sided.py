"""One-sided derivatives of a motion that is only piecewise smooth: derivatives of two motions displaced in a direction,
extrapolated linearly to displacement zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import real
from ..jaxtools.shapes import PyTree
from ..mechanics.motion import STATED, Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from .lane_arguments import check_lanes
from .lanes import Lanes

MOVED = ("q0", "v0", *STATED, "args")
APART = 8  # displacement of the nearer motion, over the accuracy with which the scheme locates impacts


def displace_lanes(problem: Problem, scheme: Scheme, lanes: Lanes, direction: Mapping[str, object]) -> Lanes:
    """Displaces motions in a ``direction``, changes by name; returns 2 B lanes: all B lanes displaced,
    then all of them displaced twice as far.

    The displacement of a lane is small, in proportion to the size of its own numbers and to the accuracy with
    which the scheme locates impacts.

    Raises:
        ValueError, TypeError: the direction is zero or invalid, or leads to a start that is not admissible;
            or the scheme has fixed steps.
    """
    if not scheme.traits.by_tolerance:
        raise ValueError(
            f"direction= looks at motions whose impacts are very near in time, which {type(scheme).__name__} does not "
            "tell apart: take scheme=EventDriven()"
        )
    motion, count = jax.tree.map(np.asarray, lanes.motion), lanes.count
    leaves, structure = jax.tree.flatten(motion)
    given = enumerate(_pair_with_axes(motion, lanes.axes, direction))
    moves = {i: _of_lanes(by, x, axis, count) for i, (by, x, axis) in given if by is not None}
    if not any(map(np.any, moves.values())):
        raise ValueError("direction is zero: give the change of some number, direction={'q0': ...}")
    every = jax.tree.leaves(_sizes(motion))
    sizes = [(every[i], by) for i, by in moves.items()]
    with np.errstate(divide="ignore"):
        reach = np.min(
            [np.broadcast_to(s, count) / np.abs(by).reshape(count, -1).max(axis=1) for s, by in sizes], axis=0
        )
    reach = np.where(np.isfinite(reach), reach, 0)  # lanes that stay where they are have the status of their own motion
    reach = reach * APART * np.asarray(scheme.resolution(motion)) / (motion.t1 - motion.t0)

    def moved(i: int, x: np.ndarray, axis: int | None) -> np.ndarray:
        if i not in moves:
            return x if axis is None else np.concatenate([x, x])
        by = moves[i]
        by = by * reach.reshape(-1, *[1] * (by.ndim - 1))
        return np.concatenate([x + by, x + 2 * by]).astype(x.dtype)

    axes = [0 if i in moves else axis for i, axis in enumerate(lanes.axes)]
    twice = jax.tree.unflatten(structure, map(moved, range(len(leaves)), leaves, lanes.axes))
    e = twice.e
    if np.any((e < 0) | (e > 1)):
        raise ValueError("direction moves e out of [0, 1]")
    found = Lanes(twice, tuple(axes), 2 * count)
    check_lanes(problem, found)
    return found


def extrapolate_to_zero(found: PyTree, count: int) -> PyTree:
    """Extrapolates (Jacobian, (outputs, status)) of the 2 ``count`` motions of `displace_lanes` to the ``count``
    motions at displacement zero."""
    jacobian, (value, status) = found

    def at_zero(x: np.ndarray) -> np.ndarray:
        return 2 * x[:count] - x[count:] if jnp.issubdtype(x.dtype, jnp.inexact) else x[:count]

    return jax.tree.map(at_zero, jacobian), (jax.tree.map(at_zero, value), status[:count] | status[count:])


def _pair_with_axes(motion: Motion, axes: tuple, direction: Mapping[str, object]) -> list[tuple]:
    """For each leaf of the motion: its change in the ``direction``, None if it stays; the leaf; and its lane axis."""
    if not isinstance(direction, Mapping):
        raise TypeError(f"direction must be a dict of changes by name, {{'q0': ...}}, got {type(direction).__name__}")
    for name in direction:
        if name not in MOVED:
            raise ValueError(f"direction names {name!r}: name some of {', '.join(map(repr, MOVED))}")
        if getattr(motion, name) is None:
            raise ValueError(f"direction names {name!r}, which the motion has no number for")
    none = jax.tree.map(lambda _: None, motion)
    changes = none._replace(**direction)
    try:
        tree: Any = jax.tree.structure(motion)
        flat = tree.flatten_up_to(changes)
    except ValueError as error:
        raise ValueError(f"direction['args'] must have the structure of args, None for what stays: {error}") from None
    return list(zip(flat, jax.tree.leaves(motion), axes, strict=True))


def _of_lanes(by: ArrayLike, x: np.ndarray, axis: int | None, count: int) -> np.ndarray:
    """A change ``by`` of a leaf x with the given lane axis, broadcast to ``count`` lanes."""
    by = real("direction", by)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"direction changes a number of args of type {x.dtype}: only real numbers have derivatives")
    if not np.isfinite(by).all():
        raise ValueError("direction must be finite")
    shape = (count, *(x.shape if axis is None else x.shape[1:]))
    try:
        return np.broadcast_to(by, shape)
    except ValueError:
        raise ValueError(f"direction: a change of shape {by.shape} is not for a number of shape {shape[1:]}") from None


def _sizes(motion: Motion) -> Motion:
    """Scale of each leaf, () or (B,), 1 where it would be 0.

    Of q0 it is the larger of |q0| and |v0| (t1 - t0), of v0 that number divided by t1 - t0, of any other leaf the
    leaf's largest absolute value.
    """
    duration = motion.t1 - motion.t0
    q, v = (np.abs(x).max(axis=-1) for x in (motion.q0, motion.v0))
    nonzero = lambda x: np.where(x == 0, 1, x)
    sizes = jax.tree.map(lambda x: nonzero(np.abs(x).max(initial=0)), motion)
    reach = nonzero(np.maximum(q, v * duration))
    return sizes._replace(q0=reach, v0=reach / duration)
