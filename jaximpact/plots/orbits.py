"""Pictures of periodic orbits, of branches and of Lyapunov exponents."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..analysis.bifurcation_curves import BifurcationCurve
from ..analysis.continuation import Branch
from ..analysis.lyapunov import Lyapunov
from ..analysis.orbits import PeriodicOrbit
from ..jaxtools.argument_checks import real
from .style import COLOURS, DARK, GREY, OUTSIDE, Style, axis_labels, evenly, new_grid, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {
    "fold": "v",
    "branch point": "P",
    "period doubling": "D",
    "Neimark-Sacker": "o",
    "grazing": "X",
    "end of sticking": "s",
}
LINES: dict[bool, Style] = {True: {"lw": 1.8}, False: {"lw": 1.2, "ls": (0, (3, 2))}}  # stable or not
FARTHEST = 3.0  # multipliers of larger modulus are named at the edge of the complex plane, not drawn


def draw_multipliers(orbit: PeriodicOrbit, ax: Axes) -> str:
    """Draws Floquet multipliers in the complex plane, with the unit circle; stable orbits blue, others orange."""
    multipliers = np.atleast_2d(orbit.multipliers)
    stable, found = np.atleast_1d(orbit.stable), np.atleast_1d(orbit.converged)
    if not found.any():
        raise ValueError("no orbit was found: there are no multipliers to draw")
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
    tidy(ax)
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    lost = int((~found).sum())
    return f"{lost} of {len(found)} orbits not found" if lost else ""


def draw_branch(branch: Branch, *, label: str = "") -> tuple[np.ndarray, str]:
    """Draws a branch over its parameter: state, moduli of the multipliers, impact speed and clearance, and events."""
    p = branch.parameter
    contact = {
        name: np.where(np.isfinite(x), x, np.nan)
        for name, x in (("smallest impact speed", branch.impact_speed), ("smallest clearance", branch.clearance))
        if np.isfinite(x).any()
    }
    figure, cells = new_grid(8.6, 0.7 + 2.4 * (2 + bool(contact)), 2 + bool(contact), 1)
    axes = cells[:, 0]
    draw_states(branch, axes[0])
    axes[0].set_xlabel("")
    axes[1].semilogy(p, np.abs(branch.multipliers), color=COLOURS[0], lw=1.4)
    axes[1].axhline(1.0, color=DARK, lw=0.8)
    axes[1].set_ylabel("moduli of the\nmultipliers")
    for ax in axes[2:]:
        for (name, x), colour in zip(contact.items(), COLOURS[2:], strict=False):
            ax.plot(p, x, color=colour, lw=1.4, label=name)
        ax.axhline(0.0, color=DARK, lw=0.8)
        units = {"smallest impact speed": "gap velocity", "smallest clearance": "gap"}
        ax.set_ylabel(",\n".join(branch.naming.axis(name, units[name]) for name in contact))
    for kind, marker in MARKERS.items():
        events = [event for event in branch.events if event.kind == kind]
        if events:
            at = [event.parameter for event in events]
            axes[1].plot(at, [np.abs(event.multipliers).max() for event in events], marker, color=DARK, ms=7)
            for ax in axes[1:]:
                ax.vlines(at, 0, 1, transform=ax.get_xaxis_transform(), color=GREY, lw=0.7, zorder=0)
    for ax in axes:
        tidy(ax)
        ax.sharex(axes[-1])
        if ax.get_legend_handles_labels()[0]:
            ax.legend(**OUTSIDE)
    axes[-1].set_xlabel(label or branch.name)
    figure.align_ylabels()
    return axes, ""


def draw_curve(curve: BifurcationCurve, ax: Axes, *, labels: tuple[str, str] | None = None) -> str:
    """Draws a curve of bifurcations in the plane of its two parameters."""
    first, second = axis_labels(labels, curve.parameters)
    ax.plot(curve.x, curve.y, "-", lw=1.6, label=curve.kind)
    ax.set_xlabel(first)
    ax.set_ylabel(second)
    tidy(ax)
    ax.legend(frameon=False, fontsize=9)
    return f"ends: {curve.ended}" if curve.ended == "no convergence" else ""


def draw_states(branch: Branch, ax: Axes, *, label: str = "") -> str:
    """Draws the state at the section over the parameter, and the events."""
    for i, colour in zip(evenly(branch.q.shape[1]), COLOURS, strict=False):
        name = branch.naming.coordinate(i, branch.q.shape[1])
        for stable, style in LINES.items():
            x, y = _pieces(branch, i, stable)
            if not x.size:
                continue
            ax.plot(x, y, color=colour, label=f"{name}, {'stable' if stable else 'unstable'}", **style)
    for kind, marker in MARKERS.items():
        events = [event for event in branch.events if event.kind == kind]
        if events:
            at = [event.parameter for event in events]
            ax.plot(at, [event.q[0] for event in events], marker, color=DARK, ms=7, label=kind, ls="none")
            ax.vlines(at, 0, 1, transform=ax.get_xaxis_transform(), color=GREY, lw=0.7, zorder=0)
    ax.set_ylabel(branch.naming.axis("position q at the section\n", "q"))
    ax.set_xlabel(label or branch.name)
    tidy(ax)
    ax.legend(**OUTSIDE)
    return ""


def _pieces(branch: Branch, i: int, stable: bool) -> tuple[np.ndarray, np.ndarray]:
    """Coordinate i over the parameter, restricted to stable or to unstable orbits, with NaN between pieces."""
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


def draw_lyapunov(found: Lyapunov, ax: Axes, *, parameter: ArrayLike | None = None, label: str = "") -> str:
    """Draws Lyapunov exponents with error bars: block means of one motion,
    or the values of a batch over ``parameter`` (B,)."""
    exponents = np.asarray(found.exponents)
    count = exponents.shape[-1]
    if exponents.ndim == 1:
        blocks = np.arange(1, len(found.blocks) + 1)
        for i, colour in zip(evenly(count), COLOURS, strict=False):
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
        for i, colour in zip(evenly(count), COLOURS, strict=False):
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
    tidy(ax)
    ax.legend(**OUTSIDE)
    return ""
