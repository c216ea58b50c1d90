"""What is measured on computed motions; nothing below imports this package."""

from .balance import Balance, balance
from .continuation import Branch, BranchEvent, continue_orbit
from .convergence import Convergence, convergence, prime_steps
from .hypotheses import Hypotheses, check_hypotheses
from .lyapunov import Lyapunov, lyapunov
from .orbits import PeriodicOrbit, periodic_orbit
from .statistics import Statistics, statistics

__all__ = [
    "Balance",
    "Branch",
    "BranchEvent",
    "Convergence",
    "Hypotheses",
    "Lyapunov",
    "PeriodicOrbit",
    "Statistics",
    "balance",
    "check_hypotheses",
    "continue_orbit",
    "convergence",
    "lyapunov",
    "periodic_orbit",
    "prime_steps",
    "statistics",
]
