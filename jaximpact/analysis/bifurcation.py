"""Bifurcation diagrams, and maps of period and impacts over two parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, is_pair, named_leaves, real, with_leaves
from ..mechanics.motion import OF_CONTACTS
from ..mechanics.problem import Problem
from ..results import Arrays, Drawable, spread_columns, with_names
from ..results.save import Save
from ..simulation.call import Call
from .checks import (
    REPEATS,
    StudyLike,
    TimeLike,
    check_no_noise,
    check_steps,
    distance,
    of_a_study,
    parameter_name,
    parameter_path,
    sweep_values,
)
from .crossings import check_direction, passages, section
from .default_scheme import PICTURE, ROWS, SECTION, choose_scheme
from .diagram_points import IMPACT_VELOCITY, OF_COORDINATE, DiagramPoints, Of, check_of
from .forced_motions import ForcedMotions, check_restarts, gather
from .from_study import computes_anew, diagram_lanes, map_arguments, saved_section
from .options import LaneOptions, MotionOptions, with_options
from .sections import Section, impact_section, period_of, state
from .shooting_equations import Surface, check_forcing

FEW_ROWS = 60  # of a period of a map
SWEEPS = (None, "up", "down")
Parameter = str | int | Sequence[str | int]


@dataclass(frozen=True, repr=False)
class Bifurcation(Drawable):
    """Result of `bifurcation`: sections over P values of one parameter, each from S starts.

    Attributes:
        parameter: name of the parameter.
        values: its values (P,).
        starts: number of starts S.
        sweep: None, "up" or "down", as in `bifurcation`.
        section: states of all P * S lanes (`Section`); lanes of the same value follow each other.
        of: name of the quantity in ``points``, "" if the diagram shows the states of the section.
        points: values (n, k) of this quantity in all lanes; None without ``of``.
        lane: the lane of each point (n,), which is S * (index of the value) + (index of the start);
            None without ``of``.
    """

    parameter: str
    values: np.ndarray
    starts: int
    sweep: str | None
    section: Section
    of: str = ""
    points: np.ndarray | None = None
    lane: np.ndarray | None = None

    def _arrays(self) -> Arrays:
        one, lanes = ("value",), ("value", "start")
        inner = {name: x for name, (_, x) in self.section._arrays().items()}
        more = {} if self.points is None else {"points": (("point",), self.points), "lane": (("point",), self.lane)}
        return {"value": (one, self.values), **more} | {
            name: (lanes + ("row",) * (name in ("t", "q", "v")), self._in_shape(x)) for name, x in inner.items()
        }

    def _columns(self) -> dict[str, np.ndarray]:
        if self.points is not None and self.lane is not None:
            values = np.repeat(self.values, self.starts)[self.lane]
            names = self.section.naming.names("q") if self.of in OF_COORDINATE else None
            return {
                self.parameter: values,
                "start": self.lane % self.starts,
                **spread_columns(self.of, self.points if self.points.shape[1] > 1 else self.points[:, 0], names),
            }
        columns = self.section._columns()
        values = np.repeat(self.values, self.starts)
        return {self.parameter: values[columns["lane"]], "start": columns.pop("lane") % self.starts, **columns}

    @property
    def q(self) -> np.ndarray:
        """Positions (P, S, n, d)."""
        return self._in_shape(self.section.q)

    @property
    def v(self) -> np.ndarray:
        """Velocities (P, S, n, d)."""
        return self._in_shape(self.section.v)

    @property
    def status(self) -> np.ndarray:
        """`Status` bits (P, S)."""
        return self._in_shape(self.section.status)

    def periods(self, *, tolerance: float | None = None, most: int | None = None) -> np.ndarray:
        """Periods (P, S) by `period_of`: 0 without a period, -1 for failed lanes, -2 for
        lanes that have not settled."""
        return self._in_shape(period_of(self.section, tolerance=tolerance, most=most))

    def points_of(self, component: int) -> tuple[np.ndarray, np.ndarray, str]:
        """Returns the n points of the diagram for one component of the states, or of ``points``: the parameter's values
        (n,), the component (n,), and the label of its axis.

        Raises:
            ValueError: there is no such component.
        """
        naming = self.section.naming
        if self.points is None or self.lane is None:
            q = self.q[..., component]
            place = naming.coordinate(component, self.q.shape[-1])
            return (
                np.broadcast_to(self.values[:, None, None], q.shape).ravel(),
                q.ravel(),
                naming.axis(f"position {place} at the section", "q", component),
            )
        count = self.points.shape[1]
        if not 0 <= component < count:
            raise ValueError(f"coordinate={component}: of found {count} at a time")
        found = np.repeat(self.values, self.starts)[self.lane], self.points[:, component]
        if self.of == IMPACT_VELOCITY:
            return *found, naming.axis("gap velocity before the impact", "gap velocity")
        if self.of in OF_COORDINATE:
            return *found, naming.axis(f"{self.of} of {naming.coordinate(component, count)}", "q", component)
        return *found, self.of if count == 1 else f"{self.of}[{component}]"

    def _in_shape(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(self.values), self.starts, *x.shape[1:])


@dataclass(frozen=True, repr=False)
class ParameterMap(Drawable):
    """Result of `two_parameter_map`: period and impacts of the motions over a grid of two parameters.

    Attributes:
        parameters: names of the parameters along x and y.
        x, y: their values (nx,), (ny,).
        period: as `period_of` finds it (ny, nx): 0 for none, -1 where the motion failed, -2 where it has not settled.
        impacts: mean number of impacts in a forcing period (ny, nx), inf where they accumulate, NaN where the motion
            failed; all NaN in maps from the rows that a study saved.
        status: `Status` bits (ny, nx).
    """

    parameters: tuple[str, str]
    x: np.ndarray
    y: np.ndarray
    period: np.ndarray
    impacts: np.ndarray
    status: np.ndarray

    def _arrays(self) -> Arrays:
        return self._along("x", "x") | self._along("y", "y") | self._along("y x", "period", "impacts", "status")

    def _columns(self) -> dict[str, np.ndarray]:
        y, x = np.meshgrid(self.y, self.x, indexing="ij")
        one, other = self.parameters
        grid = {one: x, other: y, "period": self.period, "impacts": self.impacts, "status": self.status}
        return {name: value.ravel() for name, value in grid.items()}


def _of_study(
    study: StudyLike,
    *,
    parameter: Any,
    sweep: str | None = None,
    surface: Surface | None = None,
    direction: int = 0,
    of: Of | None = None,
    **options: Any,
) -> Bifurcation:
    if of is not None:
        raise ValueError("of looks at whole motions, which a study does not keep: give problem, q0, v0 and values")
    values, starts, found = diagram_lanes(study, parameter, sweep, surface, direction, options)
    return Bifurcation(parameter, values, starts, None, found)


@of_a_study(_of_study)
@with_names
@with_options(MotionOptions)
def bifurcation(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    parameter: Parameter,
    values: ArrayLike,
    period: TimeLike,
    steps: int | None = None,
    cycles: int,
    skip: int = 0,
    sweep: str | None = None,
    of: str | Of | None = None,
    surface: Surface | None = None,
    direction: int = 0,
    phase: float = 0.0,
    progress: bool | None = None,
    **options: Unpack[MotionOptions],
) -> Bifurcation:
    """Computes the section of a system for every value of one parameter: the stroboscopic one of a forced system, or
    one through a ``surface``.

    Args:
        problem, args, e, scheme, projection, phase, steps, cycles, skip, progress: as in `stroboscopic`; args without
            lane axes. A `Study` may stand in place of problem, starts, values and methods; ``parameter`` is then one of
            the quantities that it varies. Its motions are computed again only if ``steps`` or ``scheme=EventDriven()``
            is given. Otherwise the states are taken from the rows that the study saved, which must include every t =
            (phase + k) period of the last ``cycles`` periods (or of all periods after ``skip``).
        q0, v0: one start (d,), or several (S, d).
        parameter: a key of args, a sequence of keys into nested args, or "e", the restitution, "friction" or
            "static_friction". If args has a key of such a name, write "args.e" for the key, and "problem.restitution",
            "problem.friction" or "problem.static_friction".
        values: values of the parameter (P,).
        period: forcing period [s], a number or a function of args; with a surface an estimate of
            the time between two passages.
        surface, direction: as in `poincare_section`; by default states are taken once a forcing period.
        sweep: None: all values from the same starts, in one batch. "up" or "down": values in increasing or decreasing
            order, each started from the final state at the value before, at the same phase of the forcing. This follows
            an attractor into the range where others coexist with it, but the values are computed one after the other.
            The force must then depend on t through t/period only (with a surface not at all), and the scheme must be
            `EventDriven`, `EventCorrected` or `MoreauJean`, whose next step depends on the state (q, v) only.
        of: quantity to show in place of the states: "impact velocity", the gap velocity before every impact of the last
            ``cycles`` periods; "rms" or "peak to peak" of every position over the rows of these periods; or a function
            ``of(motion, args)`` that returns numbers (), (n,) with any n, or (n, k), where ``motion`` is one motion
            over these periods, a `Solution` with a row at every step, and ``args`` are its parameters. With
            `EventDriven` there are 100 rows in a period. Failed motions have no points. Not with a surface.

    Returns:
        A `Bifurcation`, in the order of ``values``; its ``plot(path)`` draws the diagram.

    Raises:
        ValueError, TypeError, KeyError: as `stroboscopic`; no such parameter, or one with two meanings, no such sweep;
            what ``of`` returns is not finite.
    """
    check_of(of, surface)
    options, steps = choose_scheme(problem, options, steps, SECTION, 1 if surface is None and of is None else ROWS)
    values = sweep_values("values", values)
    if sweep not in SWEEPS:
        raise ValueError(f"sweep={sweep!r}: choose None, 'up' or 'down'")
    check_direction(direction)
    path = parameter_path(parameter, options["args"])
    name = parameter_name(path)
    q0, v0 = (real(name, value) for name, value in {"q0": q0, "v0": v0}.items())
    if not {q0.ndim, v0.ndim} <= {1, 2}:
        raise ValueError(f"q0 and v0 must have shape (d,) or (S, d), got {q0.shape} and {v0.shape}")
    sizes = {len(x) for x in (q0, v0) if x.ndim == 2}
    if len(sizes) > 1:
        raise ValueError(f"q0 and v0 must hold the same number of starts S, got shapes {q0.shape} and {v0.shape}")
    starts = max((len(x) for x in (q0, v0) if x.ndim == 2), default=1)
    q0, v0 = (np.broadcast_to(x, (starts, x.shape[-1])) for x in (q0, v0))
    check_counts(cycles=cycles, skip=skip)
    check_steps(steps, skip + cycles, "skip + cycles")
    points = DiagramPoints(of, steps, cycles, skip, progress)
    if sweep is None:
        swept = _swept(options, {path: np.repeat(values, starts)})
        q0, v0 = (np.tile(x, (len(values), 1)) for x in (q0, v0))
        found = points.add_points(gather(Call(problem, q0, v0, **swept), period,
            phase))[0] if of is not None else section(
            surface, direction, problem, q0, v0, period=period, steps=steps, cycles=cycles, skip=skip, phase=phase,
            progress=progress, **swept
        )  # fmt: skip
    else:
        order = np.argsort(values if sweep == "up" else -values, kind="stable")
        runs = (
            points.add_points
            if of is not None
            else partial(_section_at_value, surface, direction, (steps, cycles, skip), progress)
        )
        calls = [Call(problem, q0, v0, **_swept(options, {path: values[i]})) for i in order]
        swept_in_turn = _continuation_sections(calls, period, phase, runs, surface is None)
        found = Section.joined([swept_in_turn[k] for k in np.argsort(order)])
        points.in_order(order, starts)
    if of is None:
        return Bifurcation(name, values, starts, sweep, found)
    return Bifurcation(name, values, starts, sweep, found, points.name, points.joined(), points.lanes())


def _continuation_sections(
    calls: Iterable[Call],
    period: TimeLike,
    phase: float,
    runs: Callable[[ForcedMotions], tuple[Section, np.ndarray, np.ndarray]],
    repeats: bool,
) -> list[Section]:
    """Sections at all values of the parameter, one ``call`` for each, started from the final states of the one before.

    ``runs``: function from motions to their section and their final states q, v (B, d); ``repeats``: whether the period
    is that of the forcing, not a guess.
    """
    found, end = [], None
    for call in calls:
        motions = gather(call, period, phase)
        check_restarts(motions.scheme)
        if repeats:
            check_forcing(call.problem, motions.over_one_period())
        section, *end = runs(motions if end is None else motions.restart(*end))
        found.append(section)
    return found


def _section_at_value(
    surface: Surface | None,
    direction: int,
    counts: tuple[int, int, int],
    progress: bool | None,
    motions: ForcedMotions,
) -> tuple[Section, np.ndarray, np.ndarray]:
    """Computes the section of ``motions`` at one value of the parameter; also returns their final states q, v (B, d),
    NaN for failed lanes."""
    if surface is not None:
        found = passages(motions, surface, direction, counts, progress)
        return found, found.q[:, -1], found.v[:, -1]
    steps, cycles, skip = counts
    solution = motions.run(skip + cycles, steps, Save(every=steps, function=state), progress)
    t = motions.strobes(np.arange(skip + 1, skip + cycles + 1))
    q, v = (x[:, -cycles:] for x in solution.values)
    status, failed_at = np.asarray(solution.status), np.asarray(solution.failed_at)
    found = Section(t, q, v, motions.period, status, failed_at, motions.problem.naming)
    return found, np.where(found.failed[:, None], np.nan, q[:, -1]), v[:, -1]


def _map_of_study(study: StudyLike, *, tolerance: float | None = None, **options: Any) -> ParameterMap:
    stated = map_arguments(study)
    if computes_anew(options):
        return two_parameter_map(**(stated | options), tolerance=tolerance)
    x, y = stated["values"]
    found = saved_section(study, **options)
    grid = lambda lanes: lanes.reshape(len(x), len(y)).T  # the last dimension of a design is the fastest
    period, status = grid(period_of(found, tolerance=tolerance)), grid(found.status)
    first, second = (parameter_name(parameter_path(name, None)) for name in stated["parameters"])
    return ParameterMap((first, second), x, y, period, np.full(period.shape, np.nan), status)


@of_a_study(_map_of_study)
@with_options(MotionOptions)
def two_parameter_map(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    parameters: tuple[Parameter, Parameter],
    values: tuple[ArrayLike, ArrayLike],
    period: TimeLike,
    steps: int | None = None,
    cycles: int,
    skip: int = 0,
    phase: float = 0.0,
    tolerance: float | None = None,
    progress: bool | None = None,
    **options: Unpack[MotionOptions],
) -> ParameterMap:
    """Computes the period of the motion and its impacts per forcing period over a grid of two parameters, in one batch.

    Args:
        problem, q0, v0: the problem and the start (d,) of every motion. A `Study` over a grid of two parameters may
            stand in place of these, parameters, values, args, e and methods. Motions are then computed only if
            ``steps`` or ``scheme=EventDriven()`` is given; otherwise states are taken from the rows that the study
            saved, as in `bifurcation`, and the numbers of impacts are NaN.
        parameters: the parameters along x and y, each as in `bifurcation`.
        values: values of the two, (nx,) and (ny,).
        cycles: number of periods kept; motions that repeat after up to half as many periods are recognised as periodic.
        tolerance: as in `period_of`.
        steps, scheme: `EventDriven` with a tolerance of 1e-7 by default, whose impacts are found from 60 rows of a
            period; `EventCorrected()` with ``steps`` in a period, which takes half of the time with 100 of them.
            Impacts that follow each other within two rows count as one; more rows in a row, as lasting contact.
        others: as in `impact_section`.

    Returns:
        A `ParameterMap`.

    Raises:
        ValueError, TypeError, KeyError: as `impact_section` and `bifurcation`.
    """
    check_no_noise(problem, REPEATS)
    options, steps = choose_scheme(problem, options, steps, PICTURE, FEW_ROWS)
    for name, pair in {"values": values, "parameters": parameters}.items():
        if not is_pair(pair):
            raise ValueError(f"{name} must be two, along x and y, got {pair!r}")
    if tolerance is not None:
        distance("tolerance", tolerance)
    x, y = (sweep_values(f"values[{i}]", values[i]) for i in range(2))
    first, second = (parameter_path(name, options["args"]) for name in parameters)
    if first == second:
        raise ValueError(f"parameters must differ, got {parameters!r}")
    across, up = (grid.ravel() for grid in np.meshgrid(x, y))
    swept = _swept(options, {first: across, second: up})
    found = impact_section(
        problem, q0, v0, period=period, steps=steps, cycles=cycles, skip=skip, phase=phase,
        progress=progress, **swept,
    )  # fmt: skip
    shape = (len(y), len(x))
    return ParameterMap(
        (parameter_name(first), parameter_name(second)),
        x,
        y,
        period_of(found.section, tolerance=tolerance).reshape(shape),
        found.per_period.reshape(shape),
        found.section.status.reshape(shape),
    )


def _swept(options: MotionOptions, values: dict[tuple, np.ndarray]) -> LaneOptions:
    """Returns the options with some parameters replaced; ``values``: by path (`parameter_path`),
    one value or one per lane."""
    args = options["args"]
    of_contacts: Any = {}
    leaves = named_leaves(args)
    axes: dict[tuple[str, ...], int | None] = dict.fromkeys(leaves)
    for (root, *keys), value in values.items():
        path, name = tuple(keys), ".".join(keys)
        if root in OF_CONTACTS:
            # a number for each lane, however many contacts there are
            of_contacts[root] = value[:, None] if np.ndim(value) else value
        elif path in leaves:
            if np.ndim(leaves[path]) != 0:
                raise ValueError(f"parameter {name} must be one number of args, got {leaves[path]!r}")
            leaves[path], axes[path] = value, 0 if np.ndim(value) else None
        elif path and any(one[: len(path)] == path for one in leaves):
            raise ValueError(f"parameter {name} must be one number of args, and it has parts")
        else:
            raise KeyError(
                f"parameter {name}: args has no such number, but {['.'.join(one) for one in leaves]}; or use "
                f"{', '.join(map(repr, OF_CONTACTS))}"
            )
    args, axes = with_leaves(args, leaves.values()), with_leaves(args, axes.values())
    return {**options, "args": args, "args_axes": axes, **of_contacts}
