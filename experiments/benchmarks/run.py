"""Time per trajectory-step of jaximpact and of handwritten loops of the same scheme, on the same motions.

    python experiments/benchmarks/run.py --out out/benchmarks            # a few minutes
    python experiments/benchmarks/run.py --only ball:1000 double-pendulum:1000

Contenders of one row run in turn, several rounds of them, and the shortest time of each counts: on a shared machine
only ratios within a row are worth comparing. Beside every time stands the largest difference of the final state from
the first contender's. Written are results.json (with versions and device) and table.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import jaximpact as ji
from benchmarks import works
from benchmarks.baselines import native

ROWS = ("ball:1", "ball:1000", "ball:100000", "double-pendulum:1", "double-pendulum:1000", "double-pendulum:10000",
        "links-2:1000", "bar-64:1", "gas-16:1", "pile-16:1")  # fmt: skip
ROUNDS = 5


def ensemble(work, q0, v0, layout: str):
    found = ji.ensemble(work.problem, q0, v0, t1=work.t1, h=work.h, e=work.restitution, args=work.args, layout=layout)
    return found.q[:, -1], found.v[:, -1]


def derivatives(work, q0, v0, kind: str, layout: str):
    """value and derivative of the summed final state with respect to the initial one, for all lanes at once."""

    def end(q0, v0):
        s = ji.solve(work.problem, q0, v0, t1=work.t1, steps=work.steps, e=work.restitution, args=work.args, save="final",
                     layout=layout)  # fmt: skip
        return jnp.sum(s.q[-1]) + jnp.sum(s.v[-1])

    if kind == "vjp":
        one = jax.value_and_grad(end, argnums=(0, 1))
    else:
        one = lambda q, v: jax.jvp(end, (q, v), (jnp.ones_like(q), jnp.zeros_like(v)))
    compiled = jax.jit(jax.vmap(one))
    return lambda: jax.tree.leaves(jax.block_until_ready(compiled(q0, v0)))[-2:]


def contenders(name: str, lanes: int, libraries: native.Native | None) -> dict[str, Callable]:
    """What runs in one row; every function returns final positions and velocities."""
    work = works.WORKS[name]
    q0, v0 = work.initial(lanes)
    found: dict[str, Callable] = {}
    if libraries is not None and name in native.PARAMETERS:
        found["C++ SIMD" if lanes > 1 else "C++"] = partial(libraries.run, work, q0, v0)
    try:
        from benchmarks.baselines import numba_loops
    except ImportError:
        pass
    else:
        found["numba"] = partial(numba_loops.run, work, q0, v0)
    small = q0.shape[1] <= 8
    for layout in ("scalar", "array") if small else ("array",):
        found[f"ensemble, {layout}"] = partial(ensemble, work, q0, v0, layout)
    if small and 1 < lanes <= 1000:
        for kind in ("jvp", "vjp"):
            for layout in ("scalar", "array"):
                found[f"{kind}, {layout}"] = derivatives(work, jnp.asarray(q0), jnp.asarray(v0), kind, layout)
    return found


def measure(name: str, lanes: int, libraries, rounds: int) -> list[dict]:
    work = works.WORKS[name]
    rows, first = [], None
    runs = contenders(name, lanes, libraries)
    for label, run in runs.items():
        begin = time.perf_counter()
        q, v = map(np.asarray, run())
        started = time.perf_counter() - begin
        value = not label.startswith(("jvp", "vjp"))
        if first is None and value:
            first = q, v
        difference = max(np.abs(q - first[0]).max(), np.abs(v - first[1]).max()) if value else None
        rows.append({"work": name, "lanes": lanes, "steps": work.steps, "contender": label, "first_call_s": started,
                     "difference": difference, "seconds": []})  # fmt: skip
    for _ in range(rounds):
        for row, run in zip(rows, runs.values(), strict=True):
            begin = time.perf_counter()
            run()
            row["seconds"].append(time.perf_counter() - begin)
    for row in rows:
        row["ns_per_step"] = 1e9 * min(row["seconds"]) / (lanes * work.steps)
    return rows


def table(rows: list[dict]) -> str:
    lines = ["| work | lanes | contender | ns per trajectory-step | ratio to the first | difference | first call |"]
    lines.append("|---|---|---|---|---|---|---|")
    base: dict = {}
    for row in rows:
        ns = row["ns_per_step"]
        ratio = ns / base.setdefault((row["work"], row["lanes"]), ns)
        difference = "" if row["difference"] is None else f"{row['difference']:.0e}"
        lines.append(
            f"| {row['work']} | {row['lanes']} | {row['contender']} | {ns:.3g} | {ratio:.3g} | {difference} | "
            f"{row['first_call_s']:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def about() -> dict:
    found = {"machine": platform.machine(), "cores": os.cpu_count(), "device": str(jax.devices()[0]),
             "python": platform.python_version(), "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}  # fmt: skip
    for package in ("jaximpact", "jax", "jaxlib", "numpy", "numba"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--only", nargs="+", default=ROWS, metavar="WORK:LANES", help="rows to measure")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        libraries = native.Native(folder) if native.compiler() else None
        for item in options.only:
            name, _, lanes = item.partition(":")
            if name not in works.WORKS or not lanes.isdigit():
                parser.error(f"--only {item}: write WORK:LANES with a work of {', '.join(works.WORKS)}")
            print(f"{name}, {lanes} lanes", file=sys.stderr, flush=True)
            rows += measure(name, int(lanes), libraries, options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps({"about": about(), "rows": rows}, indent=1))
    text = table(rows)
    (options.out / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
