"""A ball dropped on a floor: the elementary impact problem, and the elementary accumulation of impacts (Zeno)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion, Orders


def gravity_force(t, q, v, args):
    return jnp.full_like(q, -args["gravity"])


def above_floor(t, q, args):
    return q - args["floor"]


def ball_energy(t, q, v, args):
    return 0.5 * v @ v + args["gravity"] * (q[0] - args["floor"])


def bounces(q0: float, v0: float, gravity: float, floor: float, e: float, t1: float) -> tuple[Motion, np.ndarray]:
    """Exact motion of a ball under constant gravity, and its impact times up to t1.

    The first impact has speed w = sqrt(v0^2 + 2 g (q0 - floor)), the k-th rebound e^k w, the flight after it lasts
    2 e^k w / g. For e < 1 impacts accumulate at t_rest = t_first + (2 w / g) e / (1 - e) and the ball rests from then
    on; rebounds below one rounding unit of w are not listed.
    """
    w = np.sqrt(v0**2 + 2.0 * gravity * (q0 - floor))
    first = (v0 + w) / gravity
    rest = first + 2.0 * w / gravity * e / (1.0 - e) if e < 1.0 else np.inf
    if e in (0.0, 1.0):
        count = 1 + int(e * max(0.0, (t1 - first) * gravity / (2.0 * w)))
    else:
        count = int(np.ceil(np.log(np.finfo(float).eps) / np.log(e)))
    rebound = w * e ** np.arange(1.0, count + 1.0)
    impacts = first + np.concatenate([[0.0], np.cumsum(2.0 * rebound[:-1] / gravity)])

    start = np.concatenate([[0.0], impacts])
    height = np.concatenate([[q0], np.full(count, floor)])
    speed = np.concatenate([[v0], rebound])

    def exact(t):
        k = np.searchsorted(impacts, t, side="right")
        s = t - start[k]
        resting = t >= rest
        q = np.where(resting, floor, height[k] + s * (speed[k] - 0.5 * gravity * s))
        v = np.where(resting, 0.0, speed[k] - gravity * s)
        return q[:, None], v[:, None]

    return exact, impacts[impacts <= t1]


def _case_of_drop(e: float, t1: float, orders: dict[str, Orders], note: str = "") -> Case:
    """Case: the ball released at rest from height 1, g = 1."""
    args = {"gravity": 1.0, "floor": 0.0}
    exact, impacts = bounces(1.0, 0.0, args["gravity"], args["floor"], e, t1)
    _, v1 = exact(np.array([t1]))
    impulse = v1[0] + args["gravity"] * t1  # momentum balance from rest
    return Case(np.array([1.0]), np.array([0.0]), t1, e, args, exact, impulse, impacts, orders, note)


_FIRST = {label: Orders(1.0, 1.0, 1.0) for label in ("paoli-schatzman", "paoli-schatzman-explicit")}
_INELASTIC = {label: Orders(None, 1.0, 1.0, exact=True) for label in (*_FIRST, "maury-half-kick")} | {
    "maury": Orders(1.0, 1.0)  # its total impulse is the exact one: the force is constant and the ball ends at rest
}

ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="B01",
        name="bouncing-ball",
        title="Bouncing ball",
        statement="q'' = -g above a floor, q >= 0; released at rest from height 1. For 0 < e < 1 infinitely many "
        "impacts accumulate at sqrt(2) (1 + e)/(1 - e), then the ball rests.",
        problem=Problem(gravity_force, above_floor, energy=ball_energy),
        cases={
            "e=1/2": _case_of_drop(0.5, 5.0, _FIRST, "accumulates at 3 sqrt(2) = 4.24"),
            "e=4/5": _case_of_drop(0.8, 14.0, _FIRST, "accumulates at 9 sqrt(2) = 12.73"),
            "e=1": _case_of_drop(1.0, 10.0, _FIRST, "periodic; energy 1 for ever"),
            "e=0": _case_of_drop(0.0, 5.0, _INELASTIC, "stops at its first impact"),
        },
        hypotheses="one smooth constraint: all hypotheses of Paoli-Schatzman, of Paoli (H1-H6) and, at e = 0, of "
        "Bernicot-Lefebvre-Lepot and of Adly-Thieu",
        source="classical; the model problem of Paoli and Schatzman, SIAM J. Numer. Anal. 40 (2002) 702-733",
    ),
)
