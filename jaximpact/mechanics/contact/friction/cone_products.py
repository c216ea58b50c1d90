"""Contacts with Coulomb friction solved by products with their rows only, for neighbour lists:
accelerated projected gradients on the cones.

Nesterov's method with restart, as `cone_splitting.projected_gradient`, on normal and tangential rows each scaled to a
unit diagonal: the cone of a contact stays circular, with another coefficient. De Saxce's shift mu |w_t| is updated in
every iteration; when that makes no more progress, it is held until the convex problem with that shift is solved to a
tenth of the shift's error (V. Acary et al., A formulation of the linear discrete Coulomb friction problem via convex
optimization, ZAMM 91 (2011)). No theorem says that the first iteration converges; the second does for small mu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from ....jaxtools.array_types import B0, F0, I0, B_m, F_m, F_mr
from .cones import length, project, residual

STALLED = 400  # iterations without a better residual, after which the shift is held
GIVEN_UP = 6000  # iterations without a better residual, after which the method stops
HELD = 0.1  # fraction of the shift's error to which the convex problem is solved


class Scaled(NamedTuple):
    """Scaled problem w = A x + b with impulses x (m, 1 + k) and unit diagonal of A: velocities are ``root`` w, impulses
    ``scale`` x, entry by entry.

    ``b``, ``root``, ``scale`` (m, 1 + k); ``largest`` (m,): the largest diagonal entries of the contacts before
    scaling; ``mu`` (m,): the coefficients, and ``within`` (m,) those of the scaled cones; ``allowed`` (m,): natural
    residuals to reach [velocity].
    """

    b: F_mr
    root: F_mr
    scale: F_mr
    largest: F_m
    mu: F_m
    within: F_m
    allowed: F_m

    @classmethod
    def of(cls, diagonal: F_mr, offset: F_mr, mu: F_m, candidates: B_m, allowed: F_m) -> Scaled:
        """Makes the problem of the contacts ``candidates`` (m,) bool; the others get no impulse.

        ``diagonal`` of the Delassus matrix and velocities ``offset`` without impulses, (m, 1 + k) each; ``mu``,
        ``allowed`` (m,) as in the class.
        """
        taken = candidates & (diagonal[:, 0] > 0)
        across = jnp.max(diagonal[:, 1:], axis=1, keepdims=True)
        root = jnp.sqrt(jnp.concatenate([diagonal[:, :1], jnp.broadcast_to(across, diagonal[:, 1:].shape)], axis=1))
        present = taken[:, None] & (root > 0)
        root = jnp.where(present, root, 1)
        apart = jnp.zeros_like(offset).at[:, 0].set(1)
        b = jnp.where(taken[:, None], offset / root, apart)
        mu = jnp.where(taken, mu, 0)
        largest = jnp.where(taken, jnp.max(diagonal, axis=1), 1)
        return cls(b, root, jnp.where(present, 1 / root, 0), largest, mu, mu * root[:, 1] / root[:, 0], allowed)

    def excess(self, x: F_mr, ax: F_mr) -> F0:
        """Returns the largest ratio () of a contact's natural residual to its tolerance ``allowed``,
        for x and its product ``ax`` = A x."""
        found = residual(self.root * (ax + self.b), self.largest[:, None] * self.scale * x, self.mu)
        return jnp.max(jnp.max(jnp.abs(found), axis=1) / self.allowed, initial=0.0)

    def shift(self, ax: F_mr) -> F_m:
        """Returns De Saxce's shift mu |w_t| (m,) for impulses x, given ``ax`` = A x."""
        return self.within * length((ax + self.b)[:, 1:])[:, 0]


class Iterate(NamedTuple):
    """Carry of the iteration: impulses ``x`` and the extrapolated point ``y`` (m, 1 + k), with their products ``ax``,
    ``ay``; the ``shift`` (m,) in use; ``bound``, the inverse of the step length, and ``weight``, of Nesterov's
    momentum; the number of ``steps``; the ``best`` impulses, their excess (``least``) and the step at
    which they were found (``since``).
    """

    x: F_mr
    ax: F_mr
    y: F_mr
    ay: F_mr
    shift: F_m
    bound: F0
    weight: F0
    steps: I0
    best: F_mr
    least: F0
    since: I0


