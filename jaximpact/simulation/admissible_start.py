"""The start of a motion, made admissible by an inelastic impact."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ..jaxtools.array_types import I0, F_m
from ..mechanics.contact import ContactLaw
from ..mechanics.joint_projection import start_on_joints
from ..mechanics.linearisation import Metric, acceleration, closure, linearise
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import JointInfo
from ..mechanics.schemes.rubbing import scale_at_start
from ..mechanics.status import Status, as_status


def admissible_start(problem: Problem, law: ContactLaw, motion: Motion) -> tuple[Motion, F_m, JointInfo, I0]:
    """Makes the start admissible by an inelastic impact at t0: Paoli 2010, initial data (P4).

    Returns:
        The motion with v0 projected onto the tangent cone T(t0, q0) in the kinetic metric; the impulse (m,) of
        contacts; impulse and residual of the joints; status bits ().
    """
    (t0, q0, v0, args), h, e = motion.start, motion.h, motion.e
    metric = Metric.at(problem, q0, args, t0)
    contacts = linearise(problem, metric, t0, q0, args)
    v0, joints, held = start_on_joints(metric, q0, v0, h)
    gap_velocity = contacts.gap_velocity(v0)
    at = closure(contacts, gap_velocity, q0, v0, h, acceleration(problem, metric, t0, q0, v0, args))
    found = law.velocity(contacts, gap_velocity, at.closed)
    inside = jnp.all((e >= 0) & (e <= 1)) & (h > 0)
    if problem.rubs:
        slips = problem.slip_velocity(t0, q0, v0, args)
        sliding, static = problem.friction_coefficients(slips, args), problem.static_coefficients(slips, args)
        inside &= jnp.all(sliding >= 0) & (True if static is None else jnp.all(static >= sliding))
    status = (
        scale_at_start(problem, metric, contacts, at.closed, t0, q0, args)
        | (found.status & ~int(Status.IMPULSES_COUPLED))  # inelastic
        | as_status(jnp.any(at.outward), Status.START_VELOCITY_PROJECTED)
        | as_status(jnp.any(at.violated), Status.INPUT_INVALID)
        | as_status(~inside, Status.INPUT_INVALID)
    )
    joints = joints._replace(impulse=joints.impulse + metric.joints.reaction_to(contacts, found.impulse))
    # a jump that is rounding has no derivative: of contacts that are pressed together `put_on_surfaces` takes it
    jump = jnp.where(jnp.any(at.outward), found.jump, lax.stop_gradient(found.jump))
    return motion._replace(v0=v0 + jump), found.impulse, joints, status | held
