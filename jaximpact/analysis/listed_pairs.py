"""For analyses of motions with neighbour lists: the pairs of bodies as a fixed set of constraints, and the corners
between these constraints.

The set holds the pairs that have an impulse, or are on the list, at some time;
its size grows linearly with the number of bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy
from jax import Array

from ..bodies.neighbours import Neighbours
from ..mechanics.linearisation import Metric, linearise
from ..mechanics.problem import Problem
from ..results import Solution
from ..simulation.validation import check_problem

ROWS_AT_ONCE = 32  # rows that are looked at together
MAX_RANK_CONTACTS = 1000  # contacts of a cluster up to which the rank of their gradients is computed


class SelectedPairs(NamedTuple):
    """Selected pairs of bodies as fixed constraints, for the analyses.

    ``problem``: has these pairs and all obstacles as its m constraints. ``impulse`` (..., k, m), and with friction
    ``friction`` (..., k, m, 1 or 2): impulses accumulated since the start, as in problems without lists. ``ends`` (m,
    2): the two bodies of each constraint, as in `Solution.pairs`.
    """

    problem: Problem
    impulse: np.ndarray
    ends: np.ndarray
    friction: np.ndarray | None = None

    @classmethod
    def of(cls, problem: Problem, solution: Solution, every: bool) -> SelectedPairs:
        """Selects the pairs that have an impulse at some time, or with ``every`` all pairs that are on
        the neighbour list at some time.

        Raises:
            ValueError: the solution is not one of these bodies.
        """
        bodies = problem.bodies
        check_pairs(problem, solution)
        pairs, impulse = np.asarray(solution.pairs), np.asarray(solution.impulse)
        n = bodies.number
        rows = pairs.reshape(-1, *pairs.shape[-2:])
        walls = int(np.sum(rows[0, :, 1] < 0))
        listed = pairs.shape[-2] - walls
        code = pairs[..., :listed, 0].astype(np.int64) * (n + 1) + pairs[..., :listed, 1]
        matters = pairs[..., :listed, 0] < n
        if not every:
            matters &= impulse[..., :listed] > 0
        known = np.unique(code[matters])
        known = known if known.size else np.array([1])  # bodies 0 and 1
        i, j = (x.astype(np.int32) for x in np.divmod(known, n + 1))
        where = np.minimum(np.searchsorted(known, code), known.size - 1)
        stays, places = matters & (known[where] == code), where.reshape(-1, listed)

        def accumulated(x: np.ndarray) -> np.ndarray:
            """Returns running sums over the rows (..., n) of the impulses of the n selected pairs and obstacles; ``x``
            (..., slots): in each row those of the step that ends there, by slot of the list."""
            steps = np.zeros((*x.shape[:-1], known.size + walls), x.dtype)
            flat = steps.reshape(-1, known.size + walls)
            kept = np.where(stays, x[..., :listed], 0).reshape(-1, listed)
            np.add.at(flat, (np.arange(len(flat))[:, None], places), kept)
            steps[..., known.size :] = x[..., listed:]
            return np.cumsum(steps, axis=-2)

        rubbed: Any = solution.friction_impulse
        if rubbed is not None:
            along = np.moveaxis(np.asarray(rubbed), -1, 0)
            rubbed = np.stack([accumulated(x) for x in along], axis=-1)
        # a list of these pairs, which is never renewed
        q = np.asarray(solution.q)
        points = np.asarray(bodies.positions(q[(0,) * (q.ndim - 1)]))
        zero = np.zeros((), q.dtype)
        known_pairs: Any = (i, j, points, zero, zero, np.int32(len(i)), np.int32(0), np.array(False))
        near = problem.near(Neighbours(*known_pairs))
        ends = np.concatenate([np.stack([i, j], axis=1), rows[0, listed:]])
        return cls(near, accumulated(impulse), ends, rubbed)

    def solution(self, solution: Solution) -> Solution:
        """Copy of a solution with the accumulated impulses `impulse` and `friction` in place of its
        rows' impulses of one step."""
        changed: Any = {"impulse": self.impulse, "pairs": None, "friction_impulse": self.friction}
        return replace(solution, **changed)


def is_listed(problem: Problem) -> bool:
    """Whether a problem lists near pairs of bodies; TypeError if it is not a problem."""
    check_problem(problem)
    return problem.listed


def pair_name(ends: np.ndarray) -> str:
    """Name of a contact of listed bodies by its bodies, ``ends`` (2,): the second is -1 - a for obstacle a."""
    i, j = ends.tolist()
    return f"{i}-{j}" if j >= 0 else f"{i}-obstacle {-1 - j}"


def check_pairs(problem: Problem, solution: Solution) -> None:
    """Raises ValueError if a solution cannot belong to the bodies of a problem."""
    bodies = problem.bodies
    q, pairs = np.asarray(solution.q), solution.pairs
    reason = "give the problem that the solution was computed with"
    if pairs is None:
        raise ValueError(
            f"solution does not say which pairs of bodies its impulses are of, and problem lists them; {reason}"
        )
    if q.shape[-1] % bodies.number or int(np.max(pairs, initial=0)) > bodies.number:
        raise ValueError(
            f"solution is of another problem: it has {q.shape[-1]} coordinates, the problem {bodies.number} bodies; "
            f"{reason}"
        )


