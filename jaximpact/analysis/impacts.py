"""Impacts of computed motions: times, velocities and impulses; accumulation points and lasting contact.

Short runs of steps with an impulse (`runs`) are impacts; long runs are lasting contact from their first step on. The
time of an impact is found by extrapolating the motion before it, with its acceleration, to gap zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import real
from ..mechanics.impact_law import require_newton
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme, Timing
from ..results import Arrays, Drawable, Result, Solution, with_names
from ..results.impulse_intervals import runs
from ..simulation.arguments import choose_methods
from ..simulation.call import Arguments, Call
from ..simulation.canonical_arrays import cast_numbers, check_restitution, leaf_axes
from .checks import check_result, check_solution, one_lane, takes_study
from .gap_states import gaps_at
from .listed_pairs import SelectedPairs, every_step, is_listed
from .located_events import RestartableMotions

# steps: a lasting contact begins without impact if its closing speed is less than the acceleration makes in as many
SLOW = 2.0
ACCUMULATING = 2  # impacts in ever shorter flights, ended by lasting contact, that count as accumulating
SURPLUS = 0.25  # of the speed of an impact: rebounds that much faster than by e, and than forces make, are of another e
# of the speed of an impact: a contact that leaves slower than that does not rebound, and its impacts do not accumulate
REBOUNDS = 0.01


@dataclass(frozen=True, repr=False)
class Intervals(Result):
    """n time intervals of lasting contact or of accumulating impacts, sorted by lane and contact.

    Attributes:
        lane, contact: which motion and which constraint (n,).
        start, end: times (n,) [s].
        impacts: number of impacts in the interval, both ends included (n,).
        pairs: with listed bodies, the two bodies in contact (n, 2), as in `Solution.pairs`.
    """

    lane: np.ndarray
    contact: np.ndarray
    start: np.ndarray
    end: np.ndarray
    impacts: np.ndarray
    pairs: np.ndarray | None = None

    def _arrays(self) -> Arrays:
        fields = self._along("interval", "lane", "contact", "start", "end", "impacts")
        return fields | self._along("interval end_of_pair", "pairs")

    def _columns(self) -> dict[str, np.ndarray]:
        return self._table("lane", "contact", "start", "end", "impacts")

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True, repr=False)
class Impacts(Drawable):
    """Result of `impacts`: n impacts of one or many motions, sorted by lane, contact and time.

    Attributes:
        lane, contact: which motion and which constraint (n,).
        t: times (n,) [s].
        before, after: gap velocities G v + df/dt just before (negative) and just after (n,) [unit of f / s]; ``after``
            is NaN where the motion ends within the impact.
        impulse: impulse of the impact, up to the end of the motion (n,).
        row: the solution's row at the end of the step in which the impulse begins (n,).
        lasting: lasting contact (`Intervals`), from the impact or the touch that begins it to where its force vanishes.
        accumulations: accumulating impacts (`Intervals`), from the first of ever shorter flights to lasting contact; of
            the infinitely many impacts only those that the steps resolve are listed.
        naming: names and units of the problem.
        pairs: with listed bodies, the two bodies in contact (n, 2), as in `Solution.pairs`; ``contact`` then numbers
            the pairs that ever have an impulse.
    """

    lane: np.ndarray
    contact: np.ndarray
    t: np.ndarray
    before: np.ndarray
    after: np.ndarray
    impulse: np.ndarray
    row: np.ndarray
    lasting: Intervals
    accumulations: Intervals
    naming: Labels = UNNAMED
    pairs: np.ndarray | None = None

    def _arrays(self) -> Arrays:
        fields = self._along("impact", "lane", "contact", "t", "before", "after", "impulse", "row")
        return fields | self._along("impact end_of_pair", "pairs")

    def _columns(self) -> dict[str, np.ndarray]:
        columns = self._table("lane", "contact", "t", "before", "after", "impulse", "row")
        names = self.naming.contacts
        return columns | ({"contact": np.array(names)[self.contact]} if names else {})

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def sticking(self) -> Intervals:
        """Deprecated name of ``lasting``."""
        return self._deprecated_name("sticking", "lasting")

    @property
    def chattering(self) -> Intervals:
        """Deprecated name of ``accumulations``."""
        return self._deprecated_name("chattering", "accumulations")

    def _deprecated_name(self, old: str, new: str) -> Intervals:
        warnings.warn(f"Impacts.{old} is called {new} now", DeprecationWarning, stacklevel=3)
        return getattr(self, new)

    def of(self, lane: int) -> Impacts:
        """The impacts of one motion."""
        arrays = lambda part: {k: x[part(self).lane == lane] for k, x in _arrays(part(self)).items()}
        return replace(_rebuilt(arrays), naming=self.naming)

    def moved(self, lanes: int) -> Impacts:
        """Copy with ``lanes`` added to every lane number."""
        return _rebuilt(lambda part: _arrays(part(self)) | {"lane": part(self).lane + lanes})

    @classmethod
    def joined(cls, parts: Sequence[Impacts]) -> Impacts:
        """Concatenates the impacts of several batches."""
        return _rebuilt(
            lambda part: {k: np.concatenate([getattr(part(x), k) for x in parts]) for k in _arrays(part(parts[0]))}
        )


@takes_study
@with_names
def impacts(
    problem: Problem,
    solution: Solution,
    *,
    args: object = None,
    args_axes: object = None,
    e: ArrayLike | None = None,
    scheme: Scheme | None = None,
    lanes: np.ndarray | None = None,
) -> Impacts:
    """Finds all impacts in a solution that holds every step.

    For `EventDriven`, impacts and the ends of lasting contact (of one contact at a time) are located to the accuracy of
    the motion, by running it again from the row before. For other schemes the time of an impact is extrapolated from
    the motion before it, with an error of second order in h. So all times and velocities are of second order with
    `EventCorrected`. With the other schemes only those of the first impact are, since each impact delays the computed
    motion by O(h). Impacts of one contact that follow each other within two steps count as one.

    Args:
        problem: the mechanical system.
        solution: one motion or a batch, from `solve` with save="all" or `ensemble` with save=1.
        args, args_axes: as they were given to `ensemble` (or `solve`).
        e: restitution, as it was given to `ensemble` (or `solve`), which decides whether impacts of a contact can
            accumulate (e > 0). Without it a contact counts as one with e > 0 if a rebound is visible in the rows, and
            ``after`` is of second order in h where the problem states none.
        scheme: needed for a solution put together by hand, which does not record it (`Solution.timing`): schemes differ
            in the number of steps of an impact and in the time to which a velocity belongs. For solutions of
            `EventDriven` the scheme that locates impacts again, by default with tolerances 1e-12.
        lanes: mask (B,) of the lanes to analyse, by default all; lanes left out may hold NaN.

    Returns:
        An `Impacts`.

    Raises:
        ValueError, TypeError: the solution does not hold every step, was made by another scheme, or one of the lanes to
            look at is not finite; e is not in [0, 1], or a contact rebounds faster than it says.
    """
    check_result("solution", solution, Solution, "solve or ensemble")
    timing = timing_of(solution, scheme, problem)
    if e is not None:
        check_restitution(real("e", e))
    t, q, v, impulse = (np.asarray(x) for x in (solution.t, solution.q, solution.v, solution.impulse))
    if solution.values is not None or t.shape[-1] < 3:
        raise ValueError(
            "impacts need every step of a motion: solve with save='all' (ensemble: save=1), without a function"
        )
    single = q.ndim == 2
    if single:
        t, q, v, impulse = (x[None] for x in (t, q, v, impulse))
    if q.ndim != 3:
        raise ValueError(f"solution must be one motion or a batch, q of shape (k, d) or (B, k, d), got {q.shape}")
    ends = None
    if is_listed(problem):
        every_step(solution)
        chosen = SelectedPairs.of(problem, solution, every=False)
        problem, solution, ends = chosen.problem, chosen.solution(solution), chosen.ends
        impulse = chosen.impulse[None] if single else chosen.impulse
    axes = leaf_axes(args, args_axes)
    sizes = {len(x) for x, axis in zip(jax.tree.leaves(args), axes, strict=True) if axis == 0}
    if sizes - {len(t)}:
        raise ValueError(
            f"args: leaves with a lane axis must have the {len(t)} lanes of the solution, got {sorted(sizes)}"
        )
    check_solution(problem, solution, one_lane(args, args_axes))
    width = timing.steps
    found = runs(np.where(_looked_at(lanes, impulse)[:, None, None], impulse, 0.0), timing)
    lane, contact, start, end, lasting = found.lane, found.contact, found.first, found.last + 1, found.lasting

    args = cast_numbers("args", args, q.dtype)
    call = Call(problem, None, None, args=args, args_axes=args_axes, scheme=scheme)
    states = partial(_gap_states, call, (t, q, v), timing.velocity_lag)
    gap, gap_velocity, gap_acceleration = states(lane, start, contact)
    bent = np.abs(gap_acceleration)
    h = t[lane, start + 1] - t[lane, start]
    delay = _fall(gap, gap_velocity, gap_acceleration, 2 * h)
    before = gap_velocity + gap_acceleration * delay
    impact = ~lasting | (before < -SLOW * h * np.abs(gap_acceleration))
    time = t[lane, start] + delay

    last = np.where(lasting, start + width, end)
    _, gap_velocity, gap_acceleration = states(lane, last, contact)
    # the motion after an impact is continued back to it; the one in lasting contact has no free acceleration
    after = np.where(lasting, gap_velocity, gap_velocity - gap_acceleration * (t[lane, last] - time))
    cut = (end - start < width) & (end == t.shape[1] - 1)
    after = np.where(cut & timing.rebounds, np.nan, after)
    forced = 2 * SLOW * h * np.maximum(bent, np.abs(gap_acceleration))
    if e is not None:
        require_newton(problem.impact_law, "impacts(..., e=)")
        others = np.arange(impulse.shape[2]) != contact[:, None]
        together = np.any((found.active[lane, start] | found.active[lane, end - 1]) & others, axis=1)
        most = (_by_contact(e, single, impulse.shape)[lane, contact] + SURPLUS) * np.abs(before)
        _refuse_other_restitution(lane, contact, time, ~lasting & ~together & (after - forced > most))
    strength = impulse[lane, last, contact] - impulse[lane, start, contact]
    exactly = timing.locates and timing.by_tolerance
    if exactly and len(lane):
        of_lanes = None if e is None else _by_contact(e, single, impulse.shape)[lane]
        motions = RestartableMotions(call, (t, q, v))
        once, *exact = motions.impacts(lane, start, contact, of_lanes)
        time, before = np.where(once, exact[:2], (time, before))
        located = once & ~lasting & ~cut
        if e is None and not callable(problem.restitution):
            # the motion may have had another restitution than its problem states
            own = np.broadcast_to(real("restitution", problem.restitution), impulse.shape[2:])[contact]
            located &= (own > 0) & (np.abs(exact[2] - after) <= forced)
        after = np.where(located, exact[2], after)

    release = _release_times(t, impulse, lane[lasting], contact[lasting], end[lasting])
    if exactly and np.any(lasting):
        of_lanes = of_lanes if of_lanes is None else of_lanes[lasting]
        alone = ~np.any(
            found.active[lane[lasting], end[lasting] - 1] & (np.arange(impulse.shape[2]) != contact[lasting][:, None]),
            axis=1,
        )
        known = alone & (end[lasting] < t.shape[1] - 1)
        release = motions.releases(lane[lasting], end[lasting] - 1, contact[lasting], of_lanes, known, release)
    held = Intervals(
        lane=lane[lasting],
        contact=contact[lasting],
        start=np.maximum(time, t[:, 0][lane])[lasting],
        end=release,
        impacts=impact[lasting].astype(int),
    )
    lane, contact, time = lane[impact], contact[impact], time[impact]
    longest = float(np.max(np.diff(t, axis=1), initial=0.0))
    if e is None:
        rebounds = ~(after[impact] <= REBOUNDS * np.abs(before[impact]))
    else:
        rebounds = _by_contact(e, single, impulse.shape)[lane, contact] > 0
    limits = _accumulations(lane, contact, time, rebounds, e is not None, held, longest)
    made = Impacts(
        lane, contact, time, before[impact], after[impact], strength[impact], start[impact] + 1, held, limits
    )
    return made if ends is None else _rebuilt(lambda part: _arrays(part(made)) | {"pairs": ends[part(made).contact]})


def _refuse_other_restitution(lane: np.ndarray, contact: np.ndarray, t: np.ndarray, wrong: np.ndarray) -> None:
    """Raises if some impacts are ``wrong`` (n,): contacts that were struck alone,
    and rebounded faster than the user's e says."""
    if np.any(wrong):
        i = int(np.argmax(wrong))
        raise ValueError(
            f"e is not that of this solution: contact {contact[i]} of motion {lane[i]} rebounds faster than that at t "
            f"= {t[i]:.6g}; give e as it was given to "
            "solve or ensemble, or leave it out"
        )


