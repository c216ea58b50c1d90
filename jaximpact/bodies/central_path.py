"""Contact problems with friction on which sweeps stall, solved along a path through the interior of the friction cones.

With impulses r = (mu x_n, x_t) Coulomb's cone is |r_t| <= r_0, which is its own dual. Velocities w = A x + b are written by vectors s in the same
cone,

    w_n = mu (s_0 - |s_t|^2 / s_0),    w_t = s_t,

so that w_n is zero on the cone's border and positive inside. Coulomb's law is then r o s = 0, in the product r o s = (r . s, r_0 s_t + s_0 r_t), and
every function is smooth inside the cones, which De Saxce's shift mu |w_t| is not. The path is the curve

    r o s = share size^2 e,    A x + b - w(s) = share p,    e = (1, 0),

from r = s = size e at share = 1, which fixes p, to the solution at share = 0. Friction makes the share grow again on parts of nearly every path of a
thousand contacts, where interior-point methods for convex problems stop. The path is therefore followed by its length, in the direction that the
sign of a determinant tells. A step factors one sparse matrix, with as many rows as the bodies have coordinates.

References:
    Yu. E. Nesterov, M. J. Todd, Self-scaled barriers and interior-point methods for convex programming, Math. Oper. Res. 22 (1997), for the scaling.
    E. L. Allgower, K. Georg, Numerical continuation methods, Springer 1990, for following curves that turn back.
    J. Kleinert, B. Simeon, M. Obermayr, An inexact interior point method for the large-scale simulation of granular material, Comput. Methods Appl.
    Mech. Engrg. 278 (2014), for interior points in piles, with De Saxce's shift kept during a solve.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import bsr_matrix, identity
from scipy.sparse.linalg import splu

from .proximal_steps import ConeSystem

# in all, and for each contact besides; 40 is the median of 200 disks in a box, 100 that of 1000, which took up to 930
STEPS = (300, 0.5)
LEAST = 1e-13  # share at which the path ends: rounding is larger than what is left
BORDER = 0.95  # of the way to the border of a cone that a step may go
CENTRED = 0.02  # least eigenvalue of r o s, relative to the one on the path
OFF = 2.0  # by which A x + b - w(s) may differ from share p, relative to share |p|
# factor of steps that are refused, trials in all, and those of which every second is corrected
SHORTER, TRIALS, CORRECTED = 0.6, 16, 8
PARTS = (1.0, 0.5, 0.2, 0.05)  # of the way back to the path


class Point(NamedTuple):
    """Point of the path: impulses r and dual velocities s (m, 1 + k) in the cones, velocities of the bodies (d,), and the share ()."""

    r: np.ndarray
    s: np.ndarray
    bodies: np.ndarray
    share: float

    def plus(self, step: float, way: Point) -> Point:
        bodies, share = self.bodies + step * way.bodies, self.share + step * way.share
        return Point(self.r + step * way.r, self.s + step * way.s, bodies, share)

    def is_inside(self) -> bool:
        return self.share > 0 and all(np.min(x[:, 0]) > 0 and np.min(determinant(x)) > 0 for x in (self.r, self.s))


def determinant(x: np.ndarray) -> np.ndarray:
    """Products (m,) of the eigenvalues x_0 + |x_t| and x_0 - |x_t| of vectors x (m, 1 + k)."""
    length = np.sqrt(np.sum(x[:, 1:] ** 2, axis=1))
    return (x[:, 0] - length) * (x[:, 0] + length)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products a o b (m, 1 + k)."""
    return np.concatenate([np.sum(a * b, axis=1, keepdims=True), a[:, :1] * b[:, 1:] + b[:, :1] * a[:, 1:]], axis=1)


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solutions y (m, 1 + k) of a o y = b."""
    first = (a[:, 0] * b[:, 0] - np.sum(a[:, 1:] * b[:, 1:], axis=1)) / determinant(a)
    return np.concatenate([first[:, None], (b[:, 1:] - first[:, None] * a[:, 1:]) / a[:, :1]], axis=1)


def times(matrices: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.einsum("mij,mj->mi", matrices, x)


def scaling(r: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric matrices W (m, 1 + k, 1 + k) that keep the cones, with W r = W^-1 s, and their inverses."""
    root_r, root_s = (np.sqrt(determinant(x))[:, None] for x in (r, s))
    mirror = np.append(1.0, -np.ones(r.shape[1] - 1))
    r, s = r / root_r, s / root_s
    half = s + mirror * r
    half /= 2 * np.sqrt((1 + np.sum(r * s, axis=1, keepdims=True)) / 2)
    half[:, 0] += 1
    half /= np.sqrt(2 * half[:, :1])
    ratio = np.sqrt(root_s / root_r)[:, :, None]
    reflected = lambda v: 2 * v[:, :, None] * v[:, None] - np.diag(mirror)
    return ratio * reflected(half), reflected(mirror * half) / ratio


