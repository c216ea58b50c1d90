"""jaximpact: batched, differentiable time-stepping for mechanical systems with impacts."""

from . import bodies, extend
from .analysis import Convergence, Hypotheses, check_hypotheses, convergence
from .ensemble import ensemble
from .files import load
from .integrate import solve
from .jacobians import sensitivities
from .problem import Problem
from .projection import ADMM, ActiveSet, ProjectedGradient
from .save import Save
from .schemes import EventCorrected, Maury, MoreauJean, PaoliSchatzman
from .solution import Sensitivities, Solution, labelled
from .status import Status
from .study import Design, Study
from .symbolic import from_sympy
from .validate import JaximpactWarning
from .version import __version__ as __version__

solve, ensemble, sensitivities = labelled(solve), labelled(ensemble), labelled(sensitivities)
for _function in (solve, ensemble, sensitivities):
    _function.__module__ = __name__  # where they are found by name

__all__ = [
    "ADMM",
    "ActiveSet",
    "Convergence",
    "Design",
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
    "Study",
    "bodies",
    "check_hypotheses",
    "convergence",
    "ensemble",
    "extend",
    "from_sympy",
    "load",
    "sensitivities",
    "solve",
]
