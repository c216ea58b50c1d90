"""Restitution and air drag of measured bouncing balls, by gradients of simulated motions.

All drops are simulated at once, with restitution e and quadratic drag c v|v| per unit mass of each ball and release
height of each drop, and fitted by optax with derivatives of `jaximpact.solve` across up to twenty impacts. The fit
starts far away, at e = 0.5 and c = 0, with the first three contacts of every drop, whose numbers are beyond doubt, and
takes in ever more: then the contacts of the simulation are never far from those they are compared with. The whole is
done with drag and without it: does drag explain that the ratio of successive flights depends on speed? Written to the
output folder: balls.csv, drops.csv, results.npz, figure.png.

    python experiments/cases/bounces_by_gradient.py                              # the synthetic file, without drag in truth
    python experiments/cases/bounces_by_gradient.py --data bounce_times.csv      # measured drops

The data are those of measured_bounces.py; if that has been run, its results are compared with these.
"""  # noqa: E501

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np
from bounces.data import NEEDED, read_drops
from gradient_fit.figure import draw
from gradient_fit.fit import fit_all
from gradient_fit.report import print_agreement, print_remarks, print_tables, rows_of, write

SYNTHETIC = Path(__file__).parent / "data" / "synthetic_bounces.csv"


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SYNTHETIC, help="CSV file of contact times (default: synthetic)")
    parser.add_argument("--out", type=Path, default=Path("out/bounces_by_gradient"), help="folder to write to")
    parser.add_argument("--steps", type=int, default=1024, help="time steps of a drop (default 1024)")
    parser.add_argument("--jitter-ms", type=float, default=1.0, help="timing error of the trigger [ms] (default 1)")
    parser.add_argument(
        "--ensemble",
        type=Path,
        default=Path("out/measured_bounces/fits.csv"),
        help="results of measured_bounces.py to compare with, if there (default out/measured_bounces/fits.csv)",
    )
    options = parser.parse_args(argv)
    if options.steps < 256 or not options.jitter_ms > 0:
        parser.error("--steps must be at least 256, --jitter-ms positive")
    try:
        drops, unusable = read_drops(options.data)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    if not drops:
        parser.exit(2, f"error: {options.data}: no drop has {NEEDED} contacts or more\n")
    options.out.mkdir(parents=True, exist_ok=True)

    jax.config.update("jax_enable_x64", True)
    start = time.perf_counter()
    fit, vacuum = (fit_all(drops, options.steps, 1e-3 * options.jitter_ms, drag) for drag in (True, False))
    print(f"{options.data}: {len(drops)} drops, {sum(len(drop.times) for drop in drops)} contacts;", end=" ")
    print(f"fitted with and without drag in {time.perf_counter() - start:.0f} s")
    rows = rows_of(fit, vacuum)
    print_tables(rows)
    print_remarks(rows, fit, {drop.ball: drop.truth[0] for drop in drops if np.isfinite(drop.truth[0])})
    print_agreement(fit, vacuum, options.ensemble)
    for drop, why in unusable:
        print(f"not used: {drop.label}: {why}")
    write(options.out, rows, fit, vacuum, json.dumps(vars(options), default=str))
    draw(options.out / "figure.png", fit, vacuum)
    print(f"\nwrote {options.out}/balls.csv, drops.csv, results.npz, figure.png")


if __name__ == "__main__":
    main()
