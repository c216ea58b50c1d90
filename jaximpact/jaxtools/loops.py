"""`while_loop`: a `lax.while_loop` whose body jax differentiates and batches only once,
however its carried values depend on each other.

To find out which carried values have a tangent, or differ between lanes, jax differentiates and batches the body of a
loop repeatedly; a large body then takes several times as long to trace as necessary. Here the values with a tangent are
found first, from the jaxpr of the body.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr
from jax.typing import ArrayLike

from .jaxpr_tools import moving_outputs

T = TypeVar("T")


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def while_loop(continues: Callable, body: Callable, constants: object, carry: T) -> T:
    """Repeats ``carry = body(constants, carry)`` while ``continues(constants, carry)``, and returns the last carry,
    as `lax.while_loop`.

    Neither function may close over traced values: these are passed as ``constants``.
    """
    return lax.while_loop(partial(continues, constants), partial(body, constants), carry)


@partial(while_loop.defjvp, symbolic_zeros=True)
def _(continues: Callable, body: Callable, primals: tuple, tangents: tuple) -> tuple[object, object]:
    leaves, structure = jax.tree.flatten(primals)
    changes = jax.tree.leaves(tangents, is_leaf=lambda x: isinstance(x, SymbolicZero))
    count = len(jax.tree.leaves(primals[0]))
    moves = [not isinstance(t, SymbolicZero) and t.size > 0 for t in changes]
    if not any(moves):
        out = while_loop(continues, body, *primals)
        return out, jax.tree.map(_no_change, out)
    seed = changes[moves.index(True)].ravel()[0]
    closed = jax.make_jaxpr(body)(*primals)
    moves = [*moves[:count], *_moving_carry(closed, moves[:count], moves[count:])]
    # zeros that are batched with the tangents, as what the loop makes of them is
    given = [_zeros(t, seed) if isinstance(t, SymbolicZero) else t for t, m in zip(changes, moves, strict=True) if m]

    def loop(some: list) -> object:
        numbers = iter(some)
        full = [next(numbers) if m else x for x, m in zip(leaves, moves, strict=True)]
        return while_loop.fun(continues, body, *jax.tree.unflatten(structure, full))

    out, change = jax.jvp(loop, ([x for x, m in zip(leaves, moves, strict=True) if m],), (given,))
    ends, treedef = jax.tree.flatten(change)
    ends = [x if m else _no_change(x) for x, m in zip(ends, moves[count:], strict=True)]
    return out, jax.tree.unflatten(treedef, ends)


def _moving_carry(body: ClosedJaxpr, constants: list[bool], carry: list[bool]) -> list[bool]:
    """Returns the mask of the carried values that have a tangent in some iteration of a loop.

    ``body``: the jaxpr of its body; ``constants``, ``carry``: masks of the constants and of the
    initial carry that have a tangent.
    """
    while True:
        new = [x or y for x, y in zip(carry, moving_outputs(body, [*constants, *carry]), strict=True)]
        if new == carry:
            return carry
        carry = new


def _zeros(like: SymbolicZero, seed: Array) -> Array:
    """Returns an array of zeros in the shape and dtype of a symbolic zero,
    which jax batches if it batches ``seed`` ()."""
    return jnp.broadcast_to(jnp.where(jnp.zeros((), bool), seed.astype(like.dtype), 0), like.shape)


def _no_change(x: ArrayLike) -> SymbolicZero:
    return SymbolicZero(jax.typeof(x).to_tangent_aval())
