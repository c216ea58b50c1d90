"""Small arrays as separate numbers: a function traced once and executed again element by element.

A time step of a small system is a few hundred scalar operations. Held as arrays of two or three entries they cost a
dispatch each; as scalars, which `jax.vmap` turns into vectors over lanes, a compiler fuses them into a few loops.
`scalarise` does that to any function: its jaxpr is evaluated with every small array as a numpy object array of
scalars. Structural operations (slicing, transposition, concatenation, ...) vanish, constants fold, structural zeros
drop out. What has no rule is done on whole arrays, in the ordinary way. Differentiation and `jax.vmap` go around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial, reduce, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.dtypes import float0
from jax.extend.core import ClosedJaxpr, Literal

from .jaxprs import as_closed, scan_counts
from .lanes import few, few_linear
from .stream import stream_p

SMALL = 512  # arrays of up to this many entries are held as separate numbers,
LONG = 64  # unless an axis is longer than any of a small system: saved rows stay together

Value = Any  # an object array of scalars (known ones are numpy's), or a whole jax array


def scalarise(function: Callable, on_whole: Callable[[str], None] = lambda name: None) -> Callable:
    """``function`` of pytrees of arrays, executed element by element; equal to a few ulp, differentiable as before.

    ``on_whole(name)`` is called for every primitive that has no rule and is done on whole arrays.
    """

    @wraps(function)
    def scalarised(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        values = [split(x) for x in jax.tree.leaves(args)]
        found = evaluate(closed, values, on_whole)
        return jax.tree.unflatten(jax.tree.structure(shape), [whole(x) for x in found])

    return scalarised


# values


def is_split(x: Value) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == object


def _fits(x: Any) -> bool:
    short = math.prod(x.shape) <= SMALL and max(x.shape, default=0) <= LONG
    return short and not jnp.issubdtype(x.dtype, jax.dtypes.extended)


def known(x: Any) -> bool:
    """Whether a scalar is a number known while tracing."""
    return isinstance(x, np.generic)


def split(x: Any) -> Value:
    """An array as separate numbers, if it is small."""
    if is_split(x) or not _fits(jax.typeof(x)):
        return x
    found = np.empty(np.shape(x), object)
    constant = not isinstance(x, jax.core.Tracer)
    for index in np.ndindex(found.shape):
        found[index] = np.asarray(x)[index][()] if constant else (x[index] if index else x)
    return found


def whole(x: Value) -> Any:
    """The array of separate numbers."""
    if not is_split(x):
        return x
    flat = list(x.flat)
    if not flat:
        return jnp.zeros(x.shape)
    if all(map(known, flat)):
        return jnp.asarray(np.array(flat).reshape(x.shape))
    if x.ndim == 0:
        return flat[0]
    dtype = next(y.dtype for y in flat if not known(y))
    return jnp.stack([jnp.asarray(y, dtype) for y in flat]).reshape(x.shape)


def objects(shape: Any, entries: Any) -> np.ndarray:
    found = np.empty(shape, object)
    flat = found.reshape(-1) if found.ndim else None
    if flat is None:
        (found[()],) = entries
    else:
        for i, entry in enumerate(entries):
            flat[i] = entry
    return found


class Layout:
    """How values are handed to jax as a flat list of scalars and whole arrays; known numbers stay out of it."""

    def __init__(self, values: Sequence[Value], keep_known: bool = True) -> None:
        self.values = [x.copy() if is_split(x) else x for x in values]
        self.keep_known = keep_known

    @classmethod
    def of(cls, variables: Sequence[Any]) -> Layout:
        """The layout of a jaxpr's outputs: what is small is split, and nothing known."""
        return cls(
            [np.full(v.aval.shape, None, object) if _fits(v.aval) else v.aval for v in variables], keep_known=False
        )

    def flat(self, values: Sequence[Value] | None = None) -> list:
        """Scalars and whole arrays of values of this layout."""
        out: list = []
        for mine, x in zip(self.values, self.values if values is None else values, strict=True):
            if not is_split(mine):
                out.append(whole(x))
                continue
            for a, b in zip(mine.flat, split(x).flat, strict=True):
                if not (self.keep_known and known(a)):
                    out.append(jnp.asarray(b))
        return out

    def values_of(self, flat: Iterable) -> list[Value]:
        """The values again."""
        entries = iter(flat)
        found: list[Value] = []
        for mine in self.values:
            if not is_split(mine):
                found.append(next(entries))
            else:
                found.append(
                    objects(mine.shape, [a if self.keep_known and known(a) else next(entries) for a in mine.flat])
                )
        return found


# evaluation


