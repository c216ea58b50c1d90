"""A computed motion, or many, as `solve` and `ensemble` return it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array

from .schemes.base import Timing
from .status import FAILURES, Status, describe, summarise
from .validate import is_traced


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Solution:
    """A computed motion; a batch adds leading axes.

    Attributes:
        t: times of the rows (k,) [s]; the last is t1.
        q: positions U (k, d), interpolated affinely between steps. For e > 0 they may leave the admissible set by O(h).
        v: velocities (k, d) over the step that ends at or after the row's time.
        z: admissible positions Z (k, d) of that step. Of `EventCorrected` q, v and z are those at the row's very time.
        impulse: impulse of each constraint accumulated since the start (k, m).
        energy: (k,) where the problem defines one, else None; taken at (q, v), it dips during the two steps of an impact.
        values: what ``Save(function=...)`` returned, leading axis k; q, v, z and impulse then hold the final row only.
        penetration: largest violation of a gap by U over all steps, ().
        residual: largest KKT residual of a projection [velocity], ().
        iterations: projection iterations of all steps, ().
        status: `Status` bits OR-ed over the steps, ().
        failed_at: time of the first failure, NaN where none, () [s].
        timing: of which scheme these are, and to which times its velocities and impulses belong (`Timing`); static. None
            in a solution put together by hand.
    """

    t: Array
    q: Array
    v: Array
    z: Array
    impulse: Array
    energy: Array | None
    values: Any
    penetration: Array
    residual: Array
    iterations: Array
    status: Array
    failed_at: Array
    timing: Timing | None = field(default=None, metadata={"static": True})

    def __repr__(self) -> str:
        if not all(hasattr(x, "shape") for x in (self.t, self.q, self.impulse, self.status)):
            return "Solution(...)"
        *batch, rows, d = self.q.shape
        parts = [f"{' x '.join(map(str, batch))} motions"] if batch else []
        parts += [f"{rows} row{'s' * (rows != 1)}", f"d = {d}", f"m = {self.impulse.shape[-1]}"]
        if isinstance(self.status, np.ndarray | np.generic | Array) and not is_traced(self) and self.status.size:
            t, status = np.asarray(self.t), int(np.bitwise_or.reduce(np.ravel(self.status)))
            parts += [f"t = {t.min():g} ... {t.max():g}", f"penetration = {np.max(self.penetration):.3g}"]
            parts += [f"status = {Status(status)}"]
            if batch:
                parts.append(f"{np.sum(self.failed)} failed")
        return f"Solution({', '.join(parts)})"

    def raise_if_failed(self) -> Solution:
        """This solution, or RuntimeError that says which trajectories failed, when, and the likely causes."""
        if np.any(np.asarray(self.status) & int(FAILURES)):
            raise RuntimeError(summarise(np.asarray(self.status).ravel(), np.asarray(self.failed_at).ravel()))
        return self

    @property
    def failed(self) -> Array:
        """Whether each trajectory failed."""
        return (self.status & int(FAILURES)) != 0

    def describe_status(self) -> str:
        """The status bits set in any trajectory, in words."""
        return describe(int(np.bitwise_or.reduce(np.asarray(self.status).ravel())))
