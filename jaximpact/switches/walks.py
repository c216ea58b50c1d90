"""Walks that evaluate the jaxpr of a function with switches: they record sides, replay given ones,
or compute how far their borders are.

For each side, in the order of the jaxpr and of the jaxprs nested in it, a walk takes a fixed number of the arrays that
it is given, such as the side to replay, and adds those that it computes to the list ``collected``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import jaxpr_as_fun

from ..jaxtools.jaxpr_tools import (
    CALLS,
    as_closed,
    called_jaxpr,
    contains_primitive,
    is_literal,
    nested_jaxprs,
    scan_counts,
)
from ..jaxtools.jaxpr_types import AnyJaxpr, Equation, Operand
from .kinds import KINKS, POLE, STEPS, Kind, Sides, apply, kind_of

# marks of operands; a value computed from several has all of their bits; a velocity has STATE and SPEED
STATE, TIME, DATA, SPEED = 1, 2, 4, 8
ASKED = 16  # of operands on which a caller asks whether levels depend
Mark = Callable[[int], bool]


class Reported(NamedTuple):
    """Which switches count: those for which three conditions hold.

    The function ``moving`` is true for the mark of the operands (see `Walk`). The switch has levels, or ``levels`` is
    False. The function jumps there and does not merely kink, or ``kinks`` is True.
    """

    moving: Mark
    levels: bool = False
    kinks: bool = True

    def counts(self, kind: Kind) -> bool:
        """Tests whether an operation of this kind is a switch that counts."""
        return (kind.levels is not None or not self.levels) and (self.kinks or not kind.kinks)


class Walk:
    """Evaluates a jaxpr while marking what each value depends on; subclasses treat the switches.

    A mark is an int with the bits STATE, TIME, DATA, SPEED, ASKED of what a value depends on, 0 for constants.

    Attributes:
        takes: number of arrays that are given for each side.
        collected: arrays found so far.
        marks: marks of the operands of each side so far.
    """

    takes = 0

    def __init__(self, reported: Reported, given: Iterable[Array] = (), exact: Array | None = None) -> None:
        self.reported, self.given, self.exact = reported, iter(given), exact
        self.collected: list[Array] = []
        self.marks: list[int] = []
        self.poles: list[Equation] = []

    def switch(self, kind: Kind, eqn: Equation, values: Sequence) -> tuple[list, Sides]:
        """Treats a switch, the operation of an equation of the jaxpr on ``values``: returns its results,
        and its sides."""
        raise NotImplementedError

    def take(self, number: int) -> list[Array]:
        """Returns the arrays that are given for the next ``number`` sides."""
        return [next(self.given) for _ in range(self.takes * number)]

    def run(
        self,
        closed: AnyJaxpr,
        values: Sequence,
        marks: Sequence[int],
        of_consts: Sequence[int] = (),
        near: Sequence = (),
    ) -> tuple[list, list, list]:
        """Evaluates a ``closed`` jaxpr on ``values`` with the given ``marks``; returns its results, their marks,
        and the results near by.

        ``of_consts``: marks of its constants, 0 if not given; ``near``: values of the operands at a point near by, as
        by `displaced`. Where they are given, numbers count as equal that are so there too, on the same sides: what is
        equal at a single point only belongs to no piece.
        """
        closed = as_closed(closed)
        jaxpr = closed.jaxpr
        of_consts = of_consts or [0] * len(closed.consts)
        known = dict(zip(jaxpr.constvars, zip(closed.consts, of_consts, closed.consts, strict=True), strict=True))
        known |= dict(zip(jaxpr.invars, zip(values, marks, near or values, strict=True), strict=True))
        read = lambda v: (v.val, 0, v.val) if is_literal(v) else known[v]
        self.poles += poles(jaxpr)
        for eqn in jaxpr.eqns:
            read_all = [read(v) for v in eqn.invars]
            operands, of_operands, beside = ([x[i] for x in read_all] for i in range(3))
            found = self.apply(eqn, operands, of_operands, beside, bool(near))
            known.update(zip(eqn.outvars, zip(*found, strict=True), strict=True))
        ends = [read(v) for v in jaxpr.outvars]
        return [x for x, _, _ in ends], [m for _, m, _ in ends], [x for _, _, x in ends]

    def apply(
        self, eqn: Equation, values: list, marks: list[int], near: list, some: bool
    ) -> tuple[list, list[int], list]:
        """Evaluates one operation; returns its results, their marks, and its results near by, if there are ``some``,
        else the results again."""
        moving = 0
        for v, mark in zip(eqn.invars, marks, strict=True):
            moving |= mark if is_real(v) else 0
        both = lambda f: (lambda found: (found, f(near) if some else found))(f(values))
        if not self.reported.moving(moving):
            # a call that takes the velocity may have switches of time and place alone
            within = self.inside(eqn, values, marks, near if some else []) if moving & SPEED else None
            if within is not None:
                return within
            found, found_near = both(lambda x: apply(eqn, *x))
            return found, result_marks(eqn, moving), found_near
        discrete = not any(map(is_real, eqn.outvars))
        kind = kind_of(eqn, discrete) or _kind_of_loop(self.reported, eqn, marks)
        if any(eqn is pole for pole in self.poles) and self.reported.moving(marks[1]):
            kind = POLE
        # an operation with discrete results only is one switch, unless levels are needed
        if kind is None or (discrete and self.reported.levels):
            within = self.inside(eqn, values, marks, near if some else [])
            if within is not None:
                return within
        # discrete results depend on nothing: switches account for them
        after = result_marks(eqn, 0 if discrete or eqn.primitive.name in STEPS else moving)
        if kind is None or not self.reported.counts(kind) or eqn.primitive.name in EQUALITIES:
            found, found_near = both(lambda x: apply(eqn, *x))
            if eqn.primitive.name not in EQUALITIES:
                return found, after, found_near
            lasts = (
                found_near
                if self.exact is None
                else [jnp.where(self.exact, *x) for x in zip(found, found_near, strict=True)]
            )
            return lasts, after, found_near
        found, sides = self.switch(kind, eqn, values)
        self.marks += [moving] * len(sides)
        return found, after, kind.value(eqn, sides, *near) if some else found

    def inside(self, eqn: Equation, values: list, marks: list[int], near: list) -> tuple[list, list[int], list] | None:
        """Evaluates an operation by a walk through its nested jaxprs; None if these have no switches,
        or it is a loop of unknown length.

        Arguments and results as of `run`.
        """
        name = eqn.primitive.name
        if not any(may_switch(part) for part in nested_jaxprs(eqn)):
            return None
        if name in CALLS:
            return self.run(called_jaxpr(eqn), values, marks, near=near)
        within = self.walk_cond if name == "cond" else self.walk_scan if name == "scan" else None
        found = None if within is None else within(eqn, values, marks, bool(near))
        return found and (*found, displaced(*found) if near else found[0])

    def walk_cond(self, eqn: Equation, values: list, marks: list[int], some: bool) -> tuple[list, list[int]] | None:
        """Evaluates the branch that a `cond` takes; collects arrays for all branches, ones for the others.
        None if no branch has switches.

        ``some``: whether branches are evaluated near by too.
        """
        which, *operands = values
        branches = eqn.params["branches"]
        counts = [len(_sides_of(self.reported, branch, operands, marks[1:])) for branch in branches]
        if not any(counts):
            return None
        given = [self.take(number) for number in counts]
        walks: dict[int, Walk] = {}

        def branch(i: int, operands: list, given: list) -> tuple[list, list]:
            walks[i] = type(self)(self.reported, given[i], self.exact)
            near = displaced(operands, marks[1:]) if some else ()
            found, *_ = walks[i].run(branches[i], operands, marks[1:], near=near)
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

    def walk_scan(self, eqn: Equation, values: list, marks: list[int], some: bool) -> tuple[list, list[int]] | None:
        """Evaluates a scan; collects the arrays of its iterations, stacked. None if its body has no switches. ``some``:
        as of `walk_cond`."""
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
            walks.append(type(self)(self.reported, given, self.exact))
            operands = [*constants, *carry, *xs]
            near = displaced(operands, of_turn) if some else ()
            found, *_ = walks[-1].run(p["jaxpr"], operands, of_turn, near=near)
            return found[:carried], (found[carried:], walks[-1].collected)

        start = [jnp.asarray(x, v.aval.dtype) for x, v in zip(start, eqn.invars[fixed:], strict=False)]
        both = (sequences, self.take(number))
        end, (rows, collected) = lax.scan(turn, start, both, length=p["length"], reverse=p["reverse"])
        self.collected += collected
        self.marks += walks[-1].marks
        return [*end, *rows], result_marks(eqn, total)


class Record(Walk):
    """Walk that records sides."""

    def switch(self, kind: Kind, eqn: Equation, values: Sequence) -> tuple[list, Sides]:
        sides = kind.side(eqn, *values)
        self.collected += sides
        return apply(eqn, *values), sides


class Definite(Record):
    """Walk that records definite sides, and evaluates the function on them (`Switches.definite`)."""

    def switch(self, kind: Kind, eqn: Equation, values: Sequence) -> tuple[list, Sides]:
        sides = (kind.definite or kind.side)(eqn, *values)
        self.collected += sides
        return kind.value(eqn, sides, *values), sides


class Replay(Walk):
    """Walk that replays given sides."""

    takes = 1

    def switch(self, kind: Kind, eqn: Equation, values: Sequence) -> tuple[list, Sides]:
        sides = self.take(_number(kind, eqn, values))
        return kind.value(eqn, sides, *values), sides


class Measure(Walk):
    """Walk that replays given sides, and collects for each of them its levels and the side
    beyond its nearest border."""

    takes = 1

    def switch(self, kind: Kind, eqn: Equation, values: Sequence) -> tuple[list, Sides]:
        sides = self.take(_number(kind, eqn, values))
        levels, across = (cast(Callable, f)(eqn, sides, *values) for f in (kind.levels, kind.across))
        for pair in zip(levels, across, strict=True):
            self.collected += pair
        return kind.value(eqn, sides, *values), sides


class Choose(Walk):
    """Walk that is given a mask and a side for each side: records the given side where the mask is true,
    the definite one elsewhere."""

    takes = 2

    def switch(self, kind: Kind, eqn: Equation, values: Sequence) -> tuple[list, Sides]:
        own = (kind.definite or kind.side)(eqn, *values)
        given = self.take(len(own))
        sides = [jnp.where(given[2 * i], given[2 * i + 1], side) for i, side in enumerate(own)]
        self.collected += sides
        return kind.value(eqn, sides, *values), sides


def displaced(values: Sequence, marks: Sequence[int]) -> list:
    """Returns ``values`` at a point near by: each real number that depends on the state or the time is changed a
    little, all by different parts."""
    found = []
    for i, (x, mark) in enumerate(zip(values, marks, strict=True)):
        x = jnp.asarray(x)
        if mark & (STATE | TIME) and jnp.issubdtype(x.dtype, jnp.inexact):
            parts = np.modf(0.618 * np.arange(1 + i, 1 + i + x.size))[0].reshape(x.shape)
            x = x + lax.stop_gradient(1 + jnp.abs(x)) * jnp.asarray(
                jnp.finfo(x.dtype).eps ** 0.5 * (1 + parts), x.dtype
            )
        found.append(x)
    return found


def _kind_of_loop(reported: Reported, eqn: Equation, marks: list[int]) -> Kind | None:
    """Kind of a `lax.while_loop` with real results, whose number of iterations, or whose body, depends on switches;
    None for other operations.

    Its sides are the number of iterations and a number made of the sides in all of them, so that both tell when a side
    changes. Only the number of iterations is kept on given sides. ``marks``: of the operands of the equation.
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
            now, *_ = walk.run(body, [*values[first:start], *now], in_turn)
            for side in walk.collected:
                places = jnp.arange(1, side.size + 1, dtype=jnp.int32)
                sum_of_sides = 31 * sum_of_sides + places @ side.ravel().astype(jnp.int32)
            return turns + 1, sum_of_sides, now

        zero = jnp.zeros((), jnp.int32)
        begin = [jnp.asarray(x, v.aval.dtype) for x, v in zip(values[start:], eqn.invars[start:], strict=True)]
        return lax.while_loop(goes_on, turn, (zero, zero, begin))

    def side(eqn: Equation, *values: Array) -> Sides:
        return list(looped(values, lambda carry: jaxpr_as_fun(asks)(*values[:first], *carry[2])[0])[:2])

    def value(eqn: Equation, sides: Sides, *values: Array) -> list:
        return looped(values, lambda carry: carry[0] < sides[0])[2]

    return Kind(side, value)


