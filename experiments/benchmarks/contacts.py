"""A pile of disks, one motion, in Siconos and in jaximpact: one scheme, constraints, step and core, in turn.

Both run Moreau-Jean with theta = 1/2 and one linearisation a step, and beside each time stands the largest KKT residual
of all steps. There are two sets of constraints: all pairs of disks, which is what `works` states, and those that
start within a few diameters, as a program with a search for neighbours would see: in a settling pile they are enough.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import jax
import numpy as np

import jaximpact as ji

from . import timing, works
from .baselines.siconos_pile import SiconosPile
from .contenders import Contender, configure

WORK = "pile-50"
REACH = 2.0  # diameters
ROUNDS = 3  # at most: a round of Siconos with all pairs takes a quarter of a minute


def sets(work: works.Work) -> dict[str, np.ndarray]:
    """The pairs (k, 2) of each set of constraints."""
    q0 = work.initial(1)[0][0]
    return {
        "all pairs": works.near_pairs(q0, np.inf),
        "near pairs": works.near_pairs(q0, REACH * 2 * work.args["radius"]),
    }


def ours(work: works.Work):
    """`jaximpact.solve`; () -> Solution of the final state."""
    q0, v0 = work.initial(1)
    # one Newton iteration is exact for a constant force
    scheme = ji.MoreauJean(newton=1)
    return lambda: jax.block_until_ready(
        ji.solve(work.problem, q0[0], v0[0], t1=work.t1, steps=work.steps, e=work.restitution, args=work.args,
                 scheme=scheme, save="final", sensitivity="none")
    )  # fmt: skip


def make(name: str, steps: int, pairs: np.ndarray) -> list[Contender]:
    """The contender of a work, in any process: ``run`` gives final position, residual and status."""
    configure()
    run = ours(works.with_pairs(replace(works.WORKS[name], steps=steps), pairs))

    def final(cores):
        solution = run().raise_if_failed()
        return np.asarray(solution.q[-1]), float(solution.residual)

    return [Contender("solve, MoreauJean", final)]


def rows(rounds: int, folder, work: works.Work | None = None) -> list[dict]:
    """A row of Siconos, where it is installed, and one of jaximpact, for both sets of constraints."""
    work = work or works.WORKS[WORK]
    try:
        siconos, remark = SiconosPile(folder), ""
    except RuntimeError as error:
        siconos, remark = None, str(error)
    found = []
    for name, pairs in sets(work).items():
        print(f"contacts: {work.name}, {name}", file=sys.stderr, flush=True)
        found += measure(work, pairs, f"{work.name}, {name}", siconos, remark, min(rounds, ROUNDS))
    return found


def measure(work, pairs, title: str, siconos: SiconosPile | None, remark: str, rounds: int) -> list[dict]:
    q0 = work.initial(1)[0][0]
    usual = {"section": "contacts", "work": title, "lanes": 1, "steps": work.steps, "mode": "forward",
        "dtype": "float64",
             "constraints": len(pairs) + 2 * q0.size, "cores": 1}  # fmt: skip
    theirs = usual | {"contender": "Siconos, MoreauJean", "seconds": []}
    mine = usual | {"contender": "solve, MoreauJean", "seconds": []}
    with timing.Apart(partial(make, work.name, work.steps, pairs), 1) as apart:
        first_call, (q, mine["residual"]) = apart(timing.once, 0)
        for _ in range(rounds):
            if siconos is not None:
                with timing.one_core():
                    other, _, seconds, theirs["residual"] = siconos.run(work, q0, pairs)
                theirs["seconds"].append(seconds)
                mine["difference"] = float(np.abs(q - other).max())
            mine["seconds"].append(apart(timing.shortest, 0))
    mine["compile_s"] = max(0.0, first_call - min(mine["seconds"]))
    for row in (theirs, mine):
        if row["seconds"]:
            row["ns_per_step"] = 1e9 * min(row["seconds"]) / work.steps
            if siconos is not None:
                row["ratio"] = min(row["seconds"]) / min(theirs["seconds"])
    if siconos is None:
        theirs["remark"] = remark
    return [theirs, mine]
