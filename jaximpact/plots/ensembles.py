"""Pictures of many motions at once: ensembles, their statistics, and sweeps over the step size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.convergence import Convergence
from ..analysis.statistics import Statistics
from ..mechanics.labels import QUANTITIES, Labels
from ..mechanics.status import FAILURES
from ..results import Solution
from ..results.impulse_intervals import runs
from .style import COLOURS, DARK, GREY, OUTSIDE, SHOWN, Style, dot, evenly, limits, new_grid, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LANES_DRAWN = 5000  # points of a scatter
ROUND_OFF = 1e-11  # errors below it say nothing of an order
NEAR = 1e-3  # of the least error: that of the reference is drawn from there on
ERRORS = {
    "position": "q",
    "velocity": "q",
    "impulse": "impulse",
}  # whose units they have: velocities are integrated over time
GROUPS_DRAWN = 4  # bands over time
INTERVALS = 120  # of time in which impacts are counted
STRIP = 0.26  # of the height, for the impacts below the bands
BANDS = "median, bands of 50 % and 90 %; below: share in contact"


def draw_ensemble(solution: Solution, *, swept: Mapping[str, np.ndarray] | None = None) -> tuple[np.ndarray, str]:
    """Draws an ensemble: quantiles over the saved times, and final positions.

    Args:
        solution: what `ensemble` returned.
        swept: what differs between the lanes, arrays (B,) by label, the first two of which are drawn for d = 1: final
            position over swept variable. For d > 1 final positions are drawn against each other.
    """
    t, q, kept = _sound(solution)
    lanes, _, d = q.shape
    fan = _has_fan(t, q)
    shares = _impact_shares(solution, kept) if fan else {}
    when = f"at t = {t[0, -1]:g} s" if np.all(t[:, -1] == t[0, -1]) else "at the end"
    some = slice(None, None, -(-lanes // LANES_DRAWN))
    for label, x in (swept or {}).items():
        if np.shape(x) != kept.shape:
            raise ValueError(f"swept[{label!r}] must hold one number a motion, shape {kept.shape}, got {np.shape(x)}")
    swept = {label: np.asarray(x)[kept][some] for label, x in list((swept or {}).items())[: 2 if d == 1 else 0]}

    shown, labels = evenly(d, 3), solution.naming
    columns = fan + 1
    others = []
    if d == 1:
        # two by two with a fan chart, else side by side
        height, width = (1 + bool(swept), 2) if fan else (1, 1 + len(swept))
        figure, cells = new_grid(max(6.0, 4.5 * width), 0.6 + 3.3 * height, height, width)
        panels, others = cells[:1, :columns], list(cells.ravel()[columns:])
    else:
        figure, cells = new_grid(4.2 * columns + 4.4, 0.7 + max(4.0, 2.4 * len(shown)), len(shown), columns + 1)
        panels = cells[:, :columns]
        for ax in cells[:, columns]:
            ax.remove()
        _scatter(
            figure.add_subplot(cells[0, 0].get_gridspec()[:, columns]),
            q[some, -1],
            shown,
            when,
            np.max(np.abs(q)),
            labels,
        )

    for row, i, colour in zip(panels, shown, COLOURS, strict=False):
        name = labels.coordinate(i, d)
        if fan:
            _fan(row[0], t[0], q[:, :, i], colour, shares)
            row[0].set_ylabel(labels.axis(f"position {name}", "q", i))
        _histogram(row[-1], q[:, -1, i], np.max(np.abs(q[:, :, i])), colour)
        row[-1].set_xlabel(labels.axis(f"{name} {when}", "q", i))
        row[-1].set_ylabel("motions")
    for label, x in swept.items():
        ax = others.pop(0)
        ax.plot(x, q[some, -1, 0], ".", ms=dot(len(x)), color=COLOURS[2], alpha=0.6, mew=0)
        limits(ax.set_ylim, q[:, -1, 0], np.max(np.abs(q)))
        ax.set_xlabel(label)
        ax.set_ylabel(labels.axis(f"{labels.coordinate(0, 1)} {when}", "q", 0))
        tidy(ax)
    for ax in others:
        ax.remove()
    if fan:
        panels[0, 0].set_title(BANDS, fontsize=9, color=DARK)
    notes = [f"{len(shown)} of {d} coordinates"] if d > len(shown) else []
    return np.array(figure.axes), "\n".join([*notes, *_count_lost(kept)])


def draw_fan(solution: Solution, ax: Axes, *, component: int = 0) -> str:
    """Draws quantiles of one coordinate of an ensemble over time, with the shares of impacts (`_impact_shares`).

    If only final positions are saved it draws their histogram.
    """
    t, q, kept = _sound(solution)
    if not 0 <= component < q.shape[2]:
        raise ValueError(f"component={component}: there are {q.shape[2]} coordinates")
    labels = solution.naming
    name = labels.coordinate(component, q.shape[2])
    if _has_fan(t, q):
        _fan(ax, t[0], q[:, :, component], COLOURS[0], _impact_shares(solution, kept))
        ax.set_ylabel(labels.axis(f"position {name}", "q", component))
        ax.set_title(BANDS, fontsize=9, color=DARK)
    else:
        _histogram(ax, q[:, -1, component], np.max(np.abs(q[:, :, component])), COLOURS[0])
        ax.set_xlabel(labels.axis(f"{name} at the end", "q", component))
        ax.set_ylabel("motions")
    return "\n".join(_count_lost(kept))


def _sound(solution: Solution) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times and positions of the motions that did not fail, and the mask (B,) of these motions."""
    q = np.asarray(solution.q)
    failed = (np.asarray(solution.status) & int(FAILURES)) != 0
    kept = ~failed & np.all(np.isfinite(q), axis=(1, 2))
    if not kept.any():
        raise ValueError("every motion of the ensemble failed, so that there is nothing to draw")
    return np.asarray(solution.t)[kept], q[kept], kept


