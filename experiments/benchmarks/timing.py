"""Shortest time of each contender, over rounds in which all of them run in turn, on one core and on all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

LONG_ENOUGH = 0.02  # seconds of repetition in a round
CAN_PIN = hasattr(os, "sched_setaffinity") and Path("/proc/self/task").is_dir()


def all_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if CAN_PIN else os.cpu_count() or 1


@contextmanager
def one_core():
    """All threads of this process, and what it starts meanwhile, on the last of its cores; elsewhere than on Linux,
    none."""
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


def in_new_process(script: str, function: str, *what: Any, cache: str = "off") -> Any:
    """What ``function(*what)`` of a script gives, numbers and texts, in a process of its own.

    ``cache``: folder for its compiled programs, or "off".
    """
    path = Path(script)
    call = (
        f"import sys; sys.path.insert(0, {str(path.parent)!r}); import json, {path.stem} as script; "
        f"print(json.dumps(script.{function}(*{what!r})))"
    )
    environment = os.environ | {"JAXIMPACT_CACHE": cache}
    said = subprocess.run([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(said.stdout.splitlines()[-1])


class Apart:
    """The contenders of ``make()`` in a process of their own that has one core, or all, from its start to its end.

    Libraries choose their threads, and the programs they compile, for the cores they find when they start: pinned
    later, the threads of OpenBLAS wait for each other on one core; let go, jax keeps to one.
    ``make`` has to be importable there.
    """

    def __init__(self, make: Callable[[], list], cores: int):
        self.cores = cores
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _make_here, (make,))

    def __call__(self, measured: Callable, i: int):
        """``measured(contender, cores)`` there, of the i-th contender."""
        with on(self.cores):  # what a process starts has its cores
            return self.pool.submit(_of_made, measured, i, self.cores).result()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pool.shutdown()


class Here:
    """The same in this process, with the cores that it has."""

    def __init__(self, contenders: list):
        self.contenders, self.cores = contenders, all_cores()

    def __call__(self, measured: Callable, i: int):
        return measured(self.contenders[i], self.cores)


_made: list = []  # in a process apart: its contenders


def _make_here(make) -> None:
    _made[:] = make()


def _of_made(measured, i: int, cores: int):
    return measured(_made[i], cores)


def measure(
    make: Callable[[], list], lanes: int, steps: int, rounds: int, budget: float, apart: bool = True
) -> list[tuple[dict, object]]:
    """A row and a result for every contender of ``make()`` and number of cores.

    One core and all are measured in a process `Apart` each, in turn. A contender that has run for ``budget`` seconds
    sits the other rounds out. Compilation is the first call less the shortest other. With ``apart=False`` everything
    runs in this process.
    """
    contenders = make()
    runs = []
    with ExitStack() as stack:
        if apart:
            counts = sorted({1 if CAN_PIN else all_cores(), all_cores()})
            places = [stack.enter_context(Apart(make, cores)) for cores in counts]
        else:
            places = [Here(contenders)]
        for i, contender in enumerate(contenders):
            for place in places if contender.parallel else places[:1]:
                first_call, result = place(once, i)
                row = {"lanes": lanes, "steps": steps, "mode": contender.mode, "contender": contender.label,
                       "dtype": contender.dtype, "cores": place.cores, "seconds": []}  # fmt: skip
                if contender.memory is not None:
                    row["bytes_per_step"] = place(temporaries, i) / (lanes * steps)
                runs.append((row, place, i, first_call, result))
        for _ in range(rounds):
            for row, place, i, *_ in runs:
                if not row["seconds"] or sum(row["seconds"]) < budget:
                    row["seconds"].append(place(shortest, i))
    for row, _, _, first_call, _ in runs:
        row["ns_per_step"] = 1e9 * min(row["seconds"]) / (lanes * steps)
        row["compile_s"] = max(0.0, first_call - min(row["seconds"]))
    return [(row, result) for row, *_, result in runs]


def on(cores: int):
    """One core, or all."""
    return one_core() if cores == 1 else nullcontext()


def once(contender, cores: int) -> tuple[float, object]:
    """Seconds and result of one run."""
    begin = time.perf_counter()
    result = contender.run(cores)
    return time.perf_counter() - begin, result


def temporaries(contender, cores: int) -> int:
    """Bytes of temporaries of the compiled program."""
    return contender.memory()


def shortest(contender, cores: int) -> float:
    """The shortest time of a run, repeated for a while where it is short."""
    best, total = float("inf"), 0.0
    while total < LONG_ENOUGH:
        begin = time.perf_counter()
        contender.run(cores)
        now = time.perf_counter() - begin
        best, total = min(best, now), total + now
    return best
