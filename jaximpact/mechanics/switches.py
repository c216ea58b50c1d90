"""Switches of a function, where it may jump or kink: found in its jaxpr, with the side of each at an argument, and smooth extensions.

A function of t, q and v is smooth but where something discrete is made of what moves: a comparison, the sign of a number, its
integer part, the larger of two, the place of a number in a table. These are its *switches*, and what they give is its *sides*,
a list of arrays. Where sides are equal the function is smooth between; where they differ it may have jumped on the way.

    switches = Switches.of(function, operands, moving)  # None: it has none, which costs nothing in what is compiled
    value, sides = switches.both(*operands)             # the function, and on which sides it is there
    switches.sides(*operands)                           # those alone
    switches.frozen(sides, *operands)                   # the function of that side, also beyond it: smooth there
    differ(sides, others)                               # whether any differs, ()
    crossing(switches, before, after)                   # where a path goes from one side to another

``function(*operands)`` gives one array or a pytree of them. ``moving`` says of each operand whether it is ``STATE`` (q, v),
``TIME``, ``DATA`` (parameters) or 0 (a constant): a switch is reported if what it asks depends on one of ``reported``, by default the state
or the time; `Switches.of` with ``reported=depends_on_data`` leaves out switches at fixed times. For the gaps of a problem:

    gaps = gap_switches(problem, t, q, args)            # of problem.gaps(t, q, args), or None
    rate = lambda s: jax.jvp(lambda s: gaps.frozen(sides, t + s, q + s * v, args), (s,), (one,))[1]

so that `frozen` gives gaps, rates and accelerations of one side at a kink. What is not looked into: loops of a number of turns
that is not known before (`lax.while_loop`, unless all it gives is discrete), callbacks, solvers, `cummax`. They count as smooth,
as do poles, and functions as steep as they like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.jaxpr_tools import CALLS, as_closed, is_literal, nested_jaxprs, scan_counts

STATE, TIME, DATA = 1, 2, 4  # what an operand is; of what is computed of several, all of them
Sides = list[Array]
Mark = Callable[[int], bool]


def depends_on_path(mark: int) -> bool:
    """Mark of values that depend on the state or the time."""
    return bool(mark & (STATE | TIME))


def depends_on_data(mark: int) -> bool:
    """Mark of values whose switching time depends on the motion's data: they depend on the state, or on time and parameters."""
    return bool(mark & STATE) or mark & (TIME | DATA) == TIME | DATA


class Switches:
    """A function with switches, as its jaxpr."""

    def __init__(self, closed: Any, structure: Any, marks: Sequence[int], reported: Mark) -> None:
        self._closed, self._structure, self._marks, self._reported = closed, structure, list(marks), reported

    @classmethod
    def of(
        cls, function: Callable, operands: Sequence, moving: Sequence[int], reported: Mark = depends_on_path
    ) -> Switches | None:
        """The switches of a function at operands of these shapes; None if it has none."""
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*operands)
        if not _may_switch(closed):
            return None
        marks = [m for m, x in zip(moving, operands, strict=True) for _ in jax.tree.leaves(x)]
        found = cls(closed, jax.tree.structure(shape), marks, reported)
        return found if jax.eval_shape(lambda: found.sides(*operands)) else None

    def both(self, *operands: Any) -> tuple[Any, Sides]:
        """Function giving the values and the sides."""
        record = _Record(self._reported)
        return self._run_walk(record, operands), record.sides

    def sides(self, *operands: Any) -> Sides:
        """Function giving the sides."""
        return self.both(*operands)[1]

    def frozen(self, sides: Sides, *operands: Any) -> Any:
        """The function with sides fixed: equal to it where it has these sides, and its smooth extension beyond."""
        return self._run_walk(_Replay(self._reported, iter(sides)), operands)

    def _run_walk(self, walk: _Walk, operands: Sequence) -> Any:
        leaves = [
            jnp.asarray(x, v.aval.dtype)
            for x, v in zip(jax.tree.leaves(operands), self._closed.jaxpr.invars, strict=True)
        ]
        # what is closed over is data if it is traced
        marks = [DATA if is_traced(x) else 0 for x in self._closed.consts]
        values, _ = walk.run(self._closed, leaves, self._marks, marks)
        return jax.tree.unflatten(self._structure, values)


