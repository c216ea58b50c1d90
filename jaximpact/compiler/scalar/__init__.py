"""Small arrays as separate numbers: one interpreter of jaxprs, and what it asks of an emitter of instructions.

    machine = Machine(emitter)
    results = machine.run(jaxpr, values)          # numpy object arrays of numbers

A number is known (numpy's) or an emitter's. Data movement is done by numpy on arrays of them, and known numbers fold, so that
an emitter sees arithmetic on single numbers, loops and branches alone. A primitive gets a rule in one of the tables `RULES`: of
`structure` (data movement), `sums` (sums, products, orders), `algebra` (matrices), `control` (loops and branches).
"""

from __future__ import annotations

from .interpreter import ScalarInterpreter
from .values import Emitter, Unsupported, Value, carried_axes, fill_array, known, split

__all__ = ["Emitter", "ScalarInterpreter", "Unsupported", "Value", "carried_axes", "fill_array", "known", "split"]
