"""Saltation: carries a state across the impacts of a step, with the derivatives of their times.

References:
    M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958).
    R. I. Leine, H. Nijmeijer, Dynamics and Bifurcations of Non-Smooth Mechanical Systems, Springer (2004), ch. 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.batched_branch import run_where_needed
from ...jaxtools.derivative_rules import graft
from ...jaxtools.linalg import MAX_UNROLLED
from ...jaxtools.remembered import remember
from ..contacts import Contacts
from ..linearisation import Metric, gap_derivatives, joint_acceleration, lengths, linearise, span
from ..motion import At, Motion
from ..problem import Problem
from ..scheme import State, Traits

IMPACTS = 3  # impacts of different contacts that are resolved within one step

RELEASES = 3  # contacts that are released one after the other when forces are computed; then all that pull together


class Instant(NamedTuple):
    """Contacts at one instant, without derivatives.

    Attributes:
        contacts: linearised constraints.
        gap_velocity, gap_acceleration: gap velocities, and gap accelerations without contact forces (m,).
        noise: round-off (m,) of gap velocities.
        threshold: approach speed (m,) below which there is no impact.
        acceleration: acceleration (d,) without contact forces.
        joints, joint_force: linearised joints, and their forces (j,) without contact forces.
    """

    contacts: Any
    gap_velocity: Array
    gap_acceleration: Array
    noise: Array
    threshold: Array
    acceleration: Array
    joints: Any
    joint_force: Array

    def joint_forces(self, force: Array) -> Array:
        """Returns the forces (j,) of the joints under contact forces ``force`` (m,)."""
        return self.joint_force + self.joints.reaction_to(self.contacts, force)


class Contact(NamedTuple):
    """Masks (m,) of what contacts do in one step, as `Corrected` finds it from the values of the scheme.

    ``active``: the contact has an impulse; ``impact``: the impulse begins an impact; ``rebound``: it ends an impact of
    the previous step; ``reacting``: it is the reaction of a contact whose gap velocity is nearly zero; ``lasting``: the
    contact is closed and pressed; ``stays``: it is still closed after the impacts of the step.
    """

    active: Array
    impact: Array
    rebound: Array
    reacting: Array
    lasting: Array
    stays: Array


def observe(problem: Problem, h: Array, at: At) -> Instant:
    """Evaluates the contacts ``at`` a place, without derivatives; the step h sets the threshold of impacts."""
    h, at = lax.stop_gradient((h, at))
    metric = Metric.at(problem, at.q, at.args, at.t)
    return observe_at(problem, h, metric, linearise(problem, metric, at.t, at.q, at.args), at)


def observe_at(problem: Problem, h: Array, metric: Metric, contacts: Contacts, at: At) -> Instant:
    """As `observe`, for ``contacts`` that are already linearised there."""
    h, metric, contacts, at = lax.stop_gradient((h, metric, contacts, at))
    q, v = at.q, at.v
    a, joint_force = joint_acceleration(problem, metric, *at)
    speed, gap_acceleration = gap_derivatives(problem, *at)
    normal = contacts.velocity(a)
    bent = jnp.abs(normal) + jnp.abs(gap_acceleration)
    # accelerations of two bodies in contact cancel, as those of weights, but not their round-off
    terms = contacts.velocity_terms(a) + jnp.abs(gap_acceleration)
    noise = 1e3 * jnp.finfo(q.dtype).eps * lengths(contacts, q, v, terms, h) / span(h, q.dtype)
    threshold = 2 * h * bent + noise
    found = Instant(contacts, speed, normal + gap_acceleration, noise, threshold, a, metric.joints, joint_force)
    return lax.stop_gradient(found)


def solve_active_forces(
    contacts: Contacts, offset: Array, closed: Array, always: Array, slack: Array | None = None, branches: bool = False
) -> tuple[Array, Array]:
    """Solves A L + offset = 0 for forces or impulses L (m,) at the ``closed`` contacts (m,),
    and releases those that pull.

    Contacts ``always`` (m,) are kept even if they pull. Returns L and the contacts (m,) that act, which are constants
    of the derivative of L. The contact that pulls most is released first, since without it others may push. With
    ``slack`` (m,), contacts that pull by less are kept: the sign of their force is round-off. A is the Delassus matrix
    of the ``contacts``, ``branches`` as of `Corrected`.
    """
    balance, known = lax.stop_gradient(contacts).balance(), lax.stop_gradient(offset)

    def released(force: Array, acting: Array, last: Array | bool) -> Array:
        pull = jnp.where(acting & ~always, -force, -jnp.inf)
        lets_go = pull >= 0 if slack is None else pull > slack
        return lets_go & ((pull >= jnp.max(pull)) | last)

    def settle(acting: Array, left: int) -> tuple[Array, Array]:
        force = balance(known, acting)
        if left == 0:
            return force, acting
        goes = released(force, acting, left == 1)
        release = lambda: settle(acting & ~goes, left - 1)
        return run_where_needed(branches, jnp.any(goes), release, lambda: (force, acting))

    def release(now: tuple) -> tuple:
        k, acting, *_ = now
        force = balance(known, acting)
        goes = released(force, acting, k == RELEASES - 1)
        return k + 1, acting & ~goes, force, jnp.any(goes)

    if closed.shape[0] <= MAX_UNROLLED:
        force, acting = settle(closed, min(closed.shape[0], RELEASES))
    else:
        # with many contacts the balance is compiled once, and where all push it runs once
        start = (jnp.zeros((), jnp.int32), closed, jnp.zeros_like(offset), jnp.any(closed))
        _, acting, force, left = lax.while_loop(lambda now: (now[0] < RELEASES) & now[3], release, start)
        force = lax.cond(left, lambda: balance(known, acting), lambda: force)
    acting = remember(acting)
    return graft(force, contacts.balance()(offset, acting)), acting


class StateAfterImpacts(NamedTuple):
    """State after the impacts of a step: q, v and acceleration a (d,), closed contacts (m,), impulses (m,),
    and those of the joints (j,)."""

    q: Array
    v: Array
    a: Array
    closed: Array
    impulse: Array
    joint_impulse: Array


def cross_impacts(
    problem: Problem, motion: Motion, at: At, here: Instant, current: Contact, resolution: Array | float, branches: bool
) -> StateAfterImpacts:  # fmt: skip
    """Returns the state after the impacts of a step, as if all were at one instant, with the derivative of crossing
    them in the order of arrival.

    The value is that of impacts at this instant; the derivative includes the variation of their times. ``here``: the
    contacts there; ``current``: what contacts do. Only those that are reacting react to a percussion, as in the scheme:
    lasting contacts without an impulse in this step have their impact in the next one.
    ``resolution`` (): error of gap velocities after impacts, as by `ContactLaw.resolution`; ``branches``:
    as of `Corrected`.
    """
    (t, q, v, args), impact, closed, reacting = at, current.impact, current.lasting, current.reacting
    h, m = motion.h, impact.shape[0]
    index, none = jnp.arange(m), jnp.zeros(m, bool)
    given = jnp.broadcast_to(motion.e, (m,))
    # of the state before an impact
    begins = lambda: solve_active_forces(here.contacts, here.gap_acceleration, closed, none, branches=branches)[0]
    force = run_where_needed(branches, jnp.any(impact), begins, lambda: jnp.zeros(m, q.dtype))
    # an impact changes the velocity only
    there, placed = lax.stop_gradient((t, q)), here
    at_rest = lax.stop_gradient(Metric.at(problem, there[1], args, there[0]))
    start = StateAfterImpacts(
        q, v, here.acceleration + here.contacts.jump(force), closed, jnp.zeros(m, q.dtype), 0 * here.joint_force
    )

    def strike(
        now: tuple[StateAfterImpacts, Instant, Array, Array], this: Array
    ) -> tuple[StateAfterImpacts, Instant, Array, Array]:
        """Carries the state across the next impact, of the contact ``this`` (m,);
        returns it unchanged if the mask is empty.

        ``now``: the state; the contacts there; their forces (m,) before the impact;
        and the mask (m,) of impacts still to come.
        """
        (q, v, a, closed, impulse, joint_impulse), here, force, impact = now
        here = here._replace(contacts=placed.contacts, joints=placed.joints)
        closing, some = jnp.where(impact, -here.gap_velocity, 1), jnp.any(this)
        # the time of the impact: this instant in value, dt* in derivative
        gap = problem.gaps(t, q, args)
        delay = jnp.sum(jnp.where(this, (gap - lax.stop_gradient(gap)) / closing, 0))
        t_at, q_at, v_at = t + delay, q + delay * v, v + delay * a
        # the impact law there, closed contacts reacting
        metric = Metric.at(problem, q_at, args, t_at)
        contacts = linearise(problem, metric, t_at, q_at, args)
        offset = contacts.gap_velocity(v_at)
        e = problem.restitution_at(given, offset, args)
        elastic = problem.impact_law.rebounding(this, reacting)
        diagonal = contacts.diagonal()
        slack = jnp.maximum(here.noise, resolution) / jnp.where(diagonal > 0, diagonal, 1)
        slack = lax.stop_gradient(slack)
        e, before = jnp.where(elastic, e, 0), offset
        inelastic = lambda: solve_active_forces(contacts, before, this | reacting, this, slack, branches)[0]
        least = problem.impact_law.least(e, inelastic)
        offset = before + problem.impact_law.velocity(e, before)
        if least.size:
            offset += contacts.velocity(contacts.jump(least))
        kept = none if least.size else this
        percussion, acting = solve_active_forces(contacts, offset, this | reacting, kept, slack, branches)
        percussion = percussion + least if least.size else percussion
        v_after = v_at + contacts.jump(percussion)
        of_joints = here.joint_forces(force)
        # the motion after it, in which an inelastic contact may stay
        here = observe_at(problem, h, at_rest, placed.contacts, At(*there, jnp.where(some, v_after, v), args))
        stays = acting & (~elastic | (e <= 0))
        force_after, staying = solve_active_forces(
            placed.contacts, here.gap_acceleration, stays, none, branches=branches
        )
        a_after = here.acceleration + here.contacts.jump(force_after)
        impulse = impulse + jnp.where(some, percussion + delay * (force - force_after), 0)
        held = metric.joints.reaction_to(contacts, percussion)
        joint_impulse += jnp.where(some, held + delay * (of_joints - here.joint_forces(force_after)), 0)
        closed, force = jnp.where(some, staying, closed), jnp.where(some, force_after, force)
        q = jnp.where(some, q_at - delay * v_after, q)
        v = jnp.where(some, v_after - delay * a_after, v)
        a = jnp.where(some, a_after, a)
        turned = here._replace(contacts=None, joints=None)
        return StateAfterImpacts(q, v, a, closed, impulse, joint_impulse), turned, force, impact & ~this

    def first(now: tuple[StateAfterImpacts, Instant, Array, Array]) -> tuple[tuple, Array]:
        """Returns ``now``, as of `strike`, without impacts whose gaps no longer close,
        and the contact (m,) of the next impact."""
        salted, here, force, impact = now
        impact = impact & (here.gap_velocity < -0.25 * here.threshold)
        closing = jnp.where(impact, -here.gap_velocity, 1)
        nearest = index == jnp.argmin(jnp.where(impact, placed.contacts.gap / closing, jnp.inf))
        return (salted, here, force, impact), impact & nearest

    here = here._replace(contacts=None, joints=None)
    # jitted, so that it is traced and differentiated once
    return _in_turn(jax.jit(strike), first, (start, here, force, impact), m, branches)[0]


def _in_turn(strike: Callable, first: Callable, now: tuple, m: int, branches: bool) -> tuple:
    """Carries ``now`` across impacts of m contacts one after the other: ``first`` finds the next contact,
    ``strike`` treats it."""

    def following(now: tuple, left: int) -> tuple:
        now, this = first(now)

        def struck() -> tuple:
            found = strike(now, this)
            return found if left == 1 else following(found, left - 1)

        return run_where_needed(branches, jnp.any(this), struck, lambda: now)

    if m <= MAX_UNROLLED:
        return following(now, min(m, IMPACTS))

    def next_one(now: tuple, _: None) -> tuple[tuple, None]:
        now, this = first(now)
        return lax.cond(jnp.any(this), strike, lambda now, this: now, now, this), None

    # with many contacts an impact is compiled once, and runs as often as there are impacts
    return lax.scan(next_one, now, None, length=IMPACTS)[0]


def start_and_phase(problem: Problem, motion: Motion, state: State, traits: Traits) -> tuple[At, Array, Array]:
    """Returns the place at which a step from ``state`` begins; the restitution, () or (m,), of its impacts, a function
    of approach speeds evaluated there and frozen; and the time () in the step at which their saltation is taken."""
    at, e = At(motion.time(state.n), state.q, state.v, motion.args), motion.e
    if callable(problem.restitution):
        e = lax.stop_gradient(problem.restitution_at(e, gap_derivatives(problem, *at)[0], motion.args))
    return at, e, lax.stop_gradient(traits.phase(e) * motion.h)
