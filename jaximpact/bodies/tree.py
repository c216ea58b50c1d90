"""Near pairs by scipy's k-d tree, as an operation of jax on a CPU: compiled at once, and quicker there than cells."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.spatial import cKDTree

from ..native import foreign
from .walk import batchable

CROWD = 4096  # bodies from which a list of all pairs is more than an array of it should be


def tree_pairs(
    points: Array, cutoff: Array, box: tuple[float | None, ...] | None, slots: int
) -> tuple[Array, Array, Array]:
    """Pairs i < j (K,) of points (N, S) nearer than the cutoff, sorted, N in slots left empty, and how many there are ()."""
    number = points.shape[0]
    lengths = None if box is None else np.array([0.0 if x is None else x for x in box])

    def lane(points: np.ndarray, cutoff: float, i: np.ndarray, j: np.ndarray) -> int:
        i[:], j[:] = number, number
        if cutoff <= 0 or not (np.all(np.isfinite(points)) and np.isfinite(cutoff)):
            return 0
        points = points.astype(np.float64)
        if lengths is not None:
            inside = points - np.floor(points / np.where(lengths > 0, lengths, 1)) * lengths
            points = np.where(lengths > 0, np.minimum(inside, np.nextafter(lengths, 0)), points)
        if number > CROWD and (least := _crowded(points, cutoff)) > slots:
            return least
        pairs = cKDTree(points, boxsize=lengths, balanced_tree=False, compact_nodes=False).query_pairs(
            cutoff, output_type="ndarray"
        )
        order = np.argsort(pairs[:, 0] * number + pairs[:, 1])[:slots]
        i[: len(order)], j[: len(order)] = pairs[order, 0], pairs[order, 1]
        return len(pairs)

    def call(operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        for k in range(len(results[2])):
            results[2][k] = lane(operands[0][k], float(operands[1][k]), results[0][k], results[1][k])

    def lanes(points: Array, cutoff: Array) -> tuple[Array, Array, Array]:
        count, whole = points.shape[0], np.dtype(np.int32)
        shapes = [(x.shape, np.dtype(x.dtype)) for x in (points, cutoff)]
        results = [((count, slots), whole), ((count, slots), whole), ((count,), whole)]
        name = foreign.registered(("tree", box, slots, str(shapes)), lambda: call, shapes, results)
        return tuple(jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(*x) for x in results])(points, cutoff))  # type: ignore[return-value]

    i, j, pairs = batchable(lanes)(points[None], jnp.asarray(cutoff)[None])
    return i[0], j[0], pairs[0]


def _crowded(points: np.ndarray, cutoff: float) -> int:
    """How many pairs are nearer than the cutoff at least: those of bodies in one cell with a diagonal of that length."""
    cells = np.clip(np.floor((points - points.min(axis=0)) * (points.shape[1] ** 0.5 / cutoff)), 0, 2.0**62).astype(
        np.int64
    )
    key = cells[:, 0]
    for x in cells.T[1:]:
        key = key * 1_000_003 + x
    _, count = np.unique(key, return_counts=True)
    return min(int(np.sum(count * (count - 1) // 2)), 2**31 - 1)
