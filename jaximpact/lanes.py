"""Control flow that a lane shares with the batch it is part of.

`jax.vmap` turns the branch of a lane into work for all lanes and a selection. Where the work is much and needed by few,
only those should be worked on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import ShapedArray
from jax.custom_batching import custom_vmap
from jax.dtypes import float0
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from .derivatives import REVERSE_INSIDE, guarded, opened

FEW = 64  # lanes gathered at a time


def few(work: Callable, pending: Array, value: Any, operands: Any) -> Any:
    """``work(value, operands)`` where ``pending``, else ``value``; not to be differentiated.

    In a batch the pending lanes are gathered, FEW at a time, and only they are worked on. ``work`` must not close over
    anything that differs between lanes: that belongs into the operands.
    """

    @custom_vmap
    def masked(pending: Array, value: Any, operands: Any) -> Any:
        return lax.cond(pending, work, lambda value, operands: value, value, operands)

    @masked.def_vmap
    def rule(size: int, batched: Any, pending: Array, value: Any, operands: Any) -> tuple[Any, Any]:
        def spread(x: Any, b: bool) -> Array:
            return x if b else jnp.broadcast_to(x, (size, *jnp.shape(x)))

        if not any(jax.tree.leaves(batched)):
            return masked.fun(pending, value, operands), batched[1]
        value = jax.tree.map(spread, value, batched[1])
        axes = jax.tree.map(lambda b: 0 if b else None, batched[2])
        if not batched[0]:
            # directions of one lane: it is pending in all of them or in none
            every = jax.vmap(work, in_axes=(0, axes), axis_size=size)
            return few(every, pending, value, operands), jax.tree.map(lambda _: True, value)

        every = jax.vmap(masked.fun, in_axes=(0, 0, axes))

        def go(carry: tuple[Array, Any]) -> tuple[Array, Any]:
            pending, value = carry
            marked, where = lax.top_k(pending.astype(jnp.float32), min(FEW, size))

            def take(x: Any, b: bool = True) -> Any:
                return jnp.asarray(x).at[where].get(mode="promise_in_bounds") if b else x

            def put(x: Any, y: Any) -> Array:
                return jnp.asarray(x).at[where].set(y, mode="promise_in_bounds", unique_indices=True)

            new = every(marked > 0, jax.tree.map(take, value), jax.tree.map(take, operands, batched[2]))
            return put(pending, jnp.zeros_like(marked, bool)), jax.tree.map(put, value, new)

        value = lax.while_loop(lambda carry: jnp.any(carry[0]), go, (pending, value))[1]
        return value, jax.tree.map(lambda _: True, value)

    rule.__dict__["few"] = True
    return masked(pending, value, operands)


def few_differentiated(calm: Callable, whole: Callable, why: str = REVERSE_INSIDE) -> Callable[[Any], Any]:
    """x -> y: ``whole(x)`` where ``calm(x)``, a pair (y, pending), is pending, else its y; derivatives alike, in either mode.

    x and y are pytrees; their integers and booleans have no derivative. What the functions close over may be differentiated too.
    ``why``: the error where jax has forgotten the rule of the derivative.
    """

    def call(x: Any) -> Any:
        (of_calm, by_calm), (of_whole, by_whole) = opened(calm, x), opened(whole, x)
        choose = _chosen(lambda z: of_calm(z[0], z[2]), lambda z: of_whole(z[1], z[2]), why)
        return choose((by_calm, by_whole, x))

    return call


def _chosen(calm: Callable, whole: Callable, why: str) -> Callable[[Any], Any]:
    """`few_differentiated` of functions that close over nothing."""

    def is_real(x: Any) -> bool:
        return jnp.issubdtype(jnp.result_type(x), jnp.floating)

    @jax.custom_jvp
    def function(x: Any) -> Any:
        # jax may forget the rule below
        x = guarded(x, why)
        y, pending = calm(x)
        return few(lambda _, x: whole(x), pending, y, x)

    @function.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(primals[0])
        change = [t for x, t in zip(leaves, jax.tree.leaves(tangents[0]), strict=True) if is_real(x)]

        def tangent(function: Callable, leaves: list, change: list) -> Any:
            """Of the real leaves of what ``function`` gives, for a change of the real leaves it is given."""

            def part(real: list) -> list:
                numbers = iter(real)
                y = function(jax.tree.unflatten(structure, [next(numbers) if is_real(x) else x for x in leaves]))
                return [y for y in jax.tree.leaves(y) if is_real(y)]

            return jax.jvp(part, ([x for x in leaves if is_real(x)],), (change,))[1]

        # the function itself, not its parts: it can be differentiated again
        y, pending = function(primals[0]), calm(primals[0])[1]
        of_calm = jax.make_jaxpr(partial(tangent, lambda x: calm(x)[0]))(leaves, change)
        of_whole = jax.make_jaxpr(partial(tangent, whole))(leaves, change)
        found = iter(few_linear(of_calm, of_whole, pending, leaves, change))
        return y, jax.tree.map(lambda x: next(found) if is_real(x) else np.zeros(x.shape, float0), y)

    return function


def few_linear(calm: ClosedJaxpr, whole: ClosedJaxpr, pending: Array, fixed: list, varied: list) -> list:
    """``whole(*fixed, *varied)`` where ``pending``, else ``calm``; both linear in what is varied, and so is this to jax."""
    return few_linear_p.bind(
        pending, *fixed, *varied, calm=calm, whole=whole, fixed=len(fixed), batches=(), transposed=False
    )


# A primitive, because a derivative has to be transposed for reverse mode, also inside a batch, and `few` is a loop that cannot be.
few_linear_p = Primitive("few_linear")
few_linear_p.multiple_results = True


def _apply(
    choose: Callable,
    pending: Array,
    *operands: Any,
    calm: ClosedJaxpr,
    whole: ClosedJaxpr,
    fixed: int,
    batches: tuple,
    transposed: bool,
) -> Any:
    """Calls ``choose(work, pending, value, operands)`` of one lane; ``batches`` are sizes and axes of batches around it."""

    def one(pending: Array, *operands: Any) -> Any:
        def of(jaxpr: ClosedJaxpr) -> Callable[[Any], Any]:
            def linear(operands: Any) -> Any:
                known, varied = operands[:fixed], operands[fixed:]
                apply = lambda *varied: jaxpr_as_fun(jaxpr)(*known, *varied)
                if not transposed:
                    return apply(*varied)
                return list(jax.linear_transpose(apply, *jaxpr.in_avals[fixed:])(list(varied)))

            return linear

        return choose(lambda _, operands: of(whole)(operands), pending, of(calm)(operands), operands)

    for size, axes in batches:
        one = jax.vmap(one, in_axes=axes, axis_size=size)
    return one(pending, *operands)


def _selected(work: Callable, pending: Array, value: Any, operands: Any) -> Any:
    """`few` that jax can differentiate."""
    return jax.tree.map(lambda new, old: jnp.where(pending, new, old), work(value, operands), value)


def _abstract(*_: Any, calm: ClosedJaxpr, fixed: int, batches: tuple, transposed: bool, **__: Any) -> list[ShapedArray]:
    sizes = tuple(size for size, _ in reversed(batches))
    return [ShapedArray((*sizes, *a.shape), a.dtype) for a in (calm.in_avals[fixed:] if transposed else calm.out_avals)]


def _batched(operands: Any, axes: Any, *, fixed: int, batches: tuple, **params: Any) -> tuple[Any, list[int]]:
    size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
    # what is varied differs between lanes, lest its transpose should sum over them
    kept = [a is None and i <= fixed for i, a in enumerate(axes)]
    operands = [x if k else batching.bdim_at_front(x, a, size) for x, a, k in zip(operands, axes, kept, strict=True)]
    batches = (*batches, (size, tuple(None if k else 0 for k in kept)))
    found = few_linear_p.bind(*operands, fixed=fixed, batches=batches, **params)
    return found, [0] * len(found)


def _pushed(primals: Any, tangents: Any, *, fixed: int, **params: Any) -> tuple[Any, Any]:
    value = few_linear_p.bind(*primals, fixed=fixed, **params)
    known, varied = primals[: fixed + 1], list(map(ad.instantiate_zeros, tangents[fixed + 1 :]))
    change = few_linear_p.bind(*known, *varied, fixed=fixed, **params)
    moved = [i for i, t in enumerate(tangents[: fixed + 1]) if type(t) is not ad.Zero]
    if moved:

        def of(*some: Any) -> Any:
            full = list(primals)
            for i, x in zip(moved, some, strict=True):
                full[i] = x
            return _apply(_selected, *full, fixed=fixed, **params)

        of_known = jax.jvp(of, [primals[i] for i in moved], [tangents[i] for i in moved])[1]
        change = [a + b for a, b in zip(change, of_known, strict=True)]
    return value, change


def _pulled(cotangents: Any, *operands: Any, fixed: int, batches: tuple, transposed: bool, **params: Any) -> list:
    known = operands[: fixed + 1]
    # cotangents come with an axis for every batch, as all that is varied does
    batches = tuple((size, (*axes[: fixed + 1], *[0] * len(cotangents))) for size, axes in batches)
    cotangents = map(ad.instantiate_zeros, cotangents)
    found = few_linear_p.bind(*known, *cotangents, fixed=fixed, batches=batches, transposed=not transposed, **params)
    return [None] * len(known) + found


few_linear_p.def_impl(partial(_apply, few))
few_linear_p.def_abstract_eval(_abstract)
ad.primitive_jvps[few_linear_p] = _pushed
ad.primitive_transposes[few_linear_p] = _pulled
batching.primitive_batchers[few_linear_p] = _batched
mlir.register_lowering(few_linear_p, mlir.lower_fun(partial(_apply, few), multiple_results=True))
