"""Estimated number of scalar operations of a jaxpr, to refuse programs that would take too long to compile."""

from __future__ import annotations

import math

from ...jaxtools.jaxpr_tools import nested_jaxprs, remember_by_jaxpr
from ...jaxtools.jaxpr_types import AnyJaxpr, Equation
from ..limits import ARRAY_PRIMITIVE_COST, MAX_SCALARS, MIN_LOOP_COST
from .indexing import RULES

FREE_PRIMITIVES = set(RULES) - {"gather", "dynamic_slice", "dynamic_update_slice"}


def dot_terms(eqn: Equation) -> int:
    """Returns the number of multiplications in an equation of the primitive dot_general."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[i] for i in contracted)


def is_large(eqn: Equation, max_scalars: int = MAX_SCALARS) -> bool:
    """Whether an equation has an operand or result of more than ``max_scalars`` entries,
    and so becomes a loop over memory."""
    if eqn.primitive.name == "dot_general" and dot_terms(eqn) > max_scalars:
        return True
    if eqn.primitive.name == "top_k":  # has no rule for scalars
        return True
    return any(math.prod(v.aval.shape) > max_scalars for v in (*eqn.invars, *eqn.outvars))


@remember_by_jaxpr
def cost(jaxpr: AnyJaxpr, max_scalars: int = MAX_SCALARS) -> int:
    """Estimates the number of scalar operations of a jaxpr; counts each loop body once."""
    return sum(_equation_cost(eqn, max_scalars) for eqn in jaxpr.eqns)


def _equation_cost(eqn: Equation, max_scalars: int) -> int:
    name, parts = eqn.primitive.name, sum(cost(part, max_scalars) for part in nested_jaxprs(eqn))
    if parts or name in ("while", "scan", "cond"):
        return parts + MIN_LOOP_COST * (name in ("while", "scan"))
    if name in FREE_PRIMITIVES:
        return 0
    if is_large(eqn, max_scalars):
        return ARRAY_PRIMITIVE_COST
    entries = max((math.prod(v.aval.shape) for v in eqn.outvars), default=1)
    if name == "dot_general":
        return dot_terms(eqn)
    if name in (
        "cholesky",
        "lu",
        "triangular_solve",
        "eigh",
        "semidefinite_inverse",
        "sparse_semidefinite_inverse",
        "sort",
        "scatter",
        "scatter-add",
    ):
        return entries * max(eqn.outvars[0].aval.shape, default=1)
    return entries


@remember_by_jaxpr
def count_entries(jaxpr: AnyJaxpr, least: int = 0) -> int:
    """Counts the entries of all results of a jaxpr's equations that have at least ``least`` entries;
    counts each loop body once."""
    found = 0
    for eqn in jaxpr.eqns:
        parts = nested_jaxprs(eqn)
        found += sum(count_entries(part, least) for part in parts)
        size = 0 if parts else max((math.prod(v.aval.shape) for v in eqn.outvars), default=0)
        found += size if size >= least else 0
    return found
