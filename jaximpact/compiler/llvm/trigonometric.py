"""Sine and cosine of vectors, to 1.5 ulp for every finite number.

x = k pi/2 + r with |r| at most about pi/4, where pi/2 is a sum of parts (Cody and Waite 1980; with fused multiply-add
the first difference is exact); then minimax polynomials of r, those of the FreeBSD C library. The rounding error of r
is neglected: carrying it takes half as many operations again, and would give one ulp. Beyond ``large``, where the
integer k would be rounded, double precision calls the C library, lane by lane, and single precision computes in double.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from .ir_values import BOOL, INT, LONG, LaneValue, constant
from .ir_writer import RARE, Writer

# Minimax polynomials on |r| <= pi/4 (those of the FreeBSD C library): sin r = r + r^3 p(r^2), cos r = 1 - r^2/2 + r^4
# p(r^2).
SINE = (1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
        8.33333333332248946124e-03, -1.66666666666666324348e-01)  # fmt: skip
COSINE = (-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
          -1.38888888888741095749e-03, 4.16666666666666019037e-02)  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """Constants of the sine and cosine in one precision.

    Attributes:
        whole: integer dtype of the same size.
        large: largest magnitude of an angle [rad] that these constants reduce accurately.
        shift: x + shift has the nearest integer of x in its last bits.
        half_pi: pi/2 as a sum of parts.
        sine, cosine: coefficients of the polynomials, an even number each.
    """

    whole: np.dtype
    large: float
    shift: float
    half_pi: Sequence[float]
    sine: Sequence[float]
    cosine: Sequence[float]


DOUBLE = Precision(
    LONG, 2.0**30, 1.5 * 2.0**52, (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33), SINE, COSINE
)
SINGLE = Precision(
    INT,
    2.0**12,
    1.5 * 2.0**23,
    (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    (2.7183114939898219064e-06, -1.98393348360966317347e-04, 8.3332938588946317560e-03, -1.66666666416265235595e-01),
    (0.0, 2.43904487962774090654e-05, -1.38867637746099294692e-03, 4.16666233237390631894e-02),
)
PRECISIONS = {np.dtype(np.float64): DOUBLE, np.dtype(np.float32): SINGLE}

Library = Callable[..., LaneValue]


def sine(w: Writer, x: LaneValue, library: Library) -> LaneValue:
    """Emits sin x; ``library(writer, name, x)`` emits a call of the C library."""
    return _sine_cosine(w, x, library)[0]


def cosine(w: Writer, x: LaneValue, library: Library) -> LaneValue:
    """Emits cos x; ``library`` as of `sine`."""
    return _sine_cosine(w, x, library)[1]


def _sine_cosine(w: Writer, x: LaneValue, library: Library) -> tuple[LaneValue, LaneValue]:
    """Emits sine and cosine of x in its own precision; those of a - b reuse those of b - a if these were emitted.

    Half precision is computed in single precision.
    """
    a, b = w.operands_of_difference.get(x.name, (x, None))
    if a == b:
        return x, w.op("fadd", x, constant(1, x.dtype))  # x = a - a is 0 or NaN
    opposite = None if b is None else w.find_result("fsub contract", b, a)
    # of the two differences the one that was emitted first is evaluated: names are numbered
    if opposite is not None and (len(opposite.name), opposite.name) < (len(x.name), x.name):
        sine, cosine = _sine_cosine(w, opposite, library)
        return w.op("fsub", constant(0, x.dtype), sine), cosine
    if not w.fused:
        return library(w, "sin", x), library(w, "cos", x)
    if x.dtype in PRECISIONS:
        return _sine_cosine_of_any_size(w, x, library)
    found = _sine_cosine_of_any_size(w, w.convert("fpext", x, np.float32), library)
    return w.convert("fptrunc", found[0], x.dtype), w.convert("fptrunc", found[1], x.dtype)


def _sine_cosine_of_any_size(w: Writer, x: LaneValue, library: Library) -> tuple[LaneValue, LaneValue]:
    """Emits sine and cosine by polynomials, with a branch for huge angles, which runs if any lane has such an angle."""
    key = "sine and cosine of", (x.name,)
    if (known := w.lookup(key)) is not None:
        return known
    found = _sine_cosine_of_moderate(w, x, PRECISIONS[x.dtype])
    size = w.intrinsic("fabs", x)
    huge = w.op("fcmp ogt", size, constant(PRECISIONS[x.dtype].large, x.dtype), dtype=BOOL)
    huge = w.conjunction(huge, w.active) if x.is_vector else huge
    before, far, after = w.block, w.fresh_name("far"), w.fresh_name("near")
    w.branch(w.any_lane(huge), far, after, RARE)
    w.begin_block(far)
    with w.scope(huge):
        exact = [w.select(huge, y, z) for y, z in zip(_sine_cosine_of_huge(w, x, library), found, strict=True)]
        end = w.block
        w.jump(after)
    w.begin_block(after)
    joined = [w.phi(x.dtype, x.is_vector, [(y, before), (z, end)]) for y, z in zip(found, exact, strict=True)]
    w.available[-1][key] = joined[0], joined[1]
    return w.available[-1][key]


def _sine_cosine_of_huge(w: Writer, x: LaneValue, library: Library) -> tuple[LaneValue, LaneValue]:
    """Emits sine and cosine of angles beyond `Precision.large`: by the C library, or in the next higher precision."""
    if x.dtype == np.float64:
        return library(w, "sin", x), library(w, "cos", x)
    sine, cosine = _sine_cosine_of_any_size(w, w.convert("fpext", x, np.float64), library)
    return w.convert("fptrunc", sine, x.dtype), w.convert("fptrunc", cosine, x.dtype)


def _sine_cosine_of_moderate(w: Writer, x: LaneValue, precision: Precision) -> tuple[LaneValue, LaneValue]:
    """Emits sine and cosine of angles up to ``precision.large``, by argument reduction and polynomials."""
    fma = lambda a, b, c: w.intrinsic("fma", a, b, c)
    mul, sub = (lambda a, b, name=name: w.op(name, a, b) for name in ("fmul", "fsub"))
    real, whole = (lambda value: constant(value, x.dtype)), (lambda value: constant(value, precision.whole))
    # argument reduction: the last bits of ``shifted`` are those of the integer k
    shifted = fma(x, real(2 / math.pi), real(precision.shift))
    back = w.op("fneg", sub(shifted, real(precision.shift)))
    # x - k pi/2, part by part: the first difference is exact, later ones are rounded relative to their small results
    y = reduce(lambda rest, part: fma(back, real(part), rest), precision.half_pi, x)
    z = mul(y, y)

    square = mul(z, z)

    def polynomial(coefficients: Sequence[float]) -> LaneValue:
        """Emits a polynomial of r^2, highest power first, two terms at a time,
        which halves the chain of dependent instructions."""
        pairs = [
            fma(z, real(a), real(b)) if a else real(b)
            for a, b in zip(coefficients[::2], coefficients[1::2], strict=True)
        ]
        return reduce(lambda total, pair: fma(total, square, pair), pairs)

    sine = fma(mul(y, z), polynomial(precision.sine), y)
    cosine = fma(square, polynomial(precision.cosine), fma(z, real(-0.5), real(1)))
    quarter = w.convert("bitcast", shifted, precision.whole)
    odd = w.op("icmp ne", w.op("and", quarter, whole(1)), whole(0), dtype=BOOL)
    sine = w.select(w.op("fcmp oeq", x, real(0), dtype=BOOL), x, sine)  # a zero with its sign
    bits = 8 * x.dtype.itemsize

    def flip_sign(value: LaneValue, half: LaneValue) -> LaneValue:
        """Emits ``value`` with its sign flipped where the second bit of the integer ``half`` is set:
        in two of the four quadrants."""
        sign = w.op("and", w.op("shl", half, whole(bits - 2)), whole(-(2 ** (bits - 1))))
        return w.convert("bitcast", w.op("xor", w.convert("bitcast", value, precision.whole), sign), x.dtype)

    # in odd quadrants sine and cosine are exchanged
    return (
        flip_sign(w.select(odd, cosine, sine), quarter),
        flip_sign(w.select(odd, sine, cosine), w.op("add", quarter, whole(1))),
    )
