"""Random boxes, tops and ellipsoids that bounce on a floor, smooth and rough, beside a reference with located impacts
that shares nothing with the package.

    python experiments/cases/tumbling_bodies.py      some minutes

The reference is numpy and scipy: Euler's equations and quaternions, `solve_ivp` (DOP853) with the gaps as events,
impacts by Newton's law with Coulomb's friction of one contact. Where two contacts strike within 1e-5 s, where impacts
come closer than that or end in rest, or where several impulses satisfy the law, it has no answer.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from scipy.integrate import solve_ivp  # noqa: E402
from scipy.optimize import brentq  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact import spatial  # noqa: E402

G, END, UP = 9.81, 0.5, np.array([0.0, 0.0, 1.0])
SOON, MANY = 1e-5, 40  # s between impacts, and their number, beyond which the reference gives up
STEP = 2e-3  # s, the longest of the reference: within one a gap is not looked at
SIDES, HALF = np.array([0.2, 0.14, 0.1]), np.array([0.1, 0.06, 0.08])
TIPS = np.array(
    [[0, 0, -0.08], [0, 0, 0.05], [0.07, 0, 0.0], [-0.035, 0.0606, 0.0], [-0.035, -0.0606, 0.0]]
)  # a peg and three knobs
BODIES = {
    "box": spatial.box((0, 0, 0), SIDES, 1.0),
    "top": spatial.Body(1.0, (2.2e-3, 2.2e-3, 1.6e-3), (0, 0, 0)),
    "ellipsoid": spatial.ellipsoid((0, 0, 0), HALF, 1.0),
}
MOMENTS = {
    "box": (np.sum(SIDES**2) - SIDES**2) / 12,
    "top": np.array([2.2e-3, 2.2e-3, 1.6e-3]),
    "ellipsoid": (np.sum(HALF**2) - HALF**2) / 5,
}
KINDS = [(body, rough) for body in BODIES for rough in (False, True)]


class Unanswered(Exception):
    """The reference has no motion to compare with."""


def points(body: str) -> np.ndarray:
    """Points (m, 3) of a body that may touch the floor, in its axes."""
    return (
        TIPS if body == "top" else np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)]) * SIDES / 2
    )


def turn(p: np.ndarray) -> np.ndarray:
    """Rotation (3, 3) of a quaternion p of any length."""
    w, x, y, z = p / np.linalg.norm(p)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def arms(body: str, p: np.ndarray) -> np.ndarray:
    """Arms (m, 3) from the centre to the places that may touch the floor, in the axes of the world."""
    rotation = turn(p)
    if body != "ellipsoid":
        return points(body) @ rotation.T
    below = rotation @ (HALF**2 * (rotation.T @ UP))
    return -below[None] / np.sqrt(UP @ below)


def spin(p, w) -> list:
    """Rates of the four numbers of a quaternion p at an angular velocity w (3,) in the axes of the body."""
    first, (a, b, c) = p[0], p[1:]
    return [
        0.5 * (-a * w[0] - b * w[1] - c * w[2]),
        0.5 * (first * w[0] + b * w[2] - c * w[1]),
        0.5 * (first * w[1] + c * w[0] - a * w[2]),
        0.5 * (first * w[2] + a * w[1] - b * w[0]),
    ]


def rates(moments: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Time derivative (13,) of place, quaternion, velocity, and angular velocity in the axes of the body."""
    w = state[10:]
    return np.concatenate([state[7:10], spin(state[3:7], w), -G * UP, -np.cross(w, moments * w) / moments])


def impulse(matrix: np.ndarray, before: np.ndarray, e: float, mu: float) -> np.ndarray:
    """Impulse (x, y, z) of one contact by Newton's and Coulomb's laws,
    for its Delassus matrix (3, 3) and velocity (3,)."""
    gain = (1 + e) * -before[2]
    target = np.array([-before[0], -before[1], gain])
    sticks = np.linalg.solve(matrix, target)
    if mu == 0:
        return np.array([0, 0, gain / matrix[2, 2]])
    if np.hypot(*sticks[:2]) <= mu * sticks[2]:
        return sticks

    def slides(angle: float) -> tuple[np.ndarray, np.ndarray]:
        way = np.array([np.cos(angle), np.sin(angle), 0])
        force = UP - mu * way
        x = gain / (matrix[2] @ force) * force
        return x, before + matrix @ x

    across = lambda angle: np.array([-np.sin(angle), np.cos(angle)]) @ slides(angle)[1][:2]
    grid = np.linspace(-np.pi, np.pi, 721)
    values = [across(angle) for angle in grid]
    found = [brentq(across, *grid[i : i + 2], xtol=1e-14) for i in range(720) if values[i] * values[i + 1] < 0]
    forward = lambda angle: slides(angle)[1][:2] @ [np.cos(angle), np.sin(angle)] > 0
    found = [slides(angle)[0] for angle in found if forward(angle) and slides(angle)[0][2] > 0]
    if len(found) != 1:
        raise Unanswered
    return found[0]


