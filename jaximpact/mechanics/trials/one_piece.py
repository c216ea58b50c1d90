"""The force of a problem without switches, for code that asks for its pieces."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...switches.kinds import Sides
from ..problem import Problem
from .pieces import Pieces, Where


class OnePiece(Pieces):
    """The force of a problem without switches: no levels, and its only piece is the problem."""

    def __init__(self, problem: Problem) -> None:
        none = np.zeros(0, int)
        self.problem, self.prescribes, self.only_stated, self.outlined, self.pace = problem, (), False, {}, None
        self.shapes, self.count, self.stated, self.ends = [], 0, slice(0, 0), slice(0, 0)
        self.passes, self.cancels = none.astype(bool), False
        self.steep, self.open = none, none.astype(bool)

    def start(self, t: Array, q: Array, v: Array, args: object) -> Where:
        return Where.none(q.dtype)

    def on(self, sides: Sides) -> Problem:
        return self.problem

    def levels(self, sides: Sides, *operands: Any) -> Array:
        return jnp.zeros(0, operands[1].dtype)

    def beyond(self, where: Where, chosen: Array, *operands: Any) -> Sides:
        return []

    def at_sides(self, where: Where, sides: Sides, *operands: Any) -> Where:
        return where
