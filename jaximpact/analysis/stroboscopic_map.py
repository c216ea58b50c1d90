"""Stroboscopic map of a periodically forced motion and its Jacobian, for many lanes at once.

Shared by periodic orbits, continuation and Lyapunov exponents. A section is a time t0 + k T. `EventCorrected` and
`MoreauJean` can be restarted from the state (q, v) at a section, while `PaoliSchatzman` and `Maury` also use the
previous step: a restart changes their motion by O(h).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts
from ..jaxtools.warnings import JaximpactWarning
from ..mechanics.linearisation import Metric, span
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.quaternions import lengths, of_length_one, signs
from ..mechanics.status import FAILURES, Status
from ..simulation.call import Call, as_lanes, for_lanes
from ..simulation.canonical_arrays import full_axes
from ..simulation.lanes import Lanes
from ..simulation.program import Program
from ..simulation.sensitivities import Jacobian, state
from ..simulation.sensitivities import jacobians as jacobians_of
from .checks import TimeLike, check_steps, number_of, positive_time
from .default_scheme import ORBIT, choose_scheme
from .options import MotionOptions

FEW = 64  # lanes up to which one chunk, and one compilation, beats as many chunks as there are cores


def prepare_strobe(
    call: Call, period: TimeLike, cycles: int, *, tolerance: float = ORBIT, name: str = "period"
) -> tuple[Program, Lanes, bool]:
    """Checks the arguments of motions from ``call.t0`` over ``cycles`` periods of ``call.steps`` steps each.

    ``tolerance``: tolerance of the default scheme if no steps are given; ``name``: the caller's name for the period,
    used in messages. Returns the program, the lanes, and whether no argument has a lane axis.
    """
    if period is None:
        raise ValueError(
            f"{name}: give the {name}, a number or a function of args; for an orbit of an autonomous system a guess, "
            "with surface=..."
        )
    given: MotionOptions = {"scheme": call.scheme}
    options, steps = choose_scheme(call.problem, given, call.steps, tolerance)
    check_counts(cycles=cycles)
    check_steps(steps, cycles, "cycles")
    full_axes(call.args, call.args_axes)
    begin = number_of("t0", call.t0, call.args, call.args_axes)
    end = begin + cycles * positive_time(name, period, call.args, call.args_axes)
    lane_call, single = as_lanes(call.replace(**options, t0=begin, t1=end, steps=steps * cycles))
    program, lanes = for_lanes(lane_call)
    d = lanes.motion.q0.shape[-1]
    states = {name: np.broadcast_to(getattr(lanes.motion, name), (lanes.count, d)) for name in ("q0", "v0")}
    return program.replace(sensitivity="corrected"), lanes.replace(**states), single


def jacobians(program: Program, lanes: Lanes, wrt: tuple[str, ...]) -> tuple[np.ndarray, Any, np.ndarray]:
    """Final states of motions and their Jacobians, in forward mode.

    Returns the states (B, 2d), the Jacobian as in `sensitivities`, and the status (B,).
    """
    chunk = lanes.count if lanes.count <= FEW else None
    found = jacobians_of(program, lanes, Jacobian(wrt, state, "forward"), chunk=chunk)
    jacobian, (value, status) = jax.tree.map(np.array, found)  # those of a GPU come from there
    return np.concatenate([value["q"], value["v"]], axis=1), jacobian, status


def blocks(jacobian: Mapping[str, Mapping[str, Array]]) -> np.ndarray:
    """Jacobian (B, 2d, 2d) of the final state (q, v) by the initial one, joined from its four parts in a ``jacobian``
    as in `sensitivities`."""
    return np.concatenate(
        [np.concatenate([jacobian[name]["q0"], jacobian[name]["v0"]], axis=2) for name in ("q", "v")], axis=1
    )


@partial(jax.jit, static_argnames=("axes",))
def _gaps(problem: Problem, motion: Motion, axes: tuple) -> tuple[Array, Array]:
    def one(motion: Motion) -> tuple[Array, Array]:
        q, v, t = motion.q0, motion.v0, jnp.asarray(motion.t0, motion.q0.dtype)
        return jax.jvp(lambda t, x: problem.gaps(t, x, motion.args), (t, q), (jnp.ones_like(t), v))

    return jax.vmap(one, in_axes=(Lanes(motion, axes, 0).in_axes,))(motion)


def gaps(problem: Problem, lanes: Lanes, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gaps (B, m) and their rates for states x (B, 2d) at the section."""
    d, x = x.shape[1] // 2, np.asarray(x, lanes.motion.q0.dtype)
    starts = lanes.replace(q0=x[:, :d], v0=x[:, d:]).only("q0", "v0", "t0", "args")
    found = _gaps(problem, starts.motion, starts.axes)
    return np.asarray(found[0]), np.asarray(found[1])


