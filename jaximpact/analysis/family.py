"""The family of periodic orbits of one system over one parameter: what its equations are, and what its orbits touch."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from ..contact import Metric, linearise
from ..integrate import solve
from ..motion import Lanes
from ..problem import Problem
from ..schemes.base import Timing
from ..status import FAILURES
from .arguments import number_of
from .orbits import PeriodicOrbit
from .runs import runs
from .strobe import admissible, blocks, damped_newton, jacobians, prepare_strobe

CORRECTIONS = 8  # Newton iterations of a point; one that takes more has a step too long
RESTITUTION = "e"


class OrbitContacts(NamedTuple):
    """Impacts in a period, their smallest speed, the smallest minimum of a gap in free flight; how far, as a share
    of the orbit, the nearest impulse is from the section, and the step in the middle of the longest flight."""

    impacts: int
    speed: float
    clearance: float
    room: float
    middle: int


class Point(NamedTuple):
    """A point of the branch: scaled unknowns z (2d + 1,) and unit tangent; monodromy, contacts and rows (k, 2d) of its orbit."""

    z: np.ndarray
    tangent: np.ndarray
    monodromy: np.ndarray
    evaluations: int
    contacts: OrbitContacts
    rows: np.ndarray


class Family:
    """P(x, p) - x in scaled unknowns z = (x / size, (p - low) / width), and what is asked of its roots."""

    def __init__(
        self,
        problem: Problem,
        first: PeriodicOrbit,
        parameter: str,
        bounds: tuple[float, float],
        tol: float | None,
        common: dict[str, Any],
    ) -> None:
        self.parameter, self.low, self.width = parameter, bounds[0], bounds[1] - bounds[0]
        self.common = common
        self.program, self.lanes, _ = prepare_strobe(problem, first.q, first.v, **common)
        self.d = len(first.q)
        self.start = np.concatenate([first.q, first.v])
        self.size = float(np.max(np.abs(self.start))) or 1.0
        self.dtype = self.start.dtype
        self.tol = float(np.finfo(self.dtype).eps) ** (2 / 3) if tol is None else tol
        self.steps = common["steps"] * common["cycles"]
        self.rough = False  # whether a sound motion had no finite derivative
        self.shift = 0  # steps from t0 to the section
        self.look = _observer(self.program.problem)

    def unknowns(self, x: np.ndarray, p: float) -> np.ndarray:
        return np.append(x / self.size, (p - self.low) / self.width).astype(self.dtype)

    def value(self, z: np.ndarray) -> float:
        """The parameter."""
        return float(self.low + self.width * z[-1])

    def state(self, z: np.ndarray) -> np.ndarray:
        return z[:-1] * self.size

    def args(self, p: float) -> Any:
        args = self.common["args"]
        return args if self.parameter == RESTITUTION else args | {self.parameter: p}

    def times(self, p: float) -> np.ndarray:
        """Start and end of the orbit at the section."""
        begin = number_of("t0", self.common["t0"], self.args(p), None)
        length = self.common["cycles"] * number_of("period", self.common["period"], self.args(p), None)
        begin = begin + self.shift / self.steps * length
        return np.array([begin, begin + length])

    def at(self, z: np.ndarray) -> Lanes:
        """The one motion from z."""
        p, x = self.value(z), self.state(z).astype(self.dtype)[None]
        begin, end = self.times(p).astype(self.dtype)
        changes: dict[str, Any] = {"q0": x[:, : self.d], "v0": x[:, self.d :], "t0": begin, "t1": end}
        changes["h"] = np.asarray((end - begin) / self.steps)
        number = np.asarray(p, self.dtype)
        if self.parameter == RESTITUTION:
            changes["e"] = number
        else:
            changes["args"] = self.lanes.motion.args | {self.parameter: number}
        return self.lanes.replace(**changes)

    def allowed(self, z: np.ndarray) -> np.ndarray:
        # a little beyond the bounds, so that differences across them exist; restitution has none beyond
        inside = np.ones(len(z), bool) if self.parameter != RESTITUTION else (z[:, -1] >= 0) & (z[:, -1] <= 1)
        if not (inside.all() and np.isfinite(z).all()):
            return np.zeros(len(z), bool)
        return admissible(self.program.problem, self.at(z[0]), self.state(z[0])[None])

    def evaluate(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Scaled P(x, p) - x (2d,), its Jacobian (2d, 2d + 1), the monodromy matrix, the status."""
        lanes, x = self.at(z), self.state(z)
        own = "e" if self.parameter == RESTITUTION else "args"
        value, jacobian, status = jacobians(self.program, lanes, ("q0", "v0", own, "t0", "t1"))
        sound = not int(status[0]) & int(FAILURES)
        self.rough |= sound and not all(np.isfinite(x).all() for x in jax.tree.leaves(jacobian))
        monodromy = blocks(jacobian)[0]

        def column(pick: Callable[[Any], Any]) -> np.ndarray:
            return np.concatenate([np.asarray(pick(jacobian[name]))[0] for name in ("q", "v")])

        slope = column(lambda part: part["e"] if own == "e" else part["args"][self.parameter])
        for name, rate in zip(("t0", "t1"), self.rates(self.value(z)), strict=True):
            slope = slope + rate * column(itemgetter(name))
        eye = np.eye(2 * self.d, dtype=self.dtype)
        full = np.column_stack([monodromy - eye, slope * (self.width / self.size)])
        return (value[0] - x) / self.size, full, monodromy, status

    def rate(self, time: Any, p: float) -> float:
        """Derivative of a time that may be a function of args."""
        return float(jax.grad(lambda p: time(self.args(p)))(p)) if callable(time) else 0.0

    def rates(self, p: float) -> np.ndarray:
        """Derivatives of start and end of the orbit with respect to the parameter."""
        given = self.common["t0"], self.common["period"]
        if self.parameter == RESTITUTION or not any(map(callable, given)):
            return np.zeros(2)
        begin, length = (self.rate(time, p) for time in given)
        begin, length = begin + self.shift / self.steps * self.common["cycles"] * length, self.common["cycles"] * length
        return np.array([begin, begin + length])

    def correct(self, guess: np.ndarray, normal: np.ndarray, along: np.ndarray | None) -> Point | None:
        """The orbit on the plane through ``guess`` across ``normal``; its tangent points along ``along``."""

        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            value, jacobian, _, status = self.evaluate(z[0])
            plane = normal @ (z[0] - guess)
            return np.append(value, plane)[None], np.vstack([jacobian, normal])[None], status

        z, full, status, _, used, done = damped_newton(
            evaluate, self.allowed, guess[None].copy(), self.tol, CORRECTIONS
        )
        if not done[0] or int(status[0]) & int(FAILURES):
            return None
        return self.point(z[0], full[0, :-1], int(used[0]), along)

    def point(self, z: np.ndarray, jacobian: np.ndarray, used: int, along: np.ndarray | None) -> Point:
        tangent = np.linalg.svd(jacobian)[2][-1]
        if along is not None and tangent @ along < 0:
            tangent = -tangent
        monodromy = jacobian[:, :-1] + np.eye(2 * self.d, dtype=self.dtype)
        return Point(z, tangent, monodromy, used, *self.contacts(z))

    def home(self, point: Point) -> np.ndarray:
        """State (2d,) at t0."""
        return point.rows[-self.shift % self.steps]

    def moved(self, point: Point) -> Point | None:
        """The point with the section in the middle of the longest flight; None, and the section as it was, if that fails."""
        before = self.shift
        z = np.append(point.rows[point.contacts.middle] / self.size, point.z[-1])
        self.shift = (before + point.contacts.middle) % self.steps
        normal = np.linalg.svd(self.evaluate(z)[1])[2][-1]
        found = self.correct(z, normal, None)
        if found is None:
            self.shift = before
            return None
        return found._replace(tangent=found.tangent * np.sign(found.tangent[-1] * point.tangent[-1]))

    def contacts(self, z: np.ndarray) -> tuple[OrbitContacts, np.ndarray]:
        """OrbitContacts and rows of the orbit at z."""
        program, data = self.program, self.at(z).take(0)
        motion = solve(
            program.problem, data.q0, data.v0, t0=data.t0, t1=data.t1, steps=self.steps, args=data.args,
            e=np.asarray(data.e), scheme=program.scheme, projection=program.solver, sensitivity="none",
        )  # fmt: skip
        gap, diagonal = self.look(motion.t, motion.q, data.args)
        rows = np.concatenate([np.asarray(motion.q), np.asarray(motion.v)], axis=1)[:-1]
        impulse, timing = np.asarray(motion.impulse), Timing.of(program.scheme)
        found = _contacts(np.asarray(gap)[:-1], np.asarray(diagonal)[:-1], impulse, np.asarray(data.e), timing)
        return found, rows


