"""The first impacts or other events of a motion, located by its scheme: times,
positions and velocities that can be differentiated."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax import Array

from ..mechanics.events.impact_record import IMPACT, KINDS
from .result import Arrays, Result


@dataclass(frozen=True, repr=False)
class LocatedImpacts(Result):
    """The first k impacts of a motion, in order of time; of many motions with a leading lane axis. From
    ``save=Events(impacts=k)``.

    Impacts of several contacts at the same time are separate entries, in order of the contacts. All real numbers have
    the derivative of the motion, times included. If there are fewer than k impacts, the remaining entries have
    contact -1, NaN in place of numbers, and no derivative: then take ``jnp.where(impacts.happened, impacts.t, 0)``
    before any other operation.

    Attributes:
        t: times (k,) [s].
        contact: number of the constraint (k,).
        q: positions (k, d).
        before, after: velocities just before and just after (k, d).
        impulse: impulse of the contact (k,).
        count: the number of impacts of the whole motion (), which may be more than k.
        kind: with ``Events(kinds=...)`` of more than impacts, the entries are events of these kinds: the place (k,) of
            the kind of each in "impact", "stop", "reversal", "break", "release", -1 for entries that did not happen.
            Events at the same time are in this order. Else None.
    """

    t: Array
    contact: Array
    q: Array
    before: Array
    after: Array
    impulse: Array
    count: Array
    kind: Array | None = None

    def of(self, kind: str) -> Array:
        """Mask of the k entries (k,) that are events of a kind: "impact", "stop", "reversal", "break" or "release";
        ValueError for another name."""
        if kind not in KINDS:
            raise ValueError(f"of: kind must be one of {', '.join(KINDS)}, got {kind!r}")
        if self.kind is None:
            return self.happened & (kind == IMPACT)
        return self.kind == KINDS.index(kind)

    @property
    def happened(self) -> Array:
        """Mask of the k entries that are impacts (k,)."""
        return self.contact >= 0

    def _arrays(self) -> Arrays | None:
        if np.ndim(self.count) > 1:
            return None
        lane = "lane " * np.ndim(self.count)
        of_state = self._along(f"{lane}impact coordinate", "q", "before", "after")
        of_kind = {} if self.kind is None else self._along(f"{lane}impact", "kind")
        return self._along(f"{lane}impact", "t", "contact", "impulse") | of_kind | of_state | self._along(lane, "count")

    def _columns(self) -> dict[str, np.ndarray] | None:
        if np.ndim(self.count):
            return None
        columns = {name: x[np.asarray(self.happened)] for name, x in self._table(*NAMES[:-2]).items()}
        return (
            columns
            if self.kind is None
            else columns | {"kind": np.array(KINDS)[np.asarray(self.kind)[np.asarray(self.happened)]]}
        )


NAMES = ("t", "contact", "q", "before", "after", "impulse", "count", "kind")
jax.tree_util.register_dataclass(LocatedImpacts, NAMES, ("made",))
