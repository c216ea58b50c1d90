"""Planar friction of one or two contacts in closed form: all combinations of their modes are tried,
in straight-line code.

A contact is open, sticks, or slips in one of two directions, which makes 4 or 16 linear problems. Tangential impulses
of contacts that slip are multiples of the normal ones, those of contacts that stick are eliminated, and one or two
normal impulses are left as unknowns. The cost is the same for every lane of a batch. One contact has exactly one
solution where mu |A_nt| < A_nn (Painleve's bound).
"""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
from jax import Array

from ....jaxtools.array_types import F0, F_m, F_mr, F_nn
from .cones import residual

ENUMERATE = 2  # contacts
CANCELLED = 1024  # roundings of its terms, below which a sum is zero


def enumerate_modes(a: F_nn, b: F_mr, mu: F_m, guess: F_mr, tolerance: F0) -> F_mr:
    """Solves w = A x + b under Coulomb's law for the impulses x (m, 2) of m <= 2 contacts in the plane.

    ``a`` (2 m, 2 m), ordered contact by contact: normal, then tangent; ``b`` (m, 2); ``mu`` (m,); ``tolerance`` () of
    the natural residual. Where impulses are not unique within a mode, it finds the impulses nearest to ``guess`` (m,
    2). Where several modes solve the problem to the tolerance, it returns the impulses that are nearest to the guess.
    """
    m = len(b)
    every = range(m)
    modes = np.array(list(itertools.product(("open", "sticks", "slips +", "slips -"), repeat=m))).T
    closed, sticks = modes != "open", modes == "sticks"
    # x_t of a contact that slips is slope x_n
    slope = [mu[i] * ((modes[i] == "slips -") * 1.0 - (modes[i] == "slips +") * 1.0).astype(b.dtype) for i in every]
    normal = lambda i, j: a[2 * i, 2 * j] + a[2 * i, 2 * j + 1] * slope[j]  # w_n by x_n and its slip
    sideways = lambda i, j: a[2 * i + 1, 2 * j] + a[2 * i + 1, 2 * j + 1] * slope[j]
    # the unknown is the change of the guess, after removing the impulses that the mode forbids
    xn = [jnp.where(closed[i], guess[i, 0], 0) for i in every]
    xt = [jnp.where(sticks[i], guess[i, 1], slope[i] * xn[i]) for i in every]
    wn, wt = (
        [b[i, p] + sum(a[2 * i + p, 2 * j] * xn[j] + a[2 * i + p, 2 * j + 1] * xt[j] for j in every) for i in every]
        for p in (0, 1)
    )
    # sticking: dx_t = rest + sum_j carried[j] dx_n[j]
    compliance = _pseudo_inverse(
        [[jnp.where(sticks[i] & sticks[j], a[2 * i + 1, 2 * j + 1], 0) for j in every] for i in every]
    )
    rest = _solved(compliance, wt)
    carried = [_solved(compliance, [sideways(i, j) for i in every]) for j in every]
    reduced = lambda i, j: _cancelled(normal(i, j), [a[2 * i, 2 * k + 1] * carried[j][k] for k in every])
    matrix = [[jnp.where(closed[i] & closed[j], reduced(i, j), 0) for j in every] for i in every]
    change = _solved(
        _pseudo_inverse(matrix), [wn[i] + sum(a[2 * i, 2 * k + 1] * rest[k] for k in every) for i in every]
    )
    along = [rest[k] + sum(carried[j][k] * change[j] for j in every) for k in every]
    xn = [xn[i] + change[i] for i in every]
    xt = [jnp.where(sticks[i], xt[i] + along[i], slope[i] * xn[i]) for i in every]
    return _choose(a, b, mu, guess, tolerance, [jnp.stack(pair, axis=-1) for pair in zip(xn, xt, strict=True)])


def _choose(a: F_nn, b: F_mr, mu: F_m, guess: F_mr, tolerance: F0, found: list[Array]) -> F_mr:
    """Returns the impulses (m, 2) in that combination of modes which solves the problem and is nearest to the guess; if
    none solves it, in the one with the least residual.

    ``found``: for each contact its impulses in all combinations of modes, (combinations, 2);
    other arguments as in `enumerate_modes`.
    """
    m = len(b)
    parts = [x[:, p] for x in found for p in range(2)]
    wrong, change = jnp.zeros_like(parts[0]), jnp.zeros_like(parts[0])
    for i, x in enumerate(found):
        w = [b[i, p] + sum(a[2 * i + p, j] * parts[j] for j in range(2 * m)) for p in range(2)]
        scale = jnp.maximum(a[2 * i, 2 * i], a[2 * i + 1, 2 * i + 1])
        left = residual(jnp.stack(w, axis=-1), scale * x, mu[i])
        wrong = jnp.maximum(wrong, jnp.max(jnp.abs(left), axis=-1))
        change = change + jnp.sum((x - guess[i][None, :]) ** 2, axis=-1)
    wrong = jnp.where(jnp.isfinite(wrong), wrong, jnp.inf)
    good = wrong <= jnp.maximum(tolerance, 2 * jnp.min(wrong))
    best = jnp.argmin(jnp.where(good, change, jnp.inf))
    chosen = (jnp.arange(len(wrong)) == best)[:, None]
    return jnp.stack([jnp.sum(jnp.where(chosen, x, 0), axis=0) for x in found])


def _pseudo_inverse(rows: list[list]) -> list[list]:
    """Returns the pseudo-inverse of a 1 x 1 or 2 x 2 matrix, given and returned as a list of rows;
    zero or dependent rows are allowed.

    An entry may be an array, with the entries of many matrices.
    """
    if len(rows) == 1:
        ((p,),) = rows
        return [[jnp.where(p == 0, 0, 1 / jnp.where(p == 0, 1, p))]]
    (p, q), (r, s) = rows
    determinant = p * s - q * r
    regular = jnp.abs(determinant) > 64 * jnp.finfo(p.dtype).eps * (jnp.abs(p * s) + jnp.abs(q * r))
    square = p**2 + q**2 + r**2 + s**2
    by = 1 / jnp.where(regular, determinant, jnp.where(square > 0, square, 1))
    return [
        [jnp.where(regular, s, p) * by, jnp.where(regular, -q, r) * by],
        [jnp.where(regular, -r, q) * by, jnp.where(regular, p, s) * by],
    ]


def _cancelled(x: Array, others: list) -> Array:
    """Returns the sum of x and of ``others``; zero where only rounding is left of it, as where tangents of contacts
    that stick hold all of a body."""
    found, size = x + sum(others), jnp.abs(x) + sum(jnp.abs(y) for y in others)
    return jnp.where(jnp.abs(found) > CANCELLED * jnp.finfo(x.dtype).eps * size, found, 0)


def _solved(inverse: list[list], w: list) -> list:
    """Returns x = -inverse w, which solves A x + w = 0, given the rows of the ``inverse`` of A."""
    return [-sum(x * y for x, y in zip(row, w, strict=True)) for row in inverse]
