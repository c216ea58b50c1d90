"""Large arrays, which are not taken apart into scalars: loops run over their entries.

A *lazy* array is a function from indices to entries, so that slicing, transposing and the like emit nothing until an
entry is read. A *stored* one lies in memory; results of arithmetic are stored in scratch memory.
In all signatures ``e`` is the emitter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from jax.core import ShapedArray

from ..scalar import Value, object_array
from ..scalar.values import Scalar, all_constant
from . import packs
from .ir_values import LONG, DType, LaneValue, constant, llvm_scalar_type, memory_dtype

if TYPE_CHECKING:
    from .emitter import LLVMEmitter


@dataclass(frozen=True)
class LargeArray:
    """A lazy or stored large array.

    Attributes:
        shape, dtype: shape and dtype in one lane.
        is_vector: whether entries differ between lanes, and are vectors.
        at: function from an index to an entry; it emits the load or the computation.
        pointer: address, in C order, if the array is stored, else empty.
        pack_at: in programs of a single lane, function from an index to the pack of entries from that index on along
            the last axis; None if there is no cheap way to read packs.
        flipped: for a lower triangular factor of which only the transpose is stored, this transpose. It may have
            further rows and columns. Of its entries before the diagonal only those in the same pack as a diagonal entry
            are zeros; the others have no meaning.
        source: for an array with permuted axes, the original array and the permutation.
        known: for a constant, its entries.
        in_line: for a lazy array of several axes whose entries can be read in C order, an array of them with one axis;
            else None.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    is_vector: bool
    at: Callable[[Sequence[LaneValue]], LaneValue]
    pointer: str = ""
    pack_at: Callable[[Sequence[LaneValue]], LaneValue] | None = None
    flipped: LargeArray | None = None
    source: Any = None
    known: np.ndarray | None = field(default=None, compare=False)
    in_line: Any = field(default=None, compare=False)

    flat: ClassVar[tuple] = ()  # as of a numpy array without scalars

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class ProgramInput(NamedTuple):
    """An input of the program: its pointer in the IR, its aval in one lane,
    and whether it differs between lanes (``is_vector``)."""

    pointer: str
    aval: ShapedArray
    is_vector: bool


def long_constant(i: int) -> LaneValue:
    """A constant of 64 bits, for indices."""
    return constant(i, LONG)


def flat_index(e: LLVMEmitter, shape: Sequence[int], index: Sequence[LaneValue]) -> LaneValue:
    """Returns the position in C order of the entry ``index`` of an array of this shape;
    adds constant parts at compile time."""
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
    e: LLVMEmitter,
    n: int,
    start: list[LaneValue],
    body: Callable[[LaneValue, list[LaneValue]], list[LaneValue]],
    first: LaneValue | None = None,
    end: LaneValue | None = None,
) -> list[LaneValue]:
    """Emits a loop ``carry = body(i, carry)`` for i from ``first`` (default 0, must be < n) to n - 1,
    and returns the last carry.

    ``end``: a number that replaces n if this is known at run time only; it must be > 0.
    """
    if n == 0 and end is None:
        return start
    w = e.w
    before, inside, after = w.block, w.fresh_name("turn"), w.fresh_name("turned")
    w.jump(inside)
    w.begin_block(inside)
    with w.scope(w.active):
        i, *now = phis = [w.phi(x.dtype, x.is_vector, [(x, before)]) for x in (first or long_constant(0), *start)]
        new = body(i, now)
        following = w.op("add", i, long_constant(1))
        more = w.op("icmp slt", following, long_constant(n) if end is None else end, dtype=bool)
        w.close_loop(phis, [following, *new])
        w.branch(more, inside, after)
    w.begin_block(after)
    return new


def for_range(e: LLVMEmitter, n: int, body: Callable[[LaneValue], None], first: LaneValue | None = None) -> None:
    """Emits ``body(i)`` for i from ``first`` (default 0, must be < n) to n - 1."""
    counted_loop(e, n, [], lambda i, _: body(i) or [], first)  # type: ignore[func-returns-value]


def for_each_index(e: LLVMEmitter, shape: Sequence[int], body: Callable[[list[LaneValue]], None]) -> None:
    """Emits ``body(index)`` for every index of an array of the given shape."""

    def along(axis: int, index: list[LaneValue]) -> None:
        if axis == len(shape):
            body(index)
        else:
            for_range(e, shape[axis], lambda i: along(axis + 1, [*index, i]))

    if math.prod(shape):
        along(0, [])


