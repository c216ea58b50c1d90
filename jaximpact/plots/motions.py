"""Pictures of motions over time: the motion itself, its derivatives, its impacts and its balances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..analysis.balance import Balance
from ..analysis.impacts import Impacts
from ..analysis.listed_pairs import pair_name
from ..analysis.slips import BREAK, REVERSAL, STOP, ContactMode, Slips
from ..results import Solution
from ..results.impulse_intervals import Runs, runs
from ..results.interpolation import is_located
from .style import COLOURS, DARK, GREY, OUTSIDE, SHOWN, Style, evenly, limits, new_figure, new_grid, set_heading, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMPACTS_DRAWN = 60  # impacts drawn as lines; more are ticks
MOST = 12  # contacts of listed bodies of which slips are drawn


def draw_motion(
    solution: Solution,
    *,
    exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
    gaps: Callable | None = None,
) -> tuple[np.ndarray, str]:
    """Draws one motion over time: positions, velocities, accumulated impulses, forces of joints,
    and energy if the solution has it.

    Impacts are grey lines. A motion that failed is drawn until it blows up. Energies of rows in the middle of an impact
    are left out: the velocity of a step that contains part of an impact is neither the one
    before it nor the one after it.

    Args:
        solution: what `solve` returned.
        exact: ``exact(t) -> (q, v)`` for t of shape (k,), drawn dashed.
        gaps: ``gaps(t, q) -> (k, m)`` for the k rows, drawn in a panel of its own.
    """
    t, q, v, impulse = _sound(solution)
    rows, failed_at = slice(len(t)), float(solution.failed_at)
    given = {"gap": gaps is not None, "impulse": impulse.shape[1] > 0, "energy": solution.energy is not None}
    given["joints"] = solution.joint_force is not None
    panels = [name for name in ("position", "gap", "velocity", "impulse", "joints", "energy") if given.get(name, True)]
    figure = new_figure(8.0, 0.7 + 1.9 * len(panels))
    axes = dict(zip(panels, figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0], strict=True))
    found = runs(impulse[None], solution.timing)
    impacts, within = _times(t, found), found.inside[0]

    draw_positions(solution, axes["position"], exact=exact)
    axes["position"].set_xlabel("")
    fine = np.linspace(t[0], t[-1], 2001)
    velocity = None if exact is None else exact(fine)[1]
    shown = evenly(q.shape[1])
    labels = solution.naming
    names = labels.coordinates
    # a velocity of these schemes is that at the time of its row, of the others that of the step that ends there
    style = "default" if is_located(solution) else "steps-pre"
    _curves(axes["velocity"], t, v, shown, "v", "coordinates", names, exact=velocity, fine=fine, drawstyle=style)
    axes["velocity"].set_ylabel(labels.axis("velocity v\n", "v"))
    if gaps is not None:
        values = np.asarray(gaps(t, q))
        _curves(axes["gap"], t, values, _largest(-values.min(0)), "f", "gaps", labels.contacts)
        axes["gap"].axhline(0.0, color=DARK, lw=0.8)
        axes["gap"].set_ylabel(labels.axis("gap f\n", "gap"))
    if "impulse" in axes:
        _curves(axes["impulse"], t, impulse, _largest(impulse[-1]), "Λ", "constraints", labels.contacts)
        axes["impulse"].set_ylabel(labels.axis("accumulated\nimpulse Λ", "impulse"))
    if "joints" in axes:
        force = np.array(solution.joint_force)[: len(t) - 1]
        force[found.struck[0]] = np.nan
        largest = np.nanmax(np.abs(force), axis=0, initial=0.0)
        # a value holds between two rows
        force = np.concatenate([force[:1], force])
        _curves(
            axes["joints"], t, force, _largest(largest), "λ", "joint equations", labels.joints, drawstyle="steps-pre"
        )
        axes["joints"].set_ylabel(labels.axis("force of\njoints λ ", "joint_force"))
    if "energy" in axes:
        energy, label = np.asarray(solution.energy)[rows][~within], f"energy\n[{labels.energy_unit()}]"
        size = np.max(np.abs(energy))
        if np.ptp(energy) < 1e-3 * size:
            energy, label = energy - energy[0], f"energy change\n[{labels.energy_unit()}]"
        axes["energy"].plot(t[~within], energy, color=COLOURS[0], lw=1.4)
        limits(axes["energy"].set_ylim, energy, size, 1e-9)
        axes["energy"].set_ylabel(label)

    for ax in list(axes.values())[1:]:
        _mark(ax, impacts)
        if t[0] <= failed_at <= t[-1]:
            ax.axvline(failed_at, color=COLOURS[1], lw=1.5, ls=":")
        tidy(ax)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(**OUTSIDE)
    axes[panels[-1]].set_xlabel("time t [s]")
    axes[panels[-1]].set_xlim(t[0], t[-1])
    figure.align_ylabels()
    return np.array(list(axes.values())), ""


def draw_positions(
    solution: Solution, ax: Axes, *, exact: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
) -> str:
    """Draws the positions of one motion over time, with impacts as grey lines."""
    t, q, _, impulse = _sound(solution)
    failed_at = float(solution.failed_at)
    impacts = _times(t, runs(impulse[None], solution.timing))
    fine = np.linspace(t[0], t[-1], 2001)
    names = solution.naming.coordinates
    known = None if exact is None else exact(fine)[0]
    _curves(ax, t, q, evenly(q.shape[1]), "q", "coordinates", names, exact=known, fine=fine)
    ax.set_ylabel(solution.naming.axis(f"position {names[0] if names and len(names) == 1 else 'q'}\n", "q"))
    _mark(ax, impacts)
    if t[0] <= failed_at <= t[-1]:
        ax.axvline(failed_at, color=COLOURS[1], lw=1.5, ls=":", label="failure")
    if len(impacts):
        ax.plot([], [], color=GREY, lw=0.9, label="impact")
    ax.set_xlabel("time t [s]")
    ax.set_xlim(t[0], t[-1])
    tidy(ax)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(**OUTSIDE)
    return ""


def _sound(solution: Solution) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Times, positions, velocities and impulses of one motion's rows, up to where a failed motion blows up."""
    q = np.asarray(solution.q)
    if len(q) < 2:
        raise ValueError(
            "a picture of a motion needs saved rows, the solution has the final one only: solve with save='all' or k"
        )
    t, v, impulse = (np.asarray(x) for x in (solution.t, solution.v, solution.impulse))
    rows = slice(_sound_rows(t, q, v) if np.isfinite(solution.failed_at) else len(t))
    # of listed bodies impulses are not those of the same contacts in all rows
    impulse = impulse if solution.pairs is None else impulse[:, :0]
    return t[rows], q[rows], v[rows], impulse[rows]


