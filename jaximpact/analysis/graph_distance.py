"""Distance between velocities with jumps, as curves in the (t, v)-plane: two impacts count by their distance in time,
not by the size of the jump.

It is the Hausdorff distance of the completed graphs (jumps filled in by segments), in which solutions of hybrid systems
converge: R. Goebel, R. G. Sanfelice, A. R. Teel, Hybrid Dynamical Systems, Princeton University Press 2012, chapter 5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import is_pair, known_numbers
from ..results import Solution
from ..results.interpolation import check_rows, curve

ACCURACY = 1e-4  # of a distance, relative
ROUNDING = 64 * np.finfo(float).eps  # of a coordinate
HALVINGS = 60  # of a segment: down to round-off
NEARBY = (-1, 0, 1)  # segments beside that of the same time, which give a first bound
MOST = 2**22  # distances at once
STEEP = 2.0  # times faster than the scale: intervals in which a jump is looked for


Trajectory = Solution | tuple[ArrayLike, ArrayLike]  # a motion, or its times and velocities


def graph_distance(one: Trajectory, other: Trajectory, *, scale: ArrayLike | None = None) -> float:
    """Hausdorff distance between two motions' velocities over time, in seconds.

    Each motion is a curve in the (t, v)-plane, with vertical segments at its jumps. The distance is the largest one
    from a point of either curve to the nearest point of the other one; a difference dv of velocities counts as the time
    dv/scale. So two motions whose only difference is that an impact is dt later are at the distance dt, although their
    velocities differ by the whole jump between the two impacts.

    Args:
        one, other: a `Solution` of one motion that holds every step (an impact stands where it was located, or at the
            end of its step), or times and velocities (t, v) of shapes (n,) and (n, d), affine between rows. Times must
            not decrease; two rows of one time are a jump.
        scale: acceleration by which differences of velocities are divided, a number or (d,) [unit of v per s]. By
            default, for each component, the range of its velocity in both motions,
            divided by the time from the first row to the last one.

    Returns:
        The distance [s], to a ten-thousandth of it.

    Raises:
        ValueError: shapes do not fit, a number is not finite, times decrease, a motion has fewer than two rows, a
            `Solution` lacks steps or has lanes, or scale is not positive.
    """
    curves = [_rows(name, x) for name, x in (("one", one), ("other", other))]
    d = curves[0][1].shape[1]
    if curves[1][1].shape[1] != d:
        raise ValueError(f"one and other must have the same number of velocities, got {d} and {curves[1][1].shape[1]}")
    if scale is None:
        t, v = (np.concatenate(x) for x in zip(*curves, strict=True))
        scale = acceleration_scale(t, v)
    scale = np.asarray(known_numbers("scale", scale), np.float64)
    if scale.shape not in ((), (d,)) or not np.all(np.isfinite(scale) & (scale > 0)):
        raise ValueError(f"scale must be a positive number or have shape ({d},), got {scale.tolist()!r}")
    first, second = (scaled_curve(t, v, scale) for t, v in curves)
    return distance_between_curves(first, second)


def _rows(name: str, motion: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Times (n,) and velocities (n, d) of an argument of `graph_distance`."""
    if isinstance(motion, Solution):
        return _of_solution(name, motion)
    if not is_pair(motion):
        raise ValueError(f"{name} must be a Solution or a pair (t, v), got {type(motion).__name__}")
    t, v = (np.asarray(known_numbers(f"{name}: {x}", value), np.float64) for x, value in zip("tv", motion, strict=True))
    if t.ndim != 1 or len(t) < 2 or v.ndim != 2 or len(v) != len(t):
        raise ValueError(
            f"{name} must have t of shape (n,) with n >= 2 and v of shape (n, d), got {t.shape}, {v.shape}"
        )
    if not (np.all(np.isfinite(t)) and np.all(np.isfinite(v))):
        raise ValueError(f"{name} has times or velocities that are not finite")
    if np.any(np.diff(t) < 0):
        raise ValueError(f"{name}: t must not decrease")
    return t, v


def _of_solution(name: str, motion: Solution) -> tuple[np.ndarray, np.ndarray]:
    """Times and velocities of a solution, with two rows at each jump."""
    t = known_numbers(f"{name}: t", motion.t)
    if t.ndim != 1:
        raise ValueError(f"{name} must be one motion, got lanes of shape {t.shape[:-1]}: take one by its number")
    check_rows(motion)
    if not np.all(np.isfinite(known_numbers(f"{name}: v", motion.v))):
        raise ValueError(f"{name} has velocities that are not finite: see its status")
    return sampled_rows(curve(motion), np.asarray(t, np.float64))