def admissible(problem: Problem, lanes: Lanes, x: np.ndarray) -> np.ndarray:
    """Whether each state (B, 2d) is finite and has no gap below zero, up to round-off."""
    slack = 1e3 * float(np.finfo(x.dtype).eps) * _length(lanes, x)
    return np.all(np.isfinite(x), axis=1) & np.all(gaps(problem, lanes, x)[0] >= -slack, axis=1)


def _length(lanes: Lanes, x: np.ndarray) -> np.ndarray:
    """Length scale (B, 1) of each state: its largest position plus the distance travelled in a thousand steps,
    or in the motion."""
    q, v = np.split(np.abs(x), 2, axis=1)
    column = lambda time: np.reshape(np.asarray(time), (-1, 1))
    time = np.minimum(span(column(lanes.motion.h), x.dtype), column(lanes.motion.t1 - lanes.motion.t0))
    with np.errstate(over="ignore"):
        return np.max(q, axis=1, keepdims=True) + time * np.max(v, axis=1, keepdims=True)


def near_impact(problem: Problem, lanes: Lanes, x: np.ndarray, resolution: ArrayLike) -> np.ndarray:
    """Mask (B,) of the states x (B, 2d) that lie within twice ``resolution`` before or after an impact,
    judged by gaps and their rates.

    ``resolution`` [s]: error of the times of impacts.
    """
    gap, rate = gaps(problem, lanes, x)
    h, time = (np.reshape(np.asarray(x), (-1, 1)) for x in (lanes.motion.h, resolution))
    whole = np.reshape(np.asarray(lanes.motion.t1 - lanes.motion.t0), (-1, 1))
    noise = 1e3 * np.finfo(x.dtype).eps * _length(lanes, x) / np.minimum(span(h, x.dtype), whole)
    return np.any((np.abs(rate) > noise) & (gap <= 2 * time * np.abs(rate)), axis=1)


