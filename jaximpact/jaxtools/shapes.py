"""Shapes and dtypes of the results of users' functions, traced once for each shape of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from .trace_context import trace_settings

T = TypeVar("T")
PyTree = Any  # arrays in containers, as `jax.tree` takes them


def as_array(value: ArrayLike | None) -> jax.Array:
    """Converts the return value of a user's function to an array; TypeError for None."""
    if value is None:
        raise TypeError("it returns None: is a return missing?")
    return jnp.asarray(value)


def as_array_tree(value: object) -> PyTree:
    """Converts the leaves of the return value of a user's function, a pytree, to arrays."""
    return jax.tree.map(jnp.asarray, value)


def cached_by_types(compute: Callable[..., T]) -> Callable[..., T]:
    """Decorator of ``compute(function, *operands, **options)``: a result is kept for each function, types of operands
    and options, hashable."""
    cache: WeakKeyDictionary[Callable, dict] = WeakKeyDictionary()

    @wraps(compute)
    def cached(function: Callable, *operands: object, **options: object) -> T:
        leaves, structure = jax.tree.flatten(operands)
        key = structure, tuple(map(operand_type, leaves)), tuple(options.items()), trace_settings()
        try:
            known = cache.setdefault(function, {})
        except TypeError:  # a function without a hash or weak references is traced each time
            known = {}
        if key not in known:
            known[key] = compute(function, *operands, **options)
        return known[key]

    return cached


def shape_of_result(read: Callable, function: Callable, *operands: object) -> PyTree:
    """Shapes and dtypes of ``read(function(*operands))``, as `jax.eval_shape`, cached; ``read`` is a function of a
    module, as `as_array`."""
    return _shape_of(function, *operands, read=read)


@cached_by_types
def _shape_of(function: Callable, *operands: object, read: Callable) -> PyTree:
    closed, shape = jax.make_jaxpr(lambda *xs: read(function(*xs)), return_shape=True)(*operands)
    _refuse_collectives(closed.effects)
    return shape


def _refuse_collectives(effects: Iterable[object]) -> None:
    """Raises a ValueError if a traced function sums over the named axis of a `jax.vmap`:
    motions of a batch do not take their steps together."""
    devices = jax.sharding.get_abstract_mesh().axis_names
    for name in (getattr(x, "name", None) for x in effects if type(x).__name__ == "NamedAxisEffect"):
        if name not in devices:
            raise ValueError(
                f"an operation over the axis {name!r} of jax.vmap: the motions of a batch know nothing of each other; "
                "state bodies that act on "
                "each other as one problem"
            )


def operand_type(x: ArrayLike, carried: bool = False) -> tuple:
    """Returns the shape and dtype of an operand as a hashable key for cached traces; without the leading axis, over
    lanes, if ``carried``."""
    if type(x) is np.ndarray:
        return x.shape[carried:], x.dtype
    aval = jax.typeof(x)
    return (aval.shape[1:], aval.dtype, aval.weak_type) if carried else (aval,)


def shapes_and_dtypes(operands: Iterable[Array | np.ndarray]) -> tuple:
    """Returns shape and dtype of each operand, as a hashable key."""
    return tuple((x.shape, str(x.dtype)) for x in operands)


def array_module(*arrays: object) -> ModuleType:
    """The module with the operations of these arrays: numpy, or jax.numpy for arrays that stay on a device."""
    return np if all(isinstance(x, np.ndarray) for x in arrays) else jnp
