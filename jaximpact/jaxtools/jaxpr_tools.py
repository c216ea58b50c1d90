"""Analysis and transformation of jaxprs: nested jaxprs, size, dependence of outputs on inputs, inlining of calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, wraps
from itertools import compress
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from .argument_checks import is_traced
from .jaxpr_types import AnyJaxpr, Equation, LiteralOperand, OpenJaxpr, Operand, Params
from .shapes import PyTree

# primitives that return their operands, and primitives that call the jaxpr in the named parameter
IDENTITIES = {"guard", "forward_only", "stop_gradient", "copy", "copy_p", "name", "optimization_barrier"}
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
         "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call",
         "checkpoint": "jaxpr", "remat2": "jaxpr", "linear_call": "callee", "call_hi_primitive": "_prim"}  # fmt: skip
_JAXPR_TYPES, _SEQUENCE_TYPES = (ClosedJaxpr, OpenJaxpr), (tuple, list)


def as_closed(jaxpr: AnyJaxpr) -> ClosedJaxpr:
    """Closes a jaxpr that has no constants; returns a closed jaxpr unchanged."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def called_jaxpr(eqn: Equation) -> AnyJaxpr:
    """The jaxpr, open or closed, that an equation of one of CALLS evaluates."""
    found = eqn.params[CALLS[eqn.primitive.name]]
    return found if isinstance(found, _JAXPR_TYPES) else _expanded(found, tuple(found.in_avals_flat))


@lru_cache(maxsize=256)
def _expanded(operation: Any, avals: tuple) -> ClosedJaxpr:
    """The jaxpr of an operation that newer versions of jax keep whole, such as `jnp.searchsorted`.

    ``avals``: of its operands, as a part of the key: operations on arrays of other shapes are equal to jax.
    """
    leaves = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    run = lambda *xs: jax.tree.leaves(operation.expand(*jax.tree.unflatten(operation.in_tree, xs)))
    return jax.make_jaxpr(run)(*leaves)


def is_literal(v: Operand) -> TypeGuard[LiteralOperand]:
    """Whether an operand of an equation is a literal rather than a variable."""
    return isinstance(v, Literal)


def reader(env: Mapping, literal: Callable[[LiteralOperand], Any] = lambda v: v.val) -> Callable[[Operand], Any]:
    """Returns a function from an operand of an equation to its value: ``env[v]`` for a variable v,
    ``literal(v)`` for a literal v."""
    return lambda v: literal(v) if is_literal(v) else env[v]


def scan_counts(p: Params) -> tuple[int, int]:
    """Returns how many inputs of a scan with the parameters p are constants, and how many are carried values; its
    sequences follow these."""
    if "num_consts" in p:
        return p["num_consts"], p["num_carry"]
    # newer versions of jax have the inputs as trees
    constants, state, _ = p["ft_in"].unpack()
    return len(constants), len(state)


def count_equations(jaxpr: AnyJaxpr) -> int:
    """Number of equations of a jaxpr, nested jaxprs included."""
    return sum(1 + sum(count_equations(part) for part in nested_jaxprs(eqn)) for eqn in jaxpr.eqns)


def contains_primitive(jaxpr: AnyJaxpr, name: str) -> bool:
    """Whether a jaxpr contains a primitive of the given name, at any depth."""
    return name in _primitive_names(jaxpr)


def implementation(eqn: Equation) -> ClosedJaxpr | None:
    """Returns what an equation's primitive is said to compute (`Primitive.def_impl`) as a jaxpr of other primitives;
    None where it has no such implementation, as primitives of jax have none."""
    try:
        closed = jax.make_jaxpr(lambda *x: eqn.primitive.impl(*x, **eqn.params))(*(v.aval for v in eqn.invars))
    except Exception:  # an implementation by anything but operations of jax may raise what it likes
        return None
    same = [(v.aval.shape, v.aval.dtype) for v in eqn.outvars] == [(a.shape, a.dtype) for a in closed.out_avals]
    return None if contains_primitive(closed, eqn.primitive.name) or not same else closed


