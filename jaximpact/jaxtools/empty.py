"""Arrays without entries for which nothing is traced: as structure of a pytree, not leaves, or as constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike


@jax.tree_util.register_static
@dataclass(frozen=True)
class Empty:
    """Stands for the array of a ``shape`` with a zero in it; no program has it as an operand."""

    shape: tuple[int, ...]
    dtype: np.dtype

    size = 0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __jax_array__(self) -> Array:
        return jnp.zeros(self.shape, self.dtype)


def empty(dtype: DTypeLike, *shape: int) -> Any:
    """Returns the `Empty` of a shape, typed as the array that it stands for."""
    return Empty(shape, np.dtype(dtype))


def nothing(dtype: DTypeLike, *shape: int) -> Any:
    """Returns an array of a shape with a zero in it as a constant, for sums that go through a loop."""
    return np.zeros(shape, dtype)
