"""Parts of systems out of model files, where these say more than joints and springs between two bodies: several joints of one body, equalities, actuators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .contacts import check_restitution
from .dynamics import Loads
from .parts import POINT, TURNED, Joint, Part
from .pose import Pose, Twists
from .tree import Motion
from .vectors import alike, half_turned, plus, product, rotation_vector, scaled, times_quaternion

INVERSE = np.array([1.0, -1.0, -1.0, -1.0])
Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Chain(Joint):
    """The joints by which body b carries body a, one after the other: ``steps``; none for bodies that are fixed to each other."""

    steps: tuple[Motion, ...] = ()

    @property
    def motions(self) -> list[Motion]:
        return list(self.steps)


@dataclass(frozen=True, kw_only=True)
class Limits(Part):
    """Limits of one coordinate, number ``place``: from ``low`` to ``high``, of a unit, as two gaps."""

    place: int
    low: float
    high: float
    name: str
    unit: str
    restitution: Any = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_restitution(self.restitution)

    def gaps(self, pose: Pose, t: Any, args: Any) -> Any:
        at = pose.q[self.place]
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
    restitution: Any = 0.0

    def gaps(self, pose: Pose, t: Any, args: Any) -> Any:
        vector = rotation_vector(pose.q[self.place : self.place + 4])
        square = vector @ vector
        turned = square > 1e-12
        angle = jnp.where(turned, jnp.sqrt(jnp.where(turned, square, 1)), 0)
        return (self.high - angle)[None]

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return [(f"{self.name} high", "rad")]


@dataclass(frozen=True, kw_only=True)
class Springs(Part):
    """Springs and dampers of all hinges and sliders: ``laws``, each the number of a coordinate, stiffness, damping and the coordinate at rest."""

    laws: tuple[tuple[int, float, float, float], ...]

    def load(self, loads: Loads, twists: Twists, t: Any, args: Any) -> None:
        for i, k, c, rest in self.laws:
            pull = k * (twists.pose.q[i] - rest) if k else 0.0
            pull = pull + c * twists.v[i] if c else pull
            loads.along[i] = loads.along.get(i, 0.0) - pull

    def potential(self, pose: Pose, args: Any) -> Any:
        return sum(0.5 * k * (pose.q[i] - rest) ** 2 for i, k, _, rest in self.laws if k)


@dataclass(frozen=True, kw_only=True)
class BallSpring(Part):
    """Spring and damper of a ball joint, body a on b, whose quaternion begins at number ``place``; at rest at the quaternion ``rest``."""

    place: int
    stiffness: float
    damping: float
    rest: Numbers

    def load(self, loads: Loads, twists: Twists, t: Any, args: Any) -> None:
        torque = scaled(-self.damping, plus(twists.angular_velocity(self.a), -twists.angular_velocity(self.b)))
        if self.stiffness:
            torque = plus(torque, product(twists.pose.rotation(self.b), -self.stiffness * self._turn(twists.pose)))
        loads.twist(self.a, torque)
        loads.twist(self.b, -torque)

    def _turn(self, pose: Pose) -> Any:
        """Rotation vector (3,) from the place at rest, in the axes of body b."""
        own = pose.q[self.place : self.place + 4]
        return rotation_vector(times_quaternion(own, jnp.asarray(INVERSE * self.rest, own.dtype)))

    def potential(self, pose: Pose, args: Any) -> Any:
        turn = self._turn(pose)
        return 0.5 * self.stiffness * (turn @ turn)


@dataclass(frozen=True, kw_only=True)
class Drag(Part):
    """Damper of a body that moves freely: of the velocity of the point ``at``, and of its rotation."""

    at: tuple[float, float, float]
    damping: tuple[float, float]

    def load(self, loads: Loads, twists: Twists, t: Any, args: Any) -> None:
        along, about = self.damping
        place = twists.pose.point(self.a, self.at)
        loads.push(self.a, place, -along * twists.velocity(self.a, place))
        loads.twist(self.a, -about * twists.angular_velocity(self.a))


@dataclass(frozen=True, kw_only=True)
class Lift(Part):
    """A constant ``force`` on the point ``at`` of a body, in the axes of the world: its compensation of weight."""

    at: tuple[float, float, float]
    force: Numbers

    def load(self, loads: Loads, twists: Twists, t: Any, args: Any) -> None:
        loads.push(self.a, twists.pose.point(self.a, self.at), np.array(self.force))

    def potential(self, pose: Pose, args: Any) -> Any:
        place, force = alike(pose.point(self.a, self.at), np.array(self.force))
        return -(force @ place)


@dataclass(frozen=True, kw_only=True)
class Connected(Part):
    """Two points, the ``ends``, one of each body, that are one; and, if ``turn`` is given, a body a that stands turned as b does
    after that rotation, three rows."""

    ends: tuple[tuple[float, float, float], tuple[float, float, float]]
    name: str
    turn: tuple[Numbers, ...] = ()

    @property
    def equations(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        return (*POINT, *TURNED) if self.turn else POINT

    def joints(self, pose: Pose, t: Any, args: Any) -> list:
        if not self.turn:
            return [self._apart(pose)]
        a = pose.rotation(self.a)
        b = product(pose.rotation(self.b), np.array(self.turn))
        return [self._apart(pose), *half_turned(jnp.asarray(product(b.T, a), pose.q.dtype))]

    @property
    def joint_names(self) -> list[tuple[str, str]]:
        return [(f"{self.name}{part}", unit) for part, unit in self.equations]


@dataclass(frozen=True, kw_only=True)
class Geared(Part):
    """A coordinate, number ``place``, that is a polynomial of another, number ``other``; -1 of one that stays."""

    place: int
    other: int
    coefficients: Numbers
    name: str
    unit: str

    def joints(self, pose: Pose, t: Any, args: Any) -> list:
        at = pose.q[self.other] if self.other >= 0 else 0.0
        value: Any = 0.0
        for x in reversed(self.coefficients):
            value = value * at + x
        return [pose.q[self.place] - value]

    @property
    def joint_names(self) -> list[tuple[str, str]]:
        return [(self.name, self.unit)]


@dataclass(frozen=True)
class Actuator:
    """A motor or servo of coordinates, whose length l is the sum of coordinates times factors: ``arms``, the numbers of these with those.

    Its force is (gain . (1, l, l')) u + bias . (1, l, l'), with its input u; ``control`` and ``force`` are the ranges of u and of the force.
    """

    name: str
    arms: tuple[tuple[int, float], ...]
    gain: Numbers
    bias: Numbers
    control: tuple[float, float]
    force: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Actuators(Part):
    """All actuators, whose inputs (n,) are ``control(t, q, v, args)``; ``ranges`` of the force on single coordinates."""

    every: tuple[Actuator, ...]
    ranges: tuple[tuple[int, tuple[float, float]], ...]
    control: Callable[..., Any]

    def load(self, loads: Loads, twists: Twists, t: Any, args: Any) -> None:
        q, v = twists.pose.q, twists.v
        inputs = jnp.asarray(self.control(t, q, v, args), q.dtype)
        if inputs.shape not in ((), (len(self.every),)):
            names = ", ".join(x.name for x in self.every)
            raise ValueError(
                f"control must give ({len(self.every)},), one input of each actuator, {names}; got {inputs.shape}"
            )
        inputs = jnp.broadcast_to(inputs, (len(self.every),))
        forces: dict[int, Any] = {}
        for i, one in enumerate(self.every):
            length, rate = (sum(factor * x[place] for place, factor in one.arms) for x in (q, v))
            state = 1.0, length, rate
            affine = lambda factors, state=state: sum(x * y for x, y in zip(factors, state, strict=True) if x)
            force = affine(one.gain) * _clip(inputs[i], one.control) + affine(one.bias)
            force = _clip(force, one.force)
            for place, factor in one.arms:
                forces[place] = forces.get(place, 0.0) + factor * force
        for place, force in forces.items():
            force = _clip(force, dict(self.ranges).get(place, ANY))
            loads.along[place] = loads.along.get(place, 0.0) + force


ANY = (-np.inf, np.inf)


def _clip(x: Any, limits: tuple[float, float]) -> Any:
    return x if limits == ANY else jnp.clip(x, *limits)
