"""Particles on a line that may not pass one another: x_0 <= x_1 <= ... <= x_{d-1}."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.optimize import isotonic_regression

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion, Orders
from .billiards import flights

TOUCHING = 1e-12
MAX_IMPACTS = 10_000


def line_impacts(x0, v0, masses, e: float, t1: float) -> tuple[np.ndarray, Motion, np.ndarray]:
    """Exact motion of free particles on a line: (impact times, motion, total impulse of each gap).

    At an impact v+ = -e v- + (1+e) Proj_T(v-). On particles in contact T is the cone of non-decreasing velocities,
    and the projection in the kinetic metric is the isotonic regression weighted by the masses.
    """
    x, v, masses = (np.asarray(y, float) for y in (x0, v0, masses))
    times, points, velocities, impulse = [0.0], [x], [v], np.zeros(x.size - 1)
    for _ in range(MAX_IMPACTS):
        closing = -np.diff(v)
        wait = np.min(np.divide(np.diff(x), closing, out=np.full(closing.shape, np.inf), where=closing > TOUCHING))
        if times[-1] + wait > t1:
            return np.array(times[1:]), flights(times, points, velocities), impulse
        x = x + wait * v
        clusters = np.split(np.arange(x.size), np.flatnonzero(np.diff(x) > TOUCHING) + 1)
        projection = np.concatenate([isotonic_regression(v[c], weights=masses[c]).x for c in clusters])
        new = (1.0 + e) * projection - e * v
        impulse -= np.cumsum(masses * (new - v))[:-1]
        v = new
        times.append(times[-1] + wait)
        points.append(x)
        velocities.append(v)
    raise RuntimeError(f"more than {MAX_IMPACTS} impacts before t = {t1}")


def _free(t, q, v, args):
    return jnp.zeros_like(q)


def _order(t, q, args):
    return q[1:] - q[:-1]


def _diagonal(q, args):
    return jnp.diag(args["masses"])


def _kinetic(t, q, v, args):
    return 0.5 * jnp.sum(args["masses"] * v * v)


# B19: inelastic chain


def _chain(n: int, t1: float) -> Case:
    x0, v0 = np.arange(n) / 10.0, np.eye(1, n)[0]
    masses = 1.0 + (np.arange(n) % 3) / 2.0
    impacts, exact, impulse = line_impacts(x0, v0, masses, 0.0, t1)
    exact_nodes = Orders(position=None, velocity=1.0, exact=True)
    orders = dict.fromkeys(("paoli-schatzman", "paoli-schatzman-explicit", "maury"), exact_nodes)
    note = "after k impacts the first k+1 particles move together at 1/(m_0 + ... + m_k)"
    return Case(x0, v0, t1, 0.0, {"masses": masses}, exact, impulse, impacts, orders, note)


CHAIN = Entry(
    id="B19",
    name="inelastic-chain",
    title="Inelastic chain",
    statement="Free particles of masses 1, 3/2, 2, 1, ... on a line, 1/10 apart; the first starts at speed 1 and "
    "gathers the others. args: masses (d,).",
    problem=Problem(_free, _order, _diagonal, energy=_kinetic),
    cases={"N=8": _chain(8, 12.0), "N=100": _chain(100, 60.0)},
    hypotheses="e = 0, acute corners: active gradients have negative products (Paoli I, Bernicot-Lefebvre-Lepot).",
    source="Sticky particles.",
)


# B20: Newton's cradle


def _cradle(x0, e: float, orders: Orders, note: str) -> Case:
    x0, t1 = np.asarray(x0, float), 3.0
    v0, masses = np.eye(1, x0.size)[0], np.ones(x0.size)
    impacts, exact, impulse = line_impacts(x0, v0, masses, e, t1)
    both = dict.fromkeys(("paoli-schatzman", "paoli-schatzman-explicit"), orders)
    return Case(x0, v0, t1, e, {"masses": masses}, exact, impulse, impacts, both, note)


_APART = (-0.5, 0.05, 0.1, 0.15)

CRADLE = Entry(
    id="B20",
    name="cradle",
    title="Newton's cradle",
    statement="Equal particles at rest on a line, hit from the left at speed 1. args: masses (d,).",
    problem=Problem(_free, _order, _diagonal, energy=_kinetic),
    cases={
        "e=1": _cradle(_APART, 1.0, Orders(), "gaps of 1/20: binary impacts; order 1 once h is well below the gaps"),
        "e=0.9": _cradle(_APART, 0.9, Orders(), "gaps of 1/20: binary impacts; order 1 once h is well below the gaps"),
        "touching": _cradle(
            (-0.5, 0.0, 0.0), 1.0, Orders(), "no gap: the simultaneous law gives (-1/3, 2/3, 2/3), not (0, 0, 1)"
        ),
    },
    hypotheses="e > 0 and active gradients not orthogonal (Paoli II, H6 fails) where three particles touch: the "
    "motion is not continuous there, and gaps that h does not resolve act as none.",
    source="Newton's cradle; Moreau's law of simultaneous impacts.",
)


ENTRIES: tuple[Entry, ...] = (CHAIN, CRADLE)