def room(x: np.ndarray, way: np.ndarray) -> float:
    """Largest step along ``way`` (m, 1 + k) that keeps vectors x (m, 1 + k) in their cones."""
    a, c = determinant(way), determinant(x)
    b = x[:, 0] * way[:, 0] - np.sum(x[:, 1:] * way[:, 1:], axis=1)
    # the smallest positive root of a t^2 + 2 b t + c
    root = b * b - a * c
    q = -(b + np.where(b >= 0, 1, -1) * np.sqrt(np.maximum(root, 0)))
    ends = np.stack([q / np.where(a != 0, a, np.nan), c / np.where(q != 0, q, np.nan)])
    ends = np.where((root >= 0) & (ends > 0), ends, np.inf)
    falls = way[:, 0] < 0
    tip = np.where(falls, -x[:, 0] / np.where(falls, way[:, 0], -1), np.inf)
    return float(min(np.min(ends), np.min(tip)))


def sign_of_permutation(order: np.ndarray) -> int:
    cycles, seen, at = 0, [False] * len(order), order.tolist()
    for first in range(len(at)):
        cycles += not seen[first]
        while not seen[first]:
            seen[first], first = True, at[first]
    return 1 - 2 * ((len(at) - cycles) % 2)


class Curve:
    """Equations of the path of a contact problem."""

    def __init__(self, system: ConeSystem, scale: float) -> None:
        b, mu = system.offset, system.within
        self.system, (self.m, self.rows) = system, b.shape
        self.rubs = np.concatenate([np.ones((self.m, 1)), np.repeat(mu[:, None] > 0, self.rows - 1, axis=1)], axis=1)
        self.mu = np.where(mu > 0, mu, 1)  # of contacts without friction only the first entries of r and s count
        self.unscaled = self.rubs.copy()
        self.unscaled[:, 0] /= self.mu
        used = np.flatnonzero(np.diff(system.columns.tocsr().indptr))
        self.columns = system.columns.tocsr()[used].tocsc()
        self.transposed = self.columns.T.tocsr()
        self.one = np.zeros_like(b)
        self.one[:, 0] = 1
        self.size = scale * float(np.max(np.abs(b)))
        start = self.size * self.one
        self.start = Point(start, start, self.columns @ self.impulse(start).ravel(), 1.0)
        self.p = np.zeros_like(b)
        self.p = self.defect(self.start)

    def impulse(self, r: np.ndarray) -> np.ndarray:
        """Impulses x (m, 1 + k) of the contact problem."""
        return self.unscaled * r

    def admissible(self, r: np.ndarray) -> np.ndarray:
        """Impulses x (m, 1 + k), put into their cones, which rounding may have left."""
        x, mu = self.impulse(r), self.system.within
        push, slide = np.maximum(x[:, 0], 0), np.sqrt(np.sum(x[:, 1:] ** 2, axis=1))
        kept = np.where(slide > mu * push, mu * push / np.where(slide > 0, slide, 1), 1)
        return np.concatenate([push[:, None], kept[:, None] * x[:, 1:]], axis=1)

    def defect(self, at: Point) -> np.ndarray:
        """A x + b - w(s) - share p (m, 1 + k), zero on the path."""
        turn = np.sum(at.s[:, 1:] ** 2, axis=1) / at.s[:, 0] ** 2
        velocity = np.concatenate([(self.mu * at.s[:, 0] * (1 - turn))[:, None], at.s[:, 1:]], axis=1)
        moved = (self.transposed @ at.bodies).reshape(self.m, self.rows) + self.system.offset
        return self.rubs * (moved - velocity) - at.share * self.p

    def is_near(self, at: Point) -> bool:
        """Whether a point is inside the cones and not far off the path."""
        if not at.is_inside():
            return False
        scaled = times(scaling(at.r, at.s)[0], at.r)
        least = np.min(scaled[:, 0] - np.sqrt(np.sum(scaled[:, 1:] ** 2, axis=1))) ** 2
        off = np.max(np.abs(self.defect(at)))
        return bool(least >= CENTRED * at.share * self.size**2 and off <= OFF * at.share * np.max(np.abs(self.p)))


