"""Lines of LLVM IR that are completed after they are written: phi nodes,
and places for lines that are reserved before a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .ir_values import LaneValue

SCOPE_BEGINS, SCOPE_ENDS = "  ; {", "  ; }"  # comments around the lines of a `Writer.scope`, in programs with sections


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that is being written.

    Attributes:
        before: lines reserved before the loop, to which loop-invariant instructions are hoisted.
        available: mapping from instructions to their results, of those that are available before the loop.
    """

    before: list
    available: dict


@dataclass(frozen=True, slots=True)
class PhiNode:
    """A line of IR with a phi node, to which sources are added as they become known.

    ``head``: the text before them; ``sources``: pairs of the name of a value and the label of
    the block from which it comes.
    """

    head: str
    sources: list[tuple[str, str]]

    def add(self, x: LaneValue, label: str) -> None:
        self.sources.append((x.name, label))

    def __str__(self) -> str:
        return f"  {self.head} {', '.join(f'[ {name}, %{label} ]' for name, label in self.sources)}"


def flat_lines(lines: list) -> Iterator[str | PhiNode]:
    """Yields the lines, and those in lists whose places were reserved among them, in their order."""
    for x in lines:
        if isinstance(x, list):
            yield from flat_lines(x)
        else:
            yield x


def join_lines(lines: list) -> str:
    """Returns the text of ``lines``: instructions, phi nodes, and lists of lines whose places were reserved
    (`Writer.reserve_lines`)."""
    return "\n".join(filter(None, (join_lines(x) if isinstance(x, list) else str(x) for x in lines)))
