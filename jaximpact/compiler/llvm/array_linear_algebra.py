"""Rules for Cholesky factors, triangular solves and top_k of arrays in memory, as loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..scalar import Unsupported
from .arrays import LONG, Block, own, put, repeat, reserve_array, store_array, turns, whole
from .elementwise import convert_type
from .ir_writer import Number, constant


def _after(e: Any, i: Number, n: int, body: Callable[[Number], None]) -> None:
    """Emits ``body(k)`` for i < k < n, where i < n - 1."""
    turns(e, n, body, e.w.op("add", i, whole(1)))


def _transpose(x: Block) -> Block:
    """The transposed matrix."""
    return Block(x.shape[::-1], x.dtype, x.wide, lambda index: x.at(index[::-1]))


def _less(e: Any, target: Block, index: Sequence[Number], x: Number, y: Number) -> None:
    put(e, target, index, e.op("sub", None, target.at(index), e.op("mul", None, x, y)))


def _cholesky(e: Any, p: Any, x: Block) -> Block:
    """Right-looking Cholesky factorisation on rows of L', which are contiguous in memory."""
    if len(x.shape) != 2:
        raise Unsupported("cholesky of a stack of large matrices")
    n, high = x.shape[0], own(e, _transpose(x), x.wide)
    pivots = reserve_array(e, (n,), x.dtype, x.wide)

    def root(k: Number) -> Number:
        put(e, pivots, [k], high.at([k, k]))
        found = e.op("sqrt", None, high.at([k, k]))
        put(e, high, [k, k], found)
        return found

    def column(k: Number) -> None:
        factor = e.op("div", None, constant(1, x.dtype), root(k))
        _after(e, k, n, lambda i: put(e, high, [k, i], e.op("mul", None, high.at([k, i]), factor)))
        _after(e, k, n, lambda j: row(k, j))

    def row(k: Number, j: Number) -> None:
        scale = high.at([k, j])
        turns(e, n, lambda i: _less(e, high, [j, i], scale, high.at([k, i])), j)

    if n > 1:
        turns(e, n - 1, column)
    root(whole(n - 1))
    # as of LAPACK: no entry is a number if a pivot is not positive
    zero, no = constant(0, x.dtype), constant(False, bool)
    worse = lambda k, now: [e.op("or", None, now[0], e.op("le", None, pivots.at([k]), zero))]
    (failed,) = repeat(e, n, [e.w.wide(no) if x.wide else no], worse)

    def low(index: Sequence[Number]) -> Number:
        i, j = index
        found = e.w.select(e.op("lt", None, i, j), zero, high.at([j, i]))
        return e.w.select(failed, constant(np.nan, x.dtype), found)

    return own(e, Block(x.shape, x.dtype, x.wide, low), x.wide)


def _triangular_solve(e: Any, p: Any, a: Block, b: Block) -> Block:
    """Triangular solve by rows: each unknown, once known, is eliminated from all remaining rows."""
    if len(a.shape) != 2:
        raise Unsupported("triangular_solve of a stack of large matrices")
    n, left = a.shape[0], p["left_side"]
    x = own(e, b, a.wide or b.wide)
    transposed, lower = p["transpose_a"] == left, p["lower"] != p["transpose_a"]
    a = _transpose(store_array(e, a)) if transposed else store_array(e, a)
    forward = lower if left else not lower
    order = (lambda i: i) if forward else (lambda i: e.w.op("sub", whole(n - 1), i))
    columns = b.shape[1] if left else b.shape[0]
    place = lambda i, c: [i, c] if left else [c, i]

    def divide_row(step: Number) -> None:
        k = order(step)
        if p["unit_diagonal"]:
            return
        pivot = a.at([k, k])
        turns(e, columns, lambda c: put(e, x, place(k, c), e.op("div", None, x.at(place(k, c)), pivot)))

    def eliminate(step: Number, after: Number) -> None:
        k, i = order(step), order(after)
        factor = a.at([i, k])
        turns(e, columns, lambda c: _less(e, x, place(i, c), factor, x.at(place(k, c))))

    def turn(step: Number) -> None:
        divide_row(step)
        _after(e, step, n, lambda after: eliminate(step, after))

    if n > 1:
        turns(e, n - 1, turn)
    divide_row(whole(n - 1))
    return x


def _top_k(e: Any, p: Any, x: Block) -> list[Block]:
    """The k largest entries and their indices, the first of equal entries first; NaN counts as largest.

    Value and index are packed into one integer key, so that no two keys are equal.
    """
    if len(x.shape) != 1 or x.dtype != np.float32:
        raise Unsupported("top_k but of one axis in single precision")
    x, n, count, w = store_array(e, x), x.shape[0], p["k"], e.w
    least, most = (constant(bound, LONG) for bound in (np.iinfo(LONG).min, np.iinfo(LONG).max))

    def key(index: Sequence[Number]) -> Number:
        bits = w.convert("bitcast", x.at(index), np.int32)
        sign = w.op("ashr", bits, constant(31, np.int32))
        ordered = w.op("xor", bits, w.op("and", sign, constant(0x7FFFFFFF, np.int32)))
        return w.op("or", w.op("shl", convert_type(w, ordered, LONG), whole(32)), w.op("sub", whole(n - 1), *index))

    keys = own(e, Block(x.shape, LONG, x.wide, key), x.wide)
    values, places = reserve_array(e, (count,), x.dtype, x.wide), reserve_array(e, (count,), np.int32, x.wide)
    start = lambda bound: w.wide(bound) if x.wide else bound

    def turn(j: Number, last: list[Number]) -> list[Number]:
        def better(i: Number, best: list[Number]) -> list[Number]:
            y = keys.at([i])
            left = w.select(w.op("icmp slt", y, *last, dtype=bool), y, least)
            return [w.intrinsic("smax", *best, left)]

        (best,) = repeat(e, n, [start(least)], better)
        place = w.op("sub", whole(n - 1), w.op("and", best, whole(0xFFFFFFFF)))
        put(e, values, [j], x.at([place]))
        put(e, places, [j], convert_type(w, place, np.dtype(np.int32)))
        return [best]

    repeat(e, count, [start(most)], turn)
    return [values, places]


RULES: dict[str, Callable] = {"cholesky": _cholesky, "triangular_solve": _triangular_solve, "top_k": _top_k}
