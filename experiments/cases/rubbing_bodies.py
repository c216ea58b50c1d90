"""Bodies in lists that rub: what a step takes, and to which residual, while they fall and when they have settled.

    python experiments/cases/rubbing_bodies.py disks 200 --mu 0.5 --stages 8 --steps 250 --csv
    docs/recorded/rubbing_bodies.csv python experiments/cases/rubbing_bodies.py disks 1000 --stages 12 --steps 125
    python experiments/cases/rubbing_bodies.py disks 10000 --width 400 --tolerance 1e-5 --iterations 500 --stages 9
    python experiments/cases/rubbing_bodies.py spheres 2048 --tolerance 1e-6

``disks``: solid ones that turn, in layers over the floor of a box. ``spheres``: without rotation and with mu = 0.4,
dropped into a box, the shape of J. Kleinert, B. Simeon and M. Obermayr, An inexact interior point method for the
large-scale simulation of granular material, CMAME 278 (2014). Every line is one stage of the motion;
time is that of the processor.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import resource
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaximpact as ji
from jaximpact import bodies

FIELDS = (
    "kind",
    "bodies",
    "mu",
    "h",
    "tolerance",
    "limit",
    "until",
    "kinetic",
    "contacts",
    "iterations",
    "ms",
    "residual",
    "penetration",
    "unbalanced",
    "status",
)


def start(kind: str, count: int, width: int, mu: float) -> tuple[ji.Problem, np.ndarray]:
    """Bodies of several sizes on a grid over the floor of a box, ``width`` of them side by side."""
    rng = np.random.default_rng(1)
    space = 2 if kind == "disks" else 3
    radii = 0.1 * rng.uniform(0.8, 1.2, count)
    layers = -(-count // width ** (space - 1))
    places = np.array([x[::-1] for x in itertools.product(range(layers), *[range(width)] * (space - 1))])[:count]
    centres = 0.26 * (places + 0.5) + 0.005 * rng.uniform(-1, 1, places.shape)
    if kind == "spheres":  # odd layers beside those below: columns of bodies that do not turn would stand
        centres[places[:, 2] % 2 == 1, :2] += 0.1
    room = 0.26 * width + (0.1 if kind == "spheres" else 0)
    walls = [*[(0, room)] * (space - 1), (0, None)]
    inertias = "solid" if kind == "disks" else None
    problem = getattr(bodies, kind)(radii, walls=walls, gravity=9.81, friction=mu, inertias=inertias)
    if kind == "disks":
        centres = np.concatenate([centres, np.zeros((count, 1))], axis=1)
    return problem, centres.ravel()


def unbalanced(problem: ji.Problem, found: ji.Solution, h: float) -> float:
    """What the floor and the walls carry in the last step, less the weight of the bodies of mass one,
    by that weight."""
    listed: Any = problem.constraints
    one = np.zeros(found.q.shape[1] // listed.number)
    upwards = one.copy()
    upwards[found.friction_impulse.shape[2]] = 1  # the last direction of space
    # by virtual power: the slip velocities of a body that rises
    along = np.asarray(listed.wall_slip(0.0, one, upwards, 0.1))
    ends, push, rub = (np.asarray(x[-1]) for x in (found.pairs, found.impulse, found.friction_impulse))
    walls = -1 - ends[:, 1]
    carried = push[walls == len(along) - 1].sum()
    carried += sum((rub[walls == side] @ along[side]).sum() for side in range(len(along)))
    return float(carried / (9.81 * h * listed.number) - 1)


def told(found: ji.Solution) -> str:
    """Names of the status bits, but for those of the overlapping start."""
    return str(
        (ji.Status(int(found.status)) & ~ji.Status.INPUT_INVALID & ~ji.Status.START_VELOCITY_PROJECTED).name or "OK"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("disks", "spheres"))
    parser.add_argument("count", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--mu", type=float)
    parser.add_argument("--h", type=float, default=2e-3)
    parser.add_argument("--tolerance", type=float, default=1e-8)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100, help="of a stage")
    parser.add_argument("--iterations", type=int, default=10000, help="of a solve, at most")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    space = 2 if given.kind == "disks" else 3
    width = given.width or round(given.count ** (1 / space))
    mu = given.mu if given.mu is not None else (0.3 if given.kind == "disks" else 0.4)
    jax.config.update("jax_enable_x64", True)
    problem, q = start(given.kind, given.count, width, mu)
    v = np.zeros(q.size)
    solver = bodies.ConjugateGradients(tolerance=given.tolerance, max_iterations=given.iterations)
    mass: Any = 1.0 if problem.mass is None else problem.mass
    options = {"save": "final", "projection": solver, "steps": given.steps, "t1": given.steps * given.h}
    # a stage begins with bodies that overlap as far as the scheme lets them, which a traced start may
    run = jax.jit(lambda q, v: ji.solve(problem, q, v, **options))
    jax.block_until_ready(run(q, v).q)  # compiles
    for stage in range(given.stages):
        begin = resource.getrusage(resource.RUSAGE_SELF)
        found = run(q, v)
        q, v = (np.asarray(x[-1]) for x in (found.q, found.v))
        end = resource.getrusage(resource.RUSAGE_SELF)
        spent = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
        row = (
            given.kind, given.count, mu, given.h, given.tolerance, given.iterations,
            round((stage + 1) * given.steps * given.h, 6),
            f"{0.5 * np.sum(mass * v**2):.3g}", int(np.sum(np.asarray(found.impulse[-1]) > 0)),
            int(found.iterations) // given.steps, f"{1e3 * spent / given.steps:.3g}", f"{float(found.residual):.2g}",
            f"{float(found.penetration):.2g}", f"{unbalanced(problem, found, given.h):.1g}", told(found),
        )  # fmt: skip
        print(dict(zip(FIELDS, row, strict=True)), flush=True)
        if given.csv is not None:
            new = not given.csv.exists()
            with given.csv.open("a", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([FIELDS, row] if new else [row])


if __name__ == "__main__":
    main()
