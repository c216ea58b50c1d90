"""What computations give: one motion or many, and their derivatives, with all that a result can do."""

from .convert import MEANING
from .covariance import Covariance, Linearity
from .ranking import Ranking, quotient
from .result import Arrays, Drawable, Result, spread
from .sensitivities import Sensitivities, components, unit_of
from .solution import Origin, Solution, labelled

__all__ = [
    "MEANING",
    "Arrays",
    "Covariance",
    "Drawable",
    "Linearity",
    "Origin",
    "Ranking",
    "Result",
    "Sensitivities",
    "Solution",
    "components",
    "labelled",
    "quotient",
    "spread",
    "unit_of",
]
