"""Basins of attraction of the forced impact oscillator where three attractors coexist,
one of which never hits the wall."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import numpy as np
from impact_oscillator import PROBLEM, args_of, forcing_period

from jaximpact.analysis import Basins, basins

jax.config.update("jax_enable_x64", True)

FREQUENCY, DAMPING, WALL, E = 2.6, 0.05, -0.3, 0.8
STEPS, CYCLES, SKIP = 48, 16, 120  # the slowest attractor decays by 0.12 damping a period at least


def compute(points: int, *, steps: int = STEPS) -> Basins:
    """The basins over points x points starts; the left edge of the grid lies behind the wall."""
    return basins(
        PROBLEM, x=np.linspace(-0.35, 1.5, points), y=np.linspace(-1.5, 1.5, points), period=forcing_period,
        steps=steps, cycles=CYCLES, skip=SKIP, args=args_of(FREQUENCY, DAMPING, WALL), e=E,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/basins"))
    parser.add_argument("--full", action="store_true", help="512 x 512 starts; otherwise 64 x 64")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    points = 512 if options.full else 64
    began = time.perf_counter()
    found = compute(points)
    print(f"{points} x {points} starts, {SKIP + CYCLES} periods of {STEPS} steps: {time.perf_counter() - began:.1f} s")
    for attractor, share in zip(found.attractors, found.shares(), strict=True):
        states = ", ".join(f"({q[0]:.4f}, {v[0]:.4f})" for q, v in zip(attractor.q, attractor.v, strict=True))
        print(f"period {attractor.period}, {100 * share:.2f} % of the admissible starts: {states}")
    np.savez_compressed(options.out / "basins.npz", x=found.x, y=found.y, labels=found.labels.astype(np.int16))
    title = f"q'' + {2 * DAMPING:g} q' + q = cos({FREQUENCY:g} t),  q ≥ {WALL:g},  e = {E:g}"
    print(f"written: {found.plot(options.out / 'basins.png', title=title)}")


if __name__ == "__main__":
    main()
