"""Values of a step that reverse mode keeps from the way there, to read them on the way back in
place of computing them again.

A value is marked by `remember`, which does nothing else: decisions and solutions, from which a derivative starts as
from constants. Marks count outside of loops, in branches too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr

from .jaxpr_tools import as_closed, evaluate_equation, reader, remember_by_jaxpr
from .jaxpr_types import AnyJaxpr, Equation

T = TypeVar("T")

MARK = "jaximpact_remembered"  # no name that a user marks values by, whose derivatives count


def remember(tree: T) -> T:
    """Marks the arrays of a pytree, without derivatives."""
    return jax.tree.map(lambda x: checkpoint_name(x, MARK), lax.stop_gradient(tree))


def _is_marked(eqn: Equation) -> bool:
    return eqn.primitive.name == "name" and eqn.params["name"] == MARK


def _parts(eqn: Equation) -> list:
    """Returns the jaxprs of an equation in which marks count: those of a call, or of branches."""
    name = eqn.primitive.name
    if name in ("jit", "pjit"):
        return [as_closed(eqn.params["jaxpr"])]
    return list(map(as_closed, eqn.params["branches"])) if name == "cond" else []


@remember_by_jaxpr
def marked_types(jaxpr: AnyJaxpr) -> list:
    """Returns shapes and dtypes of the marked values in a jaxpr, in the order of its equations, branch by branch."""
    found = []
    for eqn in jaxpr.eqns:
        if _is_marked(eqn):
            found.append(jax.ShapeDtypeStruct(eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype))
        for part in _parts(eqn):
            found += marked_types(part)
    return found


def with_marked_outputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns a jaxpr with the marked values as further outputs; those in branches that are not taken are zeros."""
    return _remade(closed, lambda given: (values := _evaluate(closed, given, None))[0] + values[1], 0)


def with_marked_inputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns a jaxpr with the marked values as further inputs, in place of what computes them."""
    count = len(closed.in_avals)
    return _remade(closed, lambda given: _evaluate(closed, given[:count], given[count:])[0], len(marked_types(closed)))


def _remade(closed: ClosedJaxpr, function: Callable[[list], list], more: int) -> ClosedJaxpr:
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]
    return jax.make_jaxpr(lambda *given: function(list(given)))(*types, *marked_types(closed)[:more])


def _evaluate(closed: ClosedJaxpr, given: Sequence, known: Sequence | None) -> tuple[list, list]:
    """Evaluates a jaxpr; returns its outputs and its marked values, which are ``known`` unless that is None."""
    jaxpr, marked = closed.jaxpr, list[Array]()
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *given], strict=True))
    read = reader(env)
    for eqn in jaxpr.eqns:
        operands, count = [read(v) for v in eqn.invars], len(marked)
        size = sum(len(marked_types(part)) for part in _parts(eqn))
        own = None if known is None else known[count : count + size]
        if _is_marked(eqn):
            found = operands if known is None else [known[count]]
            marked += found
        elif size == 0:
            found = evaluate_equation(eqn, operands)
        elif eqn.primitive.name == "cond":
            found, inside = _branches(eqn, operands, own)
            marked += inside
        else:
            found, inside = _evaluate(_parts(eqn)[0], operands, own)
            marked += inside
        env.update(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars], marked


def _branches(eqn: Equation, operands: Sequence, known: Sequence | None) -> tuple[list, list]:
    """Evaluates a cond as `_evaluate` does a jaxpr."""
    index, *operands = operands
    parts = _parts(eqn)
    types = list(map(marked_types, parts))
    rest: Iterator = iter(known or ())
    of_part = [None if known is None else [next(rest) for _ in some] for some in types]

    def branch(i: int) -> Callable:
        def run(*operands: Array) -> tuple[list, list]:
            found, marked = _evaluate(parts[i], operands, of_part[i])
            if known is not None:
                return found, []
            zeros = [[jnp.zeros(a.shape, a.dtype) for a in some] for some in types]
            return found, [x for k, some in enumerate(zeros) for x in (marked if k == i else some)]

        return run

    every = list(map(branch, range(len(parts))))
    if len(every) == 2:
        found, marked = lax.cond(index.astype(bool), every[1], every[0], *operands)
    else:
        found, marked = lax.switch(index, every, *operands)
    return found, marked if known is None else list(known)
