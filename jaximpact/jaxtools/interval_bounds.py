"""Bounds on the change of a function while its argument varies within a box, from rules for its primitives.

For x + d with |d| <= b, entry by entry: |f(x + d) - f(x)| <= B(x, b). Sines move no faster than their arguments,
products by
|x| b_y + |y| b_x + b_x b_y, and so on. A derivative at x would not bound the change over the whole box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .jaxpr_tools import (
    CALLS,
    IDENTITIES,
    as_closed,
    called_jaxpr,
    evaluate_equation,
    needed_equations,
    nested_jaxprs,
    reader,
)
from .jaxpr_types import AnyJaxpr, Equation


class Unbounded(Exception):
    """Error for an operation without a rule, whose name is the message."""


# operations that cost more to evaluate again than to bound
DEAR = {"sin", "cos", "tan", "tanh", "atan", "exp", "log", "pow", "erf", "asin", "acos", "cosh", "sinh"}


def is_expensive(function: Callable[[Array], Array], x: Array) -> bool:
    """Tests whether a function contains operations, such as sines, that cost more to evaluate again than
    to bound by `bound_change`."""
    return _any_dear(jax.make_jaxpr(function)(x).jaxpr)


def _any_dear(jaxpr: AnyJaxpr) -> bool:
    return any(eqn.primitive.name in DEAR or any(map(_any_dear, nested_jaxprs(eqn))) for eqn in jaxpr.eqns)


def bound_change(function: Callable[[Array], Array], x: Array, b: Array) -> tuple[Array, Array]:
    """Returns f(x), and a bound on |f(x + d) - f(x)| for all |d| <= ``b``, entry by entry; both have the shape of f(x),
    ``b`` that of x.

    Raises:
        Unbounded: an operation of the function has no rule.
    """
    closed = jax.make_jaxpr(function)(x)
    ((found, change),) = _evaluate(closed.jaxpr, closed.consts, [(x, b)])
    return found, jnp.zeros_like(found) if change is None else change


Pair = tuple[Array, Any]  # a value, and the bound of its change; None: it is constant


def _evaluate(jaxpr: AnyJaxpr, constants: Sequence, pairs: Sequence[Pair]) -> list[Pair]:
    env: dict = {v: (x, None) for v, x in zip(jaxpr.constvars, constants, strict=True)}
    env |= dict(zip(jaxpr.invars, pairs, strict=True))
    read = reader(env, lambda v: (v.val, None))
    for eqn in needed_equations(jaxpr):
        env.update(zip(eqn.outvars, _apply(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _apply(eqn: Equation, pairs: list[Pair]) -> list[Pair]:
    name, values = eqn.primitive.name, [x for x, _ in pairs]
    if name in IDENTITIES:
        return pairs[: len(eqn.outvars)]
    if name in CALLS:
        called = as_closed(called_jaxpr(eqn))
        return _evaluate(called.jaxpr, called.consts, pairs)
    found = evaluate_equation(eqn, values)
    if all(b is None for _, b in pairs):
        return [(x, None) for x in found]
    if name in LINEAR and all(b is None for _, b in pairs[LINEAR[name] or len(pairs) :]):
        moves = [jnp.zeros_like(x) if b is None else b for x, b in pairs[: LINEAR[name] or len(pairs)]]
        changes = evaluate_equation(eqn, [*moves, *values[len(moves) :]])
        return list(zip(found, changes, strict=True))
    if name not in RULES or len(found) != 1:
        raise Unbounded(name)
    return [(found[0], RULES[name](eqn, found[0], *pairs))]


# linear operations, by the number of leading operands they are linear in; None: all
LINEAR: dict[str, int | None] = {
    **dict.fromkeys(("reshape", "broadcast_in_dim", "slice", "squeeze", "expand_dims", "transpose", "rev", "split",
    "unstack")), **dict.fromkeys(("concatenate", "stack", "reduce_sum", "cumsum", "copy", "reduce_precision", "tile")),
    **dict.fromkeys(("gather", "dynamic_slice"), 1),
}  # fmt: skip

Rule = Callable[..., Array]


def _sum(eqn: Equation, found: Array, x: Pair, y: Pair) -> Array:
    parts = [jnp.broadcast_to(b, found.shape) for _, b in (x, y) if b is not None]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _product(times: Callable, x: Pair, y: Pair) -> Array:
    (a, b), (c, d) = x, y
    parts = [times(jnp.abs(a), d)] if d is not None else []
    parts += [times(b, jnp.abs(c) if d is None else jnp.abs(c) + d)] if b is not None else []
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _mul(eqn: Equation, found: Array, x: Pair, y: Pair) -> Array:
    return jnp.broadcast_to(_product(lax.mul, x, y), found.shape)


def _dot(eqn: Equation, found: Array, x: Pair, y: Pair) -> Array:
    return _product(lambda a, b: evaluate_equation(eqn, [a, b])[0], x, y)


def _div(eqn: Equation, found: Array, x: Pair, y: Pair) -> Array:
    if y[1] is not None:
        raise Unbounded("div by what moves")
    return x[1] / jnp.abs(y[0])


def _power(eqn: Equation, found: Array, x: Pair) -> Array:
    n = eqn.params["y"]
    if n < 1:
        raise Unbounded("integer_pow of a negative exponent")
    size = jnp.abs(x[0])
    return (size + x[1]) ** n - size**n


def _select(eqn: Equation, found: Array, which: Pair, *cases: Pair) -> Array:
    if which[1] is not None:
        raise Unbounded("select_n by what moves")
    return evaluate_equation(eqn, [which[0], *(jnp.zeros_like(x) if b is None else b for x, b in cases)])[0]


def _extreme(eqn: Equation, found: Array, x: Pair, y: Pair) -> Array:
    parts = [jnp.broadcast_to(b, found.shape) for _, b in (x, y) if b is not None]
    return parts[0] if len(parts) == 1 else jnp.maximum(*parts)


RULES: dict[str, Rule] = {
    "add": _sum, "add_any": _sum, "sub": _sum, "mul": _mul, "dot_general": _dot, "div": _div, "integer_pow": _power,
    "neg": lambda eqn, found, x: x[1], "abs": lambda eqn, found, x: x[1], "max": _extreme, "min": _extreme,
    "select_n": _select, "square": lambda eqn, found, x: (2 * jnp.abs(x[0]) + x[1]) * x[1],
    **dict.fromkeys(("sin", "cos", "tanh", "atan"), lambda eqn, found, x: x[1]),
    # |sqrt(x + d) - sqrt(x)| = |d| / (sqrt(x + d) + sqrt(x))
    "sqrt": lambda eqn, found, x: x[1] / found,
}  # fmt: skip
