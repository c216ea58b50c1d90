"""`Motion`: the numbers of one motion, or of many with lane axes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .problem import Problem


class Motion(NamedTuple):
    """Numbers of one motion: initial data q0, v0 (d,); times t0, t1 and step h [s], (); number of steps; restitution e, () or (m,), 1 where the problem
    has a function for it; args; coefficients of friction, () or (m,), None where there are none or the problem has a function for them."""

    q0: Any
    v0: Any
    t0: Any
    t1: Any
    h: Any
    steps: Any
    e: Any
    args: Any = None
    friction: Any = None

    def time(self, n: ArrayLike) -> Array:
        """Time t0 + n h of step n, free of accumulated rounding."""
        return self.t0 + jnp.asarray(n).astype(self.h.dtype) * self.h

    def stated_in(self, problem: Problem) -> Problem:
        """The problem with the motion's own coefficients of friction."""
        return problem if self.friction is None else problem.replace(friction=self.friction)
