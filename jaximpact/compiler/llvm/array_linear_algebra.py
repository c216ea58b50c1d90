"""Rules for Cholesky and LU factorisations, triangular solves, sort and top_k of large arrays, as loops over memory.

In all signatures ``e`` is the emitter, and ``p`` are the parameters of the equation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...jaxtools.jaxpr_types import Params
from ..scalar import Unsupported
from .arrays import (
    LargeArray,
    array_at,
    copy_array,
    copy_to_new,
    counted_loop,
    for_packs,
    for_range,
    long_constant,
    lower_factor,
    materialise,
    read,
    reserve_array,
    store_entry,
    transpose_into,
    with_axes,
)
from .elementwise import convert_type
from .ir_values import LONG, LaneValue, constant
from .packs import fold_pack

if TYPE_CHECKING:
    from .emitter import LLVMEmitter


def _for_later(e: LLVMEmitter, i: LaneValue, n: int, body: Callable[[LaneValue], None]) -> None:
    """Emits ``body(k)`` for k from i + 1 to n - 1; i must be < n - 1."""
    for_range(e, n, body, e.w.op("add", i, long_constant(1)))


def _transpose(x: LargeArray) -> LargeArray:
    """Returns a transposed view of a matrix."""
    return with_axes(x, (1, 0))


def _subtract_product(
    e: LLVMEmitter, target: LargeArray, index: Sequence[LaneValue], x: LaneValue, y: LaneValue
) -> None:
    """Emits ``target[index] -= x * y``."""
    store_entry(e, target, index, e.op("sub", None, target.at(index), e.op("mul", None, x, y)))


def _row_from(e: LLVMEmitter, n: int, first: LaneValue, body: Callable[[LaneValue, bool], None]) -> None:
    """Emits ``body(i, whole)`` for the entries of a row from number ``first`` to n - 1.

    If ``whole`` is true, the body handles the pack of entries that begins at entry i, else entry i alone. Packs occur
    in programs of a single lane only. They begin at multiples of their size,
    so that the first one may begin before ``first``.
    """
    done = n - n % e.pack if e.pack > 1 else 0
    if not done:
        for_range(e, n, lambda i: body(i, False), first)
        return
    w = e.w
    start = w.op("and", first, long_constant(-e.pack))
    begin, inside, after = (
        w.op("icmp slt", start, long_constant(done), dtype=bool),
        w.fresh_name("packs"),
        w.fresh_name("rest"),
    )
    w.branch(begin, inside, after)
    w.begin_block(inside)
    with w.scope(w.active):
        for_packs(e, done, lambda i: body(i, True), start)
        w.jump(after)
    w.begin_block(after)
    if done < n:
        for_range(e, n, lambda i: body(i, False), long_constant(done))


def _cholesky(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
    """Rule for the Cholesky factor: right-looking, computed as L' so that the innermost loops
    run along contiguous rows."""
    if len(x.shape) != 2:
        raise Unsupported("cholesky of a stack of large matrices")
    if e.pack > 1:
        return _cholesky_by_packs(e, x)
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


def _cholesky_by_packs(e: LLVMEmitter, x: LargeArray) -> LargeArray:
    """Cholesky factorisation for a single lane, computed as L' in blocks of rows;
    a block has as many rows as a pack has entries.

    A block is kept in registers while products of earlier rows are subtracted from it. The matrix is padded to a
    multiple of the block size, with ones on the diagonal.
    """
    w, n, size = e.w, x.shape[0], e.pack
    whole, zero, one = -(-n // size) * size, constant(0, x.dtype), constant(1, x.dtype)
    high = reserve_array(e, (whole, whole), x.dtype, False)
    transpose_into(e, high, x if x.pack_at else materialise(e, x), lower=True)
    for i in range(n, whole):
        for j in range(whole):
            for place in {(i, j), (j, i)}:
                store_entry(e, high, list(map(long_constant, place)), one if i == j else zero)
    pivots, factors = (reserve_array(e, (k,), x.dtype, False) for k in (whole, size))
    less = lambda z, a, b: w.op("fsub contract", z, w.op("fmul contract", a, b))
    later = lambda i, k: w.op("add", i, long_constant(k)) if k else i

    def updated(first: LaneValue, c: LaneValue) -> list[LaneValue]:
        """Returns the block of rows from row ``first`` on, in the columns of the pack from column c on, less the
        products of all earlier rows.

        The result has a pack for each row.
        """
        rows = [read(high, [later(first, r), c], True) for r in range(size)]

        def subtract(k: LaneValue, now: list[LaneValue]) -> list[LaneValue]:
            row = read(high, [k, c], True)
            return [less(z, high.at([k, later(first, r)]), row) for r, z in enumerate(now)]

        return _if_any(e, first, rows, lambda now: counted_loop(e, 0, now, subtract, end=first))

    def block(number: LaneValue) -> None:
        first = w.op("mul", number, long_constant(size))
        rows = updated(first, first)
        places = w.lane_indices(long_constant(0))
        for r in range(size):
            pivot = w.extract_lane(rows[r], r)
            store_entry(e, pivots, [later(first, r)], pivot)
            factor = w.op("fdiv", one, w.intrinsic("sqrt", pivot))
            store_entry(e, factors, [long_constant(r)], factor)
            row = w.op("fmul", rows[r], factor)
            for s in range(r + 1, size):
                rows[s] = less(rows[s], w.extract_lane(row, s), row)
            rows[r] = w.select(w.op("icmp sge", places, long_constant(r), dtype=bool), row, w.as_vector(zero))
            store_entry(e, high, [later(first, r), first], rows[r])

        def panel(c: LaneValue) -> None:
            some = updated(first, c)
            for r in range(size):
                some[r] = w.op("fmul", some[r], factors.at([long_constant(r)]))
                for s in range(r + 1, size):
                    some[s] = less(some[s], high.at([later(first, r), later(first, s)]), some[r])
                store_entry(e, high, [later(first, r), c], some[r])

        following = later(first, size)

        def panels(_: list[LaneValue]) -> list[LaneValue]:
            for_packs(e, whole, panel, following)
            return []

        _if_any(e, w.op("sub", long_constant(whole), following), [], panels)

    for_range(e, whole // size, block)
    worse = lambda k, now: [e.op("or", None, now[0], e.op("le", None, pivots.at([k]), zero))]
    (failed,) = counted_loop(e, n, [constant(False, bool)], worse)

    def mark(k: LaneValue) -> None:
        store_entry(e, high, [k, k], w.select(failed, constant(np.nan, x.dtype), high.at([k, k])))

    for_range(e, n, mark)  # solves divide by the diagonal
    return lower_factor(e, x.shape, high)


def _if_any(e: LLVMEmitter, count: LaneValue, start: list[LaneValue], body: Callable) -> list[LaneValue]:
    """Emits a branch that runs ``body(start)`` if ``count`` > 0; returns its values,
    or those of ``start`` if it does not run."""
    w = e.w
    before, inside, after = w.block, w.fresh_name("some"), w.fresh_name("none")
    w.branch(w.op("icmp sgt", count, long_constant(0), dtype=bool), inside, after)
    w.begin_block(inside)
    with w.scope(w.active):
        found = body(start)
        end = w.block
        w.jump(after)
    w.begin_block(after)
    return [w.phi(x.dtype, x.is_vector, [(y, before), (x, end)]) for x, y in zip(found, start, strict=True)]


def _triangular_solve(e: LLVMEmitter, p: Params, a: LargeArray, b: LargeArray) -> LargeArray:
    """Rule for a triangular solve by columns of the matrix: as soon as an unknown is computed, it is eliminated from
    all remaining equations."""
    if len(a.shape) != 2:
        raise Unsupported("triangular_solve of a stack of large matrices")
    n, left = a.shape[0], p["left_side"]
    x = copy_to_new(e, b, a.is_vector or b.is_vector)
    transposed, lower = p["transpose_a"] == left, p["lower"] != p["transpose_a"]
    if a.flipped is not None and p["lower"]:
        stored, transposed = a.flipped, not transposed
    else:
        stored = materialise(e, a)
    a = _transpose(stored) if transposed else stored
    forward = lower if left else not lower
    order = (lambda i: i) if forward else (lambda i: e.w.op("sub", long_constant(n - 1), i))
    columns = b.shape[1] if left else b.shape[0]
    place = lambda i, c: [i, c] if left else [c, i]

    if e.pack > 1 and columns == 1:
        return _triangular_solve_by_packs(e, a, stored, x, n, forward, p["unit_diagonal"])

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


def _triangular_solve_by_packs(
    e: LLVMEmitter, a: LargeArray, stored: LargeArray, x: LargeArray, n: int, forward: bool, unit: bool
) -> LargeArray:
    """Solves a triangular system for a single lane and one right side x, by packs along the rows of the ``stored``
    matrix, a or its transpose.

    Returns the solution; may overwrite the n entries of x. ``forward``: whether the first unknown is computed first;
    ``unit``: whether the diagonal of a is 1.
    """
    w, dtype, zero = e.w, x.dtype, constant(0, x.dtype)
    sides, found = array_at(e, x.pointer, (n,), dtype, False), reserve_array(e, (n,), dtype, False)
    order = (lambda i: i) if forward else (lambda i: w.op("sub", long_constant(n - 1), i))
    done = n - n % e.pack

    def put(k: LaneValue, y: LaneValue) -> LaneValue:
        y = y if unit else e.op("div", None, y, a.at([k, k]))
        store_entry(e, found, [k], y)
        return y

    def by_row(step: LaneValue) -> None:
        k = order(step)

        def plus(now: LaneValue, i: LaneValue, whole: bool) -> LaneValue:
            # only unknowns that are already computed
            counts = w.op("icmp slt" if forward else "icmp sgt", w.lane_indices(i) if whole else i, k, dtype=bool)
            factor = w.select(counts, read(stored, [k, i], whole), zero)
            return w.op("fadd contract", now, w.op("fmul contract", factor, read(found, [i], whole)))

        total, rest = w.as_vector(zero), zero
        if done:
            place = lambda i: w.op("mul", i, long_constant(e.pack))
            (total,) = counted_loop(e, done // e.pack, [total], lambda i, z: [plus(z[0], place(i), True)])
            total = fold_pack(w, lambda x, y: w.op("fadd", x, y), total)
        if done < n:
            (rest,) = counted_loop(e, n, [rest], lambda i, z: [plus(z[0], i, False)], long_constant(done))
        put(k, w.op("fsub", sides.at([k]), w.op("fadd", total, rest) if done else rest))

    def by_column(step: LaneValue) -> None:
        k = order(step)
        known = put(k, sides.at([k]))

        def subtract(i: LaneValue, whole: bool) -> None:
            product = e.op_of("mul", None, [known, read(stored, [k, i], whole)])
            store_entry(e, sides, [i], e.op_of("sub", None, [read(sides, [i], whole), product]))

        # right sides of unknowns already computed are not read again
        _row_from(e, n, k if forward else long_constant(0), subtract)

    if a is stored:
        # unknowns not yet computed count as zeros
        nothing = LargeArray((n,), dtype, False, lambda _: zero, pack_at=lambda _: w.as_vector(zero))
        copy_array(e, found, nothing, None)
        for_range(e, n, by_row)
    else:
        for_range(e, n, by_column)
    return array_at(e, found.pointer, x.shape, dtype, False)


def _lu(e: LLVMEmitter, p: Params, x: LargeArray) -> list[LargeArray]:
    """Rule for LU with partial pivoting: as soon as a pivot is found, multiples of its row are
    subtracted from all rows below it.

    Returns the factors in one matrix, the pivot rows, and the permutation of the rows.
    """
    if len(x.shape) != 2:
        raise Unsupported("lu of a stack of large matrices")
    (n, columns), w, a = x.shape, e.w, copy_to_new(e, x, x.is_vector)
    count = min(n, columns)
    number = lambda size: reserve_array(e, (size,), np.dtype(np.int32), x.is_vector)
    pivots, order, narrow = number(count), number(n), lambda i: convert_type(w, i, np.dtype(np.int32))
    vector = w.as_vector if x.is_vector else lambda z: z
    for_range(e, n, lambda i: store_entry(e, order, [i], vector(narrow(i))))

    def largest(k: LaneValue) -> LaneValue:
        """Returns the number of the row, from row k on, whose entry in column k is largest in magnitude;
        the first of equal ones."""

        def better(i: LaneValue, best: list[LaneValue]) -> list[LaneValue]:
            size = e.op("abs", None, a.at([i, k]))
            larger = e.op("gt", None, size, best[0])
            return [w.select(larger, size, best[0]), w.select(larger, vector(i), best[1])]

        start = [e.op("abs", None, a.at([k, k])), vector(k)]
        return counted_loop(e, n, start, better, k)[1]

    def exchange(target: LargeArray, one: list[LaneValue], other: list[LaneValue], whole: bool = False) -> None:
        above, below = read(target, one, whole), read(target, other, whole)
        store_entry(e, target, one, below)
        store_entry(e, target, other, above)

    def pivot(k: LaneValue) -> LaneValue:
        where = largest(k)
        store_entry(e, pivots, [k], narrow(where))
        exchange(order, [k], [where])
        _row_from(e, columns, long_constant(0), lambda j, whole: exchange(a, [k, j], [where, j], whole))
        found, one = a.at([k, k]), constant(1, x.dtype)
        # in a column of zeros the divisor is 1, and the multipliers are 0
        return w.select(e.op("eq", None, found, constant(0, x.dtype)), vector(one), found)

    def column(k: LaneValue) -> None:
        divisor = pivot(k)

        def row(i: LaneValue) -> None:
            factor = e.op("div", None, a.at([i, k]), divisor)

            def reduce(j: LaneValue, whole: bool) -> None:
                product = e.op_of("mul", None, [factor, read(a, [k, j], whole)])
                found = e.op_of("sub", None, [read(a, [i, j], whole), product])
                # entries before the diagonal are factors already computed
                after = w.op("icmp sgt", w.lane_indices(j) if whole else j, k, dtype=bool)
                store_entry(e, a, [i, j], w.select(after, found, read(a, [i, j], whole)))

            _row_from(e, columns, k, reduce)
            store_entry(e, a, [i, k], factor)

        _for_later(e, k, n, row)

    if n > 1:
        for_range(e, min(n - 1, count), column)
    if count == n:
        pivot(long_constant(n - 1))
    return [a, pivots, order]


def _top_k(e: LLVMEmitter, p: Params, x: LargeArray) -> list[LargeArray]:
    """Rule for the k largest entries of an axis and their indices, by k passes; the first of equal entries comes first,
    NaN is largest.

    An integer key holds the value and the index of an entry: all keys differ, and a pass finds the largest key below
    that of the previous pass.
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

    if e.pack > 1:
        return _top_k_by_packs(e, x, key, count)
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


