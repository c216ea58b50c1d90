"""Warnings about a problem that is computed all the same, attributed to the caller outside the package."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

HERE = os.path.dirname(os.path.dirname(__file__))  # the package


class JaximpactWarning(UserWarning):
    """A remark about a problem that is computed all the same."""


_silent: ContextVar[bool] = ContextVar("_silent", default=False)


@contextmanager
def without_remarks() -> Iterator[None]:
    """Context without remarks from this thread; the filters of `warnings`, which all threads share, stay untouched."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def remark(text: str, stacklevel: int) -> None:
    """Warns the caller ``stacklevel`` levels up, or the first caller outside this package."""
    if not _silent.get():
        frame = sys._getframe(stacklevel)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
            frame, stacklevel = frame.f_back, stacklevel + 1
        warnings.warn(text, JaximpactWarning, stacklevel=stacklevel + 1)
