"""Static friction above sliding friction: which of the two coefficients acts at each contact in a step.

A contact that stuck in the previous step sticks while its friction stays within the static coefficient; beyond that, it
breaks away and slips with the sliding coefficient. A contact that slips has the sliding coefficient. Where its slip
would reverse within a step, it comes to rest, and stays at rest if the static coefficient suffices for that: the result
does not depend on where within the step the motion stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array, lax

from ....jaxtools.array_types import F0, B_m, F_d, F_m
from ...friction import FrictionInfo, remembered
from .cones import OPEN, SLIP, STICK, direction, length

if TYPE_CHECKING:
    from ...friction import Slip

SHARP = 4  # times the residual of a contact problem: slip velocities up to which it tells no slip
LITTLE = 1e-8  # of the largest velocity: no slip either, where no static friction depends on it


def cones_in_act(cones: Any, before: FrictionInfo, modes: Callable, start: Any = None) -> tuple[Any, B_m, Any]:
    """Finds which coefficient, static or sliding, acts at each contact.

    Args:
        cones: the problem: a `ConeProblem`, or the tangential rows of listed contacts.
        before: modes of the contacts in the previous step, with their directions of slip.
        modes: ``modes(cones, solution)`` solves the problem with the coefficients ``cones.friction``, starting from the
            latest solution; it returns the modes (m,), the directions of slip (m, k), and its own solution.
        start: the solution that the first call of ``modes`` starts from.

    Returns:
        the problem with the coefficients that act as its ``friction``; the mask (m,) of the contacts that break away
        first, from which others may follow as their loads change; and the latest solution.
    """
    known: Any = lax.stop_gradient(cones)
    with_static = lambda cones, held: cones._replace(friction=jnp.where(held, cones.static, cones.friction))

    def body(carry: tuple) -> tuple:
        held, broken, first, _, found = carry
        mode, slip_direction, found = modes(with_static(known, held), found)
        breaks = held & (mode == SLIP)
        turns = (before.mode == SLIP) & (mode == SLIP) & (jnp.sum(slip_direction * before.direction, axis=1) < 0)
        turns &= ~held & ~broken
        first = jnp.where(jnp.any(first), first, breaks & (before.mode == STICK))
        return (held & ~breaks) | turns, broken | breaks, first, jnp.any(breaks | turns), found

    stuck, none = before.mode == STICK, jnp.zeros(before.mode.shape, bool)
    # each contact gets the static coefficient at most once, and breaks away at most once
    begin = (stuck, none, none, jnp.ones((), bool), start)
    held, _, first, _, found = lax.while_loop(lambda carry: carry[3], body, begin)
    return with_static(cones, held), first, found


def slip_resolution(allowed: Array, largest: F0, static: F_m | None) -> Array:
    """Returns the slip velocity up to which a contact counts as sticking, where its problem is solved to a residual
    ``allowed``, () or (m,), of which it has the shape.

    ``largest`` (): the largest velocity in that problem; ``static``: coefficients of contacts at rest,
    None where they are those of slip.
    """
    # not finer than the solver, nor much coarser: 1e4 residuals are a third of the largest velocity in single precision
    least = SHARP * allowed
    # in its first step a contact that has broken away slips slowly
    return jnp.maximum(least, LITTLE * largest) if static is None else least


def slip_before(slip: Any) -> FrictionInfo:
    """Returns the modes of contacts in the previous step, with their directions of slip (m, k) as
    components along the present tangents.

    ``slip``: the present tangential rows; in space the tangents may have turned since the previous step.
    """
    return slip.before._replace(direction=slip.along(slip.before.heading))


def modes_at(slip: Slip, v: F_d, closed: B_m, little: F_m) -> FrictionInfo:
    """Returns the modes of contacts at velocity v (d,), without derivatives,
    given the mask ``closed`` (m,) of those that are not open.

    ``slip``: the tangential rows. A closed contact sticks if the magnitude of its slip velocity is at most ``little``
    (m,) [velocity] plus rounding.
    """
    slip, v, little = lax.stop_gradient((slip, v, little))
    velocity = slip.of(v)
    terms = jnp.max(slip.terms(v) + jnp.abs(slip.drift), axis=1)
    rough = (slip.friction if slip.static is None else slip.static) > 0
    slips = closed & ((length(velocity)[:, 0] > 1e3 * jnp.finfo(v.dtype).eps * terms + little) | ~rough)
    mode = jnp.where(slips, SLIP, jnp.where(closed, STICK, OPEN)).astype(jnp.int32)
    slip_direction = jnp.where(slips[:, None], direction(velocity), 0)
    return remembered(slip, slip.still()._replace(mode=mode, direction=slip_direction), jnp.zeros_like(slips))