def nested_jaxprs(eqn: Equation) -> list:
    """The open jaxprs in an equation's parameters: branches, loop bodies, called functions."""
    return [getattr(v, "jaxpr", v) for v in _nested_params(eqn)]


def _nested_params(eqn: Equation) -> list:
    """Returns the jaxprs in an equation's parameters as they are there, closed or open."""
    found = []  # called for every equation many times: parameters that are no sequences make no list
    if eqn.primitive.name == "call_hi_primitive":
        return [called_jaxpr(eqn)]
    for value in eqn.params.values():
        if isinstance(value, _JAXPR_TYPES):
            found.append(value)
        elif isinstance(value, _SEQUENCE_TYPES):
            found += [v for v in value if isinstance(v, _JAXPR_TYPES)]
    return found


_closed_over: WeakKeyDictionary[AnyJaxpr, dict] = WeakKeyDictionary()  # results of `closed_over_values`


def closed_over_values(jaxpr: AnyJaxpr) -> dict:
    """Returns the constants that a jaxpr and its nested jaxprs close over,
    as a mapping from constant variables to values."""
    if jaxpr in _closed_over:
        return _closed_over[jaxpr]
    inside = getattr(jaxpr, "jaxpr", jaxpr)
    # in newer versions of jax a closed jaxpr is a jaxpr with constants: its attribute jaxpr is itself
    found = dict(zip(inside.constvars, getattr(jaxpr, "consts", ()), strict=False))
    for eqn in inside.eqns:
        for part in _nested_params(eqn):
            # a stream passes the constants of its body as operands
            known = getattr(part, "constvars", ()) if eqn.primitive.name == "stream" else ()
            found |= {v: x for v, x in closed_over_values(part).items() if v not in known}
    if not is_traced(list(found.values())):  # which would keep the jaxpr that they belong to
        _closed_over[jaxpr] = found
    return found


def evaluate_equation(eqn: Equation, values: Sequence, **changes: object) -> list:
    """Returns the results of an equation's primitive for the operands ``values``,
    with the ``changes`` of its parameters."""
    found = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params | changes))
    return list(found) if eqn.primitive.multiple_results else [found]


def inline_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns a jaxpr with calls of jitted functions inlined, equal equations (common subexpressions) merged,
    and dead ones removed.

    It saves time: jax differentiates and batches each call separately, which takes some milliseconds for each.
    """
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return jax.make_jaxpr(lambda *values: _inlined(closed.jaxpr, closed.consts, values, {}))(*avals)


def _inlined(jaxpr: AnyJaxpr, constants: Sequence, values: Sequence, seen: dict) -> list:
    """Values of a jaxpr, with calls of jitted functions inlined; ``seen``: results by operation and operands,
    of equations before."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
    read = reader(env)
    for eqn in needed_equations(jaxpr):
        given = [read(v) for v in eqn.invars]
        if eqn.primitive.name in ("jit", "pjit"):
            called = eqn.params["jaxpr"]
            found = _inlined(called.jaxpr, called.consts, given, seen)
        else:
            found = _once(eqn, given, seen)
        env.update(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _once(eqn: Equation, given: list, seen: dict) -> list:
    """Results of an equation, those of an equal one before if there is one."""
    # operands are equal if they are the same tracer, or literals of one value and type
    names = [(v.val, v.aval) if is_literal(v) else id(x) for v, x in zip(eqn.invars, given, strict=True)]
    key = (eqn.primitive, str(names), str(eqn.params)) if not nested_jaxprs(eqn) else None
    if key is None or key not in seen:
        # the operands are stored too: while they live, their ids are not given to other objects
        seen[key] = evaluate_equation(eqn, given, **_inline_nested(eqn.params)), given
    return seen[key][0]


def replay_jaxpr(function: Callable) -> Callable:
    """Decorator: traces a function once for each combination of operand types, and later evaluates its inlined jaxpr in
    place of the Python code.

    The Python code runs as usual if no operand is traced, if the function has effects,
    or if it closes over traced values.
    """

    @wraps(function)
    def replay(*operands: object) -> PyTree:
        if not is_traced(operands):
            return function(*operands)
        # jax caches traces by function, so that jit here is cheap; a jitted function as attribute could not be pickled
        # by value
        traced, leaves = jax.jit(function).trace(*operands), jax.tree.leaves(operands)
        closed = traced.jaxpr
        # newer versions of jax append closed-over values to the operands
        if closed.effects or is_traced(closed.consts) or len(closed.in_avals) != len(leaves):
            return function(*operands)
        found = _inline_cached(closed)(*leaves)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), found)

    return replay


