"""Families of periodic orbits of conservative systems with impacts: the four examples of Raff and Remy,
and where their families branch.

M. Raff, C. D. Remy, Continuation of periodic orbits in conservative hybrid dynamical systems and its application to
mechanical systems with impulsive dynamics, Nonlinear Dynamics (2025), arXiv 2402.06502: a ball, a rocking block, a rod
that bounces on its two ends, and a mass on a springy leg without a mass (SLIP), with the parameters of the authors'
programs (repository ConservativeHybridDynamicalSystems). A conservative system has an orbit for each energy H. As in
the paper a force xi v, zero on every orbit, is the parameter of the branch, along which it stays zero. The paper has
pictures of T(H) and no table; the periods here are beside closed forms (ball, block, rod), and beside event location by
scipy (the leg, on which the energies where running begins are found from the linear map of small leaps aside, too).

    python experiments/outside/conservative_orbits.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from scipy.integrate import quad, solve_ivp  # noqa: E402
from scipy.optimize import brentq  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact import analysis  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import write_table  # noqa: E402

STIFFNESS, SWING = 40.0, 5.0  # of the leg, and its squared frequency in flight
LEAN, PULL = 0.3, 0.75  # of the block: its slenderness, 3/4 g/l
RADIUS = 0.01  # of gyration of the rod, whose length is 1
ACCURATE = {"method": "DOP853", "rtol": 1e-13, "atol": 1e-14}


class Example(NamedTuple):
    """A family: the system, one of its orbits, the section, the first step along it,
    and period and energy of the orbit in a state (2d,)."""

    problem: ji.Problem
    start: tuple[list[float], list[float]]
    surface: Callable
    step: float
    period: Callable[[np.ndarray], float]
    energy: Callable[[np.ndarray], float]


def top(t, q, v, args):
    return v[0]


def ball() -> Example:
    problem = ji.Problem(lambda t, q, v, args: -1.0 + args["xi"] * v, lambda t, q, args: q, restitution=1.0)
    return Example(problem, ([1.0], [0.0]), top, 0.1, lambda x: 2 * np.sqrt(2 * x[0]), lambda x: x[0])


def block() -> Example:
    """Rocking from corner to corner; q is the angle on either, and a change of corners an elastic impact."""
    problem = ji.Problem(
        lambda t, q, v, args: -PULL * jnp.sin(LEAN - q) + args["xi"] * v, lambda t, q, args: q, restitution=1.0
    )

    def period(x):
        # the angle is x (1 - u^2); a difference of cosines as a product
        middle = lambda u: LEAN - x[0] * (1 - u**2 / 2)
        speed = lambda u: 2 * np.sqrt(PULL * np.sin(middle(u)) * np.sin(x[0] * u**2 / 2))
        return 2 * quad(lambda u: 2 * x[0] * u / speed(u), 0, 1, epsabs=1e-13, epsrel=1e-13)[0]

    return Example(problem, ([0.05], [0.0]), top, 0.02, period, lambda x: np.cos(LEAN - x[0]) - np.cos(LEAN))


def rod() -> Example:
    """A rod that lands on one end and then on the other, so that each impact turns its whole velocity round."""

    def ends(t, q, args):
        return q[0] + 0.5 * jnp.sin(q[1]) * jnp.array([-1.0, 1.0])

    def force(t, q, v, args):
        return jnp.array([-1.0, 0.0]) + args["xi"] * v * jnp.array([1.0, RADIUS**2])

    def period(x):
        # the angle phi of the impact: the height at the top is that of the end then, and what is fallen
        phi = brentq(lambda phi: (phi / x[3]) ** 2 + np.sin(phi) - 2 * x[0], 0.0, np.pi / 2, xtol=1e-15)
        return 4 * phi / x[3]

    phi = 0.2
    s = RADIUS * np.sqrt(2 * phi / np.cos(phi))
    start = [s**2 / 2 + np.sin(phi) / 2, 0.0], [0.0, phi / s]
    problem = ji.Problem(force, ends, jnp.array([1.0, RADIUS**2]), restitution=1.0)
    return Example(problem, start, top, 0.02, period, lambda x: x[0] + 0.5 * (RADIUS * x[3]) ** 2)


def leg_force(t, q, v, args):
    x, y, angle, stance = q
    length = jnp.hypot(x, y)
    pull = STIFFNESS * (1 - length) / length
    swing = (jnp.sin(angle) - 2 * v[2] * (x * v[0] + y * v[1]) / length) / length
    stands = jnp.array([pull * x, pull * y - 1, swing, 0.0])
    flies = jnp.array([0.0, -1.0, -SWING * angle, 0.0])
    return stance * stands + (1 - stance) * flies + args["xi"] * v


def ground(t, q, v, args):
    """Height of the foot in flight, stretch of the leg in stance: negative in stance alone."""
    x, y, angle, stance = q
    return jnp.array([stance * (jnp.hypot(x, y) - 1) + (1 - stance) * (y - jnp.cos(angle))])


def step(t, q, v, k, args):
    """The foot comes down, x is counted from there and the leg turns with the body; or it leaves the ground."""
    x, y, angle, stance = q
    lands = (stance < 0.5) & (v[1] + jnp.sin(angle) * v[2] < 0)
    leaves = (stance > 0.5) & (x * v[0] + y * v[1] > 0)
    x = jnp.where(lands, -jnp.sin(angle), x)
    turn = jnp.where(lands, -jnp.cos(angle) * v[0] - jnp.sin(angle) * v[1], v[2])
    stance = jnp.where(lands, 1.0, jnp.where(leaves, 0.0, stance))
    return jnp.stack([x, y, angle, stance]), jnp.stack([v[0], v[1], turn, 0.0])


def shortest(t, q, v, args):
    """Zero in stance where the leg is shortest."""
    return q[3] * (q[0] * v[0] + q[1] * v[1]) - (1 - q[3])


def leg_energy(x: np.ndarray) -> float:
    return x[1] + 0.5 * STIFFNESS * (1 - np.hypot(x[0], x[1])) ** 2 + 0.5 * (x[4] ** 2 + x[5] ** 2)


def leg(turn: float) -> Example:
    """Hopping in place, or running whose leg turns at a rate ``turn`` where it stands upright."""
    place = 0.85 if turn == 0 else brentq(lambda y: _stride(0.0, y, turn)[0][0], 0.75, 0.85, xtol=1e-14)
    start = [0.0, place, 0.0, 1.0], [-turn * place, 0.0, turn, 0.0]
    problem = ji.Problem(leg_force, switches=ground, reset=step, coordinates=("x", "y", "angle", "stance"))
    period = lambda x: _stride(x[2], np.hypot(x[0], x[1]), x[6])[1]
    return Example(problem, start, shortest, 0.05, period, leg_energy)


def _in_stance(t, s):
    angle, length, turn, rate = s[:4]
    return [turn, rate, (np.sin(angle) - 2 * turn * rate) / length,
            length * turn**2 - np.cos(angle) - STIFFNESS * (length - 1)]  # fmt: skip


def _until(force: Callable, s: list[float], surface: Callable, direction: int) -> tuple[float, np.ndarray]:
    surface = lambda t, s, surface=surface: surface(s)
    surface.terminal, surface.direction = True, direction
    found = solve_ivp(force, [0, 20], s, events=surface, **ACCURATE)
    return found.t[-1], found.y[:, -1]


def _stride(angle: float, length: float, turn: float) -> tuple[np.ndarray, float]:
    """Angle, length and rate of turn where the leg is next shortest, and the time until then, by scipy."""
    rises, (a, _, turn, rate) = _until(_in_stance, [angle, length, turn, 0.0], lambda s: s[1] - 1, 1)
    leap = [np.cos(a), a, -rate * np.sin(a) - turn * np.cos(a), rate * np.cos(a) - turn * np.sin(a), turn]
    flies, (_, a, vx, vy, _) = _until(
        lambda t, s: [s[3], s[4], 0.0, -1.0, -SWING * s[1]], leap, lambda s: s[0] - np.cos(s[1]), -1
    )
    down = [a, 1.0, -np.cos(a) * vx - np.sin(a) * vy, np.cos(a) * vy - np.sin(a) * vx]
    sinks, found = _until(_in_stance, down, lambda s: s[3], 1)
    return found[:3], rises + flies + sinks


def running_begins(low: float, high: float) -> float:
    """Energy between two others at which hopping in place has a leap aside that repeats: the linear map of (angle,
    turn) has a multiplier 1."""

    def test(energy):
        speed, w = np.sqrt(2 * (energy - 1)), np.sqrt(SWING)

        def small(t, s):  # length, rate, angle, turn
            return [s[1], -1 - STIFFNESS * (s[0] - 1), s[3], (s[2] - 2 * s[3] * s[1]) / s[0]]

        columns = []
        for angle, turn in ((1.0, 0.0), (0.0, 1.0)):
            _, (_, rate, angle, turn) = _until(small, [1.0, -speed, angle, turn], lambda s: s[0] - 1, 1)
            vx, flight = -rate * angle - turn, 2 * speed
            angle = angle * np.cos(w * flight) + turn / w * np.sin(w * flight)
            columns.append([angle, -vx + angle * speed])
        return np.linalg.det(np.array(columns).T - np.eye(2))

    return brentq(test, low, high, xtol=1e-12)


FAMILIES = {
    "ball": (ball, 10),
    "rocking block": (block, 12),
    "bouncing rod": (rod, 30),
    "leg, in place": (lambda: leg(0.0), 6),
    "leg, running": (lambda: leg(0.1), 8),
}


def follow(name: str) -> tuple[Example, analysis.Branch]:
    """A family, from its first orbit on."""
    make, points = FAMILIES[name]
    example = make()
    (q, v), xi = example.start, {"xi": 0.0}
    branch = analysis.continue_orbit(
        example.problem, q, v, parameter="xi", bounds=(-0.1, 0.1), args=xi, surface=example.surface,
        period=example.period(np.array([*q, *v])), step=example.step, points=points,
    )  # fmt: skip
    return example, branch


def compare(name: str) -> list[dict]:
    """First, middle and last orbit of a family, its period beside the exact one,
    and where another family branches off."""
    example, branch = follow(name)
    states = np.concatenate([branch.q, branch.v], axis=1)
    lines = []

    def line(what, energy, found, exact):
        lines.append({"family": name, "what": what, "energy": f"{energy:.6f}", "here": f"{found:.12f}",
                      "reference": f"{exact:.12f}", "difference": f"{abs(found - exact):.1e}"})  # fmt: skip

    for i in (0, len(states) // 2, len(states) - 1):
        line("period", example.energy(states[i]), branch.period[i], example.period(states[i]))
    if name == "leg, in place":
        found = next(example.energy(np.concatenate([e.q, e.v])) for e in branch.events if e.kind == "branch point")
        line("running begins", found, found, running_begins(found - 0.02, found + 0.02))
    return lines


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/outside"))
    options = parser.parse_args(arguments)
    lines = [line for name in FAMILIES for line in compare(name)]
    write_table(options.out / "conservative_orbits.csv", lines)
    for line in lines:
        print("  ".join(f"{value!s:>16}" for value in line.values()))
    return lines


if __name__ == "__main__":
    main()
