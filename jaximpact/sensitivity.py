"""Derivatives of a step that are right across impacts: the published step, with a corrected tangent.

Differentiating a time-stepping scheme through an impact loses the dependence of the impact's time on the data: an
error that no step size cures. Here a step's values are left alone and its derivative is that of

    the saltation of its impacts, then the scheme's own step with the contacts that stay closed frozen,

    dt* = -(G dq + f_theta dtheta)/f',    dx+ = D_R dx- + R_theta dtheta + (D_R F- + d_t R - F+) dt*,

with R the impact law (q, v) -> (q, v - (1+e) M^-1 G' (G M^-1 G')^-1 f'), F = (v, a) before and after, and f' the gap
velocity. The saltation is taken within the step where the scheme's impacts lie on average (`Scheme.timing`). A
step without impact has the derivative of the discrete map itself.

References:
    M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958).
    R. I. Leine, H. Nijmeijer, Dynamics and Bifurcations of Non-Smooth Mechanical Systems, Springer (2004), ch. 7.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from . import linalg
from .contact import ORTHOGONAL, Contacts, Metric, acceleration, gap_rate, gap_rates, linearise, touch
from .derivatives import graft_once, graft_tree
from .problem import Problem
from .projection.base import ContactSolver, Frozen, Untouched, as_status
from .schemes.base import Info, Inputs, Scheme, State, finite
from .status import Status

FREE, STRUCK, REBOUND, CLOSED = 0, 1, 2, 3  # what a contact did in a step; REBOUND ends the impact of the step before
IMPACTS = 3  # impacts of different contacts that are resolved within one step
RELEASES = 3  # contacts that let go one after the other when forces are looked for; then all that pull


class History(NamedTuple):
    """What each contact (m,) did in the last step, whether it ever struck, and the number () of the last impact's step."""

    last: Array
    struck: Array
    latest: Array


class Instant(NamedTuple):
    """Contacts at one instant: linearised constraints, gap velocities f' (m,), gap accelerations f'' (m,) without contact
    forces, the threshold (m,) under which a gap velocity is no impact, and the acceleration (d,) without contact forces."""

    contacts: Contacts
    rate: Array
    second: Array
    threshold: Array
    acceleration: Array


def observe(problem: Problem, h: Array, t: Array, q: Array, v: Array, args: Any) -> Instant:
    """The contacts at (t, q, v); constants for differentiation."""
    h, t, q, v, args = lax.stop_gradient((h, t, q, v, args))
    metric = Metric.at(problem, q, args)
    contacts = linearise(problem, metric, t, q, args)
    a = acceleration(problem, metric, t, q, v, args)
    rate, bias = gap_rates(problem, t, q, v, args)
    normal = contacts.velocity(a)
    noise = 1e3 * jnp.finfo(q.dtype).eps * (1 + jnp.abs(contacts.jacobian) @ jnp.abs(v))
    threshold = 2 * h * (jnp.abs(normal) + jnp.abs(bias)) + noise
    return lax.stop_gradient(Instant(contacts, rate, normal + bias, threshold, a))


def held(matrix: Array, offset: Array, closed: Array, always: Array) -> tuple[Array, Array]:
    """Forces or impulses (m,) with A L + offset = 0 at the closed contacts, less those that pull unless ``always``.

    Returns them and the contacts that act. Of several that pull the strongest lets go first: without it another may push.
    """
    acting = closed
    for left in reversed(range(min(closed.shape[0], RELEASES))):
        pull = jnp.where(acting & ~always, -linalg.solve_masked(matrix, -offset, acting), -jnp.inf)
        acting = acting & ~((pull >= 0) & ((pull >= jnp.max(pull)) | (left == 0)))
    return linalg.solve_masked(matrix, -offset, acting), acting


class Salted(NamedTuple):
    """A state carried across the impacts of a step: q, v and the acceleration behind them (d,), contacts then closed
    (m,), impulses (m,)."""

    q: Array
    v: Array
    a: Array
    closed: Array
    impulse: Array


