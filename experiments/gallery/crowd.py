"""A dense crowd leaves a room: everybody would walk straight to the door at a wished velocity,
and nobody can overlap anybody.

B. Maury, J. Venel, A discrete contact model for crowd motion, ESAIM M2AN 45 (2011): the velocity is the projection of
the wished one onto those that keep all distances. Here people are disks with inertia, whose velocity takes up the wish
within a relaxation time; as it tends to zero that is their model. The law is that of `Maury`: velocities are projected
onto linearised constraints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from falling_disks import heap

import jaximpact as ji
from jaximpact import bodies
from jaximpact.plots.style import new_figure

jax.config.update("jax_enable_x64", True)

ROOM, DOOR, SPEED, RELAX = (
    8.0,
    1.1,
    1.2,
    0.05,
)  # width of the room and the door [m], wished speed [m/s], time to take it up [s]


def wall(x, size):
    """Distance from the wall y = 0 with its door: over it, or from the nearer jamb."""
    aside = jnp.abs(x[0]) - 0.5 * DOOR
    corner = jnp.stack([jnp.minimum(aside, 0.0), x[1]])
    through = jnp.sqrt(jnp.sum(corner**2) + 1e-30)
    over = jnp.where(aside > 0, x[1], through)
    # behind the wall nobody meets it any more, but the corridor's sides
    return jnp.where(x[1] < 0, -aside, over) - size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/crowd"))
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--t1", type=float, default=20.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    count, rng = options.count, np.random.default_rng(0)
    sizes = rng.uniform(0.2, 0.25, count)
    columns = 14
    row, column = np.divmod(np.arange(count), columns)
    centres = (
        0.53 * np.stack([column - 0.5 * (columns - 1), row], axis=1) + [0, 0.6] + rng.uniform(-0.01, 0.01, (count, 2))
    )
    apart = lambda a, b, r, s: jnp.sqrt(jnp.sum((a - b) ** 2)) - (r + s)
    sides = lambda t, x, size: jnp.stack([x[0] + 0.5 * ROOM - size, 0.5 * ROOM - x[0] - size, wall(x, size)])

    def walk(t, q, v, args):
        x = q.reshape(count, 2)
        # to the door, and behind it straight on
        aim = jnp.stack([jnp.where(x[:, 1] > 0, -x[:, 0], 0.0), jnp.where(x[:, 1] > 0, -x[:, 1] - 0.3, -1.0)], axis=1)
        wish = SPEED * aim / jnp.sqrt(jnp.sum(aim**2, axis=1, keepdims=True))
        return (wish.ravel() - v) / RELAX

    crowd = bodies.Bodies(count, apart, 0.5, obstacles=sides, each=lambda t, args: jnp.asarray(sizes))
    q0 = centres.ravel()
    found = ji.solve(ji.Problem(walk, crowd), q0, 0 * q0, t1=options.t1, h=1e-2, save=10).raise_if_failed()
    left = np.sum(np.asarray(found.q).reshape(len(found.t), -1, 2)[..., 1] < 0, axis=1)
    print(f"{left[-1]} of {count} have left after {options.t1:g} s; penetration {float(found.penetration):.1e} m")

    figure = new_figure(9.0, 3.4)
    for k, row in enumerate((0, len(found.t) // 3)):
        ax = figure.add_subplot(1, 3, k + 1)
        heap(ax, sizes, found.q[row], *((np.asarray(found.pairs[row]), np.asarray(found.impulse[row])) if row else ()))
        for side in (-1, 1):
            ax.plot([side * 0.5 * ROOM, side * 0.5 * DOOR, side * 0.5 * DOOR], [0, 0, -2], color="k", lw=1.5)
        ax.set(
            xlim=(-0.5 * ROOM, 0.5 * ROOM),
            ylim=(-2, 7),
            title=f"t = {float(found.t[row]):.1f} s",
            xlabel="x [m]",
            ylabel="y [m]",
        )
    ax = figure.add_subplot(1, 3, 3)
    ax.plot(found.t, left, color="#b03a2e")
    ax.set(xlabel="t [s]", ylabel="people who have left")
    figure.savefig(options.out / "crowd.png", dpi=150)
    print(f"wrote {options.out / 'crowd.png'}")


if __name__ == "__main__":
    main()
