"""Switches of a function, where it may jump or kink: found in its jaxpr, with the side of each at an argument,
and smooth extensions.

A function of t, q and v is smooth except where an operation makes something discrete of values that vary: a comparison,
the sign of a number, its integer part, the larger of two, the place of a number in a table. These operations are
its *switches*, and their discrete results its *sides*, a list of arrays. A cube root is one too, as its slope is
infinite at zero; roots of squares are magnitudes (`magnitudes`). Between two points with equal sides the function is
smooth; where sides differ it may have jumped on the way.

    switches = Switches.of(function, operands, moving)  # None: it has none, which costs nothing in what is compiled
    value, sides = switches.both(*operands)             # the function and its sides at the operands
    switches.sides(*operands)                           # the sides only
    switches.frozen(sides, *operands)                   # the function with fixed sides: its smooth extension beyond them
    switches.measured(sides, *operands)                 # how far the borders of these sides are, and the sides beyond
    differ(sides, others)                               # whether any side differs, ()
    crossing(switches, before, after)                   # where a straight path goes from one side to another

``function(*operands)`` gives one array or a pytree of them. ``moving`` says of each operand whether it is ``STATE`` (q,
v), ``TIME``, ``DATA`` (parameters) or 0 (a constant). By default a switch is reported if its operands depend on the
state or the time; `Switches.of` with ``reported=depends_on_data`` leaves out switches at fixed times.
For the gaps of a problem:

    gaps = gap_switches(problem, t, q, args)            # of problem.gaps(t, q, args), or None
    rate = lambda s: jax.jvp(lambda s: gaps.frozen(sides, t + s, q + s * v, args), (s,), (one,))[1]

so that `frozen` gives gaps, rates and accelerations of one side at a kink. A loop whose number of iterations is not
static (`lax.while_loop`) is one switch, whose sides are that number and the switches inside. Not searched for switches
are callbacks, solvers and `cummax`. They count as smooth, as do steep functions however steep, and poles, except inside
bounded functions, as in tanh(1/q). What holds at single points only, as where q == 0, belongs to no piece, unless the
function is not finite there without it.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr
from jax.tree_util import PyTreeDef

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.jaxpr_tools import (
    contains_primitive,
    count_equations,
    depends_on,
    inline_calls,
    is_literal,
    nested_jaxprs,
)
from ..jaxtools.jaxpr_types import AnyJaxpr
from ..jaxtools.outlined import outlined
from ..jaxtools.shapes import PyTree
from .kinds import Sides
from .magnitudes import with_magnitudes
from .walks import (
    ASKED,
    DATA,
    SPEED,
    STATE,
    TIME,
    Choose,
    Definite,
    Mark,
    Measure,
    Record,
    Replay,
    Reported,
    Walk,
    asks_whether_equal,
    displaced,
    equation_may_switch,
    may_switch,
    poles,
)

T = TypeVar("T")

# operations that are not finite for all numbers, or have no finite slope at the ends of where they are
PARTIAL = ("sqrt", "rsqrt", "cbrt", "log", "log1p", "pow", "asin", "acos", "acosh", "atanh", "lgamma", "digamma")

DIVISIONS = ("div", "integer_pow", "rsqrt", "log")  # not finite where the last operand is zero


def depends_on_path(mark: int) -> bool:
    """Tests whether values with this mark (`walks.Walk`) depend on the state or the time."""
    return bool(mark & (STATE | TIME))


def depends_on_data(mark: int) -> bool:
    """Tests whether a switch of values with this mark changes at a time that depends on data: they depend on the state,
    or on time and parameters."""
    return bool(mark & STATE) or mark & (TIME | DATA) == TIME | DATA


class Switches:
    """A function with switches, given by its jaxpr; for its methods see the module."""

    def __init__(self, closed: ClosedJaxpr, structure: PyTreeDef, marks: Sequence[int], reported: Reported) -> None:
        self._closed, self._structure, self._marks, self._reported = closed, structure, list(marks), reported
        self._asks = asks_whether_equal(closed)
        inlined = inline_calls(closed).jaxpr if self._asks else None
        self._fails = inlined is not None and _divides(inlined, self._marks)
        self._large = inlined is not None and self._fails and count_equations(inlined) > LARGE
        self._outlined: dict[type[Walk], Callable] = {}
        self._marks_of_sides: list[int] = []  # found by walks

    @classmethod
    def of(
        cls,
        function: Callable,
        operands: Sequence,
        moving: Sequence[int],
        reported: Mark = depends_on_path,
        levels: bool = False,
        kinks: bool = True,
    ) -> Switches | None:
        """Finds the switches of a function at operands of these shapes; None (decided at trace time) if it has none.

        Args:
            moving: what each operand is, STATE, TIME, DATA or 0.
            reported: which switches count, by the mark of what their operands depend on.
            levels: whether only those with levels count.
            kinks: whether those that only kink count.
        """
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*operands)
        closed = with_magnitudes(closed)
        if not may_switch(closed):
            return None
        marks = [m for m, x in zip(moving, operands, strict=True) for _ in jax.tree.leaves(x)]
        found = cls(closed, jax.tree.structure(shape), marks, Reported(reported, levels, kinks))
        return found if jax.eval_shape(lambda: found.sides(*operands)) else None

    def may_end(self) -> bool:
        """Tests whether the function may not be finite beyond its sides: whether it takes roots, logarithms or the like
        of what switches give, or switches choose between results of these."""
        some = any(contains_primitive(self._closed.jaxpr, name) for name in (*PARTIAL, "div"))
        return some and _may_end(inline_calls(self._closed).jaxpr)

    def cancels(self) -> bool:
        """Tests whether the function may divide by what is zero on a border, as q/|q| and |q|/q do: smooth on a side,
        but 0/0 on the border, and with derivatives that are rounding next to it."""
        some = any(contains_primitive(self._closed.jaxpr, name) for name in (*DIVISIONS, "pow"))
        return some and _cancels(inline_calls(self._closed).jaxpr, self._marks)

    def both(self, *operands: object) -> tuple[PyTree, Sides]:
        """Evaluates the function; returns its values and its sides."""
        value, sides = self._walk(Record, operands)
        return self._filled(value, sides, operands), sides

    def sides(self, *operands: object) -> Sides:
        """Evaluates the sides at the operands."""
        return self._walk(Record, operands)[1]

    def definite(self, *operands: object) -> Sides:
        """Evaluates the sides, such that a border itself belongs to one of the two sides that
        it separates (sign(0) is 1)."""
        return self._walk(Definite, operands)[1]

    def frozen(self, sides: Sides, *operands: object) -> PyTree:
        """Evaluates the function with sides fixed: equal to it where it has these sides,
        and its smooth extension beyond."""
        return self._filled(self._walk(Replay, operands, sides)[0], sides, operands)

    def _filled(self, value: PyTree, sides: Sides, operands: Sequence) -> PyTree:
        """Returns the ``value`` on given sides; where it is not finite, as sin(x)/x at x = 0, that which the function
        has at this single point."""
        if not self._fails:
            return value
        lost = ~jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(value)]))
        # evaluated again, as reverse mode multiplies derivatives that are not finite by zero
        return self._walk(Replay, operands, sides, lax.stop_gradient(lost))[0]

    def measured(self, sides: Sides, *operands: object) -> tuple[list[Array], Sides, list[int]]:
        """Evaluates for each of the fixed sides its levels, an array with one more axis,
        and the side beyond its nearest border.

        Also returns for each side the mark of its operands.
        """
        collected = self._walk(Measure, operands, sides)[1]
        return collected[::2], collected[1::2], self._marks_of_sides

    def marks_of_levels(self, asked: Sequence[bool], *operands: object) -> list[bool]:
        """Tests of each side whether its operands depend on the leaves of the operands that are ``asked`` for, by the
        jaxpr; nothing is evaluated."""
        marked = copy(self)
        marked._outlined = {}
        marked._marks = [mark | (ASKED if x else 0) for mark, x in zip(self._marks, asked, strict=True)]
        found: list[int] = []
        jax.eval_shape(lambda: found.extend(marked.measured(marked.definite(*operands), *operands)[2]))
        return [bool(mark & ASKED) for mark in found]

    def chosen(self, where: Sequence[Array], given: Sides, *operands: object) -> Sides:
        """Evaluates the definite sides, with ``given`` ones in the entries that the masks ``where`` select."""
        return self._walk(Choose, operands, [x for pair in zip(where, given, strict=True) for x in pair])[1]

    def _walk(
        self, kind: type[Walk], operands: Sequence, given: Sequence = (), exact: Array | None = None
    ) -> tuple[PyTree, Sides]:
        """Evaluates the function by a walk of this kind; returns its values and what the walk collects.

        Numbers that are equal at single points count as equal where ``exact``, ().
        """
        if not self._large:
            return self._run_walk(kind, operands, given, exact)
        if kind not in self._outlined:
            self._outlined[kind] = outlined(partial(self._run_walk, kind))
        return self._outlined[kind](tuple(operands), list(given), exact)

    def _run_walk(
        self, kind: type[Walk], operands: Sequence, given: Sequence, exact: Array | None
    ) -> tuple[PyTree, Sides]:
        walk = kind(self._reported, given, exact)
        leaves = [
            jnp.asarray(x, v.aval.dtype)
            for x, v in zip(jax.tree.leaves(operands), self._closed.jaxpr.invars, strict=True)
        ]
        # what is closed over is data if it is traced
        marks = [DATA | ASKED if is_traced(x) else 0 for x in self._closed.consts]
        near = displaced(leaves, self._marks) if self._asks else ()
        values, *_ = walk.run(self._closed, leaves, self._marks, marks, near)
        self._marks_of_sides = walk.marks
        return jax.tree.unflatten(self._structure, values), walk.collected


def differ(sides: Sides, others: Sides) -> Array:
    """Tests whether any of the sides differ, ()."""
    found = jnp.zeros((), bool)
    for x, y in zip(sides, others, strict=True):
        # NaN is on no side
        found = found | jnp.any(x != y if x.dtype.kind != "f" else (x != y) & (x == x) & (y == y))
    return found


def _divides(jaxpr: AnyJaxpr, marks: Sequence[int]) -> bool:
    """Tests whether an inlined jaxpr may divide by numbers that depend on the state or the time; ``marks``:
    of its operands."""
    moving = {v for v, mark in zip(jaxpr.invars, marks, strict=True) if depends_on_path(mark)}
    for eqn in jaxpr.eqns:
        operands = [not is_literal(v) and v in moving for v in eqn.invars]
        if nested_jaxprs(eqn) and any(operands):
            return True
        if (operands[-1:] == [True] and eqn.primitive.name in DIVISIONS) or (
            operands[0:1] == [True] and eqn.primitive.name == "pow"
        ):
            return True
        if any(operands):
            moving.update(eqn.outvars)
    return False


def _may_end(jaxpr: AnyJaxpr) -> bool:
    """As `Switches.may_end`, of an inlined jaxpr."""
    if poles(jaxpr):
        return True
    sided: set = set()  # variables that depend on switches
    rooted: set = set()  # and on operations of PARTIAL
    for eqn in jaxpr.eqns:
        operands = [v for v in eqn.invars if not is_literal(v)]
        of_sides, of_roots = (any(v in known for v in operands) for known in (sided, rooted))
        parts = nested_jaxprs(eqn)
        roots = eqn.primitive.name in PARTIAL or any(contains_primitive(x, name) for x in parts for name in PARTIAL)
        chosen = eqn.primitive.name == "select_n" and of_sides and any(v is not eqn.invars[1] for v in eqn.invars[1:])
        switches = equation_may_switch(eqn)
        if (roots and (of_sides or switches)) or (chosen and of_roots):
            return True
        if of_sides or switches:
            sided.update(eqn.outvars)
        if of_roots or roots:
            rooted.update(eqn.outvars)
    return False


def _divides_reals(jaxpr: AnyJaxpr) -> bool:
    """Tests whether a jaxpr divides real numbers; a search in a table halves whole ones."""
    real = lambda eqn: eqn.primitive.name == "div" and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    return any(real(eqn) or any(_divides_reals(part) for part in nested_jaxprs(eqn)) for eqn in jaxpr.eqns)


def _cancels(jaxpr: AnyJaxpr, marks: Sequence[int]) -> bool:
    """As `Switches.cancels`, of an inlined jaxpr; ``marks``: of its operands."""
    moving = {v for v, mark in zip(jaxpr.invars, marks, strict=True) if depends_on_path(mark)}
    sided: set = set()  # variables that switches give, or products of such; a sum is not zero where these are
    for eqn in jaxpr.eqns:
        name, parts, switches = eqn.primitive.name, nested_jaxprs(eqn), equation_may_switch(eqn)
        of_sides, moves = ([not is_literal(v) and v in known for v in eqn.invars] for known in (sided, moving))
        if parts and (switches or any(of_sides)) and any(_divides_reals(x) for x in parts):
            return True
        # what follows from the place in a table alone is constant on a side: it has no zero on the border
        if name == "div" and moves[1] and any(of_sides):
            return True
        negative = eqn.params["y"] < 0 if name == "integer_pow" else name in ("rsqrt", "log")
        if name == "pow":
            negative = not is_literal(eqn.invars[1]) or eqn.invars[1].val < 0
        if negative and of_sides[0]:
            return True
        if switches or (any(of_sides) and name not in ("add", "sub")):
            sided.update(eqn.outvars)
        if any(moves):
            moving.update(v for v in eqn.outvars if jnp.issubdtype(v.aval.dtype, jnp.inexact))
    return False


class Crossing(NamedTuple, Generic[T]):
    """Result of `crossing`: whether a path changes sides, ``some`` (); operands just ``before`` and ``after`` that,
    with the values and sides there."""

    some: Array
    before: T
    after: T
    value_before: PyTree
    value_after: PyTree
    sides_before: Sides
    sides_after: Sides


HALVINGS = 10
# equations of a function that is evaluated twice where it is not finite: walks through more are compiled once (slogdet:
# 8 s, not 60)
LARGE = 60


def crossing(switches: Switches, before: T, after: T, fixed: Sequence = (), halvings: int = HALVINGS) -> Crossing[T]:
    """Locates, by bisection, where ``switches.both(*x, *fixed)`` changes sides on the straight path
    from ``before`` to ``after``.

    If sides change in both halves, the half with the larger change of values is taken, so that a jump is found rather
    than a kink. A lane whose sides do not change does not iterate. The ends of the path are tuples of real arrays;
    ``fixed``: further operands, the same on all of it; ``halvings``: number of bisections.
    """
    both = lambda x: switches.both(*x, *fixed)
    (value_0, sides_0), (value_1, sides_1) = both(before), both(after)
    some = differ(sides_0, sides_1)
    scale = jax.tree.map(lambda x, y: jnp.abs(x) + jnp.abs(y) + jnp.abs(y - x), value_0, value_1)

    def change(x: object, y: object) -> Array:
        parts = jax.tree.map(lambda x, y, s: jnp.max(jnp.abs(y - x) / jnp.where(s > 0, s, 1), initial=0.0), x, y, scale)
        return jnp.sum(jnp.stack(jax.tree.leaves(parts)))

    def halve(now: tuple) -> tuple:
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
    return lax.while_loop(lambda now: (now[0] < halvings) & now[1].some, halve, (zero, start))[1]


class StatedProblem(Protocol):
    """What is read here of a problem (`mechanics.problem.Problem`)."""

    force: Callable
    mass: Any
    switches: Callable | None
    constraints: Callable | None

    @property
    def between(self) -> object: ...

    @property
    def gaps(self) -> Callable: ...

    @property
    def switch_values(self) -> Callable: ...


def force_switches(
    problem: StatedProblem,
    t: Array,
    q: Array,
    v: Array,
    args: object,
    reported: Mark = depends_on_data,
    levels: bool = False,
    kinks: bool = True,
    beside: Sequence[Callable] = (),
) -> Switches | None:
    """Finds the switches of a problem's force and of its mass matrix, as functions of (t, q, v, args);
    those that it states come first.

    ``reported``, ``levels``, ``kinks``: as of `Switches.of`; ``beside``: further functions of (t, q, v, args), last.
    """

    def function(t: Array, q: Array, v: Array, args: object) -> list:
        above = None if problem.switches is None else jnp.all(problem.switch_values(t, q, v, args) > 0)
        found = [jnp.asarray(problem.force(t, q, v, args), q.dtype)]
        if above is not None:
            found = [jnp.where(above, found[0], found[0])]  # no effect: it shows the stated switches to the search
        if callable(problem.mass):
            found.append(jnp.asarray(problem.mass(q, args), q.dtype))
        return [*found, *(jnp.asarray(of(t, q, v, args), q.dtype) for of in beside)]

    return Switches.of(function, (t, q, v, args), (TIME, STATE, STATE | SPEED, DATA), reported, levels, kinks)


def depends_on_place(mark: int) -> bool:
    """Tests whether values with this mark depend on the time or the position, and not on the velocity."""
    return depends_on_path(mark) and not mark & SPEED


def stated_switches(
    problem: StatedProblem,
    t: Array,
    q: Array,
    v: Array,
    args: object,
    reported: Mark = depends_on_path,
    kinks: bool = True,
) -> Switches | None:
    """Finds the switches that a problem states: those of a function which is True where the
    stated functions are positive.

    The last of its sides are those of the stated surfaces. None (decided at trace time) without any.
    """
    if problem.switches is None:
        return None
    positive = lambda t, q, v, args: problem.switch_values(t, q, v, args) > 0
    operands = (t, q, v, args), (TIME, STATE, STATE | SPEED, DATA)
    if not reported(STATE | SPEED) and depends_on(positive, operands[0], (2,)):
        return None
    return Switches.of(positive, *operands, reported, levels=True, kinks=kinks)


def gap_switches(problem: StatedProblem, t: Array, q: Array, args: object) -> Switches | None:
    """Finds the switches of a problem's gaps, as a function of (t, q, args); None if there are none,
    as for contacts between bodies."""
    if problem.constraints is None or problem.between is not None:
        return None
    return Switches.of(lambda t, q, args: problem.gaps(t, q, args), (t, q, args), (TIME, STATE, DATA))


class Kinks(NamedTuple):
    """Gaps that may kink along a path: their switches, and the sides at its beginning (``begins``)."""

    gaps: Switches
    begins: Sides

    @classmethod
    def at(cls, problem: StatedProblem, t: Array, q: Array, args: object) -> Kinks | None:
        """Finds the sides of the gaps at the beginning (t, q) of a path;
        None (decided at trace time) if no gap can kink."""
        t, q, args = lax.stop_gradient((t, q, args))
        gaps = gap_switches(problem, t, q, args)
        return None if gaps is None else cls(gaps, gaps.sides(t, q, args))

    def rate(self, t: Array, q: Array, v: Array, args: object) -> Array:
        """Returns the gap velocities (m,) at (t, q, v) on the initial sides, as if there were no kink on the way."""
        gaps = lambda s: self.gaps.frozen(self.begins, t + s, q + s * v, args)
        return jax.jvp(gaps, (jnp.zeros_like(t),), (jnp.ones_like(t),))[1]
