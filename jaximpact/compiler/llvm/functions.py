"""Functions of the IR besides the main one: code that is called from several places, emitted once, and long branches of
programs of a single lane.

LLVM takes most of the time before a first result. Its time grows with the number of instructions, and for a long
function faster than its length. Also, values that a step with contact keeps would occupy registers in steps without
contact. A function writes its results to scratch memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr

from ...jaxtools.jaxpr_tools import (
    as_closed,
    called_jaxpr,
    closed_over_values,
    contains_primitive,
    nested_jaxprs,
    remember_by_jaxpr,
    value_variables,
)
from ...jaxtools.jaxpr_types import AnyJaxpr, Equation, Operand
from ...jaxtools.outlined import is_outlined
from ..limits import MAX_SCALARS_WHERE_COLD, MIN_BRANCH_OPS, MIN_FUNCTION_OPS
from ..scalar import Value, is_constant, object_array
from ..scalar.cost import cost
from ..scalar.values import Scalar
from . import arrays
from .arrays import LargeArray
from .ir_lines import join_lines
from .ir_values import POINTER, LaneValue, memory_dtype
from .ir_writer import Writer
from .packs import PackEntry

if TYPE_CHECKING:
    from ..scalar.interpreter import ScalarInterpreter
    from .emitter import LLVMEmitter

BRANCHING = ("while", "scan", "cond")


class Place(NamedTuple):
    """Position of a scalar, vector or pointer in scratch memory, as an offset in bytes, and its type."""

    offset: int
    dtype: np.dtype
    is_vector: bool


class Function(NamedTuple):
    """An emitted function of the IR.

    Attributes:
        name: its name.
        taken: numbers of the arguments that it reads.
        results: its results, as values that exist inside the function; they give the forms of the results of a call.
        given: for each scalar, pack or pointer in the results (`values_of`), the place where the function stores it or,
            if it is one of the arguments, the number of this argument.
    """

    name: str
    taken: list[int]
    results: list[Value]
    given: list[Place | int]


class Functions:
    """The functions emitted so far for one program, found again by jaxpr and form of the arguments."""

    def __init__(self, emitter: LLVMEmitter) -> None:
        self.emitter = emitter
        self.known: dict[tuple, Function] = {}
        # places from which each jaxpr is called in the program; of one that has none as functions, empty
        self.counts: Counter = Counter()

    def read(self, closed: ClosedJaxpr, in_place: bool) -> None:
        """Counts from how many places a program calls each outlined jaxpr; ``in_place``:
        whether their code stands there all the same."""
        self.counts = Counter() if in_place else _count_calls(closed)

    def is_in_place(self, jaxpr: ClosedJaxpr) -> bool:
        """Whether an outlined jaxpr is called from one place alone, or short, so that its code stands there."""
        return self.counts[jaxpr.jaxpr] < 2 or cost(jaxpr, self.emitter.max_scalars) < MIN_FUNCTION_OPS

    def call(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Emits an equation that calls an outlined function, as a call, or as the function's code where that is
        cheaper; returns its results."""
        e, jaxpr = self.emitter, as_closed(called_jaxpr(eqn))
        branches = any(contains_primitive(jaxpr, name) for name in BRANCHING)
        if self.is_in_place(jaxpr) or (
            e.threads and branches
        ):  # a thread of a GPU has little fast memory for what a call passes
            return machine.run(jaxpr, inputs)
        captured = _find_captured(machine, jaxpr)
        read = value_variables(jaxpr.jaxpr)
        inputs = [x if v in read else None for v, x in zip(jaxpr.jaxpr.invars, inputs, strict=True)]
        values = [_as_argument(e, x) for x in (*inputs, *captured.values())]
        masks = [object_array((), [x]) if x is not None else None for x in (_masks(e) if branches else (None, None))]
        key = jaxpr.jaxpr, e.max_scalars, e.w.width, *(_form(e, x) for x in (*values, *masks))
        if key not in self.known:

            def body(known: list[Value]) -> list[Value]:
                outside, (e.w.active, e.live) = e.live, (x if x is None else x.item() for x in known[len(values) :])
                try:
                    return [_as_argument(e, x) for x in self._run(machine, jaxpr, captured, known[: len(values)])]
                finally:
                    e.live = outside

            self.known[key] = _emit_function(e, f"@shared.{e.w.fresh_name('f')}", [*values, *masks], body)
        function = self.known[key]
        # results are those of a call in a scope around this one too, which has more lanes
        called = function.name, *values_of(values)
        if (results := e.w.lookup((called, None))) is None:
            found = [arrays.scalars_if_small(e, x) for x in _call_function(e, function, [*values, *masks])]
            # a further call overwrites what lies in memory
            results = [arrays.copy_to_new(e, x, x.is_vector) if isinstance(x, LargeArray) else x for x in found]
            e.w.available[-1][called, None] = results
        return results

    def _run(
        self, machine: ScalarInterpreter, jaxpr: AnyJaxpr, captured: Collection, values: list[Value]
    ) -> list[Value]:
        """Emits a jaxpr and returns its results.

        ``captured``: variables of the program's inputs that it closes over; ``values``:
        values of the jaxpr's own inputs, then of these.
        """
        before, count = machine.input_values, len(values) - len(captured)
        machine.input_values = before | dict(zip(captured, values[count:], strict=True))
        try:
            return machine.run(jaxpr, values[:count])
        finally:
            machine.input_values = before

    def is_long(self, jaxpr: AnyJaxpr) -> bool:
        """Whether a branch is long enough to become a function of its own; only in programs of a single lane."""
        e = self.emitter
        return e.pack > 1 and shared_cost(jaxpr, e.max_scalars) > MIN_BRANCH_OPS

    def apart(
        self, machine: ScalarInterpreter, jaxpr: AnyJaxpr, operands: list[Value], cold: bool = False
    ) -> list[Value]:
        """Emits a jaxpr as a function that is called here only, in a program of a single lane;
        returns the results of the call.

        ``cold``: whether the function runs so seldom that its code should be short rather than fast.
        """
        e, closed, captured = self.emitter, as_closed(jaxpr), _find_captured(machine, jaxpr)
        read = value_variables(closed.jaxpr)
        operands = [x if v in read else None for v, x in zip(closed.jaxpr.invars, operands, strict=True)]

        def body(known: list[Value]) -> list[Value]:
            outside = e.max_scalars
            e.max_scalars = min(outside, MAX_SCALARS_WHERE_COLD) if cold else outside
            try:
                found = self._run(machine, closed, captured, [_as_it_is_read(e, x) for x in known])
            finally:
                e.max_scalars = outside
            return [_side_by_side(e, x) for x in found]

        values = [_in_memory(e, x) for x in (*operands, *captured.values())]
        name = f"@apart.{e.w.fresh_name('f')}"
        return _call_function(e, _emit_function(e, name, values, body, True, "optnone" if cold else ""), values)


