"""The spanning tree of bodies and joints: which body carries which, and where its coordinates are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..planar.quantities import GROUND
from .body import Body
from .shapes import Vector

if TYPE_CHECKING:
    from .parts import Part

SIZE = {"free": 7, "ball": 4, "hinge": 1, "slider": 1}
NAMES = {
    "free": ("x", "y", "z", "qw", "qx", "qy", "qz"),
    "ball": ("qw", "qx", "qy", "qz"),
    "hinge": ("angle",),
    "slider": ("length",),
}
UNITS = {"x": "m", "y": "m", "z": "m", "length": "m", "angle": "rad"}
RATES = {"free": 6, "ball": 3, "hinge": 1, "slider": 1}
ON_GROUND = -1


@dataclass(frozen=True)
class Motion:
    """One motion of a joint: a turn about an ``axis`` through the point ``at``, a shift along it,
    or a rotation about the point (kind "ball").

    Attributes:
        name: of its coordinates, in place of the body's.
        armature: inertia of a rotor that only this motion turns [kg m^2], or shifts [kg]; not of a free one.
    """

    kind: str
    at: Vector
    axis: Vector = (0.0, 0.0, 0.0)
    name: str = ""
    armature: float = 0.0

    def reversed(self) -> Motion:
        """Returns the motion of what carries relative to what is carried; that of a ball has no direction."""
        return replace(self, axis=tuple((-np.array(self.axis)).tolist()))


@dataclass(frozen=True)
class Link:
    """What moves as one: bodies that one motion carries.

    Attributes:
        motion: relative to the link ``parent``, a number, or the ground.
        first: the first of its coordinates.
        root: the link that moves freely and carries this one, or the ground.
        bodies: names of its bodies that have a mass; none between the two axes of a `Universal`.
    """

    motion: Motion
    parent: int
    first: int
    root: int
    bodies: tuple[str, ...] = ()

    @property
    def slice(self) -> slice:
        """Where its coordinates are in q."""
        return slice(self.first, self.first + SIZE[self.motion.kind])


class Tree:
    """Links in an order in which each comes after the one that carries it.

    Attributes:
        links: all of them; ``link_of``: the number of a body's link; ``moved_by``:
            links whose coordinates are called by the name of a body;
        closing: parts that close loops, whose equations are to be kept.
    """

    def __init__(self, bodies: Mapping[str, Body], joints: Sequence[Part]) -> None:
        self.bodies = dict(bodies)
        self.link_of: dict[str, int] = {GROUND: ON_GROUND}
        self.moved_by: dict[str, list[int]] = {}
        self.single: dict[tuple[str, str], tuple[int, int]] = {}
        self.links: list[Link] = []
        self.size = 0
        left = list(joints)
        for name, body in self.bodies.items():
            self._carry(left)
            if name not in self.link_of:
                self._append(name, ON_GROUND, Motion("free", body.centre))
                self._attach(name, len(self.links) - 1)
        self._carry(left)
        self.closing = left

    def _carry(self, left: list) -> None:
        """Attaches the bodies that joints connect to those attached, and takes these joints out of ``left``."""
        while True:
            joint = next((x for x in left if (x.a in self.link_of) != (x.b in self.link_of)), None)
            if joint is None:
                return
            left.remove(joint)
            forward = joint.b in self.link_of
            child, parent = (joint.a, joint.b) if forward else (joint.b, joint.a)
            at = self.link_of[parent]
            motions = joint.motions if forward else [motion.reversed() for motion in reversed(joint.motions)]
            for motion in motions:
                at = self._append(child, at, motion)
            self._attach(child, at)
            if len(motions) == 1 and motions[0].kind in ("hinge", "slider"):
                first = self.links[at].first
                # the coordinate is that of body a relative to b in either case
                self.single[joint.a, joint.b], self.single[joint.b, joint.a] = (first, 1), (first, -1)

    def _append(self, name: str, parent: int, motion: Motion) -> int:
        number = len(self.links)
        root = number if motion.kind == "free" else ON_GROUND if parent == ON_GROUND else self.links[parent].root
        self.links.append(Link(motion, parent, self.size, root))
        self.moved_by.setdefault(name, []).append(number)
        self.size += SIZE[motion.kind]
        return number

    def _attach(self, name: str, number: int) -> None:
        self.link_of[name] = number
        if number != ON_GROUND and self.bodies[name].weighs:
            link = self.links[number]
            self.links[number] = Link(link.motion, link.parent, link.first, link.root, (*link.bodies, name))

    def origin(self, number: int) -> np.ndarray:
        """Returns the point (3,), at the start, from which places of a link are counted: the centre of the body that
        moves freely, or the origin."""
        root = self.links[number].root if number != ON_GROUND else ON_GROUND
        return np.zeros(3) if root == ON_GROUND else np.array(self.links[root].motion.at)

    def upwards(self, number: int) -> list[int]:
        """Returns the numbers of a link and of all that carry it, it first."""
        found = []
        while number != ON_GROUND:
            found.append(number)
            number = self.links[number].parent
        return found

    def coordinate_names(self) -> list[str]:
        """Returns the names of the coordinates, such as ``box.x`` and ``leg.angle``; of two hinges of one joint
        ``leg.angle1`` and ``leg.angle2``."""
        names: list[str] = []
        for i, link in enumerate(self.links):
            if link.motion.name:
                names += [
                    f"{link.motion.name}.{x}" if len(NAMES[link.motion.kind]) > 1 else link.motion.name
                    for x in NAMES[link.motion.kind]
                ]
                continue
            body = next(name for name, numbers in self.moved_by.items() if i in numbers)
            numbers = self.moved_by[body]
            several = str(numbers.index(i) + 1) if len(numbers) > 1 else ""
            names += [f"{body}.{x}{several}" for x in NAMES[link.motion.kind]]
        return names

    def coordinate_units(self) -> list[str]:
        """Returns the units of the coordinates; "" of quaternions."""
        return [UNITS.get(x, "") for link in self.links for x in NAMES[link.motion.kind]]

    def quaternions(self) -> tuple[int, ...]:
        """Returns the numbers of the coordinates with which quaternions begin."""
        return tuple(link.slice.stop - 4 for link in self.links if link.motion.kind in ("free", "ball"))

    def start(self) -> np.ndarray:
        """Returns the coordinates (d,) at the start."""
        q = np.zeros(self.size)
        for link in self.links:
            if link.motion.kind == "free":
                q[link.first : link.first + 3] = link.motion.at
        q[list(self.quaternions())] = 1.0
        return q
