"""What a function does to one lane, as a jaxpr of numbers: what the kernel of a GPU and the native code of a CPU begin with."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr

from .scalarise import PLAIN, Layout, evaluate, is_split
from .small import Unsupported


def is_given(constant: Any) -> bool:
    """Whether what a function closes over is an input of its program; whole numbers, which may be indices, are part of it."""
    return isinstance(constant, jax.core.Tracer) or jnp.issubdtype(constant.dtype, jnp.inexact)


def inputs(closed: ClosedJaxpr) -> tuple[list, list]:
    """The variables of a jaxpr that are inputs of its program of numbers, and the values of those that it closes over."""
    given = [(v, x) for v, x in zip(closed.jaxpr.constvars, closed.consts, strict=True) if is_given(x)]
    return [*closed.jaxpr.invars, *(v for v, _ in given)], [x for _, x in given]


def numbers(closed: ClosedJaxpr, library: bool = False) -> ClosedJaxpr:
    """A jaxpr of arrays as one of numbers: its `inputs`, then its outputs, entry by entry.

    ``library``: leave sines as they are, instead of writing them as arithmetic.

    Raises:
        Unsupported: something in it has to stay an array.
    """
    jaxpr = closed.jaxpr
    variables, _ = inputs(closed)
    given, out = Layout.of(variables), Layout.of(jaxpr.outvars)
    for layout in (given, out):
        for x in layout.values:
            if not is_split(x):
                raise Unsupported(f"an array of shape {x.shape}")

    def refuse(name: str) -> None:
        raise Unsupported(name)

    def run(*flat: Array) -> list:
        values = given.values_of(flat)
        count = len(jaxpr.invars)
        closed_over = iter(values[count:])
        constants = [next(closed_over) if is_given(x) else x for x in closed.consts]
        return out.flat(evaluate(ClosedJaxpr(jaxpr, constants), values[:count], refuse))

    scalars = [jax.ShapeDtypeStruct((), v.aval.dtype) for v in variables for _ in range(math.prod(v.aval.shape))]
    token = PLAIN.set(library)
    try:
        return jax.make_jaxpr(run)(*scalars)
    finally:
        PLAIN.reset(token)
