"""A batch of motions: which leaves have a lane axis, and the number of lanes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from ..mechanics.motion import Motion


@dataclass(frozen=True)
class Lanes:
    """Numbers of ``count`` motions: leaves of a `Motion`, some with a leading lane axis.

    ``axes``: 0 for a leaf with a lane axis, None for a shared one, in the order of the leaves; hashable. ``seen``: what
    a call leaves for the next one of its kind (`known_calls`), how long it took.
    """

    motion: Motion
    axes: tuple[int | None, ...]
    count: int
    seen: dict[str, float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, motion: Motion, marks: Motion, count: int) -> Lanes:
        """Makes lanes from ``marks`` in the structure of the motion: 0 for a leaf with a lane
        axis, -1 for a shared one."""
        return cls(motion, tuple(0 if mark == 0 else None for mark in jax.tree.leaves(marks)), count)

    @property
    def in_axes(self) -> Motion:
        """Axes in the form that `jax.vmap` takes."""
        return jax.tree.unflatten(jax.tree.structure(self.motion), self.axes)

    @property
    def marks(self) -> Motion:
        """Axes with -1 in place of None."""
        flags = [-1 if axis is None else 0 for axis in self.axes]
        return jax.tree.unflatten(jax.tree.structure(self.motion), flags)

    def carries(self, name: str) -> bool:
        """Whether the field ``name`` of the motion, or one of its leaves, has a lane axis."""
        return any(mark == 0 for mark in jax.tree.leaves(getattr(self.marks, name)))

    def only(self, *names: str, h: ArrayLike | None = None) -> Lanes:
        """Copy with only these numbers of the motion, None in place of all others; and with the step ``h``,
        if it is given."""
        nothing = dict.fromkeys(set(Motion._fields) - set(names))
        motion = self.motion._replace(**nothing | {"h": h})
        marks = self.marks._replace(**nothing | {"h": jax.tree.map(lambda _: -1, h)})
        return Lanes.of(motion, marks, self.count)

    @cached_property
    def first(self) -> Motion:
        """Motion of the first lane."""
        return self.take(0)

    def take(self, which: ArrayLike | slice) -> Motion:
        """Motion of the lanes ``which``, an index, an array of indices or a slice; shared leaves stay as they are."""
        leaves, structure = jax.tree.flatten(self.motion)
        some = [x if axis is None else x[which] for x, axis in zip(leaves, self.axes, strict=True)]
        return jax.tree.unflatten(structure, some)

    def some(self, which: ArrayLike | slice) -> Lanes:
        """Lanes in the selection ``which``, an array of indices or a slice."""
        motion = self.take(which)
        leaves = zip(jax.tree.leaves(motion), self.axes, strict=True)
        return Lanes(motion, self.axes, next(len(x) for x, axis in leaves if axis == 0))

    def replace(self, **numbers: Any) -> Lanes:
        """Copy with some numbers replaced; they keep their structure and axes,
        except that states (B, d) and times (B,) get a lane axis."""
        ranks = {"q0": 1, "v0": 1, "t0": 0, "t1": 0, "h": 0}
        spread = {name: 0 for name, rank in ranks.items() if name in numbers and np.ndim(numbers[name]) > rank}
        return Lanes.of(self.motion._replace(**numbers), self.marks._replace(**spread), self.count)

    def with_steps(self, steps: int) -> Lanes:
        """Copy with ``steps`` steps in every lane."""
        number = np.asarray(steps, np.int32)
        return Lanes.of(self.motion._replace(steps=number), self.marks._replace(steps=-1), self.count)
