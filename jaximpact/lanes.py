"""Control flow that a lane shares with the batch it is part of.

`jax.vmap` turns the branch of a lane into work for all lanes and a selection. Where the work is much and needed by few,
only those should be worked on.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.dtypes import float0

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

        value = jax.tree.map(spread, value, batched[1])
        axes = jax.tree.map(lambda b: 0 if b else None, batched[2])
        if not batched[0]:
            # directions of one lane: it is pending in all of them or in none
            every = jax.vmap(work, in_axes=(0, axes), axis_size=size)
            return few(every, pending, value, operands), jax.tree.map(lambda _: True, value)

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


def few_differentiated(calm: Callable, whole: Callable):
    """x -> y: ``whole(x)`` where ``calm(x)``, a pair (y, pending), is pending, else its y; derivatives alike, forward mode only.

    x and y are pytrees; their integers and booleans have no derivative.
    """

    def is_real(x):
        return jnp.issubdtype(jnp.result_type(x), jnp.floating)

    @jax.custom_jvp
    def function(x):
        y, pending = calm(x)
        return few(lambda _, x: whole(x), pending, y, x)

    @function.defjvp
    def _(primals, tangents):
        leaves, structure = jax.tree.flatten(primals[0])
        real = [x for x in leaves if is_real(x)]
        change = [t for x, t in zip(leaves, jax.tree.leaves(tangents[0]), strict=True) if is_real(x)]

        def of_real(function, leaves):
            """``function`` of the real leaves; real leaves of what it gives, and all of it."""

            def part(real):
                numbers = iter(real)
                y = function(jax.tree.unflatten(structure, [next(numbers) if is_real(x) else x for x in leaves]))
                return [y for y in jax.tree.leaves(y) if is_real(y)], y

            return part

        _, found, (y, pending) = jax.jvp(of_real(calm, leaves), (real,), (change,), has_aux=True)

        def tangent(_, operands):
            leaves, change = operands
            return jax.jvp(of_real(whole, leaves), ([x for x in leaves if is_real(x)],), (change,), has_aux=True)[1]

        # apart: in several directions the values are the same
        y = few(lambda _, x: whole(x), pending, y, primals[0])
        found = few(tangent, pending, found, (leaves, change))
        numbers = iter(found)
        return y, jax.tree.map(lambda x: next(numbers) if is_real(x) else np.zeros(x.shape, float0), y)

    return function
