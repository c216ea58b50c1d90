"""Shortest time of each contender, over rounds in which all of them run in turn, on one core and on all."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, nullcontext
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


def measure(
    contenders, lanes: int, steps: int, rounds: int, budget: float, pinned: bool = True
) -> list[tuple[dict, object]]:
    """A row and a result for every contender and number of cores.

    A contender that has run for ``budget`` seconds sits the other rounds out. Compilation is the first call less the
    shortest other. With ``pinned=False`` everything runs on all cores.
    """
    runs = []
    for contender in contenders:
        counts = [1] if pinned and (CAN_PIN or all_cores() == 1) else [all_cores()]
        if contender.parallel and all_cores() not in counts:
            counts.append(all_cores())
        for cores in counts:
            # as it will be timed: a program may be compiled for the number of cores it finds
            with one_core() if cores == 1 else nullcontext():
                begin = time.perf_counter()
                result = contender.run(cores)
                first_call = time.perf_counter() - begin
            row = {"lanes": lanes, "steps": steps, "mode": contender.mode, "contender": contender.label,
                   "dtype": contender.dtype, "cores": cores, "seconds": []}  # fmt: skip
            if contender.memory is not None:
                row["bytes_per_step"] = contender.memory() / (lanes * steps)
            runs.append((row, contender, cores, first_call, result))
    for _ in range(rounds):
        for row, contender, cores, *_ in runs:
            if not row["seconds"] or sum(row["seconds"]) < budget:
                row["seconds"].append(seconds(contender.run, cores))
    for row, _, _, first_call, _ in runs:
        row["ns_per_step"] = 1e9 * min(row["seconds"]) / (lanes * steps)
        row["compile_s"] = max(0.0, first_call - min(row["seconds"]))
    return [(row, result) for row, *_, result in runs]


def seconds(run, cores: int) -> float:
    """The shortest time of ``run(cores)``, repeated for a while where it is short."""
    if cores == 1:
        with one_core():
            return shortest(run, cores)
    return shortest(run, cores)


def shortest(run, cores: int) -> float:
    best, total = float("inf"), 0.0
    while total < LONG_ENOUGH:
        begin = time.perf_counter()
        run(cores)
        now = time.perf_counter() - begin
        best, total = min(best, now), total + now
    return best