def differ(sides: Sides, others: Sides) -> Array:
    """Whether any of the sides differ, ()."""
    found = jnp.zeros((), bool)
    for x, y in zip(sides, others, strict=True):
        # what is no number is on no side
        found = found | jnp.any(x != y if x.dtype.kind != "f" else (x != y) & (x == x) & (y == y))
    return found


class Crossing(NamedTuple):
    """Where a path changes sides: nearby operands ``before`` and ``after``, with values and sides there; ``some`` (): whether it does."""

    some: Array
    before: Any
    after: Any
    value_before: Any
    value_after: Any
    sides_before: Sides
    sides_after: Sides


HALVINGS = 10


def crossing(switches: Switches, before: Any, after: Any, fixed: Sequence = (), halvings: int = HALVINGS) -> Crossing:
    """Locates, by bisection, where ``switches.both(*x, *fixed)`` changes sides on the straight path from ``before`` to ``after``.

    If sides change in both halves, the half with the larger change of values is taken, so that a jump is found rather than a kink.
    A lane whose sides do not change does not iterate. The ends of the path are tuples of real arrays.
    """
    both = lambda x: switches.both(*x, *fixed)
    (value_0, sides_0), (value_1, sides_1) = both(before), both(after)
    some = differ(sides_0, sides_1)
    scale = jax.tree.map(lambda x, y: jnp.abs(x) + jnp.abs(y) + jnp.abs(y - x), value_0, value_1)

    def change(x: Any, y: Any) -> Array:
        parts = jax.tree.map(lambda x, y, s: jnp.max(jnp.abs(y - x) / jnp.where(s > 0, s, 1), initial=0.0), x, y, scale)
        return jnp.sum(jnp.stack(jax.tree.leaves(parts)))

    def halved(now: tuple) -> tuple:
        k, found = now
        middle = jax.tree.map(lambda x, y: x + 0.5 * (y - x), found.before, found.after)
        value, sides = both(middle)
        first, second = differ(found.sides_before, sides), differ(sides, found.sides_after)
        larger = change(found.value_before, value) >= change(value, found.value_after)
        back = first & (~second | larger)  # the crossing is in the first half
        take = lambda here, there: jax.tree.map(lambda x, y: jnp.where(back, x, y), here, there)
        new = Crossing(
            some,
            take(found.before, middle),
            take(middle, found.after),
            take(found.value_before, value),
            take(value, found.value_after),
            take(found.sides_before, sides),
            take(sides, found.sides_after),
        )
        return k + 1, new

    start = Crossing(some, before, after, value_0, value_1, sides_0, sides_1)
    zero = jnp.zeros((), jnp.int32)
    return lax.while_loop(lambda now: (now[0] < halvings) & now[1].some, halved, (zero, start))[1]


def force_switches(
    problem: Any, t: Array, q: Array, v: Array, args: Any, reported: Mark = depends_on_data
) -> Switches | None:
    """Switches of a problem's force and of its mass matrix, as functions of (t, q, v, args)."""

    def function(t: Array, q: Array, v: Array, args: Any) -> list:
        found = [problem.generalised_force(t, q, v, args)]
        return [*found, jnp.asarray(problem.mass(q, args), q.dtype)] if callable(problem.mass) else found

    return Switches.of(function, (t, q, v, args), (TIME, STATE, STATE, DATA), reported)


def gap_switches(problem: Any, t: Array, q: Array, args: Any) -> Switches | None:
    """Switches of a problem's gaps, as a function of (t, q, args); None for contacts between bodies, which are smooth."""
    if problem.constraints is None or problem.between is not None:
        return None
    return Switches.of(lambda t, q, args: problem.gaps(t, q, args), (t, q, args), (TIME, STATE, DATA))


