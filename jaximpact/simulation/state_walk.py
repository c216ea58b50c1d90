"""Memory of the states of motions in reverse mode: filled on the way there, read on the way back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from typing import Any

import jax
import numpy as np

from ..compiler.llvm.call import BoundCall, CompiledFunction


def bytes_of(arrays: Sequence[np.ndarray]) -> bytes:
    """Returns all bytes of arrays, by which operands are recognised."""
    return b"".join(x.tobytes() for x in arrays)


class Walk:
    """Memory of a forward and a backward pass through the steps for ``whole`` lanes, padding included, with the
    compiled calls bound to it.

    ``of``: the `Backwards` that it is of; ``there``: the forward pass.
    """

    def __init__(
        self, of: Any, there: CompiledFunction, fixed: Sequence[np.ndarray], of_row: Sequence[np.ndarray], whole: int
    ):
        self.steps, self.kept_leaves, self.there = of.steps, of.kept, there
        self.fixed, self.of_row = ([np.array(x, order="C") for x in some] for some in (fixed, of_row))
        self.whole = whole
        every = jax.tree.leaves(of.carry)
        self.last = [np.empty((math.prod(x.shape), whole), x.dtype) for x in every]
        of_values = there.results[len(every) : len(there.results) - sum(of.kept) - len(of.remembered)]
        self.values = [np.empty((math.prod(a.shape), whole), a.dtype) for a, _ in of_values]
        self.key: bytes | None = None  # of the operands that the states belong to
        self.in_wait = False  # whether a walk back is to come
        # carries before each step and after the last one
        shapes = [(self.steps + 1, *x.shape) for x in self.last]
        self.kept = [np.empty(n, x.dtype) for x, n in compress(zip(every, shapes, strict=True), of.kept)]
        # what is remembered of each step
        sizes = [((self.steps, math.prod(x.shape), whole), x.dtype) for x in of.remembered]
        self.remembered = [np.empty(n, dtype) for n, dtype in sizes]
        self.size = sum(x.nbytes for x in (*self.kept, *self.remembered))
        # cotangents of carry and inputs in two buffers: a call reads one and writes the other
        self.found = [[np.zeros((math.prod(x.shape), whole), x.dtype) for x in of.found] for _ in range(2)]
        self.results = [np.empty((math.prod(a.shape), whole), a.dtype) for a, _ in of.of_start.results]
        known, rows = [(x, None) for x in self.fixed], iter(self.kept)
        carry = [(next(rows), 0) if k else (x, None) for x, k in zip(self.last, of.kept, strict=True)]
        # a call is given the numbers of a carry and of a row
        turn, each = [(x, 1) for x in self.of_row], [(x, 0) for x in (*self.kept, *self.remembered)]
        given = [*self.last, *self.values, *self.kept, *self.remembered]
        self.states = BoundCall(there, known, given, whole, 2)
        self.row = self._in_turn(of.of_row, [*known, *turn, *carry])
        self.back = self._in_turn(of.of_steps, [*known, *((x, None) for x in self.last)], each)
        self.start = [
            BoundCall(of.of_start, [*known, *((x, None) for x in y)], self.results, whole, 2) for y in self.found
        ]

    def _in_turn(self, part: CompiledFunction, operands: Sequence, given: Sequence = ()) -> list[BoundCall]:
        """Returns two bound calls of ``part``: one reads the first buffer of cotangents and writes the second, the
        other does the reverse."""
        ways = (self.found, self.found[::-1])
        operands_of = lambda here: [*operands, *((x, None) for x in here)]
        return [BoundCall(part, operands_of(here), there, self.whole, 2, given) for here, there in ways]

    def walk_forward(self, fixed: Sequence[np.ndarray]) -> None:
        """Computes states and values from the operands of the whole motion."""
        self.key = None
        for place, x in zip(self.fixed, fixed, strict=True):
            place[...] = x
        self.states.watched(self.steps)
        self.states(0, 0, rows=self.steps)
        for x, row in zip(compress(self.last, self.kept_leaves), self.kept, strict=True):
            row[-1] = x
        self.key = bytes_of(fixed)

    def walk_back(self, of_row: Sequence[np.ndarray], numbers: Sequence[int]) -> list[np.ndarray]:
        """Returns the cotangents of the inputs, arrays (size, whole), that the next run overwrites,
        from the states of the last forward pass.

        ``of_row``: arrays with an entry for each row; ``numbers``: number of the step of each row.
        """
        for place, x in zip(self.of_row, of_row, strict=True):
            place[...] = x
        for place in self.found[0]:
            place[...] = 0
        side, left, k = 0, len(numbers), self.steps
        while True:
            while left and numbers[left - 1] == k:
                left -= 1
                self.row[side](k, left)
                side = 1 - side
            if k == 0:
                break
            before = numbers[left - 1] if left else 0
            self.back[side](before, 0, rows=k - before)
            side, k = 1 - side, before
        self.start[side](0, 0)
        return self.results
