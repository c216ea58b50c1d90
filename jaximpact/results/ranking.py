"""Rankings: derivatives of each output by the inputs, in order of size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..mechanics.status import DOUBTS, FAILURES, Status
from .result import Arrays, Drawable

LINES = 14  # of a ranking that is printed


@dataclass(frozen=True, repr=False)
class Ranking(Drawable):
    """Derivatives of outputs by inputs, grouped by output, the largest first, as arrays (n,);
    the result of `Sensitivities.ranking`.

    Attributes:
        output, value: name and value of the output.
        input, at: name and value of the input.
        derivative, unit: dy/dp, and its unit, "" where one of the two is not known.
        relative: d ln|y| / d ln|p| = (p / y) dy/dp: percent of y for one percent of p; NaN where y or p is zero.
        by: quantity by which they are ranked, "relative" or "absolute".
        status: `Status` bits of the motion.
    """

    output: np.ndarray
    value: np.ndarray
    input: np.ndarray
    at: np.ndarray
    derivative: np.ndarray
    unit: np.ndarray
    relative: np.ndarray
    by: str
    status: int

    @classmethod
    def of(
        cls,
        outputs: tuple[tuple[str, ...], np.ndarray],
        inputs: tuple[tuple[str, ...], np.ndarray],
        jacobian: np.ndarray,
        by: str,
        units: Mapping[str, str],
        status: int,
    ) -> Ranking:
        """Ranks N inputs for each of n outputs, each given as names and values (n,), (N,), by the Jacobian (n, N);
        ``by`` as in `Sensitivities.ranking`."""
        if by not in ("relative", "absolute"):
            raise ValueError(f"by must be 'relative' or 'absolute', got {by!r}")
        (of, y), (by_inputs, x) = outputs, inputs
        known = (y[:, None] != 0) & (x != 0)
        relative = np.where(known, jacobian * x / np.where(known, y[:, None], 1.0), np.nan)
        size = np.abs(relative if by == "relative" else jacobian)
        # the larger first, then what has no relative sensitivity, the larger derivative first
        order = np.lexsort((-np.abs(jacobian), -np.nan_to_num(size, nan=-1.0, posinf=np.inf)), axis=1)
        i, j = np.repeat(np.arange(len(y)), len(x)), order.ravel()
        unit = np.array([quotient(units[of[a]], units[by_inputs[b]]) for a, b in zip(i, j, strict=True)])
        names = np.array(of)[i], np.array(by_inputs)[j]
        return cls(names[0], y[i], names[1], x[j], jacobian[i, j], unit, relative[i, j], by, status)

    def _facts(self) -> list[tuple[str, str]]:
        if self._is_traced():
            return super()._facts()
        lines = []
        for k in range(min(len(self.output), LINES)):
            new = k == 0 or self.output[k] != self.output[k - 1]
            relative = f"{self.relative[k]:+.3g} %/%" if np.isfinite(self.relative[k]) else "no %/%"
            text = f"{self.input[k]:<12} {self.derivative[k]:+.4g} {self.unit[k]}".rstrip()
            lines.append((str(self.output[k]) if new else "", f"{text:<40} {relative}"))
        if len(self.output) > LINES:
            lines.append(("...", f"{len(self.output) - LINES} more"))
        status = Status(self.status)
        word = "not to be trusted" if self.status & int(FAILURES | DOUBTS) else "trusted"
        return [*lines, ("status", f"{status}, {word}"), ("by", self.by)]

    def _arrays(self) -> Arrays:
        return self._along("place", "output", "value", "input", "at", "derivative", "unit", "relative")

    def _columns(self) -> dict[str, np.ndarray]:
        return self._table("output", "value", "input", "at", "derivative", "unit", "relative")


def quotient(over: str, under: str) -> str:
    """Unit of a quotient; "" if either unit is unknown."""
    if not over or not under:
        return ""
    if under == "1":
        return over
    if over == under:
        return "1"
    if over.startswith(f"{under}/"):
        return f"1{over.removeprefix(under)}"
    return f"{over}/({under})" if any(sign in under for sign in "/ *") else f"{over}/{under}"