def frictional_impulses_by_products(
    product: Callable[[F_mr], F_mr], problem: Scaled, guess: F_mr, limit: int
) -> tuple[F_mr, I0]:
    """Solves a problem by the method of this file: returns impulses (m, 1 + k) in their cones, and the number of
    iterations (), at most ``limit``.

    ``product``: function from impulses (m, 1 + k) to the changes of velocity that they make, (m, 1 + k), both unscaled;
    ``guess`` (m, 1 + k): impulses to start from, unscaled as the returned ones.
    """
    eps, tiny = float(jnp.finfo(guess.dtype).eps), float(jnp.finfo(guess.dtype).tiny)
    scaled = lambda x: problem.scale * product(problem.scale * x)

    def body(now: Iterate) -> Iterate:
        w = (now.ay + problem.b).at[:, 0].add(now.shift)
        new = project(now.y - w / now.bound, problem.within)
        a_new = scaled(new)
        step = new - now.y
        curvature, size = jnp.sum(step * (a_new - now.ay)), jnp.sum(step**2)
        accept = ~(curvature > now.bound * size * (1 + 1e3 * eps) + tiny)
        restart = jnp.sum((now.y - new) * (new - now.x)) > 0
        weight = jnp.where(restart, 1.0, 0.5 * (1 + jnp.sqrt(1 + 4 * now.weight**2)))
        momentum = jnp.where(restart, 0.0, (now.weight - 1) / weight)
        choose = lambda yes, no: jnp.where(accept, yes, no)
        x, ax = choose(new, now.x), choose(a_new, now.ax)
        y, ay = choose(new + momentum * (new - now.x), now.y), choose(a_new + momentum * (a_new - now.ax), now.ay)
        bound = choose(now.bound, jnp.maximum(1.5 * now.bound, curvature / jnp.where(size > 0, size, 1)))
        excess = problem.excess(x, ax)
        better = excess < now.least
        best, least = jnp.where(better, x, now.best), jnp.where(better, excess, now.least)
        since = jnp.where(better, now.steps, now.since)
        shift = next_shift(problem, now, x, ax, ay, now.steps - since > STALLED)
        return Iterate(x, ax, y, ay, shift, bound, choose(weight, now.weight), now.steps + 1, best, least, since)

    def continues(now: Iterate) -> B0:
        return (now.least > 1) & (now.steps < limit) & (now.steps - now.since < GIVEN_UP)

    x = project(jnp.where(problem.scale > 0, problem.root * guess, 0), problem.within)
    ax = scaled(x)
    one, none = jnp.ones((), x.dtype), jnp.zeros((), jnp.int32)
    start = Iterate(x, ax, x, ax, problem.shift(ax), one, one, none, x, problem.excess(x, ax), none)
    now = lax.while_loop(continues, body, start)
    return problem.scale * now.best, now.steps


def next_shift(problem: Scaled, now: Iterate, x: F_mr, ax: F_mr, ay: F_mr, stalled: B0) -> F_m:
    """Returns the shift (m,) for the next iteration: De Saxce's shift at the extrapolated point y.

    Once ``stalled`` (), the shift of the iterate ``now`` is kept until the convex problem with this shift is solved; De
    Saxce's shift at the impulses x then replaces it. ``ax``, ``ay``: products of A with x and y.
    """
    wanted = problem.shift(ax)
    w = (ax + problem.b).at[:, 0].add(now.shift)
    left = jnp.max(jnp.abs(x - project(x - w, problem.within)), initial=0.0)
    kept = jnp.where(left < HELD * jnp.max(jnp.abs(wanted - now.shift), initial=0.0), wanted, now.shift)
    return jnp.where(stalled, kept, problem.shift(ay))
