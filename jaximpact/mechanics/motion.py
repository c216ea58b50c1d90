"""`Motion`: the numbers of one motion, or of many with lane axes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .problem import Problem


class Motion(NamedTuple):
    """The numbers that define one motion of a problem.

    Initial position and velocity q0, v0 (d,); times t0, t1 and step h [s], (); number of ``steps``; restitution e, () or (m,), which is 1 if the
    problem has a function for it; ``args``; coefficients of ``friction`` and ``static_friction``, () or (m,), None if there are none or the problem
    has a function for them.
    """

    q0: Any
    v0: Any
    t0: Any
    t1: Any
    h: Any
    steps: Any
    e: Any
    args: Any = None
    friction: Any = None
    static_friction: Any = None

    def time(self, n: ArrayLike) -> Array:
        """Returns the time t0 + n h of step n, free of accumulated rounding."""
        return self.t0 + jnp.asarray(n).astype(self.h.dtype) * self.h

    def stated_in(self, problem: Problem) -> Problem:
        """Returns the problem with the motion's coefficients of friction."""
        own = {name: getattr(self, name) for name in ("friction", "static_friction")}
        own = {name: x for name, x in own.items() if x is not None}
        return problem.replace(**own) if own else problem
