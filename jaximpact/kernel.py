"""Many motions as one kernel of a GPU: a block of lanes a program, its state in registers over all steps.

What a function does to one lane is traced, taken apart into numbers (`scalarise`), and executed inside one `pallas_call`
with blocks of lanes in their place. Loops and branches are real: a loop goes on while any lane of its block does, and a
branch is taken if any lane needs it, the others keeping what they have. What has no rule here raises `Unsupported`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Literal

from .jaxprs import CALLS, IDENTITIES, as_closed, scan_counts, size, varying
from .numbers import Unsupported, carried_axes, inputs, numbers

BLOCK = (
    32  # lanes of one program, which go through loops and branches together: one warp was fastest, of 32 to 256 lanes
)
WARPS = 1
LARGEST = 10_000  # operations of a program: twice as many take minutes to compile


def over_lanes(one: Callable, axes: tuple, largest: int = LARGEST, interpret: bool = False) -> Callable:
    """``one`` for all lanes, as `jax.vmap` of it with ``in_axes=axes`` would be, as one kernel.

    ``largest``: operations of a program at most; ``interpret``: imitate the kernel, on any platform.

    Raises:
        Unsupported: while it is traced, if a part of ``one`` has no rule here, or is too large.
    """

    def call(*operands: Any) -> Any:
        carried = jax.tree.leaves(carried_axes(axes, operands))
        leaves, structure = jax.tree.flatten(operands)
        lanes = next(x.shape[0] for x, c in zip(leaves, carried, strict=True) if c)
        member = [jax.typeof(x).update(shape=x.shape[1:]) if c else x for x, c in zip(leaves, carried, strict=True)]
        closed, shape = jax.make_jaxpr(one, return_shape=True)(*jax.tree.unflatten(structure, member))
        # what the function closes over is shared by all lanes
        given = [*zip(leaves, carried, strict=True), *((x, False) for x in inputs(closed)[1])]
        program = numbers(closed)
        if size(program.jaxpr) > largest:
            raise Unsupported(f"a program of {size(program.jaxpr)} operations, more than {largest}")
        entries, varies = [], []
        for x, c in given:
            x = jnp.asarray(x).reshape(lanes if c else 1, -1)
            entries += [x[:, i] for i in range(x.shape[1])]
            varies += [c] * x.shape[1]
        found = _launch(program, entries, varies, lanes, interpret)
        arrays, parts = [], iter(found)
        for v in closed.jaxpr.outvars:
            columns = [next(parts) for _ in range(math.prod(v.aval.shape))]
            empty = jnp.zeros((lanes, 0), v.aval.dtype)
            arrays.append((jnp.stack(columns, -1) if columns else empty).reshape(lanes, *v.aval.shape))
        return jax.tree.unflatten(jax.tree.structure(shape), arrays)

    return call


def _launch(program: ClosedJaxpr, entries: list, varies: list[bool], lanes: int, interpret: bool) -> list:
    """The program of one lane for all of them: entries (lanes,) or, shared, (1,); its outputs (lanes,)."""
    count = -(-lanes // BLOCK)
    fill = count * BLOCK - lanes
    entries = [jnp.concatenate([x, jnp.repeat(x[-1:], fill)]) if v and fill else x
               for x, v in zip(entries, varies, strict=True)]  # fmt: skip

    from jax.experimental import pallas  # a second of importing that not everybody needs

    def body(*refs: Any) -> None:
        values = [ref[...] if v else ref[0] for ref, v in zip(refs, varies, strict=False)]
        found = run(program, values)
        for ref, x in zip(refs[len(varies) :], found, strict=True):
            ref[...] = jnp.broadcast_to(jnp.asarray(x, ref.dtype), (BLOCK,))

    block = pallas.BlockSpec((BLOCK,), lambda i: (i,))
    shared = pallas.BlockSpec((1,), lambda i: (0,))
    shapes = [jax.ShapeDtypeStruct((count * BLOCK,), v.aval.dtype) for v in program.jaxpr.outvars]  # type: ignore[attr-defined]
    parameters: dict[str, Any] = {}
    if not interpret:
        from jax.experimental.pallas import triton

        parameters["compiler_params"] = triton.CompilerParams(num_warps=WARPS, num_stages=1)
    found = pallas.pallas_call(
        body, grid=(count,), in_specs=[block if v else shared for v in varies], out_specs=[block] * len(shapes),
        out_shape=shapes, interpret=interpret, **parameters,
    )(*entries)  # fmt: skip
    return [x[:lanes] for x in found]


# a program of numbers, executed on blocks of lanes (BLOCK,) and on numbers () that all of them share


def run(program: Any, values: Iterable) -> list:
    """The outputs of a jaxpr of numbers, for blocks or numbers."""
    env: dict = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    env.update(zip(program.jaxpr.invars, values, strict=True))

    def read(v: Any) -> Any:
        return np.asarray(v.val, jax.typeof(v.val).dtype)[()] if isinstance(v, Literal) else env[v]

    for eqn in program.jaxpr.eqns:
        found = _apply(eqn, [read(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in program.jaxpr.outvars]


def _apply(eqn: Any, values: list) -> list:
    name = eqn.primitive.name
    if name in IDENTITIES:
        return values[:1]
    if name in CALLS:
        return run(as_closed(eqn.params[CALLS[name]]), values)
    if name in RULES:
        return RULES[name](eqn, values)
    if any(v.aval.shape for v in (*eqn.invars, *eqn.outvars)):
        raise Unsupported(name)
    found = eqn.primitive.bind(*_alike(values), **eqn.params)
    return list(found) if eqn.primitive.multiple_results else [found]


def _alike(values: Sequence) -> list:
    """Blocks, if there is one among them."""
    if any(np.ndim(x) for x in values):
        return [jnp.broadcast_to(x, (BLOCK,)) for x in values]
    return [jnp.asarray(x) for x in values]


def _any(which: Array) -> Array:
    return jnp.max(which.astype(jnp.int32)) > 0


def _round(eqn: Any, values: list) -> list:
    """To the nearest whole number, and of two to the even one."""
    (x,) = _alike(values)
    half = jnp.asarray(0.5, x.dtype)
    found = lax.floor(x + half) if x.ndim == 0 else lax.floor(x + jnp.broadcast_to(half, x.shape))
    if eqn.params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN:
        raise Unsupported("round away from zero")
    odd = found * 0.5 != lax.floor(found * 0.5)
    return [jnp.where((found - x == 0.5) & odd, found - 1, found)]


def _extreme(combine: Callable) -> Callable:
    """max or min, NaN where either is: those of the device take the other."""

    def rule(eqn: Any, values: list) -> list:
        x, y = _alike(values)
        found = combine(x, y)
        if jnp.issubdtype(x.dtype, jnp.floating):
            found = jnp.where(x != x, x, jnp.where(y != y, y, found))
        return [found]

    return rule


def _clamp(eqn: Any, values: list) -> list:
    least, x, most = _alike(values)
    return _smallest(eqn, [_largest(eqn, [least, x])[0], most])


_largest, _smallest = _extreme(lax.max), _extreme(lax.min)


def _linear_solve(eqn: Any, values: list) -> list:
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    ends = np.cumsum(lengths)
    parts = [values[a:b] for a, b in zip([0, *ends], [*ends, None], strict=True)]
    return run(jaxprs.solve, [*parts[2], *parts[4]])


def _while(eqn: Any, values: list) -> list:
    p = eqn.params
    a, b = p["cond_nconsts"], p["body_nconsts"]
    head, fixed, start = values[:a], values[a : a + b], values[a + b :]
    test, body = as_closed(p["cond_jaxpr"]), as_closed(p["body_jaxpr"])
    blocks = varying(eqn, [np.ndim(x) > 0 for x in values])

    def going(carry: Iterable) -> Array:
        return jnp.asarray(run(test, [*head, *carry])[0])

    def carried(values: Iterable) -> list:
        return [jnp.broadcast_to(x, (BLOCK,)) if b else jnp.asarray(x) for x, b in zip(values, blocks, strict=True)]

    start = carried(start)
    if jax.eval_shape(going, start).ndim == 0:
        return list(lax.while_loop(going, lambda carry: carried(run(body, [*fixed, *carry])), start))

    def turn(state: tuple) -> tuple:
        live, carry = state
        new = carried(run(body, [*fixed, *carry]))
        kept = [jnp.where(live, x, y) for x, y in zip(new, carry, strict=True)]
        return live & going(kept), kept

    return list(lax.while_loop(lambda state: _any(state[0]), turn, (going(start), start))[1])


def _scan(eqn: Any, values: list) -> list:
    p = eqn.params
    a, count = scan_counts(p)
    if len(values) > a + count or len(eqn.outvars) > count:
        raise Unsupported("scan over arrays")
    blocks = varying(eqn, [np.ndim(x) > 0 for x in values])

    def carried(values: Iterable) -> list:
        return [jnp.broadcast_to(x, (BLOCK,)) if b else jnp.asarray(x) for x, b in zip(values, blocks, strict=True)]

    body = as_closed(p["jaxpr"])
    turn = lambda _, carry: carried(run(body, [*values[:a], *carry]))
    return list(lax.fori_loop(0, p["length"], turn, carried(values[a:])))


def _cond(eqn: Any, values: list) -> list:
    branches = [as_closed(x) for x in eqn.params["branches"]]
    which, *operands = values
    blocks = varying(eqn, [np.ndim(x) > 0 for x in values])

    def of(branch: ClosedJaxpr) -> list:
        found = run(branch, operands)
        return [jnp.broadcast_to(x, (BLOCK,)) if b else jnp.asarray(x) for x, b in zip(found, blocks, strict=True)]

    which = jnp.asarray(which)
    if which.ndim == 0:
        index = which.astype(jnp.int32)
        return list(lax.switch(index, [lambda branch=branch: of(branch) for branch in branches]))
    which = jnp.clip(which.astype(jnp.int32), 0, len(branches) - 1)
    # the shortest always, the others if any lane asks for them
    first, *rest = sorted(range(len(branches)), key=lambda i: size(branches[i].jaxpr))
    found = of(branches[first])
    for i in rest:
        asked = which == i

        def taken(found: list = found, asked: Array = asked, i: int = i) -> list:
            return [jnp.where(asked, x, y) for x, y in zip(of(branches[i]), found, strict=True)]

        found = lax.cond(_any(asked), taken, lambda found=found: list(found))
    return found


RULES: dict[str, Callable] = {
    "while": _while, "scan": _scan, "cond": _cond, "round": _round, "custom_linear_solve": _linear_solve,
    "max": _largest, "min": _smallest, "clamp": _clamp,
}  # fmt: skip
