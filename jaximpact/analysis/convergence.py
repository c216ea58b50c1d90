"""Errors and observed orders as h -> 0, in the norms in which the schemes converge.

Positions converge uniformly, velocities in L1 (never uniformly: impacts are late by O(h)), impulses weakly as
measures; hence sup norm, L1 norm and total impulse (Paoli 2010, theorem 2; Bernicot-Lefebvre-Lepot 2010, theorem 3.1).
The completed graphs of the velocities, jumps filled in, converge in the Hausdorff distance: `graph_distance`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, is_whole, real, real_number
from ..jaxtools.warnings import JaximpactWarning
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.schemes import EventDriven
from ..mechanics.status import FAILURES, Status
from ..results import Arrays, Drawable, Solution, with_names
from ..results.interpolation import curve, interpolant
from ..results.save import Save
from ..simulation.arguments import check_start, choose_methods
from ..simulation.backends import one_lane, single_backend
from ..simulation.call import Call, canonical, program_of
from ..simulation.program import Program
from ..simulation.trajectory import trajectory
from .checks import StudyLike, check_no_noise, of_a_study
from .from_study import motion_arguments
from .graph_distance import acceleration_scale, distance_between_curves, sampled_rows, scaled_curve
from .options import MotionOptions, with_options
from .tolerance_sweep import check_scheme, errors_by_tolerance, exact_motion

SUBSAMPLES = 4  # midpoints per step at which velocities are compared
MEASURES = ("position", "velocity", "impulse")
COLUMNS = {"position": "position", "velocity": "velocity L1", "impulse": "impulse", "graph": "graph [s]"}
EXACT = "the exact motion"
TELL = 2  # times the reference's own error: errors above are significant
FINE = (2, 4)  # multiples of the most steps in the two runs that locate a reference's impacts


@dataclass(frozen=True, repr=False)
class Convergence(Drawable):
    """Result of `convergence`: errors for k step counts or tolerances;
    with ``phases`` > 1 the worst error of each band of counts.

    Attributes:
        steps: numbers of steps (k,); over tolerances, of the substeps that were tried.
        h: step sizes (k,) [s], their mean over tolerances.
        position: sup-norm error of the positions over the nodes (k,).
        velocity: L1 error of the velocities over time, summed over components (k,). Taken from the chords between
            positions, so that its order is one at best, even if the velocities at the rows (`Solution.v`) are more
            accurate; over tolerances of the velocities at the rows.
        impulse: largest error of a constraint's total impulse (k,); NaN where no reference is known.
        penetration, residual: worst penetration and KKT residual of each run (k,).
        reference: the motion that errors are measured against, in words.
        floor: estimated error of the reference by name ("position", "velocity", "impulse"), or the round-off of the
            runs if larger. Errors below twice that are not significant, and no order is taken from them.
        naming: names and units of the problem.
        graph: `graph_distance` between the velocities and those of the reference (k,) [s]; None unless asked for.
        rtols: tolerances (k,), the largest first, in a sweep over tolerances; else None.
        estimate: `Solution.error` of each run (k,), estimated by itself in units of the tolerance; None without any.
    """

    steps: np.ndarray
    h: np.ndarray
    position: np.ndarray
    velocity: np.ndarray
    impulse: np.ndarray
    penetration: np.ndarray
    residual: np.ndarray
    reference: str
    floor: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(MEASURES, 0.0))
    naming: Labels = UNNAMED
    graph: np.ndarray | None = None
    rtols: np.ndarray | None = None
    estimate: np.ndarray | None = None

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the errors: "position", "velocity", "impulse", and "graph" if it was asked for."""
        return MEASURES if self.graph is None else (*MEASURES, "graph")

    def _arrays(self) -> Arrays:
        return self._along("steps", *self._names_of_columns())

    def _columns(self) -> dict[str, np.ndarray]:
        return self._table(*self._names_of_columns())

    def _names_of_columns(self) -> tuple[str, ...]:
        of_tolerance = [name for name in ("rtols", "estimate") if getattr(self, name) is not None]
        return (*of_tolerance, "steps", "h", *self.measures, "penetration", "residual")

    def _facts(self) -> list[tuple[str, str]]:
        found = [fact for fact in super()._facts() if fact[0] != "floor"]
        if self._is_traced():
            return found
        return [*found, ("orders", ", ".join(f"{name} {order:.2f}" for name, order in self.orders().items()))]

    def known(self, name: str) -> np.ndarray:
        """Mask (k,) of the errors ``name``, one of `measures`, that are significant:
        more than twice the error of the reference itself."""
        return getattr(self, name) > TELL * self.floor[name]

    def orders(self) -> dict[str, float]:
        """Observed orders: least-squares slopes of log error over log h, or over log rtol, where 1 is an error in
        proportion to the tolerance; NaN where fewer than two errors are known and positive."""
        over = self.h if self.rtols is None else self.rtols
        return {name: slope(over, np.where(self.known(name), getattr(self, name), np.nan)) for name in self.measures}

    def table(self, *, latex: bool = False) -> str:
        """The errors as text, one line for each step count or tolerance, with the observed orders below.

        Args:
            latex: whether to return a ``tabular`` of LaTeX, which needs no package; comments below it say what the
                errors are measured against.
        """
        if latex:
            return self._latex()
        columns = [name if name == "penetration" else COLUMNS[name] for name in (*self.measures, "penetration")]
        swept = "h" if self.rtols is None else "rtol"
        head = [f"{'steps':>8} {swept:>10}", *(f"{name:>11}" for name in columns)]
        if self.rtols is not None:
            head += [f"{'error/rtol':>11}", *([] if self.estimate is None else [f"{'estimate':>11}"])]
        lines = [" ".join(head)]
        for i, (steps, h) in enumerate(zip(self.steps, self.h if self.rtols is None else self.rtols, strict=True)):
            row = f"{steps:8d} {h:10.3e}"
            for name in self.measures:
                error, floor = getattr(self, name)[i], TELL * self.floor[name]
                row += f" {'< ' + format(floor, '.1e'):>11}" if error <= floor and floor > 0 else f" {error:11.3e}"
            row += f" {self.penetration[i]:11.3e}"
            if self.rtols is not None:
                row += f" {self.position[i] / h:11.2g}"
                row += "" if self.estimate is None else f" {self.estimate[i]:11.2g}"
            lines.append(row)
        lines.append(" ".join([f"{'order':>8} {'':>10}", *(f"{order:11.2f}" for order in self.orders().values())]))
        return "\n".join([*lines, *self._remarks()])

    def _latex(self) -> str:
        """The table as a ``tabular`` of LaTeX."""
        names = {"position": "position", "velocity": "velocity, $L^1$", "impulse": "impulse", "graph": "graph [s]"}
        line = lambda cells: " & ".join(cells) + r" \\"
        lines = [rf"\begin{{tabular}}{{{'r' * (3 + len(self.measures))}}}", r"\hline"]
        swept = "$h$ [s]" if self.rtols is None else "rtol"
        lines += [line(["steps", swept, *(names[name] for name in self.measures), "penetration"]), r"\hline"]
        for i, steps in enumerate(self.steps):
            row = [str(steps), _power_of_ten(self.h[i] if self.rtols is None else self.rtols[i])]
            for name in self.measures:
                error, floor = getattr(self, name)[i], TELL * self.floor[name]
                row.append(_power_of_ten(floor, "< ") if error <= floor and floor > 0 else _power_of_ten(error))
            lines.append(line([*row, _power_of_ten(self.penetration[i])]))
        orders = [f"{order:.2f}" if np.isfinite(order) else "--" for order in self.orders().values()]
        lines += [r"\hline", line(["order", "", *orders, ""]), r"\hline", r"\end{tabular}"]
        return "\n".join([*lines, *(f"% {remark}" for remark in self._remarks())])

    def _remarks(self) -> list[str]:
        """Lines of text: what the errors are measured against, and above which size they are significant."""
        own = ", ".join(f"{name} {self.floor[name]:.1e}" for name in self.measures)
        below = any(np.any(getattr(self, name) <= TELL * self.floor[name]) for name in self.measures)
        lines = [f"against {self.reference}"]
        if self.reference == EXACT and below:
            lines.append(f"at round-off: errors below twice {own} are shown as <")
        elif self.reference != EXACT:
            lines.append(f"whose own error is about: {own}; smaller ones than twice that are shown as <")
        return lines


