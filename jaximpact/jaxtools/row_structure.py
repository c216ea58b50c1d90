"""Selected rows of a function's value and of its Jacobian, at the cost of these rows only, by the structure of the function's jaxpr.

The gap of the k-th pair of bodies depends on the positions of that pair only. Where the rows of arrays pass through a function without mixing
(elementwise operations, sums over other axes, entries picked at known places), each row of the value depends on a few entries of the argument:
with these as variables, one reverse pass computes the derivatives of all rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .argument_checks import is_traced
from .jaxpr_tools import IDENTITIES, evaluate_equation, inline_calls, is_literal, needed_equations

ELEMENTWISE = {
    "add", "add_any", "sub", "mul", "div", "rem", "neg", "abs", "sign", "max", "min", "clamp", "select_n", "square", "integer_pow", "pow",
    "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "logistic", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil", "round", "is_finite", "convert_element_type",
    "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "polynomial", "one_minus_square",
} | IDENTITIES - {"guard", "forward_only", "optimization_barrier"}  # fmt: skip
REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}


class Unstructured(Exception):
    """Raised where an operation mixes the rows of a function; the message names the operation."""


class Rows(NamedTuple):
    """Rows of an intermediate array that are needed to compute k rows of the result: ``share`` of them for each row of the result.

    ``at`` (k times ``share``,): numbers of these rows in the array. ``used`` (k,): mask of the rows of the result that need any of them, None for
    all. ``pieces``: the concatenations that lie between the array and the result, each with the number of its operand through which the rows pass.
    """

    at: Array
    share: int = 1
    used: Array | None = None
    pieces: tuple[tuple[Any, int], ...] = ()

    def apart(self, other: Rows) -> bool:
        """Whether no row of the result can depend on these rows and on ``other``, as they pass through different operands of a concatenation."""
        mine = dict(self.pieces)
        return any(mine.get(join, piece) != piece for join, piece in other.pieces)


@dataclass
class Leaf:
    """Entries of the argument on which rows of the result depend.

    ``value``: the entries; ``columns``: their numbers in the argument, in the same shape; ``axis``: the axis of this shape along which the entries
    are those of the ``rows``, one after the other.
    """

    value: Array
    columns: Array
    axis: int
    rows: Rows

    def by_row(self, x: Array) -> Array:
        """Returns an array of the leaf's shape in the shape (k, n), with the n entries for each row of the result."""
        x = jnp.moveaxis(x, self.axis, 0)
        return x.reshape(x.shape[0] // self.rows.share, -1)


@dataclass
class RowWalk:
    """Evaluation of selected rows of a function's value, back through its jaxpr to the leaves: the entries of its argument x (d,) they depend on.

    ``given``: iterator over values that are taken for the leaves, in the order in which the walk meets them. If it is None, the values are read
    from x, and the leaves are collected in ``leaves``.
    """

    jaxpr: Any
    argument: Any
    values: dict
    places: dict  # variables that consist of entries of the argument: the numbers of these entries
    moving: set  # variables that depend on the argument
    makers: dict = field(default_factory=dict)  # equations by their results
    leaves: list[Leaf] = field(default_factory=list)
    known: dict = field(default_factory=dict)  # results of `take`, with the rows that were taken
    given: Any = None

    @classmethod
    def of(cls, function: Callable[[Array], Array], x: Array) -> RowWalk:
        closed = inline_calls(jax.make_jaxpr(function)(x))
        (argument,) = closed.jaxpr.invars
        values = dict(zip([*closed.jaxpr.constvars, argument], [*closed.consts, x], strict=True))
        walk = cls(closed.jaxpr, argument, values, {argument: np.arange(len(x))}, {argument})
        for eqn in needed_equations(closed.jaxpr):
            walk.learn(eqn)
        return walk

    def learn(self, eqn: Any) -> None:
        """Records facts on an equation's results: whether they depend on the argument; which entries of it they are, if they are only copies of
        entries; and their values, if these are known already."""
        self.makers |= dict.fromkeys(eqn.outvars, eqn)
        moves = not self.moving.isdisjoint(v for v in eqn.invars if not is_literal(v))
        if moves:
            self.moving.update(eqn.outvars)
        if (rule := MOVED.get(eqn.primitive.name, None if moves else FOLDED.get(eqn.primitive.name))) is None:
            return
        known = self.places if moves else self.values
        # indices of a gather are no entries of the argument
        pick = lambda v, i: (
            v.val if is_literal(v) else (self.values if i and eqn.primitive.name == "gather" else known).get(v)
        )
        operands = [pick(v, i) for i, v in enumerate(eqn.invars)]
        if any(x is None or is_traced(x) for x in operands):
            return
        found = rule(eqn, *map(np.asarray, operands))
        if found is not None:
            known.update(zip(eqn.outvars, found if isinstance(found, list) else [found], strict=True))

    def full(self, v: Any) -> Any:
        """Returns the value of an operand with all its rows, computed at its first use."""
        if is_literal(v):
            return v.val
        if v not in self.values:
            eqn = self.makers[v]
            self.values.update(zip(eqn.outvars, evaluate_equation(eqn, list(map(self.full, eqn.invars))), strict=True))
        return self.values[v]

    def fixed(self, v: Any) -> Any:
        """Returns the value of an operand with all its rows; raises `Unstructured` if it depends on the argument."""
        if not is_literal(v) and v in self.moving:
            raise Unstructured(f"rows that share {v.aval}")
        return self.full(v)

    def take(self, v: Any, axis: int, rows: Rows) -> Array:
        """Returns the ``rows`` of an operand v, counted along one ``axis``: v with only their entries along this axis."""
        if is_literal(v) or v not in self.moving:
            return jnp.take(self.full(v), rows.at, axis, mode="clip")
        if (key := (v, axis, id(rows.at))) not in self.known:
            # the rows are kept: while they live, their id is given to no others
            self.known[key] = self.leaf(v, axis, rows) if v in self.places else self.by_rule(v, axis, rows), rows
        return self.known[key][0]

    def by_rule(self, v: Any, axis: int, rows: Rows) -> Array:
        eqn = self.makers[v]
        name = eqn.primitive.name
        if name in ELEMENTWISE:
            return evaluate_equation(eqn, [self.operand(w, v, axis, rows) for w in eqn.invars])[0]
        if name in REDUCTIONS:
            kept = [i for i in range(len(eqn.invars[0].aval.shape)) if i not in eqn.params["axes"]]
            return evaluate_equation(eqn, [self.take(eqn.invars[0], kept[axis], rows)])[0]
        if name not in RULES:
            raise Unstructured(name)
        return RULES[name](self, eqn, v, axis, rows)

    def operand(self, w: Any, v: Any, axis: int, rows: Rows) -> Array:
        """Returns the ``rows`` of operand w of an elementwise operation with the result v; repeats an entry of the argument for each row."""
        if w.aval.shape or not v.aval.shape:
            return self.take(w, axis, rows)
        if is_literal(w) or w not in self.places:
            return self.fixed(w)
        shape = (*v.aval.shape[:axis], len(rows.at), *v.aval.shape[axis + 1 :])
        return lax.broadcast_in_dim(self.leaf(w, 0, rows), shape, (axis,))

    def leaf(self, v: Any, axis: int, rows: Rows) -> Array:
        """Returns the ``rows`` of an array v that consists of entries of the argument, as a leaf; repeats a single entry for each row."""
        if self.given is not None:
            return next(self.given)
        places = np.asarray(self.places[v], np.int32)
        if places.ndim == 0:
            columns = jnp.full(rows.at.shape, places)
        else:
            # of what belongs to a row one table after the other, in which rows lie side by side
            tables = np.moveaxis(places, axis, -1)
            columns = jnp.moveaxis(jnp.take(tables, rows.at, tables.ndim - 1, mode="clip"), -1, axis)
        along = jnp.moveaxis(columns, axis, -1) if columns.ndim > 1 else columns
        value = self.values[self.argument].at[along].get(mode="promise_in_bounds")
        value = jnp.moveaxis(value, -1, axis) if columns.ndim > 1 else value
        self.leaves.append(Leaf(value, columns, axis, rows))
        return value

    def run(self, rows: Array, given: Sequence[Array] | None = None) -> Array:
        """Returns the values (k,) of the function in the rows with the numbers ``rows`` (k,), from values ``given`` of the leaves or else from x."""
        self.known.clear()
        self.given = None if given is None else iter(given)
        return self.take(self.jaxpr.outvars[0], 0, Rows(rows))


# rules on known arrays: equation and operands; None if there is none


def _broadcast_known(eqn: Any, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(eqn.params["shape"])
    for axis, n in zip(eqn.params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = n
    return np.broadcast_to(x.reshape(shape), eqn.params["shape"])


def _slice_known(eqn: Any, x: np.ndarray) -> np.ndarray:
    p = eqn.params
    return x[tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or (1,) * x.ndim))]


def _gather_known(eqn: Any, x: np.ndarray, places: np.ndarray) -> np.ndarray | None:
    return gather_known(eqn.params, x, places, eqn.outvars[0].aval.ndim)


def gather_known(params: Any, x: np.ndarray, places: np.ndarray, rank: int) -> np.ndarray | None:
    """Returns the result, with ``rank`` axes, of a gather from x that picks whole entries along one axis; None for any other gather.

    ``params``: the equation's parameters; ``places``: its indices.
    """
    if (along := picked_axis(params, x.shape, places)) is None:
        return None
    n = params["dimension_numbers"]
    found, count = np.moveaxis(x, along, 0)[places[..., 0]], places.ndim - 1
    batch = [i for i in range(rank) if i not in n.offset_dims]
    return np.moveaxis(found, range(found.ndim), [*batch[:count], *n.offset_dims])


def picked_axis(params: Any, shape: Sequence[int], places: Any) -> int | None:
    """Returns the axis along which a gather from an array of this ``shape`` picks whole entries, as ``x[places]`` does.

    Returns None if it is another kind of gather, or if some of the ``places`` do not exist.
    """
    n, sizes = params["dimension_numbers"], params["slice_sizes"]
    if len(n.start_index_map) != 1 or n.operand_batching_dims or n.collapsed_slice_dims != n.start_index_map:
        return None
    (along,) = n.start_index_map
    whole = all(size == (1 if i == along else shape[i]) for i, size in enumerate(sizes))
    return along if whole and np.all((places >= 0) & (places < shape[along])) else None


_reshaped = lambda eqn, x: x.reshape(eqn.outvars[0].aval.shape)
MOVED: dict[str, Callable] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped), "copy": lambda eqn, x: x,
    "broadcast_in_dim": _broadcast_known, "slice": _slice_known, "gather": _gather_known,
    "transpose": lambda eqn, x: x.transpose(eqn.params["permutation"]), "rev": lambda eqn, x: np.flip(x, eqn.params["dimensions"]),
    "split": lambda eqn, x: np.split(x, np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"]),
    "concatenate": lambda eqn, *x: np.concatenate(x, eqn.params["dimension"]), "stack": lambda eqn, *x: np.stack(x, eqn.params["axis"]),
    "unstack": lambda eqn, x: list(np.moveaxis(x, eqn.params["axis"], 0)),
}  # fmt: skip
# what jax makes of indices
FOLDED: dict[str, Callable] = {
    "lt": lambda eqn, x, y: x < y, "add": lambda eqn, x, y: x + y, "sub": lambda eqn, x, y: x - y, "mul": lambda eqn, x, y: x * y,
    "select_n": lambda eqn, which, *cases: np.where(which, cases[1], cases[0]) if which.dtype == bool and len(cases) == 2 else None,
    "convert_element_type": lambda eqn, x: x.astype(eqn.params["new_dtype"]),
    "iota": lambda eqn: np.broadcast_to(
        np.expand_dims(np.arange(eqn.params["shape"][eqn.params["dimension"]], dtype=eqn.params["dtype"]), [i for i in range(len(eqn.params["shape"])) if i != eqn.params["dimension"]]), eqn.params["shape"]),
}  # fmt: skip


