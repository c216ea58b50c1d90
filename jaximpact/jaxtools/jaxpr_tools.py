"""Analysis and transformation of jaxprs: nested jaxprs, size, dependence of results on inputs, inlining."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from .argument_checks import is_traced

IDENTITIES = {"guard", "forward_only", "stop_gradient", "copy", "copy_p", "name", "optimization_barrier"}
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "eval_jaxpr": "call_jaxpr",
         "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call", "checkpoint": "jaxpr", "remat2": "jaxpr"}  # fmt: skip
_JAXPRS, _LISTS = (ClosedJaxpr, Jaxpr), (tuple, list)


def as_closed(jaxpr: Any) -> ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def is_literal(v: Any) -> bool:
    """Whether an operand of an equation is a literal number rather than a variable."""
    return isinstance(v, Literal)


def reader(env: Mapping, literal: Callable[[Any], Any] = lambda v: v.val) -> Callable[[Any], Any]:
    """Function that gives an operand's value: from ``env`` for a variable, by ``literal`` for a literal."""
    return lambda v: literal(v) if is_literal(v) else env[v]


def scan_counts(p: Any) -> tuple[int, int]:
    """Numbers of constants and of carries among a scan's inputs; newer versions of jax give them as trees."""
    if "num_consts" in p:
        return p["num_consts"], p["num_carry"]
    constants, state, _ = p["ft_in"].unpack()
    return len(constants), len(state)


def size(jaxpr: Any) -> int:
    return sum(1 + sum(size(part) for part in inner(eqn)) for eqn in jaxpr.eqns)


def holds(jaxpr: Any, name: str) -> bool:
    """Whether a jaxpr contains a primitive of the given name, at any depth."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return any(eqn.primitive.name == name or any(holds(part, name) for part in inner(eqn)) for eqn in jaxpr.eqns)


def inner(eqn: Any) -> list:
    """The jaxprs nested directly in an equation."""
    return [getattr(v, "jaxpr", v) for v in _inside(eqn)]


def _inside(eqn: Any) -> list:
    """The jaxprs nested directly in an equation, as they stand (closed or open)."""
    found = []  # asked of every equation, many times: no lists of what is none
    for value in eqn.params.values():
        if isinstance(value, _JAXPRS):
            found.append(value)
        elif isinstance(value, _LISTS):
            found += [v for v in value if isinstance(v, _JAXPRS)]
    return found


def closed_over(jaxpr: Any) -> dict:
    """Values that a jaxpr and those nested in it close over, by variable."""
    inside = getattr(jaxpr, "jaxpr", jaxpr)
    # in newer versions of jax a closed jaxpr is one with constants, and is its own inside
    found = dict(zip(inside.constvars, getattr(jaxpr, "consts", ()), strict=False))
    for eqn in inside.eqns:
        for part in _inside(eqn):
            # what the body of a stream closes over is among the operands
            known = getattr(part, "constvars", ()) if eqn.primitive.name == "stream" else ()
            found |= {v: x for v, x in closed_over(part).items() if v not in known}
    return found


def inline_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Inlines calls of jitted functions, merges equal equations, and removes unused ones.

    jax differentiates each call by itself, which takes a few milliseconds.
    """
    seen: dict = {}

    def evaluate(jaxpr: Any, constants: Sequence, values: Sequence) -> list:
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
        read = reader(env)
        for eqn in needed(jaxpr):
            given = [read(v) for v in eqn.invars]
            if eqn.primitive.name in ("jit", "pjit"):
                called = eqn.params["jaxpr"]
                found = evaluate(called.jaxpr, called.consts, given)
            else:
                found = once(eqn, given)
            env.update(zip(eqn.outvars, found, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def once(eqn: Any, given: list) -> list:
        # literals by value and kind, what is traced by name
        names = [(v.val, v.aval) if is_literal(v) else id(x) for v, x in zip(eqn.invars, given, strict=True)]
        key = (eqn.primitive, str(names), str(eqn.params)) if not inner(eqn) else None
        if key is None or key not in seen:
            params = eqn.primitive.get_bind_params(eqn.params | _inlined_parts(eqn.params))
            found = eqn.primitive.bind(*given, **params)
            # with what it is of, which then keeps its name
            seen[key] = found if eqn.primitive.multiple_results else [found], given
        return seen[key][0]

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return jax.make_jaxpr(lambda *values: evaluate(closed.jaxpr, closed.consts, values))(*avals)


def record_once(function: Callable) -> Callable:
    """Decorator: runs the Python function once for each kind of operands, and then replays its inlined jaxpr.

    Without traced operands, or if it has effects or closes over traced values, the function itself runs.
    """

    @wraps(function)
    def replay(*operands: Any) -> Any:
        if not is_traced(operands):
            return function(*operands)
        # jax knows the trace of a function; a jitted one cannot be pickled by value
        traced, leaves = jax.jit(function).trace(*operands), jax.tree.leaves(operands)
        closed = traced.jaxpr
        # newer versions of jax hand on what is closed over as operands
        if closed.effects or is_traced(closed.consts) or len(closed.in_avals) != len(leaves):
            return function(*operands)
        found = jaxpr_as_fun(_inlined_once(closed))(*leaves)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), found)

    return replay


