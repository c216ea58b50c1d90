"""Many motions as one GPU kernel: each program instance runs a block of lanes with its state in registers over all steps.

What a function does to one lane is traced, and executed on separate numbers (`small`) inside one `pallas_call`, with blocks of
lanes in their place. Loops and branches are real: a loop goes on while any lane of its block does, and a branch is taken if any
lane needs it, the others keeping what they have. What has no rule here raises `Unsupported`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from ..scalar import ScalarInterpreter, Unsupported, carried_axes, object_array
from ..scalar.cost import cost
from ..scalar.interpreter import program_inputs
from .array_emitter import DEVICE, ArrayEmitter

BLOCK = (
    32  # lanes of one program, which go through loops and branches together: one warp was fastest, of 32 to 256 lanes
)
WARPS = 1
MAX_OPS_TRITON = 10_000  # operations of a program: twice as many take minutes to compile


def over_lanes(one: Callable, axes: tuple, largest: int = MAX_OPS_TRITON, interpret: bool = False) -> Callable:
    """Runs ``one`` for all lanes as one kernel, like `jax.vmap` with ``in_axes=axes``.

    ``largest``: operations of a program at most; ``interpret``: imitate the kernel, on any platform.

    Raises:
        Unsupported: while it is traced, if a part of ``one`` has no rule here, or is too large.
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
        # what the function closes over is shared by all lanes
        given = [*zip(leaves, carried, strict=True), *((x, False) for x in constants)]
        columns, varies = [], []
        for x, c in given:
            x = jnp.asarray(x).reshape(lanes if c else 1, -1)
            columns += [x[:, i] for i in range(x.shape[1])]
            varies += [c] * x.shape[1]

        def program(numbers: Iterable) -> list:
            entries, machine = iter(numbers), ScalarInterpreter(ArrayEmitter(BLOCK, DEVICE))
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
    """Launches the program of one lane for all lanes: inputs (lanes,), or (1,) if shared; outputs (lanes,)."""
    count = -(-lanes // BLOCK)
    fill = count * BLOCK - lanes
    entries = [jnp.concatenate([x, jnp.repeat(x[-1:], fill)]) if v and fill else x
               for x, v in zip(entries, varies, strict=True)]  # fmt: skip

    from jax.experimental import pallas  # a second of importing that not everybody needs

    def body(*refs: Any) -> None:
        values = [ref[...] if v else ref[0] for ref, v in zip(refs, varies, strict=False)]
        found = program(values)
        for ref, x in zip(refs[len(varies) :], found, strict=True):
            ref[...] = jnp.broadcast_to(jnp.asarray(x, ref.dtype), (BLOCK,))

    block = pallas.BlockSpec((BLOCK,), lambda i: (i,))
    shared = pallas.BlockSpec((1,), lambda i: (0,))
    shapes = [jax.ShapeDtypeStruct((count * BLOCK,), dtype) for dtype in dtypes]
    parameters: dict[str, Any] = {}
    if not interpret:
        from jax.experimental.pallas import triton

        parameters["compiler_params"] = triton.CompilerParams(num_warps=WARPS, num_stages=1)
    found = pallas.pallas_call(
        body, grid=(count,), in_specs=[block if v else shared for v in varies], out_specs=[block] * len(shapes),
        out_shape=shapes, interpret=interpret, **parameters,
    )(*entries)  # fmt: skip
    return [x[:lanes] for x in found]
