"""Exponentials and logarithms of vectors, to about an ulp, as straight-line arithmetic with fused multiply-add.

exp x = 2^k exp r with |r| at most ln(2)/2, by the Taylor polynomial of r. log x = k log 2 + log(1 + f) by a series in
s = f/(2 + f) with the minimax coefficients of the FreeBSD C library (e_log.c). Single precision is computed in double.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from ...jaxtools.jaxpr_types import Params
from .ir_values import BOOL, LONG, DType, LaneValue, constant
from .ir_writer import Writer

SHIFT = 1.5 * 2.0**52  # x + SHIFT has the nearest integer of x in its last bits
LN2 = (
    6.93147180369123816490e-01,
    1.90821492927058770002e-10,
)  # ln 2 as a sum; products of integers k with the first part are exact
TAYLOR = [1 / math.factorial(k) for k in range(13, 1, -1)]
EVEN = (1.531383769920937332e-01, 2.222219843214978396e-01, 3.999999999940941908e-01)
ODD = (1.479819860511658591e-01, 1.818357216161805012e-01, 2.857142874366239149e-01, 6.666666666666735130e-01)
ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)


class _Doubles:
    """Emits arithmetic in double precision on values of the IR and Python floats, by a `Writer`."""

    def __init__(self, w: Writer) -> None:
        self.w = w

    def _emit(self, name: str, *values: LaneValue | float, dtype: DType | None = None) -> LaneValue:
        return self.w.op(name, *(self.as_value(x) for x in values), dtype=dtype)

    def as_value(self, x: LaneValue | float, dtype: DType = np.float64) -> LaneValue:
        """Returns a value of the IR unchanged, and a Python number as a constant of the given dtype."""
        return x if isinstance(x, LaneValue) else constant(x, dtype)

    def add(self, x: LaneValue | float, y: LaneValue | float) -> LaneValue:
        return self._emit("fadd", x, y)

    def sub(self, x: LaneValue | float, y: LaneValue | float) -> LaneValue:
        return self._emit("fsub", x, y)

    def mul(self, x: LaneValue | float, y: LaneValue | float) -> LaneValue:
        return self._emit("fmul", x, y)

    def div(self, x: LaneValue | float, y: LaneValue | float) -> LaneValue:
        return self._emit("fdiv", x, y)

    def compare(self, order: str, x: LaneValue | float, y: LaneValue | float) -> LaneValue:
        return self._emit(f"fcmp {order}", x, y, dtype=BOOL)

    def fma(self, x: LaneValue | float, y: LaneValue | float, z: LaneValue | float) -> LaneValue:
        return self.w.intrinsic("fma", *map(self.as_value, (x, y, z)))

    def select(self, which: LaneValue, yes: LaneValue | float, no: LaneValue | float) -> LaneValue:
        return self.w.select(which, self.as_value(yes), self.as_value(no))

    def horner(self, z: LaneValue, coefficients: Sequence[float]) -> LaneValue:
        return reduce(lambda total, c: self.fma(total, z, c), coefficients[1:], self.as_value(coefficients[0]))

    def integer_op(self, name: str, x: LaneValue, y: int | LaneValue) -> LaneValue:
        return self.w.op(name, x, self.as_value(y, LONG))

    def power_of_two(self, k: LaneValue) -> LaneValue:
        """Emits 2^k for integers k from -1022 to 1023."""
        return self.w.convert("bitcast", self.integer_op("shl", self.integer_op("add", k, 1023), 52), np.float64)


def _reduce_argument(d: _Doubles, x: LaneValue) -> tuple[LaneValue, LaneValue]:
    """Reduces the argument of the exponential, x = k ln 2 + r; returns the integer k, and exp(r) - 1."""
    shifted = d.fma(x, 1 / math.log(2), SHIFT)
    k = d.sub(shifted, SHIFT)
    r = d.fma(k, -LN2[0], x)
    rest = d.mul(k, -LN2[1])
    small = d.add(r, rest)
    lost = d.add(d.sub(r, small), rest)
    bits = d.integer_op("shl", d.w.convert("bitcast", shifted, LONG), 12)  # the last bits, with their sign
    power = d.fma(d.mul(small, small), d.horner(small, TAYLOR), d.fma(lost, small, lost))
    return d.integer_op("ashr", bits, 12), d.add(small, power)


def exp(w: Writer, x: LaneValue) -> LaneValue:
    d = _Doubles(w)
    inside = d.select(d.compare("ogt", x, 720), 720, d.select(d.compare("olt", x, -760), -760, x))
    k, power = _reduce_argument(d, inside)
    half = d.integer_op("ashr", k, 1)
    # 2^k in two factors: it may overflow or underflow where the result does not
    once = d.mul(d.add(power, 1), d.power_of_two(half))
    return d.mul(once, d.power_of_two(d.integer_op("sub", k, half)))


def expm1(w: Writer, x: LaneValue) -> LaneValue:
    d = _Doubles(w)
    inside = d.select(d.compare("ogt", x, 50), 50, d.select(d.compare("olt", x, -50), -50, x))
    k, power = _reduce_argument(d, inside)
    scale = d.power_of_two(k)
    found = d.fma(scale, power, d.sub(scale, 1))
    found = d.select(d.compare("ogt", x, 50), exp(w, x), found)
    return d.select(d.compare("oeq", x, 0), x, found)  # a zero with its sign


def tanh(w: Writer, x: LaneValue) -> LaneValue:
    d = _Doubles(w)
    size = w.intrinsic("fabs", x)
    twice = d.select(d.compare("ogt", size, 22), 44, d.add(size, size))
    e = expm1(w, twice)
    return w.intrinsic("copysign", d.div(e, d.add(e, 2)), x)


def _log(d: _Doubles, u: LaneValue, correction: LaneValue | None) -> LaneValue:
    """Emits log u + correction, where the correction (None: zero) is the rounding error of u, relative to u."""
    tiny = d.compare("olt", u, 2.0**-1022)
    bits = d.w.convert("bitcast", d.select(tiny, d.mul(u, 2.0**54), u), LONG)
    k = d.integer_op("ashr", d.integer_op("sub", bits, ROOT_HALF), 52)
    f = d.sub(d.w.convert("bitcast", d.integer_op("sub", bits, d.integer_op("shl", k, 52)), np.float64), 1)
    k = d.sub(d.w.convert("sitofp", k, np.float64), d.select(tiny, 54, 0))
    s = d.div(f, d.add(f, 2))
    z = d.mul(s, s)
    w = d.mul(z, z)
    series = d.fma(w, d.horner(w, EVEN), d.mul(z, d.horner(w, ODD)))
    half = d.mul(d.mul(f, 0.5), f)
    low = d.mul(k, LN2[1]) if correction is None else d.fma(k, LN2[1], correction)
    rest = d.sub(half, d.fma(s, d.add(half, series), low))
    found = d.fma(k, LN2[0], d.sub(f, rest))
    found = d.select(d.compare("oeq", u, math.inf), u, found)
    return d.select(d.compare("oeq", u, 0), -math.inf, d.select(d.compare("uge", u, 0), found, math.nan))


def log(w: Writer, x: LaneValue) -> LaneValue:
    d = _Doubles(w)
    found = _log(d, x, None)
    return d.select(d.compare("uno", x, x), x, found)


def log1p(w: Writer, x: LaneValue) -> LaneValue:
    d = _Doubles(w)
    u = d.add(x, 1)
    larger = d.compare("ogt", w.intrinsic("fabs", x), 1)
    # the rounding error of 1 + x
    lost = d.select(larger, d.sub(1, d.sub(u, x)), d.sub(x, d.sub(u, 1)))
    correction = d.select(d.compare("ogt", u, 2.0**60), 0, d.div(lost, u))
    found = _log(d, u, d.select(d.compare("oeq", u, 0), 0, correction))
    return d.select(d.compare("une", x, x), x, d.select(d.compare("oeq", x, 0), x, found))


def rule_in_double(
    function: Callable[[Writer, LaneValue], LaneValue], library: Callable[[Writer, str, LaneValue], LaneValue]
) -> Callable:
    """Returns the rule of an elementwise primitive that ``function(writer, x)`` computes in double precision.

    On processors without fused multiply-add the rule calls the C library instead, by ``library(writer, name, x)``.
    """

    def body(w: Writer, x: LaneValue) -> LaneValue:
        if x.dtype == np.float64:
            return function(w, x)
        return w.convert("fptrunc", function(w, w.convert("fpext", x, np.float64)), x.dtype)

    def rule(w: Writer, params: Params | None, values: list[LaneValue]) -> LaneValue:
        (x,) = values
        name = function.__name__
        return w.call_function(name, x, body) if w.fused and x.is_float else library(w, name, x)

    return rule


FUNCTIONS = (exp, expm1, tanh, log, log1p)
