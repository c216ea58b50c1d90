"""The one derivative that all contact solvers share: that of the solution, whatever iteration found it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from ...jaxtools import linalg
from ...jaxtools.derivative_rules import implicit_root
from ...jaxtools.linalg import near_one, solve_by_products
from .laws import Reaction


def reaction(residual: Callable, solve: Callable, d: int, m: int, dtype: Any, dense: bool = True) -> Reaction:
    """A root (jump, impulse) of ``residual``, found by ``solve()`` with (residual, iterations, status) beside it.

    Forward and reverse mode follow from the implicit function theorem at the solution with the active set frozen.
    Dependent active gradients are regularised by round-off: the jump's derivative is then still right, the split between
    impulses is the one of least weighted norm. Unless ``dense``, by products with contacts alone.
    """

    def found(_: Any, guess: Any) -> tuple:
        root, aux = solve()
        # carried as real numbers
        return root, tuple(x.astype(dtype) for x in aux)

    guess = (jnp.zeros(d, dtype), jnp.zeros(m, dtype))
    (jump, impulse), aux = implicit_root(residual, guess, found, _tangent if dense else _tangent_by_products)
    error, iterations, status = lax.stop_gradient(aux)
    return Reaction(jump, impulse, impulse > 0, error, iterations.astype(jnp.int32), status.astype(jnp.int32))


def _tangent(linear: Callable, y: tuple[Array, Array]) -> tuple[Array, Array]:
    """x = (jump, impulse) with ``linear(x) = y``, by block elimination, with everything that multiplies y kept free of it
    (it is transposed in reverse mode)."""
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


def _tangent_by_products(linear: Callable, y: tuple[Array, Array]) -> tuple[Array, Array]:
    """The same by conjugate gradients, where ``linear`` is (P jump - J impulse, G jump of closed contacts and impulse of open ones)
    with P near 1: 1 where gaps are linear, else less by what gradients turn in a step."""
    none = jnp.zeros_like(y[0]), jnp.zeros_like(y[1])
    opened = linear((none[0], jnp.ones_like(y[1])))[1] != 0
    closed = lambda x: jnp.where(opened, 0, x)
    moved = lambda jump: near_one(lambda x: linear((x, none[1]))[0], jump)
    pushed = lambda impulse: moved(-linear((none[0], impulse))[0])
    velocity = lambda jump: closed(linear((jump, none[1]))[1])
    # open contacts have their impulse at once
    upper = moved(y[0]) + pushed(jnp.where(opened, y[1], 0))
    delassus = lambda x: velocity(pushed(closed(x)))
    impulse = jnp.where(opened, y[1], solve_by_products(delassus, closed(y[1]) - velocity(upper)))
    return moved(y[0]) + pushed(impulse), impulse
