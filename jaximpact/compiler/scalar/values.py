"""Arrays of numbers, known or of an emitter, and what an emitter has to offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

Value = Any  # an object array of numbers, or a large array in an emitter's memory


class Unsupported(Exception):
    """A primitive, or an array, that has no rule where lanes are executed together; the message names it."""


class Emitter(Protocol):
    """What writes instructions. Its numbers have a ``dtype``; the same in all lanes, or one for each (then they vary)."""

    memory: bool  # whether it has room for large arrays
    small: int  # entries of an array that is numbers

    def op(self, name: str, params: Any, *values: Any) -> Any:
        """An elementwise primitive of numbers, by its name in jax; ``params`` None: it has none."""

    def constant(self, x: np.ndarray) -> Value:
        """A known array too large for numbers."""

    def varies(self, x: Value) -> bool: ...

    def loop(
        self,
        start: list[Value],
        varies: Sequence[bool],
        continues: Callable[[list[Value]], Any],
        turn: Callable[[list[Value]], list],
    ) -> list[Value]:
        """The carry once ``going`` is false; lanes that are done keep theirs."""

    def choose(
        self,
        which: Any,
        branches: Sequence[Callable],
        operands: list[Value],
        sizes: Sequence[int],
        avals: Sequence,
        varies: Sequence[bool],
    ) -> list:
        """The results of the branch of that number, in range, of the operands; of branches of so many operations."""

    def large(self, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]:
        """A primitive with an array too large for numbers among its operands or results."""

    def stream(self, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]: ...

    def scan(self, machine: Any, eqn: Any, inputs: list[Value]) -> list[Value]:
        """A counted loop over sequences, or one that leaves some."""


def known(x: Any) -> bool:
    """Whether a number is known while emitting."""
    return isinstance(x, np.generic)


def all_known(x: Value) -> bool:
    return isinstance(x, np.ndarray) and all(map(known, x.flat))


def fill_array(shape: Sequence[int], entries: Iterable[Any]) -> np.ndarray:
    """The object array of a shape with these entries."""
    found = np.empty(shape, object)
    found.reshape(-1)[:] = np.fromiter(entries, object, found.size)
    return found


def one(x: Any) -> np.ndarray:
    """A number as an array ()."""
    return fill_array((), [x])


def split(x: Any) -> np.ndarray:
    """A known array as separate numbers."""
    x = np.asarray(x)
    return fill_array(x.shape, x.ravel())


def join_known(x: np.ndarray, dtype: Any) -> np.ndarray:
    """The array of known numbers."""
    return np.array(list(x.flat), dtype).reshape(x.shape)


def carried_axes(axes: Any, operands: Any) -> Any:
    """Whether each leaf of the operands carries a lane axis, from a prefix of them with 0 and None."""
    none = lambda x: x is None
    return jax.tree.map(lambda axis, x: jax.tree.map(lambda _: axis is not None, x), axes, operands, is_leaf=none)