def saltate(
    problem: Problem,
    inputs: Inputs,
    t: Array,
    q: Array,
    v: Array,
    here: Instant,
    impact: Array,
    closed: Array,
    reacting: Array,
) -> Salted:
    """The state at one instant, with the derivative of crossing the impacts in the order of arrival.

    The value is that of impacts at this very instant; the derivative has the variation of their times. ``closed`` are
    the contacts already closed. A percussion meets the reaction of the ``reacting`` ones alone, as in the scheme: closed
    contacts without an impulse in this step are struck in the next one.
    """
    _, h, e, args = inputs
    m = impact.shape[0]
    index, none = jnp.arange(m), jnp.zeros(m, bool)
    e = jnp.broadcast_to(e, (m,))
    impulse = jnp.zeros(m, q.dtype)
    delassus = here.contacts.delassus()
    force, _ = held(delassus, here.second, closed, none)
    a = here.acceleration + here.contacts.jump(force)
    for _ in range(min(m, IMPACTS)):
        # the contact reached first, of those that still approach
        impact = impact & (here.rate < -0.25 * here.threshold)
        speed = jnp.where(impact, -here.rate, 1)
        this = impact & (index == jnp.argmin(jnp.where(impact, here.contacts.gap / speed, jnp.inf)))
        some = jnp.any(this)
        impact = impact & ~this
        # the instant of impact: this one in value, dt* in derivative
        gap = problem.gaps(t, q, args)
        delay = jnp.sum(jnp.where(this, (gap - lax.stop_gradient(gap)) / speed, 0))
        t_hit, q_hit, v_hit = t + delay, q + delay * v, v + delay * a
        # the impact law there, closed contacts reacting
        contacts = linearise(problem, Metric.at(problem, q_hit, args), t_hit, q_hit, args)
        approach = contacts.velocity(v_hit) + gap_rate(problem, t_hit, q_hit, args)
        approach = jnp.where(this, (1 + e) * approach, approach)
        percussion, acting = held(contacts.delassus(), approach, this | reacting, this)
        v_after = v_hit + contacts.jump(percussion)
        # the motion after it, in which an inelastic contact may stay
        here = observe(problem, h, t, q, jnp.where(some, v_after, v), args)
        force_after, staying = held(delassus, here.second, acting & (~this | (e <= 0)), none)
        a_after = here.acceleration + here.contacts.jump(force_after)
        impulse = impulse + jnp.where(some, percussion + delay * (force - force_after), 0)
        closed, force = jnp.where(some, staying, closed), jnp.where(some, force_after, force)
        q = jnp.where(some, q_hit - delay * v_after, q)
        v = jnp.where(some, v_after - delay * a_after, v)
        a = jnp.where(some, a_after, a)
    return Salted(q, v, a, closed, impulse)


def begin(problem: Problem, inputs: Inputs, q0: Array, v0: Array, info: Info) -> tuple[History, Array]:
    """History of the contacts at the scheme's first state; status bits."""
    t0, _, _, args = inputs
    contacts = linearise(problem, Metric.at(problem, q0, args), t0, q0, args)
    rate = contacts.velocity(v0) + gap_rate(problem, t0, q0, args)
    touching = touch(contacts, rate, q0, v0).touching
    active = info.impulse > 0
    last = jnp.where(touching & (active | (rate <= 0)), CLOSED, FREE).astype(jnp.int32)
    early = jnp.any(active & ~touching)
    return History(last, jnp.zeros_like(touching), jnp.full((), -3, jnp.int32)), as_status(
        early, Status.DERIVATIVE_AT_END
    )


