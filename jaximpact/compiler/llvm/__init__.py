"""Native code for a CPU: the jaxpr of one lane becomes LLVM IR on vectors of lanes, which llvmlite compiles."""

from __future__ import annotations

from .call import over_lanes

__all__ = ["over_lanes"]
