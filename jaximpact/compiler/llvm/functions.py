"""Functions of the IR besides the main one: code that is called from several places, emitted once, and long branches of programs of a single lane.

LLVM takes most of the time before a first result. Its time grows with the number of instructions, and for a long function faster than its length.
Also, values that a step with contact keeps would occupy registers in steps without contact. A function reads its arguments from scratch memory, and
writes its results there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...jaxtools.jaxpr_tools import (
    as_closed,
    called_jaxpr,
    closed_over_values,
    nested_jaxprs,
    remember_by_jaxpr,
    value_variables,
)
from ...jaxtools.outlined import is_outlined
from ..limits import MAX_SCALARS_WHERE_SELDOM, MIN_BRANCH_OPS, MIN_FUNCTION_OPS
from ..scalar import Value, is_constant, object_array
from ..scalar.cost import cost
from . import arrays
from .arrays import LargeArray
from .ir_lines import join_lines
from .ir_values import POINTER, LaneValue, memory_dtype
from .ir_writer import Writer
from .packs import PackEntry


class Place(NamedTuple):
    """Position of a scalar, vector or pointer in scratch memory, as an offset in bytes, and its type."""

    offset: int
    dtype: np.dtype
    is_vector: bool


class Function(NamedTuple):
    """An emitted function of the IR.

    Attributes:
        name: its name.
        taken: the arguments that it reads: pairs of the number of an argument and the place in memory from which the function loads it.
        results: its results, as values that exist inside the function; they give the forms of the results of a call.
        given: for each scalar, pack or pointer in the results (`values_of`), the place where the function stores it or, if it is one of the
            arguments, the number of this argument.
    """

    name: str
    taken: list[tuple[int, Place]]
    results: list[Value]
    given: list[Place | int]


class _NotALine(Exception):
    """Raised while a function of many lanes is emitted, if it is not straight-line code: if it has loops, branches or arrays in memory."""


class Functions:
    """The functions emitted so far for one program, found again by jaxpr and form of the arguments."""

    def __init__(self, emitter: Any) -> None:
        self.emitter = emitter
        self.known: dict[Any, Function | None] = {}  # None: emitted in place
        self.counts: Counter = Counter()  # calls of each jaxpr in the program
        self.inside = (
            False  # whether a function of scalars of many lanes is being emitted: calls inside it are emitted in place
        )

    def read(self, closed: Any) -> None:
        """Counts how often a program calls each outlined jaxpr."""
        self.counts = Counter(dict(_calls(closed)))

    def refuse(self) -> None:
        """Raises `_NotALine` if a function of many lanes is being emitted; its code is then emitted in place of each call.

        The emitter calls this before it emits a loop, a branch or an array in memory, since such a function may hold straight-line scalar operations
        only.
        """
        if self.inside:
            raise _NotALine

    def call(self, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]:
        """Emits an equation that calls an outlined function, as a call, or as the function's code where that is cheaper; returns its results."""
        e, jaxpr = self.emitter, as_closed(called_jaxpr(eqn))
        if self.inside or self.counts[id(jaxpr.jaxpr)] < 2 or cost(jaxpr, e.max_scalars) < MIN_FUNCTION_OPS:
            return machine.run(jaxpr, inputs)
        captured = _find_captured(machine, jaxpr)
        values = [*inputs, *captured.values()]
        if any(x is None or (e.pack == 1 and isinstance(x, LargeArray)) for x in values):
            return machine.run(jaxpr, inputs)
        uniform = (lambda x: _side_by_side(e, x)) if e.pack > 1 else lambda x: x
        values = list(map(uniform, values))
        key = jaxpr.jaxpr, e.max_scalars, e.w.width, *(() if e.pack > 1 else map(_kinds, values))
        if key not in self.known:
            body = lambda known: list(map(uniform, self._run(machine, jaxpr, captured, known)))
            self.inside = e.pack == 1
            try:
                self.known[key] = _emit_function(e, f"@shared.{len(self.known)}", values, body)
            except _NotALine:
                self.known[key] = None
            finally:
                self.inside = False
        if (function := self.known[key]) is None:
            return machine.run(jaxpr, inputs)
        called = function.name, *values_of(values)
        if (results := e.w.lookup((called, None))) is None:
            found = [arrays.scalars_if_small(e, x) for x in _call_function(e, function, values)]
            # a further call overwrites what lies in memory
            results = [arrays.copy_to_new(e, x, False) if isinstance(x, LargeArray) else x for x in found]
            e.w.available[-1][called, None] = results
        return results

    def _run(self, machine: Any, jaxpr: Any, captured: Collection, values: list[Value]) -> list[Value]:
        """Emits a jaxpr and returns its results.

        ``captured``: variables of the program's inputs that it closes over; ``values``: values of the jaxpr's own inputs, then of these.
        """
        before, count = machine.input_values, len(values) - len(captured)
        machine.input_values = before | dict(zip(captured, values[count:], strict=True))
        try:
            return machine.run(jaxpr, values[:count])
        finally:
            machine.input_values = before

    def is_long(self, jaxpr: Any) -> bool:
        """Whether a branch is long enough to become a function of its own; only in programs of a single lane."""
        e = self.emitter
        return e.pack > 1 and cost(jaxpr, e.max_scalars) - repeated_cost(jaxpr, e.max_scalars) > MIN_BRANCH_OPS

    def apart(self, machine: Any, jaxpr: Any, operands: list[Value], seldom: bool = False) -> list[Value]:
        """Emits a jaxpr as a function that is called here only, in a program of a single lane; returns the results of the call.

        ``seldom``: whether the function runs so seldom that its code should be short rather than fast.
        """
        e, closed, captured = self.emitter, as_closed(jaxpr), _find_captured(machine, jaxpr)
        read = value_variables(closed.jaxpr)
        operands = [x if v in read else None for v, x in zip(closed.jaxpr.invars, operands, strict=True)]

        def body(known: list[Value]) -> list[Value]:
            outside = e.max_scalars
            e.max_scalars = min(outside, MAX_SCALARS_WHERE_SELDOM) if seldom else outside
            try:
                found = self._run(machine, closed, captured, [_as_it_is_read(e, x) for x in known])
            finally:
                e.max_scalars = outside
            return [_side_by_side(e, x) for x in found]

        values = [_in_memory(e, x) for x in (*operands, *captured.values())]
        name = f"@apart.{e.w.fresh_name('f')}"
        return _call_function(e, _emit_function(e, name, values, body, True, "optnone" if seldom else ""), values)


