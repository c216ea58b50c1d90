"""Functions that a step asks for many times: jax traces, differentiates and batches them once, and native code has one of each, which it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

PREFIX = "outlined_"  # of the names of such calls, which derivatives and batches of them keep


def outlined(function: Callable) -> Callable:
    """A function of pytrees of arrays as one that is traced once for their shapes, see above."""

    def call(*operands: Any) -> Any:
        return function(*operands)

    call.__name__ = call.__qualname__ = PREFIX + function.__name__
    return jax.jit(call)


def is_outlined(eqn: Any) -> bool:
    """Whether an equation of a jaxpr calls such a function, or a derivative of one."""
    return str(eqn.params.get("name", "")).startswith(PREFIX)
