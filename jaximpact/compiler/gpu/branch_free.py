"""Branch-free steps of many motions, for XLA on a GPU.

XLA makes one kernel of what it can fuse, which is arithmetic entry by entry. So what a step does to one lane is traced, and
executed on separate numbers (`small`), each an array (lanes,). A GPU's host waits for every predicate: steps are made in
segments of fixed length, in which a solver's iterations are a fixed number of turns. Where a lane needed more, the segment is
made again with loops.
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
from ..scalar import ScalarInterpreter, Unsupported, Value, object_array
from ..scalar.cost import MAX_SCALARS, cost
from ..scalar.interpreter import program_inputs
from .array_emitter import ArrayEmitter, any_of, rebuilder

TURNS = 6  # of a loop without a branch; of 2000 double pendulums no step needs more iterations than five
MAX_OPS_BRANCH_FREE = 10_000  # operations of a step: more take minutes to compile
MAX_STATE_NUMBERS = 64  # numbers of a state, each an array of its own: XLA gives some hundred arrays to a kernel


class BranchFreeEmitter(ArrayEmitter):
    """Emitter that executes all branches, and ``turns`` iterations of every loop (None: as many as any lane needs).

    ``unfinished``: mask of the lanes that needed more iterations.
    """

    def __init__(self, lanes: int, turns: int | None) -> None:
        super().__init__(lanes, {})
        self.turns = turns
        self.unfinished: Any = jnp.zeros(lanes, bool)
        self.asked: Any = jnp.ones(lanes, bool)  # where the results of loops and branches around are wanted

    def loop(self, start: list[Value], varies: Sequence[bool], continues: Callable, body: Callable) -> list[Value]:
        if self.turns is None:
            return super().loop(start, varies, continues, body)
        outside, now = self.asked, start
        for _ in range(self.turns):
            self.asked = outside & continues(now)
            now = self.select(self.asked, body(now), now)
        self.unfinished |= outside & continues(now)
        self.asked = outside
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
        outside = self.asked
        found: list[Value] = []
        for i, branch in enumerate(branches):
            this = which == i if 0 < i < len(branches) - 1 else which >= i if i else which <= 0
            self.asked = outside & this
            results = branch(operands)
            found = self.select(this, results, found) if i else results
        self.asked = outside
        return found

    def select(self, which: Array, values: Sequence[Value], others: Sequence[Value]) -> list[Value]:
        """Selects between results entry by entry; identical entries need no selection."""

        def of(x: Any, y: Any) -> Any:
            return x if x is y else lax.select_n(*self.alike([which, jnp.asarray(y, x.dtype), x]))

        pairs = zip(values, others, strict=True)
        return [object_array(x.shape, (of(a, b) for a, b in zip(x.flat, y.flat, strict=True))) for x, y in pairs]


def merge_carry(turn: Callable, carry: Any) -> tuple[Callable, Callable]:
    """Removes duplicates from a loop's carry: values that start equal and stay equal are carried once.

    Returns the function from a carry to the list of distinct values, and its inverse.
    """
    leaves, structure = jax.tree.flatten(carry)
    found = jax.make_jaxpr(lambda leaves: jax.tree.leaves(turn(jax.tree.unflatten(structure, leaves))))(leaves)
    pairs = [(id(x), id(v)) for x, v in zip(leaves, found.jaxpr.outvars, strict=True)]
    firsts = [pairs.index(pair) for pair in pairs]
    once = sorted(set(firsts))
    taken = lambda carry: [jax.tree.leaves(carry)[i] for i in once]
    return taken, lambda some: jax.tree.unflatten(structure, [some[once.index(i)] for i in firsts])


def segment(turn: Callable, carry: list, kept: Any, keep: Callable, length: int) -> tuple[list, Any]:
    """Runs ``carry = turn(carry); kept = keep(kept, carry)`` ``length`` times for one lane; its batch runs branch-free on scalars.

    ``kept`` is a `RowBuffer`.
    """
    step, known = hoist_constants(turn, carry)
    put, more = hoist_constants(lambda both: keep(*both), (kept, carry))

    def plain(known: list, more: list, carry: list, kept: Any) -> tuple[list, Any]:
        def body(_: Any, now: tuple) -> tuple:
            carry = step(known, now[0])
            return carry, put(more, (now[1], carry))

        return lax.fori_loop(0, length, body, (carry, kept))

    whole = custom_vmap(plain)

    @whole.def_vmap
    def _(lanes: int, batched: Sequence, *operands: Any) -> tuple:
        axes = jax.tree.map(lambda b: 0 if b else None, batched)
        try:
            found = _of_numbers(step, put, operands, batched, lanes, length)
        except Unsupported:
            found = jax.vmap(plain, axes, axis_size=lanes)(*operands)
        return found, jax.tree.map(lambda _: True, found)

    return whole(known, more, carry, kept)


def _of_numbers(
    step: Callable, put: Callable, operands: tuple, batched: Sequence, lanes: int, length: int
) -> tuple[list, Any]:
    """Runs a segment for all lanes on separate numbers."""
    (known, more, *start), (of_known, of_more, *of_start) = operands, batched
    spread = lambda x, b: x if b else jnp.broadcast_to(x, (lanes, *jnp.shape(x)))
    carry, kept = jax.tree.map(spread, tuple(start), tuple(of_start))
    # of an even number of lanes XLA gives several to a thread, whose registers then do not suffice
    odd = lanes + (lanes + 1) % 2
    padded = lambda x, b: jnp.concatenate([x, x[: odd - lanes]]) if b else x
    carry = [padded(x, True) for x in carry]
    turn, looped = _turns(step, [padded(x, b) for x, b in zip(known, of_known, strict=True)], of_known, carry, odd)
    arrays = lambda numbers: [x[:lanes] for x in _join_numbers(numbers, carry)]
    stored = jax.vmap(lambda more, *both: put(more, both), ([0 if b else None for b in of_more], 0, 0))

    def run_segment(turns: int | None, kept: Any) -> tuple:
        def body(_: Any, now: tuple) -> tuple:
            numbers, kept, unfinished = now
            numbers, over = turn(numbers, turns)
            if jax.tree.leaves(kept):
                kept = stored(more, kept, arrays(numbers))
            return numbers, kept, unfinished | over

        numbers = [y for x in carry for y in _numbers(x, True).flat]
        numbers, rows, unfinished = lax.fori_loop(0, length, body, (numbers, kept, jnp.zeros(odd, bool)))
        return arrays(numbers), rows, unfinished

    if looped:
        return run_segment(None, kept)[:2]
    numbers, rows, unfinished = run_segment(TURNS, kept)
    # the rows of these steps are written again where they are
    again = lambda: run_segment(None, rows._replace(pointer=kept.pointer))[:2]
    return lax.cond(any_of(unfinished), again, lambda: (numbers, rows))


def _turns(step: Callable, known: list, batched: list, carry: list, lanes: int) -> tuple[Callable, bool]:
    """``turn(numbers, loop iterations) -> numbers, unfinished lanes`` for one step of all lanes, and whether it has nested loops."""
    own = [x for x, b in zip(known, batched, strict=True) if b]

    def of_lane(own: list, carry: list) -> list:
        mine = iter(own)
        return step([next(mine) if b else x for x, b in zip(known, batched, strict=True)], carry)

    member = lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    closed = _fold_constants(inline_calls(jax.make_jaxpr(of_lane)(*jax.tree.map(member, (own, carry)))))
    carried, operations = sum(math.prod(x.shape[1:]) for x in carry), cost(closed)
    if operations > MAX_OPS_BRANCH_FREE or carried > MAX_STATE_NUMBERS:
        raise Unsupported(
            f"a step of some {operations} operations on {carried} numbers, more than {MAX_OPS_BRANCH_FREE} or {MAX_STATE_NUMBERS}"
        )
    variables, constants = program_inputs(closed)
    own, constants = [_numbers(x, True) for x in own], [_numbers(x, False) for x in constants]
    rebuilt = rebuilder([_numbers(x, True) for x in carry])

    def turn(numbers: list, turns: int | None) -> tuple[list, Array]:
        emitter = BranchFreeEmitter(lanes, turns)
        machine, values = ScalarInterpreter(emitter), [*own, *rebuilt(numbers)]
        machine.input_values = dict(zip(variables, [*values, *constants], strict=True))
        found = machine.run(closed, values)
        return emitter.flatten(found, [True] * len(found)), emitter.unfinished

    return turn, _has_nested_loop(closed)


def _numbers(x: Any, of_lanes: bool) -> Value:
    """An array, with a leading lane axis if ``of_lanes``, as separate numbers."""
    shape = jnp.shape(x)[1:] if of_lanes else jnp.shape(x)
    columns = jnp.reshape(x, (len(x), -1) if of_lanes else -1)
    if columns.shape[-1] > MAX_SCALARS:
        raise Unsupported(f"an array of shape {shape}")
    return object_array(shape, (columns[..., i] for i in range(columns.shape[-1])))


def _join_numbers(numbers: Sequence[Array], like: Sequence[Array]) -> list[Array]:
    """Arrays with the shapes of ``like`` from a list of numbers."""
    entries = iter(numbers)
    parts = [[next(entries) for _ in range(math.prod(x.shape[1:]))] for x in like]
    return [jnp.stack(p, -1).reshape(x.shape) if p else x for p, x in zip(parts, like, strict=True)]


def _fold_constants(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Moves equations that depend only on traced constants out of the jaxpr, evaluating them once."""
    jaxpr, rest = closed.jaxpr, []
    env = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    worked = {v for v, x in env.items() if is_traced(x)}

    def bind(eqn: Any, env: dict) -> None:
        read = reader(env)
        params = eqn.primitive.get_bind_params(eqn.params)
        found = eqn.primitive.bind(*map(read, eqn.invars), **params)
        env.update(zip(eqn.outvars, found if eqn.primitive.multiple_results else [found], strict=True))

    for eqn in jaxpr.eqns:
        of = {v for v in eqn.invars if not is_literal(v)}
        if of and of <= worked:
            bind(eqn, env)
            worked.update(eqn.outvars)
        else:
            rest.append(eqn)

    def remaining(*values: Any) -> list:
        now = env | dict(zip(jaxpr.invars, values, strict=True))
        for eqn in rest:
            bind(eqn, now)
        return [reader(now)(v) for v in jaxpr.outvars]

    return jax.make_jaxpr(remaining)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.invars))


def _has_nested_loop(jaxpr: Any, within: bool = False) -> bool:
    """Whether a jaxpr contains a loop within a loop."""
    loops = lambda eqn: eqn.primitive.name in ("while", "scan")
    return any(
        (within and loops(eqn)) or any(_has_nested_loop(part, within or loops(eqn)) for part in nested_jaxprs(eqn))
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )
