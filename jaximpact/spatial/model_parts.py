"""Parts of systems out of model files, where these say more than joints and springs between two bodies: several joints
of one body, equalities, actuators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..planar.quantities import Number, Restitution
from .contacts import check_restitution
from .dynamics import Loads
from .parts import POINT, TURNED, Joint, Part
from .pose import Pose, Twists
from .tree import Motion
from .vectors import Tensor, alike, half_turned, plus, product, rotation_vector, scaled, times_quaternion

INVERSE = np.array([1.0, -1.0, -1.0, -1.0])
Numbers = tuple[float, ...]
Arms = tuple[
    tuple[int, float], ...
]  # a length: numbers of coordinates, of hinges and sliders, and factors by which it grows with them
NONE: Arms = ()


def length_of(arms: Arms, q: Array) -> Any:
    """Length (), or its rate, from the coordinates or their velocities (d,)."""
    return sum(factor * q[place] for place, factor in arms)


def pull(loads: Loads, arms: Arms, force: Tensor | float) -> None:
    """Adds a force () along a length to ``loads``."""
    for place, factor in arms:
        loads.along[place] = loads.along.get(place, 0.0) + factor * force


@dataclass(frozen=True, kw_only=True)
class Chain(Joint):
    """The joints by which body b carries body a, one after the other: ``steps``;
    none for bodies that are fixed to each other."""

    steps: tuple[Motion, ...] = ()

    @property
    def motions(self) -> list[Motion]:
        return list(self.steps)


@dataclass(frozen=True, kw_only=True)
class Limits(Part):
    """Limits of a length, from ``low`` to ``high``, of a unit, as two gaps."""

    arms: Arms
    low: float
    high: float
    name: str
    unit: str
    restitution: Restitution = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_restitution(self.restitution)

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> Tensor:
        at = length_of(self.arms, pose.q)
        return jnp.stack([at - self.low, self.high - at])

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return [(f"{self.name} low", self.unit), (f"{self.name} high", self.unit)]


@dataclass(frozen=True, kw_only=True)
class Cone(Part):
    """The largest angle ``high`` of a ball joint whose quaternion begins at number ``place``."""

    place: int
    high: float
    name: str
    restitution: Restitution = 0.0

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> Tensor:
        vector = rotation_vector(pose.q[self.place : self.place + 4])
        return (self.high - jnp.sqrt(vector @ vector + 1e-24))[None]

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return [(f"{self.name} high", "rad")]


@dataclass(frozen=True, kw_only=True)
class Springs(Part):
    """Springs and dampers of lengths: ``laws``, each of them the length, stiffness, damping, and the lengths between
    which the spring is slack."""

    laws: tuple[tuple[Arms, float, float, tuple[float, float]], ...]

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        for arms, k, c, rest in self.laws:
            force = k * _stretch(length_of(arms, twists.pose.q), rest) if k else 0.0
            pull(loads, arms, -(force + c * length_of(arms, twists.v) if c else force))

    def potential(self, pose: Pose, args: object) -> Tensor | float:
        return sum(0.5 * k * _stretch(length_of(arms, pose.q), rest) ** 2 for arms, k, _, rest in self.laws if k)


def _stretch(length: Any, rest: tuple[float, float]) -> Tensor:
    return length - (rest[0] if rest[0] == rest[1] else jnp.clip(length, *rest))


@dataclass(frozen=True, kw_only=True)
class Brake(Part):
    """Dry friction of a length: a pad, body a, which moves along its coordinate alone, number ``place``, and is pressed
    on a stop by a force of 1.

    So Coulomb's coefficient of the stop is the largest force along the length.
    """

    arms: Arms
    place: int
    friction: float
    name: str

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        pull(loads, ((self.place, -1.0),), 1.0)

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> Tensor:
        return pose.q[self.place][None]

    def slips(self, pose: Pose, twists: Twists, args: object) -> Tensor:
        rate = length_of(self.arms, twists.v)
        return jnp.stack([rate, 0 * rate])[None]

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return [(self.name, "m")]

    @property
    def friction_coefficients(self) -> list[Number]:
        return [self.friction]


@dataclass(frozen=True, kw_only=True)
class BallSpring(Part):
    """Spring and damper of a ball joint, body a on b, whose quaternion begins at number ``place``;
    at rest at the quaternion ``rest``."""

    place: int
    stiffness: float
    damping: float
    rest: Numbers

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        torque = scaled(-self.damping, plus(twists.angular_velocity(self.a), -twists.angular_velocity(self.b)))
        if self.stiffness:
            torque = plus(torque, product(twists.pose.rotation(self.b), -self.stiffness * self._turn(twists.pose)))
        loads.twist(self.a, torque)
        loads.twist(self.b, -torque)

    def _turn(self, pose: Pose) -> Tensor:
        """Rotation vector (3,) from the place at rest, in the axes of body b."""
        own = pose.q[self.place : self.place + 4]
        return rotation_vector(times_quaternion(own, jnp.asarray(INVERSE * self.rest, own.dtype)))

    def potential(self, pose: Pose, args: object) -> Tensor | float:
        turn = self._turn(pose)
        return 0.5 * self.stiffness * (turn @ turn)


@dataclass(frozen=True, kw_only=True)
class Drag(Part):
    """Damper of a body that moves freely: of the velocity of the point ``at``, and of its rotation."""

    at: tuple[float, float, float]
    damping: tuple[float, float]

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        along, about = self.damping
        place = twists.pose.point(self.a, self.at)
        loads.push(self.a, place, -along * twists.velocity(self.a, place))
        loads.twist(self.a, -about * twists.angular_velocity(self.a))


@dataclass(frozen=True, kw_only=True)
class Lift(Part):
    """A constant ``force`` on the point ``at`` of a body, in the axes of the world: its compensation of weight."""

    at: tuple[float, float, float]
    force: Numbers

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        loads.push(self.a, twists.pose.point(self.a, self.at), np.array(self.force))

    def potential(self, pose: Pose, args: object) -> Tensor | float:
        place, force = alike(pose.point(self.a, self.at), np.array(self.force))
        return -(force @ place)


@dataclass(frozen=True, kw_only=True)
class Connected(Part):
    """Two points, the ``ends``, one of each body, that are one; and, if ``turn`` is given, a body a that stands turned
    as b does after that rotation, three rows."""

    ends: tuple[tuple[float, float, float], tuple[float, float, float]]
    name: str
    turn: tuple[Numbers, ...] = ()

    @property
    def equations(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        return (*POINT, *TURNED) if self.turn else POINT

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        apart = self._apart_in_body(pose, *self.ends)
        if not self.turn:
            return [apart]
        a = pose.rotation(self.a)
        b = product(pose.rotation(self.b), np.array(self.turn))
        return [apart, *half_turned(jnp.asarray(product(b.T, a), pose.q.dtype))]

    @property
    def joint_names(self) -> list[tuple[str, str]]:
        return [(f"{self.name}{part}", unit) for part, unit in self.equations]


@dataclass(frozen=True, kw_only=True)
class Geared(Part):
    """A length that is a polynomial of another one, of no ``other`` one that stays."""

    arms: Arms
    other: Arms
    coefficients: Numbers
    name: str
    unit: str

    def joints(self, pose: Pose, t: ArrayLike, args: object) -> list:
        at, value = length_of(self.other, pose.q), 0.0
        for x in reversed(self.coefficients):
            value = value * at + x
        return [length_of(self.arms, pose.q) - value]

    @property
    def joint_names(self) -> list[tuple[str, str]]:
        return [(self.name, self.unit)]


@dataclass(frozen=True)
class Actuator:
    """A motor or servo of a length l.

    Its force is (gain . (1, l, l')) u + bias . (1, l, l'), with its input u;
    ``control`` and ``force`` are the ranges of u and of the force.
    """

    name: str
    arms: Arms
    gain: Numbers
    bias: Numbers
    control: tuple[float, float]
    force: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Actuators(Part):
    """All actuators, whose inputs (n,) are ``control(t, q, v, args)``;
    ``ranges`` of the force on single coordinates."""

    every: tuple[Actuator, ...]
    ranges: tuple[tuple[int, tuple[float, float]], ...]
    control: Callable[..., ArrayLike]

    def load(self, loads: Loads, twists: Twists, t: ArrayLike, args: object) -> None:
        q, v = twists.pose.q, twists.v
        inputs = jnp.asarray(self.control(t, q, v, args), q.dtype)
        if inputs.shape not in ((), (len(self.every),)):
            names = ", ".join(x.name for x in self.every)
            raise ValueError(
                f"control must give ({len(self.every)},), one input of each actuator, {names}; got {inputs.shape}"
            )
        inputs = jnp.broadcast_to(inputs, (len(self.every),))
        forces: dict[int, Tensor | float] = {}
        for i, one in enumerate(self.every):
            state = 1.0, length_of(one.arms, q), length_of(one.arms, v)
            affine = lambda factors, state=state: sum(x * y for x, y in zip(factors, state, strict=True) if x)
            force = affine(one.gain) * _clip(inputs[i], one.control) + affine(one.bias)
            force = _clip(force, one.force)
            for place, factor in one.arms:
                forces[place] = forces.get(place, 0.0) + factor * force
        for place, force in forces.items():
            pull(loads, ((place, 1.0),), _clip(force, dict(self.ranges).get(place, ANY)))


ANY = (-np.inf, np.inf)


def _clip(x: Any, limits: tuple[float, float]) -> Tensor:
    return x if limits == ANY else jnp.clip(x, *limits)
