"""Steps of `EventCorrected` with Coulomb's friction: where slip stops or turns round, and contacts break away, is located as impacts are.

Between events every contact is open, sticks or slips (one way in the plane; in space see `slip_in_space`), and the path is a cubic, as without friction. An event ends it where a gap closes, where the
force of a contact, linear in time, becomes one of pulling or leaves the cone of static friction, or where a slip vanishes: its time is differentiated by the
implicit function theorem, and what contacts do behind it follows from Coulomb's law for accelerations, or, at an impact, for velocities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.derivative_rules import graft
from ..contact.cone_solver import frictional_impulses
from ..contact.cones import OPEN, SLIP, STICK, ConeProblem, dependent, direction, jams, length
from ..contact.laws import ContactLaw
from ..contact.static_friction import cones_in_act
from ..friction import FrictionInfo, Slip
from ..linearisation import Metric, gap_derivatives, joint_acceleration, linearise, span
from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from ..switches import Kinks
from .base import JointInfo, add_compensated, gradient_status, mass_status, restitution_status
from .events import Event, View, behind, impulses_of, lasting_at_end, met_together, noise, nonzero, shared
from .frictional import Balance
from .joints import put_on_joints
from .paths import STEEP, Path, double_crossing, near_grazing
from .slip_in_space import turning_forces

SECANTS = 2  # iterations for the time at which a contact breaks away, from that of forces linear in time
BRIEF = (
    8  # steps of flight under the largest acceleration of a gap, within which it is asked whether a contact falls back
)
SHARP = 1e-12  # relative accuracy of percussions
NEARLY = 0.1  # of its slip at the start of a path in space, up to which a contact keeps its direction to the end
TURNED = 0.88  # cosine of the angle by which slip in space turns in a step, below which it is not resolved


class Place(NamedTuple):
    """Contacts (m,) at one instant: `View`; ``cones``, whose offset are the accelerations of gaps and slips without contact forces; slips (m, k), their ``noise`` (m,),
    and the metric."""

    view: View
    cones: ConeProblem
    slip: Array
    noise: Array
    metric: Metric

    @classmethod
    def at(cls, problem: Problem, t: Array, q: Array, v: Array, args: Any) -> Place:
        metric = Metric.at(problem, q, args, t)
        free, joint_force = joint_acceleration(problem, metric, t, q, v, args)
        contacts, slip = linearise(problem, metric, t, q, args), Slip.at(problem, metric, t, q, args)
        rates = gap_derivatives(problem, t, q, v, args)
        along = lambda t, q: problem.slip_velocity(t, q, v, args)
        _, swerve = jax.jvp(along, (t, q), (jnp.ones_like(t), v))
        rubbing = contacts._replace(slip=slip._replace(velocity=slip.jacobian @ free + swerve))
        cones = ConeProblem.of(rubbing, contacts.velocity(free) + rates[1])
        view = View(contacts, free, *rates, metric.joints, joint_force)
        return cls(view, cones, slip.of(v), slip_noise(slip, v), metric)

    def moving(self, h: Array) -> Array:
        """Contacts (m,) whose slip is more than rounding, of their velocity and of its change in a step h; without derivatives."""
        eps, accelerations = float(jnp.finfo(self.slip.dtype).eps), length(self.cones.offset[:, 1:])[:, 0]
        return lax.stop_gradient(length(self.slip)[:, 0] > self.noise + 1e3 * eps * h * accelerations)

    def decide(self, closed: Array, towards: Array, near: Array) -> tuple[Array, FrictionInfo]:
        """Forces (m, 1 + k), and what the closed contacts (m,) do: those with a direction ``towards`` (m, k) slip that way, of others Coulomb's law decides; without derivatives.

        One whose force is rounding is open: it neither sticks nor slips. Of several forces that obey the law it is those ``near`` (m, 1 + k).
        """
        place = lax.stop_gradient(self)
        balance = Balance(place.metric, place.view.free, place.cones, place.velocity())
        _, force, did = balance.solve(closed, *lax.stop_gradient((towards, near)))
        acts = place.cones.scales() * force[:, 0] > place.rounding()
        mode, way = jnp.where(acts, did.mode, OPEN), jnp.where(acts[:, None], did.direction, 0)
        return jnp.where(acts[:, None], force, 0), did._replace(mode=mode, direction=way)

    def velocity(self) -> Array:
        """Velocities (m, 1 + k) of gaps and slips."""
        return jnp.concatenate([self.view.gap_velocity[:, None], self.slip], axis=1)

    def rounding(self) -> Array:
        """Round-off (m,) of accelerations of gaps and slips."""
        view = self.view
        return noise(view.contacts, view.free, jnp.abs(view.gap_acceleration) + length(self.cones.offset[:, 1:])[:, 0])

    def forces(self, did: FrictionInfo, near: Array, towards: Array) -> Array:
        """Forces (m, 1 + k) of contacts in known modes, found from others ``near`` them, with two derivatives; contacts slip ``towards`` (m, k), or begin to
        where that is zero."""
        turning = towards.shape[1] > 1
        start = lax.stop_gradient(self).cones.in_modes(*lax.stop_gradient((near, did.mode, towards)), turning=turning)
        return self.cones.in_modes(start, did.mode, towards, times=2, turning=turning)

    def forces_after(self, here: Place, r: Array, did: FrictionInfo, near: Array, towards: Array, a: Array) -> Array:
        """`forces` at the end of a path over a time r that begins ``here`` with the acceleration a (d,): in space each contact slips as it does then.

        The direction is that of the slip under the mean of both accelerations: however slow the slip, it does not turn too far. One that stops on
        the path, or nearly so, keeps its direction.
        """
        if towards.shape[1] == 1:
            return self.forces(did, near, towards)
        m, k = self.slip.shape
        slips, kept = (did.mode == SLIP)[:, None], jnp.where(towards != 0, towards, did.direction)
        turn = (self.cones.rows @ (self.view.free - a)).reshape(m, 1 + k)[:, 1:]
        tangent = jnp.where(slips, 2 / nonzero(r) * self.slip + turn, self.cones.offset[:, 1:])
        ahead = self._replace(cones=self.cones._replace(offset=self.cones.offset.at[:, 1:].set(tangent)))
        frozen, kept_now = lax.stop_gradient((ahead.cones, kept))
        # the impulse that would stop a contact tells where it slips to without it
        stuck = frozen.in_modes(lax.stop_gradient(near), jnp.minimum(did.mode, STICK), kept_now)
        onwards = -direction(stuck[:, 1:])
        start = frozen.in_modes(stuck, did.mode, jnp.where(slips, onwards, kept_now))
        along = lambda way, x: jnp.sum(way * x, axis=1, keepdims=True)
        speed, before = along(onwards, frozen.velocity(start)[:, 1:]), along(did.direction, here.slip)
        goes_on = slips & (0.5 * r * speed > lax.stop_gradient(NEARLY * jnp.maximum(before, 0)))
        kept = jnp.where(goes_on, onwards, kept)
        start = frozen.in_modes(start, did.mode, lax.stop_gradient(kept))
        return turning_forces(ahead.cones, start, did.mode, goes_on, kept)


def slip_noise(slip: Slip, v: Array) -> Array:
    """Round-off (m,) of slips at v (d,)."""
    terms = jnp.abs(slip.jacobian) @ jnp.abs(v) + jnp.abs(slip.drift)
    return lax.stop_gradient(1e3 * jnp.finfo(v.dtype).eps * jnp.max(terms, axis=1))


def heading(slip: Array) -> Array:
    """Directions (m, k) of slips (m, k); a sign, in the plane."""
    return lax.stop_gradient(jnp.sign(slip)) if slip.shape[1] == 1 else direction(slip)


def at_once(r: Array) -> Array:
    """Time within which events on a path over a time r are one."""
    return max(1e-9, 64 * float(jnp.finfo(r.dtype).eps)) * r


class Progress(NamedTuple):
    """Progress within a step: time since its start, state, and totals to report.

    ``rests`` (m,): contacts whose slip is zero but for rounding; ``breaks`` (m, k): the direction in which one of them has just broken away, else 0;
    ``force`` (m, 1 + k) at the end of the last path, without derivatives; ``impulse`` (m, 1 + k); ``met`` (m,): contacts with an impact.
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
    joints: JointInfo | None = None


