"""Constraints linearised at one configuration, as contact laws, solvers and schemes see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..jaxtools import linalg
from ..jaxtools.array_types import B0, I0, B_m, B_mm, F_d, F_dm, F_m, F_md, F_mk, F_mm, F_n
from .friction import Slip

if TYPE_CHECKING:
    from .linearisation import Metric

CANCELLING = 1e-6  # by how much the cosine between the two sides of a bilateral constraint may differ from -1
ORTHOGONAL = 0.02  # largest cosine between gradients that counts as orthogonal (its error is O(h) where gradients turn)


class Contacts(NamedTuple):
    """Constraints linearised at one configuration, as dense arrays.

    ``gap`` f (m,), ``jacobian`` G = df/dq (m, d), ``response`` M^-1 G' (d, m), ``drift`` f_t (m,), zero in projections
    of positions; ``slip``, the tangential rows, in steps with friction, else of k = 0 tangents; ``gram``, the Delassus
    matrix (m, m) if it has been computed, else None. Schemes and solvers use the methods. Contacts between listed
    bodies (`bodies.contacts.PairContacts`) have all of them but `delassus`, `angles` and `oblique`,
    which give (m, m) matrices.
    """

    gap: F_m
    jacobian: F_md
    response: F_dm
    drift: F_m
    slip: Slip
    gram: F_mm | None = None

    @classmethod
    def of(cls, gap: F_m, jacobian: F_md, response: F_dm, drift: F_m | None = None) -> Contacts:
        """Makes contacts without tangential rows; by default without drift."""
        m, d = jacobian.shape
        drift = jnp.zeros_like(gap) if drift is None else drift
        return cls(gap, jacobian, response, drift, Slip.none(m, d, jacobian.dtype))

    @property
    def dense(self) -> bool:
        """Whether (m, m) matrices are available."""
        return True

    @property
    def symmetric(self) -> bool:
        """Whether the Delassus matrix is symmetric."""
        return True

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of contacts m and of coordinates d."""
        m, d = self.jacobian.shape
        return m, d

    @property
    def resolution(self) -> float:
        """Smallest round-off to assume when gaps are compared."""
        return 0.0

    @property
    def slack(self) -> int:
        """Multiples of the round-off by which contacts may overlap at a start."""
        return 1

    def velocity(self, v: F_d) -> F_m:
        """Returns G v (m,), the change of the gap velocities for a velocity change v (d,)."""
        return self.jacobian @ v

    def gap_velocity(self, v: F_d) -> F_m:
        """Returns the gap velocities G v + f_t, (m,)."""
        return self.velocity(v) + self.drift

    def jump(self, impulse: F_m) -> F_d:
        """Returns the velocity jump M^-1 G' L (d,) of impulses L (m,)."""
        return self.response @ impulse

    def push(self, impulse: F_m) -> F_d:
        """Returns the generalised impulse G' L (d,) of impulses L (m,)."""
        return self.jacobian.T @ impulse

    def velocity_terms(self, v: F_d) -> F_m:
        """Returns |G| |v| (m,), the magnitude of the terms of `velocity`, for its round-off."""
        return jnp.abs(self.jacobian) @ jnp.abs(v)

    def by_entry(self, *numbers: Array) -> tuple[Array, ...]:
        """Returns the magnitudes |G| of the gradients' entries (d, m), and each of the ``numbers`` (d,) of the
        coordinates, repeated for every contact, (d, m). Contacts of bodies give the entries of two bodies only."""
        return jnp.abs(self.jacobian.T), *(jnp.broadcast_to(x[:, None], self.jacobian.T.shape) for x in numbers)

    def jump_terms(self, impulse: F_m) -> F_d:
        """Returns |M^-1 G'| |L| (d,), the magnitude of the terms of `jump`, for its round-off."""
        return jnp.abs(self.response) @ jnp.abs(impulse)

    def largest(self, x: F_n) -> F_m:
        """Returns for each contact (m,) the largest of the numbers x (n,) >= 0 of the parts of the coordinates that it
        depends on; the coordinates are cut into n equal parts."""
        return jnp.max(jnp.where(self._parts(len(x)), x, 0), axis=1, initial=0.0)

    def spread(self, x: F_m, parts: int) -> F_n:
        """Returns for each of the n equal ``parts`` of the coordinates the largest of the numbers x (m,) >= 0 of the
        contacts that depend on it, (n,)."""
        return jnp.max(jnp.where(self._parts(parts), x[:, None], 0), axis=0, initial=0.0)

    def _parts(self, n: int) -> Array:
        """Returns the mask (m, n) of which of n equal parts of the coordinates each contact depends on, or moves,
        friction included."""
        (m, d), slip = self.shape, self.slip
        used = (self.jacobian != 0) | (self.response.T != 0)
        if slip.k:
            used |= jnp.any((slip.jacobian != 0) | (jnp.moveaxis(slip.response, 0, 2) != 0), axis=1)
        return jnp.any(used.reshape(m, n, d // n), axis=2)

    def diagonal(self) -> F_m:
        """Returns the diagonal of the Delassus matrix, (m,)."""
        return jnp.sum(self.jacobian * self.response.T, axis=1)

    def delassus(self) -> F_mm:
        """Returns the Delassus matrix G M^-1 G', (m, m)."""
        return self.jacobian @ self.response if self.gram is None else self.gram

    def with_delassus(self) -> Contacts:
        """Returns a copy that stores its Delassus matrix, for solvers that need it many times."""
        return self._replace(gram=self.delassus())

    def angles(self) -> F_mm:
        """Returns the cosines of the angles between the constraints' gradients in the metric M^-1, (m, m)."""
        matrix = self.delassus()
        scale = 1 / jnp.sqrt(jnp.maximum(jnp.diagonal(matrix), jnp.finfo(matrix.dtype).tiny))
        return matrix * scale[:, None] * scale[None, :]

    def oblique(self) -> B_mm:
        """Returns the mask (m, m) of pairs of contacts whose gradients are not orthogonal in the metric M^-1."""
        matrix = self.delassus()
        diagonal = linalg.diagonal(matrix)
        large = matrix**2 > ORTHOGONAL**2 * diagonal[:, None] * diagonal[None, :]
        return large & ~jnp.eye(len(diagonal), dtype=bool)

    def norms(self) -> F_m:
        """Returns the lengths (m,) of the gradients in the metric M^-1, which convert gaps to distances;
        1 for zero gradients."""
        diagonal = self.diagonal()
        return jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1))

    def rooms(self) -> F_mm:
        """Returns for each pair of contacts the sum of both gaps, as distances, (m, m): of opposing contacts that is
        the clearance between them."""
        distance = self.gap / self.norms()
        return distance[:, None] + distance[None, :]

    def joined(self, q: F_d) -> tuple[B_mm, B_mm]:
        """Returns masks (m, m) of pairs of contacts that are, and that may be,
        the two sides f >= 0 and -f >= 0 of a bilateral constraint.

        The gradients of two sides, scaled to length 1 in the metric M^-1, add up to zero, and so do their gaps; the
        position q (d,) gives the round-off. For the second mask the sum of the gaps may be a tenth of their difference:
        if the two sides are written differently, gaps that have drifted off the constraint add up to zero only
        up to the square of the drift.
        """
        norm, room = self.norms(), jnp.abs(self.rooms())
        cancel = self.angles() < CANCELLING - 1
        gap, rounding = self.gap / norm, 1e3 * jnp.finfo(q.dtype).eps * self.velocity_terms(q) / norm
        drift, rounding = jnp.abs(gap[:, None] - gap[None, :]), rounding[:, None] + rounding[None, :]
        return cancel & (room <= rounding), cancel & (room <= rounding + 0.1 * drift)

    def beside(self, q: F_d, sides: B_m) -> B_m:
        """Finds the contacts (m,) that may form a bilateral constraint at q (d,) with one of
        the contacts ``sides`` (m,)."""
        return jnp.any(self.joined(q)[1] & sides[None, :], axis=1) if len(sides) > 1 else jnp.zeros_like(sides)

    def coupled(self, acting: B_m) -> B0:
        """Tests whether any two of the contacts ``acting`` (m,) have gradients that are not
        orthogonal in the metric M^-1, ()."""
        return jnp.any(self.oblique() & acting[:, None] & acting[None, :])

    def balanced(self, closed: B_m) -> Callable[[F_m], F_m]:
        """Returns a function offset (m,) -> L (m,), impulses with A L + offset = 0 at ``closed`` contacts (m,), A the
        Delassus matrix; 0 elsewhere."""
        rows, columns, matrix = self.jacobian, self.response, self.gram
        if self.symmetric and linalg.MAX_UNROLLED < len(rows) <= linalg.MOST:
            solver = linalg.semidefinite_solver(rows, columns, self.delassus(), closed)
            return lambda offset: solver(-offset)
        if matrix is None and len(rows) > linalg.MANY:
            return lambda offset: linalg.solve_among(rows, columns, -offset, closed)
        matrix = self.delassus()
        return lambda offset: linalg.solve_masked(matrix, -offset, closed)

    def balance(self) -> Callable[[F_m, B_m], F_m]:
        """Returns the function (offset (m,), closed (m,)) -> L (m,) of `balanced`."""
        most = linalg.MOST if self.symmetric else linalg.MANY
        contacts = self.with_delassus() if len(self.jacobian) <= most else self
        return lambda offset, closed: contacts.balanced(closed)(offset)

    def walked(
        self, products: Callable, offset: F_m, tolerance: Array, guess: F_m, limit: int
    ) -> tuple[F_m, I0, F_d | None]:
        """Solves the problem of `ContactSolver.impulses` by a function ``products``,
        which uses products with gradients only.

        It is called with (self, offset, tolerance, guess) and returns impulses (m,) and the number of iterations;
        contacts of listed bodies may use native code instead. Returns the impulses, the number of iterations (at most
        ``limit``), and the velocity jump, None where it was not computed.
        """
        return *products(self, offset, tolerance, guess), None

    def at(self, gap: F_m) -> Contacts:
        """Returns a copy with other gaps (m,)."""
        return self._replace(gap=gap)

    def take(self, rows: Array | None) -> Contacts:
        """Returns the contacts with the numbers ``rows`` (k,), or all of them for None."""
        if rows is None:
            return self
        return type(self).of(self.gap[rows], self.jacobian[rows], self.response[:, rows], self.drift[rows])

    def under(self, metric: Metric) -> Contacts:
        """Returns a copy whose responses are those of another `Metric`."""
        return metric.kind(
            *self._replace(response=metric.solve(self.jacobian.T), slip=self.slip.under(metric), gram=None)
        )

    def sliding(self, v: F_d) -> Contacts:
        """Returns a copy for a contact law whose impulses act at velocity v (d,):
        the slip ``velocity`` is that at v."""
        return self._replace(slip=self.slip.sliding(v))

    def rubbing(self, slip: Slip) -> Contacts:
        """Returns a copy with ``slip`` in place of its tangential rows."""
        return self._replace(slip=slip)

    def leaning(self, slip: Slip, along: F_mk) -> Contacts:
        """Returns contacts without tangential rows, whose normal impulses bring tangential ones, ``along`` (m, k) times
        as large, at the rows of ``slip``."""
        response = self.response + jnp.einsum("dmk,mk->dm", slip.response, along)
        return AskewContacts.of(self.gap, self.jacobian, response, self.drift)

    def masked(self, active: B_m) -> Contacts:
        """Returns a copy in which the gradients of contacts that are not ``active`` (m,) are zero."""
        rows, columns = jnp.where(active[:, None], self.jacobian, 0), jnp.where(active[None, :], self.response, 0)
        return self._replace(jacobian=rows, response=columns, gram=None)


class AskewContacts(Contacts):
    """Contacts whose responses are those of an iteration matrix that need not be symmetric
    (`Metric.from_iteration_matrix`)."""

    @property
    def symmetric(self) -> bool:
        return False