class Kinks(NamedTuple):
    """Gaps that may kink: their switches, and the sides at the beginning of a path."""

    gaps: Switches
    begins: Sides

    @classmethod
    def at(cls, problem: Any, t: Array, q: Array, args: Any) -> Kinks | None:
        """Kinks at the beginning of a path; None if no gap can kink, which is known while tracing."""
        t, q, args = lax.stop_gradient((t, q, args))
        gaps = gap_switches(problem, t, q, args)
        return None if gaps is None else cls(gaps, gaps.sides(t, q, args))

    def rate(self, t: Array, q: Array, v: Array, args: Any) -> Array:
        """Gap velocities (m,) at (t, q, v) on the initial sides, as if there were no kink on the way."""
        gaps = lambda s: self.gaps.frozen(self.begins, t + s, q + s * v, args)
        return jax.jvp(gaps, (jnp.zeros_like(t),), (jnp.ones_like(t),))[1]


# a walk over a jaxpr


class _Walk:
    """Evaluates a jaxpr while marking what each value depends on; subclasses treat the switches."""

    def __init__(self, reported: Mark) -> None:
        self.reported = reported

    def switch(self, side: Callable[[], Any], value: Callable[[Any], list], plain: Callable[[], list]) -> list:
        """Results of a switch by ``value(side())``, or by ``plain()`` if it is not reported."""
        raise NotImplementedError

    def within(self, sides: Any = None) -> _Walk:
        """A walk inside a nested jaxpr, whose sides are given or collected."""
        raise NotImplementedError

    def run(
        self, closed: Any, values: Sequence, marks: Sequence[int], of_consts: Sequence[int] = ()
    ) -> tuple[list, list]:
        """Results of a jaxpr, and their marks."""
        closed = as_closed(closed)
        jaxpr = closed.jaxpr
        of_consts = of_consts or [0] * len(closed.consts)
        known = dict(zip(jaxpr.constvars, zip(closed.consts, of_consts, strict=True), strict=True))
        known |= dict(zip(jaxpr.invars, zip(values, marks, strict=True), strict=True))
        read = lambda v: (v.val, 0) if is_literal(v) else known[v]
        for eqn in jaxpr.eqns:
            pairs = [read(v) for v in eqn.invars]
            found, depends = self.apply(eqn, [x for x, _ in pairs], [m for _, m in pairs])
            known.update(zip(eqn.outvars, zip(found, depends, strict=True), strict=True))
        ends = [read(v) for v in jaxpr.outvars]
        return [x for x, _ in ends], [m for _, m in ends]

    def apply(self, eqn: Any, values: list, marks: list[int]) -> tuple[list, list[int]]:
        """Results of one operation."""
        name = eqn.primitive.name
        moving = 0
        for v, mark in zip(eqn.invars, marks, strict=True):
            moving |= mark if _is_real(v) else 0
        discrete = not any(map(_is_real, eqn.outvars))
        plain = lambda: _bind(eqn, values)
        if not self.reported(moving):
            return plain(), self.result_marks(eqn, moving)
        if discrete:
            return self.switch(plain, lambda side: side, plain), [0] * len(eqn.outvars)
        if name in KINKS:
            side, value = KINKS[name]
            found = self.switch(lambda: side(eqn, *values), lambda x: value(eqn, x, *values), plain)
            return found, self.result_marks(eqn, 0 if name in STEPS else moving)
        return self.inside(eqn, values, marks) or (plain(), self.result_marks(eqn, moving))

    def result_marks(self, eqn: Any, moving: int) -> list[int]:
        """Marks of an operation's results; discrete results depend on nothing, since switches account for them."""
        return [moving if _is_real(v) else 0 for v in eqn.outvars]

    def inside(self, eqn: Any, values: list, marks: list[int]) -> tuple[list, list[int]] | None:
        """Results of an operation with nested jaxprs that may have switches; None if it is taken as it is."""
        name = eqn.primitive.name
        if not any(_may_switch(part) for part in nested_jaxprs(eqn)):
            return None
        if name in NESTED:
            return self.run(eqn.params[NESTED[name]], values, marks)
        if name == "cond":
            return self.walk_cond(eqn, values, marks)
        if name == "scan":
            return self.walk_scan(eqn, values, marks)
        return None

    def walk_cond(self, eqn: Any, values: list, marks: list[int]) -> tuple[list, list[int]] | None:
        """Evaluates a `cond`: the taken branch, with sides of all branches, zero for the others."""
        which, *operands = values
        branches = eqn.params["branches"]
        shapes = [_sides_of(self.reported, branch, operands, marks[1:]) for branch in branches]
        if not any(shapes):
            return None
        total = 0
        for mark in marks:
            total |= mark
        index = jnp.clip(which.astype(jnp.int32), 0, len(branches) - 1)

        def record(i: int) -> Callable:
            def branch(operands: list) -> tuple[list, list]:
                walk = _Record(self.reported)
                found, _ = walk.run(branches[i], operands, marks[1:])
                sides = [
                    walk.sides if j == i else [jnp.zeros(s.shape, s.dtype) for s in x] for j, x in enumerate(shapes)
                ]
                return found, [s for x in sides for s in x]

            return branch

        def replay(i: int) -> Callable:
            def branch(operands: list, sides: list) -> list:
                first = sum(map(len, shapes[:i]))
                own = sides[first : first + len(shapes[i])]
                return _Replay(self.reported, iter(own)).run(branches[i], operands, marks[1:])[0]

            return branch

        count = range(len(branches))
        found = self.part(
            lambda: lax.switch(index, [record(i) for i in count], operands),
            lambda sides: lax.switch(index, [replay(i) for i in count], operands, sides),
            sum(map(len, shapes)),
        )
        return found, self.result_marks(eqn, total)

    def walk_scan(self, eqn: Any, values: list, marks: list[int]) -> tuple[list, list[int]] | None:
        """Evaluates a scan; the sides of its iterations are stacked."""
        p = eqn.params
        fixed, carried = scan_counts(p)
        total = 0
        for mark in marks:
            total |= mark
        # what is carried on may depend on all
        of_turn = [*marks[:fixed], *[total] * carried, *marks[fixed + carried :]]
        constants, start, sequences = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]
        slices = [jax.ShapeDtypeStruct(jnp.shape(x)[1:], jnp.result_type(x)) for x in sequences]
        shapes = _sides_of(self.reported, p["jaxpr"], [*constants, *start, *slices], of_turn)
        if not shapes:
            return None

        def record(carry: list, xs: list) -> tuple[list, tuple[list, list]]:
            walk = _Record(self.reported)
            found, _ = walk.run(p["jaxpr"], [*constants, *carry, *xs], of_turn)
            return found[:carried], (found[carried:], walk.sides)

        def replay(carry: list, both: tuple[list, list]) -> tuple[list, list]:
            xs, sides = both
            found, _ = _Replay(self.reported, iter(sides)).run(p["jaxpr"], [*constants, *carry, *xs], of_turn)
            return found[:carried], found[carried:]

        turns = {"length": p["length"], "reverse": p["reverse"]}

        def record_all() -> tuple[list, list]:
            end, (rows, sides) = lax.scan(record, start, sequences, **turns)
            return [*end, *rows], sides

        def replay_all(sides: list) -> list:
            end, rows = lax.scan(replay, start, (sequences, sides), **turns)
            return [*end, *rows]

        start = [jnp.asarray(x, v.aval.dtype) for x, v in zip(start, eqn.invars[fixed:], strict=False)]
        return self.part(record_all, replay_all, len(shapes)), self.result_marks(eqn, total)

    def part(self, record: Callable[[], tuple[list, list]], replay: Callable[[list], list], count: int) -> list:
        """Results of a nested jaxpr that has ``count`` sides."""
        raise NotImplementedError


