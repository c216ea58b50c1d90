"""What many bodies take: first answers, steps a second, and how the cost of a step grows with their number.

    python experiments/benchmarks/bodies.py first        # 12, 50 and 200 disks, each in a process of its own
    python experiments/benchmarks/bodies.py scaling      # 10 layers of 10³, 10⁴ and 10⁵ disks, 20 steps from the same instant
    python experiments/benchmarks/bodies.py heap 10000   # disks that fall, then settled ones; for minutes
    python experiments/benchmarks/bodies.py cube 50 20   # 50³ spheres on the way down, 20 steps at 1e-3 m/s
    python experiments/benchmarks/bodies.py near         # 50 disks, near pairs, to 1e-12 m/s, and Siconos where it is installed
    python experiments/benchmarks/bodies.py numba 10000  # falling disks, and a loop of the same algorithm in numba
    python experiments/benchmarks/bodies.py lanes        # an ensemble of 256 piles of 64 disks, and one after the other

The last three and the scaling count processor time, of which other work on a machine takes nothing. Spheres in a box:
experiments/gallery/spheres_in_a_box.py.
"""  # noqa: E501

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import jax
import numpy as np

import jaximpact as ji
from jaximpact import bodies

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gallery.spheres_in_a_box import box

from benchmarks import timing, works
from benchmarks.baselines.siconos_pile import SiconosPile

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
        f"{name}: {steps / taken:.3g} steps/s, {1e3 * taken / steps:.3g} ms a step, {iterations:.0f} iterations a "
        "step, residual "
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
        f"{count} disks, 500 steps: first {wall:.2f} s ({cpu:.2f} s of processor; goal 4 s), again "
        f"{time.perf_counter() - again:.2f} s"
    )