# rules: walk, equation, its result, the axis of rows in it, and the rows


def _reshape(walk: RowWalk, eqn: Any, v: Any, axis: int, rows: Rows) -> Array:
    (w, *_), shape = eqn.invars, v.aval.shape
    before, old = math.prod(shape[:axis]), w.aval.shape
    for a in range(len(old)):
        if old[a] == shape[axis] and math.prod(old[:a]) == before:
            found = walk.take(w, a, rows)
            return lax.reshape(found, (*shape[:axis], found.shape[a], *shape[axis + 1 :]))
    raise Unstructured("reshape of rows")


def _broadcast(walk: RowWalk, eqn: Any, v: Any, axis: int, rows: Rows) -> Array:
    (w, *_), axes = eqn.invars, eqn.params["broadcast_dimensions"]
    shape = list(eqn.params["shape"])
    if axis in axes and w.aval.shape[axes.index(axis)] == shape[axis]:
        found = walk.take(w, axes.index(axis), rows)
    else:
        found = walk.fixed(w)
    shape[axis] = len(rows.at)
    return lax.broadcast_in_dim(found, tuple(shape), axes)


def _slice(walk: RowWalk, eqn: Any, v: Any, axis: int, rows: Rows) -> Array:
    (w,), p = eqn.invars, eqn.params
    first, last, steps = list(p["start_indices"]), list(p["limit_indices"]), list(p["strides"] or [1] * v.aval.ndim)
    found = walk.take(w, axis, rows._replace(at=first[axis] + steps[axis] * rows.at))
    first[axis], last[axis], steps[axis] = 0, found.shape[axis], 1
    return lax.slice(found, first, last, steps)


