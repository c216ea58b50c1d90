"""Does your simulator pass? The conformance suite on jaximpact and on other simulators.

    python experiments/conformance/run.py --out out/conformance
    python experiments/conformance/run.py --only jaxonomy mjx --python jaxonomy=other_venv/bin/python
    python experiments/conformance/run.py --page          # put the table and the picture into README.md
    python experiments/conformance/run.py --friction --page          # the cases with friction, docs/recorded/frictional_conformance.txt

Every adapter runs in a process of its own, with a time limit for each case; a simulator that is not installed says so.
`--python` names an interpreter of a peer's own, and what it measured is kept (columns.json in --out; with --page that
of this folder): the table holds what was measured last of every column and case, so that peers that cannot share an
environment can share a table. One simulator of yours: python -m jaximpact.conformance --adapter mine.py
"""  # noqa: E501

import argparse
import json
import shutil
import sys
from pathlib import Path

from jaximpact import conformance
from jaximpact.conformance import Adapter, Cell, Column, Report

HERE = Path(__file__).parent
PEERS = HERE / "peers"
PAGE, MARKERS = HERE / "README.md", ("<!-- table -->", "<!-- end of table -->")
FRICTIONAL = HERE.parents[1] / "docs" / "recorded" / "frictional_conformance.txt"
# columns of peers in the table of the cases with friction
ROUGH = {
    "mujoco": [
        ("MuJoCo, differences of 1e-5", "mujoco_friction.py", "1e-5 1/3"),
        ("MuJoCo, differences of 3e-2", "mujoco_friction.py", "3e-2 1/2"),
    ],
    "brax": [(f"brax {name}", "brax_friction.py", name) for name in ("spring", "positional")],
    "drake": [("Drake SAP", "drake_friction.py", "")],
    "jaxsim": [("jaxsim", "jaxsim_friction.py", "")],
    "newton": [(f"Newton {name}", "newton_friction.py", name) for name in ("SemiImplicit", "XPBD")],
    "nosnoc": [("nosnoc, time-freezing", "nosnoc_friction.py", "")],
}
COLUMNS = {
    "mjx": [("MuJoCo MJX", "mjx_contacts.py", "")],
    "mujoco": [
        ("MuJoCo, differences of 1e-5", "mujoco_differences.py", "1e-5 1/3"),
        ("MuJoCo, differences of 3e-2", "mujoco_differences.py", "3e-2 1/2"),
    ],
    "brax": [(f"brax {name}", "brax_pipelines.py", name) for name in ("spring", "positional")],
    "diffrax": [("diffrax, events by hand", "diffrax_events.py", "")],
    "jaxonomy": [("jaxonomy", "jaxonomy_ball.py", "")],
    "drake": [
        ("Drake SAP", "drake_simulators.py", "sap"),
        ("Drake hydroelastic", "drake_simulators.py", "hydroelastic"),
        ("Drake witness, plain reset", "drake_simulators.py", "plain"),
        ("Drake witness, saltation by hand", "drake_simulators.py", "saltation"),
    ],
    "newton": [
        ("Newton SemiImplicit", "newton_particles.py", "SemiImplicit"),
        ("Newton Featherstone", "newton_particles.py", "Featherstone"),
        ("Newton XPBD", "newton_particles.py", "XPBD"),
    ],
    "jaxsim": [("jaxsim", "jaxsim_contacts.py", "")],
    "genesis": [("Genesis", "genesis_spheres.py", "")],
    "nimble": [("nimblephysics", "nimble_worlds.py", "")],
    "nosnoc": [("nosnoc, time-freezing", "nosnoc_freezing.py", "")],
}


def write_page(report: Report, folder: Path) -> None:
    """Replace what stands between the page's markers, and the picture beside it."""
    before, rest = PAGE.read_text().split(MARKERS[0])
    after = rest.split(MARKERS[1])[1]
    PAGE.write_text(f"{before}{MARKERS[0]}\n\n{report.markdown()}\n{MARKERS[1]}{after}")
    shutil.copy2(folder / "picture.png", HERE / "conformance.png")


