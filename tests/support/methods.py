"""The schemes and the contact solvers that the suite runs over: a new one enters it by a row, with what it promises."""

from typing import NamedTuple

import jaximpact as ji
from jaximpact.extend import ContactSolver, Scheme

from .symplectic_euler import SymplecticEuler


class SchemeRow(NamedTuple):
    """What a scheme promises.

    ``order``: of the positions, across impacts, None for one whose error does not depend on h; ``inelastic``: it covers
    e = 0 alone; ``lag``: steps by which its velocities and impulses are late.
    """

    scheme: Scheme
    order: int | None = 1
    inelastic: bool = False
    lag: float = 0

    def restitution(self, e: float) -> float:
        """e, or 0 for a scheme of inelastic impacts alone."""
        return 0.0 if self.inelastic else e


class SolverRow(NamedTuple):
    """Promises of a contact solver: ``exact`` up to round-off, else up to its tolerance."""

    solver: ContactSolver
    exact: bool = False


SCHEMES = {
    "paoli-schatzman": SchemeRow(ji.PaoliSchatzman(), lag=1),
    "paoli-schatzman-explicit": SchemeRow(ji.PaoliSchatzman(normal="explicit"), lag=1),
    "maury": SchemeRow(ji.Maury(), inelastic=True),
    "maury-half-kick": SchemeRow(ji.Maury(half_kick=True), inelastic=True, lag=0.5),
    "moreau-jean": SchemeRow(ji.MoreauJean()),
    "event-corrected": SchemeRow(ji.EventCorrected(), order=2),
    "event-driven": SchemeRow(ji.EventDriven(), order=None),
    "symplectic-euler": SchemeRow(SymplecticEuler()),
}
SOLVERS = {
    "active-set": SolverRow(ji.ActiveSet(), exact=True),
    "projected-gradient": SolverRow(ji.ProjectedGradient()),
    "admm": SolverRow(ji.ADMM()),
}
# one of each kind of step
KINDS = ("paoli-schatzman", "maury", "moreau-jean", "event-corrected")
# and one whose error is that of a tolerance, whatever h
EVERY = (*KINDS, "event-driven")
