"""What is between two bodies: joints, forces, gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.argument_checks import real_number
from ..mechanics.coefficients import OfSpeed
from ..mechanics.problem_parts import Args, Time
from .mechanism import names_of_stop
from .pose import Pose
from .quantities import GROUND, Number, Point, distance_of, point_of, unit_vector, value_at


@dataclass(frozen=True)
class Part:
    """Something between two bodies, or a body and the ground: joint equations, gaps,
    or forces along coordinates of its own.

    Attributes:
        a, b: names of the bodies.
        equations: for each joint equation of the part a suffix, which tells its name from those of the others,
            and its unit.
    """

    equations: ClassVar[Sequence[tuple[str, str]]] = ()

    a: str
    b: str = GROUND

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("at", "along", "normal", "point"):
                object.__setattr__(self, one.name, point_of(one.name, value))
            elif one.name == "ends":
                object.__setattr__(self, "ends", tuple(point_of("ends", x) for x in value))

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        """Values of the part's joint equations, () or (k,), which the part keeps at zero."""
        return []

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> list:
        """Gaps () of the part, which it keeps from becoming negative."""
        return []

    def coordinates(self, pose: Pose) -> list:
        """Quantities () at a pose, such as the length of a spring, along each of which the part
        exerts a generalised force."""
        return []

    def forces(self, s: Sequence, rate: Sequence, t: ArrayLike, args: object) -> list:
        """Generalised forces () along the part's `coordinates`, one for each; ``s``: their values; ``rate``:
        their time derivatives."""
        return []

    def potential(self, s: Sequence, args: object) -> Array | float:
        """Potential energy () of the part; ``s``: values of its `coordinates`."""
        return 0.0

    def slips(self, pose: Pose, v: Array, args: object) -> list:
        """Slip velocities (), one for each gap, at coordinate velocities v (d,): zeros for a part without friction."""
        return [jnp.zeros((), v.dtype) for _ in self.gap_names]

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        """Names of its gaps, and their units."""
        return []

    @property
    def friction_coefficients(self) -> list[Number]:
        """Coefficient of friction of each gap."""
        return [0.0 for _ in self.gap_names]

    @property
    def joint_names(self) -> list[tuple[str, str]]:
        """Names of its joint equations, and their units."""
        return [(f"{type(self).__name__.lower()} {self.a}-{self.b}{part}", unit) for part, unit in self.equations]

    def _apart(self, pose: Pose) -> Array:
        first, last = self.ends  # type: ignore[attr-defined]
        return pose.point(self.a, first) - pose.point(self.b, last)

    def _turn(self, pose: Pose) -> Array:
        return pose.angle(self.a) - pose.angle(self.b)


@dataclass(frozen=True, kw_only=True)
class Pin(Part):
    """A hinge: the bodies share the point ``at``."""

    equations = (" x", "m"), (" y", "m")
    at: Point

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        return [pose.point(self.a, self.at) - pose.point(self.b, self.at)]


@dataclass(frozen=True, kw_only=True)
class Slot(Part):
    """A pin in a slot: the point ``at`` of body a stays on a line of body b.

    At the start the line goes through that point, in the direction ``along``.
    """

    equations: ClassVar[Sequence[tuple[str, str]]] = (("", "m"),)
    at: Point
    along: Point

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "along", unit_vector("along", self.along))

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        across = pose.direction(self.b, (-self.along[1], self.along[0]))
        return [across @ (pose.point(self.a, self.at) - pose.point(self.b, self.at))]


@dataclass(frozen=True, kw_only=True)
class Slider(Slot):
    """A guide: a `Slot` in which, moreover, body a does not turn relative to b."""

    equations = (" across", "m"), (" angle", "rad")

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        return [*super().joints(pose, t, args), self._turn(pose)]


@dataclass(frozen=True, kw_only=True)
class Rod(Part):
    """A rod without mass: the ``ends``, one point of each body, keep the distance that they have at the start."""

    equations = (("", "m"),)
    ends: tuple[Point, Point]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ends[0] == self.ends[1]:
            raise ValueError(f"Rod: both ends are {self.ends[0]}; a Pin keeps two points together")

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        apart, length = self._apart(pose), distance_of(self.ends)
        return [(apart @ apart - length**2) / (2 * length)]


@dataclass(frozen=True, kw_only=True)
class Drive(Part):
    """A motor that prescribes how far body a has turned relative to b since the start: ``angle(t, args)`` [rad],
    0 at the start."""

    equations = (("", "rad"),)
    angle: Callable[[Time, Args], Any]

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        return [self._turn(pose) - self.angle(t, args)]


@dataclass(frozen=True, kw_only=True)
class Motor(Part):
    """A torque on body a, and its opposite on b: ``torque(t, angle, rate, args)``, or a number [N m]."""

    torque: float | Callable

    def coordinates(self, pose: Pose) -> list:
        return [self._turn(pose)]

    def forces(self, s: Sequence, rate: Sequence, t: ArrayLike, args: object) -> list:
        return [self.torque(t, s[0], rate[0], args) if callable(self.torque) else self.torque]


@dataclass(frozen=True, kw_only=True)
class Force(Part):
    """A force ``force(t, args)`` (2,) [N] on the point ``at`` of body a."""

    at: Point
    force: Callable[[Time, Args], Any]

    def coordinates(self, pose: Pose) -> list:
        place = pose.point(self.a, self.at)
        return [place[0], place[1]]

    def forces(self, s: Sequence, rate: Sequence, t: ArrayLike, args: object) -> list:
        push = self.force(t, args)
        return [push[0], push[1]]


