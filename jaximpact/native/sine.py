"""Sine and cosine of vectors, to 1.5 ulp for every finite number.

x = k pi/2 + r, with |r| at most about pi/4 and pi/2 in parts (Cody and Waite 1980, with fused multiply-add, so that the first
difference is exact); polynomials of r of least error (those of the FreeBSD C library). What r is rounded by is let go: keeping it
takes half as many operations again, and would give one ulp. Beyond LARGE, where k would no longer be known to all digits, the C
library is called, lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from ..small.sine import COSINE, SINE
from .writer import BOOL, LONG, RARE, Number, Writer, constant

LARGE = 2.0**30
SHIFT = 1.5 * 2.0**52
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)  # pi/2 in parts

Library = Callable[..., Number]


def sine(w: Writer, x: Number, library: Library) -> Number:
    """sin x; ``library(writer, name, x)`` is that of the C library."""
    return _single(w, x, library)[0]


def cosine(w: Writer, x: Number, library: Library) -> Number:
    """cos x."""
    return _single(w, x, library)[1]


def _single(w: Writer, x: Number, library: Library) -> tuple[Number, Number]:
    """Both, in the precision of x; that of single precision is computed in double."""
    a, b = w.differences.get(x.name, (x, None))
    if a == b:
        return x, w.op("fadd", x, constant(1, x.dtype))  # of 0, or of what is no number
    turned = None if b is None else w.computed("fsub contract", b, a)
    if turned is not None and (len(turned.name), turned.name) < (len(x.name), x.name):
        sine, cosine = _single(w, turned, library)
        return w.op("fsub", constant(0, x.dtype), sine), cosine
    if not w.fused:
        return library(w, "sin", x), library(w, "cos", x)
    if x.dtype == np.float64:
        return _both(w, x, library)
    found = _both(w, w.convert("fpext", x, np.float64), library)
    return w.convert("fptrunc", found[0], x.dtype), w.convert("fptrunc", found[1], x.dtype)


def _both(w: Writer, x: Number, library: Library) -> tuple[Number, Number]:
    key = ("sine and cosine of", x)
    if (known := w.known(key)) is not None:
        return known
    found = _small(w, x)
    size = w.intrinsic("fabs", x)
    huge = w.op("fcmp ogt", size, _number(LARGE), dtype=BOOL)
    huge = w.both(huge, w.active) if x.wide else huge
    before, far, after = w.block, w.fresh("far"), w.fresh("near")
    w.branch(w.any(huge), far, after, RARE)
    w.begin(far)
    with w.scope(huge):
        exact = [w.select(huge, library(w, name, x), y) for name, y in zip(("sin", "cos"), found, strict=True)]
        end = w.block
        w.go(after)
    w.begin(after)
    joined = [w.joined(x.dtype, x.wide, [(y, before), (z, end)]) for y, z in zip(found, exact, strict=True)]
    w.seen[-1][key] = joined[0], joined[1]
    return w.seen[-1][key]


def _number(value: float) -> Number:
    return constant(value, np.float64)


def _small(w: Writer, x: Number) -> tuple[Number, Number]:
    fma = lambda a, b, c: w.intrinsic("fma", a, b, c)
    mul, sub = (lambda a, b, name=name: w.op(name, a, b) for name in ("fmul", "fsub"))
    # the last bits of the sum are those of the whole number k
    shifted = fma(x, _number(2 / math.pi), _number(SHIFT))
    k = sub(shifted, _number(SHIFT))
    back = w.op("fneg", k)
    # the first difference is exact, and the others are rounded as their result is
    y = reduce(lambda rest, part: fma(back, _number(part), rest), HALF_PI, x)
    z = mul(y, y)

    square = mul(z, z)

    def polynomial(coefficients: Sequence[float]) -> Number:
        """Two terms at a time, which is a chain half as long as one by one."""
        pairs = [fma(z, _number(a), _number(b)) for a, b in zip(coefficients[::2], coefficients[1::2], strict=True)]
        return reduce(lambda total, pair: fma(total, square, pair), pairs)

    sine = fma(mul(y, z), polynomial(SINE), y)
    cosine = fma(square, polynomial(COSINE), fma(z, _number(-0.5), _number(1)))
    quarter = w.convert("bitcast", shifted, LONG)
    odd = w.op("icmp ne", w.op("and", quarter, _whole(1)), _whole(0), dtype=BOOL)
    sine = w.select(w.op("fcmp oeq", x, _number(0), dtype=BOOL), x, sine)  # a zero with its sign

    def turned(value: Number, half: Number) -> Number:
        """With the opposite sign where the second bit is set."""
        sign = w.op("and", w.op("shl", half, _whole(62)), _whole(-(2**63)))
        return w.convert("bitcast", w.op("xor", w.convert("bitcast", value, LONG), sign), np.float64)

    # odd quarters exchange the two
    return (
        turned(w.select(odd, cosine, sine), quarter),
        turned(w.select(odd, sine, cosine), w.op("add", quarter, _whole(1))),
    )


def _whole(value: int) -> Number:
    return constant(value, LONG)