def kept(file: Path) -> dict[str, Column]:
    """Columns of earlier runs, by heading."""
    if not file.exists():
        return {}
    by_step = lambda errors: {float(h): error for h, error in errors.items()}
    read = lambda cell: Cell(by_step(cell["errors"]), by_step(cell["states"]), cell["seconds"], cell["message"])
    return {
        title: Column(title, {name: read(cell) for name, cell in column["cells"].items()}, column["about"])
        for title, column in json.loads(file.read_text()).items()
    }


def keep(file: Path, columns: dict[str, Column]) -> None:
    """Write them: errors of Jacobians and states by case and step, versions, settings."""
    plain = {
        title: {"cells": {name: cell._asdict() for name, cell in column.cells.items()}, "about": column.about}
        for title, column in columns.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(plain, indent=1) + "\n")


def order(friction: bool = False) -> list[str]:
    """Titles of the columns of a table, from left to right."""
    peers = [title for some in (ROUGH if friction else COLUMNS).values() for title, _, _ in some]
    return [*(adapter.title for adapter in conformance.adapters_of_jaximpact()), *peers]


def joined(measured: Report, file: Path, friction: bool = False) -> Report:
    """What was measured, and what was measured before of other columns and cases."""
    columns = kept(file)
    for new in measured.columns:
        old = columns.get(new.title)
        if new.cells or old is None or not old.cells:
            # a case that was measured again and is not stated any more is gone
            rest = {} if old is None else {n: c for n, c in old.cells.items() if n not in measured.names}
            columns[new.title] = Column(new.title, rest | dict(new.cells), new.about)
    keep(file, columns)
    names = conformance.frictional_cases() if friction else conformance.cases()
    # who knows no friction has no column of it
    shown = [columns[title] for title in order(friction) if title in columns and (columns[title].cells or not friction)]
    return Report(tuple(names), tuple(shown))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/conformance"))
    parser.add_argument("--friction", action="store_true", help="the cases with friction")
    every = [*conformance.cases(), *conformance.frictional_cases()]
    parser.add_argument("--cases", nargs="+", metavar="NAME", choices=every)
    parser.add_argument("--only", nargs="+", metavar="KEY", choices=["jaximpact", *COLUMNS])
    parser.add_argument("--python", nargs="*", default=[], metavar="KEY=PATH", help="interpreter of a peer")
    parser.add_argument("--page", action="store_true", help="record the table too")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a case may take at each step size")
    parser.add_argument("--jobs", type=int, default=1, help="columns measured at a time")
    options = parser.parse_args(arguments)
    if any("=" not in item for item in options.python):
        parser.error("--python: write KEY=PATH, as in jaxonomy=venv/bin/python")
    python = dict(item.split("=", 1) for item in options.python)
    wanted = options.only or ["jaximpact", *COLUMNS]
    adapters = list(conformance.adapters_of_jaximpact()) if "jaximpact" in wanted else []
    for key, columns in (ROUGH if options.friction else COLUMNS).items():
        if key in wanted:
            where = python.get(key, sys.executable)
            adapters += [Adapter(title, str(PEERS / file), variant, where) for title, file, variant in columns]
    names = options.cases or (list(conformance.frictional_cases()) if options.friction else None)
    measured = conformance.run(adapters, names, limit=options.limit, jobs=options.jobs, progress=True)
    file = "frictional_columns.json" if options.friction else "columns.json"
    report = joined(measured, (HERE if options.page else options.out) / file, options.friction)
    folder = report.save(options.out)
    if options.page and options.friction:
        FRICTIONAL.write_text(report.markdown())
    elif options.page:
        write_page(report, folder)
    print(report.markdown())
    print(f"written: {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