class Segment(NamedTuple):
    """A path and its two ends, what the contacts do on it (``did``), their forces there (m, 1 + k), and impulses (m, 1 + k) that take to rest what sticks from its start."""

    path: Path
    here: Place
    there: Place
    did: FrictionInfo
    force: Array
    force_end: Array
    kick: Array

    def impulse(self, s: Array) -> Array:
        """Impulses (m, 1 + k) of forces that are linear in time, up to time s."""
        return self.kick + s * (self.force + (0.5 * (s / nonzero(self.path.r))) * (self.force_end - self.force))


class Ends(NamedTuple):
    """Times (m,) at which contacts let go, break away and stop, twice a step and more where they do not on the path; and masks (m,) of what they would do, and of those
    that ``hardly`` break away; ``way`` (m, k) in which they would slip."""

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


def turn_on(
    here: Place, h: Array, progress: Progress, did: FrictionInfo, towards: Array
) -> tuple[FrictionInfo, Array, Array]:
    """What contacts in space do that turned too fast to be followed, so that they seemed to stop, and whether there are any: they slip as they are."""
    speed, little = length(here.slip)[:, 0], h * length(here.cones.offset[:, 1:])[:, 0]
    begins = (did.mode == SLIP) & progress.rests & ~jnp.any(progress.breaks != 0, axis=1)
    turned = lax.stop_gradient(begins & (speed > here.noise + 1e-6 * little))
    towards = jnp.where(turned[:, None], heading(here.slip), towards)
    way = jnp.where(turned[:, None], lax.stop_gradient(towards), did.direction)
    return did._replace(direction=way), towards, jnp.any(turned)


