"""Rules for primitives that join large arrays, take them apart or repeat them, and for cumulative sums;
functions as in `array_rules`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...jaxtools.jaxpr_types import Params
from .arrays import (
    LargeArray,
    counted_loop,
    flat_index,
    for_each_index,
    for_each_pack,
    long_constant,
    packs_at,
    read,
    reserve_array,
    store_entry,
)
from .ir_values import LaneValue, constant

if TYPE_CHECKING:
    from .emitter import LLVMEmitter


def _concatenate(e: LLVMEmitter, p: Params, *parts: LargeArray) -> LargeArray:
    axis, shape = p["dimension"], list(parts[0].shape)
    shape[axis] = sum(x.shape[axis] for x in parts)
    target = reserve_array(e, shape, parts[0].dtype, any(x.is_vector for x in parts))
    first = 0
    for x in parts:
        corner = [long_constant(first if i == axis else 0) for i in range(len(shape))]
        write_at(e, target, x, corner)
        first += x.shape[axis]
    return target


def write_at(e: LLVMEmitter, target: LargeArray, x: LargeArray, corner: Sequence[LaneValue]) -> None:
    """Emits the copy of x into the window of ``target`` that starts at the index ``corner``."""

    def body(index: list[LaneValue], whole: bool) -> None:
        place = [add_index(e, a, i) for a, i in zip(corner, index, strict=True)]
        store_entry(e, target, place, e.w.as_vector(read(x, index, True)) if whole else x.at(index))

    for_each_pack(e, x.shape, x.pack_at is not None and not any(i.is_vector for i in corner), body)


def add_index(e: LLVMEmitter, a: LaneValue, i: LaneValue) -> LaneValue:
    """Returns a + i; adds the constant parts of both at compile time if a is a constant."""
    return flat_index(e, (1, 1), [i, a]) if a.name.lstrip("-").isdigit() else e.w.op("add", a, i)


def _stack(e: LLVMEmitter, p: Params, *parts: LargeArray) -> LargeArray:
    return _concatenate(e, {"dimension": p["axis"]}, *(_with_axis(x, p["axis"]) for x in parts))


def _with_axis(x: LargeArray, axis: int) -> LargeArray:
    """Returns a view of x with a new axis of size 1."""
    pick = lambda index: [*index[:axis], *index[axis + 1 :]]
    pack_at = packs_at(x, pick) if axis < len(x.shape) else None
    shape = (*x.shape[:axis], 1, *x.shape[axis:])
    return LargeArray(shape, x.dtype, x.is_vector, lambda index: x.at(pick(index)), pack_at=pack_at)


def _inserted(index: Sequence[LaneValue], axis: int, k: LaneValue) -> list[LaneValue]:
    return [*index[:axis], k, *index[axis:]]


def _unstack(e: LLVMEmitter, p: Params, x: LargeArray) -> list[LargeArray]:
    axis = p["axis"]

    def layer(k: int) -> LargeArray:
        pick = lambda index: _inserted(index, axis, long_constant(k))
        pack_at = packs_at(x, pick) if axis < len(x.shape) - 1 else None
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return LargeArray(shape, x.dtype, x.is_vector, lambda index: x.at(pick(index)), pack_at=pack_at)

    return [layer(k) for k in range(x.shape[axis])]


def _tile(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
    times = p["reps"]
    target = reserve_array(e, [n * size for n, size in zip(times, x.shape, strict=True)], x.dtype, x.is_vector)

    def copy(number: list[LaneValue]) -> None:
        write_at(e, target, x, [e.w.op("mul", i, long_constant(n)) for i, n in zip(number, x.shape, strict=True)])

    for_each_index(e, times, copy)
    return target


def _cumulative_rule(name: str, start: Callable[[np.dtype], float]) -> Callable:
    """Returns the rule for a cumulative reduction by the primitive ``name``,
    which begins with the value ``start(dtype)``."""

    def rule(e: LLVMEmitter, p: Params, x: LargeArray) -> LargeArray:
        axis, target = p["axis"], reserve_array(e, x.shape, x.dtype, x.is_vector)
        n, first = x.shape[axis], constant(start(x.dtype), x.dtype)
        others = [size for i, size in enumerate(x.shape) if i != axis]

        def along(index: list[LaneValue]) -> None:
            def one(i: LaneValue, now: list[LaneValue]) -> list[LaneValue]:
                place = _inserted(index, axis, e.w.op("sub", long_constant(n - 1), i) if p["reverse"] else i)
                found = e.op(name, None, now[0], x.at(place))
                store_entry(e, target, place, found)
                return [found]

            counted_loop(e, n, [e.w.as_vector(first) if x.is_vector else first], one)

        for_each_index(e, others, along)
        return target

    return rule


def smallest_value(dtype: np.dtype) -> float:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def largest_value(dtype: np.dtype) -> float:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


RULES: dict[str, Callable] = {
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "cumsum": _cumulative_rule("add", lambda dtype: 0),
    "cumprod": _cumulative_rule("mul", lambda dtype: 1),
    "cummax": _cumulative_rule("max", smallest_value),
    "cummin": _cumulative_rule("min", largest_value),
}
