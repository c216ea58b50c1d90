"""Accelerated projected gradient on the dual (impulses), with restart and backtracking.

References: Yu. Nesterov, Soviet Math. Dokl. 27 (1983); B. O'Donoghue and E. Candes, Adaptive restart for accelerated
gradient schemes, Found. Comput. Math. 15 (2015).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.array_types import B0, F0, I0, B_m, F_m, F_mr, F_nn
from ..contacts import Contacts
from .friction.cone_solver import frictional_impulses
from .friction.cone_splitting import projected_gradient
from .solver import ContactSolver, Impulses, complementarity, unit_scaling


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ProjectedGradient(ContactSolver):
    """First-order method for many constraints: needs no matrix, only products G v and M^-1 G' L
    of gradients G and impulses L.

    Constraints are scaled to a unit Delassus diagonal. The step length is 1 at first, the largest possible value with
    this scaling. It is reduced when the objective exceeds the quadratic bound that holds for a small enough step
    length, so that no eigenvalue has to be estimated.

    Attributes:
        tolerance: KKT residual [gap velocity]; by default 1e-12 of the speed at which contacts close.
        max_linearisations: SQP iterations for curved constraints.
        max_iterations: gradient steps for each linearisation.
    """

    takes_lists: ClassVar[bool] = True

    tolerance: float | None = None
    max_linearisations: int = 50
    max_iterations: int = field(default=5000, metadata={"static": True})

    def working_sets(self, m: int, d: int) -> tuple[int, ...]:
        """Returns the size of the only working set, larger than d: with dependent gradients more than d
        constraints may have impulses."""
        return (min(m, max(64, 4 * d)),)

    def frictional_impulses(
        self, delassus: F_nn, offset: F_mr, friction: Array, guess: F_mr, candidates: B_m, tolerance: Array | float
    ) -> tuple[F_mr, I0, F0]:
        method, limit = projected_gradient, self.max_iterations
        return frictional_impulses(delassus, offset, friction, guess, candidates, tolerance, limit, method)

    def impulses(self, contacts: Contacts, offset: F_m, tolerance: Array | float, guess: F_m) -> Impulses:
        diagonal, present, root, scale = unit_scaling(contacts)

        def delassus(x: F_m) -> F_m:
            return scale * contacts.velocity(contacts.jump(scale * x))

        b = scale * offset
        eps = jnp.finfo(b.dtype).eps

        def excess(x: F_m, ax: F_m) -> F0:
            # A x + b back in gap velocities; impulse times diagonal likewise
            found = complementarity(jnp.where(present, root * (ax + b), offset), scale * x, diagonal)
            return jnp.max(found / tolerance, initial=0.0)

        def body(carry: tuple) -> tuple:
            count, x, ax, y, ay, bound, weight, _ = carry
            new = jnp.maximum(0, y - (ay + b) / bound)
            a_new = delassus(new)
            step = new - y
            curvature, length = step @ (a_new - ay), step @ step
            accept = curvature <= bound * length * (1 + 1e3 * eps) + jnp.finfo(b.dtype).tiny
            restart = (y - new) @ (new - x) > 0
            weight_next = jnp.where(restart, 1.0, 0.5 * (1 + jnp.sqrt(1 + 4 * weight**2)))
            momentum = jnp.where(restart, 0.0, (weight - 1) / weight_next)
            y_new, ay_new = new + momentum * (new - x), a_new + momentum * (a_new - ax)
            bound_new = jnp.maximum(1.5 * bound, curvature / jnp.where(length > 0, length, 1))

            def choose(yes: Array, no: Array) -> Array:
                return jnp.where(accept, yes, no)

            x, ax, y, ay = choose(new, x), choose(a_new, ax), choose(y_new, y), choose(ay_new, ay)
            return count + 1, x, ax, y, ay, choose(bound, bound_new), choose(weight_next, weight), excess(x, ax)

        def continues(carry: tuple) -> B0:
            return (carry[-1] > 1) & (carry[0] < self.max_iterations)

        one = jnp.ones((), b.dtype)
        x = root * guess
        ax = delassus(x)
        start = (jnp.zeros((), jnp.int32), x, ax, x, ax, one, one, excess(x, ax))
        count, x, *_ = lax.while_loop(continues, body, start)
        return Impulses(scale * x, count, jnp.zeros((), jnp.int32))
