"""The numbers of one motion, and of many: the carriers of data from the arguments of a user to the time loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


class Motion(NamedTuple):
    """Numbers of one motion: initial data q0, v0 (d,); start and end t0, t1 and step h [s], (), and their number ``steps``;
    restitution e, () or (m,); parameters args, a pytree of arrays."""

    q0: Any
    v0: Any
    t0: Any
    t1: Any
    h: Any
    steps: Any
    e: Any
    args: Any = None

    def time(self, n: ArrayLike) -> Array:
        """t0 + n h: no sum of steps, no drift."""
        return self.t0 + jnp.asarray(n).astype(self.h.dtype) * self.h
