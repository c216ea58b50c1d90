"""The bouncing ball, the forced oscillator and the double pendulum in handwritten SIMD code, compiled for this machine.

    native = Native(folder)                        # builds them into the folder: g++ or clang++ is needed
    q1, v1 = native.run(works.BALL, q0, v0)        # states at t1, (lanes, d) each, in the dtype of q0

One lane alone runs through the scalar instance of the same code.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

SOURCES = Path(__file__).parent
# the fields of the structs in the sources, after h and e
PARAMETERS = {
    "ball": ("g",),
    "forced-oscillator": ("frequency", "damping", "wall"),
    "double-pendulum": ("m1", "m2", "l1", "l2", "g", "wall"),
}
COORDINATES = {"ball": 1, "forced-oscillator": 1, "double-pendulum": 2}
# instructions scheduled before registers are allocated: faster where the step is long, slower where it is short
EXTRA = {"double-pendulum": ("-fschedule-insns",)}
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")
ENTRIES = {np.dtype(np.float64): "run_f64", np.dtype(np.float32): "run_f32"}


def compiler() -> str | None:
    """The C++ compiler found, if any."""
    return shutil.which("g++") or shutil.which("clang++")


def numbers(work) -> ctypes.Array:
    """What the loops of a work are given beside the states: h, e and the entries of args named in `PARAMETERS`."""
    found = [work.h, work.restitution, *(work.args[name] for name in PARAMETERS[work.name])]
    return (ctypes.c_double * len(found))(*found)


class Native:
    """Compiled loops of the works named in `PARAMETERS`."""

    def __init__(self, folder, names=tuple(PARAMETERS)):
        """Compile the works ``names`` into ``folder``, an existing directory outside the sources;
        RuntimeError where that fails."""
        command = compiler()
        if command is None:
            raise RuntimeError("native baselines need g++ or clang++, and neither was found")
        paths = {}
        for name in names:
            source = SOURCES / f"{name.replace('-', '_')}.cpp"
            target = Path(folder).resolve() / f"{source.stem}.so"
            arguments = [command, *FLAGS, *EXTRA.get(name, ()), str(source), "-o", str(target)]
            built = subprocess.run(arguments, capture_output=True, text=True)
            if built.returncode:
                raise RuntimeError(f"{command} failed on {source.name}:\n{built.stderr}")
            paths[name] = str(target)
        self.__setstate__(paths)

    def __getstate__(self) -> dict[str, str]:
        return self._paths

    def __setstate__(self, paths: dict[str, str]) -> None:
        """In another process, load what was compiled in the first."""
        self._paths = paths
        self._libraries = {name: ctypes.CDLL(path) for name, path in paths.items()}

    def run(self, work, q0, v0, steps: int | None = None, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """States (q, v) after ``steps`` steps, by default the work's own,
        from q0 and v0 (lanes, d) in one float dtype."""
        if work.name not in PARAMETERS:
            raise ValueError(f"work {work.name!r} has no native baseline; those that have: {', '.join(PARAMETERS)}")
        q0, v0 = np.asarray(q0), np.asarray(v0)
        if q0.dtype != v0.dtype or q0.dtype not in ENTRIES or q0.shape != v0.shape or q0.ndim != 2:
            raise ValueError("q0 and v0 must both have shape (lanes, d) and dtype float64 or float32")
        lanes, d = q0.shape
        if d != COORDINATES[work.name]:
            raise ValueError(f"q0 of {work.name!r} must have {COORDINATES[work.name]} coordinates, got {d}")
        # coordinates first, lanes contiguous; copies, for the loops work in place
        q, v = q0.T.copy(), v0.T.copy()
        self._libraries[work.name][ENTRIES[q.dtype]](
            numbers(work),
            ctypes.c_long(lanes),
            ctypes.c_long(work.steps if steps is None else steps),
            ctypes.c_int(threads),
            q.ctypes.data_as(ctypes.c_void_p),
            v.ctypes.data_as(ctypes.c_void_p),
        )
        return q.T, v.T
