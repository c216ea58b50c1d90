"""What white forces cost: ensembles with noise beside the same ones without it, and beside numpy's normal numbers.

python experiments/benchmarks/noise.py --out out/noise      two minutes on one core

Both run in turn; nanoseconds of processor a step of a motion, the least of the rounds. Without noise the restitution is
1 and there is no damping, so that motions meet their stops as often.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ROUNDS, LANES, T1, H = 5, 20_000, 5.0, 0.005


def cases():
    """Name, problems without and with noise, starts (LANES, d), and scheme."""
    import jax.numpy as jnp
    import numpy as np

    import jaximpact as ji
    from benchmarks import works

    def oscillator(zeta, noise=None):
        force = lambda t, q, v, args: -q - 2 * zeta * v
        return ji.Problem(force, lambda t, q, args: q, restitution=1.0, noise=noise)

    one = lambda t, q, v, args: jnp.full((1, 1), 0.4**0.5)
    random = np.random.default_rng(0)
    q0, v0 = np.abs(random.normal(size=(LANES, 1))), random.normal(size=(LANES, 1))
    for scheme in (ji.PaoliSchatzman(), ji.MoreauJean(), ji.EventCorrected()):
        yield "oscillator beside a wall", oscillator(0.0), oscillator(0.2, one), q0, v0, {}, scheme
    work, options = works.DOUBLE, {"args": works.DOUBLE.args, "e": works.DOUBLE.restitution}
    both = work.problem.replace(noise=lambda t, q, v, args: 0.1 * jnp.eye(2))
    yield work.name, work.problem, both, *work.initial(LANES), options, ji.MoreauJean()


def measure(rounds):
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpy as np

    import jaximpact as ji

    rows = []
    for name, without, noisy, q0, v0, options, scheme in cases():
        runs = {"without": (without, {}), "with noise": (noisy, {"key": 1})}
        least = dict.fromkeys(runs, np.inf)
        for turn in range(rounds + 1):
            for way, (problem, more) in runs.items():
                begin = time.process_time()
                found = ji.ensemble(problem, q0, v0, t1=T1, h=H, scheme=scheme, **options, **more)
                seconds = time.process_time() - begin
                assert not found.failed.any(), (name, way)
                if turn:  # the first one compiles
                    least[way] = min(least[way], seconds / LANES / (T1 / H) * 1e9)
        ratio = least["with noise"] / least["without"]
        rows.append([name, type(scheme).__name__, *(f"{x:.2g}" for x in (*least.values(), ratio))])
    random, least = np.random.default_rng(0), np.inf
    for _ in range(rounds):
        begin = time.process_time()
        random.standard_normal(10_000_000)
        least = min(least, (time.process_time() - begin) * 1e2)
    return [*rows, ["normal numbers of numpy", "", "", f"{least:.2g}", ""]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/noise"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [["motion", "scheme", "without [ns]", "with noise [ns]", "ratio"], *measure(options.rounds)]
    with (options.out / "noise.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    for row in rows:
        print(*row, sep="\t")


if __name__ == "__main__":
    main()
