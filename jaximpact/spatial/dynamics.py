"""Mass matrix and forces of a tree of bodies, by formulas: composite inertias inwards, velocities outwards and forces
inwards, in the root's frame.

A quaternion p has the kinetic energy of the rotation of p/|p|, and besides c (|p|')^2/2 with any c > 0: |p| is then a
coordinate of its own, on which nothing acts, and no equation |p| = 1 is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..planar.quantities import value_at
from .body import Body, composite
from .pose import Pose, Twists
from .tree import ON_GROUND, SIZE, Link, Tree
from .vectors import ZERO, Tensor, alike, around, cross, is_zero, outer, plus, product, rates_outside, scaled, turned

if TYPE_CHECKING:
    from .tree import Link


class Loads:
    """Forces on the bodies at a pose, summed for each link, and along single coordinates."""

    def __init__(self, pose: Pose) -> None:
        self.pose = pose
        self.forces: dict[int, Tensor] = {}
        self.moments: dict[int, Tensor] = {}
        self.along: dict[int, Tensor | float] = {}

    def push(self, body: str, place: Tensor, force: Tensor) -> None:
        """Adds a force (3,) on the point of a body that is at ``place`` (3,), both in the axes of the world."""
        number = self.pose.tree.link_of[body]
        if number != ON_GROUND:
            root = self.pose.tree.links[number].root
            self.forces[number] = plus(self.forces.get(number, ZERO), force)
            self.twist(body, cross(plus(place, scaled(-1, self.pose.root_shift[root])), force))

    def twist(self, body: str, torque: Tensor) -> None:
        """Adds a torque (3,) on a body, in the axes of the world."""
        number = self.pose.tree.link_of[body]
        if number != ON_GROUND:
            self.moments[number] = plus(self.moments.get(number, ZERO), torque)

    def drive(self, a: str, b: str, force: Tensor) -> None:
        """Adds a torque, or a force, () along the coordinate of the hinge, or slider, of body a relative to b."""
        place, sign = self.pose.tree.single[a, b]
        self.along[place] = self.along.get(place, 0.0) + sign * force


def inertias(tree: Tree, pose: Pose, args: object) -> list[tuple[Tensor | float, Tensor, Tensor]]:
    """Returns for each link its mass, its centre of mass (3,) and its inertia about it (3, 3), in the root's frame."""
    found: list[tuple[Tensor | float, Tensor, Tensor]] = []
    for i, link in enumerate(tree.links):
        if not link.bodies:
            found.append((0.0, ZERO, np.zeros((3, 3))))
            continue
        mass, centre, inertia = composite([tree.bodies[name] for name in link.bodies], tree.origin(i), args)
        place = plus(product(pose.turn[i], centre), pose.shift[i])
        found.append((mass, place, turned(pose.turn[i], inertia)))
    return found


def length_inertia(tree: Tree, number: int, args: object) -> Tensor | float:
    """Returns c (), the inertia that the length of a link's quaternion is given:
    of the order of that of its rotation."""
    link = tree.links[number]
    bodies: Mapping[str, Body] = tree.bodies
    parts = [bodies[name] for name in link.bodies]
    arms = [np.subtract(body.centre, link.motion.at) for body in parts]
    turning = [4 / 3 * jnp.trace(jnp.asarray(body.inertia_at(args))) for body in parts if callable(body.inertia)]
    known = [4 / 3 * float(np.trace(body.inertia_at(args))) for body in parts if not callable(body.inertia)]
    return (
        sum(known)
        + sum(turning)
        + sum(value_at(b.mass, args) * float(x @ x) for b, x in zip(parts, arms, strict=True) if x.any())
    )


