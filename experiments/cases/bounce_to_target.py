"""A control problem through an impact with a known optimum: bounce off the floor and reach a target, at least effort.

A puck of unit mass starts at q0 with velocity v0 above the floor y = 0 (restitution e < 1, no friction), is pushed by a
force u(t), a sum of cosines, and shall be at q* at time T after one impact. Minimised is

    J(u) = 1/2 integral |u|^2 dt + k/2 |q(T) - q*|^2.

The gradient is that of `jaximpact.solve`, the optimiser optax's. For comparison the same with sensitivity="discrete",
the derivative of the scheme's own map, which misses the optimum however small the step. A problem of the kind of Zhong,
Han, Dey and Brikis (L4DC 2023), with gravity, e < 1 and a known optimum:

Along x no impact is felt. Along y let the impact be at s. Then y(s) = fall + <a, u> = 0 and the miss is
y(T) - y* = offset + <w, u>, with the scalar product <a, u> = integral a u dt and, since v+ = -e v- at the impact,

    a(t) = s - t  before s, 0 after;      w(t) = -e (T - s)  before s, T - t  after.

Stationarity of 1/2 <u, u> + k/2 (offset + <w, u>)^2 + m (fall + <a, u>) gives u = -k miss w - m a: minus the costate of
v, which the impact multiplies by -1/e. Two linear equations with the Gram numbers <a, a>, <a, w>, <w, w> give miss and
m; what remains is to minimise over the one number s. For sums of cosines the same holds of the projections of a and w
onto them, so that this optimum is exact, too.

    python experiments/cases/bounce_to_target.py            # a table for several steps h, results.npz, table.csv, figure.png
"""  # noqa: E501

import argparse
import csv
import json
from dataclasses import dataclass, field
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from scipy.optimize import brentq, minimize_scalar  # noqa: E402

import jaximpact as ji  # noqa: E402

STEPS = (500, 2000, 16000)  # time steps: h = T/steps
ITERATIONS, SETTLE = 60, 20  # of the optimiser, and those with ever shorter steps at the end
MODES = 8  # cosines


@dataclass(frozen=True)
class Task:
    """The numbers of the control problem, SI units, unit mass."""

    start: np.ndarray = field(default_factory=lambda: np.array([0.0, 1.0]))
    velocity: np.ndarray = field(default_factory=lambda: np.array([1.0, 0.0]))
    target: np.ndarray = field(default_factory=lambda: np.array([1.5, 0.9]))
    duration: float = 1.0
    restitution: float = 0.7
    gravity: float = 9.81
    weight: float = 200.0  # k: misses of some cm at the optimum


def basis(duration, modes: int, t):
    """The cosines, orthonormal on [0, duration], at a time t: (modes,)."""
    j = np.arange(modes)
    return np.sqrt(2.0 - (j == 0)) / jnp.sqrt(duration) * jnp.cos(np.pi * j * (t / duration))


def sampled(task: Task, modes: int, t: np.ndarray) -> np.ndarray:
    """The cosines at times t (n,): (n, modes)."""
    return np.asarray(jax.vmap(lambda t: basis(task.duration, modes, t))(t))