def _split(walk: RowWalk, eqn: Any, v: Any, axis: int, rows: Rows) -> Array:
    (w,), p = eqn.invars, eqn.params
    which = list(eqn.outvars).index(v)
    first = sum(p["sizes"][:which])
    if p["axis"] == axis:
        return walk.take(w, axis, rows._replace(at=first + rows.at))
    return lax.slice_in_dim(walk.take(w, axis, rows), first, first + p["sizes"][which], axis=p["axis"])


def _transpose(walk: RowWalk, eqn: Any, v: Any, axis: int, rows: Rows) -> Array:
    order = eqn.params["permutation"]
    return lax.transpose(walk.take(eqn.invars[0], order[axis], rows), order)


def _concatenate(walk: RowWalk, eqn: Any, v: Any, axis: int, rows: Rows) -> Array:
    if eqn.params["dimension"] != axis:
        return evaluate_equation(eqn, [walk.take(w, axis, rows) for w in eqn.invars])[0]
    found, first = None, 0
    for i, w in enumerate(eqn.invars):
        size = w.aval.shape[axis]
        if size:
            inside = (rows.at >= first) & (rows.at < first + size)
            mine = jnp.any(inside.reshape(-1, rows.share), axis=1)
            used = mine if rows.used is None else rows.used & mine
            # several rows of an array in one of the result may lie in several pieces
            pieces = (*rows.pieces, *([(eqn, i)] if rows.share == 1 else []))
            part = walk.take(w, axis, Rows(jnp.clip(rows.at - first, 0, size - 1), rows.share, used, pieces))
            here = jnp.expand_dims(inside, [i for i in range(part.ndim) if i != axis])
            found = part if found is None else jnp.where(here, part, found)
        first += size
    assert found is not None
    return found


