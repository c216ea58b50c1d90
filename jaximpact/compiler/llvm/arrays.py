"""Large arrays, which are not taken apart into scalars: they lie in memory, and loops over them are emitted.

An array is a function from indices to entries (lazy), so that slicing, transposing and the like emit nothing until an entry is read.
Results of arithmetic are stored in scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..scalar import Value, object_array
from .ir_writer import LONG, LaneValue, constant, llvm_scalar_type, memory_dtype


@dataclass(frozen=True)
class LargeArray:
    """A lazy or stored large array.

    Attributes:
        shape, dtype: of one lane.
        is_vector: whether entries differ between lanes, and are vectors.
        at: function from an index to an entry; it emits the load or the computation.
        pointer: address in C order if it is stored, else empty.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    is_vector: bool
    at: Callable[[Sequence[LaneValue]], LaneValue]
    pointer: str = ""

    flat: ClassVar[tuple] = ()  # as of a numpy array without scalars

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class ProgramInput(NamedTuple):
    """An input of the program: one array for all lanes, or one for each lane (``is_vector``)."""

    pointer: str
    aval: Any
    is_vector: bool


def long_constant(i: int) -> LaneValue:
    """A constant of 64 bits, for indices."""
    return constant(i, LONG)


def flat_index(e: Any, shape: Sequence[int], index: Sequence[LaneValue]) -> LaneValue:
    """Position of an entry in C order; the constant parts of ``index`` are added up at compile time."""
    fixed, variable = 0, None
    for k, i in enumerate(index):
        step = math.prod(shape[k + 1 :])
        if i.name.startswith("%"):
            part = e.w.op("mul", i, long_constant(step)) if step != 1 else i
            variable = part if variable is None else e.w.op("add", variable, part)
        else:
            fixed += step * int(i.name)
    return (
        long_constant(fixed)
        if variable is None
        else e.w.op("add", variable, long_constant(fixed))
        if fixed
        else variable
    )


# loops


def counted_loop(
    e: Any,
    n: int,
    start: list[LaneValue],
    body: Callable[[LaneValue, list[LaneValue]], list[LaneValue]],
    first: LaneValue | None = None,
) -> list[LaneValue]:
    """Emits ``carry = body(i, carry)`` for i from ``first`` (default 0, must be < n) to n - 1, and returns the last carry."""
    if n == 0:
        return start
    w = e.w
    before, inside, after = w.block, w.fresh_name("turn"), w.fresh_name("turned")
    w.jump(inside)
    w.begin_block(inside)
    with w.scope(w.active):
        i, *now = phis = [w.phi(x.dtype, x.is_vector, [(x, before)]) for x in (first or long_constant(0), *start)]
        new = body(i, now)
        following = w.op("add", i, long_constant(1))
        more = w.op("icmp slt", following, long_constant(n), dtype=bool)
        w.close_loop(phis, [following, *new])
        w.branch(more, inside, after)
    w.begin_block(after)
    return new


def for_range(e: Any, n: int, body: Callable[[LaneValue], None], first: LaneValue | None = None) -> None:
    """Emits ``body(i)`` for i from ``first`` (default 0, must be < n) to n - 1."""
    counted_loop(e, n, [], lambda i, _: body(i) or [], first)  # type: ignore[func-returns-value]


def for_each_index(e: Any, shape: Sequence[int], body: Callable[[list[LaneValue]], None]) -> None:
    """Emits ``body(index)`` for every index of an array of the given shape."""

    def along(axis: int, index: list[LaneValue]) -> None:
        if axis == len(shape):
            body(index)
        else:
            for_range(e, shape[axis], lambda i: along(axis + 1, [*index, i]))

    if math.prod(shape):
        along(0, [])


# arrays in memory


def array_at(e: Any, pointer: str, shape: Sequence[int], dtype: Any, is_vector: bool) -> LargeArray:
    """The stored array at a pointer, in C order."""

    def at(index: Sequence[LaneValue]) -> LaneValue:
        w, place = e.w, flat_index(e, shape, index)
        if not place.is_vector:
            return w.load(w.address(pointer, dtype, is_vector=is_vector, place=place), dtype, is_vector)
        return w.from_lanes([w.load(address, dtype, False) for address in _lane_addresses(e, block, place)])

    block = LargeArray(tuple(shape), np.dtype(dtype), is_vector, at, pointer)
    return block


def reserve_array(e: Any, shape: Sequence[int], dtype: Any, is_vector: bool) -> LargeArray:
    """A stored array in new scratch memory, not initialised."""
    return array_at(e, e.w.reserve(math.prod(shape), dtype, is_vector), shape, dtype, is_vector)


