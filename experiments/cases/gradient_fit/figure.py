"""The picture of the fits: a column a ball."""

from pathlib import Path

import matplotlib
import numpy as np
from bounces.figure import STYLE
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .fit import Fit
from .trend import trend_of


def draw(path: Path, fit: Fit, vacuum: Fit) -> None:
    """For each ball ratios of successive flights against speed, and surprises with and without drag."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.5 * len(fit.balls) + 0.6, 8.2), layout="constrained")
        axes = figure.subplots(3, len(fit.balls), squeeze=False)
        for number, (ball, (ratios, *residuals)) in enumerate(zip(fit.balls, axes.T, strict=True)):
            draw_ratios(ratios, fit, vacuum, number)
            error = fit.errors(fit.clustered)[number]
            ratios.set_title(
                f"{ball}\ne = {fit.e[number]:.4f} ± {error[0]:.4f}, c = {fit.c[number]:.3f} ± {error[1]:.3f}/m"
            )
            span = max(np.nanquantile(np.abs(1e3 * vacuum.surprise[fit.ball == number]), 0.98), 1.0)
            for axis, which, name in zip(residuals, (fit, vacuum), ("with drag", "without drag"), strict=True):
                draw_residuals(axis, which, number)
                axis.set(title=f"{name}: {1e3 * which.typical(number):.1f} ms", ylim=(-1.2 * span, 1.2 * span))
            residuals[0].legend(title="drop height", fontsize=8, title_fontsize=8, frameon=False, ncols=2)
        axes[0, 0].set_ylabel("flight over the flight before it")
        for axis in axes[1:, 0]:
            axis.set_ylabel("contact time minus that expected\nafter the contacts before it [ms]")
        figure.savefig(path, dpi=150)


def draw_ratios(axis, fit: Fit, vacuum: Fit, ball: int) -> None:
    """Measured ratios, and those of both models; the ratio of a model depends on the speed alone."""
    axis.set_xlabel("speed of impact [m/s]")
    trends = [trend_of(which, ball) for which in (fit, vacuum)]
    if None in trends:
        return
    axis.plot(trends[0].speed, trends[0].measured, ".", ms=4, alpha=0.4, mew=0, color="tab:blue", label="measured")
    for trend, style, name in zip(trends, ("-", "--"), ("with drag", "without drag"), strict=True):
        order = np.argsort(trend.speed)
        axis.plot(trend.speed[order], trend.simulated[order], style, lw=1.3, color="black", label=name)
    low, high = np.quantile(trends[0].measured, [0.04, 0.96])
    axis.set_ylim(low - 0.3 * (high - low), high + 0.3 * (high - low))
    axis.legend(fontsize=8, frameon=False)


def draw_residuals(axis, fit: Fit, ball: int) -> None:
    """Surprises of all drops of a ball against contact number, coloured by drop height."""
    members = sorted(np.flatnonzero(fit.ball == ball), key=lambda d: fit.drops[d].drop_height_cm)
    heights = sorted({fit.drops[d].drop_height_cm for d in members})
    colours = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, len(heights)))
    axis.axhline(0, color="0.6", lw=0.8, zorder=0)
    labelled = set()
    for d in members:
        height, used = fit.drops[d].drop_height_cm, fit.index[d] >= 0
        label = None if height in labelled else f"{height:g} cm"
        labelled.add(height)
        style = {"ms": 4, "lw": 0.5, "alpha": 0.6, "mew": 0, "color": colours[heights.index(height)]}
        axis.plot(fit.index[d, used], 1e3 * fit.surprise[d, used], ".-", label=label, **style)
    axis.set_xlabel("contact number")
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