def _find_captured(machine: Any, jaxpr: Any) -> dict[Any, Value]:
    """Returns the values of the program's inputs that a jaxpr closes over, as a mapping from variables."""
    return {v: machine.input_values[v] for v in closed_over_values(jaxpr) if v in machine.input_values}


# values of a function


def _continues(x: Any, last: Any) -> bool:
    """Whether x is the entry of a pack that follows the entry ``last`` in the same pack."""
    return (
        isinstance(x, PackEntry) and isinstance(last, PackEntry) and x.pack == last.pack and x.index == last.index + 1
    )


def _store_array(x: LargeArray) -> LargeArray:
    """Returns the stored array of which a large array is a view, such as a transpose; the array itself if it is no view."""
    return x.flipped if x.flipped is not None else x.source[0] if x.source else x


def values_of(values: Sequence[Value]) -> Iterator[LaneValue]:
    """Yields the scalars, packs and pointers of stored arrays that ``values`` consist of, without constants."""
    for x in values:
        if isinstance(x, LargeArray) and x.known is None:
            yield LaneValue(_store_array(x).pointer, POINTER, False)
        elif isinstance(x, np.ndarray):
            for y, last in zip(x.flat, [None, *x.flat][:-1] if x.size else (), strict=True):
                if not is_constant(y) and not _continues(y, last):
                    yield y.pack if isinstance(y, PackEntry) else y


def _consisting_of(e: Any, x: Value, parts: Iterator[LaneValue]) -> Value:
    """Returns a value like x in which ``parts`` replace the scalars, packs and pointers that `values_of` yields for x; constants stay."""
    if isinstance(x, LargeArray) and x.known is None:
        y = _store_array(x)
        y = arrays.array_at(e, next(parts).name, y.shape, y.dtype, y.is_vector)
        if x.flipped is not None:
            return arrays.lower_factor(e, x.shape, y)
        return arrays.with_axes(y, x.source[1]) if x.source else y
    if not isinstance(x, np.ndarray):
        return x
    found = list[Any]()
    last: Any = None
    part: Any = None
    for y in x.flat:
        part = y if is_constant(y) else part if _continues(y, last) else next(parts)
        found.append(PackEntry(part, y.index) if isinstance(y, PackEntry) else part)
        last = y
    return object_array(x.shape, found)


def _kinds(x: Value) -> tuple:
    """Hashable key of an array of scalars: the values of its constants, and the types of all other entries."""
    return tuple((y.dtype, y.tobytes()) if is_constant(y) else (y.dtype, y.is_vector) for y in x.flat)


def _in_memory(e: Any, x: Value) -> Value:
    """Returns the value x, stored in memory if it is a lazy large array, so that `values_of` has a pointer to it."""
    if not isinstance(x, LargeArray) or x.known is not None or _store_array(x).pointer:
        return x
    return arrays.materialise(e, x)


def _as_it_is_read(e: Any, x: Value) -> Value:
    """Returns the value x, as a large array in memory if it has more entries than arrays of scalars may have; None stays."""
    return arrays.as_large_array(e, x) if x is not None and x.size > e.max_scalars else x


