"""Static friction above the sliding one: which of two coefficients acts at each contact in a step.

A contact that stuck in the step before sticks up to the static coefficient; beyond, it breaks away and slips with the sliding one. A contact
that slips has the sliding one, but where its slip would turn round it comes to rest on the way, and stays if the static one holds it:
which coefficient acts is then no question of where in its step the motion stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ..friction import FrictionInfo, Slip
from .cones import OPEN, SLIP, STICK, ConeProblem, direction, length


def cones_in_act(
    cones: ConeProblem, before: FrictionInfo, modes: Callable[[ConeProblem], tuple[Array, Array]]
) -> tuple[ConeProblem, Array]:
    """The problem with the coefficients that act, and the mask (m,) of contacts that break away first, before the loads of others change by that.

    ``before``: what the contacts did in the step before; ``modes``: from a problem to modes (m,) and directions of slip (m, k).
    """
    known: Any = lax.stop_gradient(cones)
    with_static = lambda cones, held: cones._replace(friction=jnp.where(held, cones.static, cones.friction))

    def body(carry: tuple) -> tuple:
        held, broken, first, _ = carry
        mode, towards = modes(with_static(known, held))
        breaks = held & (mode == SLIP)
        turns = (before.mode == SLIP) & (mode == SLIP) & (jnp.sum(towards * before.direction, axis=1) < 0)
        turns &= ~held & ~broken
        first = jnp.where(jnp.any(first), first, breaks & (before.mode == STICK))
        return (held & ~breaks) | turns, broken | breaks, first, jnp.any(breaks | turns)

    stuck, none = before.mode == STICK, jnp.zeros(before.mode.shape, bool)
    # each contact is held once, and breaks away once
    held, _, first, _ = lax.while_loop(lambda carry: carry[-1], body, (stuck, none, none, jnp.ones((), bool)))
    return with_static(cones, held), first


def modes_at(slip: Slip, v: Array, closed: Array, little: Array) -> FrictionInfo:
    """What the contacts that are ``closed`` (m,) do at v (d,), without derivatives: those stick whose slip is rounding, or as ``little`` (m,)."""
    slip, v, little = lax.stop_gradient((slip, v, little))
    velocity = slip.of(v)
    terms = jnp.max(jnp.abs(slip.jacobian) @ jnp.abs(v) + jnp.abs(slip.drift), axis=1)
    slips = closed & (length(velocity)[:, 0] > 1e3 * jnp.finfo(v.dtype).eps * terms + little)
    mode = jnp.where(slips, SLIP, jnp.where(closed, STICK, OPEN)).astype(jnp.int32)
    return slip.still()._replace(mode=mode, direction=jnp.where(slips[:, None], direction(velocity), 0))
