"""A column of disks rests against a gate; the gate is pulled away, and the column collapses over the floor.

Inelastic and frictionless, so that it flows like a liquid to the far wall and sloshes back. The front is compared with
that of a breaking dam, 2 sqrt(g H) t (A. Ritter, Z. VDI 36 (1892)), an upper bound of its speed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from falling_disks import GRAVITY, heap

import jaximpact as ji
from jaximpact import bodies
from jaximpact.plots.style import new_figure

jax.config.update("jax_enable_x64", True)

OPENS, FAR = 1.5, 6.0  # when the gate begins to move [s], and where the far wall is [m]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/column_collapse"))
    parser.add_argument("--count", type=int, default=400)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    count, columns, rng = options.count, 14, np.random.default_rng(0)
    radii = rng.uniform(0.04, 0.06, count)
    row, column = np.divmod(np.arange(count), columns)
    q0 = (0.13 * (np.stack([column, row], axis=1) + 0.5) + rng.uniform(-0.004, 0.004, (count, 2))).ravel()
    width = 0.13 * columns
    gate = lambda t: jnp.clip(width + 25.0 * (t - OPENS), width, FAR)  # faster than any disk follows
    problem = bodies.disks(
        radii, walls=[(0, gate), (0, None)], gravity=GRAVITY, masses=radii**2 / np.mean(radii**2), skin=0.07
    )
    solver = bodies.ConjugateGradients(tolerance=1e-6)
    found = ji.solve(problem, q0, 0 * q0, t1=5.0, h=2e-3, save=10, projection=solver).raise_if_failed()
    t, centres = np.asarray(found.t), np.asarray(found.q).reshape(len(found.t), -1, 2)
    before = int(np.searchsorted(t, OPENS))
    top, front = np.max(centres[before, :, 1]), np.max(centres[:, :, 0] + radii, axis=1)
    fastest = np.max(np.diff(front[before:]) / np.diff(t[before:]))
    print(
        f"height {top:.2f} m; the front runs at {fastest:.2f} m/s at most, a dam's at "
        f"{2 * np.sqrt(GRAVITY * top):.2f}; penetration "
        f"{float(found.penetration):.1e} m; energy {float(found.energy[0]):.1f} to {float(found.energy[-1]):.1f} J"
    )

    figure = new_figure(9.0, 4.2)
    for k, time in enumerate((OPENS, OPENS + 0.3, OPENS + 0.6, 5.0)):
        ax, row = figure.add_subplot(2, 2, k + 1), int(np.argmin(np.abs(t - time)))
        heap(ax, radii, found.q[row], np.asarray(found.pairs[row]), np.asarray(found.impulse[row]))
        ax.set(xlim=(0, FAR), ylim=(0, 1.05 * top), xlabel="x [m]", ylabel="y [m]")
        ax.text(0.98, 0.85, f"t = {t[row]:.2f} s", transform=ax.transAxes, ha="right", va="top")
    figure.savefig(options.out / "collapse.png", dpi=150)
    print(f"wrote {options.out / 'collapse.png'}")


if __name__ == "__main__":
    main()
