"""Time of one prediction of a Kalman filter, with its update: 300 balls over 180 frames, in one scan; the filters of
`cases/track_ball.py`, in turn.

python experiments/benchmarks/filters.py
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cases.track_ball import FILTERS, FRAMES, balls, compiled_filter
from outside.tables import write_table

BALLS, ROUNDS = 300, 5


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    seen = balls(BALLS)[1]
    runs = {name: compiled_filter(predict) for name, predict in FILTERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS + 1):  # the first one compiles
        for name, run in runs.items():
            begin = time.process_time()
            jax.block_until_ready(run(seen))
            seconds[name].append(time.process_time() - begin)
    micro = {name: 1e6 * np.median(times[1:]) / (BALLS * FRAMES) for name, times in seconds.items()}
    least = micro["plain AD"]
    lines = [{"filter": name, "µs a prediction": f"{x:.3g}", "ratio": f"{x / least:.2g}"} for name, x in micro.items()]
    write_table(options.out / "filters.csv", lines)
    for line in lines:
        print(", ".join(f"{key} {x}" for key, x in line.items()))
    return lines


if __name__ == "__main__":
    main()
