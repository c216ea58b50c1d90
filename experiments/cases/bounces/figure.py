"""The picture of the fits: a column a ball."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from .report import column, grouped, median
from .simulation import GRAVITY

STYLE = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}
TICKS = FixedLocator([0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2])  # of the intervals [s]


def draw(path: Path, fits: list[dict]) -> None:
    """For each ball intervals and residuals against contact number, and e against drop height."""
    balls = grouped(fits, "ball")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.5 * len(balls) + 0.6, 8.6), layout="constrained")
        axes = figure.subplots(3, len(balls), squeeze=False)
        for (intervals, residuals, restitution), ((ball,), group) in zip(axes.T, balls.items(), strict=True):
            heights = dict(sorted(grouped(group, "drop_height_cm").items()))
            colours = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, len(heights)))
            for place, ((height,), members) in enumerate(heights.items()):
                draw_group(
                    intervals, residuals, restitution, members, place, color=colours[place], label=f"{height:g} cm"
                )
            rejected = f"{column(group, 'rejected').sum()} of {column(group, 'contacts').sum()} contacts rejected"
            intervals.set_title(f"{ball}: {len(group)} drops, median e = {median(group, 'e'):.3f}\n{rejected}")
            intervals.set_yscale("log")
            intervals.yaxis.set(major_locator=TICKS, major_formatter="{x:g}")
            intervals.minorticks_off()
            intervals.legend(title="drop height", fontsize=8, title_fontsize=8, frameon=False, loc="upper right")
            residuals.axhline(0, color="0.6", lw=0.8, zorder=0)
            for axis in (intervals, residuals):
                axis.set_xlabel("contact number")
                axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            restitution.set_xticks(range(len(heights)), [f"{height:g}" for (height,) in heights])
            restitution.set(xlim=(-0.6, len(heights) - 0.4), xlabel="drop height [cm]")
        axes[0, 0].set_ylabel("interval before the contact [s]\ndots: measured; lines: model")
        axes[1, 0].set_ylabel("measured minus simulated\ncontact time [ms]")
        axes[2, 0].set_ylabel("restitution e of each drop\nline: median; hollow: poor fit")
        figure.savefig(path, dpi=150)


def draw_group(intervals, residuals, restitution, fits: list[dict], place: int, color, label: str) -> None:
    """The drops of one ball from one height."""
    k = np.arange(1, max(fit["index"].max() for fit in fits) + 1)
    model = 2 * np.sqrt(2 * median(fits, "height_cm") / 100 / GRAVITY) * median(fits, "e") ** k
    intervals.plot(k, model, lw=1.1, color=color, label=label)
    for fit, x in zip(fits, place + 0.3 * np.linspace(-1, 1, len(fits) + 2)[1:-1], strict=True):
        number, times = fit["index"][fit["index"] >= 0], fit["times"][fit["index"] >= 0]
        single = np.diff(number) == 1  # no contact missed in between
        intervals.plot(number[1:][single], np.diff(times)[single], ".", ms=5, alpha=0.5, color=color, mew=0)
        residuals.plot(number, 1e3 * fit["residual"], ".-", ms=4, lw=0.5, alpha=0.6, color=color, mew=0)
        face = color if fit["status"] == "ok" else "white"
        restitution.errorbar(x, fit["e"], fit["e_error"], fmt="o", ms=4, lw=0.9, color=color, mfc=face)
    restitution.hlines(median(fits, "e"), place - 0.35, place + 0.35, color=color, lw=1.4, alpha=0.6)