def evaluate(closed: ClosedJaxpr, values: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    """The outputs of a jaxpr for split or whole inputs."""
    jaxpr = closed.jaxpr
    env: dict = {}

    def read(var: Any) -> Value:
        if isinstance(var, Literal):
            return objects((), [np.asarray(var.val, var.aval.dtype)[()]]) if np.ndim(var.val) == 0 else split(var.val)  # type: ignore[attr-defined]
        return env[var]

    for var, x in zip(jaxpr.constvars, closed.consts, strict=True):
        env[var] = split(x)
    for var, x in zip(jaxpr.invars, values, strict=True):
        env[var] = x
    for eqn in jaxpr.eqns:
        inputs = [read(v) for v in eqn.invars]
        found = apply(eqn, inputs, on_whole)
        for var, x in zip(eqn.outvars, found, strict=True):
            env[var] = x
    return [read(v) for v in jaxpr.outvars]


def apply(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    name = eqn.primitive.name
    if name in CALLS:
        return evaluate(as_closed(eqn.params[CALLS[name]]), inputs, on_whole)
    if name in CONTROL:
        return CONTROL[name](eqn, inputs, on_whole)
    small = all(is_split(x) for x in inputs) and all(_fits(v.aval) for v in eqn.outvars)
    if small and name in ELEMENTWISE:
        # zeros known from the structure drop out; one that is written in a product has to pass a NaN on
        written = name == "mul" and any(isinstance(v, Literal) and v.val == 0 for v in eqn.invars)
        return [elementwise(eqn, inputs, not written)]
    if small and name in RULES:
        found = RULES[name](eqn, inputs)
        if found is not None:
            return found
    if small:
        on_whole(name)
    return [split(x) for x in bind(eqn, [whole(x) for x in inputs])]


def bind(eqn: Any, inputs: Sequence[Value]) -> list:
    """The primitive itself, on whole arrays."""
    inputs = [jnp.asarray(x, v.aval.dtype) if np.size(x) == 0 else x for x, v in zip(inputs, eqn.invars, strict=True)]
    found = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return list(found) if eqn.primitive.multiple_results else [found]


CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
         "eval_jaxpr": "call_jaxpr"}  # fmt: skip

# elementwise arithmetic

ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "clamp", "clz", "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "guard", "integer_pow", "is_finite", "le", "le_to", "lgamma",
    "log", "log1p", "logistic", "lt", "lt_to", "max", "min", "mul", "name", "ne", "neg", "nextafter", "not", "or",
    "population_count", "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient",
    "sub", "tan", "tanh", "xor",
}  # fmt: skip
FOLDED = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and,
    "or": np.bitwise_or, "not": np.invert, "max": np.maximum, "min": np.minimum, "sqrt": np.sqrt, "abs": np.abs,
}  # fmt: skip


def elementwise(eqn: Any, inputs: Sequence[Value], simplify: bool = True) -> Value:
    arrays = np.broadcast_arrays(*inputs)
    return objects(arrays[0].shape, [number(eqn, x, simplify) for x in zip(*(a.flat for a in arrays), strict=True)])


def number(eqn: Any, x: Sequence[Any], simplify: bool = True) -> Any:
    """One elementwise operation on scalars."""
    name = eqn.primitive.name
    if all(map(known, x)):
        if name in FOLDED:
            with np.errstate(all="ignore"):
                return FOLDED[name](*x)
        with jax.ensure_compile_time_eval():
            return np.asarray(eqn.primitive.bind(*x, **eqn.params))[()]
    simple = SIMPLIFIED[name](*x) if simplify and name in SIMPLIFIED else None
    if simple is not None:
        return simple
    if name in FAST and x[0].dtype == np.float64 and not PLAIN.get():
        return FAST[name](x[0])
    return eqn.primitive.bind(*x, **eqn.params)


def _is(x: Any, value: Any) -> bool:
    return known(x) and x == value


def _add(x: Any, y: Any) -> Any:
    return y if _is(x, 0) else x if _is(y, 0) else None


def _sub(x: Any, y: Any) -> Any:
    return lax.neg(y) if _is(x, 0) else x if _is(y, 0) else None


def _mul(x: Any, y: Any) -> Any:
    if _is(x, 0) or _is(y, 1):
        return x
    if _is(y, 0) or _is(x, 1):
        return y
    return lax.neg(y) if _is(x, -1) else lax.neg(x) if _is(y, -1) else None


def _div(x: Any, y: Any) -> Any:
    return x if _is(x, 0) or _is(y, 1) else None


def _and(x: Any, y: Any) -> Any:
    if x.dtype != bool:
        return None
    return (y if x else x) if known(x) else ((x if y else y) if known(y) else None)


def _or(x: Any, y: Any) -> Any:
    if x.dtype != bool:
        return None
    return (x if x else y) if known(x) else ((y if y else x) if known(y) else None)


def _select(which: Any, *cases: Any) -> Any:
    if known(which):
        return cases[int(which)]
    return cases[0] if all(x is cases[0] for x in cases) else None


SIMPLIFIED: dict[str, Callable] = {
    "add": _add, "add_any": _add, "sub": _sub, "mul": _mul, "div": _div, "and": _and, "or": _or, "select_n": _select,
    "copy": lambda x: x, "copy_p": lambda x: x, "name": lambda x: x,
}  # fmt: skip


# pi/2 in parts of 23 bits, the product of which with a whole number below 2^30 is exact
_PARTS = (
    1.5707962512969971,
    7.549789415861596e-08,
    5.390302529957765e-15,
    3.282003415807913e-22,
    1.270655753080676e-29,
)