def _find_captured(machine: ScalarInterpreter, jaxpr: AnyJaxpr) -> dict[Operand, Value]:
    """Returns the values of the program's inputs that a jaxpr closes over, as a mapping from variables."""
    return {v: machine.input_values[v] for v in closed_over_values(jaxpr) if v in machine.input_values}


# values of a function


def _continues(x: Scalar, last: Scalar | None) -> bool:
    """Whether x is the entry of a pack that follows the entry ``last`` in the same pack."""
    return (
        isinstance(x, PackEntry) and isinstance(last, PackEntry) and x.pack == last.pack and x.index == last.index + 1
    )


def _store_array(x: LargeArray) -> LargeArray:
    """Returns the stored array of which a large array is a view, such as a transpose;
    the array itself if it is no view."""
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


def _consisting_of(e: LLVMEmitter, x: Value, parts: Iterator[LaneValue]) -> Value:
    """Returns a value like x in which ``parts`` replace the scalars, packs and pointers that `values_of` yields for x;
    constants stay."""
    if isinstance(x, LargeArray) and x.known is None:
        y = _store_array(x)
        y = arrays.array_at(e, next(parts).name, y.shape, y.dtype, y.is_vector)
        if x.flipped is not None:
            return arrays.lower_factor(e, x.shape, y)
        return arrays.with_axes(y, x.source[1]) if x.source else y
    if not isinstance(x, np.ndarray):
        return x
    found = list[Scalar]()
    last: Scalar | None = None
    part: Any = None
    for y in x.flat:
        part = y if is_constant(y) else part if _continues(y, last) else next(parts)
        found.append(PackEntry(part, y.index) if isinstance(y, PackEntry) else part)
        last = y
    return object_array(x.shape, found)


def _form(e: LLVMEmitter, x: Value) -> Hashable:
    """Hashable key of the form of an argument: the values of an array's constants,
    and the types of all other entries."""
    if x is None or e.pack > 1:  # of a single lane all calls have one form
        return x is None
    if isinstance(x, LargeArray):
        return x.shape, x.dtype, x.is_vector
    return tuple((y.dtype, y.tobytes()) if is_constant(y) else (y.dtype, y.is_vector) for y in x.flat)


def _in_memory(e: LLVMEmitter, x: Value) -> Value:
    """Returns the value x, stored in memory if it is a lazy large array, so that `values_of` has a pointer to it."""
    if not isinstance(x, LargeArray) or x.known is not None or _store_array(x).pointer:
        return x
    return arrays.materialise(e, x)


def _as_it_is_read(e: LLVMEmitter, x: Value) -> Value:
    """Returns the value x, as a large array in memory if it has more entries than arrays of scalars may have;
    None stays."""
    return arrays.as_large_array(e, x) if x is not None and x.size > e.max_scalars else x


def _side_by_side(e: LLVMEmitter, x: Value) -> Value:
    """Returns a value of a single lane as packs, or as a stored array if it is large:
    a form that is the same in all calls of a function."""
    if x.size > e.max_scalars:
        return replace(arrays.materialise(e, x), known=None)
    x = arrays.as_scalars(e, x)
    return e.unflatten([x], e.flatten([x], [False]))[0]


