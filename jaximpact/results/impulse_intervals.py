"""Time intervals with impulses: runs of steps in which one contact has an impulse,
classified as impacts or lasting contact.

The only place that decides in which steps a contact has an impulse; tables, balances, branches and pictures use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..mechanics.scheme import Timing
from .result import Arrays, Result

PART = 1e-9  # of the contact's largest impulse in a step
ROUNDING = 4  # units of rounding of the accumulated sum
LONGER = 2  # steps by which contact that lasts is longer than an impact, at least one more
REBOUND = 2  # steps of an impact where the scheme is not known: the most that one takes


@dataclass(frozen=True, repr=False)
class Runs(Result):
    """Result of `runs`: n runs of steps with an impulse, sorted by lane, contact and time;
    step k leads from row k to row k + 1.

    Attributes:
        lane, contact: which motion and which constraint (n,).
        first, last: first and last step (n,); of a periodic motion ``last`` may lie before ``first``.
        lasting: mask of the runs that are lasting contact (n,); the others are impacts.
        impact: mask of the runs that begin with an impact (n,): those that are an impact, and lasting contacts whose
            force is larger in the first steps than its steady value.
        active: mask of the steps with an impulse, by lane, step and contact (B, k - 1, m).
    """

    lane: np.ndarray
    contact: np.ndarray
    first: np.ndarray
    last: np.ndarray
    lasting: np.ndarray
    impact: np.ndarray
    active: np.ndarray

    def _arrays(self) -> Arrays:
        of_runs = self._along("run", "lane", "contact", "first", "last", "lasting", "impact")
        return of_runs | self._along("motion step constraint", "active")

    def _columns(self) -> dict[str, np.ndarray]:
        return self._table("lane", "contact", "first", "last", "lasting", "impact")

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def length(self) -> np.ndarray:
        """Number of steps of each run (n,)."""
        return (self.last - self.first) % max(self.active.shape[1], 1) + 1

    @property
    def inside(self) -> np.ndarray:
        """Mask (B, k) of rows in the middle of an impact, whose velocity is neither that before
        nor that after the impact."""
        lanes, steps, _ = self.active.shape
        found = np.zeros((lanes, steps + 1), bool)
        for lane, first, length in zip(*(x[~self.lasting] for x in (self.lane, self.first, self.length)), strict=True):
            found[lane, (first + np.arange(1, length)) % steps] = True
        return found

    @property
    def struck(self) -> np.ndarray:
        """Mask (B, k - 1) of steps within an impact, those at the beginning of lasting contact included."""
        found = np.zeros(self.active.shape[:2], bool)
        of_impacts = (self.lane, self.first, np.where(self.lasting, REBOUND, self.length))
        for lane, first, length in zip(*(x[self.impact] for x in of_impacts), strict=True):
            found[lane, (first + np.arange(length)) % self.active.shape[1]] = True
        return found


def runs(impulse: np.ndarray, timing: Timing | None = None, *, periodic: bool = False) -> Runs:
    """Finds the runs of steps with an impulse.

    A contact has an impulse in a step if the increment of the accumulated impulse exceeds the sum of two thresholds:
    1e-9 of the contact's largest increment, and four units of rounding of the sum accumulated so far. The first lies
    above the errors of solvers, whose residuals are 1e-12, and below the impulse of a steady force in a step, which is
    about h/T of an impact's impulse, with T the time between impacts. The second covers the error of a difference of
    two rounded sums: half a unit from each, and as much again if rows were converted or added up once more.
    It is the larger one in float32.

    A run is lasting contact if it has at least three steps more than an impact takes. So two impacts in successive
    steps are still impacts, counted as one.

    Args:
        impulse: accumulated impulses (B, k, m) at the rows of B motions [N s].
        timing: `Solution.timing`, which knows how many steps an impact takes with the scheme; with None two, the most,
            are assumed.
        periodic: whether the last step is followed by the first, so that runs may extend from the last to the first.

    Returns:
        `Runs`. A motion that is not finite has no runs from its first non-finite impulse on.

    Raises:
        ValueError: impulse has another shape.
    """
    impulse = np.asarray(impulse)
    if impulse.ndim != 3:
        raise ValueError(f"impulse must be accumulated impulses of shape (B, k, m), got {impulse.shape}: add the axes")
    with np.errstate(invalid="ignore"):
        growth = np.diff(impulse, axis=1)
    finite = np.isfinite(growth)
    largest = np.max(growth, axis=1, keepdims=True, initial=0.0, where=finite)
    rounding = ROUNDING * np.finfo(impulse.dtype).eps * np.abs(impulse[:, 1:])
    active = finite & (np.where(finite, growth, 0.0) > PART * largest + np.where(finite, rounding, 0.0))
    lane, contact, first, last = _edges(active, periodic)
    steps = REBOUND if timing is None else timing.steps
    found = Runs(lane, contact, first, last, *(np.zeros(len(lane), bool),) * 2, active)
    lasting = found.length > steps + LONGER

    # an impact faster than SLOW = 2 steps of the acceleration make brings that many steady pushes on top of its own
    count = max(growth.shape[1], 1)
    begin = sum((growth[lane, (first + i) % count, contact] for i in range(steps)), np.zeros(len(lane)))
    steady = growth[lane, (first + steps) % count, contact]
    impact = ~lasting | (begin > (steps + LONGER) * steady)
    return Runs(lane, contact, first, last, lasting, impact, active)


def _edges(active: np.ndarray, periodic: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns lane, contact, first and last step, (n,) each, of the n runs of True along the
    steps of a mask (B, k, m)."""
    marked = np.moveaxis(active, 1, -1)  # (B, m, k)
    if not marked.size:
        none = np.zeros(0, int)
        return none, none, none, none
    before, after = np.roll(marked, 1, axis=-1), np.roll(marked, -1, axis=-1)
    if not periodic:
        before[..., 0] = after[..., -1] = False
    else:
        # one that never ends begins at the first step
        always = np.all(marked, axis=-1)
        before[always, 0] = after[always, -1] = False
    lane, contact, first = np.nonzero(marked & ~before)
    other, place, last = np.nonzero(marked & ~after)
    if periodic and len(lane):
        # the end of a run across the seam comes first in its contact, its beginning last
        group = lane * marked.shape[1] + contact
        across = marked[other, place, 0] & marked[other, place, -1] & ~np.all(marked, axis=-1)[other, place]
        for which in np.unique(group[across]):
            members = np.flatnonzero(group == which)
            last[members] = np.roll(last[members], -1)
    return lane, contact, first, last
