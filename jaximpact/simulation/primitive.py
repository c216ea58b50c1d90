"""The motion as one jax primitive: batching adds lanes, and its derivatives are primitives of the same kind.

On a CPU it is native code, where the problem allows it, also inside a program that XLA compiles; elsewhere XLA takes the lane
function as it stands. Reverse mode with few inputs takes the Jacobian in forward mode, which needs no memory for the steps.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.flatten_util import ravel_pytree
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh

from ..compiler.llvm import xla_ffi as foreign
from ..compiler.scalar import Unsupported
from ..jaxtools.derivative_rules import NO_DERIVATIVE
from ..mechanics.motion import Motion
from . import reverse_loop as backwards
from .backends import Task, for_gpu, one_lane, without_rows
from .limits import (
    MAX_FORWARD_DIRECTIONS,
    MAX_FORWARD_DIRECTIONS_OF_ONE,
    MAX_FORWARD_ENTRIES_OF_ONE,
    MAX_JACOBIAN_BYTES,
    MAX_SHARED_REVERSE_INPUTS,
    MAX_STATE_BYTES,
)
from .program import Program
from .reverse_loop import Parts
from .rows import RowRequest
from .trajectory import structure

NO_MESH = AbstractMesh((), ())
LEAVES_OF_A_STATE = (
    8  # about so many arrays of coordinates and of contacts are kept of a step that is walked back through
)
motion_p = Primitive("motion")
motion_p.multiple_results = True


# what is computed of one lane: functions of flat operands, hashable


class LaneFunction(abc.ABC):
    """A hashable function of flat operands of one lane; ``before`` is the number of axes that its results have before their own."""

    before: ClassVar[int] = 0

    @property
    @abc.abstractmethod
    def value(self) -> Value:
        """The function itself, or the function that a derivative is taken of."""

    @abc.abstractmethod
    def without_row_count(self) -> LaneFunction:
        """The function for any number of steps and rows, as native code takes them at run time."""

    @abc.abstractmethod
    def for_gpu(self) -> LaneFunction:
        """The function in steps without branches."""

    def target(self, members: Sequence, axes: tuple, count: int | None, results: Sequence) -> str:
        """Name of the native FFI target; raises Unsupported if there is none."""
        without_row_count, turns = self.without_row_count(), _turns(self, axes)
        return foreign.lane_target(
            _branching, members, axes, count, results, turns, self.before, function=without_row_count
        )


@dataclass(frozen=True)
class Value(LaneFunction):
    """Maps the leaves of program and motion to the leaves of a task's result."""

    task: Task
    structure: Any
    execution: str = "auto"  # as in `solve`
    differentiated: bool = False

    @property
    def value(self) -> Value:
        return self

    def __call__(self, *leaves: Any, branches: bool = False) -> list:
        program, motion = self.unflatten(leaves)
        # jitted, so that values and derivatives share one trace
        return jax.tree.leaves(one_lane(without_rows(program) if branches else program, motion, task=self.task))

    def unflatten(self, leaves: Sequence) -> tuple[Program, Motion]:
        """Program and motion from their leaves."""
        return jax.tree.unflatten(self.structure, leaves[: self.structure.num_leaves])

    def without_row_count(self) -> Value:
        program, motion = self.unflatten([0] * self.structure.num_leaves)
        rows, every = min(program.rows, 1), program.every and 1
        program = program.replace(length=None, rows=rows, every=every)
        return replace(self, structure=jax.tree.structure((program, motion)))

    def for_gpu(self) -> Value:
        program, motion = self.unflatten([0] * self.structure.num_leaves)
        return replace(self, structure=jax.tree.structure((for_gpu(program), motion)))

    def rows(self, leaves: Sequence) -> int:
        """Number of rows before the last."""
        return self.unflatten(leaves)[0].rows

    def native_shapes(self, members: Sequence, axes: tuple) -> list:
        """Shapes of the results in one lane, from the trace that native code is compiled from."""
        rows, without_row_count = self.rows(members), self.without_row_count()
        with jax.sharding.use_abstract_mesh(NO_MESH):  # as when it is compiled, so that it is traced once
            of_row = _branching.trace(*members, function=without_row_count).out_info
        if rows == 0:
            return of_row
        # what has an axis of rows, which native code leaves out: one trace for any number of steps and rows
        of_rows = jax.eval_shape(partial(_vmapped, function=without_row_count, axes=axes, count=None), *members)
        found = []
        for x, many in zip(of_row, of_rows, strict=True):
            shape = (rows + 1, *x.shape) if many.ndim > x.ndim else x.shape
            found.append(jax.ShapeDtypeStruct(shape, x.dtype))
        return found

    def with_derivative(self, leaves: Sequence, moved: Sequence[bool]) -> Value:
        """The function with the derivative by the leaves ``moved``; ValueError if sensitivity="none" forbids it."""
        program, motion = self.unflatten(leaves)
        if program.sensitivity == "none":
            raise ValueError(NO_DERIVATIVE)
        _, by = self.unflatten(moved)
        clock = by.t0 or by.t1 or by.h
        known = program.replace(
            sensitivity=program.sensitivity or "corrected", clock=program.clock or clock, again=self.differentiated
        )
        return replace(self, structure=jax.tree.structure((known, motion)), differentiated=True)


