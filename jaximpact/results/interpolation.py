"""Interpolation of a motion between the rows of a solution that holds every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import is_traced, real
from .impulse_intervals import REBOUND, runs

if TYPE_CHECKING:
    from .solution import Solution

ALIGNED = 1e-9  # of a step: times as near as that to a row count as the time of the row


def at(solution: Solution, t: ArrayLike) -> Solution:
    """Interpolates a solution to the times ``t``: see `Solution.at`."""
    if is_traced(solution, t):
        raise TypeError(
            "solution.at(t) takes known numbers: inside a jax transformation solve with save=t, or give the problem, "
            "solution.at(t, problem)"
        )
    times, rows = checked_times(solution, t)
    lead = rows.shape[:-1]
    lanes = [_rows_at(jax.tree.map(lambda x, lane=lane: x[lane], solution), times) for lane in np.ndindex(lead)]
    state: dict = {
        name: np.stack([one[name] for one in lanes]).reshape(*lead, *lanes[0][name].shape) for name in lanes[0]
    }
    return replace(solution, **state, energy=None, origin=replace(solution.origin, every_step=False))


def checked_times(solution: Solution, t: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns the times t as an array (k,), and the times of the solution's rows; raises unless its rows are all steps
    and t lies in [t0, t1]."""
    check_rows(solution)
    times = np.atleast_1d(real("t", t).astype(np.float64))
    if times.ndim != 1 or not np.all(np.isfinite(times)):
        raise ValueError(f"t must be one finite number or have shape (k,), got {t!r}")
    rows = np.asarray(solution.t, np.float64)
    slack = 8 * np.finfo(np.asarray(solution.t).dtype).eps * np.max(np.abs(rows))
    begin, end = np.max(rows[..., 0]), np.min(rows[..., -1])
    if times.size and (times.min() < begin - slack or times.max() > end + slack):
        outside = times[(times < begin - slack) | (times > end + slack)][0]
        raise ValueError(f"t = {outside:g} lies outside the motion, [t0, t1] = [{begin:g}, {end:g}]")
    return np.clip(times, begin, end), rows


def check_rows(solution: Solution) -> None:
    """Raises unless a solution holds the state at every step."""
    if solution.values is not None or solution.origin.every_step is False or np.shape(solution.t)[-1] < 2:
        raise ValueError(
            "solution.at(t) needs every step of the motion: solve with save='all' (ensemble: save=1), without a "
            "function"
        )


def _rows_at(one: Solution, times: np.ndarray) -> dict[str, np.ndarray]:
    """Fields of a `Solution` (t, q, v, z, impulse, ...) of one motion, interpolated to other times (k,), by name."""
    one = until_stop(one)
    t, q, v, z, impulse = (np.asarray(x, np.float64) for x in (one.t, one.q, one.v, one.z, one.impulse))
    # the row at or after each time, and the part of its step that is still to come
    h = np.diff(t)
    row = np.searchsorted(t, times - ALIGNED * np.max(h), side="left")
    step = np.maximum(row - 1, 0)
    rest = np.where(row > 0, (t[row] - times) / h[step], 0.0)[:, None]
    rest = np.where(np.abs(rest) <= ALIGNED, 0.0, rest)
    found = {"q": q[row] - rest * (q[row] - q[step]), "v": v[row], "z": z[row]}
    if one.pairs is None:
        found["impulse"] = impulse[row] - rest * (impulse[row] - impulse[step])
    else:
        # those of the step
        found |= {"impulse": impulse[row], "pairs": np.asarray(one.pairs)[row]}
    if one.joint_impulse is not None:
        held = np.asarray(one.joint_impulse, np.float64)
        found["joint_impulse"] = held[row] - rest * (held[row] - held[step])
    if one.friction_impulse is not None:
        rubbed = np.asarray(one.friction_impulse, np.float64)
        found["friction_impulse"] = rubbed[row] - rest[..., None] * (rubbed[row] - rubbed[step])
    if is_located(one):
        motion = _smooth(one)
        kink = motion.kink
        inside = rest[:, 0] > 0
        between = dict(zip("qv", motion(times), strict=True))
        early, late = ((side & np.isfinite(kink[step]))[:, None] for side in _sides(times, t, step, kink))
        impulses = np.where(early, impulse[step], np.where(late, impulse[row], found["impulse"]))
        between |= {"z": between["q"], "impulse": impulses}
        found |= {name: np.where(inside[:, None], x, found[name]) for name, x in between.items()}
    kinds = {name: np.asarray(getattr(one, name)).dtype for name in found}
    return {"t": times.astype(kinds["q"]), **{name: x.astype(kinds[name]) for name, x in found.items()}}