_inlined: WeakKeyDictionary[ClosedJaxpr, ClosedJaxpr] = WeakKeyDictionary()


def _inlined_once(closed: ClosedJaxpr) -> ClosedJaxpr:
    # a function of this module, so that what calls it can be pickled by value
    if closed not in _inlined:
        _inlined[closed] = inline_calls(closed)
    return _inlined[closed]


def needed(jaxpr: Any) -> list:
    """Equations on which an output depends."""
    wanted, kept = {v for v in jaxpr.outvars if not is_literal(v)}, []
    for eqn in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(v for v in eqn.invars if not is_literal(v))
    return kept[::-1]


def _inlined_parts(params: dict) -> dict:
    """Parameters of an equation with branches and loop bodies inlined."""
    names = ("branches", "cond_jaxpr", "body_jaxpr")
    parts = {name: params[name] for name in names if name in params}
    return {name: tuple(map(inline_calls, x)) if name == "branches" else inline_calls(x) for name, x in parts.items()}


def varying(eqn: Any, given: Sequence[bool]) -> list[bool]:
    """Mask of an equation's outputs that depend on the marked inputs (``given``), such as those that differ between lanes."""
    name, p = eqn.primitive.name, eqn.params
    if name == "while":
        a, b = p["cond_nconsts"], p["body_nconsts"]

        def turn(flags: list[bool]) -> list[bool]:
            ends = varying_outputs(p["cond_jaxpr"], [*given[:a], *flags])[0]
            return [ends or x for x in varying_outputs(p["body_jaxpr"], [*given[a : a + b], *flags])]

        return _fixed_point(turn, given[a + b :])
    if name == "scan":
        count, state = scan_counts(p)
        fixed, start, sequences = given[:count], given[count : count + state], given[count + state :]
        return _fixed_point(lambda flags: varying_outputs(p["jaxpr"], [*fixed, *flags, *sequences]), start)
    if name == "stream":
        constants, start = given[: -p["carried"] or None], given[len(given) - p["carried"] :]
        more = [False] * (len(p["jaxpr"].invars) - p["carried"])
        return _fixed_point(lambda flags: varying_outputs(p["jaxpr"], [*flags, *more], constants), start)
    if name == "cond":
        if given[0]:
            return [True] * len(eqn.outvars)
        return [any(x) for x in zip(*(varying_outputs(branch, given[1:]) for branch in p["branches"]), strict=True)]
    if name in CALLS:
        return varying_outputs(p[CALLS[name]], given)
    return [any(given)] * len(eqn.outvars)


def _fixed_point(turn: Any, start: Sequence[bool]) -> list[bool]:
    """Output mask of a loop body, iterated until the mask of its carry no longer grows."""
    flags = list(start)
    while True:
        found = turn(flags)
        new = [x or y for x, y in zip(flags, found, strict=False)]
        if new == flags:
            return [*flags, *found[len(flags) :]]
        flags = new


def varying_outputs(jaxpr: Any, given: Sequence[bool], constants: Sequence[bool] = ()) -> list[bool]:
    """Mask of a jaxpr's outputs that depend on the marked inputs and constants."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    flags = dict.fromkeys(jaxpr.constvars, False)
    flags.update(zip(jaxpr.constvars, constants, strict=False))
    flags.update(zip(jaxpr.invars, given, strict=True))
    read = reader(flags, lambda v: False)
    for eqn in jaxpr.eqns:
        flags.update(zip(eqn.outvars, varying(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def depends(function: Callable, operands: Sequence, on: Sequence[int]) -> bool:
    """Whether a result of ``function`` depends on the operands numbered ``on``; a product with zero counts as dependence."""
    flags = [i in on for i, x in enumerate(operands) for _ in jax.tree.leaves(x)]
    return any(varying_outputs(inline_calls(jax.make_jaxpr(function)(*operands)), flags))
