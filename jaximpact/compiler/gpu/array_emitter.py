"""Emitter whose scalars are jax arrays over lanes: used within GPU kernels, and for branch-free arithmetic by XLA."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import primitives

from ..limits import MAX_SCALARS
from ..scalar import ScalarInterpreter, Unsupported, Value, object_array


class ArrayEmitter:
    """Emitter of jax operations on arrays (lanes,), or () for what all lanes share; see `scalar.values.Emitter`.

    Loops run while any lane continues, branches if any lane selects them; the other lanes keep their values. ``rules``: primitives
    that are not computed by jax's own operation, by name.
    """

    has_memory, max_scalars, sparse, pack = False, MAX_SCALARS, False, 1

    def __init__(self, lanes: int, rules: Mapping[str, Callable]) -> None:
        self.lanes, self.rules = lanes, rules
        # By id of a difference: itself and its operands. By id of an operand: its number in order of appearance, and itself.
        # The objects are kept alive so that their ids stay their own.
        self.differences: dict[int, tuple] = {}
        self.operand_order: dict[int, tuple[int, Any]] = {}

    def op(self, name: str, params: Any, *values: Any) -> Array:
        if name in ("sin", "cos"):
            return self.sine_or_cosine(name, params, *values)
        found = self.bind_elementwise(name, params, *values)
        if name == "sub":
            self.differences[id(found)] = found, *values
        return found

    def sine_or_cosine(self, name: str, params: Any, x: Any) -> Array:
        """Sine or cosine; that of a - b is computed from b - a if b appeared first, so that the compiler can merge the two."""
        known = self.differences.get(id(x))
        if known is None:
            return self.bind_elementwise(name, params, x)
        _, a, b = known
        if a is b:  # zero or NaN
            return x if name == "sin" else x + 1
        first, second = (self.operand_order.setdefault(id(y), (len(self.operand_order), y))[0] for y in (a, b))
        if first < second:
            return self.bind_elementwise(name, params, x)
        found = self.bind_elementwise(name, params, self.bind_elementwise("sub", None, b, a))
        return -found if name == "sin" else found

    def bind_elementwise(self, name: str, params: Any, *values: Any) -> Array:
        """Result of an elementwise primitive by its name in jax."""
        if name in self.rules:
            return self.rules[name](params, *self.broadcast(values))
        if params is None or name in LAX_FUNCTIONS:
            return LAX_FUNCTIONS[name](
                *self.broadcast(values), *([] if name != "convert_element_type" else [params["new_dtype"]])
            )
        primitive = getattr(primitives, f"{name}_p", None)
        if primitive is None or name not in ELEMENTWISE:
            raise Unsupported(name)
        return primitive.bind(*self.broadcast(values), **params)

    def broadcast(self, values: Sequence) -> list:
        """Broadcasts all values to (lanes,) if one of them varies between lanes."""
        if any(np.ndim(x) for x in values):
            return [jnp.broadcast_to(x, (self.lanes,)) for x in values]
        return [jnp.asarray(x) for x in values]

    def flatten(self, values: Sequence[Value], varies: Sequence[bool]) -> list[Array]:
        """The scalars of all arrays in one list; those of an array that ``varies`` are broadcast to (lanes,)."""
        pairs = [(jnp.asarray(y), v) for x, v in zip(values, varies, strict=True) for y in x.flat]
        return [jnp.broadcast_to(y, (self.lanes,)) if v else y for y, v in pairs]

    def varies(self, x: Value) -> bool:
        return any(np.ndim(y) > 0 for y in x.flat)

    def array_primitive(self, machine: ScalarInterpreter, eqn: Any, inputs: list[Value]) -> list[Value]:
        raise Unsupported(
            f"{eqn.primitive.name} of an array of shape {max(v.aval.shape for v in (*eqn.invars, *eqn.outvars))}"
        )

    def elementwise(self, machine: Any, name: str, params: Any, structural: bool, arrays: Any) -> np.ndarray:
        raise NotImplementedError  # of emitters that compute entries side by side

    def reduction(self, name: str, entries: Any, empty: Any) -> Any:
        raise NotImplementedError

    def adjacent(self, entries: Any) -> bool:
        raise NotImplementedError

    def constant(self, x: np.ndarray) -> Value:
        raise Unsupported(f"an array of shape {x.shape}")

    def call(self, machine: ScalarInterpreter, eqn: Any, inputs: list[Value]) -> list[Value]:
        return machine.run(eqn.params["jaxpr"], inputs)

    def scan(self, machine: ScalarInterpreter, eqn: Any, inputs: list[Value]) -> list[Value]:
        raise Unsupported("scan over arrays")

    def stream(self, machine: ScalarInterpreter, eqn: Any, inputs: list[Value]) -> list[Value]:
        raise Unsupported("saved rows")

    def loop(self, start: list[Value], varies: Sequence[bool], continues: Callable, body: Callable) -> list[Value]:
        unflatten, flatten = unflattener(start), lambda values: self.flatten(values, varies)
        test = lambda scalars: jnp.asarray(continues(unflatten(scalars)))
        scalars = flatten(start)
        if jax.eval_shape(test, scalars).ndim == 0:
            return unflatten(lax.while_loop(test, lambda scalars: flatten(body(unflatten(scalars))), scalars))

        def step_live_lanes(state: tuple) -> tuple:
            live, old = state
            new = [jnp.where(live, x, y) for x, y in zip(flatten(body(unflatten(old))), old, strict=True)]
            return live & test(new), new

        return unflatten(lax.while_loop(lambda state: any_lane(state[0]), step_live_lanes, (test(scalars), scalars))[1])

    def switch(
        self,
        which: Any,
        branches: Sequence[Callable],
        operands: list[Value],
        sizes: Sequence[int],
        avals: Sequence,
        varies: Sequence[bool],
    ) -> list[Value]:
        """Emits a switch: the shortest branch always runs, each other one if any lane selects it."""
        unflatten = unflattener([np.empty(a.shape, object) for a in avals])
        runs = [lambda branch=branch: self.flatten(branch(operands), varies) for branch in branches]
        which = jnp.clip(jnp.asarray(which).astype(jnp.int32), 0, len(branches) - 1)
        if which.ndim == 0:
            return unflatten(lax.switch(which, runs))
        first, *rest = sorted(range(len(branches)), key=lambda i: sizes[i])
        found = runs[first]()
        for i in rest:
            selected = which == i

            def run_branch(found: list = found, selected: Array = selected, i: int = i) -> list:
                return [jnp.where(selected, x, y) for x, y in zip(runs[i](), found, strict=True)]

            found = lax.cond(any_lane(selected), run_branch, lambda found=found: list(found))
        return unflatten(found)


def unflattener(values: Sequence[Value]) -> Callable[[Iterable], list[Value]]:
    """Inverse of `ArrayEmitter.flatten`: a function from a list of scalars to object arrays of the shapes of ``values``."""

    def unflatten(scalars: Iterable) -> list[Value]:
        entries = iter(scalars)
        return [object_array(x.shape, (next(entries) for _ in range(x.size))) for x in values]

    return unflatten


def any_lane(mask: Array) -> Array:
    """Whether a mask holds in any lane."""
    # jnp.any has no lowering for Triton
    return jnp.max(mask.astype(jnp.int32)) > 0


def _round(params: Any, x: Array) -> Array:
    """Rounds to the nearest integer, ties to even, which Triton has no operation for."""
    if params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN:
        raise Unsupported("round away from zero")
    found = lax.floor(x + jnp.asarray(0.5, x.dtype))
    odd = found * 0.5 != lax.floor(found * 0.5)
    return jnp.where((found - x == 0.5) & odd, found - 1, found)


def _integer_power(params: Any, x: Array) -> Array:
    """Integer power by products, as XLA computes it; Triton's own fails on what is known when it is compiled (jax 0.10 to 0.12)."""
    count = abs(params["y"])
    found, square = jnp.ones_like(x), x
    while count:
        found = lax.mul(found, square) if count % 2 else found
        count //= 2
        square = lax.mul(square, square) if count else square
    return lax.div(jnp.ones_like(x), found) if params["y"] < 0 else found


