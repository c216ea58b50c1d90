"""Status bits of a motion, combined over its steps by OR: failures, doubts about derivatives, and remarks."""

from __future__ import annotations

import enum

import jax.numpy as jnp
import numpy as np
from jax import Array


class Status(enum.IntFlag):
    """Status bits of a motion; zero means that there is nothing to report."""

    OK = 0
    PROJECTION_NOT_CONVERGED = 1
    INFEASIBLE = 2
    MASS_NOT_POSITIVE = 4
    NON_FINITE = 8
    FIXED_POINT_NOT_CONVERGED = 16
    START_VELOCITY_PROJECTED = 32
    DERIVATIVE_GRAZING = 64
    DERIVATIVE_SIMULTANEOUS = 128
    DERIVATIVE_AT_END = 256
    DERIVATIVE_ZENO = 512
    GAP_NOT_DISTANCE = 1024
    START_NOT_ADMISSIBLE = 2048
    INPUT_OUT_OF_RANGE = 4096
    STEP_UNSTABLE = 8192
    GRADIENT_VANISHES = 16384
    MASS_NOT_SYMMETRIC = 32768
    EVENTS_UNRESOLVED = 1 << 16
    DERIVATIVE_NOT_FINITE = 1 << 17
    IMPULSES_COUPLED = 1 << 18
    NEIGHBOURS_LOST = 1 << 19
    NEIGHBOURS_OUTRUN = 1 << 20
    DERIVATIVE_JUMP = 1 << 21
    GAP_UNRESOLVED = 1 << 22
    TRIALS_EXHAUSTED = 1 << 23
    PENETRATION_DEEP = 1 << 24
    JOINTS_SINGULAR = 1 << 25
    JOINTS_NOT_MET = 1 << 26
    DERIVATIVE_FRICTION = 1 << 27
    FRICTION_JAMMED = 1 << 28
    ENERGY_GAINED = 1 << 29
    IMPULSES_NOT_UNIQUE = 1 << 30

    def __str__(self) -> str:
        return "|".join(bit.name or "" for bit in Status if bit & self) or "OK"


