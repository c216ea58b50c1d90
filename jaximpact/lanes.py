"""Control flow that a lane shares with the batch it is part of.

`jax.vmap` turns the branch of a lane into work for all lanes and a selection. Where the work is much and needed by few,
only those should be worked on.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

FEW = 64  # lanes gathered at a time


def few(work: Callable, pending: Array, value, operands):
    """``work(value, operands)`` where ``pending``, else ``value``; not to be differentiated.

    In a batch the pending lanes are gathered, FEW at a time, and only they are worked on. ``work`` must not close over
    anything that differs between lanes: that belongs into the operands.
    """

    @custom_vmap
    def masked(pending, value, operands):
        return jax.tree.map(lambda new, old: jnp.where(pending, new, old), work(value, operands), value)

    @masked.def_vmap
    def rule(size, batched, pending, value, operands):
        def spread(x, b):
            return x if b else jnp.broadcast_to(x, (size, *jnp.shape(x)))

        pending, value = spread(pending, batched[0]), jax.tree.map(spread, value, batched[1])
        axes = jax.tree.map(lambda b: 0 if b else None, batched[2])
        every = jax.vmap(masked.fun, in_axes=(0, 0, axes))

        def go(carry):
            pending, value = carry
            marked, where = lax.top_k(pending.astype(jnp.float32), min(FEW, size))

            def take(x, b=True):
                return x.at[where].get(mode="promise_in_bounds") if b else x

            def put(x, y):
                return x.at[where].set(y, mode="promise_in_bounds", unique_indices=True)

            new = every(marked > 0, jax.tree.map(take, value), jax.tree.map(take, operands, batched[2]))
            return put(pending, jnp.zeros_like(marked, bool)), jax.tree.map(put, value, new)

        value = lax.while_loop(lambda carry: jnp.any(carry[0]), go, (pending, value))[1]
        return value, jax.tree.map(lambda _: True, value)

    rule.__dict__["few"] = True  # how `scalarise` knows it
    return masked(pending, value, operands)