_inline_cache: WeakKeyDictionary[ClosedJaxpr, Callable] = WeakKeyDictionary()


def _inline_cached(closed: ClosedJaxpr) -> Callable:
    """Returns a jaxpr with calls inlined as a jitted function: one equation where it is used,
    dozens of times in a step."""
    # the cache is looked up in this module, not in the closure of replay, which can then be pickled by value
    if closed not in _inline_cache:
        _inline_cache[closed] = jax.jit(jaxpr_as_fun(inline_calls(closed)))
    return _inline_cache[closed]


def remember_by_jaxpr(function: Callable) -> Callable:
    """Decorator of a function of a jaxpr, open or closed, and hashable arguments:
    caches its results as long as the jaxpr lives.

    Code generation calls such a function for a nested jaxpr again at each level of nesting around it; without the cache
    its time would grow with the square of the depth.
    """
    known: WeakKeyDictionary[AnyJaxpr, dict] = WeakKeyDictionary()

    @wraps(function)
    def remember(jaxpr: AnyJaxpr, *args: Hashable) -> Any:
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        results = known.setdefault(jaxpr, {})
        if args not in results:
            results[args] = function(jaxpr, *args)
        return results[args]

    return remember


@remember_by_jaxpr
def _primitive_names(jaxpr: AnyJaxpr) -> frozenset[str]:
    """Names of the primitives in a jaxpr, at any depth."""
    here = {eqn.primitive.name for eqn in jaxpr.eqns}
    return frozenset(here.union(*(_primitive_names(part) for part in _nested_in(jaxpr))))


@remember_by_jaxpr
def _nested_in(jaxpr: AnyJaxpr) -> list:
    """The open jaxprs in the parameters of all equations of a jaxpr."""
    return [part for eqn in jaxpr.eqns for part in nested_jaxprs(eqn)]


def needed_equations(jaxpr: AnyJaxpr) -> list:
    """Equations of a jaxpr that are not dead code: some output, or its derivative, depends on them."""
    return _live_equations(jaxpr, lambda eqn: eqn.invars)[0]


def value_equations(jaxpr: AnyJaxpr) -> list:
    """Equations of a jaxpr on which the values of its outputs depend, without those that only supply a derivative
    (`derivative_rules.graft`)."""
    return _value_equations(jaxpr)[0]


def value_variables(jaxpr: AnyJaxpr) -> set:
    """Returns all variables on which the values of a jaxpr's outputs depend, the outputs included."""
    return _value_equations(jaxpr)[1]


@remember_by_jaxpr
def _value_equations(jaxpr: OpenJaxpr) -> tuple[list, set]:
    """Returns the results of `value_equations` and of `value_variables`."""

    def operands(eqn: Equation) -> Sequence:
        if eqn.primitive.name == "guard":
            return eqn.invars[:1]
        if eqn.primitive.name != "custom_jvp_call":
            return eqn.invars
        (called,) = nested_jaxprs(eqn)
        used = _value_equations(called)[1]
        return [v for v, inside in zip(eqn.invars, called.invars, strict=True) if inside in used]

    return _live_equations(jaxpr, operands)


