"""Path of smoothed laws for contacts with Coulomb friction in space: Newton's method while the
smoothing is taken away step by step.

Redundant contacts, such as the corners of a box that lands nearly flat, may all slip at speeds s far below those of the
impact. Directions of slip are then decided by velocities that Newton's method on the law itself does not see from afar:
the central path x_n w_n = c and |w_t| (mu x_n - |x_t|) = c, nearly, as in interior-point methods, leads there. At its
end a step rounds: velocities by a rounding eps, impulses across the slip by eps / s, and the cone bends, so that what
is left is of the order of (eps / s)^2, at worst eps^(2/3) where s is as small. But directions need be right to the
tolerance over s only. Each step is therefore followed by a few on the law itself with a proximal shift, which changes
impulses by no more than what the law still misses. No theorem says that it arrives.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ....jaxtools.array_types import B0, F0, I0, F_mr, F_r
from .cone_newton import LEAST, Found, Friction, equations, linearised, newton_step
from .cones import length

STEPS = 150  # along the path; most problems take 35, of 3000 boxes none more than 68
PARTS = tuple(0.5**k for k in range(6))  # of a step, the first of which that reduces the residual is taken
FASTER, SLOWER = 0.1, 0.5  # factors of the level after a whole step, and after a part of one
POLISHED = 3  # steps on the law itself after each step of the path


def smoothed_equations(x: F_r, w: F_r, mu: F0, level: F0) -> F_r:
    """Returns the residual (1 + k,) of the law of one contact smoothed to a ``level`` c (),
    for its impulse x and velocity w (1 + k,)."""
    larger = lambda a, b, c: 0.5 * (a + b + jnp.sqrt((a - b) ** 2 + 4 * c))
    pushed = larger(x[:1] - w[:1], jnp.zeros_like(w[:1]), level)
    moved = x[1:] - w[1:]
    held = mu * pushed * moved / larger(length(moved), mu * pushed, level * mu**2)
    return jnp.concatenate([x[:1] - pushed, jnp.where(mu > 0, x[1:] - held, x[1:])])


def follow_path(problem: Friction, needed: B0) -> Found:
    """Returns the best impulses at the end of the path; makes steps only if ``needed``, () bool."""
    m, dtype = len(problem.mu), problem.offset.dtype
    parts, eps = jnp.array(PARTS, dtype), float(jnp.finfo(dtype).eps)
    shift = eps**0.4  # between the square root of a rounding and what still converges in a few steps
    near = eps**0.55  # a residual as small as the level is next to the path, but below this one may be rounding
    diagonal = jnp.diagonal(problem.matrix).reshape(problem.offset.shape)
    size = lambda value: jnp.sqrt(jnp.sum(value**2))

    def polish(_: I0, carry: tuple[F_mr, Found]) -> tuple[F_mr, Found]:
        x, best = carry
        law = linearised(equations, x, problem.velocity(x), problem.mu, diagonal)
        x = x + newton_step(problem, law, jnp.asarray(shift, dtype))
        return x, Found(x, problem.excess(x), best.iterations).unless_worse(best)

    def body(carry: tuple) -> tuple:
        x, level, best = carry
        w, levels = problem.velocity(x), jnp.broadcast_to(level, (m,))
        smoothed = linearised(smoothed_equations, x, w, problem.mu, levels)
        step = newton_step(problem, smoothed, jnp.asarray(LEAST, dtype))
        moved = (problem.matrix @ step.ravel()).reshape(w.shape)
        values = jax.vmap(smoothed_equations)
        ahead = lambda part: size(values(x + part * step, w + part * moved, problem.mu, levels))
        reached = jax.vmap(ahead)(parts)
        lower = reached < (1 - 0.25 * parts) * size(smoothed[0])
        taken = jnp.where(jnp.any(lower), jnp.argmax(lower), len(parts) - 1)
        x = x + parts[taken] * step
        smaller = jnp.maximum(jnp.where(lower[0], FASTER, SLOWER) * level, eps ** (5 / 3))
        level = jnp.where(reached[taken] <= jnp.maximum(level, near), smaller, level)
        found = Found(x, problem.excess(x), best.iterations + 1).unless_worse(best)
        return x, level, lax.fori_loop(0, POLISHED, polish, (x, found))[-1]

    def continues(carry: tuple) -> B0:
        best = carry[-1]
        return (best.excess > 1) & (best.iterations < jnp.where(needed, STEPS, 0))

    x = jnp.zeros_like(problem.offset).at[:, 0].set(1)
    first = Found(x, problem.excess(x), jnp.zeros((), jnp.int32))
    return lax.while_loop(continues, body, (x, jnp.ones((), dtype), first))[-1]