# What the user can do about each bit; bits outside FAILURES are remarks.
CAUSES = {
    Status.PROJECTION_NOT_CONVERGED: "the projection did not reach its tolerance: raise its iteration limits, choose "
    "another projection, or take a smaller h (strongly curved or dependent constraints, a gradient that vanishes at contact); bodies "
    "that grow or are pressed together have jammed: grow them more slowly, not with a smaller h",
    Status.INFEASIBLE: "the linearised constraints have no common point: constraints contradict each other, or a moving "
    "constraint leaves no room",
    Status.MASS_NOT_POSITIVE: "the mass matrix was not positive definite: check mass(q, args) at the configurations reached, "
    "which lie up to O(h) outside the admissible set",
    Status.NON_FINITE: "the state became infinite or NaN: force or constraints are not finite where the scheme evaluates "
    "them, or h is too large for an explicit scheme (h times the highest frequency must stay below 2); EventDriven and EventCorrected "
    "take a force with jumps piece by piece, each a little beyond its borders: roots, powers and logarithms are extrapolated there, as maximum(q, 0)**1.5 is, "
    "but floor(1/t) at t = 0 is not finite; state the border as Problem(..., switches=lambda t, q, v, args: q), beyond which any force is extrapolated, or take "
    "a scheme of fixed steps",
    Status.FIXED_POINT_NOT_CONVERGED: "the iteration for the implicit part of the force (PaoliSchatzman(force='centred'), "
    "MoreauJean) did not converge: take a smaller h or more iterations; a motion that blows up in finite time ends like this",
    Status.START_VELOCITY_PROJECTED: "v0 pointed out of the admissible set at an active constraint, or broke a joint, and was "
    "projected onto the admissible velocities (as an inelastic impact at t0); or it closed a contact within the first step of PaoliSchatzman, which has no "
    "restitution: take a smaller h, a start that is further off, or another scheme",
    Status.DERIVATIVE_GRAZING: "(derivatives only) a contact closed, or was only just missed, at a normal velocity too small, for this h, "
    "to be told from none: near grazing the derivative diverges; or it is closed with no force on it, so that a change of the forces one way opens it: "
    "take a smaller h, or trust no derivative of this motion",
    Status.DERIVATIVE_SIMULTANEOUS: "(derivatives only) contacts that are not orthogonal, that bend or turn each other's paths "
    "(forces of the velocity), or more than are followed one by one, struck within one step: at a simultaneous impact the motion is not differentiable; a smaller h tells "
    "whether they coincide, and sensitivities(direction=...) has the derivative on one side",
    Status.DERIVATIVE_AT_END: "(derivatives only) an impact lies within a step or two of t0 or t1, or as near t1 as h and the impacts "
    "before leave its time open: at the time of an impact the state has no derivative; move t1, or take a smaller h",
    Status.DERIVATIVE_ZENO: "(derivatives only) infinitely many impacts accumulated (bounces died out): the derivative behind "
    "that point is of first order at best",
    Status.GAP_NOT_DISTANCE: "(remark) friction is mu times the normal force, which takes each gap for a distance, and the gradient of one in contact "
    "has another length; or the normal velocity that slip gives is not along that gradient: divide the gap by the length of its gradient, as (y - h(x)) / sqrt(1 + h'(x)^2), or return "
    "the whole relative velocity, slip=lambda t, q, v, args: (normal, tangential)",
    Status.EVENTS_UNRESOLVED: "(remark) more impacts, or jumps of the force, fell into one step than the scheme locates; the last ones were moved to its end, "
    "an error of first order: take a smaller h, or EventCorrected(impacts=...); or the force jumps with the velocity where a contact with static friction "
    "sticks, and it is not known when both break loose together: state that force as friction of a contact",
    Status.DERIVATIVE_NOT_FINITE: "(derivatives only) a Jacobian is infinite or NaN: force, constraints or output are not differentiable "
    "where they were evaluated (sqrt or a norm at zero); write them so that they are",
    Status.DERIVATIVE_JUMP: "(derivatives only) the force, the mass or the velocity of a gap in contact jumped on the way (a comparison, sign, "
    "floor or table on t, q or v, or a friction that turns round within a step), or a contact was lost where the curvature of its surface jumps, or all "
    "but did: the time of the jump varies with the data, and it is not passed in free flight, fast and far enough from all else for this h; take a smaller h, "
    "or EventDriven, which locates jumps of force and mass, unless the motion only touches one, or has one at t0 or t1; or make it continuous over a few steps",
    Status.IMPULSES_COUPLED: "(remark) with restitution or friction, contacts that are not orthogonal were struck in one step: at such a "
    "corner the motion is not continuous in its data, and another scheme or step may give another one, as legitimate (a smaller h tells "
    "two impacts that follow each other apart); of bodies at rest it says nothing",
    Status.NEIGHBOURS_LOST: "more bodies came near each other than there was room for on their list, so that contacts were lost (under a "
    "transformation of jax it cannot be enlarged): give Bodies(pairs=..., members=...) larger numbers",
    Status.NEIGHBOURS_OUTRUN: "a body moved further in one step than a quarter of the skin of the list of near pairs, past which contacts may be "
    "missed, or the reach is no number, or too short for the bodies as they are at t0 or t1: take a smaller h or a larger Bodies(skin=...), "
    "or a Bodies(reach=...) that is long enough at all times",
    Status.TRIALS_EXHAUSTED: "EventDriven made as many trials in one step as it may and did not reach the end of it: events follow each other "
    "without end, or the force is stiff or jumps too often for the tolerance; take larger rtol and atol, EventDriven(trials=...), smaller steps h, "
    "or MoreauJean for a stiff force",
    Status.PENETRATION_DEEP: "a body penetrated so deep that h does not resolve the motion: past another contact that faces the first, "
    "as a light body does that bounces ever faster before a heavy one, or by a tenth of the radius of a curved surface that it slides "
    "along (MoreauJean drifts by O(h)): take a smaller h, or EventCorrected or PaoliSchatzman",
    Status.GAP_UNRESOLVED: "a gap closed and opened again within one step, unseen: the straight way of a step led through an obstacle. Take a "
    "smaller h: what moves in a step must stay well below the size of what it may meet",
    Status.JOINTS_SINGULAR: "the joints were in a singular position or passed one within a step or so, where some of them depend on each other and "
    "a linkage may go on in more than one way: keep away from it, or state joints that stay independent there",
    Status.JOINTS_NOT_MET: "q0 does not satisfy the joints (traced data cannot raise), or no position near the end of a step does: joints that "
    "contradict each other, or too large an h; start from jaximpact.assemble(problem, q0, v0), take a smaller h",
    Status.DERIVATIVE_FRICTION: "(derivatives only) a contact changed between sticking and slipping in the step of an impact, or its slip was too slow "
    "for h to tell which way it goes; or, with static friction, it only just broke away, came to rest or stayed; or contacts that load each other did so one after "
    "the other within a step: the derivative there may be that of the other side; take a smaller h",
    Status.FRICTION_JAMMED: "at a contact with an impulse, or one that lifts off, friction exceeded Painleve's bound, mu |A_nt| >= A_nn: sliding may have no solution or "
    "two, and a contact may jam without a collision where it could also lift off; the motion is one of those that the law allows",
    Status.ENERGY_GAINED: "an impact with friction and restitution gained energy, as Newton's law allows where normal and tangential velocities are coupled: "
    "a smaller restitution, or none, does not",
    Status.IMPULSES_NOT_UNIQUE: "(remark) contacts with friction held a body in more ways than it has, as two feet that stick side by side: many impulses give the "
    "same motion, and those told are the smallest or one choice among them; read sums over these contacts, not each; where some of them slip, how long a body rests on them may depend on that choice. Or equations of joints follow from others: their "
    "impulses are the smallest of those that make the motion",
    Status.START_NOT_ADMISSIBLE: "q0 violates a constraint at t0 (traced data cannot raise): move q0 into the admissible set, "
    "every gap >= 0",
    Status.INPUT_OUT_OF_RANGE: "restitution outside [0, 1] (for Maury: other than 0), a coefficient of friction below 0, for `extend.solve_contact` a matrix that is not symmetric and positive semidefinite, t1 not later than t0, or saved times that do not increase from t0 to t1 "
    "(traced data cannot raise): keep them within their range, by a transformation of the variable if they are optimised",
    Status.STEP_UNSTABLE: "h is beyond the stability bound of the explicit force (h times the highest frequency must stay below "
    "2, h times the damping rate below 2): take a smaller h, or MoreauJean, which is implicit in the force",
    Status.GRADIENT_VANISHES: "a gap closed where its gradient vanishes (q^2 or q^3 at q = 0): the direction of the impulse is "
    "not defined there; state the same set by a function whose gradient does not vanish on its boundary",
    Status.MASS_NOT_SYMMETRIC: "the mass matrix was not symmetric: check mass(q, args) away from q0",
}
FAILURES = (
    Status.PROJECTION_NOT_CONVERGED
    | Status.INFEASIBLE
    | Status.MASS_NOT_POSITIVE
    | Status.NON_FINITE
    | Status.FIXED_POINT_NOT_CONVERGED
    | Status.START_NOT_ADMISSIBLE
    | Status.INPUT_OUT_OF_RANGE
    | Status.STEP_UNSTABLE
    | Status.GRADIENT_VANISHES
    | Status.MASS_NOT_SYMMETRIC
    | Status.NEIGHBOURS_LOST
    | Status.NEIGHBOURS_OUTRUN
    | Status.TRIALS_EXHAUSTED
    | Status.PENETRATION_DEEP
    | Status.GAP_UNRESOLVED
    | Status.JOINTS_SINGULAR
    | Status.JOINTS_NOT_MET
)
# bits about derivatives only, and all bits that make a derivative doubtful
DERIVATIVES = (
    Status.DERIVATIVE_GRAZING
    | Status.DERIVATIVE_SIMULTANEOUS
    | Status.DERIVATIVE_AT_END
    | Status.DERIVATIVE_ZENO
    | Status.DERIVATIVE_NOT_FINITE
    | Status.DERIVATIVE_JUMP
    | Status.DERIVATIVE_FRICTION
)
DOUBTS = DERIVATIVES | Status.EVENTS_UNRESOLVED


def as_status(condition: Array, bit: int) -> Array:
    """Returns ``bit`` where the condition holds, else 0, as int32."""
    return jnp.where(condition, int(bit), 0).astype(jnp.int32)


def describe(bits: int) -> str:
    """Returns one line per bit that is set: its name, likely cause and cure."""
    return "\n".join(f"{bit.name}: {CAUSES[bit]}" for bit in Status if bit & bits and bit in CAUSES)


def summarise(status: np.ndarray, failed_at: np.ndarray) -> str:
    """Returns a text on the failures in a batch: how many, where the first ones are, and their causes.

    ``status``: bits of each motion (n,); ``failed_at``: times (n,) at which they were first set.
    """
    status, failed_at = np.atleast_1d(status), np.atleast_1d(failed_at)
    bad = np.flatnonzero(status & int(FAILURES))
    bits = int(np.bitwise_or.reduce(status[bad])) & int(FAILURES)
    where = ", ".join(f"trajectory {i} at t = {failed_at[i]:.6g}" for i in bad[:5])
    return (
        f"{bad.size} of {status.size} trajectories failed ({where}{', ...' if bad.size > 5 else ''})\n{describe(bits)}"
    )
