"""Report of the suite: results of adapters on the cases, as a table and a picture."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..results import Drawable
from ..results.safe_reading import JsonObject

FINE, COARSE = 1e-3, 1e-2  # steps [s]
SMALL = 5e-2  # an error at FINE that a converging derivative stays below, for every case
SHRINK = 3.0  # factor from COARSE to FINE: order one would give 10, its scatter over phases is within 3
EXACT = 1e-6  # an error that need not shrink


class Cell(NamedTuple):
    """Result of one adapter on one case.

    ``errors`` and ``states``: relative errors of the Jacobian and of the final state, by step size; ``seconds``:
    computing time; ``message``: what failed, "" if nothing.
    """

    errors: Mapping[float, float] = {}
    states: Mapping[float, float] = {}
    seconds: float = 0.0
    message: str = ""

    @property
    def open(self) -> bool:
        """Whether it takes one more step size to tell if the case is passed.

        This is so if the error of the Jacobian is small, but larger than round-off.
        """
        return EXACT < self.errors.get(FINE, np.nan) <= SMALL

    @property
    def passes(self) -> bool:
        """Whether the Jacobian is right: exact, or its error small and converging to zero."""
        error = self.errors.get(FINE, np.nan)
        return error <= EXACT or (error <= SMALL and error * SHRINK <= self.errors.get(COARSE, 0.0))

    @property
    def text(self) -> str:
        undecided = FINE not in self.errors or (self.open and COARSE not in self.errors)
        if self.message and undecided:
            return "error"
        if FINE not in self.errors:
            return f"state {self.states[FINE]:.1e}" if FINE in self.states else "–"
        return f"{'pass' if self.passes else 'FAIL'} {self.errors[FINE]:.1e}"


class Column(NamedTuple):
    """Results of one adapter: heading, cells by case, and remarks (versions, how it was used, what stopped it)."""

    title: str
    cells: Mapping[str, Cell]
    about: JsonObject

    @property
    def summary(self) -> str:
        """Number of cases passed, or why there is no answer."""
        if not self.cells:
            return str(self.about.get("missing") or self.about.get("stopped") or "no case stated")
        return f"{sum(cell.passes for cell in self.cells.values())} of {len(self.cells)} pass"

    def remarks(self) -> str:
        """Versions, how the adapter was used, its messages, and cases whose motion itself is wrong."""
        said = [", ".join(f"{x} {y}" for x, y in self.about.get("versions", {}).items()), self.about.get("how", "")]
        said += [f"not run: {self.about['missing']}"] if "missing" in self.about else []
        said += [f"stopped: {self.about['stopped']}"] if "stopped" in self.about else []
        for message in sorted({cell.message for cell in self.cells.values() if cell.message}):
            names = [name for name, cell in self.cells.items() if cell.message == message]
            said.append(f"{', '.join(names)}: {message}")
        off = [f"{n} {c.states[FINE]:.1g}" for n, c in self.cells.items() if not c.states.get(FINE, 0.0) <= SMALL]
        said += [f"relative error of the motion itself: {', '.join(off)}"] if off else []
        return "; ".join(part for part in said if part)


@dataclass(frozen=True, repr=False)
class Report(Drawable):
    """Results of all adapters on the cases, a `Column` for each adapter.

    ``report.columns[0].cells["zeno"].errors[1e-3]`` is an error, ``.passes`` a verdict;
    ``report.markdown()`` is the table.
    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    def _facts(self) -> list[tuple[str, str]]:
        shown = [(column.title, column.summary) for column in self.columns[:14]]
        more = [("...", f"{len(self.columns) - 14} more")] if len(self.columns) > 14 else []
        return [*shown, *more, ("cases", f"{len(self.names)}")]

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each adapter, case and step."""
        rows = list(self.rows())
        names = ("simulator", "case", "h", "jacobian_error", "state_error", "passes", "seconds", "message")
        return {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}

    def rows(self) -> Any:
        """Rows of the table; a single row with a message for an adapter without results."""
        for column in self.columns:
            if not column.cells:
                yield column.title, "", np.nan, np.nan, np.nan, False, 0.0, column.summary
            for name, cell in column.cells.items():
                for h in sorted({*cell.errors, *cell.states}) or [FINE]:
                    errors = cell.errors.get(h, np.nan), cell.states.get(h, np.nan)
                    yield column.title, name, h, *errors, cell.passes, round(cell.seconds, 1), cell.message

    def markdown(self) -> str:
        """The table in Markdown, with the remarks on each column."""
        shown = [column for column in self.columns if column.cells]
        remarks = [f"- {column.title}: {column.remarks()}" for column in self.columns]
        if not shown:
            return "\n".join(remarks) + "\n"
        lines = ["| case | " + " | ".join(column.title for column in shown) + " |", "|---" * (len(shown) + 1) + "|"]
        for name in self.names:
            texts = [column.cells[name].text if name in column.cells else "–" for column in shown]
            lines.append(f"| {name} | " + " | ".join(texts) + " |")
        passed = [f"{sum(c.passes for c in column.cells.values())} of {len(column.cells)}" for column in shown]
        lines += ["| **passed** | " + " | ".join(passed) + " |", ""]
        return "\n".join(lines + remarks) + "\n"

    def save(self, folder: str | Path) -> Path:
        """Writes table.md, table.csv and, with matplotlib and if an adapter gave results, picture.png;
        returns the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(self.markdown())
        with open(folder / "table.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns())
            writer.writerows(self.rows())
        if any(column.cells for column in self.columns):
            with suppress(ImportError):  # there is no picture without matplotlib
                self.plot(folder / "picture.png")
        return folder