def mass_matrix(tree: Tree, pose: Pose, args: object) -> Array:
    """Returns the mass matrix (d, d)."""
    q, links, screws = pose.q, tree.links, pose.screws
    # of all that a link carries: mass, first moment, and inertia about the root's origin
    whole = [(m, scaled(m, c), plus(j, scaled(m, around(c)))) for m, c, j in inertias(tree, pose, args)]
    for i in reversed(range(len(links))):
        parent = links[i].parent
        if parent != ON_GROUND:
            (m, h, j), (own, first, inertia) = whole[i], whole[parent]
            whole[parent] = (own + m, plus(first, h), plus(inertia, j))
    blocks: dict[tuple[int, int], Tensor] = {}
    places = [place for link in links for place in _places(link)]
    for i, link in enumerate(links):
        turns, drifts = screws[i]
        mass, first, inertia = whole[i]
        momentum = plus(scaled(mass, drifts), scaled(-1, cross(first, turns)))
        spin = plus(product(inertia, turns), cross(first, drifts))
        (here, _), *others = _places(link)[::-1]
        for k in tree.upwards(i):
            block = plus(product(screws[k][0].T, spin), product(screws[k][1].T, momentum))
            there = _places(links[k])[-1][0]
            blocks[there, here], blocks[here, there] = block, block.T
        if link.motion.armature:
            rates = _own_rates(q, link)
            blocks[here, here] = blocks[here, here] + link.motion.armature * (rates.T @ rates)
        if link.motion.kind in ("free", "ball"):
            p = q[link.slice][-4:]
            length = length_inertia(tree, i, args) / (p @ p)
            blocks[here, here] = blocks[here, here] + jnp.asarray(length, q.dtype) * outer(p, p)
        if link.root != ON_GROUND:
            away = links[link.root].first
            block = product(pose.root_turn[link.root], momentum)
            blocks[away, here], blocks[here, away] = block, block.T
        for start, _ in others:
            blocks[start, start] = mass * jnp.eye(3, dtype=q.dtype)
    rows = []
    for i, k in places:
        row = [blocks.get((i, j), np.zeros((k, n))) for j, n in places]
        rows.append(jnp.concatenate([jnp.asarray(x, q.dtype) for x in row], axis=1))
    return jnp.concatenate(rows, axis=0)


def _places(link: Link) -> list[tuple[int, int]]:
    """Returns the first coordinates of the blocks of a link, and their sizes:
    a free link has one of its place and one of its rotation."""
    size = SIZE[link.motion.kind]
    return [(link.first, 3), (link.first + 3, 4)] if size == 7 else [(link.first, size)]


