"""Family of periodic orbits of one system over one parameter: its equations, and the contacts of its orbits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.shapes import PyTree
from ..mechanics.impact_law import require_newton
from ..mechanics.linearisation import Metric, linearise
from ..mechanics.motion import OF_CONTACTS, OF_FRICTION
from ..mechanics.problem import Problem
from ..mechanics.scheme import Timing
from ..mechanics.status import FAILURES
from ..results.impulse_intervals import Runs, runs
from ..simulation.call import Arguments, Call
from ..simulation.lanes import Lanes
from ..simulation.solve import solve
from .checks import number_of
from .orbit_slips import OrbitSlips, orbit_slips
from .orbits import PeriodicOrbit
from .shooting_equations import ShootingEquations, Surface, check_forcing
from .stroboscopic_map import damped_newton, directions, prepare_strobe

CORRECTIONS = 8  # Newton iterations of a point at most; if it takes more, the arc is too long
BOUNDS = {"e": (0.0, 1.0)} | dict.fromkeys(OF_FRICTION, (0.0, np.inf))  # beyond which there is no motion
ITERATIONS = 30  # for the speed of an impact, where restitution depends on it
ROWS = 256  # of an orbit to find its contacts, for a scheme that chooses its own steps


class OrbitContacts(NamedTuple):
    """Properties of the contacts of one orbit, found by `OrbitFamily.contacts`.

    Attributes:
        impacts, speed: number of impacts in a period that do not accumulate, and the smallest closing speed among them,
            inf without any.
        accumulations: number of accumulations in a period.
        lasting: share of the period in which a contact lasts.
        clearance: smallest minimum of a gap in free flight, inf without any.
        room: distance from the section to the nearest impulse, as a share of the period.
        middle: row in the middle of the longest flight.
    """

    impacts: int
    speed: float
    accumulations: int
    lasting: float
    clearance: float
    room: float
    middle: int

    @property
    def pattern(self) -> tuple[int, int]:
        """Numbers of impacts and accumulations, which change along a branch only at a
        grazing or the end of sticking."""
        return self.impacts, self.accumulations


class BranchPoint(NamedTuple):
    """A point of a branch, and its orbit.

    Attributes:
        z, tangent: scaled unknowns and unit tangent of the branch (n + 1,).
        jacobian: Jacobian (n, n + 1) of the equations.
        monodromy: monodromy matrix of the orbit (2d, 2d).
        evaluations: number of evaluations of the equations that Newton's method took.
        contacts: properties of the orbit's contacts.
        rows: states (k, 2d) at the rows of the orbit.
        slips: instants of the orbit at which slip vanishes.
    """

    z: np.ndarray
    tangent: np.ndarray
    jacobian: np.ndarray
    monodromy: np.ndarray
    evaluations: int
    contacts: OrbitContacts
    rows: np.ndarray
    slips: OrbitSlips = OrbitSlips()


class OrbitFamily:
    """`ShootingEquations` in scaled unknowns z = (y / scale, (p - low) / width),
    and properties of the orbits that solve them.

    y: unknowns of `ShootingEquations`; p: the parameter, whose path (`parameter_path`) is
    ("args", key) or one of OF_CONTACTS.
    """

    def __init__(
        self,
        call: Call,
        first: PeriodicOrbit,
        path: tuple[str, ...],
        bounds: tuple[float, float],
        tol: float | None,
        surface: Surface | None,
        section: tuple[Any, int],
    ) -> None:
        """Takes the ``call`` of `prepare_strobe`, and its period and cycles as ``section``."""
        self.path, self.low, self.width = path, bounds[0], bounds[1] - bounds[0]
        self.root, self.key = path[0], path[-1]
        problem, self.call, (self.period, self.cycles) = call.problem, call.replace(q0=first.q, v0=first.v), section
        self.program, self.lanes, _ = prepare_strobe(self.call, *section)
        self.equations = ShootingEquations(self.program, surface, directions(problem, self.lanes))
        self.d = len(first.q)
        state = np.concatenate([first.q, first.v])
        self.start = state if surface is None else np.append(state, first.period)
        self.dtype = state.dtype
        self.size = float(np.max(np.abs(state))) or 1.0
        self.scale = np.full(len(self.start), self.size, self.dtype)
        self.scale[2 * self.d :] = first.period
        self.tol = float(np.finfo(self.dtype).eps) ** (2 / 3) if tol is None else tol
        self.steps = call.steps * self.cycles
        # with a scheme that chooses its own steps, rows are not steps of the shooting
        self.rows = self.steps if self.program.scheme.traits.order else max(ROWS, self.steps)
        self.rough = False  # whether a sound motion had no finite derivative
        self.shift = 0  # rows from t0 to the section
        self.look = _observer(self.program.problem)
        self.slopes = [self.slope_of(time) for time in (call.t0, self.period)]
        if surface is None and not callable(self.period):
            for bound in bounds:  # a period that is a number stays what it is where the forcing goes by the parameter
                check_forcing(problem, self.at(self.unknowns(self.start, bound)))

    def unknowns(self, y: np.ndarray, p: float) -> np.ndarray:
        """Scaled unknowns z from y and the parameter p."""
        return np.append(y / self.scale, (p - self.low) / self.width).astype(self.dtype)

    def value(self, z: np.ndarray) -> float:
        """Value of the parameter at z."""
        return float(self.low + self.width * z[-1])

    def args(self, p: float) -> PyTree:
        args = self.call.args
        return args if self.root in OF_CONTACTS else args | {self.key: p}

    def times(self, z: np.ndarray) -> np.ndarray:
        """Times (2,) at which the orbit starts and ends at the section."""
        args = self.args(self.value(z))
        begin = number_of("t0", self.call.t0, args, None)
        if self.equations.surface is not None:
            return np.array([begin, begin + z[-2] * self.scale[-1]])
        length = self.cycles * number_of("period", self.period, args, None)
        begin = begin + self.shift / self.rows * length
        return np.array([begin, begin + length])

    def at(self, z: np.ndarray) -> Lanes:
        """The motion that starts from z, as a batch of one lane."""
        y = (z[:-1] * self.scale).astype(self.dtype)
        begin, end = self.times(z).astype(self.dtype)
        changes: Arguments = {"q0": y[None, : self.d], "v0": y[None, self.d : 2 * self.d], "t0": begin, "t1": end}
        changes["h"] = np.asarray((end - begin) / self.steps)
        number = np.asarray(self.value(z), self.dtype)
        if self.root in OF_CONTACTS:
            changes[self.root] = number
        else:
            changes["args"] = self.lanes.motion.args | {self.key: number}
        return self.lanes.replace(**changes)

    def can_start(self, z: np.ndarray) -> np.ndarray:
        # parameters a little beyond the user's bounds are allowed, so that differences across these exist; not so
        # restitution and friction
        low, high = BOUNDS.get(self.root, (-np.inf, np.inf))
        inside = (z[:, -1] >= low) & (z[:, -1] <= high)
        if not (inside.all() and np.isfinite(z).all() and np.diff(self.times(z[0]))[0] > 0):
            return np.zeros(len(z), bool)
        lanes = self.at(z[0])
        return self.equations.can_start(lanes, self.equations.unknowns(lanes))

    def evaluate(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scaled residuals (n,) of the equations, their Jacobian (n, n + 1), and the status."""
        lanes = self.at(z)
        found = self.equations.evaluate(lanes, self.equations.unknowns(lanes), (self.root, "t0", "t1"))
        value, matrix, status, jacobian = found
        sound = not int(status[0]) & int(FAILURES)
        self.rough |= sound and not all(np.isfinite(x).all() for x in jax.tree.leaves(jacobian))

        def column(pick: Callable[[Any], ArrayLike]) -> np.ndarray:
            return np.concatenate([np.asarray(pick(jacobian[name]))[0] for name in ("q", "v")])

        slope = column(lambda part: part["args"][self.key] if self.root == "args" else part[self.root])
        if self.equations.surface is not None:
            slope = np.append(slope, 0.0 if self.root != "args" else self.equations.slope(lanes, self.key))
        else:
            for name, rate in zip(("t0", "t1"), self.rates(self.value(z)), strict=True):
                slope = slope + rate * column(itemgetter(name))
        full = np.column_stack([matrix[0] * self.scale, slope * self.width])
        return value[0] / self.size, full / self.size, status

    def return_map(self, jacobian: np.ndarray) -> np.ndarray:
        """The monodromy matrix (2d, 2d), from the scaled Jacobian (n, n + 1) of the equations."""
        return self.equations.return_map((jacobian[:, :-1] * self.size / self.scale)[None])[0]

    def slope_of(self, time: Any) -> Callable[[float], float]:
        """Returns the function p -> derivative of ``time``, a number or a function of args, with respect to the
        parameter p; compiled."""
        if not callable(time):
            return lambda p: 0.0
        slope = jax.grad(lambda p: time(self.args(p)))
        compiled = jax.jit(slope)

        def at(p: float) -> float:
            try:
                return float(compiled(p))
            except jax.errors.ConcretizationTypeError:  # it chooses by numbers
                return float(slope(p))

        return at

    def rates(self, p: float) -> np.ndarray:
        """Derivatives (2,) of the times at which the orbit starts and ends, with respect to the parameter,
        at its value p."""
        given = self.call.t0, self.period
        if self.root in OF_CONTACTS or not any(map(callable, given)):
            return np.zeros(2)
        begin, length = (slope(p) for slope in self.slopes)
        begin, length = (
            begin + self.shift / self.rows * self.cycles * length,
            self.cycles * length,
        )
        return np.array([begin, begin + length])

    def correct(self, guess: np.ndarray, normal: np.ndarray, along: np.ndarray | None) -> BranchPoint | None:
        """Finds an orbit by Newton's method on the plane through ``guess`` with this ``normal``, all (n + 1,);
        None if that fails.

        The tangent of the point is oriented so that its product with ``along`` is not negative.
        """

        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            value, jacobian, status = self.evaluate(z[0])
            plane = normal @ (z[0] - guess)
            return np.append(value, plane)[None], np.vstack([jacobian, normal])[None], status

        z, full, status, _, used, done = damped_newton(
            evaluate, self.can_start, guess[None].copy(), self.tol, CORRECTIONS
        )
        if not done[0] or int(status[0]) & int(FAILURES):
            return None
        return self.point(z[0], full[0, :-1], int(used[0]), along)

    def point(self, z: np.ndarray, jacobian: np.ndarray, used: int, along: np.ndarray | None) -> BranchPoint:
        tangent = np.linalg.svd(jacobian)[2][-1]
        if along is not None and tangent @ along < 0:
            tangent = -tangent
        return BranchPoint(z, tangent, jacobian, self.return_map(jacobian), used, *self.contacts(z))

    def home(self, point: BranchPoint) -> np.ndarray:
        """State (2d,) of the orbit at t0."""
        return point.rows[-self.shift % self.rows]

    def move_section(self, point: BranchPoint) -> BranchPoint | None:
        """Moves the section to the middle of the longest flight and corrects the point; None, with the section
        unchanged, if that fails."""
        before = self.shift
        z = np.append(point.rows[point.contacts.middle] / self.size, point.z[-1])
        self.shift = (before + point.contacts.middle) % self.rows
        normal = np.linalg.svd(self.evaluate(z)[1])[2][-1]
        found = self.correct(z, normal, None)
        if found is None:
            self.shift = before
            return None
        return found._replace(tangent=found.tangent * np.sign(found.tangent[-1] * point.tangent[-1]))

    def contacts(self, z: np.ndarray) -> tuple[OrbitContacts, np.ndarray, OrbitSlips]:
        """Computes the orbit with unknowns z; returns its `OrbitContacts`, its states (k, 2d) at the rows,
        and its `OrbitSlips`."""
        program, lanes = self.program, self.at(z)
        data = self.equations.at(lanes, self.equations.unknowns(lanes)).take(0)  # on the joints
        numbers = {name: getattr(data, name) for name in ("q0", "v0", "t0", "t1", "args", *OF_CONTACTS)}
        if callable(program.problem.restitution):
            numbers["e"] = None
        call = Call(
            program.problem, **numbers, steps=self.rows, scheme=program.scheme, projection=program.solver, save="all"
        )
        motion = solve(call, "none")
        gap, diagonal = self.look(motion.t, motion.q, data.args)
        rows = np.concatenate([np.asarray(motion.q), np.asarray(motion.v)], axis=1)[:-1]
        impulse, timing = np.asarray(motion.impulse), Timing.of(program.scheme)
        approach = partial(_approach_speeds, program.problem, np.asarray(data.e), data.args)
        found = _contacts(
            np.asarray(gap)[:-1], np.asarray(diagonal)[:-1], impulse, np.asarray(data.e), approach, timing
        )
        return found, rows, orbit_slips(program.problem, motion, data) if program.problem.rubs else OrbitSlips()


