"""Picture of the conformance suite: cases over simulators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..conformance import FINE, Report
from .style import COLOURS, GREY, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PASSES, FAILS = COLOURS[2], COLOURS[1]


def draw_report(report: Report, ax: Axes) -> str:
    """Draws a table of cases and adapters: pass or fail, and the power of ten of the error; empty where the adapter
    cannot state the case."""
    shown = [column for column in report.columns if column.cells]
    if not shown:
        raise ValueError("report: no adapter gave an answer: there is nothing to draw")
    for j, column in enumerate(shown):
        for i, name in enumerate(report.names):
            if name not in column.cells:
                continue
            cell = column.cells[name]
            error = cell.errors.get(FINE, math.nan)
            colour = PASSES if cell.passes else FAILS if math.isfinite(error) else GREY
            ax.fill_between([j - 0.46, j + 0.46], i - 0.42, i + 0.42, color=colour, alpha=0.75, lw=0)
            text = "0" if error == 0 else f"{round(math.log10(error))}" if error > 0 and math.isfinite(error) else "?"
            place: Style = {"ha": "center", "va": "center", "fontsize": 7, "color": "white"}
            ax.text(j, i, text, **place)
    ax.set_xticks(range(len(shown)), [column.title for column in shown], rotation=35, ha="right", fontsize=8)
    ax.set_yticks(range(len(report.names)), report.names, fontsize=8)
    ax.set_xlim(-0.6, len(shown) - 0.4)
    ax.set_ylim(len(report.names) - 0.4, -0.6)
    ax.set_xlabel(f"log10 of the relative error of the Jacobian at h = {FINE:g}; green passes")
    ax.set_ylabel("case")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ""
