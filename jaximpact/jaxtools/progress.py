"""Progress of one long motion, and a bar that shows it while another thread computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from tqdm import tqdm

EVERY = 0.1  # seconds between two looks
LOOKS = 200  # reports of a motion through XLA
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_through_xla: list[Watch] = []  # reports come from threads that know no context: they are those of the latest motion


class Watch:
    """Progress of one running motion, as a fraction of its steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.share: Callable[[], float] = lambda: 0.0

    def count(self, turns: np.ndarray, rows: int) -> None:
        """Reads progress from a counter in memory, an array (1,) that native code increments by row, or by step if there are no rows."""
        self.share = lambda: min(float(turns[0]) / (rows or self.steps), 1.0)


def current_watch() -> Watch | None:
    """The watch of this context, None if nobody displays progress."""
    return _watch.get()


def report(done: Any) -> None:
    """Callback of XLA programs: reports the fraction done."""
    if _through_xla:
        part = float(done)
        _through_xla[-1].share = lambda: part


@contextmanager
def bar(steps: int) -> Iterator[None]:
    """Context that shows a progress bar for the motion of ``steps`` steps computed in it."""
    watch, ended = Watch(steps), threading.Event()
    shown = tqdm(total=steps, unit="step", unit_scale=True, desc="1 motion")

    def look() -> None:
        while not ended.wait(EVERY):
            shown.n = int(watch.share() * steps)
            shown.refresh()

    eye = threading.Thread(target=look, daemon=True)
    token = _watch.set(watch)
    _through_xla.append(watch)
    eye.start()
    try:
        yield
        watch.share = lambda: 1.0
    finally:
        _watch.reset(token)
        _through_xla.remove(watch)
        ended.set()
        eye.join()
        shown.n = int(watch.share() * steps)
        shown.refresh()
        shown.close()