def _power_of_ten(x: float, before: str = "") -> str:
    """A number x in LaTeX, with two decimals and a power of ten, after the text ``before``; -- if it is not finite."""
    if not np.isfinite(x):
        return "--"
    digits, power = f"{x:.2e}".split("e")
    return f"${before}0$" if x == 0 else rf"${before}{digits} \times 10^{{{int(power)}}}$"


def slope(h: np.ndarray, error: np.ndarray) -> float:
    """Least-squares slope of log(error) over log(h)."""
    known = np.isfinite(error) & (error > 0)
    if known.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(h[known]), np.log(error[known]), 1)[0])


def prime_steps(first: int = 100, last: int = 5000, count: int = 6) -> list[int]:
    """Step counts: primes just above a geometric sequence from first to last.

    With a prime number of steps impact times do not fall on nodes, where errors would be misleadingly small.
    """
    check_counts(count=count)
    if not 1 <= real_number("first", first) <= real_number("last", last):
        raise ValueError(f"first and last must be numbers with 1 <= first <= last, got {first!r} and {last!r}")
    found: list[int] = []
    for n in np.geomspace(first, last, count):
        found += next_primes(max(int(n), found[-1] + 1 if found else 2), 1)
    return found


def next_primes(n: int, count: int) -> list[int]:
    """The first ``count`` primes from n on."""
    found: list[int] = []
    while len(found) < count:
        if n > 1 and all(n % k for k in range(2, int(n**0.5) + 1)):
            found.append(n)
        n += 1
    return found