def _by_contact(e: ArrayLike, single: bool, shape: tuple[int, ...]) -> np.ndarray:
    """Restitution by lane and contact (B, m), for impulses (B, k, m)."""
    e, (count, _, m) = real("e", e), shape
    try:
        return np.broadcast_to(e if single or e.ndim != 1 or len(e) == m != count else e[:, None], (count, m))
    except ValueError as error:
        raise ValueError(
            f"e must be a number, or have shape {(m,) if single else f'({count},) or ({count}, {m})'}, got {e.shape}"
        ) from error


def _looked_at(lanes: np.ndarray | None, impulse: np.ndarray) -> np.ndarray:
    """The user's mask ``lanes`` (B,) of the lanes to analyse, by default all;
    raises unless their impulses (B, k, m) are finite."""
    count = len(impulse)
    looked_at = np.ones(count, bool) if lanes is None else np.asarray(lanes)
    if looked_at.shape != (count,) or not np.all(np.isin(looked_at, (0, 1))):
        raise ValueError(
            f"lanes must be a mask of shape ({count},), true where a lane is looked at (~solution.failed, say), got "
            f"{lanes!r}"
        )
    looked_at = looked_at.astype(bool)
    if not np.all(np.isfinite(impulse[looked_at])):
        bad = int(np.flatnonzero(looked_at & ~np.all(np.isfinite(impulse), axis=(1, 2)))[0])
        raise ValueError(f"motion {bad} of the solution is not finite: leave it out with lanes=~solution.failed")
    return looked_at


