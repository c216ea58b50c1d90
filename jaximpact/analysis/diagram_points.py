"""Quantities that a bifurcation diagram can show in place of states: impact velocities, amplitudes,
or any function of a motion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..jaxtools.argument_checks import known_numbers
from ..results import Solution
from .forced_motions import ForcedMotions, check_restarts
from .impacts import impacts
from .sections import Section, windows

if TYPE_CHECKING:
    from .shooting_equations import Surface

Of = Callable[[Solution, Any], Any]

IMPACT_VELOCITY = "impact velocity"
# of every position over rows (n, d), the last of which is the first one of the next period
OF_COORDINATE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rms": lambda q: np.sqrt(np.mean(q[1:] ** 2, axis=0)),
    "peak to peak": lambda q: np.ptp(q, axis=0),
}


def check_of(of: str | Of | None, surface: Surface | None) -> None:
    """Raises unless the argument ``of`` of `bifurcation` is valid."""
    names = (IMPACT_VELOCITY, *OF_COORDINATE)
    if of is None:
        return
    if isinstance(of, str) and of not in names:
        raise ValueError(f"of={of!r}: choose {', '.join(map(repr, names))}, or give a function of (motion, args)")
    if not isinstance(of, str) and not callable(of):
        raise TypeError(f"of must be a name or a function of (motion, args), got {type(of).__name__}")
    if surface is not None:
        raise ValueError("of looks at whole periods, surface at single states: give one of them")


class DiagramPoints:
    """Collects the points of a bifurcation diagram: values of the quantity ``of`` of `bifurcation` for each lane, over
    several batches of motions.

    Attributes:
        name: name of the quantity, for tables and axes.
    """

    def __init__(self, of: str | Of | None, steps: int, cycles: int, skip: int, progress: bool | None) -> None:
        own = of if isinstance(of, str) else getattr(of, "__name__", "<lambda>")
        self.name = "function of the motion" if own == "<lambda>" else own
        self._quantity, self._counts, self._progress = of, (steps, cycles, skip), progress
        self._found: list[np.ndarray] = []  # (n, k) for each lane

    def add_points(self, motions: ForcedMotions) -> tuple[Section, np.ndarray, np.ndarray]:
        """Runs motions and adds their points; returns the section of the motions, and their final states q, v (B, d),
        NaN for failed lanes."""
        check_restarts(motions.scheme)
        sections = []
        for begun, window, sound, section in windows(motions, *self._counts, self._progress):
            self._found += self._points_of_group(begun, window, sound)[: len(section.t)]
            sections.append(section)
        every = Section.joined(sections)
        return every, every.q[:, -1], every.v[:, -1]

    def _points_of_group(self, begun: ForcedMotions, window: Solution, sound: np.ndarray) -> list[np.ndarray]:
        none = np.zeros((0, 1))
        if self._quantity == IMPACT_VELOCITY:
            found = impacts(
                begun.problem, window, args=begun.args, args_axes=begun.args_axes, e=begun.restitution(), lanes=sound,
                scheme=begun.scheme,
            )  # fmt: skip
            return [np.asarray(found.before)[found.lane == lane, None] for lane in range(len(sound))]
        return [self._points_of_lane(begun, window, lane) if sound[lane] else none for lane in range(len(sound))]

    def _points_of_lane(self, begun: ForcedMotions, window: Solution, lane: int) -> np.ndarray:
        one = jax.tree.map(lambda x: np.asarray(x)[lane], window)
        if isinstance(self._quantity, str):
            return OF_COORDINATE[self._quantity](np.asarray(one.q))[None]
        assert self._quantity is not None
        found = np.asarray(known_numbers("of(motion, args)", self._quantity(one, begun.lanes.take(lane).args)), float)
        if found.ndim > 2:
            raise ValueError(f"of(motion, args) must return shape (), (n,) or (n, k), got {found.shape}")
        if not np.all(np.isfinite(found)):
            raise ValueError("of(motion, args) returned a number that is not finite, for a motion that has not failed")
        return found if found.ndim == 2 else found.reshape(-1, 1)

    def in_order(self, order: Iterable[int], starts: int) -> None:
        """Reorders the lanes by the index of the parameter's value; ``order[k]``: index of the k-th value that was run,
        with ``starts`` lanes."""
        parts = {i: self._found[k * starts : (k + 1) * starts] for k, i in enumerate(order)}
        self._found = [one for i in sorted(parts) for one in parts[i]]

    def joined(self) -> np.ndarray:
        """All points collected, in order of the lanes: n points with k components each (n, k)."""
        widths = {x.shape[1] for x in self._found if len(x)} or {1}
        if len(widths) > 1:
            raise ValueError(f"of(motion, args) must return as many columns for every motion, got {sorted(widths)}")
        return np.concatenate([x for x in self._found if len(x)] or [np.zeros((0, 1))])

    def lanes(self) -> np.ndarray:
        """The number of the lane that each of the n points belongs to (n,)."""
        return np.repeat(np.arange(len(self._found)), [len(x) for x in self._found])
