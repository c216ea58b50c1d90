"""Settings of jax on which it depends what is traced, and whether numbers are known; and of Python while it is."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.extend.core import get_opaque_trace_state

try:
    from jax._src.config import trace_context as settings
except ImportError:  # pragma: no cover - another jax: all of them, which takes longer

    def settings() -> Hashable:
        """Those that hold in this thread, as one value."""
        return tuple(jax.config.values.items())


def _clean() -> Any:
    return jax.config.jax_disable_jit, get_opaque_trace_state()  # type: ignore[attr-defined]


_CLEAN = _clean()


def is_concrete() -> bool:
    """Whether no transformation of jax is under way, so that all numbers are known, those that functions close over too."""
    return _clean() == _CLEAN


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for garbage meanwhile: tracing makes millions of objects that are used, and to look through them again and again
    takes an eighth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
