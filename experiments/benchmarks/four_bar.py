"""A four-bar linkage with a stop by joints, and by hand in its crank's angle: error, time of 1000 motions,
first answers.

python experiments/benchmarks/four_bar.py --out out/four_bar      five minutes on one core

Both ways of a scheme run in turn, in a process of their own each for the first answers; processor seconds,
the least of the rounds.
"""

import argparse
import csv
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.timing import in_new_process

LANES, STEPS, ROUNDS, T1 = 1000, 1000, 5, 1.0
SCHEMES = ("MoreauJean", "EventCorrected")
WAYS = ("by joints", "by hand")


def statement(way):
    """Problem, its starts (LANES, d), options, and the crank's angle of coordinates."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaximpact as ji
    from jaximpact import catalogue

    entry = catalogue.get("four-bar")
    problem, case = entry.problem, entry.case()
    cranks, (a, b, c), base = np.linspace(0.4, 0.6, LANES), case.args["rods"], case.args["base"]

    def angles(crank):
        x, y = a * jnp.cos(crank) - base, a * jnp.sin(crank)
        square = x * x + y * y
        rocker = jnp.arctan2(y, x) - jnp.arccos((c**2 + square - b**2) / (2 * c * jnp.sqrt(square)))
        return jnp.stack([crank, jnp.arctan2(c * jnp.sin(rocker) - y, c * jnp.cos(rocker) - x), rocker])

    def lagrangian(t, q, v, args):
        q, v = jax.jvp(angles, (q[0],), (v[0],))
        return 0.5 * jnp.sum(args["inertias"] * v * v) - args["gravity"] * jnp.sum(args["arms"] * jnp.sin(q))

    options = {"t1": T1, "steps": STEPS, "e": case.restitution, "args": case.args, "save": "final"}
    if way == "by hand":
        problem = ji.Problem.from_lagrangian(lagrangian, problem.constraints)
        return problem, cranks[:, None], np.ones((LANES, 1)), options
    q0, v0 = jax.vmap(lambda crank: jax.jvp(angles, (crank,), (jnp.ones_like(crank),)))(cranks)
    return problem, np.asarray(q0), np.asarray(v0), options


def first(way, scheme, call):
    """Processor seconds of a first solve, or of a first Jacobian, in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jaximpact as ji

    problem, q0, v0, options = statement(way)
    run = ji.solve if call == "solve" else ji.sensitivities
    begin = time.process_time()
    jax.block_until_ready(jax.tree.leaves(run(problem, q0[0], v0[0], scheme=getattr(ji, scheme)(), **options)))
    return time.process_time() - begin


def table(rounds):
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpy as np

    import jaximpact as ji

    for scheme in SCHEMES:
        method, runs, reference, rows = getattr(ji, scheme)(), {}, None, {}
        for way in WAYS[::-1]:
            problem, q0, v0, options = statement(way)
            if reference is None:
                exact = options | {"scheme": ji.EventDriven(1e-11, 1e-11), "steps": 4}
                reference = np.asarray(ji.ensemble(problem, q0, v0, **exact).q[:, -1, 0])
            runs[way] = partial(ji.ensemble, problem, q0, v0, scheme=method, progress=False, **options)
            found = runs[way]()
            error = np.max(np.abs(np.asarray(found.q)[:, -1, 0] - reference))
            rows[way] = {"scheme": scheme, "way": way, "error [rad]": f"{error:.1e}"}
        seconds = {way: [] for way in WAYS}
        answers = {(way, call): [] for way in WAYS for call in ("solve", "sensitivities")}
        for _ in range(rounds):
            for way in WAYS:
                begin = time.process_time()
                runs[way]()
                seconds[way].append(time.process_time() - begin)
                for call in ("solve", "sensitivities") if len(answers[way, "solve"]) < 2 else ():
                    answers[way, call].append(in_new_process(__file__, "first", way, scheme, call))
        for way in WAYS:
            rows[way] |= {
                f"{LANES} motions of {STEPS} steps [s]": f"{min(seconds[way]):.2f}",
                "first solve [s]": f"{min(answers[way, 'solve']):.1f}",
                "first Jacobian [s]": f"{min(answers[way, 'sensitivities']):.1f}",
            }
            yield rows[way]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/four_bar"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    rows = list(table(options.rounds))
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "four_bar.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(*row.values(), sep="\t")


if __name__ == "__main__":
    main()