def projections(task: Task, modes: int, s: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (modes,) of a and w for an impact at s, by quadrature on both sides of s."""
    x, weights = np.polynomial.legendre.leggauss(modes + 16)
    rest, e = task.duration - s, task.restitution
    before, after = s * (1 + x) / 2, s + rest * (1 + x) / 2
    early = sampled(task, modes, before).T * (s / 2 * weights)
    late = sampled(task, modes, after).T * (rest / 2 * weights)
    return early @ (s - before), late @ (task.duration - after) - e * rest * early.sum(axis=1)


def gram(task: Task, modes: int | None, s: float) -> tuple[float, float, float]:
    """<a, a>, <a, w>, <w, w>; modes=None: for any force."""
    if modes is not None:
        a, w = projections(task, modes, s)
        return a @ a, a @ w, w @ w
    e, rest = task.restitution, task.duration - s
    return s**3 / 3, -e * rest * s**2 / 2, rest**3 / 3 + e**2 * rest**2 * s


def vertical(task: Task, modes: int | None, s: float) -> tuple[float, float, float]:
    """Least vertical cost with the impact at s, the miss y(T) - y*, and the multiplier m of y(s) = 0."""
    (y, v), g, e, k = (task.start[1], task.velocity[1]), task.gravity, task.restitution, task.weight
    rest = task.duration - s
    fall = y + v * s - g * s**2 / 2
    offset = -e * (v - g * s) * rest - g * rest**2 / 2 - task.target[1]
    aa, aw, ww = gram(task, modes, s)
    # <a, u> = -fall and <w, u> = miss - offset with u = -k miss w - m a
    miss, m = np.linalg.solve([[k * aw, aa], [1 + k * ww, aw]], [fall, offset])
    effort = (k * miss) ** 2 * ww + 2 * k * miss * m * aw + m**2 * aa
    return effort / 2 + k * miss**2 / 2, miss, m


@dataclass(frozen=True)
class Optimum:
    """Least cost, time of impact s [s], and what the force along x and y is made of."""

    task: Task
    cost: float
    impact: float
    miss: np.ndarray  # q(T) - q*, (2,) [m]
    m: float  # multiplier of y(s) = 0

    def force(self, t: np.ndarray) -> np.ndarray:
        """The best of all forces at times (n,): (n, 2) [N]."""
        rest, before = self.task.duration - t, t < self.impact
        w = np.where(before, -self.task.restitution * (self.task.duration - self.impact), rest)
        vertical = -self.task.weight * self.miss[1] * w - self.m * np.where(before, self.impact - t, 0)
        return np.stack([-self.task.weight * self.miss[0] * rest, vertical], axis=1)

    def coefficients(self, modes: int) -> np.ndarray:
        """The best sum of cosines: (modes, 2)."""
        reach = projections(self.task, modes, 0.0)[1]
        a, w = projections(self.task, modes, self.impact)
        k = self.task.weight
        return np.stack([-k * self.miss[0] * reach, -k * self.miss[1] * w - self.m * a], axis=1)


def optimum(task: Task, modes: int | None) -> Optimum:
    """The optimum among sums of cosines, or, modes=None, among all forces; see above.
    One impact is taken for granted."""
    bounds = (0.05 * task.duration, 0.95 * task.duration)
    s = minimize_scalar(lambda s: vertical(task, modes, s)[0], bounds=bounds, options={"xatol": 1e-11}).x
    cost, miss, m = vertical(task, modes, s)
    # along x, as if the impact had been at once: w = T - t
    k, norm = task.weight, gram(task, modes, 0.0)[2]
    side = (task.start[0] + task.velocity[0] * task.duration - task.target[0]) / (1 + k * norm)
    return Optimum(task, cost + k * side**2 * (1 + k * norm) / 2, s, np.array([side, miss]), m)


def exact_path(task: Task, coefficients: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Exact motion under coefficients (modes, 2): positions (n, 2) at times t (n,), and the times of all impacts.

    Independent of the solver and of the optimum: integrals of cosines, and the roots of y one after another.
    """
    c = coefficients * np.sqrt((2 - (np.arange(len(coefficients)) == 0)) / task.duration)[:, None]
    rates = np.pi * np.arange(1, len(c)) / task.duration

    def free(t):
        t = np.asarray(t)[..., None]
        steady = task.start + task.velocity * t + (c[0] - [0.0, task.gravity]) * t**2 / 2
        return steady + (1 - np.cos(rates * t)) / rates**2 @ c[1:]

    def speed(t):
        return task.velocity[1] + (c[0, 1] - task.gravity) * t + np.sin(rates * t) / rates @ c[1:, 1]

    impacts, kicks = [], []
    height = lambda t: free(t)[..., 1] + sum(k * (t - s) for s, k in zip(impacts, kicks, strict=True))
    scan = np.linspace(0, task.duration, 2001)
    while len(low := np.flatnonzero((height(scan) < 0) & (scan > (impacts or [0])[-1] + scan[1]))):
        impact = brentq(height, scan[low[0] - 1], scan[low[0]], xtol=1e-15)
        kick = -(1 + task.restitution) * (speed(impact) + sum(kicks))
        impacts, kicks = [*impacts, impact], [*kicks, kick]
    path = free(t)
    path[:, 1] += sum(k * np.maximum(t - s, 0) for s, k in zip(impacts, kicks, strict=True))
    return path, impacts


def total(task: Task, coefficients, end):
    """J of coefficients (modes, 2) that lead to the end point (2,)."""
    return (coefficients**2).sum() / 2 + task.weight * ((end - task.target) ** 2).sum() / 2


def exact_cost(task: Task, coefficients: np.ndarray) -> float:
    return total(task, coefficients, exact_path(task, coefficients, np.array([task.duration]))[0][0])


def push(t, q, v, args):
    """Gravity and the sum of cosines."""
    force = basis(args["duration"], len(args["force"]), t) @ args["force"]
    return force - args["gravity"] * jnp.array([0.0, 1.0])


PUCK = ji.Problem(push, lambda t, q, args: q[1:])


def simulated_end(task: Task, coefficients, scheme, steps: int, sensitivity: str):
    """q(T) (2,) by jaximpact, differentiable in the coefficients (modes, 2)."""
    return ji.solve(
        PUCK,
        task.start,
        task.velocity,
        t1=task.duration,
        steps=steps,
        e=task.restitution,
        args={"force": coefficients, "gravity": task.gravity, "duration": task.duration},
        scheme=scheme,
        save="final",
        sensitivity=sensitivity,
    ).q[-1]


def optimise(task: Task, modes: int, scheme, steps: int, sensitivity: str, iterations: int = ITERATIONS) -> np.ndarray:
    """Coefficients (iterations + 1, modes, 2) of an optimisation that starts from no force at all.

    L-BFGS by gradients alone, its steps shrinking in the last SETTLE iterations: corrected derivatives are those of the
    limit h -> 0 and vanish at its optimum up to O(h), whereas the cost of a time-stepping scheme is a staircase of
    height O(h), on which a line search would stumble.
    """
    rate = optax.join_schedules(
        [optax.constant_schedule(1.0), optax.exponential_decay(0.5, 1, 0.8)], [max(iterations - SETTLE, 0)]
    )
    optimiser = optax.lbfgs(rate, linesearch=None)
    gradient = jax.grad(lambda c: total(task, c, simulated_end(task, c, scheme, steps, sensitivity)))

    def iterate(carry, _):
        c, state = carry
        change, state = optimiser.update(gradient(c), state, c)
        c = optax.apply_updates(c, change)
        return (c, state), c

    c = jnp.zeros((modes, 2))
    _, found = jax.jit(lambda c: jax.lax.scan(iterate, (c, optimiser.init(c)), length=iterations))(c)
    return np.concatenate([c[None], found])


def off(found: np.ndarray, best: np.ndarray) -> float:
    """Relative distance of two forces in L2: that of their coefficients."""
    return float(np.linalg.norm(found - best) / np.linalg.norm(best))


def draw(path: Path, task: Task, runs: dict, best: np.ndarray) -> None:
    """Paths, vertical forces, and distance from the optimum over the iterations."""
    t = np.linspace(0, task.duration, 501)
    free = optimum(task, None)
    style = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(12.5, 3.9), layout="constrained")
        paths, forces, errors = figure.subplots(1, 3)
        values = sampled(task, len(best), t)
        paths.plot(*exact_path(task, 0 * best, t)[0].T, color="0.6", lw=1, label="no force")
        paths.plot(*exact_path(task, best, t)[0].T, color="black", lw=3, alpha=0.3, label="optimum")
        paths.plot(*task.target, "*", ms=11, color="tab:orange", label="target")
        paths.axhline(0, color="black", lw=0.8)
        forces.plot(t, values @ best[:, 1], color="black", lw=3, alpha=0.3, label=f"optimum, {len(best)} cosines")
        forces.plot(t, free.force(t)[:, 1], ":", color="black", lw=1, label="optimum, any force")
        for (name, sensitivity), found in runs.items():
            colour = {"corrected": "tab:blue", "discrete": "tab:red"}[sensitivity]
            line = {"color": colour, "ls": {"PaoliSchatzman": "-", "MoreauJean": "--"}[name], "lw": 1.3}
            paths.plot(*exact_path(task, found[-1], t)[0].T, **line)
            forces.plot(t, values @ found[-1][:, 1], **line)
            errors.semilogy([off(c, best) for c in found], **line, label=f"{sensitivity}, {name}")
        paths.set(xlabel="x [m]", ylabel="y [m]", title="path")
        forces.set(xlabel="t [s]", ylabel="vertical force [N]", title="force along y")
        errors.axhline(1e-3, color="0.6", lw=0.8, zorder=0)
        errors.set(xlabel="iteration", ylabel="relative L2 distance", title="force found against optimum")
        for axis in (paths, forces, errors):
            axis.legend(fontsize=8, frameon=False)
        figure.savefig(path, dpi=150)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/bounce_to_target"), help="folder to write to")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="numbers of time steps")
    options = parser.parse_args(argv)
    if min(options.steps) < 100:
        parser.error("--steps must be at least 100 each")
    options.out.mkdir(parents=True, exist_ok=True)

    task = Task()
    best, free = optimum(task, MODES), optimum(task, None)
    c = best.coefficients(MODES)
    print(f"least cost with {MODES} cosines {best.cost:.6f}, impact at {best.impact:.6f} s, miss {best.miss} m")
    print(f"least cost with any force    {free.cost:.6f}, impact at {free.impact:.6f} s, miss {free.miss} m")
    print(f"cost without a force         {exact_cost(task, 0 * c):.6f}\n")
    print(f"{'scheme':16s} {'derivatives':12s} {'steps':>6s} {'force off by':>13s} {'relative cost above least':>26s}")
    rows, runs = [], {}
    for scheme in (ji.PaoliSchatzman(), ji.MoreauJean()):
        for sensitivity in ("corrected", "discrete"):
            for steps in sorted(options.steps):
                found = optimise(task, MODES, scheme, steps, sensitivity)
                name = type(scheme).__name__
                runs[name, sensitivity] = found  # of the most steps
                rows.append(
                    {
                        "scheme": name,
                        "sensitivity": sensitivity,
                        "steps": steps,
                        "force_error": off(found[-1], c),
                        "cost_excess": exact_cost(task, found[-1]) / best.cost - 1,
                    }
                )
                print(
                    "{scheme:16s} {sensitivity:12s} {steps:6d} {force_error:13.2e} {cost_excess:26.2e}".format(
                        **rows[-1]
                    )
                )
    print("\nboth judged by the exact motion under the force found")
    with open(options.out / "table.csv", "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    found = {f"{name}_{sensitivity}": run for (name, sensitivity), run in runs.items()}
    np.savez(options.out / "results.npz", settings=json.dumps(vars(options), default=str), optimum=c, **found)
    draw(options.out / "figure.png", task, runs, c)
    print(f"wrote {options.out}/table.csv, results.npz, figure.png")


if __name__ == "__main__":
    main()
