"""Many motions in chunks that fit memory, on all cores, with a progress bar.

Lanes are grouped by their number of steps, so that the work stays near the sum of the steps. The host loops over chunks; a
lane's numbers do not depend on its neighbours.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from .checks import check_memory
from .chunks import divide
from .motion import Lanes, Motion
from .program import Program
from .threads import arrived, crew, leave, workers
from .validate import differentiable

FEWER_ROWS = "keep fewer rows (save='final', every k-th step, times, or a function), or compute fewer motions at once"
MEMORY = 256 * 2**20  # bytes of saved rows in one automatic chunk
LARGEST = 16384  # lanes in one automatic chunk on a CPU,
LARGEST_ON_DEVICE = 2**20  # and on an accelerator, which they have to fill


def largest() -> int:
    """Lanes in one automatic chunk at most."""
    return LARGEST if jax.default_backend() == "cpu" else LARGEST_ON_DEVICE


def devices(lanes: int) -> int:
    """How many devices share the lanes of a chunk."""
    one_device = jax.config.jax_default_device is not None  # type: ignore[attr-defined]
    return 1 if lanes == 1 or one_device else jax.local_device_count()


def _automatic_chunk(program: Program, one: Motion) -> int:
    """Lanes whose saved rows fit MEMORY."""
    m = program.problem.count(one.t0, one.q0, one.args)
    made = (one.q0.shape[0] + m) * one.q0.dtype.itemsize if program.function is None else 0
    row = program.row_size(one, m) + made
    return int(np.clip(MEMORY // ((program.rows + 1) * max(row, 1)), 1, largest()))


def _span(lanes: np.ndarray) -> Any:
    """These lanes as an index: neighbours as a slice, for which nothing is gathered."""
    first, last = int(lanes[0]), int(lanes[-1])
    neighbours = last - first + 1 == len(lanes) and np.all(np.diff(lanes) == 1)
    return slice(first, last + 1) if neighbours else lanes


def in_chunks(
    program: Program, lanes: Lanes, call: Callable[[Motion, Any], Any], chunk: int | None = None, progress: Any = False
) -> Any:
    """``call(motion, length)`` for every chunk; its results, lane by lane, as numpy arrays.

    ``motion``: the numbers of a chunk; ``length``: the most steps in it, where lanes differ, else None. ``chunk``: lanes
    computed at once, by default as many as keep all cores at work to the end.
    """
    count = lanes.count
    counts = np.broadcast_to(lanes.motion.steps, count)
    ragged, shares = lanes.carries("steps"), devices(count)
    threads = workers() if shares == 1 else 1
    if chunk is None:
        most = shares * _automatic_chunk(program, lanes.take(0))
        chunk = -(-count // (threads * -(-count // (threads * most))))
    chunks = divide(counts, chunk)
    result: Any = None
    show = (sys.stderr.isatty() and len(chunks) > 1) if progress is None else progress

    def begin(pool: Executor, padded: np.ndarray) -> Future:
        padded = np.append(padded, np.repeat(padded[-1:], -len(padded) % shares))
        longest = jnp.asarray(counts[padded].max(), jnp.int32) if ragged else None
        return pool.submit(call, lanes.take(_span(padded)), longest)

    bar = tqdm(total=int(counts.sum()), unit="step", unit_scale=True, disable=not show, desc=f"{count} motions")
    pool = crew(threads)
    ahead: deque = deque()
    try:
        ahead.extend((members, begin(pool, padded)) for members, padded in chunks[:threads])
        for i in range(len(chunks)):
            members, future = ahead[0]
            with differentiable():
                found = jax.tree.map(np.asarray, arrived(future.result()))
            ahead.popleft()
            if i + threads < len(chunks):
                following, padded = chunks[i + threads]
                ahead.append((following, begin(pool, padded)))
            if result is None:
                size = sum(float(x.nbytes) for x in jax.tree.leaves(found)) / len(chunks[i][1]) * count
                check_memory(size, f"the result of {count} motions", FEWER_ROWS)
                result = jax.tree.map(lambda x: np.empty((count, *x.shape[1:]), x.dtype), found)
            places = _span(members)
            for target, source in zip(jax.tree.leaves(result), jax.tree.leaves(found), strict=True):
                target[places] = source[: len(members)]
            bar.update(int(counts[members].sum()))
    finally:
        # after an error or Ctrl-C nobody waits for what is under way
        pool.shutdown(wait=not ahead, cancel_futures=True)
        leave(future for _, future in ahead)
        bar.close()
    return result
