"""Forces between two bodies, or on one: of motors, springs and functions of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..mechanics.problem_parts import Args, Time
from ..planar.quantities import Number, value_at
from .dynamics import Loads
from .parts import Part
from .pose import Pose, Twists
from .shapes import Vector
from .vectors import Tensor, alike, plus, scaled


@dataclass(frozen=True, kw_only=True)
class Motor(Part):
    """A torque of a hinge on body a, and its opposite on b: ``torque(t, angle, rate, args)``, or a number [N m];
    of a slider a force [N]."""

    of_hinge = True
    torque: Any

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        torque = self.torque
        if callable(torque):
            torque = torque(t, twists.pose.coordinate(self.a, self.b), twists.rate(self.a, self.b), args)
        loads.drive(self.a, self.b, torque)


@dataclass(frozen=True, kw_only=True)
class Force(Part):
    """A force ``force(t, args)`` (3,) [N], in the axes of the world, on the point ``at`` of body a."""

    at: Vector
    force: Callable[[Time, Args], Any]

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        push = jnp.stack([jnp.asarray(x, twists.v.dtype) for x in self.force(t, args)])
        loads.push(self.a, twists.pose.point(self.a, self.at), push)


@dataclass(frozen=True, kw_only=True)
class Torque(Part):
    """A torque ``torque(t, args)`` (3,) [N m], in the axes of the world, on body a, and its opposite on b."""

    torque: Callable[[Time, Args], Any]

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        torque = jnp.stack([jnp.asarray(x, twists.v.dtype) for x in self.torque(t, args)])
        loads.twist(self.a, torque)
        loads.twist(self.b, -torque)


@dataclass(frozen=True, kw_only=True)
class Spring(Part):
    """A linear spring and damper between the ``ends``, one point of each body.

    Attributes:
        stiffness, damping: [N/m], [N s/m].
        length: length at rest [m]; by default that at the start.
    """

    ends: tuple[Vector, Vector]
    stiffness: Number = 0.0
    damping: Number = 0.0
    length: Number | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ends[0] == self.ends[1]:
            raise ValueError(f"Spring: both ends are {self.ends[0]}, between which it has no direction")

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        pose = twists.pose
        first, last = (pose.point(body, end) for body, end in zip((self.a, self.b), self.ends, strict=True))
        first, last = alike(first, last)
        size = self._size(pose)
        along = (first - last) / size
        speed = plus(twists.velocity(self.a, first), scaled(-1, twists.velocity(self.b, last)))
        pull = value_at(self.stiffness, args) * self._stretch(pose, args) + value_at(self.damping, args) * (
            along @ speed
        )
        loads.push(self.a, first, -pull * along)
        loads.push(self.b, last, pull * along)

    def _size(self, pose: Pose) -> Tensor:
        apart = self._apart(pose, *self.ends)
        return jnp.sqrt(apart @ apart)

    def _stretch(self, pose: Pose, args: object) -> Tensor:
        rest = np.linalg.norm(np.subtract(*self.ends)) if self.length is None else value_at(self.length, args)
        return self._size(pose) - rest

    def potential(self, pose: Pose, args: object) -> Tensor:
        return 0.5 * value_at(self.stiffness, args) * self._stretch(pose, args) ** 2


@dataclass(frozen=True, kw_only=True)
class AngleSpring(Part):
    """A spring and damper of a hinge: a torque on body a against its rotation relative to b,
    and the opposite torque on b; of a slider a force.

    Attributes:
        stiffness, damping: [N m/rad], [N m s/rad]; of a slider [N/m], [N s/m].
        angle: angle at rest [rad], or length [m], counted from that at the start; 0 by default.
    """

    of_hinge = True
    stiffness: Number = 0.0
    damping: Number = 0.0
    angle: Number = 0.0

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        pull = value_at(self.stiffness, args) * self._stretch(twists.pose, args)
        rate = twists.rate(self.a, self.b)
        loads.drive(self.a, self.b, -pull - value_at(self.damping, args) * rate)

    def _stretch(self, pose: Pose, args: object) -> Tensor:
        return pose.coordinate(self.a, self.b) - value_at(self.angle, args)

    def potential(self, pose: Pose, args: object) -> Tensor:
        return 0.5 * value_at(self.stiffness, args) * self._stretch(pose, args) ** 2
