"""Paths of `event_friction` between events: contacts are open, stick or slip one way, with contact forces that are linear in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.linalg import nonzero
from ..contact.friction.cones import OPEN, SLIP, STICK, could_jam, dependent, direction, jams, length
from ..events.rubbing_contacts import Place, braking, heading
from ..friction import STRAIGHT, FrictionInfo
from ..linearisation import noise
from ..problem import Problem
from ..scheme import JointInfo
from ..status import Status, as_status
from ..trials.pieces import Where
from .cubic_paths import Path
from .slip_in_space import turning_forces

NEARLY = (
    0.1  # fraction of the slip at the start of a path in space, below which a contact keeps its direction at the end
)
TURNED = 0.88  # cosine of the angle by which slip in space turns in a step, below which it is not resolved


def forces_after(
    there: Place, here: Place, r: Array, did: FrictionInfo, near: Array, towards: Array, a: Array
) -> Array:
    """As `Place.forces`, ``there`` at the end of a path over a time r that begins ``here`` with the acceleration a (d,).

    In space a contact slips in the direction of its slip at the end of the path, which follows from the mean of the accelerations at both ends,
    so that the direction does not turn too far however slow the slip is. A contact that stops on the path, or nearly so, keeps its direction.
    """
    if towards.shape[1] == 1:
        return there.forces(did, near, towards)
    m, k = there.slip.shape
    slips, kept = (did.mode == SLIP)[:, None], jnp.where(towards != 0, towards, did.direction)
    turn = (there.cones.rows @ (there.view.free - a)).reshape(m, 1 + k)[:, 1:]
    tangent = jnp.where(slips, 2 / nonzero(r) * there.slip + turn, there.cones.offset[:, 1:])
    ahead = there._replace(cones=there.cones._replace(offset=there.cones.offset.at[:, 1:].set(tangent)))
    frozen, kept_now = lax.stop_gradient((ahead.cones, kept))
    # the impulse that would stop a contact is opposite to the direction in which it slips without it
    stuck = frozen.in_modes(lax.stop_gradient(near), jnp.minimum(did.mode, STICK), kept_now)
    onwards = -direction(stuck[:, 1:])
    start = frozen.in_modes(stuck, did.mode, jnp.where(slips, onwards, kept_now))
    along = lambda way, x: jnp.sum(way * x, axis=1, keepdims=True)
    speed, before = along(onwards, frozen.velocity(start)[:, 1:]), along(did.direction, here.slip)
    goes_on = slips & (0.5 * r * speed > lax.stop_gradient(NEARLY * jnp.maximum(before, 0)))
    # slip that comes back on the line that it came on stops in between
    goes_on &= ~(lax.stop_gradient((before > 0) & (along(did.direction, onwards) < STRAIGHT)))
    kept = jnp.where(goes_on, onwards, kept)
    start = frozen.in_modes(start, did.mode, lax.stop_gradient(kept))
    return turning_forces(ahead.cones, start, did.mode, goes_on, kept)


class Progress(NamedTuple):
    """Carry of the loop over the paths of a step: time ``elapsed`` since the start of the step, the state at that time, and totals to report.

    ``rests`` (m,): contacts whose slip is zero up to rounding; ``breaks`` (m, k): directions in which contacts have just broken away, zero for
    others; ``force`` (m, 1 + k) at the end of the previous path, without derivatives; ``impulse`` (m, 1 + k) so far in the step; ``met`` (m,):
    contacts that had an impact in it; ``did``: modes of the contacts on the previous path; ``where``, the sides on which a force that jumps is taken,
    else None; ``frame`` (m, 2, d), in space: tangents at the start of the step, onto which those of the whole step are turned (`Slip.along_turned`);
    ``apart`` (m,): contacts whose slip has vanished together with that of another one to which nothing links them.
    """

    elapsed: Array
    q: Array
    low: Array | None
    v: Array
    closed: Array
    rests: Array
    breaks: Array
    force: Array
    impulse: Array
    residual: Array
    events: Array
    met: Array
    status: Array
    did: FrictionInfo
    joints: JointInfo
    apart: Array
    where: Where | None = None
    frame: Array | None = None


class Segment(NamedTuple):
    """A path, with the contacts at its start (``here``) and at its end (``there``).

    The modes of contacts on it, ``did``; their forces (m, 1 + k) at the start, ``force``, and at the end, ``force_end``; the impulses ``kick``
    (m, 1 + k) at its start that remove the remaining slip of contacts that stick; the ``border`` of the force that it reaches (`crossings`); and the
    weights, at its start and end, of the forces on the other sides of borders on which it slides, None where it can slide on none.
    """

    path: Path
    here: Place
    there: Place
    did: FrictionInfo
    force: Array
    force_end: Array
    kick: Array
    border: Any
    parts: tuple

    def up_to(self, h: Array, rest: Array, last: Array, iterations: int) -> Segment:
        """Returns the segment cut at its border, if it reaches one within the ``rest`` () of a step h.

        ``last`` (): whether no more events are located, so that it is not cut; ``iterations``: of Newton's method for the time.
        """
        forces = self.force, self.force_end
        border, path, force_end = self.border.cut(self.path, forces, self.parts, rest, h, last, iterations)
        return self._replace(path=path, force_end=force_end, border=border)

    def impulse(self, s: Array) -> Array:
        """Returns the impulses (m, 1 + k) up to time s, of forces that are linear in time."""
        return self.kick + s * (self.force + (0.5 * (s / nonzero(self.path.r))) * (self.force_end - self.force))


def turn_on(
    here: Place, h: Array, progress: Progress, did: FrictionInfo, towards: Array
) -> tuple[FrictionInfo, Array, Array]:
    """Corrects the directions of contacts in space whose slip seemed to vanish on the previous path, but only turned faster than it resolved.

    ``progress`` marks these contacts as at rest, but their slip ``here`` is not zero. The modes ``did`` treat them as contacts that break away, in
    the direction of their acceleration, and ``towards`` (m, k), the directions of contacts that slip already, is zero for them. Returns ``did`` and
    ``towards`` with the directions in which they slip ``here``, and whether there are such contacts, ().
    """
    speed, little = length(here.slip)[:, 0], h * length(here.cones.offset[:, 1:])[:, 0]
    begins = (did.mode == SLIP) & progress.rests & ~jnp.any(progress.breaks != 0, axis=1)
    turned = lax.stop_gradient(begins & (speed > here.noise + 1e-6 * little))
    towards = jnp.where(turned[:, None], heading(here.slip), towards)
    way = jnp.where(turned[:, None], lax.stop_gradient(towards), did.direction)
    return did._replace(direction=way), towards, jnp.any(turned)


def follow(
    problem: Problem,
    t: Array,
    r: Array,
    h: Array,
    progress: Progress,
    args: Any,
    ahead: Callable[[Path], Any],
    sliding: Callable[[Array, Array, Array], tuple[Problem, Array | None]],
) -> tuple[Segment, Array, Array, Array]:
    """Makes the path from the state ``progress`` at time t over a time r, the rest of a step h, or to the first border of the force on it.

    ``ahead``: function from a path with constant acceleration to the `crossings.Border` that it meets first. ``sliding``: function from a state to the
    problem with the force there, and the weights of the forces across the borders on which the motion slides, None where it can slide on none.
    Returns the path with the contacts at its ends, a `Segment`; the contacts (m,) that stay closed on it; status bits; and the contacts (m,) that
    have jammed: beyond Painleve's bound no acceleration may satisfy the law, and there is no path.
    """
    q, v, closed = progress.q, progress.v, progress.closed
    of_here, part = sliding(t, q, v)
    here = Place.at(of_here, t, q, v, args, progress.frame)
    moves = here.moving(h) & ~progress.rests
    towards = slipping = jnp.where(moves[:, None], heading(here.slip), progress.breaks)
    near, did = here.decide(closed, towards, progress.force)
    kick, turned = jnp.zeros_like(near), jnp.array(False)
    if towards.shape[1] == 1:
        towards = did.direction
    else:
        did, towards, turned = turn_on(here, h, progress, did, towards)
        kick = braking(here.cones, here.velocity(), sticks := did.mode == STICK, sticks)
        v = v + here.cones.response @ kick.ravel()
    force = here.forces(did, near, towards)
    a = here.view.free + here.cones.response @ force.ravel()
    border = ahead(Path(t, r, q, v, a, jnp.zeros_like(a), args))
    r = border.reach(r)
    end = t + r, q + r * (v + (0.5 * r) * a), v + r * a
    of_there, part_end = sliding(*end)
    there = Place.at(of_there, *end, args, progress.frame)
    force_end = forces_after(there, here, r, did, force, towards, a)
    a_end = there.view.free + there.cones.response @ force_end.ravel()
    path, parts = Path(t, r, q, v, a, a_end - a, args), (part, part_end)
    segment = Segment(path, here, there, did, force, force_end, kick, border, parts)
    acts = did.mode != OPEN
    accelerations = lax.stop_gradient(here.cones.velocity(force))
    tolerated = 1e3 * noise(here.view.contacts, here.view.free, here.view.gap_acceleration)
    pulls = here.cones.scales() * force[:, 0] < -here.rounding()
    wrong = closed & lax.stop_gradient((accelerations[:, 0] < -tolerated) | pulls)
    matrix = lax.stop_gradient(here.cones.delassus())
    mu = lax.stop_gradient(here.cones.friction)
    beyond = jams(matrix, mu)
    jammed = wrong & beyond
    status = as_status(jnp.any(wrong) & ~jnp.any(jammed), Status.CONTACTS_NOT_SOLVED)
    lifts = closed & (did.mode == OPEN) & (accelerations[:, 0] > tolerated)
    status |= as_status(
        jnp.any(((acts | wrong) & beyond) | (lifts & could_jam(matrix, mu, slipping))), Status.FRICTION_JAMMED
    )
    status |= as_status(dependent(matrix, did.mode, mu), Status.IMPULSES_NOT_UNIQUE)
    if towards.shape[1] > 1:
        onwards = -jnp.sum(did.direction * direction(lax.stop_gradient(force_end[:, 1:])), axis=1)
        steep = (did.mode == SLIP) & (mu > 0) & (onwards < TURNED)
        status |= as_status(turned | jnp.any(steep), Status.EVENTS_UNRESOLVED)
    return segment, closed & (acts | jammed | (accelerations[:, 0] <= tolerated)), status, jammed
