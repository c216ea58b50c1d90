"""Path-following for contacts with Coulomb friction in space: the law is smoothed, and the smoothing taken away step by step.

Redundant contacts, such as the corners of a box that lands nearly flat, may all slip at speeds far below those of the impact. Directions of slip are then
decided by velocities that Newton's method on the law itself cannot see from afar. With the smoothing ``level`` c a contact pushes with x_n w_n = c, and
resists slip as a viscous damper does up to speeds of c: x_t = -mu x_n w_t / sqrt(|w_t|^2 + c^2). Of dependent contacts this leaves one set of impulses.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from .cone_newton import Found, Friction, linearised, newton_step

FASTER = 0.3  # by which the level falls once the equations hold to it
PARTS = tuple(0.5**k for k in range(8))  # of a step, the first of which that reduces the residual is taken


def smoothed_equations(x: Array, w: Array, mu: Array, level: Array) -> Array:
    """Returns the residual (1 + k,) of the smoothed law of one contact, for its impulse x and velocity w (1 + k,)."""
    normal = x[:1] + w[:1] - jnp.sqrt((x[:1] - w[:1]) ** 2 + 4 * level)
    return jnp.concatenate([normal, x[1:] * jnp.sqrt(w[1:] @ w[1:] + level**2) + mu * x[:1] * w[1:]])


def follow_path(problem: Friction, attempt: Array, limit: Array | int) -> Found:
    """Returns the best impulses along the path, in at most ``limit`` Newton steps, from a level as large as velocities are."""
    m = len(problem.mu)
    parts = jnp.array(PARTS, problem.offset.dtype)
    least = jnp.finfo(parts.dtype).eps
    faster = FASTER ** (1 / jnp.maximum(attempt, 1).astype(parts.dtype))

    def body(carry: tuple) -> tuple:
        x, level, best = carry
        w, levels = problem.velocity(x), jnp.broadcast_to(level, (m,))
        equations = linearised(smoothed_equations, x, w, problem.mu, levels)
        step = newton_step(problem, equations, jnp.zeros_like(level))
        moved = (problem.matrix @ step.ravel()).reshape(w.shape)
        size = lambda value: jnp.sqrt(jnp.sum(value**2))
        ahead = lambda part: size(jax.vmap(smoothed_equations)(x + part * step, w + part * moved, problem.mu, levels))
        reached = jax.vmap(ahead)(parts)
        lower = reached < (1 - 0.1 * parts) * size(equations[0])
        taken = jnp.where(jnp.any(lower), jnp.argmax(lower), len(parts) - 1)
        x = x + parts[taken] * step
        level = jnp.where(reached[taken] <= level, jnp.maximum(faster * level, least), level)
        return x, level, Found(x, problem.excess(x), best.iterations + 1).unless_worse(best)

    def continues(carry: tuple) -> Array:
        best = carry[-1]
        return (best.excess > 1) & (best.iterations < limit)

    x = jnp.zeros_like(problem.offset).at[:, 0].set(1)
    first = Found(x, problem.excess(x), jnp.zeros((), jnp.int32))
    return lax.while_loop(continues, body, (x, jnp.ones((), x.dtype), first))[-1]
