"""Docstrings, which are written for reading as they stand, made safe for reStructuredText."""

from __future__ import annotations

import inspect
import re
from typing import Any

QUOTED = re.compile(r"(``.+?``|(?<!:)`[^`]+`)", re.DOTALL)
NAME = re.compile(r"`~?[A-Za-z_][\w.]{2,}`")


def tame(text: str) -> str:
    """Formulas keep their bars, stars and underscores; what is quoted and no name becomes code."""
    parts = QUOTED.split(text)
    for i, part in enumerate(parts):
        if i % 2:
            plain = part.startswith("``") or NAME.fullmatch(part)
            parts[i] = part if plain else f"``{part[1:-1]}``"
        else:
            part = re.sub(r"(?<!\\)([|*])", r"\\\1", part)
            parts[i] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part)
            # a plural s directly behind a quotation
            parts[i] = f"\\ {parts[i]}" if i and re.match(r"\w", part) else parts[i]
    return "".join(parts)


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = tame("\n".join(lines)).split("\n")


def restore(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Of a property napoleon takes what stands before a colon for a type."""
    if what in ("property", "attribute") and inspect.getdoc(obj):
        lines[:] = tame(inspect.getdoc(obj)).split("\n")


def setup(app: Any) -> dict:
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", restore, priority=900)
    return {"parallel_read_safe": True}
