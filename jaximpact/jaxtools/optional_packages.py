"""Import of optional packages at their first use."""

from __future__ import annotations

from typing import Any


def import_optional(module: str, extra: str = "data") -> Any:
    """Imports an optional package; ImportError names the extra of jaximpact to install."""
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'jaximpact[{extra}]'") from error
