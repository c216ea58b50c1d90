"""Branches in functions that are batched, which save work although jax computes both sides of a `lax.cond`
for every lane under vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

T = TypeVar("T")


def run_where_needed(
    branches: bool, needed: Array, work: Callable[..., T], otherwise: Callable[..., T], *operands: object
) -> T:
    """Returns ``work(*operands)``; where ``needed`` () is False, ``otherwise(*operands)`` has
    the same value and costs less.

    ``branches``: whether each lane can take branches of its own. If so, a lane computes only one of the two functions.
    If not, all lanes compute ``work``, which saves the selection between two results.
    """
    return lax.cond(needed, work, otherwise, *operands) if branches else work(*operands)


def run_where_pending(work: Callable, pending: Array, value: T, operands: object) -> T:
    """Returns ``work(pending, value, operands)`` where ``pending`` () holds, else ``value``;
    a batch skips ``work`` if no lane is pending."""

    def keep_value(pending: Array, value: T, operands: object) -> T:
        return value

    @custom_vmap
    def one(pending: Array, value: T, operands: object) -> T:
        return lax.cond(pending, work, keep_value, pending, value, operands)

    @one.def_vmap
    def rule(size: int, batched: Sequence, pending: Array, value: T, operands: object) -> tuple[T, object]:
        broadcast = lambda x, b: x if b else jnp.broadcast_to(x, (size, *jnp.shape(x)))
        pending, value, operands = jax.tree.map(broadcast, (pending, value, operands), tuple(batched))

        def work_and_select(pending: Array, value: T, operands: object) -> T:
            new = jax.vmap(work)(pending, value, operands)
            where = lambda x, y: jnp.where(pending.reshape(-1, *[1] * (x.ndim - 1)), x, y)
            return jax.tree.map(where, new, value)

        value = lax.cond(jnp.any(pending), work_and_select, keep_value, pending, value, operands)
        return value, jax.tree.map(lambda _: True, value)

    return one(pending, value, operands)