def for_each_pack(
    e: LLVMEmitter, shape: Sequence[int], has_packs: bool, body: Callable[[list[LaneValue], bool], None]
) -> None:
    """Emits ``body(index, whole)`` in loops over the entries of arrays of the given shape.

    If ``whole`` is true, the body handles the pack of entries from the index on along the last axis, else the entry
    alone. Packs occur in programs of a single lane only, and only if the arrays that the body
    reads have packs (``has_packs``).
    """
    n = shape[-1] if shape else 1
    packs_of = n // e.pack if e.pack > 1 and has_packs else 0
    done = packs_of * e.pack if packs_of else 0

    def along(axis: int, index: list[LaneValue]) -> None:
        if axis < len(shape) - 1:
            for_range(e, shape[axis], lambda i: along(axis + 1, [*index, i]))
            return
        if packs_of:
            for_packs(e, done, lambda i: body([*index, i], True))
        if done < n:
            for_range(e, n, lambda i: body([*index, i], False), long_constant(done))

    if math.prod(shape) and shape:
        along(0, [])
    elif not shape:
        body([], False)


def for_packs(
    e: LLVMEmitter, n: int, body: Callable[[LaneValue], None], first: LaneValue | None = None, step: int | None = None
) -> None:
    """Emits ``body(i)`` in a loop over i = first, first + step, ... < n, such as the first entries of packs.

    ``step``: by default the size of a pack; ``first`` (by default 0) and n must be multiples of it.
    """
    w = e.w
    before, inside, after = w.block, w.fresh_name("turn"), w.fresh_name("turned")
    w.jump(inside)
    w.begin_block(inside)
    with w.scope(w.active):
        i = w.phi(LONG, False, [(first or long_constant(0), before)])
        body(i)
        following = w.op("add", i, long_constant(step or e.pack))
        more = w.op("icmp slt", following, long_constant(n), dtype=bool)
        w.close_loop([i], [following])
        w.branch(more, inside, after)
    w.begin_block(after)


def read(x: LargeArray, index: Sequence[LaneValue], whole: bool) -> LaneValue:
    """Emits the read of the entry ``index`` of an array or, if ``whole``, of the pack of entries from there on."""
    assert not whole or x.pack_at is not None
    return x.pack_at(index) if whole and x.pack_at else x.at(index)


def packs_at(x: LargeArray, pick: Callable[[Sequence[LaneValue]], list[LaneValue]]) -> Callable | None:
    """Returns the function `LargeArray.pack_at` of a view of x, given ``pick`` from an index of the view to that of x;
    None if x has no packs."""
    read_pack = x.pack_at
    return None if read_pack is None else lambda index: read_pack(pick(index))


def with_axes(x: LargeArray, order: Sequence[int]) -> LargeArray:
    """Returns a view of the array with its axes in the given order, as `numpy.transpose`."""
    if x.source is not None:
        x, before = x.source
        order = [before[i] for i in order]
    if list(order) == list(range(len(order))):
        return x
    back = [int(i) for i in np.argsort(order)]
    pick = lambda index: [index[i] for i in back]
    shape, kept = tuple(x.shape[i] for i in order), order[-1] == len(order) - 1
    at = lambda index: x.at(pick(index))
    return LargeArray(
        shape, x.dtype, x.is_vector, at, pack_at=packs_at(x, pick) if kept else None, source=(x, tuple(order))
    )


# arrays in memory


def array_at(e: LLVMEmitter, pointer: str, shape: Sequence[int], dtype: DType, is_vector: bool) -> LargeArray:
    """Returns the array that is stored at ``pointer``, the name of a pointer in the IR, in C order."""

    def at(index: Sequence[LaneValue]) -> LaneValue:
        w, place = e.w, flat_index(e, shape, index)
        if not place.is_vector:
            return w.load(w.address(pointer, dtype, is_vector=is_vector, place=place), dtype, is_vector)
        if e.pack > 1 and memory_dtype(dtype).itemsize in (4, 8):
            return w.gather(pointer, dtype, place)
        return w.from_lanes([w.load(address, dtype, False) for address in _lane_addresses(e, block, place)])

    def pack_at(index: Sequence[LaneValue]) -> LaneValue:
        place = flat_index(e, shape, index)
        return e.w.load(e.w.address(pointer, dtype, is_vector=False, place=place), dtype, True)

    block = LargeArray(tuple(shape), np.dtype(dtype), is_vector, at, pointer, pack_at if e.pack > 1 else None)
    return block


