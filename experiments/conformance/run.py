"""Does your simulator pass? The conformance suite on jaximpact and on other simulators.

    python experiments/conformance/run.py --out out/conformance
    python experiments/conformance/run.py --only jaxonomy mjx --python jaxonomy=other_venv/bin/python
    python experiments/conformance/run.py --page          # put the table and the picture into README.md

Every adapter runs in a process of its own, with a time limit; a simulator that is not installed says so. `--python`
names an interpreter of a peer's own. One simulator of yours: python -m jaximpact.conformance --adapter mine.py
"""

import argparse
import shutil
import sys
from pathlib import Path

from jaximpact import conformance
from jaximpact.conformance import Adapter

HERE = Path(__file__).parent
PEERS = HERE / "peers"
PAGE, MARKERS = HERE / "README.md", ("<!-- table -->", "<!-- end of table -->")
COLUMNS = {
    "mjx": [("MuJoCo MJX", "mjx_contacts.py", "")],
    "mujoco": [("MuJoCo, finite differences", "mujoco_differences.py", "")],
    "brax": [(f"brax {name}", "brax_pipelines.py", name) for name in ("spring", "positional", "generalized")],
    "diffrax": [("diffrax, events by hand", "diffrax_events.py", "")],
    "jaxonomy": [("jaxonomy", "jaxonomy_ball.py", "")],
}


def write_page(report: conformance.Report, folder: Path) -> None:
    """Replace what stands between the page's markers, and the picture beside it."""
    before, rest = PAGE.read_text().split(MARKERS[0])
    after = rest.split(MARKERS[1])[1]
    PAGE.write_text(f"{before}{MARKERS[0]}\n\n{report.markdown()}\n{MARKERS[1]}{after}")
    shutil.copy2(folder / "picture.png", HERE / "conformance.png")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/conformance"))
    parser.add_argument("--cases", nargs="+", metavar="NAME", choices=list(conformance.cases()))
    parser.add_argument("--only", nargs="+", metavar="KEY", choices=["jaximpact", *COLUMNS])
    parser.add_argument("--python", nargs="*", default=[], metavar="KEY=PATH", help="interpreter of a peer")
    parser.add_argument("--page", action="store_true", help="put the table into experiments/conformance/README.md too")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a column may take at each step size")
    parser.add_argument("--jobs", type=int, default=1, help="columns measured at a time")
    options = parser.parse_args(arguments)
    if any("=" not in item for item in options.python):
        parser.error("--python: write KEY=PATH, as in jaxonomy=venv/bin/python")
    python = dict(item.split("=", 1) for item in options.python)
    wanted = options.only or ["jaximpact", *COLUMNS]
    adapters = list(conformance.adapters_of_jaximpact()) if "jaximpact" in wanted else []
    for key, columns in COLUMNS.items():
        if key in wanted:
            where = python.get(key, sys.executable)
            adapters += [Adapter(title, str(PEERS / file), variant, where) for title, file, variant in columns]
    report = conformance.run(adapters, options.cases, limit=options.limit, jobs=options.jobs, progress=True)
    folder = report.save(options.out)
    if options.page:
        write_page(report, folder)
    print(report.markdown())
    print(f"written: {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
