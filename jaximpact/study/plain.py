"""Lossless JSON encoding of numbers, containers, dataclasses and functions; only listed classes can be decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..jaxtools.argument_checks import are_texts, is_array
from ..mechanics.contact import ContactSolver
from ..mechanics.method_names import METHODS
from ..mechanics.rest import AtRest, Jammed
from ..mechanics.scheme import Scheme
from ..mechanics.trials.stops import Gap, Speed, Until
from ..results.safe_reading import map_json
from ..results.save import Save
from .design import summarise
from .importing import LIBRARY, load, reference

# modules that classes were in when earlier versions wrote stores
EARLIER = {
    "ActiveSet": "projection.active_set",
    "ADMM": "projection.admm",
    "ConjugateGradients": "projection.conjugate_gradients",
    "ProjectedGradient": "projection.projected_gradient",
    "EventCorrected": "schemes.event_driven",
    "Maury": "schemes.maury",
    "MoreauJean": "schemes.moreau_jean",
    "PaoliSchatzman": "schemes.paoli_schatzman",
    "Save": "save",
}
NAMED: dict[str, type] = {method.__qualname__: method for method in (*METHODS, Save, Until, Gap, Speed, AtRest, Jammed)}
# Classes that a study may contain, in addition to those of the module of its problem, and to schemes and contact
# solvers defined by users.
CLASSES: dict[str, type] = (
    {f"{method.__module__}:{name}": method for name, method in NAMED.items()}
    | {f"jaximpact.{EARLIER[name]}:{name}": method for name, method in NAMED.items() if name in EARLIER}
    | {f"jaximpact.mechanics.schemes.stops:{surface.__name__}": surface for surface in (Until, Gap, Speed)}
    | {"jaximpact.integrate:Save": Save}
)


def encode(value: Any, what: str) -> Any:
    """Encodes ``value`` in terms of JSON without loss; raises for anything that is neither numbers nor importable."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if is_array(value):
        array = np.asarray(value)
        return {"$array": array.tolist(), "dtype": array.dtype.name}
    if isinstance(value, list):
        return [encode(x, f"{what}[{i}]") for i, x in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": [encode(x, f"{what}[{i}]") for i, x in enumerate(value)]}
    if isinstance(value, Mapping) and are_texts(value) and not any(key.startswith("$") for key in value):
        return {"$dict": {key: encode(x, f"{what}.{key}") for key, x in value.items()}}
    if dataclasses.is_dataclass(type(value)):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {
            "$dataclass": reference(type(value), what),
            "$fields": {key: encode(x, f"{what}.{key}") for key, x in fields.items()},
        }
    if callable(value):
        return {"$function": reference(value, what)}
    raise TypeError(f"{what}: a study stores numbers, arrays, dicts and lists of them, got {type(value).__name__}")


def decode(value: object, problem: str = "", folder: str | None = None) -> Any:
    """Inverse of `encode`.

    Makes objects of the classes in `CLASSES`, of dataclasses that are schemes or contact solvers, and, for a
    ``problem`` "module:name", of dataclasses of its package; any other class raises ValueError. Functions are imported,
    not called; arrays hold numbers. ``folder`` is searched for modules that are not found otherwise.
    """

    def method(table: dict) -> Any:
        if "$array" in table:
            dtype = np.dtype(table["dtype"])
            if dtype.kind not in "biufV" or dtype.hasobject:
                raise ValueError(f"a study holds arrays of numbers, not of {dtype}")
            # one number is no array, so that what has it can be hashed
            return np.array(table["$array"], dtype)[()]
        if "$tuple" in table:
            return tuple(table["$tuple"])
        if "$dict" in table:
            return table["$dict"]
        if "$function" in table:
            return load(table["$function"], folder)
        return _class(table["$dataclass"], problem, folder)(**table["$fields"]) if "$dataclass" in table else table

    return map_json(value, method)


def _class(name: str, problem: str, folder: str | None) -> type:
    if name in CLASSES:
        return CLASSES[name]
    package = lambda text: text.partition(":")[0].partition(".")[0]
    beside = ":" in problem and package(name) == package(problem)
    # looked up as functions are; nothing is made of a class of another kind
    found = load(name, folder) if beside or package(name) != LIBRARY else None
    if (
        isinstance(found, type)
        and dataclasses.is_dataclass(found)
        and (beside or issubclass(found, Scheme | ContactSolver))
    ):
        return found
    raise ValueError(
        f"{name} is no scheme, projection or Save of jaximpact, nor a scheme or contact solver of one's own that is a "
        "dataclass, nor a "
        "dataclass of the problem's own module: a study that asks for it is not computed"
    )


def names_in(value: object) -> list[str]:
    """References to functions and classes in an encoded value."""
    found: list[str] = []
    map_json(value, lambda table: found.extend(str(table[key]) for key in ("$function", "$dataclass") if key in table))
    return found


def in_words(value: object) -> str:
    """Text of an encoded value, in one line."""
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


def differences(old: object, new: object, where: str = "") -> list[str]:
    """Differences between two encoded values, one line each: "h: 0.001 → 0.002"."""
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
    """Whether two encoded values can be compared entry by entry."""
    leaves = {"$array", "$function"} & (set(old) | set(new))
    return not leaves and old.get("$dataclass") == new.get("$dataclass")


def _side(value: object) -> str:
    return "(not given)" if value == {"nothing": None} else in_words(value)