def _has_fan(t: np.ndarray, q: np.ndarray) -> bool:
    """Whether all motions have rows at common times, so that quantiles can be drawn over time."""
    return q.shape[1] > 2 and bool(np.all(t == t[0]))


def _count_lost(kept: np.ndarray) -> list[str]:
    lost = int(np.sum(~kept))
    return [f"{lost} of {kept.size} motions failed and are left out"] if lost else []


def _impact_shares(solution: Solution, kept: np.ndarray) -> dict[str, np.ndarray]:
    """By name of a contact, the share of the motions in which it has an impulse,
    in each interval between two rows (k - 1,).

    If there are many rows, neighbouring intervals are put together; of many contacts only those
    with most impulses are returned.
    """
    impulse = np.asarray(solution.impulse)[kept]
    active = runs(impulse, solution.timing).active
    steps = active.shape[1]
    if not active.any():
        return {}
    edges = np.unique(np.linspace(0, steps, min(steps, INTERVALS) + 1).round().astype(int))
    shares = np.logical_or.reduceat(active, edges[:-1], axis=1).mean(axis=0)
    shares = np.repeat(shares, np.diff(edges), axis=0)
    most = sorted(np.argsort(-shares.sum(axis=0), kind="stable")[:SHOWN])
    return {solution.naming.contact(int(a)): shares[:, a] for a in most if shares[:, a].any()}


