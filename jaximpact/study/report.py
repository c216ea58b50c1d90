"""What a study tells of its lanes: those that failed, and all of them in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..mechanics.status import FAILURES, Status
from ..results.provenance import label

REFUSED_WORD = "START_NOT_ADMISSIBLE"


@dataclass(frozen=True)
class FailedLane:
    """A lane that failed.

    Attributes:
        index: its place along each dimension of the design.
        values: its value of each quantity of the design.
        status: the names of its status bits; START_NOT_ADMISSIBLE where it could not start.
        failed_at: time of the first failure, NaN for a lane that could not start [s].
        reason: for a lane that could not start, why.
        rerun: Python that computes this lane alone, with all its steps; it imports the problem.
    """

    index: tuple[int, ...]
    values: dict[str, Any]
    status: str
    failed_at: float
    reason: str
    rerun: str


@dataclass(frozen=True)
class Summary:
    """What a study has computed so far.

    Attributes:
        lanes, computed: lanes of the design, and those done.
        failed: number of failed lanes; ``causes``: how many for each cause (a lane may have several).
        remarks: lanes for each remark that is no failure.
        steps: trajectory-steps computed.
        seconds: sum over the chunks of the time they took [s].
        chunks, finished: numbers of chunks.
        origins: with which versions, device and processor how many chunks were computed; chunks of different ones go
            on from each other to rounding, not to the last bit.
    """

    lanes: int
    computed: int
    failed: int
    causes: dict[str, int]
    remarks: dict[str, int]
    steps: int
    seconds: float
    chunks: int
    finished: int
    origins: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.computed} of {self.lanes} lanes computed ({self.finished} of {self.chunks} chunks)"]
        causes = ", ".join(f"{count} {name}" for name, count in self.causes.items())
        lines.append(f"{self.failed} failed" + (f": {causes}" if causes else ""))
        if self.remarks:
            lines.append("remarks: " + ", ".join(f"{count} {name}" for name, count in self.remarks.items()))
        rate = f", {self.steps / self.seconds:.3g} steps/s" if self.seconds else ""
        lines.append(f"{self.steps:.6g} steps in {self.seconds:.3g} s of computing{rate}")
        if len(self.origins) > 1:
            lines.append("computed in different ways, which agree to rounding and not to the last bit:")
            lines += [f"  {count} chunks with {origin}" for origin, count in self.origins.items()]
        return "\n".join(lines)

    @classmethod
    def of(cls, facts: Sequence[Mapping[str, Any]], lanes: int, chunks: int) -> Summary:
        """From what was written down of the finished chunks."""
        bits: Counter[str] = Counter()
        for fact in facts:
            bits.update(fact["bits"])
            bits.update({REFUSED_WORD: fact["refused"]} if fact["refused"] else {})
        failures = {REFUSED_WORD} | {str(bit.name) for bit in Status if bit & FAILURES}
        total = {name: sum(fact[name] for fact in facts) for name in ("lanes", "failed", "steps", "seconds")}
        return cls(
            lanes=lanes,
            computed=total["lanes"],
            failed=total["failed"],
            causes={name: n for name, n in bits.items() if name in failures},
            remarks={name: n for name, n in bits.items() if name not in failures},
            steps=total["steps"],
            seconds=total["seconds"],
            chunks=chunks,
            finished=len(facts),
            origins=dict(
                Counter(label({"device": fact.get("device", "?"), **fact.get("versions", {})}) for fact in facts)
            ),
        )