def _of_study(study: StudyLike, *, lane: int | None = None, **options: Any) -> Convergence:
    if lane is None:
        raise TypeError("convergence looks at one motion: say which lane of the study, lane=0")
    return convergence(**(motion_arguments(study, study.number(lane)) | options))


@of_a_study(_of_study)
@with_names
@with_options(MotionOptions)
def convergence(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: float,
    steps: Sequence[int] | int | None = None,
    rtols: ArrayLike | None = None,
    phases: int = 1,
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
    impulse: ArrayLike | None = None,
    graph: bool = False,
    t0: float = 0.0,
    **options: Unpack[MotionOptions],
) -> Convergence:
    """Computes one motion with several step sizes, or several tolerances, and measures its errors and orders.

    Args:
        problem, q0, v0, t0, t1, scheme, projection, args, e: as in `solve`.
        steps: numbers of steps, increasing; h = (t1 - t0)/steps. Default `prime_steps()`. With a scheme that chooses
            its own, `EventDriven`, one number: of the rows at which errors are taken, 13 by default.
        rtols: with `EventDriven` (the default scheme then), tolerances in place of steps, default 1e-3, 1e-4, ...
            1e-12, as far as the precision goes; atol keeps the ratio to rtol that the scheme's own have.
        phases: with phases > 1 every step count is replaced by a band of that many consecutive primes, whose worst
            error is reported. An error depends on where within its step each impact falls,
            so that orders then scatter much less.
        exact: ``exact(t) -> (q, v)`` for t of shape (k,), each (k, d): a closed form or any trusted reference. Without
            it the reference is a run of `EventDriven` with four times as many rows as the most steps. If `EventDriven`
            cannot serve, because of simultaneous impacts or because the scheme converges to another motion, the
            reference is the scheme's run with the most steps, which is then left out of the errors. The error of the
            reference is estimated, and errors below twice that estimate are marked. Over tolerances the reference is
            the scheme with a hundredth of the smallest rtol.
        impulse: exact total impulse of each constraint over [t0, t1], (m,).
        graph: whether to compute also the `graph_distance` between the velocities and those of the reference, which
            takes longer than the motions. Its ``scale`` is the range of the reference's velocity divided by t1 - t0.

    Returns:
        A `Convergence`, whose ``table()`` and ``plot(path)`` show it.

    Raises:
        ValueError, TypeError: as `solve`. RuntimeError: a run failed; the message decodes its status.
    """
    check_no_noise(
        problem,
        "random numbers belong to steps, so that runs with others are other paths: compare means over many keys",
    )
    if impulse is not None and exact is None:
        raise ValueError("impulse goes with exact: without an exact motion the finest run is the reference of both")
    check_counts(phases=phases)
    if exact is not None and not callable(exact):
        raise TypeError(f"exact must be a function t -> (q, v), got {type(exact).__name__}")
    impulse = None if impulse is None else real("impulse", impulse)
    given = EventDriven() if options["scheme"] is None and rtols is not None else options["scheme"]
    scheme, projection = choose_methods(given, options["projection"], problem)
    call = Call(problem, q0, v0, t1, t0=t0, save=Save(every=1), **options | {"projection": projection})
    run = partial(sweep, call)
    if scheme.traits.by_tolerance or rtols is not None:
        check_scheme(scheme, steps, phases, graph)
        known = errors_by_tolerance(run, scheme, rtols, steps, exact, impulse)
        return Convergence(**known | {"reference": known["reference"] or EXACT})
    counts = _step_counts(steps)
    bands = [next_primes(n, phases) if phases > 1 else [n] for n in counts]
    return _errors_by_steps(run, bands, scheme, exact, impulse, (float(t0), float(t1)), graph)


