"""Runs motions again from rows of a solution, for states between two rows that are as accurate as the scheme."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.shapes import PyTree
from ..jaxtools.warnings import without_remarks
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.schemes import EventCorrected, EventDriven
from ..results import Solution
from ..results.interpolation import check_rows, checked_times
from ..simulation.call import Arguments, Call
from ..simulation.canonical_arrays import full_axes
from ..simulation.ensemble import ensemble
from ..simulation.lanes import Lanes
from ..simulation.solve import solve
from .checks import check_no_noise
from .default_scheme import ORBIT
from .forced_motions import admit
from .options import LaneOptions, with_options

PART_OF_A_STEP = (
    "a motion run again from a row has the random numbers of another step: interpolate by solution.at(t), solve with "
    "save=Events(...), or give "
    "steps and scheme=EventCorrected(), whose impacts are found without that"
)
ACCUMULATED = ("impulse", "joint_impulse", "friction_impulse")  # since the start


def run_between(
    call: Call, rows: tuple[np.ndarray, np.ndarray, np.ndarray], lane: np.ndarray, row: np.ndarray
) -> Solution:
    """Runs n motions, each from row ``row[i]`` of lane ``lane[i]`` of a batch to the time ``t1[i]`` of the call;
    returns a solution of n lanes.

    ``rows``: t (B, k), q and v (B, k, d) of the batch; ``call``: its args and args_axes are those of the batch, its
    restitution and friction (n, m), or None for the problem's own; its states are not read.
    """
    check_no_noise(call.problem, PART_OF_A_STEP)
    n = len(lane)
    size = 1 << max(n - 1, 0).bit_length()  # few sizes, few compilations
    some = np.concatenate([np.arange(n), np.zeros(size - n, int)])
    lane, row = lane[some], row[some]
    t, q, v = (np.asarray(x)[lane, row] for x in rows)
    axes = full_axes(call.args, call.args_axes)
    args = jax.tree.map(lambda axis, x: x if axis < 0 else np.asarray(x)[lane], axes, call.args)
    unused: Any = dict.fromkeys(("t0", "t1", "h", "steps", "e"))
    starts = Lanes.of(Motion(q, v, args=args, **unused), Motion(0, 0, args=axes, **unused), size).only(
        "q0", "v0", "args"
    )
    q, v = map(np.asarray, admit(call.problem, t, starts.motion, starts.axes))
    numbers = {name: None if x is None else x[some] for name, x in call.of_contacts.items()}
    args_axes = jax.tree.map(lambda axis: None if axis < 0 else 0, axes)
    with without_remarks():
        found = ensemble(
            call.replace(q0=q, v0=v, t0=t, t1=call.t1[some], steps=1, args=args, args_axes=args_axes, **numbers)
        )
    return jax.tree.map(lambda x: x[:n], jax.device_get(found))


@with_options(LaneOptions)
def recomputed(problem: Problem, solution: Solution, t: ArrayLike, **options: Unpack[LaneOptions]) -> Solution:
    """Returns the motion at other times t, each computed by a run from the row before it: see `Solution.at`,
    with a problem."""
    timing, scheme = solution.timing, options["scheme"]
    if scheme is None and timing is not None and timing.locates:
        scheme = EventDriven(ORBIT, ORBIT) if timing.by_tolerance else EventCorrected()
    if scheme is None or not scheme.traits.locates:
        raise ValueError(
            "solution.at(t, problem) goes on from a row, whose state is all that EventDriven and EventCorrected need: "
            "this solution is of "
            f"{None if timing is None else timing.scheme}"
        )
    call = Call(problem, None, None, **{**options, "scheme": scheme})
    if is_traced(solution, t, call.args, call.of_contacts):
        return _recomputed_one(call, solution, t)
    times, rows = checked_times(solution, t)
    lead, k = rows.shape[:-1], len(times)
    if k == 0:
        return solution.at(times)
    number = math.prod(lead)  # said, since a problem without constraints has impulses of size 0
    batch = jax.tree.map(lambda x: np.asarray(x).reshape(number, *np.shape(x)[len(lead) :]), solution)
    lanes, (lane, which) = len(batch.t), np.divmod(np.arange(len(batch.t) * k), k)
    last = batch.t.shape[1] - 1
    row = np.array([np.searchsorted(own, times, side="right") - 1 for own in batch.t], int).ravel()
    at_row = batch.t[lane, row] == times[which]
    # a time that is that of a row gives the row itself: the run made in its place is ignored
    begin = np.where(at_row, 0, np.minimum(row, last - 1))
    end = np.where(at_row, batch.t[lane, 1], times[which])
    m = batch.impulse.shape[-1]
    given = call.of_contacts.items()
    of_lane = {name: None if x is None else _by_lane(x, lanes, m, bool(lead))[lane] for name, x in given}
    run = run_between(call.replace(t1=end, **of_lane), (batch.t, batch.q, batch.v), lane, begin)
    pick = lambda name: np.where(
        at_row[:, None], getattr(batch, name)[lane, row], np.asarray(getattr(run, name))[:, -1]
    )
    state: Arguments = {name: pick(name) for name in ("q", "v", "z")}
    for name in ACCUMULATED:
        if getattr(batch, name) is not None:
            gained = np.asarray(getattr(run, name))[:, -1]
            before = getattr(batch, name)[lane, row]
            state[name] = before + np.where(at_row.reshape(-1, *[1] * (before.ndim - 1)), 0, gained)
    state = {name: x.reshape(*lead, k, *x.shape[1:]) for name, x in state.items()}
    status = np.bitwise_or.reduce(np.where(at_row, 0, np.asarray(run.status)).reshape(lanes, k), axis=1)
    status = (batch.status | status).reshape(lead).astype(batch.status.dtype)
    origin = replace(solution.origin, every_step=False)
    at: Any = np.broadcast_to(times.astype(batch.t.dtype), (*lead, k))
    return replace(solution, t=at, **state, status=status, energy=None, origin=origin)


def _by_lane(e: ArrayLike, lanes: int, m: int, batch: bool) -> np.ndarray:
    """Restitution or friction by lane and contact (B, m); its shape is interpreted as in `solve` for one motion, as in
    `ensemble` for a batch."""
    e = np.asarray(e)
    return np.broadcast_to(e[:, None] if batch and e.ndim == 1 else e, (lanes, m))


def _recomputed_one(call: Call, solution: Solution, t: ArrayLike) -> Solution:
    """`recomputed` for one motion under a transformation of jax."""
    check_no_noise(call.problem, PART_OF_A_STEP)
    check_rows(solution)
    if jnp.ndim(solution.q) != 2:
        raise TypeError("solution.at(t, problem) under a transformation of jax is of one motion: vmap over motions")
    times = jnp.atleast_1d(jnp.asarray(t, solution.q.dtype))
    row = jnp.clip(jnp.searchsorted(solution.t, times, side="left") - 1, 0, solution.t.shape[0] - 2)

    def one(t: ArrayLike, row: PyTree) -> PyTree:
        start = {"q0": solution.q[row], "v0": solution.v[row], "t0": solution.t[row]}
        run = solve(call.replace(**start, t1=t, steps=1, args_axes=None))
        state = {name: getattr(run, name)[-1] for name in ("q", "v", "z")}
        both = {name: (getattr(run, name), getattr(solution, name)) for name in ACCUMULATED}
        return state | {name: None if x is None or y is None else x[-1] + y[row] for name, (x, y) in both.items()}

    origin = replace(solution.origin, every_step=False)
    return replace(solution, t=times, energy=None, origin=origin, **jax.vmap(one)(times, row))