def until_stop(one: Solution) -> Solution:
    """One motion without the rows after its stop, which repeat the row of the stop."""
    if one.stopped is None or not one.stopped:
        return one
    rows = slice(int(np.argmax(np.asarray(one.t) >= one.t[-1])) + 1)
    names = ("t", "q", "v", "z", "impulse", "joint_impulse")
    return replace(one, **{name: x[rows] for name in names if (x := getattr(one, name)) is not None}, energy=None)


def _sides(times: np.ndarray, t: np.ndarray, step: np.ndarray, kink: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the ``times`` (k,) that lie before, and after, the impact in their step.

    ``step`` (k,): number of the step in which each time lies; t: times of the rows; ``kink``:
    time of the impact after the start of each step.
    """
    before = times - t[step] < kink[step]
    return before, ~before


def is_located(solution: Solution) -> bool:
    """Whether impacts were located, so that each row holds the velocity at its own time."""
    return solution.timing is not None and solution.timing.locates


@dataclass(frozen=True)
class Curve:
    """Piecewise polynomial motion through n + 1 rows of a solution: in each of the n steps,
    polynomials in the time since a row.

    A step with an impact has two pieces that meet ``kink`` after its start (inf without an impact): ``before`` counts
    time from the row at the start of the step, ``behind`` from the row at its end. Coefficients are ordered by power,
    constants first: positions (4, n, d), velocities (3, n, d).
    """

    t: np.ndarray
    kink: np.ndarray
    before: tuple[np.ndarray, np.ndarray]
    behind: tuple[np.ndarray, np.ndarray]

    def __call__(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions and velocities (k, d) at times (k,)."""
        k = np.clip(np.searchsorted(self.t, times, side="right") - 1, 0, len(self.t) - 2)
        since, late = times - self.t[k], times - self.t[k] >= self.kink[k]
        rest = times - self.t[k + 1]
        early, after = (
            [_power_sum(x[:, k], s) for x in piece] for piece, s in ((self.before, since), (self.behind, rest))
        )
        position, velocity = (np.where(late[:, None], y, x) for x, y in zip(early, after, strict=True))
        return position, velocity

    def pieces(self) -> tuple[np.ndarray, ...]:
        """All p polynomials in order of time: origin of the local time, local start and end (p,), coefficients of
        position (4, p, d) and velocity (3, p, d)."""
        h, kinked = np.diff(self.t), np.isfinite(self.kink)
        cut = np.where(kinked, self.kink, h)
        order = np.argsort(np.append(np.arange(len(h)), np.flatnonzero(kinked)), kind="stable")
        join = lambda x, y: np.concatenate([x, y[..., kinked, :]], axis=-2)[..., order, :]
        times = [
            np.stack([self.t[:-1], np.zeros_like(h), cut], axis=1),
            np.stack([self.t[1:], cut - h, np.zeros_like(h)], axis=1),
        ]
        origin, start, end = join(*times).T
        return origin, start, end, *(join(x, y) for x, y in zip(self.before, self.behind, strict=True))


def _power_sum(coefficients: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Evaluates polynomials (n, d), given by coefficients in order of power, at s (n,)."""
    total = np.zeros_like(coefficients[0])
    for x in coefficients[::-1]:
        total = total * s[:, None] + x
    return total


def curve(solution: Solution) -> Curve:
    """Piecewise polynomial motion through all rows of a solution that holds every step.

    For schemes of first order, position and velocity are interpolated separately, so that the velocity is not the
    derivative of the position: both are affine in each step; in the steps of an impact the velocity keeps its value at
    the start of the step, and jumps at the end of the step.

    For schemes that locate impacts, position and velocity of a row belong to the same time, and the velocity is the
    derivative of the position: that is a cubic in each step, or, in a step with an impact,
    two parabolas that meet at the time of the impact.
    """
    if is_located(solution):
        return _smooth(until_stop(solution))
    t, q, v = (np.asarray(x, np.float64) for x in (solution.t, solution.q, solution.v))
    h = np.diff(t)
    zero = np.zeros_like(q[1:])
    steps = REBOUND if solution.timing is None else solution.timing.steps
    struck = np.zeros(len(h), bool)
    contact = runs(np.asarray(solution.impulse)[None], solution.timing)
    for first, last in zip(contact.first[contact.impact], contact.last[contact.impact], strict=True):
        struck[first : min(last, first + steps) + 1] = True
    # a velocity that jumps does so at the end of its step
    rate = np.where(struck[:, None], 0.0, np.diff(v, axis=0) / h[:, None])
    chord = np.diff(q, axis=0) / h[:, None]
    before = np.stack([q[:-1], chord, zero, zero]), np.stack([v[:-1], rate, zero])
    behind = np.stack([q[1:], chord, zero, zero]), np.stack([v[1:], zero, zero])
    return Curve(t, np.where(struck, h, np.inf), before, behind)


def interpolant(solution: Solution) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns a function from times (k,) to positions and velocities (k, d) of a solution that holds every step.

    As `curve`, but for schemes of first order the velocity is the slope of the position,
    (q_new - q_old)/h in each step.
    """
    found = curve(solution)
    if is_located(solution):
        return found
    chord = found.before[0][1]

    def affine(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return found(times)[0], chord[np.clip(np.searchsorted(found.t, times, side="right") - 1, 0, len(chord) - 1)]

    return affine


def _smooth(solution: Solution) -> Curve:
    """Curve through rows that hold position and velocity of the same time: a cubic in each step,
    two parabolas around an impact."""
    t, q, v = (np.asarray(x, np.float64) for x in (solution.t, solution.q, solution.v))
    h = np.diff(t)[:, None]
    chord = np.diff(q, axis=0) / h
    # a step of an impact, or the first one of lasting contact, may hold a kink
    contact = runs(np.asarray(solution.impulse)[None], solution.timing)
    contact_steps = np.zeros(len(h), bool)
    for first, last, lasting in zip(contact.first, contact.last, contact.lasting, strict=True):
        contact_steps[first : first + 1 if lasting else last + 1] = True
    # accelerations at both ends of a step; those of the next free steps for a contact step
    start, end = (6 * chord - 4 * v[:-1] - 2 * v[1:]) / h, (2 * v[:-1] + 4 * v[1:] - 6 * chord) / h
    free_steps = np.flatnonzero(~contact_steps)
    place = np.searchsorted(free_steps, np.flatnonzero(contact_steps))
    if free_steps.size:
        before, after = (free_steps[np.clip(i, 0, free_steps.size - 1)] for i in (place - 1, place))
        # at the first and the last step the other side must do
        start[contact_steps] = np.where((place > 0)[:, None], end[before], start[after])
        end[contact_steps] = np.where((place < free_steps.size)[:, None], start[after], end[before])
    else:
        start[:], end[:] = 0, 0
    kink = np.full(len(h), np.inf)
    jump = v[1:] - v[:-1] - 0.5 * h * (start + end)
    s = 0.5 * h
    for _ in range(4):
        left = q[:-1] + s * (v[:-1] + 0.5 * s * start)
        right = q[1:] - (h - s) * (v[1:] - 0.5 * (h - s) * end)
        apart = np.sum(jump * (right - left), axis=1, keepdims=True)
        rate = np.sum(jump * (v[1:] - (h - s) * end - v[:-1] - s * start), axis=1, keepdims=True)
        s = np.clip(s - np.divide(apart, rate, out=np.zeros_like(rate), where=rate != 0), 0, h)
    # a velocity that changes as it does without an impact has no kink
    kinked = contact_steps & (np.max(np.abs(jump), axis=1) > np.max(np.abs(0.5 * h * (start + end)), axis=1))
    kink[kinked] = s[kinked, 0]

    bend, tilt = (v[1:] - 2 * chord + v[:-1]) / h**2, (3 * chord - 2 * v[:-1] - v[1:]) / h
    halves, zero, split = (0.5 * start, 0.5 * end), np.zeros_like(chord), np.isfinite(kink)[:, None]
    smooth = np.stack([q[:-1], v[:-1], tilt, bend]), np.stack([v[:-1], 2 * tilt, 3 * bend])
    left_piece = np.stack([q[:-1], v[:-1], halves[0], zero]), np.stack([v[:-1], start, zero])
    pieces = tuple(np.where(split, x, y) for x, y in zip(left_piece, smooth, strict=True))
    behind = np.stack([q[1:], v[1:], halves[1], zero]), np.stack([v[1:], end, zero])
    return Curve(t, kink, (pieces[0], pieces[1]), behind)
