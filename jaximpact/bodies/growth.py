"""Growing the neighbour lists of a motion, and moving its carry and rows to arrays of the new size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ..mechanics.motion import Motion
from ..mechanics.problem import Problem

if TYPE_CHECKING:
    from ..results import Solution
    from ..simulation.rows import Row


def enlarge(problem: Problem, q0: ArrayLike, lanes: int = 1) -> Problem:
    """The problem with twice the capacity for near pairs, for ``lanes`` motions at once.

    Raises:
        ValueError: memory does not suffice.
    """
    bodies = problem.bodies
    return problem.replace(constraints=bodies.enlarge(q0, lanes))


def slots(problem: Problem, q0: ArrayLike) -> int:
    """Capacity of a problem's neighbour lists, in pairs."""
    bodies = problem.bodies
    return bodies.slots(bodies.positions(q0).shape[1])[0]


def grow(problem: Problem, motion: Motion, carry: tuple) -> tuple[Problem, tuple]:
    """Enlarges neighbour lists that were too short for the step after a loop's ``carry`` (`BatchedLoop`).

    Returns the problem with the new capacity, and the carry in arrays of that size.
    """
    bodies = problem.bodies
    state = carry[0]
    # the pairs that the step found and that its list could not hold
    found = jax.jit(bodies.neighbours)(motion.time(state.n + 1), state.q, motion.args)
    larger = bodies.with_capacity_for(found)
    problem = problem.replace(constraints=bodies.enlarge(motion.q0) if larger is bodies else larger)
    return problem, _move_carry(carry, bodies.slots(found.points.shape[-1])[0], slots(problem, motion.q0))


def _move_carry(carry: tuple, old: int, new: int) -> tuple:
    """Copy of a loop carry whose arrays have slots for ``new`` pairs instead of ``old``."""
    listed, row, account, kept = carry
    empty = len(listed.neighbours.points)
    room = lambda x: widen(x, -1, old, new)
    neighbours = listed.neighbours._replace(
        i=widen(listed.neighbours.i, -1, old, new, empty), j=widen(listed.neighbours.j, -1, old, new, empty)
    )
    rubbed = lambda x: widen(x, -2, old, new)
    state = listed._replace(state=listed.state.relisted(room), neighbours=neighbours, impulse=rubbed(listed.impulse))

    def of_row(row: Row) -> Row:
        of_friction = {name: rubbed(getattr(row, name)) for name in ("friction_impulse", "friction_last")}
        pairs = widen(row.pairs, -2, old, new, empty)
        return row._replace(impulse=room(row.impulse), last=room(row.last), pairs=pairs, **of_friction)

    if hasattr(kept.buffer, "pairs"):
        kept = kept._replace(buffer=of_row(kept.buffer))
    return state, of_row(row), account, kept


def widen(x: Any, axis: int, old: int, new: int, fill: int = 0) -> Any:
    """Pads an axis of x from ``old`` to ``new`` pair slots with ``fill``.

    The entries of obstacles, which follow the pair slots, stay after them.
    """
    module = np if isinstance(x, np.ndarray) else jnp
    before, behind = module.split(x, [old], axis=axis)
    shape = list(x.shape)
    shape[axis] = new - old
    return module.concatenate([before, module.full(shape, fill, x.dtype), behind], axis=axis)


def with_slots(solution: Solution, old: int, new: int, number: int) -> Solution:
    """Copy of a solution of ``number`` bodies whose rows have slots for ``new`` pairs instead of ``old``."""
    impulse, pairs = widen(solution.impulse, -1, old, new), widen(solution.pairs, -2, old, new, number)
    rubbed = solution.friction_impulse
    rubbed = None if rubbed is None else widen(rubbed, -2, old, new)
    return replace(solution, impulse=impulse, pairs=pairs, friction_impulse=rubbed)


def trim_room(solution: Any, problem: Problem) -> Solution:
    """Cuts the rows of a solution to the number of pair slots that the problem states, after its lists had grown.

    Pairs with an impulse are kept first. Of a problem without lists the solution is returned unchanged.

    Raises:
        ValueError: more pairs have an impulse at once than there are slots.
    """
    if not problem.listed:
        return solution
    bodies = problem.bodies
    q = np.asarray(solution.q)
    new = slots(problem, q[(0,) * (q.ndim - 1)])
    impulse, pairs = np.asarray(solution.impulse), np.asarray(solution.pairs)
    walls = int(np.sum(pairs.reshape(-1, *pairs.shape[-2:])[0, :, 1] < 0))
    old = impulse.shape[-1] - walls
    if old <= new:
        return with_slots(solution, old, new, bodies.number)
    pushing = impulse[..., :old] > 0  # of a motion that failed they are no numbers
    most = int(np.max(np.sum(pushing, axis=-1)))
    if most > new:
        raise ValueError(
            f"{most} pairs of bodies push at once, and there is room for {new} in each row: give Bodies(pairs=...) at "
            f"least {most}"
        )
    # in the order of the list, those that push first of all
    rank = np.where(pushing, 0, 1) + (pairs[..., :old, 0] == bodies.number)
    chosen = np.sort(np.argsort(rank, axis=-1, kind="stable")[..., :new], axis=-1)
    axis = chosen.ndim - 1
    taken = lambda x, at: np.concatenate([np.take_along_axis(x, at, axis), np.split(x, [old], axis)[1]], axis)
    rubbed = solution.friction_impulse
    if rubbed is not None:
        rubbed = np.asarray(rubbed)
        at = np.broadcast_to(chosen[..., None], (*chosen.shape, rubbed.shape[-1]))
        rubbed = taken(rubbed, at)
    return replace(
        solution, impulse=taken(impulse, chosen), pairs=taken(pairs, chosen[..., None]), friction_impulse=rubbed
    )
