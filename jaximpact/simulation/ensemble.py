"""`ensemble`: many motions in one call, over any mix of initial data, parameters, restitution and step size."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from ..bodies.growth import enlarge, slots, with_slots
from ..mechanics.contact.solver import ContactSolver
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.status import Status
from ..results import Solution
from .backends import batch_backend
from .chunked_runs import in_chunks
from .lane_arguments import for_lanes
from .lanes import Lanes
from .program import Program
from .trajectory import trajectory


def ensemble(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: ArrayLike,
    h: ArrayLike | None = None,
    steps: int | None = None,
    t0: ArrayLike = 0.0,
    scheme: Scheme | None = None,
    projection: ContactSolver | None = None,
    args: Any = None,
    args_axes: Any = None,
    e: ArrayLike | None = None,
    friction: ArrayLike | None = None,
    static_friction: ArrayLike | None = None,
    save: Any = "final",
    until: Any = None,
    chunk: int | None = None,
    progress: bool | None = None,
    execution: str = "auto",
) -> Solution:
    """Integrates B motions at once; B is the common length of the lane axes.

    Every argument may carry one leading axis of length B more than `solve` takes; without it the argument is shared by all lanes. Shapes with it:
    q0 and v0 (B, d); t0, t1 and h (B,); e, friction and static_friction (B,) or (B, 1), with one number for each contact (B, m), or (1, m) if
    shared. An e of shape (m,) is refused if m could be the number of lanes or of contacts. Lanes of different h over the same time make different
    numbers of steps; the total work stays within 1.3 times the sum of the steps.

    Args:
        problem, q0, v0, t1, h, t0, scheme, projection, args, e, friction, static_friction: as in `solve`, or with a lane axis.
        steps: in place of h, the number of steps of every lane; `EventDriven` needs neither.
        args_axes: which leaves of args carry a lane axis, as `in_axes` of `jax.vmap`: 0 for all, None for none, or a
            pytree prefix of args of 0 and None.
        save: as in `solve`; "final" by default. With lanes of different step counts give times or "final".
        until: as in `solve`; each lane ends at its own time.
        chunk: number of lanes computed at once; by default as many as keep the saved rows of a chunk under 256 MB.
        progress: show a progress bar; by default on a terminal, for more than one chunk.
        execution: "xla", compiled by XLA as operations on all lanes, on every platform; "native", all steps of a motion as one loop of native
            code on a CPU; "kernel", this loop as a kernel of an NVIDIA GPU, a thread for each motion; "native" and "kernel" take small and
            middle-sized systems only; "auto", native or kernel where the problem and ``save`` allow it. Values are equal up to rounding;
            ``iterations`` of "native" are counted only in steps in which a contact may act.

    Returns:
        A `Solution` of numpy arrays with a leading axis B; of jax arrays that stay on the GPU if one computed them, and they take at most an
        eighth of its memory (`jax.device_get` copies them). Failed lanes are flagged in ``status``; once infinite or NaN they
        stay so. The other lanes are not affected.

    Raises:
        ValueError, TypeError: as `solve`, naming the trajectory where one is at fault.
    """
    program, lanes = for_lanes(
        problem,
        q0,
        v0,
        t0,
        t1,
        h,
        e,
        args,
        args_axes,
        scheme,
        projection,
        save,
        chunk,
        steps,
        until,
        friction,
        static_friction,
    )
    call = batch_backend(trajectory, program, lanes, execution)
    found = in_chunks(program, lanes, call, chunk, progress, on_device=not program.problem.listed)
    while program.problem.listed and np.any(lost := found.status & int(Status.NEIGHBOURS_LOST) != 0):
        program, found = with_room(program, lanes, found, lost, execution, chunk)
    return found


def with_room(
    program: Program, lanes: Lanes, found: Solution, lost: np.ndarray, execution: str, chunk: int | None
) -> tuple[Program, Solution]:
    """Enlarges the neighbour lists and recomputes the lanes whose lists overflowed, those in the mask ``lost`` (B,).

    Returns the program with the larger lists, and the solution ``found`` with these lanes replaced.
    """
    q0 = lanes.take(0).q0
    larger = program.replace(problem=enlarge(program.problem, q0, int(np.sum(lost))))
    some = lanes.some(np.flatnonzero(lost))
    again = in_chunks(larger, some, batch_backend(trajectory, larger, some, execution), chunk, False)
    before, after = (slots(x.problem, q0) for x in (program, larger))
    found = with_slots(found, before, after, program.problem.constraints.number)  # type: ignore[union-attr]

    def put(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        whole = np.array(whole)
        whole[lost] = part
        return whole

    return larger, jax.tree.map(put, found, again)
