"""A problem restricted to some of its contacts, at the cost of these only if the jaxpr of the gaps
can be evaluated row by row."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ..jaxtools.shapes import PyTree

if TYPE_CHECKING:
    from .problem import Problem


class SomeSlips(abc.ABC):
    """Slip velocities of some contacts on a neighbour list, a function (t, q, v, args) -> (k, n) that
    gives its gradients itself."""

    @abc.abstractmethod
    def __call__(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array: ...

    @abc.abstractmethod
    def tangents(self, t: ArrayLike, q: Array, args: object) -> Array:
        """Returns the gradients (k, n, d) of the slip velocities by v."""


def with_contacts(problem: Problem, rows: Array, number: int) -> Problem:
    """Returns the problem with the contacts ``rows`` (k,) of its ``number`` contacts only; those of a neighbour list
    are then dense constraints.

    The result holds traced rows, so that no program made from it may be cached.
    """
    return problem.replace(**problem.gaps.among(rows, number))


def rows_that_matter(matters: Array, gap: Array, size: int) -> tuple[Array, Array]:
    """Selects ``size`` contacts, in ascending order: all of ``matters`` (m,),
    and then those with the smallest gaps |``gap``| (m,).

    Also returns whether all that matter are selected, ().
    """
    # single precision is enough to choose
    distance, known = jnp.abs(gap), jnp.isfinite(gap)
    largest = jnp.maximum(jnp.max(jnp.where(known, distance, 0)), jnp.finfo(gap.dtype).tiny)
    rank = jnp.where(known, -distance / largest, -jnp.inf).astype(jnp.float32)
    rows = lax.top_k(jnp.where(matters, jnp.inf, rank), size)[1]
    in_order = -lax.top_k(-rows.astype(jnp.float32), size)[0]
    return in_order.astype(jnp.int32), jnp.sum(matters) <= size


def look_at_those_that_matter(
    matters: Array,
    gap: Array,
    sizes: tuple[int, ...],
    look: Callable[[Array | None], PyTree],
    keep: Callable = lambda chosen: chosen,
) -> PyTree:
    """Returns ``look(rows)`` of as few contacts, by ascending ``sizes``, as hold all that matter (m,); of all of them,
    ``look(None)``, if none does.

    ``gap``: gaps (m,), by which the others are taken; ``keep``: function through which each choice goes,
    such as `remember`.
    """
    if not sizes or sizes[0] >= len(gap):
        return look(None)
    rows, fit = keep(rows_that_matter(matters, gap, sizes[0]))
    more = lambda: look_at_those_that_matter(matters, gap, sizes[1:], look, keep)
    return lax.cond(fit, lambda: look(rows), more)
