"""Simplification of predicates, boolean values of the IR, so that the test whether any lane takes a
branch needs few instructions.

A predicate shared by all lanes is tested as a scalar; finiteness of several values is tested by one comparison; a
status integer that is only compared with 0 is not assembled from its bits. `Writer.origins` records how predicates and
status integers were computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from .ir_values import BOOL, LaneValue, constant
from .ir_writer import Writer

OPPOSITE = {"eq": "ne", "ne": "eq", "gt": "le", "le": "gt", "ge": "lt", "lt": "ge"}

Literal = tuple[LaneValue, bool]  # a predicate, and False for its negation
Flag = tuple[LaneValue, int]  # a predicate, and the bits that are set where it holds


def negate(w: Writer, x: LaneValue) -> LaneValue:
    """Emits the negation of a predicate; that of a comparison is the opposite comparison."""
    name, *parts = w.origins.get(x.name, ("",))
    if name == "not":
        return parts[0]
    if name == "compared":
        instruction, a, b = parts
        return w.op(_opposite(*instruction.split()), a, b, dtype=BOOL)
    found = w.op("xor", x, constant(True, BOOL))
    w.origins[found.name] = ("not", x)
    return found


def _opposite(kind: str, order: str) -> str:
    """Returns the LLVM comparison that holds where another does not: its ``kind``, icmp or fcmp, and its ``order``,
    such as "sle" or "oge"."""
    if order in ("ord", "uno"):
        return f"{kind} {'uno' if order == 'ord' else 'ord'}"
    if order in OPPOSITE:
        return f"{kind} {OPPOSITE[order]}"
    sign = order[0] if kind == "icmp" else "u" if order[0] == "o" else "o"  # ordered and unordered: for NaN
    return f"{kind} {sign}{OPPOSITE[order[1:]]}"


# status integers, whose bits are predicates


def flags(w: Writer, x: LaneValue) -> list[Flag] | None:
    """Returns the flags of a status integer: the bits that it can have set,
    each with the predicate under which it is set; None if unknown."""
    if x.name == "0":
        return []
    name, *parts = w.origins.get(x.name, ("",))
    return parts if name == "flags" else None


def with_flags(w: Writer, x: LaneValue, found: Sequence[Flag] | None) -> LaneValue:
    """Records that the integer x has the flags ``found`` (as `flags` returns them), unless these are None;
    returns x."""
    if found is not None and x.name.startswith("%"):
        w.origins[x.name] = ("flags", *found)
    return x


def flags_of_select(w: Writer, which: LaneValue, yes: LaneValue, no: LaneValue) -> list[Flag] | None:
    """Returns the flags of ``select(which, yes, no)`` if one of ``yes`` and ``no`` is 0 and the other a constant;
    else None."""
    if no.name == "0" and yes.name.isdigit():
        return [(which, int(yes.name))]
    return [(negate(w, which), int(no.name))] if yes.name == "0" and no.name.isdigit() else None


def flags_of_or(w: Writer, x: LaneValue, y: LaneValue) -> list[Flag] | None:
    """Returns the flags of x | y; None if those of x or y are unknown."""
    a, b = flags(w, x), flags(w, y)
    return None if a is None or b is None else [*a, *b]


def flags_of_and(w: Writer, x: LaneValue, mask: LaneValue) -> list[Flag] | None:
    """Returns the flags of x & mask if the mask is known to clear none of the flags of x, else None."""
    found = flags(w, x)
    if found is None:
        return None
    name, *cleared = w.origins.get(mask.name, ("",))
    if name != "cleared" or any(bits & value for _, bits in found for _, value in cleared):
        return None
    return found


# branches


def conjuncts(w: Writer, x: LaneValue, holds: bool) -> Iterator[Literal]:
    """Yields predicates whose conjunction is the predicate x, or its negation if ``holds`` is False.

    Each is a pair of a predicate and False if it is negated.
    """
    name, *parts = w.origins.get(x.name, ("",))
    if name == "not":
        yield from conjuncts(w, parts[0], not holds)
    elif name == ("and" if holds else "or"):
        for y in parts:
            yield from conjuncts(w, y, holds)
    elif name == "flagged" and not holds:
        for y, _ in parts:
            yield from conjuncts(w, y, False)
    else:
        yield x, holds


def any_lane_where(w: Writer, asked: LaneValue, active: LaneValue | None) -> tuple[LaneValue, LaneValue]:
    """Emits the test whether the predicate ``asked`` holds in any lane of the mask ``active`` (None: all); returns it,
    and the mask of these lanes.

    It tests the conjuncts of the negation: scalars, vectors, and tests of finiteness, which are merged.
    """
    known = list(dict.fromkeys(conjuncts(w, asked, False)))
    numbers = [w.origins[x.name][1] for x, holds in known if holds and x.is_vector and _is_finite(w, x)]
    others = [(x, holds) for x, holds in known if not (holds and x.is_vector and _is_finite(w, x))]
    conditions = [x if holds else negate(w, x) for x, holds in others]
    shared, vectors = [x for x in conditions if not x.is_vector], [x for x in conditions if x.is_vector]
    for dtype in dict.fromkeys(x.dtype for x in numbers):
        _add_finiteness_test(w, vectors, [x for x in numbers if x.dtype == dtype])
    both = lambda x, y: w.op("and", x, y)
    if not vectors:
        needed = negate(w, reduce(both, shared))
        return needed, w.conjunction(w.as_vector(needed), active)
    free = reduce(both, vectors)
    none = w.all_lanes(free if active is None else w.op("or", free, negate(w, active)))
    if shared:
        common = reduce(both, shared)
        free, none = both(free, common), both(none, common)
    return negate(w, none), w.conjunction(negate(w, free), active)


def _is_finite(w: Writer, x: LaneValue) -> bool:
    return w.origins.get(x.name, ("",))[0] == "finite"


def _add_finiteness_test(w: Writer, conditions: list[LaneValue], numbers: Sequence[LaneValue]) -> None:
    """Adds the test that all ``numbers`` are finite to a list of conjuncts.

    x - x is 0 for finite x and NaN otherwise. The differences of all numbers are combined by a bitwise OR, which
    replaces the 0 of a conjunct y >= 0 if the list has one. A number whose finiteness follows from that
    of another one needs no test.
    """
    rest, terms = [x.name for x in numbers], set[str]()
    while rest:
        new = {x.name for x in w.implies_finite.get(rest.pop(), ())} - terms
        terms |= new
        rest += new
    whole = {4: np.int32, 8: np.int64}[numbers[0].dtype.itemsize]
    bits = [w.convert("bitcast", w.op("fsub", x, x), whole) for x in numbers if x.name not in terms]
    zero = w.convert("bitcast", reduce(lambda x, y: w.op("or", x, y), bits), numbers[0].dtype)
    for i, x in enumerate(conditions):
        name, *parts = w.origins.get(x.name, ("",))
        if name == "compared" and parts[0] == "fcmp oge" and parts[2] == constant(0, zero.dtype):
            conditions[i] = w.op("fcmp oge", parts[1], zero, dtype=BOOL)
            return
    conditions.append(w.op("fcmp ord", zero, zero, dtype=BOOL))