def _step_counts(steps: Sequence[int] | int | None) -> list[int]:
    """The numbers of steps to compute with, checked."""
    counts = prime_steps() if steps is None else list(steps) if np.iterable(steps) else [steps]
    if len(counts) < 2 or not all(is_whole(n, 1) for n in counts) or sorted(set(counts)) != counts:
        raise ValueError(f"steps must be at least two increasing whole numbers >= 1, got {list(counts)}")
    check_counts(**{"steps (the most of them)": counts[-1]})
    return counts


def _errors_by_steps(
    run: Callable,
    bands: list[list[int]],
    scheme: Scheme,
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None,
    impulse: ArrayLike | None,
    span: tuple[float, float],
    graph: bool,
) -> Convergence:
    """Errors over bands of step counts in the time ``span`` from t0 to t1; other arguments as in `convergence`,
    or as `sweep` yields."""
    (t0, t1), most = span, bands[-1][-1]
    runs: Iterator[Solution] = run([n for band in bands for n in band], scheme=scheme)
    reference, floor = EXACT, dict.fromkeys(MEASURES, 0.0)
    if exact is None:
        kept = [one.raise_if_failed() for one in runs]
        # its own limit: the finest run, whose error the last of the band before tells
        words = f"the run with {len(kept[-1].t) - 1} steps of the same scheme, affine across impacts"
        own = Reference(kept[-1 - len(bands[-1])], kept[-1], words)
        known = _locate_impacts(run, most, kept, own)
        if known is own:
            kept = kept[: -len(bands.pop())]
        runs = iter(kept)
        exact, impulse, reference, floor = known.motion, known.impulse, known.words, known.floor
        floor = {**floor, "graph": known.graph_floor()} if graph else floor
    scale = None
    if graph:
        t = np.linspace(t0, t1, SUBSAMPLES * most + 1)
        scale = acceleration_scale(t, np.asarray(exact(t)[1], np.float64))
    rows = []
    for band in bands:
        errors = []
        for n in band:
            solution = next(runs).raise_if_failed()
            found, noise = _errors(solution, exact, impulse, scale), _roundoff_errors(solution, n, scale)
            floor = {name: max(floor.get(name, 0.0), noise[name]) for name in noise}
            errors.append([*found, float(solution.penetration), float(solution.residual)])
        rows.append(np.max(errors, axis=0))
    h = np.array([(t1 - t0) / np.mean(band) for band in bands])
    position, velocity, total, apart, penetration, residual = np.array(rows).T
    first = np.array([band[0] for band in bands])
    graphs = apart if graph else None
    return Convergence(first, h, position, velocity, total, penetration, residual, reference, floor, graph=graphs)


