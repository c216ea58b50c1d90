"""The command line: list, show, run and converge the problems of the catalogue, and compute studies."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import __version__
from .analysis.convergence import convergence
from .catalogue import Case, Entry, entries, get
from .ensemble import ensemble
from .integrate import Solution, solve
from .names import PROJECTIONS, SCHEMES, projection_from_name, scheme_from_name, suggestion
from .output import (
    aligned,
    file_list,
    motion_columns,
    print_facts,
    summary_columns,
    write_arrays,
    write_csv,
    write_json,
)
from .plots import ROUND_OFF, draw
from .status import DOUBTS, FAILURES, describe, summarise
from .study_commands import add_commands, is_study, show_study
from .validate import JaximpactWarning, check_counts, check_memory, count_steps

ROWS = 1000  # rows of a motion kept by default
ENSEMBLE_ROWS = 100
ENSEMBLE_NUMBERS = 2 * 10**7  # saved numbers up to which an ensemble keeps rows by default
WIDTH = 100

MAIN = """\
Mechanical systems with impacts, in JAX: benchmark problems from the command line.

  jaximpact list                                what there is
  jaximpact show bouncing-ball                  one problem: statement, cases, what theory predicts
  jaximpact run bouncing-ball --h 1e-3          compute one motion, or an ensemble, and draw it
  jaximpact converge bouncing-ball              errors and observed orders as h -> 0
  jaximpact study FILE.toml                     an ensemble over a design, in a store that can be continued
  jaximpact resume out/study.zarr               continue it

Computations are in float64. Results go to out/<problem>; --out chooses another folder.
Exit status: 0 done, 1 a motion failed (the cause is printed), 2 wrong usage.
"""
LIST = """\
List the problems: id, name, title, cases, and which schemes treat them. Maury's scheme is for inelastic impacts
(e = 0) only, the others for every e. Take a name or an id to `show`, `run` and `converge`.

example:
  jaximpact list --verbose                      one line a case: size, restitution, final time, impacts
"""
SHOW = """\
Show one problem: statement, hypotheses it satisfies, source, cases, and the orders of convergence that theory
predicts for each scheme. Of the store of a study: progress, definition, provenance, failed lanes.

examples:
  jaximpact show B16
  jaximpact show out/impact_oscillator.zarr
"""
CHOICES = """\
what to choose:
  --scheme paoli-schatzman           position level, every e, order 1: the default, closest to the theory
           paoli-schatzman-explicit  the same with gradients at the old position: better in lasting contact with
                                     curved walls
           maury                     velocity level, e = 0 only: positions stay admissible for convex constraints
           maury-half-kick           the same, second order in lasting contact
           moreau-jean               velocity level, every e: the scheme of most engineering codes
  --projection active-set            exact, for few constraints: the default
               projected-gradient    first order, for many constraints
               admm                  for ill-conditioned contacts
"""
RUN = f"""\
Compute one motion of a problem, or with --ensemble N many from perturbed initial data, and write numbers and a
picture: motion.npz, motion.csv, motion.png (ensemble.npz, summary.csv, ensemble.png) and run.json.

examples:
  jaximpact run bouncing-ball --case e=4/5 --h 1e-3
  jaximpact run billiard --ensemble 1000 --spread 0.01 --seed 1

{CHOICES}\
  --h                                error and cost are proportional to h and 1/h: start at 1e-3 of the time scale of
                                     the motion, then halve it and compare
"""
CONVERGE = f"""\
Compute one motion with several numbers of steps, measure its errors against the exact motion (the finest run where
none is known) in the norms in which the schemes converge - positions uniformly, velocities in L1, impulses in
total - and print observed orders beside those predicted. Writes convergence.csv, .json and .png.

example:
  jaximpact converge bouncing-ball --case e=1 --steps 101 307 1009

Prefer prime step counts: steps aligned with impact times are more accurate than the theory allows in general.

{CHOICES}"""


class UsageError(Exception):
    """What the user asked for cannot be done; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    if argv is None:
        # a process of our own: threads too compute in float64
        jax.config.update("jax_enable_x64", True)
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    options.line = shlex.join(["jaximpact", *argv])
    with jax.enable_x64(True), _brief_warnings():
        try:
            status = options.command(options)
            sys.stdout.flush()
            return status
        except BrokenPipeError:  # the reader of a pipe has left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (UsageError, ValueError, TypeError, OSError) as error:
            print(f"jaximpact: error: {error}", file=sys.stderr)
            return 2


