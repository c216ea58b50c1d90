"""A branch that a batch takes where one of its lanes needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap


def work_where(work: Callable, pending: Array, value: Any, operands: Any) -> Any:
    """``work(pending, value, operands)`` where ``pending``, else ``value``; in a batch nothing is worked on unless a lane is pending."""

    def kept(pending: Array, value: Any, operands: Any) -> Any:
        return value

    @custom_vmap
    def one(pending: Array, value: Any, operands: Any) -> Any:
        return lax.cond(pending, work, kept, pending, value, operands)

    @one.def_vmap
    def rule(size: int, batched: Any, pending: Array, value: Any, operands: Any) -> tuple[Any, Any]:
        spread = lambda x, b: x if b else jnp.broadcast_to(x, (size, *jnp.shape(x)))
        pending, value, operands = jax.tree.map(spread, (pending, value, operands), tuple(batched))

        def chosen(pending: Array, value: Any, operands: Any) -> Any:
            new = jax.vmap(work)(pending, value, operands)
            where = lambda x, y: jnp.where(pending.reshape(-1, *[1] * (x.ndim - 1)), x, y)
            return jax.tree.map(where, new, value)

        value = lax.cond(jnp.any(pending), chosen, kept, pending, value, operands)
        return value, jax.tree.map(lambda _: True, value)

    return one(pending, value, operands)
