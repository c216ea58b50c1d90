"""One prediction of a Kalman filter or smoother across impacts: mean, covariance and
Jacobian of the state after a motion.

References: N. J. Kong, J. J. Payne, G. Council, A. M. Johnson, The Salted Kalman Filter, Automatica 131 (2021) 109752,
for linear prediction by saltation matrices and for starts beyond a surface; I. Arasaratnam, S. Haykin, Cubature Kalman
filters, IEEE TAC 54 (2009) 1254-1269, for the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import as_tuple, check_choice, is_traced, real_array
from ..mechanics.labels import UNNAMED
from ..mechanics.problem import Problem
from ..mechanics.status import FAILURES, Status, as_status, describe
from ..mechanics.user_functions import named_errors
from ..results import Solution
from ..results.save import Save, SaveLike
from ..results.sensitivities import components
from ..simulation.call import Arguments
from ..simulation.public import solve
from ..simulation.validation import check_problem
from .beyond_surfaces import lift
from .checks import check_no_noise, parameter_path
from .options import MotionOptions, with_options

METHODS = ("linear", "sigma")
NUMBERS = ("e", "friction", "static_friction", "args")  # options whose numbers may be estimated
ROUNDING = 1e3  # units of round-off, of symmetry and eigenvalues of a covariance that is given


class Prediction(NamedTuple):
    """Result of `predict`: the joint normal distribution of the state x after a motion, and of ``output``,
    by first and second moments.

    Attributes:
        mean: means of x, and after them of the output, (..., n + k).
        covariance: their covariance (..., n + k, n + k).
        jacobian: their derivative by the state before, (..., n + k, n); by sigma points the linear regression on it.
        cross: covariance of the state before with them, (..., n, n + k): the gain of a smoother is
            ``cross @ inv(covariance)``.
        status: `Status` bits of the motions, (...).
    """

    mean: Array
    covariance: Array
    jacobian: Array
    cross: Array
    status: Array

    def raise_if_failed(self) -> Prediction:
        """Returns this prediction, or raises RuntimeError with cause and cure; not under a transformation of jax."""
        bits = int(np.bitwise_or.reduce(np.ravel(self.status)))
        if bits & int(FAILURES):
            count = int(np.sum((np.asarray(self.status) & int(FAILURES)) != 0))
            raise RuntimeError(
                f"{count} of {np.size(self.status)} predictions failed: {describe(bits & int(FAILURES))}"
            )
        return self


def nothing(solution: Solution) -> Array:
    """No output."""
    return jnp.zeros(0, solution.q.dtype)


@with_options(MotionOptions)
def predict(
    problem: Problem,
    mean: ArrayLike,
    covariance: ArrayLike,
    t: ArrayLike,
    *,
    t0: ArrayLike = 0.0,
    unknown: str | Sequence[str] = (),
    method: str = "linear",
    output: Callable[[Solution], Array] = nothing,
    save: SaveLike = "final",
    **options: Unpack[MotionOptions],
) -> Prediction:
    """Predicts the state x = (q, v, unknown parameters) at time t from its mean and covariance at t0, across impacts.

    A pure function of jax: it may stand in `jax.jit`, `jax.vmap` and `jax.lax.scan`. Noise of the motion is the user's
    to add to ``covariance``.

    Measurements can reach a filter beyond a surface, where no motion starts: a mean with gaps below zero stands for the
    motion from the nearest position that is admissible, extrapolated linearly,
    so that a ball that was measured below the floor has bounced.

    Args:
        problem: the mechanical system; linkages with joints are refused,
            as a covariance of all coordinates does not keep them.
        mean: mean of x at t0, (..., n): positions, velocities and the parameters named in ``unknown``.
        covariance: its covariance (..., n, n), symmetric and positive semidefinite.
        t: time of the prediction > t0 [s], () or (...).
        t0: time of the mean [s], () or (...).
        unknown: names of the parameters in x, as in `bifurcation`: "e", "friction", "drag" or "args.drag", also "k[1]",
            or "args" for all of them; they stay constant. Values in ``args`` that are named are not used.
        method: "linear", an extended Kalman filter's, by the Jacobian that is right across impacts; or "sigma", by 2n
            motions from points at √n standard deviations around the mean,
            for when some of them strike before t and others after.
        output: ``output(solution) -> (k,)`` of one motion, what else is measured of it: its joint distribution with x
            is returned. With ``save=Events(impacts=1)``, ``lambda solution: solution.events.t``
            is the time of the next bounce.
        save: as in `solve`, for ``output``; hashable: `Events`, "final" or every k-th step.
        args, e, friction, static_friction, scheme, projection: as in `solve`, for all motions;
            by default `EventDriven()`.

    Returns:
        `Prediction`. A failed motion, and an output that does not exist (a bounce after t),
        has NaN and a status (NON_FINITE).

    Raises:
        ValueError, TypeError: a shape, a name or a number is wrong; a covariance is not symmetric or is indefinite.
            Traced numbers cannot raise, and set INPUT_INVALID.
    """
    check_problem(problem)
    check_choice("method", method, METHODS)
    check_no_noise(
        problem,
        "predict follows one motion: give problem.replace(noise=None), and add the noise's covariance to its own",
    )
    if problem.jointed:
        raise ValueError(
            "problem: predict has no joints: a covariance of all coordinates would leave them; state independent "
            "coordinates"
        )
    x, spread, lead = _checked(mean, covariance)
    times = []
    for name, value in (("t0", t0), ("t", t)):
        time = jnp.asarray(real_array(name, value), x.dtype)
        if time.shape not in ((), lead):
            raise ValueError(
                f"{name} must be a number, or have the leading axes {lead} of mean, got shape {time.shape}"
            )
        times.append(jnp.broadcast_to(time, lead).ravel())
    if not is_traced(times) and not bool(jnp.all(times[1] > times[0])):
        raise ValueError("t must be later than t0, the time of the mean (t0=...)")
    given = {name: value for name, value in options.items() if value is not None}
    methods = {name: given.pop(name) for name in ("scheme", "projection") if name in given}
    names = tuple(_full_name(name, given.get("args")) for name in as_tuple(unknown))
    if "e" in names and "e" not in given:
        given["e"] = jnp.ones((), x.dtype)  # replaced
    size = len(_places(given, names))
    if (x.shape[-1] - size) % 2 or x.shape[-1] <= size:
        raise ValueError(
            f"mean has {x.shape[-1]} entries, and must have 2 d + {size}: d positions, d velocities and the {size} "
            f"unknown parameters {names}"
        )
    how = _How(method, names, size, output, Save.of(save), tuple(methods.items()))
    found = _predict(problem, how, x.reshape(-1, x.shape[-1]), spread.reshape(-1, *spread.shape[-2:]), *times, given)
    return Prediction(*(y.reshape(*lead, *y.shape[1:]) for y in found))


@dataclass(frozen=True)
class _How:
    """What of a prediction jax has to know when it traces."""

    method: str
    unknown: tuple[str, ...]
    size: int  # of the unknown parameters
    output: Callable[[Solution], Array]
    save: Save
    methods: tuple[tuple[str, Any], ...]


def _checked(mean: ArrayLike, covariance: ArrayLike) -> tuple[Array, Array, tuple[int, ...]]:
    """The mean (..., n) and covariance (..., n, n) as arrays of one dtype, and their leading axes."""
    x, spread = real_array("mean", mean), real_array("covariance", covariance)
    if x.ndim == 0 or spread.shape != (*x.shape, x.shape[-1]):
        raise ValueError(
            f"covariance must have shape {(*x.shape, *x.shape[-1:])} with a mean of shape {x.shape}, got {spread.shape}"
        )
    arrays = jnp.asarray(x), jnp.asarray(spread, x.dtype)
    if is_traced(x, spread):
        return *arrays, x.shape[:-1]
    for name, array in (("mean", x), ("covariance", spread)):
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name} holds NaN or infinite numbers: predict from finite ones, after looking at the status of the "
                "step before"
            )
    bound = ROUNDING * np.finfo(spread.dtype).eps * np.max(np.abs(spread), axis=(-2, -1), initial=0.0)
    uneven = np.abs(spread - np.swapaxes(spread, -2, -1))
    if np.any(np.max(uneven, axis=(-2, -1), initial=0.0) > bound):
        raise ValueError("covariance is not symmetric: give (C + C.T) / 2")
    if np.any(np.linalg.eigvalsh(spread).min(axis=-1, initial=0.0) < -bound):
        raise ValueError(
            "covariance is not positive semidefinite, it has a negative eigenvalue: update it in Joseph's form, (1 - K "
            "H) C (1 - K H)' + K R K'"
        )
    return *arrays, x.shape[:-1]


def _numbers(given: Arguments) -> Arguments:
    """The options ``given`` whose numbers may be estimated."""
    return {name: given[name] for name in NUMBERS if name in given}


def _full_name(name: str, args: object) -> str:
    """Returns the name of a parameter with its root: "args.k[1]" for "k[1]", "e" for "problem.restitution"."""
    one, bracket, index = name.partition("[")
    return name if one == "args" else ".".join(parameter_path(one, args)) + bracket + index


def _places(given: Arguments, unknown: tuple[str, ...]) -> list[int]:
    """For each number that is named in ``unknown`` its index among all those in the options ``given``."""
    numbers = jax.tree.map(lambda leaf: np.zeros(np.shape(leaf)), _numbers(given))
    every = components(numbers, 0, UNNAMED)[0] if numbers else ()
    found = []
    for name in unknown:
        places = [k for k, x in enumerate(every) if x == name or x.startswith((f"{name}.", f"{name}["))]
        if not places:
            raise ValueError(
                f"unknown: {name!r} is none of {', '.join(dict.fromkeys(('e', *every)))}: give its option, of any value"
            )
        found += places
    return found


def _with_parameters(given: Arguments, unknown: tuple[str, ...], p: Array) -> Arguments:
    """The options ``given`` with the unknown parameters p in their places."""
    leaves, structure = jax.tree.flatten(_numbers(given))
    ends = np.cumsum([np.size(leaf) for leaf in leaves], dtype=int)
    order = np.array(_places(given, unknown), int)
    values = jnp.zeros(sum(map(np.size, leaves)), p.dtype).at[order].set(p)
    named = np.isin(np.arange(values.size), order)
    parts = zip(leaves, np.split(named, ends[:-1]), jnp.split(values, ends[:-1]), strict=True) if leaves else ()
    new = [jnp.where(n, x, jnp.ravel(leaf)).reshape(np.shape(leaf)) if n.any() else leaf for leaf, n, x in parts]
    return given | jax.tree.unflatten(structure, new)


@partial(jax.jit, static_argnames=("how",))
def _predict(
    problem: Problem, how: _How, x: Array, spread: Array, t0: Array, t: Array, given: dict
) -> tuple[Array, ...]:
    moments = _linear if how.method == "linear" else _sigma
    one = lambda x, spread, t0, t: moments(partial(_moved, problem, how, given, t0, t), x, spread)
    return jax.vmap(one)(x, spread, t0, t)


def _moved(
    problem: Problem, how: _How, given: dict, t0: Array, t: Array, x: Array
) -> tuple[Array, tuple[Array, Array]]:
    """State and output (n + k,) after the motion from x (n,); and beside them (status, the same numbers)."""
    d = (x.size - how.size) // 2
    options = _with_parameters(given, how.unknown, x[2 * d :])
    found = solve(
        problem,
        x[:d],
        x[d : 2 * d],
        t0=t0,
        t1=t,
        save=how.save,
        sensitivity="corrected",
        **dict(how.methods),
        **options,
    )
    with named_errors("output(solution)"):
        more = jnp.asarray(how.output(found), x.dtype)
    if more.ndim != 1:
        raise ValueError(f"output(solution) must be an array (k,), got shape {more.shape}")
    y = jnp.concatenate([found.q[-1], found.v[-1], x[2 * d :], more])
    return y, (found.status, y)


def _start_correction(move: partial, x: Array) -> Array:
    """How far x (n,) must move to be the start of a motion."""
    problem, how, given, t0, t = move.args
    d = (x.size - how.size) // 2
    args = _with_parameters(given, how.unknown, x[2 * d :]).get("args")
    return jnp.zeros_like(x).at[:d].set(lift(problem, t0, t, x[:d], x[d : 2 * d], args))


def _linear(move: partial, x: Array, spread: Array) -> tuple[Array, ...]:
    lift = _start_correction(move, x)
    jacobian, (status, y) = jax.jacfwd(move, has_aux=True)(x + lift)
    mean = y - jacobian @ lift
    cross = spread @ jacobian.T
    covariance = jacobian @ cross
    return _with_status(mean, covariance, jacobian, cross, status, x, spread)


def _sigma(move: partial, x: Array, spread: Array) -> tuple[Array, ...]:
    n = x.size
    value, vectors = jnp.linalg.eigh(0.5 * (spread + spread.T))
    deviation = jnp.sqrt(jnp.maximum(value, 0))
    unit = math.sqrt(n) * jnp.concatenate([jnp.eye(n, dtype=x.dtype), -jnp.eye(n, dtype=x.dtype)])

    def end(z: Array) -> tuple[Array, Array]:
        start = x + vectors @ (deviation * z)
        lift = _start_correction(move, start)
        y, change, (status, _) = jax.jvp(move, (start + lift,), (-lift,), has_aux=True)
        return y + change, status

    y, status = jax.vmap(end)(unit)
    mean = jnp.mean(y, axis=0)
    away = y - mean[None]
    covariance = away.T @ away / (2 * n)
    slope = away.T @ unit / (2 * n)  # by the independent unit variables of the points
    inverse = jnp.where(deviation > 0, 1 / jnp.where(deviation > 0, deviation, 1), 0)
    jacobian, cross = (slope * inverse[None]) @ vectors.T, (vectors * deviation[None]) @ slope.T
    bits = jax.lax.reduce(status, np.int32(0), jax.lax.bitwise_or, (0,))
    return _with_status(mean, covariance, jacobian, cross, bits, x, spread)


def _with_status(
    mean: Array, covariance: Array, jacobian: Array, cross: Array, status: Array, x: Array, spread: Array
) -> tuple:
    """The moments with the bits for what traced numbers could not raise, and for what is not finite."""
    scale = ROUNDING * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(spread))
    lowest = jnp.min(jnp.linalg.eigvalsh(0.5 * (spread + spread.T)))
    valid = (lowest >= -scale) & (jnp.max(jnp.abs(spread - spread.T)) <= scale)
    finite = jnp.all(jnp.isfinite(mean)) & jnp.all(jnp.isfinite(covariance))
    status = status | as_status(~valid, Status.INPUT_INVALID) | as_status(~finite, Status.NON_FINITE)
    return mean, 0.5 * (covariance + covariance.T), jacobian, cross, status
