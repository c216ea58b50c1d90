"""Dead code of jaxprs: equations, values carried by loops, and outputs of calls and branches
on which no output depends."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from itertools import compress
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.interpreters import partial_eval

from .jaxpr_tools import reader, remember_by_jaxpr
from .jaxpr_types import AnyJaxpr, Equation


def without_dead_code(closed: ClosedJaxpr, wanted: Sequence[bool] | None = None) -> ClosedJaxpr:
    """Returns a jaxpr without equations, carried values, outputs of branches and inputs of calls on which neither its
    outputs nor their derivatives depend.

    ``wanted``: mask of the outputs that stay; None: all.
    """
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, True if wanted is None else list(wanted), True)
    return ClosedJaxpr(jaxpr, closed.consts)


def live_carry(wanted: Sequence[bool], jaxpr: AnyJaxpr, first: int, count: int) -> list[bool]:
    """Returns the mask of a loop's ``count`` carried values on which the results of its body in the mask ``wanted``
    depend, in later turns too.

    ``jaxpr``: the body; its inputs from number ``first`` on, and its first outputs, are the carried values.
    """
    inputs, live = input_bits(jaxpr), list(wanted)
    while True:
        reads = reduce(operator.or_, compress(inputs, live), 0)
        more = [x or bool(reads >> (first + i) & 1) for i, x in enumerate(live[:count])]
        if more == live[:count]:
            return more
        live[:count] = more


@remember_by_jaxpr
def input_bits(jaxpr: AnyJaxpr) -> list[int]:
    """Returns for each output of a jaxpr the inputs on which it depends, as bits of a number: all of them in one pass,
    where dead code takes one for each set of outputs."""
    bits = dict.fromkeys(jaxpr.constvars, 0) | {v: 1 << i for i, v in enumerate(jaxpr.invars)}
    read = reader(bits, lambda v: 0)
    for eqn in jaxpr.eqns:
        name, given = eqn.primitive.name, [read(v) for v in eqn.invars]
        if name in ("jit", "pjit"):
            found = [_through(x, given) for x in input_bits(eqn.params["jaxpr"])]
        elif name == "cond":
            parts = [[_through(x, given[1:]) for x in input_bits(part)] for part in eqn.params["branches"]]
            found = [reduce(operator.or_, some, given[0]) for some in zip(*parts, strict=True)]
        else:
            found = [reduce(operator.or_, given, 0)] * len(eqn.outvars)
        bits.update(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _through(inside: int, given: Sequence[int]) -> int:
    """Returns the inputs, as bits, on which an output of a called function depends. ``inside``: bits of the function's
    own inputs on which it depends; ``given``: for each of these inputs, the bits on which its operand depends."""
    return reduce(operator.or_, (x for i, x in enumerate(given) if inside >> i & 1), 0)


def _while_rule(used: Sequence[bool], *rest: Any) -> tuple[list[bool], Equation | None]:
    """Rule for `lax.while_loop`, as newer versions of jax have it: a carried value that only
    itself depends on is dropped."""
    (*_, eqn), used, p = rest, list(used), rest[-1].params
    if eqn.effects or all(used):
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    a, b, cond, body = p["cond_nconsts"], p["body_nconsts"], p["cond_jaxpr"], p["body_jaxpr"]
    ends = partial_eval.dce_jaxpr(cond.jaxpr, [True])[1]
    live = live_carry(list(map(operator.or_, used, ends[a:])), body.jaxpr, b, len(used))
    body_jaxpr, reads = partial_eval.dce_jaxpr(body.jaxpr, live, [False] * b + live)
    cond_jaxpr, ends = partial_eval.dce_jaxpr(cond.jaxpr, [True], [False] * a + live)
    kept = [*ends[:a], *reads[:b], *live]
    changes = {
        "cond_jaxpr": ClosedJaxpr(cond_jaxpr, cond.consts),
        "body_jaxpr": ClosedJaxpr(body_jaxpr, body.consts),
        "cond_nconsts": sum(ends[:a]),
        "body_nconsts": sum(reads[:b]),
    }
    invars = [v for v, k in zip(eqn.invars, kept, strict=True) if k]
    outvars = [v for v, k in zip(eqn.outvars, live, strict=True) if k]
    return kept, eqn.replace(invars=invars, outvars=outvars, params=p | changes)


partial_eval.dce_rules.setdefault(lax.while_p, _while_rule)
