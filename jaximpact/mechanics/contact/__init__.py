"""Contact laws and solvers: `laws` is the interface for schemes, `solved` the law by a solver,
then one file for each solver."""

from .active_set import ActiveSet
from .admm import ADMM
from .laws import ContactLaw, Held, Open, Reaction, Target
from .projected_gradient import ProjectedGradient
from .solved import Solved
from .solver import ContactSolver, Impulses

__all__ = [
    "ADMM",
    "ActiveSet",
    "ContactLaw",
    "ContactSolver",
    "Held",
    "Impulses",
    "Open",
    "ProjectedGradient",
    "Reaction",
    "Solved",
    "Target",
]