def strike(body: str, moments: np.ndarray, state: np.ndarray, contact: int, e: float, mu: float) -> np.ndarray:
    """State (13,) after the impact of a contact."""
    rotation, arm = turn(state[3:7]), arms(body, state[3:7])[contact]
    cross = np.array([[0, -arm[2], arm[1]], [arm[2], 0, -arm[0]], [-arm[1], arm[0], 0]])
    inverse = rotation @ np.diag(1 / moments) @ rotation.T
    before = state[7:10] + np.cross(rotation @ state[10:], arm)
    x = impulse(np.eye(3) - cross @ inverse @ cross, before, e, mu)
    return np.concatenate([state[:7], state[7:10] + x, state[10:] + (rotation.T @ np.cross(arm, x)) / moments])


def reference(body: str, state: np.ndarray, e: float, mu: float) -> tuple[np.ndarray, int]:
    """State (13,) at the end, and the number of impacts, of the motion from a ``state``;
    raises `Unanswered` where there is none."""
    moments, count, t, last = MOMENTS[body], 0, 0.0, -1.0
    contacts = 1 if body == "ellipsoid" else len(points(body))

    def event(contact: int):
        gap = lambda t, y: y[2] + arms(body, y[3:7])[contact, 2]
        gap.terminal, gap.direction = True, -1
        return gap

    events = [event(i) for i in range(contacts)]
    while t < END:
        run = solve_ivp(
            lambda t, y: rates(moments, y),
            (t, END),
            state,
            "DOP853",
            rtol=1e-12,
            atol=1e-13,
            events=events,
            max_step=STEP,
        )
        if any(np.min(y[2] + arms(body, y[3:7])[:, 2]) < -1e-9 for y in run.y.T):
            raise Unanswered  # it rebounded and fell again within a step
        t, state = run.t[-1], run.y[:, -1]
        if run.status == 0:
            break
        gaps = state[2] + arms(body, state[3:7])[:, 2]
        spin = turn(state[3:7]) @ state[10:]
        closing = -(state[7:10] + np.cross(spin, arms(body, state[3:7])))[:, 2]
        contact = next(i for i, times in enumerate(run.t_events) if len(times))
        near = (gaps < SOON * np.maximum(closing, 0)) & (np.arange(contacts) != contact)
        count += 1
        if count > MANY or t - last < SOON or np.any(near) or closing[contact] < 1e-3:
            raise Unanswered
        state, last = strike(body, moments, state, contact, e, mu), t
    return state, count


def draw(body: str, rough: bool, seed: int) -> tuple[np.ndarray, float, float]:
    """State (13,) at the start, restitution and friction."""
    rng = np.random.default_rng([seed, list(BODIES).index(body), rough])
    p = rng.normal(size=4)
    place = np.array([0, 0, rng.uniform(0.15, 0.3)])
    state = np.concatenate([place, p / np.linalg.norm(p), rng.normal(size=3) * [1, 1, 0.5], 5 * rng.normal(size=3)])
    return state, rng.uniform(0.5, 1.0), rng.uniform(0.05, 0.8) if rough else 0.0


def system(body: str, rough: bool) -> spatial.System:
    friction = (lambda args: args["mu"]) if rough else 0.0
    own = {"points": TIPS.tolist()} if body == "top" else {}
    floor = spatial.Plane("body", at=(0, 0, 0), restitution=lambda speed, args: args["e"], friction=friction, **own)
    return spatial.System({"body": BODIES[body]}, [floor], gravity=G)


def as_seen(y: np.ndarray) -> np.ndarray:
    """Place, rotation, velocity and angular velocity in the world, (18,), of a state of the reference."""
    rotation = turn(y[3:7])
    return np.concatenate([y[:3], rotation.ravel(), y[7:10], rotation @ y[10:]])


def seen(stated: spatial.System, q, v):
    """The same of coordinates and velocities (7,) of the package."""
    twist = stated.twist(q, v, "body")
    return jnp.concatenate([q[:3], jnp.ravel(stated.rotation(q, "body")), twist])