@dataclass(frozen=True)
class Derivative(LaneFunction):
    """Base of derivatives of the outputs ``used`` by the operands ``moved`` of a lane function."""

    function: Value
    moved: tuple[bool, ...]
    used: tuple[bool, ...]

    @property
    def value(self) -> Value:
        return self.function

    def outputs(self, operands: Sequence, branches: bool) -> tuple[Callable, list]:
        """The used outputs as a function of the moved operands, and these operands."""

        def of(some: Sequence) -> list:
            numbers = iter(some)
            full = [next(numbers) if m else x for x, m in zip(operands, self.moved, strict=True)]
            found = self.function(*full, branches=branches)
            return [x for x, u in zip(found, self.used, strict=True) if u]

        return of, [x for x, m in zip(operands, self.moved, strict=True) if m]

    def without_row_count(self) -> Derivative:
        return replace(self, function=self.function.without_row_count())

    def for_gpu(self) -> Derivative:
        return replace(self, function=self.function.for_gpu())

    def native_shapes(self, members: Sequence, axes: tuple) -> list:
        """Shapes of the results in one lane, without tracing the derivative, which may be transposable only."""
        count = len(self.moved)
        values = self.function.native_shapes(members[:count], axes[:count])
        moved = sum(math.prod(x.shape) for x, m in zip(members, self.moved, strict=False) if m)
        of = [x for x, u in zip(values, self.used, strict=True) if u]
        return [jax.ShapeDtypeStruct(((moved,) * self.before + x.shape), x.dtype) for x in of]


class Tangent(Derivative):
    """JVP: from the operands and tangents of the moved ones to tangents of the outputs."""

    def __call__(self, *operands: Any, branches: bool = False) -> list:
        count = len(self.moved)
        of, some = self.outputs(operands[:count], branches)
        return jax.jvp(of, (some,), (list(operands[count:]),))[1]


class ForwardJacobian(Derivative):
    """Jacobian in forward mode: tangents of the outputs for unit tangents of every moved number, along the first axis."""

    before: ClassVar[int] = 1

    def __call__(self, *operands: Any, branches: bool = False) -> list:
        of, some = self.outputs(operands, branches)
        flat, unravel = ravel_pytree(some)
        push = lambda direction: jax.jvp(of, (some,), (unravel(direction),))[1]
        if flat.size == 1:  # one number is no batch, which would be traced again
            return [x[None] for x in push(jnp.ones_like(flat))]
        return jax.vmap(push)(jnp.eye(flat.size, dtype=flat.dtype))


class Cotangent(Derivative):
    """VJP: from the operands and cotangents of the outputs to cotangents of the moved operands; runs backwards through the steps."""

    def __call__(self, *operands: Any, branches: bool = False) -> list:
        count = len(self.moved)
        of, some = self.outputs(operands[:count], branches)
        return jax.vjp(of, some)[1](list(operands[count:]))[0]

    def native_shapes(self, members: Sequence, axes: tuple) -> list:
        """Shapes of the moved operands."""
        return [x for x, m in zip(members, self.moved, strict=False) if m]

    def target(self, members: Sequence, axes: tuple, count: int | None, results: Sequence) -> str:
        """Name of the FFI target of the backward loop."""
        program, motion = self.function.unflatten(members)
        if program.problem.listed or program.length is None:
            raise Unsupported("reverse mode of lists of near pairs")
        _turns(self, axes)  # refuses what it has no rule for
        shared = sum(math.prod(x.shape) for x, a, m in zip(members, axes, self.moved, strict=False) if m and a is None)
        if count is not None and shared > MAX_SHARED_REVERSE_INPUTS and self.function.execution == "auto":
            raise Unsupported(f"reverse mode of many motions by {shared} numbers that they share")
        parts = Parts.of(self.function.without_row_count().structure, self.moved, self.used, structure(program, motion))
        return backwards.target(parts, self.function.unflatten, members, axes, count, results)


