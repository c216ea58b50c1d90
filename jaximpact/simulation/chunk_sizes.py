"""Division of lanes into chunks that are computed together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .limits import MAX_STEPS_RATIO, MAX_WORK_RATIO

SHORT_VECTORS = (2, 4, 8)


def divide(counts: np.ndarray, chunk: int, shares: int = 1) -> list[tuple[slice | np.ndarray, slice | np.ndarray]]:
    """Divides lanes into chunks of at most ``chunk`` lanes with similar numbers of steps ``counts`` (B,),
    longest first.

    Returns pairs: the lane numbers of a chunk, and the same padded to one of few sizes. Lanes of a chunk run as many
    steps as the longest of them. Every size costs a compilation: sizes are shared as far as the total work, padding
    included, stays within MAX_WORK_RATIO times the sum of the steps. ``shares``:
    number of devices among which a chunk is divided.
    """
    order = np.argsort(-counts, kind="stable")
    ascending = -counts[order]
    parts, first = [], 0
    while first < len(order):
        last = int(np.searchsorted(ascending, ascending[first] / MAX_STEPS_RATIO, side="right"))
        group = order[first:last]
        for part in np.array_split(group, -(-len(group) // chunk)):
            # whole short vectors are compiled to other roundings: keep a lane apart, so that chunks never matter
            parts += [part[:-1], part[-1:]] if len(part) in SHORT_VECTORS else [part]
        first = last
    sizes = np.array([len(part) for part in parts])
    lengths = np.array([counts[part[0]] for part in parts])

    def padded(levels: Sequence[int] | np.ndarray) -> np.ndarray:
        levels = np.sort(levels)
        return levels[np.searchsorted(levels, sizes)]

    def cost(levels: Sequence[int] | np.ndarray) -> np.ndarray:
        return padded(levels) @ lengths

    levels = [sizes.max()]
    while cost(levels) > MAX_WORK_RATIO * counts.sum() and len(levels) < len(set(sizes)):
        levels.append(min(set(sizes) - set(levels), key=lambda size: cost([*levels, size])))
    return [
        (part, np.concatenate([part, np.repeat(part[-1:], size + -size % shares - len(part))]))
        for part, size in zip(parts, padded(levels), strict=True)
    ]


def split(count: int, chunk: int, shares: int = 1) -> list[tuple[slice | np.ndarray, slice | np.ndarray]]:
    """Divides ``count`` lanes that all have the same number of steps into chunks; returns pairs as `divide`, with
    slices where possible."""
    number = -(-count // chunk)
    size = -(-count // number)
    if size <= max(SHORT_VECTORS):
        return divide(np.ones(count, int), chunk, shares)
    size += -size % shares
    ends = [i * count // number for i in range(number + 1)]
    # filled up with neighbours, the last with the last lane
    return [
        (slice(a, b), slice(a, a + size) if a + size <= count else np.minimum(np.arange(a, a + size), count - 1))
        for a, b in pairwise(ends)
    ]
