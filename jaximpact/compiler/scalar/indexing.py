"""Rules for data movement, by numpy on object arrays of scalars; reading at an index that is not constant becomes a
selection among all entries.

In all signatures ``m`` is the interpreter (`ScalarInterpreter`), and ``p`` are the parameters of the equation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from ...jaxtools.jaxpr_types import Equation, Params
from .values import Scalar, Value, is_constant, object_array, scalar_array, split_constant

if TYPE_CHECKING:
    from .interpreter import ScalarInterpreter


def _move_rule(move: Callable[[Params, np.ndarray], np.ndarray]) -> Callable:
    """Returns the rule of a primitive with one operand, which calls ``move(params, array)``."""
    return lambda m, eqn, inputs: [move(eqn.params, inputs[0])]


def _broadcast(p: Params, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(p["shape"])
    for axis, n in zip(p["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = n
    return np.broadcast_to(x.reshape(shape), p["shape"])


def _slice(p: Params, x: np.ndarray) -> np.ndarray:
    steps = p["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, p["start_indices"], p["limit_indices"], steps))]


def _split(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    sizes, axis = eqn.params["sizes"], eqn.params["axis"]
    return list(np.split(inputs[0], np.cumsum(sizes)[:-1], axis))


def _pad(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    x, value = inputs
    for axis, (low, high, inside) in enumerate(eqn.params["padding_config"]):
        x = np.moveaxis(x, axis, 0)
        padded = object_array(
            ((len(x) - 1) * (inside + 1) + 1 if len(x) else 0, *x.shape[1:]), itertools.repeat(value.item())
        )
        padded[:: inside + 1] = x
        ends = [object_array((max(n, 0), *x.shape[1:]), itertools.repeat(value.item())) for n in (low, high)]
        # negative padding removes entries
        padded = padded[max(-low, 0) : len(padded) - max(-high, 0)]
        x = np.moveaxis(np.concatenate([ends[0], padded, ends[1]]), 0, axis)
    return [x]


def _empty(m: ScalarInterpreter, eqn: Equation, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Rule for uninitialised arrays, which are filled with zeros."""
    a = eqn.outvars[0].aval
    return [split_constant(np.zeros(a.shape, a.dtype))]