def follow(
    problem: Problem, t: Array, r: Array, h: Array, progress: Progress, args: Any
) -> tuple[Segment, Array, Array]:
    """The path to the end of a step, over a time r; which contacts (m,) stay closed on it; status bits."""
    q, v, closed = progress.q, progress.v, progress.closed
    here = Place.at(problem, t, q, v, args)
    moves = here.moving(h) & ~progress.rests
    towards = jnp.where(moves[:, None], heading(here.slip), progress.breaks)
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
    there = Place.at(problem, t + r, q + r * (v + (0.5 * r) * a), v + r * a, args)
    force_end = there.forces_after(here, r, did, force, towards, a)
    a_end = there.view.free + there.cones.response @ force_end.ravel()
    segment = Segment(Path(t, r, q, v, a, a_end - a, args), here, there, did, force, force_end, kick)
    acts = did.mode != OPEN
    accelerations = lax.stop_gradient(here.cones.velocity(force))
    tolerated = 1e3 * noise(here.view.contacts, here.view.free, here.view.gap_acceleration)
    # beyond Painleve's bound there may be no accelerations that obey the law
    pulls = here.cones.scales() * force[:, 0] < -here.rounding()
    wrong = closed & lax.stop_gradient((accelerations[:, 0] < -tolerated) | pulls)
    matrix = lax.stop_gradient(here.cones.delassus())
    mu = lax.stop_gradient(here.cones.friction)
    status = as_status(jnp.any(wrong), Status.PROJECTION_NOT_CONVERGED)
    status |= as_status(jnp.any((acts | wrong) & jams(matrix, mu)), Status.FRICTION_JAMMED)
    status |= as_status(dependent(matrix, did.mode, mu), Status.IMPULSES_NOT_UNIQUE)
    if towards.shape[1] > 1:
        ahead = -jnp.sum(did.direction * direction(lax.stop_gradient(force_end[:, 1:])), axis=1)
        steep = (did.mode == SLIP) & (mu > 0) & (ahead < TURNED)
        status |= as_status(turned | jnp.any(steep), Status.EVENTS_UNRESOLVED)
    return segment, closed & (acts | (accelerations[:, 0] <= tolerated)), status


def ends(problem: Problem, segment: Segment, h: Array, iterations: int) -> Ends:
    """Where the contacts' modes end on a path."""
    (_, here, there, did, force, force_end, _), r = segment, segment.path.r
    never, rounding = 2 * h, there.rounding()
    scale = lax.stop_gradient(there.cones.scales())
    loose = (did.mode != OPEN) & (scale * force_end[:, 0] < -rounding)
    fall = force[:, 0] - force_end[:, 0]
    release = jnp.where(loose, r * force[:, 0] / jnp.where(loose, fall, 1), never)
    # static friction, against the force at the end
    sign = lax.stop_gradient(direction(force_end[:, 1:]))
    room, room_end = (spare(p, x, sign) for p, x in ((here, force), (there, force_end)))
    slides = (did.mode == STICK) & (scale * room_end < -rounding)
    spent = jnp.where(slides, room - room_end, 1)
    escape = jnp.where(slides, r * jnp.maximum(room, 0) / spent, never)
    hardly = jnp.zeros_like(slides)
    if there.cones.static is not None:
        # the force jumps then
        escape, rate = _escapes(problem, segment, slides, escape, sign)
        # one that turns away within a step only just breaks away
        hardly = slides & ~(jnp.abs(spent / r + rate) <= 0.5 * jnp.abs(rate))
    stops, stop = _stops(problem, segment, never, iterations)
    then = jnp.where(slides, escape / nonzero(r), 0)[:, None]
    way = -heading((force + then * (force_end - force))[:, 1:])
    return Ends(release, escape, stop, loose, slides, stops, way, lax.stop_gradient(hardly))


def spare(place: Place, force: Array, sign: Array) -> Array:
    """What is left (m,) of static friction under forces (m, 1 + k), whose tangential part has the ``sign`` (m, k) in the plane."""
    tangent = sign * force[:, 1:] if sign.shape[1] == 1 else length(force[:, 1:])
    return place.cones.at_rest * force[:, 0] - tangent[:, 0]


