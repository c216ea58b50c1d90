"""Write the synthetic bounce times of the demo, with the truth beside them.

Contact times of an ideal ball of constant restitution (closed form, not the solver), spoilt the way an acoustic
stopwatch spoils them: 1 ms of trigger jitter, some contacts missed, some extra contacts late in a drop.

    python experiments/cases/make_synthetic_bounces.py            # rewrites experiments/cases/data/synthetic_{bounces,truth}.csv
"""  # noqa: E501

import argparse
import csv
from pathlib import Path

import numpy as np

GRAVITY = 9.81
BALLS = {  # ball: (restitution, nominal drop heights [cm], drops per height)
    "foam": (0.75, (60, 90), 3),
    "rubber": (0.86, (30, 60), 3),
    "steel": (0.91, (20, 40, 80), 2),
    "celluloid": (0.95, (10, 25), 2),
}
JITTER = 1e-3  # standard deviation of a trigger [s]
QUIET = 0.11  # flights shorter than this are not recorded any more [s]
MISSED, LATE = 0.3, 0.3  # probability that a drop has a missed contact, and an extra one at its end


def drop(rng: np.random.Generator, e: float, height: float) -> np.ndarray:
    """Recorded contact times [s] of one drop from ``height`` [m], from its first recorded contact."""
    flights = 2 * np.sqrt(2 * height / GRAVITY) * e ** np.arange(1, 40)
    times = np.concatenate([[0.0], np.cumsum(flights[flights > QUIET])])[:20]
    if rng.random() < MISSED:
        times = np.delete(times, rng.integers(2, len(times)))
    times = times + rng.normal(0, JITTER, len(times))
    if rng.random() < LATE:  # a noise after the drop: an interval longer than the one before it
        times = np.append(times, times[-1] + rng.uniform(1.3, 2.5) * (times[-1] - times[-2]))
    return times - times[0]


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data", help="folder to write to")
    parser.add_argument("--seed", type=int, default=7, help="seed of jitter, misses and extra contacts")
    options = parser.parse_args(argv)
    rng = np.random.default_rng(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    with (
        open(options.out / "synthetic_bounces.csv", "w", newline="") as data,
        open(options.out / "synthetic_truth.csv", "w", newline="") as truth,
    ):
        bounces = csv.writer(data, lineterminator="\n")
        truths = csv.writer(truth, lineterminator="\n")
        bounces.writerow(["ball", "drop_height_cm", "drop", "bounce", "time_s"])
        truths.writerow(["ball", "drop_height_cm", "drop", "e", "height_cm"])
        for ball, (e, heights, repeats) in BALLS.items():
            for nominal in heights:
                for number in range(1, repeats + 1):
                    height = nominal * (1 + 0.01 * rng.standard_normal())  # the hand does not release exactly there
                    truths.writerow([ball, nominal, number, e, f"{height:.4f}"])
                    for k, time in enumerate(drop(rng, e, height / 100)):
                        bounces.writerow([ball, nominal, number, k, f"{time:.6f}"])


if __name__ == "__main__":
    main()
