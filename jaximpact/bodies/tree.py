"""Near pairs by scipy's k-d tree, as an operation of jax on a CPU, where it needs no compilation and
is faster than a cell list."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array

from .mprgp_call import batchable, call_as_operation

FAR = 1e150
CROWD = 4096  # bodies from which a list of all pairs is more than an array of it should be


def tree_pairs(
    points: Array, cutoff: Array, box: tuple[float | None, ...] | None, slots: int
) -> tuple[Array, Array, Array]:
    """Pairs i < j (K,) of points (N, S) nearer than the cutoff, sorted, N in empty slots; and their number ()."""
    number = points.shape[0]
    lengths = None if box is None else np.array([0.0 if x is None else x for x in box])

    def lane(points: np.ndarray, cutoff: float, i: np.ndarray, j: np.ndarray) -> int:
        i[:], j[:] = number, number
        if cutoff <= 0 or not (np.all(np.isfinite(points)) and np.isfinite(cutoff)):
            return 0
        # squares of distances are finite; bodies that are farther away, together, are listed in vain
        points = np.clip(points.astype(np.float64), -FAR, FAR)
        if lengths is not None:
            inside = points - np.floor(points / np.where(lengths > 0, lengths, 1)) * lengths
            points = np.where(lengths > 0, np.clip(inside, 0, np.nextafter(lengths, 0)), points)
        if number > CROWD and (least := _count_crowded(points, cutoff, slots)) > slots:
            return least
        pairs = scipy.spatial.cKDTree(points, boxsize=lengths, balanced_tree=False, compact_nodes=False).query_pairs(
            cutoff, output_type="ndarray"
        )
        # sorted in the time that counting takes
        table = scipy.sparse.csr_matrix((np.ones(len(pairs), bool), pairs.T), (number, number))
        table.sort_indices()
        kept = min(len(pairs), slots)
        i[:kept], j[:kept] = np.repeat(np.arange(number), np.diff(table.indptr))[:kept], table.indices[:kept]
        return len(pairs)

    def call(operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        for k in range(len(results[2])):
            results[2][k] = lane(operands[0][k], float(operands[1][k]), results[0][k], results[1][k])

    def every(points: Array, cutoff: Array) -> tuple[Array, ...]:
        lanes, whole = cutoff.shape, np.dtype(np.int32)
        results = [((*lanes, slots), whole), ((*lanes, slots), whole), (lanes, whole)]
        return call_as_operation(("tree", box, slots), lambda: call, (points, cutoff), results, bool(lanes))

    return batchable(every)(points, jnp.asarray(cutoff))


def _count_crowded(points: np.ndarray, cutoff: float, slots: int) -> int:
    """Cheap lower bound on the number of pairs nearer than the cutoff, found by counting pairs in common cells.

    The diagonal of a cell is the cutoff. Pairs are counted only if a random eighth of the bodies has more than 1/64 of
    ``slots`` such pairs, its share; otherwise returns 0.
    """
    sample = points[np.random.default_rng(0).integers(len(points), size=len(points) // 8)]
    return 0 if 64 * _together(sample, cutoff) <= slots else _together(points, cutoff)


def _together(points: np.ndarray, cutoff: float) -> int:
    """Number of pairs of ``points`` (N, S) in common cells, whose diagonal is the ``cutoff``."""
    cells = np.clip(np.floor((points - points.min(axis=0)) * (points.shape[1] ** 0.5 / cutoff)), 0, 2.0**62).astype(
        np.int64
    )
    key = cells[:, 0]
    for x in cells.T[1:]:
        key = key * 1_000_003 + x
    _, count = np.unique(key, return_counts=True)
    return min(int(np.sum(count * (count - 1) // 2)), 2**31 - 1)
