"""Arrays of constants that compiled programs know, such as the coefficients of a method.

An array that a function closes over is an input of its native program, so that programs which differ only in it share
machine code. The entries of a table are part of the code: products with zeros are left out,
and loops over its rows may be written out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.typing import DTypeLike

table_p = Primitive("table")  # no operands; the parameters hold the entries as bytes


def table(x: np.ndarray, dtype: DTypeLike) -> Array:
    """Returns a numpy array as a jax array of a dtype, whose entries are part of compiled programs."""
    x = np.ascontiguousarray(x, dtype)
    return table_p.bind(entries=x.tobytes(), shape=x.shape, dtype=x.dtype)


def table_entries(*, entries: bytes, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns the numpy array of a table from the parameters of its primitive."""
    return np.frombuffer(entries, dtype).reshape(shape)


def _as_array(*, entries: bytes, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return jnp.asarray(table_entries(entries=entries, shape=shape, dtype=dtype))


table_p.def_impl(_as_array)
table_p.def_abstract_eval(lambda *, entries, shape, dtype: jax.core.ShapedArray(shape, dtype))
mlir.register_lowering(table_p, mlir.lower_fun(_as_array, multiple_results=False))
