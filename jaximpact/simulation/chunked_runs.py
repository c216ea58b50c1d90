"""Runs of many motions in chunks that fit memory, on all cores, with a progress bar.

Lanes are grouped by their number of steps, so that the work stays near the sum of the steps. The host loops over
chunks; a lane's numbers do not depend on its neighbours.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from ..jaxtools.argument_checks import check_memory, free_memory
from ..jaxtools.shapes import PyTree
from ..jaxtools.spare_memory import new_array
from ..jaxtools.threads import abandon, make_executor, wait_interruptibly, worker_count
from ..jaxtools.trace_context import platform, setting
from ..mechanics.motion import Motion
from ..mechanics.user_functions import differentiable
from .chunk_sizes import divide, split
from .lanes import Lanes
from .limits import CHUNK_BYTES, MAX_CHUNK_LANES, MAX_DEVICE_CHUNK_LANES, MAX_INLINE_SECONDS, MAX_RESULT_SHARE
from .program import Program

FEWER_ROWS = "keep fewer rows (save='final', every k-th step, times, or a function), or compute fewer motions at once"


def largest_chunk() -> int:
    """Largest number of lanes in an automatic chunk."""
    return MAX_CHUNK_LANES if platform() == "cpu" else MAX_DEVICE_CHUNK_LANES


def devices(lanes: int) -> int:
    """Number of devices that share the lanes of a chunk."""
    one_device = setting("jax_default_device") is not None
    return 1 if lanes == 1 or one_device else jax.local_device_count()


def _automatic_chunk(program: Program, one: Motion) -> int:
    """Number of lanes whose saved rows fit into CHUNK_BYTES; ``one``: the motion of one lane."""
    m = program.problem.count(one.t0, one.q0, one.args)
    made = (one.q0.shape[0] + m) * one.q0.dtype.itemsize if program.function is None else 0
    row = program.row_size(one, m) + made
    return int(np.clip(CHUNK_BYTES // ((program.rows + 1) * max(row, 1)), 1, largest_chunk()))


def _as_slice(lanes: slice | np.ndarray) -> slice | np.ndarray:
    """An index for these lanes: a slice if they are contiguous, which copies nothing."""
    if isinstance(lanes, slice):
        return lanes
    first, last = int(lanes[0]), int(lanes[-1])
    neighbours = last - first + 1 == len(lanes) and np.all(np.diff(lanes) == 1)
    return slice(first, last + 1) if neighbours else lanes


def in_chunks(
    program: Program,
    lanes: Lanes,
    call: Callable[[Motion, Any], object],
    chunk: int | None = None,
    progress: bool | None = False,
    one: Motion | None = None,
    on_device: bool = False,
) -> PyTree:
    """Runs ``call(motion, length)`` for every chunk and returns the results by lane, as numpy arrays.

    With ``on_device``, results of an accelerator stay in its memory, as jax arrays, if they take at most
    MAX_RESULT_SHARE of what is free there: to copy those of a million balls takes fifty times as long as to
    compute a thousand steps of them.

    ``motion``: the numbers of a chunk; ``length``: its largest step count if lanes differ, else None. ``chunk``: number
    of lanes computed at once, by default chosen so that all cores stay busy to the end. ``one``: motion of one lane
    with the user's args, needed if ``lanes`` has other numbers in its args too, such as directions of Jacobians.
    """
    count, ragged, shares = lanes.count, lanes.carries("steps"), devices(lanes.count)
    counts = lanes.motion.steps
    total = int(counts.sum()) if ragged else count * int(counts)
    begin = time.perf_counter()
    # a call that was short runs in this thread: another one would take longer to begin, and Ctrl-C can wait
    short = lanes.seen.get("seconds", np.inf) <= MAX_INLINE_SECONDS
    # steps whose errors a tolerance bounds may take any time
    waiting = 0 if short else total if program.scheme.traits.order is not None else np.inf
    threads = worker_count(waiting) if shares == 1 else 1
    if chunk is None:
        most = shares * _automatic_chunk(program, lanes.first if one is None else one)
        chunk = -(-count // (threads * -(-count // (threads * most))))
    chunks = divide(counts, chunk, shares) if ragged else split(count, chunk, shares)
    show = (sys.stderr.isatty() and len(chunks) > 1) if progress is None else progress
    gathered = (
        _DeviceResults(count)
        if on_device and not (ragged or program.problem.listed) and shares == 1 and platform() != "cpu"
        else _HostResults(count)
    )

    def compute(members: Any, padded: slice | np.ndarray) -> None:
        longest = np.asarray(counts[padded].max(), np.int32) if ragged else None
        gathered.put(members, call(lanes.take(padded), longest))

    bar = tqdm(total=total, unit="step", unit_scale=True, desc=f"{count} motions", disable=not show)
    pool = make_executor(threads, waiting)
    ahead: deque = deque()

    def end_one() -> None:
        ahead[0][1].result()
        members, _ = ahead.popleft()
        bar.update(int(np.broadcast_to(counts, count)[members].sum()))

    try:
        with differentiable():
            for members, padded in chunks:
                ahead.append((members, pool.submit(compute, _as_slice(members), _as_slice(padded))))
                if len(ahead) > 2 * threads:
                    end_one()
            while ahead:
                end_one()
    finally:
        # after an error or Ctrl-C nobody waits for what is under way
        pool.shutdown(wait=not ahead, cancel_futures=True)
        abandon(future for _, future in ahead)
        bar.close()
    lanes.seen["seconds"] = time.perf_counter() - begin
    return gathered.result()


class _HostResults:
    """Collects the results of all chunks in arrays over all lanes; several threads may
    store theirs at the same time."""

    def __init__(self, count: int) -> None:
        self.count, self.arrays, self.lock = count, None, Lock()

    def put(self, members: slice | np.ndarray, found: object) -> None:
        """Stores a chunk's results at the lane indices ``members``; entries beyond ``len(members)`` are padding."""
        leaves, structure = jax.tree.flatten(wait_interruptibly(found))
        leaves = [np.asarray(x) for x in leaves]
        number = members.stop - members.start if isinstance(members, slice) else len(members)
        with self.lock:
            if self.arrays is None:
                check_memory(_size(leaves, self.count), f"the result of {self.count} motions", FEWER_ROWS)
                made = [new_array((self.count, *x.shape[1:]), x.dtype) for x in leaves]
                self.arrays = jax.tree.unflatten(structure, made)
        for target, source in zip(jax.tree.leaves(self.arrays), leaves, strict=True):
            target[members] = source[:number]

    def result(self) -> PyTree:
        return self.arrays