class Reference:
    """A reference motion, from two runs of different step size; their difference estimates its error.

    Attributes:
        motion: t -> (q, v), as ``exact`` of `convergence`.
        impulse: total impulses (m,).
        floor: estimated error by name, as in `Convergence`.
        words: description of the reference.
    """

    def __init__(self, coarse: Solution, fine: Solution, words: str) -> None:
        self.motion, self.impulse, self.words = interpolant(fine), np.asarray(fine.impulse)[-1], words
        other, t = interpolant(coarse), np.asarray(fine.t, np.float64)
        width = np.diff(t)
        apart = [
            np.abs(x - y) for x, y in zip(self.motion(t[:-1] + 0.5 * width), other(t[:-1] + 0.5 * width), strict=True)
        ]
        at_nodes = np.max(np.abs(self.motion(t)[0] - other(t)[0]))
        noise = np.finfo(fine.q.dtype).eps * float(np.max(np.abs(fine.q)))
        total = np.max(np.abs(self.impulse - np.asarray(coarse.impulse)[-1]), initial=0.0)
        self.floor = {
            "position": float(max(np.max(apart[0]), at_nodes, noise)),
            "velocity": float(max(np.sum(apart[1] * width[:, None]), noise)),
            "impulse": float(max(total, noise)),
        }
        self._runs = ((self.motion, t), (other, np.asarray(coarse.t, np.float64)))

    def graph_floor(self) -> float:
        """Estimated error of the reference as a `graph_distance` of velocities [s]:
        the distance between its two runs."""
        one, two = (sampled_rows(*run) for run in self._runs)
        return distance_between_curves(*(scaled_curve(*rows, acceleration_scale(*one)) for rows in (one, two)))


def _locate_impacts(run: Callable, most: int, runs: Sequence[Solution], own: Reference) -> Reference:
    """Returns the reference by `EventDriven`, which locates impacts, with more rows than any run;
    or ``own`` if that motion cannot serve.

    It cannot serve if it fails, if impacts are simultaneous, or if its estimated error is larger than that of ``own``.
    Nor can it if the scheme converges to another motion, as at obtuse corners: then the scheme's ``runs`` approach each
    other, but not the motion of `EventDriven`. ``run(counts, scheme=...)``: computes the motion with given step counts;
    ``most``: the largest step count.
    """
    counts = [next_primes(factor * most, 1)[0] for factor in FINE]
    try:
        coarse, fine = run(counts, scheme=EventDriven(1e-12, 1e-12), remarks=False)
    except ValueError:
        return own  # a problem that it does not cover
    if any(int(one.status) & int(FAILURES | Status.DERIVATIVE_EVENTS) for one in (coarse, fine)):
        return own
    found = Reference(coarse, fine, f"EventDriven with {counts[-1]} rows, cubic between them")
    apart = lambda one, motion: float(np.max(np.abs(np.asarray(one.q, np.float64) - motion(np.asarray(one.t))[0])))
    first, last, among = apart(runs[0], found.motion), apart(runs[-1], found.motion), apart(runs[0], own.motion)
    # an error that falls like h^(1/2) at least leaves that part of the first one; and the runs differ by the rest
    share = (len(runs[0].t) / len(runs[-1].t)) ** 0.5
    elsewhere = last > max(0.3, share) * first and among < 0.5 * (1 / share - 1) * last
    significant = last > TELL * found.floor["position"]
    return own if (significant and elsewhere) or found.floor["position"] > TELL * own.floor["position"] else found


