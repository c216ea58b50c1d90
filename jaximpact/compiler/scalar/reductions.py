"""Rules for sums, products, extremes and sorting of small arrays.

In all signatures ``m`` is the interpreter (`ScalarInterpreter`). Scalars *side by side* are computed
by one instruction, as a pack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from ...jaxtools.jaxpr_types import Equation
from .values import Scalar, Unsupported, Value, is_constant, object_array, scalar_array

if TYPE_CHECKING:
    from .interpreter import ScalarInterpreter


def sum_entries(m: ScalarInterpreter, entries: Iterable[Scalar], dtype: np.dtype) -> Scalar:
    """Returns the sum of scalars, added from left to right; of booleans, whether any is true."""
    add = "or" if np.dtype(dtype) == bool else "add"
    return reduce(lambda x, y: m.apply(add, (x, y)), entries, np.dtype(dtype).type(0))


def arrange_axes(x: Value, batch: Sequence[int], contract: Sequence[int], last: bool) -> tuple[list[int], list[int]]:
    """Returns a permutation of the axes of x for a product, and the sizes of its free axes, which are neither in
    ``batch`` nor in ``contract``.

    The new order is batch, free, contracted axes if ``last``, else batch, contracted, free axes.
    """
    free = [i for i in range(len(x.shape)) if i not in (*batch, *contract)]
    return [*batch, *free, *contract] if last else [*batch, *contract, *free], [x.shape[i] for i in free]


def in_one_type(eqn: Equation) -> ClosedJaxpr:
    """Returns the jaxpr of a dot_general of several types, with a product in one type: the result's, or that of an
    operand with more digits."""
    *kinds, result = (v.aval.dtype for v in (*eqn.invars, *eqn.outvars))
    if result.kind in "iub" and any(x.kind == "f" for x in kinds):
        raise Unsupported(f"a product of {kinds[0]} and {kinds[1]} as {result}")
    wide = max((result, *(x for x in kinds if x.kind == result.kind)), key=lambda x: x.itemsize)
    of = lambda x, y: lax.dot_general(x.astype(wide), y.astype(wide), eqn.params["dimension_numbers"]).astype(result)
    return jax.make_jaxpr(of)(*(v.aval for v in eqn.invars))


def _dot_general(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    dtype = eqn.outvars[0].aval.dtype
    order_a, rows = arrange_axes(inputs[0], batch_a, contract_a, True)
    order_b, columns = arrange_axes(inputs[1], batch_b, contract_b, False)
    batch = [inputs[0].shape[i] for i in batch_a]
    n, b = math.prod(inputs[0].shape[i] for i in contract_a), math.prod(batch)
    x = inputs[0].transpose(order_a).reshape(b, math.prod(rows), n)
    y = inputs[1].transpose(order_b).reshape(b, n, math.prod(columns))
    if m.emitter.pack > 1:
        parts = [product_side_by_side(m, x[i], y[i], dtype) for i in range(b)]
        return [object_array((*batch, *rows, *columns), (z for part in parts for z in part.flat))]
    sums = (
        sum_entries(m, [m.apply("mul", pair) for pair in zip(x[i, j], y[i, :, l], strict=True)], dtype)
        for i in range(b)
        for j in range(x.shape[1])
        for l in range(y.shape[2])  # noqa: E741
    )
    return [object_array((*batch, *rows, *columns), sums)]


def count_products(eqn: Equation, inputs: Sequence[Value]) -> int:
    """Returns the number of products in a dot_general that have no constant zero as a factor."""
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    counts = []
    for x, contract, batch, last in ((inputs[0], contract_a, batch_a, True), (inputs[1], contract_b, batch_b, False)):
        order, _ = arrange_axes(x, batch, contract, last)
        filled = np.array([not (is_constant(y) and y == 0) for y in x.flat]).reshape(x.shape).transpose(order)
        free = range(len(batch), x.ndim - len(contract)) if last else range(len(batch) + len(contract), x.ndim)
        counts.append(filled.sum(axis=tuple(free)))
    return int(np.sum(counts[0] * counts[1]))


def product_side_by_side(m: ScalarInterpreter, x: np.ndarray, y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the product x y of x (r, n) and y (n, c), computed side by side along the axis that
    takes the fewest instructions."""
    (rows, n), columns, pack = x.shape, y.shape[1], m.emitter.pack
    zero = np.dtype(dtype).type(0)
    nonzero = lambda z: np.array([[not (is_constant(v) and v == 0) for v in line] for line in z], int).reshape(z.shape)
    counts = nonzero(x) @ nonzero(y)
    # instructions of each way: moved rows take some shuffles
    apart = lambda z: sum(
        3 for line in z for i in range(0, len(line), pack) if not m.emitter.adjacent(line[i : i + pack])
    )
    parts, ways = (lambda size: -(-size // pack)), {"none": int(counts.sum())}
    if 2 * columns > pack:
        ways["columns"] = int(nonzero(x).sum()) * (parts(columns) + 1) + apart(y)
    if 2 * rows > pack:
        ways["rows"] = int(nonzero(y).sum()) * (parts(rows) + 1) + apart(x.T)
    if 2 * n > pack:
        ways["terms"] = int((counts > 0).sum()) * (parts(n) + 2 * pack.bit_length()) + apart(x) + apart(y.T)
    way = min(ways, key=lambda name: ways[name])
    if way == "rows":
        return _by_columns(m, y.T, x.T, dtype).T
    if way == "columns":
        return _by_columns(m, x, y, dtype)
    if way == "terms":
        terms = lambda i, j: m.elementwise("and" if np.dtype(dtype) == bool else "mul", x[i], y[:, j])
        sums = (
            sum_side_by_side(m, list(terms(i, j)), dtype) if counts[i, j] else zero
            for i, j in np.ndindex(rows, columns)
        )
        return object_array((rows, columns), sums)
    products = lambda i, j: [m.apply("mul", pair) for pair in zip(x[i], y[:, j], strict=True)]
    sums = (sum_entries(m, products(i, j), dtype) for i, j in np.ndindex(rows, columns))
    return object_array((rows, columns), sums)


def _by_columns(m: ScalarInterpreter, x: np.ndarray, y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the product x y of matrices, with the sums in a row of it computed side by side,
    each from left to right."""
    found = np.empty((len(x), y.shape[1]), object)
    add = "or" if np.dtype(dtype) == bool else "add"
    for i in range(len(x)):
        total = object_array(y.shape[1:], [np.dtype(dtype).type(0)] * y.shape[1])
        for k in range(x.shape[1]):
            if not (is_constant(x[i, k]) and x[i, k] == 0):
                total = m.elementwise(add, total, m.elementwise("mul", scalar_array(x[i, k]), y[k]))
        found[i] = total
    return found


def sum_side_by_side(m: ScalarInterpreter, entries: Sequence[Scalar], dtype: np.dtype) -> Scalar:
    """Returns the sum of scalars, or of booleans whether any is true; leaves constant zeros out,
    and adds the others side by side."""
    entries = [x for x in entries if not (is_constant(x) and x == 0)]
    if 2 * len(entries) <= m.emitter.pack:
        return sum_entries(m, entries, dtype)
    kind = np.dtype(dtype)
    return m.emitter.reduction("or" if kind == np.dtype(bool) else "add", entries, kind.type(0))


def without_repetition(name: str, entries: Iterable[Scalar]) -> list:
    """Returns the ``entries`` that a reduction by the primitive ``name`` needs: all,
    but for max and min only the last one of equal constants.

    The zeros of a sparse row are such constants.
    """
    every = list(entries)
    if name not in ("max", "min"):
        return every
    last = {x.tobytes(): i for i, x in enumerate(every) if is_constant(x)}
    return [x for i, x in enumerate(every) if not is_constant(x) or last[x.tobytes()] == i]


def _reduce_side_by_side(m: ScalarInterpreter, name: str, x: np.ndarray) -> Sequence[Scalar] | np.ndarray:
    """Returns the reductions (r,) of the rows of x (r, n), n > 0: several rows side by side, or if they are few,
    the entries of each row."""
    rows, n = x.shape
    if 2 * rows > m.emitter.pack:
        return reduce(lambda found, k: m.elementwise(name, found, x[:, k]), range(1, n), x[:, 0])
    combine = lambda x, y: m(name, x, y)
    found = []
    for row in x:
        if 2 * n <= m.emitter.pack or sum(map(is_constant, row)) > n // 2:
            found.append(reduce(combine, without_repetition(name, row)))
        elif name == "add":
            found.append(sum_side_by_side(m, list(row), row[0].dtype))
        else:
            found.append(m.emitter.reduction(name, list(row), row[0].dtype.type(1) if name == "mul" else None))
    return found


def _reduce_rule(name: str, start: float | None) -> Callable:
    """Returns the rule for a reduction by the primitive ``name``; ``start``: result for no entries,
    None if it depends on the dtype."""

    def rule(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
        (x,) = inputs
        axes, out = tuple(eqn.params["axes"]), eqn.outvars[0].aval
        kept = [i for i in range(x.ndim) if i not in axes]
        x = x.transpose([*kept, *axes]).reshape(math.prod(out.shape), math.prod(x.shape[i] for i in axes))
        empty = start
        if x.shape[1] == 0 and start is None:
            if out.dtype.kind not in "fiu" or name not in ("max", "min"):
                raise Unsupported(f"{eqn.primitive.name} of nothing")
            ends = (-np.inf, np.inf) if out.dtype.kind == "f" else (np.iinfo(out.dtype).min, np.iinfo(out.dtype).max)
            empty = ends[name == "min"]
        if m.emitter.pack > 1 and x.shape[1] > 0:
            return [object_array(out.shape, _reduce_side_by_side(m, name, x))]
        combine = lambda x, y: m(name, x, y)
        rows = (without_repetition(name, row) for row in x)
        return [object_array(out.shape, (reduce(combine, row) if row else out.dtype.type(empty) for row in rows))]

    return rule


def _arg_rule(name: str) -> Callable:
    """Returns the rule for argmax or argmin, by the comparison ``name``, "gt" or "lt": finds the first of equal
    entries; NaN beats all others."""

    def rule(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
        (axis,), dtype = eqn.params["axes"], np.dtype(eqn.params["index_dtype"])
        x = np.moveaxis(inputs[0], axis, 0)
        best, found = x[0, ...], object_array(x.shape[1:], [dtype.type(0)] * math.prod(x.shape[1:]))
        for i in range(1, len(x)):
            y = x[i, ...]  # an object array even of one entry: numpy would ask an entry of a GPU for its number
            lost = m.elementwise("and", m.elementwise("ne", y, y), m.elementwise("eq", best, best))
            take = m.elementwise("or", m.elementwise(name, y, best), lost)
            best = m.elementwise("select_n", take, best, y)
            found = m.elementwise("select_n", take, found, scalar_array(dtype.type(i)))
        return [found]

    return rule


def _cumulative_rule(name: str) -> Callable:
    """Returns the rule for cumulative sums, products or extremes, which combine entries by the primitive ``name``."""

    def rule(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
        x = np.moveaxis(inputs[0], eqn.params["axis"], 0).copy()
        backwards = eqn.params["reverse"]
        for i in range(len(x) - 2, -1, -1) if backwards else range(1, len(x)):
            x[i, ...] = m.elementwise(name, x[i + 1 if backwards else i - 1, ...], x[i, ...])
        return [np.moveaxis(x, 0, eqn.params["axis"])]

    return rule


def _sort(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    """Rule for sort by one key: odd-even transposition, n passes in which neighbours are exchanged; stable,
    NaN last."""
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
    "reduce_sum": _reduce_rule("add", 0), "reduce_prod": _reduce_rule("mul", 1),
    "reduce_max": _reduce_rule("max", None),
    "reduce_min": _reduce_rule("min", None), "reduce_and": _reduce_rule("and", True),
    "reduce_or": _reduce_rule("or", False),
    "argmin": _arg_rule("lt"), "argmax": _arg_rule("gt"), "cumsum": _cumulative_rule("add"),
    "cumprod": _cumulative_rule("mul"), "cummax": _cumulative_rule("max"), "cummin": _cumulative_rule("min"),
    "sort": _sort,
}  # fmt: skip
