"""Custom derivatives: grafts, which give one value the derivative of another; implicit roots; and errors where a
derivative would be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from .shapes import PyTree

S = TypeVar("S")
T = TypeVar("T")

# messages of refused derivatives
NO_DERIVATIVE = (
    "solve(sensitivity='none') has no derivative: use sensitivity='corrected' (right across impacts) or 'discrete'"
)
NO_SECOND_DERIVATIVE = (
    "second derivatives through solve(sensitivity='corrected'): the derivative of a time-stepping scheme across "
    "impacts is "
    "corrected once, and differentiated again it would be wrong by O(1) at every h. Use scheme=EventCorrected() with "
    "jax.jacfwd(jax.jacfwd(f)) or jax.jacrev(jax.jacfwd(f)), or differences of first derivatives; "
    "sensitivity='discrete' "
    "gives the second derivative of the discrete map"
)
NO_REVERSE_INSIDE = (
    "second derivatives through solve with reverse mode inside (jax.hessian, grad of grad, jacfwd of grad): jax "
    "forgets the "
    "derivative rules of parts of the step there. Use forward mode inside: jax.jacfwd(jax.jacfwd(f)) or "
    "jax.jacrev(jax.jacfwd(f))"
)

# A primitive, since reverse mode through a loop drops the rule of a `jax.custom_jvp` function, but not that of a
# primitive.
guard_p = Primitive("guard")  # (value, anchor of the same shape) -> value; an error where either is differentiated


def _guard_jvp(primals: Sequence[Array], tangents: Sequence, *, why: str) -> tuple[Array, ad.Zero]:
    if any(type(t) is not ad.Zero for t in tangents):
        raise ValueError(why)
    value = guard_p.bind(*primals, why=why)
    return value, ad.Zero(jax.typeof(value).to_tangent_aval())


guard_p.def_impl(lambda value, anchor, *, why: value)
guard_p.def_abstract_eval(lambda value, anchor, *, why: value)
ad.primitive_jvps[guard_p] = _guard_jvp
batching.primitive_batchers[guard_p] = lambda operands, axes, *, why: (guard_p.bind(*operands, why=why), axes[0])
mlir.register_lowering(guard_p, mlir.lower_fun(lambda value, anchor, *, why: value, multiple_results=False))


forward_only_p = Primitive("forward_only")  # value -> value; an error where it is transposed


def _no_transpose(cotangent: object, value: object, *, why: str) -> NoReturn:
    raise ValueError(why)


forward_only_p.def_impl(lambda value, *, why: value)
forward_only_p.def_abstract_eval(lambda value, *, why: value)
ad.deflinear2(forward_only_p, _no_transpose)
batching.defvectorized(forward_only_p)
mlir.register_lowering(forward_only_p, mlir.lower_fun(lambda value, *, why: value, multiple_results=False))


def _map_floating_leaves(function: Callable, tree: T, *others: T) -> T:
    """Applies ``function`` to each floating leaf of ``tree``, with the same leaf of the ``others``; other leaves of
    ``tree``, and empty ones, stay."""
    real = lambda x: jnp.size(x) > 0 and jnp.issubdtype(jnp.result_type(x), jnp.floating)
    return jax.tree.map(lambda x, *y: function(x, *y) if real(x) else x, tree, *others)


@jax.custom_jvp
def graft(value: Array, surrogate: Array) -> Array:
    """Returns ``value``, but its derivatives of all orders are those of ``surrogate``."""
    return value


@graft.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return graft(*primals), tangents[1]


@jax.custom_jvp
def graft_once(value: Array, surrogate: Array) -> Array:
    """Returns ``value``, but its derivative is that of ``surrogate``; a second derivative raises an error."""
    return guard_p.bind(value, surrogate, why=NO_SECOND_DERIVATIVE)


@graft_once.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return guard_p.bind(*primals, why=NO_SECOND_DERIVATIVE), tangents[1]


@jax.custom_jvp
def _forward_first(x: Array) -> Array:
    return guard_p.bind(x, x, why=NO_REVERSE_INSIDE)


@_forward_first.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return _forward_first(*primals), tangents[0]


def graft_tree(value: T, surrogate: T) -> T:
    """Applies `graft_once` to the floating leaves of two pytrees of one structure."""
    return _map_floating_leaves(graft_once, value, surrogate)


def guard_derivative(tree: T, why: str = NO_REVERSE_INSIDE) -> T:
    """Returns a pytree unchanged, but differentiating it raises a ValueError with the message ``why``."""
    return _map_floating_leaves(lambda x: guard_p.bind(x, x, why=why), tree)


def forward_only(tree: T, why: str) -> T:
    """Returns a pytree unchanged, but transposing it, as reverse mode does,
    raises a ValueError with the message ``why``."""
    return _map_floating_leaves(lambda x: forward_only_p.bind(x, why=why), tree)


def forward_first(tree: T) -> T:
    """Returns a pytree unchanged, but a second derivative whose inner one is in reverse mode, such as forward over
    reverse, raises a ValueError."""
    return _map_floating_leaves(_forward_first, tree)


def hoist_constants(function: Callable, x: object) -> tuple[Callable, list]:
    """Closure conversion: returns a function ``pure(constants, x)``, equal to ``function(x)``, and the list of
    constants that it closes over."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(x)
    jaxpr, constants, structure = closed.jaxpr, closed.consts, jax.tree.structure(shape)

    def pure(constants: list, x: object) -> PyTree:
        # closes over no constant, which would outlive the trace that it is of
        found = jaxpr_as_fun(ClosedJaxpr(jaxpr, constants))(*jax.tree.leaves(x))
        return jax.tree.unflatten(structure, found)

    return pure, constants


def without_derivative(function: Callable[[S], T], x: S) -> T:
    """Returns ``function(x)`` as a constant: its derivatives by x, and by values that ``function`` closes over,
    are zero."""
    pure, constants = hoist_constants(function, x)
    return pure(*lax.stop_gradient((constants, x)))


def implicit_root(residual: Callable, guess: T, solve: Callable, tangent_solve: Callable) -> tuple[T, PyTree]:
    """Returns the root x of ``residual``, differentiable by the implicit function theorem, and an auxiliary output,
    whose derivative is 0.

    ``solve(residual, guess)`` returns both, (x, aux); ``tangent_solve(linear, y)`` returns the x for which
    ``linear(x) = y``. It replaces `lax.custom_root`, whose functions newer versions of jax hide from custom primitives.
    """
    of_residual, by_residual = hoist_constants(residual, guess)
    of_solve, by_solve = hoist_constants(lambda guess: solve(residual, guess), guess)
    linearised = lambda at: tangent_solve(lambda change: jax.jvp(residual, (at[0],), (change,))[1], at[1])
    of_tangent, by_tangent = hoist_constants(linearised, (guess, guess))

    @jax.custom_jvp
    def root(constants: tuple, guess: T) -> tuple[T, PyTree]:
        return of_solve(constants[1], guess)

    @root.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        constants, guess = primals
        # calls root, not solve, so that the derivative can itself be differentiated
        x, aux = root(constants, guess)
        moved = jax.jvp(lambda known: of_residual(known, x), (constants[0],), (tangents[0][0],))[1]
        change = jax.tree.map(jnp.negative, of_tangent(constants[2], (x, moved)))
        return (x, aux), (change, jax.tree.map(jnp.zeros_like, aux))

    return root((by_residual, by_solve, by_tangent), guess)
