"""A study in plain data: what defines it can be written down, compared, and made again in another process."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np

from ..catalogue import entries, get
from ..integrate import Save
from ..problem import Problem
from ..projection import ADMM, ActiveSet, ProjectedGradient
from ..schemes import EventCorrected, Maury, MoreauJean, PaoliSchatzman
from .design import summarise

LIBRARY = __name__.partition(".")[0]
# Settings of jax that change what is refused; a worker computes under those of whoever asks it.
CHECKS = ("numpy_rank_promotion", "debug_nans", "debug_infs", "disable_jit")
# Settings of jax that change numbers; a worker computes under those of the study.
# The classes that a study may hold, besides those of the module of its problem.
CLASSES = {
    f"{made.__module__}:{made.__qualname__}": made
    for made in (ActiveSet, ADMM, EventCorrected, Maury, MoreauJean, PaoliSchatzman, ProjectedGradient, Save)
}
SETTINGS = ("enable_x64", "numpy_dtype_promotion", "default_matmul_precision")


# objects of a module, by name


def reference(value: Any, what: str) -> str:
    """ "module:name" of a function or class at the top of a module."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or name is None or "<" in name or module == "__main__":
        raise ValueError(
            f"{what}: {value!r} cannot be imported by another process: define it at the top of a module (not in __main__, "
            "not inside a function, no lambda)"
        )
    text = f"{module}:{name}"
    if load(text) is not value:
        raise ValueError(f"{what}: {text} names another object than the one given")
    return text


def load(text: str, folder: str | None = None) -> Any:
    """The object "module:name"; a module not found otherwise is looked for in ``folder``."""
    module, _, name = text.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError(f"{text!r} is no name of something in a module: write 'module:name'")
    try:
        found = _imported(module, folder)
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


def _imported(module: str, folder: str | None) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if folder is None or folder in sys.path or error.name != module.partition(".")[0]:
            raise
    sys.path.append(folder)
    importlib.invalidate_caches()
    return importlib.import_module(module)


def problem_name(problem: Any) -> str:
    """The name of a problem: of the catalogue, or "module:name"; of a `Problem`, where it is found by identity."""
    if isinstance(problem, str):
        return problem
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, a catalogue name or 'module:name', got {type(problem).__name__}")
    for entry in entries():
        if entry.problem is problem:
            return entry.name
    for function in (problem.force, problem.constraints, problem.mass, problem.energy):
        module = getattr(function, "__module__", None)
        if module and module != "__main__":
            for name, value in vars(sys.modules[module]).items():
                if value is problem:
                    return f"{module}:{name}"
    raise ValueError(
        "problem: this Problem is not importable by name, and a study must be able to continue in another process: assign "
        "it to a name at the top of a module and give 'module:name'"
    )


def load_problem(name: str, folder: str | None = None) -> Problem:
    """The problem of that name."""
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
    if not isinstance(found, Problem):
        raise TypeError(f"problem: {name} is a {type(found).__name__}, not a Problem")
    return found


def folder_of(name: str) -> str | None:
    """The folder from which the top package of "module:name" was imported; None for what is installed."""
    if ":" not in name:
        return None
    module = sys.modules[name.partition(":")[0].partition(".")[0]]
    file = getattr(module, "__file__", None)
    if file is None or "site-packages" in file:
        return None
    path = Path(file).resolve()
    return str(path.parent.parent if path.name == "__init__.py" else path.parent)


def sources(problem: Problem) -> dict[str, Any]:
    """What a problem computes: a hash of the source of each of its functions, and its numbers."""
    found: dict[str, Any] = {}
    for name in problem.__slots__:
        value = getattr(problem, name)
        if callable(value):
            found[name] = hashlib.sha256("\n".join(texts_of(value, set())).encode()).hexdigest()[:16]
        else:
            found[name] = encode(value, f"problem.{name}")
    return found


def texts_of(function: Any, seen: set[int]) -> list[str]:
    """Source of a function, and of the functions and numbers of its own package that it uses or closes over."""
    if id(function) in seen:
        return []
    seen.add(id(function))
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    if package == LIBRARY and ".catalogue" not in function.__module__:
        texts = [function.__qualname__]  # its versions are recorded
    else:
        try:
            texts = [inspect.getsource(function)]
        except (OSError, TypeError):
            texts = [repr(getattr(getattr(function, "__code__", None), "co_code", type(function).__name__))]
    used = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    if isinstance(function, FunctionType) and package != LIBRARY:
        names = sorted(_names(function.__code__) & set(function.__globals__))
        used += [function.__globals__[name] for name in names]
    for value in used:
        if isinstance(value, int | float | np.ndarray | jax.Array):
            texts.append(repr(np.asarray(value).tolist()))
        elif isinstance(value, FunctionType) and package in (LIBRARY, value.__module__.partition(".")[0]):
            texts += texts_of(value, seen)
    return texts


