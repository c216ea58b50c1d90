"""Encoding of results, whatever their class, as arrays and a JSON text that names their fields.

An encoded value (a "form") is JSON: null, the name of an array, or a dict with one entry whose key is the kind of its
content. No code is run to decode it, and the only classes it may name are the results of this package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..jaxtools.argument_checks import are_texts, is_array
from ..mechanics.labels import Labels
from .result import Result
from .safe_reading import JsonObject
from .solution import Solution

KINDS = "biufc"  # of numbers
PLAIN = (bool, int, float, str)
MOST = 10**7  # characters of an array of texts
Keep = Callable[[tuple[str, ...], np.ndarray], str]


def registry() -> dict[str, type[Result]]:
    """Result classes that a file may name, by class name; `Solution` is not among them,
    since it has a format of its own."""
    return {
        cls.__name__: cls for cls in _subclasses_of(Result) if dataclasses.is_dataclass(cls) and cls is not Solution
    }


def _subclasses_of(cls: type[Result]) -> Iterator[type[Result]]:
    for one in cls.__subclasses__():
        if one.__module__.startswith("jaximpact."):
            yield one
            yield from _subclasses_of(one)


def pack(result: Result) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """Encodes a result: its form, and its arrays by name (nested results have dotted names)."""
    found: dict[str, np.ndarray] = {}

    def keep(where: tuple[str, ...], value: np.ndarray) -> str:
        name = ".".join(where).replace("/", "_")  # no path in a file
        while name in found:  # keys may have dots too
            name += "'"
        found[name] = value
        return name

    return encode_value(result, (), keep), found


def encode_value(value: Any, where: tuple[str, ...], keep: Keep) -> Any:
    """Encodes a value as a form.

    ``where``: names of the fields and keys that lead to the value; ``keep(where, array)`` stores an array and returns
    the name that stands for it.

    Raises:
        TypeError: the value cannot be stored in a file; the message begins with its field.
    """
    inner = lambda x, key: encode_value(x, (*where, str(key)), keep)
    if value is None:
        return None
    if isinstance(value, Result):
        return {
            "result": [
                _check_known(value, where),
                {f.name: inner(getattr(value, f.name), f.name) for f in saved_fields(value)},
            ]
        }
    if isinstance(value, Labels):
        return {"labels": dataclasses.asdict(value)}
    if is_array(value):
        form = _array(np.asarray(value), where, keep)
        return {"scalar": form} if isinstance(value, np.generic) else form
    if type(value) in PLAIN:
        return {"plain": value}
    if type(value) in (list, tuple):
        return {type(value).__name__: [inner(x, i) for i, x in enumerate(value)]}
    if type(value) is dict and are_texts(value):
        return {"dict": {key: inner(x, key) for key, x in value.items()}}
    name = ".".join(where)
    if type(value) is dict:
        raise TypeError(f"{name}: files keep dicts with names as keys, got {list(value)!r}")
    what = "function" if callable(value) else type(value).__name__
    raise TypeError(
        f"{name}: a {what} is kept by no file, since reading one would run code: files keep arrays, numbers and texts "
        "in dicts, "
        "lists and tuples"
    )


def saved_fields(result: Any) -> list[dataclasses.Field]:
    """Fields of a result that files store: all but those that default to None and are left out of
    comparisons (``made`` and functions)."""
    return [f for f in dataclasses.fields(result) if f.compare or f.default is not None]


def _check_known(value: Result, where: tuple[str, ...]) -> str:
    name = type(value).__name__
    if registry().get(name) is not type(value):
        raise TypeError(f"{'.'.join(where) or 'result'}: a {name} is kept by no file within or as another result")
    return name


def _array(value: np.ndarray, where: tuple[str, ...], keep: Keep) -> Any:
    if value.dtype.kind == "U":
        return {"texts": [value.dtype.itemsize // 4, list(value.shape), value.ravel().tolist()]}
    if value.dtype.kind not in KINDS:
        raise TypeError(f"{'.'.join(where)}: files hold real and complex numbers and texts, not {value.dtype}")
    return keep(where, value)


def decode_value(form: Any, numbers: Mapping[str, np.ndarray], made: tuple[tuple[str, str], ...] = ()) -> Any:
    """Decodes a form into the value; ``numbers``: arrays by name; ``made``: the provenance given to every result in it.

    Raises:
        ValueError, TypeError, KeyError: the form is malformed.
    """
    inner = lambda x: decode_value(x, numbers, made)
    if form is None:
        return None
    if isinstance(form, str):
        return numbers[form]
    ((kind, content),) = form.items()
    if kind == "dict":
        return {key: inner(x) for key, x in content.items()}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](inner(x) for x in content)
    if kind == "plain":
        if type(content) not in PLAIN:
            raise ValueError(f"{content!r} is neither a number nor a text")
        return content
    if kind == "scalar":
        return np.asarray(inner(content))[()]
    if kind == "texts":
        width, shape, texts = content
        if not are_texts(texts) or any(len(text) > width for text in texts) or width * max(len(texts), 1) > MOST:
            raise ValueError("it holds an array of texts that are none")
        return np.array(texts, f"<U{width}").reshape(shape)
    if kind == "labels":
        units = {str(name): str(unit) for name, unit in content["units"]}
        later = content.get("joints"), content.get("quaternions", ())
        return Labels.of(content["coordinates"], content["contacts"], units or None, *later)
    if kind == "result":
        name, fields = content
        return _make_result(name, fields, inner, made)
    raise ValueError(f"it holds a {kind!r}, which this version does not know")


def _make_result(
    name: str, fields: JsonObject, inner: Callable[[Any], Any], made: tuple[tuple[str, str], ...]
) -> Result:
    cls = registry().get(name)
    if cls is None:
        raise ValueError(f"it holds a {name!r}, which this version does not know as a result")
    known = {field.name for field in saved_fields(cls)}
    strange = sorted(set(fields) - known)
    if strange:
        raise ValueError(f"it holds a {name} with {strange[0]!r}, which this version does not know")
    return cls(**{key: inner(x) for key, x in fields.items()}, made=made)