class _Record(_Walk):
    """Walk that records sides."""

    def __init__(self, reported: Mark) -> None:
        super().__init__(reported)
        self.sides: Sides = []

    def switch(self, side: Callable, value: Callable, plain: Callable) -> list:
        found = side()
        self.sides += found
        return plain()

    def part(self, record: Callable, replay: Callable, count: int) -> list:
        found, sides = record()
        self.sides += sides
        return found


class _Replay(_Walk):
    """Walk that replays given sides."""

    def __init__(self, reported: Mark, sides: Iterator[Array]) -> None:
        super().__init__(reported)
        self.given = sides

    def switch(self, side: Callable, value: Callable, plain: Callable) -> list:
        count = len(jax.eval_shape(side))
        return value([next(self.given) for _ in range(count)])

    def part(self, record: Callable, replay: Callable, count: int) -> list:
        return replay([next(self.given) for _ in range(count)])


def _sides_of(reported: Mark, closed: Any, operands: Sequence, marks: Sequence[int]) -> list:
    """Shapes of the sides in a jaxpr."""

    def of(operands: list) -> list:
        walk = _Record(reported)
        walk.run(closed, operands, marks)
        return walk.sides

    return jax.eval_shape(of, list(operands))


def _is_real(v: Any) -> bool:
    return jnp.issubdtype(v.aval.dtype, jnp.inexact)


