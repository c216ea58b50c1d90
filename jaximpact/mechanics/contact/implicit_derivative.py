"""Derivative of a contact problem's solution by the implicit function theorem, shared by all solvers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from ...jaxtools import linalg
from ...jaxtools.array_types import F_d, F_m
from ...jaxtools.derivative_rules import implicit_root
from ...jaxtools.linalg import solve_matrix_free, solve_near_identity
from ..contacts import Contacts
from ..friction import FrictionInfo
from .laws import Reaction


def reaction(
    residual: Callable,
    solve: Callable,
    d: int,
    m: int,
    dtype: DTypeLike,
    dense: bool = True,
    contacts: Contacts | None = None,
) -> Reaction:
    """Returns the reaction whose x = (jump (d,), impulse (m,)) is the root of the function ``residual(x)``,
    with derivatives.

    ``solve()`` returns this root, and (residual, iterations, status). Forward and reverse mode follow from the implicit
    function theorem at the solution with the active set held fixed. Dependent active gradients are regularised by
    round-off: the jump's derivative is then still right, and the split between impulses is the one of least weighted
    norm. Unless ``dense``, only products with gradients are used, no matrix. If the residual is linear, its
    ``contacts`` may be given: the equations of the derivative are then solved for the acting contacts only.
    """

    def found(_: object, guess: object) -> tuple:
        root, aux = solve()
        # carried as real numbers
        return root, tuple(x.astype(dtype) for x in aux)

    guess = (jnp.zeros(d, dtype), jnp.zeros(m, dtype))
    tangent = _tangent if dense else _tangent_by_products
    if dense and contacts is not None:
        tangent = partial(_tangent_of_acting, contacts)
    (jump, impulse), aux = implicit_root(residual, guess, found, tangent)
    error, iterations, status = lax.stop_gradient(aux)
    numbers = iterations.astype(jnp.int32), status.astype(jnp.int32)
    return Reaction(jump, impulse, impulse > 0, error, *numbers, FrictionInfo.none(m, 0, dtype))


def _tangent(linear: Callable, y: tuple[F_d, F_m]) -> tuple[F_d, F_m]:
    """Solves ``linear(x) = y`` for x = (jump, impulse) by block elimination.

    Reverse mode transposes this function, which must therefore be linear in y:
    no factor that multiplies y may depend on y.
    """
    flat, unravel = ravel_pytree(y)
    d = y[0].size
    matrix = jax.jacfwd(lambda x: ravel_pytree(linear(unravel(x)))[0])(jnp.zeros_like(flat))
    primal = linalg.inverse(matrix[:d, :d])
    coupling = primal @ matrix[:d, d:]
    schur = matrix[d:, d:] - matrix[d:, :d] @ coupling
    dual = linalg.inverse(schur + jnp.diag(64 * jnp.finfo(flat.dtype).eps * jnp.diag(schur)))
    upper = primal @ flat[:d]
    lower = dual @ (flat[d:] - matrix[d:, :d] @ upper)
    return unravel(jnp.concatenate([upper - coupling @ lower, lower]))


def _tangent_of_acting(contacts: Contacts, linear: Callable, y: tuple[F_d, F_m]) -> tuple[F_d, F_m]:
    """Solves ``linear(x) = y`` for x = (jump, impulse) by the Delassus matrix of the acting contacts.

    ``linear`` is (jump - R impulse, G jump of acting contacts and impulse of the others),
    with the response R = M^-1 G'.
    """
    acting = linear((jnp.zeros_like(y[0]), jnp.ones_like(y[1])))[1] == 0
    known = jnp.where(acting, 0, y[1])
    free = y[0] + contacts.jump(known)
    impulse = known + contacts.balance()(contacts.velocity(free) - y[1], acting)
    return y[0] + contacts.jump(impulse), impulse


def _tangent_by_products(linear: Callable, y: tuple[F_d, F_m]) -> tuple[F_d, F_m]:
    """Solves ``linear(x) = y`` for x = (jump, impulse) by conjugate gradients.

    ``linear`` is (P jump - R impulse, G jump of closed contacts and impulse of open ones), with the response R = M^-1
    G'; P is the identity for linear gaps and otherwise differs from it by the turning of the gradients in a step.
    """
    none = jnp.zeros_like(y[0]), jnp.zeros_like(y[1])
    opened = linear((none[0], jnp.ones_like(y[1])))[1] != 0
    closed = lambda x: jnp.where(opened, 0, x)
    moved = lambda jump: solve_near_identity(lambda x: linear((x, none[1]))[0], jump)
    pushed = lambda impulse: moved(-linear((none[0], impulse))[0])
    velocity = lambda jump: closed(linear((jump, none[1]))[1])
    # the impulses of open contacts are known
    upper = moved(y[0]) + pushed(jnp.where(opened, y[1], 0))
    delassus = lambda x: velocity(pushed(closed(x)))
    impulse = jnp.where(opened, y[1], solve_matrix_free(delassus, closed(y[1]) - velocity(upper)))
    return moved(y[0]) + pushed(impulse), impulse
