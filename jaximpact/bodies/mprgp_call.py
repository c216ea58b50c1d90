"""Operations of jax that call the native solvers; under vmap a solver is called once, with more lanes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap

from ..compiler.llvm import xla_ffi as foreign
from . import cone_sweeps
from . import mprgp_kernel as kernel


def solve_mprgp(bodies: int, responses: tuple[Array, Array], operands: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    """Solves the contact problem without friction natively: impulses (m,), iterations (), and velocity jumps (N, D).

    ``responses``: M^-1 times the gap gradients of either body of a contact, (m, D) each; ``operands``:
    those of `mprgp_kernel.solver`.

    Raises:
        Unsupported, ImportError: native code is not available.
    """
    D, real = operands[2].shape[-1], np.dtype(operands[2].dtype)
    solve = kernel.solver(D, real.type, bodies)

    def call(operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        solve(operands[:-2], results[:2])
        results[2][...] = _jumps(bodies, operands[:2], operands[-2:], results[0])

    def every(*operands: Array) -> tuple[Array, ...]:
        *lanes, m = operands[0].shape
        results = [((*lanes, m), real), (tuple(lanes), np.dtype(np.int32)), ((*lanes, bodies, D), real)]
        return call_as_operation(("walk", bodies), lambda: call, operands, results, bool(lanes))

    return batchable(every)(*operands, *responses)


def sweep_cones(bodies: int, operands: tuple[Array, ...]) -> tuple[Array, Array]:
    """Solves the contact problem with friction natively: impulses (m, 1 + k) and sweeps ();
    ``operands`` are those of `cone_sweeps.solver`.

    Raises:
        Unsupported, ImportError: native code is not available.
    """
    columns = operands[cone_sweeps.OPERANDS.index("h")]
    rows, D, real = columns.shape[-2], columns.shape[-1] // 2, np.dtype(columns.dtype)
    solve = cone_sweeps.solver(D, rows - 1, real.type, bodies)

    def every(*operands: Array) -> tuple[Array, ...]:
        *lanes, m = operands[0].shape
        results = [((*lanes, m, rows), real), (tuple(lanes), np.dtype(np.int32))]
        return call_as_operation(("sweep", bodies), lambda: solve, operands, results, bool(lanes))

    return batchable(every)(*operands)


def _jumps(bodies: int, ends: list[np.ndarray], responses: list[np.ndarray], impulse: np.ndarray) -> np.ndarray:
    """Velocity jumps (B, N, D) by impulses (B, m), summed over the few contacts with an impulse.

    ``ends``: bodies i and j (B, m) of each contact; ``responses``: M^-1 times the gap gradients of either body,
    (B, m, D) each.
    """
    lane, contact = np.nonzero(impulse)
    size = impulse[lane, contact]
    D = responses[0].shape[-1]
    place = np.concatenate([lane * (bodies + 1) + body[lane, contact] for body in ends])
    parts = np.concatenate([response[lane, contact] * size[:, None] for response in responses])
    total = [np.bincount(place, parts[:, a], len(impulse) * (bodies + 1)) for a in range(D)]
    return np.stack(total, axis=-1).reshape(-1, bodies + 1, D)[:, :-1]


def call_as_operation(
    key: tuple, make: Callable, operands: tuple[Array, ...], results: list, lanes: bool
) -> tuple[Array, ...]:
    """Calls a function of numpy arrays, ``make()``, as an operation of jax, and returns its results.

    ``make()(operands, results)`` fills in the arrays ``results``. ``key``: names the function, whose target is
    registered once; ``results``: shape and dtype of each result. The function takes arrays with a lane axis; without
    ``lanes`` the arrays given here have none, and get one as a numpy view (adding it in jax would copy every operand).
    """

    def of_one() -> Callable:
        call, with_lane = make(), lambda arrays: [x[None] for x in arrays]
        return lambda given, found: call(with_lane(given), with_lane(found))

    shapes = [(x.shape, np.dtype(x.dtype)) for x in operands]
    name = foreign.register_target((*key, str(shapes)), make if lanes else of_one, shapes, results, lasts=True)
    return tuple(jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(*x) for x in results])(*operands))


def batchable(every: Callable, lanes: bool = False) -> Callable:
    """Makes ``every``, a function of arrays with or without a lane axis, batchable by vmap.

    It is called once for the whole batch, which becomes the lane axis of the arrays or, with ``lanes``, is merged into
    the lane axis that they have already.
    """

    @custom_vmap
    def call(*operands: Array) -> tuple[Array, ...]:
        return every(*operands)

    @call.def_vmap
    def rule(size: int, batched: list[bool], *operands: Array) -> tuple[tuple, tuple]:
        spread = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(operands, batched, strict=True)]
        if lanes:
            many = spread[0].shape[1]
            found = batchable(every, True)(*(x.reshape(size * many, *x.shape[2:]) for x in spread))
            found = tuple(x.reshape(size, many, *x.shape[1:]) for x in found)
        else:
            found = batchable(every, True)(*spread)
        return found, (True,) * len(found)

    return call
