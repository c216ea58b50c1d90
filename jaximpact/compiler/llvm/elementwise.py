"""Rules for elementwise primitives, functions (writer, parameters, operands) -> result; no instruction traps, whatever
numbers the lanes hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from ...jaxtools.jaxpr_types import Params
from ..scalar import Unsupported
from .exponential import FUNCTIONS, rule_in_double
from .ir_values import BOOL, INT, DType, LaneValue, constant, llvm_scalar_type
from .ir_writer import Writer
from .predicates import flags, flags_of_and, flags_of_or, flags_of_select, negate, with_flags
from .trigonometric import cosine, sine

FUSED = "contract"  # the only fast-math flag: a multiplication and an addition may be fused

Rule = Callable[[Writer, Any, list[LaneValue]], LaneValue]


def constant_like(x: LaneValue, value: float) -> LaneValue:
    """Returns a scalar constant of the IR in the dtype of x."""
    return constant(value, x.dtype)


def _arithmetic_rule(real: str, whole: str) -> Rule:
    """Returns the rule for an operation that is one LLVM instruction, called ``real`` for floats
    and ``whole`` for integers."""

    real = f"{real} {FUSED}"

    def rule(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
        return w.op(real if values[0].dtype.kind == "f" else whole, *values)

    return rule


_difference, _product = _arithmetic_rule("fsub", "sub"), _arithmetic_rule("fmul", "mul")


def _sub(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    found = _difference(w, params, values)
    w.operands_of_difference[found.name] = (values[0], values[1])
    return found


def _mul(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    return w.op("and", *values) if values[0].dtype == BOOL else _product(w, params, values)


def _div(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    x, y = values
    if x.is_float:
        return w.op("fdiv", x, y)
    zero = w.op("icmp eq", y, constant_like(y, 0), dtype=BOOL)
    if not x.is_signed:
        quotient = w.op("udiv", x, w.select(zero, constant_like(y, 1), y))
        return w.select(zero, constant_like(x, np.iinfo(x.dtype).max), quotient)
    over = _overflow(w, x, y)
    quotient = w.op("sdiv", x, w.select(w.op("or", zero, over), constant_like(y, 1), y))
    return w.select(zero, constant_like(x, -1), quotient)


def _rem(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    x, y = values
    if x.is_float:
        return call_library(w, "fmod", x, y)
    zero = w.op("icmp eq", y, constant_like(y, 0), dtype=BOOL)
    if not x.is_signed:
        return w.select(zero, x, w.op("urem", x, w.select(zero, constant_like(y, 1), y)))
    rest = w.op("srem", x, w.select(w.op("or", zero, _overflow(w, x, y)), constant_like(y, 1), y))
    return w.select(zero, x, rest)


def _overflow(w: Writer, x: LaneValue, y: LaneValue) -> LaneValue:
    """Emits the test whether the integer quotient x / y overflows: x is the smallest integer and y = -1."""
    least = w.op("icmp eq", x, constant_like(x, np.iinfo(x.dtype).min), dtype=BOOL)
    return w.op("and", least, w.op("icmp eq", y, constant_like(y, -1), dtype=BOOL))


def _neg(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    (x,) = values
    return w.op("fneg", x) if x.is_float else w.op("sub", constant_like(x, 0), x)


def _abs(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    (x,) = values
    if x.is_float:
        return w.intrinsic("fabs", x)
    return w.intrinsic("abs", x, extra="i1 false") if x.is_signed else x


def _sign(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    (x,) = values
    zero = constant_like(x, 0)
    if x.is_float:
        low, high = w.op("fcmp olt", x, zero, dtype=BOOL), w.op("fcmp ogt", x, zero, dtype=BOOL)
        return w.select(
            high, constant_like(x, 1), w.select(low, constant_like(x, -1), x)
        )  # zeros and NaN are their own sign
    one = w.select(w.op("icmp eq", x, zero, dtype=BOOL), zero, constant_like(x, 1))
    return w.select(w.op("icmp slt", x, zero, dtype=BOOL), constant_like(x, -1), one) if x.is_signed else one


def comparison_rule(real: str, signed: str, unsigned: str) -> Rule:
    """Returns the rule for a comparison by LLVM's predicates: ``real`` for floats,
    the others for signed and unsigned integers."""

    def rule(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
        x = values[0]
        name = f"fcmp {real}" if x.is_float else f"icmp {signed if x.is_signed else unsigned}"
        return w.op(name, *values, dtype=BOOL)

    return rule


def _total_order_rule(name: str) -> Rule:
    """Returns the rule for the comparison ``name`` in the total order that sorting uses, in which NaN is largest."""

    def rule(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
        x, y = values
        found = comparison_rule(f"o{name}", f"s{name}", f"u{name}")(w, params, values)
        if not x.is_float:
            return found
        last = w.op("fcmp uno", y, y, dtype=BOOL)
        return w.op("or", found, last if name == "le" else w.op("and", last, w.op("fcmp ord", x, x, dtype=BOOL)))

    return rule


def extreme_rule(real: str, whole: str) -> Rule:
    """Returns the rule for max or min; the result is NaN if either operand is NaN.

    ``real``: fcmp predicate for floats; ``whole``: "max" or "min", which ends the name of the intrinsic for integers.
    """

    def rule(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
        x, y = values
        if x.dtype == BOOL:
            return w.op("or" if whole == "max" else "and", x, y)
        if not x.is_float:
            return w.intrinsic(("s" if x.is_signed else "u") + whole, x, y)
        # comparison and selection become one instruction of the processor, which gives y if either is NaN
        found = w.select(w.op(f"fcmp {real}", x, y, dtype=BOOL), x, y)
        return w.select(w.op("fcmp uno", x, x, dtype=BOOL), x, found)

    return rule


maximum, minimum = extreme_rule("ogt", "max"), extreme_rule("olt", "min")


def _clamp(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    least, x, most = values
    return minimum(w, params, [maximum(w, params, [least, x]), most])


def _select_n(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    which, *cases = values
    if which.dtype == BOOL:
        if len(cases) == 1:
            return cases[0]
        return with_flags(w, w.select(which, cases[1], cases[0]), flags_of_select(w, which, cases[1], cases[0]))
    found = cases[0]
    for i, case in enumerate(cases[1:], 1):
        found = w.select(w.op("icmp eq", which, constant_like(which, i), dtype=BOOL), case, found)
    return found


def _convert(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    return convert_type(w, values[0], params["new_dtype"])


def convert_type(w: Writer, x: LaneValue, dtype: DType) -> LaneValue:
    """Converts a value to another dtype as XLA does: floats become integers by truncation,
    clamped to the integers' range; NaN becomes 0."""
    new = np.dtype(dtype)
    llvm_scalar_type(new)
    if new == x.dtype:
        return x
    if new == BOOL:
        return w.op("fcmp une" if x.is_float else "icmp ne", x, constant_like(x, 0), dtype=BOOL)
    if new.kind == "f":
        if x.is_float:
            return w.convert("fpext" if new.itemsize > x.dtype.itemsize else "fptrunc", x, new)
        found = w.convert("sitofp" if x.is_signed else "uitofp", x, new)
        if x.dtype == INT and new == np.float64:
            w.origins[found.name] = ("whole", x)
        return found
    if x.dtype == np.float64 and new == INT:
        name, *whole = w.origins.get(x.name, ("",))
        if name == "whole":  # an integer that has passed through a float, which has all its bits
            return whole[0]
        # the same as the intrinsic fptosi.sat below, which LLVM would execute lane by lane
        for compared, bound in (("fcmp olt", -(2.0**31)), ("fcmp ogt", 2.0**31 - 1), ("fcmp uno", 0.0)):
            x = w.select(w.op(compared, x, constant_like(x, bound), dtype=BOOL), constant_like(x, bound), x)
        return w.convert("fptosi", x, new)
    if x.is_float:
        return w.intrinsic("fptosi.sat" if new.kind == "i" else "fptoui.sat", x, dtype=new)
    if x.dtype != BOOL and new.itemsize == x.dtype.itemsize:
        return LaneValue(x.name, new, x.is_vector)
    bits = [(x, 1)] if x.dtype == BOOL else flags(w, x)
    shorter = x.dtype != BOOL and new.itemsize < x.dtype.itemsize
    found = w.convert("trunc" if shorter else "sext" if x.is_signed else "zext", x, new)
    return with_flags(w, found, bits if bits and max(bit for _, bit in bits) <= np.iinfo(new).max else None)


