"""Rules for primitives on large arrays: functions (emitter ``e``, parameters ``p`` of the
equation, operands) -> results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...jaxtools.jaxpr_types import Equation, Params
from ...jaxtools.known_arrays import FOLDED, MOVED, gather_known
from ..limits import PARALLEL_SUMS
from ..scalar import Unsupported, Value
from ..scalar.cost import is_large
from ..scalar.indexing import replaces_entries
from ..scalar.interpreter import RULES as SCALAR_RULES
from ..scalar.reductions import arrange_axes
from ..scalar.values import split_constant
from .array_joining import RULES as JOINING_RULES
from .array_joining import add_index, largest_value, smallest_value, write_at
from .array_linear_algebra import RULES as MATRIX_RULES
from .array_packs import arg_extreme, pick_entries, product_by_packs, reduce_by_packs
from .arrays import (
    LargeArray,
    array_at,
    as_large_array,
    as_scalars,
    copy_array,
    copy_to_new,
    counted_loop,
    flat_index,
    flat_view,
    for_each_index,
    for_each_pack,
    has_flat_view,
    known_entries,
    long_constant,
    materialise,
    one_entry,
    packs_at,
    read,
    reserve_array,
    scalars_if_small,
    store_entry,
    with_axes,
)
from .elementwise import RULES as ELEMENTWISE
from .elementwise import convert_type
from .ir_values import LONG, LaneValue, constant

if TYPE_CHECKING:
    from ..scalar.interpreter import ScalarInterpreter
    from .emitter import LLVMEmitter

# data movement: lazy arrays, for which nothing is emitted


def _broadcast(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
    axes = list(zip(p["broadcast_dimensions"], x.shape, strict=True))
    pick = lambda index: [index[axis] if n != 1 else long_constant(0) for axis, n in axes]
    at = lambda index: x.at(pick(index))
    # along the last axis either as they lie, or the same entry again and again
    moves = bool(axes) and axes[-1][0] == len(p["shape"]) - 1 and axes[-1][1] != 1
    same = (lambda index: e.w.as_vector(at(index))) if e.pack > 1 else None
    in_line = None
    if x.size == 1 and len(p["shape"]) > 1:
        in_line = _broadcast(e, {"shape": (math.prod(p["shape"]),), "broadcast_dimensions": ()}, one_entry(x))
    pack_at = packs_at(x, pick) if moves else same
    return LargeArray(p["shape"], x.dtype, x.is_vector, at, pack_at=pack_at, in_line=in_line)


def _transpose(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
    return with_axes(x, p["permutation"])


def _slice(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
    first, steps = p["start_indices"], p["strides"] or (1,) * len(x.shape)
    shape = tuple(len(range(a, b, s)) for a, b, s in zip(first, p["limit_indices"], steps, strict=True))
    step = lambda i, a, s: flat_index(e, (1, s), [i, long_constant(a)])
    pick = lambda index: [step(*y) for y in zip(index, first, steps, strict=True)]
    pack_at = packs_at(x, pick) if steps[-1] == 1 else None
    return LargeArray(shape, x.dtype, x.is_vector, lambda index: x.at(pick(index)), pack_at=pack_at)


def _split(e: LLVMEmitter, p: Params, x: LargeArray) -> list[LargeArray]:
    axis, ends = p["axis"], np.cumsum(p["sizes"])
    bounds = [([0] * len(x.shape), list(x.shape)) for _ in ends]
    for (low, high), end, size in zip(bounds, ends, p["sizes"], strict=True):
        low[axis], high[axis] = int(end) - size, int(end)
    return [_slice(e, {"start_indices": low, "limit_indices": high, "strides": None}, x) for low, high in bounds]


def _reverse(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
    back = lambda axis, i: e.w.op("sub", long_constant(x.shape[axis] - 1), i) if axis in p["dimensions"] else i
    return LargeArray(x.shape, x.dtype, x.is_vector, lambda index: x.at([back(*y) for y in enumerate(index)]))


def _reshape_rule(shape: Callable) -> Callable:
    def rule(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
        x = materialise(e, x)
        return array_at(e, x.pointer, shape(p, x), x.dtype, x.is_vector)

    return rule


def _squeezed_shape(p: Params, x: LargeArray) -> list[int]:
    return [n for axis, n in enumerate(x.shape) if axis not in p["dimensions"]]


def _iota(e: LLVMEmitter, p: Params) -> LargeArray:
    kept = np.dtype(p["dtype"])
    number = lambda index: convert_type(e.w, index[p["dimension"]], kept)

    def pack_at(index: Sequence[LaneValue]) -> LaneValue:
        along = index[p["dimension"]]
        moves = p["dimension"] == len(p["shape"]) - 1
        return convert_type(e.w, e.w.lane_indices(along) if moves else e.w.as_vector(along), kept)

    return LargeArray(tuple(p["shape"]), kept, False, number, pack_at=pack_at if e.pack > 1 else None)


def _pad(e: LLVMEmitter, p: Params, x: LargeArray, value: LargeArray) -> LargeArray:
    if any(low < 0 or high < 0 or inside for low, high, inside in p["padding_config"]):
        raise Unsupported("pad of a large array")
    shape = [n + low + high for n, (low, high, _) in zip(x.shape, p["padding_config"], strict=True)]
    target = reserve_array(e, shape, x.dtype, x.is_vector or value.is_vector)
    copy_array(e, target, LargeArray(tuple(shape), x.dtype, value.is_vector, lambda index: value.at([])), None)
    write_at(e, target, x, [long_constant(low) for low, _, _ in p["padding_config"]])
    return target


def _clamped_start(e: LLVMEmitter, x: LargeArray, size: Sequence[int], starts: Sequence[LargeArray]) -> list[LaneValue]:
    """Emits the start indices of a dynamic slice of the given size, clamped so that the slice lies within x."""
    found = []
    for n, k, start in zip(x.shape, size, starts, strict=True):
        i = convert_type(e.w, start.at([]), LONG)
        found.append(e.w.intrinsic("smax", e.w.intrinsic("smin", i, long_constant(n - k)), long_constant(0)))
    return found


def _dynamic_slice(e: LLVMEmitter, p: Params, x: LargeArray, *starts: LargeArray) -> LargeArray:
    corner, x = _clamped_start(e, x, p["slice_sizes"], starts), materialise(e, x)
    is_vector = x.is_vector or any(i.is_vector for i in corner)
    at = lambda index: x.at([add_index(e, a, i) for a, i in zip(corner, index, strict=True)])
    return copy_to_new(e, LargeArray(tuple(p["slice_sizes"]), x.dtype, is_vector, at), is_vector)


def _dynamic_update_slice(e: LLVMEmitter, p: Params, x: LargeArray, new: LargeArray, *starts: LargeArray) -> LargeArray:
    corner = _clamped_start(e, x, new.shape, starts)
    target = copy_to_new(e, x, x.is_vector or new.is_vector or any(i.is_vector for i in corner))
    write_at(e, target, new, corner)
    return target


def _window_index(
    e: LLVMEmitter, x: LargeArray, sizes: Sequence[int], axes: Sequence[int], indices: LargeArray, batched: tuple,
    kept: tuple, index: Sequence[LaneValue],
) -> tuple[list, Any]:  # fmt: skip
    """Returns the index in x that belongs to an entry of a gather's result or a scatter's updates,
    and whether its window lies within x.

    The second is a mask, or None if the window always lies within x. The window's start is clamped,
    so that the index is valid in any case.

    Args:
        sizes: sizes of the window along the axes of x.
        axes: axis of x for each entry of an index vector.
        indices: index vectors, along the last axis.
        batched: pair of lists: batch axes of x, and of ``indices``.
        kept: pair of lists: axes of x within the window, and those of the result or updates.
        index: index of the entry in the result or updates.
    """
    batch = [i for k, i in enumerate(index) if k not in kept[1]]
    place, there = [long_constant(0)] * len(x.shape), None
    for k, axis in enumerate(axes):
        i = convert_type(e.w, indices.at([*batch, long_constant(k)]), LONG)
        place[axis] = e.w.intrinsic(
            "smax", e.w.intrinsic("smin", i, long_constant(x.shape[axis] - sizes[axis])), long_constant(0)
        )
        there = e.w.conjunction(e.w.op("icmp eq", place[axis], i, dtype=bool), there)
    for axis, k in zip(*batched, strict=True):
        place[axis] = batch[k]
    for axis, k in zip(*kept, strict=True):
        place[axis] = add_index(e, place[axis], index[k])
    return place, there


def _gather(e: LLVMEmitter, p: Params, x: LargeArray, indices: LargeArray, passing: bool = False) -> LargeArray:
    n, sizes = p["dimension_numbers"], p["slice_sizes"]
    kept = [i for i in range(len(x.shape)) if i not in (*n.collapsed_slice_dims, *n.operand_batching_dims)]
    lead, window = iter(indices.shape[:-1]), iter(sizes[i] for i in kept)
    rank = len(indices.shape) - 1 + len(kept)
    shape = tuple(next(window if i in n.offset_dims else lead) for i in range(rank))
    inside = any(name in str(p["mode"]).upper() for name in ("CLIP", "PROMISE"))
    fill = (np.nan if x.dtype.kind == "f" else 0) if p["fill_value"] is None else p["fill_value"]
    x = materialise(e, x)
    if e.pack > 1 and indices.known is not None:
        # which entries of x these are, where it is known while the program is written
        table = gather_known(p, np.arange(x.size, dtype=np.int32).reshape(x.shape), indices.known, rank)
        if table is not None:
            return pick_entries(e, x, table, passing)

    def entry(index: Sequence[LaneValue], indices: LargeArray) -> LaneValue:
        batched = n.operand_batching_dims, n.start_indices_batching_dims
        place, there = _window_index(e, x, sizes, n.start_index_map, indices, batched, (kept, n.offset_dims), index)
        found = x.at(place)
        return found if there is None or inside else e.w.select(there, found, constant(fill, x.dtype))

    pack_at = None
    # along the last axis one index after the other
    if e.pack > 1 and rank and rank - 1 not in n.offset_dims and indices.shape[-1] == 1 and not n.operand_batching_dims:
        indices = materialise(e, indices)
        of_row = array_at(e, indices.pointer, indices.shape[:-1], indices.dtype, False)
        in_packs = LargeArray(indices.shape, indices.dtype, False, lambda index: read(of_row, index[:-1], True))
        pack_at = lambda index: entry(index, in_packs)
    is_vector = x.is_vector or indices.is_vector
    lazy = LargeArray(shape, x.dtype, is_vector, lambda index: entry(index, indices), pack_at=pack_at)
    return copy_to_new(e, lazy, is_vector)


def _scatter_rule(name: str) -> Callable:
    """Returns the rule for a scatter that combines old and new entries by the primitive ``name``,
    or overwrites them if it is empty."""

    def rule(e: LLVMEmitter, p: Params, x: LargeArray, indices: LargeArray, updates: LargeArray) -> LargeArray:
        if not name and not replaces_entries(p):
            raise Unsupported("scatter with a function of a large array")
        n, clip = p["dimension_numbers"], "CLIP" in str(p["mode"]).upper()
        gone = (*n.inserted_window_dims, *n.operand_batching_dims)
        kept = [i for i in range(len(x.shape)) if i not in gone]
        sizes = [1] * len(x.shape)
        for axis, k in zip(kept, n.update_window_dims, strict=True):
            sizes[axis] = updates.shape[k]
        target = copy_to_new(e, x, x.is_vector or indices.is_vector or updates.is_vector)

        def body(index: list[LaneValue]) -> None:
            batched = n.operand_batching_dims, n.scatter_indices_batching_dims
            window = kept, n.update_window_dims
            place, there = _window_index(e, x, sizes, n.scatter_dims_to_operand_dims, indices, batched, window, index)
            old, new = target.at(place), updates.at(index)
            new = e.op(name, None, old, new) if name else new
            store_entry(e, target, place, new if there is None or clip else e.w.select(there, new, old))

        for_each_index(e, updates.shape, body)
        return target

    return rule


# sums and other reductions


def _dot_general(e: LLVMEmitter, p: Params, x: LargeArray, y: LargeArray) -> LargeArray:
    """Rule for products; several sums are accumulated at a time, along the last free axis of the first operand,
    or else of the second."""
    (contract_x, contract_y), (batch_x, batch_y) = p["dimension_numbers"]
    order_x, rows = arrange_axes(x, batch_x, contract_x, True)
    order_y, columns = arrange_axes(y, batch_y, contract_y, False)
    batch, inner = [x.shape[i] for i in batch_x], [x.shape[i] for i in contract_x]
    x = with_axes(_as_it_lies(e, x), order_x)
    y = with_axes(_as_it_lies(e, y), order_y)
    target = reserve_array(e, [*batch, *rows, *columns], x.dtype, x.is_vector or y.is_vector)
    if e.pack > 1 and x.dtype.kind == "f":
        return product_by_packs(e, x, y, target, len(batch), len(rows), inner)
    kinds = ("fmul contract", "fadd contract") if x.dtype.kind == "f" else ("mul", "add")
    kinds = ("and", "or") if x.dtype.kind == "b" else kinds
    split = len(batch) + len(rows)
    axis = next((i for i in (split - 1, len(target.shape) - 1) if i >= len(batch) and target.shape[i] > 1), None)
    count = 1 if axis is None else max(k for k in range(1, PARALLEL_SUMS + 1) if target.shape[axis] % k == 0)
    shape = [n // count if i == axis else n for i, n in enumerate(target.shape)]

    def body(index: list[LaneValue]) -> None:
        places = [
            [flat_index(e, (1, count), [i, long_constant(k)]) if a == axis else i for a, i in enumerate(index)]
            for k in range(count)
        ]

        def sums(depth: int, over: list[LaneValue], now: list[LaneValue]) -> list[LaneValue]:
            if depth < len(inner):
                return counted_loop(e, inner[depth], now, lambda i, now: sums(depth + 1, [*over, i], now))
            terms = (
                (x.at([*place[:split], *over]), y.at([*place[: len(batch)], *over, *place[split:]])) for place in places
            )
            lanes = e.w.as_vector if target.is_vector else lambda z: z
            return [lanes(e.w.op(kinds[1], z, e.w.op(kinds[0], a, b))) for z, (a, b) in zip(now, terms, strict=True)]

        zero = constant(0, target.dtype)
        found = sums(0, [], [e.w.as_vector(zero) if target.is_vector else zero] * count)
        for place, z in zip(places, found, strict=True):
            store_entry(e, target, place, z)

    for_each_index(e, shape, body)
    return target


def _reduce_rule(name: str, start: Callable[[np.dtype], float]) -> Callable:
    """Returns the rule for a reduction by the primitive ``name``, which begins with the value ``start(dtype)``."""

    def rule(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
        axes = p["axes"]
        kept = [i for i in range(len(x.shape)) if i not in axes]
        target = reserve_array(e, [x.shape[i] for i in kept], x.dtype, x.is_vector)
        if e.pack > 1:
            return reduce_by_packs(e, name, x, target, kept, axes, constant(start(x.dtype), x.dtype))

        def body(index: list[LaneValue]) -> None:
            def along(depth: int, where: dict, now: list[LaneValue]) -> list[LaneValue]:
                if depth < len(axes):
                    axis = axes[depth]
                    return counted_loop(e, x.shape[axis], now, lambda i, now: along(depth + 1, where | {axis: i}, now))
                return [e.op(name, None, now[0], x.at([where[i] for i in range(len(x.shape))]))]

            first = constant(start(x.dtype), x.dtype)
            (found,) = along(0, dict(zip(kept, index, strict=True)), [e.w.as_vector(first) if x.is_vector else first])
            store_entry(e, target, index, found)

        for_each_index(e, target.shape, body)
        return target

    return rule


def _as_it_lies(e: LLVMEmitter, x: LargeArray) -> LargeArray:
    """Returns x as it is if it is stored in memory, with its axes in any order; else a stored copy."""
    return x if x.source is not None and x.source[0].pointer else materialise(e, x)


def _elementwise(e: LLVMEmitter, eqn: Equation, inputs: Sequence[LargeArray], passing: bool) -> LargeArray:
    """Emits an elementwise primitive; ``passing``: the result is read only once, and is a lazy array,
    which needs no memory."""
    shape, dtype = eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype
    name, params = eqn.primitive.name, eqn.params
    several = [x for x in inputs if x.size != 1]
    if e.pack > 1 and several and all(x.source and x.source[1] == several[0].source[1] for x in several):
        # in the order of the axes in memory
        order = several[0].source[1]
        inputs = [x if x.size == 1 else x.source[0] for x in inputs]
        shape = tuple(shape[i] for i in np.argsort(order))
        found = _elementwise_of(e, name, params, shape, dtype, inputs, passing)
        return with_axes(found, order)
    return _elementwise_of(e, name, params, shape, dtype, inputs, passing)


def _elementwise_of(
    e: LLVMEmitter,
    name: str,
    params: Params | None,
    shape: tuple,
    dtype: np.dtype,
    inputs: Sequence[LargeArray],
    passing: bool,
) -> LargeArray:
    is_vector = any(x.is_vector for x in inputs)
    if e.pack > 1 and not passing:
        return _elementwise_by_packs(e, name, params, shape, dtype, inputs)
    at = lambda index: e.op(name, params, *(x.at(_broadcast_index(x, index)) for x in inputs))
    pack_at = lambda index: e.op_of(name, params, [_operand(x, index, True) for x in inputs])
    by_packs = bool(shape) and e.pack > 1 and all(map(_has_packs, inputs))
    in_line = None
    if e.pack > 1 and len(shape) > 1 and all(x.size == 1 or (has_flat_view(x) and x.shape == shape) for x in inputs):
        flat = [one_entry(x) if x.size == 1 else flat_view(e, x) for x in inputs]
        in_line = _elementwise_of(e, name, params, (math.prod(shape),), dtype, flat, True)
    lazy = LargeArray(shape, dtype, is_vector, at, pack_at=pack_at if by_packs else None, in_line=in_line)
    return lazy if passing else copy_to_new(e, lazy, is_vector)


def _has_packs(x: LargeArray) -> bool:
    """Whether an operand can be read in packs, or is constant along the last axis."""
    return x.pack_at is not None or x.shape[-1:] in ((), (1,))


def _operand(x: LargeArray, index: Sequence[LaneValue], whole: bool) -> LaneValue:
    """Reads what an elementwise operation needs of its operand x for the entry ``index`` of the result, or for the pack
    of entries from there on.

    ``whole``: whether it is for a pack. The value is a pack then, or one entry if x is constant along the last axis.
    """
    return read(x, _broadcast_index(x, index), whole and x.shape[-1:] not in ((), (1,)))


def _outer_product(e: LLVMEmitter, p: Params, x: LargeArray, y: LargeArray) -> LargeArray:
    """Returns a product without sums as a lazy array: its entries are computed when they are read,
    which happens only once."""
    (_, _), (batch_x, batch_y) = p["dimension_numbers"]
    free_x, free_y = ([i for i in range(len(z.shape)) if i not in b] for z, b in ((x, batch_x), (y, batch_y)))
    order_x, order_y = [*batch_x, *free_x], [*batch_y, *free_y]
    x, y = (with_axes(z, order) for z, order in ((x, order_x), (y, order_y)))
    batch, split = len(batch_x), len(x.shape)
    shape = (*x.shape, *y.shape[batch:])
    parts = lambda index: (x.at(index[:split]), [*index[:batch], *index[split:]])

    def at(index: Sequence[LaneValue]) -> LaneValue:
        first, second = parts(index)
        return e.op_of("mul", None, [first, y.at(second)])

    def pack_at(index: Sequence[LaneValue]) -> LaneValue:
        first, second = parts(index)
        return e.op_of("mul", None, [first, read(y, second, True)])

    packs = pack_at if e.pack > 1 and y.pack_at and split < len(shape) else None
    return LargeArray(shape, x.dtype, x.is_vector or y.is_vector, at, pack_at=packs)


def _broadcast_index(x: LargeArray, index: Sequence[LaneValue]) -> list[LaneValue]:
    """Returns the index in an operand x that belongs to an ``index`` of the result, to whose shape x is broadcast."""
    if not x.shape:
        return []
    return [long_constant(0) if n == 1 else i for n, i in zip(x.shape, index[-len(x.shape) :], strict=True)]


def _elementwise_by_packs(
    e: LLVMEmitter,
    name: str,
    params: Params | None,
    shape: Sequence[int],
    dtype: np.dtype,
    inputs: Sequence[LargeArray],
) -> LargeArray:
    """Emits an elementwise primitive of a single lane, in loops over packs of the result.

    If all operands have the result's shape and can be read in C order, a single loop runs over all entries: rows of
    two, as of positions in the plane, fill no pack.
    """
    found = target = reserve_array(e, shape, dtype, False)
    alone = {id(x): x.at([long_constant(0)] * len(x.shape)) for x in inputs if x.size == 1}
    several = [x for x in inputs if x.size != 1]
    if all(has_flat_view(x) and x.shape == tuple(shape) for x in several):
        target, several = flat_view(e, target), [flat_view(e, x) for x in several]
    arrays = iter(several)
    operands = [alone[id(x)] if id(x) in alone else next(arrays) for x in inputs]

    def body(index: list[LaneValue], whole: bool) -> None:
        values = [x if isinstance(x, LaneValue) else _operand(x, index, whole) for x in operands]
        new = e.op_of(name, params, values)
        store_entry(e, target, index, e.w.as_vector(new) if whole else new)

    for_each_pack(e, target.shape, all(map(_has_packs, several)), body)
    return found


RULES: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast, "transpose": _transpose, "slice": _slice, "rev": _reverse, "split": _split,
    "iota": _iota, "reshape": _reshape_rule(lambda p, x: p["new_sizes"]), "squeeze": _reshape_rule(_squeezed_shape),
    "expand_dims": _reshape_rule(lambda p, x: np.expand_dims(np.empty(x.shape, bool), p["dimensions"]).shape),
    "pad": _pad, "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice,
    "dot_general": _dot_general, "reduce_sum": _reduce_rule("add", lambda dtype: 0),
    "reduce_prod": _reduce_rule("mul", lambda dtype: 1), "reduce_max": _reduce_rule("max", smallest_value),
    "reduce_min": _reduce_rule("min", largest_value), "reduce_or": _reduce_rule("or", smallest_value),
    "reduce_and": _reduce_rule("and", largest_value), "argmin": lambda e, p,
    x: arg_extreme(e, "lt", x, p["axes"][0], p["index_dtype"]), "argmax": lambda e, p,
    x: arg_extreme(e, "gt", x, p["axes"][0], p["index_dtype"]), "gather": _gather, "scatter": _scatter_rule(""),
}  # fmt: skip
RULES |= {f"scatter{mark}{name}": _scatter_rule(name) for name in ("add", "sub", "mul", "min", "max") for mark in "-_"}
RULES |= MATRIX_RULES | JOINING_RULES


def apply_rule(e: LLVMEmitter, machine: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    """Emits an equation with a large operand or result; returns its results, small ones as arrays of scalars.

    Raises:
        Unsupported: its primitive has no rule for large arrays.
    """
    name = eqn.primitive.name
    # results of constant indices are computed at compile time
    whole = all(v.aval.dtype.kind in "biu" for v in (*eqn.invars, *eqn.outvars))
    if e.pack > 1 and whole and (rule := FOLDED.get(name) or MOVED.get(name)) and name != "gather":
        entries = [known_entries(x) for x in inputs]
        if all(x is not None for x in entries) and (found := rule(eqn, *entries)) is not None:
            of_all = found if isinstance(found, list) else [found]
            return [e.constant(x) if x.size > e.max_scalars else split_constant(x) for x in map(np.asarray, of_all)]
    if name in ELEMENTWISE or name in RULES:
        blocks = [as_large_array(e, x) for x in inputs]
        passing = eqn.outvars[0] in machine.passing
        if name in ELEMENTWISE:
            found = _elementwise(e, eqn, blocks, passing)
        elif name == "dot_general" and passing and not eqn.params["dimension_numbers"][0][0]:
            found = _outer_product(e, eqn.params, *blocks)
        else:
            rule = partial(_gather, passing=passing) if name == "gather" else RULES[name]
            found = rule(e, eqn.params, *blocks)
        return [scalars_if_small(e, x) for x in (found if isinstance(found, list) else [found])]
    if name not in SCALAR_RULES or is_large(eqn):
        raise Unsupported(f"{name} of arrays of {max(v.aval.size for v in (*eqn.invars, *eqn.outvars))} entries")
    found = SCALAR_RULES[name](machine, eqn, [as_scalars(e, x) for x in inputs])
    return [as_large_array(e, x) if x.size > e.max_scalars else x for x in found]
