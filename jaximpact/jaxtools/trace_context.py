"""State of the thread while jax traces: settings, the platform, active transformations, and garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Thread
from typing import Any, TypeVar

import jax
from jax.extend.core import get_opaque_trace_state

T = TypeVar("T")

try:
    from jax._src.config import trace_context as trace_settings
except ImportError:  # pragma: no cover - another jax: all settings, not only those that affect traces

    def trace_settings() -> Hashable:
        """Settings of jax in this thread that affect traces, as a hashable key."""
        return tuple(jax.config.values.items())


def setting(name: str) -> Any:
    """Returns the value of one of jax's settings in this thread."""
    return getattr(jax.config, name)


def _trace_state() -> object:
    """Returns a value that is the same in all threads outside of jax transformations,
    and another one inside a transformation."""
    return setting("jax_disable_jit"), get_opaque_trace_state()


def in_new_thread(function: Callable[[], T]) -> T:
    """Result of a function that a new thread calls, which is in no trace, as this one may be: modules are imported when
    their names are first used."""
    found: list = []
    thread = Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


_NO_TRACE = in_new_thread(_trace_state)


def is_concrete() -> bool:
    """Whether no jax transformation is active, so that all values are concrete, closed-over ones included."""
    return _trace_state() == _NO_TRACE


def platform() -> str:
    """Returns the platform, such as "cpu" or "gpu", on which jax runs programs for which no device is named."""
    device = setting("jax_default_device")
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


@contextmanager
def full_precision() -> Iterator[None]:
    """Context manager in which traced products of matrices keep the digits of their dtype,
    unless a setting of jax says otherwise.

    By default GPUs round the factors of float32 products to ten bits, three digits.
    """
    chosen = setting("jax_default_matmul_precision") is not None
    with nullcontext() if chosen or platform() == "cpu" else jax.default_matmul_precision("highest"):
        yield


@contextmanager
def without_collection() -> Iterator[None]:
    """Context manager that suspends garbage collection, which takes an eighth of the time of tracing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
