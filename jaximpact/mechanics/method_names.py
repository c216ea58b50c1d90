"""Table of methods: schemes and projections by name, and the classes that a study may store."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from .contact import ADMM, ActiveSet, ContactSolver, ProjectedGradient
from .contact.conjugate_gradients import ConjugateGradients
from .schemes import EventCorrected, EventDriven, Maury, MoreauJean, PaoliSchatzman, Scheme

SCHEMES: dict[str, Callable[[], Scheme]] = {
    "paoli-schatzman": lambda: PaoliSchatzman(),
    "paoli-schatzman-explicit": lambda: PaoliSchatzman(normal="explicit"),
    "maury": lambda: Maury(),
    "maury-half-kick": lambda: Maury(half_kick=True),
    "moreau-jean": lambda: MoreauJean(),
    "event-corrected": lambda: EventCorrected(),
    "event-driven": lambda: EventDriven(),
}
PROJECTIONS: dict[str, Callable[[], ContactSolver]] = {
    "active-set": lambda: ActiveSet(),
    "projected-gradient": lambda: ProjectedGradient(),
    "admm": lambda: ADMM(),
}

# classes that a study's store records by name; a user's own schemes and contact solvers are recorded too
METHODS: tuple[type, ...] = (
    ADMM,
    ActiveSet,
    ConjugateGradients,
    ProjectedGradient,
    EventCorrected,
    EventDriven,
    Maury,
    MoreauJean,
    PaoliSchatzman,
)


def scheme_from_name(name: str, force: str | None = None) -> Scheme:
    """Returns the scheme with a given name, or a user's own as "module:name"; ``force`` sets the option of that name of
    Paoli-Schatzman schemes."""
    scheme = _own("scheme", name) if isinstance(name, str) and ":" in name else lookup("scheme", name, SCHEMES)()
    if force is None:
        return scheme
    if "force" not in vars(scheme):
        raise ValueError(f"{name} has one discretisation of the force: a choice is for the paoli-schatzman schemes")
    return replace(scheme, force=force)


def projection_from_name(name: str) -> ContactSolver:
    """Returns the contact solver with a given name, or a user's own as "module:name"."""
    return (
        _own("projection", name) if isinstance(name, str) and ":" in name else lookup("projection", name, PROJECTIONS)()
    )


def _own(kind: str, name: str) -> Any:
    """Imports the object "module:name", instantiated if it is a class; modules in the working directory are found."""
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{kind} {name!r}: {error}; write module:name, of a module that Python finds") from error
    finally:
        sys.path.remove(here)
    return found() if isinstance(found, type) else found


def lookup(kind: str, name: str, table: dict) -> Any:
    """Returns the table's entry for a name; its ValueError suggests the closest one."""
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"unknown {kind} {name!r}; {suggestion(name, table)}")
    return table[name]


def suggestion(name: str, names: Iterable[str]) -> str:
    """Returns a text that suggests the closest name, or lists all names."""
    names = list(names)
    close = get_close_matches(str(name).lower(), names, n=1, cutoff=0.4)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"
