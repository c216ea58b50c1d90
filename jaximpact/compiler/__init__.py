"""A function of one lane, written for jax, as machine code for many lanes;
it needs nothing else of the package but `jaxtools`."""

from .public import vectorised
from .scalar import Unsupported

__all__ = ["Unsupported", "vectorised"]
