"""Stroboscopic and impact sections of many motions at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import jax
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.problem import Problem
from ..mechanics.quaternions import oriented
from ..mechanics.status import FAILURES
from ..results import Arrays, Drawable, Solution, spread_columns, with_names
from ..results.save import Save
from ..simulation.call import Call
from .checks import TimeLike, check_result, check_steps, distance, takes_study
from .default_scheme import ROWS, SECTION, choose_scheme
from .forced_motions import ForcedMotions, check_restarts, gather
from .impacts import Impacts, impacts
from .options import LaneOptions, with_options

PERIODIC = 1e-5  # of the largest state of a section: the distance at which states count as the same
FAR = 100  # tolerances from where it goes at which a motion of known period counts as settled
FAILED_LANE, NOT_SETTLED = -1, -2  # in place of a period
COHERENT = 0.1  # relative error up to which changes obey a recurrence
VISIBLE = 1e-6  # a multiplier nearer to one, and what dies out less within what is kept, counts as lasting


@dataclass(frozen=True, repr=False)
class Section(Drawable):
    """Result of `stroboscopic` and `poincare_section`: n states of B motions.

    They are taken once a forcing period, at ``t = (phase + k) period``,
    or at the passages of the motions through a surface.

    Attributes:
        t: times (B, n) [s].
        q, v: positions and velocities (B, n, d), quaternions p or -p as the motions have them.
        period: forcing period of each lane, or the user's estimate of the time between two passages (B,) [s].
        status: `Status` bits of each lane (B,).
        failed_at: time of the first failure of each lane, NaN where none (B,) [s].
        naming: names and units of the problem.
    """

    t: np.ndarray
    q: np.ndarray
    v: np.ndarray
    period: np.ndarray
    status: np.ndarray
    failed_at: np.ndarray
    naming: Labels = UNNAMED

    def _arrays(self) -> Arrays:
        return self._along("lane row", "t", "q", "v") | self._along("lane", "period", "status", "failed_at")

    def _columns(self) -> dict[str, np.ndarray]:
        lanes, n = self.t.shape
        flat = {
            name: getattr(self, name).reshape(lanes * n, *getattr(self, name).shape[2:]) for name in ("t", "q", "v")
        }
        columns = {key: x for name, x in flat.items() for key, x in spread_columns(name, x, self._names(name)).items()}
        return {"lane": np.repeat(np.arange(lanes), n), **columns}

    @property
    def failed(self) -> np.ndarray:
        """Whether each lane failed (B,)."""
        return (self.status & int(FAILURES)) != 0

    @property
    def states(self) -> np.ndarray:
        """Phase-space points (B, n, 2d): positions, and velocities times period/2 pi, all in the unit of q,
        so that distances make sense. For each quaternion p they have ten numbers of p p'/|p|^2, as p and -p are one."""
        q, v = oriented(self.naming.quaternions, self.q, self.v)
        return np.concatenate([q, v * (self.period / (2 * np.pi))[:, None, None]], axis=-1)

    @classmethod
    def joined(cls, parts: Sequence[Section]) -> Section:
        """Concatenates the lanes of several sections."""
        fields = [name for name in vars(parts[0]) if name not in ("naming", "made")]
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in fields}
        return cls(**joined, naming=parts[0].naming)


@dataclass(frozen=True, repr=False)
class ImpactSection(Drawable):
    """Result of `impact_section`: the impacts of B motions over a number of forcing periods, with their phases.

    Attributes:
        impacts: the n impacts, with the lane of each (`Impacts`).
        phase: phase of the forcing at each impact, in [0, 1) (n,).
        section: the states of the same motions once a forcing period (`Section`).
        contacts: number of constraints m.
    """

    impacts: Impacts
    phase: np.ndarray
    section: Section
    contacts: int = 1

    def _arrays(self) -> Arrays:
        return self.impacts._arrays() | self._along("impact", "phase")

    def _columns(self) -> dict[str, np.ndarray]:
        return {**self.impacts._columns(), "phase": self.phase}

    @property
    def per_period(self) -> np.ndarray:
        """Mean number of impacts per forcing period of each lane (B,): inf where they accumulate,
        NaN where the lane failed."""
        lanes, cycles = self.section.t.shape
        count = np.bincount(self.impacts.lane, minlength=lanes) / cycles
        count[self.impacts.accumulations.lane] = np.inf
        return np.where(self.section.failed, np.nan, count)

    @property
    def in_contact(self) -> np.ndarray:
        """Share of time in lasting contact, by lane and contact (B, m); NaN where the lane failed."""
        held = self.impacts.lasting
        lanes, cycles = self.section.t.shape
        total = np.zeros((lanes, self.contacts))
        np.add.at(total, (held.lane, held.contact), held.end - held.start)
        share = total / (cycles * self.section.period)[:, None]
        return np.where(self.section.failed[:, None], np.nan, share)