class _DeviceResults:
    """Keeps the results of all chunks, whose lanes are contiguous, where they were computed;
    copies them to the host if they are large."""

    def __init__(self, count: int) -> None:
        self.count, self.lock, self.copies = count, Lock(), _HostResults(count)
        self.parts: dict[int, PyTree] = {}  # by first lane
        self.stay: bool | None = None  # not known before the first chunk

    def put(self, members: slice, found: object) -> None:
        """Stores the results of a chunk of the lanes ``members``; entries beyond their number are padding."""
        found = wait_interruptibly(found)
        with self.lock:
            if self.stay is None:
                self.stay = _size(jax.tree.leaves(found), self.count) <= MAX_RESULT_SHARE * free_memory()
        if not self.stay:
            self.copies.put(members, found)
            return
        number = members.stop - members.start
        self.parts[members.start] = jax.tree.map(lambda x: x if len(x) == number else x[:number], found)

    def result(self) -> PyTree:
        if not self.stay:
            return self.copies.result()
        first, *others = (self.parts[start] for start in sorted(self.parts))
        return jax.tree.map(lambda *x: jnp.concatenate(x), first, *others) if others else first


def _size(leaves: list, count: int) -> float:
    """Bytes of the results of ``count`` lanes, from arrays (n, ...) of the results of n lanes."""
    return sum(float(x.nbytes) / len(x) for x in leaves) * count
