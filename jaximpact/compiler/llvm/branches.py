"""Long branches as functions of their own: LLVM's time grows faster than a function's length, and what lives across a branch is in its way there.

Values pass through scratch memory: those of outside are stored in front of the call, and loaded in each block that reads them, so that none of them
occupies a register in the whole branch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..limits import MIN_FUNCTION_LINES
from .ir_values import LaneValue
from .ir_writer import Writer, join_lines

LABEL = re.compile(r"^([\w.]+):$")
DEFINITION = re.compile(r"^\s*(%[\w.]+) = ")
TARGET = re.compile(r"label %[\w.]+")
SOURCE = re.compile(r", %[\w.]+ \]")  # the block of a phi node's source
VECTOR = re.compile(r"^<(\d+) x (\w+)>$")
NAME = re.compile(r"%[A-Za-z][\w.]*")
KNOWN = {"%work"}  # what every function has


class Slots:
    """Places in scratch memory for values by name."""

    def __init__(self, w: Writer, names: Sequence[str]) -> None:
        self.types = {name: w.types[name] for name in names}
        self.offsets, self.size = dict[str, int](), 0
        for name in sorted(names, key=lambda name: -bytes_of(self.types[name])):
            self.offsets[name], self.size = self.size, self.size + bytes_of(self.types[name])
        self.first = w.reserve_bytes(self.size)

    def address(self, name: str, pointer: str) -> str:
        return f"  {pointer} = getelementptr i8, ptr %work, i64 {self.first + self.offsets[name]}"

    def access(self, name: str) -> tuple[str, int]:
        """The type of a value, and to how many bytes its place is aligned."""
        return self.types[name], min(bytes_of(self.types[name]), 64)


def bytes_of(kind: str) -> int:
    """Bytes of a value of an LLVM type in scratch memory, a power of two and at least eight."""
    vector = VECTOR.match(kind)
    count, scalar = (int(vector.group(1)), vector.group(2)) if vector else (1, kind)
    bits = {"double": 64, "float": 32, "ptr": 64}.get(scalar) or int(scalar[1:])
    return max(8, 1 << (count * bits // 8 - 1).bit_length())


def apart(w: Writer, start: int, results: Sequence[LaneValue]) -> list[LaneValue]:
    """Makes a function of the lines from ``start`` on, a branch that is at its end, if they are many; returns its results as they are known then."""
    lines = join_lines(w.lines[start:]).split("\n")
    if len(lines) < MIN_FUNCTION_LINES:
        return list(results)
    label = LABEL.match(lines[0])
    assert label is not None
    defined = {m.group(1) for m in map(DEFINITION.match, lines) if m}
    outside = {x for line in lines for x in _uses(line)} - defined - KNOWN
    given = list(dict.fromkeys(x.name for x in results if x.name in defined))
    read = [x for x in sorted(outside) if x not in w.scratch]
    if any(x not in w.types for x in (*read, *given)):
        return list(results)
    slots, found = Slots(w, read), Slots(w, given)
    name = f"@branch.{w.fresh_name('f')}"
    w.declared[name] = _definition(w, name, lines, slots, found)
    del w.lines[start:]
    w.begin_block(label.group(1))
    for x in read:
        _store(w.lines, slots, x, w)
    w.emit(f"call void {name}(ptr %work)")
    fresh = {}
    for x in given:
        kind, alignment = found.access(x)
        pointer, fresh[x] = "%" + w.fresh_name("p"), "%" + w.fresh_name()
        w.lines.append(found.address(x, pointer))
        w.emit(f"{fresh[x]} = load {kind}, ptr {pointer}, align {alignment}")
        w.types[fresh[x]] = kind
    return [replace(x, name=fresh.get(x.name, x.name)) for x in results]


def _uses(line: str) -> list[str]:
    """Names of the values that a line reads."""
    body = TARGET.sub("", DEFINITION.sub("", line))
    return NAME.findall(SOURCE.sub(" ]", body) if body.startswith("phi ") else body)


def _store(lines: list, slots: Slots, x: str, w: Writer) -> None:
    kind, alignment = slots.access(x)
    pointer = "%" + w.fresh_name("p")
    lines.append(slots.address(x, pointer))
    lines.append(f"  store {kind} {x}, ptr {pointer}, align {alignment}")


def _definition(w: Writer, name: str, lines: Sequence[str], slots: Slots, found: Slots) -> str:
    """Text of the function with the lines of a branch, which reads and writes its values in memory."""
    first, body, here = list[str](), list[str](), dict[str, str]()

    def known(x: str, into: list[str], names: dict[str, str]) -> str:
        """The name by which a value of outside is known in a block."""
        if x not in names:
            names[x] = "%" + w.fresh_name()
            if x in w.scratch:
                into.append(f"  {names[x]} = getelementptr i8, ptr %work, i64 {w.scratch[x]}")
            else:
                kind, alignment = slots.access(x)
                pointer = "%" + w.fresh_name("p")
                into.append(slots.address(x, pointer))
                into.append(f"  {names[x]} = load {kind}, ptr {pointer}, align {alignment}")
        return names[x]

    of_phis: dict[str, str] = {}
    outside = {*slots.offsets, *w.scratch}
    for line in lines:
        if LABEL.match(line):
            here = {}
        elif any(x in outside for x in _uses(line)):
            is_phi = " = phi " in line
            # what phi nodes read is known from the beginning
            into, names = (first, of_phis) if is_phi else (body, here)
            head = DEFINITION.match(line)
            start = head.end() if head else 0
            replaced = lambda m, into=into, names=names: (
                known(m.group(0), into, names) if m.group(0) in outside else m.group(0)
            )
            line = line[:start] + NAME.sub(replaced, line[start:])
        body.append(line)
    end = list[str]()
    for x in found.offsets:
        _store(end, found, x, w)
    label = LABEL.match(lines[0])
    assert label is not None
    opening = f"define internal void {name}(ptr noalias %work) noinline nounwind alignstack(64) {{"
    return "\n".join([opening, "first:", *first, f"  br label %{label.group(1)}", *body, *end, "  ret void", "}"])
