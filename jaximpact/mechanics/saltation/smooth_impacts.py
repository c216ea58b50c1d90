"""Impacts of a step of contacts that do not rub: which there are, and what they do to the derivative of the step."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ...jaxtools.remembered import remember
from ..contact.laws import ContactLaw, Held
from ..events.force_free import opens_by_change
from ..linearisation import Metric, acceleration
from ..motion import Motion
from ..problem import Problem
from ..scheme import Info, Traits
from ..status import Status, as_status
from .impact_saltation import Contact, cross_impacts, observe, solve_active_forces, start_and_phase
from .tracked import IMPACT, LASTING, REBOUND, Salted, Tracked

OFF = 4  # steps by which the time of an impact may be wrong that leaves a contact closed without force


def smooth_impacts(
    problem: Problem, law: ContactLaw, motion: Motion, state: Tracked, info: Info, traits: Traits, branches: bool
) -> Salted:
    """Carries the ``state`` before a step across its impacts, where no contact rubs; ``info``: what the scheme tells of
    the step; others as of `Corrected`."""
    before, last = state[:2]
    begin, e, middle = start_and_phase(problem, motion, before, traits)
    metric = Metric.at(problem, begin.q, begin.args, begin.t)
    at = begin.after(middle, lax.stop_gradient(acceleration(problem, metric, *begin)))
    here = observe(problem, motion.h, at)

    # below the tolerance of |min(w, A_aa L)| a solver's impulse is no different from zero
    pushed = here.contacts.diagonal() * lax.stop_gradient(info.impulse)
    resolution = lax.stop_gradient(law.resolution(pushed))
    active = pushed > resolution
    rebound = active & (last == IMPACT) & (traits.steps > 1)
    # the gap velocity O(h) that an inelastic impact on a curved wall leaves is no second impact
    rest = (last == REBOUND) & (jnp.broadcast_to(e, active.shape) <= 0)
    impact = active & ~rebound & ~rest & (here.gap_velocity < -here.threshold)
    # lasting contacts: one that leaves after an impact may still get a small impulse, so forces must press it; one that
    # lasts, or that an impact opens in this very step, may get none
    slow = ~impact & ~rebound & (rest | (jnp.abs(here.gap_velocity) <= here.threshold))
    reacting, lasted = slow & active, last == LASTING
    may, none = slow & (active | lasted), jnp.zeros_like(active)
    pressed = solve_active_forces(here.contacts, here.gap_acceleration, may, none, branches=branches)[1]
    closed = reacting & (lasted | pressed)
    closed, lasting = remember((closed, closed | pressed))

    current = Contact(active, impact, rebound, reacting, lasting, closed)
    salted = cross_impacts(problem, motion, at, here, current, resolution, branches)
    current = current._replace(stays=lax.stop_gradient(salted.closed))
    crossed = jnp.any(impact)
    back_q, back_v = salted.q - middle * salted.v, salted.v - middle * salted.a
    back = before._replace(q=jnp.where(crossed, back_q, begin.q), v=jnp.where(crossed, back_v, begin.v))
    # an impulse that contains a percussion is no force of lasting contact; restitution plays no part in that either
    known = lax.stop_gradient(jnp.where(closed & ~crossed & ~jnp.any(rebound), info.impulse, 0))
    held = Held(jnp.where(crossed, salted.closed, closed), known, lax.stop_gradient(info.z))
    off = OFF * motion.h
    free = opens_by_change(problem, *at[:3], salted.v, impact & (e <= 0), current.stays, at.args, off)
    return Salted(
        at, salted.v, here, metric, e, current, back, held, salted.impulse[:, None],
        salted.joint_impulse, state.friction, state.edge, as_status(free, Status.DERIVATIVE_EVENTS),
    )  # fmt: skip
