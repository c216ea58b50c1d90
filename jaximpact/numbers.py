"""What a function does to one lane, as a jaxpr of numbers: what the kernel of a GPU and the native code of a CPU begin with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

from .scalarise import PLAIN, Layout, evaluate, is_split, scan_counts


class Unsupported(Exception):
    """A primitive, or an array, that has no rule where lanes are executed together; the message names it."""


def carried_axes(axes: Any, operands: Any) -> Any:
    """Whether each leaf of the operands carries a lane axis, from a prefix of them with 0 and None."""
    none = lambda x: x is None
    return jax.tree.map(lambda axis, x: jax.tree.map(lambda _: axis is not None, x), axes, operands, is_leaf=none)


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


IDENTITIES = {"guard", "stop_gradient", "copy", "copy_p", "name", "optimization_barrier"}
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "eval_jaxpr": "call_jaxpr",
         "custom_jvp_call": "call_jaxpr", "custom_vmap_call": "call", "checkpoint": "jaxpr", "remat2": "jaxpr"}  # fmt: skip


def size(jaxpr: Any) -> int:
    return sum(1 + sum(size(part) for part in inner(eqn)) for eqn in jaxpr.eqns)


def inner(eqn: Any) -> list:
    """The jaxprs in an equation."""
    values = [v for value in eqn.params.values() for v in (value if isinstance(value, tuple | list) else [value])]
    return [getattr(v, "jaxpr", v) for v in values if hasattr(v, "eqns") or hasattr(v, "jaxpr")]


# which numbers differ between the lanes of a block


def varying(eqn: Any, given: Sequence[bool]) -> list[bool]:
    """Of the outputs of an equation, if those given do."""
    name, p = eqn.primitive.name, eqn.params
    if name == "while":
        a, b = p["cond_nconsts"], p["body_nconsts"]
        flags = list(given[a + b :])
        while True:
            new = _of(p["body_jaxpr"], [*given[a : a + b], *flags])
            if _of(p["cond_jaxpr"], [*given[:a], *flags])[0]:
                new = [True] * len(flags)
            if all(x or not y for x, y in zip(flags, new, strict=True)):
                return flags
            flags = [x or y for x, y in zip(flags, new, strict=True)]
    if name == "scan":
        count, state = scan_counts(p)
        flags, sequences = list(given[count : count + state]), given[count + state :]
        while True:
            new = _of(p["jaxpr"], [*given[:count], *flags, *sequences])[:state]
            if all(x or not y for x, y in zip(flags, new, strict=True)):
                return flags
            flags = [x or y for x, y in zip(flags, new, strict=True)]
    if name == "stream":
        count = len(p["jaxpr"].constvars)
        flags, more = list(given[count:]), len(p["jaxpr"].invars) - (len(given) - count)
        while True:
            new = _of(p["jaxpr"], [*flags, *[False] * more], given[:count])
            if all(x or not y for x, y in zip(flags, new, strict=False)):
                return [*flags, *new[len(flags) :]]
            flags = [x or y for x, y in zip(flags, new, strict=False)]
    if name == "cond":
        if given[0]:
            return [True] * len(eqn.outvars)
        return [any(x) for x in zip(*(_of(branch, given[1:]) for branch in p["branches"]), strict=True)]
    if name in CALLS:
        return _of(p[CALLS[name]], given)
    return [any(given)] * len(eqn.outvars)


def _of(jaxpr: Any, given: Sequence[bool], constants: Sequence[bool] = ()) -> list[bool]:
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    flags = (
        dict.fromkeys(jaxpr.constvars, False)
        | dict(zip(jaxpr.constvars, constants, strict=False))
        | dict(zip(jaxpr.invars, given, strict=True))
    )
    read = lambda v: False if isinstance(v, Literal) else flags[v]
    for eqn in jaxpr.eqns:
        flags.update(zip(eqn.outvars, varying(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]
