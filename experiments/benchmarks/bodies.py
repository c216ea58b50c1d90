"""What many bodies take: first answers, steps a second, and how the cost of a step grows with their number.

    python experiments/benchmarks/bodies.py first        # 12, 50 and 200 disks, each in a process of its own
    python experiments/benchmarks/bodies.py scaling      # 10 layers of 10³, 10⁴ and 10⁵ disks, 20 steps from the same instant
    python experiments/benchmarks/bodies.py heap 10000   # disks that fall, then settled ones; for minutes
    python experiments/benchmarks/bodies.py cube 50 20   # 50³ spheres on the way down, 20 steps at 1e-3 m/s

Spheres in a box: experiments/gallery/spheres_in_a_box.py.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import time
import warnings

import jax
import numpy as np

import jaximpact as ji
from jaximpact import bodies

jax.config.update("jax_enable_x64", True)
warnings.simplefilter("ignore", ji.JaximpactWarning)
H = 2e-3


def layers(count: int, columns: int, seed: int = 0) -> tuple[ji.Problem, np.ndarray]:
    """Disks of several sizes on a loose grid of so many columns over a floor."""
    rng = np.random.default_rng(seed)
    rows, column = np.divmod(np.arange(count), columns)
    radii = 0.1 * rng.uniform(0.8, 1.2, count)
    centres = 0.26 * (np.stack([column, rows], axis=1) + 0.5) + rng.uniform(-0.005, 0.005, (count, 2))
    return bodies.disks(radii, walls=[(0, 0.26 * columns), (0, None)], gravity=9.81), centres.ravel()


def run(problem: ji.Problem, q, v, steps: int, tolerance: float) -> tuple:
    """The last state, the seconds, iterations a step, residual and pushing contacts."""
    solver = bodies.ConjugateGradients(tolerance=tolerance)
    begin = time.perf_counter()
    found = ji.solve(problem, q, v, t1=steps * H, h=H, save="final", projection=solver).raise_if_failed()
    q, v = np.asarray(found.q[-1]), np.asarray(found.v[-1])
    taken = time.perf_counter() - begin
    return q, v, taken, int(found.iterations) / steps, float(found.residual), int(np.sum(np.asarray(found.impulse) > 0))


def told(name: str, steps: int, found: tuple) -> None:
    _, _, taken, iterations, residual, pushing = found
    print(
        f"{name}: {steps / taken:.3g} steps/s, {1e3 * taken / steps:.3g} ms a step, {iterations:.0f} iterations a step, residual "
        f"{residual:.1e} m/s, {pushing} contacts push", flush=True,
    )  # fmt: skip


def first(count: int) -> None:
    problem, q = layers(count, int(np.ceil(np.sqrt(count))))
    wall, cpu = time.perf_counter(), time.process_time()
    ji.solve(problem, q, 0 * q, t1=500 * H, h=H).q.block_until_ready()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    again = time.perf_counter()
    ji.solve(problem, q, 0 * q, t1=500 * H, h=H).q.block_until_ready()
    print(
        f"{count} disks, 500 steps: first {wall:.2f} s ({cpu:.2f} s of processor), again {time.perf_counter() - again:.2f} s"
    )


def scaling() -> None:
    costs = {}
    for count in (1000, 10_000, 100_000):  # to t = 0.2 s
        problem, q = layers(count, count // 10)
        q, v, *_ = run(problem, q, 0 * q, 100, 1e-4)
        run(problem, q, v, 20, 1e-4)
        found = run(problem, q, v, 20, 1e-4)
        told(f"{count} disks in 10 layers", 20, found)
        costs[count] = found[2]
    counts = list(costs)
    print("exponent", np.polyfit(np.log(counts), np.log([costs[n] for n in counts]), 1)[0])


def heap(count: int) -> None:
    problem, q = layers(count, int(np.ceil(np.sqrt(count))))
    v = 0 * q
    run(problem, q, v, 50, 1e-4)
    for k in range(40):
        found = run(problem, q, v, 50, 1e-4)
        q, v = found[:2]
        told(f"t = {0.1 * (k + 1):.1f} s, at 1e-4", 50, found)
    run(problem, q, v, 10, 1e-8)
    told("settled, at 1e-8", 10, run(problem, q, v, 10, 1e-8))


def cube(side: int, steps: int) -> None:
    rng = np.random.default_rng(0)
    places = np.array(list(itertools.product(range(side), repeat=3)))
    radii = 0.05 * rng.uniform(0.8, 1.2, len(places))
    q = (0.125 * (places + 0.5) + 0.002 * rng.uniform(-1, 1, places.shape)).ravel()
    width = side * 0.125
    problem = bodies.spheres(radii, walls=[(0, width), (0, width), (0, None)], gravity=9.81)
    v = 0 * q
    for _ in range(3):
        found = run(problem, q, v, steps, 1e-3)
        q, v = found[:2]
        told(f"{side}³ spheres", steps, found)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def main(what: str, *numbers: str) -> None:
    if what == "first" and not numbers:
        for count in (12, 50, 200):
            subprocess.run([sys.executable, __file__, "first", str(count)], check=True)
        return
    {"first": first, "scaling": scaling, "heap": heap, "cube": cube}[what](*map(int, numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