def _observer(problem: Problem) -> Callable[..., Any]:
    """Gaps (k, m) and diagonals of the Delassus matrix (k, m) at the rows of a motion."""

    @jax.jit
    def look(t: Array, q: Array, args: Any) -> tuple[Array, Array]:
        def one(t: Array, q: Array) -> tuple[Array, Array]:
            contacts = linearise(problem, Metric.at(problem, q, args), t, q, args)
            return contacts.gap, contacts.diagonal()

        return jax.vmap(one)(t, q)

    return look


def _contacts(
    gap: np.ndarray, diagonal: np.ndarray, impulse: np.ndarray, e: np.ndarray, timing: Timing
) -> OrbitContacts:
    """From gaps (k, m) at the nodes of a closed orbit and accumulated impulses (k + 1, m) at its rows.

    A minimum in free flight is that of the parabola through three nodes, no step between them having an impulse.
    """
    if gap.shape[1] == 0:
        return OrbitContacts(0, np.inf, np.inf, 1.0, 0)
    found, growth = runs(impulse[None], timing, periodic=True), np.diff(impulse, axis=0)
    pushed = found.active[0]
    speed = np.inf
    for contact, first, length in zip(
        *(x[~found.lasting] for x in (found.contact, found.first, found.length)), strict=True
    ):
        strength = np.sum(growth[(first + np.arange(length)) % len(growth), contact])
        speed = min(speed, float((strength * diagonal[first] / (1 + e))[contact]))
    left, right = np.roll(gap, 1, axis=0), np.roll(gap, -1, axis=0)
    bend, tilt = left - 2 * gap + right, right - left
    low = (gap <= left) & (gap < right) & ~pushed & ~np.roll(pushed, 1, axis=0) & (bend > 0)
    least = gap - tilt**2 / (8 * np.where(bend > 0, bend, 1))
    room, middle = _longest_flight(np.any(pushed, axis=1))
    return OrbitContacts(int(np.sum(~found.lasting)), speed, float(np.min(np.where(low, least, np.inf))), room, middle)


def _longest_flight(pushed: np.ndarray) -> tuple[float, int]:
    """Distance of the nearest pushed step to the section, as a share of all, and the middle of the longest run without one."""
    n, at = len(pushed), np.flatnonzero(pushed)
    if at.size == 0:
        return 1.0, 0
    flights = np.diff(np.append(at, at[0] + n))
    longest = int(np.argmax(flights))
    return float(np.min(np.minimum(at, n - 1 - at)) / n), int(at[longest] + (flights[longest] + 1) // 2) % n
