"""Poincaré sections on a surface s(t, q, v, args) = 0: passages of computed motions,
and motions run until they have passed often enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import PyTreeDef
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, is_whole
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.motion import OF_FRICTION
from ..mechanics.problem import Problem
from ..mechanics.status import FAILURES
from ..mechanics.trials.stops import Until
from ..results import Arrays, Drawable, Solution, with_names
from ..results.interpolation import curve
from ..simulation.call import Call
from ..simulation.canonical_arrays import cast_numbers, leaf_axes
from .checks import TimeLike, check_result, check_steps, one_lane, takes_study
from .default_scheme import ROWS, SECTION, choose_scheme
from .forced_motions import ForcedMotions, check_restarts, gather
from .options import LaneOptions, with_options
from .restarts import run_between
from .sections import Section, stroboscopic
from .shooting_equations import Surface, check_surface

HALVINGS = 60  # bisections of the interval that a passage lies in
NOISE = 64  # units of rounding of the largest value of s within which it counts as zero
PERIODS = 32  # of a run between two looks at how many passages there are
PATIENCE = 4  # times as many periods as passages are asked for, after which no more are waited for


@dataclass(frozen=True, repr=False)
class Crossings(Drawable):
    """Passages of one or many motions through a surface, sorted by lane and time.

    Attributes:
        lane: which motion (n,).
        t: times (n,) [s].
        q, v: states at these times (n, d).
        direction: 1 where s increases, -1 where it decreases (n,).
        naming: names and units of the problem.
    """

    lane: np.ndarray
    t: np.ndarray
    q: np.ndarray
    v: np.ndarray
    direction: np.ndarray
    naming: Labels = UNNAMED

    def _arrays(self) -> Arrays:
        return self._along("crossing", "lane", "t", "q", "v", "direction")

    def _columns(self) -> dict[str, np.ndarray]:
        return self._table("lane", "t", "q", "v", "direction")

    def __len__(self) -> int:
        return len(self.lane)

    def of(self, lane: int) -> Crossings:
        """The passages of one motion."""
        arrays = {name: x[self.lane == lane] for name, x in vars(self).items() if isinstance(x, np.ndarray)}
        return replace(self, **arrays)


@takes_study
def crossings(
    solution: Solution,
    surface: Surface,
    *,
    direction: int = 0,
    args: object = None,
    args_axes: object = None,
) -> Crossings:
    """Finds the passages of motions through a surface, between the rows of a solution that holds every step.

    A passage is a change of sign of s along the motion, located on the path between two rows: a cubic, broken where the
    step has an impact. Its error is of second order in h with `EventCorrected`, and of first order with the other
    schemes, as that of the motion. A jump of s at an impact is no passage: a velocity that an impact reverses is not
    zero at any time. Two passages within one step are not seen.

    Args:
        solution: one motion or a batch, from `solve` with save="all" or `ensemble` with save=1.
        surface: ``surface(t, q, v, args) -> ()``, continuous. Pass the same function object in every call:
            a new one is compiled again.
        direction: 1 for passages where s increases, -1 where it decreases, 0 for both.
        args, args_axes: as they were given to `ensemble` (or `solve`).

    Returns:
        `Crossings`; the start of a motion on the surface is no passage, nor is a motion that stays on the surface.

    Raises:
        ValueError, TypeError: the solution does not hold every step, a motion is not finite,
            or the surface is not such a function.
    """
    check_result("solution", solution, Solution, "solve or ensemble")
    check_direction(direction)
    if solution.values is not None or solution.origin.every_step is False or np.shape(solution.t)[-1] < 2:
        raise ValueError(
            "solution: passages need every step of a motion: solve with save='all' (ensemble: save=1), without a "
            "function"
        )
    if np.ndim(solution.q) == 2:
        solution = jax.tree.map(lambda x: np.asarray(x)[None], solution)
    if np.ndim(solution.q) != 3:
        raise ValueError(
            f"solution must be one motion or a batch, q of shape (k, d) or (B, k, d), got {solution.q.shape}"
        )
    if not np.all(np.isfinite(solution.q) & np.isfinite(solution.v)):
        raise ValueError("solution: a motion is not finite: leave it out with solution[~solution.failed]")
    args = cast_numbers("args", args, solution.q.dtype)
    t, q, v = (x[0, 0] for x in (solution.t, solution.q, solution.v))
    check_surface(surface, t, q, v, one_lane(args, args_axes))
    return find(solution, surface, direction, args, args_axes)


def check_direction(direction: int) -> None:
    if not is_whole(direction) or direction not in (-1, 0, 1):
        raise ValueError(f"direction must be 1, -1, or 0 for both, got {direction!r}")


def find(solution: Solution, surface: Surface, direction: int, args: object, args_axes: object) -> Crossings:
    """Passages of a batch through a surface, as `crossings` returns them, without checking the arguments."""
    lanes = [jax.tree.map(lambda x, i=i: np.asarray(x)[i], solution) for i in range(len(solution.t))]
    pieces = [curve(one).pieces() for one in lanes]
    lane = np.repeat(np.arange(len(lanes)), [len(piece[0]) for piece in pieces])
    origin, start, end, *polynomials = (
        np.concatenate(x, axis=-2 if x[0].ndim == 3 else 0) for x in zip(*pieces, strict=True)
    )
    parts = origin, start, end, *(np.moveaxis(x, 1, 0) for x in polynomials)
    dtype = solution.q.dtype
    leaves, structure = jax.tree.flatten(args)
    axes = leaf_axes(args, args_axes)

    def call(function: Callable, which: np.ndarray) -> tuple[np.ndarray, ...]:
        # few sizes, few compilations
        size = 1 << max(len(which) - 1, 0).bit_length()
        some = np.concatenate([which, np.repeat(which[:1], size - len(which))])
        own = tuple(x if axis is None else np.asarray(x)[lane[some]] for x, axis in zip(leaves, axes, strict=True))
        given = tuple(x[some].astype(dtype) for x in parts)
        return tuple(np.asarray(x)[: len(which)] for x in function(surface, given, own, axes, structure))

    ends = np.stack(call(_values, np.arange(len(lane))))
    if not np.all(np.isfinite(ends)):
        raise ValueError("surface is not finite at a state of the motion")
    largest = np.zeros(len(lanes))
    np.maximum.at(largest, lane, np.max(np.abs(ends), axis=0))
    ends[np.abs(ends) <= NOISE * np.finfo(dtype).eps * largest[lane]] = 0
    up, down = ((side * ends[0] < 0) & (side * ends[1] >= 0) for side in (1, -1))
    passed = np.flatnonzero((up & (direction >= 0)) | (down & (direction <= 0)))
    if not passed.size:
        none = np.zeros((0, solution.q.shape[-1]), dtype)
        return Crossings(lane[:0], none[:, 0], none, none, lane[:0], solution.naming)
    t, q, v = call(_root, passed)
    return Crossings(lane[passed], t, q, v, np.where(up[passed], 1, -1), solution.naming)


Pieces = tuple


def _state(piece: Pieces, s: Array) -> tuple[Array, Array, Array]:
    """Returns time, position and velocity on one polynomial piece of a curve, at its local time s ().

    ``piece``: (origin, start, end, coefficients of q, coefficients of v), an entry of `Curve.pieces`.
    """
    origin, _, _, positions, velocities = piece
    q, v = (sum(x * s**i for i, x in enumerate(part)) for part in (positions, velocities))
    return origin + s, q, v


@partial(jax.jit, static_argnames=("surface", "axes", "structure"))
def _values(
    surface: Surface, pieces: Pieces, leaves: tuple, axes: Sequence, structure: PyTreeDef
) -> tuple[Array, Array]:
    def one(piece: Pieces, leaves: tuple) -> tuple[Array, Array]:
        args = jax.tree.unflatten(structure, leaves)
        of = lambda s: jnp.asarray(surface(*_state(piece, s), args), s.dtype)
        return of(piece[1]), of(piece[2])

    return jax.vmap(one, in_axes=(0, axes))(pieces, leaves)


@partial(jax.jit, static_argnames=("surface", "axes", "structure"))
def _root(
    surface: Surface, pieces: Pieces, leaves: tuple, axes: Sequence, structure: PyTreeDef
) -> tuple[Array, Array, Array]:
    """Times, positions and velocities at which s changes its sign, once on each polynomial piece, by bisection.

    ``leaves``, ``axes`` and ``structure``: leaves of args, their vmap axes, and the pytree structure of args.
    """

    def one(piece: Pieces, leaves: tuple) -> tuple[Array, Array, Array]:
        args = jax.tree.unflatten(structure, leaves)
        of = lambda s: jnp.asarray(surface(*_state(piece, s), args), s.dtype)
        below = of(piece[1]) < 0

        def halve(_: object, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = 0.5 * (low + high)
            before = jnp.where(below, of(middle) < 0, of(middle) > 0)
            return jnp.where(before, middle, low), jnp.where(before, high, middle)

        return _state(piece, lax.fori_loop(0, HALVINGS, halve, (piece[1], piece[2]))[1])

    return jax.vmap(one, in_axes=(0, axes))(pieces, leaves)


@takes_study
@with_names
@with_options(LaneOptions)
def poincare_section(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    surface: Surface,
    direction: int = 0,
    period: TimeLike,
    steps: int | None = None,
    cycles: int,
    skip: int = 0,
    phase: float = 0.0,
    progress: bool | None = None,
    **options: Unpack[LaneOptions],
) -> Section:
    """States of motions at their passages through a surface: the Poincaré map of autonomous or forced systems.

    Motions run until each has passed ``skip + cycles`` times, in runs of 32 periods of which every step is kept; see
    `crossings` for what a passage is. For sections at the times t = (phase + k) period use `stroboscopic`, which keeps
    only the rows at these times.

    Args:
        problem, q0, v0, args, args_axes, e, projection: as in `ensemble`; without any lane axis there is one lane.
        surface: ``surface(t, q, v, args) -> ()``, zero on the section. Pass the same function object in every call: a
            new one is compiled again.
        direction: 1 for passages where it increases, -1 where it decreases, 0 for both.
        period: an estimate of the time between two passages [s], a number, (B,), or a function of args: h =
            period/steps if steps are given, and motions run for at most 4 (skip + cycles) periods.
        steps: number of steps in a period, for a scheme with fixed steps.
        cycles: number of passages kept, at least one.
        skip: number of passages left out before these, the transient.
        phase: part of the period, in [0, 1), at which the motion starts.
        scheme: by default `EventDriven(1e-10, 1e-10)`, or `EventCorrected()` if ``steps`` are given; `MoreauJean()` is
            possible too. The next step of these schemes depends on the state (q, v) only. With `EventDriven` passages
            are as accurate as the motion, and ``steps``, by default 100, is the number of rows in a period: two
            passages between neighbouring rows are not seen.
        progress: show a progress bar, as in `ensemble`.

    Returns:
        A `Section` with n = cycles. Failed lanes are flagged in its ``status``; lanes that pass less often, for
        instance because they come to rest, have NaN in their last rows.

    Raises:
        ValueError, TypeError: as `stroboscopic`; the surface is not valid,
            or the scheme carries an impact over into the next step.
    """
    check_direction(direction)
    options, steps = choose_scheme(problem, options, steps, SECTION, ROWS)
    check_counts(cycles=cycles, skip=skip)
    check_steps(steps, PATIENCE * (skip + cycles), "4 (skip + cycles)")
    motions = gather(Call(problem, q0, v0, **options), period, phase)
    return passages(motions, surface, direction, (steps, cycles, skip), progress)


def passages(
    motions: ForcedMotions,
    surface: Surface,
    direction: int,
    counts: tuple[int, int, int],
    progress: bool | None,
) -> Section:
    """Computes the Poincaré section of checked ``motions``.

    ``counts``: steps, cycles and skip of `poincare_section`; other arguments as there.
    """
    steps, cycles, skip = counts
    check_restarts(motions.scheme)
    one = motions.lanes.take(0)
    dtype = motions.lanes.motion.q0.dtype
    args = cast_numbers("args", motions.args, dtype)
    check_surface(surface, jnp.zeros((), dtype), one.q0, one.v0, one_lane(args, motions.args_axes))
    periods = min(PERIODS, skip + cycles)
    row = 8 * (1 + 3 * one.q0.shape[0] + motions.constraints())
    parts = [
        _passages(part, live, surface, direction, counts, progress)
        for part, live in motions.parts(row * (steps * periods + 1))
    ]
    return Section.joined(parts)


def _passages(
    part: ForcedMotions,
    live: int,
    surface: Surface,
    direction: int,
    counts: tuple[int, int, int],
    progress: bool | None,
) -> Section:
    """Computes the Poincaré section of a group ``part`` of motions; only its first ``live`` lanes are returned."""
    steps, cycles, skip = counts
    periods = min(PERIODS, skip + cycles)
    lanes, d = part.lanes.motion.q0.shape
    dtype = part.lanes.motion.q0.dtype
    wanted, count = skip + cycles, np.zeros(lanes, int)
    t, q, v = np.full((lanes, cycles), np.nan), *(np.full((lanes, cycles, d), np.nan, dtype) for _ in range(2))
    status, failed_at = np.zeros(lanes, int), np.full(lanes, np.nan)
    failed = np.zeros(lanes, bool)
    period = part.period
    for _ in range(-(-PATIENCE * wanted // periods)):
        waiting = ~failed & (count < wanted)
        if not waiting.any():
            break
        window = part.run(periods, steps, 1, progress)
        status = np.where(waiting, status | window.status, status)
        failed_at = np.where(waiting, window.failed_at, failed_at)
        failed = (status & int(FAILURES)) != 0
        sound = np.flatnonzero(waiting & ~failed)
        if sound.size:
            some = part.some(sound)
            args = cast_numbers("args", some.args, dtype)
            found = find(
                jax.tree.map(lambda x, sound=sound: x[sound], window), surface, direction, args, some.args_axes
            )
            if some.scheme.traits.by_tolerance:
                found = _locate_accurately(
                    some, jax.tree.map(lambda x, sound=sound: x[sound], window), found, surface, args
                )
            lane = sound[found.lane]
            # the number of each among those of its lane, in this window
            number = count[lane] - skip + np.arange(len(lane)) - np.searchsorted(found.lane, found.lane)
            kept = (number >= 0) & (number < cycles)
            for whole, new in ((t, found.t), (q, found.q), (v, found.v)):
                whole[lane[kept], number[kept]] = new[kept]
            count += np.bincount(lane, minlength=lanes)
        part = replace(part, begins=part.begins + periods).after(window)
    own = slice(live)
    return Section(t[own], q[own], v[own], period[own], status[own], failed_at[own], part.problem.naming)


def _locate_accurately(
    motions: ForcedMotions, window: Solution, found: Crossings, surface: Surface, args: object
) -> Crossings:
    """Locates the passages ``found`` between rows of ``window`` more accurately: runs each motion again, from the row
    before, until the surface."""
    t, q, v = (np.array(x) for x in (found.t, found.q, found.v))
    times, positions, velocities = (np.asarray(x) for x in (window.t, window.q, window.v))
    rows = times, positions, velocities
    row = np.array([np.searchsorted(times[i], x, side="right") - 1 for i, x in zip(found.lane, t, strict=True)], int)
    row = np.clip(row, 0, times.shape[1] - 2)
    numbers = {"e": motions.restitution()} | {name: motions.friction(name) for name in OF_FRICTION}
    own = {
        name: None if x is None else np.broadcast_to(x, (len(motions), x.shape[1]))[found.lane]
        for name, x in numbers.items()
    }
    for side in np.unique(found.direction):
        which = np.flatnonzero(found.direction == side)
        lane = found.lane[which]
        some = {name: None if x is None else x[which] for name, x in own.items()}
        call = motions.call(args=args, t1=times[lane, row[which] + 1], until=Until(surface, int(side)), **some)
        run = run_between(call, rows, lane, row[which])
        # one that ends a row before has passed the surface already, to rounding
        met = np.asarray(run.stopped) & ~np.asarray(run.failed)
        for whole, new in ((t, run.t), (q, run.q), (v, run.v)):
            whole[which[met]] = np.asarray(new)[met, -1]
    return replace(found, t=t, q=q, v=v)


def section(
    surface: Surface | None, direction: int, problem: Problem, q0: ArrayLike, v0: ArrayLike, **options: Any
) -> Section:
    """Returns `poincare_section` through ``surface``, or the `stroboscopic` section if ``surface`` is None."""
    if surface is None:
        if direction != 0:
            raise ValueError(
                f"direction={direction!r} is one of passages through a surface: give surface=..., or leave direction "
                "out"
            )
        return stroboscopic(problem, q0, v0, **options)
    return poincare_section(problem, q0, v0, surface=surface, direction=direction, **options)