def lower_factor(e: LLVMEmitter, shape: Sequence[int], high: LargeArray) -> LargeArray:
    """Returns a lower triangular factor of which only the transpose is stored, as ``high``.

    A factorisation that fails leaves NaN on the diagonal of ``high``; then all entries of the factor are NaN.
    """

    def low(index: Sequence[LaneValue]) -> LaneValue:
        i, j = index
        pivot, zero = high.at([long_constant(0)] * 2), constant(0, high.dtype)
        found = e.w.select(e.w.op("icmp slt", i, j, dtype=bool), zero, high.at([j, i]))
        return e.w.select(e.w.op("fcmp uno", pivot, pivot, dtype=bool), pivot, found)

    return LargeArray(tuple(shape), high.dtype, False, low, flipped=high)


def reserve_array(e: LLVMEmitter, shape: Sequence[int], dtype: DType, is_vector: bool) -> LargeArray:
    """Reserves scratch memory for an array and returns the array, which is not initialised."""
    return array_at(e, e.w.reserve(math.prod(shape), dtype, is_vector), shape, dtype, is_vector)


def store_entry(e: LLVMEmitter, target: LargeArray, index: Sequence[LaneValue], x: LaneValue) -> None:
    """Emits ``target[index] = x``, for an entry or a pack x; with a store for each lane if the
    index differs between lanes."""
    w, place = e.w, flat_index(e, target.shape, index)
    x = w.as_vector(x) if target.is_vector else x  # of a single lane a vector is a pack
    if not place.is_vector:
        w.store(w.address(target.pointer, target.dtype, is_vector=target.is_vector, place=place), x)
        return
    for lane, address in enumerate(_lane_addresses(e, target, place)):
        w.store(address, w.extract_lane(x, lane))


def _lane_addresses(e: LLVMEmitter, x: LargeArray, place: LaneValue) -> list[str]:
    """Returns the addresses of one entry of x for each lane, at the positions ``place``, which differ between lanes."""
    w = e.w
    place = w.op("mul", place, long_constant(w.width)) if x.is_vector else place
    places = [w.extract_lane(place, i) for i in range(w.width)]
    places = [w.op("add", i, long_constant(k)) for k, i in enumerate(places)] if x.is_vector else places
    return [w.address(x.pointer, x.dtype, is_vector=False, place=i) for i in places]


def copy_array(e: LLVMEmitter, target: LargeArray, x: LargeArray, where: LaneValue | None) -> None:
    """Emits a copy of x into ``target``, in the lanes of the mask ``where`` (None: all)."""

    if e.pack > 1 and x.shape == target.shape and has_flat_view(x):
        x, target = flat_view(e, x), flat_view(e, target)
    if e.pack > 1 and where is None and x.source and x.source[1] == (1, 0) and x.source[0].pack_at:
        transpose_into(e, target, x.source[0])
        return

    def body(index: list[LaneValue], whole: bool) -> None:
        new = read(x, index, whole)
        new = e.w.as_vector(new) if whole else new
        store_entry(e, target, index, new if where is None else e.w.select(where, new, read(target, index, whole)))

    for_each_pack(e, target.shape, x.pack_at is not None, body)


def transpose_into(e: LLVMEmitter, target: LargeArray, x: LargeArray, lower: bool = False) -> None:
    """Emits the copy of the transpose of a matrix x, in a program of a single lane, into the upper left corner of
    ``target``, block by block.

    ``lower``: only the lower triangle of x is needed.
    """
    (rows, columns), size, w = x.shape, e.pack, e.w
    down, across = rows - rows % size, columns - columns % size
    several = lambda i: [w.op("add", i, long_constant(k)) if k else i for k in range(size)]

    def block(i: LaneValue, j: LaneValue) -> None:
        turned = packs.transpose_packs(w, [read(x, [k, j], True) for k in several(i)])
        for k, column in zip(several(j), turned, strict=True):
            store_entry(e, target, [k, i], column)

    def entry(i: LaneValue, j: LaneValue) -> None:
        store_entry(e, target, [j, i], x.at([i, j]))

    if down and across:
        for_packs(e, across, lambda j: for_packs(e, down, lambda i: block(i, j), j if lower else None))
    if down < rows:
        for_range(e, rows, lambda i: for_range(e, columns, lambda j: entry(i, j)), long_constant(down))
    if across < columns and down:
        for_range(e, down, lambda i: for_range(e, columns, lambda j: entry(i, j), long_constant(across)))


