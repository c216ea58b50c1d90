"""Paths of smoothed laws for contacts with Coulomb friction in space: Newton's method while the smoothing is taken away step by step.

Redundant contacts, such as the corners of a box that lands nearly flat, may all slip at speeds far below those of the impact. Directions of slip are then
decided by velocities that Newton's method on the law itself does not see from afar. There are two paths, as no theorem says that one of them arrives:

- central: x_n w_n = c and |w_t| (mu x_n - |x_t|) = c, nearly, as in interior-point methods; it is fast;
- viscous: x_n w_n = c, and x_t = -mu x_n w_t / sqrt(|w_t|^2 + c^2), a damper at speeds below c; it is slow.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from .cone_newton import LEAST, Found, Friction, linearised, newton_step
from .cones import length

STEPS = 60  # along the central path, and twice as many along the viscous one
PARTS = tuple(0.5**k for k in range(8))  # of a step, the first of which that reduces the residual is taken


def smoothed_equations(x: Array, w: Array, mu: Array, level: Array, central: Array) -> Array:
    """Returns the residual (1 + k,) of the law of one contact smoothed to a ``level`` c (), for its impulse x and velocity w (1 + k,)."""
    larger = lambda a, b, c: 0.5 * (a + b + jnp.sqrt((a - b) ** 2 + 4 * c))
    pushed = larger(x[:1] - w[:1], jnp.zeros_like(w[:1]), level)
    moved = x[1:] - w[1:]
    held = mu * pushed * moved / larger(length(moved), mu * pushed, level * mu**2)
    damped = x[1:] * jnp.sqrt(w[1:] @ w[1:] + level**2) + mu * x[:1] * w[1:]
    normal = jnp.where(central, 1, 2) * (x[:1] - pushed)
    return jnp.concatenate([normal, jnp.where(central, jnp.where(mu > 0, x[1:] - held, x[1:]), damped)])


def follow_path(problem: Friction, central: Array, needed: Array) -> Found:
    """Returns the best impulses along the ``central`` path, () bool, or the viscous one; makes steps only if ``needed``, () bool."""
    m, dtype = len(problem.mu), problem.offset.dtype
    parts, eps = jnp.array(PARTS, dtype), float(jnp.finfo(dtype).eps)
    choose = lambda of_central, of_viscous: jnp.where(central, of_central, of_viscous).astype(dtype)
    faster, least, shift = choose(0.1, 0.55), choose(eps ** (5 / 3), eps), choose(LEAST, 0.0)
    limit = jnp.where(needed, jnp.where(central, STEPS, 2 * STEPS), 0)
    kind = jnp.broadcast_to(central, (m,))

    def body(carry: tuple) -> tuple:
        x, level, best = carry
        w, levels = problem.velocity(x), jnp.broadcast_to(level, (m,))
        equations = linearised(smoothed_equations, x, w, problem.mu, levels, kind)
        step = newton_step(problem, equations, shift)
        moved = (problem.matrix @ step.ravel()).reshape(w.shape)
        values = jax.vmap(smoothed_equations)
        size = lambda value: jnp.sqrt(jnp.sum(value**2))
        ahead = lambda part: size(values(x + part * step, w + part * moved, problem.mu, levels, kind))
        reached = jax.vmap(ahead)(parts)
        lower = reached < (1 - 0.1 * parts) * size(equations[0])
        taken = jnp.where(jnp.any(lower), jnp.argmax(lower), len(parts) - 1)
        x = x + parts[taken] * step
        holds = reached[taken] <= choose(0.1 * jnp.sqrt(level), level)
        level = jnp.where(holds, jnp.maximum(faster * level, least), level)
        return x, level, Found(x, problem.excess(x), best.iterations + 1).unless_worse(best)

    def continues(carry: tuple) -> Array:
        best = carry[-1]
        return (best.excess > 1) & (best.iterations < limit)

    x = jnp.zeros_like(problem.offset).at[:, 0].set(1)
    first = Found(x, problem.excess(x), jnp.zeros((), jnp.int32))
    return lax.while_loop(continues, body, (x, jnp.ones((), dtype), first))[-1]
