"""Hypotheses of the convergence theorems, checked along a computed motion (reported, never assumed).

- Active gradients must be linearly independent (Paoli 2010, H3).
- For e > 0 they must be orthogonal in the metric M^-1 (Paoli 2010, H6): otherwise the exact motion does not depend
  continuously on its data and no convergence is to be expected.
- For e = 0 no two active gradients may have a positive product in M^-1, an obtuse corner of the admissible set: there
  the impact law of the limit is not Moreau's and depends on the discretisation.
- M must be positive definite, and gradients bounded away from zero near the boundary.

With friction, Painlevé's condition is checked for each contact: mu |A_nt| < A_nn, with A its block of the Delassus
matrix, under which a single contact in the plane has exactly one solution in a step.
Notes say which theorems cover the motion.

Another check is whether h is small enough: penetrations, which add up along chains of contacts, should be small
compared with the motion.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.warnings import JaximpactWarning
from ..mechanics.friction import Slip, distance_status
from ..mechanics.linearisation import Metric, linearise
from ..mechanics.problem import Problem
from ..results import Arrays, Result, Solution
from ..simulation.canonical_arrays import cast_numbers, split_friction, split_restitution
from .checks import check_gaps, check_numbers_of_contacts, check_result, check_solution, distance, takes_study
from .listed_pairs import SelectedPairs, is_listed, over_rows, pair_name, rows_of
from .listed_pairs import corners as listed_corners

ANGLE = 1e-6  # a cosine below this counts as orthogonal
GRADIENT = 1e-8  # a gradient shorter than this, against the longest, counts as zero
DEEP = 0.25, 10.0  # times the widest gap: penetrations that spoil a motion, and those of contacts that never opened
MANY = 20  # constraints that a message names
NEAR = 1e-3  # of the widest gap: a contact counts as touching
NEWTON = 80  # steps to a boundary: towards that of q^k the distance shrinks by 1 - 1/k in each


@dataclass(frozen=True, repr=False)
class Hypotheses(Result):
    """Result of `check_hypotheses`: findings at the rows of a motion where constraints are active.

    Attributes:
        active: whether each constraint is active in each row (k, m).
        rank_deficit: number of active gradients minus their rank in each row (k,).
        cosine: extreme cosines between two active gradients in M^-1: the smallest and the largest, NaN where no row has
            two active constraints.
        worst: rows, pairs of constraints and cosines of the corners that fail, worst first: (row, a, b, cosine).
        failures: the hypotheses that fail, in words; empty where all hold.
        painleve: with friction, the largest mu |A_nt| / A_nn of each contact over the rows where it is active (m,), NaN
            where it never is; else None.
        notes: with friction, which theorems cover such a motion and what is not proved, in words.
        pairs: with listed bodies, the bodies of each of the m constraints (m, 2), as in `Solution.pairs`: every pair
            that was on the list. Cosines are then of contacts that share a body, and a cluster of more than 1000
            contacts has its rank bounded by its coordinates.
    """

    active: np.ndarray
    rank_deficit: np.ndarray
    cosine: tuple[float, float]
    worst: tuple[tuple[int, int, int, float], ...]
    failures: tuple[str, ...]
    pairs: np.ndarray | None = None
    painleve: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    def _arrays(self) -> Arrays:
        of_pairs = {"pairs": (("constraint", "end"), self.pairs), "painleve": (("constraint",), self.painleve)}
        return self._along("row constraint", "active") | self._along("row", "rank_deficit") | of_pairs

    def _columns(self) -> dict[str, np.ndarray]:
        return {name: np.array([x[i] for x in self.worst]) for i, name in enumerate(("row", "a", "b", "cosine"))}

    def __str__(self) -> str:
        return "\n".join((*(self.failures or ("no hypothesis fails along this motion",)), *self.notes))


@takes_study
def check_hypotheses(
    problem: Problem,
    solution: Solution,
    *,
    args: object = None,
    e: ArrayLike | None = None,
    friction: ArrayLike | None = None,
    tolerance: float | None = None,
) -> Hypotheses:
    """Checks the hypotheses of the convergence theorems along one motion, and warns where one fails.

    Args:
        problem: the mechanical system.
        solution: one motion of it (no lane axis), saved often enough to see its corners.
        args, e, friction: as they were given to `solve`.
        tolerance: a gap below it counts as active [unit of f]; by default twice the largest distance a gap moves
            between rows, so that a corner passed between two rows is seen.

    Returns:
        `Hypotheses`. A `JaximpactWarning` names the constraints of every kind of corner that fails.

    Raises:
        ValueError, TypeError: the solution is a batch, or not one of this problem with these args;
            tolerance is negative.
    """
    check_result("solution", solution, Solution, "solve")
    if np.ndim(solution.q) != 2:
        raise ValueError(f"solution must be one motion with q of shape (k, d), got {np.shape(solution.q)}: pick a lane")
    ends = None
    if is_listed(problem):
        chosen = SelectedPairs.of(problem, solution, every=True)
        problem, solution, ends = chosen.problem, chosen.solution(solution), chosen.ends
    check_solution(problem, solution, args)
    t, q, z = (jnp.asarray(x) for x in (solution.t, solution.q, solution.z))
    args = cast_numbers("args", args, z.dtype)
    check_numbers_of_contacts(np.shape(solution.impulse)[1], e, friction)
    e = float(np.max(np.asarray(split_restitution(problem, e, z.dtype)[1])))

    rows, cosines = [], np.zeros(0)
    if ends is None:
        at_q, gap, cosines, diagonal, terms = _measure_row(problem, t, q, z, args)
        check_gaps(solution, at_q)
    else:
        rows = rows_of(problem, t, q, z, args)
        at_q, gap, diagonal = (np.stack(x) for x in list(zip(*rows, strict=True))[:3])
        terms = np.abs(np.asarray(z))  # distances, of coordinates
    k, m = gap.shape
    if tolerance is not None:
        tolerance = distance("tolerance", tolerance)
    else:
        tolerance = 2 * float(np.max(np.abs(np.diff(gap, axis=0)), initial=0.0)) if k > 1 else 0.0
    active = gap <= tolerance

    deficit, corners = _corners(active, cosines) if ends is None else listed_corners(rows, active)
    values = [corner[3] for corner in corners]
    cosine = (min(values), max(values)) if values else (float("nan"), float("nan"))

    flat = _flat(problem, args, t, z, gap, active, diagonal) if m and ends is None else []
    if ends is not None:
        flat = np.flatnonzero(np.any(active & (diagonal < GRADIENT**2 * np.max(diagonal)), axis=0)).tolist()
    skew = [corner for corner in corners if abs(corner[3]) > ANGLE]
    obtuse = [corner for corner in corners if corner[3] > ANGLE]
    opposed = [corner for corner in corners if corner[3] < ANGLE - 1]
    label = lambda a: _name(problem, ends, a).removeprefix("constraint ")
    failures = _failures(label, active, deficit, flat, opposed, skew if e > 0 else obtuse, e)
    sunk, widest = float(solution.penetration), float(np.max(at_q, initial=0.0))
    # a body at rest opens and penetrates by the round-off of its place, and of what contacts keep it from falling
    times, impulse = np.asarray(solution.t), np.asarray(solution.impulse)
    kept = float(times[-1] - times[0]) * float(np.max(diagonal * np.abs(impulse), initial=0.0)) if ends is None else 0.0
    rounding = 1e3 * float(np.finfo(z.dtype).eps) * (float(np.max(terms, initial=0.0)) + kept)
    if max(DEEP[0] * widest, rounding) < sunk < DEEP[1] * widest:
        failures.append(
            f"h is too large: the motion penetrates by {sunk:.3g}, and no gap opens wider than {widest:.3g} "
            "(penetrations of order "
            "h add up along chains of contacts): take a smaller h, or a scheme whose z is admissible"
        )
    bound: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    if problem.rubs:
        problem, mu = split_friction(problem, friction, z.dtype)
        problem = problem if mu is None else problem.replace(friction=mu)
        bound = _painleve(problem, t, z, args, active)
        jammed = [int(a) for a in np.flatnonzero(bound >= 1)]
        if jammed:
            named = ", ".join(f"{_name(problem, ends, a)} ({bound[a]:.3g})" for a in jammed[:MANY])
            failures.append(
                f"friction beyond Painleve's bound, mu |A_nt| >= A_nn, at {named}: sliding may have no solution or "
                "two, and contact may jam without a "
                "collision"
            )
        if ends is None:
            touching = active & (gap <= max(NEAR * widest, sunk, rounding))
            failures.extend(_no_distances(problem, t, z, args, touching))
        notes = _of_friction(problem, bound, e, ends)
    for failure in failures:
        warnings.warn(failure, JaximpactWarning, stacklevel=2)
    worst = tuple(sorted(skew if e > 0 else obtuse, key=lambda corner: -abs(corner[3])))
    return Hypotheses(active, deficit, cosine, worst, tuple(failures), ends, bound, notes)


def _painleve(problem: Problem, t: Array, z: Array, args: object, active: np.ndarray) -> np.ndarray:
    """Largest mu |A_nt| / A_nn of each contact (m,) over the rows where it is active (k, m), NaN where it never is."""

    def look(t: Array, q: Array) -> Array:
        metric = Metric.at(problem, q, args, t)
        contacts: Any = linearise(problem, metric, t, q, args)
        slip: Any = Slip.at(problem, metric, t, q, jnp.zeros_like(q), args)
        normal = contacts.diagonal()
        if problem.gaps.local:
            both = [jnp.sum(row.gi * contacts.ri + row.gj * contacts.rj, axis=1) for row in slip.tangents]
            coupling = jnp.stack(both, axis=1)
        else:
            coupling = jnp.einsum("mkd,dm->mk", slip.jacobian, contacts.response)
        return slip.friction * jnp.linalg.norm(coupling, axis=1) / jnp.where(normal > 0, normal, jnp.inf)

    ratio = np.where(active, np.asarray(jax.jit(over_rows(problem, look))(t, z)), -np.inf).max(axis=0, initial=-np.inf)
    return np.where(np.isfinite(ratio), ratio, np.nan)


def _no_distances(problem: Problem, t: Array, z: Array, args: object, touching: np.ndarray) -> list[str]:
    """Says which gaps are seen to be no distances in the rows where they are ``touching`` (k, m),
    which makes friction another than stated."""

    def look(t: Array, q: Array) -> Array:
        metric = Metric.at(problem, q, args, t)
        contacts: Any = linearise(problem, metric, t, q, args)
        one = lambda closed: distance_status(problem, metric, contacts.jacobian, closed, t, q, args)
        return jax.vmap(one)(jnp.eye(len(contacts.gap), dtype=bool)) != 0

    found = np.any(np.asarray(jax.jit(jax.vmap(look))(t, z)) & touching, axis=0)
    if not np.any(found):
        return []
    named = ", ".join(problem.naming.constraint(int(a)) for a in np.flatnonzero(found)[:MANY])
    return [
        f"friction takes gaps for distances, and the gradient of {named} at contact has another length than theirs, or "
        "another direction than the normal "
        "velocity of slip: divide the gap by it, or give slip=lambda t, q, v, args: (normal, tangential)"
    ]


def _of_friction(problem: Problem, bound: np.ndarray, e: float, ends: np.ndarray | None) -> tuple[str, ...]:
    """Which theorems cover a motion with friction and what is not proved, in words; ``bound`` (m,):
    Painlevé's ratio of each contact."""
    met = sorted((a for a in range(len(bound)) if np.isfinite(bound[a])), key=lambda a: -bound[a])
    ratios = ", ".join(f"{_name(problem, ends, a)} {bound[a]:.3g}" for a in met[:MANY])
    found = [
        "Painleve's ratio mu |A_nt| / A_nn, below 1 of a contact that has one solution: "
        f"{ratios or 'no contact is active'}"
    ]
    if e == 0:
        text = "proved with friction and e = 0: limits of steps solve the problem (Stewart 1998), of one contact steps converge (Monteiro Marques 1993)"  # noqa: E501
    else:
        text = "friction with e > 0: no theorem of convergence"
    return (*found, f"{text}; not proved: orders, and derivatives (measured: the manual's page on friction)")