def _names(code: CodeType) -> set[str]:
    """Global names in a piece of code and in the functions inside it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


# numbers, containers, dataclasses and functions as JSON


def encode(value: Any, what: str) -> Any:
    """``value`` in terms of JSON, without loss; what is neither numbers nor importable is refused."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        array = np.asarray(value)
        return {"$array": array.tolist(), "dtype": array.dtype.name}
    if isinstance(value, list):
        return [encode(x, f"{what}[{i}]") for i, x in enumerate(value)]
    if isinstance(value, tuple) and type(value) is tuple:
        return {"$tuple": [encode(x, f"{what}[{i}]") for i, x in enumerate(value)]}
    if isinstance(value, Mapping) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {"$dict": {key: encode(x, f"{what}.{key}") for key, x in value.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {
            "$dataclass": reference(type(value), what),
            "$fields": {key: encode(x, f"{what}.{key}") for key, x in fields.items()},
        }
    if callable(value):
        return {"$function": reference(value, what)}
    raise TypeError(f"{what}: a study stores numbers, arrays, dicts and lists of them, got {type(value).__name__}")


def decode(value: Any, problem: str = "", folder: str | None = None) -> Any:
    """What `encode` was given.

    Classes are those of `CLASSES` and, where the problem is "module:name", dataclasses of its own package: whoever computes
    imports that anyway. Functions are looked up, not called; arrays hold numbers.
    """
    if isinstance(value, list):
        return [decode(x, problem, folder) for x in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        dtype = np.dtype(value["dtype"])
        if dtype.kind not in "biufV" or dtype.hasobject:
            raise ValueError(f"a study holds arrays of numbers, not of {dtype}")
        return np.array(value["$array"], dtype)
    if "$tuple" in value:
        return tuple(decode(x, problem, folder) for x in value["$tuple"])
    if "$dict" in value:
        return {key: decode(x, problem, folder) for key, x in value["$dict"].items()}
    if "$function" in value:
        return load(value["$function"], folder)
    fields = {key: decode(x, problem, folder) for key, x in value["$fields"].items()}
    return _class(value["$dataclass"], problem, folder)(**fields)


def _class(name: str, problem: str, folder: str | None) -> type:
    if name in CLASSES:
        return CLASSES[name]
    if ":" in problem and name.partition(":")[0].partition(".")[0] == problem.partition(":")[0].partition(".")[0]:
        found = load(name, folder)
        if isinstance(found, type) and dataclasses.is_dataclass(found):
            return found
    raise ValueError(
        f"{name} is no scheme, projection or Save of jaximpact, nor a dataclass of the problem's own module: a study that asks "
        "for it is not computed"
    )


def modules(described: Mapping[str, Any]) -> list[str]:
    """The modules outside of the library that the system of a study is made of."""
    names = [described["problem"]] if ":" in described["problem"] else []

    def collect(value: Any) -> None:
        if isinstance(value, list):
            for x in value:
                collect(x)
        elif isinstance(value, dict):
            names.extend(value[key] for key in ("$function", "$dataclass") if key in value)
            for x in value.values():
                collect(x)

    collect([described[key] for key in ("scheme", "projection", "save", "base")])
    found = dict.fromkeys(str(name).partition(":")[0] for name in names)
    return [name for name in found if name.partition(".")[0] != LIBRARY]


def origin(module: str, folder: str | None) -> str:
    """The file from which a module would be imported, as far as that is known without importing anything."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top) or importlib.machinery.PathFinder.find_spec(top, [folder] if folder else [])
    return "nowhere" if spec is None else str(spec.origin)


def in_words(value: Any) -> str:
    """An encoded value as a line of text."""
    if isinstance(value, dict):
        if "$array" in value:
            return summarise(value["$array"])
        if "$dataclass" in value:
            fields = ", ".join(f"{key}={in_words(x)}" for key, x in value["$fields"].items() if x is not None)
            return f"{value['$dataclass'].rpartition(':')[2]}({fields})"
        if "$function" in value:
            return value["$function"]
        return ", ".join(f"{key}={in_words(x)}" for key, x in value.get("$dict", value).items())
    return str(value)


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """One line for each entry of two encoded values that differs: "h: 0.001 → 0.002"."""
    if isinstance(old, dict) and isinstance(new, dict) and _alike(old, new):
        lines = []
        for key in dict.fromkeys([*old, *new]):
            inner = where if key.startswith("$") else f"{where}.{key}".lstrip(".")
            missing = {"nothing": None}
            lines += differences(old.get(key, missing), new.get(key, missing), inner)
        return lines
    if old == new:
        return []
    return [f"{where}: {_side(old)} → {_side(new)}"]


def _alike(old: dict, new: dict) -> bool:
    """Whether two encoded values have parts to compare one by one."""
    leaves = {"$array", "$function"} & (set(old) | set(new))
    return not leaves and old.get("$dataclass") == new.get("$dataclass")


def _side(value: Any) -> str:
    return "(not given)" if value == {"nothing": None} else in_words(value)


# settings of jax


def settings_now(names: tuple[str, ...] = SETTINGS) -> dict[str, Any]:
    """The settings of jax in this thread: of those that change numbers, or of others."""
    return {name: getattr(jax.config, f"jax_{name}") for name in names}


@contextmanager
def settings_of(settings: Mapping[str, Any]):
    """Compute under these settings of jax, in this thread, whatever those of the process are."""
    with ExitStack() as stack:
        for name, value in settings.items():
            if getattr(jax.config, f"jax_{name}") != value:
                stack.enter_context(getattr(jax, name)(value))
        yield