def plot_derivatives(
    t: ArrayLike,
    derivatives: Mapping[str, Mapping[str, ArrayLike]],
    path: str | Path | None = None,
    *,
    impacts: ArrayLike = (),
    title: str = "",
) -> Any:
    """Draws derivatives along a motion, tangents or adjoints: one panel for each derivative, one curve for each method.

    Args:
        t: times (k,) [s].
        derivatives: panel -> label -> values (k,); the first label is drawn thick and sets the
            scale, the others on top of it.
        path: the picture to write, or None.
        impacts: times of impacts, grey lines.
        title: heading.

    Returns:
        The path; or, without one, the axes, one for each panel.
    """
    t = np.asarray(t)
    figure = new_figure(8.0, 0.7 + 1.9 * len(derivatives))
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
        tidy(ax)
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
    axes[0].legend(**OUTSIDE)
    axes[-1].set_xlabel("time t [s]")
    axes[-1].set_xlim(t[0], t[-1])
    figure.align_ylabels()
    if title:
        set_heading(figure, title)
    if path is None:
        return axes
    figure.savefig(path, dpi=150)
    return Path(path)


def draw_impacts(found: Impacts, ax: Axes) -> str:
    """Draws the speeds of the impacts of one motion over time, or the times of impacts of several motions,
    lane by lane.

    Lasting contact is a thick line, accumulating impacts are a band.
    """
    lanes = np.unique(np.concatenate([found.lane, found.lasting.lane]))
    one = len(lanes) <= 1
    for k, colour in zip(np.unique(np.concatenate([found.contact, found.lasting.contact])), COLOURS * 20, strict=False):
        which, held, limit = (x.contact == k for x in (found, found.lasting, found.accumulations))
        height = -found.before[which] if one else found.lane[which]
        if one:
            ax.vlines(found.t[which], 0, height, color=colour, lw=1.0)
        ax.plot(found.t[which], height, "o" if one else "|", color=colour, ms=4, label=found.naming.contact(k))
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
    ax.set_ylabel(found.naming.axis("speed of approach", "gap velocity") if one else "motion")
    tidy(ax)
    if not one:
        ax.yaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    if len(lanes):
        ax.legend(**OUTSIDE)
    return "" if len(lanes) else "no impacts"