def _sine_cosine(x: Array) -> tuple[Array, Array]:
    """sin x and cos x to about an ulp, as straight-line arithmetic: library calls are not vectorised."""
    k = lax.round(x * (2 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    r = x
    for part in _PARTS:
        r = r - k * part
    z = r * r
    s = _horner(z, (1.58962301576546568060e-10, -2.50507477628578072866e-8, 2.75573136213857245213e-6,
                    -1.98412698295895385996e-4, 8.33333333332211858878e-3, -1.66666666666666307295e-1))  # fmt: skip
    c = _horner(z, (-1.13585365213876817300e-11, 2.08757008419747316778e-9, -2.75573141792967388112e-7,
                    2.48015872888517045348e-5, -1.38888888888730564116e-3, 4.16666666666665929218e-2))  # fmt: skip
    sine = r + r * (z * s)
    cosine = 1 - 0.5 * z + z * z * c
    # quadrant of the angle, without a conversion to whole numbers
    half = k * 0.5
    odd = half != lax.floor(half)
    quarter = lax.floor(half) * 0.5
    back = quarter != lax.floor(quarter)
    s, c = jnp.where(odd, cosine, sine), jnp.where(odd, sine, cosine)
    return jnp.where(back, -s, s), jnp.where(back != odd, -c, c)


def _horner(z: Array, coefficients: Sequence[Any]) -> Any:
    return reduce(lambda total, c: total * z + c, coefficients[1:], coefficients[0])


@jax.custom_jvp
def sine(x: Array) -> Array:
    return _sine_cosine(x)[0]


@jax.custom_jvp
def cosine(x: Array) -> Array:
    return _sine_cosine(x)[1]


@sine.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return sine(*primals), cosine(*primals) * tangents[0]


@cosine.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return cosine(*primals), -sine(*primals) * tangents[0]


FAST: dict[str, Callable] = {"sin": sine, "cos": cosine}
# for a compiler of numbers alone: sines stay sines, and what a loop reads comes as a sequence of numbers for each entry
PLAIN: ContextVar[bool] = ContextVar("PLAIN", default=False)

# structure: what moves data by known indices


def move(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    """Data movement: done once on the numbers of the entries, then on the entries."""
    moved, indices, first, entries = [], inputs[MOVED[eqn.primitive.name] :], 0, []
    if not all(known(x) for operand in indices for x in operand.flat):
        return None
    for operand in inputs[: MOVED[eqn.primitive.name]]:
        moved.append(np.arange(first, first + operand.size, dtype=np.int32).reshape(operand.shape))
        first += operand.size
        entries += list(operand.flat)
    known_indices = [
        np.array(list(x.flat), v.aval.dtype).reshape(x.shape)
        for x, v in zip(indices, eqn.invars[len(moved) :], strict=True)
    ]
    return _moved(eqn, [*moved, *known_indices], entries)


def _moved(eqn: Any, arrays: Sequence[Any], entries: Sequence[Any]) -> list[Value]:
    params = dict(eqn.params)
    if eqn.primitive.name == "gather":
        params["fill_value"] = -1
    with jax.ensure_compile_time_eval():
        found = eqn.primitive.bind(*map(jnp.asarray, arrays), **params)
    found = found if eqn.primitive.multiple_results else [found]
    blank = np.zeros((), eqn.outvars[0].aval.dtype)[()] if eqn.primitive.name != "gather" else _fill(eqn)
    return [
        objects(np.shape(x), [entries[i] if i >= 0 else blank for i in np.asarray(x).ravel().tolist()]) for x in found
    ]


def _fill(eqn: Any) -> Any:
    dtype = eqn.outvars[0].aval.dtype
    value = eqn.params.get("fill_value")
    if value is None:
        value = np.nan if jnp.issubdtype(dtype, jnp.inexact) else 0
    return np.asarray(value, dtype)[()]


MOVED = dict.fromkeys(
    [
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "slice",
        "squeeze",
        "rev",
        "pad",
        "gather",
        "split",
        "unstack",
        "expand_dims",
    ],
    1,
) | {"concatenate": 1000, "stack": 1000, "dynamic_slice": 1, "dynamic_update_slice": 2}


def pad(eqn: Any, inputs: Sequence[Value]) -> list[Value]:
    operand, value = inputs
    moved = np.arange(operand.size, dtype=np.int32).reshape(operand.shape)
    return _moved(eqn, [moved, np.int32(operand.size)], [*operand.flat, value.item()])


def gather(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    """Rows x[i] of numbers i that are known, or chosen among all rows."""
    found: Any = move(eqn, inputs)
    if found is not None:
        return found
    operand, indices = inputs
    numbers = eqn.params["dimension_numbers"]
    axis: Any = numbers.start_index_map[0] if len(numbers.start_index_map) == 1 else None
    simple = (
        axis is not None
        and numbers.collapsed_slice_dims == (axis,)
        and not numbers.operand_batching_dims
        and indices.shape[-1] == 1
        and eqn.params["slice_sizes"] == tuple(1 if i == axis else n for i, n in enumerate(operand.shape))
    )
    if not simple:
        return None
    count = operand.shape[axis]
    rows = np.moveaxis(operand, axis, 0)
    outside = None if "CLIP" in str(eqn.params["mode"]) or "PROMISE" in str(eqn.params["mode"]) else _fill(eqn)
    lead: Any = indices.shape[:-1]
    found = np.empty((*lead, *rows.shape[1:]), object)
    rest: Any
    for where in np.ndindex(lead):
        i = indices[(*where, 0)]
        for rest in np.ndindex(rows.shape[1:]):
            column = rows[(slice(None), *rest)]
            x = column[0] if outside is None else outside
            for j in range(0 if outside is not None else 1, count):
                hit = (i == j) if outside is not None or j < count - 1 else (i >= j)
                x = jnp.where(hit, column[j], x)
            found[(*where, *rest)] = x
    # offset dimensions to their places
    rest = [i for i in range(found.ndim) if i not in numbers.offset_dims]
    order = np.empty(found.ndim, int)
    order[rest], order[list(numbers.offset_dims)] = range(len(lead)), range(len(lead), found.ndim)
    return [found.transpose(order)]


def scatter(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    """x.at[indices].set or add; of one index that is not known, an entry for each value that it may have."""
    operand, indices, updates = inputs
    found = operand.copy()
    flat = found.reshape(-1)

    def put(where: np.ndarray, chosen: Any = None) -> None:
        for k, value in enumerate(updates.flat):
            for i in np.flatnonzero(_landing(eqn, operand.shape, where, updates.shape, k)):
                new = _plus(flat[i], value) if eqn.primitive.name == "scatter-add" else value
                flat[i] = new if chosen is None else jnp.where(chosen, new, flat[i])

    dtype = eqn.invars[1].aval.dtype
    if all(map(known, indices.flat)):
        put(np.array(list(indices.flat), dtype).reshape(indices.shape))
        return [found]
    numbers = eqn.params["dimension_numbers"]
    axes = numbers.scatter_dims_to_operand_dims
    if indices.size != len(axes) or eqn.params["mode"] == lax.GatherScatterMode.CLIP:
        return None
    for where in np.ndindex(*(operand.shape[axis] for axis in axes)):
        chosen = reduce(_both, [jnp.asarray(i == dtype.type(n)) for i, n in zip(indices.flat, where, strict=True)])
        put(np.array(where, dtype).reshape(indices.shape), chosen)
    return [found]


def _landing(eqn: Any, shape: Sequence[int], where: np.ndarray, updates: tuple[int, ...], k: int) -> np.ndarray:
    """Where the k-th update lands in an array of a shape: one there, else zero."""
    mark = np.zeros(math.prod(updates), np.float32)
    mark[k] = 1
    with jax.ensure_compile_time_eval():
        landed = lax.scatter_add(
            jnp.zeros(shape, np.float32), jnp.asarray(where), jnp.asarray(mark.reshape(updates)),
            eqn.params["dimension_numbers"], mode=eqn.params["mode"],
        )  # fmt: skip
    return np.asarray(landed)


def iota(eqn: Any, inputs: Sequence[Value]) -> list[Value]:
    with jax.ensure_compile_time_eval():
        return [split(np.asarray(eqn.primitive.bind(**eqn.params)))]


def platform_index(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    """Of implementations for several platforms, which must all mean the same, the one for any."""
    platforms = eqn.params["platforms"]
    return [objects((), [np.int32(platforms.index(None))])] if None in platforms else None


# sums and products


def _operation(
    primitive: Callable, folded: Callable, simplify: Callable = lambda x, y: None
) -> Callable[[Any, Any], Any]:
    """A binary operation on scalars, done now where both are known."""

    def run(x: Any, y: Any) -> Any:
        if known(x) and known(y):
            return folded(x, y)
        simple = simplify(x, y)
        return primitive(x, y) if simple is None else simple

    return run


_plus = _operation(lax.add, np.add, _add)
_minus = _operation(lax.sub, np.subtract, _sub)
_times = _operation(lax.mul, np.multiply, _mul)
_over = _operation(lax.div, np.divide, _div)
_largest = _operation(lax.max, np.maximum)
_smallest = _operation(lax.min, np.minimum)
_both = _operation(lax.bitwise_and, np.bitwise_and, _and)
_either = _operation(lax.bitwise_or, np.bitwise_or, _or)


def _total(entries: Iterable[Any], dtype: Any) -> Any:
    return reduce(_plus, entries, np.zeros((), dtype)[()])


def dot_general(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    dtype = eqn.outvars[0].aval.dtype
    if any(v.aval.dtype != dtype for v in eqn.invars):
        return None

    def arranged(
        x: np.ndarray, batch: Sequence[int], contract: Sequence[int], last: bool
    ) -> tuple[np.ndarray, list[int]]:
        free = [i for i in range(x.ndim) if i not in (*batch, *contract)]
        order = (*batch, *free, *contract) if last else (*batch, *contract, *free)
        return np.transpose(x, order), [x.shape[i] for i in free]

    x, rows = arranged(inputs[0], batch_a, contract_a, True)
    y, columns = arranged(inputs[1], batch_b, contract_b, False)
    shape = [inputs[0].shape[i] for i in batch_a]
    n = math.prod(inputs[0].shape[i] for i in contract_a)
    x = x.reshape(math.prod(shape), math.prod(rows), n)
    y = y.reshape(math.prod(shape), n, math.prod(columns))
    entries = [
        _total([_times(x[b, i, k], y[b, k, j]) for k in range(n)], dtype)
        for b in range(x.shape[0])
        for i in range(x.shape[1])
        for j in range(y.shape[2])
    ]
    return [objects((*shape, *rows, *columns), entries)]


def _reducer(combine: Callable, start: Any) -> Callable:
    def rule(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
        (x,) = inputs
        axes = tuple(eqn.params["axes"])
        dtype = eqn.outvars[0].aval.dtype
        kept = [i for i in range(x.ndim) if i not in axes]
        x = np.transpose(x, (*kept, *axes)).reshape(math.prod(x.shape[i] for i in kept), -1)
        if x.shape[1] == 0 and start is None:
            return None
        shape = eqn.outvars[0].aval.shape
        return [
            objects(
                shape, [reduce(combine, row[1:], row[0]) if len(row) else np.asarray(start, dtype)[()] for row in x]
            )
        ]

    return rule


def _arg(better: Callable) -> Callable:
    def rule(eqn: Any, inputs: Sequence[Value]) -> list[Value]:
        (x,) = inputs
        (axis,) = eqn.params["axes"]
        dtype = eqn.params["index_dtype"]
        x = np.moveaxis(x, axis, -1)
        found = np.empty(x.shape[:-1], object)
        where: Any
        for index in np.ndindex(found.shape):
            row = x[index]
            best, where = row[0], np.asarray(0, dtype)[()]
            for i in range(1, len(row)):
                take = better(row[i], best) | ((row[i] != row[i]) & (best == best))
                where = jnp.where(take, np.asarray(i, dtype)[()], where)
                best = jnp.where(take, row[i], best)
            found[index] = where
        return [found]

    return rule


def _cumulative(combine: Callable) -> Callable:
    def rule(eqn: Any, inputs: Sequence[Value]) -> list[Value]:
        (x,) = inputs
        x = np.moveaxis(x, eqn.params["axis"], 0).copy()
        order = range(len(x) - 2, -1, -1) if eqn.params["reverse"] else range(1, len(x))
        step = 1 if eqn.params["reverse"] else -1
        for i in order:
            for rest in np.ndindex(x.shape[1:]):
                x[(i, *rest)] = combine(x[(i + step, *rest)], x[(i, *rest)])
        return [np.moveaxis(x, 0, eqn.params["axis"])]

    return rule


def sort(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    """Neighbours exchanged where out of order, n times: stable, NaN last."""
    if eqn.params["num_keys"] != 1:
        return None
    arrays = [np.moveaxis(x, eqn.params["dimension"], 0).copy() for x in inputs]
    n = len(arrays[0])
    for round_ in range(n):
        for i in range(round_ % 2, n - 1, 2):
            for rest in np.ndindex(arrays[0].shape[1:]):
                x, y = arrays[0][(i, *rest)], arrays[0][(i + 1, *rest)]
                exchange = (y < x) | ((x != x) & (y == y))
                for a in arrays:
                    x, y = a[(i, *rest)], a[(i + 1, *rest)]
                    a[(i, *rest)], a[(i + 1, *rest)] = jnp.where(exchange, y, x), jnp.where(exchange, x, y)
    return [np.moveaxis(x, 0, eqn.params["dimension"]) for x in arrays]


# small linear algebra


def _sqrt(x: Any) -> Any:
    return np.sqrt(x) if known(x) else lax.sqrt(x)


def cholesky(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    (a,) = inputs
    if a.ndim != 2:
        return None
    n, zero = a.shape[0], np.zeros((), eqn.outvars[0].aval.dtype)[()]
    low = objects(a.shape, [zero] * a.size)
    for i in range(n):
        for j in range(i + 1):
            rest = _minus(a[i, j], _total([_times(low[i, k], low[j, k]) for k in range(j)], zero.dtype))
            low[i, j] = _sqrt(rest) if i == j else _over(rest, low[j, j])
    return [low]


def triangular_solve(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    a, b = inputs
    p = eqn.params
    if a.ndim != 2 or p["conjugate_a"]:
        return None
    lower = p["lower"] != p["transpose_a"]
    a = a.T if p["transpose_a"] else a
    if not p["left_side"]:
        a, b, lower = a.T, b.T, not lower
    n, dtype = a.shape[0], eqn.outvars[0].aval.dtype
    x = b.copy()
    for i in range(n) if lower else reversed(range(n)):
        others = range(i) if lower else range(i + 1, n)
        for j in range(b.shape[1]):
            rest = _minus(b[i, j], _total([_times(a[i, k], x[k, j]) for k in others], dtype))
            x[i, j] = rest if p["unit_diagonal"] else _over(rest, a[i, i])
    return [x if p["left_side"] else x.T]


def lu(eqn: Any, inputs: Sequence[Value]) -> list[Value] | None:
    """LU decomposition with partial pivoting, rows exchanged by selection."""
    (a,) = inputs
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        return None
    n = a.shape[0]
    rows = [list(row) for row in a]
    permutation: list = [np.int32(i) for i in range(n)]
    pivots: list = []
    where: Any
    for k in range(n):
        best, where = lax.abs(jnp.asarray(rows[k][k])), np.int32(k)
        for i in range(k + 1, n):
            size = lax.abs(jnp.asarray(rows[i][k]))
            best, where = jnp.where(size > best, size, best), jnp.where(size > best, np.int32(i), where)
        pivots.append(where)
        for i in range(k + 1, n):
            swap = where == i
            top, bottom = rows[k], rows[i]
            rows[k] = [jnp.where(swap, y, x) for x, y in zip(top, bottom, strict=True)]
            rows[i] = [jnp.where(swap, x, y) for x, y in zip(top, bottom, strict=True)]
            p, q = permutation[k], permutation[i]
            permutation[k], permutation[i] = jnp.where(swap, q, p), jnp.where(swap, p, q)
        for i in range(k + 1, n):
            rows[i][k] = _over(rows[i][k], rows[k][k])
            for j in range(k + 1, n):
                rows[i][j] = _minus(rows[i][j], _times(rows[i][k], rows[k][j]))
    return [
        objects((n, n), [x for row in rows for x in row]),
        objects((n,), pivots),
        objects((n,), permutation),
    ]


def dynamic_slice(eqn: Any, inputs: Sequence[Value]) -> list[Value]:
    found = move(eqn, inputs)
    if found is not None:
        return found
    result, *starts = inputs
    for axis, (start, size) in enumerate(zip(starts, eqn.params["slice_sizes"], strict=True)):
        result = _cut(result, axis, start.item(), size)
    return [result]


def _cut(x: np.ndarray, axis: int, start: Any, size: int) -> np.ndarray:
    """``size`` entries along an axis from a start that is known or not, and then one of few."""
    last = x.shape[axis] - size
    if known(start):
        return np.take(x, range(first := int(np.clip(start, 0, last)), first + size), axis)
    found = np.take(x, range(size), axis)
    for at in range(1, last + 1):
        other = np.take(x, range(at, at + size), axis)
        found = objects(
            found.shape, [jnp.where(start >= at, b, a) for a, b in zip(found.flat, other.flat, strict=True)]
        )
    return found


RULES: dict[str, Callable] = dict.fromkeys(MOVED, move) | {
    "pad": pad,
    "reshard": lambda eqn, inputs: inputs,
    "gather": gather,
    "scatter": scatter,
    "scatter-add": scatter,
    "iota": iota,
    "platform_index": platform_index,
    "dynamic_slice": dynamic_slice,
    "dot_general": dot_general,
    "reduce_sum": _reducer(_plus, 0),
    "reduce_prod": _reducer(_times, 1),
    "reduce_max": _reducer(_largest, None),
    "reduce_min": _reducer(_smallest, None),
    "reduce_and": _reducer(_both, True),
    "reduce_or": _reducer(_either, False),
    "argmin": _arg(lambda x, y: x < y),
    "argmax": _arg(lambda x, y: x > y),
    "cumsum": _cumulative(_plus),
    "cumprod": _cumulative(_times),
    "cummax": _cumulative(_largest),
    "cummin": _cumulative(_smallest),
    "sort": sort,
    "cholesky": cholesky,
    "triangular_solve": triangular_solve,
    "lu": lu,
}

# control flow: loops and branches carry separate numbers


def _carried(run: Callable[[list[Value]], Sequence[Value]], values: Sequence[Value]) -> Layout:
    """The layout of a loop's carry: split where the body keeps it split."""
    values = list(values)
    while True:
        layout = Layout(values, keep_known=False)
        found: list = []

        def trial(*flat: Any, layout: Layout = layout, found: list = found) -> list:
            found[:] = run(layout.values_of(flat))
            return [whole(x) for x in found]

        jax.eval_shape(trial, *layout.flat())
        again = [is_split(x) and not is_split(y) for x, y in zip(values, found, strict=True)]
        if not any(again):
            return layout
        values = [whole(x) if a else x for x, a in zip(values, again, strict=True)]


def while_loop(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    p = eqn.params
    a, b = p["cond_nconsts"], p["body_nconsts"]
    head, body, start = inputs[:a], inputs[a : a + b], inputs[a + b :]

    def run(values: Sequence[Value]) -> list[Value]:
        return evaluate(p["body_jaxpr"], [*body, *values], on_whole)

    layout = _carried(run, start)

    def going(flat: Any) -> Any:
        return whole(evaluate(p["cond_jaxpr"], [*head, *layout.values_of(flat)], on_whole)[0])

    return layout.values_of(lax.while_loop(going, lambda flat: layout.flat(run(layout.values_of(flat))), layout.flat()))


def scan(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    p = eqn.params
    a, count = scan_counts(p)
    fixed, start, sequences = inputs[:a], inputs[a : a + count], inputs[a + count :]

    def run(values: Sequence[Value], slices: Sequence[Any]) -> list[Value]:
        return evaluate(p["jaxpr"], [*fixed, *values, *map(split, slices)], on_whole)

    if p["length"] == 1:
        found = run(start, [x[0] for x in sequences])
        rows = [objects((1, *x.shape), x.flat) if is_split(x) else split(x[None]) for x in found[count:]]
        return [*found[:count], *rows]
    if PLAIN.get() and all(map(is_split, sequences)):
        # the entries of a slice, each from its own sequence
        return _scan_of(eqn, start, [whole(x[(slice(None), *i)]) for x in sequences for i in np.ndindex(x.shape[1:])],
                        lambda values, entries: run(values, _slices(sequences, entries)))  # fmt: skip
    return _scan_of(eqn, start, [whole(x) for x in sequences], run)


def _slices(sequences: Sequence[Value], entries: Iterable) -> list[Value]:
    """Slices of sequences of separate numbers from all their entries."""
    entries = iter(entries)
    return [objects(x.shape[1:], [next(entries) for _ in range(math.prod(x.shape[1:]))]) for x in sequences]


def _scan_of(eqn: Any, start: Sequence[Value], sequences: list, run: Callable) -> list[Value]:
    """The loop over sequences of which ``run(state, slices)`` takes the slices."""
    p, count = eqn.params, len(start)
    slices = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in sequences]
    kept = Layout.of(p["jaxpr"].jaxpr.outvars[count:])

    def probe(values: Sequence[Value]) -> list[Value]:
        # slices as zeros: only the layout is wanted
        return run(values, [jnp.zeros(x.shape, x.dtype) for x in slices])[:count]

    layout = _carried(probe, start)

    def body(flat: Sequence[Any], slices: Sequence[Any]) -> tuple[list, list]:
        found = run(layout.values_of(flat), slices)
        return layout.flat(found[:count]), kept.flat(found[count:])

    carry, rows = lax.scan(body, layout.flat(), sequences, length=p["length"], reverse=p["reverse"], unroll=p["unroll"])
    stacked: list
    stacked, entries = [], iter(rows)
    for x in kept.values:
        if is_split(x):
            parts = [next(entries) for _ in range(x.size)]
            stacked.append(
                jnp.stack(parts, -1).reshape(p["length"], *x.shape) if parts else jnp.zeros((p["length"], *x.shape))
            )
        else:
            stacked.append(next(entries))
    return [*layout.values_of(carry), *map(split, stacked)]


def cond(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    branches = eqn.params["branches"]
    which, *operands = inputs
    index = whole(which)
    if known(which.item() if is_split(which) else None):
        return evaluate(branches[int(np.clip(which.item(), 0, len(branches) - 1))], operands, on_whole)
    layout = Layout.of(eqn.outvars)
    flat = lax.switch(index, [lambda j=jaxpr: layout.flat(evaluate(j, operands, on_whole)) for jaxpr in branches])
    return layout.values_of(flat)


def checkpoint(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    layout, out, p = Layout(inputs), Layout.of(eqn.outvars), eqn.params

    def run(*flat: Any) -> list:
        return out.flat(evaluate(as_closed(p["jaxpr"]), layout.values_of(flat), on_whole))

    return out.values_of(jax.checkpoint(run, prevent_cse=p["prevent_cse"], policy=p["policy"])(*layout.flat()))


def _called(eqn: Any) -> ClosedJaxpr:
    """What a function with a derivative of its own computes; newer versions of jax give `lax.custom_root` as an object."""
    if "call_jaxpr" in eqn.params:
        return eqn.params["call_jaxpr"]
    primitive = eqn.params["_prim"]

    def flat(*leaves: Any) -> list:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, leaves)))

    return jax.make_jaxpr(flat)(*(v.aval for v in eqn.invars))


def custom_jvp(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    """A function with a derivative of its own keeps it: the rule is traced in its turn."""
    layout, out = Layout(inputs), Layout.of(eqn.outvars)
    called = _called(eqn)
    avals = [v.aval for v in eqn.invars]
    real = [jnp.issubdtype(a.dtype, jnp.floating) for a in avals]
    real_out = [jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars]

    @jax.custom_jvp
    def function(*flat: Any) -> list:
        return out.flat(evaluate(called, layout.values_of(flat), on_whole))

    def rule(values: Sequence[Any], changes: Sequence[Any]) -> tuple[list, list]:
        """Outputs and tangents of the primitive, those of real numbers only."""
        entries = iter(changes)
        changes = [next(entries) if r else np.zeros(a.shape, float0) for a, r in zip(avals, real, strict=True)]
        found, change = jax.jvp(lambda *x: bind(eqn, x), values, changes)
        return found, [x for x, r in zip(change, real_out, strict=True) if r]

    @partial(function.defjvp, symbolic_zeros=True)
    def _(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list, list]:
        def tangent(t: Any) -> Any:
            zero = isinstance(t, jax.custom_derivatives.SymbolicZero)
            return np.zeros(t.shape, t.dtype if t.dtype != float0 else float)[()] if zero else t

        # a known number has no tangent, and neither has what is not varied
        entries: Any = iter(map(tangent, tangents))
        changes: list = []
        for mine, a in zip(layout.values, avals, strict=True):
            if is_split(mine):
                none = np.zeros((), a.dtype)[()]
                changes.append(objects(mine.shape, [none if known(x) else next(entries) for x in mine.flat]))
            else:
                changes.append(jnp.asarray(next(entries)))
        closed = jax.make_jaxpr(rule)(avals, [a for a, r in zip(avals, real, strict=True) if r])
        changes = [x for x, r in zip(changes, real, strict=True) if r]
        found = evaluate(closed, [*layout.values_of(primals), *changes], on_whole)
        found, entries = found[: len(real_out)], iter(found[len(real_out) :])
        changes = [next(entries) if r else x for x, r in zip(found, real_out, strict=True)]
        none_at = [
            not r for x, r in zip(out.values, real_out, strict=True) for _ in range(x.size if is_split(x) else 1)
        ]
        flat = [np.zeros(np.shape(x), float0) if n else x for x, n in zip(out.flat(changes), none_at, strict=True)]
        return out.flat(found), flat

    return out.values_of(function(*layout.flat()))


def linear_solve(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    """A linear solve with its own derivative and transpose, for separate numbers."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    ends = np.cumsum(lengths)
    parts = [inputs[a:b] for a, b in zip([0, *ends], [*ends, None], strict=True)]
    matvec, _, solve, transpose_solve, right = parts
    if len(right) != len(eqn.outvars):  # auxiliary outputs
        return [split(x) for x in bind(eqn, [whole(x) for x in inputs])]
    layout = Layout(right, keep_known=False)

    def run(jaxpr: ClosedJaxpr, constants: Sequence[Value]) -> Callable:
        return lambda _, flat: layout.flat(evaluate(jaxpr, [*constants, *layout.values_of(flat)], on_whole))

    forward = run(jaxprs.matvec, matvec)
    backward = None if jaxprs.transpose_solve is None else run(jaxprs.transpose_solve, transpose_solve)
    flat = lax.custom_linear_solve(partial(forward, None), layout.flat(), run(jaxprs.solve, solve), backward)
    return layout.values_of(flat)


def custom_vmap(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    """The control flow of `lanes`."""
    if not hasattr(eqn.params["rule"], "few"):
        return [split(x) for x in bind(eqn, [whole(x) for x in inputs])]
    constants, (pending, value, operands) = jax.tree.unflatten(eqn.params["in_tree"], range(len(inputs)))
    of = lambda tree: [inputs[i] for i in jax.tree.leaves(tree)]
    layout, given = Layout(of(value), keep_known=False), Layout(of(operands))
    always = objects((), [np.True_])

    def work(value: Sequence[Any], operands: Sequence[Any]) -> list:
        values = [*of(constants), always, *layout.values_of(value), *given.values_of(operands)]
        return layout.flat(evaluate(eqn.params["call"], values, on_whole))

    return layout.values_of(few(work, whole(inputs[pending]), layout.flat(), given.flat()))


def few_linear_call(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    """The derivative of that."""
    p = eqn.params
    if p["batches"] or p["transposed"]:
        return [split(x) for x in bind(eqn, [whole(x) for x in inputs])]
    pending, *operands = inputs
    fixed, varied = operands[: p["fixed"]], operands[p["fixed"] :]
    given, change, out = Layout(fixed), Layout(varied), Layout.of(eqn.outvars)
    count = len(given.flat())

    def separate(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        def run(*flat: Any) -> list:
            values = [*given.values_of(flat[:count]), *change.values_of(flat[count:])]
            return out.flat(evaluate(jaxpr, values, on_whole))

        return jax.make_jaxpr(run)(*given.flat(), *change.flat())

    calm, whole_ = separate(p["calm"]), separate(p["whole"])
    return out.values_of(few_linear(calm, whole_, whole(pending), given.flat(), change.flat()))


def streaming(eqn: Any, inputs: Sequence[Value], on_whole: Callable[[str], None]) -> list[Value]:
    """The same loop over separate numbers."""
    jaxpr, consts = eqn.params["jaxpr"], len(eqn.params["jaxpr"].constvars)
    carry, out = Layout(inputs[consts:], keep_known=False), Layout.of(eqn.outvars)
    given = jaxpr.invars[len(inputs) - consts :]
    start = carry.flat()

    def body(flat: Sequence, turn: Sequence) -> list:
        values = [*carry.values_of(flat), *map(split, turn)]
        return out.flat(evaluate(ClosedJaxpr(jaxpr, inputs[:consts]), values, on_whole))

    closed = jax.make_jaxpr(body)(start, [jax.ShapeDtypeStruct((), v.aval.dtype) for v in given])
    return out.values_of(stream_p.bind(*closed.consts, *start, jaxpr=closed.jaxpr, carried=len(start)))


CONTROL: dict[str, Callable] = {
    "stream": streaming,
    "few_linear": few_linear_call,
    "custom_vmap_call": custom_vmap,
    "while": while_loop,
    "scan": scan,
    "cond": cond,
    "checkpoint": checkpoint,
    "remat2": checkpoint,
    "remat": checkpoint,
    "custom_jvp_call": custom_jvp,
    "call_hi_primitive": custom_jvp,
    "custom_linear_solve": linear_solve,
}