def draw_convergence(result: Convergence, ax: Axes) -> str:
    """Draws errors over h or rtol, log-log, with observed orders and guides of slope 1 and 2 (over rtol, 1)."""
    labels = {"position": "position, sup norm", "velocity": "velocity, L1 norm", "impulse": "total impulse"}
    labels |= {"graph": "velocity, graph distance [s]"} if result.graph is not None else {}
    h, orders = np.asarray(result.h if result.rtols is None else result.rtols), result.orders()
    anchors: list[float] = []
    largest = 0.0
    for (name, label), colour, marker in zip(labels.items(), COLOURS, "osD^", strict=False):
        error = np.asarray(getattr(result, name), float)
        known = np.isfinite(error) & (error > 0)
        if not known.any():
            continue
        # the reference's own error, where the errors come near it: far below, it would press them together
        if result.floor[name] > NEAR * error[known].min():
            ax.axhline(result.floor[name], color=colour, lw=0.8, ls=":")
        if error[known].max() < ROUND_OFF:
            order = "round-off"
        else:
            order = f"order {orders[name]:.2f}" if np.isfinite(orders[name]) else "no order"
            # the guides lie below every curve: each error bounds their value at the largest h
            anchors.append(np.min(error[known] * h.max() / h[known]))
        unit = result.naming.unit(ERRORS[name]) if name in ERRORS else ""
        label = f"{label}{f' [{unit}]' if unit else ''}: {order}"
        ax.loglog(h[known], error[known], marker=marker, color=colour, lw=1.5, ms=5.5, label=label)
        largest = max(largest, error[known].max())
    if anchors:
        _slope_guides(ax, h, 0.5 * min(anchors), largest, (1, 2) if result.rtols is None else (1,))
    if largest > 0:
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=9)
    else:
        ax.text(0.5, 0.5, "every error is zero or unknown", transform=ax.transAxes, ha="center", color=DARK)
    ax.set_xlabel("step h [s]" if result.rtols is None else "relative tolerance rtol")
    ax.set_ylabel("error")
    tidy(ax)
    ax.grid(which="minor", color="#f0f0f0", lw=0.5)
    return ""


def draw_statistics(found: Statistics, ax: Axes, *, name: str = "q", component: int = 0, label: str = "") -> str:
    """Draws quantile bands of one component of ``name`` over time, for a few groups of lanes.

    If there is a single row they are drawn over the groups. ``label``: what the groups differ in.
    """
    if name not in found.quantile:
        raise ValueError(f"name={name!r}: there are statistics of {', '.join(map(repr, found.quantile))}")
    values = found.quantile[name]
    lead = 2 + (found.groups is not None)  # levels, groups, rows
    values = values.reshape(*values.shape[:lead], -1)
    if not 0 <= component < values.shape[-1]:
        raise ValueError(f"component={component}: {name} has {values.shape[-1]}")
    values = values[..., component]
    names = found._names(name)
    symbol = name if found.quantile[name].ndim == lead else f"{name}[{names[component] if names else component}]"
    axis = lambda text: found.naming.axis(text, name, component) if name in QUANTITIES else text
    if found.groups is not None and len(found.t) == 1:
        _bands(ax, found.groups, values[:, :, 0], COLOURS[0], None)
        ax.set_xlabel(label or "group")
        ax.set_ylabel(axis(f"{symbol} at t = {found.t[0]:g} s"))
    else:
        if len(found.t) == 1:
            raise ValueError("a picture of statistics needs several rows, or groups: save times in the ensemble")
        if found.groups is None:
            _bands(ax, found.t, values, COLOURS[0], None)
        else:
            shown = evenly(len(found.groups), GROUPS_DRAWN)
            for i, colour in zip(shown, COLOURS, strict=False):
                _bands(ax, found.t, values[:, i], colour, f"{label or 'group'} = {found.groups[i]:.6g}")
            ax.legend(**OUTSIDE)
        ax.set_xlabel("time t [s]")
        ax.set_ylabel(axis(symbol))
    levels = ", ".join(f"{100 * x:g} %" for x in found.levels)
    ax.set_title(f"quantiles {levels}", fontsize=9, color=DARK)
    tidy(ax)
    lost = int(np.sum(found.failed))
    return f"{lost} failed motions are left out" if lost else ""


def _slope_guides(ax: Axes, h: np.ndarray, anchor: float, largest: float, orders: tuple[int, ...]) -> None:
    """Draws lines of slopes 1 and 2, or other ``orders``, from ``anchor`` at the largest h."""
    low = min(0.5 * anchor * h.min() / h.max(), ax.get_ylim()[0])
    for order, style in zip(orders, (":", "-."), strict=False):
        left = max(h.min(), h.max() * (1.6 * low / anchor) ** (1 / order))
        ends = np.array([left, h.max()])
        ax.loglog(ends, anchor * (ends / h.max()) ** order, color=GREY, lw=1.2, ls=style, zorder=0)
        place: Style = {"xytext": (0, -2), "textcoords": "offset points", "va": "top", "ha": "left"}
        ax.annotate(f"slope {order}", (left, anchor * (left / h.max()) ** order), color="#777777", fontsize=8, **place)
    ax.set_ylim(0.5 * low, 2.0 * largest)


