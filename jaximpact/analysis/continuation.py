"""Branches of periodic orbits over one parameter, by pseudo-arclength continuation, and what happens along them.

Unknowns are the state at the section and the parameter p; each point solves P(x, p) = x on the plane a small arc ahead,
perpendicular to the branch, so that folds are passed. Between two points lie

    fold               dp/ds changes sign (a multiplier passes +1),
    branch point       a multiplier passes +1 without that,
    period doubling    a multiplier passes -1,
    Neimark-Sacker     a complex pair passes the unit circle,
    grazing            an impact appears or disappears: a free flight touches a constraint, or an impact velocity vanishes.

The first four are located by root finding along the arc. At grazing the map has no derivative and the branch ends; its place
is extrapolated from points ever closer to it.

References: E. J. Doedel, Congr. Numer. 30 (1981) 265-284 (arclength); A. B. Nordmark, J. Sound Vib. 145 (1991) 279-297
(grazing).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import brentq

from ..contact import Metric, linearise
from ..integrate import solve
from ..problem import Problem
from ..projection.base import Projection
from ..schemes.base import Scheme, Timing
from ..status import FAILURES
from ..validate import check_counts
from .arguments import check_problem, number_of, real_number
from .drawable import Drawable
from .orbits import periodic_orbit
from .runs import runs
from .strobe import admissible, blocks, damped_newton, eigenvalues, jacobians, lost_derivatives, prepare_strobe

CORRECTIONS = 8  # Newton iterations of a point; one that takes more has a step too long
EASY = 3  # iterations up to which the next step is longer
LONGEST, SHORTEST = 8.0, 2.0**-12  # steps, in multiples of the first
ROOM = 0.05  # an impact nearer to the section, as a share of the orbit, moves the section
TURN = 0.9  # smallest cosine between the tangents of neighbouring points
RESTITUTION = "e"


@dataclass(frozen=True)
class BranchEvent:
    """Something that happens along a branch.

    Attributes:
        kind: "fold", "branch point", "period doubling", "Neimark-Sacker" or "grazing".
        parameter: the parameter's value there.
        q, v: state at the section (d,); for grazing that of the last point before.
        multipliers: Floquet multipliers there (2d,); for grazing those of the last point before.
        index: the event lies behind this point of the branch.
        detail: for grazing, what vanishes: "impact speed" or "clearance".
    """

    kind: str
    parameter: float
    q: np.ndarray
    v: np.ndarray
    multipliers: np.ndarray
    index: int
    detail: str = ""


@dataclass(frozen=True)
class Branch(Drawable):
    """Periodic orbits along a branch, in order; n points.

    Attributes:
        name: the parameter.
        parameter: its values (n,).
        q, v: states at the section (n, d).
        period: (n,) [s].
        multipliers: Floquet multipliers (n, 2d), complex, by decreasing modulus.
        stable: whether all lie inside the unit circle (n,).
        impacts: impacts in one period, lasting contact not among them (n,).
        impact_speed: smallest speed at which a gap closes in an impact (n,), inf where there is none.
        clearance: smallest minimum of a gap in free flight (n,), inf where there is none.
        events: `BranchEvent`s in order.
        ended: why it ends: "bounds", "grazing", "points" (their number), or "no convergence".
    """

    name: str
    parameter: np.ndarray
    q: np.ndarray
    v: np.ndarray
    period: np.ndarray
    multipliers: np.ndarray
    stable: np.ndarray
    impacts: np.ndarray
    impact_speed: np.ndarray
    clearance: np.ndarray
    events: tuple[BranchEvent, ...]
    ended: str


class _Contacts(NamedTuple):
    """Impacts in a period, their smallest speed, the smallest minimum of a gap in free flight; how far, as a share
    of the orbit, the nearest impulse is from the section, and the step in the middle of the longest flight."""

    impacts: int
    speed: float
    clearance: float
    room: float
    middle: int


class _Point(NamedTuple):
    """A point of the branch: scaled unknowns z (2d + 1,) and unit tangent; monodromy, contacts and rows (k, 2d) of its orbit."""

    z: np.ndarray
    tangent: np.ndarray
    monodromy: np.ndarray
    evaluations: int
    contacts: _Contacts
    rows: np.ndarray


def continue_orbit(
    problem: Problem,
    q0,
    v0,
    *,
    parameter: str,
    bounds: tuple[float, float],
    period,
    steps: int,
    args: Any = None,
    e=None,
    t0=0.0,
    cycles: int = 1,
    direction: int = 1,
    step: float = 0.02,
    points: int = 400,
    scheme: Scheme | None = None,
    projection: Projection | None = None,
    tol: float | None = None,
) -> Branch:
    """Follow a periodic orbit as one parameter changes, through folds, to where it grazes or the parameter leaves its bounds.

    Args:
        problem, e, scheme, projection, tol: as in `periodic_orbit`.
        q0, v0: guess of the orbit's state at t0 (d,), for the parameter's value in args (or e).
        parameter: a key of args whose value is one number, or "e", the restitution.
        bounds: interval of the parameter in which to stay; with "e" within [0, 1].
        period, t0: numbers or functions of args, as in `periodic_orbit`. Inside, the section moves away from impacts;
            states are reported at t0.
        steps, cycles: as in `periodic_orbit`.
        direction: 1 to start towards larger values, -1 towards smaller ones.
        step: length of the first arc, in units of the width of the bounds and the size of the first state; then it adapts.
        points: points at most.

    Returns:
        `Branch`, with the events in order.

    Raises:
        ValueError, TypeError: as `periodic_orbit`, or if the parameter is none. RuntimeError: no orbit at the start.
    """
    check_problem(problem)
    check_counts(points=points, steps=steps, cycles=cycles)
    if np.ndim(q0) != 1 or np.ndim(v0) != 1:
        raise ValueError(
            f"q0 and v0 must have shape (d,), got {np.shape(q0)} and {np.shape(v0)}: a branch has one start"
        )
    low, high = _check_bounds(bounds)
    value = _value_of(parameter, problem, args, e)
    if not low <= value <= high:
        raise ValueError(f"bounds: ({low:g}, {high:g}) do not contain the parameter's value {value:g}")
    if parameter == RESTITUTION and not (low >= 0 and high <= 1):
        raise ValueError(f"bounds: restitution lies in [0, 1], got ({low:g}, {high:g})")
    if isinstance(direction, bool) or not isinstance(direction, int | np.integer) or direction not in (1, -1):
        raise ValueError(f"direction must be 1 or -1, got {direction!r}")
    if not 0 < real_number("step", step) < 1:
        raise ValueError(f"step must lie between 0 and 1, got {step!r}")
    common: dict[str, Any] = {"scheme": scheme, "projection": projection, "cycles": cycles, "steps": steps}
    common |= {"period": period, "t0": t0, "args": args, "e": e}
    first = periodic_orbit(problem, q0, v0, tol=tol, **common).raise_if_failed()
    family = _Family(problem, first, parameter, (low, high), tol, common)
    return _follow(family, value, direction, step, points)


def _check_bounds(bounds) -> tuple[float, float]:
    try:
        low, high = (float(x) for x in bounds)
    except (TypeError, ValueError) as error:
        raise ValueError(f"bounds must be two numbers, got {bounds!r}") from error
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"bounds must be finite and increasing, got ({low:g}, {high:g})")
    return low, high


def _value_of(parameter: str, problem: Problem, args, e) -> float:
    """The parameter's value at the start."""
    if parameter == RESTITUTION:
        value = problem.restitution if e is None else e
    elif isinstance(args, dict) and isinstance(parameter, str) and parameter in args:
        value = args[parameter]
    else:
        known = sorted(args) if isinstance(args, dict) else []
        raise ValueError(f"parameter={parameter!r}: choose one of {[*known, RESTITUTION]}; args must be a dict of them")
    if isinstance(value, dict | list | tuple):
        raise ValueError(f"parameter={parameter!r} must be one number, got {value!r}")
    return real_number(f"parameter {parameter!r}", value)