@remember_by_jaxpr
def used_inputs(jaxpr: OpenJaxpr, wanted: tuple[bool, ...] | None = None) -> list[bool]:
    """Returns the mask of the inputs of a jaxpr on which the values of its outputs depend; ``wanted``: mask of the
    outputs that count, None: all."""
    outputs = jaxpr.outvars if wanted is None else compress(jaxpr.outvars, wanted)
    used = {v for v in outputs if not is_literal(v)}
    for eqn in reversed(jaxpr.eqns):
        if used.isdisjoint(eqn.outvars):
            continue
        name, flags, found = eqn.primitive.name, [True] * len(eqn.invars), tuple(v in used for v in eqn.outvars)
        if name == "guard":
            flags = [True, False]
        elif name in CALLS:
            flags = used_inputs(called_jaxpr(eqn), found)
        elif name == "cond":
            flags = [True, *map(any, zip(*(used_inputs(x, found) for x in eqn.params["branches"]), strict=True))]
        used.update(v for v, flag in zip(eqn.invars, flags, strict=True) if flag and not is_literal(v))
    return [v in used for v in jaxpr.invars]


def _live_equations(jaxpr: AnyJaxpr, operands: Callable) -> tuple[list, set]:
    """Returns the equations on which a jaxpr's outputs depend, and the set of all variables on which they depend.

    ``operands(eqn)``: those operands on which the results of an equation count as dependent.
    """
    live, equations = {v for v in jaxpr.outvars if not is_literal(v)}, []
    for eqn in reversed(jaxpr.eqns):
        if not live.isdisjoint(eqn.outvars):
            equations.append(eqn)
            live.update(v for v in operands(eqn) if not is_literal(v))
    return equations[::-1], live


def _inline_nested(params: dict) -> dict:
    """Returns those parameters of a cond or while that are jaxprs, with the calls in them inlined."""
    names = ("branches", "cond_jaxpr", "body_jaxpr")
    parts = {name: params[name] for name in names if name in params}
    return {name: tuple(map(inline_calls, x)) if name == "branches" else inline_calls(x) for name, x in parts.items()}


def varying_outvars(eqn: Equation, given: Sequence[bool]) -> list[bool]:
    """Returns the mask of an equation's outputs that depend on the inputs in the mask ``given``, for instance those
    that differ between lanes."""
    name, p = eqn.primitive.name, eqn.params
    if name == "while":
        a, b = p["cond_nconsts"], p["body_nconsts"]

        def body_mask(flags: list[bool]) -> list[bool]:
            ends = varying_outputs(p["cond_jaxpr"], [*given[:a], *flags])[0]
            return [ends or x for x in varying_outputs(p["body_jaxpr"], [*given[a : a + b], *flags])]

        return _fixed_point(body_mask, given[a + b :])
    if name == "scan":
        count, state = scan_counts(p)
        fixed, start, sequences = given[:count], given[count : count + state], given[count + state :]
        return _fixed_point(lambda flags: varying_outputs(p["jaxpr"], [*fixed, *flags, *sequences]), start)
    if name == "stream":
        constants, start = given[: -p["carried"] or None], given[len(given) - p["carried"] :]
        # of lanes that differ all rows do
        more = [p["by_row"] and any(given)] * (len(p["jaxpr"].invars) - p["carried"])
        return _fixed_point(lambda flags: varying_outputs(p["jaxpr"], [*flags, *more], constants), start)
    if name == "cond":
        if given[0]:
            return [True] * len(eqn.outvars)
        return [any(x) for x in zip(*(varying_outputs(branch, given[1:]) for branch in p["branches"]), strict=True)]
    if name in CALLS:
        return varying_outputs(called_jaxpr(eqn), given)
    return [any(given)] * len(eqn.outvars)


def _fixed_point(body_mask: Callable[[list[bool]], list[bool]], start: Sequence[bool]) -> list[bool]:
    """Returns the mask of a loop's outputs, given the mask ``start`` of its initial carry.

    ``body_mask``: function from the mask of the carry to that of the body's outputs; it is applied until the mask of
    the carry no longer grows.
    """
    flags = list(start)
    while True:
        found = body_mask(flags)
        new = [x or y for x, y in zip(flags, found, strict=False)]
        if new == flags:
            return [*flags, *found[len(flags) :]]
        flags = new