def _name(problem: Problem, ends: np.ndarray | None, a: int) -> str:
    """Name of contact ``a`` in messages; with listed bodies it is made of the bodies, from ``ends`` (m, 2)."""
    return problem.naming.constraint(a) if ends is None else pair_name(ends[a])


def _measure_row(problem: Problem, t: Array, q: Array, z: Array, args: object) -> tuple[np.ndarray, ...]:
    """For each row: gaps at q, gaps at z, cosines between all gradients, the Delassus diagonal, and the magnitude of
    the terms of each gap."""

    @jax.jit
    @jax.vmap
    def look(t: Array, q: Array, z: Array) -> tuple[Array, ...]:
        contacts = linearise(problem, Metric.at(problem, z, args, t), t, z, args)
        terms = contacts.velocity_terms(z)
        return problem.gaps(t, q, args), contacts.gap, contacts.angles(), contacts.diagonal(), terms

    return tuple(np.asarray(x) for x in look(t, q, z))


def _failures(
    name: Callable[[int], str],
    active: np.ndarray,
    deficit: np.ndarray,
    flat: list[int],
    opposed: list[tuple],
    corners: list[tuple],
    e: float,
) -> list[str]:
    """Failed hypotheses in words.

    ``active`` (k, m): mask of the active constraints; ``deficit`` (k,): rank deficit of their gradients; ``flat``:
    constraints whose gradient vanishes. ``opposed`` and ``corners``: (row, a, b, cosine) of active pairs with opposite
    gradients, and of those that the theorems exclude for this restitution. ``name``: what a contact is called.
    """

    def contact_labels(constraints: Iterable[int]) -> str:
        first = [name(int(a)) for a in islice(constraints, MANY)]
        return ", ".join(first) + (", ..." if len(first) == MANY else "")

    def pair_labels(selected: list[tuple[int, int, int, float]]) -> str:
        pairs = sorted({(a, b) for _, a, b, _ in selected})
        return ", ".join(f"({contact_labels(pair)})" for pair in pairs[:6]) + (", ..." if len(pairs) > 6 else "")

    failures = []
    if np.any(deficit > 0):
        row = int(np.argmax(deficit))
        text = (
            f"dependent active gradients (H3): constraints [{contact_labels(np.flatnonzero(active[row]))}] at row {row}"
        )
        if opposed:
            text += (
                f"; opposite gaps are closed together, constraints {pair_labels(opposed)}, and which of them pushes is "
                "not defined: eliminate "
                "the coordinate that they hold"
            )
        failures.append(text)
    if flat:
        failures.append(
            f"a gradient vanishes where its gap closes, constraints [{contact_labels(flat)}]: the boundary is not "
            "regular there (a gap like q^2 or "
            "q^3), and two schemes may find different motions; write the gap as a distance, q in place of q^2"
        )
    if e > 0 and corners:
        failures.append(
            f"e > 0 and active gradients that are not orthogonal in M^-1 (H6), constraints {pair_labels(corners)}: the "
            "exact motion "
            "is not continuous in its data there; two schemes, or two step sizes, may find different motions"
        )
    if e == 0 and corners:
        failures.append(
            "e = 0 and an obtuse corner (positive product of active gradients in M^-1), constraints "
            f"{pair_labels(corners)}: the "
            "velocity after it depends on the scheme and on its start"
        )
    return failures


