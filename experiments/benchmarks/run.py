"""Time per trajectory-step of jaximpact, of handwritten loops of the same scheme, and of other simulators.

    python experiments/benchmarks/run.py --out out/benchmarks            # a few minutes
    python experiments/benchmarks/run.py --full                          # everything
    python experiments/benchmarks/run.py --only ball:1000 double-pendulum:1000

Contenders of one row run in turn, several rounds of them, on one core and on all, in a process of its own each, and
the shortest time of each counts: on a shared machine only ratios within a row are worth comparing. Beside every time
stands its accuracy. Written are results.json (with versions and device),
table.md and the pictures of error against cost.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import accelerator, contacts, contenders, peers, report, timing, work_precision, works
from benchmarks.accuracy import Accuracy
from benchmarks.baselines import native

VALUES = ("ball:1", "ball:1000", "ball:100000", "forced-oscillator:100000", "double-pendulum:1", "double-pendulum:1000",
    "double-pendulum:10000",
          "links-2:1000", "links-4:1000", "bar-64:1", "gas-16:1", "pile-16:1", "ball-long:1",
          "double-long:1")  # fmt: skip
DERIVATIVES = ("ball:1000", "double-pendulum:100")
ALL_VALUES = ("ball:1", "ball:1000", "ball:100000", "forced-oscillator:100000", "double-pendulum:1",
    "double-pendulum:1000", "double-pendulum:10000",
              "links-2:1000", "links-4:1000", "links-6:1000", "bar-64:1", "bar-64:100", "bar-256:1", "gas-16:1",
              "gas-16:100", "pile-16:1", "pile-16:100", "gas-64:1", "pile-64:1", "ball-long:1",
              "double-long:1")  # fmt: skip
ALL_DERIVATIVES = ("ball:1", "ball:1000", "double-pendulum:1", "double-pendulum:100",
                   "double-pendulum:1000", "links-2:100", "links-4:100", "links-6:100", "bar-64:1",
                   "gas-16:1")  # fmt: skip
PARTS = ("values", "derivatives", "peers", "contacts", "precision", "accelerator")
PEERS = (("ball", "siconos"), ("ball", "mjx"), ("ball", "brax"), ("ball", "diffrax"),
         ("double-pendulum", "siconos"), ("double-pendulum", "diffrax"))  # fmt: skip
PEER_LANES = {"siconos": 10, "mjx": 1000, "brax": 1000, "diffrax": 1000}


def measure(item: str, kind: str, options, libraries) -> list[dict]:
    """Rows of one work and number of lanes: values or derivatives."""
    name, _, lanes = item.partition(":")
    work, lanes = works.WORKS[name], int(lanes)
    print(f"{kind}: {name}, {lanes} lanes", file=sys.stderr, flush=True)
    make = partial(contenders.make, kind, name, lanes, libraries, options.full)
    accuracy = Accuracy(work, lanes)
    rows = []
    for row, result in timing.measure(make, lanes, work.steps, options.rounds, options.budget):
        rows.append({"work": name} | row | accuracy.of(row["mode"], result))
    return rows


def peer_rows(rounds: int, python: dict[str, str]) -> list[dict]:
    """The works that other simulators can make, by those."""
    rows = []
    for name, key in PEERS:
        work, title, lanes = works.WORKS[name], peers.TITLES[key], PEER_LANES[key]
        print(f"peers: {name}, {title}", file=sys.stderr, flush=True)
        row = {"section": "peers", "work": name, "lanes": lanes, "steps": work.steps, "mode": "forward",
               "contender": title, "dtype": "float64"}  # fmt: skip
        q0, v0 = work.initial(lanes)
        job = {"work": name, "q0": q0.tolist(), "v0": v0.tolist(), "e": work.restitution, "args": work.args,
               "h": work.h, "steps": work.steps, "rounds": rounds, "tolerance": 1e-6, "longest": 0.05}  # fmt: skip
        with timing.one_core():
            remark, answers = peers.ask(key, [job], python.get(key))
        row["remark"] = remark
        for answer in answers:
            row |= {"cores": 1, "seconds": answer["seconds"], "compile_s": answer["compile_s"]}
            row["ns_per_step"] = 1e9 * min(answer["seconds"]) / (lanes * work.steps)
            row["error"] = Accuracy(work, lanes).error(answer["q"])
        rows.append(row)
    return rows


def earlier(folder: Path, parts: list[str]) -> dict:
    """What the folder has of the parts that are not measured now, and what they were measured with."""
    recorded = folder / "results.json"
    found = json.loads(recorded.read_text()) if recorded.exists() else {"about": {}, "rows": [], "precision": []}
    before = found.get("earlier", {"sections": {}})["sections"]
    rows = [row for row in found["rows"] if report.section(row) not in parts]
    about = {kind: before.get(kind, found["about"]) for kind in sorted({report.section(row) for row in rows})}
    return {"rows": rows, "sections": about, "precision": [] if "precision" in parts else found["precision"]}


def write(folder: Path, rows: list[dict], points: list[dict], kept: dict) -> str:
    """Write results and table into the folder, with what is kept of it, and the pictures of new ``points``;
    the table."""
    rows, points = report.with_ratios(rows) + kept["rows"], points + kept["precision"]
    results = {"about": report.about(), "rows": rows, "precision": points, "earlier": {"sections": kept["sections"]}}
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    text = report.table(rows, kept["sections"])
    (folder / "table.md").write_text(text)
    if len(points) > len(kept["precision"]):
        work_precision.pictures(points, folder)
    return text


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--full", action="store_true", help="every work, execution, precision and number of cores")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        help="what to measure, the rest stays as it is recorded; by default all, with --only the first two",
    )
    parser.add_argument("--only", nargs="+", metavar="WORK:LANES", help="rows of values and derivatives to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds after which a contender sits rounds out")
    parser.add_argument(
        "--python", nargs="*", default=[], metavar="KEY=PATH", help="interpreter of siconos, mjx, brax, diffrax"
    )
    accelerator.add_arguments(parser)
    options = parser.parse_args(arguments)
    for item in options.only or ():
        name, _, lanes = item.partition(":")
        if name not in works.WORKS or not lanes.isdigit() or int(lanes) < 1:
            parser.error(f"--only {item}: write WORK:LANES with a work of {', '.join(works.WORKS)}")
    python = dict(item.split("=", 1) if "=" in item else (item, "") for item in options.python)
    if not all(python.values()) or set(python) - set(peers.TITLES):
        parser.error(f"--python: write KEY=PATH with a key of {', '.join(peers.TITLES)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    usual = ("values", "derivatives") if options.only else PARTS
    parts = options.parts or usual

    contenders.configure()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    points: list[dict] = []
    kept = earlier(options.out, parts)
    with tempfile.TemporaryDirectory() as folder:
        libraries = native.Native(folder) if native.compiler() else None
        for kind, few, all_of_them in (("values", VALUES, ALL_VALUES), ("derivatives", DERIVATIVES, ALL_DERIVATIVES)):
            if kind in parts:
                for item in options.only or (all_of_them if options.full else few):
                    rows += measure(item, kind, options, libraries)
                    write(options.out, rows, points, kept)  # what is done survives an interruption
                    jax.clear_caches()
    if "peers" in parts:
        rows += peer_rows(options.rounds, python)
    if "contacts" in parts:
        with tempfile.TemporaryDirectory() as folder:
            rows += contacts.rows(options.rounds, folder)
        write(options.out, rows, points, kept)
        jax.clear_caches()
    if "accelerator" in parts:
        for row in accelerator.rows(options):
            rows.append(row)
            write(options.out, rows, points, kept)
    if "precision" in parts:
        for name in work_precision.MOTIONS:
            print(f"error against cost: {name}", file=sys.stderr, flush=True)
            points += work_precision.measure(name, options.full, python)
            jax.clear_caches()
    print(write(options.out, rows, points, kept))


if __name__ == "__main__":
    main()
