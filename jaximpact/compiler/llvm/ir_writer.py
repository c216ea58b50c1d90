"""Writer of LLVM IR text: numbers shared by all lanes are scalars, others vectors with one entry per lane."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..scalar import Unsupported

TYPES = {"float64": "double", "float32": "float", "bool": "i1"} | {
    f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
PROPAGATES_NONFINITE = {
    "fadd",
    "fsub",
    "fmul",
    "fneg",
}  # to their results, what is infinite or no number: 0 * inf is no number
BROADCASTS = ("insertelement", "shufflevector")  # of one number to all lanes
NOT_HOISTED = (
    "load",
    "sdiv",
    "udiv",
    "srem",
    "urem",
    "call double @",
    "call float @",
    "call i",
)  # where they stand: they may trap, or cost much
RARE = ', !prof !{!"branch_weights", i32 1, i32 1000}'
SELDOM = ', !prof !{!"branch_weights", i32 1, i32 20}'  # now and then: as contacts act
SSA_NAME = re.compile(r"%[\w.]+")
BOOL, INT, LONG = np.dtype(bool), np.dtype(np.int32), np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class LaneValue:
    """A number of the program: its name in the IR, its dtype, and whether it is a vector over lanes."""

    name: str
    dtype: np.dtype
    is_vector: bool

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind == "i"


@cache
def llvm_scalar_type(dtype: Any) -> str:
    """LLVM type of a scalar."""
    try:
        return TYPES[np.dtype(dtype).name]  # the name takes numpy a while
    except (KeyError, TypeError) as error:
        raise Unsupported(f"numbers of type {dtype}") from error


def constant(value: Any, dtype: Any) -> LaneValue:
    """A constant, shared by all lanes."""
    dtype = np.dtype(dtype)
    llvm_scalar_type(dtype)
    if dtype == BOOL:
        return LaneValue("true" if value else "false", dtype, False)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            exact = float(dtype.type(value))
        return LaneValue(f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}", dtype, False)
    return LaneValue(str(int(value)), dtype, False)


def memory_dtype(dtype: Any) -> np.dtype:
    """The dtype of a number in memory: booleans are stored as bytes."""
    return np.dtype(np.uint8) if np.dtype(dtype) == BOOL else np.dtype(dtype)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop being written: the line before it, where invariant code is hoisted to, and the results known there."""

    lines: list[str]
    line: int
    available: dict

    def hoist(self, text: str) -> None:
        self.lines[self.line] = "\n".join(filter(None, [self.lines[self.line], text]))


