"""Bifurcation diagram of the forced impact oscillator over the frequency: period doubling, chaos, period adding.

All frequencies run in one batch, or one after the other with --sweep. At some of them the same is done impact by
impact from closed forms (impact_oscillator.py), and periods, impacts and states are compared.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import numpy as np
from impact_oscillator import PROBLEM, args_of, exact_section, forcing_period

from jaximpact.analysis import bifurcation, impact_section, period_of

jax.config.update("jax_enable_x64", True)

DAMPING, WALL, E, START, STEPS = 0.05, 0.0, 0.5, 0.5, 100
FREQUENCIES = (2.4, 6.0)
SIZES = {False: (60, 40, 200), True: (400, 300, 300)}  # frequencies, periods kept, periods skipped
COMPARED = (2.0, 2.75, 2.8, 4.0, 5.2, 5.6)  # one, two and four impacts in as many periods, then less than one a period


def compare(frequencies=COMPARED, *, steps: int = STEPS, skip: int = 200, cycles: int = 24) -> list[dict]:
    """The section by time-stepping and by exact flights, at some frequencies: periods, impacts a period,
    largest difference."""
    frequencies = np.asarray(frequencies)
    axes = {name: 0 if name == "frequency" else None for name in args_of(1.0)}
    found = impact_section(
        PROBLEM, [START], [0.0], period=forcing_period, steps=steps, cycles=cycles, skip=skip, e=E,
        args=args_of(frequencies, DAMPING, WALL), args_axes=axes,
    )  # fmt: skip
    rows = []
    for i, w in enumerate(frequencies):
        q, v, count = exact_section(args_of(w, DAMPING, WALL), E, START, 0.0, skip=skip, cycles=cycles)
        ours = np.stack([found.section.q[i, :, 0], found.section.v[i, :, 0]], axis=-1)
        theirs = np.stack([q, v], axis=-1)
        # both start together, but an orbit may be reached some periods earlier or later
        shifts = [np.max(np.abs(np.roll(theirs, k, axis=0) - ours)[cycles // 2 :]) for k in range(cycles // 2)]
        repeats = [k for k in range(1, cycles // 2 + 1) if np.max(np.abs(theirs[k:] - theirs[:-k])) < 1e-6]
        rows.append(
            {
                "frequency": float(w),
                "period": int(period_of(found.section)[i]),
                "period_exact": min(repeats, default=0),
                "impacts": float(found.per_period[i]),
                "impacts_exact": count / cycles,
                "difference": float(min(shifts)),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/bifurcation"))
    parser.add_argument("--full", action="store_true", help="400 frequencies and 300 periods kept of each")
    parser.add_argument("--sweep", choices=["up", "down"], help="continue each frequency from the one before")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    values, cycles, skip = SIZES[options.full]
    began = time.perf_counter()
    found = bifurcation(
        PROBLEM, [START], [0.0], parameter="frequency", values=np.linspace(*FREQUENCIES, values), period=forcing_period,
        steps=STEPS, cycles=cycles, skip=skip, sweep=options.sweep, args=args_of(1.0, DAMPING, WALL), e=E,
    )  # fmt: skip
    print(f"{values} frequencies, {skip} + {cycles} periods of {STEPS} steps: {time.perf_counter() - began:.1f} s")
    np.savez_compressed(
        options.out / "bifurcation.npz", frequency=found.values, q=found.q, v=found.v, period=found.periods()
    )
    title = f"q'' + {2 * DAMPING:g} q' + q = cos(ω t),  q ≥ {WALL:g},  e = {E:g}"
    print(f"written: {found.plot(options.out / 'bifurcation.png', title=title)}")

    print(
        f"{'frequency':>10} {'period':>8} {'exact':>6} {'impacts a period':>18} {'exact':>7} {'largest difference':>20}"
    )
    for row in compare():
        print(
            "{frequency:10.3f} {period:8d} {period_exact:6d} {impacts:18.3f} {impacts_exact:7.3f} {difference:20.1e}".format(  # noqa: E501
                **row
            )
        )


if __name__ == "__main__":
    main()
