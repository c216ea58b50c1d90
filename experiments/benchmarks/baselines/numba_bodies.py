"""Many disks in a box without a lid, in loops compiled by numba: the algorithm of `jaximpact.bodies`,
iteration for iteration.

    state = numba_bodies.start(q0, radii)
    state, iterations, residual = numba_bodies.run(state, radii, width, steps, h, tolerance)

Unit masses, gravity downwards, Maury's step; near pairs by scipy's k-d tree, renewed when half of a skin is used up;
contact problems by MPRGP (Dostal and Schoberl 2005) that begins with the impulses of the step before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.spatial import cKDTree

GRAVITY = 9.81
POWER, SAFETY, STEP, SKIN, LIMIT = 8, 1.25, 1.9, 0.2, 50_000

compiled = njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})


class State(NamedTuple):
    """Positions and velocities (N, 2), near pairs (K, 2) as of the positions ``seen``, and impulses (K + 3 N,)."""

    q: np.ndarray
    v: np.ndarray
    pairs: np.ndarray
    seen: np.ndarray
    impulse: np.ndarray


def start(q0: np.ndarray, radii: np.ndarray) -> State:
    """At rest."""
    q = np.array(q0, float).reshape(-1, 2)
    return State(q, 0 * q, *listed(q, radii, np.zeros((0, 2), np.int32), np.zeros(3 * len(q))))


def listed(q: np.ndarray, radii: np.ndarray, before: np.ndarray, impulse: np.ndarray) -> tuple:
    """The near pairs, where they were seen, and the impulses matched by pair."""
    pairs = cKDTree(q, balanced_tree=False, compact_nodes=False).query_pairs(
        (1 + SKIN) * 2 * radii.max(), output_type="ndarray"
    )
    key, old = (x[:, 0].astype(np.int64) * len(q) + x[:, 1] for x in (pairs, before))
    order = np.argsort(key)
    pairs, key = pairs[order].astype(np.int32), key[order]
    kept, count = np.zeros(len(pairs)), len(before)
    if count:
        place = np.minimum(np.searchsorted(old, key), count - 1)
        kept = np.where(old[place] == key, impulse[place], 0)
    return pairs, q.copy(), np.concatenate([kept, impulse[count:]])


def run(state: State, radii: np.ndarray, width: float, steps: int, h: float, tolerance: float) -> tuple:
    """The state after so many steps, iterations of all of them, and the largest KKT residual [m/s]."""
    total, worst = 0, 0.0
    for _ in range(steps):
        q, v, pairs, seen, impulse = state
        moved = np.sqrt(np.max(np.sum((q - seen) ** 2, axis=1)))
        if 2 * moved + 2 * h * np.sqrt(np.max(np.sum(v**2, axis=1))) > 0.5 * SKIN * 2 * radii.max():
            pairs, seen, impulse = listed(q, radii, pairs, impulse)
        v, impulse, count, residual = step(q, v, radii, width, pairs, impulse, h, tolerance)
        state = State(q + h * v, v, pairs, seen, impulse)
        total, worst = total + count, max(worst, residual)
    return state, total, worst


@compiled
def step(q, v, radii, width, pairs, guess, h, tolerance):
    """The velocities after a step, its impulses, iterations and residual."""
    n, k = len(q), len(pairs)
    free = v.copy()
    free[:, 1] -= h * GRAVITY
    i, j = np.full(k + 3 * n, n), np.full(k + 3 * n, n)
    gi, gj, gap = np.zeros((k + 3 * n, 2)), np.zeros((k + 3 * n, 2)), np.empty(k + 3 * n)
    for c in range(k):
        a, b = pairs[c]
        x, y = q[a, 0] - q[b, 0], q[a, 1] - q[b, 1]
        distance = np.sqrt(x * x + y * y)
        i[c], j[c], gap[c] = a, b, distance - (radii[a] + radii[b])
        gi[c, 0], gi[c, 1] = x / distance, y / distance
        gj[c, 0], gj[c, 1] = -gi[c, 0], -gi[c, 1]
    for a in range(n):
        c = k + 3 * a
        i[c : c + 3] = a
        gi[c, 0], gi[c + 1, 0], gi[c + 2, 1] = 1.0, -1.0, 1.0
        gap[c], gap[c + 1], gap[c + 2] = q[a, 0] - radii[a], width - radii[a] - q[a, 0], q[a, 1] - radii[a]
    offset = np.empty(k + 3 * n)
    for c in range(k + 3 * n):
        offset[c] = gap[c] / h + gi[c, 0] * free[i[c], 0] + gi[c, 1] * free[i[c], 1]
        if j[c] < n:
            offset[c] += gj[c, 0] * free[j[c], 0] + gj[c, 1] * free[j[c], 1]
    cut, total, impulse = 2 * max(0.0, -offset.min()), 0, guess.copy()
    while True:
        chosen = np.flatnonzero((offset < cut) | (impulse > 0))
        root = np.sqrt(np.sum(gi[chosen] ** 2, axis=1) + np.sum(gj[chosen] ** 2, axis=1))
        hx, hy = gi[chosen, 0] / root, gi[chosen, 1] / root
        kx, ky = gj[chosen, 0] / root, gj[chosen, 1] / root
        x = np.maximum(impulse[chosen], 0) * root
        own = (i[chosen], j[chosen], hx, hy, kx, ky)
        count = solve(own, x, offset[chosen] / root, root / (0.5 * tolerance), np.zeros((n + 1, 2)))
        total += count
        impulse[:] = 0
        impulse[chosen] = x / root
        jump = np.zeros((n + 1, 2))
        for c in chosen:
            for a in range(2):
                jump[i[c], a] += gi[c, a] * impulse[c]
                jump[j[c], a] += gj[c, a] * impulse[c]
        residual, left = 0.0, False
        for c in range(k + 3 * n):
            w = offset[c]
            for a in range(2):
                w += gi[c, a] * jump[i[c], a] + (gj[c, a] * jump[j[c], a] if j[c] < n else 0.0)
            square = gi[c, 0] ** 2 + gi[c, 1] ** 2 + gj[c, 0] ** 2 + gj[c, 1] ** 2
            residual = max(residual, abs(min(w, square * impulse[c])))
            left = left or (w < -tolerance and offset[c] >= cut)
        if not left:
            return free + jump[:n], impulse, total, residual
        cut = np.inf


@compiled
def product(own, p, y, v):
    """y = A p, by the velocities (N + 1, 2) of the bodies."""
    i, j, hx, hy, kx, ky = own
    v[:] = 0
    for c in range(len(p)):
        v[i[c], 0] += p[c] * hx[c]
        v[i[c], 1] += p[c] * hy[c]
        v[j[c], 0] += p[c] * kx[c]
        v[j[c], 1] += p[c] * ky[c]
    for c in range(len(p)):
        y[c] = hx[c] * v[i[c], 0] + hy[c] * v[i[c], 1] + kx[c] * v[j[c], 0] + ky[c] * v[j[c], 1]


@compiled
def measured(x, g, allowed, step):
    """The residual over the tolerance, squares of the free and of the chopped gradient."""
    residual, free, chopped = 0.0, 0.0, 0.0
    for c in range(len(x)):
        residual = max(residual, abs(min(g[c], x[c])) * allowed[c])
        free += g[c] * min(g[c], x[c] / step) if x[c] > 0 else 0.0
        chopped += 0.0 if x[c] > 0 else min(g[c], 0.0) ** 2
    return residual, free, chopped


@compiled
def fresh(own, x, b, g, p, v):
    """The gradient of x, and its free part as direction."""
    product(own, x, g, v)
    for c in range(len(x)):
        g[c] += b[c]
        p[c] = g[c] if x[c] > 0 else 0.0


@compiled
def solve(own, x, b, allowed, v):
    """Impulses x (m,) that solve the scaled problem, in their place; returns iterations."""
    m = len(x)
    if m == 0:
        return 0
    g, y = np.empty(m), np.empty(m)
    p = 1 + 0.3 * (np.arange(m) % 5)
    largest = 1.0
    for _ in range(POWER):
        product(own, p, y, v)
        largest = np.dot(p, y) / np.dot(p, p)
        p[:] = y / max(largest, 1e-30)
    step = STEP / (SAFETY * max(largest, 1.0))
    fresh(own, x, b, g, p, v)
    residual, free, chopped = measured(x, g, allowed, step)
    exact, count = True, 0
    while (residual > 1 or not exact) and count < LIMIT:
        count += 1
        if residual <= 1:
            fresh(own, x, b, g, p, v)
            exact = True
        elif chopped > free:
            for c in range(m):
                x[c] = max(x[c] - step * g[c], 0.0)
            fresh(own, x, b, g, p, v)
            exact = True
        else:
            product(own, p, y, v)
            curvature, slope, room = 0.0, 0.0, np.inf
            for c in range(m):
                curvature += p[c] * y[c]
                slope += p[c] * g[c]
                room = min(room, x[c] / p[c] if p[c] > 0 else np.inf)
            length = slope / curvature
            if curvature > 0 and length <= room:
                inner = 0.0
                for c in range(m):
                    x[c] = max(x[c] - length * p[c], 0.0)
                    g[c] -= length * y[c]
                    inner += g[c] * y[c] if x[c] > 0 else 0.0
                ratio = inner / curvature
                for c in range(m):
                    p[c] = (g[c] if x[c] > 0 else 0.0) - ratio * p[c]
                exact = False
            else:
                far = room if room < np.inf else 0.0
                for c in range(m):
                    now = max(x[c] - far * p[c], 0.0)
                    x[c] = max(now - step * (g[c] - far * y[c]), 0.0) if now > 0 else 0.0
                fresh(own, x, b, g, p, v)
                exact = True
        residual, free, chopped = measured(x, g, allowed, step)
    return count
