"""The forced impact oscillator q'' + 2 z q' + q = a cos(w (t + shift)), q >= wall, and its exact motion,
impact by impact.

Between impacts the motion is known in closed form: a harmonic oscillation plus a damped free one. `Oscillator` finds
the times of impacts as roots of it and applies v+ = -e v-; a tangent is carried by the free flow and, across an impact,
by the saltation matrix

    S = [[-e, 0], [(a+ + e a-)/v-, -e]],     a-, a+ the accelerations before and after.

It shares nothing with the library but the statement of the problem.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq

from jaximpact import catalogue

PROBLEM = catalogue.get("shaw-holmes").problem
SAMPLES = 64  # of the gap in a forcing period, between which it is taken to have one extremum at most
# a rebound velocity below it, under a force towards the wall, is none: what is left of the bounces is 1e-12 high
REST = 1e-6
ROUND_OFF = 1e-14  # of a gap


def args_of(frequency: Any, damping: Any = 0.0, wall: Any = 0.0) -> dict[str, Any]:
    """The problem's parameters; each may be an array with a lane axis."""
    return {"damping": damping, "amplitude": 1.0, "frequency": frequency, "shift": 0.0, "wall": wall}


def forcing_period(args: dict[str, Any]) -> Any:
    return 2 * np.pi / args["frequency"]


class Oscillator:
    """One motion from (q, v) at t = 0: its present state, the impacts met so far as (time, velocity before),
    and a tangent.

    The tangent (2, 2) is the derivative of the present state, or None where nobody asks for it.
    """

    def __init__(self, args: dict[str, float], e: float, q: float, v: float) -> None:
        self.z, self.w, self.amplitude, self.shift, self.wall = (
            float(args[name]) for name in ("damping", "frequency", "amplitude", "shift", "wall")
        )
        self.e, self.t, self.q, self.v = e, 0.0, q, v
        size = self.amplitude / ((1 - self.w**2) ** 2 + (2 * self.z * self.w) ** 2)
        # the particular solution is a cos + b sin of the forcing's angle
        self.a, self.b = size * (1 - self.w**2), size * 2 * self.z * self.w
        self.own = np.sqrt(1 - self.z**2)
        self.period = 2 * np.pi / self.w
        self.impacts: list[tuple[float, float]] = []
        self.tangent: np.ndarray | None = None

    def free(self, s: Any) -> np.ndarray:
        """Flow of the free oscillator (2, 2), or (2, 2, k) for times (k,)."""
        c, n, decay = np.cos(self.own * s), np.sin(self.own * s) / self.own, np.exp(-self.z * s)
        return decay * np.array([[c + self.z * n, n], [-n, c - self.z * n]])

    def particular(self, t: Any) -> np.ndarray:
        angle = self.w * (t + self.shift)
        c, n = np.cos(angle), np.sin(angle)
        return np.array([self.a * c + self.b * n, self.w * (self.b * c - self.a * n)])

    def flow(self, s: Any) -> np.ndarray:
        """Position and velocity (2,), or (2, k), a time s after the present, without the wall."""
        x, y = np.array([self.q, self.v]) - self.particular(self.t)
        flow = self.free(s)
        return self.particular(self.t + s) + flow[:, 0] * x + flow[:, 1] * y

    def acceleration(self, v: float) -> float:
        """At the wall, now, with a velocity; that of the mass at rest is what the force pushes it away with."""
        return self.amplitude * np.cos(self.w * (self.t + self.shift)) - self.wall - 2 * self.z * v

    def advance(self, until: float) -> None:
        """Follow the motion to a time, impact by impact.

        Raises:
            ArithmeticError: it comes to rest on the wall, where a tangent that is carried
                has no derivative to go on with.
        """
        while self.t < until:
            if self.q == self.wall and self.v == 0 and self.acceleration(0.0) < -ROUND_OFF * (1 + self.t):
                if self.tangent is not None:
                    raise ArithmeticError("impacts accumulate")
                self.t = min(until, self._release())
                continue
            # period by period: few samples for the next impact
            most = min(until - self.t, self.period)
            s = self._next_impact(most)
            self._fly(most if s is None else s, until)
            if s is not None:
                self._strike()

    def _fly(self, s: float, until: float) -> None:
        (self.q, self.v), end = self.flow(s), self.t + s
        if self.tangent is not None:
            self.tangent = self.free(s) @ self.tangent
        self.t = until if until - end < 1e-15 * until else end

    def _strike(self) -> None:
        v, rebound = self.v, -self.e * self.v
        self.impacts.append((self.t, v))
        if self.tangent is not None:
            turn = (self.acceleration(rebound) + self.e * self.acceleration(v)) / v
            self.tangent = np.array([[-self.e, 0.0], [turn, -self.e]]) @ self.tangent
        stays = rebound <= REST and self.acceleration(0.0) < 0
        self.q, self.v = self.wall, 0.0 if stays else rebound

    def _release(self) -> float:
        """When the force pulls the mass away from the wall next."""
        if abs(self.wall) >= self.amplitude:
            return np.inf
        # the push changes sign, upwards, here in every period
        first = -np.arccos(self.wall / self.amplitude) / self.w - self.shift
        return first + np.ceil((self.t - first) / self.period - 1e-12) * self.period

    def _next_impact(self, most: float) -> float | None:
        """Time to the first zero of the gap after the present, up to ``most``: bracketed by samples and dips."""
        grid = np.linspace(0, most, max(2, int(np.ceil(most / self.period * SAMPLES)) + 1))
        q, v = self.flow(grid)
        inside, dips = q[1:] - self.wall < -ROUND_OFF, (v[:-1] < 0) & (v[1:] > 0)
        for i in np.flatnonzero(inside | dips):
            low, high = grid[i], grid[i + 1]
            if not inside[i]:
                # a dip between two samples
                high = brentq(lambda s: self.flow(s)[1], low, high, xtol=1e-15)
                if self.flow(high)[0] - self.wall >= 0:
                    continue
            if low == 0 and self.q <= self.wall and self.v < 0:
                # the flight before has ended on the wall, or within round-off of it
                return 0.0
            if low > 0 or self.q != self.wall:
                return brentq(lambda s: self.flow(s)[0] - self.wall, low, high, xtol=1e-15)
            # the flight began on the wall: the zero at its start divided away, from a time at which it still rises
            early = min(0.25 * self.v / (self.amplitude + abs(self.wall) + self.v), 0.5 * high)
            return brentq(lambda s: (self.flow(s)[0] - self.wall) / s, early, high, xtol=1e-15)
        return None