def _number(kind: Kind, eqn: Equation, values: Sequence) -> int:
    return len(jax.eval_shape(lambda *x: kind.side(eqn, *x), *values))


def _sides_of(reported: Reported, closed: AnyJaxpr, operands: Sequence, marks: Sequence[int]) -> Sides:
    """Returns the shapes of the sides that a walk through a jaxpr records."""

    def of(operands: list) -> list:
        walk = Record(reported)
        walk.run(closed, operands, marks)
        return walk.collected

    return jax.eval_shape(of, list(operands))


def result_marks(eqn: Equation, moving: int) -> list[int]:
    """Returns the marks of an operation's results: the mark ``moving`` of its operands, or 0 for discrete results,
    constant on each side."""
    return [moving if is_real(v) else 0 for v in eqn.outvars]


def _all(marks: Sequence[int]) -> int:
    total = 0
    for mark in marks:
        total |= mark
    return total


def is_real(v: Operand) -> bool:
    """Tests whether a variable of a jaxpr is real-valued."""
    return jnp.issubdtype(v.aval.dtype, jnp.inexact)


def asks_whether_equal(jaxpr: AnyJaxpr) -> bool:
    """Tests whether a jaxpr tests real numbers for equality."""
    eqns = getattr(jaxpr, "jaxpr", jaxpr).eqns
    own = any(eqn.primitive.name in EQUALITIES and is_real(eqn.invars[0]) for eqn in eqns)
    return own or any(asks_whether_equal(part) for eqn in eqns for part in nested_jaxprs(eqn))


