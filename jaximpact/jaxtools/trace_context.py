"""Thread state that traces depend on: jax settings, whether a transformation is active, and garbage collection."""

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
        """The jax settings of this thread that affect traces, as one hashable value."""
        return tuple(jax.config.values.items())


def _clean() -> Any:
    return jax.config.jax_disable_jit, get_opaque_trace_state()  # type: ignore[attr-defined]


_CLEAN = _clean()


def is_concrete() -> bool:
    """Whether no jax transformation is active, so that all numbers are known, closed-over ones included."""
    return _clean() == _CLEAN


@contextmanager
def without_collection() -> Iterator[None]:
    """Context without garbage collection, which would take an eighth of the time of tracing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
