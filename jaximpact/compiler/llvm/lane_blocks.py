"""Loops over steps that contain the loop over vectors of lanes, a block of lanes at a time, so that what is the same in
all lanes is computed once a step.

The program of a lane is cut where a loop begins and ends that all lanes leave together: before it, its body, and after
it are *sections*, each of which is a loop over the vectors of the block. Scalars that only the step's number and shared
inputs decide are computed between the sections; and as the vectors of a section do not depend on one another, the
processor works on several of them at a time.

A vector that one section computes and another reads lies in memory meanwhile: in the *frame* of its vector of lanes, in
the slot of its name. So does what a loop carries; it is loaded where it is read, and stored where it changes, so that a
step without contact does not touch what only contact changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..limits import MIN_RECURRENCE, VECTORS_OF_A_BLOCK
from ..scalar import Value
from .ir_lines import SCOPE_BEGINS, SCOPE_ENDS, Loop, PhiNode, flat_lines
from .ir_values import LONG, LaneValue, constant, memory_dtype
from .ir_writer import Writer
from .lane_frames import VectorLoop

if TYPE_CHECKING:
    from .emitter import LLVMEmitter

LINE_BYTES = 64  # of a cache line
# Between two slots. With one line a store lies at the same place of a page as the next vector's load, which waits for
# it: at some addresses a step takes three times as long.
GAP_BYTES = 8 * LINE_BYTES
INSIDE = 1 << 30  # as `Writer.depth`: of what a section computes, which never leaves its loop
NAME = re.compile(r"%[A-Za-z_][\w.]*")
DEFINITION = re.compile(r"\s*(%[A-Za-z_][\w.]*) =")


class NoSections(Exception):
    """Raised where a program is not to be cut into sections: one would read an array in memory that another has
    written, or nothing is gained."""


class Slot(NamedTuple):
    """Place in the frame of a vector of lanes: an offset in bytes, and the type of the vector that lies there."""

    offset: int
    x: LaneValue


@dataclass(eq=False)
class Section:
    """A loop over the vectors of a block that is being written.

    Attributes:
        number: in the order of the text.
        label: of its first block.
        head, body: its lines; those of the head are written at the end.
        carried: for each vector that the loop around it carries, its slot, its name at the beginning of the section,
            and its value at the end.
        given: what it stores at its end: pairs of a slot and a value.
    """

    number: int
    label: str
    head: list = field(default_factory=list)
    body: list = field(default_factory=list)
    carried: list[tuple[Slot, str, LaneValue]] = field(default_factory=list)
    given: list[tuple[Slot, LaneValue]] = field(default_factory=list)


class LaneBlocks(VectorLoop):
    """The function around a program whose loops over steps contain loops over vectors of lanes; see the module."""

    def __init__(self, w: Writer, width: int) -> None:
        super().__init__(w, width)
        w.sections = self
        self.vectors: dict[str, LaneValue] = {}  # by name
        self.memory: set[str] = set()  # pointers to arrays of vectors in scratch memory
        self.slots: dict[str, Slot] = {}  # by the name of what lies there at the beginning of a section
        self.sections: list[Section] = []
        self.current: Section | None = None
        self.bytes = 0  # of a frame
        self.shared: list[list] = []  # lines that each loop computes once a step

    def note(self, x: LaneValue, operands: Sequence[LaneValue]) -> None:
        """Records a new value: its type, and whether it stays within the loop over vectors,
        as it differs between them."""
        w = self.w
        if x.is_vector:
            self.vectors[x.name] = x
        depth = w.depth.setdefault(x.name, len(w.loops))
        if self.current is not None and depth == len(w.loops) and (x.is_vector or w.deepest(operands) >= INSIDE):
            w.depth[x.name] = INSIDE

    def begin(self) -> None:
        w = self.w
        w.depth["%lane"] = INSIDE
        w.loops.append(Loop(w.reserve_lines(), w.available[-1]))
        w.available.append({})
        before = w.block
        w.jump("block")
        w.begin_block("block")
        self.number = w.phi(LONG, False, [(constant(0, LONG), before)])
        w.emit(f"%left = sub i64 %blocks, {self.number.name}")
        w.emit(f"%few = icmp slt i64 %left, {VECTORS_OF_A_BLOCK}")
        w.emit(f"%vectors = select i1 %few, i64 %left, i64 {VECTORS_OF_A_BLOCK}")
        self._begin_section()

    def end(self) -> None:
        w = self.w
        self._end_section()
        w.emit(f"%next = add i64 {self.number.name}, {VECTORS_OF_A_BLOCK}")
        w.emit("%more = icmp slt i64 %next, %blocks")
        w.close_loop([self.number], [LaneValue("%next", LONG, False)])
        w.emit("br i1 %more, label %block, label %done")
        w.begin_block("done")
        w.emit("ret void")
        self._finish()

    def _begin_section(self) -> None:
        w, n = self.w, len(self.sections)
        self.current = s = Section(n, f"section{n}")
        self.sections.append(s)
        w.loops.append(Loop(w.reserve_lines(), w.available[-1]))
        w.available.append({})
        before = w.block
        w.jump(s.label)
        self.outside, self.base = w.lines, len(w.available)
        w.lines.extend([f"{s.label}:", s.head, s.body])
        self.turn = PhiNode(f"%turn{n} = phi i64", [("0", before)])
        w.lines, w.block = s.body, s.label

    def _end_section(self) -> Section:
        w, s = self.w, self.current
        assert s is not None
        n = s.number
        self.turn.add(LaneValue(f"%turn{n}.next", LONG, False), w.block)
        s.head.append(self.turn)
        w.lines, self.current = self.outside, None
        w.available.pop()
        w.loops.pop()
        w.emit(f"%turn{n}.next = add i64 %turn{n}, 1")
        w.emit(f"%turn{n}.more = icmp slt i64 %turn{n}.next, %vectors")
        w.emit(f"br i1 %turn{n}.more, label %{s.label}, label %left{n}")
        w.begin_block(f"left{n}")
        return s

    def splits(self, w: Writer, start: Sequence[Value], varies: Sequence[bool]) -> bool:
        """Whether a loop that begins here is one over steps: all lanes leave it together,
        and what it carries are small arrays."""
        here = w is self.w and self.current is not None and len(w.available) == self.base
        return (
            here and any(varies) and not all(varies) and not any(getattr(x, "pointer", None) is not None for x in start)
        )

    def loop(
        self,
        e: LLVMEmitter,
        start: list[Value],
        varies: Sequence[bool],
        continues: Callable,
        body: Callable,
        prepare: Callable | None,
    ) -> list[Value]:
        """Emits a loop as `Emitter.loop` does, with sections before, within and after it; ``prepare(carry)`` emits what
        is the same in all lanes."""
        w = self.w
        scalars = e.flatten(start, varies)
        kept = [v for x, v in zip(start, varies, strict=True) for _ in x.flat]
        given = [x for x, v in zip(scalars, kept, strict=True) if v]
        slots = [self._reserve(x) for x in given]
        self._end_section().given = list(zip(slots, given, strict=True))
        before, head, inside, after = w.block, *(w.fresh_name(name) for name in ("head", "body", "after"))
        with w.loop_scope(w.active):
            w.jump(head)
            w.begin_block(head)
            phis = [w.phi(x.dtype, False, [(x, before)]) for x, v in zip(scalars, kept, strict=True) if not v]
            carried = [LaneValue("%" + w.fresh_name("carried"), x.dtype, True) for x in given]
            self.slots |= {x.name: slot for x, slot in zip(carried, slots, strict=True)}
            self.vectors |= {x.name: x for x in carried}
            w.depth |= dict.fromkeys((x.name for x in carried), INSIDE)
            numbers, vectors = iter(phis), iter(carried)
            carry = e.unflatten(start, [next(vectors if v else numbers) for v in kept])
            w.branch(e.as_value(continues(carry)), inside, after)
            w.begin_block(inside)
            first = len(w.lines)
            with w.scope(w.active):
                if prepare is not None:
                    prepare([None if v else x for x, v in zip(carry, varies, strict=True)])
                self.shared.append(w.lines[first:])
                self._begin_section()
                new = e.flatten(body(carry), varies)
                ends = [x for x, v in zip(new, kept, strict=True) if v]
                names = [x.name for x in carried]
                self._end_section().carried = list(zip(slots, names, ends, strict=True))
                w.close_loop(phis, [x for x, v in zip(new, kept, strict=True) if not v])
                w.jump(head)
        w.begin_block(after)
        self._begin_section()
        return carry

    # memory

    def _reserve(self, x: LaneValue) -> Slot:
        place, size = self.bytes, self.width * memory_dtype(x.dtype).itemsize
        self.bytes += -(-size * VECTORS_OF_A_BLOCK // LINE_BYTES) * LINE_BYTES + GAP_BYTES
        return Slot(place, x)

    def _finish(self) -> None:
        """Completes the sections: lets vectors pass from one to another in memory."""
        texts = [_SectionText(s) for s in self.sections]
        # a function such as the sine, or a loop, has branches
        dear = any(str(x).startswith("  br ") for lines in self.shared for x in flat_lines(lines))
        if not dear and max(text.recurrence() for text in texts) < MIN_RECURRENCE:
            raise NoSections
        home = {name: text for text in texts for name in text.defined}
        for text in texts:
            for name in text.names():
                if name in self.memory and home.setdefault(name, text) is not text:
                    raise NoSections
                known = name in self.vectors and name not in self.slots
                if known and home.get(name, text) is not text:
                    self.slots[name] = self._reserve(self.vectors[name])
                    home[name].keep(name, self.slots[name], self)
        place = self.w.reserve_bytes(self.bytes)
        for text in texts:
            text.finish(self, place)

    def store(self, frame: str, slot: Slot, name: str) -> list[str]:
        """Lines that store a vector in its slot of a frame."""
        *at, address, kind, align = self._address(frame, slot)
        return [*at, f"  store {kind} {name}, ptr {address}, align {align}"]

    def load(self, frame: str, slot: Slot, name: str, changes: bool) -> list[str]:
        """Lines that load the vector in a slot; ``changes``: whether some lanes store another number there, in a
        branch."""
        *at, address, kind, align = self._address(frame, slot)
        # LLVM would make a masked store of a selection between it and another vector, which takes longer
        volatile = "volatile " if changes else ""
        return [*at, f"  {name} = load {volatile}{kind}, ptr {address}, align {align}"]

    def _address(self, frame: str, slot: Slot) -> tuple[str, str, str, str, int]:
        """Two lines that compute the address of a vector's place, its name,
        and type and alignment of what lies there."""
        name = "%" + self.w.fresh_name("slot")
        kind, size = self.w.type_of(slot.x), self.width * memory_dtype(slot.x.dtype).itemsize
        first = f"  {name}.first = getelementptr i8, ptr %slots{frame}, i64 {slot.offset}"
        own = f"  {name} = getelementptr {kind}, ptr {name}.first, i64 %turn{frame}"
        return first, own, name, kind, 1 if kind.endswith("i1>") else min(size, LINE_BYTES)


class _SectionText:
    """The text of a section, with what there is in it: definitions, uses, scopes and blocks,
    each by the number of its line."""

    def __init__(self, section: Section) -> None:
        self.section = section
        self.frame = str(section.number)
        self.lines: list[str | PhiNode | None] = list(flat_lines(section.body))
        self.scope = [0]  # of each line
        self.parent, self.begin = [0], [0]  # of each scope: the one around it, its first line
        self.defined: dict[str, int] = {}
        self.end_of: dict[str, int] = {}  # the last line of each block
        self.after: dict[int, list[str]] = defaultdict(list)  # lines to be written before another
        self._read()

    def _read(self) -> None:
        scope, block = 0, self.section.label
        scopes = []
        for i, line in enumerate(self.lines):
            if line == SCOPE_BEGINS:
                self.parent.append(scope)
                self.begin.append(i + 1)
                scope = len(self.begin) - 1
            scopes.append(scope)
            if line == SCOPE_ENDS:
                scope = self.parent[scope]
            if isinstance(line, PhiNode):
                self.defined[line.head.split()[0]] = i
            elif line and not line.startswith(" "):
                block = line.rstrip(":")
            elif line and (found := DEFINITION.match(line)):
                self.defined[found[1]] = i
            if isinstance(line, str) and line.startswith("  br "):
                self.end_of[block] = i
        self.scope = scopes
        self.end_of.setdefault(block, len(self.lines))

    def recurrence(self) -> float:
        """How many instructions lead from what a step begins with to the same of the next step,
        where no branch is taken, at most."""
        starts = [name for _, name, _ in self.section.carried]
        length: dict[str, dict[str, int]] = {name: {name: 0} for name in starts}  # the longest ways from each start
        for i, line in enumerate(self.lines):
            if self.scope[i] or not line:
                continue
            if isinstance(line, PhiNode):
                name, read, step = line.head.split()[0], [line.sources[0][0]], 0
            elif DEFINITION.match(line):
                name, *read = NAME.findall(line)
                step = 1
            else:
                continue
            ways = [length[x] for x in read if x in length]
            if ways:
                length[name] = {s: step + max(way.get(s, -1) for way in ways) for s in set().union(*ways)}
        found = {(a, b): n for _, b, x in self.section.carried for a, n in length.get(x.name, {}).items()}
        return max(((n + found[b, a]) / 2 for (a, b), n in found.items() if (b, a) in found), default=0)

    def names(self) -> Iterator[str]:
        """Yields the names that are read."""
        for line in self.lines:
            if isinstance(line, PhiNode):
                yield from (name for name, _ in line.sources)
            elif line:
                yield from NAME.findall(line)
        for _, x in self.section.given:
            yield x.name
        for _, _, x in self.section.carried:
            yield x.name

    def keep(self, name: str, slot: Slot, blocks: LaneBlocks) -> None:
        """Stores what the section defines as ``name`` in a slot."""
        self.after[self._behind(self.defined[name])] += blocks.store(self.frame, slot, name)

    def _behind(self, i: int) -> int:
        """The first line after line i at which an instruction can stand."""
        i += 1
        while i < len(self.lines) and (
            isinstance(self.lines[i], PhiNode) or self.lines[i] in (SCOPE_BEGINS, SCOPE_ENDS)
        ):
            i += 1
        return i

    def finish(self, blocks: LaneBlocks, place: int) -> None:
        """Writes the section's loads and stores. Values that several sections know get names of the section's own."""
        s, n = self.section, self.section.number
        s.head += [
            f"  %number{n} = add i64 {blocks.number.name}, %turn{n}",
            f"  %lane.{n} = mul i64 %number{n}, {blocks.width}",
            f"  %slots{n} = getelementptr i8, ptr %work, i64 {place}",
        ]
        kept: dict[
            str, tuple[Slot, int]
        ] = {}  # what lies in memory: its slot, and the line from which on it lies there
        changes: dict[Slot, list[int]] = defaultdict(list)  # lines at which what lies in a slot changes
        stores: list[tuple[int, Slot, str]] = []
        end = len(self.lines)
        for slot, x in s.given:
            stores.append((end, slot, x.name))
        for slot, first, last in s.carried:
            kept[first] = slot, -1
            chain = self._chain(first, last.name)
            if chain is None:
                stores.append((end, slot, last.name))
                continue
            for i, name, value, label in chain:
                self.lines[i] = None
                kept[name] = slot, i
                changes[slot].append(self.end_of[label])
                stores.append((self.end_of[label], slot, value))
        renamed = {"%lane": f"%lane.{n}"}
        for name, places in self._uses(stores).items():
            if name in kept:
                slot, begin = kept[name]
            elif name in blocks.slots and name not in self.defined:
                slot, begin = blocks.slots[name], -1
            else:
                continue
            renamed[name] = own = f"{name}.{n}" if name not in self.defined else f"{name}.loaded"
            at = self._place(places, begin, changes[slot])
            self.after[at][:0] = blocks.load(self.frame, slot, own, bool(changes[slot]))
        for i, slot, name in stores:
            self.after[i] += blocks.store(self.frame, slot, renamed.get(name, name))

        def rename(name: str) -> str:
            return renamed.get(name, name)

        done: list[str | PhiNode] = []
        for i, line in enumerate([*self.lines, None]):
            done += self.after.get(i, [])
            if isinstance(line, PhiNode):
                done.append(PhiNode(line.head, [(rename(name), label) for name, label in line.sources]))
            elif line is not None and line not in (SCOPE_BEGINS, SCOPE_ENDS):
                done.append(NAME.sub(lambda found: rename(found[0]), line))
        s.body[:] = done

    def _chain(self, first: str, last: str) -> list[tuple[int, str, str, str]] | None:
        """How branches change what lies in memory as ``first`` into ``last``, if that is all that changes it: lines of
        phi nodes with the name of each, and the value that comes from the branch and the label of its last block."""
        found: list[tuple[int, str, str, str]] = []
        while last != first:
            i = self.defined.get(last, -1)
            node = self.lines[i] if i >= 0 else None
            if not isinstance(node, PhiNode) or len(node.sources) != 2:
                return None
            (same, _), (value, label) = node.sources
            if self.end_of[label] > i or self.scope[i] != 0:
                return None
            found.append((i, last, value, label))
            last = same
        return found[::-1]

    def _uses(self, stores: list[tuple[int, Slot, str]]) -> dict[str, list[int]]:
        """For each name the lines that read it; a phi node reads at the ends of the blocks
        from which its values come."""
        found: dict[str, list[int]] = defaultdict(list)
        for i, line in enumerate(self.lines):
            if isinstance(line, PhiNode):
                for name, label in line.sources:
                    found[name].append(self.end_of[label])
            elif line:
                for name in NAME.findall(line):
                    if self.defined.get(name) != i:
                        found[name].append(i)
        for i, _, name in stores:
            found[name].append(i)
        return found

    def _place(self, uses: list[int], begin: int, changes: list[int]) -> int:
        """The line at which to load what lies in memory from line ``begin`` on: at the beginning of the innermost scope
        around all ``uses``, or where it begins to lie there if it changes before."""
        scope = self._scope_at(uses[0])
        for i in uses[1:]:
            other = self._scope_at(i)
            while scope != other:
                scope, other = (self.parent[scope], other) if scope > other else (scope, self.parent[other])
        at, first = self._behind(self.begin[scope] - 1), self._behind(begin)
        return first if at < first or any(begin < i < at for i in changes) else at

    def _scope_at(self, i: int) -> int:
        return self.scope[i] if i < len(self.scope) else 0
