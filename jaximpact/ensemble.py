"""Many motions in one call, over any mix of initial data, parameters, restitution and step size.

Lanes are grouped by their number of steps, so that the work stays near the sum of the steps, and run in chunks that
fit memory. The host loop over chunks drives the progress bar; a lane's numbers do not depend on its neighbours.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike
from tqdm import tqdm

from . import kernel, native
from .chunks import divide
from .execution import executed
from .integrate import FEWER_ROWS, Lane, Plan, Turn, is_scalar, make_plan, motion, row_size
from .problem import Problem
from .projection.base import ContactSolver
from .save import Save
from .schemes.base import Inputs, Scheme
from .solution import Solution
from .threads import arrived, crew, leave, refuse_fork, workers
from .validate import (
    Data,
    Report,
    _reports,
    canonical_state,
    cast_numbers,
    check_counts,
    check_finite,
    check_functions,
    check_memory,
    check_restitution,
    check_times,
    choose_methods,
    count_steps,
    differentiable,
    is_traced,
    judge,
    leaf_axes,
    real_array,
    remark,
    split_restitution,
)

MEMORY = 256 * 2**20  # bytes of saved rows in one automatic chunk
BLOCK = 2048  # lanes of a small system advanced together on a CPU: their state stays in its cache
VECTOR = 16  # lanes of the widest vector instruction
LARGEST = 16384  # lanes in one automatic chunk on a CPU,
LARGEST_ON_DEVICE = 2**20  # and on an accelerator, which they have to fill
COMPILE = {"xla_cpu_prefer_vector_width": 512}  # the widest vectors of a CPU that has them


class Axes(NamedTuple):
    """Which arguments of a batch carry a lane axis: 0 or None each; args leaf by leaf."""

    q0: int | None
    v0: int | None
    t0: int | None
    t1: int | None
    h: int | None
    e: int | None
    args: tuple


def _lane(
    problem: Problem,
    scheme: Scheme,
    projection: ContactSolver,
    lane: Lane,
    leaves: tuple,
    *,
    plan: Plan,
    structure: Any,
) -> Solution:
    """The motion of one lane; ``leaves`` of its args."""
    inputs = lane.inputs._replace(args=jax.tree.unflatten(structure, leaves))
    return motion(problem, scheme, projection, lane._replace(inputs=inputs), plan)


_traced = jax.jit(_lane, static_argnames=("plan", "structure"))


@partial(jax.jit, static_argnames=("plan", "axes", "structure"), compiler_options=COMPILE)
def _run(
    problem: Problem,
    scheme: Scheme,
    projection: ContactSolver,
    lane: Lane,
    leaves: tuple,
    plan: Plan,
    axes: Axes,
    structure: Any,
) -> Solution:
    one = partial(_lane, problem, scheme, projection, plan=plan, structure=structure)
    if plan.kernel:
        call = kernel.over_lanes(one, lane_axes(axes, plan), plan.kernel, interpret=jax.default_backend() == "cpu")
        return spread(call, lane_axes(axes, plan), plan)(lane, leaves)
    return over_lanes(one, lane_axes(axes, plan), plan, BLOCK)(lane, leaves)


def over_lanes(one: Callable, axes: tuple, plan: Plan, most: int) -> Callable:
    """``one`` for all lanes; those of small systems on a CPU in blocks that stay in its cache.

    Blocks are of at most ``most`` lanes, in whole vectors, filled up with the last lane: every lane runs the same instructions.
    """
    batched = jax.vmap(one, in_axes=axes)

    def chosen(operands: Any, which: Any) -> Any:
        return jax.tree.map(
            lambda axis, x: x if axis is None else x[which], axes, operands, is_leaf=lambda axis: axis is None
        )

    if plan.alone:
        return lambda *operands: jax.tree.map(lambda x: x[None], one(*chosen(operands, 0)))
    if not (plan.scalar and plan.few):
        return spread(batched, axes, plan)

    def blocks(*operands: Any) -> Any:
        none = lambda x: x is None
        carried = jax.tree.map(lambda axis, x: None if axis is None else x, axes, operands, is_leaf=none)
        lanes = jax.tree.leaves(carried)[0].shape[0]
        count = -(-lanes // most)
        size = -(-lanes // (count * VECTOR)) * VECTOR
        which = jnp.minimum(jnp.arange(count * size), lanes - 1).reshape(count, size)

        def block(members: Any) -> Any:
            return batched(*chosen(operands, members))

        found = block(which[0]) if count == 1 else lax.map(block, which)
        return jax.tree.map(lambda x: x.reshape(count * size, *x.shape[(count > 1) + 1 :])[:lanes], found)

    return spread(blocks, axes, plan)


def spread(call: Callable, axes: tuple, plan: Plan) -> Callable:
    """``call`` of a batch, each local device computing its share of the lanes."""
    if plan.devices == 1:
        return call
    mesh = Mesh(np.array(jax.local_devices()), ("lane",))
    shares = jax.tree.map(lambda axis: P() if axis is None else P("lane"), axes, is_leaf=lambda axis: axis is None)
    return jax.shard_map(call, mesh=mesh, in_specs=shares, out_specs=P("lane"), check_vma=False)


def lane_axes(axes: Axes, plan: Plan) -> tuple:
    """The in_axes of `jax.vmap` for a Lane without args, and for the leaves of args."""
    inputs = Inputs._make((axes.t0, axes.h, axes.e, None))
    lane = Lane._make((axes.q0, axes.v0, axes.t1, 0 if plan.ragged else None, None, None, inputs))
    return lane, axes.args


def ensemble(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: ArrayLike,
    h: ArrayLike,
    t0: ArrayLike = 0.0,
    scheme: Scheme | None = None,
    projection: ContactSolver | None = None,
    args: Any = None,
    args_axes: Any = None,
    e: ArrayLike | None = None,
    save: Any = "final",
    chunk: int | None = None,
    progress: bool | None = None,
    layout: str = "auto",
    execution: str = "auto",
) -> Solution:
    """Integrate B motions at once; B is the common length of the lane axes.

    Every argument may carry one leading axis of length B more than `solve` takes, and is shared by all lanes where it
    does not: q0 and v0 (B, d), t0, t1, h and e (B,), per-contact e (B, m) or (1, m) if shared. Lanes of different h
    over the same time make different numbers of steps; the total work stays within 1.3 times the sum of the steps.

    Args:
        problem, q0, v0, t1, h, t0, scheme, projection, args, e: as in `solve`, or with a lane axis.
        args_axes: which leaves of args carry a lane axis, as `in_axes` of `jax.vmap`: 0 for all, None for none, or a
            pytree prefix of args of 0 and None.
        save: as in `solve`; "final" by default. With lanes of different step counts give times or "final".
        chunk: lanes computed at once; by default what keeps the saved rows of a chunk under 256 MB.
        progress: show a progress bar; by default on a terminal, for more than one chunk.
        layout: as in `solve`, where XLA executes it; by default "auto": "scalar" for up to eight coordinates and constraints
            and 1e7 or more trajectory-steps in all.
        execution: "xla", compiled by XLA as thousands of operations on all lanes, on every platform; "native", all steps of a
            motion as one loop of native code on a CPU, and "kernel", in one kernel of an NVIDIA GPU, for save="final" (on a CPU
            it is only imitated, slowly), both for small systems; "auto", native or the kernel where the problem and what is
            saved allow it and no layout is asked for. Values are equal to rounding; ``iterations`` of "native" count those of
            the steps that touch something.

    Returns:
        A `Solution` of numpy arrays with a leading axis B. Failed lanes are flagged in ``status``; where they became
        infinite or NaN they stay so. The other lanes are not affected.

    Raises:
        ValueError, TypeError: as `solve`, naming the trajectory where one is at fault.
    """
    batch = prepare(problem, q0, v0, t0, t1, h, e, args, args_axes, scheme, projection, save, chunk, layout)
    lanes, rows = len(batch.counts), batch.plan.rows + 1
    one = pick(batch.data, batch.axes, 0)
    size = float(lanes) * rows * row_size(one, one.problem.count(one.t0, one.q0, one.args), batch.plan)
    check_memory(size, f"save: the result of {lanes} motions with {rows} rows each", FEWER_ROWS)
    plan = batch.plan._replace(length=None)

    def call(lane: Lane, leaves: tuple, structure: Any, plan: Plan = plan) -> Solution:
        if plan.native:
            # every lane goes its own number of steps
            of_lane, of_args = lane_axes(batch.axes, batch.plan)
            axes = (None, None, None, of_lane._replace(length=of_lane.steps), of_args)
            # how many rows there are is no part of the program
            shape = plan._replace(rows=min(plan.rows, 1), every=plan.every and 1)
            rows = Turn.of(plan, np.asarray(lane.times))
            one = native.over_lanes(_traced, axes, rows, plan=shape, structure=structure)
            lane = lane._replace(length=lane.steps, times=lane.times[:0])
            return one(batch.data.problem, batch.scheme, batch.projection, lane, leaves)
        return _run(batch.data.problem, batch.scheme, batch.projection, lane, leaves, plan, batch.axes, structure)

    return in_chunks(batch, executed(call, plan, execution, layout), progress)


def is_single(args_axes: Any, *ranked: tuple[Any, int]) -> bool:
    """Whether no argument carries a lane axis; ``ranked`` are (value, its rank without one)."""
    carried = [axis is not None for axis in jax.tree.leaves(args_axes, is_leaf=lambda x: x is None)]
    try:
        return not any(carried) and all(callable(x) or x is None or np.ndim(x) <= rank for x, rank in ranked)
    except ValueError:  # rows of different lengths
        return False


class Batch(NamedTuple):
    """A checked batch: its data, which of them carry a lane axis, the number of steps of each lane, its chunks, and how many are computed at a time."""

    data: Data
    axes: Axes
    scheme: Scheme
    projection: ContactSolver
    counts: np.ndarray
    plan: Plan
    times: Any
    chunks: list[tuple[np.ndarray, np.ndarray]]
    threads: int


def refuse_traced(tree: Any) -> None:
    """TypeError under a transformation of jax: chunks are divided by numbers that must be known."""
    if is_traced(tree):
        raise TypeError(
            "ensemble and sensitivities need known numbers, and cannot be called inside jax.jit, jax.vmap or jax.grad: use "
            "jax.vmap of solve there"
        )


def prepare(
    problem: Problem,
    q0: Any,
    v0: Any,
    t0: Any,
    t1: Any,
    h: Any,
    e: Any,
    args: Any,
    args_axes: Any,
    scheme: Scheme | None,
    projection: ContactSolver | None,
    save: Any,
    chunk: int | None,
    layout: str,
) -> Batch:
    """Check the arguments of a batch and divide it into chunks."""
    refuse_fork()
    refuse_traced((problem, q0, v0, t0, t1, h, e, args))
    save = Save.of(save)
    scheme, projection = choose_methods(scheme, projection)
    data, axes, lanes = _canonical_lanes(problem, q0, v0, t0, t1, h, e, args, args_axes, scheme)
    _check_lanes(data, axes, lanes)
    if chunk is not None:
        check_counts(chunk=chunk)

    eps = float(jnp.finfo(data.q0.dtype).eps)
    t0, t1, h = (np.asarray(x, np.float64) for x in (data.t0, data.t1, data.h))
    counts = np.broadcast_to(count_steps(t0, t1, h, eps), lanes)
    plan, times = make_plan(save, data, int(counts.max()))
    if save.every is not None and np.any(counts != counts[0]):
        raise ValueError(
            "save: every k-th step gives lanes of different numbers of steps different numbers of rows; give times, or 'final'"
        )
    one = pick(data, axes, 0)
    d, m = one.q0.shape[0], one.problem.count(one.t0, one.q0, one.args)
    scalar = is_scalar(layout, d, m, counts.sum())
    ragged, few = bool(np.any(counts != counts[0])), jax.default_backend() == "cpu"
    one_device = jax.config.jax_default_device is not None  # type: ignore[attr-defined]
    devices = 1 if lanes == 1 or one_device else jax.local_device_count()
    plan = plan._replace(ragged=ragged, scalar=scalar, few=few, alone=lanes == 1, devices=devices)
    threads = workers() if devices == 1 else 1
    if chunk is None:
        # as many chunks as keep all cores at work to the end
        most = devices * _automatic_chunk(one, m, plan)
        chunk = -(-lanes // (threads * -(-lanes // (threads * most))))
    chunks = divide(counts, chunk)
    return Batch(data, axes, scheme, projection, counts, plan, times, chunks, threads)


def in_chunks(batch: Batch, call: Callable, progress: bool | None) -> Any:
    """``call(lane, leaves of args, their structure)`` for every chunk; its results, lane by lane, as numpy arrays."""
    data, axes, counts, plan = batch.data, batch.axes, batch.counts, batch.plan
    lanes = len(counts)
    result: Any = None
    show = (sys.stderr.isatty() and len(batch.chunks) > 1) if progress is None else progress

    def begin(pool: Executor, padded: np.ndarray) -> Future:
        padded = np.append(padded, np.repeat(padded[-1:], -len(padded) % plan.devices))
        some = pick(data, axes, padded)
        inputs = Inputs(some.t0, some.h, some.e, None)
        length = jnp.asarray(counts[padded].max(), jnp.int32)
        steps = jnp.asarray(counts[padded], jnp.int32) if plan.ragged else length
        lane = Lane(some.q0, some.v0, some.t1, steps, length, batch.times, inputs)
        leaves, structure = jax.tree.flatten(some.args)
        return pool.submit(call, lane, tuple(leaves), structure)

    threads = batch.threads
    bar = tqdm(total=int(counts.sum()), unit="step", unit_scale=True, disable=not show, desc=f"{lanes} motions")
    pool = crew(threads)
    ahead: deque = deque()
    try:
        ahead.extend((members, begin(pool, padded)) for members, padded in batch.chunks[:threads])
        for i in range(len(batch.chunks)):
            members, future = ahead[0]
            with differentiable():
                found = jax.tree.map(np.asarray, arrived(future.result()))
            ahead.popleft()
            if i + threads < len(batch.chunks):
                following, padded = batch.chunks[i + threads]
                ahead.append((following, begin(pool, padded)))
            if result is None:
                size = sum(float(x.nbytes) for x in jax.tree.leaves(found)) / len(batch.chunks[i][1]) * lanes
                check_memory(size, f"the result of {lanes} motions", FEWER_ROWS)
                result = jax.tree.map(lambda x: np.empty((lanes, *x.shape[1:]), x.dtype), found)
            for target, source in zip(jax.tree.leaves(result), jax.tree.leaves(found), strict=True):
                target[members] = source[: len(members)]
            bar.update(int(counts[members].sum()))
    finally:
        # after an error or Ctrl-C nobody waits for what is under way
        pool.shutdown(wait=not ahead, cancel_futures=True)
        leave(future for _, future in ahead)
        bar.close()
    return result


def pick(data: Data, axes: Axes, which: Any) -> Data:
    """The arguments of one lane (a number) or of some (a slice or numbers); shared ones as they are."""

    def of(x: Any, axis: int | None) -> Any:
        return x if axis is None else x[which]

    leaves, structure = jax.tree.flatten(data.args)
    args = jax.tree.unflatten(structure, [of(x, axis) for x, axis in zip(leaves, axes.args, strict=True)])
    values = {name: of(getattr(data, name), getattr(axes, name)) for name in ("q0", "v0", "t0", "t1", "h", "e")}
    return data._replace(args=args, **values)


def largest() -> int:
    """Lanes in one automatic chunk at most."""
    return LARGEST if jax.default_backend() == "cpu" else LARGEST_ON_DEVICE


def _automatic_chunk(one: Data, m: int, plan: Plan) -> int:
    """Lanes whose saved rows fit MEMORY."""
    made = (one.q0.shape[0] + m) * one.q0.dtype.itemsize if plan.function is None else 0
    row = row_size(one, m, plan) + made
    return int(np.clip(MEMORY // ((plan.rows + 1) * max(row, 1)), 1, largest()))


def _canonical_lanes(
    problem: Problem, q0: Any, v0: Any, t0: Any, t1: Any, h: Any, e: Any, args: Any, args_axes: Any, scheme: Scheme
) -> tuple[Data, Axes, int]:
    """Arguments as arrays of one dtype, which of them carry a lane axis, and the number of lanes."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a jaximpact.Problem, got {type(problem).__name__}")
    q0, v0 = canonical_state(q0, v0)
    for name, value in {"q0": q0, "v0": v0}.items():
        if value.ndim not in (1, 2) or value.shape[-1] == 0:
            raise ValueError(f"{name} must have shape (d,) or (B, d), got {value.shape}")
    if q0.shape[-1] != v0.shape[-1]:
        raise ValueError(f"q0 and v0 must have the same d, got shapes {q0.shape} and {v0.shape}")
    dtype = q0.dtype
    t0, t1, h = (real_array(name, x).astype(dtype) for name, x in {"t0": t0, "t1": t1, "h": h}.items())
    for name, value in {"t0": t0, "t1": t1, "h": h}.items():
        if value.ndim > 1:
            raise ValueError(f"{name} must be a number or have shape (B,), got {value.shape}")
    args = cast_numbers("args", args, dtype)
    own = e is None  # the problem's restitution has no lane axis
    problem, e = split_restitution(problem, e, dtype)
    if own or (e.ndim == 2 and e.shape[0] == 1):
        e, e_axis = (e if own else e[0]), None
    else:
        e_axis = 0 if e.ndim else None

    leaves = jax.tree.leaves(args)
    args_axes = leaf_axes(args, args_axes)
    axes = Axes(
        0 if q0.ndim == 2 else None,
        0 if v0.ndim == 2 else None,
        0 if t0.ndim else None,
        0 if t1.ndim else None,
        0 if h.ndim else None,
        e_axis,
        args_axes,
    )

    sizes = {}
    for name, value, axis in (("q0", q0, axes.q0), ("v0", v0, axes.v0), ("t0", t0, axes.t0), ("t1", t1, axes.t1),
                              ("h", h, axes.h), ("e", e, axes.e)):  # fmt: skip
        if axis == 0:
            sizes[name] = value.shape[0]
    for leaf, axis in zip(leaves, args_axes, strict=True):
        if axis == 0:
            sizes["args"] = leaf.shape[0]
            if len({leaf.shape[0], *sizes.values()}) > 1:
                break
    if not sizes:
        raise ValueError(
            "no argument carries a lane axis: give q0, v0, t0, t1, h, e or (with args_axes) args one, or call solve"
        )
    if len(set(sizes.values())) > 1:
        raise ValueError(f"lane axes must have one length, got {sizes}")
    lanes = next(iter(sizes.values()))
    if lanes == 0:
        raise ValueError("the lane axis is empty: an ensemble needs at least one trajectory")

    check_finite(q0=q0, v0=v0)
    check_times(t0, t1, h)
    check_restitution(e)
    data = Data(problem, q0, v0, t0, t1, h, e, args)
    one = pick(data, axes, 0)
    try:
        check_functions(problem, scheme, one.q0, one.v0, one.t0, one.e, one.args)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{error}{_lane_like(args, args_axes, lanes)}") from error
    if axes.e == 0:
        for value in np.unique(np.asarray(e), axis=0)[[0, -1]]:
            scheme.check(problem, value, e.shape[-1] if e.ndim == 2 else 0)
    return data, axes, lanes


