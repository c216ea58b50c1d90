"""An oscillator beside a wall that is shaken at random: its density, and how schemes converge to it.

Elastic impacts leave the law of Gibbs, exp(-(v^2 + q^2)/2D) for q > 0, whatever the damping; with inelastic ones the
density is that of `fokker_planck.py`. Weak errors are those of E v^2/D
at the end, strong ones the mean distance of the position to that of the same Brownian path,
refined by Brownian bridges and integrated by numpy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from fokker_planck import stationary

import jaximpact as ji
from jaximpact.plots.style import new_figure

jax.config.update("jax_enable_x64", True)

D, ZETA = 0.5, 0.5
SIGMA = (4 * ZETA * D) ** 0.5
SCHEMES = {"MoreauJean": ji.MoreauJean(), "PaoliSchatzman": ji.PaoliSchatzman(), "EventCorrected": ji.EventCorrected()}
WEAK, STRONG, FINER = (0.4, 0.2, 0.1, 0.05), (0.16, 0.08, 0.04, 0.02), 32
END, SHORT, START = 8.0, 2.4, 0.5  # of motions whose means and whose distances are taken; their position at the start


def white(t, q, v, args):
    return jnp.full((1, 1), SIGMA)


OSCILLATOR = ji.Problem(lambda t, q, v, args: -q - 2 * ZETA * v, lambda t, q, args: q, noise=white)
FREE = ji.Problem(lambda t, q, v, args: 0 * q, noise=white)


def refined(w: np.ndarray, h: float, parts: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """A Brownian path sigma W (N + 1, B), known at multiples of h, in ``parts`` = 2^k parts of each step,
    and their length."""
    while parts > 1:
        middle = 0.5 * (w[1:] + w[:-1]) + SIGMA * (h / 4) ** 0.5 * rng.standard_normal(w[1:].shape)
        finer = np.empty((2 * len(w) - 1, w.shape[1]))
        finer[::2], finer[1::2] = w, middle
        w, h, parts = finer, h / 2, parts // 2
    return w, h


def along(w: np.ndarray, h: float, e: float | None) -> np.ndarray:
    """Positions (B,) at the end of a path: midpoint rule, with impacts where straight pieces meet the wall;
    without a wall for e of None."""
    wall, e = (-np.inf, 1.0) if e is None else (0.0, e)
    q, v = np.full(w.shape[1], START), np.zeros(w.shape[1])
    for push in np.diff(w, axis=0):
        new = v + h * (-q - 2 * ZETA * v) + push
        mean = 0.5 * (v + new)
        end = q + h * mean
        q, v = np.where(end < wall, -e * end, end), np.where(end < wall, -e * new, new)
    return q


def strong_errors(e: float | None, lanes: int) -> dict[str, list[float]]:
    """Mean distance of positions to those of the same path, by scheme and step; without impacts for e of None."""
    found: dict[str, list[float]] = {name: [] for name in SCHEMES}
    problem = OSCILLATOR.replace(constraints=None) if e is None else OSCILLATOR
    for h in STRONG:
        given = {"t1": SHORT, "h": h, "key": 1}
        start = np.full((lanes, 1), START)
        w = ji.ensemble(FREE, 0 * start, np.zeros(1), scheme=ji.MoreauJean(), save="all", **given).v[..., 0].T
        exact = along(*refined(w, h, FINER, np.random.default_rng(0)), e)
        for name, scheme in SCHEMES.items():
            q = ji.ensemble(problem, start, np.zeros(1), e=e, scheme=scheme, **given).q[:, -1, 0]
            found[name].append(float(np.mean(np.abs(q - exact))))
    return found


def weak_errors(lanes: int) -> dict[str, list[tuple[float, float]]]:
    """E v^2/D - 1 for e = 1 and its standard error, by scheme and step."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SCHEMES}
    for h in WEAK:
        for name, scheme in SCHEMES.items():
            start = np.full((lanes, 1), START)
            v = ji.ensemble(OSCILLATOR, start, np.zeros(1), e=1.0, t1=END, h=h, key=2, scheme=scheme).v[:, -1, 0]
            found[name].append((float(np.mean(v**2) / D - 1), float(np.std(v**2) / D / lanes**0.5)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/random_forces"))
    parser.add_argument("--lanes", type=int, default=1_000_000)
    parser.add_argument("--paths", type=int, default=2000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    figure = new_figure(11, 3.6)
    density, weak, strong = figure.subplots(1, 3)
    start = np.full((options.lanes // 4, 1), START)
    for e, color in ((1.0, "tab:blue"), (0.5, "tab:red")):
        v = ji.ensemble(OSCILLATOR, start, np.zeros(1), e=e, t1=END, h=0.02, key=3, scheme=ji.MoreauJean()).v[:, -1, 0]
        density.hist(v, bins=80, range=(-3, 3), density=True, histtype="step", color=color, label=f"e = {e:g}")
        q, u, exact = stationary(e, ZETA, SIGMA, 240, 5.0)
        density.plot(u, exact.sum(axis=0) * (q[1] - q[0]), color="0.7", linewidth=4, zorder=0)
    density.set(xlabel="velocity", ylabel="density", xlim=(-3, 3))
    density.legend(fontsize="small")

    for name, errors in weak_errors(options.lanes).items():
        mean, spread = np.array(errors).T
        print(f"weak, e = 1, {name}: {mean} ± {spread}")
        weak.errorbar(WEAK, np.abs(mean), yerr=2 * spread, marker="o", label=name)
    for e, style in ((0.5, "-"), (None, "--")):
        for (name, errors), color in zip(strong_errors(e, options.paths).items(), ("C0", "C1", "C2"), strict=True):
            orders = np.log2(np.divide(errors[:-1], errors[1:]))
            print(f"strong, e = {e}, {name}: {errors}, orders {orders}")
            strong.plot(STRONG, errors, style, marker="o", color=color, label=None if e is None else name)
    for axes, steps, begin, slopes in ((weak, WEAK, 0.1, (1,)), (strong, STRONG, 0.015, (0.5, 1))):
        for slope in slopes:
            axes.plot(steps, begin * (np.array(steps) / steps[0]) ** slope, color="0.7", zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="step h")
        axes.set_xticks(steps, [f"{h:g}" for h in steps], minor=False)
        axes.set_xticks([], minor=True)
    weak.set_ylabel("weak error of E v²/D")
    strong.set_ylabel("strong error of q (dashed: no wall)")
    strong.legend(fontsize="small")
    figure.savefig(options.out / "noise.png", dpi=110)


if __name__ == "__main__":
    main()
