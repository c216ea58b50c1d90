"""Settings of jax on which it depends what is traced, and how it is compiled."""

from __future__ import annotations

from collections.abc import Hashable

import jax

try:
    from jax._src.config import trace_context as settings
except ImportError:  # pragma: no cover - another jax: all of them, which takes longer

    def settings() -> Hashable:
        """Those that hold in this thread, as one value."""
        return tuple(jax.config.values.items())
