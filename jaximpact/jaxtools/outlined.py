"""Functions that a step asks for many times: jax traces, differentiates and batches them once, and native code has one of each, which it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

SELDOM = "seldom_"
PREFIX = "outlined_"  # of the names of such calls, which derivatives and batches of them keep


def outlined(function: Callable) -> Callable:
    """A function of pytrees of arrays as one that is traced once for their shapes, see above."""

    return _named_call(PREFIX, function)


def seldom(function: Callable) -> Callable:
    """A function of pytrees of arrays that runs once in a motion: native code of a single motion is then short rather than fast."""
    return _named_call(SELDOM, function)


def _named_call(prefix: str, function: Callable) -> Callable:
    def call(*operands: Any) -> Any:
        return function(*operands)

    call.__name__ = call.__qualname__ = prefix + function.__name__
    return jax.jit(call)


def is_outlined(eqn: Any) -> bool:
    """Whether an equation of a jaxpr calls such a function, or a derivative of one."""
    return str(eqn.params.get("name", "")).startswith(PREFIX)


def is_seldom(eqn: Any) -> bool:
    """The same of one that runs once."""
    return str(eqn.params.get("name", "")).startswith(SELDOM)
