"""Constant folding, and algebraic simplification of operations with a constant 0, 1 or -1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...jaxtools.jaxpr_types import Params
from .values import Scalar, is_constant

if TYPE_CHECKING:
    from .interpreter import ScalarInterpreter

FOLDED: dict[str, Callable] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "neg": np.negative, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and,
    "mul": np.multiply, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "max": np.maximum,
    "min": np.minimum, "sqrt": np.sqrt, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "square": np.square,
    "sign": np.sign, "is_finite": np.isfinite, "clamp": lambda least, x, most: np.minimum(np.maximum(least, x), most),
    "copy": lambda x: x,
}  # fmt: skip


def fold(name: str, x: Sequence[Any], params: Params | None) -> Scalar | None:
    """Computes the result of the primitive ``name`` whose operands x are all constants;
    None if it has to be computed at run time.

    Whoever folds has turned off numpy's warnings of overflow and the like.
    """
    if name == "select_n":
        return x[1 + int(x[0])]
    if name == "convert_element_type" and params is not None:
        new = np.dtype(params["new_dtype"])
        # a float beyond the range of the integers: XLA clamps it, numpy's result is undefined
        truncates = x[0].dtype.kind == "f" and new.kind in "iu"
        return None if truncates else new.type(x[0])
    if name == "div" and x[0].dtype.kind == "f":
        return x[0] / x[1]
    if name == "rem" and x[0].dtype.kind in "iu" and x[1] > 0:
        return np.fmod(*x)
    return FOLDED[name](*x) if name in FOLDED else None


# rules m, operands -> simplified result, or None if the operation stays; m is the interpreter


def _is_value(x: Scalar, value: int) -> bool:
    return is_constant(x) and x == value


def _add(m: ScalarInterpreter, x: Scalar, y: Scalar) -> Scalar | None:
    return y if _is_value(x, 0) else x if _is_value(y, 0) else None


def _sub(m: ScalarInterpreter, x: Scalar, y: Scalar) -> Scalar | None:
    return m("neg", y) if _is_value(x, 0) else x if _is_value(y, 0) else None


def _mul(m: ScalarInterpreter, x: Scalar, y: Scalar) -> Scalar | None:
    if _is_value(x, 0) or _is_value(y, 1):
        return x
    if _is_value(y, 0) or _is_value(x, 1):
        return y
    return m("neg", y) if _is_value(x, -1) else m("neg", x) if _is_value(y, -1) else None


def _div(m: ScalarInterpreter, x: Scalar, y: Scalar) -> Scalar | None:
    return x if _is_value(x, 0) or _is_value(y, 1) else None


def _and(m: ScalarInterpreter, x: Scalar, y: Scalar) -> Scalar | None:
    if x.dtype != bool:
        return None
    return (y if x else x) if is_constant(x) else ((x if y else y) if is_constant(y) else None)


def _or(m: ScalarInterpreter, x: Scalar, y: Scalar) -> Scalar | None:
    if x.dtype != bool:
        return None
    return (x if x else y) if is_constant(x) else ((y if y else x) if is_constant(y) else None)


def _select(m: ScalarInterpreter, which: Scalar, *cases: Scalar) -> Scalar | None:
    if is_constant(which):
        return cases[min(max(int(which), 0), len(cases) - 1)]
    first = cases[0]
    return (
        first
        if all(x is first or (is_constant(x) and is_constant(first) and x.tobytes() == first.tobytes()) for x in cases)
        else None
    )


SIMPLIFIED: dict[str, Callable] = {
    "add": _add, "add_any": _add, "sub": _sub, "mul": _mul, "div": _div, "and": _and, "or": _or, "select_n": _select,
}  # fmt: skip
