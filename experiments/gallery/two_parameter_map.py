"""Period, and impacts in a forcing period, of the forced impact oscillator over frequency and place of the wall."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import numpy as np
from impact_oscillator import PROBLEM, args_of, forcing_period

from jaximpact.analysis import two_parameter_map

jax.config.update("jax_enable_x64", True)

DAMPING, E, START = 0.05, 0.5, 0.6
FREQUENCIES, WALLS = (1.6, 6.0), (-0.4, 0.5)
STEPS, CYCLES, SKIP = 64, 20, 250  # free motions decay by exp(-0.05 t): to 2e-6 at the shortest period


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/two_parameter_map"))
    parser.add_argument("--full", action="store_true", help="240 x 160 values; otherwise 48 x 32")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    shape = (240, 160) if options.full else (48, 32)
    began = time.perf_counter()
    found = two_parameter_map(
        PROBLEM, [START], [0.0], parameters=("frequency", "wall"),
        values=(np.linspace(*FREQUENCIES, shape[0]), np.linspace(*WALLS, shape[1])), period=forcing_period, steps=STEPS,
        cycles=CYCLES, skip=SKIP, args=args_of(1.0, DAMPING), e=E,
    )  # fmt: skip
    print(
        f"{shape[0]} x {shape[1]} values, {SKIP + CYCLES} periods of {STEPS} steps: {time.perf_counter() - began:.1f} s"
    )
    for period, count in zip(*np.unique(found.period, return_counts=True), strict=True):
        print(f"period {period}: {100 * count / found.period.size:.1f} %")
    np.savez_compressed(
        options.out / "map.npz", frequency=found.x, wall=found.y, period=found.period, impacts=found.impacts
    )
    title = f"q'' + {2 * DAMPING:g} q' + q = cos(ω t),  q ≥ wall,  e = {E:g}"
    print(f"written: {found.plot(options.out / 'map.png', title=title)}")


if __name__ == "__main__":
    main()
