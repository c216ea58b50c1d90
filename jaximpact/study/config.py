"""A study in a TOML file: every entry is checked, and a misspelt one is an error that names the right one."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..integrate import Save
from ..names import projection_from_name, scheme_from_name, suggestion
from .description import load
from .design import Design
from .study import Study

EXAMPLE = """\
# 15 restitutions x 20 frequencies of an impact oscillator
store = "out/impact_oscillator.zarr"    # default: out/<name of this file>.zarr
problem = "shaw-holmes"                 # of the catalogue, or "module:name" (a module beside this file is found)
case = "damped"                         # gives q0, v0, t1, args and e where they are not given
t1 = 60.0
h = 2e-3
scheme = { name = "paoli-schatzman", force = "mean" }   # or only a name
save = [40.0, 50.0]                     # times; or "final", "all", every k-th step
chunk = 100

[args]                                  # parameters; the design replaces some of them
damping = 0.1

[design]
kind = "grid"                           # or "latin-hypercube" with count, seed and [low, high], or "points" with lists
e = { from = 0.2, to = 0.9, count = 15 }
args.frequency = { from = 1.8, to = 3.0, count = 20 }   # spacing = "log" for a geometric sequence
"""
NUMBERS = ("q0", "v0", "t0", "t1", "h", "e", "chunk", "case")
ENTRIES = ("store", "problem", *NUMBERS, "args", "scheme", "projection", "save", "design")
LARGEST = float(np.finfo(np.float64).max)
MOST = 10**8  # values of one quantity, which all processes hold
KINDS = ("grid", "latin-hypercube", "points")
RANGE = ("from", "to", "count", "spacing")
SPACINGS: dict[str, Any] = {"linear": np.linspace, "log": np.geomspace}


def read_study(path: str | Path) -> Study:
    """The study that a TOML file describes; see `EXAMPLE` for its entries.

    Raises:
        ValueError, TypeError: an entry is unknown, missing or wrong; the message names the file and the entry.
    """
    path = Path(path)
    try:
        text = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return _study(text, path.stem)
    except (ValueError, TypeError, ImportError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path}: {error}") from error


def _study(text: Mapping[str, Any], name: str) -> Study:
    _known("entry", text, ENTRIES)
    for needed in ("problem", "design"):
        if needed not in text:
            raise ValueError(f"{needed} is missing")
    given = {key: text[key] for key in (*NUMBERS, "args") if key in text}
    if "scheme" in text:
        given["scheme"] = _method("scheme", text["scheme"], scheme_from_name)
    if "projection" in text:
        given["projection"] = _method("projection", text["projection"], projection_from_name)
    if "save" in text:
        given["save"] = _save(text["save"])
    store = text.get("store", f"out/{name}.zarr")
    if not isinstance(store, str) or not store:
        raise TypeError(f"store must be the path of a directory, got {store!r}")
    return Study(store, text["problem"], _design(text["design"]), **given)


def _known(kind: str, table: Any, names: Iterable[str]) -> None:
    if not isinstance(table, Mapping):
        raise TypeError(f"{kind} must be a table, got {table!r}")
    for key in table:
        if key not in names:
            raise ValueError(f"unknown {kind} {key!r}; {suggestion(key, names)}")


def _method(kind: str, value: Any, from_name) -> Any:
    """A scheme or projection by name, or by a table of its name and attributes."""
    if isinstance(value, str):
        return from_name(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise TypeError(f"{kind} must be a name, or a table with its name and attributes, got {value!r}")
    made = from_name(value["name"])
    attributes = {key: x for key, x in value.items() if key != "name"}
    _known(f"attribute of {value['name']}", attributes, [field.name for field in dataclasses.fields(made)])
    return dataclasses.replace(made, **attributes)


def _save(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError(f"save must be 'all', 'final', a whole number, times or a table, got {value!r}")
    if isinstance(value, int) and value > 2**31 - 1:
        raise ValueError(f"save: every {value}-th step is more than a motion has: at most {2**31 - 1}")
    if not isinstance(value, Mapping):
        return value
    _known("entry of save", value, [field.name for field in dataclasses.fields(Save)])
    function = value.get("function")
    if not isinstance(function, str | None):
        raise TypeError(f"save.function must be 'module:name', got {function!r}")
    return Save(**{**value, "function": None if function is None else load(function)})


def _design(table: Any) -> Design:
    _known("design", {} if isinstance(table, Mapping) else table, ())
    kind = table.get("kind", "grid")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"design: unknown kind {kind!r}; {suggestion(str(kind), KINDS)}")
    options = {key: table[key] for key in ("count", "seed") if key in table}
    quantities = dict(_quantities({key: x for key, x in table.items() if key not in ("kind", "count", "seed")}))
    if kind == "latin-hypercube":
        if "count" not in options:
            raise ValueError("design: a latin-hypercube needs count, its number of points")
        return Design.latin_hypercube(options.pop("count"), **options, **quantities)
    if options:
        raise ValueError(f'design: {", ".join(options)} belongs to kind = "latin-hypercube"')
    values = {key: _values(key, x) for key, x in quantities.items()}
    return Design.grid(**values) if kind == "grid" else Design.points(**values)


def _quantities(table: Mapping[str, Any], prefix: str = ""):
    """Dotted names of nested tables, which TOML makes of args.NAME."""
    for key, value in table.items():
        if isinstance(value, Mapping) and not value:
            raise ValueError(f"design.{prefix}{key} is an empty table: give it a list of values, or from, to and count")
        if isinstance(value, Mapping) and not set(value) & set(RANGE):
            yield from _quantities(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _values(key: str, value: Any) -> Any:
    """A list as it is, or the values of a range."""
    if not isinstance(value, Mapping):
        return value
    _known(f"entry of design.{key}", value, RANGE)
    missing = [name for name in ("from", "to", "count") if name not in value]
    if missing:
        raise ValueError(f"design.{key}: {', '.join(missing)} is missing")
    spacing = value.get("spacing", "linear")
    if not isinstance(spacing, str) or spacing not in SPACINGS:
        raise ValueError(f"design.{key}: unknown spacing {spacing!r}; {suggestion(str(spacing), SPACINGS)}")
    low, high, count = (value[name] for name in ("from", "to", "count"))
    for name in ("from", "to"):
        if not isinstance(value[name], int | float) or not abs(value[name]) <= LARGEST:
            raise TypeError(f"design.{key}: {name} must be a finite number, got {value[name]!r}")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
        raise ValueError(f"design.{key}: count must be a whole number from 1 to {MOST}, got {count!r}")
    if spacing == "log" and low * high <= 0:
        raise ValueError(
            f"design.{key}: a geometric sequence has from and to of one sign, and not 0, got {low!r}, {high!r}"
        )
    return SPACINGS[spacing](float(low), float(high), count)
