"""The derivative of a motion by its drop height, across impacts: exact, by this library, by differences,
and by plain AD of a scheme.

A ball falls from y0 and bounces with e = 0.8; the quantity is its height at 1.2 s.
The exact derivative follows from closed forms.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaximpact as ji
from jaximpact.plots.style import new_figure

jax.config.update("jax_enable_x64", True)

G, E, T = 9.81, 0.8, 1.2
STEP = 1e-3  # of the scheme that is differentiated plainly, and of which differences are taken
BALL = ji.Problem(lambda t, q, v, args: jnp.array([-G]), lambda t, q, args: q, restitution=E)


def exact(y0: float) -> float:
    """Height at T of a ball dropped from y0, by its parabolas."""
    meets, up = jnp.sqrt(2 * y0 / G), E * jnp.sqrt(2 * G * y0)
    height = y0 - 0.5 * G * T**2
    for _ in range(20):
        left = T - meets
        height = jnp.where(left >= 0, up * left - 0.5 * G * left**2, height)
        meets, up = meets + 2 * up / G, E * up
    return height


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/drop_height"))
    parser.add_argument("--lanes", type=int, default=400)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    y0 = np.linspace(0.3, 1.5, options.lanes)
    start, still = y0[:, None], np.zeros((len(y0), 1))
    slopes = jax.vmap(jax.grad(exact))(jnp.asarray(y0))
    by = lambda **kind: ji.sensitivities(BALL, start, still, t1=T, wrt="q0", **kind).jacobian["q"]["q0"][:, 0, 0]
    own = by()
    plain = by(h=STEP, scheme=ji.MoreauJean(), sensitivity="discrete")
    end = lambda y: ji.ensemble(BALL, y, still, t1=T, h=STEP, scheme=ji.MoreauJean()).q[:, -1, 0]
    differences = (end(start + 1e-4) - end(start - 1e-4)) / 2e-4

    figure = new_figure(8, 4.2)
    axes = figure.subplots()
    axes.plot(y0, slopes, color="0.75", linewidth=6, label="exact")
    axes.plot(y0, differences, ".", color="0.35", markersize=3, label="difference of two runs, ±1e-4")
    axes.plot(y0, plain, color="tab:red", label="plain AD of a time-stepping scheme")
    axes.plot(y0, own, color="tab:blue", label="jaximpact")
    axes.set(xlabel="drop height [m]", ylabel="d(height at 1.2 s) / d(drop height)", ylim=(-6, 6))
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(options.out / "drop-height.png", dpi=120)
    off = np.abs(own - slopes)
    print(f"largest error {np.max(off):.1e}, median of plain AD's {np.median(np.abs(plain - slopes)):.2g}")


if __name__ == "__main__":
    main()
