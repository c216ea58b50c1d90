"""Arrays of a compiled `mujoco.MjModel`, as they are named since its version 3.3: names, places at the start,
and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

FREE, BALL, SLIDE, HINGE = range(4)
SPEEDS = 6, 3, 1, 1
KINDS = {FREE: "free", BALL: "ball", SLIDE: "slider", HINGE: "hinge"}
WORLD = 0
# what bends the laws of springs, dampers, motors and surfaces, and is not read: all of it must be zero
ZERO_FIELDS = {
    "jnt_stiffnesspoly": ("joint", "a stiffness that is a polynomial"),
    "jnt_springyield": ("joint", "a spring that yields"),
    "dof_dampingpoly": ("joint", "a damping that is a polynomial"),
    "actuator_dampingpoly": ("actuator", "a damping that is a polynomial"),
    "actuator_damping": ("actuator", "damping"),
    "actuator_armature": ("actuator", "armature: give it to the joint"),
    "actuator_delay": ("actuator", "a delay"),
    "geom_surfacevel": ("geom", "a surface that moves, as a belt does"),
    "geom_adhesion": ("geom", "adhesion"),
    "tendon_stiffnesspoly": ("tendon", "a stiffness that is a polynomial"),
    "tendon_dampingpoly": ("tendon", "a damping that is a polynomial"),
    "tendon_armature": ("tendon", "armature"),
    "tendon_actfrclimited": ("tendon", "a limited force of its actuators"),
}
CURE = "; change that in the file, or in a mujoco.MjModel, and give this to from_mjcf"


def refuse(kind: str, name: str, has: str, instead: str = "") -> ValueError:
    """Makes the error that an element of a file is refused for what it has."""
    return ValueError(f"from_mjcf: {kind} {name!r} has {has}, which is not read{instead or CURE}")


def matrix_of(quaternion: np.ndarray) -> np.ndarray:
    """Returns the rotation (3, 3) of a quaternion (w, x, y, z), of any length; 0 and 1 where it is so by rounding."""
    w, *u = quaternion / np.linalg.norm(quaternion)
    x, y, z = u
    found = 2 * np.outer(u, u) + (2 * w * w - 1) * np.eye(3) + 2 * w * np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.where(np.abs(found) < 1e-15, 0, np.where(np.abs(np.abs(found) - 1) < 1e-15, np.sign(found), found))


def quaternion_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the quaternion (4,) of the rotation b followed by the rotation a."""
    return np.concatenate([[a[0] * b[0] - a[1:] @ b[1:]], a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])])


def point(x: np.ndarray) -> tuple[float, float, float]:
    a, b, c = (0.0 if abs(y) < 1e-15 else float(y) for y in x)
    return a, b, c


