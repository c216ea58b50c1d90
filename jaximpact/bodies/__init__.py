"""Many bodies: constraints stated for one pair and one body, and ready-made disks and spheres.

problem = bodies.disks(radii, walls=[(0, 2), (0, None)], gravity=9.81)
solution = jaximpact.solve(problem, q0, v0, t1=1.0, h=1e-3)
"""

from ..mechanics.contact.conjugate_gradients import ConjugateGradients
from .blocks import block_mass
from .round import disks, spheres
from .statement import Bodies

__all__ = ["Bodies", "ConjugateGradients", "block_mass", "disks", "spheres"]
