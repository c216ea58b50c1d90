"""Walks that evaluate the jaxpr of a function with switches: they record sides, replay given ones, or compute how far their borders are.

For each side, in the order of the jaxpr and of the jaxprs nested in it, a walk takes a fixed number of the arrays that it is given, such as the
side to replay, and adds those that it computes to the list ``collected``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import jaxpr_as_fun

from ..jaxtools.jaxpr_tools import CALLS, as_closed, is_literal, nested_jaxprs, scan_counts
from .switch_kinds import KINKS, STEPS, Kind, Sides, apply, kind_of

STATE, TIME, DATA, SPEED = (
    1,
    2,
    4,
    8,
)  # marks of operands; a value computed from several has all of their bits; a velocity has STATE and SPEED
Mark = Callable[[int], bool]


class Reported(NamedTuple):
    """Which switches count: those for which three conditions hold.

    The function ``moving`` is true for the mark of the operands (see `Walk`). The switch has levels, or ``levels`` is False. The function jumps there
    and does not merely kink, or ``kinks`` is True.
    """

    moving: Mark
    levels: bool = False
    kinks: bool = True

    def counts(self, kind: Kind) -> bool:
        """Tests whether an operation of this kind is a switch that counts."""
        return (kind.levels is not None or not self.levels) and (self.kinks or not kind.kinks)


class Walk:
    """Evaluates a jaxpr while marking what each value depends on; subclasses treat the switches.

    A mark is an int with the bits STATE, TIME, DATA, SPEED of what a value depends on, 0 for constants.

    Attributes:
        takes: number of arrays that are given for each side.
        collected: arrays found so far.
        marks: marks of the operands of each side so far.
    """

    takes = 0

    def __init__(self, reported: Reported, given: Iterable[Array] = ()) -> None:
        self.reported, self.given = reported, iter(given)
        self.collected: list[Array] = []
        self.marks: list[int] = []

    def switch(self, kind: Kind, eqn: Any, values: Sequence) -> tuple[list, int]:
        """Treats a switch, the operation of an equation of the jaxpr on ``values``: returns its results, and the number of its sides."""
        raise NotImplementedError

    def take(self, number: int) -> list[Array]:
        """Returns the arrays that are given for the next ``number`` sides."""
        return [next(self.given) for _ in range(self.takes * number)]

    def run(
        self, closed: Any, values: Sequence, marks: Sequence[int], of_consts: Sequence[int] = ()
    ) -> tuple[list, list]:
        """Evaluates a ``closed`` jaxpr on ``values`` with the given ``marks``; returns its results, and their marks.

        ``of_consts``: marks of its constants, 0 if not given.
        """
        closed = as_closed(closed)
        jaxpr = closed.jaxpr
        of_consts = of_consts or [0] * len(closed.consts)
        known = dict(zip(jaxpr.constvars, zip(closed.consts, of_consts, strict=True), strict=True))
        known |= dict(zip(jaxpr.invars, zip(values, marks, strict=True), strict=True))
        read = lambda v: (v.val, 0) if is_literal(v) else known[v]
        made: dict[Any, Any] = {}  # the equation that gives each variable
        for eqn in jaxpr.eqns:
            pairs = [read(v) for v in eqn.invars]
            if _signs_zero(eqn, made):
                found, depends = [pairs[1][0]], [pairs[1][1]]
            elif _asks_for_remainder(eqn, made):
                found, depends = [jnp.ones(eqn.outvars[0].aval.shape, bool)], [0]
            else:
                found, depends = self.apply(eqn, [x for x, _ in pairs], [m for _, m in pairs])
            made.update(dict.fromkeys(eqn.outvars, eqn))
            known.update(zip(eqn.outvars, zip(found, depends, strict=True), strict=True))
        ends = [read(v) for v in jaxpr.outvars]
        return [x for x, _ in ends], [m for _, m in ends]

    def apply(self, eqn: Any, values: list, marks: list[int]) -> tuple[list, list[int]]:
        """Evaluates one operation; returns its results, and their marks."""
        moving = 0
        for v, mark in zip(eqn.invars, marks, strict=True):
            moving |= mark if is_real(v) else 0
        if not self.reported.moving(moving):
            return apply(eqn, *values), result_marks(eqn, moving)
        discrete = not any(map(is_real, eqn.outvars))
        kind = kind_of(eqn, discrete) or _kind_of_loop(self.reported, eqn, marks)
        # an operation with discrete results only is one switch, unless levels are needed
        within = self.inside(eqn, values, marks) if kind is None or (discrete and self.reported.levels) else None
        if within is not None or kind is None:
            return within or (apply(eqn, *values), result_marks(eqn, moving))
        # discrete results depend on nothing: switches account for them
        after = result_marks(eqn, 0 if discrete or eqn.primitive.name in STEPS else moving)
        if not self.reported.counts(kind):
            return apply(eqn, *values), after
        found, number = self.switch(kind, eqn, values)
        self.marks += [moving] * number
        return found, after

    def inside(self, eqn: Any, values: list, marks: list[int]) -> tuple[list, list[int]] | None:
        """Evaluates an operation by a walk through its nested jaxprs; None if these have no switches, or it is a loop of unknown length."""
        name = eqn.primitive.name
        if not any(may_switch(part) for part in nested_jaxprs(eqn)):
            return None
        if name in NESTED:
            return self.run(eqn.params[NESTED[name]], values, marks)
        if name == "cond":
            return self.walk_cond(eqn, values, marks)
        if name == "scan":
            return self.walk_scan(eqn, values, marks)
        return None

    def walk_cond(self, eqn: Any, values: list, marks: list[int]) -> tuple[list, list[int]] | None:
        """Evaluates the branch that a `cond` takes; collects arrays for all branches, ones for the others. None if no branch has switches."""
        which, *operands = values
        branches = eqn.params["branches"]
        counts = [len(_sides_of(self.reported, branch, operands, marks[1:])) for branch in branches]
        if not any(counts):
            return None
        given = [self.take(number) for number in counts]
        walks: dict[int, Walk] = {}

        def branch(i: int, operands: list, given: list) -> tuple[list, list]:
            walks[i] = type(self)(self.reported, given[i])
            found, _ = walks[i].run(branches[i], operands, marks[1:])
            return found, walks[i].collected

        places = range(len(branches))
        shapes = [jax.eval_shape(lambda *x, i=i: branch(i, *x), operands, given)[1] for i in places]

        def padded(i: int, operands: list, given: list) -> tuple[list, list]:
            found, collected = branch(i, operands, given)
            fill = lambda s: jnp.ones(s.shape, s.dtype)  # a level far from any border
            return found, [x for j in places for x in (collected if j == i else map(fill, shapes[j]))]

        index = jnp.clip(which.astype(jnp.int32), 0, len(branches) - 1)
        found, collected = lax.switch(index, [lambda *x, i=i: padded(i, *x) for i in places], operands, given)
        self.collected += collected
        self.marks += [mark for i in places for mark in walks[i].marks]
        return found, result_marks(eqn, _all(marks))

    def walk_scan(self, eqn: Any, values: list, marks: list[int]) -> tuple[list, list[int]] | None:
        """Evaluates a scan; collects the arrays of its iterations, stacked. None if its body has no switches."""
        p = eqn.params
        fixed, carried = scan_counts(p)
        total = _all(marks)
        # the carry may depend on everything
        of_turn = [*marks[:fixed], *[total] * carried, *marks[fixed + carried :]]
        constants, start, sequences = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]
        slices = [jax.ShapeDtypeStruct(jnp.shape(x)[1:], jnp.result_type(x)) for x in sequences]
        number = len(_sides_of(self.reported, p["jaxpr"], [*constants, *start, *slices], of_turn))
        if not number:
            return None
        walks: list[Walk] = []

        def turn(carry: list, both: tuple[list, list]) -> tuple[list, tuple[list, list]]:
            xs, given = both
            walks.append(type(self)(self.reported, given))
            found, _ = walks[-1].run(p["jaxpr"], [*constants, *carry, *xs], of_turn)
            return found[:carried], (found[carried:], walks[-1].collected)

        start = [jnp.asarray(x, v.aval.dtype) for x, v in zip(start, eqn.invars[fixed:], strict=False)]
        both = (sequences, self.take(number))
        end, (rows, collected) = lax.scan(turn, start, both, length=p["length"], reverse=p["reverse"])
        self.collected += collected
        self.marks += walks[-1].marks
        return [*end, *rows], result_marks(eqn, total)


class Record(Walk):
    """Walk that records sides."""

    def switch(self, kind: Kind, eqn: Any, values: Sequence) -> tuple[list, int]:
        sides = kind.side(eqn, *values)
        self.collected += sides
        return apply(eqn, *values), len(sides)


class Definite(Record):
    """Walk that records definite sides, and evaluates the function on them (`Switches.definite`)."""

    def switch(self, kind: Kind, eqn: Any, values: Sequence) -> tuple[list, int]:
        sides = (kind.definite or kind.side)(eqn, *values)
        self.collected += sides
        return kind.value(eqn, sides, *values), len(sides)


class Replay(Walk):
    """Walk that replays given sides."""

    takes = 1

    def switch(self, kind: Kind, eqn: Any, values: Sequence) -> tuple[list, int]:
        sides = self.take(_number(kind, eqn, values))
        return kind.value(eqn, sides, *values), len(sides)


class Measure(Walk):
    """Walk that replays given sides, and collects for each of them its levels and the side beyond its nearest border."""

    takes = 1

    def switch(self, kind: Kind, eqn: Any, values: Sequence) -> tuple[list, int]:
        sides = self.take(_number(kind, eqn, values))
        levels, across = kind.levels(eqn, sides, *values), kind.across(eqn, sides, *values)  # type: ignore[misc]
        for pair in zip(levels, across, strict=True):
            self.collected += pair
        return kind.value(eqn, sides, *values), len(sides)


class Choose(Walk):
    """Walk that is given a mask and a side for each side: records the given side where the mask is true, the definite one elsewhere."""

    takes = 2

    def switch(self, kind: Kind, eqn: Any, values: Sequence) -> tuple[list, int]:
        own = (kind.definite or kind.side)(eqn, *values)
        given = self.take(len(own))
        sides = [jnp.where(given[2 * i], given[2 * i + 1], side) for i, side in enumerate(own)]
        self.collected += sides
        return kind.value(eqn, sides, *values), len(sides)


def _signs_zero(eqn: Any, made: dict) -> bool:
    """Tests whether an operation is where(x == 0, 0, x), which searches in tables use to treat -0 and 0 alike: it is no switch, but the identity.

    ``made``: a dict from each variable of the jaxpr to the equation that computes it.
    """
    if eqn.primitive.name != "select_n" or is_literal(eqn.invars[0]) or len(eqn.invars) != 3:
        return False
    which, x, zero = eqn.invars
    asks, gives = made.get(which), None if is_literal(zero) else made.get(zero)
    null = lambda v: is_literal(v) and np.ndim(v.val) == 0 and v.val == 0
    fills = null(zero) or (gives is not None and gives.primitive.name == "broadcast_in_dim" and null(gives.invars[0]))
    return fills and asks is not None and asks.primitive.name == "eq" and asks.invars[0] is x and null(asks.invars[1])


def _asks_for_remainder(eqn: Any, made: dict) -> bool:
    """Tests whether an operation is rem(x, y) != 0, as in `jnp.mod`: true but on the borders of the remainder, and of either side by continuation.

    ``made``: as of `_signs_zero`.
    """
    asked = [made.get(v) for v in eqn.invars if not is_literal(v)] if eqn.primitive.name == "ne" else []
    return any(x is not None and x.primitive.name == "rem" for x in asked)


def _kind_of_loop(reported: Reported, eqn: Any, marks: list[int]) -> Kind | None:
    """Kind of a `lax.while_loop` with real results, whose number of iterations, or whose body, depends on switches; None for other operations.

    Its sides are the number of iterations and a number made of the sides in all of them, so that both tell when a side changes. Only the number of
    iterations is kept on given sides. ``marks``: of the operands of the equation.
    """
    if eqn.primitive.name != "while" or not any(may_switch(part) for part in nested_jaxprs(eqn)):
        return None
    asks, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    first, start = eqn.params["cond_nconsts"], eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
    in_turn = [*marks[first:start], *[_all(marks)] * (len(marks) - start)]

    def looped(values: Sequence, goes_on: Callable) -> tuple:
        def turn(carry: tuple) -> tuple:
            turns, sum_of_sides, now = carry
            walk = Record(reported)
            now, _ = walk.run(body, [*values[first:start], *now], in_turn)
            for side in walk.collected:
                places = jnp.arange(1, side.size + 1, dtype=jnp.int32)
                sum_of_sides = 31 * sum_of_sides + places @ side.ravel().astype(jnp.int32)
            return turns + 1, sum_of_sides, now

        zero = jnp.zeros((), jnp.int32)
        begin = [jnp.asarray(x, v.aval.dtype) for x, v in zip(values[start:], eqn.invars[start:], strict=True)]
        return lax.while_loop(goes_on, turn, (zero, zero, begin))

    def side(eqn: Any, *values: Any) -> Sides:
        return list(looped(values, lambda carry: jaxpr_as_fun(asks)(*values[:first], *carry[2])[0])[:2])

    def value(eqn: Any, sides: Sides, *values: Any) -> list:
        return looped(values, lambda carry: carry[0] < sides[0])[2]

    return Kind(side, value)


def _number(kind: Kind, eqn: Any, values: Sequence) -> int:
    return len(jax.eval_shape(lambda *x: kind.side(eqn, *x), *values))


def _sides_of(reported: Reported, closed: Any, operands: Sequence, marks: Sequence[int]) -> Sides:
    """Returns the shapes of the sides that a walk through a jaxpr records."""

    def of(operands: list) -> list:
        walk = Record(reported)
        walk.run(closed, operands, marks)
        return walk.collected

    return jax.eval_shape(of, list(operands))


def result_marks(eqn: Any, moving: int) -> list[int]:
    """Returns the marks of an operation's results: the mark ``moving`` of its operands, or 0 for discrete results, constant on each side."""
    return [moving if is_real(v) else 0 for v in eqn.outvars]


def _all(marks: Sequence[int]) -> int:
    total = 0
    for mark in marks:
        total |= mark
    return total


def is_real(v: Any) -> bool:
    """Tests whether a variable of a jaxpr is real-valued."""
    return jnp.issubdtype(v.aval.dtype, jnp.inexact)


def may_switch(jaxpr: Any) -> bool:
    """Tests whether a jaxpr contains an operation that can be a switch, whatever its operands."""
    return any(map(equation_may_switch, getattr(jaxpr, "jaxpr", jaxpr).eqns))


def equation_may_switch(eqn: Any) -> bool:
    """Tests whether the operation of an equation, or one in its nested jaxprs, can be a switch."""
    if eqn.primitive.name in KINKS or any(map(may_switch, nested_jaxprs(eqn))):
        return True
    return any(map(is_real, eqn.invars)) and not any(map(is_real, eqn.outvars))


# operations that call a jaxpr, with the name of the parameter that holds it
NESTED = CALLS | {"custom_vjp_call": "call_jaxpr"}