@takes_study
@with_names
@with_options(LaneOptions)
def stroboscopic(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    period: TimeLike,
    steps: int | None = None,
    cycles: int,
    skip: int = 0,
    phase: float = 0.0,
    progress: bool | None = None,
    **options: Unpack[LaneOptions],
) -> Section:
    """The stroboscopic map of a periodically forced system: states at the end of forcing periods.

    The motions start at t = phase * period and run ``skip + cycles`` periods in one go; lanes are run in groups whose
    rows fit memory, and the transient is dropped group by group.

    Args:
        problem, q0, v0, args, args_axes, e, projection: as in `ensemble`; without any lane axis there is one lane.
        period: forcing period > 0 [s]: a number, one for each lane (B,), or a function of the args of one lane.
        steps: number of steps in a period, for a scheme with fixed steps: h = period/steps.
        cycles: number of periods kept, at least one.
        skip: number of periods left out before these, the transient.
        phase: part of the period, in [0, 1), at which the motion starts and states are taken.
        scheme: by default `EventDriven(1e-10, 1e-10)`; or, if ``steps`` are given, `EventCorrected()`, of second order,
            which takes less time if a few digits are enough. A scheme of first order with a whole number of steps in a
            period ties impacts to the grid of steps: near resonance `MoreauJean` shows several periodic attractors
            although there is only one.
        progress: show a progress bar, as in `ensemble`.

    Returns:
        A `Section` with n = cycles. Failed lanes are flagged in its ``status``.

    Raises:
        ValueError, TypeError: as `ensemble`, or a period, count or phase is out of range; the message names it.
    """
    options, steps = choose_scheme(problem, options, steps, SECTION)
    check_counts(cycles=cycles, skip=skip)
    check_steps(steps, skip + cycles, "skip + cycles")
    motions = gather(Call(problem, q0, v0, **options), period, phase)
    row = 16 * motions.lanes.motion.q0.shape[1]
    found = []
    for part, live in motions.parts(row * (skip + cycles + 1)):
        solution = part.run(skip + cycles, steps, Save(every=steps, function=state), progress)
        q, v = (x[:live, -cycles:] for x in solution.values)
        found.append((q, v, solution.status[:live], solution.failed_at[:live]))
    q, v, status, failed_at = (np.concatenate(parts) for parts in zip(*found, strict=True))
    t = motions.strobes(np.arange(skip + 1, skip + cycles + 1))
    return Section(t, q, v, motions.period, status, failed_at, problem.naming)


@takes_study
@with_names
@with_options(LaneOptions)
def impact_section(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    period: TimeLike,
    steps: int | None = None,
    cycles: int,
    skip: int = 0,
    phase: float = 0.0,
    progress: bool | None = None,
    **options: Unpack[LaneOptions],
) -> ImpactSection:
    """All impacts of the last ``cycles`` forcing periods with their phases,
    and the stroboscopic section of these periods.

    The motions are restarted after ``skip`` periods, so that every step is saved only from then on.

    Args:
        scheme: as in `stroboscopic`, or `MoreauJean()`, with which a position inside a wall is moved onto the wall, by
            O(h), at the restart. With `EventDriven` impacts are as accurate as the motion, and ``steps``, by default
            100, is the number of rows in a period: impacts of a contact within two rows count as one.
        others: as in `stroboscopic`.

    Returns:
        An `ImpactSection`. Failed lanes are flagged in ``section.status`` and have no impacts.

    Raises:
        ValueError, TypeError: as `stroboscopic`; or the scheme carries an impact over into the next step.
    """
    options, steps = choose_scheme(problem, options, steps, SECTION, ROWS)
    check_counts(cycles=cycles, skip=skip)
    check_steps(steps, max(skip, cycles), "the larger of skip and cycles")
    motions = gather(Call(problem, q0, v0, **options), period, phase)
    check_restarts(motions.scheme)
    records, sections, first = [], [], 0
    for begun, window, sound, section in windows(motions, steps, cycles, skip, progress):
        found = impacts(
            problem, window, args=begun.args, args_axes=begun.args_axes, e=begun.restitution(), lanes=sound,
            scheme=begun.scheme,
        )  # fmt: skip
        records.append(found.moved(first))
        sections.append(section)
        first += len(section.t)
    every = Impacts.joined(records)
    section = Section.joined(sections)
    return ImpactSection(every, (every.t / section.period[every.lane]) % 1.0, section, motions.constraints())


