"""Optimal control across impacts, by multiple shooting with the Jacobians of the motion, for many starts at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, known_numbers, real_number
from ..mechanics.problem import Problem
from ..mechanics.status import describe
from ..results import Arrays, Solution
from ..results.result import Result
from ..results.save import Save, SaveLike
from ..simulation.validation import check_problem
from .checks import check_no_noise
from .options import MotionOptions, with_options
from .shooting_steps import How, Intervals, descend


@dataclass(frozen=True, repr=False)
class Shooting(Result):
    """Result of `shoot`: controls and the motion that they make; a batch of starts adds a leading axis B to each array.

    Attributes:
        controls: controls of the N intervals (N, k).
        t: times of the nodes (N + 1,).
        q, v: states at the nodes (N + 1, d).
        cost: sum of the squares of all residuals, ().
        violation: largest jump of the state at a node and largest target residual, ().
        optimality: largest cosine between the residuals and a direction in which the free controls can change them, ().
        iterations: number of steps, those included that were not accepted, ().
        converged: whether violation and optimality meet the tolerance, ().
        status: `Status` bits of the motions, of a start that failed those of its last step too, ().
    """

    controls: np.ndarray
    t: np.ndarray
    q: np.ndarray
    v: np.ndarray
    cost: np.ndarray
    violation: np.ndarray
    optimality: np.ndarray
    iterations: np.ndarray
    converged: np.ndarray
    status: np.ndarray

    @property
    def best(self) -> int:
        """Number of the start with the least cost among those that converged; ValueError if none did."""
        if not np.any(self.converged):
            raise ValueError(f"none of {np.size(self.converged)} starts converged: see raise_if_failed()")
        return int(np.argmin(np.where(self.converged, self.cost, np.inf)))

    def raise_if_failed(self) -> Shooting:
        """Returns these results, or raises RuntimeError if no start converged."""
        if not np.any(self.converged):
            bits = int(np.bitwise_or.reduce(np.ravel(self.status)))
            raise RuntimeError(
                f"none of {np.size(self.converged)} starts converged (least violation {np.min(self.violation):.3g}, "
                "least optimality "
                f"{np.min(self.optimality):.3g}): give more iterations, more intervals, other starts, or a target that "
                f"can be reached\n{describe(bits)}"
            )
        return self

    def _arrays(self) -> Arrays:
        lanes = "lane " * np.ndim(self.cost)
        found = self._along(f"{lanes}interval control", "controls") | self._along(f"{lanes}node", "t")
        found |= self._along(f"{lanes}node coordinate", "q", "v")
        return found | self._along(lanes, "cost", "violation", "optimality", "iterations", "converged", "status")


def same(u: Array) -> Array:
    """The control itself."""
    return u


def nothing(solution: Solution, u: Array) -> Array:
    """No residuals."""
    return jnp.zeros(0, solution.q.dtype)


@with_options(MotionOptions)
def shoot(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    controls: ArrayLike,
    *,
    t1: float,
    t0: float = 0.0,
    control: Callable[[Array], object] = same,
    path: Callable[[Solution, Array], Array] = nothing,
    end: Callable[[Solution, Array], Array] = nothing,
    target: Callable[[Solution, Array], Array] = nothing,
    bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    times: tuple[float, ...] = (),
    save: SaveLike = "final",
    tol: float = 1e-5,
    iterations: int = 200,
    **options: Unpack[MotionOptions],
) -> Shooting:
    """Finds controls of N intervals of equal length that make the sum of squares of residuals least,
    from one start or from many at once.

    The minimum is a local one, with the impacts in an order that a start leads to: give many starts,
    and take ``found.best``.

    Args:
        problem: the mechanical system, whose functions take their controls from args.
        q0, v0: state at t0, (d,) or (B, d).
        controls: controls to begin with, (N, k), or (B, N, k) for B starts: constant in each interval.
        t1, t0: final time, or a guess of it with ``times``; and the initial one [s].
        control: ``control(u) -> args`` of an interval with the controls u (k,); by default u itself. With N = 1, u are
            parameters of any function of time in the force.
        path: ``path(solution, u) -> (m,)``, of the motion of an interval: the squares times its length are added, so
            that ``lambda solution, u: u`` costs ∫ u² dt, and ``solution.q[-1]`` the positions at the nodes; with
            ``save=`` there are more rows, or events.
        end: ``end(solution, u) -> (m,)``, residuals of the last interval.
        target: ``target(solution, u) -> (c,)``, what must be zero of the last interval.
        bounds: least and largest controls, numbers or (N, k), (k,).
        times: least and largest final time if it is free: then it is an unknown too.
        save: as in `solve`, of each interval; hashable: "final", `Events` or every k-th step.
        tol: largest ``violation`` relative to 1 + the largest number of the states, and largest ``optimality``.
        iterations: largest number of steps.
        e, friction, static_friction, scheme, projection: as in `solve`, of all motions; by default `EventDriven()`.

    Returns:
        `Shooting`. A start that fails is flagged and does not affect the others.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, type or value.
    """
    check_problem(problem)
    check_counts(iterations=iterations)
    check_no_noise(problem, "shoot finds controls of one motion: give problem.replace(noise=None)")
    if problem.jointed:
        raise ValueError(
            "problem: shoot has no joints, whose states at nodes would leave them; state independent coordinates"
        )
    if options.pop("args") is not None:
        raise ValueError("args: the args of an interval are control(u): give control=lambda u: {..., 'force': u}")
    if not real_number("tol", tol) > 0:
        raise ValueError(f"tol must be positive, got {tol!r}")
    u = known_numbers("controls", controls).astype(float)
    states = [known_numbers(name, x).astype(float) for name, x in (("q0", q0), ("v0", v0))]
    if u.ndim not in (2, 3) or 0 in u.shape:
        raise ValueError(
            f"controls must be (N, k), k controls of N intervals, or (B, N, k) for B starts, got {u.shape}"
        )
    if any(x.ndim not in (1, 2) or x.shape[-1] != states[0].shape[-1] for x in states):
        raise ValueError(f"q0 and v0 must be (d,) or (B, d), got {states[0].shape} and {states[1].shape}")
    counts = {len(u)} if u.ndim == 3 else set()
    counts |= {len(x) for x in states if x.ndim == 2}
    if len(counts) > 1:
        raise ValueError(f"controls, q0 and v0 have {sorted(counts)} starts: give as many of each, or one")
    count = max(counts, default=1)
    u = np.broadcast_to(u, (count, *u.shape[-2:]))
    start = np.concatenate([np.broadcast_to(x, (count, x.shape[-1])) for x in states], axis=1)
    first, last = real_number("t0", t0), real_number("t1", t1)
    between = tuple(real_number("times", x) for x in times) or (last, last)
    if len(between) != 2 or not first < between[0] <= last <= between[1]:
        raise ValueError(
            f"times={times!r}, t1={t1!r}: give t0 < least final time <= t1 <= largest; nothing for a fixed one"
        )
    try:
        low, high = (np.broadcast_to(known_numbers("bounds", b), u.shape[1:]).ravel() for b in bounds)
    except ValueError:
        raise ValueError(f"bounds must be two numbers or arrays of the shape of the controls, {u.shape[1:]}") from None
    if np.any(low > high) or not all(np.isfinite(x).all() for x in (u, start)):
        raise ValueError(
            "controls and states must be finite, and the lower of the bounds must not exceed the upper one"
        )
    given = {name: x for name, x in options.items() if x is not None}
    how = How(
        control,
        path,
        end,
        target,
        Save.of(save),
        tuple((k, given.pop(k)) for k in ("scheme", "projection") if k in given),
    )
    intervals = Intervals(problem, how, given, start, first, u.shape[1:])
    w = np.concatenate([np.clip(u.reshape(count, -1), low, high), np.full((count, 1), last)], axis=1)
    limits = np.append(low, between[0]), np.append(high, between[1])
    w, states, *others = descend(intervals, w, limits, tol, iterations)
    t = first + (w[:, -1:] - first) * np.linspace(0, 1, u.shape[1] + 1)
    found = Shooting(w[:, :-1].reshape(u.shape), t, *np.split(states, 2, axis=2), *others)
    return found if counts else Shooting(*(x[0] for name, x in vars(found).items() if name != "made"))
