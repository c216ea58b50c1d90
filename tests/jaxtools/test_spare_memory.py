"""Memory of arrays that are no longer used serves new ones, and no other."""

import numpy as np

from jaximpact.jaxtools import spare_memory
from jaximpact.jaxtools.spare_memory import new_array

COUNT = spare_memory.SIZES.start  # of entries of 8 bytes: of a size that no other test has


def address(x):
    return x.ctypes.data


def test_memory_of_an_unused_array_is_used_again():
    one = new_array((COUNT + 1,), np.float64)
    where = address(one)
    del one
    again = new_array((COUNT + 1,), np.int64)
    assert address(again) == where and again.dtype == np.int64


def test_memory_in_use_is_left_alone():
    """Also where a view, of another shape and dtype, is all that refers to it."""
    one = new_array((COUNT + 2, 1), np.float64)
    one[:] = 3.0
    view = one.T[0, 5:].view(np.int64)
    del one
    new_array((COUNT + 2,), np.float64)[:] = 4.0
    other = new_array((COUNT + 2,), np.float64)
    other[:] = 5.0
    assert np.all(view.view(np.float64) == 3.0)


def test_what_stays_is_bounded():
    for i in range(40):
        new_array((2**20 + i,), np.float64)
    assert sum(n * len(some) for n, some in spare_memory._kept.items()) <= spare_memory.MAX_SPARE_BYTES
