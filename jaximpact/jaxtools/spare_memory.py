"""Memory of arrays that are no longer used, for new ones of the same size:
new memory takes longer than what is written to it."""

from __future__ import annotations

import math
from sys import getrefcount
from threading import Lock

import numpy as np
from jax.typing import DTypeLike

SIZES = range(2**15, 2**24)  # bytes of arrays whose memory stays
MAX_SPARE_BYTES = 2**26  # that stay in all
_kept: dict[int, list[np.ndarray]] = {}  # by size, the size last added at the end
_lock = Lock()
_alone = [np.empty(0, np.uint8)]
_IDLE = getrefcount(_alone[0])  # references to an array that only a list refers to


def new_array(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Returns an array whose entries may be anything, as `np.empty`."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, _memory_of(size)) if size in SIZES else np.empty(shape, dtype)


def _memory_of(size: int) -> np.ndarray:
    with _lock:
        for i in range(len(some := _kept.get(size, []))):
            if getrefcount(some[i]) == _IDLE:  # arrays in it, and views of them, refer to it
                return some[i][:]
        some.append(new := np.empty(size, np.uint8))
        _kept[size] = _kept.pop(size, some)
        while sum(n * len(some) for n, some in _kept.items()) > MAX_SPARE_BYTES:
            oldest = next(iter(_kept))
            del _kept[oldest][0]
            if not _kept[oldest]:
                del _kept[oldest]
        return new[:]