def _iota(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    p = eqn.params
    shape, axis = p["shape"], p["dimension"]
    along = np.arange(shape[axis]).astype(p["dtype"]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return [split_constant(np.broadcast_to(along, shape))]


# slices with start indices that may be no constants


def slice_at(m: ScalarInterpreter, x: np.ndarray, starts: Sequence[Scalar], sizes: Sequence[int]) -> np.ndarray:
    """Returns the slice of x with ``sizes`` entries along its axes from ``starts``;
    these are clamped so that the slice lies within x."""
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        last = x.shape[axis] - size
        part = lambda at, x=x, axis=axis, size=size: np.take(x, range(at, at + size), axis)
        if is_constant(start):
            x = part(min(max(int(start), 0), last))
            continue
        found = part(0)
        for at in range(1, last + 1):
            found = m.elementwise("select_n", scalar_array(m("ge", start, start.dtype.type(at))), found, part(at))
        x = found
    return x


def _dynamic_slice(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    x, *starts = inputs
    return [slice_at(m, x, [s.item() for s in starts], eqn.params["slice_sizes"])]


def _dynamic_update_slice(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    x, update, *starts = inputs
    last = [n - size for n, size in zip(x.shape, update.shape, strict=True)]
    starts = [clip_start(m, s.item(), n) for s, n in zip(starts, last, strict=True)]
    return [update_window(m, x, starts, update, lambda old, new: new)]


def clip_start(m: ScalarInterpreter, start: Scalar, last: int) -> Scalar:
    """Returns a start index clamped to 0 ... ``last``."""
    return m("clamp", start.dtype.type(0), start, start.dtype.type(last))


def update_window(
    m: ScalarInterpreter, x: np.ndarray, starts: Sequence[Scalar], window: np.ndarray, combine: Callable
) -> np.ndarray:
    """Returns a copy of x with ``combine(old, new)`` in the window that begins at ``starts``,
    where old is in x and new in ``window``.

    A window that is not wholly inside x is skipped.
    """
    found = x.copy()
    valid = [range(n - size + 1) for n, size in zip(x.shape, window.shape, strict=True)]
    # per axis the positions that the start may have: one if it is a constant, none if that is outside
    positions: list[Sequence[int]] = [
        ([int(s)] if s in r else []) if is_constant(s) else r for s, r in zip(starts, valid, strict=True)
    ]
    for where in itertools.product(*positions):
        here = [m("eq", s, s.dtype.type(at)) for s, at in zip(starts, where, strict=True) if not is_constant(s)]
        place = tuple(slice(at, at + size) for at, size in zip(where, window.shape, strict=True))
        new = combine(found[place], window)
        found[place] = (
            m.elementwise("select_n", scalar_array(reduce(partial(m, "and"), here)), found[place], new) if here else new
        )
    return found


def _window_starts(indices: np.ndarray, axes: Sequence[int], batch: Sequence[tuple[int, int]], rank: int) -> Iterator:
    """Yields, for each index vector of a gather or scatter, its position in ``indices`` and the
    start of its window in the array.

    ``axes``: the array axis that each entry of an index vector is for; ``batch``: pairs of batch axes, (of the array,
    of ``indices``); ``rank``: number of axes of the array.
    """
    for where in np.ndindex(indices.shape[:-1]):
        starts: list[Scalar] = [np.int32(0)] * rank
        for axis, i in zip(axes, indices[where], strict=True):
            starts[axis] = i
        for axis, place in batch:
            starts[axis] = np.int32(where[place])
        yield where, starts


def _has_mode(eqn: Equation, *names: str) -> bool:
    return any(name in str(eqn.params["mode"]).upper() for name in names)


def _gather(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
    x, indices = inputs
    n, sizes, dtype = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], eqn.outvars[0].aval.dtype
    gone = (*n.collapsed_slice_dims, *n.operand_batching_dims)
    kept = [size for i, size in enumerate(sizes) if i not in gone]
    inside = _has_mode(eqn, "CLIP", "PROMISE")
    fill = eqn.params["fill_value"]
    fill = split_constant(dtype.type((np.nan if dtype.kind == "f" else 0) if fill is None else fill))
    last = [count - size for count, size in zip(x.shape, sizes, strict=True)]
    lead = indices.shape[:-1]
    found = np.empty((*lead, *kept), object)
    batch = list(zip(n.operand_batching_dims, n.start_indices_batching_dims, strict=True))
    for where, starts in _window_starts(indices, n.start_index_map, batch, x.ndim):
        window = slice_at(m, x, starts, sizes).reshape(kept)
        for start, most in zip(starts, last, strict=True):
            if not inside:
                there = m("and", m("ge", start, start.dtype.type(0)), m("le", start, start.dtype.type(most)))
                window = m.elementwise("select_n", scalar_array(there), fill, window)
        found[(*where, ...)] = window
    rest = [i for i in range(found.ndim) if i not in n.offset_dims]
    order = np.argsort([*rest, *n.offset_dims])
    return [found.transpose(order)]


def replaces_entries(p: Params) -> bool:
    """Whether a scatter overwrites entries, rather than combining old and new ones by its ``update_jaxpr``."""
    jaxpr = p["update_jaxpr"]
    return jaxpr is None or (not jaxpr.eqns and list(jaxpr.outvars) == list(jaxpr.invars[1:]))


def combine_entry(m: ScalarInterpreter, p: Params, old: Scalar, new: Scalar) -> Scalar:
    """Returns the entry that a scatter with the parameters p computes by its ``update_jaxpr``
    from the old and the new one."""
    return m.evaluate(
        p["update_jaxpr"], [split_constant(x) for x in p["update_consts"]], [scalar_array(old), scalar_array(new)]
    )[0].item()


def _scatter_rule(name: str) -> Callable:
    """Returns the rule for scatters (x.at[indices].set, .add, ...) that combine by the primitive ``name``,
    or overwrite if it is empty.

    Windows that are not wholly inside the array are skipped or, in mode CLIP, moved inside.
    """

    def rule(m: ScalarInterpreter, eqn: Equation, inputs: Sequence[Value]) -> list[Value]:
        x, indices, updates = inputs
        n = eqn.params["dimension_numbers"]
        gone = (*n.inserted_window_dims, *n.operand_batching_dims)
        lead = [i for i in range(updates.ndim) if i not in n.update_window_dims]
        updates = updates.transpose([*lead, *n.update_window_dims])
        sizes = iter(updates.shape[len(lead) :])
        shape = [1 if i in gone else next(sizes) for i in range(x.ndim)]
        combine = (lambda old, new: m.elementwise(name, old, new)) if name else lambda old, new: new
        if not name and not replaces_entries(eqn.params):
            pairs = lambda old, new: zip(old.flat, new.flat, strict=True)
            combine = lambda old, new: object_array(
                old.shape, (combine_entry(m, eqn.params, *x) for x in pairs(old, new))
            )
        batch = list(zip(n.operand_batching_dims, n.scatter_indices_batching_dims, strict=True))
        for where, starts in _window_starts(indices, n.scatter_dims_to_operand_dims, batch, x.ndim):
            if _has_mode(eqn, "CLIP"):
                starts = [clip_start(m, s, count - size) for s, count, size in zip(starts, x.shape, shape, strict=True)]
            x = update_window(m, x, starts, updates[(*where, ...)].reshape(shape), combine)
        return [x]

    return rule


MOVES: dict[str, Callable] = {
    "reshape": lambda p, x: x.reshape(p["new_sizes"]),
    "transpose": lambda p, x: x.transpose(p["permutation"]),
    "broadcast_in_dim": _broadcast,
    "tile": lambda p, x: np.tile(x, p["reps"]),
    "slice": _slice,
    "squeeze": lambda p, x: np.squeeze(x, p["dimensions"]),
    "expand_dims": lambda p, x: np.expand_dims(x, p["dimensions"]),
    "rev": lambda p, x: np.flip(x, p["dimensions"]),
    "reshard": lambda p, x: x,
}
RULES: dict[str, Callable] = {name: _move_rule(move) for name, move in MOVES.items()} | {
    "split": _split,
    "unstack": lambda m, eqn, inputs: [np.take(inputs[0], [i], eqn.params["axis"]).reshape(v.aval.shape) for i,
    v in enumerate(eqn.outvars)], "concatenate": lambda m, eqn,
    inputs: [np.concatenate(inputs, eqn.params["dimension"])],
    "stack": lambda m, eqn, inputs: [np.stack(inputs, eqn.params["axis"])],
    "pad": _pad,
    "iota": _iota,
    **dict.fromkeys(("empty", "empty2"), _empty),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter_rule(""),
} | {f"scatter{mark}{name}": _scatter_rule(name) for name in ("add", "sub", "mul", "min", "max")
for mark in "-_"}  # fmt: skip
