"""Basins of attraction: which attractor each motion from a grid of starts ends on;
attractors are recognised from the data.

Periodic motions are the same attractor where their states, taken once a forcing period, agree up to a cyclic shift.
Motions without a period are the same where the boxes of state space that they visit are connected.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Unpack

import jax
import numpy as np
import scipy
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, is_pair
from ..jaxtools.warnings import JaximpactWarning
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.motion import OF_CONTACTS
from ..mechanics.problem import Problem
from ..mechanics.status import Status
from ..results import Arrays, Drawable, Result, with_names
from ..simulation.call import Call
from ..simulation.canonical_arrays import canonical_state, cast_numbers
from ..simulation.validation import check_problem
from .checks import REPEATS, StudyLike, TimeLike, check_no_noise, check_result, distance, of_a_study, sweep_values
from .crossings import section
from .default_scheme import PICTURE, ROWS, choose_scheme
from .forced_motions import gather
from .from_study import basin_arguments, computes_anew, saved_section, some_lanes
from .options import MotionOptions, with_options
from .sections import NOT_SETTLED, Section, default_tolerance, period_of, repeats_after, repetition
from .shooting_equations import Surface

UNSETTLED, FORBIDDEN, FAILED = -1, -2, -3  # labels of starts that reach no attractor
RADIUS = 100.0  # tolerances of periodicity within which two periodic motions are the same attractor
BOXES = 32  # for each coordinate, across all motions without a period
FEWEST = 0.002  # part of the settled motions that a group without a period must hold to be an attractor
MOST = 100  # attractors recognised


@dataclass(frozen=True, repr=False)
class Attractor(Result):
    """An attractor on which some of the motions end; found by `recognise`.

    Attributes:
        period: number p of forcing periods after which it repeats, 0 for none (chaotic or quasi-periodic).
        q, v: its states once a forcing period (p, d), in order; without a period the states kept of one of its motions.
        lanes: how many motions end on it.
    """

    period: int
    q: np.ndarray
    v: np.ndarray
    lanes: int

    def _brief(self) -> str:
        if self._is_traced():
            return super()._brief()
        kind = f"period {self.period}" if self.period else "no period"
        return f"{kind}, {self.lanes} motion{'s' * (self.lanes != 1)}"

    def _arrays(self) -> Arrays:
        return self._along("row", "q", "v")

    def _columns(self) -> dict[str, np.ndarray]:
        return self._table("q", "v")


@dataclass(frozen=True, repr=False)
class Basins(Drawable):
    """Result of `basins`: basins of attraction over a grid of starts.

    Attributes:
        coordinates: which initial numbers run along x and y: ("q", i) or ("v", i).
        x, y: their values (nx,), (ny,).
        labels: for each start (ny, nx) the index in ``attractors`` of the attractor that it leads to; or `UNSETTLED`
            (-1), `FORBIDDEN` (-2, the start violates a constraint) or `FAILED` (-3).
        attractors: the attractors, those that most motions end on first.
        status: `Status` bits (ny, nx).
        naming: names and units of the problem.
    """

    coordinates: tuple[tuple[str, int], tuple[str, int]]
    x: np.ndarray
    y: np.ndarray
    labels: np.ndarray
    attractors: tuple[Attractor, ...]
    status: np.ndarray
    naming: Labels = UNNAMED

    def _arrays(self) -> Arrays:
        return self._along("x", "x") | self._along("y", "y") | self._along("y x", "labels", "status")

    def _columns(self) -> dict[str, np.ndarray]:
        y, x = np.meshgrid(self.y, self.x, indexing="ij")
        (first, i), (second, j) = self.coordinates
        grid = {f"{first}[{i}]": x, f"{second}[{j}]": y, "label": self.labels, "status": self.status}
        return {name: value.ravel() for name, value in grid.items()}

    def shares(self) -> np.ndarray:
        """Part of the admissible starts that leads to each attractor (k,)."""
        allowed = np.sum(self.labels != FORBIDDEN)
        return np.array([np.sum(self.labels == k) / allowed for k in range(len(self.attractors))])


def _of_study(
    study: StudyLike, *, tolerance: float | None = None, radius: float | None = None, **options: Any
) -> Basins:
    stated = basin_arguments(study)
    if computes_anew(options):
        return basins(**(stated | options), tolerance=tolerance, radius=radius)
    found = saved_section(study, **options)
    allowed = np.flatnonzero((found.status & int(Status.INPUT_INVALID)) == 0)
    own, attractors = recognise(some_lanes(found, allowed), tolerance=tolerance, radius=radius)
    labels, status = np.full(len(found.status), FORBIDDEN), np.zeros(len(found.status), int)
    labels[allowed], status[allowed] = own, found.status[allowed]
    x, y = stated["x"], stated["y"]
    grid = lambda lanes: lanes.reshape(len(x), len(y)).T  # the last dimension of a design is the fastest
    return Basins(stated["coordinates"], x, y, grid(labels), attractors, grid(status))


@of_a_study(_of_study)
@with_names
@with_options(MotionOptions)
def basins(
    problem: Problem,
    *,
    x: ArrayLike,
    y: ArrayLike,
    period: TimeLike,
    steps: int | None = None,
    cycles: int,
    skip: int,
    coordinates: tuple[tuple[str, int], tuple[str, int]] = (("q", 0), ("v", 0)),
    q0: ArrayLike = (0.0,),
    v0: ArrayLike = (0.0,),
    surface: Surface | None = None,
    direction: int = 0,
    phase: float = 0.0,
    tolerance: float | None = None,
    radius: float | None = None,
    progress: bool | None = None,
    **options: Unpack[MotionOptions],
) -> Basins:
    """Finds the attractor that each start of a grid leads to.

    Args:
        problem, args, e, scheme, projection, phase, progress: as in `stroboscopic`; args and e without lane axes. A
            `Study` over a grid of two initial numbers may stand in place of problem, args, e, x, y, coordinates, q0 and
            v0. Motions are then computed only if ``steps`` or ``scheme=EventDriven()`` is given; otherwise states are
            taken from the rows that the study saved, as in `bifurcation`.
        x, y: values (nx,), (ny,) of the two initial numbers that ``coordinates`` names.
        coordinates: ("q", i) or ("v", i), for x and for y.
        q0, v0: initial position and velocity (d,), in which the two numbers are replaced by x and y.
        period: forcing period [s], a number or a function of args; with a surface an estimate of
            the time between two passages.
        surface, direction: as in `poincare_section`; by default states are taken once a forcing period.
        steps, cycles, skip: as in `stroboscopic`; ``skip`` periods must be enough to settle, and attractors of periods
            up to cycles/2 are recognised as periodic.
        tolerance, radius: as in `recognise`.

    Returns:
        A `Basins`.

    Raises:
        ValueError, TypeError: as `stroboscopic`; ``coordinates`` names something else;
            every start of the grid violates a constraint.
    """
    check_problem(problem)
    check_no_noise(problem, REPEATS)
    options, steps = choose_scheme(problem, options, steps, PICTURE, 1 if surface is None else ROWS)
    check_counts(cycles=cycles, skip=skip)
    if cycles < 2:
        raise ValueError("cycles must be at least 2: attractors are recognised from states once a period")
    for name, value in {"tolerance": tolerance, "radius": radius}.items():
        if value is not None:
            distance(name, value)
    x, y = (sweep_values(name, value) for name, value in {"x": x, "y": y}.items())
    start = dict(zip("qv", (np.asarray(s) for s in canonical_state(q0, v0)), strict=True))
    if start["q"].ndim != 1 or start["q"].shape != start["v"].shape:
        raise ValueError(f"q0 and v0 must both have shape (d,), got {start['q'].shape} and {start['v'].shape}")
    start = {name: np.repeat(value[None], x.size * y.size, axis=0) for name, value in start.items()}
    known = [(name, i) for name in "qv" for i in range(start["q"].shape[1])]
    wrong = [one for one in coordinates if one not in known] if is_pair(coordinates) else [coordinates]
    if wrong:
        raise ValueError(
            f"coordinates: {wrong[0]!r} must be ('q', i) or ('v', i) with i < {start['q'].shape[1]}, one for x and one "
            "for y"
        )
    for (name, i), values in zip(coordinates, (g.ravel() for g in np.meshgrid(x, y)), strict=True):
        start[name][:, i] = values

    one = gather(Call(problem, start["q"][0], start["v"][0], **options), period, phase)
    gaps = _gaps(problem, phase * one.period[0], start["q"], cast_numbers("args", options["args"], start["q"].dtype))
    allowed = np.flatnonzero(np.all(np.asarray(gaps) >= 0, axis=1))
    if not allowed.size:
        raise ValueError("every start of the grid violates a constraint: choose x, y, q0 with some gaps >= 0")
    found = section(
        surface, direction, problem, start["q"][allowed], start["v"][allowed], period=period, steps=steps,
        cycles=cycles, skip=skip, phase=phase, progress=progress,
        **(options | {name: getattr(one.lanes.motion, name) for name in OF_CONTACTS}),
    )  # fmt: skip
    own, attractors = recognise(found, tolerance=tolerance, radius=radius)
    labels = np.full(x.size * y.size, FORBIDDEN)
    status = np.zeros(x.size * y.size, int)
    labels[allowed], status[allowed] = own, found.status
    shape = (y.size, x.size)
    first, second = coordinates
    return Basins((first, second), x, y, labels.reshape(shape), attractors, status.reshape(shape))


def recognise(
    section: Section, *, tolerance: float | None = None, radius: float | None = None
) -> tuple[np.ndarray, tuple[Attractor, ...]]:
    """Finds the attractors on which the motions of a section end, and assigns each motion to one.

    Motions of the same period p whose last p states (`Section.states`) agree within ``radius``, up to a cyclic shift,
    end on the same attractor. A motion of period 2p whose two halves agree within ``radius`` is taken as one that
    slowly settles to period p. A motion without a period belongs to a periodic attractor if the second half of its
    states stays within ``radius`` of it. The remaining motions are grouped by boxes of state space, 1/32 of the range
    of each coordinate wide: motions connected by common boxes form an attractor without a period, if they are at least
    two, and at least 0.2 % of all motions. Motions that belong to none of these are labelled `UNSETTLED`:
    skip more periods.

    Args:
        section: what `stroboscopic` returned, at least two states of each motion.
        tolerance: as in `period_of`.
        radius: distance below which two attractors count as one [unit of q]; by default 100 tolerances.

    Returns:
        Labels (B,): for each motion the index of its attractor, or `UNSETTLED` or `FAILED`; and the attractors, those
            that most motions end on first.
    """
    check_result("section", section, Section, "stroboscopic")
    tolerance = default_tolerance(section) if tolerance is None else distance("tolerance", tolerance)
    radius = RADIUS * tolerance if radius is None else distance("radius", radius)
    period, settled = (find(section, tolerance=tolerance) for find in (repeats_after, period_of))
    states = section.states
    labels = np.where(period < 0, FAILED, UNSETTLED)
    orbits: list[np.ndarray] = []  # states (p, 2d) of the periodic attractors
    members: list[int] = []  # number of a motion on each attractor

    for p in np.unique(period[period > 0]):
        waiting = np.flatnonzero(period == p)
        # what still settles counts where it is near a shorter orbit by now
        far = [i for i in waiting if settled[i] == NOT_SETTLED and len(_shortest(states[i, -p:], radius)) == p]
        period[far] = 0
        waiting = np.setdiff1d(waiting, far)
        waiting = waiting[np.argsort(repetition(section, p)[waiting], kind="stable")]
        last = states[:, -p:]
        for k, orbit in enumerate(orbits):
            if p % len(orbit) == 0:
                same = _distances_to_orbit(last[waiting], np.tile(orbit, (p // len(orbit), 1))) <= radius
                labels[waiting[same]] = k
                waiting = waiting[~same]
        while waiting.size and len(orbits) < MOST:
            same = _distances_to_orbit(last[waiting], last[waiting[0]]) <= radius
            labels[waiting[same]] = len(orbits)
            orbits.append(_shortest(last[waiting[0]], radius))
            members.append(int(waiting[0]))
            waiting = waiting[~same]
    late = np.flatnonzero(period == 0)
    half = states[:, states.shape[1] // 2 :]
    for k, orbit in enumerate(orbits):
        near = np.max(np.min(_distances(half[late], orbit), axis=2), axis=1, initial=0.0) <= radius
        labels[late[near]] = k
        late = late[~near]
    for group in _connected_groups(states[late], max(2, int(np.ceil(FEWEST * np.sum(period >= 0))))):
        labels[late[group]] = len(members)
        members.append(int(late[group[0]]))
    if len(orbits) == MOST:
        warnings.warn(
            f"more than {MOST} periodic attractors: radius={radius:.3g} is too small, or too few periods were skipped "
            "for "
            "motions to settle; those not told apart are labelled unsettled",
            JaximpactWarning,
            stacklevel=2,
        )
    return _by_frequency(section, labels, members, [len(orbit) for orbit in orbits])


def _by_frequency(
    section: Section, labels: np.ndarray, members: list[int], periods: list[int]
) -> tuple[np.ndarray, tuple[Attractor, ...]]:
    """Sorts attractors by the number of their motions; returns the ``labels`` (B,) of the motions, renumbered
    accordingly, and the attractors.

    ``members``: index of one motion on each attractor; ``periods``: periods of the first attractors;
    the others are not periodic.
    """
    sizes = np.array([np.sum(labels == k) for k in range(len(members))], int)
    order = np.argsort(-sizes, kind="stable")
    number = np.empty(len(order), int)
    number[order] = np.arange(len(order))
    attractors = []
    for k in order:
        p = periods[k] if k < len(periods) else 0
        q, v = section.q[members[k], -p:], section.v[members[k], -p:]
        attractors.append(Attractor(p, q, v, int(sizes[k])))
    found = labels.copy()
    found[labels >= 0] = number[labels[labels >= 0]]
    return found, tuple(attractors)


def _distances(states: np.ndarray, orbit: np.ndarray) -> np.ndarray:
    """Largest component difference between states (B, n, c) and the states of an orbit (p, c): (B, n, p)."""
    return np.max(np.abs(states[:, :, None] - orbit), axis=-1)


def _shortest(orbit: np.ndarray, radius: float) -> np.ndarray:
    """The last r states (r, c) of an orbit (p, c), r being the least divisor of p after which it
    repeats within ``radius``."""
    p = len(orbit)
    divisors = (r for r in range(1, p + 1) if p % r == 0)
    r = next(r for r in divisors if np.max(np.abs(orbit - np.roll(orbit, r, axis=0))) <= radius)
    return orbit[-r:]


def _distances_to_orbit(states: np.ndarray, orbit: np.ndarray) -> np.ndarray:
    """Distance of periodic motions (B, p, c) from an orbit (p, c), minimised over cyclic shifts: (B,)."""
    shifts = (np.roll(orbit, k, axis=0) for k in range(len(orbit)))
    best = np.full(len(states), np.inf)
    for shifted in shifts:
        best = np.minimum(best, np.max(np.abs(states - shifted), axis=(1, 2)))
    return best


def _connected_groups(states: np.ndarray, fewest: int) -> list[np.ndarray]:
    """Returns the indices of the motions in each group of at least ``fewest`` motions that visit common boxes of state
    space; largest group first.

    ``states`` (B, n, c): n states of each motion.
    """
    lanes, n = states.shape[:2]
    if lanes < fewest:
        return []
    low, high = states.min(axis=(0, 1)), states.max(axis=(0, 1))
    size = np.where(high > low, high - low, 1.0)
    boxes = np.minimum((BOXES * (states - low) / size).astype(int), BOXES - 1).reshape(lanes * n, -1)
    _, box = np.unique(boxes, axis=0, return_inverse=True)
    visits = scipy.sparse.coo_array((np.ones(lanes * n), (np.repeat(np.arange(lanes), n), lanes + box.ravel())),
                       shape=(lanes + box.max() + 1,) * 2)  # fmt: skip
    _, group = scipy.sparse.csgraph.connected_components(visits, directed=False)
    numbers, sizes = np.unique(group[:lanes], return_counts=True)
    return [
        np.flatnonzero(group[:lanes] == numbers[k]) for k in np.argsort(-sizes, kind="stable") if sizes[k] >= fewest
    ]


@jax.jit
def _gaps(problem: Problem, t: Array, q: Array, args: object) -> Array:
    return jax.vmap(lambda q: problem.gaps(t, q, args))(q)
