"""Checks of numbers before a motion starts: finiteness, an admissible start, a positive definite mass; joints,
switches, friction and restitution.

A report is computed for each lane, batched; then the host raises errors. Under a jax transformation, where numbers are
unknown, nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..jaxtools.jaxpr_tools import depends_on
from ..jaxtools.trace_context import full_precision
from ..mechanics.coefficients import OfSpeed
from ..mechanics.contact.friction.cones import direction
from ..mechanics.friction import Slip
from ..mechanics.joint_projection import start_errors
from ..mechanics.joints import DEPENDENT, Joints, scales
from ..mechanics.labels import Labels
from ..mechanics.linearisation import Closure, Metric, closure, linearise
from ..mechanics.mass import Identity
from ..mechanics.motion import At
from ..mechanics.problem import Problem

SPEEDS = np.concatenate(
    [[0.0], np.logspace(-6, 3, 19)]
)  # slip speeds at which a coefficient that depends on them is looked at


class JointReport(NamedTuple):
    """Values and velocities of the joints (j,) at a start, and masks (j,): joints that do not hold (``wrong``), whose
    velocity has to be projected (``broken``) or cannot be (``stuck``), and that follow from others (``redundant``)."""

    value: Array
    velocity: Array
    wrong: Array
    broken: Array
    stuck: Array
    redundant: Array

    @classmethod
    def of(cls, joints: Joints, q0: Array, v0: Array, h: Array | None) -> JointReport:
        velocity = joints.velocity(v0)
        wrong, broken = start_errors(joints, q0, v0, h)
        kept = v0 - joints.restore(velocity)
        # what is taken back of other rows is rounded too, where a row has nothing of its own
        taken = jnp.abs(joints.response) @ jnp.abs(joints.forces(velocity))
        speeds, rates = jnp.abs(v0) + jnp.abs(kept) + taken, jnp.abs(joints.rate)
        rounding = 1e3 * jnp.finfo(q0.dtype).eps * (scales(joints.jacobian, speeds) + rates)
        # a row that depends on others to the cut-off differs from them by that
        slack = DEPENDENT**0.5 * (joints.terms(speeds) + rates)
        left = jnp.abs(joints.velocity(kept))
        stuck = left > jnp.where(joints.independent(), rounding, rounding + slack)
        return cls(joints.value, velocity, wrong, broken, stuck, ~joints.independent())

    @property
    def refused(self) -> Array:
        return self.wrong | self.stuck

    def judge(self, report: StartReport, which: Callable[[int], str]) -> str | None:
        """Raises ValueError for joints that do not hold at the start of some lane, or contradict each other.

        Returns a remark if velocities have to be projected or rows are not needed, else None. ``which(lane)``: text
        that names a lane in messages.
        """

        def first(mask: np.ndarray | Array) -> tuple[int, int]:
            lane, row = np.unravel_index(np.argmax(mask), mask.shape)
            return int(lane), int(row)

        wrong, broken, stuck = (np.atleast_2d(x) for x in (self.wrong, self.broken, self.stuck))
        value, velocity = np.atleast_2d(self.value), np.atleast_2d(self.velocity)
        if wrong.any():
            i, a = first(wrong)
            raise ValueError(
                f"q0{which(i)} does not satisfy the joints: {report.naming.joint(a)} is {value[i, a]:.6g} in place of "
                "0; start from the nearest "
                "position that does, q0, v0 = jaximpact.assemble(problem, q0, v0)"
            )
        if stuck.any():
            i, a = first(stuck)
            raise ValueError(
                f"joints contradict each other at q0{which(i)}: no velocity keeps them all, {report.naming.joint(a)} "
                "among them; leave out what "
                "follows from other rows, and rows beyond the number of coordinates"
            )
        if broken.any():
            i, a = first(broken)
            return (
                f"v0{which(i)} breaks the joints: {report.naming.joint(a)} would change at {velocity[i, a]:.6g}; v0 is "
                "projected onto the velocities "
                "that keep them"
            )
        redundant = np.atleast_2d(self.redundant)
        if redundant.any():
            i, a = first(redundant)
            return (
                f"{report.naming.joint(a)} adds nothing to the joints before it at q0{which(i)}: if so everywhere, "
                "many joint impulses make the same "
                "motion, of which the least are told; if there alone, the position is singular, and a motion from it "
                "is not determined"
            )
        return None


class SwitchReport(NamedTuple):
    """Masks (k,) of the switching functions that a problem states: which are ``finite`` at a start, and which are zero
    both at the start and at a point near it (``flat``), so that they define no surface."""

    finite: Array
    flat: Array

    @classmethod
    def of(cls, problem: Problem, t: Array, q: Array, v: Array, args: object) -> SwitchReport:
        here = problem.switch_values(t, q, v, args)
        there = problem.switch_values(t + 1, _beside(q), _beside(v), args)
        return cls(jnp.isfinite(here), (here == 0) & (there == 0))

    @property
    def refused(self) -> Array:
        return ~self.finite | self.flat

    def judge(self, report: StartReport, which: Callable[[int], str]) -> None:
        """Raises ValueError for the first switch of any lane that is not finite, or zero near the start.

        ``which``: as in `JointReport.judge`.
        """
        for wrong, what in (
            (~np.asarray(self.finite), "is not finite"),
            (
                np.asarray(self.flat),
                "is zero at the start and beside it: no surface, where a function changes its sign",
            ),
        ):
            if wrong.any():
                i, k = np.unravel_index(np.argmax(wrong), wrong.shape)
                raise ValueError(f"switches(t0, q0, v0, args)[{k}]{which(int(i))} {what}")


class FrictionReport(NamedTuple):
    """Masks of the contacts (m,) at a start: those without a coefficient of friction >= 0 (``wrong``), with a positive
    one but no tangents to slip along (``tangentless``), and with a static coefficient below it (``weak``)."""

    wrong: Array
    tangentless: Array
    weak: Array

    @classmethod
    def of(cls, problem: Problem, gradient: Array, t: Array, q: Array, v: Array, args: object) -> FrictionReport:
        """Makes the report from the gradients (m, d) of the gaps.

        A contact is ``tangentless`` unless one of its tangents at least is not along the gradient of its gap: what has
        two freedoms slips along one line.
        """
        tangents = jax.jacfwd(lambda v: problem.slip_velocity(t, q, v, args))(v)
        return cls.along(problem, gradient, tangents, args)

    @classmethod
    def of_list(cls, problem: Problem, contacts: Any, t: Array, q: Array, args: object) -> FrictionReport:
        """Report for bodies in lists, from their `PairContacts`, with gradients by either body's coordinates; empty
        slots of the list are not judged."""
        rows = lambda x: jnp.concatenate([x.gi, x.gj], axis=1)
        slip: Any = Slip.at(problem, Metric(Identity(), Joints.none(len(q), q.dtype)), t, q, jnp.zeros_like(q), args)
        found = cls.along(problem, rows(contacts), jnp.stack([rows(x) for x in slip.tangents], axis=1), args)
        occupied = (contacts.i < contacts.bodies) & (contacts.diagonal() > 0)
        return found._replace(tangentless=found.tangentless & occupied)

    @classmethod
    def along(cls, problem: Problem, gradient: Array, tangents: Array, args: object) -> FrictionReport:
        """Report for contacts with the gradients ``gradient`` (m, d) of their gaps,
        and ``tangents`` (m, k, d) of their slip velocities."""
        q, still = gradient, jnp.zeros(tangents.shape[:2], gradient.dtype)
        friction = problem.friction_coefficients(still, args)
        found, left = [direction(gradient)], jnp.zeros_like(friction, dtype=bool)
        for k in range(tangents.shape[1]):
            row = rest = direction(tangents[:, k])
            for other in found:
                rest = rest - jnp.sum(row * other, axis=1, keepdims=True) * other
            left |= jnp.sum(rest**2, axis=1) > 16 * jnp.finfo(q.dtype).eps
            found.append(direction(rest))
        wrong = ~(friction >= 0) | ~jnp.isfinite(friction)
        if isinstance(problem.friction, OfSpeed):
            moving = jax.vmap(lambda s: problem.friction_coefficients(still + s, args))(SPEEDS.astype(q.dtype))
            wrong |= jnp.any(~(moving >= 0) | ~jnp.isfinite(moving), axis=0)
        static = problem.static_coefficients(still, args)
        weak = jnp.zeros_like(wrong) if static is None else ~(static >= friction) | ~jnp.isfinite(static)
        return cls(wrong, (friction > 0) & ~left, weak)

    @property
    def refused(self) -> Array:
        return self.wrong | self.tangentless | self.weak

    def judge(self, report: StartReport, which: Callable[[int], str]) -> None:
        """Raises ValueError for the first contact of any lane in one of the masks; ``which``:
        as in `JointReport.judge`."""
        for wrong, of, what in (
            (self.wrong, "friction", "must be finite and >= 0, at all slip speeds if it depends on them"),
            (
                self.weak,
                "static_friction",
                "must be finite and not below friction, the coefficient of contacts that slip: give both, or none",
            ),
            (
                self.tangentless,
                "slip",
                "gives no tangential direction: it changes with v along the gap's gradient only, or not at all (where "
                "nothing rubs, friction is 0)",
            ),
        ):
            if np.any(wrong):
                i, a = np.unravel_index(np.argmax(wrong), np.shape(wrong))
                raise ValueError(f"{of} of {report.naming.constraint(int(a))} at the start{which(int(i))} {what}")


class RestitutionReport(NamedTuple):
    """Values (m,) of a restitution function at a start, and the mask (m,) of those outside [0,
    1] that an impact at the start would use."""

    value: Array
    wrong: Array

    @classmethod
    def of(cls, problem: Problem, rates: Array, args: object) -> RestitutionReport:
        """Report for the gap velocities (m,) of a start. A restitution that depends on them is checked for gaps that
        close; one that does not is checked for all."""
        value = problem.restitution_at(jnp.ones((), rates.dtype), rates, args)
        constant = not depends_on(lambda rates: problem.restitution_at(1.0, rates, args), (rates,), on=(0,))
        return cls(value, ((rates < 0) | constant) & ~((value >= 0) & (value <= 1)))

    @property
    def refused(self) -> Array:
        return self.wrong

    def judge(self, report: StartReport, which: Callable[[int], str]) -> None:
        """Raises ValueError for the first value of any lane outside [0, 1]; ``which``: as in `JointReport.judge`."""
        if np.any(self.wrong):
            i, a = np.unravel_index(np.argmax(self.wrong), np.shape(self.wrong))
            speed = abs(min(float(np.asarray(report.gap_velocity)[i, a]), 0.0))
            raise ValueError(
                f"restitution(w, args) must lie in [0, 1], got {float(self.value[i, a]):g}{which(int(i))} at the speed "
                f"{speed:g} of contact {a} at t0: "
                "keep it within them, as by jnp.clip, at every speed"
            )


class StartReport(NamedTuple):
    """Facts about a start, computed before the motion.

    Attributes:
        gap, gap_velocity: of the contacts (m,).
        closure: which contacts are closed, violated, or closed with a velocity that points outward.
        positive, symmetric: whether the mass is positive definite and symmetric ().
        lagrangian: whether d2L/dv2 of a Lagrangian is independent of v and t (); True without one.
        finite: whether the force is finite ().
        naming: names of coordinates and contacts for messages.
        parts: reports on those of switches, friction, restitution and joints that the problem has: each has the mask
            ``refused`` (..., n) of invalid entries, and a method ``judge`` that raises for them.
        bodies: report on listed bodies; None if there are none.
    """

    gap: Array
    gap_velocity: Array
    closure: Closure
    positive: Array
    symmetric: Array
    lagrangian: Array
    finite: Array
    naming: Labels
    parts: tuple[SwitchReport | FrictionReport | RestitutionReport | JointReport, ...]
    bodies: Any = None

    @property
    def is_fine(self) -> Array:
        """Whether a start needs no error and no warning, (); of bodies in lists, whose lists may have to be longer,
        `bodies` says more."""
        at = self.closure
        right = self.positive & self.symmetric & self.lagrangian & self.finite
        remarked = [x.broken | x.redundant for x in self.parts if isinstance(x, JointReport)]
        for mask in (*(part.refused for part in self.parts), *remarked):
            right &= ~jnp.any(mask)
        return right & jnp.all(jnp.isfinite(self.gap)) & ~jnp.any(at.violated | at.outward)


@full_precision()
def start_report(problem: Problem, start: At, h: Array | None = None) -> StartReport:
    t0, q0, v0, args = start
    metric, near = Metric.at(problem, q0, args, t0), problem.near(problem.gaps.neighbours(t0, q0, args))
    bodies = near.gaps.facts(t0, q0, args)
    contacts = linearise(near, metric, t0, q0, args)
    joints, given = metric.joints, v0
    if joints.size:
        v0 = v0 - joints.restore(joints.velocity(v0))
    gap_velocity = contacts.gap_velocity(v0)
    force = problem.generalised_force(t0, q0, v0, args)
    quadratic = jnp.array(True)
    if np.ndim(metric.matrix) == 2:
        inertia = getattr(problem.force, "inertia", None)
        if inertia is not None and depends_on(inertia, (t0, q0, v0, args), on=(0, 2)):
            quadratic = _is_quadratic(inertia, q0, v0, t0, args)
    finite = jnp.all(jnp.isfinite(force))
    at = closure(contacts, gap_velocity, q0, v0, h, metric.solve(force))
    parts: list = []
    if problem.switches is not None:
        parts.append(SwitchReport.of(problem, t0, q0, v0, args))
    if problem.rubs and contacts.dense:
        parts.append(FrictionReport.of(problem, contacts.jacobian, t0, q0, v0, args))
    elif problem.rubs:
        parts.append(FrictionReport.of_list(near, contacts, t0, q0, args))
    if callable(problem.restitution):
        parts.append(RestitutionReport.of(problem, gap_velocity, args))
    if joints.size:
        parts.append(JointReport.of(joints, q0, given, h))
    facts = contacts.gap, gap_velocity, at, metric.positive(), metric.symmetric(), quadratic, finite
    return StartReport(*facts, problem.naming, tuple(parts), bodies)


def _beside(x: Array) -> Array:
    """A point (d,) at a moderate distance from x, in a generic direction, for checks whether a function is constant."""
    return x + (0.1 + 0.01 * jnp.arange(len(x), dtype=x.dtype)) * (1 + jnp.abs(x))


def _is_quadratic(inertia: Callable, q: Array, v: Array, t: Array, args: object) -> Array:
    """Whether a Lagrangian is quadratic in v, (): d2L/dv2 does not change with time and velocity,
    at q (d,) and at a point near it.

    Values that are not finite are ignored, since a Lagrangian need not be defined away from the start.
    """
    beside = _beside(q)
    mass = jax.vmap(lambda t, q, v: inertia(t, q, v, args))
    here, there = jnp.zeros_like(v), v + 1
    found = mass(jnp.stack([0 * t, t + 1] * 2), jnp.stack([q, q, beside, beside]), jnp.stack([here, there] * 2))
    known = jnp.where(jnp.isfinite(found), found, 0)
    small = 1e4 * jnp.finfo(q.dtype).eps * jnp.max(jnp.abs(known), axis=(1, 2), keepdims=True)
    return jnp.all(~(jnp.abs(found[1::2] - found[::2]) > small[::2]))


def refused_lanes(report: StartReport) -> np.ndarray:
    """Mask of lanes whose start is not admissible or not finite, or has no positive definite mass."""
    bad = ~(report.positive & report.symmetric & report.finite)
    for part in report.parts:
        bad = bad | np.any(part.refused, axis=1)
    return np.asarray(bad | np.any(report.closure.violated | ~np.isfinite(report.gap), axis=1))


def raise_or_warn(report: StartReport, *, lanes: bool) -> str | None:
    """Raises for the first error in a batch of start reports (leading axis: lanes); returns the text of a warning,
    or None."""

    def worst(mask: np.ndarray | Array, value: np.ndarray | Array) -> tuple[int, int]:
        lane, constraint = np.unravel_index(np.argmin(np.where(mask, value, np.inf)), mask.shape)
        return int(lane), int(constraint)

    def which(i: int) -> str:
        return f" of trajectory {i}" if lanes else ""

    if not report.positive.all():
        i = int(np.argmin(report.positive))
        raise ValueError(
            f"mass is not positive definite (or not finite) at q0{which(i)}: check mass(q0, args), of a Lagrangian "
            "d2L/dv2"
        )
    if not report.symmetric.all():
        i = int(np.argmin(report.symmetric))
        raise ValueError(f"mass is not symmetric at q0{which(i)}: check mass(q0, args), of a Lagrangian d2L/dv2")
    if not report.lagrangian.all():
        raise ValueError(
            "lagrangian must be quadratic in v with a mass matrix independent of time: d2L/dv2 changes with t or v"
        )
    if not report.finite.all():
        i = int(np.argmin(report.finite))
        raise ValueError(f"force is not finite at t0, q0, v0{which(i)}: check force(t0, q0, v0, args)")
    remark = None
    for part in report.parts:
        remark = part.judge(report, which) or remark
    if report.gap.size == 0:
        return remark
    if report.bodies is not None:
        report.bodies.judge(np.asarray(report.closure.violated), np.asarray(report.gap), which)
    if not np.isfinite(report.gap).all():
        i = int(np.argmin(np.all(np.isfinite(report.gap), axis=1)))
        raise ValueError(f"constraints are not finite at q0{which(i)}: check constraints(t0, q0, args)")
    if report.closure.violated.any():
        i, a = worst(report.closure.violated, report.gap)
        raise ValueError(
            f"q0{which(i)} is not admissible: {report.naming.constraint(a)} has gap {report.gap[i, a]:.6g} < 0 at t0; "
            "move q0 by at least "
            "that much into the admissible set (every gap >= 0)"
        )
    if report.closure.outward.any():
        i, a = worst(report.closure.outward, report.gap_velocity)
        where = report.naming.constraint(a) if report.bodies is None else report.bodies.contact(i, a)
        return (
            f"v0{which(i)} points out of the admissible set: {where} is active and its gap would change at "
            f"{report.gap_velocity[i, a]:.6g}; v0 is projected onto the admissible velocities (an inelastic impact at "
            "t0)"
        )
    return remark