def draw_slips(found: Slips, ax: Axes) -> str:
    """Draws the slip of each contact of one motion over time, thick where it sticks,
    or the times of events of several motions, lane by lane.

    In space speeds are drawn. Where a contact is open its curve has a gap. Of listed bodies only the contacts with most
    work of friction are drawn.
    """
    marks = {STOP: "s", BREAK: "^", REVERSAL: "o"}
    one = found.modes.ndim == 2
    every = found.modes.shape[-1]
    contacts, names = np.arange(every), [found.naming.contact(k) for k in range(every)]
    if found.pairs is not None:
        work = found.work[..., -1, :].reshape(-1, every).sum(axis=0)
        contacts = np.argsort(work, kind="stable")[:MOST]
        names = list(map(pair_name, found.pairs))
    for k, colour in zip(contacts.tolist(), COLOURS * 20, strict=False):
        name = names[k]
        if one:
            slip = found.velocity[:, k]
            slip = slip[:, 0] if slip.shape[1] == 1 else np.linalg.norm(slip, axis=1)
            mode = found.modes[:, k]
            ax.plot(found.times, np.where(mode == ContactMode.OPEN, np.nan, slip), color=colour, lw=1.3, label=name)
            ax.plot(found.times, np.where(mode == ContactMode.STICK, slip, np.nan), color=colour, lw=5, alpha=0.5)
        for kind, mark in marks.items():
            which = (found.contact == k) & (found.kind == kind)
            height = np.zeros(np.sum(which)) if one else found.lane[which]
            ax.plot(found.t[which], height, mark, color=colour, ms=4, mfc="none" if one else colour)
    for kind, mark in marks.items():
        if np.any(found.kind == kind):
            ax.plot([], [], mark, color=GREY, ms=4, label=kind)
    if one and np.any(found.modes == ContactMode.STICK):
        ax.plot([], [], color=GREY, lw=5, alpha=0.5, label="sticks")
    planar = found.velocity.shape[-1] == 1
    ax.set_xlabel("time t [s]")
    ax.set_ylabel(("slip" if planar else "speed of slip") + " [m/s]" if one else "motion")
    tidy(ax)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(**OUTSIDE)
    return "" if len(contacts) == every else f"{len(contacts)} of {every} contacts, those with most work of friction"


def draw_balance(found: Balance) -> tuple[np.ndarray, str]:
    """Draws kinetic energy, work, losses and driving work over time, and the residuals of energy and momentum."""
    figure, cells = new_grid(8.0, 7.0, 3, 1)
    axes = cells[:, 0]
    draw_energies(found, axes[0])
    axes[0].set_xlabel("")
    axes[1].plot(found.t, found.energy, color=COLOURS[0], lw=1.2)
    axes[1].set_ylabel(f"energy residual\n[{found.naming.energy_unit()}]")
    many = found.momentum.shape[1]
    for i, colour in zip(evenly(many), COLOURS, strict=False):
        axes[2].plot(
            found.t,
            found.momentum[:, i],
            color=colour,
            lw=1.2,
            label=found.naming.coordinate(i, many, "") if many > 1 else None,
        )
    axes[2].set_ylabel(found.naming.axis("momentum residual\n", "momentum"))
    if many > 1:
        axes[2].legend(**OUTSIDE)
    for ax in axes:
        tidy(ax)
        ax.set_xlim(found.t[0], found.t[-1])
    axes[-1].set_xlabel("time t [s]")
    figure.align_ylabels()
    return axes, ""


