"""Choice of the execution of motions: XLA, native code of a CPU, or one kernel of a GPU.

A *task* is the computation for one motion, ``task(program, motion, length)``;
the tasks are in `trajectory` and `sensitivities`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ..compiler import llvm as native
from ..compiler.gpu import kernel
from ..compiler.scalar import Unsupported
from ..compiler.xla_cache import PersistentJit
from ..jaxtools.argument_checks import check_choice
from ..jaxtools.shapes import PyTree
from ..jaxtools.trace_context import full_precision, is_concrete, platform
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from .chunked_runs import devices
from .lanes import Lanes
from .limits import FEW_MOTIONS, MAX_JACOBIAN_ENTRIES, MAX_JACOBIAN_ENTRIES_OF_FEW, MIN_XLA_GRADIENT_ENTRIES
from .program import Program
from .rows import RowRequest

if TYPE_CHECKING:
    from ..compiler.llvm.call import Jitted

T = TypeVar("T")

EXECUTIONS = ("auto", "xla", "native", "kernel")
COMPILE = {"xla_cpu_prefer_vector_width": 512}  # the widest vectors of a CPU that has them
log = logging.getLogger(__name__)

# what is computed of one motion: ``task(program, motion, length)``, hashable; see `trajectory`
Task = Callable[[Program, Motion, Any], PyTree]
# what is computed of many: ``call(motion, length)`` of a chunk's numbers
Call = Callable[[Motion, Any], PyTree]


def execution_of(execution: str, problem: Problem) -> str:
    """The execution of a problem: as asked for, but "xla" for bodies in lists,
    since only XLA runs the search for near pairs.

    Raises:
        ValueError: ``execution`` is unknown, or cannot take the problem.
    """
    check_choice("execution", execution, EXECUTIONS)
    if problem.listed and execution in ("native", "kernel"):
        raise ValueError(
            f"execution={execution!r} takes no list of near pairs of bodies: give execution='xla', or "
            "Bodies(lists=False)"
        )
    return "xla" if problem.listed else execution


def directions_are_lanes(problem: Problem, one: Motion, count: int, directions: int) -> bool:
    """Whether each direction of a Jacobian, the derivative by one number, is computed in a lane of its own.

    True on a GPU, which has threads enough, and on a CPU of one motion, or if the program for all directions at once is
    long: beside joints, or for a few motions, of which the first answer takes most of the time. ``one``: the numbers of
    a motion, or their shapes; ``count``: of motions; ``directions``: numbers by which they are differentiated.
    """
    if problem.listed:
        return False
    if platform() != "cpu" or count == 1:
        return True
    few = count <= FEW_MOTIONS
    unknowns = one.q0.size + problem.joint_count(one.t0, one.q0, one.args)
    most = MAX_JACOBIAN_ENTRIES_OF_FEW if few else MAX_JACOBIAN_ENTRIES
    return (few or problem.jointed) and devices(count) == 1 and directions * unknowns**2 > most


def batch_backend(task: Task, program: Program, lanes: Lanes, execution: str) -> Call:
    """Function that runs a task for all lanes of a chunk, by the chosen ``execution``: see `jaximpact.ensemble`.

    Raises:
        ValueError: ``execution`` is unknown, or cannot take the problem here.
    """
    execution = execution_of(execution, program.problem)
    shares = devices(lanes.count)
    backend = platform()
    xla = through_xla(task, program, lanes, shares)
    if execution == "native":
        return partial(_or_refuse, execution, as_native(task, program, lanes))
    if execution == "auto" and backend == "cpu" and shares == 1:
        return partial(_either, as_native(task, program, lanes), xla)
    if execution == "kernel":
        return partial(_or_refuse, execution, as_kernel(task, program, lanes, shares))
    if execution == "xla" or backend != "gpu" or program.reports_progress:
        return xla
    return partial(_either, as_kernel(task, program, lanes, shares), xla)


def through_xla(task: Task, program: Program, lanes: Lanes, shares: int = 1) -> Call:
    """Returns a function that runs the task through XLA, as operations on all lanes; ``shares``:
    number of devices that share the lanes."""
    return lambda motion, length: _vmap_program(program, motion, length, task=task, axes=lanes.axes, shares=shares)


@partial(PersistentJit, static=("task", "axes", "shares"), options=COMPILE)
def _vmap_program(
    program: Program, motion: Motion, length: Array | None, task: Task, axes: tuple, shares: int
) -> PyTree:
    return vmap_lanes(lambda motion: task(program, motion, length), motion, axes, shares)


def vmap_lanes(one: Callable[[Motion], T], motion: Motion, axes: tuple, shares: int) -> T:
    """The value of ``one`` vmapped over the lanes of a ``motion`` with lane ``axes``, on ``shares`` devices.

    To be called in a function that is compiled with the options `COMPILE`.
    """
    in_axes = Lanes(motion, axes, 0).in_axes
    with full_precision():
        return _share_lanes(jax.vmap(one, in_axes=(in_axes,)), in_axes, shares)(motion)


def as_kernel(task: Task, program: Program, lanes: Lanes, shares: int) -> Call:
    """Returns a function that runs the task as one GPU kernel, in which each lane executes
    only the branches that it needs.

    ``shares``: number of devices that share the lanes. ValueError without a GPU.
    """
    if platform() != "gpu":
        raise ValueError("execution='kernel' needs a GPU, and there is none: give execution='auto'")
    turns = RowRequest.of(program) if program.rows else ()
    shape = program.without_rows
    return lambda motion, _: _kernel(shape, motion, turns, task=task, axes=lanes.axes, shares=shares)


@partial(jax.jit, static_argnames=("task", "axes", "shares"))
def _kernel(program: Program, motion: Motion, turns: Any, task: Task, axes: tuple, shares: int) -> PyTree:
    in_axes: Any = Lanes(motion, axes, 0).in_axes if axes else None
    call = lambda motion: kernel.over_lanes(one_lane, (None, in_axes), turns, task=task)(program, motion)
    return _share_lanes(call, in_axes, shares)(motion)


def _share_lanes(call: Callable, axes: Motion, shares: int) -> Callable:
    """Shares the lanes of a batched ``call`` of a motion with lane ``axes`` among the local devices;
    unchanged if ``shares`` is 1."""
    if shares == 1:
        return call
    mesh = Mesh(np.array(jax.local_devices()), ("lane",))
    part = jax.tree.map(lambda axis: P() if axis is None else P("lane"), axes, is_leaf=lambda axis: axis is None)
    return jax.shard_map(call, mesh=mesh, in_specs=(part,), out_specs=P("lane"), check_vma=False)


def as_native(task: Task, program: Program, lanes: Lanes) -> Call:
    """Returns a function that runs the task as native CPU code, in which each lane executes only the branches it needs;
    results are numpy arrays."""
    turns = RowRequest.of(program) if program.rows else ()
    call = native.over_lanes(one_lane, (None, lanes.in_axes), turns, task=task)
    shape = program.without_rows
    return lambda motion, _: call(shape, motion)


def native_or_xla(one: Jitted, axes: tuple, xla: Callable[..., T]) -> Callable[..., T]:
    """Returns a batched version of the jitted one-lane function ``one``:
    native code if numbers are known and it compiles, else ``xla``.

    ``axes``: lane axes of its operands, as `in_axes` of `jax.vmap`; ``xla``: the batched function for XLA.
    """
    if platform() != "cpu" or not is_concrete():
        return xla
    return partial(_either, native.over_lanes(one, axes), xla)


@partial(PersistentJit, static=("task",))
def one_lane(program: Program, motion: Motion, task: Task) -> PyTree:
    """Runs the task for one motion."""
    return task(program, motion, None)


def listed_lane(program: Program, motion: Motion, carry: tuple | None, task: Task) -> PyTree:
    """Runs ``task`` for one motion with neighbour lists, from ``carry``, or from the initial state if it is None.

    Compiled without XLA's fusion emitters, which cost compile time and gain nothing here.
    """
    return _listed_jit()(program, motion, carry, task=task)


@cache
def _listed_jit() -> Callable:
    # the fusion emitters of some versions of XLA take half as long again to compile, for nothing that is felt here
    options = {"xla_cpu_use_fusion_emitters": False} if platform() == "cpu" else {}
    try:
        PersistentJit(lambda: 0, (), options)()
    except jax.errors.JaxRuntimeError:  # other versions do not know the option
        options = {}
    return PersistentJit(lambda program, motion, carry, task: task(program, motion, carry), ("task",), options)


def single_backend(
    task: Task, program: Program, execution: str, xla: Callable[[Motion], PyTree] | None = None
) -> Callable:
    """Function that runs a task for one motion, by the given ``execution``; ``xla``: the function for execution by XLA.

    By default XLA compiles the task for a fixed number of steps, as reverse mode needs it. With "auto" native code or a
    GPU kernel runs the task if it can; on a CPU XLA does if there are so many contacts that it is faster.
    """
    if xla is None:
        xla = lambda motion: one_lane(program.replace(length=int(motion.steps)), motion, task=task)
    execution = execution_of(execution, program.problem)
    if execution == "xla":
        return xla
    lanes = Lanes(Motion(*[None] * len(Motion._fields)), (), 1)
    if platform() == "gpu" and execution in ("auto", "kernel") and not program.reports_progress:
        chosen = as_kernel(task, program, lanes, 1)
        alone = lambda motion: jax.tree.map(lambda x: x[0], chosen(motion, None))
        return partial(_or_refuse, execution, alone) if execution == "kernel" else partial(_either, alone, xla)
    if platform() != "cpu" or execution == "kernel":
        return xla
    native = as_native(task, program, lanes)

    def through_native(motion: Motion) -> PyTree:
        return jax.device_put(jax.tree.map(lambda x: x[0], native(motion, None)))

    if execution == "native":
        return partial(_or_refuse, execution, through_native)
    return lambda motion: xla(motion) if _suits_xla(program, motion) else _either(through_native, xla, motion)


def _suits_xla(program: Program, motion: Motion) -> bool:
    """Whether the contact problem of a motion is so large that XLA makes its steps faster than native code."""
    return motion.q0.size * program.problem.count(motion.t0, motion.q0, motion.args) >= MIN_XLA_GRADIENT_ENTRIES


def _or_refuse(execution: str, call: Callable[..., T], *operands: object) -> T:
    try:
        return call(*operands)
    except Unsupported as error:
        raise ValueError(f"execution={execution!r} cannot take this problem ({error}): give execution='xla'") from error
    except ImportError as error:
        raise ValueError(f"execution={execution!r} is not to be had here ({error}): give execution='xla'") from error


def _either(first: Callable[..., T], xla: Callable[..., T], *operands: object) -> T:
    """Returns ``first(*operands)``, run by native code or a kernel, or ``xla(*operands)`` if the
    former cannot be compiled."""
    try:
        return first(*operands)
    except (Unsupported, ImportError) as error:
        log.debug("through XLA: %s", error)
    return xla(*operands)