class SineConstants(NamedTuple):
    """Constants of the sine in one precision.

    Attributes:
        parts: pi as a sum of terms whose products with the integer multiple of pi are exact, for angles up to ``near``.
        short, split: pi as a sum of shorter terms, for angles up to ``far``; the multiple is split into a multiple of ``split`` and a rest.
        polynomial: minimax polynomial p with sin r = r + r^3 p(r^2) on |r| <= pi/2.
    """

    parts: tuple[float, ...]
    near: float
    short: tuple[float, ...]
    split: float
    far: float
    polynomial: tuple[float, ...]


SINE_CONSTANTS = {
    np.dtype(np.float64): SineConstants(
        (3.1415926534682512, 1.2154201012607932e-10, 4.044532497591901e-21), 1e6,
        (3.1415926218032837, 3.1786509424591713e-08, 1.2246467864107189e-16, 1.2736634110450565e-24, 2.165713347843828e-32),
        2.0**26, 2.0**51,
        (2.7211750129621852e-15, -7.64299149422729e-13, 1.6058939706091582e-10, -2.505210687280627e-08,
         2.755731921113732e-06, -1.984126984120922e-04, 8.333333333333194e-03, -1.6666666666666666e-01),
    ),
    np.dtype(np.float32): SineConstants(
        (3.140625, 9.675025939941406e-04, 1.5099067240953445e-07, 5.126688136514179e-12), 6e3,
        (3.140625, 9.675025939941406e-04, 1.5099067240953445e-07, 5.126565838509123e-12, 1.2246063538223773e-16),
        2.0**12, 2.0**22,
        (2.605780655110547e-06, -1.9809602910139304e-04, 8.333066246200593e-03, -1.6666659550432966e-01),
    ),
}  # fmt: skip


