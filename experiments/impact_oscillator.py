"""The forced impact oscillator q'' + 2 z q' + q = cos(w t), q >= sigma, and its exact motion, impact by impact.

Between impacts the motion is known in closed form: a harmonic oscillation plus a damped free one. `Exact` finds the
times of impacts as roots of it, applies v+ = -e v-, and shares nothing with the library but the statement of the problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from jaximpact import catalogue

PROBLEM = catalogue.get("shaw-holmes").problem
SAMPLES = 64  # of the gap in a forcing period, between which it is taken to have one extremum at most
REST = 1e-6  # a rebound velocity below it, under a force towards the wall, is none: what is left of the bounces is 1e-12 high
ROUND_OFF = 1e-14  # of a gap


def args_of(frequency, damping=0.0, wall=0.0) -> dict:
    """The problem's parameters; each may be an array with a lane axis."""
    return {"damping": damping, "amplitude": 1.0, "frequency": frequency, "shift": 0.0, "wall": wall}


def forcing_period(args):
    return 2 * np.pi / args["frequency"]


@dataclass
class Exact:
    """One motion: parameters, the present state, and the impacts met so far."""

    frequency: float
    damping: float
    wall: float
    e: float
    t: float
    q: float
    v: float

    def __post_init__(self):
        w, z = self.frequency, self.damping
        size = (1 - w * w) ** 2 + (2 * z * w) ** 2
        self.a, self.b = (1 - w * w) / size, 2 * z * w / size  # particular solution a cos(w t) + b sin(w t)
        self.own = np.sqrt(1 - z * z)
        self.impacts: list[tuple[float, float]] = []

    def flow(self, s):
        """Position and velocity a time s after the present, without the wall."""
        z, d = self.damping, self.own
        x0 = self.q - self._particular(self.t)[0]
        y0 = self.v - self._particular(self.t)[1]
        c, n, decay = np.cos(d * s), np.sin(d * s) / d, np.exp(-z * s)
        q, v = self._particular(self.t + s)
        return q + decay * (c * x0 + n * (y0 + z * x0)), v + decay * (c * y0 - n * (x0 + z * y0))

    def _particular(self, t):
        w, angle = self.frequency, self.frequency * t
        c, n = np.cos(angle), np.sin(angle)
        return self.a * c + self.b * n, w * (self.b * c - self.a * n)

    def advance(self, until: float) -> None:
        """Follow the motion to a time, impact by impact."""
        while self.t < until:
            if self.q == self.wall and self.v == 0 and self._push(self.t) < -ROUND_OFF * (1 + self.t):
                self._hold(until)
                continue
            s = self._next_impact(until - self.t)
            if s is None:
                (self.q, self.v), self.t = self.flow(until - self.t), until
                return
            _, before = self.flow(s)
            self.t, self.q = self.t + s, self.wall
            self.impacts.append((self.t, before))
            rebound = -self.e * before
            self.v = rebound if rebound > REST or self._push(self.t) >= 0 else 0.0

    def _push(self, t):
        """Acceleration of the mass at rest on the wall, if it were free."""
        return np.cos(self.frequency * t) - self.wall

    def _hold(self, until: float) -> None:
        """Rest on the wall until the force pulls away from it."""
        if abs(self.wall) >= 1:
            self.t = until
            return
        period = 2 * np.pi / self.frequency
        release = -np.arccos(self.wall) / self.frequency  # the push changes sign, upwards, here in every period
        release += np.ceil((self.t - release) / period - 1e-12) * period
        self.t = min(until, release)

    def _next_impact(self, most: float) -> float | None:
        """Time to the first zero of the gap after the present, up to ``most``: bracketed by samples and dips."""
        grid = np.linspace(0, most, max(2, int(np.ceil(most * self.frequency / (2 * np.pi) * SAMPLES)) + 1))
        q, v = self.flow(grid)
        gap, on_wall = q - self.wall, self.q == self.wall
        for i in range(1, len(grid)):
            low, high = grid[i - 1], grid[i]
            if gap[i] >= -ROUND_OFF:
                if not (v[i - 1] < 0 < v[i]):
                    continue
                # a dip between two samples
                high = brentq(lambda s: self.flow(s)[1], low, high, xtol=1e-15)
                if self.flow(high)[0] - self.wall >= 0:
                    continue
            if low > 0 or not on_wall:
                return brentq(lambda s: self.flow(s)[0] - self.wall, low, high, xtol=1e-15)
            # the flight began on the wall: the zero at its start divided away, from a time at which it still rises
            early = min(0.25 * self.v / (1 + abs(self.wall) + self.v), 0.5 * high)
            return brentq(lambda s: (self.flow(s)[0] - self.wall) / s, early, high, xtol=1e-15)
        return None


def exact_section(args: dict, e: float, q0: float, v0: float, *, skip: int, cycles: int):
    """Positions and velocities (cycles,) at the ends of forcing periods, and the number of impacts in them."""
    motion = Exact(args["frequency"], args["damping"], args["wall"], e, 0.0, q0, v0)
    period = forcing_period(args)
    motion.advance(skip * period)
    before, states = len(motion.impacts), []
    for k in range(skip + 1, skip + cycles + 1):
        motion.advance(k * period)
        states.append((motion.q, motion.v))
    q, v = np.array(states).T
    return q, v, len(motion.impacts) - before
