"""A function of one lane as one GPU kernel: each program of the grid runs a block of lanes, with its state in registers throughout.

The function is traced for one lane, and evaluated on scalars (`scalar`) within one `pallas_call`, where each scalar is an array over
the lanes of a block. Control flow stays control flow: a loop runs while any lane of its block continues, and a branch if any lane
selects it; the other lanes keep their values. A primitive without a rule raises `Unsupported`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from ..limits import BLOCK_LANES, MAX_OPS_TRITON
from ..scalar import ScalarInterpreter, Unsupported, carried_axes, object_array
from ..scalar.cost import cost
from ..scalar.interpreter import program_inputs
from .array_emitter import DEVICE_RULES, ArrayEmitter

WARPS = 1


def over_lanes(one: Callable, axes: tuple, largest: int = MAX_OPS_TRITON, interpret: bool = False) -> Callable:
    """Counterpart of ``jax.vmap(one, in_axes=axes)`` that is one kernel.

    ``largest``: maximal number of operations; ``interpret``: run pallas's interpreter of the kernel, on any platform.

    Raises:
        Unsupported: by the returned function while it is traced: a primitive has no rule here, or there are too many operations.
    """

    def call(*operands: Any) -> Any:
        carried = jax.tree.leaves(carried_axes(axes, operands))
        leaves, structure = jax.tree.flatten(operands)
        lanes = next(x.shape[0] for x, c in zip(leaves, carried, strict=True) if c)
        member = [jax.typeof(x).update(shape=x.shape[1:]) if c else x for x, c in zip(leaves, carried, strict=True)]
        closed, shape = jax.make_jaxpr(one, return_shape=True)(*jax.tree.unflatten(structure, member))
        if (count := cost(closed)) > largest:
            raise Unsupported(f"a program of some {count} operations, more than {largest}")
        variables, constants = program_inputs(closed)
        # closed-over arrays are further inputs, shared by all lanes
        given = [*zip(leaves, carried, strict=True), *((x, False) for x in constants)]
        columns, varies = [], []
        for x, c in given:
            x = jnp.asarray(x).reshape(lanes if c else 1, -1)
            columns += [x[:, i] for i in range(x.shape[1])]
            varies += [c] * x.shape[1]

        def program(numbers: Iterable) -> list:
            entries, machine = iter(numbers), ScalarInterpreter(ArrayEmitter(BLOCK_LANES, DEVICE_RULES))
            values = {v: object_array(v.aval.shape, (next(entries) for _ in range(v.aval.size))) for v in variables}
            machine.input_values = values
            found = machine.run(closed, [values[v] for v in closed.jaxpr.invars])
            return [y for x in found for y in x.flat]

        dtypes = [v.aval.dtype for v in closed.jaxpr.outvars for _ in range(v.aval.size)]  # type: ignore[attr-defined]
        found = _launch(program, dtypes, columns, varies, lanes, interpret)
        arrays, parts = [], iter(found)
        for v in closed.jaxpr.outvars:
            columns = [next(parts) for _ in range(math.prod(v.aval.shape))]
            empty = jnp.zeros((lanes, 0), v.aval.dtype)
            arrays.append((jnp.stack(columns, -1) if columns else empty).reshape(lanes, *v.aval.shape))
        return jax.tree.unflatten(jax.tree.structure(shape), arrays)

    return call


def _launch(program: Callable, dtypes: list, entries: list, varies: list[bool], lanes: int, interpret: bool) -> list:
    """Launches the program of a block for all lanes: inputs are (lanes,), or (1,) unless they ``varies``; outputs are (lanes,)."""
    count = -(-lanes // BLOCK_LANES)
    fill = count * BLOCK_LANES - lanes
    entries = [jnp.concatenate([x, jnp.repeat(x[-1:], fill)]) if v and fill else x
               for x, v in zip(entries, varies, strict=True)]  # fmt: skip

    from jax.experimental import pallas  # takes a second, and is needed on GPUs alone

    def body(*refs: Any) -> None:
        values = [ref[...] if v else ref[0] for ref, v in zip(refs, varies, strict=False)]
        found = program(values)
        for ref, x in zip(refs[len(varies) :], found, strict=True):
            ref[...] = jnp.broadcast_to(jnp.asarray(x, ref.dtype), (BLOCK_LANES,))

    block = pallas.BlockSpec((BLOCK_LANES,), lambda i: (i,))
    shared = pallas.BlockSpec((1,), lambda i: (0,))
    shapes = [jax.ShapeDtypeStruct((count * BLOCK_LANES,), dtype) for dtype in dtypes]
    parameters: dict[str, Any] = {}
    if not interpret:
        from jax.experimental.pallas import triton

        parameters["compiler_params"] = triton.CompilerParams(num_warps=WARPS, num_stages=1)
    found = pallas.pallas_call(
        body, grid=(count,), in_specs=[block if v else shared for v in varies], out_specs=[block] * len(shapes),
        out_shape=shapes, interpret=interpret, **parameters,
    )(*entries)  # fmt: skip
    return [x[:lanes] for x in found]
