"""Results: solutions, Jacobians and indices as objects that print, save, tabulate and draw themselves."""

from .covariance import Covariance, Linearity
from .located_impacts import LocatedImpacts
from .ranking import Ranking
from .result import Arrays, Drawable, Result
from .sensitivities import Sensitivities, components, unit_of
from .sobol_indices import LEVEL, Indices
from .solution import Origin, Solution, with_names
from .tables import MEANING, spread_columns

__all__ = [
    "LEVEL",
    "MEANING",
    "Arrays",
    "Covariance",
    "Drawable",
    "Indices",
    "Linearity",
    "LocatedImpacts",
    "Origin",
    "Ranking",
    "Result",
    "Sensitivities",
    "Solution",
    "components",
    "spread_columns",
    "unit_of",
    "with_names",
]