class _Family:
    """P(x, p) - x in scaled unknowns z = (x / size, (p - low) / width), and what is asked of its roots."""

    def __init__(self, problem: Problem, first, parameter: str, bounds: tuple[float, float], tol, common: dict):
        self.parameter, self.low, self.width = parameter, bounds[0], bounds[1] - bounds[0]
        self.common = common
        self.batch, _ = prepare_strobe(problem, first.q, first.v, **common)
        self.d = len(first.q)
        self.start = np.concatenate([first.q, first.v])
        self.size = float(np.max(np.abs(self.start))) or 1.0
        self.dtype = self.start.dtype
        self.tol = float(np.finfo(self.dtype).eps) ** (2 / 3) if tol is None else tol
        self.steps = common["steps"] * common["cycles"]
        self.rough = False  # whether a sound motion had no finite derivative
        self.shift = 0  # steps from t0 to the section
        self.look = _observer(self.batch)

    def unknowns(self, x: np.ndarray, p: float) -> np.ndarray:
        return np.append(x / self.size, (p - self.low) / self.width).astype(self.dtype)

    def value(self, z: np.ndarray) -> float:
        """The parameter."""
        return float(self.low + self.width * z[-1])

    def state(self, z: np.ndarray) -> np.ndarray:
        return z[:-1] * self.size

    def args(self, p: float):
        args = self.common["args"]
        return args if self.parameter == RESTITUTION else args | {self.parameter: p}

    def times(self, p: float) -> np.ndarray:
        """Start and end of the orbit at the section."""
        begin = number_of("t0", self.common["t0"], self.args(p), None)
        length = self.common["cycles"] * number_of("period", self.common["period"], self.args(p), None)
        begin = begin + self.shift / self.steps * length
        return np.array([begin, begin + length])

    def data(self, z: np.ndarray):
        """The data of the batch of one at z."""
        p, x = self.value(z), self.state(z).astype(self.dtype)[None]
        begin, end = self.times(p).astype(self.dtype)
        changes: dict[str, Any] = {"q0": x[:, : self.d], "v0": x[:, self.d :], "t0": begin, "t1": end}
        changes["h"] = np.asarray((end - begin) / self.steps)
        number = np.asarray(p, self.dtype)
        if self.parameter == RESTITUTION:
            changes["e"] = number
        else:
            changes["args"] = self.batch.data.args | {self.parameter: number}
        return self.batch.data._replace(**changes)

    def allowed(self, z: np.ndarray) -> np.ndarray:
        # a little beyond the bounds, so that differences across them exist; restitution has none beyond
        inside = np.ones(len(z), bool) if self.parameter != RESTITUTION else (z[:, -1] >= 0) & (z[:, -1] <= 1)
        if not (inside.all() and np.isfinite(z).all()):
            return np.zeros(len(z), bool)
        return admissible(self.batch, self.data(z[0]), self.state(z[0])[None])

    def evaluate(self, z: np.ndarray):
        """Scaled P(x, p) - x (2d,), its Jacobian (2d, 2d + 1), the monodromy matrix, the status."""
        data, x = self.data(z), self.state(z)
        own = "e" if self.parameter == RESTITUTION else "args"
        value, jacobian, status = jacobians(self.batch, data, ("q0", "v0", own, "t0", "t1"))
        sound = not int(status[0]) & int(FAILURES)
        self.rough |= sound and not all(np.isfinite(x).all() for x in jax.tree.leaves(jacobian))
        monodromy = blocks(jacobian)[0]

        def column(pick: Callable):
            return np.concatenate([np.asarray(pick(jacobian[name]))[0] for name in ("q", "v")])

        slope = column(lambda part: part["e"] if own == "e" else part["args"][self.parameter])
        for name, rate in zip(("t0", "t1"), self.rates(self.value(z)), strict=True):
            slope = slope + rate * column(lambda part, name=name: part[name])
        eye = np.eye(2 * self.d, dtype=self.dtype)
        full = np.column_stack([monodromy - eye, slope * (self.width / self.size)])
        return (value[0] - x) / self.size, full, monodromy, status

    def rate(self, time, p: float) -> float:
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

    def correct(self, guess: np.ndarray, normal: np.ndarray, along: np.ndarray | None) -> _Point | None:
        """The orbit on the plane through ``guess`` across ``normal``; its tangent points along ``along``."""

        def evaluate(z):
            value, jacobian, _, status = self.evaluate(z[0])
            plane = normal @ (z[0] - guess)
            return np.append(value, plane)[None], np.vstack([jacobian, normal])[None], status

        z, full, status, _, used, done = damped_newton(
            evaluate, self.allowed, guess[None].copy(), self.tol, CORRECTIONS
        )
        if not done[0] or int(status[0]) & int(FAILURES):
            return None
        return self.point(z[0], full[0, :-1], int(used[0]), along)

    def point(self, z: np.ndarray, jacobian: np.ndarray, used: int, along: np.ndarray | None) -> _Point:
        tangent = np.linalg.svd(jacobian)[2][-1]
        if along is not None and tangent @ along < 0:
            tangent = -tangent
        monodromy = jacobian[:, :-1] + np.eye(2 * self.d, dtype=self.dtype)
        return _Point(z, tangent, monodromy, used, *self.contacts(z))

    def home(self, point: _Point) -> np.ndarray:
        """State (2d,) at t0."""
        return point.rows[-self.shift % self.steps]

    def moved(self, point: _Point) -> _Point | None:
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

    def contacts(self, z: np.ndarray) -> tuple[_Contacts, np.ndarray]:
        """Contacts and rows of the orbit at z."""
        data, batch = self.data(z), self.batch
        motion = solve(
            data.problem, data.q0[0], data.v0[0], t0=data.t0, t1=data.t1, steps=self.steps, args=data.args,
            e=np.asarray(data.e), scheme=batch.scheme, projection=batch.projection, sensitivity="none",
        )  # fmt: skip
        gap, diagonal = self.look(motion.t, motion.q, data.args)
        rows = np.concatenate([np.asarray(motion.q), np.asarray(motion.v)], axis=1)[:-1]
        impulse, timing = np.asarray(motion.impulse), Timing.of(batch.scheme)
        found = _contacts(np.asarray(gap)[:-1], np.asarray(diagonal)[:-1], impulse, np.asarray(data.e), timing)
        return found, rows


