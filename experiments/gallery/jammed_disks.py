"""Disks that grow in a periodic box until they jam: each is as large as it can become,
and a network of contacts holds it.

Radii are radii + growth t, of two sizes; the share of the area that is covered is drawn over time with the contacts for
each disk. Frictionless disks in the plane jam near a share of 0.84 with four contacts each, less those that rattle
(O'Hern et al., Phys. Rev. E 68, 011306 (2003)).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np
from falling_disks import heap

import jaximpact as ji
from jaximpact import analysis, bodies
from jaximpact.plots.style import new_figure

jax.config.update("jax_enable_x64", True)


def start(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Radii of two sizes at t = 1, mixed, and centres in a unit box (2 count,) on a disturbed grid."""
    rng = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(count)))
    places = np.stack(np.divmod(rng.permutation(side**2)[:count], side), axis=1)
    sizes = np.where(np.arange(count) % 2, 1.4, 1.0)
    radii = sizes * np.sqrt(0.90 / (np.pi * np.sum(sizes**2)))  # would cover 90 % at t = 1
    return radii, ((places + 0.5 + 0.15 * rng.uniform(-1, 1, places.shape)) / side).ravel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/jammed_disks"))
    parser.add_argument("--count", type=int, default=144)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    radii, q = start(options.count)
    # they start at 40 % of their size, and are braked, so that they are pushed apart and not thrown
    brake = lambda t, q, v, args: -20.0 * v
    problem = bodies.disks(0.4 * radii, growth=0.6 * radii, periodic=(1.0, 1.0), force=brake)
    solver = bodies.ConjugateGradients(tolerance=1e-6, max_iterations=30000)
    found = ji.solve(problem, q, 0 * q, t1=0.999, h=1e-3, save=10, projection=solver, until=ji.Until.jammed())
    t, pairs, impulse = (np.asarray(x) for x in (found.t, found.pairs, found.impulse))
    size = 0.4 + 0.6 * t
    share = np.pi * np.sum(radii**2) * size**2
    contacts = np.sum(impulse > 1e-3 * np.mean(impulse, axis=1, keepdims=True), axis=1) * 2 / len(radii)
    before = t < t[-1]  # the last row has the contacts of the step that finds no room
    packing = analysis.packing(problem, found, h=1e-3)
    held = int(np.sum(~packing.rattles))
    print(
        f"jammed: {bool(found.stopped)}, at a share of {share[-1]:.4f}, {len(packing)} contacts of {held} disks that "
        "do not rattle, what is left of "
        f"forces {packing.unbalance:.0e} of one; {ji.Status(int(found.status))}"
    )

    figure = new_figure(9.0, 4.2)
    ax = figure.add_subplot(1, 2, 1)
    centres = np.asarray(found.q[-1]).reshape(-1, 2) % 1.0
    inside = np.all(
        np.abs(np.diff(centres[np.where(pairs[-1] < len(radii), pairs[-1], 0)], axis=1)[:, 0]) < 0.5, axis=1
    )
    heap(ax, size[-1] * radii, centres.ravel(), pairs[-1], np.where(inside, impulse[-1], 0))
    ax.set(
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"{100 * share[-1]:.1f} % covered, with the forces",
        xlabel="x [m]",
        ylabel="y [m]",
    )
    ax = figure.add_subplot(1, 2, 2)
    ax.plot(share[before], contacts[before], color="#b03a2e")
    ax.plot(share[-1], contacts[-1], "o", color="#b03a2e")
    ax.axhline(4, color="0.6", lw=0.8, ls="--")
    ax.set(xlabel="share of the area covered", ylabel="contacts a disk", title="4 are as many as coordinates ask for")
    figure.savefig(options.out / "jam.png", dpi=150)
    print(f"wrote {options.out / 'jam.png'}")


if __name__ == "__main__":
    main()
