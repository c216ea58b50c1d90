"""History of contacts in fixed-step schemes, which derivatives across impacts need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array

from .impact_times import ImpactTimes

FREE, IMPACT, REBOUND, LASTING = 0, 1, 2, 3  # what a contact did in a step; REBOUND ends the impact of the step before


class Tracked(NamedTuple):
    """A scheme's ``state`` with the history of its contacts, carried by `Corrected`; other attributes (n, q, v) are those of ``state``.

    Attributes:
        last: mode of each contact (m,) in the last step: FREE, IMPACT, REBOUND or LASTING.
        met: whether each contact ever had an impact (m,).
        times: when impacts were, and by how much they may be too early or too late.
        gap: gaps (m,) at the start of the last step.
        change: change of the gaps (m,) in the step before that.
        struck: number of the step in which an impact last moved what each gap (m,) depends on, of parts that impacts moved one by one the first;
            `NEVER` before any, 0 if not known, as of pairs that are new on a neighbour list.
        aside: bounds (m,) of the errors of gaps that these impacts caused by being up to a step late, see `ImpactTimes.of_gaps`.
        friction: modes and impulses of the contacts in the last step; None without friction.
        edge: margins of the contacts from slip, or from rest; None where static friction equals that of slip.
    """

    state: Any
    last: Array
    met: Array
    times: ImpactTimes
    gap: Array
    change: Array
    struck: Array
    aside: Array
    friction: Any = None
    edge: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)

    def relisted(self, moved: Callable) -> Tracked:
        """Returns the state for a rebuilt neighbour list; ``moved`` maps arrays of contacts (m,) from the old slots to the new ones."""
        of_contacts = {name: moved(getattr(self, name)) for name in ("last", "met", "gap", "change", "struck", "aside")}
        friction, edge = jax.tree.map(moved, (self.friction, self.edge))
        return self._replace(state=self.state.relisted(moved), friction=friction, edge=edge, **of_contacts)


class Contact(NamedTuple):
    """Masks (m,) of what contacts do in one step, as `Corrected` finds it from the values of the scheme.

    ``active``: the contact has an impulse; ``impact``: the impulse begins an impact; ``rebound``: it ends an impact of the previous step;
    ``reacting``: it is the reaction of a contact whose gap velocity is nearly zero; ``lasting``: the contact is closed and pressed; ``stays``: it is
    still closed after the impacts of the step.
    """

    active: Array
    impact: Array
    rebound: Array
    reacting: Array
    lasting: Array
    stays: Array
