"""Impulses of random piles with Coulomb friction: how many are solved to round-off, and in how many iterations.

python experiments/cases/frictional_piles.py --out out/friction      half a minute

Bodies at random places, contacts between Delaunay neighbours and with the floor, at an impact with e = 1/2.
"""

import argparse
import csv
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import Delaunay

from jaximpact.mechanics.contact.friction.cone_solver import frictional_impulses

TOLERANCE = 1e-10  # of the natural residual [m/s]
PILES = 20
CASES = [(1, 6), (1, 20), (1, 60), (2, 6), (2, 20)]  # tangents and contacts


def pile(rng, m, k):
    """Delassus matrix and velocities without impulses (m, 1 + k) of m contacts in 1 + k directions."""
    space, turns = 1 + k, 1 if k == 1 else 3
    count = max(2, round(m / (2 if k == 1 else 2.5)))
    while len(pairs := neighbours(place := settle(rng, count, space))) < m:
        count += 1
    pairs = pairs[:m]
    mass, radius = rng.uniform(0.5, 2, count), rng.uniform(0.3, 0.6, count)
    inertia = mass * radius**2 * (0.5 if k == 1 else 0.4)
    inverse = np.concatenate(
        [np.repeat(1 / mass, space).reshape(count, -1), np.repeat(1 / inertia, turns).reshape(count, -1)], axis=1
    )
    rows = np.zeros((m, space, *inverse.shape))
    for row, (i, j) in zip(rows, pairs, strict=True):
        normal = np.eye(space)[-1] if j is None else (place[j] - place[i]) / np.linalg.norm(place[j] - place[i])
        tangents = np.linalg.qr(np.column_stack([normal, rng.standard_normal((space, k))]))[0][:, 1:].T
        for body, sign in ((i, 1 if j is None else -1), (j, 1)):
            if body is None:
                continue
            arm = radius[body] * (normal if j is not None and body == i else -normal)
            for entry, along in zip(row, (normal, *tangents), strict=True):
                torque = [arm[0] * along[1] - arm[1] * along[0]] if k == 1 else np.cross(arm, along)
                entry[body] += sign * np.concatenate([along, torque])
    v = rng.standard_normal(inverse.shape)
    v[:, space - 1] -= 2
    flat = rows.reshape(m * space, -1)
    offset = (flat @ v.ravel()).reshape(m, space)
    offset[:, 0] += 0.5 * np.minimum(offset[:, 0], 0)
    return flat * inverse.ravel() @ flat.T, offset


def settle(rng, count, space):
    """Places (count, space), the lowest at height 0."""
    place = rng.uniform(0, 1, (count, space)) * count ** (1 / space)
    return place - np.eye(space)[-1] * place[:, -1].min()


def neighbours(place):
    """Pairs of bodies by their distance, behind the lowest bodies' pairs with the floor, None."""
    count, space = place.shape
    cells = Delaunay(place).simplices if count > space + 1 else [range(count)]
    pairs = {(min(i, j), max(i, j)) for cell in cells for i in cell for j in cell if i != j}
    lowest = np.argsort(place[:, -1])[: max(2, int(count ** ((space - 1) / space)) + 1)]
    return [(i, None) for i in lowest] + sorted(pairs, key=lambda pair: np.linalg.norm(place[pair[0]] - place[pair[1]]))


@partial(jax.jit, static_argnames="max_iterations")
def solve(matrix, offset, mu, max_iterations=100):
    everything = jnp.ones(len(offset), bool)
    return frictional_impulses(matrix, offset, mu, jnp.zeros_like(offset), everything, TOLERANCE, max_iterations)


def table(cases=CASES, piles=PILES):
    for k, m in cases:
        rng = np.random.default_rng(10 * m + k)
        problems = [pile(rng, m, k) for _ in range(piles)]
        for mu in (0.3, 1.0):
            found = [solve(*problem, mu) for problem in problems]
            iterations, residual = (np.array([float(x[i]) for x in found]) for i in (1, 2))
            yield {
                "contacts": f"{m} in {'the plane' if k == 1 else 'space'}", "μ": mu,
                "solved": f"{np.sum(residual <= TOLERANCE)} of {piles}",
                "iterations, median": f"{np.median(iterations):g}", "at most": f"{iterations.max():g}",
            }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/friction"))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = list(table())
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "frictional_piles.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(*row.values(), sep="\t")


if __name__ == "__main__":
    main()
