"""Simplification of lane conditions, so that few instructions tell whether any lane takes a branch.

Conditions shared by all lanes are tested once; finiteness of several numbers is tested in one comparison; a status is not assembled
just to be compared with 0. `Writer.made` records how each condition was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from .ir_writer import BOOL, Number, Writer, constant

OPPOSITE = {"eq": "ne", "ne": "eq", "gt": "le", "le": "gt", "ge": "lt", "lt": "ge"}

Literal = tuple[Number, bool]  # a condition, and whether it or its opposite is meant
Flag = tuple[Number, int]  # a condition, and the bits that are set where it holds


def negate(w: Writer, x: Number) -> Number:
    """The negation of a condition."""
    name, *parts = w.made.get(x.name, ("",))
    if name == "not":
        return parts[0]
    if name == "compared":
        instruction, a, b = parts
        return w.op(_opposite(*instruction.split()), a, b, dtype=BOOL)
    found = w.op("xor", x, constant(True, BOOL))
    w.made[found.name] = ("not", x)
    return found


def _opposite(kind: str, order: str) -> str:
    if order in ("ord", "uno"):
        return f"{kind} {'uno' if order == 'ord' else 'ord'}"
    if order in OPPOSITE:
        return f"{kind} {OPPOSITE[order]}"
    sign = order[0] if kind == "icmp" else "u" if order[0] == "o" else "o"  # what has no order fails, or holds
    return f"{kind} {sign}{OPPOSITE[order[1:]]}"


# whole numbers whose bits are conditions, as those of a status


def flags(w: Writer, x: Number) -> list[Flag] | None:
    """Bits that an integer may have set, each with its condition; None if unknown."""
    if x.name == "0":
        return []
    name, *parts = w.made.get(x.name, ("",))
    return parts if name == "flags" else None


def with_flags(w: Writer, x: Number, found: Sequence[Flag] | None) -> Number:
    """Records the bits that a number may have set; returns the number."""
    if found is not None and x.name.startswith("%"):
        w.made[x.name] = ("flags", *found)
    return x


def chosen_flags(w: Writer, which: Number, yes: Number, no: Number) -> list[Flag] | None:
    """Flags of a selection between a constant and 0."""
    if no.name == "0" and yes.name.isdigit():
        return [(which, int(yes.name))]
    return [(negate(w, which), int(no.name))] if yes.name == "0" and no.name.isdigit() else None


def joined_flags(w: Writer, x: Number, y: Number) -> list[Flag] | None:
    """Flags of x | y."""
    a, b = flags(w, x), flags(w, y)
    return None if a is None or b is None else [*a, *b]


def kept_flags(w: Writer, x: Number, mask: Number) -> list[Flag] | None:
    """Flags of x & mask, if the mask clears none of them."""
    found = flags(w, x)
    if found is None:
        return None
    name, *cleared = w.made.get(mask.name, ("",))
    if name != "cleared" or any(bits & value for _, bits in found for _, value in cleared):
        return None
    return found


# branches


def literals(w: Writer, x: Number, holds: bool) -> Iterator[Literal]:
    """Conjuncts of a condition (of its negation if ``holds`` is False)."""
    name, *parts = w.made.get(x.name, ("",))
    if name == "not":
        yield from literals(w, parts[0], not holds)
    elif name == ("and" if holds else "or"):
        for y in parts:
            yield from literals(w, y, holds)
    elif name == "flagged" and not holds:
        for y, _ in parts:
            yield from literals(w, y, False)
    else:
        yield x, holds


def any_asks(w: Writer, asked: Number, active: Number | None) -> tuple[Number, Number]:
    """Whether any ``active`` lane satisfies ``asked``, as one shared number; and the mask of these lanes."""
    known = list(dict.fromkeys(literals(w, asked, False)))
    numbers = [w.made[x.name][1] for x, holds in known if holds and x.wide and _is_finite(w, x)]
    others = [(x, holds) for x, holds in known if not (holds and x.wide and _is_finite(w, x))]
    conditions = [x if holds else negate(w, x) for x, holds in others]
    shared, wide = [x for x in conditions if not x.wide], [x for x in conditions if x.wide]
    for dtype in dict.fromkeys(x.dtype for x in numbers):
        _add_finite(w, wide, [x for x in numbers if x.dtype == dtype])
    both = lambda x, y: w.op("and", x, y)
    if not wide:
        needed = negate(w, reduce(both, shared))
        return needed, w.both(w.wide(needed), active)
    free = reduce(both, wide)
    none = w.all(free if active is None else w.op("or", free, negate(w, active)))
    if shared:
        common = reduce(both, shared)
        free, none = both(free, common), both(none, common)
    return negate(w, none), w.both(negate(w, free), active)


def _is_finite(w: Writer, x: Number) -> bool:
    return w.made.get(x.name, ("",))[0] == "finite"


def _add_finite(w: Writer, conditions: list[Number], numbers: Sequence[Number]) -> None:
    """Appends to the conditions that all numbers are finite.

    x - x is 0 for finite x and NaN otherwise; the differences are OR-ed, and merged into an existing comparison with 0 if there is one.
    Numbers that are terms of another one in the list need no test of their own.
    """
    rest, terms = [x.name for x in numbers], set[str]()
    while rest:
        new = {x.name for x in w.terms.get(rest.pop(), ())} - terms
        terms |= new
        rest += new
    whole = {4: np.int32, 8: np.int64}[numbers[0].dtype.itemsize]
    bits = [w.convert("bitcast", w.op("fsub", x, x), whole) for x in numbers if x.name not in terms]
    zero = w.convert("bitcast", reduce(lambda x, y: w.op("or", x, y), bits), numbers[0].dtype)
    for i, x in enumerate(conditions):
        name, *parts = w.made.get(x.name, ("",))
        if name == "compared" and parts[0] == "fcmp oge" and parts[2] == constant(0, zero.dtype):
            conditions[i] = w.op("fcmp oge", parts[1], zero, dtype=BOOL)
            return
    conditions.append(w.op("fcmp ord", zero, zero, dtype=BOOL))
