"""Contacts: bodies over planes, round bodies against each other and boxes, stops of hinges. Each gap is a distance, and
its slip that of the material."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..jaxtools.argument_checks import real_number
from ..mechanics.coefficients import OfSpeed
from ..planar.mechanism import names_of_stop
from ..planar.quantities import GROUND, Number, Restitution, value_at
from .body import Body, vector_of
from .distances import ROUND, nearest, tangents
from .parts import Part
from .pose import Pose, Twists
from .shapes import Box, Points, Shape, Vector
from .vectors import Tensor, alike, basis_across, plus, product, scaled


@dataclass(frozen=True, kw_only=True)
class Rough(Part):
    """A part with contacts.

    Attributes:
        friction: Coulomb's coefficient, a number or a function of args, or of the slip speed too, ``(s, args)``;
            ``friction=`` of `solve` and the other calls takes its place if it is given.
        restitution: Newton's coefficient, a number or a function ``(w, args)`` of the speed of approach w [m/s].
        name: name of the contact.
        drilling, rolling: radii by which the contact resists turns about its normal, and about directions across it,
            too [m].
    """

    friction: Number = 0.0
    restitution: Restitution = 0.0
    name: str = ""
    drilling: float = 0.0
    rolling: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.friction) and real_number("friction", self.friction) < 0:
            raise ValueError(f"friction must be >= 0, got {self.friction!r}")
        check_restitution(self.restitution)
        for name in ("drilling", "rolling"):
            if real_number(name, getattr(self, name)) < 0:
                raise ValueError(f"{name} must be a radius >= 0, got {getattr(self, name)!r}")

    def _with_turns(self, across: Tensor, normal: Tensor, tangents: Tensor, twists: Twists) -> Tensor:
        """Slip velocities (k, 2) along ``tangents`` (3, 2), and as further columns the turns that contacts resist,
        times their radii."""
        turn = plus(twists.angular_velocity(self.a), scaled(-1, twists.angular_velocity(self.b)))
        about = (self.drilling, normal[:, None]), (self.rolling, tangents)
        turns = [radius * product(turn[None], axes) for radius, axes in about if radius]
        columns = [jnp.broadcast_to(x, (len(across), x.shape[1])) for x in turns]
        return jnp.concatenate([across, *columns], axis=1) if columns else across

    @property
    def friction_coefficients(self) -> list[Number]:
        return [OfSpeed.or_as_given(self.friction)] * len(self.gap_names)


def check_restitution(e: Restitution) -> None:
    """Raises ValueError unless e is a number in [0, 1] or a function."""
    if not callable(e) and not 0 <= real_number("restitution", e) <= 1:
        raise ValueError(f"restitution must be in [0, 1], got {e!r}")


@dataclass(frozen=True, kw_only=True)
class Plane(Rough):
    """A plane in body b, by default the ground, that keeps body a on one side; a plane of a moving body moves along.

    Attributes:
        at, normal: a point of the plane, and the direction to the side that is free.
        points: points of body a at the start that alone touch, in place of its shape, such as feet.
        radius: of the points [m].
        touching: the shape of body a that touches; `System` fills it in.
    """

    at: Vector
    normal: Vector = (0.0, 0.0, 1.0)
    points: tuple[Vector, ...] = ()
    radius: float = 0.0
    touching: Shape | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "points", tuple(vector_of("points", x) for x in self.points))
        if real_number("radius", self.radius) < 0:
            raise ValueError(f"radius must be >= 0, got {self.radius!r}")

    def with_shape(self, body: Body) -> Shape:
        """Returns what of body a touches; raises ValueError where that is unknown."""
        if self.points:
            arms = np.subtract(self.points, body.centre)
            return Points(self.radius, tuple(map(tuple, arms.tolist())))
        if body.shape is None:
            raise ValueError(
                f"Plane: {self.a!r} is a Body without a shape: give points=[...] of it that touch the plane"
            )
        if body.shape.upright(np.array(self.normal)):
            raise ValueError(
                f"Plane: the cylinder {self.a!r} stands on its end, where its lowest point is not one: give "
                "points=[...], three or more on its rim"
            )
        return body.shape

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> Tensor:
        return self._contact(pose)[0]

    def _contact(self, pose: Pose) -> tuple[Tensor, Tensor]:
        """Returns the gaps (k,) and the places (k, 3) where body a touches."""
        shape, normal = self.touching, pose.direction(self.b, self.normal)
        assert shape is not None
        turn, centre = pose.rotation(self.a), pose.centre(self.a)
        lowest = shape.supports(product(turn.T, normal))
        arms = product(lowest, turn.T)
        down, base = alike(normal, plus(centre, scaled(-1, pose.point(self.b, self.at))))
        height = down @ base - shape.radius
        gaps = plus(product(arms, normal), jnp.broadcast_to(height, (len(lowest),)))
        return gaps, plus(arms, jnp.broadcast_to(plus(centre, scaled(-shape.radius, normal)), arms.shape))

    def slips(self, pose: Pose, twists: Twists, args: object) -> Tensor:
        _, places = self._contact(pose)
        across = pose.direction(self.b, basis_across(np.array(self.normal)).T)
        speed = plus(twists.velocities(self.a, places), scaled(-1, twists.velocities(self.b, places)))
        return self._with_turns(product(speed, across), pose.direction(self.b, self.normal), across, twists)

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        assert self.touching is not None
        return [(f"{self.name or f'{self.a} on {self.b}'}{label}", "m") for label in self.touching.labels]


@dataclass(frozen=True, kw_only=True)
class Contact(Rough):
    """Two bodies that may touch: balls and capsules with each other, and a ball with a box.

    Attributes:
        shapes: of both bodies, and the direction between their centres at the start; `System` fills them in.
    """

    shapes: tuple[Shape, Shape, Vector] | None = None

    def with_shapes(self, one: Body, other: Body) -> tuple[Shape, Shape, Vector]:
        """Returns the shapes of both bodies; raises ValueError for two between which no distance is known."""
        a, b = one.shape, other.shape
        both = isinstance(a, ROUND) and isinstance(b, ROUND)
        if a is None or b is None or not (both or ({type(a), type(b)} == {Box, ROUND[0]})):
            kinds = " and ".join("no shape" if x is None else type(x).__name__.lower() for x in (a, b))
            raise ValueError(
                f"Contact of {self.a!r} and {self.b!r} ({kinds}): there are ball and ball, ball and capsule, capsule "
                "and capsule, ball and box. State others "
                "by points: Plane(a, b, points=[...], at=..., normal=...) keeps points of a body over a face of another"
            )
        apart = np.subtract(one.centre, other.centre)
        return a, b, tuple((apart / np.linalg.norm(apart) if apart.any() else np.array([0.0, 0.0, 1.0])).tolist())

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> Tensor:
        return self._contact(pose)[0][None]

    def _contact(self, pose: Pose) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the distance (), the normal from b to a (3,), and the place (3,) in the
        middle of where they touch."""
        assert self.shapes is not None
        a, b, _ = self.shapes
        places = [(shape, pose.rotation(name), pose.centre(name)) for shape, name in ((a, self.a), (b, self.b))]
        return nearest(*places)

    def slips(self, pose: Pose, twists: Twists, args: object) -> Tensor:
        assert self.shapes is not None
        _, normal, place = self._contact(pose)
        speed = plus(twists.velocity(self.a, place), scaled(-1, twists.velocity(self.b, place)))
        across = tangents(normal, np.array(self.shapes[2]))
        return self._with_turns((across @ speed)[None], normal, across.T, twists)

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return [(self.name or f"{self.a} at {self.b}", "m")]


