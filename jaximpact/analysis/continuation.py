"""Branches of periodic orbits over one parameter, by pseudo-arclength continuation,
with their bifurcations and grazings.

Unknowns are the state at the section and the parameter p, and the period of an autonomous system; each point solves
P(x, p) = x (`ShootingEquations`) on the plane a small arc ahead, perpendicular to the branch, so that folds are passed.
Events between two points are

    fold               dp/ds changes sign (a multiplier passes +1),
    branch point       another branch crosses: the Jacobian bordered by the tangent is singular,
    period doubling    a multiplier passes -1,
    Neimark-Sacker     a complex pair passes the unit circle,
    grazing            an impact appears or disappears: a free flight touches a constraint, or an impact velocity vanishes,
    end of sticking    impacts no longer accumulate in a lasting contact before that contact would be released; or, with friction, a contact
                       no longer sticks: its slip reverses instead, or does not reach zero.

The first four, and a slip that begins to reverse, are located by root finding along the arc. At grazing the map has no
derivative and the branch ends; the parameter there is extrapolated from points ever closer to it. Where lasting contact
vanishes the branch ends too, as orbits beyond have other impacts; the parameter is that of the last point, since a
contact shorter than a few steps is not resolved. Where slip reverses in place of sticking the map has a derivative, and
the branch goes on; where slip only just reaches zero the branch ends, at a parameter extrapolated from the
rate at which the slip vanishes.

References: E. J. Doedel, Congr. Numer. 30 (1981) 265-284 (arclength); A. B. Nordmark, J. Sound Vib. 145 (1991) 279-297
(grazing).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, is_whole, real_number
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.motion import STATED
from ..mechanics.problem import Problem
from ..results import Arrays, Drawable, Result, with_names
from ..simulation.call import Arguments, Call
from ..simulation.validation import check_problem
from .checks import REPEATS, StudyLike, TimeLike, check_no_noise, of_a_study, parameter_name, parameter_path
from .default_scheme import ORBIT, choose_scheme
from .from_study import branch_arguments
from .options import MotionOptions, with_options
from .orbit_family import OF_CONTACTS, BranchPoint, OrbitFamily
from .orbits import periodic_orbit
from .stroboscopic_map import eigenvalues, lost_derivatives

if TYPE_CHECKING:
    from .shooting_equations import Surface

EASY = 3  # iterations up to which the next step is longer
LONGEST, SHORTEST = 8.0, 2.0**-12  # steps, in multiples of the first
ROOM = 0.05  # an impact nearer to the section, as a share of the orbit, moves the section
UPRIGHT = 1e-6  # a test function below it counts as zero along the whole branch; rounding makes it some 1e-11
TURN = 0.9  # smallest cosine between the tangents of neighbouring points


@dataclass(frozen=True, repr=False)
class BranchEvent(Result):
    """A bifurcation, a grazing or the end of sticking on a branch.

    Attributes:
        kind: "fold", "branch point", "period doubling", "Neimark-Sacker", "grazing" or "end of sticking".
        parameter: the parameter's value at the event.
        q, v: state at the section (d,); where the branch ends, at a grazing or an end of sticking,
            that of the last point before.
        multipliers: Floquet multipliers at the event, as in `PeriodicOrbit`;
            where the branch ends those of the last point before.
        index: number of the last point of the branch before the event.
        detail: for grazing, what vanishes: "impact speed" or "clearance"; for the end of sticking "lasting contact";
            or, with friction, "reversal" where a contact that sticks once in a period begins to reverse its slip
            instead, or the other way about, and "slip" where a slip no longer reaches zero.
    """

    kind: str
    parameter: float
    q: np.ndarray
    v: np.ndarray
    multipliers: np.ndarray
    index: int
    detail: str = ""

    def _brief(self) -> str:
        return self.kind if self._is_traced() else f"{self.kind} at {self.parameter:.6g}"


# the fields with an entry for each point
POINTWISE = (
    *("q", "v", "period", "multipliers", "stable", "impacts"),
    *("accumulations", "lasting", "impact_speed", "clearance"),
)


@dataclass(frozen=True, repr=False)
class Branch(Drawable):
    """Result of `continue_orbit`: periodic orbits at n points along a branch, in order.

    Attributes:
        name: the parameter.
        parameter: its values (n,).
        q, v: states at the section (n, d).
        period: (n,) [s].
        multipliers: Floquet multipliers (n, 2d), complex, by decreasing modulus; (n, 2d - 1) through a surface; fewer
            with joints, as of `PeriodicOrbit`.
        stable: whether all lie inside the unit circle (n,).
        impacts: impacts in one period (n,), without those that accumulate.
        accumulations: how often in one period infinitely many impacts accumulate and end in lasting contact (n,).
        lasting: share of the period with some lasting contact (n,).
        impact_speed: smallest speed at which a gap closes in an impact (n,), inf where there is none.
        clearance: smallest minimum of a gap in free flight (n,), inf where there is none.
        events: `BranchEvent`s in order.
        ended: why it ends: "bounds", "grazing", "end of sticking", "points" (their number), or "no convergence".
        naming: names and units of the problem.
    """

    name: str
    parameter: np.ndarray
    q: np.ndarray
    v: np.ndarray
    period: np.ndarray
    multipliers: np.ndarray
    stable: np.ndarray
    impacts: np.ndarray
    accumulations: np.ndarray
    lasting: np.ndarray
    impact_speed: np.ndarray
    clearance: np.ndarray
    events: tuple[BranchEvent, ...]
    ended: str
    naming: Labels = UNNAMED

    def _arrays(self) -> Arrays:
        return self._along("point", "parameter", *POINTWISE) | self._along("point multiplier", "multipliers")

    def _columns(self) -> dict[str, np.ndarray]:
        return {self.name: self.parameter, **self._table(*POINTWISE)}


def _of_study(study: StudyLike, *, parameter: str, lane: int | None = None, **options: Any) -> Branch:
    return continue_orbit(**(branch_arguments(study, parameter, lane) | options))


@of_a_study(_of_study)
@with_names
@with_options(MotionOptions)
def continue_orbit(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    parameter: str,
    bounds: tuple[float, float],
    period: TimeLike,
    steps: int | None = None,
    t0: ArrayLike = 0.0,
    surface: Surface | None = None,
    cycles: int = 1,
    direction: int = 1,
    step: float = 0.02,
    points: int = 400,
    tol: float | None = None,
    **options: Unpack[MotionOptions],
) -> Branch:
    """Follows a periodic orbit as one parameter changes, through folds,
    until it grazes or the parameter leaves its bounds.

    ``continue_orbit(study, lane=0, parameter=...)`` takes the start, the args and the methods from that lane of a
    `Study`, and the bounds from the values of the parameter that the study varies, unless they are given.

    Args:
        problem, e, scheme, projection, tol: as in `periodic_orbit`.
        q0, v0: guess of the orbit's state at t0 (d,), for the parameter's value in args (or e).
        parameter: a key of args whose value is one number, or "e", the restitution, "friction" or "static_friction";
            where these are keys of args too, as in `bifurcation`.
        bounds: interval of the parameter in which to stay; with "e" within [0, 1], with "friction" not below 0,
            nor above "static_friction".
        period, t0: numbers or functions of args, as in `periodic_orbit`. During the continuation the section is moved
            away from impacts, but states are reported at t0.
        steps, cycles: as in `periodic_orbit`.
        surface: as in `periodic_orbit`, for an autonomous system, whose period is an unknown along the branch. It is
            not moved: keep it away from impacts.
        direction: 1 to start towards larger values of the parameter, -1 towards smaller ones; or of the state, if the
            parameter does not change along the branch, as for orbits of a conservative system
            over a dissipation parameter.
        step: length of the first arc, in units of the width of the bounds and the size of the first state;
            then it adapts.
        points: largest number of points.

    Returns:
        `Branch`, with the events in order.

    Raises:
        ValueError, TypeError: as `periodic_orbit`, or if the parameter is not valid. RuntimeError:
            no orbit at the start.
    """
    check_problem(problem)
    check_no_noise(problem, REPEATS)
    check_counts(points=points, cycles=cycles)
    options, steps = choose_scheme(problem, options, steps, ORBIT)
    if np.ndim(q0) != 1 or np.ndim(v0) != 1:
        raise ValueError(
            f"q0 and v0 must have shape (d,), got {np.shape(q0)} and {np.shape(v0)}: a branch has one start"
        )
    if not isinstance(parameter, str):
        raise TypeError(
            f"parameter must be one name, got {parameter!r}: curves of bifurcations over two are followed by "
            "continue_curve"
        )
    low, high = check_bounds(bounds)
    path = parameter_path(parameter, options["args"])
    value = value_of(path, problem, options)
    if not low <= value <= high:
        raise ValueError(f"bounds: ({low:g}, {high:g}) do not contain the parameter's value {value:g}")
    if path == ("e",) and not (low >= 0 and high <= 1):
        raise ValueError(f"bounds: restitution lies in [0, 1], got ({low:g}, {high:g})")
    if not is_whole(direction) or direction not in (1, -1):
        raise ValueError(f"direction must be 1 or -1, got {direction!r}")
    if not 0 < real_number("step", step) < 1:
        raise ValueError(f"step must lie between 0 and 1, got {step!r}")
    given: Arguments = {"steps": steps, "t0": t0, **options}
    orbit = periodic_orbit(problem, q0, v0, tol=tol, surface=surface, period=period, cycles=cycles, **given)
    call = Call(problem, q0, v0, **given)
    family = OrbitFamily(call, orbit.raise_if_failed(), path, (low, high), tol, surface, (period, cycles))
    return _follow(family, value, direction, step, points)


def check_bounds(bounds: Iterable[float]) -> tuple[float, float]:
    try:
        low, high = (float(x) for x in bounds)
    except (TypeError, ValueError) as error:
        raise ValueError(f"bounds must be two numbers, got {bounds!r}") from error
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"bounds must be finite and increasing, got ({low:g}, {high:g})")
    return low, high


def value_of(path: tuple[str, ...], problem: Problem, options: MotionOptions) -> float:
    """Value at the start of the branch of the parameter with a path of `parameter_path`: from args or, of contacts,
    from the options or the problem."""
    args, (root, *keys) = options["args"], path
    name = parameter_name(path)
    if root in OF_CONTACTS:
        own = options.get(root)
        value = getattr(problem, STATED[root]) if own is None else own
    else:
        known = args if isinstance(args, dict) else {}
        if len(keys) != 1 or keys[0] not in [*known]:
            raise ValueError(f"parameter={name!r}: choose one of {[*known, *OF_CONTACTS]}; args must be a dict of them")
        value = known[keys[0]]
    return real_number(f"parameter {name!r}", value)


# test functions of a point: a sign change between two points is an event
def _folds(point: BranchPoint) -> float:
    """Test function of a fold: dp/ds, s the arclength; 0 where the parameter is constant along the branch, as in
    families of a conservative system."""
    slope = float(point.tangent[-1])
    return slope if abs(slope) > UPRIGHT else 0.0


def _crosses(point: BranchPoint) -> float:
    """Test function of a branch point: the determinant of the Jacobian bordered by the tangent,
    which no fold makes zero."""
    return float(np.linalg.det(np.vstack([point.jacobian, point.tangent])))


def _doubles(point: BranchPoint) -> float:
    """Test function of a period doubling: the determinant of (monodromy matrix + 1),
    which is zero if a multiplier is -1."""
    return float(np.linalg.det(point.monodromy + np.eye(len(point.monodromy))))


def _rotates(point: BranchPoint) -> float:
    """Test function of a Neimark-Sacker bifurcation: the product of mu_i mu_j - 1 over pairs i < j of multipliers;
    0 in conservative systems."""
    multipliers = eigenvalues(point.monodromy[None])[0]
    i, j = np.triu_indices(len(multipliers), 1)
    products = multipliers[i] * multipliers[j] - 1
    # conservative systems have pairs whose product is 1 everywhere
    return 0.0 if np.any(np.abs(products) < UPRIGHT) else float(np.prod(products).real)


TESTS = {"fold": _folds, "branch point": _crosses, "period doubling": _doubles, "Neimark-Sacker": _rotates}


def _room(k: int, point: BranchPoint) -> float:
    """Test function of an end of sticking by a reversal of slip: the k-th smallest `OrbitSlips.room`, k from 0, which
    changes its sign there."""
    return float(point.slips.room[k]) if k < len(point.slips.room) else np.nan


def _follow(family: OrbitFamily, value: float, direction: int, step: float, most: int) -> Branch:
    """Computes points and events of the branch from the first orbit of ``family`` on; ``value``: the parameter there;
    ``most``: limit of points."""
    guess = family.unknowns(family.start, value)
    up = np.zeros(len(guess), family.dtype)
    up[-1] = 1
    start = family.correct(guess, up, direction * up)
    if start is None:
        raise RuntimeError("the orbit at the start was lost: take more steps or a larger tol")
    if abs(start.tangent[-1]) < UPRIGHT and direction * (start.tangent[:-1] @ guess[:-1]) < 0:
        start = start._replace(tangent=-start.tangent)
    branch, events, ended = [start], [], "points"
    states = [family.home(start)]
    length, wall, behind = (
        step,
        np.inf,
        start,
    )  # wall: how far ahead something is known to change; behind: an orbit beyond it
    while len(branch) < most:
        here = branch[-1]
        if here.contacts.room < ROOM and family.equations.surface is None:
            here = family.move_section(here) or here
            branch[-1] = here
        length = min(length, 0.5 * wall)
        if length < SHORTEST * step:
            last = _end_of_sticking(family, branch, behind) or _grazing_ahead(family, branch)
            last = last or _end_of_slip_ahead(family, branch)
            ended = "no convergence" if last is None else last.kind
            events += [] if last is None else [last]
            break
        guess = here.z + length * here.tangent
        outside = not 0 <= guess[-1] <= 1
        if outside:
            # the last point lies on the bound
            bound = np.clip(guess[-1], 0, 1)
            if abs(bound - here.z[-1]) <= family.tol:
                ended = "bounds"
                break
            share = (bound - here.z[-1]) / (guess[-1] - here.z[-1])
            guess = np.append((here.z + share * (guess - here.z))[:-1], bound)
        new = family.correct(guess, up if outside else here.tangent, here.tangent)
        if new is None or new.tangent @ here.tangent < TURN:
            length *= 0.5
            continue
        if new.contacts.pattern != here.contacts.pattern:
            wall, behind = length, new
            continue
        events += _events_between(family, here, new, len(branch) - 1)
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


def _events_between(family: OrbitFamily, here: BranchPoint, there: BranchPoint, index: int) -> list[BranchEvent]:
    """Events between two neighbouring points of the branch, in order."""
    found = []
    for kind, test in TESTS.items():
        if not test(here) * test(there) < 0:
            continue
        root, point = _locate(family, test, here, there)
        if kind != "Neimark-Sacker" or _complex_pair(point):
            found.append((root, _event(family, kind, point, index)))
    if len(here.slips.room) == len(there.slips.room):
        # the number of slips that reverse changes one by one
        for k in range(*sorted((here.slips.turns, there.slips.turns))):
            root, point = _locate(family, partial(_room, k), here, there)
            found.append((root, _event(family, "end of sticking", point, index, detail="reversal")))
    return [event for _, event in sorted(found, key=lambda pair: pair[0])]


def _locate(
    family: OrbitFamily, test: Callable[[BranchPoint], float], here: BranchPoint, there: BranchPoint
) -> tuple[float, BranchPoint]:
    """Locates the zero of a test function on the arc between two points; returns the arclength from ``here``,
    and the point there."""
    length = float(here.tangent @ (there.z - here.z))
    known = {0.0: here, length: there}

    def along(s: float) -> float:
        if s not in known:
            point = family.correct(here.z + s * here.tangent, here.tangent, here.tangent)
            if point is None:
                raise _OrbitLost
            known[s] = point
        return test(known[s])

    try:
        root = scipy.optimize.brentq(along, 0.0, length, xtol=1e-9 * length, rtol=1e-12)
        along(root)
    except _OrbitLost:
        root = min(known, key=lambda s: abs(test(known[s])))
    return root, known[root]


class _OrbitLost(Exception):
    """No orbit was found between two points of the branch."""


def _complex_pair(point: BranchPoint) -> bool:
    """Whether the multipliers nearest the unit circle are a complex pair; two real ones with product 1 are no
    Neimark-Sacker bifurcation."""
    multipliers = eigenvalues(point.monodromy[None])[0]
    nearest = multipliers[np.argmin(np.abs(np.abs(multipliers) - 1))]
    return bool(abs(nearest.imag) > 1e-6)


def _event(
    family: OrbitFamily, kind: str, point: BranchPoint, index: int, parameter: float | None = None, detail: str = ""
) -> BranchEvent:
    x = family.home(point)
    multipliers = family.equations.multipliers(point.monodromy[None])[0]
    value = family.value(point.z) if parameter is None else parameter
    return BranchEvent(kind, value, x[: family.d], x[family.d :], multipliers, index, detail)


def _end_of_sticking(family: OrbitFamily, branch: list[BranchPoint], behind: BranchPoint) -> BranchEvent | None:
    """Returns the end of sticking at the branch's last point if the orbit ``behind``, found beyond that point, has
    fewer accumulations; else None."""
    last = branch[-1]
    if behind.contacts.accumulations >= last.contacts.accumulations:
        return None
    return _event(family, "end of sticking", last, len(branch) - 1, detail="lasting contact")


def _grazing_ahead(family: OrbitFamily, branch: list[BranchPoint]) -> BranchEvent | None:
    """Returns the grazing just beyond the branch's last point, where an impact speed or a clearance extrapolates to
    zero; None if neither does."""
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


def _end_of_slip_ahead(family: OrbitFamily, branch: list[BranchPoint]) -> BranchEvent | None:
    """Returns the end of sticking just beyond the branch's last point, where `OrbitSlips.square` extrapolates to zero;
    None if it does not."""
    if len(branch) < 2:
        return None
    before, last = branch[-2:]
    early, late = before.slips.square, last.slips.square
    # as for a grazing, but the instant at which slip vanishes is known to a part of a step only
    if not np.isfinite([early, late]).all() or early <= late or late > 4 * (early - late):
        return None
    parameter = family.value(last.z + late / (early - late) * (last.z - before.z))
    return _event(family, "end of sticking", last, len(branch) - 1, parameter, "slip")


def _branch(
    family: OrbitFamily, points: list[BranchPoint], states: list[np.ndarray], events: list[BranchEvent], ended: str
) -> Branch:
    x = np.array(states)
    multipliers = family.equations.multipliers(np.array([point.monodromy for point in points]))
    parameter = np.array([family.value(point.z) for point in points])
    return Branch(
        parameter_name(family.path),
        parameter,
        x[:, : family.d],
        x[:, family.d :],
        np.array([np.ptp(family.times(point.z)) for point in points]),
        multipliers,
        (np.abs(multipliers) < 1).all(axis=1),
        np.array([point.contacts.impacts for point in points]),
        np.array([point.contacts.accumulations for point in points]),
        np.array([point.contacts.lasting for point in points]),
        np.array([point.contacts.speed for point in points]),
        np.array([point.contacts.clearance for point in points]),
        tuple(events),
        ended,
    )
