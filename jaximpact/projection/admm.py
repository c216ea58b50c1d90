"""ADMM on the dual (impulses), over-relaxed, with a final exact solve on the active set it identifies.

References: S. Boyd et al., Found. Trends Mach. Learn. 3 (2011); E. Ghadimi et al., IEEE Trans. Autom. Control 60 (2015)
for the penalty; B. Stellato et al., OSQP, Math. Prog. Comp. 12 (2020) for the polishing step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..contact import Contacts
from .base import ContactSolver, Impulses, complementarity, unit_scaling


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ADMM(ContactSolver):
    """Alternating direction method of multipliers: one factorisation, then products; steady on ill-conditioned contacts.

    The penalty is the geometric mean of the extreme non-zero eigenvalues of the scaled Delassus matrix, optimal for a
    quadratic objective.

    Attributes:
        tolerance: KKT residual [gap velocity].
        max_linearisations: SQP iterations for curved constraints.
        max_iterations: ADMM iterations for each linearisation.
        relaxation: over-relaxation factor in (0, 2).
    """

    tolerance: float = 1e-12
    max_linearisations: int = 50
    max_iterations: int = field(default=2000, metadata={"static": True})
    relaxation: float = 1.6

    warm_starts = False

    def impulses(self, contacts: Contacts, offset: Array, tolerance: Array, guess: Array) -> Impulses:
        diagonal, present, root, scale = unit_scaling(contacts)
        a = scale[:, None] * contacts.delassus() * scale[None, :]
        b = jnp.where(present, offset * scale, 1)
        eps = jnp.finfo(b.dtype).eps

        values, vectors = jnp.linalg.eigh(0.5 * (a + a.T))
        largest = jnp.max(jnp.abs(values), initial=0.0)
        smallest = jnp.min(jnp.where(values > 1e-6 * largest, values, jnp.inf), initial=jnp.inf)
        penalty = jnp.sqrt(jnp.where(jnp.isfinite(smallest), smallest * largest, 1.0))

        def resolvent(x: Array) -> Array:
            return vectors @ ((vectors.T @ x) / (values + penalty))

        def excess(z: Array) -> Array:
            velocity = jnp.where(present, root * (a @ z + b), offset)
            return jnp.max(complementarity(velocity, scale * z, diagonal) / tolerance, initial=0.0)

        def body(carry: tuple) -> tuple:
            count, z, u, _ = carry
            x = resolvent(penalty * (z - u) - b)
            relaxed = self.relaxation * x + (1 - self.relaxation) * z
            z_new = jnp.maximum(0, relaxed + u)
            return count + 1, z_new, u + relaxed - z_new, excess(z_new)

        def going(carry: tuple) -> Array:
            return (carry[-1] > 1) & (carry[0] < self.max_iterations)

        zero = jnp.zeros_like(b)
        start = (jnp.zeros((), jnp.int32), zero, zero, excess(zero))
        count, z, _, reached = lax.while_loop(going, body, start)

        # polish: A z = -b on the identified active set, regularised by round-off, refined once
        active = z > 0
        both = active[:, None] & active[None, :]
        system = jnp.where(both, a, 0) + jnp.diag(jnp.where(active, 64 * eps, 1.0))
        inverse = jnp.linalg.inv(system)
        polished = inverse @ jnp.where(active, -b, 0)
        polished = polished - inverse @ jnp.where(active, a @ polished + b, 0)
        polished = jnp.where(active, jnp.maximum(polished, 0), 0)
        impulse = scale * jnp.where(excess(polished) < reached, polished, z)
        return Impulses(impulse, count, jnp.zeros((), jnp.int32))