def acceleration_scale(t: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Range of each velocity component divided by the time of all rows (d,); for a component that never changes the
    largest range is taken."""
    ranges = np.ptp(v, axis=0)
    largest = np.max(ranges, initial=0.0) or np.max(np.abs(v), initial=0.0) or 1.0
    return np.where(ranges > 0, ranges, largest) / (np.ptp(t) or 1.0)


def scaled_curve(t: np.ndarray, v: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Points (n, 1 + d) of the curve (t, v / scale), all coordinates in seconds."""
    return np.concatenate([t[:, None], v / scale], axis=1)


def sampled_rows(
    motion: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], t: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Times and velocities of a function t -> (q, v), at t (k,) and at both sides of jumps.

    In each interval of t where v changes fast, the largest jump is located.
    """
    v = np.asarray(motion(t)[1], np.float64)
    scale, size = acceleration_scale(t, v), lambda dv: np.max(np.abs(dv) / scale, axis=1, initial=0.0)
    steep = size(np.diff(v, axis=0)) > STEEP * np.diff(t)
    left, right, before, after = t[:-1][steep], t[1:][steep], v[:-1][steep], v[1:][steep]
    for _ in range(HALVINGS if steep.any() else 0):
        middle = 0.5 * (left + right)
        found = np.asarray(motion(middle)[1], np.float64)
        early = size(found - before) > size(after - found)  # the jump is in the first half
        right, left = np.where(early, middle, right), np.where(early, left, middle)
        after, before = np.where(early[:, None], found, after), np.where(early[:, None], before, found)
    order = np.argsort(np.concatenate([t, left, right]), kind="stable")
    return np.concatenate([t, left, right])[order], np.concatenate([v, before, after])[order]


def distance_between_curves(one: np.ndarray, other: np.ndarray) -> float:
    """Hausdorff distance of two polygonal curves of points (n, k) whose first coordinate does not decrease."""
    found = _farthest(one, other, 0.0)
    return _farthest(other, one, found)


def _farthest(one: np.ndarray, other: np.ndarray, least: float) -> float:
    """The largest distance from a point of ``one`` to the curve ``other``, or ``least`` if that is larger.

    The distance from a point to a segment of ``other`` is convex along a segment of ``one``, so that no point of the
    latter is farther off than the farther of its two ends is from that segment of ``other``. Segments whose bound
    exceeds the largest distance found so far are halved.
    """
    starts, ends = one[:-1], one[1:]
    noise = ROUNDING * max(float(np.max(np.abs(x))) for x in (one, other))
    same = np.searchsorted(other[:, 0], starts[:, 0], side="right")[:, None] + (np.array(NEARBY) - 1)
    bound = _bounds(starts, ends, other, np.clip(same, 0, len(other) - 2))[2]
    order = np.argsort(-bound, kind="stable")
    for chosen in np.split(order, [min(64, len(order))]):  # the worst give a distance that excludes most others
        rest = chosen[bound[chosen] > least * (1 + ACCURACY) + noise]
        starts_left, ends_left = starts[rest], ends[rest]
        for _ in range(HALVINGS):
            if not len(starts_left):
                break
            low, up = _nearest(starts_left, ends_left, other)
            least = max(least, float(np.max(low)))
            open_ = up > least * (1 + ACCURACY) + noise
            a, b = starts_left[open_], ends_left[open_]
            middle = 0.5 * (a + b)
            starts_left, ends_left = np.concatenate([a, middle]), np.concatenate([middle, b])
    return least


def _nearest(starts: np.ndarray, ends: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For segments (n, k): the larger distance (n,) of their two ends from a curve,
    and a bound (n,) for all of their points."""
    n, count = len(starts), len(other) - 1
    low, up, left = np.empty(n), np.empty(n), np.arange(n)
    reach = 2 * max(float(other[-1, 0] - other[0, 0]) / count, np.finfo(float).tiny)
    while len(left):
        a, b = starts[left], ends[left]
        first = np.searchsorted(other[1:, 0], a[:, 0] - reach, side="left")
        last = np.searchsorted(other[:-1, 0], b[:, 0] + reach, side="right")
        first = np.minimum(first, count - 1)
        width = np.maximum(last - first, 1)
        near = np.empty(len(left)), np.empty(len(left)), np.empty(len(left))
        size = max(1, MOST // int(width.max()))
        for k in range(0, len(left), size):
            part = slice(k, k + size)
            places = np.minimum(first[part, None] + np.arange(width[part].max()), (first + width - 1)[part, None])
            for whole, piece in zip(near, _bounds(a[part], b[part], other, places), strict=True):
                whole[part] = piece
        farther = np.maximum(near[0], near[1])
        # segments that were left out are farther off in time than that
        done = (farther <= reach) | (width >= count)
        low[left[done]], up[left[done]] = farther[done], near[2][done]
        left, reach = left[~done], 4 * reach
    return low, up


def _bounds(starts: np.ndarray, ends: np.ndarray, other: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, ...]:
    """Bounds the distances of n segments from p segments each of the curve ``other``,
    whose indices are ``places`` (n, p).

    Returns the distances (n,) of the starts and of the ends of the n segments,
    and an upper bound (n,) on the distances of the points between.
    """
    a, along = other[places], other[places + 1] - other[places]
    squared = np.sum(along**2, axis=-1)

    def apart(points: np.ndarray) -> np.ndarray:
        off = points[:, None] - a
        share = np.sum(off * along, axis=-1) / np.where(squared > 0, squared, 1.0)
        return np.linalg.norm(off - np.clip(share, 0, 1)[..., None] * along, axis=-1)

    first, second = apart(starts), apart(ends)
    return first.min(axis=1), second.min(axis=1), np.maximum(first, second).min(axis=1)
