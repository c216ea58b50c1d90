"""What computations give: one motion or many, and their derivatives, with all that a result can do."""

from .convert import MEANING
from .result import Drawable, Result, spread
from .sensitivities import Sensitivities
from .solution import Origin, Solution, labelled

__all__ = ["MEANING", "Drawable", "Origin", "Result", "Sensitivities", "Solution", "labelled", "spread"]
