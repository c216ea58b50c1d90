"""A gas of inelastic disks in a periodic box: it cools, and gathers in clusters (I. Goldhirsch, G.
Zanetti, Phys. Rev. Lett. 70 (1993)).

Between impacts the disks fly freely; each impact keeps momentum and loses a share 1 - e^2 of the energy of approach.
While the gas is even its energy falls as Haff's law says, E0/(1 + t/tau)^2, tau from the first tenth of the motion;
clusters slow that down.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np
from falling_disks import heap

import jaximpact as ji
from jaximpact import bodies
from jaximpact.plots.style import new_figure

jax.config.update("jax_enable_x64", True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/inelastic_gas"))
    parser.add_argument("--side", type=int, default=20, help="disks along an edge of the box at the start")
    parser.add_argument("--e", type=float, default=0.6)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    side, rng = options.side, np.random.default_rng(0)
    count = side**2
    q0 = (np.stack(np.divmod(np.arange(count), side), axis=1) + 0.5).ravel().astype(float)
    v0 = rng.normal(size=(count, 2))
    v0 = (v0 - v0.mean(axis=0)).ravel()
    radii = np.full(count, 0.28)  # a quarter of the area
    problem = bodies.disks(radii, periodic=(float(side), float(side)), restitution=options.e)
    found = ji.solve(problem, q0, v0, t1=60.0, h=4e-3, scheme=ji.MoreauJean(), save=100).raise_if_failed()
    t, energy = np.asarray(found.t), np.asarray(found.energy)
    momentum = np.asarray(found.v).reshape(len(t), -1, 2).sum(axis=1)
    part = len(t) // 10
    tau = t[part] / (np.sqrt(energy[0] / energy[part]) - 1)
    print(
        f"energy {energy[0]:.1f} to {energy[-1]:.3f} J; momentum at most {np.max(np.abs(momentum)):.1e}; Haff's tau "
        f"{tau:.2f} s"
    )

    figure = new_figure(9.0, 4.2)
    ax = figure.add_subplot(1, 2, 1)
    heap(ax, radii, (np.asarray(found.q[-1]).reshape(-1, 2) % side).ravel())
    ax.set(xlim=(0, side), ylim=(0, side), title=f"t = {t[-1]:.0f} s", xlabel="x [m]", ylabel="y [m]")
    ax = figure.add_subplot(1, 2, 2)
    ax.loglog(t[1:], energy[1:] / energy[0], color="#b03a2e", label="motion")
    ax.loglog(t[1:], 1 / (1 + t[1:] / tau) ** 2, color="0.4", ls="--", label="Haff's law")
    ax.set(xlabel="t [s]", ylabel="energy, of the first")
    ax.legend()
    figure.savefig(options.out / "gas.png", dpi=150)
    print(f"wrote {options.out / 'gas.png'}")


if __name__ == "__main__":
    main()
