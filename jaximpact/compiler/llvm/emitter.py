"""Emitter of LLVM IR: a jaxpr as a function that runs over many lanes, one vector of lanes at a time.

Loops and branches are real: a loop goes on while any lane of the vector does, and the others keep what they have; of the
branches of a `cond` the shortest is taken always, another one if any lane asks for it. What has no rule raises `Unsupported`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...jaxtools.jaxpr_tools import scan_counts, varying_outvars
from ..scalar import ScalarInterpreter, Unsupported, Value, is_constant, object_array
from ..scalar.cost import MAX_SCALARS
from . import array_rules as large
from . import arrays as memory
from . import predicates as conditions
from .arrays import LargeArray
from .elementwise import RULES
from .ir_writer import BOOL, INT, SELDOM, LaneValue, Writer, constant

MAX_SPECULATED_OPS = 40  # operations of a branch that is taken whether a lane asks for it or not
FUNCTION_NAME = "motion"
FUNCTION_PARAMETERS = (
    "ptr noalias %entries, ptr noalias %results, ptr noalias %given, ptr noalias %work, i64 %lanes, i64 %rows"
)
LONG = np.dtype(np.int64)


class ProgramText(NamedTuple):
    """IR of a program for vectors of ``width`` lanes, which results are rows of a `stream`, and its scratch memory in bytes."""

    ir: str
    width: int
    rows: list[bool]
    work: int


@dataclass(frozen=True)
class StreamEntry:
    """A number that a stream produces in every iteration, with the line of IR at which it can be stored."""

    x: LaneValue
    line: int
    place: str  # of the number of lane 0 in a row of results

    @property
    def dtype(self) -> np.dtype:
        return self.x.dtype


class LLVMEmitter:
    """Emitter of LLVM IR: see `scalar.values.Emitter`."""

    has_memory = True

    def __init__(self, width: int, fused: bool, small: int) -> None:
        self.w = Writer(width, fused)
        self.max_scalars = small  # entries of an array that is numbers
        self.empty_rows: list[Value] = []  # rows without entries
        # of one lane the turns of the outermost loop are counted in memory, for whoever looks on
        self.counter = self.w.reserve(1, LONG, False) if width == 1 else None

    def is_empty_row(self, x: Value) -> bool:
        return any(x is y for y in self.empty_rows)

    def as_value(self, x: Any) -> LaneValue:
        if isinstance(x, StreamEntry):
            raise Unsupported("arithmetic with the rows of a stream")
        return constant(x, x.dtype) if is_constant(x) else x

    def op(self, name: str, params: Any, *values: Any) -> LaneValue:
        if name not in RULES:
            raise Unsupported(name)
        return RULES[name](self.w, params, [self.as_value(x) for x in values])

    def varies(self, x: Value) -> bool:
        return x.is_vector if isinstance(x, LargeArray) else any(getattr(y, "is_vector", False) for y in x.flat)

    def array_primitive(self, machine: ScalarInterpreter, eqn: Any, inputs: list[Value]) -> list[Value]:
        """Emits a primitive of arrays in memory, or reuses its result if the same operands were computed before."""
        key = eqn.primitive, (str(eqn.params), *map(value_key, inputs))
        if (found := self.w.lookup(key)) is None:
            found = self.w.available[-1][key] = large.apply_rule(self, machine, eqn, inputs)
        return found

    def constant(self, x: np.ndarray) -> LargeArray:
        return memory.embed_constant(self, x)

    # values that pass from one basic block to another: numbers, and large arrays that lie in memory

    def flatten(self, values: Sequence[Value], varies: Sequence[bool]) -> list[LaneValue]:
        """The numbers of arrays in a flat list, broadcast to vectors where they vary."""
        split = [(self.as_value(y), v) for x, v in zip(values, varies, strict=True) for y in x.flat]
        return [self.w.as_vector(y) if v else y for y, v in split]

    def unflatten(self, values: Sequence[Value], numbers: Sequence[LaneValue]) -> list[Value]:
        entries = iter(numbers)
        return [
            x if isinstance(x, LargeArray) else object_array(x.shape, (next(entries) for _ in range(x.size)))
            for x in values
        ]

    def store_large(self, targets: Sequence[Value], values: Sequence[Value], where: LaneValue | None) -> None:
        """Stores large arrays at their places, for some lanes; all values are computed before any place is overwritten."""
        pairs = [
            (x, memory.materialise(self, y)) for x, y in zip(targets, values, strict=True) if isinstance(x, LargeArray)
        ]
        for x, y in pairs:
            memory.copy_array(self, x, y, where)

    def loop(self, start: list[Value], varies: Sequence[bool], continues: Callable, body: Callable) -> list[Value]:
        w = self.w
        start = [
            memory.copy_to_new(self, x, v) if isinstance(x, LargeArray) else x
            for x, v in zip(start, varies, strict=True)
        ]
        numbers = self.flatten(start, varies)
        before, head, inside, after = w.block, *(w.fresh_name(name) for name in ("head", "body", "after"))
        counter, self.counter = self.counter, None
        if counter:
            w.emit(f"store volatile i64 0, ptr {counter}, align 8")
        w.lines.append("")
        with w.loop_scope(w.active):
            w.jump(head)
            w.begin_block(head)
            first = len(w.lines)
            phis = [w.phi(x.dtype, x.is_vector, [(x, before)]) for x in numbers]
            carry = self.unflatten(start, phis)
            more = self.as_value(continues(carry))
            if more.is_vector:
                more = w.conjunction(more, w.active)
            w.branch(w.any_lane(more), inside, after)
            w.begin_block(inside)
            if counter:
                turns = "%" + w.fresh_name("turns")
                w.emit(f"{turns} = load volatile i64, ptr {counter}, align 8")
                w.emit(f"{turns}.next = add i64 {turns}, 1")
                w.emit(f"store volatile i64 {turns}.next, ptr {counter}, align 8")
            with w.scope(more if more.is_vector else w.active):
                found = body(carry)
                new = self.flatten(found, varies)
                if more.is_vector:
                    new = [w.select(more, x, y) for x, y in zip(new, phis, strict=True)]
                self.store_large(start, found, more if more.is_vector else None)
                for i, x in enumerate(new):
                    w.lines[first + i] += f", [ {x.name}, %{w.block} ]"
                w.jump(head)
        w.begin_block(after)
        self.counter = counter
        return carry

    def switch(
        self,
        which: Any,
        branches: Sequence[Callable],
        operands: list[Value],
        sizes: Sequence[int],
        avals: Sequence,
        varies: Sequence[bool],
    ) -> list[Value]:
        w, last = self.w, len(branches) - 1
        order = sorted(range(len(branches)), key=lambda i: sizes[i])
        held: list[Value] = []  # places of large results
        for a, v in zip(avals, varies, strict=True):
            none = (
                object_array(a.shape, [constant(0, a.dtype)] * math.prod(a.shape))
                if math.prod(a.shape) <= self.max_scalars
                else None
            )
            held.append(memory.reserve_array(self, a.shape, a.dtype, v) if none is None else none)
        now = self.flatten(held, varies)
        if sizes[order[0]] <= MAX_SPECULATED_OPS:
            found = branches[order.pop(0)](operands)
            self.store_large(held, found, None)
            now = self.flatten(found, varies)
        for i in order:
            asked = self.selects_branch(which, i, last)
            before, inside, after = w.block, w.fresh_name("inside"), w.fresh_name("outside")
            needed, taken = conditions.any_lane_where(w, asked, w.active) if asked.is_vector else (asked, asked)
            w.branch(needed, inside, after, SELDOM)
            w.begin_block(inside)
            with w.scope(taken if asked.is_vector else w.active):
                found = branches[i](operands)
                new = self.flatten(found, varies)
                if asked.is_vector:
                    new = [w.select(taken, x, y) for x, y in zip(new, now, strict=True)]
                self.store_large(held, found, taken if asked.is_vector else None)
                end = w.block
                w.jump(after)
            w.begin_block(after)
            now = [w.phi(x.dtype, x.is_vector, [(y, before), (x, end)]) for x, y in zip(new, now, strict=True)]
        return self.unflatten(held, now)

    def selects_branch(self, which: LaneValue, i: int, last: int) -> LaneValue:
        """Mask of the lanes that select the i-th branch; numbers out of range select the nearest."""
        bits = conditions.flags(self.w, which)
        if bits and len(bits) == last == 1:
            return bits[0][0] if i else conditions.negate(self.w, bits[0][0])
        name = "icmp sle" if i == 0 else "icmp sge" if i == last else "icmp eq"
        return self.w.op(name, which, constant(i, INT), dtype=BOOL)

    def scan(self, machine: ScalarInterpreter, eqn: Any, inputs: list[Value]) -> list[Value]:
        p = eqn.params
        a, count = scan_counts(p)
        fixed, start, sequences = (
            inputs[:a],
            inputs[a : a + count],
            [memory.materialise(self, x) for x in inputs[a + count :]],
        )
        flags = varying_outvars(eqn, [self.varies(x) for x in inputs])
        rows = [
            memory.reserve_array(self, v.aval.shape, v.aval.dtype, f)
            for v, f in zip(eqn.outvars[count:], flags[count:], strict=True)
        ]
        one, length = (object_array((), [np.int64(x)]) for x in (1, p["length"]))

        def turn(carry: list[Value]) -> list[Value]:
            i = self.as_value(
                machine("sub", np.int64(p["length"] - 1), carry[0].item()) if p["reverse"] else carry[0].item()
            )
            here = [memory.scalars_if_small(self, memory.leading_slice(self, x, i)) for x in sequences]
            found = machine.run(p["jaxpr"], [*fixed, *carry[1:], *here])
            for target, x in zip(rows, found[count:], strict=True):
                memory.copy_array(self, memory.leading_slice(self, target, i), memory.as_large_array(self, x), None)
            return [machine.elementwise("add", carry[0], one), *found[:count]]

        continues = lambda carry: machine("lt", carry[0].item(), length.item())
        state = self.loop([object_array((), [np.int64(0)]), *start], [False, *flags[:count]], continues, turn)[1:]
        return [*state, *(memory.scalars_if_small(self, x) for x in rows)]

    def stream(self, machine: ScalarInterpreter, eqn: Any, inputs: list[Value]) -> list[Value]:
        """Emits a loop with one iteration per row of the caller; each iteration reserves a line where rows may be stored."""
        w, jaxpr, carried = self.w, eqn.params["jaxpr"], eqn.params["carried"]
        constants, start = inputs[: len(jaxpr.constvars)], inputs[len(jaxpr.constvars) :]
        flags = [False, *varying_outvars(eqn, [self.varies(x) for x in inputs])[:carried]]
        given = [(load_pointer(w, "given", i), v.aval.dtype) for i, v in enumerate(jaxpr.invars[carried:])]
        count, rows = LaneValue("%rows", LONG, False), list[Value]()

        def turn(carry: list[Value]) -> list[Value]:
            i, *state = carry
            i = self.as_value(i.item())
            here = [w.load(w.address(at, dtype, is_vector=False, place=i), dtype, False) for at, dtype in given]
            found = machine.evaluate(jaxpr, constants, [*state, *(object_array((), [x]) for x in here)])
            if any(isinstance(x, LargeArray) and x.size > MAX_SCALARS for x in found[carried:]):
                raise Unsupported("rows that are large arrays")
            found[carried:] = map(memory.as_scalars, found[carried:])
            place = w.op("add", w.op("mul", i, LaneValue("%row", LONG, False)), LaneValue("%lane", LONG, False)).name
            numbers = [w.as_vector(self.as_value(x)) for y in found[carried:] for x in y.flat]
            w.lines.append("")
            entries = iter(StreamEntry(x, len(w.lines) - 1, place) for x in numbers)
            rows[:] = [object_array(x.shape, [next(entries) for _ in range(x.size)]) for x in found[carried:]]
            return [object_array((), [w.op("add", i, constant(1, LONG))]), *found[:carried]]

        continues = lambda carry: w.op("icmp slt", self.as_value(carry[0].item()), count, dtype=BOOL)
        state = self.loop([object_array((), [np.int64(0)]), *start], flags, continues, turn)[1:]
        self.empty_rows += [x for x in rows if x.size == 0]
        return [*state, *rows]


def emit(
    closed: Any,
    variables: Sequence,
    varies: Sequence[bool],
    width: int,
    fused: bool,
    small: int = MAX_SCALARS,
) -> ProgramText:
    """Emits the program of a jaxpr for ``width`` lanes a vector, with the C signature

        void motion(void** entries, void** results, void** given, void* work, int64_t lanes, int64_t rows)

    of a jaxpr. ``entries`` are the arrays of its ``variables``, of which ``varies`` says whether it holds lanes, one after the
    other for every entry, or one array for all. So do results hold lanes; rows of a `stream` lie one after the other, and
    ``given`` are the sequences that its turns are given. Booleans are bytes. What the jaxpr closes over is known where it
    is no variable; ``fused``: see `Writer`.
    """
    e = LLVMEmitter(width, fused, small)
    w, jaxpr, machine = e.w, closed.jaxpr, ScalarInterpreter(e)
    w.emit(f"%above = add i64 %lanes, {width - 1}")
    w.emit(f"%blocks = udiv i64 %above, {width}")
    w.emit(f"%row = mul i64 %blocks, {width}")
    sources = [
        memory.ProgramInput(load_pointer(w, "entries", i), v.aval, x)
        for i, (v, x) in enumerate(zip(variables, varies, strict=True))
    ]
    shared = {id(s): memory.read_input(e, s) for s in sources if not s.is_vector}
    targets = [load_pointer(w, "results", i) for i in range(len(jaxpr.outvars))]
    w.jump("block")
    w.begin_block("block")
    w.emit("%number = phi i64 [ 0, %entry ], [ %next, %BACK ]")
    head = len(w.lines) - 1
    w.emit(f"%lane = mul i64 %number, {width}")
    values = dict(
        zip(variables, (shared[id(s)] if id(s) in shared else memory.read_input(e, s) for s in sources), strict=True)
    )
    machine.input_values = values
    found = machine.run(closed, [values[v] for v in jaxpr.invars])
    rows = [
        _store_result(e, target, memory.scalars_if_small(e, x)) or e.is_empty_row(x)
        for target, x in zip(targets, found, strict=True)
    ]
    w.emit("%next = add i64 %number, 1")
    w.emit("%more = icmp slt i64 %next, %blocks")
    w.lines[head] = w.lines[head].replace("BACK", w.block)
    w.emit("br i1 %more, label %block, label %done")
    w.begin_block("done")
    w.emit("ret void")
    body = "\n".join([*w.entry_lines, *w.lines])
    others = "\n".join(w.declared.values())
    # vectors that registers have no room for are kept on the stack, none of them across two cache lines
    opening = f"define void @{FUNCTION_NAME}({FUNCTION_PARAMETERS}) nounwind alignstack(64) {{"
    return ProgramText(f"{opening}\nentry:\n{body}\n}}\n{others}\n", width, rows, w.scratch_bytes)


def value_key(x: Value) -> Any:
    """Hashable key that is equal only for identical values; constants are compared by their bits."""
    return (
        x
        if isinstance(x, LargeArray)
        else (x.shape, *((y.dtype, y.tobytes()) if is_constant(y) else y for y in x.flat))
    )


def load_pointer(w: Writer, table: str, i: int) -> str:
    name = "%" + w.fresh_name("p")
    w.emit(f"{name}.at = getelementptr ptr, ptr %{table}, i64 {i}")
    w.emit(f"{name} = load ptr, ptr {name}.at")
    return name


def _store_result(e: LLVMEmitter, target: str, x: Value) -> bool:
    """Stores a result, entry after entry; returns whether its entries are rows of a stream."""
    w = e.w
    if isinstance(x, LargeArray):
        memory.for_each_index(
            e,
            x.shape,
            lambda index: _store_entry(e, target, memory.flat_index(e, x.shape, index), w.as_vector(x.at(index))),
        )
        return False
    rows = {j: y for j, y in enumerate(x.flat) if isinstance(y, StreamEntry)}
    for j, y in enumerate(x.flat):
        if not rows:
            _store_entry(e, target, constant(j, LONG), w.as_vector(e.as_value(y)))
        elif j in rows:
            _store_stream_entry(w, target, j, y, y.x)
        elif is_constant(y):
            _store_stream_entry(w, target, j, next(iter(rows.values())), w.as_vector(e.as_value(y)))
        else:
            raise Unsupported("rows of a stream beside what is none")
    return bool(rows)


def _store_entry(e: LLVMEmitter, target: str, entry: LaneValue, x: LaneValue) -> None:
    w = e.w
    place = w.op("add", w.op("mul", entry, LaneValue("%row", LONG, False)), LaneValue("%lane", LONG, False))
    w.store(w.address(target, x.dtype, is_vector=False, place=place), x)


def _store_stream_entry(w: Writer, target: str, j: int, row: StreamEntry, x: LaneValue) -> None:
    """Stores a row's number in the line that its loop iteration reserved."""
    outside, w.lines = w.lines, []
    name = "%" + w.fresh_name("p")
    w.emit(f"{name}.skip = mul i64 %rows, {j}")
    w.emit(f"{name}.from = mul i64 {name}.skip, %row")
    w.emit(f"{name}.to = add i64 {name}.from, {row.place}")
    seen, w.available = (
        w.available,
        [{}],
    )  # nothing that it computes is seen elsewhere, nor what was computed after that line
    w.store(w.address(target, x.dtype, is_vector=False, place=f"i64 {name}.to"), x)
    w.available = seen
    inside, w.lines = w.lines, outside
    w.lines[row.line] = "\n".join(filter(None, [w.lines[row.line], *inside]))