def _fan(ax: Axes, t: np.ndarray, q: np.ndarray, colour: str, shares: Mapping[str, np.ndarray]) -> None:
    """Draws median and central 50 % and 90 % of q (B, k) over time, and in a strip below, by contact,
    the ``shares`` of `_impact_shares`."""
    low, quarter, middle, three, high = np.quantile(q, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    ax.fill_between(t, low, high, color=colour, alpha=0.18, lw=0)
    ax.fill_between(t, quarter, three, color=colour, alpha=0.38, lw=0)
    ax.plot(t, middle, color=colour, lw=1.4)
    limits(ax.set_ylim, np.concatenate([low, high]), np.max(np.abs(q)))
    if shares:
        bottom, top = ax.get_ylim()
        ax.set_yticks([tick for tick in ax.get_yticks() if bottom <= tick <= top])
        ax.set_ylim(bottom - STRIP * (top - bottom) / (1 - STRIP), top)
        ax.axhline(bottom, color=GREY, lw=0.6)
        scale = 0.7 * STRIP / max(share.max() for share in shares.values())
        for (name, share), shade in zip(shares.items(), (DARK, *COLOURS[1:]), strict=False):
            heights, label = scale * np.append(share, share[-1]), f"{name}: ≤ {100 * share.max():.0f} %"
            style: Style = {"color": shade, "alpha": 0.4, "lw": 0}
            ax.fill_between(t, 0, heights, step="post", transform=ax.get_xaxis_transform(), label=label, **style)
        place: Style = {"loc": "upper left", "bbox_to_anchor": (0.0, STRIP), "borderaxespad": 0.1}
        ax.legend(ncols=4, frameon=False, fontsize=7, handlelength=1.0, columnspacing=1.0, **place)
    ax.set_xlabel("time t [s]")
    ax.set_xlim(t[0], t[-1])
    tidy(ax)


def _histogram(ax: Axes, q: np.ndarray, size: float, colour: str) -> None:
    """Draws a histogram of final positions q (B,) with their 5, 50 and 95 % quantiles; ``size``: a magnitude of q,
    to tell round-off."""
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
    tidy(ax)


def _scatter(ax: Axes, q: np.ndarray, shown: list[int], when: str, size: float, labels: Labels) -> None:
    """Draws positions q (B, d) in the plane of the first two coordinates in ``shown``.

    ``when``: words for the time, for the labels of the axes; ``size``: a magnitude of q, to tell round-off.
    """
    i, j = shown[:2]
    ax.plot(q[:, i], q[:, j], ".", ms=dot(len(q)), color=COLOURS[2], alpha=0.6, mew=0)
    limits(ax.set_xlim, q[:, i], size)
    limits(ax.set_ylim, q[:, j], size)
    for k, put in ((i, ax.set_xlabel), (j, ax.set_ylabel)):
        put(labels.axis(f"{labels.coordinate(k, q.shape[1])} {when}", "q", k))
    tidy(ax)


def _bands(ax: Axes, x: np.ndarray, values: np.ndarray, colour: str, label: str | None) -> None:
    """Draws nested bands over x (k,) between pairs of the quantiles ``values`` (Q, k), from the outermost pair inwards;
    a middle one is a line."""
    order = values.shape[0]
    for i in range(order // 2):
        ax.fill_between(x, values[i], values[order - 1 - i], color=colour, alpha=0.18 + 0.2 * i, lw=0)
    if order % 2:
        ax.plot(x, values[order // 2], color=colour, lw=1.4, label=label)
    elif label:
        ax.plot([], [], color=colour, lw=6, alpha=0.4, label=label)