# the operation


def bind(task: Task, result: Any, program: Program, motion: Motion, execution: str = "auto") -> Any:
    """Binds ``task(program, motion, None)`` as the motion primitive; ``result`` is the structure of its value."""
    leaves, structure = jax.tree.flatten((program, motion))
    # plain numbers, tolerances say, take the types of the motion: an operand has no weak one
    kinds = {float: motion.q0.dtype, int: jnp.int32, bool: bool}
    leaves = [jnp.asarray(x, kinds.get(type(x))) for x in leaves]
    found = motion_p.bind(*leaves, function=Value(task, structure, execution), axes=(None,) * len(leaves), count=None)
    return jax.tree.unflatten(result, found)


def _lanewise(function: Any, axes: tuple, count: int | None) -> Callable:
    """The lane function for all lanes, in the form that XLA compiles."""
    return function if count is None else jax.vmap(function, in_axes=axes, axis_size=count)


_vmapped = jax.jit(
    lambda *operands, function, axes, count: _lanewise(function, axes, count)(*operands),
    static_argnames=("function", "axes", "count"),
)
_bound = jax.jit(
    lambda *operands, **params: motion_p.bind(*operands, **params), static_argnames=("function", "axes", "count")
)


def _abstract(*operands: Any, function: Any, axes: tuple, count: int | None) -> list:
    members = _of_one_lane(operands, axes)
    lead = () if count is None else (count,)
    if jax.default_backend() == "cpu" and _is_native(function):
        shapes = function.native_shapes(members, axes)
    else:
        shapes = jax.eval_shape(partial(_vmapped, function=function, axes=axes, count=None), *members)
    return [jax.core.ShapedArray((*lead, *x.shape), x.dtype) for x in shapes]


def _of_one_lane(operands: Sequence, axes: tuple) -> list:
    """Shapes of the operands in one lane."""
    shapes = [x.shape if a is None else x.shape[1:] for x, a in zip(operands, axes, strict=True)]
    return [jax.ShapeDtypeStruct(shape, x.dtype) for x, shape in zip(operands, shapes, strict=True)]


def _is_native(function: Any) -> bool:
    return function.value.execution != "xla"


def _motion_batching(
    operands: Sequence, dims: Sequence, *, function: Any, axes: tuple, count: int | None
) -> tuple[list, list]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    operands = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    if count is None:
        axes = tuple(None if d is None else 0 for d in dims)
        found = motion_p.bind(*operands, function=function, axes=axes, count=size)
        return found, [0] * len(found)

    def join_axes(x: Any, d: int | None, a: int | None) -> Any:
        """Merges the new batch axis into the lane axis."""
        if d is None and a is None:
            return x
        x = x[None] if d is None else x
        x = x[:, None] if a is None else x
        return jnp.broadcast_to(x, (size, count, *x.shape[2:])).reshape(size * count, *x.shape[2:])

    operands = [join_axes(x, d, a) for x, d, a in zip(operands, dims, axes, strict=True)]
    axes = tuple(None if d is None and a is None else 0 for d, a in zip(dims, axes, strict=True))
    found = motion_p.bind(*operands, function=function, axes=axes, count=size * count)
    return [x.reshape(size, count, *x.shape[1:]) for x in found], [0] * len(found)


