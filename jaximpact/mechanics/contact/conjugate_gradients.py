"""Contact solver by conjugate gradients on the active contacts, with projected gradient
steps that change the active set.

Reference: Z. Dostal, J. Schoberl, Minimizing quadratic functions over non-negative cone with the rate of convergence
and finite termination, Comput. Optim. Appl. 30 (2005), algorithm MPRGP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.array_types import B0, F0, I0, B_m, F_m, F_mr
from ..contacts import Contacts
from .solver import ContactSolver, Impulses, complementarity, unit_scaling

POWER = 8  # steps of the power method for the largest eigenvalue
SAFETY = 1.25  # factor by which that may be too small
STEP = 1.9  # of a projected gradient step, over the largest eigenvalue: 2 is the bound of descent


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConjugateGradients(ContactSolver):
    """Conjugate-gradient method for very many contacts: needs no matrix,
    and about half as many products as `ProjectedGradient`.

    The products are G v, with the gradients G of the gaps, and M^-1 G' L for impulses L. On a CPU native code loops
    over contacts between bodies.

    Attributes:
        tolerance: KKT residual [gap velocity]; by default 3e-7 of the speed at which contacts close.
        max_linearisations: SQP iterations for curved constraints.
        max_iterations: steps for each linearisation.
    """

    takes_lists: ClassVar[bool] = True
    relative: ClassVar[float] = (
        3e-7  # 6e-9 m/s where gravity closes contacts in steps of 2 ms; 1e-8 takes a quarter more iterations in piles
    )

    tolerance: float | None = None
    max_linearisations: int = 50
    max_iterations: int = field(default=50000, metadata={"static": True})

    def impulses(self, contacts: Contacts, offset: F_m, tolerance: Array | float, guess: F_m) -> Impulses:
        # with a margin, as the residual is computed again by the caller with other rounding
        tolerance = jnp.broadcast_to(0.5 * tolerance, offset.shape)
        impulse, count, jump = contacts.walked(self._products, offset, tolerance, guess, self.max_iterations)
        return Impulses(impulse, count, jnp.zeros((), jnp.int32), jump)

    def frictional_impulses_of_list(
        self, contacts: Any, offset: F_mr, candidates: B_m, allowed: F_m, guess: F_mr
    ) -> tuple[F_mr, I0]:
        by_products = super().frictional_impulses_of_list

        def products(offset: F_mr, guess: F_mr) -> tuple[F_mr, I0]:
            return by_products(contacts, offset, candidates, allowed, guess)

        return contacts.swept(products, offset, candidates, allowed, guess, self.max_iterations)

    def _products(self, contacts: Contacts, offset: F_m, tolerance: F_m, guess: F_m) -> tuple[F_m, I0]:
        """Solves by MPRGP in operations of jax, where there is no native code;
        returns impulses (m,) and the number of iterations.

        Arguments as of `ContactSolver.impulses`, with a tolerance for each contact.
        """
        diagonal, present, root, scale = unit_scaling(contacts)
        product = lambda x: scale * contacts.velocity(contacts.jump(scale * x))
        b = scale * offset
        step = STEP / _largest(product, jnp.where(present, 1 + 0.3 * (jnp.arange(len(b)) % 5).astype(b.dtype), 0))

        def measured(x: F_m, g: F_m) -> tuple[F0, F0, F0]:
            velocity = jnp.where(present, root * g, offset)
            residual = jnp.max(complementarity(velocity, scale * x, diagonal) / tolerance, initial=0.0)
            chopped = jnp.where(x > 0, 0, jnp.minimum(g, 0))
            return residual, jnp.sum(jnp.where(x > 0, g * jnp.minimum(g, x / step), 0)), chopped @ chopped

        def fresh(x: F_m) -> _Face:
            g = product(x) + b
            return _Face(x, g, jnp.where(x > 0, g, 0), jnp.array(True), *measured(x, g))

        def on_face(now: _Face) -> _Face:
            y = product(now.p)
            curvature, slope = now.p @ y, now.p @ now.g
            longest = jnp.min(jnp.where(now.p > 0, now.x / jnp.where(now.p > 0, now.p, 1), jnp.inf), initial=jnp.inf)
            length = slope / jnp.where(curvature > 0, curvature, 1)

            def inside(now: _Face) -> _Face:
                x, g = jnp.maximum(now.x - length * now.p, 0), now.g - length * y
                free = jnp.where(x > 0, g, 0)
                p = free - (free @ y / curvature) * now.p
                return _Face(x, g, p, jnp.array(False), *measured(x, g))

            def beyond(now: _Face) -> _Face:
                far = jnp.where(longest < jnp.inf, longest, 0)
                x, g = jnp.maximum(now.x - far * now.p, 0), now.g - far * y
                return fresh(jnp.where(x > 0, jnp.maximum(x - step * g, 0), 0))

            return lax.cond((curvature > 0) & (length <= longest), inside, beyond, now)

        def body(carry: tuple[I0, _Face]) -> tuple[I0, _Face]:
            count, now = carry
            change = lambda now: fresh(jnp.maximum(now.x - step * now.g, 0))
            again = lambda now: fresh(now.x)
            which = jnp.where(now.residual <= 1, 0, jnp.where(now.chopped <= now.free, 1, 2))
            return count + 1, lax.switch(which, (again, on_face, change), now)

        def continues(carry: tuple[I0, _Face]) -> B0:
            count, now = carry
            known = jnp.isfinite(now.free + now.chopped)
            return ((now.residual > 1) | ~now.exact) & known & (count < self.max_iterations)

        count, now = lax.while_loop(continues, body, (jnp.zeros((), jnp.int32), fresh(root * jnp.maximum(guess, 0))))
        return scale * now.x, count


class _Face(NamedTuple):
    """Carry of MPRGP.

    Scaled impulses x, gradient g and search direction p (m,); whether g is ``exact``, that is computed from x, not
    updated; ``residual``, the largest ratio of residual to tolerance; and the sizes (squares) of two parts of the
    gradient, whose comparison decides on the next step: ``free``, of the entries where x > 0, and ``chopped``, of the
    entries where x = 0 would increase in a gradient step.
    """

    x: F_m
    g: F_m
    p: F_m
    exact: B0
    residual: F0
    free: F0
    chopped: F0


def _largest(product: Callable[[F_m], F_m], x: F_m) -> F0:
    """Estimates the largest eigenvalue of A by the power method from x (m,), with a margin above it;
    ``product(x)`` is A x."""

    def body(_: int, carry: tuple[F_m, F0]) -> tuple[F_m, F0]:
        x = carry[0]
        y = product(x)
        value = (x @ y) / jnp.maximum(x @ x, jnp.finfo(x.dtype).tiny)
        return y / jnp.maximum(value, jnp.finfo(x.dtype).tiny), value

    value = lax.fori_loop(0, POWER, body, (x, jnp.ones((), x.dtype)))[1]
    return SAFETY * jnp.maximum(value, 1)
