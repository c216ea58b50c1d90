"""Rules by which operations on known arrays are computed while a program is traced:
functions (equation, operands) -> result, or None.

``MOVED``: operations that only move entries, of whatever kind; ``FOLDED``: those of which jax, and a walk through rows,
make indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jax.typing import ArrayLike

from .jaxpr_types import Equation, Params


def _broadcast_known(eqn: Equation, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(eqn.params["shape"])
    for axis, n in zip(eqn.params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = n
    return np.broadcast_to(x.reshape(shape), eqn.params["shape"])


def _slice_known(eqn: Equation, x: np.ndarray) -> np.ndarray:
    p = eqn.params
    return x[tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or (1,) * x.ndim))]


def _gather_known(eqn: Equation, x: np.ndarray, places: np.ndarray) -> np.ndarray | None:
    return gather_known(eqn.params, x, places, eqn.outvars[0].aval.ndim)


def gather_known(params: Params, x: np.ndarray, places: np.ndarray, rank: int) -> np.ndarray | None:
    """Returns the result, with ``rank`` axes, of a gather from x that picks entries along some axes;
    None for any other gather.

    ``params``: the equation's parameters; ``places``: its indices.
    """
    if (picked := picked_axes(params, x.shape, places)) is None:
        return None
    n = params["dimension_numbers"]
    order = [*picked, *(i for i in range(x.ndim) if i not in picked)]
    found, count = x.transpose(order)[tuple(picked.values())], places.ndim - 1
    left = [i for i in range(x.ndim) if i not in n.collapsed_slice_dims]
    found = np.expand_dims(found, [count + k for k, i in enumerate(left) if i in picked])
    batch = [i for i in range(rank) if i not in n.offset_dims]
    return np.moveaxis(found, range(found.ndim), [*batch, *n.offset_dims])


def picked_axes(params: Params, shape: Sequence[int], places: ArrayLike) -> dict[int, np.ndarray] | None:
    """Returns the axes along which a gather from an array of this ``shape`` picks entries, as ``x[i, j]`` does, each
    with the places along it.

    Returns None if it is another kind of gather, or if some of the ``places`` do not exist.
    """
    n, sizes = params["dimension_numbers"], params["slice_sizes"]
    if n.operand_batching_dims:
        return None
    found = {}
    for k, axis in enumerate(n.start_index_map):
        along = np.asarray(places)[..., k]
        if axis not in n.collapsed_slice_dims and sizes[axis] == shape[axis] and not along.any():
            continue
        if sizes[axis] != 1 or not np.all((along >= 0) & (along < shape[axis])):
            return None
        found[axis] = along
    whole = all(size == shape[i] for i, size in enumerate(sizes) if i not in found)
    return found if found and whole else None


def _counts(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether x may be divided by y as `numpy` does, which rounds down: whole numbers that are not negative."""
    return x.dtype.kind in "iu" and bool(np.all(x >= 0) and np.all(y > 0))


_reshaped = lambda eqn, x: x.reshape(eqn.outvars[0].aval.shape)
MOVED: dict[str, Callable] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped), "copy": lambda eqn, x: x,
    "broadcast_in_dim": _broadcast_known, "slice": _slice_known, "gather": _gather_known,
    "transpose": lambda eqn, x: x.transpose(eqn.params["permutation"]), "rev": lambda eqn,
    x: np.flip(x, eqn.params["dimensions"]), "split": lambda eqn,
    x: np.split(x, np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"]), "concatenate": lambda eqn,
    *x: np.concatenate(x, eqn.params["dimension"]), "stack": lambda eqn, *x: np.stack(x, eqn.params["axis"]),
    "unstack": lambda eqn, x: list(np.moveaxis(x, eqn.params["axis"], 0)),
}  # fmt: skip
FOLDED: dict[str, Callable] = {
    **{name: lambda eqn, *x, of=of: of(*x) for name, of in {
        "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
        "ne": np.not_equal, "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
        "max": np.maximum, "min": np.minimum, "clamp": lambda low, x,
        high: np.minimum(np.maximum(x, low), high)}.items()},
    "div": lambda eqn, x, y: x // y if _counts(x, y) else None, "rem": lambda eqn, x, y: x % y if _counts(x, y)
    else None, "and": lambda eqn, x, y: x & y, "or": lambda eqn, x, y: x | y, "not": lambda eqn, x: ~x,
    "reduce_or": lambda eqn, x: np.any(x, axis=eqn.params["axes"]), "reduce_and": lambda eqn,
    x: np.all(x, axis=eqn.params["axes"]),
    "select_n": lambda eqn, which, *cases: np.where(which, cases[1], cases[0]) if which.dtype == bool
    and len(cases) == 2 else None, "convert_element_type": lambda eqn, x: x.astype(eqn.params["new_dtype"]),
    "iota": lambda eqn: np.broadcast_to(
        np.expand_dims(np.arange(eqn.params["shape"][eqn.params["dimension"]], dtype=eqn.params["dtype"]),
        [i for i in range(len(eqn.params["shape"])) if i != eqn.params["dimension"]]), eqn.params["shape"]),
}  # fmt: skip