def _observer(problem: Problem) -> Callable:
    """Compiled function of t (k,), q (k, d) and args: gaps (k, m) and diagonals of the Delassus matrix (k,
    m) at the rows of a motion."""

    @jax.jit
    def look(t: Array, q: Array, args: object) -> tuple[Array, Array]:
        def one(t: Array, q: Array) -> tuple[Array, Array]:
            contacts = linearise(problem, Metric.at(problem, q, args, t), t, q, args)
            return contacts.gap, contacts.diagonal()

        return jax.vmap(one)(t, q)

    return look


def _approach_speeds(problem: Problem, e: np.ndarray, args: object, change: Any) -> Any:
    """Closing speeds w (m,) before impacts, from the ``change`` (1 + e) w (m,) of gap velocities,
    also if e depends on w."""
    require_newton(problem.impact_law, "orbits: a contact's closing speed")
    speed = change
    # where e depends on the speed, by fixed-point iteration, whose error shrinks by w e'/(1 + e) each time
    for _ in range(ITERATIONS if callable(problem.restitution) else 1):
        speed = change / (1 + np.asarray(problem.restitution_at(e, -speed, args)))
    return speed


def _contacts(
    gap: np.ndarray, diagonal: np.ndarray, impulse: np.ndarray, e: np.ndarray, approach: Callable, timing: Timing
) -> OrbitContacts:
    """`OrbitContacts` from gaps (k, m) at the nodes of a closed orbit and accumulated impulses (k + 1, m) at its rows.

    ``e`` (m,): restitution; ``approach``: maps the changes (m,) of gap velocities in impacts to the closing speeds (m,)
    before. A minimum in free flight is taken from the parabola through three nodes without an impulse between them.
    """
    if gap.shape[1] == 0:
        return OrbitContacts(0, np.inf, 0, 0.0, np.inf, 1.0, 0)
    found, growth = runs(impulse[None], timing, periodic=True), np.diff(impulse, axis=0)
    pushed = found.active[0]
    isolated, accumulations = _isolated_impacts(found, np.broadcast_to(e, gap.shape[1]))
    speed = np.inf
    for contact, first, length in zip(
        *(x[isolated & ~found.lasting] for x in (found.contact, found.first, found.length)), strict=True
    ):
        strength = np.sum(growth[(first + np.arange(length)) % len(growth), contact])
        speed = min(speed, float(approach(strength * diagonal[first])[contact]))
    left, right = np.roll(gap, 1, axis=0), np.roll(gap, -1, axis=0)
    bend, tilt = left - 2 * gap + right, right - left
    low = (gap <= left) & (gap < right) & ~pushed & ~np.roll(pushed, 1, axis=0) & (bend > 0)
    least = gap - tilt**2 / (8 * np.where(bend > 0, bend, 1))
    room, middle = _longest_flight(np.any(pushed, axis=1))
    held = np.zeros(len(growth), bool)
    for first, length in zip(found.first[found.lasting], found.length[found.lasting], strict=True):
        held[(first + np.arange(length)) % len(growth)] = True
    clearance = float(np.min(np.where(low, least, np.inf)))
    return OrbitContacts(int(isolated.sum()), speed, accumulations, float(held.mean()), clearance, room, middle)


