"""Small arrays as separate numbers: an interpreter of jaxprs, and the interface of its emitters of instructions.

    machine = ScalarInterpreter(emitter)
    results = machine.run(jaxpr, values)          # numpy object arrays of numbers

A number is known (numpy's) or an emitter's. Data movement is done by numpy on arrays of them, and known numbers fold, so that
an emitter sees arithmetic on single numbers, loops and branches alone. A primitive gets a rule in one of the tables `RULES`: of
`indexing` (data movement), `reductions` (sums, products, orders), `linear_algebra` (matrices), `control_flow` (loops and branches).
"""

from __future__ import annotations

from .interpreter import ScalarInterpreter
from .values import Emitter, Unsupported, Value, carried_axes, fill_array, known, split

__all__ = ["Emitter", "ScalarInterpreter", "Unsupported", "Value", "carried_axes", "fill_array", "known", "split"]
