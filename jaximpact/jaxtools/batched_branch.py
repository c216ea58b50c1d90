"""Branches in functions that are batched: under vmap jax computes both sides of a `lax.cond` for every lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap


def run_where_needed(branches: bool, needed: Array, work: Callable, otherwise: Callable, *operands: Any) -> Any:
    """Returns ``work(*operands)``, or ``otherwise(*operands)`` where ``needed`` () is False: there both have the same value.

    With ``branches``, if each lane takes branches of its own, a lane computes only one of the two. Without, all lanes compute ``work``, which saves
    the selection between two results.
    """
    return lax.cond(needed, work, otherwise, *operands) if branches else work(*operands)


def run_where_pending(work: Callable, pending: Array, value: Any, operands: Any) -> Any:
    """``work(pending, value, operands)`` where ``pending``, else ``value``; a batch skips ``work`` unless some lane is pending."""

    def keep_value(pending: Array, value: Any, operands: Any) -> Any:
        return value

    @custom_vmap
    def one(pending: Array, value: Any, operands: Any) -> Any:
        return lax.cond(pending, work, keep_value, pending, value, operands)

    @one.def_vmap
    def rule(size: int, batched: Any, pending: Array, value: Any, operands: Any) -> tuple[Any, Any]:
        broadcast = lambda x, b: x if b else jnp.broadcast_to(x, (size, *jnp.shape(x)))
        pending, value, operands = jax.tree.map(broadcast, (pending, value, operands), tuple(batched))

        def work_and_select(pending: Array, value: Any, operands: Any) -> Any:
            new = jax.vmap(work)(pending, value, operands)
            where = lambda x, y: jnp.where(pending.reshape(-1, *[1] * (x.ndim - 1)), x, y)
            return jax.tree.map(where, new, value)

        value = lax.cond(jnp.any(pending), work_and_select, keep_value, pending, value, operands)
        return value, jax.tree.map(lambda _: True, value)

    return one(pending, value, operands)