class Arrays:
    """A compiled model, with unique names of its elements, and the places at which its bodies start (``qpos0``).

    Attributes:
        model: the `mujoco.MjModel`.
        turns, places: of each body, the quaternion (4,) and the place (3,) of its frame at the start.
    """

    def __init__(self, model: Any, flags: Any) -> None:
        self.model, self._flags = model, flags
        self.turns, self.places = [np.array([1.0, 0, 0, 0])], [np.zeros(3)]
        for i in range(1, model.nbody):
            parent, own = model.body_parentid[i], model.body_quat[i]
            turn, place = self.turns[parent], self.places[parent]
            self.turns.append(quaternion_product(turn, own / np.linalg.norm(own)))
            self.places.append(place + matrix_of(turn) @ model.body_pos[i])

    def disabled(self, what: str) -> bool:
        """Whether a flag of the file's options is "disable"; that of all constraints counts for each kind of them."""
        names = (what, "CONSTRAINT") if what in ("CONTACT", "LIMIT", "EQUALITY", "FRICTIONLOSS") else (what,)
        flags = sum(int(getattr(self._flags, f"mjDSBL_{name}", 0)) for name in names)
        return bool(self.model.opt.disableflags & flags)

    def at(self, body: int, p: np.ndarray) -> tuple[float, float, float]:
        """Returns where the point p (3,) of a body's frame is at the start."""
        return point(self.places[body] + matrix_of(self.turns[body]) @ p)

    def axes(self, body: int, quaternion: np.ndarray) -> np.ndarray:
        """Returns axes (3, 3), as columns, of a frame in a body, at the start."""
        return matrix_of(quaternion_product(self.turns[body], quaternion / np.linalg.norm(quaternion)))

    def joints_of(self, body: int) -> range:
        first = int(self.model.body_jntadr[body])
        return range(first, first + int(self.model.body_jntnum[body]))

    @cached_property
    def carriers(self) -> list[int]:
        """Of each body the one that it is fixed to, which has joints, or the world."""
        found = [WORLD]
        for i in range(1, self.model.nbody):
            found.append(i if len(self.joints_of(i)) else found[self.model.body_parentid[i]])
        return found

    def one_way(self, a: int, b: int) -> bool:
        """Whether two bodies move relative to each other in one way alone, but for equalities: by one joint, or by
        slides along one line."""
        above: list[set[int]] = [set(), set()]
        for found, body in zip(above, (a, b), strict=True):
            while body != WORLD:
                found.update(self.joints_of(body))
                body = int(self.model.body_parentid[body])
        between = sorted(above[0] ^ above[1])
        kinds = [int(self.model.jnt_type[j]) for j in between]
        bodies = [int(self.model.jnt_bodyid[j]) for j in between]
        axes = [matrix_of(self.turns[i]) @ self.model.jnt_axis[j] for i, j in zip(bodies, between, strict=True)]
        along = all(abs(x @ axes[0]) > 1 - 1e-9 for x in axes)
        return kinds == [HINGE] or (set(kinds) == {SLIDE} and along)

    def of_dof(self, name: str, joint: int) -> np.ndarray:
        """Returns an array of degrees of freedom at those of a joint."""
        first = int(self.model.jnt_dofadr[joint])
        return np.ravel(getattr(self.model, name)[first : first + SPEEDS[self.model.jnt_type[joint]]])

    # names

    @cached_property
    def bodies(self) -> list[str]:
        """Names of all bodies, "ground" for the world."""
        own = [self.model.body(i).name or f"body {i}" for i in range(self.model.nbody)]
        return ["ground", *_unique(own[1:], {"ground"})]

    @cached_property
    def joints(self) -> list[str]:
        """Names of all joints; by its body of one that has none."""
        names = [self.model.joint(i).name for i in range(self.model.njnt)]
        return _unique(_by_body(names, [self.bodies[i] for i in self.model.jnt_bodyid]))

    @cached_property
    def geoms(self) -> list[str]:
        """Names of all geoms; by its body of one that has none."""
        names = [self.model.geom(i).name for i in range(self.model.ngeom)]
        return _unique(_by_body(names, [self.bodies[i] for i in self.model.geom_bodyid]))

    def names_of(self, kind: str) -> list[str]:
        """Names of elements of a kind, such as "actuator"."""
        known = {"body": self.bodies, "joint": self.joints, "geom": self.geoms}
        if kind in known:
            return known[kind]
        short = {"equality": "eq", "keyframe": "key"}.get(kind, kind)
        look = getattr(self.model, short)
        total = len(self.model.actuator_trntype) if kind == "actuator" else getattr(self.model, f"n{short}")
        return _unique([look(i).name or f"{kind} {i}" for i in range(total)])

    # what is refused

    def check(self) -> None:
        """Raises ValueError, with the name of the element, for what is not read and would change the motion."""
        model = self.model
        for kind in ("flex", "plugin"):
            if getattr(model, f"n{kind}", 0):
                raise ValueError(f"from_mjcf: the file has a {kind}, which is not read{CURE}")
        for name in ("density", "viscosity"):
            if getattr(model.opt, name):
                raise ValueError(f"from_mjcf: option {name} of the file, a fluid, is not read{CURE}")
        for field, (kind, has) in ZERO_FIELDS.items():
            for i in self._nonzero(field):
                whose = int(model.dof_jntid[i]) if field.startswith("dof") else i
                raise refuse(kind, self.names_of(kind)[whose], has)

    def _nonzero(self, field: str) -> Iterator[int]:
        values = np.asarray(getattr(self.model, field, np.zeros(0)))
        yield from (
            (int(i) for i in np.flatnonzero(np.any(values.reshape(len(values), -1), axis=1))) if len(values) else ()
        )


def _by_body(names: list[str], bodies: list[str]) -> list[str]:
    """Returns names, those that are empty by their bodies, with numbers where a body has several."""
    found = []
    for i, (name, body) in enumerate(zip(names, bodies, strict=True)):
        several = bodies.count(body) > 1
        found.append(name or (f"{body} {bodies[:i].count(body) + 1}" if several else body))
    return found


def _unique(names: list[str], taken: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Returns the names with a number behind those that were there before."""
    found: list[str] = []
    for name in names:
        other, k = name, 2
        while other in found or other in taken:
            other, k = f"{name} ({k})", k + 1
        found.append(other)
    return found
