"""What computations give: one motion or many, and their derivatives, with all that a result can do."""

from .convert import MEANING
from .covariance import Covariance, Linearity
from .indices import LEVEL, Indices
from .ranking import Ranking
from .result import Arrays, Drawable, Result, spread
from .sensitivities import Sensitivities, components, unit_of
from .solution import Origin, Solution, labelled

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
