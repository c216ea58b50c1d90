"""Selected rows of a function's value and of its Jacobian, at the cost of these rows only,
by the structure of the function's jaxpr.

The gap of the k-th pair of bodies depends on the positions of that pair only. Where the rows of arrays pass through a
function without mixing (elementwise operations, sums over other axes, entries picked at known places), each row of the
value depends on a few entries of the argument: with these as variables,
one reverse pass computes the derivatives of all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .row_walk import Leaf, Rows, RowWalk


class RowsOf(NamedTuple):
    """Some rows of a function at x (d,): their ``values`` (k,); ``pullback`` and ``leaves``, from which `jacobian` and
    `pull` compute derivatives."""

    values: Array
    pullback: Callable[[Array], tuple]
    leaves: list[Leaf]
    d: int

    @classmethod
    def at(cls, function: Callable[[Array], Array], x: Array, rows: Array) -> RowsOf:
        """Evaluates the rows with the numbers ``rows`` (k,) of ``function(x)``, (m,).

        Raises:
            Unstructured: the function mixes its rows.
        """
        walk = RowWalk.of(function, x)
        walk.run(rows)
        leaves = walk.leaves
        values, pullback = jax.vjp(lambda *given: walk.run(rows, given), *(leaf.value for leaf in leaves))
        return cls(values, pullback, leaves, len(x))

    def jacobian(self) -> Array:
        """Jacobian (k, d) of the rows."""
        none = jnp.zeros((len(self.values), self.d), self.values.dtype)
        return sum(self._spread(self.pullback(jnp.ones_like(self.values))), none)

    def pull(self, change: Array) -> Array:
        """Returns the cotangent (d,) of x, given the cotangents ``change`` (k,) of the rows."""
        return jnp.sum(sum(self._spread(self.pullback(change)), jnp.zeros((len(change), self.d), change.dtype)), axis=0)

    def by_entry(self, *numbers: Array) -> tuple[Array, ...]:
        """Returns the sizes |J| of the Jacobian's entries, without most of its zeros, and at the same places
        ``numbers`` (d,) of the argument.

        They have the shape (n, k), with the n entries of each of the k rows along the first axis.
        """
        entries = self._entries(self.pullback(jnp.ones_like(self.values)))
        columns = jnp.stack([places for places, _ in entries])
        sizes = []
        for i, (places, values) in enumerate(entries):
            # several entries may be of one number of the argument: their sum is the derivative by it
            same = [(others == places, more) for others, more in entries]
            whole = sum((jnp.where(equal, more, 0) for equal, more in same[i + 1 :]), values)
            seen = sum((equal for equal, _ in same[:i]), places < 0)
            sizes.append(jnp.where(seen, 0, jnp.abs(whole)))
        return jnp.stack(sizes), *(x.at[columns].get(mode="clip") for x in numbers)

    def _spread(self, parts: Sequence[Array]) -> list[Array]:
        """Returns arrays (k, d) whose sum has the derivatives of the rows by the argument, given the derivatives
        ``parts`` by the leaves."""
        found = []
        for columns, numbers in self._entries(parts):
            # a selection: no product with an infinite derivative makes NaN of a zero
            shape = len(columns), self.d
            spread = lambda x, shape=shape: lax.broadcast_in_dim(x, shape, (0,))
            here = lax.eq(spread(columns), lax.broadcasted_iota(columns.dtype, shape, 1))
            found.append(lax.select(here, spread(numbers), jnp.zeros(shape, numbers.dtype)))
        return found

    def _entries(self, parts: Sequence[Array]) -> list[tuple[Array, Array]]:
        """Returns pairs of columns and numbers (k,): the derivatives of the rows by the argument are
        the sum of those in each pair.

        ``parts``: derivatives by the leaves. A column is negative where the row has no entry. Two entries of leaves
        share a pair if no row depends on both.
        """
        slots: list[list[tuple[Rows, Array, Array]]] = []
        for leaf, part in zip(self.leaves, parts, strict=True):
            columns, numbers = leaf.by_row(leaf.columns), leaf.by_row(part)
            for i in range(columns.shape[1]):
                entry = leaf.rows, columns[:, i], numbers[:, i]
                free = (slot for slot in slots if all(leaf.rows.apart(rows) for rows, *_ in slot))
                slot = next(free, None)
                slots.append([entry]) if slot is None else slot.append(entry)
        found = []
        for slot in slots:
            columns, numbers = jnp.full_like(slot[0][1], -1), jnp.zeros_like(slot[0][2])
            for rows, places, values in slot:
                mine = jnp.ones_like(places, bool) if rows.used is None else rows.used
                columns, numbers = lax.select(mine, places, columns), lax.select(mine, values, numbers)
            found.append((columns, numbers))
        return found
