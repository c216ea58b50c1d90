"""Products and reductions of large arrays of a single lane, in loops over packs:
vectors of consecutive entries (`packs`).

In all signatures ``e`` is the emitter; results are written into the array ``target``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..limits import MAX_COLUMNS_BY_SHUFFLES, PARALLEL_SUMS
from .arrays import (
    LargeArray,
    array_at,
    copy_to_new,
    counted_loop,
    embed_constant,
    flat_index,
    flat_view,
    for_each_index,
    for_each_pack,
    for_packs,
    for_range,
    has_flat_view,
    long_constant,
    materialise,
    read,
    reserve_array,
    store_entry,
    with_axes,
)
from .elementwise import convert_type
from .ir_values import LONG, LaneValue, constant, memory_dtype
from .ir_writer import Writer
from .packs import PackEntry, can_permute, fold_pack, pack_of, permute, shuffle

if TYPE_CHECKING:
    from .emitter import LLVMEmitter

Index = list[LaneValue]


def product_by_packs(
    e: LLVMEmitter, x: LargeArray, y: LargeArray, target: LargeArray, batch: int, rows: int, inner: Sequence[int]
) -> LargeArray:
    """Emits the product of x (batch, rows, inner) and y (batch, inner, columns), summed over inner; returns it,
    (batch, rows, columns).

    Each of these names stands for a group of axes: ``batch`` and ``rows`` are the numbers of axes in their groups,
    ``inner`` has the sizes of the axes that are summed over. Packs lie along the last axis of the columns or of the
    rows, which computes several sums at once, or else along the last inner axis.
    """
    split, terms = batch + rows, len(inner)
    columns = len(target.shape) - split
    if columns and y.pack_at is None and y.source and rows and x.shape[split - 1] > e.pack <= target.shape[-1]:
        y = materialise(e, y)  # to be read many times
    turned = with_axes(x, [*range(batch), *range(split, split + terms), *range(batch, split)]) if rows else x
    if columns and y.pack_at and target.shape[-1] >= e.pack:
        _sums_along(e, x, y, target, (batch, split), inner)
    elif rows and turned.pack_at and x.shape[split - 1] >= e.pack:
        order = [*range(batch), *range(split, len(target.shape)), *range(batch, split)]
        other = with_axes(y, [*range(batch), *range(batch + terms, len(y.shape)), *range(batch, batch + terms)])
        # the product of the transposed operands
        found = (
            target
            if math.prod(target.shape[split:]) == 1
            else reserve_array(e, [target.shape[i] for i in order], x.dtype, False)
        )
        of_rows = array_at(e, found.pointer, [target.shape[i] for i in order], x.dtype, False)
        _sums_along(e, other, turned, of_rows, (batch, batch + columns), inner)
        return target if found is target else with_axes(found, sorted(range(len(order)), key=lambda i: order[i]))
    else:
        _sums_of_packs(e, x, y, target, (batch, split), inner)
    return target


def _sums_along(
    e: LLVMEmitter, x: LargeArray, y: LargeArray, target: LargeArray, axes: tuple[int, int], inner: Sequence[int]
) -> None:
    """Emits the product of x and y as `product_by_packs`, with a pack of sums along the last axis of y:
    entries of x times packs of y.

    ``axes``: number of batch axes, and number of batch axes and row axes together.
    """
    (batch, split), w, shape = axes, e.w, target.shape
    zero, n = constant(0, x.dtype), shape[-1]
    row = split - 1 if split > batch else None
    count = 1 if row is None else max(k for k in range(1, PARALLEL_SUMS // 2 + 1) if shape[row] % k == 0)
    short = [m // count if i == row else m for i, m in enumerate(shape[:-1])]

    def body(index: Index, j: LaneValue, whole: int) -> None:
        """Emits the entries of several rows of the product, in the columns of ``whole`` packs from column j on, or in
        column j alone if it is 0."""
        lines = [[_several(e, i, count, k) if a == row else i for a, i in enumerate(index)] for k in range(count)]
        places = [w.op("add", j, long_constant(k * e.pack)) if k else j for k in range(max(whole, 1))]

        def sums(over: Index, now: list[LaneValue]) -> list[LaneValue]:
            if len(over) < len(inner):
                return counted_loop(e, inner[len(over)], now, lambda i, now: sums([*over, i], now))
            others = [read(y, [*index[:batch], *over, *index[split:], k], whole > 0) for k in places]
            factors = [(x.at([*line[:split], *over]), other) for line in lines for other in others]
            return [
                w.op("fadd contract", z, w.op("fmul contract", *pair)) for z, pair in zip(now, factors, strict=True)
            ]

        found = sums([], [w.as_vector(zero) if whole else zero] * (count * len(places)))
        for z, (line, k) in zip(found, ((line, k) for line in lines for k in places), strict=True):
            store_entry(e, target, [*line, k], z)

    def along(index: Index) -> None:
        twice, done = n - n % (2 * e.pack), n - n % e.pack
        if twice:
            for_packs(e, twice, lambda j: body(index, j, 2), step=2 * e.pack)
        if twice < done:
            body(index, long_constant(twice), 1)
        if done < n:
            for_range(e, n, lambda j: body(index, j, 0), long_constant(done))

    if short:
        for_each_index(e, short, along)
    else:
        along([])


def _several(e: LLVMEmitter, i: LaneValue, count: int, k: int) -> LaneValue:
    """Returns the number i * count + k of a row: the k-th one of the ``count`` rows that iteration i
    of a loop computes together."""
    place = e.w.op("mul", i, long_constant(count)) if count > 1 else i
    return e.w.op("add", place, long_constant(k)) if k else place


def _sums_of_packs(
    e: LLVMEmitter, x: LargeArray, y: LargeArray, target: LargeArray, axes: tuple[int, int], inner: Sequence[int]
) -> None:
    """Emits the same product as `_sums_along`, one sum at a time, by packs of terms along the last inner axis if both
    operands have such packs."""
    (batch, split), w = axes, e.w
    columns = len(target.shape) - split
    last = [*range(batch), *range(batch + len(inner), batch + len(inner) + columns), *range(batch, batch + len(inner))]
    other = with_axes(y, last)
    if not inner:  # each entry is a single product
        product = lambda index: w.op("fmul", x.at(index[:split]), other.at([*index[:batch], *index[split:]]))
        for_each_index(e, target.shape, lambda index: store_entry(e, target, index, product(index)))
        return
    n = inner[-1]
    done = n - n % e.pack if x.pack_at and other.pack_at else 0
    zero = constant(0, x.dtype)

    def body(index: Index) -> None:
        first, second = [*index[:split]], [*index[:batch], *index[split:]]

        def term(over: Index, whole: bool, now: LaneValue) -> LaneValue:
            a, b = read(x, [*first, *over], whole), read(other, [*second, *over], whole)
            return w.op("fadd contract", now, w.op("fmul contract", a, b))

        def sums(over: Index, now: list[LaneValue]) -> list[LaneValue]:
            if len(over) < len(inner) - 1:
                return counted_loop(e, inner[len(over)], now, lambda i, now: sums([*over, i], now))
            total, rest = now
            if done:
                step = lambda i, z: [term([*over, w.op("mul", i, long_constant(e.pack))], True, *z)]
                (total,) = counted_loop(e, done // e.pack, [total], step)
            if done < n:
                (rest,) = counted_loop(e, n, [rest], lambda i, z: [term([*over, i], False, *z)], long_constant(done))
            return [total, rest]

        total, rest = sums([], [w.as_vector(zero), zero])
        store_entry(e, target, index, w.op("fadd", fold_pack(w, _adder(w), total), rest) if done else rest)

    for_each_index(e, target.shape, body) if target.shape else body([])


def _adder(w: Writer) -> Callable[[LaneValue, LaneValue], LaneValue]:
    return lambda x, y: w.op("fadd", x, y)


def reduce_by_packs(
    e: LLVMEmitter,
    name: str,
    x: LargeArray,
    target: LargeArray,
    kept: Sequence[int],
    axes: Sequence[int],
    first: LaneValue,
) -> LargeArray:
    """Emits the reduction of x over ``axes`` by the primitive ``name`` into ``target``,
    by packs along the last axis of x; returns ``target``.

    ``kept``: the axes of x that are not reduced; ``first``: value that every reduction starts from.
    """
    w, n, last = e.w, x.shape[-1], len(x.shape) - 1
    combine = lambda a, b: e.op_of(name, None, [a, b])
    done = n - n % e.pack if x.pack_at else 0
    others = [a for a in axes if a != last]
    if list(axes) == [last] and n <= e.pack and target.size >= e.pack and memory_dtype(x.dtype).itemsize in (4, 8):
        return _sums_of_few(e, combine, x, target, n, first)

    def over(where: dict, now: list[LaneValue], body: Callable, depth: int = 0) -> list[LaneValue]:
        """Emits ``now = body(where, now)`` in loops over all reduced axes but the last axis of x;
        ``where`` maps axes to indices.

        ``depth``: number of these axes that have a loop already.
        """
        if depth == len(others):
            return body(where, now)
        axis = others[depth]
        return counted_loop(e, x.shape[axis], now, lambda i, now: over(where | {axis: i}, now, body, depth + 1))

    entry = lambda where, whole: read(x, [where[i] for i in range(len(x.shape))], whole)
    if last in kept:

        def side_by_side(index: Index, whole: bool) -> None:
            where = dict(zip(kept, index, strict=True))
            start = w.as_vector(first) if whole else first
            (found,) = over(where, [start], lambda where, now: [combine(now[0], entry(where, whole))])
            store_entry(e, target, index, found)

        def along(index: Index) -> None:
            if done:
                for_packs(e, done, lambda j: side_by_side([*index, j], True))
            if done < n:
                for_range(e, n, lambda j: side_by_side([*index, j], False), long_constant(done))

        lead = target.shape[:-1]
        for_each_index(e, lead, along) if lead else along([])
        return target

    def within(index: Index) -> None:
        def row(where: dict, now: list[LaneValue]) -> list[LaneValue]:
            total, rest = now
            if done:
                place = lambda i: where | {last: w.op("mul", i, long_constant(e.pack))}
                (total,) = counted_loop(e, done // e.pack, [total], lambda i, z: [combine(z[0], entry(place(i), True))])
            if done < n:
                step = lambda i, z: [combine(z[0], entry(where | {last: i}, False))]
                (rest,) = counted_loop(e, n, [rest], step, long_constant(done))
            return [total, rest]

        total, rest = over(dict(zip(kept, index, strict=True)), [w.as_vector(first), first], row)
        store_entry(e, target, index, combine(fold_pack(w, combine, total), rest) if done else rest)

    for_each_index(e, target.shape, within) if target.shape else within([])
    return target


def _sums_of_few(
    e: LLVMEmitter, combine: Callable, x: LargeArray, target: LargeArray, n: int, first: LaneValue
) -> LargeArray:
    """Emits the reduction by ``combine`` of an array along its last axis, if this has few entries n;
    a pack holds consecutive results.

    ``first``: value that every reduction starts from. Returns ``target``.
    """
    shuffled = n <= MAX_COLUMNS_BY_SHUFFLES and has_flat_view(x) and flat_view(e, x).pack_at is not None
    w, entries, results = e.w, flat_view(e, x if shuffled else materialise(e, x)), flat_view(e, target)

    def columns(i: LaneValue, whole: bool) -> list[LaneValue]:
        """Packs of the first, second, ... entries of the rows from row i on, or its entries alone."""
        place = w.op("mul", w.lane_indices(i) if whole and not shuffled else i, long_constant(n))
        several = lambda k: w.op("add", place, long_constant(k)) if k else place
        if not (whole and shuffled):
            return [entries.at([several(k)]) for k in range(n)]
        rows = [w.as_vector(read(entries, [several(k * e.pack)], True)) for k in range(n)]
        picked = [[divmod(k + n * j, e.pack) for j in range(e.pack)] for k in range(n)]
        return [pack_of(w, [PackEntry(rows[m], j) for m, j in places]) for places in picked]

    def body(index: Index, whole: bool) -> None:
        now = w.as_vector(first) if whole else first
        for entry in columns(index[0], whole):
            now = combine(now, entry)
        store_entry(e, results, index, now)

    for_each_pack(e, results.shape, True, body)
    return target


def pick_entries(e: LLVMEmitter, x: LargeArray, table: np.ndarray, passing: bool) -> LargeArray:
    """Returns entries of a stored array of a single lane, in the shape of ``table``, which holds their positions in C
    order; a new array in memory, or with ``passing`` a lazy one.
    """
    places, source = embed_constant(e, table.ravel()), flat_view(e, x)
    whole = memory_dtype(x.dtype).itemsize in (4, 8)
    # from registers: a gather takes 13 cycles for eight numbers
    permutes = can_permute(e.w, x.dtype) and x.size in range(0, 4 * e.pack + 1, e.pack)
    packs = [read(source, [long_constant(i)], True) for i in range(0, x.size, e.pack)] if permutes else []

    def pick(index: Sequence[LaneValue], pack: bool = False) -> LaneValue:
        place = convert_type(e.w, read(places, index, pack), LONG)
        return permute(e.w, packs, place) if packs and pack else source.at([place])

    pick_pack = partial(pick, pack=True)
    picked = LargeArray((table.size,), x.dtype, False, pick, pack_at=pick_pack if whole else None)
    if table.ndim > 1:
        in_rows = lambda at: lambda index: at([flat_index(e, table.shape, index)])
        packs_of_rows = in_rows(pick_pack) if whole else None
        picked = LargeArray(table.shape, x.dtype, False, in_rows(pick), pack_at=packs_of_rows, in_line=picked)
    return picked if passing else copy_to_new(e, picked, False)


def arg_extreme(e: LLVMEmitter, better: str, x: LargeArray, axis: int, dtype: np.dtype) -> LargeArray:
    """Emits argmax or argmin along an axis: the index of the entry that is best by the comparison ``better``,
    "gt" or "lt".

    The first of equal entries is best; NaN is better than all other numbers. ``dtype``: that of the result.
    """
    w, n = e.w, x.shape[axis]
    target = reserve_array(e, [m for i, m in enumerate(x.shape) if i != axis], dtype, x.is_vector)
    done = n - n % e.pack if e.pack > 1 and x.pack_at and axis == len(x.shape) - 1 else 0

    def choose(now: Sequence[LaneValue], other: Sequence[LaneValue], ties: bool = False) -> list[LaneValue]:
        (best, place), (y, i) = now, other
        lost = e.op_of("and", None, [e.op_of("ne", None, [y, y]), e.op_of("eq", None, [best, best])])
        take = e.op_of("or", None, [e.op_of(better, None, [y, best]), lost])
        if ties:
            neither = e.op_of("or", None, [e.op_of(better, None, [best, y]), e.op_of("eq", None, [y, y])])
            same = e.op_of("or", None, [e.op_of("eq", None, [y, best]), e.op_of("not", None, [neither])])
            take = e.op_of("or", None, [take, e.op_of("and", None, [same, w.op("icmp slt", i, place, dtype=bool)])])
        return [w.select(take, y, best), w.select(take, i, place)]

    def body(index: Index) -> None:
        at = lambda i, whole: read(x, [*index[:axis], i, *index[axis:]], whole)
        vector = w.as_vector if x.is_vector else lambda z: z
        if done:
            start = [at(long_constant(0), True), w.lane_indices(long_constant(0))]
            place = lambda i: w.op("mul", i, long_constant(e.pack))
            turn = lambda i, now: choose(now, [at(place(i), True), w.lane_indices(place(i))])
            now = counted_loop(e, done // e.pack, start, turn, long_constant(1)) if done > e.pack else start
            step = e.pack // 2
            while step:
                order = [(i + step) % e.pack for i in range(e.pack)]
                now = choose(now, [shuffle(w, y, y, order) for y in now], ties=True)
                step //= 2
            now = [w.extract_lane(y, 0) for y in now]
        else:
            now = [at(long_constant(0), False), vector(long_constant(0))]
        if (first := max(done, 1)) < n:
            turn = lambda i, now: choose(now, [at(i, False), vector(i)])
            now = counted_loop(e, n, now, turn, long_constant(first))
        store_entry(e, target, index, convert_type(w, now[1], dtype))

    for_each_index(e, target.shape, body) if target.shape else body([])
    return target
