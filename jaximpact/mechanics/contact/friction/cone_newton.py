"""Semismooth Newton method for contacts with Coulomb friction, with a proximal shift,
and block Gauss-Seidel where it stalls.

References: P. Alart and A. Curnier, Comput. Methods Appl. Mech. Engrg. 92 (1991), for the equations; V. Acary and B.
Brogliato, Numerical Methods for Nonsmooth Dynamical Systems (2008), for block Gauss-Seidel.
No theorem says that the combination converges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ....jaxtools import linalg
from ....jaxtools.array_types import B0, F0, I0, F_kk, F_m, F_mr, F_mrr, F_nn, F_r, F_rr
from .cones import blocks, direction, length, residual

MEMORY = 4  # number of earlier residuals, the largest of which a step must reduce (nonmonotone line search)
STEPS = (1.0, 0.5, 0.25, 0.125)
SWEEPS = 2  # sweeps of Gauss-Seidel, where no step reduces the residual
LEAST, FIRST, SECOND, MOST = 1e-12, 1e-9, 1e-6, 1.0  # proximal shifts, relative to the diagonal
PATIENCE = 10  # steps before the restart from another method's impulses
SECANTS = 8  # iterations for one contact in space


class Friction(NamedTuple):
    """Scaled contact problem w = A x + b of m contacts with Coulomb friction.

    ``matrix`` A (n, n) with n = m (1 + k), contact by contact, the largest diagonal entry of each contact 1; ``offset``
    b (m, 1 + k); coefficients ``mu`` (m,); ``tolerance`` (m,) of the natural residual.
    """

    matrix: F_nn
    offset: F_mr
    mu: F_m
    tolerance: F_m

    def velocity(self, x: F_mr) -> F_mr:
        """Returns w (m, 1 + k) for impulses x (m, 1 + k)."""
        return (self.matrix @ x.ravel()).reshape(self.offset.shape) + self.offset

    def error(self, x: F_mr, w: F_mr) -> F_m:
        """Returns the natural residual (m,) of impulses x and velocities w, (m, 1 + k) each:
        the largest entry of `cones.residual`."""
        return jnp.max(jnp.abs(residual(w, x, self.mu)), axis=-1)

    def allowed(self, x: F_mr) -> F_m:
        """Returns the tolerance (m,), raised to the round-off of velocities at impulses x (m, 1 + k)."""
        terms = (jnp.abs(self.matrix) @ jnp.abs(x).ravel()).reshape(self.offset.shape) + jnp.abs(self.offset)
        return jnp.maximum(self.tolerance, 32 * jnp.finfo(x.dtype).eps * jnp.max(terms, axis=-1))

    def excess(self, x: F_mr) -> F0:
        """Returns the largest ratio () of a contact's natural residual to what is `allowed`;
        it is at most 1 at a solution."""
        return jnp.max(self.error(x, self.velocity(x)) / self.allowed(x))


class Found(NamedTuple):
    """Result of a method: impulses x (m, 1 + k), their `Friction.excess` (), and the number of iterations ()."""

    x: F_mr
    excess: F0
    iterations: I0

    def unless_worse(self, best: Found) -> Found:
        """Returns the impulses of this result or of ``best``, whichever have the smaller excess,
        with the iterations of this result."""
        better = self.excess < best.excess
        x, excess = jnp.where(better, self.x, best.x), jnp.where(better, self.excess, best.excess)
        return Found(x, excess, self.iterations)


def equations(x: F_r, w: F_r, mu: F0, diagonal: F_r) -> F_r:
    """Returns the residual (1 + k,) of Alart and Curnier's equations of one contact,
    for its impulse x and velocity w (1 + k,).

    ``diagonal`` (1 + k,): the diagonal of the contact's block of A.
    """
    normal, across = diagonal[0], jnp.max(diagonal[1:])
    pushed = jnp.maximum(normal * x[:1] - w[:1], 0)
    moved = across * x[1:] - w[1:]
    radius = mu * pushed * across / normal
    held = jnp.where(length(moved) <= radius, moved, radius * direction(moved))
    return jnp.concatenate([normal * x[:1] - pushed, across * x[1:] - held])


def solve_contact(block: F_rr, q: F_r, mu: F0, x: F_r) -> F_r:
    """Solves w = block x + q under Coulomb's law for the impulses x (1 + k,) of one contact.

    Returns the given ``x`` where sliding has no solution (beyond Painleve's bound). With x_n eliminated, x_t = -(T +
    s)^-1 c with s = |w_t| / |x_t|, where T and c are the tangential block and velocity after the elimination. The
    contact sticks if s = 0 satisfies
    |x_t| <= mu x_n. Otherwise s solves mu x_n / |x_t| = 1, which is nearly linear in s: Newton's method from s = 0, as in trust-region methods. In
    the plane x_t has the sign that it has for s = 0, and needs no iteration.
    """  # noqa: E501
    row = block[0, 1:] / block[0, 0]
    matrix, c = block[1:, 1:] - jnp.outer(block[1:, 0], row), q[1:] - block[1:, 0] * q[0] / block[0, 0]
    pressed = lambda t: -q[0] / block[0, 0] - row @ t
    stuck = across = -_inverse(matrix) @ c

    if len(c) > 1:

        def body(_: I0, s: F0) -> F0:
            ratio = lambda s: (
                mu * pressed(t := -_inverse(matrix + s * jnp.eye(len(c), dtype=q.dtype)) @ c) / length(t)[0]
            )
            value, slope = jax.jvp(ratio, (s,), (jnp.ones_like(s),))
            step = (1 - value) / slope
            return jnp.where(jnp.isfinite(step), jnp.maximum(s + step, 0), s)

        s = lax.fori_loop(0, SECANTS, body, jnp.zeros((), q.dtype))
        across = -_inverse(matrix + s * jnp.eye(len(c), dtype=q.dtype)) @ c
    u = direction(-across)
    denominator = block[0, 0] - mu * block[0, 1:] @ u
    sliding = -q[0] / jnp.where(denominator > 0, denominator, 1) * jnp.concatenate([jnp.ones_like(q[:1]), -mu * u])
    sticks = length(stuck)[0] <= mu * pressed(stuck)
    found = jnp.where(sticks, jnp.concatenate([pressed(stuck)[None], stuck]), jnp.where(denominator > 0, sliding, x))
    return jnp.where(q[0] >= 0, 0, found)


def _inverse(a: F_kk) -> F_kk:
    """Returns the inverse of a symmetric matrix; for a singular one of order 2 a large multiple of the adjugate."""
    if len(a) == 1:
        return 1 / jnp.where(a > 0, a, jnp.inf)
    if len(a) > 2:
        return linalg.inverse(
            a + 64 * jnp.finfo(a.dtype).eps * jnp.max(jnp.diagonal(a)) * jnp.eye(len(a), dtype=a.dtype)
        )
    determinant = a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0]
    least = jnp.finfo(a.dtype).eps * (a[0, 0] * a[1, 1]) + jnp.finfo(a.dtype).tiny
    return jnp.array([[a[1, 1], -a[0, 1]], [-a[1, 0], a[0, 0]]]) / jnp.maximum(determinant, least)


def sweep(problem: Friction, x: F_mr) -> F_mr:
    """Makes one sweep of block Gauss-Seidel from impulses x (m, 1 + k): solves the problem of each contact in turn;
    returns the new impulses."""
    m, size = problem.offset.shape
    rows = problem.matrix.reshape(m, size, m * size)
    own = blocks(problem.matrix, m)

    def one(i: I0, x: F_mr) -> F_mr:
        q = rows[i] @ x.ravel() + problem.offset[i] - own[i] @ x[i]
        return x.at[i].set(solve_contact(own[i], q, problem.mu[i], x[i]))

    return lax.fori_loop(0, m, one, x)


def linearised(equations: Callable, x: F_mr, w: F_mr, *others: Array) -> tuple[F_mr, F_mrr, F_mrr]:
    """Returns the equations of all contacts (m, 1 + k) and their Jacobians with respect to x and w,
    (m, 1 + k, 1 + k) each.

    ``equations``: function of x and w (1 + k,) of one contact, and of the ``others``, (m, ...) each.
    """

    def both(*operands: Array) -> tuple[Array, Array]:
        value = equations(*operands)
        return value, value

    (by_x, by_w), value = jax.vmap(jax.jacfwd(both, argnums=(0, 1), has_aux=True))(x, w, *others)
    return value, by_x, by_w


def newton_step(problem: Friction, equations: tuple[F_mr, F_mrr, F_mrr], shift: F0) -> F_mr:
    """Returns the Newton step (m, 1 + k) for the equations with A + ``shift`` I in place of A,
    as in a proximal-point step.

    ``equations``: result of `linearised`.
    """
    value, by_x, by_w = equations
    m, size = value.shape
    shifted = problem.matrix + shift * jnp.eye(m * size, dtype=value.dtype)
    matrix = (by_w @ shifted.reshape(m, size, m * size)).reshape(m, size, m, size)
    each = jnp.arange(m)
    matrix = matrix.at[each, :, each, :].add(by_x).reshape(m * size, m * size)
    return -jnp.linalg.solve(matrix, value.ravel()).reshape(m, size)


def newton(problem: Friction, x: F_mr, limit: int, rescue: Callable[[Friction, Array, Array], tuple]) -> Found:
    """Solves by Newton's method from ``x`` (m, 1 + k), at most ``limit`` steps.

    A step, full or shortened, is taken if it reduces the residual below the largest of the last five; a full step also
    reduces the proximal shift. If no step length does, the shift grows and two sweeps of Gauss-Seidel replace the step.
    After `PATIENCE` steps the method restarts from the impulses of another method, ``rescue(problem, x, needed)``,
    which returns impulses and its number of iterations, and iterates only if ``needed``, () bool. Returns the best of
    all impulses found. Because of the shift, impulses of dependent contacts change as little as possible.
    """
    diagonal = jnp.diagonal(problem.matrix).reshape(x.shape)
    every = jax.vmap(equations)
    merit = lambda x, w: jnp.sqrt(jnp.sum(every(x, w, problem.mu, diagonal) ** 2))
    parts = jnp.array(STEPS, x.dtype)
    forgotten = jnp.full(MEMORY + 1, -jnp.inf, x.dtype)

    def body(carry: tuple) -> tuple:
        count, x, shift, history, best = carry
        again = count == PATIENCE
        rescued, spent = rescue(problem, best.x, again)
        x = jnp.where(again, rescued, x)
        w = problem.velocity(x)
        value = linearised(equations, x, w, problem.mu, diagonal)
        history = jnp.where(again, forgotten, jnp.roll(history, 1)).at[0].set(jnp.sqrt(jnp.sum(value[0] ** 2)))
        step = newton_step(problem, value, shift)
        moved = (problem.matrix @ step.ravel()).reshape(w.shape)
        reached = jax.vmap(lambda part: merit(x + part * step, w + part * moved))(parts)
        lower = reached < (1 - 0.1 * parts) * jnp.max(history)
        part, taken = parts[jnp.argmax(lower)], jnp.any(lower)
        swept = lax.fori_loop(0, jnp.where(taken, 0, SWEEPS), lambda _, x: sweep(problem, x), x)
        new = jnp.where(taken, x + part * step, swept)
        smaller = jnp.maximum(jnp.where(part == 1, 0.1, 1) * shift, LEAST)
        shift = jnp.where(taken, smaller, jnp.clip(10 * shift, SECOND, MOST))
        found = Found(new, problem.excess(new), best.iterations + spent + 1)
        return count + 1, new, shift, jnp.where(taken, history, forgotten), found.unless_worse(best)

    def continues(carry: tuple) -> B0:
        count, *_, best = carry
        return (best.excess > 1) & (count < limit)

    none = jnp.zeros((), jnp.int32)
    start = (none, x, jnp.asarray(FIRST, x.dtype), forgotten, Found(x, problem.excess(x), none))
    return lax.while_loop(continues, body, start)[-1]
