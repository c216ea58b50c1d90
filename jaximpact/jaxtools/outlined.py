"""Marks on functions for native code: `outlined` ones become one function with many calls, code of `seldom` ones is short rather than fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

SELDOM = "seldom_"
PREFIX = "outlined_"  # of the names of such calls, which derivatives and batches of them keep


def outlined(function: Callable) -> Callable:
    """Wraps a function of pytrees of arrays that a step calls many times: native code then has it once, as a function that is called.

    jax traces, differentiates and batches it once for each combination of shapes.
    """

    return _named_call(PREFIX, function)


def seldom(function: Callable) -> Callable:
    """Wraps a function of pytrees of arrays that runs seldom, such as once in a motion.

    Native code of a single motion keeps its code short rather than fast.
    """
    return _named_call(SELDOM, function)


def _named_call(prefix: str, function: Callable) -> Callable:
    def call(*operands: Any) -> Any:
        return function(*operands)

    call.__name__ = call.__qualname__ = prefix + getattr(function, "__name__", "part")
    return jax.jit(call)


def is_outlined(eqn: Any) -> bool:
    """Whether an equation of a jaxpr calls an `outlined` function, or a derivative of one."""
    return str(eqn.params.get("name", "")).startswith(PREFIX)


def is_seldom(eqn: Any) -> bool:
    """Whether an equation of a jaxpr calls a `seldom` function, or a derivative of one."""
    return str(eqn.params.get("name", "")).startswith(SELDOM)
