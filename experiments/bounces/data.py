"""Reading contact times: a row for every contact, gathered into drops."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLUMNS = ("ball", "drop_height_cm", "drop", "bounce", "time_s")
LABEL = "{ball} {drop_height_cm:g} cm drop {drop}"
NEEDED = 3  # contacts of a usable drop: as many as numbers fitted (e, H, timing error of the first contact)


@dataclass
class Drop:
    """One recorded drop; the first three fields are those of the file."""

    ball: str
    drop_height_cm: float
    drop: str
    times: np.ndarray  # contact times from the first contact [s]
    truth: tuple[float, float] = (math.nan, math.nan)  # e and height [cm] where known

    @property
    def label(self) -> str:
        return LABEL.format(**vars(self))


def read_drops(path: Path) -> tuple[list[Drop], list[tuple[Drop, str]]]:
    """Drops of a CSV file in the order of the file, and those that cannot be used with the reason.

    Raises ValueError naming file, line and column for anything that is not a table of contact times.
    """
    found: dict[tuple, list[float]] = {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        try:
            for name in COLUMNS:
                if name not in (reader.fieldnames or ()):
                    raise ValueError(f"missing column {name!r}; the columns must be {', '.join(COLUMNS)}")
            for row in reader:
                add_contact(row, found)
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path}, line {max(reader.line_num, 1)}, {error}") from None
    if not found:
        raise ValueError(f"{path}: no rows below the header")
    truth = read_truth(path)
    drops = [Drop(*key, np.array(times) - times[0], truth.get(key, Drop.truth)) for key, times in found.items()]
    unusable = [(d, f"only {len(d.times)} contacts, {NEEDED} are needed") for d in drops if len(d.times) < NEEDED]
    return [drop for drop in drops if len(drop.times) >= NEEDED], unusable


def add_contact(row: dict, found: dict) -> None:
    """Append the contact of one row to its drop; ValueError names the column that is wrong."""
    ball, drop = ((row[column] or "").strip() for column in ("ball", "drop"))
    height, bounce, time = (number(row, column) for column in ("drop_height_cm", "bounce", "time_s"))
    times = found.setdefault((ball, height, drop), [])
    last = times[-1] if times else -math.inf
    for column, good, message in (
        ("ball", ball, "empty name"),
        ("drop", drop, "empty name"),
        ("drop_height_cm", height > 0, f"must be positive, got {height:g}"),
        ("bounce", bounce >= 0 and bounce.is_integer(), f"must be a whole number >= 0, got {bounce:g}"),
        ("time_s", time >= 0, f"must not be negative, got {time:g}"),
        ("time_s", time > last, f"{time:g} does not come after {last:g}, the contact before it in this drop"),
    ):
        if not good:
            raise ValueError(f"column {column!r}: {message}")
    times.append(time)


def number(row: dict, column: str) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        raise ValueError(f"column {column!r}: expected a number, got {row[column]!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"column {column!r}: expected a finite number, got {row[column]!r}")
    return value


def read_truth(data: Path) -> dict[tuple, tuple[float, float]]:
    """True (e, height [cm]) of drops from X_truth.csv beside X_bounces.csv; empty where there is none."""
    path = data.with_name(data.name.replace("_bounces", "_truth"))
    if path == data or not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    keys = [(row["ball"], float(row["drop_height_cm"]), row["drop"]) for row in rows]
    return {key: (float(row["e"]), float(row["height_cm"])) for key, row in zip(keys, rows, strict=True)}
