"""The bouncing ball as a handwritten kernel of an NVIDIA GPU, where NVIDIA's compiler is found."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .native import ENTRIES, SOURCES, numbers


def compile_loop(work, folder: str | Path) -> Callable | None:
    """The loop of a work, compiled into ``folder``; None if it has none, or nvcc is missing.

    It takes q0 and v0 (lanes, 1) of one float dtype, and returns the time of the kernel alone [s],
    and (q, v) at the end of the motion.
    """
    command, source = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc"), SOURCES / f"{work.name}.cu"
    if command is None or not source.exists():
        return None
    target = Path(folder).resolve() / f"{work.name}.so"
    flags = ("-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC")
    subprocess.run([command, *flags, str(source), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))

    def run(q0: np.ndarray, v0: np.ndarray) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
        q, v = np.array(q0, order="C"), np.array(v0, order="C")
        entry = getattr(library, ENTRIES[q.dtype])
        entry.restype = ctypes.c_float
        places = (x.ctypes.data_as(ctypes.c_void_p) for x in (q, v))
        milliseconds = entry(numbers(work), ctypes.c_long(len(q)), ctypes.c_long(work.steps), *places)
        if milliseconds < 0:
            raise RuntimeError(f"the CUDA loop of {work.name!r} failed")
        return 1e-3 * milliseconds, (q, v)

    return run
