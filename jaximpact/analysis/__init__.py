"""What is measured on computed motions; nothing below imports this package."""

from .basins import Attractor, Basins, basins, recognise
from .bifurcation import Bifurcation, ParameterMap, bifurcation, two_parameter_map
from .convergence import Convergence, convergence, prime_steps
from .hypotheses import Hypotheses, check_hypotheses
from .impacts import Impacts, Intervals, impacts
from .sections import ImpactSection, Section, impact_section, period_of, stroboscopic

__all__ = [
    "Attractor",
    "Basins",
    "Bifurcation",
    "Convergence",
    "Hypotheses",
    "ImpactSection",
    "Impacts",
    "Intervals",
    "ParameterMap",
    "Section",
    "basins",
    "bifurcation",
    "check_hypotheses",
    "convergence",
    "impact_section",
    "impacts",
    "period_of",
    "prime_steps",
    "recognise",
    "stroboscopic",
    "two_parameter_map",
]  # fmt: skip
