"""Impulses of impacts with friction, by any law of impact, and of contacts where a part of
the normal impulses is given.

With normal impulses of at least p, x = p + y, friction is bounded by mu (p + y). Each contact then counts as two at the
same place: one pushes with y, as any contact, and the other with p, which the contact problem has as a row of its own
that meets nothing else. Both rub at the same slip.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from ....jaxtools.array_types import F0, I0, B_m, F_m, F_mr, F_nn
from ...impact_law import ImpactLaw
from .cones import ConeProblem


def pushed_impulses(
    solve: Callable, matrix: F_nn, offset: F_mr, friction: F_m, push: F_m, guess: F_mr, candidates: B_m
) -> tuple:
    """Solves a contact problem with friction whose normal impulses are at least ``push`` (m,) >= 0.

    Args:
        solve: function of (matrix, offset, friction, guess, among), as below, that returns impulses and other things.
        matrix: Delassus matrix A of the contacts, (m (1 + k), m (1 + k)).
        offset: velocities without impulses (m, 1 + k), those by ``push`` included.
        friction, guess, candidates: as in `cone_solver.frictional_impulses`.

    Returns:
        the impulses (m, 1 + k), ``push`` included, and whatever else ``solve`` returns.
    """
    m, size = offset.shape
    normal = (jnp.arange(size) == 0)[None, :]
    along = jnp.tile(~normal[0], m)
    # the slip of a pusher is that of its contact; its normal impulse moves nothing but its own row
    rows, columns = jnp.where(along[:, None], matrix, 0), jnp.where(along[None, :], matrix, 0)
    scale = jnp.max(jnp.diagonal(matrix).reshape(m, size), axis=1, keepdims=True)
    scale = jnp.where(scale > 0, scale, 1)
    own = jnp.diag(jnp.where(normal, scale, 0).ravel())
    twice = jnp.block([[matrix, columns], [rows, jnp.where(along[None, :], rows, 0) + own]])
    first = jnp.where(normal, push[:, None], 0)
    both = lambda x, y: jnp.concatenate([x, y])
    found, *others = solve(
        twice,
        both(offset, jnp.where(normal, -scale * first, offset)),
        both(friction, friction),
        both(jnp.where(normal, jnp.maximum(guess - first, 0), guess), first),
        both(candidates, candidates),
    )
    return found[:m] + jnp.where(normal, first, found[m:]), *others


def impulses_beyond(
    solve: Callable, cones: ConeProblem, matrix: F_nn, push: Array, guess: F_mr, candidates: B_m
) -> tuple[F_mr, ConeProblem, I0, F0]:
    """Solves a contact problem whose normal impulses are at least ``push``, (m,) or of size 0;
    other arguments as in `pushed_impulses`.

    Returns the impulses (m, 1 + k), the problem without least impulses that has the same solution, the number of
    iterations and the residual.
    """
    if not push.size:
        x, *others = solve(matrix, cones.offset, cones.friction, guess, candidates)
        return x, cones, *others
    normal = (jnp.arange(cones.offset.shape[1]) == 0)[None, :]
    change = lambda x: (matrix @ x.ravel()).reshape(x.shape)
    offset = cones.offset + change(jnp.where(normal, push[:, None], 0))
    x, *others = pushed_impulses(solve, matrix, offset, cones.friction, push, guess, candidates)
    rebounds = normal & (x[:, :1] > 0)
    return x, cones._replace(offset=jnp.where(rebounds, -change(x), cones.offset)), *others


def impact_impulses(
    law: ImpactLaw, e: F_m, cones: ConeProblem, solve: Callable, matrix: F_nn, guess: F_mr, candidates: B_m
) -> tuple[F_mr, ConeProblem, F0]:
    """Solves an impact with friction.

    Args:
        e: coefficients of restitution (m,).
        cones: the contact problem whose ``offset`` (m, 1 + k) are the velocities before the impact; ``matrix``:
            its Delassus matrix.
        solve, guess, candidates: as in `pushed_impulses`; ``solve`` returns impulses, iterations and the residual.

    Returns:
        impulses (m, 1 + k); the problem with restitution in its ``offset``, of which they are the solution;
        and the residual ().
    """
    normal = (jnp.arange(cones.offset.shape[1]) == 0)[None, :]
    with_velocity = cones._replace(
        offset=cones.offset + jnp.where(normal, law.velocity(e, cones.offset[:, 0])[:, None], 0)
    )
    if not law.two_stages:
        x, _, error = solve(matrix, with_velocity.offset, cones.friction, guess, candidates)
        return x, with_velocity, error
    first, _, error = solve(matrix, cones.offset, cones.friction, guess, candidates)
    change = (matrix @ first.ravel()).reshape(first.shape)
    second = with_velocity._replace(offset=with_velocity.offset + change)
    push = law.impulse(e, first[:, 0])
    x, of_second, _, later = impulses_beyond(solve, second, matrix, push, jnp.zeros_like(guess), candidates)
    return first + x, of_second._replace(offset=of_second.offset - change), jnp.maximum(error, later)