def exact_section(
    args: dict[str, float], e: float, q0: float, v0: float, *, skip: int, cycles: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Positions and velocities (cycles,) at the ends of forcing periods, and the number of impacts in them."""
    motion = Oscillator(args, e, q0, v0)
    motion.advance(skip * motion.period)
    before, states = len(motion.impacts), []
    for k in range(skip + 1, skip + cycles + 1):
        motion.advance(k * motion.period)
        states.append((motion.q, motion.v))
    q, v = np.array(states).T
    return q, v, len(motion.impacts) - before


def exact_exponents(
    args: dict[str, float], e: float, q0: float, v0: float, *, periods: int, skip: int = 100, blocks: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    """Lyapunov exponents (2,) per unit time and their standard errors from block means.

    Raises:
        ArithmeticError: impacts accumulate, and the contact stays for a while.
    """
    motion, frame, logs = Oscillator(args, e, q0, v0), np.eye(2), []
    for k in range(skip + periods):
        # the phase is all that counts: no large times
        motion.t, motion.tangent = 0.0, frame
        motion.advance(motion.period)
        frame, r = np.linalg.qr(motion.tangent)
        if k >= skip:
            logs.append(np.log(np.abs(np.diagonal(r))))
    means = np.reshape(logs, (blocks, -1, 2)).mean(axis=1) / motion.period
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(blocks)
