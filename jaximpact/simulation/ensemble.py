"""`ensemble`: many motions in one call, over any mix of initial data, parameters, restitution and step size."""

from __future__ import annotations

import jax
import numpy as np

from ..bodies.growth import enlarge, slots, with_slots
from ..mechanics.status import Status
from ..results import Solution
from .backends import batch_backend
from .call import Call, for_lanes
from .chunked_runs import in_chunks
from .lanes import Lanes
from .program import Program
from .trajectory import trajectory


def ensemble(call: Call) -> Solution:
    """Integrates many motions at once: see `jaximpact.ensemble`."""
    program, lanes = for_lanes(call)
    backend = batch_backend(trajectory, program, lanes, call.execution)
    found = in_chunks(program, lanes, backend, call.chunk, call.progress, on_device=True)
    while program.problem.listed and np.any(lost := found.status & int(Status.NEIGHBOURS_LOST) != 0):
        program, found = with_room(program, lanes, found, lost, call)
    return found


def with_room(
    program: Program, lanes: Lanes, found: Solution, lost: np.ndarray, call: Call
) -> tuple[Program, Solution]:
    """Enlarges the neighbour lists and recomputes the lanes whose lists overflowed, those in the mask ``lost`` (B,).

    Returns the program with the larger lists, and the solution ``found`` with these lanes replaced.
    """
    q0 = lanes.take(0).q0
    larger = program.replace(problem=enlarge(program.problem, q0, int(np.sum(lost))))
    some = lanes.some(np.flatnonzero(lost))
    again = in_chunks(larger, some, batch_backend(trajectory, larger, some, call.execution), call.chunk, False)
    before, after = (slots(x.problem, q0) for x in (program, larger))
    found = with_slots(found, before, after, program.problem.bodies.number)

    def put(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
        whole = np.array(whole)
        whole[lost] = part
        return whole

    return larger, jax.tree.map(put, found, again)
