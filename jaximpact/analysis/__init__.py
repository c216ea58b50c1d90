"""What is measured on computed motions; nothing below imports this package."""

from .continuation import Branch, BranchEvent, continue_orbit
from .convergence import Convergence, convergence, prime_steps
from .hypotheses import Hypotheses, check_hypotheses
from .orbits import PeriodicOrbit, periodic_orbit

__all__ = [
    "Branch",
    "BranchEvent",
    "Convergence",
    "Hypotheses",
    "PeriodicOrbit",
    "check_hypotheses",
    "continue_orbit",
    "convergence",
    "periodic_orbit",
    "prime_steps",
]
