"""Functions of one lane that the motion primitives evaluate: the values and their derivatives, hashable, with flat
lists of arrays as operands."""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import jaxpr_as_fun
from jax.flatten_util import ravel_pytree
from jax.tree_util import PyTreeDef

from ..compiler.gpu import kernel
from ..compiler.lane_axes import NO_MESH, used_by_moved
from ..compiler.llvm import xla_ffi as foreign
from ..compiler.scalar import Unsupported
from ..compiler.stream import yields_rows
from ..jaxtools.dead_code import without_dead_code
from ..jaxtools.derivative_rules import NO_DERIVATIVE
from ..jaxtools.shapes import PyTree, shapes_and_dtypes
from ..jaxtools.trace_context import full_precision
from ..mechanics.motion import By, Motion
from . import reverse_loop as backwards
from .account import Account
from .backends import Task, one_lane
from .program import Program
from .reverse_parts import Parts
from .rows import RowRequest

if TYPE_CHECKING:
    from ..compiler.llvm.call import Jitted

MAX_GRADIENTS_TO_COME = 256
_gradients_to_come: dict[
    tuple, tuple
] = {}  # derivatives in reverse mode that have been traced, by the function, shapes and axes of the values


class LaneFunction(abc.ABC):
    """Base class: hashable function of the flat operands of one lane."""

    @property
    @abc.abstractmethod
    def extra_axes(self) -> int:
        """Number of leading axes that its results have more than those of its `value`, such as the axis of the
        directions of a Jacobian."""

    @property
    @abc.abstractmethod
    def value(self) -> Value:
        """The function itself or, if it is a derivative, the function that it is the derivative of."""

    @abc.abstractmethod
    def without_row_count(self, many: bool = False) -> LaneFunction:
        """The function for any number of steps and rows, as native code takes them at run time; ``many``: of lanes that
        are computed together."""

    @abc.abstractmethod
    def reading(self, read: Sequence[bool]) -> tuple[LaneFunction, list[bool]]:
        """Returns the function for a program that reads the results in the mask ``read``,
        and the mask of the results that this function has.

        Without an account of the motion that nobody reads, steps do not compute it; other results stay, so that there
        are two programs and no more.
        """

    @property
    def branching(self) -> Jitted:
        """The function of operands and ``function``, jitted, that native code and kernels are compiled from."""
        return _branching if self.value.tells else _branching_without_account

    def target(self, members: Sequence, axes: tuple, count: int | None, results: Sequence) -> str:
        """Name of the FFI target that runs the function as native code; raises Unsupported if there is none.

        ``members``: avals of the operands in one lane; ``axes``: their lane axes; ``count``: number of lanes, None
        without a lane axis; ``results``: avals of the results of all lanes.
        """
        without_row_count, turns = self.without_row_count(count is not None), turns_of(self, axes)
        return foreign.lane_target(
            self.branching, members, axes, count, results, turns, self.extra_axes, function=without_row_count
        )

    def in_kernel(self, operands: Sequence, axes: tuple, count: int | None) -> list:
        """Results of the function for all lanes, computed by one kernel of a GPU; raises Unsupported if there is none.

        Arguments as in `target`.
        """
        given, carried = turns_of(self, axes)(operands), [a is not None for a in axes]
        _, found = kernel.run_lanes(self.branching, operands, carried, given, function=self.without_row_count())
        if count is None:
            return [x[0] for x in found]
        return found


