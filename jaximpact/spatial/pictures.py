"""Pictures of bodies in space, as they are seen from afar: lines that a body hides of itself are light, and planes of
the ground carry its shadow.

And surfaces of bodies for ParaView: convex hulls of points, by their shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..planar.quantities import GROUND
from ..plots.style import COLOURS, DARK, GREY
from .contacts import Plane
from .forces import Spring
from .parts import Ball, Hinge, Rod, Universal
from .shapes import CIRCLE, Shape
from .vectors import basis_across

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Drawing = Callable[["Axes", float, np.ndarray], None]


def drawing_of(system: Any, azimuth: float, elevation: float) -> Drawing:
    """Makes the drawing function of a `System`, seen from a direction given by two angles [degrees]."""
    a, e = np.radians([azimuth, elevation])
    towards = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    screen = np.array([[-np.sin(a), np.cos(a), 0], [-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)]])

    def draw(ax: Axes, t: float, q: np.ndarray) -> None:
        pose = system.pose(jnp.asarray(q))
        planes = {(part.at, part.normal) for part in system.parts if isinstance(part, Plane) and part.b == GROUND}
        places = {name: (np.asarray(pose.rotation(name)), np.asarray(pose.centre(name))) for name, _ in system.bodies}
        # what is nearer is drawn later
        order = sorted(places, key=lambda name: float(places[name][1] @ towards))
        bodies = dict(system.bodies)
        for name, (at, normal) in ((name, plane) for name in order for plane in planes):
            if np.dot(normal, towards) > 0:
                points = _edge(bodies[name].shape, *places[name], basis_across(np.array(normal)))
                height = (points - at) @ np.array(normal)
                shadow = (points - height[:, None] * np.array(normal)) @ screen.T
                ax.fill(*_hull(shadow).T, color=GREY, alpha=0.25, lw=0, zorder=0.5)
        for i, name in enumerate(order):
            turn, centre = places[name]
            colour = COLOURS[list(bodies).index(name) % len(COLOURS)]
            shape = bodies[name].shape
            if shape is None:
                ax.plot(*(screen @ centre), "o", ms=6, color=colour, zorder=2 + i)
                continue
            lines = [(centre + p @ turn.T, n @ turn.T) for p, n in shape.outline()]
            body = _hull(_edge(shape, turn, centre, screen) @ screen.T)
            ax.fill(*body.T, facecolor=colour, edgecolor=colour, alpha=0.3, lw=1, zorder=2 + i)
            for points, normals in lines:
                seen = (normals @ towards).max(axis=1) > -1e-9
                _draw_line(ax, points @ screen.T, seen[1:] & seen[:-1], color=colour, zorder=2.5 + i)
        last = 3 + len(order)
        for part in system.parts:
            place = lambda body, p: screen @ np.asarray(pose.point(body, p))
            if isinstance(part, Ball | Hinge | Universal):
                ax.plot(*place(part.a, part.at), "s" if part.b == GROUND else "o", ms=5, color=DARK, zorder=last)
            elif isinstance(part, Rod | Spring):
                ends = np.array([place(part.a, part.ends[0]), place(part.b, part.ends[1])])
                ax.plot(*ends.T, ":" if isinstance(part, Spring) else "-", lw=1.5, color=DARK, zorder=last)

    return draw


def _draw_line(ax: Axes, points: np.ndarray, seen: np.ndarray, **style: Any) -> None:
    """Draws a line through points (n, 2), lightly along the pieces (n - 1,) that are not ``seen``."""
    for pieces, alpha, width in ((seen, 1.0, 1.4), (~seen, 0.25, 0.8)):
        ends = np.where(pieces[:, None], points[1:], np.nan)
        broken = np.stack([points[:-1], ends, np.full_like(ends, np.nan)], axis=1).reshape(-1, 2)
        ax.plot(*broken.T, "-", alpha=alpha, lw=width, solid_capstyle="round", **style)


def _edge(shape: Shape | None, turn: np.ndarray, centre: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Returns points (n, 3) of a body, among them those that are outermost in the directions which two unit vectors
    ``across`` (2, 3) span."""
    if shape is None:
        return centre[None]
    around = np.stack([np.cos(CIRCLE), np.sin(CIRCLE)], axis=1) @ across
    arms = np.asarray(jax.vmap(shape.supports)(jnp.asarray(around @ turn)), float) @ turn.T
    return (centre + arms - shape.radius * around[:, None]).reshape(-1, 3)


def surfaces_of(system: Any, q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Surfaces of all bodies that have a shape, at coordinates q (k, d).

    Returns:
        Points (k, n, 3), the corners (m, 3) of triangles among them, seen from outside against the clock, and the
        body's number of each triangle (m,).
    """
    shaped = [(i, name, body.shape) for i, (name, body) in enumerate(system.bodies) if body.shape is not None]
    if not shaped:
        raise ValueError(
            "to_paraview: no body has a shape: state one by spatial.box and the like, or Body(..., shape=...)"
        )

    @jax.jit
    @jax.vmap
    def places(q: ArrayLike) -> Any:
        pose = system.pose(q)
        return [jax.tree.map(jnp.asarray, (pose.rotation(name), pose.centre(name))) for _, name, _ in shaped]

    points, corners, numbers, count = [], [], [], 0
    for (i, _, shape), (turns, centres) in zip(shaped, places(jnp.asarray(q)), strict=True):
        own, triangles = _surface(shape)
        points.append(np.asarray(centres)[:, None] + own @ np.asarray(turns).swapaxes(1, 2))
        corners.append(triangles + count)
        numbers.append(np.full(len(triangles), i))
        count += len(own)
    return np.concatenate(points, axis=1), np.concatenate(corners), np.concatenate(numbers)


def _surface(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Returns the convex hull of what is outermost of a shape in 500 directions: points (n, 3),
    and the corners (m, 3) of triangles."""
    from scipy.spatial import ConvexHull

    up = np.arange(-0.998, 1, 0.004)[:, None]
    turn = np.pi * (3 - 5**0.5) * np.arange(len(up))[:, None]
    directions = np.hstack([np.sqrt(1 - up**2) * np.cos(turn), np.sqrt(1 - up**2) * np.sin(turn), up])
    found = np.asarray(jax.vmap(shape.supports)(jnp.asarray(directions)), float)
    lowest = np.argmin(np.einsum("nki,ni->nk", found, directions), axis=1)
    points = found[np.arange(len(up)), lowest] - shape.radius * directions
    points = np.unique(points, axis=0)
    hull = ConvexHull(points)
    a, b, c = (points[hull.simplices[:, k]] for k in range(3))
    inwards = np.sum(np.cross(b - a, c - a) * hull.equations[:, :3], axis=1) < 0
    return points, np.where(inwards[:, None], hull.simplices[:, ::-1], hull.simplices)


def _hull(points: np.ndarray) -> np.ndarray:
    """Returns the convex hull (k, 2) of points (n, 2) in the plane."""
    ordered = sorted(set(map(tuple, np.round(points, 12).tolist())))

    def chain(points: list) -> list:
        found: list = []
        for x, y in points:
            while len(found) > 1:
                (a, b), (c, d) = found[-2:]
                if (c - a) * (y - b) - (d - b) * (x - a) > 0:
                    break
                found.pop()
            found.append((x, y))
        return found

    return np.array([*chain(ordered)[:-1], *chain(ordered[::-1])[:-1]] or ordered)
