"""Interface for schemes and contact solvers of one's own.

A scheme is a dataclass that derives from `Scheme` and defines `init` and `step`; a contact solver derives from
`ContactSolver` and defines `impulses`. Either is registered as a pytree (`jax.tree_util.register_dataclass`) and given
as ``scheme=`` or ``projection=``: ensembles, derivatives across impacts,
analyses and the command line take it like the others.

A step asks a `ContactLaw` for a `Reaction`; to call ``scheme.step`` directly, pass ``Solved(ActiveSet())`` as the law.
`solve_contact` solves one contact problem that is given by arrays.
"""

from .mechanics.contact import ContactLaw, ContactSolver, Held, Impulses, Open, Reaction, Solved, Target
from .mechanics.contact.contact_problem import ContactSolution, solve_contact
from .mechanics.contacts import Contacts
from .mechanics.impact_law import ImpactLaw, NewtonImpact, PoissonImpact
from .mechanics.linearisation import Metric, acceleration, linearise
from .mechanics.motion import Motion
from .mechanics.scheme import Info, Scheme, State, Traits
from .mechanics.status import as_status

__all__ = [
    "ContactLaw",
    "ContactSolution",
    "ContactSolver",
    "Contacts",
    "Held",
    "ImpactLaw",
    "Impulses",
    "Info",
    "Metric",
    "Motion",
    "NewtonImpact",
    "Open",
    "PoissonImpact",
    "Reaction",
    "Scheme",
    "Solved",
    "State",
    "Target",
    "Traits",
    "acceleration",
    "as_status",
    "linearise",
    "solve_contact",
]
