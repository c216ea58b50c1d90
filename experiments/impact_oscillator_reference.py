"""An exact, event-driven reference of the forced impact oscillator, in numpy alone.

    q'' + 2 z q' + q = a cos(w (t + shift)),     q >= wall,     restitution e.

Between impacts the motion is the particular solution plus a damped free oscillation, in closed form; an impact is the first
root of q - wall, found on a fine grid and then by bisection; a tangent is carried by the free flow and, across an impact
at v-, by the saltation matrix

    S = [[-e, 0], [(a+ + e a-)/v-, -e]],     a-, a+ the accelerations before and after.

It shares no code with jaximpact. Impacts slower than SLOW under an acceleration towards the wall would accumulate: that is
an error here, not a case.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

SLOW = 1e-7
GRID = 400  # points a period at which the gap is looked at


class Oscillator:
    """Exact motions for one set of parameters."""

    def __init__(self, damping, amplitude, frequency, shift, wall, e):
        self.z, self.w, self.shift, self.wall, self.e = damping, frequency, shift, wall, e
        self.wd = np.sqrt(1 - damping**2)
        self.size = amplitude / np.hypot(1 - frequency**2, 2 * damping * frequency)
        self.lag = np.arctan2(2 * damping * frequency, 1 - frequency**2)
        self.amplitude = amplitude
        self.period = 2 * np.pi / frequency
        self.grid = np.arange(1, GRID + 1) / GRID * self.period
        self.table = self.free(self.grid)

    def free(self, s):
        """Flow of the free oscillator, (2, 2) or (2, 2, k)."""
        c, d, decay = np.cos(self.wd * s), np.sin(self.wd * s) / self.wd, np.exp(-self.z * np.asarray(s))
        return decay * np.array([[c + self.z * d, d], [-d, c - self.z * d]])

    def particular(self, t):
        angle = self.w * (t + self.shift) - self.lag
        return np.array([self.size * np.cos(angle), -self.size * self.w * np.sin(angle)])

    def acceleration(self, t, q, v):
        return self.amplitude * np.cos(self.w * (t + self.shift)) - q - 2 * self.z * v

    def flight(self, t, x, s):
        """State a time s later, no impact in between; s may be an array (k,)."""
        table = self.table if s is self.grid else self.free(s)
        return self.particular(t + s) + np.einsum("ij...,j->i...", table, x - self.particular(t))

    def next_impact(self, t, x, most):
        """Time to the first root of q - wall within (0, most], or None."""
        gap = lambda s: self.flight(t, x, s)[0] - self.wall
        nodes = np.append(0.0, self.grid)
        values, rates = self.flight(t, x, self.grid)
        values, rates = np.append(x[0] - self.wall, values - self.wall), np.append(x[1], rates)
        # a cell may hold a root if its end is negative, or if a minimum lies within it
        for k in np.flatnonzero((values[1:] < 0) | ((rates[:-1] < 0) & (rates[1:] > 0))):
            left, right = nodes[k], nodes[k + 1]
            if left >= most:
                return None
            if values[k + 1] >= 0:
                right = brentq(lambda s: self.flight(t, x, s)[1], left, right, xtol=1e-15)
                if gap(right) >= 0:
                    continue
            if k == 0 and x[0] <= self.wall + 1e-12:
                # on the wall, leaving it: the root at zero is not the next one
                left = self.leave(t, x, right)
            root = brentq(gap, left, right, xtol=1e-15, rtol=1e-14)
            return root if root <= most else None
        return None

    def leave(self, t, x, right):
        """A time after which the gap, opening from zero, is positive."""
        s = right
        while self.flight(t, x, s)[0] <= self.wall:
            s *= 0.5
            if s < 1e-14:
                raise ArithmeticError("the oscillator does not leave the wall: impacts accumulate")
        return s

    def period_map(self, t, x, tangent):
        """State and tangent (2, 2) one period later, and the speeds of the impacts on the way."""
        left, speeds = self.period, []
        while True:
            s = self.next_impact(t, x, left)
            if s is None:
                return self.flight(t, x, left), self.free(left) @ tangent, speeds
            x, tangent, t, left = self.flight(t, x, s), self.free(s) @ tangent, t + s, left - s
            q, v = self.wall, x[1]
            before, after = self.acceleration(t, q, v), self.acceleration(t, q, -self.e * v)
            if -v < SLOW and after < 0:
                raise ArithmeticError("impacts accumulate")
            x = np.array([q, -self.e * v])
            tangent = np.array([[-self.e, 0], [(after + self.e * before) / v, -self.e]]) @ tangent
            speeds.append(-v)

    def lyapunov(self, x, periods, skip=100, blocks=10):
        """Exponents (2,) per unit time and their standard errors from block means, from a state x at t = 0."""
        x, frame = np.asarray(x, float), np.eye(2)
        logs = []
        for k in range(skip + periods):
            # the phase is all that counts: no large times
            x, tangent, _ = self.period_map(0.0, x, frame)
            frame, r = np.linalg.qr(tangent)
            if k >= skip:
                logs.append(np.log(np.abs(np.diagonal(r))))
        means = np.reshape(logs, (blocks, -1, 2)).mean(axis=1) / self.period
        return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(blocks)
