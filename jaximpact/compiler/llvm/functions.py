"""Functions that a program calls from several places: emitted once each, where a copy at each place would take LLVM most of its time.

Such a function takes and gives its scalars in scratch memory. What is constant at a call, zeros of sparse matrices above all, is constant in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...jaxtools.jaxpr_tools import (
    CALLS,
    as_closed,
    closed_over_values,
    nested_jaxprs,
    remember_by_jaxpr,
)
from ...jaxtools.outlined import is_outlined
from ..limits import MIN_FUNCTION_OPS
from ..scalar import Value, is_constant, object_array
from ..scalar.cost import cost
from . import arrays
from .ir_values import LaneValue, memory_dtype
from .ir_writer import Writer, join_lines


class Function(NamedTuple):
    """A function of the IR: its name, the pointer to its scalars, where those that it takes are, by number, and what it gives: arrays of constants,
    of numbers of what it takes, or of places and types."""

    name: str
    memory: str
    taken: list[tuple[int, int]]
    given: list[np.ndarray]


class Place(NamedTuple):
    """Where in a function's memory a scalar or vector is, and its type."""

    offset: int
    dtype: np.dtype
    is_vector: bool


class Taken(NamedTuple):
    """A scalar that a function gives as it took it, by number."""

    number: int


class _NotALine(Exception):
    """A function has loops, branches, or arrays in memory."""


