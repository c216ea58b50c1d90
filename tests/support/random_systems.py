"""A family of random systems that is one problem: all that is random is a number in its args, so nothing compiles anew.

Inertia may depend on position, force on position, velocity and time, walls may be flat, curved and moving. A wall that
a system does not have is pushed far away.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.integrate import DOP853, solve_ivp
from scipy.optimize import brentq

import jaximpact as ji

UNIT = 2.0**-40  # of coefficients handed over as whole numbers: no sensitivity asks for their derivatives
FAR = 50.0  # from a wall that is not there
FLOATING = "push", "offset"  # coefficients to differentiate by


def real(args):
    return {
        k: x if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x.astype(float) * UNIT for k, x in args.items()
    }


def mass(q, args):
    """1 + S S', symmetric positive definite; constant where ``bend`` is zero."""
    args = real(args)
    spread = args["spread"] * (1 + args["bend"] * jnp.sin(q + args["lean"]))[:, None]
    return jnp.eye(q.size) + spread @ spread.T


def force(t, q, v, args):
    args = real(args)
    velocity = args["damp"] @ v + args["drag"] * (v @ v)
    return args["push"] + args["stiff"] @ jnp.sin(q) + velocity + args["drive"] * jnp.cos(3 * t)


def gaps(t, q, args):
    args = real(args)
    return args["offset"] + args["normal"] @ q + args["swell"] * jnp.sin(args["wave"] @ q + args["rate"] * t)


PROBLEM = ji.Problem(force, gaps, mass)


class System(NamedTuple):
    """Data of one motion; ``args`` with all coefficients as real numbers."""

    seed: int
    q0: np.ndarray
    v0: np.ndarray
    e: float
    args: dict


def draw(seed: int, d: int, walls: int) -> System:
    """Random system for a seed, with ``d`` coordinates, and one to ``walls`` walls, all open at the start."""
    rng = np.random.default_rng([seed, d, walls])
    normal, some = rng.standard_normal, lambda chance, *shape: rng.random(shape) < chance
    root, count = np.sqrt(d), rng.integers(1, walls + 1)
    here = np.arange(walls) < count
    kind = rng.random()
    e = 0.0 if kind < 0.3 else 1.0 if kind < 0.35 else rng.uniform(0.02, 1)
    whole = {
        "spread": 0.7 * normal((d, d)) / root * some(0.7),
        "bend": 0.5 * some(0.7),
        "lean": rng.uniform(-np.pi, np.pi, d),
        "stiff": normal((d, d)) / root * rng.choice([0, 1, 5]),
        "damp": 0.5 * normal((d, d)) / root * some(0.5),
        "drag": 0.3 * normal(d) * some(0.5),
        "drive": 2 * normal(d) * some(0.5),
        "normal": normal((walls, d)),
        "swell": rng.uniform(0.1, 0.4, walls) * some(0.5, walls) * here,
        "wave": normal((walls, d)),
        "rate": rng.uniform(-3, 3, walls) * some(0.5, walls),
    }
    whole["normal"] *= rng.uniform(0.7, 1.4, (walls, 1)) / np.linalg.norm(whole["normal"], axis=1, keepdims=True)
    args = {name: np.rint(np.broadcast_to(x, np.shape(x)) / UNIT) * UNIT for name, x in whole.items()}
    q0, v0 = 0.5 * normal(d), 1.5 * normal(d)
    # pressed against the first wall, as by gravity, in every other system
    args["push"] = normal(d) - rng.choice([0.0, 4.0]) * args["normal"][0]
    at_start = args["normal"] @ q0 + args["swell"] * np.sin(args["wave"] @ q0)
    args["offset"] = np.where(here, rng.uniform(0.05, 0.7, walls), FAR) - at_start
    return System(seed, q0, v0, e, args)


def whole_numbers(args: dict) -> dict:
    """The coefficients in the form the library gets: integers, except those to differentiate by."""
    return {k: x if k in FLOATING else np.rint(x / UNIT).astype(np.int64) for k, x in args.items()}