def _parser() -> argparse.ArgumentParser:
    def text(kind, **more):
        return {"formatter_class": argparse.RawDescriptionHelpFormatter, "description": kind, **more}

    parser = argparse.ArgumentParser(prog="jaximpact", **text(MAIN))
    parser.add_argument("--version", action="version", version=f"jaximpact {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="list the problems", **text(LIST))
    command.add_argument("--verbose", action="store_true", help="one line for each case")
    command.set_defaults(command=_list)

    command = commands.add_parser("show", help="show one problem, or a study", **text(SHOW))
    command.add_argument("problem", help="name or id, e.g. bouncing-ball or B01; or the store of a study")
    command.set_defaults(command=_show)

    command = commands.add_parser("run", help="compute a motion or an ensemble", **text(RUN))
    _shared(command)
    command.add_argument("--h", type=float, default=1e-3, help="step [s] (default %(default)g)")
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
        default=0.01,
        metavar="S",
        help="standard deviation of the perturbation, relative to the largest |q0| and |v0| of the case, absolute "
        "where those vanish (default %(default)g)",
    )
    command.add_argument("--seed", type=int, default=0, help="of the perturbation (default %(default)s)")
    command.add_argument(
        "--save", type=int, metavar="K", help=f"keep every K-th step (default: about {ROWS} rows, {ENSEMBLE_ROWS} for --ensemble)"
    )  # fmt: skip
    command.add_argument("--float32", action="store_true", help="compute in single precision")
    command.set_defaults(command=_run)

    command = commands.add_parser("converge", help="errors and orders as h -> 0", **text(CONVERGE))
    _shared(command)
    command.add_argument(
        "--steps", type=int, nargs="+", metavar="N", help="numbers of steps, increasing (default: primes)"
    )
    command.set_defaults(command=_converge)
    add_commands(commands, text)
    return parser


def _shared(command: argparse.ArgumentParser) -> None:
    command.add_argument("problem", help="name or id, e.g. bouncing-ball or B01; `jaximpact list` has them all")
    command.add_argument("--case", metavar="NAME", help="case of the problem (default: its first)")
    command.add_argument("--t1", type=float, metavar="T", help="final time [s] (default: that of the case)")
    command.add_argument("--e", type=float, metavar="E", help="restitution in [0, 1] (default: that of the case)")
    command.add_argument(
        "--scheme",
        default="paoli-schatzman",
        metavar="NAME",
        help=f"{', '.join(SCHEMES)} (default: the first), or one of your own, module:Scheme",
    )
    command.add_argument(
        "--projection", default="active-set", metavar="NAME", help=f"{', '.join(PROJECTIONS)} (default: the first)"
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: out/<problem>)")


# list and show


def _list(options) -> int:
    if not options.verbose:
        rows: list[tuple[str, ...]] = [("id", "name", "title", "cases", "schemes")]
        for entry in entries():
            rows.append((entry.id, entry.name, entry.title, ", ".join(entry.cases), _entry_schemes(entry)))
        print(aligned(rows))
        return 0
    rows = [("id", "name", "case", "d", "m", "e", "t1 [s]", "exact", "impacts", "schemes")]
    for entry in entries():
        for name, case in entry.cases.items():
            size = f"{len(case.q0)}", f"{_constraints(entry, case)}", f"{case.restitution:g}", f"{case.t1:g}"
            impacts = "" if case.impacts is None else f"{len(case.impacts)}"
            fitting = "all" if len(_applicable(entry, case)) == len(SCHEMES) else "not maury"
            rows.append((entry.id, entry.name, name, *size, _yes(case.exact), impacts, fitting))
    print(aligned(rows))
    return 0


