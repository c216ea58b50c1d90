"""Checks of arguments common to the package: numbers, types, choices. Messages name the
argument and say what it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .operating_system import free_host_memory
from .trace_context import platform
from .warnings import remark

MAX_COUNT = 2**31 - 2  # largest count of steps or anything else: loops count in int32, up to count + 1
MIN_CHECKED_BYTES = 2**28  # smaller arrays are not compared with the free memory, which is read from files


def short(value: object) -> str:
    """One-line text of a value for messages, cut off at 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) < 60 else f"{text[:57]}..."


def is_traced(*trees: object) -> bool:
    """Whether any leaf of the pytrees is a tracer of a jax transformation."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def is_random_key(x: Any) -> bool:
    """Whether an array, or what jax knows of one when it traces, holds random keys (`jax.random.key`),
    which are no numbers."""
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def is_array(value: object) -> bool:
    """Whether a value is an array or scalar of numpy or jax; tracers are arrays too."""
    return isinstance(value, np.ndarray | np.generic | jax.Array)


def is_number(value: object) -> bool:
    """Whether a value is one real number of Python or numpy; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object, least: float = -np.inf) -> TypeGuard[int]:
    """Whether a value is an integer of Python or numpy, at least ``least``; booleans are not."""
    return is_number(value) and isinstance(value, Integral) and int(value) >= least


def is_pair(value: object) -> bool:
    """Whether a value is a tuple, list or array of two entries."""
    return isinstance(value, tuple | list | np.ndarray) and len(value) == 2


def as_tuple(value: Any) -> tuple:
    """Returns a sequence of values as a tuple, and a single value as a tuple of one; a string is a single value."""
    return (value,) if isinstance(value, str) or not np.iterable(value) else tuple(value)


def dotted_entries(
    table: Mapping[str, Any], leaf: Callable[[Mapping], bool] = lambda x: False, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yields pairs (name, value) of the entries of nested mappings, with dotted names such as ``a.b.c``.

    A mapping for which ``leaf(mapping)`` is true is an entry itself. ``prefix``: text before each name.
    """
    for key, value in table.items():
        if isinstance(value, Mapping) and not leaf(value):
            yield from dotted_entries(value, leaf, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def are_texts(values: Iterable[object]) -> bool:
    """Whether all values are strings."""
    return all(isinstance(x, str) for x in values)


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raises ValueError unless a value is an integer from ``least`` to `MAX_COUNT`."""
    if not is_whole(value, least):
        raise ValueError(f"{name} must be a whole number >= {least}, got {short(value)}")
    if value > MAX_COUNT:
        raise ValueError(f"{name} must not exceed {MAX_COUNT} (2^31 - 2), got {value!r}")


def check_counts(**counts: object) -> None:
    """Raises ValueError unless the named arguments are integers of at least 1 (0 for ``skip``)."""
    for name, value in counts.items():
        check_whole(name, value, least=0 if name == "skip" else 1)


def check_kind(name: str, value: object, kind: type | tuple[type, ...] | UnionType, what: str) -> None:
    """Raises TypeError unless a value has one of the types ``kind``, which ``what`` describes in words."""
    if not isinstance(value, kind):
        hint = f": write {value.__name__}(), an instance" if isinstance(value, type) else ""
        raise TypeError(f"{name} must be {what}, got {short(value)}{hint}")


def check_choice(name: str, value: object, choices: tuple) -> None:
    """Raises ValueError unless ``value`` is one of ``choices``, which are strings or None."""
    # identity before equality: an array compared with a string gives an array, which has no truth value
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        raise ValueError(f"{name}={short(value)}: choose one of {', '.join(map(repr, choices))}")


def check_memory(size: float, what: str, cure: str) -> None:
    """Raises ValueError if ``size`` bytes exceed the free memory.

    The message says that ``what`` takes this much memory, and gives the advice ``cure``.
    """
    if size > MIN_CHECKED_BYTES and size > (free := free_memory()):
        raise ValueError(f"{what} takes {size / 2**30:.3g} GiB of memory, and {free / 2**30:.3g} GiB are free: {cure}")


def free_memory() -> float:
    """Bytes that this process can still allocate, on the accelerator if jax uses one; infinity if unknown."""
    if platform() != "cpu":
        stats = jax.local_devices()[0].memory_stats() or {}
        return stats.get("bytes_limit", np.inf) - stats.get("bytes_in_use", 0)
    return free_host_memory()


def _is_none(x: object) -> bool:
    return x is None


def named_leaves(tree: object) -> dict[tuple[str, ...], Any]:
    """Leaves of a pytree by key path, a tuple of strings; None is a leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_none)
    return {tuple(jax.tree_util.keystr((key,), simple=True) for key in path): leaf for path, leaf in leaves}


def with_leaves(tree: object, leaves: Iterable[object]) -> Any:
    """Returns a pytree of the structure of ``tree`` with other leaves, in the order of `named_leaves`;
    None in ``tree`` counts as a leaf."""
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=_is_none), list(leaves))


def real(name: str, value: object) -> np.ndarray:
    """Returns a value as `real_array` does, but always as a numpy array; TypeError for a masked array,
    whatever its mask."""
    if np.ma.isMaskedArray(value):
        raise TypeError(
            f"{name} is a masked array: give numbers without a mask, value.filled(...) or value.compressed()"
        )
    return np.asarray(real_array(name, value))


def real_number(name: str, value: object) -> float:
    """``value`` as a float; ValueError unless it is one finite real number."""
    found = real(name, value)
    if found.ndim or np.asarray(value).dtype == bool or not np.isfinite(found):
        raise ValueError(f"{name} must be one finite number, got {value!r}")
    return float(found)


def real_array(name: str, value: object) -> np.ndarray | Array:
    """Returns real numbers as an array of floats: in the dtype that the value has,
    or in jax's default float dtype if that is not floating.

    A concrete value becomes a numpy array: inside jit a jax array would be a tracer, whose numbers can no longer be
    checked. A tracer stays a tracer.

    Raises:
        TypeError: the value is not of real numbers; the message calls it by ``name``.
    """
    if is_traced(value):
        traced = jnp.asarray(value)
        return traced if jnp.issubdtype(traced.dtype, jnp.floating) else traced.astype(jnp.result_type(float))
    array = known_numbers(name, value)
    if isinstance(value, np.ndarray) and array.dtype == np.float64 and not jax.config.read("jax_enable_x64"):
        remark(
            f"{name} is float64 but jax computes in float32: call jax.config.update('jax_enable_x64', True) first, or "
            "pass float32 arrays",
            stacklevel=5,
        )
    floating = array.dtype.kind == "f" or jnp.issubdtype(array.dtype, jnp.floating)
    with np.errstate(
        over="ignore"
    ):  # float64 beyond the range of float32 becomes infinite, and is refused as not finite
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype) if floating else jnp.result_type(float))


def known_numbers(name: str, value: object) -> np.ndarray:
    """Returns a concrete value as a numpy array of real numbers, in its own dtype;
    otherwise a TypeError calls it by ``name``."""
    if np.ma.is_masked(value):
        raise TypeError(f"{name} is a masked array, and nothing says what its masked entries are: fill them")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(f"{name} must be numbers, of rows of one length, got {short(value)}") from error
    if array.dtype.kind not in "iufb" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must be real numbers, got {type(value).__name__} of dtype {array.dtype}")
    if array.dtype.itemsize > 8:
        raise TypeError(f"{name} has dtype {array.dtype}, and jax computes in float64 at most: give float64")
    return array
