"""Rules for elementwise primitives on numbers of a `Writer`. No instruction traps, whatever a lane holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from ..scalar import Unsupported
from .exponential import FUNCTIONS, in_double
from .ir_writer import BOOL, Number, Writer, constant, kind
from .predicates import chosen_flags, flags, joined_flags, kept_flags, negate, with_flags
from .trigonometric import cosine, sine

FUSED = "contract"  # a multiplication and an addition may be one instruction: nothing else is allowed

Rule = Callable[[Writer, Any, list[Number]], Number]


def same(x: Number, value: Any) -> Number:
    """The constant ``value`` in the type of the number x."""
    return constant(value, x.dtype)


def _numeric(real: str, whole: str) -> Rule:
    def rule(w: Writer, params: Any, values: list[Number]) -> Number:
        return w.op(f"{real} {FUSED}" if values[0].is_float else whole, *values)

    return rule


def _sub(w: Writer, params: Any, values: list[Number]) -> Number:
    found = _numeric("fsub", "sub")(w, params, values)
    w.differences[found.name] = (values[0], values[1])
    return found


def _mul(w: Writer, params: Any, values: list[Number]) -> Number:
    if values[0].dtype == BOOL:
        return w.op("and", *values)
    return _numeric("fmul", "mul")(w, params, values)


def _div(w: Writer, params: Any, values: list[Number]) -> Number:
    x, y = values
    if x.is_float:
        return w.op("fdiv", x, y)
    zero = w.op("icmp eq", y, same(y, 0), dtype=BOOL)
    if not x.is_signed:
        quotient = w.op("udiv", x, w.select(zero, same(y, 1), y))
        return w.select(zero, same(x, np.iinfo(x.dtype).max), quotient)
    over = _overflow(w, x, y)
    quotient = w.op("sdiv", x, w.select(w.op("or", zero, over), same(y, 1), y))
    return w.select(zero, same(x, -1), quotient)


def _rem(w: Writer, params: Any, values: list[Number]) -> Number:
    x, y = values
    if x.is_float:
        return w.op("frem", x, y)
    zero = w.op("icmp eq", y, same(y, 0), dtype=BOOL)
    if not x.is_signed:
        return w.select(zero, x, w.op("urem", x, w.select(zero, same(y, 1), y)))
    rest = w.op("srem", x, w.select(w.op("or", zero, _overflow(w, x, y)), same(y, 1), y))
    return w.select(zero, x, rest)


def _overflow(w: Writer, x: Number, y: Number) -> Number:
    """Whether the integer quotient x / y overflows: the least integer over -1."""
    least = w.op("icmp eq", x, same(x, np.iinfo(x.dtype).min), dtype=BOOL)
    return w.op("and", least, w.op("icmp eq", y, same(y, -1), dtype=BOOL))


def _neg(w: Writer, params: Any, values: list[Number]) -> Number:
    (x,) = values
    return w.op("fneg", x) if x.is_float else w.op("sub", same(x, 0), x)


def _abs(w: Writer, params: Any, values: list[Number]) -> Number:
    (x,) = values
    if x.is_float:
        return w.intrinsic("fabs", x)
    return w.intrinsic("abs", x, extra="i1 false") if x.is_signed else x


def _sign(w: Writer, params: Any, values: list[Number]) -> Number:
    (x,) = values
    zero = same(x, 0)
    if x.is_float:
        low, high = w.op("fcmp olt", x, zero, dtype=BOOL), w.op("fcmp ogt", x, zero, dtype=BOOL)
        return w.select(high, same(x, 1), w.select(low, same(x, -1), x))  # zeros and NaN are their own sign
    one = w.select(w.op("icmp eq", x, zero, dtype=BOOL), zero, same(x, 1))
    return w.select(w.op("icmp slt", x, zero, dtype=BOOL), same(x, -1), one) if x.is_signed else one


def compare(real: str, signed: str, unsigned: str) -> Rule:
    def rule(w: Writer, params: Any, values: list[Number]) -> Number:
        x = values[0]
        name = f"fcmp {real}" if x.is_float else f"icmp {signed if x.is_signed else unsigned}"
        return w.op(name, *values, dtype=BOOL)

    return rule


def _total_order(name: str) -> Rule:
    """Rule for a comparison in total order, as sorting uses it: NaN is largest."""

    def rule(w: Writer, params: Any, values: list[Number]) -> Number:
        x, y = values
        found = compare(f"o{name}", f"s{name}", f"u{name}")(w, params, values)
        if not x.is_float:
            return found
        last = w.op("fcmp uno", y, y, dtype=BOOL)
        return w.op("or", found, last if name == "le" else w.op("and", last, w.op("fcmp ord", x, x, dtype=BOOL)))

    return rule


def extreme(real: str, whole: str) -> Rule:
    """Rule for max or min that gives NaN if either operand is NaN."""

    def rule(w: Writer, params: Any, values: list[Number]) -> Number:
        x, y = values
        if x.dtype == BOOL:
            return w.op("or" if whole == "max" else "and", x, y)
        if not x.is_float:
            return w.intrinsic(("s" if x.is_signed else "u") + whole, x, y)
        # one instruction, which gives y where either is NaN
        found = w.select(w.op(f"fcmp {real}", x, y, dtype=BOOL), x, y)
        return w.select(w.op("fcmp uno", x, x, dtype=BOOL), x, found)

    return rule


largest, smallest = extreme("ogt", "max"), extreme("olt", "min")


def _clamp(w: Writer, params: Any, values: list[Number]) -> Number:
    least, x, most = values
    return smallest(w, params, [largest(w, params, [least, x]), most])


def _select_n(w: Writer, params: Any, values: list[Number]) -> Number:
    which, *cases = values
    if which.dtype == BOOL:
        if len(cases) == 1:
            return cases[0]
        return with_flags(w, w.select(which, cases[1], cases[0]), chosen_flags(w, which, cases[1], cases[0]))
    found = cases[0]
    for i, case in enumerate(cases[1:], 1):
        found = w.select(w.op("icmp eq", which, same(which, i), dtype=BOOL), case, found)
    return found


def _convert(w: Writer, params: Any, values: list[Number]) -> Number:
    return convert_type(w, values[0], params["new_dtype"])


def convert_type(w: Writer, x: Number, dtype: Any) -> Number:
    """Converts a number's type as XLA does: floats to integers by truncation, clamped to the range."""
    new = np.dtype(dtype)
    kind(new)
    if new == x.dtype:
        return x
    if new == BOOL:
        return w.op("fcmp une" if x.is_float else "icmp ne", x, same(x, 0), dtype=BOOL)
    if new.kind == "f":
        if x.is_float:
            return w.convert("fpext" if new.itemsize > x.dtype.itemsize else "fptrunc", x, new)
        return w.convert("sitofp" if x.is_signed else "uitofp", x, new)
    if x.dtype == np.float64 and new == np.int32:
        # as the intrinsic below, which LLVM takes apart lane by lane
        for compared, bound in (("fcmp olt", -(2.0**31)), ("fcmp ogt", 2.0**31 - 1), ("fcmp uno", 0.0)):
            x = w.select(w.op(compared, x, same(x, bound), dtype=BOOL), same(x, bound), x)
        return w.convert("fptosi", x, new)
    if x.is_float:
        return w.intrinsic("fptosi.sat" if new.kind == "i" else "fptoui.sat", x, dtype=new)
    if x.dtype != BOOL and new.itemsize == x.dtype.itemsize:
        return Number(x.name, new, x.wide)
    bits = [(x, 1)] if x.dtype == BOOL else flags(w, x)
    shorter = x.dtype != BOOL and new.itemsize < x.dtype.itemsize
    found = w.convert("trunc" if shorter else "sext" if x.is_signed else "zext", x, new)
    return with_flags(w, found, bits if bits and max(bit for _, bit in bits) <= np.iinfo(new).max else None)


