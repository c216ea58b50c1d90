"""Does your simulator pass? Derivatives across impacts of jaximpact and other simulators, against exact Jacobians.

    python experiments/passes.py --out out/passes
    python experiments/passes.py --adapter my_simulator.py --cases grav1d off-wall
    python experiments/passes.py --python jaxonomy=other_venv/bin/python     # a peer with needs of its own

Every case of `passes.cases` has an exact final state and Jacobian. Every simulator runs in a process of its own, with a
time limit; one that is not installed says so. The error of a Jacobian is max |J - J_exact| / max |J_exact|, the median
over eight phases of the impacts in their steps. Written to the output folder: table.md, table.csv.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from passes import cases
from passes.cases import relative_error

FINE, COARSE = 1e-3, 1e-2  # steps [s]
SMALL = 5e-2  # an error at FINE that a converging derivative stays below, for every case here
SHRINK = 3.0  # factor from COARSE to FINE: order one would give 10, its scatter over phases is within 3
EXACT = 1e-6  # an error that need not shrink

ROWS = [
    "grav1d",
    "grav1d-once",
    "harm1d",
    "moving1d",
    "billiard",
    "dpend",
    "dpend-plastic",
    "stick1d",
    "bowl",
    "hop1d",
    "corner",
    "zeno",
    "two-balls",
    "off-wall",
]

PAGE, MARKERS = Path(__file__).parent / "passes" / "README.md", ("<!-- table -->", "<!-- end of table -->")


class Column(NamedTuple):
    """A simulator: its heading, the key for --python, its adapter (module or file), and what the adapter is asked for."""

    title: str
    key: str
    module: str
    variant: str = ""


OWN, PEERS = "passes.peers.jaximpact_schemes", "passes.peers."
COLUMNS = (
    Column("jaximpact PaoliSchatzman", "jaximpact", OWN, "PaoliSchatzman corrected"),
    Column("jaximpact MoreauJean", "jaximpact", OWN, "MoreauJean corrected"),
    Column("jaximpact Maury (e = 0)", "jaximpact", OWN, "Maury corrected"),
    Column("jaximpact EventCorrected", "jaximpact", OWN, "EventCorrected default"),
    Column("PaoliSchatzman, plain AD", "jaximpact", OWN, "PaoliSchatzman discrete"),
    Column("MoreauJean, plain AD", "jaximpact", OWN, "MoreauJean discrete"),
    Column("Maury (e = 0), plain AD", "jaximpact", OWN, "Maury discrete"),
    Column("MuJoCo MJX", "mjx", PEERS + "mjx_contacts"),
    Column("brax spring", "brax", PEERS + "brax_pipelines", "spring"),
    Column("brax positional", "brax", PEERS + "brax_pipelines", "positional"),
    Column("brax generalized", "brax", PEERS + "brax_pipelines", "generalized"),
    Column("diffrax, events by hand", "diffrax", PEERS + "diffrax_events"),
    Column("jaxonomy", "jaxonomy", PEERS + "jaxonomy_ball"),
)


class Cell(NamedTuple):
    """What one simulator makes of one case: errors of the Jacobian and of the state by step size, or what it said."""

    errors: dict[float, float]
    state_errors: dict[float, float]
    seconds: float
    message: str = ""

    @property
    def passes(self) -> bool:
        error = self.errors.get(FINE, np.nan)
        return error <= EXACT or (error <= SMALL and error * SHRINK <= self.errors.get(COARSE, 0.0))

    @property
    def text(self) -> str:
        if FINE not in self.errors:
            return "error" if self.message else "–"
        return f"{'pass' if self.passes else 'FAIL'} {self.errors[FINE]:.1e}"


def launch(column: Column, jobs: list, python: str, limit: float) -> list[dict]:
    """The lines a worker wrote within the time limit; what ended it otherwise is the last."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    command = [python, "-m", "passes.worker", column.module, column.variant]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True, env=os.environ | {"PYTHONPATH": path}
        )
        end = {}
        try:
            process.communicate(json.dumps(jobs), timeout=limit)
            if process.returncode:
                err.seek(0)
                end = {"stopped": (err.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1][:200]}
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            end = {"stopped": f"time limit of {limit:g} s"}
        out.seek(0)
        lines = [json.loads(line) for line in out if line.endswith("\n")]
    return [*lines, end]


def measure(column: Column, names: list[str], python: str, limit: float) -> tuple[dict[str, Cell], dict]:
    """The column's cells, and what is known of the simulator: versions, how it was used, what stopped it."""
    cells: dict[str, Cell] = {}
    about: dict = {}
    wanted = names
    for h in (FINE, COARSE):  # only what may pass is run again
        jobs = []
        for name in wanted:
            case = cases.get(name)
            steps, ends = case.phases(h)
            jobs.append({"case": name, "h": h, "theta": case.theta.tolist(), "steps": steps, "ends": ends.tolist()})
        for line in launch(column, jobs, python, limit) if jobs else []:
            if "case" not in line:
                about |= line
                continue
            case, old = cases.get(line["case"]), cells.get(line["case"], Cell({}, {}, 0.0))
            cell = old._replace(seconds=old.seconds + line["seconds"], message=line.get("error", ""))
            if not cell.message:
                ends = case.phases(h)[1][: len(line["states"])]
                exact = [case.exact(float(end)) for end in ends]
                pairs = zip(line["jacobians"], line["states"], exact, strict=True)
                found = [(relative_error(j, x.jacobian), relative_error(s, x.state)) for j, s, x in pairs]
                error, state_error = np.median(found, axis=0)
                cell.errors[h], cell.state_errors[h] = float(error), float(state_error)
            cells[line["case"]] = cell
        wanted = [name for name, cell in cells.items() if EXACT < cell.errors.get(FINE, np.inf) <= SMALL]
    return cells, about


