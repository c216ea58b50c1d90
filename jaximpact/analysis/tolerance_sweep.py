"""Errors of one motion over a sequence of tolerances, for schemes that choose their steps by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, is_pair, is_traced, is_whole, known_numbers, real
from ..mechanics.scheme import Scheme
from ..results import Solution
from ..simulation.call import Arguments

# rows at which errors are taken, if the user gives no number: a prime, as impacts fall on simple fractions of a motion
ROWS = 13
DECADES = 10.0 ** -np.arange(3, 13)  # tolerances that are tried by default
FINEST = 32  # roundings below which no scheme goes, as `EventDriven.tolerance`
BELOW = 100  # times by which the tolerance of a reference lies below the finest of the runs

Run = Callable[..., Iterator[Solution]]  # yields the motion for each number of steps by a ``scheme``


def exact_motion(
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], t: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and velocities, each of the given shape (k, d), of an exact motion at times t (k,), checked."""
    found = exact(t)
    if not is_pair(found):
        raise ValueError(f"exact(t) must return a pair (q, v), got {type(found).__name__}")
    # float64 whatever jax computes in
    q, v = (known_numbers(f"exact(t): {name}", value) for name, value in zip("qv", found, strict=True))
    for name, value in (("q", q), ("v", v)):
        if np.shape(value) != shape:
            raise ValueError(
                f"exact(t) must return q and v of shape {shape} for t of shape {t.shape}, {name} has {np.shape(value)}"
            )
    return q, v


def checked_tolerances(rtols: ArrayLike | None) -> np.ndarray:
    """The tolerances (k,) that a user gave, the largest first; raises unless they are at least two
    different numbers above 0."""
    found = real("rtols", rtols).astype(np.float64)
    if found.ndim != 1 or len(found) < 2 or not np.all(found > 0) or len(set(found)) < len(found):
        raise ValueError(f"rtols must be at least two different numbers above 0, got {rtols!r}")
    return np.sort(found)[::-1]


def check_scheme(scheme: Scheme, steps: Sequence[int] | int | None, phases: int, graph: bool) -> None:
    """Raises unless a sweep over tolerances can be made by the scheme with these options of `convergence`."""
    name = type(scheme).__name__
    if not scheme.traits.by_tolerance:
        raise ValueError(f"rtols: {name} goes by steps: give steps, or scheme=EventDriven()")
    if not (hasattr(scheme, "rtol") and hasattr(scheme, "atol")):
        raise ValueError(f"convergence sweeps rtol and atol of a scheme without order, and {name} has none")
    if is_traced(scheme.rtol, scheme.atol):
        raise TypeError("convergence needs known numbers rtol and atol of the scheme, not traced ones")
    if phases != 1 or graph:
        raise ValueError(f"phases and graph belong to fixed steps, which {name} has not: leave them out")
    if steps is not None and not is_whole(steps, 1):
        raise ValueError(
            f"steps: {name} chooses its own; errors over rtols=(1e-5, 1e-7, ...) are taken at a grid of steps={ROWS} "
            "rows, one "
            f"number, got {steps!r}"
        )
    check_counts(steps=ROWS if steps is None else steps)


def errors_by_tolerance(
    run: Run,
    scheme: Any,
    rtols: ArrayLike | None,
    steps: Sequence[int] | int | None,
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None,
    impulse: ArrayLike | None,
) -> Arguments:
    """Fields of a `Convergence` over ``rtols``, and the floor of errors.

    ``run(counts, scheme)`` yields motions; ``steps`` is the number of rows after the start, at which errors are taken.
    Arguments as in `convergence`.
    """
    share, rows = float(scheme.atol) / float(scheme.rtol), ROWS if steps is None else steps
    tight = lambda rtol: replace(scheme, rtol=float(rtol), atol=float(rtol) * share)
    solve: Callable[..., Solution] = lambda rtol, **options: next(
        run([rows], scheme=tight(rtol), **options)
    ).raise_if_failed()
    tolerances = DECADES if rtols is None else checked_tolerances(rtols)
    runs = [solve(tolerances[0])]
    eps = float(np.finfo(np.asarray(runs[0].q).dtype).eps)
    if rtols is None:
        tolerances = tolerances[tolerances > BELOW * eps]
    elif tolerances[-1] < FINEST * eps:
        raise ValueError(
            f"rtols: {tolerances[-1]:g} is below what {runs[0].q.dtype} can hold, {FINEST * eps:.1e}: give larger ones"
        )
    runs += [solve(rtol, remarks=False) for rtol in tolerances[1:]]
    t = np.asarray(runs[0].t, np.float64)
    if exact is not None:
        q, v = exact_motion(exact, t, np.shape(runs[0].q))
        words, floor = None, {}
    else:
        least = max(tolerances[-1] / BELOW, FINEST * eps)
        fine, near = (solve(rtol, remarks=False) for rtol in (least, 10 * least))
        q, v, impulse = (np.asarray(x, np.float64) for x in (fine.q, fine.v, np.asarray(fine.impulse)[-1]))
        words = f"{type(scheme).__name__} with rtol = {least:.0e}"
        floor = errors_at_rows(near, q, v, impulse)
    noise = {"position": eps * np.max(np.abs(q)), "velocity": eps * (t[-1] - t[0]) * np.max(np.abs(v))}
    noise["impulse"] = eps * max(float(np.max(np.abs(one.impulse), initial=0.0)) for one in runs)
    errors = [errors_at_rows(one, q, v, impulse) for one in runs]
    trials = np.array([int(one.iterations) for one in runs])
    return {
        **{name: np.array([found[name] for found in errors]) for name in noise},
        "steps": trials,
        "h": (t[-1] - t[0]) / np.maximum(trials, 1),
        "rtols": tolerances,
        "penetration": np.array([float(one.penetration) for one in runs]),
        "residual": np.array([float(one.residual) for one in runs]),
        "estimate": None if runs[0].error is None else np.array([one.error for one in runs], float),
        "reference": words,
        "floor": {name: float(max(least, floor.get(name, 0.0))) for name, least in noise.items()},
    }


def errors_at_rows(one: Solution, q: np.ndarray, v: np.ndarray, impulse: ArrayLike | None) -> dict[str, float]:
    """Errors of a solution by name, at its own rows: in position the largest, in velocity the integral over time,
    and of the total impulse.

    ``q``, ``v`` (k, d): the right motion at the rows; ``impulse`` (m,) its total impulses, None if they are not known.
    The last row has no part in the error of the velocity, as an impact may lie there.
    """
    t, position = np.asarray(one.t, np.float64), np.asarray(one.q, np.float64) - q
    off = np.abs(np.asarray(one.v, np.float64) - v)[:-1]
    total = float("nan")
    if impulse is not None and np.size(impulse):
        if np.shape(impulse) != np.shape(one.impulse)[1:]:
            raise ValueError(f"impulse must have shape {np.shape(one.impulse)[1:]}, got {np.shape(impulse)}")
        total = float(np.max(np.abs(np.asarray(one.impulse)[-1] - np.asarray(impulse))))
    velocity = float(np.sum(off * np.diff(t)[:, None]))
    return {"position": float(np.max(np.abs(position))), "velocity": velocity, "impulse": total}
