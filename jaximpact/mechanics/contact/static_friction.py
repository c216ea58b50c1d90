"""Static friction above sliding friction: which of the two coefficients acts at each contact in a step.

A contact that stuck in the previous step sticks up to the static coefficient; beyond, it breaks away and slips with the sliding one. A contact
that slips has the sliding one, but where its slip would reverse within a step it comes to rest, and stays at rest if the static one holds it:
the result does not depend on where within a step the motion stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ..friction import FrictionInfo
from .cones import OPEN, SLIP, STICK, direction, length


def cones_in_act(cones: Any, before: FrictionInfo, modes: Callable, start: Any = None) -> tuple[Any, Array, Any]:
    """Returns the problem with the coefficients that act; the mask (m,) of contacts that break away first, before that changes the loads of others;
    and the last solution found.

    ``cones``: a `ConeProblem`, or the tangential rows of listed contacts; ``before``: modes of the contacts in the previous step; ``modes``: function
    that solves a problem, given it and the solution before (first ``start``), and returns modes (m,), directions of slip (m, k) and its solution.
    """
    known: Any = lax.stop_gradient(cones)
    with_static = lambda cones, held: cones._replace(friction=jnp.where(held, cones.static, cones.friction))

    def body(carry: tuple) -> tuple:
        held, broken, first, _, found = carry
        mode, towards, found = modes(with_static(known, held), found)
        breaks = held & (mode == SLIP)
        turns = (before.mode == SLIP) & (mode == SLIP) & (jnp.sum(towards * before.direction, axis=1) < 0)
        turns &= ~held & ~broken
        first = jnp.where(jnp.any(first), first, breaks & (before.mode == STICK))
        return (held & ~breaks) | turns, broken | breaks, first, jnp.any(breaks | turns), found

    stuck, none = before.mode == STICK, jnp.zeros(before.mode.shape, bool)
    # each contact gets the static coefficient at most once, and breaks away at most once
    begin = (stuck, none, none, jnp.ones((), bool), start)
    held, _, first, _, found = lax.while_loop(lambda carry: carry[3], body, begin)
    return with_static(cones, held), first, found


def slip_before(slip: Any) -> FrictionInfo:
    """Returns the modes of contacts in the previous step, with directions in the present tangents of the rows ``slip``, which in space may have
    turned."""
    return slip.before._replace(direction=slip.along(slip.before.heading))


def modes_at(slip: Any, v: Array, closed: Array, little: Array) -> FrictionInfo:
    """Returns the modes of the ``closed`` contacts (m,) at velocity v (d,), without derivatives: they stick if their slip is at most ``little`` (m,)
    plus rounding."""
    slip, v, little = lax.stop_gradient((slip, v, little))
    velocity = slip.of(v)
    terms = jnp.max(slip.terms(v) + jnp.abs(slip.drift), axis=1)
    slips = closed & (length(velocity)[:, 0] > 1e3 * jnp.finfo(v.dtype).eps * terms + little)
    mode = jnp.where(slips, SLIP, jnp.where(closed, STICK, OPEN)).astype(jnp.int32)
    towards = jnp.where(slips[:, None], direction(velocity), 0)
    found = slip.still()._replace(mode=mode, direction=towards)
    return found if slip.static is None else found._replace(heading=slip.heading(towards))
