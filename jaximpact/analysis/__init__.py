"""Analyses of computed motions: impacts, balances, sections, periodic orbits, branches, basins, exponents,
statistics."""

from ..results.impulse_intervals import Runs, runs
from .balance import Balance, balance
from .basins import Attractor, Basins, basins, recognise
from .bifurcation import Bifurcation, ParameterMap, bifurcation, two_parameter_map
from .bifurcation_curves import BifurcationCurve, continue_curve
from .continuation import Branch, BranchEvent, continue_orbit
from .convergence import Convergence, convergence, prime_steps
from .crossings import Crossings, crossings, poincare_section
from .graph_distance import graph_distance
from .hypotheses import Hypotheses, check_hypotheses
from .impacts import Impacts, Intervals, impacts
from .lyapunov import Lyapunov, lyapunov
from .orbits import PeriodicOrbit, periodic_orbit
from .packing import Packing, packing
from .predict import Prediction, predict
from .restarts import recomputed as recomputed  # for `Solution.at`
from .sections import ImpactSection, Section, impact_section, period_of, stroboscopic
from .shoot import Shooting, shoot
from .slips import ContactMode, Slips, slips
from .statistics import Statistics, statistics

__all__ = [
    "Attractor",
    "Balance",
    "Basins",
    "Bifurcation",
    "BifurcationCurve",
    "Branch",
    "BranchEvent",
    "ContactMode",
    "Convergence",
    "Crossings",
    "Hypotheses",
    "ImpactSection",
    "Impacts",
    "Intervals",
    "Lyapunov",
    "Packing",
    "ParameterMap",
    "PeriodicOrbit",
    "Prediction",
    "Runs",
    "Section",
    "Shooting",
    "Slips",
    "Statistics",
    "balance",
    "basins",
    "bifurcation",
    "check_hypotheses",
    "continue_curve",
    "continue_orbit",
    "convergence",
    "crossings",
    "graph_distance",
    "impact_section",
    "impacts",
    "lyapunov",
    "packing",
    "period_of",
    "periodic_orbit",
    "poincare_section",
    "predict",
    "prime_steps",
    "recognise",
    "runs",
    "shoot",
    "slips",
    "statistics",
    "stroboscopic",
    "two_parameter_map",
]