def _escapes(problem: Problem, segment: Segment, slides: Array, guess: Array, sign: Array) -> tuple[Array, Array]:
    """When contacts (m,) break away: of the first one where its force does, with the derivatives of the implicit function; and the rate () of its room then."""
    path, did, r = segment.path, segment.did, segment.path.r
    guess = lax.stop_gradient(guess)
    first = jnp.arange(len(slides)) == jnp.argmin(guess)

    def at(path: Path, s: Array) -> tuple[Array, Array]:
        def room(s: Array) -> Array:
            shift, v = path.along(s)
            place = Place.at(problem, path.t + s, path.q + shift, v, path.args)
            x = place.forces(did, segment.force, did.direction)
            return jnp.sum(jnp.where(first, spare(place, x, sign), 0))

        return jax.jvp(room, (s,), (jnp.ones_like(s),))

    time = located(at, path, jnp.min(guess), r, jnp.any(slides), SECANTS)
    with_first = slides & (guess <= jnp.min(guess) + at_once(r))
    found = jnp.where(with_first, time, jnp.where(slides, jnp.maximum(guess, time), guess))
    return found, lax.stop_gradient(at(lax.stop_gradient(path), lax.stop_gradient(time))[1])


def located(at: Callable, path: Path, guess: Array, r: Array, some: Array, iterations: int) -> Array:
    """The time () in [0, r] near a ``guess`` at which a function falls through zero on a path, ``at(path, s)`` its value and rate, with two derivatives."""
    frozen = lax.stop_gradient(path)

    def improve(_: Any, s: Array) -> Array:
        value, rate = at(frozen, s)
        return jnp.clip(s - jnp.where(rate < 0, value / jnp.where(rate < 0, rate, -1), 0), 0, r)

    time = lax.stop_gradient(lax.fori_loop(0, iterations, improve, jnp.minimum(guess, r)))
    _, rate = at(frozen, time)
    transversal = lax.stop_gradient(some & (rate < 0))

    def implicit(s: Array) -> Array:
        value, rate = at(path, s)
        change = (value - lax.stop_gradient(value)) / jnp.where(transversal, rate, 1)
        return jnp.where(transversal, s - change, time)

    return graft(time, implicit(implicit(time)))


def _stops(problem: Problem, segment: Segment, never: Array, iterations: int) -> tuple[Array, Array]:
    """Which slips (m,) vanish on the path, and when: of the first one with the derivatives of the implicit function."""
    (path, here, there, did, force, *_), r = segment, segment.path.r
    along = lambda x: jnp.sum(did.direction * x, axis=1)
    frozen = lax.stop_gradient(path)
    s, b = (lax.stop_gradient(along(x)) for x in (here.slip, here.cones.velocity(force)[:, 1:]))
    s, end = jnp.maximum(s, 0), along(lax.stop_gradient(frozen.slip(problem, r)))
    c = (end - s - b * r) / r**2
    slips = did.mode == SLIP
    small = jnp.maximum(here.noise, there.noise)
    dips = double_crossing((s, b, c), r, ~slips, small)
    stops = slips & ((end < -small) | dips)
    root = jnp.sqrt(jnp.maximum(b * b - 4 * c * s, 0))
    falls = (b >= 0) & (c < 0)
    guess = jnp.where(b < 0, 2 * s / jnp.where(b < 0, root - b, 1), (b + root) / jnp.where(falls, -2 * c, 1))
    guess = jnp.where(stops, jnp.clip(guess, 0, r), never)
    first = jnp.arange(len(slips)) == jnp.argmin(guess)
    of_first = lambda x: jnp.sum(jnp.where(first, along(x), 0))

    def at(path: Path, s: Array) -> tuple[Array, Array]:
        value, rate = jax.jvp(lambda s: path.slip(problem, s), (s,), (jnp.ones_like(s),))
        return of_first(value), of_first(rate)

    # others that vanish then, as those of the feet of one body, do it with the first
    found = located(at, path, jnp.min(guess), r, jnp.any(stops), iterations)
    with_first = stops & (guess <= jnp.min(guess) + at_once(r))
    return stops, jnp.where(with_first, found, jnp.where(stops, jnp.maximum(guess, found), never))


class Struck(NamedTuple):
    """Velocity (d,) behind the impact law, impulses (m, 1 + k), contacts (m,) that ``lands`` to last, that ``opened``, and whose slip ``rests``; gap velocities up to which
    an impact is too ``slow`` to be resolved; the largest acceleration of a gap without forces, ``pull`` (); ``error`` (); status ()."""

    v: Array
    impulse: Array
    lands: Array
    opened: Array
    rests: Array
    slow: Array
    pull: Array
    error: Array
    status: Array


