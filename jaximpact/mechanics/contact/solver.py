"""Interface of contact solvers, which solve one linearised contact problem, and the residuals that all of them use.

The problem is the linear complementarity problem 0 <= L _|_ A L + b >= 0 with the Delassus matrix A = G M^-1 G', in
gap velocities [unit of f per unit of time]: tolerances and residuals are free of the factor 1/h that amplifies an error
in position. The interface for steps is in `laws`; curved constraints and derivatives are in `solved`.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.array_types import F0, I0, B_m, F_d, F_m, F_mr, F_nn
from ..contacts import Contacts
from .friction.cone_products import Scaled, frictional_impulses_by_products
from .friction.cone_solver import frictional_impulses, solve_exactly


class Impulses(NamedTuple):
    """Solution of one linearised problem: impulse (m,), iterations (), status bits (),
    velocity jump (d,) or None if not computed."""

    impulse: F_m
    iterations: I0
    status: I0
    jump: F_d | None = None

    def jumped(self, contacts: Contacts) -> F_d:
        """Returns the velocity jump (d,) of the impulses."""
        return contacts.jump(self.impulse) if self.jump is None else self.jump


class ContactSolver(abc.ABC):
    """Base class of contact solvers, for the problem of one linearisation; a new one must define only ``impulses``.

    It may use these methods of ``contacts``: ``shape``, the numbers (m, d); ``velocity(v)`` = G v; ``jump(L)`` = M^-1
    G' L; and ``diagonal()`` of the Delassus matrix. A solver for few contacts may also use the matrix, ``delassus()``,
    which contacts of neighbour lists do not have. Gaps, their time derivatives and the motion before are contained in
    the offset. Constraints that are masked out have zero gradients.

    Attributes:
        tolerance: the KKT residual to reach [velocity]; None for ``relative`` times the speed at which contacts close.
            It is raised to the round-off floor where that is larger.
        relative: the default tolerance, relative to the closing speed.
        max_linearisations: largest number of SQP iterations for curved constraints.
        takes_lists: whether it uses no matrix, so that contacts may be those of a neighbour list of bodies.
        warm_starts: whether ``guess`` is used; above eight constraints gradients are then kept for several corrections.
    """

    tolerance: float | None
    max_linearisations: int
    relative: ClassVar[float] = 1e-12
    warm_starts: ClassVar[bool] = True
    takes_lists: ClassVar[bool] = False

    @abc.abstractmethod
    def impulses(self, contacts: Contacts, offset: F_m, tolerance: Array | float, guess: F_m) -> Impulses:
        """Solves L >= 0, w = A L + offset >= 0, L w = 0 for the impulses L, to a residual of ``tolerance``, () or (m,),
        from ``guess`` (m,)."""

    def frictional_impulses(
        self, delassus: F_nn, offset: F_mr, friction: Array, guess: F_mr, candidates: B_m, tolerance: Array | float
    ) -> tuple[F_mr, I0, F0]:
        """Solves for impulses (m, 1 + k) of contacts with Coulomb friction; arguments and results as of
        `cone_solver.frictional_impulses`.

        Unless a solver overrides this method, `cone_solver.solve_exactly` solves the problem.
        """
        return frictional_impulses(delassus, offset, friction, guess, candidates, tolerance, method=solve_exactly)

    def frictional_impulses_of_list(
        self, contacts: Any, offset: F_mr, candidates: B_m, allowed: F_m, guess: F_mr
    ) -> tuple[F_mr, I0]:
        """Solves for impulses (m, 1 + k) of contacts with friction in a neighbour list; for solvers that take lists.

        Args:
            offset: velocities (m, 1 + k) of gaps and slips without impulses.
            candidates: mask (m,) of the contacts that may have an impulse.
            allowed: natural residual (m,) to reach [velocity].
            guess: impulses (m, 1 + k) to start from.

        Returns:
            the impulses, and the number of iterations (). Unless a solver overrides this method, they are computed by
            `cone_products.frictional_impulses_by_products`.
        """
        jump, velocity, diagonal = contacts.friction_products()
        problem = Scaled.of(diagonal, offset, contacts.slip.friction, candidates, allowed)
        limit: int = self.max_iterations  # type: ignore[attr-defined]
        return frictional_impulses_by_products(lambda x: velocity(jump(x)), problem, guess, limit)

    def allowed(self, speed: F0) -> Array | float:
        """Returns the KKT residual () to be reached [velocity] for contacts of which the
        fastest closes at ``speed`` ()."""
        if self.tolerance is not None:
            return self.tolerance
        return jnp.maximum(self.relative * speed, jnp.finfo(speed.dtype).tiny)

    def direct(self, m: int) -> bool:
        """Tests whether ``impulses`` is straight-line code, exact to round-off, for m constraints."""
        return False

    def working_sets(self, m: int, d: int) -> tuple[int, ...]:
        """Returns the increasing sizes of the working sets that the solver is given,
        for m constraints on d coordinates.

        Constraints outside a working set are checked afterwards; if one is violated, the solver is called again.
        """
        return (m,)


def closing_speed(gap_velocity: F_m) -> F0:
    """Returns the largest closing speed () of any contact, given gap velocities (m,); 0 if none closes."""
    return jnp.max(-gap_velocity, initial=0.0)


def resolved(delassus: F_nn, impulse: Array, allowed: Array | float) -> F0:
    """Returns the residual () [velocity] up to which impulses x count as a solution: ``allowed``,
    or the round-off of A x where that is larger.

    ``delassus`` A (n, n); ``impulse`` x, of n entries in any shape. Where a body turns easily A x is far larger than
    the velocities that it cancels.
    """
    size = jnp.max(jnp.abs(delassus) @ jnp.abs(impulse.ravel()), initial=0.0)
    return lax.stop_gradient(jnp.maximum(allowed, 64 * jnp.finfo(impulse.dtype).eps * size))


def complementarity(velocity: F_m, impulse: F_m, diagonal: F_m) -> F_m:
    """Returns the natural residual of 0 <= L _|_ w >= 0 as velocities (m,): |min(w, A_aa L)|."""
    return jnp.abs(jnp.minimum(velocity, diagonal * impulse))


def unit_scaling(contacts: Contacts) -> tuple[F_m, B_m, F_m, F_m]:
    """Returns the factors that scale a Delassus matrix to a unit diagonal, in four arrays (m,).

    They are its diagonal; a mask of the constraints that have a gradient; the square root of the diagonal; and its
    inverse, by which rows and columns are multiplied. Constraints without gradient, which are masked out,
    have root 1 and inverse 0.
    """
    diagonal = contacts.diagonal()
    present = diagonal > 0
    root = jnp.sqrt(jnp.where(present, diagonal, 1))
    return diagonal, present, root, jnp.where(present, 1 / root, 0)
