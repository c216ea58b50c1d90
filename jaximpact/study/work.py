"""Scheduling of a study's chunks: in this process or through an executor, with progress, until done,
interrupted or failed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import suppress
from dataclasses import replace
from types import FrameType

from .task import BlockResult, Failure, Task, compute

LOSSES = 3  # times that one task may be lost with its worker
POLL = 1.0  # seconds between two looks at the connection to a scheduler, at most
SAFE = "the finished chunks are safe; run the study again to continue"


class Interrupt:
    """Context in which Ctrl-C is a request: it sets ``asked``, and work stops at the next chunk;
    a second Ctrl-C raises at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        self.main = threading.current_thread() is threading.main_thread()
        if self.main:
            self.usual = signal.signal(signal.SIGINT, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\njaximpact: finishing the chunks in work; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.usual)


def drive(
    tasks: Iterable[Task],
    executor: Executor | None,
    outstanding: int | None,
    keep: Callable[[BlockResult], None],
    interrupt: Interrupt,
    patience: float,
) -> None:
    """Computes every task and passes its result to ``keep``; returns early if an interrupt was requested.

    ``patience``: seconds that the scheduler of a dask executor may be unreachable.
    """
    if executor is not None:
        watch = SchedulerWatch(executor, patience)
        watch.is_lost()  # raises at once where the client is closed
        _through(executor, deque(tasks), outstanding or 2 * workers(executor), keep, interrupt, watch)
        return
    for task in tasks:
        keep(_check_result(compute(task)))
        if interrupt.asked:
            return


def workers(executor: Executor) -> int:
    """Number of tasks that an executor computes at once; the number of CPUs if the executor does not tell."""
    client = getattr(executor, "_client", None)  # of dask
    if client is not None:
        return max(1, sum(client.nthreads().values()))
    return getattr(executor, "_max_workers", None) or os.cpu_count() or 1


class SchedulerLost(RuntimeError):
    """Raised after waiting in vain for the lost dask scheduler of an executor."""


class SchedulerWatch:
    """Watches whether an executor's dask client has lost its scheduler;
    an executor without such a client never counts as lost."""

    def __init__(self, executor: Executor, patience: float) -> None:
        self.patience, self.poll = patience, min(POLL, patience / 20)
        self.client = getattr(executor, "_client", None)
        self.address = getattr(getattr(self.client, "scheduler", None), "address", "")
        self.since: float | None = None

    @property
    def pause(self) -> float | None:
        """Seconds to wait for results before checking the connection again."""
        return None if self.client is None else self.poll

    def is_lost(self) -> bool:
        """Whether the scheduler is unreachable now; raises `SchedulerLost` if the client gave
        up or ``patience`` ran out."""
        if self.client is None or self.client.status == "running":
            self.since = None
            return False
        now = time.monotonic()
        self.since = self.since or now
        if self.client.status in ("closing", "closed") or now - self.since > self.patience:
            raise SchedulerLost(
                f"the dask scheduler {self.address} is gone: start one, connect a new client and give its "
                "get_executor() to run()"
            )
        return True


def _through(
    executor: Executor,
    todo: deque[Task],
    outstanding: int,
    keep: Callable[[BlockResult], None],
    interrupt: Interrupt,
    watch: SchedulerWatch,
) -> None:
    """Runs tasks through an executor, at most ``outstanding`` at a time, which bounds the memory for results."""
    flying: dict[Future, Task] = {}
    try:
        while todo or flying:
            if watch.is_lost():
                if interrupt.asked:
                    return
                # a scheduler drops the tasks of a lost client: submit them again once it is back
                todo.extendleft(flying.values())
                flying.clear()
                time.sleep(watch.poll)
                continue
            while todo and len(flying) < outstanding and not interrupt.asked and not watch.is_lost():
                task = todo.popleft()
                flying[_submit(executor, task)] = task
            if interrupt.asked:
                todo.clear()
                flying = {future: task for future, task in flying.items() if not future.cancel()}
            for future in wait(flying, timeout=watch.pause, return_when=FIRST_COMPLETED).done:
                task = flying.pop(future)
                try:
                    found = future.result()
                except BrokenExecutor as error:
                    raise _executor_broken(error) from error
                except Exception as error:
                    # a task catches its own errors: this one was lost
                    if interrupt.asked:
                        continue
                    if task.attempt + 1 >= LOSSES:
                        raise RuntimeError(
                            f"chunk {task.number} was lost with its worker {LOSSES} times ({type(error).__name__}: "
                            f"{error}): "
                            f"look at the workers' memory and logs; {SAFE}"
                        ) from error
                    todo.appendleft(replace(task, attempt=task.attempt + 1))
                    continue
                keep(_check_result(found))
    finally:
        # without a scheduler there is nobody to ask
        for future in flying if watch.since is None else ():
            with suppress(Exception):
                future.cancel()


def _submit(executor: Executor, task: Task) -> Future:
    try:
        return executor.submit(compute, task)
    except BrokenExecutor as error:
        raise _executor_broken(error) from error


def _executor_broken(error: Exception) -> RuntimeError:
    return RuntimeError(
        f"the executor is broken, one of its workers has died ({error}): make a new one, with fewer workers if memory "
        f"ran out; {SAFE}"
    )


def _check_result(found: BlockResult | Failure) -> BlockResult:
    if isinstance(found, Failure):
        error = RuntimeError(f"chunk {found.number} could not be computed: {found.message}; {SAFE} once this is mended")
        error.add_note(found.details)
        raise error
    return found
