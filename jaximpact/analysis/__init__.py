"""What is measured on computed motions; nothing below imports this package."""

from .convergence import Convergence, convergence, prime_steps
from .hypotheses import Hypotheses, check_hypotheses

__all__ = ["Convergence", "Hypotheses", "check_hypotheses", "convergence", "prime_steps"]
