"""Neighbour lists: near pairs of bodies by a cell list with a skin, in arrays of fixed size.

Cells are at least as wide as the cutoff, so that a body's neighbours lie in its own and the adjacent cells. Bodies are
sorted by the number of their cell; the domain is unbounded, since cells grow when bodies fly far apart.

Reference: M. P. Allen, D. J. Tildesley, Computer Simulation of Liquids, 2nd ed. (2017), section 5.3.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .tree import tree_pairs

Box = tuple[float | None, ...] | None
CELLS = {1: 2**30, 2: 2**15, 3: 2**10}  # along each direction: the number of a cell fits int32


class Neighbours(NamedTuple):
    """Neighbour list: pairs of bodies ``i`` < ``j`` (K,) nearer than ``cutoff`` () at ``points`` (N, S), sorted;
    empty slots hold N.

    ``reach`` (): distance within which gaps could close when the list was made; ``cutoff``: reach + skin. ``pairs`` ()
    and ``members`` (): number of pairs found, and of bodies in the fullest cell. ``lost`` (): whether these exceed the
    capacity, so that pairs are missing.
    """

    i: Array
    j: Array
    points: Array
    reach: Array
    cutoff: Array
    pairs: Array
    members: Array
    lost: Array

    def approach(self, points: Array, reach: Array) -> Array:
        """Upper bound, (), on how much (distance - reach) of any two bodies has decreased since the list was made.

        ``points`` (N, S) and ``reach`` (): positions and reach now. Common motion does not count: displacements are
        taken relative to the middle of all displacements.
        """
        return widest(points - self.points) + (reach - self.reach)


def widest(vectors: Array) -> Array:
    """Upper bound, (), on the distance between any two of the vectors (N, S); too large by a factor sqrt(S) at most."""
    along = range(vectors.shape[1])
    middle = jnp.stack([0.5 * (jnp.min(vectors[:, a]) + jnp.max(vectors[:, a])) for a in along])
    return 2 * longest(vectors - middle[None])


def longest(vectors: Array) -> Array:
    """Largest norm, (), of the vectors (N, S), without derivative; NaN entries are ignored."""
    squares = sum((x**2 for x in lax.stop_gradient(vectors).T), jnp.zeros(len(vectors), vectors.dtype))
    # a sum and its largest in one pass, which XLA's own largest is not
    larger = lambda a, b: jnp.where(a < b, b, a)
    return jnp.sqrt(lax.reduce(squares, jnp.zeros((), vectors.dtype), larger, (0,)))


def search(
    points: Array, reach: Array, skin: Array, box: Box, slots: int, cell_capacity: int, method: str | None = None
) -> Neighbours:
    """Finds pairs of points (N, S) nearer than reach + skin, in a ``box`` that is periodic
    along directions with a length.

    ``slots`` is the capacity for pairs, ``cell_capacity`` for bodies in a cell. ``method``: "cells", "tree" (on a CPU),
    or None for the faster one of the device.
    """
    points, reach, cutoff = lax.stop_gradient((points, reach, reach + skin))

    def by_tree(points: Array, cutoff: Array) -> tuple[Array, Array, Array, Array]:
        return *tree_pairs(points, cutoff, box, slots), jnp.zeros((), jnp.int32)

    by_cells = lambda points, cutoff: _cell_pairs(points, cutoff, box, slots, cell_capacity)
    if method is None:
        found = lax.platform_dependent(points, cutoff, cpu=by_tree, default=by_cells)
    else:
        found = (by_tree if method == "tree" else by_cells)(points, cutoff)
    i, j, pairs, members = found
    return Neighbours(i, j, points, reach, cutoff, pairs, members, (pairs > slots) | (members > cell_capacity))


def _cell_pairs(
    points: Array, cutoff: Array, box: Box, slots: int, cell_capacity: int
) -> tuple[Array, Array, Array, Array]:
    """Pairs i < j (K,) of points nearer than the cutoff, sorted, N in empty slots; their number; and the number of
    bodies in the fullest cell."""
    count, space = points.shape
    cell, shape, periodic = _cells(points, cutoff, box)
    shape_of_all, every = shape[None], periodic[None]
    number = cell[:, 0]
    for a in range(1, space):
        number = number * shape[a] + cell[:, a]
    order = jnp.argsort(number).astype(jnp.int32)
    number = number[order]
    me = jnp.arange(count, dtype=jnp.int32)
    lengths = [None] * space if box is None else box
    known = jnp.all(jnp.isfinite(points)) & jnp.isfinite(cutoff)

    def body(carry: tuple, offset: Array) -> tuple[tuple, None]:
        i, j, found, members = carry
        there = cell + offset[None]
        wrapped = jnp.where(every, there % shape_of_all, there)
        inside = jnp.all((wrapped >= 0) & (wrapped < shape_of_all), axis=1)
        # where fewer than three cells lie along a period, some offsets lead to the same cell
        distinct = jnp.all(~periodic | (shape > 2) | (offset == 0) | ((shape == 2) & (offset == 1)))
        target = wrapped[:, 0]
        for a in range(1, space):
            target = target * shape[a] + wrapped[:, a]
        first = jnp.searchsorted(number, target).astype(jnp.int32)
        last = jnp.searchsorted(number, target, side="right").astype(jnp.int32)
        place = first[:, None] + jnp.arange(cell_capacity, dtype=jnp.int32)[None]
        other = order[jnp.minimum(place, count - 1)]
        apart = points[:, None] - points[other]
        for a, length in enumerate(lengths):
            if length is not None:
                apart = apart.at[..., a].add(-length * jnp.round(apart[..., a] / length))
        near = jnp.sum(apart**2, axis=-1) < cutoff**2
        near &= (place < last[:, None]) & (other > me[:, None]) & (inside & distinct & known)[:, None]
        flat = near.ravel()
        where = jnp.where(flat, found + jnp.cumsum(flat, dtype=jnp.int32) - 1, slots)
        mine = jnp.broadcast_to(me[:, None], near.shape).ravel()
        i, j = i.at[where].set(mine, mode="drop"), j.at[where].set(other.ravel(), mode="drop")
        # positions that are not finite need no capacity: the status of the motion reports them
        members = jnp.maximum(members, jnp.where(known, jnp.max(last - first), 0))
        return (i, j, found + jnp.sum(flat, dtype=jnp.int32), members), None

    none = jnp.full(slots, count, jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    offsets = jnp.asarray(list(itertools.product((-1, 0, 1), repeat=space)), jnp.int32)
    (i, j, pairs, members), _ = lax.scan(body, (none, none, zero, zero), offsets)
    i, j = lax.sort((i, j), num_keys=2)
    return i, j, pairs, members


def _cells(points: Array, cutoff: Array, box: Box) -> tuple[Array, Array, Array]:
    """Cell of each body (N, S), number of cells along each direction (S,), and which directions are periodic."""
    space = points.shape[1]
    most = CELLS[space]
    lengths = np.array([np.nan if x is None else x for x in (box or (None,) * space)])
    periodic = ~np.isnan(lengths)
    low = jnp.where(periodic, 0, jnp.min(points, axis=0))
    extent = jnp.where(periodic, jnp.asarray(lengths, points.dtype), jnp.max(points, axis=0) - low)
    shape = jnp.clip(jnp.floor(extent / cutoff), 1, most)
    width = jnp.where(periodic, extent / shape, jnp.maximum(cutoff, extent / most))
    shape = jnp.where(periodic, shape, jnp.minimum(jnp.floor(extent / width) + 1, most)).astype(jnp.int32)
    cell, most_of_all = jnp.floor((points - low[None]) / width[None]).astype(jnp.int32), shape[None]
    cell = jnp.where(periodic[None], cell % most_of_all, jnp.clip(cell, 0, most_of_all - 1))
    return cell, shape, jnp.asarray(periodic)


def same_slots(old: Neighbours, new: Neighbours) -> Array:
    """Slot (K,) in the old list of each pair of the new list; K for pairs that the old list does not have."""
    slots = old.i.shape[0]

    # among the few with the same first body
    ends = jnp.cumsum(jnp.zeros(len(old.points), jnp.int32).at[old.i].add(1, mode="drop"))
    first = jnp.concatenate([jnp.zeros(1, jnp.int32), ends])[new.i]

    def halve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = carry
        middle = (low + high) // 2
        less = (low < high) & (old.j[jnp.minimum(middle, slots - 1)] < new.j)
        return jnp.where(less, middle + 1, low), jnp.where(less | (low >= high), high, middle)

    apart = lambda carry: jnp.any(carry[0] < carry[1])
    found, _ = lax.while_loop(apart, halve, (first, ends[jnp.minimum(new.i, len(ends) - 1)]))
    at = jnp.minimum(found, slots - 1)
    same = (old.i[at] == new.i) & (old.j[at] == new.j) & (found < slots)
    return jnp.where(same, found, slots)
