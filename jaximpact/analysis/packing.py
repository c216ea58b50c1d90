"""The contact network of a packing of bodies: forces, coordination, rattlers, fabric and stress at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.problem import Problem
from ..results import Arrays, Solution, with_names
from ..results.result import Result
from ..simulation.canonical_arrays import cast_numbers
from .checks import check_result
from .listed_pairs import check_pairs, is_listed

if TYPE_CHECKING:
    from ..bodies import Bodies


@dataclass(frozen=True, repr=False)
class Packing(Result):
    """Result of `packing`: the c contacts with a force between N bodies at one instant, in a space of 1,
    2 or 3 directions.

    Attributes:
        t: the time [s].
        ends: the two bodies of each contact (c, 2); obstacle a as -1 - a.
        force: normal force of each contact, the mean over the step (c,) [N].
        push: the contact force on the first body, friction included (c, space) [N].
        net: resultant of the contact forces and the problem's force on each body (N, space) [N].
        branch: vector from the second body to the first one, to its nearest periodic image (c, space) [length]; NaN for
            a contact with an obstacle.
        rattles: mask (N,) of the rattlers: bodies held by fewer contacts than the argument ``needed`` of `packing`;
            contacts with other rattlers do not count.
        coordination: mean number of contacts of the bodies that are not rattlers, obstacles counted; NaN if all are.
        fabric: mean of n n' over contacts between bodies, n the direction of the normal force (space, space).
        stress: sum of push branch' over contacts between bodies by the volume, positive where they press (space, space)
            [N/area] (Christoffersen, Mehrabadi, Nemat-Nasser 1981); NaN without a volume.
        naming: names and units of the problem.
    """

    t: float
    ends: np.ndarray
    force: np.ndarray
    push: np.ndarray
    net: np.ndarray
    branch: np.ndarray
    rattles: np.ndarray
    coordination: float
    fabric: np.ndarray
    stress: np.ndarray
    naming: Labels = UNNAMED

    @property
    def pressure(self) -> float:
        """Mean of the normal stresses [N/area]."""
        return float(np.trace(self.stress)) / len(self.stress)

    @property
    def unbalance(self) -> float:
        """Root mean square of the resultants on bodies that are not rattlers, divided by the root mean square of the
        contact forces (Ng 2006).

        NaN if all bodies are rattlers.
        """
        rms = lambda x: np.sqrt(np.mean(np.square(x))) if len(x) else np.nan
        return float(rms(np.linalg.norm(self.net[~self.rattles], axis=1)) / rms(self.force))

    def _columns(self) -> dict[str, np.ndarray]:
        return {"first": self.ends[:, 0], "second": self.ends[:, 1]} | self._table("force", "push", "branch")

    def _arrays(self) -> Arrays:
        contacts = self._along("contact", "force") | self._along("contact end", "ends")
        contacts |= self._along("contact direction", "push", "branch") | self._along("body", "rattles")
        contacts |= self._along("body direction", "net")
        return contacts | self._along("direction other", "fabric", "stress")

    def __len__(self) -> int:
        return len(self.force)


@with_names
def packing(
    problem: Problem,
    solution: Solution,
    *,
    h: float,
    row: int = -1,
    args: object = None,
    volume: float | None = None,
    needed: int | None = None,
    least: float = 1e-3,
) -> Packing:
    """Computes contacts with their forces, rattlers, coordination, fabric and stress of listed
    bodies in one row of a motion.

    Args:
        problem: bodies with neighbour lists (`jaximpact.bodies`).
        solution: one motion of these bodies, from `solve` or `study.Run`.
        h: the step of the motion [s]; a force is the impulse of the row's step divided by h.
        row: which row; by default the last.
        args: as they were given to `solve`.
        volume: volume that the stress refers to (area in the plane); by default that of the periodic box,
            if all its directions are periodic.
        needed: number of contacts that hold a body, by default one more than there are directions; with gravity or
            friction give the number of directions.
        least: smallest force of a contact that counts, as a part of the mean force;
            smaller forces are errors of the solver.

    Returns:
        A `Packing`; ``to_pandas()`` is the table of its contacts.

    Raises:
        ValueError, TypeError: the problem lists no pairs, the solution is a batch or of another problem, h or volume is
            not positive, there is no such row.

    Example:
        >>> found = analysis.packing(problem, motion, h=1e-3)
        >>> np.histogram(found.force / found.force.mean(), bins=30, density=True)  # the distribution of forces P(f)
    """
    check_result("solution", solution, Solution, "solve")
    if not is_listed(problem):
        raise ValueError(
            "packing needs bodies whose near pairs are listed: state them by jaximpact.bodies, with lists=True if they "
            "are few"
        )
    check_pairs(problem, solution)
    if np.ndim(solution.t) != 1:
        raise ValueError("packing is of one motion: give a lane, solution[3]")
    if not h > 0 or not (volume is None or volume > 0):
        raise ValueError(f"h and volume must be positive, got h={h!r}, volume={volume!r}")
    if not -len(solution.t) <= row < len(solution.t):
        raise ValueError(f"row={row}: the solution has {len(solution.t)} rows")
    bodies = problem.bodies
    q = np.asarray(solution.z[row])
    ends, impulse = np.asarray(solution.pairs)[row], np.asarray(solution.impulse[row])
    pushes = impulse > (least * np.mean(impulse[impulse > 0]) if np.any(impulse > 0) else 0)
    pushes &= ends[:, 0] < bodies.number
    args = cast_numbers("args", args, q.dtype)
    gradient, branch = _geometry(bodies, solution.t[row], q, args, ends[pushes])
    ends, force = ends[pushes], impulse[pushes] / h
    push = force[:, None] * gradient
    space = branch.shape[1]
    needed = space + (solution.friction_impulse is None) if needed is None else needed
    unit = gradient[ends[:, 1] >= 0]
    if solution.friction_impulse is not None:
        along = _slip_gradient(bodies, solution.t[row], q, args, ends)
        push += np.einsum("ck,cks->cs", np.asarray(solution.friction_impulse[row])[pushes] / h, along)
    net = np.array(
        problem.generalised_force(jnp.asarray(solution.t[row]), jnp.asarray(q), jnp.asarray(solution.v[row]), args)
    )
    net = net.reshape(bodies.number, -1)[:, :space]
    np.add.at(net, ends[:, 0], push)
    np.subtract.at(net, ends[ends[:, 1] >= 0, 1], push[ends[:, 1] >= 0])
    rattles = _rattlers(ends, bodies.number, needed)
    holds = _are_counted(ends, ~rattles)
    degree = _degrees(ends[holds], bodies.number)[~rattles]
    between = ends[:, 1] >= 0
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    volume = _box_volume(bodies, space) if volume is None else volume
    return Packing(
        t=float(solution.t[row]),
        ends=ends,
        force=force,
        push=push,
        net=net,
        branch=branch,
        rattles=rattles,
        coordination=float(np.mean(degree)) if degree.size else np.nan,
        fabric=unit.T @ unit / max(1, len(unit)),
        stress=push[between].T @ branch[between] / volume,
    )


def _geometry(
    bodies: Any, t: ArrayLike, q: np.ndarray, args: object, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the gaps by the first body's position, and branch vectors (`Packing.branch`), (c, space) each."""
    points = np.asarray(bodies.positions(q))
    space = points.shape[1]
    i, j = ends[:, 0], np.maximum(ends[:, 1], 0)
    own_i, own_j = bodies._given(bodies._own(jnp.asarray(t), args), jnp.asarray(i), jnp.asarray(j))
    each = jnp.asarray(q).reshape(bodies.number, -1)
    gradient = np.array(jax.vmap(jax.grad(bodies.pair_gap))(each[i], each[j], own_i, own_j))[:, :space]
    branch = points[i] - points[j]
    for axis, length in enumerate(bodies.box or ()):
        if length is not None:
            branch[:, axis] -= length * np.round(branch[:, axis] / length)
    walls = np.flatnonzero(ends[:, 1] < 0)
    if walls.size:
        of_walls = jax.tree.map(lambda x: x[walls], own_i)
        normals = jax.vmap(jax.jacfwd(lambda x, a: bodies.obstacles(jnp.asarray(t), x, a)))(each[i[walls]], of_walls)
        gradient[walls] = np.asarray(normals)[np.arange(walls.size), -1 - ends[walls, 1], :space]
        branch[walls] = np.nan
    return gradient, branch


