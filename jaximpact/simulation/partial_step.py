"""Part of a step, up to the time of a row or to the end of a motion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax import Array

from ..mechanics.contact import ContactLaw
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Info

if TYPE_CHECKING:
    from ..mechanics.scheme import State


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PartialStep:
    """Wraps a scheme so that its step takes the time ``length`` () in place of h."""

    scheme: Any
    length: Array

    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: State) -> tuple[State, Info]:
        """The state after the time ``length``, numbered as if the step were a full one, and the `Info` of the step."""
        return self.scheme.step(problem, law, motion, state, self.length)

    def free_step(self, problem: Problem, motion: Motion, state: State) -> tuple[State, Info]:
        """As `step`, but a step in which no contact acts."""
        return self.scheme.free_step(problem, motion, state, self.length)
