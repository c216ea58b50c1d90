"""Values of the scalar interpreter, and the interface of an emitter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.typing import ArrayLike

from ...jaxtools.argument_checks import is_random_key
from ...jaxtools.jaxpr_types import Equation, Params

if TYPE_CHECKING:
    from .interpreter import ScalarInterpreter

Value = Any  # a numpy object array of scalars, or a large array in an emitter's memory

Constant = np.number | np.bool_  # a scalar that is known when the program is compiled


class Scalar(Protocol):
    """A scalar of the interpreter: a constant, which is a numpy scalar, or a value of an emitter."""

    @property
    def dtype(self) -> np.dtype: ...


class Unsupported(Exception):
    """Raised where the compiler has no rule for a primitive or a type, or the program is too large;
    the message says which."""


class Emitter(Protocol):
    """Interface of an emitter of instructions; its scalars have a ``dtype``,
    and are either the same for all lanes or differ between lanes."""

    pack: int  # entries of an array that it computes side by side in one instruction; 1: one by one
    max_scalars: int  # entries of the largest array that is taken apart into scalars
    many: bool  # whether it computes many lanes at once: the time to run counts for more than that to compile

    def op(self, name: str, params: Params | None, *values: Scalar) -> Scalar:
        """Emits an elementwise primitive of scalars, by its name in jax; ``params`` are the equation's, or None."""

    def elementwise(
        self,
        machine: ScalarInterpreter,
        name: str,
        params: Params | None,
        structural: bool,
        arrays: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Emits an elementwise primitive of arrays of one shape; called only if the attribute `pack` is above 1.

        ``machine``: the `ScalarInterpreter`, for entries that are emitted one by one; ``structural``: as in
        `ScalarInterpreter.__call__`.
        """

    def reduction(self, name: str, entries: Sequence[Scalar], empty: Scalar | None) -> Scalar:
        """Emits the reduction of many scalars by the primitive ``name``;
        called only if the attribute `pack` is above 1.

        ``empty``: neutral element of the reduction; None for a reduction, such as max,
        whose result a repeated entry does not change.
        """

    def adjacent(self, entries: Sequence[Scalar]) -> bool:
        """Whether scalars already lie side by side in one vector, in this order."""

    def constant(self, x: np.ndarray) -> Value:
        """Returns a constant array of more than `max_scalars` entries as a value of the emitter."""

    def varies(self, x: Value) -> bool:
        """Whether a value differs between lanes."""

    def loop(
        self,
        start: list[Value],
        varies: Sequence[bool],
        continues: Callable[[list[Value]], Scalar],
        body: Callable[[list[Value]], list],
        prepare: Callable[[list[Value | None]], object] | None = None,
    ) -> list[Value]:
        """Emits ``while continues(carry): carry = body(carry)``, and returns the last carry;
        a lane that is done keeps its carry.

        ``varies``: mask of the carried values that differ between lanes in some iteration. ``prepare(carry)`` emits
        what in the body is the same in all lanes, given the carry with None for values that differ.
        """

    def switch(
        self,
        machine: ScalarInterpreter,
        which: Scalar,
        branches: Sequence,
        operands: list[Value],
        avals: Sequence,
        varies: Sequence[bool],
    ) -> list:
        """Emits a branch that runs the jaxpr ``branches[which]`` on the operands, and returns its results.

        ``which`` is known at run time only, and is clamped to the valid range. ``avals``: avals of the results;
        ``varies``: mask of the results that differ between lanes.
        """

    def array_primitive(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Emits an equation with a large array among its operands or results."""

    def stream(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Emits an equation of the loop primitive of `compiler.stream`."""

    def is_in_place(self, jaxpr: ClosedJaxpr) -> bool:
        """Whether the code of an outlined jaxpr stands where it is called."""

    def call(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Emits a call of an outlined or seldom function (`jaxtools.outlined`),
        or emits the function's code in place of the call."""

    def scan(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Emits a scan with xs or ys."""


def is_constant(x: object) -> TypeGuard[Constant]:
    """Whether a scalar is a compile-time constant."""
    return isinstance(x, np.generic)


def all_constant(x: Value) -> bool:
    """Whether all entries of a value are compile-time constants."""
    return isinstance(x, np.ndarray) and all(map(is_constant, x.flat))


def object_array(shape: Sequence[int], entries: Iterable[Scalar]) -> np.ndarray:
    """Object array with the given shape and entries."""
    found = np.empty(shape, object)
    found.reshape(-1)[:] = np.fromiter(entries, object, found.size)
    return found


def scalar_array(x: Scalar) -> np.ndarray:
    """A scalar as an object array of shape ()."""
    return object_array((), [x])


def split_constant(x: ArrayLike) -> np.ndarray:
    """A constant array as an object array of its entries."""
    if isinstance(x, jax.Array) and is_random_key(x):
        raise Unsupported("a random key")
    x = np.asarray(x)
    return object_array(x.shape, x.ravel())


def carried_axes(axes: object, operands: object) -> Scalar:
    """Returns a pytree of booleans like ``operands``: whether each leaf has a lane axis.

    ``axes``: prefix tree of ``operands`` with leaves 0 and None, as the argument in_axes of `jax.vmap`.
    """
    none = lambda x: x is None
    return jax.tree.map(lambda axis, x: jax.tree.map(lambda _: axis is not None, x), axes, operands, is_leaf=none)