def _slip_gradient(bodies: Bodies, t: ArrayLike, q: np.ndarray, args: object, ends: np.ndarray) -> np.ndarray:
    """Gradients (c, k, space) of slip velocities by the first body's velocity:
    by virtual power the directions of friction on it."""
    each, time = jnp.asarray(q).reshape(bodies.number, -1), jnp.asarray(t)
    i, j = ends[:, 0], np.maximum(ends[:, 1], 0)
    own_i, own_j = bodies._given(bodies._own(time, args), jnp.asarray(i), jnp.asarray(j))
    still = jnp.zeros_like(each[i])
    found = np.array(jax.vmap(jax.jacfwd(bodies.pair_slip, argnums=2))(each[i], each[j], still, still, own_i, own_j))
    walls = np.flatnonzero(ends[:, 1] < 0)
    if walls.size:
        of_walls = jax.tree.map(lambda x: x[walls], own_i)
        slide = jax.vmap(jax.jacfwd(lambda v, x, a: bodies.wall_slip(time, x, v, a)))
        slopes = np.asarray(slide(still[walls], each[i[walls]], of_walls))
        found[walls] = slopes[np.arange(walls.size), -1 - ends[walls, 1]]
    return found[:, :, : bodies.positions(q).shape[1]]


def _are_counted(ends: np.ndarray, holds: np.ndarray) -> np.ndarray:
    """Mask (c,) of the contacts between bodies in the mask ``holds`` (N,), or between such a body and an obstacle."""
    return holds[ends[:, 0]] & ((ends[:, 1] < 0) | holds[ends[:, 1]])


def _degrees(ends: np.ndarray, number: int) -> np.ndarray:
    """Number of contacts of every body (N,)."""
    return np.bincount(ends[ends >= 0], minlength=number)


def _rattlers(ends: np.ndarray, number: int, needed: int) -> np.ndarray:
    """Mask (N,) of the rattlers: bodies with less than ``needed`` contacts are removed until all that remain have as
    many among themselves."""
    holds = np.ones(number, bool)
    while True:
        few = holds & (_degrees(ends[_are_counted(ends, holds)], number) < needed)
        if not few.any():
            return ~holds
        holds &= ~few


def _box_volume(bodies: Any, space: int) -> float:
    """Volume of the periodic box; NaN if a direction is not periodic."""
    box = bodies.box
    return float(np.prod(box)) if box is not None and len(box) == space and None not in box else np.nan
