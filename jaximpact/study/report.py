"""Reports on the lanes of a study: each failed lane, and a summary of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..mechanics.status import FAILURES, Status
from ..results.provenance import label
from ..results.safe_reading import JsonObject

REFUSED_WORD = "INPUT_INVALID"


@dataclass(frozen=True)
class FailedLane:
    """A lane that failed.

    Attributes:
        index: position along each dimension of the design.
        values: value of each quantity of the design.
        status: names of its status bits; INPUT_INVALID if it could not start.
        failed_at: time of the first failure, NaN for a lane that could not start [s].
        reason: why the lane could not start.
        rerun: Python expression that computes this lane again, with all steps saved; it imports the problem.
    """

    index: tuple[int, ...]
    values: JsonObject
    status: str
    failed_at: float
    reason: str
    rerun: str


@dataclass(frozen=True)
class Summary:
    """Progress and failures of a study so far, the result of `Study.run` and `Reading.summary`.

    Attributes:
        lanes, computed: number of lanes in the design, and of lanes computed so far.
        failed: number of failed lanes; ``causes``: how many for each cause (a lane may have several).
        remarks: number of lanes for each status bit that is no failure.
        steps: number of steps computed, summed over the lanes.
        seconds: sum over the chunks of the time they took [s].
        chunks, finished: number of chunks, and of finished chunks.
        origins: number of chunks by versions, device and processor that computed them; chunks of different origin agree
            up to rounding, not to the last bit.
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
    def of(cls, facts: Sequence[JsonObject], lanes: int, chunks: int) -> Summary:
        """Summary from the stored facts of the finished chunks."""
        bits: Counter[str] = Counter()
        for fact in facts:
            # names of before are those of the bits of today
            bits.update({str(Status.__members__.get(name, name)): n for name, n in fact["bits"].items()})
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
