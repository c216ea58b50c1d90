"""Reading contact times: a row for every contact, gathered into drops."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLUMNS = ("ball", "drop_height_cm", "drop", "bounce", "time_s")
NEEDED = 3  # contacts of a usable drop: as many as numbers fitted (e, H, timing error of the first contact)


@dataclass
class Drop:
    """One recorded drop."""

    ball: str
    nominal: float  # nominal height [m]
    number: str
    times: np.ndarray  # contact times from the first contact [s]

    @property
    def label(self) -> str:
        return label(self.ball, 100 * self.nominal, self.number)


def label(ball: str, height_cm: float, number: str) -> str:
    return f"{ball} {height_cm:g} cm drop {number}"


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
    drops = [Drop(*key, np.array(times) - times[0]) for key, times in found.items()]
    unusable = [(d, f"only {len(d.times)} contacts, {NEEDED} are needed") for d in drops if len(d.times) < NEEDED]
    return [drop for drop in drops if len(drop.times) >= NEEDED], unusable


def add_contact(row: dict, found: dict) -> None:
    """Append the contact of one row to its drop; ValueError names the column that is wrong."""
    ball, name = ((row[column] or "").strip() for column in ("ball", "drop"))
    height, bounce, now = (number(row, column) for column in ("drop_height_cm", "bounce", "time_s"))
    times = found.setdefault((ball, height / 100, name), [])
    last = times[-1] if times else -math.inf
    for column, good, message in (
        ("ball", ball, "empty name"),
        ("drop", name, "empty name"),
        ("drop_height_cm", height > 0, f"must be positive, got {height:g}"),
        ("bounce", bounce >= 0 and bounce.is_integer(), f"must be a whole number >= 0, got {bounce:g}"),
        ("time_s", now >= 0, f"must not be negative, got {now:g}"),
        ("time_s", now > last, f"{now:g} does not come after {last:g}, the contact before it in this drop"),
    ):
        if not good:
            raise ValueError(f"column {column!r}: {message}")
    times.append(now)


def number(row: dict, column: str) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        raise ValueError(f"column {column!r}: expected a number, got {row[column]!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"column {column!r}: expected a finite number, got {row[column]!r}")
    return value


def read_truth(data: Path) -> dict[str, tuple[float, float]]:
    """True (e, H [m]) by a drop's label from X_truth.csv beside X_bounces.csv; empty where there is none."""
    path = data.with_name(data.name.replace("_bounces", "_truth"))
    if path == data or not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        return {
            label(row["ball"], float(row["drop_height_cm"]), row["drop"]): (
                float(row["e"]),
                float(row["height_cm"]) / 100,
            )
            for row in csv.DictReader(file)
        }
