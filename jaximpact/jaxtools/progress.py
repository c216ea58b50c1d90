"""Progress of one long motion, and a progress bar drawn by a second thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from jax import Array
from tqdm import tqdm

REFRESH_SECONDS = 0.1  # between two updates of the bar
XLA_REPORTS = 200  # callbacks of a motion that XLA executes
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
# Watches of running motions. XLA calls back in threads without a context variable: a report is of the motion begun
# last.
_xla_watches: list[Watch] = []


class Watch:
    """Progress of one running motion, as a fraction of its steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.share: Callable[[], float] = lambda: 0.0

    def count(self, turns: np.ndarray, rows: int) -> None:
        """Takes the fraction from a counter in memory, ``turns`` (1,),
        which native code increments at each of the motion's ``rows``.

        If ``rows`` is 0, native code increments it at each step instead.
        """
        self.share = lambda: min(float(turns[0]) / (rows or self.steps), 1.0)


def current_watch() -> Watch | None:
    """Returns the watch of the motion that runs in this context; None if no progress is displayed."""
    return _watch.get()


def report_fraction(done: Array) -> None:
    """Stores the fraction ``done`` of steps that a motion in an XLA program has made; such programs call it back."""
    if _xla_watches:
        part = float(done)
        _xla_watches[-1].share = lambda: part


@contextmanager
def progress_bar(steps: int) -> Iterator[None]:
    """Context manager that shows a progress bar for the motion of ``steps`` steps that is computed within."""
    watch, ended = Watch(steps), threading.Event()
    shown = tqdm(total=steps, unit="step", unit_scale=True, desc="1 motion")

    def refresh_until_end() -> None:
        while not ended.wait(REFRESH_SECONDS):
            shown.n = int(watch.share() * steps)
            shown.refresh()

    refresher = threading.Thread(target=refresh_until_end, daemon=True)
    token = _watch.set(watch)
    _xla_watches.append(watch)
    refresher.start()
    try:
        yield
        watch.share = lambda: 1.0
    finally:
        _watch.reset(token)
        _xla_watches.remove(watch)
        ended.set()
        refresher.join()
        shown.n = int(watch.share() * steps)
        shown.refresh()
        shown.close()
