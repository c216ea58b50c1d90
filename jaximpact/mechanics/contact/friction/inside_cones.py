"""Impulses inside all cones of friction, where impulses are not unique: a body on four feet may be held by many.

An interior-point method (S. Boyd and L. Vandenberghe, Convex Optimization (2004), section 11.4, phase I): Newton's
steps for the largest *room* s with mu x_n - |x_t| >= s, from s below zero. It finds impulses of all bodies on 3 to 6
feet whose loads take .8 to .999 of friction, in 4 to 10 steps; alternating projections, which need no matrix, missed
one in ten of these.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ....jaxtools import linalg
from ....jaxtools.array_types import B0, F0, B_m, F_m, F_mk, F_mr, I_m
from ...coefficients import lengths
from .cones import OPEN, STICK, ConeProblem

AMPLE = 0.9  # share of friction at which impulses are far enough inside
# the largest share at which they are inside at all. Nearer to its limit a contact in the plane is held there by others,
# and breaks away with them at the right time; in space it would begin to slip in a way in which it cannot
JUST_INSIDE = {2: 1 - 1e-4, 3: 1 - 1e-7}
STEPS = 30  # Newton steps at most: one digit of the room takes two
SHARPER = 5.0  # how much more the room weighs against the barrier after each full step
TO_WALL = 0.9  # of the way to the nearest cone is the longest step


class _Search(NamedTuple):
    """Impulses x (m, 1 + k), the ``room`` () that all cones have beyond them, as a share of the largest impulse; the
    ``weight`` () of the room, the number of ``steps`` (), and whether there is no hope (``none``)."""

    x: F_mr
    room: F0
    weight: F0
    steps: Array
    none: B0


def inside_cones(problem: ConeProblem, x: F_mr, modes: I_m, slip_direction: F_mk) -> tuple[F_mr, B0]:
    """Of impulses that are not unique, looks for some (m, 1 + k) inside the cones of contacts that stick, where no
    contact pulls; whether there are some, (). Without derivatives.

    ``x`` (m, 1 + k): impulses to begin from, which stay if they are well inside; ``modes`` (m,): what the contacts do;
    ``slip_direction`` (m, k): the directions in which those slip that do.
    """
    problem, x, modes, slip_direction = lax.stop_gradient((problem, x, modes, slip_direction))
    m, size = x.shape
    diagonal = jnp.diagonal(problem.delassus()).reshape(m, size)
    # rows of equal size, so that no contact keeps its impulses for the scale of its gap
    scale = jnp.sqrt(diagonal[:, 0] / jnp.where(diagonal[:, 1] > 0, diagonal[:, 1], diagonal[:, 0]))
    problem, each = problem.over(scale), jnp.ones_like(x).at[:, 0].set(scale)
    x = x * each
    held = problem.onto_modes(x, modes, slip_direction)
    acts, mu = modes != OPEN, problem.at_rest
    sticks = (modes == STICK) & (mu > 0)
    unit = jnp.max(jnp.abs(x))
    unit = jnp.where(unit > 0, unit, 1)
    # a cone is a >= |b|; one without friction x_n >= 0
    steepness = jnp.where(sticks, mu, 1)
    flat = jax.jacfwd(lambda x: held(x.reshape(m, size)).ravel())(x.ravel())  # onto impulses without effect
    by_step = jnp.zeros((m, size, m * size + 1), x.dtype).at[:, :, :-1].set(_in_cone(flat, steepness, sticks, m))
    by_step = jnp.where(acts[:, None, None], by_step.at[:, 0, -1].set(-unit), 0)

    def beyond(x: F_mr, room: F0) -> F_mr:
        u = _in_cone(x.reshape(-1, 1), steepness, sticks, m)[..., 0].at[:, 0].add(-room * unit)
        return jnp.where(acts[:, None], u, jnp.zeros_like(u).at[:, 0].set(1))

    def within(x: F_mr, share: float) -> B0:
        return jnp.all(~sticks | (lengths(x[:, 1:]) < share * mu * x[:, 0])) & jnp.all(~acts | (x[:, 0] >= 0))

    signs = jnp.full((1, size), -1, x.dtype).at[0, 0].set(1)
    eye, parameter = jnp.eye(m * size + 1, dtype=x.dtype), 2 * m + 1  # the latter of the barrier

    def step(now: _Search) -> _Search:
        u = beyond(now.x, now.room)
        left = jnp.sum(signs * u * u, axis=1)[:, None]  # a^2 - |b|^2, whose logarithm is the barrier
        slope = -2 * signs * u / left
        bent = jnp.einsum("mr,mrn->mn", slope, by_step)
        slopes = jnp.sum(bent, axis=0).at[-1].add(1 / (1 - now.room) - now.weight)
        weighed = by_step * (-2 * signs / left)[..., None]
        hessian = bent.T @ bent + jnp.einsum("mrn,mrl->nl", weighed, by_step)
        hessian = hessian.at[-1, -1].add(1 / (1 - now.room) ** 2)
        # moves with effect have no curvature: the shift leaves them alone, as they have no slope
        shift = float(jnp.finfo(x.dtype).eps) ** 0.6 * jnp.max(jnp.diagonal(hessian))
        move = -linalg.inverse(hessian + shift * eye) @ slopes
        moved = jnp.einsum("mrn,n->mr", by_step, move)
        # a^2 - |b|^2 along the move: its first zero
        squared, mixed = jnp.sum(signs * moved**2, axis=1), jnp.sum(signs * u * moved, axis=1)
        toward = jnp.sqrt(jnp.maximum(mixed**2 - squared * left[:, 0], 0)) - mixed
        nearest = jnp.min(jnp.where(toward > 0, left[:, 0] / jnp.where(toward > 0, toward, 1), jnp.inf))
        nearest = jnp.minimum(nearest, jnp.where(move[-1] > 0, (1 - now.room) / move[-1], jnp.inf))
        share = jnp.minimum(1, TO_WALL * nearest)
        room, full = now.room + share * move[-1], share > 0.5
        none = full & (room + 2 * parameter / now.weight < 0)  # the largest room is below zero
        onwards = held(now.x + share * (flat @ move[:-1]).reshape(m, size))
        return _Search(onwards, room, jnp.where(full, SHARPER, 1) * now.weight, now.steps + 1, none)

    def goes_on(now: _Search) -> B0:
        close = (now.room > 0) & (parameter < now.weight * now.room)  # half of the largest room is reached
        return ~within(now.x, AMPLE) & ~close & ~now.none & (now.steps < STEPS)

    u = beyond(x, jnp.zeros((), x.dtype))
    least = jnp.min(jnp.where(acts, u[:, 0] - lengths(u[:, 1:]), jnp.inf)) / unit
    begin = _Search(x, least - 1, jnp.ones((), x.dtype), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    x = jnp.where(acts[:, None], held(lax.while_loop(goes_on, step, begin).x), 0)  # to rounding
    return x / each, within(x, JUST_INSIDE[size])


def _in_cone(x: Array, steepness: F_m, sticks: B_m, m: int) -> Array:
    """Returns a = mu x_n, or x_n without friction, and b = x_t of contacts that stick, (m, 1 + k, n), of columns x
    (m (1 + k), n) of impulses."""
    x = x.reshape(m, -1, x.shape[1])
    return jnp.concatenate([steepness[:, None, None] * x[:, :1], jnp.where(sticks[:, None, None], x[:, 1:], 0)], axis=1)
