"""Native code for the motions of an ensemble on a CPU: a jaxpr of numbers as LLVM IR over vectors of lanes, compiled by llvmlite."""

from __future__ import annotations

from .call import over_lanes

__all__ = ["over_lanes"]