def strike(
    problem: Problem, motion: Motion, event: Event, slip: Slip, impact: Array, among: Array, stuck: Array, way: Array
) -> Struck:
    """Newton's law and Coulomb's for the contacts of an ``impact`` (m,) with those ``among`` (m,), of which ``stuck`` (m,) stuck and others slip ``way`` (m, k)."""
    (t, q, v, metric, contacts, speed), h, args = event, motion.h, motion.args
    frozen = lax.stop_gradient((t, q, v, args))
    free, _ = joint_acceleration(problem, lax.stop_gradient(metric), *frozen)
    _, turning = gap_derivatives(problem, *frozen)
    normal = contacts.velocity(free)
    slow = lax.stop_gradient(2 * h * (jnp.abs(normal) + jnp.abs(turning)))
    e = jnp.broadcast_to(motion.e, speed.shape)
    lands = lax.stop_gradient(impact & (e * jnp.abs(speed) <= slow) & ((e <= 0) | (normal + turning < 0)))
    offset = jnp.where(impact & ~lands, (1 + e) * speed, speed)
    cones = ConeProblem.of(contacts._replace(slip=slip._replace(velocity=slip.of(v))), offset)
    unit = lax.stop_gradient(jnp.max(jnp.where(among[:, None], jnp.abs(cones.offset), 0), initial=0.0))
    matrix, none = cones.delassus(), jnp.zeros_like(cones.offset)
    resolution = 1e3 * SHARP * unit + slip_noise(slip, v)

    def solve(cones: ConeProblem) -> tuple[Array, Array, Array]:
        return frictional_impulses(matrix, cones.offset, cones.friction, none, among, SHARP * unit)

    if cones.static is not None:
        mode = jnp.where(among & ~impact, jnp.where(stuck, STICK, SLIP), OPEN).astype(jnp.int32)
        before = FrictionInfo(none[:, 1:], mode, jnp.where((mode == SLIP)[:, None], way, 0))
        cones, _ = cones_in_act(cones, before, lambda of: of.modes(solve(of)[0], resolution))
    x, _, error = solve(cones)
    change = (matrix @ x.ravel()).reshape(x.shape)
    after = speed + change[:, 0]
    terms = jnp.abs(v) + jnp.abs(cones.response) @ jnp.abs(x).ravel()
    opened = among & (after > noise(contacts, terms, speed))
    work = lax.stop_gradient(jnp.sum(x * (jnp.concatenate([speed[:, None], slip.of(v)], axis=1) + 0.5 * change)))
    scale = lax.stop_gradient(jnp.sum(jnp.abs(x * change)))
    acts = lax.stop_gradient(x[:, 0]) > 0
    mu = lax.stop_gradient(cones.friction)
    allowed = 1e-9 * unit + jnp.finfo(v.dtype).eps ** 0.75 * unit
    status = (
        as_status(~(error <= allowed), Status.PROJECTION_NOT_CONVERGED)
        | as_status(jnp.any(acts & jams(lax.stop_gradient(matrix), mu)), Status.FRICTION_JAMMED)
        | as_status((work > jnp.finfo(v.dtype).eps ** 0.5 * scale) & jnp.any(e > 0), Status.ENERGY_GAINED)
    )
    # an impulse near the edge of its cone, or a slip that all but vanishes, may be of the other kind beside this motion
    w = lax.stop_gradient(cones.velocity(x))
    own = lax.stop_gradient(cones.scales())
    room = own * (mu * x[:, 0] - length(x[:, 1:])[:, 0])
    slack = 2e-3 * h * length(slip.jacobian @ lax.stop_gradient(free))[:, 0] + resolution
    speeds = length(w[:, 1:])[:, 0]
    moves = speeds > resolution
    near = acts & (mu > 0) & jnp.where(moves, speeds <= slack, room <= slack)
    status |= as_status(jnp.any(near & impact), Status.DERIVATIVE_FRICTION)
    return Struck(
        v + cones.response @ x.ravel(),
        x,
        lands,
        opened,
        (acts | stuck) & ~moves,
        slow,
        jnp.max(slow) / (2 * h),
        error,
        status,
    )


def braking(rows: ConeProblem, velocity: Array, kept: Array, still: Array) -> Array:
    """Impulses (m, 1 + k) that take the gap velocities of contacts ``kept`` (m,) to zero, and slips too of those that are ``still`` (m,)."""
    cones = rows._replace(offset=velocity, friction=jnp.zeros_like(rows.friction))
    mode = jnp.where(kept, jnp.where(still, STICK, SLIP), OPEN)
    return cones.in_modes(jnp.zeros_like(velocity), mode, jnp.ones_like(velocity[:, 1:]))


