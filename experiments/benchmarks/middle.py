"""One motion of ten to two hundred coordinates: a numba loop of the same scheme, native code, XLA,
and what "auto" takes.

    python experiments/benchmarks/middle.py --out out/middle             # three minutes on one core
    python experiments/benchmarks/middle.py --only bar-64 --parts

All ways of a work run in turn in one process, several rounds of them; processor microseconds a step, the median of the
rounds. Values are those of the final state, "jvp" along one direction of q0, "vjp" by q0 and v0. With ``--parts`` the
parts of a step by themselves: each in a loop of native code, in which one evaluation waits for the one before.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import jaximpact as ji
from benchmarks import contenders, works
from jaximpact.compiler.llvm import over_lanes
from jaximpact.mechanics.contacts import Contacts
from jaximpact.mechanics.linearisation import Metric
from jaximpact.mechanics.tunnelling import StepPath, looks_for_tunnelling, loses_the_gap

try:
    from benchmarks.baselines import numba_loops
except ImportError:
    numba_loops = None

WORKS = ("bar-64", "gas-16", "pile-16", "links-6", "double-pendulum", "ball")
WAYS = ("native", "xla", "auto")
MODES = ("value", "jvp", "vjp")
LONG_ENOUGH = 0.1  # processor seconds of repetition in a round


def quick(run: Callable[[], object]) -> float:
    """Processor seconds of a run: what a tenth of those that fit into a while stay below.

    The least of thousands is an error of the clock: 15 % below all others, once a fifth of them.
    """
    found = list[float]()
    while sum(found) < LONG_ENOUGH:
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return float(np.quantile(found, 0.1))


def calls(work: works.Work, mode: str, ways: tuple[str, ...]) -> dict[str, Callable[[], object]]:
    """Runs of a work in one mode, by way."""
    (q0,), (v0,) = work.initial(1)
    found: dict[str, Callable[[], object]] = {}
    if mode == "value" and numba_loops is not None:
        found["numba"] = lambda: numba_loops.run(work, q0[None], v0[None])
    given = {"t1": work.t1, "steps": work.steps, "e": work.restitution, "args": work.args, "save": "final"}

    def end(way: str, q, v):
        s = ji.solve(work.problem, q, v, execution=way, **given)
        return jnp.concatenate([s.q[-1], s.v[-1]])

    for way in ways:
        of = {
            "value": lambda q, v, way=way: end(way, q, v),
            "jvp": lambda q, v, way=way: jax.jvp(lambda q: end(way, q, v), (q,), (jnp.ones_like(q),)),
            "vjp": jax.value_and_grad(lambda q, v, way=way: jnp.sum(end(way, q, v)), (0, 1)),
        }[mode]
        compiled = contenders.compiler(of, q0, v0)
        found[way] = lambda compiled=compiled: jax.block_until_ready(compiled()(q0, v0))
    return found


def rows(names: tuple[str, ...], modes: tuple[str, ...], ways: tuple[str, ...], rounds: int) -> Iterator[dict]:
    """A row for each work and mode."""
    for name in names:
        work, values = works.WORKS[name], {}
        for mode in modes:
            runs, first = calls(work, mode, ways), {}
            for way, run in list(runs.items()):
                begin = time.process_time()
                try:
                    run()
                except ValueError as refused:
                    print(f"{name}, {mode}: {str(refused)[:120]}", file=sys.stderr)
                    del runs[way]
                first[way] = time.process_time() - begin
            times = {way: [] for way in runs}
            for _ in range(rounds):
                for way, run in runs.items():
                    times[way].append(quick(run))
            us = {way: 1e6 * float(np.median(x)) / work.steps for way, x in times.items()}
            values = us if mode == "value" else values
            row = {"work": name, "mode": mode} | {way: f"{x:.3g}" for way, x in us.items()}
            base = values.get("numba")
            for way in (x for x in ways if x in runs):
                if mode == "value":
                    row[f"{way} / numba"] = f"{us[way] / base:.2f}" if base else ""
                else:
                    row[f"{way} / value"] = f"{us[way] / values[way]:.2f}" if way in values else ""
            row |= {f"first {way} [s]": f"{first[way]:.1f}" for way in ways if way in runs}
            yield row


# the parts of a step


def repeated(part: Callable, times: int) -> Callable:
    """A loop over evaluations of ``part(q)``, each at a position that depends on the last result."""

    def loop(q):
        def body(_, q):
            found = sum(jnp.sum(x) for x in jax.tree.leaves(part(q)))
            return q + 1e-300 * found

        return lax.fori_loop(0, times, body, q)

    return loop


def parts(work: works.Work, state: tuple[np.ndarray, np.ndarray]) -> dict[str, Callable]:
    """Functions of the position, by what they are."""
    problem, args = work.problem, jax.tree.map(jnp.asarray, work.args)
    q, v = map(jnp.asarray, state)
    m, d, t = problem.count(0.0, q, args), q.size, jnp.zeros(())
    metric = lambda q: Metric.at(problem, q, args)
    way = lambda q: StepPath(t, jnp.asarray(work.h), q, work.h * v, args)
    found = {
        "an addition": lambda q: q[0],
        "force": lambda q: problem.generalised_force(t, q, v, args),
        "mass and its solve": lambda q: metric(q).solve(v + q),
        "gaps": lambda q: jnp.min(problem.gaps(t, q, args)),
        "gradients of all": lambda q: problem.gaps.jacobian(t, q, args)[1],
    }
    if looks_for_tunnelling(problem, t, q, args):
        found["look for tunnelling"] = lambda q: loses_the_gap(problem, way(q), jnp.zeros(m, bool)) * 1.0
    sizes = ji.ActiveSet().working_sets(m, d)
    return found | {
        title: part for size in sizes for title, part in solver_parts(problem, q, v, args, work.h, size).items()
    }


def solver_parts(problem: ji.Problem, q, v, args, h: float, size: int) -> dict[str, Callable]:
    """Parts for a working set of so many contacts, the nearest ones."""
    metric, t = (lambda q: Metric.at(problem, q, args)), jnp.zeros(())
    gap = problem.gaps(t, q, args)
    rows = jnp.argsort(gap)[:size]
    chosen = lambda q: jnp.where(q[0] < jnp.inf, rows, 0)  # not known to the compiler
    gradients = lambda q: problem.gaps.jacobian(t, q, args, None if size == len(gap) else chosen(q))[1]
    fixed = gradients(q)
    contacts = lambda q: Contacts.of(jnp.zeros(size), fixed, metric(q).solve(fixed.T))
    offset = gap[rows] / h + fixed @ (v + h * metric(q).solve(problem.generalised_force(t, q, v, args)))
    impulses = lambda q: ji.ActiveSet().impulses(
        contacts(q), offset + 1e-300 * q[0], jnp.asarray(1e-12), jnp.zeros(size)
    )
    return {
        f"gradients of {size}": gradients,
        f"Delassus matrix of {size}": lambda q: contacts(q).delassus() + q[0],
        f"solver of {size}": lambda q: impulses(q).impulse,
    }


def profile(name: str, rounds: int) -> dict[str, float]:
    """Microseconds of native code for the parts of a step, and of whole steps."""
    work = works.WORKS[name]
    q0, v0 = work.initial(1)
    found = ji.solve(work.problem, q0[0], v0[0], t1=work.t1, steps=work.steps, e=work.restitution, args=work.args,
        save="final",
                     execution="xla")  # fmt: skip
    state = np.asarray(found.q[-1]), np.asarray(found.v[-1])
    times, runs = 2000, {}
    for title, part in parts(work, state).items():
        call = over_lanes(jax.jit(repeated(part, times)), (None,))
        call(state[0])
        runs[title] = lambda call=call: call(state[0])
    best = {title: float("inf") for title in runs}
    for _ in range(rounds):
        for title, run in runs.items():
            best[title] = min(best[title], 1e6 * quick(run) / times)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/middle"))
    parser.add_argument("--only", nargs="+", metavar="WORK", default=WORKS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each motion, in place of the work's own")
    parser.add_argument("--parts", action="store_true", help="the parts of a step in place of the motions")
    options = parser.parse_args()
    contenders.configure()
    if options.steps:
        for name in options.only:
            works.WORKS[name] = replace(works.WORKS[name], steps=options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.parts:
        found = (
            {"work": name, "part": part, "us": f"{us:.3g}"}
            for name in options.only
            for part, us in profile(name, options.rounds).items()
        )
        file_name = "middle_parts.csv"
    else:
        found, file_name = (
            rows(tuple(options.only), tuple(options.modes), tuple(options.ways), options.rounds),
            "middle.csv",
        )
    kept = []
    for row in found:
        kept.append(row)
        print(*(f"{key}: {x}" for key, x in row.items()), sep="  ", flush=True)
    names = list(dict.fromkeys(key for row in kept for key in row))
    with open(options.out / file_name, "w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)


if __name__ == "__main__":
    main()
