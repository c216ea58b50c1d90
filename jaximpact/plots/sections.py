"""Pictures of sections, bifurcations, maps over two parameters and basins."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.basins import Basins
from ..analysis.bifurcation import Bifurcation, ParameterMap
from ..analysis.crossings import Crossings
from ..analysis.sections import NOT_SETTLED, ImpactSection, Section
from .style import COLOURS, DARK, GREY, OUTSIDE, Style, axis_labels, dot, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 20_000  # points from which each is drawn as a pixel
BEYOND = 1e300  # drawn in place of infinitely many
PERIODS = 8  # periods with a colour of their own
LEGEND = 12  # contacts named beside a picture
ROOM = 9  # basins with a colour of their own
# further colours, distinct from the palette's and from each other
BASINS = (*COLOURS, "#F0E442", "#8c564b", "#5b4ea3")
LIGHT = "#e8e8e8"


def draw_section(section: Section | Crossings, ax: Axes, *, coordinate: int = 0) -> str:
    """Draws velocity over position of one coordinate, all lanes together."""
    _points(ax, section.q[..., coordinate].ravel(), section.v[..., coordinate].ravel())
    labels = section.naming
    ax.set_xlabel(labels.axis(f"position {labels.coordinate(coordinate, 2)}", "q", coordinate))
    ax.set_ylabel(labels.axis(f"velocity {labels.coordinate(coordinate, 2, 'v')}", "v", coordinate))
    return ""


def draw_impact_section(found: ImpactSection, ax: Axes) -> str:
    """Draws the velocity before each impact over its phase, all lanes together, each contact in its colour."""
    contacts = np.unique(found.impacts.contact)
    if len(contacts) > 1:
        for k, colour in zip(contacts, itertools.cycle(COLOURS)):
            which = found.impacts.contact == k
            _points(ax, found.phase[which], found.impacts.before[which], colour, len(found.phase))
            ax.plot([], [], "o", ms=4, color=colour, label=found.impacts.naming.contact(int(k)) if k < LEGEND else None)
        ax.legend(**OUTSIDE)
    else:
        _points(ax, found.phase, found.impacts.before)
    ax.set_xlim(0, 1)
    ax.set_xlabel("phase of the forcing at the impact [periods]")
    ax.set_ylabel(found.impacts.naming.axis("gap velocity before the impact", "gap velocity"))
    return ""


def draw_bifurcation(found: Bifurcation, *, coordinate: int = 0, label: str = "") -> tuple[np.ndarray, str]:
    """Draws the positions of one coordinate over the parameter, and below them the periods.

    A diagram of another quantity (`Bifurcation.of`) shows its component ``coordinate`` in place of positions.
    """
    figure = new_figure(9.0, 6.0)
    top, below = figure.subplots(2, sharex=True, height_ratios=(4, 1))
    remark = draw_sections(found, top, coordinate=coordinate)
    top.set_xlabel("")
    if found.q.shape[-2] > 1:
        period = np.where(found.periods() > PERIODS, PERIODS + 1, found.periods())
        values = np.broadcast_to(found.values[:, None], period.shape)
        below.plot(values[period > 0], period[period > 0], ".", ms=3, color=COLOURS[0])
        below.plot(values[period == 0], period[period == 0], ".", ms=3, color=COLOURS[1])
        slow = period == NOT_SETTLED
        below.plot(values[slow], np.full(slow.sum(), -1), ".", ms=3, color=GREY)
    below.set_yticks(
        range(-1, PERIODS + 2), ["not settled", "none", *map(str, range(1, PERIODS + 1)), f"> {PERIODS}"], fontsize=7
    )
    below.set_ylim(-1.6, PERIODS + 1.6)
    below.set_ylabel("period")
    below.set_xlabel(label or found.parameter)
    tidy(below)
    below.tick_params(axis="y", labelsize=7)
    return np.array([top, below]), remark


def draw_sections(found: Bifurcation, ax: Axes, *, coordinate: int = 0, label: str = "") -> str:
    """Draws the positions of one coordinate over the parameter.

    A diagram of another quantity (`Bifurcation.of`) shows its component ``coordinate`` in place of positions.
    """
    x, y, height = found.points_of(coordinate)
    _points(ax, x, y)
    ax.set_ylabel(height)
    ax.set_xlabel(label or found.parameter)
    failed = int(np.sum(found.section.failed))
    return f"{failed} of {found.section.failed.size} motions failed" if failed else ""


def draw_parameter_map(found: ParameterMap, *, labels: tuple[str, str] | None = None) -> tuple[np.ndarray, str]:
    """Draws period and number of impacts over the two parameters."""
    from matplotlib import colormaps

    figure = new_figure(11.0, 4.8)
    left, right = figure.subplots(1, 2, sharey=True)
    draw_periods(found, left, labels=labels)
    endless = np.isposinf(found.impacts)
    finite = found.impacts[np.isfinite(found.impacts)]
    image = right.pcolormesh(
        found.x, found.y, np.where(endless, BEYOND, found.impacts),
        cmap=colormaps["viridis"].with_extremes(over=COLOURS[1]), shading="nearest", rasterized=True,
        vmin=np.min(finite, initial=0.0), vmax=np.max(finite, initial=1.0),
    )  # fmt: skip
    label = "impacts in a forcing period" + (";\nbeyond the scale: infinitely many" if endless.any() else "")
    figure.colorbar(image, ax=right, label=label, extend="max" if endless.any() else "neither")
    right.set_xlabel(left.get_xlabel())
    return np.array([left, right]), ""


def draw_periods(found: ParameterMap, ax: Axes, *, labels: tuple[str, str] | None = None) -> str:
    """Draws the period over the two parameters."""
    from matplotlib.colors import BoundaryNorm, ListedColormap

    names = ["not settled", "failed", "none", *map(str, range(1, PERIODS + 1)), f"> {PERIODS}"]
    colours = ListedColormap(["white", "black", LIGHT, *BASINS[:PERIODS], GREY])
    norm = BoundaryNorm(np.arange(len(names) + 1) - 2.5, len(names))
    period = np.minimum(found.period, PERIODS + 1)
    image = ax.pcolormesh(found.x, found.y, period, cmap=colours, norm=norm, shading="nearest", rasterized=True)
    bar = ax.figure.colorbar(
        image, ax=ax, ticks=range(NOT_SETTLED, len(names) + NOT_SETTLED), label="period [forcing periods]"
    )
    bar.ax.set_yticklabels(names, fontsize=8)
    across, up = axis_labels(labels, found.parameters)
    ax.set_xlabel(across)
    ax.set_ylabel(up)
    return ""


def draw_basins(found: Basins, ax: Axes) -> str:
    """Draws the basins, one colour for each attractor, and the attractors' states that lie in the picture."""
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    known = min(len(found.attractors), ROOM)
    more = len(found.attractors) > ROOM
    names = ["failed", "forbidden", "unsettled"]
    for k, attractor in enumerate(found.attractors[:known]):
        kind = f"period {attractor.period}" if attractor.period else "no period"
        names.append(f"{kind}: {100 * found.shares()[k]:.3g} %")
    names += [f"{len(found.attractors) - ROOM} more"] if more else []
    colours = ["black", "white", LIGHT, *BASINS[:known], *([GREY] if more else [])]
    norm = BoundaryNorm(np.arange(len(colours) + 1) - 3.5, len(colours))
    labels = np.minimum(found.labels, ROOM)
    ax.pcolormesh(found.x, found.y, labels, cmap=ListedColormap(colours), norm=norm, shading="nearest", rasterized=True)
    (first, i), (second, j) = found.coordinates
    for k, attractor in enumerate(found.attractors[:known]):
        where = {"q": attractor.q, "v": attractor.v}
        style: Style = (
            {"ms": 6, "mec": "white", "mfc": BASINS[k], "mew": 1.2} if attractor.period else {"ms": 3, "color": DARK}
        )
        ax.plot(where[first][:, i], where[second][:, j], "o" if attractor.period else ".", **style)
    ax.set_xlim(found.x.min(), found.x.max())
    ax.set_ylim(found.y.min(), found.y.max())
    for (name, k), put in (((first, i), ax.set_xlabel), ((second, j), ax.set_ylabel)):
        place = k if found.naming.coordinates is None else found.naming.coordinates[k]
        put(found.naming.axis(f"initial {name}[{place}]", name, k))
    present = [k for k in range(len(colours)) if np.any(labels == k - 3)]
    handles = [Patch(facecolor=colours[k], edgecolor=GREY, lw=0.5) for k in present]
    ax.legend(handles, [names[k] for k in present], **(OUTSIDE | {"borderaxespad": None}))
    return ""


def _points(ax: Axes, x: np.ndarray, y: np.ndarray, colour: str | None = None, count: int | None = None) -> None:
    """Draws a scatter, with pixels for dots if there are many (``count`` in the whole picture)."""
    count = len(x) if count is None else count
    many = count > POINTS
    style: Style = {"marker": ",", "alpha": 0.35} if many else {"marker": ".", "ms": dot(count), "mew": 0, "alpha": 0.8}
    ax.plot(x, y, ls="none", color=colour or (DARK if many else COLOURS[0]), rasterized=True, **style)
    tidy(ax)
