"""A pile of disks that rub: processor time beside Siconos, with one law, scheme, step and tolerance.

    python experiments/benchmarks/rubbing_pile.py --out out/rubbing_pile

Solid disks of several sizes fall into a box and come to rest: MoreauJean, mu = 1/2, steps of 2 ms for a second, each
contact problem to 1e-8 m/s. Siconos has normals of the end of a step and so solves several times a step, ours of its
beginning, so that states differ by what falling on one another makes of that.
Where Siconos is absent its columns are empty.
"""

import argparse
import csv
import json
import subprocess
import time
from pathlib import Path

SIZES = {16: 4, 50: 7}  # disks, and how many of them side by side
SICONOS_PYTHON = "/usr/bin/python3"
JOB = {"mu": 0.5, "g": 9.81, "h": 2e-3, "steps": 500, "tolerance": 1e-8, "iterations": 100_000}
ROUNDS = 3


def start(disks, columns):
    """Radii (n,), width of the box and places (n, 3)."""
    import numpy as np

    rng = np.random.default_rng(2)
    radii = 0.1 * rng.uniform(0.8, 1.2, disks)
    grid = np.stack(np.divmod(np.arange(disks), columns)[::-1], axis=1) + 0.5
    centres = 0.25 * grid + 0.01 * rng.uniform(-1, 1, (disks, 2))
    return radii, 0.25 * columns + 0.1, np.concatenate([centres, np.zeros((disks, 1))], axis=1)


def own(radii, width, q0, rounds):
    """The solution, and the least processor seconds of the rounds."""
    import jaximpact as ji
    from jaximpact.bodies import ConjugateGradients, disks

    problem = disks(
        radii, walls=[(0, width), (0, None)], gravity=JOB["g"], friction=JOB["mu"], inertias="solid", lists=True
    )
    solver = ConjugateGradients(tolerance=JOB["tolerance"])
    end = {"t1": JOB["h"] * JOB["steps"], "steps": JOB["steps"]}
    run = lambda: ji.solve(problem, q0.ravel(), 0 * q0.ravel(), projection=solver, **end)
    found, seconds = run(), []
    for _ in range(rounds):
        begin = time.process_time()
        run()
        seconds.append(time.process_time() - begin)
    return found, min(seconds)


def siconos(python, job, rounds):
    """The answer of the last round with the least seconds; None where there is no Siconos."""
    script, seconds = Path(__file__).with_name("baselines") / "siconos_rubbing.py", []
    for _ in range(rounds):
        try:
            ran = subprocess.run([python, str(script)], input=json.dumps(job), capture_output=True, text=True)
        except FileNotFoundError:
            return None
        if ran.returncode or "missing" in (found := json.loads(ran.stdout)):
            return None
        seconds.append(found["seconds"])
    return found | {"seconds": min(seconds)}


def rows(python, rounds):
    import numpy as np

    for disks, columns in SIZES.items():
        radii, width, q0 = start(disks, columns)
        found, seconds = own(radii, width, q0, rounds)
        ends = np.asarray(found.pairs).reshape(-1, 2)
        ends = np.unique(ends[(ends[:, 1] >= 0) & (ends[:, 0] < disks)], axis=0)
        job = JOB | {"radii": radii.tolist(), "width": width, "q0": q0.tolist(), "pairs": ends.tolist()}
        other = siconos(python, job, rounds)
        row = {
            "disks": disks,
            "us a step": f"{1e6 * seconds / JOB['steps']:.0f}",
            "sweeps and steps of solvers": int(found.iterations),
            "residual [m/s]": f"{float(found.residual):.0e}",
            "status": "failed" if found.failed else "not failed",
        }
        if other is not None:
            row |= {
                "Siconos": other["version"],
                "its us a step": f"{1e6 * other['seconds'] / JOB['steps']:.0f}",
                "ratio": f"{seconds / other['seconds']:.2f}",
                "its iterations": other["iterations"],
                "its residual [m/s]": f"{other['residual']:.0e}",
                "solves at its limit": other["late"],
            }
        yield row


def main():
    import jax

    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/rubbing_pile"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--siconos-python", default=SICONOS_PYTHON, help="the interpreter that has Siconos")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = []
    for row in rows(options.siconos_python, options.rounds):
        found.append(row)
        print(row, flush=True)
    with open(options.out / "rubbing_pile.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