@dataclass(frozen=True)
class Value(LaneFunction):
    """Maps the leaves of program and motion to the leaves of the result of a ``task(program, motion, None)``,
    such as `trajectory`.

    ``structure``: pytree structure of (program, motion); ``result``: that of the result. ``differentiated``: whether
    the function has been prepared by `with_derivative`. ``walks_back``: whether reverse mode never takes the Jacobian
    in forward mode. ``tells``: whether the account of the motion, its status and totals, is among the leaves.
    """

    task: Task
    structure: PyTreeDef
    result: PyTreeDef
    execution: str = "auto"  # as in `solve`
    differentiated: bool = False
    walks_back: bool = False
    tells: bool = True

    @property
    def extra_axes(self) -> int:
        return 0

    @property
    def kept(self) -> tuple[bool, ...]:
        """Mask of the leaves of the result that the function returns."""
        return tuple(self.tells or not x for x in _of_account(self.result))

    def reading(self, read: Sequence[bool]) -> tuple[Value, list[bool]]:
        if not self.tells or any(map(operator.and_, read, _of_account(self.result))):
            return self, [True] * len(read)
        found = replace(self, tells=False)
        return found, list(found.kept)

    @property
    def value(self) -> Value:
        return self

    def __call__(self, *leaves: Array, branches: bool = False) -> list:
        program, motion = self.unflatten(leaves)
        # jitted, so that values and derivatives share one trace
        found = jax.tree.leaves(one_lane(program.without_rows if branches else program, motion, task=self.task))
        return list(compress(found, self.kept))

    def unflatten(self, leaves: Sequence) -> tuple[Program, Motion]:
        """Program and motion from their leaves."""
        return jax.tree.unflatten(self.structure, leaves[: self.structure.num_leaves])

    def without_row_count(self, many: bool = False) -> Value:
        program, motion = self.unflatten([0] * self.structure.num_leaves)
        rows, every = min(program.rows, 1), min(program.every, 1)
        # a motion by itself that rests is told sooner by its depth than by the step that it would make
        account = self.tells or self.differentiated or not many
        program = program.replace(length=0, rows=rows, every=every, account=account)
        return replace(self, structure=jax.tree.structure((program, motion)))

    def target(self, members: Sequence, axes: tuple, count: int | None, results: Sequence) -> str:
        """Name of the target; where a derivative in reverse mode is known to follow,
        of one that keeps the states for it."""
        follows = _gradients_to_come.get((replace(self, tells=True), axes, count, shapes_and_dtypes(members)))
        if follows is not None:
            with suppress(Unsupported, ImportError, NotImplementedError):
                cotangent, operands, of_operands = follows
                return cotangent.target(operands, of_operands, count, results, self.kept)
        return super().target(members, axes, count, results)

    def rows(self, leaves: Sequence) -> int:
        """Number of rows that are saved before the final one."""
        return self.unflatten(leaves)[0].rows

    def native_shapes(self, members: Sequence) -> list:
        """Shapes of the results in one lane for operands of the shapes ``members``,
        from the trace that native code is compiled from."""
        rows, without_row_count = self.rows(members), self.without_row_count()
        with jax.sharding.use_abstract_mesh(NO_MESH):  # as when it is compiled, so that it is traced once
            traced = _branching.trace(*members, function=replace(without_row_count, tells=True))
        # what has an axis of rows, which native code leaves out
        many = yields_rows(traced.jaxpr.jaxpr) if rows else [False] * len(self.kept)
        every = [
            jax.ShapeDtypeStruct((rows + 1, *x.shape) if of_rows else x.shape, x.dtype)
            for x, of_rows in zip(traced.out_info, many, strict=True)
        ]
        return list(compress(every, self.kept))

    def with_derivative(self, leaves: Sequence, moved: Sequence[bool]) -> Value:
        """Returns the function prepared for derivatives by the leaves in the mask ``moved``; ValueError if
        sensitivity="none" forbids them."""
        program, motion = self.unflatten(leaves)
        if program.sensitivity == "none":
            raise ValueError(NO_DERIVATIVE)
        _, by = self.unflatten(moved)
        known = program.replace(
            sensitivity=program.sensitivity or "corrected", by=By.of(by).joined(program.by), again=self.differentiated
        )
        return replace(self, structure=jax.tree.structure((known, motion)), differentiated=True)