@dataclass(frozen=True, kw_only=True)
class AngleStop(Part):
    """Stops of the rotation of body a about its hinge relative to b; of a slider, of its shift.

    ``low`` and ``high``: limits of the angle by which it has turned since the start [rad], or of the length [m]; either
    may be None. ``restitution`` and ``name``: as of `Plane`.
    """

    of_hinge = True
    low: Number | None = None
    high: Number | None = None
    restitution: Restitution = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_restitution(self.restitution)
        if self.low is None and self.high is None:
            raise ValueError("AngleStop: give low=, high= or both, in rad")

    def gaps(self, pose: Pose, t: ArrayLike, args: object) -> Tensor:
        turn = pose.coordinate(self.a, self.b)
        low = [] if self.low is None else [turn - value_at(self.low, args)]
        return jnp.stack(low if self.high is None else [*low, value_at(self.high, args) - turn])

    @property
    def gap_names(self) -> list[tuple[str, str]]:
        return names_of_stop(self)


def with_shapes(part: Part, bodies: dict[str, Body]) -> Part:
    """Returns the part with the shapes of its bodies, where it is a contact of them."""
    if isinstance(part, Plane):
        if part.a == GROUND:
            raise ValueError(
                "Plane: the first body is the one that the plane of the second keeps on one side; the ground has no "
                "shape"
            )
        return replace(part, touching=part.with_shape(bodies[part.a]))
    if isinstance(part, Contact):
        if GROUND in (part.a, part.b):
            raise ValueError("Contact is of two bodies; the ground is made of planes: Plane(body, at=..., normal=...)")
        return replace(part, shapes=part.with_shapes(bodies[part.a], bodies[part.b]))
    return part