def _show(options) -> int:
    if is_study(options.problem):
        return show_study(options.problem)
    entry = _find(options.problem)
    print(f"{entry.id}  {entry.name}: {entry.title}\n")
    for label, paragraph in (("", entry.statement), ("hypotheses", entry.hypotheses), ("source", entry.source)):
        if paragraph:
            lead = f"{label}: " if label else ""
            print(textwrap.fill(lead + paragraph, WIDTH, subsequent_indent="  " if label else "") + "\n")
    for name, case in entry.cases.items():
        size = f"d = {len(case.q0)}, m = {_constraints(entry, case)}, e = {case.restitution:g}, t1 = {case.t1:g} s"
        impacts = "" if case.impacts is None else f", {len(case.impacts)} impacts"
        print(f"case {name}: {size}{impacts}; exact motion {'known' if case.exact else 'not known'}")
        if case.note:
            print(textwrap.indent(textwrap.fill(case.note, WIDTH - 2), "  "))
        rows: list[tuple[str, ...]] = [("scheme", "position", "velocity", "impulse")]
        for label in _applicable(entry, case):
            rows.append((label, *_expected(case, label).values()))
        print(textwrap.indent(aligned(rows), "  ") + "\n")
    print("Orders predicted as h -> 0: position in the sup norm, velocity in L1, total impulse; '-' where none is.")
    print(f"\nrun it:  jaximpact run {entry.name} --case {shlex.quote(next(iter(entry.cases)))}")
    return 0


def _applicable(entry: Entry, case: Case) -> list[str]:
    """Schemes that cover the case."""
    fitting = []
    for label, make in SCHEMES.items():
        try:
            make().validate(entry.problem, case.restitution, _constraints(entry, case))
        except ValueError:
            continue
        fitting.append(label)
    return fitting


def _entry_schemes(entry: Entry) -> str:
    covered = [len(_applicable(entry, case)) == len(SCHEMES) for case in entry.cases.values()]
    return "all" if all(covered) else "maury at e=0 only" if any(covered) else "not maury"


def _constraints(entry: Entry, case: Case) -> int:
    return entry.problem.count(0.0, jnp.asarray(case.q0), case.args)


def _expected(case: Case, label: str) -> dict[str, str]:
    """Predicted orders in words."""
    orders = case.orders.get(label)
    if orders is None:
        return dict.fromkeys(("position", "velocity", "impulse"), "-")
    words = {name: "-" if x is None else f"{x:g}" for name, x in vars(orders).items() if name != "exact"}
    return words | ({"position": "exact"} if orders.exact else {})


# run