def windows(
    motions: ForcedMotions, steps: int, cycles: int, skip: int, progress: bool | None
) -> Iterator[tuple[ForcedMotions, Solution, np.ndarray, Section]]:
    """Runs motions group by group over ``skip + cycles`` periods, and yields the last ``cycles`` periods of each group.

    For each group it yields: the motions restarted after ``skip`` periods; their solution with every step over
    ``cycles`` periods; a mask of the lanes that neither failed nor are padding;
    and the section of the lanes that are not padding.
    """
    d, m = motions.lanes.motion.q0.shape[1], motions.constraints()
    for part, live in motions.parts(8 * (1 + 3 * d + m) * (steps * cycles + 1)):
        status, failed_at, begun = np.zeros(len(part), int), np.full(len(part), np.nan), part
        if skip:
            before = part.run(skip, steps, "final", progress)
            status, failed_at = np.asarray(before.status), np.asarray(before.failed_at)
            begun = _after_transient(part, before, skip)
        window = begun.run(cycles, steps, 1, progress)
        lost = (status & int(FAILURES)) != 0
        status = np.where(lost, status, status | window.status)
        failed_at = np.where(lost, failed_at, window.failed_at)
        lost = (status & int(FAILURES)) != 0
        q, v = (np.where(lost[:, None, None], np.nan, x[:, steps::steps]) for x in (window.q, window.v))
        t = part.strobes(np.arange(skip + 1, skip + cycles + 1))
        own = slice(live)
        section = Section(t[own], q[own], v[own], part.period[own], status[own], failed_at[own], motions.problem.naming)
        yield begun, window, ~lost & (np.arange(len(part)) < live), section


def _after_transient(part: ForcedMotions, transient: Solution, skip: int) -> ForcedMotions:
    """The lanes restarted after their transient; a lane that failed in it is replaced by a copy of one that did not,
    whose results do not count."""
    lost = np.asarray(transient.failed)
    if lost.all():
        return part
    which = np.where(lost, np.argmin(lost), np.arange(len(part)))
    return replace(part.some(which), begins=part.begins + skip).after(jax.tree.map(lambda x: x[which], transient))


def period_of(section: Section, *, tolerance: float | None = None, most: int | None = None) -> np.ndarray:
    """Period of each motion, in forcing periods or passages through a surface (B,), from its section.

    The period is the smallest p with |x[k + p] - x[k]| <= tolerance for all states x kept (`Section.states`, largest
    component), unless the motion is still settling. How far the states are from their limit, and whether the limit has
    a shorter period, is estimated from the rate at which the changes over p periods, and over divisors of p, decay.

    Args:
        section: at least two states of each lane; a period p is seen from 2p states on.
        tolerance: largest difference of states that count as equal [unit of q]; by default 1e-5 of the largest state in
            the section, in float32 2e-3 of it, more after some 700 periods.
        most: largest p looked for; by default half of the states kept.

    Returns:
        p; 0 where none is found, because the motion has a longer period or is not periodic; -1 where the lane failed,
        or no longer passes the surface; -2 (`NOT_SETTLED`) where its states still approach a periodic motion, too
        slowly to tell which: skip more periods.
    """
    period = repeats_after(section, tolerance=tolerance, most=most)
    most = section.t.shape[1] // 2 if most is None else most
    tolerance = default_tolerance(section) if tolerance is None else tolerance
    states = section.states
    for p in map(int, np.unique(period[period >= 0])):
        lanes = np.flatnonzero(period == p)
        x = states[lanes]
        dies_out, left = transient(x, p) if p else (np.zeros(len(lanes), bool), np.inf)
        slow = (left > FAR * tolerance) if p else np.zeros(len(lanes), bool)
        # none found: they may settle to any; found: to a shorter one, unless that is farther away than what is left
        for r in range(1, most + 1) if p == 0 else [r for r in range(1, p) if p % r == 0]:
            apart = np.max(np.abs(x[:, -p:] - x[:, -p - r : -r]), axis=(1, 2)) if p else 0.0
            slow |= transient(x, r, few=p > 0)[0] & ~(dies_out & (4 * left < apart))
        period[lanes[slow]] = NOT_SETTLED
    return period