@dataclass(frozen=True)
class Derivative(LaneFunction):
    """Base of derivatives of a lane function: of its outputs in the mask ``used`` by its
    operands in the mask ``moved``.

    ``new_axes``: number of leading axes that its results have more than those of the function.
    """

    new_axes: ClassVar[int] = 0
    function: Any  # a Value, or of a second derivative the first one
    moved: tuple[bool, ...]
    used: tuple[bool, ...]

    @property
    def extra_axes(self) -> int:
        return self.new_axes + self.function.extra_axes

    @property
    def value(self) -> Value:
        return self.function.value

    def reading(self, read: Sequence[bool]) -> tuple[LaneFunction, list[bool]]:
        tangents = iter(read)
        function, stays = self.function.reading([u and next(tangents) for u in self.used])
        return replace(self, function=function, used=tuple(compress(self.used, stays))), list(
            compress(stays, self.used)
        )

    def outputs(self, operands: Sequence, branches: bool) -> tuple[Callable, list]:
        """Returns the function from the moved operands to the used outputs, and the moved operands."""
        return used_by_moved(partial(self.function, branches=branches), operands, self.moved, self.used)

    def without_row_count(self, many: bool = False) -> Derivative:
        return replace(self, function=self.function.without_row_count(many))

    def native_shapes(self, members: Sequence) -> list:
        """Shapes of the results in one lane.

        They are found without tracing the derivative: derivatives of some operations can be
        transposed but not evaluated.
        """
        count = len(self.moved)
        values = self.function.native_shapes(members[:count])
        moved = sum(math.prod(x.shape) for x, m in zip(members, self.moved, strict=False) if m)
        of = [x for x, u in zip(values, self.used, strict=True) if u]
        return [jax.ShapeDtypeStruct(((moved,) * self.new_axes + x.shape), x.dtype) for x in of]


class Tangent(Derivative):
    """JVP: maps the operands and the tangents of the moved operands to the tangents of the used outputs."""

    def __call__(self, *operands: Array, branches: bool = False) -> list:
        count = len(self.moved)
        of, some = self.outputs(operands[:count], branches)
        return jax.jvp(of, (some,), (list(operands[count:]),))[1]


class ValueAndTangent(Derivative):
    """All outputs, followed by the tangents of the used ones as `Tangent` computes them,
    in one pass through the steps."""

    @property
    def tangent(self) -> Tangent:
        """The tangents without the values."""
        return Tangent(self.function, self.moved, self.used)

    def reading(self, read: Sequence[bool]) -> tuple[LaneFunction, list[bool]]:
        count = len(self.used)
        tangents = iter(read[count:])
        either = [x | (u and next(tangents)) for x, u in zip(read[:count], self.used, strict=True)]
        function, stays = self.function.reading(either)
        found = replace(self, function=function, used=tuple(compress(self.used, stays)))
        return found, [*stays, *compress(stays, self.used)]

    def __call__(self, *operands: Array, branches: bool = False) -> list:
        count = len(self.moved)
        of, some = replace(self, used=(True,) * len(self.used)).outputs(operands[:count], branches)
        values, changes = jax.jvp(of, (some,), (list(operands[count:]),))
        return [*values, *(x for x, u in zip(changes, self.used, strict=True) if u)]

    def native_shapes(self, members: Sequence) -> list:
        """Shapes of all outputs, with new axes of length one, and of the derivatives of the used ones."""
        values, lead = self.function.native_shapes(members[: len(self.moved)]), (1,) * self.new_axes
        return [
            *(jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype) for x in values),
            *super().native_shapes(members),
        ]


class ForwardJacobian(Derivative):
    """Jacobian in forward mode: for each used output (p, ...), its derivatives by the p numbers in the
    operands to be differentiated by."""

    new_axes: ClassVar[int] = 1

    def __call__(self, *operands: Array, branches: bool = False) -> list:
        return _by_directions(*self.outputs(operands, branches))[1]


class ValueAndJacobian(ValueAndTangent):
    """All outputs, each with a leading axis of length one, followed by the derivatives of the used ones as
    `ForwardJacobian` computes them, in one pass through the steps."""

    new_axes: ClassVar[int] = 1

    def __call__(self, *operands: Array, branches: bool = False) -> list:
        values, changes = _by_directions(*replace(self, used=(True,) * len(self.used)).outputs(operands, branches))
        return [*(x[None] for x in values), *compress(changes, self.used)]


def _by_directions(of: Callable, some: list) -> tuple[list, list]:
    """Returns the values of a function of a list of arrays, and its derivatives (p, ...) by the p numbers in them."""
    flat, unravel = ravel_pytree(some)
    push = lambda direction: jax.jvp(of, (some,), (unravel(direction),))
    if flat.size == 1:  # one number is no batch, which would be traced again
        values, changes = push(jnp.ones_like(flat))
        return values, [x[None] for x in changes]
    return jax.vmap(push, out_axes=(None, 0))(jnp.eye(flat.size, dtype=flat.dtype))


