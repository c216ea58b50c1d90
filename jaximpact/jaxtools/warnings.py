"""Warnings of the package, attributed to the line of the user's code that called it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(__file__))  # frames of its files are skipped


class JaximpactWarning(UserWarning):
    """Warning about a problem or a setting; the computation goes on."""


_silent: ContextVar[bool] = ContextVar("_silent", default=False)
_made = 0


@contextmanager
def without_remarks() -> Iterator[None]:
    """Context manager that silences `remark` in this thread; the filters of `warnings` are shared by all
    threads and stay as they are."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def remark(text: str, stacklevel: int) -> None:
    """Issues a `JaximpactWarning` at the frame ``stacklevel`` levels up,
    or at the first one above it outside the package."""
    global _made
    _made += 1
    if not _silent.get():
        frame = sys._getframe(stacklevel)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
            frame, stacklevel = frame.f_back, stacklevel + 1
        warnings.warn(text, JaximpactWarning, stacklevel=stacklevel + 1)


def remarks_so_far() -> int:
    """How many remarks there were to make in this process, silenced ones too."""
    return _made
