"""What a program of numbers is given: the inputs of a function of one lane, and the arrays that it closes over."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..checks import is_traced
from ..jaxprs import closed_over


def inputs(closed: Any) -> tuple[list, list]:
    """The variables of a jaxpr that are inputs of its program, and the values of those that it, or a function called in it, closes over.

    Whole numbers, which may be indices, are part of the program.
    """
    given = {v: x for v, x in closed_over(closed).items() if _is_given(x)}
    return [*closed.jaxpr.invars, *given], [*given.values()]


def _is_given(constant: Any) -> bool:
    return is_traced(constant) or jnp.issubdtype(constant.dtype, jnp.inexact)
