"""How far one long motion has come, and a bar that shows it while another thread computes."""

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
    """What part of a motion of so many steps is done."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.share: Callable[[], float] = lambda: 0.0

    def count(self, turns: np.ndarray, rows: int) -> None:
        """Told by a number of turns that grows in memory, an array (1,): rows made, or steps where there are none."""
        self.share = lambda: min(float(turns[0]) / (rows or self.steps), 1.0)


def current_watch() -> Watch | None:
    """Whoever wants to know about the motion that is computed here."""
    return _watch.get()


def report(done: Any) -> None:
    """From within a program of XLA: the part that is done."""
    if _through_xla:
        part = float(done)
        _through_xla[-1].share = lambda: part


@contextmanager
def bar(steps: int) -> Iterator[None]:
    """A progress bar of a motion of so many steps, computed inside."""
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
