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
SPREADING = {"fadd", "fsub", "fmul", "fneg"}  # to their results, what is infinite or no number: 0 * inf is no number
SPREAD = ("insertelement", "shufflevector")  # of one number to all lanes
KEPT = (
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
NAMED = re.compile(r"%[\w.]+")
BOOL, INT, LONG = np.dtype(bool), np.dtype(np.int32), np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the program: its name in the IR, its dtype, and whether it is a vector over lanes."""

    name: str
    dtype: np.dtype
    wide: bool

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind == "i"


@cache
def kind(dtype: Any) -> str:
    """LLVM type of a scalar."""
    try:
        return TYPES[np.dtype(dtype).name]  # the name takes numpy a while
    except (KeyError, TypeError) as error:
        raise Unsupported(f"numbers of type {dtype}") from error


def constant(value: Any, dtype: Any) -> Number:
    """A constant, shared by all lanes."""
    dtype = np.dtype(dtype)
    kind(dtype)
    if dtype == BOOL:
        return Number("true" if value else "false", dtype, False)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            exact = float(dtype.type(value))
        return Number(f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}", dtype, False)
    return Number(str(int(value)), dtype, False)


def memory(dtype: Any) -> np.dtype:
    """The dtype of a number in memory: booleans are stored as bytes."""
    return np.dtype(np.uint8) if np.dtype(dtype) == BOOL else np.dtype(dtype)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop being written: the line before it, where invariant code is hoisted to, and the results known there."""

    lines: list[str]
    line: int
    outside: dict

    def before(self, text: str) -> None:
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
        self.entry: list[str] = []  # what the first block begins with
        self.used = 0  # bytes of memory for arrays
        self.seen: list[dict] = [{}]  # by scope: a scope sees what those around it have computed before
        self.active: Number | None = None  # the lanes whose results matter, None: all
        self.outside: Outside | None = None  # of blocks for the lanes of one register of several
        self.differences: dict[str, tuple[Number, Number]] = {}  # of what numbers are
        self.made: dict[str, tuple] = {}  # how conditions and status integers were made: see `predicates`
        self.terms: dict[str, tuple[Number, ...]] = {}  # of what is no finite number if one of them is none
        self.loops: list[Loop] = []  # around the present block
        self.depth: dict[str, int] = {}  # how many loops there are around a number
        self._count = 0

    def type(self, dtype: Any, wide: bool) -> str:
        return f"<{self.width} x {kind(dtype)}>" if wide else kind(dtype)

    def of(self, x: Number) -> str:
        """LLVM type of a number."""
        return self.type(x.dtype, x.wide)

    def arg(self, x: Number) -> str:
        return f"{self.of(x)} {x.name}"

    # instructions

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def text(self, dtype: Any, wide: bool, instruction: str) -> Number:
        """Emits an instruction without side effects, hoisted out of loops if possible; returns its result."""
        dtype = np.dtype(dtype)
        if (known := self.known((instruction, dtype))) is not None:
            return known
        found = Number("%" + self.fresh(), dtype, wide)
        line, depth = f"  {found.name} = {instruction}", len(self.loops)
        if self.loops and (not wide or instruction.startswith(SPREAD)) and not instruction.startswith(KEPT):
            depth = max((self.depth.get(name, depth) for name in NAMED.findall(instruction)), default=depth)
        self.depth[found.name] = depth
        if depth < len(self.loops):
            self.loops[depth].before(line)
            self.loops[depth].outside[instruction, dtype] = found
        else:
            self.lines.append(line)
            self.seen[-1][instruction, dtype] = found
        return found

    def known(self, key: tuple) -> Any:
        """Result computed before under ``key``, if it is visible in the present block."""
        for scope in reversed(self.seen):
            if key in scope:
                return scope[key]
        return None if self.outside is None else self.outside.known(key)

    def do(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def op(self, name: str, *values: Number, dtype: Any = None) -> Number:
        """Emits an instruction whose operands share one type, which is also its result's unless ``dtype`` is given."""
        first, *_ = operands = self.alike(values)
        found = self.text(first.dtype if dtype is None else dtype, first.wide, self._instruction(name, operands))
        if found.dtype == BOOL and found.name not in self.made:
            # of the operands before they were spread to all lanes
            compared = name.startswith(("icmp", "fcmp"))
            self.made[found.name] = ("compared", name, *values) if compared else (name, *values)
        elif name.partition(" ")[0] in SPREADING:
            self.terms[found.name] = values
        return found

    def _instruction(self, name: str, values: Sequence[Number]) -> str:
        return f"{name} {self.of(values[0])} {', '.join(x.name for x in values)}"

    def find_result(self, name: str, *values: Number) -> Number | None:
        """Result of an instruction that was emitted before for these operands, or None."""
        operands = self.alike(values)
        return self.known((self._instruction(name, operands), operands[0].dtype))

    def convert(self, name: str, x: Number, dtype: Any) -> Number:
        return self.text(dtype, x.wide, f"{name} {self.arg(x)} to {self.type(dtype, x.wide)}")

    def select(self, which: Number, yes: Number, no: Number) -> Number:
        if yes == no:
            return yes
        which, yes, no = self.alike((which, yes, no)) if which.wide else (which, *self.alike((yes, no)))
        return self.text(yes.dtype, yes.wide, f"select {self.arg(which)}, {self.arg(yes)}, {self.arg(no)}")

    def intrinsic(self, name: str, *values: Number, dtype: Any = None, extra: str = "") -> Number:
        """Calls the intrinsic ``llvm.name`` on operands of one type, followed by ``extra`` operands."""
        operands = self.alike(values)
        first = operands[0]
        result = np.dtype(first.dtype if dtype is None else dtype)
        suffix = self.type_suffix(first)
        if result != first.dtype:
            suffix = f"{self.type_suffix(Number('', result, first.wide))}.{suffix}"
        function = f"@llvm.{name}.{suffix}"
        inputs = ", ".join([self.of(x) for x in operands] + ([extra.split()[0]] if extra else []))
        self.declared[function] = f"declare {self.type(result, first.wide)} {function}({inputs})"
        given = ", ".join([self.arg(x) for x in operands] + ([extra] if extra else []))
        return self.text(result, first.wide, f"call {self.type(result, first.wide)} {function}({given})")

    def call_function(self, name: str, x: Number, body: Callable[[Writer, Number], Number]) -> Number:
        """Calls ``body(writer, x)`` as an IR function, which is emitted once."""
        function = f"@lanes.{name}.{self.type_suffix(x)}"
        if function not in self.declared:
            inside = Writer(self.width, self.fused)
            inside.begin("entry")
            found = body(inside, Number("%x", x.dtype, x.wide))
            self.declared |= inside.declared
            head = f"define internal {self.of(x)} {function}({self.of(x)} %x) noinline nounwind memory(none) {{"
            self.declared[function] = "\n".join([head, *inside.lines, f"  ret {inside.arg(found)}", "}"])
        return self.text(x.dtype, x.wide, f"call {self.of(x)} {function}({self.arg(x)})")

    def type_suffix(self, x: Number) -> str:
        short = {"double": "f64", "float": "f32"}.get(kind(x.dtype), kind(x.dtype))
        return f"v{self.width}{short}" if x.wide else short

    # shared numbers and vectors

    def wide(self, x: Number) -> Number:
        """A number broadcast to a vector."""
        if x.wide:
            return x
        if not x.name.startswith("%"):
            return Number(f"splat ({kind(x.dtype)} {x.name})", x.dtype, True)
        vector = self.type(x.dtype, True)
        first = self.text(x.dtype, True, f"insertelement {vector} poison, {self.arg(x)}, i64 0")
        return self.text(
            x.dtype,
            True,
            f"shufflevector {vector} {first.name}, {vector} poison, <{self.width} x i32> zeroinitializer",
        )

    def lane(self, x: Number, i: int) -> Number:
        """The number of lane i."""
        return self.text(x.dtype, False, f"extractelement {self.arg(x)}, i64 {i}") if x.wide else x

    def vector(self, lanes: Sequence[Number]) -> Number:
        """The vector made of one number per lane."""
        kind_, found = self.type(lanes[0].dtype, True), "poison"
        for i, x in enumerate(lanes):
            now = self.text(x.dtype, True, f"insertelement {kind_} {found}, {self.arg(x)}, i64 {i}")
            found = now.name
        return now

    def counted(self, first: Number) -> Number:
        """first, first + 1, ... over the lanes."""
        steps = ", ".join(f"{kind(first.dtype)} {i}" for i in range(self.width))
        return self.op("add", first, Number(f"<{steps}>", first.dtype, True))

    def alike(self, values: Iterable[Number]) -> list[Number]:
        """Broadcasts all values to vectors if one of them is a vector."""
        values = list(values)
        return [self.wide(x) for x in values] if any(x.wide for x in values) else values

    def like(self, values: Sequence[Number], flags: Sequence[bool]) -> list[Number]:
        """Broadcasts the values marked by ``flags`` to vectors."""
        return [self.wide(x) if wide else x for x, wide in zip(values, flags, strict=True)]

    def any(self, x: Number) -> Number:
        """Whether a condition holds in any lane."""
        return self._of_all("or", x)

    def all(self, x: Number) -> Number:
        """Whether a condition holds in every lane."""
        return self._of_all("and", x)

    def _of_all(self, name: str, x: Number) -> Number:
        if not x.wide:
            return x
        function = f"@llvm.vector.reduce.{name}.v{self.width}i1"
        self.declared[function] = f"declare i1 {function}({self.of(x)})"
        return self.text(BOOL, False, f"call i1 {function}({self.arg(x)})")

    def both(self, x: Number, y: Number | None) -> Number:
        return x if y is None else self.op("and", x, y)

    # memory

    def address(self, pointer: str, dtype: Any, *, wide: bool, place: Number | str) -> str:
        """Address of an array entry in memory; a wide array has ``width`` numbers per entry."""
        name = "%" + self.fresh("p")
        at = place if isinstance(place, str) else self.arg(place)
        self.do(f"{name} = getelementptr {self.type(memory(dtype), wide)}, ptr {pointer}, {at}")
        return name

    def load(self, address: str, dtype: Any, wide: bool) -> Number:
        kept = memory(dtype)
        found = self.text(kept, wide, f"load {self.type(kept, wide)}, ptr {address}, align {kept.itemsize}")
        return found if kept == dtype else self.op("icmp ne", found, constant(0, kept), dtype=BOOL)

    def store(self, address: str, x: Number) -> None:
        kept = memory(x.dtype)
        x = x if kept == x.dtype else self.convert("zext", x, kept)
        self.do(f"store {self.arg(x)}, ptr {address}, align {kept.itemsize}")

    def reserve(self, count: int, dtype: Any, wide: bool) -> str:
        """Reserves scratch memory for ``count`` numbers, or vectors."""
        name, self.used = "%" + self.fresh("m"), -(-self.used // 64) * 64
        self.entry.append(f"  {name} = getelementptr i8, ptr %work, i64 {self.used}")
        self.used += count * memory(dtype).itemsize * (self.width if wide else 1)
        return name

    # blocks

    @contextmanager
    def loop_scope(self, active: Number | None) -> Iterator[None]:
        """Scope of a loop's blocks: invariant instructions are hoisted to the line before it."""
        self.loops.append(Loop(self.lines, len(self.lines) - 1, self.seen[-1]))
        try:
            with self.scope(active):
                yield
        finally:
            self.loops.pop()

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def go(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, which: Number, yes: str, no: str, hint: str = "") -> None:
        """Emits a conditional branch; ``hint`` RARE or SELDOM marks the first target as unlikely, so that it saves the registers it needs."""
        self.do(f"br i1 {which.name}, label %{yes}, label %{no}{hint}")

    @contextmanager
    def scope(self, active: Number | None) -> Iterator[None]:
        """Scope of blocks that may be skipped: results computed there are not visible after it. Only the ``active`` lanes matter inside."""
        outside, self.active = self.active, active
        self.seen.append({})
        try:
            yield
        finally:
            self.seen.pop()
            self.active = outside

    @contextmanager
    def narrowed(self, width: int) -> Iterator[Outside]:
        """Opens basic blocks for the lanes of one of several registers, which can read what was computed for all of them before."""
        before = self.width, self.seen, self.active, self.outside, self.loops
        outside = Outside(self, width)
        self.width, self.seen, self.active, self.outside, self.loops = width, [{}], None, outside, []
        try:
            yield outside
        finally:
            self.width, self.seen, self.active, self.outside, self.loops = before

    def bits(self, which: Number) -> Number:
        """A predicate of all lanes as one integer."""
        found = self.text(LONG, False, f"bitcast {self.arg(which)} to i{self.width}")
        return found if self.width == 64 else self.text(LONG, False, f"zext i{self.width} {found.name} to i64")

    def mask(self, bits: Number, i: Number) -> Number:
        """The predicate of the lanes of register i."""
        shifted = self.op("lshr", bits, self.op("mul", i, constant(self.width, LONG)))
        part = self.text(LONG, False, f"trunc i64 {shifted.name} to i{self.width}")
        return self.text(BOOL, True, f"bitcast i{self.width} {part.name} to {self.type(BOOL, True)}")

    def phi(self, dtype: Any, wide: bool, sources: Sequence[tuple[Number, str]]) -> Number:
        """Emits a phi node: a number that comes from one of several blocks."""
        found = Number("%" + self.fresh(), np.dtype(dtype), wide)
        parts = ", ".join(f"[ {x.name}, %{label} ]" for x, label in sources)
        self.lines.append(f"  {found.name} = phi {self.of(found)} {parts}")
        return found


class Outside:
    """What blocks for one register's lanes see of the vectors of several registers: a vector that they use is kept in memory before
    them, and its part read at their beginning."""

    def __init__(self, w: Writer, width: int) -> None:
        self.w, self.seen, self.every, self.width = w, w.seen, w.width, width
        self.images: dict[Number, Number] = {}  # by vector, the part of the register
        self.sources: dict[str, Number] = {}  # and back, by name

    def part(self, x: Number) -> Number:
        """The register's part of a vector."""
        if not x.wide:
            return x
        if x not in self.images:
            self.images[x] = found = Number("%part" + self.w.fresh(""), x.dtype, True) if x.name.startswith("%") else x
            self.sources[found.name] = x
        return self.images[x]

    def known(self, key: tuple) -> Any:
        """As `Writer.known`, of what is computed from parts as the whole was."""
        what, other = key
        if not isinstance(what, str):  # arrays in memory
            return None
        if isinstance(other, Number):
            outer = (what, self.sources.get(other.name, other))
        else:
            whole = NAMED.sub(lambda name: self.sources[name[0]].name if name[0] in self.sources else name[0], what)
            whole = whole.replace(f"<{self.width} x ", f"<{self.every} x ").replace(
                f".v{self.width}", f".v{self.every}"
            )
            outer = (whole, other)
        for scope in reversed(self.seen):
            if outer in scope:
                found = scope[outer]
                return self.part(found) if isinstance(found, Number) else tuple(map(self.part, found))
        return None

    def read(self, keeping: int, reading: int, i: Number) -> None:
        """Fills in two lines: ``keeping``, before the blocks, with the vectors that the lines after ``reading`` use, and that with
        their i-th parts."""
        w = self.w
        used = set(NAMED.findall("\n".join(w.lines[reading:])))
        parts = [(x, part) for x, part in self.images.items() if part.name in used]
        keep, read = list[str](), list[str]()
        before = w.lines, w.width, w.outside
        w.outside = None
        w.seen.append({})  # nothing that this computes is seen elsewhere
        for x, part in parts:
            w.lines, w.width = keep, self.every
            place = w.reserve(1, x.dtype, True)
            w.store(place, x)
            w.lines, w.width = read, self.width
            found = w.load(w.address(place, x.dtype, wide=True, place=i), x.dtype, True)
            read[-1] = read[-1].replace(f"{found.name} =", f"{part.name} =")
        w.seen.pop()
        w.lines, w.width, w.outside = before
        w.lines[keeping], w.lines[reading] = "\n".join(keep), "\n".join(read)