def _as_argument(e: LLVMEmitter, x: Value) -> Value:
    """Returns a value in the form in which functions take it, and return it: without lazy arrays; None stays."""
    if x is None:
        return None
    if e.pack > 1:
        return _side_by_side(e, x)
    return replace(arrays.materialise(e, x), known=None) if isinstance(x, LargeArray) else x


def _masks(e: LLVMEmitter) -> tuple[LaneValue | None, LaneValue | None]:
    """Returns the masks of lanes that loops and branches of a function read, None for all lanes.

    The first is of lanes whose results matter where the function is called (`Writer.active`), the second of those that
    are no padding (`LLVMEmitter.live`).
    """
    return e.w.active, e.live if e.w.register_view is None else None


# definitions and calls


def _emit_function(
    e: LLVMEmitter,
    name: str,
    values: Sequence[Value],
    body: Callable[[list[Value]], list[Value]],
    distinct: bool = False,
    attributes: str = "",
) -> Function:
    """Emits the definition of a function ``name`` that takes arguments of the form of ``values``,
    and returns ``body(arguments)``.

    ``distinct``: whether the function is for one call only, so that equal values can share an argument; ``attributes``:
    LLVM's, of the function.
    """
    outer, counter = e.w, e.counter
    e.w = w = outer.of_function()
    e.counter = None
    try:
        w.begin_block("entry")
        taken, known, named = list[int](), list[LaneValue](), dict[Hashable, LaneValue]()
        for i, x in enumerate(values_of(values)):
            key = x if distinct else i
            if key not in named:
                taken.append(i)
                named[key] = LaneValue(f"%{w.fresh_name('a')}", x.dtype, x.is_vector)
                w.depth[named[key].name] = 0
            known.append(named[key])
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
    given_to = ", ".join(["ptr noalias %work", *map(w.typed_name, named.values())])
    head = f"define internal void {name}({given_to}) noinline {attributes} nounwind alignstack(64) {{"
    outer.with_function(w, name, join_lines([head, entry, *w.entry_lines, *lines, "  ret void", "}"]))
    return Function(name, taken, results, [places[x] for x in given])


def _reserve_place(w: Writer, x: LaneValue) -> Place:
    """Reserves scratch memory for a scalar, vector or pointer x."""
    size = memory_dtype(x.dtype).itemsize * (w.width if x.is_vector else 1)
    return Place(w.reserve_bytes(size, size), np.dtype(x.dtype), x.is_vector)


def _call_function(e: LLVMEmitter, function: Function, values: Sequence[Value]) -> list[Value]:
    """Emits a call of a function with the arguments ``values``, and returns its results."""
    w, given = e.w, list(values_of(values))
    taken = [given[i] for i in function.taken]
    w.note_uses(taken)
    w.emit(f"call void {function.name}({', '.join(['ptr %work', *map(w.typed_name, taken)])})")
    loaded: dict[Place, LaneValue] = {}
    for at in dict.fromkeys(x for x in function.given if isinstance(x, Place)):
        loaded[at] = w.load(w.pointer_to(at.offset), at.dtype, at.is_vector)
    parts = (loaded[x] if isinstance(x, Place) else given[x] for x in function.given)
    return [_consisting_of(e, x, parts) for x in function.results]


def value_key(x: Value) -> Hashable:
    """Hashable key of a value: equal keys mean identical values; constants are compared by their bits (NaN, -0.0)."""
    return (
        x
        if isinstance(x, LargeArray)
        else (x.shape, *((y.dtype, y.tobytes()) if is_constant(y) else y for y in x.flat))
    )


@remember_by_jaxpr
def shared_cost(jaxpr: AnyJaxpr, max_scalars: int) -> int:
    """Returns the number of operations of a jaxpr as they are emitted: those of an outlined function once,
    however often it is called."""
    counts = _count_calls(jaxpr)
    functions = {part for part, n in counts.items() if n > 1 and cost(part, max_scalars) >= MIN_FUNCTION_OPS}

    def of_functions(jaxpr: AnyJaxpr) -> int:
        """Number of operations of a jaxpr that are those of functions, at each of their calls."""
        return sum(
            n * (cost(part, max_scalars) if part in functions else of_functions(part))
            for part, n in _calls(jaxpr).items()
        )

    return sum(cost(part, max_scalars) - of_functions(part) for part in (jaxpr, *functions))


def _count_calls(jaxpr: AnyJaxpr) -> Counter:
    """Counts from how many places a program calls each outlined jaxpr; places in an outlined jaxpr count once, however
    often it is called itself."""
    found, rest = Counter(_calls(jaxpr)), [*_calls(jaxpr)]
    while rest:
        more = _calls(rest.pop())
        rest += [part for part in more if part not in found]
        found.update(more)
    return found


@remember_by_jaxpr
def _calls(jaxpr: AnyJaxpr) -> Counter:
    """Counts the calls of each outlined jaxpr in ``jaxpr``, without calls that are made inside outlined jaxprs."""
    found: Counter = Counter()
    for eqn in jaxpr.eqns:
        for part in nested_jaxprs(eqn):
            found.update([part] if is_outlined(eqn) else _calls(part))
    return found
