"""Random linkages in the plane: bars pinned to the ground and to each other, in trees and in loops,
of which two ends may strike walls.

One `Linkage` is one problem, and all that is random beside it a number in its args. The right motion is an
event-located integration of the index-1 form, by Jacobians written out here, without jax and jaximpact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import jaximpact as ji

G = 9.81
GROUND = -1
SOFT = 1e-3  # impacts below may be resting contacts, which the reference has not
MANY = 30  # impacts, from which on they may have no end


class Linkage(NamedTuple):
    """Number of bars, pins (bar, other bar or GROUND) at the near ends of each bar,
    and bars whose far end is pinned to the ground."""

    bars: int
    pins: tuple[tuple[int, int], ...]
    closed: tuple[int, ...]

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """All pins."""
        return self.pins + tuple((bar, GROUND) for bar in self.closed)

    @property
    def striking(self) -> tuple[int, ...]:
        """Bars whose far ends may strike."""
        return (self.bars - 1, self.bars // 2)[: min(self.bars, 2)]

    def problem(self) -> ji.Problem:
        """Its problem; the coordinates of a bar are x, y of its middle and its angle."""

        def mass(q, args):
            return jnp.stack([args["mass"], args["mass"], args["inertia"]], axis=1).ravel()

        def force(t, q, v, args):
            return jnp.zeros((self.bars, 3)).at[:, 1].set(-G * args["mass"]).ravel()

        def place(q, bar, along):
            return q[3 * bar : 3 * bar + 2] + along * jnp.stack([jnp.cos(q[3 * bar + 2]), jnp.sin(q[3 * bar + 2])])

        def joints(t, q, args):
            return jnp.concatenate(
                [
                    place(q, bar, args["along"][k])
                    - (args["ground"][k] if other == GROUND else place(q, other, args["other"][k]))
                    for k, (bar, other) in enumerate(self.ends)
                ]
            )

        def gaps(t, q, args):
            return jnp.stack(
                [args["wall"][k] - place(q, bar, args["half"][bar])[0] for k, bar in enumerate(self.striking)]
            )

        return ji.Problem(force, gaps, mass, joints=joints)


def draw(seed: int) -> Linkage:
    """Random linkage of 1 to 6 bars, with up to 2 loops and at least one degree of freedom."""
    rng = np.random.default_rng(seed)
    bars = int(rng.integers(1, 7))
    loops = int(rng.integers(0, min((bars - 1) // 2, 2) + 1))
    pins = [(0, GROUND)]
    for bar in range(1, bars):
        pins.append((bar, int(rng.integers(0 if loops else GROUND, bar)) if rng.random() < 0.4 else bar - 1))
    free = [bar for bar in range(bars) if all(other != bar for _, other in pins)]
    return Linkage(bars, tuple(pins), tuple(free[::-1][:loops]))


def start(linkage: Linkage, seed: int) -> tuple[dict, np.ndarray, np.ndarray]:
    """Random args, position and velocity (d,) on the joints, with open gaps."""
    rng = np.random.default_rng([seed, 1])
    n, count = linkage.bars, len(linkage.ends)
    half, mass, angle = rng.uniform(0.25, 0.75, n), rng.uniform(0.5, 2, n), rng.uniform(-np.pi, np.pi, n)
    heading, middle = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.zeros((n, 2))
    along, other, ground = np.zeros(count), np.zeros(count), np.zeros((count, 2))
    for k, (bar, to) in enumerate(linkage.ends):
        if k >= n:  # the far end of a bar that is placed
            along[k], ground[k] = half[bar], middle[bar] + half[bar] * heading[bar]
            continue
        if to == GROUND:
            pin = ground[k] = rng.uniform(-2, 2, 2)
        else:
            other[k] = half[to] * (1 if rng.random() < 0.7 else rng.uniform(-1, 1))
            pin = middle[to] + other[k] * heading[to]
        along[k], middle[bar] = -half[bar], pin + half[bar] * heading[bar]
    tips = (middle + half[:, None] * heading)[list(linkage.striking), 0]
    args = {"mass": mass, "inertia": mass * half**2 / 3, "half": half, "along": along, "other": other, "ground": ground}
    args["wall"] = tips + rng.uniform(0.05, 0.5, len(tips))
    q, v = np.column_stack([middle, angle]).ravel(), 2 * rng.normal(size=3 * n)
    return args, *Motion(linkage, args).on_joints(q, v)


class End(NamedTuple):
    """Position and velocity (d,) at the end, number of impacts, the least speed of one, 0 if the reference
    does not go so far, and by how much the acceleration varies between impacts, in all."""

    q: np.ndarray
    v: np.ndarray
    impacts: int
    softest: float
    variation: float


class Motion:
    """Right motion of a linkage: M a = g + J' l, J a + (J v)_q v = 0 between impacts,
    and Newton's law in the metric of the joints at them."""

    def __init__(self, linkage: Linkage, args: dict) -> None:
        self.linkage, self.args = linkage, args
        self.mass = np.stack([args["mass"], args["mass"], args["inertia"]], axis=1).ravel()
        self.gravity = np.zeros_like(self.mass)
        self.gravity[1::3] = -G

    def point(self, q, v, bar: int, along: float):
        """Of a point of a bar: place (2,), gradient (2, d), and the part (2,) of its
        acceleration that velocities make."""
        arm = along * np.array([np.cos(q[3 * bar + 2]), np.sin(q[3 * bar + 2])])
        gradient = np.zeros((2, len(q)))
        gradient[:, 3 * bar : 3 * bar + 2] = np.eye(2)
        gradient[:, 3 * bar + 2] = -arm[1], arm[0]
        return q[3 * bar : 3 * bar + 2] + arm, gradient, -arm * v[3 * bar + 2] ** 2

    def joints(self, q, v):
        """c (j,), J (j, d) and (J v)_q v (j,)."""
        rows = []
        for k, (bar, other) in enumerate(self.linkage.ends):
            one = self.point(q, v, bar, self.args["along"][k])
            fixed = self.args["ground"][k], 0.0, 0.0
            two = fixed if other == GROUND else self.point(q, v, other, self.args["other"][k])
            rows.append([x - y for x, y in zip(one, two, strict=True)])
        return [np.concatenate(x) for x in zip(*rows, strict=True)]

    def gaps(self, q):
        """Gaps (m,) and their gradients (m, d)."""
        tips = [self.point(q, q, bar, self.args["half"][bar]) for bar in self.linkage.striking]
        return self.args["wall"] - [place[0] for place, *_ in tips], -np.array([gradient[0] for _, gradient, _ in tips])

    def restore(self, jacobian, rates):
        """The least velocity (d,) in the metric that changes joint velocities by ``rates`` (j,)."""
        return (np.linalg.pinv(jacobian / np.sqrt(self.mass), rcond=1e-7) @ rates) / np.sqrt(self.mass)

    def on_joints(self, q, v):
        for _ in range(4):
            value, jacobian, _ = self.joints(q, v)
            q = q - self.restore(jacobian, value)
        jacobian = self.joints(q, v)[1]
        return q, v - self.restore(jacobian, jacobian @ v)

    def rate(self, t, y):
        q, v = np.split(y, 2)
        _, jacobian, turning = self.joints(q, v)
        return np.concatenate([v, self.gravity - self.restore(jacobian, jacobian @ self.gravity + turning)])

    def struck(self, q, v, e: float, contact: int):
        """Speed of an impact, and position and velocity (d,) behind it."""
        gaps, gradients = self.gaps(q)
        gradient, jacobian = gradients[contact], self.joints(q, v)[1]
        answer = gradient / self.mass
        answer = answer - self.restore(jacobian, jacobian @ answer)
        answer = answer / (gradient @ answer)
        # just open, so that the next event is another one
        return -gradient @ v, q + answer * max(0.0, 1e-13 - gaps[contact]), v - (1 + e) * (gradient @ v) * answer

    def end(self, q, v, t1: float, e: float, delay: Callable[[], float] = float) -> End:
        """From a start on the joints to time t1, with restitution e, and impacts that come late by what
        ``delay()`` says each time."""
        d, t, impacts, softest, variation = len(q), 0.0, 0, np.inf, 0.0
        events = [lambda t, y, k=k: self.gaps(y[:d])[0][k] for k in range(len(self.linkage.striking))]
        for event in events:
            event.terminal, event.direction = True, -1
        while True:
            tolerance = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-12, "max_step": 0.05}
            found = solve_ivp(self.rate, (t, t1), np.concatenate([q, v]), events=events, **tolerance)
            accelerations = np.array([self.rate(*at)[d:] for at in zip(found.t, found.y.T, strict=True)])
            variation += np.max(np.sum(np.abs(np.diff(accelerations, axis=0)), axis=0), initial=0.0)
            t, y = found.t[-1], found.y[:, -1]
            late = min(t + delay(), t1) if found.status == 1 else t
            if late > t:
                t, y = late, solve_ivp(self.rate, (t, late), y, **tolerance).y[:, -1]
            q, v = self.on_joints(*np.split(y, 2))
            if found.status != 1:
                return End(q, v, impacts, softest, variation)
            contact = next(k for k, times in enumerate(found.t_events) if len(times))
            speed, q, v = self.struck(q, v, e, contact)
            impacts, softest = impacts + 1, min(softest, speed)
            if speed < SOFT or impacts > MANY:
                return End(q, v, impacts, 0.0, variation)
