"""Benchmark problems with exact motions: `names` lists them, `get` finds one by name or id."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module

from .base import Case, Entry, Orders

__all__ = ["FAMILIES", "Case", "Entry", "Orders", "entries", "get", "names"]

FAMILIES = (
    "balls",
    "oscillators",
    "moving",
    "corners",
    "curved",
    "billiards",
    "chains",
    "bar",
    "spheres",
    "linkages",
    "friction",
    "space",
    "rolling",
    "counterexamples",
)


@cache
def entries() -> tuple[Entry, ...]:
    """Every problem of the catalogue, by id. The modules that hold them are imported on the first call."""
    modules = (import_module(f".{family}", __name__) for family in FAMILIES)
    return tuple(sorted((entry for module in modules for entry in module.ENTRIES), key=lambda entry: entry.id))


def names() -> tuple[str, ...]:
    """Names of the problems, in the order of `entries`."""
    return tuple(entry.name for entry in entries())


def get(name_or_id: str) -> Entry:
    """The problem with a given name ("bouncing-ball") or id ("B01"); upper and lower case are the same."""
    table = {key.lower(): entry for entry in entries() for key in (entry.id, entry.name)}
    key = str(name_or_id).lower()
    if key not in table:
        close = get_close_matches(key, table, n=1, cutoff=0.4)
        hint = f"did you mean {table[close[0]].name!r}?" if close else f"there are {', '.join(names())}"
        raise KeyError(f"no catalogue problem {name_or_id!r}; {hint}")
    return table[key]
