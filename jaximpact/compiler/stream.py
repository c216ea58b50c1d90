"""The primitive `stream`: a loop for native code, like `lax.scan`, whose number of
iterations is an argument of the call.

`lax.scan` fixes this number while tracing. Each iteration yields a row, which native code writes directly into the
results. In the traced function a single row stands for the rows of all iterations. The function can only return it,
with its entries in any order, and not compute with it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, partial_eval

from ..jaxtools.dead_code import live_carry
from ..jaxtools.jaxpr_tools import reader, varying_outputs
from ..jaxtools.jaxpr_types import Equation, OpenJaxpr
from ..jaxtools.shapes import PyTree

T = TypeVar("T")

stream_p = Primitive("stream")
stream_p.multiple_results = True


def stream(body: Callable, carry: T, given: object, by_row: bool = False, backwards: bool = False) -> tuple[T, PyTree]:
    """Runs the loop ``carry, row = body(carry, given)``; returns the last carry,
    and a row that stands for the rows of all iterations.

    The caller of the native code passes sequences, of which each iteration reads one entry. ``given``: pytree of
    `jax.ShapeDtypeStruct`, with the shape of an entry of each sequence. An entry has shape () and is the same for all
    lanes; with ``by_row`` it has any shape and differs between lanes. With ``by_row`` the memory of the results has one
    row after the other, so that another stream can read them as a sequence. With ``backwards`` sequences are read from
    the last entry to the first.
    """
    closed, shape = jax.make_jaxpr(body, return_shape=True)(carry, given)
    leaves = jax.tree.leaves(carry)
    kind = {"by_row": by_row, "backwards": backwards}
    found = stream_p.bind(*closed.consts, *leaves, jaxpr=closed.jaxpr, carried=len(leaves), **kind)
    return jax.tree.unflatten(jax.tree.structure(shape), found)


@stream_p.def_effectful_abstract_eval
def _(*_: object, jaxpr: OpenJaxpr, **__: object) -> tuple:
    return [v.aval for v in jaxpr.outvars], jaxpr.effects


def yields_rows(jaxpr: OpenJaxpr) -> list[bool]:
    """Mask of the outputs of a jaxpr that are rows of a stream, and get an axis of rows where it runs."""
    flags = dict.fromkeys([*jaxpr.constvars, *jaxpr.invars], False)
    read = reader(flags, lambda v: False)
    for eqn in jaxpr.eqns:
        # nothing but an order of entries is computed from rows
        found = [any(map(read, eqn.invars))] * len(eqn.outvars)
        if eqn.primitive is stream_p:
            found = [i >= eqn.params["carried"] for i in range(len(eqn.outvars))]
        elif eqn.primitive.name in ("jit", "pjit"):
            found = list(map(operator.or_, found, yields_rows(eqn.params["jaxpr"].jaxpr)))
        flags.update(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


# differentiation and batching: a stream whose body is differentiated or batched


def _varying_parts(jaxpr: OpenJaxpr, carried: int, flags: Sequence[bool]) -> tuple[int, list, list[bool], list[bool]]:
    """Finds which parts of a stream vary, that is have a tangent (in its JVP rule) or are
    batched (in its batching rule).

    ``carried``: number of carried values; ``flags``: mask of the operands that vary. Returns the number of constants;
    the avals of the entries of sequences that the stream reads; the mask of the operands (constants and carry) that
    vary in some iteration; and the mask of the results that do.
    """
    fixed = len(jaxpr.constvars)
    given = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.invars[carried:]]
    carry = list(flags[fixed:])
    while True:
        found = varying_outputs(jaxpr, [*carry, *[False] * len(given)], flags[:fixed])
        new = [x or y for x, y in zip(carry, found, strict=False)]
        if new == carry:
            return fixed, given, [*flags[:fixed], *carry], [*carry, *found[carried:]]
        carry = new


def _stream_jvp(
    primals: Sequence, tangents: Sequence, *, jaxpr: OpenJaxpr, carried: int, **kind: bool
) -> tuple[list, list]:
    """JVP rule: binds a stream whose carry includes the nonzero tangents;
    it yields a row of tangents for every row of floats."""
    fixed, given, moved, _ = _varying_parts(jaxpr, carried, [type(t) is not ad.Zero for t in tangents])
    real = lambda x: jnp.issubdtype(x.dtype, jnp.inexact)
    moved = [m and real(x) for m, x in zip(moved, primals, strict=True)]
    where = [i for i, m in enumerate(moved) if m]
    carries = [i for i in where if i >= fixed]
    out = [i - fixed for i in carries] + [i for i, v in enumerate(jaxpr.outvars) if i >= carried and real(v.aval)]
    constants = primals[:fixed], [ad.instantiate_zeros(tangents[i]) for i in where if i < fixed]
    start = primals[fixed:], [ad.instantiate_zeros(tangents[i]) for i in carries]

    def body(state: tuple, turn: list) -> tuple[tuple, tuple]:
        operands = [*constants[0], *state[0]]

        def of(changing: list) -> list:
            full = list(operands)
            for i, x in zip(where, changing, strict=True):
                full[i] = x
            return jaxpr_as_fun(ClosedJaxpr(jaxpr, full[:fixed]))(*full[fixed:], *turn)

        found, change = jax.jvp(of, ([operands[i] for i in where],), ([*constants[1], *state[1]],))
        changes = [change[i] for i in out]
        return (found[:carried], changes[: len(carries)]), (found[carried:], changes[len(carries) :])

    (last, last_change), (rows, row_changes) = stream(body, start, given, **kind)
    changes = dict(zip(out, [*last_change, *row_changes], strict=True))
    none = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in (*last, *rows)]
    return [*last, *rows], [changes.get(i, zero) for i, zero in enumerate(none)]


def _stream_batching(
    operands: Sequence, axes: Sequence, *, jaxpr: OpenJaxpr, carried: int, **kind: bool
) -> tuple[list, list]:
    """Batching rule: binds a stream whose body is vmapped; values that are equal in all lanes stay unbatched."""
    batch = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
    fixed, given, many, out = _varying_parts(jaxpr, carried, [a is not None for a in axes])
    operands = [batching.bdim_at_front(x, a, batch) if m else x for x, a, m in zip(operands, axes, many, strict=True)]
    lead = [0 if m else None for m in many]
    results = [0 if m else None for m in out]

    def body(state: list, turn: list) -> tuple[list, list]:
        def of(*full: Array) -> list:
            return jaxpr_as_fun(ClosedJaxpr(jaxpr, full[:fixed]))(*full[fixed:], *turn)

        found = jax.vmap(of, in_axes=lead, out_axes=results, axis_size=batch)(*operands[:fixed], *state)
        return found[:carried], found[carried:]

    last, rows = stream(body, list(operands[fixed:]), given, **kind)
    return [*last, *rows], results


def _stream_dead_code(used: Sequence[bool], *rest: Any) -> tuple[list[bool], Equation | None]:
    """Rule for dead code: drops rows that are not used, and carried values on which nothing depends;
    constants and sequences stay."""
    (*_, eqn), used, p = rest, list(used), rest[-1].params
    jaxpr, carried = p["jaxpr"], p["carried"]
    constants, sequences = len(eqn.invars) - carried, len(jaxpr.invars) - carried
    if eqn.effects or all(used):
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    live = live_carry(used, jaxpr, 0, carried)
    body, _ = partial_eval.dce_jaxpr(jaxpr, [*live, *used[carried:]], [*live, *[True] * sequences])
    kept = [*[True] * constants, *live]
    invars = [v for v, k in zip(eqn.invars, kept, strict=True) if k]
    outvars = [v for v, k in zip(eqn.outvars, [*live, *used[carried:]], strict=True) if k]
    params = p | {"jaxpr": body, "carried": sum(live)}
    return kept, eqn.replace(invars=invars, outvars=outvars, params=params)


ad.primitive_jvps[stream_p] = _stream_jvp
partial_eval.dce_rules[stream_p] = _stream_dead_code
batching.primitive_batchers[stream_p] = _stream_batching
