"""Marks on functions for native code: `outlined` ones become one function with many calls, code of `cold` ones is
short rather than fast."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

import jax

from .argument_checks import is_traced
from .jaxpr_types import Equation
from .shapes import PyTree

COLD = "cold_"
PREFIX = "outlined_"  # of the names of such calls, which derivatives and batches of them keep


def outlined(function: Callable, static: tuple[int, ...] = ()) -> Callable:
    """Wraps a function of pytrees of arrays that a step calls many times: native code then has it once,
    as a function that is called.

    jax traces, differentiates and batches it once for each combination of shapes,
    and of the operands at the positions ``static``.
    """

    return _named_call(PREFIX, function, static)


# results of `outlined` by function, for `call_outlined`
_known: WeakKeyDictionary[Callable, Callable] = WeakKeyDictionary()


def call_outlined(function: Callable, *operands: object) -> PyTree:
    """Returns ``function(*operands)`` of a function that a user states; of traced operands by its `outlined` form,
    the same one at each call.

    A call that needs no program, or of an object to which no weak reference can be had, is the function's own.
    """
    if not is_traced(operands):
        return function(*operands)
    try:
        if function not in _known:
            of = ref(function)  # what jax keeps of the function goes with it

            def stated(*operands: object) -> PyTree:
                return of()(*operands)  # type: ignore[misc]

            _known[function] = outlined(stated)
    except TypeError:
        return function(*operands)
    return _known[function](*operands)


def cold(function: Callable) -> Callable:
    """Wraps a function of pytrees of arrays that runs seldom, such as once in a motion.

    Native code of a single motion keeps its code short rather than fast.
    """
    return _named_call(COLD, function)


def _named_call(prefix: str, function: Callable, static: tuple[int, ...] = ()) -> Callable:
    def call(*operands: object) -> PyTree:
        return function(*operands)

    call.__name__ = call.__qualname__ = prefix + getattr(function, "__name__", "part")
    return jax.jit(call, static_argnums=static)


def is_outlined(eqn: Equation) -> bool:
    """Whether an equation of a jaxpr calls an `outlined` function, or a derivative of one."""
    return str(eqn.params.get("name", "")).startswith(PREFIX)


def is_cold(eqn: Equation) -> bool:
    """Whether an equation of a jaxpr calls a `cold` function, or a derivative of one."""
    return str(eqn.params.get("name", "")).startswith(COLD)
