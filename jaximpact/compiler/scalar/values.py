"""Arrays of separate numbers, constant or emitted, and the interface of an emitter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

Value = Any  # an object array of numbers, or a large array in an emitter's memory


class Unsupported(Exception):
    """Raised for a primitive or an array without a rule in compiled code; the message names it."""


class Emitter(Protocol):
    """Interface of an emitter of instructions. Its numbers have a ``dtype`` and are shared by all lanes or vary between lanes."""

    memory: bool  # whether it has room for large arrays
    small: int  # entries of an array that is numbers

    def op(self, name: str, params: Any, *values: Any) -> Any:
        """Emits an elementwise primitive of numbers, by its jax name; ``params`` None means no parameters."""

    def constant(self, x: np.ndarray) -> Value:
        """A constant array too large for separate numbers."""

    def varies(self, x: Value) -> bool: ...

    def loop(
        self,
        start: list[Value],
        varies: Sequence[bool],
        continues: Callable[[list[Value]], Any],
        turn: Callable[[list[Value]], list],
    ) -> list[Value]:
        """Emits a while loop: the carry once ``continues`` is false; lanes that are done keep theirs."""

    def choose(
        self,
        which: Any,
        branches: Sequence[Callable],
        operands: list[Value],
        sizes: Sequence[int],
        avals: Sequence,
        varies: Sequence[bool],
    ) -> list:
        """Emits a switch: results of branch number ``which`` (clamped); ``sizes`` are the branches' operation counts."""

    def large(self, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]:
        """Emits a primitive with a large array among its operands or results."""

    def stream(self, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]: ...

    def scan(self, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]:
        """Emits a counted loop over sequences, or one that produces sequences."""


def known(x: Any) -> bool:
    """Whether a number is a compile-time constant."""
    return isinstance(x, np.generic)


def all_known(x: Value) -> bool:
    return isinstance(x, np.ndarray) and all(map(known, x.flat))


def fill_array(shape: Sequence[int], entries: Iterable[Any]) -> np.ndarray:
    """Object array with the given shape and entries."""
    found = np.empty(shape, object)
    found.reshape(-1)[:] = np.fromiter(entries, object, found.size)
    return found


def one(x: Any) -> np.ndarray:
    """A number as an array of shape ()."""
    return fill_array((), [x])


def split(x: Any) -> np.ndarray:
    """A constant array as separate numbers."""
    x = np.asarray(x)
    return fill_array(x.shape, x.ravel())


def join_known(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Constant numbers as a numpy array."""
    return np.array(list(x.flat), dtype).reshape(x.shape)


def carried_axes(axes: Any, operands: Any) -> Any:
    """Mask of the operands' leaves with a lane axis, from a prefix of axes 0 and None."""
    none = lambda x: x is None
    return jax.tree.map(lambda axis, x: jax.tree.map(lambda _: axis is not None, x), axes, operands, is_leaf=none)