def _top_k_by_packs(e: LLVMEmitter, x: LargeArray, key: Callable, count: int) -> list[LargeArray]:
    """Computes what `_top_k` does, for a single lane, by passes over packs of keys;
    the last pack is padded with the smallest key.

    ``key``: function from an index to the key of the entry; ``count``: number of entries to find.
    """
    w, n = e.w, x.shape[0]
    least, most = (constant(bound, LONG) for bound in (np.iinfo(LONG).min, np.iinfo(LONG).max))
    size = -(-n // e.pack) * e.pack
    keys = reserve_array(e, (size,), LONG, False)
    for_range(e, n, lambda i: store_entry(e, keys, [i], key([i])))
    if n < size:
        for_range(e, size, lambda i: store_entry(e, keys, [i], least), long_constant(n))
    values, places = reserve_array(e, (count,), x.dtype, False), reserve_array(e, (count,), np.int32, False)
    larger = lambda x, y: w.intrinsic("smax", x, y)

    def take_next(j: LaneValue, last: list[LaneValue]) -> list[LaneValue]:
        def better(i: LaneValue, best: list[LaneValue]) -> list[LaneValue]:
            y = read(keys, [w.op("mul", i, long_constant(e.pack))], True)
            return [larger(best[0], w.select(w.op("icmp slt", y, *last, dtype=bool), y, least))]

        (found,) = counted_loop(e, size // e.pack, [w.as_vector(least)], better)
        best = fold_pack(w, larger, found)
        place = w.op("sub", long_constant(n - 1), w.op("and", best, long_constant(0xFFFFFFFF)))
        store_entry(e, values, [j], x.at([place]))
        store_entry(e, places, [j], convert_type(w, place, np.dtype(np.int32)))
        return [best]

    counted_loop(e, count, [most], take_next)
    return [values, places]


def _sort(e: LLVMEmitter, p: Params, *arrays: LargeArray) -> list[LargeArray]:
    """Rule for a stable sort of one axis by one key, NaN last: the new place of an entry is the number of
    entries that come before it."""
    key, w = arrays[0], e.w
    if len(key.shape) != 1 or p["num_keys"] != 1:
        raise Unsupported("sort of large arrays but of one axis by one key")
    stored = [materialise(e, x) for x in arrays]
    (n,), keys, is_vector = key.shape, stored[0], any(x.is_vector for x in arrays)
    targets = [reserve_array(e, x.shape, x.dtype, is_vector) for x in arrays]
    done = n - n % e.pack if e.pack > 1 and keys.pack_at else 0

    def place(i: LaneValue) -> None:
        one = keys.at([i])

        def count(j: LaneValue, now: list[LaneValue], whole: bool) -> list[LaneValue]:
            y = read(keys, [j], whole)
            less = _comes_before(e, y, one, w.lane_indices(j) if whole else j, i)
            return [w.op("add", now[0], convert_type(w, less, LONG))]

        zero = long_constant(0)
        total, rest = w.as_vector(zero), w.as_vector(zero) if is_vector else zero
        if done:
            along = lambda k: w.op("mul", k, long_constant(e.pack))
            (total,) = counted_loop(e, done // e.pack, [total], lambda k, now: count(along(k), now, True))
        if done < n:
            (rest,) = counted_loop(e, n, [rest], lambda j, now: count(j, now, False), long_constant(done))
        where = w.op("add", fold_pack(w, lambda x, y: w.op("add", x, y), total), rest) if done else rest
        for target, x in zip(targets, stored, strict=True):
            store_entry(e, target, [where], x.at([i]))

    for_range(e, n, place)
    return targets


def _comes_before(e: LLVMEmitter, y: LaneValue, one: LaneValue, here: LaneValue, there: LaneValue) -> LaneValue:
    """Emits the test whether the entry y, at the place ``here``, comes before the entry ``one``, at the place
    ``there``, in the sorted order."""
    both = lambda x, y: e.op_of("and", None, [x, y])
    either = lambda x, y: e.op_of("or", None, [x, y])
    less, same = e.op_of("lt", None, [y, one]), e.op_of("eq", None, [y, one])
    if y.dtype.kind == "f":
        missing, other = e.op_of("ne", None, [one, one]), e.op_of("ne", None, [y, y])
        less = either(less, both(missing, e.op_of("not", None, [other])))
        same = either(same, both(missing, other))
    return either(less, both(same, e.w.op("icmp slt", here, there, dtype=bool)))


RULES: dict[str, Callable] = {
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "lu": _lu,
    "sort": _sort,
    "top_k": _top_k,
}