def may_switch(jaxpr: AnyJaxpr) -> bool:
    """Tests whether a jaxpr contains an operation that can be a switch, whatever its operands."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return any(map(equation_may_switch, jaxpr.eqns)) or bool(poles(jaxpr))


def poles(jaxpr: AnyJaxpr) -> list:
    """Returns the divisions in a jaxpr on whose results bounded functions depend: these may jump where the divisor is
    zero, as tanh(1/x) does."""
    if not any(eqn.primitive.name == "div" and not is_literal(eqn.invars[1]) for eqn in jaxpr.eqns):
        return []
    inside: set = set()  # variables that bounded functions depend on
    found = []
    for eqn in reversed(jaxpr.eqns):
        of = eqn.primitive.name in BOUNDED or any(
            contains_primitive(x, name) for x in nested_jaxprs(eqn) for name in BOUNDED
        )
        if of or any(v in inside for v in eqn.outvars):
            inside.update(v for v in eqn.invars if not is_literal(v))
        if eqn.primitive.name == "div" and not is_literal(eqn.invars[1]) and eqn.outvars[0] in inside:
            found.append(eqn)
    return found


def equation_may_switch(eqn: Equation) -> bool:
    """Tests whether the operation of an equation, or one in its nested jaxprs, can be a switch."""
    if eqn.primitive.name in KINKS or any(map(may_switch, nested_jaxprs(eqn))):
        return True
    return any(map(is_real, eqn.invars)) and not any(map(is_real, eqn.outvars))


EQUALITIES = {"eq", "ne"}
BOUNDED = (
    "exp",
    "exp2",
    "expm1",
    "tanh",
    "logistic",
    "erf",
    "erfc",
    "atan",
    "sin",
    "cos",
)  # with a limit on one side at least, or none