def generalised_force(tree: Tree, twists: Twists, loads: Loads, gravity: Tensor, args: object) -> Array:
    """Returns the generalised force (d,): of velocities, of weights with the acceleration ``gravity`` (3,),
    and of the ``loads``."""
    pose, q, v, links = twists.pose, twists.pose.q, twists.v, tree.links
    turning: list[Tensor] = []
    moving: list[Tensor] = []
    forces: list[Tensor] = []
    moments: list[Tensor] = []
    weights: dict[int, Tensor] = {}
    falls: dict[int, Tensor] = {ON_GROUND: gravity}
    carriers = {link.root for i, link in enumerate(links) if link.root not in (i, ON_GROUND)}
    inertia = inertias(tree, pose, args)
    for i, link in enumerate(links):
        spin, drift = twists.spin[i], twists.drift[i]
        turns, drifts = twists.added[i]
        mass, centre, tensor = inertia[i]
        if link.motion.kind == "free":
            accelerations: tuple[Tensor, ...] = scaled(-_stretch(q, v, link), turns), ZERO
            if i in carriers or not is_zero(centre):
                falls[i] = product(pose.root_turn[i].T, gravity)
        else:
            before = (ZERO, ZERO) if link.parent == ON_GROUND else (twists.spin[link.parent], twists.drift[link.parent])
            carried = (ZERO, ZERO) if link.parent == ON_GROUND else (turning[link.parent], moving[link.parent])
            accelerations = (
                plus(carried[0], cross(before[0], turns)),
                plus(carried[1], cross(before[0], drifts), cross(before[1], turns)),
            )
            if link.motion.kind == "ball":
                stretch = -_stretch(q, v, link)
                accelerations = tuple(
                    plus(x, scaled(stretch, y)) for x, y in zip(accelerations, (turns, drifts), strict=True)
                )
        turning.append(accelerations[0])
        moving.append(accelerations[1])
        if not link.bodies:
            forces.append(ZERO)
            moments.append(ZERO)
            continue
        own = plus(cross(accelerations[0], centre), cross(spin, plus(drift, cross(spin, centre))), accelerations[1])
        if link.motion.kind == "free" and is_zero(centre):
            weights[i] = scaled(mass, gravity)
        else:
            own = plus(own, scaled(-1, falls[link.root]))
        force = scaled(mass, own)
        forces.append(force)
        moments.append(
            plus(product(tensor, accelerations[0]), cross(spin, product(tensor, spin)), cross(centre, force))
        )
    found: dict[int, Tensor] = {}
    for i in reversed(range(len(links))):
        link = links[i]
        outside = pose.root_turn[link.root]
        push, moment = loads.forces.get(i, ZERO), loads.moments.get(i, ZERO)
        moments[i] = plus(moments[i], scaled(-1, product(outside.T, moment)))
        if link.motion.kind == "free":
            found[link.first] = plus(scaled(-1, product(outside, forces[i])), weights.get(i, ZERO), push)
        else:
            forces[i] = plus(forces[i], scaled(-1, product(outside.T, push)))
            if link.parent != ON_GROUND:
                forces[link.parent] = plus(forces[link.parent], forces[i])
                moments[link.parent] = plus(moments[link.parent], moments[i])
        turns, drifts = pose.screws[i]
        own = scaled(-1, plus(product(turns.T, moments[i]), product(drifts.T, forces[i])))
        if link.motion.kind in ("free", "ball"):
            p, rate = q[link.slice][-4:], v[link.slice][-4:]
            # |p| oscillates about 1, and comes to rest there, with the rate of the rotation: else it would leave 1 by
            # the errors of steps and impacts
            stretch = _stretch(q, v, link)
            turn = rate @ rate / (p @ p) - stretch**2 / 4
            radial = -turn * (2 - 1 / (p @ p)) - jnp.sqrt(turn + 1e-12) * stretch
            own = own + jnp.asarray(length_inertia(tree, i, args), q.dtype) * radial * p
            if link.motion.armature:
                rates = _own_rates(q, link)
                own = own + link.motion.armature * _stretch(q, v, link) * (rates.T @ (rates @ rate))
        elif link.first in loads.along:
            own = plus(own, jnp.asarray(loads.along[link.first], q.dtype)[None])
        found[_places(link)[-1][0]] = own
    return jnp.concatenate([jnp.asarray(found[start], q.dtype) for link in links for start, _ in _places(link)])


def _own_rates(q: Array, link: Link) -> Tensor:
    """Returns the matrix (k, n) from the rates of the n coordinates of a joint to the k components of its body's
    velocity relative to the body that carries it."""
    return rates_outside(q[link.slice]) if link.motion.kind == "ball" else np.ones((1, 1))


def _stretch(q: Array, v: Array, link: Link) -> Tensor:
    """Returns n'/n, with n = |p|^2 of the quaternion of a link."""
    p, rate = q[link.slice][-4:], v[link.slice][-4:]
    return 2 * (p @ rate) / (p @ p)


def height_energy(tree: Tree, pose: Pose, gravity: Tensor, args: object) -> Tensor | float:
    """Returns the potential energy () of the weights."""
    total: Tensor | float = 0.0
    for name in (name for link in tree.links for name in link.bodies):
        body = tree.bodies[name]
        place, g = alike(pose.centre(name), gravity)
        total = total - value_at(body.mass, args) * (g @ place)
    return total