def _bind(eqn: Any, values: Sequence) -> list:
    found = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(found) if eqn.primitive.multiple_results else [found]


def _may_switch(jaxpr: Any) -> bool:
    """Whether a jaxpr contains an operation that can be a switch, whatever its operands."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name in KINKS or any(map(_may_switch, nested_jaxprs(eqn))):
            return True
        if any(map(_is_real, eqn.invars)) and not any(map(_is_real, eqn.outvars)):
            return True
    return False


# operations on jaxprs that are calls of them
NESTED = CALLS | {"custom_vjp_call": "call_jaxpr"}


# operations on real numbers that kink or jump: their sides, and their results of given sides


def _along_last(eqn: Any, x: Array) -> Array:
    """Operand with the reduced axes moved to the end and merged."""
    axes = tuple(eqn.params["axes"])
    kept = [i for i in range(x.ndim) if i not in axes]
    return x.transpose([*kept, *axes]).reshape(*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axes))


def _extreme_place(which: Callable) -> Callable:
    return lambda eqn, x: [which(_along_last(eqn, x), axis=-1)]


def _at_place(eqn: Any, sides: Sides, x: Array) -> list:
    return [jnp.take_along_axis(_along_last(eqn, x), sides[0][..., None], axis=-1)[..., 0]]


def _order(eqn: Any, *operands: Array) -> Sides:
    p = eqn.params
    places = lax.broadcasted_iota(jnp.int32, operands[0].shape, p["dimension"])
    return [lax.sort((*operands, places), dimension=p["dimension"], num_keys=p["num_keys"])[-1]]


def _take_order(eqn: Any, sides: Sides, *operands: Array) -> list:
    return [jnp.take_along_axis(x, sides[0], axis=eqn.params["dimension"]) for x in operands]


def _beyond(eqn: Any, least: Array, x: Array, most: Array) -> Sides:
    return [x < least, x > most]


def _clamp_value(eqn: Any, sides: Sides, least: Array, x: Array, most: Array) -> list:
    return [jnp.where(sides[0], least, jnp.where(sides[1], most, x))]


def _turns(eqn: Any, y: Array, x: Array) -> Sides:
    """Switch of atan2: the number of half turns between its angle and that of the opposite direction, where x < 0."""
    return [jnp.where(x < 0, jnp.where(y < 0, -1, 1), 0)]


def _angle(eqn: Any, sides: Sides, y: Array, x: Array) -> list:
    (half,) = sides
    sign = jnp.where(half == 0, 1, -1).astype(x.dtype)
    return [jnp.arctan2(sign * y, sign * x) + half.astype(x.dtype) * np.pi]


def _remainder(eqn: Any, sides: Sides, x: Array, y: Array) -> list:
    return [x - sides[0] * y]


KINKS: dict[str, tuple[Callable[..., Sides], Callable[..., list]]] = {
    "abs": (lambda eqn, x: [x < 0], lambda eqn, sides, x: [jnp.where(sides[0], -x, x)]),
    "max": (lambda eqn, x, y: [x < y], lambda eqn, sides, x, y: [jnp.where(sides[0], y, x)]),
    "min": (lambda eqn, x, y: [x > y], lambda eqn, sides, x, y: [jnp.where(sides[0], y, x)]),
    "clamp": (_beyond, _clamp_value),
    "rem": (lambda eqn, x, y: [jnp.round((x - lax.rem(x, y)) / y)], _remainder),
    "atan2": (_turns, _angle),
    "sort": (_order, _take_order),
    "reduce_max": (_extreme_place(jnp.argmax), _at_place),
    "reduce_min": (_extreme_place(jnp.argmin), _at_place),
    **dict.fromkeys(
        ("sign", "floor", "ceil", "round"), (lambda eqn, x: _bind(eqn, [x]), lambda eqn, sides, x: [sides[0]])
    ),
}
STEPS = {"sign", "floor", "ceil", "round"}  # constant between their jumps
