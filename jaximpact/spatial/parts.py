"""What is between two bodies: the base class, and joints. Along a tree that spans the bodies joints become coordinates,
in loops they are equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..mechanics.problem_parts import Args, Time
from ..planar.quantities import GROUND, Number, Restitution
from .body import unit_vector, vector_of
from .dynamics import Loads
from .pose import Pose, Twists
from .shapes import Vector
from .tree import Motion
from .vectors import Tensor, basis_across, half_turned, plus, product, scaled


@dataclass(frozen=True)
class Part:
    """Something between two bodies, or a body and the ground: joints, gaps or forces.

    Attributes:
        a, b: names of the bodies.
        equations: for each joint equation of the part a suffix, which tells its name from those of the others,
            and its unit.
        of_hinge: whether the part is about the coordinate of a hinge or slider between its bodies.
    """

    equations: ClassVar[Sequence[tuple[str, str]]] = ()
    of_hinge: ClassVar[bool] = False

    a: str
    b: str = GROUND

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "at":
                object.__setattr__(self, one.name, vector_of(one.name, value))
            elif one.name in ("along", "axis", "normal"):
                object.__setattr__(self, one.name, unit_vector(one.name, value))
            elif one.name == "ends":
                object.__setattr__(self, "ends", tuple(vector_of("ends", x) for x in value))

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        """Values of the part's joint equations, () or (k,), which the part keeps at zero."""
        return []

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> Tensor:
        """Gaps (k,) of the part, which it keeps from becoming negative."""
        return np.zeros(0)

    def slips(self, pose: Pose, twists: Twists, args: object) -> Tensor:
        """Slip velocities (k, 2), for each gap along two directions across its normal:
        zeros for a part without friction."""
        return np.zeros((len(self.gap_names), 2))

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        """Adds the forces of the part to ``loads``."""

    def potential(self, pose: Pose, args: object) -> Tensor | float:
        """Potential energy () of the part."""
        return 0.0

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        """Names of its gaps, and their units."""
        return []

    @property
    def friction_coefficients(self) -> list[Number]:
        """Coefficient of friction of each gap."""
        return [0.0 for _ in self.gap_names]

    @property
    def restitutions(self) -> list[Restitution]:
        """Coefficient of restitution of each gap."""
        return [getattr(self, "restitution", 0.0) for _ in self.gap_names]

    @property
    def joint_names(self) -> list[tuple[str, str]]:
        """Names of its joint equations, and their units."""
        return [(f"{type(self).__name__.lower()} {self.a}-{self.b}{part}", unit) for part, unit in self.equations]

    def _apart(self, pose: Pose, first: Vector, last: Vector) -> Tensor:
        """Vector (3,) from the point ``last`` of body b to the point ``first`` of a, in the axes of the world."""
        return plus(pose.point(self.a, first), scaled(-1, pose.point(self.b, last)))

    def _apart_in_body(self, pose: Pose, first: Vector, last: Vector) -> Tensor:
        """The same vector in the axes of body a, or of b where a is the ground.

        Of joint equations in these axes the same ones follow from the others while the plane of a flat loop turns.
        """
        return product(pose.rotation(self.b if self.a == GROUND else self.a).T, self._apart(pose, first, last))


@dataclass(frozen=True)
class Joint(Part):
    """A joint that is coordinates of what it moves where it carries a body, and joint equations where it closes a loop.

    Equations x, y, z of a point are along the axes of the start, which turn with body a.
    """

    @property
    def motions(self) -> list[Motion]:
        """Motions of body a relative to b that the joint allows, one after the other from b on."""
        return []

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        raise NotImplementedError

    def _turned_between(self, pose: Pose) -> list:
        """Three numbers (), zero while body a has not turned relative to b."""
        return half_turned(jnp.asarray(product(pose.rotation(self.b).T, pose.rotation(self.a)), pose.q.dtype))


def _across(pose: Pose, body: str, axis: Vector) -> Tensor:
    """Two directions (2, 3) of a body across an axis that is fixed in it."""
    return pose.direction(body, basis_across(np.array(axis)).T).T


