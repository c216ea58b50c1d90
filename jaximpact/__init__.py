"""jaximpact: batched, differentiable time-stepping for mechanical systems with impacts."""

from .analysis import Convergence, Hypotheses, check_hypotheses, convergence
from .ensemble import ensemble
from .integrate import Save, Solution, solve
from .jacobians import Sensitivities, sensitivities
from .problem import Problem
from .projection import ADMM, ActiveSet, ProjectedGradient
from .schemes import EventCorrected, Maury, MoreauJean, PaoliSchatzman
from .status import Status
from .validate import JaximpactWarning

__version__ = "0.2.0"

__all__ = [
    "ADMM",
    "ActiveSet",
    "Convergence",
    "EventCorrected",
    "Hypotheses",
    "JaximpactWarning",
    "Maury",
    "MoreauJean",
    "PaoliSchatzman",
    "Problem",
    "ProjectedGradient",
    "Save",
    "Sensitivities",
    "Solution",
    "Status",
    "check_hypotheses",
    "convergence",
    "ensemble",
    "sensitivities",
    "solve",
]