def _sine_rule(exact: Callable, shift: float) -> Callable:
    """Rule for sin(x + shift pi), to three ulp, by argument reduction x = (k - shift) pi + r.

    Straight-line arithmetic, so that no registers are spilled. NaN for angles so large that neighbouring
    floats are more than half a radian apart. ``exact``: jax's function, for other dtypes.
    """

    def rule(params: Any, x: Array) -> Array:
        if x.dtype not in SINE_CONSTANTS:
            return exact(x)
        constants = SINE_CONSTANTS[x.dtype]
        subtract_pi = lambda x, multiple: reduce(lambda rest, part: rest - multiple * part, constants.parts, x)
        k = lax.floor(x * (1 / math.pi) + (0.5 + shift))
        multiple = k - shift if shift else k
        r = subtract_pi(x, multiple)
        large = ~(jnp.abs(x) <= constants.near)

        def reduce_large() -> tuple[Array, Array]:
            high = lax.floor(multiple * (1 / constants.split) + 0.5) * constants.split
            low, rest = multiple - high, x
            for part in constants.short:
                rest = (rest - high * part) - low * part
            # k may have been rounded to a neighbouring integer
            more = lax.floor(rest * (1 / math.pi) + 0.5)
            rest = jnp.where(jnp.abs(x) <= constants.far, subtract_pi(rest, more), jnp.nan)
            return jnp.where(large, k + more, k), jnp.where(large, rest, r)

        k, r = lax.cond(any_lane(large), reduce_large, lambda: (k, r))
        z = r * r
        p = reduce(lambda total, c: total * z + c, constants.polynomial[1:], jnp.full_like(z, constants.polynomial[0]))
        found, half = r + r * (z * p), k * 0.5
        return jnp.where(half != lax.floor(half), -found, found)

    return rule


def _extreme_rule(combine: Callable) -> Callable:
    """Rule for max or min that gives NaN if either operand is NaN, unlike the device's instruction."""

    def rule(params: Any, x: Array, y: Array) -> Array:
        found = combine(x, y)
        return jnp.where(x != x, x, jnp.where(y != y, y, found)) if jnp.issubdtype(x.dtype, jnp.floating) else found

    return rule


_maximum, _minimum = _extreme_rule(lax.max), _extreme_rule(lax.min)

# rules of kernels on a device
DEVICE_RULES: dict[str, Callable] = {
    "sin": _sine_rule(lax.sin, 0.0), "cos": _sine_rule(lax.cos, 0.5), "round": _round, "max": _maximum, "min": _minimum,
    "integer_pow": _integer_power,
    "clamp": lambda params, least, x, most: _minimum(params, _maximum(params, least, x), most),
}  # fmt: skip
# primitives that the interpreter itself uses, without parameters
LAX_FUNCTIONS: dict[str, Callable] = {
    "add": lax.add, "add_any": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "neg": lax.neg, "abs": lax.abs,
    "sqrt": lax.sqrt, "sin": lax.sin, "cos": lax.cos, "max": lax.max, "min": lax.min, "clamp": lax.clamp,
    "select_n": lax.select_n, "one_minus_square": lambda x: (1 - x) * (1 + x), "convert_element_type": lax.convert_element_type,
    "and": lax.bitwise_and, "or": lax.bitwise_or, "eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge,
    "le_to": lambda x, y: (x <= y) | (y != y), "lt_to": lambda x, y: (x < y) | ((y != y) & (x == x)),
}  # fmt: skip
# primitives that are bound with the equation's parameters
ELEMENTWISE = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clz", "cosh", "erf", "erf_inv", "erfc",
    "exp", "exp2", "expm1", "floor", "integer_pow", "is_finite", "lgamma", "log", "log2", "log1p", "logistic", "nextafter", "not",
    "population_count", "pow", "reduce_precision", "rem", "round", "rsqrt", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sinh", "square", "tan", "tanh", "xor", "digamma",
}  # fmt: skip
