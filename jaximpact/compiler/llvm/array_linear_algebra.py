"""Rules for Cholesky factorisation, triangular solves and top_k of large arrays, as loops over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..scalar import Unsupported
from .arrays import (
    LargeArray,
    copy_to_new,
    counted_loop,
    for_range,
    long_constant,
    materialise,
    reserve_array,
    store_entry,
)
from .elementwise import convert_type
from .ir_writer import LONG, LaneValue, constant


def _for_later(e: Any, i: LaneValue, n: int, body: Callable[[LaneValue], None]) -> None:
    """Emits ``body(k)`` for k from i + 1 to n - 1; i must be < n - 1."""
    for_range(e, n, body, e.w.op("add", i, long_constant(1)))


def _transpose(x: LargeArray) -> LargeArray:
    """The transposed matrix."""
    return LargeArray(x.shape[::-1], x.dtype, x.is_vector, lambda index: x.at(index[::-1]))


def _subtract_product(e: Any, target: LargeArray, index: Sequence[LaneValue], x: LaneValue, y: LaneValue) -> None:
    """Emits ``target[index] -= x * y``."""
    store_entry(e, target, index, e.op("sub", None, target.at(index), e.op("mul", None, x, y)))


def _cholesky(e: Any, p: Any, x: LargeArray) -> LargeArray:
    """Right-looking Cholesky factorisation, on L' so that the innermost loops run along contiguous rows."""
    if len(x.shape) != 2:
        raise Unsupported("cholesky of a stack of large matrices")
    n, high = x.shape[0], copy_to_new(e, _transpose(x), x.is_vector)
    pivots = reserve_array(e, (n,), x.dtype, x.is_vector)

    def root(k: LaneValue) -> LaneValue:
        store_entry(e, pivots, [k], high.at([k, k]))
        found = e.op("sqrt", None, high.at([k, k]))
        store_entry(e, high, [k, k], found)
        return found

    def column(k: LaneValue) -> None:
        factor = e.op("div", None, constant(1, x.dtype), root(k))
        _for_later(e, k, n, lambda i: store_entry(e, high, [k, i], e.op("mul", None, high.at([k, i]), factor)))
        _for_later(e, k, n, lambda j: row(k, j))

    def row(k: LaneValue, j: LaneValue) -> None:
        scale = high.at([k, j])
        for_range(e, n, lambda i: _subtract_product(e, high, [j, i], scale, high.at([k, i])), j)

    if n > 1:
        for_range(e, n - 1, column)
    root(long_constant(n - 1))
    # as jax does: all entries are NaN if a pivot is not positive
    zero, no = constant(0, x.dtype), constant(False, bool)
    worse = lambda k, now: [e.op("or", None, now[0], e.op("le", None, pivots.at([k]), zero))]
    (failed,) = counted_loop(e, n, [e.w.as_vector(no) if x.is_vector else no], worse)

    def low(index: Sequence[LaneValue]) -> LaneValue:
        i, j = index
        found = e.w.select(e.op("lt", None, i, j), zero, high.at([j, i]))
        return e.w.select(failed, constant(np.nan, x.dtype), found)

    return copy_to_new(e, LargeArray(x.shape, x.dtype, x.is_vector, low), x.is_vector)


def _triangular_solve(e: Any, p: Any, a: LargeArray, b: LargeArray) -> LargeArray:
    """Triangular solve by rows: each unknown is subtracted from the remaining equations as soon as it is computed."""
    if len(a.shape) != 2:
        raise Unsupported("triangular_solve of a stack of large matrices")
    n, left = a.shape[0], p["left_side"]
    x = copy_to_new(e, b, a.is_vector or b.is_vector)
    transposed, lower = p["transpose_a"] == left, p["lower"] != p["transpose_a"]
    a = _transpose(materialise(e, a)) if transposed else materialise(e, a)
    forward = lower if left else not lower
    order = (lambda i: i) if forward else (lambda i: e.w.op("sub", long_constant(n - 1), i))
    columns = b.shape[1] if left else b.shape[0]
    place = lambda i, c: [i, c] if left else [c, i]

    def divide_row(step: LaneValue) -> None:
        k = order(step)
        if p["unit_diagonal"]:
            return
        pivot = a.at([k, k])
        for_range(e, columns, lambda c: store_entry(e, x, place(k, c), e.op("div", None, x.at(place(k, c)), pivot)))

    def eliminate(step: LaneValue, after: LaneValue) -> None:
        k, i = order(step), order(after)
        factor = a.at([i, k])
        for_range(e, columns, lambda c: _subtract_product(e, x, place(i, c), factor, x.at(place(k, c))))

    def solve_row(step: LaneValue) -> None:
        divide_row(step)
        _for_later(e, step, n, lambda after: eliminate(step, after))

    if n > 1:
        for_range(e, n - 1, solve_row)
    divide_row(long_constant(n - 1))
    return x


def _top_k(e: Any, p: Any, x: LargeArray) -> list[LargeArray]:
    """The k largest entries of an axis and their indices, by k passes; the first of equal entries comes first, NaN is largest.

    Value and index are packed into one integer key: all keys differ, and a pass takes the largest below the last one.
    """
    if len(x.shape) != 1 or x.dtype != np.float32:
        raise Unsupported("top_k but of one axis in single precision")
    x, n, count, w = materialise(e, x), x.shape[0], p["k"], e.w
    least, most = (constant(bound, LONG) for bound in (np.iinfo(LONG).min, np.iinfo(LONG).max))

    def key(index: Sequence[LaneValue]) -> LaneValue:
        bits = w.convert("bitcast", x.at(index), np.int32)
        sign = w.op("ashr", bits, constant(31, np.int32))
        ordered = w.op("xor", bits, w.op("and", sign, constant(0x7FFFFFFF, np.int32)))
        return w.op(
            "or",
            w.op("shl", convert_type(w, ordered, LONG), long_constant(32)),
            w.op("sub", long_constant(n - 1), *index),
        )

    keys = copy_to_new(e, LargeArray(x.shape, LONG, x.is_vector, key), x.is_vector)
    values, places = reserve_array(e, (count,), x.dtype, x.is_vector), reserve_array(e, (count,), np.int32, x.is_vector)
    start = lambda bound: w.as_vector(bound) if x.is_vector else bound

    def take_next(j: LaneValue, last: list[LaneValue]) -> list[LaneValue]:
        def better(i: LaneValue, best: list[LaneValue]) -> list[LaneValue]:
            y = keys.at([i])
            left = w.select(w.op("icmp slt", y, *last, dtype=bool), y, least)
            return [w.intrinsic("smax", *best, left)]

        (best,) = counted_loop(e, n, [start(least)], better)
        place = w.op("sub", long_constant(n - 1), w.op("and", best, long_constant(0xFFFFFFFF)))
        store_entry(e, values, [j], x.at([place]))
        store_entry(e, places, [j], convert_type(w, place, np.dtype(np.int32)))
        return [best]

    counted_loop(e, count, [start(most)], take_next)
    return [values, places]


RULES: dict[str, Callable] = {"cholesky": _cholesky, "triangular_solve": _triangular_solve, "top_k": _top_k}