def damped_newton(
    evaluate: Callable, allowed: Callable, x: np.ndarray, tol: float, iterations: int
) -> tuple[np.ndarray, ...]:
    """Finds roots by Newton's method, with damping for each lane separately.

    A step is halved until its end x is allowed, by the mask ``allowed(x)`` (B,),
    and has a smaller residual than its start.

    Args:
        evaluate: ``evaluate(x) -> (value (B, n), jacobian (B, n, n), status (B,))``; lanes must not interact.
        x: starts (B, n).
        tol: largest |value| of a root, relative to 1 + |x|.
        iterations: largest number of evaluations.

    Returns:
        x, jacobian, status (of a lane that fails also that of its last trial), residual (B,), evaluations (B,), and
        whether each lane has converged (B,).
    """

    def newton_step(value: np.ndarray, jacobian: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sound = np.all(np.isfinite(value), axis=1) & np.all(np.isfinite(jacobian), axis=(1, 2))
        # of least norm where the Jacobian is singular
        inverse = np.linalg.pinv(np.where(sound[:, None, None], jacobian, 0), rcond=1e-13)
        return np.where(sound[:, None], -np.einsum("bij,bj->bi", inverse, value), 0), sound

    value, jacobian, status = evaluate(x)
    step, sound = newton_step(value, jacobian)
    size, damping = np.max(np.abs(value), axis=1), np.ones(len(x))
    used = np.zeros(len(x), int)
    small = lambda x: tol * (1 + np.max(np.abs(x), axis=1))
    done, stuck, last = size <= small(x), ~sound, status
    for _ in range(iterations):
        active = ~(done | stuck)
        if not active.any():
            break
        trial = x + (np.where(active, damping, 0)[:, None] * step).astype(x.dtype)
        inside = allowed(trial)
        trial = np.where(inside[:, None], trial, x)
        found = evaluate(trial)
        new_size = np.max(np.abs(found[0]), axis=1)
        better = active & inside & (new_size < (1 - 1e-4 * damping) * size)
        used += active
        last = np.where(active, found[2], last)
        for old, new in zip((value, jacobian, status, size, x), (*found, new_size, trial), strict=True):
            old[better] = new[better]
        new_step, sound = newton_step(value, jacobian)
        step = np.where(better[:, None], new_step, step)
        damping = np.where(better, 1.0, 0.5 * damping)
        done = size <= small(x)
        stuck |= (damping < 2.0**-20) | ~sound
    return x, jacobian, np.where(done, status, status | last), size, used, done


def lost_derivatives(what: str, status: np.ndarray, derivative: np.ndarray) -> np.ndarray:
    """Adds `Status.DERIVATIVE_NOT_FINITE` to the status (B,) of sound motions whose derivative (B, ...) holds NaN.

    It also warns: ``what`` names the quantity that is NaN.
    """
    holds = np.isnan(derivative).reshape(len(derivative), -1).any(axis=1)
    lost = holds & ((status & int(FAILURES)) == 0)
    if lost.any():
        lanes = np.flatnonzero(lost)
        warnings.warn(
            f"the derivative of the motion is not finite in {lanes.size} lanes (first: {lanes[0]}), {what} is NaN: the "
            "force, the mass or "
            "the constraints have no derivative at a state of it (the square root of v @ v at v = 0, say)",
            JaximpactWarning,
            stacklevel=3,
        )
    return status | np.where(lost, int(Status.DERIVATIVE_NOT_FINITE), 0).astype(status.dtype)


def directions(problem: Problem, lanes: Lanes) -> int:
    """Number of directions in which states may vary: 2d, less 2 for each independent joint, of the first lane,
    and each quaternion."""
    one = lanes.take(0)
    d = one.q0.shape[0] - len(problem.quaternions)
    if not problem.jointed:
        return 2 * d
    joints: Any = Metric.at(problem, jnp.asarray(one.q0), one.args, one.t0).joints
    return 2 * (d - int(jnp.sum(joints.independent())))


def allowed_directions(problem: Problem, motion: Motion, size: int) -> Array:
    """Orthonormal directions (2d, size) in which the start (q0, v0) may vary: the null space of d(c, c')/d(q, v) of
    joints and lengths of quaternions."""
    x = jnp.concatenate([motion.q0, motion.v0])
    if size == len(x):
        return jnp.eye(size, dtype=x.dtype)
    d, t = len(motion.q0), jnp.asarray(motion.t0, x.dtype)

    def equations(x: Array) -> Array:
        held = lambda t, q: jnp.append(problem.joint_values(t, q, motion.args), lengths(problem.quaternions, q))
        return jnp.concatenate(jax.jvp(held, (t, x[:d]), (jnp.ones_like(t), x[d:])))

    matrix = jax.jacfwd(equations)(x)
    matrix = matrix / jnp.maximum(jnp.linalg.norm(matrix, axis=1, keepdims=True), jnp.finfo(x.dtype).tiny)
    return jnp.linalg.eigh(matrix.T @ matrix)[1][:, :size]


def with_unit_quaternions(problem: Problem, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """States (B, 2d) that move as x (B, 2d), with quaternions of length 1, and their derivatives (B, 2d, 2d) by x,
    which are 0 along a quaternion."""
    if not problem.quaternions:
        return x, np.eye(x.shape[1], dtype=x.dtype)[None]
    found, derivative = _with_unit_quaternions(problem.quaternions, x)
    return np.asarray(found), np.asarray(derivative)


@partial(jax.jit, static_argnames="places")
def _with_unit_quaternions(places: tuple[int, ...], x: Array) -> tuple[Array, Array]:
    scaled = lambda x: jnp.concatenate(of_length_one(places, *jnp.split(x, 2)))
    return jax.vmap(scaled)(x), jax.vmap(jax.jacfwd(scaled))(x)


def on_one_side(problem: Problem, x: np.ndarray, end: np.ndarray, jacobian: Any) -> tuple[np.ndarray, Any]:
    """States ``end`` (B, 2d) and their derivatives ``jacobian``, as in `jacobians`,
    with quaternions on the side of those of x (B, 2d)."""
    d = x.shape[1] // 2
    sides = np.asarray(jax.vmap(partial(signs, problem.quaternions))(jnp.asarray(x[:, :d]), jnp.asarray(end[:, :d])))
    of_rows = lambda y: y * sides.reshape(*sides.shape, *[1] * (y.ndim - 2))
    return end * np.tile(sides, 2), jax.tree.map(of_rows, jacobian)


def by_modulus(multipliers: np.ndarray) -> np.ndarray:
    """Multipliers (..., n) sorted by decreasing modulus."""
    return np.take_along_axis(multipliers, np.argsort(-np.abs(multipliers), axis=-1, kind="stable"), axis=-1)


def eigenvalues(matrix: np.ndarray) -> np.ndarray:
    """Eigenvalues (B, n) of matrices (B, n, n), sorted by decreasing modulus; NaN for matrices that are not finite."""
    sound = np.all(np.isfinite(matrix), axis=(1, 2))
    found = np.linalg.eigvals(np.where(sound[:, None, None], matrix, 0)).astype(complex)
    return by_modulus(np.where(sound[:, None], found, complex(np.nan, np.nan)))