def _observer(batch) -> Callable:
    """Gaps (k, m) and diagonals of the Delassus matrix (k, m) at the rows of a motion."""
    problem = batch.data.problem

    @jax.jit
    def look(t, q, args):
        def one(t, q):
            contacts = linearise(problem, Metric.at(problem, q, args), t, q, args)
            return contacts.gap, contacts.diagonal()

        return jax.vmap(one)(t, q)

    return look


def _contacts(gap: np.ndarray, diagonal: np.ndarray, impulse: np.ndarray, e: np.ndarray, timing: Timing) -> _Contacts:
    """From gaps (k, m) at the nodes of a closed orbit and accumulated impulses (k + 1, m) at its rows.

    A minimum in free flight is that of the parabola through three nodes, no step between them having an impulse.
    """
    if gap.shape[1] == 0:
        return _Contacts(0, np.inf, np.inf, 1.0, 0)
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
    return _Contacts(int(np.sum(~found.lasting)), speed, float(np.min(np.where(low, least, np.inf))), room, middle)


def _longest_flight(pushed: np.ndarray) -> tuple[float, int]:
    """Distance of the nearest pushed step to the section, as a share of all, and the middle of the longest run without one."""
    n, at = len(pushed), np.flatnonzero(pushed)
    if at.size == 0:
        return 1.0, 0
    flights = np.diff(np.append(at, at[0] + n))
    longest = int(np.argmax(flights))
    return float(np.min(np.minimum(at, n - 1 - at)) / n), int(at[longest] + (flights[longest] + 1) // 2) % n


# functions of a point whose sign changes tell of an event; the first that speaks for a passage of +1 names it
def _folds(point: _Point) -> float:
    return float(point.tangent[-1])


def _passes_one(point: _Point) -> float:
    return float(np.linalg.det(point.monodromy - np.eye(len(point.monodromy))))


def _doubles(point: _Point) -> float:
    return float(np.linalg.det(point.monodromy + np.eye(len(point.monodromy))))


def _rotates(point: _Point) -> float:
    """Product of mu_i mu_j - 1 over pairs i < j."""
    multipliers = eigenvalues(point.monodromy[None])[0]
    i, j = np.triu_indices(len(multipliers), 1)
    return float(np.prod(multipliers[i] * multipliers[j] - 1).real)


TESTS = {"fold": _folds, "branch point": _passes_one, "period doubling": _doubles, "Neimark-Sacker": _rotates}


def _follow(family: _Family, value: float, direction: int, step: float, most: int) -> Branch:
    """Points from the first orbit on, and the events between them."""
    guess = family.unknowns(family.start, value)
    up = np.zeros(len(guess), family.dtype)
    up[-1] = 1
    start = family.correct(guess, up, direction * up)
    if start is None:
        raise RuntimeError("the orbit at the start was lost: take more steps or a larger tol")
    branch, events, ended = [start], [], "points"
    states = [family.home(start)]
    length, wall = step, np.inf  # wall: how far ahead something is known to change
    while len(branch) < most:
        here = branch[-1]
        if here.contacts.room < ROOM:
            here = family.moved(here) or here
            branch[-1] = here
        length = min(length, 0.5 * wall)
        if length < SHORTEST * step:
            grazing = _grazing(family, branch)
            ended = "no convergence" if grazing is None else "grazing"
            events += [] if grazing is None else [grazing]
            break
        guess = here.z + length * here.tangent
        outside = not 0 <= guess[-1] <= 1
        if outside:
            # the last point lies on the bound
            share = (np.clip(guess[-1], 0, 1) - here.z[-1]) / (guess[-1] - here.z[-1])
            guess = np.append((here.z + share * (guess - here.z))[:-1], np.clip(guess[-1], 0, 1))
        new = family.correct(guess, up if outside else here.tangent, here.tangent)
        if new is None or new.tangent @ here.tangent < TURN:
            length *= 0.5
            continue
        if new.contacts.impacts != here.contacts.impacts:
            wall = length
            continue
        events += _between(family, here, new, len(branch) - 1)
        branch.append(new)
        states.append(family.home(new))
        if outside:
            ended = "bounds"
            break
        wall -= length
        length = min(length * (1.5 if new.evaluations <= EASY else 1.0), LONGEST * step)
    if ended == "no convergence":
        none = np.zeros(1, int)
        lost_derivatives("the Jacobian behind the branch's last point", none, np.where([family.rough], np.nan, 0.0))
    return _branch(family, branch, states, events, ended)


def _between(family: _Family, here: _Point, there: _Point, index: int) -> list[BranchEvent]:
    """Events between two neighbouring points, in order."""
    found = []
    for kind, test in TESTS.items():
        if not test(here) * test(there) < 0 or (kind == "branch point" and _folds(here) * _folds(there) < 0):
            continue
        root, point = _locate(family, test, here, there)
        if kind != "Neimark-Sacker" or _complex_pair(point):
            found.append((root, _event(family, kind, point, index)))
    return [event for _, event in sorted(found, key=lambda pair: pair[0])]


def _locate(family: _Family, test: Callable, here: _Point, there: _Point) -> tuple[float, _Point]:
    """Where along the arc between two points a function of them vanishes."""
    length = float(here.tangent @ (there.z - here.z))
    known = {0.0: here, length: there}

    def along(s):
        if s not in known:
            point = family.correct(here.z + s * here.tangent, here.tangent, here.tangent)
            if point is None:
                raise _Lost
            known[s] = point
        return test(known[s])

    try:
        root = brentq(along, 0.0, length, xtol=1e-9 * length, rtol=1e-12)
        along(root)
    except _Lost:
        root = min(known, key=lambda s: abs(test(known[s])))
    return root, known[root]


class _Lost(Exception):
    """No orbit at a point between two where there is one."""


def _complex_pair(point: _Point) -> bool:
    """Whether the multipliers nearest the unit circle are complex: real ones with product 1 are no bifurcation."""
    multipliers = eigenvalues(point.monodromy[None])[0]
    nearest = multipliers[np.argmin(np.abs(np.abs(multipliers) - 1))]
    return bool(abs(nearest.imag) > 1e-6)


def _event(family: _Family, kind: str, point: _Point, index: int, parameter: float | None = None, detail: str = ""):
    x = family.home(point)
    multipliers = eigenvalues(point.monodromy[None])[0]
    value = family.value(point.z) if parameter is None else parameter
    return BranchEvent(kind, value, x[: family.d], x[family.d :], multipliers, index, detail)


def _grazing(family: _Family, branch: list[_Point]) -> BranchEvent | None:
    """Grazing just ahead of a branch that cannot go on: an impact speed or a clearance that runs to zero, or None."""
    if len(branch) < 2:
        return None
    before, last = branch[-2:]
    vanishing = {}
    for name, early, late in (
        ("impact speed", before.contacts.speed, last.contacts.speed),
        ("clearance", before.contacts.clearance, last.contacts.clearance),
    ):
        if np.isfinite([early, late]).all() and early > late:
            vanishing[name] = late / (early - late)
    if not vanishing:
        return None
    detail, ahead = min(vanishing.items(), key=lambda pair: pair[1])
    # points approach a grazing geometrically: one that is not within a few of the last arcs is none
    if ahead > 4:
        return None
    parameter = family.value(last.z + ahead * (last.z - before.z))
    return _event(family, "grazing", last, len(branch) - 1, parameter, detail)


def _branch(
    family: _Family, points: list[_Point], states: list[np.ndarray], events: list[BranchEvent], ended: str
) -> Branch:
    x = np.array(states)
    multipliers = eigenvalues(np.array([point.monodromy for point in points]))
    parameter = np.array([family.value(point.z) for point in points])
    return Branch(
        family.parameter,
        parameter,
        x[:, : family.d],
        x[:, family.d :],
        np.array([np.ptp(family.times(p)) for p in parameter]),
        multipliers,
        (np.abs(multipliers) < 1).all(axis=1),
        np.array([point.contacts.impacts for point in points]),
        np.array([point.contacts.speed for point in points]),
        np.array([point.contacts.clearance for point in points]),
        tuple(events),
        ended,
    )
