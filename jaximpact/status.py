"""Status bits of a trajectory: what went wrong or deserves a word, OR-ed over its steps."""

from __future__ import annotations

import enum

import numpy as np


class Status(enum.IntFlag):
    """Bits reported per trajectory; zero means that nothing happened."""

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
    PROJECTION_REFINED = 1024


# What the user can do about each bit; bits outside FAILURES are remarks.
CAUSES = {
    Status.PROJECTION_NOT_CONVERGED: "the projection did not reach its tolerance: raise its iteration limits, choose "
    "another projection, or take a smaller h (strongly curved or dependent constraints)",
    Status.INFEASIBLE: "the linearised constraints have no common point: constraints contradict each other, or a moving "
    "constraint leaves no room",
    Status.MASS_NOT_POSITIVE: "the mass matrix was not positive definite: check mass(q, args) at the configurations reached, "
    "which lie up to O(h) outside the admissible set",
    Status.NON_FINITE: "the state became infinite or NaN: force or constraints are not finite where the scheme evaluates "
    "them, or h is too large for an explicit scheme (h times the highest frequency must stay below 2)",
    Status.FIXED_POINT_NOT_CONVERGED: "the iteration for the centred force did not reach its tolerance: raise its count or "
    "take a smaller h",
    Status.START_VELOCITY_PROJECTED: "v0 pointed out of the admissible set at an active constraint and was projected onto "
    "the admissible velocities (as an inelastic impact at t0)",
    Status.DERIVATIVE_GRAZING: "(derivatives only) a contact closed at a normal velocity too small, for this h, to be told from "
    "none: near grazing the derivative diverges; take a smaller h, or trust no derivative of this motion",
    Status.DERIVATIVE_SIMULTANEOUS: "(derivatives only) contacts that are not orthogonal struck within one step: at a "
    "simultaneous impact the motion is not differentiable; a smaller h tells whether they coincide",
    Status.DERIVATIVE_AT_END: "(derivatives only) an impact lies within a step or two of t0 or t1: at the time of an impact the "
    "state has no derivative; move t1, or take a smaller h",
    Status.DERIVATIVE_ZENO: "(derivatives only) infinitely many impacts accumulated (bounces died out): the derivative behind "
    "that point is of first order at best",
    Status.PROJECTION_REFINED: "(remark) the first method of the projection did not reach its tolerance and a slower one finished: "
    "dependent or badly scaled constraints; the result is as accurate as any",
}
FAILURES = Status(31)
DOUBTS = Status.DERIVATIVE_GRAZING | Status.DERIVATIVE_SIMULTANEOUS | Status.DERIVATIVE_AT_END | Status.DERIVATIVE_ZENO


def describe(bits: int) -> str:
    """One line per bit that is set: its name and its likely cause."""
    return "\n".join(f"{bit.name}: {CAUSES[bit]}" for bit in Status if bit & bits and bit in CAUSES)


def summarise(status: np.ndarray, failed_at: np.ndarray) -> str:
    """What failed in a batch: how many trajectories, the first ones, the causes."""
    status, failed_at = np.atleast_1d(status), np.atleast_1d(failed_at)
    bad = np.flatnonzero(status & int(FAILURES))
    bits = int(np.bitwise_or.reduce(status[bad])) & int(FAILURES)
    where = ", ".join(f"trajectory {i} at t = {failed_at[i]:.6g}" for i in bad[:5])
    return (
        f"{bad.size} of {status.size} trajectories failed ({where}{', ...' if bad.size > 5 else ''})\n{describe(bits)}"
    )
