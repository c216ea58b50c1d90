"""Shortest time of each contender, over rounds in which all of them run in turn, on one core and on all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path

LONG_ENOUGH = 0.02  # seconds of repetition in a round
CAN_PIN = hasattr(os, "sched_setaffinity") and Path("/proc/self/task").is_dir()


def all_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if CAN_PIN else os.cpu_count() or 1


@contextmanager
def one_core():
    """All threads of this process, and what it starts meanwhile, on the last of its cores; elsewhere than on Linux, none."""
    allowed = os.sched_getaffinity(0) if CAN_PIN else None
    if allowed:
        pin({max(allowed)})
    try:
        yield
    finally:
        if allowed:
            pin(allowed)


def pin(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cores)
        except ProcessLookupError:  # it has ended meanwhile
            continue


class Apart:
    """The contenders of ``make()`` in a process of their own that is never pinned, as a user's is.

    A process that was pinned when its libraries started keeps the threads, and the programs, of one core. This one starts
    when it is first asked, with the cores that the asking process has then; ``make`` has to be importable there.
    """

    def __init__(self, make: Callable[[], list]):
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _make_here, (make,))

    def __call__(self, measured: Callable, i: int, cores: int):
        """``measured(run, cores)`` there, ``run`` being that of the i-th contender."""
        return self.pool.submit(_of_made, measured, i, cores).result()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pool.shutdown()


_made: list = []  # in the process apart: its contenders


def _make_here(make) -> None:
    _made[:] = make()


def _of_made(measured, i: int, cores: int):
    return measured(_made[i].run, cores)


def measure(
    make: Callable[[], list], lanes: int, steps: int, rounds: int, budget: float, pinned: bool = True
) -> list[tuple[dict, object]]:
    """A row and a result for every contender of ``make()`` and number of cores.

    All cores are measured in a process `Apart`, in turn with one core in this, which is pinned meanwhile. A contender
    that has run for ``budget`` seconds sits the other rounds out. Compilation is the first call less the shortest other.
    With ``pinned=False`` everything runs on all cores, in this process.
    """
    contenders = make()
    runs = []

    def here(measured, i, cores):
        return measured(contenders[i].run, cores)

    with Apart(make) as apart:
        for i, contender in enumerate(contenders):
            counts = [1] if pinned and (CAN_PIN or all_cores() == 1) else [all_cores()]
            if contender.parallel and all_cores() not in counts:
                counts.append(all_cores())
            for cores in counts:
                ask = here if cores == counts[0] else apart
                first_call, result = ask(once, i, cores)
                row = {"lanes": lanes, "steps": steps, "mode": contender.mode, "contender": contender.label,
                       "dtype": contender.dtype, "cores": cores, "seconds": []}  # fmt: skip
                if contender.memory is not None:
                    row["bytes_per_step"] = contender.memory() / (lanes * steps)
                runs.append((row, ask, i, first_call, result))
        for _ in range(rounds):
            for row, ask, i, *_ in runs:
                if not row["seconds"] or sum(row["seconds"]) < budget:
                    row["seconds"].append(ask(shortest, i, row["cores"]))
    for row, _, _, first_call, _ in runs:
        row["ns_per_step"] = 1e9 * min(row["seconds"]) / (lanes * steps)
        row["compile_s"] = max(0.0, first_call - min(row["seconds"]))
    return [(row, result) for row, *_, result in runs]


def on(cores: int):
    """One core or all."""
    return one_core() if cores == 1 else nullcontext()


def once(run, cores: int) -> tuple[float, object]:
    """Seconds and result of ``run(cores)``, pinned as it will be timed: programs are compiled for the cores they find."""
    with on(cores):
        begin = time.perf_counter()
        result = run(cores)
        return time.perf_counter() - begin, result


def shortest(run, cores: int) -> float:
    """The shortest time of ``run(cores)``, repeated for a while where it is short."""
    best, total = float("inf"), 0.0
    with on(cores):
        while total < LONG_ENOUGH:
            begin = time.perf_counter()
            run(cores)
            now = time.perf_counter() - begin
            best, total = min(best, now), total + now
    return best
