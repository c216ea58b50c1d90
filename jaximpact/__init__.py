"""jaximpact: batched, differentiable time-stepping for mechanical systems with impacts."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import bodies, extend
from . import plots as plots  # results draw themselves
from .analysis import Convergence, Hypotheses, check_hypotheses, convergence
from .jaxtools.warnings import JaximpactWarning
from .mechanics.contact import ADMM, ActiveSet, ProjectedGradient
from .mechanics.from_sympy import from_sympy
from .mechanics.problem import Problem
from .mechanics.problem_parts import missing as _missing
from .mechanics.schemes import EventCorrected, EventDriven, Maury, MoreauJean, PaoliSchatzman
from .mechanics.status import Status
from .mechanics.trials.stops import Until
from .results import Sensitivities, Solution, with_names
from .results.files import load
from .results.save import Events, Save
from .simulation.assemble import assemble
from .simulation.ensemble import ensemble
from .simulation.sensitivities import sensitivities
from .simulation.solve import solve
from .study import Design, Study
from .version import __version__ as __version__

solve, ensemble, sensitivities = with_names(solve), with_names(ensemble), with_names(sensitivities)
for _function in (solve, ensemble, sensitivities):
    _function.__module__ = __name__  # where they are found by name

__all__ = [
    "ADMM",
    "ActiveSet",
    "Convergence",
    "Design",
    "EventCorrected",
    "EventDriven",
    "Events",
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
    "Until",
    "assemble",
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


if not _TYPE_CHECKING:  # a type checker is to find names that do not exist

    def __getattr__(name: str) -> None:
        raise AttributeError(_missing(f"module {__name__!r}", name))
