"""Curves of folds, period doublings and grazings of periodic orbits over two parameters,
by pseudo-arclength continuation.

Unknowns are the state x at the section and both parameters. A fold or a period doubling adds to P(x) = x the scalar
condition g = 0 of a bordered system,

    [[A, b], [c', 0]] (w, g) = (0, 1),      A = dP/dx - 1 or dP/dx + 1,

where g is zero if A is singular, and smooth nearby; b and c are the singular vectors of A at the previous point of the
curve. At a grazing the map P has no derivative. There the section is at the time theta of the touch, an unknown too:
gap = 0 and gap rate = 0 are conditions on (theta, x) only, and from shortly before to shortly after the touch the gap
is enlarged, so that no contact acts and P is smooth.

Derivatives of these conditions are central differences, all in one batch of motions.

References: W. Govaerts, Numerical Methods for Bifurcations of Dynamical Equilibria, SIAM (2000), ch. 3; P. Thota, H.
Dankowicz, SIAM J. Appl. Dyn. Syst. 7 (2008) 1283-1322 (grazing).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_choice, check_counts, is_pair, is_whole, real_number
from ..jaxtools.warnings import without_remarks
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.motion import OF_FRICTION
from ..mechanics.problem import Problem
from ..mechanics.status import FAILURES
from ..results import Arrays, Drawable, with_names
from ..simulation.call import Arguments, Call
from ..simulation.canonical_arrays import canonical_state
from ..simulation.ensemble import ensemble
from ..simulation.sensitivities import sensitivities
from ..simulation.solve import solve
from .checks import REPEATS, TimeLike, check_no_noise, parameter_name, parameter_path
from .continuation import EASY, LONGEST, SHORTEST, TURN, check_bounds, value_of
from .default_scheme import ORBIT, ROWS, choose_scheme
from .forced_system import ForcedSystem, LaneNumbers
from .options import MotionOptions, with_options
from .orbit_family import CORRECTIONS, OF_CONTACTS
from .shooting_equations import check_forcing
from .stroboscopic_map import blocks, damped_newton, eigenvalues

KINDS = ("fold", "period doubling", "grazing")
CHANGE = 1e-5  # of scaled unknowns: the difference that stands for a derivative
BEYOND = 0.05  # of the width of the bounds: how far beyond these Newton's method may look
LIFTED = 0.01  # of the period before and after a touch, in which the gap of the contact is enlarged
FAR = 1e3  # sizes of the state, by which the gap is enlarged


@dataclass(frozen=True, repr=False)
class BifurcationCurve(Drawable):
    """Result of `continue_curve`: n folds, period doublings or grazings,
    in order along a curve in the plane of two parameters.

    Attributes:
        kind: "fold", "period doubling" or "grazing".
        parameters: names of the parameters along x and y.
        x, y: their values (n,).
        t: time of the section (n,) [s]: t0, or at a grazing the time of the touch.
        q, v: states at the section (n, d).
        period: periods of the orbits (n,) [s].
        multipliers: Floquet multipliers (n, 2d), complex, by decreasing modulus; NaN for a grazing, which has none.
        residual: largest residual of the equations, scaled (n,).
        ended: why it ends: "bounds", "points" (their number), or "no convergence", for instance as the number of
            impacts of the orbit changes.
        naming: names and units of the problem.
    """

    kind: str
    parameters: tuple[str, str]
    x: np.ndarray
    y: np.ndarray
    t: np.ndarray
    q: np.ndarray
    v: np.ndarray
    period: np.ndarray
    multipliers: np.ndarray
    residual: np.ndarray
    ended: str
    naming: Labels = UNNAMED

    def _arrays(self) -> Arrays:
        return self._along("point", "x", "y", "t", "q", "v", "period", "residual") | self._along(
            "point multiplier", "multipliers"
        )

    def _columns(self) -> dict[str, np.ndarray]:
        first, second = self.parameters
        return {first: self.x, second: self.y, **self._table("t", "q", "v", "period", "residual")}


@with_names
@with_options(MotionOptions)
def continue_curve(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    kind: str,
    parameters: tuple[str, str],
    bounds: tuple[tuple[float, float], tuple[float, float]],
    period: TimeLike,
    t0: ArrayLike = 0.0,
    cycles: int = 1,
    contact: int = 0,
    direction: int = 1,
    step: float = 0.02,
    points: int = 200,
    steps: int | None = None,
    tol: float | None = None,
    **options: Unpack[MotionOptions],
) -> BifurcationCurve:
    """Follows a fold, a period doubling or a grazing of a periodic orbit of a forced system over two parameters.

    The start is a guess of such an orbit, for instance the `BranchEvent` that `continue_orbit` found: first the first
    parameter is corrected with the second one fixed, then both change along the curve.
    Each point takes a batch of some ten motions.

    Args:
        problem, period, t0, cycles, steps, scheme, projection, e: as in `periodic_orbit`.
        q0, v0: guess of the state at t0 (d,), for the parameters' values in args (and e).
        kind: "fold", "period doubling" or "grazing".
        parameters: two, each a key of args whose value is one number, or "e", the restitution, "friction" or
            "static_friction"; where these are keys of args too, as in `bifurcation`.
        bounds: intervals (low, high) of the two parameters; the curve ends where it leaves them.
        contact: which constraint is touched at a grazing.
        direction: 1 to start towards larger values of the second parameter, -1 towards smaller ones.
        step: length of the first arc, in units of the widths of the bounds and the size of the first state;
            then it adapts.
        points: largest number of points.
        tol: largest residual of the scaled equations relative to 1 + |z|, with z the scaled unknowns;
            by default eps^(2/3).

    Returns:
        `BifurcationCurve`.

    Raises:
        ValueError, TypeError: as `periodic_orbit`, or a parameter is not valid. RuntimeError: there is no such
            bifurcation near the start.
    """
    check_no_noise(problem, REPEATS)
    options, steps = choose_scheme(problem, options, steps, ORBIT)
    args = options["args"]
    check_choice("kind", kind, KINDS)
    if problem.jointed or problem.quaternions:
        raise ValueError(
            "continue_curve varies each coordinate by itself, which joints and quaternions do not allow: state the "
            "system in coordinates without them"
        )
    check_counts(points=points, cycles=cycles)
    if np.ndim(q0) != 1 or np.ndim(v0) != 1:
        raise ValueError(
            f"q0 and v0 must have shape (d,), got {np.shape(q0)} and {np.shape(v0)}: a curve has one start"
        )
    for name, pair in {"parameters": parameters, "bounds": bounds}.items():
        if not is_pair(pair):
            raise ValueError(f"{name} must be two, one for each parameter, got {pair!r}")
    paths = [parameter_path(name, args) for name in parameters]
    if paths[0] == paths[1]:
        raise ValueError(f"parameters must differ, got {parameters!r}")
    values = np.array([value_of(path, problem, options) for path in paths])
    low, high = np.transpose([check_bounds(pair) for pair in bounds])
    if np.any(values < low) or np.any(values > high):
        raise ValueError(f"bounds: {bounds!r} do not contain the parameters' values {values.tolist()}")
    if not is_whole(direction) or direction not in (1, -1):
        raise ValueError(f"direction must be 1 or -1, got {direction!r}")
    if not 0 < real_number("step", step) < 1:
        raise ValueError(f"step must lie between 0 and 1, got {step!r}")
    tol = float(np.finfo(np.float64).eps) ** (2 / 3) if tol is None else tol
    if not real_number("tol", tol) > 0:
        raise ValueError(f"tol must be positive, got {tol!r}")
    q, v = (np.asarray(x, np.float64) for x in canonical_state(q0, v0))
    own: Arguments = {name: options.get(name) for name in OF_CONTACTS}
    own = {name: np.asarray(x)[None] if np.ndim(x) == 1 else x for name, x in own.items()}
    call = Call(problem, q, v, t0=t0, steps=steps * cycles, **{**options, **own})
    system = ForcedSystem(call, tuple(paths), low, high - low, period, cycles)
    corners = np.array([values, *product(*zip(low, high, strict=True))])
    check_forcing(problem, system.lanes(q, v, corners))
    equations: Equations
    if kind == "grazing":
        m = problem.count(0.0, jnp.asarray(q), args)
        if not is_whole(contact) or not 0 <= contact < m:
            raise ValueError(f"contact={contact!r}: the problem has contacts 0 ... {m - 1}")
        equations = GrazingEquations(system, q, v, values, int(contact))
    else:
        equations = SingularEquations(system, q, v, values, -1.0 if kind == "fold" else 1.0)
    return _follow(kind, equations, direction, step, points, tol)


class Equations(ABC):
    """Base class: the n - 1 equations of a curve in scaled unknowns z (n,),
    the last two of which are the parameters."""

    start: np.ndarray  # a guess

    def __init__(self, system: ForcedSystem, q: np.ndarray, v: np.ndarray) -> None:
        self.system, self.d = system, len(q)
        self.size = float(np.max(np.abs([q, v]))) or 1.0

    @abstractmethod
    def values(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals (B, n - 1), scaled, and statuses (B,) of the motions at unknowns (B, n)."""

    @abstractmethod
    def can_start(self, z: np.ndarray) -> bool:
        """Whether a motion can start from unknowns z (n,): its gaps are not negative."""

    def is_near(self, z: np.ndarray) -> bool:
        """Whether the parameters at unknowns (n,) lie within the bounds, or not far beyond."""
        return bool(np.all(np.isfinite(z)) and np.all(np.abs(z[-2:] - 0.5) <= 0.5 + BEYOND))

    def settle(self, z: np.ndarray) -> None:  # noqa: B027  # most have nothing to make ready
        """Updates what the equations take from the last point z (n,) of the curve, such as their bordering vectors;
        by default nothing."""

    @abstractmethod
    def point(self, z: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, float]:
        """Time of the section, q and v (d,), multipliers (2d,) and period of the orbit with unknowns z (n,)."""

    def states(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions and velocities (B, d) of unknowns (B, n)."""
        return self.size * z[:, : self.d], self.size * z[:, self.d : 2 * self.d]

    def scaled(self, p: np.ndarray) -> np.ndarray:
        """The parameters p (2,) as scaled unknowns: (p - low) / width."""
        return (p - self.system.low) / self.system.width

    def difference_points(self, z: np.ndarray) -> np.ndarray:
        """Points (1 + 2n, n) for central differences at z (n,): z itself, then z shifted by each unknown forwards,
        then backwards."""
        shifts = CHANGE * np.eye(len(z))
        return z + np.concatenate([np.zeros((1, len(z))), shifts, -shifts])

    def jacobian(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Residuals (n - 1,) at z (n,), their Jacobian (n - 1, n) by differences,
        and the joined status of all motions computed for it."""
        n = len(z)
        value, status = self.values(self.difference_points(z))
        return value[0], (value[1 : n + 1] - value[n + 1 :]).T / (2 * CHANGE), int(np.bitwise_or.reduce(status))


class SingularEquations(Equations):
    """Equations of orbits at which dP/dx + ``shift`` I is singular: -1 for folds, 1 for period doublings. Unknowns:
    state and parameters."""

    def __init__(self, system: ForcedSystem, q: np.ndarray, v: np.ndarray, p: np.ndarray, shift: float) -> None:
        super().__init__(system, q, v)
        self.shift = shift
        self.start = np.concatenate([q / self.size, v / self.size, self.scaled(p)])
        self.settle(self.start)

    def flow(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """P(x) (B, 2d), its Jacobian (B, 2d, 2d) and statuses (B,)."""
        numbers, (q, v) = self.system.numbers(self.system.values(z)), self.states(z)
        with without_remarks():
            found = sensitivities(self.system.over_period(q, v, numbers))
        return np.concatenate([found.value["q"], found.value["v"]], axis=1), blocks(found.jacobian), found.status

    def values(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        end, flow, status = self.flow(z)
        n = end.shape[1]
        bordered = np.zeros((len(z), n + 1, n + 1))
        bordered[:, :n, :n] = flow + self.shift * np.eye(n)
        bordered[:, :n, n], bordered[:, n, :n] = self.border
        sound = np.all(np.isfinite(bordered), axis=(1, 2))
        bordered[~sound] = np.eye(n + 1)
        g = np.where(sound, np.linalg.solve(bordered, np.eye(n + 1)[:, n:])[:, n, 0], np.nan)
        return np.concatenate([(end - self.size * z[:, :n]) / self.size, g[:, None]], axis=1), status

    def settle(self, z: np.ndarray) -> None:
        flow = self.flow(z[None])[1][0]
        left, _, right = np.linalg.svd(np.nan_to_num(flow) + self.shift * np.eye(len(flow)))
        self.border = left[:, -1], right[-1]

    def can_start(self, z: np.ndarray) -> bool:
        numbers, q = self.system.numbers(self.system.values(z[None])), self.states(z[None])[0][0]
        gaps = self.system.call.problem.gaps(jnp.asarray(self.system.begin(numbers)[0]), jnp.asarray(q), numbers.first)
        return bool(np.all(np.asarray(gaps) >= 0))

    def point(self, z: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, float]:
        numbers, (q, v) = self.system.numbers(self.system.values(z[None])), self.states(z[None])
        multipliers = eigenvalues(self.flow(z[None])[1])[0]
        return float(self.system.begin(numbers)[0]), q[0], v[0], multipliers, float(numbers.period[0])


class GrazingEquations(Equations):
    """Equations of grazing orbits, which touch the constraint ``contact`` with zero gap rate. Unknowns: state and time
    of the touch, parameters."""

    def __init__(self, system: ForcedSystem, q: np.ndarray, v: np.ndarray, p: np.ndarray, contact: int) -> None:
        super().__init__(system, q, v)
        self.contact = contact
        numbers = system.numbers(p[None])
        self.length = float(numbers.period[0])
        self.lifted, self.count = (
            _with_lift(system.call.problem),
            system.call.problem.count(0.0, jnp.asarray(q), system.call.args),
        )
        look = partial(_gap_and_rate, system.call.problem)
        self.look = jax.jit(jax.vmap(look, in_axes=(0, 0, 0, numbers.args_axes)))
        t, state = self._nearest(q, v, numbers)
        self.start = np.concatenate([state / self.size, [t / self.length], self.scaled(p)])

    def _nearest(self, q: np.ndarray, v: np.ndarray, numbers: LaneNumbers) -> tuple[float, np.ndarray]:
        """Returns the time and the state (2d,) of the row of an orbit that is nearest to a touch, with the least
        combination of gap and gap rate."""
        begin = self.system.begin(numbers)[0]
        args = numbers.first
        own = {name: x[0] if np.ndim(x) == 2 else x for name, x in numbers.of_contacts.items()}
        with without_remarks():
            call = self.system.call.replace(q0=q, v0=v, t0=begin, t1=begin + self.length, args=args, **own)
            rows = solve(call.replace(save="all", steps=max(ROWS, call.steps)), "none")
        look = jax.vmap(partial(_gap_and_rate, self.system.call.problem), in_axes=(0, 0, 0, None))
        gap, rate = (np.asarray(x)[:, self.contact] for x in look(rows.t, rows.q, rows.v, args))
        best = int(np.argmin(np.hypot(gap, rate * self.length / (2 * np.pi))))
        return float(rows.t[best]), np.concatenate([np.asarray(rows.q)[best], np.asarray(rows.v)[best]])

    def values(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers, (q, v) = self.system.numbers(self.system.values(z)), self.states(z)
        begin, part = self.length * z[:, -3], LIFTED * numbers.period
        gap, rate = (np.asarray(x)[:, self.contact] for x in self.look(begin, q, v, numbers.args))
        end, status = np.concatenate([q, v], axis=1), np.zeros(len(z), int)
        up = np.zeros(self.count)
        up[self.contact] = FAR * self.size
        times = begin, begin + part, begin + numbers.period - part, begin + numbers.period
        for t0, t1, lift in zip(times[:-1], times[1:], (up, 0 * up, up), strict=True):
            sound = np.all(np.isfinite(end), axis=1)
            end = np.where(sound[:, None], end, np.concatenate([q, v], axis=1))
            with without_remarks():
                call = self.system.over_period(end[:, : self.d], end[:, self.d :], numbers)
                args, axes = {"own": numbers.args, "lift": lift}, {"own": numbers.args_axes, "lift": None}
                call = call.replace(problem=self.lifted, t0=t0, t1=t1, args=args, args_axes=axes)
                found = jax.device_get(ensemble(call))
            end = np.where(sound[:, None], np.concatenate([found.q[:, -1], found.v[:, -1]], axis=1), np.nan)
            status |= found.status
        closed = end / self.size - z[:, : 2 * self.d]
        gaps = np.stack([gap, self.length * rate], axis=1)
        return np.concatenate([closed, gaps / self.size], axis=1), status

    def can_start(self, z: np.ndarray) -> bool:
        return True

    def point(self, z: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, float]:
        period = self.system.numbers(self.system.values(z[None])).period[0]
        q, v = self.states(z[None])
        return float(self.length * z[-3]), q[0], v[0], np.full(2 * self.d, complex(np.nan, np.nan)), float(period)


def _gap_and_rate(problem: Problem, t: Array, q: Array, v: Array, args: object) -> tuple[Array, Array]:
    """Gaps (m,) at a state, and their rates."""
    return jax.jvp(lambda t, q: problem.gaps(t, q, args), (t, q), (jnp.ones_like(t), v))


def _with_lift(problem: Problem) -> Problem:
    """Returns the problem with its gaps enlarged by args["lift"] (m,); its own args become args["own"]."""
    mass, switches, reset, e = problem.mass, problem.switches, problem.reset, problem.restitution
    slip = problem.slip
    rubs = {name: getattr(problem, name) for name in OF_FRICTION}
    return Problem(
        lambda t, q, v, args: problem.force(t, q, v, args["own"]),
        lambda t, q, args: problem.gaps(t, q, args["own"]) + args["lift"],
        (lambda q, args: mass(q, args["own"])) if callable(mass) else mass,
        (lambda w, args: e(w, args["own"])) if callable(e) else e,
        switches=switches and (lambda t, q, v, args: switches(t, q, v, args["own"])),
        reset=reset and (lambda t, q, v, k, args: reset(t, q, v, k, args["own"])),
        slip=slip and (lambda t, q, v, args: slip(t, q, v, args["own"])),
        **{name: _of_own(mu) if callable(mu) else mu for name, mu in rubs.items()},
    )


def _of_own(function: Any) -> Any:
    """Returns a function of the args of `_with_lift` that applies ``function`` to the problem's own args in them."""
    return lambda args: function(args["own"])


def _follow(kind: str, equations: Equations, direction: int, step: float, most: int, tol: float) -> BifurcationCurve:
    """Computes the curve from the equations' start: corrects the start, then continues by pseudo-arclength."""
    last = len(equations.start) - 1

    def corrected(guess: np.ndarray, normal: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, float] | None:
        """Finds the point of the curve on the plane through ``guess`` with this normal, by Newton's method;
        None if that fails.

        Returns the point (n,), the Jacobian there (n - 1, n), the number of evaluations, and the residual.
        """

        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            value, jacobian, status = equations.jacobian(z[0])
            value = np.append(value, normal @ (z[0] - guess))
            return value[None], np.vstack([jacobian, normal])[None], np.array([status])

        allowed = lambda z: np.array(
            [equations.is_near(z[0]) and all(map(equations.can_start, equations.difference_points(z[0])))]
        )
        if not allowed(guess[None])[0]:
            return None
        z, full, status, residual, used, done = damped_newton(evaluate, allowed, guess[None].copy(), tol, CORRECTIONS)
        lost = not done[0] or int(status[0]) & int(FAILURES)
        return None if lost else (z[0], full[0, :-1], int(used[0]), float(residual[0]))

    hold = np.eye(last + 1)[last]
    first = corrected(equations.start, hold)
    if first is None or np.any(first[0][-2:] < 0) or np.any(first[0][-2:] > 1):
        raise RuntimeError(
            f"no {kind} was found near the start and within the bounds: give a state nearer to one, as continue_orbit "
            "finds it"
        )
    points, residuals, ended = [first[0]], [first[3]], "points"
    equations.settle(points[0])
    tangent = _tangent(first[1], direction * hold)
    length = step
    while len(points) < most:
        here = points[-1]
        guess = here + length * tangent
        outside = np.flatnonzero((guess[-2:] < 0) | (guess[-2:] > 1))
        normal = tangent
        if outside.size:
            # the last point lies on the bound that is met first
            bound = np.clip(guess[-2:], 0, 1)
            shares = (bound - here[-2:])[outside] / (guess - here)[-2:][outside]
            guess = here + np.min(shares) * (guess - here)
            normal = np.eye(last + 1)[last - 1 + outside[np.argmin(shares)]]
        found = corrected(guess, normal)
        new = None if found is None else _tangent(found[1], tangent)
        if found is None or new is None or new @ tangent < TURN:
            length *= 0.5
            if length < SHORTEST * step:
                ended = "no convergence"
                break
            continue
        points.append(found[0])
        residuals.append(found[3])
        if outside.size:
            ended = "bounds"
            break
        tangent = new
        equations.settle(found[0])
        length = min(length * (1.5 if found[2] <= EASY else 1.0), LONGEST * step)
    t, q, v, multipliers, period = (np.array(x) for x in zip(*map(equations.point, points), strict=True))
    x, y = equations.system.values(np.array(points)).T
    one, other = map(parameter_name, equations.system.paths)
    return BifurcationCurve(kind, (one, other), x, y, t, q, v, period, multipliers, np.array(residuals), ended)


def _tangent(jacobian: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Unit vector (n,) that the Jacobian (n - 1, n) maps to zero, oriented so that its product with
    ``along`` is not negative."""
    found = np.linalg.svd(jacobian)[2][-1]
    return -found if found @ along < 0 else found
