"""Status bits of a motion, combined over its steps by OR: failures, doubts about derivatives, and remarks."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array


class Status(enum.IntFlag):
    """Status bits of a motion; zero means that there is nothing to report.

    A bit stands for what its user can do; its text names the causes. Names below the line are those of before, when
    each cause had a bit of its own.
    """

    OK = 0
    CONTACTS_NOT_SOLVED = 1
    MASS_INVALID = 1 << 2
    NON_FINITE = 1 << 3
    START_VELOCITY_PROJECTED = 1 << 5
    DERIVATIVE_EVENTS = 1 << 6
    DERIVATIVE_AT_END = 1 << 8
    GAP_NOT_DISTANCE = 1 << 10
    INPUT_INVALID = 1 << 11
    STEP_UNSTABLE = 1 << 13
    EVENTS_UNRESOLVED = 1 << 16
    DERIVATIVE_NOT_FINITE = 1 << 17
    IMPULSES_COUPLED = 1 << 18
    NEIGHBOURS_LOST = 1 << 19
    DERIVATIVE_JUMP = 1 << 21
    GAP_UNRESOLVED = 1 << 22
    TRIALS_EXHAUSTED = 1 << 23
    JOINTS_NOT_MET = 1 << 26
    FRICTION_JAMMED = 1 << 28
    ENERGY_GAINED = 1 << 29
    IMPULSES_NOT_UNIQUE = 1 << 30
    # ---
    PROJECTION_NOT_CONVERGED = CONTACTS_NOT_SOLVED
    INFEASIBLE = CONTACTS_NOT_SOLVED
    GRADIENT_VANISHES = CONTACTS_NOT_SOLVED
    MASS_NOT_POSITIVE = MASS_INVALID
    MASS_NOT_SYMMETRIC = MASS_INVALID
    FIXED_POINT_NOT_CONVERGED = STEP_UNSTABLE
    START_NOT_ADMISSIBLE = INPUT_INVALID
    INPUT_OUT_OF_RANGE = INPUT_INVALID
    NEIGHBOURS_OUTRUN = GAP_UNRESOLVED
    PENETRATION_DEEP = GAP_UNRESOLVED
    JOINTS_SINGULAR = JOINTS_NOT_MET
    DERIVATIVE_GRAZING = DERIVATIVE_EVENTS
    DERIVATIVE_SIMULTANEOUS = DERIVATIVE_EVENTS
    DERIVATIVE_ZENO = DERIVATIVE_EVENTS
    DERIVATIVE_FRICTION = DERIVATIVE_EVENTS
    PROJECTION_REFINED = OK

    def __str__(self) -> str:
        return "|".join(bit.name or "" for bit in Status if bit & self) or "OK"


# What happened, and what the user can do about it; bits outside FAILURES are remarks.
CAUSES = {
    Status.CONTACTS_NOT_SOLVED: "the contact problem of a step has no solution, or its solver did not reach the "
    "tolerance: constraints that contradict each other "
    "or leave a body no room have none; strongly curved or dependent constraints need a smaller h, more iterations or "
    "another projection; a gap whose gradient "
    "vanishes where it closes (q^2 at q = 0) gives its impulse no direction, and a switch whose slope vanishes where "
    "it is crossed (q^3) no time: state the same set by another function; bodies that grow or are pressed together "
    "have jammed: grow them more slowly",
    Status.MASS_INVALID: "the mass matrix was not positive definite, or not symmetric: check mass(q, args) at the "
    "configurations reached, which lie up to O(h) "
    "outside the admissible set",
    Status.NON_FINITE: "the state became infinite or NaN: force or constraints are not finite where the scheme "
    "evaluates "
    "them, or h is too large for an explicit scheme (h times the highest frequency must stay below 2); EventDriven and "
    "EventCorrected "
    "take a force with jumps piece by piece, each a little beyond its borders: roots, powers and logarithms are "
    "extrapolated there, as maximum(q, 0)**1.5 is, "
    "but floor(1/t) at t = 0 is not finite; state the border as Problem(..., switches=lambda t, q, v, args: q), beyond "
    "which any force is extrapolated, or take "
    "a scheme of fixed steps",
    Status.STEP_UNSTABLE: "h is too large for the force: of an explicit scheme h times the highest frequency, and h "
    "times the damping rate, must stay below 2; of "
    "an implicit one (MoreauJean, PaoliSchatzman(force='centred')) the iteration for the force did not converge. Take "
    "a smaller h, MoreauJean, which is implicit, or more "
    "iterations; a motion that blows up in finite time ends like this",
    Status.INPUT_INVALID: "q0 violates a constraint at t0, restitution is outside [0, 1] (for Maury: other than 0), a "
    "coefficient of friction is below 0, the matrix of extend.solve_contact is not symmetric and "
    "positive semidefinite, t1 is not later than t0, "
    "or saved times do not increase from t0 to t1 (traced data cannot raise), or, by EventCorrected, a joint kinked in "
    "time or place, or a slip velocity jumped or kinked "
    "while its contact acted, which it does not locate: for these take EventDriven, which locates up to eight such "
    "places, or MoreauJean; else move q0 until every gap is >= 0, and keep numbers within their range, by a "
    "transformation "
    "of the variable if they are optimised",
    Status.NEIGHBOURS_LOST: "more bodies came near each other than there was room for on their list, so that contacts "
    "were lost (under a "
    "transformation of jax it cannot be enlarged): give Bodies(pairs=..., members=...) larger numbers",
    Status.GAP_UNRESOLVED: "h does not resolve how gaps close: one closed and opened again within a step, unseen, as "
    "the straight way of a step led through an obstacle; a body got past "
    "another contact that faces the first, as a light body does that bounces ever faster before a heavy one, or sank "
    "by a tenth of the radius of a curved surface "
    "that it slides along (MoreauJean drifts by O(h)); or a listed body moved further in a step than a quarter of the "
    "skin, or reaches further than the list does. Take a smaller h, "
    "EventCorrected, EventDriven or PaoliSchatzman, or larger Bodies(skin=..., reach=...)",
    Status.TRIALS_EXHAUSTED: "EventDriven made as many trials in one step as it may and did not reach the end of it. "
    "They ended at failed_at, with the state "
    "of the last row, and the event that was met last is the one to look at: events follow each other without end, or "
    "the force is stiff or jumps too often for the tolerance; take larger rtol and atol, EventDriven(trials=...), "
    "smaller steps h, "
    "or MoreauJean for a stiff force; or resets follow each other ever faster: a reset does not say what lasting "
    "contact is, a wall is a gap with a restitution",
    Status.JOINTS_NOT_MET: "q0 does not satisfy the joints (traced data cannot raise), no position near the end of a "
    "step does, or the joints passed a singular position, where some of "
    "them depend on each other and a linkage may go on in more than one way: start from jaximpact.assemble(problem, "
    "q0, v0), take a smaller h, state joints that do not contradict each other "
    "and stay independent, or keep away from singular positions",
    Status.START_VELOCITY_PROJECTED: "(remark) v0 pointed out of the admissible set at an active constraint, or broke "
    "a joint, and was "
    "projected onto the admissible velocities (as an inelastic impact at t0); or it closed a contact within the first "
    "step of PaoliSchatzman, which has no "
    "restitution: take a smaller h, a start that is further off, or another scheme",
    Status.EVENTS_UNRESOLVED: "(remark) contacts stick or slip otherwise on a surface of the velocity on which the "
    "motion slides than beside it, where the surface was met: "
    "take a smaller h; or the force jumps with the velocity where a contact with static friction "
    "sticks, and it is not known when both break loose together: state that force as friction of a contact; or bounces "
    "died out at contacts that friction all but jams, or that bounces hold and lasting contact lets slip, and friction "
    "of flights too short to be followed was left out (smaller tolerances leave less of it)",
    Status.IMPULSES_COUPLED: "(remark) with restitution or friction, contacts that are not orthogonal were struck in "
    "one step: at such a "
    "corner the motion is not continuous in its data, and another scheme or step may give another one, as legitimate "
    "(a smaller h tells "
    "two impacts that follow each other apart); of bodies at rest it says nothing",
    Status.FRICTION_JAMMED: "(remark) at a contact with an impulse, or one that lifts off, friction exceeded "
    "Painleve's bound, mu |A_nt| >= A_nn: sliding may have no solution or "
    "two, and a contact may jam without a collision where it could also lift off; the motion is one of those that the "
    "law allows",
    Status.ENERGY_GAINED: "(remark) an impact with friction and restitution gained energy, as Newton's law allows "
    "where normal and tangential velocities are coupled: "
    "a smaller restitution, or none, does not",
    Status.IMPULSES_NOT_UNIQUE: "(remark) contacts with friction held a body in more ways than it has, as two feet "
    "that stick side by side: many impulses give the "
    "same motion, and those reported are the smallest or one choice among them; read sums over these contacts, not "
    "each; where some of them slip, how long a body rests on them may "
    "depend on that choice. Or equations of joints follow from others: their impulses are the smallest of those that "
    "make the motion",
    Status.GAP_NOT_DISTANCE: "(remark) friction is mu times the normal force, which takes each gap for a distance, and "
    "the gradient of one in contact "
    "has another length; or the normal velocity that slip gives is not along that gradient: divide the gap by the "
    "length of its gradient, as (y - h(x)) / sqrt(1 + h'(x)^2), or return "
    "the whole relative velocity, slip=lambda t, q, v, args: (normal, tangential)",
    Status.DERIVATIVE_EVENTS: "(derivatives only) events were too weak, or too near each other, for h to tell what a "
    "neighbouring motion does: a contact closed, or was only just "
    "missed, at a small normal velocity (near grazing the derivative diverges); it is closed with no force on it, so "
    "that a change of the forces one way opens it; contacts that "
    "load each other, or bend each other's paths (forces of the velocity), struck within one step; infinitely many "
    "impacts accumulated (bounces died out) by steps of a given length, or the last of them, which are too short to be "
    "followed, change the derivative (sensitivities() measures that; of solve() it is told wherever bounces die out); "
    "or a contact with friction only just slipped, stuck, broke away or came to rest, or "
    "did so in the step of an impact. Take a smaller h, ask for the "
    "derivative on one side, sensitivities(direction=...), or trust no derivative of this motion",
    Status.DERIVATIVE_AT_END: "(derivatives only) an impact lies within a step or two of t0 or t1, or as near t1 as h "
    "and the impacts "
    "before leave its time open: at the time of an impact the state has no derivative; move t1, or take a smaller h",
    Status.DERIVATIVE_NOT_FINITE: "(derivatives only) a Jacobian is infinite or NaN: force, constraints or output are "
    "not differentiable "
    "where they were evaluated (sqrt or a norm at zero); write them so that they are",
    Status.DERIVATIVE_JUMP: "(derivatives only) the force, the mass or the velocity of a gap in contact jumped on the "
    "way (a comparison, sign, "
    "floor or table on t, q or v, or a friction that turns round within a step), or a contact was lost where the "
    "curvature of its surface jumps, or all "
    "but did: the time of the jump varies with the data, and it is not passed in free flight, fast and far enough from "
    "all else for this h; take a smaller h, "
    "or EventDriven, which locates jumps of force and mass, unless the motion only touches one, or has one at t0 or "
    "t1; or make it continuous over a few steps",
}
FAILURES = (
    Status.CONTACTS_NOT_SOLVED
    | Status.MASS_INVALID
    | Status.NON_FINITE
    | Status.INPUT_INVALID
    | Status.STEP_UNSTABLE
    | Status.NEIGHBOURS_LOST
    | Status.TRIALS_EXHAUSTED
    | Status.GAP_UNRESOLVED
    | Status.JOINTS_NOT_MET
)
# bits about derivatives only, and all bits that make a derivative doubtful
DERIVATIVES = (
    Status.DERIVATIVE_EVENTS | Status.DERIVATIVE_AT_END | Status.DERIVATIVE_NOT_FINITE | Status.DERIVATIVE_JUMP
)
DOUBTS = DERIVATIVES | Status.EVENTS_UNRESOLVED
# numbers of the bits in files that do not say what theirs are, written when each cause had its own
BEFORE = {
    "PROJECTION_NOT_CONVERGED": 1, "INFEASIBLE": 2, "MASS_NOT_POSITIVE": 4, "NON_FINITE": 8,
    "FIXED_POINT_NOT_CONVERGED": 16,
    "START_VELOCITY_PROJECTED": 32, "DERIVATIVE_GRAZING": 64, "DERIVATIVE_SIMULTANEOUS": 128, "DERIVATIVE_AT_END": 256,
    "DERIVATIVE_ZENO": 512,
    "PROJECTION_REFINED": 1024, "START_NOT_ADMISSIBLE": 2048, "INPUT_OUT_OF_RANGE": 4096, "STEP_UNSTABLE": 8192,
    "GRADIENT_VANISHES": 16384,
    "MASS_NOT_SYMMETRIC": 32768, "EVENTS_UNRESOLVED": 1 << 16, "DERIVATIVE_NOT_FINITE": 1 << 17,
    "IMPULSES_COUPLED": 1 << 18,
    "NEIGHBOURS_LOST": 1 << 19, "NEIGHBOURS_OUTRUN": 1 << 20, "DERIVATIVE_JUMP": 1 << 21, "GAP_UNRESOLVED": 1 << 22,
    "TRIALS_EXHAUSTED": 1 << 23,
    "PENETRATION_DEEP": 1 << 24, "JOINTS_SINGULAR": 1 << 25, "JOINTS_NOT_MET": 1 << 26, "DERIVATIVE_FRICTION": 1 << 27,
    "FRICTION_JAMMED": 1 << 28, "ENERGY_GAINED": 1 << 29, "IMPULSES_NOT_UNIQUE": 1 << 30,
}  # fmt: skip


def bit_numbers() -> dict[str, int]:
    """Returns the number of each bit by its name, which files keep beside their statuses."""
    return {str(bit.name): int(bit) for bit in Status if bit}


def translate_bits(status: np.ndarray, known: Mapping[str, int]) -> np.ndarray:
    """Returns statuses of a file in the bits of this version; ``known``: numbers of the file's bits by name, of this
    version or of one before.

    Raises:
        ValueError: a name or a number that no version has had.
    """
    if dict(known) == bit_numbers():
        return status
    found = np.zeros_like(status)
    for name, bit in known.items():
        if name not in Status.__members__ or not 0 < bit < 1 << 31:
            raise ValueError(f"status has a bit {name!r}, {bit!r}, which no version has")
        found |= np.where(status & bit, int(Status[name]), 0).astype(status.dtype)
    return found


def as_status(condition: Array, bit: int) -> Array:
    """Returns ``bit`` where the condition holds, else 0, as int32."""
    return jnp.where(condition, int(bit), 0).astype(jnp.int32)


def describe(bits: int) -> str:
    """Returns one line per bit that is set: its name, likely cause and cure."""
    return "\n".join(f"{bit.name}: {CAUSES[bit]}" for bit in Status if bit & bits and bit in CAUSES)


def event_name(number: int, m: int, rubs: bool, contacts: Sequence[str] | None = None) -> str:
    """Returns a text on an event of `EventDriven` by its number, as `Solution.failed_by` has it, of m contacts,
    with names or without.

    ``rubs``: whether they have friction; then the 3m levels are slips and what sticking leaves of their cones, else
    those of the force's switches.
    """
    if number < 0:
        return "no event in this step"
    of_contacts = 4 * m if rubs else m
    if number >= of_contacts:
        return f"last at switch of the force, level {number - of_contacts}"
    kind, i = divmod(number, m)
    name = f"{i}" if contacts is None else f"{i} ({contacts[i]})"
    return f"last at {('gap', 'the stop of slip', 'the hold of contact')[min(kind, 2)]} {name}"


def summarise(status: np.ndarray, failed_at: np.ndarray, events: Sequence[str] = ()) -> str:
    """Returns a text on the failures in a batch: how many, where the first ones are, and their causes.

    ``status``: bits of each motion (n,); ``failed_at``: times (n,) at which they were first set;
    ``events``: a text for each, or none, on what it met last.
    """
    status, failed_at = np.atleast_1d(status), np.atleast_1d(failed_at)
    bad = np.flatnonzero(status & int(FAILURES))
    bits = int(np.bitwise_or.reduce(status[bad])) & int(FAILURES)
    met = lambda i: f", {events[i]}" if i < len(events) and events[i] else ""
    where = "; ".join(f"trajectory {i} at t = {failed_at[i]:.6g}{met(i)}" for i in bad[:5])
    return (
        f"{bad.size} of {status.size} trajectories failed ({where}{'; ...' if bad.size > 5 else ''})\n{describe(bits)}"
    )