def _gather(walk: RowWalk, eqn: Any, v: Any, axis: int, rows: Rows) -> Array:
    """Rule for a gather that picks entries along one axis, as ``x[places]`` does: takes only the entries that the rows pick."""
    (w, indices), n = eqn.invars, eqn.params["dimension_numbers"]
    places, batch = walk.values.get(indices), [i for i in range(v.aval.ndim) if i not in n.offset_dims]
    along = None if places is None or is_traced(places) else picked_axis(eqn.params, w.aval.shape, places)
    if along is None or axis not in batch:
        raise Unstructured("gather")
    places = np.asarray(places)[..., 0]
    # what a row picks, side by side
    picked = jnp.take(jnp.moveaxis(jnp.asarray(places, jnp.int32), batch.index(axis), 0), rows.at, 0, mode="clip")
    share = math.prod(picked.shape[1:])
    found = walk.take(w, along, Rows(picked.ravel(), rows.share * share, rows.used, rows.pieces))
    found = jnp.moveaxis(found, along, 0)
    found = found.reshape(*picked.shape, *found.shape[1:])
    found = jnp.moveaxis(found, 0, batch.index(axis))
    return jnp.moveaxis(found, range(len(batch), found.ndim), n.offset_dims)


def _dot_general(walk: RowWalk, eqn: Any, v: Any, axis: int, rows: Rows) -> Array:
    """Rule for products summed over other axes than that of the rows; the other operand may not depend on the argument."""
    contracted, batch = eqn.params["dimension_numbers"]
    free = [
        [i for i in range(w.aval.ndim) if i not in (*c, *b)]
        for w, c, b in zip(eqn.invars, contracted, batch, strict=True)
    ]
    order = [(which, i) for which in (0, 1) for i in free[which]]
    if axis < len(batch[0]):
        raise Unstructured("dot_general of rows")
    which, along = order[axis - len(batch[0])]
    operands = [walk.take(w, along, rows) if i == which else walk.fixed(w) for i, w in enumerate(eqn.invars)]
    return evaluate_equation(eqn, operands)[0]


