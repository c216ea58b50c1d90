"""Pictures of the influence of parameters on outputs: derivatives, shares of variance, linearity, global indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..mechanics.status import DOUBTS, FAILURES, Status
from ..results import Covariance, Indices, Linearity, Ranking, Sensitivities
from .style import COLOURS, DARK, GREY, OUTSIDE, Style, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 12  # inputs that are drawn


def draw_sensitivities(found: Sensitivities, ax: Axes, **options: Any) -> str:
    """Draws the sensitivities of one motion, ranked.

    Options: ``by`` and ``units`` of `Sensitivities.ranking`, ``output`` of `draw_ranking`.
    """
    ranked = {name: options.pop(name) for name in ("by", "units") if name in options}
    return draw_ranking(found.ranking(**ranked), ax, **options)


def draw_ranking(found: Ranking, ax: Axes, *, output: str | None = None) -> str:
    """Draws the derivatives of one output (by default the first) by each input as bars, the longest on top."""
    name = str(found.output[0]) if output is None else output
    _check_known("output", name, list(dict.fromkeys(map(str, found.output))))
    mine = found.output == name
    values = (found.relative if found.by == "relative" else found.derivative)[mine]
    labels, units = found.input[mine], found.unit[mine]
    drawn = np.isfinite(values)
    if found.by == "absolute":
        labels = np.array([f"{label}\n[{unit}]" if unit else label for label, unit in zip(labels, units, strict=True)])
    _bars(ax, labels[drawn][:BARS], values[drawn][:BARS])
    ax.set_xlabel(
        f"change of {name} [% for 1 % of the input]"
        if found.by == "relative"
        else f"derivative of {name} by each input"
    )
    ax.set_ylabel("input")
    notes = [f"{drawn.sum() - BARS} smaller ones are left out"] if drawn.sum() > BARS else []
    if not drawn.all():
        notes.append(f"zero, and without a relative sensitivity: {', '.join(found.input[mine][~drawn])}")
    return "\n".join([*notes, *_doubts(found.status)])


def draw_covariance(found: Covariance, ax: Axes) -> str:
    """Draws shares of the inputs in the variance of each output, a stacked bar per output,
    with standard deviations beside the names."""
    shown = list(range(len(found.outputs)))[:BARS]
    most = np.max(np.abs(np.nan_to_num(found.shares[shown])), axis=0)
    inputs = [i for i in np.argsort(-most, kind="stable")[: len(COLOURS)] if most[i] > 0]
    height = 0.8 / max(1, len(inputs))
    for k, i in enumerate(inputs):
        y = np.arange(len(shown)) + (k - (len(inputs) - 1) / 2) * height
        ax.barh(y, 100 * np.nan_to_num(found.shares[shown, i]), height, color=COLOURS[k], label=found.inputs[i])
    ax.set_yticks(
        range(len(shown)), [f"{found.outputs[i]}\n± {found.deviation[i]:.3g} {found.units[i]}".rstrip() for i in shown]
    )
    ax.invert_yaxis()
    ax.axvline(0, color=GREY, lw=0.8)
    ax.set_xlabel("share of the variance [%]")
    ax.set_ylabel("output, and its standard deviation")
    if inputs:
        ax.legend(**OUTSIDE)
    tidy(ax)
    return "\n".join(_doubts(int(found.status)))


def draw_linearity(found: Linearity, ax: Axes, *, output: str | None = None) -> str:
    """Draws sampled values of one output (by default the first) over its linearisation."""
    name = found.outputs[0] if output is None else output
    _check_known("output", name, list(found.outputs))
    i = found.outputs.index(name)
    kinds = {"motions": found.sound & ~found.doubtful, "derivative in doubt": found.doubtful}
    for (label, kept), colour, marker in zip(kinds.items(), COLOURS, "ox", strict=False):
        if kept.any():
            ax.plot(found.linear[kept, i], found.value[kept, i], marker, color=colour, ms=4, label=label)
    ends = [found.linear[:, i].min(), found.linear[:, i].max()]
    ax.plot(ends, ends, color=DARK, lw=1.0, label="linear")
    unit = f" [{found.units[i]}]" if found.units[i] else ""
    ax.set_xlabel(f"{name}, linearised{unit}")
    ax.set_ylabel(f"{name}, computed{unit}")
    ax.legend(**OUTSIDE)
    tidy(ax)
    lost = int(np.sum(~found.sound))
    notes = [f"{name}: off the tangent by {found.error[i]:.2g} standard deviations (root mean square)"]
    return "\n".join(notes + ([f"{lost} of {len(found.status)} samples failed"] if lost else []))


def draw_indices(found: Indices, ax: Axes, *, output: str | None = None) -> str:
    """Draws the indices of one output (by default the first) with their confidence intervals."""
    name = found.outputs[0] if output is None else output
    _check_known("output", name, list(found.outputs))
    k = found.outputs.index(name)
    kinds = list(found.shown)
    order = np.argsort(-np.abs(np.nan_to_num(found.index[kinds[-1]][k])), kind="stable")[:BARS]
    height = 0.8 / len(kinds)
    for j, (kind, colour) in enumerate(zip(kinds, COLOURS, strict=False)):
        y = np.arange(len(order)) + (j - (len(kinds) - 1) / 2) * height
        values, errors = found.index[kind][k][order], found.confidence[kind][k][order]
        style: Style = {"color": colour, "ecolor": DARK, "capsize": 2, "label": found.meaning[kind]}
        ax.barh(y, values, height, xerr=errors, error_kw={"lw": 1.0}, **style)
    ax.set_yticks(range(len(order)), [found.inputs[i] for i in order])
    ax.invert_yaxis()
    ax.axvline(0, color=GREY, lw=0.8)
    unit = found.unit(kinds[-1], k).removeprefix("1")
    ax.set_xlabel(
        f"{found.method} of {name}{f' [{unit}]' if unit else ''}, with {100 * found.level:g} % confidence intervals"
    )
    ax.set_ylabel("input")
    ax.legend(**OUTSIDE)
    tidy(ax)
    return "\n".join(found.remarks)


def _bars(ax: Axes, labels: Sequence[str], values: np.ndarray) -> None:
    ax.barh(range(len(values)), values, 0.7, color=[COLOURS[0] if x >= 0 else COLOURS[1] for x in values])
    ax.set_yticks(range(len(values)), labels)
    ax.invert_yaxis()
    ax.axvline(0, color=GREY, lw=0.8)
    tidy(ax)


def _check_known(what: str, name: str, names: list[str]) -> None:
    if name not in names:
        raise ValueError(f"{what}={name!r}: there are {', '.join(names)}")


def _doubts(status: int) -> list[str]:
    bits = Status(status & int(FAILURES | DOUBTS))
    return [f"not to be trusted: {bits}"] if bits else []
