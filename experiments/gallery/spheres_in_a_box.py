"""Spheres fall into a box, 8³ of them by default, and settle: time, memory, residual, penetration,
the weight on the floor.

    python experiments/gallery/spheres_in_a_box.py
    python experiments/gallery/spheres_in_a_box.py --side 50 --h 1e-3 --tolerance 1e-3      # 125,000 of them

Rows go to disk as they come: stopped, the same command goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
import warnings
from pathlib import Path

import jax
import numpy as np

import jaximpact as ji
from jaximpact import bodies
from jaximpact.plots.style import new_figure
from jaximpact.study import Run

jax.config.update("jax_enable_x64", True)

GRAVITY, SPACING = 9.81, 0.125


def box(side: int, seed: int = 0) -> tuple[ji.Problem, np.ndarray, np.ndarray]:
    """side³ spheres of several sizes on a loose cubic grid over the floor of a box; the problem, its start,
    the radii."""
    rng = np.random.default_rng(seed)
    places = np.array(list(itertools.product(range(side), repeat=3)))
    radii = 0.05 * rng.uniform(0.8, 1.2, len(places))
    centres = SPACING * (places + 0.5) + 0.002 * rng.uniform(-1, 1, places.shape)
    width = side * SPACING
    problem = bodies.spheres(radii, walls=[(0, width), (0, width), (0, None)], gravity=GRAVITY)
    return problem, centres.ravel(), radii


def draw(path: Path, q: np.ndarray, radii: np.ndarray, width: float) -> None:
    """The spheres as they are seen from a corner, coloured by height."""
    centres = q.reshape(-1, 3)
    figure = new_figure(5.0, 4.5)
    ax = figure.add_subplot(projection="3d", computed_zorder=True)
    # a point is 1/72 inch; the box fills some three inches
    size = (2 * radii / width * 3.0 * 72 * 0.78) ** 2
    ax.scatter(*centres.T, s=size, c=centres[:, 2], cmap="viridis", edgecolors="k", linewidths=0.3, depthshade=False)
    ax.set(xlim=(0, width), ylim=(0, width), zlim=(0, width), xlabel="x [m]", ylabel="y [m]", zlabel="z [m]")
    ax.set_box_aspect((1, 1, 1))
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/spheres_in_a_box"))
    parser.add_argument("--side", type=int, default=8, help="spheres along an edge of the box")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--h", type=float, default=2e-3, help="step [s]")
    parser.add_argument("--tolerance", type=float, default=1e-8, help="of the solver [m/s]")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    problem, q, radii = box(options.side)
    h, width, steps = options.h, options.side * SPACING, options.steps
    solver = bodies.ConjugateGradients(tolerance=options.tolerance)
    path = options.out / f"{len(radii)}-spheres.zarr"
    run = Run(path, problem, q, 0 * q, t1=steps * h, h=h, projection=solver, save=max(1, steps // 40), block=1)
    taken, used = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ji.JaximpactWarning)  # radii differ: gaps of a grid close at many instants
        found = run.run(progress=True, rows=slice(-1, None)).raise_if_failed()
    taken, used = time.perf_counter() - taken, time.process_time() - used
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{steps} steps: {taken:.1f} s, {used:.1f} s of processor, {memory:.2f} GiB; "
        f"{int(found.iterations) / steps:.0f} iterations a step, "
        f"residual {float(found.residual):.1e} m/s, penetration {float(found.penetration):.1e} m"
    )
    q, pairs, impulse = (np.asarray(x[-1]) for x in (found.q, found.pairs, found.impulse))
    carried, weight = impulse[pairs[:, 1] == -5].sum() / h, GRAVITY * len(radii)
    print(f"{np.sum(impulse > 0)} contacts push; the floor carries {carried:.4f} of {weight:.4f} N")
    draw(options.out / "spheres.png", q, radii, width)
    print(f"wrote {options.out / 'spheres.png'}")


if __name__ == "__main__":
    main()