RULES: dict[str, Callable] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "broadcast_in_dim": _broadcast, "slice": _slice, "split": _split, "transpose": _transpose, "concatenate": _concatenate,
    "gather": _gather, "dot_general": _dot_general,
}  # fmt: skip


class RowsOf(NamedTuple):
    """Some rows of a function at x (d,): their ``values`` (k,); ``pullback`` and ``leaves``, from which `jacobian` and `pull` compute derivatives."""

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
        """Returns the sizes |J| of the Jacobian's entries, without most of its zeros, and at the same places ``numbers`` (d,) of the argument, (k, n) each."""
        entries = self._entries(self.pullback(jnp.ones_like(self.values)))
        columns = jnp.stack([places for places, _ in entries], axis=1)
        sizes = []
        for i, (places, values) in enumerate(entries):
            # several entries may be of one number of the argument: their sum is the derivative by it
            same = [(others == places, more) for others, more in entries]
            whole = sum((jnp.where(equal, more, 0) for equal, more in same[i + 1 :]), values)
            seen = sum((equal for equal, _ in same[:i]), places < 0)
            sizes.append(jnp.where(seen, 0, jnp.abs(whole)))
        return jnp.stack(sizes, axis=1), *(x.at[columns].get(mode="clip") for x in numbers)

    def _spread(self, parts: Sequence[Array]) -> list[Array]:
        """Returns arrays (k, d) whose sum has the derivatives of the rows by the argument, given the derivatives ``parts`` by the leaves."""
        found = []
        for columns, numbers in self._entries(parts):
            # a selection: no product with an infinite derivative makes NaN of a zero
            shape = len(columns), self.d
            spread = lambda x, shape=shape: lax.broadcast_in_dim(x, shape, (0,))
            here = lax.eq(spread(columns), lax.broadcasted_iota(columns.dtype, shape, 1))
            found.append(lax.select(here, spread(numbers), jnp.zeros(shape, numbers.dtype)))
        return found

    def _entries(self, parts: Sequence[Array]) -> list[tuple[Array, Array]]:
        """Returns pairs of columns and numbers (k,): the derivatives of the rows by the argument are the sum of those in each pair.

        ``parts``: derivatives by the leaves. A column is negative where the row has no entry. Two entries of leaves share a pair if no row depends on
        both.
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