class Functions:
    """The functions of one program, by what is computed and of what."""

    def __init__(self, emitter: Any) -> None:
        self.emitter = emitter
        self.known: dict[Any, Function | ArrayFunction | None] = {}  # None: emitted in place
        self.counts: Counter = Counter()  # calls of each jaxpr in the program
        self.inside = False  # whether one is being emitted: those in it are not apart

    def read(self, closed: Any) -> None:
        """Counts the calls of a program."""
        self.counts = Counter(dict(_calls(closed)))

    def refuse(self) -> None:
        """Gives up a function, of which only scalar operations in a line are apart."""
        if self.inside:
            raise _NotALine

    def call(self, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]:
        """Results of an equation that is outlined, by a call where that pays."""
        jaxpr = as_closed(eqn.params[CALLS[eqn.primitive.name]])
        if self.inside or self.counts[id(jaxpr.jaxpr)] < 2 or cost(jaxpr) < MIN_FUNCTION_OPS:
            return machine.run(jaxpr, inputs)
        w = self.emitter.w
        captured = [v for v in closed_over_values(jaxpr) if v in machine.input_values]
        values = [x for x in inputs if x is not None] + [machine.input_values[v] for v in captured]
        if not all(isinstance(x, np.ndarray) for x in values):
            return machine.run(jaxpr, inputs)
        scalars = [y for x in values for y in x.flat]
        given = [x is not None for x in inputs]
        kinds = [(y.dtype, y.tobytes()) if is_constant(y) else (y.dtype, y.is_vector) for y in scalars]
        key = jaxpr.jaxpr, w.width, tuple(given), tuple(kinds)
        if key not in self.known:
            try:
                self.known[key] = self._emitted(machine, jaxpr, inputs, captured, scalars)
            except _NotALine:
                self.known[key] = None
        found = self.known[key]
        if not isinstance(found, Function):
            return machine.run(jaxpr, inputs)
        called = found.name, tuple(y for y in scalars if not is_constant(y))
        if (results := w.lookup((called, None))) is None:
            results = w.available[-1][called, None] = self._called(found, scalars)
        return results

    def _emitted(
        self, machine: Any, jaxpr: Any, inputs: list[Value], captured: Sequence, scalars: Sequence
    ) -> Function:
        """Emits a function's definition."""
        e, outer = self.emitter, self.emitter.w
        w, size, taken, loaded = Writer(outer.width, outer.fused), 0, [], list[Any]()

        def place(dtype: Any, is_vector: bool) -> Place:
            nonlocal size
            width = memory_dtype(dtype).itemsize * (outer.width if is_vector else 1)
            size = -(-size // width) * width + width
            return Place(size - width, np.dtype(dtype), is_vector)

        def load(at: Place) -> LaneValue:
            return w.load(_address(w, "%memory", at.offset), at.dtype, at.is_vector)

        w.begin_block("entry")
        numbers: dict[LaneValue, int] = {}
        for i, y in enumerate(scalars):
            if is_constant(y):
                loaded.append(y)
                continue
            at = place(y.dtype, y.is_vector)
            taken.append((i, at.offset))
            loaded.append(x := load(at))
            numbers[x] = i
        entries = iter(loaded)
        again = lambda x: object_array(x.shape, (next(entries) for _ in range(x.size)))
        values = [None if x is None else again(x) for x in inputs]
        before = machine.input_values
        e.w, self.inside = w, True
        try:
            machine.input_values = before | {v: again(before[v]) for v in captured}
            results = machine.run(jaxpr, values)
        finally:
            e.w, self.inside, machine.input_values = outer, False, before
        places: dict[LaneValue, Place] = {}

        def stored(y: Any) -> Any:
            if is_constant(y):
                return y
            if y in numbers:
                return Taken(numbers[y])
            if y not in places:
                places[y] = place(y.dtype, y.is_vector)
                w.store(_address(w, "%memory", places[y].offset), y)
            return places[y]

        given = [_objects(x.shape, [stored(y) for y in x.flat]) for x in results]
        name = f"@shared.{len(self.known)}"
        head = f"define internal void {name}(ptr noalias %memory) noinline nounwind alignstack(64) {{"
        outer.declared |= w.declared
        outer.declared[name] = join_lines([head, *w.lines, "  ret void", "}"])
        return Function(name, outer.reserve(size, np.uint8, False), taken, given)

    def _called(self, function: Function, scalars: Sequence) -> list[Value]:
        """Emits a call."""
        w = self.emitter.w
        for i, offset in function.taken:
            w.store(_address(w, function.memory, offset), scalars[i])
        w.emit(f"call void {function.name}(ptr {function.memory})")
        loaded: dict[Place, LaneValue] = {}

        def result(y: Any) -> Any:
            if isinstance(y, Taken):
                return scalars[y.number]
            if not isinstance(y, Place):
                return y
            if y not in loaded:
                loaded[y] = _fresh_load(w, _address(w, function.memory, y.offset), y)
            return loaded[y]

        return [object_array(x.shape, map(result, x.flat)) for x in function.given]


def value_key(x: Value) -> Any:
    """Hashable key of a value: equal keys mean identical values; constants are compared by their bits (NaN, -0.0)."""
    return (
        x
        if isinstance(x, arrays.LargeArray)
        else (x.shape, *((y.dtype, y.tobytes()) if is_constant(y) else y for y in x.flat))
    )


class ArrayFunction(NamedTuple):
    """A function of the IR of a single lane, whose operands and results are arrays in scratch memory: its name and their places.

    Of large operands the memory holds the pointers.
    """

    name: str
    taken: list[int]
    given: list[tuple[int, Any]]


def call_with_arrays(functions: Functions, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]:
    """Results of an equation of a single lane that is outlined, by a call where that pays: what it reads and gives lies in memory."""
    e, jaxpr = functions.emitter, as_closed(eqn.params[CALLS[eqn.primitive.name]])
    few = functions.counts[id(jaxpr.jaxpr)] < 2 or cost(jaxpr, e.max_scalars) < MIN_FUNCTION_OPS
    if few or any(x is None for x in inputs) or closed_over_values(jaxpr):
        return machine.run(jaxpr, inputs)
    key = jaxpr.jaxpr, e.max_scalars
    if key not in functions.known:
        functions.known[key] = _with_arrays(e, machine, jaxpr, f"@shared.{len(functions.known)}")
    function, w = functions.known[key], e.w
    assert isinstance(function, ArrayFunction)
    called = function.name, *map(value_key, inputs)
    if (results := w.lookup((called, None))) is None:
        large = [arrays.materialise(e, x) if isinstance(x, arrays.LargeArray) else x for x in inputs]
        for x, place in zip(large, function.taken, strict=True):
            if isinstance(x, arrays.LargeArray):
                w.emit(f"store ptr {x.pointer}, ptr {w.pointer_to(place)}")
            elif x.size:
                arrays.store_packs(e, w.pointer_to(place), x)
        w.emit(f"call void {function.name}(ptr %work)")
        stored = [arrays.array_at(e, w.pointer_to(at), a.shape, a.dtype, False) for at, a in function.given]
        results = [
            arrays.as_scalars(e, x) if x.size <= e.max_scalars else arrays.copy_to_new(e, x, False) for x in stored
        ]
        w.available[-1][called, None] = results
    return results


def _with_arrays(e: Any, machine: Any, jaxpr: Any, name: str) -> ArrayFunction:
    """Emits the definition of a function of arrays."""
    outer, counter = e.w, e.counter
    e.w = w = outer.of_function()
    e.counter = None
    w.begin_block("entry")
    most, taken, values = e.max_scalars, list[int](), list[Value]()
    for v in jaxpr.jaxpr.invars:
        shape, dtype, size = v.aval.shape, v.aval.dtype, v.aval.size
        taken.append(w.reserve_bytes(8 if size > most else memory_dtype(dtype).itemsize * (size + w.width)))
        pointer = w.pointer_to(taken[-1])
        if size > most:
            there = "%" + w.fresh_name("p")
            w.emit(f"{there} = load ptr, ptr {pointer}")
            w.types[there] = "ptr"
            values.append(arrays.array_at(e, there, shape, dtype, False))
        else:
            values.append(arrays.as_scalars(e, arrays.array_at(e, pointer, shape, dtype, False)))
    given = []
    for x, v in zip(machine.run(jaxpr, values), jaxpr.jaxpr.outvars, strict=True):
        a = v.aval
        given.append((w.reserve_bytes(memory_dtype(a.dtype).itemsize * (a.size + w.width)), a))
        target = arrays.array_at(e, w.pointer_to(given[-1][0]), a.shape, a.dtype, False)
        if isinstance(x, arrays.LargeArray):
            arrays.copy_array(e, target, x, None)
        elif x.size:
            arrays.store_packs(e, target.pointer, x)
    e.w, e.counter = outer, counter
    head = f"define internal void {name}(ptr noalias %work) noinline nounwind alignstack(64) {{"
    entry, *rest = w.lines
    outer.with_function(w, name, join_lines([head, entry, *w.entry_lines, *rest, "  ret void", "}"]))
    return ArrayFunction(name, taken, given)


@remember_by_jaxpr
def repeated_cost(jaxpr: Any, max_scalars: int) -> int:
    """Operations of a jaxpr that are those of calls of what it calls before."""
    found: dict[Any, int] = {}
    _count_calls(jaxpr, found)
    return sum((n - 1) * cost(part, max_scalars) for part, n in found.items())


def _count_calls(jaxpr: Any, found: dict[Any, int]) -> None:
    for eqn in jaxpr.eqns:
        if is_outlined(eqn):
            part = nested_jaxprs(eqn)[0]
            found[part] = found.get(part, 0) + 1
        else:
            for part in nested_jaxprs(eqn):
                _count_calls(part, found)


def _objects(shape: tuple, entries: list) -> np.ndarray:
    """Object array of tuples, which numpy would take apart."""
    found = np.empty(len(entries), object)
    for i, x in enumerate(entries):
        found[i] = x
    return found.reshape(shape)


def _address(w: Writer, memory: str, offset: int) -> str:
    name = "%" + w.fresh_name("p")
    w.emit(f"{name} = getelementptr i8, ptr {memory}, i64 {offset}")
    return name


def _fresh_load(w: Writer, address: str, at: Place) -> LaneValue:
    """A load that is no repetition of an equal one, since calls in between write."""
    kept = memory_dtype(at.dtype)
    name = "%" + w.fresh_name()
    w.emit(f"{name} = load {w.llvm_type(kept, at.is_vector)}, ptr {address}, align {kept.itemsize}")
    if kept == at.dtype:
        return LaneValue(name, at.dtype, at.is_vector)
    truth = "%" + w.fresh_name()
    w.emit(f"{truth} = trunc {w.llvm_type(kept, at.is_vector)} {name} to {w.llvm_type(at.dtype, at.is_vector)}")
    return LaneValue(truth, at.dtype, at.is_vector)


@remember_by_jaxpr
def _calls(jaxpr: Any) -> tuple[tuple[int, int], ...]:
    """How often each outlined jaxpr is called in another: pairs of its id and a number."""
    found: Counter = Counter()
    for eqn in jaxpr.eqns:
        if is_outlined(eqn):
            found[id(nested_jaxprs(eqn)[0])] += 1
        for part in nested_jaxprs(eqn):
            found.update(dict(_calls(part)))
    return tuple(found.items())
