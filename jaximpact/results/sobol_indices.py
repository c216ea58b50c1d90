"""Global sensitivity indices as a result: values, confidence intervals, tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .ranking import quotient
from .result import Arrays, Drawable

LEVEL = 0.95  # of confidence intervals
LINES = 12  # that are printed
EFFECTS = ("mu", "mu_star", "sigma")  # kinds with the unit of the output


@dataclass(frozen=True, repr=False)
class Indices(Drawable):
    """Global sensitivity indices of n outputs with respect to N inputs, the result of `jaximpact.indices`.

    Attributes:
        method: "Sobol' indices", "elementary effects" or "derivative-based indices".
        outputs, inputs: names; components have the problem's names of coordinates, if it has any.
        index: arrays (n, N) by kind of index; NaN for an output that does not vary.
            Kinds and their ``meaning`` are those of the method.
        confidence: half widths of the confidence intervals, (n, N) by kind.
        meaning: what each kind measures, in words.
        shown: the kinds that are drawn.
        second: Sobol' indices of pairs of inputs (n, N, N), above the diagonal, or None.
        variance: variance of each output over the lanes used (n,).
        blocks, used: number of blocks of lanes that are evaluated together, and of blocks without a failed lane,
            the only ones used.
        causes: number of lanes left out, by status bit.
        remarks: reservations about these numbers, in words.
        level: level of the confidence intervals.
        output_units, input_units: units (n,) and (N,), "" where not known. Elementary effects have the unit of the
            output, nu that of (output/input) squared, the other kinds have none.
    """

    method: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    index: dict[str, np.ndarray]
    confidence: dict[str, np.ndarray]
    meaning: dict[str, str]
    shown: tuple[str, ...]
    second: np.ndarray | None
    variance: np.ndarray
    blocks: int
    used: int
    causes: dict[str, int]
    remarks: tuple[str, ...]
    level: float = LEVEL
    output_units: tuple[str, ...] = ()
    input_units: tuple[str, ...] = ()

    def unit(self, kind: str, output: int, input: int = 0) -> str:
        """Unit of an index of one output and input, given by position: "1" for a share, "" if unknown."""
        if kind not in (*EFFECTS, "nu"):
            return "1"
        over = self.output_units[output] if self.output_units else ""
        if kind in EFFECTS:
            return over
        ratio = quotient(over, self.input_units[input] if self.input_units else "")
        if ratio in ("", "1"):
            return ratio
        return f"({ratio})^2" if any(sign in ratio for sign in "/ *^") else f"{ratio}^2"

    def _facts(self) -> list[tuple[str, str]]:
        if self._is_traced():
            return super()._facts()
        lines = []
        for k, name in enumerate(self.outputs):
            kind = self.shown[-1]
            for j in np.argsort(-np.nan_to_num(self.index[kind][k]), kind="stable"):
                numbers = [f"{x} {self.index[x][k, j]:.3g} ± {self.confidence[x][k, j]:.2g}" for x in self.shown]
                unit = self.unit(kind, k, j).removeprefix("1")
                lines.append((name, f"{self.inputs[j]:<12} {', '.join(numbers)} {unit}".rstrip()))
        if len(lines) > LINES:
            lines = [*lines[:LINES], ("...", f"{len(lines) - LINES} more")]
        about = [("method", self.method), ("used", f"{self.used} of {self.blocks} blocks of lanes")]
        about += (
            [("left out", ", ".join(f"{count} {name}" for name, count in self.causes.items()))] if self.causes else []
        )
        return [*lines, *about, *(("remark", text) for text in self.remarks[:2])]

    def _arrays(self) -> Arrays:
        names = {"output": (("output",), self.outputs), "input": (("input",), self.inputs)}
        fields = self._along("output input", "index", "confidence") | self._along("output input with", "second")
        return names | fields | self._along("output", "variance")

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each pair of output and input: every kind of index and its confidence."""
        n, count = len(self.outputs), len(self.inputs)
        table = {"output": np.repeat(self.outputs, count), "input": np.tile(self.inputs, n)}
        for kind, values in self.index.items():
            table |= {kind: values.ravel(), f"{kind} ±": self.confidence[kind].ravel()}
            units = np.array([self.unit(kind, *place) for place in np.ndindex(values.shape)])
            if np.any(units != "1"):
                table["unit"] = units
        return table