def _run(options) -> int:
    entry = _find(options.problem)
    name, case, t1, e, exact, impulse = _motion_of(entry, options)
    scheme = scheme_from_name(options.scheme, options.force)
    projection = projection_from_name(options.projection)
    _check_numbers(options)
    dtype: type[np.floating] = np.float32 if options.float32 else np.float64
    q0, v0 = np.asarray(case.q0, dtype), np.asarray(case.v0, dtype)
    steps = count_steps(0.0, t1, options.h, float(np.finfo(dtype).eps)) if 0 < options.h <= t1 < np.inf else 1
    common = {"t1": t1, "h": options.h, "scheme": scheme, "projection": projection, "args": case.args, "e": e}
    settings = {
        "problem": entry.name,
        "case": name,
        "q0": q0,
        "v0": v0,
        "t1": t1,
        "h": options.h,
        "steps": steps,
        "e": e,
    }
    settings |= {"scheme": options.scheme, "force": options.force, "projection": options.projection}
    settings |= {"dtype": np.dtype(dtype).name, "backend": jax.default_backend()}
    out = _folder(options, entry)
    heading = f"{_motion_name(entry, name, e)}: {options.scheme}, h = {options.h:g} s"

    if options.ensemble is None:
        every = options.save or -(-steps // ROWS)
        settings |= {"save": every}
        solution, seconds = _timed(lambda: solve(entry.problem, q0, v0, save=every, **common))
        facts = _motion_facts(solution, exact, impulse)
        if exact is None:
            facts["position error"] = f"exact motion not known{_why_unknown(case, t1, e)}"
        gaps = jax.vmap(lambda t, q: entry.problem.gaps(t, q, case.args)) if len(q0) > 1 else None
        files = [write_arrays(out / "motion.npz", solution), write_csv(out / "motion.csv", motion_columns(solution))]
        files += _picture(lambda: draw(solution, out / "motion.png", title=heading, exact=exact, gaps=gaps))
    else:
        heading += f", {options.ensemble} motions"
        (q0, v0), remarks = _perturbed(entry, case, q0, v0, options)
        every = options.save or -(-steps // ENSEMBLE_ROWS)
        numbers = options.ensemble * (steps // every + 2) * (3 * q0.shape[1] + _constraints(entry, case))
        save = every if options.save or numbers <= ENSEMBLE_NUMBERS else "final"
        settings |= {"save": save, "ensemble": options.ensemble, "spread": options.spread, "seed": options.seed}
        solution, seconds = _timed(lambda: ensemble(entry.problem, q0, v0, save=save, **common))
        facts = _ensemble_facts(solution) | remarks
        files = [write_arrays(out / "ensemble.npz", solution, q0=q0, v0=v0)]
        files += [write_csv(out / "summary.csv", summary_columns(solution, q0, v0))]
        swept = {"initial q [unit of q]": q0[:, 0], "initial v [unit of q / s]": v0[:, 0]}
        if not np.all(solution.failed):
            files += _picture(lambda: draw(solution, out / "ensemble.png", title=heading, swept=swept))

    # nobody asked for derivatives here
    status = int(np.bitwise_or.reduce(np.ravel(solution.status))) & ~int(DOUBTS)
    facts["status"] = describe(status) or "OK"
    rate = (options.ensemble or 1) * steps / seconds["run"]
    files.append(out / "run.json")
    write_json(files[-1], options.line, {"settings": settings, "results": facts, "seconds": seconds, "files": files})
    print(heading)
    timing = f"{seconds['compile']:.2f} s compiling, {seconds['run']:.3g} s running, {rate:.3g} steps/s"
    failed = np.atleast_1d(np.asarray(solution.status)) & int(FAILURES)
    if np.any(failed):
        # the decoded status goes to stderr
        facts["status"] = ", ".join(line.partition(":")[0] for line in facts["status"].splitlines())
    print_facts(facts | {"time": timing, "written": file_list(files)})
    if np.any(failed):
        print(f"jaximpact: {summarise(failed, np.asarray(solution.failed_at))}", file=sys.stderr)
        return 1
    return 0


def _check_numbers(options) -> None:
    if options.save is not None and options.save < 1:
        raise UsageError(f"--save {options.save}: keep every K-th step, K >= 1")
    if options.ensemble is not None:
        if options.ensemble < 1:
            raise UsageError(f"--ensemble {options.ensemble}: at least one motion is needed")
        check_counts(**{"--ensemble": options.ensemble})
    if not 0 <= options.spread < np.inf:
        raise UsageError(f"--spread {options.spread:g}: a standard deviation must be finite and not negative")
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: must not be negative")


def _motion_facts(solution: Solution, exact, impulse) -> dict[str, Any]:
    t, q, v = (np.asarray(x, np.float64) for x in (solution.t, solution.q, solution.v))
    facts: dict[str, Any] = {"final time": t[-1], "final position": q[-1], "final velocity": v[-1]}
    if exact is not None:
        facts["position error"] = float(np.max(np.abs(q - exact(t)[0])))
    if impulse is not None:
        facts["impulse error"] = float(np.max(np.abs(np.asarray(solution.impulse)[-1] - impulse), initial=0.0))
    facts |= {"worst penetration": float(solution.penetration), "KKT residual": float(solution.residual)}
    if solution.energy is not None:
        energy = np.asarray(solution.energy, np.float64)
        facts |= {"initial energy": energy[0], "final energy": energy[-1], "energy change": energy[-1] - energy[0]}
    return facts


def _ensemble_facts(solution: Solution) -> dict[str, Any]:
    good = ~np.asarray(solution.failed)
    facts: dict[str, Any] = {"motions": good.size, "failed": int(np.sum(~good))}
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


def _perturbed(entry: Entry, case: Case, q0: np.ndarray, v0: np.ndarray, options):
    """Initial data (N, d) around the case, positions admissible, and remarks on how they were kept so."""
    random = np.random.default_rng(options.seed)
    lanes, d = options.ensemble, len(q0)
    # positions, velocities, perturbations and what they are tested with
    check_memory(48.0 * lanes * d, f"--ensemble {lanes}", "compute fewer motions")
    scale = [options.spread * (np.max(np.abs(x)) or 1.0) for x in (q0, v0)]
    gaps = jax.jit(jax.vmap(lambda q: entry.problem.gaps(0.0, q, case.args)))
    slack = 10 * np.finfo(q0.dtype).eps

    def inadmissible(q):
        return np.any(np.asarray(gaps(jnp.asarray(q))) < -slack, axis=1)

    def draw():
        return (scale[0] * random.standard_normal((lanes, d))).astype(q0.dtype)

    offset = draw()
    bad = first = inadmissible(q0 + offset)
    for _ in range(10):
        offset = np.where(bad[:, None], draw(), offset)
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
    return (q0 + offset, v), remarks if first.any() else {}


# converge


def _converge(options) -> int:
    entry = _find(options.problem)
    name, case, t1, e, exact, impulse = _motion_of(entry, options)
    scheme, projection = scheme_from_name(options.scheme), projection_from_name(options.projection)
    out = _folder(options, entry)
    start = time.perf_counter()
    try:
        result = convergence(
            entry.problem, case.q0, case.v0, t1=t1, steps=options.steps, exact=exact, impulse=impulse, scheme=scheme,
            projection=projection, args=case.args, e=e,
        )  # fmt: skip
    except RuntimeError as error:
        print(f"jaximpact: {error}", file=sys.stderr)
        return 1
    seconds = time.perf_counter() - start
    heading = f"{_motion_name(entry, name, e)}: {options.scheme}"
    observed = result.orders()
    unchanged = e == case.restitution and t1 <= case.t1
    expected = _expected(case, options.scheme) if unchanged else dict.fromkeys(observed, "-")
    measured = ("steps", "h", "position", "velocity", "impulse", "penetration", "residual")
    columns = {label: np.asarray(getattr(result, label)) for label in measured}
    files = [write_csv(out / "convergence.csv", columns)]
    files += _picture(lambda: draw(result, out / "convergence.png", title=heading))
    files.append(out / "convergence.json")
    settings = {"problem": entry.name, "case": name, "t1": t1, "e": e, "scheme": options.scheme}
    content = {
        "settings": settings | {"projection": options.projection, "backend": jax.default_backend()},
        "reference": result.reference,
        "error of the reference": dict(result.floor),
        "errors": columns,
        "orders": {"observed": observed, "expected": expected},
        "seconds": seconds,
        "files": files,
    }
    write_json(files[-1], options.line, content)
    print(heading)
    print(result.table())
    if exact is None:
        print(f"exact motion not known{_why_unknown(case, t1, e)}")
    print()
    rows = [("order", "observed", "expected")]
    for label, value in observed.items():
        rounding = np.max(columns[label]) < ROUND_OFF
        word = "exact" if rounding else f"{value:.2f}" if np.isfinite(value) else "-"
        rows.append((label, word, expected[label]))
    print(aligned(rows))
    print()
    print_facts({"time": f"{seconds:.2f} s", "written": file_list(files)})
    return 0


# shared


def _find(name: str) -> Entry:
    try:
        return get(name)
    except KeyError as error:
        raise UsageError(error.args[0]) from None


def _motion_of(entry: Entry, options):
    """Case name, case, final time, restitution, and exact motion and impulse where the case knows them."""
    name = options.case or next(iter(entry.cases))
    if name not in entry.cases:
        raise UsageError(f"{entry.name} has no case {name!r}; {suggestion(name, entry.cases)}")
    case = entry.cases[name]
    t1 = case.t1 if options.t1 is None else options.t1
    e = case.restitution if options.e is None else options.e
    known = e == case.restitution and t1 <= case.t1
    return name, case, t1, e, case.exact if known else None, case.impulse if known and t1 == case.t1 else None


def _motion_name(entry: Entry, name: str, e: float) -> str:
    return f"{entry.title}, {name}" + ("" if e == entry.cases[name].restitution else f" with e = {e:g}")


def _why_unknown(case: Case, t1: float, e: float) -> str:
    if case.exact is None:
        return ""
    if e != case.restitution:
        return f": it is for e = {case.restitution:g}"
    return f" beyond t = {case.t1:g} s" if t1 > case.t1 else ""


def _timed(compute: Callable[[], Solution]) -> tuple[Solution, dict[str, float]]:
    """The solution, and seconds of its compilation and of its run (a second one where that takes little)."""
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


def _folder(options, entry: Entry) -> Path:
    out = options.out or Path("out") / entry.name
    out.mkdir(parents=True, exist_ok=True)
    return out


def _picture(draw: Callable[[], Path]) -> list[Path]:
    """The picture's path in a list, or an empty one and a remark where matplotlib is missing."""
    try:
        return [draw()]
    except ImportError as error:
        print(f"jaximpact: no picture: {error}", file=sys.stderr)
        return []


def _yes(value) -> str:
    return "no" if value is None else "yes"


@contextmanager
def _brief_warnings():
    """The library's remarks as one line each on stderr."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", JaximpactWarning)
        usual = warnings.showwarning

        def show(message, category, *where, **more):
            if issubclass(category, JaximpactWarning):
                print(f"jaximpact: warning: {message}", file=sys.stderr)
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield
