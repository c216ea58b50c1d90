"""Threads that let Ctrl-C through, jax settings that threads must share, and forked processes, which cannot compute."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any

import jax
import numpy as np
from jax.extend.core import get_opaque_trace_state

try:
    from jax._src.xla_bridge import backends_are_initialized
except ImportError:  # pragma: no cover - another jax: nothing can be said before a fork
    backends_are_initialized = lambda: False
try:
    from jax._src.config import config_ext

    _UNSET = config_ext.unset
except (ImportError, AttributeError):  # pragma: no cover - another jax: a thread is asked
    _UNSET = None

INTERRUPTIBLE_STEPS = 10_000  # steps from which a motion is waited for in a way that Ctrl-C gets through
_orphan = False  # whether this process was forked from one whose threads of jax it lacks


def _after_fork() -> None:
    global _orphan
    _orphan = backends_are_initialized()
    _idle.clear()  # a fork copies no threads


if os.name == "posix":
    os.register_at_fork(after_in_child=_after_fork)


def refuse_fork() -> None:
    """Raises RuntimeError in a forked process, which would wait for ever for jax's threads, since a fork does not copy them."""
    if _orphan:
        raise RuntimeError(
            "this process was forked from one that had used jax, and cannot compute: start processes with "
            "multiprocessing.get_context('spawn') (or 'forkserver'), or fork before anything is computed"
        )


_interrupted: list[Future] = []  # what Ctrl-C left behind


def abandon(futures: Iterable[Future]) -> None:
    """Stops waiting for computations that cannot be cancelled; the process does not wait for them at its end either."""
    _interrupted[:] = filter(_is_running, [*_interrupted, *futures])


def _is_running(future: Future) -> bool:
    if future.cancelled() or not future.done():
        return not future.cancelled()
    return future.exception() is None and not all(map(_is_ready, jax.tree.leaves(future.result())))


def _is_ready(x: Any) -> bool:
    return not hasattr(x, "is_ready") or x.is_ready()


@atexit.register
def _end() -> None:
    """Ends an interrupted process at once; jax would wait for running computations."""
    if any(map(_is_running, _interrupted)):
        sys.stdout.flush()
        sys.stderr.flush()
        uncaught = getattr(sys, "last_type", None)
        os._exit(0 if uncaught is None else 130 if uncaught is KeyboardInterrupt else 1)


_idle: list[SimpleQueue] = []  # the tasks of threads that wait for some


def _thread() -> SimpleQueue:
    """The task queue of an idle thread, or of a new one."""

    def serve() -> None:
        while True:
            tasks.get()()
            _idle.append(tasks)

    with suppress(IndexError):
        return _idle.pop()
    tasks: SimpleQueue = SimpleQueue()
    threading.Thread(target=serve, daemon=True).start()
    return tasks


class DaemonPool(Executor):
    """Executor on daemon threads, which the interpreter does not wait for at its end.

    Its threads are reused by later pools: starting one takes longer than many a small ensemble.
    """

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue = SimpleQueue()
        self._done: SimpleQueue = SimpleQueue()
        self._count = count
        for _ in range(count):
            _thread().put(self._work)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            # nothing is kept alive while this thread waits
            del job, future, function
        self._done.put(None)

    def submit(self, function: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        context = copy_context()
        self._jobs.put((future, lambda: context.run(function, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with suppress(Empty):
            while cancel_futures:
                self._jobs.get_nowait()[0].cancel()
        for _ in range(self._count):
            self._jobs.put(None)
        for _ in range(self._count if wait else 0):
            self._done.get()


class InlineExecutor(Executor):
    """Executor that runs each call at once, in the calling thread."""

    def submit(self, function: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def _ambient() -> tuple[Any, Any]:
    return jax.config.values, get_opaque_trace_state()


_NONE = get_opaque_trace_state()  # no transformation


def is_usual() -> bool:
    """Whether another thread would compute the same: no jax transformation is active here, and no thread-local jax setting.

    Thread-local settings come from `with jax.enable_x64(...)` and the like.
    """
    if _UNSET is not None and get_opaque_trace_state() == _NONE:
        states = [x for x in jax.config._value_holders.values() if hasattr(x, "get_local")]  # type: ignore[attr-defined]
        if all(x.get_local() is _UNSET for x in states):  # to ask another thread takes longer than many an ensemble
            return True
    with DaemonPool(1) as other:
        return other.submit(_ambient).result() == _ambient()


def workers(steps: float = np.inf) -> int:
    """Number of threads for chunks with ``steps`` steps in all: one per CPU core, since XLA runs a loop over small arrays on one core."""
    return core_count() if steps > INTERRUPTIBLE_STEPS and jax.default_backend() == "cpu" and is_usual() else 1


def core_count() -> int:
    """Number of processor cores available to this process; one if unknown."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def make_executor(threads: int, steps: float = np.inf) -> Executor:
    """Executor for chunks with ``steps`` steps in all.

    One thread is the calling thread itself, unless it is the main thread and the work takes long: signals must reach that one.
    """
    main = steps > INTERRUPTIBLE_STEPS and threading.current_thread() is threading.main_thread()
    return DaemonPool(threads) if threads > 1 or (main and is_usual()) else InlineExecutor()


def wait_interruptibly(tree: Any) -> Any:
    """Waits for the arrays of ``tree`` and returns them; unlike `jax.block_until_ready` it lets signals through."""
    begin = time.perf_counter()
    for leaf in jax.tree.leaves(tree):
        while not _is_ready(leaf):
            # at most a hundredth of the time is slept too long
            time.sleep(min(0.02, 1e-5 + (time.perf_counter() - begin) / 100))
    return tree


def interruptible(call: Callable, steps: int) -> Any:
    """Result of ``call()``; a long one called in the main thread runs in another thread, so that signals get through."""
    if steps < INTERRUPTIBLE_STEPS or threading.current_thread() is not threading.main_thread() or not is_usual():
        return call()
    other = DaemonPool(1)
    found = other.submit(call)
    other.shutdown(wait=False)
    try:
        return wait_interruptibly(found.result())
    except BaseException:
        abandon([found])
        raise
