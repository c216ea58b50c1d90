"""Contact solver by over-relaxed ADMM on the dual (the impulses); at intervals the equations of the
active set are solved exactly.

References: S. Boyd et al., Found. Trends Mach. Learn. 3 (2011); E. Ghadimi et al., IEEE Trans. Autom. Control 60 (2015)
for the penalty; B. Stellato et al., OSQP, Math. Prog. Comp. 12 (2020) for the polishing step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.array_types import B0, F0, I0, B_m, F_m, F_mr, F_nn
from ..contacts import Contacts
from .active_set import Attempt, guess_active_set
from .friction.cone_solver import frictional_impulses
from .friction.cone_splitting import admm
from .solver import ContactSolver, Impulses, complementarity, unit_scaling

TRIED = 20  # iterations after which the active set is tried


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ADMM(ContactSolver):
    """Alternating direction method of multipliers: one eigendecomposition, then products;
    robust on ill-conditioned contacts.

    The penalty is the geometric mean of the extreme non-zero eigenvalues of the scaled Delassus matrix, optimal for a
    quadratic objective. At intervals the equations of the current active set are solved exactly: with very unequal
    masses the active set is right long before the impulses are.

    Attributes:
        tolerance: KKT residual [gap velocity]; by default 1e-12 of the speed at which contacts close.
        max_linearisations: SQP iterations for curved constraints.
        max_iterations: ADMM iterations for each linearisation.
        relaxation: over-relaxation factor in (0, 2).
    """

    tolerance: float | None = None
    max_linearisations: int = 50
    max_iterations: int = field(default=2000, metadata={"static": True})
    relaxation: float = 1.6

    warm_starts = False

    def frictional_impulses(
        self, delassus: F_nn, offset: F_mr, friction: Array, guess: F_mr, candidates: B_m, tolerance: Array | float
    ) -> tuple[F_mr, I0, F0]:
        method, limit = partial(admm, relaxation=self.relaxation), self.max_iterations
        return frictional_impulses(delassus, offset, friction, guess, candidates, tolerance, limit, method)

    def impulses(self, contacts: Contacts, offset: F_m, tolerance: Array | float, guess: F_m) -> Impulses:
        diagonal, present, root, scale = unit_scaling(contacts)
        a = scale[:, None] * contacts.delassus() * scale[None, :]
        b = jnp.where(present, offset * scale, 1)

        values, vectors = jnp.linalg.eigh(0.5 * (a + a.T))
        largest = jnp.max(jnp.abs(values), initial=0.0)
        smallest = jnp.min(jnp.where(values > 1e-6 * largest, values, jnp.inf), initial=jnp.inf)
        penalty = jnp.sqrt(jnp.where(jnp.isfinite(smallest), smallest * largest, 1.0))

        def resolvent(x: F_m) -> F_m:
            return vectors @ ((vectors.T @ x) / (values + penalty))

        def excess(z: F_m) -> F0:
            velocity = jnp.where(present, root * (a @ z + b), offset)
            return jnp.max(complementarity(velocity, scale * z, diagonal) / tolerance, initial=0.0)

        def iterate(_: I0, carry: tuple[F_m, F_m]) -> tuple[F_m, F_m]:
            z, u = carry
            x = resolvent(penalty * (z - u) - b)
            relaxed = self.relaxation * x + (1 - self.relaxation) * z
            new = jnp.maximum(0, relaxed + u)
            return new, u + relaxed - new

        def body(carry: tuple) -> tuple:
            count, z, u, best, reached, _ = carry
            more = jnp.minimum(TRIED, self.max_iterations - count)
            z, u = lax.fori_loop(0, more, iterate, (z, u))
            tried = guess_active_set(a, b, scale * tolerance, Attempt(z, false, none, none), len(b))
            for x in (z, tried.impulse):
                left = excess(x)
                best, reached = jnp.where(left < reached, x, best), jnp.minimum(left, reached)
            return count + more, z, u, best, reached, tried.solved

        def continues(carry: tuple) -> B0:
            count, *_, reached, solved = carry
            return (reached > 1) & ~solved & (count < self.max_iterations)

        zero, none, false = jnp.zeros_like(b), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        count, *_, best, _, _ = lax.while_loop(continues, body, (none, zero, zero, zero, excess(zero), false))
        return Impulses(scale * best, count, none)
