"""Sums, products and orders of the numbers of small arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from .values import Unsupported, Value, fill_array


def total(m: Any, entries: Iterable[Any], dtype: Any) -> Any:
    add = "or" if np.dtype(dtype) == bool else "add"
    return reduce(lambda x, y: m(add, x, y), entries, np.dtype(dtype).type(0))


def arrange_axes(x: Value, batch: Sequence[int], contract: Sequence[int], last: bool) -> tuple[list[int], list[int]]:
    """Axes of a product's operand in the order batch, free, contracted (or contracted before free), and the sizes of the free ones."""
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
        total(m, [m("mul", x[i, j, k], y[i, k, l]) for k in range(n)], dtype)
        for i in range(b)
        for j in range(x.shape[1])
        for l in range(y.shape[2])  # noqa: E741
    )
    return [fill_array((*batch, *rows, *columns), sums)]


def _reducer(name: str, start: Any) -> Callable:
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
        return [fill_array(out.shape, (reduce(combine, row) if len(row) else out.dtype.type(empty) for row in x))]

    return rule


def _arg(name: str) -> Callable:
    """Rule for argmax or argmin: the first of equal entries; NaN wins."""

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


def _cumulative(name: str) -> Callable:
    def rule(m: Any, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
        x = np.moveaxis(inputs[0], eqn.params["axis"], 0).copy()
        backwards = eqn.params["reverse"]
        for i in range(len(x) - 2, -1, -1) if backwards else range(1, len(x)):
            x[i, ...] = m.each(name, x[i + 1 if backwards else i - 1, ...], x[i, ...])
        return [np.moveaxis(x, 0, eqn.params["axis"])]

    return rule


def _sort(m: Any, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
    """Odd-even transposition sort: n passes of neighbour exchanges; stable, NaN last."""
    if eqn.params["num_keys"] != 1:
        raise Unsupported("sort by several keys")
    axis = eqn.params["dimension"]
    arrays = [np.moveaxis(x, axis, 0).copy() for x in inputs]
    n = len(arrays[0])
    for turn in range(n):
        for i in range(turn % 2, n - 1, 2):
            x, y = arrays[0][i, ...], arrays[0][i + 1, ...]
            misplaced = m.each("and", m.each("ne", x, x), m.each("eq", y, y))
            exchange = m.each("or", m.each("lt", y, x), misplaced)
            for a in arrays:
                x, y = a[i, ...].copy(), a[i + 1, ...].copy()
                a[i, ...], a[i + 1, ...] = m.each("select_n", exchange, x, y), m.each("select_n", exchange, y, x)
    return [np.moveaxis(x, 0, axis) for x in arrays]


RULES: dict[str, Callable] = {
    "dot_general": _dot_general,
    "reduce_sum": _reducer("add", 0), "reduce_prod": _reducer("mul", 1), "reduce_max": _reducer("max", None),
    "reduce_min": _reducer("min", None), "reduce_and": _reducer("and", True), "reduce_or": _reducer("or", False),
    "argmin": _arg("lt"), "argmax": _arg("gt"), "cumsum": _cumulative("add"), "cumprod": _cumulative("mul"),
    "cummax": _cumulative("max"), "cummin": _cumulative("min"), "sort": _sort,
}  # fmt: skip
