"""Dead code of jaxprs: equations, values carried by loops, and outputs of calls and branches on which no output depends."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.interpreters import partial_eval


def without_dead_code(closed: ClosedJaxpr, wanted: Sequence[bool] | None = None) -> ClosedJaxpr:
    """Returns a jaxpr without equations, carried values, outputs of branches and inputs of calls on which neither its outputs nor their derivatives
    depend.

    ``wanted``: mask of the outputs that stay; None: all.
    """
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, True if wanted is None else list(wanted), True)
    return ClosedJaxpr(jaxpr, closed.consts)


def live_carry(wanted: Iterable[bool], needed: Callable[[list[bool]], Sequence[bool]]) -> list[bool]:
    """Returns the mask of a loop's carried values on which those in the mask ``wanted`` depend.

    ``needed``: function from the mask of those that are wanted after a turn to the mask of those that are read before it.
    """
    live = list(wanted)
    while (more := list(map(operator.or_, live, needed(live)))) != live:
        live = more
    return live


def _while_rule(used: Any, *rest: Any) -> tuple[list[bool], Any]:
    """Rule for `lax.while_loop`, as newer versions of jax have it: a carried value that only itself depends on is dropped."""
    (*_, eqn), used, p = rest, list(used), rest[-1].params
    if eqn.effects or all(used):
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    a, b, cond, body = p["cond_nconsts"], p["body_nconsts"], p["cond_jaxpr"], p["body_jaxpr"]
    ends = partial_eval.dce_jaxpr(cond.jaxpr, [True])[1]
    of_body = lambda live: partial_eval.dce_jaxpr(body.jaxpr, live, [False] * b + live)
    live = live_carry(map(operator.or_, used, ends[a:]), lambda live: of_body(live)[1][b:])
    body_jaxpr, reads = of_body(live)
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