def _finite(w: Writer, params: Any, values: list[Number]) -> Number:
    size = w.intrinsic("fabs", values[0])
    found = w.op("fcmp olt", size, same(size, np.inf), dtype=BOOL)
    w.made[found.name] = ("finite", values[0])
    return found


def _round(w: Writer, params: Any, values: list[Number]) -> Number:
    even = params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN
    return w.intrinsic("roundeven" if even else "round", values[0])


def _integer_pow(w: Writer, params: Any, values: list[Number]) -> Number:
    (x,) = values
    n = params["y"]
    if n == 0:
        return same(x, 1)
    mul = lambda a, b: _mul(w, params, [a, b])
    found, square, left = None, x, abs(n)
    while left:
        if left & 1:
            found = square if found is None else mul(found, square)
        left >>= 1
        square = mul(square, square) if left else square
    assert found is not None
    return found if n > 0 else w.op("fdiv", same(x, 1), found)


def _pow(w: Writer, params: Any, values: list[Number]) -> Number:
    x, y = values
    if not (x.is_float and y.dtype == x.dtype):
        raise Unsupported("pow with whole exponents")
    return library(w, "pow", x, y)


def _logistic(w: Writer, params: Any, values: list[Number]) -> Number:
    (x,) = values
    return w.op("fdiv", same(x, 1), w.op("fadd", same(x, 1), RULES["exp"](w, params, [w.op("fneg", x)])))


