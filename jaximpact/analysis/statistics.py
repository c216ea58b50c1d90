"""Means and quantiles over the lanes of an ensemble, failed lanes left out and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_kind, real
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.status import FAILURES
from ..results import Arrays, Drawable, Solution, spread_columns
from .checks import check_result, takes_study

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, repr=False)
class Statistics(Drawable):
    """Result of `statistics`, for each saved row; with groups every array has a leading axis G
    (after the axis of quantiles).

    Attributes:
        t: times of the rows (k,) [s].
        groups: the values that lanes are grouped by (G,), increasing; None without.
        count: number of lanes used, () or (G,).
        failed: number of failed lanes, which are left out, () or (G,).
        levels: the quantiles asked for (Q,).
        mean, std: arrays (k, ...) by name ("q", "v", "impulse", "energy" and the user's ``values``); NaN where no lane
            counts. The standard deviation is that of the sample, NaN for one lane.
        quantile: arrays (Q, k, ...) by name.
        naming: names and units of the problem.
    """

    t: np.ndarray
    groups: np.ndarray | None
    count: np.ndarray
    failed: np.ndarray
    levels: np.ndarray
    mean: dict[str, np.ndarray]
    std: dict[str, np.ndarray]
    quantile: dict[str, np.ndarray]
    naming: Labels = UNNAMED

    def _arrays(self) -> Arrays:
        group = "" if self.groups is None else "group "
        fields: Arrays = {
            "time": (("time",), self.t),
            "level": (("level",), self.levels),
            "group": (("group",), self.groups),
        }
        fields |= self._along(group, "count", "failed") | self._along(f"{group}time", "mean", "std")
        return fields | self._along(f"level {group}time", "quantile")

    def _columns(self) -> dict[str, np.ndarray]:
        groups, k = self.groups, len(self.t)
        count = 1 if groups is None else len(groups)
        columns = {} if groups is None else {"group": np.repeat(groups, k)}
        columns["t"] = np.tile(self.t, count)
        for kind, values in (("mean", self.mean), ("std", self.std)):
            for name, x in values.items():
                columns |= spread_columns(
                    f"{kind} {name}", x.reshape(count * k, *x.shape[1 + (groups is not None) :]), self._names(name)
                )
        for name, x in self.quantile.items():
            for level, one in zip(self.levels, x, strict=True):
                columns |= spread_columns(
                    f"{100 * level:g} % {name}",
                    one.reshape(count * k, *one.shape[1 + (groups is not None) :]),
                    self._names(name),
                )
        return columns


@takes_study
def statistics(
    solution: Solution,
    *,
    groups: ArrayLike | None = None,
    quantiles: Sequence[float] = QUANTILES,
    values: Mapping[str, np.ndarray] | None = None,
) -> Statistics:
    """Means, standard deviations and quantiles over the lanes of an ensemble.

    Args:
        solution: what `ensemble` returned, its rows at the same times in all lanes.
        groups: one value for each lane (B,), for example a swept parameter:
            lanes with equal values form a group with statistics of its own.
        quantiles: levels in [0, 1].
        values: further arrays (B, k, ...) by name.

    Returns:
        `Statistics`.

    Raises:
        ValueError: the solution is no batch, its rows differ in time, or a shape or level is wrong.
    """
    check_result("solution", solution, Solution, "ensemble")
    if np.ndim(solution.q) != 3:
        raise ValueError(
            f"solution must be a batch with q of shape (B, k, d), got {np.shape(solution.q)}: use ensemble"
        )
    lanes, rows = np.shape(solution.t)
    t = np.asarray(solution.t)
    failed = (np.asarray(solution.status) & int(FAILURES)) != 0
    if np.any(t != t[0]):
        raise ValueError(
            "solution: its lanes have rows at different times; save the same times, and one t1, in all lanes"
        )
    levels = real("quantiles", quantiles)
    if levels.ndim != 1 or levels.size == 0 or not np.all((levels >= 0) & (levels <= 1)):
        raise ValueError(f"quantiles must be some numbers in [0, 1], got {quantiles!r}")
    arrays = _arrays(solution, values, lanes, rows)
    if groups is None:
        found, member = None, np.zeros(lanes, int)
    else:
        groups = np.asarray(groups)
        if groups.shape != (lanes,) or groups.dtype.kind == "O":
            raise ValueError(f"groups must have one value for each lane, shape ({lanes},), got {groups!r}")
        found, member = np.unique(groups, return_inverse=True)
    parts = [np.flatnonzero((member == i) & ~failed) for i in range(member.max() + 1)]

    def over(reduce: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
        # the axis of groups is the last but for those of a row
        stacked = {name: [reduce(x[part]) for part in parts] for name, x in arrays.items()}
        if found is None:
            return {name: x[0] for name, x in stacked.items()}
        return {name: np.stack(x, axis=np.ndim(x[0]) - (arrays[name].ndim - 1)) for name, x in stacked.items()}

    count = np.array([len(part) for part in parts])
    lost = np.bincount(member[failed], minlength=len(parts))
    count, lost = (x[0] if found is None else x for x in (count, lost))
    return Statistics(
        t[0], found, count, lost, levels, over(_mean), over(_std), over(lambda x: _quantile(x, levels)), solution.naming
    )


def _arrays(solution: Solution, values: Mapping[str, ArrayLike] | None, lanes: int, rows: int) -> dict[str, np.ndarray]:
    """Arrays (B, k, ...) to take statistics of, by name: those of the solution that have k = ``rows`` rows, and the
    user's ``values``, checked."""
    names = [name for name in ("q", "v", "impulse", "energy") if getattr(solution, name) is not None]
    arrays = {name: np.asarray(getattr(solution, name)) for name in names}
    # with a save function the state is kept in the final row only
    arrays = {name: x for name, x in arrays.items() if x.shape[1] == rows and x.size}
    check_kind("values", values, Mapping | None, "a dict of arrays (B, k, ...) by name")
    for name, x in (values or {}).items():
        x = real(f"values[{name!r}]", x)
        if np.shape(x)[:2] != (lanes, rows):
            raise ValueError(f"values[{name!r}] must have shape ({lanes}, {rows}, ...), got {np.shape(x)}")
        arrays[name] = x
    return arrays


def _mean(x: np.ndarray) -> np.ndarray:
    return x.mean(axis=0) if len(x) else np.full(x.shape[1:], np.nan)


def _std(x: np.ndarray) -> np.ndarray:
    return x.std(axis=0, ddof=1) if len(x) > 1 else np.full(x.shape[1:], np.nan)


def _quantile(x: np.ndarray, levels: np.ndarray) -> np.ndarray:
    return np.quantile(x, levels, axis=0) if len(x) else np.full((len(levels), *x.shape[1:]), np.nan)