def sweep(call: Call, counts: Sequence[int], *, scheme: Scheme, remarks: bool = True) -> Iterator[Solution]:
    """Yields the motion with every step saved, for each number of steps in ``counts``; one trace serves all.

    ``remarks``: whether to warn if the start velocity has to be projected, and the like.
    """
    for n in counts:
        known, lanes = canonical(call.replace(steps=n, scheme=scheme))
        remark = check_start(known.problem, lanes)[1] if remarks and n == counts[0] else None
        if remark:
            warnings.warn(remark, JaximpactWarning, stacklevel=3)
        program = program_of(known, lanes, known.problem)
        through_xla = partial(_run_with_rows, program.replace(rows=max(counts)))
        yield single_backend(trajectory, program, "auto", through_xla)(lanes.motion)


def _roundoff_errors(solution: Solution, n: int, scale: np.ndarray | None) -> dict[str, float]:
    """Round-off error by name in a run of n steps; a velocity is the difference of two rounded positions over h."""
    eps = float(np.finfo(np.asarray(solution.q).dtype).eps)
    position, impulse = (eps * float(np.max(np.abs(x), initial=0.0)) for x in (solution.q, solution.impulse))
    found = {"position": position, "velocity": n * position / 2, "impulse": impulse}
    if scale is not None:
        h = (float(solution.t[-1]) - float(solution.t[0])) / n
        found["graph"] = position / h / float(np.min(scale))
    return found


def _run_with_rows(program: Program, motion: Motion) -> Solution:
    """Runs one motion through XLA with a program that has rows for as many steps as the longest run, so that all runs
    share one compilation."""
    found, n, rows = one_lane(program, motion, task=trajectory), int(motion.steps), {}
    for name in ("t", "q", "v", "z", "impulse", "energy"):
        value = getattr(found, name)
        # rows beyond this run's steps are unused; the last row is always the final state
        rows[name] = None if value is None else np.concatenate([np.asarray(value)[:n], np.asarray(value)[-1:]])
    return Solution(**{**vars(found), **rows})


def _errors(
    solution: Solution,
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    impulse: ArrayLike | None,
    scale: np.ndarray | None,
) -> tuple[float, float, float, float]:
    """Errors of a solution in position, velocity, impulse, and in the graph of velocities,
    as `Convergence` defines them.

    ``exact`` and ``impulse``: as in `convergence`; ``scale``: that of `graph_distance`;
    if it is None the last error is NaN.
    """
    t, q = np.asarray(solution.t, np.float64), np.asarray(solution.q, np.float64)
    position = float(np.max(np.abs(q - exact_motion(exact, t, q.shape)[0])))
    width = np.diff(t)
    chord = np.diff(q, axis=0) / width[:, None]
    velocity = 0.0
    for j in range(SUBSAMPLES):
        _, v = exact(t[:-1] + (j + 0.5) / SUBSAMPLES * width)
        velocity += float(np.sum(np.abs(chord - v) * width[:, None])) / SUBSAMPLES
    total = float("nan")
    if impulse is not None and np.size(impulse):
        if np.shape(impulse) != np.shape(solution.impulse)[1:]:
            raise ValueError(f"impulse must have shape {np.shape(solution.impulse)[1:]}, got {np.shape(impulse)}")
        total = float(np.max(np.abs(np.asarray(solution.impulse)[-1] - np.asarray(impulse))))
    apart = float("nan")
    if scale is not None:
        apart = distance_between_curves(*(scaled_curve(*sampled_rows(x, t), scale) for x in (curve(solution), exact)))
    return position, velocity, total, apart
