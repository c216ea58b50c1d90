"""Checks the shapes that annotations state, where this is loaded before the package: pytest's `-p support.shapes`."""

from pathlib import Path

import jaxtyping
from beartype import beartype

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "jaximpact").rglob("*.py"))
    if "array_types import" in path.read_text()
]
CHECKED = set()  # the names of the functions that state shapes


def checked(function):
    """Checks the arrays of one call of a function; what is no array with a shape is mypy's to check."""
    kinds = function.__annotations__
    function.__annotations__ = {name: kind for name, kind in kinds.items() if "jaxtyping" in repr(kind)}
    if not function.__annotations__:
        return function
    CHECKED.add((function.__module__, function.__qualname__))
    return beartype(function)


jaxtyping.install_import_hook(MODULES, "support.shapes.checked")
