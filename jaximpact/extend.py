"""What a scheme or a contact solver of one's own needs.

A scheme is a dataclass that derives from `Scheme` and defines `init` and `step`; a contact solver derives from
`ContactSolver` and defines `impulses`. Either is registered as a pytree (`jax.tree_util.register_dataclass`) and given as
``scheme=`` or ``projection=``: ensembles, derivatives across impacts, analyses and the command line take it like the others.
"""

from .contact import Contacts, Metric, acceleration, gap_rate, linearise
from .projection.base import ContactSolver, Impulses, Projected, as_status, project_position, project_velocity
from .schemes.base import ImpactTiming, Info, Inputs, Scheme, State, info_of, no_step

__all__ = [
    "ContactSolver",
    "Contacts",
    "ImpactTiming",
    "Impulses",
    "Info",
    "Inputs",
    "Metric",
    "Projected",
    "Scheme",
    "State",
    "acceleration",
    "as_status",
    "gap_rate",
    "info_of",
    "linearise",
    "no_step",
    "project_position",
    "project_velocity",
]
