"""Lines of LLVM IR that are completed after they are written: phi nodes, and places for lines that are reserved before a loop."""

from __future__ import annotations

from dataclasses import dataclass

from .ir_values import LaneValue


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

    ``head``: the text before them; ``sources``: pairs of a value and the label of the block from which it comes, as text.
    """

    head: str
    sources: list[str]

    def add(self, x: LaneValue, label: str) -> None:
        self.sources.append(f"[ {x.name}, %{label} ]")

    def __str__(self) -> str:
        return f"  {self.head} {', '.join(self.sources)}"


def join_lines(lines: list) -> str:
    """Returns the text of ``lines``: instructions, phi nodes, and lists of lines whose places were reserved (`Writer.reserve_lines`)."""
    return "\n".join(filter(None, (join_lines(x) if isinstance(x, list) else str(x) for x in lines)))
