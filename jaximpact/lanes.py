"""Control flow that stays cheap in a batch."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax


def once(work: Callable, pending: Array, value):
    """``work(value)`` where ``pending``, else ``value``; forward mode only.

    In a batch the work is skipped if no lane is pending; `lax.cond` with a batched predicate is always worked out.
    """
    return lax.while_loop(lambda c: c[0], lambda c: (jnp.zeros((), bool), work(c[1])), (pending, value))[1]
