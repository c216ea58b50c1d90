"""Pictures of motions, convergence sweeps and ensembles, written to a file; needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .analysis.runs import runs
from .integrate import Solution
from .schemes.base import Timing
from .status import FAILURES

if TYPE_CHECKING:
    from .analysis.convergence import Convergence

# Okabe and Ito's palette, without yellow
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY, DARK = "#9a9a9a", "#222222"
SHOWN = 4  # curves of a panel, where there are more than colours
IMPACTS_DRAWN = 60  # impacts drawn as lines; more are ticks
LANES_DRAWN = 5000  # points of a scatter
ROUND_OFF = 1e-11  # errors below it say nothing of an order


def plot_motion(
    solution: Solution,
    path,
    *,
    title: str = "",
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
    gaps: Callable[..., Any] | None = None,
) -> Path:
    """Draw one motion over time: positions, velocities, accumulated impulses, and energy where the solution has it.

    Impacts are the grey lines. A motion that failed and blew up is drawn up to there. Energies of rows in the middle of an impact are left out: the velocity of a step that
    contains part of an impact is neither that before nor that after.

    Args:
        solution: what `solve` returned.
        path: the picture to write; its suffix chooses the format (.png, .pdf, .svg).
        title: heading.
        exact: ``exact(t) -> (q, v)`` for t of shape (k,), drawn dashed.
        gaps: ``gaps(t, q) -> (k, m)`` for the k rows, drawn in a panel of its own.
    """
    q = np.asarray(solution.q)
    if q.ndim != 2:
        raise ValueError(f"plot_motion draws one motion, positions have shape {q.shape}: use plot_ensemble for a batch")
    if len(q) < 2:
        raise ValueError(
            "plot_motion needs saved rows, the solution has the final one only: solve with save='all' or k"
        )
    failed_at = float(solution.failed_at)
    t, v, impulse = (np.asarray(x) for x in (solution.t, solution.v, solution.impulse))
    rows = slice(_sound_rows(t, q, v) if np.isfinite(failed_at) else len(t))
    t, q, v, impulse = t[rows], q[rows], v[rows], impulse[rows]
    given = {"gap": gaps is not None, "impulse": impulse.shape[1] > 0, "energy": solution.energy is not None}
    panels = [name for name in ("position", "gap", "velocity", "impulse", "energy") if given.get(name, True)]
    figure = _figure(8.0, 0.7 + 1.9 * len(panels))
    axes = dict(zip(panels, figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0], strict=True))
    impacts, within = _impacts(t, impulse, solution.timing)

    fine = np.linspace(t[0], t[-1], 2001)
    reference = (None, None) if exact is None else exact(fine)
    shown = _evenly(q.shape[1])
    _curves(axes["position"], t, q, shown, "q", "coordinates", exact=reference[0], fine=fine)
    _curves(axes["velocity"], t, v, shown, "v", "coordinates", exact=reference[1], fine=fine, drawstyle="steps-pre")
    axes["position"].set_ylabel("position q\n[unit of q]")
    axes["velocity"].set_ylabel("velocity v\n[unit of q / s]")
    if gaps is not None:
        values = np.asarray(gaps(t, q))
        _curves(axes["gap"], t, values, _largest(-values.min(0)), "f", "gaps")
        axes["gap"].axhline(0.0, color=DARK, lw=0.8)
        axes["gap"].set_ylabel("gap f\n[unit of f]")
    if "impulse" in axes:
        _curves(axes["impulse"], t, impulse, _largest(impulse[-1]), "Λ", "constraints")
        axes["impulse"].set_ylabel("accumulated\nimpulse Λ [N s]")
    if "energy" in axes:
        energy, label = np.asarray(solution.energy)[rows][~within], "energy\n[J]"
        size = np.max(np.abs(energy))
        if np.ptp(energy) < 1e-3 * size:
            energy, label = energy - energy[0], "energy change\n[J]"
        axes["energy"].plot(t[~within], energy, color=COLOURS[0], lw=1.4)
        _limits(axes["energy"].set_ylim, energy, size, 1e-9)
        axes["energy"].set_ylabel(label)

    for ax in axes.values():
        _mark(ax, impacts)
        if t[0] <= failed_at <= t[-1]:
            ax.axvline(failed_at, color=COLOURS[1], lw=1.5, ls=":")
    if len(impacts):
        axes["position"].plot([], [], color=GREY, lw=0.9, label="impact")
    if t[0] <= failed_at <= t[-1]:
        axes["position"].plot([], [], color=COLOURS[1], lw=1.5, ls=":", label="failure")
    for ax in axes.values():
        _style(ax)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)
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
    anchors, largest = [], 0.0
    for (name, label), colour, marker in zip(labels.items(), COLOURS, "osD", strict=False):
        error = np.asarray(getattr(result, name), float)
        known = np.isfinite(error) & (error > 0)
        if not known.any():
            continue
        if result.floor[name] > 0:
            ax.axhline(result.floor[name], color=colour, lw=0.8, ls=":")  # the reference's own error
        if error[known].max() < ROUND_OFF:
            order = "round-off"
        else:
            order = f"order {orders[name]:.2f}" if np.isfinite(orders[name]) else "no order"
            # the guides lie below every curve: each error bounds their value at the largest h
            anchors.append(np.min(error[known] * h.max() / h[known]))
        ax.loglog(h[known], error[known], marker=marker, color=colour, lw=1.5, ms=5.5, label=f"{label}: {order}")
        largest = max(largest, error[known].max())
    if anchors:
        _slope_guides(ax, h, 0.5 * min(anchors), largest)
    if largest > 0:
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=9)
    else:
        ax.text(0.5, 0.5, "every error is zero or unknown", transform=ax.transAxes, ha="center", color=DARK)
    ax.set_xlabel("step h [s]")
    ax.set_ylabel("error")
    _style(ax)
    ax.grid(which="minor", color="#f0f0f0", lw=0.5)
    return _write(figure, path, title)


def plot_ensemble(solution: Solution, path, *, title: str = "", swept: Mapping[str, np.ndarray] | None = None) -> Path:
    """Draw the motions of an ensemble: quantiles over the saved times, and where they end.

    Args:
        solution: what `ensemble` returned.
        path, title: as in `plot_motion`.
        swept: what differs between the lanes, arrays (B,) by label, the first two of which are drawn for d = 1: final
            position over swept variable. For d > 1 final positions are drawn against each other.
    """
    q = np.asarray(solution.q)
    if q.ndim != 3:
        raise ValueError(f"plot_ensemble draws a batch, positions have shape {q.shape}: use plot_motion for one motion")
    failed = (np.asarray(solution.status) & int(FAILURES)) != 0
    kept = ~failed & np.all(np.isfinite(q), axis=(1, 2))
    if not kept.any():
        raise ValueError("plot_ensemble: every motion of the ensemble failed")
    t, q = np.asarray(solution.t)[kept], q[kept]
    lanes, rows, d = q.shape
    fan = rows > 2 and bool(np.all(t == t[0]))
    when = f"at t = {t[0, -1]:g} s" if np.all(t[:, -1] == t[0, -1]) else "at the end"
    some = slice(None, None, -(-lanes // LANES_DRAWN))
    swept = {label: np.asarray(x)[kept][some] for label, x in list((swept or {}).items())[: 2 if d == 1 else 0]}

    shown = _evenly(d, 3)
    columns = fan + 1
    others = []
    if d == 1:
        # two by two with a fan chart, else side by side
        height, width = (1 + bool(swept), 2) if fan else (1, 1 + len(swept))
        figure, cells = _grid(max(6.0, 4.5 * width), 0.6 + 3.3 * height, height, width)
        panels, others = cells[:1, :columns], list(cells.ravel()[columns:])
    else:
        figure, cells = _grid(4.2 * columns + 4.4, 0.7 + max(4.0, 2.4 * len(shown)), len(shown), columns + 1)
        panels = cells[:, :columns]
        for ax in cells[:, columns]:
            ax.remove()
        _scatter(
            figure.add_subplot(cells[0, 0].get_gridspec()[:, columns]), q[some, -1], shown, when, np.max(np.abs(q))
        )

    for row, i, colour in zip(panels, shown, COLOURS, strict=False):
        name = "q" if d == 1 else f"q[{i}]"
        if fan:
            _fan(row[0], t[0], q[:, :, i], colour)
            row[0].set_ylabel(f"position {name} [unit of q]")
        _histogram(row[-1], q[:, -1, i], np.max(np.abs(q[:, :, i])), colour)
        row[-1].set_xlabel(f"{name} {when} [unit of q]")
        row[-1].set_ylabel("motions")
    for label, x in swept.items():
        ax = others.pop(0)
        ax.plot(x, q[some, -1, 0], ".", ms=_dot(len(x)), color=COLOURS[2], alpha=0.6, mew=0)
        _limits(ax.set_ylim, q[:, -1, 0], np.max(np.abs(q)))
        ax.set_xlabel(label)
        ax.set_ylabel(f"q {when} [unit of q]")
        _style(ax)
    for ax in others:
        ax.remove()
    if fan:
        panels[0, 0].set_title("median, central 50 % and 90 % of the motions", fontsize=9, color=DARK)
    if d > len(shown):
        title = f"{title}\n{len(shown)} of {d} coordinates".strip()
    if lanes < failed.size:
        title = f"{title}\n{failed.size - lanes} of {failed.size} motions failed and are left out".strip()
    return _write(figure, path, title)


def plot_derivatives(
    t, derivatives: Mapping[str, Mapping[str, Any]], path, *, impacts: Any = (), title: str = ""
) -> Path:
    """Draw derivatives along a motion, tangents or adjoints: one panel for each, one curve for each way to compute it.

    Args:
        t: times (k,) [s].
        derivatives: panel -> label -> values (k,); the first label is drawn thick and sets the
            scale, the others on top of it.
        path: the picture to write.
        impacts: times of impacts, grey lines.
        title: heading.
    """
    t = np.asarray(t)
    figure = _figure(8.0, 0.7 + 1.9 * len(derivatives))
    axes = figure.subplots(len(derivatives), sharex=True, squeeze=False)[:, 0]
    for ax, (name, curves) in zip(axes, derivatives.items(), strict=True):
        for i, (label, values) in enumerate(curves.items()):
            values = np.asarray(values)
            if values.shape != t.shape:
                raise ValueError(
                    f"derivatives[{name!r}][{label!r}] must have the shape of t, {t.shape}, got {values.shape}"
                )
            width, colour = (3.5, "#c8c8c8") if i == 0 else (1.4, COLOURS[(i - 1) % len(COLOURS)])
            ax.plot(t, values, color=colour, lw=width, label=label)
        _mark(ax, np.asarray(impacts))
        _style(ax)
        ax.set_ylabel(name)
        # the first curve sets the scale; what leaves it is named, not hidden
        first, *others = (np.asarray(values) for values in curves.values())
        margin = 0.6 * (np.ptp(first) or 1.0)
        low, high = first.min() - margin, first.max() + margin
        beyond = [x for values in others for x in (values.min(), values.max()) if not low <= x <= high]
        if beyond:
            ax.set_ylim(low, high)
            note = f"off the scale, up to {max(beyond, key=abs):.3g}"
            ax.annotate(note, (0.99, 0.93), xycoords="axes fraction", ha="right", fontsize=8.5, color=DARK)
    axes[0].legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)
    axes[-1].set_xlabel("time t [s]")
    axes[-1].set_xlim(t[0], t[-1])
    figure.align_ylabels()
    return _write(figure, path, title)


def _figure(width: float, height: float):
    """A figure of matplotlib's object interface: no window, no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'jaximpact[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _grid(width: float, height: float, rows: int, columns: int):
    figure = _figure(width, height)
    figure.get_layout_engine().set(wspace=0.04, hspace=0.04)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _write(figure, path, title: str) -> Path:
    if title:
        width = int(11 * figure.get_figwidth())
        lines = [part for line in title.splitlines() for part in textwrap.wrap(line, width)]
        figure.suptitle("\n".join(lines), fontsize=12)
    path = Path(path)
    figure.savefig(path, dpi=150)
    return path


def _style(ax) -> None:
    ax.grid(color="#e4e4e4", lw=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(which="both", color=GREY, labelsize=9)


def _limits(set_limits: Callable, values: np.ndarray, size: float, small: float = 1e-6) -> None:
    """Limits that do not magnify round-off: where ``values`` vary by less than ``small`` of ``size``."""
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) <= small * size:
        margin = (0.1 if small > 1e-8 else 10 * small) * (size or 1.0)
        set_limits(values.min() - margin, values.max() + margin)


def _sound_rows(t: np.ndarray, q: np.ndarray, v: np.ndarray) -> int:
    """Number of rows before a failed motion blows up, at least two."""
    size = np.max(np.abs(q), axis=1)
    usual = np.max(np.abs(q[0])) + (t[-1] - t[0]) * np.max(np.abs(v[0]))
    sound = size <= (10 * usual if usual > 0 else np.finfo(float).max)
    return len(t) if sound.all() else max(2, int(np.argmin(sound)))


def _evenly(count: int, most: int | None = None) -> list[int]:
    """All of ``count`` coordinates, or a few evenly spread ones."""
    if count <= (most or len(COLOURS)):
        return list(range(count))
    return [int(i) for i in np.linspace(0, count - 1, most or SHOWN).round()]


def _largest(size: np.ndarray) -> list[int]:
    """All indices, or the few of largest size, in order."""
    if len(size) <= len(COLOURS):
        return list(range(len(size)))
    return sorted(int(i) for i in np.argsort(-size, kind="stable")[:SHOWN])


def _curves(ax, t, values, shown, symbol, what, *, exact=None, fine=None, **line) -> None:
    """The ``shown`` columns of ``values`` over time, and the exact ones dashed."""
    many = values.shape[1]
    for i, colour in zip(shown, COLOURS, strict=False):
        ax.plot(t, values[:, i], color=colour, lw=1.4, label=f"{symbol}[{i}]" if many > 1 else None, **line)
        if exact is not None:
            ax.plot(fine, exact[:, i], color=DARK, lw=0.9, ls=(0, (4, 3)))
    if exact is not None:
        ax.plot([], [], color=DARK, lw=0.9, ls=(0, (4, 3)), label="exact")
    if many > len(shown):
        place = {"transform": ax.transAxes, "ha": "right", "va": "bottom", "fontsize": 8}
        ax.text(0.995, 1.0, f"{len(shown)} of {many} {what}", **place)
    _limits(ax.set_ylim, values[:, shown], np.max(np.abs(values)))


def _impacts(t: np.ndarray, impulse: np.ndarray, timing: Timing | None) -> tuple[np.ndarray, np.ndarray]:
    """Times of impacts, at the end of the steps that they begin in, and which rows (k,) lie within one."""
    found = runs(impulse[None], timing)
    return np.unique(t[found.first[found.struck] + 1]), found.inside[0]


def _mark(ax, impacts: np.ndarray) -> None:
    """Grey lines at the impacts, ticks at the top where they are many."""
    many = len(impacts) > IMPACTS_DRAWN
    style = {"lw": 0.4, "alpha": 0.9} if many else {"lw": 0.7, "alpha": 0.6}
    ax.vlines(impacts, 0.95 if many else 0.0, 1.0, transform=ax.get_xaxis_transform(), color=GREY, zorder=0, **style)


def _slope_guides(ax, h: np.ndarray, anchor: float, largest: float) -> None:
    """Lines of slope 1 and 2 from ``anchor`` at the largest h."""
    low = min(0.5 * anchor * h.min() / h.max(), ax.get_ylim()[0])
    for order, style in ((1, ":"), (2, "-.")):
        left = max(h.min(), h.max() * (1.6 * low / anchor) ** (1 / order))
        ends = np.array([left, h.max()])
        ax.loglog(ends, anchor * (ends / h.max()) ** order, color=GREY, lw=1.2, ls=style, zorder=0)
        place = {"xytext": (0, -2), "textcoords": "offset points", "va": "top", "ha": "left"}
        ax.annotate(f"slope {order}", (left, anchor * (left / h.max()) ** order), color="#777777", fontsize=8, **place)
    ax.set_ylim(0.5 * low, 2.0 * largest)


def _fan(ax, t: np.ndarray, q: np.ndarray, colour: str) -> None:
    """Median and central 50 % and 90 % of the lanes over time."""
    low, quarter, middle, three, high = np.quantile(q, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    ax.fill_between(t, low, high, color=colour, alpha=0.18, lw=0)
    ax.fill_between(t, quarter, three, color=colour, alpha=0.38, lw=0)
    ax.plot(t, middle, color=colour, lw=1.4)
    ax.set_xlabel("time t [s]")
    ax.set_xlim(t[0], t[-1])
    _style(ax)


def _histogram(ax, q: np.ndarray, size: float, colour: str) -> None:
    """Final positions with their 5, 50 and 95 % quantiles."""
    if np.ptp(q) > 1e-9 * size:
        span = (q.min(), q.max())
    else:
        span = (q.mean() - 0.1 * (size or 1.0), q.mean() + 0.1 * (size or 1.0))
    bins = 2 * int(np.clip(np.sqrt(len(q)), 8, 60) / 2) + 1
    ax.hist(q, bins=bins, range=span, color=colour, alpha=0.55)
    levels = np.quantile(q, (0.05, 0.5, 0.95))
    for value, style in zip(levels, (":", "-", ":"), strict=True):
        ax.axvline(value, color=DARK, lw=1.0, ls=style)
    shown = np.where(np.abs(levels) < 1e-12 * size, 0.0, levels)
    ax.set_title("5 %, 50 %, 95 %: " + ", ".join(f"{x:.4g}" for x in shown), fontsize=9, color=DARK)
    _style(ax)


def _scatter(ax, q: np.ndarray, shown: list[int], when: str, size: float) -> None:
    """Final positions in the plane of the first two coordinates shown."""
    i, j = shown[:2]
    ax.plot(q[:, i], q[:, j], ".", ms=_dot(len(q)), color=COLOURS[2], alpha=0.6, mew=0)
    _limits(ax.set_xlim, q[:, i], size)
    _limits(ax.set_ylim, q[:, j], size)
    ax.set_xlabel(f"q[{i}] {when} [unit of q]")
    ax.set_ylabel(f"q[{j}] {when} [unit of q]")
    _style(ax)


def _dot(count: int) -> float:
    return float(np.clip(100.0 / np.sqrt(count), 3.0, 8.0))
