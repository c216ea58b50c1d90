"""Disks of several sizes fall into a box and come to rest: the heap, and the chains of force that carry it.

Inelastic and frictionless, stated by the gap of one pair; near pairs are found as the disks move. The chains are drawn
as wide as the impulses of the last step; what the floor carries then is compared with the weight of all disks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np

import jaximpact as ji
from jaximpact import bodies
from jaximpact.plots.style import new_figure

jax.config.update("jax_enable_x64", True)

GRAVITY = 9.81


def start(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """Radii, centres (2 count,) on a loose grid, and the width of the box."""
    rng = np.random.default_rng(seed)
    radii = rng.uniform(0.06, 0.12, count)
    columns = int(np.ceil(np.sqrt(2 * count)))
    rows, column = np.divmod(np.arange(count), columns)
    centres = 0.26 * (np.stack([column, rows], axis=1) + 0.5) + rng.uniform(-0.01, 0.01, (count, 2))
    return radii, centres.ravel(), 0.26 * columns


def heap(ax, radii, q, pairs=None, impulse=None) -> None:
    """The disks, and lines as wide as the impulses between them."""
    from matplotlib.collections import EllipseCollection, LineCollection

    centres = np.asarray(q).reshape(-1, 2)
    ax.add_collection(
        EllipseCollection(
            2 * radii, 2 * radii, 0 * radii, units="xy", offsets=centres, transOffset=ax.transData, facecolor="#c9d8e8",
            edgecolor="#5c7286", lw=0.5,
        )
    )  # fmt: skip
    if pairs is not None:
        acting = (impulse > 0) & (pairs[:, 1] >= 0)
        width = 5 * impulse[acting] / impulse[acting].max()
        ax.add_collection(LineCollection(centres[pairs[acting]], linewidths=width, colors="#b03a2e", capstyle="round"))
    ax.set_aspect("equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/falling_disks"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--movie", action="store_true", help="also write disks.gif")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    radii, q0, width = start(options.count)
    masses, h = radii**2 / np.mean(radii**2), 2e-3
    problem = bodies.disks(radii, walls=[(0, width), (0, None)], gravity=GRAVITY, masses=masses)
    found = ji.solve(problem, q0, 0 * q0, t1=4.0, h=h, save=20).raise_if_failed()
    pairs, impulse = np.asarray(found.pairs[-1]), np.asarray(found.impulse[-1])
    # obstacles are the left wall, the right one and the floor: -1, -2, -3
    floor = impulse[pairs[:, 1] == -3].sum() / h
    print(found, f"residual {float(found.residual):.1e} m/s, {int(found.iterations) / 2000:.0f} iterations a step")
    print(
        f"the floor carries {floor:.6f} N of {GRAVITY * masses.sum():.6f} N; energy lost "
        f"{float(found.energy[0] - found.energy[-1]):.3f} J"
    )

    figure = new_figure(9.0, 2.9)
    top = 1.02 * np.max(q0[1::2] + radii)
    for k, (row, text) in enumerate(
        ((12, f"t = {float(found.t[12]):.2f} s"), (-1, "at rest, with the chains of force"))
    ):
        ax = figure.add_subplot(1, 2, k + 1)
        heap(ax, radii, found.q[row], *((pairs, impulse) if row == -1 else ()))
        ax.set(xlim=(0, width), ylim=(0, top), title=text, xlabel="x [m]", ylabel="y [m]")
    figure.savefig(options.out / "disks.png", dpi=150)
    print(f"wrote {options.out / 'disks.png'}")
    if options.movie:
        print("wrote", found.animate(options.out / "disks.gif", draw=ji.plots.disks(radii), fps=20))


if __name__ == "__main__":
    main()
