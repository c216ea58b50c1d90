"""Planar contact problems with friction solved along a path of simpler ones: Lemke's method with sparse factors.

In the plane the law of friction is piecewise linear: the mode of a contact is open, stick, or slip to either side. The path solves w = A x + b + (1
- s) q, with velocities q such that the solution at s = 0 is known, up to s = 1. Between two changes of a contact's mode the impulses x are linear in
s, which may also decrease. If all contacts are open at the start, Lemke's theory says that the path reaches its end, unless several modes change at
once; from impulses that are nearly right the path is mostly shorter.

References:
    C. E. Lemke, Bimatrix equilibrium points and mathematical programming, Management Science 11 (1965).
    D. E. Stewart, J. C. Trinkle, An implicit time-stepping scheme for rigid body dynamics with inelastic collisions and Coulomb friction, Int. J.
    Numer. Methods Engrg. 39 (1996), for the existence of solutions by this method.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import bsr_matrix, csc_matrix, csr_matrix, identity
from scipy.sparse.linalg import splu

from .proximal_steps import ConeSystem

OPEN, STICK, RIGHT, LEFT = range(4)
CONTACTS = 1500  # of a problem; pivots and the cost of each grow with them
WARM, COLD = 300, 20  # pivots from known impulses, and pivots a contact from none
SHIFT = 1e-9  # proximal shift, relative to the diagonal: keeps matrices regular
FAR = 1e6  # distance along the path, in multiples of q, at which it is given up


def margins(mode: np.ndarray, mu: np.ndarray, push: np.ndarray, rub: np.ndarray) -> np.ndarray:
    """Margins (m, 2) of each contact in its mode: two linear functions of its trial impulse x - w that are positive while it keeps the mode.

    ``mode`` (m,): OPEN, STICK, RIGHT or LEFT; ``push`` and ``rub`` (m,): normal and tangential part of x - w. The second margin is 0 in a mode that
    has one condition only.
    """
    side = np.where(mode == RIGHT, 1, -1)
    holds = [mode == OPEN, mode == STICK]
    first = np.select(holds, [-push, mu * push - rub], push)
    return np.stack(
        [first, np.select(holds, [0, mu * push + rub], np.where(mu > 0, side * rub - mu * push, 0))], axis=1
    )


def change(mode: np.ndarray, c: int, which: int, rub: float) -> tuple[int, int]:
    """Changes the mode of contact c, in place, to the one that it enters at a point of the path.

    ``which``: index, 0 or 1, of the one of its `margins` that is zero at this point; ``rub``: tangential part of the contact's trial impulse
    there. Returns c and the index of the margin of the new mode that is zero there.
    """
    old = mode[c]
    if old == OPEN:
        mode[c] = RIGHT if rub > 0 else LEFT
    elif old == STICK:
        mode[c] = (RIGHT, LEFT)[which]
        return c, 1
    elif which == 1:
        mode[c] = STICK
        return c, 0 if old == RIGHT else 1
    else:
        mode[c] = OPEN
    return c, 0


def linear_law(mode: np.ndarray, mu: np.ndarray) -> tuple[csr_matrix, csr_matrix]:
    """Matrices X and W (2 m, 2 m) of the linear equations X x + W w = 0 that hold as long as contacts keep their ``mode`` (m,).

    The equations are x = 0 (open), w = 0 (stick), or w_n = 0 and x_t = +- mu (x_n - w_n) (slip).
    """
    m = len(mode)
    opened, slips, side = mode == OPEN, mode >= RIGHT, np.where(mode == RIGHT, mu, -mu)
    by_x, by_w = np.zeros((m, 2, 2)), np.zeros((m, 2, 2))
    by_x[:, 0, 0], by_w[:, 0, 0] = opened, ~opened
    by_x[:, 1, 1], by_w[:, 1, 1] = opened | slips, mode == STICK
    by_x[:, 1, 0] = np.where(slips, -side, 0)
    by_w[:, 1, 0] = -by_x[:, 1, 0]
    of_blocks = lambda blocks: bsr_matrix((blocks, np.arange(m), np.arange(m + 1)), shape=(2 * m, 2 * m)).tocsr()
    return of_blocks(by_x), of_blocks(by_w)


def nearest_start(system: ConeSystem, impulse: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start of a path near ``impulse`` (m, 2): modes (m,), impulses x (m, 2), and the velocities q (m, 2) with which x obeys the law."""
    mu, w = system.within, system.velocity(impulse)
    trial = impulse - w
    push, rub = trial.T
    mode = np.where(push <= 0, OPEN, np.where(np.abs(rub) <= mu * push, STICK, np.where(rub > 0, RIGHT, LEFT)))
    push = np.maximum(push, 0)
    x = np.stack([push, np.clip(rub, -mu * push, mu * push)], axis=1)
    return mode, x, x - trial - system.velocity(x)


