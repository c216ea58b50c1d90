"""Ways in which contacts slip, over the trials of `EventDriven`.

In the plane a contact slips one of two ways, which is held over a trial. In space the way of slip turns with the slip
velocity s: it is s / |s|, a function of the state. A stop needs both components of s to vanish, so that |s| has no
sign: the trial counts it as negative where s has turned back against the way in which it began. Close to zero slip the
way turns ever faster, and substeps shrink with |s|: a contact stops where |s| falls below the ``least`` slip that the
tolerance tells from zero, and an impulse takes what is left.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from ..coefficients import lengths
from ..events.rubbing_contacts import Place

ROUGH = 4  # times the rounding of slips: slip velocities with directions of a few digits
BRIEF = 64  # roundings of time: slips that last no longer are zero

frozen = lax.stop_gradient


def signed(place: Place, way: Array) -> Array:
    """Returns the speeds (m,) of slips at a `Place`, negative where they go against the ways (m, k); those of rounding
    go along these."""
    along = jnp.sum(way * place.slip, axis=1)
    if way.shape[1] == 1:
        return along
    size = lengths(place.slip)
    return jnp.where(frozen(size) > place.noise, jnp.where(frozen(along) < 0, -size, size), along)


def headed(place: Place, way: Array) -> Array:
    """Returns the directions (m, 2) of slip in space, or the ways (m, 2) where there is none."""
    speed = signed(place, way)[:, None]
    moves = frozen(jnp.abs(speed) > place.noise[:, None])
    return jnp.where(moves, place.slip / jnp.where(moves, speed, 1), way)


def least_slip(place: Place, force: Array, atol: Array, span: Array) -> Array:
    """Returns the least slip velocities in space (m,) that are told from zero: friction, of contact forces (m, 1 + k),
    would stop smaller ones within the rounding of times up to ``span`` ()."""
    # of a contact that sticks friction would be larger
    friction = jnp.maximum(lengths(force[:, 1:]), place.cones.friction * force[:, 0])
    brakes = jnp.max(place.cones.scales() * friction, initial=0.0)
    rounding = jnp.maximum(ROUGH * place.noise, BRIEF * jnp.finfo(span.dtype).eps * span * frozen(brakes))
    return jnp.maximum(atol, rounding)


def times_of(place: Place, force: Array, slips: Array, way: Array, floor: Array) -> Array:
    """Returns the times in which the first slip under contact forces (m, 1 + k) would stop at its present rate, and in
    which friction alone would stop one, of the contacts that do, ``slips`` (m,); the largest acceleration of slip by
    friction; and its error, as directions are known to the rounding of slips, (4,).

    In the second time a change of slip across its direction decays. ``floor`` (m, 1): slips at which they stop,
    negative for contacts that begin to slip.
    """
    speed, pull = signed(place, way), place.cones.velocity(force)[:, 1:]
    rate, brakes = jnp.sum(way * pull, axis=1), place.cones.scales() * lengths(force[:, 1:])
    brakes = jnp.where(slips, brakes, 0)
    moves = speed > place.noise
    # explicit substeps follow a slip from zero only where it accelerates more than friction would stop it
    follows = lengths(pull) > brakes
    slows = [slips & moves & (floor[:, 0] > 0) & (rate < 0), (moves | ~follows) & (brakes > 0)]
    first = [
        jnp.min(jnp.where(some, speed / jnp.where(some, by, 1), jnp.inf))
        for some, by in zip(slows, (-rate, brakes), strict=True)
    ]
    error = jnp.where(moves, brakes * place.noise / jnp.where(moves, speed, 1), 0)
    return frozen(jnp.stack([*first, jnp.max(brakes), jnp.max(error)]))