def every_step(solution: Solution) -> None:
    """Raises ValueError if rows are not all steps: rows of listed bodies hold the impulses of a single step,
    and others would be missed."""
    if solution.origin.every_step is False:
        raise ValueError(
            "solution does not hold every step, and rows of listed bodies hold the impulses of one step alone: solve "
            "with save='all' "
            "(ensemble: save=1)"
        )


def over_rows(problem: Problem, one: Callable) -> Callable:
    """Returns the function ``one`` of a row mapped over rows: by vmap or, for listed bodies, whose arrays are large,
    in small batches."""
    if not problem.gaps.local:
        return jax.vmap(one)
    return lambda *rows: jax.lax.map(lambda row: one(*row), rows, batch_size=ROWS_AT_ONCE)


class PairRow(NamedTuple):
    """The m constraints at one row, linearised at z.

    Attributes:
        at_q, gap: gaps at q and at z (m,).
        diagonal: diagonal of the Delassus matrix (m,).
        gradients: gradients of the gaps, rows of a sparse matrix.
        responses: M^-1 times the gradients, in the same form.
    """

    at_q: np.ndarray
    gap: np.ndarray
    diagonal: np.ndarray
    gradients: scipy.sparse.csr_array
    responses: scipy.sparse.csr_array

    def cosines(self, active: np.ndarray) -> scipy.sparse.coo_array:
        """Cosines between the active constraints that share a body, sparse (a, a)."""
        scale = 1 / np.sqrt(np.maximum(self.diagonal[active], np.finfo(self.diagonal.dtype).tiny))
        product = (self.gradients[active] @ self.responses[active].T).tocoo()
        values = product.data * scale[product.row] * scale[product.col]
        return scipy.sparse.coo_array((values, (product.row, product.col)), shape=product.shape)


def rows_of(problem: Problem, t: Array, q: Array, z: Array, args: object) -> list[PairRow]:
    """Linearises the constraints at every row (t, q, z) of a motion."""

    @jax.jit
    def look(t: Array, q: Array, z: Array) -> tuple:
        return problem.gaps(t, q, args), linearise(problem, Metric.at(problem, z, args), t, z, args)

    found = []
    for row in zip(t, q, z, strict=True):
        at_q, contacts = jax.tree.map(np.asarray, look(*row))
        m, d = contacts.shape
        D = contacts.gi.shape[1]
        coordinate = lambda body, D=D: (body[:, None] * D + np.arange(D)).ravel()
        columns = np.concatenate([coordinate(contacts.i), coordinate(contacts.j)])
        lines = np.tile(np.repeat(np.arange(m), D), 2)
        # an obstacle has no coordinates
        matrix = lambda a, b, at=(lines, columns), d=d, D=D, m=m: scipy.sparse.csr_array(
            (np.concatenate([a.ravel(), b.ravel()]), at), shape=(m, d + D)
        )
        diagonal = np.sum(contacts.gi * contacts.ri + contacts.gj * contacts.rj, axis=1)
        found.append(
            PairRow(at_q, contacts.gap, diagonal, matrix(contacts.gi, contacts.gj), matrix(contacts.ri, contacts.rj))
        )
    return found


def corners(rows: list[PairRow], active: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int, int, float]]]:
    """Returns the rank deficit of the active gradients in each row (k,), and (row, a, b, cosine) of each two active
    constraints that share a body.

    ``active`` (k, m): mask of the active constraints. If some two active constraints of a row share no body, one entry
    (row, a, a, 0) stands for them.
    """
    deficit, found = np.zeros(len(rows), int), []
    for k, row in enumerate(rows):
        chosen = np.flatnonzero(active[k])
        if len(chosen) < 2:
            continue
        cosines = row.cosines(chosen)
        deficit[k] = _deficit(cosines.tocsr(), row.gradients[chosen])
        above = cosines.row < cosines.col
        a, b, values = chosen[cosines.row[above]], chosen[cosines.col[above]], cosines.data[above]
        found += [(k, *pair) for pair in zip(a.tolist(), b.tolist(), values.tolist(), strict=True)]
        if len(values) < len(chosen) * (len(chosen) - 1) // 2:
            # some two contacts share no body: their cosine is zero
            found.append((k, int(chosen[0]), int(chosen[0]), 0.0))
    return deficit, found


def _deficit(cosines: scipy.sparse.csr_array, gradients: scipy.sparse.csr_array) -> int:
    """Rank deficit of the gradients, summed over clusters of contacts that are connected by common bodies.

    For a cluster of more than `MAX_RANK_CONTACTS` contacts it is the lower bound (number of
    contacts - number of coordinates).
    """
    count, label = scipy.sparse.csgraph.connected_components(cosines, directed=False)
    total = 0
    for cluster in range(count):
        some = np.flatnonzero(label == cluster)
        if len(some) <= MAX_RANK_CONTACTS:
            total += len(some) - int(np.linalg.matrix_rank(cosines[some][:, some].toarray(), tol=1e-8, hermitian=True))
        else:
            total += max(0, len(some) - len(np.unique(gradients[some].nonzero()[1])))
    return total