def open_start(system: ConeSystem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start of a path with all contacts open: modes (m,), impulses x = 0, and velocities q (m, 2) of random sizes, so that no two contacts change at
    once."""
    b, m = system.offset, len(system.within)
    q = np.zeros_like(b)
    q[:, 0] = (np.max(-b[:, 0], initial=0.0) + np.max(np.abs(b))) * (1 + 0.5 * np.random.default_rng(0).random(m))
    return np.full(m, OPEN), np.zeros_like(b), q


def follow(
    system: ConeSystem, start: tuple[np.ndarray, np.ndarray, np.ndarray], near: np.ndarray, limit: int
) -> tuple[np.ndarray | None, int]:
    """Follows the path from ``start`` = (modes, impulses x, velocities q) to its end, where q no longer acts.

    Returns the impulses (m, 2) at the end, None if it is not reached in ``limit`` pivots, and the number of pivots. Where several impulses are
    solutions, those near ``near`` (m, 2) are found.
    """
    mode, x, q = start
    mu, share, entered, direction = system.within, 0.0, None, 1.0
    matrix: csc_matrix = (system.matrix + SHIFT * identity(x.size, format="csc")).tocsc()
    velocity = lambda x: (matrix @ x.ravel()).reshape(x.shape)
    offset = system.offset - SHIFT * near
    for count in range(1, limit + 1):
        by_x, by_w = linear_law(mode, mu)
        try:
            step = splu((by_w @ matrix + by_x).tocsc()).solve(by_w @ q.ravel()).reshape(x.shape)
        except RuntimeError:  # singular
            return None, count
        trial, moved = x - velocity(x) - offset - (1 - share) * q, step - velocity(step) + q
        rate = margins(mode, mu, *moved.T)
        if entered is not None:
            # away from the border, into the mode just entered
            direction = 1.0 if rate[entered] > 0 else -1.0
        fall = -direction * rate
        room = np.where(fall > 0, np.maximum(margins(mode, mu, *trial.T), 0) / np.where(fall > 0, fall, 1), np.inf)
        if entered is not None:
            room[entered] = np.inf
        c, which = divmod(int(np.argmin(room)), 2)
        if direction > 0 and share + room[c, which] >= 1:
            return x + (1 - share) * step, count
        if not np.isfinite(room[c, which]) or abs(share) > FAR:
            return None, count
        x, share = x + direction * room[c, which] * step, share + direction * room[c, which]
        entered = change(mode, c, which, trial[c, 1] + direction * room[c, which] * moved[c, 1])
    return None, limit


def planar_path(system: ConeSystem, impulse: np.ndarray) -> tuple[np.ndarray, int]:
    """Improves ``impulse`` (m, 2) by following paths: impulses whose natural residual is not larger, and the number of pivots."""
    x, spent = system.root * impulse, 0
    least = system.excess(x)
    for start, limit in ((nearest_start(system, x), WARM), (open_start(system), COLD * len(x))):
        found, count = follow(system, start, x, limit)
        spent += count
        if found is not None and (excess := system.excess(found)) < least:
            x, least = found, excess
        if least <= 1:
            break
    return system.clean(x) / system.root, spent
