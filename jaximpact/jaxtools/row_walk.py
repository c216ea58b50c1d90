"""Evaluation of selected rows of a function, back through its jaxpr to the entries of its
argument that they depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .argument_checks import is_traced
from .jaxpr_tools import IDENTITIES, evaluate_equation, inline_calls, is_literal, needed_equations
from .jaxpr_types import AnyJaxpr, Equation, Operand
from .known_arrays import FOLDED, MOVED, picked_axes

ELEMENTWISE = {
    "add", "add_any", "sub", "mul", "div", "rem", "neg", "abs", "sign", "max", "min", "clamp", "select_n", "square",
    "integer_pow", "pow",
    "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "logistic", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil", "round", "is_finite",
    "convert_element_type", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "polynomial",
    "one_minus_square",
} | IDENTITIES - {"guard", "forward_only", "optimization_barrier"}  # fmt: skip
SHARED = 4  # entries of an intermediate array that all rows may share: they are computed once for each row
PIECES = 16  # arrays that are joined, up to which every row may be looked for in each of them
REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}


class Unstructured(Exception):
    """Raised where an operation mixes the rows of a function; the message names the operation."""


class Rows(NamedTuple):
    """Rows of an intermediate array that are needed to compute k rows of the result:
    ``share`` of them for each row of the result.

    ``at``: for each axis of the array along which rows are picked, their numbers along it (n,), n = k times ``share``;
    the other axes are whole. ``used`` (k,): mask of the rows of the result that need any of them, None for all.
    ``pieces``: the concatenations that lie between the array and the result, each with the number of its operand
    through which the rows pass.
    """

    at: dict[int, Array]
    number: int
    share: int = 1
    used: Array | None = None
    pieces: tuple[tuple[Equation, int], ...] = ()

    def apart(self, other: Rows) -> bool:
        """Whether no row of the result can depend on these rows and on ``other``, as they pass through different
        operands of a concatenation."""
        mine = dict(self.pieces)
        return any(mine.get(join, piece) != piece for join, piece in other.pieces)

    def whole(self, v: Operand) -> list[int]:
        """Returns the axes of an array along which nothing is picked."""
        return [i for i in range(len(v.aval.shape)) if i not in self.at]

    def key(self) -> tuple:
        """Returns what two equal choices of rows have in common while both live."""
        at, pieces = sorted((axis, id(x)) for axis, x in self.at.items()), [(id(eqn), i) for eqn, i in self.pieces]
        return tuple(at), id(self.used), tuple(pieces), self.number

    def within(self, shape: Sequence[int]) -> Rows:
        """Returns the rows of an array of this ``shape`` that is repeated along its axes of
        size 1 where there are others."""
        ones = [axis for axis in self.at if shape[axis] == 1]
        return self._replace(at=self.at | dict.fromkeys(ones, jnp.zeros(self.number, jnp.int32))) if ones else self

    def flat(self, axes: Sequence[int], sizes: Sequence[int]) -> Array:
        """Returns the numbers (n,) of the rows in an array with the picked ``axes`` alone, of these ``sizes``,
        counted as by `numpy.ravel`."""
        found = None
        for i, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
            if size > 1:
                stride = math.prod(sizes[i + 1 :])
                part = self.at[axis] if stride == 1 else stride * self.at[axis]
                found = part if found is None else found + part
        return jnp.zeros(self.number, jnp.int32) if found is None else found

    def each(self, more: int) -> Rows:
        """Returns the rows with each of them ``more`` times in succession."""
        if more == 1:
            return self
        at = {axis: jnp.repeat(x, more, total_repeat_length=more * self.number) for axis, x in self.at.items()}
        return self._replace(at=at, number=self.number * more, share=self.share * more)


@dataclass
class Leaf:
    """Entries of the argument on which rows of the result depend.

    ``value``: the entries; ``columns``: their numbers in the argument, in the same shape,
    whose last axis is that of the ``rows``.
    """

    value: Array
    columns: Array
    rows: Rows

    def by_row(self, x: Array) -> Array:
        """Returns an array of the leaf's shape in the shape (k, n), with the n entries for each row of the result."""
        x = jnp.moveaxis(x, -1, 0)
        return x.reshape(x.shape[0] // self.rows.share, -1)


@dataclass
class RowWalk:
    """Evaluation of selected rows of a function's value, back through its jaxpr to the leaves: the entries of its
    argument x (d,) they depend on.

    ``given``: iterator over values that are taken for the leaves, in the order in which the walk meets them. If it is
    None, the values are read from x, and the leaves are collected in ``leaves``.
    """

    jaxpr: AnyJaxpr
    argument: Operand
    values: dict
    places: dict  # variables that consist of entries of the argument: the numbers of these entries
    moving: set  # variables that depend on the argument
    makers: dict = field(default_factory=dict)  # equations by their results
    leaves: list[Leaf] = field(default_factory=list)
    known: dict = field(default_factory=dict)  # results of `take`, with the rows that were taken
    given: Iterator[Array] | None = None

    @classmethod
    def of(cls, function: Callable[[Array], Array], x: Array) -> RowWalk:
        closed = inline_calls(jax.make_jaxpr(function)(x))
        (argument,) = closed.jaxpr.invars
        values = dict(zip([*closed.jaxpr.constvars, argument], [*closed.consts, x], strict=True))
        walk = cls(closed.jaxpr, argument, values, {argument: np.arange(len(x))}, {argument})
        for eqn in needed_equations(closed.jaxpr):
            walk.learn(eqn)
        return walk

    def learn(self, eqn: Equation) -> None:
        """Records facts on an equation's results: whether they depend on the argument; which entries of it they are, if
        they are only copies of entries; and their values, if these are known already."""
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

    def full(self, v: Operand) -> Array:
        """Returns the value of an operand with all its rows, computed at its first use."""
        if is_literal(v):
            return v.val
        if v not in self.values:
            eqn = self.makers[v]
            self.values.update(zip(eqn.outvars, evaluate_equation(eqn, list(map(self.full, eqn.invars))), strict=True))
        return self.values[v]

    def fixed(self, v: Operand) -> Array:
        """Returns the value of an operand with all its rows; raises `Unstructured` if it depends on the argument."""
        if not is_literal(v) and v in self.moving:
            raise Unstructured(f"rows that share {v.aval}")
        return self.full(v)

    def take(self, v: Operand, rows: Rows) -> Array:
        """Returns the ``rows`` of an operand v: its entries along the whole axes, in their order,
        and as last axis the rows."""
        if is_literal(v) or v not in self.moving:
            return _picked(jnp.asarray(self.full(v)), v.aval.shape, rows)
        if not rows.at and v.aval.size > SHARED:
            raise Unstructured(f"rows that share {v.aval}")
        key = v, rows.key()
        if key not in self.known:
            inner = rows.within(v.aval.shape)
            # the rows are kept: while they live, their id is given to no others
            self.known[key] = self.leaf(v, inner) if v in self.places else self.by_rule(v, inner), rows
        return self.known[key][0]

    def by_rule(self, v: Operand, rows: Rows) -> Array:
        eqn = self.makers[v]
        name = eqn.primitive.name
        if name in ELEMENTWISE:
            return evaluate_equation(eqn, [self.operand(w, v, rows) for w in eqn.invars])[0]
        if name in REDUCTIONS:
            (w,) = eqn.invars
            kept = [i for i in range(len(w.aval.shape)) if i not in eqn.params["axes"]]
            inner = rows._replace(at={kept[axis]: x for axis, x in rows.at.items()})
            whole = inner.whole(w)
            return evaluate_equation(eqn, [self.take(w, inner)], axes=tuple(map(whole.index, eqn.params["axes"])))[0]
        if name not in RULES:
            raise Unstructured(name)
        return RULES[name](self, eqn, v, rows)

    def operand(self, w: Operand, v: Operand, rows: Rows) -> Array:
        """Returns the ``rows`` of operand w of an elementwise operation with the result v;
        repeats a number for each row."""
        if w.aval.shape or not v.aval.shape:
            return self.take(w, rows)
        if is_literal(w) or w not in self.moving:
            return self.full(w)
        shape = (*(v.aval.shape[i] for i in rows.whole(v)), rows.number)
        return lax.broadcast_in_dim(self.take(w, rows._replace(at={})), shape, (len(shape) - 1,))

    def leaf(self, v: Operand, rows: Rows) -> Array:
        """Returns the ``rows`` of an array v that consists of entries of the argument, as a leaf."""
        if self.given is not None:
            return next(self.given)
        # of what belongs to a row one table after the other, in which rows lie side by side
        columns = _picked(np.asarray(self.places[v], np.int32), v.aval.shape, rows)
        value = self.values[self.argument].at[columns].get(mode="promise_in_bounds")
        self.leaves.append(Leaf(value, columns, rows))
        return value

    def run(self, rows: Array, given: Sequence[Array] | None = None) -> Array:
        """Returns the values (k,) of the function in the rows with the numbers ``rows`` (k,), from values ``given`` of
        the leaves or else from x."""
        self.known.clear()
        self.given = None if given is None else iter(given)
        return self.take(self.jaxpr.outvars[0], Rows({0: rows.astype(jnp.int32)}, len(rows)))


def _picked(x: Array | np.ndarray, shape: Sequence[int], rows: Rows) -> Array:
    """Returns the ``rows`` of a known array of this ``shape``, as `RowWalk.take` does."""
    axes = sorted(rows.at)
    whole = [i for i in range(len(shape)) if i not in axes]
    sizes = [shape[i] for i in axes]
    tables = x.transpose([*whole, *axes]).reshape([*(shape[i] for i in whole), math.prod(sizes)])
    return jnp.take(tables, rows.flat(axes, sizes), len(whole), mode="clip")


# rules: walk, equation, its result, and the rows in it


def _reshape(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    (w, *_), new = eqn.invars, v.aval.shape
    groups = [(old, now) for old, now in _groups(w.aval.shape, new) if not rows.at.keys().isdisjoint(now)]
    spread = [i for _, now in groups for i in now if i not in rows.at]
    wide, numbers = rows.each(math.prod(new[i] for i in spread)), np.indices([new[i] for i in spread])
    beside = {i: jnp.tile(jnp.asarray(x.ravel(), jnp.int32), rows.number) for i, x in zip(spread, numbers, strict=True)}
    wide, at = wide._replace(at=wide.at | beside), {}
    for old, now in groups:
        if len(old) == len(now) == 1:
            at[old[0]] = wide.at[now[0]]
            continue
        rest = wide.flat(now, [new[i] for i in now])
        for i in reversed(old):
            size = jnp.int32(w.aval.shape[i])
            rest, at[i] = lax.div(rest, size), lax.rem(rest, size)
    found = walk.take(w, wide._replace(at=at))
    kept = [i for i in rows.whole(v) if i not in spread]
    return _arranged(found, [*kept, None, *spread], v, rows)


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[range, range]]:
    """Returns the axes of two shapes of one size in the smallest groups, in their order,
    that have as many entries in both."""
    if 0 in old:
        raise Unstructured("reshape of nothing")
    found, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        k, n = min(i + 1, len(old)), min(j + 1, len(new))
        while (a := math.prod(old[i:k])) != (b := math.prod(new[j:n])):
            k, n = k + (a < b), n + (a > b)
        found.append((range(i, k), range(j, n)))
        i, j = k, n
    return found


def _arranged(x: Array, axes: Sequence[int | None], v: Operand, rows: Rows) -> Array:
    """Returns rows of a variable v as `RowWalk.take` does, from an array with its whole ``axes`` in another order, and
    None for that of the rows.

    Several axes may be one in x that lie side by side, and those of size 1 may lack.
    """
    shape, whole = v.aval.shape, rows.whole(v)
    x = x.reshape([rows.number if i is None else shape[i] for i in axes])
    x = x.transpose([*(axes.index(i) for i in whole if i in axes), axes.index(None)])
    return x.reshape([*(shape[i] for i in whole), rows.number])


def _broadcast(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    (w, *_), axes = eqn.invars, eqn.params["broadcast_dimensions"]
    inner = rows._replace(at={axes.index(axis): x for axis, x in rows.at.items() if axis in axes})
    whole = rows.whole(v)
    shape = (*(v.aval.shape[i] for i in whole), rows.number)
    return lax.broadcast_in_dim(
        walk.take(w, inner), shape, (*(whole.index(axes[i]) for i in inner.whole(w)), len(whole))
    )


def _slice(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    (w,), p, whole = eqn.invars, eqn.params, rows.whole(v)
    first, last, steps = p["start_indices"], p["limit_indices"], p["strides"] or (1,) * v.aval.ndim
    found = walk.take(w, rows._replace(at={i: _shifted(first[i], steps[i], x) for i, x in rows.at.items()}))
    kept = ([*(bound[i] for i in whole), end] for bound, end in ((first, 0), (last, rows.number), (steps, 1)))
    return lax.slice(found, *kept)


def _shifted(first: int, step: int, numbers: Array) -> Array:
    # the same array where it may be: by it, rows are recognised as taken before
    return numbers if (first, step) == (0, 1) else first + step * numbers


def _split(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    (w,), sizes, axis = eqn.invars, eqn.params["sizes"], eqn.params["axis"]
    which = list(eqn.outvars).index(v)
    first = sum(sizes[:which])
    if axis in rows.at:
        return walk.take(w, rows._replace(at=rows.at | {axis: _shifted(first, 1, rows.at[axis])}))
    return lax.slice_in_dim(walk.take(w, rows), first, first + sizes[which], axis=rows.whole(v).index(axis))


def _transpose(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    (w,), order = eqn.invars, eqn.params["permutation"]
    inner = rows._replace(at={order[axis]: x for axis, x in rows.at.items()})
    return _arranged(walk.take(w, inner), [*(order.index(i) for i in inner.whole(w)), None], v, rows)


def _rev(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    (w,), turned, shape = eqn.invars, eqn.params["dimensions"], v.aval.shape
    at = {axis: shape[axis] - 1 - x if axis in turned else x for axis, x in rows.at.items()}
    return lax.rev(walk.take(w, rows._replace(at=at)), [k for k, i in enumerate(rows.whole(v)) if i in turned])


def _tile(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    (w,), times = eqn.invars, eqn.params["reps"]
    found = walk.take(
        w, rows._replace(at={axis: lax.rem(x, jnp.int32(w.aval.shape[axis])) for axis, x in rows.at.items()})
    )
    return jnp.tile(found, [*(times[i] for i in rows.whole(v)), 1])


def _concatenate(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    axis = eqn.params["dimension"]
    if axis in rows.at:
        piece = lambda w, at: rows.at | {axis: at}
        return _joined(walk, eqn, rows, axis, [w.aval.shape[axis] for w in eqn.invars], piece)
    return evaluate_equation(eqn, [walk.take(w, rows) for w in eqn.invars], dimension=rows.whole(v).index(axis))[0]


def _stack(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    axis = eqn.params["axis"]
    others = {i - (i > axis): x for i, x in rows.at.items() if i != axis}
    if axis in rows.at:
        return _joined(walk, eqn, rows, axis, [1] * len(eqn.invars), lambda w, at: others)
    return jnp.stack(
        [walk.take(w, rows._replace(at=others)) for w in eqn.invars], axis=sum(i < axis for i in rows.whole(v))
    )


def _joined(
    walk: RowWalk, eqn: Equation, rows: Rows, axis: int, sizes: Sequence[int], piece: Callable[[Operand, Array], dict]
) -> Array:
    """Returns the rows of an array that is joined along an ``axis`` from operands of these ``sizes`` along it.

    ``piece``: function from an operand and the numbers of its rows along this axis to the picked axes of the operand.
    """
    if len(sizes) > PIECES:
        raise Unstructured(f"{len(sizes)} arrays that are joined")
    found, first, at = None, 0, rows.at[axis]
    for i, (w, size) in enumerate(zip(eqn.invars, sizes, strict=True)):
        if size:
            inside = (at >= first) & (at < first + size)
            mine = jnp.any(inside.reshape(-1, rows.share), axis=1)
            used = mine if rows.used is None else rows.used & mine
            # several rows of an array in one of the result may lie in several pieces
            pieces = (*rows.pieces, *([(eqn, i)] if rows.share == 1 else []))
            within = piece(w, jnp.clip(at - first, 0, size - 1))
            part = walk.take(w, rows._replace(at=within, used=used, pieces=pieces))
            here = lax.broadcast_in_dim(inside, part.shape, (part.ndim - 1,))
            found = part if found is None else lax.select(here, part, found)
        first += size
    assert found is not None
    return found


def _gather(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    """Rule for a gather that picks entries along some axes, as ``x[i, j]`` does:
    takes only the entries that the rows pick."""
    (w, indices), n, shape = eqn.invars, eqn.params["dimension_numbers"], v.aval.shape
    places = indices.val if is_literal(indices) else walk.values.get(indices)
    picked = None if places is None or is_traced(places) else picked_axes(eqn.params, w.aval.shape, places)
    if picked is None:
        raise Unstructured("gather")
    left = (i for i in range(w.aval.ndim) if i not in n.collapsed_slice_dims)
    others = {axis: i for axis, i in zip(n.offset_dims, left, strict=True) if i not in picked}
    batch = [i for i in range(len(shape)) if i not in n.offset_dims]
    chosen = [i for i in batch if i in rows.at]
    spread = [i for i in batch if i not in rows.at] if chosen else []
    wide = rows.each(math.prod(shape[i] for i in spread))
    at = {others[i]: x for i, x in wide.at.items() if i in others}
    if chosen:
        # what a row picks, side by side
        number = rows.flat(chosen, [shape[i] for i in chosen])
        for axis, along in picked.items():
            table = along.transpose([batch.index(i) for i in (*chosen, *spread)])
            tables = jnp.asarray(table.reshape(-1, math.prod(shape[i] for i in spread)), jnp.int32)
            at[axis] = jnp.take(tables, number, 0, mode="clip").ravel()
    found = walk.take(w, wide._replace(at=at))
    kept = [axis for axis, i in others.items() if i not in at]
    if chosen:
        return _arranged(found, [*kept, None, *spread], v, rows)
    whole = [i for i in range(w.aval.ndim) if i not in at]
    found = jnp.moveaxis(found, [whole.index(i) for i in picked], range(len(picked)))
    return _arranged(found.at[tuple(picked.values())].get(mode="promise_in_bounds"), [*batch, *kept, None], v, rows)


def _dot_general(walk: RowWalk, eqn: Equation, v: Operand, rows: Rows) -> Array:
    """Rule for products; an operand without picked axes may not depend on the argument."""
    summed, batch = eqn.params["dimension_numbers"]
    free = [
        [i for i in range(w.aval.ndim) if i not in (*c, *b)] for w, c, b in zip(eqn.invars, summed, batch, strict=True)
    ]
    # of each axis of the result, the operands that have it, and where
    homes = [[*enumerate(pair)] for pair in zip(*batch, strict=True)] + [[(k, i)] for k in (0, 1) for i in free[k]]
    at: tuple[dict[int, Array], dict[int, Array]] = ({}, {})
    for axis, x in rows.at.items():
        for which, i in homes[axis]:
            at[which][i] = x
    if not rows.at:
        raise Unstructured("dot_general of rows")
    both, operands, positions = all(at), [], []
    for w, mine in zip(eqn.invars, at, strict=True):
        inner = rows._replace(at=mine)
        operands.append(walk.take(w, inner) if mine else walk.fixed(w))
        positions.append({i: k for k, i in enumerate(inner.whole(w))})
    beside = [k for k in range(len(batch[0])) if k not in rows.at]
    last = [(x.ndim - 1,) if both else () for x in operands]
    sums, batches = (
        tuple(tuple(p[i] for i in axes) for p, axes in zip(positions, by, strict=True))
        for by in (summed, [[b[k] for k in beside] for b in batch])
    )  # fmt: skip
    batches = tuple((*b, *end) for b, end in zip(batches, last, strict=True))
    found = evaluate_equation(eqn, operands, dimension_numbers=(sums, batches))[0]
    place = len(beside) + (0 if both or not at[0] else sum(i not in at[0] for i in free[0]))
    return jnp.moveaxis(found, place if both or at[0] else -1, -1)


RULES: dict[str, Callable] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "broadcast_in_dim": _broadcast, "slice": _slice, "split": _split, "transpose": _transpose,
    "concatenate": _concatenate, "gather": _gather, "dot_general": _dot_general, "rev": _rev, "tile": _tile,
    "stack": _stack,
}  # fmt: skip
