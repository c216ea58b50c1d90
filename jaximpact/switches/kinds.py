"""Operations on real numbers that kink or jump (switches): their sides, their values on given sides, and how far the
borders of a side are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..jaxtools.jaxpr_tools import evaluate_equation
from ..jaxtools.jaxpr_types import Equation

Sides = list[Array]


class Kind(NamedTuple):
    """How an operation switches: a set of functions, by which walks through a jaxpr treat it.

    ``side`` and ``definite`` are called with an equation of the jaxpr and its operands, the others with the equation,
    the sides and the operands.

    Attributes:
        side: gives the sides at the operands.
        value: gives the results on given sides, extended smoothly beyond them.
        levels: gives for each side an array with one more axis, along which there are smooth functions that are
            positive within the side and zero on its borders; None where there are no such functions. Where one side is
            decided by all numbers along an axis, as their order or the place of the largest, that axis has length 1.
        across: gives the sides beyond the nearest border.
        definite: as ``side``, except that operands on a border have one of the sides that it separates; None where
            ``side`` itself gives such a side.
        kinks: whether the operation only kinks: its results are continuous across its borders.
    """

    side: Callable[..., Sides]
    value: Callable[..., list]
    levels: Callable[..., list] | None = None
    across: Callable[..., Sides] | None = None
    definite: Callable[..., Sides] | None = None
    kinks: bool = False


def apply(eqn: Equation, *values: Array) -> list:
    """Evaluates the operation of an equation."""
    return evaluate_equation(eqn, values)


def kind_of(eqn: Equation, discrete: bool) -> Kind | None:
    """Returns how an operation on real numbers switches; None if it is smooth.
    An operation with ``discrete`` results always switches."""
    name = eqn.primitive.name
    if not discrete:
        # magnitudes of complex numbers are smooth but at zero
        kind = None if jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.complexfloating) else KINKS.get(name)
        return kind._replace(levels=None) if kind and name == "sort" and eqn.params["num_keys"] > 1 else kind
    if name == "convert_element_type" and not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.integer):
        return Kind(apply, _given)
    return DISCRETE.get(name, Kind(apply, _given))


def _given(eqn: Equation, sides: Sides, *operands: Array) -> list:
    return list(sides)


def _signed(side: Array, x: Array) -> Array:
    """Returns the level x where the side is true and -x elsewhere, with one more axis of length 1."""
    return jnp.where(side, x, -x)[..., None]


def _not(eqn: Equation, sides: Sides, *operands: Array) -> Sides:
    return [~side for side in sides]


def _comparison(sign: int) -> Kind:
    """Kind of the comparison x > y (sign 1) or x < y (sign -1); where they are equal, x counts as the larger."""
    levels = lambda eqn, sides, x, y: [_signed(sides[0], sign * (x - y))]
    return Kind(apply, _given, levels, _not, lambda eqn, x, y: [x >= y if sign > 0 else x < y])


def _of_two(compare: Callable, value: Callable) -> Kind:
    """Kind of the larger or smaller of two numbers, whose side ``compare(first, second)`` is true where
    the second one is the result.

    ``value``: function of that name in `Kind`.
    """
    sign = 1 if compare is jnp.greater else -1
    levels = lambda eqn, sides, x, y: [_signed(sides[0], sign * (x - y))]
    return Kind(lambda eqn, x, y: [compare(x, y)], value, levels, _not, kinks=True)


# integers of real numbers: a level is the product of the distances from the two borders


def _between(low: Array, high: Array) -> list:
    return [(low * high)[..., None]]


def _floor(eqn: Equation, sides: Sides, x: Array) -> list:
    return _between(x - sides[0], sides[0] + 1 - x)


def _ceil(eqn: Equation, sides: Sides, x: Array) -> list:
    return _between(sides[0] - x, x - sides[0] + 1)


def _round(eqn: Equation, sides: Sides, x: Array) -> list:
    return _between(x - sides[0] + 0.5, sides[0] + 0.5 - x)


def _nearer(middle: float) -> Callable:
    """Makes the function ``across`` of floor, ceil or round; numbers with the integer n lie in the interval of
    length 1 about n + ``middle``."""
    return lambda eqn, sides, x: [jnp.where(x < sides[0] + middle, sides[0] - 1, sides[0] + 1)]


def _whole_levels(n: Array, x: Array) -> list:
    """Returns the level of the side n of truncation: positive where x, rounded towards zero, is n."""
    n = n.astype(x.dtype)
    return _between(jnp.where(n > 0, x - n, x - n + 1), jnp.where(n < 0, n - x, n + 1 - x))


def _whole_across(n: Array, x: Array) -> Sides:
    middle = jnp.where(n > 0, 0.5, jnp.where(n < 0, -0.5, 0)) + n.astype(x.dtype)
    return [jnp.where(x < middle, n - 1, n + 1).astype(n.dtype)]


_WHOLE = Kind(
    apply, _given, lambda eqn, sides, x: _whole_levels(sides[0], x), lambda eqn, sides, x: _whole_across(sides[0], x)
)


def _remainder(eqn: Equation, sides: Sides, x: Array, y: Array) -> list:
    return [x - sides[0] * y]


_REMAINDER = Kind(
    lambda eqn, x, y: [jnp.round((x - lax.rem(x, y)) / y)],
    _remainder,
    lambda eqn, sides, x, y: _whole_levels(sides[0], x / y),
    lambda eqn, sides, x, y: _whole_across(sides[0], x / y),
)


# places and orders of several numbers


def _along_last(eqn: Equation, x: Array) -> Array:
    """Returns the operand x of a reduction with the axes that it reduces moved to the end and merged."""
    axes = tuple(eqn.params["axes"])
    kept = [i for i in range(x.ndim) if i not in axes]
    return x.transpose([*kept, *axes]).reshape(*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axes))


def _at(x: Array, place: Array, axis: int = -1) -> Array:
    return jnp.take_along_axis(x, place[..., None], axis=axis)


def _extreme(sign: int, discrete: bool = False) -> Kind:
    """Kind of the largest (sign 1) or least (sign -1) of several numbers; if ``discrete``, of its place."""

    def side(eqn: Equation, x: Array) -> Sides:
        return apply(eqn, x) if discrete else [jnp.argmax(sign * _along_last(eqn, x), axis=-1)]

    def value(eqn: Equation, sides: Sides, x: Array) -> list:
        return list(sides) if discrete else [_at(_along_last(eqn, x), sides[0])[..., 0]]

    def own(sides: Sides, x: Array) -> Array:
        return sides[0][..., None] == lax.broadcasted_iota(sides[0].dtype, x.shape, x.ndim - 1)

    def levels(eqn: Equation, sides: Sides, x: Array) -> list:
        x = sign * _along_last(eqn, x)
        return [jnp.where(own(sides, x), 1, _at(x, sides[0]) - x)]

    def across(eqn: Equation, sides: Sides, x: Array) -> Sides:
        x = sign * _along_last(eqn, x)
        return [jnp.argmax(jnp.where(own(sides, x), -jnp.inf, x), axis=-1).astype(sides[0].dtype)]

    return Kind(side, value, levels, across, kinks=not discrete)


def _order(eqn: Equation, *operands: Array) -> Sides:
    p = eqn.params
    places = lax.broadcasted_iota(jnp.int32, operands[0].shape, p["dimension"])
    return [lax.sort((*operands, places), dimension=p["dimension"], num_keys=p["num_keys"])[-1]]


def _take_order(eqn: Equation, sides: Sides, *operands: Array) -> list:
    return [jnp.take_along_axis(x, sides[0], axis=eqn.params["dimension"]) for x in operands]


def _steps(eqn: Equation, sides: Sides, key: Array) -> Array:
    """Returns the differences, along the last axis, between successive numbers of ``key`` in the
    order ``sides`` of a sort."""
    return jnp.diff(
        jnp.moveaxis(jnp.take_along_axis(key, sides[0], axis=eqn.params["dimension"]), eqn.params["dimension"], -1)
    )


def _order_levels(eqn: Equation, sides: Sides, key: Array, *others: Array) -> list:
    return [jnp.expand_dims(_steps(eqn, sides, key), eqn.params["dimension"])]


def _swap_entries(eqn: Equation, sides: Sides, key: Array, *others: Array) -> Sides:
    """Returns the order of a sort beyond its nearest border: ``sides`` with the two successive numbers
    swapped that differ least."""
    order = jnp.moveaxis(sides[0], eqn.params["dimension"], -1)
    first = jnp.argmin(_steps(eqn, sides, key), axis=-1)[..., None]
    place = lax.broadcasted_iota(first.dtype, order.shape, order.ndim - 1)
    before, behind = jnp.roll(order, 1, axis=-1), jnp.roll(order, -1, axis=-1)
    found = jnp.where(place == first, behind, jnp.where(place == first + 1, before, order))
    return [jnp.moveaxis(found, -1, eqn.params["dimension"])]


# others


def _beyond(eqn: Equation, least: Array, x: Array, most: Array) -> Sides:
    return [x < least, x > most]


def _clamp_value(eqn: Equation, sides: Sides, least: Array, x: Array, most: Array) -> list:
    return [jnp.where(sides[0], least, jnp.where(sides[1], most, x))]


def _clamp_levels(eqn: Equation, sides: Sides, least: Array, x: Array, most: Array) -> list:
    return [_signed(sides[0], least - x), _signed(sides[1], x - most)]


def _turns(eqn: Equation, y: Array, x: Array) -> Sides:
    """Returns the side of atan2(y, x), the number n in atan2(y, x) = arctan(y/x) + n pi: 0 where x >= 0, else -1 where
    y < 0 and 1 elsewhere."""
    return [jnp.where(x < 0, jnp.where(y < 0, -1, 1), 0)]


def _angle(eqn: Equation, sides: Sides, y: Array, x: Array) -> list:
    (half,) = sides
    sign = jnp.where(half == 0, 1, -1).astype(x.dtype)
    return [jnp.arctan2(sign * y, sign * x) + half.astype(x.dtype) * np.pi]


def _angle_levels(eqn: Equation, sides: Sides, y: Array, x: Array) -> list:
    (half,) = sides
    return [jnp.stack([jnp.where(half == 0, x, -x), jnp.where(half == 0, 1, half.astype(y.dtype) * y)], axis=-1)]


def _angle_across(eqn: Equation, sides: Sides, y: Array, x: Array) -> Sides:
    (half,) = sides
    return [jnp.where(half == 0, jnp.where(y < 0, -1, 1), jnp.where(jnp.abs(x) < jnp.abs(y), 0, -half))]


def _sign_levels(eqn: Equation, sides: Sides, x: Array) -> list:
    (side,) = sides
    return [jnp.where(side == 0, -jnp.abs(x), side * x)[..., None]]


def _sign_across(eqn: Equation, sides: Sides, x: Array) -> Sides:
    (side,) = sides
    return [jnp.where(side == 0, jnp.where(x < 0, -1, 1).astype(x.dtype), -side)]


_ABS = Kind(
    lambda eqn, x: [x < 0],
    lambda eqn, sides, x: [jnp.where(sides[0], -x, x)],
    lambda eqn, sides, x: [_signed(sides[0], -x)],
    _not,
    kinks=True,
)

# its slope is infinite on the border; it is continuous there
_CBRT = Kind(lambda eqn, x: [x < 0], lambda eqn, sides, x: apply(eqn, x), _ABS.levels, _not, kinks=True)

# x/y inside a bounded function, as in tanh(1/y), which jumps where y = 0; continued from inside (`pieces.Pieces.ends`)
POLE = Kind(
    lambda eqn, x, y: [y < 0],
    lambda eqn, sides, x, y: apply(eqn, x, y),
    lambda eqn, sides, x, y: [_signed(sides[0], -y)],
    _not,
)

KINKS = {
    "abs": _ABS,
    "cbrt": _CBRT,
    "max": _of_two(jnp.less, lambda eqn, sides, x, y: [jnp.where(sides[0], y, x)]),
    "min": _of_two(jnp.greater, lambda eqn, sides, x, y: [jnp.where(sides[0], y, x)]),
    "clamp": Kind(_beyond, _clamp_value, _clamp_levels, _not, kinks=True),
    "rem": _REMAINDER,
    "atan2": Kind(_turns, _angle, _angle_levels, _angle_across),
    "sort": Kind(_order, _take_order, _order_levels, _swap_entries),
    "reduce_max": _extreme(1),
    "reduce_min": _extreme(-1),
    "sign": Kind(apply, _given, _sign_levels, _sign_across, lambda eqn, x: [jnp.where(x < 0, -1, 1).astype(x.dtype)]),
    "floor": Kind(apply, _given, _floor, _nearer(0.5)),
    "ceil": Kind(apply, _given, _ceil, _nearer(-0.5)),
    "round": Kind(apply, _given, _round, _nearer(0)),
}
DISCRETE = {
    "gt": _comparison(1),
    "ge": _comparison(1),
    "lt": _comparison(-1),
    "le": _comparison(-1),
    "lt_to": _comparison(-1),  # of a total order
    "le_to": _comparison(-1),
    "argmax": _extreme(1, discrete=True),
    "argmin": _extreme(-1, discrete=True),
    "convert_element_type": _WHOLE,
}
STEPS = {"sign", "floor", "ceil", "round"}  # constant between their jumps
