"""Error of derivatives by bounces that died out and were not followed to the end.

How far they may move the bodies is part of `Solution.error`, and its derivative tells how much other derivatives are
off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array

from ..jaxtools.shapes import array_module
from ..mechanics.status import Status
from ..results import Solution

if TYPE_CHECKING:
    from ..mechanics.schemes.event_driven import EventDriven

ALLOWED = 1000  # tolerances by which derivatives may be off; measured: they are off by a thirtieth of the estimate


class LeftOut(NamedTuple):
    """The error of a motion in units of the tolerance, (), and its final position q (d,); or derivatives of both.
    ``q`` is None where the rows are computed one by one: the last of them has it."""

    error: Any
    q: Any

    @classmethod
    def of(cls, solution: Solution, by_row: bool = False) -> LeftOut | None:
        """Returns that of a motion; None for schemes that estimate no error."""
        return None if solution.error is None else cls(solution.error, None if by_row else solution.q[-1])


def status_of_bounces(
    scheme: EventDriven, slopes: LeftOut, numbers: Mapping, durations: np.ndarray
) -> np.ndarray | Array:
    """Returns DERIVATIVE_EVENTS (B,) for lanes whose derivatives are off by more than `ALLOWED` tolerances.

    ``slopes``: derivatives of the error (B, ...) and of the position (B, d, ...) by the ``numbers`` (B, ...) of the
    lanes, dicts by the names of these; ``durations`` (B,). A tolerance is rtol times the largest derivative of a
    position, which counts as 1 by q0, as the duration by v0, and as atol / rtol / |x| by another number x, at least.
    """
    doubt: Any = False
    for name in numbers:
        of_parts = (jax.tree.leaves(x) for x in (slopes.error[name], slopes.q[name], numbers[name]))
        for error, q, x in zip(*of_parts, strict=True):
            xp: Any = array_module(error, q)
            off, moves = abs(error).reshape(len(error), -1), abs(q).reshape(*q.shape[:2], -1).max(axis=1)
            tolerance = scheme.tolerance(q.dtype)
            unit = float(tolerance.absolute) / float(tolerance.relative)
            size = abs(xp.asarray(x)).reshape(len(x), -1)
            by_others = unit / xp.where(size > 0, size, 1)
            least = {"q0": xp.ones_like(size), "v0": xp.asarray(durations)[:, None]}.get(name, by_others)
            doubt = doubt | (off * unit > ALLOWED * xp.maximum(moves, least)).any(axis=1)
    return xp.where(doubt, int(Status.DERIVATIVE_EVENTS), 0).astype(np.int32)