def draw_energies(found: Balance, ax: Axes) -> str:
    """Draws kinetic energy, work, losses and driving work over time."""
    curves = {"kinetic energy": found.kinetic, "work of the forces": found.work, "lost in impacts": found.loss}
    if found.friction is not None:
        curves["lost to friction"] = found.friction
    if np.any(found.driven != 0):
        curves["work of moving constraints"] = found.driven
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        ax.plot(found.t, values, color=colour, lw=1.4, label=name)
    ax.set_ylabel(f"energy [{found.naming.energy_unit()}]")
    ax.set_xlabel("time t [s]")
    ax.set_xlim(found.t[0], found.t[-1])
    tidy(ax)
    ax.legend(**OUTSIDE)
    return ""


def _sound_rows(t: np.ndarray, q: np.ndarray, v: np.ndarray) -> int:
    """Number of rows before a failed motion blows up, at least two."""
    size = np.max(np.abs(q), axis=1)
    usual = np.max(np.abs(q[0])) + (t[-1] - t[0]) * np.max(np.abs(v[0]))
    sound = size <= (10 * usual if usual > 0 else np.finfo(float).max)
    return len(t) if sound.all() else max(2, int(np.argmin(sound)))


def _largest(size: np.ndarray) -> list[int]:
    """Indices of all entries of ``size``, or of the few largest ones if there are many, in increasing order."""
    if len(size) <= len(COLOURS):
        return list(range(len(size)))
    return sorted(int(i) for i in np.argsort(-size, kind="stable")[:SHOWN])


def _curves(
    ax: Axes,
    t: np.ndarray,
    values: np.ndarray,
    shown: list[int],
    symbol: str,
    what: str,
    names: tuple[str, ...] | None,
    *,
    exact: np.ndarray | None = None,
    fine: np.ndarray | None = None,
    **line: Any,
) -> None:
    """Draws the ``shown`` columns of ``values`` (k, n) over times t (k,) and, dashed,
    those of ``exact`` over the times ``fine``.

    ``names``: labels of the columns, by default the ``symbol`` with an index; ``what``: what the columns are, in words.
    """
    many = values.shape[1]
    label = lambda i: names[i] if names else f"{symbol}[{i}]"
    for i, colour in zip(shown, COLOURS, strict=False):
        ax.plot(t, values[:, i], color=colour, lw=1.4, label=label(i) if many > 1 else None, **line)
        if exact is not None and fine is not None:
            ax.plot(fine, exact[:, i], color=DARK, lw=0.9, ls=(0, (4, 3)))
    if exact is not None:
        ax.plot([], [], color=DARK, lw=0.9, ls=(0, (4, 3)), label="exact")
    if many > len(shown):
        place: Style = {"transform": ax.transAxes, "ha": "right", "va": "bottom", "fontsize": 8}
        ax.text(0.995, 1.0, f"{len(shown)} of {many} {what}", **place)
    limits(ax.set_ylim, values[:, shown], np.max(np.abs(values)))


def _times(t: np.ndarray, found: Runs) -> np.ndarray:
    """Times of impacts, at the end of their first step, of one motion with rows t (k,)."""
    return np.unique(t[found.first[found.impact] + 1])


def _mark(ax: Axes, impacts: np.ndarray) -> None:
    """Marks impacts by grey lines, or by ticks at the top if there are many."""
    many = len(impacts) > IMPACTS_DRAWN
    style: Style = {"lw": 0.4, "alpha": 0.9} if many else {"lw": 0.7, "alpha": 0.6}
    ax.vlines(impacts, 0.95 if many else 0.0, 1.0, transform=ax.get_xaxis_transform(), color=GREY, zorder=0, **style)
