"""Contact problems with friction on which sweeps stall: proximal points, each by Newton's method with sparse matrices.

Piles that nearly jam have self-balanced impulses, which change no velocity. Along these a Gauss-Seidel sweep may
advance by only 1e-7 of the way to where the next contact opens or slips, and conjugate directions do not converge. A
proximal step from impulses x_k solves

    w = A x + b + s (x - x_k)

with the law of friction, for impulses x and velocities w of the contacts. With the shift s the problem is regular and
Newton's method mostly converges; the step x - x_k is then extended as long as the residual does not grow. No theorem
says that this converges.

References:
    P. Alart, A. Curnier, A mixed formulation for frictional contact problems prone to Newton like solution methods,
    Comput. Methods Appl. Mech. Engrg. 92 (1991), for the equations.
    R. T. Rockafellar, Monotone operators and the proximal point algorithm, SIAM J. Control Optim. 14 (1976).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

ROWS = 12000  # of a problem; factors of more take longer than all sweeps
FIRST, LEAST, MOST = 1e-4, 1e-9, 3.0  # shifts, relative to the diagonal
NEWTON = 12  # Newton steps for one proximal point
EXACT = 1e-13  # residual of the equations of a proximal point
PARTS = 0.5 ** np.arange(6)  # of a Newton step
MEMORY = 5  # residuals that a Newton step may go back to
FARTHEST, SLACK = (
    20,
    1.05,
)  # powers of two by which a step may be gone on with, and growth of the residual that it may cost


class ConeSystem(NamedTuple):
    """Contact problem w = A x + b of m contacts, scaled to a unit diagonal of A:
    impulses x and velocities w (m, 1 + k), k tangents.

    ``matrix`` A (m (1 + k), m (1 + k)) = H' H and ``columns`` H (N D, m (1 + k)), sparse; ``offset`` b (m, 1 + k);
    ``within`` (m,) friction coefficients of the scaled problem. Unscaled velocities are ``root`` (m, 1 + k) times w,
    impulses x / root; ``mu`` (m,) and ``allowed`` (m,): friction coefficients and allowed natural residuals
    [velocity] of the unscaled problem.
    """

    matrix: scipy.sparse.csc_matrix
    offset: np.ndarray
    within: np.ndarray
    root: np.ndarray
    mu: np.ndarray
    allowed: np.ndarray
    columns: scipy.sparse.csc_matrix

    @classmethod
    def of(cls, ends: np.ndarray, h: np.ndarray, b: np.ndarray, mu: np.ndarray, allowed: np.ndarray) -> ConeSystem:
        """The system of columns h (m, 1 + k, 2 D) at the bodies ``ends`` (2, m), N in place of an obstacle; operands as
        of `cone_sweeps.solver`."""
        m, rows, wide = h.shape
        D = wide // 2
        place = np.concatenate([end[:, None] * D + np.arange(D) for end in ends.astype(np.int64)], axis=1)
        at = np.broadcast_to(place[:, None], h.shape).ravel()
        column = np.repeat(np.arange(m * rows), wide)
        squares = np.sum(h**2, axis=2)
        across = np.max(squares[:, 1:], axis=1, keepdims=True)
        root = np.sqrt(np.concatenate([squares[:, :1], np.repeat(across, rows - 1, axis=1)], axis=1))
        rubs, root = root[:, 1] > 0, np.where(root > 0, root, 1)
        mu = np.where(rubs, mu, 0)
        columns = scipy.sparse.coo_matrix((h.ravel() / root.ravel()[column], (at, column))).tocsc()
        return cls((columns.T @ columns).tocsc(), b / root, mu * root[:, 1] / root[:, 0], root, mu, allowed, columns)

    def velocity(self, x: np.ndarray) -> np.ndarray:
        """Velocities w = A x + b (m, 1 + k)."""
        return self.product(x) + self.offset

    def product(self, x: np.ndarray) -> np.ndarray:
        """Product A x (m, 1 + k) of the system's matrix with impulses x (m, 1 + k)."""
        return (self.matrix @ x.ravel()).reshape(x.shape)

    def size(self, x: np.ndarray) -> float:
        """Euclidean norm of the residual of the law's `equations` at impulses x (m, 1 + k)."""
        return float(np.linalg.norm(equations(x, self.velocity(x), self.within)[0]))

    def excess(self, x: np.ndarray) -> float:
        """Largest natural residual (`cones.residual`) of impulses x (m, 1 + k), divided by the allowed one."""
        w = self.root * self.velocity(x)
        y = np.max(self.root, axis=1, keepdims=True) ** 2 * x / self.root
        moved = y - w
        normal, slide = moved[:, 0] - self.mu * _length(w[:, 1:]), _length(moved[:, 1:])
        inside = (slide <= self.mu * normal) & (normal >= 0)
        pushed = np.where(inside, normal, np.maximum((normal + self.mu * slide) / (1 + self.mu**2), 0))
        rubbed = np.where(inside, 1, self.mu * pushed / np.where(slide > 0, slide, 1))
        nearest = np.concatenate([pushed[:, None], rubbed[:, None] * moved[:, 1:]], axis=1)
        return float(np.max(np.max(np.abs(y - nearest), axis=1) / self.allowed, initial=0.0))

    def clean(self, x: np.ndarray) -> np.ndarray:
        """Impulses x (m, 1 + k) with zeros for contacts that open, whose impulses are round-off."""
        return np.where((x[:, 0] <= self.velocity(x)[:, 0])[:, None], 0, x)


