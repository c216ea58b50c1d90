"""The command `run`: one motion of a problem, or an ensemble from perturbed initial data."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..catalogue import Case, Entry
from ..jaxtools.argument_checks import check_counts, check_memory
from ..mechanics.method_names import projection_from_name, scheme_from_name
from ..mechanics.scheme import Scheme
from ..mechanics.status import DOUBTS, FAILURES, describe
from ..plots import draw
from ..results import Solution
from ..simulation.assemble import assemble
from ..simulation.canonical_arrays import count_steps
from ..simulation.public import ensemble, solve
from . import shared
from .output import Facts, file_list, motion_columns, print_facts, summary_columns, write_arrays, write_csv, write_json

STEP = 1e-3  # [s]
SPREAD, SEED = 0.01, 0
ROWS = 1000  # rows of a motion kept by default
ENSEMBLE_ROWS = 100
ENSEMBLE_NUMBERS = 2 * 10**7  # saved numbers up to which an ensemble keeps rows by default
RUN = f"""\
Compute one motion of a problem, or with --ensemble N many from perturbed initial data, and write numbers and a
picture: motion.npz, motion.csv, motion.png (ensemble.npz, summary.csv, ensemble.png) and run.json.

examples:
  jaximpact run bouncing-ball --case e=4/5 --h 1e-3
  jaximpact run billiard --ensemble 1000 --spread 0.01 --seed 1

