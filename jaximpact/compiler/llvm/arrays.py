"""Arrays too large to be separate numbers: they lie in memory, and loops go over them.

An array is a function from indices to entries, so that moving data is free until an entry is read. Computed arrays are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..scalar import Value, object_array
from .ir_writer import Number, constant, kind, memory

LONG = np.dtype(np.int64)


@dataclass(frozen=True)
class Block:
    """A lazy or stored array: ``at(index)`` gives an entry; ``pointer`` is its address (C order) if it is stored."""

    shape: tuple[int, ...]
    dtype: np.dtype
    wide: bool
    at: Callable[[Sequence[Number]], Number]
    pointer: str = ""

    flat: ClassVar[tuple] = ()  # no entry is a number of its own

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Source(NamedTuple):
    """An input of the program, either one array for all lanes or one entry per lane (``wide``)."""

    pointer: str
    aval: Any
    wide: bool


def whole(i: int) -> Number:
    return constant(i, LONG)


def linear(e: Any, shape: Sequence[int], index: Sequence[Number]) -> Number:
    """Position of an entry in C order."""
    known, unknown = 0, None
    for k, i in enumerate(index):
        step = math.prod(shape[k + 1 :])
        if i.name.startswith("%"):
            part = e.w.op("mul", i, whole(step)) if step != 1 else i
            unknown = part if unknown is None else e.w.op("add", unknown, part)
        else:
            known += step * int(i.name)
    return whole(known) if unknown is None else e.w.op("add", unknown, whole(known)) if known else unknown


# loops


def repeat(
    e: Any,
    n: int,
    start: list[Number],
    turn: Callable[[Number, list[Number]], list[Number]],
    first: Number | None = None,
) -> list[Number]:
    """Emits a loop: numbers after ``turn(i, numbers)`` for i = 0 ... n - 1, or from ``first`` (< n) on."""
    if n == 0:
        return start
    w = e.w
    before, body, after = w.block, w.fresh("turn"), w.fresh("turned")
    w.go(body)
    w.begin(body)
    line = len(w.lines)
    with w.scope(w.active):
        i, *now = [w.phi(x.dtype, x.wide, [(x, before)]) for x in (first or whole(0), *start)]
        new = turn(i, now)
        following = w.op("add", i, whole(1))
        more = w.op("icmp slt", following, whole(n), dtype=bool)
        for k, x in enumerate([following, *new]):
            w.lines[line + k] += f", [ {x.name}, %{w.block} ]"
        # what goes on is named here: the numbers after the last turn
        w.branch(more, body, after)
    w.begin(after)
    return new


def turns(e: Any, n: int, body: Callable[[Number], None], first: Number | None = None) -> None:
    """Emits ``body(i)`` for i = 0 ... n - 1, or from ``first`` (< n) on."""
    repeat(e, n, [], lambda i, _: body(i) or [], first)  # type: ignore[func-returns-value]


def each(e: Any, shape: Sequence[int], body: Callable[[list[Number]], None]) -> None:
    """Emits ``body(index)`` for every index of an array."""

    def along(axis: int, index: list[Number]) -> None:
        if axis == len(shape):
            body(index)
        else:
            turns(e, shape[axis], lambda i: along(axis + 1, [*index, i]))

    if math.prod(shape):
        along(0, [])


# places


def place_array(e: Any, pointer: str, shape: Sequence[int], dtype: Any, wide: bool) -> Block:
    """A stored array at a pointer, in C order."""

    def at(index: Sequence[Number]) -> Number:
        w, place = e.w, linear(e, shape, index)
        if not place.wide:
            return w.load(w.address(pointer, dtype, wide=wide, place=place), dtype, wide)
        return w.vector([w.load(address, dtype, False) for address in _lanes(e, block, place)])

    block = Block(tuple(shape), np.dtype(dtype), wide, at, pointer)
    return block


def reserve_array(e: Any, shape: Sequence[int], dtype: Any, wide: bool) -> Block:
    return place_array(e, e.w.reserve(math.prod(shape), dtype, wide), shape, dtype, wide)


def put(e: Any, target: Block, index: Sequence[Number], x: Number) -> None:
    """Stores an entry; each lane may have an index of its own."""
    w, place = e.w, linear(e, target.shape, index)
    x = w.wide(x) if target.wide else x
    if not place.wide:
        w.store(w.address(target.pointer, target.dtype, wide=target.wide, place=place), x)
        return
    for lane, address in enumerate(_lanes(e, target, place)):
        w.store(address, w.lane(x, lane))


def _lanes(e: Any, x: Block, place: Number) -> list[str]:
    """Addresses of entries whose index differs between lanes."""
    w = e.w
    place = w.op("mul", place, whole(w.width)) if x.wide else place
    places = [w.lane(place, i) for i in range(w.width)]
    places = [w.op("add", i, whole(k)) for k, i in enumerate(places)] if x.wide else places
    return [w.address(x.pointer, x.dtype, wide=False, place=i) for i in places]


def copy(e: Any, target: Block, x: Block, where: Number | None) -> None:
    """Copies an array to the place of ``target``, only for the lanes in the mask ``where``."""

    def body(index: list[Number]) -> None:
        new = x.at(index)
        put(e, target, index, new if where is None else e.w.select(where, new, target.at(index)))

    each(e, target.shape, body)


def as_block(e: Any, x: Value) -> Block:
    """Separate numbers as an array in memory."""
    if isinstance(x, Block):
        return x
    numbers = [e.number(y) for y in x.flat]
    wide = any(y.wide for y in numbers)
    target = reserve_array(e, x.shape, numbers[0].dtype if numbers else np.float64, wide)
    for i, y in enumerate(numbers):
        e.w.store(e.w.address(target.pointer, y.dtype, wide=wide, place=whole(i)), e.w.wide(y) if wide else y)
    return target


def own(e: Any, x: Block, wide: bool) -> Block:
    """A copy of an array."""
    target = reserve_array(e, x.shape, x.dtype, wide)
    copy(e, target, x, None)
    return target


def store_array(e: Any, x: Value) -> Block:
    """The array, stored in memory if it is lazy."""
    x = as_block(e, x)
    return x if x.pointer else own(e, x, x.wide)


def load_small(e: Any, x: Value) -> Value:
    """The array as separate numbers if it is small."""
    if not isinstance(x, Block) or x.size > e.max_scalars:
        return x
    return numbers(x)


def numbers(x: Value) -> Value:
    """The array as separate numbers."""
    if not isinstance(x, Block):
        return x
    return object_array(x.shape, (x.at([whole(i) for i in index]) for index in np.ndindex(x.shape)))


def row(e: Any, x: Block, i: Number) -> Block:
    """x[i] of an array in memory."""
    first = linear(e, x.shape, [i, *[whole(0)] * (len(x.shape) - 1)])
    return place_array(e, e.w.address(x.pointer, x.dtype, wide=x.wide, place=first), x.shape[1:], x.dtype, x.wide)


def read(e: Any, source: Source) -> Value:
    """Reads an input of the program as an array or as numbers."""
    w, aval = e.w, source.aval
    if not source.wide:
        return load_small(e, place_array(e, source.pointer, aval.shape, aval.dtype, False))

    def at(index: Sequence[Number]) -> Number:
        skipped = w.op("mul", linear(e, aval.shape, index), Number("%row", LONG, False))
        place = w.op("add", skipped, Number("%lane", LONG, False))
        return w.load(w.address(source.pointer, aval.dtype, wide=False, place=place), aval.dtype, True)

    return load_small(e, Block(aval.shape, np.dtype(aval.dtype), True, at))


def known(e: Any, x: np.ndarray) -> Block:
    """An array of constants, embedded in the program."""
    name, dtype = "@" + e.w.fresh("array"), memory(x.dtype)
    numbers = ", ".join(f"{kind(dtype)} {constant(y, dtype).name}" for y in x.ravel())
    e.w.declared[name] = f"{name} = private constant [{x.size} x {kind(dtype)}] [{numbers}]"
    return place_array(e, name, x.shape, x.dtype, False)
