"""Errors and observed orders as h -> 0, in the norms in which the schemes converge.

Positions converge uniformly, velocities in L1 (never uniformly: impacts are late by O(h)), impulses weakly as
measures; hence sup norm, L1 norm and total impulse (Paoli 2010, theorem 2; Bernicot-Lefebvre-Lepot 2010, theorem 3.1).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..integrate import Lane, Plan, Solution, run
from ..problem import Problem
from ..projection.base import Projection
from ..schemes.base import Inputs, Scheme
from ..validate import JaximpactWarning, canonical, check_start, choose_methods

SUBSAMPLES = 4  # midpoints per step at which velocities are compared


@dataclass(frozen=True)
class Convergence:
    """Errors of a sweep over h, one entry for each step count; with several phases the worst of each band of counts.

    Attributes:
        steps: numbers of steps (k,).
        h: step sizes (k,) [s].
        position: sup-norm error of the positions over the nodes (k,).
        velocity: L1 error of the velocities over time, summed over components (k,).
        impulse: largest error of a constraint's total impulse (k,); NaN where no reference is known.
        penetration, residual: worst penetration and KKT residual of each run (k,).
        reference: what the errors are measured against, in words.
    """

    steps: np.ndarray
    h: np.ndarray
    position: np.ndarray
    velocity: np.ndarray
    impulse: np.ndarray
    penetration: np.ndarray
    residual: np.ndarray
    reference: str

    def orders(self) -> dict[str, float]:
        """Least-squares slopes of log error over log h; NaN where fewer than two errors are known and positive."""
        return {name: slope(self.h, getattr(self, name)) for name in ("position", "velocity", "impulse")}

    def table(self) -> str:
        """The sweep as text, with the observed orders below."""
        lines = [f"{'steps':>8} {'h':>10} {'position':>11} {'velocity L1':>11} {'impulse':>11} {'penetration':>11}"]
        for row in zip(self.steps, self.h, self.position, self.velocity, self.impulse, self.penetration, strict=True):
            lines.append("{:8d} {:10.3e} {:11.3e} {:11.3e} {:11.3e} {:11.3e}".format(*row))
        orders = self.orders()
        lines.append(
            f"{'order':>8} {'':>10} {orders['position']:11.2f} {orders['velocity']:11.2f} {orders['impulse']:11.2f}"
        )
        return "\n".join([*lines, f"against {self.reference}"])

    def plot(self, path, *, title: str = ""):
        """Write the picture of the errors; needs matplotlib."""
        from ..plots import plot_convergence

        return plot_convergence(self, path, title=title)


def slope(h: np.ndarray, error: np.ndarray) -> float:
    """Least-squares slope of log(error) over log(h)."""
    known = np.isfinite(error) & (error > 0)
    if known.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(h[known]), np.log(error[known]), 1)[0])


def prime_steps(first: int = 100, last: int = 5000, count: int = 6) -> list[int]:
    """Primes nearest above a geometric sequence from first to last.

    With a prime number of steps T/h shares no factor with impact times: aligned steps superconverge and fool the eye.
    """

    found: list[int] = []
    for n in np.geomspace(first, last, count):
        found += next_primes(max(int(n), found[-1] + 1 if found else 2), 1)
    return found


def next_primes(n: int, count: int) -> list[int]:
    """The first ``count`` primes from n on."""
    found: list[int] = []
    while len(found) < count:
        if n > 1 and all(n % k for k in range(2, int(n**0.5) + 1)):
            found.append(n)
        n += 1
    return found


def convergence(
    problem: Problem,
    q0,
    v0,
    *,
    t1,
    steps: Sequence[int] | None = None,
    phases: int = 1,
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
    impulse=None,
    t0=0.0,
    scheme: Scheme | None = None,
    projection: Projection | None = None,
    args: Any = None,
    e=None,
) -> Convergence:
    """Run one motion with several step sizes and measure its errors and orders.

    Args:
        problem, q0, v0, t0, t1, scheme, projection, args, e: as in `solve`.
        steps: numbers of steps, increasing; h = (t1 - t0)/steps. Default `prime_steps()`.
        phases: an error depends on where within its step each impact falls; with phases > 1 every count stands for a
            band of that many consecutive primes, whose worst error is reported. Orders then scatter much less.
        exact: ``exact(t) -> (q, v)`` for t of shape (k,), each (k, d): a closed form or any trusted reference. Without
            it the run with the most steps is the reference and is left out of the errors.
        impulse: exact total impulse of each constraint over [t0, t1], (m,).

    Returns:
        A `Convergence`, whose ``table()`` and ``plot(path)`` show it.

    Raises:
        ValueError, TypeError: as `solve`. RuntimeError: a run failed; the message decodes its status.
    """
    counts = prime_steps() if steps is None else list(steps)
    whole = all(isinstance(n, int | np.integer) and n >= 1 for n in counts)
    if len(counts) < 2 or not whole or sorted(set(counts)) != counts:
        raise ValueError(f"steps must be at least two increasing whole numbers >= 1, got {list(counts)}")
    if impulse is not None and exact is None:
        raise ValueError("impulse goes with exact: without an exact motion the finest run is the reference of both")
    if phases < 1:
        raise ValueError(f"phases must be at least 1, got {phases}")
    scheme, projection = choose_methods(scheme, projection)
    bands = [next_primes(n, phases) if phases > 1 else [n] for n in counts]
    runs = sweep(problem, q0, v0, t0, t1, [n for band in bands for n in band], scheme, projection, args, e)

    reference = "the exact motion"
    if exact is None:
        *_, finest = sweep(problem, q0, v0, t0, t1, bands.pop(), scheme, projection, args, e)
        finest.raise_if_failed()
        exact, impulse = interpolant(finest), finest.impulse[-1]
        reference = f"the run with {len(finest.t) - 1} steps"
    rows = []
    for band in bands:
        errors = []
        for _ in band:
            solution = next(runs).raise_if_failed()
            errors.append((*_errors(solution, exact, impulse), float(solution.penetration), float(solution.residual)))
        rows.append(np.max(errors, axis=0))
    h = np.array([(float(t1) - float(t0)) / np.mean(band) for band in bands])
    position, velocity, total, penetration, residual = np.array(rows).T
    first = np.array([band[0] for band in bands])
    return Convergence(first, h, position, velocity, total, penetration, residual, reference)


def sweep(problem, q0, v0, t0, t1, counts, scheme, projection, args, e) -> Iterator[Solution]:
    """Every step of one motion for each number of steps, one trace for all of them."""
    plan = Plan(None, False, 1, max(counts), None)
    for n in counts:
        data = canonical(problem, q0, v0, t0, t1, None, n, e, args, scheme)
        remark = check_start(data) if n == counts[0] else None
        if remark:
            warnings.warn(remark, JaximpactWarning, stacklevel=3)
        count = jnp.asarray(n, jnp.int32)
        inputs = Inputs(data.t0, data.h, data.e, data.args)
        lane = Lane(data.q0, data.v0, data.t1, count, count, jnp.zeros((0,), data.q0.dtype), inputs)
        found = run(data.problem, scheme, projection, lane, plan)
        rows = {}
        for name in ("t", "q", "v", "z", "impulse", "energy"):
            value = getattr(found, name)
            # rows beyond this run's steps are unused; the last row is always the final state
            rows[name] = None if value is None else np.concatenate([np.asarray(value)[:n], np.asarray(value)[-1:]])
        yield Solution(**{**vars(found), **rows})


def interpolant(solution: Solution) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The piecewise affine motion through the rows of a solution, as a function of time."""
    t, q = np.asarray(solution.t), np.asarray(solution.q)

    def motion(times):
        step = np.clip(np.searchsorted(t, times, side="right") - 1, 0, len(t) - 2)
        velocity = (q[step + 1] - q[step]) / (t[step + 1] - t[step])[:, None]
        return q[step] + (times - t[step])[:, None] * velocity, velocity

    return motion


def _errors(solution: Solution, exact, impulse) -> tuple[float, float, float]:
    t, q = np.asarray(solution.t, np.float64), np.asarray(solution.q, np.float64)
    for name, value in zip("qv", exact(t), strict=True):
        if np.shape(value) != q.shape:
            raise ValueError(
                f"exact(t) must return q and v of shape {q.shape} for t of shape {t.shape}, {name} has {np.shape(value)}"
            )
    position = float(np.max(np.abs(q - exact(t)[0])))
    width = np.diff(t)
    chord = np.diff(q, axis=0) / width[:, None]
    velocity = 0.0
    for j in range(SUBSAMPLES):
        _, v = exact(t[:-1] + (j + 0.5) / SUBSAMPLES * width)
        velocity += float(np.sum(np.abs(chord - v) * width[:, None])) / SUBSAMPLES
    total = float("nan")
    if impulse is not None and np.size(impulse):
        if np.shape(impulse) != np.shape(solution.impulse)[1:]:
            raise ValueError(f"impulse must have shape {np.shape(solution.impulse)[1:]}, got {np.shape(impulse)}")
        total = float(np.max(np.abs(np.asarray(solution.impulse)[-1] - np.asarray(impulse))))
    return position, velocity, total
