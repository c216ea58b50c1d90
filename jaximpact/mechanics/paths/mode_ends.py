"""Ends of contact modes on a path (`rubbing_paths`): contacts open, break away from rest, or stop slipping; times by the implicit function
theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.derivative_rules import graft
from ...jaxtools.linalg import nonzero
from ..contact.friction.cones import OPEN, SLIP, STICK, direction, length
from ..events.rubbing_contacts import Place, heading
from ..linearisation import span
from ..problem import Problem
from .cubic_paths import Path, double_crossing, first_zero, near_grazing
from .rubbing_paths import Segment

SECANTS = 2  # iterations for the time at which a contact breaks away, from that of forces linear in time


def at_once(r: Array) -> Array:
    """Returns the time () within which events on a path over a time r () count as simultaneous."""
    return max(1e-9, 64 * float(jnp.finfo(r.dtype).eps)) * r


def leads(times: Array) -> Array:
    """Returns the mask (m,) of the contact with the first of the ``times`` (m,)."""
    return jnp.arange(len(times)) == jnp.argmin(times)


class Ends(NamedTuple):
    """Ends of contact modes on a path.

    Times (m,) from the start of the path at which contacts open (``release``), break away (``escape``) and stop slipping (``stop``); two steps or
    more where they do not. Masks (m,) of contacts that open on the path (``loose``), break away (``slides``), only just break
    away (``hardly``), and stop slipping (``stops``). ``way`` (m, k): the direction in which a contact that breaks away begins to slip.
    """

    release: Array
    escape: Array
    stop: Array
    loose: Array
    slides: Array
    stops: Array
    way: Array
    hardly: Array

    @property
    def first(self) -> Array:
        return jnp.min(jnp.concatenate([self.release, self.escape, self.stop]), initial=jnp.inf)


def ends(problem: Problem, segment: Segment, h: Array, iterations: int, broke: Array, at_state: Callable) -> Ends:
    """Finds when the modes of contacts end on the path of a segment, in a step h.

    ``iterations``: of Newton's method for the times; ``broke`` (m,): contacts that broke away at the start of the path; ``at_state``: function from
    (t, q, v) to the problem with the force there, as the motion may slide on borders.
    """
    (_, here, there, did, force, force_end, _), r = segment[:7], segment.path.r
    never, rounding = 2 * h, there.rounding()
    scale = lax.stop_gradient(there.cones.scales())
    loose = (did.mode != OPEN) & (scale * force_end[:, 0] < -rounding)
    fall = force[:, 0] - force_end[:, 0]
    release = jnp.where(loose, r * force[:, 0] / jnp.where(loose, fall, 1), never)
    # static friction, in the direction of the force at the end
    sign = lax.stop_gradient(direction(force_end[:, 1:]))
    room, room_end = (spare(p, x, sign) for p, x in ((here, force), (there, force_end)))
    slides = (did.mode == STICK) & (scale * room_end < -rounding)
    spent = jnp.where(slides, room - room_end, 1)
    escape = jnp.where(slides, r * jnp.maximum(room, 0) / spent, never)
    hardly = jnp.zeros_like(slides)
    if there.cones.static is not None:
        # the force jumps then
        escape, rate = _escapes(at_state, segment, slides, escape, sign)
        # where the room would turn round within a step, the contact only just breaks away
        hardly = slides & ~(jnp.abs(spent / r + rate) <= 0.5 * jnp.abs(rate))
    stops, stop = _stops(problem, segment, never, iterations, broke)
    then = jnp.where(slides, escape / nonzero(r), 0)[:, None]
    way = -heading((force + then * (force_end - force))[:, 1:])
    return Ends(release, escape, stop, loose, slides, stops, way, lax.stop_gradient(hardly))


def spare(place: Place, force: Array, sign: Array) -> Array:
    """Returns the room (m,) that forces (m, 1 + k) leave to the limit of static friction: mu F_n - |F_t|.

    In the plane ``sign`` (m, 1) is the sign of the tangential force, with which |F_t| = sign F_t is smooth.
    """
    tangent = sign * force[:, 1:] if sign.shape[1] == 1 else length(force[:, 1:])
    return place.cones.at_rest * force[:, 0] - tangent[:, 0]


def _escapes(at_state: Callable, segment: Segment, slides: Array, guess: Array, sign: Array) -> tuple[Array, Array]:
    """Refines the times ``guess`` (m,) at which the contacts ``slides`` (m,) break away if contact forces are linear in time.

    The first contact breaks away when the force, solved for at each time, reaches the limit of static friction; that time has the derivatives of the
    implicit function. ``at_state`` as of `ends`. Returns the times (m,), and the rate () at that time of the room that `spare` gives for the first contact, with ``sign``.
    """
    path, did, r = segment.path, segment.did, segment.path.r
    guess = lax.stop_gradient(guess)
    first = leads(guess)

    def at(path: Path, s: Array) -> tuple[Array, Array]:
        def room(s: Array) -> Array:
            shift, v = path.along(s)
            now = path.t + s, path.q + shift, v
            place = Place.at(at_state(*now), *now, path.args, segment.here.frame)
            x = place.forces(did, segment.force, did.direction)
            return jnp.sum(jnp.where(first, spare(place, x, sign), 0))

        return jax.jvp(room, (s,), (jnp.ones_like(s),))

    time = find_falling_zero(at, path, jnp.min(guess), r, jnp.any(slides), SECANTS)
    with_first = slides & (guess <= jnp.min(guess) + at_once(r))
    found = jnp.where(with_first, time, jnp.where(slides, jnp.maximum(guess, time), guess))
    return found, lax.stop_gradient(at(lax.stop_gradient(path), lax.stop_gradient(time))[1])


def find_falling_zero(at: Callable, path: Path, guess: Array, r: Array, some: Array, iterations: int) -> Array:
    """Finds the time () in [0, r] near a ``guess`` at which a function falls through zero on a path, with two derivatives.

    ``at(path, s)`` gives the value and the rate of the function; ``some`` (): whether there is such a time; ``iterations``: of Newton's method.
    """
    frozen = lax.stop_gradient(path)
    time = zero_near(at, frozen, guess, r, iterations)
    _, rate = at(frozen, time)
    transversal = lax.stop_gradient(some & (rate < 0))

    def implicit(s: Array) -> Array:
        value, rate = at(path, s)
        change = (value - lax.stop_gradient(value)) / jnp.where(transversal, rate, 1)
        return jnp.where(transversal, s - change, time)

    return graft(time, implicit(implicit(time)))


def zero_near(at: Callable, path: Path, guess: Array, r: Array, iterations: int) -> Array:
    """As `find_falling_zero`, without derivatives."""

    def improve(_: Any, s: Array) -> Array:
        value, rate = at(path, s)
        return jnp.clip(s - jnp.where(rate < 0, value / jnp.where(rate < 0, rate, -1), 0), 0, r)

    return lax.stop_gradient(lax.fori_loop(0, iterations, improve, jnp.minimum(guess, r)))


def _stops(problem: Problem, segment: Segment, never: Array, iterations: int, broke: Array) -> tuple[Array, Array]:
    """Finds the contacts (m,) whose slip vanishes on the path, and the times (m,): for the first one with the derivatives of the implicit function.

    A contact that ``broke`` (m,) away slightly too early, by the error of forces that are linear in time, is pushed back for a short time: that does
    not count as stopping.
    """
    (path, here, there, did, force, *_), r = segment, segment.path.r
    along = lambda x: jnp.sum(did.direction * x, axis=1)
    # the guess has no derivative: by the length of a path of length zero, which lanes follow after the last event of a step, it would be NaN
    frozen, r = lax.stop_gradient((path, r))
    s, b = (lax.stop_gradient(along(x)) for x in (here.slip, here.cones.velocity(force)[:, 1:]))
    s, end = jnp.maximum(s, 0), along(lax.stop_gradient(frozen.slip(problem, r, here.frame)))
    c = (end - s - b * r) / nonzero(r) ** 2
    slips = did.mode == SLIP
    small = jnp.maximum(here.slip_rounding(r), there.slip_rounding(r))
    dips = double_crossing((s, b, c), r, ~slips | broke, small)
    stops = slips & ((end < -small) | dips)
    guess = jnp.where(stops, jnp.clip(first_zero(s, b, c, r), 0, r), never)
    first = leads(guess)
    of_first = lambda x: jnp.sum(jnp.where(first, along(x), 0))

    def at(path: Path, s: Array) -> tuple[Array, Array]:
        value, rate = jax.jvp(lambda s: path.slip(problem, s, here.frame), (s,), (jnp.ones_like(s),))
        return of_first(value), of_first(rate)

    # slips that vanish at the same time, as those of the feet of one body, get the time of the first
    found = find_falling_zero(at, path, jnp.min(guess), r, jnp.any(stops), iterations)
    with_first = stops & (guess <= jnp.min(guess) + at_once(r))
    return stops, jnp.where(with_first, found, jnp.where(stops, jnp.maximum(guess, found), never))


def only_just(segment: Segment, mode_ends: Ends, h: Array, broke: Array) -> Array:
    """Finds contacts (m,) that only just stop slipping, or only just do not, so that the derivative is doubtful.

    With static friction it also finds those that only just break away, or only just do not. Contacts that ``broke`` (m,) away at the start of the
    path do not count as stopping.
    """
    path, here, there, did, force, force_end, _ = lax.stop_gradient(segment[:7])
    r = path.r
    slips = here.slip, here.cones.velocity(force)[:, 1:], there.slip
    s, b, end = (jnp.sum(did.direction * x, axis=1) for x in slips)
    bend = (end - s - b * r) / r**2
    # without friction no force changes with the slip
    others = (did.mode != SLIP) | broke | (here.cones.at_rest <= 0)
    stops = near_grazing((s, b, bend), r, h, others, here.slip_rounding(span(h, r.dtype)))
    static, scale = here.cones.static, here.cones.scales()
    if static is None:
        return stops
    room, room_end = (scale * spare(p, x, jnp.sign(x[:, 1:])) for p, x in ((here, force), (there, force_end)))
    change = jnp.abs(room_end - room)
    # contacts at rest whose room to the limit is as small as its change in two steps, though it grows
    sticks = (did.mode == STICK) & ~mode_ends.slides & (room <= 2 * h / nonzero(r) * change) & (room_end >= room)
    return stops | sticks | mode_ends.hardly
