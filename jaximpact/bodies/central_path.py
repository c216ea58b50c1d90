"""Contact problems with friction on which sweeps stall, solved along a path through the interior of the friction cones.

With impulses r = (mu x_n, x_t) Coulomb's cone is |r_t| <= r_0, which is its own dual. Velocities w = A x + b are
written by vectors s in the same cone,

    w_n = mu (s_0 - |s_t|^2 / s_0),    w_t = s_t,

so that w_n is zero on the cone's border and positive inside. Coulomb's law is then r o s = 0, in the product r o s = (r
. s, r_0 s_t + s_0 r_t), and every function is smooth inside the cones, which De Saxce's shift mu |w_t|
is not. The path is the curve

    r o s = share size^2 e,    A x + b - w(s) = share p,    e = (1, 0),

from a point at share = 1, which fixes p, to the solution at share = 0. It starts from r = s = size e, or near impulses
that are nearly a solution, with the r and s there that have the same difference and r o s = size^2 e. Friction makes
the share grow again on parts of nearly every path of a thousand contacts, where interior-point methods for convex
problems stop; piles that settle have paths with a hundred such turns. The path is therefore followed by its length, in
the direction that the sign of a determinant tells. All equations are quadratic, or quotients of such: from one sparse
factorisation, of a matrix with as many rows as the bodies have coordinates, a step takes several terms of the path's
Taylor series. Which path is short cannot be told; several are followed in turns.

References:
    Yu. E. Nesterov, M. J. Todd, Self-scaled barriers and interior-point methods for convex programming, Math. Oper.
    Res. 22 (1997), for the scaling. E. L. Allgower, K. Georg, Numerical continuation methods, Springer 1990, for
    following curves that turn back. B. Cochelin, A path-following technique via an asymptotic-numerical method, Comput.
    Struct. 53 (1994), for steps by Taylor series. J. Kleinert, B. Simeon, M. Obermayr, An inexact interior point method
    for the large-scale simulation of granular material, Comput. Methods Appl. Mech. Engrg. 278 (2014), for interior
    points in piles, with De Saxce's shift kept during a solve.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy  # which imports parts of it as they are used: its sparse matrices take a third of jaximpact's import

from .proximal_steps import ConeSystem, proximal_steps

# starts of paths: far from the guess, by the size of r and s relative to the largest velocity, and near it, where sizes
# are those that the guess gets at least
FAR, NEAR = (0.3, 5.0), (0.01,)
FIRST = 80  # steps of each path before the next one is tried; twice as many in each round after that
STEPS = (1200, 2.0)  # of all paths, and for each contact besides: most of 1700 contacts take 20 to 80, some a thousand
BETTER = 0.5  # of the residual at the guess: from impulses with less another path is worth its steps
CLOSE = 100.0  # times the allowed residual, from where Newton's method is tried before the path has ended
LEAST = 1e-14  # size^2 at which a path ends, relative to the largest velocity: Newton's method goes on from there
ORDER = 5  # of the Taylor series of a step
TINY = 1e-300
# of a point: least and (its inverse) largest root of the eigenvalues of r o s, and defect, relative to the roots on the
# path
CENTRED, OFF = 0.3, 2.0
SHORTER, TRIALS = 0.8, 16  # factor of steps that are refused, and trials in all
# on the diagonal where they are not small, which keeps factors sparse
PIVOTS: dict = {"diag_pivot_thresh": 1e-3, "options": {"SymmetricMode": True}}
PARTS = (1.0, 0.5, 0.2, 0.05)  # of the way back to the path


class Point(NamedTuple):
    """Point of the path: impulses r and dual velocities s (m, 1 + k) in the cones, velocities of the bodies (d,),
    and the share ()."""

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
    # column by column: a third of the time of einsum
    return sum((matrices[:, :, a] * x[:, a : a + 1] for a in range(1, x.shape[1])), matrices[:, :, 0] * x[:, :1])


def balanced(y: np.ndarray, square: float) -> tuple[np.ndarray, np.ndarray]:
    """Vectors r and s (m, 1 + k) in the cones with r - s = y and r o s = ``square`` e."""
    long = np.sqrt(np.sum(y[:, 1:] ** 2, axis=1))
    towards = y[:, 1:] / np.where(long > 0, long, 1)[:, None]
    whole = lambda a, b: np.concatenate([((a + b) / 2)[:, None], ((a - b) / 2)[:, None] * towards], axis=1)

    def larger(x: np.ndarray) -> np.ndarray:
        """The positive root z of z - square / z = x."""
        root = np.sqrt(x * x + 4 * square)
        return np.where(x > 0, (x + root) / 2, 2 * square / np.where(x > 0, 1, root - x))

    ends = larger(y[:, 0] + long), larger(y[:, 0] - long)
    return whole(*ends), whole(*(square / x for x in ends))


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


def sign_of_permutation(order: np.ndarray) -> int:
    moved = np.flatnonzero(order != np.arange(len(order)))  # few
    to, left, even = dict(zip(moved.tolist(), order[moved].tolist(), strict=True)), set(moved.tolist()), len(moved)
    while left:
        even -= 1
        at = left.pop()
        while (at := to[at]) in left:
            left.remove(at)
    return 1 - 2 * (even % 2)


class BodyMatrix:
    """Matrix I + H B H' of the coordinates of bodies, for columns H of a contact problem and blocks B (m, 1 + k, 1 +
    k); its factors are sparse.

    Attributes: the ``columns`` H (d, m (1 + k)) of the d coordinates that take part, and their transpose.
    """

    def __init__(self, system: ConeSystem) -> None:
        m, rows = system.offset.shape
        found = system.columns.copy()
        found.sort_indices()
        at, h = found.indices.reshape(m, rows, -1)[:, 0], found.data.reshape(m, rows, -1)
        # obstacles, whose rows are zero, are no coordinates
        used = np.zeros(found.shape[0], bool)
        used[at[np.any(h != 0, axis=1)]] = True
        at = np.where(used[at], at, np.max(np.where(used[at], at, 0), axis=1, keepdims=True))
        self.columns = found.tocsr()[used].tocsc()
        self.transposed = self.columns.T.tocsr()
        d = self.columns.shape[0]
        # half the time of a factorisation goes into the order, which is the same for all blocks
        whole = (scipy.sparse.identity(d) + self.columns @ self.transposed).tocsc()
        self.place = scipy.sparse.linalg.splu(whole, permc_spec="MMD_AT_PLUS_A", **PIVOTS).perm_c
        at = self.place[(np.cumsum(used) - 1)[at]].astype(np.int64)
        # entries of the matrix are linear in those of the blocks
        keys = (at[:, None, :] * d + at[:, :, None]).ravel()
        diagonal = np.arange(d) * (d + 1)
        kept, to = np.unique(np.concatenate([keys, diagonal]), return_inverse=True)
        values = np.einsum("map,mbq->mabpq", h, h).ravel()
        of_pairs = np.repeat(to[: len(keys)].reshape(m, 1, -1), rows * rows, axis=1).ravel()
        of_blocks = np.repeat(np.arange(m * rows * rows), h.shape[2] ** 2)
        self.by_blocks = scipy.sparse.csr_matrix((values, (of_pairs, of_blocks)), shape=(len(kept), m * rows * rows))
        self.eye = np.isin(kept, diagonal).astype(float)
        self.indices = (kept % d).astype(np.int32)
        self.starts = np.searchsorted(kept, np.arange(d + 1) * d).astype(np.int32)

    def factors(self, blocks: np.ndarray) -> Any:
        """Factors of the matrix with these blocks; raises RuntimeError where it is singular."""
        data = self.eye + self.by_blocks @ blocks.ravel()
        matrix = scipy.sparse.csc_matrix((data, self.indices, self.starts), shape=(len(self.place),) * 2)
        return scipy.sparse.linalg.splu(matrix, permc_spec="NATURAL", **PIVOTS)

    def solve(self, factors: Any, x: np.ndarray) -> np.ndarray:
        """Solution y (d,) of the matrix times y = x, by its ``factors``."""
        permuted = np.empty_like(x)
        permuted[self.place] = x
        return factors.solve(permuted)[self.place]


class Curve:
    """Equations of a path of a contact problem: by its ``size``, and impulses ``x`` (m, 1 + k) to start near, or None
    to start far from all."""

    def __init__(self, system: ConeSystem, matrix: BodyMatrix, size: float, x: np.ndarray | None = None) -> None:
        b, mu = system.offset, system.within
        self.system, (self.m, self.rows) = system, b.shape
        self.rubs = np.concatenate([np.ones((self.m, 1)), np.repeat(mu[:, None] > 0, self.rows - 1, axis=1)], axis=1)
        self.mu = np.where(mu > 0, mu, 1)  # of contacts without friction only the first entries of r and s count
        self.unscaled = self.rubs.copy()
        self.unscaled[:, 0] /= self.mu
        self.matrix, self.columns, self.transposed = matrix, matrix.columns, matrix.transposed
        self.one = np.zeros_like(b)
        self.one[:, 0] = 1
        self.largest = float(np.max(np.abs(b)))
        self.size = size * self.largest
        r, s = (self.size * self.one,) * 2 if x is None else balanced(self.apart(x), self.size**2)
        self.start = Point(r, s, self.columns @ self.impulse(r).ravel(), 1.0)
        self.p = np.zeros_like(b)
        self.p = self.defect(self.start)

    def apart(self, x: np.ndarray) -> np.ndarray:
        """Difference r - s (m, 1 + k) at impulses x (m, 1 + k), where s has the velocities of x."""
        w = self.rubs * self.system.velocity(x)
        normal = np.maximum(w[:, 0], 0) / self.mu
        s = np.concatenate(
            [((normal + np.sqrt(normal**2 + 4 * np.sum(w[:, 1:] ** 2, axis=1))) / 2)[:, None], w[:, 1:]], axis=1
        )
        return self.rubs * x / np.where(self.rubs > 0, self.unscaled, 1) - s

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

    def by_velocity(self, s: np.ndarray) -> np.ndarray:
        """Derivatives (m, 1 + k, 1 + k) of s by the velocities w(s)."""
        turn = s[:, 1:] / s[:, :1]
        stretch = 1 + np.sum(turn**2, axis=1)
        found = np.zeros((self.m, self.rows, self.rows))
        found[:, 0, 0] = 1 / (self.mu * stretch)
        found[:, 0, 1:] = 2 * turn / stretch[:, None]
        found[:, 1:, 1:] = np.eye(self.rows - 1) * self.rubs[:, 1:, None]
        return found

    def is_near(self, at: Point) -> bool:
        """Whether a point is inside the cones and not far off the path."""
        if not at.is_inside():
            return False
        w, inverse = scaling(at.r, at.s)
        unit = np.sqrt(at.share) * self.size
        scaled = times(w, at.r) / unit
        long = np.sqrt(np.sum(scaled[:, 1:] ** 2, axis=1))
        centred = np.min(scaled[:, 0] - long) >= CENTRED and np.max(scaled[:, 0] + long) <= 1 / CENTRED
        # the defect as a change of s, where the cones' border is at distance one
        off = times(inverse, times(self.by_velocity(at.s), self.defect(at))) / unit
        return bool(centred and np.max(np.abs(off)) <= OFF)


class Linearised:
    """The path's equations, linearised at a point of it; raises RuntimeError where their matrix is singular."""

    def __init__(self, curve: Curve, at: Point) -> None:
        self.curve, self.at = curve, at
        self.w, self.inverse = scaling(at.r, at.s)
        self.middle = times(self.w, at.r)
        self.by_w = curve.by_velocity(at.s)
        self.square = self.inverse @ self.inverse
        self.slopes = self.square @ self.by_w
        self.factors = curve.matrix.factors(curve.unscaled[:, :, None] * self.slopes)

    def sign(self) -> float:
        """Sign of the determinant of the equations at a given share."""
        factors = self.factors
        found = float(np.prod(np.sign(factors.U.diagonal())))
        if not np.array_equal(factors.perm_r, factors.perm_c):
            found *= sign_of_permutation(factors.perm_r[np.argsort(factors.perm_c)])
        return found

    def solve(self, change: np.ndarray, defect: np.ndarray) -> Point:
        """Newton step of the path's equations, its parameter ``share`` fixed: r o s (scaled) grows by ``change``, A x +
        b - w(s) falls by ``defect``."""
        curve = self.curve
        known = times(self.inverse, quotient(self.middle, change))
        right = curve.impulse(known - times(self.slopes, defect))
        bodies = curve.matrix.solve(self.factors, curve.columns @ right.ravel())
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

    def series(self, tangent: Point) -> list[Point]:
        """Terms of the Taylor series of the path by its length, from the ``tangent`` on;
        those of higher order are orthogonal to it."""
        curve, at, terms = self.curve, self.at, [tangent]
        turn = at.s[:, 1:] / at.s[:, :1]
        linear = lambda s: np.sum(turn * (2 * s[:, 1:] - turn * s[:, :1]), axis=1)
        scaled = [(times(self.w, tangent.r), times(self.inverse, tangent.s))]
        bent = [linear(tangent.s)]  # of |s_t|^2 / s_0
        for order in range(2, ORDER + 1):
            pairs = [(a, order - 2 - a) for a in range(order - 1)]
            change = -np.sum([product(scaled[a][0], scaled[b][1]) for a, b in pairs], axis=0)
            parts = [
                np.sum(terms[a].s[:, 1:] * terms[b].s[:, 1:], axis=1) - bent[a] * terms[b].s[:, 0] for a, b in pairs
            ]
            rest = np.sum(parts, axis=0) / at.s[:, 0]
            term = self.across(self.solve(change, (curve.mu * rest)[:, None] * curve.one), tangent)
            terms.append(term)
            scaled.append((times(self.w, term.r), times(self.inverse, term.s)))
            bent.append(linear(term.s) + rest)
        return terms

    def reach(self, terms: list[Point]) -> float:
        """How far a series may be followed: its higher ``terms`` stay below the distance to the border of the cones.

        The first term may be up to four times that distance.
        """
        unit = float(np.sqrt(self.at.share)) * self.curve.size
        largest = [
            max(np.max(np.abs(times(self.w, x.r))), np.max(np.abs(times(self.inverse, x.s)))) / unit for x in terms
        ]
        least = min(max(y, TINY) ** (-1 / n) for n, y in enumerate(largest, 1) if n > len(terms) // 2)
        return min(least, 4 / max(largest[0], TINY))


def next_point(curve: Curve, at: Point) -> Point | None:
    """Point further along the path, or None if there is none near it."""
    lines = Linearised(curve, at)
    tangent = lines.tangent()
    back = lines.across(lines.back(at), tangent)
    terms = lines.series(tangent)
    longest = lines.reach(terms)
    for part in PARTS:
        base, step = at.plus(part, back), longest
        for _ in range(TRIALS):
            new = base
            for n, term in enumerate(terms, 1):
                new = new.plus(step**n, term)
            if curve.is_near(new):
                return new
            step *= SHORTER
    return None


class CentralPath:
    """A path of a contact problem that is followed bit by bit; arguments are those of `Curve`.

    Attributes: ``x`` (m, 1 + k), impulses with the smallest natural residual so far, and ``least``, that residual by
    the allowed one; ``ended``.
    """

    def __init__(self, system: ConeSystem, matrix: BodyMatrix, size: float, x: np.ndarray | None = None) -> None:
        self.system, self.curve = system, Curve(system, matrix, size, x)
        self.at, self.x, self.least, self.ended = self.curve.start, np.zeros_like(system.offset), np.inf, False

    def follow(self, limit: int) -> int:
        """Goes on by at most ``limit`` steps: returns their number."""
        curve = self.curve
        for count in range(limit):
            try:
                ahead = next_point(curve, self.at)
            except RuntimeError:
                ahead = None
            if ahead is not None:
                self.at = ahead
                x = curve.admissible(ahead.r)
                excess = self.system.excess(x)
                if excess < self.least:
                    self.x, self.least = x, excess
            self.ended = ahead is None or self.least <= 1 or ahead.share * curve.size**2 < LEAST * curve.largest**2
            if self.ended:
                return count + 1
        return limit


def central_paths(system: ConeSystem, guess: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Follows paths of a contact problem in turns, until one ends at a solution. Where all end beside one, a path from
    near the nearest impulses follows.

    ``guess`` (m, 1 + k): impulses that some paths start near. Returns the impulses x (m, 1 + k) with the smallest
    natural residual, the guess if no path comes nearer; this residual divided by the allowed one;
    and the number of steps in all.
    """
    best, least, spent, each = guess, system.excess(guess), 0, FIRST
    begun, limit, matrix = least, STEPS[0] + int(STEPS[1] * len(guess)), BodyMatrix(system)
    from_near = lambda x: [CentralPath(system, matrix, size, x) for size in NEAR]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        paths = from_near(guess) + [CentralPath(system, matrix, size) for size in FAR]
        while paths and spent < limit:
            for path in paths:
                spent += path.follow(min(each, limit - spent))
                if not path.ended and path.least > CLOSE:
                    continue
                # the path ends at a solution, but its last points are on it up to rounding only
                found, more = proximal_steps(system, path.x)
                spent += more
                if (excess := system.excess(found)) < least:
                    best, least = found, excess
                if least <= 1:
                    return best, least, spent
            paths, each = [path for path in paths if not path.ended], 2 * each
            if not paths and least < BETTER * begun:
                # rounding ends a path where impulses differ by many digits; one from its end on has another way
                paths, begun = from_near(best), least
    return best, least, spent