def fall_back(
    problem: Problem, motion: Motion, event: Event, slip: Slip, rows: ConeProblem, found: Struck, closed: Array
) -> Struck:
    """What an impact comes to, with contacts kept that it opens so slowly that they close again before the flight is resolved.

    A body rocks between two contacts like this, with less at each impact, and comes to rest on both.
    """
    if len(closed) < 2:
        return found
    (t, q, _, _, contacts, _), h, args = event, motion.h, motion.args
    after = jnp.concatenate([contacts.gap_velocity(found.v)[:, None], slip.of(found.v)], axis=1)

    def falling() -> Array:
        balance = Balance.at(problem, t, q, found.v, args)
        towards = jnp.where(found.rests[:, None], 0, direction(after[:, 1:]))
        _, force, _ = balance.solve((closed | found.lands) & ~found.opened, lax.stop_gradient(towards))
        normal = balance.cones.velocity(force)[:, 0]
        sinks = normal < -noise(contacts, balance.free, balance.cones.offset[:, 0])
        return found.opened & sinks & (lax.stop_gradient(after[:, 0]) <= 2 * h * jnp.abs(normal))

    slowly = found.opened & (after[:, 0] <= BRIEF * h * found.pull)
    back = lax.cond(jnp.any(slowly), falling, lambda: jnp.zeros_like(closed))
    kept = (closed | found.lands | back) & (back | ~found.opened)
    rest = jnp.where(jnp.any(back), braking(rows, after, kept, found.rests), 0)
    status = found.status | as_status(jnp.any(back), Status.DERIVATIVE_ZENO)
    v, impulse = found.v + rows.response @ rest.ravel(), found.impulse + rest
    return found._replace(v=v, impulse=impulse, lands=found.lands | back, opened=found.opened & ~back, status=status)


def arrive(
    problem: Problem,
    law: ContactLaw,
    motion: Motion,
    t: Array,
    progress: Progress,
    candidates: Array,
    allowed: Array,
    left: Array,
    stopped: Array,
    kinks: Kinks | None,
    idle: Array,
) -> Progress:
    """Treats the end of a path: lasting contacts back onto their surfaces, those at rest to rest, and the impact law for the candidates (m,)."""
    h, args, last = motion.h, motion.args, left == 0
    q, v, closed, did = progress.q, progress.v, progress.closed, progress.did
    event = Event.at(problem, t, q, v, args)
    contacts, speed = event.contacts, event.speed
    slip = Slip.at(problem, event.metric, t, q, args)
    near = contacts.gap <= allowed + 1e-6 * h * jnp.abs(speed)
    closed, struck = lasting_at_end(kinks, idle & (contacts.gap > allowed), event, closed, args)
    candidates, near = candidates | struck, near | struck
    candidates = candidates & (near | last)
    pulled = closed | candidates
    status = progress.status
    if len(closed) > 1:
        frozen = lax.stop_gradient((contacts, speed, problem.restitution_at(motion.e, speed, args)))
        pulled, past = lax.cond(last, lambda: behind(law, h, *frozen, closed), lambda: (pulled, jnp.array(False)))
        candidates = candidates | (pulled & ~closed)
        status |= as_status(past, Status.PENETRATION_DEEP)
    oblique = ConeProblem.of(contacts._replace(slip=slip), speed).oblique()
    impact, beside, together = met_together(contacts, oblique, v, speed, closed, candidates, near, left)
    others = impact & ~candidates
    delay = jnp.where(others, (contacts.gap - lax.stop_gradient(contacts.gap)) / jnp.where(others, -speed, 1), 0)
    gap = jnp.where(others, lax.stop_gradient(contacts.gap), contacts.gap)
    q = q + contacts.jump(impulses_of(contacts, -gap, pulled | (impact & ~last)))
    # what a path leaves of the velocities of gaps that last and of slips at rest
    still = closed & (did.mode == STICK) & ~jnp.any(progress.breaks != 0, axis=1)
    rows = ConeProblem.of(contacts._replace(slip=slip._replace(velocity=slip.of(v))), speed)
    left_over = braking(rows, rows.offset, closed, still)
    v = v + rows.response @ left_over.ravel()
    event = event._replace(q=q, v=v, speed=contacts.gap_velocity(v))
    e = problem.restitution_at(motion.e, event.speed, args)
    involved = (closed | impact | beside) & jnp.any(impact)
    motion = motion._replace(e=e)
    found = strike(problem, motion, event, slip, impact, involved, still | stopped, did.direction)
    strikes = jnp.any(impact)
    found = fall_back(problem, motion, event, slip, rows, found, closed)
    choose = lambda x, y: jnp.where(strikes, x, y)
    q = q - choose(rows.response @ (found.impulse * delay[:, None]).ravel(), 0)
    v = choose(found.v, v)
    zeno = impact & found.lands & (e > 0)
    grazing = impact & ~zeno & (event.speed >= -found.slow)
    pairs = oblique & impact[:, None] & (impact | progress.met)[None, :]
    through = shared(
        oblique, impact & ~found.lands, closed | impact | beside, jnp.zeros_like(closed), found.impulse[:, 0], e
    )
    status |= (
        jnp.where(strikes, found.status, 0)
        | mass_status(event.metric)
        | as_status(last & jnp.any(impact & ~zeno & (event.speed < -found.slow)), Status.EVENTS_UNRESOLVED)
        | as_status(jnp.any(zeno), Status.DERIVATIVE_ZENO)
        | as_status(jnp.any(grazing), Status.DERIVATIVE_GRAZING)
        | as_status(through, Status.IMPULSES_COUPLED)
        | as_status(jnp.any(pairs) | through | (together & (jnp.sum(impact) > 1)), Status.DERIVATIVE_SIMULTANEOUS)
    )
    if callable(problem.restitution):
        status |= restitution_status(e, impact)
    impulse = progress.impulse + left_over + jnp.where(strikes, found.impulse, 0)
    joints = progress.joints
    if joints is not None:
        told = rows.rows.T @ (left_over + jnp.where(strikes, found.impulse, 0)).ravel()
        joints = joints._replace(impulse=joints.impulse + event.metric.joints.reaction(told))  # type: ignore[union-attr]
    closed = (closed | (found.lands & strikes)) & ~(found.opened & strikes)
    residual = jnp.maximum(progress.residual, jnp.where(strikes, found.error, 0))
    return progress._replace(
        q=q, v=v, closed=closed, impulse=impulse, residual=residual, met=progress.met | impact, status=status,
        breaks=jnp.where(strikes, 0, progress.breaks), rests=jnp.where(strikes, found.rests, still | stopped | jnp.any(progress.breaks != 0, axis=1)), joints=joints,
    )  # fmt: skip


