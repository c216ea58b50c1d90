"""The contact problem for given matrices, without a mechanical system: a differentiable function of arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from ...jaxtools import linalg
from ...jaxtools.argument_checks import check_kind, is_traced
from ...jaxtools.array_types import B0, F0, I0, F_m, F_mm, F_mr, F_nn
from ...jaxtools.derivative_rules import implicit_root
from ..contacts import Contacts
from ..status import Status, as_status
from .active_set import ActiveSet
from .solver import ContactSolver, closing_speed, complementarity, resolved


class ContactSolution(NamedTuple):
    """Solution of one contact problem of m contacts.

    ``impulse`` x (m,), or (m, 1 + k) with friction; ``velocity`` of the contacts after it, A x + b, of the same shape;
    ``residual`` () of the natural map [velocity]; ``iterations`` (); ``status`` (), bits of `Status`:
    CONTACTS_NOT_SOLVED where no impulses make all gap velocities >= 0, CONTACTS_NOT_SOLVED where the residual is above
    the solver's tolerance, INPUT_INVALID where a traced matrix is not symmetric and positive semidefinite, or a traced
    coefficient of friction not >= 0.
    """

    impulse: Array
    velocity: Array
    residual: F0
    iterations: I0
    status: I0


def solve_contact(
    delassus: ArrayLike,
    velocity: ArrayLike,
    friction: ArrayLike | None = None,
    *,
    solver: ContactSolver | None = None,
    guess: ArrayLike | None = None,
) -> ContactSolution:
    """Solves 0 <= x _|_ A x + b >= 0, a quadratic program on the half-lines x >= 0;
    with friction the same on Coulomb's cones.

    Forward and reverse mode give the derivative by A, b and mu with the active set (the modes) of the solution held
    fixed. For a batch of problems use `jax.vmap`, which suits all solvers.

    Args:
        delassus: A (m, m), symmetric and positive semidefinite, G M^-1 G' of a mechanical system; with friction (m (1 +
            k), m (1 + k)), contact by
            contact: normal, then the k = 1 or 2 tangents.
        velocity: b (m,), gap velocities without impulses, restitution included: b = u + e u_before;
            with friction (m, 1 + k).
        friction: mu >= 0, () or (m,).
        solver: a contact solver; by default `ActiveSet`, which is exact.
        guess: impulses to start from, in the shape of ``velocity``, such as those of the previous step;
            by default zeros.

    Returns:
        A `ContactSolution`.

    Raises:
        ValueError, TypeError: a shape that does not fit, a matrix that is not finite, symmetric and positive
            semidefinite, a negative coefficient of friction.
    """
    solver = ActiveSet() if solver is None else solver
    check_kind("solver", solver, ContactSolver, "a contact solver such as ActiveSet()")
    b = jnp.asarray(velocity)
    b = b if jnp.issubdtype(b.dtype, jnp.floating) else b.astype(jnp.result_type(float))
    a = jnp.asarray(delassus, b.dtype)
    rubs, mu = friction is not None, cast(Any, friction)
    if b.ndim not in (1, 2) or (b.ndim == 2) != rubs or (rubs and b.shape[1] not in (2, 3)):
        raise ValueError(f"velocity must have shape (m,), and (m, 2) or (m, 3) with friction; got {b.shape}" + (""
            if rubs else ", without friction"))  # fmt: skip
    if a.shape != (b.size, b.size):
        raise ValueError(
            f"delassus must have shape ({b.size}, {b.size}) for a velocity of shape {b.shape}, got {a.shape}"
        )
    start = jnp.zeros_like(b) if guess is None else jnp.asarray(guess, b.dtype)
    if start.shape != b.shape:
        raise ValueError(f"guess must have the shape of velocity, {b.shape}, got {start.shape}")
    if rubs:
        if not is_traced(mu) and not np.all(np.asarray(mu) >= 0):
            raise ValueError(f"friction must be >= 0, got {mu!r}")
        if np.shape(mu) not in ((), b.shape[:1]):
            raise ValueError(f"friction must be a number or have shape {b.shape[:1]}, got {np.shape(mu)}")
    if not is_traced(delassus):
        _check_semidefinite(np.asarray(delassus, b.dtype))
    if b.size == 0:
        none = jnp.zeros((), jnp.int32)
        return ContactSolution(b, b, jnp.zeros((), b.dtype), none, none)
    found = _on_cones(a, b, mu, solver, start) if rubs else _on_half_lines(a, b, solver, start)
    wrong = ~_is_semidefinite(lax.stop_gradient(a)) if is_traced(delassus) else jnp.zeros((), bool)
    if rubs:
        wrong |= ~jnp.all(jnp.asarray(mu) >= 0)
    return found._replace(status=found.status | as_status(wrong, Status.INPUT_INVALID))


def _rounding(a: Array | np.ndarray, xp: ModuleType) -> Array:
    """Returns the error () up to which a computed matrix counts as symmetric, and an eigenvalue as zero."""
    return 1e4 * jnp.finfo(a.dtype).eps * xp.max(xp.abs(a), initial=0.0)


def _check_semidefinite(a: np.ndarray) -> None:
    if not np.all(np.isfinite(a)):
        raise ValueError("delassus must be finite")
    small = _rounding(a, np)
    if np.any(np.abs(a - a.T) > small):
        raise ValueError("delassus must be symmetric, G M^-1 G' of one mass matrix and the gradients of the gaps")
    least = np.min(np.linalg.eigvalsh(a), initial=0.0)
    if least < -small:
        raise ValueError(
            "delassus must be positive semidefinite, G M^-1 G' of a positive definite mass matrix: its least "
            f"eigenvalue is {least:.3g}"
        )


def _is_semidefinite(a: F_mm) -> B0:
    """Whether a matrix (m, m) is symmetric and positive semidefinite, up to round-off, ()."""
    small = _rounding(a, jnp)
    factor = linalg.factorise(a + (small + jnp.finfo(a.dtype).tiny) * jnp.eye(len(a), dtype=a.dtype))
    pivots = jnp.diagonal(factor)
    return jnp.all(jnp.abs(a - a.T) <= small) & jnp.all(jnp.isfinite(pivots) & (pivots > 0))


def _on_cones(a: F_nn, b: F_mr, friction: Array | None, solver: ContactSolver, start: F_mr) -> ContactSolution:
    speed = jnp.max(jnp.abs(lax.stop_gradient(b)), initial=0.0)
    allowed = solver.allowed(speed)
    candidates = jnp.ones(b.shape[0], bool)
    x, iterations, residual = solver.frictional_impulses(
        a, b, jnp.asarray(friction, b.dtype), start, candidates, allowed
    )
    w = (a @ x.ravel()).reshape(b.shape) + b
    return ContactSolution(
        x, w, residual, iterations, as_status(~(residual <= resolved(a, x, 2 * allowed)), Status.CONTACTS_NOT_SOLVED)
    )


def _on_half_lines(a: F_mm, b: F_m, solver: ContactSolver, start: F_m) -> ContactSolution:
    diagonal = jnp.diagonal(a)

    def solve(_: Callable, start: F_m) -> tuple[F_m, Array]:
        known, offset = lax.stop_gradient((a, b))
        # unit masses that are pushed by G = 1: the response is the matrix
        contacts = Contacts.of(jnp.zeros_like(offset), jnp.eye(offset.size, dtype=offset.dtype), known)
        found = solver.impulses(contacts, offset, solver.allowed(closing_speed(offset)), start)
        counts = jnp.stack([found.iterations, found.status]).astype(offset.dtype)  # carried as real numbers
        return found.impulse, counts

    def equations(x: F_m) -> F_m:
        return jnp.where(lax.stop_gradient(x) > 0, a @ x + b, x)

    def tangent(linear: Callable, y: F_m) -> F_m:
        matrix: Array = jax.jacfwd(linear)(jnp.zeros_like(y))
        # dependent contacts: a shift by round-off, and one step of refinement
        shift = 64 * jnp.finfo(y.dtype).eps * jnp.max(jnp.abs(matrix), initial=0.0)
        inverse = linalg.inverse(matrix + shift * jnp.eye(y.size, dtype=y.dtype))
        x = inverse @ y
        return x + inverse @ (y - matrix @ x)

    x, counts = implicit_root(equations, start, solve, tangent)
    iterations, status = lax.stop_gradient(counts).astype(jnp.int32)
    w = a @ x + b
    residual = lax.stop_gradient(jnp.max(complementarity(w, x, diagonal), initial=0.0))
    allowed = resolved(a, x, 2 * solver.allowed(closing_speed(lax.stop_gradient(b))))
    failed = as_status(~(residual <= allowed), Status.CONTACTS_NOT_SOLVED)
    return ContactSolution(x, w, residual, iterations, status | failed)