def _isolated_impacts(found: Runs, e: np.ndarray) -> tuple[np.ndarray, int]:
    """Mask of the runs that are isolated impacts, and the number of accumulations in a periodic motion.

    For e > 0 impacts before a lasting contact accumulate: the contact is the limit of infinitely many impacts, of which
    only some are resolved, how many depends on h. So all impacts of a contact that has lasting contact in the
    period belong to accumulations.
    """
    isolated, ends = found.impact.copy(), np.zeros(len(found), bool)
    for contact in np.unique(found.contact[found.lasting & (e[found.contact] > 0)]):
        own = np.flatnonzero(found.contact == contact)
        held = own[found.lasting[own]]
        following = held[np.searchsorted(held, own) % len(held)]
        ends[following[found.impact[own]]] = True
        isolated[own] = False
    return isolated, int(ends.sum())


def _longest_flight(pushed: np.ndarray) -> tuple[float, int]:
    """Distance from the section to the nearest step with an impulse, as a share of the period;
    and the middle step of the longest flight.

    ``pushed``: mask of the steps with an impulse in a period that begins at the section.
    """
    n, at = len(pushed), np.flatnonzero(pushed)
    if at.size == 0:
        return 1.0, 0
    flights = np.diff(np.append(at, at[0] + n))
    longest = int(np.argmax(flights))
    return float(np.min(np.minimum(at, n - 1 - at)) / n), int(at[longest] + (flights[longest] + 1) // 2) % n
