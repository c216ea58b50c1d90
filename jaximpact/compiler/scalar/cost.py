"""Estimated size of a program of separate numbers, before it is emitted."""

from __future__ import annotations

import math
from typing import Any

from ...jaxtools.jaxpr_tools import nested_jaxprs
from .indexing import RULES

FREE = set(RULES) - {"gather", "dynamic_slice", "dynamic_update_slice"}
SMALL = 512  # arrays of more entries, and products of more terms, are loops over memory
LOOP = 1000  # operations that a loop counts for at least
LARGE = 50  # operations of a primitive of large arrays


def products(eqn: Any) -> int:
    """Number of terms in the sums of a dot product."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[i] for i in contracted)


def is_large(eqn: Any, small: int = SMALL) -> bool:
    """Whether a primitive has an array with more than ``small`` entries, and so becomes a loop over memory."""
    if eqn.primitive.name == "dot_general" and products(eqn) > small:
        return True
    return eqn.primitive.name == "top_k" or any(math.prod(v.aval.shape) > small for v in (*eqn.invars, *eqn.outvars))


def cost(jaxpr: Any, small: int = SMALL) -> int:
    """Number of scalar operations, each loop body counted once."""
    return sum(_of(eqn, small) for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns)


def _of(eqn: Any, small: int) -> int:
    name, parts = eqn.primitive.name, sum(cost(part, small) for part in nested_jaxprs(eqn))
    if parts or name in ("while", "scan", "cond"):
        return parts + LOOP * (name in ("while", "scan"))
    if name in FREE:
        return 0
    if is_large(eqn, small):
        return LARGE
    entries = max((math.prod(v.aval.shape) for v in eqn.outvars), default=1)
    if name == "dot_general":
        return products(eqn)
    if name in ("cholesky", "lu", "triangular_solve", "eigh", "sort", "scatter", "scatter-add"):
        return entries * max(eqn.outvars[0].aval.shape, default=1)
    return entries
