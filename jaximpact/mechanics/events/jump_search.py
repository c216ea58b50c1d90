"""Tests whether a function jumps between two points: switches (`switches`) show where it may,
its values on both sides whether it does.

The tests are made for whole steps (`saltation.jump_status`), and by schemes for their substeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...switches.switches import (
    HALVINGS,
    Crossing,
    Sides,
    Switches,
    crossing,
    depends_on_path,
    differ,
    force_switches,
    gap_switches,
)
from ...switches.walks import SPEED
from ..linearisation import Metric, acceleration
from ..problem import Problem

# widths of the bracket of a switch, over which the change of one side's function is compared with the change across the
# bracket
NEAR = 16
FAR = 256  # widths, over which the slope of a piece is compared with that over NEAR widths next to its border
# ratio of the two from which the slope is not finite on the border: 4 to 5 for a root; 10 for a cube root, and 1.5 for
# the power 4/5
STEEP = 2
# fraction of a function's size by which it would change over a step with that slope; smooth functions near an extremum
# change less
SEEN = 0.01
# fraction of a function's size: smaller jumps, as between pieces that were fitted together, matter to no derivative
SLIGHT = 1e-6


def path_jumped(
    problem: Problem, touching: Array, start: tuple[Array, Array, Array], end: tuple[Array, Array, Array], args: object
) -> Array | None:
    """Tests whether the force, the mass or a gap velocity jumps, or an edge releases a contact, on the straight line
    between two points (t, q, v), ().

    Gaps count for contacts that are ``touching`` (m,) only. None (decided at trace time) where nothing can jump.
    """
    t, q, v = start
    of_force, of_gaps = force_switches(problem, t, q, v, args, depends_on_path), gap_switches(problem, t, q, args)
    found = []
    if of_force is not None:
        found.append(jumps_between(of_force, start, end, (args,), size_of_values))
    if of_gaps is not None:
        rates = TouchingRates(problem, of_gaps, touching)
        found.append(jumps_between(rates, start, end, (args,), size_of_terms(problem, args)))
    return jnp.any(jnp.stack(found)) if found else None


def jumps_at_rest(
    problem: Problem, t: Array, q: Array, v: Array, free: Array, stuck: Array, args: object
) -> Array | None:
    """Tests whether the force jumps with the velocity where ``stuck`` contacts (m,) would leave rest, between v and the
    velocity ``free`` of them, ().

    There the force has any value between those on both sides, as that of the contact: together they hold more than the
    contact, but a step that takes one value breaks them loose one after the other. None (decided at trace time) where
    the force does not jump with the velocity.
    """
    of_speed = force_switches(problem, t, q, v, args, lambda mark: bool(mark & SPEED), kinks=False)
    if of_speed is None:
        return None
    ends = (t, q, v - (free - v)), (t, q, free)
    jumps = lambda: jumps_between(of_speed, *lax.stop_gradient(ends), (args,), size_of_values)
    return lax.cond(jnp.any(stuck), jumps, lambda: jnp.zeros((), bool))


class TouchingRates:
    """Gaps, gap velocities and releasing accelerations of the ``touching`` contacts (m,), zero for others, as a
    function of (t, q, v, args).

    The releasing acceleration is that of the gap without contact forces, where it is positive. It jumps where the
    curvature of a surface does so that a body flies off: the contact force then drops to zero, at a time that varies
    with the data. While a contact lasts, steps account for such jumps. It has the methods of `Switches`;
    its switches are those of the gaps.
    """

    def __init__(self, problem: Problem, gaps: Switches, touching: Array) -> None:
        self.problem, self.gaps, self.touching = problem, gaps, touching

    def may_end(self) -> bool:
        return False

    def sides(self, t: Array, q: Array, v: Array, args: object) -> Sides:
        return self.gaps.sides(t, q, args)

    def both(self, t: Array, q: Array, v: Array, args: object) -> tuple[list[Array], Sides]:
        sides = self.sides(t, q, v, args)
        return self.frozen(sides, t, q, v, args), sides

    def frozen(self, sides: Sides, t: Array, q: Array, v: Array, args: object) -> list[Array]:
        a = acceleration(self.problem, Metric.at(self.problem, q, args, t), t, q, v, args)
        gaps = lambda s: self.gaps.frozen(sides, t + s, q + s * (v + s / 2 * a), args)
        now, one = jnp.zeros_like(t), jnp.ones_like(t)
        rates = lambda s: jax.jvp(gaps, (s,), (one,))
        (gap, rate), (_, second) = jax.jvp(rates, (now,), (one,))
        return [jnp.where(self.touching, x, 0) for x in (gap, rate, jnp.maximum(second, 0))]


def jumps_between(
    function: Any, start: tuple, end: tuple, fixed: Sequence, size: Callable[[Crossing], list[Array]]
) -> Array:
    """Tests whether a function with switches jumps, or has an infinite slope at a switch, between two points, ();
    searches only if sides differ.

    Arguments as of `search`.
    """
    some = differ(function.sides(*start, *fixed), function.sides(*end, *fixed))

    def searched() -> Array:
        found, jumps = search(function, start, end, fixed, size)
        return jumps | steep_at(function, found, fixed, size)

    return lax.cond(some, searched, lambda: jnp.zeros((), bool))


def search(
    function: Any, start: tuple, end: tuple, fixed: Sequence, size: Callable[[Crossing], list[Array]]
) -> tuple[Crossing, Array]:
    """Locates where a function with switches changes sides between two points, and tests whether it jumps there, ().

    Bisection along the straight line from ``start`` to ``end`` gives a short bracket of the place. The function is
    taken to jump if its values at the two ends of the bracket differ by more than its smooth extensions change over
    sixteen widths of the bracket, before it and after it, plus ``SLIGHT`` times the size of the values. (A mere kink
    changes the values by about a sixteenth of these changes.)

    Args:
        function: a `Switches`, or an object with the same methods.
        start, end: operands at both points.
        fixed: further operands, the same at both.
        size: function from a `Crossing` to the sizes of the values.
    """
    found = crossing(function, start, end, fixed)
    back = tuple(x - NEAR * (y - x) for x, y in zip(found.before, found.after, strict=True))
    on = tuple(y + NEAR * (y - x) for x, y in zip(found.before, found.after, strict=True))
    behind = function.frozen(found.sides_before, *back, *fixed)
    ahead = function.frozen(found.sides_after, *on, *fixed)
    jumps = [
        jnp.any(jnp.abs(y - x) > jnp.maximum(jnp.abs(x - a), jnp.abs(b - y)) + SLIGHT * s)
        for x, y, a, b, s in zip(found.value_before, found.value_after, behind, ahead, size(found), strict=True)
    ]
    return found, jnp.any(jnp.stack(jumps))


def steep_at(function: Any, found: Crossing, fixed: Sequence, size: Callable[[Crossing], list[Array]]) -> Array:
    """Tests whether a function has an infinite slope at a border that a path has crossed, as sqrt(max(q, 0)) at q = 0,
    (). Arguments as of `search`."""
    if not function.may_end():
        return jnp.zeros((), bool)

    def beside(sides: Sides, start: tuple, value: Sequence, way: int) -> list[Array]:
        at = lambda widths: tuple(
            x + way * widths * (b - a) for x, a, b in zip(start, found.before, found.after, strict=True)
        )
        near, far = (function.frozen(sides, *at(widths), *fixed) for widths in (NEAR, FAR))
        of = zip(value, near, far, size(found), strict=True)
        return [_steep(jnp.abs(y - x) / NEAR, jnp.abs(z - y) / (FAR - NEAR), s) for x, y, z, s in of]

    both = beside(found.sides_before, found.before, found.value_before, -1)
    both += beside(found.sides_after, found.after, found.value_after, 1)
    return jnp.any(jnp.stack(both))


def _steep(near: Array, far: Array, size: Array) -> Array:
    """Tests whether the change of a piece in a width next to its border shows an infinite slope, (); ``far``: its
    change in a width further away."""
    return jnp.any((near > STEEP * far) & (2**HALVINGS * near > SEEN * size))


def size_of_values(found: Crossing) -> list[Array]:
    """Returns the ``size`` of values for `search`: the sum of their magnitudes before and after a crossing."""
    return [jnp.abs(x) + jnp.abs(y) for x, y in zip(found.value_before, found.value_after, strict=True)]


def size_of_terms(problem: Problem, args: object) -> Callable[[Crossing], list[Array]]:
    """Returns the function ``size`` of `search` for `TouchingRates`: as these are zero in contact,
    the magnitudes of their terms."""

    def size(found: Crossing) -> list[Array]:
        t, q, v = found.before
        gap, matrix = problem.gaps.jacobian(t, q, args)
        matrix, a = jnp.abs(matrix), acceleration(problem, Metric.at(problem, q, args, t), t, q, v, args)
        speed = matrix @ jnp.abs(v) + jnp.abs(problem.gaps.drift(t, q, args))
        release = matrix @ jnp.abs(a) + found.value_before[2] + found.value_after[2]
        return [jnp.abs(gap) + matrix @ jnp.abs(q), speed, release]

    return size