def table(rows: list[str], columns: list[Column], results: list) -> str:
    """The table and what is to be known of every column, in markdown."""
    shown = [(column, cells, about) for column, (cells, about) in zip(columns, results, strict=True) if cells]
    lines = ["| case | " + " | ".join(column.title for column, *_ in shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for name in rows:
        texts = [cells[name].text if name in cells else "–" for _, cells, _ in shown]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    passed = [f"{sum(c.passes for c in cells.values())} of {len(cells)}" for _, cells, _ in shown]
    lines += ["| **passed** | " + " | ".join(passed) + " |", ""]
    for column, (cells, about) in zip(columns, results, strict=True):
        said = [
            ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items()),
            about.get("how", ""),
        ]
        if "missing" in about:
            said = [f"not run: {about['missing']}"]
        if "stopped" in about:
            said.append(f"stopped: {about['stopped']}")
        for message in sorted({cell.message for cell in cells.values() if cell.message}):
            said.append(f"{', '.join(name for name, cell in cells.items() if cell.message == message)}: {message}")
        off = [f"{n} {c.state_errors[FINE]:.1g}" for n, c in cells.items() if c.state_errors.get(FINE, 0) > SMALL]
        if off:
            said.append(f"relative error of the motion itself: {', '.join(off)}")
        lines.append(f"- {column.title}: {'; '.join(part for part in said if part)}")
    return "\n".join(lines) + "\n"


def write_csv(path: Path, columns: list[Column], results: list) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["simulator", "case", "h", "jacobian_error", "state_error", "passes", "seconds", "message"])
        for column, (cells, about) in zip(columns, results, strict=True):
            if not cells:
                writer.writerow(
                    [column.title, "", "", "", "", "", "", about.get("missing") or about.get("stopped", "")]
                )
            for name, cell in cells.items():
                for h in cell.errors or {FINE: np.nan}:
                    errors = cell.errors.get(h, np.nan), cell.state_errors.get(h, np.nan)
                    writer.writerow([column.title, name, h, *errors, cell.passes, round(cell.seconds, 1), cell.message])


def write_page(text: str) -> None:
    """Replace what stands between the page's markers."""
    before, rest = PAGE.read_text().split(MARKERS[0])
    PAGE.write_text(before + MARKERS[0] + "\n\n" + text + "\n" + MARKERS[1] + rest.split(MARKERS[1])[1])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/passes"))
    parser.add_argument("--cases", nargs="+", default=ROWS, metavar="NAME", choices=list(cases.CASES))
    parser.add_argument("--only", nargs="+", metavar="KEY", help="jaximpact, mjx, brax, diffrax, jaxonomy")
    parser.add_argument(
        "--adapter", nargs="*", default=[], metavar="FILE", help="your simulator, a file: see the README"
    )
    parser.add_argument("--python", nargs="*", default=[], metavar="KEY=PATH", help="interpreter of a peer")
    parser.add_argument("--page", action="store_true", help="put the table into experiments/passes/README.md too")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a column may take at each step size")
    parser.add_argument("--jobs", type=int, default=2, help="columns measured at a time")
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - {column.key for column in COLUMNS}
    if unknown:
        parser.error(f"--only: no simulator {sorted(unknown)[0]!r}")
    if any("=" not in item for item in options.python):
        parser.error("--python: write KEY=PATH, as in jaxonomy=venv/bin/python")

    jax.config.update("jax_enable_x64", True)
    python = dict(item.split("=", 1) for item in options.python)
    columns = [column for column in COLUMNS if options.only is None or column.key in options.only]
    columns += [Column(Path(file).stem, Path(file).stem, str(Path(file).resolve())) for file in options.adapter]
    for name in options.cases:  # here, once: the columns' threads then only look them up
        for h in (FINE, COARSE):
            for end in cases.get(name).phases(h)[1]:
                cases.get(name).exact(float(end))
    with ThreadPoolExecutor(options.jobs) as pool:
        asked = [
            pool.submit(measure, column, options.cases, python.get(column.key, sys.executable), options.limit)
            for column in columns
        ]
        results = []
        for column, answer in zip(columns, asked, strict=True):
            results.append(answer.result())
            cells, about = results[-1]
            passed = f"{sum(c.passes for c in cells.values())} of {len(cells)} pass" if cells else about
            print(f"{column.title}: {passed}", file=sys.stderr, flush=True)

    options.out.mkdir(parents=True, exist_ok=True)
    text = table(options.cases, columns, results)
    (options.out / "table.md").write_text(text)
    write_csv(options.out / "table.csv", columns, results)
    if options.page:
        write_page(text)
    print(text)
    print(f"written: {options.out}/table.md, table.csv", file=sys.stderr)


if __name__ == "__main__":
    main()
