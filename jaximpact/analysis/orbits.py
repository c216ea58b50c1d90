"""Periodic orbits of forced or autonomous systems with impacts, and their Floquet multipliers.

An orbit of a system with periodic forcing is a fixed point of the stroboscopic map P: (q, v) at t0 -> (q, v) at t0 + k
T; one of an autonomous system is a fixed point of the map from a surface back to it, after a period T that is found
with it. Newton's method finds both, with the Jacobian that is right across impacts (saltation matrices included),
unstable orbits as well as stable ones. The eigenvalues of that Jacobian at the fixed point, the monodromy matrix,
are its Floquet multipliers.

Reference: R. I. Leine, H. Nijmeijer, Dynamics and Bifurcations of Non-Smooth Mechanical Systems, Springer (2004), ch.
7-9.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, real_number
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.status import FAILURES, Status, describe
from ..results import Arrays, Drawable, spread_columns, with_names
from ..simulation.call import Arguments, Call
from ..simulation.lanes import Lanes
from .checks import REPEATS, TimeLike, check_no_noise, check_steps, takes_study
from .options import LaneOptions, with_options
from .shooting_equations import ShootingEquations
from .stroboscopic_map import damped_newton, lost_derivatives, near_impact, prepare_strobe

if TYPE_CHECKING:
    from .shooting_equations import Surface

FORGOTTEN = 1e3  # units of rounding, or of the tolerance of a scheme, of a monodromy that counts as zero
LEVELS = 3  # step sizes h, h/2, h/4 of an extrapolation: two give a value, three its order


@dataclass(frozen=True, repr=False)
class PeriodicOrbit(Drawable):
    """Result of `periodic_orbit`: periodic orbits at their section; a batch adds a leading axis B to each array.

    Attributes:
        q, v: state at t0 (d,).
        t0: time of the section, () [s].
        period: time after which the orbit closes, () [s]: cycles times the forcing period, or with a surface the period
            that was found.
        multipliers: Floquet multipliers, complex, by decreasing modulus; NaN where Newton failed. (2d,), 2 less for
            each independent joint and each quaternion, for the variations that these allow; with a surface one less, as
            the multiplier 1 along the orbit of an autonomous system is left out.
        monodromy: Jacobian (2d, 2d), of (q, v), of the stroboscopic map at the orbit,
            or of the map from the surface back to it.
        residual: largest component of P(q, v) - (q, v), p and -p of quaternions being one,
            and of the distance from the surface, ().
        iterations: number of Newton iterations, including trials with a shortened step, ().
        converged: whether the residual met the tolerance, ().
        status: `Status` bits of the motion over one period, (); DERIVATIVE_AT_END: an impact lies within two steps
            of t0, or with `EventDriven` within 1000 rtol periods.
        error: with ``extrapolate``, the largest difference between the state of the finest run and the extrapolated
            one, an estimate of the error of that run, (); else None.
        order: with ``extrapolate``, observed orders over h, h/2, h/4 of "state" and "monodromy", and with a surface of
            the "period", () each; else None.
        naming: names and units of the problem.
    """

    q: np.ndarray
    v: np.ndarray
    t0: np.ndarray
    period: np.ndarray
    multipliers: np.ndarray
    monodromy: np.ndarray
    residual: np.ndarray
    iterations: np.ndarray
    converged: np.ndarray
    status: np.ndarray
    error: np.ndarray | None = None
    order: dict[str, np.ndarray] | None = None
    naming: Labels = UNNAMED

    def _arrays(self) -> Arrays:
        lanes = "lane " * np.ndim(self.residual)
        scalars = ("t0", "period", "residual", "iterations", "converged", "status", "error", "order")
        of_state = self._along(lanes, "q", "v") | self._along(f"{lanes}component of", "monodromy")
        return of_state | self._along(f"{lanes}multiplier", "multipliers") | self._along(lanes, *scalars)

    def _columns(self) -> dict[str, np.ndarray]:
        names = ("q", "v", "t0", "period", "multipliers", "residual", "iterations", "converged", "status")
        single = np.ndim(self.residual) == 0
        arrays = {name: np.asarray(getattr(self, name))[None] if single else getattr(self, name) for name in names}
        return {
            key: x
            for name, value in arrays.items()
            for key, x in spread_columns(name, value, self._names(name)).items()
        }

    @property
    def stable(self) -> np.ndarray:
        """Whether every multiplier lies inside the unit circle; False where Newton failed."""
        return self.converged & (np.abs(self.multipliers) < 1).all(axis=-1)

    def describe_status(self) -> str:
        """The status bits set in any lane, in words."""
        return describe(int(np.bitwise_or.reduce(np.ravel(self.status))))

    def raise_if_failed(self) -> PeriodicOrbit:
        """Returns these orbits, or raises RuntimeError saying which were not found."""
        bad = np.flatnonzero(~np.ravel(self.converged))
        if bad.size:
            worst = np.ravel(self.residual)[bad[0]]
            raise RuntimeError(
                f"{bad.size} of {np.size(self.converged)} periodic orbits not found (first: lane {bad[0]}, residual "
                f"{worst:.3g}): "
                "start nearer to the orbit, take more steps, or another t0 or surface if an impact falls on the "
                "section; orbits of an "
                "autonomous system are found through a surface=... with a guess of the period, and are no states of "
                "rest\n" + self.describe_status()
            )
        return self


@takes_study
@with_names
@with_options(LaneOptions)
def periodic_orbit(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    period: TimeLike,
    steps: int | None = None,
    cycles: int = 1,
    t0: ArrayLike = 0.0,
    surface: Surface | None = None,
    tol: float | None = None,
    iterations: int = 40,
    extrapolate: bool = False,
    **options: Unpack[LaneOptions],
) -> PeriodicOrbit:
    """Finds periodic orbits near given states, by Newton's method on the map of a section, and their multipliers.

    The section is the time t0, for a system with periodic forcing, or a ``surface`` in the state
    space of an autonomous system.

    Every argument may carry a lane axis as in `ensemble`: several starts or parameters at once. A lane that does not
    converge is flagged (``converged``) and does not affect the others.

    Args:
        problem, e, projection, args, args_axes: as in `ensemble`.
        q0, v0: guess of the state at t0, (d,) or (B, d), admissible.
        period: period of the forcing [s]: a number, (B,), or a function of args. With a surface a guess of the time
            between two passages, to a factor of 2.
        steps: number of steps in one period, for a scheme with fixed steps.
        cycles: number of periods of the forcing, or of passages through the surface, in one period of the orbit.
        t0: time of the section [s]: a number, (B,), or a function of args. Keep it away from impacts, where the state
            has no derivative.
        surface: ``surface(t, q, v, args) -> ()``, zero on the section of an autonomous system, which the orbit crosses,
            and away from its impacts: for instance a velocity that is zero at the top of a flight. Called with t = t0.
        scheme: by default `EventDriven(1e-12, 1e-12)`, or, if ``steps`` are given, `EventCorrected()`, of second order:
            both can be restarted from (q, v).
        tol: largest residual |P(x) - x| relative to 1 + |x|; by default eps^(2/3).
        iterations: largest number of evaluations of the map.
        extrapolate: compute the orbit also with 2 and 4 times the steps, and extrapolate state and monodromy from the
            two finest runs (Richardson; second order for `EventCorrected`, first otherwise).

    Returns:
        `PeriodicOrbit`.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, type or value, a start is not admissible, or a surface is
            given and force or constraints depend on t.
    """
    check_no_noise(problem, REPEATS)
    check_counts(iterations=iterations)
    call = Call(problem, q0, v0, steps=steps, t0=t0, **options)
    program, lanes, single = prepare_strobe(call, period, cycles)
    if extrapolate and program.scheme.traits.by_tolerance:
        raise ValueError(
            f"extrapolate=True goes by powers of h, on which the error of {type(program.scheme).__name__} does not "
            "depend: leave it out "
            "(smaller rtol and atol make the error smaller), or give steps and a scheme that goes by them"
        )
    equations = ShootingEquations.of(program, lanes, surface)
    dtype = np.dtype(lanes.motion.q0.dtype)
    tol = float(np.finfo(dtype).eps) ** (2 / 3) if tol is None else tol
    if not real_number("tol", tol) > 0:
        raise ValueError(f"tol must be positive, got {tol!r}")
    if extrapolate and steps is not None:
        check_steps(steps, cycles * 2 ** (LEVELS - 1), "cycles, and 4 for extrapolate=True")
    found = [_solve(equations, lanes, tol, iterations)]
    for level in range(1, LEVELS if extrapolate and steps is not None else 1):
        # the same lanes with smaller steps, from the orbit before
        number = (steps or 1) * cycles * 2**level
        finer: Arguments = {"h": lanes.motion.h / 2**level, "q0": found[-1].q, "v0": found[-1].v}
        if surface is not None:
            t1 = lanes.motion.t0 + found[-1].period
            finer |= {"t1": t1, "h": (t1 - lanes.motion.t0) / number}
        smaller = lanes.replace(**finer).with_steps(number)
        found.append(_solve(equations, smaller, tol, iterations))
    orbit = found[-1]
    if extrapolate:
        orbit = _extrapolate(found, program.scheme.traits.order or 1, surface is not None)
    orbit = replace(orbit, status=lost_derivatives("the monodromy", orbit.status, orbit.monodromy))
    orbit = replace(orbit, status=_without_remarks(orbit, program.scheme))
    lost = ~orbit.converged
    monodromy = np.where(lost[:, None, None], np.nan, orbit.monodromy)
    orbit = replace(orbit, monodromy=monodromy, multipliers=equations.multipliers(monodromy))
    return _first(orbit) if single else orbit


def _solve(equations: ShootingEquations, lanes: Lanes, tol: float, iterations: int) -> PeriodicOrbit:
    """Solves the shooting ``equations`` by Newton's method from the starts of all ``lanes``;
    multipliers are left NaN."""
    problem = equations.program.problem
    count, d = lanes.motion.q0.shape
    y, matrix, status, residual, used, done = damped_newton(
        lambda y: equations.evaluate(lanes, y)[:3],
        lambda y: equations.can_start(lanes, y),
        equations.unknowns(lanes),
        tol,
        iterations,
    )
    at = equations.at(lanes, y)  # on the joints
    motion, x = at.motion, np.concatenate([at.motion.q0, at.motion.v0], axis=1)
    near = near_impact(problem, at, x, equations.program.scheme.resolution(motion))
    status = status | np.where(near, int(Status.DERIVATIVE_AT_END), 0).astype(status.dtype)
    done = done & ((status & int(FAILURES)) == 0) & equations.crosses(matrix, y)
    t0, end = (np.broadcast_to(np.asarray(t), (count,)) for t in (motion.t0, motion.t1))
    none = np.full((count, 2 * d), np.nan, complex)
    return PeriodicOrbit(
        x[:, :d], x[:, d:], t0, end - t0, none, equations.return_map(matrix), residual, used, done, status
    )


def _without_remarks(orbit: PeriodicOrbit, scheme: Scheme) -> np.ndarray:
    """Returns the status (B,), for orbits with a zero monodromy matrix without the bits on derivatives.

    Lasting contact in all directions makes the monodromy matrix zero. It is then right
    whatever happens before that contact.
    """
    zero = FORGOTTEN * max(float(np.finfo(orbit.monodromy.dtype).eps), float(getattr(scheme, "rtol", 0.0)))
    forgets = np.all(np.abs(orbit.monodromy) <= zero, axis=(1, 2))
    return np.where(forgets, orbit.status & ~int(Status.DERIVATIVE_EVENTS), orbit.status)


def _extrapolate(found: list[PeriodicOrbit], order: int, unknown: bool) -> PeriodicOrbit:
    """Extrapolates orbits with steps h, h/2, h/4 (Richardson); ``order``: order of the scheme; ``unknown``: whether
    periods were unknowns."""
    coarse, middle, fine = found
    factor = 1 / (2**order - 1)

    def finest(name: str) -> np.ndarray:
        return getattr(fine, name) + factor * (getattr(fine, name) - getattr(middle, name))

    def change(a: PeriodicOrbit, b: PeriodicOrbit, *names: str) -> np.ndarray:
        parts = [np.abs(getattr(a, name) - getattr(b, name)).reshape(len(a.q), -1) for name in names]
        return np.max(np.concatenate(parts, axis=1), axis=1)

    def observed_order(*names: str) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log2(change(coarse, middle, *names) / change(middle, fine, *names))

    orders = {"state": observed_order("q", "v"), "monodromy": observed_order("monodromy")}
    return replace(
        fine,
        q=finest("q"),
        v=finest("v"),
        period=finest("period"),
        monodromy=finest("monodromy"),
        iterations=np.sum([one.iterations for one in found], axis=0),
        converged=coarse.converged & middle.converged & fine.converged,
        status=coarse.status | middle.status | fine.status,
        error=factor * change(middle, fine, "q", "v"),
        order=orders | ({"period": observed_order("period")} if unknown else {}),
    )


def _first(orbit: PeriodicOrbit) -> PeriodicOrbit:
    """The orbit of the first lane, without its lane axis."""
    values = {
        name: value[0]
        for name, value in vars(orbit).items()
        if value is not None and name not in ("order", "naming", "made")
    }
    order = orbit.order and {name: value[0] for name, value in orbit.order.items()}
    return replace(orbit, **values, order=order)
