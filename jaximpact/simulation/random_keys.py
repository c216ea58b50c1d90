"""Keys of random numbers, ``key=`` of calls: one for each motion of a problem with noise."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..jaxtools.argument_checks import is_traced, short
from ..mechanics.noise import threefry
from ..mechanics.problem import Problem

FORMS = "an int, or a key of jax, jax.random.key(0)"


def words_of(key: Any, problem: Problem) -> Any:
    """Returns the key of a call as words (2,) or, of many motions, (B, 2), uint32;
    None without key for a problem without noise.

    Raises:
        ValueError, TypeError: the problem has noise and there is no key, or the reverse; or the key is none.
    """
    if key is None:
        if problem.noise is not None:
            raise ValueError(f"key: the problem has noise, whose random numbers need a key: give key=0, {FORMS}")
        return None
    if problem.noise is None:
        raise ValueError(
            "key: the problem has no random numbers: state noise=lambda t, q, v, args: (d, r), or leave key out"
        )
    wrong = f"key must be {FORMS}, or for many motions an array of such keys (B,), got {short(key)}"
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        key = jax.random.key(int(key), impl="threefry2x32")
    dtype = getattr(key, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    elif dtype != jnp.uint32:  # keys of jax.random.PRNGKey are plain words
        raise TypeError(wrong)
    if key.ndim not in (1, 2) or key.shape[-1] != 2:
        raise ValueError(
            f"{wrong} with words of shape {key.shape}; other generators than threefry2x32 are not known here"
        )
    return key if is_traced(key) else np.asarray(key)


def of_one(words: Array) -> Any:
    """Returns the words (2,) of the key of one motion, or of a study, or None; ValueError if there are many."""
    if np.ndim(words) > 1:
        raise ValueError(f"key must be one key, got {len(words)}; for many motions use ensemble")
    return words


def of_lanes(words: Array, numbers: Any) -> Any:
    """Returns keys (B, 2) of the motions with these ``numbers`` (B,): those given, or `jax.random.fold_in` of the one
    given and each number."""
    if words.ndim == 2:
        return words
    numbers = np.asarray(numbers, np.uint32)
    return np.stack(threefry(words, np.zeros_like(numbers), numbers), axis=1)
