"""Reading contact times: a row for every contact, gathered into drops."""

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLUMNS = ("ball", "drop_height_cm", "drop", "bounce", "time_s")
NUMBERS = ("drop_height_cm", "bounce", "time_s")
UNITS = {"s": {"s": 1.0, "ms": 1e-3, "us": 1e-6}, "cm": {"cm": 1.0, "mm": 0.1, "m": 100.0}}  # by that of the column
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
    table = Table(path)
    try:
        for row in table.rows():
            add_contact(row, found)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {max(table.line, 1)}, {error}") from None
    if not found:
        raise ValueError(f"{path}: no rows below the header")
    truth = read_truth(path)
    drops = [Drop(*key, np.array(times) - times[0], truth.get(key, Drop.truth)) for key, times in found.items()]
    unusable = [(d, f"only {len(d.times)} contacts, {NEEDED} are needed") for d in drops if len(d.times) < NEEDED]
    return [drop for drop in drops if len(drop.times) >= NEEDED], unusable


class Table:
    """A CSV file as people have them: `,`, `;` or tab between columns, in any order and capitals, decimal commas,
    units.

    Times are headed time_s or time_ms, also "Time [ms]"; heights drop_height_cm, _mm or _m.
    """

    def __init__(self, path: Path):
        self.path, self.line = path, 0

    def rows(self):
        """Every row by the names in COLUMNS, in their units; numbers still as text."""
        with open(self.path, newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            delimiter = max(";\t,", key=header.count)
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter)
            self.columns = self.header(next(reader, []))
            for cells in reader:
                self.line = reader.line_num
                if any(cell.strip() for cell in cells):
                    yield self.row(cells, decimal="," if delimiter != "," else ".")

    def header(self, cells: list[str]) -> dict[str, tuple[int, float]]:
        """Where each column is, and what turns its numbers into its unit."""
        found: dict[str, tuple[int, float]] = {}
        names = ["_".join(re.findall(r"[^\W_]+", cell.lower())) for cell in cells]
        for name in COLUMNS:
            stem, _, unit = name.rpartition("_")
            scales = UNITS.get(unit, {})
            spelt = {f"{stem}_{other}": scale for other, scale in scales.items()} if scales else {name: 1.0}
            at = [(i, spelt[cell]) for i, cell in enumerate(names) if cell in spelt]
            if not at:
                raise ValueError(
                    f"missing column {name!r}; the columns must be {', '.join(COLUMNS)}, got "
                    f"{', '.join(cells) or 'none'}"
                )
            if len(at) > 1:
                raise ValueError(f"column {name!r}: there are {len(at)} of it")
            found[name] = at[0]
        return found

    def row(self, cells: list[str], decimal: str) -> dict:
        values = {}
        for name, (i, scale) in self.columns.items():
            cell = cells[i].strip() if i < len(cells) else None
            if name in NUMBERS:
                cell = number(name, cell, decimal) * scale
            values[name] = cell
        return values


def add_contact(row: dict, found: dict) -> None:
    """Append the contact of one row to its drop; ValueError names the column that is wrong."""
    ball, drop = (row[column] or "" for column in ("ball", "drop"))
    height, bounce, time = (row[column] for column in NUMBERS)
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


def number(column: str, cell: str | None, decimal: str = ".") -> float:
    try:
        value = float((cell or "").replace(decimal, "."))
    except ValueError:
        raise ValueError(f"column {column!r}: expected a number, got {cell!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"column {column!r}: expected a finite number, got {cell!r}")
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
