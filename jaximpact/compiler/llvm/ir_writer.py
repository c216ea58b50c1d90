"""Writer of LLVM IR as text: values shared by all lanes are scalars, other values are
vectors with one element per lane.

Local optimisations happen while writing: common subexpressions are emitted once,
and loop-invariant scalars are hoisted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .ir_lines import SCOPE_BEGINS, SCOPE_ENDS, Loop, PhiNode, join_lines
from .ir_values import BOOL, LONG, POINTER, DType, LaneValue, constant, llvm_scalar_type, llvm_vector_type, memory_dtype

if TYPE_CHECKING:
    from .lane_blocks import LaneBlocks

# an infinite or NaN operand makes the result infinite or NaN: 0 * inf is NaN
PROPAGATES_NONFINITE = ("fadd", "fsub", "fmul", "fneg")
BROADCASTS = ("insertelement", "shufflevector")  # instructions that broadcast a scalar
# loop-invariant instructions that stay in their loop: they may trap, or cost much where the loop would not have run
# them
NOT_HOISTED = ("load", "sdiv", "udiv", "srem", "urem", "call double @", "call float @", "call i")
RARE = ', !prof !{!"branch_weights", i32 1, i32 1000}'  # branches such as huge arguments of the sine
COLD = ', !prof !{!"branch_weights", i32 1, i32 20}'  # branches such as steps with contact


class Writer:
    """Writes the body of a function, one basic block after the other, for vectors of ``width`` lanes.

    Common subexpressions are emitted once: `emit_value` returns the result of an equal instruction
    that dominates the current block.
    """

    def __init__(self, width: int, fused: bool, hoists_vectors: bool = False) -> None:
        self.width = width
        # whether loop-invariant vectors leave their loops: of many lanes they would need too many registers
        self.hoists_vectors = hoists_vectors
        self.fused = fused  # whether the processor has fused multiply-add
        self.lines: list = []  # see `join_lines`
        self.phi_nodes: dict[str, PhiNode] = {}  # by the name of their value
        self.block = "entry"  # label of the current basic block
        # declarations and definitions of other functions, and global constants, by name
        self.declared: dict[str, str] = {}
        self.entry_lines: list[str] = []  # first lines of the entry block: addresses of scratch memory
        self.scratch_bytes = 0  # scratch memory reserved so far
        # Results by instruction, one table per scope. A scope sees the tables of the scopes around it: their blocks
        # dominate it.
        self.available: list[dict] = [{}]
        self.active: LaneValue | None = None  # mask of the lanes whose results matter in the current scope; None: all
        self.register_view: RegisterView | None = None  # within `register_scope`
        # facts about values, by name
        self.operands_of_difference: dict[str, tuple[LaneValue, LaneValue]] = {}  # x -> (a, b) for x = a - b
        self.origins: dict[str, tuple] = {}  # condition or status integer -> how it was computed, see `predicates`
        self.implies_finite: dict[str, tuple[LaneValue, ...]] = {}  # x -> values that are finite if x is
        self.loops: list[Loop] = []  # loops around the current block, outermost first
        self.sections: LaneBlocks | None = (
            None  # the `lane_blocks.LaneBlocks` of a program that computes blocks of lanes in sections
        )
        self.depth: dict[str, int] = {}  # value -> number of loops around its instruction
        self._count = 0

    def llvm_type(self, dtype: DType, is_vector: bool) -> str:
        return llvm_vector_type(self.width, dtype) if is_vector else llvm_scalar_type(dtype)

    def type_of(self, x: LaneValue) -> str:
        """LLVM type of a value."""
        return llvm_vector_type(self.width, x.dtype) if x.is_vector else llvm_scalar_type(x.dtype)

    def typed_name(self, x: LaneValue) -> str:
        """Type and name of a value, as operands are written."""
        return f"{self.type_of(x)} {x.name}"

    # instructions

    def fresh_name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def emit_value(
        self, dtype: DType, is_vector: bool, what: str, operands: Sequence[LaneValue], instruction: str
    ) -> LaneValue:
        """Emits an instruction without side effects, hoisted out of the loops in which it is invariant;
        returns its result.

        ``what``: text that identifies the instruction, apart from its operands and the width of vectors; equal
        instructions are emitted once.
        """
        dtype = np.dtype(dtype)
        key = what, tuple([x.name for x in operands]), dtype
        if (known := self.lookup(key)) is not None:
            return known
        if self.register_view is not None:
            self.note_uses(operands)
        self._count += 1
        found = LaneValue(f"%v{self._count}", dtype, is_vector)
        line, depth = f"  {found.name} = {instruction}", len(self.loops)
        if (
            depth
            and (not is_vector or self.hoists_vectors or instruction.startswith(BROADCASTS))
            and not instruction.startswith(NOT_HOISTED)
        ):
            depth = min(self.deepest(operands), depth)
        self.depth[found.name] = depth
        if self.sections is not None:
            self.sections.note(found, operands)
        if depth < len(self.loops):
            self.loops[depth].before.append(line)
            self.loops[depth].available[key] = found
        else:
            self.lines.append(line)
            self.available[-1][key] = found
        return found

    def deepest(self, operands: Sequence[LaneValue]) -> int:
        """Returns the number of loops around the innermost of the instructions that gave the ``operands``."""
        inside, found = len(self.loops), -1
        for x in operands:
            if x.name[0] == "%":
                found = max(found, self.depth.get(x.name, inside))
        return inside if found < 0 else found

    def note_uses(self, operands: Iterable[LaneValue]) -> None:
        """Records the values that an instruction reads, within a `register_scope`, where parts of vectors are loaded
        only if they are read."""
        if self.register_view is not None:
            self.register_view.used.update(x.name for x in operands)

    def lookup(self, key: tuple) -> Any:
        """Returns what is stored under ``key``, such as an earlier instruction's result, if it is available in the
        current block; else None."""
        for scope in reversed(self.available):
            if key in scope:
                return scope[key]
        return None if self.register_view is None else self.register_view.lookup(key)

    def reserve_lines(self) -> list:
        """Reserves a place in the current block for lines that are written later;
        returns the list to which they are appended."""
        found: list = []
        self.lines.append(found)
        return found

    def emit(self, instruction: str) -> None:
        """Writes a line: an instruction with side effects, or with a name of its own."""
        self.lines.append(f"  {instruction}")

    def op(self, name: str, *values: LaneValue, dtype: DType | None = None) -> LaneValue:
        """Emits an instruction whose operands have one type; its result has the same type,
        or ``dtype`` if that is given."""
        first = (operands := self.broadcast(values))[0]
        instruction = f"{name} {self.type_of(first)} {', '.join([x.name for x in operands])}"
        found = self.emit_value(first.dtype if dtype is None else dtype, first.is_vector, name, operands, instruction)
        if found.dtype == BOOL:
            if found.name not in self.origins:
                # operands before broadcasting, so that a comparison of scalars stays recognisable
                compared = name.startswith(("icmp", "fcmp"))
                self.origins[found.name] = ("compared", name, *values) if compared else (name, *values)
        elif name.startswith(PROPAGATES_NONFINITE):
            self.implies_finite[found.name] = values
        return found

    def find_result(self, name: str, *values: LaneValue) -> LaneValue | None:
        """Result of an earlier instruction ``name`` with these operands, if it is available in the current block;
        else None."""
        operands = self.broadcast(values)
        return self.lookup((name, tuple(x.name for x in operands), operands[0].dtype))

    def convert(self, name: str, x: LaneValue, dtype: DType) -> LaneValue:
        instruction = f"{name} {self.typed_name(x)} to {self.llvm_type(dtype, x.is_vector)}"
        return self.emit_value(dtype, x.is_vector, name, [x], instruction)

    def select(self, which: LaneValue, yes: LaneValue, no: LaneValue) -> LaneValue:
        if yes == no:
            return yes
        which, yes, no = self.broadcast((which, yes, no)) if which.is_vector else (which, *self.broadcast((yes, no)))
        operands = which, yes, no
        instruction = f"select {', '.join(map(self.typed_name, operands))}"
        return self.emit_value(yes.dtype, yes.is_vector, "select", operands, instruction)

    def intrinsic(self, name: str, *values: LaneValue, dtype: DType | None = None, extra: str = "") -> LaneValue:
        """Calls the intrinsic ``llvm.name`` on operands of one type; ``extra``: a further operand as text,
        such as "i1 false"."""
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
        instruction = f"call {self.llvm_type(result, first.is_vector)} {function}({given})"
        return self.emit_value(result, first.is_vector, f"llvm.{name} {extra}", operands, instruction)

    def call_function(self, name: str, x: LaneValue, body: Callable[[Writer, LaneValue], LaneValue]) -> LaneValue:
        """Calls an IR function of one argument, defined once for each type by ``body(writer, x)``."""
        function = f"@lanes.{name}.{self.type_suffix(x)}"
        if function not in self.declared:
            inside = Writer(self.width, self.fused)
            inside.begin_block("entry")
            found = body(inside, LaneValue("%x", x.dtype, x.is_vector))
            self.declared |= inside.declared
            head = (
                f"define internal {self.type_of(x)} {function}({self.type_of(x)} %x) noinline nounwind memory(none) {{"
            )
            self.declared[function] = join_lines([head, *inside.lines, f"  ret {inside.typed_name(found)}", "}"])
        instruction = f"call {self.type_of(x)} {function}({self.typed_name(x)})"
        return self.emit_value(x.dtype, x.is_vector, name, [x], instruction)

    def type_suffix(self, x: LaneValue) -> str:
        """Type of a value as written in names of intrinsics: "v4f64"."""
        short = {"double": "f64", "float": "f32"}.get(llvm_scalar_type(x.dtype), llvm_scalar_type(x.dtype))
        return f"v{self.width}{short}" if x.is_vector and self.width > 1 else short

    # scalars and vectors

    def as_vector(self, x: LaneValue) -> LaneValue:
        """Returns the value as a vector; broadcasts a scalar."""
        if x.is_vector:
            return x
        if self.width == 1:
            return LaneValue(x.name, x.dtype, True)
        if not x.name.startswith("%"):
            return LaneValue(f"splat ({llvm_scalar_type(x.dtype)} {x.name})", x.dtype, True)
        vector = self.llvm_type(x.dtype, True)
        first = self.with_entry(LaneValue("poison", x.dtype, True), x, 0)
        instruction = f"shufflevector {vector} {first.name}, {vector} poison, <{self.width} x i32> zeroinitializer"
        return self.emit_value(x.dtype, True, "broadcast", [first], instruction)

    def with_entry(self, vector: LaneValue, x: LaneValue, i: int) -> LaneValue:
        """Copy of a vector with x as its element of lane i."""
        instruction = f"insertelement {self.typed_name(vector)}, {self.typed_name(x)}, i64 {i}"
        return self.emit_value(x.dtype, True, f"insertelement {i}", [vector, x], instruction)

    def as_scalar(self, x: LaneValue) -> LaneValue:
        """Returns the value as a scalar if vectors have a single lane, else unchanged."""
        return LaneValue(x.name, x.dtype, False) if self.width == 1 else x

    def extract_lane(self, x: LaneValue, i: int) -> LaneValue:
        """Returns the element of lane i of a vector; returns a scalar unchanged."""
        if x.is_vector and self.width > 1:
            instruction = f"extractelement {self.typed_name(x)}, i64 {i}"
            return self.emit_value(x.dtype, False, f"extractelement {i}", [x], instruction)
        return self.as_scalar(x)

    def from_lanes(self, lanes: Sequence[LaneValue]) -> LaneValue:
        """Vector of one scalar per lane."""
        if self.width == 1:
            return self.as_vector(lanes[0])
        found = LaneValue("poison", lanes[0].dtype, True)
        for i, x in enumerate(lanes):
            found = self.with_entry(found, x, i)
        return found

    def lane_indices(self, first: LaneValue) -> LaneValue:
        """Vector first, first + 1, ... over the lanes."""
        if self.width == 1:
            return self.as_vector(first)
        steps = ", ".join(f"{llvm_scalar_type(first.dtype)} {i}" for i in range(self.width))
        return self.op("add", first, LaneValue(f"<{steps}>", first.dtype, True))

    def broadcast(self, values: Sequence[LaneValue]) -> Sequence[LaneValue]:
        """Broadcasts all values to vectors if any of them is a vector."""
        for x in values:
            if x.is_vector:
                return [self.as_vector(y) for y in values]
        return values

    def any_lane(self, x: LaneValue) -> LaneValue:
        """Emits a scalar condition: whether the condition x holds in any lane."""
        return self._reduce_lanes("or", x)

    def all_lanes(self, x: LaneValue) -> LaneValue:
        """Emits a scalar condition: whether the condition x holds in every lane."""
        return self._reduce_lanes("and", x)

    def _reduce_lanes(self, name: str, x: LaneValue) -> LaneValue:
        if not x.is_vector or self.width == 1:
            return self.as_scalar(x)
        function = f"@llvm.vector.reduce.{name}.v{self.width}i1"
        self.declared[function] = f"declare i1 {function}({self.type_of(x)})"
        return self.emit_value(BOOL, False, function, [x], f"call i1 {function}({self.typed_name(x)})")

    def conjunction(self, x: LaneValue, y: LaneValue | None) -> LaneValue:
        """Emits the condition "x and y"; y = None stands for true."""
        return x if y is None else self.op("and", x, y)

    # memory

    def address(self, pointer: str, dtype: DType, *, is_vector: bool, place: LaneValue | str) -> str:
        """Emits the address of the entry at position ``place`` of an array in memory; ``is_vector``: entries are
        vectors of ``width`` elements."""
        name = "%" + self.fresh_name("p")
        at = place if isinstance(place, str) else self.typed_name(place)
        self.emit(f"{name} = getelementptr {self.llvm_type(memory_dtype(dtype), is_vector)}, ptr {pointer}, {at}")
        return name

    def load(self, address: str, dtype: DType, is_vector: bool) -> LaneValue:
        kept = memory_dtype(dtype)
        instruction = f"load {self.llvm_type(kept, is_vector)}, ptr {address}, align {kept.itemsize}"
        what = "load vector" if is_vector else "load"
        found = self.emit_value(kept, is_vector, what, [LaneValue(address, POINTER, False)], instruction)
        return found if kept == dtype else self.op("icmp ne", found, constant(0, kept), dtype=BOOL)

    def gather(self, pointer: str, dtype: DType, places: LaneValue) -> LaneValue:
        """Emits the vector of the entries of an array at the given positions, all of which exist;
        entries have 4 or 8 bytes."""
        if self.width == 1:
            return self.load(self.address(pointer, dtype, is_vector=False, place=places), dtype, True)
        kind, vector = llvm_scalar_type(dtype), self.llvm_type(dtype, True)
        addresses = "%" + self.fresh_name("p")
        self.note_uses([places])
        self.emit(f"{addresses} = getelementptr {kind}, ptr {pointer}, {self.typed_name(places)}")
        function = f"@llvm.masked.gather.{self.type_suffix(LaneValue('', np.dtype(dtype), True))}.v{self.width}p0"
        pointers, mask = f"<{self.width} x ptr>", f"<{self.width} x i1>"
        self.declared[function] = f"declare {vector} {function}({pointers}, i32, {mask}, {vector})"
        operands = f"{pointers} {addresses}, i32 {np.dtype(dtype).itemsize}, {mask} splat (i1 true), {vector} poison"
        several = LaneValue(addresses, POINTER, True)
        return self.emit_value(dtype, True, "gather", [several], f"call {vector} {function}({operands})")

    def store(self, address: str, x: LaneValue) -> None:
        kept = memory_dtype(x.dtype)
        x = x if kept == x.dtype else self.convert("zext", x, kept)
        self.note_uses([x])
        self.emit(f"store {self.typed_name(x)}, ptr {address}, align {kept.itemsize}")

    def reserve(self, count: int, dtype: DType, is_vector: bool) -> str:
        """Reserves scratch memory, aligned to 64 bytes, for ``count`` scalars or vectors, and returns its pointer."""
        name = "%" + self.fresh_name("m")
        if is_vector and self.sections is not None:
            self.sections.memory.add(name)
        place = self.reserve_bytes(count * memory_dtype(dtype).itemsize * (self.width if is_vector else 1))
        self.entry_lines.append(f"  {name} = getelementptr i8, ptr %work, i64 {place}")
        return name

    def reserve_bytes(self, size: int, alignment: int = 64) -> int:
        """Reserves ``size`` bytes of scratch memory, aligned to ``alignment`` bytes, and returns their offset."""
        place = -(-self.scratch_bytes // alignment) * alignment
        self.scratch_bytes = place + size
        return place

    def pointer_to(self, place: int) -> str:
        """Emits the pointer to an offset in scratch memory."""
        name = "%" + self.fresh_name("p")
        self.emit(f"{name} = getelementptr i8, ptr %work, i64 {place}")
        return name

    # functions

    def of_function(self) -> Writer:
        """Returns a writer for another function of the module; the function's scratch memory begins
        where that of this writer ends."""
        found = Writer(self.width, self.fused, self.hoists_vectors)
        found._count, found.scratch_bytes = self._count, self.scratch_bytes
        return found

    def with_function(self, other: Writer, name: str, text: str) -> None:
        """Adds the function ``name`` with this ``text`` to the module; the ``other`` writer, of `of_function`,
        wrote it."""
        self._count, self.scratch_bytes = other._count, other.scratch_bytes
        self.declared |= other.declared | {name: text}

    # blocks

    @contextmanager
    def loop_scope(self, active: LaneValue | None) -> Iterator[None]:
        """Context manager in which a loop is written: its invariant instructions are hoisted to lines that are
        reserved in the current block.

        ``active``: as in `scope`.
        """
        self.loops.append(Loop(self.reserve_lines(), self.available[-1]))
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
        """Emits a branch to the block labelled ``yes`` if the scalar ``which`` holds, else to ``no``.

        With the ``hint`` `RARE` or `COLD` the block ``yes`` is unlikely,
        so that LLVM spills registers in it rather than elsewhere.
        """
        self.emit(f"br i1 {which.name}, label %{yes}, label %{no}{hint}")

    @contextmanager
    def scope(self, active: LaneValue | None) -> Iterator[None]:
        """Context manager in which blocks are written that may be skipped: after it, their results are not available.

        ``active``: mask of the lanes whose results matter in these blocks; None for all.
        """
        outside, self.active = self.active, active
        self.available.append({})
        if self.sections is not None:
            self.lines.append(SCOPE_BEGINS)
        try:
            yield
        finally:
            if self.sections is not None:
                self.lines.append(SCOPE_ENDS)
            self.available.pop()
            self.active = outside

    @contextmanager
    def register_scope(self, width: int) -> Iterator[RegisterView]:
        """Context manager in which blocks are written for the ``width`` lanes of one register only,
        if a vector takes several registers.

        The blocks read this register's part of earlier vectors through the `RegisterView` that the context gives.
        """
        before = self.width, self.available, self.active, self.register_view, self.loops
        view = RegisterView(self, width)
        self.width, self.available, self.active, self.register_view, self.loops = width, [{}], None, view, []
        try:
            yield view
        finally:
            self.width, self.available, self.active, self.register_view, self.loops = before

    def mask_as_integer(self, which: LaneValue) -> LaneValue:
        """Converts a mask over all lanes to an integer of 64 bits, with a bit per lane."""
        text = f"bitcast {self.typed_name(which)} to i{self.width}"
        found = self.emit_value(LONG, False, f"bits of {self.width}", [which], text)
        if self.width == 64:
            return found
        return self.emit_value(LONG, False, f"zext {self.width}", [found], f"zext i{self.width} {found.name} to i64")

    def mask_of_register(self, bits: LaneValue, i: LaneValue) -> LaneValue:
        """Returns the mask over the lanes of register i, from the ``bits`` of all lanes that
        `mask_as_integer` returns."""
        shifted = self.op("lshr", bits, self.op("mul", i, constant(self.width, LONG)))
        text = f"trunc i64 {shifted.name} to i{self.width}"
        part = self.emit_value(LONG, False, f"trunc {self.width}", [shifted], text)
        text = f"bitcast i{self.width} {part.name} to {self.llvm_type(BOOL, True)}"
        return self.emit_value(BOOL, True, f"mask of {self.width}", [part], text)

    def phi(self, dtype: DType, is_vector: bool, sources: Sequence[tuple[LaneValue, str]]) -> LaneValue:
        """Emits a phi node; ``sources``: pairs of a value and the label of the block from which it comes."""
        found = LaneValue("%" + self.fresh_name(), np.dtype(dtype), is_vector)
        self.phi_nodes[found.name] = node = PhiNode(f"{found.name} = phi {self.type_of(found)}", [])
        if self.sections is not None:
            self.sections.note(found, ())
        self.note_uses(x for x, _ in sources)
        for x, label in sources:
            node.add(x, label)
        self.lines.append(node)
        return found

    def close_loop(self, phis: Sequence[LaneValue], carry: Sequence[LaneValue]) -> None:
        """Adds the last source to each of the ``phis`` at the head of a loop: its value in ``carry``,
        which comes from the current block."""
        self.note_uses(carry)
        for phi, x in zip(phis, carry, strict=True):
            self.phi_nodes[phi.name].add(x, self.block)


class RegisterView:
    """One register's view of vectors of several registers, for the blocks of a `Writer.register_scope`.

    A vector that the blocks use is stored in memory before them, and the register's part of it
    is loaded at their beginning.
    """

    def __init__(self, w: Writer, width: int) -> None:
        self.w, self.available, self.full_width, self.width = w, w.available, w.width, width
        self.stores, self.loads, self.used = list[str](), list[str](), set[str]()  # see `reserve`, `Writer.note_uses`
        self.parts: dict[LaneValue, LaneValue] = {}  # vector -> the register's part of it
        self.vectors: dict[str, LaneValue] = {}  # name of a part -> vector

    def part_of(self, x: LaneValue) -> LaneValue:
        """Returns the register's part of a vector; returns a scalar unchanged."""
        if not x.is_vector:
            return x
        if x not in self.parts:
            self.parts[x] = found = (
                LaneValue("%part" + self.w.fresh_name(""), x.dtype, True) if x.name.startswith("%") else x
            )
            self.vectors[found.name] = x
        return self.parts[x]

    def lookup(self, key: tuple) -> Any:
        """Returns the register's part of the result of an earlier instruction on whole vectors;
        None if there is no such instruction.

        ``key``: that of the same instruction on the register's parts of the vectors.
        """
        what, operands, *rest = key
        if not isinstance(what, str):  # arrays in memory
            return None
        # the instruction with whole vectors in place of their parts
        outer = what, tuple(self.vectors[name].name if name in self.vectors else name for name in operands), *rest
        for scope in reversed(self.available):
            if outer in scope:
                found = scope[outer]
                return self.part_of(found) if isinstance(found, LaneValue) else tuple(map(self.part_of, found))
        return None

    def reserve(self, stores: list) -> None:
        """Reserves lines for the loads of parts, at the beginning of the blocks; ``stores``: lines for the stores,
        reserved before the blocks."""
        self.stores, self.loads = stores, self.w.reserve_lines()

    def emit_parts(self, i: LaneValue) -> None:
        """Writes the stores of the vectors whose parts the blocks use, and the loads of register i's parts,
        into the reserved lines."""
        w = self.w
        pairs = [(x, part) for x, part in self.parts.items() if part.name in self.used]
        before = w.lines, w.width, w.register_view
        w.register_view = None
        w.available.append({})  # these results are available nowhere else
        for x, part in pairs:
            w.lines, w.width = self.stores, self.full_width
            place = w.reserve(1, x.dtype, True)
            w.store(place, x)
            w.lines, w.width = self.loads, self.width
            found = w.load(w.address(place, x.dtype, is_vector=True, place=i), x.dtype, True)
            w.emit(f"{part.name} = bitcast {w.typed_name(found)} to {w.type_of(part)}")
        w.available.pop()
        w.lines, w.width, w.register_view = before
