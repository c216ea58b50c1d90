"""What stands beside every time: how far the numbers are from the other contenders', and from the motion itself."""

from __future__ import annotations

import numpy as np

from . import reference

LANES, DERIVATIVES = 16, 8  # lanes whose motion and derivative are computed by event location


class Accuracy:
    """Accuracy of results of one work and number of lanes, against references that are computed once.

    ``difference``: largest distance of a final position from the first contender's. ``error``: largest distance from
    the motion's final position over the first lanes; of a derivative the median over lanes of the largest error,
    relative to the largest entry. None where the motion has no isolated impacts.
    """

    def __init__(self, work, lanes: int):
        self.work, self.first = work, None
        q0, v0 = work.initial(lanes)
        self.q0, self.v0 = q0[:LANES], v0[:LANES]
        self._motion = None
        self._derivatives: dict = {}

    def of(self, mode: str, result) -> dict:
        """Fields of a row."""
        if mode == "value":
            return {}
        if mode != "forward":
            return {"error": self.error_of_derivative(mode, result)}
        q = np.asarray(result[0], float)
        self.first = q if self.first is None else self.first
        return {"difference": float(np.abs(q - self.first).max()), "error": self.error(q)}

    def error(self, q) -> float | None:
        if not isolated(self.work):
            return None
        if self._motion is None:
            work = self.work
            found = reference.event_located(
                work.problem, self.q0, self.v0, np.array([work.t1]), work.restitution, work.args
            )
            self._motion = found[0][:, 0]
        return largest(np.asarray(q)[:LANES] - self._motion, self._motion)

    def error_of_derivative(self, mode: str, result) -> float | None:
        if not isolated(self.work):
            return None
        work, d = self.work, self.q0.shape[1]
        if mode not in self._derivatives:
            directions = np.eye(2 * d) if mode == "vjp" else np.repeat([[1.0, 0.0]], d, axis=1)
            self._derivatives[mode] = reference.derivative(
                work.problem,
                self.q0[:DERIVATIVES],
                self.v0[:DERIVATIVES],
                work.t1,
                work.restitution,
                work.args,
                directions,
            )
        exact = self._derivatives[mode]
        error = np.abs(np.asarray(result, float)[:DERIVATIVES] - exact).max(axis=1) / np.abs(exact).max(axis=1)
        error = error[~np.isnan(exact).any(axis=1)]
        return float(np.median(error)) if error.size else None


def isolated(work) -> bool:
    """Whether event location applies: few contacts, which do not last."""
    return work.name in ("ball", "forced-oscillator", "double-pendulum", "links-2")


def largest(x, reference) -> float | None:
    """The largest magnitude of the lanes x (lanes, d) that have a reference; None where none has."""
    x = x[~np.isnan(reference).any(axis=1)]
    return float(np.abs(x).max()) if x.size else None
