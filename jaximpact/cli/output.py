"""Output of the command line: columns of numbers, files, and text on the terminal."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import __version__
from ..results import Solution

Facts = dict[str, Any]  # what a command prints or writes, by name


def motion_columns(solution: Solution) -> dict[str, np.ndarray]:
    columns = {"t": np.asarray(solution.t)}
    for name in ("q", "v", "z", "impulse"):
        columns |= by_component(name, np.asarray(getattr(solution, name)))
    return columns if solution.energy is None else columns | {"energy": np.asarray(solution.energy)}


def summary_columns(solution: Solution, q0: np.ndarray, v0: np.ndarray) -> dict[str, np.ndarray]:
    columns: Facts = {"motion": np.arange(len(q0)), **by_component("q0", q0), **by_component("v0", v0)}
    for name in ("q", "v", "impulse"):
        columns |= by_component(name, getattr(solution, name)[:, -1])
    if solution.energy is not None:
        columns["energy"] = solution.energy[:, -1]
    return columns | {name: getattr(solution, name) for name in ("penetration", "residual", "status", "failed_at")}


def by_component(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{name}[{i}]": values[:, i] for i in range(values.shape[1])}


def write_arrays(path: Path, solution: Solution, **more: Any) -> Path:
    arrays: Facts = {
        name: np.asarray(x) for name, x in vars(solution).items() if x is not None and name not in ("timing", "origin")
    }
    np.savez_compressed(path, **arrays, **more)
    return path


def write_csv(path: Path, columns: Mapping[str, np.ndarray]) -> Path:
    table = np.column_stack([np.asarray(x, np.float64) for x in columns.values()])
    np.savetxt(path, table, fmt="%.17g", delimiter=",", header=",".join(columns), comments="")
    return path


def write_json(path: Path, command: str, content: Mapping[str, object]) -> None:
    versions = {"jaximpact": __version__, "jax": jax.__version__, "numpy": np.__version__}
    record = {"command": command, "versions": versions | {"python": platform.python_version()}, **content}
    path.write_text(json.dumps(plain(record), indent=2) + "\n")


@singledispatch
def plain(value: object) -> Any:
    """Value in terms of JSON: numbers, strings, lists and dicts; numbers that are not finite become null."""
    return str(value)


@plain.register
def _(value: Mapping) -> dict:
    return {str(key): plain(x) for key, x in value.items()}


@plain.register
def _(value: list | tuple) -> list:
    return [plain(x) for x in value]


@plain.register
def _(value: np.ndarray | np.generic | jax.Array) -> Any:
    return plain(np.asarray(value).tolist())


@plain.register
def _(value: float) -> float | None:
    return value if np.isfinite(value) else None


@plain.register
def _(value: bool | int | None) -> int | None:
    return value


def shown(value: Any) -> str:
    """Text of a value in a table: numbers with six digits, of an array the first few."""
    if np.ndim(value):
        return ", ".join(map(shown, value[:8])) + (f", ... ({len(value)} in all)" if len(value) > 8 else "")
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def print_facts(facts: Mapping[str, object]) -> None:
    width = max(map(len, facts))
    for label, value in facts.items():
        print(f"  {label:<{width}}  " + shown(value).replace("\n", "\n" + " " * (width + 4)))


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def file_list(files: Sequence[Path]) -> str:
    return ", ".join(str(path) if path is files[0] else path.name for path in files)
