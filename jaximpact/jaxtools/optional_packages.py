"""Packages that are imported when they are needed, as they may be missing."""

from __future__ import annotations

from typing import Any


def import_optional(module: str, extra: str = "data") -> Any:
    """An optional package, or ImportError that says how to install it."""
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'jaximpact[{extra}]'") from error
