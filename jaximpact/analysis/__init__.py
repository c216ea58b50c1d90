"""What is measured on computed motions; nothing below imports this package."""

from .convergence import Convergence, convergence, prime_steps

__all__ = ["Convergence", "convergence", "prime_steps"]
