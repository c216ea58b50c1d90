"""Pictures of impacts, sections, bifurcations, maps over two parameters and basins; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..plots import COLOURS, DARK, GREY, _dot, _figure, _style, _write
from .sections import NOT_SETTLED

if TYPE_CHECKING:
    from .basins import Basins
    from .bifurcation import Bifurcation, ParameterMap
    from .impacts import Impacts
    from .sections import ImpactSection, Section

POINTS = 20_000  # points from which each is drawn as a pixel
PERIODS = 8  # periods with a colour of their own
ROOM = 9  # basins with a colour of their own
# further colours, distinct from the palette's and from each other
BASINS = (*COLOURS, "#F0E442", "#8c564b", "#5b4ea3")
LIGHT = "#e8e8e8"


def plot_impacts(found: Impacts, path, *, title: str = "") -> Path:
    """Draw the speeds of the impacts of one motion over time, or the times of impacts of several, lane by lane.

    Lasting contact is a thick line, accumulating impacts are a band.
    """
    lanes = np.unique(np.concatenate([found.lane, found.lasting.lane]))
    figure = _figure(8.0, 3.6)
    ax = figure.subplots()
    one = len(lanes) <= 1
    for k, colour in zip(np.unique(np.concatenate([found.contact, found.lasting.contact])), COLOURS * 20, strict=False):
        which, held, limit = (x.contact == k for x in (found, found.lasting, found.accumulations))
        height = -found.before[which] if one else found.lane[which]
        if one:
            ax.vlines(found.t[which], 0, height, color=colour, lw=1.0)
        ax.plot(found.t[which], height, "o" if one else "|", color=colour, ms=4, label=f"contact {k}")
        level = 0 * found.lasting.lane[held] if one else found.lasting.lane[held]
        ax.hlines(level, found.lasting.start[held], found.lasting.end[held], color=colour, lw=5, alpha=0.5)
        for start, end in (
            zip(found.accumulations.start[limit], found.accumulations.end[limit], strict=True) if one else ()
        ):
            ax.axvspan(start, end, color=colour, alpha=0.1, lw=0)
    if len(found.lasting):
        ax.plot([], [], color=GREY, lw=5, alpha=0.5, label="lasting contact")
    if one and len(found.accumulations):
        ax.plot([], [], "s", ms=9, color=GREY, alpha=0.3, label="accumulating")
    ax.set_xlabel("time t [s]")
    ax.set_ylabel("speed of approach [unit of f / s]" if one else "motion")
    _style(ax)
    if not one:
        ax.yaxis.get_major_locator().set_params(integer=True)
    if len(lanes):
        ax.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)
    return _write(figure, path, title)


def plot_section(section: Section, path, *, coordinate: int = 0, title: str = "") -> Path:
    """Draw velocity over position of one coordinate, all lanes together."""
    figure = _figure(6.0, 4.6)
    ax = figure.subplots()
    _points(ax, section.q[..., coordinate].ravel(), section.v[..., coordinate].ravel())
    ax.set_xlabel(f"position q[{coordinate}] [unit of q]")
    ax.set_ylabel(f"velocity v[{coordinate}] [unit of q / s]")
    return _write(figure, path, title)


def plot_impact_section(found: ImpactSection, path, *, title: str = "") -> Path:
    """Draw the velocity before each impact over its phase, all lanes together."""
    figure = _figure(6.0, 4.6)
    ax = figure.subplots()
    _points(ax, found.phase, found.impacts.before)
    ax.set_xlim(0, 1)
    ax.set_xlabel("phase of the forcing at the impact [periods]")
    ax.set_ylabel("gap velocity before the impact [unit of f / s]")
    return _write(figure, path, title)


def plot_bifurcation(found: Bifurcation, path, *, coordinate: int = 0, title: str = "") -> Path:
    """Draw the sections of one coordinate over the parameter, and below the periods found."""
    figure = _figure(9.0, 6.0)
    top, below = figure.subplots(2, sharex=True, height_ratios=(4, 1))
    q = found.q[..., coordinate]
    _points(top, np.broadcast_to(found.values[:, None, None], q.shape).ravel(), q.ravel())
    top.set_ylabel(f"position q[{coordinate}] once a period [unit of q]")
    if q.shape[-1] > 1:
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
    below.set_xlabel(found.parameter)
    _style(below)
    below.tick_params(axis="y", labelsize=7)
    failed = int(np.sum(found.section.failed))
    if failed:
        title = f"{title}\n{failed} of {found.section.failed.size} motions failed".strip()
    return _write(figure, path, title)


def plot_parameter_map(found: ParameterMap, path, *, title: str = "") -> Path:
    """Draw period and number of impacts over the two parameters."""
    from matplotlib.colors import BoundaryNorm, ListedColormap

    figure = _figure(11.0, 4.8)
    left, right = figure.subplots(1, 2, sharey=True)
    names = ["not settled", "failed", "none", *map(str, range(1, PERIODS + 1)), f"> {PERIODS}"]
    colours = ListedColormap(["white", "black", LIGHT, *BASINS[:PERIODS], GREY])
    norm = BoundaryNorm(np.arange(len(names) + 1) - 2.5, len(names))
    period = np.minimum(found.period, PERIODS + 1)
    image = left.pcolormesh(found.x, found.y, period, cmap=colours, norm=norm, shading="nearest", rasterized=True)
    bar = figure.colorbar(
        image, ax=left, ticks=range(NOT_SETTLED, len(names) + NOT_SETTLED), label="period [forcing periods]"
    )
    bar.ax.set_yticklabels(names, fontsize=8)
    image = right.pcolormesh(found.x, found.y, found.impacts, cmap="viridis", shading="nearest", rasterized=True)
    figure.colorbar(image, ax=right, label="impacts in a forcing period")
    for ax in (left, right):
        ax.set_xlabel(found.parameters[0])
    left.set_ylabel(found.parameters[1])
    return _write(figure, path, title)


def plot_basins(found: Basins, path, *, title: str = "") -> Path:
    """Draw the basins, one colour for each attractor, and the states of those attractors that lie in the picture."""
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    figure = _figure(8.4, 5.6)
    ax = figure.subplots()
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
        style = (
            {"ms": 6, "mec": "white", "mfc": BASINS[k], "mew": 1.2} if attractor.period else {"ms": 3, "color": DARK}
        )
        ax.plot(where[first][:, i], where[second][:, j], "o" if attractor.period else ".", **style)
    ax.set_xlim(found.x.min(), found.x.max())
    ax.set_ylim(found.y.min(), found.y.max())
    ax.set_xlabel(f"initial {first}[{i}]")
    ax.set_ylabel(f"initial {second}[{j}]")
    present = [k for k in range(len(colours)) if np.any(labels == k - 3)]
    handles = [Patch(facecolor=colours[k], edgecolor=GREY, lw=0.5) for k in present]
    ax.legend(
        handles, [names[k] for k in present], frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.005, 1.0)
    )
    return _write(figure, path, title)


def _points(ax, x: np.ndarray, y: np.ndarray) -> None:
    """A scatter: pixels where there are many."""
    many = len(x) > POINTS
    style = {"marker": ",", "alpha": 0.35} if many else {"marker": ".", "ms": _dot(len(x)), "mew": 0, "alpha": 0.8}
    ax.plot(x, y, ls="none", color=DARK if many else COLOURS[0], rasterized=True, **style)
    _style(ax)