def varying_outputs(jaxpr: AnyJaxpr, given: Sequence[bool], constants: Sequence[bool] = ()) -> list[bool]:
    """Mask of a jaxpr's outputs that depend on the inputs and constants marked in ``given`` and ``constants``."""
    return list(_varying_outputs(jaxpr, tuple(given), tuple(constants)))


@remember_by_jaxpr
def _varying_outputs(jaxpr: OpenJaxpr, given: tuple[bool, ...], constants: tuple[bool, ...]) -> list[bool]:
    flags = dict.fromkeys(jaxpr.constvars, False)
    flags.update(zip(jaxpr.constvars, constants, strict=False))
    flags.update(zip(jaxpr.invars, given, strict=True))
    read = reader(flags, lambda v: False)
    for eqn in jaxpr.eqns:
        flags.update(zip(eqn.outvars, varying_outvars(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def moving_outputs(jaxpr: AnyJaxpr, given: Sequence[bool]) -> list[bool]:
    """Returns the mask of a jaxpr's outputs that may have nonzero tangents if the inputs in
    the mask ``given`` have some."""
    return list(_moving_outputs(jaxpr, tuple(given)))


@remember_by_jaxpr
def _moving_outputs(jaxpr: OpenJaxpr, given: tuple[bool, ...]) -> list[bool]:
    flags = dict.fromkeys(jaxpr.constvars, False)
    flags.update(zip(jaxpr.invars, given, strict=True))
    read = reader(flags, lambda v: False)
    for eqn in jaxpr.eqns:
        found = _moving_outvars(eqn, [read(v) for v in eqn.invars])
        flags.update({v: moves and _is_real(v) for v, moves in zip(eqn.outvars, found, strict=True)})
    return [read(v) for v in jaxpr.outvars]


def _is_real(v: Operand) -> bool:
    return jnp.issubdtype(v.aval.dtype, jnp.inexact)


def _moving_outvars(eqn: Equation, given: list[bool]) -> list[bool]:
    name, p = eqn.primitive.name, eqn.params
    if name == "stop_gradient" or not any(given):
        return [False] * len(eqn.outvars)
    if name in ("jit", "pjit"):
        return moving_outputs(p["jaxpr"], given)
    if name == "cond":
        return [any(x) for x in zip(*(moving_outputs(branch, given[1:]) for branch in p["branches"]), strict=True)]
    if name == "while":
        a, b = p["cond_nconsts"], p["body_nconsts"]
        return _fixed_point(lambda flags: moving_outputs(p["body_jaxpr"], [*given[a : a + b], *flags]), given[a + b :])
    if name == "scan":
        count, state = scan_counts(p)
        fixed, start, sequences = given[:count], given[count : count + state], given[count + state :]
        return _fixed_point(lambda flags: moving_outputs(p["jaxpr"], [*fixed, *flags, *sequences]), start)
    return [True] * len(eqn.outvars)


def depends_on(function: Callable, operands: Sequence, on: Sequence[int]) -> bool:
    """Tests whether ``function(*operands)`` depends on the operands at the positions ``on``, by its jaxpr, not by
    values: 0 * x depends on x."""
    flags = [i in on for i, x in enumerate(operands) for _ in jax.tree.leaves(x)]
    return any(varying_outputs(inline_calls(jax.make_jaxpr(function)(*operands)), flags))


def moves_with(function: Callable, operands: Sequence, on: Sequence[int]) -> bool:
    """Tests whether ``function(*operands)`` may have a nonzero derivative by the operands at the positions ``on``,
    by its jaxpr.

    Unlike `depends_on` it is False of functions that are constant between jumps, as x > 0 is.
    """
    flags = [i in on for i, x in enumerate(operands) for _ in jax.tree.leaves(x)]
    return any(moving_outputs(inline_calls(jax.make_jaxpr(function)(*operands)), flags))
