"""Random systems with Coulomb friction in the plane, and their event-located motions: inertia, force and walls are
those of `random_systems`.

Every wall has a tangent of its own, which may turn with the position, and may move along it as a belt does.
"""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from . import random_systems
from .random_systems import FAR, NODES, SLOW, UNIT, Excluded, System, real, root

STILL = 1e-8  # of a slip, which drifts by what motions are located to while a contact sticks
FIRST = 1e-9  # below zero, of one that has only just begun
OPEN, STICK, SLIP = 0, 1, 2


def slip(t, q, v, args):
    args = real(args)
    turn = args["twist"] * jnp.sin(args["curl"] @ q)
    return (args["tangent"] + turn[:, None] * args["across"]) @ v + args["belt"] * jnp.cos(args["pace"] * t)


def friction(args):
    return real(args)["mu"]


PROBLEM = random_systems.PROBLEM.replace(slip=slip, friction=friction)


# the same systems by gaps of other scales, which change along the motion: with the velocity of the true ones, slip says
# what the scales are


def scaled_gaps(t, q, args):
    own = real(args)
    return random_systems.PROBLEM.gaps(t, q, args) * jnp.exp(jnp.sin(own["curl"] @ q) + 3 * own["belt"])


def whole_velocity(t, q, v, args):
    t = jnp.asarray(t, q.dtype)
    normal = jax.jvp(lambda t, q: random_systems.PROBLEM.gaps(t, q, args), (t, q), (jnp.ones_like(t), v))[1]
    return normal, slip(t, q, v, args)


SCALED = PROBLEM.replace(constraints=scaled_gaps, slip=whole_velocity)


def draw(seed: int, d: int, walls: int) -> System:
    """Random system for a seed, with friction at its walls: tangents are across their gradients, more or less."""
    system = random_systems.draw(seed, d, walls)
    rng = np.random.default_rng([seed, d, walls, 3])
    normal, some = rng.standard_normal, lambda chance, *shape: rng.random(shape) < chance
    n = system.args["normal"]
    unit = n / np.linalg.norm(n, axis=1, keepdims=True)
    tangent = normal((walls, d))
    tangent -= rng.choice([0.3, 0.7, 1.0], (walls, 1)) * np.sum(tangent * unit, axis=1, keepdims=True) * unit
    own = {
        "tangent": tangent / np.linalg.norm(tangent, axis=1, keepdims=True),
        "across": 0.5 * normal((walls, d)),
        "twist": rng.uniform(-0.5, 0.5, walls) * some(0.5, walls),
        "curl": normal((walls, d)),
        "belt": rng.uniform(-1, 1, walls) * some(0.6, walls),
        "pace": rng.choice([0.0, 2.0, 5.0], walls),
        "mu": rng.uniform(0, 1.5, walls) * some(0.9, walls),
    }
    e, rubs = system.e, rng.random() < 0.6
    if rubs:
        e = 0.0
        own["drive"] = rng.uniform(2, 12) * own["tangent"][0] + normal(d)
    args = system.args | {name: np.rint(x / UNIT) * UNIT for name, x in own.items()}
    if rubs:
        # lands soon on the first wall, and is rubbed along it to and fro
        args["push"] = args["push"] - rng.uniform(2, 12) * n[0]
        near = n[0] @ system.q0 + args["swell"][0] * np.sin(args["wave"][0] @ system.q0)
        args["offset"] = np.append(rng.uniform(0.01, 0.1) - near, args["offset"][1:])
    return system._replace(e=e, args=args)


# in space: two tangents at every wall, whose motions no code but the library's computes


def slip_in_space(t, q, v, args):
    args = real(args)
    turn = args["twist"] * jnp.sin(args["curl"] @ q)
    rows = args["tangents"] + turn[:, None, None] * args["asides"]
    return rows @ v + args["belts"] * jnp.cos(args["pace"] * t)[:, None]


IN_SPACE = random_systems.PROBLEM.replace(slip=slip_in_space, friction=friction)


def draw_in_space(seed: int, d: int, walls: int) -> System:
    """The same with two tangents at every wall; those of one wall are orthonormal."""
    system = draw(seed, d, walls)
    rng = np.random.default_rng([seed, d, walls, 4])
    n = system.args["normal"]
    first = system.args["tangent"]
    second = rng.standard_normal((walls, d))
    for other in (first, n / np.linalg.norm(n, axis=1, keepdims=True)):
        second -= np.sum(second * other, axis=1, keepdims=True) * other
    second -= np.sum(second * first, axis=1, keepdims=True) * first
    second /= np.linalg.norm(second, axis=1, keepdims=True)
    own = {
        "tangents": np.stack([first, second], axis=1),
        "asides": 0.5 * rng.standard_normal((walls, 2, d)),
        "belts": rng.uniform(-1, 1, (walls, 2)) * (system.args["belt"] != 0)[:, None],
    }
    return system._replace(args=system.args | {name: np.rint(x / UNIT) * UNIT for name, x in own.items()})


# in the plane: located events

OF_WALLS = ("tangent", "across", "twist", "curl", "belt", "pace", "mu")


