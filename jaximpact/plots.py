"""Pictures of motions, convergence sweeps and ensembles, written to a file; needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .integrate import Solution
from .status import FAILURES

if TYPE_CHECKING:
    from .analysis.convergence import Convergence

# Okabe and Ito's palette, without yellow
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY, DARK = "#9a9a9a", "#222222"
SHOWN = len(COLOURS)  # coordinates drawn in one panel
LANES_DRAWN = 5000  # points of a scatter


def plot_motion(
    solution: Solution,
    path,
    *,
    title: str = "",
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
    gaps: Callable[[float, np.ndarray], Any] | None = None,
) -> Path:
    """Draw one motion over time: positions, velocities, accumulated impulses, and energy where the solution has it.

    Args:
        solution: what `solve` returned.
        path: the picture to write; its suffix chooses the format (.png, .pdf, .svg).
        title: heading.
        exact: ``exact(t) -> (q, v)`` for t of shape (k,), drawn dashed.
        gaps: ``gaps(t, q) -> (m,)``, drawn in a panel of their own.
    """
    q = np.asarray(solution.q)
    if q.ndim != 2:
        raise ValueError(f"plot_motion draws one motion, positions have shape {q.shape}: use plot_ensemble for a batch")
    if len(q) < 2:
        raise ValueError(
            "plot_motion needs saved rows, the solution has the final one only: solve with save='all' or k"
        )
    t, v, impulse = (np.asarray(x) for x in (solution.t, solution.v, solution.impulse))
    panels = ["position", "gap", "velocity", "impulse", "energy"]
    if gaps is None:
        panels.remove("gap")
    if impulse.shape[1] == 0:
        panels.remove("impulse")
    if solution.energy is None:
        panels.remove("energy")
    figure = _figure(8.0, 0.7 + 1.9 * len(panels))
    axes = dict(zip(panels, figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0], strict=True))

    fine = np.linspace(t[0], t[-1], 2001)
    reference = (None, None) if exact is None else tuple(np.asarray(x) for x in exact(fine))
    for name, values, true, symbol in (("position", q, reference[0], "q"), ("velocity", v, reference[1], "v")):
        _curves(axes[name], t, values, symbol, "coordinates", steps=name == "velocity", exact=true, fine=fine)
    axes["position"].set_ylabel("position q\n[unit of q]")
    axes["velocity"].set_ylabel("velocity v\n[unit of q / s]")
    if gaps is not None:
        _curves(axes["gap"], t, np.array([gaps(*row) for row in zip(t, q, strict=True)]), "f", "gaps", best=np.min)
        axes["gap"].axhline(0.0, color=DARK, lw=0.8)
        axes["gap"].set_ylabel("gap f\n[unit of f]")
    if "impulse" in axes:
        _curves(axes["impulse"], t, impulse, "Λ", "constraints")
        axes["impulse"].set_ylabel("impulse Λ\nsince the start")
    if "energy" in axes:
        axes["energy"].plot(t, solution.energy, color=COLOURS[0], lw=1.4)
        _room(axes["energy"], np.asarray(solution.energy))
        axes["energy"].set_ylabel("energy\n[J]")

    impacts = _impacts(t, impulse)
    for ax in axes.values():
        ax.vlines(impacts, 0.0, 1.0, transform=ax.get_xaxis_transform(), color=GREY, lw=0.7, alpha=0.6, zorder=0)
        if np.isfinite(solution.failed_at):
            ax.axvline(float(solution.failed_at), color=COLOURS[1], lw=1.5, ls=":")
    first = axes["position"]
    if len(impacts):
        first.plot([], [], color=GREY, lw=0.9, label="impact")
    if np.isfinite(solution.failed_at):
        first.plot([], [], color=COLOURS[1], lw=1.5, ls=":", label="failure")
    for ax in axes.values():
        _legend_beside(ax)
    axes[panels[-1]].set_xlabel("time t [s]")
    axes[panels[-1]].set_xlim(t[0], t[-1])
    figure.align_ylabels()
    return _write(figure, path, title)


def plot_convergence(result: Convergence, path, *, title: str = "") -> Path:
    """Draw the errors of a convergence sweep over h, log-log, with observed orders and guides of slope 1 and 2.

    Args:
        result: what `convergence` returned.
        path, title: as in `plot_motion`.
    """
    labels = {"position": "position, sup norm", "velocity": "velocity, L1 norm", "impulse": "total impulse"}
    h, orders = np.asarray(result.h), result.orders()
    figure = _figure(6.8, 4.8)
    ax = figure.subplots()
    drawn = []
    for (name, label), colour, marker in zip(labels.items(), COLOURS, "osD", strict=False):
        error = np.asarray(getattr(result, name), float)
        known = np.isfinite(error) & (error > 0)
        if not known.any():
            continue
        order = f"order {orders[name]:.2f}" if np.isfinite(orders[name]) else "order not observable"
        ax.loglog(h[known], error[known], marker=marker, color=colour, lw=1.5, ms=5.5, label=f"{label}: {order}")
        drawn.append(error[known])
    if drawn:
        _slope_guides(ax, h, np.concatenate(drawn))
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.14), ncols=1, borderaxespad=0.2)
    else:
        ax.text(0.5, 0.5, "every error is zero", transform=ax.transAxes, ha="center", color=DARK)
    ax.set_xlabel("step h [s]")
    ax.set_ylabel("error")
    _style(ax)
    ax.grid(which="minor", color="#f0f0f0", lw=0.5)
    return _write(figure, path, title)


def plot_ensemble(solution: Solution, path, *, title: str = "", swept: Mapping[str, np.ndarray] | None = None) -> Path:
    """Draw where the motions of an ensemble end: quantiles over the saved times, and the final positions.

    Args:
        solution: what `ensemble` returned.
        path, title: as in `plot_motion`.
        swept: what differs between the lanes, at most three arrays (B,) by label; final positions are drawn over them.
    """
    q = np.asarray(solution.q)
    if q.ndim != 3:
        raise ValueError(f"plot_ensemble draws a batch, positions have shape {q.shape}: use plot_motion for one motion")
    failed = (np.asarray(solution.status) & int(FAILURES)) != 0
    kept = ~failed & np.all(np.isfinite(q), axis=(1, 2))
    if not kept.any():
        raise ValueError("plot_ensemble: every motion of the ensemble failed")
    t, q = np.asarray(solution.t)[kept], q[kept]
    drawn = np.arange(len(q))[:: -(-len(q) // LANES_DRAWN)]
    shown = _choose(q[:, -1].T, 3, np.ptp)
    fan = t.shape[1] > 2 and bool(np.all(t == t[0]))
    swept = {label: np.asarray(x)[kept] for label, x in (swept or {}).items()}
    if q.shape[2] > 1:
        swept = {}  # one coordinate only: two and more are drawn against each other
    kinds = ["fan"] * fan + ["histogram"] + ["swept"] * min(len(swept), 3)
    columns, rows = len(kinds), len(shown)
    figure = _figure(max(6.5, 4.2 * columns), 0.8 + (3.6 if rows == 1 else 2.5 * rows))
    if q.shape[2] > 1:
        left, right = figure.subfigures(1, 2, width_ratios=(columns, 1.15))
        figure.set_size_inches(4.0 * columns + 4.6, max(4.4, 0.8 + 2.4 * rows))
        grid = left.subplots(rows, columns, squeeze=False, sharey="row")
        _scatter(right.subplots(), q[:, -1], drawn, shown)
    else:
        grid = figure.subplots(rows, columns, squeeze=False, sharey="row")

    for row, i in zip(grid, shown, strict=True):
        colour = COLOURS[shown.index(i)]
        labels = iter(swept.items())
        for ax, kind in zip(row, kinds, strict=True):
            if kind == "fan":
                _fan(ax, t[0], q[:, :, i], colour)
            elif kind == "histogram":
                _histogram(ax, q[:, -1, i], colour)
            else:
                label, x = next(labels)
                ax.plot(x[drawn], q[drawn, -1, i], ".", ms=_dot(len(drawn)), color=colour, alpha=0.7, mew=0)
                ax.set_xlabel(label)
            _style(ax)
        when = "position" if fan else "final position"
        row[0].set_ylabel(f"{when} {'q' if q.shape[2] == 1 else f'q[{i}]'}\n[unit of q]")
        if row is not grid[-1]:
            for ax in row:
                ax.set_xlabel("")
    if fan:
        grid[0, 0].set_title("median, 50 % and 90 % of the motions", fontsize=9, color=DARK)
    grid[0, int(fan)].set_title(f"at t = {t[0, -1]:g} s", fontsize=9, color=DARK)
    if q.shape[2] > len(shown):
        title = f"{title}\n{len(shown)} of {q.shape[2]} coordinates".strip()
    if failed.any():
        title = f"{title}\n{failed.sum()} of {failed.size} motions failed and are left out".strip()
    return _write(figure, path, title)


def _figure(width: float, height: float):
    """A figure of matplotlib's object interface: no window, no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'jaximpact[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _write(figure, path, title: str) -> Path:
    if title:
        figure.suptitle(title, fontsize=12)
    path = Path(path)
    figure.savefig(path, dpi=150)
    return path


def _style(ax) -> None:
    ax.grid(color="#e4e4e4", lw=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(color=GREY, labelsize=9)


def _room(ax, values: np.ndarray) -> None:
    """Limits that do not magnify round-off of a constant."""
    low, high = np.nanmin(values), np.nanmax(values)
    if high - low < 1e-6 * (abs(low) + abs(high)):
        ax.set_ylim(low - 0.1 * (abs(low) + 0.1), high + 0.1 * (abs(high) + 0.1))


def _choose(values: np.ndarray, count: int, size: Callable) -> list[int]:
    """At most ``count`` of the rows of ``values``: all, or those of largest ``size``, in order."""
    if len(values) <= count:
        return list(range(len(values)))
    order = np.argsort([-size(row) for row in values], kind="stable")
    return sorted(int(i) for i in order[:count])


def _curves(ax, t, values, symbol, what, *, steps=False, exact=None, fine=None, best=None) -> None:
    """Columns of ``values`` over time, the most interesting ones where there are many."""
    many = values.shape[1]
    shown = _choose(values.T, SHOWN, np.ptp if best is None else lambda row: -best(row))
    for i, colour in zip(shown, cycle(COLOURS)):
        style = "steps-pre" if steps else "default"
        label = f"{symbol}[{i}]" if many > 1 else None
        ax.plot(t, values[:, i], color=colour, lw=1.4, drawstyle=style, label=label)
        if exact is not None:
            ax.plot(fine, exact[:, i], color=DARK, lw=0.9, ls=(0, (4, 3)))
    if exact is not None:
        ax.plot([], [], color=DARK, lw=0.9, ls=(0, (4, 3)), label="exact")
    if many > len(shown):
        ax.text(
            0.995, 1.0, f"{len(shown)} of {many} {what}", transform=ax.transAxes, ha="right", va="bottom", fontsize=8
        )
    _room(ax, values[:, shown])


def _legend_beside(ax) -> None:
    _style(ax)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)


def _impacts(t: np.ndarray, impulse: np.ndarray) -> np.ndarray:
    """Times of impacts: rows whose impulse jumps, unlike the row before; lasting contact grows steadily instead."""
    if impulse.shape[1] == 0 or not np.all(np.isfinite(impulse)):
        return np.zeros(0)
    growth = np.diff(impulse, axis=0)
    before = np.vstack([np.zeros_like(growth[:1]), growth[:-1]])
    jump = np.any((growth > 0.01 * np.max(impulse, initial=0.0)) & (growth > 4 * before), axis=1)
    return t[1:][jump]


def _slope_guides(ax, h: np.ndarray, errors: np.ndarray) -> None:
    """Dotted lines of slope 1 and 2 through the lower right of the errors."""
    ends = np.array([h.min(), h.max()])
    floor = errors[errors > 1e-13] if np.any(errors > 1e-13) else errors
    anchor = 0.5 * floor.max()
    low, high = ax.get_ylim()
    for order, style in ((1, ":"), (2, "-.")):
        line = anchor * (ends / ends[1]) ** order
        ax.loglog(ends, line, color=GREY, lw=1.1, ls=style, zorder=0, label=f"slope {order}")
    ax.set_ylim(min(low, 0.5 * errors.min()), max(high, 2.0 * errors.max()))


def _fan(ax, t: np.ndarray, q: np.ndarray, colour: str) -> None:
    """Median and central 50 % and 90 % of the lanes over time."""
    low, quarter, middle, three, high = np.quantile(q, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    ax.fill_between(t, low, high, color=colour, alpha=0.18, lw=0)
    ax.fill_between(t, quarter, three, color=colour, alpha=0.38, lw=0)
    ax.plot(t, middle, color=colour, lw=1.6)
    ax.set_xlabel("time t [s]")
    ax.set_xlim(t[0], t[-1])


def _histogram(ax, q: np.ndarray, colour: str) -> None:
    """Final positions, sideways, with the 5, 50 and 95 % quantiles."""
    width = np.ptp(q)
    span = (q.min(), q.max()) if width > 1e-12 * (1 + np.abs(q).max()) else (q.mean() - 0.5, q.mean() + 0.5)
    ax.hist(
        q, bins=int(np.clip(np.sqrt(len(q)), 8, 60)), range=span, orientation="horizontal", color=colour, alpha=0.55
    )
    for level, style in ((0.05, ":"), (0.5, "-"), (0.95, ":")):
        value = np.quantile(q, level)
        ax.axhline(value, color=DARK, lw=1.0, ls=style)
        ax.annotate(
            f"{level:.0%}: {value:.4g}", (1.0, value), xycoords=("axes fraction", "data"), xytext=(0, 2),
            textcoords="offset points", ha="right", fontsize=8, color=DARK,
        )  # fmt: skip
    ax.set_xlabel("motions")


def _scatter(ax, q: np.ndarray, drawn: np.ndarray, shown: list[int]) -> None:
    """Final positions in the plane of two coordinates."""
    i, j = shown[:2]
    ax.plot(q[drawn, i], q[drawn, j], ".", ms=_dot(len(drawn)), color=COLOURS[3], alpha=0.7, mew=0)
    ax.set_xlabel(f"final position q[{i}] [unit of q]")
    ax.set_ylabel(f"final position q[{j}] [unit of q]")
    _style(ax)


def _dot(count: int) -> float:
    return float(np.clip(60.0 / np.sqrt(count), 2.0, 7.0))
