"""What contacts that rub do from an event on: Coulomb's law decides, and a base is made of it."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.outlined import cold
from ..coefficients import lengths
from ..contact.friction.cones import OPEN, SLIP, STICK, could_jam, dependent, jams, opening
from ..contact.friction.inside_cones import JUST_INSIDE, inside_cones
from ..events.rubbing_contacts import Place, heading
from ..linearisation import noise
from ..status import Status, as_status
from .bases import NOTHING, zero_of_gaps
from .borders import rounding_of_levels
from .changes import Change
from .mode_forces import cone_room, held_in_modes, unsure_forces
from .modes import Modes, at_limit
from .pieces import Pieces
from .trial import Base, frozen
from .ways import times_of

sought_inside = cold(inside_cones)
LESS = 1e-6  # part of friction without which contacts that break away accelerate clearly
EDGE = 1e-6  # of a force or an acceleration: too small to decide whether a contact sticks


class _Decision(NamedTuple):
    """Contacts (m,) that are ``closed``, what they do (``where``), and status bits."""

    closed: Array
    where: Modes
    status: Array


def base_in_modes(
    pieces: Pieces, place: Place, t: Array, elapsed: Array, q: Array, v: Array, closed: Array, where: Modes,
    change: Change, substep: Array, atol: Array, span: Array, args: object,
) -> tuple[Base, Array]:  # fmt: skip
    """As `bases.base_at`, for contacts that rub, which were in the modes ``where``; after a ``change`` Coulomb's law
    says what they do."""
    piece, (where, place) = where.piece, where.turned(t, place)
    view = place.view
    roundoff, slack = zero_of_gaps(view, q, v, atol, substep)
    still = frozen(noise(view.contacts, v, view.gap_velocity))
    touching = frozen((view.contacts.gap <= roundoff) & (jnp.abs(view.gap_velocity) <= still)) & ~change.loosed
    candidates = (closed & ~change.loosed) | touching
    enters = candidates & ~closed

    def inwards() -> Array:  # contacts that others hold anyway may stay open: their forces are not unique
        accelerations = place.cones.velocity(where.forces(place, closed))[:, 0]
        return jnp.any(enters & (accelerations < -place.rounding() - slack))

    changed = change.some | frozen(lax.cond(jnp.any(enters), inwards, lambda: jnp.zeros((), bool)))
    anew = lambda: _decide(place, candidates, where, change, closed, substep, slack)
    as_before = lambda: _Decision(closed, where, jnp.zeros((), jnp.int32))
    stuck = closed & ((where.mode == STICK) | where.limit)
    passed = 0 if where.tangents is None else _passed_jam(place, closed, where, change)
    closed, where, status = frozen(lax.cond(changed, anew, as_before))
    where = where.onwards(place, closed, stuck, changed, atol, span)
    a, force, push, of_joints = held_in_modes(place, where, closed, slack)
    of_force = place.rounding() + slack
    parts = [place.slip_rounding(substep) + NOTHING * atol, of_force, of_force]
    if pieces.count:
        parts.append(rounding_of_levels(pieces, piece.sides, t, q, v, a, atol, span, args))
        where = where._replace(piece=piece._replace(roundoff=frozen(parts[-1])))
    rounding = jnp.concatenate(parts)
    where = where._replace(force=frozen(force), roundoff=frozen(rounding))
    if where.tangents is not None:
        slips = (where.of(closed).mode == SLIP) & ~where.limit
        where = where._replace(times=times_of(place, force, slips, where.way, where.floor))
    status |= passed | as_status(where.several, Status.IMPULSES_NOT_UNIQUE)
    # forces that are not unique are known to half of the digits (`cones`)
    unknown = float(jnp.finfo(q.dtype).eps) ** jnp.where(where.several, 0.5, 1)
    base = Base(
        elapsed, q, v, a, closed, force, push, frozen(roundoff), still, slack, joint_force=of_joints, where=where,
        force_error=frozen(unknown * jnp.max(jnp.abs(a - view.free))),
    )  # fmt: skip
    return base, status


def _passed_jam(place: Place, closed: Array, where: Modes, change: Change) -> Array:
    """Returns FRICTION_JAMMED if a slip in space has turned so far in a trial that its force may have been infinite on
    the way: steps of a given length pass that, and may lift the contact off."""
    place = frozen(place)
    slips = (closed | change.loosed) & (where.mode == SLIP) & ~where.limit & ~change.stopped & ~change.struck
    slips &= lengths(place.slip) > jnp.abs(where.floor[:, 0])

    def beyond() -> Array:
        matrix, mu = place.cones.delassus(), place.cones.friction
        before, after = (opening(matrix, mu, way) for way in (where.way, heading(place.slip)))
        return jnp.any(slips & jams(matrix, mu) & (jnp.abs(after - before) >= before))

    return as_status(lax.cond(jnp.any(slips), beyond, lambda: jnp.zeros((), bool)), Status.FRICTION_JAMMED)


def _decide(
    place: Place, candidates: Array, where: Modes, change: Change, closed: Array, substep: Array, slack: Array
) -> _Decision:
    """Decides what the contacts ``candidates`` (m,) do from a place on, by Coulomb's law for accelerations; ``closed``
    (m,): those that were closed."""
    place = frozen(place)
    moves = place.moving(substep)
    anew = change.struck | change.begins | ~closed
    # slip in space is over, too, where another contact's stop has taken it, or had only begun
    least = jnp.where(jnp.any(change.stopped), jnp.abs(where.floor), where.floor)
    goes_on = jnp.all(lengths(place.slip)[:, None] > least, axis=1) | where.limit
    slips = jnp.where(anew, moves & ~change.rests, (where.mode == SLIP) & ~change.stopped & goes_on)
    way = jnp.where(anew[:, None] | (where.way == 0), heading(place.slip), where.way)
    slip_direction = jnp.where(slips[:, None], way, 0)
    tolerated = place.rounding() + slack
    where, breaks = _held_inside(place, candidates, where, change, slip_direction, tolerated)
    begin = lambda: _breaking_away(place, candidates, where, breaks, slip_direction)
    slip_direction = lax.cond(jnp.any(breaks), begin, lambda: slip_direction)
    m, static = len(candidates), place.cones.static is not None

    def law(carry: tuple) -> tuple:
        slip_direction, limit, *_ = carry
        force, current = at_limit(place, limit).decide(candidates, slip_direction, where.force)
        acts, rubs = candidates & (current.mode != OPEN), place.cones.friction > 0
        # a contact without force is held, and does what it would with one
        mode = jnp.where(acts, current.mode, jnp.where(jnp.any(slip_direction != 0, axis=1), SLIP, STICK))
        mode = jnp.where(rubs, mode, SLIP).astype(jnp.int32)
        way = jnp.where(
            (mode == SLIP)[:, None], jnp.where(current.direction != 0, current.direction, slip_direction), 0
        )
        way = jnp.where(rubs[:, None], way, 0)
        several = lambda mode: dependent(place.cones.delassus(), mode, place.cones.friction)
        mode_in_act = jnp.where(acts, mode, OPEN)
        none = jnp.zeros_like(candidates)
        found = where._replace(mode=mode, way=way, force=force, several=several(mode_in_act), jammed=none, limit=limit)
        # forces in these modes are those of the solver to rounding
        held = found.forces(place, acts)
        accelerations = place.cones.velocity(held)
        stays = acts | (candidates & (accelerations[:, 0] <= 1e3 * tolerated))
        # of a contact without force others may take their part: forces of all that stay are not unique then
        idle, stay = stays & ~acts, jnp.where(stays, mode, OPEN)
        found = found._replace(mode=stay, several=lax.cond(jnp.any(idle), several, lambda _: found.several, stay))
        # contacts without force would hold by their tangential forces alone
        idle &= mode == STICK
        held = lax.cond(jnp.any(idle), lambda: found.forces(place, stays), lambda: held)
        out = (acts | idle) & (mode == STICK) & (cone_room(place, held) < -tolerated - unsure_forces(place, found))
        again = jnp.where(out[:, None], -heading(held[:, 1:]), slip_direction)
        if static:
            # with friction of slip, those begin to slip that no others hold
            begins = place.cones.velocity(found._replace(limit=none).forces(place, stays))[:, 1:]
            begins = jnp.any(limit) & ~jnp.any(out) & (jnp.sum(slip_direction * begins, axis=1) > tolerated)
            limit = (limit & ~begins) | out
        return (
            again,
            limit,
            jnp.any(again != slip_direction) | jnp.any(limit != found.limit),
            stays,
            found,
            accelerations,
        )

    limit = (breaks | where.limit) & ~moves if static else jnp.zeros_like(candidates)
    first = (slip_direction, limit, jnp.ones((), bool), candidates, where, jnp.zeros_like(where.force))
    # no more than once for each contact, or twice: each time one more begins to slip
    *_, stays, found, accelerations = lax.fori_loop(
        0, (1 + static) * m + 1, lambda _, carry: lax.cond(carry[2], law, lambda x: x, carry), first
    )
    held, least = found.forces(place, stays), -tolerated - unsure_forces(place, found)
    idle, pulls = place.cones.scales() * found.force[:, 0] <= tolerated, place.cones.scales() * held[:, 0] < least
    stays &= ~(idle & pulls & (accelerations[:, 0] > 0))
    edge = _on_edge(place, stays, found, slip_direction, accelerations)
    # with other data a contact without force may have one, and rub
    edge |= jnp.any(stays & idle & (place.cones.friction > 0))
    # beyond Painleve's bound no acceleration may satisfy the law: then velocities jump
    wrong = stays & ((accelerations[:, 0] < -1e3 * tolerated) | pulls)
    matrix, mu = place.cones.delassus(), place.cones.friction
    beyond = jams(matrix, mu)
    lifts = candidates & (found.mode == OPEN) & could_jam(matrix, mu, slip_direction)
    jammed = wrong & beyond
    status = as_status(edge & ~jnp.any(jammed), Status.DERIVATIVE_EVENTS)
    status |= as_status(jnp.any((stays & beyond) | lifts), Status.FRICTION_JAMMED)
    status |= as_status(jnp.any(wrong) & ~jnp.any(jammed), Status.CONTACTS_NOT_SOLVED)
    return _Decision(stays, found._replace(jammed=jammed), status)


def _breaking_away(place: Place, candidates: Array, where: Modes, breaks: Array, slip_direction: Array) -> Array:
    """Returns the directions (m, k) in which contacts slip where some break away (``breaks``, (m,)), others perhaps
    with them: with friction as it is slips hardly accelerate there, so with a little less."""
    cones = at_limit(place, where.limit | breaks).cones
    less = jnp.where(where.several, 2 * (1 - JUST_INSIDE[where.force.shape[1]]), LESS)
    weaker = place._replace(cones=cones._replace(friction=(1 - less) * cones.friction))
    _, found = weaker.decide(candidates, slip_direction, where.force)
    begins = (found.mode == SLIP) & ~jnp.any(slip_direction != 0, axis=1)
    broken = jnp.where(breaks[:, None], -heading(where.force[:, 1:]), slip_direction)
    return jnp.where(begins[:, None], found.direction, broken)


def _held_inside(
    place: Place, candidates: Array, where: Modes, change: Change, slip_direction: Array, tolerated: Array
) -> tuple[Modes, Array]:
    """Looks for forces inside all cones that hold the contacts at rest, where those that are followed reach the edge
    of one, or where a motion begins, has an impact or comes to a stop: if forces are not unique, what can be held
    rests.

    Returns the modes with the forces to go on from, and the contacts that do break away.
    """
    smooth = candidates & ~(place.cones.at_rest > 0)
    rests = candidates & ~smooth & ~jnp.any(slip_direction != 0, axis=1)
    if len(rests) < 2:
        return where, change.breaks

    def look() -> tuple[Array, Array]:
        at = at_limit(place, where.limit)
        force, found = at.decide(candidates, slip_direction, where.force)
        # a contact whose force is zero may share the load
        stays = (found.mode != OPEN) | (at.cones.velocity(force)[:, 0] <= 1e3 * tolerated)
        mode = jnp.where(stays & rests, STICK, jnp.where(stays & smooth, SLIP, found.mode))
        force, inside = sought_inside(at.cones, jnp.where(anew, force, where.force), mode, slip_direction)
        return jnp.where(inside, force, where.force), change.breaks & ~inside

    anew = change.begins | change.struck | jnp.any(change.stopped)
    several = (where.several & jnp.any(change.breaks)) | (anew & jnp.any(rests))
    force, breaks = lax.cond(several, look, lambda: (where.force, change.breaks))
    return where._replace(force=force), breaks


def _on_edge(place: Place, closed: Array, found: Modes, slip_direction: Array, accelerations: Array) -> Array:
    """Tests whether a contact at rest only just sticks, or only just begins to slip, (): a small change of a force
    would change its mode."""
    room = cone_room(place, found.force)
    most = place.cones.scales() * place.cones.at_rest * found.force[:, 0]
    rests = closed & (place.cones.friction > 0) & ~jnp.any(slip_direction != 0, axis=1)
    sticks = rests & (found.mode == STICK) & (room <= EDGE * most)
    begins = rests & (found.mode == SLIP) & (lengths(accelerations[:, 1:]) <= EDGE * lengths(place.cones.offset[:, 1:]))
    return jnp.any(sticks | begins)
