"""Where bodies are at a configuration, and how fast they move there."""

from __future__ import annotations

from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..planar.quantities import GROUND
from .shapes import Vector
from .tree import ON_GROUND, Tree
from .vectors import (
    IDENTITY,
    ZERO,
    Tensor,
    cross,
    plus,
    product,
    rates_inside,
    rates_outside,
    rotation_about,
    rotation_of,
    scaled,
)


class Pose:
    """Places of all links at coordinates q (d,).

    A link moves points of the start, counted from its tree's origin, to R p + d in the frame of the tree's root, by
    ``turn`` R (3, 3) and ``shift`` d (3,); a root moves that frame to the world by ``root_turn`` and ``root_shift``. Of
    bodies on the ground both frames are the world's.
    """

    def __init__(self, tree: Tree, q: Array) -> None:
        self.tree, self.q = tree, q
        self.turn: list[Tensor] = []
        self.shift: list[Tensor] = []
        self.root_turn: dict[int, Tensor] = {ON_GROUND: IDENTITY}
        self.root_shift: dict[int, Tensor] = {ON_GROUND: ZERO}
        hinges = [link.first for link in tree.links if link.motion.kind == "hinge"]
        low, after = min(hinges, default=0), max(hinges, default=-1) + 1
        sines, cosines = jnp.sin(q[low:after]), jnp.cos(q[low:after])  # all at once, side by side
        turn: Tensor
        shift: Tensor
        for i, link in enumerate(tree.links):
            own, motion = q[link.slice], link.motion
            if motion.kind == "free":
                self.root_turn[i], self.root_shift[i] = rotation_of(own[3:]), own[:3]
                turn, shift = IDENTITY, ZERO
            elif motion.kind == "slider":
                turn, shift = self._turn(link.parent), plus(self._shift(link.parent), self.axis(i) * own[0])
            else:
                if motion.kind == "ball":
                    by = rotation_of(own)
                else:
                    k = link.first - low
                    by = rotation_about(np.array(motion.axis), sines[k], cosines[k])
                turn = product(self._turn(link.parent), by)
                shift = plus(self.pivot(i), scaled(-1, product(turn, self._from_origin(i, motion.at))))
            self.turn.append(turn)
            self.shift.append(shift)
        self._world: dict[int, tuple[Tensor, Tensor]] = {}

    def _turn(self, number: int) -> Tensor:
        return IDENTITY if number == ON_GROUND else self.turn[number]

    def _shift(self, number: int) -> Tensor:
        return ZERO if number == ON_GROUND else self.shift[number]

    def _from_origin(self, number: int, p: Tensor | Vector) -> np.ndarray:
        return np.array(p) - self.tree.origin(number)

    def axis(self, number: int) -> Tensor:
        """Axis (3,) of a link's motion, in the frame of its root."""
        link = self.tree.links[number]
        return product(self._turn(link.parent), np.array(link.motion.axis))

    def pivot(self, number: int) -> Tensor:
        """The point (3,) about which a link turns, in the frame of its root."""
        link = self.tree.links[number]
        at = self._from_origin(number, link.motion.at)
        return plus(product(self._turn(link.parent), at), self._shift(link.parent))

    @cached_property
    def screws(self) -> list[tuple[Tensor, Tensor]]:
        """For each link, by its k coordinates: angular velocities (3, k), and velocities (3, k) of what is at the
        root's origin, in the root's frame.

        Those of a free link are of its rotation alone.
        """
        found: list[tuple[Tensor, Tensor]] = []
        for i, link in enumerate(self.tree.links):
            own, kind = self.q[link.slice], link.motion.kind
            if kind == "slider":
                found.append((np.zeros((3, 1)), self.axis(i)[:, None]))
            elif kind == "free":
                found.append((rates_inside(own[3:]), np.zeros((3, 4))))
            else:
                turns = (
                    product(self._turn(link.parent), rates_outside(own)) if kind == "ball" else self.axis(i)[:, None]
                )
                found.append((turns, cross(self.pivot(i), turns)))
        return found

    def placement(self, body: str) -> tuple[Tensor, Tensor]:
        """Rotation R (3, 3) and shift d (3,) with which points of a body, counted from its tree's origin,
        are at R p + d in the world."""
        number = self.tree.link_of[body]
        if number not in self._world:
            root = ON_GROUND if number == ON_GROUND else self.tree.links[number].root
            outside = self.root_turn[root]
            turn = product(outside, self._turn(number))
            self._world[number] = turn, plus(product(outside, self._shift(number)), self.root_shift[root])
        return self._world[number]

    def rotation(self, body: str) -> Tensor:
        """Rotation (3, 3) of a body since the start."""
        return self.placement(body)[0]

    def point(self, body: str, p: Vector) -> Tensor:
        """Position (3,) of the point of a body that was at p at the start."""
        turn, shift = self.placement(body)
        return plus(product(turn, self._from_origin(self.tree.link_of[body], p)), shift)

    def direction(self, body: str, u: Tensor | Vector) -> Tensor:
        """The vector (3,), or columns (3, k), fixed in a body, that was u at the start."""
        return product(self.rotation(body), np.array(u))

    def centre(self, body: str) -> Tensor:
        """Position (3,) of a body's centre of mass."""
        return ZERO if body == GROUND else self.point(body, self.tree.bodies[body].centre)

    def coordinate(self, a: str, b: str) -> Tensor:
        """The angle or length () of the `Hinge` or `Slider` of body a relative to b."""
        place, sign = self.tree.single[a, b]
        return sign * self.q[place]