def _shift(name: str) -> Rule:
    """Rule for a shift; shifts by the width or more give 0 (or the sign)."""

    def rule(w: Writer, params: Any, values: list[Number]) -> Number:
        x, by = values
        bits = same(by, 8 * x.dtype.itemsize)
        short = w.op("icmp ult", by, bits, dtype=BOOL)
        if name == "ashr":
            return w.op(name, x, w.select(short, by, same(by, 8 * x.dtype.itemsize - 1)))
        return w.select(short, w.op(name, x, w.select(short, by, same(by, 0))), same(x, 0))

    return rule


def _not(w: Writer, params: Any, values: list[Number]) -> Number:
    (x,) = values
    if x.dtype == BOOL:
        return negate(w, x)
    found = w.op("xor", x, same(x, -1))
    if (cleared := flags(w, x)) is not None:
        w.made[found.name] = ("cleared", *cleared)
    return found


def _and(w: Writer, params: Any, values: list[Number]) -> Number:
    found, (x, y) = w.op("and", *values), values
    return found if x.dtype == BOOL else with_flags(w, found, kept_flags(w, x, y) or kept_flags(w, y, x))


def _or(w: Writer, params: Any, values: list[Number]) -> Number:
    found = w.op("or", *values)
    return found if found.dtype == BOOL else with_flags(w, found, joined_flags(w, *values))


def _ne(w: Writer, params: Any, values: list[Number]) -> Number:
    found, (x, y) = compare("une", "ne", "ne")(w, params, values), values
    if not x.is_float and y.name == "0" and (bits := flags(w, x)) is not None:
        w.made[found.name] = ("flagged", *bits)
    return found


def _precision(w: Writer, params: Any, values: list[Number]) -> Number:
    info = np.finfo(values[0].dtype)
    if (params["exponent_bits"], params["mantissa_bits"]) != (info.iexp, info.nmant):
        raise Unsupported("reduce_precision")
    return values[0]


# the C library, lane by lane

LIBRARY = {name: name for name in (
    "exp", "exp2", "expm1", "log", "log1p", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "cbrt", "erf", "erfc", "lgamma", "nextafter",
)}  # fmt: skip


