"""Two optimal control problems across impacts, whose optimum is known: the loss that gradient descent finds beside it.

Y. D. Zhong, J. Han, B. Dey, G. O. Brikis, Improving gradient computation for differentiable physics simulation with
contacts, L4DC 2023, arXiv 2305.00092. A force on one disk of radius 0.2 and mass 1 is to have it hit another one,
elastically, so that this comes to the origin at t = 1; the loss is its squared distance from there and 0.01 times the
integral of the squared force. In the second problem the other disk has to bounce at a wall on its way. They show that
autodiff through steps of a usual simulator ends elsewhere than at the optimum, as the normal of the impact is then not
that of the time of impact, and print as optimum the least of 100 x 100 times and angles of the impact.

The optimum here: with the time s and the normal n of the impact given, the force is affine in time and the loss a
quadratic function of the velocity at the impact; over s and n it is minimised to round-off. Ours are two:

- a force that is affine in time until the impact, four numbers, by BFGS with derivatives of the motion and of the time
  of its impact by `EventDriven`: the optimum again, to the tolerance of the descent;
- a force of 481 values, affine between them, from the start that they give, by L-BFGS with reverse-mode derivatives of
  `EventCorrected`. The optimal force ends with a jump at the impact, which this one makes over a step; it ends at a
  local least, with the impact at another step than the best, the derivative down to 1e-10.

The loss that their own descent ends at is in no file and only drawn in the paper.

    python experiments/outside/control_problems.py
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from scipy.optimize import minimize  # noqa: E402

import jaximpact as ji  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import write_table  # noqa: E402

RADIUS, WEIGHT, T = 0.2, 0.01, 1.0
WALL = 1.0
STEPS = 480


@dataclass(frozen=True)
class Control:
    """One problem: starts of both disks, the constant force to begin with, if there is a wall, and the optimum that the
    authors' script prints."""

    name: str
    q1: tuple[float, float]
    q2: tuple[float, float]
    force: tuple[float, float]
    wall: bool
    printed: float


PROBLEMS = {
    "single": Control("one impact", (-1.0, -2.0), (-1.0, -1.0), (0.0, 3.0), False, 0.31154536),
    "multiple": Control("an impact and a wall", (0.25, -0.3), (-0.5, 0.6), (-3.5, 3.0), True, 0.37371032),
}


def optimum(control: Control) -> tuple[float, float]:
    """The least loss and the time of the impact, of all forces."""
    # behind the mirror of the wall the second disk goes straight on
    mirror = lambda q: np.array([q[0], 2 * (WALL - RADIUS) - q[1]]) if control.wall else np.array(q)
    start, target = mirror(control.q1), mirror(control.q2)

    def loss(given: np.ndarray) -> float:
        s, angle = given
        n = np.array([np.cos(angle), np.sin(angle)])
        way = target - start - 2 * RADIUS * n
        # the least integral of a squared force from rest by `way` to velocity w: 12 way^2/s^3 - 12 way w/s^2 + 4 w^2/s;
        # the second disk leaves with the normal part of w
        matrix = 4 * WEIGHT / s * np.eye(2) + (T - s) ** 2 * np.outer(n, n)
        w = np.linalg.solve(matrix, 6 * WEIGHT / s**2 * way - (T - s) * (target @ n) * n)
        end = target + (T - s) * (w @ n) * n
        t = np.linspace(0, s, 200)[:, None]
        path = start + (3 * way / s**2 - w / s) * t**2 + (w / s**2 - 2 * way / s**3) * t**3
        if w @ n <= 0 or np.min(np.linalg.norm(path - target, axis=1)) < 2 * RADIUS - 1e-12:
            return np.inf  # it would come through the other disk
        return float(end @ end + WEIGHT * (12 * way @ way / s**3 - 12 * way @ w / s**2 + 4 * w @ w / s))

    grid = [(s, a) for s in np.linspace(0.05, 0.95, 40) for a in np.linspace(-np.pi, np.pi, 80)]
    begin = min(grid, key=lambda x: loss(np.array(x)))
    found = minimize(loss, begin, method="Nelder-Mead", options={"xatol": 1e-12, "fatol": 1e-15, "maxiter": 2000})
    return float(found.fun), float(found.x[0])


