"""Shapes and dtypes of users' functions, which are traced once for each shape of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from .trace_context import settings

_known: WeakKeyDictionary[Callable, dict] = WeakKeyDictionary()


def array(value: Any) -> jax.Array:
    """A function's return value as one array; TypeError for None."""
    if value is None:
        raise TypeError("it returns None: is a return missing?")
    return jnp.asarray(value)


def arrays(value: Any) -> Any:
    """A function's return value as a pytree of arrays."""
    return jax.tree.map(jnp.asarray, value)


def shape_of_result(read: Callable[[Any], Any], function: Callable, *operands: Any) -> Any:
    """Shapes and dtypes of ``read(function(*operands))``; ``read`` is `array`, `arrays`."""
    leaves, structure = jax.tree.flatten(operands)
    key = read, structure, tuple(map(kind, leaves)), settings()
    try:
        known = _known.setdefault(function, {})
    except TypeError:  # what has no hash, or cannot be referred to weakly
        known = {}
    if key not in known:
        known[key] = jax.eval_shape(lambda *xs: read(function(*xs)), *operands)
    return known[key]


def kind(x: Any, carried: bool = False) -> tuple:
    """Shape and dtype of an operand, without its lane axis if ``carried``: what its trace depends on besides `settings`."""
    if type(x) is np.ndarray:
        return x.shape[carried:], x.dtype
    aval = jax.typeof(x)
    return (aval.shape[1:], aval.dtype, aval.weak_type) if carried else (aval,)