class Writer:
    """Writes a function body for ``width`` lanes a vector, one basic block after the other.

    Common subexpressions are emitted once: `text` returns an earlier result that is visible in the present block.
    """

    def __init__(self, width: int, fused: bool) -> None:
        self.width = width
        self.fused = fused  # whether the processor multiplies and adds in one instruction
        self.lines: list[str] = []
        self.block = "entry"
        self.declared: dict[str, str] = {}  # other functions by name: declarations or definitions
        self.entry_lines: list[str] = []  # what the first block begins with
        self.scratch_bytes = 0  # bytes of memory for arrays
        self.available: list[dict] = [{}]  # by scope: a scope sees what those around it have computed before
        self.active: LaneValue | None = None  # the lanes whose results matter, None: all
        self.operands_of_difference: dict[str, tuple[LaneValue, LaneValue]] = {}  # of what numbers are
        self.origins: dict[str, tuple] = {}  # how conditions and status integers were made: see `predicates`
        self.implies_finite: dict[str, tuple[LaneValue, ...]] = {}  # of what is no finite number if one of them is none
        self.loops: list[Loop] = []  # around the present block
        self.depth: dict[str, int] = {}  # how many loops there are around a number
        self._count = 0

    def llvm_type(self, dtype: Any, is_vector: bool) -> str:
        return f"<{self.width} x {llvm_scalar_type(dtype)}>" if is_vector else llvm_scalar_type(dtype)

    def type_of(self, x: LaneValue) -> str:
        """LLVM type of a number."""
        return self.llvm_type(x.dtype, x.is_vector)

    def typed_name(self, x: LaneValue) -> str:
        return f"{self.type_of(x)} {x.name}"

    # instructions

    def fresh_name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def emit_value(self, dtype: Any, is_vector: bool, instruction: str) -> LaneValue:
        """Emits an instruction without side effects, hoisted out of loops if possible; returns its result."""
        dtype = np.dtype(dtype)
        if (known := self.lookup((instruction, dtype))) is not None:
            return known
        found = LaneValue("%" + self.fresh_name(), dtype, is_vector)
        line, depth = f"  {found.name} = {instruction}", len(self.loops)
        if (
            self.loops
            and (not is_vector or instruction.startswith(BROADCASTS))
            and not instruction.startswith(NOT_HOISTED)
        ):
            depth = max((self.depth.get(name, depth) for name in SSA_NAME.findall(instruction)), default=depth)
        self.depth[found.name] = depth
        if depth < len(self.loops):
            self.loops[depth].hoist(line)
            self.loops[depth].available[instruction, dtype] = found
        else:
            self.lines.append(line)
            self.available[-1][instruction, dtype] = found
        return found

    def lookup(self, key: tuple) -> Any:
        """Result computed before under ``key``, if it is visible in the present block."""
        for scope in reversed(self.available):
            if key in scope:
                return scope[key]
        return None

    def emit(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def op(self, name: str, *values: LaneValue, dtype: Any = None) -> LaneValue:
        """Emits an instruction whose operands share one type, which is also its result's unless ``dtype`` is given."""
        first, *_ = operands = self.broadcast(values)
        found = self.emit_value(
            first.dtype if dtype is None else dtype, first.is_vector, self._instruction(name, operands)
        )
        if found.dtype == BOOL and found.name not in self.origins:
            # of the operands before they were spread to all lanes
            compared = name.startswith(("icmp", "fcmp"))
            self.origins[found.name] = ("compared", name, *values) if compared else (name, *values)
        elif name.partition(" ")[0] in PROPAGATES_NONFINITE:
            self.implies_finite[found.name] = values
        return found

    def _instruction(self, name: str, values: Sequence[LaneValue]) -> str:
        return f"{name} {self.type_of(values[0])} {', '.join(x.name for x in values)}"

    def find_result(self, name: str, *values: LaneValue) -> LaneValue | None:
        """Result of an instruction that was emitted before for these operands, or None."""
        operands = self.broadcast(values)
        return self.lookup((self._instruction(name, operands), operands[0].dtype))

    def convert(self, name: str, x: LaneValue, dtype: Any) -> LaneValue:
        return self.emit_value(
            dtype, x.is_vector, f"{name} {self.typed_name(x)} to {self.llvm_type(dtype, x.is_vector)}"
        )

    def select(self, which: LaneValue, yes: LaneValue, no: LaneValue) -> LaneValue:
        if yes == no:
            return yes
        which, yes, no = self.broadcast((which, yes, no)) if which.is_vector else (which, *self.broadcast((yes, no)))
        return self.emit_value(
            yes.dtype, yes.is_vector, f"select {self.typed_name(which)}, {self.typed_name(yes)}, {self.typed_name(no)}"
        )

    def intrinsic(self, name: str, *values: LaneValue, dtype: Any = None, extra: str = "") -> LaneValue:
        """Calls the intrinsic ``llvm.name`` on operands of one type, followed by ``extra`` operands."""
        operands = self.broadcast(values)
        first = operands[0]
        result = np.dtype(first.dtype if dtype is None else dtype)
        suffix = self.type_suffix(first)
        if result != first.dtype:
            suffix = f"{self.type_suffix(LaneValue('', result, first.is_vector))}.{suffix}"
        function = f"@llvm.{name}.{suffix}"
        inputs = ", ".join([self.type_of(x) for x in operands] + ([extra.split()[0]] if extra else []))
        self.declared[function] = f"declare {self.llvm_type(result, first.is_vector)} {function}({inputs})"
        given = ", ".join([self.typed_name(x) for x in operands] + ([extra] if extra else []))
        return self.emit_value(
            result, first.is_vector, f"call {self.llvm_type(result, first.is_vector)} {function}({given})"
        )

    def call_function(self, name: str, x: LaneValue, body: Callable[[Writer, LaneValue], LaneValue]) -> LaneValue:
        """Calls ``body(writer, x)`` as an IR function, which is emitted once."""
        function = f"@lanes.{name}.{self.type_suffix(x)}"
        if function not in self.declared:
            inside = Writer(self.width, self.fused)
            inside.begin_block("entry")
            found = body(inside, LaneValue("%x", x.dtype, x.is_vector))
            self.declared |= inside.declared
            head = (
                f"define internal {self.type_of(x)} {function}({self.type_of(x)} %x) noinline nounwind memory(none) {{"
            )
            self.declared[function] = "\n".join([head, *inside.lines, f"  ret {inside.typed_name(found)}", "}"])
        return self.emit_value(x.dtype, x.is_vector, f"call {self.type_of(x)} {function}({self.typed_name(x)})")

    def type_suffix(self, x: LaneValue) -> str:
        short = {"double": "f64", "float": "f32"}.get(llvm_scalar_type(x.dtype), llvm_scalar_type(x.dtype))
        return f"v{self.width}{short}" if x.is_vector else short

    # shared numbers and vectors

    def as_vector(self, x: LaneValue) -> LaneValue:
        """A number broadcast to a vector."""
        if x.is_vector:
            return x
        if not x.name.startswith("%"):
            return LaneValue(f"splat ({llvm_scalar_type(x.dtype)} {x.name})", x.dtype, True)
        vector = self.llvm_type(x.dtype, True)
        first = self.emit_value(x.dtype, True, f"insertelement {vector} poison, {self.typed_name(x)}, i64 0")
        return self.emit_value(
            x.dtype,
            True,
            f"shufflevector {vector} {first.name}, {vector} poison, <{self.width} x i32> zeroinitializer",
        )

    def extract_lane(self, x: LaneValue, i: int) -> LaneValue:
        """The number of lane i."""
        return self.emit_value(x.dtype, False, f"extractelement {self.typed_name(x)}, i64 {i}") if x.is_vector else x

    def from_lanes(self, lanes: Sequence[LaneValue]) -> LaneValue:
        """The vector made of one number per lane."""
        kind_, found = self.llvm_type(lanes[0].dtype, True), "poison"
        for i, x in enumerate(lanes):
            now = self.emit_value(x.dtype, True, f"insertelement {kind_} {found}, {self.typed_name(x)}, i64 {i}")
            found = now.name
        return now

    def broadcast(self, values: Iterable[LaneValue]) -> list[LaneValue]:
        """Broadcasts all values to vectors if one of them is a vector."""
        values = list(values)
        return [self.as_vector(x) for x in values] if any(x.is_vector for x in values) else values

    def any_lane(self, x: LaneValue) -> LaneValue:
        """Whether a condition holds in any lane."""
        return self._reduce_lanes("or", x)

    def all_lanes(self, x: LaneValue) -> LaneValue:
        """Whether a condition holds in every lane."""
        return self._reduce_lanes("and", x)

    def _reduce_lanes(self, name: str, x: LaneValue) -> LaneValue:
        if not x.is_vector:
            return x
        function = f"@llvm.vector.reduce.{name}.v{self.width}i1"
        self.declared[function] = f"declare i1 {function}({self.type_of(x)})"
        return self.emit_value(BOOL, False, f"call i1 {function}({self.typed_name(x)})")

    def conjunction(self, x: LaneValue, y: LaneValue | None) -> LaneValue:
        return x if y is None else self.op("and", x, y)

    # memory

    def address(self, pointer: str, dtype: Any, *, is_vector: bool, place: LaneValue | str) -> str:
        """Address of an array entry in memory; a wide array has ``width`` numbers per entry."""
        name = "%" + self.fresh_name("p")
        at = place if isinstance(place, str) else self.typed_name(place)
        self.emit(f"{name} = getelementptr {self.llvm_type(memory_dtype(dtype), is_vector)}, ptr {pointer}, {at}")
        return name

    def load(self, address: str, dtype: Any, is_vector: bool) -> LaneValue:
        kept = memory_dtype(dtype)
        found = self.emit_value(
            kept, is_vector, f"load {self.llvm_type(kept, is_vector)}, ptr {address}, align {kept.itemsize}"
        )
        return found if kept == dtype else self.op("icmp ne", found, constant(0, kept), dtype=BOOL)

    def store(self, address: str, x: LaneValue) -> None:
        kept = memory_dtype(x.dtype)
        x = x if kept == x.dtype else self.convert("zext", x, kept)
        self.emit(f"store {self.typed_name(x)}, ptr {address}, align {kept.itemsize}")

    def reserve(self, count: int, dtype: Any, is_vector: bool) -> str:
        """Reserves scratch memory for ``count`` numbers, or vectors."""
        name, self.scratch_bytes = "%" + self.fresh_name("m"), -(-self.scratch_bytes // 64) * 64
        self.entry_lines.append(f"  {name} = getelementptr i8, ptr %work, i64 {self.scratch_bytes}")
        self.scratch_bytes += count * memory_dtype(dtype).itemsize * (self.width if is_vector else 1)
        return name

    # blocks

    @contextmanager
    def loop_scope(self, active: LaneValue | None) -> Iterator[None]:
        """Scope of a loop's blocks: invariant instructions are hoisted to the line before it."""
        self.loops.append(Loop(self.lines, len(self.lines) - 1, self.available[-1]))
        try:
            with self.scope(active):
                yield
        finally:
            self.loops.pop()

    def begin_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, which: LaneValue, yes: str, no: str, hint: str = "") -> None:
        """Emits a conditional branch; ``hint`` RARE or SELDOM marks the first target as unlikely, so that it saves the registers it needs."""
        self.emit(f"br i1 {which.name}, label %{yes}, label %{no}{hint}")

    @contextmanager
    def scope(self, active: LaneValue | None) -> Iterator[None]:
        """Scope of blocks that may be skipped: results computed there are not visible after it. Only the ``active`` lanes matter inside."""
        outside, self.active = self.active, active
        self.available.append({})
        try:
            yield
        finally:
            self.available.pop()
            self.active = outside

    def phi(self, dtype: Any, is_vector: bool, sources: Sequence[tuple[LaneValue, str]]) -> LaneValue:
        """Emits a phi node: a number that comes from one of several blocks."""
        found = LaneValue("%" + self.fresh_name(), np.dtype(dtype), is_vector)
        parts = ", ".join(f"[ {x.name}, %{label} ]" for x, label in sources)
        self.lines.append(f"  {found.name} = phi {self.type_of(found)} {parts}")
        return found
