"""Impulses of contacts with Coulomb friction: scaling, the sequence of methods, and the derivative.

Up to two planar contacts: every mode in closed form. For more, Newton's method from the guess, and if it does not
converge, from another method's impulses. Only the candidate contacts take part; the others are open and decoupled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from ....jaxtools.array_types import B0, F0, I0, B_m, F_m, F_mr, F_nn
from ....jaxtools.derivative_rules import implicit_root
from ....jaxtools.outlined import outlined
from .cone_enumeration import ENUMERATE, enumerate_modes
from .cone_newton import Found, Friction, newton
from .cone_path import follow_path
from .cones import OPEN, frozen, modes_of, project
from .lemke import pivot_friction

Method = Callable[[Friction, Array, int], Found]


def frictional_impulses(
    delassus: F_nn,
    offset: F_mr,
    friction: Array | float,
    guess: F_mr,
    candidates: B_m,
    tolerance: Array | float,
    max_iterations: int = 100,
    method: Method | None = None,
    derivative: bool = True,
) -> tuple[F_mr, I0, F0]:
    """Solves w = A x + b, K* ∋ w + mu |w_t| n _|_ x ∈ K_mu, for the impulses x of m contacts.

    Args:
        delassus: A (m (1 + k), m (1 + k)), positive semidefinite, contact by contact: normal, then the k tangents; k =
            1 in the plane, 2 in space.
        offset: b (m, 1 + k), velocities without impulses, restitution included.
        friction: mu >= 0, () or (m,).
        guess: impulses (m, 1 + k) to start from, such as those of the previous step, else zeros. If there are several
            solutions, it decides between them.
        candidates: (m,) bool, the contacts that may carry an impulse; others get none.
        tolerance: natural residual to reach [velocity], () or (m,); raised to round-off.
        max_iterations: largest number of steps of the method.
        method: function that solves the scaled problem, by default `solve_exactly`.
        derivative: whether the impulses have a derivative, which takes longer to trace.

    Returns:
        impulses (m, 1 + k) in the cones; iterations (); and the largest natural residual () [velocity],
        `cones.residual` with impulses times the largest diagonal entry of their contact's block: NaN where the input is
        NaN. Differentiable with the modes of the contacts frozen; where impulses are not unique, the derivative of the
        velocities is right and that of the impulses one of many.
    """
    m, size = offset.shape
    if m == 0:
        return jnp.zeros_like(offset), jnp.zeros((), jnp.int32), jnp.zeros((), offset.dtype)
    friction = jnp.broadcast_to(jnp.asarray(friction, offset.dtype), (m,))
    root = lax.stop_gradient(_roots(delassus, size))
    taking = candidates & (root != 0)
    scale = jnp.where(taking, 1 / jnp.where(taking, root, 1), 0)
    each = jnp.repeat(scale, size)
    both = each[:, None] * each[None, :]
    # contacts that take no part are removed by selection, not by multiplication with zero: their numbers may be NaN
    matrix = jnp.where(both != 0, both * delassus, jnp.eye(m * size, dtype=offset.dtype))
    unit = lax.stop_gradient(jnp.max(jnp.where(taking[:, None], jnp.abs(scale[:, None] * offset), 0)))
    unit = jnp.where(unit > 0, unit, 1)
    apart = jnp.zeros_like(offset).at[:, 0].set(1)
    offset = jnp.where(taking[:, None], scale[:, None] * offset / unit, apart)
    to_velocity = jnp.where(taking, root, 0) * unit
    allowed = tolerance / jnp.where(to_velocity > 0, to_velocity, 1)
    mu = jnp.where(taking, friction, 0)
    problem = Friction(matrix, offset, mu, jnp.where(taking, allowed, 1))
    start = jnp.where(taking[:, None], jnp.where(taking, root, 0)[:, None] * guess / unit, 0)
    solve = partial(_impulses, limit=max_iterations, method=method or solve_exactly)
    x, iterations = (_differentiable if derivative else _constant)(problem, start, solve)
    error = jnp.max(lax.stop_gradient(problem.error(x, problem.velocity(x)) * to_velocity))
    return unit * scale[:, None] * x, iterations, error


def _roots(delassus: F_nn, size: int) -> F_m:
    """Returns the square roots (m,) of the largest diagonal entries of the contacts' blocks (``size``,
    ``size``) in a Delassus matrix."""
    return jnp.sqrt(jnp.max(jnp.diagonal(delassus).reshape(-1, size), axis=1))


@partial(outlined, static=(2,))
def solve_exactly(problem: Friction, start: F_mr, max_iterations: int) -> Found:
    """Solves one or two planar contacts in closed form, else by Newton's method from impulses ``start`` (m, 1 + k).

    Newton's method makes at most ``max_iterations`` steps. If it has not converged after some of them, it restarts from
    the impulses of Lemke's pivots in the plane, or from those of a path of smoothed laws in space.
    """
    m, size = start.shape
    if size == 2 and m <= ENUMERATE:
        x = enumerate_modes(problem.matrix, problem.offset, problem.mu, start, jnp.min(problem.allowed(start)))
        return Found(x, problem.excess(x), jnp.ones((), jnp.int32))
    return newton(problem, start, max_iterations, _by_pivots if size == 2 else _along_path)


def _by_pivots(problem: Friction, x: F_mr, needed: B0) -> tuple[F_mr, I0]:
    none = jnp.zeros((), jnp.int32)
    return lax.cond(needed, lambda: pivot_friction(problem, needed), lambda: (x, none))


def _along_path(problem: Friction, x: F_mr, needed: B0) -> tuple[F_mr, I0]:
    found = follow_path(problem, needed)
    return found.x, found.iterations


def _impulses(problem: Friction, start: F_mr, limit: int, method: Method) -> tuple[F_mr, F0]:
    """Solves a problem by ``method``, from impulses ``start`` (m, 1 + k), in at most ``limit`` iterations.

    Returns impulses (m, 1 + k) in the cones, and the number of iterations as a real number,
    which `implicit_root` needs.
    """
    found = method(problem, start, limit)
    opened = modes_of(problem.velocity(found.x), found.x, problem.mu) == OPEN
    clean = jnp.where(opened[:, None] & (found.excess <= 1), 0, found.x)
    return project(clean, problem.mu), found.iterations.astype(start.dtype)


def _constant(problem: Friction, start: F_mr, solve: Callable) -> tuple[F_mr, I0]:
    """Returns the impulses (m, 1 + k) and the iterations by ``solve(problem, start)``, without derivatives."""
    x, iterations = solve(*lax.stop_gradient((problem, start)))
    return lax.stop_gradient(x), lax.stop_gradient(iterations).astype(jnp.int32)


def _differentiable(problem: Friction, start: F_mr, solve: Callable) -> tuple[F_mr, I0]:
    """Returns the impulses (m, 1 + k) and the iterations by ``solve(problem, start)``, with a derivative by the
    implicit function theorem.

    The modes of the solution are held fixed in the equations that are differentiated (`cones.frozen`).
    """

    def equations(x: F_mr) -> F_mr:
        w, fixed = problem.velocity(x), lax.stop_gradient(x)
        at = lax.stop_gradient(problem.velocity(fixed))
        mu = lax.stop_gradient(problem.mu)
        modes = modes_of(at, fixed, mu, float(jnp.finfo(x.dtype).eps) ** 0.6)
        return frozen(w, x, problem.mu, modes)

    def tangent(linear: Callable, y: F_mr) -> F_mr:
        matrix = jax.jacfwd(lambda x: linear(x.reshape(y.shape)).ravel())(jnp.zeros_like(y).ravel())
        # rows may be dependent: the inverse has entries of one over the shift, whose rounding refinement takes out, as
        # it does the effect of the shift (a shift by round-off left 1e-5 of velocities)
        shift = float(jnp.finfo(y.dtype).eps) ** 0.625
        inverse = jnp.linalg.inv(matrix + shift * jnp.eye(y.size, dtype=y.dtype))
        x = inverse @ y.ravel()
        for _ in range(3):
            x = x + inverse @ (y.ravel() - matrix @ x)
        return x.reshape(y.shape)

    root = lambda _, start: solve(*lax.stop_gradient((problem, start)))
    x, iterations = implicit_root(equations, start, root, tangent)
    return x, lax.stop_gradient(iterations).astype(jnp.int32)
