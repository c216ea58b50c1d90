"""Pictures of orbits, branches, exponents, balances and statistics, written to a file; needs matplotlib."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..plots import COLOURS, DARK, GREY, _evenly, _figure, _grid, _style, _write
from .arguments import real

if TYPE_CHECKING:
    from .balance import Balance
    from .continuation import Branch
    from .lyapunov import Lyapunov
    from .orbits import PeriodicOrbit
    from .statistics import Statistics

MARKERS = {"fold": "v", "branch point": "P", "period doubling": "D", "Neimark-Sacker": "o", "grazing": "X"}
OUTSIDE = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0, "frameon": False, "fontsize": 8.5}
FARTHEST = 3.0  # multipliers of larger modulus are named at the edge of the complex plane, not drawn
GROUPS_DRAWN = 4  # bands over time


def plot_multipliers(orbit: PeriodicOrbit, path, *, title: str = "") -> Path:
    """Draw Floquet multipliers in the complex plane, with the unit circle; stable orbits blue, others orange."""
    multipliers = np.atleast_2d(orbit.multipliers)
    stable, found = np.atleast_1d(orbit.stable), np.atleast_1d(orbit.converged)
    if not found.any():
        raise ValueError("plot_multipliers: no orbit was found")
    figure = _figure(5.4, 5.0)
    ax = figure.subplots()
    angle = np.linspace(0, 2 * np.pi, 361)
    ax.plot(np.cos(angle), np.sin(angle), color=GREY, lw=1.0)
    for chosen, colour, name in ((stable, COLOURS[0], "stable"), (found & ~stable, COLOURS[1], "unstable")):
        if chosen.any():
            shown = multipliers[chosen].ravel()
            near = shown[np.abs(shown) <= FARTHEST]
            far = shown[np.abs(shown) > FARTHEST]
            ax.plot(near.real, near.imag, "o", ms=5, color=colour, mew=0, label=f"{name}: {chosen.sum()}")
            if far.size:
                note = f"{far.size} beyond, up to {np.abs(far).max():.3g}"
                ax.annotate(note, (0.99, 0.02), xycoords="axes fraction", ha="right", fontsize=8.5, color=DARK)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel("real part of the multiplier")
    ax.set_ylabel("imaginary part")
    _style(ax)
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    lost = int((~found).sum())
    return _write(figure, path, title if not lost else f"{title}\n{lost} of {len(found)} orbits not found".strip())


def plot_branch(branch: Branch, path, *, title: str = "") -> Path:
    """Draw a branch over its parameter: the state, the multipliers' moduli, impact speed and clearance, and the events."""
    p = branch.parameter
    shown = _evenly(branch.q.shape[1])
    contact = {
        name: np.where(np.isfinite(x), x, np.nan)
        for name, x in (("smallest impact speed", branch.impact_speed), ("smallest clearance", branch.clearance))
        if np.isfinite(x).any()
    }
    figure, cells = _grid(8.6, 0.7 + 2.4 * (2 + bool(contact)), 2 + bool(contact), 1)
    axes = cells[:, 0]
    for i, colour in zip(shown, COLOURS, strict=False):
        name = "q" if branch.q.shape[1] == 1 else f"q[{i}]"
        for stable, style in ((True, {"lw": 1.8}), (False, {"lw": 1.2, "ls": (0, (3, 2))})):
            x, y = _pieces(branch, i, stable)
            axes[0].plot(x, y, color=colour, label=f"{name}, {'stable' if stable else 'unstable'}", **style)
    axes[0].set_ylabel("position q at t0\n[unit of q]")
    axes[1].semilogy(p, np.abs(branch.multipliers), color=COLOURS[0], lw=1.4)
    axes[1].axhline(1.0, color=DARK, lw=0.8)
    axes[1].set_ylabel("moduli of the\nmultipliers")
    for ax in axes[2:]:
        for (name, x), colour in zip(contact.items(), COLOURS[2:], strict=False):
            ax.plot(p, x, color=colour, lw=1.4, label=name)
        ax.axhline(0.0, color=DARK, lw=0.8)
        ax.set_ylabel("[unit of f / s], [unit of f]")
    for kind, marker in MARKERS.items():
        events = [event for event in branch.events if event.kind == kind]
        if events:
            at = [event.parameter for event in events]
            axes[0].plot(at, [event.q[0] for event in events], marker, color=DARK, ms=7, label=kind, ls="none")
            axes[1].plot(at, [np.abs(event.multipliers).max() for event in events], marker, color=DARK, ms=7)
            for ax in axes:
                ax.vlines(at, 0, 1, transform=ax.get_xaxis_transform(), color=GREY, lw=0.7, zorder=0)
    for ax in axes:
        _style(ax)
        ax.sharex(axes[-1])
        if ax.get_legend_handles_labels()[0]:
            ax.legend(**OUTSIDE)
    axes[-1].set_xlabel(branch.name)
    figure.align_ylabels()
    return _write(figure, path, title)