def repeats_after(section: Section, *, tolerance: float | None = None, most: int | None = None) -> np.ndarray:
    """Period of each motion as `period_of`, but without looking for transients: never `NOT_SETTLED`."""
    check_result("section", section, Section, "stroboscopic")
    lanes, n = section.t.shape
    most = n // 2 if most is None else most
    check_counts(most=most) if n >= 2 else None
    if n < 2 or most > n // 2:
        raise ValueError(f"most={most}: periods up to half of the {n} states kept can be found; keep more cycles")
    tolerance = default_tolerance(section) if tolerance is None else distance("tolerance", tolerance)
    period = np.zeros(lanes, int)
    for p in range(most, 0, -1):
        apart = repetition(section, p)
        period[apart <= tolerance] = p
    period[section.failed | ~np.all(np.isfinite(section.q), axis=(1, 2))] = FAILED_LANE
    return period


def transient(states: np.ndarray, p: int, *, few: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Whether states (B, n, c) visibly approach a motion of period p (B,), and their final distance from it (B,).

    Near that motion the changes u[k] = x[k + p] - x[k] obey u[k + 2p] = c1 u[k + p] + c0 u[k], with the same c0 and c1
    for all phases and components, once only the two slowest modes remain (with one coordinate there are no others). The
    roots of the recurrence are the modes' multipliers mu; the remaining distance is u/(1 - mu). Changes that obey no
    such recurrence are due to rounding or chaos. With ``few``, to be set if the period is known, fewer states are
    enough: one mode, u[k + p] = c1 u[k], and a looser fit of the recurrence.
    """
    lanes, n, c = states.shape
    u = states[:, p:] - states[:, :-p]
    if (n - 3 * p) * c >= 6 and (few or n >= 5 * p + 3):
        first, second, third = (u[:, i * p : u.shape[1] - (2 - i) * p].reshape(lanes, -1) for i in range(3))
    elif few and (n - 2 * p) * c >= 3:
        second, third = (u[:, i * p : u.shape[1] - (1 - i) * p].reshape(lanes, -1) for i in range(2))
        first = np.zeros_like(second)
    else:
        return np.zeros(lanes, bool), np.zeros(lanes)
    size = np.sqrt(np.sum(third**2, axis=1))
    usual = np.where(size > 0, size, 1.0)[:, None]
    known = np.stack([first, second], axis=2) / usual[:, None]
    inverse = np.linalg.pinv(np.einsum("bki,bkj->bij", known, known), rcond=1e-12, hermitian=True)
    c0, c1 = np.einsum("bij,bkj,bk->ib", inverse, known, third / usual)
    error = np.sqrt(np.sum((third / usual - c1[:, None] * known[..., 1] - c0[:, None] * known[..., 0]) ** 2, axis=1))
    root = np.sqrt((c1**2 + 4 * c0).astype(complex))
    multipliers = np.stack([c1 + root, c1 - root]) / 2
    obeys = (size > 0) & (error < (COHERENT if few else 0.1 * COHERENT))
    shrinks = np.max(np.abs(multipliers), axis=0) ** ((n - p) / p)
    gap = np.min(np.abs(1 - multipliers), axis=0)
    last = np.max(np.abs(u[:, -p:]), axis=(1, 2))
    left = np.where(obeys, last / np.maximum(gap, VISIBLE), 0.0)
    return obeys & (shrinks < 1 - VISIBLE - 3 * error), left


def default_tolerance(section: Section) -> float:
    """Default tolerance of `period_of`: PERIODIC times the largest finite state of a section, or what rounding allows,
    if that is more.

    In float32 time and forcing are rounded otherwise in each period, and impacts amplify that: the states of an impact
    oscillator of period 1 scatter by 1e-4 to 4e-4 over 30 of its first 500 periods,
    those of one of period 3 by more than 5e-4.
    """
    size = np.abs(section.states[~section.failed])
    with np.errstate(invalid="ignore"):
        phases = 2 * np.pi * np.abs(section.t) / section.period[:, None]
    eps = float(np.finfo(section.q.dtype).eps)
    rounded = max(6 * eps**0.5, 4 * eps * float(np.max(phases, initial=0.0, where=np.isfinite(phases))))
    return max(PERIODIC, rounded) * float(np.max(size, initial=0.0, where=np.isfinite(size)))


def repetition(section: Section, p: int) -> np.ndarray:
    """Largest change of each lane's states over p periods (B,)."""
    states = section.states
    with np.errstate(invalid="ignore"):  # of failed lanes
        return np.max(np.abs(states[:, p:] - states[:, :-p]), axis=(1, 2))


def state(t: Array, q: Array, v: Array, args: object) -> tuple[Array, Array]:
    """Save function that keeps the state (q, v)."""
    return q, v
