"""Exact active-set method: tries every active set of few constraints; that of more is guessed, or built up by pivots.

Reference: D. Goldfarb and A. Idnani, A numerically stable dual method for solving strictly convex quadratic programs,
Math. Programming 27 (1983); here on the Delassus tableau (principal pivots, R. W. Cottle and G. B. Dantzig 1968).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import cho_solve

from ...jaxtools import linalg
from ...jaxtools.array_types import B0, I0, B_m, F_m, F_mm
from ...jaxtools.jacobians import SMALL
from ...jaxtools.outlined import outlined
from ..contacts import Contacts
from ..status import Status, as_status
from .solver import ContactSolver, Impulses

FEW = 8  # contacts of the working set that is tried first
ENUMERATE = 3  # contacts up to which all active sets are tried
GUESSES = 6  # active sets tried by factorisation before pivots
SPARE = 8  # contacts of a working set that these leave open
PROXIMAL = 1e-7  # regularisation of the fallback, relative to the diagonal of the Delassus matrix
PROXIMAL_STEPS = 20


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ActiveSet(ContactSolver):
    """Exact solution of the linearised problem; the default.

    For up to three constraints every active set is tried in straight-line code, which costs the same for every lane of
    a batch. For more than eight, an active set is guessed and corrected by the signs of impulses and gap velocities,
    one factorisation each time. If that does not converge, and for four to eight constraints, constraints enter the
    active set one at a time and leave it when their impulse would become negative. Each change is one pivot of O(m^2);
    their number is finite in exact arithmetic for any positive semidefinite Delassus matrix, dependent gradients
    included, and an infeasible linearisation is recognised. Where round-off in nearly dependent gradients leaves a
    residual above the tolerance, proximal iterations reduce it; the status has CONTACTS_NOT_SOLVED only
    if they miss the tolerance too.

    Of many constraints only a working set is solved for, not much larger than the number d of coordinates;
    the other constraints are checked.

    Attributes:
        tolerance: KKT residual [gap velocity]; by default 1e-12 of the speed at which contacts close.
        max_linearisations: SQP iterations for curved constraints.
    """

    tolerance: float | None = None
    max_linearisations: int = 50

    def direct(self, m: int) -> bool:
        return m <= ENUMERATE

    def working_sets(self, m: int, d: int) -> tuple[int, ...]:
        """Returns the increasing sizes of the working sets that are tried, for m constraints on d coordinates.

        The last one has room for 1.5 d constraints, at least 24: at most d gradients are independent, but in dense
        packings of spheres a few more contacts are closed.
        """
        size = min(m, max(24, d + d // 2))
        return (FEW, size) if size > 32 else (size,)

    def impulses(self, contacts: Contacts, offset: F_m, tolerance: Array | float, guess: F_m) -> Impulses:
        """Solves as `ContactSolver.impulses`; the initial active set is that of the non-zero impulses in ``guess``,
        if there are any."""
        m, d = contacts.shape
        a = contacts.delassus()
        if m <= ENUMERATE:
            return enumerate_sets(a, offset)
        zero = jnp.zeros((), jnp.int32)
        start = Attempt(guess, jnp.zeros((), bool), zero, zero)
        if m > SMALL:
            start = guess_active_set(a, offset, tolerance, start, max(d, m - SPARE))
        return _solve_by_pivots(a, offset, tolerance, start)


class Attempt(NamedTuple):
    """Result of one attempt at a contact problem: impulses (m,), whether they solve it, iterations and status bits."""

    impulse: F_m
    solved: B0
    iterations: I0
    status: I0


def solves(a: F_mm, b: F_m, x: F_m, tolerance: Array | float) -> B0:
    """Tests whether impulses x >= 0 (m,) solve 0 <= x _|_ a x + b >= 0 to the tolerance or round-off, ()."""
    residual = jnp.abs(jnp.minimum(a @ x + b, linalg.diagonal(a) * x))
    return jnp.all(residual <= jnp.maximum(tolerance, 32 * jnp.finfo(b.dtype).eps * (jnp.abs(a) @ x + jnp.abs(b))))


def guess_active_set(a: F_mm, b: F_m, tolerance: Array | float, start: Attempt, most: int) -> Attempt:
    """Makes a few iterations of the primal-dual active-set method (M. Hintermueller, K. Ito, K.
    Kunisch, SIAM J. Optim. 13 (2002)).

    ``a`` (m, m) and ``b`` (m,): Delassus matrix and offset, as in `solves`; ``start``: the attempt whose impulses give
    the first active set. Returns the last attempt. It counts as unsolved if the iterations have not converged, or if
    more than ``most`` contacts have impulses: the caller then goes on with `pivot_and_refine`, which gives impulses to
    contacts with independent gradients only, so that the working set has room for other contacts.
    """
    # regularised against dependent gradients; each factorisation corrects the impulses of the one before
    diagonal, none = linalg.diagonal(a), jnp.zeros_like(a)
    shifted = diagonal + jnp.maximum(1e-12, 64 * jnp.finfo(b.dtype).eps) * diagonal

    def body(carry: tuple[B_m, Attempt]) -> tuple[B_m, Attempt]:
        closed, now = carry
        rows, columns = (lax.broadcast_in_dim(closed, a.shape, (axis,)) for axis in (0, 1))
        matrix = linalg.on_diagonal(jnp.where(closed, shifted, 1), lax.select(rows & columns, a, none))
        factor = linalg.triangular_factor(matrix)
        x = jnp.where(closed, now.impulse, 0)
        change = cho_solve((factor, True), jnp.where(closed, a @ x + b, 0))
        x = x - change
        impulse = jnp.maximum(x, 0)
        solved = solves(a, b, impulse, tolerance) & (jnp.sum(impulse > 0) <= most)
        closed = jnp.where(closed, x > 0, a @ x + b < -tolerance)
        return closed, Attempt(impulse, solved, now.iterations + 1, now.status)

    def continues(carry: tuple[B_m, Attempt]) -> B0:
        _, now = carry
        return ~now.solved & (now.iterations < GUESSES)

    # without impulses to start from, or if none of them is needed: contacts with clearly negative offset
    known = start.impulse > 0
    closed = jnp.where(jnp.any(known & (b < 0)), known, b < 0.1 * jnp.max(-b))
    return lax.while_loop(continues, body, (closed, start))[1]


def pivot_and_refine(
    a: F_mm, b: F_m, tolerance: Array | float, start: Attempt, pivots: Callable[..., Impulses] | None = None
) -> Impulses:
    """Solves 0 <= x _|_ a x + b >= 0 by the dual active-set method, then by proximal iterations until
    the residual is small enough.

    Returns the impulses of ``start`` if it is solved already. ``pivots``: another function to call in place of
    `dual_active_set`. A proximal iteration solves the problem with a + r D in place of a and b - r D x in place of b,
    with the diagonal D of a, the latest impulses x and a small number r: gradients are then no longer dependent.
    """
    shift = jnp.maximum(PROXIMAL, 64 * jnp.finfo(b.dtype).eps) * linalg.diagonal(a)

    def body(carry: tuple[I0, Attempt]) -> tuple[I0, Attempt]:
        k, now = carry
        r = jnp.where(k == 0, 0.0, shift)
        found = (pivots or dual_active_set)(
            linalg.on_diagonal(linalg.diagonal(a) + r, a), b - r * now.impulse, tolerance
        )
        solved = solves(a, b, found.impulse, tolerance)
        return k + 1, Attempt(found.impulse, solved, now.iterations + found.iterations, found.status)

    def continues(carry: tuple[I0, Attempt]) -> B0:
        k, now = carry
        feasible = (now.status & int(Status.CONTACTS_NOT_SOLVED)) == 0
        return ~now.solved & (k <= PROXIMAL_STEPS) & feasible

    _, found = lax.while_loop(continues, body, (jnp.zeros((), jnp.int32), start))
    return Impulses(found.impulse, found.iterations, found.status)


_solve_by_pivots = outlined(pivot_and_refine)


@outlined
def enumerate_sets(a: F_mm, b: F_m) -> Impulses:
    """Solves 0 <= x _|_ a x + b >= 0 by trying all 2^m active sets, in unrolled code, for m <= 3;
    returns the one of least residual."""
    m = b.shape[0]
    best, best_score = [jnp.zeros((), b.dtype)] * m, jnp.max(-b)
    for size in range(1, m + 1):
        for active in itertools.combinations(range(m), size):
            x, regular = linalg.eliminate([[a[i, j] for j in active] for i in active], [-b[i] for i in active])
            violations = [-a[i, i] * value for i, value in zip(active, x, strict=True)]
            for i in set(range(m)) - set(active):
                violations.append(-b[i] - sum(a[i, j] * value for j, value in zip(active, x, strict=True)))
            score = jnp.where(regular, jnp.max(jnp.stack(violations)), jnp.inf)
            better = score < best_score
            values = dict(zip(active, x, strict=True))
            best = [jnp.where(better, values.get(i, 0.0), best[i]) for i in range(m)]
            best_score = jnp.where(better, score, best_score)
    # negative impulses within round-off are zero
    impulse = jnp.maximum(jnp.stack(best), 0)
    scale = jnp.max(jnp.abs(b))
    infeasible = best_score > jnp.sqrt(jnp.finfo(b.dtype).eps) * scale
    return Impulses(impulse, jnp.ones((), jnp.int32), as_status(infeasible, Status.CONTACTS_NOT_SOLVED))


def dual_active_set(a: F_mm, b: F_m, tolerance: Array | float) -> Impulses:
    """Solves 0 <= x _|_ a x + b >= 0 by the method of Goldfarb and Idnani on the
    principal-pivot tableau p = T y + beta.

    For each constraint, p holds its impulse if it is active, else its gap velocity; y holds the other one of these two,
    which is zero. Only the constraint r that enters the active set has a nonzero entry of y: its impulse theta,
    which is raised from zero.
    """
    m = b.shape[0]
    eps = jnp.finfo(b.dtype).eps
    diagonal = jnp.maximum(linalg.diagonal(a), jnp.finfo(b.dtype).tiny)
    index = jnp.arange(m)
    limit = 8 * m + 16
    size = jnp.max(jnp.abs(b))
    # a violation within round-off is none: dependent constraints would enter and leave for ever
    threshold = jnp.maximum(0.1 * tolerance, 8 * eps * size)

    def pivot(t: F_mm, beta: F_m, k: I0) -> tuple[F_mm, F_m]:
        p, row, column = t[k, k], t[k], t[:, k]
        t_new = t - jnp.outer(column, row) / p
        beta_new = beta - column * (beta[k] / p)
        on_row, on_column = (index == k)[:, None], (index == k)[None, :]
        t_new = jnp.where(on_row, -row[None, :] / p, jnp.where(on_column, column[:, None] / p, t_new))
        t_new = jnp.where(on_row & on_column, 1 / p, t_new)
        return t_new, jnp.where(index == k, -beta[k] / p, beta_new)

    def body(carry: tuple) -> tuple:
        count, t, beta, active, r, _, _ = carry
        # choose what enters: the largest violation in the metric of the constraint
        violation = jnp.where(active, 0.0, -beta) / jnp.sqrt(diagonal)
        r = jnp.where(r < 0, jnp.argmax(violation), r)
        column = t[:, r]
        # theta at which each active impulse reaches zero, and at which the entering gap velocity does
        closing = active & (column < 0)
        ratio = jnp.where(closing, -beta / jnp.where(closing, column, 1), jnp.inf)
        leaving = jnp.argmin(ratio)
        curvature = column[r]
        full = jnp.where(curvature > 64 * eps * diagonal[r], -beta[r] / curvature, jnp.inf)
        blocked = ratio[leaving] < full
        stuck = ~jnp.isfinite(jnp.minimum(full, ratio[leaving]))
        k = jnp.where(blocked, leaving, r)
        t_new, beta_new = pivot(t, beta, k)
        active_new = active.at[k].set(~blocked)
        r_new = jnp.where(blocked, r, -1)
        violated = stuck & (-beta[r] > jnp.sqrt(eps) * size)
        t, beta = jnp.where(stuck, t, t_new), jnp.where(stuck, beta, beta_new)
        active = jnp.where(stuck, active, active_new)
        unfinished = (r_new >= 0) | jnp.any(~active & (beta < -threshold))
        return count + 1, t, beta, active, r_new, unfinished & ~stuck, violated

    def continues(carry: tuple) -> B0:
        count, *_, unfinished, _ = carry
        return unfinished & (count < limit)

    none = jnp.array(-1, index.dtype)
    start = (jnp.zeros((), jnp.int32), a, b, jnp.zeros(m, bool), none, jnp.any(b < -threshold), jnp.array(False))
    count, t, beta, active, *_, infeasible = lax.while_loop(continues, body, start)
    impulse = jnp.where(active, beta, 0.0)
    # one step of refinement with the tableau's inverse of A on the active set
    defect = jnp.where(active, a @ impulse + b, 0.0)
    impulse = jnp.where(active, jnp.maximum(impulse - t @ defect, 0.0), 0.0)
    return Impulses(impulse, count, as_status(infeasible, Status.CONTACTS_NOT_SOLVED))
