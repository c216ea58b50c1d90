"""ADMM and accelerated projected gradients for contacts with Coulomb friction:
impulses are projected onto Coulomb's cones.

De Saxce's shift mu |w_t| is updated in every iteration (J. Carpentier, Q. Le Lidec and L. Montaut, From compliant to
rigid contact simulation, 2024, for ADMM). No theorem says that the methods converge with it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from ....jaxtools.array_types import F_m, F_mr
from .cone_newton import Found, Friction
from .cones import length, project


def _shifted(w: F_mr, mu: F_m) -> F_mr:
    """Returns w + mu |w_t| n (m, 1 + k), the velocities with De Saxce's shift."""
    return w.at[:, 0].add(mu * length(w[:, 1:])[:, 0])


def admm(problem: Friction, x: F_mr, limit: int, relaxation: float = 1.6) -> Found:
    """Solves by the alternating direction method of multipliers from ``x`` (m, 1 + k): one eigendecomposition,
    then products.

    Makes at most ``limit`` iterations; ``relaxation``: over-relaxation factor in (0, 2). The penalty is the geometric
    mean of the extreme non-zero eigenvalues, as for contacts without friction (`ADMM`).
    """
    values, vectors = jnp.linalg.eigh(0.5 * (problem.matrix + problem.matrix.T))
    largest = jnp.max(jnp.abs(values))
    penalty = jnp.sqrt(largest * jnp.min(jnp.where(values > 1e-6 * largest, values, largest)))
    solved = lambda y: (vectors @ ((vectors.T @ y.ravel()) / (values + penalty))).reshape(y.shape)

    def body(carry: tuple) -> tuple:
        z, dual, best = carry
        w = _shifted(-penalty * dual, problem.mu) + penalty * dual  # the shift alone
        x = solved(penalty * (z - dual) - problem.offset - w)
        relaxed = relaxation * x + (1 - relaxation) * z
        new = project(relaxed + dual, problem.mu)
        return new, dual + relaxed - new, _following(problem, new, best)

    start = (x, -_shifted(problem.velocity(x), problem.mu) / penalty, _first(problem, x))
    return lax.while_loop(_unsolved(limit), body, start)[-1]


def projected_gradient(problem: Friction, x: F_mr, limit: Array | int) -> Found:
    """Solves by Nesterov's accelerated projected gradients from ``x`` (m, 1 + k), in at most ``limit`` iterations;
    needs products with A only.

    The momentum is set to zero when a gradient step opposes the last change of the impulses. The step length begins
    with 1, its largest possible value as the largest diagonal entries are 1. It is reduced when the objective exceeds
    the quadratic bound that holds for a small enough step length.
    """
    eps, tiny = jnp.finfo(x.dtype).eps, jnp.finfo(x.dtype).tiny

    def body(carry: tuple) -> tuple:
        x, y, bound, weight, best = carry
        wy = problem.velocity(y)
        new = project(y - _shifted(wy, problem.mu) / bound, problem.mu)
        step = new - y
        curvature, size = jnp.sum(step * (problem.velocity(new) - wy)), jnp.sum(step**2)
        accept = curvature <= bound * size * (1 + 1e3 * eps) + tiny
        restart = jnp.sum((y - new) * (new - x)) > 0
        following = jnp.where(restart, 1.0, 0.5 * (1 + jnp.sqrt(1 + 4 * weight**2)))
        momentum = jnp.where(restart, 0.0, (weight - 1) / following)
        choose = lambda yes, no: jnp.where(accept, yes, no)
        larger = jnp.maximum(1.5 * bound, curvature / jnp.where(size > 0, size, 1))
        best = _following(problem, choose(new, x), best)
        ahead = new + momentum * (new - x)
        return choose(new, x), choose(ahead, y), choose(bound, larger), choose(following, weight), best

    one = jnp.ones((), x.dtype)
    start = (x, x, one, one, _first(problem, x))
    return lax.while_loop(_unsolved(limit), body, start)[-1]


def _first(problem: Friction, x: F_mr) -> Found:
    return Found(x, problem.excess(x), jnp.zeros((), jnp.int32))


def _following(problem: Friction, x: F_mr, best: Found) -> Found:
    """Returns impulses x or ``best``, whichever have the smaller excess, with one iteration more than ``best`` has."""
    return Found(x, problem.excess(x), best.iterations + 1).unless_worse(best)


def _unsolved(limit: Array | int) -> Callable[[tuple], Array]:
    return lambda carry: (carry[-1].excess > 1) & (carry[-1].iterations < limit)
