"""History of contacts in fixed-step schemes, which derivatives across impacts need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ...jaxtools.empty import empty
from ..contact.friction.cones import OPEN, STICK
from ..friction import FrictionInfo
from ..linearisation import Metric
from ..motion import At
from .impact_saltation import Contact, Instant
from .impact_times import ImpactTimes

if TYPE_CHECKING:
    from ..contact.laws import ContactLaw
    from ..scheme import State

FREE, IMPACT, REBOUND, LASTING = 0, 1, 2, 3  # what a contact did in a step; REBOUND ends the impact of the step before
NEARLY = 2  # times the largest change in a step: margins below which a contact only just sticks or slips


class Edge(NamedTuple):
    """How far contacts (m,) are from a change of mode [velocity], sticking ones from slip and slipping ones from rest;
    carried in the state.

    ``margin``: this distance after the last step; its ``change`` in that step; ``bend``: the change of this change from
    the step before; and the ``largest`` change in a step since the contact came into its mode; no derivatives. With
    static friction a motion that only just comes to rest is far from one that does not, so that the derivative is
    doubtful at small margins.
    """

    margin: Array
    change: Array
    bend: Array
    largest: Array

    @classmethod
    def unknown(cls, like: Array) -> Edge:
        """Makes the margins at the beginning of a motion: -1, which means not known,
        for as many contacts as ``like`` (m,) has."""
        none = jnp.zeros_like(like)
        return cls(none - 1, none, none, none)

    @classmethod
    def none(cls, dtype: DTypeLike) -> Edge:
        """Makes the edge of contacts whose margins do not matter, of size 0."""
        return cls(*[empty(dtype, 0)] * 4)

    def forgotten(self) -> Edge:
        """Returns the margins of contacts that all open, which are not known."""
        return Edge.unknown(self.margin) if self.margin.size else self

    def next(self, margin: Array, previous: FrictionInfo, current: FrictionInfo) -> tuple[Edge, Array]:
        """Updates the margins of the contacts (how far each is from another mode) after a step: the new ones are
        ``margin`` (m,); ``previous`` and ``current`` are the modes before the step and in it.

        Also returns the mask (m,) of contacts whose mode is doubtful, as their margin had a minimum
        too near zero for h to resolve.
        """
        turned = jnp.sum(previous.direction * current.direction, axis=1) < 0
        turned &= current.direction.shape[1] == 1  # in space slip turns round by way of all directions
        same = (previous.mode == current.mode) & ~turned & (self.margin >= 0)
        change = jnp.where(same, margin - self.margin, 0)
        bend = jnp.where(same, change - self.change, 0)
        largest = jnp.where(same, jnp.maximum(self.largest, jnp.abs(change)), 0)
        missed = same & (self.change < 0) & (change >= 0) & (self.margin <= NEARLY * (largest + bend))
        # where the margin would have turned, had it gone on as before
        least = self.margin - 0.5 * self.change**2 / jnp.where(self.bend > 0, self.bend, 1)
        grazed = (previous.mode != current.mode) & (self.bend > 0) & (least > -NEARLY * self.largest)
        rubs = (previous.mode != OPEN) & (current.mode != OPEN)
        # the step in which a contact comes to rest has what stopped it in its impulse
        margin = jnp.where((previous.mode != STICK) & (current.mode == STICK), -1, margin)
        return Edge(margin, change, bend, largest), rubs & (missed | grazed)


class Tracked(NamedTuple):
    """A scheme's ``state`` with the history of its contacts, carried by `Corrected`;
    other attributes (n, q, v) are those of ``state``.

    Attributes:
        last: mode of each contact (m,) in the last step: FREE, IMPACT, REBOUND or LASTING.
        met: whether each contact ever had an impact (m,).
        times: when impacts were, and by how much they may be too early or too late.
        gap: gaps (m,) at the start of the last step.
        change: change of the gaps (m,) in the step before that.
        struck: number of the step in which an impact last moved what each gap (m,) depends on, of parts that impacts
            moved one by one the first; `NEVER` before any, 0 if not known,
            as of pairs that are new on a neighbour list.
        aside: bounds (m,) of the errors of gaps that these impacts caused by being up to a step late,
            see `ImpactTimes.of_gaps`.
        friction: modes and impulses of the contacts in the last step, with k = 0 where they do not rub.
        edge: margins of the contacts from slip, or from rest; of size 0 where static friction equals that of slip.
    """

    state: State
    last: Array
    met: Array
    times: ImpactTimes
    gap: Array
    change: Array
    struck: Array
    aside: Array
    friction: FrictionInfo
    edge: Edge

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)

    def opened(self) -> Tracked:
        """Returns the state with all contacts open, and no friction."""
        return self._replace(friction=jax.tree.map(jnp.zeros_like, self.friction), edge=self.edge.forgotten())

    def relisted(self, moved: Callable) -> Tracked:
        """Returns the state for a rebuilt neighbour list; ``moved`` maps arrays of contacts (m,) from the
        old slots to the new ones."""
        of_contacts = {name: moved(getattr(self, name)) for name in ("last", "met", "gap", "change", "struck", "aside")}
        friction, edge = jax.tree.map(moved, (self.friction, self.edge))
        return self._replace(state=self.state.relisted(moved), friction=friction, edge=edge, **of_contacts)


class Salted(NamedTuple):
    """What impacts, and changes of mode, do to the derivative of a step.

    Attributes:
        at: where the impacts are.
        after: velocity (d,) after them.
        here: the contacts there.
        metric: that at the start of the step.
        e: restitution.
        current: what contacts do.
        back: state from which the step with ``held`` contacts has the derivative of this one.
        held: contact law of that step.
        impulse: impulses (m, 1 + k) that are added to those of that step; ``joint_impulse`` (j,): those of joints.
        friction, edge: as in `Tracked`, after the step.
        status: bits of the derivative.
    """

    at: At
    after: Array
    here: Instant
    metric: Metric
    e: Array
    current: Contact
    back: State
    held: ContactLaw
    impulse: Array
    joint_impulse: Array
    friction: FrictionInfo
    edge: Edge
    status: Array