def _is_real(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _motion_jvp(primals: Sequence, tangents: Sequence, *, function: Any, axes: tuple, count: int | None) -> tuple:
    moved = tuple(type(t) is not ad.Zero and _is_real(x) for x, t in zip(primals, tangents, strict=True))
    changes = [ad.instantiate_zeros(t) for t, m in zip(tangents, moved, strict=True) if m]
    if function is not function.value:
        # derivatives of derivatives: of the lane function as it stands
        some = [x for x, m in zip(primals, moved, strict=True) if m]

        def of(some: list) -> list:
            numbers = iter(some)
            full = [next(numbers) if m else x for x, m in zip(primals, moved, strict=True)]
            return _vmapped(*full, function=function, axes=axes, count=count)

        return jax.jvp(of, (some,), (changes,))
    function = function.with_derivative(primals, moved)
    values = motion_p.bind(*primals, function=function, axes=axes, count=count)
    used = tuple(map(_is_real, values))
    further = tuple(a for a, m in zip(axes, moved, strict=True) if m)
    tangent = Tangent(function, moved, used)
    found = iter(motion_p.bind(*primals, *changes, function=tangent, axes=(*axes, *further), count=count))
    return values, [
        next(found) if u else ad.Zero(jax.typeof(x).to_tangent_aval()) for x, u in zip(values, used, strict=True)
    ]


def _motion_transpose(cotangents: Sequence, *operands: Any, function: Tangent, axes: tuple, count: int | None) -> list:
    number = len(function.moved)
    known, changes = operands[:number], operands[number:]
    linear = [ad.is_undefined_primal(x) for x in changes]
    varied = iter(linear)
    moved = tuple(m and next(varied) for m in function.moved)
    wanted = iter(cotangents)
    used = tuple(u and type(next(wanted)) is not ad.Zero for u in function.used)
    given = [ct for ct in cotangents if type(ct) is not ad.Zero]
    avals = [x.aval for x, lin in zip(changes, linear, strict=True) if lin]
    lane_axes = [a for a, lin in zip(axes[number:], linear, strict=True) if lin]
    axes = axes[:number]
    if not given:
        found: list = [None] * len(avals)
    elif _is_native(function) and _fits(function.function, known, avals, lane_axes, given, count):
        lane = 0 if count is None else 1
        every = _jacobian(replace(function, moved=moved, used=used), known, axes, count)

        def share(jacobian: Array, ct: Array) -> Array:
            """Cotangents of the inputs, (p,) or (lanes, p), from one Jacobian."""
            left = (*jacobian.shape[: lane + 1], -1)
            flat = jacobian.reshape(left), ct.reshape(*ct.shape[:lane], -1)
            return jnp.einsum("...pk,...k->...p", *flat)

        total: Any = sum(share(jacobian, ct) for jacobian, ct in zip(every, given, strict=True))
        found, first = [], 0
        for aval, axis in zip(avals, lane_axes, strict=True):
            shape = aval.shape if axis is None or count is None else aval.shape[1:]
            part = total[..., first : first + math.prod(shape)]
            first += math.prod(shape)
            part = part.sum(axis=0) if count is not None and axis is None else part
            found.append(part.reshape(aval.shape))
    else:
        further = (None if count is None else 0,) * len(given)
        of_lanes = Cotangent(function.function, moved, used)
        found = motion_p.bind(*known, *given, function=of_lanes, axes=(*axes, *further), count=count)
        # what lanes share has the sum of theirs
        found = [x.sum(axis=0) if count is not None and a is None else x for x, a in zip(found, lane_axes, strict=True)]
    results = iter(found)
    return [None] * number + [next(results) if lin else None for lin in linear]


def _jacobian(function: Tangent, known: Sequence, axes: tuple, count: int | None) -> list:
    """Derivatives of the used outputs in all directions, with an axis of directions, (p, ...) or (lanes, p, ...)."""
    if jax.default_backend() == "cpu":
        of = ForwardJacobian(function.function, function.moved, function.used)
        return motion_p.bind(*known, function=of, axes=axes, count=count)
    # on a GPU each direction is a lane of its own
    members = _of_one_lane(known, axes)
    flat, unravel = ravel_pytree(
        [jnp.zeros(x.shape, x.dtype) for x, m in zip(members, function.moved, strict=True) if m]
    )
    every = (*axes, *[None] * sum(function.moved))

    def push(direction: Array) -> list:
        return motion_p.bind(*known, *unravel(direction), function=function, axes=every, count=count)

    found = jax.vmap(push)(jnp.eye(flat.size, dtype=flat.dtype))
    return found if count is None else [jnp.moveaxis(x, 0, 1) for x in found]


def _fits(
    value: Value, known: Sequence, avals: Sequence, lane_axes: Sequence, given: Sequence, count: int | None
) -> bool:
    """Whether the forward-mode Jacobian is cheaper than reverse mode."""
    of_lane = [math.prod(x.shape if a is None else x.shape[1:]) for x, a in zip(avals, lane_axes, strict=True)]
    directions = sum(of_lane)
    size = directions * sum(x.size * x.dtype.itemsize for x in given)
    if directions > MAX_FORWARD_DIRECTIONS or size > MAX_JACOBIAN_BYTES:
        return False
    program, motion = value.unflatten(known)
    if (
        jax.default_backend() != "cpu"
        or count is not None
        or directions <= MAX_FORWARD_DIRECTIONS_OF_ONE
        or not _walks_back(program, motion)
    ):
        return True
    return directions * motion.q0.size**2 <= MAX_FORWARD_ENTRIES_OF_ONE


def _walks_back(program: Program, motion: Motion) -> bool:
    """Whether native code walks back through the steps of one motion, whose states it keeps (`reverse_loop`)."""
    traits = program.scheme.traits
    # of a scheme that chooses its own steps every trial is one to walk back through
    if program.problem.listed or program.length is None or not traits.reverse or traits.order is None:
        return False
    of_state = LEAVES_OF_A_STATE * (motion.q0.size + program.problem.count(motion.t0, motion.q0, motion.args) + 1)
    return of_state * program.length * motion.q0.dtype.itemsize <= MAX_STATE_BYTES


def _natively(ctx: Any, *operands: Any, function: Any, axes: tuple, count: int | None) -> Any:
    """Lowering to native code, if possible."""
    members = _of_one_lane(ctx.avals_in, axes)
    try:
        if not _is_native(function):
            raise Unsupported("not asked for")
        name = function.target(members, axes, count, ctx.avals_out)
    except (Unsupported, ImportError, NotImplementedError) as error:
        if function.value.execution == "native":
            raise ValueError(f"execution='native' cannot take this problem ({error}): give execution='xla'") from error
        return _by_xla(ctx, *operands, function=function, axes=axes, count=count)
    call = jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ctx.avals_out])
    return mlir.lower_fun(lambda *xs: call(*xs), multiple_results=True)(ctx, *operands)


