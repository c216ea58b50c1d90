"""Entries of one lane's arrays side by side in registers, for programs of a single lane: its arithmetic on arrays then is that of vectors.

A pack is a vector of the IR. The entries of an array stay scalars of the interpreter, which moves them as it likes; each knows in which
pack it lies, and an operation on a row of entries puts the packs of its operands together: nothing is to be done where they lie as they
are needed, a shuffle or two where they were moved, and insertions where they are no entries of packs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..limits import MIN_DEAR_SIDE_BY_SIDE
from ..scalar import is_constant, object_array
from .elementwise import LIBRARY
from .exponential import FUNCTIONS
from .ir_values import LaneValue, constant, llvm_scalar_type
from .ir_writer import Writer

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


@dataclass(frozen=True, slots=True)
class PackEntry:
    """An entry of a pack, taken out only where it is used by itself."""

    pack: LaneValue
    index: int

    @property
    def dtype(self) -> np.dtype:
        return self.pack.dtype


def chunks(shape: Sequence[int], pack: int) -> Iterator[tuple[int, int]]:
    """Bounds of the parts of an array's entries, in C order, that make a pack: of rows that fill at least half of one, row by row."""
    size = int(np.prod(shape))
    row = shape[-1] if shape else 1
    row = row if 2 * row > pack else size
    for start in range(0, size, row or 1):
        for first in range(start, start + row, pack):
            yield first, min(first + pack, start + row)


def entries_of(pack: LaneValue, count: int) -> list[PackEntry]:
    """The first entries of a pack."""
    return [PackEntry(pack, i) for i in range(count)]


def pack_of(w: Writer, entries: Sequence[Any]) -> LaneValue:
    """Scalars, constant or not, as a pack; what is left of it holds the last one."""
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


def adjacent(entries: Sequence[Any]) -> bool:
    """Whether entries lie side by side in a pack, or need none."""
    first = entries[0]
    if isinstance(first, PackEntry):
        return all(isinstance(x, PackEntry) and x.pack == first.pack and x.index == i for i, x in enumerate(entries))
    return all(x == first for x in entries) if not is_constant(first) else all(map(is_constant, entries))


def scalar_of(w: Writer, x: Any) -> LaneValue:
    """A scalar by itself, as a value of the IR."""
    if isinstance(x, PackEntry):
        return w.extract_lane(x.pack, x.index)
    return constant(x, x.dtype) if is_constant(x) else x


def _assemble(w: Writer, entries: Sequence[Any]) -> LaneValue:
    """A pack of entries from anywhere: constants, shuffles of the packs that they lie in, insertions of single scalars."""
    dtype = entries[0].dtype
    sources: dict[Any, dict[int, int]] = {}  # pack -> place -> index in it
    single: dict[int, Any] = {}
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
    """Entries of x (from 0 on) and y (from the width on) at the given places; -1: any."""
    mask = ", ".join(f"i32 {'poison' if k < 0 else k}" for k in places)
    instruction = f"shufflevector {w.typed_name(x)}, {w.typed_name(y)}, <{len(places)} x i32> <{mask}>"
    return w.emit_value(x.dtype, True, f"shufflevector {mask}", [x, y], instruction)


def operand(w: Writer, entries: Sequence[Any]) -> LaneValue:
    """Entries as an operand of an instruction: one scalar where all are the same, else a pack."""
    first = entries[0]
    if all(x is first for x in entries) or all(
        x == first and type(x) is type(first) and not is_constant(x) for x in entries
    ):
        return scalar_of(w, first)
    if is_constant(first) and all(is_constant(x) and x.tobytes() == first.tobytes() for x in entries):
        return scalar_of(w, first)
    return pack_of(w, entries)


def elementwise(
    e: Any, machine: Any, name: str, params: Any, structural: bool, arrays: Sequence[np.ndarray]
) -> np.ndarray:
    """An elementwise primitive on arrays of one shape, side by side where enough entries are not known without an instruction."""
    found: list[Any] = []
    flat = [list(a.flat) for a in arrays]
    least = MIN_DEAR_SIDE_BY_SIDE if name in DEAR else e.w.width // 2 + 1
    for start, stop in chunks(arrays[0].shape, e.w.width):
        rows = [x[start:stop] for x in flat]
        results = [machine.known(name, x, params, structural) for x in zip(*rows, strict=True)]
        open_places = [i for i, x in enumerate(results) if x is None]
        # beside others that lie in a pack already an instruction on all of them costs least
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
    w: Writer, combine: Callable[[LaneValue, LaneValue], LaneValue], entries: Sequence[Any], empty: Any
) -> Any:
    """The reduction of many entries to one, packs first; ``empty``: what changes nothing, None where repeating an entry does not."""
    total = None
    for first in range(0, len(entries), w.width):
        part = list(entries[first : first + w.width])
        part += [part[-1] if empty is None else empty] * (w.width - len(part))
        total = pack_of(w, part) if total is None else combine(total, pack_of(w, part))
    assert total is not None
    return fold_pack(w, combine, total)


def fold_pack(w: Writer, combine: Callable[[LaneValue, LaneValue], LaneValue], x: LaneValue) -> LaneValue:
    """The reduction of a pack's entries, half on half."""
    step = w.width // 2
    while step:
        x = combine(x, shuffle(w, x, x, [(i + step) % w.width for i in range(w.width)]))
        step //= 2
    return w.extract_lane(x, 0)


def transpose_packs(w: Writer, rows: list[LaneValue]) -> list[LaneValue]:
    """As many packs as a pack has entries, as the rows of a matrix: its columns, by exchanges of ever larger blocks."""
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


def packs_of_array(w: Writer, x: np.ndarray) -> list[LaneValue]:
    """The packs of an array, as they pass between blocks."""
    flat = list(x.flat)
    return [pack_of(w, flat[start:stop]) for start, stop in chunks(x.shape, w.width)]


def array_of_packs(shape: Sequence[int], packs: Iterator[LaneValue], width: int) -> np.ndarray:
    """Inverse of `packs_of_array`; takes the packs that it needs."""
    return object_array(
        shape, [x for start, stop in chunks(shape, width) for x in entries_of(next(packs), stop - start)]
    )
