"""Programs that have nothing to do with impacts, by `jaximpact.compiler.vectorised` and by XLA.

Each is a function of one lane with a loop over small arrays, as such programs are written for jax:
`jax.jit(jax.vmap(function))` on one side, `vectorised(function)` on the other, one core, float64, processor time. The
two are called in turn, several rounds, and the shortest time of each counts. The largest difference of the results is
relative to their largest number.

    python experiments/outside/compiled_functions.py
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

from jaximpact.compiler import vectorised  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import run_comparison  # noqa: E402

ROUNDS, SECONDS = 5, 0.1  # of a measurement: rounds, and the least time of one
LANES = (1, 16, 1024)


def gaussian_process(steps: int) -> tuple[Callable, Callable]:
    """Log likelihood of a series under a Gaussian process with a Matérn kernel (3/2), as a filter with two states; a
    lane has its own kernel."""
    times = np.sort(np.random.default_rng(0).uniform(0, 10, steps))
    values, gaps = np.sin(3 * times), np.diff(times, prepend=times[0])

    def likelihood(kernel):
        rate, variance, noise = jnp.exp(kernel)
        still = jnp.diag(jnp.stack([variance, variance * rate**2]))

        def step(state, row):
            mean, covariance, total = state
            gap, value = row
            decay = jnp.exp(-rate * gap)
            move = decay * jnp.array([[1 + rate * gap, gap], [-(rate**2) * gap, 1 - rate * gap]])
            mean, covariance = move @ mean, move @ (covariance - still) @ move.T + still
            spread, off = covariance[0, 0] + noise, value - mean[0]
            gain = covariance[:, 0] / spread
            total = total - 0.5 * (off**2 / spread + jnp.log(2 * jnp.pi * spread))
            return (mean + gain * off, covariance - jnp.outer(gain, covariance[0]), total), None

        return lax.scan(step, (jnp.zeros(2), still, 0.0), (gaps, values))[0][2]

    return likelihood, lambda lanes: (np.random.default_rng(1).normal(0, 0.3, (lanes, 3)) + np.array([0.5, 0, -4]),)


def cable_neuron(steps: int) -> tuple[Callable, Callable]:
    """A pulse along a cable of 24 compartments with the membrane of FitzHugh and Nagumo;
    a lane has its own coupling and stimulus."""

    def end(coupling, stimulus):
        def step(state, i):
            v, w = state
            flow = jnp.diff(v, prepend=v[:1], append=v[-1:])
            current = jnp.where((i < 400) & (jnp.arange(24) == 0), stimulus, 0.0)
            change = v - v**3 / 3 - w + coupling * (flow[1:] - flow[:-1]) + current
            return (v + 0.02 * change, w + 0.02 * 0.08 * (v + 0.7 - 0.8 * w)), None

        start = jnp.full(24, -1.2), jnp.full(24, -0.62)
        return lax.scan(step, start, jnp.arange(steps))[0][0]

    return end, lambda lanes: (np.linspace(0.5, 2.0, lanes), np.linspace(0.5, 1.5, lanes))


def hodgkin_huxley(steps: int) -> tuple[Callable, Callable]:
    """Gradient of the mean square of a membrane's potential by its three conductances:
    reverse mode through all steps."""

    def rates(v):
        ratio = lambda x: jnp.where(jnp.abs(x) < 1e-6, 1 + x / 2, x / -jnp.expm1(-jnp.where(jnp.abs(x) < 1e-6, 1.0, x)))
        opening = ratio((v + 40) / 10), 0.07 * jnp.exp(-(v + 65) / 20), 0.1 * ratio((v + 55) / 10)
        closing = 4 * jnp.exp(-(v + 65) / 18), 1 / (1 + jnp.exp(-(v + 35) / 10)), 0.125 * jnp.exp(-(v + 65) / 80)
        return jnp.stack(opening), jnp.stack(closing)

    def mean_square(conductances):
        sodium, potassium, leak = conductances

        def step(state, _):
            v, gates, total = state
            opening, closing = rates(v)
            settled = opening / (opening + closing)
            gates = settled + (gates - settled) * jnp.exp(-0.02 * (opening + closing))
            m, h, n = gates
            inward = sodium * m**3 * h * (50 - v) + potassium * n**4 * (-77 - v) + leak * (-54.4 - v)
            v = v + 0.02 * (10 + inward)
            return (v, gates, total + (v / 100) ** 2), None

        start = jnp.asarray(-65.0), jnp.array([0.05, 0.6, 0.32]), jnp.asarray(0.0)
        return lax.scan(step, start, length=steps)[0][2] / steps

    given = np.array([120, 36, 0.3])
    return jax.grad(mean_square), lambda lanes: (given * np.linspace(0.9, 1.1, lanes)[:, None],)


def planets(steps: int) -> tuple[Callable, Callable]:
    """Five bodies that attract each other, by the leapfrog method; a lane has its own places to begin with."""
    masses = np.array([1.0, 1e-3, 3e-4, 5e-5, 4e-5])
    radii = np.array([0.0, 1.0, 1.6, 2.3, 3.1])
    angles = np.array([0.0, 0.3, 2.0, 4.0, 5.5])

    def pull(x):
        apart = x[None] - x[:, None]
        squared = (apart**2).sum(-1) + np.eye(5)
        return (masses[None, :, None] * apart / (squared * jnp.sqrt(squared))[..., None]).sum(1)

    def end(angle):
        where = jnp.stack([jnp.cos(angle), jnp.sin(angle), 0.01 * angle], -1)
        speed = jnp.stack([-jnp.sin(angle), jnp.cos(angle), 0 * angle], -1)
        x, v = radii[:, None] * where, np.where(radii > 0, 1 / np.sqrt(radii + (radii == 0)), 0)[:, None] * speed

        def step(state, _):
            x, v, a = state
            v = v + 0.005 * a
            x = x + 0.01 * v
            a = pull(x)
            return (x, v + 0.005 * a, a), None

        return lax.scan(step, (x, v, pull(x)), length=steps)[0][0]

    return end, lambda lanes: (angles + np.random.default_rng(2).normal(0, 0.1, (lanes, 5)),)


def filter_of_scalars(steps: int) -> tuple[Callable, Callable]:
    """A Kalman filter of place and speed, its state a dictionary of scalars;
    a lane has its own noise and sees the same signal."""
    signal = np.random.default_rng(3).normal(size=steps).cumsum() * 0.1

    def end(drift, noise):
        def step(s, z):
            place, pp = s["place"] + 0.1 * s["speed"], s["pp"] + 0.2 * s["ps"] + 0.01 * s["ss"] + drift
            ps, ss = s["ps"] + 0.1 * s["ss"], s["ss"] + drift
            off, total = z - place, pp + noise
            first, second = pp / total, ps / total
            found = {"place": place + first * off, "speed": s["speed"] + second * off}
            return found | {"pp": pp - first * pp, "ps": ps - first * ps, "ss": ss - second * ps}, None

        one = jnp.asarray(1.0)
        start = {"place": 0 * one, "speed": 0 * one, "pp": one, "ps": 0 * one, "ss": one}
        return lax.scan(step, start, signal)[0]

    return end, lambda lanes: (np.geomspace(1e-4, 1e-1, lanes), np.geomspace(1e-2, 1, lanes))


PROGRAMS = {
    "Gaussian process": (gaussian_process, 1000),
    "cable neuron": (cable_neuron, 1000),
    "Hodgkin-Huxley, gradient": (hodgkin_huxley, 1000),
    "planets": (planets, 1000),
    "filter of scalars": (filter_of_scalars, 1000),
}


def shortest_times(calls: list[Callable], seconds: float) -> list[float]:
    """Processor seconds of each call, the shortest of rounds in which they take turns."""

    def measure(call: Callable, times: int) -> float:
        start = time.process_time()
        for _ in range(times):
            jax.block_until_ready(call())
        return (time.process_time() - start) / times

    counts = [max(1, int(seconds / max(measure(call, 1), 1e-6))) for call in calls]
    rounds = [[measure(call, n) for call, n in zip(calls, counts, strict=True)] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def largest_difference(found: object, expected: object) -> float:
    """The largest difference of numbers in two trees, relative to the largest number of the array that they are in."""
    of = lambda x, y: float(np.max(np.abs(x - y)) / np.max(np.abs(y)))
    return max(map(of, jax.tree.leaves(found), jax.tree.leaves(expected)))


def compare(lanes: tuple[int, ...] = LANES, least_steps: bool = False) -> list[dict]:
    """One line for each program and number of lanes."""
    lines = []
    for name, (make, steps) in PROGRAMS.items():
        steps = 20 if least_steps else steps
        function, operands = make(steps)
        for count in lanes:
            given, firsts, found = operands(count), [], []
            ways = jax.jit(jax.vmap(function)), vectorised(function)
            for way in ways:
                start = time.process_time()
                found.append(jax.block_until_ready(way(*given)))
                firsts.append(time.process_time() - start)
            times = shortest_times([partial(way, *given) for way in ways], 0 if least_steps else SECONDS)
            by_xla, natively = (1e9 * t / (count * steps) for t in times)
            lines.append({"program": name, "lanes": count, "steps": steps, "XLA, ns a step": f"{by_xla:.3g}",
                          "machine code, ns": f"{natively:.3g}", "XLA takes": f"{by_xla / natively:.2g} times",
                          "difference": f"{largest_difference(*found[::-1]):.0e}",
                          "first call, s": f"{firsts[1]:.2f} ({firsts[0]:.2f})"})  # fmt: skip
    return lines


def main(arguments: list[str] | None = None) -> list[dict]:
    os.environ["JAXIMPACT_QUICK_CODE"] = "off"  # optimised code from the first call on
    os.environ["JAXIMPACT_CACHE"] = "off"  # and no code of an earlier run
    if hasattr(os, "sched_setaffinity"):  # one core, for XLA too, which asks at its first operation
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for way in (jax.jit(jax.vmap(jnp.sin)), vectorised(jnp.sin)):  # what is loaded at a first call of all
        way(np.ones(3))
    return run_comparison(compare, __file__, __doc__, arguments)


if __name__ == "__main__":
    main()