def has_flat_view(x: LargeArray) -> bool:
    """Whether `flat_view` can be had of an array."""
    return bool(x.pointer) or len(x.shape) == 1 or x.in_line is not None


def flat_view(e: LLVMEmitter, x: LargeArray) -> LargeArray:
    """Returns an array as an array with one axis, without a copy."""
    if x.pointer:
        return array_at(e, x.pointer, (x.size,), x.dtype, x.is_vector)
    return x if len(x.shape) == 1 else x.in_line


def one_entry(x: LargeArray) -> LargeArray:
    """Returns an array of one entry as an array without axes."""
    return LargeArray((), x.dtype, x.is_vector, lambda _: x.at([long_constant(0)] * len(x.shape)))


def as_large_array(e: LLVMEmitter, x: Value) -> LargeArray:
    """Returns a value as a large array; an array of scalars is stored in new memory for this."""
    if isinstance(x, LargeArray):
        return x
    if e.pack > 1 and x.size:
        return _stored_packs(e, x)
    numbers = [e.as_value(y) for y in x.flat]
    is_vector = any(y.is_vector for y in numbers)
    target = reserve_array(e, x.shape, numbers[0].dtype if numbers else np.float64, is_vector)
    for i, y in enumerate(numbers):
        e.w.store(
            e.w.address(target.pointer, y.dtype, is_vector=is_vector, place=long_constant(i)),
            e.w.as_vector(y) if is_vector else y,
        )
    return target


