"""Siconos' mechanical examples, whose repository (siconos-tutorials) has a recorded solution for each:
its numbers beside ours.

Siconos steps by the same scheme, Moreau-Jean with theta = 1/2, so that rows agree to round-off where its active set and
ours are the same at every step, and to O(h) behind a step at which they are not. Its event-driven ball is exact. The
rows below are those of its files ``examples/mechanics/*/*.ref``, positions and velocities at a few times; parameters
are those of the examples.

    python experiments/outside/siconos_examples.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import write_table  # noqa: E402

G = 9.81
FINER = 64


@dataclass(frozen=True)
class Example:
    """One example: what it is, its motion here, and the rows of its file, time -> (q..., v...)."""

    name: str
    source: str
    problem: ji.Problem
    q0: list[float]
    v0: list[float]
    h: float
    scheme: ji.Scheme | ji.EventDriven
    rows: dict[float, list[float]]


def ball(scheme, source: str, rows: dict) -> Example:
    problem = ji.Problem(lambda t, q, v, args: jnp.array([-G]), lambda t, q, args: q, restitution=0.9)
    return Example("bouncing ball", source, problem, [1.0], [0.0], 0.005, scheme, rows)


def rolling_ball() -> Example:
    """A spinning ball that bounces with friction until it rolls; q = (height, place, angle)."""
    radius = 0.5
    problem = ji.Problem(
        lambda t, q, v, args: jnp.array([-G, 0.0, 0.0]),
        lambda t, q, args: q[:1] - radius,
        np.array([1.0, 1.0, 0.4 * radius**2]) * np.eye(3),
        restitution=0.9,
        slip=lambda t, q, v, args: v[1:2] - radius * v[2:],
        friction=0.1,
    )
    # the file has height, its velocity, spin, ..., place, angle, velocity
    rows = {
        1.0: [7.149594137500003e-01, 1.949999999999995e-01, 1.025000000000004, 1.499458500000001, 2.857142857142858e-01,
        5.714285714285715e-01],
        2.0: [6.820193099125001e-01, 4.807142857142834e-01, 1.596428571428582, 8.408003850000023e-01,
        2.857142857142858e-01, 5.714285714285715e-01],
        5.0: [5.172524988685608e-01, 1.337857142857141, 3.310714285714261, -1.667495789071989e-01,
        2.857142857142858e-01, 5.714285714285715e-01],
    }  # fmt: skip
    return Example(
        "spinning ball with friction",
        "2DRigidBodies/Ball2D_kernel_only_with_friction",
        problem,
        [1.0, 0.0, 0.0],
        [0.0, 0.0, 2.0],
        0.005,
        ji.MoreauJean(),
        rows,
    )


def stick() -> Example:
    """A stick that falls on its end, elastic and with a little friction; q = (x, y, angle from the vertical)."""
    problem = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -10.0, 0.0]),
        lambda t, q, args: q[1:2] - 0.5 * jnp.cos(q[2:]),
        np.diag([1.0, 1.0, 1.0 / 12.0]),
        restitution=1.0,
        slip=lambda t, q, v, args: v[:1] - 0.5 * jnp.cos(q[2:]) * v[2:],
        friction=0.01,
    )
    rows = {
        0.05: [3.285533905932765e-01, 3.560533905932740e-01, 7.903981633974255e-01, -0.5, -4.000000000000010e-01,
        1.000000000000000e-01],
        0.1: [3.034051457964930e-01, 3.383778702709042e-01, 8.580460693520362e-01, -5.037388347232359e-01,
        -5.261165276764048e-01, 1.680022848791993],
        0.2: [2.529172311983667e-01, 2.471693300826099e-01, 1.081891493988364, -5.068672606709300e-01,
        -1.213273932906967, 3.212070578753687],
    }  # fmt: skip
    half, angle = 0.5, np.pi / 4
    start = [half * np.sin(angle), half * np.cos(angle) + 0.01, angle]
    return Example(
        "impacting stick with friction",
        "ImpactingStick/ImpactingStick",
        problem,
        start,
        [-0.5, 0.1, 0.1],
        1e-4,
        ji.MoreauJean(),
        rows,
    )


def woodpecker() -> Example:
    """The toy of Glocker and Pfeiffer: sleeve and bird on a pole, three frictional contacts;
    q = (height, angles of sleeve and bird)."""
    r_pole, r_sleeve, half, arm, out, beak_high, beak = 0.0025, 0.0031, 0.0058, 0.010, 0.015, 0.02, 0.0201
    m_sleeve, m_bird, spin_sleeve, spin_bird, spring = 0.0003, 0.0045, 5.0e-9, 7.0e-7, 0.0056
    mass = np.array([[m_bird + m_sleeve, m_bird * arm, m_bird * out],
                     [m_bird * arm, spin_sleeve + m_bird * arm**2, m_bird * arm * out],
                     [m_bird * out, m_bird * arm * out, spin_bird + m_bird * out**2]])  # fmt: skip
    weight = -G * np.array([m_bird + m_sleeve, m_bird * arm, m_bird * out])

    def force(t, q, v, args):
        twist = spring * (q[1] - q[2])
        return jnp.asarray(weight) + jnp.stack([jnp.zeros(()), -twist, twist])

    def gaps(t, q, args):
        play = r_sleeve - r_pole
        return jnp.stack([arm + out - beak - r_pole - beak_high * q[2], play + half * q[1], play - half * q[1]])

    def slip(t, q, v, args):
        sleeve = v[0] + r_sleeve * v[1]
        return jnp.stack([v[0] + arm * v[1] + (out - beak) * v[2], sleeve, sleeve])

    problem = ji.Problem(force, gaps, mass, restitution=np.array([0.5, 0.0, 0.0]), slip=slip, friction=0.3)
    rows = {
        0.1: [-7.080097509441099e-03, 2.131922824953662e-02, 8.269873863787143e-03, -7.603496510628842e-02,
        -4.074657747635776, -5.856867881262893], 0.2: [-2.388345040694624e-02, -1.034542612275354e-01,
        -3.309479788550502e-01, 0.0, 0.0, 16.46075215954180],
        0.2999: [-4.132733393614178e-02, -1.034684682717361e-01, -3.402681753659333e-01, -2.611826711856550e-01, 0.0,
        -8.317453690828295],
    }  # fmt: skip
    # theirs begins at -0.1036, 9e-7 m within the pole
    start, velocity = [0.0, -(r_sleeve - r_pole) / half * (1 - 1e-12), -0.2788], [-0.3411, 0.0, -7.4583]
    return Example("woodpecker toy", "Woodpecker/Woodpecker", problem, start, velocity, 2e-5, ji.MoreauJean(), rows)


EXAMPLES: dict[str, Callable[[], Example]] = {
    "ball": lambda: ball(
        ji.MoreauJean(),
        "BouncingBall/BouncingBallTS",
        {
            2.0: [1.059962500000670e-03, -3.585554999999998],
            5.0: [1.513536802625140e-01, -7.522581257549901e-01],
            8.0: [3.772093865338502e-03, -1.007900025002139e-01],
        },
    ),
    "ball by events": lambda: ball(
        ji.EventDriven(1e-12, 1e-13),
        "BouncingBallEventDriven/BouncingBallED",
        {
            2.0: [1.368436228507407e-02, 3.187222181142487],
            5.0: [1.215486548390509e-01, -1.118410033299426],
            8.0: [1.192658722943476e-03, 2.418777836126356e-01],
        },
    ),
    "rolling ball": rolling_ball,
    "stick": stick,
    "woodpecker": woodpecker,
}


def rows_of(example: Example, scheme, h: float | None, times: np.ndarray) -> tuple[np.ndarray, str]:
    """Positions and velocities (k, 2 d) at the times, and the status."""
    given = {} if h is None else {"h": h}
    motion = ji.solve(example.problem, example.q0, example.v0, t1=float(times[-1]), scheme=scheme, save=times, **given)
    return np.concatenate([motion.q, motion.v], axis=1), str(ji.Status(int(motion.status)))


def compare(example: Example) -> list[dict]:
    """One line for each recorded row: the largest difference of theirs and ours, and how far each is from the motion,
    as `EventDriven` or, with friction, `MoreauJean` with a step `FINER` times shorter has it."""
    times = np.array(sorted(example.rows))
    theirs = np.array([example.rows[t] for t in times])
    located = example.scheme.traits.order is None
    ours, status = rows_of(example, example.scheme, None if located else example.h, times)
    if example.problem.slip is None:
        exact, _ = rows_of(example, ji.EventDriven(1e-12, 1e-13), None, times)
    else:
        exact, _ = rows_of(example, ji.MoreauJean(), example.h / FINER, times)
    size = np.max(np.abs(exact), axis=1)
    off = lambda a, b: np.max(np.abs(a - b), axis=1)
    return [
        {"example": example.name, "file": example.source, "h": example.h, "t": t, "size": f"{size[row]:.2g}",
         "ours - theirs": f"{off(ours, theirs)[row]:.1e}", "error of theirs": f"{off(theirs, exact)[row]:.1e}",
         "error of ours": f"{off(ours, exact)[row]:.1e}", "status": status}
        for row, t in enumerate(times.tolist())
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/outside"))
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    options = parser.parse_args(arguments)
    lines = [line for name in options.only for line in compare(EXAMPLES[name]())]
    path = options.out / "siconos_examples.csv"
    write_table(path, lines)
    for line in lines:
        print("  ".join(f"{value!s:>10}" for value in line.values()))
    return lines


if __name__ == "__main__":
    main()
