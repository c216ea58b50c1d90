"""Impact oscillators with one degree of freedom: free, at resonance, on Shaw-Holmes orbits, and grazing."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion, Orders

_SCHEMES = ("paoli-schatzman", "paoli-schatzman-explicit")


def spring_force(t, q, v, args):
    return -args["stiffness"] * q


def spring_energy(t, q, v, args):
    return 0.5 * (v @ v + args["stiffness"] * (q @ q))


def sine_forced(t, q, v, args):
    return -q + args["amplitude"] * jnp.sin(args["frequency"] * (t + args["shift"]))


def cosine_forced_damped(t, q, v, args):
    drive = args["amplitude"] * jnp.cos(args["frequency"] * (t + args["shift"]))
    return -q - 2.0 * args["damping"] * v + drive


def above_wall(t, q, args):
    return q - args["wall"]


def below_wall(t, q, args):
    return args["wall"] - q


def _free(e: float, t1: float = 20.0) -> Case:
    """Case with the wall at the equilibrium: q = e^k sin(t + pi/6 - k pi) after k impacts,
    which fall at k pi - pi/6."""
    phase = np.pi / 6.0
    impacts = np.arange(1, int((t1 + phase) / np.pi) + 1) * np.pi - phase

    def exact(t):
        k = np.searchsorted(impacts, t, side="right")
        angle = t + phase - k * np.pi
        return (e**k * np.sin(angle))[:, None], (e**k * np.cos(angle))[:, None]

    impulse = (1.0 + e) * np.sum(e ** np.arange(len(impacts)), keepdims=True)
    orders = {label: Orders(1.0, 1.0, 2.0) for label in _SCHEMES}
    args = {"stiffness": 1.0, "wall": 0.0}
    return Case(np.array([0.5]), np.array([np.sqrt(0.75)]), t1, e, args, exact, impulse, impacts, orders)


def _resonant(e: float, t1: float = 20.0) -> Case:
    """Case at resonance with impacts at k pi - 1 for any e.

    After the k-th impact q = sin s (v_k + 1/2 - cos s / 2), where s = t + 1 - k pi and v_k = e (v_{k-1} + 1)
    is the velocity just after it.
    """
    shift = 1.0
    impacts = np.arange(1, int((t1 + shift) / np.pi) + 1) * np.pi - shift
    speeds = [0.5]  # velocity at s = 0+, of the motion continued back before t = 0 for the first one
    for _ in impacts:
        speeds.append(e * (speeds[-1] + 1.0))
    rebound = np.array(speeds)

    def exact(t):
        k = np.searchsorted(impacts, t, side="right")
        s = t + shift - k * np.pi
        envelope = rebound[k] + 0.5 - 0.5 * np.cos(s)
        return (np.sin(s) * envelope)[:, None], (np.cos(s) * envelope + 0.5 * np.sin(s) ** 2)[:, None]

    q0, v0 = exact(np.zeros(1))
    impulse = np.array([(1.0 + e) * np.sum(rebound[:-1] + 1.0)])
    orders = {label: Orders(1.0, 1.0, 2.0) for label in _SCHEMES}
    args = {"amplitude": 0.75, "frequency": 2.0, "shift": shift, "wall": 0.0}
    return Case(q0[0], v0[0], t1, e, args, exact, impulse, impacts, orders)


def periodic_orbit(z: float, w: float, sigma: float, e: float) -> tuple[Motion, float, float]:
    """One-impact-a-period orbit of q'' + 2 z q' + q = cos(w (t + shift)), q >= sigma, started just after its impact.

    Returns its exact motion over all time, the shift and the rebound velocity v. The orbit is the sum of a particular
    solution and a transient with the value x and rate y just after the impact. The flow P (2, 2) of the free damped
    oscillator maps (x, y) over a period T = 2 pi / w. The conditions of periodicity are x = P11 x + P12 y and y - P21
    x - P22 y = (1 + 1/e) v; by them y, v and the slope of the particular solution are proportional to x. The known
    amplitude of the particular solution leaves one quadratic equation for x;
    the root with v > 0 is taken (Shaw and Holmes 1983, section 3).
    """
    period, wd = 2.0 * np.pi / w, np.sqrt(1.0 - z**2)
    amplitude = 1.0 / np.hypot(1.0 - w**2, 2.0 * z * w)
    lag = np.arctan2(2.0 * z * w, 1.0 - w**2)

    def transient(s, x, y):
        c, d = np.cos(wd * s), np.sin(wd * s) / wd
        decay = np.exp(-z * s)
        return decay * (c * x + d * (y + z * x)), decay * (c * y - d * (x + z * y))

    (p11, p21), (p12, p22) = transient(period, 1.0, 0.0), transient(period, 0.0, 1.0)
    y_x = (1.0 - p11) / p12
    v_x = ((1.0 - p22) * y_x - p21) * e / (1.0 + e)
    slope_x = v_x - y_x
    # (sigma - x)^2 + (slope / w)^2 = amplitude^2
    a = 1.0 + (slope_x / w) ** 2
    x = (sigma + np.sign(v_x) * np.sqrt(sigma**2 - a * (sigma**2 - amplitude**2))) / a
    phase = np.arctan2(-slope_x * x / w, sigma - x)  # of the particular solution at the impact
    shift = float((phase + lag) / w % period)

    def exact(t):
        k = np.floor(t / period)
        k = k + (t >= (k + 1.0) * period)  # an impact time itself belongs to the flight after it
        s = t - k * period
        q, v = transient(s, x, y_x * x)
        angle = phase + w * s
        return (q + amplitude * np.cos(angle))[:, None], (v - amplitude * w * np.sin(angle))[:, None]

    return exact, shift, float(v_x * x)


def _shaw_holmes(z: float, w: float, sigma: float, e: float, t1: float = 20.0) -> Case:
    """Case of the stable period-1 orbit, from just after an impact."""
    exact, shift, v0 = periodic_orbit(z, w, sigma, e)
    period = 2.0 * np.pi / w
    impacts = np.arange(1, int(t1 / period) + 1) * period
    impulse = np.array([len(impacts) * (1.0 + e) / e * v0])
    orders = {label: Orders(1.0, 1.0, 1.0) for label in _SCHEMES}
    args = {"damping": z, "amplitude": 1.0, "frequency": w, "shift": shift, "wall": sigma}
    return Case(np.array([sigma]), np.array([v0]), t1, e, args, exact, impulse, impacts, orders)


def _grazing(e: float, orders: dict[str, Orders], t1: float = 10.0) -> Case:
    """Case that touches without impulse: q = sin(t - 1) reaches the wall q = 1 at rest at 1 + pi/2 + 2 k pi,
    for all e."""

    def exact(t):
        return np.sin(t - 1.0)[:, None], np.cos(t - 1.0)[:, None]

    q0, v0 = exact(np.zeros(1))
    args = {"stiffness": 1.0, "wall": 1.0}
    return Case(q0[0], v0[0], t1, e, args, exact, np.zeros(1), np.zeros(0), orders)


# At e > 0 the Taylor-started scheme never meets the wall: second order, as Verlet. At e = 0 whether a step meets it
# depends on where the nodes fall: the position error lies anywhere between O(h^2) and O(h).
_GRAZE = {label: Orders(2.0, 1.0) for label in _SCHEMES}
_GRAZE_INELASTIC = {label: Orders(None, 1.0) for label in (*_SCHEMES, "maury-half-kick")} | {
    "maury": Orders(0.5, 0.5, 0.5)
}

ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="B02",
        name="free-oscillator",
        title="Free oscillator against a wall at its equilibrium",
        statement="q'' = -q, q >= 0; one impact every pi, energy multiplied by e^2 at each.",
        problem=Problem(spring_force, above_wall, energy=spring_energy),
        cases={"e=0.7": _free(0.7), "e=1": _free(1.0)},
        hypotheses="one smooth constraint: Paoli-Schatzman and Paoli (H1-H6); the force vanishes at the wall",
        source="classical",
    ),
    Entry(
        id="B03",
        name="resonant-oscillator",
        title="Impact oscillator at resonance, in closed form",
        statement="q'' = -q + (3/4) sin(2 (t + 1)), q >= 0; impacts at k pi - 1 for every e. At e = 1 the rebound "
        "velocity k + 1/2 grows without bound, for e < 1 it tends to e/(1 - e).",
        problem=Problem(sine_forced, above_wall),
        cases={"e=1/2": _resonant(0.5), "e=1": _resonant(1.0)},
        hypotheses="one smooth constraint: Paoli-Schatzman and Paoli (H1-H6); the force vanishes at the wall",
        source="constructed for this project",
    ),
    Entry(
        id="B04",
        name="shaw-holmes",
        title="Period-1 orbits of the forced impact oscillator",
        statement="q'' + 2 z q' + q = cos(w (t + shift)), q >= sigma, from just after an impact of its stable orbit "
        "with one impact a forcing period.",
        problem=Problem(cosine_forced_damped, above_wall),
        cases={"undamped": _shaw_holmes(0.0, 2.5, 0.0, 0.5), "damped": _shaw_holmes(0.05, 2.2, -0.1, 0.8)},
        hypotheses="one smooth constraint: Paoli-Schatzman and Paoli (H1-H6); starts on the wall, leaving it",
        source="S. W. Shaw and P. J. Holmes, A periodically forced piecewise linear oscillator, "
        "J. Sound Vib. 90 (1983) 129-155",
    ),
    Entry(
        id="B07",
        name="grazing-oscillator",
        title="Oscillator grazing a wall",
        statement="q'' = -q, q <= 1, q = sin(t - 1): it touches the wall with zero velocity, once a period.",
        problem=Problem(spring_force, below_wall, energy=spring_energy),
        cases={
            "e=0": _grazing(0.0, _GRAZE_INELASTIC),
            "e=1/2": _grazing(0.5, _GRAZE),
            "e=1": _grazing(1.0, _GRAZE),
        },
        hypotheses="one smooth constraint: Paoli-Schatzman, Paoli (H1-H6); at e = 0 Bernicot-Lefebvre-Lepot, "
        "Adly-Thieu; the motion depends on its data with a square-root singularity there",
        source="grazing: A. B. Nordmark, J. Sound Vib. 145 (1991) 279-297",
    ),
)