def _lane_like(args: Any, args_axes: tuple, lanes: int) -> str:
    """The cure where a leaf of args may be meant to differ between lanes, and args_axes does not say so."""
    paths = jax.tree_util.tree_leaves_with_path(args)
    for (path, leaf), axis in zip(paths, args_axes, strict=True):
        if axis is None and jnp.ndim(leaf) and leaf.shape[0] == lanes:
            where = "args" + jax.tree_util.keystr(path)
            return (
                f"; {where} has shape {leaf.shape}: if it holds one value for each trajectory, mark it 0 in args_axes"
            )
    return ""


def _check_lanes(data: Data, axes: Axes, lanes: int) -> None:
    """Admissible start and positive mass of every lane."""
    kind = (axes.q0, axes.v0, axes.t0, axes.args)
    parts, shortest = [], np.min(data.h)
    for begin in range(0, lanes, largest()):
        end = min(begin + largest(), lanes)
        some = pick(data, axes, slice(begin, end))
        leaves, structure = jax.tree.flatten(some.args)
        with differentiable():
            found = _reports(
                data.problem, some.q0, some.v0, some.t0, tuple(leaves), kind, structure, end - begin, shortest
            )
        refuse_traced(found)
        parts.append(jax.tree.map(np.asarray, found))
    report: Report = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    outward = judge(report, lanes=True)
    if outward:
        remark(outward, stacklevel=3)
