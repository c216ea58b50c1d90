"""The mass M at one configuration, each form in which it may be stated as a class of its own that multiplies
and solves at its own cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from ..jaxtools import linalg


class Identity(NamedTuple):
    """M = 1."""

    @property
    def matrix(self) -> None:
        return None

    def factorised(self) -> Identity:
        return self

    def times(self, x: Array) -> Array:
        return x

    def solve(self, x: Array) -> Array:
        return x

    def positive(self) -> Array:
        return jnp.array(True)

    def symmetric(self) -> Array:
        return jnp.array(True)

    def diagonal(self, like: Array) -> Array:
        return jnp.ones_like(like)


class Diagonal(NamedTuple):
    """A number () or a diagonal (d,), ``matrix``."""

    matrix: Array

    def factorised(self) -> Diagonal:
        return self

    def times(self, x: Array) -> Array:
        return self.matrix * x

    def solve(self, x: Array) -> Array:
        scale = jnp.broadcast_to(self.matrix, x.shape[:1])
        return x / (scale if x.ndim == 1 else scale[:, None])

    def positive(self) -> Array:
        return jnp.all(self.matrix > 0) & jnp.all(jnp.isfinite(self.matrix))

    def symmetric(self) -> Array:
        return jnp.array(True)

    def diagonal(self, like: Array) -> Array:
        return jnp.broadcast_to(self.matrix, like.shape)


class Full(NamedTuple):
    """A ``matrix`` (d, d); all but `times` needs its ``factor`` (`linalg.factorise`)."""

    matrix: Array
    factor: Any = None

    def factorised(self) -> Full:
        """Returns a copy with its factor."""
        return self._replace(factor=linalg.factorise(lax.stop_gradient(self.matrix)))

    def times(self, x: Array) -> Array:
        """Returns M x for x of shape (d,)."""
        return self.matrix @ x

    def solve(self, x: Array) -> Array:
        """Returns M^-1 x for x of shape (d,) or (d, k)."""
        return linalg.spd_solve(self.matrix, self.factor, x)

    def positive(self) -> Array:
        """Tests whether M is positive definite, ()."""
        return jnp.all(jnp.isfinite(self.factor)) & jnp.all(_diagonals(self.factor) > 0)

    def symmetric(self) -> Array:
        """Tests whether M is symmetric up to round-off, ()."""
        # of a positive definite matrix no entry is larger than the diagonal's largest
        small = 1e4 * jnp.finfo(self.matrix.dtype).eps * jnp.max(_diagonals(self.matrix))
        return ~jnp.any(jnp.abs(self.matrix - jnp.swapaxes(self.matrix, -1, -2)) > small)

    def diagonal(self, like: Array) -> Array:
        """Returns the diagonal of M, of the shape (d,) of ``like``."""
        return _diagonals(self.matrix).reshape(like.shape)


class Blocks(Full):
    """The diagonal blocks (N, D, D) of a matrix that is zero elsewhere."""

    def factorised(self) -> Blocks:
        return self._replace(factor=jax.vmap(linalg.factorise)(lax.stop_gradient(self.matrix)))

    def times(self, x: Array) -> Array:
        return jnp.sum(self.matrix * x.reshape(self.matrix.shape[0], 1, -1), axis=2).ravel()

    def solve(self, x: Array) -> Array:
        of_bodies = x.reshape(*self.matrix.shape[:2], *x.shape[1:])
        return jax.vmap(linalg.spd_solve)(self.matrix, self.factor, of_bodies).reshape(x.shape)


def mass_of(matrix: ArrayLike | None, dtype: DTypeLike) -> Identity | Diagonal | Full:
    """Returns the mass that is stated as None, a number, a (d,) diagonal, a (d, d) matrix or diagonal blocks (N, D, D),
    its factor left out."""
    if matrix is None:
        return Identity()
    matrix = jnp.asarray(matrix, dtype)
    return Diagonal(matrix) if matrix.ndim < 2 else (Full(matrix) if matrix.ndim == 2 else Blocks(matrix))


def _diagonals(matrix: Array) -> Array:
    """Returns the diagonal of a matrix, or of each of a stack of matrices."""
    return jnp.diagonal(matrix, axis1=-2, axis2=-1)
