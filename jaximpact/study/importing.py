"""References to importable objects: "module:name", imported by each process that computes."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

from ..catalogue import entries, get
from ..jaxtools.argument_checks import check_kind
from ..mechanics.problem import Problem

LIBRARY = __name__.partition(".")[0]


def reference(value: Any, what: str) -> str:
    """Reference "module:name" of a function or class defined at the top level of a module."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or name is None or "<" in name or module == "__main__":
        raise ValueError(
            f"{what}: {value!r} cannot be imported by another process: define it at the top of a module (not in "
            "__main__, "
            "not inside a function, no lambda)"
        )
    text = f"{module}:{name}"
    if load(text) is not value:
        raise ValueError(f"{what}: {text} names another object than the one given")
    return text


def load(text: str, folder: str | None = None) -> Any:
    """Imports the object "module:name"; ``folder`` is searched for modules that are not found otherwise."""
    module, _, name = text.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError(f"{text!r} does not name an attribute of a module: write 'module:name'")
    try:
        found = _import_module(module, folder)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{text}: no module {error.name!r}: look at its spelling, install it, or put its folder on PYTHONPATH",
            name=error.name,
        ) from error
    except Exception as error:
        raise ValueError(f"{text}: the module {module} fails when imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{text}: module {module} has no {name!r}")
        found = getattr(found, part)
    return found


def _import_module(module: str, folder: str | None) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if folder is None or folder in sys.path or error.name != module.partition(".")[0]:
            raise
    sys.path.append(folder)
    importlib.invalidate_caches()
    return importlib.import_module(module)


def problem_name(problem: str | Problem) -> str:
    """Name of a problem: its catalogue name, or "module:name" of the module attribute that is this object."""
    if isinstance(problem, str):
        return problem
    check_kind("problem", problem, Problem, "a Problem, a catalogue name or 'module:name'")
    for entry in entries():
        if entry.problem is problem:
            return entry.name
    functions = (
        problem.force,
        problem.constraints,
        problem.mass,
        problem.energy,
        problem.joints,
        problem.switches,
        problem.reset,
        problem.slip,
        problem.noise,
        *(x for x in (problem.friction, problem.static_friction, problem.restitution) if callable(x)),
    )
    for function in functions:
        module = getattr(function, "__module__", None)
        if module and module != "__main__":
            for name, value in vars(sys.modules[module]).items():
                if value is problem:
                    return f"{module}:{name}"
    raise ValueError(
        "problem: this Problem is not importable by name, and a study must be able to continue in another process: "
        "assign "
        "it to a name at the top of a module and give 'module:name'"
    )


def load_problem(name: str, folder: str | None = None) -> Problem:
    """Imports the problem with the given name."""
    if ":" not in name:
        try:
            return get(name).problem
        except KeyError as error:
            raise ValueError(f"problem: {error.args[0]}; one of your own is written 'module:name'") from None
    try:
        found = load(name, folder)
    except ImportError as error:
        raise ModuleNotFoundError(f"problem: {error}", name=error.name) from error
    except ValueError as error:
        raise ValueError(f"problem: {error}") from error
    check_kind(f"problem: {name}", found, Problem, "a Problem")
    return found


def folder_of(name: str) -> str | None:
    """Folder from which the top package of "module:name" was imported; None for installed packages."""
    if ":" not in name:
        return None
    module = sys.modules[name.partition(":")[0].partition(".")[0]]
    file = getattr(module, "__file__", None)
    if file is None or "site-packages" in file:
        return None
    path = Path(file).resolve()
    return str(path.parent.parent if path.name == "__init__.py" else path.parent)


def origin(module: str, folder: str | None) -> str:
    """File from which a module would be imported, determined without importing it."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top) or importlib.machinery.PathFinder.find_spec(top, [folder] if folder else [])
    return "nowhere" if spec is None else str(spec.origin)
