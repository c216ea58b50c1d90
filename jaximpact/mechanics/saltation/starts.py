"""Contacts that are closed where a motion starts: which of them are loaded,
and the derivatives with respect to initial data there."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...jaxtools.array_types import F0, I0, B_m, F_d, F_m, F_mk
from ...jaxtools.batched_branch import run_where_needed
from ...jaxtools.derivative_rules import graft
from ...jaxtools.jacobians import SMALL
from ..coefficients import OfSpeed, lengths
from ..contact.friction.cones import OPEN, SLIP, blocks
from ..contact.laws import ContactLaw
from ..contacts import Contacts
from ..events.event_state import View
from ..events.rubbing_contacts import Place, heading
from ..friction import Slip
from ..linearisation import Metric, acceleration, closure, linearise, noise
from ..motion import Motion
from ..problem import Problem
from ..scheme import FACING
from ..status import Status, as_status
from ..trials.trial import gap_rates


class Pressed(NamedTuple):
    """Contacts (m,) that are ``loaded`` at a start, each with tangential forces ``along`` (m, k) times its normal one;
    those that slip (m,), ``slides``. In bounces that give the impulses of these forces velocities are others than with
    these, in the mean as by the accelerations ``before`` them and ``after`` them (d,). k is 0 without friction."""

    loaded: B_m
    along: F_mk
    slides: B_m
    before: F_d
    after: F_d


class _Load(NamedTuple):
    """What closed contacts (m,) do at a start: `Pressed`; those that stay closed, with a force or without, ``stays``;
    and those for which the order of bounces of a motion from beside would matter, ``unsure``."""

    pressed: Pressed
    stays: B_m
    unsure: B_m


def pressed_at_start(
    problem: Problem, law: ContactLaw, motion: Motion, branches: bool = False
) -> tuple[Pressed | None, I0]:
    """Finds the contacts that are closed at the start and pressed together by the forces; and the status of
    derivatives by initial data. Where derivatives are taken by nothing that moves a start it finds none; of bodies on a
    list, with friction, neither, but remarks on them.

    A contact that touches without force and without separating stays in contact, whereas a motion from a neighbouring
    start is in free flight: there is no derivative. A contact that is pressed pulls a neighbouring motion back onto its
    surface, after bounces that die out at once, unless it is elastic. ``branches``: whether a lane looks for them only
    if a contact is closed, as of `Corrected`.
    """
    t, q, v, args = lax.stop_gradient(motion.start)
    by, none = motion.by, jnp.zeros((), jnp.int32)
    if by is not None and not by.moves_start(problem, t, q, args):
        return None, none
    # pairs on a list have no matrices of several
    rough, listed = problem.rubs and not problem.gaps.local, problem.rubs and problem.gaps.local
    place = Place.at(problem, t, q, v, args, None) if rough else None
    view = View.at(problem, t, q, v, args) if place is None else place.view
    contacts, speed, h = view.contacts, view.gap_velocity, lax.stop_gradient(motion.h)
    at = closure(contacts, -speed, q, v, h, view.free)
    closed = at.closed & ~at.outward

    def look() -> tuple[Pressed, I0]:
        e = jnp.broadcast_to(problem.restitution_at(motion.e, speed, args), closed.shape)
        of = _load(law, view, closed) if place is None else _load_with_friction(problem, motion, place, closed, e)
        doubtful = (of.stays & (~of.pressed.loaded | listed)) | (of.pressed.loaded & ((e >= 1) | of.unsure))
        if contacts.dense:
            doubtful &= ~jnp.any(closed[:, None] & closed[None, :] & (contacts.angles() < FACING), axis=1)
        return of.pressed, as_status(jnp.any(doubtful), Status.DERIVATIVE_EVENTS)

    # matrices of all pairs of contacts: of 184, .4 ms in the code of a start, which is not optimised
    open_ = jnp.zeros_like(closed)
    still = jnp.zeros((len(closed), 0), q.dtype) if place is None else 0 * place.slip
    in_flight = lambda: (Pressed(open_, still, open_, view.free, view.free), none)
    found, bits = run_where_needed(branches and closed.size > SMALL, jnp.any(closed), look, in_flight)
    return None if listed else found, bits


def _load(law: ContactLaw, view: View, closed: B_m) -> _Load:
    """What ``closed`` contacts (m,) without friction do."""
    contacts = view.contacts
    free, balance = contacts.velocity(view.free) + view.gap_acceleration, contacts.balance()
    pushing, _ = law.acting(contacts, free, closed)
    push, small = balance(free, pushing), noise(contacts, view.free, view.gap_acceleration)
    loaded = pushing & (push * contacts.diagonal() > small)
    stays = pushing | (closed & (free + contacts.velocity(contacts.jump(push)) <= small))
    none = jnp.zeros_like(closed)
    return _Load(Pressed(loaded, jnp.zeros((len(closed), 0), free.dtype), none, view.free, view.free), stays, none)


def _load_with_friction(problem: Problem, motion: Motion, place: Place, closed: B_m, e: F_m) -> _Load:
    """What ``closed`` contacts (m,) with friction do at a `Place`, by Coulomb's law.

    Where a contact slips, friction is a fixed part of the normal force in all bounces, but if that turns, or depends on
    the speed of slip. One that rests takes up, if it has one impact, the impulse which its force would have had in
    flight. In other cases it depends on the order of bounces where the motion goes on.
    """
    cones = place.cones
    moves, force, modes = place.decide_at_start(closed, lax.stop_gradient(motion.h))
    loaded, size = closed & (modes.mode != OPEN), lengths(force[:, 1:])
    along = force[:, 1:] / jnp.where(loaded, force[:, 0], 1)[:, None]
    stays = loaded | (closed & (cones.velocity(force)[:, 0] <= place.rounding()))
    rests, sharp = loaded & ~moves & (cones.at_rest > 0), float(jnp.finfo(force.dtype).eps) ** 0.5
    coupled = jnp.any(cones.oblique(sharp) & loaded[None, :], axis=1)
    own = blocks(cones.delassus(), len(closed))
    turns = lengths(own[:, 0, 1:]) > sharp * own[:, 0, 0]
    bounces = (e > 0) & (turns | (size > sharp * force[:, 0]))
    slipping = size > (1 + sharp) * cones.friction * force[:, 0]  # static friction, which an impact has not
    of_order = coupled | bounces | slipping
    turning = along.shape[1] > 1 or isinstance(problem.friction, OfSpeed)
    by = motion.by
    drift = lambda t, q, args: problem.slip_velocity(t, q, jnp.zeros_like(q), args)
    if by is None or by.v0 or by.changes(drift, *motion.start[:2], motion.args, of=(by.t0, by.q0)):
        of_order |= modes.mode == SLIP  # from rest, to which friction would bring a slip the other way first
    # the impulse D that bounces p are ahead of the forces N: sum p D = -2 N int D dt of each / (1 - e), that before it,
    # and 2 e N int D dt / (1 - e), that behind it
    share = 2 / jnp.where(e < 1, 1 - e, 1)
    mean = lambda times: place.view.free + cones.response @ ((1 + times)[:, None] * force).ravel()
    unsure = (rests & of_order) | (loaded & moves & coupled & turning)
    return _Load(Pressed(loaded, along, loaded & moves, mean(-share), mean(e * share)), stays, unsure)


def put_on_surfaces(problem: Problem, motion: Motion, pressed: Pressed | None) -> Motion:
    """Returns the motion with the derivative of one whose start is put back onto the surfaces of
    the ``pressed`` contacts, along their forces.

    A body that starts at a small gap df falls back to the surface in a time of the order of df^(1/2), with bounces or
    without. It moves by dq then, of order df; forces that depend on the velocity change the velocity by da/dv dq, with
    the acceleration a; and the impulses that stop it come later than the forces of a contact that is closed from the
    start, so that, where the surface turns, their direction differs. These changes of the velocity are of order df too.
    """
    if pressed is None or pressed.loaded.size == 0:
        return motion
    in_flight = lambda: (motion.q0, motion.v0)
    q, v = lax.cond(jnp.any(pressed.loaded), lambda: _back_on_surfaces(problem, motion, pressed), in_flight)
    return motion._replace(q0=graft(motion.q0, q), v0=graft(motion.v0, v))


def _back_on_surfaces(problem: Problem, motion: Motion, pressed: Pressed) -> tuple[F_d, F_d]:
    """Returns the position and velocity (d,) at the start whose derivatives `put_on_surfaces` takes."""
    t, q, v, args = motion.start
    fixed_t, fixed_q, fixed_v, fixed_args = lax.stop_gradient((t, q, v, args))
    unchanged = lambda x: x - lax.stop_gradient(x)  # zero, with the derivative of x

    def at(t: F0, q: F_d, before: F_d, after: F_d) -> tuple[Metric, Contacts]:
        metric = Metric.at(problem, q, fixed_args, t)
        contacts = linearise(problem, metric, t, q, fixed_args)
        if not problem.rubs:
            return metric, contacts
        # an impact has the coefficient of the speed before it, and the direction behind it
        slip, slides = Slip.at(problem, metric, t, q, before, fixed_args), pressed.slides[:, None]
        rubs = -slip.friction[:, None] * heading(jnp.where(slides, slip.of(after), 1))
        return metric, contacts.leaning(slip, jnp.where(slides, rubs, pressed.along))

    # these factors multiply terms whose value is zero, so that their own derivatives do not count
    metric, contacts = at(fixed_t, fixed_q, fixed_v, fixed_v)
    balance = contacts.balance()
    impulse = balance(unchanged(problem.gaps(t, q, args)), pressed.loaded)
    of_v = lambda v: acceleration(problem, metric, fixed_t, fixed_q, v, fixed_args)
    place = fixed_t, fixed_q, fixed_v, fixed_v
    onwards = jnp.ones_like(fixed_t), fixed_v, pressed.before, pressed.after
    way, turn = jax.jvp(lambda *at_: at(*at_)[1].jump(impulse), place, onwards)
    q, v = q + way, v + jax.jvp(of_v, (fixed_v,), (way,))[1] - turn
    return q, v + contacts.jump(balance(unchanged(gap_rates(problem, t, q, v, args)[1]), pressed.loaded))
