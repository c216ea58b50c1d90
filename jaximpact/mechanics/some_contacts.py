"""A problem restricted to some of its contacts, at the cost of those alone where the gaps have rows to tell apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ..jaxtools.row_structure import RowsOf, RowWalk, Unstructured


class SomeGaps:
    """Constraints that are the ``rows`` (k,) of a function ``whole(t, q, args)`` of all gaps (m,)."""

    def __init__(self, whole: Callable[[ArrayLike, Array, Any], Array], rows: Array) -> None:
        self.whole, self.rows = whole, rows

    def __call__(self, t: ArrayLike, q: Array, args: Any) -> Array:
        of_place = lambda x: self.whole(t, x, args)
        with suppress(Unstructured):
            return RowWalk.of(of_place, q).run(self.rows)
        return of_place(q)[self.rows]

    def jacobian(self, t: ArrayLike, q: Array, args: Any) -> tuple[Array, Array]:
        """Gaps (k,) and their Jacobian (k, d); raises Unstructured where rows are not to be told apart."""
        found = RowsOf.at(lambda x: self.whole(t, x, args), q, self.rows)
        return found.values, found.jacobian()


def among(problem: Any, rows: Array) -> Any:
    """The problem with the contacts ``rows`` (k,) alone. It belongs to the trace of these: no program may be kept that was made of it."""
    return problem.replace(constraints=SomeGaps(problem.gaps, rows))


def rows_that_matter(matters: Array, gap: Array, size: int) -> tuple[Array, Array]:
    """In their order ``size`` contacts, all that ``matters`` (m,) and beside them those with the smallest gaps (m,); and whether all have room, ()."""
    # single precision is enough to choose
    distance, known = jnp.abs(gap), jnp.isfinite(gap)
    largest = jnp.maximum(jnp.max(jnp.where(known, distance, 0)), jnp.finfo(gap.dtype).tiny)
    rank = jnp.where(known, -distance / largest, -jnp.inf).astype(jnp.float32)
    rows = lax.top_k(jnp.where(matters, jnp.inf, rank), size)[1]
    in_order = -lax.top_k(-rows.astype(jnp.float32), size)[0]
    return in_order.astype(jnp.int32), jnp.sum(matters) <= size