def _stored_packs(e: LLVMEmitter, x: Value) -> LargeArray:
    """Stores an array of scalars of a single lane in new memory, pack by pack, and returns it as a large array."""
    dtype, width = x.flat[0].dtype, e.w.width
    # a pack that is not full may run over the end
    target = array_at(e, e.w.reserve(-(-x.size // width) * width, dtype, False), x.shape, dtype, False)
    store_packs(e, target.pointer, x)
    return target


def store_packs(e: LLVMEmitter, pointer: str, x: Value) -> None:
    """Emits the stores of an array of scalars of a single lane from ``pointer`` on; the last pack, if not full,
    may write beyond the end."""
    w, flat = e.w, list(x.flat)
    for first in range(0, x.size, w.width):
        part = flat[first : first + w.width]
        whole = 2 * len(part) > w.width
        for i, y in (
            [(first, packs.pack_of(w, part))] if whole else [(first + k, e.as_value(y)) for k, y in enumerate(part)]
        ):
            w.store(w.address(pointer, flat[0].dtype, is_vector=False, place=long_constant(i)), y)


def _loaded_packs(e: LLVMEmitter, x: LargeArray) -> Value:
    """Returns a stored array of a single lane as an array of scalars, which are loaded pack by pack."""
    w, found = e.w, list[Scalar]()
    for first in range(0, x.size, w.width):
        count = min(w.width, x.size - first)
        place = lambda i: w.address(x.pointer, x.dtype, is_vector=False, place=long_constant(i))
        if count == w.width:
            found += packs.entries_of(w.load(place(first), x.dtype, True), count)
        else:
            found += [w.load(place(first + k), x.dtype, False) for k in range(count)]
    return object_array(x.shape, found)


def copy_to_new(e: LLVMEmitter, x: LargeArray, is_vector: bool) -> LargeArray:
    """Copies an array into new memory; ``is_vector``: whether the copy differs between lanes."""
    target = reserve_array(e, x.shape, x.dtype, is_vector)
    copy_array(e, target, x, None)
    return target


def materialise(e: LLVMEmitter, x: Value) -> LargeArray:
    """Returns a value as a stored array; computes and stores it if it is lazy, or an array of scalars."""
    x = as_large_array(e, x)
    return x if x.pointer else copy_to_new(e, x, x.is_vector)


def scalars_if_small(e: LLVMEmitter, x: Value) -> Value:
    """Returns a large array as an array of scalars if it has few enough entries; returns other values unchanged."""
    if not isinstance(x, LargeArray) or x.size > e.max_scalars:
        return x
    return as_scalars(e, x)


def as_scalars(e: LLVMEmitter, x: Value) -> Value:
    """Returns a large array of any size as an object array of scalars; returns other values unchanged."""
    if not isinstance(x, LargeArray):
        return x
    if x.pointer and e.pack > 1:
        return _loaded_packs(e, x)
    return object_array(x.shape, (x.at([long_constant(i) for i in index]) for index in np.ndindex(x.shape)))


def leading_slice(e: LLVMEmitter, x: LargeArray, i: LaneValue) -> LargeArray:
    """Returns the part ``x[i]`` of a stored array, without a copy."""
    first = flat_index(e, x.shape, [i, *[long_constant(0)] * (len(x.shape) - 1)])
    return array_at(
        e, e.w.address(x.pointer, x.dtype, is_vector=x.is_vector, place=first), x.shape[1:], x.dtype, x.is_vector
    )


def read_input(e: LLVMEmitter, source: ProgramInput) -> Value:
    """Returns a program input as a value: a small one is loaded now, as scalars,
    a large one entry by entry where it is used."""
    w, aval = e.w, source.aval
    if not source.is_vector:
        return scalars_if_small(e, array_at(e, source.pointer, aval.shape, aval.dtype, False))

    def at(index: Sequence[LaneValue]) -> LaneValue:
        skipped = w.op("mul", flat_index(e, aval.shape, index), LaneValue("%row", LONG, False))
        place = w.op("add", skipped, LaneValue("%lane", LONG, False))
        return w.load(w.address(source.pointer, aval.dtype, is_vector=False, place=place), aval.dtype, True)

    return scalars_if_small(e, LargeArray(aval.shape, np.dtype(aval.dtype), True, at))


def row_of_input(e: LLVMEmitter, pointer: str, aval: ShapedArray, i: LaneValue, of_lanes: bool) -> Value:
    """Returns the i-th entry, an array, of a sequence that a `stream` reads, as `read_input` does.

    ``aval``: of the entry; ``of_lanes``: whether it differs between lanes.
    """
    w, shape = e.w, aval.shape
    first = w.op("mul", i, long_constant(math.prod(shape))) if shape else i
    if not of_lanes or w.width == 1 or e.pack > 1:
        return scalars_if_small(
            e, array_at(e, w.address(pointer, aval.dtype, is_vector=False, place=first), shape, aval.dtype, False)
        )

    def at(index: Sequence[LaneValue]) -> LaneValue:
        entry = w.op("add", first, flat_index(e, shape, index))
        place = w.op("add", w.op("mul", entry, LaneValue("%row", LONG, False)), LaneValue("%lane", LONG, False))
        return w.load(w.address(pointer, aval.dtype, is_vector=False, place=place), aval.dtype, True)

    return scalars_if_small(e, LargeArray(shape, np.dtype(aval.dtype), True, at))


def embed_constant(e: LLVMEmitter, x: np.ndarray) -> LargeArray:
    """Returns a constant array as a large array, stored as a global constant of the module."""
    dtype, key = memory_dtype(x.dtype), (str(x.dtype), x.size, x.tobytes())
    if key not in e.constants:
        name = f"@array{len(e.constants)}"
        numbers = ", ".join(f"{llvm_scalar_type(dtype)} {constant(y, dtype).name}" for y in x.ravel())
        e.constants[key] = name, f"{name} = private constant [{x.size} x {llvm_scalar_type(dtype)}] [{numbers}]"
    # one object, so that operations on it that are equal are found to be
    if (*key, x.shape) not in e.embedded:
        e.embedded[(*key, x.shape)] = replace(array_at(e, e.constants[key][0], x.shape, x.dtype, False), known=x)
    return e.embedded[(*key, x.shape)]


def known_entries(x: Value) -> np.ndarray | None:
    """Returns the entries of a value that is a constant array; None for other values."""
    if isinstance(x, LargeArray):
        return x.known
    return np.array(list(x.flat), x.flat[0].dtype).reshape(x.shape) if x.size and all_constant(x) else None
