"""Restitution and release height of measured bouncing balls, by simulating every drop hundreds of times.

Every drop is simulated with the Paoli-Schatzman scheme for hundreds of pairs (restitution e, release height H) and
three steps h, all drops in one call of `jaximpact.ensemble` for each h, in two rounds: over a wide box, then over a
small box around the best pair. The contact times are extrapolated to h = 0 and compared with the measured ones by a
loss that forgives missed and extra contacts. Written to the output folder: fits.csv (a row a drop), results.npz,
figure.png.

    python experiments/cases/measured_bounces.py                              # the synthetic file, with known truth
    python experiments/cases/measured_bounces.py --data bounce_times.csv      # measured drops

Every row of the data is one contact: ball (a name), drop_height_cm (nominal height of the ball's lowest point at
release), drop (which repeat), bounce (0, 1, 2, ... the order of contacts), time_s (time of contact; only differences
within a drop count). Columns in any order, between them `,`, `;` or tab (with decimal commas or points); time_ms and
drop_height_mm or _m are converted. At least 3 contacts a drop. H is looked for between 0.5 and 1.35 times the nominal
height, e between 0.5 and 0.98.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np
from bounces.data import NEEDED, Drop, read_drops
from bounces.figure import draw
from bounces.fit import FEWEST, fit_drop, locate
from bounces.report import print_remarks, print_tables, print_truth, write
from bounces.simulation import GRAVITY, simulate, to_zero
from scipy.stats.qmc import Halton

SYNTHETIC = Path(__file__).parent / "data" / "synthetic_bounces.csv"
WIDE = (1024, 2048, 4096)  # steps of a trajectory in round 1, multiples of ROWS: h of some ms, enough to look around
FINE = (8192, 16384, 32768)  # steps in round 2: h below 1 ms, the jitter of a trigger
BOX_E, BOX_H = (0.5, 0.98), (0.5, 1.35)  # round 1, e and H / nominal height: balls that bounce, heights badly set
HALF_E, HALF_H = 0.03, 0.15  # round 2, half-widths in log e and log H: more than round 1 was off for any measured drop
MOST_E = 0.999  # every lane of round 2 must lose energy
MARGIN = 1.08  # simulated over recorded duration: most lanes of round 2 then reach the last contact


def fit_all(drops: list[Drop], lanes: int, jitter: float) -> list[dict | None]:
    """Both rounds for all drops; arrays have a row a drop and a column a lane."""
    nominal = np.array([drop.drop_height_cm / 100 for drop in drops])[:, None]
    last = np.array([drop.times[-1] for drop in drops])[:, None]
    horizon = MARGIN * last + np.sqrt(2 * BOX_H[1] * nominal / GRAVITY) + np.zeros(lanes)
    # no two lanes alike: an impact's phase within its step changes the rebound by O(h), and averages out over the lanes
    x, y = 2 * Halton(2, scramble=False).random(lanes).T - 1

    # round 1: the wide box
    e = np.mean(BOX_E) + 0.5 * np.ptp(BOX_E) * x + 0 * nominal
    height = nominal * (np.mean(BOX_H) + 0.5 * np.ptp(BOX_H) * y)
    contacts = to_zero(simulate(e, height, horizon, WIDE), WIDE)
    first = np.array([locate(*drop, jitter) for drop in zip(drops, e, height, contacts, strict=True)])
    first[:, 0] = np.minimum(first[:, 0], MOST_E * np.exp(-HALF_E))

    # round 2: the small boxes around the pairs of round 1
    e, height = first[:, :1] * np.exp(HALF_E * x), first[:, 1:] * np.exp(HALF_H * y)
    by_step = simulate(e, height, horizon, FINE)
    contacts, h = to_zero(by_step, FINE), horizon[:, :1] / FINE
    simulated = zip(drops, e, height, contacts, np.swapaxes(by_step, 0, 1), h, first, strict=True)
    return [fit_drop(*drop, jitter) for drop in simulated]


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SYNTHETIC, help="CSV file of contact times (default: synthetic)")
    parser.add_argument("--out", type=Path, default=Path("out/measured_bounces"), help="folder to write to")
    parser.add_argument("--drops", type=int, help="use only this many drops, spread over the file, for a quick run")
    parser.add_argument("--lanes", type=int, default=240, help="pairs (e, H) per drop and round (default 240)")
    parser.add_argument("--jitter-ms", type=float, default=1.0, help="timing error of the trigger [ms] (default 1)")
    options = parser.parse_args(argv)
    if options.lanes < FEWEST or (options.drops is not None and options.drops < 1) or not options.jitter_ms > 0:
        parser.error(f"--lanes must be at least {FEWEST}, --drops at least 1, --jitter-ms positive")
    try:
        drops, unusable = read_drops(options.data)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    if not drops:
        parser.exit(2, f"error: {options.data}: no drop has {NEEDED} contacts or more\n")
    if options.drops is not None:
        drops = [drops[i] for i in np.unique(np.linspace(0, len(drops) - 1, options.drops).round().astype(int))]
    options.out.mkdir(parents=True, exist_ok=True)

    jax.config.update("jax_enable_x64", True)
    start = time.perf_counter()
    fits = fit_all(drops, options.lanes, 1e-3 * options.jitter_ms)
    count = (len(WIDE) + len(FINE)) * options.lanes * len(drops)
    print(f"{options.data}: {len(drops)} drops, {sum(len(drop.times) for drop in drops)} contacts;", end=" ")
    print(f"simulated {count} trajectories and fitted in {time.perf_counter() - start:.0f} s")
    why = f"no simulated motion agrees with {NEEDED} of its contacts; is drop_height_cm right?"
    unusable += [(drop, why) for drop, fit in zip(drops, fits, strict=True) if fit is None]
    fits = [fit for fit in fits if fit is not None]
    if not fits:
        parser.exit(2, f"error: {options.data}: {drops[0].label}: {why}\n")
    print_tables(fits)
    print_remarks(fits, unusable)
    print_truth(fits)
    write(options.out, fits, unusable, json.dumps(vars(options), default=str))
    draw(options.out / "figure.png", fits)
    print(f"\nwrote {options.out}/fits.csv, results.npz, figure.png")


if __name__ == "__main__":
    main()