class Cotangent(Derivative):
    """VJP: maps the operands and the cotangents of the used outputs to the cotangents of the moved operands, by a
    backward pass through the steps."""

    def __call__(self, *operands: Array, branches: bool = False) -> list:
        count = len(self.moved)
        of, some = self.outputs(operands[:count], branches)
        # the steps without what only other outputs need: status and account
        closed = without_dead_code(jax.make_jaxpr(of)(some))
        return list(jax.vjp(jaxpr_as_fun(closed), *some)[1](list(operands[count:])))

    def native_shapes(self, members: Sequence) -> list:
        """Shapes of the moved operands."""
        return [x for x, m in zip(members, self.moved, strict=False) if m]

    def reading(self, read: Sequence[bool]) -> tuple[LaneFunction, list[bool]]:
        return self, [True] * len(read)

    def in_kernel(self, operands: Sequence, axes: tuple, count: int | None) -> list:
        raise Unsupported("reverse mode in a kernel")

    def announce(self, members: Sequence, axes: tuple, count: int | None) -> None:
        """Lets native code that computes the values from now on keep the states for this derivative;
        arguments as in `target`."""
        number = len(self.moved)
        key = (replace(self.function, tells=True), axes[:number], count, shapes_and_dtypes(members[:number]))
        _gradients_to_come.pop(key, None)
        _gradients_to_come[key] = self, tuple(members), axes
        while len(_gradients_to_come) > MAX_GRADIENTS_TO_COME:
            del _gradients_to_come[next(iter(_gradients_to_come))]

    def target(
        self,
        members: Sequence,
        axes: tuple,
        count: int | None,
        results: Sequence,
        values: tuple[bool, ...] | None = None,
    ) -> str:
        """Name of the FFI target of the backward loop; with a mask ``values`` that of these leaves of the result, which
        keeps the states for it."""
        program, _ = self.function.unflatten(members)
        if not program.length:
            raise Unsupported("reverse mode of a number of steps that is not known")
        turns_of(self, axes)  # refuses what it has no rule for
        value = self.function
        some = iter(self.used)
        used = tuple(k and next(some) for k in value.kept)
        parts = Parts.of(value.without_row_count().structure, self.moved, used, value.result)
        return backwards.target(parts, value.unflatten, members, axes, count, results, values)


def lanewise(function: Any, axes: tuple, count: int | None) -> Callable:
    """The lane function for ``count`` lanes (None: one, without a lane axis), in the form that XLA compiles."""
    of_lanes = function if count is None else jax.vmap(function, in_axes=axes, axis_size=count)

    def run(*operands: Array) -> PyTree:
        with full_precision():
            return of_lanes(*operands)

    return run


vmapped = jax.jit(
    lambda *operands, function, axes, count: lanewise(function, axes, count)(*operands),
    static_argnames=("function", "axes", "count"),
)
_branching = jax.jit(lambda *operands, function: function(*operands, branches=True), static_argnames="function")


@partial(jax.jit, static_argnames="function")
def _branching_without_account(*operands: Array, function: LaneFunction) -> list:
    closed = _branching.trace(*operands, function=function).jaxpr
    return jaxpr_as_fun(without_dead_code(closed))(*operands)


@cache
def _of_account(result: PyTreeDef) -> tuple[bool, ...]:
    """Returns the mask of the leaves of a solution, of which ``result`` is the structure,
    that belong to the account of the motion."""
    found, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(result, range(result.num_leaves)))
    return tuple(path[0].name in Account._fields for path, _ in found)


def turns_of(function: Any, axes: tuple) -> Callable:
    """Function from the operands to the requests for rows (`RowRequest`) that native code reads.

    Raises:
        Unsupported: saved times differ between lanes, or are differentiated.
    """
    value = function.value
    number = value.structure.num_leaves
    moved = (False,) * number if function is value else function.moved
    known, _ = value.unflatten([a is not None or m for a, m in zip(axes, moved, strict=False)])
    if known.rows == 0:
        return lambda operands: ()
    if known.times:
        raise Unsupported("times of rows that are no constants")
    return lambda operands: RowRequest.of(value.unflatten(operands)[0])