def timing_of(solution: Solution, scheme: Scheme | None, problem: Problem) -> Timing:
    """Timing of the scheme that made a solution, from the solution or from ``scheme``; raises if the two disagree."""
    if scheme is None:
        if solution.timing is None:
            raise ValueError(
                "scheme: this solution does not know its scheme (timing is None); give the one that made it"
            )
        return solution.timing
    given = Timing.of(choose_methods(scheme, None, problem)[0])
    if solution.timing is not None and given[1:] != solution.timing[1:]:
        raise ValueError(f"scheme={given.scheme}, but the solution is of {solution.timing.scheme}: leave scheme out")
    return given


def _fall(gap: np.ndarray, gap_velocity: np.ndarray, gap_acceleration: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Time (n,) after which a gap with this velocity and acceleration reaches zero or, if it does not, its minimum;
    clipped to [-most, most]."""
    root = np.sqrt(np.maximum(gap_velocity**2 - 2 * gap_acceleration * gap, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        lowest = np.where(gap_acceleration < 0, (gap_velocity + root) / -gap_acceleration, 0.0)
        s = np.where(gap_velocity < 0, 2 * gap / (root - gap_velocity), lowest)
    return np.clip(s, -most, most)


def _accumulations(
    lane: np.ndarray,
    contact: np.ndarray,
    t: np.ndarray,
    rebounds: np.ndarray,
    sure: bool,
    lasting: Intervals,
    h: float,
) -> Intervals:
    """Finds accumulations: groups of impacts with ever shorter flights between them that end in lasting contact.

    How many impacts of a group are resolved depends on h. ``lane``, ``contact``, ``t``, ``rebounds`` (n,): of each
    impact the lane, contact and time, and whether the contact rebounds. ``sure``: whether this is known from e; then
    the impact that begins the lasting contact suffices, otherwise an earlier impact with a visible rebound is required.
    ``h``: the longest step.
    """
    n = len(lane)
    if n == 0 or len(lasting) == 0:
        return Intervals(**{name: x[:0] for name, x in _arrays(lasting).items()})
    # the last impact at or before each lasting contact
    order = np.lexsort((np.concatenate([np.zeros(n), np.ones(len(lasting))]),
                        np.concatenate([t, lasting.start]),
                        np.concatenate([contact, lasting.contact]),
                        np.concatenate([lane, lasting.lane])))  # fmt: skip
    place = np.empty(len(order), int)
    place[order] = np.arange(len(order))
    number = place[n:] - np.arange(len(lasting)) - 1
    index = np.maximum(number, 0)
    known = (number >= 0) & (lane[index] == lasting.lane) & (contact[index] == lasting.contact)

    same = (np.diff(lane, prepend=-1) == 0) & (np.diff(contact, prepend=-1) == 0)
    behind = index[known] + 1
    # from lasting contact another flight begins
    same[behind[behind < n]] = False
    same[1:] &= rebounds[:-1]
    flight = np.where(same, np.diff(t, prepend=t[0]), np.inf)
    # bounces of a few steps are known to a step or two
    shorter = same & (flight < np.where(np.roll(same, 1), np.roll(flight, 1), np.inf) + 2 * h)
    first = np.maximum.accumulate(np.where(shorter, 0, np.arange(n)))
    late = lasting.start - t[index]
    # a landing too slow for an impact ends a flight that its acceleration makes of the same speed
    touches = (late > 0) & rebounds[index]
    count = index - first[index] + 1
    soon = late <= np.where(same[index], flight[index], 2 * SLOW * h) + 2 * h
    enough = rebounds[index] if sure else count + touches >= ACCUMULATING
    which = known & soon & enough
    index, count = index[which], count[which]
    return Intervals(lane[index], contact[index], t[first[index]], lasting.start[which], count)


def _release_times(
    t: np.ndarray, impulse: np.ndarray, lane: np.ndarray, contact: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """Returns the times (n,) at which n lasting contacts open, because their force vanishes,
    within the step that ends at row ``end`` (n,).

    That step is the last one with an impulse. The force is extrapolated linearly from its means over the two steps
    before. A contact that lasts to the last row ends at the time of that row.
    """
    rows = impulse[lane[:, None], end[:, None] + np.arange(-3, 0), contact[:, None]]
    times = t[lane[:, None], end[:, None] + np.arange(-3, 1)]
    h = np.diff(times)
    force = np.diff(rows) / h[:, :2]
    fall = (force[:, 0] - force[:, 1]) / (0.5 * (h[:, 0] + h[:, 1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        zero = times[:, 2] - 0.5 * h[:, 1] + np.where(fall > 0, force[:, 1] / fall, np.inf)
    lasts = end == t.shape[1] - 1
    return np.where(lasts, times[:, 3], np.clip(zero, times[:, 2], times[:, 3]))


def _gap_states(
    call: Call, rows: tuple[np.ndarray, ...], lag: float, lane: np.ndarray, row: np.ndarray, contact: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the gap of a contact, its rate and its acceleration without contact forces, (n,) each,
    at given rows and lanes.

    ``rows``: t (B, k), q and v (B, k, d); ``lag``: by which part of a step the velocity of a row is older than the
    row's time; the returned rate is extrapolated to the row's time.
    """
    t = rows[0]
    # h is zero in the first row, whose velocity does not lag
    h = t[lane, row] - t[lane, np.maximum(row - 1, 0)]
    gap, gap_velocity, gap_acceleration = gaps_at(call, tuple(x[lane, row] for x in rows), lane, contact)
    return gap, gap_velocity + lag * h * gap_acceleration, gap_acceleration


def _arrays(record: Impacts | Intervals) -> dict[str, np.ndarray]:
    return {name: value for name, value in vars(record).items() if isinstance(value, np.ndarray)}


def _rebuilt(arrays: Callable[[Callable], dict[str, np.ndarray]]) -> Impacts:
    """Makes `Impacts` with new arrays.

    ``arrays(part)`` returns the arrays by name of one of the three records; ``part`` is a function that selects this
    record from an `Impacts`: itself, ``lasting`` or ``accumulations``.
    """
    lasting = Intervals(**arrays(lambda x: x.lasting))
    accumulations = Intervals(**arrays(lambda x: x.accumulations))
    records: Arguments = arrays(lambda x: x)
    return Impacts(**records, lasting=lasting, accumulations=accumulations)
