"""What computations give: one motion or many, and their derivatives, with all that a result can do."""

from .covariance import Covariance, Linearity
from .ranking import Ranking
from .result import Arrays, Drawable, Result
from .sensitivities import Sensitivities, components, unit_of
from .sobol_indices import LEVEL, Indices
from .solution import Origin, Solution, labelled
from .tables import MEANING, spread

__all__ = [
    "LEVEL",
    "MEANING",
    "Arrays",
    "Covariance",
    "Drawable",
    "Indices",
    "Linearity",
    "Origin",
    "Ranking",
    "Result",
    "Sensitivities",
    "Solution",
    "components",
    "labelled",
    "spread",
    "unit_of",
]
