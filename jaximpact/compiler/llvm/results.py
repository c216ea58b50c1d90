"""Stores of a program's results: arrays once at its end, rows of a `stream` in each iteration of its loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..scalar import Unsupported, Value, is_constant
from . import arrays, packs
from .arrays import LargeArray
from .ir_values import LONG, LaneValue, constant
from .ir_writer import Writer

if TYPE_CHECKING:
    from .emitter import LLVMEmitter


@dataclass(frozen=True, eq=False)
class StreamEntry:
    """An entry of the row that a stream yields in every iteration, and the place in the
    code where its store is written.

    Attributes:
        x: the value.
        stores: lines reserved in the loop's body for its store.
        place: IR name of an index, row * (padded lanes) + first lane: where the value is stored, relative to the memory
            of its entry of the result.
        number: number of the row, if the stream stores its rows one after the other (``by_row``), else None.
    """

    x: LaneValue
    stores: list
    place: str
    number: LaneValue | None = None

    @property
    def dtype(self) -> np.dtype:
        return self.x.dtype


def store_result(e: LLVMEmitter, target: str, x: Value) -> bool:
    """Emits the stores of a program's result x at the pointer ``target``; returns whether it is a row of a stream."""
    w = e.w
    if isinstance(x, LargeArray):
        arrays.for_each_index(
            e,
            x.shape,
            lambda index: _store_entry(e, target, arrays.flat_index(e, x.shape, index), e.of_lane(x.at(index))),
        )
        return False
    rows = {j: y for j, y in enumerate(x.flat) if isinstance(y, StreamEntry)}
    if rows and (first := next(iter(rows.values()))).number is not None:
        _store_row(e, target, first, [y.x if isinstance(y, StreamEntry) else y for y in x.flat])
        return True
    for j, y in enumerate(x.flat):
        if not rows:
            _store_entry(e, target, constant(j, LONG), e.of_lane(e.as_value(y)))
        elif j in rows:
            _store_stream_entry(w, target, j, y, y.x)
        elif is_constant(y):
            _store_stream_entry(w, target, j, next(iter(rows.values())), e.of_lane(e.as_value(y)))
        else:
            raise Unsupported("a result that mixes entries of a stream's rows with other values")
    return bool(rows)


def _store_entry(e: LLVMEmitter, target: str, entry: LaneValue, x: LaneValue) -> None:
    """Emits the store of a vector x, over lanes, as entry number ``entry`` of the result at the pointer ``target``."""
    w = e.w
    place = w.op("add", w.op("mul", entry, LaneValue("%row", LONG, False)), LaneValue("%lane", LONG, False))
    w.store(w.address(target, x.dtype, is_vector=False, place=place), x)


def _store_row(e: LLVMEmitter, target: str, row: StreamEntry, entries: list) -> None:
    """Writes the stores of the ``entries`` of a stream's row, at consecutive addresses,
    into the lines that the loop's body reserved for them.

    ``row``: one of the entries, for its lines and its number.
    """
    w, number = e.w, row.number
    assert number is not None
    # the lines are in an earlier block: results of later blocks are not available there, and its own are not here
    before, w.lines, w.available = (w.lines, w.available), row.stores, [{}]
    first = w.op("mul", number, constant(len(entries), LONG))
    for j in range(0, len(entries), e.pack):
        part = entries[j : j + e.pack]
        whole = len(part) == e.pack > 1
        for k, x in [(j, packs.pack_of(w, part))] if whole else enumerate(map(e.as_value, part), j):
            place = w.op("add", first, constant(k, LONG))
            if e.pack == 1 and w.width > 1:
                place = w.op("add", w.op("mul", place, LaneValue("%row", LONG, False)), LaneValue("%lane", LONG, False))
            w.store(w.address(target, x.dtype, is_vector=False, place=place), x if whole else e.of_lane(x))
    w.lines, w.available = before


def _store_stream_entry(w: Writer, target: str, j: int, row: StreamEntry, x: LaneValue) -> None:
    """Writes the store of x as entry j of a stream's rows into the lines that the loop's body reserved for it; ``row``:
    an entry of the row."""
    outside, w.lines = w.lines, row.stores
    name = "%" + w.fresh_name("p")
    w.emit(f"{name}.skip = mul i64 %rows, {j}")
    w.emit(f"{name}.from = mul i64 {name}.skip, %row")
    w.emit(f"{name}.to = add i64 {name}.from, {row.place}")
    # the lines are in an earlier block: results of later blocks are not available there, and its own are not here
    available, w.available = w.available, [{}]
    w.store(w.address(target, x.dtype, is_vector=False, place=f"i64 {name}.to"), x)
    w.available = available
    w.lines = outside