# scheme, its step, and the largest error of a clean motion that is its own: some 20 times what its tolerance and h^2
# leave
SCHEMES = {
    "EventDriven": ({"scheme": ji.EventDriven()}, 5e-6),
    "EventCorrected, 1 ms": ({"scheme": ji.EventCorrected(), "h": 1e-3}, 1.0),
    "EventCorrected, .25 ms": ({"scheme": ji.EventCorrected(), "h": 2.5e-4}, 1.0 / 16),
}


def ends(body: str, rough: bool, draws: list, **options):
    """What is `seen` at the end (n, 18), and the status (n,), by the package."""
    stated = system(body, rough)
    q0, v0 = jax.vmap(begin)(jnp.array([y for y, _, _ in draws]))
    found = ji.ensemble(stated.problem(), q0, v0, t1=END, args=numbers(draws), args_axes={"e": 0, "mu": 0}, **options)
    return jax.vmap(lambda q, v: seen(stated, q, v))(found.q[:, -1], found.v[:, -1]), found.status


def begin(y):
    """Coordinates and velocity (7,) of the package at a state y (13,) of the reference."""
    return y[:7], jnp.concatenate([y[7:10], jnp.stack(spin(y[3:7], y[10:]))])


def numbers(draws: list) -> dict:
    return {"e": np.array([e for _, e, _ in draws]), "mu": np.array([mu for _, _, mu in draws])}


def compare(body: str, rough: bool, draws: list, answers: list, scheme: str) -> dict:
    """Of each motion: whether it is answered, whether the status is clean but for energy gained by Newton's law, and
    the error in m, m/s and rad/s."""
    found, status = ends(body, rough, draws, **SCHEMES[scheme][0])
    known = np.array([y is not None for y, _ in answers])
    exact = np.array([as_seen(draw[0] if y is None else y) for (y, _), draw in zip(answers, draws, strict=True)])
    clean = (np.asarray(status) & ~int(ji.Status.ENERGY_GAINED)) == 0
    return {"known": known, "clean": clean & known, "error": np.abs(found - exact).max(axis=1)}


def slopes(body: str, rough: bool, draws: list, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Derivatives (n, 18) along random directions of the start by `EventDriven`, the same by differences of the
    reference (NaN where it has none), how far these move from twice their step to it (n, 18), and the status (n,)."""
    ways = np.random.default_rng(seed).normal(size=(len(draws), 13))
    moved = lambda by: [(y + by * way, e, mu) for (y, e, mu), way in zip(draws, ways, strict=True)]
    stated = system(body, rough)

    def end(y, args):
        motion = ji.solve(stated.problem(), *begin(y), t1=END, args=args, scheme=ji.EventDriven(), save="final")
        return seen(stated, motion.q[-1], motion.v[-1]), motion.status

    along = lambda y, way, args: jax.jvp(lambda y: end(y, args), (y,), (way,), has_aux=True)[1:]
    found, status = jax.jit(jax.vmap(along))(np.array([y for y, _, _ in draws]), ways, numbers(draws))
    missing = np.full(18, np.nan)

    def differences(step):
        both = [[y for y, _ in answer(body, moved(by))] for by in (step, -step)]
        pairs = zip(*both, strict=True)
        return np.array([missing if a is None or b is None else (as_seen(a) - as_seen(b)) / 2 / step for a, b in pairs])

    right, coarse = differences(2e-6), differences(4e-6)
    return np.asarray(found), right, np.abs(coarse - right), np.asarray(status)


def answer(body: str, draws: list) -> list:
    """States and numbers of impacts of the reference; (None, 0) where it has none."""
    found = []
    for state, e, mu in draws:
        try:
            found.append(reference(body, state, e, mu))
        except Unanswered:
            found.append((None, 0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--count", type=int, default=50, help="motions of each of the six kinds")
    options = parser.parse_args()
    rows = []
    for body, rough in KINDS:
        draws = [draw(body, rough, seed) for seed in range(options.count)]
        answers = answer(body, draws)
        for scheme, (_, most) in SCHEMES.items():
            found = compare(body, rough, draws, answers, scheme)
            errors = found["error"][found["clean"]]
            rows.append({
                "bodies": f"{body}, {'rough' if rough else 'smooth'}", "impacts": sum(n for _, n in answers),
                "scheme": scheme,
                "answered": f"{found['known'].sum()} of {options.count}", "clean": int(found["clean"].sum()),
                "of these wrong": int(np.sum(errors > most)), "error, median": f"{np.median(errors):.0e}",
                "largest": f"{errors.max():.0e}",
            })  # fmt: skip
            print(*rows[-1].values(), sep="\t", flush=True)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
