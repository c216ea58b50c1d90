"""What computations give: one motion or many, and their derivatives, with all that a result can do."""

from .convert import MEANING
from .motion import Origin, Solution, labelled
from .result import Drawable, Result, spread
from .sensitivities import Sensitivities

__all__ = ["MEANING", "Drawable", "Origin", "Result", "Sensitivities", "Solution", "labelled", "spread"]
