"""Spheres in space that may not overlap (Bernicot and Lefebvre-Lepot, section 4), with constant or growing radii."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion, Orders
from .billiards import flights
from .chains import MAX_IMPACTS, TOUCHING, line_impacts


def _free(t, q, v, args):
    return jnp.zeros_like(q)


def _masses(q, args):
    return jnp.diag(jnp.repeat(args["masses"], 3))


def _kinetic(t, q, v, args):
    return 0.5 * v @ (_masses(q, args) @ v)


def _distances(q, radii):
    """D_ij = |q_i - q_j| - (r_i + r_j) for i < j, row by row."""
    i, j = np.triu_indices(q.size // 3, 1)
    centres = q.reshape(-1, 3)
    return jnp.sqrt(jnp.sum((centres[i] - centres[j]) ** 2, axis=1)) - (radii[i] + radii[j])


def _constant(t, q, args):
    return _distances(q, args["radii"])


def _growing(t, q, args):
    return _distances(q, args["radii"] + t * args["growth"])


def free_spheres(q0, v0, masses, radii, growth, e: float, t1: float) -> tuple[np.ndarray, Motion, np.ndarray]:
    """Free spheres of radii r + growth t, hitting two at a time: (impact times, motion, impulse of each pair i < j).

    Between impacts |q_i - q_j| is convex and r_i + r_j affine in t, hence D_ij convex: it vanishes at the root of a
    quadratic, and once dD_ij/dt >= 0 after an impact (for e = 0 too, nothing attracts) the pair does not meet again.
    """
    x, v, masses, radii, growth = (np.asarray(y, float) for y in (q0, v0, masses, radii, growth))
    x, v = x.reshape(-1, 3), v.reshape(-1, 3)
    i, j = np.triu_indices(masses.size, 1)
    rate, reduced = growth[i] + growth[j], 1.0 / (1.0 / masses[i] + 1.0 / masses[j])
    times, points, velocities, impulse = [0.0], [x.ravel()], [v.ravel()], np.zeros(i.size)
    for _ in range(MAX_IMPACTS):
        w, dw = x[i] - x[j], v[i] - v[j]
        reach = radii[i] + radii[j] + times[-1] * rate
        # |w + s dw|^2 = (reach + s rate)^2:  a s^2 + 2 b s + c = 0, c >= 0, first root c / (-b + sqrt(b^2 - a c))
        a, b, c = (dw * dw).sum(1) - rate**2, (w * dw).sum(1) - reach * rate, (w * w).sum(1) - reach**2
        meet = (b < -TOUCHING) & (b * b > a * c)
        wait = np.full(i.size, np.inf)
        wait[meet] = np.maximum(c[meet], 0.0) / (np.sqrt((b * b - a * c)[meet]) - b[meet])
        k = int(np.argmin(wait))
        if times[-1] + wait[k] > t1:
            return np.array(times[1:]), flights(times, points, velocities), impulse
        x = x + wait[k] * v
        normal = x[i[k]] - x[j[k]]
        normal /= np.linalg.norm(normal)
        multiplier = -(1.0 + e) * reduced[k] * (normal @ dw[k] - rate[k])
        v = v.copy()
        v[i[k]] += multiplier / masses[i[k]] * normal
        v[j[k]] -= multiplier / masses[j[k]] * normal
        impulse[k] += multiplier
        times.append(times[-1] + wait[k])
        points.append(x.ravel())
        velocities.append(v.ravel())
    raise RuntimeError(f"more than {MAX_IMPACTS} impacts before t = {t1}")


def row_of_spheres(s0, w0, direction, drift, masses, radii, growth, t1: float) -> tuple[np.ndarray, Motion, np.ndarray]:
    """Growing spheres on a moving straight line, e = 0: (impact times, motion, impulse of each pair i < j).

    Sphere k is at drift t + s_k direction. With c_k(t) = sum of r_l + r_{l+1} over l < k, the s_k - c_k are particles
    on a line with s_k - c_k <= s_{k+1} - c_{k+1}: in contact, the centres part at the sum of the growth rates.
    """
    s0, w0, masses, radii, growth, direction = (
        np.asarray(x, float) for x in (s0, w0, masses, radii, growth, direction)
    )
    n = masses.size
    reach, widening = (np.append(0.0, np.cumsum(r[:-1] + r[1:])) for r in (radii, growth))
    impacts, motion, between = line_impacts(s0 - reach, w0 - widening, masses, 0.0, t1)
    drift = np.tile(drift, n)

    def exact(t):
        t = np.asarray(t, float)
        x, w = motion(t)
        s, ds = x + reach + t[:, None] * widening, w + widening
        return drift * t[:, None] + np.kron(s, direction), drift + np.kron(ds, direction)

    i, j = np.triu_indices(n, 1)
    impulse = np.zeros(i.size)
    impulse[j == i + 1] = between
    return impacts, exact, impulse


def _case(found, masses, radii, growth, e, t1, orders, note) -> Case:
    impacts, exact, impulse = found
    q0, v0 = (x[0] for x in exact(np.zeros(1)))
    args = {"masses": np.asarray(masses, float), "radii": np.asarray(radii, float)}
    if growth is not None:
        args["growth"] = np.asarray(growth, float)
    return Case(q0, v0, t1, e, args, exact, impulse, impacts, orders, note)


_INELASTIC = dict.fromkeys(("paoli-schatzman", "paoli-schatzman-explicit", "maury"), Orders(impulse=1.0))
_ELASTIC = dict.fromkeys(("paoli-schatzman", "paoli-schatzman-explicit"), Orders(impulse=1.0))
_EXACT = dict.fromkeys(_INELASTIC, Orders(position=None, exact=True))

# three spheres in general position: the first meets the second, which the third then meets from the side
_MASSES, _RADII, _GROWTH = (1.0, 2.0, 1.5), (0.4, 0.3, 0.35), (0.05, 0.1, 0.02)
_CENTRES = np.array([[0.0, 0.0, 0.0], [1.5, 0.3, -0.2], [0.1, 1.8, -0.4]])
_VELOCITIES = np.array([[1.0, 0.1, 0.0], [0.0, 0.0, 0.1], [0.9, -0.6, 0.1]])


def _case_of_scattered(growth, e: float, orders, note: str) -> Case:
    t1 = 3.0
    found = free_spheres(_CENTRES, _VELOCITIES, _MASSES, _RADII, np.zeros(3) if growth is None else growth, e, t1)
    return _case(found, _MASSES, _RADII, growth, e, t1, orders, note)


def _row() -> Case:
    t1, masses, radii, growth = 5.0, (1.0, 3.0, 2.0), (0.3, 0.2, 0.4), (0.05, 0.1, 0.08)
    found = row_of_spheres(
        (0.0, 1.0, 2.3), (0.1, 0.0, -0.1), np.array([2.0, -1.0, 2.0]) / 3.0, (0.1, 0.2, -0.1), masses, radii, growth, t1
    )
    return _case(found, masses, radii, growth, 0.0, t1, _EXACT, "two contacts in succession, both lasting to the end")


GROWING = Entry(
    id="S01",
    name="growing-spheres",
    title="Growing spheres",
    statement="Free rigid spheres in space with radii r_i + growth_i t and different masses, inelastic; constraints "
    "|q_i - q_j| - (r_i(t) + r_j(t)) for i < j. args: masses, radii, growth (N,).",
    problem=Problem(_free, _growing, _masses, energy=_kinetic),
    cases={
        "row": _row(),
        "scattered": _case_of_scattered(
            _GROWTH, 0.0, _INELASTIC, "oblique: the spheres part at once after each impact"
        ),
    },
    hypotheses="Convex constraints moving in time, e = 0 (Bernicot-Lefebvre-Lepot, A0 and A6 by its lemma 4.2).",
    source="Bernicot and Lefebvre-Lepot, Confluentes Math. 2 (2010), section 4.",
)

SPHERES = Entry(
    id="S02",
    name="spheres",
    title="Rigid spheres",
    statement="Free rigid spheres in space with different masses; constraints |q_i - q_j| - (r_i + r_j) for i < j. "
    "args: masses, radii (N,).",
    problem=Problem(_free, _constant, _masses, energy=_kinetic),
    cases={
        "e=0": _case_of_scattered(
            None, 0.0, _INELASTIC, "oblique: the spheres part at once, tangentially, after each impact"
        ),
        "e=1/2": _case_of_scattered(None, 0.5, _ELASTIC, "oblique impacts"),
        "e=1": _case_of_scattered(None, 1.0, _ELASTIC, "oblique impacts"),
    },
    hypotheses="Convex constraints (Bernicot-Lefebvre-Lepot, A6 by its lemma 4.2), here active one at a time.",
    source="Bernicot and Lefebvre-Lepot, Confluentes Math. 2 (2010), section 4, problem (4.2).",
)


ENTRIES: tuple[Entry, ...] = (GROWING, SPHERES)