class Motion(random_systems.Motion):
    """Exact motion with friction; ``passages`` are stops, breaks and reversals (time, wall, kind), ``jam`` the largest
    ratio of Painleve met."""

    def __init__(self, system: System, t1: float, tolerance: float = 1e-11, most_impacts: int = 60):
        here = np.abs(system.args["offset"]) < FAR / 2
        self.own = {name: system.args[name][here] for name in OF_WALLS}
        self.mode, self.way = np.zeros(here.sum(), int), np.zeros(here.sum())
        self.passages: list[tuple[float, int, str]] = []
        self.jam = 0.0
        super().__init__(system, t1, tolerance, most_impacts)

    # equations

    def tangents(self, t, x):
        """Tangents (m, d), slips (m,), and accelerations of slip (m,) at constant velocity."""
        o, (q, v) = self.own, np.split(x, 2)
        phase = o["curl"] @ q
        rows = o["tangent"] + (o["twist"] * np.sin(phase))[:, None] * o["across"]
        turning = o["twist"] * np.cos(phase) * (o["curl"] @ v) * (o["across"] @ v)
        beat = o["pace"] * t
        return rows, rows @ v + o["belt"] * np.cos(beat), turning - o["belt"] * o["pace"] * np.sin(beat)

    def both(self, t, x):
        """Delassus matrix (2m, 2m) of normals and tangents, accelerations (2m,) without reactions, M^-1 of both (d,
        2m), free acceleration."""
        _, _, bend, _, response, free = self.parts(t, x)
        rows, _, swerve = self.tangents(t, x)
        inertia, _ = self.smooth(t, x)
        normals = (inertia @ response).T
        every = np.concatenate([normals, rows])
        both = np.column_stack([response, np.linalg.solve(inertia, rows.T)])
        return every @ both, np.concatenate([bend, rows @ free + swerve]), both, free

    def held(self, matrix, offset, mode, way):
        """Reactions (2m,) of contacts in known modes: normal ones, then tangential ones."""
        m = mode.size
        a, b = np.eye(2 * m), np.zeros(2 * m)
        for c in np.flatnonzero(mode):
            a[c], b[c] = matrix[c], -offset[c]
            if mode[c] == STICK:
                a[m + c], b[m + c] = matrix[m + c], -offset[m + c]
            else:
                a[m + c, c] = self.own["mu"][c] * way[c]
        if mode.any() and np.linalg.cond(a) > 1e8:
            raise Excluded("dependent gradients")
        return np.linalg.solve(a, b)

    def slope(self, t, x):
        if not np.max(np.abs(x)) < 30:
            raise Excluded("far away")
        if not self.closed.any():
            return super().slope(t, x)
        matrix, offset, both, free = self.both(t, x)
        return np.concatenate([x[x.size // 2 :], free + both @ self.held(matrix, offset, self.mode, self.way)])

    def push(self, t, x):
        matrix, offset, *_ = self.both(t, x)
        return self.held(matrix, offset, self.mode, self.way)

    def look_at_jam(self, matrix, closed):
        m = closed.size
        for c in np.flatnonzero(closed):
            self.jam = max(self.jam, self.own["mu"][c] * abs(matrix[c, m + c]) / matrix[c, c])

    # events

    def first_event(self, path, start, end):
        """(time, wall, whether it is an impact) of the first event of a step, or None;
        of another event ``kind`` says what it is."""
        events = []
        kinds = self.mode.copy()
        # impacts of open walls, as without friction
        self.closed, mode = kinds > 0, self.mode
        if self.closed.any():
            times = start + NODES * (end - start)
            states = path(times)
            forces = np.array([self.push(t, x) for t, x in zip(times, states.T, strict=True)])
            slips = np.array([self.tangents(t, x)[1] for t, x in zip(times, states.T, strict=True)])
            for t, x in zip(times[::4], states.T[::4], strict=True):
                self.look_at_jam(self.both(t, x)[0], self.closed)
            m = mode.size
            for c in np.flatnonzero(mode):
                mu = self.own["mu"][c]
                tests = {"release": (forces[:, c], lambda t, c=c: self.push(t, path(t))[c], 0.0)}
                if mode[c] == STICK:
                    margin = lambda f, c=c, mu=mu: mu * f[..., c] - np.abs(f[..., m + c])
                    tests["break"] = margin(forces), lambda t, margin=margin: margin(self.push(t, path(t))), 0.0
                elif mu > 0:
                    own = lambda t, c=c: self.way[c] * self.tangents(t, path(t))[1][c]
                    tests["stop"] = self.way[c] * slips[:, c], own, -FIRST
                for kind, (values, at, least) in tests.items():
                    below = np.flatnonzero(values < least)
                    if below.size:
                        i = below[0]
                        events.append((start if i == 0 else root(at, times[i - 1], times[i]), c, kind))
        impact = self.first_impact(path, start, end)
        if impact:
            events.append((*impact[:2], "impact"))
        if not events:
            return None
        when, wall, self.kind = min(events)
        return when, wall, self.kind == "impact"

    def first_impact(self, path, start, end):
        """First impact of a wall that is open, as without friction."""
        self.push = lambda t, x: np.ones(self.closed.size)  # no release
        try:
            return super().first_event(path, start, end)
        finally:
            del self.push

    def release(self, wall):
        """Treats an event that is no impact."""
        if self.kind == "release":
            self.releases.append((self.t, wall))
            self.asleep[wall] = True
            self.settle(self.closed & (np.arange(self.mode.size) != wall))
            return
        force = self.push(self.t, self.x)
        if self.kind == "break":
            self.passages.append((self.t, wall, "break"))
            way = -np.sign(force[self.mode.size + wall])
            self.settle(self.closed, {wall: [(SLIP, way), (OPEN, 0)]})
        else:
            was = self.way[wall]
            self.settle(self.closed, {wall: [(STICK, 0), (SLIP, -was), (OPEN, 0)]}, rests=wall)
            self.passages.append((self.t, wall, "stop" if self.mode[wall] == STICK else "reversal"))

    def choices(self, closed, slips, known=None, rests=None):
        """What each contact may do next, and the mask (m,) of those that slip already."""
        found, moving = [], np.zeros(closed.size, bool)
        for c in range(closed.size):
            if not closed[c]:
                found.append([(OPEN, 0)])
            elif known and c in known:
                found.append(known[c])
            elif self.own["mu"][c] == 0:
                found.append([(OPEN, 0), (SLIP, 1.0)])
            elif self.mode[c] == SLIP and c != rests and abs(slips[c]) <= STILL:
                found.append([(OPEN, 0), (SLIP, self.way[c])])  # it has only just begun
            elif abs(slips[c]) > STILL and self.mode[c] != STICK:
                found.append([(OPEN, 0), (SLIP, np.sign(slips[c]))])
                moving[c] = True
            else:
                found.append([(OPEN, 0), (STICK, 0), (SLIP, 1.0), (SLIP, -1.0)])
        return found, moving

    def settle(self, closed, known=None, rests=None):
        """Finds what the closed contacts do from now on, by looking at all that they may do."""
        matrix, offset, *_ = self.both(self.t, self.x)
        self.look_at_jam(matrix, closed)
        _, slips, _ = self.tangents(self.t, self.x)
        choices, moving = self.choices(closed, slips, known, rests)
        mode, way, _ = self.decide(matrix, offset, choices, moving)
        opened = closed & (mode == OPEN)
        self.mode, self.way, self.closed = mode, way, mode > 0
        self.asleep = self.asleep | opened

    def decide(self, matrix, offset, choices, moving):
        """The one combination of modes that obeys the law; contacts ``moving`` (m,) slip already, so that their
        acceleration may have any sign."""
        m, found, dependent = len(choices), [], ""
        scale = 1e-9 * (1 + np.max(np.abs(offset)))
        for every in product(*choices):
            mode, way = np.array([c[0] for c in every]), np.array([float(c[1]) for c in every])
            try:
                x = self.held(matrix, offset, mode, way)
            except Excluded as reason:
                dependent = str(reason)
                continue
            w = matrix @ x + offset
            normal, along, mu = x[:m], x[m:], self.own["mu"]
            considered = np.array([len(c) > 1 or c[0][0] != OPEN for c in choices])
            right = np.all(normal >= -scale) and np.all(w[:m][considered & (mode == OPEN)] >= -scale)
            right &= np.all(np.abs(along) <= mu * normal + scale)
            slides = (mode == SLIP) & ~moving & (mu > 0)
            right &= np.all(w[m:][slides] * way[slides] >= -scale)
            if right and not any(
                np.allclose(w, other[3], rtol=0, atol=1e-6 * (1 + np.max(np.abs(offset)))) for other in found
            ):
                found.append((mode, way, x, w))
        if len(found) != 1:
            raise Excluded("several solutions" if found else dependent or "no solution")
        return found[0][:3]

    def strike(self, wall):
        rate, _, _, among, e = self.begin_impact(wall)
        matrix, _, both, _ = self.both(self.t, self.x)
        self.look_at_jam(matrix, among)
        _, slips, _ = self.tangents(self.t, self.x)
        mu = self.own["mu"]
        any_mode = lambda c: [(OPEN, 0), (STICK, 0), (SLIP, 1.0), (SLIP, -1.0)] if mu[c] else [(OPEN, 0), (SLIP, 1.0)]
        choices = [any_mode(c) if among[c] else [(OPEN, 0)] for c in range(among.size)]
        offset = np.concatenate([np.where(among, (1 + e) * rate, 0), slips])
        _, _, impulse = self.decide(matrix, offset, choices, np.zeros(among.size, bool))
        self.x = self.x + np.concatenate([np.zeros(self.eye.shape[0]), both @ impulse])
        rate = self.parts(self.t, self.x)[1]
        m = among.size
        resting = among & (np.abs(rate) <= 2 * SLOW) & ((impulse[:m] > 0) | self.closed)
        if e > 0:
            resting[wall] = False
        asleep, self.mode = self.asleep, np.zeros(m, int)
        self.settle(resting)
        self.asleep = (asleep & ~among) | (among & ~self.closed & (rate <= SLOW))
