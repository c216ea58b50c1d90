"""Exact active-set method: enumeration of active sets for few constraints, dual active set with pivots beyond.

Reference: D. Goldfarb and A. Idnani, A numerically stable dual method for solving strictly convex quadratic programs,
Math. Programming 27 (1983); here on the Delassus tableau (principal pivots, R. W. Cottle and G. B. Dantzig 1968).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import linalg
from ..contact import Contacts
from ..status import Status
from .base import Impulses, as_status

ENUMERATE = 3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ActiveSet:
    """Exact solution of the linearised problem; the default.

    Up to three constraints every active set is tried in straight-line code, which costs the same for every lane of a
    batch. Beyond, constraints enter one at a time and leave as soon as their impulse would turn negative: one pivot of
    O(m^2) for each, finite in exact arithmetic for any positive semidefinite Delassus matrix, dependent gradients
    included; an infeasible linearisation is recognised.

    Attributes:
        tolerance: KKT residual [gap velocity].
        max_linearisations: SQP iterations for curved constraints.
    """

    tolerance: float = 1e-12
    max_linearisations: int = 50

    def direct(self, m: int) -> bool:
        return m <= ENUMERATE

    def solve(self, contacts: Contacts, offset: Array, tolerance: Array) -> Impulses:
        if offset.shape[0] <= ENUMERATE:
            return enumerate_sets(contacts.delassus(), offset)
        return dual_active_set(contacts.delassus(), offset, tolerance)


def enumerate_sets(a: Array, b: Array) -> Impulses:
    """The best of the 2^m active sets, unrolled: m <= 3."""
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
    # round-off below zero is no pull
    impulse = jnp.maximum(jnp.stack(best), 0)
    scale = jnp.max(jnp.abs(b))
    infeasible = best_score > jnp.sqrt(jnp.finfo(b.dtype).eps) * scale
    return Impulses(impulse, jnp.ones((), jnp.int32), as_status(infeasible, Status.INFEASIBLE))


def dual_active_set(a: Array, b: Array, tolerance: Array) -> Impulses:
    """Goldfarb-Idnani on the principal-pivot tableau x = T y + beta.

    x holds the impulses of the active set and the gap velocities of the others, y their partners; the partner of the
    entering constraint r is its impulse theta, driven up from zero.
    """
    m = b.shape[0]
    eps = jnp.finfo(b.dtype).eps
    diagonal = jnp.maximum(jnp.diagonal(a), jnp.finfo(b.dtype).tiny)
    index = jnp.arange(m)
    limit = 8 * m + 16
    size = jnp.max(jnp.abs(b))
    # a violation within round-off is none: dependent constraints would enter and leave for ever
    threshold = jnp.maximum(0.1 * tolerance, 8 * eps * size)

    def pivot(t, beta, k):
        p, row, column = t[k, k], t[k], t[:, k]
        t_new = t - jnp.outer(column, row) / p
        beta_new = beta - column * (beta[k] / p)
        on_row, on_column = (index == k)[:, None], (index == k)[None, :]
        t_new = jnp.where(on_row, -row[None, :] / p, jnp.where(on_column, column[:, None] / p, t_new))
        t_new = jnp.where(on_row & on_column, 1 / p, t_new)
        return t_new, jnp.where(index == k, -beta[k] / p, beta_new)

    def body(carry):
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

    def going(carry):
        count, *_, unfinished, _ = carry
        return unfinished & (count < limit)

    none = jnp.array(-1, index.dtype)
    start = (jnp.zeros((), jnp.int32), a, b, jnp.zeros(m, bool), none, jnp.any(b < -threshold), jnp.array(False))
    count, t, beta, active, *_, infeasible = lax.while_loop(going, body, start)
    impulse = jnp.where(active, beta, 0.0)
    # one step of refinement with the tableau's inverse of A on the active set
    defect = jnp.where(active, a @ impulse + b, 0.0)
    impulse = jnp.where(active, jnp.maximum(impulse - t @ defect, 0.0), 0.0)
    return Impulses(impulse, count, as_status(infeasible, Status.INFEASIBLE))
