"""Animations of planar systems: a drawing function for each frame, and ready-made ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..analysis.checks import check_result
from ..jaxtools.argument_checks import real, real_number
from ..jaxtools.optional_packages import import_optional
from ..results import Solution
from .style import COLOURS, DARK, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Drawing = Callable[["Axes", float, np.ndarray], object]
WRITERS = {".gif": "pillow", ".mp4": "ffmpeg"}
INSTALL = {
    "pillow": "pip install pillow",
    "ffmpeg": "install ffmpeg (apt install ffmpeg, brew install ffmpeg, conda install ffmpeg), or write a .gif",
}
MOST = 5000  # frames
LOOKED_AT = 100  # frames from which the limits of the picture are taken


def animate(
    solution: Solution,
    path: str | Path | None = None,
    *,
    draw: Drawing | Sequence[Drawing],
    fps: float = 30.0,
    speed: float = 1.0,
    ax: Any = None,
    title: str = "",
) -> Any:
    """Animates a motion, on axes of equal scale whose fixed limits hold all of it.

    Args:
        solution: one motion with saved rows, between which positions are affine.
        path: a .gif (written by pillow) or an .mp4 (by ffmpeg).
        draw: ``draw(ax, t, q)`` draws one frame on empty axes, q of shape (d,); or several such functions, one after
            the other. Ready-made: `particles`, `disks`, `linkage`.
        fps: frames per second of the picture.
        speed: seconds of the motion in a second of the picture: 0.1 for slow motion.
        ax: axes to draw on.
        title: title above the axes; the time is appended.

    Returns:
        The path; without one a `matplotlib.animation.FuncAnimation` (``.to_jshtml()`` shows it in a notebook).

    Raises:
        ValueError: a batch, no rows, or another suffix. ImportError: matplotlib, pillow or ffmpeg is missing.
    """
    check_result("solution", solution, Solution, "solve or ensemble")
    drawings = (draw,) if callable(draw) else tuple(draw)
    if not drawings or not all(map(callable, drawings)):
        raise TypeError("draw must be a function draw(ax, t, q), such as plots.disks(0.1), or several of them")
    if np.ndim(solution.q) != 2:
        raise ValueError("solution is a batch, and a moving picture is of one motion: take a lane, solution[0].animate")
    t, q = np.asarray(solution.t, np.float64), np.asarray(solution.q, np.float64)
    if len(q) < 2:
        raise ValueError(
            "a moving picture needs saved rows, the solution has the final one only: solve with save='all'"
        )
    sound = np.all(np.isfinite(q), axis=1)
    t, q = t[sound], q[sound]
    if real_number("fps", fps) <= 0 or real_number("speed", speed) <= 0:
        raise ValueError(f"fps and speed must be positive, got {fps!r} and {speed!r}")
    count = max(2, round((t[-1] - t[0]) * fps / speed) + 1)
    if count > MOST:
        raise ValueError(f"{count} frames are more than {MOST}: raise speed={speed:g}, or lower fps={fps:g}")
    writer = None if path is None else _writer(Path(path), fps)
    if ax is None:
        figure = new_figure(6.0, 4.5)
        figure.set_layout_engine("none")  # which would place the axes again in each frame
        ax = figure.add_axes((0.1, 0.08, 0.85, 0.82))
    from matplotlib.animation import FuncAnimation

    times = np.linspace(t[0], t[-1], count)
    states = np.stack([np.interp(times, t, x) for x in q.T], axis=1)

    def frame(k: int) -> None:
        for drawing in drawings:
            drawing(ax, float(times[k]), states[k])

    for k in np.unique(np.linspace(0, count - 1, min(count, LOOKED_AT)).round().astype(int)):
        frame(k)
    limits = _limits(ax)

    def show(k: int) -> list:
        ax.clear()
        frame(k)
        ax.set(xlim=limits[0], ylim=limits[1], aspect="equal")
        ax.set_title(f"{title}  t = {times[k]:.2f} s".strip(), fontsize=10, color=DARK)
        tidy(ax)
        return []

    moving = FuncAnimation(ax.figure, show, frames=count, interval=1000 / fps, init_func=lambda: [])
    if path is None:
        return moving
    moving.save(path, writer=writer, dpi=100)
    return Path(path)


def particles(*, positions: Callable[[np.ndarray], ArrayLike] | None = None, size: float = 9.0) -> Drawing:
    """Drawing function for particles as dots of one ``size`` [points].

    Args:
        positions: ``positions(q) -> (n, 2)``. By default q is (x0, y0, x1, y1, ...); of a single coordinate the height.
        size: of the dots.
    """

    def draw(ax: Axes, t: float, q: np.ndarray) -> None:
        x, y = _points(q, positions).T
        ax.plot(x, y, "o", ms=size, color=COLOURS[0])

    return draw


def disks(radius: ArrayLike, *, positions: Callable[[np.ndarray], ArrayLike] | None = None) -> Drawing:
    """Drawing function for disks (balls) to scale.

    Args:
        radius: one radius for all, or one each (n,) [unit of q].
        positions: positions of the centres, as in `particles`.
    """
    radii = real("radius", radius)
    if radii.ndim > 1 or np.any(radii <= 0):
        raise ValueError(f"radius must be a positive number or several, got {radius!r}")

    def draw(ax: Axes, t: float, q: np.ndarray) -> None:
        from matplotlib.patches import Circle

        centres = _points(q, positions)
        if radii.ndim and len(radii) != len(centres):
            raise ValueError(f"radius has {len(radii)} entries for {len(centres)} disks")
        for i, (centre, r) in enumerate(zip(centres, np.broadcast_to(radii, len(centres)), strict=True)):
            ax.add_patch(Circle(tuple(centre), r, facecolor=COLOURS[i % len(COLOURS)], edgecolor=DARK, alpha=0.8))

    return draw


def linkage(
    lengths: ArrayLike | None = None, *, joints: Callable[[np.ndarray], ArrayLike] | None = None, relative: bool = False
) -> Drawing:
    """Drawing function for a chain of rods, such as a pendulum of several links, from a pivot at the origin.

    Args:
        lengths: lengths of the rods (n,); q holds their angles from the downward vertical.
        joints: in place of lengths ``joints(q) -> (k, 2)``, the points that rods connect, including the pivot.
        relative: whether q holds the angle of each rod from the one before it.
    """
    if (lengths is None) == (joints is None):
        raise TypeError("linkage: give either lengths, with angles as coordinates, or joints(q) -> (k, 2)")
    rods = None if lengths is None else np.atleast_1d(real("lengths", lengths))

    def draw(ax: Axes, t: float, q: np.ndarray) -> None:
        if joints is not None:
            points = _points(q, joints)
        else:
            assert rods is not None
            if len(rods) != len(q):
                raise ValueError(f"lengths has {len(rods)} entries for {len(q)} angles")
            angle = np.cumsum(q) if relative else q
            steps = rods[:, None] * np.stack([np.sin(angle), -np.cos(angle)], axis=1)
            points = np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)])
        ax.plot(*points.T, "-", lw=2.5, color=DARK, solid_capstyle="round")
        ax.plot(*points[:1].T, "s", ms=6, color=DARK)
        ax.plot(*points[1:].T, "o", ms=8, color=COLOURS[0])

    return draw


def _points(q: np.ndarray, positions: Callable[[np.ndarray], ArrayLike] | None) -> np.ndarray:
    """Points (n, 2) of a configuration (d,)."""
    if positions is not None:
        found = np.asarray(positions(q), float)
        if found.ndim != 2 or found.shape[1] != 2:
            raise ValueError(f"positions(q) must return points of shape (n, 2), got {found.shape}")
        return found
    if len(q) == 1:
        return np.array([[0.0, q[0]]])
    if len(q) % 2:
        raise ValueError(
            f"{len(q)} coordinates are no pairs (x, y): give positions=..., a function of q with shape (n, 2)"
        )
    return q.reshape(-1, 2)


def _limits(ax: Axes) -> tuple[tuple[float, float], tuple[float, float]]:
    """Axis limits that hold everything drawn, neither side much shorter than the other."""
    ax.autoscale_view()
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    least = 0.35 * max(right - left, high - low)
    x, y = (max(0.0, least - size) / 2 for size in (right - left, high - low))
    return (left - x, right + x), (low - y, high + y)


def _writer(path: Path, fps: float) -> Any:
    """Matplotlib's writer for the format that the suffix of ``path`` names, at ``fps`` frames per second."""
    if path.suffix not in WRITERS:
        raise ValueError(f"path: {path.name!r} must end in .gif or .mp4")
    writers = import_optional("matplotlib.animation", "a moving picture").writers
    name = WRITERS[path.suffix]
    if not writers.is_available(name):
        raise ImportError(f"to write {path.name} needs {name}: {INSTALL[name]}")
    return writers[name](fps=fps)  # type: ignore[arg-type]
