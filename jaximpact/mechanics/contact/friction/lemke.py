"""Lemke's pivots for planar friction: finite and exact where Newton's method does not converge.

The wedge of a planar contact makes friction a linear complementarity problem (D. E. Stewart and J. C. Trinkle, Int. J.
Numer. Meth. Engng. 39 (1996)) with a copositive matrix, which Lemke's method solves (M. Anitescu and F. A. Potra,
Nonlinear Dynam. 14 (1997)). It costs O(m^2) for each of about 5 m pivots.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ....jaxtools.array_types import B0, I0, F_mr, F_n, F_nn
from .cone_newton import Friction

PIVOTS = 100  # largest number of pivots for each contact; piles of 60 contacts have needed at most 20


def complementarity_problem(problem: Friction) -> tuple[F_nn, F_n]:
    """Returns M (4 m, 4 m) and q (4 m,) of 0 <= z _|_ M z + q >= 0, for z = (x_n, positive and
    negative parts of x_t, |w_t|)."""
    m = len(problem.mu)
    a = problem.matrix.reshape(m, 2, m, 2)
    nn, nt, tn, tt = a[:, 0, :, 0], a[:, 0, :, 1], a[:, 1, :, 0], a[:, 1, :, 1]
    zero, one = jnp.zeros_like(nn), jnp.eye(m, dtype=nn.dtype)
    matrix = jnp.block(
        [[nn, nt, -nt, zero], [tn, tt, -tt, one], [-tn, -tt, tt, one], [jnp.diag(problem.mu), -one, -one, zero]]
    )
    normal, across = problem.offset[:, 0], problem.offset[:, 1]
    return matrix, jnp.concatenate([normal, across, -across, jnp.zeros_like(normal)])


def pivot_friction(problem: Friction, needed: B0) -> tuple[F_mr, I0]:
    """Returns the impulses (m, 2) and the number of pivots (); the impulses have the error of a small
    perturbation of q, which breaks ties.

    Unless ``needed``, () bool, no pivots are made, and the impulses are meaningless. The tableau is s = T y + beta,
    with the basic variables s and the non-basic ones y, the last of which is at first the artificial variable. In each
    pivot the variable enters that is complementary to the one that left in the previous pivot.
    """
    matrix, q = complementarity_problem(problem)
    n, eps = len(q), jnp.finfo(q.dtype).eps
    # irrational numbers in place of lexicographic order
    uneven = jnp.asarray(1 + np.arange(1, n + 1) * 0.6180339887498949 % 1, q.dtype)
    q = q + eps**0.5 * jnp.max(jnp.abs(q)) * uneven
    table = jnp.concatenate([matrix, jnp.ones((n, 1), q.dtype), q[:, None]], axis=1)
    # number i < n of a variable is w_i, n + i is z_i, 2 n the artificial one
    basic, other = jnp.arange(n), jnp.concatenate([n + jnp.arange(n), jnp.array([2 * n])])

    def exchange(table: Array, basic: Array, other: Array, row: Array, column: Array) -> tuple:
        p, line, rate = table[row, column], table[row], table[:, column]
        new = table - jnp.outer(rate, line) / p
        new = new.at[row].set(-line / p).at[:, column].set(rate / p).at[row, column].set(1 / p)
        return new, basic.at[row].set(other[column]), other.at[column].set(basic[row])

    def body(carry: tuple) -> tuple:
        count, table, basic, other, entering, _ = carry
        column = jnp.argmax(other == entering)
        rate, beta = table[:, column], table[:, -1]
        falls = rate < -(eps**0.6)
        ratio = jnp.where(falls, beta / jnp.where(falls, -rate, 1), jnp.inf)
        # the artificial variable leaves as soon as it can
        row = jnp.argmin(jnp.where(basic == 2 * n, ratio * (1 - eps**0.75), ratio))
        leaving = basic[row]
        done = (leaving == 2 * n) | ~jnp.any(falls)
        table, basic, other = exchange(table, basic, other, row, column)
        entering = jnp.where(leaving < n, leaving + n, leaving - n)
        return count + 1, table, basic, other, entering, done

    def continues(carry: tuple) -> B0:
        return ~carry[-1] & (carry[0] < PIVOTS * (n // 4)) & needed

    worst = jnp.argmin(q)
    first = exchange(table, basic, other, worst, jnp.asarray(n))
    start = (jnp.zeros((), jnp.int32), *first, worst + n, q[worst] >= 0)
    count, table, basic, *_ = lax.while_loop(continues, body, start)
    z = jnp.zeros(2 * n + 1, q.dtype).at[basic].set(table[:, -1])[n : 2 * n].reshape(4, -1)
    solved = jnp.stack([z[0], z[1] - z[2]], axis=1)
    return jnp.where(q[worst] >= 0, 0, solved), count
