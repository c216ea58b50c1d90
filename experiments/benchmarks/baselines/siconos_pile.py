"""The disks of the works in Siconos, as a C++ program compiled for this machine.

    pile = SiconosPile(folder)                     # builds it: g++ and the headers of Siconos are needed
    q1, v1, seconds, residual = pile.run(works.WORKS["pile-16"], q0, pairs, steps=100)

(Debian: python3-siconos brings the headers.)
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from .native import compiler

SOURCE = Path(__file__).with_suffix(".cpp")
INCLUDE = Path("/usr/include/siconos")
FOLDERS = (INCLUDE, INCLUDE / "kernel", INCLUDE / "numerics")
LIBRARIES = ("-lsiconos_kernel", "-lsiconos_numerics")


class SiconosPile:
    """The compiled program."""

    def __init__(self, folder):
        """Compile into ``folder``; RuntimeError that says why where that is not possible."""
        command = compiler()
        if command is None or not INCLUDE.is_dir():
            raise RuntimeError(f"not installed: no {INCLUDE if command else 'C++ compiler'}")
        self._program = Path(folder).resolve() / "siconos_pile"
        arguments = [command, "-std=c++17", "-O2", *(f"-I{x}" for x in FOLDERS), str(SOURCE), "-o", str(self._program)]
        built = subprocess.run([*arguments, *LIBRARIES], capture_output=True, text=True)
        if built.returncode:
            raise RuntimeError(f"not built: {(built.stderr.splitlines() or ['no message'])[0][:200]}")

    def run(self, work, q0, pairs, steps: int | None = None) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Position and velocity (2 n,) after ``steps`` steps from rest at q0 (2 n,), the seconds that these took, and
        the largest KKT residual [m/s]; ``pairs`` (k, 2) of disks that see each other."""
        steps = work.steps if steps is None else steps
        q0, pairs = np.asarray(q0, float), np.asarray(pairs)
        numbers = [q0.size // 2, len(pairs), steps, work.h, work.restitution]
        numbers += [work.args[name] for name in ("g", "radius", "side")] + q0.tolist() + pairs.ravel().tolist()
        told = "\n".join(map(repr, numbers))
        ran = subprocess.run([str(self._program)], input=told, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"failed: {(ran.stderr.splitlines() or ['no message'])[-1][:200]}")
        first, *rest = ran.stdout.splitlines()
        seconds, residual = map(float, first.split())
        q, v = np.array([line.split() for line in rest], float).reshape(-1, 2, 2).transpose(1, 0, 2).reshape(2, -1)
        return q, v, seconds, residual
