"""Impacts and releases between two rows of a solution, located by running the motion again with a
scheme that locates events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array

from ..mechanics.problem import Problem
from ..mechanics.schemes import EventDriven
from ..mechanics.trials.stops import Until
from ..results.save import Events
from ..simulation.call import Call
from .default_scheme import ORBIT
from .gap_states import free_motion, gaps_at
from .restarts import run_between

SEVERAL = 4  # impacts up to a row that are located one by one
NEAR = 1e-6  # of the time between two rows: an impact met as near to the first is no other one


@dataclass(frozen=True)
class RestartableMotions:
    """A batch of B computed motions that can be run again from any of their rows.

    ``call``: their problem, args, and the scheme for these runs, by default `EventDriven`; ``rows``: t (B, k),
    q and v (B, k, d).
    """

    call: Call
    rows: tuple[np.ndarray, np.ndarray, np.ndarray]

    def run(self, lane: np.ndarray, row: np.ndarray, **more: Any) -> Any:
        """Runs n motions again, each from a ``row`` (n,) of a ``lane`` (n,); returns a `Solution` of n lanes.

        ``more``: times t1 (n,) and further arguments of `ensemble`.
        """
        scheme = EventDriven(ORBIT, ORBIT) if self.call.scheme is None else self.call.scheme
        return run_between(self.call.replace(scheme=scheme, **more), self.rows, lane, row)

    def impacts(
        self, lane: np.ndarray, row: np.ndarray, contact: np.ndarray, e: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        """Locates n impacts, each between a ``row`` (n,) of a ``lane`` (n,) and the row after it.

        ``contact`` (n,): the contact of each impact; ``e``: as in `run`. Returns four arrays (n,): whether an impact is
        the only one of its contact in that interval, so that it could be located; its time;
        and the gap velocities before and after it.
        """
        t = self.rows[0]
        # from a row earlier: an impact may be met at the row itself
        events = self.run(lane, np.maximum(row - 1, 0), t1=t[lane, row + 1], e=e, save=Events(impacts=SEVERAL)).events
        begin = t[lane, row] - NEAR * (t[lane, row + 1] - t[lane, row])
        mine = (np.asarray(events.contact) == contact[:, None]) & (np.asarray(events.t) >= begin[:, None])
        place, entry = np.arange(len(lane)), np.argmax(mine, axis=1)
        known = (np.sum(mine, axis=1) == 1) & (np.asarray(events.count) <= SEVERAL)
        # where there is none the numbers are those of the row, to be ignored
        at, where, *speeds = (
            np.where(known.reshape(-1, *[1] * (old.ndim - 2)), np.asarray(x)[place, entry], old[lane, row])
            for x, old in zip(
                (events.t, events.q, events.before, events.after), (*self.rows, self.rows[2]), strict=True
            )
        )
        before, after = (gaps_at(self.call, (at, where, x), lane, contact)[1] for x in speeds)
        return known, at, before, after

    def releases(
        self,
        lane: np.ndarray,
        row: np.ndarray,
        contact: np.ndarray,
        e: np.ndarray | None,
        known: np.ndarray,
        times: np.ndarray,
    ) -> np.ndarray:
        """Finds the times (n,) at which n lasting contacts open, each between a ``row`` (n,) of a
        ``lane`` (n,) and the row after it.

        A contact opens when the acceleration of its gap without contact forces becomes positive; this holds if no other
        contact of the motion is closed then. ``known`` (n,): mask of the contacts to look for; the others, and those
        whose opening is not found, keep the given ``times`` (n,).
        """
        found, t = times.copy(), self.rows[0]
        for one in np.unique(contact[known]):
            which = np.flatnonzero(known & (contact == one))
            ends = lane[which], row[which]
            run = self.run(
                ends[0],
                np.maximum(ends[1] - 1, 0),
                t1=t[ends[0], ends[1] + 1],
                e=None if e is None else e[which],
                until=Until(FreeAcceleration(self.call.problem, int(one)), 1),
            )
            met = np.asarray(run.stopped) & ~np.asarray(run.failed)
            found[which[met]] = np.asarray(run.t)[met, -1]
        return found


@dataclass(frozen=True)
class FreeAcceleration:
    """Function (t, q, v, args) -> acceleration of a contact's gap without contact forces, negative while the contact is
    pressed; a surface for `Until`."""

    problem: Problem
    contact: int

    def __call__(self, t: Array, q: Array, v: Array, args: object) -> Array:
        return free_motion(self.problem, t, q, v, args)[2][self.contact]