# the motion, without jax and without jaximpact: gradients by hand, events located, the impact law by looking at every
# subset

SLOW = 1e-6  # rebound speed from which a contact stays: its next hop would be 1e-12 high, near the round-off of a gap
TOUCH = 1e-10  # of a gap
NODES = np.linspace(0, 1, 9)  # of an integrator's step, where gaps and multipliers are looked at


class Excluded(Exception):
    """Raised for a motion without a unique continuation, or one that cannot be located;
    the message names the exception."""


class Impact(NamedTuple):
    """Time, wall, gap velocity -f' > 0 before, walls closed then, and the cosines (m,) of its
    gradient with the others'."""

    t: float
    wall: int
    speed: float
    closed: np.ndarray
    cosines: np.ndarray


class Motion:
    """Exact motion, from event to event; ``impacts`` and ``releases`` in order,
    ``scale`` the largest |v|, |a|, |change of a|/s."""

    def __init__(self, system: System, t1: float, tolerance: float = 1e-11, most_impacts: int = 60):
        self.e, self.tolerance, self.most = system.e, tolerance, most_impacts
        here = np.abs(system.args["offset"]) < FAR / 2
        self.walls = np.flatnonzero(here)
        self.a = {k: x[here] if np.shape(x)[:1] == here.shape and k in WALLS else x for k, x in system.args.items()}
        self.eye = np.eye(system.q0.size)
        self.t, self.t1, self.x = 0.0, t1, np.concatenate([system.q0, system.v0])
        self.closed = np.zeros(self.walls.size, bool)
        self.asleep = self.closed.copy()
        self.impacts: list[Impact] = []
        self.releases: list[tuple[float, int]] = []
        self.scale = np.zeros(3)
        for _ in range(4 * most_impacts):
            if self.t >= t1:
                break
            self.advance()
        else:
            raise Excluded("accumulating: too many events")

    @property
    def q(self):
        return self.x[: self.eye.shape[0]]

    @property
    def v(self):
        return self.x[self.eye.shape[0] :]

    def smooth(self, t, x):
        """Mass matrix and force."""
        a, d = self.a, self.eye.shape[0]
        q, v = x[:d], x[d:]
        spread = a["spread"] * (1 + a["bend"] * np.sin(q + a["lean"]))[:, None]
        push = a["push"] + a["stiff"] @ np.sin(q) + a["damp"] @ v + a["drag"] * (v @ v) + a["drive"] * np.cos(3 * t)
        return self.eye + spread @ spread.T, push

    def parts(self, t, x):
        """Gaps, their rates, accelerations without reactions, Delassus matrix, M^-1 G', acceleration."""
        a, d = self.a, self.eye.shape[0]
        q, v, (inertia, push) = x[:d], x[d:], self.smooth(t, x)
        phase, turn = a["wave"] @ q + a["rate"] * t, a["wave"] @ v + a["rate"]
        slope = a["swell"] * np.cos(phase)
        gradient = a["normal"] + slope[:, None] * a["wave"]
        solved = np.linalg.solve(inertia, np.column_stack([gradient.T, push]))
        response, free = solved[:, :-1], solved[:, -1]
        gap = a["offset"] + a["normal"] @ q + a["swell"] * np.sin(phase)
        bend = gradient @ free - a["swell"] * np.sin(phase) * turn**2
        return gap, a["normal"] @ v + slope * turn, bend, gradient @ response, response, free

    def reaction(self, delassus, bend):
        force = np.zeros(bend.size)
        held = np.flatnonzero(self.closed)
        if held.size:
            force[held] = np.linalg.solve(delassus[np.ix_(held, held)], -bend[held])
        return force

    def slope(self, t, x):
        if not np.max(np.abs(x)) < 30:
            raise Excluded("far away")
        if not self.closed.any():
            return np.concatenate([x[x.size // 2 :], np.linalg.solve(*self.smooth(t, x))])
        *_, bend, delassus, response, free = self.parts(t, x)
        return np.concatenate([x[x.size // 2 :], free + response @ self.reaction(delassus, bend)])

    def watch(self, t, x):
        """Gaps and their rates (..., m) at times (...) and states (2d, ...)."""
        a, (q, v) = self.a, np.split(np.moveaxis(x, 0, -1), 2, axis=-1)
        phase = q @ a["wave"].T + np.multiply.outer(t, a["rate"])
        turn = v @ a["wave"].T + a["rate"]
        gap = a["offset"] + q @ a["normal"].T + a["swell"] * np.sin(phase)
        return gap, v @ a["normal"].T + a["swell"] * np.cos(phase) * turn

    def push(self, t, x):
        """Reactions (m,) of the closed contacts."""
        *_, bend, delassus, _, _ = self.parts(t, x)
        return self.reaction(delassus, bend)

    def run_to(self, t):
        if t - self.t > 1e-15:
            run = solve_ivp(self.slope, (self.t, t), self.x, "DOP853", rtol=self.tolerance, atol=self.tolerance)
            self.t, self.x = t, run.y[:, -1]

    def advance(self):
        """Advances to the next event and treats it, or to t1."""
        settings = {"rtol": self.tolerance, "atol": self.tolerance, "max_step": self.t1 / 8}
        hop = self.hop()
        if hop:
            settings["first_step"] = min(hop, self.t1 - self.t)
        run = DOP853(self.slope, self.t, self.x, self.t1, **settings)
        before = self.slope(self.t, self.x)
        while run.status == "running":
            run.step()
            if run.status == "failed":
                raise Excluded("no smooth motion")
            event = self.first_event(run.dense_output(), run.t_old, run.t)
            if event:
                when, wall, strikes = event
                start = self.t
                self.run_to(when)
                self.measure(before, start, when, self.x)
                return self.strike(wall) if strikes else self.release(wall)
            before = self.measure(before, run.t_old, run.t, run.y)
            self.t, self.x = run.t, run.y

    def measure(self, before, start, end, x):
        """Records how fast position and velocity change; returns the slope at the end."""
        after, half = self.slope(end, x), self.eye.shape[0]
        change = np.linalg.norm(after[half:] - before[half:]) / max(end - start, 1e-3)
        self.scale = np.maximum(self.scale, [np.linalg.norm(after[:half]), np.linalg.norm(after[half:]), change])
        return after

    def hop(self):
        """A third of the duration of the shortest hop that starts now, or None."""
        gap, rate, bend, *_ = self.parts(self.t, self.x)
        hops = (gap < TOUCH) & ~self.closed & ~self.asleep & (rate > 0) & (bend < 0)
        return float(np.min(-2 * rate[hops] / bend[hops])) / 3 if hops.any() else None

    def first_event(self, path, start, end):
        """(time, wall, whether it is an impact) of the first event of a step, or None."""
        times = start + NODES * (end - start)
        states = path(times)
        gaps, rates = self.watch(times, states)
        if self.closed.any():
            forces = np.array([self.push(t, x) for t, x in zip(times, states.T, strict=True)])
        at = lambda which, c: lambda t: self.watch(t, path(t))[which][c]
        events = []
        for c in range(self.walls.size):
            if self.closed[c]:
                below = np.flatnonzero(forces[:, c] < 0)
                if below.size:
                    i = below[0]
                    events.append(
                        (
                            start if i == 0 else root(lambda t, c=c: self.push(t, path(t))[c], times[i - 1], times[i]),
                            c,
                            False,
                        )
                    )
                continue
            first = 0
            if self.asleep[c]:
                above = np.flatnonzero(gaps[:, c] > TOUCH)
                first = above[0] if above.size else NODES.size
                if np.any(gaps[:first, c] < -TOUCH):
                    raise Excluded("weak contact: touches without pushing")
                self.asleep[c] = not above.size
            for i in range(first, NODES.size - 1):
                when = crossing(at(0, c), at(1, c), times[i : i + 2], gaps[i : i + 2, c], rates[i : i + 2, c])
                if when is not None:
                    events.append((when, c, True))
                    break
        return min(events) if events else None

    def release(self, wall):
        self.releases.append((self.t, wall))
        self.closed = self.closed.copy()
        self.closed[wall], self.asleep[wall] = False, True

    def begin_impact(self, wall):
        """Records an impact; and rates, Delassus matrix and response of contacts, which of them take part, and the
        restitution at such a speed."""
        gap, rate, _, delassus, response, _ = self.parts(self.t, self.x)
        if rate[wall] >= 0:
            raise Excluded("grazing")
        others = (np.abs(gap) < 1e-8) & (rate < 0) & ~self.closed & ~self.asleep
        others[wall] = False
        if others.any():
            raise Excluded("simultaneous impacts")
        among = self.closed.copy()
        size = np.sqrt(np.diagonal(delassus))
        among[wall] = True
        cosines = (delassus / size / size[:, None])[wall]
        self.impacts.append(Impact(self.t, wall, -rate[wall], self.closed, cosines))
        if len(self.impacts) > self.most:
            raise Excluded("accumulating: too many impacts")
        return rate, delassus, response, among, self.e if -self.e * rate[wall] > SLOW else 0.0

    def strike(self, wall):
        rate, delassus, response, among, e = self.begin_impact(wall)
        impulse = complementary(delassus, np.where(among, (1 + e) * rate, 0), among)
        self.x = self.x + np.concatenate([np.zeros(self.eye.shape[0]), response @ impulse])
        rate, bend = self.parts(self.t, self.x)[1:3]
        resting = among & (np.abs(rate) <= 2 * SLOW) & ((impulse > 0) | self.closed)
        if e > 0:
            resting[wall] = False
        self.closed = complementary(delassus, bend, resting) > 0
        self.asleep = (self.asleep & ~among) | (among & ~self.closed & (rate <= SLOW))


WALLS = "offset", "normal", "swell", "wave", "rate"


def root(f, a, b):
    """Zero of f in [a, b]; if f does not change sign because of round-off, the better end."""
    ends = f(a), f(b)
    return brentq(f, a, b, xtol=1e-15) if ends[0] * ends[1] < 0 else (a, b)[int(abs(ends[1]) < abs(ends[0]))]


def crossing(gap, rate, times, gaps, rates):
    """Where a gap first falls below 0 between two nodes, or None. The gap may start at 0 and rise."""
    a, b = times
    if gaps[1] < 0:
        if gaps[0] <= TOUCH:
            if rates[0] <= 0:
                return a
            a = root(rate, a, b) if rates[1] < 0 else a
            if gap(a) <= 0:
                return a
    elif rates[0] < 0 < rates[1] and gaps[0] > 0:
        b = root(rate, a, b)
        if gap(b) >= 0:
            return None
    else:
        return None
    return root(gap, a, b)


def complementary(matrix, residual, among):
    """Solves 0 <= L _|_ S L + r >= 0 restricted to a mask ``among``, by trying every subset."""
    slack = 1e-9 * (1 + np.max(np.abs(residual), initial=0.0))
    places = np.flatnonzero(among)
    for size in range(min(places.size, 3) + 1):
        for subset in map(list, combinations(places, size)):
            block = matrix[np.ix_(subset, subset)]
            if size > 1 and np.linalg.cond(block) > 1e6:
                raise Excluded("dependent gradients")
            found = np.zeros(residual.size)
            found[subset] = np.linalg.solve(block, -residual[subset]) if size else 0.0
            if np.all(found >= 0) and np.all((matrix @ found + residual)[among] >= -slack):
                return found
    raise Excluded("dependent gradients")