def disks(control: Control) -> ji.Problem:
    """Both disks, q = (x1, y1, x2, y2); args are the values of the force at the steps (STEPS + 1, 2)."""

    def force(t, q, v, args):
        place = t / T * STEPS
        k = jnp.clip(jnp.floor(jax.lax.stop_gradient(place)).astype(int), 0, STEPS - 1)
        u = args[k] + (place - k) * (args[k + 1] - args[k])
        return jnp.concatenate([u, jnp.zeros(2)])

    def gaps(t, q, args):
        apart = jnp.sqrt(jnp.sum((q[2:] - q[:2]) ** 2)) - 2 * RADIUS
        walls = [WALL - RADIUS - q[1], WALL - RADIUS - q[3]] if control.wall else []
        return jnp.stack([apart, *walls])

    return ji.Problem(force, gaps, restitution=1.0)


def affine(control: Control) -> dict:
    """The least loss of forces c0 + c1 t that end with the impact, the time of that, and iterations."""
    problem = disks(control)
    problem = problem.replace(force=lambda t, q, v, args: jnp.concatenate([args[0] + args[1] * t, jnp.zeros(2)]))
    q0, v0 = jnp.array([*control.q1, *control.q2]), jnp.zeros(4)

    def run(c):
        scheme, save = ji.EventDriven(1e-12, 1e-12), ji.Events(impacts=3)
        return ji.solve(problem, q0, v0, t1=T, args=c, scheme=scheme, save=save)

    @jax.jit
    @jax.value_and_grad
    def loss(c):
        motion = run(c)
        end, s = (
            motion.q[-1, 2:],
            motion.events.t[0],
        )  # the force is off behind the impact, where it would move the first disk alone
        return end @ end + WEIGHT * (c[0] @ c[0] * s + c[0] @ c[1] * s**2 + c[1] @ c[1] * s**3 / 3)

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = (np.asarray(y, float) for y in loss(x.reshape(2, 2)))
        # a step of the search that goes past the other disk has no time of impact
        return (float(value), slope.ravel()) if np.isfinite(value) else (1e6, 0 * x)

    begin = np.array([control.force, (0.0, 0.0)])
    found = minimize(call, begin.ravel(), jac=True, method="BFGS", options={"gtol": 1e-9})
    motion = run(jnp.asarray(found.x.reshape(2, 2)))
    assert int(motion.events.contact[0]) == 0 and int(motion.status) == 0, str(ji.Status(int(motion.status)))
    return {"last": float(found.fun), "impact": float(motion.events.t[0]), "iterations": int(found.nit)}


def descend(control: Control, steps: int = 2000) -> dict:
    """Minimises the loss from the constant force; the loss at first and in the end, iterations and status."""
    problem = disks(control)
    q0, v0 = jnp.array([*control.q1, *control.q2]), jnp.zeros(4)

    def run(u, **options):
        return ji.solve(problem, q0, v0, t1=T, steps=STEPS, args=u, scheme=ji.EventCorrected(), **options)

    @jax.jit
    @jax.value_and_grad
    def loss(u):
        end = run(u, save="final").q[-1, 2:]
        squares = u[:-1] ** 2 + u[:-1] * u[1:] + u[1:] ** 2  # exact for a force that is affine between the steps
        return end @ end + WEIGHT * jnp.sum(squares) * T / STEPS / 3

    begin = np.tile(control.force, (STEPS + 1, 1))

    def call(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = loss(x.reshape(-1, 2))
        return float(value), np.asarray(slope, float).ravel()

    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 50}
    found = minimize(call, begin.ravel(), jac=True, method="L-BFGS-B", options=options)
    status = str(ji.Status(int(run(found.x.reshape(-1, 2), save="final").status)))
    return {"first": call(begin.ravel())[0], "last": float(found.fun), "iterations": int(found.nit), "status": status}


def compare(control: Control) -> dict:
    """One line: the optimum as the authors' script prints it, to round-off, and what descent finds."""
    best, when = optimum(control)
    few, many = affine(control), descend(control)
    return {
        "problem": control.name, "loss at first": f"{many['first']:.4f}",
        "optimum of the paper": f"{control.printed:.8f}", "optimum": f"{best:.10f}", "its impact": f"{when:.6f}",
        "affine force": f"{few['last']:.10f}", "its error": f"{few['last'] - best:.1e}",
        "impact there": f"{few['impact']:.6f}",
        "481 values": f"{many['last']:.6f}", "above the optimum": f"{many['last'] - best:.1e}",
        "iterations": f"{few['iterations']}, {many['iterations']}", "status": many["status"],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/outside"))
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options = parser.parse_args(arguments)
    lines = [compare(PROBLEMS[name]) for name in options.only]
    path = options.out / "control_problems.csv"
    write_table(path, lines)
    for line in lines:
        print(", ".join(f"{name} {x}" for name, x in line.items()))
    print(f"wrote {path}")
    return lines


if __name__ == "__main__":
    main()