POINT = (" x", "m"), (" y", "m"), (" z", "m")
TURNED = (" about x", ""), (" about y", ""), (" about z", "")


@dataclass(frozen=True, kw_only=True)
class Ball(Joint):
    """A ball joint: the bodies share the point ``at``."""

    equations = POINT
    at: Vector

    @property
    def motions(self) -> list[Motion]:
        return [Motion("ball", self.at)]

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        return [self._apart_in_body(pose, self.at, self.at)]


@dataclass(frozen=True, kw_only=True)
class Hinge(Joint):
    """A hinge: body a turns relative to b about an ``axis`` through the point ``at``."""

    equations = (*POINT, (" tilt 1", ""), (" tilt 2", ""))
    at: Vector
    axis: Vector

    @property
    def motions(self) -> list[Motion]:
        return [Motion("hinge", self.at, self.axis)]

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        tilt = product(_across(pose, self.b, self.axis), pose.direction(self.a, self.axis))
        return [self._apart_in_body(pose, self.at, self.at), tilt]


@dataclass(frozen=True, kw_only=True)
class Slider(Joint):
    """A guide: body a shifts relative to b in the direction ``along`` and does not turn;
    the point ``at`` stays on a line."""

    equations = (" across 1", "m"), (" across 2", "m"), *TURNED
    at: Vector
    along: Vector

    @property
    def motions(self) -> list[Motion]:
        return [Motion("slider", self.at, self.along)]

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        across = product(_across(pose, self.b, self.along), self._apart(pose, self.at, self.at))
        return [across, *self._turned_between(pose)]


@dataclass(frozen=True, kw_only=True)
class Universal(Joint):
    """A universal joint: two axes through the point ``at``, the first fixed in body b, the second in body a."""

    equations = (*POINT, (" angle of axes", ""))
    at: Vector
    axes: tuple[Vector, Vector]

    def __post_init__(self) -> None:
        super().__post_init__()
        axes = tuple(unit_vector("axes", x) for x in self.axes)
        if len(axes) != 2 or np.linalg.norm(np.cross(*axes)) < 1e-6:
            raise ValueError(f"Universal: axes must be two directions that are not parallel, got {self.axes}")
        object.__setattr__(self, "axes", axes)

    @property
    def motions(self) -> list[Motion]:
        return [Motion("hinge", self.at, axis) for axis in self.axes]

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        first, second = self.axes
        between = product(pose.direction(self.b, first)[None], pose.direction(self.a, second))[0]
        return [self._apart_in_body(pose, self.at, self.at), between - float(np.dot(first, second))]


@dataclass(frozen=True, kw_only=True)
class Weld(Joint):
    """A rigid connection of two bodies."""

    equations = (*POINT, *TURNED)

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        at = pose.tree.bodies[self.a if self.a != GROUND else self.b].centre
        return [self._apart_in_body(pose, at, at), *self._turned_between(pose)]


@dataclass(frozen=True, kw_only=True)
class Rod(Part):
    """A rod without mass: the ``ends``, one point of each body, keep the distance that they have at the start."""

    equations = (("", "m"),)
    ends: tuple[Vector, Vector]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ends[0] == self.ends[1]:
            raise ValueError(f"Rod: both ends are {self.ends[0]}; a Ball keeps two points together")

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        apart, length = self._apart(pose, *self.ends), float(np.linalg.norm(np.subtract(*self.ends)))
        return [(apart @ apart - length**2) / (2 * length)]


@dataclass(frozen=True, kw_only=True)
class Drive(Part):
    """A motor that prescribes how far body a has turned about its hinge relative to b since the start:
    ``angle(t, args)`` [rad], 0 at the start.

    Of a slider it is the length of its shift [m].
    """

    equations = (("", "rad"),)
    of_hinge = True
    angle: Callable[[Time, Args], Any]

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        return [jnp.asarray(pose.coordinate(self.a, self.b) - self.angle(t, args))]
