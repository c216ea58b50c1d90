"""Optimal control across impacts by `analysis.shoot`, from 1000 random starts each, beside optima that are known.

- Two disks (L4DC 2023, arXiv 2305.00092), as in `control_problems.py`: a force that is affine in time; starts aim at
  the other disk to 0.4 rad, or anywhere.
- The bouncing ball of hybrid iLQR (N. J. Kong, G. Council, A. M. Johnson, arXiv 2103.14584; numbers of the authors'
  example file): from 4 m at rest to 3 m at rest in 1 s, e = 0.75, 20 times the squared distance and 1/8 of the integral
  of the squared force. It has two optima, without a bounce and with one, which follow from the least effort of
  parabolas; here with 40 constant forces.
- A pendulum that swings up against a stop: torque at most .7 of what holds it sideways, a stop with e = 0.8 at -0.6
  rad, 100 times the squared distance from upright and at rest after 10 s, and 0.01 times the integral of the squared
  torque; to an optimality of 1e-3, as its steps converge slowly.
- Three carts (nosnoc's example `three_cart_ocp`, from Lin and Ohtsuka): only the middle one is driven, and has to push
  the outer ones, inelastically, to their places; 20 constant forces. nosnoc prints no optimum:
  the share and the least cost are ours.
- A hopper (nosnoc_py's example `hopper_robot`, one jump of .6 m in 1 s with 20 constant torques and leg forces;
  friction .45, e = 0): its tracking cost without the constraint that a foot in contact must not slip, by Simpson's
  rule; bounds of its states are squares of what is beyond, times 1.6e5.

Processor time of one batch, and of one start at a time, from five of them, both without compiling.

    python experiments/outside/shooting.py
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from scipy.optimize import minimize  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact import analysis  # noqa: E402
from jaximpact.plots.style import COLOURS, GREY, new_figure, tidy  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.control_problems import PROBLEMS, WEIGHT, T, disks, optimum  # noqa: E402
from outside.tables import write_table  # noqa: E402

ALONE = 5  # starts that are timed one at a time


class Task(NamedTuple):
    """A problem of optimal control: ``starts(random, count)`` draws controls (count, N, k); ``known``:
    least costs by other means."""

    problem: ji.Problem
    q0: list
    options: dict
    starts: Callable
    known: dict[str, float]


def hit(name: str, spread: float) -> Task:
    """One disk hits the other: the force is c0 + c1 t until its last impact there."""
    control = PROBLEMS[name]
    first, other = np.array(control.q1), np.array(control.q2)
    aim = np.arctan2(*(other - first)[::-1])
    if name == "multiple":
        aim = np.arctan2(control.force[1], control.force[0])  # over the wall
    problem = disks(control).replace(
        force=lambda t, q, v, args: jnp.concatenate([args[:2] + args[2:] * t, jnp.zeros(2)])
    )

    def end(solution, u):
        events = solution.events
        struck = jnp.isfinite(events.t) & (events.contact == 0)
        s = jnp.where(struck.any(), jnp.max(jnp.where(struck, events.t, 0.0)), T)
        forces = [u[:2] + u[2:] * s * (1 + k / np.sqrt(3)) / 2 for k in (-1, 1)]  # whose squares integrate exactly
        return jnp.concatenate([solution.q[-1, 2:], *(jnp.sqrt(WEIGHT * s / 2) * f for f in forces)])

    def starts(random, count):
        angle, size = aim + spread * random.uniform(-1, 1, count), random.uniform(3, 12, count)
        force = size * np.array([np.cos(angle), np.sin(angle)])
        return np.concatenate([force, random.normal(0, 3, (2, count))]).T[:, None]

    options = {"t1": T, "end": end, "save": ji.Events(impacts=4)}
    return Task(problem, [*first, *other], options, starts, {"optimum": optimum(control)[0]})


def effort(x0, x1, h, g):
    """The least integral of u² with q'' = u - g between two states (q, v) in the time h."""
    y, w = x1[0] - x0[0] - x0[1] * h + g * h * h / 2, x1[1] - x0[1] + g * h
    return 12 * y * y / h**3 - 12 * y * w / h**2 + 4 * w * w / h


def ball() -> Task:
    g, e = 9.8, 0.75
    end = lambda q, v: 20 * ((q - 3) ** 2 + v**2)
    flight = minimize(lambda p: end(*p) + effort((4, 0), p, 1.0, g) / 8, [3, 0], method="Nelder-Mead", tol=1e-13)

    def bounce(p):
        s, w, q, v = p
        if not (0 < s < 1 and w < 0):
            return np.inf
        return end(q, v) + (effort((4, 0), (0, w), s, g) + effort((0, -e * w), (q, v), 1 - s, g)) / 8

    bounced = minimize(bounce, [0.5, -12, 3, 0], method="Nelder-Mead", options={"fatol": 1e-13, "maxiter": 5000})
    problem = ji.Problem(lambda t, q, v, args: args - g, lambda t, q, args: q, restitution=e)
    residual = lambda s, u: np.sqrt(20) * jnp.concatenate([s.q[-1] - 3.0, s.v[-1]])
    options = {"t1": 1.0, "path": lambda s, u: u / np.sqrt(8), "end": residual}
    starts = lambda random, count: random.uniform(-40, 40, (count, 1, 1)) + random.uniform(-10, 10, (count, 40, 1))
    return Task(problem, [4.0], options, starts, {"in flight": flight.fun, "with a bounce": bounced.fun})


def pendulum() -> Task:
    problem = ji.Problem(lambda t, q, v, args: args - jnp.sin(q), lambda t, q, args: q + 0.6, restitution=0.8)
    upright = lambda s, u: 10 * jnp.concatenate([s.q[-1] - jnp.pi, s.v[-1]])
    options = {"t1": 10.0, "path": lambda s, u: 0.1 * u, "end": upright, "bounds": (-0.7, 0.7)}
    options |= {"tol": 1e-3, "iterations": 100}
    starts = lambda random, count: random.uniform(-0.7, 0.7, (count, 20, 1))
    return Task(problem, [0.0], options, starts, {})


def carts() -> Task:
    gaps = lambda t, q, args: q[1:] - q[:-1] - 2.0
    problem = ji.Problem(lambda t, q, v, args: jnp.array([0.0, 1.0, 0.0]) * args - 2 * v, gaps, restitution=0.0)
    goal, weights = np.array([-7.0, 0, 5, 0, 0, 0]), np.sqrt([10, 1, 10, 0.1, 0.1, 0.1])
    away = lambda s: weights * (jnp.concatenate([s.q[-1], s.v[-1]]) - goal)
    options = {"t1": 6.0, "path": lambda s, u: jnp.concatenate([away(s), np.sqrt(0.1) * u]), "bounds": (-30.0, 30.0)}
    options["end"] = lambda s, u: np.sqrt(200) * away(s)
    starts = lambda random, count: random.uniform(-30, 30, (count, 20, 1))
    return Task(problem, [-3.0, 0, 3], options, starts, {})


def hopper() -> Task:
    start, middle, goal = np.zeros((3, 8))
    start[:4], middle[:4], goal[:4] = [0.1, 0.5, 0, 0.5], [0.4, 1.0, 0, 0.1], [0.7, 0.5, 0, 0.5]
    tracking, final = np.sqrt([100, 100, 20, 50, *[0.1] * 4]), np.sqrt([300] * 4 + [0.1] * 4)
    low, high = np.array([0, 0, -np.pi, 0.1, -10, -10, -5, -5]), np.array([0.8, 1.5, np.pi, 0.5, 10, 10, 5, 5])

    def force(t, q, v, args):
        turn, push = args
        return jnp.stack([-push * jnp.sin(q[2]), push * jnp.cos(q[2]) - 1.1 * 9.81, turn, push])

    problem = ji.Problem(
        force,
        lambda t, q, args: (q[1] - q[3] * jnp.cos(q[2]))[None],
        mass=np.diag([1.1, 1.1, 0.275, 0.1]),
        restitution=0.0,
        slip=lambda t, q, v, args: (v[0] + q[3] * jnp.cos(q[2]) * v[2] + jnp.sin(q[2]) * v[3])[None],
        friction=0.45,
    )

    def path(s, u):
        t = s.t[-1]
        along = (
            (1 - t) * (1 - 2 * t) * start + 4 * t * (1 - t) * middle + t * (2 * t - 1) * goal
        )  # at the end of the interval
        length = s.t[-1] - s.t[0]
        (q, end), (v, last) = s.q[jnp.array([0, -1])], s.v[jnp.array([0, -1])]
        between = jnp.concatenate([(q + end) / 2 + length / 8 * (v - last), 1.5 * (end - q) / length - (v + last) / 4])
        states = jnp.stack([jnp.concatenate([q, v]), between, jnp.concatenate([end, last])])
        simpson = jnp.sqrt(jnp.array([1, 4, 1]) / 6)[:, None]
        beyond = jnp.maximum(states - high, 0) + jnp.maximum(low - states, 0)
        return jnp.concatenate([(simpson * tracking * (states - along)).ravel(), 400 * beyond.ravel(), 0.1 * u])

    options = {"t1": 1.0, "path": path, "save": 1, "bounds": (-50.0, 50.0), "tol": 1e-3, "iterations": 100}
    options["end"] = lambda s, u: final * (jnp.concatenate([s.q[-1], s.v[-1]]) - goal)

    def starts(random, count):
        turn, push = random.normal(0, 1, (count, 20)), 5.4 + random.uniform(-20, 20, (count, 20))
        return np.stack([turn, push], axis=2)

    return Task(problem, [*start[:4]], options, starts, {})


TASKS = {
    "disks, aimed": lambda: hit("single", 0.4),
    "disks, anywhere": lambda: hit("single", np.pi),
    "disks and a wall, aimed": lambda: hit("multiple", 0.4),
    "ball of hybrid iLQR": ball,
    "swing-up against a stop": pendulum,
    "three carts": carts,
    "hopper of nosnoc": hopper,
}

DEFAULT = list(TASKS)[:6]  # a start of the hopper takes a minute
DRAWN = DEFAULT[3:]


def run(name: str, count: int) -> tuple[dict, analysis.Shooting, Task]:
    """One line of the table."""
    task = TASKS[name]()
    starts = task.starts(np.random.default_rng(0), count)
    still = np.zeros(len(task.q0))

    def timed(some: np.ndarray) -> tuple[float, analysis.Shooting]:
        begin = time.process_time()
        found = analysis.shoot(task.problem, task.q0, still, some, **task.options)
        return time.process_time() - begin, found

    timed(starts), timed(starts[0])  # which compile
    together, found = timed(starts)
    alone = np.mean([timed(one)[0] for one in starts[:ALONE]]) * count
    best = np.min(found.cost[found.converged], initial=np.inf)
    known = task.known or {"least": best}
    shares = {
        key: np.mean(found.converged & (np.abs(found.cost - value) < 1e-3 * (1 + value)))
        for key, value in known.items()
    }
    line = {
        "problem": name, "starts": count, "converged": f"{np.mean(found.converged):.1%}", "least cost": f"{best:.8g}",
        "known": ", ".join(f"{key} {value:.8g}" for key, value in task.known.items()),
        "arrive": ", ".join(f"{key} {share:.1%}" for key, share in shares.items()),
        "steps": f"{np.median(found.iterations):.0f}", "batch [s]": f"{together:.1f}",
        "one at a time [s]": f"{alone:.0f}",
    }  # fmt: skip
    return line, found, task


def draw(found: dict[str, analysis.Shooting], path: Path) -> None:
    """Motions at the optima."""
    figure = new_figure(11, 3.4)
    ball, swing, carts = figure.subplots(1, 3)
    for key, shots, axes in zip(DRAWN, (found[name] for name in DRAWN), (ball, swing, carts), strict=True):
        for lane in (*np.flatnonzero(shots.converged)[:60], shots.best):
            last = lane == shots.best
            for k in range(shots.q.shape[2]):
                color = COLOURS[k] if last else GREY
                axes.plot(
                    shots.t[lane], shots.q[lane, :, k], color=color, linewidth=2 if last else 0.4, zorder=2 + last
                )
        axes.set(title=key, xlabel="time [s]")
        tidy(axes)
    ball.set(ylabel="height [m]")
    swing.set(ylabel="angle [rad]")
    carts.set(ylabel="places [m]")
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/outside"))
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=DEFAULT)
    options = parser.parse_args(arguments)
    lines, found = [], {}
    for name in options.only:
        line, found[name], _ = run(name, options.starts)
        lines.append(line)
        print(", ".join(f"{key} {x}" for key, x in line.items()), flush=True)
    write_table(options.out / "shooting.csv", lines)
    if set(DRAWN) <= set(found):
        draw(found, options.out / "shooting.png")
    return lines


if __name__ == "__main__":
    main()
