"""Custom derivatives: values with another value's derivative, implicit roots, and errors where a derivative would silently be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

# why a derivative is refused
UNDIFFERENTIATED = (
    "solve(sensitivity='none') has no derivative: use sensitivity='corrected' (right across impacts) or 'discrete'"
)
TWICE = (
    "second derivatives through solve(sensitivity='corrected'): the derivative of a time-stepping scheme across impacts is "
    "corrected once, and differentiated again it would be wrong by O(1) at every h. Use scheme=EventCorrected() with "
    "jax.jacfwd(jax.jacfwd(f)) or jax.jacrev(jax.jacfwd(f)), or differences of first derivatives; sensitivity='discrete' "
    "gives the second derivative of the discrete map"
)
REVERSE_INSIDE = (
    "second derivatives through solve with reverse mode inside (jax.hessian, grad of grad, jacfwd of grad): jax forgets the "
    "derivative rules of parts of the step there. Use forward mode inside: jax.jacfwd(jax.jacfwd(f)) or "
    "jax.jacrev(jax.jacfwd(f))"
)

# A primitive, because jax keeps its rule everywhere, while reverse mode through a loop forgets those of `jax.custom_jvp`.
guard_p = Primitive("guard")  # (value, anchor of the same shape) -> value; an error once either is differentiated


def _refuse(primals: Any, tangents: Any, *, why: str) -> tuple[Any, Any]:
    if any(type(t) is not ad.Zero for t in tangents):
        raise ValueError(why)
    value = guard_p.bind(*primals, why=why)
    return value, ad.Zero(jax.typeof(value).to_tangent_aval())


guard_p.def_impl(lambda value, anchor, *, why: value)
guard_p.def_abstract_eval(lambda value, anchor, *, why: value)
ad.primitive_jvps[guard_p] = _refuse
batching.primitive_batchers[guard_p] = lambda operands, axes, *, why: (guard_p.bind(*operands, why=why), axes[0])
mlir.register_lowering(guard_p, mlir.lower_fun(lambda value, anchor, *, why: value, multiple_results=False))


forward_only_p = Primitive("forward_only")  # value -> value; an error where it is transposed


def _no_transpose(cotangent: Any, value: Any, *, why: str) -> Any:
    raise ValueError(why)


forward_only_p.def_impl(lambda value, *, why: value)
forward_only_p.def_abstract_eval(lambda value, *, why: value)
ad.deflinear2(forward_only_p, _no_transpose)
batching.defvectorized(forward_only_p)
mlir.register_lowering(forward_only_p, mlir.lower_fun(lambda value, *, why: value, multiple_results=False))


def _over_reals(function: Callable, tree: Any, *others: Any) -> Any:
    """Applies ``function`` to every floating leaf of pytrees."""
    real = lambda x: jnp.issubdtype(jnp.result_type(x), jnp.floating)
    return jax.tree.map(lambda x, *y: function(x, *y) if real(x) else x, tree, *others)


@jax.custom_jvp
def graft(value: Array, surrogate: Array) -> Array:
    """``value`` with the derivative of ``surrogate``, of any order."""
    return value


@graft.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return graft(*primals), tangents[1]


@jax.custom_jvp
def graft_once(value: Array, surrogate: Array) -> Array:
    """``value`` with the first derivative of ``surrogate``; a second derivative is an error."""
    return guard_p.bind(value, surrogate, why=TWICE)


@graft_once.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return guard_p.bind(*primals, why=TWICE), tangents[1]


@jax.custom_jvp
def _forward_first(x: Array) -> Array:
    return guard_p.bind(x, x, why=REVERSE_INSIDE)


@_forward_first.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return _forward_first(*primals), tangents[0]


def graft_tree(value: Any, surrogate: Any) -> Any:
    """Applies `graft_once` to every floating leaf of a pytree."""
    return _over_reals(graft_once, value, surrogate)


def guard_derivative(tree: Any, why: str = REVERSE_INSIDE) -> Any:
    """``tree`` unchanged, but differentiating it raises an error that says ``why``."""
    return _over_reals(lambda x: guard_p.bind(x, x, why=why), tree)


def forward_only(tree: Any, why: str) -> Any:
    """The same; differentiating it in reverse mode is an error."""
    return _over_reals(lambda x: forward_only_p.bind(x, why=why), tree)


def forward_first(tree: Any) -> Any:
    """``tree`` unchanged, but differentiating it a second time is an error if the first time was in reverse mode."""
    return _over_reals(_forward_first, tree)


def hoist_constants(function: Callable, x: Any) -> tuple[Callable, list]:
    """Turns closed-over values into arguments: returns ``pure(constants, x)``, equal to ``function(x)``, and the constants."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(x)

    def pure(constants: list, x: Any) -> Any:
        found = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, constants))(*jax.tree.leaves(x))
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return pure, closed.consts


def implicit_root(residual: Callable, guess: Any, solve: Callable, tangent_solve: Callable) -> tuple[Any, Any]:
    """Root x of ``residual``, differentiated by the implicit function theorem; auxiliary real numbers have no derivative.

    ``solve(residual, guess) -> (x, aux)``; ``tangent_solve(linear, y)`` gives x with ``linear(x) = y``. It replaces `lax.custom_root`,
    which newer versions of jax do not show to custom primitives.
    """
    of_residual, by_residual = hoist_constants(residual, guess)
    of_solve, by_solve = hoist_constants(lambda guess: solve(residual, guess), guess)
    linearised = lambda at: tangent_solve(lambda change: jax.jvp(residual, (at[0],), (change,))[1], at[1])
    of_tangent, by_tangent = hoist_constants(linearised, (guess, guess))

    @jax.custom_jvp
    def root(constants: tuple, guess: Any) -> Any:
        return of_solve(constants[1], guess)

    @root.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        constants, guess = primals
        # the function itself, not its parts: it can be differentiated again
        x, aux = root(constants, guess)
        moved = jax.jvp(lambda known: of_residual(known, x), (constants[0],), (tangents[0][0],))[1]
        change = jax.tree.map(jnp.negative, of_tangent(constants[2], (x, moved)))
        return (x, aux), (change, jax.tree.map(jnp.zeros_like, aux))

    return root((by_residual, by_solve, by_tangent), guess)
