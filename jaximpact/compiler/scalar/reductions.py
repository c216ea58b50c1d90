"""Rules for sums, products, extremes and sorting of small arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from .values import Unsupported, Value, is_constant, object_array


def sum_entries(m: Any, entries: Iterable[Any], dtype: Any) -> Any:
    """Sum of scalars from left to right; the disjunction of booleans."""
    add = "or" if np.dtype(dtype) == bool else "add"
    return reduce(lambda x, y: m(add, x, y), entries, np.dtype(dtype).type(0))


def arrange_axes(x: Value, batch: Sequence[int], contract: Sequence[int], last: bool) -> tuple[list[int], list[int]]:
    """Permutation of an operand's axes for a product, and the sizes of the free axes.

    The order is batch, free, contracted if ``last``, else batch, contracted, free.
    """
    free = [i for i in range(len(x.shape)) if i not in (*batch, *contract)]
    return [*batch, *free, *contract] if last else [*batch, *contract, *free], [x.shape[i] for i in free]


def _dot_general(m: Any, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    dtype = eqn.outvars[0].aval.dtype
    if any(v.aval.dtype != dtype for v in eqn.invars):
        raise Unsupported("dot_general of several types")
    order_a, rows = arrange_axes(inputs[0], batch_a, contract_a, True)
    order_b, columns = arrange_axes(inputs[1], batch_b, contract_b, False)
    batch = [inputs[0].shape[i] for i in batch_a]
    n, b = math.prod(inputs[0].shape[i] for i in contract_a), math.prod(batch)
    x = inputs[0].transpose(order_a).reshape(b, math.prod(rows), n)
    y = inputs[1].transpose(order_b).reshape(b, n, math.prod(columns))
    sums = (
        sum_entries(m, [m("mul", x[i, j, k], y[i, k, l]) for k in range(n)], dtype)
        for i in range(b)
        for j in range(x.shape[1])
        for l in range(y.shape[2])  # noqa: E741
    )
    return [object_array((*batch, *rows, *columns), sums)]


def count_products(eqn: Any, inputs: Sequence[Value]) -> int:
    """Number of products in a dot_general whose factors are not constant zeros."""
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    counts = []
    for x, contract, batch, last in ((inputs[0], contract_a, batch_a, True), (inputs[1], contract_b, batch_b, False)):
        order, _ = arrange_axes(x, batch, contract, last)
        filled = np.array([not (is_constant(y) and y == 0) for y in x.flat]).reshape(x.shape).transpose(order)
        free = range(len(batch), x.ndim - len(contract)) if last else range(len(batch) + len(contract), x.ndim)
        counts.append(filled.sum(axis=tuple(free)))
    return int(np.sum(counts[0] * counts[1]))


def _reduce_rule(name: str, start: Any) -> Callable:
    """Rule for a reduction by the primitive ``name``; ``start`` is the result for no entries (None: by dtype)."""

    def rule(m: Any, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
        (x,) = inputs
        axes, out = tuple(eqn.params["axes"]), eqn.outvars[0].aval
        kept = [i for i in range(x.ndim) if i not in axes]
        x = x.transpose([*kept, *axes]).reshape(math.prod(out.shape), math.prod(x.shape[i] for i in axes))
        empty = start
        if x.shape[1] == 0 and start is None:
            if out.dtype.kind != "f" or name not in ("max", "min"):
                raise Unsupported(f"{eqn.primitive.name} of nothing")
            empty = -np.inf if name == "max" else np.inf
        combine = lambda x, y: m(name, x, y)
        return [object_array(out.shape, (reduce(combine, row) if len(row) else out.dtype.type(empty) for row in x))]

    return rule


def _arg_rule(name: str) -> Callable:
    """Rule for argmax or argmin, by the comparison ``name``: the first of equal entries; NaN beats all others."""

    def rule(m: Any, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
        (axis,), dtype = eqn.params["axes"], np.dtype(eqn.params["index_dtype"])
        x = np.moveaxis(inputs[0], axis, -1)
        found = np.empty(x.shape[:-1], object)
        for index in np.ndindex(found.shape):
            best, where = x[index][0], dtype.type(0)
            for i, y in enumerate(x[index][1:], 1):
                take = m("or", m(name, y, best), m("and", m("ne", y, y), m("eq", best, best)))
                best, where = m("select_n", take, best, y), m("select_n", take, where, dtype.type(i))
            found[index] = where
        return [found]

    return rule


def _cumulative_rule(name: str) -> Callable:
    """Rule for cumulative sums and the like, by the primitive ``name``."""

    def rule(m: Any, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
        x = np.moveaxis(inputs[0], eqn.params["axis"], 0).copy()
        backwards = eqn.params["reverse"]
        for i in range(len(x) - 2, -1, -1) if backwards else range(1, len(x)):
            x[i, ...] = m.elementwise(name, x[i + 1 if backwards else i - 1, ...], x[i, ...])
        return [np.moveaxis(x, 0, eqn.params["axis"])]

    return rule


def _sort(m: Any, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
    """Odd-even transposition sort by one key: n passes of exchanges of neighbours; stable, NaN last."""
    if eqn.params["num_keys"] != 1:
        raise Unsupported("sort by several keys")
    axis = eqn.params["dimension"]
    arrays = [np.moveaxis(x, axis, 0).copy() for x in inputs]
    n = len(arrays[0])
    for passes in range(n):
        for i in range(passes % 2, n - 1, 2):
            x, y = arrays[0][i, ...], arrays[0][i + 1, ...]
            misplaced = m.elementwise("and", m.elementwise("ne", x, x), m.elementwise("eq", y, y))
            exchange = m.elementwise("or", m.elementwise("lt", y, x), misplaced)
            for a in arrays:
                x, y = a[i, ...].copy(), a[i + 1, ...].copy()
                a[i, ...], a[i + 1, ...] = (
                    m.elementwise("select_n", exchange, x, y),
                    m.elementwise("select_n", exchange, y, x),
                )
    return [np.moveaxis(x, 0, axis) for x in arrays]


RULES: dict[str, Callable] = {
    "dot_general": _dot_general,
    "reduce_sum": _reduce_rule("add", 0), "reduce_prod": _reduce_rule("mul", 1), "reduce_max": _reduce_rule("max", None),
    "reduce_min": _reduce_rule("min", None), "reduce_and": _reduce_rule("and", True), "reduce_or": _reduce_rule("or", False),
    "argmin": _arg_rule("lt"), "argmax": _arg_rule("gt"), "cumsum": _cumulative_rule("add"), "cumprod": _cumulative_rule("mul"),
    "cummax": _cumulative_rule("max"), "cummin": _cumulative_rule("min"), "sort": _sort,
}  # fmt: skip
