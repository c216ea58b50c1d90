"""Style of all pictures: figures, colours, plain axes, and limits that do not magnify round-off."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..jaxtools.argument_checks import are_texts, is_pair
from ..jaxtools.optional_packages import import_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, without yellow
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY, DARK = "#9a9a9a", "#222222"
Style = dict[str, Any]  # keywords of matplotlib
OUTSIDE: Style = {  # a legend beside its axes
    "loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0, "frameon": False, "fontsize": 8.5
}  # fmt: skip
SHOWN = 4  # curves of a panel, where there are more than colours


def new_figure(width: float, height: float) -> Figure:
    """Figure of matplotlib's object interface: no window, no global state."""
    figure = import_optional("matplotlib.figure", "a picture")
    return figure.Figure(figsize=(width, height), layout="constrained", facecolor="white")


def new_grid(width: float, height: float, rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (rows, columns)."""
    figure = new_figure(width, height)
    cast(Any, figure.get_layout_engine()).set(wspace=0.04, hspace=0.04)
    return figure, figure.subplots(rows, columns, squeeze=False)


def set_heading(figure: Figure, text: str) -> None:
    """Puts lines of text over the panels, wrapped to the width of the figure."""
    width = int(11 * figure.get_figwidth())
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, width)]
    figure.suptitle("\n".join(lines), fontsize=12)


def tidy(ax: Axes) -> None:
    """Leaves a light grid, and axes at the left and below only."""
    ax.grid(color="#e4e4e4", lw=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(which="both", color=GREY, labelsize=9)


def limits(set_limits: Callable[..., object], values: np.ndarray, size: float, small: float = 1e-6) -> None:
    """Sets axis limits that do not magnify round-off, when ``values`` vary by less than ``small`` times ``size``."""
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) <= small * size:
        margin = (0.1 if small > 1e-8 else 10 * small) * (size or 1.0)
        set_limits(values.min() - margin, values.max() + margin)


def evenly(count: int, most: int | None = None) -> list[int]:
    """The indices from 0 to ``count`` - 1, or a few of them, evenly spread, if there are more than ``most``."""
    if count <= (most or len(COLOURS)):
        return list(range(count))
    return [int(i) for i in np.linspace(0, count - 1, most or SHOWN).round()]


def dot(count: int) -> float:
    """Size of a scatter's dots for ``count`` points."""
    return float(np.clip(100.0 / np.sqrt(max(1, count)), 3.0, 8.0))


def axis_labels(labels: tuple[str, str] | None, names: tuple[str, str]) -> tuple[str, str]:
    """Labels of the axes along x and y: those given, or names of parameters.

    Raises:
        ValueError: labels are not two texts.
    """
    if labels is None:
        return names
    if not is_pair(labels) or not are_texts(labels):
        raise ValueError(f"labels must be two texts, of the axes along x and y, got {labels!r}")
    return labels