def _pieces(branch: Branch, i: int, stable: bool) -> tuple[np.ndarray, np.ndarray]:
    """The stable or the unstable pieces of coordinate i over the parameter, from event to event, NaN between them."""
    x, y = [], []
    last = len(branch.parameter) - 1
    for k in range(last + 1):
        inner = [(event.parameter, event.q[i]) for event in branch.events if event.index == k]
        ends = [(branch.parameter[j], branch.q[j, i]) for j in (k, k + 1) if j <= last]
        nodes = [ends[0], *inner, *ends[1:]]
        for n, (here, there) in enumerate(pairwise(nodes)):
            if branch.stable[k if n == 0 else min(k + 1, last)] == stable:
                x += [here[0], there[0], np.nan]
                y += [here[1], there[1], np.nan]
    return np.array(x), np.array(y)


def plot_lyapunov(found: Lyapunov, path, *, parameter=None, label: str = "", title: str = "") -> Path:
    """Draw Lyapunov exponents: of one motion its block means, of a batch their values over ``parameter`` (B,), with error bars."""
    exponents = np.asarray(found.exponents)
    figure = _figure(8.0, 4.2)
    ax = figure.subplots()
    count = exponents.shape[-1]
    if exponents.ndim == 1:
        blocks = np.arange(1, len(found.blocks) + 1)
        for i, colour in zip(_evenly(count), COLOURS, strict=False):
            ax.plot(blocks, found.blocks[:, i], "o-", ms=4, color=colour, lw=1.2)
            ax.axhline(exponents[i], color=colour, lw=0.8, ls=":")
            name = f"{exponents[i]:.4f} ± {found.error[i]:.4f}"
            ax.plot([], [], "o-", ms=4, color=colour, label=name)
        ax.set_xlabel("block")
    else:
        label = label or ("motion" if parameter is None else "parameter")
        parameter = np.arange(len(exponents)) if parameter is None else real("parameter", parameter)
        if parameter.shape != (len(exponents),):
            raise ValueError(
                f"parameter must have one value for each motion, shape ({len(exponents)},), got {parameter.shape}"
            )
        order = np.argsort(parameter, kind="stable")
        for i, colour in zip(_evenly(count), COLOURS, strict=False):
            values = np.where(np.isfinite(exponents[order, i]), exponents[order, i], np.nan)
            error = np.nan_to_num(found.error[order, i])
            name = f"λ{i + 1}"
            ax.errorbar(parameter[order], values, error, color=colour, lw=1.2, elinewidth=0.8, label=name)
        lost = int(np.sum(~np.isfinite(exponents).all(axis=1)))
        if lost:
            note = f"{lost} of {len(exponents)} not finite: failed, or a contact that stayed"
            ax.annotate(note, (0.99, 0.02), xycoords="axes fraction", ha="right", fontsize=8.5, color=DARK)
        ax.set_xlabel(label)
    ax.axhline(0.0, color=DARK, lw=0.8)
    ax.set_ylabel("Lyapunov exponent [1/s]")
    _style(ax)
    ax.legend(**OUTSIDE)
    return _write(figure, path, title)


