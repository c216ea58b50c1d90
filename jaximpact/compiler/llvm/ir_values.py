"""Values of LLVM IR: their types, and constants."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..scalar import Unsupported
from ..scalar.values import Constant

TYPES = {"float64": "double", "float32": "float", "bool": "i1"} | {
    f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
TYPES["void64"] = "ptr"
BOOL, INT, LONG = np.dtype(bool), np.dtype(np.int32), np.dtype(np.int64)
POINTER = np.dtype("V8")
DType = np.dtype | type  # a dtype, or the type of its numbers


@dataclass(slots=True, unsafe_hash=True)  # nothing changes one; a frozen one takes four times as long to make
class LaneValue:
    """An SSA value or constant of the IR: its name or literal text, its dtype,
    and whether it is a vector with an element per lane."""

    name: str
    dtype: np.dtype
    is_vector: bool

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind == "i"


@cache
def llvm_scalar_type(dtype: DType) -> str:
    """LLVM type of a scalar of a numpy dtype; cached, since numpy's ``dtype.name`` is slow."""
    try:
        return TYPES[np.dtype(dtype).name]
    except (KeyError, TypeError) as error:
        raise Unsupported(f"numbers of type {dtype}") from error


@cache
def llvm_vector_type(width: int, dtype: DType) -> str:
    """LLVM type of a vector of ``width`` lanes, which is a scalar if there is one."""
    return f"<{width} x {llvm_scalar_type(dtype)}>" if width > 1 else llvm_scalar_type(dtype)


def constant(value: float | Constant, dtype: DType) -> LaneValue:
    """A scalar constant of the IR."""
    dtype = np.dtype(dtype)
    llvm_scalar_type(dtype)
    if dtype == BOOL:
        return LaneValue("true" if value else "false", dtype, False)
    if dtype.kind == "f":
        exact = float(dtype.type(value))  # LLVM writes float constants as the bits of the equal double
        return LaneValue(f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}", dtype, False)
    return LaneValue(str(int(value)), dtype, False)


def memory_dtype(dtype: DType) -> np.dtype:
    """Returns the dtype in which values of a dtype are stored in memory: that of bytes for booleans, else the same."""
    return np.dtype(np.uint8) if np.dtype(dtype) == BOOL else np.dtype(dtype)