def _length(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(x**2, axis=1))


def equations(x: np.ndarray, w: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residual (m, 1 + k) of Alart and Curnier's equations of the friction law,
    and its Jacobians by x and by w (m, 1 + k, 1 + k).

    Impulses x and velocities w (m, 1 + k) of a problem with unit diagonal, coefficients mu (m,).
    """
    m, size = x.shape
    push, moved = x[:, 0] - w[:, 0], x[:, 1:] - w[:, 1:]
    closed = push > 0
    push, long, eye = np.where(closed, push, 0), _length(moved), np.eye(size - 1)
    sticks = (long <= mu * push) & (mu > 0)
    u = moved / np.where(long > 0, long, 1)[:, None]
    held = np.where(sticks[:, None], moved, (mu * push)[:, None] * u)
    share = np.where(sticks, 1, mu * push / np.where(long > 0, long, 1))[:, None, None]
    by_moved = share * (eye - np.where(sticks, 0, 1)[:, None, None] * u[:, :, None] * u[:, None])
    by_push = np.where((closed & ~sticks)[:, None], mu[:, None] * u, 0)
    by_x, by_w = np.zeros((m, size, size)), np.zeros((m, size, size))
    by_x[:, 0, 0], by_w[:, 0, 0] = ~closed, closed
    by_x[:, 1:, 1:], by_w[:, 1:, 1:] = eye - by_moved, by_moved
    by_x[:, 1:, 0], by_w[:, 1:, 0] = -by_push, by_push
    return x - np.concatenate([push[:, None], held], axis=1), by_x, by_w


def proximal_point(system: ConeSystem, x0: np.ndarray, shift: float, limit: int) -> tuple[np.ndarray, bool, int]:
    """Solves w = A x + b + shift (x - x0) with the law of friction by Newton's method: impulses x (m, 1 + k), whether
    the residual is at most `EXACT`, and Newton steps, at most ``limit``."""
    m, n = len(x0), x0.size
    matrix = (system.matrix + shift * scipy.sparse.identity(n, format="csc")).tocsr()
    of_blocks = lambda blocks: scipy.sparse.bsr_matrix((blocks, np.arange(m), np.arange(m + 1)), shape=(n, n))
    x, w, sizes = x0, system.velocity(x0), [np.inf]
    value, by_x, by_w = equations(x, w, system.within)
    for count in range(limit + 1):
        length = float(np.linalg.norm(value))
        if length <= EXACT or count == limit:
            return x, length <= EXACT, count
        sizes = [*sizes[1 - MEMORY :], length] if count else [length]
        try:
            factors = scipy.sparse.linalg.splu((of_blocks(by_w) @ matrix + of_blocks(by_x)).tocsc())
            step = -factors.solve(value.ravel()).reshape(x.shape)
        except RuntimeError:  # singular
            return x, False, count + 1
        moved = system.product(step) + shift * step
        for part in PARTS:
            trial = equations(x + part * step, w + part * moved, system.within)
            if np.linalg.norm(trial[0]) < (1 - 0.1 * part) * max(sizes):
                break
        else:
            return x, False, count + 1
        x, w, (value, by_x, by_w) = x + part * step, w + part * moved, trial
    raise AssertionError


def go_on(system: ConeSystem, x: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Extends a step: impulses x + 2^n ``step`` (m, 1 + k), with the largest n that the residual allows.

    The residual is at most `SLACK` times that at x; x is returned if it is larger for every n.
    """
    bound = SLACK * system.size(x)
    for power in range(FARTHEST, -1, -1):
        ahead = x + 2.0**power * step
        if system.size(ahead) <= bound:
            return ahead
    return x


def proximal_steps(system: ConeSystem, x: np.ndarray, limit: int = 60) -> tuple[np.ndarray, int]:
    """Improves impulses x (m, 1 + k) by proximal steps: impulses whose natural residual is not larger,
    and the number of Newton steps.

    No further proximal point is begun after ``limit`` Newton steps.
    """
    best, least, shift, spent = x, system.excess(x), FIRST, 0
    while least > 1 and spent < limit and shift <= MOST:
        found, solved, count = proximal_point(system, x, shift, NEWTON)
        spent += max(count, 1)
        if not solved:
            shift *= 4
            continue
        excess = system.excess(found)
        if excess < least:
            best, least = found, excess
        x = go_on(system, found, found - x)
        shift = max(0.3 * shift, LEAST) if count <= 4 else (2 * shift if count > 8 else shift)
    return best, spent
