"""Rules for loops, branches, calls and tables, functions (interpreter ``m``, equation, inputs) -> results; bodies of
loops go to the emitter as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import Array

from ...jaxtools.jaxpr_tools import scan_counts, varying_outvars
from ...jaxtools.jaxpr_types import Equation
from ...jaxtools.tables import table_entries
from ..limits import MAX_OPS_WRITTEN_OUT
from .cost import cost
from .values import Value, all_constant, is_constant, scalar_array

if TYPE_CHECKING:
    from .interpreter import ScalarInterpreter


def _varying_outputs(m: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[bool]:
    return varying_outvars(eqn, [m.emitter.varies(x) for x in inputs])


def while_loop(m: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
    p = eqn.params
    a, b = p["cond_nconsts"], p["body_nconsts"]
    cond_constants, body_constants, start = inputs[:a], inputs[a : a + b], inputs[a + b :]
    continues = lambda carry: m.run(p["cond_jaxpr"], [*cond_constants, *carry])[0].item()
    body = lambda carry: m.run(p["body_jaxpr"], [*body_constants, *carry])
    known = [None if m.emitter.varies(x) else x for x in body_constants]
    prepare = lambda carry: m.prepare(p["body_jaxpr"], [*known, *carry])
    return m.loop(start, _varying_outputs(m, eqn, inputs), continues, body, prepare)


def scan(m: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
    """Lowers a scan: writes out one of length 1 and a short one over constants, makes a counted loop of one without xs
    and ys, and leaves any other to `Emitter.scan`."""
    p = eqn.params
    a, count = scan_counts(p)
    constants, start, sequences = inputs[:a], inputs[a : a + count], inputs[a + count :]
    if p["length"] == 1 and all(isinstance(x, np.ndarray) for x in sequences):
        found = m.run(p["jaxpr"], [*constants, *start, *(x[0, ...] for x in sequences)])
        if all(isinstance(x, np.ndarray) for x in found[count:]):
            return [*found[:count], *(x[None] for x in found[count:])]
    if _is_short_over_constants(m, eqn, sequences):
        state, rows, order = start, [], -1 if p["reverse"] else 1
        for i in range(p["length"])[::order]:
            found = m.run(p["jaxpr"], [*constants, *state, *(x[i, ...] for x in sequences)])
            state = found[:count]
            rows.append(found[count:])
        return [*state, *(np.stack(x) for x in zip(*rows[::order], strict=True))]
    if sequences or len(eqn.outvars) > count:
        return m.emitter.scan(m, eqn, inputs)
    flags = [False, *_varying_outputs(m, eqn, inputs)]
    zero, unit, length = (scalar_array(np.int32(x)) for x in (0, 1, p["length"]))
    continues = lambda carry: m("lt", carry[0].item(), length.item())
    body = lambda carry: [m.elementwise("add", carry[0], unit), *m.run(p["jaxpr"], [*constants, *carry[1:]])]
    known = [None if m.emitter.varies(x) else x for x in constants]
    prepare = lambda carry: m.prepare(p["jaxpr"], [*known, *carry[1:]])
    return m.loop([zero, *start], flags, continues, body, prepare)[1:]


def _is_short_over_constants(m: ScalarInterpreter, eqn: Equation, sequences: list[Value]) -> bool:
    """Whether a scan goes over tables, among others, and is short enough to be written out,
    without the terms that are zero."""
    p, most = eqn.params, m.emitter.max_scalars
    small = all(isinstance(x, np.ndarray) for x in sequences) and all(v.aval.size <= most for v in eqn.outvars)
    known = any(x.size and all_constant(x) for x in sequences)
    return m.emitter.many and small and known and p["length"] * cost(p["jaxpr"], most) <= MAX_OPS_WRITTEN_OUT


def table_rule(m: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
    return [m.constant(table_entries(**eqn.params))]


def cond(m: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
    branches = eqn.params["branches"]
    which, *operands = inputs
    which, last = which.item(), len(branches) - 1
    if is_constant(which):
        return m.run(branches[min(max(int(which), 0), last)], operands)
    if which.dtype == bool:
        which = m("convert_element_type", which, params={"new_dtype": np.dtype(np.int32)})
    avals = [v.aval for v in eqn.outvars]
    return m.emitter.switch(m, which, branches, operands, avals, _varying_outputs(m, eqn, inputs))


def linear_solve(m: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
    """Lowers `lax.custom_linear_solve`: evaluates its function ``solve`` on the right side,
    as only values are needed."""
    # constants of matvec, vecmat, solve and transpose_solve, in this order, before the right side
    ends = np.cumsum(eqn.params["const_lengths"])
    parts = [inputs[a:b] for a, b in zip([0, *ends], [*ends, None], strict=True)]
    return m.run(eqn.params["jaxprs"].solve, [*parts[2], *parts[4]])


def custom_root(m: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
    """Lowers `lax.custom_root` of newer versions of jax, whose equation holds an object with a method ``expand``
    that computes the results."""
    primitive = eqn.params["_prim"]

    def flat(*leaves: Array) -> list:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, leaves)))

    return m.run(jax.make_jaxpr(flat)(*(v.aval for v in eqn.invars)), inputs)


def platform_index(m: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
    """Lowers the index of the branch of `lax.platform_dependent`: that of the default branch,
    which computes the same as all others."""
    return [scalar_array(np.int32(eqn.params["platforms"].index(None)))]


RULES = {
    "while": while_loop,
    "scan": scan,
    "cond": cond,
    "table": table_rule,
    "stream": lambda m, eqn, inputs: m.emitter.stream(m, eqn, inputs),
    "custom_linear_solve": linear_solve,
    "call_hi_primitive": custom_root,
    "platform_index": platform_index,
}
