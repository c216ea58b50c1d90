"""Loading and launching of kernels by CUDA's driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

from ..limits import MAX_LOCAL_BYTES
from ..scalar import Unsupported

LOCAL_BYTES = 3  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
_lock = Lock()


class Driver:
    """Functions of CUDA's driver, called by name; a failure raises RuntimeError with the driver's message."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unsupported(f"no driver of an NVIDIA GPU: {error}") from error
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: object) -> None:
        if code := getattr(self.library, name)(*arguments):
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'').decode() or code}")

    def context(self) -> ctypes.c_void_p:
        """Returns the CUDA context that is current in this thread: within a handler that jax calls,
        the context of jax."""
        found = ctypes.c_void_p()
        self("cuCtxGetCurrent", ctypes.byref(found))
        return found


@lru_cache
def driver() -> Driver:
    """Returns CUDA's driver, loaded at the first call.

    Raises:
        Unsupported: the driver is not installed.
    """
    return Driver()


class Kernel:
    """A kernel, loaded once into each context that launches it."""

    def __init__(self, ptx: str, name: str) -> None:
        self.ptx, self.name = ptx.encode() + b"\0", name.encode()
        self.functions: dict[int, ctypes.c_void_p] = {}

    def check(self, device: int = 0) -> None:
        """Loads the kernel on the device with this number; raises Unsupported if the driver refuses it, or if it needs
        too much memory for a lane."""
        of, context = driver(), ctypes.c_void_p()
        try:
            of("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            of("cuCtxPushCurrent_v2", context)
            try:
                function, size = self.function(), ctypes.c_int()
                of("cuFuncGetAttribute", ctypes.byref(size), LOCAL_BYTES, function)
            finally:
                of("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        except RuntimeError as error:
            raise Unsupported(str(error)) from error
        if size.value > MAX_LOCAL_BYTES:
            raise Unsupported(f"a kernel with {size.value} bytes of memory for each lane")

    def function(self) -> ctypes.c_void_p:
        """Returns the handle of the kernel in the current CUDA context,
        and loads the kernel there first if necessary."""
        of = driver()
        with _lock:
            key = of.context().value or 0
            if key not in self.functions:
                module, found = ctypes.c_void_p(), ctypes.c_void_p()
                of("cuModuleLoadData", ctypes.byref(module), self.ptx)
                of("cuModuleGetFunction", ctypes.byref(found), module, self.name)
                self.functions[key] = found
            return self.functions[key]

    def launch(
        self, stream: int, blocks: int, size: int, arguments: Sequence[ctypes.Array | ctypes._SimpleCData]
    ) -> None:
        """Launches the kernel on the CUDA stream with the address ``stream``,
        in ``blocks`` blocks of ``size`` threads each.

        ``arguments``: the kernel's, as ctypes values.
        """
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(x) for x in arguments])
        grid = *(blocks, 1, 1), *(size, 1, 1), 0, ctypes.c_void_p(stream)
        try:
            driver()("cuLaunchKernel", self.function(), *grid, pointers, None)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: give execution='xla', or fewer lanes at once (chunk)") from error