def _bitcast(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    (x,), new = values, np.dtype(params["new_dtype"])
    llvm_scalar_type(new)
    if BOOL in (x.dtype, new) or new.itemsize != x.dtype.itemsize:
        raise Unsupported(f"bits of {x.dtype} as {new}")
    return w.convert("bitcast", x, new) if x.is_float != (new.kind == "f") else LaneValue(x.name, new, x.is_vector)


def _is_finite(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    size = w.intrinsic("fabs", values[0])
    found = w.op("fcmp olt", size, constant_like(size, np.inf), dtype=BOOL)
    w.origins[found.name] = ("finite", values[0])
    return found


def _round(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    even = params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN
    return w.intrinsic("roundeven" if even else "round", values[0])


def _integer_pow(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    """Rule for a power with a constant integer exponent, by repeated squaring."""
    (x,) = values
    n = params["y"]
    if n == 0:
        return constant_like(x, 1)
    mul = lambda a, b: _mul(w, params, [a, b])
    found, square, left = None, x, abs(n)
    while left:
        if left & 1:
            found = square if found is None else mul(found, square)
        left >>= 1
        square = mul(square, square) if left else square
    assert found is not None
    return found if n > 0 else w.op("fdiv", constant_like(x, 1), found)


def _pow(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    x, y = values
    if not (x.is_float and y.dtype == x.dtype):
        raise Unsupported("pow with whole exponents")
    return call_library(w, "pow", x, y)


def _logistic(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    (x,) = values
    return w.op(
        "fdiv", constant_like(x, 1), w.op("fadd", constant_like(x, 1), RULES["exp"](w, params, [w.op("fneg", x)]))
    )


def _shift_rule(name: str) -> Rule:
    """Returns the rule for a shift by the instruction ``name``; a shift by the bit width or more gives 0,
    or the sign if it is arithmetic."""

    def rule(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
        x, by = values
        bits = constant_like(by, 8 * x.dtype.itemsize)
        short = w.op("icmp ult", by, bits, dtype=BOOL)
        if name == "ashr":
            return w.op(name, x, w.select(short, by, constant_like(by, 8 * x.dtype.itemsize - 1)))
        return w.select(short, w.op(name, x, w.select(short, by, constant_like(by, 0))), constant_like(x, 0))

    return rule


def _not(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    (x,) = values
    if x.dtype == BOOL:
        return negate(w, x)
    found = w.op("xor", x, constant_like(x, -1))
    if (cleared := flags(w, x)) is not None:
        w.origins[found.name] = ("cleared", *cleared)
    return found


def _and(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    found, (x, y) = w.op("and", *values), values
    return found if x.dtype == BOOL else with_flags(w, found, flags_of_and(w, x, y) or flags_of_and(w, y, x))


def _or(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    found = w.op("or", *values)
    return found if found.dtype == BOOL else with_flags(w, found, flags_of_or(w, *values))


def _ne(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    found, (x, y) = comparison_rule("une", "ne", "ne")(w, params, values), values
    if not x.is_float and y.name == "0" and (bits := flags(w, x)) is not None:
        w.origins[found.name] = ("flagged", *bits)
    return found


def _reduce_precision(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    info = np.finfo(values[0].dtype)
    if (params["exponent_bits"], params["mantissa_bits"]) != (info.iexp, info.nmant):
        raise Unsupported("reduce_precision")
    return values[0]


# the C library, lane by lane

LIBRARY = {name: name for name in (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "lgamma", "nextafter",
)}  # fmt: skip


def call_library(w: Writer, name: str, *values: LaneValue) -> LaneValue:
    """Calls a function of the C library on floats; for vectors by an IR function that calls it for each lane."""
    values = tuple(w.broadcast(values))
    first = values[0]
    scalar = llvm_scalar_type(first.dtype)
    if not first.is_float:
        raise Unsupported(f"{name} of {first.dtype}")
    function = "@" + name + ("f" if first.dtype == np.float32 else "")
    inputs = ", ".join([scalar] * len(values))
    w.declared[function] = f"declare {scalar} {function}({inputs}) memory(none) nounwind willreturn"
    given = ", ".join(w.typed_name(x) for x in values)
    if not first.is_vector or w.width == 1:
        return w.emit_value(first.dtype, first.is_vector, name, values, f"call {scalar} {function}({given})")
    vector = w.type_of(first)
    vector_function = (
        f"@lanes.{function[1:]}.{w.type_suffix(first)}"  # vectors of one register and of several have their own
    )
    lines = [
        f"define internal {vector} {vector_function}({', '.join(f'{vector} %x{i}' for i in range(len(values)))}) "
        f"noinline memory(none) {{"
    ]
    found = "poison"
    for lane in range(w.width):
        for i in range(len(values)):
            lines.append(f"  %e{lane}.{i} = extractelement {vector} %x{i}, i64 {lane}")
        entries = ", ".join(f"{scalar} %e{lane}.{i}" for i in range(len(values)))
        lines.append(f"  %y{lane} = call {scalar} {function}({entries})")
        lines.append(f"  %r{lane} = insertelement {vector} {found}, {scalar} %y{lane}, i64 {lane}")
        found = f"%r{lane}"
    w.declared[vector_function] = "\n".join([*lines, f"  ret {vector} {found}", "}"])
    return w.emit_value(first.dtype, True, name, values, f"call {vector} {vector_function}({given})")


def _library_rule(name: str) -> Rule:
    return lambda w, params, values: call_library(w, name, *values)


def _intrinsic_rule(name: str) -> Rule:
    return lambda w, params, values: w.intrinsic(name, *values)


def _rsqrt(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    return w.op("fdiv", constant_like(values[0], 1), w.intrinsic("sqrt", *values))


def _one_minus_square(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    """Rule for 1 - x^2, computed as (1 - x) (1 + x), which is accurate near x = 1, where 1 - x^2 cancels."""
    (x,) = values
    one = constant_like(x, 1)
    return w.op("fmul", w.op("fsub", one, x), w.op("fadd", one, x))


def _polynomial(w: Writer, params: Params, values: list[LaneValue]) -> LaneValue:
    """Rule for a polynomial of x with the given coefficients, the constant one first, by Horner's scheme."""
    x, *coefficients = values
    found = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        found = RULES["add"](w, params, [_mul(w, params, [found, x]), coefficient])
    return found


RULES: dict[str, Rule] = {
    "add": _arithmetic_rule("fadd", "add"), "add_any": _arithmetic_rule("fadd", "add"), "sub": _sub, "mul": _mul,
    "div": _div, "rem": _rem, "neg": _neg, "abs": _abs, "sign": _sign, "max": maximum, "min": minimum, "clamp": _clamp,
    "eq": comparison_rule("oeq", "eq", "eq"), "ne": _ne, "lt": comparison_rule("olt", "slt", "ult"),
    "le": comparison_rule("ole", "sle", "ule"), "gt": comparison_rule("ogt", "sgt", "ugt"),
    "ge": comparison_rule("oge", "sge", "uge"), "le_to": _total_order_rule("le"), "lt_to": _total_order_rule("lt"),
    "select_n": _select_n, "convert_element_type": _convert, "bitcast_convert_type": _bitcast, "is_finite": _is_finite,
    "round": _round,
    "floor": _intrinsic_rule("floor"), "ceil": _intrinsic_rule("ceil"), "sqrt": _intrinsic_rule("sqrt"),
    "rsqrt": _rsqrt, "square": lambda w, params, values: _mul(w, params, values * 2),
    "one_minus_square": _one_minus_square, "polynomial": _polynomial, "integer_pow": _integer_pow, "pow": _pow,
    "logistic": _logistic, "sin": lambda w, params, values: sine(w, values[0], call_library),
    "cos": lambda w, params, values: cosine(w, values[0], call_library),
    "and": _and, "or": _or, "xor": lambda w, params, values: w.op("xor", *values), "not": _not,
    "shift_left": _shift_rule("shl"), "shift_right_logical": _shift_rule("lshr"),
    "shift_right_arithmetic": _shift_rule("ashr"), "reduce_precision": _reduce_precision,
    "population_count": _intrinsic_rule("ctpop"),
    "clz": lambda w, params, values: w.intrinsic("ctlz", *values, extra="i1 false"),
} | {name: _library_rule(function) for name, function in LIBRARY.items()} | {
    function.__name__: rule_in_double(function, call_library) for function in FUNCTIONS
}  # fmt: skip
