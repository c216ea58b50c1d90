"""Shooting equations of a periodic orbit, whose period is known or, for an autonomous system, fixed by a surface.

Unknowns y are the state x = (q, v) at the section, and the period T where a surface s(t, q, v, args) = 0 is given:

    P(x, T) - x = 0,        s(x) / |n| = 0,   n = grad s.

P is the flow over T, with all its impacts. Its return map to the surface has the Jacobian D = (1 - w n'/(n'w)) dP/dx,
w = dP/dT: of the 2d eigenvalues of D one is 0, which belongs to the direction across the surface and is no multiplier;
in its place dP/dx has the 1 that every orbit of an autonomous system has along itself. The stroboscopic map is the case
of the surface t = t0 + T, where D = dP/dx. Of quaternions in x the lengths are made 1 before the flow, and p(T) = -p
closes, too: D has zeros along p.

Reference: R. I. Leine, H. Nijmeijer, Dynamics and Bifurcations of Non-Smooth Mechanical Systems, Springer (2004), ch.
7-9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.jaxpr_tools import varying_outputs
from ..mechanics.joint_projection import nearest_on_joints
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..simulation.call import Arguments
from ..simulation.lanes import Lanes
from ..simulation.program import Program
from .stroboscopic_map import admissible, blocks, directions, eigenvalues, jacobians, on_one_side, with_unit_quaternions

T = TypeVar("T")

TIMES = np.array([0.137, 0.382, 0.618, 0.854, 1.271])  # in periods: where forces are compared with those at the start
OFF_PERIOD = (
    1e-3  # of the range of a forcing: by how much it may differ after a period, which users round (6.283 gives 2e-4)
)
NEAR = 2.0  # factor by which an unknown period may differ from its guess; 0 closes every orbit
Surface = Callable[[Any, Array, Array, Any], Any]


@dataclass(frozen=True)
class ShootingEquations:
    """The shooting equations of orbits that close after a known period or, with a ``surface``, when they return to it.

    ``program``: the program by which motions are computed.
    """

    program: Program
    surface: Surface | None
    directions: int  # number of directions in which states may vary: 2d, fewer with joints and quaternions

    @classmethod
    def of(cls, program: Program, lanes: Lanes, surface: Surface | None) -> ShootingEquations:
        """Makes the equations; with a surface it raises unless the surface is valid and the system autonomous."""
        if surface is not None:
            one = lanes.take(0)
            check_surface(surface, jnp.asarray(one.t0, one.q0.dtype), one.q0, one.v0, one.args)
            check_autonomous(program.problem, lanes)
        else:
            check_forcing(program.problem, lanes)
        return cls(program, surface, directions(program.problem, lanes))

    def unknowns(self, lanes: Lanes) -> np.ndarray:
        """Unknowns of the given motions: states (B, 2d), or states and periods (B, 2d + 1)."""
        motion = lanes.motion
        parts = [motion.q0, motion.v0]
        if self.surface is not None:
            parts.append(np.broadcast_to(np.asarray(motion.t1 - motion.t0, motion.q0.dtype), (lanes.count,))[:, None])
        return np.concatenate(parts, axis=1)

    def at(self, lanes: Lanes, y: np.ndarray) -> Lanes:
        """Returns ``lanes`` with the states and, if there is a surface, the periods of the unknowns y (B, n).

        With joints the states are the nearest ones that satisfy them, and quaternions have the length 1.
        """
        d = lanes.motion.q0.shape[-1]
        numbers: Arguments = {"q0": y[:, :d], "v0": y[:, d : 2 * d]}
        if self.surface is not None:
            t0 = np.asarray(lanes.motion.t0, y.dtype)
            numbers |= {"t1": t0 + y[:, -1], "h": y[:, -1] / lanes.motion.steps.astype(y.dtype)}
        moved = lanes.replace(**numbers)
        if self.directions == 2 * d:
            return moved
        starts = moved.only("q0", "v0", "t0", "args")
        found = np.concatenate(_on_joints(self.program.problem, starts.motion, starts.axes), axis=1)
        x = with_unit_quaternions(self.program.problem, found)[0]
        return moved.replace(q0=x[:, :d], v0=x[:, d:])

    def can_start(self, lanes: Lanes, y: np.ndarray) -> np.ndarray:
        """Mask (B,) of the unknowns y (B, n) from which a motion can start: no gap is negative.

        With a surface the period must also be near the one in ``lanes``.
        """
        d = lanes.motion.q0.shape[-1]
        inside = admissible(self.program.problem, lanes, y[:, : 2 * d])
        if self.surface is None:
            return inside
        guess = np.asarray(lanes.motion.t1 - lanes.motion.t0)
        return inside & (y[:, -1] < NEAR * guess) & (y[:, -1] > guess / NEAR)

    def evaluate(self, lanes: Lanes, y: np.ndarray, wrt: tuple[str, ...] = ()) -> tuple:
        """Evaluates the equations at unknowns y (B, n).

        Returns the residuals (B, n), their Jacobian (B, n, n), statuses (B,), and the Jacobian of the final states by
        the unknowns and by the inputs in ``wrt``, as in `sensitivities`.
        """
        moved = self.at(lanes, y)
        names = ("q0", "v0") if self.surface is None else ("q0", "v0", "t1")
        value, jacobian, status = jacobians(self.program, moved, tuple(dict.fromkeys((*names, *wrt))))
        size, problem = value.shape[1], self.program.problem
        scaling = with_unit_quaternions(problem, y[:, :size])[1]
        if problem.quaternions:
            value, jacobian = on_one_side(problem, y[:, :size], value, jacobian)
        flow = blocks(jacobian) @ scaling
        value, matrix = value - y[:, :size], flow - np.eye(size, dtype=y.dtype)
        if self.surface is not None:
            away, normal = self.distance(moved)
            normal = (normal[:, None] @ scaling)[:, 0]
            rate = np.concatenate([jacobian[name]["t1"] for name in ("q", "v")], axis=1)
            corner = np.zeros((len(y), 1, 1), y.dtype)
            value = np.concatenate([value, away[:, None]], axis=1)
            matrix = np.block([[matrix, rate[:, :, None]], [normal[:, None], corner]])
        return value, matrix, status, jacobian

    def distance(self, lanes: Lanes) -> tuple[np.ndarray, np.ndarray]:
        """Signed distances (B,) of the starts from the surface, to first order,
        and unit normals (B, 2d) of the surface."""
        starts = lanes.only("q0", "v0", "t0", "args")
        away, normal = _distance(self.surface, starts.motion, starts.axes)
        return np.asarray(away), np.asarray(normal)

    def slope(self, lanes: Lanes, parameter: str) -> float:
        """Derivative of one motion's distance from the surface with respect to a number in its args."""
        return float(_slope(self.surface, lanes.take(0), parameter))

    def return_map(self, matrix: np.ndarray) -> np.ndarray:
        """Jacobian (B, 2d, 2d) of the return map, from the Jacobian of the equations."""
        size = matrix.shape[1] - (self.surface is not None)
        flow = matrix[:, :size, :size] + np.eye(size, dtype=matrix.dtype)
        if self.surface is None:
            return flow
        rate, normal = matrix[:, :size, size], matrix[:, size, :size]
        across = np.sum(normal * rate, axis=1)
        delay = np.einsum("bi,bij->bj", normal, flow) / np.where(across == 0, 1, across)[:, None]
        return flow - rate[:, :, None] * delay[:, None]

    def crosses(self, matrix: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Mask (B,) of the roots y (B, n) whose orbits cross the surface transversally;
        False for equilibria and tangency.

        ``matrix``: Jacobian (B, n, n) of the equations at the roots. All are True without a surface.
        """
        if self.surface is None:
            return np.ones(len(y), bool)
        rate, normal = matrix[:, :-1, -1], matrix[:, -1, :-1]
        least = float(np.finfo(y.dtype).eps) ** 0.5
        moves = y[:, -1] * np.max(np.abs(rate), axis=1) > least * (1 + np.max(np.abs(y[:, :-1]), axis=1))
        return moves & (np.abs(np.sum(normal * rate, axis=1)) > least * np.max(np.abs(rate), axis=1))

    def multipliers(self, monodromy: np.ndarray) -> np.ndarray:
        """Floquet multipliers by decreasing modulus: (B, 2d), 2 less for each joint and quaternion,
        and one less with a surface."""
        if self.directions < monodromy.shape[1]:
            # the states that joints and quaternions allow are the range of the map: elsewhere it has zeros
            sound = np.all(np.isfinite(monodromy), axis=(1, 2))[:, None, None]
            basis = np.linalg.svd(np.where(sound, monodromy, 0))[0][:, :, : self.directions]
            monodromy = np.where(sound, np.swapaxes(basis, 1, 2) @ np.where(sound, monodromy, 0) @ basis, np.nan)
        found = eigenvalues(monodromy)
        return found if self.surface is None else found[:, :-1]


@partial(jax.jit, static_argnames="axes")
def _on_joints(problem: Problem, motion: Motion, axes: tuple) -> tuple[Array, Array]:
    """The positions and velocities (B, d) nearest to the starts of the motions that satisfy the joints."""

    one = lambda motion: nearest_on_joints(problem, motion.t0, motion.q0, motion.v0, motion.args)
    return jax.vmap(one, in_axes=(Lanes(motion, axes, 0).in_axes,))(motion)


@partial(jax.jit, static_argnames=("surface", "axes"))
def _distance(surface: Surface, motion: Motion, axes: tuple) -> tuple[Array, Array]:
    return jax.vmap(partial(_from_surface, surface), in_axes=(Lanes(motion, axes, 0).in_axes,))(motion)


def _from_surface(surface: Surface, motion: Motion) -> tuple[Array, Array]:
    """Signed distance of a start from the surface, to first order, and the unit normal (2d,) of the surface."""
    d = motion.q0.shape[0]
    s = lambda x: jnp.asarray(surface(motion.t0, x[:d], x[d:], motion.args), x.dtype)
    value, normal = jax.value_and_grad(s)(jnp.concatenate([motion.q0, motion.v0]))
    size = jnp.linalg.norm(normal)
    return value / size, normal / size


@partial(jax.jit, static_argnames=("surface", "parameter"))
def _slope(surface: Surface, one: Motion, parameter: str) -> Array:
    away = lambda number: _from_surface(surface, one._replace(args=one.args | {parameter: number}))[0]
    return jax.grad(away)(jnp.asarray(one.args[parameter]))


def check_surface(surface: Surface, t: ArrayLike, q: Array, v: Array, args: object) -> None:
    """Raises unless ``surface`` is a function of one state that returns one real number."""
    if not callable(surface):
        raise TypeError(f"surface must be a function surface(t, q, v, args) -> (), got {type(surface).__name__}")
    try:
        found = jax.eval_shape(surface, t, q, v, args)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise ValueError(
            f"surface failed on one state, (t, q (d,), v (d,), args): {type(error).__name__}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if getattr(found, "shape", None) != () or not jnp.issubdtype(found.dtype, jnp.floating):
        what = f"{found.dtype}{found.shape}" if hasattr(found, "shape") else type(found).__name__
        raise ValueError(f"surface must give one real number, (), got {what}: index the state, q[0]")


@partial(jax.jit, static_argnames=("axes",))
def _forcing(problem: Problem, motion: Motion, axes: tuple) -> tuple[Array, Array]:
    """Forces and gaps (B, 2, n, ...) at the start states, at n times of the period and a period later."""

    def one(motion: Motion) -> tuple[Array, Array]:
        q, v, args = motion.q0, motion.v0, motion.args
        shares = jnp.asarray(np.stack([TIMES, 1 + TIMES]), q.dtype)
        times = motion.t0 + shares * (motion.t1 - motion.t0)
        of = lambda t: (problem.generalised_force(t, q, v, args), problem.gaps(t, q, args))
        return jax.vmap(jax.vmap(of))(times.astype(q.dtype))

    return jax.vmap(one, in_axes=(Lanes(motion, axes, 0).in_axes,))(motion)


def check_forcing(problem: Problem, lanes: Lanes) -> None:
    """Raises if force or gaps at the start states are others a period later:
    a state that returns then is no periodic motion."""
    one = lanes.take(0)
    state = tuple(jnp.asarray(x, one.q0.dtype) for x in (one.t0, one.q0, one.v0))
    acts = lambda t, q, v: (problem.generalised_force(t, q, v, one.args), problem.gaps(t, q, one.args))
    if not any(varying_outputs(jax.make_jaxpr(acts)(*state).jaxpr, [True, False, False])):
        return
    starts = lanes.only("q0", "v0", "t0", "t1", "args")
    found = _forcing(problem, starts.motion, starts.axes)
    for what, values in zip(("force", "gap"), map(np.asarray, found), strict=True):
        first, later = values[:, 0], values[:, 1]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite tells nothing
            every = values.reshape(len(values), 2 * len(TIMES), values.shape[-1])
            spread = np.ptp(every, axis=1)[:, None]
            noise = np.sqrt(np.finfo(values.dtype).eps) * np.abs(first)
            off = np.abs(later - first) > OFF_PERIOD * spread + noise
        if off.any():
            lane = int(np.argwhere(off)[0, 0])
            length = np.broadcast_to(np.asarray(lanes.motion.t1 - lanes.motion.t0), (lanes.count,))[lane]
            raise ValueError(
                f"period: the {what} at the start state is another one {length:.9g} s later (lane {lane}), so that no "
                "motion repeats after "
                "that time: give the period of the forcing, as a function of args where it depends on them, in "
                "float64, with all its digits"
            )


def check_autonomous(problem: Problem, lanes: Lanes) -> None:
    """Raises if force or constraints depend on time, since the period is then that of the forcing and no unknown."""
    one = lanes.take(0)
    state = tuple(jnp.asarray(x, one.q0.dtype) for x in (one.t0, one.q0, one.v0))

    def contact_acts(t: Array, q: Array, v: Array, args: object) -> tuple[Array, Array]:
        return problem.generalised_force(t, q, v, args), problem.gaps(t, q, args)

    traced = jax.make_jaxpr(lambda t, q, v: contact_acts(t, q, v, one.args))(*state).jaxpr
    if not any(varying_outputs(traced, [True, False, False])):
        return
    # it may be a forcing of no amplitude
    starts = lanes.only("q0", "v0", "args")
    of = jax.vmap(contact_acts, in_axes=(None, *(getattr(starts.in_axes, name) for name in ("q0", "v0", "args"))))
    length = float(np.max(lanes.motion.t1 - lanes.motion.t0))
    times = np.append(0.0, TIMES * length).astype(state[1].dtype) + np.min(lanes.motion.t0)
    found = [of(jnp.asarray(t), starts.motion.q0, starts.motion.v0, starts.motion.args) for t in times]
    if any(not np.array_equal(x, y) for later in found[1:] for x, y in zip(found[0], later, strict=True)):
        raise ValueError(
            "surface: force or constraints depend on t, so that the period of an orbit is that of the forcing: give "
            "that as "
            "period, and no surface"
        )
