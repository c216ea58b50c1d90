"""History of contacts in fixed-step schemes, which derivatives across impacts read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

FREE, IMPACT, REBOUND, LASTING = 0, 1, 2, 3  # what a contact did in a step; REBOUND ends the impact of the step before


class Tracked(NamedTuple):
    """A scheme's state with the history of its contacts; attributes n, q and v are the scheme's.

    Attributes:
        last: what each contact (m,) did in the last step.
        met: whether each contact ever had an impact (m,).
        latest: number () of the latest impact's step.
        early, late: times () by which the scheme's impacts may be early or late against the motion's.
        gap: gaps (m,) at the start of the last step.
        change: their change (m,) in the step before that.
        aside: errors of gaps (m,) behind the latest impact, as `led_aside` says.
        friction: what the contacts did in the last step; None without friction.
        edge: how far the contacts were from slip, or from rest; None where static friction is that of slip.
    """

    state: Any
    last: Array
    met: Array
    latest: Array
    early: Array
    late: Array
    gap: Array
    change: Array
    aside: Array
    friction: Any = None
    edge: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)

    def relisted(self, moved: Callable) -> Tracked:
        """See `State.relisted`."""
        of_contacts = {name: moved(getattr(self, name)) for name in ("last", "met", "gap", "change", "aside")}
        return self._replace(state=self.state.relisted(moved), **of_contacts)


class Contact(NamedTuple):
    """Masks (m,) of contacts that have an impulse in a step: of any kind, of an impact, of the end of one; that react, that last, and that still do
    behind the impacts."""

    active: Array
    impact: Array
    rebound: Array
    reacting: Array
    lasting: Array
    stays: Array