def advance(
    scheme: Any,
    problem: Problem,
    law: ContactLaw,
    motion: Motion,
    start: Array,
    length: Array,
    progress: Progress,
    left: Array,
) -> Progress:
    """Follows the path to the next event, of which ``left`` may still be located, or to the end of the step, and treats it."""
    h, args, last = motion.h, motion.args, left == 0
    t, r = start + progress.elapsed, length - progress.elapsed
    segment, closed, failure = follow(problem, t, r, h, progress, args)
    path, here, there, did = segment[:4]
    allowed, taylor = here.view.roundoff(path.q, path.v, path.a, h), here.view.taylor(path.a)
    penetrating = ~closed & (lax.stop_gradient(path).gaps(problem, lax.stop_gradient(r))[0] < -allowed)
    impact, which, impact_time = scheme.find_impact(
        problem, path, taylor, closed, penetrating, allowed, span(h, path.q.dtype)
    )
    mode_ends = ends(problem, segment, h, scheme.newton)
    first = mode_ends.first
    passes = (first <= r) & ~last & ~(impact & (impact_time <= first))
    impact = impact & ~last & ~passes
    s = jnp.where(impact, impact_time, jnp.where(passes, first, r))
    shift, v = path.along(s)
    arrived, low = add_compensated(path.q, shift, progress.low)
    joints = progress.joints
    if joints is not None:
        landed = put_on_joints(problem, t + s, arrived, low, shift, here.view.joints, args, STEEP)
        arrived, low, v, failure = landed.q, landed.low, landed.velocity(v), failure | landed.status
        force, force_end = (_joint_forces(p, x) for p, x in ((here, segment.force), (there, segment.force_end)))
        held = s * (force + (0.5 * (s / nonzero(r))) * (force_end - force))
        joints = JointInfo(joints.impulse + held, jnp.maximum(joints.residual, landed.residual))

    now = jnp.stack([mode_ends.release, mode_ends.escape, mode_ends.stop]) <= first + at_once(h)
    released, escaped, stopped = passes & now
    missed = last & (mode_ends.stops | (mode_ends.slides & (problem.static_friction is not None)))
    status = progress.status | failure | as_status(jnp.any(missed), Status.EVENTS_UNRESOLVED)
    event = impact | passes
    progress = progress._replace(
        elapsed=jnp.where(event, progress.elapsed + s, length), q=arrived, low=low, v=v, closed=closed & ~released,
        breaks=jnp.where(escaped[:, None], mode_ends.way, 0),
        force=lax.stop_gradient(segment.force + (s / nonzero(r)) * (segment.force_end - segment.force)), impulse=progress.impulse + segment.impulse(s),
        events=progress.events + event.astype(jnp.int32), status=status, did=did, joints=joints,
    )  # fmt: skip
    candidates = jnp.where(last, penetrating, which & impact)
    moved = lax.stop_gradient(arrived - path.q)
    # a contact without a force may open on the way, where its surface curves away or a force changes
    opening = lax.stop_gradient(there.cones.velocity(segment.force_end)[:, 0])
    idle = (
        closed
        & (did.mode == OPEN)
        & (opening > noise(there.view.contacts, there.view.free, there.view.gap_acceleration))
    )
    kinks = Kinks.at(problem, t, path.q, args)
    progress = arrive(problem, law, motion, t + s, progress, candidates, allowed, left, stopped, kinks, idle)
    met = progress.met
    status = gradient_status(law, problem, here.metric, here.view.contacts, t, path.q, moved, met, args)
    status |= as_status(jnp.any(near_grazing(taylor, r, h, closed | met, allowed)), Status.DERIVATIVE_GRAZING)
    status |= as_status(jnp.any(_only_just(segment, mode_ends, h)), Status.DERIVATIVE_FRICTION)
    return progress._replace(status=progress.status | status)