def library(w: Writer, name: str, *values: Number) -> Number:
    """Calls a function of the C library, lane by lane."""
    values = tuple(w.alike(values))
    first = values[0]
    scalar = kind(first.dtype)
    if not first.is_float:
        raise Unsupported(f"{name} of {first.dtype}")
    function = "@" + name + ("f" if first.dtype == np.float32 else "")
    inputs = ", ".join([scalar] * len(values))
    w.declared[function] = f"declare {scalar} {function}({inputs}) memory(none) nounwind willreturn"
    given = ", ".join(w.arg(x) for x in values)
    if not first.wide:
        return w.text(first.dtype, False, f"call {scalar} {function}({given})")
    vector = w.of(first)
    wide = f"@lanes.{function[1:]}"
    lines = [
        f"define internal {vector} {wide}({', '.join(f'{vector} %x{i}' for i in range(len(values)))}) noinline memory(none) {{"
    ]
    found = "poison"
    for lane in range(w.width):
        for i in range(len(values)):
            lines.append(f"  %e{lane}.{i} = extractelement {vector} %x{i}, i64 {lane}")
        entries = ", ".join(f"{scalar} %e{lane}.{i}" for i in range(len(values)))
        lines.append(f"  %y{lane} = call {scalar} {function}({entries})")
        lines.append(f"  %r{lane} = insertelement {vector} {found}, {scalar} %y{lane}, i64 {lane}")
        found = f"%r{lane}"
    w.declared[wide] = "\n".join([*lines, f"  ret {vector} {found}", "}"])
    return w.text(first.dtype, True, f"call {vector} {wide}({given})")


def _library(name: str) -> Rule:
    return lambda w, params, values: library(w, name, *values)


RULES: dict[str, Rule] = {
    "add": _numeric("fadd", "add"), "add_any": _numeric("fadd", "add"), "sub": _sub, "mul": _mul,
    "div": _div, "rem": _rem, "neg": _neg, "abs": _abs, "sign": _sign, "max": largest, "min": smallest, "clamp": _clamp,
    "eq": compare("oeq", "eq", "eq"), "ne": _ne, "lt": compare("olt", "slt", "ult"),
    "le": compare("ole", "sle", "ule"), "gt": compare("ogt", "sgt", "ugt"), "ge": compare("oge", "sge", "uge"),
    "le_to": _total_order("le"), "lt_to": _total_order("lt"), "select_n": _select_n, "convert_element_type": _convert, "is_finite": _finite, "round": _round,
    "floor": lambda w, params, values: w.intrinsic("floor", *values), "ceil": lambda w, params, values: w.intrinsic("ceil", *values),
    "sqrt": lambda w, params, values: w.intrinsic("sqrt", *values), "square": lambda w, params, values: _mul(w, params, values * 2),
    "one_minus_square": lambda w, params, values: w.op("fmul", w.op("fsub", same(values[0], 1), values[0]), w.op("fadd", same(values[0], 1), values[0])),
    "rsqrt": lambda w, params, values: w.op("fdiv", same(values[0], 1), w.intrinsic("sqrt", *values)),
    "integer_pow": _integer_pow, "pow": _pow, "logistic": _logistic, "sin": lambda w, params, values: sine(w, values[0], library),
    "cos": lambda w, params, values: cosine(w, values[0], library),
    "and": _and, "or": _or,
    "xor": lambda w, params, values: w.op("xor", *values), "not": _not, "shift_left": _shift("shl"),
    "shift_right_logical": _shift("lshr"), "shift_right_arithmetic": _shift("ashr"), "reduce_precision": _precision,
    "population_count": lambda w, params, values: w.intrinsic("ctpop", *values),
    "clz": lambda w, params, values: w.intrinsic("ctlz", *values, extra="i1 false"),
} | {name: _library(function) for name, function in LIBRARY.items()} | {
    function.__name__: in_double(function, library) for function in FUNCTIONS
}  # fmt: skip
