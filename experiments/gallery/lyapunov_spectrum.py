"""Largest Lyapunov exponent of the forced impact oscillator over the forcing frequency,
beside an event-driven reference.

One batch of motions; the reference (impact_oscillator.py) shares no code with it. Where impacts accumulate and
the contact stays for a while, a motion forgets its start altogether: its exponents are -infinity, and it is left out.

python experiments/gallery/lyapunov_spectrum.py             few motions, short averages
python experiments/gallery/lyapunov_spectrum.py --full      many, long ones: minutes
"""

import argparse
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from impact_oscillator import PROBLEM, args_of, exact_exponents, forcing_period  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from jaximpact.analysis import lyapunov  # noqa: E402

DAMPING, WALL, E = 0.02, 0.0, 0.6
START = 0.5, 0.1


def sweep(frequencies, steps, intervals):
    args = args_of(frequencies, DAMPING, WALL)
    axes = {name: 0 if name == "frequency" else None for name in args}
    return lyapunov(
        PROBLEM, [START[0]], [START[1]], interval=forcing_period, steps=steps, intervals=intervals,
        skip=100, args=args, args_axes=axes, e=E,
    )  # fmt: skip


def reference(frequencies, periods):
    """Largest exponents and their errors; NaN where impacts accumulate."""
    found = []
    for w in frequencies:
        try:
            exponents, error = exact_exponents(args_of(w, DAMPING, WALL), E, *START, periods=periods)
            found.append((exponents[0], error[0]))
        except ArithmeticError:
            found.append((np.nan, np.nan))
    return np.array(found).T


def picture(frequencies, found, places, exact, noise, path):
    figure = Figure(figsize=(8.0, 4.4), layout="constrained")
    ax = figure.subplots()
    kept = np.isfinite(found.largest)
    ax.errorbar(
        frequencies[kept], found.largest[kept], found.error[kept, 0], fmt=".", ms=4, color="#0072B2", elinewidth=0.7,
        label="jaximpact, EventCorrected",
    )  # fmt: skip
    ax.errorbar(places, exact, noise, fmt="s", ms=7, fillstyle="none", color="#D55E00", label="event-driven reference")
    ax.axhline(0, color="#222222", lw=0.8)
    ax.set_xlabel("forcing frequency w [rad/s]")
    ax.set_ylabel("largest Lyapunov exponent [1/s]")
    ax.set_title(f"z = {DAMPING}, wall = {WALL}, e = {E}; {np.sum(~kept)} of {len(kept)} with contacts that stay")
    ax.grid(color="#e4e4e4", lw=0.7)
    ax.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="256 motions, ten times the average")
    parser.add_argument("--out", type=Path, default=Path("out/lyapunov_spectrum"), help="folder for data and picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lanes, steps, intervals = (257, 100, 3000) if options.full else (33, 60, 300)
    frequencies = np.linspace(2.5, 3.1, lanes)
    found = sweep(frequencies, steps, intervals)
    places = frequencies[:: (lanes - 1) // 8]
    exact, noise = reference(places, intervals)
    print(f"{'frequency':>10} {'jaximpact':>20} {'reference':>20}")
    at = np.searchsorted(frequencies, places)
    for w, value, error, other, scatter in zip(
        places, found.largest[at], found.error[at, 0], exact, noise, strict=True
    ):
        print(f"{w:10.4f} {value:10.4f} ± {error:.4f} {other:10.4f} ± {scatter:.4f}")
    np.savez_compressed(
        options.out / "lyapunov_spectrum.npz", frequency=frequencies, exponents=found.exponents, error=found.error,
        reference_frequency=places, reference=exact, reference_error=noise,
    )  # fmt: skip
    picture(frequencies, found, places, exact, noise, options.out / "lyapunov_spectrum.png")
    print(f"written: {options.out / 'lyapunov_spectrum.npz'}, {options.out / 'lyapunov_spectrum.png'}")


if __name__ == "__main__":
    main()
