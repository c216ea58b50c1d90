"""What is measured on computed motions; nothing below imports this package."""

from .convergence import Convergence, convergence, prime_steps
from .hypotheses import Hypotheses, check_hypotheses
from .impacts import Impacts, Intervals, impacts
from .sections import ImpactSection, Section, impact_section, period_of, stroboscopic

__all__ = [
    "Convergence", "Hypotheses", "check_hypotheses", "convergence", "prime_steps",
    "Impacts", "Intervals", "impacts",
    "ImpactSection", "Section", "impact_section", "period_of", "stroboscopic",
]  # fmt: skip
