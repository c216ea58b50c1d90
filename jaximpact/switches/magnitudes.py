"""Roots of squares as magnitudes: sqrt(x^2) is |x|, which kinks at x = 0 although no operation switches there;
and angles by arctan(y / x).

So is the norm of a vector with one component; divided by it, a number has a sign that jumps. For the search for
switches (`switches`) such roots are written as powers of magnitudes, of which each side is smooth. An arctan of a
ratio, or of a tangent, jumps where the denominator changes its sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr

from ..jaxtools.jaxpr_tools import contains_primitive, evaluate_equation, inline_calls, is_literal, reader
from ..jaxtools.jaxpr_types import Equation, Operand
from ..jaxtools.shapes import PyTree

# functions of x^n, by the magnitude of x
OF_POWER: dict[str, Callable] = {
    "sqrt": lambda n, x: _power(x, n / 2),
    "rsqrt": lambda n, x: _power(x, -n / 2),
    "cbrt": lambda n, x: _power(x, n / 3),
    "log": lambda n, x: n * jnp.log(x),
    "pow": lambda n, x, exponent: _power(x, n * exponent) if isinstance(exponent, float) else lax.pow(x, n * exponent),
}
# operations that move the entries of an array about, or drop none but axes of length 1
MOVES = {"reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "slice", "copy"}


class Base(NamedTuple):
    """A variable as an even power, x^n."""

    x: Array
    n: int


def with_magnitudes(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns a jaxpr in which roots, powers and logarithms of squares are those of magnitudes, and angles switch;
    itself if there are none of these."""
    if not any(contains_primitive(closed, name) for name in (*OF_POWER, "atan")):
        return closed
    inlined, replaced = inline_calls(closed), []

    def evaluate(*values: Array) -> list:
        jaxpr = inlined.jaxpr
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*inlined.consts, *values], strict=True))
        read, bases, choices = reader(env), dict[Operand | None, Base](), dict[Operand | None, PyTree]()
        ratios = dict[Operand | None, list]()  # numerators and denominators

        def root(eqn: Equation, v: Operand | None, others: list) -> Array | None:
            """Returns the result of an equation, a function of an even power v = x^n, as one of |x|; None if v is
            neither an even power nor a choice between values of which one is."""
            if v in bases:
                return OF_POWER[eqn.primitive.name](bases[v].n, jnp.abs(bases[v].x), *others)
            if v not in choices:
                return None
            which, *cases = choices[v].invars
            found = [None if is_literal(case) else root(eqn, case, others) for case in cases]
            if all(x is None for x in found):
                return None
            own = lambda case: evaluate_equation(eqn, [read(case), *others])[0]
            return lax.select_n(read(which), *(own(y) if x is None else x for x, y in zip(found, cases, strict=True)))

        for eqn in jaxpr.eqns:
            given, name = [read(v) for v in eqn.invars], eqn.primitive.name
            first = eqn.invars[0] if eqn.invars and not is_literal(eqn.invars[0]) else None
            found = root(eqn, first, given[1:]) if name in OF_POWER else None
            if name == "atan" and first in ratios:
                found = _angle(*ratios[first])
            elif name == "div" and not is_literal(eqn.invars[1]):
                ratios[eqn.outvars[0]] = given
            elif name == "tan":
                ratios[eqn.outvars[0]] = [jnp.sin(given[0]), jnp.cos(given[0])]
            if found is not None:
                replaced.append(eqn)
            elif name == "select_n":
                choices[eqn.outvars[0]] = eqn
            elif (base := _base(eqn, given, bases.get(first))) is not None:
                bases[eqn.outvars[0]] = base
            env.update(zip(eqn.outvars, evaluate_equation(eqn, given) if found is None else [found], strict=True))
        return [read(v) for v in jaxpr.outvars]

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    found = jax.make_jaxpr(evaluate)(*avals)
    return found if replaced else closed


def _angle(y: Array, x: Array) -> Array:
    """Returns arctan(y / x), which jumps at x = 0, by a formula whose continuation beyond x = 0 is smooth on either
    side."""
    side = jnp.where(x < 0, -1, 1).astype(jnp.result_type(x))
    y, x = side * y, side * x
    return 2 * jnp.arctan(y / (x + jnp.sqrt(x * x + y * y)))


def _power(x: Array, exponent: float) -> Array:
    return x ** (int(exponent) if exponent == int(exponent) else exponent)


def _base(eqn: Equation, given: Sequence, base: Base | None) -> Base | None:
    """Returns the result of an equation as an even power, None if it is none; ``base``: its first operand as an even
    power, or None."""
    name, p = eqn.primitive.name, eqn.params
    same = len(eqn.invars) == 2 and not is_literal(eqn.invars[0]) and eqn.invars[0] is eqn.invars[1]
    own = base or Base(given[0], 1) if given else None
    if own is not None and (name == "square" or (name == "mul" and same)):
        return Base(own.x, 2 * own.n)
    if own is not None and name == "integer_pow" and p["y"] > 0 and own.n * p["y"] % 2 == 0:
        return Base(own.x, own.n * p["y"])
    if own is not None and name == "dot_general" and same and given[0].size == eqn.outvars[0].aval.size == 1:
        return Base(own.x.reshape(eqn.outvars[0].aval.shape), 2 * own.n)
    if base is None:
        return None
    if name in MOVES:
        return Base(evaluate_equation(eqn, [base.x, *given[1:]])[0], base.n)
    if name == "reduce_sum" and math.prod(eqn.invars[0].aval.shape[i] for i in p["axes"]) == 1:
        return Base(jnp.squeeze(base.x, p["axes"]), base.n)
    return None