class Twists:
    """Velocities of all links at coordinate velocities v (d,): ``spin`` and ``drift`` (3,), of what is at the root's
    origin, in the root's frame.

    They leave out the velocity of the root itself, with which its frame moves along.
    """

    def __init__(self, pose: Pose, v: Array) -> None:
        self.pose, self.v = pose, v
        self.spin: list[Tensor] = []
        self.drift: list[Tensor] = []
        # what the link's own coordinates add
        self.added: list[tuple[Tensor, Tensor]] = []
        for link, (turns, drifts) in zip(pose.tree.links, pose.screws, strict=True):
            rate = v[link.slice][-turns.shape[1] :]
            own = product(turns, rate), product(drifts, rate)
            self.added.append(own)
            on_ground = link.parent == ON_GROUND
            self.spin.append(own[0] if on_ground else plus(self.spin[link.parent], own[0]))
            self.drift.append(own[1] if on_ground else plus(self.drift[link.parent], own[1]))

    def angular_velocity(self, body: str) -> Tensor:
        """Angular velocity (3,) of a body, in the axes of the world."""
        number = self.pose.tree.link_of[body]
        if number == ON_GROUND:
            return ZERO
        return product(self.pose.root_turn[self.pose.tree.links[number].root], self.spin[number])

    def velocities(self, body: str, places: Tensor) -> Tensor:
        """Velocities (k, 3) of the points of a body that are now at ``places`` (k, 3), in the axes of the world."""
        number = self.pose.tree.link_of[body]
        if number == ON_GROUND:
            return np.zeros(places.shape)
        root = self.pose.tree.links[number].root
        speed = product(self.pose.root_turn[root], self.drift[number])
        if root != ON_GROUND:
            first = self.pose.tree.links[root].first
            speed = plus(speed, self.v[first : first + 3])
        arms = plus(places.T, scaled(-1, self.pose.root_shift[root])[:, None])
        return plus(cross(self.angular_velocity(body), arms), speed[:, None]).T

    def velocity(self, body: str, place: Tensor) -> Tensor:
        """Velocity (3,) of the point of a body that is now at ``place`` (3,)."""
        return self.velocities(body, place[None])[0]

    def rate(self, a: str, b: str) -> Tensor:
        """Rate () of `Pose.coordinate`."""
        place, sign = self.pose.tree.single[a, b]
        return sign * self.v[place]
