"""Threads: pools that Ctrl-C can interrupt, jax settings local to a thread,
and refusal to compute in forked processes."""

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
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import TypeVar

import jax
import numpy as np
from jax.extend.core import get_opaque_trace_state

from .operating_system import core_count
from .trace_context import in_new_thread, platform, setting

T = TypeVar("T")

try:
    from jax._src.xla_bridge import backends_are_initialized
except ImportError:  # pragma: no cover - another jax: a fork is not recognised
    backends_are_initialized = lambda: False
try:
    from jax._src.config import config_ext

    _UNSET = config_ext.unset
except (ImportError, AttributeError):  # pragma: no cover - another jax: settings are compared with another thread's
    _UNSET = None

INTERRUPTIBLE_STEPS = 10_000  # steps of a motion that runs in a second thread, so that Ctrl-C gets through
_is_fork = False  # whether this process was forked from one that had started jax, and lacks jax's threads


def _after_fork() -> None:
    global _is_fork
    _is_fork = backends_are_initialized()
    _idle_queues.clear()  # a fork does not copy the threads that serve these queues


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def refuse_fork() -> None:
    """Raises RuntimeError in a process that was forked after jax was started: jax's threads are not forked, and
    computations would never end."""
    if _is_fork:
        raise RuntimeError(
            "this process was forked from one that had used jax, and cannot compute: start processes with "
            "multiprocessing.get_context('spawn') (or 'forkserver'), or fork before anything is computed"
        )


_abandoned: list[Future] = []  # computations that still ran when Ctrl-C ended the wait for them


def abandon(futures: Iterable[Future]) -> None:
    """Records running computations, which cannot be cancelled, so that the end of the
    process does not wait for them."""
    _abandoned[:] = filter(_is_running, [*_abandoned, *futures])


def _is_running(future: Future) -> bool:
    """Whether a call still runs, or has returned arrays that jax still computes."""
    if future.cancelled() or not future.done():
        return not future.cancelled()
    return future.exception() is None and not all(map(_is_ready, jax.tree.leaves(future.result())))


def _is_ready(x: object) -> bool:
    return not hasattr(x, "is_ready") or x.is_ready()


@atexit.register
def _exit_without_waiting() -> None:
    """Ends the process at once if abandoned computations still run; otherwise jax would wait for them."""
    if any(map(_is_running, _abandoned)):
        sys.stdout.flush()
        sys.stderr.flush()
        uncaught = getattr(sys, "last_type", None)
        os._exit(0 if uncaught is None else 130 if uncaught is KeyboardInterrupt else 1)


_idle_queues: list[SimpleQueue] = []  # one for each thread without work: a task put there is run by it


def _worker_queue() -> SimpleQueue:
    """Returns the task queue of an idle daemon thread, which runs the functions put there;
    starts a thread if none is idle."""

    def serve() -> None:
        while True:
            tasks.get()()
            _idle_queues.append(tasks)

    with suppress(IndexError):
        return _idle_queues.pop()
    tasks: SimpleQueue = SimpleQueue()
    threading.Thread(target=serve, daemon=True).start()
    return tasks


class DaemonPool(Executor):
    """Executor on ``count`` daemon threads, which the interpreter does not wait for at its end.

    Later pools reuse the threads: starting one takes longer than computing a small ensemble.
    """

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue = SimpleQueue()
        self._done: SimpleQueue = SimpleQueue()
        self._count = count
        for _ in range(count):
            _worker_queue().put(self._work)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            # arrays would otherwise stay alive while this thread waits for its next job
            del job, future, function
        self._done.put(None)

    def submit(self, function: Callable, /, *args: object, **kwargs: object) -> Future:
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
    """Executor that runs each call in the calling thread, within `submit`."""

    def submit(self, function: Callable, /, *args: object, **kwargs: object) -> Future:
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def _jax_context() -> tuple:
    """Jax's settings and trace state in this thread."""
    return jax.config.values, get_opaque_trace_state()


_NO_TRANSFORMATION = in_new_thread(get_opaque_trace_state)


@lru_cache(1)
def _local_settings(count: int) -> list[Callable[[], object]]:
    """For each of jax's ``count`` settings that can be local to a thread, the function that returns its local value."""
    return [x.get_local for x in setting("_value_holders").values() if hasattr(x, "get_local")]


def has_default_context() -> bool:
    """Whether another thread would compute the same as this one: no jax transformation is active,
    and no jax setting is local to this thread.

    Settings are local to a thread within a context such as ``with jax.enable_x64(...)``.
    """
    if _UNSET is not None and get_opaque_trace_state() == _NO_TRANSFORMATION:
        settings = _local_settings(len(setting("_value_holders")))
        # the comparison with another thread takes longer than a small ensemble
        if all(found() is _UNSET for found in settings):
            return True
    with DaemonPool(1) as other:
        return other.submit(_jax_context).result() == _jax_context()


def worker_count(steps: float = np.inf) -> int:
    """Returns the number of threads for chunks of lanes with ``steps`` steps in all: one per CPU core,
    as XLA runs a loop on one core.

    It is 1 if the steps are few, on an accelerator, and where another thread would not have this thread's jax settings.
    """
    return core_count() if steps > INTERRUPTIBLE_STEPS and platform() == "cpu" and has_default_context() else 1


def make_executor(threads: int, steps: float = np.inf) -> Executor:
    """Returns an executor of ``threads`` threads for chunks of lanes with ``steps`` steps in all.

    A single thread is the calling one. But if that is the main thread and the work is long, another thread does it,
    since Python delivers signals such as Ctrl-C to the main thread only.
    """
    main = steps > INTERRUPTIBLE_STEPS and threading.current_thread() is threading.main_thread()
    return DaemonPool(threads) if threads > 1 or (main and has_default_context()) else InlineExecutor()


def wait_interruptibly(tree: T) -> T:
    """Waits for the arrays of ``tree`` and returns them, as `jax.block_until_ready`,
    but signals such as Ctrl-C get through."""
    begin = time.perf_counter()
    for leaf in jax.tree.leaves(tree):
        while not _is_ready(leaf):
            # polling: the sleep grows with the time waited, so that at most a hundredth is lost
            time.sleep(min(0.02, 1e-5 + (time.perf_counter() - begin) / 100))
    return tree


def call_interruptibly(call: Callable[[], T], steps: int) -> T:
    """Returns ``call()``, which makes so many ``steps``; a long call from the main thread runs in another thread, so
    that Ctrl-C gets through."""
    if (
        steps < INTERRUPTIBLE_STEPS
        or threading.current_thread() is not threading.main_thread()
        or not has_default_context()
    ):
        return call()
    other = DaemonPool(1)
    found = other.submit(call)
    other.shutdown(wait=False)
    try:
        return wait_interruptibly(found.result())
    except BaseException:
        abandon([found])
        raise
