"""Optimised code of long programs, compiled by another process while the code that came first is in use.

Another process, since llvmlite lets one thread at a time into LLVM: a thread that optimised would stop the
next program from being compiled.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import NamedTuple

from . import code_generation

VARIABLE = "JAXIMPACT_QUICK_CODE"  # "off": long programs are optimised before their first call
log = logging.getLogger(__name__)


class Order(NamedTuple):
    """IR to be optimised; ``done(code)`` takes the object code."""

    text: str
    done: Callable[[bytes], None]


class _Worker:
    """A thread that has one module after the other compiled by a process."""

    def __init__(self) -> None:
        self.orders: SimpleQueue[Order] = SimpleQueue()
        self.waiting, self.idle = 0, Event()
        self.lock, self.stopped = Lock(), False
        self.child: subprocess.Popen | None = None
        Thread(target=self._run, name="jaximpact: optimised code", daemon=True).start()
        atexit.register(self.stop)

    def add(self, order: Order) -> None:
        with self.lock:
            self.waiting += 1
            self.idle.clear()
        self.orders.put(order)

    def stop(self) -> None:
        """Ends the process that is compiling, when this process ends."""
        self.stopped = True
        if (child := self.child) is not None:
            child.kill()

    def _run(self) -> None:
        while not self.stopped:
            text, done = self.orders.get()
            try:
                done(self._compile(text))
            except Exception as error:  # the code that came first stays
                if not self.stopped:
                    log.info("a program is not optimised: %s", error)
            with self.lock:
                self.waiting -= 1
                if not self.waiting:
                    self.idle.set()

    def _compile(self, text: str) -> bytes:
        import llvmlite

        command = [sys.executable, "-I", "-S", code_generation.__file__, str(Path(llvmlite.__file__).parents[1])]
        # a session of its own: the terminal's interrupt is for this process
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as child:
            self.child = child
            code, _ = child.communicate(text.encode())
        if child.returncode or not code:
            raise OSError(f"LLVM's process ended with {child.returncode}")
        return code


@cache
def _worker(process: int) -> _Worker:
    return _Worker()  # one for each process: one made by fork has no such thread


def is_available() -> bool:
    """Whether this process can have code optimised by another one: a known Python runs it,
    and the user has not switched this off."""
    return os.environ.get(VARIABLE, "").lower() != "off" and Path(sys.executable or "").name.startswith("python")


def optimize_later(text: str, done: Callable[[bytes], None]) -> None:
    """Has a module compiled at full level; ``done(code)`` takes its object code, in another thread,
    in some seconds or never."""
    _worker(os.getpid()).add(Order(text, done))


def wait_for_optimized(seconds: float | None = None) -> bool:
    """Waits until all programs are optimised; returns whether they are, after at most ``seconds``."""
    worker = _worker(os.getpid())
    return not worker.waiting or worker.idle.wait(seconds)