def _side_by_side(e: Any, x: Value) -> Value:
    """Returns a value of a single lane as packs, or as a stored array if it is large: a form that is the same in all calls of a function."""
    if x.size > e.max_scalars:
        return replace(arrays.materialise(e, x), known=None)
    x = arrays.as_scalars(e, x)
    return e.unflatten([x], e.flatten([x], [False]))[0]


# definitions and calls


def _emit_function(
    e: Any,
    name: str,
    values: Sequence[Value],
    body: Callable[[list[Value]], list[Value]],
    distinct: bool = False,
    attributes: str = "",
) -> Function:
    """Emits the definition of a function ``name`` that takes arguments of the form of ``values``, and returns ``body(arguments)``.

    ``distinct``: whether the function is for one call only, so that equal values can share an argument; ``attributes``: LLVM's, of the function.
    """
    outer, counter = e.w, e.counter
    e.w = w = outer.of_function()
    e.counter = None
    try:
        w.begin_block("entry")
        taken, known, loaded = list[tuple[int, Place]](), list[LaneValue](), dict[Any, LaneValue]()
        for i, x in enumerate(values_of(values)):
            key = x if distinct else i
            if key not in loaded:
                taken.append((i, at := _reserve_place(w, x)))
                loaded[key] = w.load(w.pointer_to(at.offset), at.dtype, at.is_vector)
            known.append(loaded[key])
        parts = iter(known)
        results = body([_consisting_of(e, x, parts) for x in values])
        places: dict[LaneValue, Place | int] = {x: i for i, x in enumerate(known)}
        given = list(values_of(results))
        for x in given:
            if x not in places:
                places[x] = to = _reserve_place(w, x)
                w.store(w.pointer_to(to.offset), x)
    finally:
        e.w, e.counter = outer, counter
    entry, *lines = w.lines
    head = f"define internal void {name}(ptr noalias %work) noinline {attributes} nounwind alignstack(64) {{"
    outer.with_function(w, name, join_lines([head, entry, *w.entry_lines, *lines, "  ret void", "}"]))
    return Function(name, taken, results, [places[x] for x in given])


def _reserve_place(w: Writer, x: LaneValue) -> Place:
    """Reserves scratch memory for a scalar, vector or pointer x."""
    size = memory_dtype(x.dtype).itemsize * (w.width if x.is_vector else 1)
    return Place(w.reserve_bytes(size, size), np.dtype(x.dtype), x.is_vector)


def _call_function(e: Any, function: Function, values: Sequence[Value]) -> list[Value]:
    """Emits a call of a function with the arguments ``values``, and returns its results."""
    w, given = e.w, list(values_of(values))
    for i, at in function.taken:
        w.store(w.pointer_to(at.offset), given[i])
    w.emit(f"call void {function.name}(ptr %work)")
    loaded: dict[Place, LaneValue] = {}
    for at in dict.fromkeys(x for x in function.given if isinstance(x, Place)):
        loaded[at] = w.load(w.pointer_to(at.offset), at.dtype, at.is_vector)
    parts = (loaded[x] if isinstance(x, Place) else given[x] for x in function.given)
    return [_consisting_of(e, x, parts) for x in function.results]


def value_key(x: Value) -> Any:
    """Hashable key of a value: equal keys mean identical values; constants are compared by their bits (NaN, -0.0)."""
    return (
        x
        if isinstance(x, LargeArray)
        else (x.shape, *((y.dtype, y.tobytes()) if is_constant(y) else y for y in x.flat))
    )


@remember_by_jaxpr
def repeated_cost(jaxpr: Any, max_scalars: int) -> int:
    """Returns the number of operations that a jaxpr saves as outlined functions are emitted once: those of their second and later calls."""
    return sum((n - 1) * cost(part, max_scalars) for part, n in _outermost_calls(jaxpr).items())


@remember_by_jaxpr
def _outermost_calls(jaxpr: Any) -> Counter:
    """Counts the calls of each outlined jaxpr in ``jaxpr``, without calls that are made inside outlined jaxprs."""
    found: Counter = Counter()
    for eqn in jaxpr.eqns:
        for part in nested_jaxprs(eqn):
            found.update([part] if is_outlined(eqn) else _outermost_calls(part))
    return found


@remember_by_jaxpr
def _calls(jaxpr: Any) -> tuple[tuple[int, int], ...]:
    """Returns pairs (id, number of calls) for the outlined jaxprs that a jaxpr calls, at any depth."""
    found: Counter = Counter()
    for eqn in jaxpr.eqns:
        if is_outlined(eqn):
            found[id(nested_jaxprs(eqn)[0])] += 1
        for part in nested_jaxprs(eqn):
            found.update(dict(_calls(part)))
    return tuple(found.items())
