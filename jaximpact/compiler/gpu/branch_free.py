"""Branch-free loop bodies on many lanes, for XLA on a GPU.

XLA fuses elementwise arithmetic into one kernel. The body is therefore traced for one lane and evaluated on scalars (`scalar`),
each an array (lanes,). The host waits for the predicate of every branch and loop on a GPU, so that there are none: iterations are
made in segments of fixed length, in which an inner loop makes a fixed number of iterations. If a lane needed more, the segment is
repeated with real loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr

from ...jaxtools.argument_checks import is_traced
from ...jaxtools.derivative_rules import hoist_constants
from ...jaxtools.jaxpr_tools import inline_calls, is_literal, nested_jaxprs, reader
from ..limits import (
    MAX_OPS_BRANCH_FREE,
    MAX_OPS_BRANCH_FREE_DERIVATIVE,
    MAX_SCALARS,
    MAX_STATE_NUMBERS,
    MAX_UNROLLED_ITERATIONS,
)
from ..scalar import ScalarInterpreter, Unsupported, Value, object_array
from ..scalar.cost import cost
from ..scalar.interpreter import program_inputs
from .array_emitter import ArrayEmitter, any_lane, unflattener


class BranchFreeEmitter(ArrayEmitter):
    """Emitter that executes all branches of a switch, and ``iterations`` of every loop (None: as many as any lane needs).

    ``unfinished``: mask of the lanes in which some loop needed more iterations.
    """

    def __init__(self, lanes: int, iterations: int | None) -> None:
        super().__init__(lanes, {})
        self.iterations = iterations
        self.unfinished: Any = jnp.zeros(lanes, bool)
        self.active: Any = jnp.ones(lanes, bool)  # mask of the lanes that the surrounding branches and loops run for

    def loop(self, start: list[Value], varies: Sequence[bool], continues: Callable, body: Callable) -> list[Value]:
        if self.iterations is None:
            return super().loop(start, varies, continues, body)
        outside, now = self.active, start
        for _ in range(self.iterations):
            self.active = outside & continues(now)
            now = self.select(self.active, body(now), now)
        self.unfinished |= outside & continues(now)
        self.active = outside
        return now

    def switch(
        self,
        which: Any,
        branches: Sequence[Callable],
        operands: list[Value],
        sizes: Sequence[int],
        avals: Sequence,
        varies: Sequence[bool],
    ) -> list[Value]:
        outside = self.active
        found: list[Value] = []
        for i, branch in enumerate(branches):
            this = which == i if 0 < i < len(branches) - 1 else which >= i if i else which <= 0
            self.active = outside & this
            results = branch(operands)
            found = self.select(this, results, found) if i else results
        self.active = outside
        return found

    def select(self, which: Array, values: Sequence[Value], others: Sequence[Value]) -> list[Value]:
        """Selects ``values`` in the lanes of a mask, else ``others``, scalar by scalar; identical ones need no selection."""

        def select_scalar(x: Any, y: Any) -> Any:
            return x if x is y else lax.select_n(*self.broadcast([which, jnp.asarray(y, x.dtype), x]))

        pairs = zip(values, others, strict=True)
        return [
            object_array(x.shape, (select_scalar(a, b) for a, b in zip(x.flat, y.flat, strict=True))) for x, y in pairs
        ]


def deduplicate_carry(body: Callable, carry: Any) -> tuple[Callable, Callable]:
    """Removes duplicates from a loop's carry: leaves that start as one value and stay one are carried once.

    Returns the function from a carry to the list of its distinct leaves, and the inverse function.
    """
    leaves, structure = jax.tree.flatten(carry)
    found = jax.make_jaxpr(lambda leaves: jax.tree.leaves(body(jax.tree.unflatten(structure, leaves))))(leaves)
    pairs = [(id(x), id(v)) for x, v in zip(leaves, found.jaxpr.outvars, strict=True)]
    firsts = [pairs.index(pair) for pair in pairs]
    distinct = sorted(set(firsts))
    take_distinct = lambda carry: [jax.tree.leaves(carry)[i] for i in distinct]
    return take_distinct, lambda some: jax.tree.unflatten(structure, [some[distinct.index(i)] for i in firsts])


def run_segment(body: Callable, carry: list, rows: Any, add_row: Callable, length: int) -> tuple[list, Any]:
    """Runs ``carry = body(carry); rows = add_row(rows, carry)`` ``length`` times for one lane; under vmap it is branch-free.

    ``rows`` is a `RowBuffer`. A body that the scalar interpreter has no rules for is vmapped as it is. The derivative in forward mode
    is a segment too, of values and their changes: rules for derivatives are applied to the body, not to its branch-free operations.

    Raises:
        Unsupported: by the derivative, if it is too large or has nested loops.
    """
    step, step_constants = hoist_constants(body, carry)
    store, store_constants = hoist_constants(lambda both: add_row(*both), (rows, carry))
    run = jax.custom_jvp(_segment(step, store, length))

    @run.defjvp
    def _(values: tuple, changes: tuple) -> tuple:
        (of_step, of_store, carry, rows), (by_step, by_store, *start) = values, changes
        count = len(carry)

        def step_both(now: list) -> list:
            carry, change = now[:count], _with_float0(now[count:], start[0])
            carry, change = jax.jvp(step, (of_step, carry), (by_step, change))
            return [*carry, *_real(change)]

        _check_size_of_derivative(step_both, [*carry, *_real(start[0])])

        def add_both(kept: Any, now: list) -> Any:
            kept, of_kept = kept._replace(buffer=kept.buffer[0]), _with_float0(kept.buffer[1], start[1])
            both = kept, now[:count]
            change = of_kept, _with_float0(now[count:], start[0])
            kept, change = jax.jvp(store, (of_store, both), (by_store, change))
            return kept._replace(buffer=(kept.buffer, _real(change)))

        both = rows._replace(buffer=(rows.buffer, _real(start[1])))
        found, kept = run_segment(step_both, [*carry, *_real(start[0])], both, add_both, length)
        value = found[:count], kept._replace(buffer=kept.buffer[0])
        return value, (_with_float0(found[count:], start[0]), _with_float0(kept.buffer[1], start[1]))

    return run(step_constants, store_constants, carry, rows)


def _check_size_of_derivative(body: Callable, carry: list) -> None:
    """Raises Unsupported if a body of values and their changes is too large."""
    closed = jax.make_jaxpr(body)(carry)
    if (operations := cost(closed)) > MAX_OPS_BRANCH_FREE_DERIVATIVE or _has_nested_loop(closed):
        raise Unsupported(f"a derivative of some {operations} operations, or with nested loops")


def _real(changes: Any) -> list:
    """The leaves of changes that are those of real numbers."""
    return [x for x in jax.tree.leaves(changes) if x.dtype != jax.dtypes.float0]


def _with_float0(real: Sequence, like: Any) -> Any:
    """Inverse of `_real`: changes of the structure of ``like``."""
    numbers = iter(real)
    return jax.tree.map(lambda x: x if x.dtype == jax.dtypes.float0 else next(numbers), like)


def _segment(step: Callable, store: Callable, length: int) -> Callable:
    """The segment of one lane, ``(constants of step, constants of store, carry, rows) -> (carry, rows)``, branch-free under vmap."""

    def run_lane(step_constants: list, store_constants: list, carry: list, rows: Any) -> tuple[list, Any]:
        def iterate(_: Any, now: tuple) -> tuple:
            carry = step(step_constants, now[0])
            return carry, store(store_constants, (now[1], carry))

        return lax.fori_loop(0, length, iterate, (carry, rows))

    run = custom_vmap(run_lane)

    @run.def_vmap
    def _(lanes: int, batched: Sequence, *operands: Any) -> tuple:
        axes = jax.tree.map(lambda b: 0 if b else None, batched)
        try:
            found = _run_on_scalars(step, store, operands, batched, lanes, length)
        except Unsupported:
            found = jax.vmap(run_lane, axes, axis_size=lanes)(*operands)
        return found, jax.tree.map(lambda _: True, found)

    return run


def _run_on_scalars(
    step: Callable, store: Callable, operands: tuple, batched: Sequence, lanes: int, length: int
) -> tuple[list, Any]:
    """`run_segment` for all lanes, on scalars.

    Args:
        step, store: ``step(constants, carry) -> carry``, ``store(constants, (rows, carry)) -> rows``, for one lane.
        operands: constants of step and of store, carry, rows.
        batched: mask of the operands with a lane axis.
    """
    (step_constants, store_constants, *start), (of_step, of_store, *of_start) = operands, batched
    broadcast = lambda x, b: x if b else jnp.broadcast_to(x, (lanes, *jnp.shape(x)))
    carry, rows = jax.tree.map(broadcast, tuple(start), tuple(of_start))
    # XLA gives several lanes to a thread if their number is even, and registers do not suffice: one more makes it odd
    odd = lanes + (lanes + 1) % 2
    pad = lambda x, b: jnp.concatenate([x, x[: odd - lanes]]) if b else x
    carry = [pad(x, True) for x in carry]
    padded_constants = [pad(x, b) for x, b in zip(step_constants, of_step, strict=True)]
    scalar_step, has_nested_loop = _scalar_step(step, padded_constants, of_step, carry, odd)
    as_carry = lambda scalars: [x[:lanes] for x in _join_entries(scalars, carry)]
    store_all = jax.vmap(lambda constants, *both: store(constants, both), ([0 if b else None for b in of_store], 0, 0))

    def run(iterations: int | None, rows: Any) -> tuple:
        def iterate(_: Any, now: tuple) -> tuple:
            scalars, rows, unfinished = now
            scalars, over = scalar_step(scalars, iterations)
            if jax.tree.leaves(rows):
                rows = store_all(store_constants, rows, as_carry(scalars))
            return scalars, rows, unfinished | over

        scalars = [y for x in carry for y in _split_entries(x, True).flat]
        scalars, rows, unfinished = lax.fori_loop(0, length, iterate, (scalars, rows, jnp.zeros(odd, bool)))
        return as_carry(scalars), rows, unfinished

    if has_nested_loop:
        return run(None, rows)[:2]
    last, new_rows, unfinished = run(MAX_UNROLLED_ITERATIONS, rows)
    # the repetition overwrites the rows that were stored
    again = lambda: run(None, new_rows._replace(pointer=rows.pointer))[:2]
    return lax.cond(any_lane(unfinished), again, lambda: (last, new_rows))


def _scalar_step(step: Callable, constants: list, batched: list, carry: list, lanes: int) -> tuple[Callable, bool]:
    """The step of all lanes on scalars, ``(scalars, loop iterations) -> (scalars, unfinished lanes)``, and whether it has nested loops.

    ``batched``: mask of the constants with a lane axis.

    Raises:
        Unsupported: it has too many operations, or its carry too many entries.
    """
    own = [x for x, b in zip(constants, batched, strict=True) if b]

    def of_lane(own: list, carry: list) -> list:
        mine = iter(own)
        return step([next(mine) if b else x for x, b in zip(constants, batched, strict=True)], carry)

    member = lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    closed = _hoist_constant_equations(inline_calls(jax.make_jaxpr(of_lane)(*jax.tree.map(member, (own, carry)))))
    carried, operations = sum(math.prod(x.shape[1:]) for x in carry), cost(closed)
    if operations > MAX_OPS_BRANCH_FREE or carried > MAX_STATE_NUMBERS:
        raise Unsupported(
            f"a step of some {operations} operations on {carried} numbers, more than {MAX_OPS_BRANCH_FREE} or {MAX_STATE_NUMBERS}"
        )
    variables, captured = program_inputs(closed)
    own, captured = [_split_entries(x, True) for x in own], [_split_entries(x, False) for x in captured]
    unflatten = unflattener([_split_entries(x, True) for x in carry])

    def scalar_step(scalars: list, iterations: int | None) -> tuple[list, Array]:
        emitter = BranchFreeEmitter(lanes, iterations)
        machine, values = ScalarInterpreter(emitter), [*own, *unflatten(scalars)]
        machine.input_values = dict(zip(variables, [*values, *captured], strict=True))
        found = machine.run(closed, values)
        return emitter.flatten(found, [True] * len(found)), emitter.unfinished

    return scalar_step, _has_nested_loop(closed)


def _split_entries(x: Any, of_lanes: bool) -> Value:
    """An array as scalars; with a leading lane axis (``of_lanes``) each scalar is an array (lanes,)."""
    shape = jnp.shape(x)[1:] if of_lanes else jnp.shape(x)
    columns = jnp.reshape(x, (len(x), -1) if of_lanes else -1)
    if columns.shape[-1] > MAX_SCALARS:
        raise Unsupported(f"an array of shape {shape}")
    return object_array(shape, (columns[..., i] for i in range(columns.shape[-1])))


def _join_entries(scalars: Sequence[Array], like: Sequence[Array]) -> list[Array]:
    """Inverse of `_split_entries`: arrays (lanes, ...) with the shapes of ``like`` from one list of scalars."""
    entries = iter(scalars)
    parts = [[next(entries) for _ in range(math.prod(x.shape[1:]))] for x in like]
    return [jnp.stack(p, -1).reshape(x.shape) if p else x for p, x in zip(parts, like, strict=True)]


def _hoist_constant_equations(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Evaluates the equations of a jaxpr that depend on traced constants alone, and makes their results its constants."""
    jaxpr, rest = closed.jaxpr, []
    env = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    constant = {v for v, x in env.items() if is_traced(x)}

    def bind(eqn: Any, env: dict) -> None:
        read = reader(env)
        params = eqn.primitive.get_bind_params(eqn.params)
        found = eqn.primitive.bind(*map(read, eqn.invars), **params)
        env.update(zip(eqn.outvars, found if eqn.primitive.multiple_results else [found], strict=True))

    for eqn in jaxpr.eqns:
        operands = {v for v in eqn.invars if not is_literal(v)}
        if operands and operands <= constant:
            bind(eqn, env)
            constant.update(eqn.outvars)
        else:
            rest.append(eqn)

    def evaluate_rest(*values: Any) -> list:
        now = env | dict(zip(jaxpr.invars, values, strict=True))
        for eqn in rest:
            bind(eqn, now)
        return [reader(now)(v) for v in jaxpr.outvars]

    return jax.make_jaxpr(evaluate_rest)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.invars))


def _has_nested_loop(jaxpr: Any, within: bool = False) -> bool:
    """Whether a jaxpr contains a loop within a loop, or a loop at all if it is itself ``within`` one."""
    is_loop = lambda eqn: eqn.primitive.name in ("while", "scan")
    return any(
        (within and is_loop(eqn)) or any(_has_nested_loop(part, within or is_loop(eqn)) for part in nested_jaxprs(eqn))
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )
