"""Scalarisation: an interpreter that evaluates a jaxpr with every small array taken apart into scalars;
and the interface of emitters.

    machine = ScalarInterpreter(emitter)
    results = machine.run(jaxpr, values)          # numpy object arrays of scalars

A scalar is either a compile-time constant (a numpy scalar) or a value of the emitter. Numpy moves data, on object
arrays of scalars, and constants are folded, so that an emitter meets only scalar arithmetic, loops and branches. The
rule of a primitive is in one of the tables `RULES`: of `indexing` (data movement), `reductions` (sums, products,
sorting), `linear_algebra` (decompositions), `control_flow` (loops, branches, calls).
"""

from __future__ import annotations

from .interpreter import ScalarInterpreter
from .values import Emitter, Unsupported, Value, carried_axes, is_constant, object_array, split_constant

__all__ = [
    "Emitter",
    "ScalarInterpreter",
    "Unsupported",
    "Value",
    "carried_axes",
    "is_constant",
    "object_array",
    "split_constant",
]