def _corners(active: np.ndarray, cosines: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int, int, float]]]:
    """Rank deficit of the active gradients in each row (k,), and (row, a, b, cosine) of every
    pair of active constraints."""
    deficit = np.zeros(len(active), int)
    corners = []
    for row in map(int, np.flatnonzero(active.sum(axis=1) > 1)):
        chosen = np.flatnonzero(active[row])
        block = cosines[row][np.ix_(chosen, chosen)]
        deficit[row] = len(chosen) - np.linalg.matrix_rank(block, tol=1e-8, hermitian=True)
        corners += [
            (row, int(chosen[i]), int(chosen[j]), float(block[i, j]))
            for i in range(len(chosen))
            for j in range(i + 1, len(chosen))
        ]
    return deficit, corners


def _flat(
    problem: Problem, args: object, t: Array, z: Array, gap: np.ndarray, active: np.ndarray, diagonal: np.ndarray
) -> list[int]:
    """Returns the constraints whose gradient vanishes on their boundary,
    at the point that Newton's method finds from the nearest row.

    At a regular boundary the gradient keeps its size; at a flat one the distance and the gradient
    both shrink with every iteration.
    """
    nearest = np.argmin(np.where(active, np.abs(gap), np.inf), axis=0)
    largest = np.max(np.abs(diagonal), axis=0)

    @jax.jit
    @jax.vmap
    def meet(t: Array, q: Array, which: Array) -> tuple[Array, Array]:
        def step(_: int, q: Array) -> Array:
            contacts = linearise(problem, Metric.at(problem, q, args, t), t, q, args)
            diagonal = contacts.diagonal()[which]
            length = jnp.where(diagonal > 0, contacts.gap[which] / jnp.where(diagonal > 0, diagonal, 1), 0)
            return q - contacts.jump(jnp.zeros_like(contacts.gap).at[which].set(length))

        q = jax.lax.fori_loop(0, NEWTON, step, q)
        contacts = linearise(problem, Metric.at(problem, q, args, t), t, q, args)
        return contacts.gap[which], contacts.diagonal()[which]

    left, there = (np.asarray(x) for x in meet(t[nearest], z[nearest], jnp.arange(gap.shape[1])))
    closed = np.abs(left) <= GRADIENT * np.maximum(np.max(np.abs(gap), axis=0), np.finfo(gap.dtype).tiny)
    flat = closed & (np.abs(there) < GRADIENT**2 * largest) & active.any(axis=0)
    flat |= np.any(active & (diagonal < GRADIENT**2 * np.max(largest)), axis=0)
    return [int(i) for i in np.flatnonzero(flat)]
