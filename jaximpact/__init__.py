"""jaximpact: batched, differentiable time-stepping for mechanical systems with impacts.

A name's module is imported when the name is first used: all of them together take as long as jax itself.
"""

import typing as _typing

if _typing.TYPE_CHECKING:  # a type checker reads these, and so finds names that do not exist
    from . import analysis as analysis
    from . import bodies, extend
    from . import catalogue as catalogue
    from . import conformance as conformance
    from . import indices as indices
    from . import planar as planar
    from . import plots as plots
    from . import spatial as spatial
    from . import study as study
    from .analysis import Convergence, Hypotheses, check_hypotheses, convergence
    from .jaxtools.warnings import JaximpactWarning
    from .mechanics.contact import ADMM, ActiveSet, ProjectedGradient
    from .mechanics.from_sympy import from_sympy
    from .mechanics.problem import Problem
    from .mechanics.schemes import EventCorrected, EventDriven, Maury, MoreauJean, PaoliSchatzman
    from .mechanics.status import Status
    from .mechanics.trials.stops import Until
    from .results import Sensitivities, Solution
    from .results.files import load
    from .results.save import Events, Save
    from .simulation.assemble import assemble
    from .simulation.public import ensemble, sensitivities, solve
    from .study import Design, Study
    from .version import __version__ as __version__

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

if not _typing.TYPE_CHECKING:
    from importlib import import_module as _import_module

    _PACKAGES = (
        "analysis",
        "bodies",
        "catalogue",
        "conformance",
        "extend",
        "indices",
        "planar",
        "plots",
        "spatial",
        "study",
    )
    _NAMES = {
        "analysis": ("Convergence", "Hypotheses", "check_hypotheses", "convergence"),
        "jaxtools.warnings": ("JaximpactWarning",),
        "mechanics.contact": ("ADMM", "ActiveSet", "ProjectedGradient"),
        "mechanics.from_sympy": ("from_sympy",),
        "mechanics.problem": ("Problem",),
        "mechanics.schemes": ("EventCorrected", "EventDriven", "Maury", "MoreauJean", "PaoliSchatzman"),
        "mechanics.status": ("Status",),
        "mechanics.trials.stops": ("Until",),
        "results": ("Sensitivities", "Solution"),
        "results.files": ("load",),
        "results.save": ("Events", "Save"),
        "simulation.assemble": ("assemble",),
        "simulation.public": ("ensemble", "sensitivities", "solve"),
        "study": ("Design", "Study"),
        "version": ("__version__",),
    }
    _MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name in _MODULE_OF:
            value = getattr(_import_module(f".{_MODULE_OF[name]}", __name__), name)
        elif name in _PACKAGES:
            value = _import_module(f".{name}", __name__)
        else:
            from .mechanics.problem_parts import missing

            raise AttributeError(missing(f"module {__name__!r}", name))
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULE_OF, *_PACKAGES})
