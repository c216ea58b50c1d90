"""A quadruped out of a model file falls onto its feet: how it stands at five times, how high its trunk is, and how
strongly the floor pushes each foot. The robot is that of `benchmarks/robots.py`, springs in its hips and knees.

    python experiments/gallery/landing_quadruped.py         needs mujoco
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax
import numpy as np

import jaximpact as ji
from jaximpact import spatial
from jaximpact.plots.style import COLOURS, DARK, GREY, new_figure, tidy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.robots import FILE, quadruped

jax.config.update("jax_enable_x64", True)

T1, STEPS, MEAN = 1.2, 2400, 8  # s; steps; steps over which a push is shown
TIMES = 0.0, 0.24, 0.34, 0.54, 1.2  # of the pictures [s]
FEET = {"fl": "front left", "fr": "front right", "hl": "hind left", "hr": "hind right"}


def land() -> tuple[spatial.Model, ji.Problem, ji.Solution]:
    """The robot, its problem, and its motion from a start .25 m above the floor, tilted, with a forward velocity."""
    robot = spatial.from_mjcf(FILE.format(quadruped()), contacts="*foot-floor", restitution=0.0)
    problem = robot.problem()
    qpos, qvel = np.zeros(15), np.zeros(14)
    qpos[:7] = 0, 0, 0.7, *np.array([1, 0.08, 0.12, 0]) / np.linalg.norm([1, 0.08, 0.12, 0])
    qvel[0] = 0.8
    motion = ji.solve(problem, *robot.start(qpos, qvel), t1=T1, steps=STEPS, scheme=ji.MoreauJean())
    return robot, problem, motion


def draw(path: Path, robot: spatial.Model, problem: ji.Problem, motion: ji.Solution) -> None:
    t, q, h = np.asarray(motion.t), np.asarray(motion.q), T1 / STEPS
    figure = new_figure(10.0, 5.2)
    scene, height, push = figure.subplot_mosaic("AA;BC", height_ratios=[1.0, 0.9]).values()
    view = robot.view(azimuth=-75.0, elevation=12.0)
    for i, time in enumerate(TIMES):
        shifted = q[np.argmin(np.abs(t - time))].copy()
        shifted[0] += 0.85 * i - shifted[0]
        view(scene, time, shifted)
        scene.text(0.85 * i, -0.28, f"{time:g} s", ha="center", fontsize=9, color=DARK)
    scene.set_aspect("equal")
    scene.axis("off")
    height.plot(t, q[:, 2], color=DARK)
    height.vlines(TIMES, 0, 0.75, color=GREY, lw=0.7)
    height.set(xlabel="t [s]", ylabel="height of the trunk [m]", ylim=(0, 0.75))
    pushes = np.diff(np.asarray(motion.impulse)[::MEAN], axis=0) / (MEAN * h)  # impulses are those since the start
    for colour, (corner, name) in zip(COLOURS, FEET.items(), strict=False):
        contact = problem.contacts.index(f"{corner} foot-floor")
        push.plot(t[MEAN::MEAN], pushes[:, contact], color=colour, label=name, lw=1.2)
    push.set(xlabel="t [s]", ylabel="push of the floor [N]")
    push.legend(frameon=False, fontsize=8.5)
    for ax in (height, push):
        tidy(ax)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/landing_quadruped"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    robot, problem, motion = land()
    rises = lambda k: float((robot.mass(motion.q[k], None) @ motion.v[k])[2])  # vertical momentum of the whole
    weight = 9.81 * T1 * float(robot.mass(motion.q[0], None)[2, 2])
    given = float(np.asarray(motion.impulse)[-1, -len(FEET) :].sum())
    print(f"{motion}\nmomentum {rises(-1) - rises(0):.4f} N s, feet less weight {given - weight:.4f} N s")
    draw(options.out / "quadruped.png", robot, problem, motion)
    print(f"wrote {options.out / 'quadruped.png'}")


if __name__ == "__main__":
    main()
