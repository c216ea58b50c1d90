"""Impacts of contacts with friction: Newton's and Coulomb's laws, and contacts that are kept closed as an impact opens
them too slowly to resolve."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..contact.friction.cone_solver import frictional_impulses
from ..contact.friction.cones import OPEN, SLIP, STICK, ConeProblem, dependent, direction, jams, length
from ..contact.friction.pushed_contacts import impact_impulses
from ..contact.friction.static_friction import cones_in_act
from ..contact.laws import ContactLaw
from ..contacts import Contacts
from ..friction import FrictionInfo, Slip, distance_status
from ..linearisation import gap_derivatives, joint_acceleration, noise
from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from .acceleration_problem import AccelerationProblem
from .event_state import Event
from .impacts import Blow
from .rubbing_contacts import braking, slip_noise
from .short_flights import ShortFlights

BRIEF = 8  # times the largest acceleration of a gap without forces: with it contacts are tested for falling back
SHARP = 1e-12  # relative accuracy of percussions
MOST = 1e3  # times the impulses without friction: larger ones with it are of contacts that all but jam


def strike(
    problem: Problem,
    motion: Motion,
    flights: ShortFlights,
    event: Event,
    slip: Slip,
    impact: Array,
    candidates: Array,
    stuck: Array,
    way: Array,
    guess: Array,
) -> tuple[Blow, Array]:
    """Applies Newton's and Coulomb's laws to the contacts of an ``impact`` (m,) and to closed ones;
    ``candidates`` (m,) marks both.

    ``event``: the state at the impact; ``slip``: tangential rows there. Before the impact contacts ``stuck`` (m,)
    stick, and the other closed ones slip in the directions ``way`` (m, k), which matters for static friction. If
    several impulses satisfy the laws, those nearest to ``guess`` (m, 1 + k) are taken. Also returns the largest gap
    acceleration () without contact forces, with its terms.
    """
    (t, q, v, metric, contacts, speed), args = event, motion.args
    frozen = lax.stop_gradient((t, q, v, args))
    free, _ = joint_acceleration(problem, lax.stop_gradient(metric), *frozen)
    _, turning = gap_derivatives(problem, *frozen)
    normal = contacts.velocity(free) + turning
    slow = lax.stop_gradient(flights.slowest(jnp.abs(normal)))
    e = jnp.broadcast_to(motion.e, speed.shape)
    lands = lax.stop_gradient(impact & (e * jnp.abs(speed) <= slow) & ((e <= 0) | (normal < 0)))
    rebound = jnp.where(lands, e * jnp.abs(speed), 0)
    e = jnp.where(problem.impact_law.rebounding(impact & ~lands, candidates & ~lands), e, 0)
    cones = ConeProblem.of(contacts._replace(slip=slip._replace(velocity=slip.of(v))), speed)
    sizes = jnp.maximum(jnp.max(jnp.abs(cones.offset), axis=1), (1 + e) * jnp.abs(speed))
    unit = lax.stop_gradient(jnp.max(jnp.where(candidates, sizes, 0), initial=0.0))
    matrix, none = cones.delassus(), jnp.zeros_like(cones.offset)
    rounding = slip_noise(slip, v)
    resolution = 1e3 * SHARP * unit + rounding

    def solve(cones: ConeProblem) -> tuple[Array, ConeProblem, Array]:
        one = partial(frictional_impulses, tolerance=SHARP * unit)
        return impact_impulses(problem.impact_law, e, cones, one, matrix, guess, candidates)

    def modes(cones: ConeProblem, _: object) -> tuple[Array, Array, None]:
        x, cones, _error = solve(cones)
        return *cones.modes(x, resolution), None

    if cones.static is not None:
        mode = jnp.where(candidates & ~impact, jnp.where(stuck, STICK, SLIP), OPEN).astype(jnp.int32)
        before = FrictionInfo(none[:, 1:], mode, jnp.where((mode == SLIP)[:, None], way, 0))
        cones, *_ = cones_in_act(cones, before, modes)
    x, cones, error = solve(cones)
    change = (matrix @ x.ravel()).reshape(x.shape)
    after = speed + change[:, 0]
    terms = jnp.abs(v) + jnp.abs(cones.response) @ jnp.abs(x).ravel()
    opened = candidates & (after > noise(contacts, terms, speed))
    lands |= impact & ~opened  # those that it has stopped: their forces decide
    work = lax.stop_gradient(jnp.sum(x * (jnp.concatenate([speed[:, None], slip.of(v)], axis=1) + 0.5 * change)))
    scale = lax.stop_gradient(jnp.sum(jnp.abs(x * change)))
    acts = lax.stop_gradient(x[:, 0]) > 0
    mu = lax.stop_gradient(cones.friction)
    # velocities before a slow impact may be larger than those of its gap and slip
    allowed = (1e-9 + jnp.finfo(v.dtype).eps ** 0.75) * unit + jnp.max(rounding, initial=0.0)
    status = (
        as_status(~(error <= allowed), Status.CONTACTS_NOT_SOLVED)
        | as_status(jnp.any(acts & jams(lax.stop_gradient(matrix), mu)), Status.FRICTION_JAMMED)
        | as_status((work > jnp.finfo(v.dtype).eps ** 0.5 * scale) & jnp.any(e > 0), Status.ENERGY_GAINED)
    )
    # with an impulse near the edge of its cone, or a slip near zero, a neighbouring motion may be in the other mode
    w = lax.stop_gradient(cones.velocity(x))
    own = lax.stop_gradient(cones.scales())
    margin = own * (mu * x[:, 0] - length(x[:, 1:])[:, 0])
    largest = lax.stop_gradient(jnp.max(jnp.abs(normal) + contacts.velocity_terms(free)))
    pull = length(slip.jacobian @ lax.stop_gradient(free))[:, 0]
    slack = 2e-3 * flights.time(largest) * pull + resolution
    speeds = length(w[:, 1:])[:, 0]
    moves = speeds > resolution
    near = acts & (mu > 0) & jnp.where(moves, speeds <= slack, margin <= slack)
    status |= as_status(jnp.any(near & impact), Status.DERIVATIVE_EVENTS)
    rests = candidates & ~moves & (cones.at_rest > 0)
    v = v + cones.response @ x.ravel()
    press = lax.stop_gradient(jnp.abs(normal))
    return Blow(v, x, x[:, 0], lands, jnp.zeros_like(lands), opened, rests, rebound, press, error, status), largest


def fall_back(
    problem: Problem, flights: ShortFlights, event: Event, slip: Slip, rows: ConeProblem, found: Blow, largest: Array,
    closed: Array, args: object,
) -> Blow:  # fmt: skip
    """Keeps contacts closed that the impact ``found`` opens so slowly that they would close again
    before the flight is resolved.

    A body that rocks between two contacts opens them like this, more slowly at each impact, and comes to rest on both.
    ``rows``: the contact problem of velocities at the ``event``; ``closed`` (m,): contacts that were closed before.
    Returns the result of the impact with these contacts closed.
    """
    if len(closed) < 2:
        return found
    t, q, _, _, contacts, _ = event
    after = jnp.concatenate([contacts.gap_velocity(found.v)[:, None], slip.of(found.v)], axis=1)

    def falling() -> tuple[Array, Array]:
        accelerations = AccelerationProblem.at(
            problem, t, q, found.v, args, slip.jacobian if after.shape[1] > 2 else None
        )
        slip_direction = jnp.where(found.rests[:, None], 0, direction(after[:, 1:]))
        stay, way = (closed | found.lands) & ~found.opened, lax.stop_gradient(slip_direction)
        rounding = noise(contacts, accelerations.free, accelerations.cones.offset[:, 0])
        held = lambda some: accelerations.cones.velocity(accelerations.solve(some, way)[1])[:, 0]
        normal = held(stay)
        back = found.opened & (normal < -rounding)
        back &= lax.stop_gradient(after[:, 0]) <= flights.slowest(jnp.abs(normal))
        # a struck contact that opens meanwhile takes no part in what ends the flights: they are followed
        back &= ~jnp.any(stay & ~closed & (held(stay | back) > rounding))
        return back, jnp.where(back, jnp.abs(normal), found.press)

    slowly = found.opened & (after[:, 0] <= flights.slowest(BRIEF * largest))
    back, press = lax.cond(jnp.any(slowly), falling, lambda: (jnp.zeros_like(closed), found.press))
    kept = (closed | found.lands | back) & (back | ~found.opened)
    none = (jnp.zeros_like(after), jnp.zeros((), jnp.int32))
    rest, doubt = lax.cond(jnp.any(back), lambda: left_out(rows, after, kept, found.rests), lambda: none)
    status = found.status | doubt
    v, impulse = found.v + rows.response @ rest.ravel(), found.impulse + rest
    # slips that these flights have ended, but for rounding, as that of a foot that lands beside one that sticks
    slips = length(lax.stop_gradient(slip.of(v)))[:, 0]
    ended = kept & jnp.any(back) & (rows.at_rest > 0)
    ended &= slips <= 1e3 * jnp.finfo(v.dtype).eps * lax.stop_gradient(jnp.max(jnp.abs(after)))
    return found._replace(
        v=v, impulse=impulse, lands=found.lands | back, back=back, opened=found.opened & ~back,
        rests=found.rests | ended, rebound=jnp.where(back, after[:, 0], found.rebound), press=lax.stop_gradient(press),
        status=status,
    )  # fmt: skip


def left_out(rows: ConeProblem, after: Array, kept: Array, rests: Array) -> tuple[Array, Array]:
    """Finds what flights that are left out change: the impulses (m, 1 + k) of their impacts beyond those of lasting
    contact in the same time, and status bits.

    Whatever the impacts are, together with the forces they bring the gap velocities of contacts ``kept`` (m,) to zero,
    with friction all along: of those that slip, that is mu times the sum of normal impulses, which momentum gives.
    Without it other velocities, as a spin, were off by as much as the slowest flight that is followed. ``after`` (m, 1
    + k): velocities of gaps and slips before these flights; ``rests`` (m,): contacts that do not slip.
    """
    way, zero = lax.stop_gradient(direction(after[:, 1:])), jnp.zeros_like(after)

    def solve(turn: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        still, plain, _ = carry
        some = rows._replace(offset=after, friction=jnp.where(turn > 0, rows.friction, 0))
        x = some.in_modes(zero, jnp.where(kept, jnp.where(still, STICK, SLIP), OPEN), way, times=3)
        # a slip that would turn round ends
        ends = (turn > 0) & (jnp.sum(way * some.velocity(x)[:, 1:], axis=1) < 0)
        return still | ends, jnp.where(turn > 0, plain, x), x

    _, plain, found = lax.fori_loop(0, 3, solve, (rests, zero, zero))
    sound = jnp.max(jnp.abs(found)) <= MOST * jnp.max(jnp.abs(plain))
    return jnp.where(sound, found, plain), as_status(~sound, Status.EVENTS_UNRESOLVED)


class WithFriction(NamedTuple):
    """What contacts that rub did until an event, as `impacts.Before`.

    Masks (m,): those ``closed``; those of them that stick, ``still``, or whose slip has just ``stopped``; those that
    have ``jammed``. Directions (m, k) in which the others slipped, ``way``; and the tangential rows at the event,
    ``slip``.
    """

    closed: Array
    still: Array
    stopped: Array
    way: Array
    jammed: Array
    slip: Slip

    def rows(self, event: Event) -> ConeProblem:
        slip = self.slip._replace(velocity=self.slip.of(event.v))
        return ConeProblem.of(event.contacts._replace(slip=slip), event.speed)

    def jump(self, rows: ConeProblem, impulse: Array, times: Array | float = 1.0) -> Array:
        of_each = jnp.broadcast_to(jnp.asarray(times, impulse.dtype), impulse.shape[:1])
        return rows.response @ (impulse * of_each[:, None]).ravel()

    def errors_of_path(self, event: Event, rows: ConeProblem) -> Array:
        return braking(rows, rows.offset, self.closed, self.still)

    def slips(self, v: Array) -> Array:
        return length(self.slip.of(v))[:, 0]

    def ambiguous(self, rows: ConeProblem, closed: Array, rests: Array) -> Array:
        slides = closed & ~rests & (rows.at_rest > 0)
        only = lambda: dependent(lax.stop_gradient(rows.delassus()), jnp.where(closed, SLIP, OPEN), rows.friction)
        return lax.cond(jnp.any(slides), only, lambda: jnp.zeros((), bool))

    def sides(self, contacts: Contacts) -> Array:
        return jnp.zeros_like(self.closed)

    def joint_impulse(self, event: Event, rows: ConeProblem, impulse: Array) -> Array:
        return event.metric.joints.reaction(rows.rows.T @ impulse.ravel())

    def doubts(
        self, problem: Problem, event: Event, v: Array, impact: Array, closed: Array, e: Array, spread: Array | None,
        args: object,
    ) -> Array:  # fmt: skip
        """Returns GAP_NOT_DISTANCE where gaps that may curve are no distances."""
        if not problem.gaps.curves(event.t, event.q, args):
            return jnp.zeros((), jnp.int32)
        some, gradients = impact | self.closed, event.contacts.jacobian
        return distance_status(problem, event.metric, gradients, some, event.t, event.q, args)

    def blow(
        self, problem: Problem, law: ContactLaw, motion: Motion, flights: ShortFlights, event: Event, rows: ConeProblem,
        impact: Array, beside: Array,
    ) -> Blow:  # fmt: skip
        strikes, rests = jnp.any(impact), self.still | self.stopped
        involved = (self.closed | impact | beside) & strikes
        guess = braking(rows, rows.offset, self.jammed, self.jammed)
        found, largest = strike(problem, motion, flights, event, self.slip, impact, involved, rests, self.way, guess)
        found = fall_back(problem, flights, event, self.slip, rows, found, largest, self.closed, motion.args)
        none = jnp.zeros_like(self.closed)
        nothing = found._replace(
            v=event.v, impulse=jnp.zeros_like(found.impulse), percussion=jnp.zeros_like(found.percussion), lands=none,
            back=none, opened=none, rests=rests, rebound=jnp.zeros_like(found.rebound),
            error=jnp.zeros_like(found.error), status=jnp.zeros_like(found.status),
        )  # fmt: skip
        return jax.tree.map(lambda some, other: jnp.where(strikes, some, other), found, nothing)


def others_at_once(contacts: Contacts, slip: Slip, ends: Array, first: Array) -> tuple[Array, Array]:
    """Finds the contacts (m,) whose modes end (``ends``) at the time of the ``first`` (m,),
    but with other data at another one.

    Returns those that no impulse links to the first, and those that one does, unless they go as the first does,
    as the feet of one body.
    """
    others = ends & ~first
    if len(ends) < 2:
        return others, others
    cones = lax.stop_gradient(ConeProblem.of(contacts._replace(slip=slip), contacts.gap))
    linked = jnp.any(cones.oblique() & first[None, :], axis=1)
    mode = jnp.where(ends, STICK, OPEN)
    one = dependent(cones.delassus(), mode, cones.friction)
    return others & ~linked, others & linked & ~one