@dataclass(frozen=True, kw_only=True)
class Elastic(Part):
    """A linear spring and damper along one coordinate.

    Attributes:
        stiffness, damping: generalised force per unit of the coordinate, and per unit of its rate.
    """

    stiffness: Number = 0.0
    damping: Number = 0.0

    def _stretch(self, s: Array, args: object) -> Array:
        """Difference between the coordinate s and its value at rest."""
        raise TypeError(f"{type(self).__name__} has no length at rest")

    def forces(self, s: Sequence, rate: Sequence, t: ArrayLike, args: object) -> list:
        return [-value_at(self.stiffness, args) * self._stretch(s[0], args) - value_at(self.damping, args) * rate[0]]

    def potential(self, s: Sequence, args: object) -> Array | float:
        return 0.5 * value_at(self.stiffness, args) * self._stretch(s[0], args) ** 2


@dataclass(frozen=True, kw_only=True)
class Spring(Elastic):
    """A linear spring and damper between the ``ends``, one point of each body.

    Attributes:
        stiffness, damping: [N/m], [N s/m].
        length: length at rest [m]; by default that at the start.
    """

    ends: tuple[Point, Point]
    length: Number | None = None

    def coordinates(self, pose: Pose) -> list:
        apart = self._apart(pose)
        return [jnp.sqrt(apart @ apart)]

    def _stretch(self, s: Array, args: object) -> Array:
        return s - (distance_of(self.ends) if self.length is None else value_at(self.length, args))


@dataclass(frozen=True, kw_only=True)
class AngleSpring(Elastic):
    """A torsion spring and damper: a torque on body a against its rotation relative to b, and the opposite torque on b.

    Attributes:
        stiffness, damping: [N m/rad], [N m s/rad].
        angle: angle at rest [rad], counted from that at the start; 0 by default.
    """

    angle: Number = 0.0

    def coordinates(self, pose: Pose) -> list:
        return [self._turn(pose)]

    def _stretch(self, s: Array, args: object) -> Array:
        return s - value_at(self.angle, args)


@dataclass(frozen=True, kw_only=True)
class Wall(Part):
    """A straight wall in body b, by default the ground, that keeps a ``point`` of body a on one side.

    Attributes:
        at, normal: a point of the wall, and the direction to the side that is free.
        radius: radius of the round end of body a, whose centre is ``point`` [m].
        friction: Coulomb's coefficient of the contact, a number or a function of args, or of the slip speed too,
            ``(s, args)``; ``friction=`` of `solve` and the other calls takes its place if it is given.
        name: name of the contact.
    """

    point: Point
    at: Point
    normal: Point
    radius: Number = 0.0
    friction: Number = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "normal", unit_vector("normal", self.normal))
        if not callable(self.friction) and real_number("friction", self.friction) < 0:
            raise ValueError(f"friction must be >= 0, got {self.friction!r}")

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> list:
        apart = pose.point(self.a, self.point) - pose.point(self.b, self.at)
        return [pose.direction(self.b, self.normal) @ apart - value_at(self.radius, args)]

    def slips(self, pose: Pose, v: Array, args: object) -> list:
        normal = pose.direction(self.b, self.normal)
        touch = pose.point(self.a, self.point) - value_at(self.radius, args) * normal
        along = pose.velocity(self.a, touch, v) - pose.velocity(self.b, touch, v)
        return [normal[1] * along[0] - normal[0] * along[1]]

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return [(self.name or f"{self.a} on {self.b}", "m")]

    @property
    def friction_coefficients(self) -> list[Number]:
        return [OfSpeed.or_as_given(self.friction)]


@dataclass(frozen=True, kw_only=True)
class Bumper(Part):
    """Two round ends, one of each body: their centres, the points ``ends``, stay at least the ``distance`` [m] apart,
    the sum of the two radii."""

    ends: tuple[Point, Point]
    distance: Number
    name: str = ""

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> list:
        # its square is smooth at all places, and near contact over twice the distance the same
        apart, least = self._apart(pose), value_at(self.distance, args)
        return [(apart @ apart - least**2) / (2 * least)]

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return [(self.name or f"{self.a} at {self.b}", "m")]


@dataclass(frozen=True, kw_only=True)
class Clearance(Part):
    """A hinge with play: the ``ends``, centres of a journal in body a and its bearing in body b, stay within the
    distance ``play`` [m]."""

    ends: tuple[Point, Point]
    play: Number
    name: str = ""

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> list:
        apart, most = self._apart(pose), value_at(self.play, args)
        return [(most**2 - apart @ apart) / (2 * most)]

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return [(self.name or f"{self.a} in {self.b}", "m")]


@dataclass(frozen=True, kw_only=True)
class AngleStop(Part):
    """Stops of the rotation of body a relative to b.

    ``low`` and ``high``: limits of the angle by which it has turned since the start [rad]; either may be None.
    """

    low: Number | None = None
    high: Number | None = None
    name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low is None and self.high is None:
            raise ValueError("AngleStop: give low=, high= or both, in rad")

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> list:
        turn = self._turn(pose)
        low = [] if self.low is None else [turn - value_at(self.low, args)]
        return low if self.high is None else [*low, value_at(self.high, args) - turn]

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return names_of_stop(self)
