"""Coulomb's law at the contacts of listed bodies, by products with their rows."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from ...jaxtools.array_types import B_m, F_m, F_mr
from ...jaxtools.derivative_rules import guard_derivative
from ..friction import FrictionInfo, remembered
from ..status import Status, as_status
from .friction.cones import OPEN, SLIP, STICK, direction, fastest, modes_of
from .friction.cones import residual as natural_map
from .friction.static_friction import cones_in_act, slip_before, slip_resolution
from .laws import Reaction
from .solver import ContactSolver

NO_DERIVATIVE_OF_LISTS = "bodies in lists with friction have no derivative: use sensitivity='corrected' (right across impacts), or of few bodies Bodies(lists=False), all pairs"  # noqa: E501


def solve_friction_of_list(
    solver: ContactSolver, guess: F_mr | None, contacts: Any, offset: F_m, candidates: B_m | None, constant: bool
) -> Reaction:
    """Solves the contact problem of listed bodies with friction, by products with the rows of ``contacts``.

    The result has no derivative: it is ``constant`` in derivatives, or an error where one is taken.
    `saltation.corrected.Corrected` gives the step its own.

    ``guess`` (m, 1 + k): impulses to start from, None for zeros; ``offset`` (m,): normal velocities without impulses,
    restitution included; ``candidates`` (m,): mask of the contacts that may have an impulse, None for all.
    """
    known = contacts, offset
    contacts, offset = lax.stop_gradient(known) if constant else guard_derivative(known, NO_DERIVATIVE_OF_LISTS)
    slip, breaks = contacts.slip, None
    candidates = jnp.ones(offset.shape, bool) if candidates is None else candidates
    jump, velocity, diagonal = contacts.friction_products()
    b = jnp.concatenate([offset[:, None], slip.velocity], axis=1)
    sizes = jnp.where(candidates, jnp.max(jnp.abs(b), axis=1), 0)
    largest = fastest(b, candidates)
    floor = 64 * jnp.finfo(offset.dtype).eps * (sizes + 2 * largest)
    allowed = jnp.maximum(solver.allowed(largest), jnp.maximum(floor, jnp.finfo(offset.dtype).tiny))
    guess = jnp.zeros_like(b) if guess is None else guess
    scale = jnp.max(diagonal, axis=1, keepdims=True)

    def modes(slip: Any, found: tuple) -> tuple:
        # with a margin, as the residual is computed again below with other rounding
        of = contacts.rubbing(slip)
        x, more = solver.frictional_impulses_of_list(of, b, candidates, 0.5 * allowed, found[0])
        w = velocity(jump(x)) + b
        least = slip_resolution(allowed, largest, slip.static)
        mode = jnp.where(x[:, 0] > 0, modes_of(w, scale * x, slip.friction, least), OPEN).astype(jnp.int32)
        slip_direction = jnp.where((mode == SLIP)[:, None], direction(w[:, 1:]), 0)
        return mode, slip_direction, (x, found[1] + more, mode, slip_direction)

    m, k = slip.drift.shape
    none = FrictionInfo.none(m, k, b.dtype)
    found: tuple = (guess, jnp.zeros((), jnp.int32), none.mode, none.direction)
    if slip.static is None:
        *_, found = modes(slip, found)
    else:
        slip, breaks, found = cones_in_act(slip, slip_before(slip), modes, found)
    x, iterations, mode, slipping = found
    pushed = jump(x)
    w, acts = velocity(pushed) + b, x[:, 0] > 0
    known = candidates & (diagonal[:, 0] > 0)
    natural = natural_map(w, scale * x, slip.friction)
    residual = jnp.max(jnp.where(known[:, None], jnp.abs(natural), 0), initial=0.0)
    status = as_status(~(residual <= jnp.max(allowed)), Status.CONTACTS_NOT_SOLVED)
    # more rows than coordinates depend on each other; whether fewer do is not tested
    rows = jnp.sum(jnp.where(acts, jnp.where(mode == STICK, b.shape[1], 1), 0))
    status |= as_status(rows > contacts.coordinates_at(acts), Status.IMPULSES_NOT_UNIQUE)
    friction = remembered(slip, FrictionInfo(x[:, 1:], mode, slipping), breaks)
    return Reaction(pushed, x[:, 0], acts, residual, iterations, status, friction)
