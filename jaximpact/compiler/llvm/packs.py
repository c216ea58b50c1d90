"""Packs: several entries of an array side by side in one vector of the IR,
so that programs of a single lane compute with vectors too.

For the interpreter the entries of an array stay scalars, which it can move; each knows its pack and its index in the
pack (`PackEntry`). An operation on a row of entries assembles the packs of its operands: without an instruction if the
entries already lie in this order in a pack, by a shuffle or two if they were moved,
and by insertions if they are not entries of packs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...jaxtools.jaxpr_types import Params
from ..limits import MIN_DEAR_SIDE_BY_SIDE
from ..scalar import is_constant, object_array
from ..scalar.values import Scalar
from .elementwise import LIBRARY
from .exponential import FUNCTIONS
from .ir_values import BOOL, LONG, LaneValue, constant, llvm_scalar_type
from .ir_writer import Writer

if TYPE_CHECKING:
    from ..scalar.interpreter import ScalarInterpreter
    from .emitter import LLVMEmitter

# operations worth packing two entries for
DEAR = {
    *LIBRARY,
    *(function.__name__ for function in FUNCTIONS),
    "sin",
    "cos",
    "sqrt",
    "rsqrt",
    "div",
    "pow",
    "logistic",
}


@dataclass(slots=True, unsafe_hash=True)  # as `LaneValue`
class PackEntry:
    """An entry of a pack; the instruction that extracts it is emitted only if the entry is used as a scalar."""

    pack: LaneValue
    index: int

    @property
    def dtype(self) -> np.dtype:
        return self.pack.dtype


def chunks(shape: Sequence[int], pack: int) -> Iterator[tuple[int, int]]:
    """Yields bounds (start, stop) of the entries, in C order, that form a pack,
    for an array of this shape and packs of ``pack`` entries.

    If a row fills more than half of a pack, no pack has entries of several rows.
    """
    size = int(np.prod(shape))
    row = shape[-1] if shape else 1
    row = row if 2 * row > pack else size
    for start in range(0, size, row or 1):
        for first in range(start, start + row, pack):
            yield first, min(first + pack, start + row)


def entries_of(pack: LaneValue, count: int) -> list[PackEntry]:
    """Returns the first ``count`` entries of a pack, as scalars."""
    return [PackEntry(pack, i) for i in range(count)]


def pack_of(w: Writer, entries: Sequence[Scalar]) -> LaneValue:
    """Returns scalars, constant or not, as a pack, assembled if necessary;
    surplus places of the pack repeat the last scalar."""
    first = entries[0]
    if isinstance(first, PackEntry) and all(
        isinstance(x, PackEntry) and x.pack == first.pack and x.index == i for i, x in enumerate(entries)
    ):
        return first.pack
    if all(x is first for x in entries):
        return w.as_vector(scalar_of(w, first))
    entries = [*entries, *[entries[-1]] * (w.width - len(entries))]
    key = "pack", tuple((x.dtype, x.tobytes()) if is_constant(x) else x for x in entries)
    if (known := w.lookup(key)) is None:
        known = w.available[-1][key] = _assemble(w, entries)
    return known


def adjacent(entries: Sequence[Scalar]) -> bool:
    """Whether scalars are the first entries of a pack in this order, or need no instruction to form a pack, as they are
    all equal or constant."""
    first = entries[0]
    if isinstance(first, PackEntry):
        return all(isinstance(x, PackEntry) and x.pack == first.pack and x.index == i for i, x in enumerate(entries))
    return all(x == first for x in entries) if not is_constant(first) else all(map(is_constant, entries))


def scalar_of(w: Writer, x: Any) -> LaneValue:
    """Returns a scalar of the interpreter as a scalar value of the IR; extracts an entry of a pack."""
    if isinstance(x, PackEntry):
        return w.extract_lane(x.pack, x.index)
    return constant(x, x.dtype) if is_constant(x) else x


def _assemble(w: Writer, entries: Sequence[Any]) -> LaneValue:
    """Assembles a pack from any scalars: from constants, by shuffles of the packs in which they lie,
    and by insertions of single scalars."""
    dtype = entries[0].dtype
    sources: dict[LaneValue, dict[int, int]] = {}  # pack -> place -> index in it
    single: dict[int, LaneValue] = {}
    kind = llvm_scalar_type(dtype)
    if fixed := {i: i for i, x in enumerate(entries) if is_constant(x)}:
        numbers = ", ".join(
            f"{kind} {constant(x, dtype).name}" if i in fixed else f"{kind} poison" for i, x in enumerate(entries)
        )
        sources[LaneValue(f"<{numbers}>", np.dtype(dtype), True)] = fixed
    for i, x in enumerate(entries):
        if isinstance(x, PackEntry):
            sources.setdefault(x.pack, {})[i] = x.index
        elif i not in fixed:
            single[i] = x
    found = None
    for x, places in sources.items():
        if found is None and all(i == k for i, k in places.items()):
            found = x
        elif found is None:
            found = shuffle(w, x, x, [places.get(i, -1) for i in range(w.width)])
        else:
            before = set().union(*(set(p) for p in list(sources.values())[: list(sources).index(x)]))
            found = shuffle(
                w, found, x, [w.width + places[i] if i in places else i if i in before else -1 for i in range(w.width)]
            )
    for i, x in single.items():
        found = w.with_entry(LaneValue("poison", np.dtype(dtype), True) if found is None else found, x, i)
    assert found is not None
    return found


def shuffle(w: Writer, x: LaneValue, y: LaneValue, places: Sequence[int]) -> LaneValue:
    """Emits the vector of the entries at ``places``: 0 to width - 1 are those of x,
    from width on those of y; -1 stands for any value."""
    mask = ", ".join(f"i32 {'poison' if k < 0 else k}" for k in places)
    instruction = f"shufflevector {w.typed_name(x)}, {w.typed_name(y)}, <{len(places)} x i32> <{mask}>"
    return w.emit_value(x.dtype, True, f"shufflevector {mask}", [x, y], instruction)


def operand(w: Writer, entries: Sequence[Scalar]) -> LaneValue:
    """Returns scalars as an operand of an instruction: as one scalar if all are the same, else as a pack."""
    first = entries[0]
    if all(x is first for x in entries) or all(
        x == first and type(x) is type(first) and not is_constant(x) for x in entries
    ):
        return scalar_of(w, first)
    if is_constant(first) and all(is_constant(x) and x.tobytes() == first.tobytes() for x in entries):
        return scalar_of(w, first)
    return pack_of(w, entries)


def elementwise(
    e: LLVMEmitter,
    machine: ScalarInterpreter,
    name: str,
    params: Params | None,
    structural: bool,
    arrays: Sequence[np.ndarray],
) -> np.ndarray:
    """Emits an elementwise primitive on arrays of one shape, by packs where enough of the entries need an instruction.

    Arguments as in `scalar.values.Emitter.elementwise`; ``e`` is the emitter.
    """
    found: list[Scalar] = []
    flat = [list(a.flat) for a in arrays]
    least = MIN_DEAR_SIDE_BY_SIDE if name in DEAR else e.w.width // 2 + 1
    for start, stop in chunks(arrays[0].shape, e.w.width):
        rows = [x[start:stop] for x in flat]
        results: list = [machine.known(name, x, params, structural) for x in zip(*rows, strict=True)]
        open_places = [i for i, x in enumerate(results) if x is None]
        # where the entries already lie in packs, one instruction on all of them costs least
        if len(open_places) < (2 if any(isinstance(x[0], PackEntry) and adjacent(x) for x in rows) else least):
            for i in open_places:
                results[i] = machine(name, *(x[i] for x in rows), params=params, structural=structural)
        else:
            made = e.op_of(name, params, [operand(e.w, x) for x in rows])
            for i in open_places:
                results[i] = PackEntry(made, i) if made.is_vector else made
        found += results
    return object_array(arrays[0].shape, found)


def reduce_entries(
    w: Writer, combine: Callable[[LaneValue, LaneValue], LaneValue], entries: Sequence[Scalar], empty: Scalar | None
) -> Scalar:
    """Emits the reduction of scalars to one by ``combine``, pack by pack.

    ``empty``: neutral element that fills the last pack; None if a repeated entry does not change the result.
    """
    total = None
    for first in range(0, len(entries), w.width):
        part = list(entries[first : first + w.width])
        part += [part[-1] if empty is None else empty] * (w.width - len(part))
        total = pack_of(w, part) if total is None else combine(total, pack_of(w, part))
    assert total is not None
    return fold_pack(w, combine, total)


def fold_pack(w: Writer, combine: Callable[[LaneValue, LaneValue], LaneValue], x: LaneValue) -> LaneValue:
    """Emits the reduction of the entries of a pack to a scalar; ``combine`` is applied to its halves,
    again and again.

    Other entries than those of the lower half may be anything: of rotations, which leave the result in all of them,
    LLVM 22 added the first entry to itself in place of the second in the last turn.
    """
    step = w.width // 2
    while step:
        x = combine(x, shuffle(w, x, x, [i + step if i < step else -1 for i in range(w.width)]))
        step //= 2
    return w.extract_lane(x, 0)


def transpose_packs(w: Writer, rows: list[LaneValue]) -> list[LaneValue]:
    """Transposes a square matrix whose rows are packs, by exchanges of ever larger blocks;
    returns its columns as packs."""
    step, rows = 1, list(rows)
    while step < w.width:
        for i in range(w.width):
            if not i & step:
                x, y = rows[i], rows[i + step]
                low = [k if not k & step else w.width + k - step for k in range(w.width)]
                high = [k + step if not k & step else w.width + k for k in range(w.width)]
                rows[i], rows[i + step] = shuffle(w, x, y, low), shuffle(w, x, y, high)
        step *= 2
    return rows


def can_permute(w: Writer, dtype: np.dtype) -> bool:
    """Whether the processor has an instruction for `permute`: of AVX-512,
    whose vectors alone hold eight numbers of eight bytes."""
    return w.hoists_vectors and w.width == 8 and np.dtype(dtype) == np.float64


def permute(w: Writer, packs: Sequence[LaneValue], places: LaneValue) -> LaneValue:
    """Emits the vector of the entries at the given positions of one to four packs taken together."""
    packs = [*packs, *packs[-1:]] if len(packs) % 2 else packs
    function, kind = "@llvm.x86.avx512.vpermi2var.pd.512", w.llvm_type(np.float64, True)
    w.declared[function] = f"declare {kind} {function}({kind}, <8 x i64>, {kind})"
    found = []
    for x, y in zip(packs[::2], packs[1::2], strict=True):  # by the lowest four bits
        operands = ", ".join(map(w.typed_name, (x, places, y)))
        found.append(w.emit_value(x.dtype, True, "permute", [x, places, y], f"call {kind} {function}({operands})"))
    if len(found) == 1:
        return found[0]
    return w.select(w.op("icmp sge", places, constant(16, LONG), dtype=BOOL), found[1], found[0])


def packs_of_array(w: Writer, x: np.ndarray) -> list[LaneValue]:
    """Returns an array of scalars as packs of consecutive entries, the form in which it passes from
    one basic block to another."""
    flat = list(x.flat)
    return [pack_of(w, flat[start:stop]) for start, stop in chunks(x.shape, w.width)]


def array_of_packs(shape: Sequence[int], packs: Iterator[LaneValue], width: int) -> np.ndarray:
    """Inverse of `packs_of_array`: returns an array of scalars of this shape;
    takes as many packs from the iterator as it needs."""
    return object_array(
        shape, [x for start, stop in chunks(shape, width) for x in entries_of(next(packs), stop - start)]
    )
