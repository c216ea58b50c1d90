"""What a statement costs: the same system by hand, from its Lagrangian, from its potential, from SymPy.

    python experiments/benchmarks/statements.py --out out/statements

Compiling (first call less a later one, nothing kept from before) and running, in processor seconds, of one motion by
`solve` and of many by `ensemble`. The statements of a row take turns, each stated anew, and the median of a statement's
times counts: garbage is collected between them. Beside every time stands its ratio to the system by hand, and how far
the final positions of one motion are from those: rounding, which the motion amplifies.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

os.environ["JAXIMPACT_CACHE"] = "off"

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from sympy.physics.mechanics import LagrangesMethod, dynamicsymbols

import jaximpact as ji
from jaximpact.compiler.llvm import jit as machine_code

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import contenders, works

LANES = 1000
HEADER = "| system | statement | motions | compile [s] | ratio | run [s] | ratio | apart |\n|---|---|---|---|---|---|---|---|"  # noqa: E501


def double_potential(q, args):
    upper = (args["m1"] + args["m2"]) * args["l1"] * jnp.cos(q[0])
    return -args["g"] * (upper + args["m2"] * args["l2"] * jnp.cos(q[1]))


def links_potential(q, args):
    return -args["g"] * jnp.arange(q.size, 0, -1).astype(q.dtype) @ jnp.cos(q)


def double_symbols():
    """Kinetic and potential energy of the double pendulum, and its gaps, in SymPy."""
    a, b = dynamicsymbols("a b")
    v, w = a.diff(dynamicsymbols._t), b.diff(dynamicsymbols._t)
    m1, m2, l1, l2, g, wall = sympy.symbols("m1 m2 l1 l2 g wall")
    kinetic = (m1 + m2) * l1**2 * v**2 / 2 + m2 * l2**2 * w**2 / 2 + m2 * l1 * l2 * v * w * sympy.cos(a - b)
    potential = -g * ((m1 + m2) * l1 * sympy.cos(a) + m2 * l2 * sympy.cos(b))
    joint = l1 * sympy.sin(a)
    return LagrangesMethod(kinetic - potential, [a, b]), [wall - joint, wall - joint - l2 * sympy.sin(b)]


def links_symbols(n: int):
    """The same of n links."""
    q, t, g, stop = dynamicsymbols(f"q:{n}"), dynamicsymbols._t, *sympy.symbols("g stop")
    carried = lambda i, j: n - max(i, j)
    pairs = [(i, j) for i in range(n) for j in range(n)]
    kinetic = sum(carried(i, j) * sympy.cos(q[i] - q[j]) * q[i].diff(t) * q[j].diff(t) for i, j in pairs) / 2
    potential = -g * sum((n - i) * sympy.cos(q[i]) for i in range(n))
    return LagrangesMethod(kinetic - potential, list(q)), [stop - x + (q[i - 1] if i else 0) for i, x in enumerate(q)]


def anew(function: Callable) -> Callable:
    """The same function as another object, of which nothing is known yet."""
    return FunctionType(function.__code__, function.__globals__, function.__name__)


def statements(work: works.Work, potential: Callable, symbols: tuple) -> dict[str, ji.Problem]:
    """The system of a work in every way, without energies."""
    force, gaps, mass, potential = map(
        anew, (*(getattr(work.problem, x) for x in ("force", "constraints", "mass")), potential)
    )
    by_hand = ji.Problem(force, gaps, mass)

    def lagrangian(t, q, v, args):
        return 0.5 * v @ (mass(q, args) @ v) - potential(q, args)

    found = {
        "by hand": by_hand,
        "from_lagrangian": ji.Problem.from_lagrangian(lagrangian, gaps),
        "from_potential": ji.Problem.from_potential(potential, gaps, mass),
        "from_sympy": ji.from_sympy(*symbols),
    }
    return {name: problem.replace(energy=None) for name, problem in found.items()}


def calls(work: works.Work, lanes: int) -> Callable[[ji.Problem], Any]:
    """A motion, or many, of a problem: final positions."""
    q0, v0 = work.initial(lanes)
    options = {"t1": work.t1, "h": work.h, "e": work.restitution, "args": work.args, "save": "final"}
    if lanes == 1:
        return lambda problem: np.asarray(ji.solve(problem, q0[0], v0[0], sensitivity="none", **options).q)
    return lambda problem: ji.ensemble(problem, q0, v0, **options).q


def forget() -> None:
    """Nothing compiled is known any more, and no garbage is left to collect."""
    jax.clear_caches()
    machine_code._programs.clear()
    gc.collect()


def measured(call: Callable[[ji.Problem], Any], problem: ji.Problem) -> tuple[float, float, Any]:
    """Processor seconds of compiling and of running, and what is found."""
    times = []
    for _ in range(4):
        begun = time.process_time()
        found = call(problem)
        times.append(time.process_time() - begun)
    return times[0] - min(times), min(times), found


def rows(rounds: int) -> list[dict]:
    """The rows of both systems, for one motion and for many."""
    found = []
    for name, potential, symbols in (
        ("double-pendulum", double_potential, double_symbols),
        ("links-4", links_potential, lambda: links_symbols(4)),
    ):
        work = works.WORKS[name]
        for lanes in (1, LANES):
            call, times, final = calls(work, lanes), {}, {}
            for _ in range(rounds + 1):
                for statement, problem in statements(work, potential, symbols()).items():
                    forget()
                    compiling, running, final[statement] = measured(call, problem)
                    times.setdefault(statement, []).append((compiling, running))
            # the first round finds jax itself cold
            typical = {statement: np.median(several[1:], axis=0) for statement, several in times.items()}
            for statement, (compiling, running) in typical.items():
                found.append(
                    {
                        "system": name,
                        "statement": statement,
                        "motions": lanes,
                        "compile": compiling,
                        "compile_ratio": compiling / typical["by hand"][0],
                        "run": running,
                        "run_ratio": running / typical["by hand"][1],
                        "apart": float(np.median(np.abs(final[statement] - final["by hand"]))),
                    }
                )
                print(line(found[-1]), file=sys.stderr, flush=True)
    return found


def line(row: dict) -> str:
    """A row of the table."""
    return (
        f"| {row['system']} | {row['statement']} | {row['motions']} | {row['compile']:.2f} | "
        f"{row['compile_ratio']:.2f} | "
        f"{row['run']:.4f} | {row['run_ratio']:.2f} | {row['apart']:.1e} |"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/statements"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    contenders.configure()
    gc.disable()  # a collection would count for one of them
    table = "\n".join([HEADER, *map(line, rows(options.rounds))])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "statements.md").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