{shared.CHOICES}\
  --h                                error and cost are proportional to h and 1/h: start at 1e-3 of the time scale of
                                     the motion, then halve it and compare
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds the parser of `run`."""
    command = commands.add_parser("run", help="compute a motion or an ensemble", **shared.text(RUN))
    shared.add_shared(command)
    command.add_argument(
        "--h",
        type=float,
        help=f"step [s] (default {STEP:g}; event-driven chooses its own, and needs none but for its rows)",
    )
    command.add_argument(
        "--force",
        choices=("explicit", "centred", "mean"),
        help="force of the paoli-schatzman schemes: explicit (default), centred for forces that depend on the "
        "velocity, mean for forces that vary fast in time",
    )
    command.add_argument("--ensemble", type=int, metavar="N", help="N motions from perturbed initial data")
    command.add_argument(
        "--spread",
        type=float,
        metavar="S",
        help="standard deviation of the perturbation, relative to the largest |q0| and |v0| of the case, absolute "
        f"where those vanish (default {SPREAD:g})",
    )
    command.add_argument("--seed", type=int, help=f"of the perturbation (default {SEED})")
    command.add_argument(
        "--save", type=int, metavar="K", help=f"keep every K-th step (default: about {ROWS} rows, {ENSEMBLE_ROWS} for "
                                              "--ensemble)"
    )  # fmt: skip
    command.add_argument("--float32", action="store_true", help="compute in single precision")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    entry = shared.find(options.problem)
    name, case, t1, e, exact, impulse = shared.motion_of(entry, options)
    chosen = shared.scheme_of(entry, options)
    scheme = scheme_from_name(chosen, options.force)
    projection = projection_from_name(options.projection)
    _check_numbers(options)
    dtype: type[np.floating] = np.float32 if options.float32 else np.float64
    q0, v0 = np.asarray(case.q0, dtype), np.asarray(case.v0, dtype)
    h = _step(options, scheme, t1)
    steps = count_steps(0.0, t1, h, float(np.finfo(dtype).eps)) if 0 < h <= t1 < np.inf else 1
    common = {"t1": t1, "h": h, "scheme": scheme, "projection": projection, "args": case.args, "e": e}
    common |= shared.given_friction(options)
    settings = {
        "problem": entry.name,
        "case": name,
        "q0": q0,
        "v0": v0,
        "t1": t1,
        "h": h,
        "steps": steps,
        "e": e,
    }
    settings |= shared.given_friction(options) | {
        "scheme": chosen,
        "force": options.force,
        "projection": options.projection,
    }
    settings |= {"dtype": np.dtype(dtype).name, "backend": jax.default_backend()}
    out = shared.folder(options, entry)
    heading = f"{shared.motion_name(entry, name, e)}: {chosen}" + ("" if chooses_steps(scheme) else f", h = {h:g} s")

    if options.ensemble is None:
        every = options.save or -(-steps // ROWS)
        settings |= {"save": every}
        solution, seconds = _time_runs(lambda: solve(entry.problem, q0, v0, save=every, **common))
        facts = _motion_facts(solution, exact, impulse)
        if exact is None:
            facts["position error"] = f"exact motion not known{shared.why_unknown(case, t1, e)}"
        gaps = jax.vmap(lambda t, q: entry.problem.gaps(t, q, case.args)) if len(q0) > 1 else None
        files = [write_arrays(out / "motion.npz", solution), write_csv(out / "motion.csv", motion_columns(solution))]
        files += shared.picture(lambda: draw(solution, out / "motion.png", title=heading, exact=exact, gaps=gaps))
    else:
        heading += f", {options.ensemble} motions"
        (q0, v0), remarks = _perturbed_starts(entry, case, q0, v0, options)
        every = options.save or -(-steps // ENSEMBLE_ROWS)
        numbers = options.ensemble * (steps // every + 2) * (3 * q0.shape[1] + shared.count_constraints(entry, case))
        save = every if options.save or numbers <= ENSEMBLE_NUMBERS else "final"
        settings |= {"save": save, "ensemble": options.ensemble, "spread": options.spread, "seed": options.seed}
        solution, seconds = _time_runs(lambda: ensemble(entry.problem, q0, v0, save=save, **common))
        facts = _ensemble_facts(solution) | remarks
        files = [write_arrays(out / "ensemble.npz", solution, q0=q0, v0=v0)]
        files += [write_csv(out / "summary.csv", summary_columns(solution, q0, v0))]
        swept = {"initial q [unit of q]": q0[:, 0], "initial v [unit of q / s]": v0[:, 0]}
        if not np.all(solution.failed):
            files += shared.picture(lambda: draw(solution, out / "ensemble.png", title=heading, swept=swept))

    rate = (options.ensemble or 1) * steps / seconds["run"]
    timing = f"{seconds['compile']:.2f} s compiling, {seconds['run']:.3g} s running, {rate:.3g} steps/s"
    # nobody asked for derivatives here
    status = int(np.bitwise_or.reduce(np.ravel(solution.status))) & ~int(DOUBTS)
    facts["status"] = describe(status) or "OK"
    files.append(out / "run.json")
    write_json(files[-1], options.line, {"settings": settings, "results": facts, "seconds": seconds, "files": files})
    print(heading)
    return _tell(solution, facts, {"time": timing, "written": file_list(files)})


def _step(options: argparse.Namespace, scheme: Scheme, t1: float) -> float:
    """The step [s] that the user gave, or a default; for a scheme that chooses its own steps,
    the default is the time between saved rows."""
    if options.h is not None:
        return float(options.h)
    if not chooses_steps(scheme):
        return STEP
    return t1 / (ROWS if options.ensemble is None else ENSEMBLE_ROWS)


def chooses_steps(scheme: Scheme) -> bool:
    """Whether a scheme chooses its own steps; False for what is no scheme, which `solve` refuses later."""
    return isinstance(scheme, Scheme) and scheme.traits.by_tolerance


def _tell(solution: Solution, facts: Facts, more: Facts) -> int:
    """Prints the facts about a solution, and then ``more``; returns the exit status, 1 if a motion failed."""
    failed = np.atleast_1d(np.asarray(solution.status)) & int(FAILURES)
    if np.any(failed):
        # the decoded status goes to stderr
        facts["status"] = ", ".join(line.partition(":")[0] for line in facts["status"].splitlines())
    print_facts(facts | more)
    if np.any(failed):
        print(f"jaximpact: {solution._failures()}", file=sys.stderr)
        return 1
    return 0


def _check_numbers(options: argparse.Namespace) -> None:
    if options.save is not None and options.save < 1:
        raise shared.UsageError(f"--save {options.save}: keep every K-th step, K >= 1")
    if options.ensemble is None:
        for name in ("spread", "seed"):
            if getattr(options, name) is not None:
                raise shared.UsageError(f"--{name} belongs to --ensemble N: one motion starts where its case does")
    options.spread = SPREAD if options.spread is None else options.spread
    options.seed = SEED if options.seed is None else options.seed
    if options.ensemble is not None:
        if options.ensemble < 1:
            raise shared.UsageError(f"--ensemble {options.ensemble}: at least one motion is needed")
        check_counts(**{"--ensemble": options.ensemble})
    if not 0 <= options.spread < np.inf:
        raise shared.UsageError(f"--spread {options.spread:g}: a standard deviation must be finite and not negative")
    if options.seed < 0:
        raise shared.UsageError(f"--seed {options.seed}: must not be negative")


def _motion_facts(solution: Solution, exact: Callable | None, impulse: np.ndarray | None) -> Facts:
    t, q, v = (np.asarray(x, np.float64) for x in (solution.t, solution.q, solution.v))
    facts: Facts = {"final time": t[-1], "final position": q[-1], "final velocity": v[-1]}
    if exact is not None:
        facts["position error"] = float(np.max(np.abs(q - exact(t)[0])))
    if impulse is not None:
        facts["impulse error"] = float(np.max(np.abs(np.asarray(solution.impulse)[-1] - impulse), initial=0.0))
    facts |= {"worst penetration": float(solution.penetration), "KKT residual": float(solution.residual)}
    if solution.energy is not None:
        energy = np.asarray(solution.energy, np.float64)
        facts |= {"initial energy": energy[0], "final energy": energy[-1], "energy change": energy[-1] - energy[0]}
    return facts


def _ensemble_facts(solution: Solution) -> Facts:
    good = ~np.asarray(solution.failed)
    facts: Facts = {"motions": good.size, "failed": int(np.sum(~good))}
    if good.any():
        final = np.asarray(solution.q, np.float64)[good, -1]
        for level in (0.05, 0.5, 0.95):
            facts[f"final position, {level:.0%} quantile"] = np.quantile(final, level, axis=0)
        facts["worst penetration"] = float(np.max(solution.penetration[good]))
        facts["KKT residual"] = float(np.max(solution.residual[good]))
    if solution.energy is not None and solution.energy.shape[1] > 1 and good.any():
        energy = np.asarray(solution.energy, np.float64)[good]
        facts["energy change, mean"] = float(np.mean(energy[:, -1] - energy[:, 0]))
    return facts


def _perturbed_starts(
    entry: Entry, case: Case, q0: np.ndarray, v0: np.ndarray, options: argparse.Namespace
) -> tuple[tuple[np.ndarray, np.ndarray], dict[str, int]]:
    """Random initial data (q0, v0), (N, d) each, around those of the case.

    Inadmissible positions are drawn again or moved towards the case, and with joints all are moved to the nearest that
    satisfies them. Also returns how many were inadmissible, with a text for each of the two counts.
    """
    random = np.random.default_rng(options.seed)
    lanes, d = options.ensemble, len(q0)
    # positions, velocities, perturbations and what they are tested with
    check_memory(48.0 * lanes * d, f"--ensemble {lanes}", "compute fewer motions")
    scale = [options.spread * (np.max(np.abs(x)) or 1.0) for x in (q0, v0)]
    gaps = jax.jit(jax.vmap(lambda q: entry.problem.gaps(0.0, q, case.args)))
    slack = 10 * np.finfo(q0.dtype).eps

    def joined(q: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not entry.problem.jointed:
            return q, v
        found = jax.vmap(lambda q, v: assemble(entry.problem, q, v, args=case.args))(q, v)
        return np.asarray(found[0]), np.asarray(found[1])

    def inadmissible(q: np.ndarray) -> np.ndarray:
        return ~np.all(np.asarray(gaps(jnp.asarray(joined(q, 0 * q)[0]))) >= -slack, axis=1)

    def some() -> np.ndarray:
        return (scale[0] * random.standard_normal((lanes, d))).astype(q0.dtype)

    offset = some()
    bad = first = inadmissible(q0 + offset)
    for _ in range(10):
        offset = np.where(bad[:, None], some(), offset)
        bad = inadmissible(q0 + offset)
        if not bad.any():
            break
    shrunk = bad
    for _ in range(30):
        offset[bad] *= 0.5
        bad = inadmissible(q0 + offset)
        if not bad.any():
            break
    offset[bad] = 0.0
    v = v0 + (scale[1] * random.standard_normal((lanes, d))).astype(v0.dtype)
    remarks = {"initial positions redrawn": int(first.sum()), "of these drawn towards the case": int(shrunk.sum())}
    return joined(q0 + offset, v), remarks if first.any() else {}


def _time_runs(compute: Callable[[], Solution]) -> tuple[Solution, dict[str, float]]:
    """The solution, and seconds of compilation and of a run (repeated without compilation if short)."""
    compiling: list[float] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            compiling.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    start = time.perf_counter()
    try:
        solution = jax.block_until_ready(compute())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    total = time.perf_counter() - start
    compile_time = min(sum(compiling), total)
    running = total - compile_time
    if running < 5.0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            jax.block_until_ready(compute())
            running = time.perf_counter() - start
    return solution, {"compile": compile_time, "run": running}