_branching = jax.jit(lambda *operands, function: function(*operands, branches=True), static_argnames="function")


def _turns(function: Any, axes: tuple) -> Callable:
    """Row requests for native code; Unsupported if saved times differ between lanes or are differentiated."""
    value = function.value
    number = value.structure.num_leaves
    moved = (False,) * number if function is value else function.moved
    known, _ = value.unflatten([a is not None or m for a, m in zip(axes, moved, strict=False)])
    if known.rows == 0:
        return lambda operands: ()
    if known.times:
        raise Unsupported("times of rows that are no constants")
    return lambda operands: RowRequest.of(value.unflatten(operands)[0])


def _on_gpu(ctx: Any, *operands: Any, function: Any, axes: tuple, count: int | None) -> Any:
    """Lowering for a GPU: many lanes take steps without branches."""
    if count is not None and _is_native(function) and not isinstance(function, ForwardJacobian | Cotangent):
        try:
            return _by_xla(ctx, *operands, function=function.for_gpu(), axes=axes, count=count)
        except Unsupported:  # too large a derivative
            pass
    return _by_xla(ctx, *operands, function=function, axes=axes, count=count)


def _by_xla(ctx: Any, *operands: Any, function: Any, axes: tuple, count: int | None) -> Any:
    return mlir.lower_fun(_lanewise(function, axes, count), multiple_results=True)(ctx, *operands)


motion_p.def_impl(_bound)
motion_p.def_abstract_eval(_abstract)
ad.primitive_jvps[motion_p] = _motion_jvp
ad.primitive_transposes[motion_p] = _motion_transpose
batching.primitive_batchers[motion_p] = _motion_batching
mlir.register_lowering(motion_p, _by_xla)
mlir.register_lowering(motion_p, _natively, platform="cpu")
mlir.register_lowering(motion_p, _on_gpu, platform="cuda")
mlir.register_lowering(motion_p, _on_gpu, platform="rocm")