def store_entry(e: Any, target: LargeArray, index: Sequence[LaneValue], x: LaneValue) -> None:
    """Emits ``target[index] = x``; where the index differs between lanes, one store per lane."""
    w, place = e.w, flat_index(e, target.shape, index)
    x = w.as_vector(x) if target.is_vector else x
    if not place.is_vector:
        w.store(w.address(target.pointer, target.dtype, is_vector=target.is_vector, place=place), x)
        return
    for lane, address in enumerate(_lane_addresses(e, target, place)):
        w.store(address, w.extract_lane(x, lane))


def _lane_addresses(e: Any, x: LargeArray, place: LaneValue) -> list[str]:
    """Addresses of one entry per lane, where the position in x differs between lanes."""
    w = e.w
    place = w.op("mul", place, long_constant(w.width)) if x.is_vector else place
    places = [w.extract_lane(place, i) for i in range(w.width)]
    places = [w.op("add", i, long_constant(k)) for k, i in enumerate(places)] if x.is_vector else places
    return [w.address(x.pointer, x.dtype, is_vector=False, place=i) for i in places]


def copy_array(e: Any, target: LargeArray, x: LargeArray, where: LaneValue | None) -> None:
    """Emits a copy of x into ``target``, in the lanes of the mask ``where`` (None: all)."""

    def body(index: list[LaneValue]) -> None:
        new = x.at(index)
        store_entry(e, target, index, new if where is None else e.w.select(where, new, target.at(index)))

    for_each_index(e, target.shape, body)


def as_large_array(e: Any, x: Value) -> LargeArray:
    """A value as a large array: scalars are stored in new memory."""
    if isinstance(x, LargeArray):
        return x
    numbers = [e.as_value(y) for y in x.flat]
    is_vector = any(y.is_vector for y in numbers)
    target = reserve_array(e, x.shape, numbers[0].dtype if numbers else np.float64, is_vector)
    for i, y in enumerate(numbers):
        e.w.store(
            e.w.address(target.pointer, y.dtype, is_vector=is_vector, place=long_constant(i)),
            e.w.as_vector(y) if is_vector else y,
        )
    return target


def copy_to_new(e: Any, x: LargeArray, is_vector: bool) -> LargeArray:
    """A copy of an array in new memory."""
    target = reserve_array(e, x.shape, x.dtype, is_vector)
    copy_array(e, target, x, None)
    return target


def materialise(e: Any, x: Value) -> LargeArray:
    """A value as a stored array: a lazy one is computed and stored."""
    x = as_large_array(e, x)
    return x if x.pointer else copy_to_new(e, x, x.is_vector)


def scalars_if_small(e: Any, x: Value) -> Value:
    """A large array as scalars if it has few enough entries; other values stay."""
    if not isinstance(x, LargeArray) or x.size > e.max_scalars:
        return x
    return as_scalars(x)


def as_scalars(x: Value) -> Value:
    """A large array as an object array of scalars, whatever its size; other values stay."""
    if not isinstance(x, LargeArray):
        return x
    return object_array(x.shape, (x.at([long_constant(i) for i in index]) for index in np.ndindex(x.shape)))


def leading_slice(e: Any, x: LargeArray, i: LaneValue) -> LargeArray:
    """x[i] of a stored array, without a copy."""
    first = flat_index(e, x.shape, [i, *[long_constant(0)] * (len(x.shape) - 1)])
    return array_at(
        e, e.w.address(x.pointer, x.dtype, is_vector=x.is_vector, place=first), x.shape[1:], x.dtype, x.is_vector
    )


def read_input(e: Any, source: ProgramInput) -> Value:
    """Emits the loads of a program input: scalars, or a large array that is read where it is used."""
    w, aval = e.w, source.aval
    if not source.is_vector:
        return scalars_if_small(e, array_at(e, source.pointer, aval.shape, aval.dtype, False))

    def at(index: Sequence[LaneValue]) -> LaneValue:
        skipped = w.op("mul", flat_index(e, aval.shape, index), LaneValue("%row", LONG, False))
        place = w.op("add", skipped, LaneValue("%lane", LONG, False))
        return w.load(w.address(source.pointer, aval.dtype, is_vector=False, place=place), aval.dtype, True)

    return scalars_if_small(e, LargeArray(aval.shape, np.dtype(aval.dtype), True, at))


def embed_constant(e: Any, x: np.ndarray) -> LargeArray:
    """A constant array as a global constant of the module."""
    name, dtype = "@" + e.w.fresh_name("array"), memory_dtype(x.dtype)
    numbers = ", ".join(f"{llvm_scalar_type(dtype)} {constant(y, dtype).name}" for y in x.ravel())
    e.w.declared[name] = f"{name} = private constant [{x.size} x {llvm_scalar_type(dtype)}] [{numbers}]"
    return array_at(e, name, x.shape, x.dtype, False)
