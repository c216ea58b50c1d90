"""The native solver of contacts between bodies as an operation of jax: a batch of it is a call with more lanes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap

from ..native import foreign, walk


def walked(bodies: int, operands: tuple[Array, ...]) -> tuple[Array, Array]:
    """Impulses (m,) and iterations () of `native.walk.solver`.

    Raises:
        Unsupported, ImportError: there is no native code here.
    """
    D, real = operands[2].shape[-1], np.dtype(operands[2].dtype)
    call = walk.solver(D, real.type, bodies)

    def lanes(*operands: Array) -> tuple[Array, ...]:
        count, m = operands[0].shape
        shapes = [(x.shape, np.dtype(x.dtype)) for x in operands]
        results = [((count, m), real), ((count,), np.dtype(np.int32))]
        name = foreign.registered((bodies, str(shapes)), lambda: call, shapes, results)
        return tuple(jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(*x) for x in results])(*operands))  # type: ignore[return-value]

    impulse, count = batchable(lanes)(*(x[None] for x in operands))
    return impulse[0], count[0]


def batchable(lanes: Callable) -> Callable:
    """A function of arrays with an axis of lanes, whose batch is the same function of more lanes."""

    @custom_vmap
    def call(*operands: Array) -> tuple[Array, ...]:
        return lanes(*operands)

    @call.def_vmap
    def rule(size: int, batched: list[bool], *operands: Array) -> tuple[tuple, tuple]:
        every = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(operands, batched, strict=True)]
        many = every[0].shape[1]
        found = batchable(lanes)(*(x.reshape(size * many, *x.shape[2:]) for x in every))
        return tuple(x.reshape(size, many, *x.shape[1:]) for x in found), (True,) * len(found)

    return call
