"""A function of one lane as a kernel of an NVIDIA GPU, with a thread for each lane,
from the same LLVM IR that `llvm` emits for CPUs.

Within a program of XLA it is a custom call whose handler launches the kernel on XLA's stream.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr
from jax.tree_util import PyTreeDef

from ...jaxtools.shapes import PyTree
from ..limits import (
    LONG_KERNEL_OPS,
    MAX_LOCAL_BYTES,
    MAX_OPS_KERNEL,
    MAX_SCALARS,
    MAX_SCALARS_IN_LONG_PROGRAMS,
    THREADS_OF_A_BLOCK,
)
from ..llvm.call import CompiledFunction, NativeProgram, compile_lanes
from ..llvm.emitter import ProgramText, emit
from ..llvm.lane_frames import FUNCTION_NAME, MAX_GIVEN
from ..llvm.xla_ffi import buffer_addresses, register_frame_handler, stream_of
from ..scalar import Unsupported, carried_axes
from ..scalar.cost import cost
from ..scalar.interpreter import program_inputs
from .driver import Kernel
from .ptx import compile_kernel

if TYPE_CHECKING:
    from ..llvm.call import Jitted

MAX_POINTERS = 500  # inputs and results: a kernel's arguments take at most 4096 bytes


def over_lanes(one: Jitted, axes: tuple, given: Sequence[jax.ShapeDtypeStruct] = (), **static: Hashable) -> Callable:
    """Returns what ``jax.vmap(one, in_axes=axes)`` does, but as one GPU kernel; ``one``: a jitted function of one lane.

    If no operand has a lane axis, the returned function runs one lane, and its results have a lane axis of length 1.
    ``given``: the sequences that a `stream` in ``one`` reads, one entry per row; ``static``:
    static arguments of ``one``.

    Raises:
        Unsupported, ImportError: by the returned function while it is traced, if the kernel cannot be made.
    """

    def call(*operands: object) -> PyTree:
        leaves, structure = jax.tree.flatten(operands)
        carried = jax.tree.leaves(carried_axes(axes, operands))
        found, results = run_lanes(one, leaves, carried, given, structure, **static)
        return jax.tree.unflatten(found.structure, results)

    return call


def run_lanes(
    one: Jitted,
    leaves: Sequence[Array],
    carried: Sequence[bool],
    given: Sequence[jax.ShapeDtypeStruct],
    structure: PyTreeDef | None = None,
    **static: Hashable,
) -> tuple[CompiledFunction, list[Array]]:
    """Compiles a jitted function of one lane and runs it for all lanes;
    returns the compiled function and the list of results.

    ``leaves``: the operands, with a leading lane axis where ``carried`` is true; ``structure``: their pytree, if the
    function takes one; ``given`` and ``static`` as in `over_lanes`. Results have a leading lane axis, followed by an
    axis of rows if they are rows of a `stream`.
    """
    lanes = next((x.shape[0] for x, c in zip(leaves, carried, strict=True) if c), 1)
    found = compile_lanes(one, _of_a_lane(leaves, carried, structure), carried, _compile, **static)
    columns = [
        jnp.asarray(x, dtype).reshape(lanes, -1).T if c else jnp.asarray(x, dtype)
        for x, c, dtype in zip(leaves, carried, found.dtypes, strict=True)
    ]
    columns += map(jnp.asarray, found.program.constants)
    rows = given[0].shape[0] if given else 0
    shapes = [
        jax.ShapeDtypeStruct((math.prod(a.shape), rows if many else 1, lanes), a.dtype) for a, many in found.results
    ]
    name = _target(found, lanes, rows, len(columns), len(given), len(shapes))
    made = jax.ffi.ffi_call(name, shapes)(*columns, *map(jnp.asarray, given))
    return found, [
        jnp.transpose(x, (2, 1, 0)).reshape(lanes, *(rows,) * many, *a.shape)
        for x, (a, many) in zip(made, found.results, strict=True)
    ]


def kernel_of(one: Jitted, axes: tuple, operands: tuple, **static: Hashable) -> str:
    """Returns the PTX code of the kernel that `over_lanes` makes for these operands; needs no GPU."""
    leaves, structure = jax.tree.flatten(operands)
    carried = jax.tree.leaves(carried_axes(axes, operands))
    closed = one.trace(*_of_a_lane(leaves, carried, structure), **static).jaxpr
    _, code = _emit_kernel(closed, carried)
    return code


def _of_a_lane(leaves: Sequence[Array], carried: Sequence[bool], structure: PyTreeDef | None) -> PyTree:
    """Returns the avals of the operands ``leaves`` in one lane, as a list,
    or as a pytree of this ``structure`` if it is given.

    Operands in the mask ``carried`` lose their lane axis.
    """
    avals = [jax.typeof(x) for x in leaves]
    avals = [x.update(shape=x.shape[1:]) if c else x for x, c in zip(avals, carried, strict=True)]
    return avals if structure is None else jax.tree.unflatten(structure, avals)


def _compile(closed: ClosedJaxpr, carried: Sequence[bool], lanes: int | None) -> NativeProgram:
    """Emits the kernel of a closed jaxpr for any number of lanes, and has the driver compile it.

    ``carried``: mask of its inputs that differ between lanes.

    Raises:
        Unsupported: the program is too large, or the driver refuses it.
    """
    text, code = _emit_kernel(closed, carried)
    kernel = Kernel(code, FUNCTION_NAME)
    kernel.check()
    return NativeProgram(kernel, text, [np.array(x, order="C") for x in program_inputs(closed)[1]])


def _emit_kernel(closed: ClosedJaxpr, carried: Sequence[bool]) -> tuple[ProgramText, str]:
    """Returns the LLVM IR and the PTX code of the kernel of a closed jaxpr; ``carried``:
    mask of the inputs that differ between lanes."""
    variables, constants = program_inputs(closed)
    entries, count = MAX_SCALARS, cost(closed)
    if count > LONG_KERNEL_OPS:
        entries, count = MAX_SCALARS_IN_LONG_PROGRAMS, cost(closed, MAX_SCALARS_IN_LONG_PROGRAMS)
    if count > MAX_OPS_KERNEL:
        raise Unsupported(f"a program of some {count} operations, more than {MAX_OPS_KERNEL}")
    if len(variables) + len(closed.jaxpr.outvars) > MAX_POINTERS:
        raise Unsupported(f"more than {MAX_POINTERS} inputs and results")
    varies = [*carried, *[False] * len(constants)]
    text = emit(closed, variables, varies, 1, True, 1, entries, threads=True)
    if text.work > MAX_LOCAL_BYTES:
        raise Unsupported(f"a kernel with {text.work} bytes of memory for each lane")
    return text, compile_kernel(text.ir, FUNCTION_NAME)


def _target(found: CompiledFunction, lanes: int, rows: int, inputs: int, given: int, results: int) -> str:
    """Returns the name of the FFI target that launches a compiled kernel for this number of ``lanes``,
    and of ``rows`` of a `stream`.

    ``inputs``, ``given``, ``results``: numbers of input arrays, of sequences that the stream reads, and of results.
    """
    kernel, blocks = found.program.code, -(-lanes // THREADS_OF_A_BLOCK)

    def table(addresses: list[int], size: int) -> ctypes.Array:
        return (ctypes.c_void_p * max(size, 1))(*addresses)

    def launch(frame: int) -> None:
        operands, targets = buffer_addresses(frame, inputs + given, results)
        arguments = [
            table(operands[:inputs], inputs),
            table(targets, results),
            table(operands[inputs:], MAX_GIVEN),
            ctypes.c_int64(lanes),
            ctypes.c_int64(rows),
        ]
        kernel.launch(stream_of(frame), blocks, THREADS_OF_A_BLOCK, arguments)

    return register_frame_handler((id(kernel), lanes, rows), launch, "CUDA", kernel)
