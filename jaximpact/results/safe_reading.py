"""Reading of directories from untrusted sources: no code in them is run,
and no file outside of them is read or written.

A study is plain data: JSON, numbers in `design.npz`, Zarr arrays of numbers. Anything else is refused before the study
is used: links, special files, foreign codecs, numbers of unknown formats. Text is shown without control sequences.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..jaxtools.argument_checks import is_number

T = TypeVar("T")

JsonObject = dict[str, Any]  # a table as JSON has it
WORDS: dict[type, str] = {list: "list", dict: "table"}
CODECS = {"bytes", "zstd"}  # what a study is written with; others may run code (pickles) or follow names
TYPES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {
    *("bool", "float16", "float32", "float64", "complex64", "complex128")
}


def printable(text: str) -> str:
    """The text with every character that is not printable escaped, so that a terminal executes no control sequence."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def check_tree(path: Path) -> None:
    """Raises unless a path holds only regular files and directories, at every depth."""
    folders = [os.fspath(path)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    kind = "a link" if entry.is_symlink() else "no plain file"
                    raise ValueError(
                        f"{printable(entry.path)} is {kind}, which no study contains: it is not followed; remove it, "
                        "or put what it "
                        "stands for in its place"
                    )


def read_json(path: Path, advice: str) -> Any:
    """Reads a JSON file of a study with all text made printable; ValueError, ending with ``advice``,
    if it is not valid."""
    try:
        return printable_all(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged, it is not what a study writes ({printable(str(error))}): {advice}"
        ) from None


def printable_all(value: T) -> T:
    """JSON data with every text made `printable`."""
    table = lambda found: {printable(key): x for key, x in found.items()}
    return map_json(value, table, lambda x: printable(x) if isinstance(x, str) else x)


def map_json(value: Any, table: Callable[[dict], Any], leaf: Callable[[Any], Any] = lambda x: x) -> Any:
    """Transforms JSON data bottom-up: ``table`` is applied to every dict,
    ``leaf`` to every value that is neither dict nor list."""
    if isinstance(value, list):
        return [map_json(x, table, leaf) for x in value]
    if isinstance(value, dict):
        return table({key: map_json(x, table, leaf) for key, x in value.items()})
    return leaf(value)


def first_mismatch(value: object, form: Any, where: str = "it") -> str | None:
    """First mismatch between the data ``value`` and an expected ``form``, in words that call the data ``where``;
    None if they match.

    A form is a type; a list that holds the form of all items; a dict with the forms of the entries that must be there;
    or ``{str: form}``, a dict with any keys whose values all have this form.
    """
    kind = type(form) if type(form) in WORDS else form
    if not isinstance(value, kind) or (kind in (int, float) and not is_number(value)):
        return f"{where} is no {WORDS[kind]}" if kind in WORDS else f"{where} is a {type(value).__name__}"
    if form is kind:
        return None
    if kind is list:
        parts = [(f"{where}[{i}]", x, form[0]) for i, x in enumerate(value)]
    else:
        forms = dict.fromkeys(value, form[str]) if str in form else form
        missing = [key for key in forms if key not in value]
        if missing:
            return f"{where} has no {missing[0]!r}"
        parts = [(f"{where}.{key}", value[key], x) for key, x in forms.items()]
    return next((found for name, x, inner in parts if (found := first_mismatch(x, inner, name))), None)


def check_arrays(path: Path) -> None:
    """Checks the metadata of Zarr arrays: format 3, numeric types, and the codecs that studies use."""
    for file in (path / "zarr.json", *path.glob("*/zarr.json")):
        if file.exists():
            try:
                _check_node(read_json(file, "restore it from a copy"))
            except (AttributeError, KeyError, TypeError) as error:
                raise ValueError(f"{printable(str(file))} does not describe an array of a study ({error!r})") from None
            except ValueError as error:
                raise ValueError(f"{printable(str(file))}: {error}") from None


def _check_node(node: JsonObject) -> None:
    kind = (node["zarr_format"], node["node_type"])
    if kind not in ((3, "group"), (3, "array")):
        raise ValueError(f"{kind} is nothing that a study contains")
    if node["node_type"] == "array":
        odd = {codec["name"] for codec in node["codecs"]} - CODECS
        if odd or node.get("storage_transformers") or node["data_type"] not in TYPES:
            what = ", ".join(sorted(odd)) or node.get("storage_transformers") or node["data_type"]
            raise ValueError(f"{what} is nothing that a study is written with: it is not decoded")
    for name, inner in ((node.get("consolidated_metadata") or {}).get("metadata") or {}).items():
        if "/" in name or "\\" in name or name in ("", ".", "..") or not name.isprintable():
            raise ValueError(f"{name!r} is no name of an array")
        _check_node(inner)


def check_folder(record: Any, path: Path) -> None:
    """Raises if a record names a folder of modules inside the study, or a relative one,
    which depends on where it is read."""
    if first_mismatch(record, {"folder": str}):
        return
    folder = record["folder"]
    if not os.path.isabs(folder) or Path(folder).resolve().is_relative_to(path.resolve()):
        raise ValueError(
            f"{path}: study.json names modules in {folder!r}, inside the study: nothing is imported from there"
        )
