"""Transposes of linear functions with branches, in which a branch computes the values that its derivative
needs only where it is taken.

jax splits a branch in two, one for values and one for the derivative. The first passes on all values that the second
needs, as outputs, with zeros for branches that are not taken. Here the second branch
computes these values again instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import linear_call
from jax.extend.core import ClosedJaxpr

from .dead_code import without_dead_code
from .jaxpr_tools import (
    CALLS,
    as_closed,
    called_jaxpr,
    evaluate_equation,
    is_literal,
    needed_equations,
    scan_counts,
    varying_outvars,
)
from .jaxpr_types import AnyJaxpr, Equation, Params

T = TypeVar("T")


def transpose(linear: Callable, *at: object) -> Callable:
    """Returns the transpose of a linear function, as `jax.linear_transpose`,
    with branches that compute their values again.

    ``at``: operands that give the shapes.
    """
    closed, shape = jax.make_jaxpr(linear, return_shape=True)(*at)
    # a branch that only a change depends on need not compute its values by themselves
    closed, structure, flat = without_dead_code(closed), jax.tree.structure(shape), jax.tree.leaves(at)

    def evaluated(*operands: object) -> object:
        leaves = jax.tree.leaves(operands)
        found = _evaluate(closed.jaxpr, closed.consts, leaves, [True] * len(flat), True)
        return jax.tree.unflatten(structure, found[0])

    return jax.linear_transpose(evaluated, *at)


def _evaluate(
    jaxpr: AnyJaxpr, constants: Sequence, values: Sequence, moves: Sequence[bool], linear: bool
) -> tuple[list, list[bool]]:
    """Evaluates a jaxpr that is linear in its moving inputs, those in the mask ``moves``; returns its outputs and the
    mask of the outputs that depend on moving inputs.

    Without ``linear`` only the other outputs are computed: moving inputs are given as None,
    and outputs that depend on them are None.
    """
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
    moving = {v for v, m in zip(jaxpr.invars, moves, strict=True) if m}
    read = lambda v: v.val if is_literal(v) else env[v]
    moved = lambda v: not is_literal(v) and v in moving
    for eqn in needed_equations(jaxpr):
        name, given, flags = eqn.primitive.name, [read(v) for v in eqn.invars], list(map(moved, eqn.invars))
        if not any(flags):
            found, results = evaluate_equation(eqn, given), [False] * len(eqn.outvars)
        elif name in CALLS:
            called = as_closed(called_jaxpr(eqn))
            found, results = _evaluate(called.jaxpr, called.consts, given, flags, linear)
        elif name == "cond" and not flags[0]:
            results = varying_outvars(eqn, flags)
            found = _branch(eqn, given, flags[1:], results, linear)
        else:
            results = varying_outvars(eqn, flags)
            found = evaluate_equation(eqn, given) if linear else _values(eqn, given, flags, results)
        env.update(zip(eqn.outvars, found, strict=True))
        moving.update(compress(eqn.outvars, results))
    return [read(v) for v in jaxpr.outvars], list(map(moved, jaxpr.outvars))


def _values(eqn: Equation, given: Sequence, flags: Sequence[bool], results: Sequence[bool]) -> list:
    """Returns the results of an equation that do not depend on its moving operands, with None for the results that do.

    ``given``: the operands, None for moving ones; ``flags``, ``results``: masks of the operands that move, and of the
    results that depend on them.
    """
    if all(results):
        return [None] * len(results)
    loop = {"while": _while, "scan": _scan}[eqn.primitive.name]
    known = iter(loop(eqn.params, given, flags, results))
    return [None if r else next(known) for r in results]


def _constant_outputs(jaxpr: ClosedJaxpr, values: Sequence, moves: Sequence[bool], results: Sequence[bool]) -> list:
    """Returns those outputs of a closed jaxpr that depend on no moving input: the ones outside the mask ``results``.

    ``values``: its inputs, None for moving ones, which the mask ``moves`` marks.
    """
    found = _evaluate(jaxpr.jaxpr, jaxpr.consts, values, moves, False)[0]
    return [x for x, r in zip(found, results, strict=True) if not r]


def _spread(known: Sequence, moves: Sequence[bool]) -> list:
    """Returns a list with None where the mask ``moves`` is true, and with the ``known`` values, in order, elsewhere."""
    rest = iter(known)
    return [None if m else next(rest) for m in moves]


def _while(p: Params, given: Sequence, flags: Sequence[bool], results: Sequence[bool]) -> Sequence:
    a, b = p["cond_nconsts"], p["body_nconsts"]
    moves = [*flags[a : a + b], *results]
    more = lambda now: _constant_outputs(
        p["cond_jaxpr"], [*given[:a], *_spread(now, results)], [*flags[:a], *results], [False]
    )[0]
    body = lambda now: _constant_outputs(p["body_jaxpr"], [*given[a : a + b], *_spread(now, results)], moves, results)
    return lax.while_loop(more, body, [x for x, r in zip(given[a + b :], results, strict=True) if not r])


def _scan(p: Params, given: Sequence, flags: Sequence[bool], results: Sequence[bool]) -> Sequence:
    fixed, state = scan_counts(p)
    moves = [*flags[:fixed], *results[:state], *flags[fixed + state :]]
    count = state - sum(results[:state])

    def body(now: list, row: list) -> tuple[list, list]:
        values = [*given[:fixed], *_spread(now, results[:state]), *_spread(row, flags[fixed + state :])]
        found = _constant_outputs(p["jaxpr"], values, moves, results)
        return found[:count], found[count:]

    start = [x for x, r in zip(given[fixed : fixed + state], results[:state], strict=True) if not r]
    rows = [x for x, m in zip(given[fixed + state :], flags[fixed + state :], strict=True) if not m]
    last, made = lax.scan(body, start, rows, p["length"], p["reverse"])
    return [*last, *made]


def _branch(eqn: Equation, given: Sequence, moves: Sequence[bool], results: Sequence[bool], linear: bool) -> list:
    """Returns the results of a cond, by two conds: one for the results that do not depend on moving operands,
    one for the others.

    The second computes the values that it needs again. ``given``: index and operands; ``moves``, ``results``,
    ``linear``: as in `_evaluate`.
    """
    index, *operands = given
    parts = [as_closed(x) for x in eqn.params["branches"]]
    still = [x for x, m in zip(operands, moves, strict=True) if not m]
    lines = [x for x, m in zip(operands, moves, strict=True) if m]
    avals = [v.aval for v, r in zip(eqn.outvars, results, strict=True) if r]

    def full(still: Sequence, lines: Sequence) -> list:
        known, other = iter(still), iter(lines)
        return [next(other) if m else next(known) for m in moves]

    def values(part: ClosedJaxpr) -> Callable:
        return lambda still: _constant_outputs(part, _spread(still, moves), moves, results)

    def pulled(part: ClosedJaxpr) -> Callable:
        def of(still: Sequence, change: Sequence) -> list:
            def pushed(lines: Sequence) -> list:
                found = _evaluate(part.jaxpr, part.consts, full(still, lines), moves, True)[0]
                return [x for x, r in zip(found, results, strict=True) if r]

            return jax.linear_transpose(pushed, lines)(list(change))[0]

        return of

    def back(known: tuple, change: Sequence) -> list:
        index, still = known
        return _choose(index, list(map(pulled, parts)), still, change)

    known = iter(_choose(index, list(map(values, parts)), still) if not all(results) else ())
    # is transposed and never evaluated: its shapes alone matter
    nothing = lambda known, lines: [jnp.zeros(a.shape, a.dtype) for a in avals]
    changes = iter(linear_call(nothing, back, (index, still), lines) if linear else [None] * len(avals))
    return [next(changes) if r else next(known) for r in results]


def _choose(index: Array, branches: Sequence[Callable[..., T]], *operands: object) -> T:
    """Returns ``branches[index](*operands)``, by a cond or a switch."""
    if len(branches) == 2:
        return lax.cond(index.astype(bool), branches[1], branches[0], *operands)
    return lax.switch(index, branches, *operands)
