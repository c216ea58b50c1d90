"""Projections in the kinetic metric: one file a method, `base` for the protocol and the shared implicit derivative."""

from .active_set import ActiveSet
from .admm import ADMM
from .base import ContactSolver, Impulses, Projected, project_position, project_velocity
from .geodesic import project_geodesic
from .projected_gradient import ProjectedGradient

__all__ = [
    "ADMM",
    "ActiveSet",
    "ContactSolver",
    "Impulses",
    "Projected",
    "ProjectedGradient",
    "project_geodesic",
    "project_position",
    "project_velocity",
]