class Linearised:
    """The path's equations, linearised at a point of it; raises RuntimeError where their matrix is singular."""

    def __init__(self, curve: Curve, at: Point) -> None:
        self.curve, self.at = curve, at
        self.w, self.inverse = scaling(at.r, at.s)
        self.middle = times(self.w, at.r)
        turn = at.s[:, 1:] / at.s[:, :1]
        stretch = 1 + np.sum(turn**2, axis=1)
        self.by_w = np.zeros((curve.m, curve.rows, curve.rows))  # slopes of s
        self.by_w[:, 0, 0] = 1 / (curve.mu * stretch)
        self.by_w[:, 0, 1:] = 2 * turn / stretch[:, None]
        self.by_w[:, 1:, 1:] = np.eye(curve.rows - 1) * curve.rubs[:, 1:, None]
        self.square = self.inverse @ self.inverse
        self.slopes = self.square @ self.by_w
        blocks = bsr_matrix((curve.unscaled[:, :, None] * self.slopes, np.arange(curve.m), np.arange(curve.m + 1)))
        matrix = identity(curve.columns.shape[0], format="csr") + curve.columns @ blocks.tocsr() @ curve.transposed
        # pivots on the diagonal where they are not small keep the factors sparse
        options = {"SymmetricMode": True}
        self.factors = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=1e-3, options=options)

    def sign(self) -> float:
        """Sign of the determinant of the equations at a given share."""
        factors = self.factors
        found = float(np.prod(np.sign(factors.U.diagonal())))
        if not np.array_equal(factors.perm_r, factors.perm_c):
            found *= sign_of_permutation(factors.perm_r) * sign_of_permutation(factors.perm_c)
        return found

    def solve(self, change: np.ndarray, defect: np.ndarray) -> Point:
        """Way, at a constant share, that changes r o s (scaled) by ``change`` and A x + b - w(s) by minus ``defect``."""
        curve = self.curve
        known = times(self.inverse, quotient(self.middle, change))
        right = curve.impulse(known - times(self.slopes, defect))
        bodies = self.factors.solve(curve.columns @ right.ravel())
        s = times(self.by_w, (curve.transposed @ bodies).reshape(defect.shape) + defect)
        return Point(known - times(self.square, s), s, bodies, 0.0)

    def back(self, to: Point) -> Point:
        """Way from ``to``, a point near the one of the linearisation, back to the path at a constant share."""
        curve = self.curve
        missing = to.share * curve.size**2 * curve.one - product(times(self.w, to.r), times(self.inverse, to.s))
        return self.solve(missing, curve.defect(to))

    def dot(self, a: Point, b: Point) -> float:
        """Scalar product of two ways, in which all points of the cones are as far from the border."""
        curve, share = self.curve, self.at.share
        of = lambda x: (times(self.w, x.r), times(self.inverse, x.s))
        total = sum(np.sum(x * y) for x, y in zip(of(a), of(b), strict=True)) / (share * curve.size**2)
        return float(total + curve.m * a.share * b.share / share**2)

    def tangent(self) -> Point:
        """Direction of the path, of unit length."""
        along = self.solve(self.curve.size**2 * self.curve.one, -self.curve.p)._replace(share=1.0)
        scale = -self.sign() / float(np.sqrt(self.dot(along, along)))
        return Point(scale * along.r, scale * along.s, scale * along.bodies, scale * along.share)

    def across(self, way: Point, tangent: Point) -> Point:
        """A way with as much of the tangent added as makes them orthogonal."""
        return way.plus(-self.dot(way, tangent), tangent)


def next_point(curve: Curve, at: Point) -> Point | None:
    """Point further along the path, or None if there is none near it."""
    lines = Linearised(curve, at)
    tangent = lines.tangent()
    back = lines.across(lines.back(at), tangent)
    falls = tangent.share < 0
    longest = min(
        BORDER * min(room(at.r, tangent.r), room(at.s, tangent.s)),
        (BORDER if falls else 2) * at.share / abs(tangent.share),
    )
    for part in PARTS:
        step = longest
        for trial in range(TRIALS):
            new = at.plus(part, back).plus(step, tangent)
            corrects = trial < CORRECTED and trial % 2 == 0
            if corrects and new.share > 0:
                new = new.plus(1.0, lines.across(lines.back(new), tangent))
            if curve.is_near(new):
                return new
            step *= 1 if corrects else SHORTER
    return None


def central_path(system: ConeSystem, scale: float = 1.0) -> tuple[np.ndarray, int]:
    """Follows the path of a contact problem: the impulses x (m, 1 + k) of its point with the smallest natural residual, and the number of steps.

    ``scale``: the ``size`` at the start, relative to the largest velocity; other starts have other paths, to the same solution where it is unique.
    """
    best, least, limit = np.zeros_like(system.offset), np.inf, STEPS[0] + int(STEPS[1] * len(system.within))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        curve = Curve(system, scale)
        at = curve.start
        for count in range(limit):
            x = curve.admissible(at.r)
            excess = system.excess(x)
            if excess < least:
                best, least = x, excess
            if least <= 1 or at.share < LEAST:
                return best, count
            try:
                ahead = next_point(curve, at)
            except RuntimeError:
                return best, count
            if ahead is None:
                return best, count
            at = ahead
    return best, limit