def scaling() -> None:
    costs = {}
    for count in (1000, 10_000, 100_000):  # to t = 0.2 s
        problem, q = layers(count, count // 10)
        q, v, *_ = run(problem, q, 0 * q, 100, 1e-4)
        run(problem, q, v, 2, 1e-4)
        begin = processor()
        run(problem, q, v, 2, 1e-4)
        middle = processor()
        found = run(problem, q, v, 22, 1e-4)
        # without the start of a call
        costs[count] = (processor() - middle) - (middle - begin)
        told(f"{count} disks in 10 layers, {1e3 * costs[count] / 20:.3g} ms of processor a step", 22, found)
    counts = list(costs)
    print(f"exponent {np.polyfit(np.log(counts), np.log([costs[n] for n in counts]), 1)[0]:.2f}, goal 1.1")


def heap(count: int) -> None:
    problem, q = layers(count, int(np.ceil(np.sqrt(count))))
    v = 0 * q
    run(problem, q, v, 50, 1e-4)
    for k in range(40):
        found = run(problem, q, v, 50, 1e-4)
        q, v = found[:2]
        told(f"t = {0.1 * (k + 1):.1f} s, at 1e-4 (goal of 10⁴ disks: 3 steps/s)", 50, found)
    run(problem, q, v, 10, 1e-8)
    told("settled, at 1e-8 (goal of 10⁴ disks: 0.5 steps/s)", 10, run(problem, q, v, 10, 1e-8))


def cube(side: int, steps: int) -> None:
    problem, q, _ = box(side)
    v = 0 * q
    for _ in range(3):
        found = run(problem, q, v, steps, 1e-3)
        q, v = found[:2]
        told(f"{side}³ spheres (goal of 50³: 1000 steps in 90 minutes, 0.19 steps/s)", steps, found)
    print(f"at most 3 GiB are the goal; {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def processor(who: int = resource.RUSAGE_SELF) -> float:
    """Seconds of processor that this process took, or those that it started."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def near() -> None:
    """The pile of 50 disks of `works`, Moreau-Jean, 1000 steps."""
    work = works.WORKS["pile-50"]
    q = work.initial(1)[0][0]
    radius, side = work.args["radius"], work.args["side"]
    problem = bodies.disks(np.full(50, radius), walls=[(0, side)] * 2, gravity=work.args["g"])
    # one Newton iteration is exact for a constant force
    options = {"scheme": ji.MoreauJean(newton=1), "save": "final", "h": work.h, "t1": work.t1}
    options["projection"] = bodies.ConjugateGradients(tolerance=1e-12)
    with timing.one_core():
        found = ji.solve(problem, q, 0 * q, **options).raise_if_failed()
        begin = processor()
        ji.solve(problem, q, 0 * q, **options).q.block_until_ready()
        mine = (processor() - begin) / work.steps
    print(f"jaximpact: {1e3 * mine:.3g} ms a step, residual {float(found.residual):.1e} m/s")
    with tempfile.TemporaryDirectory() as folder, timing.one_core():
        try:
            siconos = SiconosPile(folder)
        except RuntimeError as error:
            print(f"Siconos: {error}")
            return
        pairs, children = works.near_pairs(q, 4 * radius), resource.RUSAGE_CHILDREN
        begin = processor(children)
        siconos.run(work, q, pairs, 1)  # what it takes to build the model
        once = processor(children)
        *_, residual = siconos.run(work, q, pairs)
        theirs = (processor(children) - once - (once - begin)) / work.steps
    print(
        f"Siconos: {1e3 * theirs:.3g} ms a step, residual {residual:.1e} m/s; goal: 0.3 of it, jaximpact takes "
        f"{mine / theirs:.2g}"
    )


def by_numba(count: int) -> None:
    """Falling disks at several times, from the same states."""
    from benchmarks.baselines import numba_bodies

    columns, tolerance, h = int(np.ceil(np.sqrt(count))), 1e-4, H
    problem, q = layers(count, columns)
    radii, width = 0.1 * np.random.default_rng(0).uniform(0.8, 1.2, count), 0.26 * columns
    state = numba_bodies.start(q, radii)
    v, costs = 0 * q, []
    for k in range(6):
        steps = 50
        if k == 0:
            numba_bodies.run(state, radii, width, 2, h, tolerance)
            run(problem, q, v, steps, tolerance)
        begin = processor()
        state, theirs, residual = numba_bodies.run(state, radii, width, steps, h, tolerance)
        middle = processor()
        q, v, _, mine, own, pushing = run(problem, q, v, steps, tolerance)
        end = processor()
        numba, ours = (middle - begin) / steps, (end - middle) / steps
        print(
            f"t = {0.1 * (k + 1):.1f} s: {1e3 * ours:.3g} ms a step, {mine:.0f} iterations, residual {own:.0e} m/s; "
            f"numba {1e3 * numba:.3g} ms, "
            f"{theirs / steps:.0f}, {residual:.0e}; {pushing} push; ratio {ours / numba:.2f}", flush=True,
        )  # fmt: skip
        costs.append((mine, ours, theirs / steps, numba))
    # what an iteration costs, without the rest of a step: from the first of these times to the last
    (a, b, c, d), (e, f, g, i) = costs[0], costs[-1]
    ours, numba = (f - b) / (e - a), (i - d) / (g - c)
    print(
        f"an iteration: {1e6 * ours:.3g} us, numba {1e6 * numba:.3g} us; ratio {ours / numba:.2f}, goal 1.3; the rest "
        "of a step: "
        f"{1e3 * (b - a * ours):.3g} ms, numba {1e3 * (d - c * numba):.3g} ms"
    )


def lanes() -> None:
    """Piles that begin a little differently, 250 steps to 1e-8 m/s."""
    count, many = 64, 256
    problem, q = layers(count, 8)
    starts = q + np.random.default_rng(1).uniform(-1e-3, 1e-3, (many, q.size))
    options = {"t1": 250 * H, "h": H, "save": "final"}
    ji.ensemble(problem, starts, 0 * starts, **options)
    wall, begin = time.perf_counter(), processor()
    ji.ensemble(problem, starts, 0 * starts, **options)
    together, by_clock = (processor() - begin) / many, (time.perf_counter() - wall) / many
    ji.solve(problem, q, 0 * q, **options)
    few = starts[:32]
    wall, begin = time.perf_counter(), processor()
    for start in few:
        ji.solve(problem, start, 0 * start, **options).q.block_until_ready()
    single, clock = (processor() - begin) / len(few), (time.perf_counter() - wall) / len(few)
    print(
        f"a pile of {count} disks: {1e3 * together:.3g} ms of processor in an ensemble of {many} ({1e3 * by_clock:.3g} "
        "ms by the clock), "
        f"{1e3 * single:.3g} ({1e3 * clock:.3g}) one after the other; goal: less; ratio {together / single:.2f} "
        f"({by_clock / clock:.2f})"
    )


def main(what: str, *numbers: str) -> None:
    if what == "first" and not numbers:
        for count in (12, 50, 200):
            subprocess.run([sys.executable, __file__, "first", str(count)], check=True)
        return
    known = {
        "first": first,
        "scaling": scaling,
        "heap": heap,
        "cube": cube,
        "near": near,
        "numba": by_numba,
        "lanes": lanes,
    }
    known[what](*map(int, numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
