"""Rules for primitives of arrays in memory: functions of the emitter, the parameters and the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..scalar import Unsupported, Value
from ..scalar.cost import is_large
from ..scalar.indexing import replaces_entries
from ..scalar.interpreter import RULES as OF_NUMBERS
from ..scalar.reductions import arrange_axes
from .array_linear_algebra import RULES as MATRICES
from .arrays import (
    LONG,
    Block,
    as_block,
    copy,
    each,
    linear,
    load_small,
    numbers,
    own,
    place_array,
    put,
    repeat,
    reserve_array,
    store_array,
    whole,
)
from .elementwise import RULES as ELEMENTWISE
from .elementwise import convert_type
from .ir_writer import Number, constant

PARALLEL_SUMS = 8  # sums that are added up side by side: as many as keep the processor busy

# of data movement, which cost nothing


def _broadcast(e: Any, p: Any, x: Block) -> Block:
    axes = list(zip(p["broadcast_dimensions"], x.shape, strict=True))
    pick = lambda index: [index[axis] if n != 1 else whole(0) for axis, n in axes]
    return Block(p["shape"], x.dtype, x.wide, lambda index: x.at(pick(index)))


def _transpose(e: Any, p: Any, x: Block) -> Block:
    order = np.argsort(p["permutation"])
    shape = tuple(x.shape[i] for i in p["permutation"])
    return Block(shape, x.dtype, x.wide, lambda index: x.at([index[i] for i in order]))


def _slice(e: Any, p: Any, x: Block) -> Block:
    first, steps = p["start_indices"], p["strides"] or (1,) * len(x.shape)
    shape = tuple(len(range(a, b, s)) for a, b, s in zip(first, p["limit_indices"], steps, strict=True))
    step = lambda i, a, s: linear(e, (1, s), [i, whole(a)])
    return Block(shape, x.dtype, x.wide, lambda index: x.at([step(*y) for y in zip(index, first, steps, strict=True)]))


def _split(e: Any, p: Any, x: Block) -> list[Block]:
    axis, ends = p["axis"], np.cumsum(p["sizes"])
    bounds = [([0] * len(x.shape), list(x.shape)) for _ in ends]
    for (low, high), end, size in zip(bounds, ends, p["sizes"], strict=True):
        low[axis], high[axis] = int(end) - size, int(end)
    return [_slice(e, {"start_indices": low, "limit_indices": high, "strides": None}, x) for low, high in bounds]


def _reverse(e: Any, p: Any, x: Block) -> Block:
    back = lambda axis, i: e.w.op("sub", whole(x.shape[axis] - 1), i) if axis in p["dimensions"] else i
    return Block(x.shape, x.dtype, x.wide, lambda index: x.at([back(*y) for y in enumerate(index)]))


def _reshape_rule(shape: Callable) -> Callable:
    def rule(e: Any, p: Any, x: Block) -> Block:
        x = store_array(e, x)
        return place_array(e, x.pointer, shape(p, x), x.dtype, x.wide)

    return rule


def _squeezed_shape(p: Any, x: Block) -> list[int]:
    return [n for axis, n in enumerate(x.shape) if axis not in p["dimensions"]]


def _iota(e: Any, p: Any) -> Block:
    kept = np.dtype(p["dtype"])
    number = lambda index: convert_type(e.w, index[p["dimension"]], kept)
    return Block(tuple(p["shape"]), kept, False, number)


def _concatenate(e: Any, p: Any, *parts: Block) -> Block:
    axis, shape = p["dimension"], list(parts[0].shape)
    shape[axis] = sum(x.shape[axis] for x in parts)
    target = reserve_array(e, shape, parts[0].dtype, any(x.wide for x in parts))
    first = 0
    for x in parts:
        corner = [whole(first if i == axis else 0) for i in range(len(shape))]
        write(e, target, x, corner)
        first += x.shape[axis]
    return target


def write(e: Any, target: Block, x: Block, corner: Sequence[Number]) -> None:
    """Writes an array into a part of an array in memory that starts at ``corner``."""

    def body(index: list[Number]) -> None:
        put(e, target, [plus(e, a, i) for a, i in zip(corner, index, strict=True)], x.at(index))

    each(e, x.shape, body)


def plus(e: Any, a: Number, i: Number) -> Number:
    return linear(e, (1, 1), [i, a]) if a.name.lstrip("-").isdigit() else e.w.op("add", a, i)


def _pad(e: Any, p: Any, x: Block, value: Block) -> Block:
    if any(low < 0 or high < 0 or inside for low, high, inside in p["padding_config"]):
        raise Unsupported("pad of a large array")
    shape = [n + low + high for n, (low, high, _) in zip(x.shape, p["padding_config"], strict=True)]
    target = reserve_array(e, shape, x.dtype, x.wide or value.wide)
    copy(e, target, Block(tuple(shape), x.dtype, value.wide, lambda index: value.at([])), None)
    write(e, target, x, [whole(low) for low, _, _ in p["padding_config"]])
    return target


def _corner(e: Any, x: Block, size: Sequence[int], starts: Sequence[Block]) -> list[Number]:
    """Start indices of a slice of the given size, clamped so that it lies within the array."""
    found = []
    for n, k, start in zip(x.shape, size, starts, strict=True):
        i = convert_type(e.w, start.at([]), LONG)
        found.append(e.w.intrinsic("smax", e.w.intrinsic("smin", i, whole(n - k)), whole(0)))
    return found


def _dynamic_slice(e: Any, p: Any, x: Block, *starts: Block) -> Block:
    corner, x = _corner(e, x, p["slice_sizes"], starts), store_array(e, x)
    wide = x.wide or any(i.wide for i in corner)
    at = lambda index: x.at([plus(e, a, i) for a, i in zip(corner, index, strict=True)])
    return own(e, Block(tuple(p["slice_sizes"]), x.dtype, wide, at), wide)


def _dynamic_update_slice(e: Any, p: Any, x: Block, new: Block, *starts: Block) -> Block:
    corner = _corner(e, x, new.shape, starts)
    target = own(e, x, x.wide or new.wide or any(i.wide for i in corner))
    write(e, target, new, corner)
    return target


def _window(
    e: Any, x: Block, sizes: Sequence[int], axes: Sequence[int], indices: Block, batched: tuple, kept: tuple,
    index: Sequence[Number],
) -> tuple[list, Any]:  # fmt: skip
    """Index of an entry in a gather or scatter window, clamped into the array, and whether clamping changed nothing (None: certain).

    ``batched``, ``kept``: pairs of array axes and the batch or ``index`` entries that give the position along them.
    """
    batch = [i for k, i in enumerate(index) if k not in kept[1]]
    place, there = [whole(0)] * len(x.shape), None
    for k, axis in enumerate(axes):
        i = convert_type(e.w, indices.at([*batch, whole(k)]), LONG)
        place[axis] = e.w.intrinsic("smax", e.w.intrinsic("smin", i, whole(x.shape[axis] - sizes[axis])), whole(0))
        there = e.w.both(e.w.op("icmp eq", place[axis], i, dtype=bool), there)
    for axis, k in zip(*batched, strict=True):
        place[axis] = batch[k]
    for axis, k in zip(*kept, strict=True):
        place[axis] = plus(e, place[axis], index[k])
    return place, there


def _gather(e: Any, p: Any, x: Block, indices: Block) -> Block:
    n, sizes = p["dimension_numbers"], p["slice_sizes"]
    kept = [i for i in range(len(x.shape)) if i not in (*n.collapsed_slice_dims, *n.operand_batching_dims)]
    lead, window = iter(indices.shape[:-1]), iter(sizes[i] for i in kept)
    rank = len(indices.shape) - 1 + len(kept)
    shape = tuple(next(window if i in n.offset_dims else lead) for i in range(rank))
    inside = any(name in str(p["mode"]).upper() for name in ("CLIP", "PROMISE"))
    fill = (np.nan if x.dtype.kind == "f" else 0) if p["fill_value"] is None else p["fill_value"]
    x = store_array(e, x)

    def at(index: Sequence[Number]) -> Number:
        batched = n.operand_batching_dims, n.start_indices_batching_dims
        place, there = _window(e, x, sizes, n.start_index_map, indices, batched, (kept, n.offset_dims), index)
        found = x.at(place)
        return found if there is None or inside else e.w.select(there, found, constant(fill, x.dtype))

    return own(e, Block(shape, x.dtype, x.wide or indices.wide, at), x.wide or indices.wide)


def _scatter(name: str) -> Callable:
    def rule(e: Any, p: Any, x: Block, indices: Block, updates: Block) -> Block:
        if not name and not replaces_entries(p):
            raise Unsupported("scatter with a function of a large array")
        n, clip = p["dimension_numbers"], "CLIP" in str(p["mode"]).upper()
        gone = (*n.inserted_window_dims, *n.operand_batching_dims)
        kept = [i for i in range(len(x.shape)) if i not in gone]
        sizes = [1] * len(x.shape)
        for axis, k in zip(kept, n.update_window_dims, strict=True):
            sizes[axis] = updates.shape[k]
        target = own(e, x, x.wide or indices.wide or updates.wide)

        def body(index: list[Number]) -> None:
            batched = n.operand_batching_dims, n.scatter_indices_batching_dims
            window = kept, n.update_window_dims
            place, there = _window(e, x, sizes, n.scatter_dims_to_operand_dims, indices, batched, window, index)
            old, new = target.at(place), updates.at(index)
            new = e.op(name, None, old, new) if name else new
            put(e, target, place, new if there is None or clip else e.w.select(there, new, old))

        each(e, updates.shape, body)
        return target

    return rule


# of sums


def _dot_general(e: Any, p: Any, x: Block, y: Block) -> Block:
    """Product with sums accumulated side by side along the free axis of the first operand, or else of the second."""
    (contract_x, contract_y), (batch_x, batch_y) = p["dimension_numbers"]
    if x.dtype != y.dtype:
        raise Unsupported("dot_general of several types")
    order_x, rows = arrange_axes(x, batch_x, contract_x, True)
    order_y, columns = arrange_axes(y, batch_y, contract_y, False)
    batch, inner = [x.shape[i] for i in batch_x], [x.shape[i] for i in contract_x]
    x = _transpose(e, {"permutation": order_x}, store_array(e, x))
    y = _transpose(e, {"permutation": order_y}, store_array(e, y))
    target = reserve_array(e, [*batch, *rows, *columns], x.dtype, x.wide or y.wide)
    kinds = ("fmul contract", "fadd contract") if x.dtype.kind == "f" else ("mul", "add")
    kinds = ("and", "or") if x.dtype.kind == "b" else kinds
    split = len(batch) + len(rows)
    axis = next((i for i in (split - 1, len(target.shape) - 1) if i >= len(batch) and target.shape[i] > 1), None)
    count = 1 if axis is None else max(k for k in range(1, PARALLEL_SUMS + 1) if target.shape[axis] % k == 0)
    shape = [n // count if i == axis else n for i, n in enumerate(target.shape)]

    def body(index: list[Number]) -> None:
        places = [
            [linear(e, (1, count), [i, whole(k)]) if a == axis else i for a, i in enumerate(index)]
            for k in range(count)
        ]

        def sums(depth: int, over: list[Number], now: list[Number]) -> list[Number]:
            if depth < len(inner):
                return repeat(e, inner[depth], now, lambda i, now: sums(depth + 1, [*over, i], now))
            terms = (
                (x.at([*place[:split], *over]), y.at([*place[: len(batch)], *over, *place[split:]])) for place in places
            )
            wide = e.w.wide if target.wide else lambda z: z
            return [wide(e.w.op(kinds[1], z, e.w.op(kinds[0], a, b))) for z, (a, b) in zip(now, terms, strict=True)]

        zero = constant(0, target.dtype)
        found = sums(0, [], [e.w.wide(zero) if target.wide else zero] * count)
        for place, z in zip(places, found, strict=True):
            put(e, target, place, z)

    each(e, shape, body)
    return target


def _reducer(name: str, start: Any) -> Callable:
    def rule(e: Any, p: Any, x: Block) -> Block:
        axes = p["axes"]
        kept = [i for i in range(len(x.shape)) if i not in axes]
        target = reserve_array(e, [x.shape[i] for i in kept], x.dtype, x.wide)

        def body(index: list[Number]) -> None:
            def along(depth: int, where: dict, now: list[Number]) -> list[Number]:
                if depth < len(axes):
                    axis = axes[depth]
                    return repeat(e, x.shape[axis], now, lambda i, now: along(depth + 1, where | {axis: i}, now))
                return [e.op(name, None, now[0], x.at([where[i] for i in range(len(x.shape))]))]

            first = constant(start(x.dtype), x.dtype)
            (found,) = along(0, dict(zip(kept, index, strict=True)), [e.w.wide(first) if x.wide else first])
            put(e, target, index, found)

        each(e, target.shape, body)
        return target

    return rule


def _least(dtype: Any) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _most(dtype: Any) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def _elementwise(e: Any, eqn: Any, inputs: Sequence[Block]) -> Block:
    shape, dtype, wide = eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype, any(x.wide for x in inputs)
    at = lambda x, index: x.at(
        [whole(0) if n == 1 else i for n, i in zip(x.shape, index[-len(x.shape) :], strict=True)] if x.shape else []
    )
    name = eqn.primitive.name
    lazy = Block(shape, dtype, wide, lambda index: e.op(name, eqn.params, *(at(x, index) for x in inputs)))
    return own(e, lazy, wide)


RULES: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast, "transpose": _transpose, "slice": _slice, "rev": _reverse, "split": _split, "iota": _iota,
    "reshape": _reshape_rule(lambda p, x: p["new_sizes"]), "squeeze": _reshape_rule(_squeezed_shape),
    "expand_dims": _reshape_rule(lambda p, x: np.expand_dims(np.empty(x.shape, bool), p["dimensions"]).shape),
    "concatenate": _concatenate, "pad": _pad, "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice,
    "dot_general": _dot_general, "reduce_sum": _reducer("add", lambda dtype: 0), "reduce_prod": _reducer("mul", lambda dtype: 1),
    "reduce_max": _reducer("max", _least), "reduce_min": _reducer("min", _most),
    "reduce_or": _reducer("or", _least), "reduce_and": _reducer("and", _most), "gather": _gather, "scatter": _scatter(""),
}  # fmt: skip
RULES |= {f"scatter{mark}{name}": _scatter(name) for name in ("add", "sub", "mul", "min", "max") for mark in "-_"}
RULES |= MATRICES


def apply(e: Any, machine: Any, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
    """Applies the rule of a primitive with a large operand or result."""
    name = eqn.primitive.name
    if name in ELEMENTWISE or name in RULES:
        blocks = [as_block(e, x) for x in inputs]
        found = _elementwise(e, eqn, blocks) if name in ELEMENTWISE else RULES[name](e, eqn.params, *blocks)
        return [load_small(e, x) for x in (found if isinstance(found, list) else [found])]
    if name not in OF_NUMBERS or is_large(eqn):
        raise Unsupported(f"{name} of arrays of {max(v.aval.size for v in (*eqn.invars, *eqn.outvars))} entries")
    found = OF_NUMBERS[name](machine, eqn, [numbers(x) for x in inputs])
    return [as_block(e, x) if x.size > e.max_scalars else x for x in found]