def _only_just(segment: Segment, mode_ends: Ends, h: Array) -> Array:
    """Contacts (m,) that only just stop, or do not, as the derivative is another then; with static friction above that of slip those, too, that only just break away."""
    path, here, there, did, force, force_end, _ = lax.stop_gradient(segment)
    r = path.r
    slips = here.slip, here.cones.velocity(force)[:, 1:], there.slip
    s, b, end = (jnp.sum(did.direction * x, axis=1) for x in slips)
    bend = (end - s - b * r) / r**2
    stops = near_grazing((s, b, bend), r, h, did.mode != SLIP, here.noise)
    static, scale = here.cones.static, here.cones.scales()
    if static is None:
        return stops
    room, room_end = (scale * spare(p, x, jnp.sign(x[:, 1:])) for p, x in ((here, force), (there, force_end)))
    change = jnp.abs(room_end - room)
    # at rest from now on, or still, with a room that a step's change uses up, but does not
    sticks = (did.mode == STICK) & ~mode_ends.slides & (room <= 2 * h / nonzero(r) * change) & (room_end >= room)
    return stops | sticks | mode_ends.hardly


def _joint_forces(place: Place, force: Array) -> Array:
    """Forces (j,) of the joints, with forces (m, 1 + k) of the contacts."""
    joints: Any = place.view.joints
    return place.view.joint_force + joints.reaction(place.cones.rows.T @ force.ravel())


def held_velocity(problem: Problem, t: Array, h: Array, q: Array, v: Array, closed: Array, args: Any) -> Array:
    """The velocity v (d,) of a start, with the derivative of one with which contacts that stick do: the value is but for rounding."""
    here = Place.at(problem, t, q, v, args)
    towards = jnp.where(here.moving(h)[:, None], heading(here.slip), 0)
    _, did = here.decide(closed, towards, jnp.zeros_like(here.cones.offset))
    sticks = here.cones._replace(offset=here.velocity())
    mode = jnp.where(did.mode == STICK, STICK, OPEN)
    return v + here.cones.response @ sticks.in_modes(jnp.zeros_like(sticks.offset), mode, did.direction).ravel()


def rubbing_step(scheme: Any, problem: Problem, law: ContactLaw, motion: Motion, state: Any, r: Array) -> Progress:
    """What comes of a step over a time r, from event to event."""
    m = state.closed.shape[0]
    zero, none, q = jnp.zeros((), state.q.dtype), jnp.zeros((), jnp.int32), state.q
    begin = FrictionInfo.none(m, state.breaks.shape[1], q.dtype)
    progress = Progress(
        zero, q, state.low, state.v, state.closed, state.rests, state.breaks, state.force, jnp.zeros_like(state.force), zero, none,
        jnp.zeros(m, bool), none, begin, JointInfo.none(problem, q, motion.args),
    )  # fmt: skip
    start = motion.time(state.n)

    def move(carry: tuple[Progress, Array], _: None) -> tuple[tuple[Progress, Array], None]:
        progress, left = carry
        moved = lambda p: advance(scheme, problem, law, motion, start, r, p, left)
        return (lax.cond(progress.elapsed < r, moved, lambda p: p, progress), left - 1), None

    count = scheme.impacts if m else 0
    return lax.scan(move, (progress, none + count), None, length=count + 1)[0][0]