def corrected_step(
    problem: Problem, scheme: Scheme, projection: ContactSolver, inputs: Inputs, state: State, history: History
) -> tuple[State, Info, History]:
    """`scheme.step` with the corrected derivative."""
    new, info = scheme.step(problem, projection, *lax.stop_gradient((inputs, state)))
    _, h, e, args = inputs
    n, q, v = state[:3]
    t = inputs.time(n)
    timing = scheme.timing(e)
    assert timing is not None
    middle = lax.stop_gradient(timing.phase * h)
    a = lax.stop_gradient(acceleration(problem, Metric.at(problem, q, args), t, q, v, args))
    t_mid, q_mid, v_mid = t + middle, q + middle * v, v + middle * a
    here = observe(problem, h, t_mid, q_mid, v_mid, args)

    active = lax.stop_gradient(info.impulse) > 0
    rebound = active & (history.last == STRUCK) & (timing.steps > 1)
    # what an inelastic impact on a curved wall leaves of the gap velocity, O(h), is no second impact
    rest = (history.last == REBOUND) & (jnp.broadcast_to(e, active.shape) <= 0)
    impact = active & ~rebound & ~rest & (here.rate < -here.threshold)
    # lasting contacts: one that leaves after an impact may still get a small impulse, so forces must press it; one that
    # lasts, or that an impact opens in this very step, may get none
    slow = ~impact & ~rebound & (rest | (jnp.abs(here.rate) <= here.threshold))
    lasted = history.last == CLOSED
    pressed = held(here.contacts.delassus(), here.second, slow & (active | lasted), jnp.zeros_like(active))[1]
    closed = slow & active & (lasted | pressed)
    resting = closed | pressed

    salted = saltate(problem, inputs, t_mid, q_mid, v_mid, here, impact, resting, slow & active)
    crossed = jnp.any(impact)
    back = state._replace(
        q=jnp.where(crossed, salted.q - middle * salted.v, q), v=jnp.where(crossed, salted.v - middle * salted.a, v)
    )
    # an impulse that contains a percussion is no force of lasting contact; restitution plays no part in that either
    lasting = closed & ~crossed & ~jnp.any(rebound)
    known = lax.stop_gradient(jnp.where(lasting, info.impulse, 0))
    frozen: Any = Frozen(jnp.where(crossed, salted.closed, closed), known, lax.stop_gradient(info.z))
    surrogate, surrogate_info = scheme.step(problem, frozen, inputs._replace(e=jnp.zeros_like(e)), back)
    surrogate_info = surrogate_info._replace(impulse=surrogate_info.impulse + salted.impulse)

    zeno = resting & (history.last != CLOSED) & history.struck & (e > 0)
    grazing = slow & active & (history.last == FREE) & ~zeno
    several = jnp.sum(impact) > 1
    pairs = impact[:, None] & impact[None, :] & ~jnp.eye(impact.shape[0], dtype=bool)
    oblique = jnp.any((jnp.abs(here.contacts.angles()) > ORTHOGONAL) & pairs)
    status = (
        info.status
        | as_status(jnp.any(zeno), Status.DERIVATIVE_ZENO)
        | as_status(jnp.any(grazing), Status.DERIVATIVE_GRAZING)
        | as_status(several & (oblique | (jnp.sum(impact) > IMPACTS)), Status.DERIVATIVE_SIMULTANEOUS)
    )
    last = jnp.where(impact, STRUCK, jnp.where(rebound, REBOUND, jnp.where(resting, CLOSED, FREE)))
    latest = jnp.where(crossed, new.n, history.latest).astype(jnp.int32)
    history = History(last.astype(jnp.int32), history.struck | impact, latest)
    return graft_tree(new, surrogate), graft_tree(info, surrogate_info)._replace(status=status), history


def located_step(
    problem: Problem, scheme: Scheme, projection: ContactSolver, inputs: Inputs, state: State, history: History
) -> tuple[State, Info, History]:
    """`scheme.step` of a scheme that locates impacts, which says DERIVATIVE_AT_END of every step with an impact."""
    new, info = scheme.step(problem, projection, inputs, state)
    struck = (info.status & int(Status.DERIVATIVE_AT_END)) != 0
    history = history._replace(latest=jnp.where(struck, new.n, history.latest).astype(jnp.int32))
    return new, info._replace(status=info.status & ~int(Status.DERIVATIVE_AT_END)), history


def calm_step(
    problem: Problem, scheme: Scheme, inputs: Inputs, state: State, history: History
) -> tuple[tuple[State, Info, History], Array]:
    """`corrected_step` of a motion that touches nothing, and whether it is not to be used: something is touched."""
    none: Any = Untouched()
    new, info = scheme.step(problem, none, *lax.stop_gradient((inputs, state)))
    pending = (info.status != 0) | ~finite(new) | jnp.any(history.last == CLOSED)
    surrogate, surrogate_info = scheme.step(problem, none, inputs._replace(e=jnp.zeros_like(inputs.e)), state)
    history = history._replace(last=jnp.full_like(history.last, FREE))
    return (graft_tree(new, surrogate), graft_tree(info, surrogate_info), history), pending


def synchronous(
    problem: Problem, scheme: Scheme, inputs: Inputs, t: Array, q: Array, v: Array, impulse: Array, last: Array
) -> Array:
    """A velocity reported at t, with the derivative of the velocity at t after a first impact.

    Velocities over a step are those of its middle: after an impact, between contacts, the derivative is that of
    v + h/2 a. Before the first contact it stays that of the discrete map.
    """
    _, h, _, args = inputs
    timing = scheme.timing(inputs.e)
    assert timing is not None
    a = acceleration(problem, Metric.at(problem, q, args), t, q, v, args)
    apart = jnp.any(impulse > 0) & ~jnp.any(last > 0)
    return graft_once(v, v + jnp.where(apart, lax.stop_gradient(timing.lag * h) * a, 0))


def end(problem: Problem, inputs: Inputs, steps: Any, state: State, history: History) -> Array:
    """Status bits: whether an impact lies within a step or two of the end, seen by the scheme or not yet."""
    t = inputs.time(state.n)
    here = observe(problem, inputs.h, t, state.q, state.v, inputs.args)
    soon = (here.rate < -here.threshold) & (here.contacts.gap + inputs.h * here.rate < 0)
    return as_status(jnp.any(soon) | (history.latest > steps - 2), Status.DERIVATIVE_AT_END)
