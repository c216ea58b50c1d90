"""For periodic orbits with friction: the instants at which slip vanishes, and how far each contact is from reversing
its slip instead of sticking."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..mechanics.contact.friction.cones import STICK, length
from ..mechanics.events.acceleration_problem import AccelerationProblem
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..results import Solution
from .slips import REVERSAL, STOP, slips


class OrbitSlips(NamedTuple):
    """Result of `orbit_slips`: the n instants in one period at which the slip of a contact vanishes.

    Attributes:
        room: (n,), increasing: (limit of friction - force that would hold the contact) / limit of friction; where it is
            positive the contact sticks, where it is negative the slip reverses.
        square: of all slips that end in sticking, the smallest square of the rate at which the slip velocity vanishes
            [(velocity/time)^2]; inf if there are none.
    """

    room: np.ndarray = np.zeros(0)
    square: float = np.inf

    @property
    def turns(self) -> int:
        """Number of the instants at which the slip reverses."""
        return int(np.sum(self.room < 0))


def orbit_slips(problem: Problem, solution: Solution, data: Motion) -> OrbitSlips:
    """Finds the instants at which slip vanishes on a closed orbit.

    ``solution``: one period of the orbit with every step; ``data``: the motion that `solve` computed it from,
    with args and friction.
    """
    found = slips(problem, solution, args=data.args, friction=data.friction, static_friction=data.static_friction)
    zeros = np.flatnonzero(np.isin(found.kind, (STOP, REVERSAL)))
    if zeros.size == 0:
        return OrbitSlips()
    t, q, v = (np.asarray(x) for x in (solution.t, solution.q, solution.v))
    # the last two steps before, across the section where need be: rows -1 and 0 are one
    n = len(t) - 1
    last, before, earlier = ((found.row[zeros] - back) % n for back in (1, 2, 3))
    share, square = _vanishing(*(found.velocity[row, found.contact[zeros]] for row in (last, before, earlier)))
    h = float(t[1] - t[0])
    begin = t[found.row[zeros] - 1]
    state = (
        begin + share * h,
        *_extrapolate(share, (q[last], v[last]), (q[before], v[before]), (q[earlier], v[earlier])),
    )
    modes = found.modes[found.row[zeros] - 1]
    room = _rooms(data.stated_in(problem), *state, data.args, found.contact[zeros], modes)
    square = np.where(found.kind[zeros] == STOP, square, np.inf) / h**2
    return OrbitSlips(np.sort(np.asarray(room)), float(np.min(square)))


def _vanishing(last: np.ndarray, before: np.ndarray, earlier: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share (n,) of a step after the ``last`` row at which a slip vanishes,
    and the square (n,) of its change per step at that time.

    Both follow from the parabola through the magnitudes of the slips (n, k) at the ``last`` row and the two rows
    before. The square is the slope at the last row squared, minus twice the curvature times the slip there; it is
    smooth also where the slip only just reaches zero.
    """
    x, y, z = (np.linalg.norm(slip, axis=1) for slip in (last, before, earlier))
    bend = x - 2 * y + z
    slope = x - y + 0.5 * bend
    square = slope**2 - 2 * bend * x
    falls = np.sqrt(np.maximum(square, 0)) - slope
    return np.clip(2 * x / np.where(falls > 0, falls, np.inf), 0, 1), square


def _extrapolate(share: np.ndarray, *states: tuple) -> tuple[np.ndarray, ...]:
    """Values at a ``share`` (n,) of a step after the first of three states (latest first, a step apart), by the
    parabola through them."""
    s = share[:, None]
    return tuple(x + s * (x - y) + 0.5 * s * (s + 1) * (x - 2 * y + z) for x, y, z in zip(*states, strict=True))


@jax.jit
def _rooms(problem: Problem, t: Array, q: Array, v: Array, args: object, contact: Array, modes: Array) -> Array:
    """`OrbitSlips.room` (n,), not sorted, of the contacts ``contact`` (n,) at states (n, ...), with all other contacts
    in their ``modes`` (n, m)."""

    def one(t: Array, q: Array, v: Array, contact: Array, modes: Array) -> Array:
        here = AccelerationProblem.at(problem, t, q, v, args)
        cones, others = here.cones, jnp.arange(len(modes)) != contact
        slip_direction = jnp.where(others[:, None], here.slipping(jnp.zeros(len(modes), q.dtype)), 0)
        x = cones.in_modes(jnp.zeros_like(cones.offset), jnp.where(others, modes, STICK), slip_direction)
        limit = cones.at_rest * x[:, 0]
        return ((limit - length(x[:, 1:])[:, 0]) / jnp.where(limit > 0, limit, 1))[contact]

    return jax.vmap(one)(t, q, v, contact, modes)
