"""Counterexamples to uniqueness and convergence: a motion that is not unique,
and corners at which schemes converge to another motion."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Polynomial

from ..mechanics.problem import Problem
from .base import Case, Entry, Orders
from .moving import floor, inelastic, valley

_SCHEMES = ("paoli-schatzman", "paoli-schatzman-explicit")
_OTHER_LIMIT = Orders(0.0, 0.0, 0.0)  # converges, to another motion
_EITHER_MOTION = dict.fromkeys(_SCHEMES, Orders(None, None))


# Non-uniqueness: one downward pulse between 1/(k+1) and 1/k, for every k.


def pulses(t, q, v, args):
    """Force -sum_k I_k phi((t - s_k)/w_k)/w_k of downward pulses, phi(x) = (315/256) (1 - x^2)^4 on [-1, 1],
    I_k = 4 ratio^-(k+1).

    With D_k = 1/k - 1/(k+1), s_k = 1/k - D_k/4 and w_k = D_k/8: supports are disjoint, so that k = floor(1/t).
    """
    inside = (t > 0.0) & (t < 1.0)
    t = jnp.where(inside, t, 0.5)
    k = jnp.floor(1.0 / t)
    gap = 1.0 / (k * (k + 1.0))
    x = jnp.clip((t - (1.0 / k - 0.25 * gap)) / (0.125 * gap), -1.0, 1.0)
    pulse = 4.0 * args["ratio"] ** -(k + 1.0) * (315.0 / 256.0) * (1.0 - x**2) ** 4 / (0.125 * gap)
    return jnp.full_like(q, -jnp.where(inside, pulse, 0.0))


def _bouncing(t1: float) -> Case:
    """Case of a ball that bounces at the times 1/k, with the velocity ratio^-k after each impact, ratio = 3/2.

    Between two impacts a pulse sends the ball back three times as fast;
    the impact with e = 1/2 then leaves 3/2 of the earlier speed.
    """
    args, e, last = {"ratio": 1.5}, 0.5, 100  # earlier flights have speeds below 1e-17
    impacts = 1.0 / np.arange(last, 0.0, -1.0)
    index = np.arange(last - 1.0, -1.0, -1.0)  # flight from 1/(k+1), pulse k before 1/k; none after t = 1, where k = 0
    speed = args["ratio"] ** -(index + 1.0)
    gap = 1.0 / np.maximum(index * (index + 1.0), 1.0)
    centre = np.where(index > 0, 1.0 / np.maximum(index, 1.0) - 0.25 * gap, np.inf)
    bump = Polynomial([1.0, 0.0, -1.0]) ** 4 * (315.0 / 256.0)
    once = bump.integ(lbnd=-1.0)
    twice = once.integ(lbnd=-1.0)

    def exact(t):
        n = np.searchsorted(impacts, t, side="right") - 1
        started, n = n >= 0, np.maximum(n, 0)
        x = np.maximum((t - centre[n]) / (0.125 * gap[n]), -1.0)
        inside = np.minimum(x, 1.0)
        v = speed[n] * (1.0 - 4.0 * once(inside))
        q = speed[n] * (t - impacts[n] - 0.5 * gap[n] * (twice(inside) + (x - inside)))
        return np.where(started, q, 0.0)[:, None], np.where(started, v, 0.0)[:, None]

    # (1 + e) 3 ratio^-(k+1) at 1/k, over all k >= 1
    impulse = np.array([(1.0 + e) * 3.0 / (args["ratio"] * (args["ratio"] - 1.0))])
    note = "found, to first order, from any start perturbed by O(h^2), and for small h even from one by rounding"
    return Case(np.zeros(1), np.zeros(1), t1, e, args, exact, impulse, impacts, _EITHER_MOTION, note)


def _at_rest(t1: float) -> Case:
    """Case of the motion q = 0 under `pulses`: the floor balances the pulses, whose total impulse is 16/3."""
    args = {"ratio": 1.5}
    impulse = np.array([4.0 / (args["ratio"] * (args["ratio"] - 1.0))])

    def exact(t):
        return np.zeros((len(t), 1)), np.zeros((len(t), 1))

    note = "found from U^0 = U^1 = 0 in exact arithmetic; unstable, a perturbation grows by 3/2 at each pulse"
    return Case(np.zeros(1), np.zeros(1), t1, 0.5, args, exact, impulse, np.zeros(0), _EITHER_MOTION, note)


# Obtuse corners: a parabola into the corner, then up along the face on the right.


def sideways_force(t, q, v, args):
    return jnp.stack([jnp.full_like(q[0], args["push"]), jnp.zeros_like(q[1])])


def wedge(t, q, args):
    slope = args["slope"] * q[0]
    return jnp.stack([q[1] - slope, q[1] + slope])


def sideways_energy(t, q, v, args):
    return 0.5 * v @ v - args["push"] * q[0]


def _corner(args: dict, corner, drift, hit: float, t1: float, right: int) -> Case:
    """Case of a motion into a moving corner, reached at the time ``hit`` with the relative velocity (0, -1),
    then along the right face.

    ``corner``: position of the corner at t = 0; ``drift``: its velocity. By Moreau's law the motion rests in the corner
    at the impact. The faces have slopes -1/2 and 1/2; ``right`` is the index of the constraint of the right one. The
    resultant (4 push / 5, 2 push / 5) of push and reaction accelerates the motion along that face.
    """
    normals = np.array([[0.5, 1.0], [-0.5, 1.0]])
    if right == 0:
        normals = normals[::-1]
    push = np.array([args["push"], 0.0])
    corner, drift, arrival = np.array(corner), np.array(drift), np.array([0.0, -1.0])
    stopped, impulse = inelastic(arrival, normals)
    slide, reaction = inelastic(push, normals)

    def exact(t):
        s = (t - hit)[:, None]
        before = s < 0.0
        w = np.where(before, arrival + s * push, stopped + s * slide)
        q = s * np.where(before, arrival + 0.5 * s * push, stopped + 0.5 * s * slide)
        return corner + t[:, None] * drift + q, drift + w

    q0, v0 = exact(np.zeros(1))
    orders = dict.fromkeys(_SCHEMES, Orders(1.0, 1.0, 1.0)) | {"maury": _OTHER_LIMIT}
    impulse = impulse + (t1 - hit) * reaction
    note = "paoli-schatzman depends on its start here: order 1 with the Taylor start; maury leaves the corner wrongly"
    return Case(q0[0], v0[0], t1, 0.0, args, exact, impulse, np.array([hit]), orders, note)


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="B26",
        name="non-uniqueness",
        title="Two motions from the same data",
        statement="q'' = a C^3 force of one sign, q >= 0, from rest, e = 1/2: q = 0 is a motion, and so is the one "
        "that bounces at every 1/k with v(1/k +) = (2/3)^k.",
        problem=Problem(pulses, floor),
        cases={"bouncing": _bouncing(1.2), "rest": _at_rest(1.2)},
        hypotheses="all hypotheses of Paoli-Schatzman and of Paoli (H1-H6): only analytic data give uniqueness",
        source="after A. Bressan, Rend. Sem. Mat. Univ. Padova 29 (1959) 271-315, M. Schatzman, Nonlinear Anal. 2 "
        "(1978) 355-373, and P. Ballard, Arch. Rational Mech. Anal. 154 (2000) 199-274",
    ),
    Entry(
        id="B27",
        name="obtuse-corner",
        title="Obtuse corner",
        statement="q'' = (2, 0), y >= |x|/2, e = 0, from (1, 1) with (-2, -1): into the corner at t = 1, v(1+) = 0 by "
        "Moreau's law, then (4/5, 2/5)(t - 1)^2. The velocity-level scheme finds v(1+) = (-6/25, 3/25).",
        problem=Problem(sideways_force, wedge, energy=sideways_energy),
        cases={"static": _corner({"push": 2.0, "slope": 0.5}, (0.0, 0.0), (0.0, 0.0), 1.0, 2.0, right=0)},
        hypotheses="Bernicot-Lefebvre-Lepot A0-A6, Adly-Thieu A1-A4 as printed; fails <grad f_1, grad f_2> <= 0 (3/4)",
        source="constructed for this project",
    ),
    Entry(
        id="B28",
        name="adly-thieu-corner",
        title="Obtuse corner of the descending valley",
        statement="the constraints of adly-thieu, force (4, 0), from (5/2, -1/4) with (-2, -2): corner at t = 1/2.",
        problem=Problem(sideways_force, valley, energy=sideways_energy),
        cases={
            "moving": _corner(
                {"push": 4.0, "speed": 1.0, "width": 4.0}, (2.0, -0.75), (0.0, -1.0), hit=0.5, t1=1.0, right=1
            )
        },
        hypotheses="Adly-Thieu A1-A4 as printed; fails <grad f_1, grad f_2> <= 0 at the corner (3/4)",
        source="constraints of Adly and Thieu 2022, section 5; force constructed for this project",
    ),
)