def plot_balance(found: Balance, path, *, title: str = "") -> Path:
    """Draw kinetic energy, work, losses and driving work over time, and the residuals of energy and momentum."""
    figure, cells = _grid(8.0, 7.0, 3, 1)
    axes = cells[:, 0]
    curves = {"kinetic energy": found.kinetic, "work of the forces": found.work, "lost in impacts": found.loss}
    if np.any(found.driven != 0):
        curves["work of moving constraints"] = found.driven
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        axes[0].plot(found.t, values, color=colour, lw=1.4, label=name)
    axes[0].set_ylabel("energy [J]")
    axes[0].legend(**OUTSIDE)
    axes[1].plot(found.t, found.energy, color=COLOURS[0], lw=1.2)
    axes[1].set_ylabel("energy residual\n[J]")
    many = found.momentum.shape[1]
    for i, colour in zip(_evenly(many), COLOURS, strict=False):
        axes[2].plot(found.t, found.momentum[:, i], color=colour, lw=1.2, label=f"[{i}]" if many > 1 else None)
    axes[2].set_ylabel("momentum residual\n[N s]")
    if many > 1:
        axes[2].legend(**OUTSIDE)
    for ax in axes:
        _style(ax)
        ax.set_xlim(found.t[0], found.t[-1])
    axes[-1].set_xlabel("time t [s]")
    figure.align_ylabels()
    return _write(figure, path, title)


def plot_statistics(
    found: Statistics, path, *, name: str = "q", component: int = 0, label: str = "", title: str = ""
) -> Path:
    """Draw quantile bands of one component: over time, for some groups, or, of one row, over the groups."""
    if name not in found.quantile:
        raise ValueError(f"name={name!r}: there are statistics of {', '.join(map(repr, found.quantile))}")
    values = found.quantile[name]
    lead = 2 + (found.groups is not None)  # levels, groups, rows
    values = values.reshape(*values.shape[:lead], -1)
    if not 0 <= component < values.shape[-1]:
        raise ValueError(f"component={component}: {name} has {values.shape[-1]}")
    values = values[..., component]
    symbol = name if found.quantile[name].ndim == lead else f"{name}[{component}]"
    figure = _figure(8.0, 4.2)
    ax = figure.subplots()
    if found.groups is not None and len(found.t) == 1:
        _bands(ax, found.groups, values[:, :, 0], COLOURS[0], None)
        ax.set_xlabel(label or "group")
        ax.set_ylabel(f"{symbol} at t = {found.t[0]:g} s")
    else:
        if len(found.t) == 1:
            raise ValueError("plot_statistics needs several rows, or groups: save times in the ensemble")
        if found.groups is None:
            _bands(ax, found.t, values, COLOURS[0], None)
        else:
            shown = _evenly(len(found.groups), GROUPS_DRAWN)
            for i, colour in zip(shown, COLOURS, strict=False):
                _bands(ax, found.t, values[:, i], colour, f"{label or 'group'} = {found.groups[i]:.6g}")
            ax.legend(**OUTSIDE)
        ax.set_xlabel("time t [s]")
        ax.set_ylabel(symbol)
    levels = ", ".join(f"{100 * x:g} %" for x in found.levels)
    ax.set_title(f"quantiles {levels}", fontsize=9, color=DARK)
    _style(ax)
    lost = int(np.sum(found.failed))
    return _write(figure, path, f"{title}\n{lost} failed motions are left out".strip() if lost else title)


def _bands(ax, x, values, colour, label) -> None:
    """Bands between the outermost quantiles (Q, k), the next ones, and so on; a line for one in the middle."""
    order = values.shape[0]
    for i in range(order // 2):
        ax.fill_between(x, values[i], values[order - 1 - i], color=colour, alpha=0.18 + 0.2 * i, lw=0)
    if order % 2:
        ax.plot(x, values[order // 2], color=colour, lw=1.4, label=label)
    elif label:
        ax.plot([], [], color=colour, lw=6, alpha=0.4, label=label)
